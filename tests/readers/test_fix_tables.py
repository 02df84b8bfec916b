"""Tables: all formats and usual column names give equal trajectories. Errors have places."""

from __future__ import annotations

import json
import sys

import geopandas as gpd
import numpy as np
import pandas as pd
import pytest
import shapely
from hypothesis import assume, given
from hypothesis import strategies as st

from dphmm.errors import ConfigurationError, DataFileError, MissingDependencyError
from dphmm.readers import read

TIMES = ["2024-03-07T02:00:00Z", "2024-03-07T04:05:00+02:00", "2024-03-07T02:10:00"]
EXACT = ["2024-03-07T02:00:00", "2024-03-07T02:05:00", "2024-03-07T02:10:00"]
LATITUDE = [45.0, 45.001, 45.002]
LONGITUDE = [-30.0, -30.001, -30.002]


def check(result, user="p1"):
    (trajectory,) = result.trajectories
    assert trajectory.user == user
    assert trajectory.times.astype("M8[s]").astype(str).tolist() == EXACT
    assert trajectory.latitude.tolist() == LATITUDE
    assert trajectory.longitude.tolist() == LONGITUDE


def build_csv(names, delimiter=",", end="\n"):
    rows = [["p1", *row] for row in zip(TIMES, map(str, LATITUDE), map(str, LONGITUDE), strict=True)]
    return end.join(delimiter.join(row) for row in [names, *rows]) + end


def write(tmp_path, text, name="t.csv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("user", ["user_id", "uid", "user"])
@pytest.mark.parametrize("time", ["tracked_at", "datetime", "timestamp", "time"])
@pytest.mark.parametrize(("lat", "lon"), [("lat", "lon"), ("lat", "lng"), ("latitude", "longitude"), ("LAT", "Lon")])
def test_usual_column_names_are_recognized(tmp_path, user, time, lat, lon):
    check(read(write(tmp_path, build_csv([user, time, lat, lon]))))


@pytest.mark.parametrize(("delimiter", "end", "start"), [(";", "\r\n", ""), ("\t", "\n", "\ufeff"), (",", "\n\n", "")])
def test_other_separators_line_ends_and_byte_order_mark_are_accepted(tmp_path, delimiter, end, start):
    check(read(write(tmp_path, start + build_csv(["uid", "time", "lat", "lon"], delimiter, end))))


def test_explicit_columns_take_precedence(tmp_path):
    text = build_csv(["who", "when", "north", "east"])
    names = {"user": "who", "time": "when", "latitude": "north", "longitude": "east"}
    check(read(write(tmp_path, text), columns=names))
    with pytest.raises(DataFileError, match=r"column of times.*who, when, north, east"):
        read(write(tmp_path, text))
    with pytest.raises(DataFileError, match="column of locations"):
        read(write(tmp_path, text), columns={"time": "when"})
    with pytest.raises(DataFileError, match=r"column 'ost'.*who, when"):
        read(write(tmp_path, text), columns=names | {"longitude": "ost"})
    with pytest.raises(ConfigurationError, match="speed"):
        read(write(tmp_path, text), columns={"speed": "who"})


def test_table_without_users_is_one_user_named_by_file_or_caller(tmp_path):
    text = build_csv(["_", "time", "lat", "lon"])
    check(read(write(tmp_path, text, "ada.csv")), "ada")
    check(read(write(tmp_path, text), user="grace"), "grace")


def test_csv_with_text_geometry_is_read(tmp_path):
    lines = [f"p1,{t},POINT ({lon} {lat})" for t, lat, lon in zip(TIMES, LATITUDE, LONGITUDE, strict=True)]
    check(read(write(tmp_path, "\n".join(["user_id,tracked_at,geom", *lines]))))


def build_frame():
    times = pd.to_datetime(pd.Series(EXACT)).dt.tz_localize("UTC").dt.tz_convert("Asia/Shanghai")
    return pd.DataFrame({"user_id": "p1", "tracked_at": times, "speed": 7.0, "lat": LATITUDE, "lon": LONGITUDE})


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_parquet_timestamps_of_every_unit_are_converted_to_utc(tmp_path, unit):
    table = build_frame()
    table["tracked_at"] = table["tracked_at"].dt.as_unit(unit)
    table.to_parquet(tmp_path / "t.parquet")
    check(read(tmp_path / "t.parquet"))


def test_parquet_with_naive_or_text_times_and_numeric_users_is_read(tmp_path):
    table = build_frame()
    table["tracked_at"] = table["tracked_at"].dt.tz_convert("UTC").dt.tz_localize(None)
    table["user_id"] = 1.0
    table.to_parquet(tmp_path / "naive.parquet")
    check(read(tmp_path / "naive.parquet"), "1")
    table["tracked_at"] = TIMES
    table.to_parquet(tmp_path / "text.parquet")
    check(read(tmp_path / "text.parquet"), "1")


@pytest.mark.parametrize("crs", ["EPSG:4326", None])
def test_geoparquet_in_degrees_is_read_exactly(tmp_path, crs):
    geo_frame = gpd.GeoDataFrame(
        build_frame().drop(columns=["lat", "lon"]), geometry=gpd.points_from_xy(LONGITUDE, LATITUDE), crs=crs
    )
    geo_frame.to_parquet(tmp_path / "g.parquet")
    check(read(tmp_path / "g.parquet"))


def test_geoparquet_in_other_reference_system_is_converted(tmp_path):
    geo_frame = gpd.GeoDataFrame(
        build_frame().drop(columns=["lat", "lon"]), geometry=gpd.points_from_xy(LONGITUDE, LATITUDE), crs="EPSG:4326"
    ).to_crs("EPSG:32626")
    geo_frame.to_parquet(tmp_path / "g.parquet")
    (result,) = read(tmp_path / "g.parquet").trajectories
    assert np.allclose(result.latitude, LATITUDE, rtol=0, atol=1e-8)
    assert np.allclose(result.longitude, LONGITUDE, rtol=0, atol=1e-8)


def test_geojson_of_geopandas_is_read(tmp_path):
    geo_frame = gpd.GeoDataFrame(
        {"user_id": "p1", "tracked_at": TIMES, "speed": 7.0},
        geometry=gpd.points_from_xy(LONGITUDE, LATITUDE),
        crs="EPSG:4326",
    )
    geo_frame.to_file(tmp_path / "g.geojson", driver="GeoJSON")
    check(read(tmp_path / "g.geojson"))


@given(st.lists(st.tuples(st.integers(0, 10**9), st.floats(-90, 90), st.floats(-180, 180)), min_size=1, max_size=8))
def test_csv_and_geojson_round_trip_every_float(tmp_path_factory, rows):
    rows = {second: (lat, lon) for second, lat, lon in rows if lat or lon}  # (0, 0) is refused
    assume(rows)
    folder = tmp_path_factory.mktemp("round")
    stamp = {second: f"{np.datetime64(second, 's')}Z" for second in rows}
    text = "time,lat,lon\n" + "".join(f"{stamp[s]},{lat!r},{lon!r}\n" for s, (lat, lon) in rows.items())
    features = [
        {"properties": {"time": stamp[s]}, "geometry": {"type": "Point", "coordinates": [lon, lat]}}
        for s, (lat, lon) in rows.items()
    ]
    collection = json.dumps({"type": "FeatureCollection", "features": features})
    for path in (write(folder, text), write(folder, collection, "t.geojson")):
        (trajectory,) = read(path).trajectories
        places = list(zip(trajectory.latitude.tolist(), trajectory.longitude.tolist(), strict=True))
        assert places == [rows[second] for second in sorted(rows)]


GOOD = "p1,2024-03-07T02:00:00Z,45.0,-30.0\n"


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("p1,2024-03-07,45.0\n", "has 3 fields, but the header has 4"),
        ("p1,1709776800,45.0,-30.0\n", "time is '1709776800'; set time_format (--time-format) = 's' if it counts s"),
        ("p1,2024-03-07T02:00:00Z,400.17,-30.0\n", "latitude must be in [-90, 90], got 400.17"),
        ("p1,2024-03-07T02:00:00Z,,-30.0\n", "latitude must be a decimal number, got ''"),
        (",2024-03-07T02:00:00Z,45.0,-30.0\n", "user must not be empty"),
        ('p1,2024-03-07T02:00:00Z,45.0,"nan"\n', "longitude must be in [-180, 180], got nan"),
    ],
)
def test_malformed_row_raises_or_is_counted(tmp_path, bad, message):
    path = write(tmp_path, "uid,time,lat,lon\n" + GOOD + "\n" + bad + GOOD)
    with pytest.raises(DataFileError) as caught:
        read(path, "table")
    assert str(caught.value).startswith(f"{path}, line 4: {message}")
    result = read(path, "table", skip_bad=True)
    assert (result.points, result.merged, result.skipped) == (1, 1, {str(path): 1})


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        (
            {"properties": {"time": 1709776800000}, "geometry": {"type": "Point", "coordinates": [0, 0]}},
            "time is '17097",
        ),
        ({"properties": {"time": TIMES[0]}, "geometry": None}, "geometry must be a point, got nothing"),
        (
            {"properties": {"time": TIMES[0]}, "geometry": {"type": "Point", "coordinates": []}},
            "geometry must be a point, got an empty Point",
        ),
        ({"properties": {"time": TIMES[0]}, "geometry": {"type": "Point"}}, "geometry is invalid"),
        (
            {"properties": {"time": TIMES[0]}, "geometry": {"type": "LineString", "coordinates": [[0, 0], [1, 1]]}},
            "a Line",
        ),
        (
            {"properties": {"time": TIMES[0]}, "geometry": {"type": "Point", "coordinates": [0, 91]}},
            "latitude must be in [-90, 90], got 91",
        ),
        (
            {"properties": None, "geometry": {"type": "Point", "coordinates": [0, 9]}},
            "time must be ISO 8601 such as 2009-10-11T14:04:30Z, got no value",
        ),
    ],
)
def test_malformed_feature_raises_or_is_skipped(tmp_path, feature, message):
    good = {"properties": {"time": TIMES[0]}, "geometry": {"type": "Point", "coordinates": [-30, 45]}}
    path = write(tmp_path, json.dumps({"type": "FeatureCollection", "features": [good, feature]}), "t.geojson")
    with pytest.raises(DataFileError, match="feature 2: ") as caught:
        read(path, "table")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert read(path, "table", skip_bad=True).points == 1


def test_malformed_parquet_row_raises_with_row_number(tmp_path):
    table = build_frame()
    table["lat"] = [45.0, None, 45.1]
    table.to_parquet(tmp_path / "t.parquet")
    with pytest.raises(DataFileError, match="row 2: latitude"):
        read(tmp_path / "t.parquet")
    shapes = [shapely.Point(0, 1), shapely.LineString([(0, 0), (1, 1)]), None]
    gpd.GeoDataFrame(build_frame().drop(columns=["lat", "lon"]), geometry=shapes).to_parquet(tmp_path / "g.parquet")
    with pytest.raises(DataFileError, match="row 2: "):
        read(tmp_path / "g.parquet")
    assert sum(read(tmp_path / "g.parquet", skip_bad=True).skipped.values()) == 2


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("t.csv", b""),
        ("t.csv", b"uid,time,lat,lon\np1,\xff\xfe,1,2\n"),
        ("t.csv", b'uid,time,lat,lon\np1,"2024-03-07,1,2\n'),
        ("t.geojson", b'{"type": "FeatureCollection", "features": ['),
        ("t.geojson", b"[1, 2]"),
        ("t.geojson", b"\xff"),
        ("t.geojson", b'{"type": "FeatureCollection", "features": [], "crs": {"properties": {"name": "EPSG:3857"}}}'),
        ("t.parquet", b"PAR1 and nothing more"),
        ("t.parquet", b""),
    ],
)
def test_damaged_table_raises_in_one_line(tmp_path, name, data):
    with pytest.raises(DataFileError) as caught:
        read(write(tmp_path, data, name))
    assert "\n" not in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)


def test_column_that_occurs_twice_raises_if_it_is_read(tmp_path):
    text = "uid,time,lat,lon,{}\np1,2024-03-07T09:00:00Z,1,2,3\n"
    assert len(read(write(tmp_path, text.format("lon_old"))).trajectories) == 1
    with pytest.raises(DataFileError, match="must have unique column names, got 'lat' twice; rename one of them"):
        read(write(tmp_path, text.format("lat")))


def test_truncated_parquet_raises(tmp_path):
    build_frame().to_parquet(tmp_path / "t.parquet")
    whole = (tmp_path / "t.parquet").read_bytes()
    with pytest.raises(DataFileError, match="Parquet"):
        read(write(tmp_path, whole[:-40], "t.parquet"))


def test_missing_pyarrow_raises_with_extra(tmp_path, monkeypatch):
    build_frame().to_parquet(tmp_path / "t.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match=r"dphmm\[files\]"):
        read(tmp_path / "t.parquet")
