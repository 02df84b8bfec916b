"""An SQLite file of our own: made whole, and opened only when it is ours."""

from __future__ import annotations

import os
import secrets
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dphmm.errors import DataFileError, OutputError, SessionBusyError

_OWNER_ONLY = 0o600
_MAGIC = b"SQLite format 3\0"
_PAGE = 4096
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
            raise DataFileError(
                self.path, f"has format {found[1]}, this version of dphmm reads {version}; use the version that made it"
            )
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


def _sync_folder(folder: Path) -> None:
    """Have a new name in a folder survive a power cut, where the system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
