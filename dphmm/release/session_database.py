"""Where sessions are kept: an SQLite file, made whole and opened only undamaged, or a PostgreSQL database."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from dphmm.errors import DataFileError, OutputError, SessionBusyError, need
from dphmm.tables.binary_files import connect
from dphmm.tables.output import sync_folder
from dphmm.tables.values import is_text

APPLICATION = 0x6470686D
"""The application id in the file's header: ``dphm``."""
FORMAT = 1
"""The version in it."""

_APPLICATION_AT = 68
"""Where SQLite's files have the application id."""
_OWNER_ONLY = 0o600
_PAGE = 4096
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
CREATE TABLE told (
    recipient TEXT NOT NULL, session INTEGER NOT NULL REFERENCES session, name TEXT NOT NULL, query TEXT NOT NULL,
    precision_m INTEGER NOT NULL, number INTEGER NOT NULL, paused_until INTEGER NOT NULL, absent INTEGER NOT NULL,
    ends INTEGER NOT NULL,
    PRIMARY KEY (recipient, session));
CREATE TABLE set_aside (
    recipient TEXT NOT NULL, session INTEGER NOT NULL REFERENCES session, number INTEGER NOT NULL,
    second INTEGER NOT NULL, said TEXT NOT NULL, PRIMARY KEY (recipient, session, number));
CREATE TABLE heard (
    person TEXT PRIMARY KEY, second INTEGER NOT NULL, became TEXT NOT NULL);
CREATE TABLE login (
    cookie TEXT PRIMARY KEY, token TEXT NOT NULL, csrf TEXT NOT NULL, until INTEGER NOT NULL);
CREATE TABLE reader_said (
    session INTEGER NOT NULL REFERENCES session, number INTEGER NOT NULL, reader TEXT NOT NULL, said TEXT NOT NULL,
    digest BLOB NOT NULL, PRIMARY KEY (session, reader, number));
CREATE TABLE reader_belief (
    session INTEGER NOT NULL REFERENCES session, reader TEXT NOT NULL, number INTEGER NOT NULL, belief BLOB NOT NULL,
    PRIMARY KEY (session, reader))"""


def is_store(path: Path) -> bool:
    """Whether a file says that it is a file of sessions, of whichever version; False for what cannot be read."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as stream:
            head = stream.read(_APPLICATION_AT + 4)
    except OSError:
        return False
    return head[:16] == b"SQLite format 3\0" and head[_APPLICATION_AT:] == APPLICATION.to_bytes(4, "big")


class Database:
    """One connection to a file of sessions, in WAL mode with ``synchronous=FULL``.

    A transaction that has committed survives the process and, where the disk keeps its word, the power.

    Parameters
    ----------
    path
        The file; it exists.
    wait_seconds
        How long to wait for another process.
    readonly
        Whether nothing will be written.

    Raises
    ------
    DataFileError
        When the file is absent, no file of sessions of this version, or damaged. It is left as it is.
    OutputError
        When it is to be written and cannot be.
    """

    held = ""
    """What makes a reading statement of a transaction wait for other writers: here the transaction did so itself."""

    def __init__(self, path: str | Path, wait_seconds: float = 30.0, readonly: bool = False) -> None:
        self.path = Path(os.path.abspath(path))
        self._wait = wait_seconds
        self._process = os.getpid()
        with self._plain_errors():
            self._check_header()
            if not readonly and not os.access(self.path, os.W_OK):
                raise OutputError(f"{path} may not be written; change its permissions, or use another file")
            self._check_content()
            self._connection = self._connect("ro" if readonly else "rw")
            try:
                if not readonly:
                    self._connection.execute("PRAGMA journal_mode=WAL")
                    self._connection.execute("PRAGMA synchronous=FULL")
            except BaseException:
                self._connection.close()
                raise

    @staticmethod
    def create(path: Path) -> None:
        """Make a file that only its owner can read, unless one is there already; it appears whole or not at all.

        Raises
        ------
        OutputError
            When it cannot be written.
        """
        if str(path).startswith(("postgresql:", "postgres:")):  # which may hold a password: it is not repeated
            raise OutputError("the address of a server is given where a file of sessions is wanted; name a file")
        if "\0" in str(path) or not is_text(str(path)):
            raise OutputError(f"{str(path)!r} is no path; correct it")
        try:
            with TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
                part = Path(folder) / path.name
                part.touch(_OWNER_ONLY)
                with closing(sqlite3.connect(part, isolation_level=None)) as new:
                    new.execute(f"PRAGMA page_size={_PAGE}")
                    new.execute("PRAGMA synchronous=FULL")
                    new.executescript(
                        f"BEGIN; PRAGMA application_id={APPLICATION}; PRAGMA user_version={FORMAT}; {SCHEMA}; COMMIT"
                    )
                    new.execute("PRAGMA journal_mode=WAL")
                with suppress(FileExistsError):
                    os.link(part, path)
            sync_folder(path.parent)
        except (OSError, sqlite3.Error) as problem:
            raise OutputError(f"{path} cannot be made ({problem}); check the folder and its free space") from None

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def leads(self) -> bool:
        """Whether this connection is the one that does what one alone shall do: a file has no others."""
        return True

    def take_turn(self, _: str) -> bool:
        """Whether this process alone may go on with what has a name; with a file it is the only one."""
        return True

    def end_turn(self, _: str) -> None:
        """Let others go on with it."""

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
        try:  # and no block of `_plain_errors`, which takes as long as a short statement
            return self._connection.execute(statement, values).fetchall()
        except (sqlite3.DatabaseError, UnicodeDecodeError) as problem:
            raise self._plainly(problem) from None

    @contextmanager
    def transaction(self, lasting: bool = True) -> Iterator[None]:
        """The only writer from its beginning on; committed at the end, undone at an error.

        Parameters
        ----------
        lasting
            Whether it is to survive the power too; otherwise it may be undone by that, for what is harmless to lose.
        """
        if not lasting:
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
            if not lasting:
                self.execute("PRAGMA synchronous=FULL")

    # ---- opening -------------------------------------------------------------------------------------------------

    def _check_header(self) -> None:
        """Refuse a file that is not ours, before SQLite might touch it or its log.

        SQLite itself looks, without locks and at the file alone: a plain read, when closed, would drop all locks that
        the process has on the file. A process that was killed while moving the log into the file has left one
        that says more pages than it has: the log has them, and with `writable_schema` SQLite reads such a header.
        """
        try:
            with closing(self._connect("ro&immutable=1")) as looking:
                looking.execute("PRAGMA writable_schema=ON")
                ((application,),) = looking.execute("PRAGMA application_id")
                ((version,),) = looking.execute("PRAGMA user_version")
        except (sqlite3.DatabaseError, UnicodeDecodeError) as problem:
            if isinstance(problem, sqlite3.DatabaseError) and _code(problem) in _UNWRITABLE:
                raise DataFileError(self.path, f"cannot be read ({problem}); check the path") from None
            application = version = 0
        if application != APPLICATION:
            raise DataFileError(self.path, "is no file of sessions; name another, or one that does not exist")
        if version != FORMAT:
            raise DataFileError(
                self.path,
                f"must be of format {FORMAT}, got {version}; use the version of dphmm that made it, or a new session "
                "file",
            )

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
            if verdict != "ok" or tables != {statement.strip() for statement in SCHEMA.split(";")}:
                problem = "its tables are others" if verdict == "ok" else " ".join(verdict.split())
                raise DataFileError(self.path, f"is damaged ({problem}); restore a copy")

    def _connect(self, mode: str) -> sqlite3.Connection:
        return connect(self.path, mode, self._wait)

    @contextmanager
    def _plain_errors(self) -> Iterator[None]:
        """Say what errors of SQLite mean here."""
        try:
            yield
        except (sqlite3.DatabaseError, UnicodeDecodeError) as problem:
            raise self._plainly(problem) from None

    def _plainly(self, problem: sqlite3.DatabaseError | UnicodeDecodeError) -> Exception:
        """What an error means here; itself where that is not known."""
        if isinstance(problem, UnicodeDecodeError):  # in a message of SQLite itself
            return DataFileError(self.path, f"is damaged ({problem}); restore a copy")
        code = _code(problem)
        if isinstance(problem, sqlite3.ProgrammingError):
            return problem
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return SessionBusyError(f"{self.path} is in use by another process; ask again")
        if code in _DAMAGED:
            return DataFileError(self.path, f"is damaged ({problem}); restore a copy")
        if code in _UNWRITABLE:
            return OutputError(f"{self.path} cannot be written ({problem}); check its space and permissions")
        return problem


def _code(problem: sqlite3.DatabaseError) -> int:
    return getattr(problem, "sqlite_errorcode", 0) & 0xFF


_DAMAGED = (0, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT)
"""With statements that never change, also a missing table, and a text that does not decode (which has no code)."""
_UNWRITABLE = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
)


_MAKING = 0x6470686D
"""The number of the lock that is held to make the tables."""


_LEADING = 0x6470
"""The number of the lock that the leading process holds."""

_TURN = "hashtextextended(current_schema() || ' ' || ?::text, 0)"

_FIRST_WAIT_S, _LONGEST_WAIT_S, _AGAIN_TIMEOUT_S = 1.0, 30.0, 3.0
_ALIVE = {"keepalives_idle": 20, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 30_000}
"""After how long a server that went without a word counts as gone; libpq's names."""


def is_server(store: str | Path) -> bool:
    """Whether a store of sessions is a database server's rather than a file."""
    return isinstance(store, str) and store.startswith(("postgresql://", "postgres://"))


class PostgresDatabase:
    """One connection to a PostgreSQL database of sessions; see `Database`, which is a file's.

    Several processes write at once, to different sessions: a process that is about to write to one holds its row of
    ``progress`` (``SELECT … FOR UPDATE``), and any other process waits, and sees what was written. A transaction that
    has committed is on the server's disk (``synchronous_commit``).

    A connection that was lost is made again by the next statement that begins something: at once, and where the
    server is away after a second, and twice as long each time up to half a minute; statements meanwhile are refused.
    A transaction whose connection is lost is refused too, and undone, unless the loss came while it was committed:
    then it may hold, and a caller who asks again finds it.

    Parameters
    ----------
    url
        ``postgresql://user@host/database``; a password may come from the environment (``PGPASSWORD``).
    wait_seconds
        How long to wait for another process.
    readonly
        Whether nothing will be written.

    Raises
    ------
    OutputError
        When the server cannot be reached, or refuses.
    DataFileError
        When the database holds tables of another version.
    MissingDependencyError
        Without psycopg.
    """

    held = " FOR UPDATE"

    def __init__(self, url: str, wait_seconds: float = 30.0, readonly: bool = False) -> None:
        psycopg = need("psycopg", "serve")
        self._errors = psycopg.errors
        kinds = ("OperationalError", "InternalError", "ReadOnlySqlTransaction", "InsufficientPrivilege")
        self._refusals = tuple(getattr(psycopg.errors, kind) for kind in kinds)
        self._process = os.getpid()
        self._leads = False
        self._within = False
        self._wait_s, self._again_at = _FIRST_WAIT_S, 0.0
        self.path = Path("the database")
        settings = {
            "lock_timeout": f"{int(1000 * wait_seconds)}",
            "synchronous_commit": "on",
            "default_transaction_read_only": "on" if readonly else "off",
        }

        def connect(timeout: float) -> Any:
            made = psycopg.connect(url, autocommit=True, connect_timeout=max(2, int(timeout)), **_ALIVE)
            try:
                for name, value in settings.items():
                    made.execute(f"SET {name} = {value}")
            except BaseException:
                made.close()
                raise
            return made

        self._connect = connect
        try:
            self._connection = connect(wait_seconds)
        except psycopg.Error as problem:
            raise OutputError(f"the database cannot be reached ({_said(problem)}); check its address") from None
        try:
            self._check_tables(readonly)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the server."""
        self._connection.close()

    def leads(self) -> bool:
        """Whether this connection does what one alone shall do: the first that asks, for as long as it is open."""
        if not self._leads:
            ((self._leads,),) = self.execute(f"SELECT pg_try_advisory_lock({_LEADING}, hashtext(current_schema()))")
        return self._leads

    def take_turn(self, name: str) -> bool:
        """Whether this process alone may go on with what has a name, until `end_turn` or the connection's loss."""
        ((free,),) = self.execute(f"SELECT pg_try_advisory_lock({_TURN})", (name,))
        return bool(free)

    def end_turn(self, name: str) -> None:
        """Let others go on with it."""
        self.execute(f"SELECT pg_advisory_unlock({_TURN})", (name,))

    def execute(self, statement: str, values: tuple[Any, ...] = ()) -> list[Any]:
        """Run one statement and return its rows.

        Raises
        ------
        SessionBusyError
            When another process holds a row for longer than was to be waited, or this is a forked process.
        OutputError
            When the server is gone, or cannot write.
        DataFileError
            When its tables are others.
        """
        if os.getpid() != self._process:
            raise SessionBusyError("the database was opened before this process was forked; open it anew here")
        try:
            try:
                return self._run(statement, values)
            except self._refusals:
                if self._within or not self._connection.closed:
                    raise
            self._connect_again()  # what began something and was lost with the connection did nothing yet
            return self._run(statement, values)
        except (self._errors.LockNotAvailable, self._errors.DeadlockDetected, self._errors.SerializationFailure):
            raise SessionBusyError("the session is in use by another process; ask again") from None
        except (self._errors.UndefinedTable, self._errors.UndefinedColumn) as problem:
            raise DataFileError(self.path, f"is damaged ({_said(problem)}); restore a copy") from None
        except self._refusals as problem:
            raise OutputError(f"the database refuses ({_said(problem)}); check the server") from None

    def _run(self, statement: str, values: tuple[Any, ...]) -> list[Any]:
        cursor = self._connection.execute(statement.replace("?", "%s"), values or None)
        return cursor.fetchall() if cursor.description is not None else []

    def _connect_again(self) -> None:
        """Make a new connection, or refuse: at once where it is too early to try."""
        if monotonic() < self._again_at:
            raise OutputError("the database cannot be reached; it is tried again soon")
        try:
            self._connection, self._leads = self._connect(_AGAIN_TIMEOUT_S), False
        except self._refusals as problem:
            self._again_at = monotonic() + self._wait_s
            self._wait_s = min(2 * self._wait_s, _LONGEST_WAIT_S)
            raise OutputError(f"the database cannot be reached ({_said(problem)}); check the server") from None
        self._wait_s, self._again_at = _FIRST_WAIT_S, 0.0

    @contextmanager
    def transaction(self, lasting: bool = True) -> Iterator[None]:
        """All of it or nothing: committed at the end, undone at an error.

        Parameters
        ----------
        lasting
            As of a file's.
        """
        self.execute("BEGIN")
        self._within = True
        try:
            if not lasting:
                self.execute("SET LOCAL synchronous_commit = off")
            yield
            self.execute("COMMIT")
        except BaseException:
            with suppress(Exception):
                self._connection.rollback()
            raise
        finally:
            self._within = False

    def _check_tables(self, readonly: bool) -> None:
        """Make the tables where there are none; refuse those of another version."""
        with self.transaction():
            self.execute(f"SELECT pg_advisory_xact_lock({_MAKING})")
            ((there,),) = self.execute("SELECT to_regclass('dphmm_format') IS NOT NULL")
            if not there:
                if readonly:
                    raise DataFileError(self.path, "has no sessions; name another")
                types = SCHEMA.replace("BLOB", "BYTEA").replace("INTEGER", "BIGINT")
                for statement in types.split(";"):
                    self.execute(statement)
                self.execute("CREATE TABLE dphmm_format (format BIGINT NOT NULL)")
                self.execute("INSERT INTO dphmm_format VALUES (?)", (FORMAT,))
            found = self.execute("SELECT format FROM dphmm_format")
        if found != [(FORMAT,)]:
            raise DataFileError(
                self.path,
                f"must be of format {FORMAT}, got {found[0][0]}; use the version of dphmm that made it, or a new "
                "database",
            )


def _said(problem: BaseException) -> str:
    return " ".join(str(problem).split())
