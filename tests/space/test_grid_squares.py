"""Squares that are the same for everybody: they hold their places, lie in one another, and are as wide as they say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphmm.errors import CoordinateError
from dphmm.space.grid import Square
from dphmm.space.states import LocalProjection

PLACES = st.tuples(st.floats(-84, 84), st.floats(-180, 180))


@given(PLACES, st.floats(0.02, 12.8))
def test_a_place_lies_in_its_square_which_is_the_smallest_that_is_wide_enough(place, least):
    made = Square.around(*place, least)
    south, west, north, east = made.box
    assert south - 1e-9 <= place[0] <= north + 1e-9
    assert west - 1e-9 <= place[1] <= east + 1e-9
    assert least <= made.side_km or made.level == 0
    assert made.side_km < 2 * least or made.level == 9


@given(PLACES, st.floats(0, 1), st.floats(0, 1))
def test_every_place_in_a_square_has_it_and_a_smaller_one_lies_within_a_larger(place, up, right):
    made = Square.around(*place, 0.8)
    south, west, north, east = made.box
    other = (south + (0.001 + 0.998 * up) * (north - south), west + (0.001 + 0.998 * right) * (east - west))
    if abs(other[0]) <= 84 and abs(other[1]) <= 180:
        assert Square.around(*other, 0.8) == made
        small, large = Square.around(*other, 0.1), Square.around(*other, 6.4)
        assert (small.row >> 3, small.column >> 3) == (made.row, made.column)
        assert (made.row >> 3, made.column >> 3) == (large.row, large.column)


@given(PLACES)
def test_sides_are_as_long_as_they_say_to_two_percent(place):
    made = Square.around(*place, 0.8)
    south, west, north, east = made.box
    sides = [(side + 180) % 360 - 180 for side in (west, east)]  # over the date line too
    corners = LocalProjection(*made.centre).to_plane([south, south, north, north], [*sides, *sides])
    wide = np.hypot(*(corners[[1, 3]] - corners[[0, 2]]).T)
    high = np.hypot(*(corners[2:] - corners[:2]).T)
    np.testing.assert_allclose([wide, high], 0.8, rtol=0.02)


@pytest.mark.parametrize(("place", "least"), [((89, 0), 1), ((0, 181), 1), ((0, 0), 0), ((0, 0), 13), ((np.nan, 0), 1)])
def test_what_is_no_place_and_no_length_is_refused(place, least):
    with pytest.raises(CoordinateError):
        Square.around(*place, least)
