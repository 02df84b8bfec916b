// The page of a link: what its one reader was told, until it ends.
import { COLOUR, makeMap, showPlace, lastKnown } from "./map.js";
import { metres, say, when, whereOf } from "./words.js";

const $ = (id) => document.getElementById(id), LOOK_AGAIN_MS = 5000;
const headers = { Authorization: "Bearer " + location.hash.slice(1) };
let map = null, layer = null;

async function ask(path) {
  const answer = await fetch("link/" + path, { headers, cache: "no-store" });
  if (answer.status === 404) return null;
  if (!answer.ok) throw new Error(say("no_answer"));
  return answer.json();
}

async function look() {
  const told = await ask("told");
  if (told === null) {
    $("message").textContent = say("link_over");
    $("where").textContent = $("ends").textContent = "";
    $("map").hidden = true;
    return false;
  }
  $("name").textContent = document.title = say("link_where", { user: told.user });
  $("ends").textContent = say("link_until", { time: when(told.ends) });
  if (!map) {
    $("map").hidden = false;
    map = makeMap(told.bounds, told.tiles, told.tiles.url ? null : await ask("ground"));
    layer = L.layerGroup().addTo(map);
  }
  layer.clearLayers();
  const last = told.last;
  $("where").textContent = !last ? say("link_nothing") : say(last.prediction ? "link_guess" : "link_here", {
    user: told.user, where: whereOf(last.can_tell), off: metres(last.radius_m), time: lastKnown(last),
  });
  for (const { latitude, longitude } of told.places) L.circleMarker([latitude, longitude], { radius: 2.5, stroke: false, fillColor: COLOUR.believed, fillOpacity: 0.4, interactive: false }).addTo(layer);
  if (last) showPlace(map, layer, last, `${told.user}, ${lastKnown(last)}`);
  $("message").textContent = "";
  return true;
}

async function again() {
  let goes = true;
  try { goes = await look(); } catch { $("message").textContent = say("no_relay"); }
  if (goes) setTimeout(again, LOOK_AGAIN_MS);
}

addEventListener("hashchange", () => location.reload());
again();
