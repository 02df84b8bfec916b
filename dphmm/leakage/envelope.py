"""The largest loss over all pairs of rows: at one α, and as the upper envelope over all α.

The points (d_S, q_S) of all pairs have an upper left convex hull, the joint hull of the pairs' ROC curves. The loss at
α is the logarithm of the slope of the tangent to it from (−w, −w), w = 1/(e^α − 1), so each piece of the loss
function is a vertex of this hull, and the hull is found by asking, for the chord between two known vertices, whether
any pair rises above it. Largest excess is convex in the slope, row by row; so a row that stays below the known
vertices at the chord's slope, even on the straight line between what it reached at both ends, is left out from there
on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dphmm.arrays import FloatArray, IntArray
from dphmm.leakage.curve import growth, margins, meeting, threshold
from dphmm.leakage.excess import NO_LOSS, Excess, Vertex
from dphmm.stochastic import SMALLEST_PROBABILITY

_FAR = 300.0
"""From here on the point with d = 0 is looked at first."""

_BEYOND = -math.log(SMALLEST_PROBABILITY)
"""No point with d > 0 has a larger loss than this."""

_SLOPE_MARGIN = 64 * float(np.finfo(np.float64).eps)
"""A share of a slope by which it may be larger than asked: the loss changes by no more."""

_SHORTEST = 1e-13
"""A piece shorter than this is rounding; without it the loss differs by less than its length."""


def strongest(excess: Excess, alpha: float) -> Vertex:
    """The point with the largest loss at one α (> 0).

    Dinkelbach's method on all pairs at once: the best point so far sets a slope and a threshold; only rows whose
    excess passes the threshold can beat it. A few rows set the first one, then one query looks at all.
    """
    pair = excess.disjoint_rows()
    if pair is not None:
        return excess.vertex(pair, math.inf)
    best = (excess.unbounded() if alpha > _FAR else None) or NO_LOSS
    if alpha + math.log(best.q or 1.0) > _BEYOND and best.d == 0 and best.gap > 0:
        return best
    for rows in (_sample(excess), excess.everything):
        best = _climb(excess, alpha, best, rows)
        if best.rest == 0 and best.d == 0:
            break
    return best


def _climb(excess: Excess, alpha: float, best: Vertex, rows: IntArray) -> Vertex:
    others = excess.everything
    while rows.size and others.size:
        steeper, higher = margins(best, alpha)
        slope, level = 1 + growth(best, alpha) + steeper, threshold(best, alpha) + higher
        level += excess.rounding(level)
        peaks = excess.peaks(slope, rows, others)
        if peaks.peak <= level:
            break
        rows, others = rows[peaks.row_peak > level], peaks.others[peaks.other_peak > level]
        better = _solve(excess, peaks.best, alpha, slope)
        if growth(better, alpha) <= growth(best, alpha):
            break
        best = better
    return best


def _solve(excess: Excess, pair: tuple[int, int], alpha: float, slope: float) -> Vertex:
    """The best point of one pair, from a slope that it beats."""
    vertex = excess.vertex(pair, slope)
    while True:
        following = excess.vertex(pair, 1 + growth(vertex, alpha))
        if growth(following, alpha) <= growth(vertex, alpha):
            return vertex
        vertex = following


def _sample(excess: Excess) -> IntArray:
    """Rows that are likely to exceed others: those with the largest single entries."""
    count = max(8, excess.size // 32)
    highest = excess.matrix.max(axis=1)
    peak = highest.toarray().ravel() if excess.is_sparse else highest
    return np.sort(np.argsort(-peak, kind="stable")[:count])


@dataclass(frozen=True)
class _Support:
    """A vertex, a slope at which no point is above it, and what each row reaches at that slope."""

    vertex: Vertex
    slope: float
    row_peak: FloatArray
    other_peak: FloatArray


@dataclass(frozen=True)
class _Chord:
    """Two supports, and the rows that may still rise above the chord between them."""

    left: _Support
    right: _Support
    rows: IntArray
    others: IntArray


def pieces(excess: Excess, limit: float = math.inf) -> tuple[list[Vertex], list[float]]:
    """The vertices of the joint hull in the order in which α meets them, and the α at which each takes over.

    Parameters
    ----------
    excess
        Queries on the matrix.
    limit
        Pieces that start beyond this α may be missing.

    Returns
    -------
    vertices, starts
        At least one; the first start is 0.
    """
    pair = excess.disjoint_rows()
    if pair is not None:
        return [excess.vertex(pair, math.inf)], [0.0]
    last = excess.unbounded()
    if last is not None and last.rest == 0:
        return [last], [0.0]
    whole = _whole(excess, last)
    if whole is None:
        return [NO_LOSS], [0.0]
    found = [whole.left.vertex]
    open_chords = [whole]
    while open_chords:
        chord = open_chords.pop()
        if _first_alpha(chord.left) >= limit:
            continue
        broken = _above(excess, chord)
        if broken is None:
            found.append(chord.right.vertex)
        else:
            open_chords += broken
    return _ordered(found)


def _whole(excess: Excess, last: Vertex | None) -> _Chord | None:
    """The chord between the first vertex (slope 1, small α) and the last (large α); None where all rows are equal."""
    peaks = excess.peaks(1.0)
    first = excess.vertex(peaks.best, 1.0)
    if first.gap <= excess.rounding(0.0):
        return None
    left = _Support(first, 1.0, peaks.row_peak, peaks.other_peak)
    flat = np.zeros(excess.size)
    if last is None:
        vertex, slope = excess.steepest()
        right = _Support(vertex, slope, flat, flat)
    else:
        right = _Support(last, math.inf, left.row_peak, left.other_peak)
    return _Chord(left, right, excess.everything, excess.everything)


def _first_alpha(support: _Support) -> float:
    """The least α whose tangent has at least the slope of this support."""
    height = support.vertex.q - support.slope * support.vertex.d
    return math.log1p((support.slope - 1) / height) if height > 0 else math.inf


def _above(excess: Excess, chord: _Chord) -> tuple[_Chord, _Chord] | None:
    """The chord broken at the point farthest above it, or None where no point is."""
    left, right = chord.left, chord.right
    run = left.vertex.d - right.vertex.d
    slope = 1 + (left.vertex.gap - right.vertex.gap) / run if run > 0 else math.inf
    if not left.slope < slope < right.slope:
        return None
    if right.vertex.q < left.vertex.q / 8:  # else what is rounding for the left point would hide others
        slope = min(slope * (1 + _SLOPE_MARGIN), right.slope)
    height = right.vertex.q - slope * right.vertex.d if right.vertex.d else right.vertex.q
    height += excess.rounding(height, right.vertex.q)
    share = 0.0 if math.isinf(right.slope) else (slope - left.slope) / (right.slope - left.slope)
    rows = np.flatnonzero(left.row_peak + share * (right.row_peak - left.row_peak) > height)
    others = np.flatnonzero(left.other_peak + share * (right.other_peak - left.other_peak) > height)
    if not (rows.size and others.size):
        return None
    peaks = excess.peaks(slope, chord.rows[rows], chord.others[others])
    if peaks.peak <= height:
        return None
    middle = _Support(excess.vertex(peaks.best, slope), slope, peaks.row_peak, peaks.other_peak)
    ends = [_Support(end.vertex, end.slope, end.row_peak[rows], end.other_peak[others]) for end in (left, right)]
    return _Chord(ends[0], middle, peaks.rows, peaks.others), _Chord(middle, ends[1], peaks.rows, peaks.others)


def _ordered(vertices: list[Vertex]) -> tuple[list[Vertex], list[float]]:
    """Vertices by decreasing d with the α where each takes over, without those that rounding alone put there."""
    kept: list[Vertex] = []
    starts: list[float] = []
    for vertex in sorted(vertices, key=lambda v: (-v.d, -v.gap)):
        start = 0.0
        while kept:
            start = meeting(kept[-1], vertex)
            if start > starts[-1] + _SHORTEST:
                break
            kept.pop()
            starts.pop()
            start = 0.0
        if math.isfinite(start):
            kept.append(vertex)
            starts.append(start)
    return kept, starts
