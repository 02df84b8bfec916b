"""Files of recordings: GPX, GeoJSON, CSV, KML and TCX, in WGS 84.

Every file is a function of the recording that is written, and contains no other metadata. The totals that TCX requires
are computed from its points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import UTC
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple
from xml.etree import ElementTree

import numpy as np

from dphmm.arrays import BoolArray, FloatArray
from dphmm.errors import ConfigurationError, import_library
from dphmm.hide.recording_points import distance_km
from dphmm.space.trajectory import SENSORS, Recording, Segment
from dphmm.tables import Feature, create_file, iso_time, write_csv, write_features
from dphmm.validation import check_arguments
from dphmm.writers.formats import check_format

_GARMIN = "http://www.garmin.com/xmlschemas/TrackPointExtension/v2"
# Seven decimals of a degree are about a centimetre.
_DEGREE_DECIMALS = 7


def _write_gpx(path: Path, recording: Recording) -> None:
    gpx = import_library("gpxpy.gpx", "files")
    document = gpx.GPX()
    track = gpx.GPXTrack()
    document.creator = "dphmm"
    track.type = recording.activity
    document.nsmap["gpxtpx"] = _GARMIN
    document.tracks.append(track)
    for segment in recording.segments:
        track.segments.append(gpx.GPXTrackSegment([_build_gpx_point(gpx, segment, at) for at in range(len(segment))]))
    path.write_text(document.to_xml(version="1.1"), encoding="utf-8", newline="\n")


def _build_gpx_point(gpx: Any, segment: Segment, at: int) -> Any:
    timestamp = segment.times[at]
    elevation = float(segment.elevation[at])
    time = None if np.isnat(timestamp) else timestamp.astype("datetime64[us]").item().replace(tzinfo=UTC)
    degrees = (round(float(values[at]), _DEGREE_DECIMALS) for values in (segment.latitude, segment.longitude))
    point = gpx.GPXTrackPoint(*degrees, None if math.isnan(elevation) else elevation, time)
    values = {name: float(column[at]) for name, column in segment.sensors.items() if not math.isnan(column[at])}
    if "power" in values:
        power = ElementTree.Element("power")
        power.text = _format_decimal(values.pop("power"), trim="-")
        point.extensions.append(power)
    if values:
        sensors = ElementTree.Element(f"{{{_GARMIN}}}TrackPointExtension")
        # The schema prescribes this order.
        for name in (name for name in ("atemp", "hr", "cad", "speed", "course") if name in values):
            ElementTree.SubElement(sensors, f"{{{_GARMIN}}}{name}").text = _format_decimal(values[name], trim="-")
        point.extensions.append(sensors)
    return point


def _write_geojson(path: Path, recording: Recording) -> None:
    def iterate_features() -> Iterator[Feature]:
        for segment in (part for whole in recording.segments for part in _split_at_date_line(whole)):
            corners = _round_degrees(segment)
            positions = [
                [*corner] if math.isnan(height) else [*corner, height]
                for corner, height in zip(corners, segment.elevation.tolist(), strict=True)
            ]
            is_point = len(positions) == 1
            shape = {
                "type": "Point" if is_point else "LineString",
                "coordinates": positions[0] if is_point else positions,
            }
            times = [None if np.isnat(time) else iso_time(time) for time in segment.times]
            properties: dict[str, Any] = {"coordTimes": times, "activity": recording.activity}
            if segment.sensors:
                # In a fixed order: that of the file can depend on the removed points.
                properties["coordinateProperties"] = {
                    name: [None if math.isnan(value) else value for value in segment.sensors[name].tolist()]
                    for name in SENSORS
                    if name in segment.sensors
                }
            yield Feature(properties, shape)

    write_features(path, "recording", iterate_features())


def _split_at_date_line(segment: Segment) -> Iterator[Segment]:
    """Yield the parts of a segment between its crossings of the date line.

    Lines of GeoJSON must not cross it.
    """
    borders = np.flatnonzero(np.abs(np.diff(segment.longitude)) > 180) + 1
    for first, last in pairwise([0, *borders.tolist(), len(segment)]):
        yield segment.select_points(slice(first, last))


def _round_degrees(segment: Segment) -> list[tuple[float, float]]:
    """Return longitude and latitude of each point."""
    degrees = (values.round(_DEGREE_DECIMALS).tolist() for values in (segment.longitude, segment.latitude))
    return list(zip(*degrees, strict=True))


def _format_decimal(value: float, trim: Literal["0", "-"] = "0") -> str:
    """Format a number without an exponent, so that it is read back bit for bit.

    An integer ends with ``.0``, or with ``trim="-"`` without a point.
    """
    return np.format_float_positional(value, trim=trim)


def _write_csv(path: Path, recording: Recording) -> None:
    sensors = [name for name in SENSORS if any(name in segment.sensors for segment in recording.segments)]

    def iterate_rows() -> Iterator[Iterable[str]]:
        for number, segment in enumerate(recording.segments):
            missing = np.full(len(segment), np.nan)
            degrees = [segment.latitude.round(_DEGREE_DECIMALS), segment.longitude.round(_DEGREE_DECIMALS)]
            columns = [*degrees, segment.elevation, *(segment.sensors.get(name, missing) for name in sensors)]
            for time, *values in zip(segment.times, *columns, strict=True):
                cells = ("" if math.isnan(value) else repr(float(value)) for value in values)
                yield [str(number), "" if np.isnat(time) else iso_time(time), *cells]

    write_csv(path, ["segment", "time", "latitude", "longitude", "elevation", *sensors], iterate_rows())


def _write_kml(path: Path, recording: Recording) -> None:
    lines = [_XML, f'<kml xmlns="{_KML}" xmlns:gx="{_KML_TRACKS}"><Document>']
    for segment in recording.segments:
        heights = segment.elevation.tolist()
        places = [
            tuple(map(_format_decimal, corner if math.isnan(height) else (*corner, height)))
            for corner, height in zip(_round_degrees(segment), heights, strict=True)
        ]
        # Lines above an unknown ground would be drawn at sea level.
        mode = "" if np.isnan(heights).any() else "<altitudeMode>absolute</altitudeMode>"
        if np.isnat(segment.times).all() and len(segment) > 1:
            points = " ".join(map(",".join, places))
            lines.append(f"<Placemark><LineString>{mode}<coordinates>{points}</coordinates></LineString></Placemark>")
            continue
        lines.append(f"<Placemark><gx:Track>{mode}")
        # The format has an empty element for a missing time.
        lines += ["<when/>" if np.isnat(time) else f"<when>{iso_time(time)}</when>" for time in segment.times]
        lines += [f"<gx:coord>{' '.join(place)}</gx:coord>" for place in places]
        lines.append("</gx:Track></Placemark>")
    lines.append("</Document></kml>\n")
    path.write_text("\n".join(lines), encoding="utf-8", newline="\n")


def _write_tcx(path: Path, recording: Recording) -> None:
    sport = _SPORTS.get(str(recording.activity).lower(), "Other")
    first = min(segment.times[0] for segment in recording.segments)
    durations = [segment.times[-1] - segment.times[0] for segment in recording.segments]
    seconds = sum(float(duration / np.timedelta64(1, "s")) for duration in durations)
    metres = sum(1000 * _compute_length_km(segment) for segment in recording.segments)
    lines = [
        _XML,
        f'<TrainingCenterDatabase xmlns="{_TCX}" xmlns:ns3="{_TCX_EXTENSION}"><Activities>',
        f'<Activity Sport="{sport}"><Id>{iso_time(first)}</Id><Lap StartTime="{iso_time(first)}">',
        f"<TotalTimeSeconds>{seconds:.3f}</TotalTimeSeconds><DistanceMeters>{metres:.1f}</DistanceMeters>",
        "<Calories>0</Calories><Intensity>Active</Intensity><TriggerMethod>Manual</TriggerMethod>",
    ]
    for segment in recording.segments:
        lines.append("<Track>")
        sensors = {
            name: np.where(_fits_tcx(name, values), values, np.nan).tolist() for name, values in segment.sensors.items()
        }
        for at, (longitude, latitude) in enumerate(_round_degrees(segment)):
            values = {name: column[at] for name, column in sensors.items() if not math.isnan(column[at])}
            lines.append(
                f"<Trackpoint><Time>{iso_time(segment.times[at])}</Time><Position><LatitudeDegrees>{_format_decimal(latitude)}"
                f"</LatitudeDegrees><LongitudeDegrees>{_format_decimal(longitude)}</LongitudeDegrees></Position>"
                f"{_format_trackpoint_values(float(segment.elevation[at]), values)}</Trackpoint>"
            )
        lines.append("</Track>")
    lines.append("</Lap></Activity></Activities></TrainingCenterDatabase>\n")
    path.write_text("\n".join(lines), encoding="utf-8", newline="\n")


def _fits_tcx(name: str, values: FloatArray) -> BoolArray:
    """Return whether TCX can contain the values of a sensor, ``(n,)``. Also for missing ones."""
    low, high = _TCX_RANGES.get(name, (-np.inf, np.inf))
    return np.asarray(~((np.rint(values) < low) | (np.rint(values) > high)))


def _compute_length_km(segment: Segment) -> float:
    latitude, longitude = segment.latitude, segment.longitude
    return float(distance_km(latitude[:-1], longitude[:-1], latitude[1:], longitude[1:]).sum())


def _format_trackpoint_values(elevation: float, values: Mapping[str, float]) -> str:
    """Return the elements after the position of a point of TCX, in the order of its schema."""
    text = "" if math.isnan(elevation) else f"<AltitudeMeters>{_format_decimal(elevation)}</AltitudeMeters>"
    if "hr" in values:
        text += f"<HeartRateBpm><Value>{round(values['hr'])}</Value></HeartRateBpm>"
    if "cad" in values:
        text += f"<Cadence>{round(values['cad'])}</Cadence>"
    extension = f"<ns3:Speed>{_format_decimal(values['speed'])}</ns3:Speed>" if "speed" in values else ""
    if "power" in values:
        extension += f"<ns3:Watts>{round(values['power'])}</ns3:Watts>"
    return f"{text}<Extensions><ns3:TPX>{extension}</ns3:TPX></Extensions>" if extension else text


_XML = '<?xml version="1.0" encoding="UTF-8"?>'
_KML = "http://www.opengis.net/kml/2.2"
_KML_TRACKS = "http://www.google.com/kml/ext/2.2"
_TCX = "http://www.garmin.com/xmlschemas/TrainingCenterDatabase/v2"
_TCX_EXTENSION = "http://www.garmin.com/xmlschemas/ActivityExtension/v2"
# The schema has integers of one or two bytes here.
_TCX_RANGES = {"hr": (1, 255), "cad": (0, 254), "power": (0, 65535)}
_SPORTS = {"running": "Running", "cycling": "Biking", "biking": "Biking"}


class _Format(NamedTuple):
    """A format of recordings.

    Parameters
    ----------
    write
        Writes a recording to a path.
    sensors
        The sensors that it can contain.
    activities
        The activities that it can contain; None for all.
    """

    write: Callable[[Path, Recording], None]
    sensors: Collection[str]
    activities: Collection[str] | None


_RECORDINGS: Mapping[str, _Format] = {
    ".gpx": _Format(_write_gpx, SENSORS, None),
    ".geojson": _Format(_write_geojson, SENSORS, None),
    ".csv": _Format(_write_csv, SENSORS, ()),
    ".kml": _Format(_write_kml, (), ()),
    ".tcx": _Format(_write_tcx, ("hr", "cad", "power", "speed"), _SPORTS),
}
# The names of the formats: their extensions without the dot.
RECORDING_FORMATS = tuple(suffix[1:] for suffix in _RECORDINGS)


@check_arguments
def check_recording(path: str | Path, format: str | None = None, times: bool = True) -> Path:
    """Check the format of a recording and that its libraries are installed.

    Parameters
    ----------
    path
        The file.
    format
        One of `RECORDING_FORMATS`; by default that of the extension.
    times
        Whether times are written.

    Returns
    -------
    Path
        `path`.

    Raises
    ------
    ConfigurationError
        If the format is not supported; names those that are. If it requires times, and they are not written.
    MissingDependencyError
        For GPX if gpxpy is not installed.
    """
    checked_path = Path(path) if format is not None else check_format(path, _RECORDINGS, "recording")
    if format is not None and format not in RECORDING_FORMATS:
        raise ConfigurationError(f"format must be one of {', '.join(RECORDING_FORMATS)}, got {format!r}")
    if not times and _get_suffix(checked_path, format) == ".tcx":
        raise ConfigurationError("TCX requires the time of every point: use another format, such as GPX, or keep times")
    return checked_path


def _get_suffix(path: Path, format: str | None) -> str:
    return path.suffix.lower() if format is None else f".{format}"


@check_arguments
def find_losses(path: str | Path, recording: Recording, format: str | None = None) -> list[str]:
    """Return the contents of a recording that a format cannot contain.

    Parameters
    ----------
    path, format
        As in `check_recording`.
    recording
        The recording.

    Returns
    -------
    list of str
        The names of the contents, such as ``"power of points"``.

    Raises
    ------
    ConfigurationError
        If a point has no time, and the format requires times.
    """
    suffix = _get_suffix(Path(path), format)
    num_untimed = sum(int(np.isnat(segment.times).sum()) for segment in recording.segments)
    check_recording(path, format)
    if num_untimed and suffix == ".tcx":
        raise ConfigurationError(
            f"TCX requires the time of every point, and {num_untimed:,} of the {len(recording):,} kept points have no "
            "time: use another format, such as GPX"
        )
    _, sensors, activities = _RECORDINGS[suffix]
    names = {name for segment in recording.segments for name in segment.sensors} - set(sensors)
    losses = [f"{name} of points" for name in sorted(names)]
    if suffix == ".tcx":
        losses += [
            f"{name} outside {low} to {high:,} of points"
            for name, (low, high) in _TCX_RANGES.items()
            if any(not _fits_tcx(name, part.sensors[name]).all() for part in recording.segments if name in part.sensors)
        ]
    is_lost = recording.activity is not None and activities is not None and recording.activity.lower() not in activities
    return [*losses, "activity"] if is_lost else losses


@check_arguments
def write_recording(
    path: str | Path,
    recording: Recording,
    overwrite: bool = False,
    format: str | None = None,
    commit: Callable[[], object] | None = None,
) -> None:
    """Write a recording in the format of the file's extension, atomically.

    Parameters
    ----------
    path
        The file: .gpx, .geojson, .csv, .kml or .tcx; any name with `format`.
    recording
        The recording. Equal recordings make equal files.
    overwrite
        Whether an existing file may be replaced.
    format
        As in `check_recording`.
    commit
        Called when the content is written, before the file has its name.

    Raises
    ------
    ConfigurationError, MissingDependencyError
        As `check_recording` and `find_losses`.
    OutputError
        If the file exists and may not be overwritten, or cannot be written.
    """
    path = check_recording(path, format)
    find_losses(path, recording, format)
    with create_file(path, overwrite) as part:
        _RECORDINGS[_get_suffix(path, format)].write(part, recording)
        if commit is not None:
            commit()
