"""Which moves are possible: against distances between the cells themselves, and by hand."""

from __future__ import annotations

import re

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
from tests.sizes import fewer


def _grid(seed, columns, rows, share):
    mask = np.random.default_rng(seed).random((rows, columns)) < share
    mask[0, 0] = True
    return Grid(LocalProjection(45.0, 7.0), (0, 0), 0.5, columns, rows, mask)


@settings(max_examples=fewer(40, 20))
@given(st.integers(0, 99), st.integers(1, 7), st.integers(1, 7), st.floats(0.2, 1.0), st.floats(0.05, 3.0))
def test_a_move_is_possible_when_the_cells_are_no_further_apart_than_a_step(seed, columns, rows, share, km):
    grid = _grid(seed, columns, rows, share)
    found = SpeedLimit(grid, 60, km * 60)
    cells = [shapely.box(*(grid.lattice[s] * 0.5), *((grid.lattice[s] + 1) * 0.5)) for s in range(grid.size)]
    apart = shapely.distance(np.array(cells)[:, None], np.array(cells)[None])
    assert (found.moves.toarray() == (apart <= km * (1 + 1e-9))).all()
    pairs = np.indices((grid.size, grid.size)).reshape(2, -1)
    numbers = found.find(*pairs)
    assert (numbers >= 0).tolist() == (apart <= km * (1 + 1e-9)).ravel().tolist()
    assert (found.targets[numbers[numbers >= 0]] == pairs[1][numbers >= 0]).all()


def test_rings_are_told_by_distance_alone_and_the_first_is_staying():
    grid = _grid(1, 30, 20, 1.0)
    found = SpeedLimit(grid, 300, 100)
    sources = np.repeat(np.arange(grid.size), np.diff(found.moves.indptr))
    length = np.hypot(*(grid.lattice[sources] - grid.lattice[found.targets]).T)
    assert ((found.rings == 0) == (length == 0)).all()
    order = np.argsort(length, kind="stable")
    assert (np.diff(found.rings[order].astype(int)) >= 0).all()
    assert found.rings.max() < found.ring_count <= 20


def test_places_are_as_near_as_their_widths_allow():
    at = np.array([0.0, 0.009, 0.03, 0.09])  # about 0, 1, 3.3 and 10 km north
    for within, kmh, expected in ((0.5, 1, 2), (1.0, 60, 2), (1.0, 85, 3), (float("inf"), 1, 4)):
        places = Places(list("abcd"), 45 + at, [7.0] * 4, within)
        assert SpeedLimit(places, 60, kmh).moves.toarray()[0].sum() == expected
    assert SpeedLimit(Places(["a"], [45.0], [7.0]), 60).entries == 1


def test_too_many_moves_are_refused_before_they_fill_the_memory(monkeypatch):
    monkeypatch.setattr(reach, "MOST_MOVES", 1000)
    monkeypatch.setattr(reach, "_BLOCK", 1000)
    with pytest.raises(ConfigurationError, match=r"moves between 400 states are possible .* --max-speed"):
        SpeedLimit(_grid(1, 20, 20, 1.0), 300)
    with pytest.raises(ConfigurationError, match="moves between 200 states"):
        SpeedLimit(Places([f"p{i}" for i in range(200)], 45 + np.arange(200) / 1e4, [7.0] * 200), 300)
    assert SpeedLimit(_grid(1, 10, 10, 1.0), 1, 1.0).entries <= 1000


def test_that_moves_are_too_many_is_known_after_an_eighth_of_the_states():
    """What half of the limit was reached with after an eighth of the states is four times the limit in the end."""
    limit = reach.MOST_MOVES
    with pytest.raises(ConfigurationError, match=re.escape(f"about {4 * limit:.2g} moves between 800 states")):
        reach._check_count(limit // 2, 100, 800)
    reach._check_count(limit // 2, 99, 800)  # too early to tell
    reach._check_count(limit // 2, 400, 800)  # the limit itself


@pytest.mark.parametrize("speed", [0.0, -1.0, float("nan"), float("inf")])
def test_a_speed_is_positive(speed):
    with pytest.raises(ConfigurationError, match="max_speed_kmh"):
        SpeedLimit(_grid(1, 3, 3, 1.0), 60, speed)


def test_at_any_speed_that_is_a_number_everywhere_is_within_reach():
    assert SpeedLimit(_grid(1, 3, 3, 1.0), 60, 1e300).moves.toarray().all()


def test_a_move_names_states_that_exist():
    with pytest.raises(StateError, match="0 to 8"):
        SpeedLimit(_grid(1, 3, 3, 1.0), 60).find([0], [9])
