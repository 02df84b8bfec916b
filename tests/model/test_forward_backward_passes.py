"""Passes through releases in linear space, compiled or not, against logarithms."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logsumexp

from dphmm import MarkovModel
from dphmm.compilation import HotFunction, compile_function
from dphmm.errors import StochasticError
from dphmm.model import (
    Observations,
    expectation_maximisation,
    filter_releases,
    find_release_path,
    forward_backward,
    learn_from_releases,
    smooth_releases,
    transition_operator,
    viterbi,
)


@pytest.fixture(params=["compiled", "numpy"], autouse=True)
def loops(request, monkeypatch):
    if request.param == "compiled":
        pytest.importorskip("numba")
    for module in (transition_operator, forward_backward, viterbi, expectation_maximisation):
        for member in vars(module).values():
            if isinstance(member, HotFunction):
                monkeypatch.setattr(
                    member, "_chosen", compile_function(member.loop) if request.param == "compiled" else member.plain
                )


def build_instance(density: float, spread: float, seed: int = 0) -> tuple[MarkovModel, Observations]:
    """Build a chain with impossible states, gaps, repeats and a wide range of log-likelihoods."""
    rng = np.random.default_rng(seed)
    size, length = 30, 60
    matrix = rng.random((size, size)) * (rng.random((size, size)) < density) + 0.1 * np.eye(size)
    model = MarkovModel(matrix / matrix.sum(axis=1, keepdims=True), rng.dirichlet(np.ones(size)))
    rows = -rng.random((length, size)) * rng.choice([1.0, spread], (length, 1))
    rows[rng.random((length, size)) < 0.1] = -np.inf
    rows[:, 0] = np.maximum(rows[:, 0], -spread)
    return model, Observations(rows, rng.choice([0, 1, 1, 1, 1, 3], length))


def compute_in_logarithms(model: MarkovModel, observed: Observations):
    """Compute all results in log space.

    Returns filtered and smoothed logs, the evidence, the best path's score and expected transitions.
    """
    with np.errstate(divide="ignore"):
        moves, first = np.log(model.transition.toarray()), np.log(model.initial)
    rows, steps = observed.log_likelihood, observed.steps
    forward, best = [first + rows[0]], first + rows[0]
    for row, count in zip(rows[1:], steps[1:].tolist(), strict=True):
        ahead = forward[-1]
        for _ in range(count):
            ahead = logsumexp(ahead[:, np.newaxis] + moves, axis=0)
            best = (best[:, np.newaxis] + moves).max(axis=0)
        forward.append(ahead + row)
        best = best + row
    total = logsumexp(forward[-1])
    backward = [np.zeros(model.size)]
    counts = np.zeros_like(moves)
    for t in range(len(rows) - 2, -1, -1):
        going, coming = [forward[t]], [backward[-1] + rows[t + 1]]
        for _ in range(int(steps[t + 1])):
            going.append(logsumexp(going[-1][:, np.newaxis] + moves, axis=0))
            coming.append(logsumexp(moves + coming[-1], axis=1))
        for k in range(int(steps[t + 1])):
            counts += np.exp(going[k][:, np.newaxis] + moves + coming[int(steps[t + 1]) - 1 - k] - total)
        backward.append(coming[-1])
    filtered = np.array([logs - logsumexp(logs) for logs in forward])
    smoothed = np.array(forward) + np.array(backward[::-1]) - total
    return filtered, smoothed, total, best.max(), counts


@pytest.mark.slow
@pytest.mark.parametrize("density", [0.1, 0.9, 1.0])
@pytest.mark.parametrize("spread", [10.0, 800.0, 10_000.0])
def test_filter_smoother_path_and_counts_match_logarithms(density, spread):
    model, observed = build_instance(density, spread)
    filtered, smoothed, evidence, best, counts = compute_in_logarithms(model, observed)
    filtering = filter_releases(model, observed)
    assert filtering.log_evidence == pytest.approx(evidence, rel=1e-12)
    for beliefs, wanted in ((filtering.filtered, filtered), (smooth_releases(model, observed, filtering), smoothed)):
        for belief, logs in zip(beliefs, wanted, strict=True):
            assert np.array_equal(belief.support, logs > -np.inf)
            np.testing.assert_allclose(belief.log_mass[belief.support], logs[belief.support], rtol=1e-11, atol=1e-9)
    assert find_release_path(model, observed).log_probability == pytest.approx(best, rel=1e-12)
    learned = learn_from_releases(model, [observed], rounds=1).model.transition.toarray()
    left = counts.sum(axis=1) > 1e-6
    wanted = counts[left] / counts[left].sum(axis=1, keepdims=True)
    np.testing.assert_allclose(learned[left], wanted, rtol=1e-8, atol=1e-12)


def test_predictions_follow_from_previous_filtered_beliefs():
    model, observed = build_instance(0.9, 800.0)
    filtering = filter_releases(model, observed)
    for t in range(1, len(observed)):
        ahead = filtering.filtered[t - 1].predict(model, int(observed.steps[t]))
        assert np.array_equal(filtering.predicted[t].log_mass, ahead.log_mass)


@pytest.mark.slow
def test_impossible_release_raises_with_its_index():
    model, observed = build_instance(0.9, 10.0)
    rows = observed.log_likelihood.copy()
    rows[17] = -np.inf
    for function in (filter_releases, find_release_path):
        with pytest.raises(StochasticError, match="release 17"):
            function(model, Observations(rows, observed.steps))
