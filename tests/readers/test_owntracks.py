"""OwnTracks: location records with their own time, and errors with line numbers."""

from __future__ import annotations

import json
import re

import pytest

from dphmm.errors import DataFileError
from dphmm.readers import read


def format_record(kind="location", **fields):
    values = {"_type": kind, "tst": 1709283789, "lat": 52.225, "lon": 13.332, "alt": 36, "vel": 5, "cog": 98} | fields
    return json.dumps({key: value for key, value in values.items() if value is not ...})


def format_line(text, separator="\t"):
    return f"2024-03-01T09:03:09Z{separator}*{separator}{text}\n"


def write(tmp_path, text, name="2024-03.rec"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("separator", ["\t", "                  \t", "   "])
def test_only_location_records_are_read_with_their_own_time(tmp_path, separator):
    text = "".join(
        format_line(format_record(**fields), separator)
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
    (trajectory,) = result.trajectories
    assert trajectory.times.astype("M8[s]").astype(int).tolist() == [1709283789, 1709283799]
    assert trajectory.latitude.tolist() == [52.225, 52.3]
    assert result.skipped == {}


def test_user_comes_from_topic_file_name_or_caller(tmp_path):
    with_topic, without_topic = (
        format_line(format_record(topic="owntracks/ada/iPhone 12 Pro")),
        format_line(format_record()) + format_line(format_record(topic="odd")),
    )
    assert [t.user for t in read(write(tmp_path, with_topic)).trajectories] == ["ada"]
    result = read(write(tmp_path, without_topic, "grace.rec"))
    assert ([t.user for t in result.trajectories], list(result.unnamed), result.merged) == (["grace"], ["grace"], 1)
    both = write(tmp_path, with_topic + without_topic, "grace.rec")
    with pytest.raises(DataFileError, match=r"whose|--user"):
        read(both)
    assert [t.user for t in read(both, user="me").trajectories] == ["me"]


def test_time_as_string_is_read(tmp_path):
    assert read(write(tmp_path, format_line(format_record(tst="1709283789")))) == read(
        write(tmp_path, format_line(format_record()))
    )


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (format_line(format_record(tst=...)), "tst must be an integer number of seconds since 1970, got no value"),
        (format_line(format_record(tst=1.5)), "tst must be an integer number of seconds since 1970, got '1.5'"),
        (
            format_line(format_record(tst=10**15)),
            "tst must be an integer number of seconds since 1970, got '1000000000000000'",
        ),
        (format_line(format_record(tst=True)), "tst must be an integer number of seconds since 1970, got 'True'"),
        (format_line(format_record(lat=...)), "lat must be a decimal number, got no value"),
        (format_line(format_record(lat="52")), "lat must be a decimal number, got '52'"),
        (format_line(format_record(lon=float("nan"))), "longitude must be in [-180, 180], got nan"),
        (format_line(format_record(lat=400.17)), "latitude must be in [-90, 90], got 400.17"),
        (format_line(format_record())[:-9] + "\n", "invalid JSON object"),
        ("half a li\n", "a record must be a time, a type and a JSON object, got 'half a li'"),
        (format_record() + "\n", "a record must be a time, a type and a JSON object"),
    ],
)
def test_malformed_line_raises_or_is_counted(tmp_path, bad, message):
    path = write(tmp_path, format_line(format_record()) + bad + format_line(format_record(tst=1709283799)))
    with pytest.raises(DataFileError) as caught:
        read(path, "owntracks")
    assert str(caught.value).startswith(f"{path}, line 2: ")
    assert message in str(caught.value)
    result = read(path, "owntracks", skip_bad=True)
    assert (result.points, result.skipped) == (2, {str(path): 1})


def test_file_without_locations_raises(tmp_path):
    with pytest.raises(DataFileError, match="type location"):
        read(write(tmp_path, format_line(format_record(kind="lwt"))))


@pytest.mark.parametrize(
    ("name", "user", "points", "merged", "inaccurate"),
    [
        ("dawarich/2023-02_old.rec", "pixel6", 8, 2, 0),
        ("dawarich/2024-03.rec", "test", 7, 2, 0),
        ("recorder/demo-iphone.rec", "demo-iphone", 8, 0, 15),
    ],
)
def test_public_records_are_read_completely(real_data, name, user, points, merged, inaccurate):
    path = real_data / "owntracks" / name
    result = read(path)
    assert [(t.user, len(t)) for t in result.trajectories] == [(user, points)]
    assert (result.merged, sum(result.refused.values())) == (merged, inaccurate)
    text = path.read_text()
    assert sum('"_type":"location"' in line for line in text.splitlines()) == points + merged + inaccurate
    assert sum(int(radius) >= 1000 for radius in re.findall(r'"acc":(\d+)', text)) == inaccurate
