"""Convex hulls in three and more dimensions: one call of Qhull, exact half-spaces, and an estimate of their size.

All bodies here are symmetric: a row stands for a point and its negative.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import comb, exp, factorial, lgamma, log, pi
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dphmm.arrays import RELATIVE_TOLERANCE, BoolArray, FloatArray, IntArray
from dphmm.errors import InvalidInputError
from dphmm.geometry.span import distinct_rows, exact_determinants, exact_product, exact_rank, largest

MAX_FACETS = 2_000_000
"""Hulls with a larger estimate are refused.

Measured with random points on a sphere in 3 to 10 dimensions (SciPy 1.17, one core): a facet takes 1.4 to 6.7 µs and
390 to 630 bytes within Qhull, and about as much again for its cone and half-space. Two million facets are therefore
about half a minute and two gigabytes.
"""
_BYTES_PER_FACET = 1000

_FRAMES = 4
"""Number of inscribed cross-polytopes that filter points.

Of the 5,000 to 45,000 differences of complete policies in three dimensions 1 to 11 % remain after four of them; a
fifth removes less than Qhull would take for it.
"""
_FEW = 512
"""With fewer points Qhull takes less time than the filter."""
_MARGIN = 1e-6
"""Points must lie inside a cross-polytope by this share of it; rounding in its coefficients is below 1e-9."""
_MAX_CONDITION = 1e6
_FLAT = 1e-6
"""Corners at which the normals' smallest singular value, squared, is below this are examined exactly."""
_CONVEX = 1e-12
"""Largest height of a corner over a neighbouring facet, relative to the body: three orders below the one tolerance."""
_FACETS_AT_A_TIME = 1024
_JOGGLES = (1e-14, 1e-13, 1e-12, 1e-11, 1e-10)
"""How far coordinates are moved at random, relative to the largest: below the one tolerance."""
_EXACT_FLOATS = 2**53
"""Doubles represent integers below this exactly."""
_GENERIC = np.random.default_rng(0).normal(size=64)
"""A direction at right angles to no facet that occurs."""


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
    most = comb(count - (dimension + 1) // 2, dimension // 2) + comb(count - dimension // 2 - 1, (dimension - 1) // 2)
    k = dimension - 1  # the dimension of the sphere: facets are the simplices of its Delaunay tessellation
    per_vertex = exp(
        (k + 1) * log(2)
        + (k - 1) / 2 * log(pi)
        - log(k * k * (k + 1))
        + lgamma((k * k + 1) / 2)
        - lgamma(k * k / 2)
        + k * (lgamma(k / 2 + 1) - lgamma((k + 1) / 2))
    )
    return float(min(most, count * per_vertex))


def check_size(count: int, dimension: int) -> None:
    """Refuse a hull that would not fit, before it is computed.

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


def outer_points(points: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Remove points that certainly lie inside the symmetric hull; all vertices stay, up to sign.

    A few cross-polytopes are inscribed, each spanned by the farthest points along the axes of a fixed rotation. Points
    inside one of them are not vertices.

    Parameters
    ----------
    points
        ``(k, d)``; integers or floats.

    Returns
    -------
    ndarray
        ``(m, d)``. Of integers one of each pair of equal or opposite points, in lexicographic order, and no zeros.
    """
    kept: npt.NDArray[Any] = points
    if len(points) > _FEW and points.dtype != object:
        values = points.astype(np.float64)
        for frame in _frames(points.shape[1]):
            spanning = values[np.abs(values @ frame).argmax(axis=0)]
            try:
                inverse = np.linalg.inv(spanning)
            except np.linalg.LinAlgError:
                continue
            if not float(np.abs(spanning).max() * np.abs(inverse).max()) * len(inverse) < _MAX_CONDITION:
                continue
            outside = np.abs(values @ inverse).sum(axis=1) > 1.0 - _MARGIN
            kept, values = kept[outside], values[outside]
            if len(kept) <= _FEW:
                break
    if kept.dtype.kind == "f":  # equal differences are rare, and finding them takes longer than Qhull does
        return kept
    # The sign of the first coordinate that is not zero is made positive, so that opposite points are equal rows.
    leading = np.take_along_axis(kept, (kept != 0).argmax(axis=1)[:, None], axis=1)[:, 0]
    kept = np.where((leading < 0)[:, None], -kept, kept)[leading != 0]
    return distinct_rows(kept) if len(kept) else kept


@lru_cache(maxsize=32)
def _frames(dimension: int) -> tuple[FloatArray, ...]:
    """Return fixed rotations ``(d, d)``, the first of which is the identity."""
    rng = np.random.default_rng(dimension)
    others = [np.linalg.qr(rng.normal(size=(dimension, dimension)))[0] for _ in range(_FRAMES - 1)]
    return np.eye(dimension), *others


def symmetric_boundary(outer: npt.NDArray[Any]) -> Boundary:
    """Compute the boundary of the symmetric hull of full-dimensional points with one call of Qhull.

    Qhull runs without merging facets (``Q0``): it is twice as fast in five dimensions, and its simplices tile the
    boundary, whereas those that ``Qt`` makes of merged facets may overlap from four dimensions on (measured: a volume
    too large by up to 0.5 %). Where rounding makes facets ambiguous Qhull refuses ``Q0``; then ``Qt`` is used if its
    simplices tile the boundary, and otherwise input that is joggled by as little as it takes (``QJ``).

    Parameters
    ----------
    outer
        ``(k, d)`` with ``d`` at least 3: what `outer_points` returns. Integers or floats.

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
    joggled = [(f"QJ{share * size}", _has_volume) for share in _JOGGLES]
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
    simplices, normals = qhull.simplices, qhull.equations[:, :-1] / -qhull.equations[:, -1:]
    if options != "Q0":
        sizes = np.abs(np.linalg.det(floats[simplices]))
        solid = sizes > sizes.max() * _CONVEX  # slivers have no volume and no normal
        simplices, normals = simplices[solid], normals[solid]
        # Merged and joggled facets pass points by a little: they are moved outwards, so that the norm is at most one.
        for start in range(0, len(normals), _FACETS_AT_A_TIME):
            block = normals[start : start + _FACETS_AT_A_TIME]
            block /= np.maximum(1.0, (floats @ block.T).max(axis=0))[:, None]
    used = np.unique(simplices)
    used = used[np.lexsort(floats[used].T[::-1])]
    number = np.empty(len(both), dtype=np.int64)
    number[used] = np.arange(len(used))
    return Boundary(both[used], number[simplices], normals)


def _is_convex(qhull: Any, points: FloatArray) -> bool:
    """Check that no facet sees the far corner of a neighbour: a closed surface that is convex locally is convex."""
    simplices, neighbours, equations = qhull.simplices, qhull.neighbors, qhull.equations
    sums = simplices.sum(axis=1)
    # The neighbour opposite to corner k shares all other corners, so that its own is what the sums differ by.
    far = sums[neighbours] - (sums[:, None] - simplices)
    size = float(np.abs(points).max())
    for k in range(simplices.shape[1]):
        heights = (points[far[:, k]] * equations[:, :-1]).sum(axis=1) + equations[:, -1]
        if not (heights <= _CONVEX * size).all():
            return False
    return bool((equations[:, -1] < 0).all())


def _has_volume(qhull: Any, points: FloatArray) -> bool:
    """Check that the cones over the simplices add up to the volume of the hull."""
    total = float(np.abs(np.linalg.det(points[qhull.simplices])).sum()) / factorial(points.shape[1])
    return bool(abs(total - qhull.volume) <= RELATIVE_TOLERANCE * total) and bool((qhull.equations[:, -1] < 0).all())


def one_side(boundary: Boundary) -> BoolArray:
    """Choose simplices ``(c,)`` of one of each pair of opposite facets; both where rounding leaves a doubt.

    Opposite facets may be divided into different simplices, so that simplices cannot be paired.
    """
    heights = boundary.normals @ _GENERIC[: boundary.normals.shape[1]]
    return np.asarray(heights > -RELATIVE_TOLERANCE * np.abs(boundary.normals).sum(axis=1))


def integer_half_spaces(boundary: Boundary) -> tuple[npt.NDArray[Any], npt.NDArray[Any]] | None:
    """Compute the half-spaces ``|normal · v| <= offset`` of a boundary with integer corners, without rounding.

    With corners ``C`` of a simplex, ``normal = det(C) C⁻¹ 1`` and ``offset = det(C)`` are integers. They are rounded
    from doubles and verified in integers; simplices for which that fails have their minors computed exactly.

    Returns
    -------
    normals, offsets : ndarray of Python integers, or None
        ``(m, d)`` coprime and ``(m,)`` positive, one of each pair of opposite facets. None if a corner lies outside.
    """
    corners, simplices, approximate = boundary
    chosen = one_side(boundary)
    spans = corners[simplices[chosen]]
    wide = spans.astype(np.float64)
    determinants = np.rint(np.linalg.det(wide))
    guesses = np.rint(approximate[chosen] * determinants[:, None])
    rows = np.concatenate([guesses, determinants[:, None]], axis=1)
    reach = len(corners[0]) * max(1, largest(corners))
    # Doubles verify the equation exactly while no partial sum reaches 2**53.
    small = (np.abs(rows) * reach < _EXACT_FLOATS).all(axis=1) & (determinants != 0)
    verified = small & ((wide @ guesses[:, :, None])[..., 0] == determinants[:, None]).all(axis=1)
    parts = [_coprime(rows[verified].astype(np.int64))]
    if not verified.all():
        parts = [parts[0].astype(object), _coprime(_minors(spans[~verified]))]
    half_spaces = distinct_rows(np.concatenate(parts))
    normals, offsets = half_spaces[:, :-1], half_spaces[:, -1]
    if not (np.abs(exact_product(corners, normals.T)) <= offsets).all():
        return None
    return normals.astype(object), offsets.astype(object)


def _coprime(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Divide half-spaces ``(m, d + 1)`` by their normals' common factors and make them comparable."""
    rows = rows[(rows != 0).any(axis=1)]
    if not len(rows):
        return rows
    rows = rows // np.gcd.reduce(rows[:, :-1], axis=1)[:, None]
    leading = np.take_along_axis(rows, (rows != 0).argmax(axis=1)[:, None], axis=1)
    rows = np.where(leading < 0, -rows, rows)
    rows[:, -1] = np.abs(rows[:, -1])
    return rows


def _minors(spans: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Compute half-spaces ``(n, d + 1)`` of simplices ``(n, d, d)`` from the minors of their edges; zeros if flat."""
    edges = spans[:, 1:] - spans[:, :1]
    columns = [exact_determinants(np.delete(edges, axis, axis=2)) * (-1) ** axis for axis in range(spans.shape[-1])]
    normals = np.stack([column.astype(object) for column in columns], axis=1)
    return np.concatenate([normals, (normals * spans[:, 0]).sum(axis=1)[:, None]], axis=1)


def is_vertex(
    boundary: Boundary, half_spaces: Callable[[], tuple[npt.NDArray[Any], npt.NDArray[Any]] | None]
) -> BoolArray:
    """Find the corners ``(h,)`` that are vertices, and not points inside a face.

    The normals of the facets at a vertex span the space. Corners at which they nearly do not are examined in exact
    half-spaces, which are asked for only then; without these all corners count as vertices.
    """
    corners, dimension = boundary.corners, boundary.corners.shape[1]
    result: BoolArray = np.ones(len(corners), dtype=np.bool_)
    doubtful = np.flatnonzero(_spread_of_normals(boundary) < _FLAT)
    exact_half_spaces = half_spaces() if len(doubtful) else None
    if exact_half_spaces is None:
        return result
    exact, offsets = exact_half_spaces
    touching = np.abs(exact_product(corners[doubtful], exact.T)) == offsets
    enough = touching.sum(axis=1) >= dimension
    result[doubtful[~enough]] = False
    for corner, facets in zip(doubtful[enough].tolist(), touching[enough], strict=True):
        result[corner] = exact_rank(exact[facets]) == dimension
    return result


def _spread_of_normals(boundary: Boundary) -> FloatArray:
    """Compute the least eigenvalue of the sum of ``n nᵀ`` over the unit normals at each corner, ``(h,)``."""
    corners, simplices, normals = boundary
    dimension = corners.shape[1]
    units = normals / np.linalg.norm(normals, axis=1, keepdims=True)
    at = simplices.ravel()
    sums = np.empty((len(corners), dimension, dimension))
    for i in range(dimension):
        for j in range(i + 1):
            products = np.repeat(units[:, i] * units[:, j], dimension)
            sums[:, i, j] = sums[:, j, i] = np.bincount(at, products, len(corners))
    return np.asarray(np.linalg.eigvalsh(sums)[:, 0])
