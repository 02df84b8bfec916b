"""The published algorithms of the TPL paper in plain form, as oracles.

They follow the paper line by line and name every correction. They use dense matrices, Python loops and, except for
Algorithm 1, O(n³) memory. They are suitable for up to some hundred states.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import permutations

import mpmath
import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray


def run_algorithm_1(matrix: npt.ArrayLike, alpha: float) -> float:
    """Compute L(α) by Theorem 5: drop states until the rest satisfies Inequality 22.

    Correction: the flag *update* is reset in every round (as printed it stays true and the loop does not end). States
    with ``d_j = 0 < q_j`` have an infinite ratio and stay.
    """
    rows = np.asarray(matrix, dtype=np.float64)
    e = math.expm1(alpha)
    greatest = 0.0
    for i, k in permutations(range(len(rows)), 2):
        chosen = rows[i] > rows[k]
        q_plus, d_plus = rows[i][chosen], rows[k][chosen]
        update = True
        while update:
            q, d = float(q_plus.sum()), float(d_plus.sum())
            kept = q_plus > d_plus * ((q * e + 1) / (d * e + 1))
            update = not kept.all()
            q_plus, d_plus = q_plus[kept], d_plus[kept]
        greatest = max(greatest, math.log((q * e + 1) / (d * e + 1)))
    return greatest


@dataclass(frozen=True)
class PairFunctions:
    """The piecewise functions of all pairs of rows: ``qM``, ``dM`` and ``aM`` of Algorithm 2.

    Attributes
    ----------
    q, d : FloatArray
        ``(n(n − 1), n)`` cumulated masses, by decreasing ratio.
    a : FloatArray
        ``(n(n − 1), n)``: entry r is the largest α for which the first r + 1 states are the maximizer, decreasing; 0
        beyond the states with ``q_j > d_j``.
    """

    q: FloatArray
    d: FloatArray
    a: FloatArray


def run_algorithm_2(matrix: npt.ArrayLike) -> PairFunctions:
    """Compute the coefficients and transition points of every pair's piecewise function.

    Correction: line 11 lacks the ``+ 1`` inside the logarithm, which the proof of Theorem 9 has and the paper's own
    example (1.47 for .2 .3 .5 against .1 0 .9) needs. A ratio that several states share makes one transition point.
    """
    rows = np.asarray(matrix, dtype=np.float64)
    n = len(rows)
    parts = [np.zeros((n * (n - 1), n)) for _ in range(3)]
    for at, (i, k) in enumerate(permutations(range(n), 2)):
        chosen = rows[i] > rows[k]
        q, d = rows[i][chosen], rows[k][chosen]
        with np.errstate(divide="ignore"):
            order = np.argsort(-(q / d), kind="stable")
        q, d = q[order], d[order]
        q_sum, d_sum = np.cumsum(q), np.cumsum(d)
        below = q_sum * d - d_sum * q
        a = np.log1p(np.divide(q - d, below, out=np.full(q.size, math.inf), where=below > 0))
        for part, values in zip(parts, (q_sum, d_sum, a), strict=True):
            part[at, : q.size] = values
    return PairFunctions(*parts)


def run_algorithm_3(pairs: PairFunctions, alpha: float) -> tuple[float, float, float]:
    """Compute L(α), and the q and d that attain it, from the precomputed functions.

    Correction: the denominator of line 5 is ``dArr[k](e^α − 1) + 1``.
    """
    e = math.expm1(alpha)
    greatest = 0.0
    best_q = 0.0
    best_d = 0.0
    for q_array, d_array, a_array in zip(pairs.q, pairs.d, pairs.a, strict=True):
        k = int(np.searchsorted(-a_array, -alpha, side="left")) - 1
        if k < 0:
            continue
        q, d = float(q_array[k]), float(d_array[k])
        value = math.log((q * e + 1) / (d * e + 1))
        if value > greatest:
            greatest = value
            best_q = q
            best_d = d
    return greatest, best_q, best_d


@dataclass(frozen=True)
class Piecewise:
    """The loss function on ``(0, a_m]``, as computed by Algorithm 4.

    Attributes
    ----------
    q, d, a : list of float
        Coefficients of each piece, and its upper end in α, increasing.
    """

    q: list[float]
    d: list[float]
    a: list[float]


def run_algorithm_4(pairs: PairFunctions, first: float, last: float) -> Piecewise:
    """Compute the upper envelope on ``[first, last]`` by recursion on meeting points.

    Corrections: lines 2 and 3 call Algorithm 3 (printed: 2). The equalities of lines 5 and 9 are tested up to rounding,
    because they may never be exact in floats.
    """
    value_1, q_1, d_1 = run_algorithm_3(pairs, first)
    value_m, q_m, d_m = run_algorithm_3(pairs, last)
    if value_m - _evaluate_curve(q_1, d_1, last) <= 1e-13 or last - first <= 1e-13:
        return Piecewise([q_1], [d_1], [last])
    if value_1 - _evaluate_curve(q_m, d_m, first) <= 1e-13:
        return Piecewise([q_m], [d_m], [last])
    middle = math.log1p((q_m + d_1 - q_1 - d_m) / (q_1 * d_m - q_m * d_1))
    left, right = run_algorithm_4(pairs, first, middle), run_algorithm_4(pairs, middle, last)
    return Piecewise(left.q + right.q, left.d + right.d, left.a + right.a)


def run_algorithm_5(function: Piecewise, alpha: float) -> float:
    """Compute L(α) by binary search among the pieces.

    Correction: with increasing ends the piece is that with ``a_{k−1} < α ≤ a_k`` (line 2 has the reverse).
    """
    k = int(np.searchsorted(function.a, alpha, side="left"))
    return _evaluate_curve(function.q[k], function.d[k], alpha)


def run_algorithm_6(pairs: PairFunctions, epsilon: float) -> float:
    """Compute the supremum of leakage under a constant ε.

    It is the largest supremum of Theorem 11 over all q and d. Correction: with d = 0 and ``q ≠ 1`` the supremum is
    finite for ``ε < log(1/q)`` strictly.
    """
    greatest = epsilon
    for q, d in zip(pairs.q.ravel(), pairs.d.ravel(), strict=True):
        greatest = max(greatest, apply_theorem_11(float(q), float(d), epsilon))
    return greatest


def apply_theorem_11(q: float, d: float, epsilon: float) -> float:
    """Compute the supremum for one q and d in 50 digits: in floats its terms cancel."""
    with mpmath.workdps(50):
        grown = mpmath.exp(epsilon)
        if d > 0:
            b = d + q * grown - 1
            return float(mpmath.log((mpmath.sqrt(4 * d * grown * (1 - mpmath.mpf(q)) + b * b) + b) / (2 * d)))
        if q * grown >= 1:
            return math.inf
        return float(mpmath.log((1 - mpmath.mpf(q)) * grown / (1 - q * grown)))


def _evaluate_curve(q: float, d: float, alpha: float) -> float:
    e = math.expm1(alpha)
    return math.log((q * e + 1) / (d * e + 1))
