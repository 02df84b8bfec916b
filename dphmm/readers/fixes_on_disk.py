"""Fixes on disk, from which the users are read in groups whatever the order of the input.

A file in order of time has fixes of every user in each of its parts. Its fixes are sorted by user part by part and
written to one temporary file. A group of users is then one stretch of each part, so that every fix is read once.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from dphmm.arrays import IntArray
from dphmm.errors import OutputError
from dphmm.readers.fixes import Fixes, ReadResult, build_trajectories, order_by_user, remove_refused
from dphmm.space.fix_quality import Region

# User, time, latitude, longitude and accuracy of a fix: one column after another within a part.
_COLUMNS = tuple(map(np.dtype, ("i8", "M8[us]", "f8", "f8", "f8")))
_CELL_BYTES = 8


class FixesOnDisk:
    """The fixes of many users in a temporary file without a name.

    Only this process can open the file. The operating system deletes it when it is closed, or when the process ends in
    any way. It takes 32 bytes per fix, 40 with accuracies, in the system's folder for temporary files (``TMPDIR``).
    Invalid and inaccurate fixes are refused before they are written; see `dphmm.space.fix_quality`.

    Parameters
    ----------
    parts
        For each part of the input, the user of each row, ``(n,)``, an index of `names`, and the fixes.
    names
        The users in order of first occurrence. May grow while the parts are read.
    source
        The input, for messages.
    region
        The region of the model; see `dphmm.readers.fixes.build_trajectories`.
    has_accuracy
        Whether accuracies are stored.

    Raises
    ------
    OutputError
        If the temporary file cannot be written.
    """

    def __init__(
        self,
        parts: Iterable[tuple[IntArray, Fixes]],
        names: list[str],
        source: str,
        region: Region | None = None,
        has_accuracy: bool = False,
    ) -> None:
        self._names = names
        self._region = region
        self._columns = _COLUMNS if has_accuracy else _COLUMNS[:-1]
        self._refused = Counter[str]()
        self._source = source
        # The number of rows of each user, malformed ones included, and the number of fixes of each part.
        self._num_rows = np.zeros(0, dtype=np.int64)
        self._has_fix = np.zeros(0, dtype=np.bool_)
        self._sizes: list[int] = []
        self._num_skipped = 0
        try:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - open until `close`
            for users, fixes in parts:
                self._add(users, fixes)
            self._file.flush()
        except OSError as problem:
            raise self._build_error(problem) from None

    @property
    def users(self) -> list[str]:
        """The users with at least one fix, in order of first occurrence."""
        return [name for name, has_fix in zip(self._names, self._has_fix.tolist(), strict=True) if has_fix]

    def close(self) -> None:
        """Close the file, which deletes it."""
        if hasattr(self, "_file"):
            with suppress(OSError):  # what could not be written cannot be flushed either
                self._file.close()

    def __del__(self) -> None:
        self.close()

    def _add(self, users: IntArray, fixes: Fixes) -> None:
        num_rows = np.bincount(users, minlength=len(self._names))
        num_rows[: len(self._num_rows)] += self._num_rows
        self._num_rows = num_rows
        self._num_skipped += fixes.skipped
        fixes = remove_refused(fixes, self._region, self._refused)
        owner = fixes.owner
        if fixes.names != tuple(self._names):
            index = {name: at for at, name in enumerate(self._names)}
            owner = np.array([index[str(name)] for name in fixes.names], dtype=np.int64)[owner]
        has_fix = np.zeros(len(self._names), dtype=np.bool_)
        has_fix[: len(self._has_fix)] = self._has_fix
        has_fix[owner] = True
        self._has_fix = has_fix
        # Stable: of two equally accurate fixes of a user with the same timestamp the later one is kept.
        order = order_by_user(owner)
        accuracy = np.full(len(owner), np.nan) if fixes.accuracy_m is None else fixes.accuracy_m
        columns = (owner, fixes.times, fixes.latitude, fixes.longitude, accuracy)
        for column in columns[: len(self._columns)]:
            self._file.write(_view_bytes(column[order]))
        self._sizes.append(len(owner))

    def read_by_users(self, max_fixes: int) -> Iterator[ReadResult]:
        """Yield the trajectories in groups of users, in the order in which users first occur.

        Parameters
        ----------
        max_fixes
            Maximum number of rows of the users of a group, exceeded only by a single user with more.

        Yields
        ------
        ReadResult
            The trajectories of one group of users. The first contains the numbers of all skipped and refused records.

        Raises
        ------
        OutputError
            If the temporary file cannot be read.
        """
        firsts = _find_first_users(self._num_rows, max_fixes)
        try:
            cuts = [
                np.searchsorted(self._read_column(part, 0, 0, size), firsts) for part, size in enumerate(self._sizes)
            ]
            for group, (first, last) in enumerate(zip(firsts[:-1].tolist(), firsts[1:].tolist(), strict=True)):
                stretches = [(part, int(cut[group]), int(cut[group + 1])) for part, cut in enumerate(cuts)]
                owner, times, latitude, longitude, *accuracy = (
                    np.concatenate([self._read_column(part, column, start, end) for part, start, end in stretches])
                    for column in range(len(self._columns))
                )
                fixes = Fixes(
                    self._source,
                    tuple(self._names[first:last]),
                    owner - first,
                    times,
                    latitude,
                    longitude,
                    0 if group else self._num_skipped,
                    next(iter(accuracy), None),
                )
                result = build_trajectories([fixes], region=self._region)
                yield result if group else replace(result, refused=dict(self._refused))
        except OSError as problem:
            raise self._build_error(problem) from None

    def _read_column(self, part: int, column: int, start: int, end: int) -> Any:
        values = np.empty(end - start, self._columns[column])
        num_cells = len(self._columns) * sum(self._sizes[:part]) + column * self._sizes[part] + start
        self._file.seek(_CELL_BYTES * num_cells)
        self._file.readinto(_view_bytes(values))
        return values

    def _build_error(self, problem: OSError) -> OutputError:
        return OutputError(
            f"the fixes of {self._source} cannot be stored in a temporary file ({problem.strerror or problem}): set "
            "TMPDIR to a folder with enough space"
        )


def _find_first_users(num_rows: IntArray, max_fixes: int) -> IntArray:
    """Return the first user of each group, and after them the number of users."""
    firsts = [0] if len(num_rows) else []
    count = 0
    for user, size in enumerate(num_rows.tolist()):
        if user > firsts[-1] and count + size > max_fixes:
            firsts.append(user)
            count = 0
        count += size
    return np.array([*firsts, len(num_rows)], dtype=np.int64)


def _view_bytes(values: Any) -> memoryview:
    """Return the memory of an array, also of times, which have no buffer of their own."""
    return memoryview(values.view(np.uint8))
