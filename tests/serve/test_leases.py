"""Tests of leases: processes that share a store divide the messages to recipients."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from dphmm.errors import OutputError
from dphmm.release.session import Session
from dphmm.release.session_store import SessionStore
from dphmm.serve import recipient_tables
from dphmm.serve.recipient_tables import FOREVER, RecipientTables
from tests.release.engines import make_engine
from tests.serve.conftest import make_recipient


@pytest.fixture(params=["file", "database"])
def shared_store(request, tmp_path):
    return tmp_path / "users.db" if request.param == "file" else request.getfixturevalue("postgres")


def add_waiting(store, num_sessions, recipients=("r0", "r1")):
    """Add sessions with one release each that waits for each recipient."""
    tables = RecipientTables(store)
    for number in range(num_sessions):
        with Session.open(store, f"p{number:02}", make_engine()) as session:
            tables.set_active_recipients(session.number, {key: make_recipient(key) for key in recipients})
            session.release(3, 0)
    return tables


@pytest.mark.slow
def test_processes_lease_different_messages(shared_store):
    """Four processes lease everything at the same time, each message once."""
    with SessionStore(shared_store) as store:
        add_waiting(store, 12)

    def claim(holder):
        with SessionStore(shared_store) as opened:
            tables = RecipientTables(opened)
            begin.wait()
            claimed = []
            for _ in range(8):
                leases = tables.claim(holder, 2)
                assert max(Counter(lease.key for lease in leases).values(), default=0) <= 2
                claimed += [(lease.key, lease.user) for lease in leases]
            return claimed

    begin = threading.Barrier(4)
    with ThreadPoolExecutor(4) as pool:
        claimed = [pair for pairs in pool.map(claim, "abcd") for pair in pairs]
    assert sorted(claimed) == [(key, f"p{number:02}") for key in ("r0", "r1") for number in range(12)]


def test_messages_of_a_removed_user_wait_and_raise_no_alarm(shared_store):
    """Otherwise a recipient that works would count as unreachable until the user returns."""
    with SessionStore(shared_store) as store:
        tables = add_waiting(store, 2, ["r0"])
        assert len(tables.claim("a", 9)) == 2
        tables.end_leases("a")
        assert (set(tables.list_message_ages()), tables.count_unsent_releases()) == ({"r0"}, {"r0": 2})
        tables.set_users({"p01"})
        (lease,) = tables.claim("a", 9)
        assert lease.user == "p01"
        assert tables.count_unsent_releases() == {"r0": 1}
        tables.set_users(set())
        assert (tables.claim("b", 9), tables.list_message_ages(), tables.count_unsent_releases()) == ([], {}, {})
        tables.set_users({"p00", "p01"})
        assert [lease.user for lease in tables.claim("b", 9)] == ["p00"]
        assert tables.count_unsent_releases() == {"r0": 2}


@pytest.mark.slow
def test_lease_of_a_dead_process_ends_and_its_late_progress_is_ignored(shared_store, monkeypatch):
    with SessionStore(shared_store) as store:
        tables = add_waiting(store, 1, ("r0",))
        monkeypatch.setattr(recipient_tables, "_LEASE_MS", 500)
        (lost,) = tables.claim("a", 9)
        assert tables.claim("b", 9) == []
        time.sleep(0.6)
        monkeypatch.setattr(recipient_tables, "_LEASE_MS", 60_000)  # longer than a busy machine takes for the rest
        (lease,) = tables.claim("b", 9)
        assert tables.set_num_sent(lost, "a", 1) is None
        assert tables.get_state("r0", 1).num_sent == 0
        with Session.open(store, "p00", make_engine()) as session:
            session.release(3, 1)
        assert tables.set_num_sent(lease, "b", 1) is True
        assert tables.claim("c", 9) == [], "it is extended"
        assert tables.set_num_sent(lease, "b", 2) is False
        assert tables.count_unsent_releases() == {}


def test_failures_are_counted_across_processes_and_delay_the_next_attempt(shared_store):
    with SessionStore(shared_store) as store:
        tables = add_waiting(store, 1, ("r0",))
        (lease,) = tables.claim("a", 9)
        lease.failures, lease.errors = 3, 2
        tables.defer(lease, "a", 0.05)
        assert tables.claim("b", 9) == []
        assert tables.list_message_ages()["r0"] >= 0
        time.sleep(0.06)
        (lease,) = tables.claim("b", 9, sessions=[1])
        assert (lease.failures, lease.errors) == (3, 2)
        assert tables.set_num_sent(lease, "b", 1) is False
        assert (lease.failures, lease.errors) == (0, 0)
        assert tables.list_message_ages() == {}


@pytest.mark.parametrize("change", ["prune", "pause", "return"])
def test_message_that_is_not_sent_no_longer_waits(shared_store, change):
    with SessionStore(shared_store) as store:
        tables = add_waiting(store, 1, ("r0",))
        with Session.open(store, "p00", make_engine()) as session:
            session.release(3, 1)
        (lease,) = tables.claim("a", 9)
        lease.failures, lease.errors = 3, 2
        tables.defer(lease, "a", 0.0)
        if change == "prune":
            store.prune(store.session("p00"), 1)
            assert tables.count_unsent_releases() == {"r0": 1}
        elif change == "pause":
            tables.pause("r0", 1, recipient_tables.FOREVER)
        else:
            store.database.execute("UPDATE delivery SET absent = 1")
            tables.set_active_recipients(1, {"r0": make_recipient("r0")})
        assert tables.list_message_ages() == {}
        ((failures, errors),) = store.database.execute("SELECT failures, errors FROM delivery")
        assert (failures, errors) == (0, 0)


def test_link_of_an_exported_store_is_not_ended(shared_store):
    with SessionStore(shared_store) as store:
        tables = add_waiting(store, 1, ("r0",))
        tables.add_link(1, "Bea", 0, recipient_tables.FOREVER)
        (link,) = tables.list_links(1)
        with store.database.run_transaction():
            store.set_mark({"state": "moved", "file": "e", "at": "now"})
        with pytest.raises(OutputError, match="was exported"):
            tables.end_link(link.key, 1)
        assert tables.list_links(1)[0].ends == link.ends


def test_clock_set_back_does_not_keep_leases(shared_store):
    with SessionStore(shared_store) as store:
        tables = add_waiting(store, 2, ("r0",))
        tables.claim("a", 9)
        store.database.execute("UPDATE delivery SET leased_until = leased_until + 86400000 WHERE session = 1")
        assert [lease.session for lease in tables.claim("b", 9)] == [1]


def test_claims_skip_links_pauses_other_sessions_and_given_recipients(shared_store):
    with SessionStore(shared_store) as store:
        tables = add_waiting(store, 3)
        tables.set_active_recipients(3, {"r0": make_recipient("r0")})
        tables.add_link(1, "link", 0, FOREVER - 1)
        with Session.open(store, "p00", make_engine()) as session:
            session.release(3, 1)
        assert tables.claim("a", 9, sessions=[3], recipients=["r1"]) == []
        assert sorted((lease.key, lease.session) for lease in tables.claim("a", 9, sessions=[1, 3])) == [
            ("r0", 1),
            ("r0", 3),
            ("r1", 1),
        ]
        assert len(tables.claim("a", 9)) == 2
