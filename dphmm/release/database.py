"""An SQLite file of our own: made whole, opened only when it is ours, and sure of its space before it is needed."""

from __future__ import annotations

import os
import secrets
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

from dphmm.errors import DataFileError, OutputError, SessionBusyError

_OWNER_ONLY = 0o600
_MAGIC = b"SQLite format 3\0"
_WAL_MAGIC = (0x377F0682, 0x377F0683)
_WAL_HEADER, _FRAME_HEADER = 32, 24
_PAGE = 4096
_EXTENSION = 1 << 20
"""The log grows by so many bytes where there is room: most commits then write to blocks that exist, which is faster."""
_SIDE_FILES = ("-wal", "-shm", "-journal")

_open_files: Counter[tuple[int, int]] = Counter()
"""Files that this process has open, by device and inode."""
_opening = threading.RLock()


class Database:
    """One connection to an SQLite file of a given application, in WAL mode with ``synchronous=FULL``.

    A transaction that has committed survives the process and, where the disk keeps its word, the power.

    Parameters
    ----------
    path
        The file; it exists.
    application, version
        The application id and the format's version that its header must show.
    schema
        The statements that make its tables, separated by semicolons.
    wait_seconds
        How long to wait for another process.
    readonly
        Whether nothing will be written.

    Raises
    ------
    DataFileError
        When the file is absent, not of this application and version, or damaged. It is left as it is.
    OutputError
        When it is to be written and cannot be.
    """

    def __init__(
        self,
        path: str | Path,
        application: int,
        version: int,
        schema: str,
        wait_seconds: float = 30.0,
        readonly: bool = False,
    ) -> None:
        self.path = Path(os.path.abspath(path))
        self._schema = {statement.strip() for statement in schema.split(";")}
        self._wait = wait_seconds
        self._process = os.getpid()
        with _opening, self._plain_errors():
            self._key = self._check_header(application, version)
            if not readonly and not os.access(self.path, os.W_OK):
                raise OutputError(f"{path} may not be written; change its permissions, or use another file")
            self._check_content()
            self._connection = self._connect("ro" if readonly else "rw")
            _open_files[self._key] += 1
            if not readonly:
                self._connection.execute("PRAGMA journal_mode=WAL")
                self._connection.execute("PRAGMA synchronous=FULL")

    @classmethod
    def create(cls, path: str | Path, application: int, version: int, schema: str) -> None:
        """Make a file that only its owner can read, unless one is there already; it appears whole or not at all.

        Raises
        ------
        OutputError
            When it cannot be written.
        """
        path = Path(path)
        part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        try:
            os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, _OWNER_ONLY))
            with closing(sqlite3.connect(part, isolation_level=None)) as new:
                new.execute(f"PRAGMA page_size={_PAGE}")
                new.execute("PRAGMA synchronous=FULL")
                new.executescript(
                    f"BEGIN; PRAGMA application_id={application}; PRAGMA user_version={version}; {schema}; COMMIT"
                )
                new.execute("PRAGMA journal_mode=WAL")
            with suppress(FileExistsError):
                os.link(part, path)
            _sync_folder(path.parent)
        except (OSError, sqlite3.Error) as problem:
            raise OutputError(f"{path} cannot be made ({problem}); check the folder and its free space") from None
        finally:
            for ending in ("", *_SIDE_FILES):
                with suppress(OSError):
                    part.with_name(part.name + ending).unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the file."""
        with _opening:
            self._connection.close()
            _open_files[self._key] -= 1

    def execute(self, statement: str, values: tuple[Any, ...] = ()) -> list[Any]:
        """Run one statement and return its rows.

        Raises
        ------
        SessionBusyError
            When another process holds the file for longer than was to be waited, or this is a forked process.
        OutputError
            When the file cannot be written: no space, no permission, a failing disk.
        DataFileError
            When the file is damaged.
        """
        if os.getpid() != self._process:
            raise SessionBusyError(f"{self.path} was opened before this process was forked; open it anew here")
        try:
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.DatabaseError as problem:
            raise self._plain(problem) from None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """The only writer from its beginning on; committed at the end, undone at an error."""
        self.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                if self._connection.in_transaction:
                    self._connection.rollback()
            raise

    def reserve(self, size: int) -> None:
        """Make sure, within a transaction, that its commit finds room on the disk for ``size`` bytes of changes.

        The write-ahead log is lengthened ahead of the commit, with bytes that SQLite takes for no frames, so that the
        commit writes to blocks that exist. (A file system that copies on write gives no such assurance.)

        Raises
        ------
        OutputError
            When there is no room.
        """
        pages = 2 * (size // (_PAGE - 64) + 1) + 16
        try:
            with open(f"{self.path}-wal", "r+b", buffering=0) as log:
                length = log.seek(0, os.SEEK_END)
                needed = end_of_frames(log, length) + pages * (_PAGE + _FRAME_HEADER)
                if needed > length:
                    _lengthen(log, length, needed)
        except OSError as problem:
            raise OutputError(f"{self.path} cannot grow ({problem.strerror}); make room on the disk") from None

    # ---- opening -------------------------------------------------------------------------------------------------

    def _check_header(self, application: int, version: int) -> tuple[int, int]:
        """The file's device and inode.

        A plain read, before SQLite might touch a foreign file or its log. Closing a file drops all locks that the
        process has on it, so this is not done to one that the process has open: that one was looked at before.
        """
        try:
            status = os.stat(self.path)
            key = (status.st_dev, status.st_ino)
            if _open_files[key]:
                return key
            with open(self.path, "rb") as file:
                header = file.read(100)
        except OSError as problem:
            raise DataFileError(self.path, f"cannot be read ({problem.strerror}); check the path") from None
        found = int.from_bytes(header[68:72], "big"), int.from_bytes(header[60:64], "big")
        if len(header) < 100 or not header.startswith(_MAGIC) or found[0] != application:
            raise DataFileError(self.path, "is no file of sessions; name another, or one that does not exist")
        if found[1] != version:
            raise DataFileError(self.path, f"has format {found[1]}, this version of dphmm reads {version}; update it")
        return key

    def _check_content(self) -> None:
        """Look at every page through a connection that cannot write, so that a damaged file stays as it is."""
        log = Path(f"{self.path}-wal")
        try:
            self._quick_check("ro" if log.exists() else "ro&immutable=1")
        except DataFileError:
            if not log.exists():
                raise
            self._quick_check("ro")

    def _quick_check(self, mode: str) -> None:
        with self._plain_errors(), closing(self._connect(mode)) as looking:
            verdict = looking.execute("PRAGMA quick_check(1)").fetchone()[0]
            tables = {sql for (sql,) in looking.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}
            if verdict != "ok" or tables != self._schema:
                problem = "its tables are others" if verdict == "ok" else " ".join(verdict.split())
                raise DataFileError(self.path, f"is damaged ({problem}); restore a copy")

    def _connect(self, mode: str) -> sqlite3.Connection:
        uri = f"file:{quote(str(self.path))}?mode={mode}"
        return sqlite3.connect(uri, uri=True, timeout=self._wait, isolation_level=None)

    @contextmanager
    def _plain_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as problem:
            raise self._plain(problem) from None

    def _plain(self, problem: sqlite3.DatabaseError) -> Exception:
        """What an error of SQLite means here."""
        if isinstance(problem, sqlite3.ProgrammingError):
            return problem
        code = getattr(problem, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return SessionBusyError(f"{self.path} is in use by another process; ask again")
        if code in _DAMAGED:
            return DataFileError(self.path, f"is damaged ({problem}); restore a copy")
        if code in _UNWRITABLE:
            return OutputError(f"{self.path} cannot be written ({problem}); check its space and permissions")
        return problem


_DAMAGED = (0, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT)
"""With statements that never change, also a missing table, and a text that does not decode (which has no code)."""
_UNWRITABLE = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
)


def end_of_frames(log: BinaryIO, length: int) -> int:
    """Where the frames of a write-ahead log's present generation end, in bytes; at least after its header.

    Frames of the present generation carry the salts of the log's header and come first (SQLite's documentation, "The
    Write-Ahead Log File Format"), so that a binary search finds the end.
    """
    log.seek(0)
    header = log.read(_WAL_HEADER)
    if len(header) < _WAL_HEADER or int.from_bytes(header[:4], "big") not in _WAL_MAGIC:
        return _WAL_HEADER
    frame = int.from_bytes(header[8:12], "big") + _FRAME_HEADER
    low, high = 0, (length - _WAL_HEADER) // frame
    while low < high:
        middle = (low + high) // 2
        log.seek(_WAL_HEADER + middle * frame + 8)
        if log.read(8) == header[16:24]:
            low = middle + 1
        else:
            high = middle
    return _WAL_HEADER + low * frame


def _lengthen(log: BinaryIO, length: int, needed: int) -> None:
    """Write zeros behind a log's end, to the length needed and beyond; an error where not even that is reached."""
    left = memoryview(bytes(max(needed - length, _EXTENSION)))
    log.seek(length)
    try:
        while left:
            left = left[log.write(left) :]
    except OSError:
        if log.seek(0, os.SEEK_END) < needed:
            raise


def _sync_folder(folder: Path) -> None:
    """Have a new name in a folder survive a power cut, where the system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
