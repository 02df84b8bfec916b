"""Tests of deployed rounding against values by hand, published values and a transcription."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dphmm.attack.deployed_channels import AndroidCoarse, GridSnapping, Meshtastic, Rounding, snap_to_grid
from tests.attack.scene import build_moves, build_track, walk


@pytest.mark.parametrize(
    ("bits", "coordinate", "wanted"),
    [
        # 0x17B01A1B masked with 0xFFF80000 is 0x17B00000; half a step, 0x00040000, is added.
        (13, 0x17B01A1B, 0x17B40000),
        (16, 0x17B01A1B, 0x17B08000),  # masked with 0xFFFF0000 it is 0x17B00000, and 0x8000 is added
        (10, 525_200_000, 526_385_152),  # 525,200,000 // 2**22 * 2**22 + 2**21
        (32 - 1, 7, 7),  # the last bit is cleared and 1 is added
        # Minus one is 0xFFFFFFFF: 0xFFFF8000 is minus 2**15, and half a step of 2**15 is added.
        (17, -1, -(2**14)),
        (13, -1_184_000_000, -1_184_104_448),  # floor(-1,184,000,000 / 2**19) is -2259, times 2**19, plus 2**18
        (1, 1_800_000_000, 2**30),
    ],
)
def test_meshtastic_masks_bits_and_adds_half_step(bits, coordinate, wanted):
    assert Meshtastic(bits).truncate(np.array([coordinate])).tolist() == [wanted]


def test_meshtastic_bits_match_distances_shown_by_apps():
    """Metres as specified for Meshtastic's app for Apple devices (Meshtastic-Apple issue 519)."""
    published = {11: 11672.7369, 12: 5836.3629, 13: 2918.1759, 14: 1459.0824, 15: 729.5356, 16: 364.7622}
    for bits, metres in published.items():
        half = float(Meshtastic(bits).compute_half_sizes(np.zeros((1, 2)))[0, 0]) * 40_075_016.7 / 360
        assert half == pytest.approx(metres, rel=2e-4)


def test_meshtastic_matches_observed_radio_output():
    """46.87462 N 7.14670 E was received as …7.89756 N 7.15653 E.

    Reported in issue 5545 of the firmware (2.5.14) for the setting '2.9 km'.
    """
    snapped_place = Meshtastic(13).snap(np.array([46.87462]), np.array([7.14670]))
    assert snapped_place.round(5).tolist() == [[46.89756, 7.15653]]


def test_meshtastic_sends_centre_of_rectangle():
    channel, rng = Meshtastic(15), np.random.default_rng(0)
    latitude, longitude = rng.uniform(-80, 80, 500), rng.uniform(-179, 179, 500)
    released = channel.snap(latitude, longitude)
    away = np.abs(released - np.column_stack([latitude, longitude]))
    assert (away <= channel.compute_half_sizes(released) + 1e-7).all()
    assert (channel.snap(*released.T) == released).all()


def _round(value: float) -> float:
    """Round like Java's ``Math.round``."""
    return math.floor(value + 0.5)


def _create_coarse(
    latitude: float, longitude: float, north: float, east: float, accuracy: float
) -> tuple[float, float]:
    """Transcribe createCoarse statement by statement, away from poles and the date line."""
    longitude += east / 111_000 / math.cos(math.radians(latitude))
    latitude += north / 111_000
    step = accuracy / 111_000
    latitude = _round(latitude / step) * step
    step = accuracy / 111_000 / math.cos(math.radians(latitude))
    return latitude, _round(longitude / step) * step


def test_android_matches_transcribed_source():
    rng, channel = np.random.default_rng(4), AndroidCoarse()
    places = np.column_stack([rng.uniform(-60, 60, 200), rng.uniform(-170, 170, 200)])
    offsets = rng.normal(0, 500, (200, 2))
    wanted = [_create_coarse(*place, *offset, 2000.0) for place, offset in zip(places, offsets, strict=True)]
    np.testing.assert_allclose(channel.obfuscate_with_offsets(places, offsets), wanted, rtol=0, atol=1e-11)


def test_android_without_offset_matches_values_by_hand():
    """52.52 * 55.5 = 2914.86 is rounded to 2915 steps.

    13.405 * 55.5 * cos(52.52...) = 452.67 is rounded to 453.
    """
    latitude = 2915 * 2 / 111
    longitude = 453 * 2 / 111 / math.cos(math.radians(latitude))
    result = snap_to_grid(np.array([52.52]), np.array([13.405]), 2000.0)
    np.testing.assert_allclose(result, [[latitude, longitude]], atol=1e-12)
    np.testing.assert_allclose(GridSnapping(2.0).snap(np.array([52.52]), np.array([13.405])), result)


def test_poles_and_date_line_stay_on_earth():
    result = snap_to_grid(np.array([89.99999, -89.99999, 0.0]), np.array([179.99, -179.99, 179.999]), 2000.0)
    assert (np.abs(result) <= [90.0, 180.0]).all()


def test_android_offset_moves_hourly_and_keeps_its_spread():
    chain, channel = build_moves(2), AndroidCoarse()
    user_track = walk(chain, 200, np.random.default_rng(0))
    assert np.flatnonzero(channel.find_offset_updates(user_track)).tolist() == list(
        range(6, 200, 6)
    )  # timesteps of ten minutes
    late = build_track(chain, user_track.points[:4], np.array([0, 3, 40, 43]))
    assert channel.find_offset_updates(late).tolist() == [
        False,
        False,
        True,
        False,
    ]  # directly after a gap, then an hour later
    offsets, rest, hour = channel.build_offset_chain()
    np.testing.assert_allclose(rest @ hour, rest, atol=1e-12)
    np.testing.assert_allclose(hour.sum(axis=1), 1.0)
    middle = len(offsets) // 2
    assert (hour[middle] @ (offsets - offsets[middle]) ** 2) ** 0.5 == pytest.approx(0.03 * 500, rel=0.3)
    assert (rest @ offsets**2) ** 0.5 == pytest.approx(500, rel=0.05)


def test_rounding_is_to_nearest_digit():
    assert Rounding(2).snap(np.array([45.126]), np.array([-30.124])).tolist() == [[45.13, -30.12]]
    assert Rounding(0).compute_half_sizes(np.zeros((1, 2))).tolist() == [[0.5, 0.5]]


def test_position_in_border_sliver_has_one_cell():
    chain, channel = build_moves(2), Rounding(3)
    user_track = walk(chain, 3, np.random.default_rng(0))
    obfuscated = channel.obfuscate(user_track, chain, np.random.default_rng(0))
    obfuscated.observed[1] = [45.1, -30.1]
    obfuscated.points[1] = chain.grid.projection.to_plane(45.1, -30.1)[0]
    rows = channel.log_likelihood_rows(obfuscated, chain, slice(0, 3))
    assert np.isfinite(rows[1]).sum() == 1
