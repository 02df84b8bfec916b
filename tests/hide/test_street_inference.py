"""The adversary with a street map, compared with all ways on small graphs."""

from __future__ import annotations

from itertools import pairwise

import networkx as nx
import numpy as np
import pytest

from dphmm.hide.fixed_squares import Square
from dphmm.hide.street_inference import (
    STREET,
    ZoneStreets,
    compute_candidate_posteriors,
    find_candidates,
    infer_candidates,
)
from dphmm.hide.zone import Gate, HiddenZone, Stretch
from dphmm.hide.zone_inference import ADVERSARIES
from dphmm.tables.street_map import STREET_CLASSES, StreetMap

SQUARE = Square.around(45.01, -30.01, 0.3)
ZONE = HiddenZone(SQUARE, 0.2)
SCALE = 0.15
WANDERING = 0.05
NO_DIRECTION = np.full(2, np.nan)
MAIN = STREET_CLASSES.index("street")


def build_map(points, edges, classes=None, addresses=(), buildings=()):
    """Points, addresses and buildings are kilometres in the plane of the zone."""

    def convert_to_degrees(values):
        return ZONE.projection.to_latlon(np.array(values, float).reshape(-1, 2))

    edges = np.array(edges).reshape(-1, 2)
    lengths = np.hypot(*(np.array(points)[edges[:, 0]] - np.array(points)[edges[:, 1]]).T)
    classes = np.full(len(edges), MAIN) if classes is None else np.array(classes)
    return StreetMap(
        convert_to_degrees(points),
        edges,
        lengths,
        classes,
        convert_to_degrees(buildings),
        convert_to_degrees(addresses),
    )


def sample_town(rng):
    """Return corners of a bent grid of 4 × 4 across the border, and most of its streets."""
    steps = np.array([-0.62, -0.17, 0.16, 0.64])
    corners = np.stack(np.meshgrid(steps, steps), axis=-1).reshape(-1, 2) + rng.uniform(-0.03, 0.03, (16, 2))
    edges = [(at, at + 1) for at in range(16) if at % 4 < 3] + [(at, at + 4) for at in range(12)]
    return corners, [edge for edge in edges if rng.random() > 0.1]


def enumerate_gates(corners, edges, home, target, scale, wandering):
    """Return the probability of each gate from all simple ways that leave the zone once.

    The gates are points at which streets cross the border, in another order than those of the package. Homes and
    targets are corners.
    """
    graph, gates = nx.Graph(), []
    for start, end in edges:
        nodes = [start]
        sides = []
        for axis in (0, 1):
            for side in (-ZONE.half_km, ZONE.half_km):
                first, second = corners[start][axis], corners[end][axis]
                if (first - side) * (second - side) < 0:
                    share = (side - first) / (second - first)
                    point = corners[start] + share * (corners[end] - corners[start])
                    if abs(point[1 - axis]) <= ZONE.half_km:
                        sides.append((share, point))
        for _, point in sorted(sides, key=lambda pair: pair[0]):
            gates.append(point)
            nodes.append(("gate", len(gates) - 1))
        nodes.append(end)
        places = [gates[node[1]] if isinstance(node, tuple) else corners[node] for node in nodes]
        for (node, next_node), (place, next_place) in zip(pairwise(nodes), pairwise(places), strict=True):
            graph.add_edge(node, next_node, length=float(np.hypot(*(place - next_place))))
    shortest = np.full(len(gates), np.inf)
    for way in nx.all_simple_paths(graph, home, target):
        crossed = [node[1] for node in way if isinstance(node, tuple)]
        if len(crossed) == 1:
            length = sum(graph.edges[pair]["length"] for pair in pairwise(way))
            shortest[crossed[0]] = min(shortest[crossed[0]], length)
    if not np.isfinite(shortest).any():
        return np.array(gates), np.full(len(gates), 1 / len(gates))
    weights = np.exp(-(shortest - shortest.min()) / scale)
    return np.array(gates), (1 - wandering) * weights / weights.sum() + wandering / len(gates)


def compare_with_enumeration(streets_class):
    """Return the largest error of gate probabilities over six random towns (seed 0)."""
    rng, error = np.random.default_rng(0), 0.0
    for _ in range(6):
        corners, edges = sample_town(rng)
        homes = [at for at in range(16) if np.abs(corners[at]).max() < SQUARE.side_km / 2]
        outside = [at for at in range(16) if np.abs(corners[at]).max() > ZONE.half_km]
        street_map = build_map(corners, edges, addresses=corners[homes])
        streets = streets_class(ZONE, street_map, SCALE, WANDERING)
        target = outside[rng.integers(len(outside))]
        probabilities = streets.gate_probabilities(corners[target])
        for number, home in enumerate(homes):
            gates, expected = enumerate_gates(corners, edges, home, target, SCALE, WANDERING)
            own_gates = streets.points[streets.gates]
            order = [np.hypot(*(own_gates - gate).T).argmin() for gate in gates]
            assert sorted(order) == list(range(len(gates)))
            error = max(error, np.abs(probabilities[number][order] - expected).max())
    return error


class _IgnoresTheWayOutside(ZoneStreets):
    """A broken adversary: it knows the ways in the zone only."""

    def gate_probabilities(self, towards):
        weights = np.exp(-(self.gate_distances - self.gate_distances.min(axis=1, keepdims=True)) / self.scale_km)
        weights /= weights.sum(axis=1, keepdims=True)
        return (1 - self.wandering) * weights + self.wandering / len(self.gates)


def test_gate_probabilities_equal_enumeration_of_all_ways():
    assert compare_with_enumeration(ZoneStreets) < 1e-6


def test_comparison_with_enumeration_rejects_adversary_who_ignores_the_way_outside():
    assert compare_with_enumeration(_IgnoresTheWayOutside) > 0.05


def test_posterior_is_prior_times_likelihood_of_gates_weighted_for_dependence():
    corners, edges = sample_town(np.random.default_rng(1))
    homes = [at for at in range(16) if np.abs(corners[at]).max() < SQUARE.side_km / 2]
    street_map = build_map(corners, edges, addresses=corners[homes])
    streets = ZoneStreets(ZONE, street_map, SCALE, WANDERING, dependence=0.25)
    gates = streets.points[streets.gates]
    stretches = [Stretch(None, Gate(gates[at], NO_DIRECTION, corners[0])) for at in (0, 3)]
    stretches.append(Stretch(Gate(gates[1], NO_DIRECTION, corners[15]), Gate(gates[2], NO_DIRECTION, corners[3]), 10.0))
    flat = [dict.fromkeys(ADVERSARIES, np.zeros(100))] * 3
    likelihood = np.ones(len(homes))
    for at in (0, 3):  # the last stretch crosses the zone without a stop
        weights = np.exp(-0.5 * (np.hypot(*(gates - gates[at]).T) / 0.025) ** 2)
        likelihood *= streets.gate_probabilities(corners[0]) @ weights
    expected = likelihood ** (1 / 1.25)
    posterior = compute_candidate_posteriors(streets, flat, stretches)
    np.testing.assert_allclose(posterior[STREET], expected / expected.sum(), rtol=1e-9)
    np.testing.assert_allclose(posterior["markov"], np.full(len(homes), 1 / len(homes)))
    inference = infer_candidates(streets, flat, stretches)[-1]
    assert inference.adversary == STREET
    assert inference.max_candidate_posterior == pytest.approx(posterior[STREET].max())
    assert inference.posterior.sum() == pytest.approx(1)


def test_candidates_are_addresses_then_buildings_then_streets_then_cells():
    line = [(-1.0, 0.003), (1.0, 0.003)]
    half = SQUARE.side_km / 2
    homes = [(0.0, 0.01), (0.05, 0.02), (0.1, 0.0), (half + 0.01, 0)]
    kinds = {
        "addresses": build_map(line, [(0, 1)], addresses=homes, buildings=homes),
        "buildings": build_map(line, [(0, 1)], addresses=homes[:1], buildings=[*homes, (0.1, 0.1), (0.1, -0.1)]),
        "places on streets": build_map(line, [(0, 1)], addresses=[], buildings=homes[:1]),
        "cells": build_map(line, [(0, 1)], [STREET_CLASSES.index("motorway")]),
    }
    candidates = {kind: find_candidates(street_map, ZONE) for kind, street_map in kinds.items()}
    assert {kind: value.kind for kind, value in candidates.items()} == {kind: kind for kind in kinds}
    numbers = {kind: value.effective_number for kind, value in candidates.items()}
    assert numbers["addresses"] == pytest.approx(3)
    assert numbers["buildings"] == pytest.approx(5)
    assert numbers["places on streets"] == pytest.approx(2 * half / 0.02, rel=0.03)
    assert numbers["cells"] == pytest.approx(100)
    assert np.abs(candidates["places on streets"].points[:, 1] - 0.01).max() < 1e-9


def test_candidates_of_other_zones_are_omitted():
    neighbour = Square(SQUARE.level, SQUARE.row, SQUARE.column + 1)
    zone = HiddenZone(SQUARE, 0.2, others=[(neighbour, 0.1)])
    half = SQUARE.side_km / 2
    street_map = build_map([(-1, 0), (1, 0)], [(0, 1)], addresses=[(half - 0.05, 0), (half - 0.15, 0), (0, 0)])
    assert len(find_candidates(street_map, zone).prior) == 2


def test_zone_without_street_across_its_border_yields_prior():
    street_map = build_map([(-0.1, 0), (0.1, 0)], [(0, 1)], addresses=[(0, 0), (0.05, 0)])
    streets = ZoneStreets(ZONE, street_map)
    stretches = [Stretch(None, Gate(np.array([0.6, 0.0]), NO_DIRECTION))]
    assert streets.log_likelihood(stretches).tolist() == [0.0, 0.0]


def test_cyclists_do_not_use_motorways_and_drivers_do_not_use_paths():
    points, edges = [(-1, 0), (1, 0), (0, -1), (0, 1)], [(0, 1), (2, 3)]
    classes = [STREET_CLASSES.index("motorway"), STREET_CLASSES.index("path")]
    for kind, axis in (("cycling", 1), ("driving", 0)):
        zone = HiddenZone(SQUARE, 0.2, kind)
        streets = ZoneStreets(zone, build_map(points, edges, classes))
        assert np.abs(streets.points[streets.gates][:, 1 - axis]).max() < 1e-6


def test_street_with_distant_vertices_only_is_equal_to_the_same_street_with_near_ones():
    """The straight street passes the core. Its vertices are up to 16 km away."""
    ends = np.array([[-8.0, -0.4], [16.0, 0.8]])
    points = ends[0] + np.linspace(0, 1, 481)[:, None] * (ends[1] - ends[0])
    near = ZoneStreets(ZONE, build_map(points, list(pairwise(range(481)))))
    far = ZoneStreets(ZONE, build_map(ends, [(0, 1)]))
    assert near.candidates.kind == far.candidates.kind == "places on streets"
    assert far.candidates.effective_number == pytest.approx(near.candidates.effective_number, rel=0.02)
    np.testing.assert_allclose(
        np.sort(far.points[far.gates], axis=0), np.sort(near.points[near.gates], axis=0), atol=1e-3
    )
    stretches = [Stretch(None, Gate(far.points[far.gates[0]], NO_DIRECTION, 4 * far.points[far.gates[0]]))]
    assert near.covers(stretches)
    assert far.covers(stretches)
    beside = [Stretch(None, Gate(np.array([0.6, -0.6]), NO_DIRECTION, np.array([2.0, -2.0])))]
    assert not far.covers(beside)
