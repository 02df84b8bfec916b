"""Exact integer arithmetic on arrays, and the linear span of vectors: dimension, equations, coordinates within it."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import factorial, lcm
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import RELATIVE_TOLERANCE, FloatArray

_INT64_LIMIT = 2**62
"""Products that stay below this are computed in 64 bits, larger ones with Python's integers."""

_FEW = 64
"""Python looks through this many numbers in less time than numpy takes for two calls."""


def exact_product(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The matrix product of integer arrays, in 64 bits where nothing can overflow, otherwise with Python's integers."""
    bound = left.shape[-1] * max(1, largest(left)) * max(1, largest(right))
    dtype = np.int64 if bound < _INT64_LIMIT else object
    return np.asarray(left.astype(dtype, copy=False) @ right.astype(dtype, copy=False))


def exact_determinants(matrices: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The determinants ``(n,)`` of small integer matrices ``(n, k, k)``, by expansion along the first row."""
    size = matrices.shape[-1]
    bound = factorial(size) * max(1, largest(matrices)) ** size
    whole = matrices.astype(np.int64 if bound < _INT64_LIMIT else object, copy=False)
    return _expanded(whole)


def _expanded(matrices: npt.NDArray[Any]) -> npt.NDArray[Any]:
    size = matrices.shape[-1]
    if size == 0:
        return np.ones(len(matrices), dtype=matrices.dtype)
    parts = [
        (-1) ** column * matrices[:, 0, column] * _expanded(np.delete(matrices[:, 1:], column, axis=2))
        for column in range(size)
    ]
    return np.asarray(sum(parts))


def largest(values: npt.NDArray[Any]) -> int:
    """The largest absolute value in an array of integers; zero in an empty one."""
    if values.size <= _FEW:
        return max(map(abs, values.ravel().tolist()), default=0)
    return max(abs(int(values.min())), abs(int(values.max())))


def common_denominator(values: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], int]:
    """Rational entries as integers (of Python, in the same shape) over their least common denominator."""
    entries = [Fraction(x) for x in values.ravel().tolist()]
    denominator = lcm(*(x.denominator for x in entries))
    whole = np.array([int(x * denominator) for x in entries], dtype=object)
    return whole.reshape(values.shape), denominator


_CROSSED = 2**31
"""Products of two numbers below this fit 64 bits."""


@dataclass(frozen=True)
class Span:
    """A linear subspace of dimension ``r`` of the space of dimension ``d``.

    Parameters
    ----------
    axes
        ``r`` coordinate axes onto which the subspace projects one to one.
    equations
        ``(d - r, d)`` rows whose null space is the subspace: coprime integers from `exact_span`, orthonormal
        floats from `float_span`.
    """

    axes: tuple[int, ...]
    equations: npt.NDArray[Any]

    def lift(self, dimension: int) -> FloatArray:
        """The matrix ``(r, d)`` that takes coordinates on ``axes`` back into the space of ``dimension`` axes."""
        lifted = np.zeros((len(self.axes), dimension))
        lifted[range(len(self.axes)), self.axes] = 1.0
        others = [axis for axis in range(dimension) if axis not in self.axes]
        if others and self.axes:
            equations = self.equations.astype(np.float64)
            lifted[:, others] = -np.linalg.solve(equations[:, others], equations[:, self.axes]).T
        return lifted


def exact_span(vectors: npt.NDArray[np.int64]) -> Span:
    """The span of integer vectors ``(k, d)``, by elimination in rationals; nothing is rounded."""
    dimension = vectors.shape[1]
    if _fills_the_space(vectors):
        return Span(tuple(range(dimension)), np.zeros((0, dimension), dtype=object))
    axes: list[int] = []
    basis: npt.NDArray[Any] = np.zeros((0, dimension), dtype=object)
    equations: npt.NDArray[Any] = np.eye(dimension, dtype=np.int64)
    while len(equations):
        outside = exact_product(vectors, equations.T).any(axis=1)
        if not outside.any():
            break
        row = vectors[int(np.argmax(outside))].astype(object) * Fraction(1)
        row = row - row[axes] @ basis
        pivot = int(np.flatnonzero(row)[0])
        row = row / row[pivot]
        basis = np.vstack([basis - np.outer(basis[:, pivot], row), row])
        axes.append(pivot)
        equations = _null_rows(basis, axes)
    order = np.argsort(axes)
    return Span(tuple(axes[i] for i in order), equations)


def _fills_the_space(vectors: npt.NDArray[np.int64]) -> bool:
    """Whether some of the vectors are found that are independent; where they nearly are not, False may be wrong."""
    if vectors.shape[1] == 2 and largest(vectors) < _CROSSED:
        along = vectors[(vectors != 0).any(axis=1).argmax()] if len(vectors) else np.zeros(2, dtype=np.int64)
        return bool((vectors[:, 0] * along[1] != vectors[:, 1] * along[0]).any())
    rest, chosen = vectors.astype(np.float64), []
    for _ in range(vectors.shape[1]):
        lengths = (rest**2).sum(axis=1)
        chosen.append(int(lengths.argmax()) if len(lengths) else 0)
        if not lengths.any():
            return False
        along = rest[chosen[-1]]
        rest = rest - np.outer(rest @ along / lengths[chosen[-1]], along)
    return bool(exact_determinants(vectors[None, chosen])[0] != 0)


def _null_rows(basis: npt.NDArray[Any], axes: list[int]) -> npt.NDArray[Any]:
    """Coprime integer equations of the span of a basis that is reduced on ``axes``."""
    free = [axis for axis in range(basis.shape[1]) if axis not in axes]
    rows = np.zeros((len(free), basis.shape[1]), dtype=object)
    rows[range(len(free)), free] = 1
    rows[:, axes] = -basis[:, free].T
    for row in rows:
        row[:] = common_denominator(row)[0]
    return rows


def float_span(vectors: FloatArray) -> Span:
    """The span of vectors ``(k, d)``; directions below the tolerance times the longest vector do not count."""
    from scipy.linalg import qr

    dimension = vectors.shape[1]
    longest = float(np.abs(vectors).max(initial=0.0))
    if longest == 0.0:
        return Span((), np.eye(dimension))
    triangle = np.linalg.qr(vectors, mode="r")
    _, singular, directions = np.linalg.svd(triangle, full_matrices=True)
    rank = int((singular > RELATIVE_TOLERANCE * singular[0]).sum())
    _, _, order = qr(directions[:rank], pivoting=True, mode="economic")
    return Span(tuple(sorted(int(axis) for axis in order[:rank])), directions[rank:])
