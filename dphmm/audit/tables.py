"""Tables that an audit reads, in CSV or Parquet, and what it found as plain values for JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray
from dphmm.errors import DataFileError, PolicyError, StateError
from dphmm.facts import Facts
from dphmm.geometry.hull import SensitivityHull
from dphmm.policy.graph import PolicyGraph
from dphmm.tables import Table
from dphmm.tables.values import parse_fraction, shorten

LISTED = 1000
"""Per-state numbers are listed for at most this many states."""


def hull_facts(hull: SensitivityHull) -> Facts:
    """A sensitivity hull."""
    return {"area": hull.volume, "dimension": hull.dimension, "vertices": hull.vertices.tolist()}


def read_states(
    path: str | Path, category: str | None = None
) -> tuple[tuple[str, ...], npt.NDArray[Any], tuple[str | None, ...]]:
    """States from a table with a column ``state``; the columns of numbers among the others are measurements.

    Returns
    -------
    names, measurements, labels
        The names, each once; ``(N, d)`` fractions, as exact as the decimals they were written in; and the categories
        ``(N,)`` of the column that was asked for, None for a state in none.

    Raises
    ------
    DataFileError
        When the file cannot be read, a column is missing, a state is named twice, or a column holds both numbers
        and other texts, or there is no column of numbers.
    """
    table = Table.read(path)
    names = _names(table, "state")
    labels = () if category is None else tuple(text or None for text in table.texts(category))
    return names, _numbers(table, {"state", category}), labels


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
    table = Table.read(path)
    names = _names(table, "secret")
    if not counts:
        return names, _numbers(table, {"secret"})
    return names, np.array([_meets(table, query) for query in counts], dtype=np.int64).T


def read_edges(path: str | Path) -> tuple[tuple[str, str], ...]:
    """Pairs of names from a table of two columns, under any header.

    Raises
    ------
    DataFileError
        When the file cannot be read, or does not have two columns.
    """
    table = Table.read(path, empty=True)
    pairs = list(zip(*map(table.texts, table.columns), strict=True))
    for row, names in enumerate(pairs):
        if len(names) != 2 or not all(names):
            raise table.refusal(row, f"holds {sum(map(bool, names))} names; an edge joins two")
    return tuple(pairs)


def edges_graph(names: Sequence[str], edges: Sequence[tuple[str, str]]) -> PolicyGraph:
    """The policy graph of edges between named states.

    Raises
    ------
    PolicyError
        When an edge names a state that is not there, or joins one to itself.
    """
    index = {name: i for i, name in enumerate(names)}
    for name in chain.from_iterable(edges):
        if name not in index:
            raise PolicyError(f"an edge names state {name!r}, which is not in the table; correct the name")
    return PolicyGraph.from_edges(len(names), [(index[a], index[b]) for a, b in edges])


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
            raise StateError(_unknown(name, names))
        if found[index[name]]:
            raise StateError(f"state {name!r} is named twice; name every possible state once")
        found[index[name]] = True
    if not found.any():
        raise StateError("no possible state is named; name one or more")
    return found


def read_prior(path: str | Path, names: Sequence[str]) -> FloatArray:
    """A distribution over states, ``(N,)``, from a table with columns ``state`` and ``probability``.

    States that it does not name have probability zero. Whether it sums to one is left to the caller.

    Raises
    ------
    DataFileError
        When the file cannot be read, a state is named twice or does not exist, or a probability is no number.
    """
    table = Table.read(path)
    stated = dict(zip(_names(table, "state"), table.values("probability", _fraction), strict=True))
    known = set(names)
    for row, name in enumerate(stated):
        if name not in known:
            raise table.refusal(row, _unknown(name, names))
    return np.array([float(stated.get(name, 0)) for name in names])


def _names(table: Table, column: str) -> tuple[str, ...]:
    names = table.texts(column)
    seen: set[str] = set()
    for row, name in enumerate(names):
        if not name:
            raise table.refusal(row, f"a {column} has no name; give it one")
        if name in seen:
            raise table.refusal(row, f"{column} {name!r} is named twice; name each once")
        seen.add(name)
    return tuple(names)


def _numbers(table: Table, others: set[str | None]) -> npt.NDArray[Any]:
    columns = [name for name in table.columns if name not in others and any(map(_is_number, table.texts(name)))]
    if not columns:
        raise DataFileError(
            table.source, "has no column of numbers; add one per answer, or (for secrets) give count queries"
        )
    return np.array([table.values(name, _fraction) for name in columns], dtype=object).T


def _fraction(text: str) -> Fraction:
    try:
        return parse_fraction(text, "it")
    except ValueError:
        raise ValueError(f"{shorten(text.strip())} is no number; give a decimal or a fraction") from None


def _is_number(text: str) -> bool:
    try:
        _fraction(text)
    except ValueError:
        return False
    return True


def _meets(table: Table, query: str) -> BoolArray:
    """Which rows meet all conditions of a count query, ``(n,)``."""
    met = np.ones(len(table), dtype=np.bool_)
    for condition in query.split(","):
        column, equals, value = (part.strip() for part in condition.partition("="))
        if not equals or column not in table.columns:
            known = ", ".join(name for name in table.columns if name != "secret")
            raise DataFileError(table.source, f"query {query!r} is none; give COLUMN=VALUE with a column among {known}")
        met &= [text == value for text in table.texts(column)]
    return met


def _unknown(name: str, names: Sequence[str]) -> str:
    some = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
    return f"state {name!r} does not exist; there are {len(names)}: {some}"
