"use strict";
// The person's page. It knows what was released, and the zones; no true place ever comes here.
(() => {
  const $ = (id) => document.getElementById(id);
  const LOOK_AGAIN_MS = 2000, DRAWN_FOR_MS = 350, MOST_ROWS = 50;
  const COLOUR = { believed: "#1f5fbf", zone: "#2f7d4f", exposed: "#c0392b", joined: "#b26a00" };

  let state = null; // what the relay said last
  let trail = []; // what was released, as the chosen tier sees it
  let next = 0; // the number of the first release that is not in it
  let shown = null; // the index of the moment that is looked at; null: the last
  let inForce = null; // the zones in force, as text
  let priceInForce = null;
  let timer = 0, asked = 0;

  // ---- talking to the relay ---------------------------------------------------------------------------------------

  async function ask(path, body) {
    const options = body === undefined ? {} : {
      method: "POST", body: JSON.stringify(body),
      headers: { "Content-Type": "application/json", "X-CSRF-Token": state ? state.csrf : "" },
    };
    const answer = await fetch("page/" + path, { credentials: "same-origin", ...options });
    const said = await answer.json().catch(() => ({}));
    if (answer.status === 401 && path !== "login") logIn();
    if (!answer.ok) throw new Error(said.error || "the relay does not answer");
    return said;
  }

  function say(text, wrong) {
    $("message").textContent = text;
    $("message").classList.toggle("wrong", Boolean(wrong));
  }

  function trying(work) {
    return async (event) => {
      if (event) event.preventDefault();
      try { say(""); await work(event); } catch (problem) { say(problem.message, true); }
    };
  }

  function logIn() {
    clearTimeout(timer);
    state = null;
    $("main").hidden = $("who").hidden = true;
    $("login").hidden = false;
    $("token").focus();
  }

  $("login").addEventListener("submit", trying(async () => {
    await ask("login", { token: $("token").value.trim() });
    $("token").value = "";
    await begin();
  }));
  $("logout").addEventListener("click", trying(async () => { await ask("logout", {}); location.reload(); }));

  // ---- the map ----------------------------------------------------------------------------------------------------

  let map = null, drawn = null;
  const layers = {};

  function makeMap() {
    map = L.map("map", { preferCanvas: true, zoomSnap: 0.25 });
    map.attributionControl.setPrefix("Leaflet");
    L.control.scale({ imperial: false }).addTo(map);
    if (state.tiles.url) L.tileLayer(state.tiles.url, { attribution: escaped(state.tiles.attribution), maxZoom: 19 }).addTo(map);
    L.rectangle(state.bounds, { color: "#8b97a3", weight: 1, dashArray: "4 4", fill: !state.tiles.url, fillColor: "#fff", fillOpacity: 0.7, interactive: false, pmIgnore: true }).addTo(map);
    for (const name of ["joined", "exposed", "trail", "now"]) layers[name] = L.layerGroup([], { pmIgnore: true }).addTo(map);
    drawn = L.featureGroup().addTo(map);
    map.pm.setGlobalOptions({ layerGroup: drawn, pathOptions: { color: COLOUR.zone, fillOpacity: 0.15 }, allowSelfIntersection: false });
    map.pm.addControls({
      position: "topright", drawMarker: false, drawCircleMarker: false, drawCircle: false, drawPolyline: false, drawText: false,
      rotateMode: false, cutPolygon: false,
    });
    const cross = L.DomUtil.create("div", "cross", map.getContainer());
    cross.setAttribute("aria-hidden", "true");
    map.fitBounds(state.bounds, { animate: false });
    map.on("pm:create", ({ layer }) => { addZone(layer); changed(); });
    map.on("pm:remove", changed);
    new ResizeObserver(() => map.invalidateSize()).observe($("map"));
  }

  function escaped(text) {
    const box = document.createElement("div");
    box.textContent = text;
    return box.innerHTML;
  }

  // ---- what recipients believe ------------------------------------------------------------------------------------

  const metres = (m) => m === null || m === undefined ? "–"
    : m >= 10000 ? `${(m / 1000).toFixed(1)} km` : `${Math.round(m).toLocaleString("en")} m`;
  const local = (text) => new Date(text).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
  const median = (numbers) => [...numbers].sort((a, b) => a - b)[Math.floor((numbers.length - 1) / 2)];

  async function readTrail() {
    const tier = $("tier").value;
    let last = -1;
    while (next !== last) {
      last = next;
      const said = await ask(`trail?epsilon=${encodeURIComponent(tier)}&from=${next}`);
      if (tier !== $("tier").value) return;
      trail.push(...said.places);
      next = said.next;
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
    facts($("learned"), at ? [
      [shown === null ? "Last release" : "Release", local(at.time)],
      ["Believed at", `${at.latitude.toFixed(4)}, ${at.longitude.toFixed(4)}`],
      ["Expected to be off by", metres(at.radius_m) + (at.prediction ? " (a prediction)" : "")],
      ...(at.certainty === undefined ? [] : [
        ["Best guess off by", metres(at.guess_off_m)],
        ["Surest place", `${(100 * at.certainty).toFixed(1)} %`]]),
      ["In these days, median", metres(median(trail.map((one) => one.radius_m)))],
      ["at the least", metres(Math.min(...trail.map((one) => one.radius_m)))],
    ] : [["", "Nothing was released yet."]]);
    $("moment-time").textContent = at ? local(at.time) : "–";
    const rows = trail.slice(-MOST_ROWS).reverse().map((one) => {
      const row = document.createElement("tr");
      for (const text of [local(one.time), `${one.latitude.toFixed(4)}, ${one.longitude.toFixed(4)}`, metres(one.radius_m)]) {
        row.appendChild(document.createElement("td")).textContent = text;
      }
      return row;
    });
    $("last").tBodies[0].replaceChildren(...rows);
    if (!at) return;
    const places = trail.map((one) => [one.latitude, one.longitude]);
    L.polyline(places, { color: COLOUR.believed, weight: 1, opacity: 0.25, interactive: false, pmIgnore: true }).addTo(layers.trail);
    places.forEach((place, k) => L.circleMarker(place, {
      radius: 2.5, stroke: false, fillColor: COLOUR.believed, fillOpacity: 0.15 + 0.45 * (k + 1) / places.length, interactive: false, pmIgnore: true,
    }).addTo(layers.trail));
    const here = [at.latitude, at.longitude];
    L.circle(here, { radius: at.radius_m, color: COLOUR.believed, weight: 2, fillOpacity: 0.1, interactive: false, pmIgnore: true }).addTo(layers.now);
    L.circleMarker(here, { radius: 6, color: "#fff", weight: 2, fillColor: COLOUR.believed, fillOpacity: 1, interactive: false, pmIgnore: true }).addTo(layers.now);
  }

  $("moment").addEventListener("input", () => { shown = Number($("moment").value); showTrail(); });
  $("tier").addEventListener("change", trying(async () => { trail = []; next = 0; shown = null; await readTrail(); }));

  // ---- what it cost, recipients -------------------------------------------------------------------------------------

  function facts(list, pairs) {
    list.replaceChildren(...pairs.flatMap(([name, value]) => {
      const term = document.createElement("dt"), said = document.createElement("dd");
      term.textContent = name;
      said.textContent = value;
      return [term, said];
    }));
  }

  function showState() {
    const b = state.budget, number = (x) => Number(x.toFixed(4)).toLocaleString("en");
    $("user").textContent = state.user;
    facts($("budget"), [
      ["Releases", state.count.toLocaleString("en")],
      ["Each costs at most", `ε ${number(b.epsilon)}`],
      ["Sum of ε", number(b.spent)],
      ["Within the last day", number(b.spent_last_day)],
      ["Left in all", b.limit === null ? "no limit" : `${number(b.left)} of ${number(b.limit)}`],
      ["Left now", b.window_limit === null ? "no limit for a window of time"
        : `${number(b.window_left)} of ${number(b.window_limit)} in any ${number(b.window_hours)} hours`],
    ]);
    $("recipients").replaceChildren(...state.recipients.map((one) => {
      const item = document.createElement("li"), text = document.createElement("span"), more = document.createElement("small");
      const button = document.createElement("button");
      text.className = "grow";
      text.textContent = one.name;
      const whole = one.tells === "true places";
      const what = whole ? "YOUR TRUE PLACES, unprotected" : one.tells === "zone" ? "the zone's name alone"
        : one.epsilon === null ? "the releases themselves" : `coarser: ε ${one.epsilon}`;
      more.classList.toggle("bad", whole);
      more.textContent = [one.kind, what,
        one.paused ? "paused" : whole ? "" : one.waiting ? `${one.waiting} not told yet` : "told of all"].filter(Boolean).join(" · ");
      text.append(more);
      button.type = "button";
      button.textContent = one.paused ? "Go on" : "Pause";
      button.setAttribute("aria-label", `${button.textContent}: ${one.name}`);
      button.disabled = one.paused_by_file;
      button.addEventListener("click", trying(async () => {
        await ask("pause", { recipient: one.name, paused: !one.paused });
        await look();
      }));
      item.append(text, button);
      return item;
    }));
    if (!state.recipients.length) $("recipients").textContent = "Nobody.";
    const tiers = new Map([["", []]]);
    for (const one of state.recipients.filter((one) => one.tells === "place")) {
      const key = one.epsilon === null ? "" : one.key;
      tiers.set(key, [...(tiers.get(key) || []), one.name]);
    }
    const options = [...tiers].map(([key, names]) => {
      const name = names.join(", ") || "readers of the releases themselves";
      return new Option(key ? `${name} (ε ${key})` : name, key);
    });
    const same = [...$("tier").options].map((o) => o.text).join("\n") === options.map((o) => o.text).join("\n");
    if (!same) {
      const chosen = $("tier").value;
      $("tier").replaceChildren(...options);
      if (tiers.has(chosen)) $("tier").value = chosen;
    }
  }

  // ---- zones ----------------------------------------------------------------------------------------------------------

  let corners = []; // of a zone that is drawn with the keyboard
  let sketch = null;

  function zonesNow() {
    const features = drawn.getLayers().map((layer) => {
      const feature = layer.toGeoJSON(6);
      return { type: "Feature", properties: { name: layer.zone }, geometry: feature.geometry };
    });
    return { zones: { type: "FeatureCollection", features }, buffer_m: Number($("buffer").value) || 0, elsewhere: $("elsewhere").value };
  }

  function addZone(layer, name) {
    const taken = new Set(drawn.getLayers().map((one) => one.zone));
    let number = 1;
    while (taken.has(`zone ${number}`)) number += 1;
    layer.zone = name || `zone ${number}`;
    layer.setStyle({ color: COLOUR.zone, fillOpacity: 0.15 });
    if (!drawn.hasLayer(layer)) drawn.addLayer(layer);
    layer.on("pm:edit pm:dragend pm:markerdragend", changed);
    listZones();
  }

  function listZones() {
    $("zones").replaceChildren(...drawn.getLayers().map((layer) => {
      const item = document.createElement("li"), name = document.createElement("input"), go = document.createElement("button"), drop = document.createElement("button");
      name.value = layer.zone;
      name.maxLength = 80;
      name.setAttribute("aria-label", "Name of the zone");
      name.addEventListener("change", () => { layer.zone = name.value.trim() || layer.zone; changed(); });
      go.type = drop.type = "button";
      go.textContent = "Show";
      go.setAttribute("aria-label", `Show ${layer.zone}`);
      go.addEventListener("click", () => map.fitBounds(layer.getBounds(), { maxZoom: 16 }));
      drop.textContent = "Remove";
      drop.setAttribute("aria-label", `Remove ${layer.zone}`);
      drop.addEventListener("click", () => { drawn.removeLayer(layer); changed(); });
      item.append(name, go, drop);
      return item;
    }));
    if (!drawn.getLayers().length) $("zones").textContent = "None.";
  }

  function readZones(said) {
    const found = L.geoJSON(said.zones).getLayers().filter((layer) => layer.feature.geometry.type === "Polygon" || layer.feature.geometry.type === "MultiPolygon");
    drawn.clearLayers();
    for (const layer of found) {
      const properties = layer.feature.properties || {};
      addZone(layer, String(properties.name || properties.category || "").trim());
    }
    listZones();
    return found.length;
  }

  function showInForce() {
    readZones(state.zones);
    $("buffer").value = state.zones.buffer_m;
    const policy = $("elsewhere").options[0];
    policy.textContent = state.elsewhere ? `as the relay has it: ${state.elsewhere}` : "nothing (the relay names zones alone)";
    policy.disabled = !state.elsewhere;
    $("elsewhere").value = state.zones.elsewhere;
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

  async function showPrice() {
    const number = ++asked, now = JSON.stringify(zonesNow());
    let said = null, problem = "";
    try { said = await ask("price", zonesNow()); } catch (found) { problem = found.message; }
    if (number !== asked) return; // something else was drawn since
    layers.exposed.clearLayers();
    layers.joined.clearLayers();
    if (problem) {
      $("price").replaceChildren(Object.assign(document.createElement("p"), { className: "bad", textContent: problem }));
      $("save").disabled = true;
      return;
    }
    if (now === inForce) priceInForce = said;
    const before = now !== inForce && priceInForce ? ` (now ${metres(priceInForce.error_m)})` : "";
    const list = document.createElement("dl");
    facts(list, [
      ["A release is off by", metres(said.error_m) + before],
      ...said.zones.map((zone) => [`in ${zone.name}`, `${metres(zone.error_m)}, ${zone.places} places`]),
      ...(said.zones.length && said.error_m_elsewhere !== null ? [["elsewhere", metres(said.error_m_elsewhere)]] : []),
      ["Released exactly", `${said.exact_count} of ${said.places} places`],
      ["Exposed without repair", String(said.exposed_count)],
      ["The repair joins", said.added_count ? `${said.added_count} pairs` : "nothing"],
    ]);
    $("price").replaceChildren(list);
    for (const place of said.exposed) L.circleMarker(place, { radius: 4, stroke: false, fillColor: COLOUR.exposed, fillOpacity: 0.8, interactive: false, pmIgnore: true }).addTo(layers.exposed);
    for (const pair of said.added) L.polyline(pair, { color: COLOUR.joined, weight: 2, interactive: false, pmIgnore: true }).addTo(layers.joined);
  }

  function drawSketch() {
    if (sketch) map.removeLayer(sketch);
    sketch = corners.length ? L.featureGroup([
      L.polyline(corners, { color: COLOUR.zone, dashArray: "5 5", pmIgnore: true }),
      ...corners.map((corner) => L.circleMarker(corner, { radius: 4, color: COLOUR.zone, fillOpacity: 1, pmIgnore: true })),
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
  $("buffer").addEventListener("input", changed);
  $("elsewhere").addEventListener("change", changed);
  $("revert").addEventListener("click", showInForce);
  $("save").addEventListener("click", trying(async () => {
    await ask("zones", zonesNow());
    await look();
    showInForce();
    say("These zones hold from the next release on.");
  }));
  $("export").addEventListener("click", () => {
    const text = JSON.stringify(zonesNow().zones, null, 1);
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "application/geo+json" }));
    link.download = "zones.geojson";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
  $("import").addEventListener("change", trying(async () => {
    const [file] = $("import").files;
    $("import").value = "";
    if (!file) return;
    let said = null;
    try { said = JSON.parse(await file.text()); } catch { throw new Error("the file is no GeoJSON"); }
    if (!said || said.type !== "FeatureCollection") throw new Error("the file is no GeoJSON feature collection");
    if (!readZones({ zones: said })) throw new Error("the file has no polygon");
    changed();
  }));

  // ---- over and over --------------------------------------------------------------------------------------------------

  async function look() {
    state = { ...(state || {}), ...(await ask("state")) };
    showState();
    if (state.count !== next || !trail.length) await readTrail();
  }

  async function again() {
    try { await look(); if ($("message").textContent === "the relay cannot be reached") say(""); } catch (problem) {
      if (state) say(problem instanceof TypeError ? "the relay cannot be reached" : problem.message, true);
    }
    if (state) timer = setTimeout(again, LOOK_AGAIN_MS);
  }

  async function begin() {
    state = await ask("state");
    if (state.user === null) { logIn(); return; }
    $("login").hidden = true;
    $("main").hidden = $("who").hidden = false;
    if (!map) makeMap();
    showState();
    showInForce();
    await readTrail();
    clearTimeout(timer);
    timer = setTimeout(again, LOOK_AGAIN_MS);
  }

  begin().catch((problem) => { if (state) say(problem.message, true); });
})();
