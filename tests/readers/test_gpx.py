"""GPX tracks: times, segments and errors, on synthetic and public files."""

from __future__ import annotations

from datetime import UTC

import gpxpy
import numpy as np
import pytest

from dphmm.errors import DataFileError
from dphmm.readers import read

POINT = '<trkpt lat="{0}" lon="{1}"><ele>777</ele><time>{2}</time></trkpt>'


def build_gpx(*segments, version="1.1", start="", encoding="UTF-8"):
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
def test_points_of_all_segments_are_sorted_by_time(tmp_path, version, start, encoding):
    data = build_gpx([NAIVE], [], [TWO, ONE], version=version, start=start, encoding=encoding)
    (trajectory,) = read(write(tmp_path, data)).trajectories
    assert trajectory.user == "walk"
    assert trajectory.times.astype(str).tolist() == [
        "2024-03-07T02:00:00.500000",
        "2024-03-07T03:00:00.000000",
        "2024-03-07T04:00:00.000000",
    ]
    assert trajectory.latitude.tolist() == [45.5, 45.6, 45.7]
    assert trajectory.longitude.tolist() == [-30.25, -30.35, -30.45]


def test_files_of_named_user_are_merged(tmp_path):
    write(tmp_path, build_gpx([TWO]), "b.gpx")
    write(tmp_path, build_gpx([ONE]), "a.gpx")
    with pytest.raises(DataFileError, match=r"a\.gpx: .*--user"):
        read(tmp_path)
    (trajectory,) = read(tmp_path, user="me").trajectories
    assert (trajectory.user, len(trajectory)) == ("me", 2)
    assert [t.user for t in read(tmp_path, user_per_file=True).trajectories] == ["a", "b"]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ('<trkpt lat="45" lon="7"/>', "track 1, segment 1, point 2: has no time"),
        (POINT.format(45, 7, "yesterday"), "track 1, segment 1, point 2: time must be ISO 8601"),
        (
            POINT.format(400.17, 7, "2024-03-07T02:00:00Z"),
            "track 1, segment 1, point 2: latitude must be in [-90, 90], got 400.17",
        ),
        (
            POINT.format("nan", 7, "2024-03-07T02:00:00Z"),
            "track 1, segment 1, point 2: latitude must be in [-90, 90], got nan",
        ),
    ],
)
def test_malformed_point_raises_or_is_counted(tmp_path, bad, message):
    path = write(tmp_path, build_gpx([ONE, bad, TWO]))
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
        build_gpx([ONE])[:-20],
        build_gpx([POINT.format("north", 7, "2024-03-07T02:00:00Z")]),
        build_gpx([ONE]).replace(b"UTF-8", b"no-such-code"),
        build_gpx([ONE]).replace("é".encode(), b"\xff"),
        build_gpx(),
        build_gpx([]),
        b"<html></html>",
    ],
)
def test_invalid_gpx_raises_in_one_line(tmp_path, data):
    with pytest.raises(DataFileError) as caught:
        read(write(tmp_path, data))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("trackintel/track2.gpx", "line 14: .*well-formed GPX"),
        ("gpxpy/unicode_with_bom.gpx", "contains no track point, only 1 waypoints"),
        ("gpxpy/cerknicko-without-times.gpx", "has no time"),
        ("gpxpy/korita-zbevnica.gpx", "has no time"),
    ],
)
def test_public_files_without_usable_track_raise_with_reason(real_data, name, message):
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
def test_public_tracks_are_read_completely(real_data, name, points, merged):
    path = real_data / "gpx" / name
    result = read(path)
    assert (result.points, result.merged) == (points, merged)
    parsed = gpxpy.parse(path.read_text(encoding="utf-8-sig"))
    assert sum(len(s.points) for t in parsed.tracks for s in t.segments) == points + merged
    (trajectory,) = result.trajectories
    last = max(p.time for t in parsed.tracks for s in t.segments for p in s.points).astimezone(UTC)
    assert np.datetime64(last.replace(tzinfo=None), "us") == trajectory.times[-1]


@pytest.mark.parametrize(
    "start",
    [
        '<!DOCTYPE gpx [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>',
        '<!DOCTYPE gpx [<!ENTITY a SYSTEM "file:///etc/passwd">]>',
    ],
)
def test_document_type_raises_before_expansion(tmp_path, start):
    data = build_gpx([ONE]).replace(b"?>\n", b"?>\n" + start.encode())
    with pytest.raises(DataFileError, match="document type"):
        read(write(tmp_path, data))


@pytest.mark.parametrize("encoding", ["punycode", "idna", "unicode_escape", "zip", "rot13", "undefined", "x" * 40])
def test_invalid_encoding_raises(tmp_path, encoding):
    with pytest.raises(DataFileError, match=f"encoding .*{encoding}"):
        read(write(tmp_path, build_gpx([ONE]).replace(b"UTF-8", encoding.encode())))
