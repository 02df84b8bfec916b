"""The folder of a run: what it was made by, and the parts that are finished."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dphmm
from dphmm.errors import ConfigurationError, DataFileError, OutputError
from dphmm.tables import new_file, write_text

_FACTS = "run.json"


@dataclass(frozen=True)
class Checkpoint:
    """A folder that a killed run can be taken up in.

    Parameters
    ----------
    folder
        Where it is. ``run.json`` says what the run is; ``parts/`` holds one Parquet file per finished task, which
        appears whole or not at all.
    """

    folder: Path

    @classmethod
    def open(cls, folder: Path, facts: Mapping[str, Any], resume: bool) -> Checkpoint:
        """Begin a run in a new or empty folder, or take up the one that is there.

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
            When the folder is in use and not to be resumed, or cannot be made.
        ConfigurationError
            When what is there was made by something else. Nothing is overwritten.
        """
        facts = {"version": dphmm.__version__, **facts}
        record, checkpoint = folder / _FACTS, cls(folder)
        if record.exists():
            if not resume:
                raise OutputError(f"{folder} holds a run already; go on with --resume or name another folder")
            checkpoint._check_same(facts)
            return checkpoint
        try:
            if folder.exists() and any(folder.iterdir()):
                raise OutputError(f"{folder} holds other files; name a new or empty folder")
            (folder / "parts").mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise OutputError(f"{folder} cannot be made ({problem.strerror}); choose another folder") from None
        write_text(record, json.dumps(facts, indent=1, sort_keys=True) + "\n")
        return checkpoint

    @property
    def facts(self) -> dict[str, Any]:
        """What the run is made by."""
        record = self.folder / _FACTS
        try:
            facts: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise DataFileError(record, "is no record of a run; name another folder") from None
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
        """Where the part of a task is, or will be."""
        return self.folder / "parts" / f"{index:06d}.parquet"

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
