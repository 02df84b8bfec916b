"""Convex polygons in the plane: exact for integers, plain floating point otherwise.

Polygons are arrays ``(h, 2)`` of strictly convex vertices, counter-clockwise, in the dtype of the input. Integers must
stay below `COORDINATE_LIMIT` in absolute value, so that every cross product fits 64 bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import RELATIVE_TOLERANCE
from dphmm.geometry.facets import estimate_facets

COORDINATE_LIMIT = 2**28
"""Largest absolute integer coordinate for which 64-bit cross products are exact."""

_MANY = 256
"""Above this many points Qhull is not slower than the scan in Python, even if all of them are corners; of 200 random
points, of which few are, it takes half the time, and of 500 a third."""

_MANY_IN_COLUMNS = 512
"""Above this many points columns of wide integers are sifted before the scan."""

_SIFTED_LIMIT = 2**16
"""Integers up to this size are sifted by Qhull: a corner sticks out by at least 1 / (4 * 2**16), ten thousand times
the distance that Qhull takes for rounding."""

_LONG = 48
"""The same for the ends of rows."""

_MAX_FACETS = 20_000
"""About 50 ms of Qhull's: callers want fewer points, and a longer search for them does not pay."""

_BLUR = 16 * float(np.finfo(np.float64).eps)
"""By how much of the largest coordinate corners of floats may stick out that are none."""

Points = npt.NDArray[Any]


def cross(a: Points, b: Points) -> Any:
    """The cross product ``a_x b_y - a_y b_x`` of planar vectors, over the leading axes."""
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]


def dot(a: Points, b: Points) -> Any:
    """The inner product of planar vectors, over the leading axes."""
    return a[..., 0] * b[..., 0] + a[..., 1] * b[..., 1]


def convex_polygon(points: Points) -> Points:
    """The vertices of the convex hull of points ``(n, 2)``, counter-clockwise, without points inside an edge.

    Degenerate input gives fewer than three vertices: the two ends of a segment, or one point. Points that are kept or
    dropped by rounding alone are at the level of one unit in the last place of a cross product; for integers nothing
    is rounded. (Andrew's monotone chain, 1979; of more than a few floats, Qhull.)
    """
    # Integers keep this scan because doubles would round collinear points off their edge; among few points it is also
    # up to six times as fast as ConvexHull.
    if len(points) > _MANY:
        if points.dtype.kind == "f":
            corners = _floats_by_qhull(points)
            if len(corners) > 2:
                return corners
        elif points.dtype.kind == "i" and int(np.abs(points).max()) <= _SIFTED_LIMIT:
            points = hull_candidates(points)
        elif points.dtype.kind == "i" and len(points) > _MANY_IN_COLUMNS:
            points = _extremes_by_column(points)
    ordered = sorted(set(map(tuple, points.tolist())))
    if len(ordered) <= 2:
        return np.array(ordered, dtype=points.dtype).reshape(-1, 2)
    return _polygon(ordered, points.dtype)


def _polygon(ordered: list[tuple[Any, Any]], dtype: npt.DTypeLike, slack: float = 0.0) -> Points:
    lower = _half_chain(ordered, slack)
    upper = _half_chain(ordered[::-1], slack)
    return np.array(lower[:-1] + upper[:-1], dtype=dtype)


def without_blur(polygon: Points) -> Points:
    """A symmetric polygon of floats without the corners that rounding made.

    Points of a sheared lattice are met more than once, a few units in the last place apart, or nearly in one line. The
    edges between such points lead anywhere, and half-planes through them would cut the polygon. One without such edges
    is returned as it is; of others the corners go that stick out of their neighbours' line by `_BLUR` at most.
    """
    normals, offsets = half_planes(polygon)
    blur = _BLUR * float(np.abs(polygon).max())
    heights = np.abs(polygon @ normals.T)
    if (np.abs(normals).max(axis=1) > blur).all() and (heights <= offsets * (1.0 + 0.25 * RELATIVE_TOLERANCE)).all():
        return polygon
    return _polygon(sorted(map(tuple, polygon.tolist())), polygon.dtype, blur)


def polygon_of_rows(first: Points, last: Points) -> Points:
    """`convex_polygon` of the ends of rows, ``(r, 2)`` each, from the lowest row up: integers, one row above another.

    Up along the last points and down along the first ones, with nothing to be sorted.
    """
    right, left = (_half_chain(list(map(tuple, bending(chain).tolist()))) for chain in (last, first[::-1]))
    corners = right[: len(right) - (right[-1] == left[0])] + left[: len(left) - (left[-1] == right[0])]
    lowest = corners.index(min(corners)) if corners else 0
    return np.array(corners[lowest:] + corners[:lowest] or right, dtype=first.dtype)


def _half_chain(ordered: list[tuple[Any, Any]], slack: float = 0.0) -> list[tuple[Any, Any]]:
    chain = ordered[:1]
    for point in ordered[1:]:
        x, y = point
        bx, by = chain[-1]
        while len(chain) > 1:
            ax, ay = chain[-2]
            turn = (bx - ax) * (y - ay) - (by - ay) * (x - ax)
            if turn > (slack and slack * max(abs(x - ax), abs(y - ay))):
                break
            chain.pop()
            bx, by = ax, ay
        chain.append(point)
    return chain


def _floats_by_qhull(points: Points) -> Points:
    """The corners of floats, counter-clockwise from the leftmost, as SciPy orders them; none of degenerate points."""
    from scipy.spatial import ConvexHull, QhullError

    try:
        corners = points[ConvexHull(points - points[0]).vertices]
    except QhullError:
        return points[:0]
    return np.roll(corners, -int(np.lexsort(corners.T[::-1])[0]), axis=0)


def _extremes_by_column(points: Points) -> Points:
    """The lowest and highest point of every column: all vertices of the hull are among them."""
    order = np.lexsort((points[:, 1], points[:, 0]))
    ordered = points[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:, 0] != ordered[:-1, 0]])
    ends = np.r_[starts[1:], len(ordered)] - 1
    return np.asarray(ordered[np.concatenate([starts, ends])])


def bending(chain: Points) -> Points:
    """The points of a chain ``(n, 2)`` but those at which it does not turn to the left: corners of its hull stay.

    Parameters
    ----------
    chain
        Integers, counter-clockwise along one side of the hull: each further than the one before in some direction.
    """
    while len(chain) > _LONG:
        steps = chain[1:] - chain[:-1]
        turns = cross(steps[:-1], steps[1:]) > 0
        kept = np.flatnonzero(turns) + 1
        if len(kept) > 0.8 * (len(chain) - 2):
            break
        chain = chain[np.concatenate([[0], kept, [len(chain) - 1]])]
    return chain


def hull_candidates(points: Points) -> Points:
    """Qhull's vertices of points of any dimension, or all points where it finds them degenerate or too many.

    Qhull's own tolerance is relative to the largest coordinate, so it is given differences from the first point.
    """
    from scipy.spatial import ConvexHull, QhullError

    if estimate_facets(len(points), points.shape[1]) > _MAX_FACETS:
        return points

    try:
        return points[ConvexHull(points - points[0]).vertices]
    except QhullError:
        return points


def difference_polygon(polygon: Points) -> Points:
    """The difference body ``P - P`` of a convex polygon ``P`` given by its vertices, counter-clockwise.

    An edge of ``P - P`` is an edge of ``P`` minus the vertex (or parallel edge) where the edge's normal is least, or
    the mirror image of such a one.
    """
    if len(polygon) <= 2:
        return convex_polygon(np.concatenate([polygon - polygon[:1], polygon - polygon[-1:]]))
    polygon = polygon - polygon[:1]  # heights of points far from the origin would be rounded
    ends = following(polygon)
    edges = ends - polygon
    heights = edges[:, :1] * polygon[:, 1] - edges[:, 1:] * polygon[:, 0]
    farthest = heights == heights.max(axis=1, keepdims=True)
    edge, vertex = np.nonzero(farthest)
    tips = np.concatenate([polygon[edge] - polygon[vertex], ends[edge] - polygon[vertex]])
    return convex_polygon(np.concatenate([tips, -tips]))


def polygon_sums(corners: Points) -> tuple[float, float, float]:
    """Twice the area of a polygon with corners ``(h, 2)``, 24 times its second moment, and its squared reach.

    Of triangles between the origin and the edges, one after another.
    """
    area = moment = reach = 0.0
    points = corners.tolist()
    for (ax, ay), (bx, by) in zip([points[-1], *points], points, strict=False):
        double = ax * by - ay * bx
        own = bx * bx + by * by
        x, y = ax + bx, ay + by
        area += double
        moment += double * ((ax * ax + ay * ay) + own + (x * x + y * y))
        reach = max(reach, own)
    return area, moment, reach


def doubled_area(polygon: Points) -> Any:
    """Twice the area of a polygon: an exact integer for integer vertices, zero below three vertices."""
    if len(polygon) < 3:
        return polygon.dtype.type(0)
    return cross(polygon, following(polygon)).sum()


def following(polygon: Points) -> Points:
    """The vertex after each one."""
    return np.concatenate([polygon[1:], polygon[:1]])


def half_planes(polygon: Points) -> tuple[Points, Points]:
    """Normals ``(m, 2)`` and offsets ``(m,)``, ``|normal · v| <= offset``, of a symmetric polygon of full dimension.

    One pair of opposite edges each, in the order of the first half of the vertices; exact for integers.
    """
    half = len(polygon) // 2
    start, end = polygon[:half], polygon[1 : half + 1]
    edge = end - start
    normals = np.empty_like(edge)
    normals[:, 0] = edge[:, 1]
    np.negative(edge[:, 0], out=normals[:, 1])
    return normals, np.asarray(cross(start, end))
