"""Output files that appear whole or not at all, even after a power cut; private ones, for their owner alone."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from dphmm.arguments import checked
from dphmm.errors import ConfigurationError, DphmmError, OutputError, check_installed
from dphmm.tables.values import is_text, one_line

_OWNER_ONLY = 0o600
_SQLITE_LEFTOVERS = ("-journal", "-wal", "-shm")


@checked
def check_output(path: str | Path, overwrite: bool = False) -> Path:
    """Refuse the path of an output before any work is done for it: the one place where all outputs are looked at.

    Parameters
    ----------
    path
        The file.
    overwrite
        True where a file that exists may be replaced.

    Returns
    -------
    Path
        The same path.

    Raises
    ------
    OutputError
        When the file exists and may not be overwritten, its folder does not exist or may not be written to, or a folder
        is in its place.
    MissingDependencyError
        When a file of its extension takes a library that is not installed; naming the command that installs it.
    """
    path = _plain(path)
    check_extras(path)
    try:
        if path.is_dir():
            raise OutputError(f"{path} is a folder; name a file")
        if path.exists() and not overwrite:
            raise OutputError(f"{path} exists; name another file or pass --overwrite")
        if not path.parent.is_dir():
            raise OutputError(f"{path}: there is no folder {path.parent}; make it first")
        _check_may_write(path, path.parent)
    except OSError as problem:
        raise _refusal(path, problem) from None
    return path


EXTRAS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    ".gpkg": ("files", ("pyogrio", "geopandas")),
    ".parquet": ("files", ("pyarrow",)),
    ".geoparquet": ("files", ("pyarrow",)),
    ".gpx": ("files", ("gpxpy",)),
    **dict.fromkeys((".png", ".svg", ".pdf"), ("plots", ("matplotlib",))),
}
"""Extension → the extra that brings what such files take, and the libraries."""


def check_extras(path: Path) -> None:
    """Refuse a file whose extension takes a library that is not installed.

    Raises
    ------
    MissingDependencyError
        Naming the command that installs it.
    """
    extra, libraries = EXTRAS.get(path.suffix.lower(), ("", ()))
    for library in libraries:
        check_installed(library, extra)


@checked
def check_folder(path: str | Path) -> Path:
    """Refuse the path of a folder of outputs, which may be there or be made, before any work is done for it.

    Parameters
    ----------
    path
        The folder.

    Returns
    -------
    Path
        The same path.

    Raises
    ------
    OutputError
        When a file is in its place, or on the way to it, or it could not be written to.
    """
    path = _plain(path)
    try:
        there = next(one for one in (path, *path.absolute().parents) if one.exists())
        if not there.is_dir():
            raise OutputError(f"{there} is a file; name another folder")
        _check_may_write(path, there)
    except OSError as problem:
        raise _refusal(path, problem) from None
    return path


def check_outputs(files: Iterable[str | Path], overwrite: bool = False) -> None:
    """Refuse several outputs of one command, as `check_output`, or two that are one file.

    Raises
    ------
    OutputError, MissingDependencyError
        As `check_output`.
    """
    seen: set[Path] = set()
    for path in (check_output(one, overwrite) for one in files):
        if path.absolute() in seen:
            raise OutputError(f"{path} is named for two outputs; give each a file of its own")
        seen.add(path.absolute())


def _plain(path: str | Path) -> Path:
    path = Path(path)
    if "\0" in str(path) or not is_text(str(path)):
        raise OutputError(f"{path} is no path, since it holds a character that no name may hold; correct it")
    return path


def _check_may_write(path: Path, folder: Path) -> None:
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(
            f"{path}: nothing may be written to the folder {folder}; choose another, or change its permissions"
        )


@checked
@contextmanager
def new_file(path: str | Path, overwrite: bool = False, private: bool = False) -> Iterator[Path]:
    """Write a file under another name that becomes ``path`` when the block ends well, and is removed when it does not.

    The path handed out lies in the same folder, is hidden, and has the same extension. The final rename alone shows the
    file under its name, so no one ever reads half of it. Its content is on the disk before the rename, and the rename
    before the block is left, as far as the disk keeps its word: what was seen under its name is still there,
    whole, after a power cut.

    Parameters
    ----------
    path
        The file.
    overwrite
        True to replace a file that exists.
    private
        True to let only the owner read it, from its first byte on; a file that replaces such a file is private too.

    Yields
    ------
    Path
        Where to write.

    Raises
    ------
    OutputError
        When the file exists and may not be overwritten (also when it came to be during the block), or the system
        refuses to write it.
    """
    path = check_output(path, overwrite)
    part = path.with_name(f".{path.stem}.{secrets.token_hex(4)}.part{path.suffix}")
    try:
        if private or _is_private(path):
            os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, _OWNER_ONLY))
        yield part
        check_output(path, overwrite)
        _sync(part)
        os.replace(part, path)
        sync_folder(path.parent)
    except DphmmError:
        raise
    except OSError as problem:
        raise _refusal(path, problem) from None
    finally:
        for left in ("", *_SQLITE_LEFTOVERS):
            part.with_name(part.name + left).unlink(missing_ok=True)


@checked
@contextmanager
def new_private_file(path: str | Path, overwrite: bool = False) -> Iterator[Path]:
    """Write a file that must not be published, as `new_file` does: only its owner reads it, and its name says so.

    Parameters
    ----------
    path
        The file; its name contains ``private``.
    overwrite
        True to replace a file that exists.

    Yields
    ------
    Path
        Where to write.

    Raises
    ------
    ConfigurationError
        When the name does not say that it is private.
    OutputError
        As `new_file`.
    """
    with new_file(private_name(path), overwrite, private=True) as part:
        yield part


@checked
def private_name(path: str | Path) -> Path:
    """Refuse the path of a file that holds true places unless its name says that it is private.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    Path
        The same path.

    Raises
    ------
    ConfigurationError
        When its name does not contain ``private``; naming what to call it.
    """
    path = Path(path)
    if not path.name:
        raise ConfigurationError(f"{path} names no file; give one, such as PRIVATE-places.csv")
    if "private" not in path.name.lower():
        better = path.with_name(f"PRIVATE-{path.name}")
        raise ConfigurationError(f"{path}: the file tells true places; call it {better}, say")
    return path


def _is_private(path: Path) -> bool:
    return path.exists() and not path.stat().st_mode & 0o077


def sync_folder(folder: Path) -> None:
    """Write the names in a folder to the disk, where the system can."""
    with suppress(OSError):  # not every system opens folders, nor every file system syncs them
        _sync(folder)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@checked
def write_text(path: str | Path, text: str, overwrite: bool = False, private: bool = False) -> None:
    """Write a text file in UTF-8, whole or not at all; see `new_file`.

    Parameters
    ----------
    path
        The file.
    text
        Its content.
    overwrite
        True to replace a file that exists.
    private
        True to let only the owner read it.

    Raises
    ------
    OutputError
        When the file exists and may not be overwritten, or cannot be written.
    """
    with new_file(path, overwrite, private) as part:
        part.write_text(text, encoding="utf-8", newline="\n")


def _refusal(path: Path, problem: OSError) -> OutputError:
    reason = problem.strerror or one_line(problem)
    return OutputError(f"{path} cannot be written ({reason}); check the folder and its free space")
