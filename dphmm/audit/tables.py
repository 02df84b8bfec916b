"""Small tables that an audit reads: states, secrets, edges, and priors, in CSV files with a header."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray
from dphmm.errors import DataFileError, PolicyError, StateError
from dphmm.policy.graph import PolicyGraph


@dataclass(frozen=True, eq=False)
class NamedStates:
    """States by name, with what is measured in each.

    Parameters
    ----------
    names
        ``N`` names, each once.
    measurements
        ``(N, d)``: `fractions.Fraction` objects, as exact as the decimals they were written in.
    labels
        The categories ``(N,)`` where a column of them was asked for; empty texts mean 'in none'.
    """

    names: tuple[str, ...]
    measurements: npt.NDArray[Any] = field(repr=False)
    labels: tuple[str | None, ...] | None = field(default=None, repr=False)

    @property
    def index(self) -> dict[str, int]:
        """Name → number."""
        return {name: i for i, name in enumerate(self.names)}


def read_states(path: str | Path, category: str | None = None) -> NamedStates:
    """States from a table with a column ``state``; the columns of numbers among the others are measurements.

    Raises
    ------
    DataFileError
        When the file cannot be read, a column is missing, a state is named twice, or a column holds both numbers
        and other texts, or there is no column of numbers.
    """
    rows = _read(path)
    names = _names(path, rows, "state")
    if category is not None and category not in rows[0]:
        raise DataFileError(path, f"has no column {category!r}; its columns are {', '.join(rows[0])}")
    labels = None if category is None else tuple(row[category] or None for row in rows)
    return NamedStates(names, _numbers(path, rows, {"state", category}), labels)


def read_secrets(path: str | Path, counts: Sequence[str] = ()) -> tuple[tuple[str, ...], npt.NDArray[Any]]:
    """Secrets and what each contributes to the answers, from a table with a column ``secret``.

    Parameters
    ----------
    path
        The table.
    counts
        Count queries ``COLUMN=VALUE``, several conditions joined by commas; a secret contributes 1 where its row meets
        them all, and 0 elsewhere. Left out, the columns of numbers are contributions.

    Returns
    -------
    names, contributions
        The names, and ``(n, d)`` numbers, exact.

    Raises
    ------
    DataFileError
        When the file cannot be read, a column is missing, a secret is named twice, or a column holds both
        numbers and other texts, or there is no column of numbers.
    """
    rows = _read(path)
    names = _names(path, rows, "secret")
    if not counts:
        return names, _numbers(path, rows, {"secret"})
    columns = [[int(_meets(path, row, query)) for row in rows] for query in counts]
    return names, np.array(columns, dtype=np.int64).T


def read_edges(path: str | Path) -> tuple[tuple[str, str], ...]:
    """Pairs of names from a table of two columns, under any header.

    Raises
    ------
    DataFileError
        When the file cannot be read, or does not have two columns.
    """
    rows = _read(path, may_be_empty=True)
    pairs = []
    for line, row in enumerate(rows, start=2):
        values = tuple(row.values())
        if len(values) != 2 or not all(values):
            raise DataFileError(path, f"holds {len([v for v in values if v])} names; an edge joins two", line)
        pairs.append((values[0], values[1]))
    return tuple(pairs)


def edges_graph(states: NamedStates, edges: Sequence[tuple[str, str]]) -> PolicyGraph:
    """The policy graph of edges between named states.

    Raises
    ------
    PolicyError
        When an edge names a state that is not there, or joins one to itself.
    """
    index = states.index
    for name in (name for edge in edges for name in edge):
        if name not in index:
            raise PolicyError(f"an edge names state {name!r}, which is not in the table; correct the name")
    return PolicyGraph.from_edges(len(states.names), [(index[a], index[b]) for a, b in edges])


def possible_states(possible: Iterable[str], names: Sequence[str]) -> BoolArray:
    """The constraint set ``(N,)`` of those possible among all names.

    Raises
    ------
    StateError
        When none is named, or one that does not exist, or one twice.
    """
    index = {name: i for i, name in enumerate(names)}
    found = np.zeros(len(index), dtype=np.bool_)
    for name in possible:
        if name not in index:
            raise StateError(f"state {name!r} does not exist; there are {len(index)}: {_some(index)}")
        if found[index[name]]:
            raise StateError(f"state {name!r} is named twice; name every possible state once")
        found[index[name]] = True
    if not found.any():
        raise StateError("no possible state is named; name one or more")
    return found


def read_prior(path: str | Path, index: Mapping[str, int]) -> FloatArray:
    """A distribution over states, ``(N,)``, from a table with columns ``state`` and ``probability``.

    States that it does not name have probability zero. Whether it sums to one is left to who uses it.

    Raises
    ------
    DataFileError
        When the file cannot be read, a state is named twice or does not exist, or a probability is no number.
    """
    rows = _read(path)
    names = _names(path, rows, "state")
    if "probability" not in rows[0]:
        raise DataFileError(path, f"has no column 'probability'; its columns are {', '.join(rows[0])}")
    prior = np.zeros(len(index))
    for line, (name, row) in enumerate(zip(names, rows, strict=True), start=2):
        if name not in index:
            raise DataFileError(path, f"state {name!r} does not exist; there are {len(index)}: {_some(index)}", line)
        prior[index[name]] = float(_fraction(path, row["probability"], line))
    return prior


def _read(path: str | Path, may_be_empty: bool = False) -> list[dict[str, str]]:
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            table = list(csv.reader(file))
    except OSError as problem:
        raise DataFileError(path, f"cannot be read ({problem.strerror}); check the path") from None
    except (UnicodeDecodeError, csv.Error) as problem:
        raise DataFileError(path, f"is no CSV in UTF-8 ({problem}); export it as one") from None
    rows = [
        (line, [cell.strip() for cell in row]) for line, row in enumerate(table, start=1) if any(map(str.strip, row))
    ]
    if not rows or (len(rows) < 2 and not may_be_empty):
        raise DataFileError(path, "holds no rows; give a header and a row for each entry")
    header = rows[0][1]
    if len(set(header)) != len(header):
        raise DataFileError(path, f"names a column twice: {', '.join(header)}", 1)
    for line, row in rows[1:]:
        if len(row) != len(header):
            raise DataFileError(path, f"has {len(row)} values for {len(header)} columns", line)
    return [dict(zip(header, row, strict=True)) for _, row in rows[1:]]


def _names(path: str | Path, rows: Sequence[Mapping[str, str]], column: str) -> tuple[str, ...]:
    if column not in rows[0]:
        raise DataFileError(path, f"has no column {column!r}; its columns are {', '.join(rows[0])}")
    seen: set[str] = set()
    for line, row in enumerate(rows, start=2):
        name = row[column]
        if not name:
            raise DataFileError(path, f"a {column} has no name; give it one", line)
        if name in seen:
            raise DataFileError(path, f"{column} {name!r} is named twice; name each once", line)
        seen.add(name)
    return tuple(row[column] for row in rows)


def _numbers(path: str | Path, rows: Sequence[Mapping[str, str]], others: set[str | None]) -> npt.NDArray[Any]:
    columns = [c for c in rows[0] if c not in others and any(_is_number(row[c]) for row in rows)]
    if not columns:
        raise DataFileError(path, "has no column of numbers; add one per answer, or (for secrets) give count queries")
    table = np.empty((len(rows), len(columns)), dtype=object)
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            table[i, j] = _fraction(path, row[column], i + 2)
    return table


def _fraction(path: str | Path, text: str, line: int) -> Fraction:
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise DataFileError(path, f"{text!r} is no number; give a decimal or a fraction", line) from None


def _is_number(text: str) -> bool:
    try:
        Fraction(text)
    except (ValueError, ZeroDivisionError):
        return False
    return True


def _meets(path: str | Path, row: Mapping[str, str], query: str) -> bool:
    for condition in query.split(","):
        column, equals, value = (part.strip() for part in condition.partition("="))
        if not equals or column not in row:
            known = ", ".join(name for name in row if name != "secret")
            raise DataFileError(path, f"query {query!r} is none; give COLUMN=VALUE with a column among {known}")
        if row[column] != value:
            return False
    return True


def _some(index: Mapping[str, int]) -> str:
    names = list(index)
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
