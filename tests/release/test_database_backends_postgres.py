"""Sessions in PostgreSQL have the guarantees of session files.

A timestep has one release, for all clients and after any crash.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dphmm import Limits, MarkovModel, PolicyGraph, Releaser, Session
from dphmm.errors import BudgetExceededError, DataFileError, OutputError, SessionBusyError, TimeOrderError
from dphmm.release.session_store import SessionStore

SPAWN = multiprocessing.get_context("spawn")


def make_engine():
    f = np.array([[1, 0], [2, 1], [3, 0], [0, 1], [4, 2], [1, 2]])
    model = MarkovModel(np.full((6, 6), 1 / 6), np.full(6, 1 / 6))
    return Releaser(model, f, PolicyGraph.categorical([0, 1, 1, 2, 2, 2]), epsilon=0.5)


@pytest.mark.slow
def test_reopened_session_repeats_releases_and_keeps_limits(postgres):
    with Session.open(postgres, "ann", make_engine(), Limits(epsilon=2)) as session:
        first = [session.release(4, slot) for slot in range(3)]
        assert session.omit(3) is None
    with Session.open(postgres, "ann", make_engine()) as session:
        assert [session.release(0, slot) for slot in range(3)] == first
        with pytest.raises(TimeOrderError):
            session.release(0, 3)
        session.release(0, 4)
        with pytest.raises(BudgetExceededError):
            session.release(0, 5)
        assert session.ledger().epsilon == 2
    with SessionStore(postgres, readonly=True) as store:
        assert store.names() == ["ann"]


@pytest.mark.slow
def test_error_in_transaction_leaves_no_release(postgres):
    with SessionStore(postgres) as store, Session.open(store, "ann", make_engine()) as session:
        session.release(1, 0)
        progress = store.progress(session.number)

        def raise_error():
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            store.append(session.number, progress, 1, raise_error)
        assert store.progress(session.number).count == 1
        session.release(1, 1)


def test_processes_are_counted_until_they_disconnect(postgres):
    with SessionStore(postgres) as first, SessionStore(postgres) as second, SessionStore(postgres):
        assert first.database.count_processes() == 1
        assert second.database.count_processes() == 2
        assert first.database.count_processes() == 2
        first.close()
        until = time.monotonic() + 60
        while second.database.count_processes() > 1:  # after the server has noticed the disconnect
            assert time.monotonic() < until


def test_unreachable_server_and_unknown_format_raise(postgres):
    with pytest.raises(OutputError, match="cannot be reached"):
        SessionStore("postgresql://nobody@127.0.0.1:9/none", wait_seconds=2)
    import psycopg

    SessionStore(postgres).close()
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("UPDATE dphmm_format SET format = 999")
    with pytest.raises(DataFileError, match=r"format \d+ or earlier, got 999"):
        SessionStore(postgres)


@pytest.mark.slow
def test_eight_clients_agree_on_one_value_per_slot(postgres):
    def ask(number):
        """Ask for every slot, from a different true state."""
        values = {}
        with Session.open(postgres, "ann", make_engine()) as session:
            for slot in range(12):
                try:
                    values[slot] = session.release(number % 6, slot).to_json()
                except TimeOrderError:
                    continue
        return values

    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(ask, range(8)))
    for slot in range(12):
        assert len({values[slot] for values in answers if slot in values}) == 1
    with Session.open(postgres, "ann", make_engine()) as session:
        assert session.ledger().epsilon == 6


def _release_endlessly(url, answered):
    with Session.open(url, "ann", make_engine()) as session:
        slot = len(session.releases())
        while True:
            answered.send((slot, session.release(slot % 6, slot).to_json()))
            slot += 1


@pytest.mark.slow
def test_killed_client_loses_no_answered_release(postgres):
    seen = {}
    for _ in range(2):
        here, there = SPAWN.Pipe(duplex=False)
        process = SPAWN.Process(target=_release_endlessly, args=(postgres, there))
        process.start()
        there.close()
        until = time.monotonic() + 60
        while not here.poll(0.05) and time.monotonic() < until:
            pass
        time.sleep(0.03)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        while here.poll():
            try:
                slot, answer = here.recv()
            except EOFError:
                break
            assert seen.setdefault(slot, answer) == answer
    with Session.open(postgres, "ann", make_engine()) as session:
        last_epsilon = -1.0
        # The server may still commit the last statement of a killed client.
        while last_epsilon != session.ledger().epsilon:
            last_epsilon = session.ledger().epsilon
            time.sleep(0.2)
        stored = {release.slot: release.record.to_json() for release in session.releases()}
        assert seen.items() <= stored.items()
        assert sorted(stored) == list(range(len(stored)))
        assert session.ledger().epsilon == pytest.approx(0.5 * len(stored))
    assert seen


def terminate_connection(store, server):
    """Terminate the server process of a store's connection."""
    import psycopg

    ((process_id,),) = store.database.execute("SELECT pg_backend_pid()")
    with psycopg.connect(server, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 10000)", (process_id,))


@pytest.mark.slow
def test_lost_connection_is_reopened_and_counted_again(postgres):
    with SessionStore(postgres) as store, Session.open(store, "ann", make_engine()) as session:
        assert store.database.count_processes() == 1
        assert store.database.try_lock("ann")
        first = session.release(4, 0)
        terminate_connection(store, postgres)
        assert session.release(0, 0) == first
        terminate_connection(store, postgres)
        session.release(1, 1)
        terminate_connection(store, postgres)
        with SessionStore(postgres) as second:
            assert second.database.try_lock("ann"), "the lock ended with the connection"
            assert not store.database.try_lock("ann")
            assert second.database.count_processes() == 2
            assert store.database.num_connections == 4
        assert store.database.execute("SHOW lock_timeout") == [("30s",)]


@pytest.mark.slow
def test_draw_is_rolled_back_if_connection_is_lost(postgres):
    with SessionStore(postgres) as store, Session.open(store, "ann", make_engine()) as session:
        session.release(4, 0)
        progress = store.progress(session.number)
        with pytest.raises(OutputError, match="database refused"):
            store.append(session.number, progress, 1, lambda: terminate_connection(store, postgres) or store.names())
        assert store.progress(session.number) == progress
        session.release(1, 1)
        assert store.progress(session.number).count == 2


@pytest.mark.slow
def test_unreachable_server_is_retried_with_backoff(postgres, monkeypatch):
    import psycopg

    now = 0.0
    monkeypatch.setattr("dphmm.release.database_backends.monotonic", lambda: now)
    with SessionStore(postgres) as store:
        real, tries = store.database._connect, []

        def refuse_connection(timeout):
            tries.append(now)
            raise psycopg.OperationalError("connection refused")

        terminate_connection(store, postgres)
        monkeypatch.setattr(store.database, "_connect", refuse_connection)
        for step in range(1000):
            now = step / 10
            with pytest.raises(OutputError, match="cannot be reached"):
                store.names()
        assert tries == pytest.approx([0, 1, 3, 7, 15, 31, 61, 91], abs=0.2)
        monkeypatch.setattr(store.database, "_connect", real)
        now = 200.0
        assert store.names() == []


@pytest.mark.parametrize(
    ("statement", "error", "message"),
    [
        ("INSERT INTO dphmm_format VALUES (3)", DataFileError, "must have one format, got 2"),
        ("DELETE FROM dphmm_format", DataFileError, "must have one format, got 0"),
        ("UPDATE progress SET session = 2", DataFileError, "damaged"),
        ("ALTER TABLE record ADD CHECK (number < 1)", DataFileError, r"violates check constraint"),
        ("ALTER TABLE progress DROP CONSTRAINT progress_pkey", OutputError, "refused a statement"),
        ("ALTER TABLE record ALTER number TYPE TEXT", OutputError, "refused a statement"),
        (
            "ALTER TABLE progress DROP CONSTRAINT progress_pkey; INSERT INTO progress SELECT * FROM progress",
            OutputError,
            "refused a statement",
        ),
    ],
)
def test_changed_tables_raise_on_one_line(postgres, statement, error, message):
    """Some follow from restoring a dump twice or without its keys."""
    import psycopg

    with Session.open(postgres, "ann", make_engine()) as session, Session.open(postgres, "bob", make_engine()):
        session.release(1, 0)
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("DELETE FROM progress WHERE session = 2")
        connection.execute(statement)
    with pytest.raises(error, match=message) as raised, Session.open(postgres, "ann", make_engine()) as session:
        session.release(1, 1)
    assert "\n" not in str(raised.value)
    assert "released" not in str(raised.value), "a release is not to appear in a log"


@pytest.mark.parametrize("wait_seconds", [0, 0.0004])
def test_waiting_time_of_less_than_a_millisecond_is_not_unlimited(postgres, wait_seconds):
    # PostgreSQL's lock_timeout of 0 means no limit.
    with (
        SessionStore(postgres) as holder,
        Session.open(postgres, "ann", make_engine(), wait_seconds=wait_seconds) as session,
        holder.database.run_transaction(),
    ):
        assert session._store.database.execute("SHOW lock_timeout") == [("1ms",)]
        holder.lock_progress(session.number)
        with pytest.raises(SessionBusyError):
            session.release(1, 0)


def test_dump_that_is_restored_twice_is_accepted(postgres):
    """Only the table of the format has no key that refuses the rows."""
    with SessionStore(postgres) as store:
        store.database.execute("INSERT INTO dphmm_format SELECT * FROM dphmm_format")
    with Session.open(postgres, "ann", make_engine()) as session:
        session.release(1, 0)


@pytest.mark.slow
def test_release_that_waits_for_an_export_sees_that_the_store_was_closed(postgres):
    """The server's default isolation would show a transaction what it saw before it waited."""
    url = f"{postgres}%20-cdefault_transaction_isolation%3Drepeatable%5C%20read"
    with (
        SessionStore(postgres) as closing,
        ThreadPoolExecutor(1) as other,
        Session.open(url, "ann", make_engine()) as session,
    ):
        session.release(4, 0)
        with closing.database.run_transaction():
            closing.database.lock_tables()
            release = other.submit(session.release, 4, 1)
            waiting = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'progress'::regclass"
            until = time.monotonic() + 60
            while not closing.database.execute(waiting):
                assert time.monotonic() < until
            closing.set_mark({"state": "moved", "at": "", "file": "a"})
        with pytest.raises(OutputError, match="was exported"):
            release.result()
        assert closing.progress(session.number).count == 1
