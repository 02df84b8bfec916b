"""Checks and conversions of transition matrices and of sparse matrices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from scipy import sparse

from dphmm.arrays import as_floats
from dphmm.errors import InvalidInputError, StochasticError
from dphmm.tolerances import NORMALISATION_TOLERANCE, PROBABILITY_TOLERANCE

# The smallest positive probability that is accepted where products of two probabilities must not underflow.
MIN_PROBABILITY = 1e-200

# A matrix argument: any array-like, or any scipy sparse matrix.
MatrixLike = npt.ArrayLike | sparse.sparray | sparse.spmatrix


def as_stochastic(
    matrix: MatrixLike, name: str = "transition matrix", *, compressed: bool = False, smallest: float = 0.0
) -> Any:
    """Return a row-stochastic matrix ``(n, n)`` as a new array, with normalised rows.

    Parameters
    ----------
    matrix
        Dense array or any scipy sparse format. Row ``i`` is the distribution given state ``i``. It stays unchanged.
    name
        Name of the matrix in error messages.
    compressed
        Whether to return a CSR array in any case.
    smallest
        Lower bound on positive entries.

    Returns
    -------
    array or scipy CSR array
        Dense for a dense matrix unless `compressed`; otherwise CSR with sorted indices and without stored zeros. Rows
        with a sum of 1 within `dphmm.tolerances.NORMALISATION_TOLERANCE` keep their entries to the last bit.

    Raises
    ------
    StochasticError
        If the matrix is not square or empty, an entry is NaN, infinite, negative or positive but below `smallest`, or a
        row does not sum to 1. The message contains the row and the value.
    """
    array: Any = matrix if sparse.issparse(matrix) else _copy_dense_matrix(matrix, name)
    if array.ndim != 2 or array.shape[0] != array.shape[1] or array.shape[0] == 0:
        raise StochasticError(f"{name} must be square with one row for each state, got shape {array.shape}")
    if not compressed and not sparse.issparse(array):
        return _normalise(array, array, name, smallest)
    csr = as_csr(array, name)
    csr.eliminate_zeros()
    return _normalise(csr, csr.data, name, smallest)


def as_csr(matrix: Any, name: str = "matrix") -> Any:
    """Return a sparse or dense matrix as a new CSR array with sorted, unique indices.

    Indices are checked before any compiled code uses them, because scipy's code would read and write outside its
    arrays.

    Parameters
    ----------
    matrix
        ``(n, m)``: any scipy sparse format, or a numeric array-like. It stays unchanged.
    name
        Name of the matrix in error messages.

    Returns
    -------
    scipy CSR array of float64

    Raises
    ------
    StochasticError
        If it does not contain real numbers, or an index is out of range.
    """
    if not sparse.issparse(matrix):
        dense = _copy_dense_matrix(matrix, name)
        if dense.ndim != 2:
            raise StochasticError(f"{name} must have two dimensions, got shape {dense.shape}")
        return sparse.csr_array(dense)
    flaw = _find_flaw(matrix)
    if flaw is None:
        csr = sparse.csr_array(cast(Any, matrix), dtype=np.float64, copy=True)
        flaw = _find_flaw(csr)  # the content of LIL and DOK formats shows only after the conversion
    if flaw is not None:
        raise StochasticError(f"{name} is not a valid sparse matrix: {flaw}; create it with scipy.sparse")
    csr.sum_duplicates()
    return csr


def build_csr(arrays: Mapping[str, Any], name: str = "matrix") -> Any:
    """Return the matrix of arrays that `scipy.sparse.save_npz` wrote, as `as_csr` returns it.

    Parameters
    ----------
    arrays
        ``format`` (csr, csc, bsr, coo or dia), ``shape``, ``data``, and the indices of the format, under scipy's names.
    name
        Name of the matrix in error messages.

    Raises
    ------
    StochasticError
        If `as_csr` raises it, an array is missing or has another type, or there are over a million rows or columns and
        fewer entries, which is impossible for a matrix of probabilities.
    """
    form = str(np.asarray(arrays.get("format", "")).astype(str))
    indices = _INDICES.get(form, ())
    if form not in _INDICES or any(part not in arrays for part in ("shape", "data", *indices)):
        formats = ", ".join(_INDICES)
        raise StochasticError(
            f"{name} must be saved with all arrays of a format of {formats}, got format {form or 'none'!r:.20}"
        )
    data = arrays["data"]
    shape = np.asarray(arrays["shape"])
    index_arrays = [arrays[part] for part in indices]
    if (
        any(part.ndim != 1 or part.dtype.kind not in "iu" for part in (shape, *index_arrays))
        or data.dtype.kind not in "fiub"
    ):
        raise StochasticError(f"{name} must have integer indices and numeric entries")
    if shape.shape != (2,) or shape.min() < 1 or shape.max() > max(data.size, _MAX_EMPTY_ROWS):
        raise StochasticError(f"{name} must have a shape that matches its {data.size} entries, got {shape.tolist()}")
    parts = (data, tuple(index_arrays)) if form == "coo" else (data, *index_arrays)
    try:
        matrix = getattr(sparse, f"{form}_array")(parts, shape=tuple(shape.tolist()))
    except (ValueError, IndexError) as problem:
        raise StochasticError(f"{name} is not a valid sparse matrix: {problem}; create it with scipy.sparse") from None
    return as_csr(matrix, name)


# Format of a sparse matrix → names of its index arrays in `scipy.sparse.save_npz`.
_INDICES = {
    "csr": ("indices", "indptr"),
    "csc": ("indices", "indptr"),
    "bsr": ("indices", "indptr"),
    "coo": ("row", "col"),
    "dia": ("offsets",),
}
_MAX_EMPTY_ROWS = 1_000_000


def _copy_dense_matrix(matrix: Any, name: str) -> Any:
    try:
        return as_floats(matrix, name).copy()
    except InvalidInputError:
        raise StochasticError(f"{name} must be a matrix of numbers") from None


def _find_flaw(matrix: Any) -> str | None:
    """Return the inconsistency of a sparse matrix. None if there is none."""
    if matrix.ndim != 2 or matrix.dtype.kind not in "fiub":
        return f"it has {matrix.dtype} values in {matrix.ndim} dimensions"
    rows, columns = matrix.shape
    if matrix.format in ("csr", "csc", "bsr"):
        high, wide = matrix.blocksize if matrix.format == "bsr" else (1, 1)
        if high < 1 or wide < 1 or matrix.data.shape != (len(matrix.indices), high, wide)[: matrix.data.ndim]:
            return f"its {matrix.data.shape} entries do not match {len(matrix.indices)} indices"
        along, across = (columns, rows) if matrix.format == "csc" else (rows // high, columns // wide)
        return _find_pointer_flaw(matrix.indptr, along, len(matrix.indices)) or _find_index_out_of_range(
            matrix.indices, across
        )
    if matrix.format == "coo":
        return _find_index_out_of_range(matrix.row, rows) or _find_index_out_of_range(matrix.col, columns)
    return _find_index_out_of_range(np.abs(matrix.offsets), max(rows, columns)) if matrix.format == "dia" else None


def _find_pointer_flaw(pointers: Any, rows: int, count: int) -> str | None:
    if pointers.shape != (rows + 1,) or pointers.dtype.kind not in "iu":
        return f"it has {pointers.size} pointers for {rows} rows or columns"
    good = pointers[0] == 0 and pointers[-1] == count and (pointers[1:] >= pointers[:-1]).all()
    return None if good else "its pointers do not increase from 0 to the number of entries"


def _find_index_out_of_range(indices: Any, bound: int) -> str | None:
    if indices.ndim != 1 or indices.dtype.kind not in "iu":
        return f"its indices are {indices.dtype} of shape {indices.shape}"
    wrong = (indices < 0) | (indices >= bound)
    return f"index {int(indices[wrong][0])} is not in [0, {bound - 1}]" if wrong.any() else None


def _normalise(matrix: Any, entries: Any, name: str, smallest: float) -> Any:
    """Check the entries of a matrix and divide them by the sums of their rows."""
    is_sparse = bool(sparse.issparse(matrix))
    good = (entries == 0) | ((entries >= smallest) & (entries < np.inf))
    if not good.all():
        first = int(np.argmin(good))
        row, column = divmod(first, matrix.shape[1])
        if is_sparse:
            row = int(np.searchsorted(matrix.indptr, first, side="right")) - 1
            column = int(matrix.indices[first])
        value = float(entries.flat[first])
        where = f"got {value} in row {row}, column {column}"
        if 0 < value < smallest:
            raise StochasticError(f"{name} must have no positive probabilities below {smallest}, {where}")
        raise StochasticError(f"{name} must have finite, non-negative entries, {where}")
    with np.errstate(over="ignore"):  # an infinite sum raises an error below
        sums = np.asarray(matrix.sum(axis=1), dtype=np.float64).ravel()
    off = np.flatnonzero(np.abs(sums - 1.0) > PROBABILITY_TOLERANCE)
    if off.size:
        raise StochasticError(f"{name} must have rows that sum to 1, got {sums[off[0]]:.12g} in row {off[0]}")
    sums[np.abs(sums - 1.0) <= NORMALISATION_TOLERANCE] = 1.0
    entries /= np.repeat(sums, np.diff(matrix.indptr)) if is_sparse else sums[:, np.newaxis]
    return matrix
