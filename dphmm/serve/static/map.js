// The map: what people recognise a place by, drawn by the browser from what the relay has on board, and places on it.
import { say, when } from "./words.js";

export const COLOUR = { believed: "#1f5fbf", zone: "#2f7d4f", exposed: "#c0392b", joined: "#b26a00" };
const LOOK = {
  border: { color: "#a58fa8", weight: 1.2, dashArray: "6 4" }, line: { color: "#9a9a9a", weight: 1 }, stream: { color: "#9cc3dd", weight: 1.4 },
  lane: { color: "#d6cfc1", weight: 1 }, street: { color: "#ffffff", weight: 2 }, road: { color: "#e6c57c", weight: 3 },
};
export const KM_A_DEGREE = 111.32, STILL = { interactive: false, pmIgnore: true };
const MOST_NAMES = 30, LANES_FROM = 13;

function lineOf(moves) {
  const places = [];
  let latitude = 0, longitude = 0;
  for (let k = 0; k < moves.length; k += 2) {
    latitude += moves[k];
    longitude += moves[k + 1];
    places.push([latitude / 1e5, longitude / 1e5]);
  }
  return places;
}

export function makeMap(bounds, tiles, ground) {
  const map = L.map("map", { preferCanvas: true, zoomSnap: 0.25, zoomControl: false });
  L.control.zoom({ zoomInTitle: say("zoom_in"), zoomOutTitle: say("zoom_out") }).addTo(map);
  map.attributionControl.setPrefix("Leaflet");
  L.control.scale({ imperial: false }).addTo(map);
  map.fitBounds(bounds, { animate: false });
  if (tiles.url) {
    const box = document.createElement("div");
    box.textContent = tiles.attribution;
    L.tileLayer(tiles.url, { attribution: box.innerHTML, maxZoom: 19 }).addTo(map);
  } else drawGround(map, ground, bounds);
  L.rectangle(bounds, { color: "#8b97a3", weight: 1, dashArray: "4 4", fill: false, ...STILL }).addTo(map);
  new ResizeObserver(() => map.invalidateSize()).observe(map.getContainer());
  return map;
}

function drawGround(map, ground, bounds) {
  map.createPane("ground").style.zIndex = 250;
  const renderer = L.canvas({ pane: "ground", padding: 0.5 }), shared = { ...STILL, renderer, pane: "ground", smoothFactor: 1.5 };
  if (ground.water.length) L.polygon(ground.water.map((rings) => rings.map(lineOf)), { ...shared, stroke: false, fillColor: "#c3dcec", fillOpacity: 1 }).addTo(map);
  const streets = ["lane", "street", "road"];
  if (!streets.some((kind) => ground.lines[kind])) grid(map, bounds, shared);
  for (const kind of ["border", "line", "stream", ...streets]) {
    if (!ground.lines[kind]) continue;
    const lines = ground.lines[kind].map(lineOf);
    if (kind === "street" || kind === "road") L.polyline(lines, { ...shared, color: "#b9b2a3", weight: LOOK[kind].weight + 1.2 }).addTo(map);
    const layer = L.polyline(lines, { ...shared, ...LOOK[kind] });
    if (kind === "lane") nearBy(map, layer); else layer.addTo(map);
  }
  if (ground.credit) map.attributionControl.addAttribution(ground.credit.replace(/&/g, "&amp;").replace(/</g, "&lt;"));
  const names = L.layerGroup([], { pmIgnore: true }).addTo(map);
  const label = () => { names.clearLayers(); showNames(map, ground.names, names); };
  map.on("moveend zoomend resize", label);
  label();
}

function nearBy(map, layer) {
  // Small streets are many: they are drawn where they can be told apart.
  const show = () => { if (map.getZoom() >= LANES_FROM) layer.addTo(map); else layer.remove(); };
  map.on("zoomend", show);
  show();
}

function grid(map, bounds, shared) {
  // Lines a whole number of kilometres apart, so that what has no coast and no street is no empty square.
  const [[south, west], [north, east]] = bounds, high = (north - south) * KM_A_DEGREE;
  const step = [1, 2, 5, 10, 20, 50, 100, 200].find((km) => high / km <= 12) || 500;
  const up = step / KM_A_DEGREE, right = up / Math.cos((south + north) / 2 * Math.PI / 180), lines = [];
  for (let k = 0; south + k * up <= north; k += 1) lines.push([[south + k * up, west], [south + k * up, east]]);
  for (let k = 0; west + k * right <= east; k += 1) lines.push([[south, west + k * right], [north, west + k * right]]);
  L.polyline(lines, { ...shared, color: "#d3dae1", weight: 1 }).addTo(map);
}

function showNames(map, all, layer) {
  const size = map.getSize(), taken = [];
  for (const [name, latitude, longitude, rank] of all) {
    if (taken.length >= MOST_NAMES) break;
    const at = map.latLngToContainerPoint([latitude, longitude]), large = rank >= 45, half = [...name].length * (large ? 4.5 : 4) + 4;
    const box = [at.x - half, at.y - 9, at.x + half, at.y + 9];
    if (box[0] < 0 || box[1] < 0 || box[2] > size.x || box[3] > size.y) continue;
    if (taken.some((one) => one[0] < box[2] && one[2] > box[0] && one[1] < box[3] && one[3] > box[1])) continue;
    taken.push(box);
    const text = document.createElement("span");
    text.textContent = name;
    L.marker([latitude, longitude], { icon: L.divIcon({ className: large ? "name large" : "name", html: text, iconSize: null }), keyboard: false, ...STILL }).addTo(layer);
  }
}

export function showPlace(map, layer, place, name, colour = COLOUR.believed) {
  // A place with the circle that says how far off it is expected to be, and whose it is or when.
  const here = [place.latitude, place.longitude];
  L.circle(here, { radius: place.radius_m, color: colour, weight: 2, fillOpacity: 0.1, dashArray: place.prediction ? "6 6" : null, ...STILL }).addTo(layer);
  L.circleMarker(here, { radius: 7, color: "#fff", weight: 2, fillColor: colour, fillOpacity: place.prediction ? 0.5 : 1, ...STILL }).addTo(layer);
  const text = document.createElement("span"), right = map.latLngToContainerPoint(here).x > 0.6 * map.getSize().x;
  text.textContent = name;
  L.marker(here, { icon: L.divIcon({ className: right ? "name person leftwards" : "name person", html: text, iconSize: null, iconAnchor: [-10, 10] }), keyboard: false, ...STILL }).addTo(layer);
}

export function lastKnown(place) {
  return place.prediction ? say("last_known", { time: place.known ? when(place.known) : say("long_ago") }) : when(place.time);
}
