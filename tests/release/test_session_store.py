"""Session files: accepted and refused files."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import tempfile
from contextlib import closing, suppress
from pathlib import Path

import pytest

from dphmm.errors import DataFileError, OutputError
from dphmm.release.database_backends import APPLICATION, Database, get_format
from dphmm.release.session import Session
from dphmm.release.session_store import SessionStore
from tests.release.engines import make_engine


@pytest.fixture
def path(tmp_path):
    """Write a file with two sessions and forty releases."""
    path = tmp_path / "store"
    for name in ("a", "b"):
        with Session.open(path, name, make_engine()) as session:
            for slot in range(20):
                session.release(slot % 6, slot)
    return path


def read_everything(path):
    """Return the complete content of a file, read without a model."""
    with SessionStore(path, readonly=True) as store:
        contents = []
        for name in store.names():
            session = store.session(name)
            assert session is not None
            progress = store.progress(session.number)
            assert progress.belief is not None
            contents.append((session, progress.count, progress.belief.to_bytes(), list(store.releases(session.number))))
        return contents


def read_folder(path):
    return {file.name: file.read_bytes() for file in path.parent.iterdir()}


def text(path):
    path.write_text("name,latitude\n" * 100)


def other_application(path):
    """Write an SQLite file of another application in WAL mode, with a log not yet in the file."""
    here = path.with_name("other")
    with closing(sqlite3.connect(here)) as connection, connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE t (a)")
        connection.execute("INSERT INTO t VALUES (1)")
        connection.commit()
        shutil.copy(here, path)
        shutil.copy(f"{here}-wal", f"{path}-wal")
    connection.close()


def later_version(path):
    data = bytearray(path.read_bytes())
    data[60:64] = (get_format() + 1).to_bytes(4, "big")
    path.write_bytes(data)


def no_tables(path):
    path.unlink()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"PRAGMA application_id={APPLICATION}")
        connection.execute(f"PRAGMA user_version={get_format()}")
    connection.close()


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def overwritten(path):
    data = bytearray(path.read_bytes())
    data[8192:12288] = random.Random(1).randbytes(4096)
    path.write_bytes(data)


@pytest.mark.parametrize(
    "harm", [text, lambda path: path.write_bytes(b""), other_application, later_version, no_tables, cut, overwritten]
)
def test_foreign_or_damaged_file_raises_and_stays_unchanged(path, harm):
    harm(path)
    before = read_folder(path)
    with pytest.raises(DataFileError):
        Session.open(path, "a", make_engine())
    with pytest.raises(DataFileError):
        read_everything(path)
    assert read_folder(path) == before


@pytest.mark.skipif(not hasattr(os, "setresuid") or os.getuid() != 0, reason="root becomes another user")
def test_file_of_another_user_raises_permission_error():
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        store = Path(folder, "users.db")
        SessionStore(store).close()
        store.chmod(0o600)
        os.chmod(folder, 0o755)
        os.setresuid(65534, 65534, 0)
        try:
            with pytest.raises(DataFileError, match=r"cannot be read \(permission denied\); check its owner"):
                SessionStore(store)
        finally:
            os.setresuid(0, 0, 0)


def test_folder_or_missing_file_raises(tmp_path):
    with pytest.raises(DataFileError, match="cannot be read"):
        SessionStore(tmp_path / "none", readonly=True)
    with pytest.raises(DataFileError, match="cannot be read"):
        SessionStore(tmp_path)
    with pytest.raises(OutputError, match="cannot be created"):
        SessionStore(tmp_path / "no" / "folder")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("readonly", [False, True])
def test_named_pipe_raises(tmp_path, readonly):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataFileError, match="is not a regular file"):
        SessionStore(tmp_path / "pipe", readonly=readonly)


@pytest.mark.slow
def test_flipped_bits_are_detected_or_harmless(path):
    # 150 single bits at random positions, seed 4: each is detected or lies in an unused part.
    whole, truth = path.read_bytes(), read_everything(path)
    rng = random.Random(4)
    noticed = 0
    for _ in range(150):
        data = bytearray(whole)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        try:
            assert read_everything(path) == truth
        except DataFileError:
            noticed += 1
        assert path.read_bytes() == data
    assert noticed >= 40  # more than half of the bits lie in tables without content


@pytest.mark.slow
def test_every_flipped_bit_of_record_and_belief_is_detected(path):
    # 60 single bits of each, at random positions, seed 5.
    whole, ((_, _, belief, releases), *_) = path.read_bytes(), read_everything(path)
    rng = random.Random(5)
    for blob in (releases[-1].record.to_json().encode(), belief):
        start = whole.index(blob)
        for _ in range(60):
            data = bytearray(whole)
            data[start + rng.randrange(len(blob))] ^= 1 << rng.randrange(8)
            path.write_bytes(data)
            with pytest.raises(DataFileError):
                read_everything(path)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE record SET body = replace(body, '\"epsilon\": 0.5', '\"epsilon\": 0.1') WHERE number = 7",
        "UPDATE record SET slot = 99 WHERE number = 19",
        "DELETE FROM record WHERE number = 19",
        "DELETE FROM record WHERE number = 7",
        "UPDATE progress SET count = 19",
        "UPDATE session SET limits = '{}' WHERE limits != '{}'",
        "DELETE FROM progress",
    ],
)
def test_manually_changed_rows_raise(path, statement):
    with closing(sqlite3.connect(path)) as connection, connection:
        assert connection.execute(statement).rowcount > 0
    connection.close()
    with pytest.raises(DataFileError, match="damaged"):
        read_everything(path)


@pytest.mark.parametrize("at_a_time", [1, 3, 7, 2000])
def test_chunked_reading_matches_and_detects_changed_record(path, monkeypatch, at_a_time):
    monkeypatch.setattr("dphmm.release.session_store._ROWS_PER_QUERY", at_a_time)
    with SessionStore(path, readonly=True) as store:
        read = list(store.releases(1))
        expected = [
            (release.slot, release.query, release.record.epsilon, release.record.constrained_dp_factor)
            for release in read
        ]
        assert [cost[0] for cost in expected] == list(range(20))
        assert list(store.costs(1, 0, 20)) == expected
        assert list(store.costs(1, 5, 9)) == expected[5:9]
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "UPDATE record SET body = replace(body, '\"num_possible_states\": ', '\"num_possible_states\":  ') "
            "WHERE number = 7"
        )
    connection.close()
    with (
        SessionStore(path, readonly=True) as store,
        pytest.raises(DataFileError, match="release 7"),
    ):
        list(store.costs(1, 0, 20))


@pytest.mark.slow
def test_reopening_store_in_use_keeps_locks(path):
    # Closing any handle to a file drops the process's locks on it. SQLite could then assume exclusive use.
    with Session.open(path, "a", make_engine()) as session:
        for slot in range(20, 30):
            SessionStore(path).close()
            read_everything(path)
            session.release(1, slot)
        other = "import sys; from dphmm.release.session_store import SessionStore; SessionStore(sys.argv[1]).close()"
        import subprocess
        import sys

        subprocess.run([sys.executable, "-c", other, path], check=True)
        assert path.with_name("store-wal").exists()
        session.release(1, 30)
    assert len(read_everything(path)[0][3]) == 31


def test_server_url_as_path_raises_without_password():
    with pytest.raises(OutputError, match="address of a server") as raised:
        Database.create(Path("postgresql://ann:secret@127.0.0.1/people"))
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("change", ["deleted", "moved", "replaced", "log deleted"])
def test_release_is_not_answered_if_the_file_is_no_longer_in_place(path, tmp_path, change):
    aside = tmp_path / "aside"
    shutil.copyfile(path, tmp_path / "older")
    with Session.open(path, "a", make_engine()) as session:
        answered = {20: session.release(1, 20)}
        if change != "log deleted":
            path.rename(aside)
        if change in ("deleted", "log deleted"):
            for ending in ("-wal", "-shm"):
                path.with_name(path.name + ending).unlink()
        elif change == "replaced":
            (tmp_path / "older").rename(path)
        for slot in (21, 22):
            with pytest.raises(OutputError, match="must stay in place while they are open, but were moved, replaced"):
                session.release(1, slot)
        if change == "moved":
            aside.rename(path)
            answered |= {slot: session.release(2, slot) for slot in (22, 23)}
    if change in ("moved", "log deleted"):
        with Session.open(path, "a", make_engine()) as session:
            assert {slot: session.release(3, slot) for slot in answered} == answered


@pytest.mark.parametrize("is_linked", [False, True])
def test_file_in_a_folder_that_is_not_writable_can_be_read(path, is_linked):
    """A link leads to a file in use in a writable folder, with its last release in the log."""
    folder, writable = Path(tempfile.mkdtemp()), Path(tempfile.mkdtemp())
    shutil.copyfile(path, writable / "store")
    with Session.open(writable / "store", "a", make_engine()) as session:
        if is_linked:
            session.release(1, 20)
            (folder / "store").symlink_to(writable / "store")
        else:
            shutil.copyfile(path, folder / "store")
        for file in writable.iterdir():
            file.chmod(0o666)
        before = read_everything(path)[0][1] + is_linked
        writable.chmod(0o777)
        folder.chmod(0o555)
        process = os.fork()
        if process == 0:
            is_equal = False
            try:
                if os.getuid() == 0:
                    os.setuid(65534)
                is_equal = read_everything(folder / "store")[0][1] == before
            finally:
                os._exit(not is_equal)
        status = os.waitpid(process, 0)[1]
    folder.chmod(0o755)
    shutil.rmtree(folder)
    shutil.rmtree(writable)
    assert status == 0


def test_release_is_not_answered_if_a_linked_file_is_moved(path, tmp_path):
    (tmp_path / "link").symlink_to(path)
    with Session.open(tmp_path / "link", "a", make_engine()) as session:
        session.release(1, 20)
        path.rename(tmp_path / "aside")
        with pytest.raises(OutputError, match="must stay in place"):
            session.release(1, 21)


@pytest.mark.parametrize("name", ["store", "link"])
def test_file_of_a_process_that_was_killed_while_moving_the_log_is_read(path, tmp_path, name):
    """The first page was moved already: its number of pages is that of the log."""
    with Session.open(path, "a", make_engine()) as session:
        for slot in range(20, 60):
            session.release(slot % 6, slot)
        before = read_everything(path)
        early = path.read_bytes()
        log = shutil.copyfile(f"{path}-wal", tmp_path / "log")
    assert len(path.read_bytes()) > len(early)
    path.write_bytes(path.read_bytes()[:4096] + early[4096:])
    shutil.move(log, f"{path}-wal")
    (tmp_path / "link").symlink_to(path)
    assert read_everything(tmp_path / name) == before
    with Session.open(tmp_path / name, "a", make_engine()) as session:
        assert session.release(0, 59).index == 59


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM record WHERE number = 21",
        "DELETE FROM record WHERE number = 20",
        "DELETE FROM record",
        "UPDATE record SET slot = 99 WHERE number = 20",
    ],
)
def test_deleted_record_is_not_released_again_by_a_process_that_is_running(tmp_path, statement):
    path = tmp_path / "queries"
    with Session.open(path, "a", {"place": make_engine(), "coarse": make_engine(epsilon=0.25)}) as session:
        for slot in range(11):
            for query in ("place", "coarse"):
                session.release(1, slot, query=query)
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(statement)
        connection.close()
        for query in ("place", "coarse"):
            with suppress(DataFileError):  # a record that is still there may be repeated
                session.release(1, 10, query=query)
        with SessionStore(path) as store:
            assert store.progress(session.number).count == 22


def test_rows_of_an_earlier_time_raise_an_error_of_the_package(path):
    with closing(sqlite3.connect(path)) as connection, connection:
        query = "SELECT count, slot, head, belief, omitted, amended, digest FROM progress WHERE session = 1"
        earlier = connection.execute(query).fetchone()
        with Session.open(path, "a", make_engine()) as session:
            session.release(1, 20)
        columns = "count = ?, slot = ?, head = ?, belief = ?, omitted = ?, amended = ?, digest = ?"
        connection.execute(f"UPDATE progress SET {columns} WHERE session = 1", earlier)
    connection.close()
    with Session.open(path, "a", make_engine()) as session, pytest.raises(DataFileError, match="damaged"):
        session.release(1, 21)


@pytest.mark.parametrize(("name", "value"), [("closed", "abc"), ("closed", "[1]"), ("restored", "abc"), ("clock", "")])
def test_damaged_identity_raises(path, name, value):
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO identity VALUES (?, ?)", (name, value))
    connection.close()
    message = f"damaged at the row '{name}' of its identity"
    with pytest.raises(DataFileError, match=message), Session.open(path, "a", make_engine()) as session:
        session._store.get_kept_clock()
