"""The differences that noise keeps within a loss, worked out from the vectors that the noise is made of.

It shares no code with the hulls, norms and degrees that lead to a release, because it is there to check them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import RELATIVE_TOLERANCE, FloatArray
from dphmm.compilation import often
from dphmm.errors import InvalidInputError, PromiseError
from dphmm.geometry import check_loops

_LEAST, _LARGEST = 1e-200, 1e100
_FEW_AXES = 6
_HEIGHTS = 1 << 22
_NO_BODY = "the noise is drawn from cones that tile no convex body; nothing was drawn"


@dataclass(frozen=True)
class Gauge:
    """A symmetric convex body, by walls or as a ball: what lies in it has a gauge of at most one.

    Parameters
    ----------
    normals, limits
        ``(m, d)`` and ``(m,)``: the body is ``|normals v| <= limits``. ``None`` for a ball.
    order, radius
        Otherwise the body is the ball of this radius in the norm of this order.
    """

    normals: FloatArray | None
    limits: FloatArray = field(default_factory=lambda: np.zeros(0))
    order: int = 2
    radius: float = 0.0

    @classmethod
    def of_cones(cls, cones: npt.NDArray[Any], scale: float, rounding: float) -> Gauge:
        """The convex body, times a scale, that simplicial cones tile.

        Parameters
        ----------
        cones
            ``(c, r, d)``: with the origin, the ``r`` vectors of each cone span a simplex of the body.
        scale
            How much larger it is than that.
        rounding
            A length by which differences may miss the body, beside the one tolerance: coordinates are rounded.

        Raises
        ------
        PromiseError
            When the cones tile no convex body.
        """
        _check_lengths(scale, rounding)
        vectors = np.ascontiguousarray(cones, dtype=np.float64)
        if vectors.shape[1:] != (2, 2):
            return _of_cones(vectors.shape, vectors.tobytes(), scale, rounding)
        normals, limits = np.empty((len(vectors), 2)), np.empty(len(vectors))
        if not _walls_of_cones(vectors, float(scale), float(rounding), RELATIVE_TOLERANCE, normals, limits):
            raise PromiseError(_NO_BODY)
        return cls(normals, limits)

    @classmethod
    def of_ball(cls, order: int, radius: float, dimension: int, rounding: float) -> Gauge:
        """The ball of a norm: of order 1 or 2. The former has walls where there are few axes."""
        _check_lengths(radius, rounding)
        outer = radius * (1 + 2 * RELATIVE_TOLERANCE) + rounding * dimension
        if order == 1 and dimension <= _FEW_AXES:
            signs = np.array([(1.0, *rest) for rest in product((1.0, -1.0), repeat=dimension - 1)])
            return cls(signs, np.full(len(signs), outer))
        return cls(None, np.zeros(0), order, outer)

    def __call__(self, vectors: FloatArray) -> FloatArray:
        """The gauge ``(n,)`` of vectors ``(n, d)``."""
        if self.normals is None:
            return np.asarray(np.linalg.norm(vectors, ord=self.order, axis=1) / max(self.radius, _LEAST))
        return np.asarray(np.abs(self.heights(vectors)).max(axis=1, initial=0.0))

    def heights(self, points: FloatArray) -> FloatArray:
        """For walls, ``(n, m)``: the gauge of a difference of points is the largest difference of their heights."""
        assert self.normals is not None, "a ball has no walls"
        return np.asarray(points @ self.normals.T / np.maximum(self.limits, _LEAST))

    def embedded(self, points: FloatArray) -> tuple[FloatArray, float]:
        """Points whose distances, in the norm of an order, are the gauges of the differences of some points."""
        if self.normals is None:
            return points / max(self.radius, _LEAST), float(self.order)
        return self.heights(points), np.inf

    @cached_property
    def inner(self) -> float:
        """A Euclidean length up to which every vector lies in the body."""
        if self.normals is None:
            return self.radius if self.order == 2 else 0.0
        lengths = np.sqrt(np.add.reduce(self.normals * self.normals, axis=1))
        return float((self.limits / lengths).min(initial=np.inf))

    @cached_property
    def key(self) -> bytes:
        """What is the same for the same body only."""
        if self.normals is None:
            return repr((self.order, self.radius)).encode()
        return self.normals.tobytes() + self.limits.tobytes()


@often(check_loops.walls_of_cones)
def _walls_of_cones(
    cones: FloatArray, scale: float, rounding: float, tolerance: float, normals: FloatArray, limits: FloatArray
) -> bool:
    tips, v, w = cones.reshape(-1, 2), cones[:, 0], cones[:, 1]
    size = float(np.abs(tips).max(initial=0.0))
    is_exact = size < check_loops.EXACT and bool((tips == np.rint(tips)).all())
    blur = 0.0 if is_exact else check_loops.ROUNDING * size
    offsets = v[:, 0] * w[:, 1] - v[:, 1] * w[:, 0]
    sign = np.where(offsets > 0.0, 1.0, -1.0)
    normals[:, 0], normals[:, 1] = (w[:, 1] - v[:, 1]) * sign, (v[:, 0] - w[:, 0]) * sign
    offsets *= sign
    spread = np.abs(normals).sum(axis=1)
    limits[:] = offsets * (scale * (1.0 + 2.0 * tolerance)) + scale * (spread * blur) + spread * rounding
    heights = np.abs(tips[:, 0, None] * normals[:, 0] + tips[:, 1, None] * normals[:, 1])
    return bool((offsets > 0.0).all() and (heights <= offsets * (1.0 + tolerance) + spread * blur).all())


def _check_lengths(scale: float, rounding: float) -> None:
    if not (0 <= scale <= _LARGEST and 0 <= rounding <= _LARGEST):
        raise InvalidInputError(f"a loss of noise of this scale ({scale:g}, rounding {rounding:g}) is beyond doubles")


@lru_cache(maxsize=256)
def _of_cones(shape: tuple[int, int, int], data: bytes, scale: float, rounding: float) -> Gauge:
    """The body of some cones, but in the plane; the same few are met again and again."""
    cones = np.frombuffer(data).reshape(shape)
    tips = cones.reshape(-1, shape[2])
    normals, offsets, across = _walls(cones)
    size = float(np.abs(tips).max(initial=0.0))
    spread = np.abs(normals).sum(axis=1)
    exact = size < check_loops.EXACT and bool((cones == np.rint(cones)).all())
    slack = spread * (0.0 if exact else check_loops.ROUNDING * size)
    if not (offsets > 0).all():
        raise PromiseError(_NO_BODY)
    # Every corner belongs to many cones. Heights of different corners over a block of facets at a time bound memory.
    corners, limit = np.unique(tips, axis=0), offsets * (1 + RELATIVE_TOLERANCE) + slack
    several = max(1, _HEIGHTS // max(1, len(corners)))
    for start in range(0, len(normals), several):
        if not (np.abs(corners @ normals[start : start + several].T) <= limit[start : start + several]).all():
            raise PromiseError(_NO_BODY)
    limits = offsets * (scale * (1 + 2 * RELATIVE_TOLERANCE)) + scale * slack + spread * rounding
    if not len(across):
        return Gauge(normals, limits)
    flat = np.full(len(across), rounding + check_loops.ROUNDING * scale * size)
    if exact and rounding == 0.0 and shape[1:] in ((1, 2), (1, 3), (2, 3)):
        across = _whole_across(cones[0])
        flat = np.zeros(len(across))
    return Gauge(np.concatenate([normals, across]), np.concatenate([limits, flat]))


def _whole_across(vectors: FloatArray) -> FloatArray:
    """Whole rows at right angles to one or two whole vectors in the plane or in space, that nothing else is so to.

    The heights of whole points over them are exact, however far away the points lie; those over unit rows are not.
    """
    if vectors.shape == (1, 2):
        return vectors[:, ::-1] * [-1.0, 1.0]
    if len(vectors) == 1:
        return np.cross(np.eye(3), vectors[0])
    return np.cross(vectors[:1], vectors[1:])


def _walls(cones: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Normals and offsets of the facets that the cones lie over, and orthonormal rows across their span."""
    _, rank, dimension = cones.shape
    if rank == 0:
        return np.zeros((0, dimension)), np.zeros(0), np.eye(dimension)
    if rank == 1:
        normals = cones[:1, 0]
        offsets = (normals * normals).sum(axis=1)
        if dimension == 1:
            return normals, offsets, np.zeros((0, 1))
    basis = np.linalg.qr(cones[0].T, mode="complete")[0]
    if rank > 1:
        try:
            inner = np.linalg.solve(cones @ basis[:, :rank], np.ones((len(cones), rank, 1)))[..., 0]
        except np.linalg.LinAlgError:
            raise PromiseError("the noise is drawn from cones without volume; nothing was drawn") from None
        normals, offsets = inner @ basis[:, :rank].T, np.ones(len(cones))
    return normals, offsets, basis[:, rank:].T
