"""Policies by distance along streets."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm.errors import PolicyError
from dphmm.policy.expression import canonicalize_policy, describe_policy, find_max_radius, parse_policy, restore_policy
from dphmm.space import Grid, Streets
from tests.space.test_streets import build_map

TOWN = Streets.from_map(build_map([(0, 0), (4, 0), (0, 0.25), (4, 0.25)], [[0, 1], [2, 3], [0, 2]]), 0.1)


def test_streets_term_connects_pairs_within_distance_along_streets():
    graph = parse_policy("streets:300m", TOWN)
    assert graph.edge_array().tolist() == TOWN.pairs_within(0.3).tolist()


def test_streets_term_connects_fewer_states_than_utility():
    by_street, straight = (parse_policy(text, TOWN) for text in ("streets:300m", "utility:300m"))
    edges = by_street.edge_array()
    assert straight.connects(*edges.T).all()
    assert len(edges) < len(straight.edge_array())


def test_utility_connects_all_segments_with_near_locations():
    lines = [np.array([line[0], *line[1:]]) for line in TOWN.lines()]
    graph = parse_policy("utility:150m", TOWN)
    for a in range(TOWN.size):
        for b in range(a + 1, TOWN.size):
            nearest = np.linalg.norm(lines[a][:, None] - lines[b][None], axis=2).min()
            assert nearest > 0.15 or graph.connects(a, b)


def test_streets_term_is_combined_and_has_canonical_text():
    assert canonicalize_policy("streets: 300m & complete") == "streets:0.3km&complete"
    assert restore_policy("streets:0.3km&complete") == "streets:0.3km&complete"
    assert describe_policy("streets:300m") == "locations within 0.3 km along streets"
    assert find_max_radius("streets:300m | utility:200m") == 0.3
    intersected = parse_policy("streets:300m & utility:100m", TOWN).edge_array()
    expected = set(map(tuple, TOWN.pairs_within(0.3).tolist()))
    assert set(map(tuple, intersected.tolist())) <= expected


@pytest.mark.parametrize(("text", "message"), [("streets:300", "must have a unit"), ("streets", "must be one of")])
def test_invalid_term_is_refused(text, message):
    with pytest.raises(PolicyError, match=message):
        parse_policy(text, TOWN)


def test_streets_term_requires_streets():
    with pytest.raises(PolicyError, match=r"requires a region of streets.*--streets FILE"):
        parse_policy("streets:300m", Grid.over((45.0, 7.0, 45.01, 7.01), 0.2))
