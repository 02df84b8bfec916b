"""Tests of channels: the adversary's beliefs are calibrated if users move as assumed."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import norm

from dphmm.attack import MeshMovement, Track, attack_tracks
from dphmm.attack.deployed_channels import (
    AndroidCoarse,
    Exact,
    FixedOffset,
    Gaussian,
    GridSnapping,
    Hourly,
    Meshtastic,
    NoRelease,
    PlanarLaplace,
    Rounding,
    TrimmedHome,
    UniformDisc,
)
from dphmm.attack.noise_channel import Channel, ObfuscatedTrack, ReleaseChannel, TableChannel
from dphmm.errors import ConfigurationError, StochasticError
from dphmm.model import MarkovModel
from dphmm.release import Releaser, ReleaseSettings
from dphmm.space import Places
from tests.attack.scene import STEP, build_grid, build_moves, build_track, walk
from tests.sizes import choose_count

# The test is two-sided.
#
# It compares the mean over users of a statistic with mean zero with its standard error.
ALPHA = 1e-3
NUM_USERS = choose_count(80, 50)
STEPS = 14
SEED = 20241107


@dataclass(frozen=True)
class AnyZone(TrimmedHome):
    """A trimmed zone with a random centre on the lattice, as the adversary assumes."""

    def obfuscate(self, track: Track, moves: MeshMovement, rng: np.random.Generator) -> ObfuscatedTrack:
        centres = self.list_centres(moves.grid)
        hidden = np.hypot(*(track.points - centres[rng.integers(len(centres))]).T) <= self.radius_km
        return ObfuscatedTrack(np.where(hidden[:, None], np.nan, track.points), None)


@dataclass(frozen=True)
class SquaredOffset(AndroidCoarse):
    """An offset that is constant and uniform over a square of the adversary's lattice."""

    def obfuscate(self, track: Track, moves: MeshMovement, rng: np.random.Generator) -> ObfuscatedTrack:
        offsets, rest, _ = self.build_offset_chain()
        sampled = offsets[rng.choice(len(offsets), 2, p=rest)] + (offsets[1] - offsets[0]) * (rng.random(2) - 0.5)
        places = np.column_stack([track.latitude, track.longitude])
        released = self.obfuscate_with_offsets(places, np.tile(sampled, (len(track), 1)))
        return ObfuscatedTrack(moves.grid.projection.to_plane(*released.T), released)


@dataclass(frozen=True)
class NewEachTime(Hourly):
    """A wrong variant that treats a repeated release as a new one."""

    def log_likelihood_rows(self, obfuscated: ObfuscatedTrack, moves: MeshMovement, steps: slice) -> np.ndarray:
        last = np.maximum.accumulate(np.where(obfuscated.observed >= 0, np.arange(len(obfuscated.observed)), 0))
        there = obfuscated.observed[last][steps, None] == np.arange(len(moves.mesh.points))
        return np.where(there, 0.0, -20.0)


def compute_excess(channel: Channel, broken: Channel | None = None, chain: MeshMovement | None = None) -> float:
    """Return the excess belief in the truth over its expectation, in standard errors.

    The expected probability of the true cell under a calibrated belief p is the sum of the squares of p.
    """
    chain = chain or build_moves(4, 3, seed=1, stay=0.75, redrawn=0.1)
    differences = []
    for index in range(NUM_USERS):
        rng = np.random.default_rng([SEED, index])
        user_track = walk(chain, STEPS, rng)
        obfuscated = channel.obfuscate(user_track, chain, rng)
        posterior = (broken or channel).posterior(obfuscated, user_track, chain)
        gaps = []
        for belief in (posterior.filtered, posterior.smoothed):
            np.testing.assert_allclose(belief.sum(axis=1), 1.0, atol=1e-9)
            gaps.append(belief[np.arange(STEPS), user_track.states] - (belief**2).sum(axis=1))
        differences.append(np.mean(gaps))
    return float(np.mean(differences) / (np.std(differences, ddof=1) / NUM_USERS**0.5))


FRESH = [Gaussian(0.2), UniformDisc(0.3), PlanarLaplace(0.25)]
SNAPPED = [Rounding(2), Rounding(3), GridSnapping(0.4), Meshtastic(16)]
STATEFUL = [AnyZone(0.3), SquaredOffset(2.0), Hourly(1)]


@pytest.mark.slow
@pytest.mark.parametrize("channel", [*FRESH, *SNAPPED, *STATEFUL], ids=lambda channel: channel.name)
def test_beliefs_are_calibrated(channel):
    assert abs(compute_excess(channel)) < norm.ppf(1 - ALPHA / 2)


@pytest.mark.parametrize("offset", [0.1, 0.3])
def test_beliefs_under_fixed_offset_are_calibrated(offset):
    chain = build_moves(
        4, 1, seed=1, stay=0.75, redrawn=1.0
    )  # an offset also reveals parts of cells, which this test does not examine
    assert abs(compute_excess(FixedOffset(offset, fineness=6), chain=chain)) < norm.ppf(1 - ALPHA / 2)


BROKEN = {
    "half the noise": (Gaussian(0.2), Gaussian(0.1)),
    "a smaller disc": (PlanarLaplace(0.25), PlanarLaplace(0.12)),
    "another number of bits": (Meshtastic(16), Meshtastic(17)),
    "a larger zone": (AnyZone(0.15), AnyZone(0.5)),
    "repeats as new releases": (Hourly(1), NewEachTime(1)),
    "a smaller offset": (FixedOffset(0.3, fineness=6), FixedOffset(0.1, fineness=6)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_adversary_with_wrong_channel_is_detected(name):
    """Each wrong channel fails the calibration test or makes releases impossible."""
    channel, broken = BROKEN[name]
    try:
        deviation = abs(compute_excess(channel, broken))
    except StochasticError:
        return  # no possible state could have produced a release
    assert deviation > norm.ppf(1 - ALPHA / 2)


@pytest.mark.slow
def test_repeated_deterministic_release_adds_no_evidence_and_fresh_noise_averages_out():
    chain = build_moves(3, 5, seed=2, stay=0.98, redrawn=0.0)
    user_track = walk(chain, 60, np.random.default_rng(5))
    staying = [walk(chain, 60, np.random.default_rng([1, number])) for number in range(12)]
    fresh = attack_tracks(staying, [Gaussian(0.3)], chain, 200.0, 0)[0]
    assert fresh.estimate_mean("smoothed_error_m").mean < fresh.estimate_mean("released_error_m").mean / 2
    rows = Rounding(2).posterior(Rounding(2).obfuscate(user_track, chain, np.random.default_rng(0)), user_track, chain)
    assert rows.smoothed.max() < 1.0


def test_posterior_without_releases_equals_model_prediction():
    chain = build_moves(3, 1)
    user_track = walk(chain, 6, np.random.default_rng(0))
    posterior = NoRelease().posterior(
        NoRelease().obfuscate(user_track, chain, np.random.default_rng(0)), user_track, chain
    )
    wanted = [chain.initial @ np.linalg.matrix_power(chain.transition_matrix(1), t) for t in range(6)]
    np.testing.assert_allclose(posterior.filtered, wanted, atol=1e-12)


def test_exact_channel_is_known_to_part_of_cell():
    chain = build_moves(3, 5)
    user_track = walk(chain, 20, np.random.default_rng(0))
    posterior = Exact().posterior(Exact().obfuscate(user_track, chain, np.random.default_rng(0)), user_track, chain)
    assert np.abs(posterior.smoothed_means - user_track.points).max() <= chain.mesh.cell_km / 2 + 1e-9
    assert (posterior.smoothed.argmax(axis=1) == user_track.states).all()


def test_fixed_offset_samples_each_lattice_point_of_disc_once():
    chain = build_moves(3, 1)
    user_track = walk(chain, 10, np.random.default_rng(0))
    wanted = {(x, y) for x in range(-40, 41) for y in range(-40, 41) if x * x + y * y <= 40**2}
    sampled = []
    for number in range(len(wanted)):
        rng = SimpleNamespace(integers=lambda end, number=number: number if end == len(wanted) else None)
        moved = FixedOffset(0.5).obfuscate(user_track, chain, rng).points - user_track.points
        assert np.ptp(moved, axis=0).max() < 1e-12
        sampled.append(tuple(np.rint(moved[0] / 0.0125).tolist()))
    assert len(sampled) == len(set(sampled))
    assert set(sampled) == wanted


@pytest.mark.parametrize("radius_km", [2, 50, 1000])
def test_offset_wider_than_region_reveals_no_location_of_stationary_user(radius_km):
    """Each cell has equally many offsets, so its probability is that of staying in it."""
    chain, channel = build_moves(4, 5, seed=1), FixedOffset(radius_km)
    user_track = build_track(chain, np.tile(chain.grid.points[6] + [0.03, 0.04], (5, 1)), 1000 + np.arange(5))
    obfuscated = channel.obfuscate(user_track, chain, SimpleNamespace(integers=lambda end: end // 2 + 1))
    wanted = chain.initial * np.diag(chain.transition_matrix(1)) ** 4
    posterior = channel.posterior(obfuscated, user_track, chain)
    np.testing.assert_allclose(posterior.smoothed, np.tile(wanted / wanted.sum(), (5, 1)), atol=1e-9)


def test_trimmed_home_drops_only_positions_near_home():
    chain, channel = build_moves(4, 1), TrimmedHome(0.3)
    user_track = walk(chain, 40, np.random.default_rng(0))
    points = channel.obfuscate(user_track, chain, np.random.default_rng(0)).points
    centre = np.rint(user_track.usual_place / 0.06) * 0.06
    near = np.hypot(*(user_track.points - centre).T) <= 0.3
    assert (np.isnan(points[:, 0]) == near).all()
    assert (points[~near] == user_track.points[~near]).all()


@pytest.mark.slow
def test_beliefs_under_engine_releases_are_calibrated():
    chain = build_moves(4, 3, seed=1, stay=0.75, redrawn=0.1)
    channel = ReleaseChannel(ReleaseSettings("utility:500m", 2.0))
    assert abs(compute_excess(channel, chain=chain)) < norm.ppf(1 - ALPHA / 2)


def test_beliefs_under_table_channel_are_calibrated():
    chain = build_moves(4, 1, seed=1, stay=0.75)
    table = np.random.default_rng(0).dirichlet(np.full(5, 0.5), 16)
    places = np.full((5, 2), np.nan)
    assert abs(compute_excess(TableChannel("mine", table, places), chain=chain)) < norm.ppf(1 - ALPHA / 2)


def test_models_unsupported_by_passes_raise():
    cells = build_grid(2)
    named = Places(list("abcd"), *cells.latlon().T)
    with pytest.raises(ConfigurationError, match="cells of a grid as states, got Places"):
        MeshMovement(MarkovModel(np.full((4, 4), 0.25), np.full(4, 0.25), named, STEP))
    wide = build_grid(50, 0.05)
    with pytest.raises(ConfigurationError, match=r"model must have at most 2,048 states .*2,500"):
        MeshMovement(MarkovModel(np.eye(wide.size), np.full(wide.size, 1 / wide.size), wide, STEP))
    with pytest.raises(ConfigurationError, match=r"parts must be an integer in \[1, 20\]"):
        MeshMovement(MarkovModel(np.full((4, 4), 0.25), np.full(4, 0.25), cells, STEP), parts=0)


def test_hourly_repeats_first_position_of_each_span():
    chain = build_moves(4, 3)
    points = chain.mesh.points[[0, 5, 40, 80, 81, 100, 7]]
    slots = np.array([1005, 1006, 1010, 1012, 1018, 1023, 1024])  # spans of 2 h begin at 996, 1008 and 1020
    user_track = build_track(chain, points, slots)
    obfuscated = Hourly(2).obfuscate(user_track, chain, np.random.default_rng(0))
    np.testing.assert_array_equal(obfuscated.points, points[[0, 0, 2, 2, 2, 5, 5]])
    rows = Hourly(2).log_likelihood_rows(obfuscated, chain, slice(None))
    assert [np.isfinite(row).sum() for row in rows] == [1, 144, 1, 144, 144, 1, 144]
    assert (rows[[0, 2, 5], [0, 40, 100]] == 0).all()


@pytest.mark.slow
def test_rounding_matches_nearest_decimal_degree():
    chain = build_moves(4, 1)
    user_track = build_track(chain, chain.mesh.points[[0, 6, 15]], np.array([3, 4, 5]))
    released = Rounding(2).obfuscate(user_track, chain, np.random.default_rng(0)).observed
    for (north, east), index in zip(released.tolist(), range(3), strict=True):
        for value, true in ((north, user_track.latitude[index]), (east, user_track.longitude[index])):
            nearest = min((Fraction(k, 100) for k in range(-4000, 6000)), key=lambda x: abs(x - Fraction(float(true))))
            assert value == float(nearest)


@pytest.mark.parametrize("is_broken", [False, True])
def test_daily_budget_lasts_across_track_restarts(is_broken, monkeypatch):
    """The track restarts six times in four hours.

    The broken variant forgets the epsilon spent.
    """
    chain, spent = build_moves(8, 1, seed=1), list[float]()
    user_track = build_track(chain, chain.mesh.points[np.arange(24) % 16], 1000 + np.arange(24), np.arange(24) % 4 == 0)
    draw, resume = Releaser.draw, Releaser.resume

    def draw_and_count(self, step, state):
        spent.append(step.epsilon)
        return draw(self, step, state)

    monkeypatch.setattr(Releaser, "draw", draw_and_count)
    if is_broken:
        monkeypatch.setattr(Releaser, "resume", lambda self, belief, count, account=None: resume(self, belief, count))
    ReleaseChannel(ReleaseSettings.for_a_day(20.0, policy="utility:250m")).obfuscate(
        user_track, chain, np.random.default_rng(3)
    )
    assert np.count_nonzero(spent) > 1
    assert (sum(spent) > 20) == is_broken
