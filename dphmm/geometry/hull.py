"""The sensitivity hull, the symmetric convex hull of a set of differences; and the disc, the other body of noise.

A symmetric polytope is ``{v : E v = 0, |A v| <= b}``: its linear span is the null space of ``E``, and every pair of
opposite facets is one row of ``A``. Where ``E``, ``A`` and ``b`` are integers, membership of integer and rational
vectors is decided without rounding.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import product
from math import factorial, gamma, pi, sqrt
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import (
    LARGEST,
    RELATIVE_TOLERANCE,
    SMALLEST,
    BoolArray,
    FloatArray,
    IntArray,
    as_floats,
    as_points,
    frozen,
    locked,
)
from dphmm.errors import CoordinateError, InvalidInputError
from dphmm.geometry import planar
from dphmm.geometry.convex_combination import in_convex_hull
from dphmm.geometry.facets import (
    Boundary,
    check_size,
    integer_half_spaces,
    is_vertex,
    one_side,
    outer_points,
    symmetric_boundary,
)
from dphmm.geometry.span import (
    Span,
    common_denominator,
    exact_product,
    exact_span,
    float_span,
    largest,
)
from dphmm.tables.values import shorten

if TYPE_CHECKING:
    from shapely.geometry.base import BaseGeometry

Body = Literal["hull", "cross-polytope", "disc"]
"""What noise is drawn from: the sensitivity hull itself, or the least cross-polytope or disc that holds it."""

Membership = Literal["halfspace", "qp"]
"""How membership in a hull is decided: by its half-spaces, or by the quadratic program of Equation (6)."""

_MOST_ROWS = 1 << 12

_PLANE = Span((0, 1), locked(np.zeros((0, 2), dtype=object)))

_BLOCK = 1 << 16
"""Rows that are worked on at a time, so that a million vectors need no large temporary."""

_HEIGHTS = 1 << 20
"""Products of vectors and normals that are computed at a time, for the same reason."""

_LEAST, _MOST = SMALLEST**2, LARGEST**2
"""Radii: those of policies and of noise lie between the roots of these, and hulls reach a little farther."""


@dataclass(frozen=True)
class ExactInequalities:
    """Integer ``E``, ``A`` and ``b`` for vectors that are multiplied by ``denominator`` before they are compared."""

    equations: npt.NDArray[Any]
    normals: npt.NDArray[Any]
    offsets: npt.NDArray[Any]
    denominator: int

    def contains(self, vectors: npt.NDArray[Any], denominator: int = 1) -> BoolArray:
        """Exact membership of vectors ``(n, d)``: integers over a common denominator."""
        limits = self.offsets if denominator == 1 else self.offsets.astype(object) * denominator
        heights = np.abs(exact_product(vectors, self.normals.T))
        inside = (heights <= limits // self.denominator).all(axis=1)
        return np.asarray(inside & self.in_span(vectors) if len(self.equations) else inside, dtype=np.bool_)

    def in_span(self, vectors: npt.NDArray[Any]) -> BoolArray:
        """Whether each of the integer vectors ``(n, d)`` satisfies the equations."""
        return np.asarray((exact_product(vectors, self.equations.T) == 0).all(axis=1), dtype=np.bool_)


@dataclass(frozen=True)
class MinkowskiNorm:
    """``‖v‖_K = inf{r >= 0 : v in r K}`` of a symmetric polytope ``K``; infinite off its linear span.

    Parameters
    ----------
    normals
        ``(m, d)``, scaled so that the facets are ``|normals v| = 1``.
    equations
        ``(e, d)``, orthonormal rows whose null space is the span of ``K``.
    scale
        The largest Euclidean length in ``K``: what the tolerance off the span is relative to.
    exact
        The same in integers, where the body was given in integers or rationals.
    """

    normals: FloatArray
    equations: FloatArray
    scale: float
    exact: ExactInequalities | None

    def __call__(self, vectors: FloatArray, rounding: float = 0.0) -> FloatArray:
        """The norms ``(n,)`` of vectors ``(n, d)``; those off the span by ``rounding``, a length, count as on it."""
        norms = np.zeros(len(vectors))
        for start in range(0, len(vectors), _BLOCK):
            block, found = vectors[start : start + _BLOCK], norms[start : start + _BLOCK]
            # Bodies in space have many facets: products of a block of them take a tenth of the time of single ones.
            several = max(1, _HEIGHTS // max(1, len(block))) if vectors.shape[1] > 2 else 1
            for first in range(0, len(self.normals), several):
                if several == 1:
                    np.maximum(found, np.abs(block @ self.normals[first]), out=found)
                else:
                    heights = np.abs(block @ self.normals[first : first + several].T)
                    np.maximum(found, heights.max(axis=1), out=found)
            if len(self.equations):
                found[~self.in_span(block, rounding)] = np.inf
        return norms

    def in_span(self, vectors: npt.NDArray[Any], rounding: float = 0.0) -> BoolArray:
        """Whether each vector lies in the span of ``K``.

        Exact for integers where the body is exact; otherwise within the tolerance times the larger of body and vector,
        or within ``rounding``.
        """
        if not len(self.equations):
            return np.ones(len(vectors), dtype=np.bool_)
        if self.exact is not None and vectors.dtype.kind in "iu":
            return self.exact.in_span(vectors)
        off = np.abs(vectors @ self.equations.T).max(axis=1)
        size = np.maximum(self.scale, np.abs(vectors).max(axis=1, initial=0.0))
        return np.asarray(off <= np.maximum(RELATIVE_TOLERANCE * size, rounding))

    def contains(self, vectors: npt.NDArray[Any]) -> BoolArray:
        """Closed membership ``(n,)``: exact for integer and rational input where the body is exact."""
        if self.exact is not None:
            if vectors.dtype.kind in "iu":
                return self.exact.contains(vectors)
            if vectors.dtype == object:
                return self.exact.contains(*common_denominator(vectors))
        return np.asarray(self(vectors.astype(np.float64)) <= 1.0 + RELATIVE_TOLERANCE)

    def diameter(self, points: FloatArray) -> float:
        """The largest norm of a difference of points ``(n, d)`` that differ within the span."""
        return _widest_of_heights(points, self.normals)


def _widest_of_heights(points: FloatArray, normals: FloatArray) -> float:
    """The largest difference of heights of points ``(n, d)`` along any of the normals ``(m, d)``."""
    worst, several = 0.0, max(1, _HEIGHTS // max(1, len(points)))
    for first in range(0, len(normals), several):
        heights = points @ normals[first : first + several].T
        # `np.ptp` takes longer for a few heights than these two reductions do.
        reach = np.maximum.reduce(heights) - np.minimum.reduce(heights)
        worst = max(worst, float(reach.max(initial=0.0)))
    return worst


def _widest_of_pairs(points: FloatArray) -> float:
    """The largest 1-norm of a difference of two points ``(n, d)``, a block of rows at a time."""
    from scipy.spatial.distance import cdist

    several = max(1, _HEIGHTS // max(1, len(points)))
    blocks = (points[first : first + several] for first in range(0, len(points), several))
    return max((float(cdist(block, points, "cityblock").max(initial=0.0)) for block in blocks), default=0.0)


class SensitivityHull:
    """The convex hull of differences and their negatives (Definition 5.1), of any dimension.

    Parameters
    ----------
    differences
        ``(k, d)`` measurement differences; both signs are implied, and zero rows and repetitions do no harm.
        Integers (also as floats) and `fractions.Fraction` entries make membership exact; otherwise the one tolerance,
        `dphmm.arrays.RELATIVE_TOLERANCE`, decides. No rows give the body ``{0}``.

    Raises
    ------
    CoordinateError
        When the array is not ``(k, d)`` or not finite.

    Notes
    -----
    The body may have fewer dimensions than its space: no edge gives ``{0}``, one edge a segment. Then the norm of a
    vector off the body's linear span is infinite. Vertices and facets are computed when they are first asked for. In
    three and more dimensions they come from one call of Qhull (`dphmm.geometry.facets`); for integer input the facets'
    coefficients are recomputed as exact integers and checked against every vertex. A hull of more than about two
    million facets raises `InvalidInputError` before it is computed.

    Examples
    --------
    >>> hull = SensitivityHull([[1, 0], [0, 1]])
    >>> hull.volume, hull.dimension
    (2.0, 2)
    >>> hull.norm([1, 1]).item()
    2.0
    >>> hull.contains([[1, 0], [1, 1]]).tolist()
    [True, False]
    """

    def __init__(self, differences: npt.ArrayLike) -> None:
        given, self._denominator = _integers_if_exact(differences)
        self.differences: npt.NDArray[Any] = frozen(given)
        """The differences ``(k, d)`` as given (times a common denominator where they are rationals); read-only."""
        exact = self._denominator is not None
        integers_or_floats = given if exact else np.asarray(given, dtype=np.float64)
        self._span = exact_span(given) if exact else float_span(integers_or_floats)
        self.dimension = len(self._span.axes)
        """The dimension ``r`` of the body, from 0 (the point ``{0}``) to ``d``."""
        self.ambient_dimension: int = given.shape[1]
        """The dimension ``d`` of the space the body lies in."""
        self._unit = 1.0 / (self._denominator or 1)

    _is_sifted = False
    """Whether differences that lie inside were removed."""

    _stretched_from: tuple[SensitivityHull, FloatArray] | None = None
    """The body that this one is by other factors on its axes, and these; None where there is none."""

    @cached_property
    def _boundary(self) -> Boundary:
        """The boundary within the axes of the span: corners and simplices, in the integers of `differences`."""
        flat = self.differences[:, list(self._span.axes)]
        if self.dimension > 2:
            whole = self._is_sifted and self.dimension == self.ambient_dimension
            return symmetric_boundary(flat if whole else outer_points(flat))
        corners, facets = _facets(np.concatenate([flat, -flat]))
        return Boundary(corners, facets, np.zeros((0, self.dimension)))

    @cached_property
    def _corners(self) -> npt.NDArray[Any]:
        return self._boundary.corners

    @cached_property
    def _facets(self) -> npt.NDArray[np.int64]:
        return self._boundary.simplices if self._stretched_from is None else self._stretched_from[0]._facets

    @cached_property
    def _tips(self) -> FloatArray:
        """The corners ``(h, d)`` that facets refer to, in the space: the vertices, and maybe points between these."""
        if self._stretched_from is not None:
            body, stretch = self._stretched_from
            return locked(body._tips * stretch)
        lifted = self._corners.astype(np.float64) @ self._span.lift(self.ambient_dimension)
        return frozen(lifted * self._unit + 0.0)

    @cached_property
    def vertices(self) -> FloatArray:
        """The vertices ``(h, d)``; counter-clockwise in the plane, ``(1, d)`` zeros for the point ``{0}``."""
        if self._stretched_from is not None:
            body, stretch = self._stretched_from
            return locked(body.vertices * stretch)
        if self.dimension <= 2 or self._denominator is None:
            return self._tips
        return locked(self._tips[is_vertex(self._boundary, lambda: self._exact_half_spaces)])

    @property
    def spanning(self) -> FloatArray:
        """Points ``(k, d)`` of which, with their negatives, this is the hull: the vertices where they are known.

        Largest lengths and extents in the body are attained among them. In three and more dimensions they take no time.
        """
        if self.dimension <= 2 or "vertices" in self.__dict__:
            return self.vertices
        return np.asarray(self.differences.astype(np.float64) * self._unit)

    @cached_property
    def _exact_half_spaces(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]] | None:
        """Integer half-spaces in three and more dimensions, within the axes of the span; None if they do not hold."""
        return integer_half_spaces(self._boundary)

    @classmethod
    def of_outer_points(cls, differences: npt.NDArray[Any]) -> SensitivityHull:
        """Make the hull of differences that `dphmm.geometry.facets.outer_points` returned.

        Parameters
        ----------
        differences
            ``(k, d)``: as of the constructor, for ``d`` of at least three.
        """
        body = cls(differences)
        body._is_sifted = True
        return body

    @classmethod
    def of_polygon(cls, corners: npt.NDArray[np.int64]) -> SensitivityHull:
        """The body of a symmetric polygon whose corners are known: there is nothing to search for.

        Parameters
        ----------
        corners
            ``(h, 2)``, four or more: those of both signs, integers below `planar.COORDINATE_LIMIT`, in the order of
            `planar.convex_polygon`. They are the body's differences too.
        """
        body = object.__new__(cls)
        body._denominator, body._unit, body._span = 1, 1.0, _PLANE
        body.dimension = body.ambient_dimension = 2
        body.differences = body._corners = frozen(corners)
        body._facets = _ring(len(corners))
        body.vertices = body._tips = locked(corners.astype(np.float64))
        body.corners = body._corners
        return body

    @cached_property
    def corners(self) -> npt.NDArray[np.int64] | None:
        """The vertices of a polygon as integers, of which cross products fit 64 bits; None where they are none."""
        if self._denominator != 1 or self.dimension != 2 or self.ambient_dimension != 2:
            return None
        return self._corners if largest(self._corners) <= planar.COORDINATE_LIMIT else None

    @cached_property
    def norm_form(self) -> MinkowskiNorm:
        """The body as equations and half-spaces."""
        if self._stretched_from is not None:
            body, stretch = self._stretched_from
            form, equations = body.norm_form, body.norm_form.equations
            return MinkowskiNorm(form.normals / stretch, _orthonormal(equations / stretch), self._reach, None)
        span = self._span
        wide, offsets, whole = self._half_spaces()
        if self.dimension < self.ambient_dimension:
            normals, wide = wide, np.zeros((len(wide), self.ambient_dimension), dtype=wide.dtype)
            wide[:, list(span.axes)] = normals
        scaled = wide.astype(np.float64) / (offsets.astype(np.float64)[:, None] * self._unit)
        exact = None
        if whole and self._denominator is not None:
            exact = ExactInequalities(span.equations, wide, offsets, self._denominator)
        return MinkowskiNorm(scaled, _orthonormal(span.equations.astype(np.float64)), self._reach, exact)

    def _half_spaces(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any], bool]:
        """Return ``|normal · v| <= offset`` for each pair of opposite facets, and whether they are exact."""
        exact = self._denominator is not None
        if self.dimension <= 2:
            return *_flat_half_spaces(self._corners, exact), exact
        if exact and self._exact_half_spaces is not None:
            return *self._exact_half_spaces, True
        normals = self._boundary.normals[one_side(self._boundary)]
        return normals, np.ones(len(normals)), False

    @property
    def _reach(self) -> float:
        """The largest Euclidean length of a vertex."""
        if self.dimension == self.ambient_dimension == 2:
            return sqrt(self._sums[2])
        return sqrt((self.spanning * self.spanning).sum(axis=1).max(initial=0.0))

    def norm(self, vectors: npt.ArrayLike) -> FloatArray:
        """The norm ``‖v‖_K`` of one vector ``(d,)`` or of each row ``(n, d)``; infinite off the span.

        Parameters
        ----------
        vectors
            ``(..., d)``, in the unit of the differences.

        Returns
        -------
        FloatArray
            ``(...)``: the Minkowski norm of each; infinite outside the span.
        """
        array = as_floats(vectors, "vectors", CoordinateError)
        return self.norm_form(self._rows(array)).reshape(array.shape[:-1])

    def contains(self, vectors: npt.ArrayLike, method: Membership = "halfspace") -> BoolArray:
        """Closed membership of one vector ``(d,)`` or of each row ``(n, d)``.

        Parameters
        ----------
        vectors
            Points on the boundary are inside. Integers and fractions are decided exactly where the body is exact.
        method
            ``"halfspace"`` tests every facet. ``"qp"`` solves the quadratic program of Equation (6) over the vertices
            with CVXOPT and uses no half-space: slower, independent, and sharp to ``1e-9`` of the body's size.

        Returns
        -------
        BoolArray
            ``(...)``: whether each vector lies in the body, boundary included.

        Raises
        ------
        InvalidInputError
            For any other method.
        """
        array = _integers_if_whole(_numbers(vectors, "vectors"))
        rows = self._rows(array)
        if not isinstance(method, str):
            raise InvalidInputError("membership method is no text; choose 'halfspace' or 'qp'")
        if method == "halfspace":
            inside = self.norm_form.contains(rows)
        elif method == "qp":
            # On a grid the same differences are asked about again and again.
            distinct, which = np.unique(rows.astype(np.float64), axis=0, return_inverse=True)
            inside = in_convex_hull(self.vertices, distinct)[which.ravel()]
        else:
            raise InvalidInputError(f"membership method is {method!r}; choose 'halfspace' or 'qp'")
        return inside.reshape(array.shape[:-1])

    def _rows(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if array.ndim == 0 or array.shape[-1] != self.ambient_dimension:
            raise CoordinateError(f"vectors have shape {array.shape}; the last axis must be {self.ambient_dimension}")
        return array.reshape(-1, self.ambient_dimension)

    @cached_property
    def cones(self) -> FloatArray:
        """Simplicial cones that tile the span, ``(c, r, d)``: with the origin, each row's vectors make one simplex."""
        if self.dimension == 0:
            return frozen(np.zeros((1, 0, self.ambient_dimension)))
        return locked(self._tips[self._facets])

    @cached_property
    def cone_volumes(self) -> FloatArray:
        """The ``r``-dimensional volume of each simplex of `cones`; they sum to `span_volume`."""
        if self.dimension == 0:
            return frozen(np.ones(1))
        if self.dimension == self.ambient_dimension == 2:
            return locked(np.abs(planar.cross(self.vertices, planar.following(self.vertices))) / 2)
        if self.dimension == self.ambient_dimension:  # without roots: axes of very different units cost no digits
            sides = np.abs(np.linalg.det(self.cones) if self.dimension > 2 else self.cones[:, 0, 0])[:, None]
        else:
            triangles = np.linalg.qr(self.cones.transpose(0, 2, 1), mode="r")
            sides = np.abs(np.diagonal(triangles, axis1=1, axis2=2))
        return frozen(sides.prod(axis=1) / factorial(self.dimension))

    @property
    def span_volume(self) -> float:
        """The volume within the body's own span: the length of a segment, 1 for the point ``{0}``."""
        if self.dimension == self.ambient_dimension:
            return self.volume
        return float(self.cone_volumes.sum())

    @cached_property
    def volume(self) -> float:
        """The ``d``-dimensional volume (the area in the plane); 0.0 below full dimension."""
        if self.dimension < self.ambient_dimension:
            return 0.0
        if self.dimension == 2:
            return self._sums[0] / 2
        return float(self.cone_volumes.sum())

    @cached_property
    def second_moments(self) -> FloatArray:
        """The matrix ``E[u uᵀ]``, ``(d, d)``, of ``u`` uniform in the body (within its span)."""
        r = self.dimension
        total = self.cones.sum(axis=1)
        per_cone = np.einsum("cri,crj->cij", self.cones, self.cones) + np.einsum("ci,cj->cij", total, total)
        weights = self.cone_volumes / self.cone_volumes.sum()
        return frozen(np.einsum("c,cij->ij", weights, per_cone) / ((r + 1) * (r + 2)))

    @cached_property
    def mean_squared_radius(self) -> float:
        """``E|u|²`` of ``u`` uniform in the body (within its span), in closed form."""
        if self.dimension == self.ambient_dimension == 2:
            area, moment, _ = self._sums
            return moment / area / 12
        return float(np.trace(self.second_moments))

    @cached_property
    def _sums(self) -> tuple[float, float, float]:
        """Of a polygon in the plane: `planar.polygon_sums`."""
        return planar.polygon_sums(self.vertices)

    @property
    def squared_error(self) -> float:
        """``(r + 1)(r + 2) E|u|²``: the expected squared error of a K-norm release at epsilon one.

        At another budget it is divided by ``epsilon ** 2``. It is no monotone function of the body: a hull that
        contains another one may have the smaller error.
        """
        return (self.dimension + 1) * (self.dimension + 2) * self.mean_squared_radius

    @property
    def circumradius(self) -> float:
        """The largest Euclidean length in the body."""
        return self.norm_form.scale

    @checked
    def scaled(self, factors: npt.ArrayLike) -> SensitivityHull:
        """The same body with each axis multiplied by its positive factor: from lattice steps to kilometres, say.

        Vertices and facets keep their order; what was exact in the old unit is decided by the tolerance in the new one.

        Parameters
        ----------
        factors
            A positive number, or ``(d,)`` of them, one for each axis.

        Returns
        -------
        SensitivityHull
            The scaled body.
        """
        stretch = np.asarray(factors, dtype=np.float64)
        if stretch.shape not in ((), (self.ambient_dimension,)) or not (
            (stretch >= SMALLEST).all() and (stretch <= LARGEST).all()
        ):
            raise InvalidInputError(
                f"factors are {shorten(factors)}; give one positive number for each of {self.ambient_dimension} axes"
            )
        return self.stretched(stretch)

    def stretched(self, stretch: FloatArray) -> SensitivityHull:
        """The same of factors that were looked at before.

        Parameters
        ----------
        stretch
            A positive number, or ``(d,)`` of them, in the range of `scaled`; not checked.

        Returns
        -------
        SensitivityHull
            The scaled body.
        """
        body = object.__new__(SensitivityHull)
        body._denominator, body._unit = None, 1.0
        body._stretched_from = (self, stretch)
        body.differences = locked(self.differences / (self._denominator or 1) * stretch)
        body.dimension, body.ambient_dimension = self.dimension, self.ambient_dimension
        return body

    def in_steps(self, factors: npt.NDArray[np.int64]) -> SensitivityHull:
        """The body of whole vertices with each axis multiplied by its positive whole factor ``(d,)``: in integers.

        Corners keep their order, so that a polygon needs no search for those of the other.

        Parameters
        ----------
        factors
            ``(d,)`` positive integers.

        Returns
        -------
        SensitivityHull
            The body whose vertices are those of this one times the factors, exactly.
        """
        if self.corners is not None and largest(steps := self.corners * factors) <= planar.COORDINATE_LIMIT:
            return SensitivityHull.of_polygon(steps)
        return SensitivityHull(np.rint(self.vertices).astype(np.int64) * factors)

    @cached_property
    def lattice_rows(self) -> IntArray | None:
        """The lattice points of a polygon with integer corners, row by row upwards, ``(k, 3)``.

        Each row is its height and its first and last column, straight from the half-planes: of the row at ``y`` every
        one that is not level leaves an interval, which may be empty. None for other bodies, and for polygons of very
        many rows.
        """
        if self.corners is None or (top := int(self.corners[:, 1].max())) > _MOST_ROWS:
            return None
        normals, offsets = planar.half_planes(self.corners)
        across = np.flatnonzero(normals[:, 0])
        x, y, limits = np.abs(normals[across, 0]), normals[across, 1] * np.sign(normals[across, 0]), offsets[across]
        heights = np.arange(-top, top + 1)
        high = ((limits - y * heights[:, np.newaxis]) // x).min(axis=1)
        rows = np.stack([heights, -high[::-1], high], axis=1)
        return locked(rows[rows[:, 1] <= rows[:, 2]])

    def to_shapely(self) -> BaseGeometry:
        """The body as a shapely polygon, line or point; for one and two dimensions.

        Returns
        -------
        Polygon, LineString or Point
            The body; of one dimension along the first axis.

        Raises
        ------
        InvalidInputError
            In three and more dimensions.
        """
        from shapely.geometry import LineString, Point, Polygon

        if self.ambient_dimension > 2:
            raise InvalidInputError(f"a hull in {self.ambient_dimension} dimensions has no shapely form; use .vertices")
        corners = np.zeros((len(self.vertices), 2))
        corners[:, : self.ambient_dimension] = self.vertices
        return (Point, LineString, Polygon)[self.dimension](corners if self.dimension else corners[0])

    def __repr__(self) -> str:
        if self.dimension > 2 and "vertices" not in self.__dict__:  # a hull may be too large to be computed
            return f"SensitivityHull(dimension={self.dimension}, differences={len(self.differences)})"
        return f"SensitivityHull(dimension={self.dimension}, vertices={len(self.vertices)}, volume={self.volume:.6g})"


@dataclass(frozen=True)
class _CrossNorm(MinkowskiNorm):
    """The norm ``sum |v_k| / radius_k`` of a cross-polytope, without its ``2^d`` facets.

    Parameters
    ----------
    radii
        ``(d,)``, positive. Integers that are all equal decide integer vectors exactly.
    """

    radii: FloatArray = field(default_factory=lambda: np.ones(0))

    def __call__(self, vectors: FloatArray, rounding: float = 0.0) -> FloatArray:  # noqa: ARG002
        """The norms ``(n,)`` of vectors ``(n, d)``; the span is the whole space."""
        if (self.radii == self.radii[0]).all():
            return np.asarray(np.abs(vectors).sum(axis=1) / self.radii[0])
        return np.asarray(np.abs(vectors / self.radii).sum(axis=1))

    def contains(self, vectors: npt.NDArray[Any]) -> BoolArray:
        """Closed membership ``(n,)``: exact for integer vectors if the radii are equal integers below 2**53."""
        radius = float(self.radii[0])
        if vectors.dtype.kind in "iu" and (self.radii == radius).all() and radius.is_integer() and radius < 2**53:
            return np.asarray(np.abs(vectors).sum(axis=1) <= int(radius))
        return super().contains(vectors)

    def diameter(self, points: FloatArray) -> float:
        """The largest norm of a difference of points, pair by pair or by the facets, whichever are fewer."""
        scaled = points / self.radii
        if len(points) > 2 ** len(self.radii):
            signs = np.array(list(product((1.0, -1.0), repeat=len(self.radii))))
            return float(_widest_of_heights(scaled, signs[: len(signs) // 2]))
        return _widest_of_pairs(scaled)


class CrossPolytope(SensitivityHull):
    """The cross-polytope ``{v : sum |v_k| / radius_k <= 1}``, the body of Laplace noise (Theorem 5.1).

    Norm, volume and moments are closed forms. Facets, of which there are ``2^d``, are enumerated only for `cones`.

    Parameters
    ----------
    radii
        ``(d,)``, positive: how far the body reaches along each axis.
    """

    def __init__(self, radii: npt.ArrayLike) -> None:
        super().__init__(np.diag(np.asarray(radii, dtype=np.float64)))
        self.radii: FloatArray = np.diagonal(self.differences).astype(np.float64) * self._unit
        self.vertices = self._tips = locked(np.concatenate([-np.diag(self.radii), np.diag(self.radii)]) + 0.0)

    @cached_property
    def norm_form(self) -> MinkowskiNorm:
        """The norm as a sum over the axes."""
        none = np.zeros((0, len(self.radii)))
        return _CrossNorm(none, none, float(self.radii.max()), None, self.radii)

    @cached_property
    def _facets(self) -> npt.NDArray[np.int64]:
        """One vertex of each axis for every choice of signs."""
        if self.dimension > 2:
            check_size(2 * self.dimension, self.dimension)
        signs = np.array(list(product((0, 1), repeat=len(self.radii))))
        return locked(signs * len(self.radii) + np.arange(len(self.radii)))

    @cached_property
    def volume(self) -> float:
        """``2^d / d!`` times the product of the radii."""
        return float(np.prod(2.0 * self.radii)) / factorial(len(self.radii))

    @cached_property
    def second_moments(self) -> FloatArray:
        """The matrix ``E[u uᵀ]``, ``(d, d)``: diagonal, ``2 radius² / ((d + 1)(d + 2))``."""
        d = len(self.radii)
        return frozen(np.diag(2.0 * self.radii**2 / ((d + 1) * (d + 2))))

    def stretched(self, stretch: FloatArray) -> SensitivityHull:
        """Return the body with each axis multiplied by its factor, which is not checked."""
        return CrossPolytope(self.radii * stretch)


@checked
@dataclass(frozen=True)
class Disc:
    """The Euclidean ball of a radius about the origin: a disc in the plane.

    Parameters
    ----------
    radius
        From 1e-60 to 1e60, so that no quotient or square leaves a double.
    dimension
        The dimension ``d`` of the space.
    """

    radius: float
    dimension: int = 2

    def __post_init__(self) -> None:
        if not _LEAST <= self.radius <= _MOST:
            raise InvalidInputError(f"radius is {self.radius}; give a number from {_LEAST:g} to {_MOST:g}")

    def norm(self, vectors: npt.ArrayLike) -> FloatArray:
        """``|v| / radius`` for one vector ``(d,)`` or each row ``(n, d)``; infinite where no double holds it.

        Parameters
        ----------
        vectors
            ``(..., d)``.

        Returns
        -------
        FloatArray
            ``(...)``: Euclidean length over radius.
        """
        array = as_floats(vectors, "vectors", CoordinateError)
        if array.ndim == 0:
            raise CoordinateError(f"vectors have shape {array.shape}; the last axis must be {self.dimension}")
        with np.errstate(over="ignore"):
            return np.asarray(np.linalg.norm(array, axis=-1) / self.radius)

    def contains(self, vectors: npt.ArrayLike) -> BoolArray:
        """Closed membership, within the one tolerance.

        Parameters
        ----------
        vectors
            ``(..., d)``.

        Returns
        -------
        BoolArray
            ``(...)``: whether each lies in the disc, boundary included.
        """
        return np.asarray(self.norm(vectors) <= 1.0 + RELATIVE_TOLERANCE)

    @property
    def volume(self) -> float:
        """The volume (the area in the plane)."""
        d = self.dimension
        return float(pi ** (d / 2) / gamma(d / 2 + 1) * self.radius**d)

    @property
    def squared_error(self) -> float:
        """The expected squared error of a K-norm release at epsilon one, ``d (d + 1) radius²``."""
        return self.dimension * (self.dimension + 1) * self.radius**2

    @property
    def circumradius(self) -> float:
        """The radius."""
        return self.radius


def _integers_if_exact(values: npt.ArrayLike) -> tuple[npt.NDArray[Any], int | None]:
    """The differences as integers over a common denominator, or as floats with ``None``."""
    array, denominator = _integers_if_whole(_numbers(values, "differences")), 1
    if array.dtype == object:
        whole, denominator = common_denominator(array)
        array = whole.astype(np.int64) if largest(whole) <= planar.COORDINATE_LIMIT else array
    points = as_points(array, "differences")
    return (array, denominator) if array.dtype.kind == "i" else (points, None)


def _numbers(values: npt.ArrayLike, name: str) -> npt.NDArray[Any]:
    """Values as they are, in an array: integers, floats, or rationals as objects."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise CoordinateError(f"{name} have rows of different lengths; give one number for each axis") from None
    if array.dtype.kind == "u" and array.size and int(array.max()) >= 2**63:
        return array.astype(np.float64)
    if array.dtype == object:
        if not all(isinstance(one, Real) and abs(cast(Any, one)) <= LARGEST for one in array.ravel().tolist()):
            raise CoordinateError(f"{name} hold what is no finite number; give numbers")
        return array
    return array if array.dtype.kind in "iuf" else as_floats(array, name, CoordinateError)


def _integers_if_whole(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Integers, and floats that are whole numbers within the exact range, as 64-bit integers; others as they are."""
    if array.dtype.kind in "iu":
        return array.astype(np.int64)
    if array.dtype != object and ((np.abs(array) <= planar.COORDINATE_LIMIT) & (array == np.rint(array))).all():
        return array.astype(np.int64)
    return array


def _facets(points: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Return vertices ``(h, r)`` and facets ``(c, r)`` of full-dimensional symmetric points ``(k, r)``, r at most 2."""
    rank = points.shape[1]
    if rank == 0:
        return np.zeros((1, 0), dtype=points.dtype), np.zeros((1, 0), dtype=np.int64)
    if rank == 1:
        farthest = np.abs(points).max()
        return np.array([[-farthest], [farthest]]), np.array([[0], [1]])
    corners = planar.convex_polygon(points)
    if corners.dtype.kind == "f":
        corners = planar.without_blur(corners)
    return corners, _ring(len(corners))


@lru_cache(maxsize=256)
def _ring(count: int) -> npt.NDArray[np.int64]:
    """The two ends, by number, of each edge of a polygon with a number of corners."""
    index = np.arange(count)
    return locked(np.stack([index, np.roll(index, -1)], axis=1))


def _flat_half_spaces(corners: npt.NDArray[Any], exact: bool) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return ``|normal · v| <= offset`` for each pair of opposite facets, in at most two dimensions."""
    rank = corners.shape[1]
    if rank == 0:
        return np.zeros((0, 0), dtype=np.int64), np.zeros(0, dtype=np.int64)
    if rank == 1:
        return np.ones((1, 1), dtype=corners.dtype), corners[1]
    wide = exact and largest(corners) > planar.COORDINATE_LIMIT
    return planar.half_planes(corners.astype(object) if wide else corners)


def _orthonormal(rows: FloatArray) -> FloatArray:
    return np.asarray(np.linalg.qr(rows.T)[0].T) if len(rows) else rows
