"""Exact integer linear algebra on arrays, and the linear span of vectors."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.tolerances import RELATIVE_TOLERANCE

# Products that stay below this are computed in 64 bits, larger ones with Python's integers.
_INT64_LIMIT = 2**62

# Doubles represent integers below this exactly, in any order of summation.
EXACT_FLOATS = 2**53

# Number of entries of a product from which BLAS is faster than numpy's integer loops, including conversions.
_MIN_BLAS_ENTRIES = 1 << 14

# Python iterates over fewer numbers in less time than numpy takes for two calls.
_MIN_ARRAY_SIZE = 64


# Number of vectors searched first for independent ones. Fewer would not be faster: the time is that of the calls.
_SAMPLE_SIZE = 64


def exact_product(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Multiply integer matrices without rounding or overflow.

    Large products that doubles represent exactly go through BLAS, others through 64-bit or Python integers.
    """
    bound = left.shape[-1] * max(1, compute_max_abs(left)) * max(1, compute_max_abs(right))
    if bound < EXACT_FLOATS and left.ndim == right.ndim == 2 and len(left) * right.shape[1] > _MIN_BLAS_ENTRIES:
        return np.asarray((left.astype(np.float64) @ right.astype(np.float64)).astype(np.int64))
    dtype = np.int64 if bound < _INT64_LIMIT else object
    return np.asarray(left.astype(dtype, copy=False) @ right.astype(dtype, copy=False))


def exact_determinants(matrices: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Compute determinants ``(n,)`` of integer matrices by fraction-free elimination.

    Bareiss, Math. Comp. 22 (1968): after step ``j`` the entries are minors of order ``j + 1``, so that every division
    is exact. All matrices are eliminated together, each with its own row swaps; ``k ** 3 / 3`` operations on arrays of
    length ``n``.
    """
    count, size = matrices.shape[0], matrices.shape[-1]
    # Two products of minors of order k - 1 are subtracted before the last division; Hadamard bounds a minor.
    minor = (max(1, size - 1) ** 0.5 * max(1, compute_max_abs(matrices))) ** max(1, size - 1)
    work = matrices.astype(np.int64 if 2 * minor * max(minor, compute_max_abs(matrices)) < _INT64_LIMIT else object)
    sign: npt.NDArray[Any] = np.ones(count, dtype=work.dtype)
    before: npt.NDArray[Any] = np.ones(count, dtype=work.dtype)
    numbers = np.arange(count)
    for step in range(size - 1):
        pivot = step + (work[:, step:, step] != 0).argmax(axis=1)
        swapped = pivot != step
        work[numbers, pivot], work[:, step] = work[:, step].copy(), work[numbers, pivot]
        sign[swapped] = -sign[swapped]
        top = work[:, step, step].copy()
        row, column = work[:, step, None, step + 1 :], work[:, step + 1 :, step, None]
        rest = top[:, None, None] * work[:, step + 1 :, step + 1 :] - column * row
        work[:, step + 1 :, step + 1 :] = rest // before[:, None, None]
        # A column without a pivot makes the determinant zero: the last entry stays zero for any divisor.
        singular = top == 0
        work[singular, step + 1 :, step + 1 :] = 0
        before = np.where(singular, 1, top).astype(work.dtype)
    return sign * work[:, -1, -1] if size else sign


def exact_rank(rows: npt.NDArray[Any]) -> int:
    """Compute the rank of an integer matrix ``(m, d)`` by fraction-free elimination."""
    left = [list(map(int, row)) for row in rows.tolist()]
    rank = 0
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


def select_distinct_rows(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return distinct rows in lexicographic order. Ten times as fast as ``np.unique(axis=0)``."""
    return index_rows(rows)[0]


def index_rows(rows: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], IntArray]:
    """Return distinct rows ``(m, d)`` in lexicographic order, and each row's index ``(n,)``."""
    columns = rows.T.copy()  # comparing long columns is much faster than comparing short rows
    order = np.lexsort(columns[::-1])
    columns = columns.take(order, axis=1)
    is_first = np.ones(len(rows), dtype=np.bool_)
    is_first[1:] = (columns[:, 1:] != columns[:, :-1]).any(axis=0)
    index = np.empty(len(rows), dtype=np.int64)
    index[order] = np.cumsum(is_first) - 1
    return np.ascontiguousarray(columns.compress(is_first, axis=1).T), index


def find_nonzero_rows(rows: npt.NDArray[Any]) -> BoolArray:
    """Return whether each row ``(n, d)`` has a non-zero entry. Ten times as fast as ``any``."""
    result: BoolArray = rows[:, 0] != 0
    for column in rows.T[1:]:
        result |= column != 0
    return result


def compute_max_abs(values: npt.NDArray[Any]) -> int:
    """Return the largest absolute value in an array of integers. Zero if empty."""
    if values.size <= _MIN_ARRAY_SIZE:
        return max(map(abs, values.ravel().tolist()), default=0)
    return max(abs(int(values.min())), abs(int(values.max())))


def to_common_denominator(values: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], int]:
    """Return rationals as Python integers over their least common denominator."""
    entries = [Fraction(x) for x in values.ravel().tolist()]
    denominator = lcm(*(x.denominator for x in entries))
    whole = np.array([int(x * denominator) for x in entries], dtype=object)
    return whole.reshape(values.shape), denominator


# Products of two numbers below this fit 64 bits.
_MAX_CROSS_FACTOR = 2**31


@dataclass(frozen=True)
class Span:
    """A linear subspace of dimension ``r`` of the space of dimension ``d``.

    Parameters
    ----------
    axes
        ``r`` coordinate axes onto which the subspace projects one to one.
    equations
        ``(d - r, d)`` rows, the null space of which is the subspace: coprime integers from `exact_span`, orthonormal
        floats from `float_span`.
    """

    axes: tuple[int, ...]
    equations: npt.NDArray[Any]

    def lift(self, dimension: int) -> FloatArray:
        """Return the matrix ``(r, d)`` that lifts coordinates on ``axes`` to the whole space."""
        lifted = np.zeros((len(self.axes), dimension))
        lifted[range(len(self.axes)), self.axes] = 1.0
        others = [axis for axis in range(dimension) if axis not in self.axes]
        if others and self.axes:
            equations = self.equations.astype(np.float64)
            lifted[:, others] = -np.linalg.solve(equations[:, others], equations[:, self.axes]).T
        return lifted


def exact_span(vectors: npt.NDArray[np.int64]) -> Span:
    """Return the span of integer vectors ``(k, d)``, by exact elimination in rationals."""
    dimension = vectors.shape[1]
    if dimension == 2 and _fills_the_plane(vectors):
        return Span((0, 1), np.zeros((0, 2), dtype=object))
    # The first few vectors nearly always span the space already.
    chosen = _find_independent(vectors[:_SAMPLE_SIZE])
    if len(chosen) < dimension and len(vectors) > _SAMPLE_SIZE:
        chosen = _find_independent(vectors)
    if len(chosen) == dimension and _is_regular(vectors[chosen]):
        return Span(tuple(range(dimension)), np.zeros((0, dimension), dtype=object))
    while True:
        axes, equations = _reduce(vectors[chosen])
        outside = exact_product(vectors, equations.T).any(axis=1)
        if not outside.any():
            return Span(axes, equations)
        chosen.append(int(np.argmax(outside)))  # rounding hid it


def _find_independent(vectors: npt.NDArray[np.int64]) -> list[int]:
    """Return the indices of vectors that span the same space in floating-point arithmetic."""
    from scipy.linalg import qr

    triangle, order = qr(vectors.T.astype(np.float64), mode="r", pivoting=True)
    lengths = np.abs(np.diagonal(triangle))
    return [int(k) for k in order[: int((lengths > RELATIVE_TOLERANCE * lengths.max(initial=0.0)).sum())]]


def _fills_the_plane(vectors: npt.NDArray[np.int64]) -> bool:
    """Return whether vectors span the plane. False also if products might overflow."""
    if not len(vectors) or compute_max_abs(vectors) >= _MAX_CROSS_FACTOR:
        return False
    along = vectors[(vectors != 0).any(axis=1).argmax()]
    return bool((vectors[:, 0] * along[1] != vectors[:, 1] * along[0]).any())


def _is_regular(square: npt.NDArray[np.int64]) -> bool:
    """Return whether a square matrix of integers has full rank."""
    floats = square.astype(np.float64)
    # Rounding of a determinant is far below this share of the product of lengths, which bounds it (Hadamard).
    if abs(np.linalg.det(floats)) > RELATIVE_TOLERANCE * np.linalg.norm(floats, axis=1).prod() > 0:
        return True
    return bool(exact_determinants(square[None])[0] != 0)


def _reduce(vectors: npt.NDArray[np.int64]) -> tuple[tuple[int, ...], npt.NDArray[Any]]:
    """Return the pivots of integer vectors and coprime integer equations of their span.

    The elimination of Gauss and Jordan without fractions: all entries are minors, so that every division is exact.
    Both results are unique, whichever vectors represent the span.
    """
    dimension = vectors.shape[1]
    rows = vectors.astype(object)
    axes: list[int] = []
    last = 1
    for column in range(dimension):
        rank = len(axes)
        below = np.flatnonzero(rows[rank:, column])
        if not len(below):
            continue
        rows[[rank, rank + below[0]]] = rows[[rank + below[0], rank]]
        pivot_row = rows[rank].copy()
        rows = (pivot_row[column] * rows - np.outer(rows[:, column], pivot_row)) // last
        rows[rank] = pivot_row
        axes.append(column)
        last = pivot_row[column]
    free = [axis for axis in range(dimension) if axis not in axes]
    equations = np.zeros((len(free), dimension), dtype=object)
    equations[range(len(free)), free] = abs(last)
    equations[:, axes] = -rows[: len(axes), free].T * (1 if last > 0 else -1)
    for equation in equations:
        equation //= gcd(*equation.tolist())
    return tuple(axes), equations


def float_span(vectors: FloatArray) -> Span:
    """Return the span of vectors ``(k, d)``, ignoring directions below the tolerance."""
    # The tolerance is relative to the longest vector.
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
