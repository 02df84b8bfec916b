"""Readers of the tables that an audit takes: states, secrets, edges, priors."""

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
from dphmm.geometry.sensitivity_hull import SensitivityHull
from dphmm.policy.graph import PolicyGraph
from dphmm.tables import Table
from dphmm.tables.values import parse_fraction, shorten

# Maximum number of states for which per-state values are listed.
MAX_LISTED_STATES = 1000


def describe_hull(hull: SensitivityHull) -> dict[str, Any]:
    """Return a sensitivity hull as plain values."""
    return {"volume": hull.volume, "dimension": hull.dimension, "vertices": hull.vertices.tolist()}


def read_states(
    path: str | Path, category: str | None = None
) -> tuple[tuple[str, ...], npt.NDArray[Any], tuple[str | None, ...]]:
    """Read states and measurements from a table with a column ``state``.

    The other numeric columns are the measurements.

        Returns
        -------
        names, measurements, labels
            The unique names, the measurements as ``(N, d)`` fractions that equal their decimals exactly, and the values
            ``(N,)`` of the category column, None for a state without a category.

        Raises
        ------
        DataFileError
            If the file cannot be read, a column is missing, a state is repeated, a column mixes numbers and other
            values, or there is no numeric column.
    """
    table = Table.read(path)
    names = _read_names(table, "state")
    labels = () if category is None else tuple(text or None for text in table.texts(category))
    return names, _read_numbers(table, {"state", category}), labels


def read_secrets(path: str | Path, counts: Sequence[str] = ()) -> tuple[tuple[str, ...], npt.NDArray[Any]]:
    """Read secrets and their contributions from a table with a column ``secret``.

    Parameters
    ----------
    path
        The table.
    counts
        Count queries ``COLUMN=VALUE``, with several conditions joined by commas. A secret contributes 1 if its row
        meets all conditions, otherwise 0. Without count queries, the numeric columns are the contributions.

    Returns
    -------
    names, contributions
        The names, and ``(n, d)`` exact numbers.

    Raises
    ------
    DataFileError
        If the file cannot be read, a column is missing, a secret is repeated, a column mixes numbers and other values,
        or there is no numeric column.
    """
    table = Table.read(path)
    names = _read_names(table, "secret")
    if not counts:
        return names, _read_numbers(table, {"secret"})
    return names, np.array([_match_query(table, query) for query in counts], dtype=np.int64).T


def read_edges(path: str | Path) -> tuple[tuple[str, str], ...]:
    """Read pairs of names from a table of two columns with any header.

    Raises
    ------
    DataFileError
        If the file cannot be read or does not have two columns.
    """
    table = Table.read(path, empty=True)
    pairs = list(zip(*map(table.texts, table.columns), strict=True))
    for row, names in enumerate(pairs):
        if len(names) != 2 or not all(names):
            raise table.refusal(row, f"must contain two names, the endpoints of an edge, got {sum(map(bool, names))}")
    return tuple(pairs)


def build_policy_graph(names: Sequence[str], edges: Sequence[tuple[str, str]]) -> PolicyGraph:
    """Build the policy graph of edges between named states.

    Raises
    ------
    PolicyError
        If an edge is a self-loop or contains an unknown state.
    """
    index = {name: i for i, name in enumerate(names)}
    for name in chain.from_iterable(edges):
        if name not in index:
            raise PolicyError(f"edges must connect states of the table, got the unknown state {name!r}")
    return PolicyGraph.from_edges(len(names), [(index[a], index[b]) for a, b in edges])


def parse_constraint(possible: Iterable[str], names: Sequence[str]) -> BoolArray:
    """Build the constraint set ``(N,)`` from the names of the possible states.

    Raises
    ------
    StateError
        If no state is given, or a state is unknown or repeated.
    """
    index = {name: i for i, name in enumerate(names)}
    mask = np.zeros(len(index), dtype=np.bool_)
    for name in possible:
        if name not in index:
            raise StateError(_describe_unknown_state(name, names))
        if mask[index[name]]:
            raise StateError(f"possible states must be unique, got {name!r} twice")
        mask[index[name]] = True
    if not mask.any():
        raise StateError("possible states must contain at least one name, got none")
    return mask


def read_prior(path: str | Path, names: Sequence[str]) -> FloatArray:
    """Read a distribution ``(N,)`` from a table with columns ``state`` and ``probability``.

    States that are not listed have probability zero. The caller checks that the probabilities sum to one.

    Raises
    ------
    DataFileError
        If the file cannot be read, a state is unknown or repeated, or a probability is not a number.
    """
    table = Table.read(path)
    stated = dict(zip(_read_names(table, "state"), table.values("probability", _parse_fraction), strict=True))
    known_names = set(names)
    for row, name in enumerate(stated):
        if name not in known_names:
            raise table.refusal(row, _describe_unknown_state(name, names))
    return np.array([float(stated.get(name, 0)) for name in names])


def _read_names(table: Table, column: str) -> tuple[str, ...]:
    names = table.texts(column)
    seen: set[str] = set()
    for row, name in enumerate(names):
        if not name:
            raise table.refusal(row, f"{column} must have a name, got an empty value")
        if name in seen:
            raise table.refusal(row, f"{column} must be unique, got {name!r} twice")
        seen.add(name)
    return tuple(names)


def _read_numbers(table: Table, others: set[str | None]) -> npt.NDArray[Any]:
    columns = [name for name in table.columns if name not in others and any(map(_is_number, table.texts(name)))]
    if not columns:
        raise DataFileError(
            table.source, "has no numeric column; add one per answer, or use count queries (for secrets)"
        )
    return np.array([table.values(name, _parse_fraction) for name in columns], dtype=object).T


def _parse_fraction(text: str) -> Fraction:
    try:
        return parse_fraction(text, "it")
    except ValueError:
        raise ValueError(f"must be a decimal number or a fraction, got {shorten(text.strip())}") from None


def _is_number(text: str) -> bool:
    try:
        _parse_fraction(text)
    except ValueError:
        return False
    return True


def _match_query(table: Table, query: str) -> BoolArray:
    """Return a mask ``(n,)`` of the rows that meet all conditions of a count query."""
    met = np.ones(len(table), dtype=np.bool_)
    for condition in query.split(","):
        column, equals, value = (part.strip() for part in condition.partition("="))
        if not equals or column not in table.columns:
            columns = ", ".join(name for name in table.columns if name != "secret")
            raise DataFileError(
                table.source, f"query must be COLUMN=VALUE with a column among {columns}, got {query!r}"
            )
        met &= [text == value for text in table.texts(column)]
    if not met.any():  # a misspelt value would otherwise expose no secret
        raise DataFileError(table.source, f"query {query!r} must match a secret, got none")
    return met


def _describe_unknown_state(name: str, names: Sequence[str]) -> str:
    examples = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
    return f"state {name!r} does not exist; the {len(names)} states are {examples}"
