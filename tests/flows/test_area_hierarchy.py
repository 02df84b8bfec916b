"""Tests of count estimates at several levels against general solvers and dense algebra."""

from __future__ import annotations

from itertools import pairwise, product

import cvxopt
import numpy as np
import pytest
from scipy.optimize import lsq_linear
from scipy.sparse import csr_array

from dphmm.flows.area_hierarchy import Forest, _NonNegative, round_balanced


def sample_forest(rng: np.random.Generator, levels: int) -> Forest:
    sizes = [12, 5, 3, 1][: levels + 1]
    parents = []
    for below, size in pairwise(sizes):
        parents.append(rng.permutation(np.concatenate([np.arange(size), rng.integers(0, size, below - size)])))
    return Forest(sizes[0], parents)


def as_rows(tree: Forest, measured: list[np.ndarray], variances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the estimation problem as dense least squares."""
    sums = [
        np.array([tree.sum_levels(leaf)[level] for leaf in np.eye(tree.sizes[0])]).T for level in range(len(tree.sizes))
    ]
    rows = np.vstack([rows_of_level / np.sqrt(v) for rows_of_level, v in zip(sums, variances, strict=True)])
    return rows, np.concatenate([counts / np.sqrt(v) for counts, v in zip(measured, variances, strict=True)])


CASES = [(levels, seed) for levels in range(4) for seed in range(5)]


@pytest.fixture(params=CASES, ids=str)
def problem(request):
    levels, seed = request.param
    rng = np.random.default_rng(seed)
    tree = sample_forest(rng, levels)
    measured = [rng.normal(2, 5, size) for size in tree.sizes]
    variances = rng.uniform(0.2, 5, levels + 1)
    if levels > 1 and seed == 0:
        variances[1] = np.inf  # a level without measurements
    return tree, measured, variances, *as_rows(tree, measured, variances)


def test_estimates_and_variances_match_least_squares(problem):
    tree, measured, variances, rows, goal = problem
    estimates = tree.estimate(measured, variances)
    np.testing.assert_allclose(estimates[0], np.linalg.lstsq(rows, goal)[0], rtol=0, atol=1e-9)
    for estimate, sums in zip(estimates, tree.sum_levels(estimates[0]), strict=True):
        np.testing.assert_allclose(estimate, sums, rtol=0, atol=1e-9)
    covariance = np.linalg.inv(rows.T @ rows)
    for level, level_variances in enumerate(tree.compute_level_variances(variances)):
        sums = np.array([tree.sum_levels(e)[level] for e in np.eye(tree.sizes[0])]).T
        np.testing.assert_allclose(level_variances, np.diag(sums @ covariance @ sums.T), rtol=1e-9)
    weights = np.random.default_rng(1).normal(size=(4, tree.sizes[0]))
    expected = np.diag(weights @ covariance @ weights.T)
    np.testing.assert_allclose(tree.compute_sum_variances(csr_array(weights), variances), expected, rtol=1e-9)


def test_nonnegative_estimates_match_bounded_solver(problem):
    tree, measured, variances, rows, goal = problem
    estimates = tree.estimate_nonnegative(measured, variances)
    best = lsq_linear(rows, goal, (0, np.inf), tol=1e-14).x
    assert estimates.min() >= 0
    assert ((rows @ estimates - goal) ** 2).sum() <= ((rows @ best - goal) ** 2).sum() + 1e-9
    np.testing.assert_allclose(estimates, best, rtol=0, atol=1e-4)


def test_nonnegative_accepts_one_variance_per_leaf(problem):
    tree, measured, variances, *_ = problem
    leaf_variances = np.random.default_rng(9).uniform(0.1, 10, tree.sizes[0])
    estimates = tree.estimate_nonnegative(measured, [leaf_variances, *variances[1:]])
    rows, goal = as_rows(tree, measured, variances)
    weights = np.concatenate([np.sqrt(variances[0] / leaf_variances), np.ones(len(goal) - len(leaf_variances))])
    best = lsq_linear(rows * weights[:, None], goal * weights, (0, np.inf), tol=1e-14).x
    np.testing.assert_allclose(estimates, best, rtol=0, atol=1e-4)


@pytest.mark.parametrize("seed", range(10))
def test_few_passes_are_sufficient_if_upper_levels_are_nearly_exact(seed, monkeypatch):
    """With tiny variances of sums, rounding errors exceed the tolerance of Newton's method."""
    rng = np.random.default_rng(seed)
    tree = sample_forest(rng, 3)
    measured = tree.sum_levels(rng.uniform(0, 200, tree.sizes[0]))
    measured[0] = measured[0] + rng.normal(0, 5, tree.sizes[0])
    passes = []
    lowest = _NonNegative._solve_lowest_level
    monkeypatch.setattr(
        _NonNegative, "_solve_lowest_level", lambda self, price: passes.append(price) or lowest(self, price)
    )
    estimates = tree.estimate_nonnegative(measured, [1.0, 1e-4, 1e-8, 1e-12])
    assert len(passes) < 100, "two nested iterations of a few steps"
    assert estimates.min() >= 0
    for total, exact in zip(tree.sum_levels(estimates)[1:], measured[1:], strict=True):
        np.testing.assert_allclose(total, exact, rtol=0, atol=0.05)


def test_clipped_least_squares_is_not_optimal(problem):
    """Clipping costs more than the optimum if a count below a sum is clipped."""
    tree, measured, variances, rows, goal = problem
    clipped = np.maximum(tree.estimate(measured, variances)[0], 0)
    optimum = tree.estimate_nonnegative(measured, variances)
    worse = ((rows @ clipped - goal) ** 2).sum() - ((rows @ optimum - goal) ** 2).sum()
    assert worse > -1e-9
    if len(tree.sizes) > 1 and (clipped == 0).any():
        assert worse > 1e-6


def test_rounded_counts_agree_with_estimates_at_every_level(problem):
    tree, measured, variances, *_ = problem
    exact = tree.estimate_nonnegative(measured, variances)
    for totals, whole in zip(tree.sum_levels(exact), tree.sum_levels(tree.round(exact)), strict=True):
        assert np.abs(totals - whole).max() < 1 + 1e-9


@pytest.mark.parametrize("seed", range(6))
def test_balanced_estimates_match_quadratic_program(seed):
    rng, n = np.random.default_rng(seed), 4
    out, into = np.repeat(np.arange(n), n), np.tile(np.arange(n), n)
    block = np.array([0, 0, 1, 1])
    tree = Forest(n * n, [block[out] * 2 + block[into], np.zeros(4, dtype=np.int64)])
    measured, variances = [rng.normal(3, 6, size) for size in tree.sizes], rng.uniform(0.5, 4, 3)
    rows, goal = as_rows(tree, measured, variances)
    estimates = tree.estimate_balanced(measured, variances, out, into)
    balance = np.array([(out == place) * 1.0 - (into == place) for place in range(n - 1)])
    parts = (rows.T @ rows, -rows.T @ goal, -np.eye(n * n), np.zeros(n * n), balance, np.zeros(n - 1))
    best = np.ravel(cvxopt.solvers.qp(*map(cvxopt.matrix, parts), options={"show_progress": False})["x"])
    cost = ((rows @ estimates - goal) ** 2).sum()
    np.testing.assert_allclose(cost, ((rows @ best - goal) ** 2).sum(), rtol=1e-4)
    np.testing.assert_allclose(estimates, best, rtol=0, atol=0.02)
    assert np.abs(np.bincount(out, estimates, n) - np.bincount(into, estimates, n)).max() < 1e-3
    whole = round_balanced(estimates, out, into)
    assert np.abs(whole - estimates).max() < 1 + 1e-4
    assert (np.bincount(out, whole, n) == np.bincount(into, whole, n)).all()


@pytest.mark.parametrize("seed", range(4))
def test_balanced_estimates_of_large_counts_are_accurate(seed):
    """Tens of thousands of trips, some pairs with very few, and noise of deviation 30."""
    rng, n = np.random.default_rng(seed), 8
    out, into = np.repeat(np.arange(n), n), np.tile(np.arange(n), n)
    counted = rng.gamma(0.3, 2e4, (n, n))
    block = out // 2 * 4 + into // 2
    tree, true = Forest(n * n, [block]), (counted + counted.T).ravel()
    measured = [counts + rng.normal(0, 30, counts.size) for counts in (true, np.bincount(block, true))]
    estimates = tree.estimate_balanced(measured, [900.0, 900.0], out, into)
    off = np.bincount(out, estimates, n) - np.bincount(into, estimates, n)
    assert np.abs(off).max() < 1e-3 * estimates.sum() / n
    assert np.sqrt(np.mean((estimates - true) ** 2)) < 30, "the error is below that of the measurement"


@pytest.mark.parametrize("seed", range(20))
def test_rounded_balanced_is_nearest_balanced_integer_table(seed):
    rng, n = np.random.default_rng(seed), 3
    out, into = np.repeat(np.arange(n), n), np.tile(np.arange(n), n)
    there, around = (
        rng.uniform(0, 3, (n, n)),
        rng.uniform(0, 2, 2),
    )  # trips there and back for each pair, and round trips through all three places
    leaves = (there + there.T) / 2
    for step, weight in zip((1, 2), around, strict=True):
        leaves[np.arange(n), (np.arange(n) + step) % n] += weight
    leaves = leaves.ravel()
    off = [
        np.abs(np.floor(leaves) + ups - leaves).sum()
        for ups in product((0, 1), repeat=n * n)
        if (np.bincount(out, np.floor(leaves) + ups, n) == np.bincount(into, np.floor(leaves) + ups, n)).all()
    ]
    assert np.abs(round_balanced(leaves, out, into) - leaves).sum() == pytest.approx(min(off))
