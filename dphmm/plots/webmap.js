"use strict";
// The data, in the form that dphmm/plots/webmap.py writes, and one canvas over Leaflet's map that draws all of it.
const data = JSON.parse(document.getElementById("data").textContent);
const by = id => document.getElementById(id);
const FEW = 1500, MOST_CIRCLES = 12, MOST_LINES = 4000, HEX = 7, BANDS = 24, DAY = 86400;

// ---- columns -------------------------------------------------------------------------------------------------------
function whole(code) {
  if (typeof code === "number") code = data.codes[code]; // what several columns share stands there once
  const bytes = Uint8Array.from(atob(code), one => one.charCodeAt(0)), found = [];
  let last = 0;
  for (let i = 0; i < bytes.length;) {
    let value = 0, weight = 1, byte;
    do { byte = bytes[i++]; value += (byte & 127) * weight; weight *= 128; } while (byte > 127);
    last += value % 2 ? -(value + 1) / 2 : value / 2;
    found.push(last);
  }
  return found;
}

function numbers(column, length) {
  // A column of `length` numbers, NaN where there is none.
  const known = column.code === undefined ? null : whole(column.code), out = new Float64Array(length).fill(NaN);
  const fill = (from, to, first) => { for (let i = from; i < to; i++) out[i] = (known ? known[first + i - from] : column.all) * column.step; };
  let row = 0, taken = 0, has = true;
  for (const run of column.gaps ? whole(column.gaps) : [length]) {
    if (has) { fill(row, row + run, taken); taken += run; }
    row += run; has = !has;
  }
  return out;
}

const texts = (column, length) => { const rows = numbers(column.rows, length); return i => column.words[rows[i]]; };

// Mercator's plane with a world of 256 units, about an origin near the data, so that numbers stay exact when zoomed.
const mercator = (latitude, longitude) => [(longitude + 180) / 360 * 256,
  (0.5 - Math.asinh(Math.tan(latitude * Math.PI / 180)) / (2 * Math.PI)) * 256];

function places(part, n) {
  const lat = numbers(part.latitude, n), lon = numbers(part.longitude, n), x = new Float64Array(n), y = new Float64Array(n);
  for (let i = 0; i < n; i++) [x[i], y[i]] = mercator(lat[i], lon[i]);
  return { lat, lon, x, y, n };
}

function lines(part) {
  let sum = 0;
  return { ...places(part, part.points), ends: numbers(part.lengths, part.n).map(one => (sum += one)) };
}
const total = values => values.reduce((sum, one) => sum + one, 0);

const layers = data.layers.map(given => {
  if (given.kind === "outlines" || given.kind === "strokes") return { ...given, ...lines(given), clocked: false };
  const users = given.users && numbers(given.users.rows, given.n), place = places(given, given.n), n = place.n;
  const layer = { ...given, ...place, clocked: Boolean(given.times), users, spans: new Map() };
  if (users) {
    for (let i = 0; i < n; i++) {
      const name = given.users.words[users[i]], span = layer.spans.get(name);
      if (span) span[1] = i + 1; else layer.spans.set(name, [i, i + 1]);
    }
  } else layer.spans.set("", [0, n]);
  layer.times = given.times ? numbers(given.times, n) : null;
  layer.radii = given.radii ? numbers(given.radii, n) : null;
  layer.starts = new Uint8Array(n); // rows that begin a trip
  if (given.trips) for (const row of whole(given.trips)) layer.starts[row] = 1;
  layer.facts = given.facts.map(fact => fact.words ? [fact.name, texts(fact, n)]
    : [fact.name, (column => i => Number.isNaN(column[i]) ? "" : String(+column[i].toFixed(6)))(numbers(fact, n))]);
  return layer;
});
const moving = layers.filter(layer => layer.clocked), main = moving.find(layer => layer.by_time) ?? moving.at(-1);
const users = [...new Set(layers.flatMap(layer => layer.users ? [...layer.spans.keys()] : []))].sort();

// ---- who and when --------------------------------------------------------------------------------------------------
const chosen = { user: users[0] ?? "", day: null, until: Infinity };

function bound(times, from, to, value) {
  // The first row from `from` on whose time is at least the value; rows of a user are in the order of time.
  while (from < to) { const middle = (from + to) >> 1; if (times[middle] < value) from = middle + 1; else to = middle; }
  return from;
}

function spansOf(layer, until = chosen.until) {
  // The rows of a layer that are to be seen now, as pairs of a first row and the one after the last.
  const people = !layer.users ? [...layer.spans.values()]
    : chosen.user ? [layer.spans.get(chosen.user)].filter(Boolean) : [...layer.spans.values()];
  if (!layer.times) return people;
  const first = chosen.day === null ? -Infinity : chosen.day * DAY, last = chosen.day === null ? Infinity : first + DAY;
  return people.map(([from, to]) => [bound(layer.times, from, to, first), bound(layer.times, from, to, Math.min(last, until + 1))])
    .filter(([from, to]) => to > from);
}
const countOf = layer => layer.kind === "outlines" || layer.kind === "strokes" ? layer.ends.length
  : total(spansOf(layer).map(([from, to]) => to - from));

function daysOf() {
  const days = new Map();
  for (const layer of moving) {
    const was = chosen.day; chosen.day = null;
    for (const [from, to] of spansOf(layer, Infinity)) for (let i = from; i < to;) {
      const day = Math.floor(layer.times[i] / DAY), end = bound(layer.times, i, to, (day + 1) * DAY);
      days.set(day, (days.get(day) ?? 0) + (layer === main ? end - i : 0));
      i = end;
    }
    chosen.day = was;
  }
  return new Map([...days].sort((a, b) => a[0] - b[0]));
}

let moments = new Float64Array(0);
function gatherMoments() {
  const found = new Set();
  for (const layer of moving) for (const [from, to] of spansOf(layer, Infinity)) for (let i = from; i < to; i++) found.add(layer.times[i]);
  moments = Float64Array.from(found).sort();
}

const said = second => Number.isFinite(second) ? new Date(second * 1000).toISOString().slice(0, 16).replace("T", " ") : "";

// ---- the map -------------------------------------------------------------------------------------------------------
const map = L.map("map", { zoomSnap: 0.25, zoomDelta: 1, wheelPxPerZoomLevel: 100, worldCopyJump: false, maxZoom: 20, zoomAnimation: false, attributionControl: false });
L.control.attribution({ prefix: false }).addTo(map);
L.control.scale({ imperial: false, position: "bottomleft" }).addTo(map);
const credit = [data.credit, data.basemap?.credit].filter(Boolean).join(" ");
if (credit) map.attributionControl.addAttribution(credit.replace(/&/g, "&amp;").replace(/</g, "&lt;"));
if (data.tiles) L.tileLayer(data.tiles, { referrerPolicy: "no-referrer", maxZoom: 20 }).addTo(map);

const canvas = document.createElement("canvas"), pen = canvas.getContext("2d");
canvas.style.position = "absolute"; canvas.style.pointerEvents = "none";
map.getPane("overlayPane").append(canvas);

const origin = (() => { for (const layer of [...moving, ...layers]) if (layer.n) return [layer.x[0], layer.y[0]]; return [128, 128]; })();
function pathOf(shape, closed) {
  const path = new Path2D();
  let start = 0;
  for (const end of shape.ends) {
    for (let i = start; i < end; i++) path[i > start ? "lineTo" : "moveTo"](shape.x[i] - origin[0], shape.y[i] - origin[1]);
    if (closed) path.closePath();
    start = end;
  }
  return path;
}

function pathOfMoves(lines, closed) {
  // Lines of the basemap, each its latitudes and longitudes in turn, in steps of 1e-5 degrees from the place before.
  const path = new Path2D();
  for (const moves of lines) {
    let latitude = 0, longitude = 0;
    for (let k = 0; k < moves.length; k += 2) {
      latitude += moves[k]; longitude += moves[k + 1];
      const [x, y] = mercator(latitude / 1e5, longitude / 1e5);
      path[k ? "lineTo" : "moveTo"](x - origin[0], y - origin[1]);
    }
    if (closed) path.closePath();
  }
  return path;
}

const ground = { water: [], lines: {}, names: [] };
if (data.basemap) {
  ground.water = data.basemap.water.map(rings => pathOfMoves(rings, true));
  for (const [kind, some] of Object.entries(data.basemap.lines)) ground.lines[kind] = pathOfMoves(some, false);
  ground.names = data.basemap.names.map(([name, lat, lon]) => [name, ...mercator(lat, lon)]);
}
for (const layer of layers) if (layer.ends) layer.path = pathOf(layer, layer.kind === "outlines");

const policy = data.policy && (() => {
  const states = places(data.policy, data.policy.n), n = data.policy.edges, from = numbers(data.policy.from, n), to = numbers(data.policy.to, n), joined = Array.from({ length: states.n }, () => []);
  for (let i = 0; i < n; i++) { joined[from[i]].push(to[i]); joined[to[i]].push(from[i]); }
  return { ...data.policy, ...states, from, to, joined, visible: true };
})();

let view, corner = null, pending = false, pointed = null, frames = 0;
const redraw = () => { if (!pending) { pending = true; requestAnimationFrame(paint); } };

function paint() {
  pending = false; frames++;
  const size = map.getSize(), ratio = window.devicePixelRatio || 1, topLeft = map.containerPointToLayerPoint([0, 0]), zoom = map.getZoom(), scale = 2 ** zoom;
  if (canvas.width !== Math.round(size.x * ratio) || canvas.height !== Math.round(size.y * ratio)) {
    canvas.width = Math.round(size.x * ratio); canvas.height = Math.round(size.y * ratio);
    canvas.style.width = `${size.x}px`; canvas.style.height = `${size.y}px`;
  }
  L.DomUtil.setPosition(canvas, topLeft);
  const bounds = map.getPixelBounds().min;
  view = { width: size.x, height: size.y, scale, ratio, left: bounds.x, top: bounds.y };
  flat(); pen.clearRect(0, 0, size.x, size.y);
  if (!data.tiles) drawGround();
  for (const layer of layers) if (layer.visible && layer.ends) drawShapes(layer);
  if (policy?.visible) drawPolicy();
  for (const layer of layers) if (layer.visible && !layer.ends) (layer.kind === "line" ? drawLine : drawDots)(layer);
  drawNames(); drawNoise(); drawPointed();
}
const flat = () => pen.setTransform(view.ratio, 0, 0, view.ratio, 0, 0);
const px = x => x * view.scale - view.left, py = y => y * view.scale - view.top;
const pixels = (metres, latitude) => metres / (40075016.7 * Math.cos(latitude * Math.PI / 180)) * 256 * view.scale;

function asPaths() {
  // The pen in the units of paths, about the origin; `flat` is back in pixels.
  const unit = view.ratio * view.scale;
  pen.setTransform(unit, 0, 0, unit, (origin[0] * view.scale - view.left) * view.ratio, (origin[1] * view.scale - view.top) * view.ratio);
}

function stroked(path, colour, width, dash = []) {
  asPaths();
  pen.strokeStyle = colour; pen.lineWidth = width / view.scale; pen.lineJoin = "round"; pen.setLineDash(dash.map(one => one / view.scale));
  pen.stroke(path); pen.setLineDash([]); flat();
}

function drawGround() {
  pen.fillStyle = "#c9dcea";
  asPaths();
  for (const path of ground.water) pen.fill(path, "evenodd");
  flat();
  const looks = { stream: ["#b3cfe2", 1.2], line: ["#9a9a9a", 1], lane: ["#e3ded2", 0.8], street: ["#e3ded2", 1.2], road: ["#d8c9a3", 2.4], border: ["#a58fa8", 1.2, [6, 4]] };
  for (const [kind, look] of Object.entries(looks)) if (ground.lines[kind]) stroked(ground.lines[kind], ...look);
}

function label(text, x, y, size, colour, taken, weight = "") {
  pen.font = `${weight} ${size}px system-ui, sans-serif`; pen.textAlign = "center"; pen.textBaseline = "middle";
  const half = pen.measureText(text).width / 2 + 4, box = [x - half, y - size * .8, x + half, y + size * .8];
  if (x < half || y < 0 || x > view.width - half || y > view.height || taken.some(t => t[0] < box[2] && t[2] > box[0] && t[1] < box[3] && t[3] > box[1])) return;
  taken.push(box);
  pen.strokeStyle = "#ffffffcc"; pen.lineWidth = 3; pen.lineJoin = "round"; pen.strokeText(text, x, y);
  pen.fillStyle = colour; pen.fillText(text, x, y);
}

function drawNames() {
  const taken = [[0, 0, 48, 80], [0, view.height - 32, view.width, view.height]]; // where the controls are
  for (const layer of layers) if (layer.visible && layer.ends && layer.labels?.length) layer.labels.forEach((text, ring) => {
    const from = ring ? layer.ends[ring - 1] : 0, to = layer.ends[ring];
    if (!text || layer.labels.indexOf(text) < ring) return;
    let x = 0, y = 0;
    for (let i = from; i < to; i++) { x += layer.x[i] / (to - from); y += layer.y[i] / (to - from); }
    label(text, px(x), py(y), 12, "#444", taken, "600");
  });
  if (!data.tiles) for (const [name, x, y] of ground.names.slice(0, 400)) { if (taken.length > 40) break; label(name, px(x), py(y), 12, "#666", taken); }
}

const drawShapes = layer => stroked(layer.path, layer.colour, layer.width || (layer.kind === "outlines" ? 1.2 : 0.7));

function drawPolicy() {
  if (policy.edges > 5000) return;
  pen.beginPath();
  for (let i = 0; i < policy.edges; i++) { const a = policy.from[i], b = policy.to[i]; pen.moveTo(px(policy.x[a]), py(policy.y[a])); pen.lineTo(px(policy.x[b]), py(policy.y[b])); }
  pen.strokeStyle = "#7fb8a4"; pen.lineWidth = .7; pen.stroke();
}

function hexagons(layer, spans) {
  // Anchored to the ground, so that they stay where they are while the map moves.
  const wide = HEX * Math.sqrt(3), high = HEX * 1.5, { left, top, width, height, scale } = view, xs = layer.x, ys = layer.y;
  const firstRow = Math.floor(top / high), firstColumn = Math.floor(left / wide);
  const columns = Math.ceil(width / wide) + 6, counts = new Uint32Array(columns * (Math.ceil(height / high) + 6));
  let most = 1;
  for (const [from, to] of spans) for (let i = from; i < to; i++) {
    const x = xs[i] * scale, y = ys[i] * scale;
    if (!(x > left - HEX && y > top - HEX && x < left + width + HEX && y < top + height + HEX)) continue;
    // The nearest centre is of one of two rows.
    let row = Math.floor(y / high), best = Infinity, key = 0;
    for (let r = row; r < row + 2; r++) {
      const shift = r & 1 ? .5 : 0, column = Math.floor(x / wide - shift + .5), dx = x - (column + shift) * wide, dy = y - r * high, d = dx * dx + dy * dy;
      if (d < best) { best = d; key = (r - firstRow + 2) * columns + (column - firstColumn + 2); }
    }
    if (++counts[key] > most) most = counts[key];
  }
  const shades = Array.from({ length: 6 }, () => new Path2D());
  for (let key = 0; key < counts.length; key++) {
    const count = counts[key];
    if (!count) continue;
    const row = Math.floor(key / columns) + firstRow - 2, column = key % columns + firstColumn - 2;
    const x = (column + (row & 1 ? .5 : 0)) * wide - view.left, y = row * high - view.top;
    const path = shades[Math.min(5, Math.floor(6 * Math.log1p(count) / Math.log1p(most + .01)))];
    for (let k = 0; k < 6; k++) path[k ? "lineTo" : "moveTo"](x + HEX * CORNERS[k][0], y + HEX * CORNERS[k][1]);
    path.closePath();
  }
  // Opaque, so that layers do not mix into a third colour; what is not in front is pale.
  const most_ink = layer.kind === "line" ? 1 : .4, full = [1, 3, 5].map(at => parseInt(layer.colour.slice(at, at + 2), 16));
  shades.forEach((path, band) => {
    const ink = most_ink * (.2 + .16 * band);
    pen.fillStyle = `rgb(${full.map(one => Math.round(255 - (255 - one) * ink)).join()})`; pen.fill(path);
  });
}
const CORNERS = Array.from({ length: 6 }, (_, k) => [Math.sin(k * Math.PI / 3), Math.cos(k * Math.PI / 3)]);

function drawDots(layer) {
  const spans = spansOf(layer), count = total(spans.map(([from, to]) => to - from));
  if (count > FEW) return hexagons(layer, spans);
  pen.fillStyle = layer.colour; pen.globalAlpha = .4;
  pen.beginPath();
  for (const [from, to] of spans) for (let i = from; i < to; i++) { const x = px(layer.x[i]), y = py(layer.y[i]); pen.moveTo(x + 3, y); pen.arc(x, y, 3, 0, 7); }
  pen.fill(); pen.globalAlpha = 1;
}

// Time as colour: viridis, less its yellow end, which a pale ground swallows.
const RAMP = [[68, 1, 84], [65, 68, 135], [42, 120, 142], [34, 168, 132], [122, 200, 60]];
function shade(share) {
  const at = Math.min(Math.max(share, 0), 1) * (RAMP.length - 1), low = Math.min(Math.floor(at), RAMP.length - 2);
  return `rgb(${RAMP[low].map((one, k) => Math.round(one + (at - low) * (RAMP[low + 1][k] - one))).join()})`;
}

function thin(layer, spans, count) {
  // A line of one colour, without the points that are nearer than a pixel to the one before.
  pen.strokeStyle = pen.fillStyle = layer.colour; pen.lineWidth = 1; pen.lineJoin = "round"; pen.globalAlpha = .8;
  pen.beginPath();
  for (const [from, to] of spans) for (let i = from, x = 0, y = 0; i < to; i++) {
    const a = px(layer.x[i]), b = py(layer.y[i]);
    if (i === from || layer.starts[i]) { pen.moveTo(a, b); x = a; y = b; }
    else if (Math.abs(a - x) + Math.abs(b - y) >= 1) { pen.lineTo(a, b); x = a; y = b; }
  }
  pen.stroke();
  if (count <= FEW) for (const [from, to] of spans) for (let i = from; i < to; i++) pen.fillRect(px(layer.x[i]) - 1.2, py(layer.y[i]) - 1.2, 2.4, 2.4);
  pen.globalAlpha = 1;
}

function drawLine(layer) {
  const spans = spansOf(layer), count = total(spans.map(([from, to]) => to - from));
  if (!count) return;
  if (!layer.by_time) { thin(layer, spans, count); return; }
  if (count > MOST_LINES) { hexagons(layer, spans); return; }
  const first = moments[0], length = Math.max(1, moments.at(-1) - first);
  const strokes = Array.from({ length: BANDS }, () => new Path2D()), dots = Array.from({ length: BANDS }, () => new Path2D());
  for (const [from, to] of spans) for (let i = from; i < to; i++) {
    const band = Math.min(BANDS - 1, Math.floor(BANDS * (layer.times[i] - first) / length));
    const x = px(layer.x[i]), y = py(layer.y[i]);
    if (i > from && !layer.starts[i]) { strokes[band].moveTo(px(layer.x[i - 1]), py(layer.y[i - 1])); strokes[band].lineTo(x, y); }
    dots[band].moveTo(x + 2, y); dots[band].arc(x, y, count > FEW ? 1.7 : 2.4, 0, 7);
  }
  pen.lineWidth = 1.8;
  for (let band = 0; band < BANDS; band++) {
    pen.strokeStyle = pen.fillStyle = shade(band / (BANDS - 1));
    pen.globalAlpha = count > FEW ? .35 : .65; pen.stroke(strokes[band]);
    pen.globalAlpha = .9; pen.fill(dots[band]);
  }
  pen.globalAlpha = 1;
  if (!layer.radii) return;
  const rows = spans.flatMap(([from, to]) => { const some = Math.max(1, Math.ceil(MOST_CIRCLES * (to - from) / count)); return Array.from({ length: Math.min(some, to - from) }, (_, k) => from + Math.floor((k + .5) * (to - from) / Math.min(some, to - from))); });
  pen.strokeStyle = layer.colour; pen.lineWidth = .8; pen.globalAlpha = .3;
  for (const i of rows.slice(0, MOST_CIRCLES)) circle(layer, i);
  pen.globalAlpha = 1;
  if (spans.length === 1) latest(layer, spans[0][1] - 1);
}

function circle(layer, i, filled) {
  const radius = pixels(layer.radii[i], layer.lat[i]);
  if (!(radius > 0)) return;
  pen.beginPath(); pen.arc(px(layer.x[i]), py(layer.y[i]), radius, 0, 7);
  if (filled) pen.fill();
  pen.stroke();
}

function latest(layer, i) {
  // The estimate of the last moment, in front, with how far off it is expected to be.
  pen.strokeStyle = layer.colour; pen.lineWidth = 2; pen.fillStyle = layer.colour + "22";
  circle(layer, i, true);
  pen.beginPath(); pen.arc(px(layer.x[i]), py(layer.y[i]), 6, 0, 7);
  pen.fillStyle = layer.colour; pen.fill(); pen.strokeStyle = "#fff"; pen.stroke();
}

function drawNoise() {
  // The shape of the noise and how far a release is off, once, in a corner, at the scale of the map or a part of it.
  corner = null;
  if (!policy?.visible || !(policy.hull.length || policy.error)) return;
  const middle = map.getCenter().lat, perKm = pixels(1000, middle);
  const reach = Math.max(...policy.hull.flat().map(Math.abs), (policy.error ?? 0) / 1000) * perKm, room = Math.min(80, Math.min(view.width, view.height) * .11);
  if (!(reach > 0)) return;
  const parts = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 1e4, 1e5].find(part => reach / part <= room) ?? 1e6, scale = perKm / parts;
  const text = `noise${parts > 1 ? `, at 1/${parts} of the scale` : ", to scale"}`, box = Math.max(reach / parts, 14) + 8;
  pen.font = "12px system-ui, sans-serif";
  const wide = Math.max(2 * box, pen.measureText(text).width + 16), x = view.width - wide / 2 - 10, y = 10 + box;
  corner = { x: x - wide / 2, y: y + box + 20 };
  pen.fillStyle = "#fff"; pen.strokeStyle = "#ccc"; pen.lineWidth = 1;
  pen.beginPath(); pen.rect(x - wide / 2, y - box, wide, 2 * box + 20); pen.fill(); pen.stroke();
  pen.beginPath();
  policy.hull.forEach(([east, north], k) => pen[k ? "lineTo" : "moveTo"](x + east * scale, y - north * scale));
  pen.closePath(); pen.fillStyle = "#cc79a766"; pen.strokeStyle = "#cc79a7"; pen.lineWidth = 1.5; pen.fill(); pen.stroke();
  if (policy.error) { pen.setLineDash([4, 3]); pen.strokeStyle = "#d55e00"; pen.beginPath(); pen.arc(x, y, policy.error / 1000 * scale, 0, 7); pen.stroke(); pen.setLineDash([]); }
  pen.fillStyle = "#444"; pen.textAlign = "center"; pen.textBaseline = "middle"; pen.fillText(text, x, y + box + 9);
}

// ---- what the pointer is on ----------------------------------------------------------------------------------------
const tip = document.createElement("div");
tip.className = "tip"; tip.setAttribute("role", "status"); tip.hidden = true;
by("map").append(tip);

function nearest(at) {
  let best = null, least = 14 * 14;
  for (const layer of layers) if (layer.visible && !layer.ends && (layer.users || layer.facts.length)) for (const [from, to] of spansOf(layer)) for (let i = from; i < to; i++) {
    const dx = px(layer.x[i]) - at.x, dy = py(layer.y[i]) - at.y, d = dx * dx + dy * dy;
    if (d <= least) { least = d; best = { layer, i }; }
  }
  return best;
}

function stateAt(at) {
  let best = -1, least = 30 * 30;
  for (let i = 0; i < policy.n; i++) { const d = (px(policy.x[i]) - at.x) ** 2 + (py(policy.y[i]) - at.y) ** 2; if (d < least) { least = d; best = i; } }
  return best;
}

function drawPointed() {
  if (!pointed) return;
  if (pointed.state >= 0) {
    const s = pointed.state;
    pen.strokeStyle = "#009e73"; pen.lineWidth = 1.2; pen.fillStyle = "#009e73"; pen.beginPath();
    for (const other of policy.joined[s]) { pen.moveTo(px(policy.x[s]), py(policy.y[s])); pen.lineTo(px(policy.x[other]), py(policy.y[other])); }
    pen.stroke(); pen.beginPath();
    for (const other of [s, ...policy.joined[s]]) { const x = px(policy.x[other]), y = py(policy.y[other]); pen.moveTo(x, y); pen.arc(x, y, 2.5, 0, 7); }
    pen.fill();
  }
  if (pointed.layer?.radii) latest(pointed.layer, pointed.i);
}

function point(event) {
  if (!view) return;
  const at = event.containerPoint, found = nearest(at), state = policy?.visible && policy.edges ? stateAt(at) : -1;
  pointed = found || state >= 0 ? { ...found, state } : null;
  redraw();
  tip.hidden = !pointed;
  if (!pointed) return;
  const head = document.createElement("b"), table = document.createElement("table");
  head.textContent = found ? found.layer.name : "a state"; head.style.color = found ? found.layer.colour : "#009e73";
  const rows = found ? [...(found.layer.users ? [["user", nameOf(found.layer, found.i)]] : []),
    ...(found.layer.times ? [["time", `${said(found.layer.times[found.i])} UTC`]] : []),
    ["place", `${found.layer.lat[found.i].toFixed(5)}, ${found.layer.lon[found.i].toFixed(5)}`],
    ...(found.layer.radii?.[found.i] > 0 ? [["expected to be off by", `${Math.round(found.layer.radii[found.i]).toLocaleString("en")} m`]] : []),
    ...found.layer.facts.map(([name, of]) => [name.replace(/_m$/, " (m)").replaceAll("_", " "), of(found.i)])] : [];
  if (state >= 0) rows.push(["joined by the policy with", `${policy.joined[state].length} states`]);
  for (const [key, value] of rows) if (value !== "") { const row = table.insertRow(); row.insertCell().textContent = key; row.insertCell().textContent = value; }
  tip.replaceChildren(head, table);
  // Beside the pointer, and whole within the map.
  const beside = (at, room, size) => Math.max(4, at + 14 + size > room - 4 && at - 14 - size >= 4 ? at - 14 - size : Math.min(at + 14, room - 4 - size));
  tip.style.left = `${beside(at.x, view.width, tip.offsetWidth)}px`; tip.style.top = `${beside(at.y, view.height, tip.offsetHeight)}px`;
}
const nameOf = (layer, i) => data.layers[layers.indexOf(layer)].users.words[layer.users[i]];

// ---- the panel -----------------------------------------------------------------------------------------------------
function fit() {
  // All but the farthest percent of the points on each side: noise has no bound.
  const seen = layers.filter(layer => layer.visible && !layer.ends), x = [], y = [];
  for (const layer of seen.some(layer => layer.clocked) ? seen.filter(layer => layer.clocked) : seen) for (const [from, to] of spansOf(layer, Infinity)) for (let i = from; i < to; i++) { x.push(layer.x[i]); y.push(layer.y[i]); }
  if (!x.length) for (const layer of layers) if (layer.ends) { x.push(...layer.x); y.push(...layer.y); }
  if (!x.length) { map.setView([0, 0], 2); return; }
  const between = values => { const v = Float64Array.from(values).sort(), end = v.length - 1; return [v[Math.round(.01 * end)], v[Math.round(.99 * end)]]; };
  const [west, east] = between(x), [north, south] = between(y), least = .002;
  const grown = (low, high) => high - low < least ? [(low + high - least) / 2, (low + high + least) / 2] : [low, high];
  const [w, e] = grown(west, east), [n, s] = grown(north, south), place = (mx, my) => map.options.crs.pointToLatLng(L.point(mx, my), 0);
  const bounds = [place(w, s), place(e, n)];
  map.fitBounds(bounds, { padding: [24, 24], animate: false });
  paint();
  const covered = main && corner && spansOf(main, Infinity).some(([from, to]) => { for (let i = from; i < to; i++) if (px(main.x[i]) > corner.x && py(main.y[i]) < corner.y) return true; return false; });
  if (covered) map.fitBounds(bounds, { paddingTopLeft: [24, 24], paddingBottomRight: [view.width - corner.x + 10, 24], animate: false });
}

const boxes = [];
function legend() {
  const all = [...layers].reverse().map(layer => ({ layer, name: layer.name, kind: layer.kind, colour: layer.colour, count: () => layer.kind === "strokes" ? "" : countOf(layer) }));
  if (policy) all.push({ layer: policy, name: policy.edges > 5000 ? "policy: edges at the pointer" : policy.edges ? "policy: edges" : "noise", kind: "strokes", colour: "#7fb8a4", count: () => policy.edges || "" });
  for (const { layer, name, kind, colour, count } of all) {
    const row = document.createElement("label"), box = document.createElement("input"), mark = document.createElement("i"), number = document.createElement("span");
    box.type = "checkbox"; box.checked = layer.visible; box.onchange = () => { layer.visible = box.checked; redraw(); };
    mark.className = kind; mark.style.background = layer.by_time ? `linear-gradient(90deg, ${RAMP.map(c => `rgb(${c.join()})`).join()})` : colour; mark.style.borderColor = colour;
    row.append(box, mark, name, number); by("layers").append(row);
    boxes.push(() => { number.textContent = count().toLocaleString("en"); });
  }
  if (policy?.text) by("layers").title = policy.text;
}
const count = () => { for (const one of boxes) one(); };

function setUser(user) {
  chosen.user = user;
  const days = daysOf(), list = by("day");
  const dayName = day => new Date(day * DAY * 1000).toISOString().slice(0, 10);
  list.replaceChildren(new Option(`all ${days.size} days`, ""), ...[...days].map(([day, many]) => new Option(`${dayName(day)} (${many.toLocaleString("en")})`, day)));
  const fullest = [...days].reduce((best, one) => one[1] > best[1] ? one : best, [null, -1])[0];
  setDay(days.has(chosen.day) ? chosen.day : fullest);
}

function setDay(day) {
  chosen.day = day; by("day").value = day ?? "";
  const at = by("day").selectedIndex;
  by("before").disabled = at <= 1; by("after").disabled = at < 1 || at >= by("day").options.length - 1;
  gatherMoments();
  by("time").max = Math.max(0, moments.length - 1);
  setTime(moments.length - 1); fit(); redraw();
}

function setTime(index) {
  by("time").value = index; chosen.until = moments[index] ?? Infinity;
  by("now").textContent = said(chosen.until);
  const timed = layers.some(layer => layer.by_time) && moments.length > 1;
  by("ramp").hidden = !timed;
  if (timed) { by("ramp-from").textContent = said(moments[0]).slice(chosen.day === null ? 0 : 11); by("ramp-to").textContent = said(moments.at(-1)).slice(chosen.day === null ? 0 : 11); }
  count(); redraw();
}

by("ramp").firstElementChild.style.background = `linear-gradient(90deg, ${RAMP.map(c => `rgb(${c.join()})`).join()})`;
by("people").hidden = users.length < 2;
by("user").append(new Option(`everyone (${users.length})`, ""), ...users.map(user => new Option(user, user)));
by("user").value = chosen.user;
by("user").onchange = event => setUser(event.target.value);
by("day").onchange = event => setDay(event.target.value === "" ? null : +event.target.value);
for (const [id, step] of [["before", -1], ["after", 1]]) by(id).onclick = () => { by("day").selectedIndex += step; setDay(+by("day").value); };
by("time").oninput = () => setTime(+by("time").value);
let timer = 0;
by("play").onclick = () => {
  const running = timer; clearInterval(timer); timer = 0; by("play").textContent = "Play";
  if (running) return;
  if (+by("time").value >= moments.length - 1) setTime(0);
  by("play").textContent = "Pause";
  const step = Math.max(1, Math.round(moments.length / 200));
  timer = setInterval(() => { setTime(Math.min(+by("time").value + step, moments.length - 1)); if (+by("time").value >= moments.length - 1) by("play").click(); }, 50);
};
by("fit").onclick = fit;
legend();
if (moving.length) setUser(chosen.user); else { by("who").hidden = by("clock").hidden = true; fit(); count(); }
map.on("move zoom resize viewreset", redraw); map.on("mousemove click", point); map.on("mouseout", () => { pointed = null; tip.hidden = true; redraw(); });
new ResizeObserver(() => map.invalidateSize({ animate: false })).observe(by("map"));
redraw();
