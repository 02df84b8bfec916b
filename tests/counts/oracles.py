"""Slow and independent answers: brute force, a general solver, and all count paths."""

from __future__ import annotations

import itertools
import math

import numpy as np
from scipy.optimize import minimize
from scipy.special import digamma, gammaln


def list_counts(users: int, places: int) -> np.ndarray:
    """Every count vector with this total, (k, m)."""
    bars = itertools.combinations(range(users + places - 1), places - 1)
    return np.array([np.diff([-1, *b, users + places - 1]) - 1 for b in bars])


def compute_log_multinomial(counts: np.ndarray, p: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(counts == 0, 0.0, counts * np.log(p))
    return gammaln(counts.sum(-1) + 1) + (terms - gammaln(counts + 1)).sum(-1)


def compute_brute_force_optimum(noisy: np.ndarray, p: np.ndarray, users: int, scale: float) -> float:
    """The smallest objective over all integer count vectors."""
    vectors = list_counts(users, len(p))
    cost = np.abs(noisy - vectors).sum(1) / scale - compute_log_multinomial(vectors, p)
    return float(cost.min())


def compute_objective(counts: np.ndarray, noisy: np.ndarray, log_p: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The negative log posterior of each time, up to a constant of that time.

    Parameters
    ----------
    counts, noisy, log_p
        ``(T, m)``; ``log_p`` is minus infinity where a place is impossible.
    scales
        ``(T,)``.

    Returns
    -------
    np.ndarray
        ``(T,)``; infinite where a user is in an impossible place.
    """
    at_zero = np.where(counts == 0, 0.0, counts * np.where(counts == 0, 0.0, log_p))
    cost = np.abs(noisy - counts) / scales[:, None] + gammaln(np.asarray(counts, dtype=np.float64) + 1.0) - at_zero
    return np.asarray(cost.sum(axis=1))


def compute_optimality_gap(
    counts: np.ndarray, multipliers: np.ndarray, noisy: np.ndarray, log_p: np.ndarray, scales: np.ndarray
) -> np.ndarray:
    """The distance of each time from its optimality conditions (Karush, Kuhn, Tucker).

    It is zero at the optimum. The multiplier must lie in the subdifferential of every place's cost; at count zero it
    may lie below it.

    Returns
    -------
    np.ndarray
        ``(T,)``: the greatest distance of the multiplier from the subdifferentials of its row.
    """
    slope = 1.0 / scales[:, None]
    smooth = digamma(counts + 1.0) - log_p
    down = smooth + np.where(counts > noisy, slope, -slope)
    up = smooth + np.where(counts >= noisy, slope, -slope)
    below = np.where(counts > 0, down - multipliers[:, None], -np.inf)
    gap = np.maximum(below, multipliers[:, None] - up)
    return np.asarray(np.maximum(np.where(np.isfinite(log_p), gap, 0.0), 0.0).max(axis=1))


def solve_with_slsqp(noisy: np.ndarray, p: np.ndarray, users: int, scale: float, stirling: bool = False) -> np.ndarray:
    """The same problem solved by scipy's SLSQP, with absolute values split into two variables.

    With `stirling` it is the paper's literal objective, which is not convex near zero.
    """
    m = len(p)
    log_p = np.log(p)

    def compute_log_factorial(r):
        if stirling:
            return np.where(
                r > 0, 0.5 * np.log(2 * np.pi * np.maximum(r, 1e-9)) + r * (np.log(np.maximum(r, 1e-9)) - 1), 0
            )
        return gammaln(r + 1)

    def compute_cost(x):
        r, gap = x[:m], x[m:]
        return gap.sum() / scale + (compute_log_factorial(r) - r * log_p).sum()

    rules = [
        {"type": "eq", "fun": lambda x: x[:m].sum() - users},
        {"type": "ineq", "fun": lambda x: x[m:] - (noisy - x[:m])},
        {"type": "ineq", "fun": lambda x: x[m:] + (noisy - x[:m])},
    ]
    start = np.full(m, users / m)
    done = minimize(
        compute_cost,
        np.concatenate([start, np.abs(noisy - start)]),
        method="SLSQP",
        bounds=[(0, users)] * m + [(0, None)] * m,
        constraints=rules,
        options={"maxiter": 500, "ftol": 1e-12},
    )
    return done.x[:m]


def compute_count_transition(vectors: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """The exact probability of every count vector after every other.

    It is the convolution of the multinomials of the rows.
    """
    index = {tuple(v): i for i, v in enumerate(vectors.tolist())}
    users, m = int(vectors[0].sum()), len(matrix)
    result = np.zeros((len(vectors), len(vectors)))
    for i, vector in enumerate(vectors):
        law = {(0,) * m: 1.0}
        for place in range(m):
            moved = list_counts(int(vector[place]), m)
            weights = np.exp(compute_log_multinomial(moved, matrix[place]))
            following: dict[tuple[int, ...], float] = {}
            for have, chance in law.items():
                for move, weight in zip(moved.tolist(), weights, strict=True):
                    key = tuple(a + b for a, b in zip(have, move, strict=True))
                    following[key] = following.get(key, 0.0) + chance * weight
            law = following
        for key, chance in law.items():
            result[i, index[key]] = chance
    assert math.isclose(result.sum(), len(vectors))
    assert users == sum(vectors[-1])
    return result


def compute_posterior_mean(
    noisy: np.ndarray, vectors: np.ndarray, start: np.ndarray, moves: np.ndarray, scale: float, filtering: bool = False
) -> np.ndarray:
    """E[counts | noisy counts] under the exact model, by recursions over all count vectors."""
    likelihood = np.exp(-np.abs(noisy[:, None, :] - vectors[None]).sum(-1) / scale)
    forward = [start * likelihood[0]]
    for row in likelihood[1:]:
        forward.append((forward[-1] / forward[-1].sum()) @ moves * row)
    backward = [np.ones(len(vectors))]
    for row in likelihood[:0:-1]:
        step = moves @ (row * backward[-1])
        backward.append(step / step.sum())
    belief = np.array(forward) if filtering else np.array(forward) * np.array(backward[::-1])
    return belief / belief.sum(axis=1, keepdims=True) @ vectors


def compute_path_moments(
    vectors: np.ndarray, start: np.ndarray, moves: np.ndarray, steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """Mean (T m,) and covariance (T m, T m) of the whole count path, from all paths."""
    mean, second = 0.0, 0.0
    for path in itertools.product(range(len(vectors)), repeat=steps):
        chance = start[path[0]] * math.prod(moves[a, b] for a, b in itertools.pairwise(path))
        flat = vectors[list(path)].ravel().astype(float)
        mean, second = mean + chance * flat, second + chance * np.outer(flat, flat)
    return mean, second - np.outer(mean, mean)
