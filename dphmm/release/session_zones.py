"""Zones that a user draws: policies of polygons that are stored with a session.

A session is agreed with the zones as its note. Its settings contain the zones as a layer with a name.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, Literal, get_args

import shapely

from dphmm.errors import ConfigurationError
from dphmm.policy.expression import split_zones
from dphmm.policy.zones import PolygonLayer, find_layer, read_polygons
from dphmm.release.engine import ReleaseSettings
from dphmm.tables.json_toml import parse_json
from dphmm.tables.values import shorten

# The release outside the zones: under the remaining policy of the relay, or exact.
Elsewhere = Literal["policy", "exact"]

# The name that is released for a location in no zone.
OUTSIDE_ALL_ZONES = "away"

_MAX_ZONES = 50
# Corners of all zones. Each release reads the zones, so their size delays every user of a relay.
_MAX_CORNERS = 2_000
_MAX_BUFFER_M = 20_000.0
# Name of the layer of drawn zones in policies.
_LAYER_NAME = "YOURS"


@dataclass(frozen=True)
class Zones:
    """The zones that a user drew, with their options.

    Parameters
    ----------
    layer
        GeoJSON feature collection of polygons with the property ``name``, as text.
    buffer_m
        Distance in metres by which zones are widened, so that they include the locations from which they can be
        entered.
    elsewhere
        The release outside the zones.
    """

    layer: str
    buffer_m: float = 0.0
    elsewhere: Elsewhere = "policy"

    @classmethod
    def from_page(cls, data: Any) -> Zones:
        """Parse zones sent by the page: ``{"zones": FeatureCollection, "buffer_m": …, …}``.

        Raises
        ------
        ConfigurationError
            If the data are of another form.
        """
        data = data if isinstance(data, dict) else {}
        layer = data.get("zones")
        buffer_m = data.get("buffer_m", 0)
        elsewhere = data.get("elsewhere", "policy")
        features = layer.get("features") if isinstance(layer, dict) else None
        if not isinstance(features, list) or len(features) > _MAX_ZONES:
            raise ConfigurationError(f"zones must be a GeoJSON feature collection of at most {_MAX_ZONES} polygons")
        num_corners = sum(_count_corners(feature) for feature in features)
        if num_corners > _MAX_CORNERS:
            raise ConfigurationError(
                f"zones must have at most {_MAX_CORNERS:,} corners together, got {num_corners:,}; simplify them"
            )
        if isinstance(buffer_m, bool) or not isinstance(buffer_m, int | float) or not 0 <= buffer_m <= _MAX_BUFFER_M:
            raise ConfigurationError(f"buffer_m must be from 0 to {_MAX_BUFFER_M:g} metres, got {shorten(buffer_m)}")
        if elsewhere not in get_args(Elsewhere):
            options = " or ".join(get_args(Elsewhere))
            raise ConfigurationError(f"elsewhere must be {options}, got {shorten(elsewhere)}")
        collection = {"type": "FeatureCollection", "features": [_clean_feature(feature) for feature in features]}
        return cls(json.dumps(collection), float(buffer_m), elsewhere)

    @classmethod
    def from_note(cls, note: str) -> Zones | None:
        """Create zones from the text of `note`. None if it is empty."""
        return cls(**parse_json(note)) if note else None

    @property
    def note(self) -> str:
        """The zones as text, stored with the session that was agreed with them."""
        return json.dumps(asdict(self))

    def to_page(self) -> dict[str, Any]:
        """Return the zones in the form that `from_page` parses."""
        return {"zones": parse_json(self.layer), "buffer_m": self.buffer_m, "elsewhere": self.elsewhere}

    def find_zone_name(self, latitude: float, longitude: float) -> str:
        """Return the name of the zone at a location. ``"away"`` if there is none.

        The buffer does not count.
        """
        for name, polygon in _parse_polygons(self.layer):
            if shapely.intersects_xy(polygon, longitude, latitude):
                return name
        return OUTSIDE_ALL_ZONES

    @property
    def policy_layer(self) -> PolygonLayer | None:
        """The zones as a layer of a policy. None if there are none."""
        return PolygonLayer(_LAYER_NAME, self.layer) if parse_json(self.layer)["features"] else None

    def apply_to(self, base: ReleaseSettings) -> ReleaseSettings:
        """Return the relay's settings with these zones in place of the zones of its policy.

        If locations are exact elsewhere, noise is scaled to each zone separately. Otherwise a large zone would increase
        the noise of a small one.

        Parameters
        ----------
        base
            Settings of the relay.

        Raises
        ------
        ConfigurationError
            If no location would be protected.
        """
        policy = get_policy_without_zones(base)
        layer = self.policy_layer
        is_exact_elsewhere = self.elsewhere == "exact" or not policy
        if layer is None:
            if is_exact_elsewhere:
                raise ConfigurationError(
                    "without a zone no location is protected; draw a zone, or keep the policy elsewhere"
                )
            return replace(base, policy=policy)
        zone = f"zone:{_LAYER_NAME}" + (f"+{self.buffer_m:g}m" if self.buffer_m else "")
        if is_exact_elsewhere:
            return replace(base, policy=zone, layers=(layer,), noise_scope="component")
        others = tuple(other for other in base.layers if other.name != _LAYER_NAME)
        return replace(base, policy=f"{zone} | {policy}", layers=(*others, layer))


def build_default_zones(base: ReleaseSettings) -> Zones:
    """Return the zones of the relay's policy, for a user who has drawn none.

    Raises
    ------
    ConfigurationError
        If a zone has the name that means no zone.
    """
    rest, layers = split_zones(base.policy)
    features = [
        {
            "type": "Feature",
            "properties": {"name": _check_name(name)},
            "geometry": json.loads(shapely.to_geojson(shape)),
        }
        for layer in layers
        for name, polygon in read_polygons(find_layer(layer, base.layers))
        for shape in shapely.get_parts(polygon)
    ]
    layer = json.dumps({"type": "FeatureCollection", "features": features})
    return Zones(layer, 0.0, "policy" if rest else "exact")


def get_policy_without_zones(base: ReleaseSettings) -> str:
    """Return the policy of the relay without its zones."""
    return split_zones(base.policy)[0]


@lru_cache(64)
def _parse_polygons(layer: str) -> tuple[tuple[str, shapely.Geometry], ...]:
    return tuple(read_polygons(PolygonLayer(_LAYER_NAME, layer))) if parse_json(layer)["features"] else ()


def clean_zones_error(problem: Exception | str) -> str:
    """Return the text of an error without the name of the layer of drawn zones."""
    return str(problem).removeprefix(f"{_LAYER_NAME}: ")


def _count_corners(feature: Any) -> int:
    """Return the number of positions of a feature, at any depth. 0 for another value."""
    geometry = feature.get("geometry") if isinstance(feature, dict) else None
    waiting = [geometry.get("coordinates")] if isinstance(geometry, dict) else []
    count = 0
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            if value and isinstance(value[0], list):
                waiting += value
            else:
                count += 1
    return count


def _check_name(name: str) -> str:
    """Return the name of a zone unless its recipients could not distinguish it from no zone."""
    if name == OUTSIDE_ALL_ZONES:
        raise ConfigurationError(f"each zone must have another name than {OUTSIDE_ALL_ZONES!r}, which means no zone")
    return name


def _clean_feature(feature: Any) -> dict[str, Any]:
    """Return a feature with only its polygon and its name."""
    geometry = feature.get("geometry") if isinstance(feature, dict) else None
    if not isinstance(geometry, dict) or geometry.get("type") not in ("Polygon", "MultiPolygon"):
        raise ConfigurationError("each zone must be a polygon or multipolygon")
    properties = feature.get("properties")
    name = properties.get("name") if isinstance(properties, dict) else None
    if not isinstance(name, str) or not name.strip() or len(name) > 80 or not name.isprintable():
        raise ConfigurationError("each zone must have a property 'name' of 1 to 80 printable characters")
    polygon = {"type": geometry["type"], "coordinates": geometry.get("coordinates")}
    return {"type": "Feature", "properties": {"name": _check_name(name.strip())}, "geometry": polygon}
