"""What is taken down of releases while they are made tells in hindsight what a replay of them tells."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm import Grid, MarkovModel, ReleaseSettings
from dphmm.audit.sequence import HindsightRecorder, ReleasedSequence, in_hindsight, replay_sequence
from dphmm.errors import InvalidInputError
from dphmm.model import Observations, filter_releases, smooth_releases
from dphmm.model.point_estimate import point_estimate
from dphmm.release.settings import Schedule
from dphmm.release.trajectory import moments_of
from dphmm.space.trajectory import SlottedTrajectory
from tests.sizes import slow

GRID = Grid.over((45.0, 7.0, 45.02, 7.03), 0.5)
SETTINGS = {
    "plain": ReleaseSettings("utility:1km", 1.0),
    "the likeliest alone": ReleaseSettings("utility:1km", 1.0, delta=0.05, mechanism="planar-laplace"),
    "not always drawn": ReleaseSettings("utility:1km", 1.0, schedule=Schedule(target_error=0.6)),
    "outside omitted": ReleaseSettings("utility:1km", 0.5, outside="omit"),
}


def grid_model(reach: float) -> MarkovModel:
    apart = np.linalg.norm(GRID.points[:, None] - GRID.points, axis=-1)
    moves = np.where(apart <= reach, np.exp(-apart), 0.0)
    return MarkovModel(moves / moves.sum(axis=1, keepdims=True), np.full(GRID.size, 1 / GRID.size), GRID, 60.0)


def walk(seed: int, moments: int = 40) -> SlottedTrajectory:
    """A walk with gaps of up to a day, which leaves the region once."""
    rng = np.random.default_rng(seed)
    slots = 1000 + np.cumsum(rng.choice([1, 1, 1, 2, 9, 40, 1500], moments))
    latitude, longitude = GRID.latlon(rng.integers(0, GRID.size, moments)).T
    latitude[7] += 1.0
    return SlottedTrajectory("ann", 60.0, slots, latitude, longitude)


def heard_and_replayed(model: MarkovModel, settings: ReleaseSettings, seed: int, dropped: int = 0):
    """What both find: of all releases, or with the last ones not heard."""
    engine, track = settings.engine(model, seed), walk(seed)
    heard, records = HindsightRecorder(model, len(track)), []
    for _, record in moments_of(engine, GRID, track):
        records.append(record)
        heard.record(engine)
    steps = np.array([record.steps for record in records])
    first = int(track.slots[0])
    released = np.array([record.released or (0.0, 0.0) for record in records])
    epsilons = np.array([record.epsilon for record in records])
    end = len(records) - dropped
    sequence = ReleasedSequence("ann", released[:end], epsilons[:end], steps[:end], first=first)
    return heard.in_hindsight(engine.measurements.points), in_hindsight(engine.another(), sequence)


@pytest.mark.parametrize("reach", [0.8, slow(10.0)])
@pytest.mark.parametrize("name", SETTINGS)
def test_what_was_heard_tells_what_a_replay_tells(name, reach):
    for seed in range(3):
        found, wanted = heard_and_replayed(grid_model(reach), SETTINGS[name], seed)
        np.testing.assert_allclose(found, wanted, rtol=1e-9, err_msg=f"seed {seed}")


def test_the_oracle_tells_when_later_releases_were_not_heard():
    """The broken twin: a replay that stops before the last five releases."""
    found, wanted = heard_and_replayed(grid_model(0.8), SETTINGS["plain"], 1, dropped=5)
    apart = np.abs(np.array(found)[:, : len(wanted[0])] - wanted)
    assert apart[:, -1].max() > 1e-6


@pytest.mark.parametrize("begins", [(), (0, 9, 20)])
def test_what_replaying_found_is_what_filtering_anew_finds(begins):
    """Also where the releaser forgot what came before some releases, which whoever reads them all does not."""
    model, rng = grid_model(0.8), np.random.default_rng(3)
    steps = np.array([0, *rng.choice([1, 1, 2, 9], 29)])
    released = GRID.points[rng.integers(0, GRID.size, 30)] + 0.25
    forgets = np.isin(np.arange(30), begins) if begins else np.zeros(0, dtype=np.bool_)
    sequence = ReleasedSequence("ann", released, np.full(30, 0.3), steps, begins=forgets)
    engine = ReleaseSettings("utility:1km", 0.3, mechanism="planar-laplace").engine(model, 1)
    found = np.array(in_hindsight(engine, sequence))
    rows = np.array([one.log_likelihood for one in replay_sequence(engine.another(), sequence)])
    observed = Observations(rows, steps)
    smoothed = smooth_releases(model, observed, filter_releases(model, observed))
    wanted = [point_estimate(one.probabilities, engine.measurements.points) for one in smoothed]
    np.testing.assert_allclose(found, np.array([(one.least_error, one.certainty) for one in wanted]).T, rtol=1e-9)


def test_nothing_is_heard_of_an_engine_that_has_released_nothing():
    model = grid_model(0.8)
    with pytest.raises(InvalidInputError, match="made no release"):
        HindsightRecorder(model, 1).record(SETTINGS["plain"].engine(model, 0))
