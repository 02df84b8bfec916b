"""Fixed squares: each contains its places, they nest, and their sides are correct."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphmm.errors import CoordinateError
from dphmm.hide.fixed_squares import Square, distance_outside, is_certainly_far
from dphmm.space.projection import LocalProjection

PLACES = st.tuples(st.floats(-84, 84), st.floats(-180, 180))


@given(PLACES, st.floats(0.02, 12.8))
def test_place_lies_in_smallest_square_of_required_side(place, minimum):
    square = Square.around(*place, minimum)
    south, west, north, east = square.box
    assert south - 1e-9 <= place[0] <= north + 1e-9
    assert west - 1e-9 <= place[1] <= east + 1e-9
    assert minimum <= square.side_km or square.level == 0
    assert square.side_km < 2 * minimum or square.level == 9


@given(PLACES, st.floats(0, 1), st.floats(0, 1))
def test_places_of_square_share_it_and_squares_nest(place, up, right):
    square = Square.around(*place, 0.8)
    south, west, north, east = square.box
    other = (south + (0.001 + 0.998 * up) * (north - south), west + (0.001 + 0.998 * right) * (east - west))
    if abs(other[0]) <= 84 and abs(other[1]) <= 180:
        assert Square.around(*other, 0.8) == square
        small, large = Square.around(*other, 0.1), Square.around(*other, 6.4)
        assert (small.row >> 3, small.column >> 3) == (square.row, square.column)
        assert (square.row >> 3, square.column >> 3) == (large.row, large.column)


@pytest.mark.slow
@given(PLACES)
def test_sides_match_stated_length_to_two_percent(place):
    square = Square.around(*place, 0.8)
    south, west, north, east = square.box
    sides = [(side + 180) % 360 - 180 for side in (west, east)]  # over the date line too
    corners = LocalProjection(*square.centre).to_plane([south, south, north, north], [*sides, *sides])
    wide = np.hypot(*(corners[[1, 3]] - corners[[0, 2]]).T)
    high = np.hypot(*(corners[2:] - corners[:2]).T)
    np.testing.assert_allclose([wide, high], 0.8, rtol=0.02)


@pytest.mark.parametrize(
    ("place", "minimum"), [((89, 0), 1), ((0, 181), 1), ((0, 0), 0), ((0, 0), 13), ((np.nan, 0), 1)]
)
def test_invalid_place_or_length_raises(place, minimum):
    with pytest.raises(CoordinateError):
        Square.around(*place, minimum)


@pytest.mark.slow
@given(st.floats(-84, 84), st.floats(0, 0.2), st.sampled_from([-180, 180]), st.sampled_from([0.1, 0.8, 12.8]))
def test_squares_at_date_line_contain_locations_in_their_whole_width(latitude, degrees, date_line, side):
    """The part of a square with valid longitudes is as wide as elsewhere, to 2 %."""
    square = Square.around(latitude, date_line - np.copysign(degrees, date_line), side)
    south, west, north, east = square.box
    west, east = max(west, -180.0), min(east, 180.0)
    across = LocalProjection(*square.centre).to_plane([(south + north) / 2] * 2, [west, east])
    assert np.hypot(*(across[1] - across[0])) == pytest.approx(square.side_km, rel=0.02)


@pytest.mark.parametrize("level", [0, 4, 9])
@pytest.mark.parametrize("latitude", [-84.0, -33.3, 0.0, 45.01, 71.2, 84.0])
def test_columns_of_a_row_cover_all_longitudes_without_overlap(latitude, level):
    side = 12.8 / 2**level
    first, last = (Square.around(latitude, longitude, side) for longitude in (-180, 180 - 1e-9))
    assert Square.around(latitude, 180, side) == first
    assert (first.box[1], last.box[3]) == (-180, 180)
    for column in np.linspace(first.column, last.column - 1, 50).astype(int).tolist():
        square, beyond = (Square(level, first.row, number) for number in (column, column + 1))
        assert square.box[3] == beyond.box[1]
        assert Square.around(latitude, sum(square.box[1::2]) / 2, side) == square
    with pytest.raises(CoordinateError):
        Square(level, first.row, last.column + 1)


@pytest.mark.parametrize("latitude", [-80, -45, 0, 60, 84])
def test_location_within_two_sides_outside_a_square_is_not_certainly_far(latitude):
    """Compare with the projection at 500 random locations for each latitude (seed 3)."""
    rng = np.random.default_rng(3)
    for level in (0, 4):
        square = Square.around(latitude, 179.9, 12.8 / 2**level)
        points = LocalProjection(*square.centre).to_latlon(rng.uniform(-8, 8, (500, 2)) * square.side_km)
        outside = distance_outside(square, *points.T) / square.side_km
        far = np.array([is_certainly_far(square, *point) for point in points])
        assert (outside[far] > 2).all()
        assert far[outside > 4.5].all()
