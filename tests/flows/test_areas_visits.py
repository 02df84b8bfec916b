"""Tests of visits and trips against a sequential walk through the fixes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from dphmm.flows.areas import _EARTH_KM, derive_visits

MINUTE = 60_000_000


def walk(times, areas, stay, gap):
    """Return one user's visits ``(area, start, end)`` and trips ``(from, to, start)``."""
    runs: list[list[int]] = []
    for time, area in zip(times, areas, strict=True):
        if runs and runs[-1][0] == area and time - runs[-1][2] <= gap:
            runs[-1][2] = time
        else:
            runs.append([area, time, time])
    runs = [run for run in runs if run[2] - run[1] >= stay]
    merged: list[list[int]] = []
    for area, start, end in runs:
        if merged and merged[-1][0] == area and start - merged[-1][2] <= gap:
            merged[-1][2] = end
        else:
            merged.append([area, start, end])
    pairs = pairwise(merged)
    trips = [
        (before[0], after[0], before[2])
        for before, after in pairs
        if before[0] != after[0] and -1 not in (before[0], after[0]) and after[1] - before[2] <= gap
    ]
    return [tuple(visit) for visit in merged if visit[0] != -1], trips


@pytest.mark.parametrize("seed", range(40))
def test_visits_and_trips_match_sequential_walk(seed):
    rng = np.random.default_rng(seed)
    stay, gap = int(rng.choice([0, 2, 5])), int(rng.choice([3, 10, 100]))
    tracks = []
    user = []
    times = []
    areas = []
    for index in range(4):
        n = int(rng.integers(0, 25))
        user_times = np.cumsum(rng.integers(1, 6, n)) * MINUTE
        where = np.repeat(rng.integers(-1, 3, n), rng.integers(1, 4, n))[:n]
        tracks.append((user_times.tolist(), where.tolist()))
        user += [index] * n
        times += user_times.tolist()
        areas += where.tolist()
    north, east = 50 + rng.random(len(user)), 5 * rng.random(len(user))
    result = derive_visits(
        np.array(user, dtype=np.int64), np.array(times, dtype=np.int64), np.array(areas, dtype=np.int64),
        north, east, 60 * stay, 60 * gap,
    )  # fmt: skip
    expected = [walk(*data, stay * MINUTE, gap * MINUTE) for data in tracks]
    rows = zip(result.user.tolist(), result.area.tolist(), result.start.tolist(), result.end.tolist(), strict=True)
    assert list(rows) == [(index, *visit) for index, (visits, _) in enumerate(expected) for visit in visits]
    at = result.trips
    ends = np.stack([result.user[at], result.area[at], result.area[at + 1], result.end[at]], axis=1).tolist()
    assert list(map(tuple, ends)) == [(index, *trip) for index, (_, trips) in enumerate(expected) for trip in trips]
    # Chord lengths on a sphere determine the arc lengths.
    latitude, longitude = np.radians(result.latitude), np.radians(result.longitude)
    level = np.cos(latitude)
    places = np.stack([level * np.cos(longitude), level * np.sin(longitude), np.sin(latitude)], axis=1)
    chords = np.linalg.norm(places[at + 1] - places[at], axis=1)
    np.testing.assert_allclose(result.lengths, 2 * _EARTH_KM * np.arcsin(chords / 2), rtol=1e-9)
