"""Delimited text: rows of CSV with the lines they stand on, and CSV written."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from dphmm.errors import DataFileError
from dphmm.tables.source import Document, read_document


def csv_rows(document: Document) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV file, the header first, each with the number of the line in which it ends.

    The separator is a comma, semicolon or tab, whichever the first line has most of. Blank lines hold nothing.

    Raises
    ------
    DataFileError
        When the file is no UTF-8 text or a quoted field is broken; with the line.
    """
    text = document.text()
    delimiter = max(",;\t", key=text.partition("\n")[0].count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        for fields in reader:
            if fields:
                yield reader.line_num, fields
    except csv.Error as problem:
        raise DataFileError(document.source, f"is no CSV ({problem}); check the quotes", reader.line_num) from None


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Iterable[object]]) -> None:
    """Write a CSV file in UTF-8 with a header line."""
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def content_lines(path: str | Path) -> list[tuple[int, str]]:
    """The lines of a text file that say something, with their numbers; what follows a ``#`` is passed over.

    Raises
    ------
    DataFileError
        When the file cannot be read or is no UTF-8 text.
    """
    lines = enumerate(read_document(path).text().splitlines(), start=1)
    stripped = ((number, line.split("#")[0].strip()) for number, line in lines)
    return [(number, line) for number, line in stripped if line]
