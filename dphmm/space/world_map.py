"""The bundled coarse map of the world: outlines, and names of towns."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import shapely

from dphmm.arrays import FloatArray

WORLD = files("dphmm.space").joinpath("ground/world.npz")
"""The bundled map of the world, written by `scripts/make_basemap.py`."""
CREDIT = "Coast, lakes and borders: Natural Earth. Names: GeoNames, CC BY 4.0."
"""The attribution of the map."""

LINE_STEP = 0.001
NAME_STEP = 0.002
"""The steps of its coordinates in degrees: outlines within 60 m of Natural Earth's, names within 120 m."""


class PlaceName(NamedTuple):
    """A name on a map.

    Parameters
    ----------
    name
        The text.
    latitude, longitude
        Degrees.
    rank
        Names of higher ranks come first: ten times the decimal logarithm of the population, or another number.
    """

    name: str
    latitude: float
    longitude: float
    rank: float


def planes(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Encode integers below 2^32 as four rows of bytes, the lowest byte first."""
    # Compresses well: most of the higher bytes are zero.
    whole = values.astype(np.uint32)
    return np.stack([(whole >> np.uint32(8 * row)).astype(np.uint8) for row in range(4)])


def _numbers(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    return sum((rows[row].astype(np.int64) << (8 * row) for row in range(4)), start=np.zeros(rows.shape[1:], np.int64))


def coded(points: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Encode points ``(n, 2)`` in integer steps as `planes` of their differences.

    The sign of a difference is stored in its lowest bit (zigzag encoding).
    """
    moves = np.diff(points, axis=0, prepend=np.zeros((1, 2), np.int64))
    return planes((moves << 1) ^ (moves >> 63))


def decoded(rows: npt.NDArray[np.uint8], step: float) -> FloatArray:
    """Decode points ``(n, 2)`` that `coded` encoded."""
    folded = _numbers(rows)
    return np.cumsum((folded >> 1) ^ -(folded & 1), axis=0) * step


class Outlines(NamedTuple):
    """Rings or lines: points, the start of each, its bounds, and whether it is a hole."""

    points: FloatArray
    starts: npt.NDArray[np.int64]
    low: FloatArray
    high: FloatArray
    hole: npt.NDArray[np.bool_]

    def within(self, frame: shapely.Polygon, holes: bool | None = None) -> list[FloatArray]:
        """Return the outlines with bounds that intersect a rectangle."""
        west, south, east, north = frame.bounds
        near = (self.low <= [east, north]).all(axis=1) & (self.high >= [west, south]).all(axis=1)
        if holes is not None:
            near &= self.hole == holes
        ends = np.append(self.starts[1:], len(self.points))
        return [self.points[self.starts[outline] : ends[outline]] for outline in np.flatnonzero(near)]


@lru_cache(maxsize=1)
def outlines() -> dict[str, Outlines]:
    """Return land, lakes and borders of countries, by layer."""
    layers = {}
    with WORLD.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        for layer in ("land", "lake", "border"):
            points = decoded(arrays[f"{layer}_points"], LINE_STEP)
            starts = np.cumsum(_numbers(arrays[f"{layer}_lengths"])) - _numbers(arrays[f"{layer}_lengths"])
            low = np.minimum.reduceat(points, starts)
            high = np.maximum.reduceat(points, starts)
            layers[layer] = Outlines(points, starts, low, high, arrays[f"{layer}_holes"])
    return layers


@lru_cache(maxsize=1)
def towns() -> tuple[FloatArray, npt.NDArray[np.uint8], list[str]]:
    """Return the points of all towns, longitude first, their ranks and their names."""
    with WORLD.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        points = decoded(arrays["name_points"], NAME_STEP)
        texts = bytes(arrays["name_texts"])
        return points, arrays["name_ranks"], texts.decode("utf-8").split("\n")


def names_within(frame: shapely.Polygon, max_names: int) -> list[PlaceName]:
    """Return the names in a rectangle, those of the largest towns first."""
    west, south, east, north = frame.bounds
    points, ranks, texts = towns()
    inside = np.flatnonzero((points >= [west, south]).all(axis=1) & (points <= [east, north]).all(axis=1))
    first = inside[np.argsort(-ranks[inside].astype(np.int64), kind="stable")][:max_names]
    return [
        PlaceName(texts[town], float(points[town, 1]), float(points[town, 0]), float(ranks[town])) for town in first
    ]
