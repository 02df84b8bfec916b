"""Atomic and durable output files, and private ones that only their owner can read."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from dphmm.errors import ConfigurationError, DphmmError, OutputError, check_installed
from dphmm.tables.values import is_text, shorten_message
from dphmm.validation import check_arguments

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]  # a module by its stubs

# Permissions of private files.
OWNER_ONLY = 0o600
_SQLITE_LEFTOVERS = ("-journal", "-wal", "-shm")


@check_arguments
def check_output(path: str | Path, overwrite: bool = False) -> Path:
    """Check the path of an output before any work is done for it.

    Parameters
    ----------
    path
        The file.
    overwrite
        True if an existing file may be replaced.

    Returns
    -------
    Path
        The same path.

    Raises
    ------
    OutputError
        If the file exists and may not be overwritten, its folder does not exist or is not writable, or the path is a
        folder, a device or a pipe.
    MissingDependencyError
        If its extension needs a library that is not installed. The message contains the command that installs it.
    """
    path = _check_path(path)
    check_extras(path)
    try:
        if path.is_dir():
            raise OutputError(f"{path} is a folder; name a file")
        if path.exists() and not path.is_file():  # the final rename would replace a device or a pipe
            raise OutputError(f"{path} is not a regular file; name another file")
        if path.exists() and not overwrite:
            raise OutputError(f"{path} exists; name another file or pass --overwrite")
        if not path.parent.is_dir():
            raise OutputError(f"{path}: the folder {path.parent} does not exist; create it first")
        _check_may_write(path, path.parent)
    except OSError as problem:
        raise _build_write_error(path, problem) from None
    return path


# Extension → the extra to install, and the libraries that such files need.
EXTRAS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    ".gpkg": ("files", ("pyogrio", "geopandas")),
    ".parquet": ("files", ("pyarrow",)),
    ".geoparquet": ("files", ("pyarrow",)),
    ".gpx": ("files", ("gpxpy",)),
    **dict.fromkeys((".png", ".svg", ".pdf"), ("plots", ("matplotlib",))),
}


def check_extras(path: Path) -> None:
    """Raise an error if the extension of a file needs a library that is not installed.

    Raises
    ------
    MissingDependencyError
        With the command that installs it.
    """
    extra, libraries = EXTRAS.get(path.suffix.lower(), ("", ()))
    for library in libraries:
        check_installed(library, extra)


@check_arguments
def check_folder(path: str | Path) -> Path:
    """Check the path of a folder of outputs, existing or not, before any work is done.

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
        If the path or one of its parents is a file, or it is not writable.
    """
    path = _check_path(path)
    try:
        there = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
        if not there.is_dir():
            raise OutputError(f"{there} is a file; name another folder")
        _check_may_write(path, there)
    except OSError as problem:
        raise _build_write_error(path, problem) from None
    return path


def check_outputs(files: Iterable[str | Path], overwrite: bool = False) -> None:
    """Check several outputs of one command, as `check_output`, and that they are distinct.

    Raises
    ------
    OutputError, MissingDependencyError
        As for `check_output`; also if two outputs are the same file.
    """
    seen: set[Path] = set()
    for path in (check_output(file, overwrite) for file in files):
        if path.absolute() in seen:
            raise OutputError(f"{path} is named for two outputs; use a separate file for each")
        seen.add(path.absolute())


def _check_path(path: str | Path) -> Path:
    path = Path(path)
    if "\0" in str(path) or not is_text(str(path)):
        raise OutputError(f"path contains a character that is not allowed, got {str(path)!r}")
    return path


def _check_may_write(path: Path, folder: Path) -> None:
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(f"{path}: the folder {folder} is not writable; choose another, or change its permissions")


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Wait until no other process has locked a folder, and lock it within the block.

    For a file that is read and then replaced, which cannot have a lock. No lock file is left. Nothing is locked on
    Windows, and on network file systems that have no locks of folders.

    Parameters
    ----------
    folder
        The folder; nothing is locked if it does not exist.

    Raises
    ------
    OutputError
        If the folder exists and may not be read, which a lock requires.
    """
    with ExitStack() as stack:
        if fcntl is not None:
            with suppress(OSError):
                try:
                    descriptor = os.open(folder, os.O_RDONLY)
                except PermissionError:
                    raise OutputError(
                        f"the folder {folder} must be readable to be locked; choose another, or change its permissions"
                    ) from None
                stack.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


@check_arguments
@contextmanager
def create_file(path: str | Path, overwrite: bool = False, private: bool = False) -> Iterator[Path]:
    """Write a file atomically: under a temporary name that becomes ``path`` on success.

    The temporary file lies in the same folder, is hidden, and has the same extension. It is removed if the block raises
    an error. The file appears under its name by the final rename only, so that it is never read half-written. Its
    content is synced before the rename, and the folder after it, before the block is left. If the disk honours syncs,
    a file that was visible under its name is still there, complete, after a power cut.

    Parameters
    ----------
    path
        The file.
    overwrite
        True to replace an existing file.
    private
        True to let only the owner read it, from its first byte on. A file that replaces such a file is private, too.

    Yields
    ------
    Path
        The path to write to.

    Raises
    ------
    OutputError
        If the file exists and may not be overwritten (also if it was created during the block), or the system refuses
        to write it.
    """
    path = check_output(path, overwrite)
    part = path.with_name(f".{path.stem}.{secrets.token_hex(4)}.part{path.suffix}")
    try:
        if private or _is_private(path):
            os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, OWNER_ONLY))
        yield part
        check_output(path, overwrite)
        sync_file(part)
        os.replace(part, path)
        sync_folder(path.parent)
    except OutputError as problem:  # of the block, which knows the temporary name only
        raise OutputError(str(problem).replace(str(part), str(path))) from None
    except DphmmError:
        raise
    except OSError as problem:
        raise _build_write_error(path, problem) from None
    finally:
        for left in ("", *_SQLITE_LEFTOVERS):
            part.with_name(part.name + left).unlink(missing_ok=True)


@check_arguments
@contextmanager
def create_private_file(path: str | Path, overwrite: bool = False) -> Iterator[Path]:
    """Write a file that must not be published. Only its owner can read it.

    It is written as by `create_file`, and its name must contain ``private``.

    Parameters
    ----------
    path
        The file; its name contains ``private``.
    overwrite
        True to replace an existing file.

    Yields
    ------
    Path
        The path to write to.

    Raises
    ------
    ConfigurationError
        If the name does not contain ``private``.
    OutputError
        As for `create_file`.
    """
    with create_file(private_name(path), overwrite, private=True) as part:
        yield part


@check_arguments
def private_name(path: str | Path) -> Path:
    """Check that the name of a file with true locations contains ``private``.

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
        If its name does not contain ``private``. The message suggests a name.
    """
    path = Path(path)
    if not path.name:
        raise ConfigurationError(f"path must name a file such as PRIVATE-places.csv, got {str(path)!r}")
    if "private" not in path.name.lower():
        better = path.with_name(f"PRIVATE-{path.name}")
        raise ConfigurationError(f"{path}: the name of a file with true locations must contain 'private'; use {better}")
    return path


def _is_private(path: Path) -> bool:
    return path.exists() and not path.stat().st_mode & 0o077


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder to the disk, if the system supports it."""
    with suppress(OSError):  # not every system opens folders, nor every file system syncs them
        sync_file(folder)


def sync_file(path: Path) -> None:
    """Sync the content of a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@check_arguments
def write_text(path: str | Path, text: str, overwrite: bool = False, private: bool = False) -> None:
    """Write a text file in UTF-8 atomically. See `create_file`.

    Parameters
    ----------
    path
        The file.
    text
        Its content.
    overwrite
        True to replace an existing file.
    private
        True to let only the owner read it.

    Raises
    ------
    OutputError
        If the file exists and may not be overwritten, or cannot be written.
    """
    with create_file(path, overwrite, private) as part:
        part.write_text(text, encoding="utf-8", newline="\n")


def _build_write_error(path: Path, problem: OSError) -> OutputError:
    reason = problem.strerror or shorten_message(problem)
    return OutputError(f"{path} cannot be written ({reason}); check the folder and its free space")
