"""Most probable paths through long gaps match single steps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphmm.model import MarkovModel, Observations, find_release_path
from dphmm.model import viterbi as path
from tests.model.clockwork import FIRST, YEAR, build_time_dependent_model
from tests.sizes import mark_rest_slow


def _trace_by_single_steps(model, rows, gaps):
    """Return the best path and score by dense matrices, one step at a time."""
    with np.errstate(divide="ignore"):
        logs = [np.log(matrix.toarray()) for matrix in model.transitions]
        scores = np.log(model.initial_by_class[model.get_class(FIRST)]) + rows[0]
    slot, sources = FIRST, []
    for row, gap in zip(rows[1:], gaps[1:], strict=True):
        for number in model.time_classes.get_classes(slot + 1 + np.arange(gap)):
            ways = scores[:, np.newaxis] + logs[number]
            sources.append(ways.argmax(axis=0))
            scores = ways.max(axis=0)
        slot, scores = slot + gap, scores + row
    states, at = [int(scores.argmax())], len(sources)
    for gap in gaps[:0:-1]:
        state = states[-1]
        for back in sources[at - gap : at][::-1]:
            state = int(back[state])
        states.append(state)
        at -= gap
    return states[::-1], scores.max()


@pytest.mark.parametrize("by", ["hour", "weekday-hour"])
@pytest.mark.parametrize("seed", mark_rest_slow(range(4), 2))
def test_time_dependent_gaps_match_single_steps(by, seed):
    """Clock changes during the gaps are included."""
    model, rng = build_time_dependent_model(seed, by=by, stay=[0.5, 0.9, 0.98, 0.8][seed]), np.random.default_rng(seed)
    gaps = np.array([1, 30, 24 * 7 * 5 + 3, 1, YEAR, 24 * 40])
    rows = rng.normal(0, 6, (len(gaps), 7))
    path_result = find_release_path(model, Observations(rows, gaps, FIRST))
    states, score = _trace_by_single_steps(model, rows, gaps)
    assert path_result.states.tolist() == states
    assert path_result.log_probability == pytest.approx(score, rel=1e-11)


def _sample_matrix(rng, size, kind):
    """Sample rows with stays that are likely, unlikely, sometimes missing, or equal to moves."""
    weights = rng.exponential(size=(size, size)) ** rng.choice([1, 3])
    weights *= rng.random((size, size)) < rng.choice([0.3, 1])
    on = np.arange(size)
    if kind != "unlikely":
        weights[on, on] += rng.random(size) * 10
    if kind == "missing":
        weights[on, on] *= rng.random(size) < 0.7
    if kind == "equal":
        weights = (weights > 0).astype(float)
    weights[weights.sum(axis=1) == 0, 0] = 1.0
    return weights / weights.sum(axis=1, keepdims=True)


def _compute_scores_by_squaring(logs, steps):
    """Return the best score between any two states in a number of steps."""
    ways, power = np.where(np.eye(len(logs)) > 0, 0.0, -np.inf), logs
    while steps:
        if steps % 2:
            ways = (ways[:, :, np.newaxis] + power).max(axis=1)
        power, steps = (power[:, :, np.newaxis] + power).max(axis=1), steps // 2
    return ways


@given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(["likely", "unlikely", "missing", "equal", "circuit"]),
    gaps=st.lists(st.sampled_from([0, 1, 2, 7, 60, 130, 1441]), min_size=1, max_size=4),
)
def test_gap_matches_single_steps(seed, kind, gaps):
    """Include circuits that beat any stay, states without a stay and unreachable states."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 10))
    matrix = _sample_matrix(rng, size, kind)
    if kind == "circuit":
        matrix = np.roll(np.eye(size), 1, axis=1)
    with np.errstate(divide="ignore"):
        logs, start = np.log(matrix), np.log(rng.dirichlet(np.ones(size)))
    rows = rng.normal(0, 4, (len(gaps) + 1, size))
    best, ways = [start + rows[0]], [_compute_scores_by_squaring(logs, gap) for gap in gaps]
    for way, row in zip(ways, rows[1:], strict=True):
        best.append((best[-1][:, np.newaxis] + way).max(axis=0) + row)
    model = MarkovModel(matrix, np.exp(start))
    path_result = find_release_path(model, Observations(rows, np.array([1, *gaps])))
    assert path_result.log_probability == pytest.approx(best[-1].max(), rel=1e-11, abs=1e-9)
    score, states = best[0][path_result.states[0]], path_result.states.tolist()
    for state, next_state, way, row in zip(states, states[1:], ways, rows[1:], strict=False):
        score += way[state, next_state] + row[next_state]
    assert score == pytest.approx(best[-1].max(), rel=1e-11, abs=1e-9), "the states form a best path"


def test_gap_of_a_year_is_mostly_not_stepped_through(monkeypatch):
    model = build_time_dependent_model(0)
    walk = []
    steps = path._take_gap_steps
    monkeypatch.setattr(path, "_take_gap_steps", lambda *arguments: walk.append(arguments[1]) or steps(*arguments))
    find_release_path(model, Observations(np.zeros((2, 7)), [1, YEAR], FIRST))
    assert sum(walk) < YEAR / 8
