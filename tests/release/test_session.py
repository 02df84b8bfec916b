"""Sessions: what they answer, keep, refuse and never keep."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pytest

from dphmm import PolicyGraph, Trajectory
from dphmm.arrays import random_source
from dphmm.errors import (
    BudgetExceededError,
    ConfigurationError,
    DataFileError,
    InvalidInputError,
    OutputError,
    SessionBusyError,
    SessionMismatchError,
    StateError,
    TimeOrderError,
)
from dphmm.events import Cap, Presence
from dphmm.geometry.hull import SensitivityHull
from dphmm.release.ledger import Limits
from dphmm.release.session import Session
from dphmm.release.session_store import SessionStore
from dphmm.release.session_terms import MAIN_QUERY
from dphmm.release.settings import Schedule
from tests.release.people import CountingReleaser, FixedReleaser, LeakingReleaser, engine, with_policy
from tests.running_example import F, graph


@pytest.fixture
def path(tmp_path):
    return tmp_path / "person.session"


@pytest.mark.parametrize("mechanism", ["lattice", "k-norm", "laplace", "planar-laplace"])
def test_a_session_interrupted_at_every_step_is_the_engine_uninterrupted(path, mechanism):
    slots = [0, 1, 2, 5, 6, 10, 11, 12, 20, 21]
    states = [4, 4, 2, 1, 0, 3, 5, 5, 4, 2]
    alone = engine(11, mechanism=mechanism)
    expected = []
    for before, slot, state in zip([0, *slots], slots, states, strict=False):
        expected.append(alone.release(state, steps=max(1, slot - before)))
    source = random_source(11)
    for slot, state in zip(slots, states, strict=True):
        with Session.open(path, "a", engine(source, mechanism=mechanism)) as session:
            session.release(state, slot)
    with Session.open(path, "a", engine(source, mechanism=mechanism)) as session:
        assert [release.record for release in session.releases()] == expected
        assert [release.slot for release in session.releases()] == slots
        assert session.belief is not None
        assert alone.belief is not None
        np.testing.assert_array_equal(session.belief.log_mass, alone.belief.log_mass)


@pytest.mark.parametrize(
    "settings",
    [
        {"mechanism": "lattice"},
        {"mechanism": "k-norm"},
        {"mechanism": "optimal", "calibration": "component"},
        {"mechanism": "lattice", "calibration": "component"},
        {"caps": (Cap(Presence([2], 1, 4), 0.9),)},
        {"schedule": Schedule(target_error=1.5)},
    ],
)
def test_what_a_session_answers_and_goes_on_with_is_what_its_file_says(path, settings):
    """To the type and the last bit, though it is read from there by others alone."""
    with Session.open(path, "a", engine(11, **settings)) as session, SessionStore(path) as writer:
        for slot, state in [(0, 4), (1, 4), (2, 2), (9, 1), (10, 0)]:
            answered = session.release(state, slot)
            session.omit(slot + 1 if slot == 2 else slot)
            with SessionStore(path, readonly=True) as other:
                assert repr(other.find(session.number, slot, MAIN_QUERY)) == repr(answered)
                kept, told = (store.progress(session.number) for store in (session._store, other))
            assert replace(kept, belief=None) == replace(told, belief=None)
            for one, same in zip(of_belief(kept), of_belief(told), strict=True):
                np.testing.assert_array_equal(one, same, strict=True)
            if slot == 9:  # whatever was kept, a file that says otherwise counts
                assert writer.omit(session.number, told, 9)
                assert session._store.progress(session.number).omitted == 9


def of_belief(progress):
    assert progress.belief is not None
    return progress.belief.support, progress.belief.log_mass


def test_a_moment_is_released_once_whatever_state_and_budget_come_later(path):
    maker = engine(kind=CountingReleaser)
    with Session.open(path, "a", maker) as session:
        first = [session.release(4, slot) for slot in range(4)]
        assert [session.release(state, slot, epsilon=9.0) for slot, state in enumerate([1, 2, 3, 0])] == first
        assert maker.draws == 4
        assert session.find(2) == first[2]
        assert session.find(9) is None


def test_two_sessions_of_one_file_know_nothing_of_each_other(path):
    with Session.open(path, "a", engine()) as a, Session.open(path, "b", engine()) as b:
        assert a.release(4, 0) != b.release(4, 0)
        b.release(4, 1)
        assert (len(a.releases()), len(b.releases())) == (1, 2)


def test_two_holders_of_one_session_see_each_others_releases(path):
    with Session.open(path, "a", engine()) as one, Session.open(path, "a", engine()) as other:
        first = one.release(4, 0)
        assert other.release(0, 0) == first
        second = other.release(3, 1)
        assert one.release(3, 1) == second
        one.release(2, 3)
        with pytest.raises(TimeOrderError, match="slot 2 lies before slot 3"):
            other.release(2, 2)
        assert other.ledger().epsilon == 1.5


def test_who_loses_the_race_for_a_moment_answers_with_the_winners_draw(path):
    winners = []

    class Overtaken(CountingReleaser):
        def prepare(self, epsilon=None, steps=1):
            step = super().prepare(epsilon, steps)
            if not winners:
                winners.append(other.release(1, 0))
            return step

    loser = engine(kind=Overtaken)
    with Session.open(path, "a", loser) as session, Session.open(path, "a", engine()) as other:
        assert session.release(4, 0) == winners[0]
        assert loser.draws == 0
        assert session.release(4, 1) != winners[0]


def test_a_session_that_another_process_holds_is_an_error_before_the_draw(path):
    maker = engine(kind=CountingReleaser)
    with Session.open(path, "a", maker, wait_seconds=0.05) as session:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(SessionBusyError, match="in use by another process"):
            session.release(4, 0)
        assert maker.draws == 0
        other.execute("ROLLBACK")
        other.close()
        assert session.release(4, 0).index == 0


def releases_until_refused(session):
    for slot in range(1, 50):
        session.release(4, slot)


def test_a_full_file_is_an_error_and_room_mends_it(path):
    maker = engine(kind=CountingReleaser)
    with Session.open(path, "a", maker) as session:
        session.release(4, 0)
        pages = session._store.database.execute("PRAGMA page_count")[0][0]
        session._store.database.execute(f"PRAGMA max_page_count={pages}")
        with pytest.raises(OutputError, match="full"):
            releases_until_refused(session)
        done = len(session.releases()) - 1
        assert maker.draws == 1 + done + 1, "the one that found no room was never seen"
        session._store.database.execute("PRAGMA max_page_count=100000")
        session.release(4, 50)
        assert len(session.releases()) == 2 + done


def test_an_error_of_the_engine_leaves_nothing_behind(path):
    with Session.open(path, "a", engine(), Limits(epsilon=5)) as session:
        for state, slot, epsilon in ((6, 0, None), (-1, 0, None), (0, 0, -1.0), (0, 0, float("nan"))):
            with pytest.raises(InvalidInputError):
                session.release(state, slot, epsilon)
        assert session.releases() == []
        assert session.belief is None
        session.release(4, 0)
        with pytest.raises(StateError):
            session.release(17, 0)


# ---- what is never stored ---------------------------------------------------------------------------------------


def contents(path, kind, states):
    """All bytes of a file of sessions after releases of some states with given draws, and of its log before closing."""
    maker = engine(5, kind=kind)
    maker.places = [(0.5, 1.0), (3.25, 2.0), (-1.0, 0.5), (2.0, 2.0)]
    with Session.open(path, "a", maker) as session:
        for slot, state in enumerate(states):
            session.release(state, slot)
        log = path.with_name(path.name + "-wal").read_bytes()
    # Frames are 24 bytes, of which the first four are the page's number, and a page; the rest is salt and checksum.
    frames = [(log[i : i + 4], log[i + 24 : i + 4120]) for i in range(32, len(log) - 4119, 4120)]
    return path.read_bytes(), frames


def test_with_the_same_draws_different_truths_leave_the_same_bytes(tmp_path):
    one = contents(tmp_path / "one", FixedReleaser, [4, 4, 2, 1])
    other = contents(tmp_path / "other", FixedReleaser, [0, 5, 3, 3])
    assert len(one[1]) > 8
    assert one == other


def test_a_truth_that_enters_the_belief_by_a_hair_would_be_found_out(tmp_path):
    one = contents(tmp_path / "one", LeakingReleaser, [4, 4, 2, 1])
    other = contents(tmp_path / "other", LeakingReleaser, [0, 5, 3, 3])
    assert one != other


def test_only_its_owner_can_read_a_file_of_sessions(path):
    with Session.open(path, "a", engine()) as session:
        session.release(4, 0)
        files = sorted(path.parent.iterdir())
        assert [file.name for file in files] == ["person.session", "person.session-shm", "person.session-wal"]
        assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert list(path.parent.iterdir()) == [path]


# ---- time -------------------------------------------------------------------------------------------------------


def test_instants_fall_into_the_slots_of_resampling(path):
    rng = np.random.default_rng(3)
    times = np.datetime64("2024-03-07T09:00", "us") + np.sort(rng.integers(0, 10**10, 50)).astype("timedelta64[us]")
    track = Trajectory("a", times, np.full(50, 45.0), np.full(50, -30.0)).resample(300.0)
    with Session.open(path, "a", engine(step=300.0)) as session:
        assert {session.slot_of(time) for time in times} == set(track.slots.tolist())
        whole = datetime(2024, 3, 7, 9, 2, tzinfo=UTC)
        assert session.slot_of(whole) == session.slot_of(np.datetime64("2024-03-07T09:05"))
        assert session.slot_of(whole.astimezone(timezone(timedelta(hours=9)))) == session.slot_of(whole)
        assert session.release(4, whole) == session.release(0, session.slot_of(whole))


@pytest.mark.parametrize("slot", [1.5, True, "3", None, 2**63, datetime(2024, 1, 1), np.datetime64("NaT", "us")])
def test_what_is_no_time_step_is_refused(path, slot):
    with (
        Session.open(path, "a", engine(step=60.0)) as session,
        pytest.raises(InvalidInputError, match=r"slot is .*(whole number|time zone)"),
    ):
        session.release(4, slot)


def test_instants_need_a_model_that_knows_its_step(path):
    with Session.open(path, "a", engine()) as session, pytest.raises(ConfigurationError, match="step_seconds"):
        session.release(4, datetime(2024, 1, 1, tzinfo=UTC))


# ---- terms ------------------------------------------------------------------------------------------------------

CHANGES = {
    "model": lambda: engine(matrix=np.full((6, 6), 1 / 6)),
    "initial": lambda: engine(initial=[0.5, 0.1, 0.1, 0.1, 0.1, 0.1]),
    "step": lambda: engine(step=60.0),
    "policy": lambda: engine(policy=PolicyGraph.complete(6)),
    "measurements": lambda: engine(f=F + 1),
    "epsilon": lambda: engine(epsilon=0.6),
    "mechanism": lambda: engine(mechanism="laplace"),
    "spacing": lambda: engine(mechanism="lattice", spacing=1),
    "repair": lambda: engine(repair="greedy"),
    "delta": lambda: engine(delta=0.1),
    "objective": lambda: engine(objective="volume"),
    "repair_limit": lambda: engine(repair_limit=1),
    "allow_known": lambda: engine(allow_known=True),
    "randomness": lambda: engine(3),
    "queries": lambda: {"main": engine(), "other": engine()},
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_session_does_not_go_on_under_other_terms(path, change):
    with Session.open(path, "a", engine()) as session:
        first = session.release(4, 0)
    part = {"initial": "model", "step": "model"}.get(change, change)
    with pytest.raises(SessionMismatchError, match=part):
        Session.open(path, "a", CHANGES[change]())
    with Session.open(path, "a", engine()) as session:
        assert session.release(4, 0) == first


def test_limits_stay_what_they_were_agreed_to_be(path):
    Session.open(path, "a", engine(), Limits(epsilon=2)).close()
    Session.open(path, "a", engine(), Limits(epsilon=2)).close()
    with Session.open(path, "a", engine()) as session:
        assert session.limits == Limits(epsilon=2)
    with pytest.raises(SessionMismatchError, match="began with"):
        Session.open(path, "a", engine(), Limits(epsilon=3))


@pytest.mark.parametrize(("name", "queries"), [("", {"main": 0}), ("a\n", {"main": 0}), ("a", {}), ("a", {"": 0})])
def test_names_are_printable_and_there_is_a_query(path, name, queries):
    with pytest.raises(InvalidInputError, match=r"session's (name|queries)"):
        Session.open(path, name, {query: engine() for query in queries})
    assert not path.exists()


# ---- budget -----------------------------------------------------------------------------------------------------


def test_a_limit_may_be_reached_and_not_passed(path):
    maker = engine(kind=CountingReleaser, epsilon=0.1)
    with Session.open(path, "a", maker, Limits(epsilon=1)) as session:
        for slot in range(10):  # ten times 0.1 is one, though not in binary
            session.release(4, slot)
        with pytest.raises(BudgetExceededError, match=r"epsilon limit of 1 .*: 1 is spent .* asks for 0\.1"):
            session.release(4, 10)
        assert maker.draws == 10
        assert session.release(0, 3).epsilon == 0.1
    with (
        Session.open(path, "a", maker) as session,
        pytest.raises(BudgetExceededError),
    ):
        session.release(4, 10, epsilon=1e-9)


def test_spending_by_one_holder_binds_the_other(path):
    with (
        Session.open(path, "a", engine(), Limits(epsilon=1)) as one,
        Session.open(path, "a", engine()) as other,
    ):
        one.release(4, 0)
        other.release(4, 1)
        for session in (one, other):
            with pytest.raises(BudgetExceededError):
                session.release(4, 2)


def test_the_constrained_limit_counts_the_diameter_of_every_step(path):
    # Support {3,4,5,6}: the repair adds 3-4 and the factor is 2, so each release of 0.5 costs 1.
    support = {"matrix": np.eye(6), "initial": [0, 0, 0.25, 0.25, 0.25, 0.25]}
    maker = engine(kind=CountingReleaser, objective="volume", **support)
    with Session.open(path, "a", maker, Limits(constrained_epsilon=3)) as session:
        assert [session.release(4, slot).constrained_epsilon for slot in range(3)] == [1, 1, 1]
        with pytest.raises(BudgetExceededError, match=r"constrained-DP limit of 3 .*: 3 is spent .* asks for 1;"):
            session.release(4, 3)
        assert session.release(4, 0).index == 0
        assert maker.draws == 3


def test_an_infinite_factor_passes_every_constrained_limit_and_no_other(path, tmp_path):
    flat = np.array([[0, 0], [1, 0], [0, 1], [1, 1], [0, 2], [1, 2]])
    maker = engine(kind=CountingReleaser, f=flat, policy=with_policy((0, 1), (2, 3), (4, 5)))
    with (
        Session.open(path, "a", maker, Limits(constrained_epsilon=1e30)) as session,
        pytest.raises(BudgetExceededError, match="asks for inf"),
    ):
        session.release(4, 0)
    assert maker.draws == 0
    with Session.open(tmp_path / "free", "a", maker, Limits(epsilon=1)) as session:
        assert session.release(4, 0).constrained_epsilon == np.inf


@pytest.mark.parametrize("seed", range(5))
def test_the_window_that_a_session_keeps_to_is_the_ledgers(tmp_path, seed):
    rng = np.random.default_rng(seed)
    slot, refused = 0, 0
    with Session.open(tmp_path / "s", "a", engine(), Limits(window_epsilon=1.5, window_steps=4)) as session:
        for _ in range(40):
            slot += int(rng.integers(1, 4))
            epsilon = float(rng.choice([0.5, 1.0]))
            spent = sum(x.record.epsilon for x in session.releases() if slot - 4 < x.slot <= slot)
            if spent + epsilon > 1.5:
                refused += 1
                with pytest.raises(BudgetExceededError, match=r"4-step window limit of 1\.5"):
                    session.release(4, slot, epsilon)
            else:
                session.release(4, slot, epsilon)
        assert refused >= 3
        assert session.ledger().window(4) == 1.5


# ---- several queries --------------------------------------------------------------------------------------------


def test_queries_at_one_moment_compose(path):
    makers = {"place": engine(), "coarse": engine(f=F * [1, 2], epsilon=0.25)}
    with Session.open(path, "a", makers, Limits(epsilon=1)) as session:
        place = session.release(4, 0, query="place")
        coarse = session.release(4, 0, query="coarse")
        assert (place.steps, coarse.steps, coarse.index) == (0, 0, 1)
        assert session.release(0, 0, query="place") == place
        assert session.ledger().epsilon == 0.75
        assert session.ledger().window(1) == 0.75
        # Bayes' rule with both densities, by brute force.
        mass = np.full(6, 1 / 6)
        for f, epsilon, record in ((F, 0.5, place), (F * [1, 2], 0.25, coarse)):
            hull = SensitivityHull(graph().differences(f))
            mass = mass * np.exp(-epsilon * hull.norm(np.array(record.released) - f))
        assert session.belief is not None
        np.testing.assert_allclose(session.belief.probabilities, mass / mass.sum(), rtol=1e-9)
        session.release(4, 1, query="coarse")
        with pytest.raises(BudgetExceededError):
            session.release(4, 1, query="place")
        with pytest.raises(TimeOrderError):
            session.release(4, -1, query="place")
        with pytest.raises(InvalidInputError, match="queries are place, coarse"):
            session.release(4, 1)


@pytest.mark.parametrize("other", [{"policy": PolicyGraph.complete(6)}, {"matrix": np.eye(6)}, {"rng": 1}])
def test_queries_of_one_session_share_model_policy_and_randomness(path, other):
    with pytest.raises(SessionMismatchError, match="must share it"):
        Session.open(path, "a", {"one": engine(), "two": engine(**other)})


@pytest.mark.parametrize("others", [(), (Cap(Presence([2], 1, 4), 0.8),), (Cap(Presence([3], 1, 4), 0.9),)])
def test_queries_of_one_session_share_their_caps(path, others):
    """A query without the cap would tell what the other holds back; such a session opened, and then always failed."""
    caps = (Cap(Presence([2], 1, 4), 0.9),)
    with pytest.raises(SessionMismatchError, match="give every query the same caps"):
        Session.open(path, "a", {"one": engine(caps=caps), "two": engine(caps=others)})
    with Session.open(path, "a", {"one": engine(caps=caps), "two": engine(f=F * [1, 2], caps=caps)}) as session:
        for slot in range(3):
            session.release(4, slot, query="one")
            session.release(4, slot, query="two")


# ---- files ------------------------------------------------------------------------------------------------------


def test_a_step_on_damaged_progress_is_refused_before_the_draw(path):
    maker = engine(kind=CountingReleaser)
    with Session.open(path, "a", maker) as session:
        for slot in range(3):
            session.release(4, slot)
        session._store.database.execute("UPDATE progress SET count = 1")
        with pytest.raises(DataFileError, match="damaged"):
            session.release(4, 3)
        assert maker.draws == 3


def test_a_forked_process_does_not_use_its_parents_connection(path, monkeypatch):
    with Session.open(path, "a", engine()) as session:
        session.release(4, 0)
        with monkeypatch.context() as forked:
            forked.setattr("os.getpid", lambda: -1)
            with pytest.raises(SessionBusyError, match="forked"):
                session.release(4, 1)
        session.release(4, 1)
