"""Releases as CSV, which everything reads; the reference system stands in a column of its own."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np

from dphmm.writers.formats import CRS
from dphmm.writers.table import COLUMNS, Column, ReleaseTable, iso_time

_TRUTH = {"true": True, "false": False}


def write(path: Path, table: ReleaseTable) -> None:
    """Write the table; numbers are written so that they read back bit for bit, an unknown one as an empty field."""
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([column.name for column in COLUMNS] + ["crs"])
        columns = [_texts(column, table) for column in COLUMNS]
        writer.writerows([*values, CRS] for values in zip(*columns, strict=True))


def _texts(column: Column, table: ReleaseTable) -> list[str]:
    values = table[column.name]
    if column.kind == "time":
        return [iso_time(value) for value in values]
    if column.kind == "number":
        return ["" if math.isnan(value) else repr(value) for value in values.tolist()]
    if column.kind == "flag":
        return [str(value).lower() for value in values.tolist()]
    return [str(value) for value in values.tolist()]


def read(path: Path) -> ReleaseTable:
    """Read what `write` wrote; columns may stand in any order, and further ones are left unread."""
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream, strict=True, restval=None))
    return ReleaseTable({column.name: _values(column, [row[column.name] for row in rows]) for column in COLUMNS})


def _values(column: Column, texts: list[str]) -> list[Any]:
    if column.kind == "time":
        return [np.datetime64(text.removesuffix("Z"), "us") for text in texts]
    if column.kind == "number":
        return [float(text) if text else math.nan for text in texts]
    if column.kind == "count":
        return [int(text) for text in texts]
    if column.kind == "flag":
        return [_TRUTH[text] for text in texts]
    return list(texts)
