"""GPX 1.0 and 1.1 (XML), parsed by gpxpy."""

from __future__ import annotations

import re
from typing import Any

from dphmm.errors import DataFileError, need
from dphmm.tables.source import Document
from dphmm.tables.values import one_line

_ENCODING = re.compile(rb"""^\s*<\?xml[^>]{0,200}?encoding\s*=\s*["']([A-Za-z][\w.-]{0,40})["']""")
_ENCODINGS = re.compile(r"utf-?8|us-ascii|ascii|latin-?1|iso-8859-\d{1,2}|windows-125\d|cp125\d", re.IGNORECASE)
"""Encodings of text; Python knows others, some of which take very long, and some are none."""
_POINT = 1300
"""What a point takes in memory while it is parsed, in bytes."""
_LINE = re.compile(r"\bline (\d{1,9})\b")


def read_gpx(document: Document) -> Any:
    """A GPX file as a `gpxpy.gpx.GPX`.

    Raises
    ------
    DataFileError
        When it is no well-formed GPX (a coordinate that is no number included), or declares a document type, with which
        a few lines can stand for gigabytes or for other files; with the line where it is known.
    MissingDependencyError
        When gpxpy is not installed.
    """
    gpxpy, gpx = need("gpxpy", "files"), need("gpxpy.gpx", "files")
    document.check_objects((b"<trkpt", b"<rtept", b"<wpt"), _POINT)
    try:
        text = _text(document.data)
        if "<!DOCTYPE" in text:
            raise ValueError("it declares a document type, which GPX has none of")
        return gpxpy.parse(text)
    except (gpx.GPXException, ValueError, TypeError, LookupError, AttributeError) as problem:
        reason = one_line(problem)
        place = _LINE.search(reason)
        line = int(place.group(1)) if place else None
        raise DataFileError(document.source, f"is no well-formed GPX ({reason}); export it again", line) from None


def _text(data: bytes) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16")
    data = data.removeprefix(b"\xef\xbb\xbf")
    declared = _ENCODING.match(data)
    encoding = declared.group(1).decode("ascii") if declared else "utf-8"
    if not _ENCODINGS.fullmatch(encoding):
        raise ValueError(f"its encoding is {encoding}, not UTF-8")
    return data.decode(encoding)
