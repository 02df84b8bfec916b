// The user's page. It receives releases and zones, and never a true location.
import { COLOUR, describeTime, makeMap, showLocation } from "./map.js";
import { STATIC_LAYER } from "./plots/basemap.js";
import { language, formatError, formatLength, formatNumber, formatPercent, translate, formatTime, describeLocation } from "./words.js";
import { makeZones } from "./zones.js";

const $ = (id) => document.getElementById(id);
const POLL_INTERVAL_MS = 2000, MAX_ROWS = 50, HOUR_S = 3600;
const OTHER_COLOURS = ["#7a4fb0", "#b0489a", "#8a6d1f", "#2a8a8a", "#9c4a2f"];

let state = null; // the last state from the relay
let user = ""; // the user of the household whose page is open
let trail = []; // what the selected recipient was sent
let next = 0; // number of the first release that is not in the trail
let shown = null; // index of the timestep that is shown; null for the last
let timer = 0;
let page = new AbortController(); // of the open page: answers to its requests are dropped once it is closed
let numReads = 0; // how often the trail was read
let mapFigures = makeMapFigures(); // what an adversary who has the map infers
let pendingLogin = null; // the last login
let map = null, zones = null;
const layers = {};

// ---- requests to the relay ------------------------------------------------------------------------------------------

async function request(path, body) {
  const { signal } = page, query = user ? (path.includes("?") ? "&user=" : "?user=") + encodeURIComponent(user) : "";
  const options = body === undefined ? { signal } : { // changes are not aborted
    method: "POST", body: JSON.stringify(body),
    headers: { "Content-Type": "application/json", "X-CSRF-Token": state ? state.csrf : "" },
  };
  if (path !== "login" && pendingLogin) await pendingLogin.catch(() => {}); // it replaces the cookie
  const loginBefore = pendingLogin, pending = fetch("page/" + path + query, { credentials: "same-origin", ...options });
  if (path === "login") pendingLogin = pending;
  const response = await pending;
  const answer = await response.json().catch(() => ({}));
  signal.throwIfAborted();
  if (response.status === 401 && path !== "login") {
    if (pendingLogin !== loginBefore) { await pendingLogin; signal.throwIfAborted(); return request(path, body); } // a login replaced the cookie meanwhile
    showLogin();
  }
  if (!response.ok) throw new Error(describeProblem(path, response.status, answer.error || ""));
  return answer;
}

function describeProblem(path, status, reason) {
  if (status === 401) return translate(path === "login" ? "wrong_token" : "logged_out");
  if (status === 403) return translate("reload");
  return ["zones", "preview", "pause", "link"].includes(path) ? translate("not_accepted", { reason }) : translate("no_answer");
}

const withAllRecipients = (answer) => ({ ...answer, allRecipients: [...(answer.recipients || []), ...(answer.links || [])] });

function showMessage(text, wrong) {
  $("message").textContent = text;
  $("message").classList.toggle("wrong", Boolean(wrong));
}

function showProblem(problem) {
  if (problem.name !== "AbortError") showMessage(problem instanceof TypeError ? translate("no_relay") : problem.message, true);
}

function withErrors(work) {
  return async (event) => {
    if (event) event.preventDefault();
    try { showMessage(""); await work(event); } catch (problem) { showProblem(problem); }
  };
}

function closePage() {
  clearTimeout(timer);
  page.abort();
  page = new AbortController();
}

function showLogin() {
  closePage();
  state = null;
  user = "";
  $("main").hidden = $("who").hidden = true;
  $("door").hidden = false;
  $("token").focus();
}

$("login").addEventListener("submit", withErrors(async () => {
  await request("login", { token: $("token").value.trim() });
  $("token").value = "";
  await openPage();
}));
$("logout").addEventListener("click", withErrors(async () => { await request("logout", {}); location.reload(); }));

// ---- elements -------------------------------------------------------------------------------------------------------

function makeElement(tag, text, properties = {}) {
  return Object.assign(document.createElement(tag), { textContent: text, ...properties });
}

function makeButton(text, label, work) {
  const button = makeElement("button", text, { type: "button" });
  button.setAttribute("aria-label", label);
  button.addEventListener("click", withErrors(work));
  return button;
}

function fillList(list, pairs) {
  list.replaceChildren(...pairs.flatMap(([name, value]) => [makeElement("dt", name), makeElement("dd", value)]));
}

function fillSelect(select, options) {
  // Unchanged options are kept, so that an open list or a selection is not lost.
  const isSame = [...select.options].map((option) => option.value + option.text).join() === options.map(([value, text]) => value + text).join();
  if (isSame) return;
  const selected = select.value;
  select.replaceChildren(...options.map(([value, text]) => new Option(text, value)));
  if (options.some(([value]) => value === selected)) select.value = selected;
}

// ---- what recipients can infer --------------------------------------------------------------------------------------

function describeRecipient(recipient) {
  const inference = describeInference(recipient);
  return recipient.had_other_settings ? `${translate("infer_earlier")} ${inference}` : inference;
}

function describeInference(recipient) {
  const last = recipient.last;
  if (recipient.content === "true locations") return translate("infer_true_locations");
  // A message without an acknowledgement is waiting, although it may have arrived.
  if (!last) return translate(recipient.num_waiting ? "infer_unconfirmed" : "infer_nothing");
  const inference = last.inference;
  if (recipient.content === "zone") return translate("infer_zone", { zone: inference.zone === "away" ? translate("zone_away") : inference.zone });
  const sentences = [recipient.precision_m ? translate("infer_rounded", { side: formatLength(recipient.precision_m), where: describeLocation(inference) })
    : translate("infer_" + inference.level, { where: describeLocation(inference), error: formatLength(inference.error_m), share: formatPercent(inference.exact_posterior || 0) })];
  if (inference.max_posterior) sentences.push(translate("infer_posterior", { share: formatPercent(inference.max_posterior) }));
  if (last.prediction) sentences.push(translate(last.last_known ? "infer_prediction" : "infer_model_only", { time: formatTime(last.last_known) }));
  return sentences.join(" ");
}

function describeStatus(recipient) {
  const kind = recipient.kind === "link" ? translate(recipient.ended ? "link_ended" : "link_until", { time: formatTime(recipient.ends) }) : recipient.kind;
  const paused = !recipient.paused ? "" : recipient.paused_until ? translate("paused_until", { time: formatTime(recipient.paused_until) }) : translate("paused");
  const last = recipient.last ? translate("last_sent", { time: formatTime(recipient.last.time) }) : "";
  const waiting = recipient.num_waiting ? translate("num_waiting", { count: formatNumber(recipient.num_waiting) }) : "";
  const aside = recipient.num_set_aside ? translate("num_set_aside", { count: formatNumber(recipient.num_set_aside), reason: recipient.set_aside_reason.replace(/^status /, "HTTP ") }) : "";
  return [kind, paused, last, waiting, aside].filter(Boolean).join(" · ");
}

function makeControls(recipient) {
  // Buttons to pause or resume a recipient, and to end a link.
  // The end of a pause is computed at the click, because buttons stay while recipients are unchanged.
  const name = recipient.name, pause = (findEnd) => async () => {
    const until = findEnd();
    await request("pause", { recipient: recipient.id, paused: until !== 0, ...(until ? { until } : {}) });
    await refresh();
  };
  const unlink = (text, label) => makeButton(text, label, async () => {
    await request("unlink", { link: recipient.id });
    await refresh();
  });
  if (recipient.ended) return [unlink(translate("link_remove"), translate("link_remove_named", { name }))];
  if (recipient.paused_by_file) return [];
  if (recipient.paused) return [makeButton(translate("resume"), translate("resume_named", { name }), pause(() => 0))];
  const menu = makeElement("details", "", { className: "menu" });
  const head = makeElement("summary", translate("pause"));
  head.setAttribute("aria-label", translate("pause_named", { name }));
  menu.append(head, ...[["pause_2h", () => Math.floor(Date.now() / 1000) + 2 * HOUR_S], ["pause_tomorrow", () => new Date().setHours(24, 0, 0, 0) / 1000], ["pause_forever", () => null]].map(
    ([key, findEnd]) => makeButton(translate(key), `${translate(key)}: ${name}`, pause(findEnd))));
  return [menu, ...(recipient.kind === "link" ? [unlink(translate("link_end"), translate("link_end_named", { name }))] : [])];
}

function showRecipients() {
  const text = JSON.stringify([state.allRecipients, new Date().toDateString()]);
  if (text === showRecipients.before) return; // an open menu stays open
  showRecipients.before = text;
  $("recipients").replaceChildren(...state.allRecipients.map((recipient) => {
    const item = document.createElement("li"), words = makeElement("div", "", { className: "grow" });
    const sentence = makeElement("p", describeRecipient(recipient));
    sentence.classList.toggle("bad", recipient.content === "true locations");
    words.append(makeElement("strong", recipient.name), sentence, makeElement("small", describeStatus(recipient)));
    item.append(words, ...makeControls(recipient));
    return item;
  }));
  if (!state.allRecipients.length) $("recipients").replaceChildren(makeElement("li", translate("no_recipients")));
  const selectable = state.allRecipients.filter((recipient) => recipient.content === "location");
  fillSelect($("recipient"), [["", translate("all_recipients")], ...selectable.map((recipient) => [recipient.id, recipient.name])]);
}

function showLastContact() {
  const { at, time, outcome, since } = state.phone;
  const text = at === undefined ? translate("no_contact", { time: formatTime(since) })
    : `${translate("last_contact", { time: formatTime(at) })} ${translate("outcome_" + outcome, { time: time ? formatTime(time) : "" })}`;
  if ($("last-contact").textContent !== text) $("last-contact").textContent = text;
}

// ---- the trail ------------------------------------------------------------------------------------------------------

const describeTimestep = (entry) => entry.prediction ? `${formatTime(entry.time)} (${describeTime(entry)})` : formatTime(entry.time);
const median = (numbers) => [...numbers].sort((a, b) => a - b)[Math.floor((numbers.length - 1) / 2)];

async function readTrail() {
  const recipient = $("recipient").value, turn = ++numReads;
  let previous = -1;
  while (next !== previous) {
    previous = next;
    const answer = await request(`trail?recipient=${encodeURIComponent(recipient)}&from=${next}`);
    if (turn !== numReads) return; // a later call reads the trail
    trail.push(...answer.locations);
    next = answer.next;
  }
  showTrail();
  readMapFigures();
}

function showTrail() {
  const end = trail.length - 1;
  $("timestep").max = Math.max(0, end);
  if (shown === null || shown >= end) { shown = null; $("timestep").value = end; }
  const selected = trail[shown === null ? end : shown];
  layers.trail.clearLayers();
  layers.now.clearLayers();
  $("timestep").disabled = end < 1;
  const errors = trail.map((entry) => entry.error_m);
  fillList($("inference"), selected ? [
    [translate("timestep"), describeTimestep(selected)],
    [translate("estimate_at"), `${formatNumber(selected.latitude)}, ${formatNumber(selected.longitude)}`],
    [translate("expected_error"), formatError(selected)],
    ...(selected.max_posterior === null ? [] : [[translate("adversary_error"), formatLength(selected.adversary_error_m)], [translate("max_posterior"), formatPercent(selected.max_posterior)]]),
    ...listMapFigures(selected),
    [translate("median_error"), formatError({ ...selected, error_m: median(errors) })],
    [translate("min_error"), formatError({ ...selected, error_m: Math.min(...errors) })],
  ] : [["", translate("no_release")]]);
  $("timestep-time").textContent = selected ? describeTimestep(selected) : "–";
  $("last").tBodies[0].replaceChildren(...trail.slice(-MAX_ROWS).reverse().map((entry) => {
    const row = document.createElement("tr");
    row.append(...[describeTimestep(entry), `${formatNumber(entry.latitude)}, ${formatNumber(entry.longitude)}`, formatError(entry)].map((text) => makeElement("td", text)));
    return row;
  }));
  showHousehold();
  showMapAdversary();
  if (!selected) return;
  const points = trail.map((entry) => [entry.latitude, entry.longitude]);
  L.polyline(points, { color: COLOUR.estimate, weight: 1, opacity: 0.25, ...STATIC_LAYER }).addTo(layers.trail);
  points.forEach((point, k) => L.circleMarker(point, {
    radius: 2.5, stroke: false, fillColor: COLOUR.estimate, fillOpacity: 0.15 + 0.45 * (k + 1) / points.length, ...STATIC_LAYER,
  }).addTo(layers.trail));
  showLocation(map, layers.now, selected, state.household.length > 1 ? `${state.user}, ${describeTime(selected)}` : describeTime(selected));
}

function reloadTrail() {
  trail = [];
  next = 0;
  shown = null;
  return readTrail();
}

$("timestep").addEventListener("input", () => { shown = Number($("timestep").value); showTrail(); });
$("recipient").addEventListener("change", withErrors(reloadTrail));

// ---- an adversary who has the map -----------------------------------------------------------------------------------

function makeMapFigures(model = "") {
  // `errors` and `posteriors` begin with the release `first`; `numRead` is the number of releases when they were complete.
  return { model, first: Infinity, errors: [], posteriors: [], answer: null, numRead: -1, reading: false };
}

async function readMapFigures() {
  // The relay replays releases for half a second in each answer, while the trail is shown without these figures.
  const model = state.adversary_map ? state.adversary_map.model : "";
  if (mapFigures.model !== model) { mapFigures = makeMapFigures(model); showTrail(); }
  const figures = mapFigures, first = trail.length ? trail[0].number : 0;
  if (first < figures.first) Object.assign(figures, { first, errors: [], posteriors: [], numRead: -1 });
  if (!model || figures.reading || figures.numRead === state.num_releases) return;
  figures.reading = true;
  try {
    let answer = null;
    do {
      answer = await request(`map_adversary?from=${figures.first + figures.errors.length}`);
      if (figures !== mapFigures) return; // of another user or map
      if (answer.first === figures.first + figures.errors.length) {
        figures.errors.push(...(answer.error_m || []));
        figures.posteriors.push(...(answer.max_posterior || []));
      }
      figures.answer = answer;
      showTrail();
    } while (answer.num_computed < answer.num_releases);
    figures.numRead = answer.problem ? state.num_releases : answer.num_releases;
  } catch (problem) { showProblem(problem); } finally { figures.reading = false; }
}

function showMapAdversary() {
  const { answer, errors, posteriors } = mapFigures, { adversary_map: region } = state, isShown = region && answer && (answer.problem || answer.num_releases > 0);
  $("map-adversary").hidden = !isShown;
  if (!isShown) return;
  const map = region.name === "coast" ? translate("map_coast") : region.name;
  if (answer.problem) $("map-adversary").textContent = translate("map_problem", { map, reason: answer.problem });
  else if (answer.num_computed < answer.num_releases || !errors.length) $("map-adversary").textContent = translate("map_computing", { map, count: formatNumber(answer.num_computed), total: formatNumber(answer.num_releases) });
  else $("map-adversary").textContent = translate("map_summary", { map, error: formatLength(errors.at(-1)), share: formatPercent(posteriors.at(-1)) });
}

function listMapFigures({ number }) {
  // They are those of a recipient of all releases.
  if (!state.adversary_map || $("recipient").value !== "") return [];
  const posterior = mapFigures.posteriors[number - mapFigures.first];
  return [[translate("map_error"), formatLength(mapFigures.errors[number - mapFigures.first])], [translate("map_posterior"), posterior === undefined ? "–" : formatPercent(posterior)]];
}

// ---- the household --------------------------------------------------------------------------------------------------

function showHousehold() {
  layers.household.clearLayers();
  state.household.forEach((member, k) => {
    if (member.user !== state.user && member.last) showLocation(map, layers.household, member.last, `${member.user}, ${describeTime(member.last)}`, OTHER_COLOURS[k % OTHER_COLOURS.length]);
  });
  const listed = state.household.length > 1 ? state.household : [];
  $("household").replaceChildren(...listed.map((member) => {
    const item = document.createElement("li"), last = member.last;
    const text = last ? translate("user_at", { name: member.user, where: describeLocation(last.inference), time: describeTime(last) }) : translate("user_without_release", { name: member.user });
    item.append(makeElement("span", text, { className: "grow" }));
    if (last) item.append(makeButton(translate("show"), translate("show_named", { name: member.user }), async () => map.setView([last.latitude, last.longitude], 14)));
    return item;
  }));
  fillSelect($("user"), state.household.map((member) => [member.user, member.user]));
  $("user").value = state.user;
}

$("user").addEventListener("change", withErrors(async () => {
  user = $("user").value;
  $("main").inert = $("who").inert = true; // input before the answer would be lost, or saved for another user
  try { await openPage(); } catch (problem) {
    user = state ? state.user : "";
    $("user").value = user;
    if (state) schedulePoll();
    throw problem;
  } finally { $("main").inert = $("who").inert = false; }
}));
$("add-user").addEventListener("submit", withErrors(async () => {
  await request("login", { token: $("other-token").value.trim(), add: true });
  $("other-token").value = "";
  await refresh();
  showTrail();
}));

// ---- budget ---------------------------------------------------------------------------------------------------------

function showState() {
  const budget = state.budget, formatShare = (part, whole) => translate("part_of_whole", { part: formatNumber(part), whole: formatNumber(whole) });
  const formatWindow = (window) => translate("in_any_hours", { remaining: formatShare(window.remaining, window.limit), hours: formatNumber(window.hours) });
  const unlimited = budget.limit === null;
  fillList($("budget"), [
    [translate("releases"), formatNumber(state.num_releases)],
    [translate("max_epsilon_release"), `ε ${formatNumber(budget.epsilon)}`],
    [translate("epsilon_total"), `ε ${formatNumber(budget.spent)}`],
    [translate("epsilon_24h"), `ε ${formatNumber(budget.spent_24h)}`],
    [translate("remaining_total"), unlimited ? translate("no_limit") : formatShare(budget.remaining, budget.limit)],
    ...(unlimited || budget.windows.length ? [[translate("remaining_now"), budget.windows.map(formatWindow).join("; ") || translate("no_limit")]] : []),
  ]);
  $("proof").href = "page/proof?user=" + encodeURIComponent(state.user);
  showRecipients();
  showLastContact();
  fillSelect($("link-precision"), state.precisions.map((side) => [side, side ? translate("rounded_to", { side: formatLength(side) }) : translate("no_rounding")]));
  $("link-precision-part").hidden = state.precisions.length < 2;
}

// ---- links ----------------------------------------------------------------------------------------------------------

$("link-hours").addEventListener("change", () => { $("link-date").required = !($("link-date-part").hidden = $("link-hours").value !== ""); });
$("link").addEventListener("submit", withErrors(async () => {
  const hours = $("link-hours").value;
  const ends = Math.floor(hours ? Date.now() / 1000 + Number(hours) * HOUR_S : new Date($("link-date").value).getTime() / 1000);
  const { token } = await request("link", { name: $("link-name").value.trim(), precision_m: Number($("link-precision").value), ends });
  $("link-name").value = "";
  $("link-created").hidden = false;
  $("link-address").value = new URL("link#" + token, location.href).href;
  $("link-address").focus();
  $("link-address").select();
  await refresh();
  showMessage(translate("link_created"));
}));
$("link-copy").addEventListener("click", withErrors(async () => {
  $("link-address").select();
  await navigator.clipboard.writeText($("link-address").value);
  showMessage(translate("copied"));
}));

// ---- the map --------------------------------------------------------------------------------------------------------

async function openMap() {
  const basemap = await request("basemap");
  map = makeMap(state.bounds, state.tiles, basemap);
  for (const name of ["addedEdges", "exposed", "trail", "household", "now"]) layers[name] = L.layerGroup([], { pmIgnore: true }).addTo(map);
  zones = makeZones({ map, layers, request, showMessage, withErrors, fillList, makeButton, state: () => state, trail: () => trail, refresh });
  fillSelect($("home-size"), [...$("home-size").options].map((option) => [option.value, formatLength(Number(option.value))]));
  $("names").replaceChildren(...basemap.names.slice(0, 1000).map(([name]) => new Option(name)));
  const normalize = (text) => text.trim().toLocaleLowerCase(language).normalize("NFD").replace(/\p{M}/gu, "");
  $("search").hidden = !basemap.names.length;
  $("search").addEventListener("submit", withErrors(async () => {
    const wanted = normalize($("place").value);
    const match = wanted && [(name) => name === wanted, (name) => name.startsWith(wanted), (name) => name.includes(wanted)]
      .map((fits) => basemap.names.find(([name]) => fits(normalize(name)))).find(Boolean);
    if (!match) throw new Error(translate("not_found", { name: $("place").value }));
    map.setView([match[1], match[2]], Math.max(map.getZoom(), 14));
    showMessage(translate("found", { name: match[0] }));
  }));
}

// ---- polling --------------------------------------------------------------------------------------------------------

async function refresh() {
  state = withAllRecipients(await request("state"));
  showState();
  if (![...$("recipient").options].some((option) => option.value === $("recipient").value)) await reloadTrail();
  else if (state.num_releases !== next || !trail.length) await readTrail();
  else readMapFigures(); // also after a reload of the relay with another map
}

async function poll() {
  const { signal } = page;
  try { await refresh(); if ($("message").textContent === translate("no_relay")) showMessage(""); } catch (problem) {
    if (state) showProblem(problem);
  }
  if (state && !signal.aborted) schedulePoll();
}

function schedulePoll() {
  clearTimeout(timer);
  timer = setTimeout(poll, POLL_INTERVAL_MS);
}

async function openPage() {
  closePage();
  mapFigures = makeMapFigures();
  state = withAllRecipients(await request("state"));
  if (state.user === null) { showLogin(); return; }
  user = state.user;
  $("door").hidden = true;
  $("main").hidden = $("who").hidden = false;
  $("link-created").hidden = true;
  $("link-address").value = "";
  if (!map) await openMap();
  showState();
  zones.showInForce();
  await reloadTrail();
  schedulePoll();
}

openPage().catch((problem) => { if (state) showProblem(problem); });
