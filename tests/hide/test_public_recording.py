"""Tests of the lines of a published recording."""

from __future__ import annotations

import numpy as np

from dphmm.hide.public_recording import build_public_recording
from tests.hide.test_recording_points import make_points
from tests.hide.test_zone import ZONE


def test_lines_are_broken_at_zones_and_pauses_only():
    away = ZONE.half_km + 1
    rows = [(away + 0.01 * number, number) for number in range(40)]
    rows += [(row + 0.4, second + 100) for row, second in rows]
    rows += [(-row, second + 3000) for row, second in rows]
    points = make_points(rows, segments=np.arange(len(rows)))
    latitude, longitude = ZONE.square.centre
    points.values.latitude[:] += latitude - 45
    points.values.longitude[:] = longitude
    public, errors = build_public_recording(points, [ZONE], (), True, None)
    assert not errors.any()
    assert [len(segment) for segment in public.segments] == [40, 40, 40, 40]
    untimed, _ = build_public_recording(points, [ZONE], (), False, None)
    assert [len(segment) for segment in untimed.segments] == [80, 80]
    whole, _ = build_public_recording(points, [], (), False, None)
    assert [len(segment) for segment in whole.segments] == [80, 80], "the jump of 5 km is a pause"
