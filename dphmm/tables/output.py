"""Output files that appear whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dphmm.errors import DphmmError, OutputError
from dphmm.tables.values import one_line

_OWNER_ONLY = 0o600
_SQLITE_LEFTOVERS = ("-journal", "-wal", "-shm")


def check_output(path: str | Path, overwrite: bool = False) -> Path:
    """The path of an output, refused before any work is done for it.

    Raises
    ------
    OutputError
        When the file exists and may not be overwritten, or its folder does not exist, or a folder is in its place.
    """
    path = Path(path)
    try:
        if path.is_dir():
            raise OutputError(f"{path} is a folder; name a file")
        if path.exists() and not overwrite:
            raise OutputError(f"{path} exists; name another file or pass --overwrite")
        if not path.parent.is_dir():
            raise OutputError(f"{path}: there is no folder {path.parent}; make it first")
    except OSError as problem:
        raise _refusal(path, problem) from None
    return path


@contextmanager
def new_file(path: str | Path, overwrite: bool = False, private: bool = False) -> Iterator[Path]:
    """A path to write to that becomes ``path`` when the block ends well, and vanishes when it does not.

    The path handed out lies in the same folder, is hidden, and has the same extension. Only the final rename shows
    the file under its name, so nobody ever reads half of it.

    Parameters
    ----------
    path
        Where the file is to be.
    overwrite
        True to replace a file that exists.
    private
        True to let only the owner read it, from its first byte on.

    Raises
    ------
    OutputError
        When the file exists and may not be overwritten (also when it came to be during the block), or the system
        refuses to write it.
    """
    path = check_output(path, overwrite)
    part = path.with_name(f".{path.stem}.{secrets.token_hex(4)}.part{path.suffix}")
    try:
        if private:
            os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, _OWNER_ONLY))
        yield part
        check_output(path, overwrite)
        os.replace(part, path)
    except DphmmError:
        raise
    except OSError as problem:
        raise _refusal(path, problem) from None
    finally:
        for left in ("", *_SQLITE_LEFTOVERS):
            part.with_name(part.name + left).unlink(missing_ok=True)


def write_text(path: str | Path, text: str, overwrite: bool = False, private: bool = False) -> None:
    """Write a text file in UTF-8, whole or not at all; see `new_file`."""
    with new_file(path, overwrite, private) as part:
        part.write_text(text, encoding="utf-8", newline="\n")


def _refusal(path: Path, problem: OSError) -> OutputError:
    reason = problem.strerror or one_line(problem)
    return OutputError(f"{path} cannot be written ({reason}); check the folder and its free space")
