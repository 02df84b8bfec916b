// Edges of a policy that are added or removed by choosing two states, with the mouse, a finger or the keyboard.
import { STATIC_LAYER } from "./plots/basemap.js";
import { translate } from "./words.js";

const ADDED = { color: "#1b7a4b", weight: 3 }, REMOVED = { color: "#555555", weight: 2, dashArray: "2 6" };

export function makeEdgeEditor({ part, layer, scene, makeButton, toggle, showProblem }) {
  let first = -1;
  const isActive = () => part("edit-edges").getAttribute("aria-pressed") === "true";
  const describe = (edge) => edge.map((state) => scene.names[state]).join(" – ");

  function showHint() {
    part("edges-hint").textContent = !isActive() ? "" : first < 0 ? translate("edge_first") : translate("edge_second", { name: scene.names[first] });
  }

  async function choose(state) {
    if (!isActive() || state < 0) return;
    const edge = first < 0 || first === state ? null : [first, state];
    first = edge || first === state ? -1 : state;
    showHint();
    if (edge) await toggle(edge);
  }

  function show({ added, removed }) {
    layer.clearLayers();
    const rows = [["edge_added", added, ADDED], ["edge_removed", removed, REMOVED]].flatMap(([key, edges, style]) => edges.map((edge) => {
      L.polyline(edge.map((state) => scene.states[state]), { ...style, ...STATIC_LAYER }).addTo(layer);
      const row = document.createElement("li"), text = translate(key, { edge: describe(edge) });
      row.append(text, makeButton(translate("edge_revert"), translate("edge_revert_named", { edge: describe(edge) }), () => {
        part("edit-edges").focus(); // the button of this row disappears
        return toggle(edge);
      }));
      return row;
    }));
    part("edited").replaceChildren(...rows);
  }

  part("edit-edges").addEventListener("click", () => {
    part("edit-edges").setAttribute("aria-pressed", String(!isActive()));
    first = -1;
    showHint();
  });
  return { choose: (state) => choose(state).catch(showProblem), show };
}
