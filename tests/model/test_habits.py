"""Informed adversaries: pulls towards known places, by enumeration, and home and work."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.sparse import csr_array

from dphmm import MarkovModel
from dphmm.errors import InvalidInputError, StateError
from dphmm.model import TimeClasses
from dphmm.model.habits import find_usual_state, with_return_bias
from dphmm.space import Grid

GRID = Grid.over((45.0, 0.0, 45.008, 0.011), 0.5)
SIZE = GRID.size
HOUR = 3600.0


def build_model(seed: int = 1) -> MarkovModel:
    moves = np.random.default_rng(seed).dirichlet(np.full(SIZE, 0.7), SIZE)
    return MarkovModel(moves, np.full(SIZE, 1 / SIZE), states=GRID, step_seconds=HOUR)


def compute_arrival_probabilities(moves: np.ndarray, place: int, goes_on: float, steps: int = 400) -> np.ndarray:
    """Compute the probability of reaching a place before a geometric time, step by step."""
    probabilities, left = np.zeros(SIZE), np.eye(SIZE)
    probabilities[place] = 1.0
    left[place] = 0.0
    for step in range(1, steps):
        left = left @ moves
        probabilities += goes_on**step * left[:, place] * (np.arange(SIZE) != place)
        left[:, place] = 0.0
    return probabilities


def test_pull_is_model_conditioned_on_arrival_in_time():
    base, hours = build_model(), 6.0
    moves = base.transition.toarray()
    towards = compute_arrival_probabilities(moves, 2, np.exp(-1 / hours))
    wanted = moves * towards
    wanted /= wanted.sum(axis=1, keepdims=True)
    pulled = with_return_bias(base, [2], hours)
    np.testing.assert_allclose(pulled.transition.toarray(), wanted, atol=1e-9)
    np.testing.assert_allclose(pulled.initial, towards / towards.sum(), atol=1e-9)
    rest, sooner = (np.linalg.matrix_power(matrix, 4000)[0, 2] for matrix in (moves, pulled.transition.toarray()))
    assert sooner > rest
    away = pulled.transition.toarray()[2]
    assert not np.allclose(away, moves[2]), "the pull changes the row"


def test_pull_keeps_structure_and_rows_without_arrival():
    moves = np.array([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.2, 0.3, 0.5]])
    line = MarkovModel(moves, [0.2, 0.3, 0.5], states=Grid.over((45.0, 0.0, 45.001, 0.0189), 0.5), step_seconds=HOUR)
    pulled = with_return_bias(line, [2])
    assert (pulled.transition.toarray() > 0).tolist() == (moves > 0).tolist()
    np.testing.assert_allclose(pulled.transition.toarray()[1], [0, 1, 0])
    assert pulled.initial[2] > 0.99


def test_pull_of_time_dependent_model_uses_mean_matrix():
    classes = TimeClasses(tuple([0] * 84 + [1] * 84), HOUR)
    parts = [build_model(seed).transition for seed in (1, 2)]
    both = MarkovModel(parts, np.full((2, SIZE), 1 / SIZE), GRID, HOUR, classes)
    towards = compute_arrival_probabilities(sum(matrix.toarray() for matrix in parts) / 2, 1, np.exp(-1 / 12))
    for matrix, pulled_matrix in zip(parts, with_return_bias(both, [1]).transitions, strict=True):
        wanted = matrix.toarray() * towards
        np.testing.assert_allclose(pulled_matrix.toarray(), wanted / wanted.sum(axis=1, keepdims=True), atol=1e-9)


def test_home_is_usual_night_state_and_work_usual_weekday_state():
    start = int(np.datetime64("2024-03-04T00", "h").astype(int))  # a Monday, at longitude 0
    slots = start + np.arange(14 * 24)
    hours, days = slots % 24, np.arange(14 * 24) // 24
    states = np.where((hours >= 9) & (hours < 17), np.where(days % 7 < 5, 3, 1), 0)
    states[(hours < 6) & (days < 10)] = 2
    assert find_usual_state(build_model(), slots, states, "home") == 2
    assert find_usual_state(build_model(), slots, states, "work") == 3
    evenings = hours >= 20
    assert find_usual_state(build_model(), slots[evenings], states[evenings], "home") == 0, (
        "without nights home falls back to all hours"
    )


@pytest.mark.parametrize(
    ("places", "hours", "error"), [([], 12, InvalidInputError), ([SIZE], 12, StateError), ([0], 0.0, InvalidInputError)]
)
def test_invalid_pull_raises(places, hours, error):
    with pytest.raises(error):
        with_return_bias(build_model(), np.array(places, dtype=int), hours)


def test_pull_matches_enumeration_of_paths():
    """The weight of a path is the ratio of the arrival probabilities at its end and its start."""
    base = build_model(3)
    moves, goes_on = base.transition.toarray(), np.exp(-1 / 12)
    towards = compute_arrival_probabilities(moves, 0, goes_on, 2000)
    pulled_matrix = with_return_bias(base, [0]).transition.toarray()
    for path in itertools.product(range(1, SIZE), repeat=3):  # away from the place each row has the same divisor
        plain = np.prod([moves[a, b] for a, b in itertools.pairwise(path)])
        pulled = np.prod([pulled_matrix[a, b] for a, b in itertools.pairwise(path)])
        assert pulled == pytest.approx(plain * goes_on**2 * towards[path[-1]] / towards[path[0]], rel=1e-6)
    assert csr_array(pulled_matrix).nnz == csr_array(moves).nnz
