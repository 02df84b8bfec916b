"""What somebody thinks who knows a person's places: a pull, by paths gone through one by one, and home and work."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.sparse import csr_array

from dphmm import MarkovModel
from dphmm.errors import InvalidInputError, StateError
from dphmm.model import TimeClasses
from dphmm.model.habits import usual_state, with_pull
from dphmm.space import Grid

GRID = Grid.over((45.0, 0.0, 45.008, 0.011), 0.5)
SIZE, HOUR = GRID.size, 3600.0


def model(seed: int = 1) -> MarkovModel:
    moves = np.random.default_rng(seed).dirichlet(np.full(SIZE, 0.7), SIZE)
    return MarkovModel(moves, np.full(SIZE, 1 / SIZE), states=GRID, step_seconds=HOUR)


def chance(moves: np.ndarray, place: int, goes_on: float, steps: int = 400) -> np.ndarray:
    """How probable it is to come to a place before a time that ends in each step alike, by going on step by step."""
    found, left = np.zeros(SIZE), np.eye(SIZE)
    found[place] = 1.0
    left[place] = 0.0
    for step in range(1, steps):
        left = left @ moves
        found += goes_on**step * left[:, place] * (np.arange(SIZE) != place)
        left[:, place] = 0.0
    return found


def test_a_pull_is_the_model_under_the_condition_that_one_comes_there_in_time():
    base, hours = model(), 6.0
    moves = base.transition.toarray()
    towards = chance(moves, 2, np.exp(-1 / hours))
    wanted = moves * towards
    wanted /= wanted.sum(axis=1, keepdims=True)
    found = with_pull(base, [2], hours)
    np.testing.assert_allclose(found.transition.toarray(), wanted, atol=1e-9)
    np.testing.assert_allclose(found.initial, towards / towards.sum(), atol=1e-9)
    rest, sooner = (np.linalg.matrix_power(one, 4000)[0, 2] for one in (moves, found.transition.toarray()))
    assert sooner > rest
    away = found.transition.toarray()[2]
    assert not np.allclose(away, moves[2]), "the broken twin, without a pull"


def test_a_pull_makes_no_move_possible_and_keeps_those_that_lead_nowhere_near():
    moves = np.array([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.2, 0.3, 0.5]])
    line = MarkovModel(moves, [0.2, 0.3, 0.5], states=Grid.over((45.0, 0.0, 45.001, 0.0189), 0.5), step_seconds=HOUR)
    found = with_pull(line, [2])
    assert (found.transition.toarray() > 0).tolist() == (moves > 0).tolist()
    np.testing.assert_allclose(found.transition.toarray()[1], [0, 1, 0])
    assert found.initial[2] > 0.99


def test_a_pull_of_a_model_by_time_changes_each_matrix_by_the_mean_of_all():
    classes = TimeClasses(tuple([0] * 84 + [1] * 84), HOUR)
    parts = [model(seed).transition for seed in (1, 2)]
    both = MarkovModel(parts, np.full((2, SIZE), 1 / SIZE), GRID, HOUR, classes)
    towards = chance(sum(one.toarray() for one in parts) / 2, 1, np.exp(-1 / 12))
    for one, found in zip(parts, with_pull(both, [1]).transitions, strict=True):
        wanted = one.toarray() * towards
        np.testing.assert_allclose(found.toarray(), wanted / wanted.sum(axis=1, keepdims=True), atol=1e-9)


def test_home_is_where_nights_are_and_work_where_weekdays_are():
    start = int(np.datetime64("2024-03-04T00", "h").astype(int))  # a Monday, at longitude 0
    slots = start + np.arange(14 * 24)
    hours, days = slots % 24, np.arange(14 * 24) // 24
    states = np.where((hours >= 9) & (hours < 17), np.where(days % 7 < 5, 3, 1), 0)
    states[(hours < 6) & (days < 10)] = 2
    assert usual_state(model(), slots, states, "home") == 2
    assert usual_state(model(), slots, states, "work") == 3
    evenings = hours >= 20
    assert usual_state(model(), slots[evenings], states[evenings], "home") == 0, "no night is known"


@pytest.mark.parametrize(
    ("places", "hours", "error"), [([], 12, InvalidInputError), ([SIZE], 12, StateError), ([0], 0.0, InvalidInputError)]
)
def test_a_pull_that_is_none_is_refused(places, hours, error):
    with pytest.raises(error):
        with_pull(model(), np.array(places, dtype=int), hours)


def test_the_mean_matrix_of_a_pull_follows_all_paths_of_four_steps():
    """The law of four steps is that of all paths, each weighed by the chances at its end over that at its start."""
    base = model(3)
    moves, goes_on = base.transition.toarray(), np.exp(-1 / 12)
    towards = chance(moves, 0, goes_on, 2000)
    found = with_pull(base, [0]).transition.toarray()
    for path in itertools.product(range(1, SIZE), repeat=3):  # away from the place each row is divided by the same
        plain = np.prod([moves[a, b] for a, b in itertools.pairwise(path)])
        pulled = np.prod([found[a, b] for a, b in itertools.pairwise(path)])
        assert pulled == pytest.approx(plain * goes_on**2 * towards[path[-1]] / towards[path[0]], rel=1e-6)
    assert csr_array(found).nnz == csr_array(moves).nnz
