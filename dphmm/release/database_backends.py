"""Databases of sessions: an SQLite file, or a PostgreSQL database.

An SQLite file is created atomically, and opened only if it is undamaged.

A store has a numbered format. Each of `MIGRATIONS` converts a store of one format to the next. A new store is one of
the first format to which all of them are applied.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import RLock
from time import monotonic
from typing import Any

from dphmm.errors import DataFileError, InvalidInputError, OutputError, SessionBusyError, import_library
from dphmm.tables.output import OWNER_ONLY, create_file, sync_folder
from dphmm.tables.sqlite_files import connect
from dphmm.tables.values import is_text

# The application id in the file's header: ``dphm``.
APPLICATION = 0x6470686D

# Name of the row of ``identity`` that closes a store; see `SessionStore.set_mark`.
MARK_NAME = "closed"

_PAGE_BYTES = 4096
_FIRST_SCHEMA = """
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
_FIRST_STATEMENTS = tuple(statement.strip() for statement in _FIRST_SCHEMA.split(";"))
# Tables that stores of the first format may lack. They are created when a store is opened for writing.
_LATER_STATEMENTS = frozenset(
    statement for statement in _FIRST_STATEMENTS if statement.startswith("CREATE TABLE identity ")
)

# A function that runs a statement in SQLite's types with values for its ``?``, and returns the rows.
Execute = Callable[..., list[Any]]


@dataclass(frozen=True)
class Migration:
    """A step that converts a store of one format to the next one.

    Parameters
    ----------
    summary
        The change, as one line for the operator.
    apply
        Function that makes the change in one transaction.
    """

    summary: str
    apply: Callable[[Execute], None]


def _add_leases_and_access(execute: Execute) -> None:
    """Let several processes send messages, and the store contain devices.

    See `dphmm.serve.recipient_tables.RecipientTables` and `dphmm.serve.devices_and_recipients.AccessTable`.
    """
    for column in ("leased_until", "waiting_since", "failures", "errors"):
        execute(f"ALTER TABLE delivery ADD COLUMN {column} INTEGER NOT NULL DEFAULT 0")
    execute("ALTER TABLE delivery ADD COLUMN holder TEXT NOT NULL DEFAULT ''")
    execute("CREATE INDEX delivery_session ON delivery (session)")
    execute("CREATE TABLE access (token TEXT PRIMARY KEY, user_name TEXT NOT NULL, kind TEXT NOT NULL)")


def _add_recipients(execute: Execute) -> None:
    """Let the store contain recipients. See `dphmm.serve.devices_and_recipients.AccessTable`."""
    execute("CREATE TABLE recipient (name TEXT PRIMARY KEY, body TEXT NOT NULL)")


def _add_preferred_devices(execute: Execute) -> None:
    """Let a device of a user be preferred. See `dphmm.serve.device_tables`."""
    execute("ALTER TABLE access ADD COLUMN preferred INTEGER NOT NULL DEFAULT 0")
    execute("ALTER TABLE access ADD COLUMN mqtt_device TEXT NOT NULL DEFAULT ''")
    execute(
        "CREATE TABLE device_contact (user_name TEXT NOT NULL, device TEXT NOT NULL, second INTEGER NOT NULL, "
        "PRIMARY KEY (user_name, device))"
    )


# The steps from each format to the next, beginning with the first format.
MIGRATIONS: tuple[Migration, ...] = (
    Migration("adds leases of messages and a table of devices", _add_leases_and_access),
    Migration("adds a table of recipients", _add_recipients),
    Migration("adds preferred devices", _add_preferred_devices),
)


def get_format() -> int:
    """Return the format of stores that this version writes."""
    return 1 + len(MIGRATIONS)


def list_tables(store_format: int) -> list[str]:
    """Return the names of the tables of a format. A table follows those to which it refers."""
    definitions = _get_definitions(MIGRATIONS[: store_format - 1])
    return [name for name, definition in definitions.items() if definition.startswith("CREATE TABLE")]


@cache
def _get_definitions(migrations: tuple[Migration, ...]) -> dict[str, str]:
    """Return the names and definitions of the tables and indices after these steps."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        _create_tables(lambda statement, values=(): connection.execute(statement, values).fetchall(), migrations)
        rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid")
        return {name: _normalize_definition(sql) for name, sql in rows}


def _create_tables(execute: Execute, migrations: tuple[Migration, ...]) -> None:
    for statement in _FIRST_STATEMENTS:
        execute(statement)
    for migration in migrations:
        migration.apply(execute)


def _normalize_definition(sql: str) -> str:
    """Return a definition without the quotes that SQLite adds to the names of altered tables."""
    return " ".join(sql.replace('"', "").split())


def check_format(store: str | Path, store_format: int) -> None:
    """Refuse a store of another format.

    Raises
    ------
    DataFileError
        If it is later than this version's, or must be migrated.
    """
    name = Path("the database") if is_server(store) else Path(store)
    if store_format > get_format():
        raise DataFileError(
            name,
            f"must be of format {get_format()} or earlier, got {store_format}; use the version of dphmm that wrote it",
        )
    if store_format < 1:
        raise DataFileError(name, f"must be of a format from 1 to {get_format()}, got {store_format}; restore a copy")
    if store_format < get_format():
        raise DataFileError(
            name,
            f"is of format {store_format} and must be migrated to {get_format()}: start the relay with this version, "
            "or run dphmm session migrate",
        )


def is_store(path: Path) -> bool:
    """Return whether a file is a file of sessions of any version. False if unreadable."""
    try:
        if not path.is_file():
            return False
        get_file_format(path, 0.0)  # not by a plain read, which would drop the locks of this process on the file
    except (OSError, DataFileError):
        return False
    return True


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
        If the file does not exist, is not a file of sessions of this format, or is damaged. It stays unchanged.
    OutputError
        If the file cannot be written.
    """

    # SQL clause that makes a read in a transaction wait for other writers. Here the transaction itself waits.
    row_lock = ""
    # SQL clause that makes a read skip the rows that other transactions lock. Here there are none.
    skip_locked = ""
    # SQL expression of the current time, milliseconds since 1970.
    now_ms = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
    # Number of connections so far. A lock of `try_lock` ends with its connection.
    num_connections = 1

    def __init__(self, path: str | Path, wait_seconds: float = 30.0, readonly: bool = False) -> None:
        self.path = Path(os.path.abspath(path))
        self._wait = wait_seconds
        self._process = os.getpid()
        self._lock = RLock()
        with self._translate_errors():
            check_format(self.path, get_file_format(self.path, wait_seconds))
            if not readonly and not os.access(self.path, os.W_OK):
                raise OutputError(f"{path} is not writable; change its permissions, or use another file")
            self._check_content()
            # Without a log, SQLite would create one even to read, which it cannot in a folder that is not writable.
            file, log = self._find_files()
            is_fixed = not os.access(file.parent, os.W_OK) and not log.exists()
            self._connection = self._connect("rw" if not readonly else "ro&immutable=1" if is_fixed else "ro")
            try:
                if not readonly:
                    self._connection.execute("PRAGMA journal_mode=WAL")
                    self._connection.execute("PRAGMA synchronous=FULL")
                    for statement in _LATER_STATEMENTS:
                        self._connection.execute(statement.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS"))
            except BaseException:  # an interrupt must close the file, too
                self._connection.close()
                raise
        self._identity = self._identify()

    @staticmethod
    def create(path: Path, mark: str | None = None) -> None:
        """Create a file that only its owner can read, unless it exists. The creation is atomic.

        Parameters
        ----------
        path
            The file.
        mark
            A mark that closes it; see `SessionStore.set_mark`.

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
        log = path.with_name(f"{path.name}-wal")
        # SQLite would write the releases in it to the new file.
        if log.exists() and log.stat().st_size and not path.exists():
            raise OutputError(
                f"{log}, the last releases of {path}, must not exist; restore {path}, or move the log away"
            )
        try:
            with TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
                part = Path(folder) / path.name
                part.touch(OWNER_ONLY)
                with closing(sqlite3.connect(part, isolation_level=None)) as new:
                    new.execute(f"PRAGMA page_size={_PAGE_BYTES}")
                    new.execute("PRAGMA synchronous=FULL")
                    new.execute("BEGIN")
                    new.execute(f"PRAGMA application_id={APPLICATION}")
                    new.execute(f"PRAGMA user_version={get_format()}")
                    _create_tables(lambda statement, values=(): new.execute(statement, values).fetchall(), MIGRATIONS)
                    if mark is not None:
                        new.execute("INSERT INTO identity VALUES (?, ?)", (MARK_NAME, mark))
                    new.execute("COMMIT")
                    new.execute("PRAGMA journal_mode=WAL")
                with suppress(FileExistsError):
                    os.link(part, path)
            sync_folder(path.parent)
        except (OSError, sqlite3.Error) as problem:
            raise OutputError(f"{path} cannot be created ({problem}); check the folder and its free space") from None

    @staticmethod
    def migrate(path: Path, wait_seconds: float, copy: Path, mark: str) -> None:
        """Copy a file of an earlier format, and apply the migrations in one transaction.

        No other process can open the file meanwhile. The copy is closed with a mark; see `SessionStore.set_mark`. A
        repeated call completes one that was interrupted.

        Raises
        ------
        SessionBusyError
            If another process has opened it.
        DataFileError, OutputError
            If it is damaged, the file or its copy cannot be written, or there is a copy of another store. The file
            stays unchanged.
        """
        try:
            with closing(connect(path, "rw", wait_seconds)) as connection:
                # The change of the journal requires that no other process has opened the file.
                connection.execute("PRAGMA journal_mode=DELETE")
                connection.execute("PRAGMA locking_mode=EXCLUSIVE")
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("PRAGMA synchronous=FULL")
                connection.execute("BEGIN EXCLUSIVE")
                connection.execute("COMMIT")  # the lock stays
                # It is the present one if a process was killed before SQLite had moved its transaction into the file.
                ((store_format,),) = connection.execute("PRAGMA user_version")
                if store_format == get_format():
                    return
                if connection.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
                    raise DataFileError(path, "is damaged; restore a copy")
                if copy.exists() and not _has_same_sessions(copy, connection):
                    raise OutputError(f"{copy}, a copy of an earlier migration, must be moved away first")
                _copy_file(connection, copy, mark)
                connection.execute("BEGIN EXCLUSIVE")
                for migration in MIGRATIONS[store_format - 1 :]:
                    migration.apply(lambda statement, values=(): connection.execute(statement, values).fetchall())
                connection.execute(f"PRAGMA user_version={get_format()}")
                connection.execute("COMMIT")
        except (OSError, sqlite3.DatabaseError) as problem:
            if isinstance(problem, sqlite3.DatabaseError) and _get_error_code(problem) in _BUSY_CODES:
                raise SessionBusyError(f"{path} is in use by another process; stop the relay first") from None
            raise OutputError(f"{path} cannot be migrated ({problem}); check its folder and free space") from None

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def lock_tables(self) -> None:
        """Exclude other writers until the transaction ends, as the transaction itself does."""

    def execute_in_types(self, statement: str, values: tuple[Any, ...] = ()) -> list[Any]:
        """Run a statement that defines tables in SQLite's types. See `execute`."""
        return self.execute(statement, values)

    def check_process(self) -> None:
        """Check that the process was not forked since the file was opened.

        Raises
        ------
        SessionBusyError
            If it was. SQLite does not allow it, and a lock of another thread would never be released.
        """
        if os.getpid() != self._process:
            raise SessionBusyError(f"{self.path} was opened before this process was forked; open it again here")

    def count_processes(self) -> int:
        """Return 1: a relay with a file has one process."""
        return 1

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
    def run_transaction(self, durable: bool = True) -> Iterator[None]:
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
                # Checked last: a file or log moved earlier does not contain the transaction, which must be repeated.
                if self._identify() != self._identity:
                    raise OutputError(
                        f"{self.path} and its log must stay in place while they are open, but were moved, replaced or "
                        "deleted; put them back, or restart"
                    )
            except BaseException:  # an interrupt must undo the transaction, too
                with suppress(sqlite3.Error):
                    if self._connection.in_transaction:
                        self._connection.rollback()
                raise
            finally:
                if not durable:
                    self.execute("PRAGMA synchronous=FULL")

    # ---- opening -------------------------------------------------------------------------------------------------

    def _check_content(self) -> None:
        """Check every page through a read-only connection, so that a damaged file stays unchanged."""
        log = self._find_files()[1]
        try:
            self._run_quick_check("ro" if log.exists() else "ro&immutable=1")
        except DataFileError:
            if not log.exists():
                raise
            self._run_quick_check("ro")

    def _run_quick_check(self, mode: str) -> None:
        with self._translate_errors(), closing(self._connect(mode)) as connection:
            result = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            definitions = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")
            tables = {_normalize_definition(sql) for (sql,) in definitions}
            expected = set(_get_definitions(MIGRATIONS).values())
            if result != "ok" or tables | {*map(_normalize_definition, _LATER_STATEMENTS)} != expected:
                problem = "it has other tables" if result == "ok" else " ".join(result.split())
                raise DataFileError(self.path, f"is damaged ({problem}); restore a copy")

    def _find_files(self) -> tuple[Path, Path]:
        """Return the file and its log, which is next to the file that a link leads to."""
        file = self.path.resolve()
        return file, file.with_name(f"{file.name}-wal")

    def _identify(self) -> list[tuple[int, int]]:
        """Return devices and inodes of the file and its log. Empty if one is missing."""
        with suppress(OSError, RuntimeError):  # the latter if links form a loop
            return [(status.st_dev, status.st_ino) for status in map(os.stat, self._find_files())]
        return []

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
        code = _get_error_code(problem)
        if isinstance(problem, sqlite3.ProgrammingError):  # statements are fixed, so the connection is closed
            return InvalidInputError(f"{self.path} must be open, but was closed: open it again")
        if code in _BUSY_CODES:
            return SessionBusyError(f"{self.path} is in use by another process; try again")
        if code in _DAMAGE_CODES:
            return DataFileError(self.path, f"is damaged ({problem}); restore a copy")
        if code in _WRITE_ERROR_CODES:
            return OutputError(f"{self.path} cannot be written ({problem}); check its space and permissions")
        return problem


def _has_same_sessions(copy: Path, connection: sqlite3.Connection) -> bool:
    """Return whether a copy has the sessions and releases of a database.

    It is then one of a migration that was interrupted.
    """
    statement = "SELECT name, session.digest, progress.digest FROM session JOIN progress ON number = session"
    with suppress(sqlite3.DatabaseError), closing(connect(copy, "ro")) as copied:
        return set(copied.execute(statement)) == set(connection.execute(statement))
    return False


def _copy_file(connection: sqlite3.Connection, copy: Path, mark: str) -> None:
    """Copy a database to a private file, and close the copy with a mark."""
    with (
        create_file(copy, overwrite=True, private=True) as part,
        closing(sqlite3.connect(part, isolation_level=None)) as target,
    ):
        connection.backup(target)
        target.execute("PRAGMA journal_mode=DELETE")  # the file alone is complete and moved
        for statement in _LATER_STATEMENTS:
            target.execute(statement.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS"))
        target.execute("INSERT INTO identity VALUES (?, ?)", (MARK_NAME, mark))


def get_file_format(path: Path, wait_seconds: float) -> int:
    """Return the format of a file, and refuse a foreign one.

    It is refused before SQLite could modify it or its log.

    SQLite itself reads the header, without locks and only in the file. A plain read would drop all locks of the process
    on the file when it is closed. A process that was killed while moving the log into the file leaves a header with
    more pages than the file has, because the log contains them. With `writable_schema` SQLite reads such a header.
    """
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):  # SQLite would wait for a pipe
        raise DataFileError(path, "is not a regular file; use another file")
    try:
        with closing(connect(path, "ro&immutable=1", wait_seconds)) as connection:
            connection.execute("PRAGMA writable_schema=ON")
            ((application,),) = connection.execute("PRAGMA application_id")
            ((version,),) = connection.execute("PRAGMA user_version")
    except (sqlite3.DatabaseError, UnicodeDecodeError) as problem:
        if isinstance(problem, sqlite3.DatabaseError) and _get_error_code(problem) in _WRITE_ERROR_CODES:
            if os.path.exists(path) and not os.access(path, os.R_OK):  # SQLite does not report it
                reason = "cannot be read (permission denied); check its owner and permissions"
                raise DataFileError(path, reason) from None
            raise DataFileError(path, f"cannot be read ({problem}); check the path") from None
        application = version = 0
    if application != APPLICATION:
        raise DataFileError(path, "is not a file of sessions; use another file, or one that does not exist")
    return int(version)


def _get_error_code(problem: sqlite3.DatabaseError) -> int:
    return getattr(problem, "sqlite_errorcode", 0) & 0xFF


# Statements are fixed, so errors include missing tables, and text that cannot be decoded (which has no code).
# A constraint is violated if rows were restored or deleted separately.
_DAMAGE_CODES = (
    0,
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_FORMAT,
    sqlite3.SQLITE_CONSTRAINT,
)
_BUSY_CODES = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_WRITE_ERROR_CODES = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
)


# The advisory lock for creating the tables.
_SCHEMA_LOCK = 0x6470686D

# The advisory lock that every process of a relay shares, and that a migration holds alone.
_PROCESS_LOCK = 0x6470

_COUNT_PROCESS = f"SELECT pg_advisory_lock_shared({_PROCESS_LOCK}, hashtext(current_schema()))"
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
    """A connection to a PostgreSQL database of sessions. See `Database` for a file.

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
    is_migrating
        Whether an earlier format is accepted.

    Raises
    ------
    OutputError
        If the server cannot be reached, or refuses the connection.
    DataFileError
        If the database contains tables of another format.
    MissingDependencyError
        If psycopg is not installed.
    """

    row_lock = " FOR UPDATE"
    skip_locked = " FOR UPDATE SKIP LOCKED"
    now_ms = "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)"

    def __init__(
        self, url: str, wait_seconds: float = 30.0, readonly: bool = False, is_migrating: bool = False
    ) -> None:
        psycopg = import_library("psycopg", "serve")
        self._errors = psycopg.errors
        kinds = ("OperationalError", "InternalError", "ReadOnlySqlTransaction", "InsufficientPrivilege")
        self._refusals = tuple(getattr(psycopg.errors, kind) for kind in kinds)
        self._process = os.getpid()
        self._lock = RLock()
        self._is_counted = False
        self._in_transaction = False
        self.num_connections = 1
        self._wait_s = _MIN_RETRY_SECONDS
        self._next_attempt_at = 0.0
        self._url = url
        self.path = Path("the database")
        settings = {
            "lock_timeout": f"{max(1, int(1000 * wait_seconds))}",  # 0 would be no limit
            "synchronous_commit": "on",
            "default_transaction_read_only": "on" if readonly else "off",
            # Statements after a lock must see what was committed while it was awaited.
            "default_transaction_isolation": "'read committed'",
        }

        def connect(timeout: float) -> Any:
            connection = psycopg.connect(url, autocommit=True, connect_timeout=max(2, int(timeout)), **_KEEPALIVE)
            try:
                for name, value in settings.items():
                    connection.execute(f"SET {name} = {value}")
            except BaseException:  # an interrupt must close the connection, too
                connection.close()
                raise
            return connection

        self._connect = connect
        try:
            self._connection = connect(wait_seconds)
        except psycopg.Error as problem:
            raise OutputError(f"the database cannot be reached ({_format_error(problem)}); check its address") from None
        try:
            self._check_tables(readonly, is_migrating)
        except BaseException:  # an interrupt must close the connection, too
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

    def count_processes(self) -> int:
        """Return the number of connected processes that have called this."""
        if not self._is_counted:
            self.execute(_COUNT_PROCESS)
            self._is_counted = True
        ((count,),) = self.execute(
            "SELECT COUNT(DISTINCT pid) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 2 "
            "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
            f"AND classid = {_PROCESS_LOCK} AND objid = (hashtext(current_schema())::bigint & 4294967295)::oid"
        )
        return int(count)

    def _is_unused(self) -> bool:
        """Return whether no relay is connected, and exclude relays until this connection ends."""
        ((free,),) = self.execute(f"SELECT pg_try_advisory_lock({_PROCESS_LOCK}, hashtext(current_schema()))")
        return bool(free)

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
        except (self._errors.UndefinedTable, self._errors.UndefinedColumn, self._errors.IntegrityError) as problem:
            raise DataFileError(self.path, f"is damaged ({_format_error(problem)}); restore a copy") from None
        except self._errors.Error as problem:
            raise OutputError(
                f"the database refused a statement ({_format_error(problem)}); check the server"
            ) from None

    def _run(self, statement: str, values: tuple[Any, ...]) -> list[Any]:
        cursor = self._connection.execute(statement.replace("?", "%s"), values or None)
        return cursor.fetchall() if cursor.description is not None else []

    def _reconnect(self) -> None:
        """Make a new connection, or raise an error immediately if it is too early to retry."""
        if monotonic() < self._next_attempt_at:
            raise OutputError("the database cannot be reached; try again later")
        try:
            self._connection = self._connect(_RECONNECT_TIMEOUT_SECONDS)
            self.num_connections += 1
            if self._is_counted:
                self._connection.execute(_COUNT_PROCESS)
        except self._refusals as problem:
            self._next_attempt_at = monotonic() + self._wait_s
            self._wait_s = min(2 * self._wait_s, _MAX_RETRY_SECONDS)
            raise OutputError(f"the database cannot be reached ({_format_error(problem)}); check the server") from None
        self._wait_s = _MIN_RETRY_SECONDS
        self._next_attempt_at = 0.0

    @contextmanager
    def run_transaction(self, durable: bool = True) -> Iterator[None]:
        """Run a block in a transaction. Commit at its end, roll back at an error.

        Parameters
        ----------
        durable
            Whether the transaction must survive a power failure; see `Database.run_transaction`.
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
            except BaseException:  # an interrupt must undo the transaction, too
                with suppress(Exception):  # the error of the block is raised; a lost connection is rolled back anyway
                    self._connection.rollback()
                raise
            finally:
                self._in_transaction = False

    @staticmethod
    def migrate(url: str, wait_seconds: float) -> list[str]:
        """Copy the tables of an earlier format, apply the migrations, and return the copies.

        All of it is one transaction.

        Raises
        ------
        SessionBusyError
            If a relay uses the database.
        OutputError
            If the server refuses a statement, or there are copies already. The database stays unchanged.
        """
        database = PostgresDatabase(url, wait_seconds, is_migrating=True)
        try:
            if not database._is_unused():
                raise SessionBusyError("the database is in use by a relay; stop all relays first")
            with database.run_transaction():
                database.execute(f"SELECT pg_advisory_xact_lock({_SCHEMA_LOCK})")
                store_format = database.get_stored_format()
                copies = {table: f"format_{store_format}_{table}" for table in list_tables(store_format)}
                database.lock_tables(store_format)
                for table, copy in copies.items():
                    if database.execute("SELECT 1 WHERE to_regclass(?) IS NOT NULL", (copy,)):
                        raise OutputError(f"table {copy}, a copy of an earlier migration, must be dropped or renamed")
                    database.execute(f"CREATE TABLE {copy} AS TABLE {table}")
                for migration in MIGRATIONS[store_format - 1 :]:
                    migration.apply(database.execute_in_types)
                database.execute("UPDATE dphmm_format SET format = ?", (get_format(),))
        finally:
            database.close()
        return list(copies.values())

    def get_stored_format(self) -> int:
        """Return the format of the tables."""
        rows = self.execute("SELECT DISTINCT format FROM dphmm_format")  # a dump restored twice repeats the row
        if len(rows) != 1 or rows[0][0] is None:
            raise DataFileError(self.path, f"must have one format, got {len(rows)}; restore a copy")
        return int(rows[0][0])

    def lock_tables(self, store_format: int | None = None) -> None:
        """Exclude other writers of any table until the transaction ends."""
        self.execute(f"LOCK TABLE {', '.join(list_tables(store_format or get_format()))} IN EXCLUSIVE MODE")

    def execute_in_types(self, statement: str, values: tuple[Any, ...] = ()) -> list[Any]:
        """Run a statement that defines tables in SQLite's types. See `execute`."""
        if statement.startswith(("CREATE TABLE", "ALTER TABLE")):
            statement = statement.replace("BLOB", "BYTEA").replace("INTEGER", "BIGINT")
        return self.execute(statement, values)

    def _check_tables(self, readonly: bool, is_migrating: bool) -> None:
        """Create missing tables. Refuse those of another format."""
        with self.run_transaction():
            self.execute(f"SELECT pg_advisory_xact_lock({_SCHEMA_LOCK})")
            ((there,),) = self.execute("SELECT to_regclass('dphmm_format') IS NOT NULL")
            if not there:
                if readonly:
                    raise DataFileError(self.path, "contains no sessions; use another database")
                _create_tables(self.execute_in_types, MIGRATIONS)
                self.execute("CREATE TABLE dphmm_format (format BIGINT NOT NULL)")
                self.execute("INSERT INTO dphmm_format VALUES (?)", (get_format(),))
            elif not readonly:
                for statement in _LATER_STATEMENTS:
                    self.execute_in_types(statement.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS"))
            store_format = self.get_stored_format()
        if not is_migrating:
            check_format(self._url, store_format)


def _format_error(problem: Any) -> str:
    """Return an error of psycopg on one line."""
    # The server's details, which are not in its primary message, can contain a row.
    return " ".join((problem.diag.message_primary or str(problem)).split())
