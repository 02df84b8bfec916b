"""SNAP check-ins: newest first, all spellings of UTC, plain or gzipped."""

from __future__ import annotations

import gzip

import pytest

from dphmm.errors import DataFileError
from dphmm.readers import read

LINES = (
    "7\t2010-10-21T00:03:50{0}\t34.0430230998\t-118.2671570778\t14637\n"
    "7\t2010-10-20T17:18:59{0}\t34.0172734606\t-118.447508812\t59838\n"
    "12\t2010-10-15T16:00:09{0}\t34.1\t-118.4\t59838\n"
)


def write(tmp_path, text, name="c.txt"):
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize("name", ["c.txt", "c.txt.gz"])
@pytest.mark.parametrize("zone", ["Z", "+0000", "+00:00", ""])
def test_time_zone_spelling_and_compression_do_not_change_result(tmp_path, name, zone):
    result = read(write(tmp_path, LINES.format(zone), name))
    assert [t.user for t in result.trajectories] == ["12", "7"]
    seven = result.trajectories[1]
    assert seven.times.astype("M8[s]").astype(str).tolist() == ["2010-10-20T17:18:59", "2010-10-21T00:03:50"]
    assert seven.longitude.tolist() == [-118.447508812, -118.2671570778]


def test_other_time_zone_is_converted(tmp_path):
    result = read(write(tmp_path, LINES.format("+0200")), "checkins")
    assert str(result.trajectories[0].times[0]) == "2010-10-15T14:00:09.000000"


def test_first_line_of_equal_times_is_kept(tmp_path):
    text = "7\t2010-10-21T00:00:00Z\t1\t1\t1\n7\t2010-10-21T00:00:00Z\t2\t2\t2\n"
    result = read(write(tmp_path, text), "checkins")
    assert result.merged == 1
    assert result.trajectories[0].latitude.tolist() == [1.0]


def test_user_can_be_selected(tmp_path):
    result = read(write(tmp_path, LINES.format("Z")), user="12")
    assert [t.user for t in result.trajectories] == ["12"]
    with pytest.raises(DataFileError, match="no usable fix"):
        read(write(tmp_path, LINES.format("Z")), user="99")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("7\t\t34.0\t-118.0\t1\n", "time must be ISO 8601 such as 2009-10-11T14:04:30Z, got ''"),
        (
            "7\t2010-10-21T00:03:50Z\t34.0\t-118.0\n",
            "a check-in must have user, time, latitude, longitude, place, separated by tabs, got 4 fields",
        ),
        ("\t2010-10-21T00:03:50Z\t34.0\t-118.0\t1\n", "user must not be empty"),
        ("7\t2010-10-21T00:03:50Z\t\t-118.0\t1\n", "latitude must be a decimal number, got ''"),
    ],
)
def test_malformed_line_raises_or_is_counted(tmp_path, bad, message):
    path = write(tmp_path, LINES.format("Z") + bad + LINES.format("+0000"))
    with pytest.raises(DataFileError) as caught:
        read(path, "checkins")
    assert f"{path}, line 4: {message}" in str(caught.value)
    result = read(path, "checkins", skip_bad=True)
    assert (result.points, result.merged, result.skipped) == (3, 3, {str(path): 1})


@pytest.mark.parametrize("cut", [5, 40, -4])
def test_truncated_gzip_raises_in_one_line(tmp_path, cut):
    path = write(tmp_path, LINES.format("Z") * 50, "c.txt.gz")
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataFileError, match="truncated or damaged") as caught:
        read(path)
    assert "\n" not in str(caught.value)


def test_real_check_ins_match_plain_loop(real_data):
    path = real_data / "gowalla" / "loc-gowalla_first10000.txt.gz"
    expected = {}
    for line in reversed(gzip.decompress(path.read_bytes()).decode().splitlines()):
        user, time, latitude, longitude, _ = line.split("\t")
        expected.setdefault(user, {})[time] = (float(latitude), float(longitude))
    result = read(path)
    assert len(result.trajectories) == 48
    for trajectory in result.trajectories:
        rows = sorted(expected[trajectory.user].items())
        assert [f"{t}Z" for t in trajectory.times.astype("M8[s]").astype(str)] == [time for time, _ in rows]
        assert list(zip(trajectory.latitude.tolist(), trajectory.longitude.tolist(), strict=True)) == [
            place for _, place in rows
        ]


@pytest.mark.slow
def test_los_angeles_extract_has_stated_counts(real_data):
    result = read(real_data / "gowalla" / "loc-gowalla_LA.txt.gz")
    assert (len(result.trajectories), result.points + result.merged) == (5827, 53787)
    assert sum(len(t) >= 50 for t in result.trajectories) == 192
