"""Sessions in PostgreSQL keep the promises of sessions in files: one release a moment, whoever asks, whatever dies."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dphmm import Limits, MarkovModel, PolicyGraph, Releaser, Session
from dphmm.errors import BudgetExceededError, DataFileError, OutputError, TimeOrderError
from dphmm.release.session_store import SessionStore

SPAWN = multiprocessing.get_context("spawn")


def engine():
    f = np.array([[1, 0], [2, 1], [3, 0], [0, 1], [4, 2], [1, 2]])
    model = MarkovModel(np.full((6, 6), 1 / 6), np.full(6, 1 / 6))
    return Releaser(model, f, PolicyGraph.categorical([0, 1, 1, 2, 2, 2]), epsilon=0.5)


def test_a_session_goes_on_where_it_was_and_says_again_what_it_said(postgres):
    with Session.open(postgres, "ann", engine(), Limits(epsilon=2)) as session:
        first = [session.release(4, slot) for slot in range(3)]
        assert session.omit(3) is None
    with Session.open(postgres, "ann", engine()) as session:
        assert [session.release(0, slot) for slot in range(3)] == first
        with pytest.raises(TimeOrderError):
            session.release(0, 3)
        session.release(0, 4)
        with pytest.raises(BudgetExceededError):
            session.release(0, 5)
        assert session.ledger().epsilon == 2
    with SessionStore(postgres, readonly=True) as store:
        assert store.names() == ["ann"]


def test_an_error_in_a_transaction_leaves_nothing(postgres):
    with SessionStore(postgres) as store, Session.open(store, "ann", engine()) as session:
        session.release(1, 0)
        progress = store.progress(session.number)

        def fails():
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            store.append(session.number, progress, 1, fails)
        assert store.progress(session.number).count == 1
        session.release(1, 1)


def test_one_of_several_leads_and_another_when_it_is_gone(postgres):
    with SessionStore(postgres) as first, SessionStore(postgres) as second:
        assert first.database.leads()
        assert not second.database.leads()
        assert first.database.leads()
        first.close()
        until = time.monotonic() + 20
        while not second.database.leads():  # once the server has seen that the first is gone
            assert time.monotonic() < until


def test_servers_that_are_not_there_and_tables_that_are_others_are_said(postgres):
    with pytest.raises(OutputError, match="cannot be reached"):
        SessionStore("postgresql://nobody@127.0.0.1:9/none", wait_seconds=2)
    import psycopg

    SessionStore(postgres).close()
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("UPDATE dphmm_format SET format = 999")
    with pytest.raises(DataFileError, match="must be of format 1, got 999"):
        SessionStore(postgres)


def test_eight_clients_get_one_value_for_each_moment(postgres):
    def ask(number):
        """Every slot, from another true state."""
        found = {}
        with Session.open(postgres, "ann", engine()) as session:
            for slot in range(12):
                try:
                    found[slot] = session.release(number % 6, slot).to_json()
                except TimeOrderError:
                    continue
        return found

    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(ask, range(8)))
    for slot in range(12):
        assert len({found[slot] for found in answers if slot in found}) == 1
    with Session.open(postgres, "ann", engine()) as session:
        assert session.ledger().epsilon == 6


def _endless(url, answered):
    with Session.open(url, "ann", engine()) as session:
        slot = len(session.releases())
        while True:
            answered.send((slot, session.release(slot % 6, slot).to_json()))
            slot += 1


def test_whoever_is_killed_loses_nothing_that_was_answered(postgres):
    seen = {}
    for _ in range(2):
        here, there = SPAWN.Pipe(duplex=False)
        process = SPAWN.Process(target=_endless, args=(postgres, there))
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
    with Session.open(postgres, "ann", engine()) as session:
        known = -1.0
        while known != session.ledger().epsilon:  # what a killed client had sent last, the server may still commit
            known = session.ledger().epsilon
            time.sleep(0.2)
        stored = {one.slot: one.record.to_json() for one in session.releases()}
        assert seen.items() <= stored.items()
        assert sorted(stored) == list(range(len(stored)))
        assert session.ledger().epsilon == pytest.approx(0.5 * len(stored))
    assert seen


def lose(store, server):
    """End the server's side of a store's connection."""
    import psycopg

    ((mine,),) = store.database.execute("SELECT pg_backend_pid()")
    with psycopg.connect(server, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 10000)", (mine,))


def test_a_connection_that_was_lost_is_made_again_and_the_lead_asked_for_anew(postgres):
    with SessionStore(postgres) as store, Session.open(store, "ann", engine()) as session:
        assert store.database.leads()
        first = session.release(4, 0)
        lose(store, postgres)
        assert session.release(0, 0) == first
        lose(store, postgres)
        session.release(1, 1)
        lose(store, postgres)
        with SessionStore(postgres) as second:
            assert second.database.leads()
            assert not store.database.leads()
        assert store.database.execute("SHOW lock_timeout") == [("30s",)]


def test_a_draw_whose_connection_is_lost_is_undone_and_made_anew(postgres):
    with SessionStore(postgres) as store, Session.open(store, "ann", engine()) as session:
        session.release(4, 0)
        progress = store.progress(session.number)
        with pytest.raises(OutputError, match="database refuses"):
            store.append(session.number, progress, 1, lambda: lose(store, postgres) or store.names())
        assert store.progress(session.number) == progress
        session.release(1, 1)
        assert store.progress(session.number).count == 2


def test_a_server_that_is_away_is_tried_again_ever_more_seldom(postgres, monkeypatch):
    import psycopg

    now = 0.0
    monkeypatch.setattr("dphmm.release.session_database.monotonic", lambda: now)
    with SessionStore(postgres) as store:
        real, tries = store.database._connect, []

        def away(timeout):
            tries.append(now)
            raise psycopg.OperationalError("connection refused")

        lose(store, postgres)
        monkeypatch.setattr(store.database, "_connect", away)
        for step in range(1000):
            now = step / 10
            with pytest.raises(OutputError, match="cannot be reached"):
                store.names()
        assert tries == pytest.approx([0, 1, 3, 7, 15, 31, 61, 91], abs=0.2)
        monkeypatch.setattr(store.database, "_connect", real)
        now = 200.0
        assert store.names() == []
