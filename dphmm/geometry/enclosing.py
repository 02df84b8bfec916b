"""The symmetric convex polygon of least squared error around a given one, with further vertices among given points.

For a level, the excess of a polygon (see `dphmm.geometry.least_error`) is a sum over its edges, and a convex polygon is
a chain of edges that turn left: the least excess is a shortest path. Its error is the level of the next round
(Dinkelbach); when no path has a negative excess, the level is the least error.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dphmm.arrays import RELATIVE_TOLERANCE, FloatArray, IntArray
from dphmm.geometry import planar
from dphmm.geometry.least_error import open_bounds, polygon_error, triangles

_GAIN = 1e-12
"""An error that is lower by less than this, relatively, is the same up to rounding."""
_MANY = 2000
"""How many points are put into one graph at most: it has as many edges as pairs of points."""
_PER_EDGE, _PER_POINT, _PER_ROUND = 150, 3_000, 500_000
"""What a round costs in units of work, for each pair of points and each point, and besides."""


def best_enclosing(
    corners: FloatArray, points: FloatArray, level: float, spend: Callable[[int], None]
) -> tuple[float, IntArray, bool]:
    """The polygon of least error among those around a polygon that have further vertices at points only.

    Parameters
    ----------
    corners
        ``(h, 2)``: a symmetric polygon of positive area, counter-clockwise, in the unit of the error.
    points
        ``(n, 2)``: outside it; each stands for its opposite as well.
    level
        The error to beat; polygons that do not are not looked for.
    spend
        Is told the units of work that are about to be done, some nanoseconds each, and may raise to stop it.

    Returns
    -------
    level
        The least error, or the level that was given.
    chosen
        Which points, with the corners, span that polygon: none where the corners alone do, or nothing beats the level.
    complete
        Whether all points were looked at: false where there were too many at once, and nothing is proven.

    Notes
    -----
    The polygon has a vertex that is farthest along the longest corner: that corner, or a point. For each such apex
    the chain from it to its opposite is a problem by itself, in which nothing lies farther than the apex.
    """
    error = polygon_error(corners)
    best, chosen, complete = min(error, level), np.zeros(0, dtype=np.int64), True
    apex = corners[(corners**2).sum(axis=1).argmax()]
    square = float((apex**2).sum())
    spend(_PER_POINT * len(points))
    bounds = open_bounds(corners, points, best)
    inner = np.flatnonzero(np.isfinite(bounds))
    along = np.abs(planar.dot(points, apex))
    beyond = inner[along[inner] > square * (1 + RELATIVE_TOLERANCE)]
    for index in (-1, *beyond[np.argsort(along[beyond], kind="stable")].tolist()):
        held, tip, reach, grown = np.zeros(0, dtype=np.int64), apex, square, corners
        if index >= 0:
            if bounds[index] >= best:
                continue
            held, reach = np.array([index]), float(along[index])
            tip = points[index] if planar.dot(points[index], apex) > 0 else -points[index]
            grown = planar.convex_polygon(np.concatenate([corners, tip[None], -tip[None]]))
            if polygon_error(grown) < best * (1 - _GAIN):
                best, chosen = polygon_error(grown), held
        others = inner[along[inner] <= reach * (1 + RELATIVE_TOLERANCE)]
        others = others[_outside(grown, points[others])]
        while True:
            spend(_PER_ROUND + _PER_POINT * len(others))
            nearer = open_bounds(grown, points[others], best)
            others, nearer = others[np.isfinite(nearer)], nearer[np.isfinite(nearer)]
            taken = others if len(others) <= _MANY else others[np.sort(np.argsort(nearer, kind="stable")[:_MANY])]
            spend(len(taken) * (len(taken) * _PER_EDGE + _PER_POINT))
            path = taken[_least_chain(grown, tip, points[taken], best)] if len(taken) else taken
            both = np.concatenate([grown, points[path], -points[path]])
            error = polygon_error(planar.convex_polygon(both))
            if error >= best * (1 - _GAIN):
                complete &= len(taken) == len(others)
                break
            best, chosen = error, np.concatenate([held, path])
    return best, chosen, complete


def _outside(corners: FloatArray, points: FloatArray) -> IntArray:
    """Which points lie outside a polygon, by more than the tolerance."""
    normals, offsets = planar.half_planes(corners)
    heights = np.abs(points[:, :1] * normals[:, 0] + points[:, 1:] * normals[:, 1])
    return np.flatnonzero((heights > offsets * (1 + RELATIVE_TOLERANCE)).any(axis=1))


def _least_chain(corners: FloatArray, apex: FloatArray, points: FloatArray, level: float) -> IntArray:
    """Which points are on the chain of least excess from the apex to its opposite; none where no excess is negative.

    A state of the search is an edge, and the next edge turns left. The apex is extreme among the points, so that the
    chain and its opposite make a convex polygon.
    """
    vertices, own = _in_order(corners, apex, points)
    count = len(vertices)
    edges = vertices[None] - vertices[:, None]
    area, moment = triangles(vertices[:, None], vertices[None])
    support = np.zeros((count, count))
    for x, y in corners[: len(corners) // 2].tolist():
        np.maximum(support, np.abs(edges[..., 0] * y - edges[..., 1] * x), out=support)
    tiny = _GAIN * float(area.max())
    allowed = (np.arange(count)[:, None] < np.arange(count)) & (area > tiny) & (2 * area >= support - tiny)
    allowed[0, -1] = False
    excess = np.where(allowed, moment - level * area, np.inf)
    heading = np.arctan2(edges[..., 1], edges[..., 0]) - np.arctan2(apex[1], apex[0])
    heading %= 2 * np.pi
    least = np.full((count, count), np.inf)
    before = np.zeros((count, count), dtype=np.int64)
    least[0] = excess[0]
    for middle in range(1, count - 1):
        into = np.flatnonzero(np.isfinite(least[:middle, middle]))
        onto = np.flatnonzero(allowed[middle])
        into = into[np.argsort(heading[into, middle], kind="stable")]
        values = least[into, middle]
        lowest = np.minimum.accumulate(values)
        at = np.maximum.accumulate(np.where(values <= lowest, np.arange(len(into)), 0))
        turning = np.searchsorted(heading[into, middle], heading[middle, onto] + RELATIVE_TOLERANCE, "right") - 1
        onto, turning = onto[turning >= 0], turning[turning >= 0]
        least[middle, onto] = lowest[turning] + excess[middle, onto]
        before[middle, onto] = into[at[turning]]
    last, end = int(least[:-1, -1].argmin()), count - 1
    path = []
    if least[last, end] < 0:
        while last > 0:
            path.append(int(own[last]))
            last, end = int(before[last, end]), last
    return np.array([index for index in path if index >= 0], dtype=np.int64)


def _in_order(corners: FloatArray, apex: FloatArray, points: FloatArray) -> tuple[FloatArray, IntArray]:
    """The apex, corners and points to its left counter-clockwise, its opposite; and which point each is, or -1."""
    everything = np.concatenate([points, corners[: len(corners) // 2]])
    own = np.where(np.arange(len(everything)) < len(points), np.arange(len(everything)), -1)
    side = planar.cross(apex, everything)
    everything = np.where(side[:, None] < 0, -everything, everything)
    angle = np.arctan2(np.abs(side), planar.dot(everything, apex))
    order = np.argsort(angle, kind="stable")
    order = order[np.abs(side[order]) > RELATIVE_TOLERANCE * (apex**2).sum()]
    return np.concatenate([apex[None], everything[order], -apex[None]]), np.r_[-1, own[order], -1]
