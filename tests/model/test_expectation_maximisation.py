"""Expectation maximization, against enumerated expectations and known properties."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest

from dphmm import MarkovModel
from dphmm.errors import InvalidInputError
from dphmm.model import Observations, filter_releases, learn_from_releases


def enumerate_round(model: MarkovModel, observed: Observations) -> tuple[np.ndarray, np.ndarray]:
    """Compute one EM round by enumerating all paths, unobserved slots included."""
    matrix, size = model.transition.toarray(), model.size
    slots = np.concatenate([[0], np.cumsum(observed.steps[1:])])
    counts = np.zeros((size, size))
    first = np.zeros(size)
    total = 0.0
    for path in product(range(size), repeat=int(slots[-1]) + 1):
        weight = model.initial[path[0]] * np.prod([matrix[a, b] for a, b in pairwise(path)])
        weight *= np.exp(sum(observed.log_likelihood[t, path[slot]] for t, slot in enumerate(slots)))
        for a, b in pairwise(path):
            counts[a, b] += weight
        first[path[0]] += weight
        total += weight
    return counts / total, first / total


@pytest.mark.parametrize("seed", range(15))
def test_round_matches_enumeration_with_gaps_and_repeats(seed):
    rng = np.random.default_rng(seed)
    size = 3
    matrix = rng.random((size, size)) * (rng.random((size, size)) < 0.8) + 0.1 * np.eye(size)
    model = MarkovModel(matrix / matrix.sum(axis=1, keepdims=True), rng.dirichlet(np.ones(size)))
    sequences = [Observations(rng.normal(0, 2, (4, size)), rng.integers(0, 3, 4)) for _ in range(2)]
    counts, first = (
        sum(parts) for parts in zip(*(enumerate_round(model, observed) for observed in sequences), strict=True)
    )
    learned = learn_from_releases(model, sequences, rounds=1).model
    assert np.allclose(learned.transition.toarray(), counts / counts.sum(axis=1, keepdims=True), rtol=1e-9, atol=1e-15)
    assert np.allclose(learned.initial, first / first.sum(), rtol=1e-9)


def test_counted_and_dense_models_give_same_result():
    """Counted models have 64-bit indices and few entries."""
    rng = np.random.default_rng(3)
    counted = MarkovModel.fit([np.cumsum(rng.integers(-1, 2, 400)) % 60 for _ in range(3)], 60, smoothing=1.0)
    plain = MarkovModel(counted.transition.toarray(), counted.initial)
    sequence = Observations(rng.normal(0, 2, (50, 60)))
    from_counts, same = (learn_from_releases(model, [sequence], rounds=3) for model in (counted, plain))
    assert np.allclose(from_counts.log_evidence, same.log_evidence, rtol=1e-12)
    assert np.allclose(from_counts.model.transition.toarray(), same.model.transition.toarray(), rtol=1e-9)


def test_evidence_is_non_decreasing_and_structure_is_kept():
    rng = np.random.default_rng(8)
    matrix = np.array([[0.7, 0.3, 0.0], [0.2, 0.5, 0.3], [0.0, 0.4, 0.6]])
    model = MarkovModel(matrix, np.full(3, 1 / 3))
    sequences = [Observations(rng.normal(0, 3, (25, 3))) for _ in range(4)]
    result = learn_from_releases(model, sequences, rounds=60, tolerance=0.0)
    assert (np.diff(result.log_evidence) >= -1e-9).all()
    assert result.log_evidence[-1] > result.log_evidence[0] + 1
    assert np.array_equal(result.model.transition.toarray() > 0, matrix > 0)


def test_model_is_recovered_from_releases():
    rng = np.random.default_rng(1)
    truth = np.array([[0.8, 0.2, 0.0], [0.1, 0.6, 0.3], [0.3, 0.0, 0.7]])
    states = [0]
    for _ in range(1500):
        states.append(int(rng.choice(3, p=truth[states[-1]])))
    places = np.array([0.0, 4.0, 8.0])
    seen = places[states] + rng.laplace(0, 1, len(states))
    observed = Observations(-np.abs(seen[:, None] - places[None]))
    start = MarkovModel(np.full((3, 3), 1 / 3), np.full(3, 1 / 3))
    result = learn_from_releases(start, [observed], rounds=30, tolerance=1e-4)
    assert result.converged
    assert np.abs(result.model.transition.toarray() - truth).max() < 0.08
    true_model = MarkovModel(truth, [1.0, 0.0, 0.0])
    assert result.log_evidence[-1] >= filter_releases(true_model, observed).log_evidence - 2


def test_smoothing_keeps_transitions_positive():
    model = MarkovModel(np.full((2, 2), 0.5), [0.5, 0.5])
    stay = Observations(np.array([[0.0, -50.0]] * 20))
    unsmoothed = learn_from_releases(model, [stay], rounds=5).model.transition.toarray()
    smoothed = learn_from_releases(model, [stay], rounds=5, smoothing=1.0).model.transition.toarray()
    assert unsmoothed[0, 1] < 1e-15
    assert smoothed[0, 1] == pytest.approx(1 / 21, rel=1e-6)
    kept = learn_from_releases(model, [stay], rounds=5, learn_initial=False).model
    assert kept.initial.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    "arguments",
    [{"sequences": []}, {"rounds": 0}, {"tolerance": -1.0}, {"tolerance": np.nan}, {"smoothing": -0.1}],
    ids=repr,
)
def test_invalid_arguments_raise(arguments):
    model = MarkovModel(np.eye(2), [0.5, 0.5])
    with pytest.raises(InvalidInputError, match=f"{next(iter(arguments))} must be|at least one sequence"):
        learn_from_releases(**({"model": model, "sequences": [Observations(np.zeros((1, 2)))]} | arguments))
