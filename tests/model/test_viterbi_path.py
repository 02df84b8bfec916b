"""The most probable path through long gaps by the clock is the one that single steps lead to."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphmm.model import MarkovModel, Observations, path_of_releases
from dphmm.model import viterbi as path
from tests.model.clockwork import FIRST, YEAR, varying
from tests.sizes import few_every_day


def _by_steps(model, rows, gaps):
    """The oracle: the best score, and the states, dense matrices one after another."""
    with np.errstate(divide="ignore"):
        logs = [np.log(one.toarray()) for one in model.transitions]
        scores = np.log(model.starts[model.class_of(FIRST)]) + rows[0]
    slot, sources = FIRST, []
    for row, gap in zip(rows[1:], gaps[1:], strict=True):
        for number in model.time_classes.classes_of(slot + 1 + np.arange(gap)):
            ways = scores[:, np.newaxis] + logs[number]
            sources.append(ways.argmax(axis=0))
            scores = ways.max(axis=0)
        slot, scores = slot + gap, scores + row
    found, at = [int(scores.argmax())], len(sources)
    for gap in gaps[:0:-1]:
        state = found[-1]
        for back in sources[at - gap : at][::-1]:
            state = int(back[state])
        found.append(state)
        at -= gap
    return found[::-1], scores.max()


@pytest.mark.parametrize("by", ["hours", "weekday-hours"])
@pytest.mark.parametrize("seed", few_every_day(range(4), 2))
def test_gaps_by_the_clock_are_as_many_steps(by, seed):
    """Also where clocks are changed on the way."""
    model, rng = varying(seed, by=by, stay=[0.5, 0.9, 0.98, 0.8][seed]), np.random.default_rng(seed)
    gaps = np.array([1, 30, 24 * 7 * 5 + 3, 1, YEAR, 24 * 40])
    rows = rng.normal(0, 6, (len(gaps), 7))
    found = path_of_releases(model, Observations(rows, gaps, FIRST))
    states, score = _by_steps(model, rows, gaps)
    assert found.states.tolist() == states
    assert found.log_probability == pytest.approx(score, rel=1e-11)


def _matrix(rng, size, kind):
    """Rows that sum to one; stays are likely, unlikely, missing here and there, or as good as moves."""
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


def _best_ways(logs, steps):
    """The best ways from each state to each in a number of steps, by squaring: every way looked at."""
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
def test_a_gap_is_as_many_steps(seed, kind, gaps):
    """Circuits that beat any stay, states without one, states that are not entered."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 10))
    matrix = _matrix(rng, size, kind)
    if kind == "circuit":
        matrix = np.roll(np.eye(size), 1, axis=1)
    with np.errstate(divide="ignore"):
        logs, start = np.log(matrix), np.log(rng.dirichlet(np.ones(size)))
    rows = rng.normal(0, 4, (len(gaps) + 1, size))
    best, ways = [start + rows[0]], [_best_ways(logs, gap) for gap in gaps]
    for way, row in zip(ways, rows[1:], strict=True):
        best.append((best[-1][:, np.newaxis] + way).max(axis=0) + row)
    model = MarkovModel(matrix, np.exp(start))
    found = path_of_releases(model, Observations(rows, np.array([1, *gaps])))
    assert found.log_probability == pytest.approx(best[-1].max(), rel=1e-11, abs=1e-9)
    score, states = best[0][found.states[0]], found.states.tolist()
    for one, other, way, row in zip(states, states[1:], ways, rows[1:], strict=False):
        score += way[one, other] + row[other]
    assert score == pytest.approx(best[-1].max(), rel=1e-11, abs=1e-9), "the states are those of the best path"


def test_a_year_is_mostly_not_walked(monkeypatch):
    model, walked, steps = varying(0), [], path._gap_steps
    monkeypatch.setattr(path, "_gap_steps", lambda *given: walked.append(given[1]) or steps(*given))
    path_of_releases(model, Observations(np.zeros((2, 7)), [1, YEAR], FIRST))
    assert sum(walked) < YEAR / 8
