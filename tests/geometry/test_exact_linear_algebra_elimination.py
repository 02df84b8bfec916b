"""Determinants and ranks by fraction-free elimination, against rational elimination."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dphmm.geometry.exact_linear_algebra import exact_determinants, exact_product, exact_rank, select_distinct_rows

entries = st.one_of(st.integers(-3, 3), st.integers(-(2**61), 2**61))
squares = st.integers(0, 6).flatmap(
    lambda k: hnp.arrays(np.int64, st.tuples(st.integers(0, 4), st.just(k), st.just(k)), elements=entries)
)


def eliminate(matrix: np.ndarray) -> tuple[Fraction, int]:
    """Return the signed product of the pivots and their number, by elimination in rationals."""
    rows = [[Fraction(int(x)) for x in row] for row in matrix]
    product = Fraction(1)
    rank = 0
    for axis in range(matrix.shape[1]):
        at = next((i for i in range(rank, len(rows)) if rows[i][axis]), None)
        if at is None:
            product = Fraction(0)
            continue
        if at != rank:
            rows[rank], rows[at] = rows[at], rows[rank]
            product = -product
        product *= rows[rank][axis]
        for i in range(rank + 1, len(rows)):
            share = rows[i][axis] / rows[rank][axis]
            rows[i] = [x - share * y for x, y in zip(rows[i], rows[rank], strict=True)]
        rank += 1
    return product, rank


@given(squares)
def test_determinants_match_rational_elimination(matrices):
    expected = [eliminate(matrix)[0] for matrix in matrices]
    assert [int(x) for x in exact_determinants(matrices)] == expected


@given(hnp.arrays(np.int64, st.tuples(st.integers(0, 6), st.integers(1, 5)), elements=entries))
def test_rank_matches_rational_elimination(rows):
    assert exact_rank(rows) == eliminate(rows)[1]


@pytest.mark.parametrize("size", [2, 3, 8, 12])
def test_large_singular_matrices_have_determinant_zero(size):
    """Floats cannot detect this: the rows differ in the last of sixty digits at most."""
    rng = np.random.default_rng(size)
    whole = rng.integers(-(2**58), 2**58, (3, size, size))
    whole[0, -1] = whole[0, 0]
    whole[1, :, 1] = 0
    whole[2, -1] = whole[2, 0]
    whole[2, -1, -1] += 1
    determinants = exact_determinants(whole)
    assert [int(x) for x in determinants[:2]] == [0, 0]
    assert int(determinants[2]) == eliminate(whole[2])[0] != 0


@given(hnp.arrays(np.int64, st.tuples(st.integers(0, 30), st.integers(1, 4)), elements=st.integers(-2, 2)))
def test_distinct_rows_match_numpy(rows):
    np.testing.assert_array_equal(select_distinct_rows(rows), np.unique(rows, axis=0))


@pytest.mark.parametrize("size", [2**20, 2**25, 2**28])
def test_large_products_are_exact_within_and_beyond_float_range(size):
    rng = np.random.default_rng(0)
    left, right = rng.integers(-size, size + 1, (400, 3)), rng.integers(-size, size + 1, (3, 200))
    np.testing.assert_array_equal(exact_product(left, right), left.astype(object) @ right.astype(object))
