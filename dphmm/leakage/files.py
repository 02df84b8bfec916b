"""Matrices and lists of budgets from files, each problem with its line."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from dphmm.arrays import FloatArray
from dphmm.errors import DataFileError
from dphmm.stochastic import csr_of_arrays
from dphmm.tables.binary_files import read_npy, read_npz
from dphmm.tables.source import Allowance
from dphmm.tables.table import content_lines, listed
from dphmm.tables.values import one_line, parse_number


def read_matrix(path: str | Path) -> Any:
    """Read a matrix from a file; whether it is a transition matrix is for its users to say.

    Parameters
    ----------
    path
        ``.npz``: a sparse matrix as `scipy.sparse.save_npz` writes it, or an archive with exactly one array;
        ``.npy``: one array; anything else: text, one row a line, numbers separated by commas; empty lines and what
        follows a ``#`` are passed over.

    Returns
    -------
    array ``(n, m)`` of float64, or scipy CSR array
        The matrix.

    Raises
    ------
    DataFileError
        When the file cannot be read, holds no numbers or rows of different lengths; with the line for text.
    """
    path = Path(path)
    if path.suffix.lower() not in {".npz", ".npy"}:
        return _read_text(path)
    try:
        if path.suffix.lower() == ".npy":
            return _numbers(read_npy(path))
        arrays = read_npz(path)
        if "format" in arrays and "data" in arrays:
            return csr_of_arrays(arrays)
        if len(arrays) != 1:
            raise ValueError(f"it holds {len(arrays)} arrays, one is wanted: {listed(list(arrays))}")
        return _numbers(*arrays.values())
    except DataFileError:
        raise
    except ValueError as problem:
        raise DataFileError(
            path, f"not a readable matrix ({one_line(problem)}); save it with numpy or scipy.sparse"
        ) from None


def read_numbers(path: str | Path) -> FloatArray:
    """Read all numbers of a file, row after row: budgets by time, or a distribution.

    Parameters
    ----------
    path
        As for `read_matrix`.

    Returns
    -------
    array ``(n,)`` of float64
        The numbers.

    Raises
    ------
    DataFileError
        As `read_matrix`, and for a sparse matrix that is too large to be written out.
    """
    values: Any = read_matrix(path)
    if not hasattr(values, "toarray"):
        return np.asarray(values).ravel()
    Allowance(path, Path(path).stat().st_size).take(8 * math.prod(values.shape))
    return np.asarray(values.toarray()).ravel()


def _numbers(array: Any) -> FloatArray:
    if array.dtype.kind not in "fiub":
        raise ValueError(f"it holds {array.dtype} values, numbers are wanted")
    return np.asarray(array, dtype=np.float64)


def _read_text(path: Path) -> FloatArray:
    rows: list[FloatArray] = []
    for line, content in content_lines(path):
        rows.append(_row(path, line, content.split(",")))
        if rows[-1].size != rows[0].size:
            raise DataFileError(path, f"{rows[-1].size} numbers, the first row has {rows[0].size}", line)
    if not rows:
        raise DataFileError(path, "holds no numbers; give one row a line, numbers separated by commas")
    return np.array(rows)


def _row(path: Path, line: int, cells: list[str]) -> FloatArray:
    try:
        return np.array([parse_number(cell.strip(), f"value {at}") for at, cell in enumerate(cells, start=1)])
    except ValueError as problem:
        raise DataFileError(path, str(problem), line) from None
