"""What is accepted as a transition matrix, and what each refusal says."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse as sp

from dphmm.errors import StochasticError
from dphmm.leakage import smooth
from dphmm.leakage.loss_function import as_transition, is_matrix
from tests.leakage.oracles import random_matrix


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([[0.5, 0.5]], r"shape \(1, 2\)"),
        ([0.5, 0.5], r"shape \(2,\)"),
        (np.zeros((0, 0)), "square"),
        ([[0.5, 0.5], [1.0]], "not a matrix"),
        ([["a", "b"], ["c", "d"]], "not a matrix"),
        ([[0.5, 0.5], [math.nan, 1.0]], "row 1, column 0 is nan"),
        ([[0.5, math.inf], [0.5, 0.5]], "row 0, column 1 is inf"),
        ([[1.5, -0.5], [0.5, 0.5]], r"row 0, column 1 is -0\.5"),
        ([[1.0, 0.0], [1.0, 1e-250]], "row 1, column 1 is 1e-250"),
        ([[0.5, 0.5], [0.5, 0.4999]], r"row 1 sums to 0\.9999"),
        ([[0.0, 0.0], [0.5, 0.5]], r"row 0 sums to 0;"),
    ],
)
def test_bad_matrix_is_refused_in_one_line(matrix, message):
    with pytest.raises(StochasticError, match=message) as refused:
        as_transition(matrix, "backward matrix")
    assert str(refused.value).startswith("backward matrix")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("row", "column", "value", "message"),
    [(2, 1, math.nan, "row 2, column 1 is nan"), (1, 3, -0.25, "row 1, column 3"), (3, 0, 2.0, "row 3 sums to 3")],
)
def test_bad_sparse_matrix_is_refused_as_the_dense_one(row, column, value, message):
    matrix = np.eye(4)
    matrix[row, column] = value
    for form in (matrix, sp.csr_array(matrix), sp.coo_matrix(matrix)):
        with pytest.raises(StochasticError, match=message):
            as_transition(form)


def test_rows_within_tolerance_are_renormalised_and_the_input_is_left_alone():
    matrix = np.array([[0.5, 0.5 + 5e-10], [0.25, 0.75]])
    before = matrix.copy()
    held = as_transition(matrix)
    np.testing.assert_allclose(held.sum(axis=1), 1.0, rtol=0, atol=1e-15)
    np.testing.assert_array_equal(matrix, before)
    sparse = sp.csr_array(matrix)
    as_transition(sparse)
    np.testing.assert_array_equal(sparse.toarray(), before)


def test_few_entries_are_held_sparse_and_many_dense():
    assert sp.issparse(as_transition(sp.eye_array(1000)))
    assert sp.issparse(as_transition(np.eye(1000)))
    assert not sp.issparse(as_transition(sp.csr_array(random_matrix(40, 0))))


def test_columns_without_entries_are_left_out():
    hub = np.zeros((500, 500))
    hub[:, 3], hub[:, 7] = 0.25, 0.75
    held = as_transition(sp.csr_array(hub))
    assert (held.shape, sp.issparse(held)) == ((500, 2), False)


def test_smoothing_is_equation_28():
    np.testing.assert_allclose(smooth(np.eye(4), 0.5)[0], [0.5, 1 / 6, 1 / 6, 1 / 6], rtol=1e-15)
    np.testing.assert_array_equal(smooth(sp.eye_array(3), 0.0), np.eye(3))
    for amount in (-0.1, math.nan, math.inf):
        with pytest.raises(StochasticError, match="amount"):
            smooth(np.eye(2), amount)


def test_one_matrix_is_told_from_several():
    one, several = [[1.0]], [[[1.0]], [[1.0]]]
    for value in (one, np.eye(2), sp.eye_array(2), np.eye(2).tolist()):
        assert is_matrix(value)
    for value in (several, np.array(several), iter([np.eye(2)]), [np.eye(2)], [sp.eye_array(2)], [None, None]):
        assert not is_matrix(value)
