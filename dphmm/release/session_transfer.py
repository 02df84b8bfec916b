"""Copies of stores of sessions: export, import and migration.

An export is an SQLite file with all tables of the store. It is closed, so that it can only be imported. An export that
moves a store closes the store in the transaction that makes the copy: from then on no process releases anything to it,
and the imported store continues exactly. After its import the file is marked, too.

Any other copy may lack releases, which its store, or another copy of it, made later. Such a copy is imported only on
request. The new store then releases no timestep from before its import, nor any that shares a window of a limit or
schedule with one from before. This excludes a second value if no other store of these users releases after the import,
this machine's clock is right, and no clock of a phone was more than a day ahead.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import numpy as np

from dphmm.errors import ConfigurationError, DataFileError, DphmmError, OutputError
from dphmm.release.database_backends import (
    MIGRATIONS,
    Database,
    PostgresDatabase,
    check_format,
    get_file_format,
    get_format,
    is_server,
    is_store,
    list_tables,
)
from dphmm.release.session_store import SessionStore
from dphmm.tables import iso_time
from dphmm.tables.output import check_output, sync_folder
from dphmm.validation import check_arguments

# A mark closes its store or file: no process releases from it. ``id`` names an export. ``key`` names a store, so that
# only one store completes the import of an exact file.
#
# state        where                     meaning                                next state, by
# -----------  ------------------------  -------------------------------------  ------------------------------------
# none         store                     releases                               moved, by an export without --backup
# moved        exported store            all releases are in the file of `id`   none, by the import of that file
# backup       part, file of a backup    may lack releases                      exact, if the store of `id` is moved
# exact        part, file of a move      has all releases                       imported, by the first import
# imported     file                      continues in the store of key `into`   same, by a repeat into that store
# importing    new store, `id` empty     contains no rows                       importing with `id`, or none if withheld
# importing    new store, with `id`      contains all rows                      none, once the file is imported
# copy         file of a migration       may lack releases                      never changes
#
# A file that is not exact, or has no mark, may lack releases: a new store accepts it with ``withhold`` only, and the
# file stays unchanged. The moved store of `id` also accepts a part that is backup, which becomes imported.
#
# A kill leaves, before each step of an export,
#     1. commit of the part as backup:  an open store, an empty part without a mark
#     2. commit of the store as moved:  an open store, a part that is backup. A repeat asks to remove the part
#     3. commit of the part as exact:   a moved store, a part that is backup. A repeat completes it
#     4. link of the part to the file:  a moved store, a part that is exact. A repeat completes it
#     5. removal of the part:           a moved store, and two names of one complete file
# (a backup has no steps 2 and 3; each has its own part), and before each step of an import of an exact file,
#     1. new store that is importing:   no file; if it existed, or on a server, an open store without rows
#     2. commit of rows and `id`:       a store without rows that is importing, an exact file. A repeat begins again
#     3. commit of file as imported:    a store that is importing with `id`, an exact file. A repeat completes it
#     4. commit of store without mark:  a store that is importing with `id`, an imported file. A repeat completes it
# Step 2 of the import of any other file is the last: it removes the mark and withholds in the same transaction. The
# import of an export into its moved store consists of steps 3 and 4.
#
# The order is the guarantee: a part becomes exact only after its store is moved, and a store opens only after its exact
# file is imported. In the other order, a kill could leave an open store and an exact file, which a second continues.

# Time by which clocks of phones may be ahead, so that a store may have released timesteps of it: the largest
# ``clock_skew_seconds`` of a relay.
_MAX_CLOCK_SKEW_S = 86_400
_ROWS_PER_QUERY = 1000  # bounds the memory only
# Closes a new store until it contains the copy.
_INCOMPLETE_MARK = {"state": "importing", "id": "", "key": ""}
_WAIT_S = 30.0  # the default of `Database`
clock = time.time  # replaceable in tests


@dataclass(frozen=True)
class Export:
    """The result of an export.

    Parameters
    ----------
    num_sessions, num_timesteps
        Numbers of sessions and of timesteps with a kept record, including withheld ones.
    is_move
        Whether the store was closed.
    """

    num_sessions: int
    num_timesteps: int
    is_move: bool


@dataclass(frozen=True)
class Import:
    """The result of an import.

    Parameters
    ----------
    num_sessions, num_timesteps
        Numbers of sessions and of timesteps with a kept record, including withheld ones.
    withheld_until
        Second up to which no timestep is released; None for an exact copy.
    was_undone
        Whether the store is the one that was exported, and was opened again.
    """

    num_sessions: int
    num_timesteps: int
    withheld_until: int | None = None
    was_undone: bool = False


@dataclass(frozen=True)
class MigrationPlan:
    """The migration of a store.

    Parameters
    ----------
    store_format, target
        Format of the store, and of this version.
    summaries
        The changes, in their order.
    copies
        The copy that was made before: a file, or tables of the database. Empty for a plan.
    """

    store_format: int
    target: int
    summaries: tuple[str, ...]
    copies: tuple[str, ...] = ()


# ---- export and import -----------------------------------------------------------------------------------------------


@check_arguments
def export_store(store: str | Path, output: str | Path, backup: bool = False) -> Export:
    """Copy everything in a store to a file that `import_store` reads.

    Parameters
    ----------
    store
        File of the store, or address of its server. It may be in use.
    output
        New file, readable by its owner only. It contains all tables: sessions with settings, spending and beliefs,
        recipients, links and logins.
    backup
        Whether the store continues. Otherwise it is closed.

    Returns
    -------
    Export
        What was exported.

    Raises
    ------
    OutputError
        If the file exists or cannot be written, or the store was exported already.
    DataFileError
        If the store is damaged or has another format.
    """
    path = check_output(output)
    if not is_server(store) and not Path(store).exists():
        raise DataFileError(store, "does not exist; check the path")
    # The part of an export can be the only open copy, which a repeated export completes. That of a backup that was
    # killed is worthless, and must not prevent the next one.
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part" if backup else f"{path.name}.part")
    if part.exists():
        return _complete_export(store, part, path)
    mark = {"id": secrets.token_hex(16), "at": format_second(clock()), "file": str(path.absolute())}
    with SessionStore(store) as source:
        _check_records(source)
        for ending in ("-wal", "-shm"):  # of a part that was removed after an interruption
            part.with_name(part.name + ending).unlink(missing_ok=True)
        is_closing = False
        try:
            with SessionStore(part) as target, source.database.run_transaction():
                source.database.lock_tables()
                with target.database.run_transaction():
                    result = _copy_tables(source, target)
                    # Until the store is closed, the file can only be imported as a copy that may lack releases.
                    target.set_mark({**mark, "state": "backup"})
                _close_completely(target)
                if not backup:
                    is_closing = True
                    source.set_mark({**mark, "state": "moved", "key": secrets.token_hex(16)})
        except BaseException:  # an interrupt must not leave an unfinished copy, either
            if not is_closing or _is_open(source):
                part.unlink(missing_ok=True)
            raise
    # A process that is killed from here on leaves a closed store and a copy, which a repeated export completes.
    if not backup:
        _mark_exact(part)
    _rename_export(part, path)
    return Export(*result, not backup)


def _is_open(source: SessionStore) -> bool:
    """Return whether a store is open for certain.

    A commit that was reported as failed may have closed it.
    """
    with suppress(DphmmError), source.database.run_transaction():
        source.database.lock_tables()  # waits for such a commit
        return source.get_mark() is None
    return False


def _complete_export(store: str | Path, part: Path, path: Path) -> Export:
    """Complete an export that was interrupted after it had closed the store.

    Raises
    ------
    OutputError
        If the file is not of such an export.
    """
    with SessionStore(store, accept_closed=True) as source:
        source_mark = source.get_mark() or {}
        part_mark: Mapping[str, str] = {}
        if source_mark.get("state") == "moved":
            with suppress(DataFileError), SessionStore(part, accept_closed=True) as copy:
                part_mark = copy.get_mark() or {}
        if not part_mark or part_mark.get("id") != source_mark["id"]:
            source.check_open()
            raise OutputError(
                f"{part} must not exist: remove it if it is of an interrupted export of this store, or use another name"
            )
        result = _count_contents(source)
    _mark_exact(part)
    _rename_export(part, path)
    return Export(*result, True)


def _mark_exact(part: Path) -> None:
    """Let a copy of a closed store be imported as one that contains all releases."""
    with SessionStore(part, accept_closed=True) as copy:
        with copy.database.run_transaction():
            copy.set_mark({**(copy.get_mark() or {}), "state": "exact"})
        _close_completely(copy)


def _close_completely(copy: SessionStore) -> None:
    """Close a copy, and check that SQLite has written everything to its file."""
    copy.close()
    if Path(f"{copy.path}-wal").exists():
        raise OutputError(f"{copy.path} is incomplete; check the disk, let no other process open it, and try again")


def _rename_export(part: Path, path: Path) -> None:
    try:
        os.link(part, path)  # unlike a rename, it never replaces a file that has appeared in the meantime
    except FileExistsError:
        raise OutputError(f"{path} was created in the meantime; move it away, and repeat the export") from None
    part.unlink()
    sync_folder(path.parent)


@check_arguments
def import_store(file: str | Path, store: str | Path, withhold: bool = False) -> Import:
    """Continue an exported store as a new one, or open the exported store again.

    Parameters
    ----------
    file
        File of `export_store`, or any copy of an SQLite file of sessions.
    store
        New file, or address of a server without sessions. If it is the store from which `file` was exported, the export
        is undone.
    withhold
        Whether a copy that may lack releases is accepted: a backup, a file that was imported already, or a copy that
        was not exported. Nothing is released then from before the import, nor within one window and a day after
        it. Not for sessions with a total limit or event caps, which depend on all releases.

    Returns
    -------
    Import
        What was imported.

    Raises
    ------
    ConfigurationError
        If the copy may lack releases and `withhold` is False, or the store has sessions already.
    DataFileError
        If the file is not a store of this format, or is damaged.
    OutputError
        If a store cannot be written.
    """
    if not is_store(Path(file)):
        raise DataFileError(file, "is not a file of sessions; use a file of dphmm session export --everything")
    with SessionStore(file, accept_closed=True) as source:
        mark = source.get_mark() or {}
        is_exact = mark.get("state") == "exact"
        is_new_file = not is_server(store) and not Path(store).exists()
        if is_new_file:  # a relay would begin anew with an empty store, so none is left after a refusal or a kill
            _check_source(source, file, mark, withhold)
            Database.create(Path(store), json.dumps(_INCOMPLETE_MARK))
        with SessionStore(store, accept_closed=True) as target:
            target_mark = target.get_mark() or {}
            is_own = target_mark.get("state") in ("moved", "importing") and target_mark.get("id") == mark.get("id")
            if is_own and mark.get("into") in (None, target_mark["key"]):
                _consume(source, mark, target_mark)
                _set_mark(target, None)
                return Import(*_count_contents(target), was_undone=target_mark["state"] == "moved")
            _check_new(target)
            if not is_new_file:
                _check_source(source, file, mark, withhold)
                with target.database.run_transaction():
                    target.database.lock_tables()
                    _check_new(target)  # another import may have been completed in the meantime
                    target.set_mark(_INCOMPLETE_MARK)
            if is_exact:
                key = {"id": mark["id"], "state": "importing", "key": secrets.token_hex(16)}
                with target.database.run_transaction():
                    target.database.lock_tables()
                    result = _copy_tables(source, target)
                    target.set_mark(key)
                # A process that is killed here leaves a closed store, which a repeated import opens.
                _consume(source, mark, key)
                _set_mark(target, None)
                return Import(*result)
            until = ceil(clock()) + _MAX_CLOCK_SKEW_S
            with target.database.run_transaction():
                target.database.lock_tables()
                result = _copy_tables(source, target)
                target.set_mark(None)
                target.set_restored_at(until)
            return Import(*result, until)


def _check_new(target: SessionStore) -> None:
    """Refuse to import into a store that has sessions, or is closed for another reason."""
    if target.names() or (target.get_mark() or {}) not in ({}, _INCOMPLETE_MARK):
        raise ConfigurationError(f"{target.path} must be a new store, got one with {len(target.names())} sessions")


def _check_source(source: SessionStore, file: str | Path, mark: Mapping[str, str], withhold: bool) -> None:
    """Refuse a file that a new store must not continue."""
    is_exact = mark.get("state") == "exact"
    if not is_exact and not withhold:
        raise ConfigurationError(
            f"{file} may lack releases ({_describe(mark)}); use --withhold to release nothing from before the import"
        )
    _check_records(source)
    if not is_exact:
        _check_can_lag(source, file)


def _consume(source: SessionStore, mark: Mapping[str, str], target_mark: Mapping[str, str]) -> None:
    """Mark an exported file as imported into a store."""
    with source.database.run_transaction():
        if (source.get_mark() or {}) != mark:
            raise ConfigurationError(f"{source.path} was imported into another store in the meantime; use that store")
        source.set_mark({**mark, "state": "imported", "into": target_mark["key"]})


def _set_mark(store: SessionStore, mark: Mapping[str, str] | None) -> None:
    with store.database.run_transaction():
        store.set_mark(mark)


def _describe(mark: Mapping[str, str]) -> str:
    reasons = {
        "copy": f"it is a copy of {mark.get('at')}",
        "backup": f"it is a backup of {mark.get('at')}",
        "imported": "it was imported already",
    }
    return reasons.get(mark.get("state", ""), "it was not exported")


def _check_can_lag(source: SessionStore, file: str | Path) -> None:
    """Refuse sessions of which the guarantees depend on releases that a copy may lack."""
    for name in source.names():
        session = source.session(name)
        assert session is not None, "names() lists existing sessions"
        if session.limits.epsilon is not None or session.limits.constrained_epsilon is not None:
            reason = "a total limit"
        elif any(terms.settings.caps for agreed in session.agreements for terms in agreed.terms.values()):
            reason = "event caps"
        else:
            continue
        raise ConfigurationError(
            f"{file} may lack releases, and session {name!r} has {reason}, which must count all; import a file of "
            "dphmm session export --everything without --backup, or begin a new store"
        )


def _check_records(store: SessionStore) -> None:
    """Check the digests of all sessions."""
    for name in store.names():
        session = store.session(name)
        assert session is not None, "names() lists existing sessions"
        count = store.progress(session.number).count
        for _ in store.costs(session.number, store.first_record(session.number), count):
            pass


def _count_contents(store: SessionStore) -> tuple[int, int]:
    """Return the numbers of sessions and of timesteps."""
    query = "SELECT COUNT(*) FROM (SELECT DISTINCT session, slot FROM record) AS timesteps"
    ((num_timesteps,),) = store.database.execute(query)
    return len(store.names()), int(num_timesteps)


def _copy_tables(source: SessionStore, target: SessionStore) -> tuple[int, int]:
    """Copy all tables within transactions, and return the numbers of sessions and timesteps."""
    _check_new(target)
    target.database.execute("DELETE FROM identity")
    for table in list_tables(get_format()):
        first = 0
        # Every key consists of some of the first three columns: without a total order, pages could repeat or lack rows.
        num_columns = len(next(iter(source.database.execute(f"SELECT * FROM {table} LIMIT 1")), ()))
        order = ", ".join(map(str, range(1, min(num_columns, 3) + 1)))
        while num_columns:
            rows = source.database.execute(
                f"SELECT * FROM {table} ORDER BY {order} LIMIT {_ROWS_PER_QUERY} OFFSET {first}"
            )
            for row in rows:
                places = ", ".join("?" * len(row))
                target.database.execute(f"INSERT INTO {table} VALUES ({places})", tuple(row))
            first += len(rows)
            if len(rows) < _ROWS_PER_QUERY:
                break
    return _count_contents(target)


def format_second(second: float) -> str:
    """Format a second since 1970 as ISO 8601."""
    return iso_time(np.datetime64(int(second), "s").astype("datetime64[us]"))


# ---- migration -------------------------------------------------------------------------------------------------------


@check_arguments
def plan_migration(store: str | Path) -> MigrationPlan:
    """Return the migrations that a store needs, without changing it.

    Parameters
    ----------
    store
        File of the store, or address of its server.

    Returns
    -------
    MigrationPlan
        Its format and the steps to this version's.

    Raises
    ------
    DataFileError
        If it is not a store, or of a later format.
    OutputError
        If the server cannot be reached.
    """
    return _plan_migration(store, readonly=True)


def _plan_migration(store: str | Path, readonly: bool) -> MigrationPlan:
    if is_server(store):
        database = PostgresDatabase(str(store), readonly=readonly, is_migrating=True)
        try:
            store_format = database.get_stored_format()
        finally:
            database.close()
    else:
        store_format = get_file_format(Path(store), _WAIT_S)
    if not 1 <= store_format <= get_format():
        check_format(store, store_format)
    return MigrationPlan(store_format, get_format(), tuple(step.summary for step in MIGRATIONS[store_format - 1 :]))


@check_arguments
def migrate_store(store: str | Path, wait_seconds: float = _WAIT_S) -> MigrationPlan:
    """Copy a store of an earlier format, and convert it to this version's.

    The conversion is one transaction: after an error or a crash the store has its earlier format, and a repeated call
    completes it.

    Parameters
    ----------
    store
        File of the store, or address of its server, where missing tables are created. No relay may use it.
    wait_seconds
        How long to wait for another process.

    Returns
    -------
    MigrationPlan
        The steps, and the copy: a file ``STORE.format-N`` next to the store, or tables ``format_N_…`` in the database.
        There is none if the store has the present format.

    Raises
    ------
    DataFileError, OutputError
        If `plan_migration` raises them, or there is a copy of other releases. The store stays unchanged.
    SessionBusyError
        If another process uses the store.
    """
    plan = _plan_migration(store, readonly=False)
    if plan.store_format == plan.target:
        return plan
    if is_server(store):
        copies = PostgresDatabase.migrate(str(store), wait_seconds)
    else:
        path = Path(store)
        copy = path.with_name(f"{path.name}.format-{plan.store_format}")
        Database.migrate(path, wait_seconds, copy, json.dumps({"state": "copy", "at": format_second(clock())}))
        copies = [str(copy)] if copy.exists() else []
    return MigrationPlan(plan.store_format, plan.target, plan.summaries, tuple(copies))
