// The person's page. It knows what was released, and the zones; no true place ever comes here.
import { COLOUR, STILL, lastKnown, makeMap, showPlace } from "./map.js";
import { language, metres, number, percent, say, when, whereOf } from "./words.js";
import { makeZones } from "./zones.js";

const $ = (id) => document.getElementById(id);
const LOOK_AGAIN_MS = 2000, MOST_ROWS = 50, HOUR_S = 3600;
const OTHERS = ["#7a4fb0", "#b0489a", "#8a6d1f", "#2a8a8a", "#9c4a2f"];

let state = null; // what the relay said last
let person = ""; // whose page it is, of those of the household
let trail = []; // what the chosen reader was told
let next = 0; // the number of the first release that is not in it
let shown = null; // the index of the moment that is looked at; null: the last
let timer = 0;
let opened = new AbortController(); // of the person's page that is open: once it is left, what it asked is dropped
let reads = 0; // how often the trail was read
let entering = null; // the last log-in
let map = null, zones = null;
const layers = {};

// ---- talking to the relay -------------------------------------------------------------------------------------------

async function ask(path, body) {
  const { signal } = opened, whose = person ? (path.includes("?") ? "&user=" : "?user=") + encodeURIComponent(person) : "";
  const options = body === undefined ? { signal } : { // a change is made all the same
    method: "POST", body: JSON.stringify(body),
    headers: { "Content-Type": "application/json", "X-CSRF-Token": state ? state.csrf : "" },
  };
  if (path !== "login" && entering) await entering.catch(() => {}); // the page has another cookie after it
  const before = entering, sent = fetch("page/" + path + whose, { credentials: "same-origin", ...options });
  if (path === "login") entering = sent;
  const answer = await sent;
  const told = await answer.json().catch(() => ({}));
  signal.throwIfAborted();
  if (answer.status === 401 && path !== "login") {
    if (entering !== before) { await entering; signal.throwIfAborted(); return ask(path, body); } // a log-in since then gave the page another cookie
    logIn();
  }
  if (!answer.ok) throw new Error(problemOf(path, answer.status, told.error || ""));
  return told;
}

function problemOf(path, status, reason) {
  if (status === 401) return say(path === "login" ? "wrong_token" : "logged_out");
  if (status === 403) return say("load_anew");
  return ["zones", "price", "link"].includes(path) ? say("refused", { reason }) : say("no_answer");
}

const read = (told) => ({ ...told, readers: [...(told.recipients || []), ...(told.links || [])] });

function tell(text, wrong) {
  $("message").textContent = text;
  $("message").classList.toggle("wrong", Boolean(wrong));
}

function tellProblem(problem) {
  if (problem.name !== "AbortError") tell(problem instanceof TypeError ? say("no_relay") : problem.message, true);
}

function trying(work) {
  return async (event) => {
    if (event) event.preventDefault();
    try { tell(""); await work(event); } catch (problem) { tellProblem(problem); }
  };
}

function leave() {
  clearTimeout(timer);
  opened.abort();
  opened = new AbortController();
}

function logIn() {
  leave();
  state = null;
  person = "";
  $("main").hidden = $("who").hidden = true;
  $("door").hidden = false;
  $("token").focus();
}

$("login").addEventListener("submit", trying(async () => {
  await ask("login", { token: $("token").value.trim() });
  $("token").value = "";
  await begin();
}));
$("logout").addEventListener("click", trying(async () => { await ask("logout", {}); location.reload(); }));

// ---- making parts of the page ---------------------------------------------------------------------------------------

function made(kind, text, more = {}) {
  return Object.assign(document.createElement(kind), { textContent: text, ...more });
}

function button(text, label, work) {
  const found = made("button", text, { type: "button" });
  found.setAttribute("aria-label", label);
  found.addEventListener("click", trying(work));
  return found;
}

function facts(list, pairs) {
  list.replaceChildren(...pairs.flatMap(([name, value]) => [made("dt", name), made("dd", value)]));
}

function fill(select, options) {
  // Only where they differ, so that what is open or chosen stays.
  const same = [...select.options].map((one) => one.value + one.text).join() === options.map(([value, text]) => value + text).join();
  if (same) return;
  const chosen = select.value;
  select.replaceChildren(...options.map(([value, text]) => new Option(text, value)));
  if (options.some(([value]) => value === chosen)) select.value = chosen;
}

// ---- what readers can tell ------------------------------------------------------------------------------------------

function sentences(reader) {
  const last = reader.last;
  if (reader.tells === "true places") return say("tell_true");
  if (!last) return say("tell_nothing");
  const known = last.can_tell;
  if (reader.tells === "zone") return say("tell_zone", { zone: known.zone === "away" ? say("zone_away") : known.zone });
  const told = [reader.precision_m ? say("tell_rounded", { side: metres(reader.precision_m), where: whereOf(known) })
    : say("tell_" + known.level, { where: whereOf(known), off: metres(known.off_m) })];
  if (known.certainty && known.level !== "exact") told.push(say("tell_sure", { share: percent(known.certainty) }));
  if (last.prediction) told.push(say("tell_guess", { time: last.known ? when(last.known) : say("long_ago") }));
  return told.join(" ");
}

function statusOf(reader) {
  const kind = reader.kind === "link" ? say(reader.ended ? "link_ended" : "link_until", { time: when(reader.ends) }) : reader.kind;
  const paused = !reader.paused ? "" : reader.paused_until ? say("paused_until", { time: when(reader.paused_until) }) : say("paused");
  const last = reader.last ? say("last_told", { time: when(reader.last.time) }) : "";
  const waiting = reader.waiting ? say("not_told_yet", { count: number(reader.waiting) }) : "";
  const aside = reader.set_aside ? say("not_taken", { count: number(reader.set_aside), reason: reader.set_aside_last.replace(/^status /, "HTTP ") }) : "";
  return [kind, paused, last, waiting, aside].filter(Boolean).join(" · ");
}

function pauses(reader) {
  // Buttons to pause a reader, or to go on.
  const name = reader.name, pause = (until) => async () => {
    await ask("pause", { recipient: reader.id, paused: until !== 0, ...(until ? { until } : {}) });
    await look();
  };
  const unlink = (text, label) => button(text, label, async () => {
    await ask("unlink", { link: reader.id });
    await look();
  });
  if (reader.ended) return [unlink(say("link_remove"), say("link_remove_named", { name }))];
  if (reader.paused_by_file) return [];
  if (reader.paused) return [button(say("go_on"), say("go_on_named", { name }), pause(0))];
  const now = Math.floor(Date.now() / 1000), tomorrow = new Date();
  tomorrow.setHours(24, 0, 0, 0);
  const menu = made("details", "", { className: "menu" });
  const head = made("summary", say("pause"));
  head.setAttribute("aria-label", say("pause_named", { name }));
  menu.append(head, ...[["pause_2h", now + 2 * HOUR_S], ["pause_tomorrow", tomorrow.getTime() / 1000], ["pause_forever", null]].map(
    ([key, until]) => button(say(key), `${say(key)}: ${name}`, pause(until))));
  return [menu, ...(reader.kind === "link" ? [unlink(say("link_end"), say("link_end_named", { name }))] : [])];
}

function showReaders() {
  const text = JSON.stringify([state.readers, new Date().toDateString()]);
  if (text === showReaders.before) return; // a menu that is open stays open
  showReaders.before = text;
  $("readers").replaceChildren(...state.readers.map((reader) => {
    const item = document.createElement("li"), words = made("div", "", { className: "grow" });
    const sentence = made("p", sentences(reader));
    sentence.classList.toggle("bad", reader.tells === "true places");
    words.append(made("strong", reader.name), sentence, made("small", statusOf(reader)));
    item.append(words, ...pauses(reader));
    return item;
  }));
  if (!state.readers.length) $("readers").replaceChildren(made("li", say("nobody")));
  fill($("reader"), [["", say("everyone")], ...state.readers.filter((one) => one.tells === "place").map((one) => [one.id, one.name])]);
}

function showHeard() {
  const { at, time, became, since } = state.phone;
  const text = at === undefined ? say("heard_none", { time: when(since) })
    : `${say("heard", { time: when(at) })} ${say("became_" + became, { time: time ? when(time) : "" })}`;
  if ($("heard").textContent !== text) $("heard").textContent = text;
}

// ---- the trail ------------------------------------------------------------------------------------------------------

const momentOf = (one) => one.prediction ? `${when(one.time)} (${lastKnown(one)})` : when(one.time);
const median = (numbers) => [...numbers].sort((a, b) => a - b)[Math.floor((numbers.length - 1) / 2)];

async function readTrail() {
  const reader = $("reader").value, turn = ++reads;
  let last = -1;
  while (next !== last) {
    last = next;
    const told = await ask(`trail?reader=${encodeURIComponent(reader)}&from=${next}`);
    if (turn !== reads) return; // it is read anew since
    trail.push(...told.places);
    next = told.next;
  }
  showTrail();
}

function showTrail() {
  const end = trail.length - 1;
  $("moment").max = Math.max(0, end);
  if (shown === null || shown >= end) { shown = null; $("moment").value = end; }
  const at = trail[shown === null ? end : shown];
  layers.trail.clearLayers();
  layers.now.clearLayers();
  $("moment").disabled = end < 1;
  const radii = trail.map((one) => one.radius_m);
  facts($("learned"), at ? [
    [say("moment"), momentOf(at)],
    [say("believed_at"), `${number(at.latitude)}, ${number(at.longitude)}`],
    [say("off_expected"), metres(at.radius_m)],
    ...(at.certainty === undefined ? [] : [[say("guess_off"), metres(at.guess_off_m)], [say("surest"), percent(at.certainty)]]),
    [say("median_off"), metres(median(radii))],
    [say("least_off"), metres(Math.min(...radii))],
  ] : [["", say("nothing_released")]]);
  $("moment-time").textContent = at ? momentOf(at) : "–";
  $("last").tBodies[0].replaceChildren(...trail.slice(-MOST_ROWS).reverse().map((one) => {
    const row = document.createElement("tr");
    row.append(...[momentOf(one), `${number(one.latitude)}, ${number(one.longitude)}`, metres(one.radius_m)].map((text) => made("td", text)));
    return row;
  }));
  showPeople();
  if (!at) return;
  const places = trail.map((one) => [one.latitude, one.longitude]);
  L.polyline(places, { color: COLOUR.believed, weight: 1, opacity: 0.25, ...STILL }).addTo(layers.trail);
  places.forEach((place, k) => L.circleMarker(place, {
    radius: 2.5, stroke: false, fillColor: COLOUR.believed, fillOpacity: 0.15 + 0.45 * (k + 1) / places.length, ...STILL,
  }).addTo(layers.trail));
  showPlace(map, layers.now, at, state.people.length > 1 ? `${state.user}, ${lastKnown(at)}` : lastKnown(at));
}

function changeReader() {
  trail = [];
  next = 0;
  shown = null;
  return readTrail();
}

$("moment").addEventListener("input", () => { shown = Number($("moment").value); showTrail(); });
$("reader").addEventListener("change", trying(changeReader));

// ---- the household --------------------------------------------------------------------------------------------------

function showPeople() {
  layers.people.clearLayers();
  state.people.forEach((one, k) => {
    if (one.user !== state.user && one.last) showPlace(map, layers.people, one.last, `${one.user}, ${lastKnown(one.last)}`, OTHERS[k % OTHERS.length]);
  });
  const several = state.people.length > 1 ? state.people : [];
  $("people").replaceChildren(...several.map((one) => {
    const item = document.createElement("li"), last = one.last;
    const text = last ? say("person_at", { name: one.user, where: whereOf(last.can_tell), time: lastKnown(last) }) : say("person_nowhere", { name: one.user });
    item.append(made("span", text, { className: "grow" }));
    if (last) item.append(button(say("show"), say("show_named", { name: one.user }), async () => map.setView([last.latitude, last.longitude], 14)));
    return item;
  }));
  fill($("person"), state.people.map((one) => [one.user, one.user]));
  $("person").value = state.user;
}

$("person").addEventListener("change", trying(async () => {
  person = $("person").value;
  $("main").inert = $("who").inert = true; // what is typed before the answer would be lost, or saved as another person's
  try { await begin(); } catch (problem) {
    person = state ? state.user : "";
    $("person").value = person;
    if (state) lookLater();
    throw problem;
  } finally { $("main").inert = $("who").inert = false; }
}));
$("add-person").addEventListener("submit", trying(async () => {
  await ask("login", { token: $("other-token").value.trim(), add: true });
  $("other-token").value = "";
  await look();
  showTrail();
}));

// ---- what it cost ---------------------------------------------------------------------------------------------------

function showState() {
  const b = state.budget, of = (left, whole) => say("left_of", { left: number(left), whole: number(whole) });
  facts($("budget"), [
    [say("releases"), number(state.count)],
    [say("each_costs"), `ε ${number(b.epsilon)}`],
    [say("sum"), `ε ${number(b.spent)}`],
    [say("last_day"), `ε ${number(b.spent_last_day)}`],
    [say("left_in_all"), b.limit === null ? say("no_limit") : of(b.left, b.limit)],
    [say("left_now"), b.window_limit === null ? say("no_limit") : say("in_hours", { left: of(b.window_left, b.window_limit), hours: number(b.window_hours) })],
  ]);
  $("proof").href = "page/proof?user=" + encodeURIComponent(state.user);
  showReaders();
  showHeard();
  fill($("link-precision"), state.precisions.map((side) => [side, side ? say("rounded_to", { side: metres(side) }) : say("most_exactly")]));
  $("link-precision-part").hidden = state.precisions.length < 2;
}

// ---- links ----------------------------------------------------------------------------------------------------------

$("link-hours").addEventListener("change", () => { $("link-date").required = !($("link-date-part").hidden = $("link-hours").value !== ""); });
$("link").addEventListener("submit", trying(async () => {
  const hours = $("link-hours").value;
  const ends = Math.floor(hours ? Date.now() / 1000 + Number(hours) * HOUR_S : new Date($("link-date").value).getTime() / 1000);
  const { token } = await ask("link", { name: $("link-name").value.trim(), precision_m: Number($("link-precision").value), ends });
  $("link-name").value = "";
  $("link-made").hidden = false;
  $("link-address").value = new URL("link#" + token, location.href).href;
  $("link-address").focus();
  $("link-address").select();
  await look();
  tell(say("link_made"));
}));
$("link-copy").addEventListener("click", trying(async () => {
  $("link-address").select();
  await navigator.clipboard.writeText($("link-address").value);
  tell(say("copied"));
}));

// ---- the map --------------------------------------------------------------------------------------------------------

async function openMap() {
  const ground = await ask("ground");
  map = makeMap(state.bounds, state.tiles, ground);
  for (const name of ["joined", "exposed", "trail", "people", "now"]) layers[name] = L.layerGroup([], { pmIgnore: true }).addTo(map);
  zones = makeZones({ map, layers, ask, tell, trying, facts, button, state: () => state, trail: () => trail, look });
  fill($("home-size"), [...$("home-size").options].map((one) => [one.value, metres(Number(one.value))]));
  $("names").replaceChildren(...ground.names.slice(0, 1000).map(([name]) => new Option(name)));
  const plain = (text) => text.trim().toLocaleLowerCase(language).normalize("NFD").replace(/\p{M}/gu, "");
  $("search").hidden = !ground.names.length;
  $("search").addEventListener("submit", trying(async () => {
    const wanted = plain($("place").value);
    const found = wanted && [(name) => name === wanted, (name) => name.startsWith(wanted), (name) => name.includes(wanted)]
      .map((fits) => ground.names.find(([name]) => fits(plain(name)))).find(Boolean);
    if (!found) throw new Error(say("not_found", { name: $("place").value }));
    map.setView([found[1], found[2]], Math.max(map.getZoom(), 14));
    tell(say("found", { name: found[0] }));
  }));
}

// ---- over and over --------------------------------------------------------------------------------------------------

async function look() {
  state = read(await ask("state"));
  showState();
  if (![...$("reader").options].some((one) => one.value === $("reader").value)) await changeReader();
  else if (state.count !== next || !trail.length) await readTrail();
}

async function again() {
  const { signal } = opened;
  try { await look(); if ($("message").textContent === say("no_relay")) tell(""); } catch (problem) {
    if (state) tellProblem(problem);
  }
  if (state && !signal.aborted) lookLater();
}

function lookLater() {
  clearTimeout(timer);
  timer = setTimeout(again, LOOK_AGAIN_MS);
}

async function begin() {
  leave();
  state = read(await ask("state"));
  if (state.user === null) { logIn(); return; }
  person = state.user;
  $("door").hidden = true;
  $("main").hidden = $("who").hidden = false;
  $("link-made").hidden = true;
  $("link-address").value = "";
  if (!map) await openMap();
  showState();
  zones.showInForce();
  await changeReader();
  lookLater();
}

begin().catch((problem) => { if (state) tellProblem(problem); });
