"""Best scores and their sources, in both forms of each loop, against what they are for."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from dphmm import compilation
from dphmm.model import viterbi
from dphmm.model.transition_operator import TransitionOperator
from tests.forms import forms_of


def lists(seed, in_order=True):
    """Lists of the states before each of six, with logarithms among four values, so that many are equal."""
    rng = np.random.default_rng(seed)
    holds = rng.random((6, 6)) < 0.6
    holds[:, 0] |= ~holds.any(axis=1)
    befores = [np.flatnonzero(row) for row in holds]
    if not in_order:
        befores = [rng.permutation(row) for row in befores]
    starts = np.cumsum([0, *map(len, befores)]).astype(np.uint32)
    states = np.concatenate(befores).astype(np.uint32)
    return starts, states, rng.integers(-3, 1, len(states)).astype(float)


@pytest.mark.parametrize("seed", range(5))
def test_each_state_of_a_path_is_the_lowest_of_the_best_ones_before_the_next(seed):
    starts, states, logs = lists(seed)
    scores = np.random.default_rng(seed).integers(-2, 1, (5, 6)).astype(float)
    for form in forms_of(viterbi._gathered_sources):
        form((starts, states, logs), scores, path := np.full(5, seed))
        assert path[-1] == seed
        for t in range(4):
            part = slice(starts[path[t + 1]], starts[path[t + 1] + 1])
            found = {int(i): float(scores[t, i] + log) for i, log in zip(states[part], logs[part], strict=True)}
            assert path[t] == min(i for i, score in found.items() if score == max(found.values()))


@pytest.mark.parametrize("seed", range(3))
def test_scores_are_maxima_over_the_states_before(seed):
    starts, states, logs = lists(seed)
    dense = np.full((6, 6), -np.inf)  # from, to
    for state in range(6):
        part = slice(starts[state], starts[state + 1])
        dense[states[part], state] = logs[part]
    rows = np.random.default_rng(seed).normal(size=(4, 6))
    wanted = np.zeros((4, 6))
    for t in range(1, 4):
        wanted[t] = (wanted[t - 1][:, None] + dense).max(axis=0) + rows[t]
    for loop, how in (
        (viterbi._gathered_scores, ((starts, states, logs),)),
        (viterbi._dense_scores, (dense, dense.max(axis=1))),
    ):
        for form in forms_of(loop):
            form(*how, rows, scores := np.zeros((4, 6)))
            np.testing.assert_array_equal(scores, wanted)


@pytest.mark.parametrize("size", [1, 5, 40])
def test_states_that_are_passed_over_are_no_predecessors(size):
    """Scores far apart, some impossible: with predecessors left out at random nothing else may come out."""
    rng = np.random.default_rng(size)
    for _ in range(30):
        with np.errstate(divide="ignore"):
            logs = np.log(rng.dirichlet(np.full(size, 0.3), size) * (rng.random((size, size)) < 0.8))
        rows, start = rng.normal(0, 5, (3, size)), rng.normal(0, 5, size)
        start[rng.random(size) < 0.3] = -np.inf
        wanted = np.array([start, start, start])
        for t in (1, 2):
            wanted[t] = (wanted[t - 1][:, np.newaxis] + logs).max(axis=0) + rows[t]
        for form in forms_of(viterbi._dense_scores):
            scores = np.array([start, start, start])
            form(logs, logs.max(axis=1), rows, scores)
            np.testing.assert_array_equal(scores, wanted)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("steps", [1, 4, 1000])
def test_steps_of_a_gap_end_once_all_scores_grow_alike(seed, steps):
    starts, states, logs = lists(seed)
    found = []
    for form in forms_of(viterbi._gap_steps):
        scores, origins, sources = np.zeros(6), np.arange(6), np.empty(6, dtype=np.int64)
        done, growth = form((starts, states, logs), steps, scores, origins, sources)
        assert 1 <= done <= steps
        found.append((done, growth, scores.tolist(), origins.tolist(), sources.tolist()))
    assert all(one == found[0] for one in found)


@pytest.mark.parametrize("worth", [0, 1 << 60])
def test_a_path_is_the_same_whatever_the_order_of_a_matrix_is_stored_in(worth, monkeypatch):
    monkeypatch.setattr(compilation, "_WORTH", worth)
    starts, states, logs = lists(3, in_order=False)
    stored = csr_array((np.exp(logs), states.astype(np.int32), starts.astype(np.int32)), shape=(6, 6))
    scores = np.random.default_rng(3).integers(-2, 1, (5, 6)).astype(float)
    found = []
    for matrix in (stored, stored.sorted_indices()):
        viterbi._Maxima(TransitionOperator(matrix)).trace(scores, path := np.full(5, 2))
        found.append(path.tolist())
    assert not stored.has_sorted_indices
    assert found[0] == found[1]
