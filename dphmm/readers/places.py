"""Tables of named places: the states of a person who moves between a few known spots."""

from __future__ import annotations

import csv
from pathlib import Path

from dphmm.errors import CoordinateError, DataFileError, StateError
from dphmm.space.states import Places

_NAMES = {
    "name": ("name", "place", "label"),
    "latitude": ("latitude", "lat"),
    "longitude": ("longitude", "lon", "lng"),
}


def read_places(path: str | Path, within_km: float = float("inf")) -> Places:
    """Named places from a CSV file with a heading line.

    Parameters
    ----------
    path
        Columns ``name`` (or ``place``, ``label``), ``latitude`` (``lat``) and ``longitude`` (``lon``, ``lng``), WGS 84
        degrees; others are passed over.
    within_km
        How far from its place a fix may lie, in kilometres.

    Returns
    -------
    Places
        In the order of the file.

    Raises
    ------
    DataFileError
        When the file cannot be read, lacks a column, or has a line that is no place; with the line's number.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            lines = csv.reader(file)
            heading = [cell.strip().lower() for cell in next(lines, [])]
            index = {wanted: _column(path, heading, wanted) for wanted in _NAMES}
            rows = [_place(path, lines.line_num, row, index) for row in lines if row]
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise DataFileError(path, f"cannot be read as CSV ({problem}); check the path and the encoding") from None
    names, latitude, longitude = zip(*rows, strict=True) if rows else ((), (), ())
    try:
        return Places(names, latitude, longitude, within_km)
    except (StateError, CoordinateError) as problem:
        raise DataFileError(path, str(problem)) from None


def _column(path: str | Path, heading: list[str], wanted: str) -> int:
    for known in _NAMES[wanted]:
        if known in heading:
            return heading.index(known)
    raise DataFileError(path, f"has no column {wanted!r} but {heading}; name it {' or '.join(_NAMES[wanted])}", 1)


def _place(path: str | Path, line: int, row: list[str], index: dict[str, int]) -> tuple[str, float, float]:
    try:
        return row[index["name"]].strip(), float(row[index["latitude"]]), float(row[index["longitude"]])
    except (IndexError, ValueError):
        raise DataFileError(path, f"{row} is no place; give a name and two numbers", line) from None
