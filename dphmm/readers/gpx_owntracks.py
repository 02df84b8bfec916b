"""Recordings of phones and receivers: GPX 1.0 and 1.1, and ``.rec`` files of OwnTracks.

GPX is parsed by gpxpy. The points of all tracks and segments are read with their times. Elevation, speed and course are
not used. The boundaries of segments are not kept: `dphmm.space.Trajectory.split` cuts at gaps in time. Routes and
waypoints are not records of movement and are skipped. A time without a zone is taken as UTC, as the format prescribes.
A receiver without a valid clock may have given every point the same timestamp. Such points become a single point, and
the result's `merged` contains the number of removed points.

OwnTracks files have one record per line: the time at which the recorder received it (ISO 8601), a type (``*``,
``event``, ``waypoints``, ``lwt``, ``-``), and a JSON object, separated by tabs (by runs of spaces in older files). Only
objects with ``_type`` ``location`` contain a location. Transitions, waypoints, last wills, encrypted and other records
are skipped and not counted as malformed. The time of a fix is its ``tst``, seconds since 1970; the recorder's own time
is that of the record's arrival, which may be hours later.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dphmm.errors import DataFileError, EmptyDataError
from dphmm.readers.fixes import FixCollector, Fixes, ReadOptions, collect_lines
from dphmm.space.fix_quality import parse_accuracy
from dphmm.space.trajectory import LATEST_SECOND, SENSORS, Recording, Segment, check_places
from dphmm.tables import read_document
from dphmm.tables.source import Document
from dphmm.tables.values import as_number, shorten, since_epoch
from dphmm.tables.vector_files import read_gpx


def gpx_fixes(document: Document, options: ReadOptions) -> Iterator[Fixes]:
    """Yield the track points of a GPX file, which contains no user.

    Parameters
    ----------
    document
        The file.
    options
        Options of the caller.

    Yields
    ------
    Fixes
        All points.

    Raises
    ------
    DataFileError
        If the file is not well-formed GPX (this includes invalid coordinates), contains no track point, or contains one
        without a time or with coordinates out of range (unless skipped).
    MissingDependencyError
        If gpxpy is not installed.
    """
    gpx = read_gpx(document)
    collector = FixCollector(document.source, options)
    if not gpx.get_track_points_no():
        other_points = f"{len(gpx.waypoints)} waypoints and {len(gpx.routes)} routes"
        raise EmptyDataError(
            document.source, f"contains no track point, only {other_points}; a trajectory needs a track with times"
        )
    for point, track, segment, number in gpx.walk():
        try:
            if point.time is None:
                raise ValueError("has no time; record the track with times, or remove the point")
            is_valid = point.type_of_gpx_fix != "none"
            time = since_epoch(point.time)
            collector.add(None, time, float(point.latitude), float(point.longitude), is_valid=is_valid)
        except ValueError as problem:
            collector.refuse(f"track {track + 1}, segment {segment + 1}, point {number + 1}: {problem}")
    yield collector.fixes()


ACTIVITIES = ("running", "cycling", "biking", "walking", "hiking", "swimming", "skating", "skiing", "rowing", "driving")
"""The types of tracks that are kept; any other string could contain personal data."""
_SENSOR_NAMES = {"heartrate": "hr", "cadence": "cad", "watts": "power", "powerinwatts": "power", "temp": "atemp"}
_FILE_FIELDS = (
    "name",
    "description",
    "author_name",
    "author_email",
    "link",
    "time",
    "keywords",
    "bounds",
    "extensions",
)
_TRACK_FIELDS = ("name", "comment", "description", "source", "link", "number", "extensions")
_POINT_FIELDS = ("name", "comment", "description", "source", "link", "symbol", "satellites")


def gpx_recording(path: Path) -> Recording:
    """Return the recording in a GPX file, point by point, with its sensors.

    Times may be missing. The file's metadata (names, descriptions, its author and time, bounds, links, totals) and its
    waypoints and routes are not read, and are listed as dropped. Of the extensions of a point those in `SENSORS` are
    read, regardless of namespace.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    Recording
        Its segments.

    Raises
    ------
    DataFileError
        If the file is not well formed, or contains no point or one with coordinates out of range.
    MissingDependencyError
        If gpxpy is not installed.
    """
    gpx = read_gpx(read_document(path))
    left: set[str] = {f"{name} of the file" for name in _FILE_FIELDS if getattr(gpx, name, None)}
    left |= {name for name in ("waypoints", "routes") if getattr(gpx, name)}
    segments = []
    for number, track in enumerate(gpx.tracks, start=1):
        left |= {f"{name} of tracks" for name in _TRACK_FIELDS if getattr(track, name, None)}
        for part in track.segments:
            left |= {"extensions of segments"} if part.extensions else set()
            if part.points:
                segment = _segment(path, number, part.points, left)
                segments.append(replace(segment, activity=_known_activity(track.type), track=number - 1))
    if not segments:
        raise DataFileError(path, "contains no track point; use a file with a recorded track")
    activity = next(filter(None, (_known_activity(track.type) for track in gpx.tracks)), None)
    if any(track.type and track.type != activity for track in gpx.tracks):
        left.add("type of tracks")
    return Recording(tuple(segments), activity, tuple(sorted(left)))


def _known_activity(track_type: str | None) -> str | None:
    return track_type if str(track_type).lower() in ACTIVITIES else None


def _segment(path: Path, track: int, points: list[Any], left: set[str]) -> Segment:
    latitude, longitude = (
        np.array([getattr(point, what) for point in points], float) for what in ("latitude", "longitude")
    )
    try:
        check_places(latitude, longitude, "points")
        times = [np.datetime64("NaT") if point.time is None else since_epoch(point.time) for point in points]
    except ValueError as problem:
        raise DataFileError(path, f"track {track}: {problem}") from None
    elevation = np.array([np.nan if point.elevation is None else point.elevation for point in points], float)
    extensions = [dict(_read_extensions(point)) for point in points]
    left |= {f"{name} of points" for fields in extensions for name in fields if name not in SENSORS}
    left |= {f"{name} of points" for point in points for name in _POINT_FIELDS if getattr(point, name, None)}
    sensors = {
        name: np.array([fields.get(name, np.nan) for fields in extensions])
        for name in SENSORS
        if any(name in fields for fields in extensions)
    }
    return Segment(latitude, longitude, np.array(times, "datetime64[us]"), elevation, sensors)


def _read_extensions(point: Any) -> Iterator[tuple[str, float]]:
    """Yield a point's extensions: lower-case name without namespace, and number or NaN."""
    for name in ("speed", "course"):  # of GPX 1.0
        if getattr(point, name, None) is not None:
            yield name, float(getattr(point, name))
    for element in (leaf for top in point.extensions for leaf in top.iter() if not len(leaf)):
        name = str(element.tag).rpartition("}")[2].lower()
        try:
            value = float(element.text or "")
        except ValueError:
            value = np.nan
        yield _SENSOR_NAMES.get(name, name), value if np.isfinite(value) else np.nan


def owntracks_fixes(document: Document, options: ReadOptions) -> Iterator[Fixes]:
    """Yield the locations of a file.

    By default the user is the second part of a record's topic (``owntracks/user/device``). A record without a topic
    has no user.

    Parameters
    ----------
    document
        The file.
    options
        Options of the caller.

    Yields
    ------
    Fixes
        All locations.

    Raises
    ------
    DataFileError
        For a malformed line, unless it is skipped.
    """
    collector = FixCollector(document.source, options)
    collect_lines(document.data.removeprefix(b"\xef\xbb\xbf"), 1, _add_record, collector)
    yield collector.fixes()


def _add_record(line: bytes, collector: FixCollector) -> None:
    record = _record(line)
    if record.get("_type") == "location":
        topic = str(record.get("topic", "")).split("/")
        user = (topic[1] if len(topic) >= 3 else "") or None
        time = _second(record.get("tst")) * 1_000_000
        latitude, longitude = (as_number(record.get(name), name) for name in ("lat", "lon"))
        collector.add(user, time, latitude, longitude, parse_accuracy(record.get("acc")))


def _record(line: bytes) -> dict[str, Any]:
    text = line.decode("utf-8", errors="replace")
    start = text.find("{")
    if start < 0 or not text[:start].strip():
        raise ValueError(f"a record must be a time, a type and a JSON object, got {shorten(text.strip())}")
    try:
        record = json.loads(text[start:])
    except (json.JSONDecodeError, RecursionError) as problem:
        raise ValueError(f"invalid JSON object ({problem}); the line may be cut off") from None
    if not isinstance(record, dict):
        raise ValueError("the JSON value must be an object")
    return record


def _second(value: object) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit():  # old apps write a string
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LATEST_SECOND:
        raise ValueError(f"tst must be an integer number of seconds since 1970, got {shorten(str(value))}")
    return value
