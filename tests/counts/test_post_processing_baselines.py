"""Repairs that use only the total, compared with solvers and definitions of their optima."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize

from dphmm.counts.post_processing import least_squares, maximum_likelihood, round_to_integers
from tests.counts.oracles import list_counts


@pytest.mark.parametrize("seed", range(10))
def test_least_squares_equals_slsqp(seed):
    rng = np.random.default_rng(seed)
    noisy = rng.normal(4, 8, (1, 5))
    ours = least_squares(noisy, 20)
    solver = minimize(
        lambda r: ((r - noisy[0]) ** 2).sum(),
        np.full(5, 4.0),
        jac=lambda r: 2 * (r - noisy[0]),
        method="SLSQP",
        bounds=[(0, None)] * 5,
        constraints=[{"type": "eq", "fun": lambda r: r.sum() - 20}],
        options={"ftol": 1e-14},
    )
    np.testing.assert_allclose(ours[0], solver.x, atol=1e-5)


@pytest.mark.parametrize("seed", range(10))
def test_maximum_likelihood_and_least_squares_reach_linear_program_optimum(seed):
    rng = np.random.default_rng(seed)
    noisy = rng.normal(4, 8, 5)
    ones, eye = np.ones(5), np.eye(5)
    best = linprog(
        np.concatenate([0 * ones, ones]),
        A_ub=np.block([[eye, -eye], [-eye, -eye]]),
        b_ub=np.concatenate([noisy, -noisy]),
        A_eq=np.concatenate([ones, 0 * ones])[None],
        b_eq=[20],
    ).fun
    for repair in (maximum_likelihood, least_squares):
        counts = repair(noisy[None], 20)
        assert counts.sum() == pytest.approx(20)
        assert np.abs(counts - noisy).sum() == pytest.approx(best)


def test_maximum_likelihood_is_uniform_without_positive_counts():
    assert maximum_likelihood([[-1.0, -5.0]], 6).tolist() == [[3.0, 3.0]]


def test_least_squares_is_zero_in_impossible_places():
    counts = least_squares([[9.0, 5.0, 1.0]], 6, np.array([[False, True, True]]))
    assert counts.tolist() == [[0.0, 5.0, 1.0]]


@given(seed=st.integers(0, 10**6))
def test_nearest_integers_minimises_distance(seed):
    rng = np.random.default_rng(seed)
    counts = rng.dirichlet(np.ones(4), size=1) * 7
    ours = round_to_integers(counts, 7)
    rows = list_counts(7, 4)
    assert ours.sum() == 7
    assert ((ours - counts) ** 2).sum() == pytest.approx(((rows - counts) ** 2).sum(axis=1).min())
