"""Tests of the effect of a repair on the error, against integrals over triangles."""

from __future__ import annotations

import numpy as np
import pytest
import shapely

from dphmm.policy import PolicyGraph, parse_policy, protect
from dphmm.space import Grid, LocalProjection


def _compute_rms_error(points, edges):
    """Return the RMS error of K-norm noise at epsilon one, from integrals over triangles."""
    differences = np.array([points[i] - points[j] for i, j in edges])
    hull = shapely.convex_hull(shapely.MultiPoint(np.concatenate([differences, -differences])))
    integral = 0.0  # of the squared distance from the origin
    for triangle in shapely.delaunay_triangles(hull).geoms:
        a, b, c = np.array(triangle.exterior.coords)[:3]
        corners = np.array([a, b, c])
        integral += triangle.area * ((corners**2).sum() + (corners.sum(axis=0) ** 2).sum()) / 12
    return np.sqrt(12 * integral / hull.area)


def _build_grid_with_island(distance):
    points = np.array([[x, y] for x in range(4) for y in range(4)] + [[3 + distance, 1]], float)
    near = np.argwhere(np.linalg.norm(points[:, None] - points[None], axis=2) <= 1.5)
    return points, [(i, j) for i, j in near.tolist() if i < j]


@pytest.mark.parametrize("distance", [2.0, 4.0, 9.0])
def test_effect_of_one_island_matches_integrals_over_hulls(distance):
    points, edges = _build_grid_with_island(distance)
    effect = protect(PolicyGraph.from_edges(len(points), edges), points).effect
    island = len(points) - 1
    assert effect.edge[0] == island
    assert effect.edge_length == pytest.approx(np.linalg.norm(points[island] - points[effect.edge[1]]))
    assert effect.error_without == pytest.approx(_compute_rms_error(points, edges))
    assert effect.error == pytest.approx(_compute_rms_error(points, [*edges, effect.edge]))
    assert effect.is_large


def test_effect_names_the_edge_that_raises_the_error_most():
    points, edges = _build_grid_with_island(2.0)
    points = np.concatenate([points, [[-9.0, 1.0]]])
    effect = protect(PolicyGraph.from_edges(len(points), edges), points).effect
    assert len(effect.added) == 2
    assert effect.edge[0] == len(points) - 1


def test_repair_that_hardly_extends_the_hull_is_not_large():
    points = np.array([[0, 0], [4, 0], [0, 4], [4, 4], [4, 8.05]])
    graph = PolicyGraph.from_edges(5, [(0, 1), (0, 2), (1, 3), (2, 3), (0, 3), (1, 2)])
    effect = protect(graph, points).effect
    assert effect.edge == (4, 3)
    assert 1.0 < effect.ratio < 1.02
    assert not effect.is_large


def test_graph_without_exposed_states_has_no_effect():
    points, edges = _build_grid_with_island(1.0)
    assert protect(PolicyGraph.from_edges(len(points), edges), points).effect is None


@pytest.mark.parametrize("noise_scope", ["graph", "component"])
def test_graph_in_which_every_state_is_exposed_has_no_effect(noise_scope):
    """There is no error without the repair to compare with."""
    points, _ = _build_grid_with_island(2.0)
    repaired = protect(PolicyGraph.from_edges(4, []), points[:4], noise_scope=noise_scope)
    assert repaired.added
    assert repaired.effect is None


@pytest.mark.parametrize("weight", [0.01, 0.5])
def test_effect_by_component_is_weighted_by_prior(weight):
    """The island joins one of two components. Only the states of that one get larger noise."""
    square = np.array([[0, 0], [1, 0], [0, 1], [1, 1]], float)
    points = np.concatenate([square, square + np.array([100, 0]), [[104.0, 0.5]]])
    corners = [(0, 1), (0, 2), (1, 3), (2, 3), (0, 3), (1, 2)]
    edges = corners + [(i + 4, j + 4) for i, j in corners]
    prior = np.array([(1 - weight) / 4] * 4 + [weight / 5] * 5)
    graph = PolicyGraph.from_edges(9, edges)
    effect = protect(graph, points, noise_scope="component", prior=prior).effect
    assert effect.edge[0] == 8
    partner = effect.edge[1]
    unchanged = _compute_rms_error(points, corners)
    grown = _compute_rms_error(points, [(i + 4, j + 4) for i, j in corners] + [(8, partner)])
    masses = prior[:4].sum(), prior[4:8].sum()
    assert effect.error_without == pytest.approx(unchanged)
    assert effect.error == pytest.approx(np.sqrt(np.average([unchanged**2, grown**2], weights=masses)))


def test_edge_of_4_47_km_raises_error_from_3_66_to_6_71_km():
    """One cell eight columns and four rows away from land of 15 by 15 cells of 500 m."""
    mask = np.zeros((40, 40), dtype=bool)
    mask[10:25, 10:25] = mask[28, 32] = True
    grid = Grid(LocalProjection(45, -30), (0, 0), 0.5, 40, 40, mask)
    effect = protect(parse_policy("utility:1km", grid), grid.measurements()).effect
    assert effect.edge == (225, 224)
    assert (effect.error_without, effect.error) == (pytest.approx(3.66450, abs=1e-5), pytest.approx(6.70820, abs=1e-5))
    assert effect.edge_length == pytest.approx(np.sqrt(20))
