"""Recordings as devices made them, point by point: GPX with what sensors said, any other format with places and times.

What a GPX file says of itself (names, descriptions, its author and time, bounds, links, totals) and what stands in it
besides tracks (waypoints, routes) is not read, and named as left out. Of the extensions of a point those of `SENSORS`
are read, whatever their namespace. A file may be without times.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dphmm.arguments import checked
from dphmm.errors import DataFileError
from dphmm.readers.reading import read
from dphmm.space.recording import SENSORS, Recording, Segment
from dphmm.space.trajectory import check_places
from dphmm.tables import read_document
from dphmm.tables.source import suffix_of
from dphmm.tables.values import since_epoch
from dphmm.tables.vector_files import read_gpx

ACTIVITIES = ("running", "cycling", "biking", "walking", "hiking", "swimming", "skating", "skiing", "rowing", "driving")
"""The types of tracks that are kept; another text might say anything."""
_CALLED = {"heartrate": "hr", "cadence": "cad", "watts": "power", "powerinwatts": "power", "temp": "atemp"}
_OF_FILE = ("name", "description", "author_name", "author_email", "link", "time", "keywords", "bounds", "extensions")
_OF_TRACK = ("name", "comment", "description", "source", "link", "number", "extensions")
_OF_POINT = ("name", "comment", "description", "source", "link", "symbol", "satellites")


@checked
def read_recording(path: str | Path) -> Recording:
    """Read what one person's device recorded in one file.

    Parameters
    ----------
    path
        A GPX file; or one in any other format that is read, of one person.

    Returns
    -------
    Recording
        Its segments; of other formats than GPX, one.

    Raises
    ------
    DataFileError
        When the file cannot be read, is not well formed, holds no point, one off the Earth, or several people.
    """
    path = Path(path)
    if suffix_of(path) != ".gpx":
        people = read(path).trajectories
        if len(people) != 1:
            raise DataFileError(path, f"is of {len(people)} people; give a file of one person's recording")
        one = people[0]
        return Recording((Segment(one.latitude, one.longitude, one.times, np.full(len(one), np.nan)),))
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
