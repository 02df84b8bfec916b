"""Every format against the library that people open it with, and against its own reader."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import sqlite3
import sys
import time
from contextlib import closing
from xml.etree import ElementTree

import numpy as np
import pytest

from dphmm.errors import ConfigurationError, DataFileError, InvalidInputError, MissingDependencyError, OutputError
from dphmm.readers import read_frame
from dphmm.writers import (
    COLUMNS,
    FORMATS,
    ReleaseTable,
    check_format,
    read_releases,
    to_geodataframe,
    to_scikit_mobility,
    to_trajectory_collection,
    tracks,
    write_releases,
)

NAMES = [column.name for column in COLUMNS]


@pytest.mark.parametrize("suffix", sorted(set(FORMATS) - {".gpx"}))
def test_what_was_written_reads_back_bit_for_bit(tmp_path, table, suffix):
    path = tmp_path / f"out{suffix}"
    write_releases(path, table)
    assert read_releases(path) == table


@pytest.mark.parametrize("suffix", sorted(FORMATS))
def test_equal_tables_make_equal_files_whenever_they_are_written(tmp_path, table, suffix):
    """A GeoPackage says, to the millisecond, when its layer was changed."""
    files = [tmp_path / f"{name}{suffix}" for name in ("a", "b")]
    for path in files:
        write_releases(path, table)
        time.sleep(0.002)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_gpx_keeps_everything_of_the_rows_that_have_the_place_asked_for(tmp_path, table):
    for geometry, kept in (("estimate", table), ("released", table.select(table.placed))):
        path = tmp_path / f"{geometry}.gpx"
        write_releases(path, table, geometry=geometry)
        found = read_releases(path)
        order = [found["user"].tolist().index(user) for user in kept["user"]]
        assert sorted(found["user"]) == sorted(kept["user"])
        assert len(order) == len(kept)
        for name in NAMES:
            assert sorted(map(str, found[name].tolist())) == sorted(map(str, kept[name].tolist()))


@pytest.mark.parametrize("suffix", sorted(FORMATS))
def test_no_release_at_all_makes_a_file_that_reads_back(tmp_path, table, suffix):
    path = tmp_path / f"out{suffix}"
    write_releases(path, table.select(np.zeros(4, dtype=bool)))
    assert len(read_releases(path)) == 0


@pytest.mark.parametrize("suffix", [".gpkg", ".geojson"])
def test_gdal_reads_points_attributes_and_the_reference_system(tmp_path, table, suffix):
    geopandas = pytest.importorskip("geopandas")
    path = tmp_path / f"out{suffix}"
    write_releases(path, table)
    frame = geopandas.read_file(path, layer="estimates" if suffix == ".gpkg" else None)
    assert frame.crs.to_epsg(min_confidence=20) == 4326 or frame.crs.to_authority() == ("OGC", "CRS84")
    other = {"user": "user_id", "time": "tracked_at"} if suffix == ".gpkg" else {}
    assert [name for name in frame.columns if name != "geometry"] == [other.get(name, name) for name in NAMES]
    assert not frame.geometry.isna().any()
    assert frame.geometry.x.tolist() == table["estimate_longitude"].tolist()
    assert frame.geometry.y.tolist() == table["estimate_latitude"].tolist()
    assert frame["possible_states"].tolist() == [1419, 2, 1, 17]
    times = [moment.isoformat() for moment in frame[other.get("time", "time")]]
    assert times[1] == "2009-10-11T14:05:30.250000+00:00"


@pytest.mark.parametrize("suffix", [".geojson", ".parquet"])
def test_released_places_are_the_geometry_where_they_are_asked_for(tmp_path, table, suffix):
    geopandas = pytest.importorskip("geopandas")
    path = tmp_path / f"out{suffix}"
    write_releases(path, table, geometry="released")
    frame = geopandas.read_parquet(path) if suffix == ".parquet" else geopandas.read_file(path)
    assert frame.geometry.isna().tolist() == [False, False, False, True]
    assert frame.geometry[:3].x.tolist() == table["longitude"][:3].tolist()
    assert frame.geometry[:3].y.tolist() == table["latitude"][:3].tolist()
    assert read_releases(path) == table
    with pytest.raises(InvalidInputError, match="geometry is 'both'; give estimate or released"):
        write_releases(path, table, overwrite=True, geometry="both")


def test_a_geopackage_has_layers_of_estimates_released_places_and_tracks_with_styles(tmp_path, table):
    pyogrio = pytest.importorskip("pyogrio")
    path = tmp_path / "out.gpkg"
    write_releases(path, table)
    layers = dict(pyogrio.list_layers(path).tolist())
    assert layers == {"estimates": "Point", "released": "Point", "tracks": "LineString", "layer_styles": None}
    for layer in ("estimates", "released", "tracks"):
        assert pyogrio.read_info(path, layer=layer)["crs"] == "EPSG:4326"
    assert pyogrio.read_info(path, layer="released")["features"] == 3  # one of four was withheld
    said = pyogrio.read_info(path, layer="estimates")["dataset_metadata"]
    assert said["all_releases_from_two_paths_joined_throughout"] == "at most 4.49 times as likely"
    assert (said["mechanism"], said["exact"]) == ("k-norm, laplace, lattice, planar-isotropic", "false")
    styles = pyogrio.read_dataframe(path, layer="layer_styles")
    assert sorted(styles["f_table_name"]) == ["estimates", "released", "tracks"]
    for text in styles["styleQML"]:
        ElementTree.fromstring(text.partition(">")[2])
    (track,) = pyogrio.read_dataframe(path, layer="tracks").to_dict("records")
    assert (track["user_id"], track["moments"], track["epsilon"]) == ("003", 2, 1.5)
    assert list(track["geometry"].coords) == [(116.31, 39.91), (116.39, 39.92)]


def test_a_geopackage_is_one_of_version_1_3_with_times_to_the_millisecond(tmp_path, table):
    pytest.importorskip("pyogrio")
    path = tmp_path / "out.gpkg"
    write_releases(path, table)
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("PRAGMA user_version").fetchone() == (10300,)
        times = [
            *file.execute("SELECT last_change FROM gpkg_contents"),
            *file.execute("SELECT update_time FROM layer_styles"),
        ]
        times += file.execute("SELECT tracked_at FROM estimates").fetchall()
    assert len(times) > 6
    assert [time for (time,) in times if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", time)] == []


QGIS_READS = {
    "f_table_catalog": "TEXT", "f_table_schema": "TEXT", "f_table_name": "TEXT", "f_geometry_column": "TEXT",
    "styleName": "TEXT", "styleQML": "TEXT", "styleSLD": "TEXT", "useAsDefault": "BOOLEAN", "description": "TEXT",
    "owner": "TEXT", "ui": "TEXT", "update_time": "DATETIME",
}  # fmt: skip
"""The columns of the table of styles and their types, as QGIS makes it in a GeoPackage (lengths aside)."""


def test_the_table_of_styles_is_the_one_that_qgis_makes_and_names_layers_that_are_there(tmp_path, table):
    pytest.importorskip("pyogrio")
    path = tmp_path / "out.gpkg"
    write_releases(path, table)
    with closing(sqlite3.connect(path)) as file:
        columns = {name: kind for _, name, kind, *_ in file.execute("PRAGMA table_info(layer_styles)")}
        assert columns.pop("id") == "INTEGER"
        assert {name: kind.partition("(")[0] for name, kind in columns.items()} == QGIS_READS
        assert file.execute("SELECT data_type FROM gpkg_contents WHERE table_name = 'layer_styles'").fetchall() in (
            [], [("attributes",)]
        )  # fmt: skip
        there = dict(file.execute("SELECT table_name, column_name FROM gpkg_geometry_columns"))
        rows = "SELECT f_table_name, f_geometry_column, f_table_schema, useAsDefault, styleQML FROM layer_styles"
        styled = file.execute(rows).fetchall()
    assert {layer: geometry for layer, geometry, *_ in styled} == there
    for layer, _, schema, is_default, qml in styled:
        assert (schema or "", is_default) == ("", 1)
        root = ElementTree.fromstring(qml.partition(">")[2])
        (symbol,) = root.findall("./renderer-v2[@type='singleSymbol']/symbols/symbol")
        assert symbol.attrib["type"] == ("line" if layer == "tracks" else "marker")
        assert [one.attrib["class"] for one in symbol.findall("layer")]
        for option in symbol.findall("./layer/Option[@type='Map']/Option"):
            assert set(option.attrib) == {"type", "name", "value"}
        for driven in symbol.findall(".//Option[@name='properties']/Option"):
            assert {one.attrib["name"] for one in driven} == {"active", "expression", "type"}


def test_a_gap_of_more_than_an_hour_begins_another_trip(table):
    pytest.importorskip("geopandas")
    rows = ReleaseTable({name: np.repeat(array[:1], 6) for name, array in table.columns.items()})
    minutes = np.array([0, 5, 10, 80, 85, 300]).astype("timedelta64[m]").astype("timedelta64[us]")
    rows = ReleaseTable({**rows.columns, "time": rows["time"] + minutes})
    found = tracks(rows)
    assert found["trip"].tolist() == [0, 1]
    assert found["moments"].tolist() == [3, 2]


@pytest.mark.filterwarnings("ignore:The inplace keyword")
def test_trackintel_and_movingpandas_take_frames_as_they_are(table):
    trackintel, movingpandas = pytest.importorskip("trackintel"), pytest.importorskip("movingpandas")
    frame = to_geodataframe(table)
    positions = trackintel.Positionfixes(frame)
    assert positions["user_id"].tolist() == table["user"].tolist()
    several = ReleaseTable({name: np.repeat(array[:1], 4) for name, array in table.columns.items()})
    times = several["time"] + np.arange(0, 40, 10).astype("timedelta64[m]").astype("timedelta64[us]")
    several = ReleaseTable({**several.columns, "time": times})
    positions = trackintel.Positionfixes(to_geodataframe(several))
    _, stays = positions.generate_staypoints(time_threshold=20, include_last=True)
    assert len(stays) == 1
    found = to_trajectory_collection(table)
    assert isinstance(found, movingpandas.TrajectoryCollection)
    (one,) = found.trajectories
    assert (one.id, one.size()) == ("003", 2)
    assert list(one.to_linestring().coords) == [(116.31, 39.91), (116.39, 39.92)]


@pytest.mark.parametrize("suffix", [".parquet", ".geoparquet"])
def test_arrow_reads_columns_and_the_reference_system_of_geoparquet(tmp_path, table, suffix):
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / f"out{suffix}"
    write_releases(path, table)
    found = parquet.read_table(path)
    geo = json.loads(found.schema.metadata[b"geo"])
    assert geo["columns"]["geometry"]["crs"]["id"] == {"authority": "EPSG", "code": 4326}
    assert found.column_names == [*NAMES, "geometry"]
    assert str(found.schema.field("time").type) == "timestamp[us, tz=UTC]"
    assert found["epsilon"].to_pylist() == table["epsilon"].tolist()


@pytest.mark.parametrize("geometry", ["estimate", "released"])
def test_geoparquet_is_what_geopandas_would_write(tmp_path, table, geometry):
    geopandas = pytest.importorskip("geopandas")
    testing, parquet = pytest.importorskip("geopandas.testing"), pytest.importorskip("pyarrow.parquet")
    write_releases(tmp_path / "mine.parquet", table, geometry=geometry)
    frame = to_geodataframe(table, geometry).rename(columns={"user_id": "user", "tracked_at": "time"})
    frame.to_parquet(tmp_path / "theirs.parquet", index=False)
    mine, theirs = (geopandas.read_parquet(tmp_path / f"{whose}.parquet") for whose in ("mine", "theirs"))
    testing.assert_geodataframe_equal(mine, theirs)
    told = [
        json.loads(parquet.read_schema(tmp_path / f"{whose}.parquet").metadata[b"geo"]) for whose in ("mine", "theirs")
    ]
    assert told[0]["columns"] == told[1]["columns"]
    assert (tmp_path / "mine.parquet").stat().st_size < (tmp_path / "theirs.parquet").stat().st_size


def test_row_groups_of_parquet_have_at_most_a_hundred_thousand_rows(tmp_path, table):
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = 100_001
    many = ReleaseTable({name: np.resize(table[name], rows) for name in NAMES})
    write_releases(tmp_path / "many.parquet", many)
    about = parquet.read_metadata(tmp_path / "many.parquet")
    assert [about.row_group(group).num_rows for group in range(about.num_row_groups)] == [100_000, 1]
    assert read_releases(tmp_path / "many.parquet") == many


def test_gpxpy_reads_one_track_per_user_with_times_in_utc(tmp_path, table):
    gpxpy = pytest.importorskip("gpxpy")
    path = tmp_path / "out.gpx"
    write_releases(path, table)
    document = gpxpy.parse(path.read_text(encoding="utf-8"))
    tracks = [(track.name, track.get_points_no()) for track in document.tracks]
    assert tracks == [("003", 2), ('né, "quoted"', 1), ("004", 1)]
    first = document.tracks[0].segments[0].points[0]
    assert first.time.isoformat() == "2009-10-11T14:04:30+00:00"
    assert first.latitude == pytest.approx(table["estimate_latitude"][0], abs=1e-9)
    assert (first.elevation, first.comment) == (None, "expected to be 128 m off")
    assert "EPSG:4326" in document.description


def test_csv_names_the_reference_system_in_every_row(tmp_path, table):
    path = tmp_path / "out.csv"
    write_releases(path, table)
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == [*NAMES, "crs"]
    assert {row["crs"] for row in rows} == {"EPSG:4326"}
    assert rows[0]["time"] == "2009-10-11T14:04:30Z"
    assert float(rows[1]["x_km"]) == 0.1 + 0.2
    assert rows[3]["latitude"] == ""
    assert math.isinf(float(rows[1]["constrained_factor"]))


def test_geojson_is_strict_json_with_a_null_where_no_place_is(tmp_path, table):
    path = tmp_path / "out.geojson"
    write_releases(path, table)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    features = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)["features"]
    assert features[0]["geometry"]["coordinates"] == [table["estimate_longitude"][0], table["estimate_latitude"][0]]
    assert features[3]["properties"]["latitude"] is None
    assert features[1]["properties"]["constrained_factor"] is None


def test_an_unknown_extension_is_refused_with_those_there_are(tmp_path, table):
    with pytest.raises(ConfigurationError, match=r"'.xlsx'; use .gpkg, .geojson"):
        write_releases(tmp_path / "out.xlsx", table)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("suffix", sorted(FORMATS))
def test_an_existing_file_is_not_touched(tmp_path, table, suffix):
    path = tmp_path / f"out{suffix}"
    path.write_text("mine")
    with pytest.raises(OutputError, match="exists"):
        write_releases(path, table)
    assert path.read_text() == "mine"


@pytest.mark.parametrize("suffix", sorted(FORMATS))
def test_a_missing_an_empty_and_a_cut_file_are_named(tmp_path, table, suffix):
    path = tmp_path / f"out{suffix}"
    with pytest.raises(DataFileError, match=f"out{suffix}: there is no such file"):
        read_releases(path)
    path.write_bytes(b"")
    with pytest.raises(DataFileError, match=f"out{suffix}: is empty"):
        read_releases(path)
    write_releases(path, table, overwrite=True)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(DataFileError, match=f"out{suffix}: does not hold releases") as caught:
        read_releases(path)
    assert "\n" not in str(caught.value)


def test_a_file_of_something_else_is_refused(tmp_path):
    path = tmp_path / "out.csv"
    path.write_text("name,value\na,1\n")
    with pytest.raises(DataFileError, match="does not hold releases"):
        read_releases(path)


def test_a_user_named_by_digits_stays_a_text(tmp_path, table):
    for suffix in FORMATS:
        path = tmp_path / f"out{suffix}"
        write_releases(path, table)
        assert read_releases(path)["user"][0] == "003"


def test_numbers_of_every_magnitude_survive_csv(tmp_path):
    values = np.random.default_rng(5).normal(size=1000) * 10.0 ** np.arange(-50, 50).repeat(10)
    columns = {
        column.name: {
            "text": ["a"] * 1000,
            "time": np.full(1000, "2020-01-01", dtype="datetime64[us]"),
            "number": values,
            "count": [1] * 1000,
            "flag": [True] * 1000,
        }[column.kind]
        for column in COLUMNS
    }
    table = ReleaseTable(columns | {"epsilon": np.abs(values)})
    write_releases(tmp_path / "out.csv", table)
    assert read_releases(tmp_path / "out.csv") == table


def test_reading_a_geopackage_leaves_nothing_beside_it(tmp_path, table):
    write_releases(tmp_path / "out.gpkg", table)
    before = (tmp_path / "out.gpkg").read_bytes()
    assert read_releases(tmp_path / "out.gpkg") == table
    assert [path.name for path in tmp_path.iterdir()] == ["out.gpkg"]
    assert (tmp_path / "out.gpkg").read_bytes() == before


@pytest.mark.parametrize(
    ("suffix", "library"), [(".gpkg", "pyogrio"), (".gpkg", "geopandas"), (".gpx", "gpxpy"), (".parquet", "pyarrow")]
)
def test_a_library_that_is_missing_is_noticed_before_anything_is_released(tmp_path, monkeypatch, suffix, library):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingDependencyError, match=rf"^{library} is not installed; .* pip install 'dphmm\[files\]'"):
        check_format(tmp_path / f"out{suffix}")
    assert check_format(tmp_path / "out.csv").name == "out.csv"


HOSTILE = {
    "a view that never ends": "CREATE VIEW releases AS "
    "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x FROM n) SELECT {} FROM n",
    "a virtual table": "CREATE VIRTUAL TABLE releases USING fts5({})",
    "a text that a column makes": "CREATE TABLE releases (n, {} AS (printf('%.*c', 100000000, 'x')))",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_geopackage_of_a_stranger_is_read_without_running_what_it_says(tmp_path, name):
    path = tmp_path / "out.gpkg"
    columns = ", ".join(NAMES)
    if name == "a text that a column makes":
        columns = ", ".join(NAMES[1:]) + ", user"
    else:
        columns = ", ".join(f"1 AS {one}" for one in NAMES) if "VIEW" in HOSTILE[name] else columns
    with closing(sqlite3.connect(path)) as made:
        made.execute(HOSTILE[name].format(columns))
        if "n," in HOSTILE[name]:
            made.execute("INSERT INTO releases (n) VALUES (1)")
        made.commit()
    with pytest.raises(DataFileError, match="does not hold releases"):
        read_releases(path)


def test_a_name_that_gpx_cannot_say_is_refused_and_other_formats_keep_it(tmp_path, table):
    named = ReleaseTable({**table.columns, "user": ["a\x1b[2J", "=1+1", "\t@", "né"]})
    with pytest.raises(OutputError, match="holds a control character, which GPX cannot"):
        write_releases(tmp_path / "out.gpx", named)
    for suffix in sorted(set(FORMATS) - {".gpx"}):
        write_releases(tmp_path / f"out{suffix}", named)
        assert read_releases(tmp_path / f"out{suffix}") == named
    assert not (tmp_path / "out.gpx").exists()


def test_duckdb_reads_a_table_of_releases_as_plain_columns(table, tmp_path):
    """Each place is there in degrees, beside the geometry, and times in UTC to the microsecond."""
    duckdb = pytest.importorskip("duckdb")
    write_releases(tmp_path / "r.parquet", table)
    found = duckdb.sql(
        f"select user, epoch_us(time), latitude, longitude, estimate_latitude from '{tmp_path / 'r.parquet'}'"
    ).fetchall()
    order = range(len(table))
    assert [row[0] for row in found] == [table["user"][k] for k in order]
    assert [row[1] for row in found] == [int(table["time"][k].astype("M8[us]").astype(int)) for k in order]
    for at, name in ((2, "latitude"), (3, "longitude"), (4, "estimate_latitude")):
        told = [np.nan if row[at] is None else row[at] for row in found]
        assert told == pytest.approx([table[name][k] for k in order], nan_ok=True, abs=0)


def test_frames_of_the_shape_of_scikit_mobility_read_back_as_the_same_places(table):
    for geometry, prefix in (("estimate", "estimate_"), ("released", "")):
        frame = to_scikit_mobility(table, geometry)
        assert frame.columns[:4].tolist() == ["uid", "datetime", "lat", "lng"]
        known = np.isfinite(table[f"{prefix}latitude"])
        read = {
            (one.user, time): (x, y)
            for one in read_frame(frame).trajectories
            for time, x, y in zip(one.times.tolist(), one.latitude.tolist(), one.longitude.tolist(), strict=True)
        }
        names = ("user", "time", f"{prefix}latitude", f"{prefix}longitude")
        said = {(u, t): (x, y) for u, t, x, y in zip(*(table[name][known].tolist() for name in names), strict=True)}
        assert read == said
