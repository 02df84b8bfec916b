"""Tests of attacks on count tables: they succeed on raw counts and fail on noise."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from scipy.special import ndtr

from dphmm.jobs.attack.flows import (
    HOURS,
    _compute_auc_interval,
    compute_membership_auc,
    compute_recovered_share,
    compute_worst_decile,
    recover_tracks,
    round_counts,
)

POINTS = np.array([[0.0, 0.0], [5.0, 0.0], [0.0, 9.0], [30.0, 30.0], [1.0, 1.0]])


def count_per_area(tracks):
    return np.stack([np.bincount(at, minlength=len(POINTS)) for at in tracks.T])


def test_regular_tracks_are_recovered_from_counts():
    tracks = np.repeat([[0], [1], [1], [2], [3]], 2 * HOURS, axis=1)
    tracks[0, 9:17] = 4  # leaves and returns
    tracks[0, HOURS + 9 : HOURS + 17] = 4
    recovered = recover_tracks(count_per_area(tracks), POINTS)
    assert (count_per_area(recovered) == count_per_area(tracks)).all()
    assert compute_recovered_share(recovered, tracks) > 0.95


def test_recovered_share_uses_best_assignment():
    rng = np.random.default_rng(2)
    recovered, true = rng.integers(0, 3, (4, 12)), rng.integers(0, 3, (4, 12))
    best = max((recovered[list(order)] == true).mean() for order in permutations(range(4)))
    assert compute_recovered_share(recovered, true) == pytest.approx(best)


def test_whole_counts_are_nonnegative_and_sum_to_number_of_users():
    noisy = np.random.default_rng(1).normal(1, 3, (50, 7))
    noisy[3] = -1
    whole = round_counts(noisy, 20)
    assert (whole.sum(axis=1) == 20).all()
    assert whole.min() >= 0


def test_membership_is_inferred_from_raw_but_not_from_noisy_counts():
    """Chance level is 0.5. A mean of 8 x 40 x 40 pairs deviates by less than 0.15.

    The seed is fixed.
    """
    rng = np.random.default_rng(5)
    cells = np.stack([rng.choice(200, 10, replace=False) for _ in range(40)])
    raw = compute_membership_auc(cells, 200, range(8), lambda counts, _: counts, 80, rng)
    noisy = compute_membership_auc(
        cells, 200, range(8), lambda counts, generator: counts + generator.laplace(0, 200, 200), 80, rng
    )
    hidden = compute_membership_auc(cells, 200, range(8), lambda counts, _: np.zeros_like(counts), 80, rng)
    assert raw.mean() > 0.95
    assert abs(noisy.mean() - 0.5) < 0.15
    assert (hidden == 0.5).all()


def test_most_exposed_users_of_guessed_tables_are_guessed():
    """The largest tenth of 400 guesses exceeds 0.5 by 0.13.

    Selected by other tables, it deviates by less than 0.04.
    """
    guesses = np.random.default_rng(2).normal(0.5, 0.075, (400, 2))
    assert compute_worst_decile(guesses) == pytest.approx(0.5, abs=0.04)
    exposed = np.where(np.arange(400) % 10 == 3, 0.9, 0.5)
    assert compute_worst_decile(np.column_stack([exposed, exposed])) == pytest.approx(0.9)
    one_half = np.array([[0.9, 0.5], [0.5, 0.7], [0.4, 0.6]])
    assert compute_worst_decile(one_half) == pytest.approx((0.5 + 0.5) / 2)


def test_interval_contains_auc_of_normal_scores():
    """The AUC of normal scores one apart is Φ(1/√2): 99 % of the intervals contain it."""
    draws = np.random.default_rng(3).normal(size=(300, 2, 30))
    aucs = [float((with_[:, None] + 1 > without).mean()) for with_, without in draws]
    intervals = [_compute_auc_interval(auc, 30) for auc in aucs]
    assert np.mean([low <= ndtr(0.5**0.5) <= high for low, high in intervals]) >= 0.99
    # A share of 30 has a standard deviation of at most 0.5/√30, and 99 % of a normal distribution are within 2.58.
    assert max(high - low for low, high in intervals) < 2 * 2.58 * 0.5 / 30**0.5


def test_halves_of_evaluation_tables_have_tables_with_and_without_target():
    cells = np.arange(12).reshape(6, 2)
    for rounds in (4, 5, 6, 7):
        aucs = compute_membership_auc(cells, 12, range(3), lambda counts, _: counts, rounds, np.random.default_rng(0))
        np.testing.assert_array_equal(aucs, np.ones((3, 2)))
