"""Accepted transition matrices, and refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse as sp

from dphmm.errors import StochasticError
from dphmm.leakage import smooth
from dphmm.leakage.loss_function import as_transition, is_matrix
from tests.leakage.oracles import sample_matrix


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([[0.5, 0.5]], r"shape \(1, 2\)"),
        ([0.5, 0.5], r"shape \(2,\)"),
        (np.zeros((0, 0)), "square"),
        ([[0.5, 0.5], [1.0]], "must be a matrix of numbers"),
        ([["a", "b"], ["c", "d"]], "must be a matrix of numbers"),
        ([[0.5, 0.5], [math.nan, 1.0]], "got nan in row 1, column 0"),
        ([[0.5, math.inf], [0.5, 0.5]], "got inf in row 0, column 1"),
        ([[1.5, -0.5], [0.5, 0.5]], r"got -0\.5 in row 0, column 1"),
        ([[1.0, 0.0], [1.0, 1e-250]], "got 1e-250 in row 1, column 1"),
        ([[0.5, 0.5], [0.5, 0.4999]], r"sum to 1, got 0\.9999 in row 1"),
        ([[0.0, 0.0], [0.5, 0.5]], "sum to 1, got 0 in row 0"),
    ],
)
def test_invalid_matrix_raises_in_one_line(matrix, message):
    with pytest.raises(StochasticError, match=message) as refused:
        as_transition(matrix, "backward matrix")
    assert str(refused.value).startswith("backward matrix")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("row", "column", "value", "message"),
    [
        (2, 1, math.nan, "got nan in row 2, column 1"),
        (1, 3, -0.25, "row 1, column 3"),
        (3, 0, 2.0, "sum to 1, got 3 in row 3"),
    ],
)
def test_invalid_sparse_matrix_raises_like_dense_one(row, column, value, message):
    matrix = np.eye(4)
    matrix[row, column] = value
    for form in (matrix, sp.csr_array(matrix), sp.coo_matrix(matrix)):
        with pytest.raises(StochasticError, match=message):
            as_transition(form)


def test_rows_within_tolerance_are_normalized_and_input_is_unchanged():
    matrix = np.array([[0.5, 0.5 + 5e-10], [0.25, 0.75]])
    before = matrix.copy()
    normalized = as_transition(matrix)
    np.testing.assert_allclose(normalized.sum(axis=1), 1.0, rtol=0, atol=1e-15)
    np.testing.assert_array_equal(matrix, before)
    sparse = sp.csr_array(matrix)
    as_transition(sparse)
    np.testing.assert_array_equal(sparse.toarray(), before)


def test_matrix_format_depends_on_density():
    assert sp.issparse(as_transition(sp.eye_array(1000)))
    assert sp.issparse(as_transition(np.eye(1000)))
    assert not sp.issparse(as_transition(sp.csr_array(sample_matrix(40, 0))))


def test_empty_columns_are_removed():
    hub = np.zeros((500, 500))
    hub[:, 3], hub[:, 7] = 0.25, 0.75
    reduced = as_transition(sp.csr_array(hub))
    assert (reduced.shape, sp.issparse(reduced)) == ((500, 2), False)


def test_smooth_matches_equation_28():
    np.testing.assert_allclose(smooth(np.eye(4), 0.5)[0], [0.5, 1 / 6, 1 / 6, 1 / 6], rtol=1e-15)
    np.testing.assert_array_equal(smooth(sp.eye_array(3), 0.0), np.eye(3))
    for amount in (-0.1, math.nan, math.inf):
        with pytest.raises(StochasticError, match="amount"):
            smooth(np.eye(2), amount)


def test_is_matrix_distinguishes_one_matrix_from_several():
    matrix, several = [[1.0]], [[[1.0]], [[1.0]]]
    for value in (matrix, np.eye(2), sp.eye_array(2), np.eye(2).tolist()):
        assert is_matrix(value)
    for value in (several, np.array(several), iter([np.eye(2)]), [np.eye(2)], [sp.eye_array(2)], [None, None]):
        assert not is_matrix(value)
