// Zones that are drawn on the map and used by the policy as a layer.
import { makeDrawing, outlineCircle } from "./drawing.js";
import { STATIC_LAYER } from "./plots/basemap.js";
import { translate } from "./words.js";

const MIN_RADIUS_M = 1, MAX_RADIUS_M = 100000;
const LAYER = "zones.geojson", TERM = " | zone:" + LAYER;

export function makeZoneEditor({ map, meridian, part, input, labels, makeButton, apply }) {
  const parts = { zones: part("zones"), corners: part("corners"), corner: part("corner"), undo: part("corner-undo"), close: part("corner-close"), focus: part("circle") };
  const drawing = makeDrawing({ map, parts, makeButton, changed, meridian, hasCircles: true });
  let shown = ""; // the field's value that the map shows

  function changed() {
    const collection = drawing.collect(), policy = input("policy");
    shown = input("zones").value = collection.features.length ? JSON.stringify(collection) : "";
    // The first zone becomes a term of the policy, and the last one takes its term away.
    if (shown && !policy.value.includes(LAYER)) policy.value += TERM;
    if (!shown && policy.value.endsWith(TERM)) policy.value = policy.value.slice(0, -TERM.length);
    list();
    apply();
  }

  function list() {
    drawing.list();
    part("zones-button").disabled = !shown;
    labels.clearLayers();
    for (const layer of drawing.drawn.getLayers()) {
      const text = document.createElement("span");
      text.textContent = layer.zone;
      L.marker(layer.getBounds().getCenter(), { icon: L.divIcon({ className: "name large", html: text, iconSize: null }), keyboard: false, ...STATIC_LAYER }).addTo(labels);
    }
  }

  function show() {
    // Zones of a link, or before Undo. The others are on the map already, perhaps while one of them is edited.
    if (input("zones").value !== shown) {
      shown = input("zones").value;
      drawing.read(shown ? JSON.parse(shown) : { type: "FeatureCollection", features: [] });
      if (shown) part("zone-part").open = true;
    }
    list();
    drawing.drawn.bringToFront();
  }

  function showRadiusProblem(text) {
    const field = part("radius"), id = `problem-${field.id}`;
    for (const old of field.parentElement.querySelectorAll(".problem")) old.remove();
    field.toggleAttribute("aria-invalid", false);
    field.removeAttribute("aria-describedby");
    if (!text) return;
    field.setAttribute("aria-invalid", "true");
    field.setAttribute("aria-describedby", id);
    field.after(Object.assign(document.createElement("span"), { textContent: text, className: "problem", id }));
  }

  part("radius").addEventListener("input", () => showRadiusProblem(""));
  part("circle").addEventListener("click", () => {
    const radius = part("radius").valueAsNumber, isValid = radius >= MIN_RADIUS_M && radius <= MAX_RADIUS_M;
    showRadiusProblem(isValid ? "" : translate("circle_radius_invalid"));
    if (!isValid) { part("radius").focus(); return; }
    drawing.addZone(L.polygon(outlineCircle(map.getCenter(), radius)));
    changed();
  });
  part("zone-part").addEventListener("toggle", () => map.getContainer().classList.toggle("crossed", part("zone-part").open));
  return { show, isDrawing: () => map.pm.globalDrawModeEnabled() || map.pm.globalEditModeEnabled() || map.pm.globalDragModeEnabled() || map.pm.globalRemovalModeEnabled() };
}
