"""Tests of the shipped world map: known places are wet or dry, and the coast is accurate."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import shapely
from hypothesis import given
from hypothesis import strategies as st

from dphmm.errors import CoordinateError
from dphmm.plots.basemap import build_world_basemap, compute_bounding_box
from dphmm.space.states import Places
from dphmm.space.towns import NAMES_FILE
from dphmm.space.world_map import WORLD, decode_points, encode_points

WET = {
    "Santa Monica Bay": (33.95, -118.60),
    "Lake Geneva": (46.45, 6.55),
    "the Bosporus' mouth": (41.30, 29.15),
    "the Caspian Sea": (42.0, 48.9),
    "Port Phillip": (-38.1, 144.85),
}
DRY = {
    "Los Angeles": (34.05, -118.25),
    "Bern": (46.95, 7.45),
    "Ankara": (39.93, 32.86),
    "Beijing": (39.90, 116.40),
    "Alice Springs": (-23.70, 133.88),
}


@pytest.mark.parametrize("place", [*WET, *DRY])
def test_known_places_are_wet_or_dry(place):
    latitude, longitude = (WET | DRY)[place]
    basemap = build_world_basemap((latitude - 1, longitude - 1.2, latitude + 1, longitude + 1.2))
    wet = any(shapely.contains_xy(water, longitude, latitude) for water in basemap.water)
    assert wet == (place in WET)


def test_names_are_those_of_largest_places_in_box():
    basemap = build_world_basemap((33.9, -118.6, 34.2, -118.1), max_names=5)
    assert len(basemap.names) == 5
    assert basemap.names[0].name == "Los Angeles"
    ranks = [place.rank for place in basemap.names]
    assert ranks == sorted(ranks, reverse=True)
    assert (basemap.names[0].latitude, basemap.names[0].longitude) == pytest.approx((34.052, -118.244), abs=0.003)
    assert "GeoNames, CC BY 4.0" in basemap.credit


def test_water_lies_within_box_and_borders_cross_it():
    box = (46.0, 6.0, 46.6, 7.0)
    basemap = build_world_basemap(box)
    frame = shapely.box(6.0, 46.0, 7.0, 46.6).buffer(1e-9)
    assert all(frame.contains(water) for water in basemap.water)
    assert basemap.lines["border"]
    assert all(frame.contains(shapely.LineString(line)) for line in basemap.lines["border"])


@pytest.mark.parametrize(
    "box", [(44.0, -31.0, 46.0, -29.0), (-20.0, 179.0, -15.0, -179.0)], ids=["open sea", "date line"]
)
def test_basemap_is_empty_on_open_sea_and_across_date_line(box):
    assert build_world_basemap(box).is_empty


@pytest.mark.parametrize(
    ("longitudes", "west", "east"),
    [((179.97, -179.97), 179.964, -179.964), ((179.9, 179.96), 179.894, 179.966), ((-180.0, -179.9), -180.01, -179.89)],
    ids=["across", "west of it", "at it"],
)
def test_box_around_region_at_date_line_is_narrow(longitudes, west, east):
    box = compute_bounding_box(Places(["a", "b"], [-17.0, -17.02], longitudes), 0.1)
    assert box[1::2] == pytest.approx((west, east), abs=1e-9)


@pytest.mark.parametrize(
    "box",
    [(46.0, 6.0, 45.0, 7.0), (np.nan, 0, 1, 1), (-91, 0, 1, 1), (0, 1, 2)],
    ids=["upside down", "nan", "beyond pole", "three numbers"],
)
def test_degenerate_bbox_raises(box):
    with pytest.raises(CoordinateError, match="box "):
        build_world_basemap(box)


def test_file_is_small_and_has_licences():
    folder = WORLD.parent
    assert WORLD.stat().st_size < 2_000_000
    assert Path(str(WORLD)).with_name(NAMES_FILE).stat().st_size < 2_000_000
    readme = (folder / "README.md").read_text(encoding="utf-8")
    assert "public domain" in readme
    assert "Creative Commons Attribution 4.0" in readme


def test_coast_matches_natural_earth_within_150_metres(real_data):
    for place in ("los_angeles", "san_francisco"):
        features = json.loads((real_data / "areas" / f"{place}_coast.geojson").read_text())["features"]
        coast = shapely.union_all([shapely.from_geojson(json.dumps(feature["geometry"])) for feature in features])
        west, south, east, north = coast.bounds
        basemap = build_world_basemap((south, west, north, east))
        shore = shapely.union_all([water.boundary for water in basemap.water])
        points = shapely.get_coordinates(coast)
        inner = ((points > [west + 0.02, south + 0.02]) & (points < [east - 0.02, north - 0.02])).all(axis=1)
        distance = shapely.distance(shapely.points(points[inner]), shore)
        assert inner.sum() > 50
        assert distance.max() < 0.0015  # degrees, about 150 m: simplified by 0.001, then rounded


@given(st.lists(st.tuples(st.integers(-180_000, 180_000), st.integers(-90_000, 90_000)), min_size=1))
def test_coded_points_are_decoded(points):
    steps = np.array(points, dtype=np.int64)
    np.testing.assert_array_equal(np.round(decode_points(encode_points(steps), 1.0)), steps)
