"""The span of integer vectors, against exact elimination in degenerate and near cases."""

from __future__ import annotations

from fractions import Fraction
from math import gcd

import numpy as np
import pytest

from dphmm.geometry.exact_linear_algebra import exact_span


def compute_rank(vectors: np.ndarray) -> int:
    rows, pivots = [[Fraction(x) for x in row] for row in vectors.tolist()], 0
    for column in range(vectors.shape[1]):
        pivot = next((row for row in rows[pivots:] if row[column]), None)
        if pivot is None:
            continue
        rows.remove(pivot)
        rows.insert(pivots, pivot)
        for at in range(pivots + 1, len(rows)):
            factor = rows[at][column] / pivot[column]
            rows[at] = [a - factor * b for a, b in zip(rows[at], pivot, strict=True)]
        pivots += 1
    return pivots


@pytest.mark.parametrize("dimension", [1, 2, 3])
@pytest.mark.parametrize("size", [3, 2**20, 2**27, 2**40])
def test_span_dimension_matches_rank(dimension, size):
    rng = np.random.default_rng(size + dimension)
    seen = set()
    for case in range(120):
        basis = rng.integers(-size, size + 1, (int(rng.integers(1, dimension + 1)), dimension))
        factors = rng.integers(-3, 4, (int(rng.integers(0, 7)), len(basis)))
        vectors = factors @ basis if case % 3 else np.concatenate([np.zeros((2, dimension), dtype=np.int64), basis])
        if case % 4 == 1 and len(vectors):
            vectors[-1, 0] += 1  # nearly collinear
        span = exact_span(vectors)
        assert len(span.axes) == compute_rank(vectors), vectors.tolist()
        assert len(span.equations) == dimension - len(span.axes)
        seen.add(len(span.axes))
    assert seen == set(range(dimension + 1))


def test_span_of_no_vectors_is_origin():
    assert exact_span(np.zeros((0, 2), dtype=np.int64)).axes == ()


def eliminate(vectors: np.ndarray) -> tuple[tuple[int, ...], list[list[Fraction]]]:
    """Return the pivots and rows of the reduced echelon form, in rationals."""
    rows, axes = [[Fraction(x) for x in row] for row in vectors.tolist()], []
    for column in range(vectors.shape[1]):
        at = next((k for k in range(len(axes), len(rows)) if rows[k][column]), None)
        if at is None:
            continue
        rows[len(axes)], rows[at] = rows[at], rows[len(axes)]
        pivot = [entry / rows[len(axes)][column] for entry in rows[len(axes)]]
        rows = [[a - row[column] * b for a, b in zip(row, pivot, strict=True)] for row in rows]
        rows[len(axes)] = pivot
        axes.append(column)
    return tuple(axes), rows[: len(axes)]


@pytest.mark.parametrize("size", [2, 2**20, 2**40])
def test_span_of_combinations_is_reduced_echelon_form(size):
    """Combinations of few vectors, with entries from small to large."""
    rng = np.random.default_rng(20)
    for _ in range(60):
        dimension = int(rng.integers(2, 8))
        basis = rng.integers(-size, size + 1, (int(rng.integers(1, dimension + 1)), dimension))
        vectors = rng.integers(-3, 4, (12, len(basis))) @ basis
        span = exact_span(vectors)
        axes, rows = eliminate(vectors)
        assert span.axes == axes
        free = [axis for axis in range(dimension) if axis not in axes]
        for equation, axis in zip(span.equations.tolist(), free, strict=True):
            assert gcd(*equation) == 1
            assert equation[axis] > 0
            expected = [Fraction(0)] * dimension
            expected[axis] = Fraction(1)
            for pivot, row in zip(axes, rows, strict=True):
                expected[pivot] = -row[axis]
            assert [Fraction(entry, equation[axis]) for entry in equation] == expected


def test_span_of_nearly_dependent_vectors_is_exact():
    """In floating-point arithmetic the third vector is a multiple of the first."""
    vectors = np.array([[2**30, 1, 0, 0], [0, 0, 1, 0], [2**40, 2**10 + 1, 0, 0]])
    assert exact_span(vectors).axes == (0, 1, 2)
    assert exact_span(vectors[:2]).axes == (0, 2)
