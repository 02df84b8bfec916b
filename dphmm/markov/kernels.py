"""The inner loops of inference, written so that numba can compile them; nothing here is called uncompiled."""

from __future__ import annotations

from math import frexp, ldexp
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray

Lists = tuple[npt.NDArray[Any], npt.NDArray[Any], FloatArray]
"""For each state, where its mass comes from: starts ``(N + 1,)``, then states and probabilities, all in one row."""

Run = tuple[FloatArray, FloatArray, FloatArray]
"""What a run of steps fills: masses before each observation and after it, ``(T, N)``, and their sums, ``(T,)``."""

Sums = tuple[FloatArray, FloatArray]
"""Sums ``values * 2**exponents``, both ``(N,)``."""

LIMB, MIDDLE = 1024.0, 200.0
"""Powers of two in a limb, and by how many the masses within one are smaller, so that their sums stay within floats."""

SAME = 1e-13
"""Scores that differ by less, as a part of them, differ by rounding."""

LN2 = float.fromhex("0x1.62e42fefa39efp-1")
LN2_HIGH = float.fromhex("0x1.62e42feep-1")
LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
"""The logarithm of two, and in two parts: whole multiples of the first are exact up to ``2**21``."""

LEAST = -1e300
"""Logarithms below this count as this, so that nothing overflows; minus infinity stays what it is."""

DEEPEST = -(2.0**50)
"""A positive mass counts as no further below the others than this, where exponents are whole numbers still."""

FAR = -1100.0
"""A mass that is this many powers of two below another one adds nothing to it."""

SOME = 4096
"""So many numbers are looked at before it is seen whether others need to be."""

FRACTION, HALF = np.int64((1 << 52) - 1), np.int64(1022 << 52)
"""The bits of a positive float that are not its exponent, and those of a half."""

TOGETHER = 64
"""So many next states are asked about together."""
MANY, UNASKED = 0.2, 32
"""Where more than this part of the states before had to be looked at, so many steps follow that look at all."""

POWERS = np.append(np.ldexp(2.0, -np.arange(1076)), 0.0)
"""Twice the negative powers of two, and in the end nothing."""


def gathered_masses(
    lists: Lists, near: FloatArray, limb: FloatArray, mantissa: FloatArray, exponent: FloatArray, out: Sums
) -> None:
    """Sums over each state's list of probability times mass.

    Where all masses of a list have the same limb, which is the rule, floats do. Otherwise a sum is taken relative to
    the largest exponent in its list, so that it cannot vanish: that mass counts with at least 1 times its probability.

    Parameters
    ----------
    lists
        Where the masses come from.
    near, limb
        The masses as ``near * 2**(LIMB * limb + MIDDLE)``; minus infinity for an impossible state.
    mantissa, exponent
        The same masses.
    out
        Filled with the sums.
    """
    starts, states, shares = lists
    values, exponents = out
    for j in range(values.size):
        begin, end = starts[j], starts[j + 1]
        first = limb[states[begin]] if begin < end else -np.inf
        total, is_one = 0.0, True
        for at in range(begin, end):
            i = states[at]
            total += near[i] * shares[at]
            is_one &= limb[i] == first
        values[j], exponents[j] = total, LIMB * first + MIDDLE
        if is_one and (total >= 1e-150 or first == -np.inf):
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


def jagged_steps(lists: Lists, moved: int, now: FloatArray, other: FloatArray, steps: int) -> None:
    """Steps of plain sums, from ``now`` to ``other`` and back, over rows by decreasing length: see `Jagged`.

    The lists are how many rows have a k-th term, and then the states and shares of all first terms, of all second ones,
    and so on: one sum does not wait for another. Only the first ``moved`` rows change.
    """
    counts, states, shares = lists
    for _ in range(steps):
        other[:moved] = 0.0
        first = 0
        for count in counts:
            for j in range(count):
                other[j] += now[states[first + j]] * shares[first + j]
            first += count
        now, other = other, now


def dense_run(matrix: FloatArray, start: FloatArray, weights: FloatArray, faint: float, out: Run) -> int:
    """Steps in plain sums while nothing is faint; how many there were.

    Each takes ``start`` through the transposed ``matrix`` into a row of ``before``, multiplies by a row of ``weights``
    into a row of ``after``, notes the sum, scales to one, and starts there. ``before`` may be one row, which is then
    used for all. A step is not done where a positive product is below ``faint`` of the sum.
    """
    before, after, sums = out
    size, own = start.size, before.shape[0] > 1
    for t in range(weights.shape[0]):
        moved = before[t if own else 0]
        moved[:] = 0.0
        last = size - size % 4
        for i in range(0, last, 4):
            a, b, c, d = start[i], start[i + 1], start[i + 2], start[i + 3]
            for j in range(size):
                moved[j] += (a * matrix[i, j] + b * matrix[i + 1, j]) + (c * matrix[i + 2, j] + d * matrix[i + 3, j])
        for i in range(last, size):
            a = start[i]
            for j in range(size):
                moved[j] += a * matrix[i, j]
        row, weight, total = after[t], weights[t], 0.0
        for j in range(size):
            row[j] = moved[j] * weight[j]
            total += row[j]
        for j in range(size):
            if row[j] < faint * total and moved[j] > 0.0 and weight[j] > 0.0:
                return t
        if not total > 0.0:
            return t
        for j in range(size):
            row[j] /= total
        sums[t] = total
        start = row
    return int(weights.shape[0])


def dense_scores(logs: FloatArray, tops: FloatArray, rows: FloatArray, scores: FloatArray) -> None:
    """Best scores at one time after another: ``scores[t, j] = max_i scores[t - 1, i] + logs[i, j] + rows[t, j]``.

    The first row of ``scores`` is given, that of ``rows`` not used. States before that can be best nowhere among the
    ``TOGETHER`` next ones of a block are passed over, by the largest logarithms that lead there; where many can,
    several at once are gone through without asking.

    Parameters
    ----------
    tops
        ``(B + 1, N)``: the largest logarithm of each state before to a block, and to all of them.
    """
    size, blocks = rows.shape[1], tops.shape[0] - 1
    some, last, unasked = np.empty(size, dtype=np.int64), size - size % 4, 0
    for t in range(1, rows.shape[0]):
        before, out = scores[t - 1], scores[t]
        out[:] = -np.inf
        if unasked > 0:
            unasked -= 1
            for i in range(0, last, 4):
                a, b, c, d = before[i], before[i + 1], before[i + 2], before[i + 3]
                for j in range(size):
                    one = max(a + logs[i, j], b + logs[i + 1, j])
                    other = max(c + logs[i + 2, j], d + logs[i + 3, j])
                    out[j] = max(out[j], max(one, other))
            for i in range(last, size):
                for j in range(size):
                    out[j] = max(out[j], before[i] + logs[i, j])
        else:
            best = before.argmax()
            row, least, count, asked = logs[best], np.inf, 0, 0
            for j in range(size):
                out[j] = before[best] + row[j]
                least = min(least, out[j])
            for i in range(size):
                some[count] = i
                count += before[i] + tops[blocks, i] > least
            for block in range(blocks):
                start, top = block * TOGETHER, tops[block]
                part = out[start : start + TOGETHER]
                least = part.min()
                for k in range(count):
                    i = some[k]
                    score = before[i]
                    if score + top[i] > least:
                        row, least = logs[i, start : start + TOGETHER], np.inf
                        for j in range(part.size):
                            part[j] = max(part[j], score + row[j])
                        for j in range(part.size):
                            least = min(least, part[j])
                        asked += 1
            unasked = UNASKED if asked > MANY * blocks * size else 0
        for j in range(size):
            out[j] += rows[t, j]


def gathered_scores(lists: Lists, rows: FloatArray, scores: FloatArray) -> None:
    """`dense_scores` over each state's list, whose shares are logarithms; minus infinity over an empty one."""
    starts, states, logs = lists
    for t in range(1, rows.shape[0]):
        before = scores[t - 1]
        for j in range(rows.shape[1]):
            begin, end = starts[j], starts[j + 1]
            last = begin + (end - begin) // 4 * 4
            a = b = c = d = -np.inf  # one maximum does not wait for another
            for at in range(begin, last, 4):
                a = max(a, before[states[at]] + logs[at])
                b = max(b, before[states[at + 1]] + logs[at + 1])
                c = max(c, before[states[at + 2]] + logs[at + 2])
                d = max(d, before[states[at + 3]] + logs[at + 3])
            for at in range(last, end):
                a = max(a, before[states[at]] + logs[at])
            scores[t, j] = max(max(a, b), max(c, d)) + rows[t, j]


def gathered_sources(lists: Lists, scores: FloatArray, path: IntArray) -> None:
    """The states by which the last one of ``path`` was reached with the best scores; of equal ones the lowest."""
    starts, states, logs = lists
    for t in range(path.size - 1, 0, -1):
        best, source, before = -np.inf, np.int64(0), scores[t - 1]
        for at in range(starts[path[t]], starts[path[t] + 1]):
            i = np.int64(states[at])
            score = before[i] + logs[at]
            if score > best or (score == best and i < source):
                best, source = score, i
        path[t - 1] = source


def longer_ways(
    lists: Lists,
    allowed: IntArray,
    rates: FloatArray,
    fresh: BoolArray,
    ways: FloatArray,
    longer: FloatArray,
    now: BoolArray,
) -> None:
    """Best ways to places with one step more: the best of ``logs[i, j] + ways[j, p] - rates[p]`` and ``ways[i, p]``.

    Parameters
    ----------
    lists
        For each state, those that a step leads to, and logarithms.
    allowed
        ``(N,)``: ways of each state to the first so many places count.
    rates
        What each step costs, by place.
    fresh
        ``(N,)``: which states' ways have changed in the round before; those of others were looked at.
    ways, longer
        ``(N, P)``: those there are, and those with a step more.
    now
        ``(N,)``, False: set for those whose ways change, by more than rounding.
    """
    starts, states, logs = lists
    for i in range(allowed.size):
        out, old, count, looked = longer[i], ways[i], allowed[i], False
        for at in range(starts[i], starts[i + 1]):
            j = states[at]
            if fresh[j]:
                if not looked:
                    out[:] = -np.inf
                    looked = True
                row, log = ways[j], logs[at]
                for p in range(count):
                    way = row[p] + log
                    out[p] = way if way > out[p] else out[p]
        if looked:
            for p in range(count):
                way = out[p] - rates[p]
                if way > old[p] + SAME * (1.0 + abs(way)):
                    out[p] = way
                    now[i] = True
                else:
                    out[p] = old[p]
        else:
            out[:] = old


def gathered_pairs(lists: Lists, ones: FloatArray, others: FloatArray, scales: FloatArray, out: FloatArray) -> None:
    """Adds, for each entry of the lists, the sum over rows of ``ones[t, j] * others[t, state] * scales[t]``."""
    starts, states, _ = lists
    for t in range(scales.size):
        one, other = ones[t], others[t]
        for j in range(one.size):
            mass = one[j] * scales[t]
            if mass > 0.0:
                for at in range(starts[j], starts[j + 1]):
                    out[at] += mass * other[states[at]]


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
    """Masses over ``2**below`` as floats; or False where a positive one is under ``2**least``: then not all of them."""
    bits, lowest, highest = out.view(np.int64), 0.0, 0.0
    for start in range(0, mantissa.size, SOME):
        for i in range(start, min(start + SOME, mantissa.size)):
            power = exponent[i] - below
            lowest, highest = min(lowest, power if mantissa[i] > 0.0 else 0.0), max(highest, power)
            bits[i] = (np.int64(min(max(power, -1000.0), 1000.0)) + 1023) << 52
            out[i] *= mantissa[i]
        if lowest < least:
            return False
    for i in range(mantissa.size if lowest < -1000.0 or highest > 1000.0 else 0):
        power = exponent[i] - below
        if power < -1000.0:
            out[i] = ldexp(out[i], int(power + 1000.0)) if power > -1080.0 else 0.0
        elif power > 1000.0:
            out[i] = ldexp(mantissa[i], int(power))
    return True


def limbs_of(mantissa: FloatArray, exponent: FloatArray, limb: FloatArray, near: FloatArray) -> None:
    """Masses as ``near * 2**(LIMB * limb + MIDDLE)``; an impossible state's limb is minus infinity."""
    bits = near.view(np.int64)
    for i in range(mantissa.size):
        limb[i] = np.floor(exponent[i] / LIMB)
        power = exponent[i] - max(LIMB * limb[i] + MIDDLE, LEAST)
        bits[i] = (np.int64(max(power, -1000.0)) + 1023) << 52
        near[i] *= mantissa[i]


def split_logs(logs: FloatArray, exponent: FloatArray, rests: FloatArray, exponents: FloatArray) -> float:
    """Logarithms as ``rests + ln(2) * powers``, and ``powers + exponent``, of which the highest is given back."""
    top = -np.inf
    for i in range(logs.size):
        log = max(logs[i], LEAST)
        power = np.rint(log / LN2)
        rest = log - power * LN2_HIGH
        rests[i] = min(max(rest - power * LN2_LOW, -0.4), 0.4)
        power = -np.inf if logs[i] == -np.inf else power + exponent[i]
        exponents[i], top = power, max(top, power)
    return top


def lowered_masses(values: FloatArray, exponents: FloatArray, top: float, floats: FloatArray) -> None:
    """Exponents relative to the highest, values 0 where they are minus infinity, and the masses as floats."""
    bits, lowest = floats.view(np.int64), 0.0
    for i in range(values.size):
        power, value = exponents[i] - top, values[i]
        value = 0.0 if power == -np.inf else value
        power = max(power, DEEPEST) if value > 0.0 else power
        lowest = min(lowest, power if value > 0.0 else 0.0)
        bits[i] = (np.int64(max(power, -1000.0)) + 1023) << 52
        floats[i] *= value
        values[i], exponents[i] = value, power
    for i in range(values.size if lowest < -1000.0 else 0):
        if exponents[i] < -1000.0:
            floats[i] = ldexp(floats[i], int(exponents[i] + 1000.0)) if exponents[i] > -1080.0 else 0.0


def divided_masses(values: FloatArray, exponents: FloatArray, total: float) -> None:
    """Masses over a total, with mantissas from a half to below 1, again in their place; none is tiny."""
    bits = values.view(np.int64)
    for i in range(values.size):
        value = values[i] / total
        values[i], is_nothing = value, value == 0.0
        exponents[i] += 0.0 if is_nothing else float((bits[i] >> 52) - 1022)
        bits[i] = 0 if is_nothing else (bits[i] & FRACTION) | HALF


def looks_around(p: FloatArray, columns: FloatArray, at: tuple[float, ...], out: FloatArray) -> int:
    """Where masses ``(N,)`` at points ``(d, N)`` lie about a point: see `dphmm.markov.guess`; and which is nearest.

    Every sum adds one term after another.
    """
    size, near, least, error = p.size, 0, np.inf, 0.0
    away, (distance, along) = np.empty_like(columns), np.zeros((2, size))
    for k in range(len(at)):
        here = at[k]
        for i in range(size):
            away[k, i] = columns[k, i] - here
            distance[i] += away[k, i] * away[k, i]
    for i in range(size):
        distance[i] = np.sqrt(distance[i])
    for i in range(size):
        error += p[i] * distance[i]
        if distance[i] < least:
            near, least = i, distance[i]
    mass = p[near] if least > 0.0 else 0.0
    for i in range(size if least == 0.0 else 0):
        if distance[i] == 0.0:
            mass, distance[i] = mass + p[i], np.inf
    distance[near] = np.inf
    for i in range(size):
        pull = p[i] / distance[i]
        along[i] = pull / (distance[i] * distance[i]) * away[0, i]
        distance[i] = pull
    first, last = away[0], away[len(at) - 1]
    weight = xx = xy = x = y = 0.0
    for i in range(size):  # five sums at a time, of which none waits for another
        weight += distance[i]
        xx += along[i] * first[i]
        xy += along[i] * last[i]
        x += distance[i] * first[i]
        y += distance[i] * last[i]
    for k in range(1, len(at) - 1):
        out[6 + k] = 0.0
        for i in range(size):
            out[6 + k] += distance[i] * away[k, i]
    out[:6], out[6], out[5 + len(at)] = (error, least, mass, weight, xx, xy), x, y
    return near
