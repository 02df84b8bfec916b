from __future__ import annotations

import json

import pytest
import shapely

from dphmm.errors import DataFileError
from dphmm.policy.layer import categorical_layer, categories
from dphmm.space import Grid

SPACE = Grid.over((39.90, 116.30, 39.92, 116.33), cell_km=0.5)


def _write(path, polygons, names=None, **extra):
    features = [
        {
            "type": "Feature",
            "properties": {"name": names[i]} if names else {},
            "geometry": polygon and shapely.geometry.mapping(polygon),
        }
        for i, polygon in enumerate(polygons)
    ]
    path.write_text(json.dumps({"type": "FeatureCollection", "features": features} | extra))
    return path


WEST = shapely.box(116.29, 39.89, 116.31, 39.93)
EAST = shapely.box(116.305, 39.89, 116.34, 39.93)


def test_states_are_found_as_shapely_finds_them_one_by_one(tmp_path):
    path = _write(tmp_path / "a.geojson", [WEST, EAST], ["west", "east"])
    found = categories(path, SPACE)
    assert list(found) == ["west", "east"]
    for name, polygon in (("west", WEST), ("east", EAST)):
        expected = [s for s in range(SPACE.size) if polygon.covers(shapely.Point(SPACE.latlon(s)[0, ::-1]))]
        assert found[name].tolist() == expected
        assert expected


def test_a_state_in_two_categories_is_connected_with_both(tmp_path):
    path = _write(tmp_path / "a.geojson", [WEST, EAST], ["west", "east"])
    found = {name: set(states.tolist()) for name, states in categories(path, SPACE).items()}
    expected = {(i, j) for group in found.values() for i in group for j in group if i < j}
    assert found["west"] & found["east"]
    assert {tuple(edge) for edge in categorical_layer(path, SPACE).edges().tolist()} == expected


def test_polygons_of_one_name_are_one_category_and_nameless_ones_are_their_own(tmp_path):
    west, far = shapely.box(116.29, 39.89, 116.305, 39.93), shapely.box(116.325, 39.89, 116.34, 39.93)
    named = categories(_write(tmp_path / "a.geojson", [west, far], ["rim", "rim"]), SPACE)
    nameless = categories(_write(tmp_path / "b.geojson", [west, far]), SPACE)
    assert list(named) == ["rim"]
    assert list(nameless) == ["feature 1", "feature 2"]
    assert set(named["rim"]) == set(nameless["feature 1"]) | set(nameless["feature 2"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no JSON"),
        ("[]", "no GeoJSON feature collection"),
        ('{"type": "FeatureCollection", "features": []}', "no GeoJSON feature collection"),
        ('{"type": "FeatureCollection", "features": [{"geometry": null}]}', "is no polygon"),
        ('{"features": [{"geometry": {"type": "Point", "coordinates": [1, 2]}}]}', "is no polygon"),
        ('{"features": [{"geometry": {"type": "Polygon", "coordinates": "x"}}]}', "is no polygon"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path, content, message):
    path = tmp_path / "a.geojson"
    path.write_text(content)
    with pytest.raises(DataFileError, match=message):
        categories(path, SPACE)


def test_a_polygon_that_crosses_itself_is_refused(tmp_path):
    bow_tie = shapely.Polygon([(116.3, 39.9), (116.33, 39.92), (116.33, 39.9), (116.3, 39.92)])
    with pytest.raises(DataFileError, match="crosses itself"):
        categories(_write(tmp_path / "a.geojson", [bow_tie]), SPACE)


def test_a_layer_elsewhere_and_one_in_another_reference_system_are_refused(tmp_path):
    with pytest.raises(DataFileError, match="covers no state"):
        categories(_write(tmp_path / "a.geojson", [shapely.box(0, 0, 1, 1)]), SPACE)
    crs = {"type": "name", "properties": {"name": "urn:ogc:def:crs:EPSG::3857"}}
    with pytest.raises(DataFileError, match="another reference system"):
        categories(_write(tmp_path / "b.geojson", [WEST], crs=crs), SPACE)
