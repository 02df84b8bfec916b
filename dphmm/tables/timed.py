"""Tables with one row per time: count streams, series of values, and what is released of them, as CSV and Parquet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, as_floats
from dphmm.errors import ConfigurationError, DataFileError, TimeOrderError, need
from dphmm.tables.columns import find_column
from dphmm.tables.delimited import write_csv
from dphmm.tables.output import new_file
from dphmm.tables.table import Table
from dphmm.tables.values import Times, time_text

SUFFIXES = (".csv", ".parquet")


@checked
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
        """A table whose first column, or the one that goes by a name for times, holds the times and all others numbers.

        Parameters
        ----------
        path
            ``.csv`` (UTF-8, a header line) or ``.parquet``.

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
                table = need("pyarrow", "files").table({"time": self.times, **self.columns})
                with part.open("wb") as stream:  # of a path Arrow might think that it is a URI
                    need("pyarrow.parquet", "files").write_table(table, stream)
            else:
                texts = [[str(value).lower() for value in values.tolist()] for values in self.columns.values()]
                rows = zip(map(time_text, self.times), *texts, strict=True)
                write_csv(part, ["time", *self.columns], rows)

    @checked
    def matrix(self, names: list[str]) -> FloatArray:
        """The columns of these names side by side, ``(T, k)``."""
        missing = [name for name in names if name not in self.columns]
        if missing or not names:
            raise ConfigurationError(f"columns {missing} are not there; name some of {', '.join(self.columns)}")
        return np.column_stack([as_floats(self.columns[name], f"column {name}") for name in names])


@checked
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
        need("pyarrow", "files")
    return path
