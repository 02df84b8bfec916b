"""Events and caps under models that vary with time or know of people outside, against all paths."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm import PolicyGraph, Releaser
from dphmm.audit.realised import audit_events
from dphmm.audit.sequence import ReleasedSequence
from dphmm.events import Cap, EventOdds, Pattern, Presence, happened_by
from dphmm.release.event_caps import chain_of
from tests.release.test_extended_models import FIRST, F, _model, begun, paths_of

EVENTS = [Presence([2], 1, 3), Pattern([[0, 1], [2]], 2), Presence([1], 0, 4)]


def _happens(event, model, path):
    """Whether an event happens on a path of contexts; people outside are in none of its states."""
    present = model.away.present[list(path)]
    if isinstance(event, Pattern):
        return present[2] in (0, 1) and present[3] == 2
    return any(present[t] in event.states for t in range(event.first, event.last + 1))


@pytest.mark.parametrize("varies", [False, True])
@pytest.mark.parametrize("event", EVENTS, ids=str)
def test_odds_splits_and_hindsight_equal_enumeration(varies, event):
    model, tables = _model(np.random.default_rng(3), varies, zeros=True)
    law = paths_of(model, tables, FIRST + np.arange(5))
    logs = np.log(np.random.default_rng(4).random((4, 3)))
    times = [0, 1, 3, 4]
    moves, start = chain_of(model, FIRST)
    odds = EventOdds(moves, start, event)
    yes = np.array([_happens(event, model, path) for path in law])
    masses, paths = np.array(list(law.values())), model.last[np.array(list(law))]
    assert odds.prior == pytest.approx(np.log(masses[yes].sum() / masses[~yes].sum()), abs=1e-12)
    for row, time, steps in zip(logs, times, np.diff(times, prepend=0), strict=True):
        split = odds.split(int(steps))
        for part, of in ((split.log_with, yes), (split.log_without, ~yes)):
            whole = np.bincount(paths[of][:, time], masses[of], minlength=3)
            scale = np.exp(np.logaddexp.reduce(np.concatenate([split.log_with, split.log_without])))
            assert np.exp(part) / scale == pytest.approx(whole / masses.sum(), abs=1e-12)
        masses = masses * np.exp(row[paths[:, time]])
        told = odds.update(row, int(steps))
        assert told + odds.prior == pytest.approx(np.log(masses[yes].sum() / masses[~yes].sum()), abs=1e-11)
    found = happened_by(moves, start, logs, event, times)
    assert found[-1] == pytest.approx(masses[yes].sum() / masses.sum(), abs=1e-12)


def test_another_prior_begins_without_knowing_where_from():
    model, tables = _model(np.random.default_rng(5), True)
    moves, start = chain_of(model, FIRST)
    prior = np.array([0.7, 0.2, 0.1])
    other = EventOdds(moves, start, EVENTS[0]).with_initial(prior)
    law = paths_of(model, (begun(np.tile(prior, (len(tables[0]), 1))), tables[1]), FIRST + np.arange(5))
    yes = sum(mass for path, mass in law.items() if _happens(EVENTS[0], model, path))
    assert other.prior == pytest.approx(np.log(yes / (1 - yes)), abs=1e-12)


def test_a_cap_is_kept_and_an_audit_finds_what_the_releases_told():
    model, _ = _model(np.random.default_rng(6), True)
    cap = Cap(EVENTS[0], 0.8)
    releaser = Releaser(model, F, PolicyGraph.complete(3), 4.0, rng=2, caps=[cap])
    releaser.restart(first=FIRST)
    made = [releaser.release(state) for state in (0, 0, 1, 2, 2, 2)]
    kept = [k for k, one in enumerate(made) if not one.withheld]
    released, epsilons = (np.array([getattr(made[k], name) for k in kept]) for name in ("released", "epsilon"))
    steps = np.diff(kept, prepend=-1)
    assert kept[0] == 0
    assert len(kept) < len(made) or epsilons.min() < 4.0, "the cap has an effect"
    plain = Releaser(model, F, PolicyGraph.complete(3), 4.0)
    sequence = ReleasedSequence("me", released, epsilons, steps, first=FIRST)
    (found,) = audit_events(plain, sequence, [("the event", EVENTS[0])])
    assert found.probability.max() <= 0.8
    assert max(one.reach[0] for one in made) <= 0.8
