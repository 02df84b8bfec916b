"""Transition matrices as the leakage analysis takes them: validated once, dense or compressed sparse rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from dphmm.arguments import checked
from dphmm.arrays import LARGEST, FloatArray
from dphmm.errors import StochasticError
from dphmm.stochastic import SMALLEST_PROBABILITY, MatrixLike, as_stochastic

SPARSE_BELOW = 0.05
"""Share of positive entries under which the sparse form is the faster one."""


def as_transition(matrix: MatrixLike, name: str = "transition matrix") -> Any:
    """A transition matrix, checked and put into the form that is fastest to work on.

    Rows are renormalised within `dphmm.arrays.PROBABILITY_TOLERANCE`. A sparse matrix of mobility size is never made
    dense: a dense form is chosen only where at least `SPARSE_BELOW` of the entries that remain are positive.

    Parameters
    ----------
    matrix
        ``(n, n)``, dense or any scipy sparse form; row ``i`` is the distribution given state ``i``.
    name
        What an error message calls it.

    Returns
    -------
    array or scipy CSR array
        ``(n, width)``; C-contiguous, or CSR without stored zeros where few entries are positive. Columns that are zero
        throughout are left out (they never matter), so ``width`` may be less than ``n``.

    Raises
    ------
    StochasticError
        When the matrix is not square or empty, an entry is NaN, infinite, negative or positive but below
        `dphmm.stochastic.SMALLEST_PROBABILITY`, or a row does not sum to 1. The message names the row and the value.
    """
    checked = as_stochastic(matrix, name, smallest=SMALLEST_PROBABILITY)
    is_sparse = sp.issparse(checked)
    highest = checked.max(axis=0)
    used = np.asarray(highest.toarray() if is_sparse else highest).ravel() > 0
    kept = checked if used.all() else checked[:, used]
    positive = kept.nnz if is_sparse else np.count_nonzero(kept)
    if positive >= SPARSE_BELOW * kept.shape[0] * kept.shape[1]:
        return np.ascontiguousarray(kept.toarray() if is_sparse else kept)
    csr = sp.csr_array(kept)
    csr.sort_indices()
    return csr


@checked
def smooth(matrix: MatrixLike, amount: float) -> FloatArray:
    """Laplacian smoothing of every row, ``(p + amount) / Σ (p + amount)``: Equation 28 of the TPL paper.

    Parameters
    ----------
    matrix
        ``(n, n)`` transition matrix.
    amount
        Not negative; 0 leaves the matrix as it is, and the larger, the weaker the correlation. Amounts compare only
        between matrices of one size.

    Raises
    ------
    StochasticError
        When the matrix is none, or the amount is negative or not finite.

    Examples
    --------
    >>> smooth([[1, 0], [0, 1]], 0.5)
    array([[0.75, 0.25],
           [0.25, 0.75]])
    """
    if not 0 <= amount <= LARGEST:
        raise StochasticError(f"amount of smoothing is {amount}; give a number from 0 to {LARGEST:g}")
    dense = matrix.toarray() if sp.issparse(matrix) else matrix
    raised = as_stochastic(dense, "matrix", smallest=SMALLEST_PROBABILITY) + amount
    return np.asarray(raised / raised.sum(axis=1, keepdims=True), dtype=np.float64)


def is_matrix(value: object) -> bool:
    """Whether a value is one matrix, rather than an iterable of matrices (one for each step)."""
    if sp.issparse(value):
        return True
    if isinstance(value, np.ndarray):
        return value.ndim != 3
    if isinstance(value, Sequence) and value:
        first = value[0]
        return not (first is None or callable(first) or sp.issparse(first) or np.ndim(first) == 2)
    return not isinstance(value, Iterator)
