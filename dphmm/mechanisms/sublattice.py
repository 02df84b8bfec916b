"""The integer points of a linear span, with integer coordinates of their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray
from dphmm.geometry.integers import exact_product


class Sublattice:
    """All points of ``Z^d`` in the linear span of integer vectors, not only the combinations of the vectors.

    The segment from ``-(6, 4)`` to ``(6, 4)`` spans a line whose integer points are the multiples of ``(3, 2)``.

    Parameters
    ----------
    vectors
        Rows of ``d`` integers.
    dimension
        The dimension ``d``, which no row at all would not tell.

    Notes
    -----
    Column operations of determinant one take the vectors ``A`` to ``A U = [H 0]`` with ``r`` columns in ``H``. An
    integer point ``z`` lies in the span exactly where the last ``d - r`` entries of ``z U`` are zero, and the first
    ``r`` entries are its coordinates in the basis formed by the first ``r`` rows of the inverse of ``U``.

    Examples
    --------
    >>> line = Sublattice([[6, 4]], 2)
    >>> line.basis.tolist(), line.contains(np.array([[3, 2], [3, 1]])).tolist()
    ([[3, 2]], [True, False])
    >>> line.coordinates(np.array([[-9, -6]])).tolist()
    [[-3]]
    """

    def __init__(self, vectors: Iterable[Sequence[int]], dimension: int) -> None:
        columns, inverse, rank = _column_reduction(vectors, dimension)
        self.rank = rank
        """The dimension ``r`` of the span."""
        if rank == dimension:
            columns = inverse = _identity(dimension)
        self.basis: npt.NDArray[Any] = np.array(inverse[:rank], dtype=object).reshape(rank, dimension)
        """``(r, d)`` Python integers: every integer point of the span is one integer combination of these rows."""
        self._columns = np.array(columns, dtype=object).T

    def coordinates(self, points: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The coordinates ``(n, r)`` in the basis of integer points ``(n, d)`` of the span."""
        if self.rank == len(self._columns):
            return points
        return exact_product(points, self._columns[:, : self.rank])

    def contains(self, points: npt.NDArray[Any]) -> BoolArray:
        """Whether each of the integer points ``(n, d)`` lies in the span; exact."""
        if self.rank == len(self._columns):
            return np.ones(len(points), dtype=np.bool_)
        return np.asarray((exact_product(points, self._columns[:, self.rank :]) == 0).all(axis=1), dtype=np.bool_)


def _identity(size: int) -> list[list[int]]:
    return [[int(i == j) for j in range(size)] for i in range(size)]


def _column_reduction(vectors: Iterable[Sequence[int]], dimension: int) -> tuple[list[list[int]], list[list[int]], int]:
    """The columns of ``U``, the rows of its inverse, and the rank: Euclid's algorithm on one vector after another."""
    columns, inverse, rank = _identity(dimension), _identity(dimension), 0
    for vector in vectors:
        if rank == dimension:
            break
        image = [sum(int(x) * c for x, c in zip(vector, column, strict=True)) for column in columns]
        while len(live := [j for j in range(rank, dimension) if image[j]]) > 1:
            pivot = min(live, key=lambda j: abs(image[j]))
            for j in live:
                if j != pivot:
                    factor = image[j] // image[pivot]
                    image[j] -= factor * image[pivot]
                    columns[j] = [a - factor * b for a, b in zip(columns[j], columns[pivot], strict=True)]
                    inverse[pivot] = [a + factor * b for a, b in zip(inverse[pivot], inverse[j], strict=True)]
        if live:
            for rows in (columns, inverse):
                rows[rank], rows[live[0]] = rows[live[0]], rows[rank]
            rank += 1
    return columns, inverse, rank
