"""Taxis of San Francisco: a file a cab, newest first, seconds since 1970; what is malformed is named."""

from __future__ import annotations

import tarfile

import pytest

from dphmm.errors import DataFileError
from dphmm.readers import read, recognise

LINES = "37.75134 -122.39488 0 1213084687\n37.75136 -122.39527 1 1213084659\n37.75199 -122.3946 0 1213084540\n"


def folder(tmp_path, text=LINES):
    place = tmp_path / "cabspottingdata"
    place.mkdir()
    (place / "new_abboip.txt").write_text(text)
    (place / "new_enyenewl.txt").write_text(LINES)
    (place / "_cabs.txt").write_text('<cab id="abboip" updates="3"/>\n')
    return place


def test_each_file_is_a_cab_s_oldest_first(tmp_path):
    result = read(folder(tmp_path))
    assert [one.user for one in result.trajectories] == ["abboip", "enyenewl"]
    cab = result.trajectories[0]
    assert cab.times.astype("M8[s]").astype(str).tolist() == [
        "2008-06-10T07:55:40", "2008-06-10T07:57:39", "2008-06-10T07:58:07",
    ]  # fmt: skip
    assert (cab.latitude.tolist()[-1], cab.longitude.tolist()[-1]) == (37.75134, -122.39488)


def test_an_archive_and_a_single_file_are_recognised(tmp_path):
    place = folder(tmp_path)
    with tarfile.open(tmp_path / "cabs.tar.gz", "w:gz") as packed:
        packed.add(place, "cabspottingdata")
    assert (
        recognise(place) == recognise(tmp_path / "cabs.tar.gz") == recognise(place / "new_abboip.txt") == "cabspotting"
    )
    assert read(tmp_path / "cabs.tar.gz") == read(place)
    (tmp_path / "download").write_text(LINES)
    assert recognise(tmp_path / "download") == "cabspotting"
    assert read(tmp_path / "download", user="x").trajectories[0].user == "x"


def test_of_equal_times_the_one_that_stands_first_is_the_newest_and_is_kept(tmp_path):
    result = read(folder(tmp_path, "1.0 1.0 0 100\n2.0 2.0 0 100\n"))
    assert result.merged == 1
    assert result.trajectories[0].latitude.tolist() == [1.0]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("37.7 -122.4 0\n", "has 3 fields"),
        ("37.7 -122.4 2 1213084687\n", "a fare is '2'"),
        ("37.7 -122.4 0 1213084687.5\n", "the time is '1213084687.5'"),
        ("97.7 -122.4 0 1213084687\n", "latitude is 97.7"),
        ("x -122.4 0 1213084687\n", "latitude is 'x'"),
        ("37.7 -122.4 0 99999999999999\n", "the time is"),
    ],
)
def test_a_malformed_line_is_named_or_counted(tmp_path, bad, message):
    place = folder(tmp_path, LINES + bad)
    with pytest.raises(DataFileError, match=message) as caught:
        read(place)
    assert "new_abboip.txt" in str(caught.value)
    assert sum(read(place, skip_bad=True).skipped.values()) == 1
