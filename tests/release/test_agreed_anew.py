"""Sessions with changed terms keep their releases, belief and limits."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm import Limits, Session
from dphmm.errors import BudgetExceededError, DataFileError, SessionMismatchError
from dphmm.events import Cap, Presence
from dphmm.release.session_store import SessionStore
from tests.release.engines import STICKY, make_engine, with_policy

OTHER = with_policy((0, 3), (1, 2), (4, 5))


@pytest.fixture(params=["file", "server"])
def store(request, tmp_path):
    return tmp_path / "s" if request.param == "file" else request.getfixturevalue("postgres")


@pytest.mark.slow
def test_changed_session_keeps_old_releases_and_uses_new_terms_for_later_slots(store):
    with Session.open(store, "ann", make_engine()) as session:
        first = [session.release(slot % 6, slot) for slot in range(4)]
    changed = make_engine(policy=OTHER, epsilon=0.25)
    with pytest.raises(SessionMismatchError, match="began with"):
        Session.open(store, "ann", changed)
    with Session.open(store, "ann", changed, amendment_note="a note") as session:
        assert [session.release(5, slot) for slot in range(4)] == first
        later = session.release(2, 4)
    assert {record.settings_hash for record in first} == {make_engine().settings.content_hash}
    assert (later.settings_hash, later.epsilon) == (changed.settings.content_hash, 0.25)
    assert later.epsilon_total == 4 * 0.5 + 0.25
    with pytest.raises(SessionMismatchError, match="continues with"):
        Session.open(store, "ann", make_engine())
    with Session.open(store, "ann", changed) as session:  # after a restart
        assert session.release(0, 4) == later
        old, new = session.agreements
    assert (old.first, old.note, new.first, new.note) == (0, "", 4, "a note")
    assert old.terms["main"].settings_hash == first[0].settings_hash
    assert new.terms["main"].settings_hash == later.settings_hash


def compute_belief(session, engines):
    """Compute the belief directly, with one engine for each release."""
    belief = np.full(6, 1 / 6)
    for number, (stored, adversary) in enumerate(zip(session.releases(), engines, strict=True)):
        belief = belief @ STICKY if number else belief
        step = adversary.build_plan(adversary.predict(), stored.record.epsilon)
        belief = belief * np.exp(adversary.log_likelihood(step, stored.record.released))
        belief /= belief.sum()
    return belief


def test_belief_conditions_each_release_on_its_own_terms(store):
    # Seeded: without a seed, about one session in thirty has equal likelihoods under both policies.
    old, new = make_engine(5), make_engine(6, policy=OTHER, epsilon=0.25)
    with Session.open(store, "ann", old.spawn()) as session:
        for slot in range(3):
            session.release(slot, slot)
    with Session.open(store, "ann", new.spawn(), amendment_note="") as session:
        for slot in range(3, 6):
            session.release(slot, slot)
        assert session.belief is not None
        probabilities = session.belief.probabilities
        np.testing.assert_allclose(probabilities, compute_belief(session, [old] * 3 + [new] * 3), rtol=1e-9)
        for broken in ([old] * 6, [new] * 6):  # broken variants that must differ: one policy for all releases
            assert np.abs(probabilities - compute_belief(session, broken)).max() > 1e-3


def test_session_with_outdated_terms_raises_for_new_slots(store):
    with Session.open(store, "ann", make_engine()) as old_session:
        first_record = old_session.release(1, 0)
        with Session.open(store, "ann", make_engine(policy=OTHER), amendment_note="") as new_session:
            assert old_session.release(1, 0) == first_record
            for ask in (lambda: old_session.release(1, 1), lambda: old_session.omit(1)):
                with pytest.raises(SessionMismatchError, match="amended in the meantime"):
                    ask()
            assert len(new_session.releases()) == 1


def test_terms_changed_before_append_prevent_draw(store):
    with SessionStore(store) as held, Session.open(held, "ann", make_engine()) as session:
        progress = held.progress(session.number)
        Session.open(store, "ann", make_engine(policy=OTHER), amendment_note="").close()
        assert held.append(session.number, progress, 0, lambda: pytest.fail("it drew")) is None
        assert not held.omit(session.number, progress, 0)


def test_limits_apply_across_changed_terms(store):
    with Session.open(store, "ann", make_engine(), Limits(epsilon=1)) as session:
        session.release(0, 0)
    with Session.open(store, "ann", make_engine(policy=OTHER), amendment_note="") as session:
        session.release(0, 1)
        with pytest.raises(BudgetExceededError):
            session.release(0, 2)


def test_reopening_with_equal_terms_adds_no_agreement(store):
    Session.open(store, "ann", make_engine()).close()
    for _ in range(2):
        with Session.open(store, "ann", make_engine(policy=OTHER), amendment_note="x") as session:
            assert len(session.agreements) == 2


def test_changed_model_randomness_or_queries_raises(store):
    with Session.open(store, "ann", make_engine()) as session:
        session.release(0, 0)
    with pytest.raises(SessionMismatchError, match="model"):
        Session.open(store, "ann", make_engine(matrix=np.full((6, 6), 1 / 6)), amendment_note="")
    with pytest.raises(SessionMismatchError, match="randomness"):
        Session.open(store, "ann", make_engine(rng=1), amendment_note="")
    with pytest.raises(SessionMismatchError, match="queries"):
        Session.open(store, "ann", {"other": make_engine()}, amendment_note="")
    with Session.open(store, "ann", make_engine()) as session:
        assert len(session.agreements) == 1


@pytest.mark.parametrize("capped_first", [True, False])
def test_changed_terms_with_caps_raise(tmp_path, capped_first):
    capped, bare = make_engine(caps=(Cap(Presence([2], 1, 4), 0.9),)), make_engine(policy=OTHER)
    first, second = (capped, bare) if capped_first else (bare, capped)
    Session.open(tmp_path / "s", "ann", first).close()
    with pytest.raises(SessionMismatchError, match="caps"):
        Session.open(tmp_path / "s", "ann", second, amendment_note="")


def test_damaged_terms_raise(tmp_path):
    path = tmp_path / "s"
    for note in ("", "x"):
        Session.open(path, "ann", make_engine(policy=OTHER), amendment_note=note).close()
    with SessionStore(path) as store:
        store.database.execute("UPDATE amendment SET note = 'y'")
    with SessionStore(path) as store, pytest.raises(DataFileError, match="damaged"):
        store.session("ann")


@pytest.mark.parametrize("deleted", [0, 1])
def test_deleted_amendment_raises(store, deleted):
    # The last one would be reported with the earlier policy, and another amendment would be tried forever.
    Session.open(store, "ann", make_engine()).close()
    for note in ("", "x"):
        Session.open(store, "ann", make_engine(policy=OTHER), amendment_note=note).close()
    with SessionStore(store) as opened:
        opened.database.execute("DELETE FROM amendment WHERE number = ?", (deleted,))
        with pytest.raises(DataFileError, match="damaged"):
            opened.session("ann")
    with pytest.raises(DataFileError, match="damaged"):
        Session.open(store, "ann", make_engine(), amendment_note="y")
