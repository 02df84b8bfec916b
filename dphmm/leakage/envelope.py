"""The largest loss over all pairs of rows, at one α and as an upper envelope over all α.

The points (d_S, q_S) of all pairs have an upper left convex hull, the joint hull of the pairs' ROC curves. The loss at
α is the logarithm of the slope of the tangent to it from (−w, −w), with w = 1/(e^α − 1). Therefore each piece of the
loss function is a vertex of this hull. The hull is refined chord by chord: a query checks whether any pair lies above
the chord between two vertices. The largest excess of a row is convex in the slope. A row can therefore be pruned if the
straight line between its peaks at both ends stays below the chord.

With ``e = e^α − 1`` the loss is ``log1p(gap·e / (1 + d·e))``. The *slack* ``α − loss`` is
``log1p(e·(rest + d(1 + e)) / (1 + q·e))``. From `_MAX_EXPONENT` on, where e approaches the largest float, logarithms
are added instead. The slack increases strictly from 0. Therefore the supremum of leakage under a constant budget ε,
the α at which the slack is ε, is unique if it exists.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dphmm.arrays import FloatArray, IntArray
from dphmm.leakage.row_pairs import NO_LOSS, Excess, Vertex
from dphmm.stochastic_matrix import MIN_PROBABILITY

# The product of two such ``e^α`` is still a finite double. Larger α are handled as logarithms.
_MAX_EXPONENT = 300.0
_EPS = float(np.finfo(np.float64).eps)


def compute_loss(alpha: FloatArray, q: FloatArray, d: FloatArray, rest: FloatArray, gap: FloatArray) -> FloatArray:
    """Return the loss, elementwise, for α from 0 to the largest float."""
    e = np.expm1(np.minimum(alpha, _MAX_EXPONENT))
    small = np.log1p(gap * e / (1 + d * e))
    with np.errstate(divide="ignore"):
        above = np.logaddexp(np.log(q), np.log(rest) - alpha)
        below = np.logaddexp(np.log(d), np.log1p(-d) - alpha)
    loss = np.where(alpha <= _MAX_EXPONENT, small, above - below)
    loss = np.where(gap == 0, 0.0, np.clip(loss, 0.0, alpha))
    return np.asarray(np.where((d == 0) & (rest == 0), alpha, loss), dtype=np.float64)


def compute_slack(alpha: FloatArray, q: FloatArray, d: FloatArray, rest: FloatArray, gap: FloatArray) -> FloatArray:
    """Return ``α − loss``, elementwise, accurate even if the loss is close to α."""
    e = np.expm1(np.minimum(alpha, _MAX_EXPONENT))
    small = np.log1p(e * ((rest + d * (1 + e)) / (1 + q * e)))
    return np.asarray(
        np.where(alpha <= _MAX_EXPONENT, small, alpha - compute_loss(alpha, q, d, rest, gap)),
        dtype=np.float64,
    )


def compute_growth(vertex: Vertex, alpha: float) -> float:
    """Return ``e^loss − 1``, which orders points by loss. It is finite for losses below 700."""
    if vertex.gap == 0:
        return 0.0
    if alpha <= _MAX_EXPONENT:
        e = math.expm1(alpha)
        return vertex.gap * e / (1 + vertex.d * e)
    if vertex.d == 0:
        return math.exp(min(alpha + math.log(vertex.q), 700.0))
    return vertex.gap / (math.exp(-alpha) + vertex.d)


def compute_threshold(vertex: Vertex, alpha: float) -> float:
    """Return the excess above which another point has a larger loss: ``growth/(e^α − 1)``."""
    if alpha <= _MAX_EXPONENT:
        return vertex.gap / (1 + vertex.d * math.expm1(alpha))
    w = math.exp(-alpha)
    return vertex.gap if vertex.d == 0 else vertex.gap * (w / (w + vertex.d))


def compute_margins(vertex: Vertex, alpha: float) -> tuple[float, float]:
    """Return margins in slope and threshold that cover the vertex's own rounding error.

    The rounding error of an excess scales with q, not with the excess. If the threshold is much smaller than q, a
    margin of that size on the threshold would mask other points. Raising the slope by a fraction ``8 eps·q / (w + q)``
    with ``w = 1/(e^α − 1)`` avoids this. It changes the loss by less than 2e-15, and proportionally less at small α.
    """
    e = math.expm1(min(alpha, _MAX_EXPONENT))
    share = 8 * _EPS * vertex.q * e / (1 + vertex.q * e)
    return share * (1 + compute_growth(vertex, alpha)), share * (compute_threshold(vertex, alpha) + 1 / e)


def find_crossing(left: Vertex, right: Vertex) -> float:
    """Return the α at which the curve of ``right`` (smaller d) overtakes ``left``.

    The result is 0 if the curve of ``right`` starts above the other.

    Two curves meet once, at ``e = (gap_l − gap_r) / (q_r·d_l − q_l·d_r)`` (used by Theorem 10 of the TPL paper).
    """
    above = max(left.gap - right.gap, 0.0)
    if above == 0:
        return 0.0
    below = right.q - left.q * (right.d / left.d) if left.d > 0 else 0.0
    if below <= 0:
        return math.inf
    exponent = math.log(above) - math.log(below) - math.log(left.d)
    return math.log1p(math.exp(exponent)) if exponent < _MAX_EXPONENT else exponent


def solve_supremum(epsilon: float, q: float, d: float, rest: float) -> float:
    """Return the α at which the slack of one curve is ε, or infinity (Theorem 11).

    Solves ``d·u² + ((rest + d)·t − q)·u − t = 0`` with ``t = 1/(e^ε − 1)`` and ``u = t·(e^α − 1)``, in the form without
    cancellation. Erratum: with d = 0 the theorem allows ε = log(1/q), where the supremum is infinite (its proof needs
    ε < log(1/q)). Equation 39 of the proof has the wrong sign before its middle term.
    """
    if q <= d:  # no loss at any α; for large ε, t underflows
        return epsilon
    if epsilon < _SMALLEST_EPSILON:  # t would overflow: solve the equation divided by t², for e^α − 1
        half = ((rest + d) - q * epsilon) / 2
        if d == 0 and half <= 4 * _EPS * q * epsilon:
            return math.inf
        root = math.hypot(half, math.sqrt(d) * math.sqrt(epsilon))
        return math.log1p(epsilon / (half + root) if half > 0 else (root - half) / d)
    log_t = -math.log(math.expm1(epsilon)) if epsilon <= _MAX_EXPONENT else -epsilon
    t = math.exp(log_t) if epsilon > _MAX_EXPONENT else 1 / math.expm1(epsilon)
    half = ((rest + d) * t - q) / 2
    root = math.hypot(half, math.sqrt(d) * math.sqrt(t))
    if d == 0 and half <= 4 * _EPS * q:  # at the limit itself, rounding must not yield a finite value
        return math.inf
    u = t / (half + root) if half > 0 else (root - half) / d
    alpha = math.log(u) - log_t  # neglects the 1 in log(1 + u/t), which is exact for large α
    return math.log1p(u / t) if alpha < _MAX_EXPONENT else alpha


# Below this, ``e^ε − 1`` equals ε in double precision and its reciprocal would overflow.
_SMALLEST_EPSILON = 1e-300

# From this α on, the search starts from the point with d = 0.
_FAR_ALPHA = 300.0

# Upper bound on the loss of a point with d > 0.
_MAX_FINITE_LOSS = -math.log(MIN_PROBABILITY)

# Stop climbing on a sample of rows once a round raises the slope by less than this factor.
_NEAR_SLOPE_FACTOR = 2.0

# Relative margin added to a slope. The loss changes by no more than this.
_SLOPE_MARGIN = 64 * float(np.finfo(np.float64).eps)

# Shorter pieces are rounding artefacts. Dropping one changes the loss by less than its length.
_MIN_PIECE = 1e-13


def find_strongest_vertex(excess: Excess, alpha: float) -> Vertex:
    """Return the point with the largest loss at one α (> 0).

    Dinkelbach's method on all pairs simultaneously. The best point so far sets a slope and a threshold, and only rows
    with an excess above the threshold can improve on it. A sample of rows sets the first point; then all rows are
    queried.
    """
    pair = excess.find_disjoint_rows()
    if pair is not None:
        return excess.build_vertex(pair, math.inf)
    # For large α the point with d = 0 is nearly always the best, and starting at slope 1 would take many queries.
    best = (excess.find_unbounded_vertex() if alpha > _FAR_ALPHA else None) or NO_LOSS
    if alpha + math.log(best.q or 1.0) > _MAX_FINITE_LOSS and best.d == 0 and best.gap > 0:
        return best
    # The sample's optimum need not be exact, because a query of all rows follows.
    q_rows = _select_sample_rows(excess)
    best = _climb(excess, alpha, best, q_rows, q_rows, is_sample=True)
    if best.rest == 0 and best.d == 0:
        return best
    return _climb(excess, alpha, best, excess.everything, excess.everything)


def find_largest_loss(excess: Excess, alpha: float) -> float:
    """Return the largest loss of any pair of rows at one α (> 0)."""
    vertex = find_strongest_vertex(excess, alpha)
    point = np.array([alpha, vertex.q, vertex.d, vertex.rest, vertex.gap])
    return float(compute_loss(*point))


def _climb(
    excess: Excess, alpha: float, best: Vertex, rows: IntArray, others: IntArray, is_sample: bool = False
) -> Vertex:
    """Return the best point among the given rows. For a sample, a nearly best one."""
    while True:
        steeper, higher = compute_margins(best, alpha)
        slope = 1 + compute_growth(best, alpha) + steeper
        level = compute_threshold(best, alpha) + higher
        level += excess.bound_rounding_error(level)
        peaks = excess.find_peaks(slope, rows, others)
        if peaks.peak <= level:
            return best
        better = _solve(excess, peaks.best, alpha, slope)
        if compute_growth(better, alpha) <= compute_growth(best, alpha):
            return best
        best = better
        if is_sample and 1 + compute_growth(best, alpha) < _NEAR_SLOPE_FACTOR * slope:
            return best
        # Excess decreases with the slope and the threshold increases: rows below it now stay below it.
        level = compute_threshold(best, alpha)
        rows = peaks.rows[peaks.row_peak > level]
        others = peaks.others[peaks.other_peak > level]
        if not (rows.size and others.size):
            return best


def _solve(excess: Excess, pair: tuple[int, int], alpha: float, slope: float) -> Vertex:
    """Return the best point of one pair, starting from a slope that it exceeds."""
    # Dinkelbach's iteration: growth increases strictly until the set of columns repeats, after a few rounds.
    vertex = excess.build_vertex(pair, slope)
    while True:
        following = excess.build_vertex(pair, 1 + compute_growth(vertex, alpha))
        if compute_growth(following, alpha) <= compute_growth(vertex, alpha):
            return vertex
        vertex = following


def _select_sample_rows(excess: Excess) -> IntArray:
    """Return the rows with the largest single entries, which are likely to exceed others."""
    count = max(8, excess.size // 32)
    highest = excess.matrix.max(axis=1)
    peak = highest.toarray().ravel() if excess.is_sparse else highest
    return np.sort(np.argsort(-peak, kind="stable")[:count])


@dataclass(frozen=True)
class _Support:
    """A vertex, a slope at which no point is above it, and each row's peak at that slope."""

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


def find_hull_vertices(excess: Excess, limit: float = math.inf) -> tuple[list[Vertex], list[float]]:
    """Return the vertices of the joint hull, and the α at which each takes over.

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
    pair = excess.find_disjoint_rows()
    if pair is not None:
        return [excess.build_vertex(pair, math.inf)], [0.0]
    last = excess.find_unbounded_vertex()
    if last is not None and last.rest == 0:
        return [last], [0.0]
    whole = _build_first_chord(excess, last)
    if whole is None:
        return [NO_LOSS], [0.0]
    vertices = [whole.left.vertex]
    open_chords = [whole]
    while open_chords:
        chord = open_chords.pop()
        if _compute_first_alpha(chord.left) >= limit:
            continue
        broken = _split_chord(excess, chord)
        if broken is None:
            vertices.append(chord.right.vertex)
        else:
            open_chords += broken
    return _order_vertices(vertices)


def _build_first_chord(excess: Excess, last: Vertex | None) -> _Chord | None:
    """Return the chord from the first to the last vertex. None if all rows are equal."""
    peaks = excess.find_peaks(1.0)
    first = excess.build_vertex(peaks.best, 1.0)
    if first.gap <= excess.bound_rounding_error(0.0):
        return None
    left = _Support(first, 1.0, peaks.row_peak, peaks.other_peak)
    flat = np.zeros(excess.size)
    if last is None:
        vertex, slope = excess.find_steepest_vertex()
        right = _Support(vertex, slope, flat, flat)
    else:
        right = _Support(last, math.inf, left.row_peak, left.other_peak)
    return _Chord(left, right, excess.everything, excess.everything)


def _compute_first_alpha(support: _Support) -> float:
    """Return the smallest α at which the tangent has at least the slope of this support."""
    height = support.vertex.q - support.slope * support.vertex.d
    return math.log1p((support.slope - 1) / height) if height > 0 else math.inf


def _split_chord(excess: Excess, chord: _Chord) -> tuple[_Chord, _Chord] | None:
    """Split the chord at the point farthest above it. None if no point lies above it."""
    left, right = chord.left, chord.right
    run = left.vertex.d - right.vertex.d
    slope = 1 + (left.vertex.gap - right.vertex.gap) / run if run > 0 else math.inf
    if not left.slope < slope < right.slope:
        return None
    if right.vertex.q < left.vertex.q / 8:  # the rounding error of the left point would mask other points
        slope = min(slope * (1 + _SLOPE_MARGIN), right.slope)
    height = right.vertex.q - slope * right.vertex.d if right.vertex.d else right.vertex.q
    height += excess.bound_rounding_error(height, right.vertex.q)
    share = 0.0 if math.isinf(right.slope) else (slope - left.slope) / (right.slope - left.slope)
    rows = np.flatnonzero(left.row_peak + share * (right.row_peak - left.row_peak) > height)
    others = np.flatnonzero(left.other_peak + share * (right.other_peak - left.other_peak) > height)
    if not (rows.size and others.size):
        return None
    peaks = excess.find_peaks(slope, chord.rows[rows], chord.others[others])
    if peaks.peak <= height:
        return None
    middle = _Support(excess.build_vertex(peaks.best, slope), slope, peaks.row_peak, peaks.other_peak)
    ends = [_Support(end.vertex, end.slope, end.row_peak[rows], end.other_peak[others]) for end in (left, right)]
    return _Chord(ends[0], middle, peaks.rows, peaks.others), _Chord(middle, ends[1], peaks.rows, peaks.others)


def _order_vertices(vertices: list[Vertex]) -> tuple[list[Vertex], list[float]]:
    """Return vertices by decreasing d and their starts, without rounding artefacts."""
    kept: list[Vertex] = []
    starts: list[float] = []
    for vertex in sorted(vertices, key=lambda v: (-v.d, -v.gap)):
        start = 0.0
        while kept:
            start = find_crossing(kept[-1], vertex)
            if start > starts[-1] + _MIN_PIECE:
                break
            kept.pop()
            starts.pop()
            start = 0.0
        if math.isfinite(start):
            kept.append(vertex)
            starts.append(start)
    return kept, starts
