"""Entering zones: who enters is among few, by hand and by brute force; a buffer helps; audits know open places."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm import MarkovModel, PolicyGraph, protect
from dphmm.audit import audit_constraint, audit_entries, audit_support
from dphmm.errors import BudgetError
from dphmm.plots.audit import draw_components, draw_entries
from dphmm.plots.figures import new_figure, png
from tests.sizes import fewer

SIDE = 8
Y, X = np.divmod(np.arange(SIDE * SIDE), SIDE)
F = np.stack([X, Y], axis=1)
HOME = (X < 3) & (Y < 3)


def walk() -> MarkovModel:
    near = np.maximum(np.abs(X[:, None] - X), np.abs(Y[:, None] - Y)) <= 1
    return MarkovModel(near / near.sum(axis=1, keepdims=True), np.full(SIDE * SIDE, 1 / SIDE**2))


def zoned(hidden) -> PolicyGraph:
    return PolicyGraph.categorical(np.where(hidden, 0, -1)).with_open(~hidden)


def test_ways_in_are_the_open_places_from_which_the_model_leads_into_the_zone():
    found = audit_entries(zoned(HOME), F, walk())
    ring = {int(s) for s in np.flatnonzero(~HOME & (X <= 3) & (Y <= 3))}
    assert {entry.place for entry in found.entries} == ring
    assert found.ways == len(ring) == 7
    counts = {entry.place: entry.cells for entry in found.entries}
    assert counts[3 * SIDE + 3] == 1  # from the corner one cell alone can follow
    assert counts[1 * SIDE + 3] == 3
    for entry in found.entries:
        assert entry.before == pytest.approx(1 / entry.cells)
        assert 0 < entry.after <= 1
    assert [entry.after for entry in found.entries] == sorted((entry.after for entry in found.entries), reverse=True)
    assert found.worst == found.entries[0].after
    assert "in 7 ways" in found.in_words()
    facts = found.facts([str(s) for s in range(SIDE * SIDE)])
    assert len(facts["entries"]) == 7


def test_an_audit_says_the_same_each_time_and_depends_on_the_budget():
    one, again, small = (audit_entries(zoned(HOME), F, walk(), epsilon) for epsilon in (1.0, 1.0, 0.1))
    assert one.facts([str(s) for s in range(64)]) == again.facts([str(s) for s in range(64)])
    median = [np.median([entry.after for entry in found.entries if entry.cells > 1]) for found in (one, small)]
    assert median[1] < median[0]
    with pytest.raises(BudgetError):
        audit_entries(zoned(HOME), F, walk(), 0.0)


def test_nobody_enters_what_is_nowhere_near():
    still = MarkovModel(np.eye(SIDE * SIDE), np.full(SIDE * SIDE, 1 / SIDE**2))
    found = audit_entries(zoned(HOME), F, still)
    assert (found.entries, found.worst) == ((), 0.0)
    assert "No open place leads into a zone" in found.in_words()


def test_open_states_are_neither_exposed_nor_disconnected():
    policy = zoned(HOME)
    for calibration in ("graph", "component"):
        audit = audit_constraint(policy, F, None, ["k-norm", "laplace"], calibration=calibration)
        assert not audit.is_exposed
        assert (len(audit.open), audit.disconnected, audit.components) == (64 - 9, (), 64 - 9 + 1)
        facts = audit.facts([str(s) for s in range(64)], 1.0)
        assert facts["mechanisms"][0]["least_protection"] == 9
        assert facts["calibration"] == calibration


def test_who_is_alone_in_a_component_is_exposed_with_a_witness_and_repaired():
    policy = PolicyGraph.from_edges(5, [[0, 1]]).with_open([3, 4])
    f = np.array([[0, 0], [2, 0], [1, 0], [9, 0], [5, 5]])
    shared, apart = (audit_constraint(policy, f, None, ["k-norm"], calibration=c) for c in ("graph", "component"))
    assert shared.bodies[0].exposed == ()
    assert apart.bodies[0].exposed == (2,)
    assert apart.bodies[0].witnesses[0].gives_away
    assert [len(repair.protection.added) for repair in apart.repairs] == [1, 1, 1]


def test_another_adversary_finds_alone_whoever_has_no_other_of_the_component():
    policy = zoned(HOME)
    repaired = protect(policy, F, calibration="component")
    believed = np.zeros(64, dtype=bool)
    believed[[0, 63]] = True
    found = audit_support(repaired, F, believed)
    assert (found.exposed, found.factor) == ((0,), np.inf)
    believed[1] = True
    assert audit_support(repaired, F, believed).exposed == ()


def test_pictures_are_drawn_of_few_and_of_many_places():
    entries = audit_entries(zoned(HOME), F, walk())
    audit = audit_constraint(zoned(HOME), F, None, ["k-norm"], calibration="component")
    for draw, what in ((draw_components, audit), (draw_entries, entries)):
        figure, ax = new_figure(4, 4)
        draw(ax, F.astype(float), what)
        assert len(png(figure)) > 2000


def test_of_many_ways_into_many_zones_some_are_looked_at(monkeypatch):
    """Forty zones of two states, and forty open places that lead into each: 1,600 ways; every day half of both."""
    many, most = fewer(40, 20), fewer(100, 40)
    monkeypatch.setattr("dphmm.audit.policy_audit.ENTRIES", most)
    labels = np.append(np.repeat(np.arange(many), 2), np.full(many, -1))
    policy = PolicyGraph.categorical(labels).with_open(np.arange(2 * many, 3 * many))
    size = 3 * many
    found = audit_entries(
        policy, np.arange(size)[:, np.newaxis], MarkovModel(np.full((size, size), 1 / size), np.full(size, 1 / size))
    )
    assert (found.ways, len(found.entries)) == (many**2, most)
    assert len({entry.place for entry in found.entries}) == many
    assert len({entry.zone for entry in found.entries}) > 10
    assert f"{many**2:,} ways ({most} of them were looked at)" in found.in_words()
