"""The local plane agrees with geodesics on the ellipsoid, and its inverse is accurate."""

from __future__ import annotations

import json
import pickle
from dataclasses import asdict

import numpy as np
import pyproj
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphmm.errors import CoordinateError
from dphmm.space import LocalProjection

GEOD = pyproj.Geod(ellps="WGS84")
centres = st.tuples(st.floats(-75, 75), st.floats(-180, 180))
offsets = st.lists(st.tuples(st.floats(-100, 100), st.floats(-100, 100)), min_size=1, max_size=10)


@given(centres, offsets)
def test_projection_round_trips_to_two_millimetres(centre, points):
    projection = LocalProjection(*centre)
    plane = np.array(points)
    there = projection.to_latlon(plane)
    assert np.abs(projection.to_plane(there[:, 0], there[:, 1]) - plane).max() < 2e-6


@given(centres, offsets)
def test_distance_from_centre_matches_geodesic(centre, points):
    projection = LocalProjection(*centre)
    places = projection.to_latlon(points)
    for place, point in zip(places, points, strict=True):
        metres = GEOD.inv(centre[1], centre[0], place[1], place[0])[2]
        assert np.hypot(*point) == pytest.approx(metres / 1000, rel=1e-4, abs=1e-6)


def test_first_coordinate_is_east_and_second_is_north():
    plane = LocalProjection(45, 7).to_plane([45, 45.01], [7.01, 7])
    assert plane[0, 0] > 0.7
    assert plane[1, 1] > 1.1
    assert abs(plane[0, 1]) < 1e-3
    assert abs(plane[1, 0]) < 1e-3


def test_json_and_pickle_round_trip_projection():
    projection = LocalProjection(1 / 3, -2 / 7)
    assert LocalProjection(**json.loads(json.dumps(asdict(projection)))) == projection
    assert pickle.loads(pickle.dumps(projection)) == projection


def test_crs_is_read_by_proj():
    assert pyproj.CRS.from_user_input(LocalProjection(45, 7).crs).is_projected


@pytest.mark.parametrize("centre", [(91, 0), (0, 181), (float("nan"), 0), (0, float("inf"))], ids=repr)
def test_invalid_centre_raises(centre):
    with pytest.raises(CoordinateError):
        LocalProjection(*centre)


@pytest.mark.parametrize("place", [(400.17, 0), (float("nan"), 0), (0, -180.5)], ids=repr)
def test_invalid_place_raises(place):
    with pytest.raises(CoordinateError):
        LocalProjection(45, 7).to_plane(*place)


@pytest.mark.parametrize("points", [[[30000.0, 0.0]], [[np.nan, 0.0]], [[1.0, 2.0, 3.0]]], ids=repr)
def test_point_off_earth_raises(points):
    with pytest.raises(CoordinateError):
        LocalProjection(45, 7).to_latlon(points)
