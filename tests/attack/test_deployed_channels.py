"""What the adversary believes of people who move as they assume is right on average, for every channel."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import norm

from dphmm.attack import Moves, Track, attack_tracks
from dphmm.attack.deployed_channels import (
    AndroidCoarse,
    Exact,
    FixedOffset,
    Gaussian,
    GridSnapping,
    Hourly,
    Meshtastic,
    Nothing,
    PlanarLaplace,
    Rounding,
    TrimmedHome,
    UniformDisc,
)
from dphmm.attack.noise_channel import Blurred, Channel, Released, TableChannel
from dphmm.errors import ConfigurationError, StochasticError
from dphmm.model import MarkovModel
from dphmm.release import Releaser, ReleaseSettings
from dphmm.space import Places
from tests.attack.scene import STEP, grid, moves, track, walk
from tests.sizes import fewer

ALPHA, PEOPLE, STEPS, SEED = 1e-3, fewer(80, 50), 14, 20241107
"""Two-sided: the mean of a statistic with mean zero, over people, against its standard error. Held for all channels."""


@dataclass(frozen=True)
class AnyZone(TrimmedHome):
    """The centre is any of the lattice, as the adversary takes it to be."""

    def blur(self, track: Track, moves: Moves, rng: np.random.Generator) -> Blurred:
        centres = self.centres(moves.grid)
        hidden = np.hypot(*(track.points - centres[rng.integers(len(centres))]).T) <= self.radius_km
        return Blurred(np.where(hidden[:, None], np.nan, track.points), None)


@dataclass(frozen=True)
class SquaredOffset(AndroidCoarse):
    """The offset is even over a square of the adversary's lattice and stays."""

    def blur(self, track: Track, moves: Moves, rng: np.random.Generator) -> Blurred:
        offsets, rest, _ = self.lattice()
        drawn = offsets[rng.choice(len(offsets), 2, p=rest)] + (offsets[1] - offsets[0]) * (rng.random(2) - 0.5)
        places = np.column_stack([track.latitude, track.longitude])
        released = self.blur_with(places, np.tile(drawn, (len(track), 1)))
        return Blurred(moves.grid.projection.to_plane(*released.T), released)


@dataclass(frozen=True)
class NewEachTime(Hourly):
    """A repeat is taken for a place told anew."""

    def log_rows(self, blurred: Blurred, moves: Moves, some: slice) -> np.ndarray:
        last = np.maximum.accumulate(np.where(blurred.seen >= 0, np.arange(len(blurred.seen)), 0))
        there = blurred.seen[last][some, None] == np.arange(len(moves.mesh.points))
        return np.where(there, 0.0, -20.0)


def excess(channel: Channel, broken: Channel | None = None, of: Moves | None = None) -> float:
    """How many standard errors the adversary's belief in the truth lies from what they themselves expect it to be.

    Of a belief p that is right the expected probability of the true cell is the sum of the squares of p.
    """
    of = of or moves(4, 3, seed=1, stay=0.75, redrawn=0.1)
    differences = []
    for number in range(PEOPLE):
        rng = np.random.default_rng([SEED, number])
        person = walk(of, STEPS, rng)
        blurred = channel.blur(person, of, rng)
        found = (broken or channel).posterior(blurred, person, of)
        told = []
        for belief in (found.filtered, found.hindsight):
            np.testing.assert_allclose(belief.sum(axis=1), 1.0, atol=1e-9)
            told.append(belief[np.arange(STEPS), person.states] - (belief**2).sum(axis=1))
        differences.append(np.mean(told))
    return float(np.mean(differences) / (np.std(differences, ddof=1) / PEOPLE**0.5))


FRESH = [Gaussian(0.2), UniformDisc(0.3), PlanarLaplace(0.25)]
SNAPPED = [Rounding(2), Rounding(3), GridSnapping(0.4), Meshtastic(16)]
HIDDEN = [AnyZone(0.3), SquaredOffset(2.0), Hourly(1)]


@pytest.mark.parametrize("channel", [*FRESH, *SNAPPED, *HIDDEN], ids=lambda one: one.name)
def test_beliefs_are_right_on_average(channel):
    assert abs(excess(channel)) < norm.ppf(1 - ALPHA / 2)


@pytest.mark.parametrize("offset", [0.1, 0.3])
def test_beliefs_under_a_fixed_offset_are_right_on_average(offset):
    of = moves(4, 1, seed=1, stay=0.75, redrawn=1.0)  # an offset tells parts of cells too, which are not asked about
    assert abs(excess(FixedOffset(offset, fineness=6), of=of)) < norm.ppf(1 - ALPHA / 2)


BROKEN = {
    "half the noise": (Gaussian(0.2), Gaussian(0.1)),
    "a smaller disc": (PlanarLaplace(0.25), PlanarLaplace(0.12)),
    "another number of bits": (Meshtastic(16), Meshtastic(17)),
    "a larger zone": (AnyZone(0.15), AnyZone(0.5)),
    "repeats that are news": (Hourly(1), NewEachTime(1)),
    "a smaller offset": (FixedOffset(0.3, fineness=6), FixedOffset(0.1, fineness=6)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_an_adversary_who_is_told_the_wrong_channel_is_found_out(name):
    """The broken twins: each must fail the test above, or make releases impossible."""
    channel, broken = BROKEN[name]
    try:
        found = abs(excess(channel, broken))
    except StochasticError:
        return  # no possible state could have given a release
    assert found > norm.ppf(1 - ALPHA / 2)


def test_repeating_a_release_without_randomness_is_no_evidence_but_fresh_noise_averages_out():
    of = moves(3, 5, seed=2, stay=0.98, redrawn=0.0)
    person = walk(of, 60, np.random.default_rng(5))
    staying = [walk(of, 60, np.random.default_rng([1, number])) for number in range(12)]
    fresh = attack_tracks(staying, [Gaussian(0.3)], of, 200.0, 0)[0]
    assert fresh.figure("hindsight_m").mean < fresh.figure("released_error_m").mean / 2
    rows = Rounding(2).posterior(Rounding(2).blur(person, of, np.random.default_rng(0)), person, of)
    assert rows.hindsight.max() < 1.0


def test_nothing_released_is_the_model_alone():
    of = moves(3, 1)
    person = walk(of, 6, np.random.default_rng(0))
    found = Nothing().posterior(Nothing().blur(person, of, np.random.default_rng(0)), person, of)
    wanted = [of.initial @ np.linalg.matrix_power(of.matrix(1), t) for t in range(6)]
    np.testing.assert_allclose(found.filtered, wanted, atol=1e-12)


def test_exact_places_are_known_to_a_part_of_a_cell():
    of = moves(3, 5)
    person = walk(of, 20, np.random.default_rng(0))
    found = Exact().posterior(Exact().blur(person, of, np.random.default_rng(0)), person, of)
    assert np.abs(found.estimates - person.points).max() <= of.mesh.cell_km / 2 + 1e-9
    assert (found.hindsight.argmax(axis=1) == person.states).all()


def test_a_fixed_offset_keeps_the_shape_and_is_drawn_within_its_radius():
    of, channel = moves(3, 1), FixedOffset(0.5)
    person = walk(of, 10, np.random.default_rng(0))
    moved = channel.blur(person, of, np.random.default_rng(3)).points - person.points
    assert np.ptp(moved, axis=0).max() < 1e-12
    assert np.hypot(*moved[0]) <= 0.5
    assert len(channel.offsets) == pytest.approx(np.pi * 40**2, rel=0.01)


def test_trimming_leaves_out_what_is_near_home_alone():
    of, channel = moves(4, 1), TrimmedHome(0.3)
    person = walk(of, 40, np.random.default_rng(0))
    points = channel.blur(person, of, np.random.default_rng(0)).points
    centre = np.rint(person.usual_place / 0.06) * 0.06
    near = np.hypot(*(person.points - centre).T) <= 0.3
    assert (np.isnan(points[:, 0]) == near).all()
    assert (points[~near] == person.points[~near]).all()


def test_the_engines_own_releases_are_judged_by_the_densities_that_it_publishes():
    of = moves(4, 3, seed=1, stay=0.75, redrawn=0.1)
    channel = Released(ReleaseSettings("utility:500m", 2.0))
    assert abs(excess(channel, of=of)) < norm.ppf(1 - ALPHA / 2)


def test_a_table_of_everything_is_judged_by_its_columns():
    of = moves(4, 1, seed=1, stay=0.75)
    table = np.random.default_rng(0).dirichlet(np.full(5, 0.5), 16)
    places = np.full((5, 2), np.nan)
    assert abs(excess(TableChannel("mine", table, places), of=of)) < norm.ppf(1 - ALPHA / 2)


def test_models_that_the_passes_cannot_take_are_refused():
    cells = grid(2)
    named = Places(list("abcd"), *cells.latlon().T)
    with pytest.raises(ConfigurationError, match="named places"):
        Moves(MarkovModel(np.full((4, 4), 0.25), np.full(4, 0.25), named, STEP))
    wide = grid(50, 0.05)
    with pytest.raises(ConfigurationError, match="2,500 states and an attack takes at most 2,048"):
        Moves(MarkovModel(np.eye(wide.size), np.full(wide.size, 1 / wide.size), wide, STEP))
    with pytest.raises(ConfigurationError, match="parts are 0"):
        Moves(MarkovModel(np.full((4, 4), 0.25), np.full(4, 0.25), cells, STEP), parts=0)


def test_one_place_in_some_hours_is_the_first_of_each_span_of_the_clock_until_the_next():
    of = moves(4, 3)
    points = of.mesh.points[[0, 5, 40, 80, 81, 100, 7]]
    slots = np.array([1005, 1006, 1010, 1012, 1018, 1023, 1024])  # spans of 2 h begin at 996, 1008 and 1020
    person = track(of, points, slots)
    blurred = Hourly(2).blur(person, of, np.random.default_rng(0))
    np.testing.assert_array_equal(blurred.points, points[[0, 0, 2, 2, 2, 5, 5]])
    rows = Hourly(2).log_rows(blurred, of, slice(None))
    assert [np.isfinite(row).sum() for row in rows] == [1, 144, 1, 144, 144, 1, 144]
    assert (rows[[0, 2, 5], [0, 40, 100]] == 0).all()


def test_rounding_is_the_nearest_decimal_of_degrees():
    of = moves(4, 1)
    person = track(of, of.mesh.points[[0, 6, 15]], np.array([3, 4, 5]))
    released = Rounding(2).blur(person, of, np.random.default_rng(0)).seen
    for (north, east), one in zip(released.tolist(), range(3), strict=True):
        for found, true in ((north, person.latitude[one]), (east, person.longitude[one])):
            nearest = min((Fraction(k, 100) for k in range(-4000, 6000)), key=lambda x: abs(x - Fraction(float(true))))
            assert found == float(nearest)


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_days_budget_lasts_through_what_the_adversary_cannot_follow(is_broken, monkeypatch):
    """Of a person who is taken for a new one six times in four hours; the broken twin forgets what was spent."""
    of, spent = moves(8, 1, seed=1), list[float]()
    person = track(of, of.mesh.points[np.arange(24) % 16], 1000 + np.arange(24), np.arange(24) % 4 == 0)
    draw, resume = Releaser.draw, Releaser.resume

    def drawn(self, step, state):
        spent.append(step.epsilon)
        return draw(self, step, state)

    monkeypatch.setattr(Releaser, "draw", drawn)
    if is_broken:
        monkeypatch.setattr(Releaser, "resume", lambda self, belief, count, account=None: resume(self, belief, count))
    Released(ReleaseSettings.for_a_day(20.0, policy="utility:250m")).blur(person, of, np.random.default_rng(3))
    assert np.count_nonzero(spent) > 1
    assert (sum(spent) > 20) == is_broken
