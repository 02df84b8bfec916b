"""Attacks on tables of counts: they find what is there to find, and nothing where nothing is told."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from dphmm.jobs.flow_attacks import HOURS, membership_areas, recover_tracks, recovered_share, whole_counts

POINTS = np.array([[0.0, 0.0], [5.0, 0.0], [0.0, 9.0], [30.0, 30.0], [1.0, 1.0]])


def counts_of(tracks):
    return np.stack([np.bincount(at, minlength=len(POINTS)) for at in tracks.T])


def test_people_who_stay_are_recovered_from_counts_alone():
    tracks = np.repeat([[0], [1], [1], [2], [3]], 2 * HOURS, axis=1)
    tracks[0, 9:17] = 4  # goes and comes back
    tracks[0, HOURS + 9 : HOURS + 17] = 4
    found = recover_tracks(counts_of(tracks), POINTS)
    assert (counts_of(found) == counts_of(tracks)).all()
    assert recovered_share(found, tracks) > 0.95


def test_the_share_is_that_of_the_best_assignment():
    rng = np.random.default_rng(2)
    found, true = rng.integers(0, 3, (4, 12)), rng.integers(0, 3, (4, 12))
    best = max((found[list(order)] == true).mean() for order in permutations(range(4)))
    assert recovered_share(found, true) == pytest.approx(best)


def test_counts_are_made_whole_with_everyone_at_any_time():
    noisy = np.random.default_rng(1).normal(1, 3, (50, 7))
    noisy[3] = -1
    whole = whole_counts(noisy, 20)
    assert (whole.sum(axis=1) == 20).all()
    assert whole.min() >= 0


def test_membership_is_told_from_raw_tables_and_not_from_drowned_ones():
    """Over eight people; by chance it is 0.5, and a mean of 8 x 40 x 40 pairs is off by less than 0.15 (seed fixed)."""
    rng = np.random.default_rng(5)
    cells = np.stack([rng.choice(200, 10, replace=False) for _ in range(40)])
    raw = membership_areas(cells, 200, range(8), lambda counts, _: counts, 80, rng)
    drowned = membership_areas(cells, 200, range(8), lambda counts, own: counts + own.laplace(0, 200, 200), 80, rng)
    hidden = membership_areas(cells, 200, range(8), lambda counts, _: np.zeros_like(counts), 80, rng)
    assert raw.mean() > 0.95
    assert abs(drowned.mean() - 0.5) < 0.15
    assert (hidden == 0.5).all()
