"""The integer points of a linear span, with integer coordinates of their own."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, locked
from dphmm.geometry.integers import exact_product


class Sublattice:
    """All points of ``Z^d`` in the linear span of integer vectors, not only the combinations of the vectors.

    The segment from ``-(6, 4)`` to ``(6, 4)`` spans a line whose integer points are the multiples of ``(3, 2)``.

    Parameters
    ----------
    vectors
        ``(k, d)`` integers.
    rank
        The dimension ``r`` of their span, where it is known.

    Notes
    -----
    Column operations of determinant one take the vectors ``A`` to ``A U = [H 0]`` with ``r`` columns in ``H``. An
    integer point ``z`` lies in the span exactly where the last ``d - r`` entries of ``z U`` are zero, and the first
    ``r`` entries are its coordinates in the basis formed by the first ``r`` rows of the inverse of ``U``.

    Examples
    --------
    >>> line = Sublattice(np.array([[6, 4]]))
    >>> line.basis.tolist(), line.contains(np.array([[3, 2], [3, 1]])).tolist()
    ([[3, 2]], [True, False])
    >>> line.coordinates(np.array([[-9, -6]])).tolist()
    [[-3]]
    """

    def __init__(self, vectors: npt.NDArray[Any], rank: int | None = None) -> None:
        dimension = vectors.shape[1]
        if rank != dimension:
            columns, inverse, rank = _column_reduction(vectors.astype(object))
        if rank == dimension:
            columns = inverse = _identity(dimension)
        self.rank: int = dimension if rank is None else rank
        """The dimension ``r`` of the span."""
        self.basis: npt.NDArray[Any] = inverse[:rank]
        """``(r, d)`` Python integers: every integer point of the span is one integer combination of these rows."""
        self._columns = columns.T

    @property
    def is_everything(self) -> bool:
        """Whether the span is the whole space, and the basis that of its axes."""
        return self.rank == len(self._columns)

    def coordinates(self, points: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The coordinates ``(n, r)`` in the basis of integer points ``(n, d)`` of the span."""
        if self.is_everything:
            return points
        return exact_product(points, self._columns[:, : self.rank])

    def contains(self, points: npt.NDArray[Any]) -> BoolArray:
        """Whether each of the integer points ``(n, d)`` lies in the span; exact."""
        if self.is_everything:
            return np.ones(len(points), dtype=np.bool_)
        return np.asarray((exact_product(points, self._columns[:, self.rank :]) == 0).all(axis=1), dtype=np.bool_)


@lru_cache(maxsize=8)
def _identity(dimension: int) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = locked(np.eye(dimension, dtype=object))
    return found


def _column_reduction(vectors: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any], int]:
    """The columns of ``U``, the rows of its inverse, and the rank: Euclid's algorithm on one vector after another."""
    dimension = vectors.shape[1]
    columns, inverse, rank = np.eye(dimension, dtype=object), np.eye(dimension, dtype=object), 0
    for vector in vectors:
        if rank == dimension:
            break
        image = columns @ vector
        while len(live := [j for j in range(rank, dimension) if image[j]]) > 1:
            pivot = min(live, key=lambda j: abs(image[j]))
            for j in live:
                if j != pivot:
                    factor = image[j] // image[pivot]
                    image[j] -= factor * image[pivot]
                    columns[j] -= factor * columns[pivot]
                    inverse[pivot] += factor * inverse[j]
        if live:
            for rows in (columns, inverse):
                rows[[rank, live[0]]] = rows[[live[0], rank]]
            rank += 1
    return columns, inverse, rank
