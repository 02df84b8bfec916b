"""Frames of other libraries are read as they are: none of their columns is renamed, none of their values changed."""

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
WHO = ["ann", "ann", "bob", "bob"]


def points(**columns):
    return geopandas.GeoDataFrame(columns, geometry=geopandas.points_from_xy(EAST, NORTH), crs="EPSG:4326")


def check(result, names=("ann", "bob")):
    assert [one.user for one in result.trajectories] == list(names)
    told = np.concatenate([one.times for one in result.trajectories])
    assert (told == TIMES.tz_convert("UTC").tz_localize(None).to_numpy()).all()
    assert np.concatenate([one.latitude for one in result.trajectories]) == pytest.approx(NORTH, abs=1e-9)
    assert np.concatenate([one.longitude for one in result.trajectories]) == pytest.approx(EAST, abs=1e-9)


def test_positionfixes_of_trackintel():
    trackintel = pytest.importorskip("trackintel")
    frame = points(user_id=WHO, tracked_at=TIMES).rename_geometry("geom")
    check(read_frame(trackintel.Positionfixes(frame)))
    check(read_frame(frame.to_crs("EPSG:32626")))


def test_frames_of_the_shape_of_scikit_mobility():
    naive = TIMES.tz_localize(None)
    frame = pd.DataFrame({"uid": WHO, "datetime": naive, "lat": NORTH, "lng": EAST, "tid": 7})
    check(read_frame(frame, time_zone="Asia/Shanghai"))
    check(read_frame(frame.astype({"datetime": str}), time_zone="+08:00"))


@pytest.mark.filterwarnings("ignore:Missing optional dependencies:UserWarning")
@pytest.mark.filterwarnings("ignore:Time zone information dropped:UserWarning")
@pytest.mark.filterwarnings("ignore:The inplace keyword")
def test_movingpandas_with_its_zone_and_its_people(caplog):
    """The library takes the zone off, and its trajectories are people only where each person has one: that is said."""
    movingpandas = pytest.importorskip("movingpandas")
    frame = points(traj_id=WHO, t=TIMES)
    collection = movingpandas.TrajectoryCollection(frame, traj_id_col="traj_id", t="t")
    with caplog.at_level(logging.WARNING):
        for given in (collection, frame, frame.set_index("t")):
            caplog.clear()
            check(read_frame(given))
            assert "each 'traj_id' is taken for a person" in caplog.text
        caplog.clear()
        whole = points(mmsi=[1, 1, 2, 2], t=TIMES, user_id="ann")
        parts = movingpandas.TrajectoryCollection(whole, traj_id_col="mmsi", t="t")
        check(read_frame(parts), ["ann"])
        check(read_frame(collection, user="ann"), ["ann"])
        check(read_frame(collection, columns={"user": "traj_id"}))
        assert read_frame(collection.trajectories[0], user="ann").points == 2
        assert not caplog.text
    bare = movingpandas.TrajectoryCollection(points(mmsi=[1, 1, 2, 2], t=TIMES), traj_id_col="mmsi", t="t")
    check(read_frame(bare), ["1", "2"])
    assert "each 'mmsi' is taken for a person" in caplog.text


def test_epoch_times_and_columns_named_by_the_caller():
    seconds = (TIMES.tz_convert("UTC").tz_localize(None) - pd.Timestamp(0)) // pd.Timedelta("1s")
    frame = pd.DataFrame({"device": WHO, "when": seconds, "y": NORTH, "x": EAST})
    names = {"user": "device", "time": "when", "latitude": "y", "longitude": "x"}
    check(read_frame(frame, columns=names, time_unit="s"))
    check(read_frame(frame.assign(when=1000.0 * seconds), columns=names, time_unit="ms"))
    with pytest.raises(DataFileError, match="row 1: time is '1709776800'; say --time-unit s"):
        read_frame(frame, columns=names)


def test_the_frame_of_the_caller_stays_as_it_was():
    frame = points(user_id=WHO, tracked_at=TIMES).set_index("tracked_at").to_crs(3857)
    before = frame.copy()
    check(read_frame(frame))
    pd.testing.assert_frame_equal(frame, before)


def test_a_frame_reads_as_the_file_that_it_is_written_to(tmp_path):
    frame = points(user_id=[1, 1, 2, 2], tracked_at=TIMES)
    frame.to_parquet(tmp_path / "a.parquet")
    for one, other in zip(read_frame(frame).trajectories, read(tmp_path / "a.parquet").trajectories, strict=True):
        assert one.user == other.user
        assert (one.times == other.times).all()
        assert (one.latitude == other.latitude).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lat": [45.0, 95.0, 45.0, 45.0]}, "row 2: latitude is 95.0"),
        ({"lat": [45.0, np.nan, 45.0, 45.0]}, "row 2: latitude is 'None'; give a decimal number"),
        ({"uid": ["ann", None, "bob", "bob"]}, "row 2: the user is empty"),
        ({"datetime": [TIMES[0], pd.NaT, *TIMES[2:]]}, "row 2: time is"),
        ({"lat": ["x"] * 4}, "row 1: latitude is 'x'; give a decimal number"),
    ],
)
def test_a_bad_row_is_named_or_passed_over_and_counted(change, message):
    frame = pd.DataFrame({"uid": WHO, "datetime": TIMES, "lat": NORTH, "lng": EAST} | change)
    with pytest.raises(DataFileError, match=message):
        read_frame(frame)
    if "'x'" not in message:
        assert sum(read_frame(frame, skip_bad=True).skipped.values()) == 1


def test_what_is_no_frame_and_who_is_not_named_is_refused_with_what_to_do():
    with pytest.raises(InvalidInputError, match="frame is of type list; give a DataFrame"):
        read_frame([1, 2])
    nobody = pd.DataFrame({"datetime": TIMES, "lat": NORTH, "lng": EAST})
    with pytest.raises(DataFileError, match="does not say whose fixes it holds; give user="):
        read_frame(nobody)
    check(read_frame(nobody, user="ann"), ["ann"])
    with pytest.raises(DataFileError, match="the frame: holds no usable fix"):
        read_frame(nobody.iloc[:0], user="ann")


def test_a_frame_is_data_of_every_job():
    town = read("data/sample/geolife").trajectories
    frame = pd.concat(
        pd.DataFrame({"uid": one.user, "datetime": one.times, "lat": one.latitude, "lng": one.longitude})
        for one in town
    )
    space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell=1)
    others = learn(Data((frame,), exclude_users=("000",)), space, step_seconds=300)
    same = learn(Data(("data/sample/geolife",), exclude_users=("000",)), space, step_seconds=300)
    assert others.model.content_hash == same.model.content_hash
    done = release(frame[frame["uid"] == "000"], others.model, ReleaseSettings("utility:2km", 1.0), rng=0)
    assert len(done.table) == done.people.fixes == len(town[0])


@pytest.mark.parametrize(
    "kind", ["texts", "numbers as users", "a zone", "no zone", "epoch", "whole degrees", "texts as degrees"]
)
def test_whole_columns_say_what_single_rows_do(monkeypatch, kind):
    from dphmm.readers import columns

    frame = pd.DataFrame({"uid": WHO, "datetime": TIMES, "lat": NORTH, "lng": EAST})
    options = {"time_unit": "s", "time_zone": "America/New_York"} if kind == "epoch" else {"time_zone": "+02:00"}
    changes = {
        "numbers as users": {"uid": [1.0, 2.0, 1.0, 2.0]},
        "no zone": {"datetime": TIMES.tz_localize(None)},
        "epoch": {"datetime": [1709776800, 1709777100, 1709777400, 1709777700]},
        "whole degrees": {"lat": [45, 44, 43, 42]},
        "texts as degrees": {"lat": ["45", "44", "43", "42"]},
    }
    given = frame.assign(**changes.get(kind, {}))
    quick = read_frame(given, **options).trajectories
    monkeypatch.setattr(columns, "_by_arrays", lambda *arguments: None)
    for one, other in zip(quick, read_frame(given, **options).trajectories, strict=True):
        assert one.user == other.user
        for name in ("times", "latitude", "longitude"):
            assert (getattr(one, name) == getattr(other, name)).all()
