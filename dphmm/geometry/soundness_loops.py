"""Inner loops of the soundness checks before a release, compilable with numba.

They share no code with the loops that lead to a release, because they check these.
"""

from __future__ import annotations

import numpy as np

from dphmm.arrays import BoolArray, FloatArray, IntArray

# Eight units in the last place of one.
ROUNDING = 2.0**-49
# Below this, products of integers and their sums are exact in doubles.
EXACT_LIMIT = 2.0**25
# Lower bound on divisors. A body without extent then excludes every difference but zero.
MIN_NORM = 1e-200


def write_halfspaces(
    cones: FloatArray, scale: float, rounding: float, tolerance: float, normals: FloatArray, limits: FloatArray
) -> bool:
    """Write the half-spaces of the scaled planar body that cones tile. Return False if none.

    Parameters
    ----------
    cones
        ``(c, 2, 2)``: with the origin, the two vectors of each span a triangle of the convex body.
    scale, rounding, tolerance
        Factor by which the body is enlarged; absolute and relative distance by which vectors may miss it.
    normals, limits
        ``(c, 2)`` and ``(c,)``: output arrays, computed without division so that they are exact for integer vectors.
    """
    # Limits have the tolerance twice: the construction of the body may miss a difference by one, and this check by
    # another.
    size = 0.0
    is_whole = True
    for c in range(len(cones)):
        for k in range(2):
            for axis in range(2):
                part = cones[c, k, axis]
                size = max(size, abs(part))
                is_whole &= part == np.rint(part)
    blur = 0.0 if is_whole and size < EXACT_LIMIT else ROUNDING * size
    for c in range(len(cones)):
        vx = cones[c, 0, 0]
        vy = cones[c, 0, 1]
        wx = cones[c, 1, 0]
        wy = cones[c, 1, 1]
        offset = vx * wy - vy * wx
        sign = 1.0 if offset > 0.0 else -1.0
        x = (wy - vy) * sign
        y = (vx - wx) * sign
        offset = offset * sign
        spread = abs(x) + abs(y)
        bound = offset * (1.0 + tolerance) + spread * blur
        is_within = offset > 0.0
        for other in range(len(cones)):
            is_within &= abs(cones[other, 0, 0] * x + cones[other, 0, 1] * y) <= bound
            is_within &= abs(cones[other, 1, 0] * x + cones[other, 1, 1] * y) <= bound
        if not is_within:
            return False
        normals[c, 0] = x
        normals[c, 1] = y
        limits[c] = offset * (scale * (1.0 + 2.0 * tolerance)) + scale * (spread * blur) + spread * rounding
    return True


def measure_extent(
    nodes: BoolArray, order: IntArray, places: FloatArray, normals: FloatArray, limits: FloatArray
) -> float:
    """Return the largest extent of points along normals, relative to the limits. 0 if empty.

    It is NaN if any number is. Heights between the first and the last point of a row are never extreme.

    Parameters
    ----------
    nodes
        ``(N,)``: mask of the points.
    order, places
        ``(N,)`` and ``(2, N)``: the points by rows, in each of which the second coordinate is constant.
    normals, limits
        ``(m, 2)`` and ``(m,)``.
    """
    count = 0
    size = len(order)
    row = np.nan
    x, y = np.empty((2, 2 * size))
    for k in range(size):
        if nodes[order[k]]:
            if places[1, k] != row:
                row = places[1, k]
                x[count] = places[0, k]
                y[count] = row
                count += 2
            x[count - 1] = places[0, k]
            y[count - 1] = row
    num_halfspaces = len(limits)
    across = normals[:, 0].copy()
    along = normals[:, 1].copy()
    low = np.full(num_halfspaces, np.inf)
    high = np.full(num_halfspaces, -np.inf)
    # Compiled minima and maxima can drop NaN, and a comparison with NaN is false: the check would pass.
    if np.isnan(across).any() or np.isnan(along).any() or np.isnan(limits).any():
        return np.nan
    if np.isnan(x[:count]).any() or np.isnan(y[:count]).any():
        return np.nan
    for k in range(count):
        for m in range(num_halfspaces):
            height = across[m] * x[k] + along[m] * y[k]
            low[m], high[m] = min(low[m], height), max(high[m], height)
    widest = 0.0
    for m in range(num_halfspaces if count > 0 else 0):
        widest = max(widest, (high[m] - low[m]) / max(limits[m], MIN_NORM))
    return widest


def find_without_partner(
    partner: IntArray, distance: FloatArray, members: BoolArray, protected: BoolArray, inner: float, out: IntArray
) -> int:
    """Write protected states without a near member to ``out``. Return their number.

    These are the states of which the nearest state is not a member, or is farther away than ``inner``.

    Parameters
    ----------
    partner, distance
        ``(N,)``: the state nearest to each, and its distance.
    """
    count = 0
    for i in range(len(partner)):
        if protected[i] and not (members[partner[i]] and distance[i] <= inner):
            out[count] = i
            count += 1
    return count
