"""The span of integer vectors against elimination in fractions, in lines and planes that nearly are none."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from dphmm.geometry.span import exact_span


def rank(vectors: np.ndarray) -> int:
    rows, found = [[Fraction(x) for x in row] for row in vectors.tolist()], 0
    for column in range(vectors.shape[1]):
        pivot = next((row for row in rows[found:] if row[column]), None)
        if pivot is None:
            continue
        rows.remove(pivot)
        rows.insert(found, pivot)
        for at in range(found + 1, len(rows)):
            factor = rows[at][column] / pivot[column]
            rows[at] = [a - factor * b for a, b in zip(rows[at], pivot, strict=True)]
        found += 1
    return found


@pytest.mark.parametrize("dimension", [1, 2, 3])
@pytest.mark.parametrize("size", [3, 2**20, 2**27, 2**40])
def test_its_dimension_is_the_rank(dimension, size):
    rng = np.random.default_rng(size + dimension)
    seen = set()
    for case in range(120):
        some = rng.integers(-size, size + 1, (int(rng.integers(1, dimension + 1)), dimension))
        few = rng.integers(-3, 4, (int(rng.integers(0, 7)), len(some)))
        vectors = few @ some if case % 3 else np.concatenate([np.zeros((2, dimension), dtype=np.int64), some])
        if case % 4 == 1 and len(vectors):
            vectors[-1, 0] += 1  # nearly in a line
        span = exact_span(vectors)
        assert len(span.axes) == rank(vectors), vectors.tolist()
        assert len(span.equations) == dimension - len(span.axes)
        seen.add(len(span.axes))
    assert seen == set(range(dimension + 1))


def test_of_no_vectors_it_is_the_origin():
    assert exact_span(np.zeros((0, 2), dtype=np.int64)).axes == ()
