"""The bundled coarse map of the world: outlines, and names of towns."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import shapely

from dphmm.arrays import FloatArray
from dphmm.space.states import StateSpace

# The bundled map of the world, written by `scripts/make_basemap.py`.
WORLD = files("dphmm.space").joinpath("ground/world.npz")
# The attribution of the map.
CREDIT = "Coast, lakes and borders: Natural Earth. Names: GeoNames, CC BY 4.0."
# The attribution of `compute_land_shares`.
LAND_CREDIT = "Coast and lakes: Natural Earth."

LINE_STEP = 0.001
# The steps of its coordinates in degrees: outlines within 60 m of Natural Earth's, names within 120 m.
NAME_STEP = 0.002


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


def encode_integers(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Encode integers below 2^32 as four rows of bytes, the lowest byte first."""
    # Compresses well: most of the higher bytes are zero.
    whole = values.astype(np.uint32)
    return np.stack([(whole >> np.uint32(8 * row)).astype(np.uint8) for row in range(4)])


def _decode_integers(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    return sum((rows[row].astype(np.int64) << (8 * row) for row in range(4)), start=np.zeros(rows.shape[1:], np.int64))


def encode_points(points: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Encode points ``(n, 2)`` in integer steps as `encode_integers` of their differences.

    The sign of a difference is stored in its lowest bit (zigzag encoding).
    """
    moves = np.diff(points, axis=0, prepend=np.zeros((1, 2), np.int64))
    return encode_integers((moves << 1) ^ (moves >> 63))


def decode_points(rows: npt.NDArray[np.uint8], step: float) -> FloatArray:
    """Decode points ``(n, 2)`` that `encode_points` encoded."""
    folded = _decode_integers(rows)
    return np.cumsum((folded >> 1) ^ -(folded & 1), axis=0) * step


class Outlines(NamedTuple):
    """Rings or lines: points, the start of each, its bounds, and whether it is a hole."""

    points: FloatArray
    starts: npt.NDArray[np.int64]
    low: FloatArray
    high: FloatArray
    hole: npt.NDArray[np.bool_]

    def select_in_frame(self, frame: shapely.Polygon, holes: bool | None = None) -> list[FloatArray]:
        """Return the outlines with bounds that intersect a rectangle."""
        west, south, east, north = frame.bounds
        near = (self.low <= [east, north]).all(axis=1) & (self.high >= [west, south]).all(axis=1)
        if holes is not None:
            near &= self.hole == holes
        ends = np.append(self.starts[1:], len(self.points))
        return [self.points[self.starts[outline] : ends[outline]] for outline in np.flatnonzero(near)]


@lru_cache(maxsize=1)
def load_outlines() -> dict[str, Outlines]:
    """Return land, lakes and borders of countries, by layer."""
    layers = {}
    with WORLD.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        for layer in ("land", "lake", "border"):
            points = decode_points(arrays[f"{layer}_points"], LINE_STEP)
            starts = np.cumsum(_decode_integers(arrays[f"{layer}_lengths"])) - _decode_integers(
                arrays[f"{layer}_lengths"]
            )
            low = np.minimum.reduceat(points, starts)
            high = np.maximum.reduceat(points, starts)
            layers[layer] = Outlines(points, starts, low, high, arrays[f"{layer}_holes"])
    return layers


def clip_land(frame: shapely.Polygon) -> Any:
    """Return the land in a rectangle without lakes, in degrees, longitude first."""
    world = load_outlines()
    return shapely.difference(_clip_area(world["land"], frame), _clip_area(world["lake"], frame))


def _clip_area(layer: Outlines, frame: shapely.Polygon) -> Any:
    """Return the area of rings within a rectangle."""

    def merge_rings(holes: bool) -> Any:
        rings = [shapely.Polygon(ring) for ring in layer.select_in_frame(frame, holes)]
        return shapely.union_all(shapely.make_valid(shapely.clip_by_rect(rings, *frame.bounds)))

    return shapely.difference(merge_rings(False), merge_rings(True))


def list_polygons(shape: Any) -> list[shapely.Polygon]:
    """Return the non-empty polygons of a geometry."""
    parts = shapely.get_parts(shapely.get_parts(shape))
    return [part for part in np.atleast_1d(parts) if part.geom_type == "Polygon" and not part.is_empty]


def get_sea(coast: Sequence[FloatArray], frame: shapely.Polygon) -> list[shapely.Polygon]:
    """Return the sea in a rectangle, given coastlines with the land on their left.

    It is empty if the coastlines do not separate land and sea.
    """
    if not coast:
        return []
    boundaries = shapely.union_all([shapely.LineString(line) for line in coast] + [frame.boundary])
    faces = list_polygons(shapely.polygonize(shapely.get_parts(boundaries)))
    tree = shapely.STRtree(faces)
    sides = np.zeros((2, len(faces)), np.int64)
    for line in coast:
        along = np.diff(line, axis=0)
        middles = line[:-1] + along / 2
        right = along[:, ::-1] * [1, -1]
        right *= 1e-7 / np.maximum(np.hypot(*right.T), 1e-12)[:, None]  # a centimetre
        for side, points in enumerate((middles + right, middles - right)):
            np.add.at(sides[side], tree.query(shapely.points(points), "within")[1], 1)
    return [face for face, right, left in zip(faces, *sides.tolist(), strict=True) if right > 20 * left]


# The margin around the centres of cells, in degrees: larger than half a cell of 20 km at 84 degrees of latitude.
_CELL_MARGIN = 1.0


def compute_land_shares(
    space: StateSpace, water: Sequence[shapely.Polygon] = (), coast: Sequence[FloatArray] = ()
) -> FloatArray:
    """Return the share of each state's area that is land on the map.

    The map is coarse: 0.2 % to 0.7 % of real locations at coasts lie in cells of 0.5 km that are water on it.

    Parameters
    ----------
    space
        The states.
    water
        More water, polygons in degrees, longitude first.
    coast
        Coastlines ``(k, 2)`` that replace those of the map, longitude first, with the land on their left.

    Returns
    -------
    FloatArray
        ``(N,)``, from 0 to 1. For states that are points, 1 or 0.
    """
    latitude, longitude = space.latlon().T
    shares = np.zeros(space.size)
    # On both sides of the date line, longitudes have different signs.
    sides = [longitude] if np.ptp(longitude) <= 180.0 else [longitude[longitude > 0], longitude[longitude <= 0]]
    for side in sides:
        west, east = max(side.min() - _CELL_MARGIN, -180.0), min(side.max() + _CELL_MARGIN, 180.0)
        south, north = max(latitude.min() - _CELL_MARGIN, -90.0), min(latitude.max() + _CELL_MARGIN, 90.0)
        land = clip_land(shapely.box(west, south, east, north))
        if coast:
            # Within the extent of the coastlines, they separate land and sea. Lakes are part of the finer map.
            extent = shapely.box(*shapely.total_bounds([shapely.LineString(line) for line in coast]))
            sea = get_sea(coast, extent)
            if sea:
                land = shapely.union(
                    shapely.difference(land, extent), shapely.difference(extent, shapely.union_all(sea))
                )
        if len(water):
            land = shapely.difference(land, shapely.union_all(shapely.make_valid(water)))
        shares += space.share_within(land)
    return np.minimum(shares, 1.0)


@lru_cache(maxsize=1)
def load_towns() -> tuple[FloatArray, npt.NDArray[np.uint8], list[str]]:
    """Return the points of all towns, longitude first, their ranks and their names."""
    with WORLD.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        points = decode_points(arrays["name_points"], NAME_STEP)
        texts = bytes(arrays["name_texts"])
        return points, arrays["name_ranks"], texts.decode("utf-8").split("\n")


def select_names(frame: shapely.Polygon, max_names: int) -> list[PlaceName]:
    """Return the names in a rectangle, those of the largest towns first."""
    west, south, east, north = frame.bounds
    points, ranks, texts = load_towns()
    inside = np.flatnonzero((points >= [west, south]).all(axis=1) & (points <= [east, north]).all(axis=1))
    first = inside[np.argsort(-ranks[inside].astype(np.int64), kind="stable")][:max_names]
    return [
        PlaceName(texts[town], float(points[town, 1]), float(points[town, 0]), float(ranks[town])) for town in first
    ]
