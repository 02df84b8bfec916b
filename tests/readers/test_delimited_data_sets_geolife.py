"""GeoLife: every layout gives equal trajectories, and errors name file and line."""

from __future__ import annotations

import tarfile
import zipfile

import numpy as np
import pytest

from dphmm.errors import DataFileError
from dphmm.readers import read

HEADER = b"Geolife trajectory\r\nWGS 84\r\nAltitude is in Feet\r\nReserved 3\r\n0,2,255,My Track,0,0,2,8421376\r\n0\r\n"
FIRST = b"39.984702,116.318417,0,492,39744.1201851852,2008-10-23,02:53:04\r\n"
SECOND = b"39.984683,116.31845,0,-777,39744.1202546296,2008-10-23,02:53:10\r\n"


@pytest.fixture
def folder(tmp_path):
    for user, name, lines in [
        ("000", "20081023025304", FIRST + SECOND),
        ("000", "20081022000000", FIRST.replace(b"2008-10-23", b"2008-10-22")),
        ("001", "20081023025304", SECOND),
    ]:
        place = tmp_path / "Data" / user / "Trajectory"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{name}.plt").write_bytes(HEADER + lines)
    (tmp_path / "Data" / "000" / "labels.txt").write_text("Start Time\tEnd Time\tTransportation Mode\n")
    (tmp_path / "Data" / "001" / "Trajectory" / "._20081023025304.plt").write_bytes(b"junk of another system")
    return tmp_path


def write_archives(folder, target):
    with tarfile.open(target / "g.tar.gz", "w:gz") as tar:
        tar.add(folder / "Data", "Data")
    with zipfile.ZipFile(target / "g.zip", "w") as packed:
        for file in sorted((folder / "Data").rglob("*")):
            packed.write(file, f"Geolife Trajectories 1.3/{file.relative_to(folder)}")
    return target / "g.tar.gz", target / "g.zip"


def test_folder_and_archives_give_equal_trajectories(folder, tmp_path_factory):
    read_all = [
        read(path) for path in (folder, folder / "Data", *write_archives(folder, tmp_path_factory.mktemp("packed")))
    ]
    for result in read_all:
        assert result == read_all[0]
    first, second = read_all[0].trajectories
    assert (first.user, second.user) == ("000", "001")
    assert first.times.astype("M8[s]").astype(str).tolist() == [
        "2008-10-22T02:53:04",
        "2008-10-23T02:53:04",
        "2008-10-23T02:53:10",
    ]
    assert first.latitude.tolist() == [39.984702, 39.984702, 39.984683]
    assert first.longitude.tolist() == [116.318417, 116.318417, 116.31845]


def test_single_file_takes_user_from_folder_or_file_name(folder, tmp_path):
    inside = folder / "Data" / "001" / "Trajectory" / "20081023025304.plt"
    outside = tmp_path / "walk.plt"
    outside.write_bytes(inside.read_bytes())
    assert [read(path).trajectories[0].user for path in (inside, outside)] == ["001", "walk"]
    assert read(inside, user="me").trajectories[0].user == "me"


def write(tmp_path, data):
    path = tmp_path / "a.plt"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (b"400.17,116.3,0,492,39744.1,2008-10-23,02:53:04\r\n", "latitude must be in [-90, 90], got 400.17"),
        (b"39.98,216.3,0,492,39744.1,2008-10-23,02:53:04\r\n", "longitude must be in [-180, 180], got 216.3"),
        (
            b"39.98,116.3,0,492,39744.1,2008-13-23,02:53:04\r\n",
            "time must be ISO 8601 such as 2009-10-11T14:04:30Z, got '2008-13-23T02:53:04'",
        ),
        (b"39.98,116.3,0,492,39744.1,2008-10-23\r\n", "a line of a .plt must have 7 fields, got 6"),
        (b"nan,116.3,0,492,39744.1,2008-10-23,02:53:04\r\n", "latitude must be in [-90, 90], got nan"),
        (
            b"39.98,116.3,0,492,39744.1,23.10.2008,02:53\r\n",
            "date and time must have the form 2009-10-11,14:04:30, got '23.10.2008,02:53'",
        ),
        (b"\xff\xfe\x00binary\r\n", "a line of a .plt must have 7 fields, got 1"),
    ],
)
def test_malformed_line_raises_or_is_counted(tmp_path, bad, message):
    path = write(tmp_path, HEADER + FIRST + bad + SECOND + bad)
    with pytest.raises(DataFileError) as caught:
        read(path, "geolife")
    assert str(caught.value).startswith(f"{path}, line 8: {message}")
    assert caught.value.line == 8
    assert "\n" not in str(caught.value)
    result = read(path, "geolife", skip_bad=True)
    assert (result.points, result.skipped) == (2, {str(path): 2})


def test_last_of_equal_times_is_kept(tmp_path):
    moved = FIRST.replace(b"39.984702", b"39.5")
    result = read(write(tmp_path, HEADER + FIRST + FIRST + moved + SECOND), "geolife")
    assert result.merged == 2
    assert result.trajectories[0].latitude.tolist() == [39.5, 39.984683]


def test_missing_final_newline_and_line_feeds_are_accepted(tmp_path):
    data = (HEADER + FIRST + SECOND).replace(b"\r\n", b"\n").removesuffix(b"\n")
    assert read(write(tmp_path, data), "geolife").points == 2


@pytest.mark.parametrize(
    ("data", "message"), [(b"", "6 header lines .*got 0"), (HEADER[:30], "6 header lines .*got 2")]
)
def test_file_without_header_raises(tmp_path, data, message):
    with pytest.raises(DataFileError, match=message):
        read(write(tmp_path, data), "geolife")


def test_folder_without_points_raises(tmp_path):
    with pytest.raises(DataFileError, match=r"no \.plt"):
        read(tmp_path, "geolife")
    path = write(tmp_path, HEADER)
    with pytest.raises(DataFileError, match="no usable fix"):
        read(path)


def test_altitude_is_ignored(tmp_path):
    high = read(write(tmp_path, HEADER + FIRST.replace(b",492,", b",12345,")), "geolife")
    assert high == read(write(tmp_path, HEADER + FIRST), "geolife")


@pytest.mark.slow
def test_published_edge_cases_behave_as_documented(real_data):
    path = real_data / "geolife" / "geolife_edge_cases.tar.gz"
    with pytest.raises(DataFileError, match=r"020/Trajectory/20110911000506\.plt, line 6782: latitude .*400\.16"):
        read(path)
    result = read(path, skip_bad=True)
    assert list(result.skipped.values()) == [1]
    by_user = {t.user: t for t in result.trajectories}
    assert {user: len(t) for user, t in by_user.items()} == {
        "010": 35, "020": 21993, "078": 3, "118": 3, "153": 11, "163": 3
    }  # fmt: skip
    assert by_user["163"].times[0] == np.datetime64("2000-01-01T23:12:19")
    assert by_user["118"].longitude.min() > 0
    assert 41 < by_user["153"].latitude.min() < 42


@pytest.mark.slow
def test_beijing_extract_matches_plain_loop(real_data):
    path = real_data / "geolife" / "geolife_beijing.tar.gz"
    result = read(path)
    users = (real_data / "geolife" / "geolife_users.tsv").read_text().splitlines()[1:]
    assert [t.user for t in result.trajectories] == [row.split("\t")[0] for row in users]
    assert result.skipped == {}
    expected = {}
    with tarfile.open(path) as archive:
        for member in archive:
            if member.name.startswith("Data/065/Trajectory/"):
                content = archive.extractfile(member)
                assert content is not None
                for line in content.read().decode().splitlines()[6:]:
                    f = line.split(",")
                    expected[np.datetime64(f"{f[5]}T{f[6]}", "us")] = (float(f[0]), float(f[1]))
    trajectory = next(t for t in result.trajectories if t.user == "065")
    assert trajectory.times.tolist() == [t.tolist() for t in sorted(expected)]
    assert trajectory.latitude.tolist() == [expected[t][0] for t in sorted(expected)]
    assert trajectory.longitude.tolist() == [expected[t][1] for t in sorted(expected)]
