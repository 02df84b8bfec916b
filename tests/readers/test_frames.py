"""Data frames of other libraries are read without renaming or changing them."""

from __future__ import annotations

import logging

import numpy as np
import pandas as pd
import pytest

from dphmm import ReleaseSettings
from dphmm.errors import DataFileError, InvalidInputError
from dphmm.jobs import Data, learn, region, release
from dphmm.readers import read, read_frame

geopandas = pytest.importorskip("geopandas")

TIMES = pd.date_range("2024-03-07 10:00", periods=4, freq="5min", tz="Asia/Shanghai")
NORTH, EAST = [45.0, 45.001, 45.002, 45.003], [-30.0, -30.001, -30.002, -30.003]
USERS = ["ann", "ann", "bob", "bob"]


def build_points(**columns):
    return geopandas.GeoDataFrame(columns, geometry=geopandas.points_from_xy(EAST, NORTH), crs="EPSG:4326")


def check(result, names=("ann", "bob")):
    assert [trajectory.user for trajectory in result.trajectories] == list(names)
    times = np.concatenate([trajectory.times for trajectory in result.trajectories])
    assert (times == TIMES.tz_convert("UTC").tz_localize(None).to_numpy()).all()
    assert np.concatenate([trajectory.latitude for trajectory in result.trajectories]) == pytest.approx(NORTH, abs=1e-9)
    assert np.concatenate([trajectory.longitude for trajectory in result.trajectories]) == pytest.approx(EAST, abs=1e-9)


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
    check(read_frame(frame, columns=names, time_unit="s"))
    check(read_frame(frame.assign(when=1000.0 * seconds), columns=names, time_unit="ms"))
    with pytest.raises(DataFileError, match="row 1: time is '1709776800'; set time_unit = 's'"):
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lat": [45.0, 95.0, 45.0, 45.0]}, r"row 2: latitude .*\b95\.0\b"),
        ({"lat": [45.0, np.nan, 45.0, 45.0]}, "row 2: latitude .*'None'"),
        ({"uid": ["ann", None, "bob", "bob"]}, "row 2: user must not be empty"),
        ({"datetime": [TIMES[0], pd.NaT, *TIMES[2:]]}, "row 2: time "),
        ({"lat": ["x"] * 4}, "row 1: latitude .*'x'"),
    ],
)
def test_invalid_row_raises_or_is_counted(change, message):
    frame = pd.DataFrame({"uid": USERS, "datetime": TIMES, "lat": NORTH, "lng": EAST} | change)
    with pytest.raises(DataFileError, match=message):
        read_frame(frame)
    if "'x'" not in message:
        assert sum(read_frame(frame, skip_bad=True).skipped.values()) == 1


def test_invalid_frame_or_missing_user_raises():
    with pytest.raises(InvalidInputError, match=r"frame .*\blist\b"):
        read_frame([1, 2])
    without_user = pd.DataFrame({"datetime": TIMES, "lat": NORTH, "lng": EAST})
    with pytest.raises(DataFileError, match="user="):
        read_frame(without_user)
    check(read_frame(without_user, user="ann"), ["ann"])
    with pytest.raises(DataFileError, match="usable fix"):
        read_frame(without_user.iloc[:0], user="ann")


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
    space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell=1)
    others = learn(Data((frame,), exclude_users=("000",)), space, step_seconds=300)
    same = learn(Data(("data/sample/geolife",), exclude_users=("000",)), space, step_seconds=300)
    assert others.model.content_hash == same.model.content_hash
    done = release(frame[frame["uid"] == "000"], others.model, ReleaseSettings("utility:2km", 1.0), rng=0)
    assert len(done.table) == done.user_tracks.fixes == len(town[0])


@pytest.mark.parametrize(
    "kind", ["texts", "numbers as users", "a zone", "no zone", "epoch", "whole degrees", "texts as degrees"]
)
def test_column_parsing_matches_row_parsing(monkeypatch, kind):
    from dphmm.readers import columns

    frame = pd.DataFrame({"uid": USERS, "datetime": TIMES, "lat": NORTH, "lng": EAST})
    options = {"time_unit": "s", "time_zone": "America/New_York"} if kind == "epoch" else {"time_zone": "+02:00"}
    changes = {
        "numbers as users": {"uid": [1.0, 2.0, 1.0, 2.0]},
        "no zone": {"datetime": TIMES.tz_localize(None)},
        "epoch": {"datetime": [1709776800, 1709777100, 1709777400, 1709777700]},
        "whole degrees": {"lat": [45, 44, 43, 42]},
        "texts as degrees": {"lat": ["45", "44", "43", "42"]},
    }
    changed_frame = frame.assign(**changes.get(kind, {}))
    quick = read_frame(changed_frame, **options).trajectories
    monkeypatch.setattr(columns, "_by_arrays", lambda *arguments: None)
    for trajectory, other in zip(quick, read_frame(changed_frame, **options).trajectories, strict=True):
        assert trajectory.user == other.user
        for name in ("times", "latitude", "longitude"):
            assert (getattr(trajectory, name) == getattr(other, name)).all()
