"""Tests of the attack metrics against values computed by hand."""

from __future__ import annotations

from dataclasses import replace
from math import isnan

import numpy as np
import pytest

from dphmm.attack import AttackOutcome, MeshMovement, Posterior, Track, attack_tracks
from dphmm.attack.deployed_channels import AndroidCoarse, Exact
from dphmm.attack.noise_channel import ObfuscatedTrack
from dphmm.attack.outcomes import ChannelResult
from dphmm.errors import StochasticError
from dphmm.space import Trajectory
from tests.attack.scene import build_moves, build_track, walk


def make_track(chain: MeshMovement, points, released, slots=None, begins=None) -> tuple[Track, ObfuscatedTrack]:
    user_track = build_track(
        chain, np.array(points), np.arange(len(points)) + 1000 if slots is None else np.array(slots), begins
    )
    return user_track, ObfuscatedTrack(np.array(released, dtype=float), None)


def test_outcome_metrics_match_values_by_hand():
    chain = build_moves(2, 1)
    user_track, obfuscated = make_track(
        chain,
        [[0.01, 0.01], [0.11, 0.01], [0.11, 0.21], [-0.09, 0.21]],
        [[0.04, 0.05], [0.24, 0.01], [np.nan, np.nan], [-0.09, 0.11]],
    )
    posterior = Posterior.empty(user_track, chain)
    posterior.smoothed[:, user_track.states[0]] = [1.0, 0.4, 1.0, 0.0]
    posterior.smoothed[:, user_track.states[3]] += [0.0, 0.6, 0.0, 1.0]
    outcome = AttackOutcome.from_posterior(user_track, obfuscated, posterior)
    assert outcome.released_error_m == pytest.approx((50 + 130 + 100) / 3)
    # The third timestep is withheld: the true path at the others is (0.01, 0.01), (0.11, 0.01), (-0.09, 0.21).
    assert outcome.length_ratio == pytest.approx(
        (np.hypot(0.2, 0.04) + np.hypot(0.33, 0.1)) / (0.1 + np.hypot(0.2, 0.2))
    )
    assert outcome.withheld_share == pytest.approx(0.25)
    assert outcome.max_posterior == pytest.approx((1 + 0.6 + 1 + 1) / 4)
    assert outcome.top_1_accuracy == pytest.approx(0.75)
    middle, other = chain.grid.points[user_track.states[0]], chain.grid.points[user_track.states[3]]
    estimates = [middle, 0.4 * middle + 0.6 * other, middle, other]
    assert outcome.smoothed_error_m == pytest.approx(
        1000 * np.hypot(*(np.array(estimates) - user_track.points).T).mean()
    )
    assert outcome.filtered_error_m == pytest.approx(1000 * np.hypot(*user_track.points.T).mean())


def test_length_ratio_is_that_of_whole_tracks_at_timesteps_with_release():
    """The true track at the releases has sides of 30, 40 and 50 m, without the detour."""
    chain = build_moves(2, 1)
    slots = [1000, 1001, 1002, 1003, 1400]
    true = np.array([[0, 0], [0.03, 0], [0.2, 0.2], [0.03, 0.04], [0, 0]])
    released = [[0, 0.1], [0, 0.16], [np.nan, np.nan], [0.08, 0.16], [0.08, 0.32]]  # sides of 60, 80 and 160 m
    restarts = np.array([True, False, False, False, True])
    user_track, obfuscated = make_track(chain, true, released, slots, restarts)
    posterior = Posterior.empty(user_track, chain)
    assert AttackOutcome.from_posterior(user_track, obfuscated, posterior).length_ratio == pytest.approx(300 / 120)


@pytest.mark.parametrize("num_released", [0, 1, 2])
def test_length_ratio_is_missing_without_a_true_path(num_released):
    chain = build_moves(2, 1)
    released = np.full((3, 2), np.nan)
    released[:num_released] = np.arange(2 * num_released).reshape(-1, 2) / 10
    user_track, obfuscated = make_track(chain, [[0.1, 0.1], [0.1, 0.1], [-0.1, 0.1]], released)  # the user rests first
    outcome = AttackOutcome.from_posterior(user_track, obfuscated, Posterior.empty(user_track, chain))
    assert isnan(outcome.length_ratio)


def test_home_is_mean_of_nights_and_its_estimate_uses_night_mass():
    chain = build_moves(2, 1)
    night = np.arange(12, 15) * 6  # 12 to 14 h UTC are 10 to 12 h at 30 W
    day, night = night, night - 60  # 2 to 4 h UTC are 0 to 2 h there
    user_track, obfuscated = make_track(
        chain, [[0.1, 0.1], [0.12, 0.1], [-0.1, 0.1], *3 * [[-0.1, -0.1]]], np.zeros((6, 2)), [*night, *day]
    )
    assert user_track.is_night.tolist() == [True, True, True, False, False, False]
    np.testing.assert_allclose(user_track.home, [0.11, 0.1])
    posterior = Posterior.empty(user_track, chain)
    posterior.smoothed[:3, user_track.states[0]] = [0.9, 0.9, 0.1]
    posterior.smoothed[:3, user_track.states[2]] = [0.1, 0.1, 0.9]
    posterior.smoothed[3:, user_track.states[3]] = 1.0
    posterior.smoothed_cell_means[0, user_track.states[0]] = [0.05, 0.1]
    outcome = AttackOutcome.from_posterior(user_track, obfuscated, posterior)
    middle = chain.grid.points[user_track.states[0]]
    guess = (0.9 * np.array([0.05, 0.1]) + 1.0 * middle) / 1.9
    assert outcome.home_error_m == pytest.approx(1000 * np.hypot(*(guess - [0.11, 0.1])))
    with_home = replace(posterior, home=np.array([0.11, 0.13]))
    assert AttackOutcome.from_posterior(user_track, obfuscated, with_home).home_error_m == pytest.approx(30)


def test_user_without_nights_has_usual_place_but_no_home():
    chain = build_moves(2, 1)
    user_track, obfuscated = make_track(chain, [[0.1, 0.1], [0.1, 0.1], [-0.1, 0.1]], np.zeros((3, 2)), [72, 73, 74])
    assert user_track.home is None
    np.testing.assert_allclose(user_track.usual_place, [0.1, 0.1])
    posterior = Posterior.empty(user_track, chain)
    outcome = AttackOutcome.from_posterior(user_track, obfuscated, posterior)
    assert isnan(outcome.home_error_m)
    result = ChannelResult("a", "b", (outcome,), 200.0)
    assert result.homes == (0, 0)
    assert result.to_dict()["users"][0]["home_error_m"] is None
    assert result.to_dict()["top_1_accuracy_margin"] is None


def test_homes_and_means_ignore_missing_values():
    first = AttackOutcome(
        user="a",
        num_fixes=3,
        filtered_error_m=100.0,
        smoothed_error_m=50.0,
        max_posterior=0.5,
        top_1_accuracy=0.5,
        home_error_m=150.0,
        released_error_m=10.0,
        length_ratio=1.0,
        withheld_share=0.0,
    )
    second = replace(first, user="b", smoothed_error_m=150.0, home_error_m=250.0, released_error_m=float("nan"))
    result = ChannelResult("a", "b", (first, second), 200.0)
    assert result.homes == (1, 2)
    assert result.estimate_mean("smoothed_error_m").mean == 100.0
    assert result.estimate_mean("smoothed_error_m").margin == pytest.approx(
        63.657 * 50.0, rel=1e-3
    )  # Student's t, one degree
    assert result.estimate_mean("released_error_m").mean == 10.0


def test_track_restarts_after_a_day_or_an_impossible_move():
    chain = build_moves(2, 1)
    matrix = chain.model.transition.toarray()
    matrix[0, 3] = 0.0
    matrix /= matrix.sum(axis=1, keepdims=True)
    chain = MeshMovement(type(chain.model)(matrix, chain.model.initial, chain.grid, 600.0), 1)
    places = chain.grid.latlon([0, 3, 3, 0, 0])
    seconds = np.array([0, 600, 1200, 1800, 1800 + 86400 + 600]) + 600 * 1000
    outside = np.array([[46.0, -30.0]])
    trajectory = Trajectory(
        "ann",
        np.append(seconds, seconds[-1] + 600).astype("datetime64[s]").astype("datetime64[us]"),
        *np.concatenate([places, outside]).T,
    )
    user_track = Track.from_trajectory(trajectory, chain, 100)
    assert user_track is not None
    assert user_track.states.tolist() == [0, 3, 3, 0, 0]
    assert user_track.restarts.tolist() == [True, True, False, False, True]
    assert len(Track.from_trajectory(trajectory, chain, 2) or ()) == 2
    away = Trajectory("ann", trajectory.times, np.full(6, 46.0), np.full(6, -30.0))
    assert Track.from_trajectory(away, chain, 100) is None


def test_unexplained_release_raises_with_channel_and_user():
    chain = build_moves(2, 1)
    user_track = build_track(chain, chain.grid.points[[0, 1]] + 0.01, np.array([0, 1]))
    with pytest.raises(StochasticError, match="torn, user ann: release 1"):
        attack_tracks([user_track], [_Torn()], chain, 200.0, 0)


class _Torn(Exact):
    """The exact location, but the second release is impossible from every state."""

    name: str = "torn"

    def log_likelihood_rows(self, obfuscated, moves, steps):
        rows = super().log_likelihood_rows(obfuscated, moves, steps)
        rows[1] = -np.inf
        return rows


@pytest.mark.parametrize("seed", range(4))
def test_android_offset_beyond_adversary_lattice_does_not_fail(seed, monkeypatch):
    chain = build_moves(4, 1, seed)
    user_track = walk(chain, 8, np.random.default_rng(seed))
    far = 2500.0 * np.array([[1, 0], [-1, 0], [0, 1], [0, -1]])[seed]
    plain = AndroidCoarse.obfuscate_with_offsets
    monkeypatch.setattr(
        AndroidCoarse, "obfuscate_with_offsets", lambda self, places, _: plain(self, places, np.tile(far, (8, 1)))
    )
    result = attack_tracks([user_track], [AndroidCoarse()], chain, 200.0, 0)[0]
    assert result.outcomes[0].smoothed_error_m < 1500
