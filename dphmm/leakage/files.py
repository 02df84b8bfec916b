"""Matrices and lists of budgets from files, each problem with its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from dphmm.arrays import FloatArray
from dphmm.errors import DataFileError
from dphmm.tables.delimited import content_lines
from dphmm.tables.source import readable
from dphmm.tables.values import parse_number


def read_matrix(path: str | Path) -> Any:
    """A matrix from a file; whether it is a transition matrix is for those to say who use it.

    Parameters
    ----------
    path
        ``.npz``: a sparse matrix as `scipy.sparse.save_npz` writes it, or an archive with exactly one array;
        ``.npy``: one array; anything else: text, one row a line, numbers separated by commas; empty lines and what
        follows a ``#`` are passed over.

    Returns
    -------
    array ``(n, m)`` of float64, or scipy CSR array

    Raises
    ------
    DataFileError
        When the file cannot be read, holds no numbers or rows of different lengths; with the line for text.
    """
    path = Path(path)
    if path.suffix.lower() not in {".npz", ".npy"}:
        return _read_text(path)
    with readable(path):
        try:
            return _read_binary(path)
        except (ValueError, KeyError) as problem:
            detail = " ".join(str(problem).split())
            raise DataFileError(path, f"not a readable matrix ({detail}); save it with numpy or scipy.sparse") from None


def read_numbers(path: str | Path) -> FloatArray:
    """All numbers of a file, row after row: budgets by time, or a distribution.

    Raises
    ------
    DataFileError
        As `read_matrix`.
    """
    values: Any = read_matrix(path)
    return np.asarray(values.toarray() if hasattr(values, "toarray") else values).ravel()


def _read_binary(path: Path) -> Any:
    found = np.load(path, allow_pickle=False)
    if isinstance(found, np.ndarray):
        return _numbers(found)
    with found:
        names = found.files
        if "format" in names and "data" in names:
            return sp.csr_array(sp.load_npz(path))
        if len(names) != 1:
            raise ValueError(f"it holds {len(names)} arrays, one is wanted: {', '.join(names)}")
        return _numbers(found[names[0]])


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
