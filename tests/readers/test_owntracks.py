"""OwnTracks: only locations count, their own time counts, and a flaw is named with its line."""

from __future__ import annotations

import json

import pytest

from dphmm.errors import DataFileError
from dphmm.readers import read


def record(kind="location", **fields):
    values = {"_type": kind, "tst": 1709283789, "lat": 52.225, "lon": 13.332, "alt": 36, "vel": 5, "cog": 98} | fields
    return json.dumps({key: value for key, value in values.items() if value is not ...})


def line(text, separator="\t"):
    return f"2024-03-01T09:03:09Z{separator}*{separator}{text}\n"


def write(tmp_path, text, name="2024-03.rec"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("separator", ["\t", "                  \t", "   "])
def test_only_locations_are_taken_at_their_own_time(tmp_path, separator):
    text = "".join(
        line(record(**fields), separator)
        for fields in [
            {"tst": 1709283799, "lat": 52.3},
            {},
            {"kind": "transition"},
            {"kind": "waypoint"},
            {"kind": "lwt", "lat": ..., "lon": ...},
            {"kind": "encrypted"},
        ]
    )
    result = read(write(tmp_path, text + "\n"))
    (made,) = result.trajectories
    assert made.times.astype("M8[s]").astype(int).tolist() == [1709283789, 1709283799]
    assert made.latitude.tolist() == [52.225, 52.3]
    assert result.skipped == {}


def test_the_user_is_the_topics_second_part_or_the_lone_files_name_or_the_callers(tmp_path):
    said, unsaid = line(record(topic="owntracks/ada/iPhone 12 Pro")), line(record()) + line(record(topic="odd"))
    assert [t.user for t in read(write(tmp_path, said)).trajectories] == ["ada"]
    result = read(write(tmp_path, unsaid, "grace.rec"))
    assert ([t.user for t in result.trajectories], list(result.unnamed), result.merged) == (["grace"], ["grace"], 1)
    both = write(tmp_path, said + unsaid, "grace.rec")
    with pytest.raises(DataFileError, match="does not say whose fixes it holds"):
        read(both)
    assert [t.user for t in read(both, user="me").trajectories] == ["me"]


def test_a_time_written_as_text_is_read(tmp_path):
    assert read(write(tmp_path, line(record(tst="1709283789")))) == read(write(tmp_path, line(record())))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (line(record(tst=...)), "tst is 'None'"),
        (line(record(tst=1.5)), "tst is '1.5'"),
        (line(record(tst=10**15)), "tst is '1000000000000000'"),
        (line(record(tst=True)), "tst is 'True'"),
        (line(record(lat=...)), "lat is 'None'"),
        (line(record(lat="52")), "lat is '52'"),
        (line(record(lon=float("nan"))), "longitude is nan"),
        (line(record(lat=400.17)), "latitude is 400.17"),
        (line(record())[:-9] + "\n", "the JSON object does not read"),
        ("half a li\n", "line is 'half a li'"),
        (record() + "\n", "a record is a time, a kind and a JSON object"),
    ],
)
def test_a_malformed_line_is_named_and_can_be_skipped_and_counted(tmp_path, bad, message):
    path = write(tmp_path, line(record()) + bad + line(record(tst=1709283799)))
    with pytest.raises(DataFileError) as caught:
        read(path, "owntracks")
    assert str(caught.value).startswith(f"{path}, line 2: ")
    assert message in str(caught.value)
    result = read(path, "owntracks", skip_bad=True)
    assert (result.points, result.skipped) == (2, {str(path): 1})


def test_a_file_without_any_location_says_so(tmp_path):
    with pytest.raises(DataFileError, match="no record of type location"):
        read(write(tmp_path, line(record(kind="lwt"))))


@pytest.mark.parametrize(
    ("name", "user", "points", "merged"),
    [
        ("dawarich/2023-02_old.rec", "pixel6", 8, 2),
        ("dawarich/2024-03.rec", "test", 7, 2),
        ("recorder/demo-iphone.rec", "demo-iphone", 23, 0),
    ],
)
def test_public_records_are_read_whole(real_data, name, user, points, merged):
    path = real_data / "owntracks" / name
    result = read(path)
    assert [(t.user, len(t)) for t in result.trajectories] == [(user, points)]
    assert result.merged == merged
    assert sum('"_type":"location"' in text for text in path.read_text().splitlines()) == points + merged
