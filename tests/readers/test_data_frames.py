"""Data frames of other libraries are read without renaming or changing them."""

from __future__ import annotations

import logging
import subprocess
import sys
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import shapely

from dphmm import ReleaseSettings, Trajectory
from dphmm.errors import DataFileError, InvalidInputError
from dphmm.jobs import Data, learn, region, release
from dphmm.readers import read, read_frame

geopandas = pytest.importorskip("geopandas")

TIMES = pd.date_range("2024-03-07 10:00", periods=4, freq="5min", tz="Asia/Shanghai")
NORTH = [45.0, 45.001, 45.002, 45.003]
EAST = [-30.0, -30.001, -30.002, -30.003]
USERS = ["ann", "ann", "bob", "bob"]


def build_points(**columns):
    return geopandas.GeoDataFrame(columns, geometry=geopandas.points_from_xy(EAST, NORTH), crs="EPSG:4326")


def check(result, names=("ann", "bob")):
    assert [trajectory.user for trajectory in result.trajectories] == list(names)
    times = np.concatenate([trajectory.times for trajectory in result.trajectories])
    assert (times == TIMES.tz_convert("UTC").tz_localize(None).to_numpy()).all()
    assert np.concatenate([trajectory.latitude for trajectory in result.trajectories]) == pytest.approx(NORTH, abs=1e-9)
    assert np.concatenate([trajectory.longitude for trajectory in result.trajectories]) == pytest.approx(EAST, abs=1e-9)


@pytest.mark.slow
def test_trackintel_positionfixes_are_read():
    trackintel = pytest.importorskip("trackintel")
    frame = build_points(user_id=USERS, tracked_at=TIMES).rename_geometry("geom")
    check(read_frame(trackintel.Positionfixes(frame)))
    check(read_frame(frame.to_crs("EPSG:32626")))


def test_scikit_mobility_frames_are_read():
    naive = TIMES.tz_localize(None)
    frame = pd.DataFrame({"uid": USERS, "datetime": naive, "lat": NORTH, "lng": EAST, "tid": 7})
    check(read_frame(frame, time_zone="Asia/Shanghai"))
    check(read_frame(frame.astype({"datetime": str}), time_zone="+08:00"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Missing optional dependencies:UserWarning")
@pytest.mark.filterwarnings("ignore:Time zone information dropped:UserWarning")
@pytest.mark.filterwarnings("ignore:The inplace keyword")
def test_movingpandas_keeps_time_zone_and_logs_users(caplog):
    """movingpandas removes the time zone and may not know users: both are logged."""
    movingpandas = pytest.importorskip("movingpandas")
    frame = build_points(traj_id=USERS, t=TIMES)
    collection = movingpandas.TrajectoryCollection(frame, traj_id_col="traj_id", t="t")
    with caplog.at_level(logging.WARNING):
        for source in (collection, frame, frame.set_index("t")):
            caplog.clear()
            check(read_frame(source))
            assert "each 'traj_id' is treated as a separate user" in caplog.text
        caplog.clear()
        whole = build_points(mmsi=[1, 1, 2, 2], t=TIMES, user_id="ann")
        parts = movingpandas.TrajectoryCollection(whole, traj_id_col="mmsi", t="t")
        check(read_frame(parts), ["ann"])
        check(read_frame(collection, user="ann"), ["ann"])
        check(read_frame(collection, columns={"user": "traj_id"}))
        assert read_frame(collection.trajectories[0], user="ann").points == 2
        assert not caplog.text
    bare = movingpandas.TrajectoryCollection(build_points(mmsi=[1, 1, 2, 2], t=TIMES), traj_id_col="mmsi", t="t")
    check(read_frame(bare), ["1", "2"])
    assert "each 'mmsi' is treated as a separate user" in caplog.text


def test_epoch_times_and_custom_columns_are_read():
    seconds = (TIMES.tz_convert("UTC").tz_localize(None) - pd.Timestamp(0)) // pd.Timedelta("1s")
    frame = pd.DataFrame({"device": USERS, "when": seconds, "y": NORTH, "x": EAST})
    names = {"user": "device", "time": "when", "latitude": "y", "longitude": "x"}
    check(read_frame(frame, columns=names, time_format="s"))
    check(read_frame(frame.assign(when=1000.0 * seconds), columns=names, time_format="ms"))
    with pytest.raises(DataFileError, match=r"row 1: time is '1709776800'; set time_format \(--time-format\) = 's'"):
        read_frame(frame, columns=names)


def test_input_frame_is_unchanged():
    frame = build_points(user_id=USERS, tracked_at=TIMES).set_index("tracked_at").to_crs(3857)
    before = frame.copy()
    check(read_frame(frame))
    pd.testing.assert_frame_equal(frame, before)


def test_frame_matches_file_written_from_it(tmp_path):
    frame = build_points(user_id=[1, 1, 2, 2], tracked_at=TIMES)
    frame.to_parquet(tmp_path / "a.parquet")
    for trajectory, other in zip(
        read_frame(frame).trajectories, read(tmp_path / "a.parquet").trajectories, strict=True
    ):
        assert trajectory.user == other.user
        assert (trajectory.times == other.times).all()
        assert (trajectory.latitude == other.latitude).all()


@pytest.mark.parametrize("zone", [None, "UTC"])
@pytest.mark.parametrize("seconds", [1_709_800_000 * 10**9, 2**62])
def test_time_that_overflows_microseconds_refuses_its_row(seconds, zone):
    """Nanoseconds typed as seconds, and a number of seconds that wraps around to 1970."""
    pyarrow = pytest.importorskip("pyarrow")
    values = [seconds, 0, None, 60]
    stamps = pyarrow.array(values, pyarrow.timestamp("s", zone))
    columns = {"user": ["ann", "ann", "bob", "bob"], "lat": NORTH, "lon": EAST}
    times = np.array(["NaT" if value is None else value for value in values], dtype="datetime64[s]")
    series = pd.Series(times).dt.tz_localize(zone)
    for frame in (pyarrow.table({**columns, "time": stamps}), pd.DataFrame({**columns, "time": series})):
        with pytest.raises(DataFileError, match="row 1: time must be in the years 1 to 9999"):
            read_frame(frame)
        result = read_frame(frame, skip_bad=True)
        assert sum(result.skipped.values()) == 2
        times = [trajectory.times.astype("datetime64[s]").astype(int).tolist() for trajectory in result.trajectories]
        assert times == [[0], [60]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lat": [45.0, 95.0, 45.0, 45.0]}, r"row 2: latitude .*\b95\.0\b"),
        ({"lat": [45.0, np.nan, 45.0, 45.0]}, "row 2: latitude .*no value"),
        ({"uid": ["ann", None, "bob", "bob"]}, "row 2: user must not be empty"),
        ({"datetime": [TIMES[0], pd.NaT, *TIMES[2:]]}, "row 2: time "),
        ({"datetime": [TIMES[0], np.timedelta64(5, "s"), *TIMES[2:]]}, "row 2: time "),
        ({"lat": ["x"] * 4}, "row 1: latitude .*'x'"),
    ],
)
def test_invalid_row_raises_or_is_counted(change, message):
    frame = pd.DataFrame({"uid": USERS, "datetime": TIMES, "lat": NORTH, "lng": EAST} | change)
    with pytest.raises(DataFileError, match=message):
        read_frame(frame)
    if "'x'" not in message:
        assert sum(read_frame(frame, skip_bad=True).skipped.values()) == 1


def test_objects_of_other_libraries_are_read():
    frame = pd.DataFrame({"uid": USERS, "lat": NORTH, "lng": EAST}).astype({"lat": str, "lng": str})
    frame["lat"] = frame["lat"].map(Decimal)  # as of a database
    frame["lng"] = frame["lng"].map(Decimal)
    frame["datetime"] = pd.Series(list(TIMES.tz_localize(None).to_numpy()), dtype=object)
    assert {type(value) for value in frame["datetime"]} == {np.datetime64}
    check(read_frame(frame, time_zone="Asia/Shanghai"))


def test_geometry_in_use_is_read_whatever_its_name():
    frame = build_points(uid=USERS, datetime=TIMES).rename_geometry("position")
    check(read_frame(frame))
    frame["geometry"] = frame.geometry.translate(1.0)
    check(read_frame(frame))


@pytest.mark.parametrize(
    ("geometry", "named"),
    [(shapely.Point(), "empty"), (None, "nothing"), (shapely.LineString([(0, 1), (2, 3)]), "Line")],
)
def test_geometry_that_is_not_a_point_is_a_malformed_row(geometry, named):
    frame = build_points(uid=USERS, datetime=TIMES)
    frame.loc[1, "geometry"] = geometry
    with pytest.raises(DataFileError, match=f"row 2: geometry .*{named}"):
        read_frame(frame.to_crs(3857))
    result = read_frame(frame.to_crs(3857), skip_bad=True)
    for trajectory, rows in zip(result.trajectories, (slice(0, 1), slice(2, 4)), strict=True):
        np.testing.assert_allclose(trajectory.latitude, NORTH[rows], atol=1e-9)
        np.testing.assert_allclose(trajectory.longitude, EAST[rows], atol=1e-9)


def test_dictionary_is_neither_a_table_nor_a_list_of_paths():
    with pytest.raises(InvalidInputError, match=r"^data must be a path, a table .*, got \{'user': \['ann'\]"):
        Data.from_any({"user": ["ann"], "time": ["2024-03-07"], "lat": [45.0], "lng": [-30.0]})


def test_invalid_frame_or_missing_user_raises():
    with pytest.raises(InvalidInputError, match=r"frame .*\blist\b"):
        read_frame([1, 2])
    without_user = pd.DataFrame({"datetime": TIMES, "lat": NORTH, "lng": EAST})
    with pytest.raises(DataFileError, match="user="):
        read_frame(without_user)
    check(read_frame(without_user, user="ann"), ["ann"])
    with pytest.raises(DataFileError, match="usable fix"):
        read_frame(without_user.iloc[:0], user="ann")


@pytest.mark.slow
def test_frame_is_accepted_by_jobs():
    town = read("data/sample/geolife").trajectories
    frame = pd.concat(
        pd.DataFrame(
            {
                "uid": trajectory.user,
                "datetime": trajectory.times,
                "lat": trajectory.latitude,
                "lng": trajectory.longitude,
            }
        )
        for trajectory in town
    )
    space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=1)
    others = learn(Data((frame,), exclude_users=("000",)), space, step_seconds=300)
    same = learn(Data(("data/sample/geolife",), exclude_users=("000",)), space, step_seconds=300)
    assert others.model.content_hash == same.model.content_hash
    done = release(frame[frame["uid"] == "000"], others.model, ReleaseSettings("utility:2km", 1.0), rng=0)
    assert len(done.table) == done.user_tracks.fixes == len(town[0])


@pytest.mark.parametrize(
    "kind", ["texts", "numbers as users", "a zone", "no zone", "epoch", "whole degrees", "texts as degrees"]
)
def test_column_parsing_matches_row_parsing(monkeypatch, kind):
    from dphmm.readers import column_conversion

    frame = pd.DataFrame({"uid": USERS, "datetime": TIMES, "lat": NORTH, "lng": EAST})
    options = {"time_format": "s", "time_zone": "America/New_York"} if kind == "epoch" else {"time_zone": "+02:00"}
    changes = {
        "numbers as users": {"uid": [1.0, 2.0, 1.0, 2.0]},
        "no zone": {"datetime": TIMES.tz_localize(None)},
        "epoch": {"datetime": [1709776800, 1709777100, 1709777400, 1709777700]},
        "whole degrees": {"lat": [45, 44, 43, 42]},
        "texts as degrees": {"lat": ["45", "44", "43", "42"]},
    }
    changed_frame = frame.assign(**changes.get(kind, {}))
    quick = read_frame(changed_frame, **options).trajectories
    monkeypatch.setattr(column_conversion, "_build_from_arrays", lambda *arguments: None)
    for trajectory, other in zip(quick, read_frame(changed_frame, **options).trajectories, strict=True):
        assert trajectory.user == other.user
        for name in ("times", "latitude", "longitude"):
            assert (getattr(trajectory, name) == getattr(other, name)).all()


def read_town_columns() -> dict[str, list]:
    tracks = read("data/sample/geolife").trajectories
    return {
        "user": [track.user for track in tracks for _ in range(len(track))],
        "time": np.concatenate([track.times for track in tracks]),
        "latitude": np.concatenate([track.latitude for track in tracks]),
        "longitude": np.concatenate([track.longitude for track in tracks]),
    }


def build_forms() -> dict[str, object]:
    """The sample as every form that a job accepts."""
    duckdb, polars, pyarrow = (pytest.importorskip(name) for name in ("duckdb", "polars", "pyarrow"))
    columns = read_town_columns()
    pandas_frame = pd.DataFrame(columns).assign(time=pd.DatetimeIndex(columns["time"], tz="UTC"))
    arrow = pyarrow.table({**columns, "time": pyarrow.array(columns["time"], pyarrow.timestamp("us", "UTC"))})
    frame = polars.from_arrow(arrow)
    points = geopandas.GeoDataFrame(
        pandas_frame[["user", "time"]],
        geometry=geopandas.points_from_xy(columns["longitude"], columns["latitude"]),
        crs="EPSG:4326",
    )
    tracks = read("data/sample/geolife").trajectories
    return {
        "pandas": pandas_frame,
        "pyarrow": arrow,
        "record batches": arrow.to_reader(max_chunksize=100),
        "polars": frame,
        "polars categories": frame.with_columns(polars.col("user").cast(polars.Categorical)),
        "duckdb": duckdb.sql("SELECT * FROM arrow"),
        "geopandas": points,
        "geoarrow": points.to_arrow(geometry_encoding="geoarrow"),
        "separated geoarrow": points.to_arrow(geometry_encoding="geoarrow", interleaved=False),
        "binary geoarrow": points.to_arrow(),
        "trajectories": tracks,
        "list of trajectories": list(tracks),
        "interchange": Interchange(arrow),
    }


class Interchange:
    """A table with the interchange protocol alone."""

    def __init__(self, table) -> None:
        self._table = table

    def __dataframe__(self, nan_as_null=False, allow_copy=True):
        return self._table.__dataframe__(nan_as_null, allow_copy)


@pytest.mark.slow
def test_all_forms_of_a_table_are_the_same_data():
    reference = read("data/sample/geolife").trajectories
    for name, form in build_forms().items():
        result = Data.from_any(form).read().trajectories
        assert result == reference, name


@pytest.mark.slow
def test_jobs_have_equal_results_for_all_forms():
    space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=1)
    expected = learn("data/sample/geolife", space, step_seconds=300).model.content_hash
    track = read("data/sample/geolife").trajectories[0]
    forms = build_forms()
    for name in ("polars", "duckdb", "geoarrow", "trajectories"):
        form = forms[name]
        assert learn(form, space, step_seconds=300).model.content_hash == expected, name
    model = learn(Data(("data/sample/geolife",), exclude_users=("000",)), space, step_seconds=300).model
    table = release(track, model, ReleaseSettings("utility:2km", 1.0), rng=0).table
    other = release(Data("data/sample/geolife", users=("000",)), model, ReleaseSettings("utility:2km", 1.0), rng=0)
    pd.testing.assert_frame_equal(table.to_pandas(), other.table.to_pandas())
    assert list(table.to_geopandas()["user_id"]) == ["000"] * len(table)


def test_other_reference_system_of_geoarrow_is_converted():
    frame = build_points(user_id=USERS, tracked_at=TIMES).to_crs("EPSG:32626")
    for interleaved in (True, False):
        check(read_frame(frame.to_arrow(geometry_encoding="geoarrow", interleaved=interleaved)))
    check(read_frame(frame.to_arrow()))


def test_two_trajectories_of_a_user_are_that_user():
    (track, *_) = read("data/sample/geolife").trajectories
    parts = [
        Trajectory(track.user, track.times[rows], track.latitude[rows], track.longitude[rows])
        for rows in (slice(None, 9), slice(9, None))
    ]
    assert Data.from_any(parts).read().trajectories == (track,)
    assert list(Data.from_any(parts).stream_by_path()) == [track]
    assert read_frame(parts, user="bob").trajectories[0].user == "bob"
    with pytest.raises(InvalidInputError, match=r"columns.*trajectories"):
        read_frame(parts, columns={"user": "name"})


@pytest.mark.slow
def test_frames_of_arrow_do_not_need_pandas():
    pytest.importorskip("polars")
    program = """
import sys
sys.modules["pandas"] = None  # an import raises an error
import polars
from dphmm.jobs import Data
frame = polars.DataFrame({"user": ["a", "a"], "time": ["2024-03-07 09:00", "2024-03-07 09:05"],
    "lat": [45.0, 45.1], "lng": [-30.0, -30.1]})
print(Data.from_any(frame).read().fixes)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "2\n", done.stderr


@pytest.mark.slow
def test_messages_name_the_given_object():
    polars = pytest.importorskip("polars")
    lazy = polars.DataFrame({"user": ["a"]}).lazy()
    with pytest.raises(InvalidInputError, match=r"^frame .*, got polars\.\S*LazyFrame; call its collect\(\) first$"):
        read_frame(lazy)
    with pytest.raises(InvalidInputError, match=r"^data must be .*__arrow_c_stream__.*, got .*polars\.\S*LazyFrame$"):
        learn(lazy, region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=1))
    dask = pytest.importorskip("dask.dataframe")
    with pytest.raises(DataFileError, match=r"cannot be read as an Arrow table .*; call its compute\(\) first$"):
        read_frame(dask.from_pandas(pd.DataFrame({"user": ["a"]}), npartitions=1))
    with pytest.raises(DataFileError, match=r"no column of times.* user"):
        read_frame(lazy.collect())
    with pytest.raises(DataFileError, match="'time', which must be a time"):
        read_frame(polars.DataFrame({"user": ["a"], "time": [[1]], "lat": [1.0], "lng": [1.0]}))
