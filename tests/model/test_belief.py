"""Beliefs, against textbook Bayes and high-precision arithmetic. The support is exact."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphmm import Belief, MarkovModel
from dphmm.errors import InvalidInputError, StochasticError


def sample_chain(seed: int, size: int = 7):
    rng = np.random.default_rng(seed)
    matrix = rng.random((size, size)) * (rng.random((size, size)) < 0.5)
    matrix[np.arange(size), rng.integers(0, size, size)] += 0.1
    initial = rng.random(size) * (rng.random(size) < 0.7)
    initial[0] += 0.1
    return MarkovModel(matrix / matrix.sum(axis=1, keepdims=True), initial / initial.sum()), rng


@given(st.integers(0, 10**6))
def test_filter_matches_textbook_bayes(seed):
    model, rng = sample_chain(seed)
    belief, plain = Belief.from_probabilities(model.initial), model.initial
    for _ in range(4):
        likelihood = rng.random(model.size)
        plain = plain @ model.transition.toarray()
        plain = plain * likelihood / (plain * likelihood).sum()
        belief = belief.predict(model).update(np.log(likelihood))
        np.testing.assert_allclose(belief.probabilities, plain, rtol=1e-10)
        np.testing.assert_array_equal(belief.support, plain > 0)


@given(st.integers(0, 10**6))
def test_tiny_probabilities_match_mpmath(seed):
    model, rng = sample_chain(seed)
    belief = Belief.from_probabilities(model.initial)
    with mpmath.workdps(60):
        exact = [mpmath.mpf(float(p)) for p in model.initial]
        matrix = [[mpmath.mpf(float(p)) for p in row] for row in model.transition.toarray()]
        for _ in range(4):
            log_likelihood = -rng.choice([0.0, 1.0, 500.0, 700.0, 2000.0], model.size)
            exact = [sum(exact[i] * matrix[i][j] for i in range(model.size)) for j in range(model.size)]
            exact = [p * mpmath.exp(float(ll)) for p, ll in zip(exact, log_likelihood, strict=True)]
            total = sum(exact)
            exact = [p / total for p in exact]
            belief = belief.predict(model).update(log_likelihood)
            for j, p in enumerate(exact):
                assert belief.support[j] == (p > 0)
                if p > 0:
                    assert belief.log_mass[j] == pytest.approx(float(mpmath.log(p)), rel=1e-12, abs=1e-12)


def test_underflow_keeps_possible_states():
    # A chain 0 → 1 → ... with tiny steps: the mass of state 5 is about 1e-1500, far below the smallest float.
    tiny = 1e-300
    matrix = np.diag(np.full(6, 1 - tiny)) + np.diag(np.full(5, tiny), 1)
    matrix[5, 5] = 1.0
    model = MarkovModel(matrix, [1, 0, 0, 0, 0, 0])
    belief = Belief.from_probabilities(model.initial)
    for step in range(1, 6):
        belief = belief.predict(model)
        assert belief.support.tolist() == [state <= step for state in range(6)]
    assert belief.log_mass[5] == pytest.approx(5 * np.log(tiny), rel=1e-12)


def test_k_steps_match_k_single_steps():
    model, _ = sample_chain(3)
    one_by_one = Belief.from_probabilities(model.initial)
    for _ in range(5):
        one_by_one = one_by_one.predict(model)
    in_one_call = Belief.from_probabilities(model.initial).predict(model, 5)
    assert in_one_call.support.tolist() == one_by_one.support.tolist()
    np.testing.assert_allclose(in_one_call.log_mass, one_by_one.log_mass, rtol=1e-12)


def test_impossible_observation_raises():
    belief = Belief.from_probabilities(np.array([0.5, 0.5, 0.0]))
    with pytest.raises(StochasticError, match="impossible in every possible state"):
        belief.update(np.array([-np.inf, -np.inf, 0.0]))


@pytest.mark.parametrize("likelihood", [np.inf, np.nan])
@pytest.mark.parametrize("state", [0, 2])
def test_likelihoods_without_upper_bound_are_refused(likelihood, state):
    belief = Belief.from_probabilities(np.array([0.5, 0.5, 0.0]))
    logs = np.zeros(3)
    logs[state] = likelihood
    with pytest.raises(StochasticError, match="log_likelihood must have entries below infinity"):
        belief.update(logs)


def test_location_set_is_smallest_set_with_mass():
    belief = Belief.from_probabilities(np.array([0.05, 0.6, 0.3, 0.05, 0.0]))
    assert np.flatnonzero(belief.delta_location_set(0.1)).tolist() == [1, 2]
    assert np.flatnonzero(belief.delta_location_set(0.11)).tolist() == [1, 2]
    assert np.flatnonzero(belief.delta_location_set(0.09)).tolist() == [0, 1, 2]
    assert np.flatnonzero(belief.delta_location_set(0.0)).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("scale", [20.0, 1e308, 5e-323])
def test_counts_are_normalised(scale):
    counts = np.array([1.0, 12, 6, 1, 0]) / 20 * scale
    belief = Belief.from_probabilities(counts)
    assert belief.probabilities == pytest.approx(counts / counts.max() / (counts / counts.max()).sum(), rel=1e-12)
    assert belief.delta_location_set(0.2).sum() == 2
    plain = np.array([0.1, 0.2, 0.7])
    assert (Belief.from_probabilities(plain).log_mass == np.log(plain)).all()


@pytest.mark.parametrize("delta", [-0.1, 1.0, np.nan])
def test_invalid_delta_raises(delta):
    with pytest.raises(InvalidInputError, match="delta"):
        Belief.from_probabilities(np.array([1.0])).delta_location_set(delta)


def test_negative_steps_raise():
    with pytest.raises(InvalidInputError, match="steps must be a non-negative integer"):
        Belief.from_probabilities(np.array([1.0])).predict(MarkovModel([[1.0]], [1.0]), -1)


@pytest.mark.parametrize("steps", [2**63, 2**64 - 1, 10**400])
def test_steps_beyond_64_bits_raise(steps):
    with pytest.raises(InvalidInputError, match=r"whole number|integer"):
        Belief.from_probabilities(np.array([1.0])).predict(MarkovModel([[1.0]], [1.0]), steps)


def test_inconsistent_mass_and_support_raise():
    with pytest.raises(StochasticError):
        Belief(np.array([True, True]), np.array([0.0, -np.inf]))
    with pytest.raises(StochasticError):
        Belief(np.array([False]), np.array([-np.inf]))
    with pytest.raises(StochasticError):
        Belief.from_probabilities(np.zeros(2))


def test_belief_copies_input_and_is_read_only():
    support, log_mass = np.array([True, True, False]), np.log([0.5, 0.5, 1e-300])
    log_mass[2] = -np.inf
    belief = Belief(support, log_mass)
    support[1], log_mass[0] = False, 0.0
    assert belief.support.tolist() == [True, True, False]
    assert belief.probabilities.tolist() == [0.5, 0.5, 0.0]
    model = MarkovModel([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5]], belief.probabilities)
    log_likelihood = np.zeros(3)
    for result in (
        belief,
        belief.predict(model),
        belief.predict(model, 20),
        belief.update(log_likelihood),
        Belief.from_probabilities(log_likelihood + 1),
    ):
        for array in (result.support, result.log_mass):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = False
    assert log_likelihood.flags.writeable
    assert log_likelihood.tolist() == [0.0, 0.0, 0.0]
