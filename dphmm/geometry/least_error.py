"""How small the squared error of noise can be in a symmetric convex body that holds a given one.

The squared error of a release at epsilon one, ``(r + 1)(r + 2) E|u|²`` of ``u`` uniform in a body of dimension ``r``,
is no monotone function of the body: a larger one may have the smaller error. What is bounded here is its least value
over all symmetric convex bodies around a given one. Points are in the unit that the error is measured in.

In the plane a body's error is below a level iff its *excess*, twelve times its second moment less the level times its
area, is negative. The excess adds up over disjoint parts, and is negative only within the *level's disc*, of radius
``√(level / 12)``.
"""

from __future__ import annotations

from math import gamma, inf, pi
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import RELATIVE_TOLERANCE, FloatArray
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
