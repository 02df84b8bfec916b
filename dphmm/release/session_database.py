"""Databases of sessions: an SQLite file, or a PostgreSQL database.

An SQLite file is created atomically, and opened only if it is undamaged.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import RLock
from time import monotonic
from typing import Any

from dphmm.errors import DataFileError, InvalidInputError, OutputError, SessionBusyError, need
from dphmm.tables.binary_files import connect
from dphmm.tables.output import sync_folder
from dphmm.tables.values import is_text

APPLICATION = 0x6470686D
"""The application id in the file's header: ``dphm``."""
FORMAT = 1
"""The format version in the file's header."""

# The offset of the application id in SQLite files.
_APPLICATION_ID_OFFSET = 68
_OWNER_ONLY = 0o600
_PAGE_BYTES = 4096
SCHEMA = """
CREATE TABLE session (
    number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, terms TEXT NOT NULL, limits TEXT NOT NULL,
    digest BLOB NOT NULL);
CREATE TABLE progress (
    session INTEGER PRIMARY KEY REFERENCES session, count INTEGER NOT NULL, slot INTEGER, head BLOB NOT NULL,
    belief BLOB, omitted INTEGER, amended INTEGER NOT NULL, digest BLOB NOT NULL);
CREATE TABLE amendment (
    session INTEGER NOT NULL REFERENCES session, number INTEGER NOT NULL, first INTEGER NOT NULL, terms TEXT NOT NULL,
    note TEXT NOT NULL, digest BLOB NOT NULL, PRIMARY KEY (session, number));
CREATE TABLE record (
    session INTEGER NOT NULL REFERENCES session, number INTEGER NOT NULL, slot INTEGER NOT NULL, query TEXT NOT NULL,
    body TEXT NOT NULL, digest BLOB NOT NULL, PRIMARY KEY (session, number), UNIQUE (session, slot, query));
CREATE TABLE pruned (
    session INTEGER PRIMARY KEY REFERENCES session, count INTEGER NOT NULL, head BLOB NOT NULL, costs TEXT NOT NULL,
    digest BLOB NOT NULL);
CREATE TABLE delivery (
    recipient TEXT NOT NULL, session INTEGER NOT NULL REFERENCES session, name TEXT NOT NULL, query TEXT NOT NULL,
    precision_m INTEGER NOT NULL, number INTEGER NOT NULL, paused_until INTEGER NOT NULL, absent INTEGER NOT NULL,
    ends INTEGER NOT NULL,
    PRIMARY KEY (recipient, session));
CREATE TABLE set_aside (
    recipient TEXT NOT NULL, session INTEGER NOT NULL REFERENCES session, number INTEGER NOT NULL,
    second INTEGER NOT NULL, reason TEXT NOT NULL, PRIMARY KEY (recipient, session, number));
CREATE TABLE last_contact (
    user_name TEXT PRIMARY KEY, second INTEGER NOT NULL, outcomes TEXT NOT NULL);
CREATE TABLE login (
    cookie TEXT PRIMARY KEY, token TEXT NOT NULL, csrf TEXT NOT NULL, until INTEGER NOT NULL);
CREATE TABLE recipient_record (
    session INTEGER NOT NULL REFERENCES session, number INTEGER NOT NULL, recipient TEXT NOT NULL, body TEXT NOT NULL,
    digest BLOB NOT NULL, PRIMARY KEY (session, recipient, number));
CREATE TABLE recipient_belief (
    session INTEGER NOT NULL REFERENCES session, recipient TEXT NOT NULL, number INTEGER NOT NULL, belief BLOB NOT NULL,
    PRIMARY KEY (session, recipient));
CREATE TABLE identity (
    name TEXT PRIMARY KEY, value TEXT NOT NULL)"""
_STATEMENTS = frozenset(statement.strip() for statement in SCHEMA.split(";"))
# Tables that stores of this format may lack. They are created when a store is opened for writing.
_LATER_STATEMENTS = frozenset(statement for statement in _STATEMENTS if statement.startswith("CREATE TABLE identity "))


def is_store(path: Path) -> bool:
    """Return whether a file is a file of sessions of any version; False if unreadable."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as stream:
            head = stream.read(_APPLICATION_ID_OFFSET + 4)
    except OSError:
        return False
    return head[:16] == b"SQLite format 3\0" and head[_APPLICATION_ID_OFFSET:] == APPLICATION.to_bytes(4, "big")


class Database:
    """A connection to a file of sessions, in WAL mode with ``synchronous=FULL``.

    A committed transaction survives the end of the process and, if the disk honours flushes, a power failure. Threads
    can share the connection: a statement or transaction waits until that of another thread has ended.

    Parameters
    ----------
    path
        The file, which must exist.
    wait_seconds
        How long to wait for another process.
    readonly
        Whether the file is only read.

    Raises
    ------
    DataFileError
        If the file does not exist, is not a file of sessions of this version, or is damaged. It stays unchanged.
    OutputError
        If the file cannot be written.
    """

    # SQL clause that makes a read in a transaction wait for other writers. Here the transaction itself waits.
    row_lock = ""

    def __init__(self, path: str | Path, wait_seconds: float = 30.0, readonly: bool = False) -> None:
        self.path = Path(os.path.abspath(path))
        self._wait = wait_seconds
        self._process = os.getpid()
        self._lock = RLock()
        with self._translate_errors():
            self._check_header()
            if not readonly and not os.access(self.path, os.W_OK):
                raise OutputError(f"{path} is not writable; change its permissions, or use another file")
            self._check_content()
            self._connection = self._connect("ro" if readonly else "rw")
            try:
                if not readonly:
                    self._connection.execute("PRAGMA journal_mode=WAL")
                    self._connection.execute("PRAGMA synchronous=FULL")
                    for statement in _LATER_STATEMENTS:
                        self._connection.execute(statement.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS"))
            except BaseException:
                self._connection.close()
                raise

    @staticmethod
    def create(path: Path) -> None:
        """Create a file that only its owner can read, unless it exists. The creation is atomic.

        Raises
        ------
        OutputError
            If it cannot be written.
        """
        if str(path).startswith(
            ("postgresql:", "postgres:")
        ):  # the address may contain a password, so do not repeat it
            raise OutputError("the session store must be a file here, got the address of a server")
        if "\0" in str(path) or not is_text(str(path)):
            raise OutputError(f"the session store must be a valid path, got {str(path)!r}")
        try:
            with TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
                part = Path(folder) / path.name
                part.touch(_OWNER_ONLY)
                with closing(sqlite3.connect(part, isolation_level=None)) as new:
                    new.execute(f"PRAGMA page_size={_PAGE_BYTES}")
                    new.execute("PRAGMA synchronous=FULL")
                    new.executescript(
                        f"BEGIN; PRAGMA application_id={APPLICATION}; PRAGMA user_version={FORMAT}; {SCHEMA}; COMMIT"
                    )
                    new.execute("PRAGMA journal_mode=WAL")
                with suppress(FileExistsError):
                    os.link(part, path)
            sync_folder(path.parent)
        except (OSError, sqlite3.Error) as problem:
            raise OutputError(f"{path} cannot be created ({problem}); check the folder and its free space") from None

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def check_process(self) -> None:
        """Check that the process was not forked since the file was opened.

        Raises
        ------
        SessionBusyError
            If it was. SQLite does not allow it, and a lock of another thread would never be released.
        """
        if os.getpid() != self._process:
            raise SessionBusyError(f"{self.path} was opened before this process was forked; open it again here")

    def is_leader(self) -> bool:
        """Return True: a file has no other connection that could lead."""
        return True

    def try_lock(self, _: str) -> bool:
        """Return True: with a file, this process is the only one."""
        return True

    def unlock(self, _: str) -> None:
        """Release a lock of `try_lock`."""

    def execute(self, statement: str, values: tuple[Any, ...] = ()) -> list[Any]:
        """Run one statement and return its rows.

        Raises
        ------
        SessionBusyError
            If another process locks the file for longer than the waiting time, or this is a forked process.
        OutputError
            If the file cannot be written because of space, permissions or a failing disk.
        DataFileError
            If the file is damaged.
        """
        self.check_process()
        try:  # not `_translate_errors`, which would take as long as a short statement
            with self._lock:
                return self._connection.execute(statement, values).fetchall()
        except (sqlite3.DatabaseError, UnicodeDecodeError) as problem:
            raise self._translate_error(problem) from None

    @contextmanager
    def transaction(self, durable: bool = True) -> Iterator[None]:
        """Run a block as the only writer. Commit at its end, roll back at an error.

        Parameters
        ----------
        durable
            Whether the transaction must survive a power failure. Otherwise it may be undone by one.
        """
        self.check_process()
        with self._lock:
            if not durable:
                self.execute("PRAGMA synchronous=NORMAL")
            try:
                self.execute("BEGIN IMMEDIATE")
                yield
                self.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    if self._connection.in_transaction:
                        self._connection.rollback()
                raise
            finally:
                if not durable:
                    self.execute("PRAGMA synchronous=FULL")

    # ---- opening -------------------------------------------------------------------------------------------------

    def _check_header(self) -> None:
        """Refuse a foreign file before SQLite could modify it or its log.

        SQLite itself reads the header, without locks and only in the file. A plain read would drop all locks of the
        process on the file when it is closed. A process that was killed while moving the log into the file leaves a
        header with more pages than the file has, because the log contains them. With `writable_schema` SQLite reads
        such a header.
        """
        try:
            with closing(self._connect("ro&immutable=1")) as connection:
                connection.execute("PRAGMA writable_schema=ON")
                ((application,),) = connection.execute("PRAGMA application_id")
                ((version,),) = connection.execute("PRAGMA user_version")
        except (sqlite3.DatabaseError, UnicodeDecodeError) as problem:
            if isinstance(problem, sqlite3.DatabaseError) and _code(problem) in _WRITE_ERROR_CODES:
                raise DataFileError(self.path, f"cannot be read ({problem}); check the path") from None
            application = version = 0
        if application != APPLICATION:
            raise DataFileError(self.path, "is not a file of sessions; use another file, or one that does not exist")
        if version != FORMAT:
            raise DataFileError(
                self.path,
                f"must be of format {FORMAT}, got {version}; use the version of dphmm that wrote it, or a new file",
            )

    def _check_content(self) -> None:
        """Check every page through a read-only connection, so that a damaged file stays unchanged."""
        log = Path(f"{self.path}-wal")
        try:
            self._quick_check("ro" if log.exists() else "ro&immutable=1")
        except DataFileError:
            if not log.exists():
                raise
            self._quick_check("ro")

    def _quick_check(self, mode: str) -> None:
        with self._translate_errors(), closing(self._connect(mode)) as connection:
            result = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            tables = {sql for (sql,) in connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}
            if result != "ok" or tables | _LATER_STATEMENTS != _STATEMENTS:
                problem = "it has other tables" if result == "ok" else " ".join(result.split())
                raise DataFileError(self.path, f"is damaged ({problem}); restore a copy")

    def _connect(self, mode: str) -> sqlite3.Connection:
        return connect(self.path, mode, self._wait, any_thread=True)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Translate errors of SQLite into errors of the package."""
        try:
            yield
        except (sqlite3.DatabaseError, UnicodeDecodeError) as problem:
            raise self._translate_error(problem) from None

    def _translate_error(self, problem: sqlite3.DatabaseError | UnicodeDecodeError) -> Exception:
        """Return the package's error for an error of SQLite, or the error itself if unknown."""
        if isinstance(problem, UnicodeDecodeError):  # raised by SQLite's own messages
            return DataFileError(self.path, f"is damaged ({problem}); restore a copy")
        code = _code(problem)
        if isinstance(problem, sqlite3.ProgrammingError):  # statements are fixed, so the connection is closed
            return InvalidInputError(f"{self.path} must be open, but was closed: open it again")
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return SessionBusyError(f"{self.path} is in use by another process; try again")
        if code in _DAMAGE_CODES:
            return DataFileError(self.path, f"is damaged ({problem}); restore a copy")
        if code in _WRITE_ERROR_CODES:
            return OutputError(f"{self.path} cannot be written ({problem}); check its space and permissions")
        return problem


def _code(problem: sqlite3.DatabaseError) -> int:
    return getattr(problem, "sqlite_errorcode", 0) & 0xFF


# Statements are fixed, so errors include missing tables, and text that cannot be decoded (which has no code).
_DAMAGE_CODES = (0, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT)
_WRITE_ERROR_CODES = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
)


# The advisory lock for creating the tables.
_SCHEMA_LOCK = 0x6470686D

# The advisory lock that the leading process holds.
_LEADER_LOCK = 0x6470

_NAMED_LOCK = "hashtextextended(current_schema() || ' ' || ?::text, 0)"

_MIN_RETRY_SECONDS = 1.0
_MAX_RETRY_SECONDS = 30.0
_RECONNECT_TIMEOUT_SECONDS = 3.0
# libpq's parameters for detecting a lost server.
_KEEPALIVE = {"keepalives_idle": 20, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 30_000}


def is_server(store: str | Path) -> bool:
    """Return whether a store of sessions is a database server rather than a file."""
    return isinstance(store, str) and store.startswith(("postgresql://", "postgres://"))


class PostgresDatabase:
    """A connection to a PostgreSQL database of sessions; see `Database` for a file.

    Several processes can write to different sessions at the same time. A process that is about to write to a session
    locks its row of ``progress`` (``SELECT … FOR UPDATE``). Any other process waits, and then sees what was written. A
    committed transaction is on the server's disk (``synchronous_commit``).

    A lost connection is restored by the next statement that begins a transaction or runs on its own. If the server is
    unreachable, attempts are repeated after a second, and then after twice the time, up to half a minute; statements in
    between raise an error. A transaction of which the connection is lost raises an error and is rolled back. If the
    connection is lost during the commit, the transaction may have been committed; a caller who retries finds it.

    Parameters
    ----------
    url
        ``postgresql://user@host/database``. A password may come from the environment (``PGPASSWORD``).
    wait_seconds
        How long to wait for another process.
    readonly
        Whether the database is only read.

    Raises
    ------
    OutputError
        If the server cannot be reached, or refuses the connection.
    DataFileError
        If the database contains tables of another version.
    MissingDependencyError
        If psycopg is not installed.
    """

    row_lock = " FOR UPDATE"

    def __init__(self, url: str, wait_seconds: float = 30.0, readonly: bool = False) -> None:
        psycopg = need("psycopg", "serve")
        self._errors = psycopg.errors
        kinds = ("OperationalError", "InternalError", "ReadOnlySqlTransaction", "InsufficientPrivilege")
        self._refusals = tuple(getattr(psycopg.errors, kind) for kind in kinds)
        self._process = os.getpid()
        self._lock = RLock()
        self._is_leader = False
        self._in_transaction = False
        self._wait_s = _MIN_RETRY_SECONDS
        self._next_attempt_at = 0.0
        self.path = Path("the database")
        settings = {
            "lock_timeout": f"{int(1000 * wait_seconds)}",
            "synchronous_commit": "on",
            "default_transaction_read_only": "on" if readonly else "off",
        }

        def connect(timeout: float) -> Any:
            connection = psycopg.connect(url, autocommit=True, connect_timeout=max(2, int(timeout)), **_KEEPALIVE)
            try:
                for name, value in settings.items():
                    connection.execute(f"SET {name} = {value}")
            except BaseException:
                connection.close()
                raise
            return connection

        self._connect = connect
        try:
            self._connection = connect(wait_seconds)
        except psycopg.Error as problem:
            raise OutputError(f"the database cannot be reached ({_one_line(problem)}); check its address") from None
        try:
            self._check_tables(readonly)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def check_process(self) -> None:
        """Check that the process was not forked since the connection was made.

        Raises
        ------
        SessionBusyError
            If it was.
        """
        if os.getpid() != self._process:
            raise SessionBusyError("the database was opened before this process was forked; open it again here")

    def is_leader(self) -> bool:
        """Return whether this connection leads: the first one that asks, while it is open."""
        if not self._is_leader:
            ((self._is_leader,),) = self.execute(
                f"SELECT pg_try_advisory_lock({_LEADER_LOCK}, hashtext(current_schema()))"
            )
        return self._is_leader

    def try_lock(self, name: str) -> bool:
        """Lock a name until `unlock` or the loss of the connection. Return whether it succeeded."""
        ((free,),) = self.execute(f"SELECT pg_try_advisory_lock({_NAMED_LOCK})", (name,))
        return bool(free)

    def unlock(self, name: str) -> None:
        """Release a lock of `try_lock`."""
        self.execute(f"SELECT pg_advisory_unlock({_NAMED_LOCK})", (name,))

    def execute(self, statement: str, values: tuple[Any, ...] = ()) -> list[Any]:
        """Run one statement and return its rows.

        Raises
        ------
        SessionBusyError
            If another process locks a row for longer than the waiting time, or this is a forked process.
        OutputError
            If the server is unreachable, or cannot write.
        DataFileError
            If it has other tables.
        """
        self.check_process()
        try:
            with self._lock:
                try:
                    return self._run(statement, values)
                except self._refusals:
                    if self._in_transaction or not self._connection.closed:
                        raise
                self._reconnect()  # outside a transaction, a statement that was lost with the connection had no effect
                return self._run(statement, values)
        except (self._errors.LockNotAvailable, self._errors.DeadlockDetected, self._errors.SerializationFailure):
            raise SessionBusyError("the session is in use by another process; try again") from None
        except (self._errors.UndefinedTable, self._errors.UndefinedColumn) as problem:
            raise DataFileError(self.path, f"is damaged ({_one_line(problem)}); restore a copy") from None
        except self._refusals as problem:
            raise OutputError(f"the database refused a statement ({_one_line(problem)}); check the server") from None

    def _run(self, statement: str, values: tuple[Any, ...]) -> list[Any]:
        cursor = self._connection.execute(statement.replace("?", "%s"), values or None)
        return cursor.fetchall() if cursor.description is not None else []

    def _reconnect(self) -> None:
        """Make a new connection, or raise an error immediately if it is too early to retry."""
        if monotonic() < self._next_attempt_at:
            raise OutputError("the database cannot be reached; try again later")
        try:
            self._connection = self._connect(_RECONNECT_TIMEOUT_SECONDS)
            self._is_leader = False
        except self._refusals as problem:
            self._next_attempt_at = monotonic() + self._wait_s
            self._wait_s = min(2 * self._wait_s, _MAX_RETRY_SECONDS)
            raise OutputError(f"the database cannot be reached ({_one_line(problem)}); check the server") from None
        self._wait_s = _MIN_RETRY_SECONDS
        self._next_attempt_at = 0.0

    @contextmanager
    def transaction(self, durable: bool = True) -> Iterator[None]:
        """Run a block in a transaction. Commit at its end, roll back at an error.

        Parameters
        ----------
        durable
            Whether the transaction must survive a power failure; see `Database.transaction`.
        """
        self.check_process()
        with self._lock:
            self.execute("BEGIN")
            self._in_transaction = True
            try:
                if not durable:
                    self.execute("SET LOCAL synchronous_commit = off")
                yield
                self.execute("COMMIT")
            except BaseException:
                with suppress(Exception):
                    self._connection.rollback()
                raise
            finally:
                self._in_transaction = False

    def _check_tables(self, readonly: bool) -> None:
        """Create missing tables; refuse those of another version."""
        with self.transaction():
            self.execute(f"SELECT pg_advisory_xact_lock({_SCHEMA_LOCK})")
            ((there,),) = self.execute("SELECT to_regclass('dphmm_format') IS NOT NULL")
            if not there:
                if readonly:
                    raise DataFileError(self.path, "contains no sessions; use another database")
                types = SCHEMA.replace("BLOB", "BYTEA").replace("INTEGER", "BIGINT")
                for statement in types.split(";"):
                    self.execute(statement)
                self.execute("CREATE TABLE dphmm_format (format BIGINT NOT NULL)")
                self.execute("INSERT INTO dphmm_format VALUES (?)", (FORMAT,))
            elif not readonly:
                for statement in _LATER_STATEMENTS:
                    self.execute(statement.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS"))
            formats = self.execute("SELECT format FROM dphmm_format")
        if formats != [(FORMAT,)]:
            raise DataFileError(
                self.path,
                f"must be of format {FORMAT}, got {formats[0][0]}; use the version of dphmm that wrote it, or a new "
                "database",
            )


def _one_line(problem: BaseException) -> str:
    return " ".join(str(problem).split())
