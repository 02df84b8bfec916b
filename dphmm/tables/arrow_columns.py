"""Columns of Arrow, built from buffers.

They are not made by `pyarrow.array`, because it imports pandas, which takes longer than everything else for the few
releases of one user.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.errors import import_library


def build_column(values: npt.NDArray[Any], kind: str) -> Any:
    """Return values ``(n,)`` of a kind of column as an array of Arrow, missing numbers as NaN."""
    pa = import_library("pyarrow", "files")
    if kind == "text":
        return build_binary_column(pa.large_string(), [text.encode() for text in values.tolist()])
    stored = {"time": pa.timestamp("us", "UTC"), "count": pa.int64(), "number": pa.float64(), "flag": pa.bool_()}[kind]
    data = np.packbits(values, bitorder="little") if kind == "flag" else np.ascontiguousarray(values).view(np.int64)
    return pa.Array.from_buffers(stored, len(values), [None, pa.py_buffer(data)])


def build_binary_column(stored: Any, values: Sequence[bytes | None]) -> Any:
    """Return values of a large text or binary type as an array of Arrow, null if None."""
    pa = import_library("pyarrow", "files")
    ends = np.cumsum([0, *(len(value or b"") for value in values)], dtype=np.int64)
    validity = np.packbits(np.array([value is not None for value in values], dtype=np.bool_), bitorder="little")
    buffers = (validity, ends, b"".join(value or b"" for value in values))
    return pa.Array.from_buffers(stored, len(values), list(map(pa.py_buffer, buffers)))
