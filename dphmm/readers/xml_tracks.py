"""Recordings in XML: GPX, TCX and KML.

GPX 1.0 and 1.1, TCX of version 2 and KML 2.2 (OGC 12-007r2) are read point by point, with any prefix of their
namespaces. A time without a zone is taken as UTC. Of GPX, tracks are read; routes, which have no times, only by `hide`
and only of a file without tracks; waypoints are not records of movement. The boundaries of segments matter for `hide`
only: `dphmm.space.Trajectory.split` cuts at gaps in time. A receiver without a valid clock may have given every point
the same timestamp. Such points become a single point, and the result's `merged` contains the number of removed points.

Of KML, ``gx:Track`` is read, and points and lines with a ``TimeStamp`` or ``TimeSpan``. Such a line has times at its
ends only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import isfinite, nan
from typing import Any
from xml.etree.ElementTree import Element

from dphmm.errors import EmptyDataError
from dphmm.readers.fixes import FixCollector, Fixes, ReadOptions
from dphmm.readers.instants import parse_track_time
from dphmm.space.trajectory import SENSORS
from dphmm.tables.source import Document
from dphmm.tables.values import parse_number, shorten
from dphmm.tables.xml_files import get_children, get_name, walk_xml

# The types of tracks that are kept; any other string could contain personal data.
ACTIVITIES = ("running", "cycling", "biking", "walking", "hiking", "swimming", "skating", "skiing", "rowing", "driving")

# The reason of records of sensors, Wi-Fi scans or activities alone, such as those of an indoor activity.
WITHOUT_POSITION = "records without a position"
# The reason of points of a line with a time span.
WITHOUT_TIME = "points of lines between their ends, which have no times"

# Names of extensions, in lower case → sensor.
_SENSOR_NAMES = {
    "heartrate": "hr",
    "cadence": "cad",
    "runcadence": "cad",
    "bikecadence": "cad",
    "watts": "power",
    "powerinwatts": "power",
    "temp": "atemp",
    "temperature": "atemp",
}


def get_activity(name: str | None) -> str | None:
    """Return the activity of a track if it is one of `ACTIVITIES`, otherwise None."""
    return name if str(name).lower() in ACTIVITIES else None


def _get_text(element: Element | None) -> str:
    return "" if element is None else (element.text or "").strip()


def _parse_elevation(element: Element | None) -> float:
    text = _get_text(element)
    return parse_number(text, "elevation") if text else nan


def _read_sensors(element: Element) -> Iterator[tuple[str, float]]:
    """Yield the leaves of an element: sensor or lower-case name, and number or NaN."""
    for leaf in element.iter():
        if len(leaf) or leaf is element:
            continue
        name = get_name(leaf).lower()
        try:
            value = float(leaf.text or "")
        except ValueError:
            value = nan
        yield _SENSOR_NAMES.get(name, name), value if isfinite(value) else nan


def _keep_sensors(fields: Mapping[str, float], collector: FixCollector) -> dict[str, float]:
    collector.drop(*(f"{name} of points" for name in fields if name not in SENSORS))
    return {name: value for name, value in fields.items() if name in SENSORS}


# ---- GPX -------------------------------------------------------------------------------------------------------------

_GPX_ELEMENTS = frozenset(("gpx", "metadata", "trk", "trkseg", "trkpt", "rte", "rtept", "wpt"))
_FILE_FIELDS = {
    "name": "name",
    "desc": "description",
    "author": "author",
    "email": "author",
    "link": "link",
    "url": "link",
    "urlname": "link",
    "time": "time",
    "keywords": "keywords",
    "copyright": "copyright",
    "bounds": "bounds",
    "extensions": "extensions",
}
_TRACK_FIELDS = {
    "name": "name",
    "cmt": "comment",
    "desc": "description",
    "src": "source",
    "link": "link",
    "url": "link",
    "urlname": "link",
    "number": "number",
    "extensions": "extensions",
}
_POINT_FIELDS = {
    "name": "name",
    "cmt": "comment",
    "desc": "description",
    "src": "source",
    "link": "link",
    "url": "link",
    "urlname": "link",
    "sym": "symbol",
    "sat": "satellites",
}


def read_gpx_fixes(document: Document, options: ReadOptions) -> Iterator[Fixes]:
    """Yield the track points of a GPX file, which contains no user.

    Parameters
    ----------
    document
        The file.
    options
        Options of the caller. For a recording, points without times are read, those of routes if there is no track,
        and elevation and extensions in `dphmm.space.trajectory.SENSORS`; other contents are listed as dropped.

    Yields
    ------
    Fixes
        All points.

    Raises
    ------
    DataFileError
        If the file is not well-formed GPX, contains no track point, or contains one without a time or with invalid
        coordinates (unless skipped).
    """
    collector, routes = FixCollector(document.source, options), FixCollector(document.source, options)
    num_tracks = num_segments = num_points = num_waypoints = num_routes = num_track_points = 0
    for tag, is_end, element in walk_xml(document, "gpx", _GPX_ELEMENTS):
        if tag == "trkpt":
            if is_end:
                num_points += 1
                num_track_points += 1
                label = num_tracks, num_segments, num_points
                _add_gpx_point(element, collector, "track {}, segment {}, point {}", label)
                yield from collector.flush()
        elif tag == "trk":
            if is_end:
                children = get_children(element)
                activity = get_activity(_get_text(children.get("type")))
                collector.set_activity(num_tracks - 1, activity)
                collector.drop(*_list_dropped(children, _TRACK_FIELDS, "tracks"))
                collector.drop(*(["type of tracks"] if activity is None and "type" in children else []))
            else:
                num_tracks, num_segments = num_tracks + 1, 0
        elif tag == "trkseg":
            if is_end:
                collector.drop(*(["extensions of segments"] if "extensions" in get_children(element) else []))
            else:
                num_segments, num_points = num_segments + 1, 0
                collector.start_segment((num_tracks, num_segments), num_tracks - 1)
        elif tag in ("metadata", "gpx") and is_end:
            collector.drop(*_list_dropped(get_children(element), _FILE_FIELDS, "the file"))
        elif tag == "rtept" and is_end:
            num_points += 1
            if options.is_recording:
                _add_gpx_point(element, routes, "route {}, point {}", (num_routes, num_points))
        elif tag == "rte" and not is_end:
            num_routes, num_points = num_routes + 1, 0
            routes.start_segment(num_routes, num_routes - 1)
        num_waypoints += tag == "wpt" and is_end
    has_routes = not num_track_points and options.is_recording and len(routes) > 0
    kept = routes if has_routes else collector
    kept.drop(*(["waypoints"] if num_waypoints else []), *(["routes"] if num_routes and not has_routes else []))
    if not num_track_points and not has_routes:
        other_points = f"{num_waypoints} waypoints and {num_routes} routes"
        required = (
            "a recording needs a track or a route" if options.is_recording else "a trajectory needs a track with times"
        )
        raise EmptyDataError(document.source, f"contains no track point, only {other_points}; {required}")
    yield kept.get_fixes()


def _list_dropped(children: Mapping[str, Element], fields: Mapping[str, str], owner: str) -> list[str]:
    return [f"{fields[name]} of {owner}" for name in children if name in fields]


def _add_gpx_point(element: Element, collector: FixCollector, label: str, numbers: tuple[int, ...]) -> None:
    time = fix = elevation = extensions = None
    fields: dict[str, float] = {}
    for child in element:
        name = child.tag.rpartition("}")[2]
        if name == "time":
            time = child.text
        elif name == "ele":
            elevation = child
        elif name == "fix":
            fix = child.text
        elif name == "extensions":
            extensions = child
        elif name in ("speed", "course"):  # of GPX 1.0
            fields[name] = next(_read_sensors(_wrap(child)))[1]
        elif name in _POINT_FIELDS:
            collector.drop(f"{_POINT_FIELDS[name]} of points")
    try:
        latitude = parse_number(element.get("lat"), "latitude")
        longitude = parse_number(element.get("lon"), "longitude")
        microseconds = parse_track_time(time)
        is_valid = (fix or "").strip().lower() != "none"
        if not collector.options.is_recording:
            collector.add(None, microseconds, latitude, longitude, is_valid=is_valid)
            return
        if extensions is not None:
            fields |= dict(_read_sensors(extensions))
        sensors = _keep_sensors(fields, collector) if fields else None
        height = _parse_elevation(elevation)
        collector.add(None, microseconds, latitude, longitude, is_valid=is_valid, elevation=height, sensors=sensors)
    except ValueError as problem:
        collector.refuse(f"{label.format(*numbers)}: {problem}")


def _wrap(element: Element) -> Element:
    parent = Element("")
    parent.append(element)
    return parent


# ---- TCX -------------------------------------------------------------------------------------------------------------

_TCX_ELEMENTS = frozenset(("Activity", "Course", "Lap", "Track", "Trackpoint"))


def read_tcx_fixes(document: Document, options: ReadOptions) -> Iterator[Fixes]:
    """Yield the track points of a TCX file, which contains no user.

    Parameters
    ----------
    document
        The file.
    options
        Options of the caller. For a recording, elevation, heart rate, cadence, speed and power are read too.

    Yields
    ------
    Fixes
        All points with a position.

    Raises
    ------
    DataFileError
        If the file is not well-formed TCX, contains no position, or contains a point without a time or with invalid
        coordinates (unless skipped).
    """
    collector = FixCollector(document.source, options)
    num_activities = num_tracks = num_points = 0
    activity: str | None = None
    for tag, is_end, element in walk_xml(document, "trainingcenterdatabase", _TCX_ELEMENTS):
        if tag in ("Activity", "Course"):
            if not is_end:
                num_activities += 1
                activity = get_activity(element.get("Sport"))
            else:
                dropped = set(get_children(element)) & {"Id", "Notes", "Name", "Creator", "Training"}
                collector.drop(*(f"{name.lower()} of activities" for name in dropped))
        elif tag == "Lap" and is_end:
            collector.drop("totals of laps")
        elif tag == "Track" and not is_end:
            num_tracks += 1
            collector.start_segment(num_tracks, num_activities - 1, activity)
        elif tag == "Trackpoint" and is_end:
            num_points += 1
            try:
                _add_trackpoint(element, collector)
            except ValueError as problem:
                collector.refuse(f"point {num_points}: {problem}")
            yield from collector.flush()
    if not num_points:
        raise EmptyDataError(document.source, "contains no track point; export an activity with GPS")
    yield collector.get_fixes()


def _add_trackpoint(element: Element, collector: FixCollector) -> None:
    children = get_children(element)
    position = get_children(children["Position"]) if "Position" in children else {}
    if not position:
        collector.pass_over(WITHOUT_POSITION)
        return
    latitude = parse_number(_get_text(position.get("LatitudeDegrees")), "latitude")
    longitude = parse_number(_get_text(position.get("LongitudeDegrees")), "longitude")
    microseconds = parse_track_time(_get_text(children.get("Time")))
    if not collector.options.is_recording:
        collector.add(None, microseconds, latitude, longitude)
        return
    fields: dict[str, float] = {}
    if "HeartRateBpm" in children:
        fields["hr"] = parse_number(_get_text(get_children(children["HeartRateBpm"]).get("Value")), "heart rate")
    if "Cadence" in children:
        fields |= dict(_read_sensors(_wrap(children["Cadence"])))
    if "Extensions" in children:
        fields |= dict(_read_sensors(children["Extensions"]))
    collector.drop(*(["distance of points"] if "DistanceMeters" in children else []))
    height = _parse_elevation(children.get("AltitudeMeters"))
    sensors = _keep_sensors(fields, collector)
    collector.add(None, microseconds, latitude, longitude, elevation=height, sensors=sensors)


# ---- KML -------------------------------------------------------------------------------------------------------------

_KML_ELEMENTS = frozenset(("Placemark", "Track", "Document", "Folder", "NetworkLink"))
_KML_SPACE = re.compile(r"\s*,\s*")


def read_kml_fixes(document: Document, options: ReadOptions) -> Iterator[Fixes]:
    """Yield the points of tracks, timed lines and timed points of a KML file.

    Parameters
    ----------
    document
        The file.
    options
        Options of the caller. For a recording, lines and points without times are read too.

    Yields
    ------
    Fixes
        All points.

    Raises
    ------
    DataFileError
        If the file is not well-formed KML, contains no such point, or contains one with an invalid time or location
        (unless skipped).
    """
    collector = FixCollector(document.source, options)
    number = num_untimed = num_links = 0
    for tag, is_end, element in walk_xml(document, "kml", _KML_ELEMENTS):
        if tag == "Placemark" and not is_end:
            number += 1
        elif tag == "Track" and is_end:
            _add_track(element, collector, number)
            yield from collector.flush()
        elif tag == "Placemark":
            num_untimed += _add_placemark(element, collector, number)
            dropped = set(get_children(element)) & {"name", "description", "ExtendedData", "styleUrl", "address"}
            collector.drop(*(f"{name} of placemarks" for name in dropped))
        elif tag == "NetworkLink":
            num_links += is_end
        elif is_end:
            dropped = set(get_children(element)) & {"name", "description", "author", "ExtendedData"}
            collector.drop(*(f"{name} of the file" for name in dropped))
    fixes = collector.get_fixes()
    if not len(collector) and not collector.skipped and not sum(fixes.refused.values()):
        reason = f"contains {num_untimed} shapes without times, and " if num_untimed else "contains "
        reason = "contains links to other files (NetworkLink), and " if num_links else reason
        remedy = "download the files" if num_links else "export the recording with times, as GPX or gx:Track"
        raise EmptyDataError(document.source, f"{reason}no track with times; {remedy}")
    yield fixes


def _parse_coordinates(text: str, separator: str | None) -> tuple[float, float, float]:
    """Return longitude, latitude and altitude."""
    parts = text.split(separator)
    if not 2 <= len(parts) <= 3:
        raise ValueError(f"coordinates must be longitude, latitude and altitude, got {shorten(text)}")
    longitude, latitude = parse_number(parts[0].strip(), "longitude"), parse_number(parts[1].strip(), "latitude")
    altitude = parse_number(parts[2].strip(), "altitude") if len(parts) == 3 and parts[2].strip() else nan
    return longitude, latitude, altitude


def _add_track(element: Element, collector: FixCollector, number: int) -> None:
    """Add the points of a ``gx:Track``: times, coordinates and arrays of sensors."""
    times = list[str]()
    places = list[str]()
    arrays = dict[str, list[str]]()
    for child in element.iter():
        name = get_name(child)
        if name == "when":
            times.append(_get_text(child))
        elif name == "coord":
            places.append(_get_text(child))
        elif name == "SimpleArrayData":
            arrays[str(child.get("name"))] = [_get_text(value) for value in child]
    collector.start_segment(("track", number, len(collector)), number - 1)
    if len(times) != len(places):
        collector.refuse(
            f"placemark {number}: a track must have as many times as coordinates, got {len(times)} and {len(places)}"
        )
        return
    columns = {_SENSOR_NAMES.get(name.lower(), name.lower()): values for name, values in arrays.items()}
    collector.drop(*(f"{name} of points" for name in columns if name not in (*SENSORS, "accuracy")))
    for at, (time, place) in enumerate(zip(times, places, strict=True)):
        if not place:
            collector.pass_over(WITHOUT_POSITION)
            continue
        try:
            longitude, latitude, altitude = _parse_coordinates(place, None)
            values = {
                name: parse_number(column[at], name)
                for name, column in columns.items()
                if at < len(column) and column[at] and name in (*SENSORS, "accuracy")
            }
            accuracy = values.pop("accuracy", nan)
            microseconds = parse_track_time(time)
            collector.add(None, microseconds, latitude, longitude, accuracy, elevation=altitude, sensors=values)
        except ValueError as problem:
            collector.refuse(f"placemark {number}, point {at + 1}: {problem}")


def _add_placemark(element: Element, collector: FixCollector, number: int) -> int:
    """Add a point or line with times, and return the number of shapes without times."""
    parts: dict[str, Any] = {"begin": "", "end": "", "when": ""}
    shapes: list[tuple[str, str]] = []
    for child in element.iter():
        name = get_name(child)
        if name in parts:
            parts[name] = _get_text(child)
        elif name in ("Point", "LineString"):
            shapes += [(name, _get_text(leaf)) for leaf in child.iter() if get_name(leaf) == "coordinates"]
    try:
        begin, end = (parse_track_time(parts[name] or parts["when"]) for name in ("begin", "end"))
    except ValueError as problem:
        collector.refuse(f"placemark {number}: {problem}")
        return 0
    is_recording = collector.options.is_recording
    if begin is None and end is None and (not is_recording or all(name == "Point" for name, _ in shapes)):
        return len(shapes)
    for name, text in shapes:
        places = _KML_SPACE.sub(",", text).split()
        times: list[int | None] = [None] * len(places)
        if len(places) > 1:
            times[0], times[-1] = begin, end if parts["end"] else None
        elif places:
            times[0] = begin if begin is not None else end
        if name == "Point" and parts["end"] and begin != end:  # a visit: two fixes
            places, times = places * 2, [begin, end]
        collector.start_segment((name, number, len(collector)), number - 1)
        for at, (place, time) in enumerate(zip(places, times, strict=True)):
            if time is None and not is_recording:
                collector.pass_over(WITHOUT_TIME)
                continue
            try:
                longitude, latitude, altitude = _parse_coordinates(place, ",")
                collector.add(None, time, latitude, longitude, elevation=altitude)
            except ValueError as problem:
                collector.refuse(f"placemark {number}, point {at + 1}: {problem}")
    return 0
