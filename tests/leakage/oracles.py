"""Test matrices, and oracles that share no code with the package."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import permutations, product

import numpy as np
from scipy.optimize import linprog

FIGURE_4 = [[0.1, 0.2, 0.7], [0.3, 0.3, 0.4], [0.5, 0.3, 0.2]]
ABSORBING = [[0.8, 0.2], [0.0, 1.0]]


def sample_matrix(n: int, seed: int, zeros: float = 0.0, spread: float = 1.0) -> np.ndarray:
    """Sample a row-stochastic matrix.

    ``zeros`` is the share of zero entries. A small ``spread`` makes rows uneven.
    """
    rng = np.random.default_rng(seed)
    matrix = rng.gamma(spread, size=(n, n)) + 1e-9
    matrix[rng.random((n, n)) < zeros] = 0.0
    empty = matrix.sum(axis=1) == 0
    matrix[empty, 0] = 1.0
    return matrix / matrix.sum(axis=1, keepdims=True)


def compute_highs_loss(matrix: np.ndarray, alpha: float) -> float:
    """Compute L(α) by one linear program per pair of rows.

    Charnes-Cooper transformation of ``max q·x / d·x, m ≤ x ≤ e^α m``.
    """
    n = len(matrix)
    grown = math.exp(alpha)
    above = np.hstack([np.eye(n), np.full((n, 1), -grown)])
    below = np.hstack([-np.eye(n), np.ones((n, 1))])
    bounds = np.vstack([above, below])
    best = 0.0
    for q, d in permutations(matrix, 2):
        result = linprog(
            -np.append(q, 0.0),
            A_ub=bounds,
            b_ub=np.zeros(2 * n),
            A_eq=[np.append(d, 0.0)],
            b_eq=[1.0],
            method="highs-ds",
            options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
        )
        assert result.status == 0, result.message
        best = max(best, math.log(-result.fun))
    return best


def compute_exact_loss(matrix: np.ndarray, alpha: float) -> float:
    """Compute L(α) over all sets of states of every pair, in rational arithmetic."""
    rows = [[Fraction(value) for value in row] for row in matrix]
    rows = [[value / sum(row) for value in row] for row in rows]
    e = Fraction(math.expm1(alpha))
    best = Fraction(0)
    for q, d in permutations(rows, 2):
        for chosen in product((0, 1), repeat=len(rows)):
            q_sum = sum((v for v, c in zip(q, chosen, strict=True) if c), Fraction(0))
            d_sum = sum((v for v, c in zip(d, chosen, strict=True) if c), Fraction(0))
            best = max(best, (q_sum - d_sum) * e / (1 + d_sum * e))
    return math.log1p(best)


ODD_MATRICES = {
    "one state": np.array([[1.0]]),
    "two states": np.array([[0.7, 0.3], [0.4, 0.6]]),
    "absorbing": np.array(ABSORBING),
    "identity": np.eye(4),
    "equal rows": np.full((5, 5), 0.2),
    "two equal rows": np.array([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.1, 0.4, 0.5]]),
    "disjoint rows": np.array([[0.5, 0.5, 0, 0], [0.25, 0.25, 0.25, 0.25], [0, 0, 0.1, 0.9], [0.4, 0.3, 0.2, 0.1]]),
    "zeros in q only": np.array([[0.0, 0.5, 0.5], [0.2, 0.4, 0.4], [0.3, 0.3, 0.4]]),
    "zeros, none disjoint": np.array([[0.6, 0.4, 0, 0], [0.5, 0, 0.5, 0], [0.1, 0, 0, 0.9], [0.25, 0.25, 0.25, 0.25]]),
    "empty column": np.array([[0.6, 0.0, 0.4], [0.3, 0.0, 0.7], [0.5, 0.0, 0.5]]),
    "nearly certain": np.array([[1 - 1e-12, 1e-12], [1e-12, 1 - 1e-12]]),
    "nearly equal": np.array([[0.5 + 1e-12, 0.5 - 1e-12], [0.5, 0.5]]),
    "tiny entries": np.array([[1.0, 1e-150, 0], [1e-100, 1.0, 1e-190], [0.5, 0.5, 0]]),
}


def compute_loss_by_ratio(matrix: np.ndarray, alphas) -> np.ndarray:
    """Compute the loss at each α over all pairs of rows by likelihood ratios.

    The best set of a pair contains the largest ratios (Neyman-Pearson). The code uses floats: all prefixes of the
    columns by decreasing ratio, and logarithms of sums of positive terms.
    """
    losses = np.zeros(len(alphas))
    with np.errstate(divide="ignore", invalid="ignore"):
        for q in matrix:
            ratio = np.where(matrix > 0, q / matrix, np.where(q > 0, np.inf, -1.0))
            order = np.argsort(-ratio, axis=1, kind="stable")
            sums = []
            for rows in (q[order], np.take_along_axis(matrix, order, axis=1)):
                rest = np.cumsum(rows[:, ::-1], axis=1)[:, ::-1]
                sums.append((np.log(np.cumsum(rows, axis=1)[:, :-1]), np.log(rest[:, 1:])))
            for k, alpha in enumerate(alphas):
                above, below = (np.logaddexp(inside + alpha, outside) for inside, outside in sums)
                losses[k] = max(losses[k], np.nanmax(above - below))
    return losses
