"""Sessions in a PostgreSQL database, for several workers or machines: the same tables, the same promise."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dphmm.errors import DataFileError, OutputError, SessionBusyError, need
from dphmm.release.database import FORMAT, SCHEMA

_MAKING = 0x6470686D
"""The number of the lock that whoever makes the tables holds."""


_LEADING = 0x6470
"""The number of the lock that whoever leads holds."""


def is_server(store: str | Path) -> bool:
    """Whether a store of sessions is a database server's rather than a file."""
    return isinstance(store, str) and store.startswith(("postgresql://", "postgres://"))


class PostgresDatabase:
    """One connection to a PostgreSQL database of sessions; see `dphmm.release.database.Database`, which is a file's.

    Several processes write at once, to different sessions: who is about to write to one holds its row of ``progress``
    (``SELECT … FOR UPDATE``), and whoever else wants to waits, and sees what was written. A transaction that has
    committed is on the server's disk (``synchronous_commit``).

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
        self.path = Path("the database")
        try:
            self._connection = psycopg.connect(url, autocommit=True, connect_timeout=max(2, int(wait_seconds)))
        except psycopg.Error as problem:
            raise OutputError(f"the database cannot be reached ({_said(problem)}); check its address") from None
        try:
            self.execute(f"SET lock_timeout = {int(1000 * wait_seconds)}")
            self.execute("SET synchronous_commit = on")
            self.execute(f"SET default_transaction_read_only = {'on' if readonly else 'off'}")
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
            cursor = self._connection.execute(statement.replace("?", "%s"), values or None)
            return cursor.fetchall() if cursor.description is not None else []
        except (self._errors.LockNotAvailable, self._errors.DeadlockDetected, self._errors.SerializationFailure):
            raise SessionBusyError("the session is in use by another process; ask again") from None
        except (self._errors.UndefinedTable, self._errors.UndefinedColumn) as problem:
            raise DataFileError(self.path, f"is damaged ({_said(problem)}); restore a copy") from None
        except self._refusals as problem:
            raise OutputError(f"the database refuses ({_said(problem)}); check the server") from None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of it or nothing: committed at the end, undone at an error."""
        self.execute("BEGIN")
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            with suppress(Exception):
                self._connection.rollback()
            raise

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
                self.path, f"has sessions of format {found[0][0]}, this version of dphmm reads {FORMAT}; use another"
            )


def _said(problem: BaseException) -> str:
    return " ".join(str(problem).split())
