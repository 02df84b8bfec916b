"""Tests of the script of the shipped map: input is restored up to coordinate steps."""

from __future__ import annotations

import json

import numpy as np
import pytest
import shapely

from dphmm.errors import ConfigurationError
from dphmm.plots import basemap
from dphmm.space import world_map
from dphmm.space.towns import NAMES_FILE, find_town, load_gazetteer
from scripts.make_basemap import main, write_names


@pytest.fixture
def world_file(tmp_path, monkeypatch):
    """Write a map of a synthetic land with an inland sea, a lake, a border and towns."""
    geopandas = pytest.importorskip("geopandas")
    land = shapely.box(10, 40, 12, 42).difference(shapely.box(11, 41, 11.5, 41.5))
    layers = {
        "ne_10m_land": [land],
        "ne_10m_lakes": [shapely.box(10.2, 40.2, 10.4, 40.3)],
        "ne_10m_admin_0_boundary_lines_land": [shapely.LineString([(10, 40.5), (12, 40.6)])],
    }
    for name, shapes in layers.items():
        geopandas.GeoDataFrame(geometry=shapes, crs=4326).to_file(tmp_path / f"{name}.shp")
    towns = [("Great", 41.8, 10.5, 2_000_000), ("Seat", 40.8, 10.123456, 0), ("Hamlet", 40.9, 10.2, 30)]
    alternates = {"Great": ["GRT", "Gréat", "Größe", "da"], "Seat": ["Sitz"], "Hamlet": ["Weiler"]}
    cities = {
        str(number): {
            "name": name,
            "latitude": str(north),
            "longitude": str(east),
            "population": population,
            "countrycode": "IT",
            "admin1code": "07",
            "alternatenames": alternates[name],
        }
        for number, (name, north, east, population) in enumerate(towns)
    }
    (tmp_path / "countries.json").write_text(json.dumps({"IT": {"name": "Italy"}}), encoding="utf-8")
    (tmp_path / "us_states.json").write_text(json.dumps({"NY": {"name": "New York"}}), encoding="utf-8")
    (tmp_path / "cities.json").write_text(json.dumps(cities), encoding="utf-8")
    main(tmp_path, tmp_path / "cities.json", tmp_path / "world.npz")
    monkeypatch.setattr(world_map, "WORLD", tmp_path / "world.npz")
    for cached in (world_map.load_outlines, world_map.load_towns, load_gazetteer):
        cached.cache_clear()
    yield tmp_path / "world.npz"
    for cached in (world_map.load_outlines, world_map.load_towns, load_gazetteer):
        cached.cache_clear()


def test_land_seas_lakes_borders_and_names_are_restored(world_file):
    basemap_read = basemap.build_world_basemap((39.5, 9.5, 42.5, 12.5))
    water = shapely.union_all(list(basemap_read.water))
    expected = shapely.box(9.5, 39.5, 12.5, 42.5).difference(shapely.box(10, 40, 12, 42))
    expected = expected.union(shapely.box(11, 41, 11.5, 41.5)).union(shapely.box(10.2, 40.2, 10.4, 40.3))
    assert shapely.symmetric_difference(water, expected).area < 1e-9
    (border,) = basemap_read.lines["border"]
    np.testing.assert_allclose(border, [[10, 40.5], [12, 40.6]], atol=1e-9)
    assert [(place.name, place.rank) for place in basemap_read.names] == [("Great", 63.0), ("Seat", 0.0)]
    assert basemap_read.names[1].longitude == pytest.approx(10.123456, abs=world_map.NAME_STEP / 2)


def test_towns_are_found_by_alternate_names(world_file):
    assert str(find_town("grösse")) == "Great, Italy (about 2,000,000 people; 41.800,10.500)"
    assert str(find_town("Seat, Italy")).startswith("Seat, Italy (population unknown; 40.800,10.12")
    for name in ("GRT", "da", "Hamlet", "Weiler"):
        with pytest.raises(ConfigurationError, match="town must be a name on the map"):
            find_town(name)


def test_equal_input_gives_equal_file(world_file, tmp_path):
    main(tmp_path, tmp_path / "cities.json", tmp_path / "again.npz")
    with np.load(world_file) as first, np.load(tmp_path / "again.npz") as second:
        assert first.files == second.files
        assert all(np.array_equal(first[name], second[name]) for name in first.files)
    names = world_file.with_name(NAMES_FILE).read_bytes()
    write_names(tmp_path / "cities.json", tmp_path / NAMES_FILE)
    assert world_file.with_name(NAMES_FILE).read_bytes() == names
