"""Google Timeline: exports of phones, and of Google Takeout.

* ``Records.json``: ``locations`` with ``latitudeE7``, ``longitudeE7``, ``timestamp`` (or ``timestampMs``),
  ``accuracy`` and ``altitude``. A file of any size is read item by item.
* Android: ``rawSignals`` contain positions as a device recorded them, and ``semanticSegments`` what Google inferred
  from them: paths of points with times, activities with a start and an end, and visits of a place.
* iOS: a list of such segments, with ``geo:`` addresses, and points of paths in minutes after the start of the segment.
* Semantic Location History, a file a month: ``timelineObjects``.

Inferred segments become fixes: each point of a path; the start and the end of an activity; and the place of a visit at
its start and its end. Most periods occur both as signals and as segments, so that the trajectory contains both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import nan
from typing import Any

from dphmm.errors import EmptyDataError
from dphmm.readers.fixes import FixCollector, Fixes, ReadOptions
from dphmm.readers.instants import parse_track_time
from dphmm.readers.xml_tracks import WITHOUT_POSITION
from dphmm.space.fix_quality import parse_accuracy
from dphmm.tables.json_toml import JsonItems
from dphmm.tables.source import Document
from dphmm.tables.values import as_number, parse_number, shorten

_LISTS = ("locations", "semanticSegments", "rawSignals", "timelineObjects")
_PLACE = re.compile(r"(?:geo:)?\s*([+-]?\d+(?:\.\d*)?)\s*°?\s*,\s*([+-]?\d+(?:\.\d*)?)\s*°?(?:[;?].*)?", re.ASCII)
# Records of phones with an error in their software: the number exceeds a signed integer of 32 bits.
_E7_LIMIT = 1_800_000_000
_E7_CYCLE = 1 << 32
_MICROSECONDS_PER_MINUTE = 60_000_000

# Latitude and longitude, degrees.
Position = tuple[float, float]


def read_timeline_fixes(document: Document, options: ReadOptions) -> Iterator[Fixes]:
    """Yield the fixes of an export of Google Timeline, which contains no user.

    Parameters
    ----------
    document
        The file.
    options
        Options of the caller.

    Yields
    ------
    Fixes
        Its locations, in blocks of the order of the file.

    Raises
    ------
    DataFileError
        If the file is not JSON, contains no location, or contains a malformed record (unless skipped).
    """
    collector = FixCollector(document.source, options)
    number = num_records = 0
    key = ""
    for next_key, item in JsonItems(document).walk(_LISTS):
        number = number + 1 if next_key == key else 1
        key = next_key
        # What is left of the outer object: settings, and the profile with frequent places.
        if not key and isinstance(item, dict) and "startTime" not in item:
            collector.drop(*(f"{name} of the file" for name in item if name == "userLocationProfile"))
            continue
        num_records += 1
        try:
            if not isinstance(item, dict):
                raise ValueError(f"must be an object, got {shorten(item)}")
            _READERS.get(key, _add_segment)(item, number, collector)
        except (ValueError, OverflowError) as problem:  # the latter for an infinite number
            collector.refuse(f"{_NAMES.get(key, 'segment')} {number}: {problem}")
        yield from collector.flush()
    if not num_records:
        raise EmptyDataError(document.source, "contains no location; export the Timeline of a device with locations")
    yield collector.get_fixes()


# ---- Records.json and signals ----------------------------------------------------------------------------------------


def _add_record(item: Mapping[str, Any], _: int, collector: FixCollector) -> None:
    position = _parse_e7(item)
    if position is None:
        collector.pass_over(WITHOUT_POSITION)
        return
    if "timestampMs" in item and "timestamp" not in item:
        time: int | None = int(parse_number(item["timestampMs"], "timestampMs")) * 1000
    else:
        time = _parse_time(item.get("timestamp"))
    _add(collector, position, time, item.get("accuracy"), item.get("altitude"))


def _parse_e7(place: Mapping[str, Any]) -> Position | None:
    values = [place.get(name) for name in ("latitudeE7", "longitudeE7")]
    if None in values:
        values = [place.get(name) for name in ("latE7", "lngE7")]
    if None in values:
        return None
    degrees = []
    for value, name in zip(values, ("latitudeE7", "longitudeE7"), strict=True):
        number = as_number(value, name)
        number -= _E7_CYCLE if number > _E7_LIMIT else 0
        degrees.append(number / 1e7)
    return degrees[0], degrees[1]


def _add_signal(item: Mapping[str, Any], _: int, collector: FixCollector) -> None:
    position = item.get("position")
    place = _parse_place(position) if isinstance(position, dict) else None
    if place is None or not isinstance(position, dict):
        collector.pass_over(WITHOUT_POSITION)
        return
    time = _parse_time(position.get("timestamp"))
    _add(collector, place, time, position.get("accuracyMeters"), position.get("altitudeMeters"))


def _add(collector: FixCollector, place: Position, time: int | None, accuracy: Any = None, height: Any = None) -> None:
    elevation = as_number(height, "altitude") if collector.options.is_recording and height is not None else nan
    collector.add(None, time, *place, parse_accuracy(accuracy), elevation=elevation)


# ---- segments --------------------------------------------------------------------------------------------------------


def _add_segment(item: Mapping[str, Any], number: int, collector: FixCollector) -> None:
    """Add a segment of Android or iOS."""
    start, end = _parse_time(item.get("startTime")), _parse_time(item.get("endTime"))
    places: list[tuple[Position | None, int | None]] = []
    for point in _get_list(item, "timelinePath"):
        time = _parse_time(point.get("time"))
        minutes = point.get("durationMinutesOffsetFromStartTime")
        if time is None and minutes is not None and start is not None:
            time = start + round(parse_number(minutes, "minutes") * _MICROSECONDS_PER_MINUTE)
        places.append((_parse_place(point), time))
    activity = item.get("activity")
    if isinstance(activity, dict):
        places += [(_parse_place(activity.get(name)), time) for name, time in (("start", start), ("end", end))]
    visit = item.get("visit")
    if isinstance(visit, dict):
        candidate = visit.get("topCandidate")
        place = _parse_place(candidate.get("placeLocation")) if isinstance(candidate, dict) else None
        places += [(place, start), (place, end)]
    _add_places(places, number, collector)


def _add_object(item: Mapping[str, Any], number: int, collector: FixCollector) -> None:
    """Add an object of the Semantic Location History."""
    places: list[tuple[Position | None, int | None]] = []
    for name in ("placeVisit", "activitySegment"):
        part = item.get(name)
        if not isinstance(part, dict):
            continue
        span = part.get("duration")
        span = span if isinstance(span, dict) else {}
        start, end = (_parse_stamp(span, what) for what in ("startTimestamp", "endTimestamp"))
        ends = ("location", "location") if name == "placeVisit" else ("startLocation", "endLocation")
        held = [part.get(what) for what in ends]
        first, last = (_parse_e7(place) if isinstance(place, dict) else None for place in held)
        path = part.get("simplifiedRawPath")
        places.append((first, start))
        for point in _get_list(path, "points") if isinstance(path, dict) else ():
            places.append((_parse_e7(point), _parse_stamp(point, "timestamp")))
        places.append((last, end))
    _add_places(places, number, collector)


def _add_places(places: list[tuple[Position | None, int | None]], number: int, collector: FixCollector) -> None:
    collector.start_segment(("segment", number))
    if not any(place is not None for place, _ in places):
        collector.pass_over(WITHOUT_POSITION)
    for place, time in places:
        if place is not None:
            _add(collector, place, time)


def _get_list(item: Mapping[str, Any], name: str) -> Iterator[Mapping[str, Any]]:
    values = item.get(name)
    if values is not None and not (isinstance(values, list) and all(isinstance(value, dict) for value in values)):
        raise ValueError(f"{name} must be a list of objects, got {shorten(values)}")
    yield from values or ()


def _parse_place(place: object) -> Position | None:
    """Return the location in a string with degrees, a ``geo:`` address, or an object with it."""
    if isinstance(place, dict):
        place = next((place[name] for name in ("latLng", "LatLng", "point") if name in place), None)
    if place is None or place == "":
        return None
    match = _PLACE.fullmatch(place.strip()) if isinstance(place, str) else None
    if match is None:
        raise ValueError(f"a location must be latitude and longitude in degrees, got {shorten(place)}")
    return float(match[1]), float(match[2])


def _parse_stamp(part: Mapping[str, Any], name: str) -> int | None:
    milliseconds = part.get(f"{name}Ms")
    if name not in part and milliseconds is not None:
        return int(parse_number(milliseconds, name)) * 1000
    return _parse_time(part.get(name))


def _parse_time(value: object) -> int | None:
    if value is not None and not isinstance(value, str):
        raise ValueError(f"time must be a string, got {shorten(value)}")
    return parse_track_time(value)


_READERS = {"locations": _add_record, "rawSignals": _add_signal, "timelineObjects": _add_object}
_NAMES = {"locations": "record", "rawSignals": "signal", "timelineObjects": "object"}
