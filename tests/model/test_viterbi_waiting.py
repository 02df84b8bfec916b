"""Best ways through long gaps are those of as many steps, one after another, or it is said that they may not be."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from dphmm.model import Observations, path_of_releases
from dphmm.model import viterbi as maxima
from dphmm.model import viterbi as waiting
from dphmm.model.model import MarkovModel
from dphmm.model.transition_operator import LogProduct
from dphmm.model.viterbi import Waits, _longer_ways, waits_of
from tests.forms import forms_of
from tests.sizes import fewer

_STEPS = 130


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


def _walked(scores, logs, steps):
    """The best scores after so many steps, and from where: every way looked at, by squaring."""
    ways, power = np.where(np.eye(len(logs)) > 0, 0.0, -np.inf), logs
    while steps:
        if steps % 2:
            ways = (ways[:, :, np.newaxis] + power).max(axis=1)
        power, steps = (power[:, :, np.newaxis] + power).max(axis=1), steps // 2
    return scores[:, np.newaxis] + ways


@given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(["likely", "unlikely", "missing", "equal"]),
    steps=st.integers(1, _STEPS),
    few=st.booleans(),
)
def test_a_gap_is_as_many_steps(seed, kind, steps, few):
    """Circuits that beat any stay, states without one, and fewer places to wait in than there are states."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 10))
    matrix = _matrix(rng, size, kind)
    scores = np.log(rng.random(size))
    scores[1:][rng.random(size - 1) < 0.3] = -np.inf
    with np.errstate(divide="ignore"):
        ways = _walked(scores, np.log(matrix), steps)
    with pytest.MonkeyPatch.context() as patch:
        if few:
            patch.setattr(waiting, "_CELLS", size * max(1, size // 2))
        waits = Waits(LogProduct(csr_array(csr_array(matrix).T)))
        if (through := waits.over(scores, steps)) is None:
            return
        found, known = through
        np.testing.assert_allclose(found, ways.max(axis=0), rtol=1e-11, atol=1e-11)
        for state in np.flatnonzero(np.isfinite(found) & known):
            source = waits.back(scores, int(state), steps)
            best = ways[:, state].max()
            assert ways[source, state] == pytest.approx(best, rel=1e-11, abs=1e-11)
            assert source == np.argmax(ways[:, state] >= best - 1e-12 * abs(best)), "of equal ones the lowest"


def test_where_stays_are_likely_gaps_need_not_be_long_and_all_ways_are_known():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        waits = Waits(LogProduct(csr_array(csr_array(_matrix(rng, 8, "likely") * 0.3 + 0.7 * np.eye(8)).T)))
        found, known = waits.over(np.zeros(8), 16)
        assert np.isfinite(found).all()
        assert known.all()


def test_a_circuit_that_beats_all_stays_is_walked():
    """Two states that are left for each other with 0.9, and a third one that is not reached from them in short gaps."""
    matrix = np.array([[0.1, 0.9, 0.0], [0.9, 0.0999, 0.0001], [0.0001, 0.0, 0.9999]])
    waits = Waits(LogProduct(csr_array(csr_array(matrix).T)))
    scores = np.log([0.5, 0.4, 0.1])
    for steps in (20, 333, 2001):
        found, known = waits.over(scores, steps)
        with np.errstate(divide="ignore"):
            np.testing.assert_allclose(found, _walked(scores, np.log(matrix), steps).max(axis=0), rtol=1e-11)
        assert known.all() == (steps > 20)


@pytest.mark.parametrize("left_out", ["least", "elsewhere", "until"])
def test_without_any_one_of_its_conditions_it_is_wrong(left_out):
    """Broken twins: gaps too short for the ways, ways elsewhere not walked, places left out too soon."""
    wrong = 0
    for seed in range(fewer(200, 100)):
        rng = np.random.default_rng(seed)
        matrix = _matrix(rng, 6, "missing" if left_out == "elsewhere" else "likely")
        waits = Waits(LogProduct(csr_array(csr_array(matrix).T)))
        made = waits._places
        if not len(made.until):
            continue
        steps = max(made.least, 2)
        if left_out == "least":
            steps, made = 2, replace(made, least=1)
        elif left_out == "until":
            made = replace(made, until=np.append(np.inf, np.full(len(made.until) - 1, -1.0)))
        else:
            made = replace(made, elsewhere=type(made.elsewhere)(waits._entering, np.arange(6)))
        waits.__dict__["_places"] = made
        with np.errstate(divide="ignore"):
            ways = _walked(np.zeros(6), np.log(matrix), steps)
        wrong += not np.allclose(waits.over(np.zeros(6), steps)[0], ways.max(axis=0))
    assert wrong > fewer(5, 3)


def test_the_compiled_loop_is_the_plain_one():
    pytest.importorskip("numba")
    rng = np.random.default_rng(3)
    for size in (3, 9, 40):
        matrix = csr_array(_matrix(rng, size, "likely"))
        lists = matrix.indptr.astype(np.uint32), matrix.indices.astype(np.uint32), np.log(matrix.data)
        rates = np.sort(rng.random(size) - 1)[::-1]
        ways = np.where(rng.random((size, size)) < 0.5, -rng.random((size, size)), -np.inf)
        allowed, fresh = rng.integers(0, size + 1, size), rng.random(size) < 0.6
        made = [(np.empty_like(ways), np.zeros(size, dtype=bool)) for _ in range(3)]
        for function, (longer, now) in zip(forms_of(_longer_ways), made, strict=False):
            with np.errstate(invalid="ignore"):
                function(lists, allowed, rates, fresh, ways, longer, now)
        some = np.arange(size) < allowed[:, np.newaxis]
        for longer, now in made[1:]:
            np.testing.assert_array_equal(now, made[0][1])
            np.testing.assert_array_equal(np.where(some, longer, 0), np.where(some, made[0][0], 0))


def test_the_most_probable_path_is_the_same_whichever_way_gaps_are_taken(monkeypatch):
    rng = np.random.default_rng(5)
    for seed in range(10):
        matrix = _matrix(np.random.default_rng(seed), 12, "likely")
        model = MarkovModel(matrix, np.full(12, 1 / 12))
        gaps = rng.choice([1, 2, 30, 400, 5000], 40)
        rows = np.log(rng.random((40, 12)))
        observed = Observations(rows, gaps)
        ways = path_of_releases(model, observed)
        with monkeypatch.context() as patch:
            patch.setattr(Waits, "over", lambda *_: None)
            walked = path_of_releases(model, observed)
        assert ways.states.tolist() == walked.states.tolist()
        assert ways.log_probability == pytest.approx(walked.log_probability, rel=1e-11)


def test_long_gaps_are_not_walked_and_short_ones_alone_are_no_reason_to_prepare(monkeypatch):
    model = MarkovModel(_matrix(np.random.default_rng(1), 6, "likely"), np.full(6, 1 / 6))
    assert not waits_of(model.steppers[0].ahead).pays(np.full(1000, 5))

    def never(*_):
        raise AssertionError("a gap was walked")

    monkeypatch.setattr(maxima.Maxima, "after", never)
    monkeypatch.setattr(maxima.Maxima, "back", never)
    path_of_releases(model, Observations(np.zeros((4, 6)), [1, 500, 1, 10**6]))


def test_ways_are_made_once_for_a_model_and_go_with_it():
    model = MarkovModel(_matrix(np.random.default_rng(0), 5, "likely"), np.full(5, 0.2))
    kept = waits_of(model.steppers[0].ahead)
    assert waits_of(model.steppers[0].ahead) is kept
    gone = weakref.ref(model.steppers[0].ahead)
    del model, kept
    gc.collect()
    assert gone() is None
