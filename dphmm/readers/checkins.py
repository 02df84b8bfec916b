"""Check-ins in the form of Stanford's SNAP collection (Gowalla, Brightkite).

One check-in a line, separated by tabs: user, time, latitude, longitude, place; newest first within a user; plain or
gzipped (Cho, Myers, Leskovec, KDD 2011). The time ends in ``Z`` or, in other extracts, ``+0000``; a place is not
looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from dphmm.readers.fixes import FixCollector, Fixes, check_user
from dphmm.readers.lines import Fields, parse_lines
from dphmm.tables.source import Document
from dphmm.tables.values import parse_number, parse_time

SUFFIXES = frozenset({".txt"})
_FIELDS = 5
_UTC_ENDINGS = (b"Z", b"+0000", b"+00:00")


def fixes(document: Document, skip_bad: bool, user: str | None) -> Iterator[Fixes]:
    """The check-ins of a file, oldest first; those of ``user`` alone where one is named.

    Raises
    ------
    DataFileError
        For a malformed line, unless it is to be skipped.
    """
    blocks = list(parse_lines(document.data, document.source, 1, _parse_block, _parse_line, skip_bad))
    return (_oldest_first(block, user) for block in reversed(blocks))


def _oldest_first(block: Fixes, user: str | None) -> Fixes:
    """The file is newest first; turned round, the last of equal times is the one recorded last."""
    wanted = slice(None) if user is None else block.owner == (block.names.index(user) if user in block.names else -1)
    turned = {name: getattr(block, name)[wanted][::-1] for name in ("owner", "times", "latitude", "longitude")}
    return replace(block, **turned)


def _parse_block(block: bytes, source: str) -> Fixes:
    fields = Fields(block, b"\t", _FIELDS)
    fields.shorten(1, _UTC_ENDINGS)
    names, owner = np.unique(fields.texts(0), return_inverse=True)
    texts = tuple(str(name, "ascii") for name in names.tolist())
    for text in texts:
        check_user(text)
    return Fixes(source, texts, owner.astype(np.int64), fields.times(1, extra=0), *fields.places(2, 3))


def _parse_line(text: bytes, collector: FixCollector) -> None:
    fields = text.decode("utf-8", errors="replace").split("\t")
    if len(fields) != _FIELDS:
        raise ValueError(
            f"has {len(fields)} fields separated by tabs; a check-in has user, time, latitude, longitude, place"
        )
    latitude, longitude = parse_number(fields[2], "latitude"), parse_number(fields[3], "longitude")
    collector.add(fields[0], parse_time(fields[1]), latitude, longitude)
