"""Rows of CSV text."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping

from dphmm.errors import DataFileError
from dphmm.readers.columns import Row, resolve
from dphmm.readers.source import Document


def csv_rows(document: Document, columns: Mapping[str, str]) -> Iterator[Row]:
    """The rows of a CSV file with a header line, in UTF-8, separated by comma, semicolon or tab.

    A row's number is that of the line in which it ends. Blank lines hold nothing.

    Raises
    ------
    DataFileError
        When the file is no UTF-8 text, a quoted field is broken, or the header lacks a column.
    """
    try:
        text = document.data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = document.data.count(b"\n", 0, problem.start) + 1
        raise DataFileError(document.source, "is not UTF-8 text; convert it", line) from None
    delimiter = max(",;\t", key=text.partition("\n")[0].count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        names = next(reader, [])
        found = resolve(names, columns, document.source)
        index = {what: names.index(name) for what, name in found.items()}
        for fields in reader:
            if fields:
                yield _row(fields, len(names), index, reader.line_num)
    except csv.Error as problem:
        raise DataFileError(document.source, f"is no CSV ({problem}); check the quotes", reader.line_num) from None


def _row(fields: list[str], count: int, index: Mapping[str, int], number: int) -> Row:
    if len(fields) != count:
        return Row(number, problem=f"has {len(fields)} fields; the header has {count}")
    if "geometry" in index:
        place: tuple[str, str] | str = fields[index["geometry"]]
    else:
        place = (fields[index["latitude"]], fields[index["longitude"]])
    user = fields[index["user"]].strip() if "user" in index else None
    return Row(number, user, fields[index["time"]], place=place)
