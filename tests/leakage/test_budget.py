"""Budgets for a leakage level: published values, all stream lengths, and refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from dphmm.errors import BudgetError, CorrelationTooStrongError, InvalidInputError, StochasticError
from dphmm.leakage import (
    LossFunction,
    constant_budget,
    exact_budgets,
    shared_budget,
    smooth,
    supremum,
    temporal_leakage,
)
from tests.leakage.oracles import ABSORBING, FIGURE_4, sample_matrix

PAST = [[0.8, 0.2], [0.2, 0.8]]
FUTURE = [[0.8, 0.2], [0.1, 0.9]]
PAIRS = {
    "Figure 8": (PAST, FUTURE),
    "backward only": (PAST, None),
    "forward only": (None, FUTURE),
    "no knowledge": (None, None),
    "absorbing": (ABSORBING, ABSORBING),
    "random": (sample_matrix(12, 1), sample_matrix(12, 2, spread=0.2)),
    "strong": (smooth(np.eye(20), 1e-3), smooth(np.eye(20), 5e-3)),
    "nearly certain": (smooth(np.eye(3), 1e-7), smooth(np.eye(3), 1e-6)),
    "with zeros": (sample_matrix(10, 3, zeros=0.2), sample_matrix(10, 4, zeros=0.2)),
}


def test_figure_8():
    assert constant_budget(PAST, FUTURE, 1.0) == pytest.approx(0.203872, abs=5e-7)
    budgets = exact_budgets(PAST, FUTURE, 1.0, 30)
    np.testing.assert_allclose(budgets, [0.499806, *[0.203872] * 28, 0.704066], rtol=0, atol=5e-7)


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS.keys())
@pytest.mark.parametrize("alpha", [0.01, 1.0, 8.0])
def test_constant_budget_keeps_leakage_at_or_below_alpha_for_every_length(pair, alpha):
    past, future = LossFunction(pair[0]), LossFunction(pair[1])
    epsilon = constant_budget(past, future, alpha)
    assert 0 < epsilon <= alpha
    for steps in (1, 2, 3, 10, 100, 1000):
        assert temporal_leakage(past, future, [epsilon] * steps).max() <= alpha
    total = past.supremum(epsilon).value + future.supremum(epsilon).value - epsilon
    assert total == pytest.approx(alpha, rel=1e-9), "a larger budget would eventually exceed alpha"


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS.keys())
@pytest.mark.parametrize("steps", [1, 2, 3, 17, 400])
def test_exact_budgets_reach_alpha_at_every_time(pair, steps):
    budgets = exact_budgets(*pair, 1.0, steps)
    assert budgets.shape == (steps,)
    assert (budgets > 0).all()
    np.testing.assert_allclose(temporal_leakage(*pair, budgets), 1.0, rtol=0, atol=1e-9)


@pytest.mark.slow
@given(st.integers(0, 200), st.integers(0, 200), st.floats(1e-3, 20))
def test_budgets_keep_alpha_for_random_matrices(past_seed, future_seed, alpha):
    past, future = sample_matrix(4, past_seed, spread=0.3), sample_matrix(4, future_seed, zeros=0.25)
    for side in (past, future):
        if LossFunction(side).is_identity:
            with pytest.raises(CorrelationTooStrongError):
                constant_budget(past, future, alpha)
            return
    leakage = temporal_leakage(past, future, exact_budgets(past, future, alpha, 9))
    # Leakage is the logarithm of differences of numbers up to e^alpha, with errors of some units in the last place.
    np.testing.assert_allclose(leakage, alpha, rtol=1e-9, atol=2.0**-50 * np.exp(alpha))
    assert leakage.max() <= alpha
    assert temporal_leakage(past, future, [constant_budget(past, future, alpha)] * 50).max() <= alpha


def test_budget_accounts_for_both_suprema():
    one_sided = constant_budget(PAST, None, 1.0)
    leaks = supremum(PAST, one_sided) + supremum(FUTURE, one_sided) - one_sided
    assert leaks > 1.1, "the budget for one side is insufficient for both"


@pytest.mark.parametrize(
    ("backward", "forward", "side", "rows"),
    [
        (np.eye(2), np.eye(2), "backward", "rows 0 and 1"),
        (None, np.eye(3), "forward", "rows 0 and 1"),
        (PAST, [[0, 1], [1, 0]], "forward", "rows 0 and 1"),
        (sp.eye_array(4000), None, "backward", "rows 0 and 1"),
        ([[0.5, 0.5, 0], [0.2, 0.3, 0.5], [0, 0, 1]], None, "backward", "rows (0 and 2|2 and 0)"),
    ],
)
def test_deterministic_correlation_raises_with_rows(backward, forward, side, rows):
    for call in (lambda: constant_budget(backward, forward, 1.0), lambda: exact_budgets(backward, forward, 1.0, 5)):
        with pytest.raises(CorrelationTooStrongError, match=f"{rows} .*{side} matrix") as refused:
            call()
        assert "\n" not in str(refused.value)
    np.testing.assert_array_equal(exact_budgets(backward, forward, 1.0, 1), [1.0])


def test_budget_suggested_by_error_is_valid():
    np.testing.assert_allclose(temporal_leakage(np.eye(2), np.eye(2), [1.0 / 7] * 7), 1.0, rtol=1e-14)


def test_extreme_correlation_raises_or_gives_positive_budget():
    nearly = [[1.0, 1e-190], [0.5, 0.5]]
    for alpha in (1e-300, 1.0):
        try:
            assert 0 < constant_budget(nearly, nearly, alpha) < alpha
        except CorrelationTooStrongError as refused:
            assert "smallest float" in str(refused)  # noqa: PT017


def test_shared_budget_is_valid_for_all_users_and_names_tightest():
    users = {"ann": (PAST, None), "bob": (FUTURE, FUTURE), "eve": (smooth(np.eye(2), 0.5), None)}
    shared = shared_budget(users, 1.0)
    assert shared.tightest == "bob"
    assert shared.budgets[0] == min(constant_budget(*pair, 1.0) for pair in users.values())
    by_time = shared_budget(users, 1.0, steps=12)
    assert by_time.budgets.shape == (12,)
    for name, pair in users.items():
        np.testing.assert_array_equal(by_time.by_user[name], exact_budgets(*pair, 1.0, 12))
        assert temporal_leakage(*pair, by_time.budgets).max() <= 1.0
        assert temporal_leakage(*pair, np.repeat(shared.budgets, 200)).max() <= 1.0


@pytest.mark.parametrize("alpha", [1e-3, 1.0, 7.3])
def test_releases_share_alpha_under_deterministic_correlation(alpha):
    users = {"ann": (PAST, FUTURE), "bob": (np.eye(2), np.eye(2))}
    shared = shared_budget(users, alpha, steps=7)
    assert list(shared.composed) == ["bob"]
    assert "rows 0 and 1 of the backward matrix have disjoint supports" in shared.composed["bob"]
    np.testing.assert_allclose(shared.by_user["bob"], alpha / 7, rtol=1e-11)
    np.testing.assert_array_equal(shared.by_user["ann"], exact_budgets(PAST, FUTURE, alpha, 7))
    assert temporal_leakage(np.eye(2), np.eye(2), shared.budgets).max() <= alpha
    assert temporal_leakage(np.eye(2), np.eye(2), shared.by_user["bob"] * (1 + 1e-9)).max() > alpha, (
        "a larger budget exceeds alpha"
    )


def test_shared_budget_raises_with_user():
    with pytest.raises(CorrelationTooStrongError, match="user bob"):
        shared_budget({"ann": (PAST, None), "bob": (np.eye(2), None)}, 1.0)
    with pytest.raises(InvalidInputError, match="users must be a non-empty mapping"):
        shared_budget({}, 1.0)


@pytest.mark.parametrize("alpha", [0.0, -1.0, math.nan, math.inf])
def test_invalid_alpha_raises(alpha):
    for call in (lambda: constant_budget(PAST, FUTURE, alpha), lambda: exact_budgets(PAST, FUTURE, alpha, 3)):
        with pytest.raises(BudgetError, match="alpha must be"):
            call()


def test_invalid_steps_and_sizes_raise():
    with pytest.raises(InvalidInputError, match="steps must be a positive integer"):
        exact_budgets(PAST, FUTURE, 1.0, 0)
    with pytest.raises(StochasticError, match=r"3 states.* 2\b"):
        constant_budget(PAST, FIGURE_4, 1.0)
