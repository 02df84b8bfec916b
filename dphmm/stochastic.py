"""Matrices of probabilities: the one check that every stage puts a transition matrix through."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from dphmm.arrays import NORMALISED, PROBABILITY_TOLERANCE
from dphmm.errors import StochasticError

SMALLEST_PROBABILITY = 1e-200
"""Where products of two probabilities are formed, positive ones below this are refused: they would underflow."""

MatrixLike = npt.ArrayLike | sparse.sparray | sparse.spmatrix
"""What is accepted as a matrix: anything numpy can make one of, or any scipy sparse matrix."""


def as_stochastic(
    matrix: MatrixLike, name: str = "transition matrix", *, compressed: bool = False, smallest: float = 0.0
) -> Any:
    """A row-stochastic matrix ``(n, n)`` of one's own, with rows renormalised within the tolerance.

    Parameters
    ----------
    matrix
        Dense or any scipy sparse form; row ``i`` is the distribution given state ``i``. It is left as it is.
    name
        What an error message calls it.
    compressed
        Whether to return a CSR array whatever was given.
    smallest
        Positive entries below this are refused.

    Returns
    -------
    array or scipy CSR array
        Dense for a dense matrix unless `compressed`; otherwise CSR with sorted indices and without stored zeros. Rows
        whose sum is one within `dphmm.arrays.NORMALISED` keep their entries to the last bit.

    Raises
    ------
    StochasticError
        When the matrix is not square or empty, an entry is NaN, infinite, negative or positive but below `smallest`,
        or a row does not sum to 1. The message names the row and the value.
    """
    given: Any = matrix
    if not sparse.issparse(given):
        try:
            given = np.array(given, dtype=np.float64)
        except (TypeError, ValueError) as problem:
            raise StochasticError(f"{name} is not a matrix of numbers ({problem}); give n rows of n numbers") from None
    if given.ndim != 2 or given.shape[0] != given.shape[1] or given.shape[0] == 0:
        raise StochasticError(f"{name} has shape {given.shape}; it must be square, with one row for each state")
    if not compressed and not sparse.issparse(given):
        return _normalised(given, given, name, smallest)
    csr = sparse.csr_array(given, dtype=np.float64, copy=True)
    csr.sum_duplicates()
    csr.eliminate_zeros()
    return _normalised(csr, csr.data, name, smallest)


def _normalised(matrix: Any, entries: Any, name: str, smallest: float) -> Any:
    """The matrix, whose entries (an array of any shape) have been checked and divided by the sums of their rows."""
    is_sparse = bool(sparse.issparse(matrix))
    good = (entries == 0) | ((entries >= smallest) & (entries < np.inf))
    if not good.all():
        first = int(np.argmin(good))
        row, column = divmod(first, matrix.shape[1])
        if is_sparse:
            row, column = int(np.searchsorted(matrix.indptr, first, side="right")) - 1, int(matrix.indices[first])
        value = float(entries.flat[first])
        where = f"{name}: row {row}, column {column} is {value}"
        if 0 < value < smallest:
            raise StochasticError(f"{where}; set probabilities below {smallest} to 0 or raise them")
        raise StochasticError(f"{where}; probabilities are finite and not negative")
    sums = np.asarray(matrix.sum(axis=1), dtype=np.float64).ravel()
    off = np.flatnonzero(np.abs(sums - 1.0) > PROBABILITY_TOLERANCE)
    if off.size:
        raise StochasticError(f"{name}: row {off[0]} sums to {sums[off[0]]:.12g}; every row must sum to 1")
    sums[np.abs(sums - 1.0) <= NORMALISED] = 1.0
    entries /= np.repeat(sums, np.diff(matrix.indptr)) if is_sparse else sums[:, np.newaxis]
    return matrix
