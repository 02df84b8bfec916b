// The user's zones: drawn with the mouse, a finger or the keyboard, named, previewed and saved.
import { COLOUR, KM_PER_DEGREE, STATIC_LAYER } from "./map.js";
import { language, formatLength, formatNumber, translate } from "./words.js";

const $ = (id) => document.getElementById(id);
const PREVIEW_DELAY_MS = 350, NUM_CORNERS = 24, NIGHT_HOURS = [0, 5], MIN_NIGHT_RELEASES = 6;

function random() {
  // From 0 to 1, and unpredictable: a zone is public, and its centre must not reveal the home.
  return crypto.getRandomValues(new Uint32Array(1))[0] / 2 ** 32;
}

export function makeZones({ map, layers, request, showMessage, withErrors, fillList, makeButton, state, trail, refresh }) {
  let inForce = null, previewInForce = null; // the zones in force, as text, and their effects
  let numPreviews = 0, corners = [], sketch = null; // the zone being drawn with the keyboard
  let placing = null; // the home zone that a click moves
  let listed = []; // the zones in the list, with their names
  const drawn = L.featureGroup().addTo(map);

  map.pm.setLang(language);
  map.pm.setGlobalOptions({ layerGroup: drawn, pathOptions: { color: COLOUR.zone, fillOpacity: 0.15 }, allowSelfIntersection: false });
  map.pm.addControls({
    position: "topright", drawMarker: false, drawCircleMarker: false, drawCircle: false, drawPolyline: false, drawText: false,
    rotateMode: false, cutPolygon: false,
  });
  for (const button of map.getContainer().querySelectorAll(".button-container[title] > a")) button.setAttribute("aria-label", button.parentElement.title);
  const cross = L.DomUtil.create("div", "cross", map.getContainer());
  cross.setAttribute("aria-hidden", "true");
  map.on("pm:create", ({ layer }) => { addZone(layer); changed(); });
  map.on("pm:remove", changed);

  function collectZones() {
    const features = drawn.getLayers().map((layer) => {
      const feature = layer.toGeoJSON(6);
      return { type: "Feature", properties: { name: layer.zone }, geometry: feature.geometry };
    });
    return { zones: { type: "FeatureCollection", features }, buffer_m: Number($("buffer").value) || 0, elsewhere: $("elsewhere").value };
  }

  function addZone(layer, name) {
    const taken = new Set(drawn.getLayers().map((layer) => layer.zone));
    let index = 1;
    while (taken.has(translate("zone_numbered", { number: index }))) index += 1;
    layer.zone = name && !taken.has(name) ? name : translate("zone_numbered", { number: index });
    layer.setStyle({ color: COLOUR.zone, fillOpacity: 0.15 });
    if (!drawn.hasLayer(layer)) drawn.addLayer(layer);
    layer.on("pm:edit pm:dragend pm:markerdragend", changed);
    return layer;
  }

  function listZones() {
    const zoneLayers = drawn.getLayers();
    const isSame = zoneLayers.length && zoneLayers.length === listed.length && zoneLayers.every((layer, k) => layer === listed[k].layer && layer.zone === listed[k].name);
    if (isSame) return; // keeps the focus
    listed = zoneLayers.map((layer) => ({ layer, name: layer.zone }));
    $("zones").replaceChildren(...zoneLayers.map((layer) => {
      const item = document.createElement("li"), name = document.createElement("input");
      name.value = layer.zone;
      name.maxLength = 80;
      name.setAttribute("aria-label", translate("zone_name"));
      name.addEventListener("change", () => { layer.zone = name.value.trim() || layer.zone; changed(); });
      item.append(name, makeButton(translate("show"), translate("show_named", { name: layer.zone }), async () => map.fitBounds(layer.getBounds(), { maxZoom: 16 })),
        makeButton(translate("remove"), translate("remove_named", { name: layer.zone }), async () => { drawn.removeLayer(layer); $("home").focus(); changed(); }));
      return item;
    }));
    if (!zoneLayers.length) $("zones").replaceChildren(Object.assign(document.createElement("li"), { textContent: translate("no_zones") }));
  }

  function readZones({ zones }) {
    const polygons = L.geoJSON(zones).getLayers().filter((layer) => ["Polygon", "MultiPolygon"].includes(layer.feature.geometry.type));
    drawn.clearLayers();
    for (const layer of polygons) {
      const properties = layer.feature.properties || {};
      addZone(layer, String(properties.name || properties.category || "").trim());
    }
    return polygons.length;
  }

  function showInForce() {
    const { zones, elsewhere } = state();
    endPlacing();
    readZones(zones);
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
    listZones();
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
    const north = home.lat + distance * Math.sin(angle) * up, east = home.lng + distance * Math.cos(angle) * right;
    return Array.from({ length: NUM_CORNERS }, (_, k) => [
      north + radius * Math.sin(2 * Math.PI * k / NUM_CORNERS) * up, east + radius * Math.cos(2 * Math.PI * k / NUM_CORNERS) * right]);
  }

  function estimateHome() {
    // The median of the estimates at night, which recipients already know.
    const nights = trail().filter((entry) => { const hour = new Date(entry.time).getHours(); return !entry.prediction && hour >= NIGHT_HOURS[0] && hour < NIGHT_HOURS[1]; });
    if (nights.length < MIN_NIGHT_RELEASES) return null;
    const median = (key) => nights.map((entry) => entry[key]).sort((a, b) => a - b)[Math.floor(nights.length / 2)];
    return L.latLng(median("latitude"), median("longitude"));
  }

  function placeHome(home) {
    if (placing && drawn.hasLayer(placing)) placing.setLatLngs(makeHomeOutline(home));
    else placing = addZone(L.polygon(makeHomeOutline(home)), translate("home"));
    changed();
  }

  function endPlacing() {
    placing = null;
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
  $("home-size").addEventListener("change", () => { if (placing) placeHome(placing.getBounds().getCenter()); });
  map.on("click", onClick);

  // ---- corner by corner, and files ----------------------------------------------------------------------------------

  function drawSketch() {
    if (sketch) map.removeLayer(sketch);
    sketch = corners.length ? L.featureGroup([
      L.polyline(corners, { color: COLOUR.zone, dashArray: "5 5", ...STATIC_LAYER }),
      ...corners.map((corner) => L.circleMarker(corner, { radius: 4, color: COLOUR.zone, fillOpacity: 1, ...STATIC_LAYER })),
    ]).addTo(map) : null;
    $("undo").disabled = !corners.length;
    $("close").disabled = corners.length < 3;
  }

  $("corner").addEventListener("click", () => { corners.push(map.getCenter()); drawSketch(); });
  $("undo").addEventListener("click", () => { corners.pop(); drawSketch(); });
  $("close").addEventListener("click", () => {
    addZone(L.polygon(corners));
    corners = [];
    drawSketch();
    changed();
  });
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
    if (!readZones({ zones: collection })) throw new Error(translate("no_polygon"));
    changed();
  }));

  return { showInForce };
}
