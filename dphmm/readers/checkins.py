"""Check-ins in the form of Stanford's SNAP collection (Gowalla, Brightkite).

One check-in a line, separated by tabs: user, time, latitude, longitude, place; newest first within a user; plain or
gzipped (Cho, Myers, Leskovec, KDD 2011). The time ends in ``Z`` or, in other extracts, ``+0000``; a place is not
looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from dphmm.readers.fixes import FixCollector, Fixes, ReadResult, trajectories
from dphmm.readers.lines import Fields, on_earth, parse_lines
from dphmm.tables import documents, parse_number, parse_time

SUFFIXES = frozenset({".txt"})
_FIELDS = 5
_UTC_ENDINGS = (b"Z", b"+0000", b"+00:00")


def read_checkins(path: str | Path, *, skip_bad: bool = False, user: str | None = None) -> ReadResult:
    """Every user's check-ins as a trajectory.

    Parameters
    ----------
    path
        The file, plain or gzipped, or a folder or archive of such ``.txt`` files.
    skip_bad
        True to pass over malformed lines and count them.
    user
        Read only this user; left out, all of them.

    Raises
    ------
    DataFileError
        For a malformed line (unless skipped), an unreadable or truncated file.
    """
    found = trajectories(_fixes(path, skip_bad))
    if user is None:
        return found
    kept = tuple(trajectory for trajectory in found.trajectories if trajectory.user == user)
    return ReadResult(kept, found.skipped, found.merged)


def _fixes(path: str | Path, skip_bad: bool) -> Iterator[Fixes]:
    for document in documents(path, SUFFIXES):
        blocks = list(parse_lines(document.data, document.source, 1, _parse_block, _parse_line, skip_bad))
        yield from (_oldest_first(block) for block in reversed(blocks))


def _oldest_first(block: Fixes) -> Fixes:
    """The file is newest first; turned round, the last of equal times is the one recorded last."""
    turned = {name: getattr(block, name)[::-1] for name in ("owner", "times", "latitude", "longitude")}
    return replace(block, **turned)


def _parse_block(block: bytes, source: str) -> Fixes:
    fields = Fields(block, b"\t", _FIELDS)
    fields.shortened(1, _UTC_ENDINGS)
    latitude, longitude = fields.numbers(2), fields.numbers(3)
    on_earth(latitude, longitude)
    names, owner = np.unique(fields.texts(0), return_inverse=True)
    texts = tuple(str(name, "ascii") for name in names.tolist())
    if "" in texts:
        raise ValueError("a user is empty")
    return Fixes(source, texts, owner.astype(np.int64), fields.times(1, extra=0), latitude, longitude)


def _parse_line(text: bytes, collector: FixCollector) -> None:
    fields = text.decode("utf-8", errors="replace").split("\t")
    if len(fields) != _FIELDS:
        raise ValueError(
            f"has {len(fields)} fields separated by tabs; a check-in has user, time, latitude, longitude, place"
        )
    latitude, longitude = parse_number(fields[2], "latitude"), parse_number(fields[3], "longitude")
    collector.add(fields[0], parse_time(fields[1]), latitude, longitude)
