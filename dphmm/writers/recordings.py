"""Recordings as files: GPX, GeoJSON and CSV, in WGS 84."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from dphmm.arguments import checked
from dphmm.errors import need
from dphmm.space.trajectory import SENSORS, Recording, Segment
from dphmm.tables import Feature, iso_time, new_file, write_csv, write_features
from dphmm.writers.formats import check_format

_GARMIN = "http://www.garmin.com/xmlschemas/TrackPointExtension/v2"
_RECORDED = 7
"""Decimals of a degree: a centimetre."""


def _recording_gpx(path: Path, recording: Recording) -> None:
    gpx = need("gpxpy.gpx", "files")
    document, track = gpx.GPX(), gpx.GPXTrack()
    document.creator, track.type = "dphmm", recording.activity
    document.nsmap["gpxtpx"] = _GARMIN
    document.tracks.append(track)
    for segment in recording.segments:
        track.segments.append(gpx.GPXTrackSegment([_sensor_point(gpx, segment, at) for at in range(len(segment))]))
    path.write_text(document.to_xml(version="1.1"), encoding="utf-8", newline="\n")


def _sensor_point(gpx: Any, segment: Segment, at: int) -> Any:
    when, high = segment.times[at], float(segment.elevation[at])
    time = None if np.isnat(when) else when.astype("datetime64[us]").item().replace(tzinfo=UTC)
    place = (round(float(values[at]), _RECORDED) for values in (segment.latitude, segment.longitude))
    point = gpx.GPXTrackPoint(*place, None if math.isnan(high) else high, time)
    said = {name: float(values[at]) for name, values in segment.sensors.items() if not math.isnan(values[at])}
    if "power" in said:
        power = ElementTree.Element("power")
        power.text = f"{said.pop('power'):g}"
        point.extensions.append(power)
    if said:
        sensors = ElementTree.Element(f"{{{_GARMIN}}}TrackPointExtension")
        for name in (name for name in ("atemp", "hr", "cad", "speed", "course") if name in said):  # the schema's order
            ElementTree.SubElement(sensors, f"{{{_GARMIN}}}{name}").text = f"{said[name]:g}"
        point.extensions.append(sensors)
    return point


def _recording_geojson(path: Path, recording: Recording) -> None:
    def features() -> Iterator[Feature]:
        for segment in recording.segments:
            corners = np.round(np.stack([segment.longitude, segment.latitude], axis=1), _RECORDED).tolist()
            alone = len(corners) == 1
            shape = {"type": "Point" if alone else "LineString", "coordinates": corners[0] if alone else corners}
            times = [None if np.isnat(one) else iso_time(one) for one in segment.times]
            yield Feature({"coordTimes": times, "activity": recording.activity}, shape)

    write_features(path, "recording", features())


def _recording_csv(path: Path, recording: Recording) -> None:
    said = [name for name in SENSORS if any(name in one.sensors for one in recording.segments)]

    def rows() -> Iterator[Iterable[str]]:
        for number, one in enumerate(recording.segments):
            blank = np.full(len(one), np.nan)
            columns = [one.latitude.round(_RECORDED), one.longitude.round(_RECORDED), one.elevation]
            columns += [one.sensors.get(name, blank) for name in said]
            for time, *values in zip(one.times, *columns, strict=True):
                told = ("" if math.isnan(value) else repr(float(value)) for value in values)
                yield [str(number), "" if np.isnat(time) else iso_time(time), *told]

    write_csv(path, ["segment", "time", "latitude", "longitude", "elevation", *said], rows())


_RECORDINGS: Mapping[str, Callable[[Path, Recording], None]] = {
    ".gpx": _recording_gpx,
    ".geojson": _recording_geojson,
    ".csv": _recording_csv,
}


@checked
def check_recording(path: str | Path) -> Path:
    """Refuse the path of a recording for which there is no format.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    Path
        The same path.

    Raises
    ------
    ConfigurationError
        When no format goes by its extension; naming those that do.
    MissingDependencyError
        For GPX without gpxpy.
    """
    return check_format(path, _RECORDINGS, "recording")


@checked
def write_recording(path: str | Path, recording: Recording, overwrite: bool = False) -> None:
    """Write a recording in the format of the file's extension, whole or not at all.

    Parameters
    ----------
    path
        The file: .gpx, .geojson or .csv.
    recording
        What is written; the same recording makes the same file.
    overwrite
        Whether a file that exists may be replaced.

    Raises
    ------
    ConfigurationError, MissingDependencyError
        As `check_recording`.
    OutputError
        When the file exists and may not be overwritten, or cannot be written.
    """
    path = check_recording(path)
    with new_file(path, overwrite) as part:
        _RECORDINGS[path.suffix.lower()](part, recording)
