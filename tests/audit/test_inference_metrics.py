"""Knowledge and accuracy against sums written out, and against what they must be at the bounds."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm import Belief
from dphmm.audit.inference import accuracy, knowledge, no_information, no_noise
from dphmm.errors import InvalidInputError, StateError, StochasticError
from dphmm.model import MarkovModel
from dphmm.model.away import Away
from tests.model.clockwork import varying

POINTS = np.array([[0.0, 0.0], [3.0, 4.0], [0.0, 8.0], [0.0, 8.0]])


@pytest.mark.parametrize("seed", range(20))
def test_numbers_are_the_sums_that_they_stand_for(seed):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(4) * 0.4)
    p[rng.random(4) < 0.2] = 0
    p /= p.sum()
    belief = Belief.of(p)
    told = knowledge([belief], POINTS, 2)
    positive = [x for x in p.tolist() if x > 0]
    assert told.entropy[0] == pytest.approx(-sum(x * np.log2(x) for x in positive), abs=1e-12)
    mean = sum(x * point for x, point in zip(p, POINTS, strict=True))
    variance = sum(x * ((point - mean) ** 2).sum() for x, point in zip(p, POINTS, strict=True))
    assert told.spread[0] == pytest.approx(np.sqrt(variance), abs=1e-9)
    ranked = sorted(p.tolist(), reverse=True)
    assert (told.best[0], told.top[0]) == (pytest.approx(ranked[0]), pytest.approx(sum(ranked[:2])))
    for state in range(4):
        worth = accuracy([belief], POINTS, [state], 2)
        distances = [np.linalg.norm(point - POINTS[state]) for point in POINTS]
        assert worth.expected_error[0] == pytest.approx(sum(p * distances))
        assert worth.estimate_error[0] == pytest.approx(np.linalg.norm(mean - POINTS[state]))
        assert worth.best_hits[0] == (state == int(p.argmax()))


def test_top_hits_leave_impossible_states_out():
    belief = Belief.of(np.array([1.0, 0.0, 0.0, 0.0]))
    assert accuracy([belief], POINTS, [1], 4).top_hits.tolist() == [False]
    assert accuracy([belief], POINTS, [0], 4).top_hits.tolist() == [True]


def test_best_guesses_succeed_as_often_as_a_true_belief_says():
    """10 000 truths drawn from the belief, seed 0: a wrong mean would be off by more than 5 standard errors."""
    p = np.array([0.5, 0.3, 0.15, 0.05])
    truth = np.random.default_rng(0).choice(4, 10_000, p=p)
    beliefs = [Belief.of(p)] * len(truth)
    told, worth = knowledge(beliefs[:1], POINTS, 2), accuracy(beliefs, POINTS, truth, 2)
    assert worth.best_hits.mean() == pytest.approx(told.best[0], abs=5 * 0.005)
    assert worth.top_hits.mean() == pytest.approx(told.top[0], abs=5 * 0.004)
    assert (worth.estimate_error**2).mean() == pytest.approx(told.spread[0] ** 2, rel=0.05)


def test_who_sees_nothing_comes_to_rest_where_the_chain_does_and_not_where_it_turns_round():
    rng = np.random.default_rng(1)
    model = MarkovModel(rng.dirichlet(np.ones(5), 5), np.eye(5)[0])
    steps = np.ones(200, dtype=np.int64)
    alone = no_information(model, steps)
    expected = [model.initial @ np.linalg.matrix_power(model.transition.toarray(), t) for t in range(200)]
    np.testing.assert_allclose([belief.probabilities for belief in alone], expected, rtol=0, atol=1e-14)
    assert alone.which[-1] == alone.which[-2] > 10
    known = knowledge(alone, np.arange(10.0).reshape(5, 2))
    assert known.entropy[-1] == known.entropy[-2]
    assert known.entropy[-1] == pytest.approx(-(expected[-1] @ np.log2(expected[-1])))
    turning = no_information(MarkovModel(np.eye(2)[::-1], [0.3, 0.7]), [1, 2, 2, 1, 1])
    assert [round(float(belief.probabilities[0]), 12) for belief in turning] == [0.3, 0.3, 0.3, 0.7, 0.3]


RNG = np.random.default_rng(3)
SLOW = MarkovModel(0.01 * RNG.dirichlet(np.ones(7), 7) + 0.99 * np.eye(7), np.eye(7)[2])
TWINS = Away(7, [0, 2, 5], [1.0, 2.0, 1.5], [1.5, 5.0, 3.0], [0.3, 0.6, 0.2])
OUTSIDE = MarkovModel(RNG.dirichlet(np.ones(10), 10), np.eye(7)[2], away=TWINS)


@pytest.mark.parametrize("model", [SLOW, varying(1), OUTSIDE])
@pytest.mark.parametrize("most", [1, 9])  # steps between two times
def test_who_sees_nothing_goes_on_by_prediction_alone(model, most):
    steps = np.random.default_rng(most).integers(0, most + 1, size=150)
    belief, slot = Belief.first(model, 5), 5
    wanted = [belief]
    for count in steps[1:].tolist():
        belief, slot = belief.predict(model, count, slot), slot + count
        wanted.append(belief)
    alone = no_information(model, steps, None, 5)
    probabilities = [[one.probabilities for one in beliefs] for beliefs in (alone, wanted, alone[10:])]
    np.testing.assert_allclose(probabilities[0], probabilities[1], rtol=1e-9)
    np.testing.assert_array_equal(probabilities[0][10:], probabilities[2])
    points = np.random.default_rng(0).normal(size=(7, 2))
    known, each = knowledge(alone, points), knowledge(wanted, points)
    for name in ("entropy", "spread", "error", "best", "top"):
        np.testing.assert_allclose(getattr(known, name), getattr(each, name), rtol=1e-8, atol=1e-12)


def test_bounds_are_the_model_alone_and_the_measurement_itself():
    model = MarkovModel(np.roll(np.eye(4), 1, axis=1), [1.0, 0.0, 0.0, 0.0])
    alone = no_information(model, [0, 1, 2])
    assert [int(belief.log_mass.argmax()) for belief in alone] == [0, 1, 3]
    spread = [Belief.of(np.array([0.1, 0.2, 0.3, 0.4]))] * 2
    told = no_noise(POINTS, np.array([1, 2]), spread)
    assert told[0].probabilities.tolist() == [0, 1, 0, 0]
    assert np.allclose(told[1].probabilities, [0, 0, 3 / 7, 4 / 7])
    unthinkable = no_noise(POINTS, np.array([2]), [Belief.of(np.array([1.0, 0, 0, 0]))])
    assert unthinkable[0].probabilities.tolist() == [0, 0, 0.5, 0.5]
    assert accuracy(told, POINTS, [1, 2]).expected_error.tolist() == [0, 0]


def test_invalid_arguments_are_refused():
    belief = Belief.of(np.full(4, 0.25))
    with pytest.raises(InvalidInputError, match="0 beliefs"):
        knowledge([], POINTS)
    with pytest.raises(InvalidInputError, match="k is 0"):
        knowledge([belief], POINTS, 0)
    with pytest.raises(InvalidInputError, match="3 points"):
        knowledge([belief], POINTS[:3])
    with pytest.raises(StateError, match="1 beliefs"):
        accuracy([belief], POINTS, [0, 1])
    with pytest.raises(StateError, match="0 to 3"):
        accuracy([belief], POINTS, [4])
    with pytest.raises(StochasticError, match="adversary's prior"):
        no_information(MarkovModel(np.eye(2), [1, 0]), [0], [0.5, 0.6])
