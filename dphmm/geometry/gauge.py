"""Gauges: sets of differences with bounded privacy loss, computed from the noise vectors.

They share no code with the hulls, norms and degrees that lead to a release, because they check these.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, read_only
from dphmm.compilation import compile_if_hot
from dphmm.errors import GuaranteeError, InvalidInputError
from dphmm.geometry import soundness_loops
from dphmm.tolerances import RELATIVE_TOLERANCE

# Lower bound on divisors, so that a body without extent has a huge gauge, and the zero vector none.
_MIN_LENGTH = 1e-200
# Products of a few such lengths stay within doubles.
_MAX_LENGTH = 1e100
# A ball of the 1-norm in d dimensions has 2^(d - 1) pairs of half-spaces: at most 32 up to this dimension.
_MAX_WALL_AXES = 6
# Number of heights of corners over facets in a block, 32 MB of them.
_MAX_HEIGHTS = 1 << 22
_NO_BODY = "the cones of the noise must tile a convex body; the release was aborted"


@dataclass(frozen=True)
class Gauge:
    """A symmetric convex body, by half-spaces or as a ball, and its Minkowski gauge.

    Parameters
    ----------
    normals, limits
        ``(m, d)`` and ``(m,)``: the body is ``|normals v| <= limits``. ``None`` for a ball.
    order, radius
        If `normals` is None, the body is the ball of this radius in the norm of this order.
    axes
        ``(m, d)``: the ball is that of ``axes v``, an ellipsoid. None for a ball of ``v``.
    """

    normals: FloatArray | None
    limits: FloatArray = field(default_factory=lambda: np.zeros(0))
    order: int = 2
    radius: float = 0.0
    axes: FloatArray | None = None

    @classmethod
    def from_cones(cls, cones: npt.NDArray[Any], scale: float, rounding: float) -> Gauge:
        """Build the convex body, times a scale, that simplicial cones tile.

        Parameters
        ----------
        cones
            ``(c, r, d)``: with the origin, the ``r`` vectors of each cone span a simplex of the body.
        scale
            The factor by which the body is enlarged.
        rounding
            A length by which differences may miss the body because coordinates are rounded, in addition to the
            tolerance.

        Raises
        ------
        GuaranteeError
            If the cones do not tile a convex body.
        """
        _check_lengths(scale, rounding)
        vectors = read_only(np.asarray(cones, dtype=np.float64))
        if vectors.shape[1:] != (2, 2):
            return _build_from_cones(vectors.shape, vectors.tobytes(), scale, rounding)
        normals = np.empty((len(vectors), 2))
        limits = np.empty(len(vectors))
        if not _compute_halfspaces(vectors, float(scale), float(rounding), RELATIVE_TOLERANCE, normals, limits):
            raise GuaranteeError(_NO_BODY)
        return cls(normals, limits)

    @classmethod
    def from_ball(cls, order: int, radius: float, dimension: int, rounding: float) -> Gauge:
        """Build the ball of a norm of order 1 or 2. Order 1 has half-spaces if there are few axes."""
        _check_lengths(radius, rounding)
        outer = radius * (1 + 2 * RELATIVE_TOLERANCE) + rounding * dimension
        if order == 1 and dimension <= _MAX_WALL_AXES:
            signs = np.array([(1.0, *rest) for rest in product((1.0, -1.0), repeat=dimension - 1)])
            return cls(signs, np.full(len(signs), outer))
        return cls(None, np.zeros(0), order, outer)

    @classmethod
    def from_ellipsoid(cls, axes: npt.ArrayLike, radius: float, rounding: float) -> Gauge:
        """Build the ellipsoid ``‖axes v‖ <= radius`` of the Euclidean norm.

        Parameters
        ----------
        axes
            ``(d, d)``, invertible.
        radius
            The bound, not negative.
        rounding
            A length by which differences may miss the body because coordinates are rounded.

        Raises
        ------
        InvalidInputError
            If `axes` is not an invertible square matrix.
        """
        matrix = read_only(np.array(axes, dtype=np.float64))
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not np.linalg.matrix_rank(matrix) == len(matrix):
            raise InvalidInputError(f"axes must be an invertible square matrix, got shape {matrix.shape}")
        _check_lengths(radius, rounding)
        longest = float(np.linalg.norm(matrix, 2))
        return cls(
            None, np.zeros(0), 2, radius * (1 + 2 * RELATIVE_TOLERANCE) + rounding * len(matrix) * longest, matrix
        )

    def __call__(self, vectors: FloatArray) -> FloatArray:
        """Return the gauge ``(n,)`` of vectors ``(n, d)``."""
        if self.normals is None:
            mapped = vectors if self.axes is None else vectors @ self.axes.T
            return np.asarray(np.linalg.norm(mapped, ord=self.order, axis=1) / max(self.radius, _MIN_LENGTH))
        return np.asarray(np.abs(self.compute_heights(vectors)).max(axis=1, initial=0.0))

    def compute_heights(self, points: FloatArray) -> FloatArray:
        """Return the heights ``(n, m)`` of points over half-spaces.

        The gauge of a difference of points is the largest difference of their heights.
        """
        assert self.normals is not None, "a ball has no half-spaces"
        return np.asarray(points @ self.normals.T / np.maximum(self.limits, _MIN_LENGTH))

    def embed_points(self, points: FloatArray) -> tuple[FloatArray, float]:
        """Map points so that distances are gauges of differences. Also return the norm's order."""
        if self.normals is None:
            mapped = points if self.axes is None else points @ self.axes.T
            return mapped / max(self.radius, _MIN_LENGTH), float(self.order)
        return self.compute_heights(points), np.inf

    @cached_property
    def inner(self) -> float:
        """A Euclidean length below which every vector lies in the body."""
        if self.normals is None:
            longest = 1.0 if self.axes is None else float(np.linalg.norm(self.axes, 2))
            return self.radius / longest if self.order == 2 else 0.0
        lengths = np.sqrt(np.add.reduce(self.normals * self.normals, axis=1))
        return float((self.limits / lengths).min(initial=np.inf))

    @cached_property
    def key(self) -> bytes:
        """An identifier of the body."""
        if self.normals is None:
            return repr((self.order, self.radius)).encode() + (b"" if self.axes is None else self.axes.tobytes())
        return self.normals.tobytes() + self.limits.tobytes()


@compile_if_hot(soundness_loops.write_halfspaces)
def _compute_halfspaces(
    cones: FloatArray, scale: float, rounding: float, tolerance: float, normals: FloatArray, limits: FloatArray
) -> bool:
    tips = cones.reshape(-1, 2)
    v = cones[:, 0]
    w = cones[:, 1]
    size = float(np.abs(tips).max(initial=0.0))
    is_exact = size < soundness_loops.EXACT_LIMIT and bool((tips == np.rint(tips)).all())
    blur = 0.0 if is_exact else soundness_loops.ROUNDING * size
    offsets = v[:, 0] * w[:, 1] - v[:, 1] * w[:, 0]
    sign = np.where(offsets > 0.0, 1.0, -1.0)
    normals[:, 0] = (w[:, 1] - v[:, 1]) * sign
    normals[:, 1] = (v[:, 0] - w[:, 0]) * sign
    offsets *= sign
    spread = np.abs(normals).sum(axis=1)
    limits[:] = offsets * (scale * (1.0 + 2.0 * tolerance)) + scale * (spread * blur) + spread * rounding
    heights = np.abs(tips[:, 0, None] * normals[:, 0] + tips[:, 1, None] * normals[:, 1])
    return bool((offsets > 0.0).all() and (heights <= offsets * (1.0 + tolerance) + spread * blur).all())


def _check_lengths(scale: float, rounding: float) -> None:
    if not (0 <= scale <= _MAX_LENGTH and 0 <= rounding <= _MAX_LENGTH):
        raise InvalidInputError(f"scale and rounding must be in [0, {_MAX_LENGTH:g}], got {scale:g} and {rounding:g}")


@lru_cache(maxsize=256)
def _build_from_cones(shape: tuple[int, int, int], data: bytes, scale: float, rounding: float) -> Gauge:
    """Return the body of cones outside the plane, cached because few bodies recur."""
    cones = np.frombuffer(data).reshape(shape)
    tips = cones.reshape(-1, shape[2])
    normals, offsets, across = _compute_facets(cones)
    size = float(np.abs(tips).max(initial=0.0))
    spread = np.abs(normals).sum(axis=1)
    exact = size < soundness_loops.EXACT_LIMIT and bool((cones == np.rint(cones)).all())
    slack = spread * (0.0 if exact else soundness_loops.ROUNDING * size)
    if not (offsets > 0).all():
        raise GuaranteeError(_NO_BODY)
    # Every corner belongs to many cones. Heights of distinct corners over a block of facets at a time bound memory.
    corners = np.unique(tips, axis=0)
    limit = offsets * (1 + RELATIVE_TOLERANCE) + slack
    several = max(1, _MAX_HEIGHTS // max(1, len(corners)))
    for start in range(0, len(normals), several):
        if not (np.abs(corners @ normals[start : start + several].T) <= limit[start : start + several]).all():
            raise GuaranteeError(_NO_BODY)
    limits = offsets * (scale * (1 + 2 * RELATIVE_TOLERANCE)) + scale * slack + spread * rounding
    if not len(across):
        return Gauge(normals, limits)
    flat = np.full(len(across), rounding + soundness_loops.ROUNDING * scale * size)
    if exact and rounding == 0.0 and shape[1:] in ((1, 2), (1, 3), (2, 3)):
        across = _find_integer_normals(cones[0])
        flat = np.zeros(len(across))
    return Gauge(np.concatenate([normals, across]), np.concatenate([limits, flat]))


def _find_integer_normals(vectors: FloatArray) -> FloatArray:
    """Return integer rows orthogonal to one or two integer vectors, and to no others.

    Heights of integer points over them are exact at any distance; heights over unit rows are not.
    """
    if vectors.shape == (1, 2):
        return vectors[:, ::-1] * [-1.0, 1.0]
    if len(vectors) == 1:
        return np.cross(np.eye(3), vectors[0])
    return np.cross(vectors[:1], vectors[1:])


def _compute_facets(cones: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return normals and offsets of the cones' facets, and orthonormal rows across their span."""
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
            raise GuaranteeError("the cones of the noise must have positive volume; the release was aborted") from None
        normals = inner @ basis[:, :rank].T
        offsets = np.ones(len(cones))
    return normals, offsets, basis[:, rank:].T
