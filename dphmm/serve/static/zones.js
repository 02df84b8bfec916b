// The user's zones: drawn with the mouse, a finger or the keyboard, named, previewed and saved.
import { makeDrawing, outlineCircle } from "./drawing.js";
import { COLOUR } from "./map.js";
import { KM_PER_DEGREE, STATIC_LAYER } from "./plots/basemap.js";
import { formatLength, formatNumber, translate } from "./words.js";

const $ = (id) => document.getElementById(id);
const PREVIEW_DELAY_MS = 350, NIGHT_HOURS = [0, 5], MIN_NIGHT_RELEASES = 6;

function random() {
  // From 0 to 1, and unpredictable: a zone is public, and its centre must not reveal the home.
  return crypto.getRandomValues(new Uint32Array(1))[0] / 2 ** 32;
}

export function makeZones({ map, layers, request, showMessage, withErrors, fillList, makeButton, state, trail, refresh }) {
  let inForce = null, previewInForce = null; // the zones in force, as text, and their effects
  let numPreviews = 0;
  let placing = null, placedHome = null; // the home zone that a click moves, and the home in it
  const parts = { zones: $("zones"), corners: $("corners"), corner: $("corner"), undo: $("undo"), close: $("close"), focus: $("home") };
  const { drawn, addZone, collect, list, read } = makeDrawing({ map, parts, makeButton, changed });

  function collectZones() {
    return { zones: collect(), buffer_m: Number($("buffer").value) || 0, elsewhere: $("elsewhere").value };
  }

  function showInForce() {
    const { zones, elsewhere } = state();
    endPlacing();
    read(zones.zones);
    $("buffer").value = zones.buffer_m;
    const policy = $("elsewhere").options[0];
    policy.textContent = elsewhere ? translate("elsewhere_policy", { policy: elsewhere }) : translate("elsewhere_nothing");
    policy.disabled = !elsewhere;
    $("elsewhere").value = zones.elsewhere;
    inForce = JSON.stringify(collectZones());
    previewInForce = null;
    changed();
  }

  function changed() {
    list();
    const differs = JSON.stringify(collectZones()) !== inForce;
    $("save").disabled = $("revert").disabled = !differs;
    clearTimeout(changed.timer);
    changed.timer = setTimeout(showPreview, PREVIEW_DELAY_MS);
  }

  function makeParagraph(text, bad) {
    return Object.assign(document.createElement("p"), { className: bad ? "bad" : "", textContent: text });
  }

  async function showPreview() {
    const turn = ++numPreviews, current = JSON.stringify(collectZones());
    let preview = null, problem = "";
    try { preview = await request("preview", collectZones()); } catch (error) {
      if (error.name === "AbortError") return; // the page of another user is opened
      problem = error.message;
    }
    if (turn !== numPreviews) return; // the zones have changed since
    layers.exposed.clearLayers();
    layers.addedEdges.clearLayers();
    if (problem) {
      $("effect").replaceChildren(makeParagraph(problem, true));
      $("save").disabled = true;
      return;
    }
    if (current === inForce) previewInForce = preview;
    $("effect").replaceChildren(
      ...preview.zones.map((zone) => makeParagraph(translate("effect_zone", { name: zone.name, error: formatLength(zone.error_m), cells: formatNumber(zone.num_cells) }))),
      ...(preview.error_m_elsewhere === null ? [] : [makeParagraph($("elsewhere").value === "exact" ? translate("effect_exact")
        : translate(preview.zones.length ? "effect_elsewhere" : "effect_all", { error: formatLength(preview.error_m_elsewhere) }))]),
      ...(current === inForce ? [] : [makeParagraph(translate("not_saved"))]));
    const list = document.createElement("dl"), before = current !== inForce && previewInForce;
    fillList(list, [
      [translate("preview_error"), before ? translate("preview_before", { now: formatLength(preview.error_m), before: formatLength(previewInForce.error_m) }) : formatLength(preview.error_m)],
      ...preview.zones.map((zone) => [translate("preview_zone", { name: zone.name }), translate("preview_cells", { error: formatLength(zone.error_m), cells: formatNumber(zone.num_cells) })]),
      ...(preview.zones.length && preview.error_m_elsewhere !== null ? [[translate("elsewhere"), formatLength(preview.error_m_elsewhere)]] : []),
      [translate("preview_exact"), translate("part_of_whole", { part: formatNumber(preview.num_exact), whole: formatNumber(preview.num_cells) })],
      [translate("legend_exposed"), formatNumber(preview.num_exposed)],
      [translate("legend_added_edges"), formatNumber(preview.num_added_edges)],
    ]);
    $("preview").replaceChildren(list);
    for (const point of preview.exposed) L.circleMarker(point, { radius: 4, stroke: false, fillColor: COLOUR.exposed, fillOpacity: 0.8, ...STATIC_LAYER }).addTo(layers.exposed);
    for (const edge of preview.added_edges) L.polyline(edge, { color: COLOUR.addedEdge, weight: 2, ...STATIC_LAYER }).addTo(layers.addedEdges);
  }

  // ---- a home zone --------------------------------------------------------------------------------------------------

  function makeHomeOutline(home) {
    // A round zone that contains the home at a random position. A zone centred on the home would reveal it.
    const radius = Number($("home-size").value), angle = 2 * Math.PI * random(), distance = 0.85 * radius * Math.sqrt(random());
    const up = 1 / (1000 * KM_PER_DEGREE), right = up / Math.cos(home.lat * Math.PI / 180);
    return outlineCircle(L.latLng(home.lat + distance * Math.sin(angle) * up, home.lng + distance * Math.cos(angle) * right), radius);
  }

  function estimateHome() {
    // The median of the estimates at night, which recipients already know.
    const nights = trail().filter((entry) => { const hour = new Date(entry.time).getHours(); return !entry.prediction && hour >= NIGHT_HOURS[0] && hour < NIGHT_HOURS[1]; });
    if (nights.length < MIN_NIGHT_RELEASES) return null;
    const median = (key) => nights.map((entry) => entry[key]).sort((a, b) => a - b)[Math.floor(nights.length / 2)];
    return L.latLng(median("latitude"), median("longitude"));
  }

  function placeHome(home) {
    placedHome = home;
    if (placing && drawn.hasLayer(placing)) placing.setLatLngs(makeHomeOutline(home));
    else placing = addZone(L.polygon(makeHomeOutline(home)), translate("home"));
    changed();
  }

  function endPlacing() {
    placing = placedHome = null;
    map.getContainer().classList.remove("placing");
  }

  function onClick({ latlng }) {
    if (map.getContainer().classList.contains("placing")) placeHome(latlng);
  }

  $("home").addEventListener("click", withErrors(async () => {
    const home = estimateHome();
    map.getContainer().classList.add("placing");
    if (home) {
      placeHome(home);
      map.fitBounds(placing.getBounds(), { maxZoom: 14 });
    }
    showMessage(translate(home ? "home_suggested" : "home_click"));
    $("map").focus();
  }));
  $("map").addEventListener("keydown", (event) => {
    if (!map.getContainer().classList.contains("placing") || event.target !== $("map")) return;
    if (event.key === "Enter") placeHome(map.getCenter());
    if (event.key === "Escape") { endPlacing(); showMessage(""); }
  });
  $("home-size").addEventListener("change", () => { if (placing) placeHome(placedHome); });
  map.on("click", onClick);

  // ---- options and files ----------------------------------------------------------------------------------------------

  $("corners").addEventListener("toggle", () => map.getContainer().classList.toggle("crossed", $("corners").open));
  $("buffer").addEventListener("input", changed);
  $("elsewhere").addEventListener("change", changed);
  $("revert").addEventListener("click", showInForce);
  $("save").addEventListener("click", withErrors(async () => {
    await request("zones", collectZones());
    await refresh();
    showInForce();
    showMessage(translate("zones_saved"));
  }));
  $("export").addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([JSON.stringify(collectZones().zones, null, 1)], { type: "application/geo+json" }));
    link.download = "zones.geojson";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
  $("import").addEventListener("change", withErrors(async () => {
    const [file] = $("import").files;
    $("import").value = "";
    if (!file) return;
    let collection = null;
    try { collection = JSON.parse(await file.text()); } catch { throw new Error(translate("no_geojson")); }
    if (!collection || collection.type !== "FeatureCollection") throw new Error(translate("no_geojson"));
    if (!read(collection)) throw new Error(translate("no_polygon"));
    changed();
  }));

  return { showInForce };
}
