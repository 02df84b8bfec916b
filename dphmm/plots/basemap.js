// The background of every map: water, lines and names of a basemap, drawn by the browser below all other layers.
// Imported by the pages of the relay and of 'dphmm explore', and copied into the files that webmap.py writes.
export const KM_PER_DEGREE = 111.32, STATIC_LAYER = { interactive: false, pmIgnore: true };
const STYLES = {
  border: { color: "#a58fa8", weight: 1.2, dashArray: "6 4" }, line: { color: "#9a9a9a", weight: 1 }, stream: { color: "#9cc3dd", weight: 1.4 },
  lane: { color: "#d6cfc1", weight: 1 }, street: { color: "#ffffff", weight: 2 }, road: { color: "#e6c57c", weight: 3 },
};
const MAX_NAMES = 30, MIN_LANE_ZOOM = 13;

function decodeLine(moves) {
  const points = [];
  let latitude = 0, longitude = 0;
  for (let k = 0; k < moves.length; k += 2) {
    latitude += moves[k];
    longitude += moves[k + 1];
    points.push([latitude / 1e5, longitude / 1e5]);
  }
  return points;
}

export function drawBasemap(map, basemap, bounds = null) {
  // Without streets, a grid of kilometres is drawn within the bounds.
  map.createPane("basemap").style.zIndex = 250;
  const renderer = L.canvas({ pane: "basemap", padding: 0.5 }), shared = { ...STATIC_LAYER, renderer, pane: "basemap", smoothFactor: 1.5 };
  if (basemap.water.length) L.polygon(basemap.water.map((rings) => rings.map(decodeLine)), { ...shared, stroke: false, fillColor: "#c3dcec", fillOpacity: 1 }).addTo(map);
  const streets = ["lane", "street", "road"];
  if (bounds && !streets.some((kind) => basemap.lines[kind])) drawGrid(map, bounds, shared);
  for (const kind of ["border", "line", "stream", ...streets]) {
    if (!basemap.lines[kind]) continue;
    const lines = basemap.lines[kind].map(decodeLine);
    if (kind === "street" || kind === "road") L.polyline(lines, { ...shared, color: "#b9b2a3", weight: STYLES[kind].weight + 1.2 }).addTo(map);
    const layer = L.polyline(lines, { ...shared, ...STYLES[kind] });
    if (kind === "lane") showIfZoomed(map, layer); else layer.addTo(map);
  }
  if (basemap.credit) map.attributionControl.addAttribution(basemap.credit.replace(/&/g, "&amp;").replace(/</g, "&lt;"));
  const names = L.layerGroup([], { pmIgnore: true }).addTo(map);
  const label = () => { names.clearLayers(); showNames(map, basemap.names, names); };
  map.on("moveend zoomend resize", label);
  label();
}

function showIfZoomed(map, layer) {
  // Small streets are numerous. Draw them only at zoom levels at which they can be distinguished.
  const update = () => { if (map.getZoom() >= MIN_LANE_ZOOM) layer.addTo(map); else layer.remove(); };
  map.on("zoomend", update);
  update();
}

function drawGrid(map, bounds, shared) {
  // Grid lines an integer number of kilometres apart, for regions without coast and streets.
  const [[south, west], [north, east]] = bounds, high = (north - south) * KM_PER_DEGREE;
  const step = [1, 2, 5, 10, 20, 50, 100, 200].find((km) => high / km <= 12) || 500;
  const up = step / KM_PER_DEGREE, right = up / Math.cos((south + north) / 2 * Math.PI / 180), lines = [];
  for (let k = 0; south + k * up <= north; k += 1) lines.push([[south + k * up, west], [south + k * up, east]]);
  for (let k = 0; west + k * right <= east; k += 1) lines.push([[south, west + k * right], [north, west + k * right]]);
  L.polyline(lines, { ...shared, color: "#d3dae1", weight: 1 }).addTo(map);
}

function showNames(map, names, layer) {
  const size = map.getSize(), taken = [];
  for (const [name, latitude, longitude, rank] of names) {
    if (taken.length >= MAX_NAMES) break;
    const at = map.latLngToContainerPoint([latitude, longitude]), large = rank >= 45, half = [...name].length * (large ? 4.5 : 4) + 4;
    const box = [at.x - half, at.y - 9, at.x + half, at.y + 9];
    if (box[0] < 0 || box[1] < 0 || box[2] > size.x || box[3] > size.y) continue;
    if (taken.some((other) => other[0] < box[2] && other[2] > box[0] && other[1] < box[3] && other[3] > box[1])) continue;
    taken.push(box);
    const text = document.createElement("span");
    text.textContent = name;
    L.marker([latitude, longitude], { icon: L.divIcon({ className: large ? "name large" : "name", html: text, iconSize: null }), keyboard: false, ...STATIC_LAYER }).addTo(layer);
  }
}
