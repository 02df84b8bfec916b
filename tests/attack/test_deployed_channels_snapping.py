"""The arithmetic of deployed rounding: numbers worked out by hand, published ones, and a plain transcription."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dphmm.attack.deployed_channels import AndroidCoarse, GridSnapping, Meshtastic, Rounding, snapped
from tests.attack.scene import moves, track, walk


@pytest.mark.parametrize(
    ("bits", "coordinate", "wanted"),
    [
        # 0x17B01A1B masked with 0xFFF80000 is 0x17B00000; the middle of the rest is 0x00040000.
        (13, 0x17B01A1B, 0x17B40000),
        (16, 0x17B01A1B, 0x17B08000),  # masked with 0xFFFF0000 it is 0x17B00000, and 0x8000 is added
        (10, 525_200_000, 526_385_152),  # 525,200,000 // 2**22 * 2**22 + 2**21
        (32 - 1, 7, 7),  # the last bit cleared, and 1 added
        # Minus one is 0xFFFFFFFF: 0xFFFF8000 is minus 2**15, and half a step of 2**15 is added.
        (17, -1, -(2**14)),
        (13, -1_184_000_000, -1_184_104_448),  # floor(-1,184,000,000 / 2**19) is -2259, times 2**19, plus 2**18
        (1, 1_800_000_000, 2**30),
    ],
)
def test_meshtastic_masks_and_takes_the_middle(bits, coordinate, wanted):
    assert Meshtastic(bits).truncated(np.array([coordinate])).tolist() == [wanted]


def test_meshtastic_bits_are_the_distances_that_its_apps_name():
    """Metres as the app for Apple's phones was specified to show them (issue 519 of Meshtastic-Apple)."""
    published = {11: 11672.7369, 12: 5836.3629, 13: 2918.1759, 14: 1459.0824, 15: 729.5356, 16: 364.7622}
    for bits, metres in published.items():
        half = float(Meshtastic(bits).around(np.zeros((1, 2)))[0, 0]) * 40_075_016.7 / 360
        assert half == pytest.approx(metres, rel=2e-4)


def test_meshtastic_moves_a_place_whither_a_radio_was_seen_to_move_it():
    """Issue 5545 of the firmware: 46.87462 N 7.14670 E at '2.9 km' was received as …7.89756 N 7.15653 E (2.5.14)."""
    found = Meshtastic(13).snap(np.array([46.87462]), np.array([7.14670]))
    assert found.round(5).tolist() == [[46.89756, 7.15653]]


def test_meshtastic_sends_a_rectangle_to_its_middle():
    channel, rng = Meshtastic(15), np.random.default_rng(0)
    latitude, longitude = rng.uniform(-80, 80, 500), rng.uniform(-179, 179, 500)
    released = channel.snap(latitude, longitude)
    away = np.abs(released - np.column_stack([latitude, longitude]))
    assert (away <= channel.around(released) + 1e-7).all()
    assert (channel.snap(*released.T) == released).all()


def _round(value: float) -> float:
    """``Math.round`` of Java."""
    return math.floor(value + 0.5)


def _coarse(latitude: float, longitude: float, north: float, east: float, accuracy: float) -> tuple[float, float]:
    """createCoarse, statement by statement, away from poles and the date line."""
    longitude += east / 111_000 / math.cos(math.radians(latitude))
    latitude += north / 111_000
    step = accuracy / 111_000
    latitude = _round(latitude / step) * step
    step = accuracy / 111_000 / math.cos(math.radians(latitude))
    return latitude, _round(longitude / step) * step


def test_android_is_its_source_step_by_step():
    rng, channel = np.random.default_rng(4), AndroidCoarse()
    places = np.column_stack([rng.uniform(-60, 60, 200), rng.uniform(-170, 170, 200)])
    offsets = rng.normal(0, 500, (200, 2))
    wanted = [_coarse(*place, *offset, 2000.0) for place, offset in zip(places, offsets, strict=True)]
    np.testing.assert_allclose(channel.blur_with(places, offsets), wanted, rtol=0, atol=1e-11)


def test_android_without_offset_by_hand():
    """52.52 N 13.405 E: 52.52 * 55.5 = 2914.86, so 2915 steps; 13.405 * 55.5 * cos(52.52...) = 452.67, so 453."""
    latitude = 2915 * 2 / 111
    longitude = 453 * 2 / 111 / math.cos(math.radians(latitude))
    found = snapped(np.array([52.52]), np.array([13.405]), 2000.0)
    np.testing.assert_allclose(found, [[latitude, longitude]], atol=1e-12)
    np.testing.assert_allclose(GridSnapping(2.0).snap(np.array([52.52]), np.array([13.405])), found)


def test_the_pole_and_the_date_line_stay_on_the_earth():
    found = snapped(np.array([89.99999, -89.99999, 0.0]), np.array([179.99, -179.99, 179.999]), 2000.0)
    assert (np.abs(found) <= [90.0, 180.0]).all()


def test_androids_offset_moves_once_an_hour_and_keeps_its_spread():
    of, channel = moves(2), AndroidCoarse()
    person = walk(of, 200, np.random.default_rng(0))
    assert np.flatnonzero(channel.moments(person)).tolist() == list(range(6, 200, 6))  # steps of ten minutes
    late = track(of, person.points[:4], np.array([0, 3, 40, 43]))
    assert channel.moments(late).tolist() == [False, False, True, False]  # at once after a gap, then an hour on
    offsets, rest, hour = channel.lattice()
    np.testing.assert_allclose(rest @ hour, rest, atol=1e-12)
    np.testing.assert_allclose(hour.sum(axis=1), 1.0)
    middle = len(offsets) // 2
    assert (hour[middle] @ (offsets - offsets[middle]) ** 2) ** 0.5 == pytest.approx(0.03 * 500, rel=0.3)
    assert (rest @ offsets**2) ** 0.5 == pytest.approx(500, rel=0.05)


def test_rounding_is_to_the_nearest_digit():
    assert Rounding(2).snap(np.array([45.126]), np.array([-30.124])).tolist() == [[45.13, -30.12]]
    assert Rounding(0).around(np.zeros((1, 2))).tolist() == [[0.5, 0.5]]


def test_a_place_in_a_sliver_at_the_border_still_has_a_cell():
    of, channel = moves(2), Rounding(3)
    person = walk(of, 3, np.random.default_rng(0))
    blurred = channel.blur(person, of, np.random.default_rng(0))
    blurred.seen[1] = [45.1, -30.1]
    blurred.points[1] = of.grid.projection.to_plane(45.1, -30.1)[0]
    rows = channel.log_rows(blurred, of, slice(0, 3))
    assert np.isfinite(rows[1]).sum() == 1
