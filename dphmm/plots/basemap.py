"""What people recognise a place by: coast, water, borders, roads and names, with no request leaving the machine.

The package ships a coarse map of the world (Natural Earth at 1:10m, names of GeoNames); files of finer ones are read
too. All places are in degrees, WGS 84.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import shapely

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, as_floats
from dphmm.errors import CoordinateError
from dphmm.space.grid import Box

WORLD = files("dphmm.plots").joinpath("ground/world.npz")
"""The map of the world that the package ships; `scripts/make_basemap.py` wrote it."""
CREDIT = "Coast, lakes and borders: Natural Earth. Names: GeoNames, CC BY 4.0."
"""Whose map that is."""

LINE_STEP, NAME_STEP = 0.001, 0.002
"""The steps of its coordinates in degrees: outlines within 60 m of Natural Earth's, names within 120 m."""

LINES = ("road", "street", "stream", "border", "line")
"""The kinds of lines on a basemap; a line of which nothing is known is a ``line``."""


class PlaceName(NamedTuple):
    """A name on a map.

    Attributes
    ----------
    name
        The text.
    latitude, longitude
        Degrees.
    rank
        Which names come first: ten times the decimal logarithm of how many people live there, or another number.
    """

    name: str
    latitude: float
    longitude: float
    rank: float


@dataclass(frozen=True, eq=False)
class Basemap:
    """What is drawn below everything else.

    Parameters
    ----------
    water
        Polygons, longitude first.
    lines
        Kind, one of `LINES` → lines ``(k, 2)``, longitude first.
    names
        Names of places, the first ranks first.
    credit
        Whose map it is, in a sentence that is shown with it.
    """

    water: Sequence[shapely.Polygon] = ()
    lines: Mapping[str, Sequence[FloatArray]] = field(default_factory=dict)
    names: Sequence[PlaceName] = ()
    credit: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not (self.water or any(self.lines.values()) or self.names)


@checked
def shipped_basemap(box: Box, most_names: int = 300) -> Basemap:
    """The part of the shipped map of the world within a box.

    Parameters
    ----------
    box
        South, west, north, east in degrees. Of a box over the date line nothing is drawn.
    most_names
        So many names at most, those of the largest places.

    Returns
    -------
    Basemap
        Seas and lakes, borders of countries, and names of places; nothing where the box lies at sea. There are no roads
        in it.

    Raises
    ------
    CoordinateError
        For a box that is none.
    """
    south, west, north, east = check_box(box)
    if east <= west:
        return Basemap()
    frame = shapely.box(west, south, east, north)
    world = _world()
    land = _area(world["land"], frame)
    if land.is_empty:  # nothing to recognise
        return Basemap()
    lakes = _area(world["lake"], frame)
    water = shapely.union(shapely.difference(frame, land), lakes)
    return Basemap(
        polygons(water),
        {"border": pieces(world["border"].within(frame), frame)},
        _names(frame, most_names),
        CREDIT,
    )


@checked
def check_box(box: Box) -> Box:
    """A box of degrees.

    Raises
    ------
    CoordinateError
        When it is none.
    """
    values = as_floats(box, "box", CoordinateError)
    if values.shape != (4,) or not np.isfinite(values).all() or not -90 <= values[0] < values[2] <= 90:
        raise CoordinateError(f"the box is {box}; give south, west, north and east in degrees")
    south, west, north, east = values.tolist()
    return south, west, north, east


def polygons(shape: Any) -> list[shapely.Polygon]:
    """The polygons of a geometry, without what has no area."""
    parts = shapely.get_parts(shapely.get_parts(shape))
    return [part for part in np.atleast_1d(parts) if part.geom_type == "Polygon" and not part.is_empty]


def pieces(lines: Iterable[FloatArray], frame: shapely.Polygon) -> list[FloatArray]:
    """The parts of lines ``(k, 2)`` within a rectangle."""
    found = []
    for line in lines:
        inside = shapely.clip_by_rect(shapely.LineString(line), *frame.bounds)
        found += [shapely.get_coordinates(part) for part in shapely.get_parts(inside) if part.geom_type == "LineString"]
    return found


# ---- the file --------------------------------------------------------------------------------------------------------


def planes(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Whole numbers below 2^32 as four rows of bytes, the lowest first: the others are mostly zero and pack well."""
    whole = values.astype(np.uint32)
    return np.stack([(whole >> np.uint32(8 * row)).astype(np.uint8) for row in range(4)])


def _numbers(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    return sum((rows[row].astype(np.int64) << (8 * row) for row in range(4)), start=np.zeros(rows.shape[1:], np.int64))


def coded(points: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Points ``(n, 2)`` in whole steps as `planes` of their differences, whose signs are their lowest bits."""
    moves = np.diff(points, axis=0, prepend=np.zeros((1, 2), np.int64))
    return planes((moves << 1) ^ (moves >> 63))


def _decoded(rows: npt.NDArray[np.uint8], step: float) -> FloatArray:
    folded = _numbers(rows)
    return np.cumsum((folded >> 1) ^ -(folded & 1), axis=0) * step


class _Outlines(NamedTuple):
    """Rings or lines: their points, where each begins, its bounds, and whether it is a hole."""

    points: FloatArray
    starts: npt.NDArray[np.int64]
    low: FloatArray
    high: FloatArray
    hole: npt.NDArray[np.bool_]

    def within(self, frame: shapely.Polygon, holes: bool | None = None) -> list[FloatArray]:
        """Those whose bounds meet a rectangle's."""
        west, south, east, north = frame.bounds
        near = (self.low <= [east, north]).all(axis=1) & (self.high >= [west, south]).all(axis=1)
        if holes is not None:
            near &= self.hole == holes
        ends = np.append(self.starts[1:], len(self.points))
        return [self.points[self.starts[one] : ends[one]] for one in np.flatnonzero(near)]


def _area(outlines: _Outlines, frame: shapely.Polygon) -> Any:
    """The area of rings within a rectangle."""

    def covered(holes: bool) -> Any:
        rings = [shapely.Polygon(ring) for ring in outlines.within(frame, holes)]
        return shapely.union_all(shapely.make_valid(shapely.clip_by_rect(rings, *frame.bounds)))

    return shapely.difference(covered(False), covered(True))


@lru_cache(maxsize=1)
def _world() -> dict[str, _Outlines]:
    found = {}
    with WORLD.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        for layer in ("land", "lake", "border"):
            points = _decoded(arrays[f"{layer}_points"], LINE_STEP)
            starts = np.cumsum(_numbers(arrays[f"{layer}_lengths"])) - _numbers(arrays[f"{layer}_lengths"])
            low, high = np.minimum.reduceat(points, starts), np.maximum.reduceat(points, starts)
            found[layer] = _Outlines(points, starts, low, high, arrays[f"{layer}_holes"])
    return found


@lru_cache(maxsize=1)
def _towns() -> tuple[FloatArray, npt.NDArray[np.uint8], list[str]]:
    with WORLD.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        points, texts = _decoded(arrays["name_points"], NAME_STEP), bytes(arrays["name_texts"])
        return points, arrays["name_ranks"], texts.decode("utf-8").split("\n")


def _names(frame: shapely.Polygon, most: int) -> list[PlaceName]:
    west, south, east, north = frame.bounds
    points, ranks, texts = _towns()
    inside = np.flatnonzero((points >= [west, south]).all(axis=1) & (points <= [east, north]).all(axis=1))
    first = inside[np.argsort(-ranks[inside].astype(np.int64), kind="stable")][:most]
    return [PlaceName(texts[one], float(points[one, 1]), float(points[one, 0]), float(ranks[one])) for one in first]
