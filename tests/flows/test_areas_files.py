"""Tests of areas in archives, GeoParquet and single features."""

from __future__ import annotations

import json
import zipfile

import pytest
import shapely

from dphmm.errors import DataFileError
from dphmm.flows.areas import Areas

pyogrio = pytest.importorskip("pyogrio")
geopandas = pytest.importorskip("geopandas")

NAMES = ["Quartier \u00e9", "Port"]
SHAPES = [shapely.box(-30.04 + 0.02 * at, 44.97, -30.02 + 0.02 * at, 44.99) for at in range(2)]


@pytest.fixture(scope="module")
def frame():
    return geopandas.GeoDataFrame({"name": NAMES}, geometry=SHAPES, crs=4326)


def pack_zip(path, folder, names=None):
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.iterdir()):
            if file != path:
                archive.write(file, names(file.name) if names else file.name)
    return path


def check(path, names=NAMES):
    areas = Areas.from_polygons(path)
    assert areas.names == tuple(names)
    for outline, shape in zip(areas.outlines, SHAPES, strict=False):
        assert outline.symmetric_difference(shape).area < 1e-12


def test_archives_and_geoparquet_contain_the_areas_of_their_file(tmp_path, frame):
    folder = tmp_path / "parts"
    folder.mkdir()
    frame.to_file(folder / "z.shp", encoding="utf-8")
    check(pack_zip(tmp_path / "shape.zip", folder))
    check(pack_zip(tmp_path / "nested.zip", folder, lambda name: f"a/{name}"))
    frame.to_crs(3857).to_parquet(tmp_path / "a.parquet")
    check(tmp_path / "a.parquet")
    frame.rename_geometry("the_geom").to_parquet(tmp_path / "b.geoparquet")
    check(tmp_path / "b.geoparquet")
    other = tmp_path / "kml"
    other.mkdir()
    frame.to_file(other / "doc.kml", driver="KML", engine="pyogrio")
    (other / "icon.png").write_bytes(b"\x89PNG")
    check(pack_zip(tmp_path / "a.kmz", other))
    lone = tmp_path / "lone"
    lone.mkdir()
    (lone / "a.geojson").write_text(frame.to_json())
    check(pack_zip(tmp_path / "lone.zip", lone))


def test_single_feature_and_geometry_are_one_area(tmp_path):
    geometry = shapely.geometry.mapping(SHAPES[0])
    path = tmp_path / "a.geojson"
    path.write_text(json.dumps({"type": "Feature", "properties": {"name": NAMES[0]}, "geometry": geometry}))
    check(path, NAMES[:1])
    path.write_text(json.dumps(geometry))
    check(path, ["feature 1"])


def test_other_files_raise_with_their_reason(tmp_path, frame):
    (tmp_path / "a.geojson").write_text('{"type": "Topology", "objects": {}}')
    with pytest.raises(DataFileError, match="is TopoJSON, which is not supported; convert it to GeoJSON: ogr2ogr"):
        Areas.from_polygons(tmp_path / "a.geojson")
    folder = tmp_path / "two"
    folder.mkdir()
    for name in "ab":
        (folder / f"{name}.geojson").write_text(frame.to_json())
    with pytest.raises(DataFileError, match=r"must contain one file of polygons, got 'a.geojson', 'b.geojson'"):
        Areas.from_polygons(pack_zip(tmp_path / "two.zip", folder))
    (folder / "a.geojson").write_text("{")
    (folder / "b.geojson").unlink()
    with pytest.raises(DataFileError, match=r"cut.zip/a.geojson, line 1: is not JSON"):
        Areas.from_polygons(pack_zip(tmp_path / "cut.zip", folder))
    (tmp_path / "no.kmz").write_bytes(b"no archive")
    with pytest.raises(DataFileError, match=r"is not a .kmz file"):
        Areas.from_polygons(tmp_path / "no.kmz")
    frame.drop(columns="geometry").to_parquet(tmp_path / "t.parquet")
    with pytest.raises(DataFileError, match="does not name a geometry column"):
        Areas.from_polygons(tmp_path / "t.parquet")
    frame.to_parquet(tmp_path / "arrow.parquet", geometry_encoding="geoarrow")
    with pytest.raises(DataFileError, match="must have geometries in well-known binary in column 'geometry'"):
        Areas.from_polygons(tmp_path / "arrow.parquet")
