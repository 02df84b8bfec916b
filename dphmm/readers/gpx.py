"""GPX 1.0 and 1.1, read by gpxpy.

The points of all tracks and segments are taken, by their time; elevation, speed and course are not looked at. Where
one segment ends and the next begins is not kept: `dphmm.space.Trajectory.split` cuts where time passed. Routes and
waypoints are no record of movement and are passed over. A time without a zone is taken as UTC, as the format
prescribes. A receiver that had lost its clock may have given every point one timestamp: they become one point then,
and the result's `merged` says how many went.
"""

from __future__ import annotations

from collections.abc import Iterator

from dphmm.errors import DataFileError
from dphmm.readers.fixes import FixCollector, Fixes
from dphmm.tables.gpx_file import read_gpx
from dphmm.tables.source import Document
from dphmm.tables.values import since_epoch

SUFFIXES = frozenset({".gpx"})


def fixes(document: Document, skip_bad: bool, user: str | None) -> Iterator[Fixes]:
    """The track points of a file; GPX does not say whose they are.

    Raises
    ------
    DataFileError
        For a file that is no well-formed GPX (a coordinate that is no number included), holds no track point, or holds
        one without a time or off the Earth (unless skipped).
    MissingDependencyError
        When gpxpy is not installed.
    """
    gpx = read_gpx(document)
    collector = FixCollector(document.source, skip_bad, user)
    if not gpx.get_track_points_no():
        beside = f"{len(gpx.waypoints)} waypoints and {len(gpx.routes)} routes"
        raise DataFileError(
            document.source, f"holds no track point, only {beside}; a trajectory needs a track with times"
        )
    for point, track, segment, number in gpx.walk():
        try:
            if point.time is None:
                raise ValueError("has no time; record the track with times, or remove the point")
            collector.add(None, since_epoch(point.time), float(point.latitude), float(point.longitude))
        except ValueError as problem:
            collector.refuse(f"track {track + 1}, segment {segment + 1}, point {number + 1}: {problem}")
    yield collector.fixes()
