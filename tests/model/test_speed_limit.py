"""Possible transitions under a speed limit, against distances between cells."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import pytest
import shapely
from hypothesis import given, settings
from hypothesis import strategies as st

from dphmm import Grid
from dphmm.errors import ConfigurationError, StateError
from dphmm.model import SpeedLimit
from dphmm.model import speed_limit as reach
from dphmm.space import LocalProjection, Places
from tests.sizes import choose_count


def _make_grid(seed, columns, rows, share):
    mask = np.random.default_rng(seed).random((rows, columns)) < share
    mask[0, 0] = True
    return Grid(LocalProjection(45.0, 7.0), (0, 0), 0.5, columns, rows, mask)


@settings(max_examples=choose_count(40, 20))
@given(st.integers(0, 99), st.integers(1, 7), st.integers(1, 7), st.floats(0.2, 1.0), st.floats(0.05, 3.0))
def test_move_is_possible_if_cell_distance_is_within_one_step(seed, columns, rows, share, km):
    grid = _make_grid(seed, columns, rows, share)
    limit = SpeedLimit(grid, 60, km * 60)
    cells = [shapely.box(*(grid.lattice[s] * 0.5), *((grid.lattice[s] + 1) * 0.5)) for s in range(grid.size)]
    apart = shapely.distance(np.array(cells)[:, None], np.array(cells)[None])
    assert (limit.moves.toarray() == (apart <= km * (1 + 1e-9))).all()
    pairs = np.indices((grid.size, grid.size)).reshape(2, -1)
    numbers = limit.find(*pairs)
    assert (numbers >= 0).tolist() == (apart <= km * (1 + 1e-9)).ravel().tolist()
    assert (limit.targets[numbers[numbers >= 0]] == pairs[1][numbers >= 0]).all()


def test_rings_are_ordered_by_distance_and_start_with_staying():
    grid = _make_grid(1, 30, 20, 1.0)
    limit = SpeedLimit(grid, 300, 100)
    sources = np.repeat(np.arange(grid.size), np.diff(limit.moves.indptr))
    length = np.hypot(*(grid.lattice[sources] - grid.lattice[limit.targets]).T)
    assert ((limit.rings == 0) == (length == 0)).all()
    order = np.argsort(length, kind="stable")
    assert (np.diff(limit.rings[order].astype(int)) >= 0).all()
    assert limit.rings.max() < limit.ring_count <= 20


def test_rings_separate_the_neighbours_of_a_cell():
    limit = SpeedLimit(_make_grid(1, 30, 20, 1.0), 300, 100)
    sources = np.repeat(np.arange(limit.size), np.diff(limit.moves.indptr))
    squares = np.square(limit.space.lattice[sources] - limit.space.lattice[limit.targets]).sum(axis=1)
    for ring, neighbours in enumerate(([0], [1], [2], [4], [5, 8], [9, 10, 13])):
        assert np.unique(squares[limit.rings == ring]).tolist() == neighbours


def test_rings_fit_their_type_at_all_distances():
    lengths = np.logspace(-1, 300, 5000)
    ends = reach._compute_ring_ends(np.inf)
    rings = reach._find_rings(lengths, np.zeros(len(lengths), dtype=bool), ends).astype(int)
    assert (np.diff(rings) >= 0).all()
    assert (rings[0], rings[-1]) == (1, len(ends) + 1)


@pytest.mark.parametrize(("cell_km", "kmh", "step"), [("0.1", 9, 120), ("0.1", 144, 60), ("0.1", 15, 72)])
def test_distance_of_an_exact_number_of_cells_is_possible(cell_km, kmh, step):
    """In floating point, the quotient of distance and cell is less than the integer."""
    cells = Fraction(kmh) * step / 3600 / Fraction(cell_km)
    assert cells.denominator == 1
    assert kmh * step / 3600 / float(cell_km) < cells, "the case is one of rounding"
    grid = Grid(LocalProjection(45.0, 7.0), (0, 0), float(cell_km), 40, 1, np.ones((1, 40), dtype=bool))
    # The nearest corners of two cells are one cell closer than the cells.
    assert SpeedLimit(grid, step, kmh).moves.toarray()[0].sum() == 1 + cells + 1


def test_place_distance_accounts_for_place_widths():
    at = np.array([0.0, 0.009, 0.03, 0.09])  # about 0, 1, 3.3 and 10 km north
    for within, kmh, expected in ((0.5, 1, 2), (1.0, 60, 2), (1.0, 85, 3), (float("inf"), 1, 4)):
        places = Places(list("abcd"), 45 + at, [7.0] * 4, within)
        assert SpeedLimit(places, 60, kmh).moves.toarray()[0].sum() == expected
    assert SpeedLimit(Places(["a"], [45.0], [7.0]), 60).entries == 1


def test_too_many_moves_raise_before_allocation(monkeypatch):
    monkeypatch.setattr(reach, "MAX_MOVES", 1000)
    monkeypatch.setattr(reach, "_BLOCK_MOVES", 1000)
    with pytest.raises(ConfigurationError, match=r"400 states.*--max-speed"):
        SpeedLimit(_make_grid(1, 20, 20, 1.0), 300)
    with pytest.raises(ConfigurationError, match="200 states"):
        SpeedLimit(Places([f"p{i}" for i in range(200)], 45 + np.arange(200) / 1e4, [7.0] * 200), 300)
    assert SpeedLimit(_make_grid(1, 10, 10, 1.0), 1, 1.0).entries <= 1000


def test_move_count_is_extrapolated_after_an_eighth_of_states():
    """Half of the limit after an eighth of the states extrapolates to four times the limit."""
    limit = reach.MAX_MOVES
    with pytest.raises(ConfigurationError, match=re.escape(f"about {4 * limit:.2g} between")):
        reach._check_count(limit // 2, 100, 800)
    reach._check_count(limit // 2, 99, 800)  # too early to extrapolate
    reach._check_count(limit // 2, 400, 800)  # exactly at the limit


@pytest.mark.parametrize("speed", [0.0, -1.0, float("nan"), float("inf")])
def test_invalid_speed_raises(speed):
    with pytest.raises(ConfigurationError, match="max_speed_kmh"):
        SpeedLimit(_make_grid(1, 3, 3, 1.0), 60, speed)


def test_very_large_speed_reaches_all_states():
    assert SpeedLimit(_make_grid(1, 3, 3, 1.0), 60, 1e300).moves.toarray().all()


def test_unknown_state_raises():
    with pytest.raises(StateError, match="0 to 8"):
        SpeedLimit(_make_grid(1, 3, 3, 1.0), 60).find([0], [9])
