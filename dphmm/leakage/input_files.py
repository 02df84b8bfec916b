"""Readers of matrices, distributions and budgets."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from dphmm.arrays import FloatArray
from dphmm.errors import DataFileError
from dphmm.stochastic_matrix import build_csr
from dphmm.tables.numpy_files import read_npy, read_npz
from dphmm.tables.source import Allowance
from dphmm.tables.table import content_lines, join_names
from dphmm.tables.values import parse_fraction, parse_number, shorten_message


def read_matrix(path: str | Path) -> Any:
    """Read a matrix from a file, without checking that it is a transition matrix.

    Parameters
    ----------
    path
        ``.npz``: a sparse matrix as `scipy.sparse.save_npz` writes it, or an archive with exactly one array;
        ``.npy``: one array. Other files are text, one row per line, numbers separated by commas. Empty lines and
        everything after a ``#`` are ignored.

    Returns
    -------
    array ``(n, m)`` of float64, or scipy CSR array
        The matrix.

    Raises
    ------
    DataFileError
        When the file cannot be read, or contains no numbers or rows of different lengths. For text, with the line.
    """
    path = Path(path)
    if path.suffix.lower() not in {".npz", ".npy"}:
        return _read_text(path)
    try:
        if path.suffix.lower() == ".npy":
            return _convert_to_floats(read_npy(path))
        arrays = read_npz(path)
        if "format" in arrays and "data" in arrays:
            return build_csr(arrays)
        if len(arrays) != 1:
            raise ValueError(f"it must contain one array, got {len(arrays)} arrays: {join_names(list(arrays))}")
        return _convert_to_floats(*arrays.values())
    except DataFileError:
        raise
    except ValueError as problem:
        message = f"not a readable matrix ({shorten_message(problem)}): save it with numpy or scipy.sparse"
        raise DataFileError(path, message) from None


def read_numbers(path: str | Path) -> FloatArray:
    """Read all numbers of a file, row by row, as those of a distribution.

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
        As `read_matrix`, and for a sparse matrix that is too large in dense form.
    """
    values: Any = read_matrix(path)
    if not hasattr(values, "toarray"):
        return np.asarray(values).ravel()
    Allowance(path, Path(path).stat().st_size).take(8 * math.prod(values.shape))
    return np.asarray(values.toarray()).ravel()


def read_budgets(path: str | Path) -> list[Fraction | float]:
    """Read one budget for each time from a file.

    Parameters
    ----------
    path
        ``.npy`` or ``.npz``: one array ``(T,)``. Other files are text with one budget per line, a decimal number or a
        fraction. Empty lines and everything after a ``#`` are ignored.

    Returns
    -------
    list of Fraction or float
        The budgets, from text exactly.

    Raises
    ------
    DataFileError
        If the file cannot be read, or does not contain one budget for each time. For text, with the line.
    """
    path = Path(path)
    if path.suffix.lower() in {".npz", ".npy"}:
        values = read_matrix(path)
        if values.ndim != 1:
            raise DataFileError(path, f"must contain one budget for each time, got an array of shape {values.shape}")
        return list(values.tolist())
    budgets: list[Fraction | float] = []
    for line, content in content_lines(path):
        try:
            budgets.append(parse_fraction(content, "budget"))
        except ValueError as problem:
            raise DataFileError(path, f"{problem}: write one per line", line) from None
    if not budgets:
        raise DataFileError(path, "contains no budgets: write one per line")
    return budgets


def _convert_to_floats(array: Any) -> FloatArray:
    if array.dtype.kind not in "fiub":
        raise ValueError(f"it must contain numbers, got {array.dtype} values")
    return np.asarray(array, dtype=np.float64)


def _read_text(path: Path) -> FloatArray:
    rows: list[FloatArray] = []
    for line, content in content_lines(path):
        rows.append(_parse_row(path, line, content.split(",")))
        if rows[-1].size != rows[0].size:
            raise DataFileError(
                path, f"each row must have {rows[0].size} numbers, like the first, got {rows[-1].size}", line
            )
    if not rows:
        raise DataFileError(path, "contains no numbers: write one row per line, numbers separated by commas")
    return np.array(rows)


def _parse_row(path: Path, line: int, cells: list[str]) -> FloatArray:
    try:
        return np.array([parse_number(cell.strip(), f"value {at}") for at, cell in enumerate(cells, start=1)])
    except ValueError as problem:
        raise DataFileError(path, str(problem), line) from None
