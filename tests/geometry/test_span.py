"""The span of integer vectors, against exact elimination in degenerate and near cases."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from dphmm.geometry.span import exact_span


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
