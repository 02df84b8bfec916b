"""The loops that numba compiles, as they stand in Python, against what they are for."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from dphmm.markov import kernels, maxima
from dphmm.markov.flow import Flow


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


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_each_state_of_a_path_is_the_lowest_of_the_best_ones_before_the_next(seed, in_order):
    starts, states, logs = lists(seed, in_order)
    scores = np.random.default_rng(seed).integers(-2, 1, (5, 6)).astype(float)
    path = np.full(5, seed)
    kernels.gathered_sources((starts, states, logs), scores, path)
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
    scores = np.zeros((2, 4, 6))
    kernels.gathered_scores((starts, states, logs), rows, scores[0])
    kernels.dense_scores(dense, maxima.tops_of(dense), rows, scores[1])
    np.testing.assert_array_equal(scores, np.stack([wanted, wanted]))


@pytest.mark.parametrize("sharp", [0.0, 0.3, 3.0])  # all states before are looked at, some, or few
@pytest.mark.parametrize("holes", [0.0, 0.6])
def test_states_before_that_can_not_be_best_are_passed_over_and_none_else(sharp, holes, monkeypatch):
    monkeypatch.setattr(kernels, "TOGETHER", 8)
    monkeypatch.setattr(kernels, "UNASKED", 2)
    rng = np.random.default_rng(4)
    logs = rng.integers(-6, 0, (30, 30)).astype(float)
    logs[rng.random((30, 30)) < holes] = -np.inf
    logs[:, 11:24] = -np.inf if holes else -5.0
    rows = sharp * rng.integers(-9, 9, (8, 30))
    rows[5, :6] = -np.inf
    wanted = np.zeros((8, 30))
    for t in range(1, 8):
        wanted[t] = (wanted[t - 1][:, None] + logs).max(axis=0) + rows[t]
    for loop, whole in ((kernels.dense_scores, 0), (maxima._dense_scores, 0), (maxima._dense_scores, 30)):
        monkeypatch.setattr(maxima, "_WHOLE", whole)
        loop(logs, maxima.tops_of(logs), rows, found := np.zeros((8, 30)))
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("numba", ["compiled", "numpy"])
def test_a_path_is_the_same_whatever_the_order_of_a_matrix_is_stored_in(numba, monkeypatch):
    if numba == "compiled":
        pytest.importorskip("numba")
        monkeypatch.setattr(maxima, "_COMPILE_FROM", 0)
    starts, states, logs = lists(3, in_order=False)
    stored = csr_array((np.exp(logs), states.astype(np.int32), starts.astype(np.int32)), shape=(6, 6))
    scores = np.random.default_rng(3).integers(-2, 1, (5, 6)).astype(float)
    found = []
    for matrix in (stored, stored.sorted_indices()):
        maxima.Maxima(Flow(matrix), 5).trace(scores, path := np.full(5, 2))
        found.append(path.tolist())
    assert not stored.has_sorted_indices
    assert found[0] == found[1]


@pytest.mark.parametrize("seed", range(3))
def test_pairs_are_sums_over_times(seed):
    starts, states, logs = lists(seed)
    rng = np.random.default_rng(seed)
    ones, others, scales = rng.random((4, 6)), rng.random((4, 6)), rng.random(4)
    ones[rng.random((4, 6)) < 0.3] = 0.0
    out = np.ones(len(states))
    kernels.gathered_pairs((starts, states, logs), ones, others, scales, out)
    ends = np.repeat(np.arange(6), np.diff(starts))
    np.testing.assert_allclose(out, 1 + np.einsum("t,te,te->e", scales, ones[:, ends], others[:, states]), rtol=1e-14)
