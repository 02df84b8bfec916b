"""Files of recordings: GPX, GeoJSON and CSV, in WGS 84."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from dphmm.errors import need
from dphmm.space.trajectory import SENSORS, Recording, Segment
from dphmm.tables import Feature, iso_time, new_file, write_csv, write_features
from dphmm.validation import checked
from dphmm.writers.formats import check_format

_GARMIN = "http://www.garmin.com/xmlschemas/TrackPointExtension/v2"
# Seven decimals of a degree are about a centimetre.
_DEGREE_DECIMALS = 7


def _recording_gpx(path: Path, recording: Recording) -> None:
    gpx = need("gpxpy.gpx", "files")
    document = gpx.GPX()
    track = gpx.GPXTrack()
    document.creator = "dphmm"
    track.type = recording.activity
    document.nsmap["gpxtpx"] = _GARMIN
    document.tracks.append(track)
    for segment in recording.segments:
        track.segments.append(gpx.GPXTrackSegment([_sensor_point(gpx, segment, at) for at in range(len(segment))]))
    path.write_text(document.to_xml(version="1.1"), encoding="utf-8", newline="\n")


def _sensor_point(gpx: Any, segment: Segment, at: int) -> Any:
    timestamp = segment.times[at]
    elevation = float(segment.elevation[at])
    time = None if np.isnat(timestamp) else timestamp.astype("datetime64[us]").item().replace(tzinfo=UTC)
    degrees = (round(float(values[at]), _DEGREE_DECIMALS) for values in (segment.latitude, segment.longitude))
    point = gpx.GPXTrackPoint(*degrees, None if math.isnan(elevation) else elevation, time)
    values = {name: float(column[at]) for name, column in segment.sensors.items() if not math.isnan(column[at])}
    if "power" in values:
        power = ElementTree.Element("power")
        power.text = f"{values.pop('power'):g}"
        point.extensions.append(power)
    if values:
        sensors = ElementTree.Element(f"{{{_GARMIN}}}TrackPointExtension")
        # The schema prescribes this order.
        for name in (name for name in ("atemp", "hr", "cad", "speed", "course") if name in values):
            ElementTree.SubElement(sensors, f"{{{_GARMIN}}}{name}").text = f"{values[name]:g}"
        point.extensions.append(sensors)
    return point


def _recording_geojson(path: Path, recording: Recording) -> None:
    def features() -> Iterator[Feature]:
        for segment in recording.segments:
            corners = np.round(np.stack([segment.longitude, segment.latitude], axis=1), _DEGREE_DECIMALS).tolist()
            is_point = len(corners) == 1
            shape = {"type": "Point" if is_point else "LineString", "coordinates": corners[0] if is_point else corners}
            times = [None if np.isnat(time) else iso_time(time) for time in segment.times]
            yield Feature({"coordTimes": times, "activity": recording.activity}, shape)

    write_features(path, "recording", features())


def _recording_csv(path: Path, recording: Recording) -> None:
    sensors = [name for name in SENSORS if any(name in segment.sensors for segment in recording.segments)]

    def rows() -> Iterator[Iterable[str]]:
        for number, segment in enumerate(recording.segments):
            missing = np.full(len(segment), np.nan)
            degrees = [segment.latitude.round(_DEGREE_DECIMALS), segment.longitude.round(_DEGREE_DECIMALS)]
            columns = [*degrees, segment.elevation, *(segment.sensors.get(name, missing) for name in sensors)]
            for time, *values in zip(segment.times, *columns, strict=True):
                cells = ("" if math.isnan(value) else repr(float(value)) for value in values)
                yield [str(number), "" if np.isnat(time) else iso_time(time), *cells]

    write_csv(path, ["segment", "time", "latitude", "longitude", "elevation", *sensors], rows())


_RECORDINGS: Mapping[str, Callable[[Path, Recording], None]] = {
    ".gpx": _recording_gpx,
    ".geojson": _recording_geojson,
    ".csv": _recording_csv,
}


@checked
def check_recording(path: str | Path) -> Path:
    """Check the extension of a recording and that the libraries of its format are installed.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    Path
        `path`.

    Raises
    ------
    ConfigurationError
        If the extension is not supported; names those that are.
    MissingDependencyError
        For GPX if gpxpy is not installed.
    """
    return check_format(path, _RECORDINGS, "recording")


@checked
def write_recording(path: str | Path, recording: Recording, overwrite: bool = False) -> None:
    """Write a recording in the format of the file's extension, atomically.

    Parameters
    ----------
    path
        The file: .gpx, .geojson or .csv.
    recording
        The recording. Equal recordings make equal files.
    overwrite
        Whether an existing file may be replaced.

    Raises
    ------
    ConfigurationError, MissingDependencyError
        As `check_recording`.
    OutputError
        If the file exists and may not be overwritten, or cannot be written.
    """
    path = check_recording(path)
    with new_file(path, overwrite) as part:
        _RECORDINGS[path.suffix.lower()](part, recording)
