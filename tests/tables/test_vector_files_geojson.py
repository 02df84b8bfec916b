"""GeoJSON: features read back, and an invalid collection is refused in one line."""

from __future__ import annotations

import json

import geopandas as gpd
import pytest
import shapely

from dphmm.errors import DataFileError
from dphmm.tables import Feature, read_document, read_features, write_features
from dphmm.tables.vector_files import parse_geometry

FEATURES = [
    Feature({"name": "a é", "x": 0.1}, {"type": "Point", "coordinates": [116.3, 39.9]}),
    Feature({"name": "b", "x": None}, None),
]


def test_features_read_back_and_gdal_reads_them(tmp_path):
    path = tmp_path / "f.geojson"
    write_features(path, "places", FEATURES)
    assert read_features(read_document(path)) == FEATURES
    frame = gpd.read_file(path)
    assert frame.crs.to_epsg() == 4326 or "CRS84" in str(frame.crs)
    assert frame["name"].tolist() == ["a é", "b"]
    assert frame.geometry[0] == shapely.Point(116.3, 39.9)
    write_features(path, "none", [])
    assert read_features(read_document(path)) == []
    with pytest.raises(ValueError, match="JSON"):
        write_features(path, "nan", [Feature({"x": float("nan")}, None)])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"features": [\n{"type": ', "line 2: .*JSON"),
        (b"\xff", "line 1: .*UTF-8"),
        (b"[1]", "not a GeoJSON feature collection"),
        (b'{"features": [1]}', "not a GeoJSON feature collection"),
        (b'{"features": [], "crs": {"properties": {"name": "EPSG:3857"}}}', "another reference system than WGS 84"),
        (b'{"features": [], "crs": {"properties": {"name": "EPSG:43260"}}}', "another reference system than WGS 84"),
    ],
)
def test_invalid_collection_raises(tmp_path, text, message):
    (tmp_path / "f.geojson").write_bytes(text)
    with pytest.raises(DataFileError, match=message) as caught:
        read_features(read_document(tmp_path / "f.geojson"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    ["urn:ogc:def:crs:OGC:1.3:CRS84", "urn:ogc:def:crs:EPSG::4326", "EPSG:4326", "http://x/EPSG/0/4326", None],
)
def test_every_name_of_wgs_84_is_accepted(tmp_path, name):
    system = {"type": "name", "properties": {"name": name}} if name else None
    (tmp_path / "f.geojson").write_text(json.dumps({"features": [{"properties": [1]}], "crs": system}))
    assert read_features(read_document(tmp_path / "f.geojson")) == [Feature({}, None)]


def test_geometry_is_read_from_each_form():
    point = shapely.Point(1, 2)
    forms = (point.wkt, point.wkb, shapely.to_wkb(shapely.set_srid(point, 4326), include_srid=True))
    assert [parse_geometry(form, ("Point",)) for form in (*forms, shapely.geometry.mapping(point))] == [point] * 4
    assert parse_geometry(None, ("Point",)) is None
    assert parse_geometry("POINT (1e400 2)", ("Point",)).x == float("inf")
    for bad in ("POINT (1", {"type": "Point", "coordinates": [1, 1e999]}, b"\1\1\0\0\0", {"type": "Point"}):
        with pytest.raises(ValueError, match=r"geometry is invalid"):
            parse_geometry(bad, ("Point",))
    for bad in ("7", b"\1", {"type": ["Point"]}, 7, "LINESTRING (0 0, 1 1)", shapely.LineString([(0, 0), (1, 1)]).wkb):
        with pytest.raises(ValueError, match=r"geometry .*Point"):
            parse_geometry(bad, ("Point",))


@pytest.mark.parametrize("depth", [900, 100_000])
def test_deeply_nested_geometry_raises(depth):
    binary = b"\1\7\0\0\0\1\0\0\0" * depth + shapely.Point(1, 2).wkb  # GEOS runs out of stack for this
    text = "GEOMETRYCOLLECTION (" * depth + "POINT (1 2)" + ")" * depth
    for bad in (binary, text):
        with pytest.raises(ValueError, match=r"geometry .*Point or Polygon"):
            parse_geometry(bad, ("Point", "Polygon"))


def test_signalling_nan_in_wkb_is_read_without_warning():
    """The processor itself would warn of a signalling NaN."""
    corners = [(0, 0), (1, 0), (1, 1), (0, 0)]
    data = bytearray(shapely.Polygon(corners).wkb)
    data[29:37] = bytes.fromhex("010000000000f07f")
    assert parse_geometry(bytes(data), ("Polygon",)).geom_type == "Polygon"
