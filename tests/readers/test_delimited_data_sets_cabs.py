"""Cabspotting: one file per cab, newest fix first, in epoch seconds, with named errors."""

from __future__ import annotations

import tarfile

import pytest

from dphmm.errors import DataFileError
from dphmm.readers import read, recognise

LINES = "37.75134 -122.39488 0 1213084687\n37.75136 -122.39527 1 1213084659\n37.75199 -122.3946 0 1213084540\n"


def write_folder(tmp_path, text=LINES):
    place = tmp_path / "cabspottingdata"
    place.mkdir()
    (place / "new_abboip.txt").write_text(text)
    (place / "new_enyenewl.txt").write_text(LINES)
    (place / "_cabs.txt").write_text('<cab id="abboip" updates="3"/>\n')
    return place


def test_each_file_is_one_cab_in_time_order(tmp_path):
    result = read(write_folder(tmp_path))
    assert [trajectory.user for trajectory in result.trajectories] == ["abboip", "enyenewl"]
    cab = result.trajectories[0]
    assert cab.times.astype("M8[s]").astype(str).tolist() == [
        "2008-06-10T07:55:40", "2008-06-10T07:57:39", "2008-06-10T07:58:07",
    ]  # fmt: skip
    assert (cab.latitude.tolist()[-1], cab.longitude.tolist()[-1]) == (37.75134, -122.39488)


def test_archive_and_single_file_are_recognized(tmp_path):
    place = write_folder(tmp_path)
    with tarfile.open(tmp_path / "cabs.tar.gz", "w:gz") as packed:
        packed.add(place, "cabspottingdata")
    assert (
        recognise(place) == recognise(tmp_path / "cabs.tar.gz") == recognise(place / "new_abboip.txt") == "cabspotting"
    )
    assert read(tmp_path / "cabs.tar.gz") == read(place)
    (tmp_path / "download").write_text(LINES)
    assert recognise(tmp_path / "download") == "cabspotting"
    assert read(tmp_path / "download", user="x").trajectories[0].user == "x"


def test_first_line_of_equal_times_is_kept(tmp_path):
    result = read(write_folder(tmp_path, "1.0 1.0 0 100\n2.0 2.0 0 100\n"))
    assert result.merged == 1
    assert result.trajectories[0].latitude.tolist() == [1.0]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("37.7 -122.4 0\n", "4 fields .*got 3"),
        ("37.7 -122.4 2 1213084687\n", "fare must be .*'2'"),
        ("37.7 -122.4 0 1213084687.5\n", "time must be .*'1213084687.5'"),
        ("97.7 -122.4 0 1213084687\n", r"latitude .*\b97\.7\b"),
        ("x -122.4 0 1213084687\n", "latitude .*'x'"),
        ("37.7 -122.4 0 99999999999999\n", "time must be .*'99999999999999'"),
    ],
)
def test_malformed_line_raises_or_is_counted(tmp_path, bad, message):
    place = write_folder(tmp_path, LINES + bad)
    with pytest.raises(DataFileError, match=message) as caught:
        read(place)
    assert "new_abboip.txt" in str(caught.value)
    assert sum(read(place, skip_bad=True).skipped.values()) == 1
