"""GPX tracks: times, segments and flaws, on files of our own and on the public ones."""

from __future__ import annotations

import sys
from datetime import UTC

import gpxpy
import numpy as np
import pytest

from dphmm.errors import DataFileError, MissingDependencyError
from dphmm.readers import read

POINT = '<trkpt lat="{0}" lon="{1}"><ele>777</ele><time>{2}</time></trkpt>'


def gpx_of(*segments, version="1.1", start="", encoding="UTF-8"):
    body = "".join(f"<trkseg>{''.join(segment)}</trkseg>" for segment in segments)
    space = "http://www.topografix.com/GPX/" + version.replace(".", "/")
    head = f'{start}<?xml version="1.0" encoding="{encoding}"?>\n<gpx version="{version}" creator="é" xmlns="{space}">'
    return f"{head}<trk>{body}</trk></gpx>".encode(encoding)


def write(tmp_path, data, name="walk.gpx"):
    path = tmp_path / name
    path.write_bytes(data)
    return path


ONE = POINT.format(45.5, -30.25, "2024-03-07T02:00:00.5Z")
TWO = POINT.format(45.6, -30.35, "2024-03-07T05:00:00+02:00")
NAIVE = POINT.format(45.7, -30.45, "2024-03-07T04:00:00")


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize(
    ("start", "encoding"), [("", "UTF-8"), ("\ufeff", "UTF-8"), ("", "ISO-8859-1"), ("", "UTF-16")]
)
def test_points_of_all_segments_are_taken_by_their_time(tmp_path, version, start, encoding):
    data = gpx_of([NAIVE], [], [TWO, ONE], version=version, start=start, encoding=encoding)
    (made,) = read(write(tmp_path, data)).trajectories
    assert made.user == "walk"
    assert made.times.astype(str).tolist() == [
        "2024-03-07T02:00:00.500000",
        "2024-03-07T03:00:00.000000",
        "2024-03-07T04:00:00.000000",
    ]
    assert made.latitude.tolist() == [45.5, 45.6, 45.7]
    assert made.longitude.tolist() == [-30.25, -30.35, -30.45]


def test_several_files_of_one_person_are_joined_when_the_person_is_named(tmp_path):
    write(tmp_path, gpx_of([TWO]), "b.gpx")
    write(tmp_path, gpx_of([ONE]), "a.gpx")
    with pytest.raises(DataFileError, match=r"a\.gpx: does not say whose fixes it holds; name the person with --user"):
        read(tmp_path)
    (made,) = read(tmp_path, user="me").trajectories
    assert (made.user, len(made)) == ("me", 2)
    assert [t.user for t in read(tmp_path, user_per_file=True).trajectories] == ["a", "b"]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ('<trkpt lat="45" lon="7"/>', "track 1, segment 1, point 2: has no time"),
        (POINT.format(45, 7, "yesterday"), "track 1, segment 1, point 2: has no time"),
        (POINT.format(400.17, 7, "2024-03-07T02:00:00Z"), "track 1, segment 1, point 2: latitude is 400.17"),
        (POINT.format("nan", 7, "2024-03-07T02:00:00Z"), "track 1, segment 1, point 2: latitude is nan"),
    ],
)
def test_a_malformed_point_is_named_and_can_be_skipped_and_counted(tmp_path, bad, message):
    path = write(tmp_path, gpx_of([ONE, bad, TWO]))
    with pytest.raises(DataFileError) as caught:
        read(path, "gpx")
    assert message in str(caught.value)
    result = read(path, "gpx", skip_bad=True)
    assert (result.points, result.skipped) == (2, {str(path): 1})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<gpx",
        gpx_of([ONE])[:-20],
        gpx_of([POINT.format("north", 7, "2024-03-07T02:00:00Z")]),
        gpx_of([ONE]).replace(b"UTF-8", b"no-such-code"),
        gpx_of([ONE]).replace("é".encode(), b"\xff"),
        gpx_of(),
        gpx_of([]),
        b"<html></html>",
    ],
)
def test_what_is_no_track_is_one_line_of_error(tmp_path, data):
    with pytest.raises(DataFileError) as caught:
        read(write(tmp_path, data))
    assert "\n" not in str(caught.value)


def test_without_gpxpy_the_extra_is_named(tmp_path, monkeypatch):
    path = write(tmp_path, gpx_of([ONE]))
    monkeypatch.setitem(sys.modules, "gpxpy", None)
    with pytest.raises(MissingDependencyError, match=r"dphmm\[files\]"):
        read(path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("trackintel/track2.gpx", "line 14: is no well-formed GPX"),
        ("gpxpy/unicode_with_bom.gpx", "holds no track point, only 1 waypoints"),
        ("gpxpy/cerknicko-without-times.gpx", "has no time"),
        ("gpxpy/korita-zbevnica.gpx", "has no time"),
    ],
)
def test_public_files_that_hold_no_usable_track_say_why(real_data, name, message):
    with pytest.raises(DataFileError, match=message):
        read(real_data / "gpx" / name)


@pytest.mark.parametrize(
    ("name", "points", "merged"),
    [
        ("gpxpy/Mojstrovka.gpx", 2, 182),
        ("gpxpy/around-visnjan-with-car.gpx", 104, 0),
        ("gpxpy/cerknicko-jezero.gpx", 296, 0),
        ("gpxpy/gpx1.1_with_all_fields.gpx", 1, 0),
        ("gpxpy/track-with-empty-segment.gpx", 9, 0),
        ("gpxpy/track-with-less-sec-time.gpx", 2, 0),
        ("trackintel/track1.gpx", 1, 0),
    ],
)
def test_public_tracks_are_read_whole(real_data, name, points, merged):
    path = real_data / "gpx" / name
    result = read(path)
    assert (result.points, result.merged) == (points, merged)
    parsed = gpxpy.parse(path.read_text(encoding="utf-8-sig"))
    assert sum(len(s.points) for t in parsed.tracks for s in t.segments) == points + merged
    (made,) = result.trajectories
    last = max(p.time for t in parsed.tracks for s in t.segments for p in s.points).astimezone(UTC)
    assert np.datetime64(last.replace(tzinfo=None), "us") == made.times[-1]


@pytest.mark.parametrize(
    "start",
    [
        '<!DOCTYPE gpx [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>',
        '<!DOCTYPE gpx [<!ENTITY a SYSTEM "file:///etc/passwd">]>',
    ],
)
def test_a_document_type_is_refused_before_anything_is_expanded(tmp_path, start):
    data = gpx_of([ONE]).replace(b"?>\n", b"?>\n" + start.encode())
    with pytest.raises(DataFileError, match="it declares a document type"):
        read(write(tmp_path, data))


@pytest.mark.parametrize("encoding", ["punycode", "idna", "unicode_escape", "zip", "rot13", "undefined", "x" * 40])
def test_encodings_that_are_no_text_are_refused(tmp_path, encoding):
    with pytest.raises(DataFileError, match=f"its encoding is {encoding}, not UTF-8"):
        read(write(tmp_path, gpx_of([ONE]).replace(b"UTF-8", encoding.encode())))
