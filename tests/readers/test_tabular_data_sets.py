"""Tests of tables without a header, of public data sets and of local forms of cells."""

from __future__ import annotations

import csv
import logging

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dphmm
from dphmm.errors import ConfigurationError, DataFileError
from dphmm.readers.instants import Instants

NOON = np.datetime64("2024-03-07T12:00:00", "us")
PLACES = [(45.0, -30.02), (45.00005, -30.0197), (45.0001, -30.0194)]


def read(tmp_path, text, name="a.csv", encoding="utf-8", **options):
    path = tmp_path / name
    path.write_bytes(text.encode(encoding))
    return dphmm.read(path, **options)


def get_seconds(trajectory):
    return ((trajectory.times - NOON) / np.timedelta64(1, "s")).tolist()


def list_places(trajectory):
    return list(zip(trajectory.latitude.tolist(), trajectory.longitude.tolist(), strict=True))


# ---- forms of cells --------------------------------------------------------------------------------------------------


def test_decimal_commas_are_read_with_any_separator(tmp_path):
    rows = [("2024-03-07T12:00:00Z", "45,0", "-30,02"), ("2024-03-07T12:00:20Z", "45,00005", "-30,0197")]
    for mark in ";\t":
        text = "\n".join(mark.join(row) for row in [("time", "lat", "lon"), *rows])
        (track,) = read(tmp_path, text).trajectories
        assert list_places(track) == PLACES[:2]
    quoted = "time,lat,lon\n" + "".join(f'{time},"{lat}","{lon}"\n' for time, lat, lon in rows)
    assert list_places(read(tmp_path, quoted).trajectories[0]) == PLACES[:2]
    unnamed = "\n".join(";".join(row) for row in rows)
    columns = {"time": "1", "latitude": "2", "longitude": "3"}
    assert list_places(read(tmp_path, unnamed, columns=columns).trajectories[0]) == PLACES[:2]


@pytest.mark.parametrize("first", ["sep=;\n", 'sep=";"\n', "\ufeffsep=;\r\n"])
def test_first_line_of_spreadsheets_names_the_separator(tmp_path, first):
    if '"' in first:
        first = f'"{first.strip().replace(chr(34), "")}"\n'
    text = f"{first}user;time;lat;lon\nann;2024-03-07T12:00:00Z;45;-30\nann;never;45;-30\n"
    with pytest.raises(DataFileError, match=r"line 4: time must be ISO 8601.*--skip-bad"):
        read(tmp_path, text)
    result = read(tmp_path, text, skip_bad=True)
    assert (result.points, sum(result.skipped.values())) == (1, 1)


@pytest.mark.parametrize(
    ("text", "suggested"),
    [
        ("07.03.2024 12:00:00", ["'%d.%m.%Y %H:%M:%S' for 2024-03-07"]),
        ("07.03.24, 12:00", ["'%d.%m.%y, %H:%M' for 2024-03-07"]),
        ("3/7/2024 12:00:00 PM", ["'%d/%m/%Y %I:%M:%S %p' for 2024-07-03", "'%m/%d/%Y %I:%M:%S %p' for 2024-03-07"]),
        ("2024/03/07 12:00:00", ["'%Y/%m/%d %H:%M:%S' for 2024-03-07"]),
        ("3/17/2024 12:00", ["'%m/%d/%Y %H:%M' for 2024-03-17"]),
    ],
)
def test_local_date_raises_with_the_format_that_reads_it(tmp_path, text, suggested):
    table = f'user,time,lat,lon\nann,"{text}",45,-30\n'
    with pytest.raises(DataFileError) as error:
        read(tmp_path, table)
    assert all(words in str(error.value) for words in suggested)
    assert str(error.value).count(" for 20") == len(suggested)
    assert "--time-format" in str(error.value)
    for words in suggested:
        form, day = words.strip("'").split("' for ")
        (track,) = read(tmp_path, table, time_format=form, time_zone="+01:00").trajectories
        assert track.times[0] == np.datetime64(f"{day}T11:00")


def test_time_format_without_a_date_raises():
    for form in ("%H:%M", "%d.%m. %H:%M", "", "%Q"):
        with pytest.raises(ConfigurationError, match="or contain day, month and year"):
            Instants(format=form)


def test_time_format_with_the_name_of_a_zone_raises():
    with pytest.raises(ConfigurationError, match=r"time_format must not contain %Z.*use %z.*--time-zone"):
        Instants(zone="Asia/Shanghai", format="%Y-%m-%d %H:%M:%S %Z")
    noon = 1_704_110_400_000_000
    shanghai = Instants(zone="Asia/Shanghai", format="%Y-%m-%d %H:%M:%S %z")
    assert shanghai.parse_microseconds("2024-01-01 12:00:00 +0000") == noon
    assert Instants(format="%Y-%m-%d %H:%M:%S UTC").parse_microseconds("2024-01-01 12:00:00 UTC") == noon
    assert Instants(format="%Y-%m-%d %H:%M:%S %%Z").parse_microseconds("2024-01-01 12:00:00 %Z") == noon


def test_time_with_name_of_month_is_read_with_its_offset():
    assert Instants().parse_microseconds("Thu Mar 07 14:00:00 +0200 2024") == int(NOON.astype(np.int64))
    for text in ("Thu Mar 07 14:00:00 2024", "Thu Foo 07 14:00:00 +0000 2024", "Thu Mar 32 14:00:00 +0000 2024"):
        with pytest.raises(ValueError, match="time must be"):
            Instants().parse_microseconds(text)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_unit_with_all_times_in_january_1970_is_logged(tmp_path, caplog, suffix):
    table = {"user": ["a", "a"], "timestamp": [1709978400, 1709978420], "lat": [45.0, 45.0], "lon": [-30.0, -30.0]}
    path = tmp_path / f"a{suffix}"
    if suffix == ".csv":
        path.write_text(
            "\n".join(",".join(map(str, row)) for row in [tuple(table), *zip(*table.values(), strict=True)])
        )
    else:
        pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pa.table(table), path)
    with caplog.at_level(logging.WARNING):
        assert dphmm.read(path, time_format="s").points == 2
        assert not caplog.records
        assert dphmm.read(path, time_format="ms").points == 2
    assert "all times are in January 1970; check the unit, such as --time-format s" in caplog.text


# ---- tables without a header -----------------------------------------------------------------------------------------

UNNAMED = "ann;2024-03-07T12:00:00Z;45.0;-30.02\nann;2024-03-07T12:00:20Z;45.00005;-30.0197\n"
NUMBERS = {"user": "1", "time": "2", "latitude": "3", "longitude": "4"}


def test_numbered_columns_read_tables_with_and_without_header(tmp_path):
    for header in ("", "who;when;north;east\n"):
        (track,) = read(tmp_path, header + UNNAMED, columns=NUMBERS).trajectories
        assert (track.user, list_places(track), get_seconds(track)) == ("ann", PLACES[:2], [0.0, 20.0])


def test_table_without_header_or_with_wrong_numbers_raises(tmp_path):
    with pytest.raises(DataFileError, match=r"first line contains data; number its columns .*--column user=1"):
        read(tmp_path, UNNAMED)
    with pytest.raises(DataFileError, match="has 4 columns, got number 9 for 'longitude'"):
        read(tmp_path, UNNAMED, columns={**NUMBERS, "longitude": "9"})
    with pytest.raises(DataFileError, match="needs numbers for time and latitude, longitude"):
        read(tmp_path, UNNAMED, columns={"user": "1", "time": "2"})


# ---- public data sets ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outliers", [0, 1, 50, 300])
def test_t_drive_is_read_without_options(tmp_path, outliers):
    far = [(lat, lon - 100) for lat, lon in PLACES]
    rows = [(0.0, 0.0)] * outliers + far
    text = "".join(
        f"7,2024-03-07 {12 + at // 60}:{at % 60:02}:00,{lon:.5f},{lat:.5f}\n" for at, (lat, lon) in enumerate(rows)
    )
    (track,) = read(tmp_path, text, "7.txt", time_zone="UTC").trajectories
    expected = [60.0 * (outliers + at) for at in range(3)]
    assert (track.user, list_places(track), get_seconds(track)) == (
        "7",
        [(lat, pytest.approx(lon)) for lat, lon in far],
        expected,
    )


@pytest.mark.parametrize("degrees", ["45.01,-30.02", "-30.02,45.01", "45.01,-130.02", "95,-130.02"])
def test_columns_that_may_be_latitude_and_longitude_are_not_taken_for_t_drive(tmp_path, degrees):
    text = f"1,2024-03-07 12:00:00,{degrees}\n" * 3
    with pytest.raises(DataFileError, match="needs a header, and its first line contains data; number its columns"):
        read(tmp_path, text)


@pytest.mark.parametrize("count", [1, 100, 101, 102, 300])
def test_taxi_of_t_drive_without_a_fix_is_read(tmp_path, count):
    (tmp_path / "1.txt").write_text("1,2024-03-07 12:00:00,116.50000,39.90000\n", encoding="utf-8")
    (tmp_path / "2.txt").write_text("2,2024-03-07 12:00:00,0.00000,-0.0\n" * count, encoding="utf-8")
    (track,) = dphmm.read(tmp_path, time_zone="UTC").trajectories
    assert (track.user, list_places(track)) == ("1", [(39.9, 116.5)])


@pytest.mark.parametrize("zeros", [1, 100, 101, 102, 300])
@pytest.mark.parametrize("last", ["45.01,-30.02", "0,-30.02", "45.01e0,-30.02", "no,location"])
def test_table_without_fixes_at_its_start_is_not_taken_for_t_drive(tmp_path, zeros, last):
    """The last row may state the latitude first, and would be mirrored."""
    text = "1,2024-03-07 12:00:00,0,0\n" * zeros + f"1,2024-03-07 12:00:00,{last}\n"
    with pytest.raises(DataFileError, match=r"--column longitude=3 --column latitude=4, or the reverse\)"):
        read(tmp_path, text, skip_bad=True)


def write_porto(path, trips):
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream, quoting=csv.QUOTE_ALL)
        writer.writerow(["TRIP_ID", "CALL_TYPE", "TAXI_ID", "TIMESTAMP", "MISSING_DATA", "POLYLINE"])
        writer.writerows(trips)


def test_points_of_trips_in_porto_are_15_s_apart(tmp_path):
    start = int(NOON.astype("datetime64[s]").astype(np.int64))
    line = str([[lon, lat] for lat, lon in PLACES])
    write_porto(
        tmp_path / "train.csv", [[1, "C", 20000580, start, "False", line], [2, "C", 20000581, start, "False", "[]"]]
    )
    (track,) = dphmm.read(tmp_path / "train.csv").trajectories
    assert (track.user, list_places(track), get_seconds(track)) == ("20000580", PLACES, [0.0, 15.0, 30.0])
    (track,) = dphmm.read(tmp_path / "train.csv", columns={"user": "TRIP_ID"}).trajectories
    assert track.user == "1"


@pytest.mark.parametrize(
    ("missing", "line", "problem"),
    [
        ("True", "[[-30.02, 45.0]]", "MISSING_DATA is True"),
        ("False", "[[-30.02, 45.0", "POLYLINE must be a list of longitudes and latitudes"),
        ("False", "[-30.02, 45.0]", "POLYLINE must be a list of longitudes and latitudes"),
        ("False", "[[-30.02, 95.0]]", "latitude must be in"),
    ],
)
def test_malformed_trip_in_porto_raises_or_is_skipped(tmp_path, missing, line, problem):
    path = tmp_path / "train.csv"
    write_porto(path, [[1, "C", 5, 1709812800, missing, line], [2, "C", 5, 1709812800, "False", "[[-30.0, 45.0]]"]])
    with pytest.raises(DataFileError, match=f"line 2: {problem}.*--skip-bad"):
        dphmm.read(path)
    assert dphmm.read(path, skip_bad=True).points == 1


FOURSQUARE = (
    "470\t49bbd6c0f964a520f4531fe3\t4bf58dd8d48988d127951735\tCaf\xe9\t45.0\t-30.02\t-240\t"
    "Thu Mar 07 12:00:00 +0000 2024\n"
)


def test_check_ins_of_foursquare_are_read_in_latin_1_and_with_a_header(tmp_path):
    (track,) = read(tmp_path, FOURSQUARE, "dataset_TSMC2014_NYC.txt", "latin-1").trajectories
    assert (track.user, list_places(track), get_seconds(track)) == ("470", PLACES[:1], [0.0])
    header = "userId,venueId,venueCategory,latitude,longitude,timezoneOffset,utcTimestamp\n"
    row = "470,49bb,Bar,45.0,-30.02,-240,Thu Mar 07 12:00:00 +0000 2024\n"
    assert list_places(read(tmp_path, header + row).trajectories[0]) == PLACES[:1]


ENDS = "pickup_longitude,pickup_latitude,dropoff_longitude,dropoff_latitude"
RIDES = {
    "yellow": f"VendorID,tpep_pickup_datetime,tpep_dropoff_datetime,{ENDS}",
    "medallions": f"medallion, hack_license, pickup_datetime, dropoff_datetime, {ENDS.replace(',', ', ')}",
    "green": f"VendorID,lpep_pickup_datetime,Lpep_dropoff_datetime,{ENDS.title()}",
    "2009": "vendor_name,Trip_Pickup_DateTime,Trip_Dropoff_DateTime,Start_Lon,Start_Lat,End_Lon,End_Lat",
}


@pytest.mark.parametrize("kind", RIDES)
def test_ride_of_a_taxi_in_new_york_is_its_start_and_its_end(tmp_path, kind):
    owner = "A1,B2" if kind == "medallions" else "1"
    row = f"{owner},2024-03-07 07:00:00,2024-03-07 07:10:00,-30.02,45.0,-30.0197,45.00005"
    (track,) = read(tmp_path, f"{RIDES[kind]}\n{row}\n", time_zone="-05:00").trajectories
    assert (list_places(track), get_seconds(track)) == (PLACES[:2], [0.0, 600.0])
    assert track.user == ("A1" if kind == "medallions" else "a")


def test_rides_with_zones_instead_of_coordinates_raise_with_the_reason(tmp_path):
    text = "VendorID,tpep_pickup_datetime,tpep_dropoff_datetime,PULocationID,DOLocationID\n1,2024-03-07 07:00:00,,1,2\n"
    with pytest.raises(DataFileError, match="has zones of taxis"):
        read(tmp_path, text)


def test_movebank_is_read_and_outliers_and_rows_without_location_are_named(tmp_path):
    text = (
        "event-id,visible,timestamp,location-long,location-lat,sensor-type,individual-local-identifier,study-name\n"
        "1,true,2024-03-07 12:00:00.000,-30.02,45.0,gps,Vega,Storks\n"
        "2,false,2024-03-07 12:00:20.000,-30.9,45.9,gps,Vega,Storks\n"
        "3,true,2024-03-07 12:00:40.000,,,gps,Vega,Storks\n"
    )
    with pytest.raises(DataFileError, match=r"line 4: latitude must be a decimal number, got ''.*--skip-bad"):
        read(tmp_path, text)
    result = read(tmp_path, text, skip_bad=True)
    (track,) = result.trajectories
    assert (track.user, list_places(track), sum(result.refused.values())) == ("Vega", PLACES[:1], 1)


def test_check_ins_without_location_raise_with_the_option_that_skips_them(tmp_path):
    text = "0\t2024-03-07T12:00:00Z\t45.0\t-30.02\tee8b\n5\t\t\t\t\n1\t2024-03-07T12:00:00Z\t0.0\t0.0\t0000\n"
    with pytest.raises(DataFileError, match=r"line 2: .*--skip-bad"):
        read(tmp_path, text, "loc-brightkite.txt")
    result = read(tmp_path, text, "loc-brightkite.txt", skip_bad=True)
    assert (result.points, sum(result.skipped.values()), sum(result.refused.values())) == (1, 1, 1)


# ---- round trips -----------------------------------------------------------------------------------------------------

fixes = st.lists(
    st.tuples(
        st.sampled_from(["ann", "Bea, of \u00c5s", "3"]),
        st.integers(-(10**9), 4 * 10**9),
        st.integers(-90 * 10**7, 90 * 10**7),
        st.integers(-180 * 10**7, 180 * 10**7),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda fix: fix[:2],
)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(fixes=fixes, comma=st.booleans(), header=st.booleans(), mark=st.sampled_from(",;\t"))
def test_table_written_in_any_form_reads_back_unchanged(tmp_path, fixes, comma, header, mark):
    fixes = [fix for fix in fixes if fix[2:] != (0, 0)] or [("3", 0, 1, 1)]
    with (tmp_path / "a.csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, delimiter=mark)
        if header:
            writer.writerow(["user", "time", "lat", "lon"])
        for user, second, *degrees in fixes:
            cells = [f"{value / 1e7:.7f}".replace(".", "," if comma else ".") for value in degrees]
            writer.writerow([user, f"{np.datetime64(second, 's')}Z", *cells])
    result = dphmm.read(tmp_path / "a.csv", columns=NUMBERS)
    back = {
        (track.user, int(time.astype("M8[s]").astype(int)), latitude, longitude)
        for track in result.trajectories
        for time, latitude, longitude in zip(
            track.times, track.latitude.tolist(), track.longitude.tolist(), strict=True
        )
    }
    assert back == {(user, second, north / 1e7, east / 1e7) for user, second, north, east in fixes}
