// Draws the data of dphmm/plots/webmap.py on one canvas over Leaflet's map.
const data = JSON.parse(document.getElementById("data").textContent);
const by = id => document.getElementById(id);
const FEW_DOTS = 30, MAX_DOTS = 1500, MAX_CIRCLES = 12, MAX_AREA_CIRCLES = 2000, MAX_LINE_POINTS = 4000; // few dots are large; too many points are thinned or become hexagons
const HULL = "#cc79a7", RELEASE = "#d55e00", EDGE = "#7fb8a4";
const HEX = 7, BANDS = 24, DAY = 86400, EARTH_METRES = 40075016.7;

// ---- columns -------------------------------------------------------------------------------------------------------
function integers(code) {
  if (typeof code === "number") code = data.codes[code]; // a code shared by several columns is stored once
  const bytes = Uint8Array.from(atob(code), character => character.charCodeAt(0)), values = [];
  let last = 0;
  for (let i = 0; i < bytes.length;) {
    let value = 0, weight = 1, byte;
    do { byte = bytes[i++]; value += (byte & 127) * weight; weight *= 128; } while (byte > 127);
    last += value % 2 ? -(value + 1) / 2 : value / 2;
    values.push(last);
  }
  return values;
}

function numbers(column, length) {
  // A column of `length` numbers; missing ones are NaN.
  const codes = column.code === undefined ? null : integers(column.code), out = new Float64Array(length).fill(NaN);
  const fill = (from, to, first) => { for (let i = from; i < to; i++) out[i] = (codes ? codes[first + i - from] : column.all) * column.step; };
  let row = 0, taken = 0, hasValue = true;
  for (const run of column.gaps ? integers(column.gaps) : [length]) {
    if (hasValue) { fill(row, row + run, taken); taken += run; }
    row += run; hasValue = !hasValue;
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
  return { ...places(part, part.points), ends: numbers(part.lengths, part.n).map(length => (sum += length)) };
}
const total = values => values.reduce((sum, value) => sum + value, 0);

const layers = data.layers.map(source => {
  if (source.kind === "outlines" || source.kind === "strokes") return { ...source, ...lines(source), clocked: false };
  const users = source.users && numbers(source.users.rows, source.n), place = places(source, source.n), n = place.n;
  const layer = { ...source, ...place, clocked: Boolean(source.times), users, spans: new Map() };
  if (users) {
    for (let i = 0; i < n; i++) {
      const name = source.users.words[users[i]], span = layer.spans.get(name);
      if (span) span[1] = i + 1; else layer.spans.set(name, [i, i + 1]);
    }
  } else layer.spans.set("", [0, n]);
  layer.times = source.times ? numbers(source.times, n) : null;
  layer.radii = source.radii ? numbers(source.radii, n) : null;
  layer.starts = new Uint8Array(n); // rows that start a trip
  if (source.trips) for (const row of integers(source.trips)) layer.starts[row] = 1;
  layer.facts = source.facts.map(fact => fact.words ? [fact.name, texts(fact, n)]
    : [fact.name, (column => i => Number.isNaN(column[i]) ? "" : String(+column[i].toFixed(6)))(numbers(fact, n))]);
  return layer;
});
const moving = layers.filter(layer => layer.clocked), main = moving.find(layer => layer.by_time) ?? moving.at(-1);
const counted = moving.some(layer => layer.radii) ? moving.filter(layer => layer.radii) : [main]; // one row per timestep
const users = [...new Set(layers.flatMap(layer => layer.users ? [...layer.spans.keys()] : []))].sort();

// ---- user and time --------------------------------------------------------------------------------------------------
const selected = { user: users[0] ?? "", day: null, until: Infinity };

function bound(times, from, to, value) {
  // The first row from `from` with a time of at least the value. The rows of a user are in the order of time.
  while (from < to) { const middle = (from + to) >> 1; if (times[middle] < value) from = middle + 1; else to = middle; }
  return from;
}

function spansOf(layer, until = selected.until) {
  // The visible rows of a layer, as pairs of a first row and the row after the last.
  const ranges = !layer.users ? [...layer.spans.values()]
    : selected.user ? [layer.spans.get(selected.user)].filter(Boolean) : [...layer.spans.values()];
  if (!layer.times) return ranges;
  const first = selected.day === null ? -Infinity : selected.day * DAY, last = selected.day === null ? Infinity : first + DAY;
  return ranges.map(([from, to]) => [bound(layer.times, from, to, first), bound(layer.times, from, to, Math.min(last, until + 1))])
    .filter(([from, to]) => to > from);
}
const countOf = layer => total(spansOf(layer).map(([from, to]) => to - from));

function daysOf() {
  const days = new Map();
  for (const layer of moving) {
    const previousDay = selected.day; selected.day = null;
    for (const [from, to] of spansOf(layer, Infinity)) for (let i = from; i < to;) {
      const day = Math.floor(layer.times[i] / DAY), end = bound(layer.times, i, to, (day + 1) * DAY);
      days.set(day, (days.get(day) ?? 0) + (counted.includes(layer) ? end - i : 0));
      i = end;
    }
    selected.day = previousDay;
  }
  return new Map([...days].sort((a, b) => a[0] - b[0]));
}

let timesteps = new Float64Array(0);
function gatherTimesteps() {
  const times = new Set();
  for (const layer of moving) for (const [from, to] of spansOf(layer, Infinity)) for (let i = from; i < to; i++) times.add(layer.times[i]);
  timesteps = Float64Array.from(times).sort();
}

const formatTime = second => Number.isFinite(second) ? new Date(second * 1000).toISOString().slice(0, 16).replace("T", " ") : "";

// ---- the map -------------------------------------------------------------------------------------------------------
const map = L.map("map", { zoomSnap: 0.25, zoomDelta: 1, wheelPxPerZoomLevel: 100, worldCopyJump: false, maxZoom: 20, zoomAnimation: false, attributionControl: false });
L.control.attribution({ prefix: false }).addTo(map);
L.control.scale({ imperial: false, position: "bottomleft" }).addTo(map);
if (data.credit) map.attributionControl.addAttribution(data.credit.replace(/&/g, "&amp;").replace(/</g, "&lt;"));
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

for (const layer of layers) if (layer.ends) layer.path = pathOf(layer, layer.kind === "outlines");

const policy = data.policy && (() => {
  const states = places(data.policy, data.policy.n), n = data.policy.edges, from = numbers(data.policy.from, n), to = numbers(data.policy.to, n), neighbours = Array.from({ length: states.n }, () => []);
  for (let i = 0; i < n; i++) { neighbours[from[i]].push(to[i]); neighbours[to[i]].push(from[i]); }
  return { ...data.policy, ...states, from, to, neighbours, visible: true };
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
  for (const layer of layers) if (layer.visible && layer.opacity) drawArea(layer); // below lines, which it would hide
  for (const layer of layers) if (layer.visible && layer.ends) drawShapes(layer);
  if (policy?.visible) drawPolicy();
  for (const layer of layers) if (layer.visible && !layer.ends && !layer.opacity) ({ area: drawArea, line: drawLine, dots: drawDots })[layer.kind](layer);
  drawLatest(); drawNames(); drawNoise(); drawPointed();
}
const flat = () => pen.setTransform(view.ratio, 0, 0, view.ratio, 0, 0);
const px = x => x * view.scale - view.left, py = y => y * view.scale - view.top;
const mercatorLength = (metres, latitude) => metres / (EARTH_METRES * Math.cos(latitude * Math.PI / 180)) * 256;
const pixels = (metres, latitude) => mercatorLength(metres, latitude) * view.scale;

function asPaths() {
  // Sets the pen to the units of paths, relative to the origin; `flat` resets it to pixels.
  const unit = view.ratio * view.scale;
  pen.setTransform(unit, 0, 0, unit, (origin[0] * view.scale - view.left) * view.ratio, (origin[1] * view.scale - view.top) * view.ratio);
}

function stroked(path, colour, width, dash = []) {
  asPaths();
  pen.strokeStyle = colour; pen.lineWidth = width / view.scale; pen.lineJoin = "round"; pen.setLineDash(dash.map(length => length / view.scale));
  pen.stroke(path); pen.setLineDash([]); flat();
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
  const taken = [[0, 0, 48, 80], [0, view.height - 32, view.width, view.height]]; // the areas of the controls
  for (const layer of layers) if (layer.visible && layer.ends && layer.labels?.length) layer.labels.forEach((text, ring) => {
    const from = ring ? layer.ends[ring - 1] : 0, to = layer.ends[ring];
    if (!text || layer.labels.indexOf(text) < ring) return;
    let x = 0, y = 0;
    for (let i = from; i < to; i++) { x += layer.x[i] / (to - from); y += layer.y[i] / (to - from); }
    label(text, px(x), py(y), 12, "#444", taken, "600");
  });
}

const drawShapes = layer => stroked(layer.path, layer.colour, layer.width || (layer.kind === "outlines" ? 1.2 : 0.7));

function drawPolicy() {
  if (policy.edges > 5000) return;
  pen.beginPath();
  for (let i = 0; i < policy.edges; i++) { const a = policy.from[i], b = policy.to[i]; pen.moveTo(px(policy.x[a]), py(policy.y[a])); pen.lineTo(px(policy.x[b]), py(policy.y[b])); }
  pen.strokeStyle = EDGE; pen.lineWidth = .7; pen.stroke();
}

function hexagons(layer, spans) {
  // Anchored to the ground, so that they do not move relative to it.
  const wide = HEX * Math.sqrt(3), high = HEX * 1.5, { left, top, width, height, scale } = view, xs = layer.x, ys = layer.y;
  const firstRow = Math.floor(top / high), firstColumn = Math.floor(left / wide);
  const columns = Math.ceil(width / wide) + 6, counts = new Uint32Array(columns * (Math.ceil(height / high) + 6));
  let most = 1;
  for (const [from, to] of spans) for (let i = from; i < to; i++) {
    const x = xs[i] * scale, y = ys[i] * scale;
    if (!(x > left - HEX && y > top - HEX && x < left + width + HEX && y < top + height + HEX)) continue;
    // The nearest centre is in one of two rows.
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
  // Opaque, so that layers do not mix into a third colour. Layers in the background are pale.
  const maxInk = layer.kind === "line" ? 1 : .4, full = [1, 3, 5].map(at => parseInt(layer.colour.slice(at, at + 2), 16));
  shades.forEach((path, band) => {
    const ink = maxInk * (.2 + .16 * band);
    pen.fillStyle = `rgb(${full.map(channel => Math.round(255 - (255 - channel) * ink)).join()})`; pen.fill(path);
  });
}
const CORNERS = Array.from({ length: 6 }, (_, k) => [Math.sin(k * Math.PI / 3), Math.cos(k * Math.PI / 3)]);

function drawDots(layer) {
  const spans = spansOf(layer), count = total(spans.map(([from, to]) => to - from));
  if (count > MAX_DOTS) return hexagons(layer, spans);
  const radius = count <= FEW_DOTS ? 5 : 3;
  pen.fillStyle = layer.colour; pen.globalAlpha = count <= FEW_DOTS ? .9 : .4;
  pen.beginPath();
  for (const [from, to] of spans) for (let i = from; i < to; i++) { const x = px(layer.x[i]), y = py(layer.y[i]); pen.moveTo(x + radius, y); pen.arc(x, y, radius, 0, 7); }
  pen.fill(); pen.globalAlpha = 1;
}

// Time as colour: viridis without its yellow end, which is invisible on a pale ground.
const RAMP = [[68, 1, 84], [65, 68, 135], [42, 120, 142], [34, 168, 132], [122, 200, 60]];
function shade(share) {
  const at = Math.min(Math.max(share, 0), 1) * (RAMP.length - 1), low = Math.min(Math.floor(at), RAMP.length - 2);
  return `rgb(${RAMP[low].map((channel, k) => Math.round(channel + (at - low) * (RAMP[low + 1][k] - channel))).join()})`;
}

function thin(layer, spans, count) {
  // A line of one colour, without points less than a pixel from the previous one.
  pen.strokeStyle = pen.fillStyle = layer.colour; pen.lineWidth = 1; pen.lineJoin = "round"; pen.globalAlpha = .8;
  pen.beginPath();
  for (const [from, to] of spans) for (let i = from, x = 0, y = 0; i < to; i++) {
    const a = px(layer.x[i]), b = py(layer.y[i]);
    if (i === from || layer.starts[i]) { pen.moveTo(a, b); x = a; y = b; }
    else if (Math.abs(a - x) + Math.abs(b - y) >= 1) { pen.lineTo(a, b); x = a; y = b; }
  }
  pen.stroke();
  if (count <= MAX_DOTS) for (const [from, to] of spans) for (let i = from; i < to; i++) pen.fillRect(px(layer.x[i]) - 1.2, py(layer.y[i]) - 1.2, 2.4, 2.4);
  pen.globalAlpha = 1;
}

function drawLine(layer) {
  const spans = spansOf(layer), count = total(spans.map(([from, to]) => to - from));
  if (!count) return;
  if (!layer.by_time) { thin(layer, spans, count); return; }
  if (count > MAX_LINE_POINTS) { hexagons(layer, spans); return; }
  const first = timesteps[0], length = Math.max(1, timesteps.at(-1) - first);
  const strokes = Array.from({ length: BANDS }, () => new Path2D()), dots = Array.from({ length: BANDS }, () => new Path2D());
  for (const [from, to] of spans) for (let i = from; i < to; i++) {
    const band = Math.min(BANDS - 1, Math.floor(BANDS * (layer.times[i] - first) / length));
    const x = px(layer.x[i]), y = py(layer.y[i]);
    if (i > from && !layer.starts[i]) { strokes[band].moveTo(px(layer.x[i - 1]), py(layer.y[i - 1])); strokes[band].lineTo(x, y); }
    dots[band].moveTo(x + 2, y); dots[band].arc(x, y, count > MAX_DOTS ? 1.7 : count > FEW_DOTS ? 2.4 : 5, 0, 7);
  }
  pen.lineWidth = 1.8;
  for (let band = 0; band < BANDS; band++) {
    pen.strokeStyle = pen.fillStyle = shade(band / (BANDS - 1));
    pen.globalAlpha = count > MAX_DOTS ? .35 : .65; pen.stroke(strokes[band]);
    pen.globalAlpha = .9; pen.fill(dots[band]);
  }
  pen.globalAlpha = 1;
  if (!layer.radii) return;
  pen.strokeStyle = layer.colour; pen.lineWidth = .8; pen.globalAlpha = .3;
  for (const i of spread(spans, MAX_CIRCLES)) circle(layer, i);
  pen.globalAlpha = 1;
}

function spread(spans, most) {
  // At most so many rows, evenly spread over the spans.
  const count = total(spans.map(([from, to]) => to - from));
  return spans.flatMap(([from, to]) => {
    const rows = Math.min(to - from, Math.max(1, Math.ceil(most * (to - from) / count)));
    return Array.from({ length: rows }, (_, k) => from + Math.floor((k + .5) * (to - from) / rows));
  }).slice(0, most);
}

function drawArea(layer) {
  // The union of the circles: circles of one direction in one path are filled once where they overlap.
  const spans = spansOf(layer);
  if (!spans.length) return;
  pen.beginPath();
  for (const i of spread(spans, MAX_AREA_CIRCLES)) {
    const x = px(layer.x[i]), y = py(layer.y[i]), radius = Math.max(pixels(layer.radii[i], layer.lat[i]) || 0, 2);
    pen.moveTo(x + radius, y); pen.arc(x, y, radius, 0, 2 * Math.PI);
  }
  pen.fillStyle = layer.colour; pen.globalAlpha = layer.opacity || AREA_OPACITY; pen.fill("nonzero"); pen.globalAlpha = 1;
}
const AREA_OPACITY = .13;

function drawLatest() {
  // The latest estimate of one user, with its circle.
  let last = null;
  for (const layer of layers) if (layer.visible && layer.radii && layer.times) {
    const spans = spansOf(layer);
    if (spans.length > 1) return;
    if (spans.length) { const i = spans[0][1] - 1; if (!last || layer.times[i] >= last.layer.times[last.i]) last = { layer, i }; }
  }
  if (last) latest(last.layer, last.i);
}

function circle(layer, i, filled) {
  const radius = pixels(layer.radii[i], layer.lat[i]);
  if (!(radius > 0)) return;
  pen.beginPath(); pen.arc(px(layer.x[i]), py(layer.y[i]), radius, 0, 7);
  if (filled) pen.fill();
  pen.stroke();
}

function latest(layer, i) {
  // An estimate with its circle, in front.
  pen.strokeStyle = layer.colour; pen.lineWidth = 2; pen.fillStyle = layer.colour + "22";
  circle(layer, i, true);
  pen.beginPath(); pen.arc(px(layer.x[i]), py(layer.y[i]), 6, 0, 7);
  pen.fillStyle = layer.colour; pen.fill(); pen.strokeStyle = "#fff"; pen.stroke();
}

function drawNoise() {
  // The shape of the noise and its root mean square, in a corner, at the scale of the map or a part of it.
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
  pen.closePath(); pen.fillStyle = HULL + "66"; pen.strokeStyle = HULL; pen.lineWidth = 1.5; pen.fill(); pen.stroke();
  if (policy.error) { pen.setLineDash([4, 3]); pen.strokeStyle = RELEASE; pen.beginPath(); pen.arc(x, y, policy.error / 1000 * scale, 0, 7); pen.stroke(); pen.setLineDash([]); }
  pen.fillStyle = "#444"; pen.textAlign = "center"; pen.textBaseline = "middle"; pen.fillText(text, x, y + box + 9);
}

// ---- the pointer ---------------------------------------------------------------------------------------------------
const tip = document.createElement("div");
tip.className = "tip"; tip.setAttribute("role", "status"); tip.hidden = true;
by("map").append(tip);

function nearest(at) {
  let best = null, minimum = 14 * 14;
  for (const layer of layers) if (layer.visible && !layer.ends && (layer.users || layer.facts.length)) for (const [from, to] of spansOf(layer)) for (let i = from; i < to; i++) {
    const dx = px(layer.x[i]) - at.x, dy = py(layer.y[i]) - at.y, d = dx * dx + dy * dy;
    if (d <= minimum) { minimum = d; best = { layer, i }; }
  }
  return best;
}

function stateAt(at) {
  let best = -1, minimum = 30 * 30;
  for (let i = 0; i < policy.n; i++) { const d = (px(policy.x[i]) - at.x) ** 2 + (py(policy.y[i]) - at.y) ** 2; if (d < minimum) { minimum = d; best = i; } }
  return best;
}

function drawPointed() {
  if (!pointed) return;
  if (pointed.state >= 0) {
    const s = pointed.state;
    pen.strokeStyle = "#009e73"; pen.lineWidth = 1.2; pen.fillStyle = "#009e73"; pen.beginPath();
    for (const other of policy.neighbours[s]) { pen.moveTo(px(policy.x[s]), py(policy.y[s])); pen.lineTo(px(policy.x[other]), py(policy.y[other])); }
    pen.stroke(); pen.beginPath();
    for (const other of [s, ...policy.neighbours[s]]) { const x = px(policy.x[other]), y = py(policy.y[other]); pen.moveTo(x, y); pen.arc(x, y, 2.5, 0, 7); }
    pen.fill();
  }
  if (pointed.layer?.radii) latest(pointed.layer, pointed.i);
}

function point(event) {
  if (!view) return;
  const at = event.containerPoint, nearby = nearest(at), state = policy?.visible && policy.edges ? stateAt(at) : -1;
  pointed = nearby || state >= 0 ? { ...nearby, state } : null;
  redraw();
  tip.hidden = !pointed;
  if (!pointed) return;
  const head = document.createElement("b"), table = document.createElement("table");
  head.textContent = nearby ? nearby.layer.name : "state"; head.style.color = nearby ? nearby.layer.colour : "#009e73";
  const rows = nearby ? [...(nearby.layer.users ? [["user", nameOf(nearby.layer, nearby.i)]] : []),
    ...(nearby.layer.times ? [["time", `${formatTime(nearby.layer.times[nearby.i])} UTC`]] : []),
    ["location", `${nearby.layer.lat[nearby.i].toFixed(5)}, ${L.Util.wrapNum(nearby.layer.lon[nearby.i], [-180, 180], true).toFixed(5)}`],
    ...(nearby.layer.radii?.[nearby.i] > 0 ? [[nearby.layer.radius_name, `${Math.round(nearby.layer.radii[nearby.i]).toLocaleString("en")} m`]] : []),
    ...nearby.layer.facts.map(([name, of]) => [name.replace(/_m$/, " (m)").replaceAll("_", " "), of(nearby.i)])] : [];
  if (state >= 0) rows.push(["neighbours in the policy", `${policy.neighbours[state].length} states`]);
  for (const [key, value] of rows) if (value !== "") { const row = table.insertRow(); row.insertCell().textContent = key; row.insertCell().textContent = value; }
  tip.replaceChildren(head, table);
  // Next to the pointer, and entirely within the map.
  const position = (at, room, size) => Math.max(4, at + 14 + size > room - 4 && at - 14 - size >= 4 ? at - 14 - size : Math.min(at + 14, room - 4 - size));
  tip.style.left = `${position(at.x, view.width, tip.offsetWidth)}px`; tip.style.top = `${position(at.y, view.height, tip.offsetHeight)}px`;
}
const nameOf = (layer, i) => data.layers[layers.indexOf(layer)].users.words[layer.users[i]];

// ---- the panel -----------------------------------------------------------------------------------------------------
function fit() {
  // Every circle, and all but the farthest percent of the other points on each side: noise has no bound.
  const shown = layers.filter(layer => layer.visible && !layer.ends), x = [], y = [];
  let west = Infinity, east = -Infinity, north = Infinity, south = -Infinity;
  const include = (left, right, top, bottom) => { west = Math.min(west, left); east = Math.max(east, right); north = Math.min(north, top); south = Math.max(south, bottom); };
  for (const layer of shown.some(layer => layer.clocked) ? shown.filter(layer => layer.clocked) : shown) for (const [from, to] of spansOf(layer, Infinity)) for (let i = from; i < to; i++) {
    x.push(layer.x[i]); y.push(layer.y[i]);
    const radius = layer.radii ? mercatorLength(layer.radii[i], layer.lat[i]) : NaN;
    if (radius > 0) include(layer.x[i] - radius, layer.x[i] + radius, layer.y[i] - radius, layer.y[i] + radius);
  }
  if (!x.length) for (const layer of layers) if (layer.ends) { x.push(...layer.x); y.push(...layer.y); }
  if (!x.length) { map.setView([0, 0], 2); return; }
  const between = values => { const v = Float64Array.from(values).sort(), end = v.length - 1; return [v[Math.round(.01 * end)], v[Math.round(.99 * end)]]; };
  include(...between(x), ...between(y));
  const MIN_SIDE = .002, grown = (low, high) => high - low < MIN_SIDE ? [(low + high - MIN_SIDE) / 2, (low + high + MIN_SIDE) / 2] : [low, high];
  const [w, e] = grown(west, east), [n, s] = grown(north, south), place = (mx, my) => map.options.crs.pointToLatLng(L.point(mx, my), 0);
  const bounds = [place(w, s), place(e, n)];
  map.fitBounds(bounds, { padding: [24, 24], animate: false });
  paint();
  const isCovered = layer => spansOf(layer, Infinity).some(([from, to]) => { for (let i = from; i < to; i++) if (px(layer.x[i]) > corner.x && py(layer.y[i]) < corner.y) return true; return false; });
  const covered = main && corner && counted.some(isCovered);
  if (covered) map.fitBounds(bounds, { paddingTopLeft: [24, 24], paddingBottomRight: [view.width - corner.x + 10, 24], animate: false });
}

const boxes = [];
function legend() {
  const entries = [...layers].reverse().map(layer => ({ layer, name: layer.name, kind: layer.kind, colour: layer.colour, count: () => layer.ends ? "" : countOf(layer) })); // an area can have several outlines
  const noise = [];
  if (policy?.hull.length) noise.push({ name: "sensitivity hull", kind: "hull", colour: HULL });
  if (policy?.error) noise.push({ name: "RMS noise of a release", kind: "ring", colour: RELEASE });
  // The box of the edges, or of the first shape without edges, is that of all of them.
  if (policy?.edges) entries.push({ layer: policy, name: policy.edges > 5000 ? "policy: edges at the pointer" : "policy: edges", kind: "strokes", colour: EDGE, count: () => policy.edges });
  else if (noise.length) entries.push({ layer: policy, ...noise.shift(), count: () => "" });
  for (const { layer, name, kind, colour, count } of entries) {
    const row = document.createElement("label"), box = document.createElement("input"), mark = document.createElement("i"), number = document.createElement("span");
    box.type = "checkbox"; box.checked = layer.visible; box.onchange = () => { layer.visible = box.checked; redraw(); };
    mark.className = kind; mark.style.background = layer.by_time ? `linear-gradient(90deg, ${RAMP.map(c => `rgb(${c.join()})`).join()})` : colour; mark.style.borderColor = colour;
    if (layer.width) mark.style.height = `${layer.width}px`;
    if (layer.opacity) mark.style.opacity = layer.opacity;
    row.append(box, mark, name, number); by("layers").append(row);
    boxes.push(() => { number.textContent = count().toLocaleString("en"); });
  }
  for (const { name, kind, colour } of noise) {
    const row = document.createElement("div"), mark = document.createElement("i");
    mark.className = kind; mark.style.background = mark.style.borderColor = colour;
    row.append(mark, name); by("layers").append(row);
  }
  // Circles belong to the layers of estimates; their entry says what a radius is.
  for (const name of new Set(layers.filter(layer => layer.radii && layer.times).map(layer => layer.radius_name))) {
    const row = document.createElement("div"), mark = document.createElement("i");
    mark.className = "circle"; mark.style.borderColor = layers.find(layer => layer.radius_name === name).colour;
    row.append(mark, `circle: ${name}; filled for the latest timestep`); by("layers").append(row);
  }
  if (policy?.text) by("layers").title = policy.text;
}
const count = () => { for (const update of boxes) update(); };

function setUser(user) {
  selected.user = user;
  const days = daysOf(), list = by("day");
  const dayName = day => new Date(day * DAY * 1000).toISOString().slice(0, 10);
  list.replaceChildren(new Option(`all ${days.size} days`, ""), ...[...days].map(([day, size]) => new Option(`${dayName(day)} (${size.toLocaleString("en")})`, day)));
  const fullest = [...days].reduce((best, day) => day[1] > best[1] ? day : best, [null, -1])[0];
  setDay(days.has(selected.day) ? selected.day : fullest);
}

function setDay(day) {
  selected.day = day; by("day").value = day ?? "";
  const at = by("day").selectedIndex;
  by("before").disabled = at <= 1; by("after").disabled = at < 1 || at >= by("day").options.length - 1;
  gatherTimesteps();
  by("time").max = Math.max(0, timesteps.length - 1);
  setTime(timesteps.length - 1); fit(); redraw();
}

function setTime(index) {
  by("time").value = index; selected.until = timesteps[index] ?? Infinity;
  by("now").textContent = formatTime(selected.until);
  const timed = layers.some(layer => layer.by_time) && timesteps.length > 1;
  by("ramp").hidden = !timed;
  if (timed) { by("ramp-from").textContent = formatTime(timesteps[0]).slice(selected.day === null ? 0 : 11); by("ramp-to").textContent = formatTime(timesteps.at(-1)).slice(selected.day === null ? 0 : 11); }
  count(); redraw();
}

by("ramp").firstElementChild.style.background = `linear-gradient(90deg, ${RAMP.map(c => `rgb(${c.join()})`).join()})`;
by("user-choice").hidden = users.length < 2;
by("user").append(new Option(`all (${users.length})`, ""), ...users.map(user => new Option(user, user)));
by("user").value = selected.user;
by("user").onchange = event => setUser(event.target.value);
by("day").onchange = event => setDay(event.target.value === "" ? null : +event.target.value);
for (const [id, step] of [["before", -1], ["after", 1]]) by(id).onclick = () => { by("day").selectedIndex += step; setDay(+by("day").value); };
by("time").oninput = () => setTime(+by("time").value);
let timer = 0;
by("play").onclick = () => {
  const running = timer; clearInterval(timer); timer = 0; by("play").textContent = "Play";
  if (running) return;
  if (+by("time").value >= timesteps.length - 1) setTime(0);
  by("play").textContent = "Pause";
  const step = Math.max(1, Math.round(timesteps.length / 200));
  timer = setInterval(() => { setTime(Math.min(+by("time").value + step, timesteps.length - 1)); if (+by("time").value >= timesteps.length - 1) by("play").click(); }, 50);
};
by("fit").onclick = fit;
legend();
if (moving.length) setUser(selected.user); else { by("who").hidden = by("clock").hidden = true; fit(); count(); }
if (data.basemap && !data.tiles) drawBasemap(map, data.basemap); // after the first view, which its names need
map.on("move zoom resize viewreset", redraw); map.on("mousemove click", point); map.on("mouseout", () => { pointed = null; tip.hidden = true; redraw(); });
new ResizeObserver(() => map.invalidateSize({ animate: false })).observe(by("map"));
redraw();
