"""Named places: located by brute force, written and read point for point, each bad table refused."""

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


def table(rows, within=math.inf):
    return Places([f"p{i}" for i in range(len(rows))], [r[0] for r in rows], [r[1] for r in rows], within)


@given(places_near_turin, places_near_turin, st.floats(0.01, 30))
def test_locate_is_the_nearest_within_the_distance(rows, fixes, within):
    space = table(rows, within)
    lat, lon = np.array(fixes).T
    plane = space.projection.to_plane(lat, lon)
    distance = np.linalg.norm(plane[:, None] - space.points[None], axis=2)
    located, nearest = space.locate(lat, lon), space.nearest(lat, lon)
    assert np.allclose(distance[np.arange(len(fixes)), nearest], distance.min(axis=1), rtol=1e-12, atol=1e-12)
    for row, least in enumerate(distance.min(axis=1)):
        if abs(least - within) > 1e-9:
            assert located[row] == (nearest[row] if least <= within else -1)


@given(places_near_turin, st.one_of(st.just(math.inf), st.floats(0.01, 30)))
def test_json_brings_the_same_table_back_point_for_point(rows, within):
    space = table(rows, within)
    again = StateSpace.from_json(json.loads(json.dumps(space.to_json(), allow_nan=False)))
    assert isinstance(again, Places)
    assert again == space
    assert hash(again) == hash(space)
    assert again.points.tolist() == space.points.tolist()
    assert again.names == space.names


def test_the_hash_notices_every_change_of_content():
    rows = [(45.0, 7.5), (45.05, 7.6)]
    spaces = [table(rows), table(rows, 1.0), table(rows[:1]), table([(45.0, 7.5), (45.05, 7.600001)])]
    assert len({space.content_hash for space in spaces}) == len(spaces)
    assert spaces[0] != "a table"


def test_latlon_returns_the_places():
    space = table([(45.0, 7.5), (45.05, 7.6)])
    assert space.latlon().tolist() == [[45.0, 7.5], [45.05, 7.6]]
    assert space.latlon([1]).tolist() == [[45.05, 7.6]]


def test_places_on_both_sides_of_the_date_line_are_near():
    space = table([(0.0, 179.99), (0.0, -179.99)])
    assert np.linalg.norm(space.points[0] - space.points[1]) == pytest.approx(2.226, abs=1e-3)


@pytest.mark.parametrize("states", [[2], [-1], [0.5], ["a"]])
def test_a_state_outside_the_space_is_refused(states):
    with pytest.raises(StateError):
        table([(45.0, 7.5), (45.05, 7.6)]).latlon(states)


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
def test_a_bad_table_is_refused(error, names, latitude, longitude, within):
    with pytest.raises(error):
        Places(names, latitude, longitude, within)


@pytest.mark.parametrize(
    "space", [table([(45.0, 7.5), (45.05, 7.6)], 1.0), Grid.over((45.0, 7.5, 45.1, 7.6), 1.0)], ids=repr
)
def test_locating_is_defined_everywhere_on_earth_and_refuses_only_what_is_not_there(space):
    centre = space.projection
    opposite = (-centre.latitude, centre.longitude - 180)
    assert space.locate(*zip(opposite, (0.0, 0.0), (-90.0, 12.0), strict=True)).tolist() == [-1, -1, -1]
    with pytest.raises(CoordinateError):
        space.nearest(*opposite)
    for call in (space.locate, space.nearest):
        with pytest.raises(CoordinateError):
            call([float("nan")], [0.0])
        assert call([], []).tolist() == []


@pytest.mark.parametrize("space", [table([(45.0, 7.5)]), Grid.over((45.0, 7.5, 45.1, 7.6), 1.0)], ids=repr)
def test_a_space_does_not_change(space):
    with pytest.raises(AttributeError, match="make a new one"):
        space.points = np.zeros((1, 2))
    with pytest.raises(ValueError, match="read-only"):
        space.points[0] = 0.0
    again = pickle.loads(pickle.dumps(space))
    assert again == space
    with pytest.raises(AttributeError, match="make a new one"):
        again.projection = None


@pytest.mark.parametrize("data", [{}, {"kind": "sphere"}, {"kind": "places"}, {"kind": "grid", "columns": None}])
def test_json_of_something_else_is_refused(data):
    with pytest.raises(ConfigurationError):
        StateSpace.from_json(data)
