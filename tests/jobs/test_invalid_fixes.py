"""Tests that files, streams and phone messages have one rule for invalid fixes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dphmm import Grid, MarkovModel, ReleaseSettings, Trajectory, read
from dphmm.errors import InvalidInputError
from dphmm.jobs import Data, release_live
from dphmm.readers import read_frame
from dphmm.readers.reading import read_recording
from dphmm.serve import incoming_messages
from dphmm.space.fix_quality import REASONS
from tests import command_line

# ---- files -----------------------------------------------------------------------------------------------------------

GOOD = (45.01, -30.01)
# The good fix has an accuracy of 5 m and comes first. Each of the others would win if the last fix were used.
OTHERS = {
    "negative": {"accuracy": -1},
    "invalid": {"accuracy": 4, "valid": False},
    "zero": {"accuracy": 4, "latitude": 0.0, "longitude": 0.0},
    "unstated": {},
    "null": {"accuracy": None},
    "worse": {"accuracy": 80},
    "inaccurate": {"accuracy": 55_000},
}
WRONG = (45.02, -29.98)
REFUSED = {"negative", "invalid", "zero", "inaccurate"}


def _make_fixes(case):
    good = {"user": "a", "time": "2024-03-07T09:00:10Z", "latitude": GOOD[0], "longitude": GOOD[1], "accuracy": 5}
    other = {"user": "a", "time": "2024-03-07T09:00:40Z", "latitude": WRONG[0], "longitude": WRONG[1]}
    return [good, {**other, **OTHERS[case]}]


def _write_csv(path, fixes):
    names = list(dict.fromkeys(name for fix in fixes for name in fix))
    rows = [",".join("" if fix.get(name) is None else str(fix[name]) for name in names) for fix in fixes]
    path.write_text("\n".join([",".join(names), *rows]) + "\n")


def _write_geojson(path, fixes):
    features = [
        {
            "type": "Feature",
            "properties": {name: value for name, value in fix.items() if name not in ("latitude", "longitude")},
            "geometry": {"type": "Point", "coordinates": [fix["longitude"], fix["latitude"]]},
        }
        for fix in fixes
    ]
    path.write_text(json.dumps({"type": "FeatureCollection", "features": features}))


def _write_parquet(path, fixes):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(fixes)
    frame["time"] = pandas.to_datetime(frame["time"])
    frame.to_parquet(path)


def _write_owntracks(path, fixes):
    lines = []
    for fix in fixes:
        second = int(np.datetime64(fix["time"][:-1], "s").astype(int))
        record = {"_type": "location", "tst": second, "lat": fix["latitude"], "lon": fix["longitude"]}
        if "accuracy" in fix:
            record["acc"] = fix["accuracy"]
        lines.append(f"{fix['time']}\t*\t{json.dumps(record)}\n")
    path.write_text("".join(lines))


WRITERS = {".csv": _write_csv, ".geojson": _write_geojson, ".parquet": _write_parquet, ".rec": _write_owntracks}


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize("case", OTHERS)
def test_no_other_fix_replaces_a_fix_of_5_m_in_a_file(tmp_path, case, suffix):
    if case == "invalid" and suffix == ".rec":
        pytest.skip("OwnTracks has no such field")
    path = tmp_path / f"a{suffix}"
    WRITERS[suffix](path, _make_fixes(case))
    result = read(path)
    (track,) = result.trajectories
    slotted = track.resample(60)
    assert (slotted.latitude.tolist(), slotted.longitude.tolist()) == ([GOOD[0]], [GOOD[1]])
    assert sum(result.refused.values()) == (case in REFUSED)
    dropped = Data((path,), user="a" if suffix == ".rec" else None).read().not_read
    assert [entry.fixes for entry in dropped if entry.reason in REASONS] == [1] * (case in REFUSED)


@pytest.mark.parametrize("case", OTHERS)
def test_no_other_fix_replaces_a_fix_of_5_m_in_a_frame(case):
    pandas = pytest.importorskip("pandas")
    result = read_frame(pandas.DataFrame(_make_fixes(case)))
    assert result.trajectories[0].resample(60).latitude.tolist() == [GOOD[0]]
    assert sum(result.refused.values()) == (case in REFUSED)


@pytest.mark.parametrize("case", ["negative", "invalid", "zero", "inaccurate"])
def test_fix_is_refused_even_if_there_is_no_other(tmp_path, case):
    path = tmp_path / "a.csv"
    _write_csv(path, _make_fixes(case)[1:])
    with pytest.raises(InvalidInputError, match="1 invalid or inaccurate fixes refused"):
        read(path)


@pytest.mark.parametrize("case", ["unstated", "null"])
def test_fix_without_accuracy_is_used_if_there_is_no_other(tmp_path, case):
    _write_csv(tmp_path / "a.csv", _make_fixes(case)[1:])
    assert read(tmp_path / "a.csv").trajectories[0].latitude.tolist() == [WRONG[0]]


@pytest.mark.parametrize("text", ["none", " None\n"])
def test_point_of_a_track_without_a_gps_fix_is_refused(tmp_path, text):
    points = '<trkpt lat="45" lon="7"><time>2024-03-07T09:00:00Z</time><fix>3d</fix></trkpt>' + (
        f'<trkpt lat="46" lon="7"><time>2024-03-07T09:00:30Z</time><fix>{text}</fix></trkpt>'
    )
    (tmp_path / "a.gpx").write_text(
        f'<gpx version="1.1" xmlns="http://www.topografix.com/GPX/1/1"><trk><trkseg>{points}</trkseg></trk></gpx>'
    )
    result = read(tmp_path / "a.gpx")
    assert result.trajectories[0].latitude.tolist() == [45.0]
    assert result.refused == {REASONS[0]: 1}
    recording = read_recording(tmp_path / "a.gpx")
    assert [segment.latitude.tolist() for segment in recording.segments] == [[45.0]]
    assert recording.dropped == ("invalid or inaccurate points",)


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize("case", OTHERS)
def test_recording_omits_the_same_fixes_as_a_trajectory_except_zero_locations(tmp_path, case, suffix):
    if case == "invalid" and suffix == ".rec":
        pytest.skip("OwnTracks has no such field")
    path = tmp_path / f"a{suffix}"
    WRITERS[suffix](path, _make_fixes(case))
    recording = read_recording(path)
    if case == "zero":  # `hide` drops and names it
        assert recording.segments[0].latitude.tolist() == [GOOD[0], 0.0]
        assert recording.dropped == ()
        return
    expected = [GOOD[0]] if case in REFUSED else [GOOD[0], WRONG[0]]
    assert [latitude for segment in recording.segments for latitude in segment.latitude.tolist()] == expected
    assert ("invalid or inaccurate points" in recording.dropped) == (case in REFUSED)


TIMES = ["2024-03-07T09:00:00Z", "2024-03-07T09:00:30Z"]
INVALID = "marked as invalid by the device"
NEGATIVE = "accuracy is negative, which marks an invalid fix"


@pytest.mark.parametrize(
    ("properties", "refused"),
    [
        ({"coordTimes": TIMES, "valid": False, "accuracy": -1}, {INVALID: 2}),
        ({"coordTimes": TIMES, "accuracy": -1}, {NEGATIVE: 2}),
        ({"coordTimes": TIMES, "accuracy": [5, -1]}, {NEGATIVE: 1}),
        ({"coordTimes": TIMES, "valid": ["true", "V"]}, {INVALID: 1}),
        ({"coordinateProperties": {"times": TIMES, "valid": [True, False]}}, {INVALID: 1}),
        ({"coordinateProperties": {"times": TIMES, "accuracy": [5, None]}, "accuracy": -1}, {}),
        ({"coordTimes": TIMES, "valid": True, "accuracy": 5}, {}),
    ],
)
@pytest.mark.parametrize("shape", ["MultiPoint", "MultiLineString"])
def test_points_of_a_line_are_refused_by_their_own_quality_or_that_of_the_feature(tmp_path, shape, properties, refused):
    positions = [[GOOD[1], GOOD[0]], [WRONG[1], WRONG[0]]]
    geometry = {"type": shape, "coordinates": positions if shape == "MultiPoint" else [positions]}
    feature = {"type": "Feature", "properties": {"user": "a", **properties}, "geometry": geometry}
    (tmp_path / "a.geojson").write_text(json.dumps(feature))
    count = sum(refused.values())
    if count < 2:
        result = read(tmp_path / "a.geojson")
        assert (result.trajectories[0].latitude.tolist(), result.refused) == ([GOOD[0], WRONG[0]][: 2 - count], refused)
        assert len(read_recording(tmp_path / "a.geojson")) == 2 - count
    else:
        (reason,) = refused
        with pytest.raises(InvalidInputError, match=f"2 invalid or inaccurate fixes refused: {reason}"):
            read(tmp_path / "a.geojson")


def test_same_timestamp_keeps_the_more_accurate_fix(tmp_path):
    fixes = _make_fixes("worse")
    fixes[1]["time"] = fixes[0]["time"]
    _write_csv(tmp_path / "a.csv", fixes)
    result = read(tmp_path / "a.csv")
    assert result.trajectories[0].latitude.tolist() == [GOOD[0]]
    assert result.merged == 1


# ---- commands --------------------------------------------------------------------------------------------------------


@pytest.fixture
def town(tmp_path, monkeypatch):
    """Return a folder with a model of a region around the good fix."""
    monkeypatch.chdir(tmp_path)
    grid = Grid.over((44.99, -30.03, 45.03, -29.97), cell_km=0.5)
    size = grid.size
    MarkovModel(np.full((size, size), 1 / size), np.full(size, 1 / size), grid, 60.0).save("m.npz")
    return tmp_path


RELEASE = ("release", "--model", "m.npz", "--policy", "utility:1km", "--epsilon", "1")


@pytest.mark.parametrize("case", OTHERS)
def test_release_of_a_file_uses_the_fix_of_5_m_and_names_the_reason(town, case):
    _write_csv(town / "a.csv", _make_fixes(case))
    result = command_line.run(*RELEASE, "a.csv", "-o", "o.csv", "--private-diagnostics", "PRIVATE.csv", "--json")
    assert result.exit_code == 0, result.stderr
    state = MarkovModel.load("m.npz").space.locate(*(np.array([value]) for value in GOOD))[0]
    header, row = ((town / "PRIVATE.csv").read_text().splitlines()[at].split(",") for at in (0, 1))
    assert int(dict(zip(header, row, strict=True))["private_true_state"]) == state
    reasons = [entry["reason"] for entry in json.loads(result.stdout)["private"]["dropped"]]
    assert len(set(reasons) & set(REASONS)) == (case in REFUSED)


@pytest.mark.parametrize("case", OTHERS)
def test_stream_refuses_invalid_fixes_with_a_named_reason(town, case):
    fixes = _make_fixes(case)[::-1]  # a stream answers immediately, so the other fix comes first
    result = command_line.run(*RELEASE, stdin="".join(json.dumps(fix) + "\n" for fix in fixes))
    first, second = map(json.loads, result.stdout.splitlines())
    assert second["released"]
    assert first["released"] == (case not in REFUSED)
    if case in REFUSED:
        assert any(reason in first["reason"] for reason in REASONS)


def test_stream_of_a_session_refuses_invalid_fixes(town):
    time = np.datetime64("2024-03-07T09:00:10")
    with release_live("m.npz", ReleaseSettings("utility:1km", 1.0), session=town / "s.db") as stream:
        for quality in ({"accuracy_m": -1.0}, {"is_valid": False}):
            with pytest.raises(InvalidInputError, match="the fix is refused"):
                stream.take("a", time, *GOOD, **quality)
        assert stream.take("a", time, *GOOD, accuracy_m=5.0) is not None


def test_batch_noise_differs_if_only_the_accuracy_differs(town):
    """Equal noise for two locations would reveal their difference."""
    from dphmm.jobs.batch.batch import BatchJob

    job = BatchJob("f", "m.npz", "0", ReleaseSettings("utility:1km", 1.0), key=b"k" * 32)
    times = np.array(["2024-03-07T09:00:10", "2024-03-07T09:00:20"], "M8[us]")
    words = {
        job.derive_randomness(Trajectory("a", times, np.array([45.0, 45.1]), np.full(2, 7.0), accuracy)).bytes(16)
        for accuracy in (None, np.array([5.0, 9.0]), np.array([9.0, 5.0]))
    }
    assert len(words) == 3


# ---- messages of phones ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "received",
    [
        incoming_messages.read_osmand({"timestamp": "1709802000", "lat": "45", "lon": "7", "valid": "false"}),
        incoming_messages.read_osmand({"timestamp": "1709802000", "lat": "45", "lon": "7", "accuracy": "-1"}),
        incoming_messages.read_owntracks(b'{"_type": "location", "tst": 1709802000, "lat": 45, "lon": 7, "acc": -1}'),
        incoming_messages.read_overland(
            b'{"locations": [{"geometry": {"type": "Point", "coordinates": [7, 45]}, '
            b'"properties": {"timestamp": "2024-03-07T09:00:00Z", "horizontal_accuracy": -1}}]}'
        ),
        incoming_messages.read_traccar(
            b'{"location": {"timestamp": "2024-03-07T09:00:00Z", '
            b'"coords": {"latitude": 45, "longitude": 7, "accuracy": -1}}}'
        ),
        incoming_messages.read_home_assistant(
            b'{"type": "update_location", "data": {"gps": [45, 7], "gps_accuracy": -1}}'
        ),
        incoming_messages.read_gpslogger({"lat": "45", "lon": "7", "acc": "-1"}),
        incoming_messages.read_plain(
            b'[{"time": "2024-03-07T09:00:00Z", "latitude": 45, "longitude": 7, "valid": false}]'
        ),
    ],
)
def test_messages_of_apps_contain_invalid_fixes_as_such(received):
    (fix,) = received.fixes
    assert not fix.is_valid or fix.accuracy_m == -1
