"""The zones that a person draws: policies out of polygons that are kept with a session, not in a file.

Whoever lets people draw zones agrees on a session with the zones as its note; the policy that was agreed on then names
a file that was there for a while. From the note it is made again, for whoever reads the session later.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Literal, get_args

import shapely

from dphmm.errors import ConfigurationError, DataFileError
from dphmm.policy.expression import split_zones
from dphmm.policy.layer import read_polygons
from dphmm.release.settings import ReleaseSettings
from dphmm.tables.json_text import parse_json

Elsewhere = Literal["policy", "exact"]
"""What holds outside zones: what the relay's policy says besides its zones, or nothing: places as they are."""

AWAY = "away"
"""What is said of a place in no zone."""

_MOST_ZONES, _WIDEST_M = 50, 20_000.0
_WRITTEN = re.compile(r"(zone:)?[^\s'\":]*/[0-9a-f]{32}\.geojson")


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


def redrawn(settings: ReleaseSettings, note: str, folder: Path) -> ReleaseSettings:
    """Settings that were agreed on with a note, their policy naming a layer in a folder of today.

    Parameters
    ----------
    settings
        As a session holds them: their policy names a file that need not be there any more.
    note
        What `Zones.note` wrote beside them; empty where no zones were drawn.
    folder
        Where the layer is written.

    Raises
    ------
    ConfigurationError
        When the note is none of zones.
    """
    if not note:
        return settings
    try:
        zones = Zones.from_note(note)
        assert zones is not None
        file = zones.file(folder)
    except (TypeError, KeyError, ValueError) as problem:
        raise ConfigurationError(f"the note of what was agreed on holds no zones ({type(problem).__name__})") from None
    return settings if file is None else replace(settings, policy=_WRITTEN.sub(f"zone:{file}", settings.policy))


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
