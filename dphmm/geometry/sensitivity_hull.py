"""Noise bodies: the sensitivity hull (symmetric convex hull of differences), and the disc.

A symmetric polytope is ``{v : E v = 0, |A v| <= b}``. Its linear span is the null space of ``E``, and every pair of
opposite facets is one row of ``A``. If ``E``, ``A`` and ``b`` are integers, membership of integer and rational vectors
is decided without rounding. `dphmm.policy.edges` computes the hull of a policy's edges.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import product
from math import factorial, gamma, pi, sqrt
from numbers import Real
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray, as_floats, as_points, copy_read_only, make_read_only
from dphmm.errors import CoordinateError, InvalidInputError
from dphmm.geometry import planar
from dphmm.geometry.convex_combination import is_in_convex_hull
from dphmm.geometry.convex_hull import (
    Boundary,
    IntegerHalfSpaces,
    build_symmetric_boundary,
    check_size,
    integer_half_spaces,
    select_outer_points,
    select_positive_side,
)
from dphmm.geometry.exact_linear_algebra import (
    Span,
    compute_max_abs,
    exact_product,
    exact_span,
    float_span,
    to_common_denominator,
)
from dphmm.tables.values import shorten
from dphmm.tolerances import MAX_SCALE, MIN_SCALE, RELATIVE_TOLERANCE
from dphmm.validation import Interval, PositiveInt, check_arguments

if TYPE_CHECKING:
    from shapely.geometry.base import BaseGeometry

# The noise body: the sensitivity hull, or the smallest cross-polytope or disc that contains it.
Body = Literal["hull", "cross-polytope", "disc"]

# The method to decide membership in a hull: by half-spaces, or by the quadratic program of Equation (6).
Membership = Literal["halfspace", "qp"]

# The table of lattice rows is omitted for taller polygons: its computation takes rows times half-planes numbers.
_MAX_LATTICE_ROWS = 1 << 12

# The span of every polygon with positive area: no elimination is needed for known corners.
_PLANE = Span((0, 1), make_read_only(np.zeros((0, 2), dtype=object)))

# Number of vectors in a block of norms, so that a million vectors need no large temporary.
_VECTOR_BLOCK = 1 << 16

# Number of products of vectors and normals in a block, 8 MB of them.
_MAX_HEIGHTS = 1 << 20

# Radii of policies and noise lie between the roots of these, and hulls reach slightly farther.
_MIN_RADIUS = MIN_SCALE**2
_MAX_RADIUS = MAX_SCALE**2


@dataclass(frozen=True)
class ExactInequalities:
    """Integer ``E``, ``A`` and ``b`` for vectors that are multiplied by ``denominator`` first."""

    equations: npt.NDArray[Any]
    normals: npt.NDArray[Any]
    offsets: npt.NDArray[Any]
    denominator: int

    def contains(self, vectors: npt.NDArray[Any], denominator: int = 1) -> BoolArray:
        """Return exact membership of vectors ``(n, d)``, integers over a common denominator."""
        limits = self.offsets if denominator == 1 else self.offsets.astype(object) * denominator
        heights = np.abs(exact_product(vectors, self.normals.T))
        inside = (heights <= limits // self.denominator).all(axis=1)
        return np.asarray(inside & self.is_in_span(vectors) if len(self.equations) else inside, dtype=np.bool_)

    def is_in_span(self, vectors: npt.NDArray[Any]) -> BoolArray:
        """Return whether each of the integer vectors ``(n, d)`` satisfies the equations."""
        return np.asarray((exact_product(vectors, self.equations.T) == 0).all(axis=1), dtype=np.bool_)


@dataclass(frozen=True)
class MinkowskiNorm:
    """The norm ``‖v‖_K = inf{r >= 0 : v in r K}`` of a symmetric polytope ``K``.

    It is infinite off the linear span of ``K``.

    Parameters
    ----------
    normals
        ``(m, d)``, scaled so that the facets are ``|normals v| = 1``.
    equations
        ``(e, d)``, orthonormal rows with the span of ``K`` as their null space.
    scale
        The largest Euclidean length in ``K``, to which the tolerance off the span is relative.
    exact
        The inequalities in integers, if the differences were integers or rationals.
    """

    normals: FloatArray
    equations: FloatArray
    scale: float
    exact: ExactInequalities | None

    def __call__(self, vectors: FloatArray, rounding: float = 0.0) -> FloatArray:
        """Return the norms ``(n,)`` of vectors ``(n, d)``, within ``rounding`` of the span."""
        norms = np.zeros(len(vectors))
        for start in range(0, len(vectors), _VECTOR_BLOCK):
            block = vectors[start : start + _VECTOR_BLOCK]
            block_norms = norms[start : start + _VECTOR_BLOCK]
            # Bodies in space have many facets: products of a block of them are ten times as fast as single ones.
            several = max(1, _MAX_HEIGHTS // max(1, len(block))) if vectors.shape[1] > 2 else 1
            for first in range(0, len(self.normals), several):
                if several == 1:
                    np.maximum(block_norms, np.abs(block @ self.normals[first]), out=block_norms)
                else:
                    heights = np.abs(block @ self.normals[first : first + several].T)
                    np.maximum(block_norms, heights.max(axis=1), out=block_norms)
            if len(self.equations):
                block_norms[~self.is_in_span(block, rounding)] = np.inf
        return norms

    def is_in_span(self, vectors: npt.NDArray[Any], rounding: float = 0.0) -> BoolArray:
        """Return whether each vector lies in the span of ``K``.

        Exact for integers if the body is exact. Otherwise the tolerance times the larger of body and vector, or
        ``rounding``, is allowed.
        """
        if not len(self.equations):
            return np.ones(len(vectors), dtype=np.bool_)
        if self.exact is not None and vectors.dtype.kind in "iu":
            return self.exact.is_in_span(vectors)
        off = np.abs(vectors @ self.equations.T).max(axis=1)
        size = np.maximum(self.scale, np.abs(vectors).max(axis=1, initial=0.0))
        return np.asarray(off <= np.maximum(RELATIVE_TOLERANCE * size, rounding))

    def contains(self, vectors: npt.NDArray[Any]) -> BoolArray:
        """Return closed membership ``(n,)``. Exact for exact input if the body is exact."""
        if self.exact is not None:
            if vectors.dtype.kind in "iu":
                return self.exact.contains(vectors)
            if vectors.dtype == object:
                return self.exact.contains(*to_common_denominator(vectors))
        return np.asarray(self(vectors.astype(np.float64)) <= 1.0 + RELATIVE_TOLERANCE)

    def diameter(self, points: FloatArray) -> float:
        """Return the largest norm of a difference of points ``(n, d)`` that differ in the span."""
        return _measure_extent(points, self.normals)


def _measure_extent(points: FloatArray, normals: FloatArray) -> float:
    """Return the largest extent of points ``(n, d)`` along any of the normals ``(m, d)``."""
    worst = 0.0
    several = max(1, _MAX_HEIGHTS // max(1, len(points)))
    for first in range(0, len(normals), several):
        heights = points @ normals[first : first + several].T
        # For few heights `np.ptp` is slower than these two reductions.
        reach = np.maximum.reduce(heights) - np.minimum.reduce(heights)
        worst = max(worst, float(reach.max(initial=0.0)))
    return worst


def _measure_diameter(points: FloatArray) -> float:
    """Return the largest 1-norm of a difference of two points ``(n, d)``, block by block."""
    from scipy.spatial.distance import cdist

    several = max(1, _MAX_HEIGHTS // max(1, len(points)))
    blocks = (points[first : first + several] for first in range(0, len(points), several))
    return max((float(cdist(block, points, "cityblock").max(initial=0.0)) for block in blocks), default=0.0)


class SensitivityHull:
    """The convex hull of differences and their negatives (Definition 5.1), in any dimension.

    Parameters
    ----------
    differences
        ``(k, d)`` measurement differences; both signs are implied. Zero rows and repetitions are allowed. Integers
        (also as floats) and `fractions.Fraction` entries make membership exact; otherwise the tolerance
        `dphmm.tolerances.RELATIVE_TOLERANCE` applies. No rows yield the body ``{0}``.

    Raises
    ------
    CoordinateError
        If the array is not ``(k, d)`` or not finite.

    Notes
    -----
    The body may have fewer dimensions than its space: no edge yields ``{0}``, one edge a segment. Then the norm of a
    vector off the body's linear span is infinite. Vertices and facets are computed on first access. In three and more
    dimensions they come from one call of Qhull (`dphmm.geometry.convex_hull`); for integer input the facets'
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
        rows, denominator = _parse_differences(differences)
        span = float_span(np.asarray(rows, dtype=np.float64)) if denominator is None else exact_span(rows)
        self._set(copy_read_only(rows), denominator, span)

    def _set(self, differences: npt.NDArray[Any], denominator: int | None, span: Span) -> None:
        """Set every field, for the constructors of all subclasses."""
        # The differences ``(k, d)``, times a common denominator if they are rationals; read-only.
        self.differences = differences
        # The dimension ``r`` of the body, from 0 (the point ``{0}``) to ``d``.
        self.dimension = len(span.axes)
        # The dimension ``d`` of the space the body lies in.
        self.ambient_dimension: int = differences.shape[1]
        self._span = span
        self._denominator = denominator
        self._unit = 1.0 / (denominator or 1)

    # Whether differences that lie inside were removed.
    _is_sifted = False

    @cached_property
    def _boundary(self) -> Boundary:
        """The boundary in the axes of the span, in the integers of `differences`."""
        is_full = self.dimension == self.ambient_dimension
        flat = self.differences if is_full else self.differences[:, list(self._span.axes)]
        if self.dimension > 2:
            return build_symmetric_boundary(flat if self._is_sifted and is_full else select_outer_points(flat))
        corners, facets = _compute_flat_facets(np.concatenate([flat, -flat]))
        return Boundary(corners, facets, np.zeros((0, self.dimension)))

    @cached_property
    def _corners(self) -> npt.NDArray[Any]:
        return self._boundary.corners

    @cached_property
    def _facets(self) -> npt.NDArray[np.int64]:
        return self._boundary.simplices

    @cached_property
    def _tips(self) -> FloatArray:
        """The corners ``(h, d)`` of the facets: the vertices, and possibly points between them."""
        corners = self._corners.astype(np.float64)
        if self.dimension < self.ambient_dimension:
            corners = corners @ self._span.lift(self.ambient_dimension)
        return make_read_only(corners * self._unit + 0.0)

    @cached_property
    def vertices(self) -> FloatArray:
        """The vertices ``(h, d)``. Counter-clockwise in the plane, zeros for the point ``{0}``."""
        if self.dimension <= 2 or self._denominator is None or self._exact_half_spaces is None:
            return self._tips
        return make_read_only(self._tips[self._exact_half_spaces.is_vertex])

    @property
    def spanning(self) -> FloatArray:
        """Points ``(k, d)`` that span the hull with their negatives: the vertices if computed.

        The largest lengths and extents of the body are attained among them. In three and more dimensions they need no
        computation.
        """
        if self.dimension <= 2 or "vertices" in self.__dict__:
            return self.vertices
        return np.asarray(self.differences.astype(np.float64) * self._unit)

    @cached_property
    def _exact_half_spaces(self) -> IntegerHalfSpaces | None:
        """Integer half-spaces in three or more dimensions, in the axes of the span, or None."""
        return integer_half_spaces(self._boundary)

    @staticmethod
    def from_outer_points(differences: npt.NDArray[Any]) -> SensitivityHull:
        """Build the hull of differences that `convex_hull.select_outer_points` returned.

        Parameters
        ----------
        differences
            ``(k, d)``: as for the constructor, with ``d`` of at least three.

        Returns
        -------
        SensitivityHull
            The hull.
        """
        return _SiftedHull(differences)

    @staticmethod
    def from_polygon(corners: npt.NDArray[np.int64]) -> SensitivityHull:
        """Build the body of a symmetric polygon with known corners, without any search.

        Parameters
        ----------
        corners
            ``(h, 2)``, four or more: corners of both signs, integers below `planar.COORDINATE_LIMIT`, in the order of
            `planar.build_convex_polygon`. They become the body's differences, too.

        Returns
        -------
        SensitivityHull
            The polygon.
        """
        return _PolygonHull(corners)

    @cached_property
    def corners(self) -> npt.NDArray[np.int64] | None:
        """The integer vertices of a polygon with 64-bit cross products. None for other bodies."""
        if self._denominator != 1 or self.dimension != 2 or self.ambient_dimension != 2:
            return None
        return self._corners if compute_max_abs(self._corners) <= planar.COORDINATE_LIMIT else None

    @cached_property
    def norm_form(self) -> MinkowskiNorm:
        """The body as equations and half-spaces."""
        span = self._span
        wide, offsets, whole = self._compute_half_spaces()
        if self.dimension < self.ambient_dimension:
            normals = wide
            wide = np.zeros((len(wide), self.ambient_dimension), dtype=wide.dtype)
            wide[:, list(span.axes)] = normals
        scaled = wide.astype(np.float64) / (offsets.astype(np.float64)[:, None] * self._unit)
        exact = None
        if whole and self._denominator is not None:
            exact = ExactInequalities(span.equations, wide, offsets, self._denominator)
        return MinkowskiNorm(scaled, _orthonormalize_rows(span.equations.astype(np.float64)), self._reach, exact)

    def _compute_half_spaces(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any], bool]:
        """Return ``|normal · v| <= offset`` per pair of opposite facets, and whether it is exact."""
        exact = self._denominator is not None
        if self.dimension <= 2:
            return *_compute_flat_half_spaces(self._corners, exact), exact
        if exact and self._exact_half_spaces is not None:
            return self._exact_half_spaces.normals, self._exact_half_spaces.offsets, True
        normals = self._boundary.normals[select_positive_side(self._boundary)]
        return normals, np.ones(len(normals)), False

    @property
    def _reach(self) -> float:
        """The largest Euclidean length of a vertex."""
        if self.dimension == self.ambient_dimension == 2:
            return sqrt(self._sums[2])
        return sqrt((self.spanning * self.spanning).sum(axis=1).max(initial=0.0))

    def norm(self, vectors: npt.ArrayLike) -> FloatArray:
        """Return the norm ``‖v‖_K`` of each vector. Infinite off the span.

        Parameters
        ----------
        vectors
            ``(..., d)``, in the unit of the differences. A single vector is ``(d,)``.

        Returns
        -------
        FloatArray
            ``(...)``: the Minkowski norm of each vector.

        Raises
        ------
        CoordinateError
            If the vectors are not numbers, or the last axis is not that of coordinates.
        """
        array = as_floats(vectors, "vectors", CoordinateError)
        return self.norm_form(self._reshape_to_rows(array)).reshape(array.shape[:-1])

    def contains(self, vectors: npt.ArrayLike, method: Membership = "halfspace") -> BoolArray:
        """Return whether each vector lies in the closed body.

        Parameters
        ----------
        vectors
            ``(..., d)``. Points on the boundary are inside. Integers and fractions are exact if the body is exact.
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
        array = _convert_integers(_parse_numbers(vectors, "vectors"))
        rows = self._reshape_to_rows(array)
        if not isinstance(method, str):
            raise InvalidInputError("membership method must be a string: 'halfspace' or 'qp'")
        if method == "halfspace":
            inside = self.norm_form.contains(rows)
        elif method == "qp":
            # On a grid the same differences occur many times.
            distinct, which = np.unique(rows.astype(np.float64), axis=0, return_inverse=True)
            inside = is_in_convex_hull(self.vertices, distinct)[which.ravel()]
        else:
            raise InvalidInputError(f"membership method must be 'halfspace' or 'qp', got {method!r}")
        return inside.reshape(array.shape[:-1])

    def _reshape_to_rows(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if array.ndim == 0 or array.shape[-1] != self.ambient_dimension:
            raise CoordinateError(
                f"vectors must have {self.ambient_dimension} as the last axis, got shape {array.shape}"
            )
        return array.reshape(-1, self.ambient_dimension)

    @cached_property
    def cones(self) -> FloatArray:
        """Simplicial cones that tile the span, ``(c, r, d)``. Simplices with the origin."""
        if self.dimension == 0:
            return copy_read_only(np.zeros((1, 0, self.ambient_dimension)))
        return make_read_only(self._tips.take(self._facets, axis=0))

    @cached_property
    def cone_volumes(self) -> FloatArray:
        """The ``r``-dimensional volume of each simplex of `cones`. They sum to `span_volume`."""
        if self.dimension == 0:
            return copy_read_only(np.ones(1))
        if self.dimension == self.ambient_dimension == 2:
            return make_read_only(np.abs(planar.cross(self.vertices, planar.get_next_vertices(self.vertices))) / 2)
        # det, not QR: square roots lose precision if axis units differ widely.
        if self.dimension == self.ambient_dimension:
            sides = np.abs(np.linalg.det(self.cones) if self.dimension > 2 else self.cones[:, 0, 0])[:, None]
        else:
            triangles = np.linalg.qr(self.cones.transpose(0, 2, 1), mode="r")
            sides = np.abs(np.diagonal(triangles, axis1=1, axis2=2))
        return copy_read_only(sides.prod(axis=1) / factorial(self.dimension))

    @property
    def span_volume(self) -> float:
        """The volume in the body's span: the length of a segment, 1 for the point ``{0}``."""
        if self.dimension == self.ambient_dimension:
            return self.volume
        return float(self.cone_volumes.sum())

    @cached_property
    def volume(self) -> float:
        """The ``d``-dimensional volume (the area in the plane). 0.0 below full dimension."""
        if self.dimension < self.ambient_dimension:
            return 0.0
        if self.dimension == 2:
            return self._sums[0] / 2
        return float(self.cone_volumes.sum())

    @cached_property
    def second_moments(self) -> FloatArray:
        """The matrix ``E[u uᵀ]``, ``(d, d)``, of ``u`` uniform in the body (in its span)."""
        # For u uniform in the simplex of 0 and v_1..v_r: E[u uᵀ] = (Σ v vᵀ + (Σ v)(Σ v)ᵀ) / ((r + 1)(r + 2)).
        r = self.dimension
        total = self.cones.sum(axis=1)
        per_cone = np.einsum("cri,crj->cij", self.cones, self.cones) + np.einsum("ci,cj->cij", total, total)
        weights = self.cone_volumes / self.cone_volumes.sum()
        return copy_read_only(np.einsum("c,cij->ij", weights, per_cone) / ((r + 1) * (r + 2)))

    @cached_property
    def mean_squared_radius(self) -> float:
        """``E|u|²`` of ``u`` uniform in the body (in its span), in closed form."""
        if self.dimension == self.ambient_dimension == 2:
            area, moment, _ = self._sums
            return moment / area / 12
        return float(np.trace(self.second_moments))

    @cached_property
    def _sums(self) -> tuple[float, float, float]:
        """The sums of a planar polygon, see `planar.integrate_polygon`."""
        return planar.integrate_polygon(self.vertices)

    @property
    def squared_error(self) -> float:
        """``(r + 1)(r + 2) E|u|²``: the expected squared error of a K-norm release at epsilon one.

        With another budget it is divided by ``epsilon ** 2``. It is not monotone in the body: a hull that contains
        another one may have the smaller error.
        """
        return (self.dimension + 1) * (self.dimension + 2) * self.mean_squared_radius

    @property
    def circumradius(self) -> float:
        """Radius of the smallest origin-centred ball that contains the body."""
        return self.norm_form.scale

    @check_arguments
    def scale_axes(self, factors: npt.ArrayLike) -> SensitivityHull:
        """Scale each axis by a positive factor, such as from lattice steps to kilometres.

        Vertices and facets keep their order. The result is not exact; the tolerance applies in the new unit.

        Parameters
        ----------
        factors
            A positive number, or ``(d,)`` positive numbers, one for each axis.

        Returns
        -------
        SensitivityHull
            The scaled body.

        Raises
        ------
        InvalidInputError
            If a factor is not in the range of `MIN_SCALE` to `MAX_SCALE`, or their number is not that of the axes.
        """
        stretch = np.asarray(factors, dtype=np.float64)
        if stretch.shape not in ((), (self.ambient_dimension,)) or not (
            (stretch >= MIN_SCALE).all() and (stretch <= MAX_SCALE).all()
        ):
            raise InvalidInputError(
                f"factors must be one positive number for each of {self.ambient_dimension} axes, got {shorten(factors)}"
            )
        return self.scale_axes_unchecked(stretch)

    def scale_axes_unchecked(self, stretch: FloatArray) -> SensitivityHull:
        """Scale by factors that are already validated. See `scale_axes`.

        Parameters
        ----------
        stretch
            A positive number, or ``(d,)`` positive numbers, in the range of `scale_axes`; not checked.

        Returns
        -------
        SensitivityHull
            The scaled body.
        """
        return _StretchedHull(self, stretch)

    def convert_to_steps(self, factors: npt.NDArray[np.int64]) -> SensitivityHull:
        """Scale each axis of a body with integer vertices by a positive integer, exactly.

        Corners keep their order, so that a polygon needs no new search.

        Parameters
        ----------
        factors
            ``(d,)`` positive integers.

        Returns
        -------
        SensitivityHull
            The body with the vertices of this one times the factors, exactly.
        """
        if self.corners is not None:
            corners = self.corners * factors
            if compute_max_abs(corners) <= planar.COORDINATE_LIMIT:
                return SensitivityHull.from_polygon(corners)
        return SensitivityHull(np.rint(self.vertices).astype(np.int64) * factors)

    @cached_property
    def lattice_rows(self) -> IntArray | None:
        """The lattice points of a polygon with integer corners, row by row upwards, ``(k, 3)``.

        Each row is its height and its first and last column. It is computed from the half-planes: in the row at ``y``
        every half-plane that is not horizontal yields an interval, which may be empty. None for other bodies, and for
        polygons with too many rows.
        """
        if self.corners is None or (top := int(self.corners[:, 1].max())) > _MAX_LATTICE_ROWS:
            return None
        normals, offsets = planar.half_planes(self.corners)
        across = np.flatnonzero(normals[:, 0])
        x = np.abs(normals[across, 0])
        y = normals[across, 1] * np.sign(normals[across, 0])
        limits = offsets[across]
        heights = np.arange(-top, top + 1)
        high = ((limits - y * heights[:, np.newaxis]) // x).min(axis=1)
        rows = np.stack([heights, -high[::-1], high], axis=1)
        return make_read_only(rows[rows[:, 1] <= rows[:, 2]])

    def to_shapely(self) -> BaseGeometry:
        """Convert the body to a shapely polygon, line or point. For one and two dimensions.

        Returns
        -------
        Polygon, LineString or Point
            The body; a one-dimensional space is the first axis.

        Raises
        ------
        InvalidInputError
            In three and more dimensions.
        """
        from shapely.geometry import LineString, Point, Polygon

        if self.ambient_dimension > 2:
            raise InvalidInputError(f"a hull must have at most 2 dimensions for shapely, got {self.ambient_dimension}")
        corners = np.zeros((len(self.vertices), 2))
        corners[:, : self.ambient_dimension] = self.vertices
        return (Point, LineString, Polygon)[self.dimension](corners if self.dimension else corners[0])

    def __repr__(self) -> str:
        if self.dimension > 2 and "vertices" not in self.__dict__:  # a hull may be too large to compute
            return f"SensitivityHull(dimension={self.dimension}, differences={len(self.differences)})"
        return f"SensitivityHull(dimension={self.dimension}, vertices={len(self.vertices)}, volume={self.volume:.6g})"


class _SiftedHull(SensitivityHull):
    """A hull of differences after removal of interior ones, see `select_outer_points`."""

    _is_sifted = True


class _PolygonHull(SensitivityHull):
    """A hull in the plane with known corners: see `SensitivityHull.from_polygon`."""

    def __init__(self, corners: npt.NDArray[np.int64]) -> None:
        self._set(copy_read_only(corners), 1, _PLANE)
        # Usually computed from the differences; here they are the differences.
        self._corners = self.corners = self.differences
        self._facets = _list_polygon_edges(len(corners))
        self._tips = self.vertices = make_read_only(corners.astype(np.float64))


class _StretchedHull(SensitivityHull):
    """A body with scaled axes. Corners and facets keep the order of the original body.

    Parameters
    ----------
    body
        The body.
    stretch
        A positive number, or ``(d,)`` positive numbers.
    """

    def __init__(self, body: SensitivityHull, stretch: FloatArray) -> None:
        # v lies in the span of the body if E v = 0, and in that of the stretched one if E (v / stretch) = 0.
        span = Span(body._span.axes, body._span.equations / stretch)
        self._set(make_read_only(body.differences / (body._denominator or 1) * stretch), None, span)
        self._body = body
        self._stretch = stretch

    @cached_property
    def _facets(self) -> npt.NDArray[np.int64]:
        return self._body._facets

    @cached_property
    def _tips(self) -> FloatArray:
        return make_read_only(self._body._tips * self._stretch)

    @cached_property
    def vertices(self) -> FloatArray:
        """The vertices ``(h, d)`` of the body, stretched."""
        return make_read_only(self._body.vertices * self._stretch)

    @cached_property
    def norm_form(self) -> MinkowskiNorm:
        """The equations and half-spaces of the body, stretched. Rounding makes them inexact."""
        form = self._body.norm_form
        equations = _orthonormalize_rows(form.equations / self._stretch)
        return MinkowskiNorm(form.normals / self._stretch, equations, self._reach, None)


@dataclass(frozen=True)
class _CrossNorm(MinkowskiNorm):
    """The norm ``sum |v_k| / radius_k`` of a cross-polytope, without its ``2^d`` facets.

    Parameters
    ----------
    radii
        ``(d,)``, positive. If they are equal integers, membership of integer vectors is exact.
    """

    radii: FloatArray = field(default_factory=lambda: np.ones(0))

    def __call__(self, vectors: FloatArray, rounding: float = 0.0) -> FloatArray:  # noqa: ARG002 - the span is the whole space
        """Return the norms ``(n,)`` of vectors ``(n, d)``. The span is the whole space."""
        if (self.radii == self.radii[0]).all():
            return np.asarray(np.abs(vectors).sum(axis=1) / self.radii[0])
        return np.asarray(np.abs(vectors / self.radii).sum(axis=1))

    def contains(self, vectors: npt.NDArray[Any]) -> BoolArray:
        """Return closed membership ``(n,)``. Exact for integer vectors and equal integer radii."""
        # Equal radii below 2**53.
        radius = float(self.radii[0])
        if vectors.dtype.kind in "iu" and (self.radii == radius).all() and radius.is_integer() and radius < 2**53:
            return np.asarray(np.abs(vectors).sum(axis=1) <= int(radius))
        return super().contains(vectors)

    def diameter(self, points: FloatArray) -> float:
        """Return the largest norm of a difference of points, by pairs or by facets."""
        # Whichever are fewer.
        scaled = points / self.radii
        if len(points) > 2 ** len(self.radii):
            signs = np.array(list(product((1.0, -1.0), repeat=len(self.radii))))
            return float(_measure_extent(scaled, signs[: len(signs) // 2]))
        return _measure_diameter(scaled)


class CrossPolytope(SensitivityHull):
    """The cross-polytope ``{v : sum |v_k| / radius_k <= 1}`` of Laplace noise (Theorem 5.1).

    Norm, volume and second moments have closed forms. The ``2^d`` facets are enumerated only for `cones`.

    Parameters
    ----------
    radii
        ``(d,)``, positive: the extent of the body along each axis.
    """

    def __init__(self, radii: npt.ArrayLike) -> None:
        super().__init__(np.diag(np.asarray(radii, dtype=np.float64)))
        self.radii: FloatArray = np.diagonal(self.differences).astype(np.float64) * self._unit
        self.vertices = self._tips = make_read_only(np.concatenate([-np.diag(self.radii), np.diag(self.radii)]) + 0.0)

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
        return make_read_only(signs * len(self.radii) + np.arange(len(self.radii)))

    @cached_property
    def volume(self) -> float:
        """``2^d / d!`` times the product of the radii."""
        return float(np.prod(2.0 * self.radii)) / factorial(len(self.radii))

    @cached_property
    def second_moments(self) -> FloatArray:
        """The matrix ``E[u uᵀ]``, ``(d, d)``: diagonal, ``2 radius² / ((d + 1)(d + 2))``."""
        d = len(self.radii)
        return copy_read_only(np.diag(2.0 * self.radii**2 / ((d + 1) * (d + 2))))

    def scale_axes_unchecked(self, stretch: FloatArray) -> SensitivityHull:
        """Return the body with each axis multiplied by its factor, which is not checked."""
        return CrossPolytope(self.radii * stretch)


@check_arguments
@dataclass(frozen=True)
class Disc:
    """The Euclidean ball of a radius around the origin: a disc in the plane.

    Parameters
    ----------
    radius
        From 1e-60 to 1e60, so that quotients and squares are in the range of doubles.
    dimension
        The dimension ``d`` of the space.
    """

    radius: Annotated[float, Interval(_MIN_RADIUS, _MAX_RADIUS)]
    dimension: PositiveInt = 2

    def norm(self, vectors: npt.ArrayLike) -> FloatArray:
        """Return ``|v| / radius`` of each vector. Infinite if it exceeds the range of doubles.

        Parameters
        ----------
        vectors
            ``(..., d)``.

        Returns
        -------
        FloatArray
            ``(...)``: Euclidean length over radius.

        Raises
        ------
        CoordinateError
            If the vectors are not numbers, or have no axis of coordinates.
        """
        array = as_floats(vectors, "vectors", CoordinateError)
        if array.ndim == 0:
            raise CoordinateError(f"vectors must have {self.dimension} as the last axis, got shape {array.shape}")
        with np.errstate(over="ignore"):
            return np.asarray(np.linalg.norm(array, axis=-1) / self.radius)

    def contains(self, vectors: npt.ArrayLike) -> BoolArray:
        """Return whether each vector lies in the closed disc, within the tolerance.

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


def _parse_differences(values: npt.ArrayLike) -> tuple[npt.NDArray[Any], int | None]:
    """Return differences as integers over a common denominator, or as floats with ``None``."""
    array = _convert_integers(_parse_numbers(values, "differences"))
    denominator = 1
    if array.dtype == object:
        whole, denominator = to_common_denominator(array)
        array = whole.astype(np.int64) if compute_max_abs(whole) <= planar.COORDINATE_LIMIT else array
    points = as_points(array, "differences")
    return (array, denominator) if array.dtype.kind == "i" else (points, None)


def _parse_numbers(values: npt.ArrayLike, name: str) -> npt.NDArray[Any]:
    """Return values as an array of integers, floats, or rationals as objects."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise CoordinateError(f"{name} must be a rectangular array, got rows of different lengths") from None
    if array.dtype.kind == "u" and array.size and int(array.max()) >= 2**63:
        return array.astype(np.float64)
    if array.dtype == object:
        if not all(isinstance(entry, Real) and abs(cast(Any, entry)) <= MAX_SCALE for entry in array.ravel().tolist()):
            raise CoordinateError(f"{name} must be finite numbers")
        return array
    return array if array.dtype.kind in "iuf" else as_floats(array, name, CoordinateError)


def _convert_integers(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Convert integers, and floats with small integer values, to int64. Keep others."""
    if array.dtype.kind in "iu":
        return array.astype(np.int64)
    if array.dtype != object and ((np.abs(array) <= planar.COORDINATE_LIMIT) & (array == np.rint(array))).all():
        return array.astype(np.int64)
    return array


def _compute_flat_facets(points: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Return vertices ``(h, r)`` and facets ``(c, r)`` of symmetric points ``(k, r)``, r <= 2."""
    rank = points.shape[1]
    if rank == 0:
        return np.zeros((1, 0), dtype=points.dtype), np.zeros((1, 0), dtype=np.int64)
    if rank == 1:
        farthest = np.abs(points).max()
        return np.array([[-farthest], [farthest]]), np.array([[0], [1]])
    corners = planar.build_convex_polygon(points)
    if corners.dtype.kind == "f":
        corners = planar.without_blur(corners)
    return corners, _list_polygon_edges(len(corners))


@lru_cache(maxsize=256)
def _list_polygon_edges(count: int) -> npt.NDArray[np.int64]:
    """Return the indices of the two ends of each edge of a polygon."""
    index = np.arange(count)
    return make_read_only(np.stack([index, np.roll(index, -1)], axis=1))


def _compute_flat_half_spaces(corners: npt.NDArray[Any], exact: bool) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return ``|normal · v| <= offset`` per pair of opposite facets in up to two dimensions."""
    rank = corners.shape[1]
    if rank == 0:
        return np.zeros((0, 0), dtype=np.int64), np.zeros(0, dtype=np.int64)
    if rank == 1:
        return np.ones((1, 1), dtype=corners.dtype), corners[1]
    wide = exact and compute_max_abs(corners) > planar.COORDINATE_LIMIT
    return planar.half_planes(corners.astype(object) if wide else corners)


def _orthonormalize_rows(rows: FloatArray) -> FloatArray:
    return np.asarray(np.linalg.qr(rows.T)[0].T) if len(rows) else rows
