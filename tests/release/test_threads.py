"""Tests of engines and sessions in threads: each release is sampled and counted once."""

from __future__ import annotations

import sqlite3
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from fractions import Fraction
from threading import Barrier, BrokenBarrierError

import numpy as np
import pytest

from dphmm import MarkovModel, PolicyGraph, Releaser
from dphmm.caching import BoundedCache
from dphmm.errors import DphmmError, InvalidInputError, SessionBusyError, TimeOrderError
from dphmm.release import Limits, RecordedReleaseStream, ReleaseSettings, ReleaseStream, Session, SessionStore
from dphmm.release.trajectory_release import release_records
from dphmm.space.states import Places
from dphmm.space.trajectory import SlottedTrajectory

F = [[1, 0], [2, 1], [3, 0], [0, 1], [4, 2], [1, 2]]
MODEL = MarkovModel(np.full((6, 6), 1 / 6), np.full(6, 1 / 6))
POLICY = PolicyGraph.categorical([0, 1, 1, 2, 2, 2])
THREADS = 8
RELEASES = 15


@pytest.fixture(autouse=True)
def busy_switching():
    """Let threads interrupt each other a hundred thousand times a second."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


class NoLock:
    """A lock that all threads acquire at once."""

    def acquire(self):
        """Do nothing."""

    release = acquire


def make_engine(rng=0, **settings) -> Releaser:
    return Releaser(MODEL, F, POLICY, 0.1, rng=rng, **settings)


def run_threads(work, count=THREADS) -> list:
    """Run ``work(index)`` in threads at once. Return the results, or raise the first error."""
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, range(count)))


def release_in_threads(engine: Releaser) -> None:
    """Release from all threads, and require that each release is counted once."""

    def release(thread):
        return [engine.release(int(state)) for state in np.random.default_rng(thread).integers(0, 6, RELEASES)]

    records = sorted((record for part in run_threads(release) for record in part), key=lambda record: record.index)
    assert [record.index for record in records] == list(range(THREADS * RELEASES))
    totals = [record.epsilon_total for record in records]
    assert totals == [float(Fraction(k + 1, 10)) for k in range(len(records))]
    assert engine.filter_state.account.epsilon == Fraction(len(records), 10)


@pytest.mark.parametrize("mechanism", ["lattice", "k-norm"])
def test_releases_of_threads_have_distinct_indices_and_are_accounted_for(mechanism):
    release_in_threads(make_engine(mechanism=mechanism))


def test_engine_without_lock_fails_the_same_test():
    """The broken twin."""
    engine = make_engine()
    engine.filter_state.lock = NoLock()
    with pytest.raises((AssertionError, DphmmError)):  # noqa: PT012 - any round may fail
        for _ in range(20):
            engine.restart()
            release_in_threads(engine)


@pytest.mark.slow
def test_queries_of_one_user_share_a_lock():
    first = make_engine()
    second = first.for_query([[1], [0], [0], [2], [2], [2]])

    def release(thread):
        engines = (first, second) if thread % 2 else (second, first)
        return [engines[0].release_together(3, engines[1]) for _ in range(RELEASES // 3)]

    records = [record for part in run_threads(release) for ledger in part for record in ledger.records]
    assert sorted(record.index for record in records) == list(range(len(records)))
    assert first.filter_state.account.epsilon == Fraction(len(records), 10)


def test_each_plan_is_drawn_once():
    """All threads draw one plan: the first succeeds, and the others raise an error."""
    engine = make_engine()
    plan = engine.prepare()

    def draw(_):
        try:
            return engine.draw(plan, 4).index
        except InvalidInputError as problem:
            return str(problem)[:18]

    assert sorted(run_threads(draw), key=str) == [0] + ["this step is stale"] * (THREADS - 1)
    assert engine.filter_state.count == 1


def test_plan_of_another_engine_is_stale():
    """A plan is for one belief, even if two engines have the same number of releases."""
    engines = make_engine(), make_engine()
    with pytest.raises(InvalidInputError, match="stale"):
        engines[0].draw(engines[1].prepare(), 4)
    assert [engine.filter_state.count for engine in engines] == [0, 0]


def test_calls_in_exclusive_block_are_not_interrupted():
    engine = make_engine()

    def release(_):
        for _ in range(RELEASES):
            with engine.lock_engines():
                engine.draw(engine.prepare(), 4)

    run_threads(release)
    assert engine.filter_state.count == THREADS * RELEASES


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["lattice", "k-norm", "optimal"])
def test_engines_of_different_users_do_not_affect_each_other(mechanism):
    """Engines of one family share caches. Their records are those of one thread."""
    first = make_engine(mechanism=mechanism)

    def release(seed):
        engine = first.spawn(seed)
        return [engine.release(seed % 6) for _ in range(RELEASES)]

    expected = [release(seed) for seed in range(THREADS)]
    assert run_threads(release) == expected


def test_cache_of_one_entry_survives_threads():
    cache: BoundedCache[int, int] = BoundedCache(1)

    def put(thread):
        for key in range(2000):
            assert cache.get_or_make(key + thread, lambda: 7) == 7
            cache.clear()

    run_threads(put)


SPACE = Places(list("abcdef"), [45.0, 45.01, 45.02, 45.03, 45.04, 45.05], [-30.0] * 6)


def make_engine_in_space() -> Releaser:
    model = MarkovModel(np.full((6, 6), 1 / 6), np.full(6, 1 / 6), states=SPACE, step_seconds=60)
    return ReleaseSettings(policy="complete", epsilon=0.1).engine(model)


def take_in_threads(stream: ReleaseStream) -> None:
    """Answer the slots of two users from all threads, which disagree about the places."""
    latitude, longitude = SPACE.latlon(range(6)).T
    barrier = Barrier(THREADS)

    def take(thread):
        answers = {}
        for slot in range(RELEASES):
            barrier.wait()  # an earlier slot without its answer would be out of order
            place = (thread + slot) % 6
            user = "ann" if thread % 2 else "bob"
            time = np.datetime64(60 * slot, "s")
            try:
                answers[user, slot] = stream.take(user, time, float(latitude[place]), float(longitude[place]))
            except DphmmError:
                barrier.abort()
                raise
        return answers

    answers = run_threads(take)
    for user, expected in (("bob", answers[0]), ("ann", answers[1])):
        assert all(answer == expected for answer in answers if (user, 0) in answer)
        records = [release.record for release in expected.values()]
        assert [record.index for record in records] == list(range(RELEASES))
        assert records[-1].epsilon_total == float(Fraction(RELEASES, 10))


@pytest.mark.slow
def test_threads_share_stream(tmp_path):
    take_in_threads(ReleaseStream(make_engine_in_space()))
    with RecordedReleaseStream(tmp_path / "a.db", make_engine_in_space()) as stream:
        take_in_threads(stream)


@pytest.mark.slow
def test_stream_without_locks_fails_the_same_test():
    """The broken twin."""
    with pytest.raises((AssertionError, DphmmError, BrokenBarrierError)):  # noqa: PT012 - any round may fail
        for _ in range(20):
            stream = ReleaseStream(make_engine_in_space())
            for user in ("ann", "bob"):
                stream._get_session(user)._releaser.filter_state.lock = NoLock()
            take_in_threads(stream)


def test_two_trajectories_on_one_engine_raise():
    engine = make_engine_in_space()
    latitude, longitude = SPACE.latlon(range(4)).T
    track = SlottedTrajectory("a", 60, np.arange(4), latitude, longitude)
    first = release_records(engine, SPACE, track)
    next(first)
    assert len(list(release_records(engine, SPACE, track))) == 4
    with pytest.raises(InvalidInputError, match=r"used by another caller.*spawn"):
        next(first)
    assert engine.filter_state.count == 4


# ---- sessions --------------------------------------------------------------------------------------------------------


def release_in_session(session: Session) -> None:
    """Release the same slots from all threads, and require one record for each slot."""

    def release(thread):
        records = {}
        for slot in range(RELEASES):
            try:
                records[slot] = session.release(int(thread) % 6, slot)
            except TimeOrderError:
                raise AssertionError(f"slot {slot} has no record") from None
        return records

    answers = run_threads(release)
    assert all(answer == answers[0] for answer in answers)
    assert [answers[0][slot].index for slot in range(RELEASES)] == list(range(RELEASES))
    assert session.account.epsilon == Fraction(RELEASES, 10)
    assert [stored.record for stored in session.releases()] == list(answers[0].values())


def test_threads_share_session(tmp_path):
    with Session.open(tmp_path / "a.db", "ann", make_engine(None)) as session:
        release_in_session(session)


def test_session_without_locks_fails_the_same_test(tmp_path):
    """The broken twin."""
    with pytest.raises((AssertionError, DphmmError, sqlite3.Error)):  # noqa: PT012 - any round may fail
        for number in range(20):
            with Session.open(tmp_path / f"{number}.db", "ann", make_engine(None)) as session:
                session._queries["main"].filter_state.lock = NoLock()
                session._store.database._lock = nullcontext()
                release_in_session(session)


def test_limit_is_not_exceeded_by_threads(tmp_path):
    with Session.open(tmp_path / "a.db", "ann", make_engine(None), Limits(epsilon=1)) as session:

        def release(thread):
            sent = 0
            for slot in range(RELEASES):
                try:
                    session.release(thread % 6, slot)
                    sent += 1
                except DphmmError:
                    pass
            return sent

        run_threads(release)
        assert session.account.epsilon == 1
        assert len(session.releases()) == 10


@pytest.mark.parametrize("shares_engine", [True, False])
def test_threads_share_store(tmp_path, shares_engine):
    """Each thread serves its user through sessions of one store, or also of one engine."""
    engine = make_engine(None)
    with SessionStore(tmp_path / "a.db") as store:

        def release(thread):
            user_engine = engine if shares_engine else engine.spawn()
            with Session.open(store, f"user {thread}", user_engine) as session:
                records = [session.release(thread % 6, slot) for slot in range(RELEASES // 3)]
                assert session.account.epsilon == Fraction(len(records), 10)
                return [record.index for record in records] + [len(session.releases())]

        assert run_threads(release) == [[*range(RELEASES // 3), RELEASES // 3]] * THREADS


def test_closed_store_raises_in_one_line(tmp_path):
    session = Session.open(tmp_path / "a.db", "ann", make_engine(None))
    session.close()
    with pytest.raises(InvalidInputError, match="was closed: open it again"):
        session.release(4, 0)


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_forked_session_raises_although_another_thread_had_its_lock(tmp_path):
    import multiprocessing
    import threading

    session = Session.open(tmp_path / "a.db", "ann", make_engine(None))
    holds, done = threading.Event(), threading.Event()

    def hold():
        with session._lock_session(), session._store.database.run_transaction():
            holds.set()
            done.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    holds.wait()

    def release_in_child(problems):
        try:
            session.release(4, 0)
        except SessionBusyError as problem:
            problems.put(str(problem))

    context = multiprocessing.get_context("fork")
    problems = context.SimpleQueue()
    process = context.Process(target=release_in_child, args=(problems,))
    process.start()
    process.join(60)
    alive = process.is_alive()
    process.kill()
    done.set()
    holder.join()
    session.close()
    assert not alive
    assert "open it again here" in problems.get()
