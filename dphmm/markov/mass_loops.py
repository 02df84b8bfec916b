"""The inner loops over masses, written so that numba can compile them.

A compiled loop is kept until its own file changes: what its numbers are stands here with it.
"""

from __future__ import annotations

from math import factorial, frexp
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray

Limbs = npt.NDArray[np.int32]
Offsets = npt.NDArray[np.int32]
Pairs = tuple[FloatArray, FloatArray]
"""What is ``values * 2**exponents``, both ``(N,)``."""
Places = tuple[npt.NDArray[Any], npt.NDArray[Any]]
"""For each state where its mass comes from: starts ``(N + 1,)``, and states, all in one row."""

LIMB, MIDDLE = 1024.0, 200.0
"""Powers of two in a limb, and by how many the masses within one are smaller, so that their sums stay within floats."""

NOWHERE, FAR_AWAY = np.int32(-(2**31)), np.int32(1 - 2**31)
"""The limb of an impossible state, and of masses of which the limb is no short number."""

LN2 = float.fromhex("0x1.62e42fefa39efp-1")
LN2_HIGH = float.fromhex("0x1.62e42feep-1")
LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
"""The logarithm of two, and in two parts: whole multiples of the first are exact up to ``2**21``."""

PER_LN2 = 1.0 / LN2
TERMS = tuple(1.0 / factorial(k) for k in range(13, 1, -1))
"""Taylor's series of the exponential function but for its first two terms, the smallest one first."""

POWER = 2.0**52 + 1023.0
"""Added to a whole number it gives a float that ends with the bits which begin that power of two."""

LEAST = -1e300
"""Logarithms below this count as this, so that nothing overflows; minus infinity stays what it is."""

DEEPEST = -(2.0**50)
"""A positive mass counts as no further below the others than this, where exponents are whole numbers still."""

FAR = -1100.0
"""A mass that is this many powers of two below another one adds nothing to it."""

LANES = 64
"""So many sums of every so manyth term are added up side by side."""

HALF_LIMB = 2.0**-512
"""What is a limb lower is multiplied by this twice."""

TOO_SMALL = 1e-150
"""Sums below this are taken again, of larger numbers."""

SOME = 4096
"""So many numbers are looked at before it is seen whether others need to be."""

FRACTION, HALF = np.int64((1 << 52) - 1), np.int64(1022 << 52)
"""The bits of a positive float that are not its exponent, and those of a half."""

POWERS = np.append(np.ldexp(2.0, -np.arange(1076)), 0.0)
"""Twice the negative powers of two, and in the end nothing."""


def gathered_masses(
    shares: FloatArray, lists: Places, near: FloatArray, limb: Limbs, masses: Pairs, out: Pairs
) -> None:
    """Sums over each state's list of probability times mass.

    Floats do where all masses of a list have the same limb, which is the rule, or lie in two. Where such a sum is tiny
    it is taken relative to the largest exponent in its list, so that it cannot vanish: that mass counts with at least 1
    times its probability.

    Parameters
    ----------
    shares, lists
        What part of which masses comes to each state.
    near, limb
        The masses as ``near * 2**(LIMB * limb + MIDDLE)``, as `limbs_of` says.
    masses
        The same by mantissas and exponents.
    out
        Filled with the sums.
    """
    (starts, states), (mantissa, exponent), (values, exponents) = lists, masses, out
    for j in range(values.size):
        begin, end = starts[j], starts[j + 1]
        total, top, low = 0.0, NOWHERE, -FAR_AWAY
        for at in range(begin, end):
            i = states[at]
            total += near[i] * shares[at]
            top = limb[i] if limb[i] > top else top
            low = limb[i] if limb[i] < low else low
        if top == NOWHERE:
            values[j], exponents[j] = 0.0, -np.inf
            continue
        if low < top:  # what is two limbs below adds nothing
            total = 0.0
            for at in range(begin, end):
                i = states[at]
                if limb[i] == top:
                    total += near[i] * shares[at]
                elif limb[i] == top - 1:
                    total += near[i] * HALF_LIMB * HALF_LIMB * shares[at]
        if top != FAR_AWAY and total >= TOO_SMALL:
            values[j], exponents[j] = total, LIMB * top + MIDDLE
            continue
        highest = -np.inf
        for at in range(begin, end):
            highest = max(highest, exponent[states[at]])
        total = 0.0
        for at in range(begin, end):
            i = states[at]
            below = np.uint64(min(highest - exponent[i], 1076.0))
            total += mantissa[i] * POWERS[below] * shares[at]
        values[j], exponents[j] = total, highest - 1.0


def sums_along_diagonals(values: FloatArray, offsets: Offsets, diagonals: FloatArray, out: FloatArray) -> None:
    """A matrix times ``values``, ``(N,)``, plain sums, diagonal after diagonal.

    Parameters
    ----------
    offsets, diagonals
        ``(k,)`` and ``(k, N)``: how far each diagonal lies to the right, and its numbers by their columns.
    out
        ``(N,)``: filled.
    """
    size = values.size
    out[:] = 0.0
    for k in range(offsets.size):
        offset = offsets[k]
        first, last = max(0, offset), min(size, size + offset)
        shares, some, found = diagonals[k, first:last], values[first:last], out[first - offset : last - offset]
        for i in range(some.size):
            found[i] += shares[i] * some[i]


def normal_masses(values: FloatArray, exponents: FloatArray) -> None:
    """Of ``values * 2**exponents`` the mantissas and exponents, in their place; minus infinity where a value is 0."""
    bits, is_tiny = values.view(np.int64), False
    for i in range(values.size):
        power = (bits[i] >> 52) & 2047
        is_tiny |= power == 0
        bits[i] = bits[i] if power == 0 else (bits[i] & FRACTION) | HALF
        exponents[i] += 0.0 if power == 0 else float(power - 1022)
    for i in range(values.size if is_tiny else 0):
        if values[i] == 0.0:
            exponents[i] = -np.inf
        elif values[i] < 0.5:
            values[i], shift = frexp(values[i])
            exponents[i] += shift


def plain_masses(mantissa: FloatArray, exponent: FloatArray, below: float, least: float, out: FloatArray) -> bool:
    """Masses over ``2**below`` as floats; or False where a positive one is under ``2**least``: then not all of them.

    Those under ``2**-1000`` are multiplied by two powers, of which the second one alone rounds.
    """
    more, far = np.empty(SOME), 0
    for start in range(0, mantissa.size, SOME):
        end = min(start + SOME, mantissa.size)
        some, exponents, floats = mantissa[start:end], exponent[start:end], out[start:end]
        bits, others = floats.view(np.int64), more.view(np.int64)
        for i in range(some.size):
            power = exponents[i] - below
            far += (power < least) & (some[i] > 0.0)
            near = power if power > -1000.0 else -1000.0
            near = near if near < 1000.0 else 1000.0
            rest = power - near if power - near > -1000.0 else -1000.0
            floats[i], more[i] = near + POWER, (rest if rest < 1000.0 else 1000.0) + POWER
        if far > 0:
            return False
        for i in range(some.size):
            bits[i], others[i] = bits[i] << 52, others[i] << 52
        for i in range(some.size):  # nothing that vanishes is multiplied: processors take their time for that
            floats[i] = (some[i] if exponents[i] - below > -1080.0 else 0.0) * floats[i] * more[i]
    return True


def limbs_of(mantissa: FloatArray, exponent: FloatArray, limb: Limbs, near: FloatArray) -> None:
    """Masses as ``near * 2**(LIMB * limb + MIDDLE)``; limbs are `NOWHERE` or `FAR_AWAY` where none is that."""
    bits = near.view(np.int64)
    for i in range(mantissa.size):
        floor = np.floor(exponent[i] / LIMB)
        below = LIMB * floor + MIDDLE
        power = exponent[i] - (below if below > LEAST else LEAST)
        near[i] = (power if power > -1000.0 else -1000.0) + POWER
        bits[i] <<= 52
        near[i] *= mantissa[i]
        is_told = FAR_AWAY < floor < -FAR_AWAY
        limb[i] = np.int32(floor) if is_told else (FAR_AWAY if floor > -np.inf else NOWHERE)


def exponentials(
    logs: FloatArray, mantissa: FloatArray, exponent: FloatArray, values: FloatArray, exponents: FloatArray
) -> None:
    """Masses times the exponentials of ``logs``, as ``values * 2**exponents``.

    What is left of a logarithm after whole powers of two lies within ``±ln(2) / 2``: its exponential is the sum of
    Taylor's first terms, to one unit in the last place. Terms are added in an order in which few wait for others.
    """
    n, m, k, j, i_, h, g, f, e, d, c, b = TERMS
    for i in range(logs.size):
        log = logs[i] if logs[i] > LEAST else LEAST
        power = np.rint(log * PER_LN2)
        x = log - power * LN2_HIGH
        x -= power * LN2_LOW
        x = x if x > -0.4 else -0.4
        x = x if x < 0.4 else 0.4
        xx = x * x
        near, middle, far = (
            (b + c * x) + (d + e * x) * xx,
            (f + g * x) + (h + i_ * x) * xx,
            (j + k * x) + (m + n * x) * xx,
        )
        four = xx * xx
        values[i] = (((near + (middle + far * four) * four) * xx + x) + 1.0) * mantissa[i]
        exponents[i] = -np.inf if logs[i] == -np.inf else power + exponent[i]


def scaled_masses(values: FloatArray, exponents: FloatArray) -> tuple[float, float]:
    """Masses ``values * 2**exponents`` over their sum, in their place, with mantissas from a half to below 1.

    Values are from 1/4 to 4, or 0, and count as 0 where exponents are minus infinity. What is told is the highest
    exponent, minus infinity where nothing is left, and the sum as a multiple of that power of two. Masses that are
    under ``2**-1000`` of it add as if they were that much; they add nothing.

    The k-th term of the sum goes to the lane k modulo `LANES`, and then lane after lane is added.
    """
    lanes, floats, top, total = np.full(LANES, -np.inf), np.empty(LANES), -np.inf, 0.0
    bits, powers = values.view(np.int64), floats.view(np.int64)
    for start in range(0, values.size, LANES):
        exponent = exponents[start : start + LANES]
        for k in range(exponent.size):
            lanes[k] = exponent[k] if exponent[k] > lanes[k] else lanes[k]
    for k in range(LANES):  # which numba compiles in a third of the time that it takes for numpy's
        top = lanes[k] if lanes[k] > top else top
    if top == -np.inf:
        values[:] = 0.0
        return top, total
    lanes[:] = 0.0
    for start in range(0, values.size, LANES):
        value, exponent = values[start : start + LANES], exponents[start : start + LANES]
        for k in range(value.size):
            power = exponent[k] - top
            value[k] = value[k] if power > -np.inf else 0.0
            power = power if power > DEEPEST or value[k] == 0.0 else DEEPEST
            exponent[k] = power
            floats[k] = (power if power > -1000.0 else -1000.0) + POWER
        for k in range(value.size):
            powers[k] <<= 52
        for k in range(value.size):
            lanes[k] += floats[k] * value[k]
    for k in range(LANES):
        total += lanes[k]
    for i in range(values.size):
        value = values[i] / total
        values[i], is_nothing = value, value == 0.0
        exponents[i] += 0.0 if is_nothing else float((bits[i] >> 52) - 1022)
        bits[i] = 0 if is_nothing else (bits[i] & FRACTION) | HALF
    return top, total
