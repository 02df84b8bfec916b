"""Recordings of OwnTracks: files of its recorder, and JSON of its API and apps.

Recorder files have one record per line: the time at which the recorder received it (ISO 8601), a type (``*``,
``event``, ``waypoints``, ``lwt``, ``-``), and a JSON object, separated by tabs (by runs of spaces in older files). The
API returns such objects in a list, or under ``data``. Only objects with ``_type`` ``location`` contain a location.
Transitions, waypoints, last wills, encrypted and other records are skipped and not counted as malformed. The time of a
fix is its ``tst``, seconds since 1970; the recorder's own time is that of the record's arrival, which may be hours
later.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import nan
from typing import Any

from dphmm.readers.fixes import FixCollector, Fixes, ReadOptions, collect_lines
from dphmm.space.fix_quality import parse_accuracy
from dphmm.space.trajectory import LATEST_SECOND
from dphmm.tables.json_toml import JsonItems
from dphmm.tables.source import Document
from dphmm.tables.values import as_number, shorten

_KMH_PER_MPS = 3.6


def read_owntracks_fixes(document: Document, options: ReadOptions) -> Iterator[Fixes]:
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
        For a malformed line or record, unless it is skipped.
    """
    collector = FixCollector(document.source, options)
    if document.head().removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"["):
        for number, (key, record) in enumerate(JsonItems(document).walk(("data",)), start=1):
            try:
                if not isinstance(record, dict):
                    raise ValueError(f"must be an object, got {shorten(record)}")
                # An answer of the API contains a count and a status next to its records.
                if key or "_type" in record or "tst" in record:
                    _add_record({"_type": "location", **record}, collector)
            except ValueError as problem:
                collector.refuse(f"record {number}: {problem}")
            yield from collector.flush()
    else:
        collect_lines(document.data.removeprefix(b"\xef\xbb\xbf"), 1, _add_line, collector)
    yield collector.get_fixes()


def _add_line(line: bytes, collector: FixCollector) -> None:
    _add_record(_parse_record(line), collector)


def _add_record(record: Mapping[str, Any], collector: FixCollector) -> None:
    if record.get("_type") == "location":
        topic = str(record.get("topic", "")).split("/")
        user = (topic[1] if len(topic) >= 3 else "") or None
        time = _parse_second(record.get("tst")) * 1_000_000
        latitude, longitude = (as_number(record.get(name), name) for name in ("lat", "lon"))
        accuracy = parse_accuracy(record.get("acc"))
        if not collector.options.is_recording:
            collector.add(user, time, latitude, longitude, accuracy)
            return
        elevation, speed, course = (_get_number(record.get(name)) for name in ("alt", "vel", "cog"))
        values = {"speed": speed / _KMH_PER_MPS, "course": course}
        sensors = {name: value for name, value in values.items() if value == value}
        collector.add(user, time, latitude, longitude, accuracy, elevation=elevation, sensors=sensors)


def _get_number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else nan


def _parse_record(line: bytes) -> dict[str, Any]:
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


def _parse_second(value: object) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit():  # old apps write a string
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LATEST_SECOND:
        raise ValueError(f"tst must be an integer number of seconds since 1970, got {shorten(value)}")
    return value
