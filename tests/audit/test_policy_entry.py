"""Tests of zone entries by hand and brute force, and of audits with open states."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm import MarkovModel, PolicyGraph, protect
from dphmm.audit import audit_constraint, audit_entries, audit_support
from dphmm.errors import BudgetError
from dphmm.plots.audit import draw_components, draw_entries
from dphmm.plots.canvas import create_figure, render_png
from tests.sizes import choose_count

SIDE = 8
Y, X = np.divmod(np.arange(SIDE * SIDE), SIDE)
F = np.stack([X, Y], axis=1)
HOME = (X < 3) & (Y < 3)


def walk() -> MarkovModel:
    near = np.maximum(np.abs(X[:, None] - X), np.abs(Y[:, None] - Y)) <= 1
    return MarkovModel(near / near.sum(axis=1, keepdims=True), np.full(SIDE * SIDE, 1 / SIDE**2))


def build_zone_policy(hidden) -> PolicyGraph:
    return PolicyGraph.categorical(np.where(hidden, 0, -1)).with_open(~hidden)


def test_entries_are_open_states_with_transitions_into_zone():
    audit = audit_entries(build_zone_policy(HOME), F, walk())
    ring = {int(s) for s in np.flatnonzero(~HOME & (X <= 3) & (Y <= 3))}
    assert {entry.state for entry in audit.entries} == ring
    assert audit.num_entries == len(ring) == 7
    counts = {entry.state: entry.num_states for entry in audit.entries}
    assert counts[3 * SIDE + 3] == 1  # from the corner only one cell can follow
    assert counts[1 * SIDE + 3] == 3
    for entry in audit.entries:
        assert entry.prior_probability == pytest.approx(1 / entry.num_states)
        assert 0 < entry.posterior_quantile_90 <= 1
    assert [entry.posterior_quantile_90 for entry in audit.entries] == sorted(
        (entry.posterior_quantile_90 for entry in audit.entries), reverse=True
    )
    assert audit.max_posterior_quantile_90 == audit.entries[0].posterior_quantile_90
    assert "in 7 ways" in audit.describe()
    facts = audit.to_dict([str(s) for s in range(SIDE * SIDE)])
    assert len(facts["entries"]) == 7


@pytest.mark.slow
def test_entry_audit_is_deterministic_and_depends_on_epsilon():
    first, again, small = (audit_entries(build_zone_policy(HOME), F, walk(), epsilon) for epsilon in (1.0, 1.0, 0.1))
    assert first.to_dict([str(s) for s in range(64)]) == again.to_dict([str(s) for s in range(64)])
    median = [
        np.median([entry.posterior_quantile_90 for entry in audit.entries if entry.num_states > 1])
        for audit in (first, small)
    ]
    assert median[1] < median[0]
    with pytest.raises(BudgetError):
        audit_entries(build_zone_policy(HOME), F, walk(), 0.0)


def test_unreachable_zone_has_no_entries():
    still = MarkovModel(np.eye(SIDE * SIDE), np.full(SIDE * SIDE, 1 / SIDE**2))
    audit = audit_entries(build_zone_policy(HOME), F, still)
    assert (audit.entries, audit.max_posterior_quantile_90) == ((), 0.0)
    assert "No unprotected state leads into a zone" in audit.describe()


def test_open_states_are_neither_exposed_nor_disconnected():
    policy = build_zone_policy(HOME)
    for noise_scope in ("graph", "component"):
        audit = audit_constraint(policy, F, None, ["k-norm", "laplace"], noise_scope=noise_scope)
        assert not audit.is_exposed
        assert (len(audit.unprotected), audit.isolated, audit.num_components) == (64 - 9, (), 64 - 9 + 1)
        facts = audit.to_dict([str(s) for s in range(64)], 1.0)
        assert facts["mechanisms"][0]["min_degree_of_protection"] == 9
        assert facts["noise_scope"] == noise_scope


def test_isolated_state_in_component_is_exposed_and_repaired():
    policy = PolicyGraph.from_edges(5, [[0, 1]]).with_open([3, 4])
    f = np.array([[0, 0], [2, 0], [1, 0], [9, 0], [5, 5]])
    shared, apart = (audit_constraint(policy, f, None, ["k-norm"], noise_scope=c) for c in ("graph", "component"))
    assert shared.bodies[0].exposed == ()
    assert apart.bodies[0].exposed == (2,)
    assert apart.bodies[0].witnesses[0].is_certain
    assert [len(repair.protection.added) for repair in apart.repairs] == [1, 1, 1]


def test_adversary_exposes_state_without_other_state_of_its_component():
    policy = build_zone_policy(HOME)
    repaired = protect(policy, F, noise_scope="component")
    believed = np.zeros(64, dtype=bool)
    believed[[0, 63]] = True
    audit = audit_support(repaired, F, believed)
    assert (audit.exposed, audit.factor) == ((0,), np.inf)
    believed[1] = True
    assert audit_support(repaired, F, believed).exposed == ()


def test_components_of_equal_size_have_separate_entries_in_legend():
    policy = PolicyGraph.categorical(np.arange(len(F)) % 2)
    _, ax = create_figure(4, 4)
    draw_components(ax, F.astype(float), audit_constraint(policy, F, None, ["k-norm"], noise_scope="component"))
    labels = ax.get_legend_handles_labels()[1]
    assert len(set(labels)) == len(labels) == 2


@pytest.mark.slow
def test_components_and_entries_are_plotted():
    entries = audit_entries(build_zone_policy(HOME), F, walk())
    audit = audit_constraint(build_zone_policy(HOME), F, None, ["k-norm"], noise_scope="component")
    for draw, what in ((draw_components, audit), (draw_entries, entries)):
        figure, ax = create_figure(4, 4)
        draw(ax, F.astype(float), what)
        assert len(render_png(figure)) > 2000


@pytest.mark.slow
def test_entry_audit_examines_a_sample_of_many_entries(monkeypatch):
    """Forty zones of two states and forty open states have 1,600 entries.

    The short run uses half of both.
    """
    many, maximum = choose_count(40, 20), choose_count(100, 40)
    monkeypatch.setattr("dphmm.audit.policy.MAX_ENTRIES", maximum)
    labels = np.append(np.repeat(np.arange(many), 2), np.full(many, -1))
    policy = PolicyGraph.categorical(labels).with_open(np.arange(2 * many, 3 * many))
    size = 3 * many
    audit = audit_entries(
        policy, np.arange(size)[:, np.newaxis], MarkovModel(np.full((size, size), 1 / size), np.full(size, 1 / size))
    )
    assert (audit.num_entries, len(audit.entries)) == (many**2, maximum)
    assert len({entry.state for entry in audit.entries}) == many
    assert len({entry.component for entry in audit.entries}) > 10
    assert f"{many**2:,} ways, of which {maximum} were audited" in audit.describe()
