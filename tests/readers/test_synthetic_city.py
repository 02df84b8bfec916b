"""The synthetic city is connected. Its users are reproducible and plausible."""

from __future__ import annotations

import json
import warnings
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
import shapely

from dphmm.errors import ConfigurationError
from dphmm.policy.zones import read_polygons
from dphmm.readers.synthetic_city import build_city, sample_synthetic_trajectories
from dphmm.space import Grid

CITY = build_city()
TRAJECTORIES = sample_synthetic_trajectories(city=CITY)


def test_seed_determines_users():
    assert sample_synthetic_trajectories(users=2, days=2, rng=7) == sample_synthetic_trajectories(
        users=2, days=2, rng=7
    )
    assert sample_synthetic_trajectories(users=2, days=2, rng=7) != sample_synthetic_trajectories(
        users=2, days=2, rng=8
    )


def test_streets_are_connected_and_river_has_three_bridges():
    assert nx.is_connected(CITY.streets)
    assert sum({start[1], end[1]} == {5, 6} for start, end in CITY.streets.edges) == 3


def test_districts_cover_city_without_overlap():
    areas = list(CITY.districts.values())
    assert 4 <= len(areas) <= 6
    whole = shapely.union_all(areas)
    assert whole.area == pytest.approx(6.4**2, rel=1e-12)
    assert sum(area.area for area in areas) == pytest.approx(whole.area, rel=1e-9)


def test_district_layer_contains_same_areas_in_degrees():
    layer = CITY.build_districts_geojson()
    assert [f["properties"]["name"] for f in layer["features"]] == list(CITY.districts)
    for feature in layer["features"]:
        outline = shapely.geometry.shape(feature["geometry"])
        plane = shapely.transform(outline, lambda xy: CITY.projection.to_plane(xy[:, 1], xy[:, 0]))
        assert plane.area == pytest.approx(CITY.districts[feature["properties"]["name"]].area, rel=1e-3)
        assert outline.exterior.is_ccw


def test_district_layer_needs_no_repair(tmp_path):
    """Each side of a district is on the city's outline or also a side of its neighbour."""
    document = CITY.build_districts_geojson()
    (tmp_path / "districts.geojson").write_text(json.dumps(document))
    rings = [feature["geometry"]["coordinates"][0] for feature in document["features"]]
    sides = [(tuple(start), tuple(end)) for ring in rings for start, end in pairwise(ring)]
    assert len(set(sides)) == len(sides)
    outline = [side for side in sides if side[::-1] not in sides]
    assert 0 < len(outline) < len(sides)
    plane = CITY.projection.to_plane(*np.array(outline).reshape(-1, 2)[:, ::-1].T)
    assert np.abs(plane).max(axis=1) == pytest.approx(3.2, abs=1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(read_polygons(tmp_path / "districts.geojson", "name")) == len(CITY.districts)


@pytest.mark.slow
def test_every_fix_is_inside_box_and_near_street():
    lines = shapely.MultiLineString([[CITY.get_point(a), CITY.get_point(b)] for a, b in CITY.streets.edges])
    grid = Grid.over(CITY.box, 0.5)
    for trajectory in TRAJECTORIES:
        assert (grid.locate(trajectory.latitude, trajectory.longitude) >= 0).all()
        plane = CITY.projection.to_plane(trajectory.latitude, trajectory.longitude)
        assert shapely.distance(lines, shapely.points(plane)).max() < 0.06


def test_users_mostly_stay_and_respect_speed_limit():
    for trajectory in TRAJECTORIES:
        plane = CITY.projection.to_plane(trajectory.latitude, trajectory.longitude)
        hours = np.diff(trajectory.times).astype(np.int64) / 3.6e9
        speed = np.hypot(*np.diff(plane, axis=0).T) / hours
        assert speed.max() < 28
        assert np.median(speed) < 0.5
        assert (speed > 2).sum() > 10


def test_twelve_users_have_five_days_of_five_minute_fixes_with_gaps():
    assert len(TRAJECTORIES) == 12
    assert len({trajectory.user for trajectory in TRAJECTORIES}) == 12
    for trajectory in TRAJECTORIES:
        assert 0.9 * 1440 < len(trajectory) <= 1440
        assert set((np.diff(trajectory.times).astype(np.int64) % 300_000_000).tolist()) == {0}
    assert any(len(trajectory.split(3000)) > 1 for trajectory in TRAJECTORIES)


def test_nights_are_spent_at_one_location():
    for trajectory in TRAJECTORIES:
        local = (trajectory.times.astype("M8[h]").astype(np.int64) - 2) % 24
        plane = CITY.projection.to_plane(trajectory.latitude, trajectory.longitude)[(local >= 2) & (local < 5)]
        assert np.hypot(*(plane - np.median(plane, axis=0)).T).max() < 0.05


@pytest.mark.parametrize("wrong", [{"users": 0}, {"users": 100}, {"days": 0}, {"step_minutes": 0}], ids=repr)
def test_out_of_range_arguments_raise(wrong):
    with pytest.raises(ConfigurationError):
        sample_synthetic_trajectories(**wrong)


def test_finer_blocks_keep_the_shape_of_the_city():
    city = build_city(blocks=36)
    assert nx.is_connected(city.streets)
    lengths = [np.hypot(*(city.get_point(start) - city.get_point(end))) for start, end in city.streets.edges]
    assert np.median(lengths) == pytest.approx(6 / 36, rel=0.05)
    crossings = [start for start, end in city.streets.edges if {start[1], end[1]} == {16, 17}]
    assert [round(city.get_point(corner)[0]) for corner in sorted(crossings)] == [-2, 0, 2]
    with pytest.raises(ConfigurationError, match="multiple of 12, got 13"):
        build_city(blocks=13)
