"""Tables with one row per time: count streams, series of values, and what is released of them, as CSV and Parquet."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray
from dphmm.errors import ConfigurationError, DataFileError, MissingDependencyError, TimeOrderError
from dphmm.readers.fixes import parse_number, parse_time
from dphmm.readers.source import documents
from dphmm.writers.output import new_file
from dphmm.writers.table import iso_time

Times = npt.NDArray[Any]
"""``(T,)``: whole numbers, decimal numbers or ``datetime64[us]`` in UTC."""

SUFFIXES = (".csv", ".parquet")
_TRUTH = {"true": 1.0, "false": 0.0}


@dataclass(frozen=True)
class TimedTable:
    """Columns of numbers over strictly increasing times.

    Attributes
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

    def matrix(self, names: list[str]) -> FloatArray:
        """The columns of these names side by side, ``(T, k)``."""
        return np.column_stack([np.asarray(self.columns[name], dtype=np.float64) for name in names])


def time_text(moment: Any) -> str:
    """A time as the tables write it: ISO 8601 in UTC, or a number.

    Examples
    --------
    >>> time_text(np.datetime64("2024-03-07T09:00")), time_text(np.int64(3))
    ('2024-03-07T09:00:00Z', '3')
    """
    return iso_time(moment) if isinstance(moment, np.datetime64) else str(moment)


def parse_times(texts: list[str]) -> Times:
    """Times out of texts: all whole numbers, or all numbers, or all ISO 8601, where no zone means UTC.

    Raises
    ------
    ValueError
        Naming the first that is none.

    Examples
    --------
    >>> parse_times(["1", "2"]).dtype.kind, parse_times(["2024-03-07T11:00+02:00"]).tolist()
    ('i', [datetime.datetime(2024, 3, 7, 9, 0)])
    """
    for kind in (np.int64, np.float64):
        try:
            return np.array([kind(text.strip()) for text in texts])
        except ValueError:
            continue
    return np.array([parse_time(text) for text in texts], dtype=np.int64).astype("datetime64[us]")


def check_table_name(path: str | Path) -> Path:
    """The path of a table to write, refused unless it ends in one of `SUFFIXES` and its library is there.

    Raises
    ------
    ConfigurationError
        For another ending.
    MissingDependencyError
        For Parquet without pyarrow.
    """
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigurationError(f"{path}: a table is a {' or '.join(SUFFIXES)} file; name it so")
    if path.suffix.lower() == ".parquet":
        _pyarrow()
    return path


def read_table(path: str | Path) -> TimedTable:
    """Read a table whose first column, or the one called ``time``, holds the times and all others numbers.

    Parameters
    ----------
    path
        ``.csv`` (UTF-8, a header line) or ``.parquet``.

    Raises
    ------
    DataFileError
        For a file that is missing, damaged, or holds something else; with the line for CSV.
    ConfigurationError, MissingDependencyError
        As `check_table_name`.
    """
    path = check_table_name(path)
    table = _read_parquet(path) if path.suffix.lower() == ".parquet" else _read_csv(path)
    try:
        return TimedTable(*table)
    except TimeOrderError as problem:
        raise TimeOrderError(f"{path}: {problem}") from None


def write_table(path: str | Path, table: TimedTable, overwrite: bool = False, private: bool = False) -> None:
    """Write a table, whole or not at all; see `dphmm.writers.output.new_file`.

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
            arrow, parquet = _pyarrow()
            parquet.write_table(arrow.table({"time": table.times, **table.columns}), part)
        else:
            _write_csv(part, table)


def _write_csv(path: Path, table: TimedTable) -> None:
    columns = [[time_text(moment) for moment in table.times]]
    columns += [[str(value).lower() for value in values.tolist()] for values in table.columns.values()]
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["time", *table.columns])
        writer.writerows(zip(*columns, strict=True))


def _read_csv(path: Path) -> tuple[Times, dict[str, FloatArray]]:
    (document,) = documents(path, {".csv"})
    try:
        lines = [line for line in csv.reader(document.data.decode("utf-8-sig").splitlines(), strict=True) if line]
    except (UnicodeDecodeError, csv.Error) as problem:
        raise DataFileError(path, f"is no CSV in UTF-8 ({problem}); convert it") from None
    names = [name.strip() for name in lines[0]] if lines else []
    at = _time_column(path, names)
    if len(lines) < 2:
        raise DataFileError(path, "holds a header and no rows; give one row per time")
    for number, line in enumerate(lines[1:], start=2):
        if len(line) != len(names):
            raise DataFileError(path, f"has {len(line)} fields; the header has {len(names)}", number)
    try:
        times = parse_times([line[at] for line in lines[1:]])
    except ValueError as problem:
        raise DataFileError(path, str(problem)) from None
    values = {name: _numbers(path, name, column, lines) for column, name in enumerate(names) if column != at}
    return times, values


def _time_column(path: Path, names: list[str]) -> int:
    lowered = [name.lower() for name in names]
    if len(names) < 2:
        raise DataFileError(path, f"has the columns {names}; give one of times and at least one of numbers")
    if len(set(names)) < len(names):
        raise DataFileError(path, f"names a column twice ({', '.join(names[:8])}); give each its own name")
    return lowered.index("time") if "time" in lowered else 0


def _numbers(path: Path, name: str, column: int, lines: list[list[str]]) -> FloatArray:
    found = np.empty(len(lines) - 1)
    for number, line in enumerate(lines[1:], start=2):
        text = line[column].strip()
        try:
            found[number - 2] = _TRUTH[text] if text in _TRUTH else parse_number(text, name)
        except ValueError as problem:
            raise DataFileError(path, str(problem), number) from None
    return found


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingDependencyError("pyarrow", "files") from None
    return pyarrow, pyarrow.parquet


def _read_parquet(path: Path) -> tuple[Times, dict[str, FloatArray]]:
    arrow, parquet = _pyarrow()
    (document,) = documents(path, {".parquet"})
    try:
        table = parquet.read_table(arrow.BufferReader(document.data))
    except (arrow.ArrowException, OSError) as problem:
        raise DataFileError(path, f"is no whole Parquet file ({' '.join(str(problem).split())}); copy it") from None
    names = list(table.column_names)
    at = _time_column(path, names)
    times = table.column(at).to_numpy()
    if times.dtype.kind == "M":
        times = times.astype("datetime64[us]")
    elif times.dtype.kind not in "if":
        try:
            times = parse_times([str(value) for value in times])
        except ValueError as problem:
            raise DataFileError(path, str(problem)) from None
    try:
        return times, {
            name: np.asarray(table.column(column).to_numpy(), dtype=np.float64)
            for column, name in enumerate(names)
            if column != at
        }
    except (ValueError, TypeError) as problem:
        raise DataFileError(path, f"holds something else than numbers ({problem}); give numbers") from None
