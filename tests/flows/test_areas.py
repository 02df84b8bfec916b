"""Areas: outlines of cells tile the region, and districts are what a layer says."""

from __future__ import annotations

import json

import pytest
import shapely

from dphmm.errors import ConfigurationError, DataFileError
from dphmm.flows import Areas
from dphmm.space import Grid


def test_more_cells_than_memory_has_room_for_are_refused():
    with pytest.raises(ConfigurationError, match="915,325 areas are too many; take larger ones, 500,000 at most"):
        Areas.from_space(Grid.over((40, 0, 42, 3), 0.25))


def test_outlines_of_cells_tile_the_region_each_around_its_place():
    areas = Areas.from_space(Grid.over((45.0, -30.0, 45.03, -29.96), 1.0), block=2)
    whole = shapely.union_all(areas.outlines)
    assert sum(one.area for one in areas.outlines) == pytest.approx(whole.area, rel=1e-6)  # none overlap
    assert whole.area == pytest.approx(shapely.convex_hull(whole).area, rel=1e-3)  # and no gap is left
    for outline, (latitude, longitude) in zip(areas.outlines, areas.places, strict=True):
        assert shapely.distance(outline.centroid, shapely.Point(longitude, latitude)) < 1e-6


def layer(path, squares):
    """Squares of a tenth of a degree: longitude of the corner, name and district of each."""
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


def test_a_property_names_districts_and_an_area_lies_in_one_alone(tmp_path):
    squares = [(7.0, "a", "north"), (7.1, "b", "south"), (7.2, "c", "north"), (7.3, "a", "north")]
    areas = Areas.from_polygons(layer(tmp_path / "areas.json", squares), "name", "district")
    assert (areas.names, areas.districts) == (("a", "b", "c"), ("north", "south"))
    assert areas.district_of.tolist() == [0, 1, 0]
    twice = layer(tmp_path / "twice.json", [*squares, (7.4, "b", "north")])
    with pytest.raises(DataFileError, match="has areas of one name in several of 'district'; name them apart"):
        Areas.from_polygons(twice, "name", "district")


def test_a_layer_of_districts_holds_areas_by_a_point_within_and_the_others_are_elsewhere(tmp_path):
    areas = layer(tmp_path / "areas.json", [(7.0, "a", ""), (7.1, "b", ""), (8.0, "c", "")])
    districts = layer(tmp_path / "districts.json", [(7.0, "west", ""), (7.1, "east", "")])
    found = Areas.from_polygons(areas, "name", districts)
    assert (found.districts, found.district_of.tolist()) == (("west", "east", "elsewhere"), [0, 1, 2])
