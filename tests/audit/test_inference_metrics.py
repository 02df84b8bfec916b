"""Tests of knowledge and accuracy against explicit sums and values at the bounds."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm import Belief
from dphmm.audit.inference_metrics import (
    compute_accuracy,
    compute_inference_metrics,
    condition_on_measurements,
    predict_without_releases,
)
from dphmm.errors import InvalidInputError, StateError, StochasticError
from dphmm.model import MarkovModel
from dphmm.model.outside_states import OutsideStates
from tests.model.clockwork import build_time_dependent_model

POINTS = np.array([[0.0, 0.0], [3.0, 4.0], [0.0, 8.0], [0.0, 8.0]])


@pytest.mark.parametrize("seed", range(20))
def test_metrics_match_explicit_sums(seed):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(4) * 0.4)
    p[rng.random(4) < 0.2] = 0
    p /= p.sum()
    belief = Belief.from_probabilities(p)
    result = compute_inference_metrics([belief], POINTS, 2)
    positive = [x for x in p.tolist() if x > 0]
    assert result.entropy[0] == pytest.approx(-sum(x * np.log2(x) for x in positive), abs=1e-12)
    mean = sum(x * point for x, point in zip(p, POINTS, strict=True))
    variance = sum(x * ((point - mean) ** 2).sum() for x, point in zip(p, POINTS, strict=True))
    assert result.spread[0] == pytest.approx(np.sqrt(variance), abs=1e-9)
    ranked = sorted(p.tolist(), reverse=True)
    assert (result.top_1_probability[0], result.top_k_probability[0]) == (
        pytest.approx(ranked[0]),
        pytest.approx(sum(ranked[:2])),
    )
    for state in range(4):
        worth = compute_accuracy([belief], POINTS, [state], 2)
        distances = [np.linalg.norm(point - POINTS[state]) for point in POINTS]
        assert worth.expected_error[0] == pytest.approx(sum(p * distances))
        assert worth.estimate_error[0] == pytest.approx(np.linalg.norm(mean - POINTS[state]))
        assert worth.top_1_hits[0] == (state == int(p.argmax()))


def test_top_hits_exclude_impossible_states():
    belief = Belief.from_probabilities(np.array([1.0, 0.0, 0.0, 0.0]))
    assert compute_accuracy([belief], POINTS, [1], 4).top_k_hits.tolist() == [False]
    assert compute_accuracy([belief], POINTS, [0], 4).top_k_hits.tolist() == [True]


@pytest.mark.slow
def test_hit_rate_matches_calibrated_belief():
    """10,000 true states sampled from the belief, seed 0.

    A wrong mean would deviate by more than 5 standard errors.
    """
    p = np.array([0.5, 0.3, 0.15, 0.05])
    truth = np.random.default_rng(0).choice(4, 10_000, p=p)
    beliefs = [Belief.from_probabilities(p)] * len(truth)
    expected, worth = compute_inference_metrics(beliefs[:1], POINTS, 2), compute_accuracy(beliefs, POINTS, truth, 2)
    assert worth.top_1_hits.mean() == pytest.approx(expected.top_1_probability[0], abs=5 * 0.005)
    assert worth.top_k_hits.mean() == pytest.approx(expected.top_k_probability[0], abs=5 * 0.004)
    assert (worth.estimate_error**2).mean() == pytest.approx(expected.spread[0] ** 2, rel=0.05)


def test_no_information_converges_to_stationary_and_handles_periodic_chain():
    rng = np.random.default_rng(1)
    model = MarkovModel(rng.dirichlet(np.ones(5), 5), np.eye(5)[0])
    steps = np.ones(200, dtype=np.int64)
    alone = predict_without_releases(model, steps)
    expected = [model.initial @ np.linalg.matrix_power(model.transition.toarray(), t) for t in range(200)]
    np.testing.assert_allclose([belief.probabilities for belief in alone], expected, rtol=0, atol=1e-14)
    assert alone.indices[-1] == alone.indices[-2] > 10
    result = compute_inference_metrics(alone, np.arange(10.0).reshape(5, 2))
    assert result.entropy[-1] == result.entropy[-2]
    assert result.entropy[-1] == pytest.approx(-(expected[-1] @ np.log2(expected[-1])))
    turning = predict_without_releases(MarkovModel(np.eye(2)[::-1], [0.3, 0.7]), [1, 2, 2, 1, 1])
    assert [round(float(belief.probabilities[0]), 12) for belief in turning] == [0.3, 0.3, 0.3, 0.7, 0.3]


RNG = np.random.default_rng(3)
SLOW = MarkovModel(0.01 * RNG.dirichlet(np.ones(7), 7) + 0.99 * np.eye(7), np.eye(7)[2])
OUTSIDE_STATES = OutsideStates(7, [0, 2, 5], [1.0, 2.0, 1.5], [1.5, 5.0, 3.0], [0.3, 0.6, 0.2])
OUTSIDE = MarkovModel(RNG.dirichlet(np.ones(10), 10), np.eye(7)[2], outside=OUTSIDE_STATES)


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", [SLOW, build_time_dependent_model(1), OUTSIDE], ids=["slow", "time classes", "outside states"]
)
@pytest.mark.parametrize("max_steps", [1, 9])  # timesteps between two releases
def test_no_information_equals_prediction_alone(model, max_steps):
    steps = np.random.default_rng(max_steps).integers(0, max_steps + 1, size=150)
    belief, slot = Belief.initial(model, 5), 5
    wanted = [belief]
    for count in steps[1:].tolist():
        belief, slot = belief.predict(model, count, slot), slot + count
        wanted.append(belief)
    alone = predict_without_releases(model, steps, None, 5)
    probabilities = [[belief.probabilities for belief in beliefs] for beliefs in (alone, wanted, alone[10:])]
    np.testing.assert_allclose(probabilities[0], probabilities[1], rtol=1e-9)
    np.testing.assert_array_equal(probabilities[0][10:], probabilities[2])
    points = np.random.default_rng(0).normal(size=(7, 2))
    result, each = compute_inference_metrics(alone, points), compute_inference_metrics(wanted, points)
    for name in ("entropy", "spread", "error", "top_1_probability", "top_k_probability"):
        np.testing.assert_allclose(getattr(result, name), getattr(each, name), rtol=1e-8, atol=1e-12)


def test_bounds_are_model_alone_and_exact_measurement():
    model = MarkovModel(np.roll(np.eye(4), 1, axis=1), [1.0, 0.0, 0.0, 0.0])
    alone = predict_without_releases(model, [0, 1, 2])
    assert [int(belief.log_mass.argmax()) for belief in alone] == [0, 1, 3]
    spread = [Belief.from_probabilities(np.array([0.1, 0.2, 0.3, 0.4]))] * 2
    exact = condition_on_measurements(POINTS, np.array([1, 2]), spread)
    assert exact[0].probabilities.tolist() == [0, 1, 0, 0]
    assert np.allclose(exact[1].probabilities, [0, 0, 3 / 7, 4 / 7])
    unthinkable = condition_on_measurements(
        POINTS, np.array([2]), [Belief.from_probabilities(np.array([1.0, 0, 0, 0]))]
    )
    assert unthinkable[0].probabilities.tolist() == [0, 0, 0.5, 0.5]
    assert compute_accuracy(exact, POINTS, [1, 2]).expected_error.tolist() == [0, 0]


def test_invalid_arguments_raise():
    belief = Belief.from_probabilities(np.full(4, 0.25))
    with pytest.raises(InvalidInputError, match=r"beliefs must not be empty .*got 0"):
        compute_inference_metrics([], POINTS)
    with pytest.raises(InvalidInputError, match=r"\bk .*\b0\b"):
        compute_inference_metrics([belief], POINTS, 0)
    with pytest.raises(InvalidInputError, match=r"points and beliefs .*got 3 points"):
        compute_inference_metrics([belief], POINTS[:3])
    with pytest.raises(StateError, match=r"true states must have shape \(1,\)"):
        compute_accuracy([belief], POINTS, [0, 1])
    with pytest.raises(StateError, match="0 to 3"):
        compute_accuracy([belief], POINTS, [4])
    with pytest.raises(StochasticError, match="adversary's prior"):
        predict_without_releases(MarkovModel(np.eye(2), [1, 0]), [0], [0.5, 0.6])
