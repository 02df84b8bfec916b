"""Sublattices contain exactly the integer points of a span."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphmm.mechanisms.lattice_normalizer import Sublattice

small = st.integers(-6, 6)


@pytest.mark.slow
@given(st.lists(st.tuples(small, small, small), max_size=4))
def test_span_points_are_integer_combinations_of_basis(vectors):
    """Compare with floating-point rank, which is safe for these small numbers."""
    lattice = Sublattice(np.array(vectors, dtype=int).reshape(-1, 3))
    rank = int(np.linalg.matrix_rank(np.array(vectors, dtype=float).reshape(-1, 3))) if vectors else 0
    assert lattice.rank == rank
    points = np.array(list(product(range(-3, 4), repeat=3)))
    stacked = [np.linalg.matrix_rank(np.array([*vectors, point], dtype=float)) == rank for point in points]
    assert lattice.contains(points).tolist() == stacked
    inside = points[lattice.contains(points)]
    assert (lattice.coordinates(inside) @ lattice.basis == inside).all()


def test_segment_spans_all_lattice_points_of_its_line():
    line = Sublattice(np.array([(-6, -4), (6, 4)]))
    assert np.abs(line.basis).tolist() == [[3, 2]]
    assert sorted(line.coordinates(np.array([(-6, -4), (3, 2)])).ravel().tolist()) in ([-2, 1], [-1, 2])


def test_full_rank_basis_is_identity():
    assert Sublattice(np.array([(6, 4), (1, 9)])).basis.tolist() == [[1, 0], [0, 1]]
