"""The size of the square by its candidates, for every home of a random town."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm.errors import ConfigurationError
from dphmm.hide.fixed_squares import Square
from dphmm.hide.square_size import choose_square
from dphmm.hide.street_inference import find_candidates
from dphmm.hide.zone import HiddenZone
from dphmm.tables.street_map import StreetMap


@pytest.fixture(scope="module")
def town():
    """Return a map of 2,000 addresses in 6.4 km, denser in the south-west (seed 3)."""
    south, west, north, east = Square.around(45.01, -30.01, 6.4).box
    shares = np.random.default_rng(3).beta(1, 2, (2000, 2))
    homes = [south, west] + shares * [north - south, east - west]
    return StreetMap(homes[:2], np.array([[0, 1]]), np.ones(1), np.zeros(1, np.int64), np.zeros((0, 2)), homes)


@pytest.mark.slow
def test_every_home_in_chosen_square_yields_it(town):
    homes = town.addresses[::40]
    squares = {tuple(home): choose_square(town, *home.tolist(), 50, 0.3) for home in homes}
    assert len(set(squares.values())) > 2
    for square in set(squares.values()):
        low_south, low_west, high_north, high_east = square.box
        for home, other in squares.items():
            is_inside = low_south <= home[0] < high_north and low_west <= home[1] < high_east
            assert is_inside == (other == square)
        zone = HiddenZone(square, square.side_km / 2)
        assert find_candidates(town, zone).effective_number >= 49  # sides of cells differ by up to 1 %


@pytest.mark.slow
def test_smallest_square_by_its_own_count_would_differ_between_homes(town):
    """The broken twin: the smallest square with 50 candidates around each home."""
    homes = town.addresses[::80]

    def find_smallest_square(home):
        for level in range(5, 0, -1):
            square = Square.around(*home.tolist(), 12.8 / 2**level)
            if find_candidates(town, HiddenZone(square, square.side_km / 2)).effective_number >= 50:
                return square
        return None

    squares = [find_smallest_square(home) for home in homes]
    is_nested = [
        any(other and square and other.level > square.level and other.row >> (other.level - square.level) == square.row
            and other.column >> (other.level - square.level) == square.column for other in squares)
        for square in squares
    ]  # fmt: skip
    assert any(is_nested)


def test_too_few_candidates_raise_with_number(town):
    with pytest.raises(ConfigurationError, match=r"--among 5000 needs .* has \d+: use"):
        choose_square(town, 45.01, -30.01, 5000, 0.3)
