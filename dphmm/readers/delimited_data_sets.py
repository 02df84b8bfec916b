"""Public data sets of delimited lines: GeoLife, SNAP check-ins and San Francisco taxis.

GeoLife: folders of ``.plt`` files, or an archive of such folders::

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
2010, and the data set's user guide 1.3). Only latitude, longitude, date and time are read.

Irregularities of the published data are handled as follows. A latitude of 400.17 is a malformed line. Of points that
share a timestamp the last one is kept. A date in the year 2000 (from a receiver without a valid clock) and a longitude
without its sign are valid values and are kept unchanged. The first lies far from the rest in time, the second far in
space and therefore outside any grid of the city.

Check-ins (Gowalla, Brightkite; Cho, Myers, Leskovec, KDD 2011): one a line, separated by tabs: user, time, latitude,
longitude, place; newest first within a user; plain or gzipped. The time ends in ``Z`` or, in other extracts, ``+0000``;
the place is not read.

Cabs (the cabspotting data set; Piorkowski, Sarafijanovic-Djukic, Grossglauser, 2009)::

    cabspottingdata/
    ├── _cabs.txt                            not read: a list of the cabs
    ├── new_abboip.txt
    └── ...

Each file contains one cab and is named after it. A line is ``37.75134 -122.39488 0 1213084687``: latitude, longitude,
occupancy, and seconds since 1970, UTC; newest first. The occupancy is not used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import PurePosixPath

import numpy as np

from dphmm.errors import DataFileError
from dphmm.readers.fixes import Fields, FixCollector, Fixes, ReadOptions, check_name, check_user, parse_lines
from dphmm.space.trajectory import LATEST_SECOND
from dphmm.tables.source import Document
from dphmm.tables.values import parse_number, parse_time, shorten

HEADER_LINES = 6
_GEOLIFE_FIELDS = 7
_DATE_TIME = re.compile(r"\d{4}-\d\d-\d\d,\d\d:\d\d:\d\d", re.ASCII)


def read_geolife_fixes(document: Document, options: ReadOptions) -> Iterator[Fixes]:
    """Yield the points of a ``.plt`` file.

    The user defaults to the name of the folder above ``Trajectory``. A file outside such a folder has no user.

    Parameters
    ----------
    document
        The file.
    options
        Options of the caller.

    Yields
    ------
    Fixes
        A block of points.

    Raises
    ------
    DataFileError
        For a file without its six header lines, or for a malformed line unless it is skipped.
    """
    owner = options.user or _get_folder_user(document.name)
    if owner is not None:
        check_name(owner, document.source)
    *header, points = document.data.split(b"\n", HEADER_LINES)
    if len(header) < HEADER_LINES:
        raise DataFileError(
            document.source, f"must have {HEADER_LINES} header lines of a .plt before its points, got {len(header)}"
        )
    parse_block = partial(_parse_geolife_block, user=owner)
    parse_line = partial(_parse_geolife_line, user=owner)
    return parse_lines(points, document.source, HEADER_LINES + 1, parse_block, parse_line, options)


def _get_folder_user(name: PurePosixPath) -> str | None:
    in_layout = len(name.parts) >= 3 and name.parts[-2] == "Trajectory" and name.parts[-3] not in ("/", "..")
    return name.parts[-3] if in_layout else None


def _parse_geolife_block(block: bytes, source: str, user: str | None) -> Fixes:
    fields = Fields(block, b",", _GEOLIFE_FIELDS)
    owner = np.zeros(len(fields), dtype=np.int64)
    return Fixes(source, (user,), owner, fields.parse_times(5, extra=1), *fields.parse_degrees(0, 1))


def _parse_geolife_line(text: bytes, collector: FixCollector, user: str | None) -> None:
    fields = text.decode("ascii", errors="replace").split(",")
    if len(fields) != _GEOLIFE_FIELDS:
        raise ValueError(f"a line of a .plt must have {_GEOLIFE_FIELDS} fields, got {len(fields)}")
    date_time = ",".join(fields[5:])
    if not _DATE_TIME.fullmatch(date_time):
        raise ValueError(f"date and time must have the form 2009-10-11,14:04:30, got {shorten(date_time)}")
    time = parse_time(date_time.replace(",", "T"))
    latitude = parse_number(fields[0], "latitude")
    longitude = parse_number(fields[1], "longitude")
    collector.add(user, time, latitude, longitude)


_CHECKINS_FIELDS = 5
_UTC_ENDINGS = (b"Z", b"+0000", b"+00:00")


def read_checkin_fixes(document: Document, options: ReadOptions) -> Iterator[Fixes]:
    """Return the check-ins of a file, oldest first. Of one user only if one is named.

    Parameters
    ----------
    document
        The file.
    options
        Options of the caller.

    Returns
    -------
    iterator of Fixes
        Blocks of check-ins.

    Raises
    ------
    DataFileError
        For a malformed line, unless it is skipped.
    """
    blocks = parse_lines(document.data, document.source, 1, _parse_checkin_block, _parse_checkin_line, options)
    return _reverse_blocks(blocks, options.user)


def _reverse_blocks(newest_first: Iterable[Fixes], user: str | None) -> Iterator[Fixes]:
    """Reverse fixes that are newest first, so that the last of equal times was recorded last."""
    for block in reversed(list(newest_first)):
        number = block.names.index(user) if user in block.names else -1
        wanted = slice(None) if user is None else block.owner == number
        chosen = block.select(wanted)
        yield chosen.select(slice(None, None, -1))


def _parse_checkin_block(block: bytes, source: str) -> Fixes:
    fields = Fields(block, b"\t", _CHECKINS_FIELDS)
    fields.shorten(1, _UTC_ENDINGS)
    names, owner = np.unique(fields.get_texts(0), return_inverse=True)
    texts = tuple(str(name, "ascii") for name in names.tolist())
    for text in texts:
        check_user(text)
    return Fixes(source, texts, owner.astype(np.int64), fields.parse_times(1, extra=0), *fields.parse_degrees(2, 3))


def _parse_checkin_line(text: bytes, collector: FixCollector) -> None:
    fields = text.decode("utf-8", errors="replace").split("\t")
    if len(fields) != _CHECKINS_FIELDS:
        raise ValueError(
            f"a check-in must have user, time, latitude, longitude, place, separated by tabs, got {len(fields)} fields"
        )
    latitude = parse_number(fields[2], "latitude")
    longitude = parse_number(fields[3], "longitude")
    collector.add(fields[0], parse_time(fields[1]), latitude, longitude)


# The pattern of the name of a cab's file.
CAB_NAME = re.compile(r"new_(\w+)\.txt", re.ASCII)
_CABS_FIELDS = 4


def read_cab_fixes(document: Document, options: ReadOptions) -> Iterator[Fixes]:
    """Return the points of a cab's file, oldest first. The user defaults to the cab.

    Parameters
    ----------
    document
        The file.
    options
        Options of the caller.

    Returns
    -------
    iterator of Fixes
        Blocks of points.

    Raises
    ------
    DataFileError
        For a malformed line, unless it is skipped.
    """
    name = PurePosixPath(document.name).name
    if name.startswith("_"):
        return iter(())
    match = CAB_NAME.fullmatch(name)
    owner = options.user or (match[1] if match else None)
    if owner is not None:
        check_name(owner, document.source)
    block = partial(_parse_cab_block, user=owner)
    line = partial(_parse_cab_line, user=owner)
    return _reverse_blocks(parse_lines(document.data, document.source, 1, block, line, options), None)


def _parse_cab_block(block: bytes, source: str, user: str | None) -> Fixes:
    fields = Fields(block, b" ", _CABS_FIELDS)
    seconds = fields.parse_numbers(3)
    if not ((seconds >= 0) & (seconds == np.floor(seconds))).all() or set(fields.get_texts(2).tolist()) > {b"0", b"1"}:
        raise ValueError("a time is not an integer number of seconds")
    if (seconds > LATEST_SECOND).any():
        raise ValueError("a time lies beyond the year 9999")
    times = seconds.astype(np.int64).astype("datetime64[s]").astype("datetime64[us]")
    return Fixes(source, (user,), np.zeros(len(fields), dtype=np.int64), times, *fields.parse_degrees(0, 1))


def _parse_cab_line(text: bytes, collector: FixCollector, user: str | None) -> None:
    fields = text.decode("ascii", errors="replace").split(" ")
    if len(fields) != _CABS_FIELDS:
        raise ValueError(f"a line must have {_CABS_FIELDS} fields (latitude, longitude, fare, time), got {len(fields)}")
    if fields[2] not in ("0", "1"):
        raise ValueError(f"fare must be 0 or 1, got {shorten(fields[2])}")
    if not re.fullmatch(r"\d{1,11}", fields[3], re.ASCII):
        raise ValueError(f"time must be an integer number of seconds since 1970, got {shorten(fields[3])}")
    latitude = parse_number(fields[0], "latitude")
    longitude = parse_number(fields[1], "longitude")
    collector.add(user, int(fields[3]) * 1_000_000, latitude, longitude)
