"""Tables in CSV and Parquet files: columns, rows and cells, with lines in error messages."""

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

from dphmm.arrays import FloatArray, as_floats, as_instants
from dphmm.errors import (
    ConfigurationError,
    DataFileError,
    InvalidInputError,
    OutputError,
    TimeOrderError,
    import_library,
)
from dphmm.tables.output import create_file
from dphmm.tables.parquet_files import PARQUET_SUFFIXES, read_parquet, write_parquet
from dphmm.tables.source import Document, get_suffix, read_document
from dphmm.tables.values import Times, format_cell, format_time, parse_number, parse_time, parse_times, shorten_message
from dphmm.validation import check_arguments

# Quantity → normalized names of its column, see `normalize_column`; the first that occurs is used.
#
# Those with ``local_identifier``, ``location_lat``, ``location_long`` and ``visible`` are Movebank's.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "user": ("user_id", "uid", "user", "userid", "individual_local_identifier", "tag_local_identifier", "traj_id"),
    "time": ("tracked_at", "datetime", "timestamp", "time", "utctimestamp", "isotst", "t"),
    "latitude": ("latitude", "lat", "location_lat"),
    "longitude": ("longitude", "lon", "lng", "long", "location_long"),
    "geometry": ("geometry", "geom", "the_geom", "wkt", "wkb_geometry"),
    "accuracy": ("accuracy", "accuracy_m", "horizontal_accuracy", "horizontalaccuracy", "acc", "hacc", "gps_accuracy"),
    "valid": ("valid", "is_valid", "visible"),
    "name": ("name", "place", "label"),
    "elevation": ("elevation", "ele", "altitude", "alt", "elevation_m", "altitude_m"),
    "segment": ("segment", "segment_id"),
    "cad": ("cad", "cadence"),
    "power": ("power", "watts"),
    "speed": ("speed", "speed_mps"),
    "course": ("course", "heading", "bearing"),
    "hr": ("hr", "heart_rate", "heartrate"),
    "atemp": ("atemp", "temperature"),
}

# The name of a column of trajectories in movingpandas. It identifies users only if each has a single trajectory.
TRIPS = ALIASES["user"][-1]


def normalize_column(name: str) -> str:
    """Return a column's name in lower case, with underscores for spaces, hyphens and points.

    Examples
    --------
    >>> normalize_column("location-long ")
    'location_long'
    """
    return _SEPARATORS.sub("_", name.strip().lower())


_SEPARATORS = re.compile(r"[ .-]")


def find_column(names: Iterable[str], what: str) -> str | None:
    """Return the first name that is an alias of ``what``, see `ALIASES`. None if none is.

    Examples
    --------
    >>> find_column(["Lat", "LNG "], "longitude")
    'LNG '
    """
    lower = {normalize_column(name): name for name in reversed(list(names))}
    return next((lower[name] for name in ALIASES[what] if name in lower), None)


def join_names(names: Sequence[str]) -> str:
    """Join up to twelve names for a message, with long ones shortened."""
    short = [name if len(name) <= 40 else f"{name[:37]}..." for name in names[:12]]
    return ", ".join(short) + (", ..." if len(names) > 12 else "") if names else "no columns"


def iterate_csv_rows(document: Document, encoding: str = "utf-8-sig") -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV file with the numbers of their last lines, the header first.

    The separator is a comma, semicolon or tab: the one that a first line ``sep=;`` names, as spreadsheets write, or see
    `find_delimiter`. Blank lines are skipped.

    Parameters
    ----------
    document
        The file.
    encoding
        The encoding of its text.

    Yields
    ------
    line, fields
        The line, from 1, and its cells.

    Raises
    ------
    DataFileError
        If the file is not UTF-8 text, a quoted field is broken, or a field exceeds `csv.field_size_limit`; with the
        line.
    """
    lines = io.TextIOWrapper(io.BytesIO(document.data), encoding=encoding, newline="")  # a line at a time
    named = _NAMED_SEPARATOR.match(document.data)
    if named is not None:
        lines.readline()
    first = document.data[: max(document.data.find(b"\n"), 0) or None].decode("utf-8", errors="replace")
    delimiter = find_delimiter(first) if named is None else named[1].decode("ascii")
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    skipped = 0 if named is None else 1
    guarded = _GUARD in document.data
    try:
        for fields in reader:
            if fields:
                yield reader.line_num + skipped, [unguard_cell(field) for field in fields] if guarded else fields
    except csv.Error as problem:
        line = reader.line_num + skipped
        # The limit belongs to all of the process, so it is not raised here. A quote that is not closed exceeds it too.
        if "field limit" in str(problem):
            reason = f"a field must have at most {csv.field_size_limit():,} characters, got more"
            remedy = "check the quotes, or raise csv.field_size_limit in Python"
            raise DataFileError(document.source, f"{reason}; {remedy}", line) from None
        raise DataFileError(document.source, f"is not CSV ({problem}); check the quotes", line) from None
    except UnicodeDecodeError:
        document.text()  # raises with the line number
        raise


_NAMED_SEPARATOR = re.compile(rb"""(?:\xef\xbb\xbf)?"?sep=([,;\t])"?\r?\n""")
_DECIMAL_COMMA = re.compile(r"(?<=\d),(?=\d)", re.ASCII)


def find_delimiter(first: str) -> str:
    """Return the separator of a table: comma, semicolon or tab.

    It is the most frequent one of the first line. In a line with semicolons or tabs, commas between digits are taken
    for decimal commas.

    Examples
    --------
    >>> find_delimiter("1;45,5;7,25;8,0"), find_delimiter("user,time,lat,lon")
    (';', ',')
    """
    plain = _DECIMAL_COMMA.sub("", first) if ";" in first or "\t" in first else first
    return max(",;\t", key=plain.count)


@check_arguments
def write_csv(path: str | Path, header: Sequence[str], rows: Iterable[Iterable[object]]) -> None:
    """Write a CSV file in UTF-8 with a header line.

    Cells that a spreadsheet would evaluate as a formula are changed by `guard_cell`.

    Parameters
    ----------
    path
        The file.
    header
        The names of the columns.
    rows
        The cells of each row, strings and numbers.

    Raises
    ------
    InvalidInputError
        If a row is not a sequence of cells.
    OutputError
        If the path is a folder.
    """
    try:
        with Path(path).open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(_Lines(stream), lineterminator="\r\n")
            writer.writerow(map(guard_cell, header))
            writer.writerows(map(guard_cell, row) for row in rows)
    except (TypeError, ValueError) as problem:
        raise InvalidInputError(f"rows must be sequences of strings and numbers ({shorten_message(problem)})") from None
    except IsADirectoryError:
        raise OutputError(f"{path} is a folder; name a file") from None


class _Lines(NamedTuple):
    """A stream of rows that end in a newline, written by a CSV writer with CR LF."""

    # A writer with a newline as terminator would leave a carriage return in a cell unquoted.

    stream: TextIO

    def write(self, row: str) -> int:
        return self.stream.write(row.removesuffix("\r\n") + "\n")


_GUARD = b"'"
_FORMULA = re.compile("'*[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
# First characters of formulas, also in full width, and of guarded cells.
_FORMULA_STARTS = "'=+-@\t\r\n\uff1d\uff0b\uff0d\uff20"
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-]inf", re.ASCII)


def guard_cell(cell: object) -> object:
    """Prefix a string with an apostrophe if a spreadsheet would run it as a formula.

    Numbers are unchanged. `unguard_cell` removes the apostrophe.

    Examples
    --------
    >>> [guard_cell(cell) for cell in ("=1+1", "-1.5", "'=x", "O'Hara", 7)]
    ["'=1+1", '-1.5', "''=x", "O'Hara", 7]
    """
    if isinstance(cell, str) and cell[:1] in _FORMULA_STARTS and _FORMULA.match(cell) and not _NUMBER.fullmatch(cell):
        return f"'{cell}"
    return cell


def unguard_cell(cell: str) -> str:
    """Remove the apostrophe that `guard_cell` added to a string."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


# Memory of a short line, in bytes, with its number and the text that is read with it.
_LINE_BYTES = 270


@check_arguments
def content_lines(path: str | Path) -> list[tuple[int, str]]:
    """Return the non-empty lines of a text file without comments, which start with ``#``.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    list of (int, str)
        The number of each line, from 1, and its text without comments and surrounding space.

    Raises
    ------
    DataFileError
        If the file cannot be read or is not UTF-8 text.
    """
    document = read_document(path)
    document.check_objects((b"\n", b"\r"), _LINE_BYTES)
    lines = enumerate(document.text().splitlines(), start=1)
    stripped = ((number, line.split("#")[0].strip()) for number, line in lines)
    return [(number, line) for number, line in stripped if line]


# Memory of a cell, in bytes, with its share of a row.
_CELL_BYTES = 110

_BOOLEAN_NUMBERS = {"true": 1.0, "false": 0.0}

T = TypeVar("T")


@dataclass(frozen=True)
class Table:
    """A table with named columns.

    Parameters
    ----------
    source
        The file, for messages.
    columns
        Name → the cells ``(n,)``: strings of a CSV, or an array of a Parquet file's own type.
    lines
        ``(n + 1,)``: the last lines of the header and the rows of a CSV; empty for Parquet.
    """

    source: str
    columns: Mapping[str, Any] = field(repr=False)
    lines: Sequence[int] = field(repr=False)

    @classmethod
    @check_arguments
    def read(cls, path: str | Path, empty: bool = False) -> Table:
        """Read a Parquet file, or a CSV file with a header line (UTF-8. Comma, semicolon or tab).

        Empty rows of a CSV are skipped.

        Parameters
        ----------
        path
            The file, which may be gzipped. Its extension determines the format.
        empty
            True to accept a header without rows.

        Returns
        -------
        Table
            All of its columns.

        Raises
        ------
        DataFileError
            If the file cannot be read or is damaged, has a column name twice, has a row of another length than its
            header, or no rows; with the line for CSV.
        MissingDependencyError
            For Parquet without pyarrow.
        """
        document = read_document(path)
        if get_suffix(document.name) in PARQUET_SUFFIXES:
            rows = read_parquet(document)
            header = list(rows.column_names)
            cells = [column.to_numpy() for column in rows.columns]
            lines: list[int] = []
        else:
            header, cells, lines = _read_csv(document)
        table = cls(document.source, dict(zip(header, cells, strict=True)), lines)
        if len(table.columns) != len(header):
            raise table.refusal(None, f"must have unique column names, got {join_names(header)}")
        if not header or not (len(table) or empty):
            raise DataFileError(path, "contains no rows; it needs a header and at least one row")
        return table

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def find(self, what: str) -> str:
        """Return the name of the column of a quantity. See `ALIASES`.

        Parameters
        ----------
        what
            The quantity, a key of `ALIASES`.

        Returns
        -------
        str
            Its name in the file.

        Raises
        ------
        DataFileError
            If there is none.
        """
        name = find_column(self.columns, what)
        if name is None:
            columns = join_names(list(self.columns))
            aliases = " or ".join(ALIASES[what])
            raise self.refusal(None, f"has no column {what!r}; its columns are {columns}; rename one to {aliases}")
        return name

    def cells(self, name: str) -> Any:
        """Return the cells of a column unchanged.

        Parameters
        ----------
        name
            The column.

        Returns
        -------
        sequence of str, or array ``(n,)``
            Strings of a CSV; an array of a Parquet file's own type.

        Raises
        ------
        DataFileError
            If there is no such column.
        """
        if name not in self.columns:
            raise self.refusal(None, f"has no column {name!r}; its columns are {join_names(list(self.columns))}")
        return self.columns[name]

    def texts(self, name: str) -> list[str]:
        """Return a column as strings without surrounding space.

        Parameters
        ----------
        name
            The column.

        Returns
        -------
        list of str
            A string for each row, empty for missing values.
        """
        return [text.strip() for text in self._get_plain_texts(name)]

    def _get_plain_texts(self, name: str) -> Iterable[str]:
        cells = self.cells(name)
        return map(format_cell, cells.tolist()) if isinstance(cells, np.ndarray) else cells

    def values(self, name: str, parse: Callable[[str], T]) -> list[T]:
        """Return a column with each of its cells parsed.

        Parameters
        ----------
        name
            The column.
        parse
            Function of a string that returns a value, and raises `ValueError` for an invalid string.

        Returns
        -------
        list
            A value for each row.

        Raises
        ------
        DataFileError
            If ``parse`` raises `ValueError`; with its line.
        """
        values = []
        for row, cell in enumerate(self._get_plain_texts(name)):
            try:
                values.append(parse(cell))
            except ValueError as problem:
                raise self.refusal(row, str(problem)) from None
        return values

    def numbers(self, name: str) -> FloatArray:
        """Return a column as numbers. ``true`` and ``false`` count as 1 and 0.

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
            If a cell is not a number; with its line.
        """
        cells = self.cells(name)
        if isinstance(cells, np.ndarray) and cells.dtype.kind in "fiub":
            return cells.astype(np.float64)
        return np.array(self.values(name, lambda text: _parse_number(text, name)), dtype=np.float64)

    def times(self, name: str) -> Times:
        """Return a column as times. See `parse_times`.

        Parameters
        ----------
        name
            The column.

        Returns
        -------
        array ``(n,)``
            Integers, decimal numbers or ``datetime64[us]`` in UTC.

        Raises
        ------
        DataFileError
            If a cell is not a time; with its line.
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
            self.values(name, parse_time)  # raises with the line
            raise

    def refusal(self, row: int | None, problem: str) -> DataFileError:
        """Build the error for a problem in a row or in the header.

        Parameters
        ----------
        row
            The row, from 0; None for the header.
        problem
            The problem and its fix.

        Returns
        -------
        DataFileError
            With the line for CSV and the number of the row for Parquet.
        """
        if self.lines:
            return DataFileError(self.source, problem, self.lines[0 if row is None else row + 1])
        return DataFileError(self.source, problem if row is None else f"row {row + 1}: {problem}")


def _read_csv(document: Document) -> tuple[list[str], list[Any], list[int]]:
    document.check_objects((b",", b";", b"\t", b"\n"), _CELL_BYTES)
    rows = iterate_csv_rows(document)
    first, names = next(rows, (1, []))
    header = [name.strip() for name in names]
    lines = [first]
    kept = []
    for line, fields in rows:
        if any(map(str.strip, fields)):
            if len(fields) != len(header):
                raise DataFileError(
                    document.source, f"has {len(fields)} fields, but the header has {len(header)}", line
                )
            lines.append(line)
            kept.append(fields)
    return header, list(zip(*kept, strict=True)) if kept else [()] * len(header), lines


def _parse_number(text: str, name: str) -> float:
    truth = _BOOLEAN_NUMBERS.get(text.strip())
    return parse_number(text, name) if truth is None else truth


TIMED_SUFFIXES = (".csv", ".parquet")


@check_arguments
@dataclass(frozen=True)
class TimedTable:
    """Columns of numbers over strictly increasing times.

    Parameters
    ----------
    times
        ``(T,)``, at least one: integers, decimal numbers or ``datetime64``.
    columns
        Name → ``(T,)`` numbers or booleans, in the order in which they are written.

    Raises
    ------
    TimeOrderError
        If there is no time, or the times are not strictly increasing.
    ConfigurationError
        If a column has another length.
    """

    times: Times
    columns: Mapping[str, npt.NDArray[Any]]

    def __post_init__(self) -> None:
        if not all(isinstance(values, np.ndarray) for values in (self.times, *self.columns.values())):
            raise ConfigurationError("times and columns must be arrays; convert them with numpy.asarray")
        if self.times.ndim != 1 or self.times.size == 0:
            raise TimeOrderError(f"times must be a non-empty one-dimensional array, got shape {self.times.shape}")
        back = np.flatnonzero(self.times[1:] <= self.times[:-1])
        if back.size:
            row = int(back[0]) + 1
            after, before = (format_time(self.times[at]) for at in (row, row - 1))
            raise TimeOrderError(
                f"times must be strictly increasing, got time {row} = {after} after {before}; sort them"
            )
        for name, values in self.columns.items():
            if values.shape != self.times.shape:
                raise ConfigurationError(
                    f"column {name} must have shape {self.times.shape} like times, got {values.shape}"
                )

    def __len__(self) -> int:
        return len(self.times)

    @classmethod
    @check_arguments
    def read(cls, path: str | Path) -> TimedTable:
        """Read a table with a column of times and other columns of numbers.

        The column of times is recognised by its name (see `ALIASES`). Otherwise it is the first column if that has the
        name of a unit of time, such as ``hour``, or is ``t``.

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
            If the file is missing, damaged, or contains anything else; with the line for CSV.
        TimeOrderError
            If the times are not strictly increasing.
        ConfigurationError, MissingDependencyError
            As for `check_table_name`.
        """
        table = Table.read(check_table_name(path))
        names = list(table.columns)
        if len(names) < 2:
            raise DataFileError(path, f"must have a column of times and at least one of numbers, got {names}")
        at = _find_time(path, names)
        users = find_column(names, "user")
        if users is not None:
            raise DataFileError(path, f"must have one row per time and no column of users, got {users}: remove it")
        try:
            return cls(table.times(at), {name: table.numbers(name) for name in names if name != at})
        except TimeOrderError as problem:
            raise TimeOrderError(f"{path}: {problem}") from None

    @check_arguments
    def write(self, path: str | Path, overwrite: bool = False, private: bool = False) -> None:
        """Write the table atomically. See `dphmm.tables.create_file`.

        Parameters
        ----------
        path
            ``.csv`` or ``.parquet``.
        overwrite
            True to replace an existing file.
        private
            True to let only the owner read it.

        Raises
        ------
        OutputError
            If the file exists and may not be overwritten, or cannot be written.
        ConfigurationError, MissingDependencyError
            As for `check_table_name`.
        """
        suffix = check_table_name(path).suffix.lower()
        with create_file(path, overwrite, private) as part:
            if suffix == ".parquet":
                write_parquet(part, {"time": self.times, **self.columns})
            else:
                texts = [[str(value).lower() for value in values.tolist()] for values in self.columns.values()]
                rows = zip(map(format_time, self.times), *texts, strict=True)
                write_csv(part, ["time", *self.columns], rows)

    @check_arguments
    def matrix(self, names: list[str]) -> FloatArray:
        """Return selected columns as a matrix.

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
            If a column does not exist.
        """
        missing = [name for name in names if name not in self.columns]
        if missing or not names:
            raise ConfigurationError(f"columns must be out of {', '.join(self.columns)}, got {missing or names}")
        return np.column_stack([as_floats(self.columns[name], f"column {name}") for name in names])


# Names, normalized, of a first column that contains times.
_UNITS_OF_TIME = ("t", "second", "minute", "hour", "day", "date", "week", "month", "year", "step", "timestep")


def _find_time(path: str | Path, names: list[str]) -> str:
    """Return the column of times.

    A column of values in its place would be published without noise.

    Raises
    ------
    DataFileError
        If there is none, or more than one.
    """
    times = [name for name in names if name.strip() != "t" and normalize_column(name) in ALIASES["time"]]  # t: a state
    if len(times) > 1:
        raise DataFileError(
            path, f"must have one column of times, got {join_names(times)}: rename or remove the others"
        )
    if not times and normalize_column(names[0]) in _UNITS_OF_TIME:
        times = names[:1]
    if not times:
        raise DataFileError(path, f"has no column of times, got {join_names(names)}: name it time")
    return times[0]


@check_arguments
def check_table_name(path: str | Path) -> Path:
    """Check that a table to write has one of `TIMED_SUFFIXES` and that its library exists.

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
        For another extension.
    MissingDependencyError
        For Parquet without pyarrow.
    """
    path = Path(path)
    if path.suffix.lower() not in TIMED_SUFFIXES:
        raise ConfigurationError(f"{path}: the extension of a table must be {' or '.join(TIMED_SUFFIXES)}")
    if path.suffix.lower() == ".parquet":
        import_library("pyarrow", "files")
    return path
