"""Every format, compared with the library of its users and with its own reader."""

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
from dphmm.writers.geopackage import split_into_trips

NAMES = [column.name for column in COLUMNS]


@pytest.mark.parametrize("suffix", sorted(set(FORMATS) - {".gpx"}))
def test_table_reads_back_bit_for_bit(tmp_path, table, suffix):
    path = tmp_path / f"out{suffix}"
    write_releases(path, table)
    assert read_releases(path) == table


@pytest.mark.parametrize("suffix", sorted(FORMATS))
def test_equal_tables_give_equal_files_at_any_time(tmp_path, table, suffix):
    """A GeoPackage contains the time of its layer's last change, to the millisecond."""
    files = [tmp_path / f"{name}{suffix}" for name in ("a", "b")]
    for path in files:
        write_releases(path, table)
        time.sleep(0.002)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_gpx_keeps_all_columns_of_rows_with_requested_place(tmp_path, table):
    for geometry, kept in (("estimate", table), ("released", table.select(table.placed))):
        path = tmp_path / f"{geometry}.gpx"
        write_releases(path, table, geometry=geometry)
        table_read = read_releases(path)
        order = [table_read["user"].tolist().index(user) for user in kept["user"]]
        assert sorted(table_read["user"]) == sorted(kept["user"])
        assert len(order) == len(kept)
        for name in NAMES:
            assert sorted(map(str, table_read[name].tolist())) == sorted(map(str, kept[name].tolist()))


@pytest.mark.parametrize("suffix", sorted(FORMATS))
def test_empty_table_reads_back(tmp_path, table, suffix):
    path = tmp_path / f"out{suffix}"
    write_releases(path, table.select(np.zeros(4, dtype=bool)))
    assert len(read_releases(path)) == 0


@pytest.mark.parametrize("suffix", [".gpkg", ".geojson"])
def test_gdal_reads_points_attributes_and_reference_system(tmp_path, table, suffix):
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
def test_geometry_is_released_places_if_requested(tmp_path, table, suffix):
    geopandas = pytest.importorskip("geopandas")
    path = tmp_path / f"out{suffix}"
    write_releases(path, table, geometry="released")
    frame = geopandas.read_parquet(path) if suffix == ".parquet" else geopandas.read_file(path)
    assert frame.geometry.isna().tolist() == [False, False, False, True]
    assert frame.geometry[:3].x.tolist() == table["longitude"][:3].tolist()
    assert frame.geometry[:3].y.tolist() == table["latitude"][:3].tolist()
    assert read_releases(path) == table
    with pytest.raises(InvalidInputError, match=r"geometry .*'both'"):
        write_releases(path, table, overwrite=True, geometry="both")


def test_geopackage_has_layers_and_styles(tmp_path, table):
    pyogrio = pytest.importorskip("pyogrio")
    path = tmp_path / "out.gpkg"
    write_releases(path, table)
    layers = dict(pyogrio.list_layers(path).tolist())
    assert layers == {"estimates": "Point", "released": "Point", "tracks": "LineString", "layer_styles": None}
    for layer in ("estimates", "released", "tracks"):
        assert pyogrio.read_info(path, layer=layer)["crs"] == "EPSG:4326"
    assert pyogrio.read_info(path, layer="released")["features"] == 3  # one of four releases is withheld
    metadata = pyogrio.read_info(path, layer="estimates")["dataset_metadata"]
    assert metadata["likelihood_ratio_total"] == "at most 4.49"
    assert (metadata["mechanism"], metadata["is_exact"]) == ("k-norm, laplace, lattice, planar-isotropic", "false")
    styles = pyogrio.read_dataframe(path, layer="layer_styles")
    assert sorted(styles["f_table_name"]) == ["estimates", "released", "tracks"]
    for text in styles["styleQML"]:
        ElementTree.fromstring(text.partition(">")[2])
    (track,) = pyogrio.read_dataframe(path, layer="tracks").to_dict("records")
    assert (track["user_id"], track["num_timesteps"], track["epsilon"]) == ("003", 2, 1.5)
    assert list(track["geometry"].coords) == [(116.31, 39.91), (116.39, 39.92)]


@pytest.mark.parametrize(
    ("hours", "lengths"), [((1, 87_600), [2, 1]), ((3, 3, 4, 9), [4, 1]), ((1, 3, 3), [4]), ((1, 1, 9, 9), [3, 1, 1])]
)
def test_trips_are_split_at_gaps_above_the_lower_median(hours, lengths):
    times = np.datetime64("2024-03-07", "us") + np.cumsum([0, *hours]) * np.timedelta64(1, "h")
    assert [len(rows) for rows in split_into_trips(np.arange(len(times)), times)] == lengths


def test_geopackage_total_epsilon_is_rounded_up(tmp_path, table):
    pyogrio = pytest.importorskip("pyogrio")
    write_releases(tmp_path / "out.gpkg", ReleaseTable({**table.columns, "epsilon": np.full(4, 1.0000001)}))
    metadata = pyogrio.read_info(tmp_path / "out.gpkg", layer="estimates")["dataset_metadata"]
    assert float(metadata["max_epsilon_total"]) >= 2.0000002


def test_geopackage_has_version_1_3_and_millisecond_times(tmp_path, table):
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


# The columns of the table of styles and their types in a GeoPackage of QGIS, without lengths.
QGIS_READS = {
    "f_table_catalog": "TEXT", "f_table_schema": "TEXT", "f_table_name": "TEXT", "f_geometry_column": "TEXT",
    "styleName": "TEXT", "styleQML": "TEXT", "styleSLD": "TEXT", "useAsDefault": "BOOLEAN", "description": "TEXT",
    "owner": "TEXT", "ui": "TEXT", "update_time": "DATETIME",
}  # fmt: skip


def test_table_of_styles_equals_qgis_table_and_names_existing_layers(tmp_path, table):
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
        assert [layer_element.attrib["class"] for layer_element in symbol.findall("layer")]
        for option in symbol.findall("./layer/Option[@type='Map']/Option"):
            assert set(option.attrib) == {"type", "name", "value"}
        for driven in symbol.findall(".//Option[@name='properties']/Option"):
            assert {element.attrib["name"] for element in driven} == {"active", "expression", "type"}


def test_gap_of_more_than_an_hour_starts_new_trip(table):
    pytest.importorskip("geopandas")
    rows = ReleaseTable({name: np.repeat(array[:1], 6) for name, array in table.columns.items()})
    minutes = np.array([0, 5, 10, 80, 85, 300]).astype("timedelta64[m]").astype("timedelta64[us]")
    rows = ReleaseTable({**rows.columns, "time": rows["time"] + minutes})
    frame = tracks(rows)
    assert frame["trip"].tolist() == [0, 1]
    assert frame["num_timesteps"].tolist() == [3, 2]


def test_tracks_across_date_line_are_split_at_it(table):
    pytest.importorskip("geopandas")
    longitude = np.array([179.97, 179.99, -179.99, 179.98, 180.0, -180.0, -179.98, -179.96, -0.1, 0.1])
    rows = ReleaseTable({name: np.repeat(array[:1], len(longitude)) for name, array in table.columns.items()})
    times = rows["time"] + np.arange(len(longitude)) * np.timedelta64(300, "s").astype("timedelta64[us]")
    frame = tracks(ReleaseTable({**rows.columns, "time": times, "estimate_longitude": longitude}))
    lines = [[place[0] for place in line.coords] for line in frame.geometry]
    assert lines == [[179.97, 179.99], [179.98, 180.0], [-180.0, -179.98, -179.96, -0.1, 0.1]]
    assert frame["num_timesteps"].tolist() == [2, 2, 5]
    assert frame["trip"].tolist() == [0, 0, 0]
    assert frame["epsilon"].tolist() == pytest.approx(rows["epsilon"][0] * np.array([2, 2, 5]))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The inplace keyword")
def test_trackintel_and_movingpandas_accept_frames(table):
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
    collection = to_trajectory_collection(table)
    assert isinstance(collection, movingpandas.TrajectoryCollection)
    (trajectory,) = collection.trajectories
    assert (trajectory.id, trajectory.size()) == ("003", 2)
    assert list(trajectory.to_linestring().coords) == [(116.31, 39.91), (116.39, 39.92)]


@pytest.mark.parametrize("suffix", [".parquet", ".geoparquet"])
def test_arrow_reads_columns_and_reference_system_of_geoparquet(tmp_path, table, suffix):
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / f"out{suffix}"
    write_releases(path, table)
    table_read = parquet.read_table(path)
    geo = json.loads(table_read.schema.metadata[b"geo"])
    assert geo["columns"]["geometry"]["crs"]["id"] == {"authority": "EPSG", "code": 4326}
    assert table_read.column_names == [*NAMES, "geometry"]
    assert str(table_read.schema.field("time").type) == "timestamp[us, tz=UTC]"
    assert table_read["epsilon"].to_pylist() == table["epsilon"].tolist()


@pytest.mark.parametrize("geometry", ["estimate", "released"])
def test_geoparquet_equals_file_of_geopandas(tmp_path, table, geometry):
    geopandas = pytest.importorskip("geopandas")
    testing, parquet = pytest.importorskip("geopandas.testing"), pytest.importorskip("pyarrow.parquet")
    write_releases(tmp_path / "mine.parquet", table, geometry=geometry)
    frame = to_geodataframe(table, geometry).rename(columns={"user_id": "user", "tracked_at": "time"})
    frame.to_parquet(tmp_path / "theirs.parquet", index=False)
    ours_read, geopandas_read = (geopandas.read_parquet(tmp_path / f"{name}.parquet") for name in ("mine", "theirs"))
    testing.assert_geodataframe_equal(ours_read, geopandas_read)
    metadata = [
        json.loads(parquet.read_schema(tmp_path / f"{name}.parquet").metadata[b"geo"]) for name in ("mine", "theirs")
    ]
    assert metadata[0]["columns"] == metadata[1]["columns"]
    assert (tmp_path / "mine.parquet").stat().st_size < (tmp_path / "theirs.parquet").stat().st_size


@pytest.mark.slow
def test_parquet_row_groups_have_at_most_100_000_rows(tmp_path, table):
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = 100_001
    many = ReleaseTable({name: np.resize(table[name], rows) for name in NAMES})
    write_releases(tmp_path / "many.parquet", many)
    about = parquet.read_metadata(tmp_path / "many.parquet")
    assert [about.row_group(group).num_rows for group in range(about.num_row_groups)] == [100_000, 1]
    assert read_releases(tmp_path / "many.parquet") == many


def test_gpxpy_reads_one_track_per_user_with_utc_times(tmp_path, table):
    gpxpy = pytest.importorskip("gpxpy")
    path = tmp_path / "out.gpx"
    write_releases(path, table)
    document = gpxpy.parse(path.read_text(encoding="utf-8"))
    tracks = [(track.name, track.get_points_no()) for track in document.tracks]
    assert tracks == [("003", 2), ('né, "quoted"', 1), ("004", 1)]
    first = document.tracks[0].segments[0].points[0]
    assert first.time.isoformat() == "2009-10-11T14:04:30+00:00"
    assert first.latitude == pytest.approx(table["estimate_latitude"][0], abs=1e-9)
    assert (first.elevation, first.comment) == (None, "expected error 128 m")
    assert "EPSG:4326" in document.description


def test_csv_has_reference_system_in_every_row(tmp_path, table):
    path = tmp_path / "out.csv"
    write_releases(path, table)
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == [*NAMES, "crs"]
    assert {row["crs"] for row in rows} == {"EPSG:4326"}
    assert rows[0]["time"] == "2009-10-11T14:04:30Z"
    assert float(rows[1]["x_km"]) == 0.1 + 0.2
    assert rows[3]["latitude"] == ""
    assert math.isinf(float(rows[1]["constrained_dp_factor"]))


def test_geojson_is_strict_json_with_null_for_missing_place(tmp_path, table):
    path = tmp_path / "out.geojson"
    write_releases(path, table)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    features = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)["features"]
    assert features[0]["geometry"]["coordinates"] == [table["estimate_longitude"][0], table["estimate_latitude"][0]]
    assert features[3]["properties"]["latitude"] is None
    assert features[1]["properties"]["constrained_dp_factor"] is None


def test_unknown_extension_raises_with_supported_extensions(tmp_path, table):
    with pytest.raises(ConfigurationError, match=r"\.gpkg.*'\.xlsx'"):
        write_releases(tmp_path / "out.xlsx", table)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("suffix", sorted(FORMATS))
def test_existing_file_raises_and_stays_unchanged(tmp_path, table, suffix):
    path = tmp_path / f"out{suffix}"
    path.write_text("mine")
    with pytest.raises(OutputError, match="exists"):
        write_releases(path, table)
    assert path.read_text() == "mine"


@pytest.mark.parametrize("error", ["DataSourceError", "FeatureError"])
def test_error_of_gdal_names_file_and_leaves_none(tmp_path, table, monkeypatch, error):
    """On a full disk GDAL reports either."""
    pyogrio = pytest.importorskip("pyogrio")

    def fail(*_, **__):
        raise getattr(pyogrio.errors, error)("Failed to commit transaction")

    monkeypatch.setattr(pyogrio, "write_dataframe", fail)
    with pytest.raises(OutputError, match=r"/out\.gpkg: GDAL cannot write it \(Failed to commit transaction\)"):
        write_releases(tmp_path / "out.gpkg", table)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("suffix", sorted(FORMATS))
def test_missing_empty_or_truncated_file_raises(tmp_path, table, suffix):
    path = tmp_path / f"out{suffix}"
    with pytest.raises(DataFileError, match=f"out{suffix}: .*no such file"):
        read_releases(path)
    path.write_bytes(b"")
    with pytest.raises(DataFileError, match=f"out{suffix}: .*empty"):
        read_releases(path)
    write_releases(path, table, overwrite=True)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(DataFileError, match=f"out{suffix}: .*releases") as caught:
        read_releases(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("crs", ["EPSG:3857", "EPSG:43", ""])
def test_other_coordinate_system_is_refused(tmp_path, table, crs):
    path = tmp_path / "out.csv"
    write_releases(path, table)
    path.write_text(path.read_text().replace("EPSG:4326", crs))
    with pytest.raises(DataFileError, match=rf"crs must be EPSG:4326, got '{crs}'"):
        read_releases(path)


def test_missing_file_is_reported_before_its_extension(tmp_path):
    with pytest.raises(DataFileError, match=r"no\.db: there is no such file"):
        read_releases(tmp_path / "no.db")
    (tmp_path / "yes.db").write_text("text")
    with pytest.raises(ConfigurationError, match="extension of a format must be one of"):
        read_releases(tmp_path / "yes.db")


def test_csv_without_releases_raises(tmp_path):
    path = tmp_path / "out.csv"
    path.write_text("name,value\na,1\n")
    with pytest.raises(DataFileError, match=r"out\.csv: .*releases"):
        read_releases(path)


def test_user_named_by_digits_reads_back_as_text(tmp_path, table):
    for suffix in FORMATS:
        path = tmp_path / f"out{suffix}"
        write_releases(path, table)
        assert read_releases(path)["user"][0] == "003"


def test_numbers_of_every_magnitude_read_back_from_csv(tmp_path):
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


def test_reading_geopackage_leaves_no_other_files(tmp_path, table):
    write_releases(tmp_path / "out.gpkg", table)
    before = (tmp_path / "out.gpkg").read_bytes()
    assert read_releases(tmp_path / "out.gpkg") == table
    assert [path.name for path in tmp_path.iterdir()] == ["out.gpkg"]
    assert (tmp_path / "out.gpkg").read_bytes() == before


@pytest.mark.parametrize(
    ("suffix", "library"), [(".gpkg", "pyogrio"), (".gpkg", "geopandas"), (".gpx", "gpxpy"), (".parquet", "pyarrow")]
)
def test_check_format_raises_if_library_is_missing(tmp_path, monkeypatch, suffix, library):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingDependencyError, match=rf"^{library} .*'dphmm\[files\]'"):
        check_format(tmp_path / f"out{suffix}")
    assert check_format(tmp_path / "out.csv").name == "out.csv"


HOSTILE = {
    "a view that never ends": "CREATE VIEW releases AS "
    "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x FROM n) SELECT {} FROM n",
    "a virtual table": "CREATE VIRTUAL TABLE releases USING fts5({})",
    "a text that a column makes": "CREATE TABLE releases (n, {} AS (printf('%.*c', 100000000, 'x')))",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_geopackage_with_view_or_computed_column_raises(tmp_path, name):
    path = tmp_path / "out.gpkg"
    columns = ", ".join(NAMES)
    if name == "a text that a column makes":
        columns = ", ".join(NAMES[1:]) + ", user"
    else:
        columns = (
            ", ".join(f"1 AS {name_of_column}" for name_of_column in NAMES) if "VIEW" in HOSTILE[name] else columns
        )
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(HOSTILE[name].format(columns))
        if "n," in HOSTILE[name]:
            connection.execute("INSERT INTO releases (n) VALUES (1)")
        connection.commit()
    with pytest.raises(DataFileError, match=r": .*releases"):
        read_releases(path)


def test_control_character_in_user_raises_for_gpx_only(tmp_path, table):
    named = ReleaseTable({**table.columns, "user": ["a\x1b[2J", "=1+1", "\t@", "né"]})
    with pytest.raises(OutputError, match="control character"):
        write_releases(tmp_path / "out.gpx", named)
    for suffix in sorted(set(FORMATS) - {".gpx"}):
        write_releases(tmp_path / f"out{suffix}", named)
        assert read_releases(tmp_path / f"out{suffix}") == named
    assert not (tmp_path / "out.gpx").exists()


@pytest.mark.slow
def test_duckdb_reads_releases_as_plain_columns(table, tmp_path):
    """Each place is in degrees, in addition to the geometry, and times are UTC."""
    duckdb = pytest.importorskip("duckdb")
    write_releases(tmp_path / "r.parquet", table)
    rows = duckdb.sql(
        f"select user, epoch_us(time), latitude, longitude, estimate_latitude from '{tmp_path / 'r.parquet'}'"
    ).fetchall()
    order = range(len(table))
    assert [row[0] for row in rows] == [table["user"][k] for k in order]
    assert [row[1] for row in rows] == [int(table["time"][k].astype("M8[us]").astype(int)) for k in order]
    for at, name in ((2, "latitude"), (3, "longitude"), (4, "estimate_latitude")):
        values = [np.nan if row[at] is None else row[at] for row in rows]
        assert values == pytest.approx([table[name][k] for k in order], nan_ok=True, abs=0)


def test_scikit_mobility_frames_read_back_with_same_places(table):
    for geometry, prefix in (("estimate", "estimate_"), ("released", "")):
        frame = to_scikit_mobility(table, geometry)
        assert frame.columns[:4].tolist() == ["uid", "datetime", "lat", "lng"]
        placed = np.isfinite(table[f"{prefix}latitude"])
        read = {
            (trajectory.user, time): (x, y)
            for trajectory in read_frame(frame).trajectories
            for time, x, y in zip(
                trajectory.times.tolist(), trajectory.latitude.tolist(), trajectory.longitude.tolist(), strict=True
            )
        }
        names = ("user", "time", f"{prefix}latitude", f"{prefix}longitude")
        places = {(u, t): (x, y) for u, t, x, y in zip(*(table[name][placed].tolist() for name in names), strict=True)}
        assert read == places
