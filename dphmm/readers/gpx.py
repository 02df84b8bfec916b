"""GPX 1.0 and 1.1, read by gpxpy.

The points of all tracks and segments are taken, by their time; elevation, speed and course are not looked at. Where
one segment ends and the next begins is not kept: `dphmm.space.Trajectory.split` cuts where time passed. Routes and
waypoints are no record of movement and are passed over. A time without a zone is taken as UTC, as the format
prescribes. A receiver that had lost its clock may have given every point one timestamp: they become one point then,
and the result's `merged` says how many went.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from dphmm.errors import DataFileError, need
from dphmm.readers.fixes import FixCollector, Fixes, user_of_file
from dphmm.tables.source import Document
from dphmm.tables.values import one_line, since_epoch

SUFFIXES = frozenset({".gpx"})
_ENCODING = re.compile(rb"""^\s*<\?xml[^>]*?encoding\s*=\s*["']([A-Za-z][\w.-]*)["']""")
_LINE = re.compile(r"\bline (\d+)")


def fixes(document: Document, skip_bad: bool, user: str | None) -> Iterator[Fixes]:
    """The track points of a file; GPX does not say whose they are, so by default the user is named after the file.

    Raises
    ------
    DataFileError
        For a file that is no well-formed GPX (a coordinate that is no number included), holds no track point, or holds
        one without a time or off the Earth (unless skipped).
    MissingDependencyError
        When gpxpy is not installed.
    """
    gpx = _parsed(document)
    collector = FixCollector(document.source, skip_bad)
    owner = user or user_of_file(document.source)
    if not gpx.get_track_points_no():
        beside = f"{len(gpx.waypoints)} waypoints and {len(gpx.routes)} routes"
        raise DataFileError(
            document.source, f"holds no track point, only {beside}; a trajectory needs a track with times"
        )
    for point, track, segment, number in gpx.walk():
        try:
            if point.time is None:
                raise ValueError("has no time; record the track with times, or remove the point")
            collector.add(owner, since_epoch(point.time), float(point.latitude), float(point.longitude))
        except ValueError as problem:
            collector.refuse(f"track {track + 1}, segment {segment + 1}, point {number + 1}: {problem}")
    yield collector.fixes()


def _parsed(document: Document) -> Any:
    gpxpy, gpx = need("gpxpy", "files"), need("gpxpy.gpx", "files")
    try:
        return gpxpy.parse(_text(document.data))
    except (gpx.GPXException, ValueError, TypeError, LookupError, AttributeError) as problem:
        reason = one_line(problem)
        place = _LINE.search(reason)
        line = int(place.group(1)) if place else None
        raise DataFileError(document.source, f"is no well-formed GPX ({reason}); export it again", line) from None


def _text(data: bytes) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16")
    data = data.removeprefix(b"\xef\xbb\xbf")
    declared = _ENCODING.match(data)
    return data.decode(declared.group(1).decode("ascii") if declared else "utf-8")
