"""Running sums cover all releases, and long accounts need no more memory than a window."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from dphmm.release.ledger import Account


@pytest.mark.parametrize("longest", [None, 50])
def test_window_sums_match_releases_within_window(longest):
    rng = np.random.default_rng(5)
    account = Account(longest)
    entered = []
    slot = 1000
    for _ in range(600):
        slot += int(rng.choice([0, 1, 1, 3, 200], p=[0.1, 0.4, 0.3, 0.19, 0.01]))
        epsilon = float(rng.choice([0.0, 0.1, 0.25, 1.0]))
        account.add(slot, epsilon, 2.0)
        entered.append((slot, Fraction(repr(epsilon))))
        now = slot + int(rng.integers(0, 3))
        for steps in (1, 7, 50):
            within = [(when, spent) for when, spent in entered if now - steps < when]
            assert account.sum_window_epsilon(now, steps) == sum(spent for _, spent in within)
            assert account.list_recent_releases(now, steps) == [(when, spent) for when, spent in within if spent]
        assert account.slot == slot
    assert account.count == len(entered)
    assert account.epsilon == sum(spent for _, spent in entered) == account.constrained_epsilon / 2
    assert len(account._slots) == (600 if longest is None else pytest.approx(100, abs=100))


@pytest.mark.slow
def test_account_memory_is_bounded_by_window():
    account = Account(288)
    for slot in range(50_000):
        account.add(slot, 0.5, 1.0)
    assert len(account._slots) <= 2 * 288
    assert account.epsilon == 25_000
    assert account.sum_window_epsilon(49_999, 288) == 144
