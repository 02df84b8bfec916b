"""The most probable path through long gaps by the clock is the one that single steps lead to."""

from __future__ import annotations

import numpy as np
import pytest

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


@pytest.mark.parametrize("stay", [0.1, 0.9])
def test_what_is_kept_of_a_gap_changes_nothing(stay, monkeypatch):
    """Of one matrix: what was walked over is walked back, or walked once more; releases of one moment among them."""
    rng, size, gaps = np.random.default_rng(1), 9, np.array([1, 3, 0, 40, 1, 90, 12])
    matrix = rng.random((size, size)) ** 3 + stay * size * np.eye(size)
    matrix /= matrix.sum(axis=1, keepdims=True)
    model, rows = MarkovModel(matrix, np.full(size, 1 / size)), rng.normal(0, 4, (len(gaps), size))
    found = path_of_releases(model, Observations(rows, gaps))
    best = np.log(model.initial) + rows[0]
    for row, gap in zip(rows[1:], gaps[1:], strict=True):
        for _ in range(gap):
            best = (best[:, np.newaxis] + np.log(matrix)).max(axis=0)
        best = best + row
    assert found.log_probability == pytest.approx(best.max(), rel=1e-12)
    for room in (0, 4 * size):
        monkeypatch.setattr(path, "_KEPT", room)
        again = path_of_releases(model, Observations(rows, gaps))
        assert again.states.tolist() == found.states.tolist()
        assert again.log_probability == found.log_probability


def test_a_year_is_mostly_not_walked(monkeypatch):
    model, walked, after = varying(0), [], path.Maxima.after
    monkeypatch.setattr(path.Maxima, "after", lambda *given: walked.append(given[2]) or after(*given))
    path_of_releases(model, Observations(np.zeros((2, 7)), [1, YEAR], FIRST))
    assert sum(walked) < YEAR / 8
