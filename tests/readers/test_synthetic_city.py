"""The synthetic city is connected and covered, its people are reproducible and plausible."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import shapely

from dphmm.errors import ConfigurationError
from dphmm.readers.synthetic_city import build_city, synthetic_trajectories
from dphmm.space import Grid

CITY = build_city()
PEOPLE = synthetic_trajectories(city=CITY)


def test_the_same_seed_gives_the_same_people_and_another_seed_others():
    assert synthetic_trajectories(users=2, days=2, rng=7) == synthetic_trajectories(users=2, days=2, rng=7)
    assert synthetic_trajectories(users=2, days=2, rng=7) != synthetic_trajectories(users=2, days=2, rng=8)


def test_the_streets_are_connected_and_the_river_has_three_bridges():
    assert nx.is_connected(CITY.streets)
    assert sum({one[1], other[1]} == {5, 6} for one, other in CITY.streets.edges) == 3


def test_the_districts_cover_the_city_without_overlap():
    areas = list(CITY.districts.values())
    assert 4 <= len(areas) <= 6
    whole = shapely.union_all(areas)
    assert whole.area == pytest.approx(6.4**2, rel=1e-12)
    assert sum(area.area for area in areas) == pytest.approx(whole.area, rel=1e-9)


def test_the_district_layer_holds_the_same_areas_in_degrees():
    layer = CITY.districts_geojson()
    assert [f["properties"]["name"] for f in layer["features"]] == list(CITY.districts)
    for feature in layer["features"]:
        outline = shapely.geometry.shape(feature["geometry"])
        plane = shapely.transform(outline, lambda xy: CITY.projection.to_plane(xy[:, 1], xy[:, 0]))
        assert plane.area == pytest.approx(CITY.districts[feature["properties"]["name"]].area, rel=1e-3)
        assert outline.exterior.is_ccw


def test_every_fix_lies_in_the_box_within_forty_metres_of_a_street_or_rest():
    lines = shapely.MultiLineString([[CITY.point(a), CITY.point(b)] for a, b in CITY.streets.edges])
    grid = Grid.over(CITY.box, 0.5)
    for person in PEOPLE:
        assert (grid.locate(person.latitude, person.longitude) >= 0).all()
        plane = CITY.projection.to_plane(person.latitude, person.longitude)
        assert shapely.distance(lines, shapely.points(plane)).max() < 0.06


def test_people_stay_most_of_the_time_and_never_move_faster_than_they_drive():
    for person in PEOPLE:
        plane = CITY.projection.to_plane(person.latitude, person.longitude)
        hours = np.diff(person.times).astype(np.int64) / 3.6e9
        speed = np.hypot(*np.diff(plane, axis=0).T) / hours
        assert speed.max() < 28
        assert np.median(speed) < 0.5
        assert (speed > 2).sum() > 10


def test_twelve_people_five_days_every_five_minutes_with_some_fixes_missing():
    assert len(PEOPLE) == 12
    assert len({person.user for person in PEOPLE}) == 12
    for person in PEOPLE:
        assert 0.9 * 1440 < len(person) <= 1440
        assert set((np.diff(person.times).astype(np.int64) % 300_000_000).tolist()) == {0}
    assert any(len(person.split(3000)) > 1 for person in PEOPLE)


def test_nights_are_spent_at_one_place():
    for person in PEOPLE:
        local = (person.times.astype("M8[h]").astype(np.int64) - 2) % 24
        plane = CITY.projection.to_plane(person.latitude, person.longitude)[(local >= 2) & (local < 5)]
        assert np.hypot(*(plane - np.median(plane, axis=0)).T).max() < 0.05


@pytest.mark.parametrize("wrong", [{"users": 0}, {"users": 100}, {"days": 0}, {"step_minutes": 0}])
def test_numbers_out_of_range_are_refused(wrong):
    with pytest.raises(ConfigurationError):
        synthetic_trajectories(**wrong)
