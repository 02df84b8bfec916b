"""Tests of audit plots: exposed states, added edges, bodies, bounds and curves."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm import Grid, LaplaceMechanism, MarkovModel, PolicyGraph, Releaser
from dphmm.audit.blowfish import BlowfishPolicy, audit_blowfish
from dphmm.audit.empirical_epsilon import audit_pairs
from dphmm.audit.policy import audit_constraint
from dphmm.audit.sequence import ReleasedSequence, audit_sequence
from dphmm.plots import audit as pictures
from dphmm.plots.canvas import create_figure
from tests.running_example import F, build_graph, mask_states

pytest.importorskip("matplotlib")

GRID = Grid.over((44.99, -30.01, 45.01, -29.99), 0.5)
POINTS = F.astype(float)
NAMES = [f"s{i}" for i in range(1, 7)]


def get_labels(ax) -> list[str]:
    return ax.get_legend_handles_labels()[1]


def test_exposed_states_repair_and_body_are_plotted():
    audit = audit_constraint(build_graph(), F, mask_states(3, 4, 5, 6))
    _, ax = create_figure()
    pictures.draw_exposure(ax, POINTS, build_graph(), audit, audit.bodies[0], NAMES)
    points_of_label = {line.get_label(): line.get_xydata() for line in ax.lines}
    assert points_of_label["exposed states"].tolist() == [[3.0, 0.0]]
    assert sorted(points_of_label["possible states"].tolist()) == sorted(POINTS[[2, 3, 4, 5]].tolist())
    added = next(lines for lines in ax.collections if lines.get_label() == "added by the exact repair")
    assert [segment.tolist() for segment in added.get_segments()] == [[[3.0, 0.0], [4.0, 2.0]]]
    (body,) = (patch for patch in ax.patches if patch.get_label() == "noise body around an exposed state")
    assert body.get_zorder() > max(edges.get_zorder() for edges in ax.collections)
    assert {text.get_text() for text in ax.texts} == {"s3", "s4", "s5", "s6"}
    _, plain = create_figure()
    pictures.draw_exposure(plain, POINTS, build_graph(), audit, audit.bodies[1], NAMES)
    assert "exposed states" not in get_labels(plain)


def test_edges_are_narrower_if_there_are_many():
    points = np.random.default_rng(0).normal(size=(60, 2))
    widths = []
    for size in (10, 60):
        complete = PolicyGraph.complete(size)
        audit = audit_constraint(complete, points[:size])
        _, ax = create_figure()
        names = [str(state) for state in range(size)]
        pictures.draw_exposure(ax, points[:size], complete, audit, audit.bodies[0], names)
        widths.append(next(lines for lines in ax.collections if lines.get_label() == "policy edges").get_linewidth()[0])
    assert widths[1] < widths[0] == 1.0


def test_bodies_and_levels_have_audited_sizes():
    audit = audit_constraint(build_graph(), F)
    _, ax = create_figure()
    pictures.draw_hulls(ax, audit)
    assert set(get_labels(ax)) == {"k-norm, area 11", "laplace, area 50"}
    _, ax = create_figure()
    pictures.draw_hulls(ax, audit, "km")
    assert set(get_labels(ax)) == {"k-norm, area 11 km²", "laplace, area 50 km²"}
    secrets = audit_blowfish(BlowfishPolicy(("a", "b", "c"), [[1, 0], [0, 1], [2, 0]], (("a", "null"),)))
    _, ax = create_figure()
    pictures.draw_levels(ax, secrets)
    heights = [bar.get_height() for bar in ax.patches]
    assert heights[0] == 1.0
    assert heights[3:] == [1.0, 1.0, 2.0]
    assert [text.get_text() for text in ax.texts] == ["∞"]
    _, ax = create_figure()
    pictures.draw_secrets(ax, secrets)
    assert sorted(text.get_text() for text in ax.texts) == ["a", "b", "c"]


def test_bounds_are_plotted_against_claim():
    pairs = list(audit_pairs(LaplaceMechanism(5.0, 1.0, 2), F, build_graph().edge_array(), 1.0, 5_000, rng=0))
    _, ax = create_figure()
    pictures.draw_bounds(ax, pairs, NAMES)
    assert [bar.get_width() for bar in ax.patches] == sorted((pair.lower for pair in pairs), reverse=True)
    (claims,) = ax.collections
    assert {tuple(line[:, 0]) for line in claims.get_segments()} == {(1.0, 1.0)}


def test_withheld_timesteps_are_not_plotted_as_releases():
    moves = np.full((GRID.size, GRID.size), 1 / GRID.size)
    releaser = Releaser(
        MarkovModel(moves, moves[0], GRID, 60.0), GRID.measurements(), PolicyGraph.complete(GRID.size), 1.0
    )
    released = np.array([[0.5, 0.5], [0.0, 0.0], [-0.5, 0.5]])
    sequence = ReleasedSequence("ann", released, np.array([1.0, 0.0, 1.0]), np.array([0, 1, 1]))
    audit = audit_sequence(releaser, sequence)
    stated = audit.to_dict([str(state) for state in range(GRID.size)])
    assert (stated["num_timesteps"], stated["num_releases"]) == (3, 2)
    _, ax = create_figure()
    pictures.draw_belief_map(ax, GRID.points, audit, released)
    (dots,) = [line for line in ax.lines if line.get_label() == "released"]
    np.testing.assert_array_equal(dots.get_xydata(), released[[0, 2]])
    _, ax = create_figure()
    pictures.draw_expected_error(ax, audit)
    assert ax.get_xlabel() == "timestep"
    (line,) = [line for line in ax.lines if line.get_label() == "all releases"]
    np.testing.assert_array_equal(line.get_ydata(), audit.smoothed_metrics.error)
