"""Taxis of San Francisco (the cabspotting data set, Piorkowski, Sarafijanovic-Djukic and Grossglauser, 2009).

::

    cabspottingdata/
    ├── _cabs.txt                            not read: a list of the cabs
    ├── new_abboip.txt
    └── ...

Each file is a cab's, named after it. A line is ``37.75134 -122.39488 0 1213084687``: latitude, longitude, whether there
is a fare, and seconds since 1970, UTC; newest first. Whether there is a fare is not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath

import numpy as np

from dphmm.readers.fixes import FixCollector, Fixes, check_name
from dphmm.readers.lines import Fields, parse_lines
from dphmm.space.trajectory import LATEST_SECOND
from dphmm.tables.source import Document
from dphmm.tables.values import parse_number, shorten

SUFFIXES = frozenset({".txt"})
CAB = re.compile(r"new_(\w+)\.txt", re.ASCII)
"""The name of a cab's file."""
LINE = re.compile(rb"-?\d+(\.\d+)? -?\d+(\.\d+)? [01] \d{1,11}\r?$")
"""How a line looks."""
_FIELDS = 4


def fixes(document: Document, skip_bad: bool, user: str | None) -> Iterator[Fixes]:
    """The points of a cab's file, oldest first, by default of the cab that it is named after.

    Raises
    ------
    DataFileError
        For a malformed line, unless it is to be skipped.
    """
    name = PurePosixPath(document.name).name
    if name.startswith("_"):
        return iter(())
    found = CAB.fullmatch(name)
    owner = user or (found[1] if found else None)
    if owner is not None:
        check_name(owner, document.source)
    block, line = partial(_parse_block, user=owner), partial(_parse_line, user=owner)
    blocks = list(parse_lines(document.data, document.source, 1, block, line, skip_bad))
    return iter([_turned(one) for one in reversed(blocks)])


def _turned(block: Fixes) -> Fixes:
    """The file is newest first; turned round, the last of equal times is the one recorded last."""
    turned = {name: getattr(block, name)[::-1] for name in ("owner", "times", "latitude", "longitude")}
    return replace(block, **turned)


def _parse_block(block: bytes, source: str, user: str | None) -> Fixes:
    fields = Fields(block, b" ", _FIELDS)
    seconds = fields.numbers(3)
    if not ((seconds >= 0) & (seconds == np.floor(seconds))).all() or set(fields.texts(2).tolist()) > {b"0", b"1"}:
        raise ValueError("a time is no whole number of seconds")
    if (seconds > LATEST_SECOND).any():
        raise ValueError("a time lies beyond the year 9999")
    times = seconds.astype(np.int64).astype("datetime64[s]").astype("datetime64[us]")
    return Fixes(source, (user,), np.zeros(len(fields), dtype=np.int64), times, *fields.places(0, 1))


def _parse_line(text: bytes, collector: FixCollector, user: str | None) -> None:
    fields = text.decode("ascii", errors="replace").split(" ")
    if len(fields) != _FIELDS:
        raise ValueError(f"has {len(fields)} fields and not the {_FIELDS} of a cab: latitude, longitude, fare, time")
    if fields[2] not in ("0", "1"):
        raise ValueError(f"whether there is a fare is {shorten(fields[2])}; it is 0 or 1")
    if not re.fullmatch(r"\d{1,11}", fields[3], re.ASCII):
        raise ValueError(f"the time is {shorten(fields[3])}; give whole seconds since 1970")
    latitude, longitude = parse_number(fields[0], "latitude"), parse_number(fields[1], "longitude")
    collector.add(user, int(fields[3]) * 1_000_000, latitude, longitude)
