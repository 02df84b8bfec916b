"""Radius policies over cells, against random places and all pairs."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm import PolicyGraph, parse_policy
from dphmm.space import Grid
from tests.sizes import mark_rest_slow

GRID = Grid.over((39.87, 116.29, 39.97, 116.46), cell_km=0.5)


def compute_cell_distance(first: np.ndarray, second: np.ndarray, cell: float) -> float:
    """Compute the distance between the nearest places of two square cells."""
    gaps = [max(abs(float(a - b)) - cell, 0.0) for a, b in zip(first, second, strict=True)]
    return float(np.sqrt(sum(gap * gap for gap in gaps)))


def list_adjacent_pairs(points: np.ndarray, radius: float, cell: float) -> set[tuple[int, int]]:
    pairs = zip(*np.triu_indices(len(points), 1), strict=True)
    return {
        (int(i), int(j))
        for i, j in pairs
        if compute_cell_distance(points[i], points[j], cell) <= radius + 1e-9 * (radius + cell)
    }


def compute_share_of_adjacent_pairs(policy: str) -> float:
    """Return the share of 20,000 pairs of places within 1 km with equal or adjacent states.

    Seed 5.
    """
    rng = np.random.default_rng(5)
    low, high = GRID.points.min(axis=0), GRID.points.max(axis=0)
    first = rng.uniform(low, high, (20_000, 2))
    angle, length = rng.uniform(0, 2 * np.pi, 20_000), np.sqrt(rng.uniform(0, 1, 20_000))
    second = first + (length * np.array([np.cos(angle), np.sin(angle)])).T
    kept = ((second > low) & (second < high)).all(axis=1)
    i, j = (GRID.locate(*GRID.projection.to_latlon(places[kept]).T) for places in (first, second))
    edges = {tuple(edge) for edge in parse_policy(policy, GRID).edge_array().tolist()}
    pairs = np.sort(np.stack([i, j], axis=1), axis=1).tolist()
    return float(np.mean([a == b or (a, b) in edges for a, b in pairs]))


def test_places_within_radius_are_in_equal_or_adjacent_cells():
    assert compute_share_of_adjacent_pairs("utility:1km") == 1.0
    assert compute_share_of_adjacent_pairs("centres:1km") < 0.9, "the papers' rule connects less than 90 % of the pairs"


@pytest.mark.parametrize("seed", mark_rest_slow(range(24), 8))
def test_edges_components_and_hulls_match_all_pairs(seed):
    rng = np.random.default_rng(seed)
    mask = rng.random((int(rng.integers(1, 9)), int(rng.integers(2, 9)))) < rng.choice([0.3, 0.7, 1.0])
    mask[0, :2] = True
    h = float(rng.choice([0.2, 0.5, 1.3]))
    space = Grid(GRID.projection, (0, 0), h, mask.shape[1], mask.shape[0], mask)
    f, radius = space.measurements(), float(rng.choice([0.0, 0.4, 1.0, 2.1])) * h
    graph, wanted = PolicyGraph.utility(f, radius, h), list_adjacent_pairs(space.points, radius, h)
    assert {tuple(edge) for edge in graph.edge_array().tolist()} == wanted
    linked = {state for pair in wanted for state in pair}
    assert set(np.flatnonzero(graph.find_connected_states()).tolist()) == linked
    listed = PolicyGraph.from_edges(space.size, sorted(wanted))
    np.testing.assert_array_equal(graph.components(), listed.components())
    assert graph.is_empty == (not wanted)
    if wanted:
        graph_hull, listed_hull = (policy.hull(f) for policy in (graph, listed))
        assert {tuple(v) for v in np.round(graph_hull.vertices, 9).tolist()} == {
            tuple(v) for v in np.round(listed_hull.vertices, 9).tolist()
        }


def test_scattered_cells_match_all_pairs():
    points = np.random.default_rng(2).uniform(0, 4, (60, 2))
    graph = PolicyGraph.utility(points, 0.5, 0.3)
    wanted = list_adjacent_pairs(points, 0.5, 0.3)
    assert {tuple(edge) for edge in graph.edge_array().tolist()} == wanted
    assert set(np.flatnonzero(graph.find_connected_states()).tolist()) == {state for pair in wanted for state in pair}
    assert graph.content_hash != PolicyGraph.utility(points, 0.5).content_hash


def test_hull_of_cells_accounts_for_cell_size():
    vertices = PolicyGraph.utility(GRID.measurements(), 1.0, 0.5).hull(GRID.measurements()).vertices
    assert 0.5 * np.linalg.norm(vertices, axis=1).max() == pytest.approx(np.hypot(1.5, 0.5))
