// The map of a page: locations on it and their labels.
import { STATIC_LAYER, drawBasemap } from "./plots/basemap.js";
import { translate, formatTime } from "./words.js";

export const COLOUR = { estimate: "#1f5fbf", zone: "#2f7d4f", exposed: "#c0392b", addedEdge: "#b26a00" };

export function makeMap(bounds, tiles, basemap, container = "map") {
  const map = L.map(container, { preferCanvas: true, zoomSnap: 0.25, zoomControl: false });
  L.control.zoom({ zoomInTitle: translate("zoom_in"), zoomOutTitle: translate("zoom_out") }).addTo(map);
  map.attributionControl.setPrefix("Leaflet");
  L.control.scale({ imperial: false }).addTo(map);
  map.fitBounds(bounds, { animate: false });
  if (tiles.url) {
    const box = document.createElement("div");
    box.textContent = tiles.attribution;
    L.tileLayer(tiles.url, { attribution: box.innerHTML, maxZoom: 19 }).addTo(map);
  } else drawBasemap(map, basemap, bounds);
  map.on("moveend zoomend resize", () => separateLabels(map));
  L.rectangle(bounds, { color: "#8b97a3", weight: 1, dashArray: "4 4", fill: false, ...STATIC_LAYER }).addTo(map);
  const observer = new ResizeObserver(() => map.invalidateSize());
  observer.observe(map.getContainer());
  map.on("unload", () => observer.disconnect());
  return map;
}

export function showLocation(map, layer, location, label, colour = COLOUR.estimate) {
  // A location with the circle of its expected error and a label (user or time).
  const point = [location.latitude, location.longitude];
  L.circle(point, { radius: location.error_m, color: colour, weight: 2, fillOpacity: 0.1, dashArray: location.prediction ? "6 6" : null, ...STATIC_LAYER }).addTo(layer);
  L.circleMarker(point, { radius: 7, color: "#fff", weight: 2, fillColor: colour, fillOpacity: location.prediction ? 0.5 : 1, ...STATIC_LAYER }).addTo(layer);
  const text = document.createElement("span"), right = map.latLngToContainerPoint(point).x > 0.6 * map.getSize().x;
  text.textContent = label;
  L.marker(point, { icon: L.divIcon({ className: right ? "name user leftwards" : "name user", html: text, iconSize: null, iconAnchor: [-10, 10] }), keyboard: false, ...STATIC_LAYER }).addTo(layer);
  separateLabels(map);
}

function measureLabel(label) {
  // The rectangle of a label in the pane. While the map zooms, markers are between two positions; the later one counts.
  const marker = label.parentElement, at = L.DomUtil.getPosition(marker), outer = marker.getBoundingClientRect(), inner = label.getBoundingClientRect();
  const left = at.x + marker.offsetLeft + inner.left - outer.left, top = at.y + marker.offsetTop + inner.top - outer.top;
  return { left, top, right: left + inner.width, bottom: top + inner.height };
}

function separateLabels(map) {
  // Move labels of users down until none overlaps another, and hide the names of places beneath them.
  const pane = map.getPane("markerPane"), labels = [...pane.querySelectorAll(".name.user > span")], taken = [];
  const isTaken = (box) => taken.find((other) => other.left < box.right && other.right > box.left && other.top < box.bottom && other.bottom > box.top);
  for (const label of labels) label.style.top = "0";
  const boxes = labels.map((label) => [label, measureLabel(label)]).sort((one, other) => one[1].top - other[1].top);
  for (const [label, box] of boxes) {
    const { top } = box;
    for (let other = isTaken(box); other; other = isTaken(box)) {
      box.bottom += other.bottom - box.top;
      box.top = other.bottom;
    }
    label.style.top = `${box.top - top}px`;
    taken.push(box);
  }
  for (const name of pane.querySelectorAll(".name:not(.user) > span")) name.style.visibility = isTaken(measureLabel(name)) ? "hidden" : "";
}

export function describeTime(location) {
  if (!location.prediction) return formatTime(location.time);
  return translate(location.last_known ? "last_known" : "model_only", { time: formatTime(location.last_known) });
}
