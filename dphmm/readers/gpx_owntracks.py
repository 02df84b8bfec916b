"""Recordings of phones and receivers: GPX 1.0 and 1.1, and OwnTracks Recorder's ``.rec`` files.

GPX is parsed by gpxpy. The points of all tracks and segments are taken, by their time; elevation, speed and course are
not looked at. Where one segment ends and the next begins is not kept: `dphmm.space.Trajectory.split` cuts where time
passed. Routes and waypoints are no record of movement and are passed over. A time without a zone is taken as UTC, as
the format prescribes. A receiver that had lost its clock may have given every point one timestamp: they become one
point then, and the result's `merged` says how many went.

OwnTracks: one record a line: the time at which the recorder received it (ISO 8601), a kind (``*``, ``event``,
``waypoints``, ``lwt``, ``-``), and a JSON object, separated by tabs (by runs of spaces in older files). Only objects
whose ``_type`` is ``location`` say where the person was; transitions, waypoints, last wills, encrypted and other
records are passed over and are not counted as malformed. The time of a fix is its ``tst``, seconds since 1970; the
recorder's own time is that of its arrival, which may be hours later.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dphmm.errors import DataFileError
from dphmm.readers.fixes import FixCollector, Fixes, ReadOptions, collect_lines
from dphmm.space.trajectory import LATEST_SECOND, SENSORS, Recording, Segment, check_places
from dphmm.tables import read_document
from dphmm.tables.source import Document
from dphmm.tables.values import as_number, shorten, since_epoch
from dphmm.tables.vector_files import read_gpx


def gpx_fixes(document: Document, options: ReadOptions) -> Iterator[Fixes]:
    """Yield the track points of a file; GPX does not say whose they are.

    Parameters
    ----------
    document
        The file.
    options
        What the caller says of it.

    Yields
    ------
    Fixes
        All points.

    Raises
    ------
    DataFileError
        For a file that is no well-formed GPX (a coordinate that is no number included), holds no track point, or holds
        one without a time or off the Earth (unless skipped).
    MissingDependencyError
        When gpxpy is not installed.
    """
    gpx = read_gpx(document)
    collector = FixCollector(document.source, options)
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


ACTIVITIES = ("running", "cycling", "biking", "walking", "hiking", "swimming", "skating", "skiing", "rowing", "driving")
"""The types of tracks that are kept; another text might say anything."""
_CALLED = {"heartrate": "hr", "cadence": "cad", "watts": "power", "powerinwatts": "power", "temp": "atemp"}
_OF_FILE = ("name", "description", "author_name", "author_email", "link", "time", "keywords", "bounds", "extensions")
_OF_TRACK = ("name", "comment", "description", "source", "link", "number", "extensions")
_OF_POINT = ("name", "comment", "description", "source", "link", "symbol", "satellites")


def gpx_recording(path: Path) -> Recording:
    """What a device recorded in a GPX file, point by point, with what sensors said; the file may be without times.

    What the file says of itself (names, descriptions, its author and time, bounds, links, totals) and what stands in it
    besides tracks (waypoints, routes) is not read, and named as left out. Of the extensions of a point those of
    `SENSORS` are read, whatever their namespace.

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
        When the file is not well formed, holds no point, or one off the Earth.
    MissingDependencyError
        When gpxpy is not installed.
    """
    gpx = read_gpx(read_document(path))
    left: set[str] = {f"{name} of the file" for name in _OF_FILE if getattr(gpx, name, None)}
    left |= {name for name in ("waypoints", "routes") if getattr(gpx, name)}
    segments = []
    for number, track in enumerate(gpx.tracks, start=1):
        left |= {f"{name} of tracks" for name in _OF_TRACK if getattr(track, name, None)}
        for part in track.segments:
            left |= {"extensions of segments"} if part.extensions else set()
            if part.points:
                segments.append(_segment(path, number, part.points, left))
    if not segments:
        raise DataFileError(path, "holds no track point; give a recording")
    activity = next((track.type for track in gpx.tracks if str(track.type).lower() in ACTIVITIES), None)
    if any(track.type and track.type != activity for track in gpx.tracks):
        left.add("type of tracks")
    return Recording(tuple(segments), activity, tuple(sorted(left)))


def _segment(path: Path, track: int, points: list[Any], left: set[str]) -> Segment:
    latitude, longitude = (
        np.array([getattr(one, what) for one in points], float) for what in ("latitude", "longitude")
    )
    try:
        check_places(latitude, longitude, "points")
        times = [np.datetime64("NaT") if one.time is None else since_epoch(one.time) for one in points]
    except ValueError as problem:
        raise DataFileError(path, f"track {track}: {problem}") from None
    elevation = np.array([np.nan if one.elevation is None else one.elevation for one in points], float)
    said = [dict(_said(one)) for one in points]
    left |= {f"{name} of points" for one in said for name in one if name not in SENSORS}
    left |= {f"{name} of points" for one in points for name in _OF_POINT if getattr(one, name, None)}
    sensors = {
        name: np.array([one.get(name, np.nan) for one in said]) for name in SENSORS if any(name in one for one in said)
    }
    return Segment(latitude, longitude, np.array(times, "datetime64[us]"), elevation, sensors)


def _said(point: Any) -> Iterator[tuple[str, float]]:
    """What extensions say of a point, by lower-case names without their namespaces; NaN for what is no number."""
    for name in ("speed", "course"):  # of GPX 1.0
        if getattr(point, name, None) is not None:
            yield name, float(getattr(point, name))
    for element in (one for top in point.extensions for one in top.iter() if not len(one)):
        name = str(element.tag).rpartition("}")[2].lower()
        try:
            value = float(element.text or "")
        except ValueError:
            value = np.nan
        yield _CALLED.get(name, name), value if np.isfinite(value) else np.nan


def owntracks_fixes(document: Document, options: ReadOptions) -> Iterator[Fixes]:
    """Yield the locations of a file.

    By default the user is the second part of a record's topic (``owntracks/user/device``); a record without a topic
    does not say whose it is.

    Parameters
    ----------
    document
        The file.
    options
        What the caller says of it.

    Yields
    ------
    Fixes
        All locations.

    Raises
    ------
    DataFileError
        For a malformed line, unless it is to be skipped.
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
        collector.add(user, time, as_number(record.get("lat"), "lat"), as_number(record.get("lon"), "lon"))


def _record(line: bytes) -> dict[str, Any]:
    text = line.decode("utf-8", errors="replace")
    start = text.find("{")
    if start < 0 or not text[:start].strip():
        raise ValueError(f"line is {shorten(text.strip())}; a record is a time, a kind and a JSON object")
    try:
        record = json.loads(text[start:])
    except (json.JSONDecodeError, RecursionError) as problem:
        raise ValueError(f"the JSON object does not read ({problem}); the line may be cut off") from None
    if not isinstance(record, dict):
        raise ValueError("the JSON value is no object")
    return record


def _second(value: object) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit():  # old apps wrote it as a text
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LATEST_SECOND:
        raise ValueError(f"tst is {shorten(str(value))}; a location needs its time as whole seconds since 1970")
    return value
