"""Convex hulls in three or more dimensions: Qhull, exact half-spaces, size estimates.

All bodies here are symmetric: a row represents a point and its negative.
"""

from __future__ import annotations

from functools import lru_cache
from math import comb, exp, factorial, lgamma, log, pi
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.errors import InvalidInputError
from dphmm.geometry.exact_linear_algebra import (
    EXACT_FLOATS,
    compute_max_abs,
    exact_determinants,
    exact_product,
    exact_rank,
    find_nonzero_rows,
    index_rows,
    select_distinct_rows,
)
from dphmm.tolerances import RELATIVE_TOLERANCE

# Hulls with a larger estimate are refused.
#
# Measured with random points on a sphere in 3 to 10 dimensions (SciPy 1.17, one core): a facet takes 1.4 to 6.7 µs and
# 390 to 630 bytes within Qhull, and about as much again for its cone and half-space. Two million facets are therefore
# about half a minute and two gigabytes.
MAX_FACETS = 2_000_000
# Measured as above, Qhull's own memory and that of cones and half-spaces together.
_BYTES_PER_FACET = 1000

# Inscribed cross-polytopes that filter points. Of the 5,000 to 45,000 differences of complete policies in three
# dimensions 1 to 11 % remain after four of them; the time of a fifth exceeds that of Qhull for the points it removes.
_NUM_FRAMES = 4
# With fewer points Qhull takes less time than the filter.
_MIN_FILTERED_POINTS = 512
# Points must lie inside a cross-polytope by this share of it; rounding in its coefficients is below 1e-9.
_INTERIOR_MARGIN = 1e-6
# Up to this condition number of the spanning points the rounding of coefficients stays below that.
_MAX_CONDITION = 1e6
# Sums of ``n nᵀ`` over unit normals with a smaller least eigenvalue are examined exactly; each term adds a rounding
# of about 1e-16.
_MIN_EIGENVALUE = 1e-6
# Number of heights of corners over facets in a block, 32 MB of them.
_MAX_HEIGHTS = 1 << 22
# Largest height of a corner over a neighbouring facet, relative to the body: three orders below the one tolerance.
_MAX_BULGE = 1e-12
# A block of heights of some hundred corners over so many facets stays in the cache.
_FACET_BLOCK = 1024
# Coordinates are moved at random by these shares of the largest, the smallest share first: at most a tenth of the one
# tolerance.
_JOGGLE_SHARES = (1e-14, 1e-13, 1e-12, 1e-11, 1e-10)
# A direction that is not orthogonal to any facet in practice. Fixed, so that results are reproducible.
_GENERIC_DIRECTION = np.random.default_rng(0).normal(size=64)


class Boundary(NamedTuple):
    """The boundary of a symmetric polytope as simplices.

    Parameters
    ----------
    corners
        ``(h, d)``: the points that the simplices use, in lexicographic order. In addition to the vertices there may be
        points inside faces.
    simplices
        ``(c, d)``: indices of corners. The simplices tile the boundary.
    normals
        ``(c, d)`` outer normals: ``normals @ v == 1`` on the simplex, up to rounding.
    """

    corners: npt.NDArray[Any]
    simplices: IntArray
    normals: FloatArray


def estimate_facets(count: int, dimension: int) -> float:
    """Estimate the number of facets of the convex hull of points, before it is computed.

    The smaller of the upper bound theorem's number (McMullen, 1970) and the expectation for points on a sphere: a
    constant per vertex, that of the Poisson-Delaunay tessellation (Møller, 1989), which is 2, 6.77, 31.8, 187 and 1,297
    in 3 to 7 dimensions. Bodies of policies and random points stayed below it; cyclic polytopes do not.

    Parameters
    ----------
    count
        The number of points, both signs included.
    dimension
        The dimension of the hull, 2 or more.
    """
    if count <= dimension:
        return 0.0
    maximum = comb(count - (dimension + 1) // 2, dimension // 2) + comb(
        count - dimension // 2 - 1, (dimension - 1) // 2
    )
    k = dimension - 1  # the dimension of the sphere: facets are the simplices of its Delaunay tessellation
    per_vertex = exp(
        (k + 1) * log(2)
        + (k - 1) / 2 * log(pi)
        - log(k * k * (k + 1))
        + lgamma((k * k + 1) / 2)
        - lgamma(k * k / 2)
        + k * (lgamma(k / 2 + 1) - lgamma((k + 1) / 2))
    )
    return float(min(maximum, count * per_vertex))


def check_size(count: int, dimension: int) -> None:
    """Raise an error for a hull that would exceed the limit, before it is computed.

    Raises
    ------
    InvalidInputError
        If the estimate is above `MAX_FACETS`.
    """
    facets = estimate_facets(count, dimension)
    if facets > MAX_FACETS:
        gigabytes = facets * _BYTES_PER_FACET / 1e9
        raise InvalidInputError(
            f"the hull of {count:,} differences in {dimension} dimensions must have at most {MAX_FACETS:,} facets, got "
            f"an estimate of {facets:.2g} ({gigabytes:.3g} GB); use fewer states or mechanism 'laplace'"
        )


def select_outer_points(points: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Remove points that certainly lie inside the symmetric hull, and no vertex up to sign.

    A few cross-polytopes are inscribed, each spanned by the farthest points along the axes of a fixed rotation. Points
    inside one of them are not vertices.

    Parameters
    ----------
    points
        ``(k, d)``; integers or floats.

    Returns
    -------
    ndarray
        ``(m, d)``. For integers, one of each pair of equal or opposite points, in lexicographic order, without zeros.
    """
    kept: npt.NDArray[Any] = points
    if len(points) > _MIN_FILTERED_POINTS and points.dtype != object:
        # One row per axis, and `take`: reductions over a short last axis and indexing by arrays are ten times slower.
        values = np.ascontiguousarray(points.T, dtype=np.float64)
        for frame in _build_frames(points.shape[1]):
            spanning = values.take(np.abs(frame.T @ values).argmax(axis=1), axis=1)
            try:
                inverse = np.linalg.inv(spanning)
            except np.linalg.LinAlgError:
                continue
            if not float(np.abs(spanning).max() * np.abs(inverse).max()) * len(inverse) < _MAX_CONDITION:
                continue
            outside = np.flatnonzero(np.abs(inverse @ values).sum(axis=0) > 1.0 - _INTERIOR_MARGIN)
            kept = kept.take(outside, axis=0)
            values = values.take(outside, axis=1)
            if len(kept) <= _MIN_FILTERED_POINTS:
                break
    if kept.dtype.kind == "f":  # equal differences are rare, and finding them is slower than Qhull
        return kept
    kept = _with_leading_sign(kept)
    return select_distinct_rows(kept.compress(find_nonzero_rows(kept), axis=0))


def _with_leading_sign(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Make the first non-zero entry of each row positive, so that opposite rows are equal."""
    leading = np.take_along_axis(rows, (rows != 0).argmax(axis=1)[:, None], axis=1)
    return np.where(leading < 0, -rows, rows)


@lru_cache(maxsize=32)
def _build_frames(dimension: int) -> tuple[FloatArray, ...]:
    """Return fixed rotations ``(d, d)``, the first of which is the identity."""
    rng = np.random.default_rng(dimension)
    others = [np.linalg.qr(rng.normal(size=(dimension, dimension)))[0] for _ in range(_NUM_FRAMES - 1)]
    return np.eye(dimension), *others


def build_symmetric_boundary(outer: npt.NDArray[Any]) -> Boundary:
    """Compute the boundary of the symmetric hull of points with a single call of Qhull.

    Qhull runs without merging facets (``Q0``). This is twice as fast in five dimensions, and its simplices tile the
    boundary. The simplices that ``Qt`` builds from merged facets may overlap from four dimensions on (measured: a
    volume too large by up to 0.5 %). If rounding makes facets ambiguous, Qhull refuses ``Q0``. Then ``Qt`` is used
    if its simplices tile the boundary, and otherwise the input is joggled by the smallest sufficient amount (``QJ``).

    Parameters
    ----------
    outer
        ``(k, d)`` with ``d`` at least 3, full-dimensional: the result of `select_outer_points`. Integers or floats.

    Raises
    ------
    InvalidInputError
        If the hull is too large (see `check_size`), or too degenerate for Qhull.
    """
    from scipy.spatial import ConvexHull, QhullError

    dimension = outer.shape[1]
    check_size(2 * len(outer), dimension)
    both = np.concatenate([outer, -outer])
    floats = both.astype(np.float64)
    size = float(np.abs(floats).max(initial=0.0))
    joggled = [(f"QJ{share * size}", _has_volume) for share in _JOGGLE_SHARES]
    for options, is_tiling in (("Q0", _is_convex), ("Qt", _has_volume), *joggled):
        try:
            qhull = ConvexHull(floats, qhull_options=options)
        except QhullError:
            continue
        if is_tiling(qhull, floats):
            break
    else:
        raise InvalidInputError(
            f"the hull of {len(outer):,} differences in {dimension} dimensions must have facets that doubles can "
            "distinguish, got nearly coincident ones; round the measurements"
        )
    simplices = qhull.simplices
    normals = qhull.equations[:, :-1] / -qhull.equations[:, -1:]
    if options != "Q0":
        sizes = np.abs(np.linalg.det(floats[simplices]))
        solid = sizes > sizes.max() * _MAX_BULGE  # slivers have no volume and no normal
        simplices = simplices[solid]
        normals = normals[solid]
        # Merged and joggled facets exceed points slightly: move them outwards, so that the norm is at most one.
        for start in range(0, len(normals), _FACET_BLOCK):
            block = normals[start : start + _FACET_BLOCK]
            block /= np.maximum(1.0, (floats @ block.T).max(axis=0))[:, None]
    is_used = np.zeros(len(both), dtype=np.bool_)
    is_used[simplices] = True
    used = np.flatnonzero(is_used)
    used = used[np.lexsort(floats[used].T[::-1])]
    number = np.empty(len(both), dtype=np.int64)
    number[used] = np.arange(len(used))
    return Boundary(both[used], number[simplices], normals)


def _is_convex(qhull: Any, points: FloatArray) -> bool:
    """Check that no facet sees the far corner of a neighbour."""
    # A closed surface that is locally convex is convex.
    simplices = qhull.simplices
    neighbours = qhull.neighbors
    equations = qhull.equations
    sums = simplices.sum(axis=1)
    # The neighbour opposite to corner k shares all other corners; its far corner is the difference of the sums.
    far = sums[neighbours] - (sums[:, None] - simplices)
    size = float(np.abs(points).max())
    for k in range(simplices.shape[1]):
        heights = np.einsum("cd,cd->c", points.take(far[:, k], axis=0), equations[:, :-1]) + equations[:, -1]
        if not (heights <= _MAX_BULGE * size).all():
            return False
    # The origin lies below every facet.
    return bool((equations[:, -1] < 0).all())


def _has_volume(qhull: Any, points: FloatArray) -> bool:
    """Check that the cones over the simplices add up to the volume of the hull."""
    total = float(np.abs(np.linalg.det(points[qhull.simplices])).sum()) / factorial(points.shape[1])
    return bool(abs(total - qhull.volume) <= RELATIVE_TOLERANCE * total) and bool((qhull.equations[:, -1] < 0).all())


def select_positive_side(boundary: Boundary, height: float = -RELATIVE_TOLERANCE) -> BoolArray:
    """Select simplices ``(c,)`` of one facet of each opposite pair. Both if ambiguous.

    Opposite facets may be divided into different simplices, so that simplices cannot be paired.

    Parameters
    ----------
    boundary
        The boundary.
    height
        Minimum relative height of a normal along the generic direction. Only above the tolerance are all simplices of
        a facet certainly selected together.
    """
    normals = boundary.normals
    heights = normals @ _GENERIC_DIRECTION[: normals.shape[1]]
    return np.asarray(heights > height * np.abs(normals).sum(axis=1))


class IntegerHalfSpaces(NamedTuple):
    """The half-spaces ``|normal · v| <= offset`` of a symmetric polytope with integer corners.

    Parameters
    ----------
    normals
        ``(m, d)`` coprime integers, one of each pair of opposite facets, in lexicographic order.
    offsets
        ``(m,)`` positive integers.
    is_vertex
        ``(h,)``: the corners of the boundary that are vertices. Others lie inside a face.
    """

    normals: npt.NDArray[Any]
    offsets: npt.NDArray[Any]
    is_vertex: BoolArray


def integer_half_spaces(boundary: Boundary) -> IntegerHalfSpaces | None:
    """Compute exact half-spaces of integer corners. None if a corner lies outside.

    With corners ``C`` of a simplex, ``normal = det(C) C⁻¹ 1`` and ``offset = det(C)`` are integers. They are rounded
    from doubles and verified in integers; simplices for which that fails have their minors computed exactly.
    """
    corners, simplices, approximate = boundary
    chosen = np.flatnonzero(select_positive_side(boundary))
    spans = corners.take(simplices.take(chosen, axis=0), axis=0)
    wide = spans.astype(np.float64)
    determinants = np.rint(np.linalg.det(wide))
    guesses = np.rint(approximate.take(chosen, axis=0) * determinants[:, None])
    rows = np.concatenate([guesses, determinants[:, None]], axis=1)
    reach = len(corners[0]) * max(1, compute_max_abs(corners))
    # Doubles verify the equation exactly while no partial sum reaches 2**53.
    small = (np.abs(rows) * reach < EXACT_FLOATS).all(axis=1) & (determinants != 0)
    verified = small & ((wide @ guesses[:, :, None])[..., 0] == determinants[:, None]).all(axis=1)
    parts = [_make_coprime(rows.compress(verified, axis=0).astype(np.int64))]
    if not verified.all():
        parts = [parts[0].astype(object), _make_coprime(_compute_half_spaces(spans[~verified]))]
    half_spaces, index = index_rows(np.concatenate(parts))
    normals = half_spaces[:, :-1]
    offsets = half_spaces[:, -1]
    unsigned, number = index_rows(_with_leading_sign(corners))
    # A block of heights stays in the cache.
    for start in range(0, len(normals), _FACET_BLOCK):
        block = slice(start, start + _FACET_BLOCK)
        heights = exact_product(unsigned, normals[block].T)
        if not (np.maximum(heights.max(axis=0), -heights.min(axis=0)) <= offsets[block]).all():
            return None
    is_vertex = np.zeros(len(unsigned), dtype=np.bool_)
    if verified.all():
        # The corners of a facet that is a single simplex are its vertices, and therefore the body's.
        is_whole = (np.bincount(index)[index] == 1) & select_positive_side(boundary, RELATIVE_TOLERANCE)[chosen]
        is_vertex[number[simplices[chosen[is_whole]]]] = True
    rest = np.flatnonzero(~is_vertex)
    several = max(1, _MAX_HEIGHTS // len(normals))
    for start in range(0, len(rest), several):
        examined = rest[start : start + several]
        touching = np.abs(exact_product(unsigned[examined], normals.T)) == offsets
        is_vertex[examined] = _spans_space(normals, touching)
    return IntegerHalfSpaces(normals, offsets, is_vertex[number])


def _spans_space(normals: npt.NDArray[Any], touching: BoolArray) -> BoolArray:
    """Decide for each row of ``touching`` ``(k, m)`` whether its normals span the space."""
    # They do at a vertex.
    dimension = normals.shape[1]
    result: BoolArray = touching.sum(axis=1) >= dimension
    enough = np.flatnonzero(result)
    if not len(enough):
        return result
    units = normals.astype(np.float64)
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    squares = (units[:, :, None] * units[:, None, :]).reshape(len(units), -1)
    sums = (touching[enough].astype(np.float64) @ squares).reshape(-1, dimension, dimension)
    # If the smallest singular value is positive beyond rounding, no exact elimination is needed.
    for corner in enough[np.linalg.eigvalsh(sums)[:, 0] < _MIN_EIGENVALUE]:
        result[corner] = exact_rank(normals[touching[corner]]) == dimension
    return result


def _make_coprime(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Divide half-spaces ``(m, d + 1)`` by their normals' common factors, with leading signs."""
    rows = rows.compress(find_nonzero_rows(rows), axis=0)
    if not len(rows):
        return rows
    rows = _with_leading_sign(rows // np.gcd.reduce(rows[:, :-1], axis=1)[:, None])
    rows[:, -1] = np.abs(rows[:, -1])
    return rows


def _compute_half_spaces(spans: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Compute half-spaces ``(n, d + 1)`` of simplices ``(n, d, d)``. Zeros if flat."""
    edges = spans[:, 1:] - spans[:, :1]
    columns = [exact_determinants(np.delete(edges, axis, axis=2)) * (-1) ** axis for axis in range(spans.shape[-1])]
    normals = np.stack([column.astype(object) for column in columns], axis=1)
    return np.concatenate([normals, (normals * spans[:, 0]).sum(axis=1)[:, None]], axis=1)
