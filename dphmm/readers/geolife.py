"""GeoLife: folders of ``.plt`` files, or an archive of such folders.

::

    <anything>/Data/
    ├── 000/
    │   ├── labels.txt                       not read
    │   └── Trajectory/
    │       ├── 20081023025304.plt
    │       └── ...
    └── 001/
        └── ...

A ``.plt`` has six header lines, then one point a line, ended by CR LF: latitude, longitude, 0, altitude in feet (-777
where unknown), days since 1899-12-30, date, time; the last two in GMT (Zheng, Xie, Ma, IEEE Data Eng. Bull. 33(2),
2010, and the data set's user guide 1.3). Of these only latitude, longitude, date and time are looked at.

What happens to the oddities of the published data: a latitude of 400.17 is a malformed line; points that share a
timestamp become one, the last; a date in the year 2000 (a receiver that had lost its clock) and a longitude without its
sign are possible values and stay as they are, the first far from the rest in time, the second far in space and so
outside any grid of the city.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import PurePosixPath

import numpy as np

from dphmm.errors import DataFileError
from dphmm.readers.fixes import FixCollector, Fixes, check_name
from dphmm.readers.lines import Fields, parse_lines
from dphmm.tables.source import Document
from dphmm.tables.values import parse_number, parse_time, shorten

SUFFIXES = frozenset({".plt"})
HEADER_LINES = 6
_FIELDS = 7
_DATE_TIME = re.compile(r"\d{4}-\d\d-\d\d,\d\d:\d\d:\d\d", re.ASCII)


def fixes(document: Document, skip_bad: bool, user: str | None) -> Iterator[Fixes]:
    """The points of a ``.plt``, by default of the user whose name the folder above ``Trajectory`` bears.

    A file that does not lie in such a folder does not say whose points it holds.

    Raises
    ------
    DataFileError
        For a file without its six header lines, or a malformed line, unless it is to be skipped.
    """
    owner = user or _user(document.name)
    if owner is not None:
        check_name(owner, document.source)
    parse_block, parse_line = partial(_parse_block, user=owner), partial(_parse_line, user=owner)
    points = _after_header(document)
    return parse_lines(points, document.source, HEADER_LINES + 1, parse_block, parse_line, skip_bad)


def _user(name: PurePosixPath) -> str | None:
    in_layout = len(name.parts) >= 3 and name.parts[-2] == "Trajectory" and name.parts[-3] not in ("/", "..")
    return name.parts[-3] if in_layout else None


def _after_header(document: Document) -> bytes:
    *header, points = document.data.split(b"\n", HEADER_LINES)
    if len(header) < HEADER_LINES:
        raise DataFileError(
            document.source, f"has {len(header)} whole lines; a .plt has {HEADER_LINES} before its points"
        )
    return points


def _parse_block(block: bytes, source: str, user: str | None) -> Fixes:
    fields = Fields(block, b",", _FIELDS)
    owner = np.zeros(len(fields), dtype=np.int64)
    return Fixes(source, (user,), owner, fields.times(5, extra=1), *fields.places(0, 1))


def _parse_line(text: bytes, collector: FixCollector, user: str | None) -> None:
    fields = text.decode("ascii", errors="replace").split(",")
    if len(fields) != _FIELDS:
        raise ValueError(f"has {len(fields)} fields, not the {_FIELDS} of a .plt")
    moment = ",".join(fields[5:])
    if not _DATE_TIME.fullmatch(moment):
        raise ValueError(f"date and time are {shorten(moment)}; a .plt gives them as 2009-10-11,14:04:30")
    collector.add(
        user,
        parse_time(moment.replace(",", "T")),
        parse_number(fields[0], "latitude"),
        parse_number(fields[1], "longitude"),
    )
