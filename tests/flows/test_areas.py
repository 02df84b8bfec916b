"""Tests of areas: the outlines of cells tile the region, and districts follow a layer."""

from __future__ import annotations

import json

import pytest
import shapely

from dphmm.errors import ConfigurationError, DataFileError
from dphmm.flows import Areas
from dphmm.space import Grid


def test_too_many_areas_raises():
    with pytest.raises(ConfigurationError, match=r"at most 500,000, got 915,325 areas"):
        Areas.from_space(Grid.over((40, 0, 42, 3), 0.25))


def test_cell_outlines_tile_region_around_their_centres():
    areas = Areas.from_space(Grid.over((45.0, -30.0, 45.03, -29.96), 1.0), block=2)
    whole = shapely.union_all(areas.outlines)
    assert sum(outline.area for outline in areas.outlines) == pytest.approx(whole.area, rel=1e-6)  # no overlaps
    assert whole.area == pytest.approx(shapely.convex_hull(whole).area, rel=1e-3)  # no gaps
    for outline, (latitude, longitude) in zip(areas.outlines, areas.places, strict=True):
        assert shapely.distance(outline.centroid, shapely.Point(longitude, latitude)) < 1e-6


def write_layer(path, squares):
    """Write 0.1-degree squares with a corner longitude, a name and a district each."""
    features = [
        {
            "type": "Feature",
            "properties": {"name": name, "district": district},
            "geometry": json.loads(shapely.to_geojson(shapely.box(x, 45.0, x + 0.1, 45.1))),
        }
        for x, name, district in squares
    ]
    path.write_text(json.dumps({"type": "FeatureCollection", "features": features}), encoding="utf-8")
    return path


def test_property_defines_districts_and_area_in_two_districts_raises(tmp_path):
    squares = [(7.0, "a", "north"), (7.1, "b", "south"), (7.2, "c", "north"), (7.3, "a", "north")]
    areas = Areas.from_polygons(write_layer(tmp_path / "areas.json", squares), "name", "district")
    assert (areas.names, areas.districts) == (("a", "b", "c"), ("north", "south"))
    assert areas.district_of.tolist() == [0, 1, 0]
    twice = write_layer(tmp_path / "twice.json", [*squares, (7.4, "b", "north")])
    with pytest.raises(DataFileError, match="'district'"):
        Areas.from_polygons(twice, "name", "district")


def test_district_layer_assigns_areas_by_interior_point_and_rest_elsewhere(tmp_path):
    areas = write_layer(tmp_path / "areas.json", [(7.0, "a", ""), (7.1, "b", ""), (8.0, "c", "")])
    districts = write_layer(tmp_path / "districts.json", [(7.0, "west", ""), (7.1, "east", "")])
    areas_with_districts = Areas.from_polygons(areas, "name", districts)
    assert (areas_with_districts.districts, areas_with_districts.district_of.tolist()) == (
        ("west", "east", "elsewhere"),
        [0, 1, 2],
    )
