"""Events and caps under time-dependent models and outside states, against all paths."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm import PolicyGraph, Releaser
from dphmm.audit.realized_leakage import audit_events
from dphmm.audit.sequence import ReleasedSequence
from dphmm.events import Cap, EventOdds, Pattern, Presence, compute_smoothed_event_probabilities
from dphmm.events.chain_start import make_chain
from tests.release.test_extended_models import FIRST, F, _build_model, extend_starts, list_paths

EVENTS = [Presence([2], 1, 3), Pattern([[0, 1], [2]], 2), Presence([1], 0, 4)]


def _happens(event, model, path):
    """Return whether an event happens on a path of contexts.

    Users outside are in none of its states.
    """
    present = model.outside.inside_state[list(path)]
    if isinstance(event, Pattern):
        return present[2] in (0, 1) and present[3] == 2
    return any(present[t] in event.states for t in range(event.first, event.last + 1))


@pytest.mark.parametrize("varies", [False, True])
@pytest.mark.parametrize("event", EVENTS, ids=str)
def test_odds_splits_and_smoothed_probabilities_match_enumeration(varies, event):
    model, tables = _build_model(np.random.default_rng(3), varies, zeros=True)
    law = list_paths(model, tables, FIRST + np.arange(5))
    logs = np.log(np.random.default_rng(4).random((4, 3)))
    times = [0, 1, 3, 4]
    moves, start = make_chain(model, FIRST)
    odds = EventOdds(moves, start, event)
    yes = np.array([_happens(event, model, path) for path in law])
    masses, paths = np.array(list(law.values())), model.state_of_context[np.array(list(law))]
    assert odds.prior == pytest.approx(np.log(masses[yes].sum() / masses[~yes].sum()), abs=1e-12)
    for row, time, steps in zip(logs, times, np.diff(times, prepend=0), strict=True):
        split = odds.split(int(steps))
        for part, of in ((split.log_with, yes), (split.log_without, ~yes)):
            whole = np.bincount(paths[of][:, time], masses[of], minlength=3)
            scale = np.exp(np.logaddexp.reduce(np.concatenate([split.log_with, split.log_without])))
            assert np.exp(part) / scale == pytest.approx(whole / masses.sum(), abs=1e-12)
        masses = masses * np.exp(row[paths[:, time]])
        log_odds = odds.update(row, int(steps))
        assert log_odds + odds.prior == pytest.approx(np.log(masses[yes].sum() / masses[~yes].sum()), abs=1e-11)
    probabilities = compute_smoothed_event_probabilities(moves, start, logs, event, times)
    assert probabilities[-1] == pytest.approx(masses[yes].sum() / masses.sum(), abs=1e-12)


def test_odds_with_initial_prior_match_enumeration():
    model, tables = _build_model(np.random.default_rng(5), True)
    moves, start = make_chain(model, FIRST)
    prior = np.array([0.7, 0.2, 0.1])
    other = EventOdds(moves, start, EVENTS[0]).with_initial(prior)
    law = list_paths(model, (extend_starts(np.tile(prior, (len(tables[0]), 1))), tables[1]), FIRST + np.arange(5))
    yes = sum(mass for path, mass in law.items() if _happens(EVENTS[0], model, path))
    assert other.prior == pytest.approx(np.log(yes / (1 - yes)), abs=1e-12)


@pytest.mark.slow
def test_cap_holds_in_audit_of_releases():
    model, _ = _build_model(np.random.default_rng(6), True)
    cap = Cap(EVENTS[0], 0.8)
    releaser = Releaser(model, F, PolicyGraph.complete(3), 4.0, rng=2, caps=[cap])
    releaser.restart(first=FIRST)
    records = [releaser.release(state) for state in (0, 0, 1, 2, 2, 2)]
    kept = [k for k, record in enumerate(records) if not record.withheld]
    released, epsilons = (np.array([getattr(records[k], name) for k in kept]) for name in ("released", "epsilon"))
    steps = np.diff(kept, prepend=-1)
    assert kept[0] == 0
    assert len(kept) < len(records) or epsilons.min() < 4.0, "the cap has an effect"
    plain = Releaser(model, F, PolicyGraph.complete(3), 4.0)
    sequence = ReleasedSequence("me", released, epsilons, steps, first_slot=FIRST)
    (event_audit,) = audit_events(plain, sequence, [("the event", EVENTS[0])])
    assert event_audit.probability.max() <= 0.8
    assert max(record.max_event_probabilities[0] for record in records) <= 0.8
