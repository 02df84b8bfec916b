// Zones on a map: drawn with the mouse, a finger or the keyboard, named and listed. Both pages use it.
import { COLOUR } from "./map.js";
import { KM_PER_DEGREE, STATIC_LAYER } from "./plots/basemap.js";
import { language, translate } from "./words.js";

const NUM_CORNERS = 24, MAX_NAME_LENGTH = 80;

export function outlineCircle(centre, radius) {
  // The corners of a polygon that approximates a circle with a radius in metres.
  const up = 1 / (1000 * KM_PER_DEGREE), right = up / Math.cos(centre.lat * Math.PI / 180);
  return Array.from({ length: NUM_CORNERS }, (_, k) => [
    centre.lat + radius * Math.sin(2 * Math.PI * k / NUM_CORNERS) * up, centre.lng + radius * Math.cos(2 * Math.PI * k / NUM_CORNERS) * right]);
}

// parts: elements of the page: the list of zones, a <details> with the keyboard's buttons, and what has the focus after a removal.
function clip(ring, limit, side) {
  // The part of a ring west of a meridian (side 1) or east of it (side -1).
  return ring.flatMap((corner, k) => {
    const before = ring.at(k - 1), isInside = side * corner[0] <= side * limit, wasInside = side * before[0] <= side * limit;
    if (isInside === wasInside) return isInside ? [corner] : [];
    const latitude = before[1] + (corner[1] - before[1]) * (limit - before[0]) / (corner[0] - before[0]);
    return [[limit, Number(latitude.toFixed(6))], ...(isInside ? [corner] : [])];
  });
}

function splitAtDateLine(geometry) {
  // A map across the date line has longitudes beyond 180°. In GeoJSON, a polygon there has a part on each side.
  if (!geometry.coordinates.flat(geometry.type === "Polygon" ? 1 : 2).some(([longitude]) => Math.abs(longitude) > 180)) return geometry;
  const polygons = geometry.type === "Polygon" ? [geometry.coordinates] : geometry.coordinates;
  const parts = [-360, 0, 360].flatMap((turn) => polygons.map((rings) => rings
    .map((ring) => clip(clip(ring.slice(0, -1), turn - 180, -1), turn + 180, 1)).filter((ring) => ring.length > 2)
    .map((ring) => [...ring, ring[0]].map(([longitude, latitude]) => [Number((longitude - turn).toFixed(6)), latitude]))));
  return { type: "MultiPolygon", coordinates: parts.filter((rings) => rings.length) };
}

// meridian: the longitude of the middle of the region; a polygon that is read is shown near it.
export function makeDrawing({ map, parts, makeButton, changed, hasCircles = false, meridian = 0 }) {
  const drawn = L.featureGroup().addTo(map);
  let corners = [], sketch = null; // the zone being drawn with the keyboard
  let listed = []; // the zones in the list, with their names

  map.pm.setLang(language);
  map.pm.setGlobalOptions({ layerGroup: drawn, pathOptions: { color: COLOUR.zone, fillOpacity: 0.15 }, allowSelfIntersection: false });
  map.pm.addControls({
    position: "topright", drawMarker: false, drawCircleMarker: false, drawCircle: hasCircles, drawPolyline: false, drawText: false,
    rotateMode: false, cutPolygon: false,
  });
  for (const button of map.getContainer().querySelectorAll(".button-container[title] > a")) button.setAttribute("aria-label", button.parentElement.title);
  const cross = L.DomUtil.create("div", "cross", map.getContainer());
  cross.setAttribute("aria-hidden", "true");
  map.on("pm:create", ({ layer }) => {
    if (layer instanceof L.Circle) {
      drawn.removeLayer(layer);
      layer.remove();
      addZone(L.polygon(outlineCircle(layer.getLatLng(), layer.getRadius())));
    } else addZone(layer);
    changed();
  });
  map.on("pm:remove", changed);

  function collect() {
    const features = drawn.getLayers().map((layer) => {
      const feature = layer.toGeoJSON(6);
      return { type: "Feature", properties: { name: layer.zone }, geometry: splitAtDateLine(feature.geometry) };
    });
    return { type: "FeatureCollection", features };
  }

  function addZone(layer, name) {
    const taken = new Set(drawn.getLayers().map((layer) => layer.zone));
    let index = 1;
    while (taken.has(translate("zone_numbered", { number: index }))) index += 1;
    layer.zone = name && !taken.has(name) ? name : translate("zone_numbered", { number: index });
    layer.setStyle({ color: COLOUR.zone, fillOpacity: 0.15 });
    if (!drawn.hasLayer(layer)) drawn.addLayer(layer);
    layer.on("pm:edit pm:dragend pm:markerdragend", changed);
    return layer;
  }

  function list() {
    const zoneLayers = drawn.getLayers();
    const isSame = zoneLayers.length && zoneLayers.length === listed.length && zoneLayers.every((layer, k) => layer === listed[k].layer && layer.zone === listed[k].name);
    if (isSame) return; // keeps the focus
    listed = zoneLayers.map((layer) => ({ layer, name: layer.zone }));
    parts.zones.replaceChildren(...zoneLayers.map((layer) => {
      const item = document.createElement("li"), name = document.createElement("input");
      name.value = layer.zone;
      name.maxLength = MAX_NAME_LENGTH;
      name.setAttribute("aria-label", translate("zone_name"));
      name.addEventListener("change", () => { layer.zone = name.value.trim() || layer.zone; changed(); });
      item.append(name, makeButton(translate("show"), translate("show_named", { name: layer.zone }), async () => map.fitBounds(layer.getBounds(), { maxZoom: 16 })),
        makeButton(translate("remove"), translate("remove_named", { name: layer.zone }), async () => { drawn.removeLayer(layer); parts.focus.focus(); changed(); }));
      return item;
    }));
    if (!zoneLayers.length) parts.zones.replaceChildren(Object.assign(document.createElement("li"), { textContent: translate("no_zones") }));
  }

  function read(collection) {
    const coordsToLatLng = ([longitude, latitude]) => L.latLng(latitude, Math.abs(longitude - meridian) > 180 ? longitude - 360 * Math.sign(longitude - meridian) : longitude);
    const polygons = L.geoJSON(collection, { coordsToLatLng }).getLayers().filter((layer) => ["Polygon", "MultiPolygon"].includes(layer.feature.geometry.type));
    drawn.clearLayers();
    for (const layer of polygons) {
      const properties = layer.feature.properties || {};
      addZone(layer, String(properties.name || properties.category || "").trim());
    }
    return polygons.length;
  }

  // ---- corner by corner ---------------------------------------------------------------------------------------------

  function drawSketch() {
    if (sketch) map.removeLayer(sketch);
    sketch = corners.length ? L.featureGroup([
      L.polyline(corners, { color: COLOUR.zone, dashArray: "5 5", ...STATIC_LAYER }),
      ...corners.map((corner) => L.circleMarker(corner, { radius: 4, color: COLOUR.zone, fillOpacity: 1, ...STATIC_LAYER })),
    ]).addTo(map) : null;
    parts.undo.disabled = !corners.length;
    parts.close.disabled = corners.length < 3;
  }

  parts.corner.addEventListener("click", () => { corners.push(map.getCenter()); drawSketch(); });
  parts.undo.addEventListener("click", () => { corners.pop(); drawSketch(); });
  parts.close.addEventListener("click", () => {
    addZone(L.polygon(corners));
    corners = [];
    drawSketch();
    changed();
  });
  return { drawn, addZone, collect, list, read };
}
