"""Whole tables in memory, out of CSV or Parquet, each flaw named with its line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, as_instants
from dphmm.errors import DataFileError
from dphmm.tables.columns import ALIASES, find_column, listed
from dphmm.tables.delimited import csv_rows
from dphmm.tables.parquet import read_parquet
from dphmm.tables.source import Document, read_document, suffix_of
from dphmm.tables.values import Times, parse_number, parse_time, parse_times, plain_text

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
        """A table from a Parquet file, or from a CSV file with a header line (UTF-8; comma, semicolon or tab).

        Rows of a CSV with nothing in any cell are passed over.

        Parameters
        ----------
        path
            The file, which may be gzipped; its extension says which of the two it is.
        empty
            True to take a header without rows as a table too.

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
        """The column that goes by an alias of ``what``; see `ALIASES`.

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
        """The cells of a column as they are.

        Raises
        ------
        DataFileError
            When there is no such column.
        """
        if name not in self.columns:
            raise self.refusal(None, f"has no column {name!r}; its columns are {listed(list(self.columns))}")
        return self.columns[name]

    def texts(self, name: str) -> list[str]:
        """A column as texts without the space around them."""
        return [text.strip() for text in self._plain(name)]

    def _plain(self, name: str) -> Iterable[str]:
        cells = self.cells(name)
        return map(plain_text, cells.tolist()) if isinstance(cells, np.ndarray) else cells

    def values(self, name: str, parse: Callable[[str], T]) -> list[T]:
        """A column with each text parsed.

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
        """A column as numbers ``(n,)``; ``true`` and ``false`` count as 1 and 0."""
        cells = self.cells(name)
        if isinstance(cells, np.ndarray) and cells.dtype.kind in "fiub":
            return cells.astype(np.float64)
        return np.array(self.values(name, lambda text: _number(text, name)), dtype=np.float64)

    def times(self, name: str) -> Times:
        """A column as times ``(n,)``; see `parse_times`."""
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
        """The error for a problem in a row, counted from zero, or in the header where no row is named."""
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
