"""Matrices of probabilities: the one check that every stage puts a transition matrix through, and of sparse ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from scipy import sparse

from dphmm.arrays import NORMALISED, PROBABILITY_TOLERANCE, as_floats
from dphmm.errors import InvalidInputError, StochasticError

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
    given: Any = matrix if sparse.issparse(matrix) else _dense(matrix, name)
    if given.ndim != 2 or given.shape[0] != given.shape[1] or given.shape[0] == 0:
        raise StochasticError(f"{name} has shape {given.shape}; it must be square, with one row for each state")
    if not compressed and not sparse.issparse(given):
        return _normalised(given, given, name, smallest)
    csr = as_csr(given, name)
    csr.eliminate_zeros()
    return _normalised(csr, csr.data, name, smallest)


def as_csr(matrix: Any, name: str = "matrix") -> Any:
    """A sparse or dense matrix of numbers as compressed sparse rows of one's own, indices sorted, each place once.

    Indices are checked before any compiled code sees them: scipy's own would read and write outside its arrays.

    Parameters
    ----------
    matrix
        ``(n, m)``: any scipy sparse form, or what `numpy.asarray` makes a matrix of numbers of. It is left as it is.
    name
        What an error message calls it.

    Returns
    -------
    scipy CSR array of float64

    Raises
    ------
    StochasticError
        When it does not hold real numbers, or an index points outside of the matrix.
    """
    if not sparse.issparse(matrix):
        dense = _dense(matrix, name)
        if dense.ndim != 2:
            raise StochasticError(f"{name} has shape {dense.shape}; give n rows of numbers")
        return sparse.csr_array(dense)
    flaw = _flaw(matrix)
    if flaw is None:
        csr = sparse.csr_array(cast(Any, matrix), dtype=np.float64, copy=True)
        flaw = _flaw(csr)  # what lists and dictionaries hold shows only now
    if flaw is not None:
        raise StochasticError(f"{name} is no sparse matrix: {flaw}; make it anew with scipy.sparse")
    csr.sum_duplicates()
    return csr


def csr_of_arrays(arrays: Mapping[str, Any], name: str = "matrix") -> Any:
    """The sparse matrix whose arrays `scipy.sparse.save_npz` writes, as `as_csr` gives it.

    Parameters
    ----------
    arrays
        ``format`` (csr, csc, bsr, coo or dia), ``shape``, ``data``, and the format's indices, under scipy's names.
    name
        What an error message calls it.

    Raises
    ------
    StochasticError
        As `as_csr`; when an array is missing or of another kind; or when there are over a million rows or columns and
        not as many entries, which no matrix of probabilities has.
    """
    form = str(np.asarray(arrays.get("format", "")).astype(str))
    indices = _INDICES.get(form, ())
    if form not in _INDICES or any(part not in arrays for part in ("shape", "data", *indices)):
        known = ", ".join(_INDICES)
        raise StochasticError(f"{name} is {form or 'nothing'!r:.20} and lacks an array; save it as one of {known}")
    data, shape, found = arrays["data"], np.asarray(arrays["shape"]), [arrays[part] for part in indices]
    if any(part.ndim != 1 or part.dtype.kind not in "iu" for part in (shape, *found)) or data.dtype.kind not in "fiub":
        raise StochasticError(f"{name} has indices that are no lists of integers, or entries that are no numbers")
    if shape.shape != (2,) or shape.min() < 1 or shape.max() > max(data.size, _MOST_EMPTY):
        raise StochasticError(f"{name} has shape {shape.tolist()} for {data.size} entries; it holds no probabilities")
    parts = (data, tuple(found)) if form == "coo" else (data, *found)
    try:
        made = getattr(sparse, f"{form}_array")(parts, shape=tuple(shape.tolist()))
    except (ValueError, IndexError) as problem:
        raise StochasticError(f"{name} is no sparse matrix ({problem}); make it anew with scipy.sparse") from None
    return as_csr(made, name)


_INDICES = {
    "csr": ("indices", "indptr"),
    "csc": ("indices", "indptr"),
    "bsr": ("indices", "indptr"),
    "coo": ("row", "col"),
    "dia": ("offsets",),
}
"""Format of a sparse matrix → the arrays of its indices, as `scipy.sparse.save_npz` calls them."""
_MOST_EMPTY = 1_000_000


def _dense(matrix: Any, name: str) -> Any:
    try:
        return as_floats(matrix, name).copy()
    except InvalidInputError:
        raise StochasticError(f"{name} is not a matrix of numbers; give n rows of n numbers") from None


def _flaw(matrix: Any) -> str | None:
    """What is wrong with how a sparse matrix is put together; None where nothing is."""
    if matrix.ndim != 2 or matrix.dtype.kind not in "fiub":
        return f"it holds {matrix.dtype} values in {matrix.ndim} dimensions"
    rows, columns = matrix.shape
    if matrix.format in ("csr", "csc", "bsr"):
        high, wide = matrix.blocksize if matrix.format == "bsr" else (1, 1)
        if high < 1 or wide < 1 or matrix.data.shape != (len(matrix.indices), high, wide)[: matrix.data.ndim]:
            return f"its {matrix.data.shape} entries do not fit {len(matrix.indices)} indices"
        along, across = (columns, rows) if matrix.format == "csc" else (rows // high, columns // wide)
        return _flaw_of_pointers(matrix.indptr, along, len(matrix.indices)) or _outside(matrix.indices, across)
    if matrix.format == "coo":
        return _outside(matrix.row, rows) or _outside(matrix.col, columns)
    return _outside(np.abs(matrix.offsets), max(rows, columns)) if matrix.format == "dia" else None


def _flaw_of_pointers(pointers: Any, rows: int, count: int) -> str | None:
    if pointers.shape != (rows + 1,) or pointers.dtype.kind not in "iu":
        return f"it has {pointers.size} pointers for {rows} rows or columns"
    good = pointers[0] == 0 and pointers[-1] == count and (pointers[1:] >= pointers[:-1]).all()
    return None if good else "its pointers do not run from 0 up to the number of its entries"


def _outside(indices: Any, bound: int) -> str | None:
    if indices.ndim != 1 or indices.dtype.kind not in "iu":
        return f"its indices are {indices.dtype} of shape {indices.shape}"
    wrong = (indices < 0) | (indices >= bound)
    return f"index {int(indices[wrong][0])} is outside of 0 to {bound - 1}" if wrong.any() else None


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
    with np.errstate(over="ignore"):  # a row that sums to infinity is refused below
        sums = np.asarray(matrix.sum(axis=1), dtype=np.float64).ravel()
    off = np.flatnonzero(np.abs(sums - 1.0) > PROBABILITY_TOLERANCE)
    if off.size:
        raise StochasticError(f"{name}: row {off[0]} sums to {sums[off[0]]:.12g}; every row must sum to 1")
    sums[np.abs(sums - 1.0) <= NORMALISED] = 1.0
    entries /= np.repeat(sums, np.diff(matrix.indptr)) if is_sparse else sums[:, np.newaxis]
    return matrix
