"""Delimited text: rows of CSV with the lines they stand on, and CSV written."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

from dphmm.arguments import checked
from dphmm.errors import DataFileError, InvalidInputError, OutputError
from dphmm.tables.source import Document, read_document
from dphmm.tables.values import one_line


def csv_rows(document: Document) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV file, the header first, each with the number of the line in which it ends.

    The separator is a comma, semicolon or tab, whichever the first line has most of. Blank lines hold nothing.

    Raises
    ------
    DataFileError
        When the file is no UTF-8 text or a quoted field is broken; with the line.
    """
    first = document.data[: max(document.data.find(b"\n"), 0) or None].decode("utf-8", errors="replace")
    lines = io.TextIOWrapper(io.BytesIO(document.data), encoding="utf-8-sig", newline="")  # a line at a time
    reader = csv.reader(lines, delimiter=max(",;\t", key=first.count), strict=True)
    guarded = _GUARD in document.data
    try:
        for fields in reader:
            if fields:
                yield reader.line_num, [unguarded(field) for field in fields] if guarded else fields
    except csv.Error as problem:
        raise DataFileError(document.source, f"is no CSV ({problem}); check the quotes", reader.line_num) from None
    except UnicodeDecodeError:
        document.text()  # which says in what line
        raise


@checked
def write_csv(path: str | Path, header: Sequence[str], rows: Iterable[Iterable[object]]) -> None:
    """Write a CSV file in UTF-8 with a header line; what a spreadsheet would take as a formula is `guarded`."""
    try:
        with Path(path).open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(_Lines(stream), lineterminator="\r\n")
            writer.writerow(map(guarded, header))
            writer.writerows(map(guarded, row) for row in rows)
    except (TypeError, ValueError) as problem:
        raise InvalidInputError(
            f"rows cannot be written ({one_line(problem)}); give rows of texts and numbers"
        ) from None
    except IsADirectoryError:
        raise OutputError(f"{path} is a folder; name a file") from None


class _Lines(NamedTuple):
    """Rows that end in a newline; a writer that is told so would leave a carriage return in a cell without quotes."""

    stream: TextIO

    def write(self, row: str) -> int:
        return self.stream.write(row.removesuffix("\r\n") + "\n")


_GUARD = b"'"
_FORMULA = re.compile("'*[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
_FIRST = "'=+-@\t\r\n\uff1d\uff0b\uff0d\uff20"
"""How a cell begins that a spreadsheet takes as a formula, or that is a guarded one; also in full width."""
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-]inf", re.ASCII)


def guarded(cell: object) -> object:
    """A cell that a spreadsheet shows and does not run: an apostrophe before a text that begins as a formula does.

    Numbers stay as they are. `unguarded` takes the apostrophe off again.

    Examples
    --------
    >>> [guarded(cell) for cell in ("=1+1", "-1.5", "'=x", "O'Hara", 7)]
    ["'=1+1", '-1.5', "''=x", "O'Hara", 7]
    """
    if isinstance(cell, str) and cell[:1] in _FIRST and _FORMULA.match(cell) and not _NUMBER.fullmatch(cell):
        return f"'{cell}"
    return cell


def unguarded(cell: str) -> str:
    """The cell that `guarded` was given."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


_LINE = 270
"""What a short line takes in memory, in bytes, with its number and the text around it that goes."""


@checked
def content_lines(path: str | Path) -> list[tuple[int, str]]:
    """The lines of a text file that say something, with their numbers; what follows a ``#`` is passed over.

    Raises
    ------
    DataFileError
        When the file cannot be read or is no UTF-8 text.
    """
    document = read_document(path)
    document.check_objects((b"\n", b"\r"), _LINE)
    lines = enumerate(document.text().splitlines(), start=1)
    stripped = ((number, line.split("#")[0].strip()) for number, line in lines)
    return [(number, line) for number, line in stripped if line]
