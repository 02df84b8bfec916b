"""Beliefs: textbook Bayes where floats suffice, high-precision arithmetic where they do not, support never lost."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphmm import Belief, MarkovModel
from dphmm.errors import InvalidInputError, StochasticError


def random_chain(seed: int, size: int = 7):
    rng = np.random.default_rng(seed)
    matrix = rng.random((size, size)) * (rng.random((size, size)) < 0.5)
    matrix[np.arange(size), rng.integers(0, size, size)] += 0.1
    initial = rng.random(size) * (rng.random(size) < 0.7)
    initial[0] += 0.1
    return MarkovModel(matrix / matrix.sum(axis=1, keepdims=True), initial / initial.sum()), rng


@given(st.integers(0, 10**6))
def test_filtering_equals_textbook_bayes(seed):
    model, rng = random_chain(seed)
    belief, plain = Belief.of(model.initial), model.initial
    for _ in range(4):
        likelihood = rng.random(model.size)
        plain = plain @ model.transition.toarray()
        plain = plain * likelihood / (plain * likelihood).sum()
        belief = belief.predict(model).update(np.log(likelihood))
        np.testing.assert_allclose(belief.probabilities, plain, rtol=1e-10)
        np.testing.assert_array_equal(belief.support, plain > 0)


@given(st.integers(0, 10**6))
def test_beliefs_far_below_what_a_float_holds_equal_mpmath(seed):
    model, rng = random_chain(seed)
    belief = Belief.of(model.initial)
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


def test_an_underflow_never_drops_a_possible_state():
    # A chain 0 → 1 → ... with tiny steps: the mass of state 5 is about 1e-1500, far below the least float.
    tiny = 1e-300
    matrix = np.diag(np.full(6, 1 - tiny)) + np.diag(np.full(5, tiny), 1)
    matrix[5, 5] = 1.0
    model = MarkovModel(matrix, [1, 0, 0, 0, 0, 0])
    belief = Belief.of(model.initial)
    for step in range(1, 6):
        belief = belief.predict(model)
        assert belief.support.tolist() == [state <= step for state in range(6)]
    assert belief.log_mass[5] == pytest.approx(5 * np.log(tiny), rel=1e-12)


def test_k_steps_are_k_single_steps():
    model, _ = random_chain(3)
    one_by_one = Belief.of(model.initial)
    for _ in range(5):
        one_by_one = one_by_one.predict(model)
    at_once = Belief.of(model.initial).predict(model, 5)
    assert at_once.support.tolist() == one_by_one.support.tolist()
    np.testing.assert_allclose(at_once.log_mass, one_by_one.log_mass, rtol=1e-12)


def test_an_impossible_observation_is_an_error_not_zeros():
    belief = Belief.of(np.array([0.5, 0.5, 0.0]))
    with pytest.raises(StochasticError, match="no possible state"):
        belief.update(np.array([-np.inf, -np.inf, 0.0]))


def test_location_set_is_the_smallest_with_the_mass():
    belief = Belief.of(np.array([0.05, 0.6, 0.3, 0.05, 0.0]))
    assert np.flatnonzero(belief.location_set(0.1)).tolist() == [1, 2]
    assert np.flatnonzero(belief.location_set(0.11)).tolist() == [1, 2]
    assert np.flatnonzero(belief.location_set(0.09)).tolist() == [0, 1, 2]
    assert np.flatnonzero(belief.location_set(0.0)).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("delta", [-0.1, 1.0, np.nan])
def test_bad_delta_is_refused(delta):
    with pytest.raises(InvalidInputError, match="delta"):
        Belief.of(np.array([1.0])).location_set(delta)


def test_time_does_not_go_back():
    with pytest.raises(InvalidInputError, match="does not go back"):
        Belief.of(np.array([1.0])).predict(MarkovModel([[1.0]], [1.0]), -1)


@pytest.mark.parametrize("steps", [2**63, 2**64 - 1, 10**400])
def test_gaps_that_64_bits_do_not_count_are_refused(steps):
    with pytest.raises(InvalidInputError, match="whole number"):
        Belief.of(np.array([1.0])).predict(MarkovModel([[1.0]], [1.0]), steps)


def test_mass_and_support_must_agree():
    with pytest.raises(StochasticError):
        Belief(np.array([True, True]), np.array([0.0, -np.inf]))
    with pytest.raises(StochasticError):
        Belief(np.array([False]), np.array([-np.inf]))
    with pytest.raises(StochasticError):
        Belief.of(np.zeros(2))


def test_a_belief_copies_what_it_is_made_of_and_cannot_be_written_to():
    support, log_mass = np.array([True, True, False]), np.log([0.5, 0.5, 1e-300])
    log_mass[2] = -np.inf
    belief = Belief(support, log_mass)
    support[1], log_mass[0] = False, 0.0
    assert belief.support.tolist() == [True, True, False]
    assert belief.probabilities.tolist() == [0.5, 0.5, 0.0]
    model = MarkovModel([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5]], belief.probabilities)
    given = np.zeros(3)
    for made in (belief, belief.predict(model), belief.predict(model, 20), belief.update(given), Belief.of(given + 1)):
        for array in (made.support, made.log_mass):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = False
    assert given.flags.writeable
    assert given.tolist() == [0.0, 0.0, 0.0]
