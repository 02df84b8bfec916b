"""Named places: compared with brute force, round trips, and refusal of invalid tables."""

from __future__ import annotations

import json
import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphmm.errors import ConfigurationError, CoordinateError, StateError
from dphmm.space import Grid, Places, StateSpace

places_near_turin = st.lists(
    st.tuples(st.floats(44.9, 45.1), st.floats(7.5, 7.8)), min_size=1, max_size=12, unique=True
)


def build_places(rows, within=math.inf):
    return Places([f"p{i}" for i in range(len(rows))], [r[0] for r in rows], [r[1] for r in rows], within)


@pytest.mark.slow
@given(places_near_turin, places_near_turin, st.floats(0.01, 30))
def test_locate_finds_nearest_within_distance(rows, fixes, within):
    space = build_places(rows, within)
    lat, lon = np.array(fixes).T
    plane = space.projection.to_plane(lat, lon)
    distance = np.linalg.norm(plane[:, None] - space.points[None], axis=2)
    located, nearest = space.locate(lat, lon), space.find_nearest_states(lat, lon)
    assert np.allclose(distance[np.arange(len(fixes)), nearest], distance.min(axis=1), rtol=1e-12, atol=1e-12)
    for row, minimum in enumerate(distance.min(axis=1)):
        if abs(minimum - within) > 1e-9:
            assert located[row] == (nearest[row] if minimum <= within else -1)


@given(places_near_turin, st.one_of(st.just(math.inf), st.floats(0.01, 30)))
def test_json_round_trips_places_exactly(rows, within):
    space = build_places(rows, within)
    copy = StateSpace.from_json(json.loads(json.dumps(space.to_json(), allow_nan=False)))
    assert isinstance(copy, Places)
    assert copy == space
    assert hash(copy) == hash(space)
    assert copy.points.tolist() == space.points.tolist()
    assert copy.names == space.names


def test_content_hash_changes_with_content():
    rows = [(45.0, 7.5), (45.05, 7.6)]
    spaces = [
        build_places(rows),
        build_places(rows, 1.0),
        build_places(rows[:1]),
        build_places([(45.0, 7.5), (45.05, 7.600001)]),
    ]
    assert len({space.content_hash for space in spaces}) == len(spaces)
    assert spaces[0] != "a table"


def test_latlon_returns_places():
    space = build_places([(45.0, 7.5), (45.05, 7.6)])
    assert space.latlon().tolist() == [[45.0, 7.5], [45.05, 7.6]]
    assert space.latlon([1]).tolist() == [[45.05, 7.6]]


def test_places_across_date_line_are_near():
    space = build_places([(0.0, 179.99), (0.0, -179.99)])
    assert np.linalg.norm(space.points[0] - space.points[1]) == pytest.approx(2.226, abs=1e-3)


@pytest.mark.parametrize("states", [[2], [-1], [0.5], ["a"]], ids=repr)
def test_state_outside_space_raises(states):
    with pytest.raises(StateError):
        build_places([(45.0, 7.5), (45.05, 7.6)]).latlon(states)


@pytest.mark.parametrize(
    ("error", "names", "latitude", "longitude", "within"),
    [
        (StateError, [], [], [], 1),
        (StateError, ["a", "a"], [45, 46], [7, 7], 1),
        (StateError, ["a", ""], [45, 46], [7, 7], 1),
        (CoordinateError, ["a", "b"], [45, 400.17], [7, 7], 1),
        (CoordinateError, ["a", "b"], [45], [7], 1),
        (CoordinateError, ["a", "b"], [45, -45], [7, -173], 1),
        (CoordinateError, ["a", "b"], [45, 0], [7, 80], 1),
        (ConfigurationError, ["a"], [45], [7], 0),
        (ConfigurationError, ["a"], [45], [7], math.nan),
    ],
)
def test_invalid_places_raise(error, names, latitude, longitude, within):
    with pytest.raises(error):
        Places(names, latitude, longitude, within)


@pytest.mark.parametrize(
    "space", [build_places([(45.0, 7.5), (45.05, 7.6)], 1.0), Grid.over((45.0, 7.5, 45.1, 7.6), 1.0)], ids=repr
)
def test_locate_is_defined_everywhere_and_nan_raises(space):
    centre = space.projection
    opposite = (-centre.latitude, centre.longitude - 180)
    assert space.locate(*zip(opposite, (0.0, 0.0), (-90.0, 12.0), strict=True)).tolist() == [-1, -1, -1]
    with pytest.raises(CoordinateError):
        space.find_nearest_states(*opposite)
    for call in (space.locate, space.find_nearest_states):
        with pytest.raises(CoordinateError):
            call([float("nan")], [0.0])
        assert call([], []).tolist() == []


@pytest.mark.parametrize("space", [build_places([(45.0, 7.5)]), Grid.over((45.0, 7.5, 45.1, 7.6), 1.0)], ids=repr)
def test_assignment_to_space_raises(space):
    with pytest.raises(AttributeError, match="create a new"):
        space.points = np.zeros((1, 2))
    with pytest.raises(ValueError, match="read-only"):
        space.points[0] = 0.0
    copy = pickle.loads(pickle.dumps(space))
    assert copy == space
    with pytest.raises(AttributeError, match="create a new"):
        copy.projection = None


@pytest.mark.parametrize(
    "data", [{}, {"kind": "sphere"}, {"kind": "places"}, {"kind": "grid", "columns": None}], ids=repr
)
def test_invalid_json_raises(data):
    with pytest.raises(ConfigurationError):
        StateSpace.from_json(data)
