"""The inner loops of inference, written so that numba can compile them; nothing here is called uncompiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray

Lists = tuple[npt.NDArray[Any], npt.NDArray[Any], FloatArray]
"""For each state, where its mass comes from: starts ``(N + 1,)``, then states and probabilities, all in one row."""

Run = tuple[FloatArray, FloatArray, FloatArray]
"""What a run of steps fills: masses before each observation and after it, ``(T, N)``, and their sums, ``(T,)``."""

SAME = 1e-13
"""Scores that differ by less, as a part of them, differ by rounding."""

TOGETHER = 64
"""So many next states are asked about together."""
MANY, UNASKED = 0.2, 32
"""Where more than this part of the states before had to be looked at, so many steps follow that look at all."""


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
