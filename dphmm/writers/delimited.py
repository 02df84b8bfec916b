"""Releases as CSV, which everything reads; the reference system stands in a column of its own."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from dphmm.tables import Table, iso_time, write_csv
from dphmm.writers.frame import Geometry
from dphmm.writers.table import COLUMNS, CRS, Column, ReleaseTable


def write(path: Path, table: ReleaseTable, geometry: Geometry = "estimate") -> None:  # noqa: ARG001
    """Write the table; numbers are written so that they read back bit for bit, an unknown one as an empty field."""
    columns = [_texts(column, table) for column in COLUMNS]
    rows = ([*values, CRS] for values in zip(*columns, strict=True))
    write_csv(path, [column.name for column in COLUMNS] + ["crs"], rows)


def _texts(column: Column, table: ReleaseTable) -> Iterable[str]:
    values = table[column.name]
    if column.kind == "time":
        return map(iso_time, values)
    if column.kind == "number":
        return ("" if math.isnan(value) else repr(value) for value in values.tolist())
    return (str(value).lower() if column.kind == "flag" else str(value) for value in values.tolist())


def read(path: Path) -> ReleaseTable:
    """Read what `write` wrote; columns may stand in any order, and further ones are left unread."""
    table = Table.read(path, empty=True)
    return ReleaseTable({column.name: table.values(column.name, column.parse) for column in COLUMNS})
