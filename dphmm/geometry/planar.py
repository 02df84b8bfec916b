"""Convex polygons in the plane: exact for integers, plain floating point otherwise.

Polygons are arrays ``(h, 2)`` of strictly convex vertices, counter-clockwise, in the dtype of the input. Integers must
stay below `COORDINATE_LIMIT` in absolute value, so that every cross product fits 64 bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import read_only
from dphmm.compilation import compile_if_hot
from dphmm.geometry.convex_hull import estimate_facets
from dphmm.tolerances import RELATIVE_TOLERANCE

# Largest absolute integer coordinate for which 64-bit cross products are exact.
#
# Differences of coordinates are below 2**29 and their products below 2**58, with room for sums of several.
COORDINATE_LIMIT = 2**28

# Above this number of points Qhull is not slower than the scan in Python, even if all of them are corners. For 200
# random points, of which few are, it takes half the time, and for 500 a third.
_MIN_QHULL_POINTS = 256

# Above this number of points columns of wide integers are filtered before the scan.
_MIN_COLUMN_POINTS = 512

# Integers up to this size are filtered by Qhull: a corner sticks out by at least 1 / (4 * 2**16), ten thousand times
# the distance that Qhull treats as rounding.
_MAX_SIFTED_COORDINATE = 2**16

# Chains of fewer row ends are scanned directly: a pass of numpy calls takes as long as the scan.
_MIN_SIFTED_CHAIN = 48

# About 50 ms of Qhull: callers want fewer points, and a longer search does not pay.
_MAX_FACETS = 20_000

# Corners that stick out by at most this share of the largest coordinate are rounding errors of a few additions.
# With one unit, some of those of sheared lattices stay, and half-planes through them cut the hull.
_MAX_BLUR = 16 * float(np.finfo(np.float64).eps)

Points = npt.NDArray[Any]


def cross(a: Points, b: Points) -> Any:
    """Return the cross product ``a_x b_y - a_y b_x`` of planar vectors, over the leading axes."""
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]


def dot(a: Points, b: Points) -> Any:
    """Return the inner product of planar vectors, over the leading axes."""
    return a[..., 0] * b[..., 0] + a[..., 1] * b[..., 1]


def build_convex_polygon(points: Points) -> Points:
    """Return the vertices of the convex hull of points ``(n, 2)``, counter-clockwise.

    There are no points inside an edge. Degenerate input yields fewer than three vertices: the two ends of a segment, or
    one point. Rounding decides only for points within one unit in the last place of a cross product; for integers
    nothing is rounded. The algorithm is Andrew's monotone chain (1979), or Qhull for more than a few floats.
    """
    # Integers use this scan because doubles would round collinear points off their edge. For few points it is also up
    # to six times as fast as ConvexHull.
    if len(points) > _MIN_QHULL_POINTS:
        if points.dtype.kind == "f":
            corners = _find_corners_by_qhull(points)
            if len(corners) > 2:
                return corners
        elif points.dtype.kind == "i" and int(np.abs(points).max()) <= _MAX_SIFTED_COORDINATE:
            points = select_hull_candidates(points)
        elif points.dtype.kind == "i" and len(points) > _MIN_COLUMN_POINTS:
            points = _select_column_extremes(points)
    ordered = sorted(set(map(tuple, points.tolist())))
    if len(ordered) <= 2:
        return np.array(ordered, dtype=points.dtype).reshape(-1, 2)
    return _join_half_chains(ordered, points.dtype)


def _join_half_chains(ordered: list[tuple[Any, Any]], dtype: npt.DTypeLike, slack: float = 0.0) -> Points:
    lower = _build_half_chain(ordered, slack)
    upper = _build_half_chain(ordered[::-1], slack)
    return np.array(lower[:-1] + upper[:-1], dtype=dtype)


def without_blur(polygon: Points) -> Points:
    """Remove corners due to rounding from a symmetric polygon of floats.

    Points of a sheared lattice may occur more than once, a few units in the last place apart, or nearly on one line.
    The edges between such points have arbitrary directions, and half-planes through them would cut the polygon. A
    polygon without such edges is returned unchanged. Otherwise corners that stick out of their neighbours' line by at
    most `_MAX_BLUR` are removed.
    """
    normals, offsets = half_planes(polygon)
    blur = _MAX_BLUR * float(np.abs(polygon).max())
    # A quarter of the tolerance with which points count as inside: a hull that is kept must contain its own corners.
    # Any share below one does that if it leaves room for the rounding of heights.
    heights = np.abs(polygon @ normals.T)
    if (np.abs(normals).max(axis=1) > blur).all() and (heights <= offsets * (1.0 + 0.25 * RELATIVE_TOLERANCE)).all():
        return polygon
    return _join_half_chains(sorted(map(tuple, polygon.tolist())), polygon.dtype, blur)


def build_polygon(first: Points, last: Points) -> Points:
    """Return `build_convex_polygon` of row ends ``(r, 2)``, integers from the lowest row up.

    The chain goes up along the last points and down along the first ones; nothing is sorted.
    """
    right, left = (_build_chain(chain) for chain in (last, first[::-1]))
    corners = right[: len(right) - (right[-1] == left[0])] + left[: len(left) - (left[-1] == right[0])]
    lowest = corners.index(min(corners)) if corners else 0
    # Without corners all rows end at one point.
    return np.array(corners[lowest:] + corners[:lowest] or right, dtype=first.dtype)


def _build_chain(points: Points) -> list[list[int]]:
    """Return the points of a chain of integers ``(n, 2)`` at which their hull turns left."""
    corners = np.empty_like(points, order="C")
    return list(corners[: _write_chain(read_only(points), corners)].tolist())


def _write_chain_loop(points: Points, corners: Points) -> int:
    """Form of `_write_chain` that numba can compile."""
    size = 0
    for i in range(len(points)):
        while size > 1:
            last = corners[size - 1]
            previous = corners[size - 2]
            across = (last[0] - previous[0]) * (points[i, 1] - previous[1])
            if across > (last[1] - previous[1]) * (points[i, 0] - previous[0]):
                break
            size -= 1
        # numba takes two seconds to compile an assignment of a row.
        corners[size, 0] = points[i, 0]
        corners[size, 1] = points[i, 1]
        size += 1
    return size


@compile_if_hot(_write_chain_loop)
def _write_chain(points: Points, corners: Points) -> int:
    """Write the corners of `_build_half_chain` to an array. Return their number."""
    chain = _build_half_chain(list(map(tuple, select_left_turns(points).tolist())))
    corners[: len(chain)] = chain
    return len(chain)


def _build_half_chain(ordered: list[tuple[Any, Any]], slack: float = 0.0) -> list[tuple[Any, Any]]:
    chain = ordered[:1]
    for point in ordered[1:]:
        x, y = point
        bx, by = chain[-1]
        while len(chain) > 1:
            ax, ay = chain[-2]
            # Invariant: the chain turns left at each of its points. Points at which it would not are removed.
            turn = (bx - ax) * (y - ay) - (by - ay) * (x - ax)
            # ``turn`` is the height of the last point above the line of its neighbours times their distance. Without
            # slack nothing is multiplied: Python integers may exceed the range of floats.
            if turn > (slack and slack * max(abs(x - ax), abs(y - ay))):
                break
            chain.pop()
            bx = ax
            by = ay
        chain.append(point)
    return chain


def _find_corners_by_qhull(points: Points) -> Points:
    """Return the corners of floats, counter-clockwise from the leftmost. Empty if degenerate."""
    # In SciPy's order.
    from scipy.spatial import ConvexHull, QhullError

    try:
        corners = points[ConvexHull(points - points[0]).vertices]
    except QhullError:
        return points[:0]
    return np.roll(corners, -int(np.lexsort(corners.T[::-1])[0]), axis=0)


def _select_column_extremes(points: Points) -> Points:
    """Return the lowest and highest point of every column, which include all vertices."""
    order = np.lexsort((points[:, 1], points[:, 0]))
    ordered = points[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:, 0] != ordered[:-1, 0]])
    ends = np.r_[starts[1:], len(ordered)] - 1
    return np.asarray(ordered[np.concatenate([starts, ends])])


def select_left_turns(chain: Points) -> Points:
    """Remove the points of a chain ``(n, 2)`` at which it does not turn left.

    Parameters
    ----------
    chain
        Integers, counter-clockwise along one side of the hull: each farther than its predecessor in some direction.
        Corners of the hull are kept.
    """
    while len(chain) > _MIN_SIFTED_CHAIN:
        steps = chain[1:] - chain[:-1]
        turns = cross(steps[:-1], steps[1:]) > 0
        kept = np.flatnonzero(turns) + 1
        # Passes are repeated while they remove a fifth of the points; the scan in Python does the rest.
        if len(kept) > 0.8 * (len(chain) - 2):
            break
        chain = chain[np.concatenate([[0], kept, [len(chain) - 1]])]
    return chain


def select_hull_candidates(points: Points) -> Points:
    """Return Qhull's vertices of points in any dimension, or all points if it fails.

    It fails for degenerate or too many points. Its tolerance is relative to the largest coordinate; therefore it
    receives differences from the first point.
    """
    from scipy.spatial import ConvexHull, QhullError

    if estimate_facets(len(points), points.shape[1]) > _MAX_FACETS:
        return points

    try:
        return points[ConvexHull(points - points[0]).vertices]
    except QhullError:
        return points


def build_difference_polygon(polygon: Points) -> Points:
    """Return the difference body ``P - P`` of a convex polygon, counter-clockwise.

    An edge of ``P - P`` is an edge of ``P`` minus the vertex (or parallel edge) at which the edge's normal is smallest,
    or the mirror image of such an edge.
    """
    if len(polygon) <= 2:
        return build_convex_polygon(np.concatenate([polygon - polygon[:1], polygon - polygon[-1:]]))
    polygon = polygon - polygon[:1]  # heights of points far from the origin would be rounded
    ends = get_next_vertices(polygon)
    edges = ends - polygon
    # Rotating calipers for all edges together: h² heights of h vertices are faster than a loop over h edges.
    heights = edges[:, :1] * polygon[:, 1] - edges[:, 1:] * polygon[:, 0]
    farthest = heights == heights.max(axis=1, keepdims=True)
    edge, vertex = np.nonzero(farthest)
    tips = np.concatenate([polygon[edge] - polygon[vertex], ends[edge] - polygon[vertex]])
    return build_convex_polygon(np.concatenate([tips, -tips]))


def integrate_polygon(corners: Points) -> tuple[float, float, float]:
    """Return twice the area of a polygon ``(h, 2)``, ``24 ∫ |u|²``, and its squared reach.

    They are sums over the triangles between the origin and the edges, in order.
    """
    area = moment = reach = 0.0
    points = corners.tolist()
    for (ax, ay), (bx, by) in zip([points[-1], *points], points, strict=False):
        double = ax * by - ay * bx
        square = bx * bx + by * by
        x = ax + bx
        y = ay + by
        area += double
        moment += double * ((ax * ax + ay * ay) + square + (x * x + y * y))
        reach = max(reach, square)
    return area, moment, reach


def doubled_area(polygon: Points) -> Any:
    """Return twice the area of a polygon. An exact integer for integers, zero if degenerate."""
    if len(polygon) < 3:
        return polygon.dtype.type(0)
    return cross(polygon, get_next_vertices(polygon)).sum()


def get_next_vertices(polygon: Points) -> Points:
    """Return the next vertex of each vertex."""
    return np.concatenate([polygon[1:], polygon[:1]])


def half_planes(polygon: Points) -> tuple[Points, Points]:
    """Return half-planes ``|normal · v| <= offset`` of a full-dimensional symmetric polygon.

    Normals are ``(m, 2)``, offsets ``(m,)``: one pair of opposite edges each, in the order of the first half of the
    vertices; exact for integers.
    """
    half = len(polygon) // 2
    start, end = polygon[:half], polygon[1 : half + 1]
    edge = end - start
    normals = np.empty_like(edge)
    normals[:, 0] = edge[:, 1]
    np.negative(edge[:, 0], out=normals[:, 1])
    return normals, np.asarray(cross(start, end))
