"""Settings of the page of ``dphmm explore``, as typed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dphmm.errors import ConfigurationError, DphmmError, PolicyError
from dphmm.policy.expression import edit_edges
from dphmm.policy.lengths import parse_length
from dphmm.policy.zones import PolygonLayer, read_polygons
from dphmm.release.engine import ReleaseSettings
from dphmm.release.session_zones import Zones
from dphmm.release.settings import Schedule
from dphmm.tables.json_toml import parse_json

# The fields of the page, as typed → their first values. An empty one is not set.
#
# ``edges`` is a JSON object of the lists ``added`` and ``removed`` of pairs of states, which change the policy.
# ``zones`` is a GeoJSON feature collection of polygons with the property ``name``: the layer `ZONES_LAYER`.
DEFAULT_FIELDS: Mapping[str, str] = {
    "policy": "utility:1km",
    "epsilon": "1",
    "delta": "0.01",
    "mechanism": "lattice",
    "optimal_fallback": "none",
    "noise_scope": "graph",
    "repair": "exact",
    "repair_objective": "error",
    "target_error": "",
    "window_epsilon": "",
    "edges": "",
    "zones": "",
}

# The layer of the zones drawn on the page, and the file from which command lines read them.
ZONES_LAYER = "zones.geojson"

# The maximum number of edges that are added or removed on the page.
MAX_EDITED_EDGES = 1_000


def parse_fields(values: Mapping[str, Any]) -> tuple[ReleaseSettings | None, dict[str, str]]:
    """Convert the fields of the page to settings, or describe what is wrong with each.

    Parameters
    ----------
    values
        Field of `DEFAULT_FIELDS` → its text. A missing field has its first value.

    Returns
    -------
    settings : ReleaseSettings or None
        The settings; None if a field is invalid.
    errors : dict
        Field → what is wrong with it.
    """
    texts = {**DEFAULT_FIELDS, **{name: values[name] for name in DEFAULT_FIELDS if name in values}}
    errors: dict[str, str] = {}
    settings: dict[str, Any] = {}
    for name, text in texts.items():
        if not isinstance(text, str):
            errors[name] = f"{name} must be a string, got {type(text).__name__}"
        elif text.strip() or name in ("policy", "epsilon"):
            try:
                settings[name] = _parse_field(name, text.strip())
            except DphmmError as problem:
                errors[name] = str(problem)
    if errors:
        return None, errors
    aims = {name: settings.pop(name) for name in ("target_error", "window_epsilon") if name in settings}
    edited = settings.pop("edges", EditedEdges())
    try:
        settings["policy"] = edit_edges(settings["policy"], edited.added, edited.removed)
    except DphmmError as problem:  # the text of the policy cannot be split into terms
        return None, {"policy": str(problem)}
    # A layer of which the policy does not use the name has no effect.
    zones = settings.pop("zones", None)
    layers = () if zones is None else (PolygonLayer(ZONES_LAYER, zones),)
    return ReleaseSettings.from_dict({**settings, "layers": layers, "schedule": Schedule(**aims) if aims else None}), {}


@dataclass(frozen=True)
class EditedEdges:
    """Edges that the user adds to a policy and removes from it.

    Parameters
    ----------
    added, removed
        Pairs of different states, the smaller one first. No pair is in both.
    """

    added: tuple[tuple[int, int], ...] = ()
    removed: tuple[tuple[int, int], ...] = ()

    @classmethod
    def from_text(cls, text: str) -> EditedEdges:
        """Parse the field ``edges``. No edges if it is empty.

        Raises
        ------
        ConfigurationError
            If it is not a JSON object of lists of pairs of states, or has more than `MAX_EDITED_EDGES` pairs.
        """
        try:
            data: Any = parse_json(text) if text.strip() else {}
        except ValueError:
            data = None
        lists: list[Any] = [data.get(name, []) if isinstance(data, dict) else None for name in ("added", "removed")]
        if not all(isinstance(pairs, list) and all(map(_is_pair, pairs)) for pairs in lists):
            raise ConfigurationError("edges must be a JSON object with lists of pairs of states, added and removed")
        if sum(map(len, lists)) > MAX_EDITED_EDGES:
            raise ConfigurationError(f"edges must be at most {MAX_EDITED_EDGES:,}, got {sum(map(len, lists)):,}")
        added, removed = ({(min(pair), max(pair)) for pair in pairs} for pairs in lists)
        return cls(tuple(sorted(added)), tuple(sorted(removed - added)))

    def to_text(self) -> str:
        """Return the text that `from_text` parses. Empty without edges."""
        return json.dumps({"added": self.added, "removed": self.removed}) if self.added or self.removed else ""

    def toggle(self, edge: tuple[int, int], is_edge: bool) -> EditedEdges:
        """Return the edges after one more change.

        Parameters
        ----------
        edge
            Two different states.
        is_edge
            Whether the policy with these edges connects them.
        """
        pair = (min(edge), max(edge))
        added, removed = set(self.added) - {pair}, set(self.removed) - {pair}
        if pair not in {*self.added, *self.removed}:
            (removed if is_edge else added).add(pair)
        return EditedEdges(tuple(sorted(added)), tuple(sorted(removed)))


def _is_pair(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(type(state) is int and state >= 0 for state in value)
        and value[0] != value[1]
    )


def _parse_field(name: str, text: str) -> Any:
    """Return the value of a field, which is valid by itself."""
    value: Any = text
    if name in ("epsilon", "delta", "window_epsilon"):
        try:
            value = float(text)
        except ValueError:
            raise ConfigurationError(f"{name} must be a number, got {text[:40]!r}") from None
    if name == "target_error":
        try:
            value = parse_length(text)
        except PolicyError:
            raise ConfigurationError(
                f"target_error must be a length with its unit, such as 500m or 1.2km, got {text[:40]!r}"
            ) from None
    if name == "edges":
        return EditedEdges.from_text(text)
    if name == "zones":
        try:
            layer = Zones.from_page({"zones": parse_json(text)}).layer
            read_polygons(PolygonLayer(ZONES_LAYER, layer))
        except ValueError as problem:
            raise ConfigurationError(str(problem).removeprefix(f"{ZONES_LAYER}: ")) from None
        return layer
    if name in ("target_error", "window_epsilon"):
        Schedule(**{name: value})
    else:
        ReleaseSettings.from_dict({name: value})
    return value
