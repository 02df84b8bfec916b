"""Copies of stores give no timestep a second value."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import stat
import sys
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dphmm.cli import main
from dphmm.errors import (
    ConfigurationError,
    DataFileError,
    OutputError,
    SessionBusyError,
    SessionMismatchError,
    TimeOrderError,
)
from dphmm.jobs import audit_session, region
from dphmm.jobs.release import stored
from dphmm.model.model import MarkovModel
from dphmm.release import database_backends, session_transfer
from dphmm.release.database_backends import MIGRATIONS, Migration, PostgresDatabase, get_format
from dphmm.release.engine import ReleaseSettings
from dphmm.release.ledger import sum_budgets
from dphmm.release.session import Session
from dphmm.release.session_limits import Limits
from dphmm.release.session_store import SessionStore
from dphmm.release.session_transfer import export_store, import_store, migrate_store, plan_migration
from dphmm.release.settings import Schedule
from dphmm.serve.config import RelayConfig
from dphmm.serve.recipient_tables import FOREVER, RecipientTables
from tests.release.engines import STICKY, make_engine

STEP = 300
NOW = 1_709_802_000
SLOT = NOW // STEP
# The longest window: records state the epsilon of 24 hours.
DAY = 86400 // STEP
LIMITS = Limits(window_epsilon=20, window_steps=12)
STORES = pytest.mark.parametrize("where", ["file", "database"])


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr(session_transfer, "clock", lambda: NOW)
    monkeypatch.setattr(stored, "clock", lambda: NOW)


@pytest.fixture
def store(tmp_path, request):
    where = request.node.callspec.params.get("where", "file") if hasattr(request.node, "callspec") else "file"
    return request.getfixturevalue("postgres") if where == "database" else tmp_path / "users.db"


def run(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


def release(where, name, slots, state=3, limits=LIMITS, releaser=None):
    with Session.open(where, name, releaser or make_engine(step=STEP), limits) as session:
        return {slot: session.release(state, slot) for slot in slots}


def read_rows(where):
    """Return all rows but those of the copies themselves."""
    with SessionStore(where, readonly=True) as opened:
        names = database_backends.list_tables(database_backends.get_format())
        rows = {name: set(map(tuple, opened.database.execute(f"SELECT * FROM {name}"))) for name in names}
    rows["identity"] = {row for row in rows["identity"] if row[0] not in ("closed", "restored")}
    return rows


def fill(where):
    """Write two sessions, an omitted timestep, a recipient with a belief, and further rows."""
    values = {"ann": release(where, "ann", range(SLOT - 30, SLOT - 20)), "bob": release(where, "bob", [SLOT - 3])}
    with SessionStore(where) as opened, opened.database.run_transaction():
        execute = opened.database.execute
        columns = "recipient, session, name, query, precision_m, number, paused_until, absent, ends"
        execute(f"INSERT INTO delivery ({columns}) VALUES ('r1', 1, 'family', 'main', 0, 7, 0, 0, 9)")
        execute("INSERT INTO set_aside VALUES ('r1', 1, 3, 4, 'status 400')")
        execute("INSERT INTO last_contact VALUES ('ann', 5, '{}')")
        execute("INSERT INTO login VALUES ('c', 't', 's', 6)")
        execute("INSERT INTO identity VALUES ('relay', 'name')")
        opened.set_partial_belief(1, "r1", 4, None)
    with Session.open(where, "bob", make_engine(step=STEP)) as session:
        session.omit(SLOT - 1)
    return values


# ---- moves -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@STORES
def test_moved_store_continues_exactly_and_the_old_one_is_closed(tmp_path, store, where, monkeypatch):
    monkeypatch.setattr(session_transfer, "_ROWS_PER_QUERY", 3)
    values = fill(store)
    before = read_rows(store)
    file, moved = tmp_path / "everything", tmp_path / "moved.db"
    with Session.open(store, "ann", make_engine(step=STEP)) as running:  # as by a relay that was not stopped
        done = run("session", "export", store, "--everything", "-o", file)
        assert done.exit_code == 0, done.output
        for refused in (lambda: running.release(3, SLOT), lambda: running.omit(SLOT)):
            with pytest.raises(OutputError, match=r"was exported to .*everything on 2024"):
                refused()
        assert running.release(0, SLOT - 25) == values["ann"][SLOT - 25], "stored values can still be read"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for closed in (store, file):
        with pytest.raises(OutputError, match="import"):
            SessionStore(closed)
    assert read_rows(store) == before
    done = run("session", "import", file, moved)
    assert done.exit_code == 0, done.output
    assert read_rows(moved) == before
    assert release(moved, "ann", range(SLOT - 30, SLOT - 20), state=0) == values["ann"]
    with pytest.raises(TimeOrderError):
        release(moved, "bob", [SLOT - 2])
    with Session.open(moved, "ann", make_engine(step=STEP)) as session:
        assert session.release(0, SLOT - 20).epsilon_total == values["ann"][SLOT - 21].epsilon_total + 0.5
    for again in (tmp_path / "second.db", store, moved):
        done = run("session", "import", file, again)
        assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
    assert run("session", "export", store, "--everything", "-o", tmp_path / "other").exit_code == 2


@pytest.mark.slow
@STORES
def test_export_is_undone_by_its_import_and_an_import_may_be_repeated_after_a_kill(tmp_path, store, where, monkeypatch):
    values = fill(store)
    export_store(store, tmp_path / "e1")
    assert import_store(tmp_path / "e1", store).was_undone
    release(store, "ann", [SLOT])
    with pytest.raises(ConfigurationError, match="must be a new store, got one with 2 sessions"):
        import_store(tmp_path / "e1", store, withhold=True)

    # The process is killed before the file is marked, and after it.
    for number, name in enumerate(("_consume", "_set_mark")):
        export_store(store, tmp_path / f"k{number}")
        target = tmp_path / f"killed{number}.db"
        with monkeypatch.context() as patched:

            def kill(*_):
                raise KeyboardInterrupt

            patched.setattr(session_transfer, name, kill)
            with pytest.raises(KeyboardInterrupt):
                import_store(tmp_path / f"k{number}", target)
        with pytest.raises(OutputError, match="not completely imported"):
            SessionStore(target)
        if number:  # only the import that began continues
            with pytest.raises(ConfigurationError):
                import_store(tmp_path / f"k{number}", tmp_path / "another.db")
        import_store(tmp_path / f"k{number}", target)
        assert release(target, "bob", [SLOT - 3], state=0) == values["bob"]
        with SessionStore(store, accept_closed=True) as opened, opened.database.run_transaction():
            opened.set_mark(None)


@pytest.mark.slow
@STORES
def test_failed_export_leaves_the_store_open(tmp_path, store, where, monkeypatch):
    fill(store)

    def fail(*_):
        raise OutputError("no space")

    monkeypatch.setattr(session_transfer, "_copy_tables", fail)
    with pytest.raises(OutputError, match="no space"):
        export_store(store, tmp_path / "e")
    release(store, "ann", [SLOT])
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("e")] == []


def kill_within(number, function):
    """Call a function in another process, and kill it at a line. Return whether it was killed."""
    process = os.fork()
    if process == 0:
        count = 0

        def trace(frame, *_):
            nonlocal count
            if not Path(frame.f_code.co_filename).name.startswith(("session_", "database_backends")):
                return None
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)
        try:
            function()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(process, 0)[1])


@pytest.mark.slow
def test_export_killed_at_any_line_is_completed_by_a_repeated_one(tmp_path):
    slots = range(SLOT - 3, SLOT)
    values = release(tmp_path / "original.db", "ann", slots)
    states, number = set(), 1
    was_killed = True
    while was_killed:
        (folder := tmp_path / str(number)).mkdir()
        store = folder / "users.db"
        file = folder / "e"
        part = folder / "e.part"
        shutil.copyfile(tmp_path / "original.db", store)
        was_killed = kill_within(number, partial(export_store, store, file))
        with SessionStore(store, accept_closed=True) as opened:
            is_closed = opened.get_mark() is not None
        if part.exists():
            with SessionStore(part, accept_closed=True) as opened:
                state = (opened.get_mark() or {}).get("state")
            assert is_closed or state != "exact", "it could be imported while its store continues"
            states.add((is_closed, state))
        if is_closed and not file.exists():
            with pytest.raises(OutputError, match="the export was interrupted; repeat it to the same file"):
                SessionStore(store)
        if part.exists() and not is_closed:
            with pytest.raises(OutputError, match="remove it if it is of an interrupted export"):
                export_store(store, file)
            part.unlink()
        if not file.exists():
            assert export_store(store, file).num_timesteps == len(slots)
        import_store(file, folder / "new.db")
        assert release(folder / "new.db", "ann", slots, state=0) == values
        number += 43
    assert states >= {(False, None), (False, "backup"), (True, "backup"), (True, "exact")}


@pytest.mark.slow
def test_backup_killed_at_any_line_does_not_prevent_the_next_one(tmp_path):
    store, file = tmp_path / "users.db", tmp_path / "e"
    release(store, "ann", [SLOT])
    number = 1
    was_killed = True
    num_kept = 0
    while was_killed:
        was_killed = kill_within(number, partial(export_store, store, file, backup=True))
        num_kept += file.exists()
        file.unlink(missing_ok=True)
        assert export_store(store, file, backup=True).num_timesteps == 1
        file.unlink()
        number += 61
    assert num_kept >= 1
    assert len(list(tmp_path.glob(".e.*.part"))) > 5, "some were killed while their part existed"


@pytest.mark.slow
def test_import_killed_at_any_line_leaves_no_empty_store_to_continue(tmp_path):
    values = release(tmp_path / "original.db", "ann", [SLOT])
    number = 1
    was_killed = True
    num_closed = 0
    while was_killed:
        (folder := tmp_path / str(number)).mkdir()
        file, store = folder / "e", folder / "new.db"
        shutil.copyfile(tmp_path / "original.db", folder / "users.db")
        export_store(folder / "users.db", file)
        was_killed = kill_within(number, partial(import_store, file, store))
        try:
            if store.exists():
                assert release(store, "ann", [SLOT], state=0) == values
        except OutputError:  # not completely imported
            import_store(file, store)
            num_closed += 1
        if not store.exists():
            import_store(file, store)
        assert release(store, "ann", [SLOT], state=0) == values
        number += 43
    assert num_closed > 9


@pytest.mark.slow
@STORES
def test_export_with_a_failed_commit_keeps_the_only_copy(tmp_path, store, where, monkeypatch):
    values = fill(store)

    def fail(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(session_transfer, "_mark_exact", fail)
        with pytest.raises(KeyboardInterrupt):
            export_store(store, tmp_path / "e")
    another = tmp_path / "another.db"
    release(another, "ann", [SLOT])
    with pytest.raises(OutputError, match="must not exist: remove it if it is of an interrupted export of this store"):
        export_store(another, tmp_path / "e")
    with pytest.raises(ConfigurationError, match="may lack releases"):
        import_store(tmp_path / "e.part", tmp_path / "new.db")
    assert export_store(store, tmp_path / "e").is_move
    import_store(tmp_path / "e", tmp_path / "new.db")
    assert release(tmp_path / "new.db", "bob", [SLOT - 3], state=0) == values["bob"]


def test_log_of_a_missing_store_is_not_continued(store):
    release(store, "ann", [SLOT])
    store.with_name("users.db-wal").write_bytes(b"releases")
    store.rename(store.with_name("moved"))
    with pytest.raises(OutputError, match=r"users\.db-wal, the last releases of .*users\.db, must not exist"):
        SessionStore(store)


# ---- copies that may lack releases -----------------------------------------------------------------------------------


@pytest.mark.slow
@STORES
@pytest.mark.parametrize("kind", ["backup", "copy", "imported"])
def test_restored_copy_never_gives_a_second_value(tmp_path, store, where, kind):
    """The original released later timesteps, and of a new user, which the copy does not know."""
    values = fill(store)
    copy = tmp_path / "copy"
    if kind == "copy" and where == "file":
        with closing(sqlite3.connect(store)) as opened, closing(sqlite3.connect(copy)) as target:
            opened.backup(target)
    else:
        export_store(store, copy, backup=kind != "imported")
    if kind == "imported":
        store = tmp_path / "first.db"
        import_store(copy, store)
    later = {"ann": release(store, "ann", range(SLOT - 20, SLOT + 1)), "eve": release(store, "eve", [SLOT])}
    target = tmp_path / "restored.db"
    with pytest.raises(ConfigurationError, match="may lack releases"):
        import_store(copy, target)
    assert not target.exists(), "a relay would begin anew with an empty store"
    until = import_store(copy, target, withhold=True).withheld_until
    assert until >= NOW
    assert release(target, "ann", [SLOT - 25], state=0)[SLOT - 25] == values["ann"][SLOT - 25]
    first = -(-until // STEP) + DAY
    for user in ("ann", "bob", "eve"):
        for slot in (*later.get(user, ()), SLOT, SLOT + 1, first - 1):
            if slot not in values.get(user, ()):
                with pytest.raises(TimeOrderError, match="restored from a copy"):
                    release(target, user, [slot])
        release(target, user, [first])
    with SessionStore(target) as opened:
        assert opened.get_restored_at() == until


def test_restored_copy_gives_no_second_value_for_the_largest_clock_skew_of_a_relay(tmp_path, store, monkeypatch):
    """The original released a fix of a phone with a fast clock just before the import."""
    bounds = RelayConfig.model_fields["clock_skew_seconds"].metadata
    skew = int(next(bound.le for bound in bounds if hasattr(bound, "le")))
    step = 2 * 3600
    begin = NOW // step * step
    monkeypatch.setattr(session_transfer, "clock", lambda: begin + 0.5)
    release_ann = partial(release, name="ann", releaser=make_engine(step=step))
    release_ann(store, slots=[begin // step - 1])
    export_store(store, tmp_path / "copy", backup=True)
    slot = -(-(begin + 1 + skew) // step)  # the timestep that contains the fix
    release_ann(store, slots=[slot])
    import_store(tmp_path / "copy", tmp_path / "restored.db", withhold=True)
    for withheld in (slot, slot + 86400 // step - 1):  # a second value, and a window with two budgets
        with pytest.raises(TimeOrderError, match="restored from a copy"):
            release_ann(tmp_path / "restored.db", slots=[withheld])
    release_ann(tmp_path / "restored.db", slots=[slot + 86400 // step])


def test_copy_that_may_lack_releases_is_refused_where_guarantees_need_all_of_them(tmp_path, store):
    release(store, "ann", [SLOT], limits=Limits(epsilon=9))
    export_store(store, tmp_path / "e", backup=True)
    with pytest.raises(ConfigurationError, match="session 'ann' has a total limit"):
        import_store(tmp_path / "e", tmp_path / "new.db", withhold=True)
    assert not (tmp_path / "new.db").exists()
    release(tmp_path / "b.db", "ann", [SLOT])
    export_store(tmp_path / "b.db", tmp_path / "b", backup=True)
    import_store(tmp_path / "b", tmp_path / "new.db", withhold=True)
    with pytest.raises(SessionMismatchError, match="length of a timestep"):
        Session.open(tmp_path / "new.db", "eve", make_engine())


@STORES
def test_second_import_at_the_same_time_leaves_the_store_open(tmp_path, store, where, monkeypatch):
    release(tmp_path / "one.db", "ann", [SLOT])
    original, imports = session_transfer._check_source, []

    def check(*arguments):
        """Complete another import after this one has found the store to be new."""
        monkeypatch.setattr(session_transfer, "_check_source", original)
        imports.append(import_store(tmp_path / "one.db", store, withhold=True))
        original(*arguments)

    monkeypatch.setattr(session_transfer, "_check_source", check)
    if where == "database":
        SessionStore(store).close()
    with pytest.raises(ConfigurationError, match="must be a new store, got one with 1 sessions"):
        import_store(tmp_path / "one.db", store, withhold=True)
    assert len(imports) == 1
    release(store, "ann", [SLOT + 2 * DAY])


@pytest.mark.parametrize("harm", ["foreign", "record", "missing"])
def test_invalid_file_is_not_imported(tmp_path, store, harm):
    fill(store)
    file = tmp_path / "e"
    export_store(store, file)
    if harm == "foreign":
        file.write_text("no store")
    elif harm == "missing":
        file.unlink()
    else:
        with closing(sqlite3.connect(file)) as opened:
            opened.execute("UPDATE record SET slot = slot + 100 WHERE number = 4")
            opened.commit()
    with pytest.raises(DataFileError):
        import_store(file, tmp_path / "new.db")
    assert not (tmp_path / "new.db").exists()


def test_existing_file_is_never_replaced_by_an_export(tmp_path, store):
    release(store, "ann", [SLOT])
    words = "session", "export", store, "--everything", "--backup", "-o", tmp_path / "e"
    assert run(*words).exit_code == 0
    repeated = run(*words)
    assert (repeated.exit_code, repeated.stderr) == (
        2,
        f"Error: {tmp_path / 'e'} exists; name another file\n",
    )


def test_file_that_appears_during_an_export_is_kept(tmp_path, store, monkeypatch):
    values = release(store, "ann", [SLOT])
    file, original = tmp_path / "e", session_transfer._mark_exact

    def appear(part):
        file.write_text("of another program")
        original(part)

    with monkeypatch.context() as patched:
        patched.setattr(session_transfer, "_mark_exact", appear)
        with pytest.raises(OutputError, match="e was created in the meantime; move it away, and repeat the export"):
            export_store(store, file)
    assert file.read_text() == "of another program"
    file.unlink()
    assert export_store(store, file).is_move
    import_store(file, tmp_path / "new.db")
    assert release(tmp_path / "new.db", "ann", [SLOT], state=0) == values


@pytest.mark.parametrize("is_closed", [False, True], ids=["before", "after"])
def test_export_is_refused_while_its_log_has_a_part_of_it(tmp_path, store, is_closed, monkeypatch):
    """SQLite keeps the log of the copy while another process has opened it."""
    values = release(store, "ann", [SLOT])
    file, part = tmp_path / "e", tmp_path / "e.part"
    name = "_mark_exact" if is_closed else "_copy_tables"
    original, others = getattr(session_transfer, name), []

    def open_too(*arguments):
        others.append(sqlite3.connect(part))
        others[0].execute("SELECT * FROM session").fetchall()
        return original(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(session_transfer, name, open_too)
        with pytest.raises(OutputError, match="is incomplete"):
            export_store(store, file)
    assert not file.exists()
    others[0].close()
    if not is_closed:
        assert release(store, "ann", [SLOT], state=0) == values, "the store is open"
    assert export_store(store, file).is_move
    import_store(file, tmp_path / "new.db")
    assert release(tmp_path / "new.db", "ann", [SLOT], state=0) == values


def test_keys_of_all_tables_consist_of_their_first_three_columns():
    """A copy is read in pages, of which the order must be total."""
    with closing(sqlite3.connect(":memory:")) as opened:
        database_backends._create_tables(lambda statement: opened.execute(statement), MIGRATIONS)
        for table in database_backends.list_tables(get_format()):
            keys = [column[5] for column in opened.execute(f"PRAGMA table_info({table})")]
            assert 1 in keys, f"{table} has a primary key"
            assert not any(keys[3:]), table


@pytest.mark.slow
@STORES
def test_copy_in_pages_contains_each_row_once(tmp_path, store, where, monkeypatch):
    """Rows with equal first columns are stored in an order that is not that of their keys."""
    release(store, "ann", [SLOT])
    numbers = np.random.default_rng(3).permutation(3000).tolist()
    with SessionStore(store) as opened, opened.database.run_transaction():
        for number in numbers:
            opened.database.execute("INSERT INTO set_aside VALUES ('r', 1, ?, 4, 'status 400')", (number,))
            opened.database.execute("INSERT INTO device_contact VALUES ('ann', ?, 4)", (str(number),))
    monkeypatch.setattr(session_transfer, "_ROWS_PER_QUERY", 700)
    export_store(store, tmp_path / "e", backup=True)
    assert read_rows(tmp_path / "e") == read_rows(store)


# ---- migrations ------------------------------------------------------------------------------------------------------

NEXT = get_format() + 1


def add_table(execute):
    """Change a table, add another, and change the content of rows, as a later format might."""
    execute("CREATE TABLE num_answers (session INTEGER PRIMARY KEY, number INTEGER NOT NULL, note BLOB)")
    execute("INSERT INTO num_answers SELECT session, count, NULL FROM progress")
    execute("ALTER TABLE num_answers ADD COLUMN more INTEGER NOT NULL DEFAULT 7")
    execute("UPDATE set_aside SET reason = 'status 4xx'")


def fail_late(execute):
    add_table(execute)
    raise OutputError("the disk is full")


def read_num_answers(where):
    with SessionStore(where, readonly=True) as opened:
        return [tuple(row) for row in opened.database.execute("SELECT session, number, more FROM num_answers")]


@pytest.mark.slow
@STORES
def test_store_is_migrated_in_one_transaction_after_a_copy(tmp_path, store, where, monkeypatch):
    values = fill(store)
    before = read_rows(store)
    monkeypatch.setattr(database_backends, "MIGRATIONS", (*MIGRATIONS, Migration("adds numbers of answers", fail_late)))
    monkeypatch.setattr(session_transfer, "MIGRATIONS", database_backends.MIGRATIONS)
    with pytest.raises(DataFileError, match=f"is of format {NEXT - 1} and must be migrated to {NEXT}: start the relay"):
        SessionStore(store)
    monkeypatch.setattr(database_backends, "list_tables", lambda _: list(before))
    with pytest.raises(OutputError, match="the disk is full"):
        migrate_store(store)
    monkeypatch.undo()
    monkeypatch.setattr(session_transfer, "clock", lambda: NOW)
    assert read_rows(store) == before, "a failed migration changes nothing"

    monkeypatch.setattr(database_backends, "MIGRATIONS", (*MIGRATIONS, Migration("adds numbers of answers", add_table)))
    monkeypatch.setattr(session_transfer, "MIGRATIONS", database_backends.MIGRATIONS)
    done = run("session", "migrate", store)
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[:2] == [f"Format {NEXT - 1} becomes {NEXT}:", "  adds numbers of answers"]
    assert plan_migration(store).store_format == NEXT - 1
    if where == "file":
        with closing(sqlite3.connect(store)) as other:
            other.execute("SELECT * FROM session")
            with pytest.raises(SessionBusyError, match="in use by another process"):
                migrate_store(store, wait_seconds=0.1)
    done = run("session", "migrate", store, "--apply")
    assert done.exit_code == 0, done.output
    assert read_num_answers(store) == [(1, 10, 7), (2, 1, 7)]
    after = read_rows(store)
    assert {name: after[name] for name in before if name != "set_aside"} == {
        name: rows for name, rows in before.items() if name != "set_aside"
    }
    assert release(store, "ann", range(SLOT - 30, SLOT - 20), state=0) == values["ann"]
    release(store, "ann", [SLOT])
    assert plan_migration(store).store_format == NEXT
    assert migrate_store(store).copies == ()
    new = tmp_path / "new.db"
    release(new, "eve", [SLOT])
    export_store(store, tmp_path / "e")
    import_store(tmp_path / "e", tmp_path / "i.db")
    assert read_num_answers(tmp_path / "i.db") == [(1, 10, 7), (2, 1, 7)], "exports contain all tables"

    monkeypatch.undo()  # the earlier version
    with pytest.raises(DataFileError, match=f"must be of format {NEXT - 1} or earlier, got {NEXT}"):
        SessionStore(store)
    if where == "file":
        copy = tmp_path / f"users.db.format-{NEXT - 1}"
        assert stat.S_IMODE(copy.stat().st_mode) == 0o600
        assert read_rows(copy) == before
        with pytest.raises(OutputError, match="is closed"):
            SessionStore(copy)
        import_store(copy, tmp_path / "back.db", withhold=True)
    else:
        import psycopg

        with psycopg.connect(store) as connection:
            copied = connection.execute(f"SELECT * FROM format_{NEXT - 1}_record").fetchall()
        assert {tuple(row) for row in copied} == before["record"]


@pytest.mark.slow
def test_migration_killed_at_any_line_is_completed_by_a_repeated_one(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(database_backends, "MIGRATIONS", ())
        values = release(tmp_path / "original.db", "ann", [SLOT])
    states, number = set(), 1
    was_killed = True
    while was_killed:
        (folder := tmp_path / str(number)).mkdir()
        store, copy = folder / "users.db", folder / "users.db.format-1"
        shutil.copyfile(tmp_path / "original.db", store)
        was_killed = kill_within(number, partial(migrate_store, store))
        with closing(sqlite3.connect(f"file:{store}?immutable=1", uri=True)) as opened:
            in_file = opened.execute("PRAGMA user_version").fetchone()[0]
        with closing(sqlite3.connect(shutil.copytree(folder, tmp_path / f"copy {number}") / "users.db")) as opened:
            with_log = opened.execute("PRAGMA user_version").fetchone()[0]
        states.add((copy.exists(), in_file, with_log))
        number += 1 if copy.exists() else 5
        assert migrate_store(store).copies == ((str(copy),) if in_file == 1 else ())
        assert release(store, "ann", [SLOT], state=0) == values
        with closing(sqlite3.connect(copy)) as opened:
            assert opened.execute("PRAGMA user_version").fetchone() == (1,)
            assert opened.execute("SELECT COUNT(*) FROM identity WHERE name = 'closed'").fetchone() == (1,)
            assert opened.execute("SELECT COUNT(*) FROM record").fetchone() == (1,)
    new = get_format()
    assert states == {(False, 1, 1), (True, 1, 1), (True, 1, new), (True, new, new)}


@pytest.mark.parametrize("harm", ["other", "damaged"])
def test_copy_of_other_releases_is_not_replaced_by_a_migration(tmp_path, store, harm, monkeypatch):
    copy = tmp_path / "users.db.format-1"
    with monkeypatch.context() as patch:
        patch.setattr(database_backends, "MIGRATIONS", ())
        release(store, "ann", [SLOT])
        release(copy, "ann", [SLOT])
    if harm == "damaged":
        copy.write_bytes(copy.read_bytes()[:5000])
    before = copy.read_bytes()
    with pytest.raises(OutputError, match=r"users\.db\.format-1, a copy of an earlier migration, must be moved away"):
        migrate_store(store)
    assert (copy.read_bytes(), plan_migration(store).store_format) == (before, 1)


@pytest.mark.slow
@pytest.mark.parametrize("store_format", range(1, NEXT - 1))
@STORES
def test_store_of_an_earlier_format_is_migrated(store, where, store_format, monkeypatch):
    """Rows stay, and messages that waited under the first format can be leased."""
    with monkeypatch.context() as patch:
        patch.setattr(database_backends, "MIGRATIONS", MIGRATIONS[: store_format - 1])
        values = fill(store)
        before = read_rows(store)
    assert plan_migration(store).store_format == store_format
    assert len(migrate_store(store).summaries) == len(MIGRATIONS) + 1 - store_format
    after = read_rows(store)
    assert {row[:9] for row in after.pop("delivery")} == {row[:9] for row in before.pop("delivery")}
    assert {name: after[name] for name in before} == before
    assert release(store, "ann", range(SLOT - 30, SLOT - 20), state=0) == values["ann"]
    with SessionStore(store) as opened:
        opened.database.execute("UPDATE delivery SET ends = ?", (FOREVER,))
        (lease,) = RecipientTables(opened).claim("a", 9)
    assert (lease.key, lease.session, lease.user, lease.failures, lease.errors) == ("r1", 1, "ann", 0, 0)


def test_database_in_use_is_not_migrated(postgres, monkeypatch):
    with SessionStore(postgres) as opened:
        assert opened.database.count_processes() == 1
        with pytest.raises(SessionBusyError, match="stop all relays first"):
            PostgresDatabase.migrate(postgres, 1.0)


# ---- wrong time ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model():
    grid = region(bbox=(44.97, -30.04, 44.99, -29.99), cell_km=1.5)
    assert len(grid) == 6
    return MarkovModel(STICKY, np.full(6, 1 / 6), grid, step_seconds=STEP)


@pytest.fixture
def releaser(model):
    return ReleaseSettings(policy="utility:1km", epsilon=0.5).engine(model)


YEAR = 365 * 288


@pytest.mark.slow
@STORES
def test_rewound_session_continues_now_and_keeps_its_values_of_the_future(
    tmp_path, store, where, model, releaser, monkeypatch
):
    release_ann = partial(release, store, "ann", releaser=releaser)
    model.save(tmp_path / "m.npz")
    values = release_ann(range(SLOT - 3, SLOT))
    with pytest.raises(ConfigurationError, match="needs no correction"):
        stored.rewind_session(store, "ann", model)
    future = range(SLOT + YEAR, SLOT + YEAR + 2)
    values |= release_ann(future)
    with SessionStore(store) as opened:
        opened.keep_clock(NOW + YEAR * STEP)
    running = Session.open(store, "ann", releaser.spawn())
    with monkeypatch.context() as patch:  # killed when the session is rewound

        def kill(*_):
            with SessionStore(store, readonly=True) as opened:
                assert opened.get_kept_clock() == NOW
            raise KeyboardInterrupt

        patch.setattr(SessionStore, "rewind", kill)
        with pytest.raises(KeyboardInterrupt):
            stored.rewind_session(store, "ann", model)
    done = run("session", "rewind", store, "ann", "--model", tmp_path / "m.npz")
    first = SLOT + DAY
    assert done.exit_code == 0, done.output
    assert "ann continues with the timestep that ends at 2024-03-08T09:00:00Z" in done.output
    with pytest.raises(SessionMismatchError, match="amended in the meantime"):
        running.release(3, future[-1] + 1)
    running.close()
    with SessionStore(store) as opened:
        assert opened.get_kept_clock() == NOW
    for slot in (SLOT - 1, SLOT, first - 1):
        if slot not in values:
            with pytest.raises(TimeOrderError):
                release_ann([slot])
    values |= release_ann([first, first + 1])
    assert values[first].epsilon_total == 3.0, "all releases are counted"
    assert release_ann(values, state=0) == values, "no timestep has a second value"
    for slot in (future[0] - DAY + 1, future[-1] + DAY - 1):  # within one window of the kept values
        with pytest.raises(TimeOrderError, match="of a wrong time"):
            release_ann([slot])
    with Session.open(store, "ann", releaser.spawn()) as session:
        assert len(session.releases()) == 7
        assert session.ledger().epsilon == 3.5
    (content,) = stored.read_sessions(store)
    assert content.summarize_budget()["num_timesteps"] == 7
    with SessionStore(store) as opened:
        session = opened.session("ann")
        assert opened.prune(session, first + 1, STEP) == 5, "records of the future stay"
    with pytest.raises(ConfigurationError, match="was rewound"):
        audit_session(store, model)
    later = future[-1] + DAY
    values |= release_ann([later])
    with SessionStore(store) as opened:
        assert opened.prune(opened.session("ann"), later, STEP) == 7
    assert release_ann([later], state=0)[later] == values[later]


@pytest.fixture(params=[None, 1, 2], ids=["no schedule", "1 day", "2 days"])
def scheduled(model, request):
    """An engine, and its longest window in timesteps."""
    days = request.param
    schedule = None if days is None else Schedule(window_epsilon=1.0, window_seconds=days * 86400.0)
    settings = ReleaseSettings(policy="utility:1km", epsilon=0.5, schedule=schedule)
    return settings.engine(model), (days or 1) * DAY


def check_windows(values, engine, window):
    """Check that the budget of each window is reached and not exceeded."""
    schedule = engine.settings.schedule
    sums = [sum_budgets(values[slot].epsilon for slot in values if 0 <= slot - first < window) for first in values]
    assert schedule is None or max(sums) == schedule.window_epsilon


@pytest.mark.slow
def test_rewound_session_continues_after_one_window_within_the_budget(store, model, scheduled):
    engine, window = scheduled
    release_ann = partial(release, store, "ann", limits=None, releaser=engine)
    values = release_ann(range(SLOT - 40, SLOT + 1))
    future = SLOT + 4 * window
    values |= release_ann(range(future, future + 40))
    assert stored.rewind_session(store, "ann", model) == (SLOT + window) * STEP
    for slot in (SLOT + 1, SLOT + window - 1):
        with pytest.raises(TimeOrderError):
            release_ann([slot])
    values |= release_ann(range(SLOT + window, SLOT + window + 40))
    values |= release_ann(range(future - window - 40, future - window + 1))
    for slot in (future - window + 1, future + 39 + window - 1):
        with pytest.raises(TimeOrderError, match="of a wrong time"):
            release_ann([slot])
    values |= release_ann(range(future + 39 + window, future + 39 + window + 40))
    check_windows(values, engine, window)


@pytest.mark.slow
def test_longer_window_after_a_rewind_counts_the_records_before_it(store, model):
    settings = ReleaseSettings(
        policy="utility:1km", epsilon=0.5, schedule=Schedule(window_epsilon=1.0, window_seconds=86400.0)
    )
    long = replace(settings, schedule=replace(settings.schedule, window_seconds=2 * 86400.0)).engine(model)
    release_ann = partial(release, store, "ann", limits=None, releaser=settings.engine(model))
    values = release_ann(range(SLOT - 40, SLOT + 1))
    release_ann([SLOT + YEAR])
    stored.rewind_session(store, "ann", model)
    Session.open(store, "ann", long, amendment_note="").close()
    release_ann = partial(release_ann, releaser=long)
    for slot in (SLOT + DAY, SLOT + 2 * DAY - 1):
        with pytest.raises(TimeOrderError, match="must not precede slot"):
            release_ann([slot])
    values |= release_ann(range(SLOT + 2 * DAY, SLOT + 4 * DAY))
    check_windows(values, long, 2 * DAY)


@pytest.mark.slow
@pytest.mark.parametrize("is_pruned", [True, False])
def test_longer_window_after_pruning_counts_the_removed_records(store, model, is_pruned):
    """Without pruning, the account contains the records, and the schedule withholds instead."""
    short = Limits(window_epsilon=1.0, window_steps=4)
    schedule = Schedule(window_epsilon=1.0, window_seconds=2 * 86400.0)
    settings = ReleaseSettings(policy="utility:1km", epsilon=0.5)
    engine, long = (choice.engine(model) for choice in (settings, replace(settings, schedule=schedule)))
    values = release(store, "ann", [SLOT, SLOT + 1], limits=short, releaser=engine)
    values |= release(store, "ann", [SLOT + DAY + 10], limits=short, releaser=engine)
    if is_pruned:
        with SessionStore(store) as opened:
            assert opened.prune(opened.session("ann"), SLOT + DAY, STEP) == 2
    values |= release(store, "ann", [SLOT + DAY + 11], limits=short, releaser=engine)
    Session.open(store, "ann", long, amendment_note="").close()
    release_ann = partial(release, store, "ann", limits=None, releaser=long)
    for slot in (SLOT + DAY + 12, SLOT + 2 * DAY):
        with pytest.raises(TimeOrderError, match="were pruned") if is_pruned else nullcontext():
            values |= release_ann([slot])
    values |= release_ann(range(SLOT + 2 * DAY + 1, SLOT + 4 * DAY + 20))
    new = [slot for slot in values if slot > SLOT + DAY + 11 and values[slot].epsilon]
    windows = [[values[slot].epsilon for slot in values if last - 2 * DAY < slot <= last] for last in new]
    assert max(map(sum_budgets, windows)) == schedule.window_epsilon


@pytest.mark.slow
def test_restored_copy_continues_after_one_window_within_the_budget(tmp_path, store, scheduled):
    engine, window = scheduled
    release_ann = partial(release, name="ann", limits=None, releaser=engine)
    values = release_ann(store, slots=range(SLOT - 80, SLOT - 40))
    export_store(store, tmp_path / "copy", backup=True)
    values |= release_ann(store, slots=range(SLOT - 40, SLOT + DAY + 1))  # by a phone with a wrong clock
    target = tmp_path / "restored.db"
    done = run("session", "import", tmp_path / "copy", target, "--withhold")
    first = SLOT + DAY + window
    assert "until a day, or one longer window of a limit or schedule, after 2024-03-08T09:00:00Z." in done.output
    with pytest.raises(TimeOrderError, match=f"slot {first}, because"):
        release_ann(target, slots=[first - 1])
    values |= release_ann(target, slots=range(first, first + 40))
    check_windows(values, engine, window)


def test_withheld_timesteps_are_exported_as_json(tmp_path, store, model):
    schedule = Schedule(window_epsilon=0.5, window_seconds=86400.0)
    withholding = ReleaseSettings(policy="utility:1km", epsilon=0.5, schedule=schedule).engine(model)
    values = release(store, "ann", [SLOT, SLOT + 1], limits=None, releaser=withholding)
    assert any(record.withheld for record in values.values())
    done = run("session", "export", store, "-o", tmp_path / "r.jsonl")
    assert done.exit_code == 0, done.output
    assert len((tmp_path / "r.jsonl").read_text().splitlines()) == 2
    assert "NaN" not in (tmp_path / "r.jsonl").read_text()


def test_session_that_only_omitted_a_wrong_future_is_rewound(store, model, releaser):
    with Session.open(store, "ann", releaser.spawn()) as session:
        session.omit(SLOT + YEAR)
    stored.rewind_session(store, "ann", model)
    release(store, "ann", [SLOT + DAY], limits=None, releaser=releaser)
    with pytest.raises(ConfigurationError, match="no releases of 'eve'"):
        stored.rewind_session(store, "eve", model)


def test_wrong_release_in_same_store_would_be_detected(tmp_path, store):
    """The tests above would detect a second value: a plain copy of a file gives one."""
    fill(store)
    shutil.copy(store, tmp_path / "plain.db")
    first, second = (release(path, "ann", range(SLOT, SLOT + 4)) for path in (store, Path(tmp_path / "plain.db")))
    assert first != second
