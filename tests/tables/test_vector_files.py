"""Vector files read by GDAL: checked before GDAL opens them, with coordinates in degrees."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import geopandas as gpd
import numpy as np
import pytest
import shapely

from dphmm.errors import DataFileError
from dphmm.tables.vector_files import read_layers, to_degrees

POINTS = gpd.GeoDataFrame(
    {"n": [1, 2], "x": [0.1, np.nan], "s": ["a", None]}, geometry=gpd.points_from_xy([1, 2], [3, 4]), crs=4326
)


@pytest.mark.parametrize("suffix", [".gpkg", ".fgb", ".shp"])
def test_layer_holds_written_features(tmp_path, suffix):
    POINTS.to_file(tmp_path / f"a{suffix}")
    (layer,) = read_layers(tmp_path / f"a{suffix}")
    assert (layer.name, layer.system) == ("a", "EPSG:4326")
    assert sorted(feature.properties["n"] for feature in layer.features) == [1, 2]  # FlatGeobuf has its own order
    by_number = {feature.properties["n"]: feature for feature in layer.features}
    assert by_number[1].properties == {"n": 1, "x": 0.1, "s": "a"}
    assert by_number[2].properties == {"n": 2, "x": None, "s": None}
    assert shapely.from_wkb(by_number[2].geometry).equals(shapely.Point(2, 4))
    assert {path.name for path in tmp_path.iterdir() if path.suffix == ".xml"} == set()


@pytest.mark.parametrize("suffix", [".gpkg", ".fgb", ".shp"])
def test_features_outside_box_are_omitted_in_any_reference_system(tmp_path, suffix):
    POINTS.to_crs(32631).to_file(tmp_path / f"a{suffix}")
    (layer,) = read_layers(tmp_path / f"a{suffix}", (2.9, 0.9, 3.1, 1.1))
    assert [feature.properties["n"] for feature in layer.features] == [1]


HOSTILE = {
    "a view": "CREATE VIEW v AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x FROM n) SELECT x FROM n",
    "a table of computed texts": "CREATE TABLE v (n, t AS (printf('%.*c', 100000000, 'x')))",
    "a virtual table": "CREATE VIRTUAL TABLE v USING fts5(t)",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_geopackage_with_view_or_computed_table_raises(tmp_path, name):
    POINTS.to_file(tmp_path / "a.gpkg")
    with closing(sqlite3.connect(tmp_path / "a.gpkg")) as opened:
        opened.execute(HOSTILE[name])
        opened.commit()
    with pytest.raises(DataFileError, match=r"'v'.*export"):
        read_layers(tmp_path / "a.gpkg")


def test_deeply_nested_kml_raises(tmp_path):
    deep = "<MultiGeometry>" * 100_000 + "</MultiGeometry>" * 100_000
    (tmp_path / "a.kml").write_text(f"<kml><Document><Placemark>{deep}</Placemark></Document></kml>")
    with pytest.raises(DataFileError, match="nested too deeply"):
        read_layers(tmp_path / "a.kml")


def test_placemarks_of_all_kml_folders_are_read(tmp_path):
    marks = "<Placemark><name>{}</name><Point><coordinates>{},45,7</coordinates></Point></Placemark>"
    inside = f"{marks.format('a', 1)}<Folder><name>f</name>{marks.format('b', 2)}</Folder>"
    (tmp_path / "a.kml").write_text(f'<kml xmlns="http://www.opengis.net/kml/2.2"><Document>{inside}</Document></kml>')
    features = [feature for layer in read_layers(tmp_path / "a.kml") for feature in layer.features]
    assert sorted(feature.properties["name"] for feature in features) == ["a", "b"]
    assert {shapely.from_wkb(feature.geometry).wkt for feature in features} == {"POINT (1 45)", "POINT (2 45)"}


@pytest.mark.parametrize(
    "system", [None, "EPSG:4326", "urn:ogc:def:crs:OGC:1.3:CRS84", "urn:ogc:def:crs:EPSG::4326", "OGC:CRS84", "CRS84"]
)
def test_to_degrees_is_none_for_degrees(system):
    assert to_degrees(system) is None


@pytest.mark.parametrize("form", ["code", "urn", "wkt", "json"])
def test_reference_system_is_read_from_code_wkt_and_projjson(form):
    from pyproj import CRS

    system = CRS(32631)
    forms = {
        "code": "EPSG:32631",
        "urn": "urn:ogc:def:crs:EPSG::32631",
        "wkt": system.to_wkt(),
        "json": system.to_json_dict(),
    }
    convert = to_degrees(forms[form])
    assert convert is not None
    np.testing.assert_allclose(convert([500_000.0], [0.0]), [[3.0], [0.0]], atol=1e-12)


@pytest.mark.parametrize(
    "system", ["", "none", "+proj=utm +zone=31", "EPSG:999999", "/etc/passwd", 7, {"type": "x"}, []], ids=repr
)
def test_unknown_reference_system_raises(system):
    with pytest.raises(ValueError, match=r"."):
        to_degrees(system)
