"""The folder of a run: what it was made by, and the parts that are finished."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dphmm
from dphmm.errors import ConfigurationError, DataFileError, OutputError
from dphmm.jobs.lock import LOCK, FolderLock
from dphmm.tables import new_file, read_document, write_text
from dphmm.tables.json_text import read_json

_FACTS = "run.json"


@dataclass(frozen=True)
class Checkpoint:
    """A folder that a killed run can be taken up in.

    Parameters
    ----------
    folder
        Where it is. ``run.json`` says what the run is; ``parts/`` holds one file per finished task, which appears whole
        or not at all.
    lock
        What keeps other runs out, for a checkpoint that was opened.
    """

    folder: Path
    lock: FolderLock | None = field(default=None, repr=False, compare=False)

    @classmethod
    def open(cls, folder: Path, facts: Mapping[str, Any], resume: bool) -> Checkpoint:
        """Begin a run in a new or empty folder, or take up the one that is there; hold the folder until `close`.

        Parameters
        ----------
        folder
            Where.
        facts
            What the run is made by: it is taken up only by one of the same facts and of this package's version.
        resume
            Whether a run may be there already.

        Raises
        ------
        OutputError
            When the folder is in use and not to be resumed, is held by another run, or cannot be made.
        ConfigurationError
            When what is there was made by something else. Nothing is overwritten.
        """
        cls.look(folder, facts, resume)
        facts = {"version": dphmm.__version__, **facts}
        try:
            (folder / "parts").mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise OutputError(f"{folder} cannot be made ({problem.strerror}); choose another folder") from None
        checkpoint = cls(folder, FolderLock(folder))
        try:
            checkpoint._check(facts, resume)  # again: another run may have been there in the meantime
            if not checkpoint._record.exists():
                write_text(checkpoint._record, json.dumps(facts, indent=1, sort_keys=True) + "\n")
        except BaseException:
            checkpoint.close()
            raise
        return checkpoint

    @classmethod
    def look(cls, folder: Path, facts: Mapping[str, Any], resume: bool) -> None:
        """Refuse what `open` would refuse of what is in the folder, and leave it as it is."""
        cls(folder)._check({"version": dphmm.__version__, **facts}, resume)

    def close(self) -> None:
        """Let other runs take the folder up."""
        if self.lock is not None:
            self.lock.release()

    def _check(self, facts: Mapping[str, Any], resume: bool) -> None:
        if self._record.exists():
            if not resume:
                raise OutputError(f"{self.folder} holds a run already; go on with --resume or name another folder")
            self._check_same(facts)
            return
        try:
            found = [path.name for path in self.folder.iterdir()] if self.folder.exists() else []
            if not {LOCK, "parts"}.issuperset(found) or ("parts" in found and any((self.folder / "parts").iterdir())):
                raise OutputError(f"{self.folder} holds other files; name a new or empty folder")
        except OSError as problem:
            raise OutputError(f"{self.folder} cannot be read ({problem.strerror}); choose another folder") from None

    @property
    def _record(self) -> Path:
        return self.folder / _FACTS

    @property
    def facts(self) -> dict[str, Any]:
        """What the run is made by."""
        facts = read_json(read_document(self._record))
        if not isinstance(facts, dict):
            raise DataFileError(self._record, "is no record of a run; name another folder")
        return facts

    def _check_same(self, asked: Mapping[str, Any]) -> None:
        found = self.facts
        for name in sorted(set(found) | set(asked)):
            if found.get(name) != asked.get(name):
                what = name.replace("_", " ")
                raise ConfigurationError(
                    f"{self.folder} was made by another {what}; resume with that one, or name a new folder"
                )

    def part(self, index: int) -> Path:
        """Where the part of a task is, or will be. It holds true places."""
        return self.folder / "parts" / f"PRIVATE-{index:06d}.parquet"

    def write_part(self, index: int, write: Callable[[Path], None]) -> None:
        """Have the part of a task written beside its place, and move it there."""
        with new_file(self.part(index), overwrite=True, private=True) as part:
            write(part)


def file_hash(path: str | Path) -> str:
    """The SHA-256 of a file, or of the names and contents of a folder's files, in hexadecimal.

    Raises
    ------
    DataFileError
        When there is no such file, or it cannot be read.
    """
    path = Path(path)
    try:
        if path.is_dir():
            files = sorted(file for file in path.rglob("*") if file.is_file())
            lines = [f"{file.relative_to(path).as_posix()} {_hash_of_file(file)}\n" for file in files]
            return hashlib.sha256("".join(lines).encode()).hexdigest()
        return _hash_of_file(path)
    except OSError as problem:
        raise DataFileError(path, f"cannot be read ({problem.strerror}); check the path") from None


def _hash_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
