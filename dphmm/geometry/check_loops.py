"""The inner loops of what is looked at before a draw, written so that numba can compile them.

They share nothing with the loops that lead to a release, which they are there to check.
"""

from __future__ import annotations

import numpy as np

from dphmm.arrays import BoolArray, FloatArray, IntArray

ROUNDING = 2.0**-49
"""Eight units in the last place of one."""
EXACT = 2.0**25
"""Below this, products of whole numbers and their sums are exact in doubles."""
LEAST = 1e-200


def walls_of_cones(
    cones: FloatArray, scale: float, rounding: float, tolerance: float, normals: FloatArray, limits: FloatArray
) -> bool:
    """The walls of the convex body in the plane, times a scale, that cones tile; False where they tile none.

    Parameters
    ----------
    cones
        ``(c, 2, 2)``: with the origin, the two vectors of each span a triangle of the body.
    scale, rounding, tolerance
        How much larger the body is; a length, and a share of it, by which vectors may miss it.
    normals, limits
        ``(c, 2)`` and ``(c,)``: filled, without division, so that they are exact where the vectors are whole numbers.
    """
    size, is_whole = 0.0, True
    for c in range(len(cones)):
        for k in range(2):
            for axis in range(2):
                part = cones[c, k, axis]
                size = max(size, abs(part))
                is_whole &= part == np.rint(part)
    blur = 0.0 if is_whole and size < EXACT else ROUNDING * size
    for c in range(len(cones)):
        vx, vy, wx, wy = cones[c, 0, 0], cones[c, 0, 1], cones[c, 1, 0], cones[c, 1, 1]
        offset = vx * wy - vy * wx
        sign = 1.0 if offset > 0.0 else -1.0
        x, y, offset = (wy - vy) * sign, (vx - wx) * sign, offset * sign
        spread = abs(x) + abs(y)
        bound, is_within = offset * (1.0 + tolerance) + spread * blur, offset > 0.0
        for other in range(len(cones)):
            is_within &= abs(cones[other, 0, 0] * x + cones[other, 0, 1] * y) <= bound
            is_within &= abs(cones[other, 1, 0] * x + cones[other, 1, 1] * y) <= bound
        if not is_within:
            return False
        normals[c, 0], normals[c, 1] = x, y
        limits[c] = offset * (scale * (1.0 + 2.0 * tolerance)) + scale * (spread * blur) + spread * rounding
    return True


def widest_of_rows(
    nodes: BoolArray, order: IntArray, places: FloatArray, normals: FloatArray, limits: FloatArray
) -> float:
    """How far the heights of some places over walls reach, as a share of the walls' limits; 0 of none.

    Between the first and the last of a row no height is extreme.

    Parameters
    ----------
    nodes
        ``(N,)``: which count.
    order, places
        ``(N,)`` and ``(2, N)``: the places by rows, in each of which the second coordinate is the same.
    normals, limits
        ``(m, 2)`` and ``(m,)``.
    """
    count, size, row = 0, len(order), np.nan
    x, y = np.empty((2, 2 * size))
    for k in range(size):
        if nodes[order[k]]:
            if places[1, k] != row:
                row = places[1, k]
                x[count], y[count] = places[0, k], row
                count += 2
            x[count - 1], y[count - 1] = places[0, k], row
    walls = len(limits)
    across, along = normals[:, 0].copy(), normals[:, 1].copy()
    low, high = np.full(walls, np.inf), np.full(walls, -np.inf)
    for k in range(count):
        for m in range(walls):
            height = across[m] * x[k] + along[m] * y[k]
            low[m], high[m] = min(low[m], height), max(high[m], height)
    widest = 0.0
    for m in range(walls if count > 0 else 0):
        widest = max(widest, (high[m] - low[m]) / max(limits[m], LEAST))
    return widest


def alone_among(
    partner: IntArray, distance: FloatArray, members: BoolArray, hidden: BoolArray, inner: float, out: IntArray
) -> int:
    """The hidden states whose nearest one is no member or farther than a length: written to ``out``; how many.

    Parameters
    ----------
    partner, distance
        ``(N,)``: the state nearest to each, and how far it is.
    """
    count = 0
    for i in range(len(partner)):
        if hidden[i] and not (members[partner[i]] and distance[i] <= inner):
            out[count] = i
            count += 1
    return count
