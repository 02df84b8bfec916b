"""The largest loss over all pairs of rows: at one α, and as the upper envelope over all α.

The points (d_S, q_S) of all pairs have an upper left convex hull, the joint hull of the pairs' ROC curves. The loss at
α is the logarithm of the slope of the tangent to it from (−w, −w), w = 1/(e^α − 1), so each piece of the loss
function is a vertex of this hull, and the hull is found by asking, for the chord between two known vertices, whether
any pair rises above it. Largest excess is convex in the slope, row by row; so a row that stays below the known
vertices at the chord's slope, even on the straight line between what it reached at both ends, is left out from there
on.

With ``e = e^α − 1``: the loss is ``log1p(gap·e / (1 + d·e))``, and what is left of α, the *slack* ``α − loss``, is
``log1p(e·(rest + d(1 + e)) / (1 + q·e))``; from `_LARGE` on, where e nears the largest float, logarithms are added
instead. The slack grows strictly from 0, so that the supremum of leakage under a constant budget ε, which is where the
slack is ε, is unique where it exists.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dphmm.arrays import FloatArray, IntArray
from dphmm.leakage.row_pairs import NO_LOSS, Excess, Vertex
from dphmm.stochastic import SMALLEST_PROBABILITY

_LARGE = 300.0
_EPS = float(np.finfo(np.float64).eps)


def loss_at(alpha: FloatArray, q: FloatArray, d: FloatArray, rest: FloatArray, gap: FloatArray) -> FloatArray:
    """The loss, elementwise, for α from 0 to the largest float."""
    e = np.expm1(np.minimum(alpha, _LARGE))
    small = np.log1p(gap * e / (1 + d * e))
    with np.errstate(divide="ignore"):
        above = np.logaddexp(np.log(q), np.log(rest) - alpha)
        below = np.logaddexp(np.log(d), np.log1p(-d) - alpha)
    loss = np.where(alpha <= _LARGE, small, above - below)
    loss = np.where(gap == 0, 0.0, np.clip(loss, 0.0, alpha))
    return np.asarray(np.where((d == 0) & (rest == 0), alpha, loss), dtype=np.float64)


def slack_at(alpha: FloatArray, q: FloatArray, d: FloatArray, rest: FloatArray, gap: FloatArray) -> FloatArray:
    """``α − loss``, elementwise, with full relative precision also where the loss is nearly α."""
    e = np.expm1(np.minimum(alpha, _LARGE))
    small = np.log1p(e * ((rest + d * (1 + e)) / (1 + q * e)))
    return np.asarray(
        np.where(alpha <= _LARGE, small, alpha - loss_at(alpha, q, d, rest, gap)),
        dtype=np.float64,
    )


def growth(vertex: Vertex, alpha: float) -> float:
    """``e^loss − 1``, by which points are compared; finite while the loss is below 700."""
    if vertex.gap == 0:
        return 0.0
    if alpha <= _LARGE:
        e = math.expm1(alpha)
        return vertex.gap * e / (1 + vertex.d * e)
    if vertex.d == 0:
        return math.exp(min(alpha + math.log(vertex.q), 700.0))
    return vertex.gap / (math.exp(-alpha) + vertex.d)


def threshold(vertex: Vertex, alpha: float) -> float:
    """The excess, at slope ``1 + growth``, that another point must pass for a larger loss: ``growth/(e^α − 1)``."""
    if alpha <= _LARGE:
        return vertex.gap / (1 + vertex.d * math.expm1(alpha))
    w = math.exp(-alpha)
    return vertex.gap if vertex.d == 0 else vertex.gap * (w / (w + vertex.d))


def margins(vertex: Vertex, alpha: float) -> tuple[float, float]:
    """A step in slope, and in threshold, that keeps rounding of the point's own excess below the threshold.

    An excess is rounded by the size of q, however small its value; where the threshold and q are far apart, a margin
    of that size on the threshold would hide other points. Asking who beats a slope larger by a share
    ``8 eps·q / (w + q)`` with ``w = 1/(e^α − 1)`` has no such cost: it changes the loss by less than 2e-15, and less
    in proportion at small α.
    """
    e = math.expm1(min(alpha, _LARGE))
    share = 8 * _EPS * vertex.q * e / (1 + vertex.q * e)
    return share * (1 + growth(vertex, alpha)), share * (threshold(vertex, alpha) + 1 / e)


def meeting(left: Vertex, right: Vertex) -> float:
    """The α at which the curve of ``right`` (smaller d) overtakes that of ``left``; 0 where it is above from the start.

    Two curves meet once: at ``e = (gap_l − gap_r) / (q_r·d_l − q_l·d_r)`` (Theorem 10 of the TPL paper rests on it).
    """
    above = max(left.gap - right.gap, 0.0)
    if above == 0:
        return 0.0
    below = right.q - left.q * (right.d / left.d) if left.d > 0 else 0.0
    if below <= 0:
        return math.inf
    exponent = math.log(above) - math.log(below) - math.log(left.d)
    return math.log1p(math.exp(exponent)) if exponent < _LARGE else exponent


def supremum_at(epsilon: float, q: float, d: float, rest: float) -> float:
    """Where the slack of one curve is ε: Theorem 11 of the TPL paper, infinite where there is no such place.

    The root of ``d·u² + ((rest + d)·t − q)·u − t = 0`` with ``t = 1/(e^ε − 1)`` and ``u = t·(e^α − 1)``, taken in the
    form that does not cancel. Erratum: with d = 0 the theorem allows ε = log(1/q), where the supremum is infinite (its
    own proof needs ε < log(1/q)); and Equation 39 of the proof has the wrong sign before its middle term.
    """
    if epsilon < _SMALLEST_EPSILON:  # t would be infinite: the same equation divided by t², for e^α − 1
        half = ((rest + d) - q * epsilon) / 2
        if d == 0 and half <= 4 * _EPS * q * epsilon:
            return math.inf
        root = math.hypot(half, math.sqrt(d) * math.sqrt(epsilon))
        return math.log1p(epsilon / (half + root) if half > 0 else (root - half) / d)
    log_t = -math.log(math.expm1(epsilon)) if epsilon <= _LARGE else -epsilon
    t = math.exp(log_t) if epsilon > _LARGE else 1 / math.expm1(epsilon)
    half = ((rest + d) * t - q) / 2
    root = math.hypot(half, math.sqrt(d) * math.sqrt(t))
    if d == 0 and half <= 4 * _EPS * q:  # at the limit itself rounding must not make it finite
        return math.inf
    u = t / (half + root) if half > 0 else (root - half) / d
    alpha = math.log(u) - log_t  # but for the one that is added to e^α − 1
    return math.log1p(u / t) if alpha < _LARGE else alpha


_SMALLEST_EPSILON = 1e-300
"""Below this ``e^ε − 1`` is ε, and its reciprocal would leave the doubles."""

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


def largest_loss(excess: Excess, alpha: float) -> float:
    """The largest loss of any pair of rows at one α (> 0)."""
    vertex = strongest(excess, alpha)
    point = np.array([alpha, vertex.q, vertex.d, vertex.rest, vertex.gap])
    return float(loss_at(*point))


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
    whole = _first_chord(excess, last)
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


def _first_chord(excess: Excess, last: Vertex | None) -> _Chord | None:
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
