"""Polygons as people draw them, mended where their meaning is plain: crossing rings, slivers, borders drawn twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import shapely

from dphmm.arrays import FloatArray

DISPUTED = 0.01
"""Readings of one polygon, or two polygons of different names, may differ by so much of an area."""
SLIVER_KM = 0.001
"""A part that is narrower than this in the mean is a sliver."""
ROUNDING = 1e-9
"""Overlaps below this share of an area come from rounding; they are not looked at."""
_KM_PER_DEGREE = 111.2


def mended(shape: shapely.Geometry, found: Counter[str]) -> shapely.Geometry | None:
    """A polygon, or several, as one valid geometry; None where its meaning is open.

    It is open where the two ways to read a ring that crosses itself differ: that what is encircled twice is outside, or
    inside; and where nothing is left that has an area.

    Parameters
    ----------
    shape
        Finite coordinates in degrees, longitude first; a collection where that is what was drawn.
    found
        What was mended, and how often; counted up.
    """
    if not shape.is_valid:
        odd, full = (
            _areas(shapely.make_valid(shape, method=method, keep_collapsed=keep), Counter())
            for method, keep in (("linework", True), ("structure", False))
        )
        if odd.symmetric_difference(full).area > DISPUTED * full.area:
            return None
        shape = full
        found["a polygon that crosses or touches itself"] += 1
    shape = _areas(shape, found)
    parts = shapely.get_parts(shape)
    narrow = _widths(parts) < SLIVER_KM
    if narrow.any() and not narrow.all():
        found["a sliver left out"] += int(narrow.sum())
        parts = parts[~narrow]
        shape = shapely.multipolygons(parts) if len(parts) > 1 else parts[0]
    return None if shape.is_empty or not shape.area else shape


def without_small_overlaps(
    names: Sequence[str], shapes: Sequence[shapely.Geometry], found: Counter[str]
) -> list[shapely.Geometry]:
    """Valid polygons, of which those of different names that overlap by little no longer do: the first keeps it.

    Little is at most `DISPUTED` of the smaller one, as borders that were drawn or simplified twice overlap. What
    overlaps by more is meant to.
    """
    kept = list(shapes)
    areas = shapely.area(kept)
    first, second = shapely.STRtree(kept).query(kept, predicate="intersects")
    for i, j in sorted(zip(first.tolist(), second.tolist(), strict=True)):
        if i >= j or names[i] == names[j]:
            continue
        share = kept[i].intersection(kept[j]).area / min(areas[i], areas[j])
        if ROUNDING < share <= DISPUTED:
            kept[j] = _areas(kept[j].difference(kept[i]), Counter())
            found["a small overlap given to the first of two polygons"] += 1
    return kept


def said(found: Counter[str]) -> str:
    """What was mended, in words.

    Examples
    --------
    >>> said(Counter({"a sliver left out": 2, "a polygon that crosses or touches itself": 1}))
    'a sliver left out (2), a polygon that crosses or touches itself (1)'
    """
    return ", ".join(f"{what} ({count:,})" for what, count in found.items())


def _areas(shape: shapely.Geometry, found: Counter[str]) -> shapely.Geometry:
    """What of a geometry has an area; points and lines beside it are counted."""
    if isinstance(shape, shapely.Polygon | shapely.MultiPolygon):
        return shape
    parts = shapely.get_parts(shapely.get_parts(shape))
    is_area = shapely.get_type_id(parts) == shapely.GeometryType.POLYGON
    if not is_area.all():
        found["a point or line left out"] += int((~is_area).sum())
    return shapely.union_all(parts[is_area])


def _widths(parts: Sequence[shapely.Geometry]) -> FloatArray:
    """The mean widths of polygons in degrees: area by half the length of the border, kilometres."""
    bounds = shapely.bounds(parts)
    across = np.cos(np.radians((bounds[:, 1] + bounds[:, 3]) / 2))
    flat = [_scaled(part, np.array([by, 1.0])) for part, by in zip(parts, across.tolist(), strict=True)]
    return np.asarray(2 * shapely.area(flat) / np.maximum(shapely.length(flat), np.finfo(float).tiny))


def _scaled(part: shapely.Geometry, by: FloatArray) -> shapely.Geometry:
    return shapely.transform(part, lambda corners: corners * by * _KM_PER_DEGREE)
