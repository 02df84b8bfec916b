"""Lower bounds on the squared error of noise in symmetric convex bodies around one.

The squared error of a release at epsilon one, ``(r + 1)(r + 2) E|u|²`` of ``u`` uniform in a body of dimension ``r``,
is not monotone in the body: a larger one may have the smaller error. The bounds here are on its minimum over all
symmetric convex bodies around a given one. Points are in the unit of the error.

In the plane a body's error is below a level iff its *excess*, twelve times its second moment minus the level times its
area, is negative. The excess is additive over disjoint parts, and negative only within the *level's disc*, of radius
``√(level / 12)``. With further vertices among given points, the excess of a polygon is a sum over its edges, and a
convex polygon is a chain of edges that turn left: the minimum excess is a shortest path. Its error is the level of the
next round (Dinkelbach). If no path has a negative excess, the level is the minimum error.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gamma, inf, pi
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, IntArray
from dphmm.geometry import planar
from dphmm.tolerances import RELATIVE_TOLERANCE

# Directions of a half turn, 1.4 degrees apart. The first and the last 64 are pairwise orthogonal and form 64
# orthonormal frames.
_ANGLES = np.pi * np.arange(64) / 128
_COSINES = np.cos(_ANGLES)
_SINES = np.sin(_ANGLES)
_DIRECTIONS: FloatArray = np.stack([np.r_[_COSINES, -_SINES], np.r_[_SINES, _COSINES]], axis=1)
# Outside the plane the bound of `compute_reach_bounds` uses this number of a body's longest vertices.
_NUM_FRAMES = 8
# Number of vectors in a block of bounds: 4 MB of heights over 128 directions.
_VECTOR_BLOCK = 1 << 12


def integrate_triangles(start: FloatArray, end: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return areas and ``12 ∫ |u|²`` of the triangles between the origin and edges ``(…, 2)``."""
    area = planar.cross(start, end) / 2
    both = start + end
    return area, area * (planar.dot(start, start) + planar.dot(end, end) + planar.dot(both, both))


def compute_polygon_error(corners: FloatArray) -> float:
    """Return the squared error at epsilon one of a symmetric polygon or segment ``(h, 2)``."""
    area, moment, reach = planar.integrate_polygon(corners)
    return moment / area if area > 0 else 2.0 * reach


def _integrate_beyond_edges(start: FloatArray, end: FloatArray, level: float) -> tuple[FloatArray, FloatArray]:
    """Return area and ``12 ∫ |u|²`` of the part of the level's disc beyond each edge.

    The part is seen from the origin. An edge through the origin has half of the disc beyond it.
    """
    square = level / 12
    edge = end - start
    length = np.sqrt((edge**2).sum(axis=-1))
    distance = planar.cross(start, end) / np.where(length > 0, length, 1.0)
    has_distance = distance > 0
    near = np.where(has_distance, distance, 1.0)
    reach = np.sqrt(np.maximum(square / near**2 - 1.0, 0.0))
    across = np.where(has_distance, length * near, 1.0)
    # For the line through the edge, at distance ``near``: the tangents of the angles of its ends, clipped to the disc.
    low = np.maximum((start * edge).sum(axis=-1) / across, -reach)
    high = np.maximum(np.minimum((end * edge).sum(axis=-1) / across, reach), low)
    angle = np.where(has_distance, np.arctan(high) - np.arctan(low), pi)
    within = np.where(has_distance, high - low, 0.0)
    area = (square * angle - near**2 * within) / 2
    return area, 3.0 * (square**2 * angle - near**4 * (within + (high**3 - low**3) * has_distance / 3))


def compute_error_floor(corners: FloatArray) -> float:
    """Return a lower bound on the squared error of any symmetric convex body around a polygon.

    The corners are ``(h, 2)``. Any body around the polygon has at least the excess of the polygon and of the level's
    disc outside it. At the level with zero excess no body has less error; Dinkelbach's iteration decreases towards it.
    (A segment is the optimal body around itself.)
    """
    half = len(corners) // 2
    start, end = corners[:half], corners[1 : half + 1]
    area, moment = (part.sum() for part in integrate_triangles(start, end))
    if not area > 0:
        return compute_polygon_error(corners) * (1 - RELATIVE_TOLERANCE)
    level = float(moment / area)
    # Dinkelbach's iteration converges superlinearly: after eight steps the remainder is below the tolerance that is
    # subtracted.
    for _ in range(8):
        more, further = _integrate_beyond_edges(start, end, level)
        level = float((moment + further.sum()) / (area + more.sum()))
    return level * (1 - RELATIVE_TOLERANCE)


def compute_reach_bounds(corners: FloatArray, vectors: FloatArray) -> FloatArray:
    """Return a lower bound on the error of any body around corners and each vector.

    Corners are ``(h, d)``, vectors ``(n, d)``. The section of a symmetric convex body at a height, to the power of
    ``1/(d - 1)``, is concave in the height (Brunn and Minkowski). Therefore ``(d + 1)(d + 2) E(u·a)² >= 2 h(a)²`` for
    its support ``h``, with equality for a double cone. The error is the sum over any orthonormal frame, and supports
    are monotone in the body.
    """
    if vectors.shape[1] == 2:
        return _compute_planar_reach_bounds(corners, vectors)
    longest = np.argsort(-(corners**2).sum(axis=1), kind="stable")[:_NUM_FRAMES]
    bounds = np.zeros(len(vectors))
    for frame in _build_frames_along(corners[longest]):
        support = np.abs(corners @ frame).max(axis=0)
        np.maximum(bounds, (np.maximum(np.abs(vectors @ frame), support) ** 2).sum(axis=1), out=bounds)
    for first in range(0, len(vectors), _VECTOR_BLOCK):
        part = slice(first, first + _VECTOR_BLOCK)
        supports = np.abs(np.einsum("hd,nde->nhe", corners, _build_frames_along(vectors[part]))).max(axis=1)
        supports[:, 0] = np.maximum(supports[:, 0], np.linalg.norm(vectors[part], axis=1))
        np.maximum(bounds[part], (supports**2).sum(axis=1), out=bounds[part])
    return 2.0 * bounds


def _compute_planar_reach_bounds(corners: FloatArray, vectors: FloatArray) -> FloatArray:
    support = _compute_heights(corners).max(axis=0)
    bounds = np.zeros(len(vectors))
    for first in range(0, len(vectors), _VECTOR_BLOCK):
        part = slice(first, first + _VECTOR_BLOCK)
        squares = np.maximum(_compute_heights(vectors[part]), support) ** 2
        bounds[part] = (squares[:, :64] + squares[:, 64:]).max(axis=1)
    return 2.0 * bounds


def _compute_heights(vectors: FloatArray) -> FloatArray:
    """Return heights over the directions, ``(n, 128)``."""
    # As products of two terms, so that the result does not depend on a library's order of summation.
    return np.asarray(np.abs(vectors[:, :1] * _DIRECTIONS[:, 0] + vectors[:, 1:] * _DIRECTIONS[:, 1]))


def _build_frames_along(vectors: FloatArray) -> npt.NDArray[Any]:
    """Return orthonormal frames ``(n, d, d)`` with the first column along each vector."""
    # Householder reflections.
    size = np.linalg.norm(vectors, axis=1, keepdims=True)
    along = np.where(size > 0, vectors / np.where(size > 0, size, 1.0), np.eye(1, vectors.shape[1]))
    mirror = along + np.where(along[:, :1] >= 0, 1.0, -1.0) * np.eye(1, vectors.shape[1])
    scale = 2.0 / (mirror**2).sum(axis=1)[:, None, None]
    return np.asarray(np.eye(vectors.shape[1]) - scale * mirror[:, :, None] * mirror[:, None, :])


def integrate_ball(radius: float, dimension: int) -> tuple[float, float]:
    """Return the volume of a ball, and ``(d + 1)(d + 2)`` times its second moment."""
    volume = pi ** (dimension / 2) / gamma(dimension / 2 + 1) * radius**dimension
    return volume, volume * dimension * (dimension + 1) * radius**2


def compute_open_bounds(corners: FloatArray, vectors: FloatArray, level: float) -> FloatArray:
    """Return `compute_reach_bounds`, infinite for vectors outside all better bodies.

    The bodies contain the corners. In the plane this is also decided by the excess of the grown polygon and of the
    level's disc outside it, as in `compute_error_floor`.
    """
    bounds = np.full(len(vectors), inf)
    open_ = np.flatnonzero(2.0 * (vectors**2).sum(axis=1) < level)
    lower = compute_reach_bounds(corners, vectors[open_])
    open_ = open_[lower < level]
    lower = lower[lower < level]
    if vectors.shape[1] == 2 and len(corners) > 1:
        below = _bound_grown_excess(corners, vectors[open_], level) < 0
        open_ = open_[below]
        lower = lower[below]
    bounds[open_] = lower
    return bounds


def _bound_grown_excess(corners: FloatArray, vectors: FloatArray, level: float) -> FloatArray:
    """Return a lower bound on the excess of any body around corners and each vector.

    It is the excess of the grown polygon and of the level's disc outside it. The edges that the vector sees are
    replaced by two; the other side is symmetric.
    """
    following = planar.get_next_vertices(corners)
    seen = planar.cross((following - corners)[None], vectors[:, None] - corners[None]) < 0
    touch = corners[(seen & ~np.roll(seen, 1, axis=1)).argmax(axis=1)]
    leave = following[(seen & ~np.roll(seen, -1, axis=1)).argmax(axis=1)]
    start = np.concatenate([corners, touch, vectors])
    end = np.concatenate([following, vectors, leave])
    inside = integrate_triangles(start, end)
    outside = _integrate_beyond_edges(start, end, level)
    excess = inside[1] + outside[1] - level * (inside[0] + outside[0])
    of_edges, before, after = np.split(excess, [len(corners), len(corners) + len(vectors)])
    change = before + after - (seen * of_edges).sum(axis=1)
    return np.asarray(of_edges.sum() + np.where(seen.any(axis=1), 2.0 * change, 0.0))


# Smaller relative improvements of the error are rounding.
_MIN_GAIN = 1e-12
# Maximum number of points in a graph, which has as many edges as there are pairs of points.
_MAX_GRAPH_POINTS = 2000
# Units of work of a round (see `dphmm.policy.branch_and_bound.Work`): per pair of points, per point, and constant.
_WORK_PER_EDGE = 150
_WORK_PER_POINT = 3_000
_WORK_PER_ROUND = 500_000


def find_min_error_polygon(
    corners: FloatArray, points: FloatArray, level: float, spend: Callable[[int], None]
) -> tuple[float, IntArray, bool]:
    """Return the polygon of minimum error around a polygon with further vertices among points.

    Parameters
    ----------
    corners
        ``(h, 2)``: a symmetric polygon of positive area, counter-clockwise, in the unit of the error.
    points
        ``(n, 2)``: points outside it; each represents its opposite as well.
    level
        The error to improve on; other polygons are not searched.
    spend
        Called with the units of work that are about to be done. It may raise to stop the search.

    Returns
    -------
    level
        The minimum error, or the level passed.
    chosen
        The points that span the polygon with the corners: none if the corners suffice, or nothing improves the level.
    complete
        Whether all points were examined: false if there were too many for one graph, and nothing is proven.

    Notes
    -----
    The polygon has a vertex that is farthest along the longest corner: that corner, or a point. For each such apex
    the chain from it to its opposite is a separate problem, in which nothing lies farther than the apex.
    """
    error = compute_polygon_error(corners)
    best = min(error, level)
    chosen = np.zeros(0, dtype=np.int64)
    complete = True
    apex = corners[(corners**2).sum(axis=1).argmax()]
    square = float((apex**2).sum())
    spend(_WORK_PER_POINT * len(points))
    bounds = compute_open_bounds(corners, points, best)
    inner = np.flatnonzero(np.isfinite(bounds))
    along = np.abs(planar.dot(points, apex))
    beyond = inner[along[inner] > square * (1 + RELATIVE_TOLERANCE)]
    for index in (-1, *beyond[np.argsort(along[beyond], kind="stable")].tolist()):
        held = np.zeros(0, dtype=np.int64)
        tip = apex
        reach = square
        grown = corners
        if index >= 0:
            if bounds[index] >= best:
                continue
            held = np.array([index])
            reach = float(along[index])
            tip = points[index] if planar.dot(points[index], apex) > 0 else -points[index]
            grown = planar.build_convex_polygon(np.concatenate([corners, tip[None], -tip[None]]))
            if compute_polygon_error(grown) < best * (1 - _MIN_GAIN):
                best = compute_polygon_error(grown)
                chosen = held
        others = inner[along[inner] <= reach * (1 + RELATIVE_TOLERANCE)]
        others = others[_find_outside_points(grown, points[others])]
        while True:
            spend(_WORK_PER_ROUND + _WORK_PER_POINT * len(others))
            nearer = compute_open_bounds(grown, points[others], best)
            others = others[np.isfinite(nearer)]
            nearer = nearer[np.isfinite(nearer)]
            taken = (
                others
                if len(others) <= _MAX_GRAPH_POINTS
                else others[np.sort(np.argsort(nearer, kind="stable")[:_MAX_GRAPH_POINTS])]
            )
            spend(len(taken) * (len(taken) * _WORK_PER_EDGE + _WORK_PER_POINT))
            path = taken[_find_min_chain(grown, tip, points[taken], best)] if len(taken) else taken
            both = np.concatenate([grown, points[path], -points[path]])
            error = compute_polygon_error(planar.build_convex_polygon(both))
            if error >= best * (1 - _MIN_GAIN):
                complete &= len(taken) == len(others)
                break
            best = error
            chosen = np.concatenate([held, path])
    return best, chosen, complete


def _find_outside_points(corners: FloatArray, points: FloatArray) -> IntArray:
    """Return the indices of points outside a polygon, by more than the tolerance."""
    normals, offsets = planar.half_planes(corners)
    heights = np.abs(points[:, :1] * normals[:, 0] + points[:, 1:] * normals[:, 1])
    return np.flatnonzero((heights > offsets * (1 + RELATIVE_TOLERANCE)).any(axis=1))


def _find_min_chain(corners: FloatArray, apex: FloatArray, points: FloatArray, level: float) -> IntArray:
    """Return the points on the chain of minimum excess from the apex to its opposite.

    There are none if no excess is negative. A state of the search is an edge, and the next edge turns left. The apex is
    extreme among the points. Therefore the chain and its opposite form a convex polygon.
    """
    vertices, indices = _order_vertices(corners, apex, points)
    count = len(vertices)
    edges = vertices[None] - vertices[:, None]
    area, moment = integrate_triangles(vertices[:, None], vertices[None])
    # An edge is allowed if no corner lies beyond it. Twice its triangle's area is its length times its distance from
    # the origin, and its product with a corner is its length times the corner's height.
    support = np.zeros((count, count))
    for x, y in corners[: len(corners) // 2].tolist():
        np.maximum(support, np.abs(edges[..., 0] * y - edges[..., 1] * x), out=support)
    tiny = _MIN_GAIN * float(area.max())
    allowed = (np.arange(count)[:, None] < np.arange(count)) & (area > tiny) & (2 * area >= support - tiny)
    allowed[0, -1] = False
    excess = np.where(allowed, moment - level * area, np.inf)
    heading = np.arctan2(edges[..., 1], edges[..., 0]) - np.arctan2(apex[1], apex[0])
    heading %= 2 * np.pi
    minimum = np.full((count, count), np.inf)
    before = np.zeros((count, count), dtype=np.int64)
    minimum[0] = excess[0]
    # Edges into a vertex are sorted by heading. An edge out of it may follow each edge with a heading less far to the
    # left; the running minimum is the best of these: O(n² log n) for n vertices.
    for middle in range(1, count - 1):
        into = np.flatnonzero(np.isfinite(minimum[:middle, middle]))
        onto = np.flatnonzero(allowed[middle])
        into = into[np.argsort(heading[into, middle], kind="stable")]
        values = minimum[into, middle]
        lowest = np.minimum.accumulate(values)
        at = np.maximum.accumulate(np.where(values <= lowest, np.arange(len(into)), 0))
        turning = np.searchsorted(heading[into, middle], heading[middle, onto] + RELATIVE_TOLERANCE, "right") - 1
        onto = onto[turning >= 0]
        turning = turning[turning >= 0]
        minimum[middle, onto] = lowest[turning] + excess[middle, onto]
        before[middle, onto] = into[at[turning]]
    last = int(minimum[:-1, -1].argmin())
    end = count - 1
    path = []
    if minimum[last, end] < 0:
        while last > 0:
            path.append(int(indices[last]))
            last, end = int(before[last, end]), last
    return np.array([index for index in path if index >= 0], dtype=np.int64)


def _order_vertices(corners: FloatArray, apex: FloatArray, points: FloatArray) -> tuple[FloatArray, IntArray]:
    """Return the vertices from the apex to its opposite, and point indices or -1."""
    everything = np.concatenate([points, corners[: len(corners) // 2]])
    indices = np.where(np.arange(len(everything)) < len(points), np.arange(len(everything)), -1)
    side = planar.cross(apex, everything)
    everything = np.where(side[:, None] < 0, -everything, everything)
    angle = np.arctan2(np.abs(side), planar.dot(everything, apex))
    order = np.argsort(angle, kind="stable")
    order = order[np.abs(side[order]) > RELATIVE_TOLERANCE * (apex**2).sum()]
    return np.concatenate([apex[None], everything[order], -apex[None]]), np.r_[-1, indices[order], -1]
