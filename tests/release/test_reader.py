"""Coarser releases: alone they cost their own budget, together with the finer ones no more than the finest."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from dphmm import MarkovModel, PolicyGraph, Releaser, ReleaseSettings, Session
from dphmm.errors import BudgetError, ConfigurationError
from dphmm.release.reader import CoarseReader, descending, draw_all
from dphmm.release.store import SessionStore
from tests.sizes import fewer

F = np.array([[0], [1], [2], [3]])
FINE, COARSE, COARSEST = 1.0, 0.5, 0.25


def engine(rng=None, **changes):
    model = MarkovModel(np.full((4, 4), 0.25), np.full(4, 0.25))
    policy = PolicyGraph.categorical([0, 0, 1, 1])
    return Releaser(model, F, policy, FINE, rng=rng, **changes)


def law(releaser, epsilon, reach=200):
    """Probabilities of the noise of a budget at whole numbers, ``-reach..reach``."""
    plan = releaser.plan(releaser.prior())
    (mechanism,) = releaser.noise(plan, epsilon).parts
    steps = releaser.query.value([1.0])  # how many steps of the lattice a unit is
    at = np.arange(-reach, reach + 1)[:, None] * steps
    return np.exp(mechanism.log_density(at, np.zeros(1, dtype=np.int64)))


@pytest.mark.parametrize("epsilons", [(COARSE,), (COARSE, COARSEST)])
def test_the_last_of_a_chain_has_the_promise_of_its_own_budget(epsilons):
    releaser = engine(spacing=1)
    total = law(releaser, FINE)
    for epsilon in epsilons:
        total = np.convolve(total, law(releaser, epsilon))
    middle = len(total) // 2  # beyond some forty steps what was cut off shows
    losses = np.abs(np.diff(np.log(total[middle - 40 : middle + 41])))  # neighbours are one apart: an edge
    assert losses.max() <= epsilons[-1] * (1 + 1e-6)
    assert losses.max() >= 0.9 * epsilons[-1]


def test_two_coarser_ones_made_side_by_side_would_add_up():
    """The broken twin: from ``z + n`` and ``z + m`` the loss is above that of the better of the two."""
    releaser = engine(spacing=1)
    fine, coarse = law(releaser, FINE, 30), law(releaser, COARSE, 60)
    both = np.zeros((2, 41, 41))  # joint law of two coarser ones, of two neighbours
    for shift in range(2):
        for k, mass in enumerate(fine):
            z = k - 30 + shift
            column = coarse[60 + np.arange(-20, 21) - z]
            both[shift] += mass * np.outer(column, column)
    side_by_side = np.abs(np.log(both[0] / both[1])).max()
    assert side_by_side > COARSE * 1.2


def test_draws_follow_the_law_of_the_sum():
    """χ² at α = 1e-4 over 3,000 draws, every day 1,200, seed 5; with the coarser noise left out it must fail."""
    from scipy.stats import chisquare

    releaser = engine(rng=5, spacing=1)
    expected = np.convolve(law(releaser, FINE), law(releaser, COARSE))
    middle = len(expected) // 2
    counts, plain = Counter(), Counter()
    n = fewer(3000, 1200)
    for _ in range(n):
        releaser.restart()
        record, coarser = draw_all(releaser, releaser.prepare(), 1, (COARSE,))
        counts[round(coarser[COARSE][0]) - 1] += 1
        plain[round(record.released[0]) - 1] += 1
    cells = range(-6, 7)

    def p_value(found):
        seen = [found[k] for k in cells]
        probabilities = [expected[middle + k] for k in cells]
        return chisquare([*seen, n - sum(seen)], n * np.array([*probabilities, 1 - sum(probabilities)])).pvalue

    assert p_value(counts) > 1e-4
    assert p_value(plain) < 1e-4


def test_the_reader_s_likelihood_is_that_of_the_sum():
    releaser = engine(spacing=1)
    reader = CoarseReader(releaser, (FINE, COARSE))
    found = reader.updated(None, (2.0,), 0, 0).probabilities
    total = np.convolve(law(releaser, FINE), law(releaser, COARSE))
    exact = np.array([total[len(total) // 2 + 2 - x] for (x,) in F])
    assert np.abs(found - exact / exact.sum()).max() < 0.02


def test_sessions_keep_coarser_releases_in_the_same_transaction_and_say_them_again(tmp_path, monkeypatch):
    path = tmp_path / "a.db"
    with Session.open(path, "ann", engine(), coarser=(COARSE, COARSEST)) as session:
        records = [session.release(1, slot) for slot in range(3)]
        number = session.number
    with SessionStore(path, readonly=True) as store:
        kept = [[store.coarser(number, k, epsilon) for epsilon in (COARSE, COARSEST)] for k in range(3)]
        assert all(said is None and len(place) == 1 for row in kept for place, said in row)
        assert store.coarser(number, 0, 0.3) is None
    with Session.open(path, "ann", engine(), coarser=(COARSE, COARSEST)) as session:
        assert [session.release(2, slot) for slot in range(3)] == records
        monkeypatch.setattr(SessionStore, "_set_progress", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            session.release(1, 3)
    with SessionStore(path, readonly=True) as store:
        assert store.coarser(number, 3, COARSE) is None
        assert [[store.coarser(number, k, e) for e in (COARSE, COARSEST)] for k in range(3)] == kept


def test_budgets_of_coarser_releases_are_below_that_of_the_release():
    settings = ReleaseSettings(epsilon=0.5)
    assert descending([0.2, 0.4, 0.2], settings) == (0.4, 0.2)
    for wrong in ([0.5], [1.0], [0.0], [float("nan")]):
        with pytest.raises(BudgetError):
            descending(wrong, settings)
    with pytest.raises(ConfigurationError, match="adds no noise"):
        descending([0.2], ReleaseSettings(epsilon=0.5, mechanism="optimal"))
