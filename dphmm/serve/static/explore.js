// The page of 'dphmm explore': one or two panels, each with settings, a map and the figures of a timestep.
import { makeEdgeEditor } from "./explore_edges.js";
import { drawPicture } from "./explore_picture.js";
import { makeZoneEditor } from "./explore_zones.js";
import { COLOUR, makeMap } from "./map.js";
import { STATIC_LAYER } from "./plots/basemap.js";
import { formatLength, formatNumber, formatPercent, translate } from "./words.js";

const $ = (id) => document.getElementById(id);
const CHANGE_DELAY_MS = 150, POINT_DELAY_MS = 120, PROGRESS_DELAY_MS = 400, MAX_NAMES = 8, MIN_PROTECTED = 2, MAX_UNDO = 100, MAX_LINK = 60000, MAX_STATE_NAMES = 30;
const SETTINGS = ["policy", "epsilon", "delta", "mechanism", "optimal_fallback", "noise_scope", "repair", "repair_objective", "target_error", "window_epsilon", "edges", "zones"];
const DEGREE_RAMP = [[253, 231, 37], [94, 201, 98], [33, 145, 140], [59, 82, 139], [68, 1, 84]];
const PROBABILITY_RAMP = [[255, 245, 235], [253, 174, 107], [230, 85, 13], [127, 39, 4]];
const BESIDE_TOOLS = { paddingTopLeft: [48, 24], paddingBottomRight: [56, 32] }; // otherwise they cover some of a few states
const HULL = "#9c3f86", RELEASE = "#d55e00", EDGE = "#4d7f6f", TRUE_STATE = "#111111", OUTLINE = "#5b6673";

let scene = null, example = ""; // the name of an example of the paper; empty for the user's own model
let own = null; // what was shown before an example
let lastNumber = 0, numLoads = 0;
const panels = [];

async function request(path, body, signal) {
  const options = body === undefined ? {} : { method: "POST", body: JSON.stringify({ example, ...body }), headers: { "Content-Type": "application/json" } };
  const response = await fetch("explore/" + path, { credentials: "same-origin", signal, ...options });
  if (response.ok || (response.status === 400 && path === "view")) return response;
  const answer = await response.json().catch(() => ({}));
  throw new Error(answer.error || translate("no_answer"));
}

function showMessage(text, wrong) {
  $("message").textContent = text;
  $("message").classList.toggle("wrong", Boolean(wrong));
}

const showProblem = (problem) => { if (problem.name !== "AbortError") showMessage(problem instanceof TypeError ? translate("no_answer") : problem.message, true); };

function makeElement(tag, text, properties = {}) {
  return Object.assign(document.createElement(tag), { textContent: text, ...properties });
}

function mix(ramp, share) {
  const at = Math.min(1, Math.max(0, share)) * (ramp.length - 1), low = Math.min(ramp.length - 2, Math.floor(at));
  return `rgb(${ramp[low].map((part, k) => Math.round(part + (ramp[low + 1][k] - part) * (at - low))).join()})`;
}

function measureToLine(points) {
  // The squared distance of a line from the origin.
  let least = Infinity;
  points.forEach(([y, x], k) => {
    const [beforeY, beforeX] = points[Math.max(0, k - 1)], along = (y - beforeY) ** 2 + (x - beforeX) ** 2;
    const share = along ? Math.min(1, Math.max(0, -(beforeY * (y - beforeY) + beforeX * (x - beforeX)) / along)) : 0;
    least = Math.min(least, (beforeY + share * (y - beforeY)) ** 2 + (beforeX + share * (x - beforeX)) ** 2);
  });
  return least;
}

function listNames(states) {
  if (!states.length) return translate("none");
  const names = states.slice(0, MAX_NAMES).map((state) => scene.names[state]).join(", ");
  return states.length > MAX_NAMES ? translate("and_more", { names, count: formatNumber(states.length - MAX_NAMES) }) : names;
}

function save(text, name, type) {
  const link = makeElement("a", "", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// Requests of this page are numbered in their order. Another tab is another page.
const nextNumber = () => (lastNumber += 1), page = crypto.getRandomValues(new Uint32Array(1))[0];

// ---- a panel --------------------------------------------------------------------------------------------------------

function makePanel(index, fields) {
  const root = $("panel").content.cloneNode(true).firstElementChild;
  const part = (name) => root.querySelector(`[data-part="${name}"]`), input = (name) => root.querySelector(`[data-field="${name}"]`);
  $("panels").append(root);
  for (const label of root.querySelectorAll("[data-for]")) label.htmlFor = `${label.dataset.for}-${index}`;
  for (const field of root.querySelectorAll("[data-field]")) field.id = `${field.dataset.field}-${index}`;
  const heading = part("heading"), history = [], layers = {};
  heading.id = `heading-${index}`;
  root.setAttribute("aria-labelledby", heading.id);
  const map = makeMap(scene.bounds, {}, scene.basemap, part("map"));
  for (const name of ["states", "edges", "edited", "pointed", "hull", "samples", "marks", "labels"]) layers[name] = L.layerGroup().addTo(map);
  let view = null, applied = null, complete = null, seed = 1, pending = null, pointed = -1, position = new Map(), timer = 0, pointTimer = 0;
  let shownStep = -1, scope = ""; // the timestep of the view, and from which one on it applies the settings

  const read = () => Object.fromEntries(SETTINGS.map((name) => [name, input(name).value]));
  const write = (values) => {
    for (const name of SETTINGS) if (typeof values[name] === "string") input(name).value = values[name];
    showFallback();
  };
  const showFallback = () => { part("fallback").hidden = input("mechanism").value !== "optimal"; };
  const differs = () => !applied || SETTINGS.some((name) => input(name).value !== applied[name]);
  const isShown = () => !differs() && shownStep === readStep();
  const showScope = (text) => { scope = part("scope").textContent = text; };

  function showErrors(errors) {
    for (const old of root.querySelectorAll(".problem")) old.remove();
    for (const name of SETTINGS) {
      const field = input(name), text = errors[name];
      field.toggleAttribute("aria-invalid", false);
      field.removeAttribute("aria-describedby");
      if (!text) continue;
      const problem = makeElement("span", text, { className: "problem", id: `problem-${name}-${index}` });
      field.setAttribute("aria-invalid", "true");
      field.setAttribute("aria-describedby", problem.id);
      field.after(problem);
    }
    part("status").textContent = Object.keys(errors).length ? translate("not_applied") : "";
  }

  function watchProgress(signal) {
    const bar = part("progress");
    const ask = async () => {
      if (signal.aborted) return;
      try {
        const { done, total, has_table: hasTable } = await (await request("progress", undefined, signal)).json();
        if (signal.aborted) return;
        bar.hidden = false;
        bar.max = Math.max(1, total);
        bar.value = done;
        part("status").textContent = translate(hasTable ? "computing_table" : "computing", { done: formatNumber(done + 1), total: formatNumber(total) });
      } catch { return; }
      setTimeout(ask, PROGRESS_DELAY_MS);
    };
    setTimeout(ask, PROGRESS_DELAY_MS);
  }

  async function apply(remember = true) {
    clearTimeout(timer);
    if (pending) pending.abort();
    const running = pending = new AbortController(), fields = read(), step = readStep();
    const ask = async (before) => (await request("view", { fields, step, seed, before, page, panel: index, number: nextNumber() }, running.signal)).json();
    root.setAttribute("aria-busy", "true");
    watchProgress(running.signal);
    try {
      // After many timesteps, the first answer applies the change to the timestep shown only.
      let answer = await ask(complete);
      showErrors(answer.errors || {});
      if (answer.errors) {
        // The map and the figures remain those of valid settings, at their timestep.
        part("scope").textContent = view && shownStep !== step ? translate("step_shown", { step: formatNumber(shownStep + 1) }) : scope;
        return;
      }
      if (remember && applied && SETTINGS.some((name) => fields[name] !== applied[name])) history.push(applied);
      if (history.length > MAX_UNDO) history.shift();
      if (!applied || SETTINGS.some((name) => fields[name] !== applied[name])) forgetUses();
      applied = fields;
      part("undo").disabled = !history.length;
      showMessage("");
      [view, shownStep] = [answer, step];
      show();
      if (answer.applies_from) {
        showScope(translate("applies_from", { step: formatNumber(step + 1) }));
        answer = await ask();
        showErrors(answer.errors || {});
        if (answer.errors) {
          part("status").textContent = "";
          showScope(translate("applies_only", { step: formatNumber(step + 1) }));
          return;
        }
        view = answer;
        show();
      }
      showScope("");
      complete = { fields, seed };
    } catch (problem) { if (!running.signal.aborted) showProblem(problem); } finally {
      running.abort(); // also ends the questions about progress
      if (pending === running) { pending = null; part("progress").hidden = true; root.removeAttribute("aria-busy"); }
    }
  }

  function changed() {
    clearTimeout(timer);
    if (isShown()) showErrors({}); else timer = setTimeout(apply, CHANGE_DELAY_MS);
  }

  const makeButton = (text, label, work) => {
    const button = makeElement("button", text, { type: "button", ariaLabel: label });
    button.addEventListener("click", () => Promise.resolve(work()).catch(showProblem));
    return button;
  };
  const edges = makeEdgeEditor({
    part, layer: layers.edited, scene, makeButton, showProblem,
    async toggle([first, second]) {
      input("edges").value = (await (await request("edge", { fields: read(), first, second })).json()).edges;
      await apply();
    },
  });

  const zones = makeZoneEditor({ map, meridian: (scene.bounds[0][1] + scene.bounds[1][1]) / 2, part, input, labels: layers.labels, makeButton, apply });

  // ---- the map --------------------------------------------------------------------------------------------------------

  const place = (state) => scene.states[state];

  function drawStates() {
    layers.states.clearLayers();
    const by = input("colour").value, [high, wide] = scene.cell_degrees, isCell = high > 0;
    const probability = by === "public" || by === "informed", source = probability ? view.adversaries[by] : null;
    const states = probability ? (source ? source.states : []) : view.constraint;
    const values = probability ? (source ? source.probabilities : []) : by === "degrees" ? view.degrees : view.degrees_after_repair;
    const top = values.reduce((largest, value) => Math.max(largest, value), probability ? 1e-9 : MIN_PROTECTED + 1);
    const open = new Set(view.unprotected), exposed = new Set(by === "repaired" ? [] : view.exposed);
    const ramp = probability ? PROBABILITY_RAMP : DEGREE_RAMP;
    states.forEach((state, k) => {
      const share = probability ? Math.sqrt(values[k] / top) : Math.log(values[k] / MIN_PROTECTED) / Math.log(top / MIN_PROTECTED), [latitude, longitude] = place(state);
      const isBad = !probability && exposed.has(state);
      const colour = isBad ? COLOUR.exposed : open.has(state) && !probability ? "#ffffff" : mix(ramp, share);
      if (scene.segments.length) {
        // White segments have an outline: most streets of the background are white.
        if (colour === "#ffffff") L.polyline(scene.segments[state], { color: OUTLINE, weight: 8, lineCap: "butt", ...STATIC_LAYER }).addTo(layers.states);
        L.polyline(scene.segments[state], { color: colour, weight: isBad ? 7 : 5, opacity: 0.9, lineCap: "butt", ...STATIC_LAYER }).addTo(layers.states);
        return;
      }
      const style = { stroke: isBad, color: COLOUR.exposed, weight: 2, fillColor: colour, fillOpacity: isBad ? 0.9 : 0.6, ...STATIC_LAYER };
      (isCell ? L.rectangle([[latitude - high / 2, longitude - wide / 2], [latitude + high / 2, longitude + wide / 2]], style)
        : L.circleMarker([latitude, longitude], { radius: 6, ...style })).addTo(layers.states);
    });
    if (!isCell && scene.names.length <= MAX_STATE_NAMES) for (const [state, name] of scene.names.entries()) {
      const icon = L.divIcon({ className: "name", html: makeElement("span", name), iconSize: null, iconAnchor: [-10, 16] });
      L.marker(place(state), { icon, keyboard: false, ...STATIC_LAYER }).addTo(layers.states);
    }
    part("mark-unprotected").hidden = probability || !open.size;
    part("legend").querySelector("i").classList.toggle("probability", probability);
    part("low").textContent = probability ? formatPercent(0) : formatNumber(MIN_PROTECTED, 0);
    part("high").textContent = probability ? formatPercent(top) : formatNumber(top, 0);
  }

  function drawLines() {
    layers.edges.clearLayers();
    const box = root.querySelector('[data-layer="edges"]');
    box.disabled = !view.edges;
    part("edges-omitted").hidden = Boolean(view.edges);
    if (view.edges && box.checked) L.polyline(view.edges.map((edge) => edge.map(place)), { color: EDGE, weight: 1, opacity: 0.35, ...STATIC_LAYER }).addTo(layers.edges);
    L.polyline(view.repair.added.map(({ edge }) => edge.map(place)), { color: COLOUR.exposed, weight: 3, ...STATIC_LAYER }).addTo(layers.edges);
    layers.hull.clearLayers();
    if (root.querySelector('[data-layer="hull"]').checked) {
      const outline = (points, style) => { if (points && points.every(Boolean)) L.polygon(points, { ...style, ...STATIC_LAYER }).addTo(layers.hull); };
      outline(view.hulls.after, { color: HULL, weight: 2, fillOpacity: 0.12 });
      outline(view.hulls.before, { color: HULL, weight: 1.5, dashArray: "6 5", fill: false });
      outline(view.hulls.alternative, { color: COLOUR.addedEdge, weight: 2, dashArray: "2 5", fill: false });
    }
    layers.samples.clearLayers();
    if (root.querySelector('[data-layer="samples"]').checked) for (const point of view.samples) if (point) L.circleMarker(point, { radius: 2, stroke: false, fillColor: HULL, fillOpacity: 0.7, ...STATIC_LAYER }).addTo(layers.samples);
  }

  function drawMarks() {
    layers.marks.clearLayers();
    const mark = (point, colour, radius) => { if (point) L.circleMarker(point, { radius, color: "#ffffff", weight: 2, fillColor: colour, fillOpacity: 1, ...STATIC_LAYER }).addTo(layers.marks); };
    mark(view.adversaries.public.estimate, COLOUR.estimate, 7);
    mark(view.released, RELEASE, 7);
    mark(place(view.true_state), TRUE_STATE, 6);
  }

  async function point(state) {
    pointed = state;
    layers.pointed.clearLayers();
    if (state < 0) { part("state-shown").textContent = ""; return; }
    const row = position.get(state), name = scene.names[state];
    if (row === undefined) { part("state-shown").textContent = translate("state_impossible", { name }); return; }
    const current = view;
    let neighbours = null;
    if (view.edges) neighbours = view.edges.filter((edge) => edge.includes(state)).map(([first, second]) => first === state ? second : first);
    else neighbours = await (await request("neighbours", { fields: applied, step: shownStep, seed, state })).json();
    if (pointed !== state || view !== current) return;
    L.polyline(neighbours.map((other) => [place(state), place(other)]), { color: TRUE_STATE, weight: 1.5, opacity: 0.7, ...STATIC_LAYER }).addTo(layers.pointed);
    for (const other of [state, ...neighbours]) L.circleMarker(place(other), { radius: 3, stroke: false, fillColor: TRUE_STATE, fillOpacity: 0.8, ...STATIC_LAYER }).addTo(layers.pointed);
    part("state-shown").textContent = translate("state_shown", {
      name, neighbours: formatNumber(neighbours.length), degree: formatNumber(view.degrees[row]), repaired: formatNumber(view.degrees_after_repair[row]),
    });
  }

  function findState({ lat, lng }) {
    const right = Math.cos(lat * Math.PI / 180), fromPoint = ([latitude, longitude]) => [latitude - lat, (longitude - lng) * right];
    let best = -1, least = Infinity;
    for (const state of view.constraint) {
      const distance = measureToLine((scene.segments[state] || [place(state)]).map(fromPoint));
      if (distance < least) { least = distance; best = state; }
    }
    return best;
  }

  map.on("moveend", () => { if (view) showFigures(); });
  map.on("mousemove click", ({ latlng }) => {
    if (!view) return;
    clearTimeout(pointTimer);
    pointTimer = setTimeout(() => point(findState(latlng)).catch(showProblem), POINT_DELAY_MS);
  });
  map.on("click", ({ latlng }) => { if (view && !zones.isDrawing()) edges.choose(findState(latlng)); });
  input("state").addEventListener("change", () => {
    const name = input("state").value.trim(), state = scene.names.indexOf(name);
    if (name && state < 0) part("state-shown").textContent = translate("state_unknown");
    else { point(name ? state : -1).catch(showProblem); edges.choose(state); }
  });

  // ---- figures --------------------------------------------------------------------------------------------------------

  function describeAdversary(adversary) {
    if (!adversary) return translate("no_habits");
    return translate("adversary_value", {
      error: formatLength(adversary.expected_error_m), state: scene.names[adversary.most_probable_state], probability: formatPercent(adversary.max_posterior_probability),
    });
  }

  function describeReleasedError() {
    // Noise can exceed the map, and then no mark shows the release.
    const error = formatLength(view.error_m), isInView = !view.released || map.getBounds().contains(view.released);
    return isInView ? error : translate("released_outside_view", { error });
  }

  function showFigures() {
    const count = view.constraint.length, rows = [
      ["constraint_set", translate("constraint_value", { count: formatNumber(count), total: formatNumber(scene.names.length), components: formatNumber(view.num_components) })],
      ["exposed_states", listNames(view.exposed)], ["isolated_states", listNames(view.isolated)],
      ...(view.unprotected.length ? [["unprotected_states", listNames(view.unprotected)]] : []),
      ["min_degree", formatNumber(view.min_degree_of_protection)],
      ...(view.withheld_reason ? [["withheld", translate("withheld_" + view.withheld_reason)]]
        : [["noise_error", formatLength(view.expected_error_m)], ["released_error", describeReleasedError()]]),
      ["epsilon_step", formatNumber(view.epsilon)], ["epsilon_total", formatNumber(view.epsilon_total)],
      ...(view.epsilon_24h === null ? [] : [["epsilon_24h", formatNumber(view.epsilon_24h)], ["max_epsilon_24h", formatNumber(view.max_epsilon_24h)]]),
      ["public", describeAdversary(view.adversaries.public)], ["informed", describeAdversary(view.adversaries.informed)],
    ];
    part("facts").replaceChildren(...rows.flatMap(([key, value]) => {
      const figure = makeElement("dd", value);
      figure.dataset.figure = key;
      return [makeElement("dt", translate(key)), figure];
    }));
    const { added, alternative, error_without_m: before, error_m: after } = view.repair;
    part("repairs").hidden = !added.length;
    part("edges").replaceChildren(...added.map(({ edge, length_m: length }) => {
      const row = document.createElement("tr");
      row.append(makeElement("td", edge.map((state) => scene.names[state]).join(" – ")), makeElement("td", formatLength(length)));
      return row;
    }));
    part("repair-errors").textContent = view.withheld_reason ? translate("repair_withheld") : before === null ? "" : translate("repair_errors", { before: formatLength(before), after: formatLength(after) });
    part("repair-alternative").textContent = alternative ? translate("repair_alternative", {
      method: translate(alternative.method), edges: alternative.added.map((edge) => edge.map((state) => scene.names[state]).join(" – ")).join(", "), error: formatLength(alternative.error_m), chosen: formatLength(view.expected_error_m),
    }) : "";
    const isEdited = Boolean(view.edited.added.length || view.edited.removed.length);
    part("policy-applied").textContent = isEdited ? translate("policy_applied", { policy: view.policy }) : "";
    part("commands").hidden = !view.command;
    part("command").textContent = view.command;
    part("python").textContent = view.python;
  }

  function show() {
    position = new Map(view.constraint.map((state, row) => [state, row]));
    showFigures();
    edges.show(view.edited);
    draw();
  }

  function draw() {
    // From bottom to top: all layers share one canvas.
    if (!view) return;
    drawStates();
    drawLines();
    drawMarks();
    zones.show();
    point(pointed).catch(showProblem);
  }

  // ---- controls -------------------------------------------------------------------------------------------------------

  part("form").addEventListener("submit", (event) => { event.preventDefault(); apply(); });
  for (const name of SETTINGS) input(name).addEventListener("change", changed);
  input("mechanism").addEventListener("change", showFallback);
  part("undo").addEventListener("click", () => {
    const isEdited = differs(); // a change that was not applied is undone first
    write(isEdited ? applied : history.pop());
    zones.show();
    if (isEdited && isShown()) showErrors({}); else apply(false);
    part("undo").disabled = !history.length;
  });
  for (const name of SETTINGS) input(name).addEventListener("input", () => { part("undo").disabled = !history.length && !(applied && differs()); });
  part("again").addEventListener("click", () => { seed += 1; apply(); });
  input("colour").addEventListener("change", draw);
  for (const box of root.querySelectorAll("[data-layer]")) box.addEventListener("change", draw);
  part("policy-file").addEventListener("click", async () => {
    try {
      save(await (await request("policy", { fields: applied })).text(), "policy.json", "application/json");
      showMessage("");
    } catch (problem) { showProblem(problem); }
  });
  part("zones-button").addEventListener("click", () => save(input("zones").value, "zones.geojson", "application/geo+json"));
  function describePicture() {
    // The applied fields with their labels: the map and the figures are those of these, whatever is being typed.
    const values = applied || read();
    const fields = [...part("form").querySelectorAll("input, select")].filter(({ dataset: { field } }) => values[field] && (field !== "optimal_fallback" || values.mechanism === "optimal"));
    const settings = fields.map((field) => {
      const value = values[field.dataset.field], choice = [...field.options || []].find((option) => option.value === value);
      return translate("setting_value", { name: field.labels[0].textContent, value: choice ? choice.textContent : value });
    });
    const warning = scene.is_private ? translate("picture_private", { user: scene.user }) : "";
    const texts = [heading.textContent, settings.join("; "), part("policy-applied").textContent, scope, shownStep < 0 ? "" : describeStep(shownStep)];
    return [{ text: warning, isWarning: true }, ...texts.map((text) => ({ text, isWarning: false }))].filter(({ text }) => text);
  }

  part("picture").addEventListener("click", async () => {
    try {
      const names = [...part("facts").querySelectorAll("dt")], ramp = input("colour").value === "public" || input("colour").value === "informed" ? PROBABILITY_RAMP : DEGREE_RAMP;
      const picture = await drawPicture({
        container: part("map"), legends: [...root.querySelectorAll(".legend")], ramp, paragraphs: describePicture(),
        rows: names.map((name) => [name.textContent, name.nextElementSibling.textContent]),
      });
      save(picture, scene.is_private ? "PRIVATE-explore.png" : "explore.png", "image/png");
      showMessage("");
    } catch (problem) { showProblem(problem); }
  });
  part("settings-file").addEventListener("click", () => save(view.toml, "settings.toml", "application/toml"));
  part("link-button").addEventListener("click", () => {
    part("link-part").hidden = false;
    input("link").value = location.origin + location.pathname + "#" + encodeURIComponent(JSON.stringify(readShown()));
    input("link").select();
  });

  write(scene.fields);
  write(fields);
  return {
    root, apply, fields: () => applied || read(),
    number(many) { heading.textContent = many ? translate("settings_numbered", { number: index + 1 }) : translate("settings"); map.invalidateSize(); },
    fit() { map.fitBounds(scene.bounds, { animate: false, ...(example || scene.segments.length ? BESIDE_TOOLS : {}) }); },
    remove() { clearTimeout(timer); clearTimeout(pointTimer); if (pending) pending.abort(); map.remove(); root.remove(); },
  };
}

// ---- the page -------------------------------------------------------------------------------------------------------

function arrange() {
  const isTwo = panels.length > 1;
  $("panels").classList.toggle("two", isTwo);
  $("compare").textContent = translate(isTwo ? "single" : "compare");
  for (const panel of panels) panel.number(isTwo);
}

function addPanel(fields) {
  panels.push(makePanel(panels.length, fields));
  arrange();
  return panels.at(-1).apply();
}

const readStep = () => Number($("time").value);

function describeStep(step) {
  const time = new Date(1000 * scene.times[step]).toISOString().slice(0, 16).replace("T", " ");
  return translate("time_shown", { step: formatNumber(step + 1), total: formatNumber(scene.times.length), time });
}

function showTime() {
  $("now").textContent = describeStep(readStep());
  $("time").setAttribute("aria-valuetext", $("now").textContent);
}

// ---- the table of uses ----------------------------------------------------------------------------------------------

const USES = [["mean_error_m", formatLength], ["monitoring_error", formatPercent], ["reproduction_error", formatPercent], ["tracing_precision", formatPercent],
  ["tracing_recall", formatPercent], ["updated_tracing_precision", formatPercent], ["updated_tracing_recall", formatPercent], ["disclosed_share", formatPercent]];
let numUses = 0;

function forgetUses() {
  // The table is that of other settings, or will be.
  numUses += 1;
  $("uses-table").hidden = true;
  $("uses-status").textContent = "";
  $("uses").disabled = false;
}

$("uses").addEventListener("click", async () => {
  forgetUses();
  const number = numUses, settings = panels.map((panel) => panel.fields());
  $("uses").disabled = true;
  const ask = async () => {
    if (number !== numUses || !$("uses").disabled) return;
    try {
      const { uses_done: done, uses_total: total } = await (await request("progress")).json();
      if (number === numUses && $("uses").disabled && total) $("uses-status").textContent = translate("uses_computing", { done: formatNumber(done), total: formatNumber(total) });
    } catch { return; }
    setTimeout(ask, PROGRESS_DELAY_MS);
  };
  setTimeout(ask, PROGRESS_DELAY_MS);
  try {
    const rows = await (await request("uses", { settings, seed: 1 })).json();
    if (number === numUses) showUses(rows);
  } catch (problem) { if (number === numUses) $("uses-status").textContent = problem.message; }
  if (number === numUses) $("uses").disabled = false;
});

function showUses(rows) {
  const table = $("uses-table"), show = (value, format) => {
    if (typeof value === "number") return format(value);
    if (value === null || value.value === null) return translate("not_defined");
    return translate("with_interval", { value: format(value.value), low: format(value.low), high: format(value.high) });
  };
  const makeRow = (tag, texts) => {
    const row = document.createElement("tr");
    row.append(...texts.map((text, k) => k && tag === "td" ? makeElement("td", text) : makeElement("th", text, { scope: tag === "th" ? "col" : "row" })));
    return row;
  };
  table.caption.textContent = translate("uses_caption", { users: formatNumber(rows[0].num_users), steps: formatNumber(rows[0].num_timesteps), contacts: formatNumber(rows[0].num_contacts) });
  table.tHead.replaceChildren(makeRow("th", [translate("use"), ...rows.map(({ policy, epsilon }) => `${policy}, ε = ${formatNumber(epsilon)}`)]));
  table.tBodies[0].replaceChildren(...USES.map(([name, format]) => makeRow("td", [translate(name), ...rows.map((row) => show(row[name], format))])));
  table.hidden = false;
  $("uses-status").textContent = rows[0].num_contacts ? "" : translate("no_contacts");
}

const readShown = () => ({ example, step: readStep(), settings: panels.map((panel) => panel.fields()) });

function readLink() {
  // Settings of a link, which anyone may have written: only known fields are used, and only as text.
  const text = location.hash.slice(1);
  if (!text || text.length > MAX_LINK) return null;
  try {
    const { example: name, step, settings } = JSON.parse(decodeURIComponent(text));
    return {
      example: [...$("example").options].some(({ value }) => value === name) ? name : "", step: Number.isInteger(step) ? step : 0,
      settings: Array.isArray(settings) ? settings.filter((fields) => fields && typeof fields === "object").slice(0, 2) : [],
    };
  } catch { return null; }
}

let timeTimer = 0;
$("time").addEventListener("input", () => {
  showTime();
  clearTimeout(timeTimer);
  timeTimer = setTimeout(() => { for (const panel of panels) panel.apply(); }, CHANGE_DELAY_MS);
});
$("compare").addEventListener("click", () => {
  forgetUses();
  if (panels.length > 1) { panels.pop().remove(); arrange(); } else addPanel(panels[0].fields());
});

$("example").addEventListener("change", () => {
  if (!example && panels.length) own = readShown();
  load($("example").value, $("example").value ? null : own).catch(showProblem);
});

async function load(name, shown) {
  const number = ++numLoads, loaded = await (await request("scene?example=" + encodeURIComponent(name))).json();
  if (number !== numLoads) return; // another example was chosen meanwhile
  for (const panel of panels.splice(0)) panel.remove();
  [scene, example] = [loaded, name];
  $("example").value = name;
  $("example-text").textContent = name ? translate(`example_${name}_text`) : "";
  $("source").textContent = name ? translate("example_source") : scene.is_private ? translate("private", { user: scene.user }) : translate("sampled");
  if (scene.num_outside) $("source").textContent += " " + translate("outside", { count: formatNumber(scene.num_outside), total: formatNumber(scene.times.length) });
  $("source").classList.toggle("bad", scene.is_private);
  const { step, settings } = shown || { step: 0, settings: [], ...scene };
  $("time").max = scene.times.length - 1;
  $("time").value = step;
  showTime();
  for (const fields of settings.length ? settings : [{}]) {
    await addPanel(fields);
    if (number !== numLoads) return;
  }
  for (const panel of panels) panel.fit(); // the first one was wider before the second was added
}

const link = readLink();
load(link ? link.example : "", link).catch(showProblem);
