"""Rows of numbers that may be too many for memory."""

from __future__ import annotations

import tempfile
from contextlib import suppress

import numpy as np

from dphmm.arrays import FloatArray
from dphmm.errors import OutputError

MAX_MEMORY_BYTES = 1 << 25


class RowFile:
    """Rows of numbers, in memory up to a limit and then in a temporary file without a name.

    Only this process can open the file. The operating system deletes it when it is closed, or when the process ends in
    any way. It is in the system's folder for temporary files (``TMPDIR``).

    Parameters
    ----------
    width
        The number of entries of a row.
    max_memory_bytes
        The size from which the rows are in a file.
    """

    def __init__(self, width: int, max_memory_bytes: int = MAX_MEMORY_BYTES) -> None:
        self._row_bytes = 8 * width
        self._count = 0
        self._file = tempfile.SpooledTemporaryFile(max_memory_bytes)  # noqa: SIM115 - open until `close`

    def __len__(self) -> int:
        return self._count

    def append(self, row: FloatArray) -> None:
        """Append a row.

        Raises
        ------
        OutputError
            If the temporary file cannot be written.
        """
        try:
            self._file.seek(self._count * self._row_bytes)
            self._file.write(row.astype(np.float64, copy=False).tobytes())
        except OSError as problem:
            raise _build_error(problem) from None
        self._count += 1

    def read(self, start: int, stop: int) -> FloatArray:
        """Return the rows from `start` to before `stop`, a copy.

        Raises
        ------
        OutputError
            If the temporary file cannot be written or read.
        """
        rows = np.empty((stop - start, self._row_bytes // 8))
        try:
            self._file.seek(start * self._row_bytes)
            self._file.readinto(rows.reshape(-1).view(np.uint8).data)
        except OSError as problem:
            raise _build_error(problem) from None
        return rows

    def close(self) -> None:
        """Close the file, which deletes it."""
        with suppress(OSError):  # what could not be written cannot be flushed either
            self._file.close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.close()


def _build_error(problem: OSError) -> OutputError:
    return OutputError(
        f"the smoothed metrics need a temporary file, which failed ({problem.strerror or problem}): set TMPDIR to a "
        "folder with enough space"
    )
