"""Several first distributions out of one table: what adversaries may believe before anything is released."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, as_distribution
from dphmm.errors import DataFileError, StochasticError
from dphmm.space.states import Places, StateSpace
from dphmm.tables.table import Table


@checked
def read_priors(path: str | Path, space: StateSpace) -> tuple[FloatArray, ...]:
    """Distributions over the states of a space, ``(N,)`` each.

    Parameters
    ----------
    path
        A CSV with a column ``state`` (the names of places, the numbers of cells); every other column is a distribution
        under its own name. States without a row have probability zero.
    space
        The states.

    Raises
    ------
    DataFileError
        When the file cannot be read, a state is named twice or does not exist, there is no distribution, or a column
        is none.
    """
    table = Table.read(path)
    names = space.names if isinstance(space, Places) else tuple(str(state) for state in range(space.size))
    place = {name: state for state, name in enumerate(names)}
    rows: list[int] = []
    for row, name in enumerate(table.texts("state")):
        if name not in place or place[name] in rows:
            what = "does not exist" if name not in place else "is named twice"
            raise table.refusal(row, f"state {name!r} {what}; name states of the model once each")
        rows.append(place[name])
    found = []
    for column in table.columns:
        if column == "state":
            continue
        values = np.zeros(space.size)
        values[rows] = table.values(column, float)
        try:
            found.append(as_distribution(values, space.size, f"column {column!r}"))
        except StochasticError as problem:
            raise DataFileError(path, str(problem)) from None
    if not found:
        raise DataFileError(path, "holds no prior; give a column of probabilities for each, beside 'state'")
    return tuple(found)
