"""OwnTracks Recorder's ``.rec`` files.

One record a line: the time at which the recorder received it (ISO 8601), a kind (``*``, ``event``, ``waypoints``,
``lwt``, ``-``), and a JSON object, separated by tabs (by runs of spaces in older files). Only objects whose ``_type``
is ``location`` say where the person was; transitions, waypoints, last wills, encrypted and other records are passed
over and are not counted as malformed. The time of a fix is its ``tst``, seconds since 1970; the recorder's own time is
that of its arrival, which may be hours later.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from dphmm.readers.fixes import FixCollector, Fixes
from dphmm.readers.lines import collect_lines
from dphmm.space.trajectory import LATEST_SECOND
from dphmm.tables.source import Document
from dphmm.tables.values import as_number, shorten

SUFFIXES = frozenset({".rec"})


def fixes(document: Document, skip_bad: bool, user: str | None) -> Iterator[Fixes]:
    """The locations of a file.

    By default the user is the second part of a record's topic (``owntracks/user/device``); a record without a topic
    does not say whose it is.

    Raises
    ------
    DataFileError
        For a malformed line, unless it is to be skipped.
    """
    collector = FixCollector(document.source, skip_bad, user)
    collect_lines(document.data.removeprefix(b"\xef\xbb\xbf"), 1, _add, collector)
    yield collector.fixes()


def _add(line: bytes, collector: FixCollector) -> None:
    record = _record(line)
    if record.get("_type") == "location":
        topic = str(record.get("topic", "")).split("/")
        collector.add(
            (topic[1] if len(topic) >= 3 else "") or None,
            _second(record.get("tst")) * 1_000_000,
            as_number(record.get("lat"), "lat"),
            as_number(record.get("lon"), "lon"),
        )


def _record(line: bytes) -> dict[str, Any]:
    text = line.decode("utf-8", errors="replace")
    start = text.find("{")
    if start < 0 or len(text[:start].split()) < 1:
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
