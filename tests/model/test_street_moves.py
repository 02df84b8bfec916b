"""Moves between segments of streets within a speed limit, compared with networkx."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dphmm.errors import ConfigurationError
from dphmm.model.blank_model import KINDS, _compute_ring_shares, region_prior
from dphmm.model.model import MarkovModel
from dphmm.model.speed_limit import SpeedLimit
from dphmm.space import Streets
from tests.space.test_streets import build_graph, build_map, towns


@pytest.mark.slow
@settings(max_examples=30)
@given(towns(), st.sampled_from([0.06, 0.2]), st.floats(1, 60))
def test_possible_moves_are_those_along_streets_within_speed(town, segment, speed):
    space = Streets.from_map(town, segment)
    limit = SpeedLimit(space, 60.0, speed)
    lengths = dict(nx.all_pairs_dijkstra_path_length(build_graph(space)))
    half = space.lengths_km / 2
    moves = limit.moves.toarray()
    for a in range(space.size):
        for b in range(space.size):
            gap = 0.0 if a == b else lengths[a][b] - half[a] - half[b]
            if abs(gap - speed / 60) > 1e-6:
                assert moves[a, b] == (gap < speed / 60)
    assert (limit.rings == 0).sum() == space.size


def test_speed_limit_between_unbridged_streets_excludes_the_straight_way():
    # Two parallel streets 79 m apart, connected at one end only: 2 x 1.8 km along streets.
    town = build_map([(0, 0), (4, 0), (0, 0.25), (4, 0.25)], [[0, 1], [2, 3], [0, 2]])
    space = Streets.from_map(town, 0.1)
    far = [int(space.find_nearest_states(45.016, 7.0 + 0.004 * shift)[0]) for shift in (0, 0.25)]
    assert np.hypot(*(space.points[far[0]] - space.points[far[1]])) == pytest.approx(0.079, abs=0.002)
    assert SpeedLimit(space, 60.0, 60.0).find([far[0]], [far[1]]).tolist() == [-1]
    assert SpeedLimit(space, 60.0, 250.0).find([far[0]], [far[1]])[0] >= 0


def test_model_of_streets_is_saved_and_loaded(tmp_path):
    space = Streets.from_map(build_map([(0, 0), (1, 0), (1, 1)], [[0, 1], [1, 2]]), 0.1)
    model = region_prior(space, 60.0, "driving")
    model.save(tmp_path / "model.npz")
    loaded = MarkovModel.load(tmp_path / "model.npz")
    assert loaded.content_hash == model.content_hash
    assert loaded.space == space
    assert loaded.space.pairs_within(0.2).tolist() == space.pairs_within(0.2).tolist()


def test_initial_distribution_is_proportional_to_lengths():
    space = Streets.from_map(build_map([(0, 0), (1, 0), (1, 0.2), (0, 0.2), (2, 0)], [[0, 1], [1, 2], [1, 4]]), 5.0)
    model = region_prior(space, 60.0, "walking")
    assert model.initial == pytest.approx(space.lengths_km / space.lengths_km.sum())


def test_share_of_staying_in_a_segment_is_that_of_simulated_moves():
    # A user on a street of 2 km walks an exponential distance in a random direction; uniform locations, 400,000 draws:
    # a standard error below 0.001.
    space = Streets.from_map(build_map([(0, 0), (4.5, 0)], [[0, 1]]), 0.2)
    rng = np.random.default_rng(7)
    length = float(space.lengths_km[0])
    moved = rng.exponential(5.1 / 60, 400_000)
    moved = moved[moved <= 20 / 60]
    start = rng.random(len(moved)) * length
    end = start + moved * rng.choice([-1, 1], len(moved))
    expected = 0.134 + (1 - 0.134) * np.mean((end >= 0) & (end <= length))
    shares = _compute_ring_shares(SpeedLimit(space, 60.0, 20.0), KINDS["walking"])
    assert shares[0] == pytest.approx(expected, abs=0.004)


def test_too_many_moves_are_refused_in_one_line(monkeypatch):
    monkeypatch.setattr("dphmm.model.speed_limit.MAX_MOVES", 100)
    space = Streets.from_map(build_map([(0, 0), (9, 0)], [[0, 1]]), 0.1)
    with pytest.raises(ConfigurationError, match="at most 1e\\+02 possible moves"):
        SpeedLimit(space, 60.0, 150.0)
