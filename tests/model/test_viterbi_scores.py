"""Best scores and their sources, in the compiled and NumPy forms of each loop."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from dphmm import compilation
from dphmm.model import viterbi
from dphmm.model.transition_operator import TransitionOperator
from tests.forms import list_forms


def build_predecessor_lists(seed, in_order=True):
    """Build lists of six states' predecessors with integer logarithms, to produce many ties."""
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
def test_ties_in_path_are_broken_by_lowest_state(seed):
    starts, states, logs = build_predecessor_lists(seed)
    scores = np.random.default_rng(seed).integers(-2, 1, (5, 6)).astype(float)
    for form in list_forms(viterbi._trace_path):
        path = np.full(5, seed)
        form((starts, states, logs), scores, path)
        assert path[-1] == seed
        for t in range(4):
            part = slice(starts[path[t + 1]], starts[path[t + 1] + 1])
            score_by_state = {
                int(i): float(scores[t, i] + log) for i, log in zip(states[part], logs[part], strict=True)
            }
            assert path[t] == min(i for i, score in score_by_state.items() if score == max(score_by_state.values()))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_scores_are_maxima_over_predecessors(seed):
    starts, states, logs = build_predecessor_lists(seed)
    dense = np.full((6, 6), -np.inf)  # from, to
    for state in range(6):
        part = slice(starts[state], starts[state + 1])
        dense[states[part], state] = logs[part]
    rows = np.random.default_rng(seed).normal(size=(4, 6))
    wanted = np.zeros((4, 6))
    for t in range(1, 4):
        wanted[t] = (wanted[t - 1][:, None] + dense).max(axis=0) + rows[t]
    for loop, how in (
        (viterbi._compute_sparse_scores, ((starts, states, logs),)),
        (viterbi._compute_dense_scores, (dense, dense.max(axis=1))),
    ):
        for form in list_forms(loop):
            scores = np.zeros((4, 6))
            form(*how, rows, scores)
            np.testing.assert_array_equal(scores, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 5, 40])
def test_pruning_never_changes_scores(size):
    """Scores are far apart and some impossible, with random predecessors removed."""
    rng = np.random.default_rng(size)
    for _ in range(30):
        with np.errstate(divide="ignore"):
            logs = np.log(rng.dirichlet(np.full(size, 0.3), size) * (rng.random((size, size)) < 0.8))
        rows, start = rng.normal(0, 5, (3, size)), rng.normal(0, 5, size)
        start[rng.random(size) < 0.3] = -np.inf
        wanted = np.array([start, start, start])
        for t in (1, 2):
            wanted[t] = (wanted[t - 1][:, np.newaxis] + logs).max(axis=0) + rows[t]
        for form in list_forms(viterbi._compute_dense_scores):
            scores = np.array([start, start, start])
            form(logs, logs.max(axis=1), rows, scores)
            np.testing.assert_array_equal(scores, wanted)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("steps", [1, 4, 1000])
def test_gap_step_forms_agree(seed, steps):
    starts, states, logs = build_predecessor_lists(seed)
    results = []
    for form in list_forms(viterbi._take_gap_steps):
        scores = np.zeros(6)
        origins = np.arange(6)
        sources = np.empty(6, dtype=np.int64)
        done, growth = form((starts, states, logs), steps, scores, origins, sources)
        assert 1 <= done <= steps
        results.append((done, growth, scores.tolist(), origins.tolist(), sources.tolist()))
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize("worth", [0, 1 << 60])
def test_path_does_not_depend_on_storage_order_of_matrix(worth, monkeypatch):
    monkeypatch.setattr(compilation, "_MIN_WORK", worth)
    starts, states, logs = build_predecessor_lists(3, in_order=False)
    stored = csr_array((np.exp(logs), states.astype(np.int32), starts.astype(np.int32)), shape=(6, 6))
    scores = np.random.default_rng(3).integers(-2, 1, (5, 6)).astype(float)
    paths = []
    for matrix in (stored, stored.sorted_indices()):
        path = np.full(5, 2)
        viterbi._Maxima(TransitionOperator(matrix)).trace(scores, path)
        paths.append(path.tolist())
    assert not stored.has_sorted_indices
    assert paths[0] == paths[1]
