"""The inner loops over a norm's walls and over the edges of sails, written so that numba can compile them."""

from __future__ import annotations

from math import copysign, exp, expm1, log, log1p

import numpy as np

from dphmm.arrays import BoolArray, FloatArray, IntArray

SOME = 512
"""Points that are looked at together, so that what lies between stays in the cache."""


def densities_in_plane(
    x: FloatArray,
    y: FloatArray,
    possible: BoolArray,
    z: tuple[float, float],
    walls: tuple[FloatArray, FloatArray],
    law: tuple[float, float],
    out: FloatArray,
) -> None:
    """``-decay ‖z - x‖ - shift`` of points ``(N,)``, minus infinity where they are not possible.

    Heights are multiplied by the offsets' reciprocals, so that a norm is good to two units in the last place.

    Parameters
    ----------
    x, y
        The points' coordinates.
    possible
        Which of them count.
    z
        What was released.
    walls
        Forms ``(m, 2)`` and offsets ``(m,)`` of the norm: it is the largest ``|form v| / offset``.
    law
        The decay, and the shift.
    out
        ``(N,)``: filled.
    """
    (forms, offsets), (decay, shift) = walls, law
    across, along, norms = np.empty((3, SOME))
    for start in range(0, x.size, SOME):
        some_x, some_y, some = x[start : start + SOME], y[start : start + SOME], possible[start : start + SOME]
        found, count = out[start : start + SOME], 0
        for i in range(some.size):
            across[i], along[i], norms[i] = z[0] - some_x[i], z[1] - some_y[i], 0.0
            count += some[i]
        for k in range(offsets.size if count > 0 else 0):
            a, b, share = forms[k, 0], forms[k, 1], 1.0 / offsets[k]
            for i in range(some.size):
                height = abs(a * across[i] + b * along[i]) * share
                norms[i] = height if height > norms[i] else norms[i]
        for i in range(some.size):
            found[i] = -(norms[i] * decay) - shift if some[i] else -np.inf


def edges_of_sails(corners: IntArray, out: IntArray) -> int:
    """The edges of `dphmm.mechanisms.sails.half_sails`, a row each; how many, of which what there is room for is told.

    Parameters
    ----------
    corners
        Those of a symmetric polygon around the origin, counter-clockwise, below ``2**28``.
    out
        ``(k, 8)``: filled with start, step, count, and the norm's numbers.
    """
    found = 0
    for k in range(corners.shape[0] // 2):
        vx, vy, wx, wy = corners[k, 0], corners[k, 1], corners[k + 1, 0], corners[k + 1, 1]
        across, along, unit = wy - vy, vx - wx, vx * wy - vy * wx
        a, b = abs(vx), abs(vy)
        while b:
            a, b = b, a % b
        x, y = vx // a, vy // a
        a, b = abs(wx), abs(wy)
        while b:
            a, b = b, a % b
        end_x, end_y = wx // a, wy // a
        a, b, r, s, t, u = x, y, 1, 0, 0, 1
        while b:
            quotient = a // b
            a, b = b, a - quotient * b
            r, s, t, u = t, u, r - quotient * t, s - quotient * u
        a, b = -a * s, a * r  # with x, y it spans an area of one
        while True:
            area = x * end_y - y * end_x
            if area <= 0:
                break
            shift = (a * end_y - b * end_x) // area + 1
            dx, dy = a - shift * x, b - shift * y
            count = area // (dy * end_x - dx * end_y)
            if found < out.shape[0]:
                row = out[found]
                row[0], row[1], row[2], row[3], row[4] = x, y, dx, dy, count
                row[5], row[6], row[7] = x * across + y * along, dx * across + dy * along, unit
            found += 1
            x, y = x + count * dx, y + count * dy
            a, b = dx - x, dy - y
    return found


def sums_over_edges(edges: IntArray, corners: FloatArray, decay: float, masses: FloatArray) -> tuple[float, float]:
    """The logarithm of the normaliser of a discrete K-norm distribution, and its mean square.

    Parameters
    ----------
    edges
        ``(e, 8)``: those of `edges_of_sails`.
    corners
        ``(e, 3, d)``: start, step and end of each in some basis.
    decay
        Positive.
    masses
        ``(e,)``: filled with the logarithms of the sums over one of each pair ``z, -z`` of the edges' half-open cones.

    Notes
    -----
    Counts along an edge are independent: two geometric ones, and one of ``count`` values whose moments have poles at a
    slope of zero, which cancel; near it their Taylor series is summed, by Bernoulli numbers ``B_2k / (2k)!``.
    """
    size, top = len(masses), 0.0
    for e in range(size):
        count, first, slope, rate = edges[e][4], edges[e][5], edges[e][6], decay / edges[e][7]
        start, end, step = first * rate, (first + count * slope) * rate, slope * rate
        mass = -start
        for t in (start, end):
            mass -= log(-expm1(-t)) if t < 1.0 else log1p(-exp(-t))
        if count > 1 and step == 0.0:
            mass += log(count)
        elif count > 1:
            mass += log(expm1(-abs(step) * count) / expm1(-abs(step)))
            mass += abs(step) * (count - 1) if step < 0.0 else 0.0
        masses[e] = mass
        top = max(top, log(2.0) + mass)
    total = exp(-top)
    for e in range(size):
        total += exp(log(2.0) + masses[e] - top)
    total = top + log(total)
    square = 0.0
    for e in range(size):
        count, first, slope, rate = edges[e][4], edges[e][5], edges[e][6], decay / edges[e][7]
        start, end, step = first * rate, (first + count * slope) * rate, slope * rate
        a, b, mean, variance = -expm1(-start), -expm1(-end), 0.0, 0.0
        mean_a, mean_b = exp(-start) / a, exp(-end) / b
        if count > 1:
            mean = (count - 1) / 2.0
            for t, share in ((step, 1.0), (count * step, -float(count))):
                if abs(t) < 0.3:
                    s = t * t
                    odd = 1 / 47900160 - s * 691 / 1307674368000
                    odd = -1 / 720 + s * (1 / 30240 + s * (-1 / 1209600 + s * odd))
                    mean += share * t * (1 / 12 + s * odd)
                    even = 9 / 47900160 - s * 11 * 691 / 1307674368000
                    even = -3 / 720 + s * (5 / 30240 + s * (-7 / 1209600 + s * even))
                    variance -= share * abs(share) * (1 / 12 + s * even)
                else:
                    q = -expm1(-abs(t))
                    far = exp(-abs(t)) / q
                    mean += share * copysign(far - 1.0 / abs(t) + 0.5, t)
                    variance += share * abs(share) * (far / q - 1.0 / (t * t))
        squares, spread, points = 0.0, 0.0, corners[e]
        for k in range(len(points[0])):
            along, across, last = points[0][k], points[1][k], points[2][k]
            place = (1.0 + mean_a) * along + mean * across + mean_b * last
            squares += place * place
            spread += mean_a / a * along * along + variance * across * across + mean_b / b * last * last
        square += 2.0 * exp(masses[e] - total) * (squares + spread)
    return total, square
