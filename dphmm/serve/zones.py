"""The zones that a person draws: how their places are released because of them, and what that costs, in metres.

Everything here follows from the model and the zones, which are public; neither the person's place nor what was released
of it goes in.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from math import sqrt
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Literal, get_args

import numpy as np
import shapely

from dphmm.errors import ConfigurationError, DataFileError
from dphmm.policy.expression import split_zones
from dphmm.policy.layer import read_polygons
from dphmm.policy.protection import exposed_states
from dphmm.policy.zones import zones as members
from dphmm.release.engine import Releaser
from dphmm.release.settings import ReleaseSettings
from dphmm.tables.json_text import parse_json

Elsewhere = Literal["policy", "exact"]
"""What holds outside zones: what the relay's policy says besides its zones, or nothing: places as they are."""

AWAY = "away"
"""What is said of a place in no zone."""

_MOST_ZONES, _WIDEST_M = 50, 20_000.0
_WRITTEN = re.compile(r"(zone:)?[^\s'\":]*/[0-9a-f]{32}\.geojson")
_LISTED = 500
"""At most so many places are listed."""


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
    def of(cls, said: Any) -> Zones:
        """What the page says: ``{"zones": FeatureCollection, "buffer_m": …, "elsewhere": …}``.

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

    def said(self) -> dict[str, Any]:
        """As the page says it: what `of` reads."""
        return {"zones": parse_json(self.layer), "buffer_m": self.buffer_m, "elsewhere": self.elsewhere}

    def at(self, latitude: float, longitude: float) -> str:
        """The name of the zone that holds a place; ``"away"`` for none. What zones are widened by does not count."""
        for name, polygon in _polygons(self.layer):
            if shapely.intersects_xy(polygon, longitude, latitude):
                return name
        return AWAY

    def file(self, folder: Path) -> Path | None:
        """The layer as a file in a folder, written where there is none; None without a zone."""
        if not parse_json(self.layer)["features"]:
            return None
        file = folder / f"{hashlib.sha256(self.layer.encode('utf-8')).hexdigest()[:32]}.geojson"
        if not file.exists():
            with NamedTemporaryFile("w", dir=folder, delete=False, encoding="utf-8") as part:
                part.write(self.layer)
            os.replace(part.name, file)  # whole, or not there
        return file

    def settings(self, base: ReleaseSettings, folder: Path) -> ReleaseSettings:
        """How places are released: the relay's settings, with these zones for those that its policy names.

        Where places are exact elsewhere, noise is measured for each zone by itself, for otherwise a large one would
        blur a small one.

        Parameters
        ----------
        base
            The relay's settings.
        folder
            Where the layer is written, for the policy to name it.

        Raises
        ------
        ConfigurationError
            When nothing is left that would be hidden.
        """
        policy, file = rest_of(base), self.file(folder)
        exact = self.elsewhere == "exact" or not policy
        if file is None:
            if exact:
                raise ConfigurationError("without a zone nothing is hidden; draw one, or keep the policy elsewhere")
            return replace(base, policy=policy)
        zone = f"zone:{file}" + (f"+{self.buffer_m:g}m" if self.buffer_m else "")
        if exact:
            return replace(base, policy=zone, calibration="component")
        return replace(base, policy=f"{zone} | {policy}")


def first_zones(base: ReleaseSettings) -> Zones:
    """The zones that the relay's own policy names, for a person who has chosen none."""
    rest, layers = split_zones(base.policy)
    features = [
        {"type": "Feature", "properties": {"name": name}, "geometry": json.loads(shapely.to_geojson(shape))}
        for layer in layers
        for name, polygon in read_polygons(layer)
        for shape in shapely.get_parts(polygon)
    ]
    layer = json.dumps({"type": "FeatureCollection", "features": features})
    return Zones(layer, 0.0, "policy" if rest else "exact")


def rest_of(base: ReleaseSettings) -> str:
    """What the relay's policy says besides zones."""
    return split_zones(base.policy)[0]


def price(engine: Releaser, layer: Path | None) -> dict[str, Any]:
    """What an engine's policy does: who would be exposed, what is added so that nobody is, how far off releases are.

    Figures are for whoever knows the model alone, before the first release; root mean squares, in metres.

    Parameters
    ----------
    engine
        An engine of the settings that has released nothing.
    layer
        The file of zones, whose errors are told by name; None where there is none.

    Raises
    ------
    DphmmError
        When the policy cannot be used.
    """
    places, calibration = engine.model.space.latlon(), engine.settings.calibration
    prior = engine.prior()
    plan = engine.plan(prior)
    exposed = exposed_states(engine.policy, engine.measurements, plan.constraint, calibration=calibration)
    noise = engine.mechanism(plan, engine.settings.epsilon)
    errors = 1000 * np.array([engine.query.error_at(noise, state) for state in range(engine.model.size)])
    zones = {} if layer is None else members(layer, engine.model.space)
    inside = np.zeros(len(places), dtype=np.bool_)
    for states in zones.values():
        inside[states] = True
    exact = np.flatnonzero(plan.protection.open) if plan.protection is not None else np.zeros(0, dtype=np.int64)
    added = () if plan.protection is None else plan.protection.added
    return {
        "error_m": round(1000 * engine.query.expected_error(noise, prior.probabilities), 1),
        "error_m_elsewhere": None if inside.all() else _root_mean_square(errors[~inside]),
        "zones": [
            {"name": name, "places": len(states), "error_m": _root_mean_square(errors[states])}
            for name, states in zones.items()
        ],
        "exposed": _rounded(places[exposed[:_LISTED]]),
        "exposed_count": len(exposed),
        "added": [_rounded(places[list(pair)]) for pair in added[:_LISTED]],
        "added_count": len(added),
        "exact_count": len(exact),
        "places": len(places),
        "gap": 0.0 if plan.protection is None else round(plan.protection.gap, 3),
        "calibration": calibration,
    }


@lru_cache(64)
def _polygons(layer: str) -> tuple[tuple[str, shapely.Geometry], ...]:
    features = parse_json(layer)["features"]
    return tuple((one["properties"]["name"], shapely.from_geojson(json.dumps(one["geometry"]))) for one in features)


def said_of_zones(problem: Exception) -> str:
    """An error's text without the name of the file that the page's zones were written to."""
    said = str(problem).replace(f"{problem.path}: ", "") if isinstance(problem, DataFileError) else str(problem)
    return _WRITTEN.sub("zone:YOURS", said)


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


def _root_mean_square(errors: np.ndarray) -> float | None:
    return round(sqrt(float((errors**2).mean())), 1) if len(errors) else None


def _rounded(places: Sequence[Any] | np.ndarray) -> list[list[float]]:
    found: list[list[float]] = np.round(np.asarray(places, dtype=np.float64).reshape(-1, 2), 6).tolist()
    return found
