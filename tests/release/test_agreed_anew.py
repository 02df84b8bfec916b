"""A session that is agreed on anew goes on: what was released stays, the belief is the reader's, and limits hold."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm import Limits, Session
from dphmm.errors import BudgetExceededError, DataFileError, SessionMismatchError
from dphmm.events import Cap, Presence
from dphmm.release.session_store import SessionStore
from tests.release.people import STICKY, engine, with_policy

OTHER = with_policy((0, 3), (1, 2), (4, 5))


@pytest.fixture(params=["file", "server"])
def store(request, tmp_path):
    return tmp_path / "s" if request.param == "file" else request.getfixturevalue("postgres")


def test_what_was_released_stays_and_the_rest_is_released_as_agreed_now(store):
    with Session.open(store, "ann", engine()) as session:
        first = [session.release(slot % 6, slot) for slot in range(4)]
    changed = engine(policy=OTHER, epsilon=0.25)
    with pytest.raises(SessionMismatchError, match="began with"):
        Session.open(store, "ann", changed)
    with Session.open(store, "ann", changed, anew="a note") as session:
        assert [session.release(5, slot) for slot in range(4)] == first
        later = session.release(2, 4)
    assert {one.settings for one in first} == {engine().settings.content_hash}
    assert (later.settings, later.epsilon) == (changed.settings.content_hash, 0.25)
    assert later.epsilon_so_far == 4 * 0.5 + 0.25
    with pytest.raises(SessionMismatchError, match="goes on with"):
        Session.open(store, "ann", engine())
    with Session.open(store, "ann", changed) as session:  # after a restart
        assert session.release(0, 4) == later
        old, new = session.agreed
    assert (old.first, old.note, new.first, new.note) == (0, "", 4, "a note")
    assert old.terms["main"].settings_hash == first[0].settings
    assert new.terms["main"].settings_hash == later.settings


def belief_of(session, engines):
    """The filter, written out: each release read by the engine that is named for it."""
    belief = np.full(6, 1 / 6)
    for number, (one, reader) in enumerate(zip(session.releases(), engines, strict=True)):
        belief = belief @ STICKY if number else belief
        step = reader.prepare_on(prior := reader.prior(), reader.plan(prior), one.record.epsilon)
        belief = belief * np.exp(reader.log_likelihood(step, one.record.released))
        belief /= belief.sum()
    return belief


def test_the_belief_is_that_of_a_reader_who_reads_each_release_as_it_was_made(store):
    # Seeded: in one session of thirty all releases say the same to readers of either policy.
    old, new = engine(5), engine(6, policy=OTHER, epsilon=0.25)
    with Session.open(store, "ann", old.another()) as session:
        for slot in range(3):
            session.release(slot, slot)
    with Session.open(store, "ann", new.another(), anew="") as session:
        for slot in range(3, 6):
            session.release(slot, slot)
        assert session.belief is not None
        found = session.belief.probabilities
        np.testing.assert_allclose(found, belief_of(session, [old] * 3 + [new] * 3), rtol=1e-9)
        for broken in ([old] * 6, [new] * 6):  # twins that must differ: one policy for all
            assert np.abs(found - belief_of(session, broken)).max() > 1e-3


def test_who_was_not_told_of_the_change_releases_nothing_under_the_old_terms(store):
    with Session.open(store, "ann", engine()) as mine:
        known = mine.release(1, 0)
        with Session.open(store, "ann", engine(policy=OTHER), anew="") as theirs:
            assert mine.release(1, 0) == known
            for ask in (lambda: mine.release(1, 1), lambda: mine.omit(1)):
                with pytest.raises(SessionMismatchError, match="agreed on anew"):
                    ask()
            assert len(theirs.releases()) == 1


def test_a_change_between_the_look_and_the_draw_stops_the_draw(store):
    with SessionStore(store) as held, Session.open(held, "ann", engine()) as session:
        progress = held.progress(session.number)
        Session.open(store, "ann", engine(policy=OTHER), anew="").close()
        assert held.append(session.number, progress, 0, lambda: pytest.fail("it drew")) is None
        assert not held.omit(session.number, progress, 0)


def test_limits_go_on(store):
    with Session.open(store, "ann", engine(), Limits(epsilon=1)) as session:
        session.release(0, 0)
    with Session.open(store, "ann", engine(policy=OTHER), anew="") as session:
        session.release(0, 1)
        with pytest.raises(BudgetExceededError):
            session.release(0, 2)


def test_agreeing_on_the_same_again_changes_nothing(store):
    Session.open(store, "ann", engine()).close()
    for _ in range(2):
        with Session.open(store, "ann", engine(policy=OTHER), anew="x") as session:
            assert len(session.agreed) == 2


def test_what_a_belief_or_a_cap_rests_on_may_not_change(store):
    with Session.open(store, "ann", engine()) as session:
        session.release(0, 0)
    with pytest.raises(SessionMismatchError, match="model"):
        Session.open(store, "ann", engine(matrix=np.full((6, 6), 1 / 6)), anew="")
    with pytest.raises(SessionMismatchError, match="randomness"):
        Session.open(store, "ann", engine(rng=1), anew="")
    with pytest.raises(SessionMismatchError, match="queries"):
        Session.open(store, "ann", {"other": engine()}, anew="")
    with Session.open(store, "ann", engine()) as session:
        assert len(session.agreed) == 1


@pytest.mark.parametrize("capped_first", [True, False])
def test_caps_are_for_sessions_that_never_change(tmp_path, capped_first):
    capped, bare = engine(caps=(Cap(Presence([2], 1, 4), 0.9),)), engine(policy=OTHER)
    first, second = (capped, bare) if capped_first else (bare, capped)
    Session.open(tmp_path / "s", "ann", first).close()
    with pytest.raises(SessionMismatchError, match="caps"):
        Session.open(tmp_path / "s", "ann", second, anew="")


def test_damage_to_what_was_agreed_on_is_noticed(tmp_path):
    path = tmp_path / "s"
    for note in ("", "x"):
        Session.open(path, "ann", engine(policy=OTHER), anew=note).close()
    with SessionStore(path) as store:
        store.database.execute("UPDATE amendment SET note = 'y'")
    with SessionStore(path) as store, pytest.raises(DataFileError, match="damaged"):
        store.session("ann")
