"""The linear span of a set of vectors: its dimension, its equations, and coordinates within it."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import RELATIVE_TOLERANCE, FloatArray


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
    if dimension == 2 and _fills_the_plane(vectors):
        return Span((0, 1), np.zeros((0, 2), dtype=object))
    basis: list[list[Fraction]] = []
    axes: list[int] = []
    equations: npt.NDArray[Any] = np.eye(dimension, dtype=np.int64)
    largest = int(np.abs(vectors).max(initial=0))
    while len(equations):
        fits = dimension * largest * int(np.abs(equations).max()) < 2**62
        outside = (vectors @ equations.astype(np.int64 if fits else object).T != 0).any(axis=1)
        if not outside.any():
            break
        row = [Fraction(int(x)) for x in vectors[int(np.argmax(outside))]]
        for pivot, known in zip(axes, basis, strict=True):
            factor = row[pivot]
            row = [x - factor * k for x, k in zip(row, known, strict=True)]
        pivot = next(axis for axis, x in enumerate(row) if x != 0)
        row = [x / row[pivot] for x in row]
        basis = [[x - known[pivot] * r for x, r in zip(known, row, strict=True)] for known in basis]
        basis.append(row)
        axes.append(pivot)
        equations = _null_rows(basis, axes, dimension)
    order = np.argsort(axes)
    return Span(tuple(axes[i] for i in order), equations)


def _fills_the_plane(vectors: npt.NDArray[np.int64]) -> bool:
    """Whether two planar vectors, below ``2**30`` in each coordinate, are not collinear."""
    if not len(vectors):
        return False
    x, y = vectors[np.abs(vectors).max(axis=1).argmax()]
    return bool((x * vectors[:, 1] != y * vectors[:, 0]).any())


def _null_rows(basis: list[list[Fraction]], axes: list[int], dimension: int) -> npt.NDArray[Any]:
    """Coprime integer equations of the span of a reduced basis."""
    rows = []
    for free in (axis for axis in range(dimension) if axis not in axes):
        row = [Fraction(0)] * dimension
        row[free] = Fraction(1)
        for pivot, known in zip(axes, basis, strict=True):
            row[pivot] = -known[free]
        scale = lcm(*(x.denominator for x in row))
        integers = [int(x * scale) for x in row]
        divisor = gcd(*integers)
        rows.append([x // divisor for x in integers])
    return np.array(rows, dtype=object).reshape(-1, dimension)


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
