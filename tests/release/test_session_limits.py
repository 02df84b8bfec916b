"""Budget limits and running accounts."""

from __future__ import annotations

from fractions import Fraction
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphmm.errors import BudgetError, BudgetExceededError, InvalidInputError
from dphmm.release.ledger import Account, constrained_cost
from dphmm.release.session import Session
from dphmm.release.session_limits import Limits
from tests.release.engines import make_engine


@pytest.mark.parametrize("name", ["epsilon", "constrained_epsilon", "window_epsilon"])
@pytest.mark.parametrize("value", [0, -1, inf, float("nan")])
def test_non_positive_or_infinite_limit_raises(name, value):
    with pytest.raises(BudgetError, match=name):
        Limits(**{"window_steps": 3 if name == "window_epsilon" else None, name: value})


@pytest.mark.parametrize("steps", [0, -1, 1.5, True])
def test_non_positive_or_fractional_window_steps_raise(steps):
    with pytest.raises(InvalidInputError, match="window_steps"):
        Limits(window_epsilon=1, window_steps=steps)


def test_numbers_of_numpy_are_stored_in_sessions(tmp_path):
    path = tmp_path / "a.db"
    with Session.open(path, "ann", make_engine(), Limits(window_epsilon=2, window_steps=np.int64(3))) as session:
        session.release(0, 1)
    with Session.open(path, "ann", make_engine(), Limits(window_epsilon=2, window_steps=3)) as session:
        assert session.account.epsilon == 0.5


def test_spent_epsilon_of_a_refused_release_is_rounded_up():
    account = Account()
    account.epsilon = Fraction(1.0000001)
    with pytest.raises(BudgetExceededError, match=r"epsilon limit 1\.5 exceeded: 1\.00001 already spent"):
        Limits(epsilon=1.5).check(account, 1, 1.0, 1.0)


@pytest.mark.parametrize("half", [{"window_epsilon": 1.0}, {"window_steps": 3}], ids=repr)
def test_window_without_epsilon_or_steps_raises(half):
    with pytest.raises(InvalidInputError, match="window_epsilon and window_steps must both be set"):
        Limits(**half)


release_lists = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([0.1, 0.3, 0.25, 1.0]), st.sampled_from([0.0, 1.0, 2.5])), max_size=30
)


@given(release_lists, st.integers(1, 6))
def test_account_sums_match_rationals(releases, steps):
    account = Account()
    slot = 0
    seen = []
    for gap, epsilon, factor in releases:
        slot += gap
        seen.append((slot, Fraction(str(epsilon)), Fraction(factor)))
        account.add(slot, epsilon, factor)
    assert account.count == len(releases)
    assert account.epsilon == sum(epsilon for _, epsilon, _ in seen)
    assert account.constrained_epsilon == sum(epsilon * factor for _, epsilon, factor in seen)
    for end in (slot, slot + 2):
        assert account.sum_window_epsilon(end, steps) == sum(
            epsilon for at, epsilon, _ in seen if end - steps < at <= end
        )


def test_unset_limits_never_raise():
    account = Account()
    account.add(0, 1e6, inf)
    Limits().check(account, 0, 1e30, inf)
    assert account.constrained_epsilon == constrained_cost(1.0, inf) == inf


@pytest.mark.parametrize(
    ("limits", "name"),
    [
        (Limits(epsilon=1), "epsilon"),
        (Limits(constrained_epsilon=2), "constrained-DP"),
        (Limits(window_epsilon=1, window_steps=2), "2-step window"),
    ],
)
def test_limits_are_exact_to_last_digit(limits, name):
    account = Account()
    account.add(5, 0.7, 2.0)
    limits.check(account, 6, 0.3, 2.0)
    with pytest.raises(BudgetExceededError, match=f"^{name} limit [0-9.]+ exceeded"):
        limits.check(account, 6, 0.3000000000000001, 2.0)
    if limits.window_steps:
        limits.check(account, 7, 1.0, 2.0)


def test_window_of_one_step_is_valid():
    assert Limits(window_epsilon=1, window_steps=1).window_steps == 1
