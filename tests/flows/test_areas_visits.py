"""Visits and trips, against a walk through the fixes one after another."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from dphmm.flows.areas import _EARTH_KM, visits_of

MINUTE = 60_000_000


def walk(times, areas, stay, gap):
    """Visits of one person ``(area, start, end)`` and the trips between them ``(from, to, start)``."""
    runs: list[list[int]] = []
    for time, area in zip(times, areas, strict=True):
        if runs and runs[-1][0] == area and time - runs[-1][2] <= gap:
            runs[-1][2] = time
        else:
            runs.append([area, time, time])
    runs = [one for one in runs if one[2] - one[1] >= stay]
    merged: list[list[int]] = []
    for area, start, end in runs:
        if merged and merged[-1][0] == area and start - merged[-1][2] <= gap:
            merged[-1][2] = end
        else:
            merged.append([area, start, end])
    pairs = pairwise(merged)
    trips = [
        (one[0], two[0], one[2])
        for one, two in pairs
        if one[0] != two[0] and -1 not in (one[0], two[0]) and two[1] - one[2] <= gap
    ]
    return [tuple(one) for one in merged if one[0] != -1], trips


@pytest.mark.parametrize("seed", range(40))
def test_visits_and_trips_are_those_of_a_walk(seed):
    rng = np.random.default_rng(seed)
    stay, gap = int(rng.choice([0, 2, 5])), int(rng.choice([3, 10, 100]))
    people, person, times, areas = [], [], [], []
    for who in range(4):
        n = int(rng.integers(0, 25))
        own = np.cumsum(rng.integers(1, 6, n)) * MINUTE
        where = np.repeat(rng.integers(-1, 3, n), rng.integers(1, 4, n))[:n]
        people.append((own.tolist(), where.tolist()))
        person += [who] * n
        times += own.tolist()
        areas += where.tolist()
    north, east = 50 + rng.random(len(person)), 5 * rng.random(len(person))
    found = visits_of(
        np.array(person, dtype=np.int64), np.array(times, dtype=np.int64), np.array(areas, dtype=np.int64),
        north, east, 60 * stay, 60 * gap,
    )  # fmt: skip
    expected = [walk(*one, stay * MINUTE, gap * MINUTE) for one in people]
    rows = zip(found.person.tolist(), found.area.tolist(), found.start.tolist(), found.end.tolist(), strict=True)
    assert list(rows) == [(who, *one) for who, (visits, _) in enumerate(expected) for one in visits]
    at = found.trips
    ends = np.stack([found.person[at], found.area[at], found.area[at + 1], found.end[at]], axis=1).tolist()
    assert list(map(tuple, ends)) == [(who, *one) for who, (_, trips) in enumerate(expected) for one in trips]
    # Chords of a sphere, whose arcs are the lengths.
    latitude, longitude = np.radians(found.latitude), np.radians(found.longitude)
    level = np.cos(latitude)
    places = np.stack([level * np.cos(longitude), level * np.sin(longitude), np.sin(latitude)], axis=1)
    chords = np.linalg.norm(places[at + 1] - places[at], axis=1)
    np.testing.assert_allclose(found.lengths, 2 * _EARTH_KM * np.arcsin(chords / 2), rtol=1e-9)
