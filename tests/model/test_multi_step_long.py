"""Many steps in one call match single steps, and very long gaps terminate."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphmm.model.belief import Belief
from dphmm.model.model import MarkovModel


def _sample_model(seed, size=6):
    generator = np.random.default_rng(seed)
    matrix = generator.random((size, size)) * (generator.random((size, size)) < 0.5) + np.eye(size) * 0.1
    return MarkovModel(matrix / matrix.sum(axis=1, keepdims=True), np.full(size, 1 / size))


@given(st.integers(0, 1000), st.integers(2, 60), st.integers(0, 5))
def test_many_steps_match_single_steps(seed, steps, start):
    model = _sample_model(seed)
    begin = Belief.from_probabilities(np.eye(6)[start])
    slow = begin
    for _ in range(steps):
        slow = slow.predict(model, 1)
    fast = begin.predict(model, steps)
    assert fast.support.tolist() == slow.support.tolist()
    np.testing.assert_allclose(fast.log_mass[fast.support], slow.log_mass[slow.support], rtol=1e-9, atol=1e-9)
    exact = np.linalg.matrix_power(model.transition.toarray(), steps)[start]
    np.testing.assert_allclose(fast.probabilities, exact, rtol=1e-9, atol=1e-300)


def test_transient_state_stays_in_support_over_long_gap():
    model = MarkovModel([[0.5, 0.5], [0.0, 1.0]], [1.0, 0.0])
    far = Belief.from_probabilities(model.initial).predict(model, 3000)
    assert far.support.tolist() == [True, True]
    assert far.log_mass[0] == pytest.approx(3000 * np.log(0.5), rel=1e-12)


def test_improbable_closed_class_keeps_its_mass():
    model = MarkovModel([[0.9, 0.1, 0, 0], [0.3, 0.7, 0, 0], [0, 0, 0.5, 0.5], [0, 0, 0.25, 0.75]], np.full(4, 0.25))
    doubted = Belief.from_probabilities(model.initial).update(np.array([0.0, 0.0, -5000.0, -5000.0]))
    far = doubted.predict(model, 10**12)
    np.testing.assert_allclose(far.log_mass[:2], np.log([0.75, 0.25]), rtol=1e-9)
    np.testing.assert_allclose(far.log_mass[2:], np.log([1 / 3, 2 / 3]) - 5000.0, rtol=1e-12)


def test_very_long_gap_returns_stationary_distribution():
    model = MarkovModel([[0.9, 0.1], [0.3, 0.7]], [1.0, 0.0])
    far = Belief.from_probabilities(model.initial).predict(model, 10**12)
    np.testing.assert_allclose(far.probabilities, [0.75, 0.25], rtol=1e-12)


@pytest.mark.parametrize("steps", [8, 13, 40, 130, 700, 2500, 20_000])
def test_backward_steps_match_matrix_power(steps):
    """Cover weights of next states, computed by powers of the forward matrix."""
    for seed in range(5):
        model = _sample_model(seed)
        weights = np.random.default_rng(seed).random(6)
        wanted = np.linalg.matrix_power(model.transition.toarray(), steps) @ weights
        gap = model.operator(steps)
        np.testing.assert_allclose(
            np.exp(gap.propagate_backward(np.log(weights))), wanted, rtol=1e-9, err_msg=f"seed {seed}"
        )
        assert not np.allclose(np.exp(gap.propagate_forward(np.log(weights))), wanted), "the forward product differs"
