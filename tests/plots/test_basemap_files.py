"""Maps of one's own: what their features are is told from the words that extracts of OpenStreetMap use."""

from __future__ import annotations

import json

import numpy as np
import pytest
import shapely

from dphmm.errors import DataFileError
from dphmm.plots import basemap_files
from dphmm.plots.basemap_files import read_basemap
from scripts.fuzzing import tiles

BOX = (44.9, -30.1, 45.1, -29.9)
ACROSS = [[-30.2, 45.0], [-29.8, 45.0]]
SQUARE = [[[-30.05, 44.95], [-29.95, 44.95], [-29.95, 45.05], [-30.05, 45.05], [-30.05, 44.95]]]


def write(path, *features):
    made = [{"type": "Feature", "properties": said, "geometry": where} for said, where in features]
    path.write_text(json.dumps({"type": "FeatureCollection", "features": made}))
    return path


def line(*points):
    return {"type": "LineString", "coordinates": list(points) or ACROSS}


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ({"highway": "motorway"}, "road"),
        ({"kind": "highway"}, "road"),
        ({"class": "primary"}, "road"),
        ({"highway": "residential"}, "street"),
        ({"highway": "footway"}, None),
        ({"waterway": "river"}, "stream"),
        ({"natural": "coastline"}, "stream"),
        ({"name": "coast"}, "stream"),
        ({"boundary": "administrative"}, "border"),
        ({"colour": "red"}, "line"),
    ],
)
def test_lines_are_what_they_say_they_are(tmp_path, said, kind):
    other = ({"natural": "water"}, {"type": "Polygon", "coordinates": SQUARE})
    found = read_basemap(write(tmp_path / "a.geojson", (said, line()), other), BOX)
    assert list(found.lines) == ([] if kind is None else [kind])
    for some in found.lines.values():
        np.testing.assert_allclose(some[0], [[-30.1, 45.0], [-29.9, 45.0]])


def test_water_is_filled_other_areas_are_outlined_and_places_have_names(tmp_path):
    polygon = {"type": "Polygon", "coordinates": SQUARE}
    town = {"type": "Point", "coordinates": [-30.0, 45.0]}
    file = write(
        tmp_path / "a.geojson",
        ({"natural": "water"}, polygon),
        ({"name": "Quarter"}, polygon),
        ({"place": "town", "name": "Town", "population": 100_000}, town),
        ({"place": "village", "name": "Village"}, town),
        ({"amenity": "cafe", "type": "cafe", "name": "Café"}, town),
        ({"name": "Nothing"}, None),
    )
    found = read_basemap(file, BOX)
    assert [water.area for water in found.water] == pytest.approx([0.01])
    assert shapely.Polygon(found.lines["line"][0]).area == pytest.approx(0.01)
    assert [(place.name, place.rank) for place in found.names] == [("Town", 50.0), ("Village", 30.0), ("Quarter", 0.0)]
    assert found.credit == "Basemap: a.geojson."


@pytest.mark.parametrize("far", [1e300, 1.7e308, 90.001])
def test_what_lies_nowhere_on_the_earth_is_left_out(tmp_path, far):
    ring = [[[-30.05, 44.95], [-29.95, far], [-29.95, 45.05], [-30.05, 45.05], [-30.05, 44.95]]]
    features = [({"natural": "water"}, {"type": "Polygon", "coordinates": ring}), ({"highway": "primary"}, line())]
    found = read_basemap(write(tmp_path / "a.geojson", *features), BOX)
    assert not found.water
    assert list(found.lines) == ["road"]


def test_of_a_map_with_too_many_lines_the_streets_go_first(tmp_path, monkeypatch):
    monkeypatch.setattr(basemap_files, "MOST_POINTS", 6)
    features = [({"highway": kind}, line()) for kind in ("motorway", "residential", "residential", "residential")]
    found = read_basemap(write(tmp_path / "a.geojson", *features), BOX)
    assert list(found.lines) == ["road"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"no map", "is no"),
        (b'{"type": "FeatureCollection", "features": []}', "holds no map of the region"),
    ],
)
def test_a_file_that_is_no_map_of_the_region_is_refused(tmp_path, content, said):
    (tmp_path / "a.geojson").write_bytes(content)
    with pytest.raises(DataFileError, match=said):
        read_basemap(tmp_path / "a.geojson", BOX)


# ---- vector tiles ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """Roads, as vector tiles from zoom 8 to 12, written by GDAL."""
    pyogrio, geopandas = pytest.importorskip("pyogrio"), pytest.importorskip("geopandas")
    if pyogrio.list_drivers().get("PMTiles") != "rw":
        pytest.skip("this GDAL writes no PMTiles")
    shapes = [shapely.LineString([[-30.03, y], [-29.97, y + 0.02]]) for y in (44.97, 45.0, 45.02)]
    kinds = ["highway", "minor_road", "path"]
    table = geopandas.GeoDataFrame({"kind": kinds}, geometry=shapes, crs=4326)
    path = tmp_path_factory.mktemp("tiles") / "roads.pmtiles"
    pyogrio.write_dataframe(table, path, layer="roads", driver="PMTiles", MINZOOM="8", MAXZOOM="12")
    return path


def test_vector_tiles_are_read_within_a_tenth_of_a_tiles_hundredth(archive):
    found = read_basemap(archive, (44.95, -30.05, 45.05, -29.95))
    assert set(found.lines) == {"road", "street"}
    pieces = shapely.union_all([shapely.LineString(line) for line in found.lines["road"]])
    true = shapely.LineString([[-30.03, 44.97], [-29.97, 44.99]])
    assert shapely.hausdorff_distance(pieces, true) < 5e-5
    assert pieces.length == pytest.approx(true.length, rel=0.01)
    assert found.credit == "Basemap: roads.pmtiles."


def test_a_tiles_archive_elsewhere_is_refused(archive):
    with pytest.raises(DataFileError, match="no map of the region"):
        read_basemap(archive, (10.0, 10.0, 11.0, 11.0))


def test_an_archive_that_was_cut_off_is_refused_in_a_line(archive, tmp_path):
    (tmp_path / "a.pmtiles").write_bytes(archive.read_bytes()[:200])
    with pytest.raises(DataFileError, match="is cut off, or damaged"):
        read_basemap(tmp_path / "a.pmtiles", BOX)


def test_vector_tiles_are_what_gdal_reads_of_them(archive):
    pyogrio = pytest.importorskip("pyogrio")
    table = pyogrio.read_dataframe(archive, layer="roads", ZOOM_LEVEL="12").to_crs(4326)
    theirs = {kind: shapely.union_all(table.geometry[table["kind"] == kind]) for kind in ("highway", "minor_road")}
    found = read_basemap(archive, (44.95, -30.05, 45.05, -29.95))
    for kind, ours in (("highway", "road"), ("minor_road", "street")):
        lines = shapely.union_all([shapely.LineString(line) for line in found.lines[ours]])
        assert shapely.hausdorff_distance(lines, theirs[kind]) < 1e-4


def test_tiles_of_a_lake_with_an_island_a_river_and_a_town(tmp_path):
    outer = [(0, 0), (4096, 0), (4096, 4096), (0, 4096)]
    hole = [(1024, 1024), (1024, 3072), (3072, 3072), (3072, 1024)]
    layers = {
        "water": [(3, [outer, hole], {"kind": "lake"})],
        "waterway": [(2, [[(-500, 2048), (5000, 2048)]], {"class": "river"})],
        "places": [(1, [[(2048, 2048)]], {"kind": "locality", "name": "Town"}), (1, [[(5000, 0)]], {"name": "No"})],
        "buildings": [(3, [outer], {"kind": "water"})],
    }
    whole = tiles.archive({0: tiles.tile(layers)}, (0, 0), {"attribution": "<a href='x'>© Them</a>"})
    (tmp_path / "a.pmtiles").write_bytes(whole)
    found = read_basemap(tmp_path / "a.pmtiles", (-80.0, -170.0, 80.0, 170.0))
    (lake,) = found.water
    assert lake.contains(shapely.Point(120.0, 0.0))
    assert not lake.contains(shapely.Point(0.0, 0.0))
    (river,) = found.lines["stream"]
    np.testing.assert_allclose([river.min(axis=0), river.max(axis=0)], [[-170, 0], [170, 0]], atol=1e-9)
    assert [(place.name, place.latitude, place.longitude) for place in found.names] == [("Town", 0.0, 0.0)]
    assert found.credit == "Basemap: a.pmtiles (© Them)."


def test_a_tile_that_is_none_and_too_many_of_them_are_refused(tmp_path):
    (tmp_path / "a.pmtiles").write_bytes(tiles.archive({0: b"\xff" * 9}, (0, 0)))
    with pytest.raises(DataFileError, match="holds a tile that is none"):
        read_basemap(tmp_path / "a.pmtiles", BOX)
    (tmp_path / "b.pmtiles").write_bytes(tiles.archive({0: b""}, (12, 14)))
    with pytest.raises(DataFileError, match="too fine for the region"):
        read_basemap(tmp_path / "b.pmtiles", (40.0, 0.0, 50.0, 10.0))
