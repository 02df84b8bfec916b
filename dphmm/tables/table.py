"""Tables as CSV and Parquet: the names of their columns, rows and cells, each flaw with its line; tables by time."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TextIO, TypeVar

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, as_floats, as_instants
from dphmm.errors import ConfigurationError, DataFileError, InvalidInputError, OutputError, TimeOrderError, need
from dphmm.tables.binary_files import read_parquet, write_parquet
from dphmm.tables.output import new_file
from dphmm.tables.source import Document, read_document, suffix_of
from dphmm.tables.values import Times, one_line, parse_number, parse_time, parse_times, plain_text, time_text

ALIASES: Mapping[str, tuple[str, ...]] = {
    "user": ("user_id", "uid", "user", "traj_id"),
    "time": ("tracked_at", "datetime", "timestamp", "time", "t"),
    "latitude": ("latitude", "lat"),
    "longitude": ("longitude", "lon", "lng", "long"),
    "geometry": ("geometry", "geom"),
    "name": ("name", "place", "label"),
}
"""What a column holds → the names that it is recognised by, in any case; the first that occurs wins."""

TRIPS = ALIASES["user"][-1]
"""The name of a column of trajectories, as movingpandas has it: it distinguishes people only where each has one."""


def find_column(names: Iterable[str], what: str) -> str | None:
    """Return the first of the names that is an alias of ``what``, see `ALIASES`; None where none is.

    Examples
    --------
    >>> find_column(["Lat", "LNG "], "longitude")
    'LNG '
    """
    lower = {name.strip().lower(): name for name in reversed(list(names))}
    return next((lower[name] for name in ALIASES[what] if name in lower), None)


def listed(names: Sequence[str]) -> str:
    """Join names for a message: the first dozen of them, long ones cut."""
    short = [name if len(name) <= 40 else f"{name[:37]}..." for name in names[:12]]
    return ", ".join(short) + (", ..." if len(names) > 12 else "") if names else "no columns"


def csv_rows(document: Document) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV file, the header first, each with the number of the line in which it ends.

    The separator is a comma, semicolon or tab, whichever the first line has most of. Blank lines are passed over.

    Parameters
    ----------
    document
        The file.

    Yields
    ------
    line, fields
        The line, from 1, and its cells.

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
    """Write a CSV file in UTF-8 with a header line; a cell that a spreadsheet would take as a formula is `guarded`.

    Parameters
    ----------
    path
        The file.
    header
        The names of the columns.
    rows
        The cells of each row, texts and numbers.

    Raises
    ------
    InvalidInputError
        When a row is no sequence of cells.
    OutputError
        When there is a folder in the file's place.
    """
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
    """Rows that end in a newline; a writer with that terminator would leave a carriage return in a cell unquoted."""

    stream: TextIO

    def write(self, row: str) -> int:
        return self.stream.write(row.removesuffix("\r\n") + "\n")


_GUARD = b"'"
_FORMULA = re.compile("'*[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
_FIRST = "'=+-@\t\r\n\uff1d\uff0b\uff0d\uff20"
"""How a cell begins that a spreadsheet takes as a formula, or that is a guarded one; also in full width."""
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-]inf", re.ASCII)


def guarded(cell: object) -> object:
    """Put an apostrophe before a text that begins as a spreadsheet's formula does, so that it is shown and not run.

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
    """Take off the apostrophe that `guarded` put before a text."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


_LINE = 270
"""What a short line takes in memory, in bytes, with its number and the text around it that goes."""


@checked
def content_lines(path: str | Path) -> list[tuple[int, str]]:
    """Return the lines of a text file that hold something; what follows a ``#`` is a comment.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    list of (int, str)
        The number of each line, from 1, and its text without comments and the space around it.

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


PARQUET = frozenset({".parquet", ".geoparquet"})
"""The extensions of Parquet files; every other is read as CSV."""

_CELL = 110
"""What a cell takes in memory, in bytes, with its share of a row."""

_TRUTH = {"true": 1.0, "false": 0.0}

T = TypeVar("T")


@dataclass(frozen=True)
class Table:
    """Columns under their names.

    Parameters
    ----------
    source
        The file, as messages name it.
    columns
        Name → the cells ``(n,)``: texts as they stand in a CSV, an array of a Parquet file's own kind.
    lines
        ``(n + 1,)``: where the header and the rows of a CSV end; empty for Parquet, whose rows are counted.
    """

    source: str
    columns: Mapping[str, Any] = field(repr=False)
    lines: Sequence[int] = field(repr=False)

    @classmethod
    @checked
    def read(cls, path: str | Path, empty: bool = False) -> Table:
        """Read a Parquet file, or a CSV file with a header line (UTF-8; comma, semicolon or tab).

        Rows of a CSV with nothing in any cell are passed over.

        Parameters
        ----------
        path
            The file, which may be gzipped; its extension says which of the two it is.
        empty
            True to take a header without rows as a table too.

        Returns
        -------
        Table
            All of its columns.

        Raises
        ------
        DataFileError
            When the file cannot be read or is damaged, names a column twice, has a row of another length than its
            header, or no rows; with the line for CSV.
        MissingDependencyError
            For Parquet without pyarrow.
        """
        document = read_document(path)
        if suffix_of(document.name) in PARQUET:
            found = read_parquet(document)
            header, cells = list(found.column_names), [column.to_numpy() for column in found.columns]
            lines: list[int] = []
        else:
            header, cells, lines = _read_csv(document)
        table = cls(document.source, dict(zip(header, cells, strict=True)), lines)
        if len(table.columns) != len(header):
            raise table.refusal(None, f"names a column twice: {listed(header)}; give each its own name")
        if not header or not (len(table) or empty):
            raise DataFileError(path, "holds no rows; give a header and a row for each entry")
        return table

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def find(self, what: str) -> str:
        """Find the column that goes by an alias; see `ALIASES`.

        Parameters
        ----------
        what
            What the column holds, a key of `ALIASES`.

        Returns
        -------
        str
            Its name in the file.

        Raises
        ------
        DataFileError
            When there is none.
        """
        found = find_column(self.columns, what)
        if found is None:
            known, names = listed(list(self.columns)), " or ".join(ALIASES[what])
            raise self.refusal(None, f"has no column {what!r}; its columns are {known}; call one of them {names}")
        return found

    def cells(self, name: str) -> Any:
        """Return the cells of a column as they are.

        Parameters
        ----------
        name
            The column.

        Returns
        -------
        sequence of str, or array ``(n,)``
            Texts of a CSV; an array of a Parquet file's own type.

        Raises
        ------
        DataFileError
            When there is no such column.
        """
        if name not in self.columns:
            raise self.refusal(None, f"has no column {name!r}; its columns are {listed(list(self.columns))}")
        return self.columns[name]

    def texts(self, name: str) -> list[str]:
        """Return a column as texts without the space around them.

        Parameters
        ----------
        name
            The column.

        Returns
        -------
        list of str
            A text for each row, empty where there is nothing.
        """
        return [text.strip() for text in self._plain(name)]

    def _plain(self, name: str) -> Iterable[str]:
        cells = self.cells(name)
        return map(plain_text, cells.tolist()) if isinstance(cells, np.ndarray) else cells

    def values(self, name: str, parse: Callable[[str], T]) -> list[T]:
        """Return a column with each of its texts parsed.

        Parameters
        ----------
        name
            The column.
        parse
            From a text to a value; raises `ValueError` for a text that is none.

        Returns
        -------
        list
            A value for each row.

        Raises
        ------
        DataFileError
            Where ``parse`` raises `ValueError`; with its line.
        """
        made = []
        for row, cell in enumerate(self._plain(name)):
            try:
                made.append(parse(cell))
            except ValueError as problem:
                raise self.refusal(row, str(problem)) from None
        return made

    def numbers(self, name: str) -> FloatArray:
        """Return a column as numbers; ``true`` and ``false`` count as 1 and 0.

        Parameters
        ----------
        name
            The column.

        Returns
        -------
        array ``(n,)`` of float64
            A number for each row.

        Raises
        ------
        DataFileError
            When a cell is no number; with its line.
        """
        cells = self.cells(name)
        if isinstance(cells, np.ndarray) and cells.dtype.kind in "fiub":
            return cells.astype(np.float64)
        return np.array(self.values(name, lambda text: _number(text, name)), dtype=np.float64)

    def times(self, name: str) -> Times:
        """Return a column as times; see `parse_times`.

        Parameters
        ----------
        name
            The column.

        Returns
        -------
        array ``(n,)``
            Whole numbers, decimal numbers or ``datetime64[us]`` in UTC.

        Raises
        ------
        DataFileError
            When a cell is no time; with its line.
        """
        cells = self.cells(name)
        if isinstance(cells, np.ndarray) and cells.dtype.kind in "Mif":
            try:
                return as_instants(cells) if cells.dtype.kind == "M" else cells
            except ValueError as problem:
                raise self.refusal(None, f"column {name!r}: {problem}") from None
        try:
            return parse_times(self.texts(name))
        except ValueError:
            self.values(name, parse_time)  # which says in what line
            raise

    def refusal(self, row: int | None, problem: str) -> DataFileError:
        """Make the error for a problem in a row or in the header.

        Parameters
        ----------
        row
            The row, from 0; None for the header.
        problem
            What is wrong, and what to do.

        Returns
        -------
        DataFileError
            With the line for CSV, with the number of the row for Parquet.
        """
        if self.lines:
            return DataFileError(self.source, problem, self.lines[0 if row is None else row + 1])
        return DataFileError(self.source, problem if row is None else f"row {row + 1}: {problem}")


def _read_csv(document: Document) -> tuple[list[str], list[Any], list[int]]:
    document.check_objects((b",", b";", b"\t", b"\n"), _CELL)
    rows = csv_rows(document)
    first, names = next(rows, (1, []))
    header = [name.strip() for name in names]
    lines, kept = [first], []
    for line, fields in rows:
        if any(map(str.strip, fields)):
            if len(fields) != len(header):
                raise DataFileError(document.source, f"has {len(fields)} fields; the header has {len(header)}", line)
            lines.append(line)
            kept.append(fields)
    return header, list(zip(*kept, strict=True)) if kept else [()] * len(header), lines


def _number(text: str, name: str) -> float:
    found = _TRUTH.get(text.strip())
    return parse_number(text, name) if found is None else found


TIMED_SUFFIXES = (".csv", ".parquet")


@checked
@dataclass(frozen=True)
class TimedTable:
    """Columns of numbers over strictly increasing times.

    Parameters
    ----------
    times
        ``(T,)``, at least one: whole numbers, decimal numbers or ``datetime64``.
    columns
        Name → ``(T,)`` numbers or booleans, in the order in which they are written.

    Raises
    ------
    TimeOrderError
        When there is no time, or one is not later than the one before.
    ConfigurationError
        When a column has another length.
    """

    times: Times
    columns: Mapping[str, npt.NDArray[Any]]

    def __post_init__(self) -> None:
        if not all(isinstance(values, np.ndarray) for values in (self.times, *self.columns.values())):
            raise ConfigurationError("times and columns are no arrays; make them with numpy.asarray")
        if self.times.ndim != 1 or self.times.size == 0:
            raise TimeOrderError(f"times have shape {self.times.shape}; give a list of one time or more")
        back = np.flatnonzero(self.times[1:] <= self.times[:-1])
        if back.size:
            row = int(back[0]) + 1
            after, before = (time_text(self.times[at]) for at in (row, row - 1))
            raise TimeOrderError(f"time {row} is {after} after {before}; sort the rows and keep each time once")
        for name, values in self.columns.items():
            if values.shape != self.times.shape:
                raise ConfigurationError(
                    f"column {name} has shape {values.shape}; there are {self.times.size} times, so give as many"
                )

    def __len__(self) -> int:
        return len(self.times)

    @classmethod
    @checked
    def read(cls, path: str | Path) -> TimedTable:
        """Read a table whose first column, or the one named as times usually are, holds times and all others numbers.

        Parameters
        ----------
        path
            ``.csv`` (UTF-8, a header line) or ``.parquet``.

        Returns
        -------
        TimedTable
            The columns of numbers over their times.

        Raises
        ------
        DataFileError
            For a file that is missing, damaged, or holds something else; with the line for CSV.
        TimeOrderError
            When a time is not later than the one before.
        ConfigurationError, MissingDependencyError
            As `check_table_name`.
        """
        table = Table.read(check_table_name(path))
        names = list(table.columns)
        if len(names) < 2:
            raise DataFileError(path, f"has the columns {names}; give one of times and at least one of numbers")
        at = find_column([name for name in names if name.strip() != "t"], "time") or names[0]  # t may be a place
        try:
            return cls(table.times(at), {name: table.numbers(name) for name in names if name != at})
        except TimeOrderError as problem:
            raise TimeOrderError(f"{path}: {problem}") from None

    @checked
    def write(self, path: str | Path, overwrite: bool = False, private: bool = False) -> None:
        """Write the table, whole or not at all; see `dphmm.tables.new_file`.

        Parameters
        ----------
        path
            ``.csv`` or ``.parquet``.
        overwrite
            True to replace a file that exists.
        private
            True to let only the owner read it.

        Raises
        ------
        OutputError
            When the file exists and may not be overwritten, or cannot be written.
        ConfigurationError, MissingDependencyError
            As `check_table_name`.
        """
        suffix = check_table_name(path).suffix.lower()
        with new_file(path, overwrite, private) as part:
            if suffix == ".parquet":
                write_parquet(part, {"time": self.times, **self.columns})
            else:
                texts = [[str(value).lower() for value in values.tolist()] for values in self.columns.values()]
                rows = zip(map(time_text, self.times), *texts, strict=True)
                write_csv(part, ["time", *self.columns], rows)

    @checked
    def matrix(self, names: list[str]) -> FloatArray:
        """Return some columns side by side.

        Parameters
        ----------
        names
            The columns, at least one.

        Returns
        -------
        array ``(T, k)`` of float64
            A column for each name, in their order.

        Raises
        ------
        ConfigurationError
            When a column is not there.
        """
        missing = [name for name in names if name not in self.columns]
        if missing or not names:
            raise ConfigurationError(f"columns {missing} are not there; name some of {', '.join(self.columns)}")
        return np.column_stack([as_floats(self.columns[name], f"column {name}") for name in names])


@checked
def check_table_name(path: str | Path) -> Path:
    """Refuse the path of a table to write unless it ends in one of `TIMED_SUFFIXES` and its library is there.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    Path
        The same path.

    Raises
    ------
    ConfigurationError
        For another ending.
    MissingDependencyError
        For Parquet without pyarrow.
    """
    path = Path(path)
    if path.suffix.lower() not in TIMED_SUFFIXES:
        raise ConfigurationError(f"{path}: a table is a {' or '.join(TIMED_SUFFIXES)} file; name it so")
    if path.suffix.lower() == ".parquet":
        need("pyarrow", "files")
    return path
