"""Estimates of counts at several levels, against general solvers and dense algebra."""

from __future__ import annotations

from itertools import pairwise, product

import cvxopt
import numpy as np
import pytest
from scipy.optimize import lsq_linear
from scipy.sparse import csr_array

from dphmm.flows.forest import Forest, rounded_balanced


def forest(rng: np.random.Generator, levels: int) -> Forest:
    sizes = [12, 5, 3, 1][: levels + 1]
    parents = []
    for below, size in pairwise(sizes):
        parents.append(rng.permutation(np.concatenate([np.arange(size), rng.integers(0, size, below - size)])))
    return Forest(sizes[0], parents)


def as_rows(tree: Forest, measured: list[np.ndarray], variances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same as a least-squares problem in a dense matrix."""
    sums = [np.array([tree.totals(one)[level] for one in np.eye(tree.sizes[0])]).T for level in range(len(tree.sizes))]
    rows = np.vstack([one / np.sqrt(v) for one, v in zip(sums, variances, strict=True)])
    return rows, np.concatenate([one / np.sqrt(v) for one, v in zip(measured, variances, strict=True)])


CASES = [(levels, seed) for levels in range(4) for seed in range(5)]


@pytest.fixture(params=CASES, ids=str)
def problem(request):
    levels, seed = request.param
    rng = np.random.default_rng(seed)
    tree = forest(rng, levels)
    measured = [rng.normal(2, 5, size) for size in tree.sizes]
    variances = rng.uniform(0.2, 5, levels + 1)
    if levels > 1 and seed == 0:
        variances[1] = np.inf  # a level of which nothing is measured
    return tree, measured, variances, *as_rows(tree, measured, variances)


def test_estimates_and_their_variances_are_those_of_least_squares(problem):
    tree, measured, variances, rows, goal = problem
    found = tree.estimate(measured, variances)
    np.testing.assert_allclose(found[0], np.linalg.lstsq(rows, goal)[0], rtol=0, atol=1e-9)
    for one, sums in zip(found, tree.totals(found[0]), strict=True):
        np.testing.assert_allclose(one, sums, rtol=0, atol=1e-9)
    covariance = np.linalg.inv(rows.T @ rows)
    for level, one in enumerate(tree.variances(variances)):
        sums = np.array([tree.totals(e)[level] for e in np.eye(tree.sizes[0])]).T
        np.testing.assert_allclose(one, np.diag(sums @ covariance @ sums.T), rtol=1e-9)
    some = np.random.default_rng(1).normal(size=(4, tree.sizes[0]))
    expected = np.diag(some @ covariance @ some.T)
    np.testing.assert_allclose(tree.variance_of(csr_array(some), variances), expected, rtol=1e-9)


def test_estimates_without_negative_counts_are_those_of_a_solver(problem):
    tree, measured, variances, rows, goal = problem
    found = tree.nonnegative(measured, variances)
    best = lsq_linear(rows, goal, (0, np.inf), tol=1e-14).x
    assert found.min() >= 0
    assert ((rows @ found - goal) ** 2).sum() <= ((rows @ best - goal) ** 2).sum() + 1e-9
    np.testing.assert_allclose(found, best, rtol=0, atol=1e-4)


def test_leaves_may_have_variances_of_their_own(problem):
    tree, measured, variances, *_ = problem
    own = np.random.default_rng(9).uniform(0.1, 10, tree.sizes[0])
    found = tree.nonnegative(measured, [own, *variances[1:]])
    rows, goal = as_rows(tree, measured, variances)
    weights = np.concatenate([np.sqrt(variances[0] / own), np.ones(len(goal) - len(own))])
    best = lsq_linear(rows * weights[:, None], goal * weights, (0, np.inf), tol=1e-14).x
    np.testing.assert_allclose(found, best, rtol=0, atol=1e-4)


def test_clipping_least_squares_at_zero_is_not_that(problem):
    """The broken twin of the test above: what clipping gives costs more where anything is clipped below a sum."""
    tree, measured, variances, rows, goal = problem
    clipped = np.maximum(tree.estimate(measured, variances)[0], 0)
    found = tree.nonnegative(measured, variances)
    worse = ((rows @ clipped - goal) ** 2).sum() - ((rows @ found - goal) ** 2).sum()
    assert worse > -1e-9
    if len(tree.sizes) > 1 and (clipped == 0).any():
        assert worse > 1e-6


def test_whole_numbers_agree_at_every_level(problem):
    tree, measured, variances, *_ = problem
    exact = tree.nonnegative(measured, variances)
    for one, whole in zip(tree.totals(exact), tree.totals(tree.rounded(exact)), strict=True):
        assert np.abs(one - whole).max() < 1 + 1e-9


@pytest.mark.parametrize("seed", range(6))
def test_balanced_estimates_are_those_of_a_quadratic_program(seed):
    rng, n = np.random.default_rng(seed), 4
    out, into = np.repeat(np.arange(n), n), np.tile(np.arange(n), n)
    block = np.array([0, 0, 1, 1])
    tree = Forest(n * n, [block[out] * 2 + block[into], np.zeros(4, dtype=np.int64)])
    measured, variances = [rng.normal(3, 6, size) for size in tree.sizes], rng.uniform(0.5, 4, 3)
    rows, goal = as_rows(tree, measured, variances)
    found = tree.balanced(measured, variances, out, into)
    balance = np.array([(out == place) * 1.0 - (into == place) for place in range(n - 1)])
    parts = (rows.T @ rows, -rows.T @ goal, -np.eye(n * n), np.zeros(n * n), balance, np.zeros(n - 1))
    best = np.ravel(cvxopt.solvers.qp(*map(cvxopt.matrix, parts), options={"show_progress": False})["x"])
    cost = ((rows @ found - goal) ** 2).sum()
    np.testing.assert_allclose(cost, ((rows @ best - goal) ** 2).sum(), rtol=1e-4)
    np.testing.assert_allclose(found, best, rtol=0, atol=0.02)
    assert np.abs(np.bincount(out, found, n) - np.bincount(into, found, n)).max() < 1e-3
    whole = rounded_balanced(found, out, into)
    assert np.abs(whole - found).max() < 1 + 1e-4
    assert (np.bincount(out, whole, n) == np.bincount(into, whole, n)).all()


@pytest.mark.parametrize("seed", range(4))
def test_large_counts_are_balanced_to_a_thousandth_of_those_of_a_place(seed):
    """Ten thousands of trips, some pairs with hardly any, and noise of 30 a number."""
    rng, n = np.random.default_rng(seed), 8
    out, into = np.repeat(np.arange(n), n), np.tile(np.arange(n), n)
    counted = rng.gamma(0.3, 2e4, (n, n))
    block = out // 2 * 4 + into // 2
    tree, true = Forest(n * n, [block]), (counted + counted.T).ravel()
    measured = [one + rng.normal(0, 30, one.size) for one in (true, np.bincount(block, true))]
    found = tree.balanced(measured, [900.0, 900.0], out, into)
    off = np.bincount(out, found, n) - np.bincount(into, found, n)
    assert np.abs(off).max() < 1e-3 * found.sum() / n
    assert np.sqrt(np.mean((found - true) ** 2)) < 30, "no farther off than what was measured"


@pytest.mark.parametrize("seed", range(20))
def test_balanced_whole_numbers_are_the_nearest_of_all_that_are(seed):
    rng, n = np.random.default_rng(seed), 3
    out, into = np.repeat(np.arange(n), n), np.tile(np.arange(n), n)
    there, around = rng.uniform(0, 3, (n, n)), rng.uniform(0, 2, 2)  # pairs there and back, and rounds of all three
    leaves = (there + there.T) / 2
    for step, weight in zip((1, 2), around, strict=True):
        leaves[np.arange(n), (np.arange(n) + step) % n] += weight
    leaves = leaves.ravel()
    off = [
        np.abs(np.floor(leaves) + ups - leaves).sum()
        for ups in product((0, 1), repeat=n * n)
        if (np.bincount(out, np.floor(leaves) + ups, n) == np.bincount(into, np.floor(leaves) + ups, n)).all()
    ]
    assert np.abs(rounded_balanced(leaves, out, into) - leaves).sum() == pytest.approx(min(off))
