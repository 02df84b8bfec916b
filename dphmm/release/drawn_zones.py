"""The zones that a person draws: policies out of polygons that are kept with a session, not in a file.

A session is agreed on with the zones as its note; its settings hold the zones as a layer, by name.
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

Elsewhere = Literal["policy", "exact"]
"""What holds outside zones: what the relay's policy says besides its zones, or nothing: places as they are."""

AWAY = "away"
"""What is said of a place in no zone."""

_MOST_ZONES, _WIDEST_M = 50, 20_000.0
_NAME = "YOURS"
"""What the layer of drawn zones is called in policies."""


@dataclass(frozen=True)
class Zones:
    """What a person chose.

    Parameters
    ----------
    layer
        A GeoJSON feature collection of polygons with the property ``name``, as text.
    buffer_m
        By how many metres zones are widened by the places from which they can be entered.
    elsewhere
        What holds outside.
    """

    layer: str
    buffer_m: float = 0.0
    elsewhere: Elsewhere = "policy"

    @classmethod
    def from_page(cls, said: Any) -> Zones:
        """Read what the page sends: ``{"zones": FeatureCollection, "buffer_m": …, "elsewhere": …}``.

        Raises
        ------
        ConfigurationError
            When it is something else.
        """
        said = said if isinstance(said, dict) else {}
        layer, buffer_m, elsewhere = said.get("zones"), said.get("buffer_m", 0), said.get("elsewhere", "policy")
        features = layer.get("features") if isinstance(layer, dict) else None
        if not isinstance(features, list) or len(features) > _MOST_ZONES:
            raise ConfigurationError(f"zones are no GeoJSON feature collection of at most {_MOST_ZONES} polygons")
        if isinstance(buffer_m, bool) or not isinstance(buffer_m, int | float) or not 0 <= buffer_m <= _WIDEST_M:
            raise ConfigurationError(f"buffer_m is no number of metres from 0 to {_WIDEST_M:g}")
        if elsewhere not in get_args(Elsewhere):
            raise ConfigurationError(f"elsewhere is none of {', '.join(get_args(Elsewhere))}")
        kept = {"type": "FeatureCollection", "features": [_feature(one) for one in features]}
        return cls(json.dumps(kept), float(buffer_m), elsewhere)

    @classmethod
    def from_note(cls, note: str) -> Zones | None:
        """What `note` wrote; None where nothing was."""
        return cls(**parse_json(note)) if note else None

    @property
    def note(self) -> str:
        """As it is kept beside the session that it was agreed on for."""
        return json.dumps(asdict(self))

    def to_page(self) -> dict[str, Any]:
        """Return what the page shows, as `from_page` reads it."""
        return {"zones": parse_json(self.layer), "buffer_m": self.buffer_m, "elsewhere": self.elsewhere}

    def at(self, latitude: float, longitude: float) -> str:
        """The name of the zone that holds a place; ``"away"`` for none. What zones are widened by does not count."""
        for name, polygon in _polygons(self.layer):
            if shapely.intersects_xy(polygon, longitude, latitude):
                return name
        return AWAY

    @property
    def drawn(self) -> PolygonLayer | None:
        """The zones as a layer of a policy; None without a zone."""
        return PolygonLayer(_NAME, self.layer) if parse_json(self.layer)["features"] else None

    def settings(self, base: ReleaseSettings) -> ReleaseSettings:
        """How places are released: the relay's settings, with these zones for those that its policy names.

        Where places are exact elsewhere, noise is measured for each zone by itself, for otherwise a large one would
        blur a small one.

        Parameters
        ----------
        base
            The relay's settings.

        Raises
        ------
        ConfigurationError
            When nothing is left that would be hidden.
        """
        policy, drawn = rest_of(base), self.drawn
        exact = self.elsewhere == "exact" or not policy
        if drawn is None:
            if exact:
                raise ConfigurationError("without a zone nothing is hidden; draw one, or keep the policy elsewhere")
            return replace(base, policy=policy)
        zone = f"zone:{_NAME}" + (f"+{self.buffer_m:g}m" if self.buffer_m else "")
        if exact:
            return replace(base, policy=zone, layers=(drawn,), calibration="component")
        others = tuple(layer for layer in base.layers if layer.name != _NAME)
        return replace(base, policy=f"{zone} | {policy}", layers=(*others, drawn))


def first_zones(base: ReleaseSettings) -> Zones:
    """The zones that the relay's own policy names, for a person who has chosen none."""
    rest, layers = split_zones(base.policy)
    features = [
        {"type": "Feature", "properties": {"name": name}, "geometry": json.loads(shapely.to_geojson(shape))}
        for layer in layers
        for name, polygon in read_polygons(find_layer(layer, base.layers))
        for shape in shapely.get_parts(polygon)
    ]
    layer = json.dumps({"type": "FeatureCollection", "features": features})
    return Zones(layer, 0.0, "policy" if rest else "exact")


def rest_of(base: ReleaseSettings) -> str:
    """What the relay's policy says besides zones."""
    return split_zones(base.policy)[0]


@lru_cache(64)
def _polygons(layer: str) -> tuple[tuple[str, shapely.Geometry], ...]:
    features = parse_json(layer)["features"]
    return tuple((one["properties"]["name"], shapely.from_geojson(json.dumps(one["geometry"]))) for one in features)


def zones_error(problem: Exception | str) -> str:
    """An error's text without the name of the layer that was drawn."""
    return str(problem).removeprefix(f"{_NAME}: ")


def _feature(feature: Any) -> dict[str, Any]:
    """A feature with its polygon and its name, and nothing else."""
    geometry = feature.get("geometry") if isinstance(feature, dict) else None
    if not isinstance(geometry, dict) or geometry.get("type") not in ("Polygon", "MultiPolygon"):
        raise ConfigurationError("a zone is no polygon; draw it anew")
    properties = feature.get("properties")
    name = properties.get("name") if isinstance(properties, dict) else None
    if not isinstance(name, str) or not name.strip() or len(name) > 80 or not name.isprintable():
        raise ConfigurationError("a zone has no name; give it a property 'name' of 1 to 80 characters")
    kept = {"type": geometry["type"], "coordinates": geometry.get("coordinates")}
    return {"type": "Feature", "properties": {"name": name.strip()}, "geometry": kept}
