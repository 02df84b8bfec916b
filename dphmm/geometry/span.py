"""Exact integer arithmetic on arrays, and the linear span of vectors: dimension, equations, coordinates within it."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import RELATIVE_TOLERANCE, FloatArray

_INT64_LIMIT = 2**62
"""Products that stay below this are computed in 64 bits, larger ones with Python's integers."""

_EXACT_FLOATS = 2**53
"""Doubles represent integers below this exactly, in any order of summation."""

_LARGE_PRODUCT = 1 << 14
"""Entries of a product from which BLAS is quicker than numpy's integer loops, conversions included."""

_FEW = 64
"""Python looks through this many numbers in less time than numpy takes for two calls."""


def exact_product(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Multiply integer matrices without rounding or overflow.

    Large products that doubles represent exactly go through BLAS, others through 64-bit or Python integers.
    """
    bound = left.shape[-1] * max(1, largest(left)) * max(1, largest(right))
    if bound < _EXACT_FLOATS and left.ndim == right.ndim == 2 and len(left) * right.shape[1] > _LARGE_PRODUCT:
        return np.asarray((left.astype(np.float64) @ right.astype(np.float64)).astype(np.int64))
    dtype = np.int64 if bound < _INT64_LIMIT else object
    return np.asarray(left.astype(dtype, copy=False) @ right.astype(dtype, copy=False))


def exact_determinants(matrices: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Compute the determinants ``(n,)`` of integer matrices ``(n, k, k)`` by fraction-free elimination.

    Bareiss, Math. Comp. 22 (1968): after step ``j`` the entries are minors of order ``j + 1``, so that every division
    is exact. All matrices are eliminated together, each with its own row swaps; ``k ** 3 / 3`` operations on arrays of
    length ``n``.
    """
    count, size = matrices.shape[0], matrices.shape[-1]
    # Two products of minors of order k - 1 are subtracted before the last division; Hadamard bounds a minor.
    minor = (max(1, size - 1) ** 0.5 * max(1, largest(matrices))) ** max(1, size - 1)
    work = matrices.astype(np.int64 if 2 * minor * max(minor, largest(matrices)) < _INT64_LIMIT else object)
    sign: npt.NDArray[Any] = np.ones(count, dtype=work.dtype)
    before: npt.NDArray[Any] = np.ones(count, dtype=work.dtype)
    every = np.arange(count)
    for step in range(size - 1):
        pivot = step + (work[:, step:, step] != 0).argmax(axis=1)
        swapped = pivot != step
        work[every, pivot], work[:, step] = work[:, step].copy(), work[every, pivot]
        sign[swapped] = -sign[swapped]
        top = work[:, step, step].copy()
        row, column = work[:, step, None, step + 1 :], work[:, step + 1 :, step, None]
        rest = top[:, None, None] * work[:, step + 1 :, step + 1 :] - column * row
        work[:, step + 1 :, step + 1 :] = rest // before[:, None, None]
        # A column without a pivot makes the determinant zero: the last entry stays zero whatever it is divided by.
        singular = top == 0
        work[singular, step + 1 :, step + 1 :] = 0
        before = np.where(singular, 1, top).astype(work.dtype)
    return sign * work[:, -1, -1] if size else sign


def exact_rank(rows: npt.NDArray[Any]) -> int:
    """Compute the rank of an integer matrix ``(m, d)`` by fraction-free elimination."""
    left, rank = [list(map(int, row)) for row in rows.tolist()], 0
    for axis in range(rows.shape[1]):
        at = next((index for index in range(rank, len(left)) if left[index][axis]), None)
        if at is None:
            continue
        left[rank], left[at] = left[at], left[rank]
        top = left[rank]
        for index in range(rank + 1, len(left)):
            factor = left[index][axis]
            if factor:
                left[index] = [top[axis] * x - factor * y for x, y in zip(left[index], top, strict=True)]
        rank += 1
    return rank


def distinct_rows(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the different rows in lexicographic order, as ``np.unique(axis=0)`` does, in a tenth of its time."""
    if len(rows) < 2 or rows.dtype == object:
        return np.unique(rows, axis=0) if rows.dtype != object else np.array(sorted(set(map(tuple, rows.tolist()))))
    ordered = rows[np.lexsort(rows.T[::-1])]
    return np.asarray(ordered[np.concatenate([[True], (ordered[1:] != ordered[:-1]).any(axis=1)])])


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
    square = vectors[chosen].astype(np.float64)
    # Rounding of a determinant is far below this share of the product of lengths, which bounds it (Hadamard).
    if abs(np.linalg.det(square)) > RELATIVE_TOLERANCE * np.linalg.norm(square, axis=1).prod() > 0:
        return True
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
