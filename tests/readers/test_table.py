"""Tables: every format and every customary name gives the same trajectory; each flaw is named with its place."""

from __future__ import annotations

import json
import sys

import geopandas as gpd
import numpy as np
import pandas as pd
import pytest
import shapely
from hypothesis import given
from hypothesis import strategies as st

from dphmm.errors import ConfigurationError, DataFileError, MissingDependencyError
from dphmm.readers import read

TIMES = ["2024-03-07T02:00:00Z", "2024-03-07T04:05:00+02:00", "2024-03-07T02:10:00"]
EXACT = ["2024-03-07T02:00:00", "2024-03-07T02:05:00", "2024-03-07T02:10:00"]
LATITUDE, LONGITUDE = [45.0, 45.001, 45.002], [-30.0, -30.001, -30.002]


def check(result, user="p1"):
    (made,) = result.trajectories
    assert made.user == user
    assert made.times.astype("M8[s]").astype(str).tolist() == EXACT
    assert made.latitude.tolist() == LATITUDE
    assert made.longitude.tolist() == LONGITUDE


def csv_of(names, delimiter=",", end="\n"):
    rows = [["p1", *row] for row in zip(TIMES, map(str, LATITUDE), map(str, LONGITUDE), strict=True)]
    return end.join(delimiter.join(row) for row in [names, *rows]) + end


def write(tmp_path, text, name="t.csv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("user", ["user_id", "uid", "user"])
@pytest.mark.parametrize("time", ["tracked_at", "datetime", "timestamp", "time"])
@pytest.mark.parametrize(("lat", "lon"), [("lat", "lon"), ("lat", "lng"), ("latitude", "longitude"), ("LAT", "Lon")])
def test_customary_names_are_recognised(tmp_path, user, time, lat, lon):
    check(read(write(tmp_path, csv_of([user, time, lat, lon]))))


@pytest.mark.parametrize(("delimiter", "end", "start"), [(";", "\r\n", ""), ("\t", "\n", "\ufeff"), (",", "\n\n", "")])
def test_other_separators_line_ends_and_a_byte_order_mark_are_read(tmp_path, delimiter, end, start):
    check(read(write(tmp_path, start + csv_of(["uid", "time", "lat", "lon"], delimiter, end))))


def test_columns_named_by_the_caller_win(tmp_path):
    text = csv_of(["who", "when", "north", "east"])
    names = {"user": "who", "time": "when", "latitude": "north", "longitude": "east"}
    check(read(write(tmp_path, text), columns=names))
    with pytest.raises(DataFileError, match="has no column of times; say which of who, when, north, east"):
        read(write(tmp_path, text))
    with pytest.raises(DataFileError, match="has no column of places"):
        read(write(tmp_path, text), columns={"time": "when"})
    with pytest.raises(DataFileError, match="has no column 'ost'; its columns are who, when"):
        read(write(tmp_path, text), columns=names | {"longitude": "ost"})
    with pytest.raises(ConfigurationError, match="speed"):
        read(write(tmp_path, text), columns={"speed": "who"})


def test_a_table_without_users_is_one_person_named_after_the_file_or_by_the_caller(tmp_path):
    text = csv_of(["_", "time", "lat", "lon"])
    check(read(write(tmp_path, text, "ada.csv")), "ada")
    check(read(write(tmp_path, text), user="grace"), "grace")


def test_a_csv_with_a_geometry_of_text_is_read(tmp_path):
    lines = [f"p1,{t},POINT ({lon} {lat})" for t, lat, lon in zip(TIMES, LATITUDE, LONGITUDE, strict=True)]
    check(read(write(tmp_path, "\n".join(["user_id,tracked_at,geom", *lines]))))


def frame():
    times = pd.to_datetime(pd.Series(EXACT)).dt.tz_localize("UTC").dt.tz_convert("Asia/Shanghai")
    return pd.DataFrame({"user_id": "p1", "tracked_at": times, "speed": 7.0, "lat": LATITUDE, "lon": LONGITUDE})


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_parquet_timestamps_of_every_unit_are_converted_to_utc(tmp_path, unit):
    table = frame()
    table["tracked_at"] = table["tracked_at"].dt.as_unit(unit)
    table.to_parquet(tmp_path / "t.parquet")
    check(read(tmp_path / "t.parquet"))


def test_parquet_with_naive_timestamps_texts_and_numbers_for_users(tmp_path):
    table = frame()
    table["tracked_at"] = table["tracked_at"].dt.tz_convert("UTC").dt.tz_localize(None)
    table["user_id"] = 1.0
    table.to_parquet(tmp_path / "naive.parquet")
    check(read(tmp_path / "naive.parquet"), "1")
    table["tracked_at"] = TIMES
    table.to_parquet(tmp_path / "text.parquet")
    check(read(tmp_path / "text.parquet"), "1")


@pytest.mark.parametrize("crs", ["EPSG:4326", None])
def test_geoparquet_in_degrees_is_read_exactly(tmp_path, crs):
    made = gpd.GeoDataFrame(
        frame().drop(columns=["lat", "lon"]), geometry=gpd.points_from_xy(LONGITUDE, LATITUDE), crs=crs
    )
    made.to_parquet(tmp_path / "g.parquet")
    check(read(tmp_path / "g.parquet"))


def test_geoparquet_in_another_reference_system_is_converted(tmp_path):
    made = gpd.GeoDataFrame(
        frame().drop(columns=["lat", "lon"]), geometry=gpd.points_from_xy(LONGITUDE, LATITUDE), crs="EPSG:4326"
    ).to_crs("EPSG:32626")
    made.to_parquet(tmp_path / "g.parquet")
    (result,) = read(tmp_path / "g.parquet").trajectories
    assert np.allclose(result.latitude, LATITUDE, rtol=0, atol=1e-8)
    assert np.allclose(result.longitude, LONGITUDE, rtol=0, atol=1e-8)


def test_geojson_as_geopandas_writes_it_is_read(tmp_path):
    made = gpd.GeoDataFrame(
        {"user_id": "p1", "tracked_at": TIMES, "speed": 7.0},
        geometry=gpd.points_from_xy(LONGITUDE, LATITUDE),
        crs="EPSG:4326",
    )
    made.to_file(tmp_path / "g.geojson", driver="GeoJSON")
    check(read(tmp_path / "g.geojson"))


@given(st.lists(st.tuples(st.integers(0, 10**9), st.floats(-90, 90), st.floats(-180, 180)), min_size=1, max_size=8))
def test_csv_and_geojson_round_trip_every_float(tmp_path_factory, rows):
    rows = {second: (lat, lon) for second, lat, lon in rows}
    folder = tmp_path_factory.mktemp("round")
    stamp = {second: f"{np.datetime64(second, 's')}Z" for second in rows}
    text = "time,lat,lon\n" + "".join(f"{stamp[s]},{lat!r},{lon!r}\n" for s, (lat, lon) in rows.items())
    features = [
        {"properties": {"time": stamp[s]}, "geometry": {"type": "Point", "coordinates": [lon, lat]}}
        for s, (lat, lon) in rows.items()
    ]
    collection = json.dumps({"type": "FeatureCollection", "features": features})
    for path in (write(folder, text), write(folder, collection, "t.geojson")):
        (made,) = read(path).trajectories
        places = list(zip(made.latitude.tolist(), made.longitude.tolist(), strict=True))
        assert places == [rows[second] for second in sorted(rows)]


GOOD = "p1,2024-03-07T02:00:00Z,45.0,-30.0\n"


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("p1,2024-03-07,45.0\n", "has 3 fields; the header has 4"),
        ("p1,1709776800,45.0,-30.0\n", "time is '1709776800'; say --time-unit s if it counts s"),
        ("p1,2024-03-07T02:00:00Z,400.17,-30.0\n", "latitude is 400.17"),
        ("p1,2024-03-07T02:00:00Z,,-30.0\n", "latitude is ''"),
        (",2024-03-07T02:00:00Z,45.0,-30.0\n", "the user is empty"),
        ('p1,2024-03-07T02:00:00Z,45.0,"nan"\n', "longitude is nan"),
    ],
)
def test_a_malformed_row_is_named_and_can_be_skipped_and_counted(tmp_path, bad, message):
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
        ({"properties": {"time": TIMES[0]}, "geometry": None}, "geometry is missing"),
        ({"properties": {"time": TIMES[0]}, "geometry": {"type": "Point", "coordinates": []}}, "geometry is a"),
        ({"properties": {"time": TIMES[0]}, "geometry": {"type": "Point"}}, "geometry is"),
        (
            {"properties": {"time": TIMES[0]}, "geometry": {"type": "LineString", "coordinates": [[0, 0], [1, 1]]}},
            "a Line",
        ),
        ({"properties": {"time": TIMES[0]}, "geometry": {"type": "Point", "coordinates": [0, 91]}}, "latitude is 91"),
        ({"properties": None, "geometry": {"type": "Point", "coordinates": [0, 9]}}, "time is 'None'"),
    ],
)
def test_a_malformed_feature_is_named_and_can_be_skipped_and_counted(tmp_path, feature, message):
    good = {"properties": {"time": TIMES[0]}, "geometry": {"type": "Point", "coordinates": [-30, 45]}}
    path = write(tmp_path, json.dumps({"type": "FeatureCollection", "features": [good, feature]}), "t.geojson")
    with pytest.raises(DataFileError, match="feature 2: ") as caught:
        read(path, "table")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert read(path, "table", skip_bad=True).points == 1


def test_a_malformed_parquet_row_is_named(tmp_path):
    table = frame()
    table["lat"] = [45.0, None, 45.1]
    table.to_parquet(tmp_path / "t.parquet")
    with pytest.raises(DataFileError, match="row 2: latitude is"):
        read(tmp_path / "t.parquet")
    shapes = [shapely.Point(0, 0), shapely.LineString([(0, 0), (1, 1)]), None]
    gpd.GeoDataFrame(frame().drop(columns=["lat", "lon"]), geometry=shapes).to_parquet(tmp_path / "g.parquet")
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
def test_a_damaged_table_is_one_line_of_error(tmp_path, name, data):
    with pytest.raises(DataFileError) as caught:
        read(write(tmp_path, data, name))
    assert "\n" not in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)


def test_a_truncated_parquet_is_one_line_of_error(tmp_path):
    frame().to_parquet(tmp_path / "t.parquet")
    whole = (tmp_path / "t.parquet").read_bytes()
    with pytest.raises(DataFileError, match="Parquet"):
        read(write(tmp_path, whole[:-40], "t.parquet"))


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    frame().to_parquet(tmp_path / "t.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match=r"dphmm\[files\]"):
        read(tmp_path / "t.parquet")
