// The page of a link: what its recipient is sent, until the link expires.
import { COLOUR, makeMap, showLocation, describeTime } from "./map.js";
import { formatError, translate, formatTime, describeLocation } from "./words.js";

const $ = (id) => document.getElementById(id), POLL_INTERVAL_MS = 5000;
const headers = { Authorization: "Bearer " + location.hash.slice(1) };
let map = null, layer = null;

async function request(path) {
  const answer = await fetch("link/" + path, { headers, cache: "no-store" });
  if (answer.status === 404) return null;
  if (!answer.ok) throw new Error(translate("no_answer"));
  return answer.json();
}

async function refresh() {
  const trail = await request("trail");
  if (trail === null) {
    $("message").textContent = translate("link_expired");
    $("where").textContent = $("ends").textContent = "";
    $("map").hidden = true;
    return false;
  }
  $("name").textContent = document.title = translate("link_where", { user: trail.user });
  $("ends").textContent = translate("link_until", { time: formatTime(trail.ends) });
  if (!map) {
    $("map").hidden = false;
    map = makeMap(trail.bounds, trail.tiles, trail.tiles.url ? null : await request("basemap"));
    layer = L.layerGroup().addTo(map);
  }
  layer.clearLayers();
  const last = trail.last;
  $("where").textContent = !last ? translate("link_nothing") : translate(last.prediction ? "link_prediction" : "link_estimate", {
    user: trail.user, where: describeLocation(last.inference), error: formatError(last), time: describeTime(last),
  });
  for (const { latitude, longitude } of trail.locations) L.circleMarker([latitude, longitude], { radius: 2.5, stroke: false, fillColor: COLOUR.estimate, fillOpacity: 0.4, interactive: false }).addTo(layer);
  if (last) showLocation(map, layer, last, `${trail.user}, ${describeTime(last)}`);
  $("message").textContent = "";
  return true;
}

async function poll() {
  let isOpen = true;
  try { isOpen = await refresh(); } catch { $("message").textContent = translate("no_relay"); }
  if (isOpen) setTimeout(poll, POLL_INTERVAL_MS);
}

addEventListener("hashchange", () => location.reload());
poll();
