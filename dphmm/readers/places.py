"""Tables of named places: the states of a person who moves between a few known spots."""

from __future__ import annotations

from pathlib import Path

from dphmm.arguments import checked
from dphmm.errors import CoordinateError, DataFileError, StateError
from dphmm.space.states import Places
from dphmm.tables import Table


@checked
def read_places(path: str | Path, within_km: float = float("inf")) -> Places:
    """Named places from a table, CSV with a header line or Parquet.

    Parameters
    ----------
    path
        Columns ``name`` (or ``place``, ``label``), ``latitude`` (``lat``) and ``longitude`` (``lon``, ``lng``,
        ``long``), WGS 84 degrees; others are passed over.
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
    MissingDependencyError
        For Parquet without pyarrow.
    """
    table = Table.read(path)
    name, latitude, longitude = (table.find(what) for what in ("name", "latitude", "longitude"))
    try:
        return Places(table.texts(name), table.numbers(latitude), table.numbers(longitude), within_km)
    except (StateError, CoordinateError) as problem:
        raise DataFileError(path, str(problem)) from None
