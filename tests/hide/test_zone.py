"""Zones at random places on the Earth: their points, border and stops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphmm.errors import InvalidInputError
from dphmm.hide.fixed_squares import Square, distance_outside
from dphmm.hide.zone import Gate, HiddenZone, Stretch, tolerance_km

ZONE = HiddenZone(Square.around(45.01, -30.01, 0.75), 0.5)


def make_gate(angle, ahead=None):
    """Return a gate just outside the zone in this direction, and a position 200 m farther on."""
    turn = np.array([np.cos(angle), np.sin(angle)])
    point = turn / np.abs(turn).max() * (ZONE.half_km + 0.01)
    return Gate(point, point + 0.2 * (turn if ahead is None else np.asarray(ahead)))


@pytest.mark.parametrize("kind", ["walking", "cycling", "driving"])
def test_crossing_counts_as_stop_if_it_takes_two_minutes_longer_than_straight_way(kind):
    zone = HiddenZone(ZONE.square, 0.5, kind)
    gates = make_gate(0.3), make_gate(2.0)
    speed = {"walking": 5.1, "cycling": 16.0, "driving": 53.7}[kind]
    straight = 3600 * np.hypot(*(gates[0].point - gates[1].point)) / speed
    times = (straight + 119, straight + 121)
    assert [zone.is_stop(Stretch(*gates, seconds)) for seconds in times] == [False, True]
    assert zone.is_stop(Stretch(*gates, times[0], has_stop=True))


@given(st.floats(-84, 84), st.floats(-180, 180), st.sampled_from([0.1, 0.5, 8.0]), st.integers(0, 99))
def test_zone_contains_exactly_the_points_of_its_square_in_the_plane(latitude, longitude, within, seed):
    zone = HiddenZone(Square.around(latitude, longitude, 1.5 * within), within)
    rng = np.random.default_rng(seed)
    plane = rng.uniform(-1.2, 1.2, (200, 2)) * zone.half_km * rng.choice([1, 1, 30], 200)[:, None]
    places = zone.projection.to_latlon(plane)
    expected = np.abs(zone.projection.to_plane(*places.T)).max(axis=1) <= zone.half_km
    assert np.array_equal(zone.contains(*places.T), expected)
    away = np.hypot(*np.maximum(np.abs(plane) - zone.half_km, 0).T)
    margin = rng.uniform(0, 60, 200)
    assert zone.may_be_near(*places.T, margin)[away <= margin].all()
    if within < 1:
        assert not zone.may_be_near(*places.T, 0.0)[away > 4 * zone.half_km].any()


def test_zone_at_date_line_contains_ring_on_both_sides():
    for longitude in (179.9999, -179.9999, 180.0):
        zone = HiddenZone(Square.around(45.0, longitude, 0.75), 0.5)
        south, west, north, east = zone.square.box
        assert {west, east} & {-180.0, 180.0}
        middle = (south + north) / 2
        assert zone.contains([middle] * 3, [179.995, -179.995, 180.0]).all()
        assert not zone.contains([middle] * 2, [179.97, -179.97]).any()


@given(st.floats(-80, 80), st.floats(-180, 180), st.sampled_from([0.05, 0.1, 0.3, 0.392, 0.5, 2.0]), st.randoms())
def test_locations_outside_core_by_tolerance_are_farther_than_distance_from_border(latitude, longitude, within, dice):
    square = Square.around(latitude, longitude, 1.5 * within)
    zone, reach = HiddenZone(square, within), tolerance_km(square, within)
    assert reach >= 0.1 * within * (1 - 1e-9)
    side = dice.choice([-1, 1])
    outside = zone.projection.to_latlon([side * (square.side_km / 2 + reach), dice.uniform(-0.4, 0.4) * square.side_km])
    assert distance_outside(square, *outside.T)[0] == pytest.approx(reach, abs=1e-5)
    assert zone.half_km - np.abs(zone.projection.to_plane(*outside.T)).max() > within


@given(st.floats(-80, 80), st.floats(-179, 179), st.sampled_from([0.1, 0.3, 0.5, 2.0]), st.randoms())
def test_zone_boundary_is_farther_than_distance_from_every_core_position(latitude, longitude, within, dice):
    square = Square.around(latitude, longitude, 1.5 * within)
    zone = HiddenZone(square, within)
    south, west, north, east = square.box
    inner = np.array([(dice.uniform(south, north), dice.uniform(west, east)) for _ in range(20)])
    inner = np.concatenate([inner, [(south, west), (south, east), (north, west), (north, east)]])
    core = zone.projection.to_plane(*inner.T)
    sides = zone.corners[:4, None] + np.linspace(0, 1, 25)[:, None] * (zone.corners[1:] - zone.corners[:4])[:, None]
    apart = np.hypot(*(core[:, None] - sides.reshape(-1, 2)).transpose(2, 0, 1))
    assert apart.min() > within


@pytest.mark.parametrize(("within", "kind"), [(0.0, "cycling"), (9.0, "cycling"), (0.5, "everyday")])
def test_invalid_distance_or_activity_raises(within, kind):
    with pytest.raises(InvalidInputError):
        HiddenZone(Square.around(45.01, -30.01, 0.75), within, kind)
