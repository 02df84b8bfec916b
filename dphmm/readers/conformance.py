"""Checks of a reader, shipped or registered, by a file with known content."""

from __future__ import annotations

import gzip
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dphmm.errors import DataFileError, DphmmError
from dphmm.readers.fixes import ReadOptions
from dphmm.readers.formats import READER_REGISTRY, find_format
from dphmm.readers.reader_choice import recognise
from dphmm.readers.reading import read
from dphmm.space.trajectory import Trajectory
from dphmm.tables.source import Document, read_document
from dphmm.tables.values import shorten_message
from dphmm.validation import check_arguments

# Formats round coordinates: FIT to 8e-8 degrees.
_TOLERANCE_DEGREES = 1e-6
_NUM_DAMAGED = 200
_SEED = 7


@check_arguments
def check_reader(name: str, path: str | Path, trajectories: Sequence[Trajectory]) -> None:
    """Check a reader by a file with known content.

    The file must be recognised, and must contain exactly the trajectories: users, times, and coordinates within a
    millionth of a degree. This must also hold for the file packed with gzip, in a folder, and in a ZIP and a tar
    archive, and when it is read again. Of 200 damaged copies (bytes replaced, file truncated; fixed seed) each must be
    read or raise an error of dphmm. An empty file must raise `DataFileError`.

    A pass is evidence and not a proof: it shows nothing about files with other content. Choose trajectories of several
    users with coordinates that differ, and set another time zone (``TZ``) than UTC, so that swapped coordinates and
    local times are detected.

    Parameters
    ----------
    name
        The name of a registered reader, or one of `dphmm.readers.FORMATS`.
    path
        The file, neither packed nor an archive.
    trajectories
        Its content, in the order of the users' names.

    Raises
    ------
    DataFileError
        If a check fails.
    ConfigurationError
        If there is no such format.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from dphmm import Trajectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "a.csv")
    ...     _ = path.write_text("user,time,latitude,longitude\\nann,2024-03-07T08:00Z,45,-30\\n")
    ...     check_reader("table", path, [Trajectory("ann", ["2024-03-07T08:00"], [45.0], [-30.0])])
    """
    path = Path(path)
    file_format = find_format(name)
    recognised = recognise(path)
    if recognised != name:
        raise DataFileError(path, f"must be recognised as {name!r}, got {recognised!r}")
    with tempfile.TemporaryDirectory() as folder:
        for copy in (path, path, *_write_copies(path, Path(folder))):
            try:
                result = read(copy, may_be_empty=True)
            except DataFileError as problem:
                raise DataFileError(path, f"reader {name!r} must read {copy.name}: {problem.problem}") from problem
            _compare(copy.name, result.trajectories, trajectories, path, name)
        empty = Path(folder, f"empty{path.suffix}")
        empty.touch()
        try:
            read(empty, name)
        except DataFileError:
            pass
        else:
            raise DataFileError(path, f"reader {name!r} must refuse an empty file")
    data = read_document(path).data
    rng = np.random.default_rng(_SEED)
    for number in range(_NUM_DAMAGED):
        document = Document(str(path), read_document(path).name, _damage(data, rng))
        try:
            if file_format.is_own:  # directly, because `read` converts every error
                list(READER_REGISTRY.find(name)().read(document))
            else:
                list(file_format.fixes(document, ReadOptions()))
        except DphmmError:
            continue
        except Exception as problem:  # the tested class can raise any error
            raise DataFileError(
                path,
                f"reader {name!r} must raise DataFileError for a malformed file, got {type(problem).__name__} "
                f"({shorten_message(problem)}) for damaged copy {number}",
            ) from problem


def _write_copies(path: Path, folder: Path) -> list[Path]:
    """Write the file packed, to a folder and to archives."""
    packed, inside, archive, tar = (folder / name for name in (f"{path.name}.gz", "folder", "all.zip", "all.tar.gz"))
    packed.write_bytes(gzip.compress(path.read_bytes()))
    inside.mkdir()
    shutil.copy(path, inside)
    with zipfile.ZipFile(archive, "w") as zip_file:
        zip_file.write(path, path.name)
    with tarfile.open(tar, "w:gz") as tar_file:
        tar_file.add(path, path.name)
    return [packed, inside, archive, tar]


def _compare(copy: str, results: Sequence[Trajectory], expected: Sequence[Trajectory], path: Path, name: str) -> None:
    """Raise an error with the first difference."""
    users = [[track.user for track in tracks] for tracks in (expected, results)]
    if users[0] != users[1]:
        raise DataFileError(path, f"reader {name!r} must read users {users[0]}, got {users[1]}, from {copy}")
    for result, track in zip(results, expected, strict=True):
        difference = _find_difference(result, track)
        if difference is not None:
            raise DataFileError(path, f"reader {name!r} must read {difference}, from {copy}")


def _find_difference(result: Trajectory, expected: Trajectory) -> str | None:
    user = expected.user
    if len(result) != len(expected):
        return f"{len(expected)} fixes of user {user!r}, got {len(result)}"
    rows = np.flatnonzero(result.times != expected.times)
    if rows.size:
        return f"time {expected.times[rows[0]]} of user {user!r} at index {rows[0]}, got {result.times[rows[0]]}"
    places = [np.column_stack([track.latitude, track.longitude]) for track in (expected, result)]
    rows = np.flatnonzero(np.abs(places[0] - places[1]).max(axis=1) > _TOLERANCE_DEGREES)
    if rows.size:
        wanted, got = (array[rows[0]].tolist() for array in places)
        return f"location {wanted} of user {user!r} at index {rows[0]}, got {got}"
    return None


def _damage(data: bytes, rng: np.random.Generator) -> bytes:
    """Replace up to four bytes, and truncate every other copy."""
    damaged = bytearray(data)
    for at in rng.integers(0, len(damaged), rng.integers(1, 5)).tolist():
        damaged[at] = int(rng.integers(0, 256))
    return bytes(damaged[: int(rng.integers(0, len(damaged)))] if rng.random() < 0.5 else damaged)
