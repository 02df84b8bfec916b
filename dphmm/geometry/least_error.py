"""How small the squared error of noise can be in a symmetric convex body that holds a given one.

The squared error of a release at epsilon one, ``(r + 1)(r + 2) E|u|²`` of ``u`` uniform in a body of dimension ``r``,
is no monotone function of the body: a larger one may have the smaller error. What is bounded here is its least value
over all symmetric convex bodies around a given one. Points are in the unit that the error is measured in.

In the plane a body's error is below a level iff its *excess*, twelve times its second moment less the level times its
area, is negative. The excess adds up over disjoint parts, and is negative only within the *level's disc*, of radius
``√(level / 12)``. With further vertices among given points, the excess of a polygon is a sum over its edges, and a
convex polygon is a chain of edges that turn left: the least excess is a shortest path. Its error is the level of the
next round (Dinkelbach); when no path has a negative excess, the level is the least error.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gamma, inf, pi
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import RELATIVE_TOLERANCE, FloatArray, IntArray
from dphmm.geometry import planar

_ANGLES = np.pi * np.arange(64) / 128
_COSINES, _SINES = np.cos(_ANGLES), np.sin(_ANGLES)
_DIRECTIONS: FloatArray = np.stack([np.r_[_COSINES, -_SINES], np.r_[_SINES, _COSINES]], axis=1)
"""The first and the last 64 are at right angles to each other, one by one."""
_FRAMES = 8
"""Outside the plane: along how many of a body's longest vertices the bound of `reach_bounds` is taken."""
_SHARE = 1 << 12


def triangles(start: FloatArray, end: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The areas, and twelve times the second moments, of the triangles between the origin and edges ``(…, 2)``."""
    area = planar.cross(start, end) / 2
    both = start + end
    return area, area * (planar.dot(start, start) + planar.dot(end, end) + planar.dot(both, both))


def polygon_error(corners: FloatArray) -> float:
    """The squared error at epsilon one of a symmetric polygon with corners ``(h, 2)``; of a segment without area."""
    area, moment, reach = planar.polygon_sums(corners)
    return moment / area if area > 0 else 2.0 * reach


def _beyond(start: FloatArray, end: FloatArray, level: float) -> tuple[FloatArray, FloatArray]:
    """The same of what lies beyond each edge, seen from the origin, within the level's disc.

    An edge through the origin has half of the disc beyond it.
    """
    square = level / 12
    edge = end - start
    length = np.sqrt((edge**2).sum(axis=-1))
    distance = planar.cross(start, end) / np.where(length > 0, length, 1.0)
    beside = distance > 0
    near = np.where(beside, distance, 1.0)
    reach = np.sqrt(np.maximum(square / near**2 - 1.0, 0.0))
    across = np.where(beside, length * near, 1.0)
    low = np.maximum((start * edge).sum(axis=-1) / across, -reach)
    high = np.maximum(np.minimum((end * edge).sum(axis=-1) / across, reach), low)
    angle = np.where(beside, np.arctan(high) - np.arctan(low), pi)
    within = np.where(beside, high - low, 0.0)
    area = (square * angle - near**2 * within) / 2
    return area, 3.0 * (square**2 * angle - near**4 * (within + (high**3 - low**3) * beside / 3))


def error_floor(corners: FloatArray) -> float:
    """What the squared error of no symmetric convex body around a polygon, with corners ``(h, 2)``, can fall below.

    Any body around it has at least the excess of the polygon and of the level's disc outside. At the level where that
    is zero no body has less error; Dinkelbach's iteration falls towards it. (A segment is the best body around itself.)
    """
    half = len(corners) // 2
    start, end = corners[:half], corners[1 : half + 1]
    area, moment = (part.sum() for part in triangles(start, end))
    if not area > 0:
        return polygon_error(corners) * (1 - RELATIVE_TOLERANCE)
    level = float(moment / area)
    for _ in range(8):
        more, further = _beyond(start, end, level)
        level = float((moment + further.sum()) / (area + more.sum()))
    return level * (1 - RELATIVE_TOLERANCE)


def reach_bounds(corners: FloatArray, vectors: FloatArray) -> FloatArray:
    """For each vector ``(n, d)``: what the error of no body around ``(h, d)`` corners and the vector can fall below.

    The section of a symmetric convex body at a height, to the power of ``1/(d - 1)``, is concave in the height (Brunn
    and Minkowski), so that ``(d + 1)(d + 2) E(u·a)² >= 2 h(a)²`` for its support ``h``, with equality for a double
    cone. The error is the sum over any orthonormal frame, and supports only grow with the body.
    """
    if vectors.shape[1] == 2:
        return _planar_reach_bounds(corners, vectors)
    longest = np.argsort(-(corners**2).sum(axis=1), kind="stable")[:_FRAMES]
    bounds = np.zeros(len(vectors))
    for frame in _frames_along(corners[longest]):
        support = np.abs(corners @ frame).max(axis=0)
        np.maximum(bounds, (np.maximum(np.abs(vectors @ frame), support) ** 2).sum(axis=1), out=bounds)
    for first in range(0, len(vectors), _SHARE):
        part = slice(first, first + _SHARE)
        supports = np.abs(np.einsum("hd,nde->nhe", corners, _frames_along(vectors[part]))).max(axis=1)
        supports[:, 0] = np.maximum(supports[:, 0], np.linalg.norm(vectors[part], axis=1))
        np.maximum(bounds[part], (supports**2).sum(axis=1), out=bounds[part])
    return 2.0 * bounds


def _planar_reach_bounds(corners: FloatArray, vectors: FloatArray) -> FloatArray:
    support = _heights(corners).max(axis=0)
    bounds = np.zeros(len(vectors))
    for first in range(0, len(vectors), _SHARE):
        part = slice(first, first + _SHARE)
        squares = np.maximum(_heights(vectors[part]), support) ** 2
        bounds[part] = (squares[:, :64] + squares[:, 64:]).max(axis=1)
    return 2.0 * bounds


def _heights(vectors: FloatArray) -> FloatArray:
    """Heights over the directions, ``(n, 128)``; products of two terms, so that no library's order of sums shows."""
    return np.asarray(np.abs(vectors[:, :1] * _DIRECTIONS[:, 0] + vectors[:, 1:] * _DIRECTIONS[:, 1]))


def _frames_along(vectors: FloatArray) -> npt.NDArray[Any]:
    """Orthonormal frames ``(n, d, d)``, in columns, of which the first axis is along each vector (Householder)."""
    size = np.linalg.norm(vectors, axis=1, keepdims=True)
    along = np.where(size > 0, vectors / np.where(size > 0, size, 1.0), np.eye(1, vectors.shape[1]))
    mirror = along + np.where(along[:, :1] >= 0, 1.0, -1.0) * np.eye(1, vectors.shape[1])
    scale = 2.0 / (mirror**2).sum(axis=1)[:, None, None]
    return np.asarray(np.eye(vectors.shape[1]) - scale * mirror[:, :, None] * mirror[:, None, :])


def ball(radius: float, dimension: int) -> tuple[float, float]:
    """The volume of a ball, and ``(d + 1)(d + 2)`` times its second moment."""
    volume = pi ** (dimension / 2) / gamma(dimension / 2 + 1) * radius**dimension
    return volume, volume * dimension * (dimension + 1) * radius**2


def open_bounds(corners: FloatArray, vectors: FloatArray, level: float) -> FloatArray:
    """`reach_bounds`, infinite for vectors that no body around the corners holds which has less error than the level.

    In the plane that is also decided by the excess of the grown polygon and of the level's disc outside it, which is
    what `error_floor` is made of.
    """
    bounds = np.full(len(vectors), inf)
    open_ = np.flatnonzero(2.0 * (vectors**2).sum(axis=1) < level)
    found = reach_bounds(corners, vectors[open_])
    open_, found = open_[found < level], found[found < level]
    if vectors.shape[1] == 2 and len(corners) > 1:
        below = _grown_excess(corners, vectors[open_], level) < 0
        open_, found = open_[below], found[below]
    bounds[open_] = found
    return bounds


def _grown_excess(corners: FloatArray, vectors: FloatArray, level: float) -> FloatArray:
    """The excess of the body that each vector grows, and of the level's disc outside: no body around it has less.

    The edges that the vector sees give way to two; the same happens on the other side.
    """
    following = planar.following(corners)
    seen = planar.cross((following - corners)[None], vectors[:, None] - corners[None]) < 0
    touch = corners[(seen & ~np.roll(seen, 1, axis=1)).argmax(axis=1)]
    leave = following[(seen & ~np.roll(seen, -1, axis=1)).argmax(axis=1)]
    start, end = np.concatenate([corners, touch, vectors]), np.concatenate([following, vectors, leave])
    inside, outside = triangles(start, end), _beyond(start, end, level)
    excess = inside[1] + outside[1] - level * (inside[0] + outside[0])
    own, before, after = np.split(excess, [len(corners), len(corners) + len(vectors)])
    change = before + after - (seen * own).sum(axis=1)
    return np.asarray(own.sum() + np.where(seen.any(axis=1), 2.0 * change, 0.0))


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
