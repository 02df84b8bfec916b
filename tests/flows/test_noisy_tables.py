"""The choice of a bound, the levels' shares of a budget, and what numbers may be shown."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from dphmm.arrays import random_source
from dphmm.flows import Areas, FlowSettings
from dphmm.flows.noisy_tables import BOUNDS, Precision, add_noise, choose_bound, level_shares
from dphmm.flows.tables import Table, labels, time_classes
from dphmm.mechanisms.count_noise import CountNoise
from dphmm.space import Grid
from tests.sizes import fewer

AREAS = Areas.from_space(Grid.over((45.0, -30.0, 45.03, -29.96), 1.0), block=2)


def chosen(numbers, epsilon, cells=50, left=0.5, seed=1):
    return choose_bound(CountNoise(Fraction(100), random_source(seed)), "trips", numbers, epsilon, cells, left)


def test_of_many_people_the_bound_is_the_one_of_least_error():
    numbers = np.random.default_rng(2).geometric(0.05, 20_000)
    price = [(np.maximum(numbers - bound, 0).sum() / 50) ** 2 + 2 * (bound / 0.5) ** 2 for bound in BOUNDS]
    found = chosen(numbers, Fraction(1))
    best = BOUNDS[int(np.argmin(price))]
    assert abs(BOUNDS.index(found.most) - BOUNDS.index(best)) <= 1
    kept = np.minimum(numbers, found.most).sum() / numbers.sum()
    assert found.kept == pytest.approx(kept, abs=0.1)


def test_of_few_people_noise_does_not_choose_the_bound():
    """With noise of scale 100 on bins of 30 people it is a usual one: 200 seeds, none of which gives the greatest."""
    numbers = np.full(30, 4)
    found = [chosen(numbers, Fraction(1, 100), seed=seed).most for seed in range(200)]
    assert max(found) < 200
    assert np.median(found) <= 30


def test_cells_get_most_of_the_budget():
    table = Table("flows", FlowSettings("flows").layout(AREAS))
    assert [name for name, _ in table.levels] == ["district", "everything"]
    shares = level_shares(table)
    assert sum(shares) == 1
    assert max(shares) == shares[0] > Fraction(1, 2)
    assert min(shares) > 0


def test_numbers_are_within_what_is_asked_of_all_of_them_at_once():
    """Of 300 tables (every day 100) one in twenty, give or take, shows a count that is off by more than a half."""
    table = Table("flows", FlowSettings("flows", cells_alone=True).layout(AREAS))
    precision = Precision(table, 1, Fraction(1), (Fraction(1),), 0.95)
    true = np.zeros(table.forest.sizes[0], dtype=np.int64)
    true[::7] = 30
    source, wrong = random_source(4), 0
    for _ in range(fewer(300, 100)):
        numbers = add_noise(CountNoise(Fraction(10), source), precision, true).level(0)
        shown = numbers.within(0.5)
        assert shown.sum() > 0
        assert (numbers.within(np.inf) == (numbers.counts > 0)).all()
        wrong += (np.abs(numbers.counts - true)[shown] > 0.5 * numbers.counts[shown]).any()
    rounds = fewer(300, 100)
    assert wrong <= rounds * 0.05 + 4 * np.sqrt(rounds * 0.05)


def test_classes_of_time_cover_the_week_and_have_names():
    for text in ("all", "hours", "weekday-hours", "6,10,16,20", "0"):
        classes = time_classes(text, "Europe/Berlin")
        assert len(labels(classes)) == len(set(labels(classes))) == classes.count
