// A person's zones: drawn with the mouse, a finger or the keyboard, named, priced as they are drawn, and saved.
import { COLOUR, KM_A_DEGREE, STILL } from "./map.js";
import { language, metres, number, say } from "./words.js";

const $ = (id) => document.getElementById(id);
const DRAWN_FOR_MS = 350, ROUND = 24, NIGHT = [0, 5], FEWEST_NIGHTS = 6;

function random() {
  // From 0 to 1, and not to be foretold: a zone is public, and its middle must not give a home away.
  return crypto.getRandomValues(new Uint32Array(1))[0] / 2 ** 32;
}

export function makeZones({ map, layers, ask, tell, trying, facts, button, state, trail, look }) {
  let inForce = null, priceInForce = null; // the zones in force, as text, and what they do
  let asked = 0, corners = [], sketch = null; // of a zone that is drawn with the keyboard
  let placing = null; // the home zone that a click moves
  let listed = []; // the zones in the list, and their names
  const drawn = L.featureGroup().addTo(map);

  map.pm.setLang(language);
  map.pm.setGlobalOptions({ layerGroup: drawn, pathOptions: { color: COLOUR.zone, fillOpacity: 0.15 }, allowSelfIntersection: false });
  map.pm.addControls({
    position: "topright", drawMarker: false, drawCircleMarker: false, drawCircle: false, drawPolyline: false, drawText: false,
    rotateMode: false, cutPolygon: false,
  });
  for (const one of map.getContainer().querySelectorAll(".button-container[title] > a")) one.setAttribute("aria-label", one.parentElement.title);
  const cross = L.DomUtil.create("div", "cross", map.getContainer());
  cross.setAttribute("aria-hidden", "true");
  map.on("pm:create", ({ layer }) => { addZone(layer); changed(); });
  map.on("pm:remove", changed);

  function zonesNow() {
    const features = drawn.getLayers().map((layer) => {
      const feature = layer.toGeoJSON(6);
      return { type: "Feature", properties: { name: layer.zone }, geometry: feature.geometry };
    });
    return { zones: { type: "FeatureCollection", features }, buffer_m: Number($("buffer").value) || 0, elsewhere: $("elsewhere").value };
  }

  function addZone(layer, name) {
    const taken = new Set(drawn.getLayers().map((one) => one.zone));
    let many = 1;
    while (taken.has(say("zone_numbered", { number: many }))) many += 1;
    layer.zone = name && !taken.has(name) ? name : say("zone_numbered", { number: many });
    layer.setStyle({ color: COLOUR.zone, fillOpacity: 0.15 });
    if (!drawn.hasLayer(layer)) drawn.addLayer(layer);
    layer.on("pm:edit pm:dragend pm:markerdragend", changed);
    return layer;
  }

  function listZones() {
    const some = drawn.getLayers();
    const same = some.length && some.length === listed.length && some.every((one, k) => one === listed[k].layer && one.zone === listed[k].name);
    if (same) return; // what has the focus keeps it
    listed = some.map((layer) => ({ layer, name: layer.zone }));
    $("zones").replaceChildren(...some.map((layer) => {
      const item = document.createElement("li"), name = document.createElement("input");
      name.value = layer.zone;
      name.maxLength = 80;
      name.setAttribute("aria-label", say("zone_name"));
      name.addEventListener("change", () => { layer.zone = name.value.trim() || layer.zone; changed(); });
      item.append(name, button(say("show"), say("show_named", { name: layer.zone }), async () => map.fitBounds(layer.getBounds(), { maxZoom: 16 })),
        button(say("remove"), say("remove_named", { name: layer.zone }), async () => { drawn.removeLayer(layer); $("home").focus(); changed(); }));
      return item;
    }));
    if (!some.length) $("zones").replaceChildren(Object.assign(document.createElement("li"), { textContent: say("no_zones") }));
  }

  function readZones(said) {
    const found = L.geoJSON(said.zones).getLayers().filter((layer) => ["Polygon", "MultiPolygon"].includes(layer.feature.geometry.type));
    drawn.clearLayers();
    for (const layer of found) {
      const properties = layer.feature.properties || {};
      addZone(layer, String(properties.name || properties.category || "").trim());
    }
    return found.length;
  }

  function showInForce() {
    const { zones, elsewhere } = state();
    endPlacing();
    readZones(zones);
    $("buffer").value = zones.buffer_m;
    const policy = $("elsewhere").options[0];
    policy.textContent = elsewhere ? say("elsewhere_policy", { policy: elsewhere }) : say("elsewhere_nothing");
    policy.disabled = !elsewhere;
    $("elsewhere").value = zones.elsewhere;
    inForce = JSON.stringify(zonesNow());
    priceInForce = null;
    changed();
  }

  function changed() {
    listZones();
    const differs = JSON.stringify(zonesNow()) !== inForce;
    $("save").disabled = $("revert").disabled = !differs;
    clearTimeout(changed.timer);
    changed.timer = setTimeout(showPrice, DRAWN_FOR_MS);
  }

  function paragraph(text, bad) {
    return Object.assign(document.createElement("p"), { className: bad ? "bad" : "", textContent: text });
  }

  async function showPrice() {
    const turn = ++asked, now = JSON.stringify(zonesNow());
    let told = null, problem = "";
    try { told = await ask("price", zonesNow()); } catch (found) {
      if (found.name === "AbortError") return; // another person's page is opened
      problem = found.message;
    }
    if (turn !== asked) return; // something else was drawn since
    layers.exposed.clearLayers();
    layers.joined.clearLayers();
    if (problem) {
      $("effect").replaceChildren(paragraph(problem, true));
      $("save").disabled = true;
      return;
    }
    if (now === inForce) priceInForce = told;
    $("effect").replaceChildren(
      ...told.zones.map((zone) => paragraph(say("effect_zone", { name: zone.name, off: metres(zone.error_m), places: number(zone.places) }))),
      ...(told.error_m_elsewhere === null ? [] : [paragraph($("elsewhere").value === "exact" ? say("effect_exact")
        : say(told.zones.length ? "effect_elsewhere" : "effect_all", { off: metres(told.error_m_elsewhere) }))]),
      ...(now === inForce ? [] : [paragraph(say("not_saved"))]));
    const list = document.createElement("dl"), before = now !== inForce && priceInForce;
    facts(list, [
      [say("price_off"), before ? say("price_before", { now: metres(told.error_m), before: metres(priceInForce.error_m) }) : metres(told.error_m)],
      ...told.zones.map((zone) => [say("price_zone", { name: zone.name }), say("price_places", { off: metres(zone.error_m), places: number(zone.places) })]),
      ...(told.zones.length && told.error_m_elsewhere !== null ? [[say("elsewhere"), metres(told.error_m_elsewhere)]] : []),
      [say("price_exact"), say("left_of", { left: number(told.exact_count), whole: number(told.places) })],
      [say("legend_exposed"), number(told.exposed_count)],
      [say("legend_joined"), number(told.added_count)],
    ]);
    $("price").replaceChildren(list);
    for (const place of told.exposed) L.circleMarker(place, { radius: 4, stroke: false, fillColor: COLOUR.exposed, fillOpacity: 0.8, ...STILL }).addTo(layers.exposed);
    for (const pair of told.added) L.polyline(pair, { color: COLOUR.joined, weight: 2, ...STILL }).addTo(layers.joined);
  }

  // ---- a home zone --------------------------------------------------------------------------------------------------

  function around(place) {
    // A round zone that holds a place, anywhere in it: were the place its middle, the zone would tell it.
    const radius = Number($("home-size").value), turn = 2 * Math.PI * random(), far = 0.85 * radius * Math.sqrt(random());
    const up = 1 / (1000 * KM_A_DEGREE), right = up / Math.cos(place.lat * Math.PI / 180);
    const north = place.lat + far * Math.sin(turn) * up, east = place.lng + far * Math.cos(turn) * right;
    return Array.from({ length: ROUND }, (_, k) => [
      north + radius * Math.sin(2 * Math.PI * k / ROUND) * up, east + radius * Math.cos(2 * Math.PI * k / ROUND) * right]);
  }

  function nights() {
    // The middle of the places that readers believed in at night, which they know already.
    const some = trail().filter((one) => { const hour = new Date(one.time).getHours(); return !one.prediction && hour >= NIGHT[0] && hour < NIGHT[1]; });
    if (some.length < FEWEST_NIGHTS) return null;
    const middle = (key) => some.map((one) => one[key]).sort((a, b) => a - b)[Math.floor(some.length / 2)];
    return L.latLng(middle("latitude"), middle("longitude"));
  }

  function placeHome(place) {
    if (placing && drawn.hasLayer(placing)) placing.setLatLngs(around(place));
    else placing = addZone(L.polygon(around(place)), say("home"));
    changed();
  }

  function endPlacing() {
    placing = null;
    map.getContainer().classList.remove("placing");
  }

  function clicked({ latlng }) {
    if (map.getContainer().classList.contains("placing")) placeHome(latlng);
  }

  $("home").addEventListener("click", trying(async () => {
    const found = nights();
    map.getContainer().classList.add("placing");
    if (found) {
      placeHome(found);
      map.fitBounds(placing.getBounds(), { maxZoom: 14 });
    }
    tell(say(found ? "home_suggested" : "home_click"));
    $("map").focus();
  }));
  $("map").addEventListener("keydown", (event) => {
    if (!map.getContainer().classList.contains("placing") || event.target !== $("map")) return;
    if (event.key === "Enter") placeHome(map.getCenter());
    if (event.key === "Escape") { endPlacing(); tell(""); }
  });
  $("home-size").addEventListener("change", () => { if (placing) placeHome(placing.getBounds().getCenter()); });
  map.on("click", clicked);

  // ---- corner by corner, and files ----------------------------------------------------------------------------------

  function drawSketch() {
    if (sketch) map.removeLayer(sketch);
    sketch = corners.length ? L.featureGroup([
      L.polyline(corners, { color: COLOUR.zone, dashArray: "5 5", ...STILL }),
      ...corners.map((corner) => L.circleMarker(corner, { radius: 4, color: COLOUR.zone, fillOpacity: 1, ...STILL })),
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
  $("save").addEventListener("click", trying(async () => {
    await ask("zones", zonesNow());
    await look();
    showInForce();
    tell(say("zones_saved"));
  }));
  $("export").addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([JSON.stringify(zonesNow().zones, null, 1)], { type: "application/geo+json" }));
    link.download = "zones.geojson";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
  $("import").addEventListener("change", trying(async () => {
    const [file] = $("import").files;
    $("import").value = "";
    if (!file) return;
    let said = null;
    try { said = JSON.parse(await file.text()); } catch { throw new Error(say("no_geojson")); }
    if (!said || said.type !== "FeatureCollection") throw new Error(say("no_geojson"));
    if (!readZones({ zones: said })) throw new Error(say("no_polygon"));
    changed();
  }));

  return { showInForce };
}
