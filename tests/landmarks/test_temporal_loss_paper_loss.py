"""The paper's temporal loss, against its definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphmm.errors import BudgetError
from dphmm.landmarks import paper_leakage, skip_scheme, uniform_scheme
from dphmm.leakage import LossFunction, temporal_leakage

P = np.array([[0.8, 0.2], [0.1, 0.9]])
Q = np.array([[0.1, 0.2, 0.7], [0.3, 0.3, 0.4], [0.5, 0.3, 0.2]])


def compute_loss(matrix, alpha):
    """Compute L(alpha) over all vectors x of {1, e^alpha}^n and all pairs of rows."""
    if matrix is None or alpha == 0:
        return 0.0
    n = len(matrix)
    vectors = 1 + (math.exp(alpha) - 1) * np.array([[k >> i & 1 for i in range(n)] for k in range(2**n)])
    values = np.asarray(matrix) @ vectors.T
    return float(max(np.log(q / d).max() for q in values for d in values))


def compute_by_definition(landmark, epsilons, backward, forward):
    size, result = len(epsilons), []
    for t in range(size):
        members = sorted(set(np.flatnonzero(landmark).tolist()) | {t})
        total = 0.0
        for k, i in enumerate(members):
            first = members[k - 1] + 1 if k else 0
            last = members[k + 1] - 1 if k + 1 < len(members) else size - 1
            back = forth = 0.0
            for s in range(first, i + 1):
                back = compute_loss(backward, back) + epsilons[s]
            for s in range(last, i - 1, -1):
                forth = compute_loss(forward, forth) + epsilons[s]
            total += back + forth - epsilons[i]
        result.append(total)
    return result


@given(st.integers(0, 10**6), st.sampled_from([(P, P.T / P.T.sum(1, keepdims=True)), (Q, None), (None, Q), (Q, Q)]))
def test_paper_loss_matches_definition(seed, knowledge):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 14))
    landmark = rng.random(size) < rng.random()
    epsilons = rng.exponential(0.5, size) * (rng.random(size) < 0.8)
    losses = paper_leakage(range(size), np.flatnonzero(landmark), epsilons, *knowledge)
    np.testing.assert_allclose(losses, compute_by_definition(landmark, epsilons, *knowledge), rtol=1e-9, atol=1e-12)


def test_loss_without_landmarks_equals_temporal_leakage():
    epsilons = np.full(10, 0.1)
    matrix = np.array([[0.8, 0.2], [0.0, 1.0]])
    np.testing.assert_allclose(
        paper_leakage(range(10), [], epsilons, matrix, matrix), temporal_leakage(matrix, matrix, epsilons), rtol=1e-9
    )


def test_loss_without_correlation_is_scheme_budget():
    for scheme in (skip_scheme, uniform_scheme):
        scheme_budget = scheme(range(20), [3, 4, 11], 1.0)
        lost = paper_leakage(range(20), [3, 4, 11], scheme_budget.epsilons)
        assert lost.max() == pytest.approx(1.0)


def test_correlation_increases_loss_of_skipped_landmarks():
    scheme_budget = skip_scheme(range(20), [3, 4, 11], 1.0)
    assert paper_leakage(range(20), [3, 4, 11], scheme_budget.epsilons, P, P).min() > 1.0


def test_prebuilt_loss_function_is_accepted():
    function = LossFunction(P)
    epsilons = np.full(9, 0.3)
    np.testing.assert_array_equal(
        paper_leakage(range(9), [4], epsilons, function, function), paper_leakage(range(9), [4], epsilons, P, P)
    )


@pytest.mark.parametrize("epsilons", [[0.1], [0.1, -0.1, 0.1], [0.1, np.nan, 0.1]], ids=repr)
def test_invalid_budgets_raise(epsilons):
    with pytest.raises(BudgetError, match="finite"):
        paper_leakage([1, 2, 3], [2], epsilons)
