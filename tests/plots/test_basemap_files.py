"""Tests of user-supplied basemaps: feature types follow the tags of OpenStreetMap."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import shapely

from dphmm.errors import ConfigurationError, DataFileError, MissingDependencyError, OutputError
from dphmm.jobs import learn, load_model, region
from dphmm.plots import basemap as basemap_files
from dphmm.plots.basemap import compute_bounding_box, extract_basemap, read_basemap
from tests.openstreetmap import write_extract

BOX = (44.9, -30.1, 45.1, -29.9)
ACROSS = [[-30.2, 45.0], [-29.8, 45.0]]
SQUARE = [[[-30.05, 44.95], [-29.95, 44.95], [-29.95, 45.05], [-30.05, 45.05], [-30.05, 44.95]]]


def write(path, *features):
    geojson_features = [
        {"type": "Feature", "properties": properties, "geometry": where} for properties, where in features
    ]
    path.write_text(json.dumps({"type": "FeatureCollection", "features": geojson_features}))
    return path


def make_line(*points):
    return {"type": "LineString", "coordinates": list(points) or ACROSS}


@pytest.mark.parametrize(
    ("properties", "kind"),
    [
        ({"highway": "motorway"}, "road"),
        ({"kind": "highway"}, "road"),
        ({"class": "primary"}, "road"),
        ({"highway": "residential"}, "lane"),
        ({"highway": "tertiary"}, "street"),
        ({"highway": "footway"}, None),
        ({"waterway": "river"}, "stream"),
        ({"natural": "coastline"}, "stream"),
        ({"name": "coast"}, "stream"),
        ({"boundary": "administrative"}, "border"),
        ({"colour": "red"}, "line"),
    ],
)
def test_line_types_follow_properties(tmp_path, properties, kind):
    other = ({"natural": "water"}, {"type": "Polygon", "coordinates": SQUARE})
    basemap = read_basemap(write(tmp_path / "a.geojson", (properties, make_line()), other), BOX)
    assert list(basemap.lines) == ([] if kind is None else [kind])
    for parts in basemap.lines.values():
        np.testing.assert_allclose(parts[0], [[-30.1, 45.0], [-29.9, 45.0]])


def test_water_is_filled_other_areas_are_outlines_and_places_have_names(tmp_path):
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
    basemap = read_basemap(file, BOX)
    assert [water.area for water in basemap.water] == pytest.approx([0.01])
    assert shapely.Polygon(basemap.lines["line"][0]).area == pytest.approx(0.01)
    assert [(place.name, place.rank) for place in basemap.names] == [
        ("Town", 50.0),
        ("Village", 30.0),
        ("Quarter", 0.0),
    ]
    assert basemap.credit == "Basemap: a.geojson."


@pytest.mark.parametrize("far", [1e300, 1.7e308, 90.001])
def test_features_outside_earth_are_omitted(tmp_path, far):
    ring = [[[-30.05, 44.95], [-29.95, far], [-29.95, 45.05], [-30.05, 45.05], [-30.05, 44.95]]]
    features = [({"natural": "water"}, {"type": "Polygon", "coordinates": ring}), ({"highway": "primary"}, make_line())]
    basemap = read_basemap(write(tmp_path / "a.geojson", *features), BOX)
    assert not basemap.water
    assert list(basemap.lines) == ["road"]


def test_streets_are_omitted_first_if_too_many_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(basemap_files, "MAX_POINTS", 6)
    features = [({"highway": kind}, make_line()) for kind in ("motorway", "residential", "residential", "residential")]
    basemap = read_basemap(write(tmp_path / "a.geojson", *features), BOX)
    assert list(basemap.lines) == ["road"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no map", "is no"),
        (b'{"type": "FeatureCollection", "features": []}', "contains no map of the region"),
    ],
)
def test_file_without_map_of_region_raises(tmp_path, content, message):
    (tmp_path / "a.geojson").write_bytes(content)
    with pytest.raises(DataFileError, match=message):
        read_basemap(tmp_path / "a.geojson", BOX)


def test_file_is_refused_unread_across_date_line():
    with pytest.raises(DataFileError, match=r"absent\.geojson: .* date line"):
        read_basemap("absent.geojson", (-20.0, 179.0, -15.0, -179.0))


# ---- files read by GDAL ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def frames():
    """Return layers of an OpenStreetMap extract.

    They contain water with an island, a road, a street, a path and a town.
    """
    geopandas = pytest.importorskip("geopandas")
    island = shapely.box(-30.01, 44.99, -29.99, 45.01)
    across = shapely.LineString([[-30.2, 45.0], [-29.8, 45.0]])
    return {
        "water": geopandas.GeoDataFrame(
            {"kind": ["lake"]}, geometry=[shapely.Polygon(SQUARE[0]).difference(island)], crs=4326
        ),
        "roads": geopandas.GeoDataFrame({"kind": ["highway", "minor_road", "path"]}, geometry=[across] * 3, crs=4326),
        "buildings": geopandas.GeoDataFrame({"kind": ["water"]}, geometry=[island], crs=4326),
        "places": geopandas.GeoDataFrame(
            {"kind": ["locality", "locality"], "name": ["Town", "Elsewhere"]},
            geometry=[shapely.Point(-30.0, 45.0), shapely.Point(10.0, 10.0)],
            crs=4326,
        ),
    }


@pytest.mark.parametrize("system", [4326, 3857, 32625])
def test_geopackage_layers_determine_feature_types(tmp_path, frames, system):
    for layer, frame in frames.items():
        frame.to_crs(system).to_file(tmp_path / "a.gpkg", layer=layer)
    basemap = read_basemap(tmp_path / "a.gpkg", BOX)
    (lake,) = basemap.water
    assert lake.contains(shapely.Point(-30.03, 45.0))
    assert not lake.contains(shapely.Point(-30.0, 45.0))
    assert set(basemap.lines) == {"road", "street"}
    for lines in basemap.lines.values():
        np.testing.assert_allclose(lines[0][[0, -1]], [[-30.1, 45.0], [-29.9, 45.0]], atol=1e-4)
    ((name, latitude, longitude, _),) = basemap.names
    assert (name, round(latitude, 9), round(longitude, 9)) == ("Town", 45.0, -30.0)
    assert basemap.credit == "Basemap: a.gpkg."


@pytest.mark.parametrize("suffix", [".fgb", ".shp", ".kml", ".geojson"])
def test_other_vector_formats_are_equivalent(tmp_path, frames, suffix):
    path = tmp_path / f"roads{suffix}"
    frames["roads"].to_file(path, driver="KML" if suffix == ".kml" else None)
    assert "road" in read_basemap(path, BOX).lines
    with pytest.raises(DataFileError, match="region"):
        read_basemap(path, (10.0, 10.0, 11.0, 11.0))


@pytest.mark.parametrize("suffix", [".gpkg", ".fgb", ".shp"])
def test_truncated_vector_file_raises_in_one_line(tmp_path, frames, suffix):
    frames["roads"].to_file(tmp_path / f"a{suffix}")
    for length in (0, 60, 110):
        (tmp_path / f"b{suffix}").write_bytes((tmp_path / f"a{suffix}").read_bytes()[:length])
        with pytest.raises(DataFileError) as caught:
            read_basemap(tmp_path / f"b{suffix}", BOX)
        assert "\n" not in str(caught.value)


def test_map_tiles_raise_with_conversion_command(tmp_path):
    (tmp_path / "a.pmtiles").write_bytes(b"PMTiles\3")
    with pytest.raises(DataFileError, match=r"ogr2ogr map\.gpkg a\.pmtiles$"):
        read_basemap(tmp_path / "a.pmtiles", BOX)


def test_missing_library_raises_with_installation_command(tmp_path, monkeypatch, frames):
    frames["roads"].to_file(tmp_path / "a.gpkg")
    monkeypatch.setitem(sys.modules, "pyogrio", None)
    with pytest.raises(MissingDependencyError, match=r"pyogrio .*'dphmm\[files\]'"):
        read_basemap(tmp_path / "a.gpkg", BOX)
    assert read_basemap(write(tmp_path / "a.geojson", ({"highway": "primary"}, make_line())), BOX).lines


def test_file_that_refers_to_another_raises(tmp_path, frames):
    frames["roads"].to_file(tmp_path / "roads.gpkg")
    text = f"<OGRVRTDataSource><OGRVRTLayer name='roads'><SrcDataSource>{tmp_path}/roads.gpkg</SrcDataSource>"
    for suffix in (".gpkg", ".kml", ".fgb", ".shp"):
        (tmp_path / f"b{suffix}").write_text(f"{text}</OGRVRTLayer></OGRVRTDataSource>")
        with pytest.raises(DataFileError, match=rf"b\{suffix}: "):
            read_basemap(tmp_path / f"b{suffix}", BOX)


# ---- extracts of OpenStreetMap ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def extract(tmp_path_factory):
    """Write a town at a coast that runs north with land on its left: the sea is in the east."""
    pytest.importorskip("pyogrio")
    coast = [(44.8, -30.0, {}), (45.0, -29.98, {}), (45.2, -30.0, {})]
    across = [(45.0, -30.2, {}), (45.0, -30.01, {})]
    pond = [(44.95 + y, -30.05 + x, {}) for y, x in ((0, 0), (0, 0.01), (0.01, 0.01), (0.01, 0))]
    places = [
        (45.01, -30.02, {"place": "town", "name": "Stadt", "name:en": "Town"}), (45.02, -30.02, {"amenity": "cafe"}),
    ]  # fmt: skip
    ways = [
        ([0, 1, 2], {"natural": "coastline"}), ([3, 4], {"highway": "primary", "name": "Main"}),
        ([3, 4], {"highway": "residential"}), ([3, 4], {"highway": "footway"}), ([5, 6, 7, 8, 5], {"natural": "water"}),
    ]  # fmt: skip
    path = tmp_path_factory.mktemp("extract") / "town.osm.pbf"
    return write_extract(path, [*coast, *across, *pond, *places], ways)


@pytest.mark.slow
def test_openstreetmap_extract_has_roads_names_ponds_and_sea(extract):
    basemap = read_basemap(extract, BOX)
    assert {kind: len(parts) for kind, parts in basemap.lines.items()} == {"road": 1, "lane": 1, "stream": 1}
    assert [(place.name, round(place.latitude, 7), round(place.longitude, 7)) for place in basemap.names] == [
        ("Stadt", 45.01, -30.02)
    ]
    water = shapely.union_all(basemap.water)
    assert [shapely.intersects_xy(water, x, y) for x, y in ((-29.95, 45.0), (-30.045, 44.955), (-30.05, 45.0))] == [
        True, True, False,
    ]  # fmt: skip
    assert basemap.credit == "© OpenStreetMap contributors."


@pytest.mark.slow
def test_coast_that_ends_within_region_creates_no_water(tmp_path):
    pytest.importorskip("pyogrio")
    nodes, ways = [(44.95, -30.0, {}), (45.2, -30.0, {})], [([0, 1], {"natural": "coastline"})]
    basemap = read_basemap(write_extract(tmp_path / "a.osm.pbf", nodes, ways), BOX)
    assert (list(basemap.lines), list(basemap.water)) == (["stream"], [])


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.npz"
    learn("data/sample/geolife", region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=1), step_seconds=300, output=path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", ["town.geojson", "town.geojson.gz"])
def test_map_extracted_for_model_matches_extract(extract, tmp_path, model, name):
    summary = extract_basemap(extract, model, tmp_path / name)
    assert (summary["water"], summary["road"], summary["lane"], summary["names"]) == (1, 1, 1, 1)
    box = compute_bounding_box(load_model(model).space, 0.1)
    small, large = read_basemap(tmp_path / name, box), read_basemap(extract, box)
    assert (small.names[0].name, small.credit) == (large.names[0].name, large.credit)
    assert small.names[0][1:] == pytest.approx(large.names[0][1:], abs=1e-5)
    assert shapely.union_all(small.water).symmetric_difference(shapely.union_all(large.water)).area < 1e-5
    assert {kind: len(parts) for kind, parts in small.lines.items()} == {
        kind: len(parts) for kind, parts in large.lines.items()
    }
    with pytest.raises(OutputError, match="exists"):
        extract_basemap(extract, model, tmp_path / name)
    with pytest.raises(ConfigurationError, match=r"\.geojson"):
        extract_basemap(extract, model, tmp_path / "town.gpkg")
