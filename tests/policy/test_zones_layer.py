from __future__ import annotations

import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from unittest import mock

import geopandas as gpd
import numpy as np
import pyogrio
import pytest
import shapely
import shapely.affinity

from dphmm.errors import DataFileError
from dphmm.policy.zones import build_categorical_policy, find_categories, find_open_states, find_zones, read_polygons
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


def test_category_states_match_shapely(tmp_path):
    path = _write(tmp_path / "a.geojson", [WEST, EAST], ["west", "east"])
    states_by_category = find_categories(path, SPACE)
    assert list(states_by_category) == ["west", "east"]
    for name, polygon in (("west", WEST), ("east", EAST)):
        expected = [s for s in range(SPACE.size) if polygon.covers(shapely.Point(SPACE.latlon(s)[0, ::-1]))]
        assert states_by_category[name].tolist() == expected
        assert expected


def test_state_in_two_categories_is_adjacent_to_both(tmp_path):
    path = _write(tmp_path / "a.geojson", [WEST, EAST], ["west", "east"])
    states_by_category = {name: set(states.tolist()) for name, states in find_categories(path, SPACE).items()}
    expected = {(i, j) for group in states_by_category.values() for i in group for j in group if i < j}
    assert states_by_category["west"] & states_by_category["east"]
    assert {tuple(edge) for edge in build_categorical_policy(path, SPACE).edge_array().tolist()} == expected


def test_polygons_with_equal_names_form_one_category_and_unnamed_ones_separate(tmp_path):
    west, far = shapely.box(116.29, 39.89, 116.305, 39.93), shapely.box(116.325, 39.89, 116.34, 39.93)
    named = find_categories(_write(tmp_path / "a.geojson", [west, far], ["rim", "rim"]), SPACE)
    nameless = find_categories(_write(tmp_path / "b.geojson", [west, far]), SPACE)
    assert list(named) == ["rim"]
    assert list(nameless) == ["feature 1", "feature 2"]
    assert set(named["rim"]) == set(nameless["feature 1"]) | set(nameless["feature 2"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "not a GeoJSON feature collection"),
        ('{"type": "FeatureCollection", "features": []}', "must be a GeoJSON feature collection"),
        ('{"type": "FeatureCollection", "features": [{"geometry": null}]}', "must be a polygon"),
        ('{"features": [{"geometry": {"type": "Point", "coordinates": [1, 2]}}]}', "must be a polygon"),
        ('{"features": [{"geometry": {"type": "Polygon", "coordinates": "x"}}]}', "must be a polygon"),
    ],
)
def test_invalid_layer_file_raises(tmp_path, content, message):
    path = tmp_path / "a.geojson"
    path.write_text(content)
    with pytest.raises(DataFileError, match=message):
        find_categories(path, SPACE)


def test_self_crossing_ring_is_repaired_and_logged_once(tmp_path, caplog):
    bow_tie = shapely.Polygon([(116.3, 39.9), (116.33, 39.92), (116.33, 39.9), (116.3, 39.92)])
    path = _write(tmp_path / "a.geojson", [bow_tie], ["tie"])
    centre = (116.315, 39.91)
    triangles = [shapely.Polygon([centre, (x, 39.9), (x, 39.92)]) for x in (116.3, 116.33)]
    assert read_polygons(path)[0][1].equals(shapely.union_all(triangles))
    read_polygons(path)
    assert [record.message for record in caplog.records] == [
        f"repaired {path}: polygons that cross or touch themselves (1)"
    ]


def test_hole_outside_its_polygon_raises(tmp_path):
    """Its repair would make it a part of the area."""
    shell = [(116.3, 39.9), (116.33, 39.9), (116.33, 39.92), (116.3, 39.92)]
    hole = [(x + 0.1, y) for x, y in shell]
    with pytest.raises(DataFileError, match=r"lane: .*crosses itself ambiguously"):
        read_polygons(_write(tmp_path / "a.geojson", [shapely.Polygon(shell, [hole])], ["lane"]))


def test_doubly_enclosed_or_degenerate_polygon_raises(tmp_path):
    loop = [(0, 0), (40, 0), (40, 40), (10, 40), (10, 10), (30, 10), (30, 50), (0, 50)]
    twice = shapely.Polygon([(116.3 + x / 2000, 39.9 + y / 2000) for x, y in loop])
    flat = shapely.Polygon([(116.3, 39.9), (116.33, 39.92), (116.3, 39.9)])
    for polygon in (twice, flat):
        with pytest.raises(DataFileError, match=r"lane: .*crosses itself"):
            read_polygons(_write(tmp_path / "a.geojson", [polygon], ["lane"]))


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [10, 400])
def test_repeated_ring_is_repaired_unless_too_many_edges_meet(tmp_path, rounds):
    ring = list(WEST.exterior.coords) * rounds
    path = _write(tmp_path / "a.geojson", [shapely.Polygon(ring)], ["lane"])
    if rounds == 10:
        assert read_polygons(path)[0][1].equals(WEST)
    else:
        with (
            mock.patch.object(shapely, "make_valid", side_effect=AssertionError),
            pytest.raises(DataFileError, match=r"lane: .*crosses itself"),
        ):
            read_polygons(path)


def test_points_and_slivers_next_to_polygon_are_dropped(tmp_path, caplog):
    sliver = shapely.box(116.32, 39.9, 116.32 + 1e-6, 39.92)  # 0.1 m wide
    island = shapely.box(116.32, 39.9, 116.32 + 1e-4, 39.92)  # 9 m wide
    collection = shapely.GeometryCollection([WEST, shapely.Point(116.4, 39.9), shapely.GeometryCollection([sliver])])
    path = _write(tmp_path / "a.geojson", [collection, shapely.MultiPolygon([EAST, island])], ["a", "b"])
    polygons = dict(read_polygons(path))
    assert polygons["a"].equals(WEST)
    assert polygons["b"].equals(shapely.union_all([EAST, island]))
    assert "removed points or lines (1), removed slivers (1)" in caplog.text


def test_small_overlaps_are_resolved_and_larger_ones_kept(tmp_path, caplog):
    west = shapely.box(116.29, 39.89, 116.3101, 39.93)
    rest = shapely.box(116.31, 39.89, 116.34, 39.93)
    path = _write(tmp_path / "a.geojson", [west, rest], ["west", "rest"])
    (_, first), (_, second) = read_polygons(path)
    assert first.equals(west)
    assert second.equals(rest.difference(west))
    assert "small overlaps assigned to the first polygon (1)" in caplog.text
    caplog.clear()
    assert dict(read_polygons(_write(tmp_path / "b.geojson", [west, rest], ["one", "one"])))["one"].equals(rest)
    assert dict(read_polygons(_write(tmp_path / "c.geojson", [WEST, EAST], ["west", "east"])))["east"].equals(EAST)
    assert not caplog.records


@pytest.mark.parametrize(
    ("name", "driver", "system"),
    [
        ("a.gpkg", "GPKG", 4326),
        ("a.gpkg", "GPKG", 32650),
        ("a.kml", "KML", 4326),
        ("a.kml", "LIBKML", 4326),
        ("a.geojson", "GeoJSON", 32650),
    ],
)
def test_other_formats_and_reference_systems_give_same_states(tmp_path, name, driver, system):
    hole = shapely.box(116.31, 39.905, 116.315, 39.91)
    shapes = [WEST, shapely.MultiPolygon([EAST.difference(hole), shapely.box(116.29, 39.94, 116.3, 39.95)])]
    expected = find_categories(_write(tmp_path / "plain.geojson", shapes, ["west", "east"]), SPACE)
    frame = gpd.GeoDataFrame({"Name": ["x", "y"], "name": ["west", "east"]}, geometry=shapes, crs=4326)
    if driver in ("KML", "LIBKML"):
        frame = frame.drop(columns="name").assign(Name=["west", "east"])
        if driver not in pyogrio.list_drivers():
            pytest.skip(f"this GDAL does not write {driver}")
    frame.drop(columns="Name" if "name" in frame else []).to_crs(system).to_file(tmp_path / name, driver=driver)
    states_by_category = find_categories(tmp_path / name, SPACE, "name")
    assert {key: states.tolist() for key, states in states_by_category.items()} == {
        key: states.tolist() for key, states in expected.items()
    }


def test_nested_collections_are_flattened_and_endless_nesting_raises(tmp_path):
    inner = shapely.GeometryCollection([shapely.GeometryCollection([WEST]), shapely.Point(116.4, 39.9)])
    gpd.GeoDataFrame({"name": ["west"]}, geometry=[inner], crs=4326).to_file(tmp_path / "a.gpkg")
    assert read_polygons(tmp_path / "a.gpkg")[0][1].equals(WEST)
    head = b"\x01\x07\x00\x00\x00\x01\x00\x00\x00"
    with closing(sqlite3.connect(tmp_path / "a.gpkg")) as opened, opened:
        opened.execute("DROP TRIGGER IF EXISTS rtree_a_geom_update6")
        for (trigger,) in opened.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            opened.execute(f'DROP TRIGGER "{trigger}"')
        opened.execute("UPDATE a SET geom = ?", (b"GP\0\1" + b"\0" * 4 + head * 100_000 + WEST.wkb,))
    opened.close()
    with pytest.raises(DataFileError, match=r"west: .*polygon"):
        read_polygons(tmp_path / "a.gpkg")


KML = """<kml xmlns="http://www.opengis.net/kml/2.2"><Document><Folder><Placemark><name>home</name>{}</Placemark>
</Folder></Document></kml>"""
RING = (
    "<LinearRing><coordinates> 116.29,39.89,0 116.31,39.89,0\n116.31,39.93 116.29,39.93 {}</coordinates></LinearRing>"
)
BOX = f"<Polygon><outerBoundaryIs>{RING.format('116.29,39.89')}</outerBoundaryIs></Polygon>"


def test_handwritten_kml_is_read(tmp_path):
    path = tmp_path / "a.kml"
    point = "<Point><coordinates>116.3,39.9</coordinates></Point>"
    for inside in (BOX, BOX.replace(" 116.29,39.89</", " </"), f"<MultiGeometry>{point}{BOX}</MultiGeometry>"):
        path.write_text(KML.format(inside))
        ((name, polygon),) = read_polygons(path)
        assert name == "home"
        assert polygon.equals(WEST)
    data = "<ExtendedData><Data name='category'><value>work</value></Data></ExtendedData>"
    path.write_text(KML.format(data + BOX))
    assert read_polygons(path)[0][0] == "work"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<kml", "not well-formed KML"),
        ("<gpx/>", "its root .*'gpx'"),
        ("<!DOCTYPE kml [<!ENTITY a 'b'>]><kml>&a;</kml>", "declares a document type"),
        (KML.format(BOX.replace("39.89,0", "x")), "with a space between two points"),
        (KML.format(BOX.replace(",39.89,0", ", 39.89,0")), "with a space between two points"),
        (KML.format("<Polygon/>"), "must be a polygon"),
        (KML.format(""), "must be a polygon"),
        (KML.format(BOX.replace("116.29,39.93", "116.29,inf")), "with a space between two points"),
    ],
)
def test_invalid_kml_raises_in_one_line(tmp_path, text, message):
    (tmp_path / "a.kml").write_text(text)
    with pytest.raises(DataFileError, match=message) as caught:
        read_polygons(tmp_path / "a.kml")
    assert "\n" not in str(caught.value)


def test_geopackage_with_several_layers_raises(tmp_path):
    frame = gpd.GeoDataFrame({"name": ["west"]}, geometry=[WEST], crs=4326)
    frame.to_file(tmp_path / "a.gpkg", layer="one")
    frame.to_file(tmp_path / "a.gpkg", layer="two")
    with pytest.raises(DataFileError, match=r"must have one layer, got 2 .one, two"):
        read_polygons(tmp_path / "a.gpkg")
    (tmp_path / "b.gpkg").write_bytes(b"SQLite format 3\0")
    with pytest.raises(DataFileError, match="SQLite"):
        read_polygons(tmp_path / "b.gpkg")


@pytest.mark.slow
@pytest.mark.skipif("DPHMM_REAL_DATA" not in os.environ, reason="DPHMM_REAL_DATA names no folder of real data")
def test_published_and_repaired_districts_give_same_states(caplog, tmp_path):
    areas = Path(os.environ["DPHMM_REAL_DATA"]) / "areas"
    space = Grid.over((39.4, 115.5, 41.1, 117.5), cell_km=3.0)
    copied = shutil.copy(areas / "beijing_districts_as_published.geojson", tmp_path)
    published = find_categories(copied, space)
    mended = find_categories(areas / "beijing_districts.geojson", space)
    assert "cross or touch themselves (12)" in caplog.text
    assert {name: states.tolist() for name, states in published.items()} == {
        name: states.tolist() for name, states in mended.items()
    }
    assert sum(map(len, published.values())) == len(np.unique(np.concatenate(list(published.values()))))
    assert len(read_polygons(areas / "los_angeles_neighbourhoods.geojson")) == 114
    assert len(read_polygons(areas / "san_francisco_neighbourhoods.geojson")) == 37


def test_layer_outside_region_or_in_unknown_reference_system_raises(tmp_path):
    with pytest.raises(DataFileError, match="contains no state"):
        find_categories(_write(tmp_path / "a.geojson", [shapely.box(0, 0, 1, 1)]), SPACE)
    for name in ("urn:ogc:def:crs:EPSG::43260", "my own", "+proj=utm"):
        crs = {"type": "name", "properties": {"name": name}}
        with pytest.raises(DataFileError, match=r"reference system.*EPSG:4326"):
            find_categories(_write(tmp_path / "b.geojson", [WEST], crs=crs), SPACE)
    with pytest.raises(DataFileError, match="degrees"):
        find_categories(_write(tmp_path / "c.geojson", [shapely.box(4e5, 4e6, 5e5, 5e6)]), SPACE)


def _find_states(path, space):
    return [
        find_categories(path, space)["home"].tolist(),
        find_zones(path, space)["home"].tolist(),
        find_open_states(path, space).tolist(),
    ]


@pytest.mark.parametrize("turn", [0, -360])
def test_zone_across_date_line_has_states_of_equal_zone_inland(tmp_path, turn):
    inland = shapely.Polygon([(9.981, -16.83), (10.022, -16.833), (10.012, -16.777), (9.97, -16.78)])
    expected = _find_states(
        _write(tmp_path / "a.geojson", [inland], ["home"]), Grid.over((-16.85, 9.9, -16.75, 10.05), 0.5)
    )
    beyond = shapely.affinity.translate(inland, 170 + turn)
    across = Grid.over((-16.85, 179.9, -16.75, -179.95), 0.5)
    assert _find_states(_write(tmp_path / "b.geojson", [beyond], ["home"]), across) == expected
    assert all(len(states) < across.size / 2 for states in expected)
    halves = [inland.intersection(shapely.box(*sides)) for sides in ((0, -20, 10, 0), (10, -20, 20, 0))]
    cut = shapely.MultiPolygon(
        [shapely.affinity.translate(half, by) for half, by in zip(halves, (170, -190), strict=True)]
    )
    assert read_polygons(tmp_path / "b.geojson")[0][1].symmetric_difference(cut).area < 1e-12


def test_polygon_from_180_degrees_on_has_one_part(tmp_path):
    east = shapely.box(180.0, -17, 180.5, -16)
    assert read_polygons(_write(tmp_path / "a.geojson", [east]))[0][1].equals(shapely.box(-180, -17, -179.5, -16))
    west = shapely.box(179.5, -17, 180.0, -16)
    assert read_polygons(_write(tmp_path / "b.geojson", [west]))[0][1].equals(west)


def test_edge_across_more_than_half_the_earth_raises(tmp_path):
    uncut = shapely.Polygon([(179.99, -16.8), (-179.98, -16.8), (-179.98, -16.7), (179.99, -16.7)])
    hole = shapely.Polygon([(-170, -20), (0, -20), (170, -20), (170, 20), (0, 20), (-170, 20)], [uncut.exterior.coords])
    for polygon in (uncut, shapely.MultiPolygon([WEST, uncut]), hole):
        with pytest.raises(DataFileError, match=r"a.geojson: home: an edge.*date line"):
            read_polygons(_write(tmp_path / "a.geojson", [polygon], ["home"]))
    wide = shapely.Polygon([(-90, 0), (90, 0), (90, 10), (-90, 10)])
    assert read_polygons(_write(tmp_path / "a.geojson", [wide]))[0][1].equals(wide)
