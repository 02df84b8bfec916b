"""Files of sessions: what is taken for one, what is refused and left alone."""

from __future__ import annotations

import random
import shutil
import sqlite3
from pathlib import Path

import pytest

from dphmm.errors import DataFileError, OutputError
from dphmm.release.session import Session
from dphmm.release.session_database import APPLICATION, FORMAT, Database
from dphmm.release.session_store import SessionStore
from tests.release.people import engine


@pytest.fixture
def path(tmp_path):
    """A file of two sessions and forty releases."""
    path = tmp_path / "store"
    for name in ("a", "b"):
        with Session.open(path, name, engine()) as session:
            for slot in range(20):
                session.release(slot % 6, slot)
    return path


def everything(path):
    """All that a file says, read without a model."""
    with SessionStore(path, readonly=True) as store:
        found = []
        for name in store.names():
            session = store.session(name)
            assert session is not None
            progress = store.progress(session.number)
            assert progress.belief is not None
            found.append((session, progress.count, progress.belief.to_bytes(), list(store.releases(session.number))))
        return found


def folder_of(path):
    return {file.name: file.read_bytes() for file in path.parent.iterdir()}


def text(path):
    path.write_text("name,latitude\n" * 100)


def other_application(path):
    """A file in WAL mode of somebody else's, with a log that is not yet in the file."""
    here = path.with_name("other")
    with sqlite3.connect(here) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE t (a)")
        connection.execute("INSERT INTO t VALUES (1)")
        connection.commit()
        shutil.copy(here, path)
        shutil.copy(f"{here}-wal", f"{path}-wal")
    connection.close()


def later_version(path):
    data = bytearray(path.read_bytes())
    data[60:64] = (FORMAT + 1).to_bytes(4, "big")
    path.write_bytes(data)


def no_tables(path):
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA application_id={APPLICATION}")
        connection.execute(f"PRAGMA user_version={FORMAT}")
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
def test_a_foreign_or_damaged_file_is_refused_and_left_as_it_is(path, harm):
    harm(path)
    before = folder_of(path)
    with pytest.raises(DataFileError):
        Session.open(path, "a", engine())
    with pytest.raises(DataFileError):
        everything(path)
    assert folder_of(path) == before


def test_a_folder_or_nothing_is_no_file_of_sessions(tmp_path):
    with pytest.raises(DataFileError, match="cannot be read"):
        SessionStore(tmp_path / "none", readonly=True)
    with pytest.raises(DataFileError, match="cannot be read"):
        SessionStore(tmp_path)
    with pytest.raises(OutputError, match="cannot be made"):
        SessionStore(tmp_path / "no" / "folder")
    assert list(tmp_path.iterdir()) == []


def test_no_flipped_bit_changes_what_a_file_says_unnoticed(path):
    # 150 single bits at places drawn with seed 4: each is noticed, or lies where nothing is said.
    whole, truth = path.read_bytes(), everything(path)
    rng = random.Random(4)
    noticed = 0
    for _ in range(150):
        data = bytearray(whole)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        try:
            assert everything(path) == truth
        except DataFileError:
            noticed += 1
        assert path.read_bytes() == data
    assert noticed >= 50  # half of the bits lie in tables that hold nothing here


def test_every_flipped_bit_of_a_record_and_of_the_belief_is_noticed(path):
    # 60 single bits of each, at places drawn with seed 5.
    whole, ((_, _, belief, releases), *_) = path.read_bytes(), everything(path)
    rng = random.Random(5)
    for said in (releases[-1].record.to_json().encode(), belief):
        start = whole.index(said)
        for _ in range(60):
            data = bytearray(whole)
            data[start + rng.randrange(len(said))] ^= 1 << rng.randrange(8)
            path.write_bytes(data)
            with pytest.raises(DataFileError):
                everything(path)


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
def test_rows_changed_by_hand_are_noticed(path, statement):
    with sqlite3.connect(path) as connection:
        assert connection.execute(statement).rowcount > 0
    connection.close()
    with pytest.raises(DataFileError, match="damaged"):
        everything(path)


@pytest.mark.parametrize("at_a_time", [1, 3, 7, 2000])
def test_releases_and_their_costs_are_read_some_at_a_time_and_a_changed_one_is_noticed(path, monkeypatch, at_a_time):
    monkeypatch.setattr("dphmm.release.session_store._AT_A_TIME", at_a_time)
    with SessionStore(path, readonly=True) as store:
        read = list(store.releases(1))
        expected = [(one.slot, one.query, one.record.epsilon, one.record.constrained_factor) for one in read]
        assert [one[0] for one in expected] == list(range(20))
        assert list(store.costs(1, 0, 20)) == expected
        assert list(store.costs(1, 5, 9)) == expected[5:9]
    with sqlite3.connect(path) as connection:
        connection.execute(
            "UPDATE record SET body = replace(body, '\"possible\": ', '\"possible\":  ') WHERE number = 7"
        )
    connection.close()
    with (
        SessionStore(path, readonly=True) as store,
        pytest.raises(DataFileError, match="damaged at release 7"),
    ):
        list(store.costs(1, 0, 20))


def test_a_store_in_use_may_be_opened_again_and_closed_without_harm(path):
    # Closing any handle to a file drops the process's locks on it; SQLite would then take the other for alone.
    with Session.open(path, "a", engine()) as session:
        for slot in range(20, 30):
            SessionStore(path).close()
            everything(path)
            session.release(1, slot)
        other = "import sys; from dphmm.release.session_store import SessionStore; SessionStore(sys.argv[1]).close()"
        import subprocess
        import sys

        subprocess.run([sys.executable, "-c", other, path], check=True)
        assert path.with_name("store-wal").exists()
        session.release(1, 30)
    assert len(everything(path)[0][3]) == 31


def test_the_address_of_a_server_is_no_file_and_its_password_is_not_repeated():
    with pytest.raises(OutputError, match="the address of a server is given") as found:
        Database.create(Path("postgresql://ann:secret@127.0.0.1/people"))
    assert "secret" not in str(found.value)
