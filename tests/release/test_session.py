"""Sessions: answers, storage, refusals and data that is never stored."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pytest

from dphmm import PolicyGraph, ReleaseSettings, Trajectory
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
from dphmm.geometry.sensitivity_hull import SensitivityHull
from dphmm.random import as_random_source
from dphmm.release.session import Session
from dphmm.release.session_limits import Limits
from dphmm.release.session_store import SessionStore
from dphmm.release.session_terms import MAIN_QUERY
from dphmm.release.settings import Schedule
from tests.release.engines import CountingReleaser, FixedReleaser, LeakingReleaser, make_engine, with_policy
from tests.running_example import F, build_graph


@pytest.fixture
def path(tmp_path):
    return tmp_path / "user.session"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"limits": {"epsilon": 3}}, "limits must be a Limits, got {'epsilon': 3}"),
        ({"releaser": None}, "releaser must be a Releaser or a mapping by name, got None"),
        ({"releaser": ReleaseSettings("complete")}, "releaser must be a Releaser or a mapping by name, got Rel"),
    ],
)
def test_argument_of_wrong_class_raises_before_file_is_created(path, arguments, message):
    with pytest.raises(InvalidInputError, match=f"^{message}"):
        Session.open(**{"path": path, "name": "ann", "releaser": make_engine(), **arguments})
    assert not path.exists()


def test_release_of_the_engine_without_its_session_is_found(path):
    releaser = make_engine()
    with Session.open(path, "ann", releaser) as session:
        session.release(0, 1)
        releaser.release(0)
        with pytest.raises(DataFileError, match="or the engine released without the session"):
            session.release(0, 2)


@pytest.mark.parametrize("mechanism", ["lattice", "k-norm", "laplace", "planar-laplace"])
def test_session_reopened_at_every_step_matches_uninterrupted_engine(path, mechanism):
    slots = [0, 1, 2, 5, 6, 10, 11, 12, 20, 21]
    states = [4, 4, 2, 1, 0, 3, 5, 5, 4, 2]
    alone = make_engine(11, mechanism=mechanism)
    expected = []
    for before, slot, state in zip([0, *slots], slots, states, strict=False):
        expected.append(alone.release(state, steps=max(1, slot - before)))
    source = as_random_source(11)
    for slot, state in zip(slots, states, strict=True):
        with Session.open(path, "a", make_engine(source, mechanism=mechanism)) as session:
            session.release(state, slot)
    with Session.open(path, "a", make_engine(source, mechanism=mechanism)) as session:
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
        {"mechanism": "optimal", "noise_scope": "component"},
        {"mechanism": "lattice", "noise_scope": "component"},
        {"caps": (Cap(Presence([2], 1, 4), 0.9),)},
        {"schedule": Schedule(target_error=1.5)},
    ],
)
def test_session_answers_and_progress_match_stored_file(path, settings):
    """Compare with a reader of the file, to the type and the last bit."""
    with Session.open(path, "a", make_engine(11, **settings)) as session, SessionStore(path) as writer:
        for slot, state in [(0, 4), (1, 4), (2, 2), (9, 1), (10, 0)]:
            answered = session.release(state, slot)
            session.omit(slot + 1 if slot == 2 else slot)
            with SessionStore(path, readonly=True) as other:
                assert repr(other.find(session.number, slot, MAIN_QUERY)) == repr(answered)
                kept, reread = (store.progress(session.number) for store in (session._store, other))
            assert replace(kept, belief=None) == replace(reread, belief=None)
            for own_array, same in zip(get_belief_arrays(kept), get_belief_arrays(reread), strict=True):
                np.testing.assert_array_equal(own_array, same, strict=True)
            if slot == 9:  # the file takes precedence over the cached progress
                assert writer.omit(session.number, reread, 9)
                assert session._store.progress(session.number).omitted_slot == 9


def get_belief_arrays(progress):
    assert progress.belief is not None
    return progress.belief.support, progress.belief.log_mass


def test_slot_is_released_once_for_any_later_state_and_epsilon(path):
    maker = make_engine(kind=CountingReleaser)
    with Session.open(path, "a", maker) as session:
        first = [session.release(4, slot) for slot in range(4)]
        assert [session.release(state, slot, epsilon=9.0) for slot, state in enumerate([1, 2, 3, 0])] == first
        assert maker.draws == 4
        assert session.find(2) == first[2]
        assert session.find(9) is None


def test_sessions_of_one_file_are_independent(path):
    with Session.open(path, "a", make_engine()) as a, Session.open(path, "b", make_engine()) as b:
        assert a.release(4, 0) != b.release(4, 0)
        b.release(4, 1)
        assert (len(a.releases()), len(b.releases())) == (1, 2)


def test_handles_of_one_session_see_each_others_releases(path):
    with Session.open(path, "a", make_engine()) as first_session, Session.open(path, "a", make_engine()) as other:
        first = first_session.release(4, 0)
        assert other.release(0, 0) == first
        second = other.release(3, 1)
        assert first_session.release(3, 1) == second
        first_session.release(2, 3)
        with pytest.raises(TimeOrderError, match=r"must not precede slot 3, .*got 2"):
            other.release(2, 2)
        assert other.ledger().epsilon == 1.5


def test_concurrent_release_returns_first_committed_draw(path):
    winners = []

    class Overtaken(CountingReleaser):
        def prepare(self, epsilon=None, steps=1):
            step = super().prepare(epsilon, steps)
            if not winners:
                winners.append(other.release(1, 0))
            return step

    loser = make_engine(kind=Overtaken)
    with Session.open(path, "a", loser) as session, Session.open(path, "a", make_engine()) as other:
        assert session.release(4, 0) == winners[0]
        assert loser.draws == 0
        assert session.release(4, 1) != winners[0]


def test_locked_session_raises_before_draw(path):
    maker = make_engine(kind=CountingReleaser)
    with Session.open(path, "a", maker, wait_seconds=0.05) as session:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(SessionBusyError, match="another process"):
            session.release(4, 0)
        assert maker.draws == 0
        other.execute("ROLLBACK")
        other.close()
        assert session.release(4, 0).index == 0


def release_until_refused(session):
    for slot in range(1, 50):
        session.release(4, slot)


def test_full_file_raises_and_session_continues_after_space_is_freed(path):
    maker = make_engine(kind=CountingReleaser)
    with Session.open(path, "a", maker) as session:
        session.release(4, 0)
        pages = session._store.database.execute("PRAGMA page_count")[0][0]
        session._store.database.execute(f"PRAGMA max_page_count={pages}")
        with pytest.raises(OutputError, match="full"):
            release_until_refused(session)
        done = len(session.releases()) - 1
        assert maker.draws == 1 + done + 1, "the draw that did not fit was never published"
        session._store.database.execute("PRAGMA max_page_count=100000")
        session.release(4, 50)
        assert len(session.releases()) == 2 + done


def test_engine_error_leaves_session_unchanged(path):
    with Session.open(path, "a", make_engine(), Limits(epsilon=5)) as session:
        for state, slot, epsilon in ((6, 0, None), (-1, 0, None), (0, 0, -1.0), (0, 0, float("nan"))):
            with pytest.raises(InvalidInputError):
                session.release(state, slot, epsilon)
        assert session.releases() == []
        assert session.belief is None
        session.release(4, 0)
        with pytest.raises(StateError):
            session.release(17, 0)


# ---- data that is never stored ---------------------------------------------------------------------------------------


def read_file_and_log(path, kind, states):
    """Return all bytes of a session file after fixed draws, and of its log before closing."""
    maker = make_engine(5, kind=kind)
    maker.places = [(0.5, 1.0), (3.25, 2.0), (-1.0, 0.5), (2.0, 2.0)]
    with Session.open(path, "a", maker) as session:
        for slot, state in enumerate(states):
            session.release(state, slot)
        log = path.with_name(path.name + "-wal").read_bytes()
    # Frames are 24 bytes, of which the first four are the page's number, and a page; the rest is salt and checksum.
    frames = [(log[i : i + 4], log[i + 24 : i + 4120]) for i in range(32, len(log) - 4119, 4120)]
    return path.read_bytes(), frames


def test_file_bytes_do_not_depend_on_true_states(tmp_path):
    first = read_file_and_log(tmp_path / "one", FixedReleaser, [4, 4, 2, 1])
    other = read_file_and_log(tmp_path / "other", FixedReleaser, [0, 5, 3, 3])
    assert len(first[1]) > 8
    assert first == other


def test_file_bytes_differ_if_true_state_enters_belief(tmp_path):
    first = read_file_and_log(tmp_path / "one", LeakingReleaser, [4, 4, 2, 1])
    other = read_file_and_log(tmp_path / "other", LeakingReleaser, [0, 5, 3, 3])
    assert first != other


def test_session_files_are_readable_by_owner_only(path):
    with Session.open(path, "a", make_engine()) as session:
        session.release(4, 0)
        files = sorted(path.parent.iterdir())
        assert [file.name for file in files] == ["user.session", "user.session-shm", "user.session-wal"]
        assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert list(path.parent.iterdir()) == [path]


# ---- time -------------------------------------------------------------------------------------------------------


def test_instants_map_to_resampling_slots(path):
    rng = np.random.default_rng(3)
    times = np.datetime64("2024-03-07T09:00", "us") + np.sort(rng.integers(0, 10**10, 50)).astype("timedelta64[us]")
    track = Trajectory("a", times, np.full(50, 45.0), np.full(50, -30.0)).resample(300.0)
    with Session.open(path, "a", make_engine(step=300.0)) as session:
        assert {session.to_slot(time) for time in times} == set(track.slots.tolist())
        whole = datetime(2024, 3, 7, 9, 2, tzinfo=UTC)
        assert session.to_slot(whole) == session.to_slot(np.datetime64("2024-03-07T09:05"))
        assert session.to_slot(whole.astimezone(timezone(timedelta(hours=9)))) == session.to_slot(whole)
        assert session.release(4, whole) == session.release(0, session.to_slot(whole))


@pytest.mark.parametrize(
    "slot", [1.5, True, "3", None, 2**63, datetime(2024, 1, 1), np.datetime64("NaT", "us"), np.timedelta64(5, "s")]
)
def test_invalid_slot_raises(path, slot):
    with (
        Session.open(path, "a", make_engine(step=60.0)) as session,
        pytest.raises(InvalidInputError, match=r"slot must (be an integer|have a time zone)"),
    ):
        session.release(4, slot)


def test_instant_raises_if_model_has_no_step_seconds(path):
    with Session.open(path, "a", make_engine()) as session, pytest.raises(ConfigurationError, match="step_seconds"):
        session.release(4, datetime(2024, 1, 1, tzinfo=UTC))


# ---- terms ------------------------------------------------------------------------------------------------------

CHANGES = {
    "model": lambda: make_engine(matrix=np.full((6, 6), 1 / 6)),
    "initial": lambda: make_engine(initial=[0.5, 0.1, 0.1, 0.1, 0.1, 0.1]),
    "step": lambda: make_engine(step=60.0),
    "policy": lambda: make_engine(policy=PolicyGraph.complete(6)),
    "measurements": lambda: make_engine(f=F + 1),
    "epsilon": lambda: make_engine(epsilon=0.6),
    "mechanism": lambda: make_engine(mechanism="laplace"),
    "spacing": lambda: make_engine(mechanism="lattice", spacing=1),
    "repair": lambda: make_engine(repair="greedy"),
    "delta": lambda: make_engine(delta=0.1),
    "repair_objective": lambda: make_engine(repair_objective="volume"),
    "repair_max_work": lambda: make_engine(repair_max_work=1),
    "allow_singleton": lambda: make_engine(allow_singleton=True),
    "randomness": lambda: make_engine(3),
    "queries": lambda: {"main": make_engine(), "other": make_engine()},
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_terms_raise_and_leave_session_usable(path, change):
    with Session.open(path, "a", make_engine()) as session:
        first = session.release(4, 0)
    part = {"initial": "model", "step": "model"}.get(change, change)
    with pytest.raises(SessionMismatchError, match=part):
        Session.open(path, "a", CHANGES[change]())
    with Session.open(path, "a", make_engine()) as session:
        assert session.release(4, 0) == first


def test_session_keeps_initial_limits_and_raises_for_others(path):
    Session.open(path, "a", make_engine(), Limits(epsilon=2)).close()
    Session.open(path, "a", make_engine(), Limits(epsilon=2)).close()
    with Session.open(path, "a", make_engine()) as session:
        assert session.limits == Limits(epsilon=2)
    with pytest.raises(SessionMismatchError, match="began with the limit epsilon = 2, got the limit epsilon = 3; omit"):
        Session.open(path, "a", make_engine(), Limits(epsilon=3))


@pytest.mark.parametrize(("name", "queries"), [("", {"main": 0}), ("a\n", {"main": 0}), ("a", {}), ("a", {"": 0})])
def test_invalid_name_or_missing_query_raises(path, name, queries):
    with pytest.raises(InvalidInputError, match=r"session (name must be|needs at least one query)"):
        Session.open(path, name, {query: make_engine() for query in queries})
    assert not path.exists()


# ---- budget -----------------------------------------------------------------------------------------------------


def test_limit_can_be_reached_but_not_exceeded(path):
    maker = make_engine(kind=CountingReleaser, epsilon=0.1)
    with Session.open(path, "a", maker, Limits(epsilon=1)) as session:
        for slot in range(10):  # decimal 0.1 sums to exactly 1, binary 0.1 does not
            session.release(4, slot)
        with pytest.raises(BudgetExceededError, match=r"epsilon limit .*\b1\b.*0\.1"):
            session.release(4, 10)
        assert maker.draws == 10
        assert session.release(0, 3).epsilon == 0.1
    with (
        Session.open(path, "a", maker) as session,
        pytest.raises(BudgetExceededError),
    ):
        session.release(4, 10, epsilon=1e-9)


def test_handles_of_one_session_share_budget(path):
    with (
        Session.open(path, "a", make_engine(), Limits(epsilon=1)) as first_session,
        Session.open(path, "a", make_engine()) as other,
    ):
        first_session.release(4, 0)
        other.release(4, 1)
        for session in (first_session, other):
            with pytest.raises(BudgetExceededError):
                session.release(4, 2)


def test_constrained_limit_counts_factor_of_every_step(path):
    # Support {3,4,5,6}: the repair adds 3-4 and the factor is 2, so each release of 0.5 costs 1.
    support = {"matrix": np.eye(6), "initial": [0, 0, 0.25, 0.25, 0.25, 0.25]}
    maker = make_engine(kind=CountingReleaser, repair_objective="volume", **support)
    with Session.open(path, "a", maker, Limits(constrained_epsilon=3)) as session:
        assert [session.release(4, slot).constrained_epsilon for slot in range(3)] == [1, 1, 1]
        with pytest.raises(BudgetExceededError, match=r"constrained-DP limit .*\b3\b.*\b1\b"):
            session.release(4, 3)
        assert session.release(4, 0).index == 0
        assert maker.draws == 3


def test_infinite_factor_exceeds_constrained_limit_only(path, tmp_path):
    flat = np.array([[0, 0], [1, 0], [0, 1], [1, 1], [0, 2], [1, 2]])
    maker = make_engine(kind=CountingReleaser, f=flat, policy=with_policy((0, 1), (2, 3), (4, 5)))
    with (
        Session.open(path, "a", maker, Limits(constrained_epsilon=1e30)) as session,
        pytest.raises(BudgetExceededError, match=r"\binf\b"),
    ):
        session.release(4, 0)
    assert maker.draws == 0
    with Session.open(tmp_path / "free", "a", maker, Limits(epsilon=1)) as session:
        assert session.release(4, 0).constrained_epsilon == np.inf


@pytest.mark.parametrize("seed", range(5))
def test_window_limit_matches_ledger(tmp_path, seed):
    rng = np.random.default_rng(seed)
    slot, refused = 0, 0
    with Session.open(tmp_path / "s", "a", make_engine(), Limits(window_epsilon=1.5, window_steps=4)) as session:
        for _ in range(40):
            slot += int(rng.integers(1, 4))
            epsilon = float(rng.choice([0.5, 1.0]))
            spent = sum(x.record.epsilon for x in session.releases() if slot - 4 < x.slot <= slot)
            if spent + epsilon > 1.5:
                refused += 1
                with pytest.raises(BudgetExceededError, match=r"4-step window limit .*1\.5"):
                    session.release(4, slot, epsilon)
            else:
                session.release(4, slot, epsilon)
        assert refused >= 3
        assert session.ledger().compute_max_window_epsilon(4) == 1.5


# ---- several queries --------------------------------------------------------------------------------------------


def test_queries_at_one_timestep_compose(path):
    makers = {"place": make_engine(), "coarse": make_engine(f=F * [1, 2], epsilon=0.25)}
    with Session.open(path, "a", makers, Limits(epsilon=1)) as session:
        place = session.release(4, 0, query="place")
        coarse = session.release(4, 0, query="coarse")
        assert (place.steps, coarse.steps, coarse.index) == (0, 0, 1)
        assert session.release(0, 0, query="place") == place
        assert session.ledger().epsilon == 0.75
        assert session.ledger().compute_max_window_epsilon(1) == 0.75
        # Bayes' rule with both densities, by brute force.
        mass = np.full(6, 1 / 6)
        for f, epsilon, record in ((F, 0.5, place), (F * [1, 2], 0.25, coarse)):
            hull = SensitivityHull(build_graph().differences(f))
            mass = mass * np.exp(-epsilon * hull.norm(np.array(record.released) - f))
        assert session.belief is not None
        np.testing.assert_allclose(session.belief.probabilities, mass / mass.sum(), rtol=1e-9)
        session.release(4, 1, query="coarse")
        with pytest.raises(BudgetExceededError):
            session.release(4, 1, query="place")
        with pytest.raises(TimeOrderError):
            session.release(4, -1, query="place")
        with pytest.raises(InvalidInputError, match="place, coarse"):
            session.release(4, 1)


@pytest.mark.parametrize("other", [{"policy": PolicyGraph.complete(6)}, {"matrix": np.eye(6)}, {"rng": 1}])
def test_queries_with_different_model_policy_or_randomness_raise(path, other):
    with pytest.raises(SessionMismatchError, match=r"must have the same (policy|model|randomness)"):
        Session.open(path, "a", {"one": make_engine(), "two": make_engine(**other)})


@pytest.mark.parametrize("others", [(), (Cap(Presence([2], 1, 4), 0.8),), (Cap(Presence([3], 1, 4), 0.9),)])
def test_queries_with_different_caps_raise(path, others):
    """A query without the cap could exceed the cap of the other query."""
    caps = (Cap(Presence([2], 1, 4), 0.9),)
    with pytest.raises(SessionMismatchError, match="same event caps"):
        Session.open(path, "a", {"one": make_engine(caps=caps), "two": make_engine(caps=others)})
    with Session.open(
        path, "a", {"one": make_engine(caps=caps), "two": make_engine(f=F * [1, 2], caps=caps)}
    ) as session:
        for slot in range(3):
            session.release(4, slot, query="one")
            session.release(4, slot, query="two")


# ---- files ------------------------------------------------------------------------------------------------------


def test_damaged_progress_raises_before_draw(path):
    maker = make_engine(kind=CountingReleaser)
    with Session.open(path, "a", maker) as session:
        for slot in range(3):
            session.release(4, slot)
        session._store.database.execute("UPDATE progress SET count = 1")
        with pytest.raises(DataFileError, match="damaged"):
            session.release(4, 3)
        assert maker.draws == 3


def test_forked_process_raises(path, monkeypatch):
    with Session.open(path, "a", make_engine()) as session:
        session.release(4, 0)
        with monkeypatch.context() as forked:
            forked.setattr("os.getpid", lambda: -1)
            with pytest.raises(SessionBusyError, match="forked"):
                session.release(4, 1)
        session.release(4, 1)
