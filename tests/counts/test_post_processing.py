"""The entry point of post-processing: properties of its output, and its refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from dphmm.counts import post_process
from dphmm.errors import BudgetError, ConfigurationError, CountError, DphmmError, StochasticError
from tests.sizes import mark_slow

# No user returns to place 0.
PATH = np.array([[0.0, 1.0, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]])

MODES = [False, True, "online"]


@pytest.mark.parametrize("coupled", MODES)
@pytest.mark.parametrize("integer", [False, True])
@pytest.mark.parametrize("prior", ["frequency", mark_slow("uniform"), [1.0, 0.0, 0.0]], ids=repr)
@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), users=st.sampled_from([1, 2, 30, 10**6]))
def test_result_is_possible_counts(coupled, integer, prior, seed, users):
    rng = np.random.default_rng(seed)
    noisy = rng.normal(users / 3, 1 + users / 10, (4, 3))
    if prior == "frequency":
        noisy[0] = np.abs(noisy[0]) + 1e-3
    scale = rng.choice([0.01, 2.0, 50.0], 4)
    counts = post_process(noisy, PATH, users, scale, prior=prior, integer=integer, coupled=coupled)
    assert counts.shape == (4, 3)
    assert (counts >= 0).all()
    np.testing.assert_allclose(counts.sum(axis=1), users, rtol=1e-8)
    assert (counts[1:, 0] == 0).all()
    if integer:
        assert counts.dtype == np.int64
        assert (counts.sum(axis=1) == users).all()
    if not isinstance(prior, str):
        assert counts[0, 0] == pytest.approx(users)


@pytest.mark.parametrize("coupled", MODES)
def test_sparse_and_dense_matrix_give_same_counts(coupled):
    noisy = np.random.default_rng(0).normal(5, 2, (5, 3))
    dense = post_process(noisy, PATH, 15, 2.0, prior="uniform", coupled=coupled)
    sparse_counts = post_process(noisy, sparse.csr_matrix(PATH), 15, 2.0, prior="uniform", coupled=coupled)
    np.testing.assert_array_equal(dense, sparse_counts)


def test_underflowing_probability_keeps_place_possible():
    matrix = np.array([[1.0, 0.0, 0.0], [1e-300, 1.0, 0.0], [0.0, 1e-300, 1.0]])
    noisy = np.array([[0.0, 0.0, 9.0], [0.0, 0.0, 9.0], [9.0, 0.0, 0.0]])
    counts = post_process(noisy, matrix, 9, 1e-3, prior=[0.0, 0.0, 1.0], integer=True)
    assert counts[2].tolist() == [9, 0, 0]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"users": 0}, CountError, r"users must be an integer in \[1, 9007199254740992\], got 0"),
        ({"users": 2**53 + 1}, CountError, r"users must be an integer in \[1, 9007199254740992\], got"),
        ({"users": 10**20}, CountError, r"users must be an integer in \[1, 9007199254740992\], got"),
        ({"users": 1.5}, CountError, "1.5"),
        ({"scale": 0.0}, BudgetError, r"scale .*\b0\.0\b"),
        ({"scale": [1.0, -1.0]}, BudgetError, r"scale .*-1\.0\b"),
        ({"scale": [1.0, 1.0, 1.0]}, BudgetError, r"shape \(3,\)"),
        ({"noisy": [[1.0, float("inf"), 0.0], [1.0, 0.0, 0.0]]}, CountError, "inf"),
        ({"noisy": [1.0, 2.0]}, CountError, "shape"),
        ({"transition": np.eye(2)}, StochasticError, r"must have shape \(3, 3\).* got \(2, 2\)"),
        ({"transition": 0.5 * np.eye(3)}, StochasticError, "rows that sum to 1, got 0.5 in row 0"),
        ({"transition": [[2.0, -1.0, 0.0], [0, 1, 0], [0, 0, 1]]}, StochasticError, "negative"),
        ({"prior": "best"}, ConfigurationError, "best"),
        ({"prior": [0.5, 0.4, 0.0]}, StochasticError, "must sum to 1, got 0.9"),
        ({"coupled": "both"}, ConfigurationError, "both"),
    ],
)
def test_invalid_input_raises(change, error, message):
    arguments = {"noisy": [[3.0, 1.0, 0.0], [0.0, 3.0, 1.0]], "transition": PATH, "users": 4, "scale": 2.0}
    with pytest.raises(error, match=message) as caught:
        post_process(**(arguments | change))
    assert isinstance(caught.value, DphmmError)
    assert "\n" not in str(caught.value)
