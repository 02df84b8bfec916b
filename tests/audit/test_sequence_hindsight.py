"""Tests of smoothed posteriors: recorded during release, they equal those of a replay."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest

from dphmm import Grid, MarkovModel, Places, ReleaseSettings
from dphmm.audit.sequence import ReleasedSequence, SmoothingRecorder, compute_smoothed_inference, replay_sequence
from dphmm.errors import InvalidInputError
from dphmm.model import Observations, filter_releases, forward_backward, smooth_releases
from dphmm.model.point_estimate import Inference
from dphmm.release.ledger import Account
from dphmm.release.settings import Schedule
from dphmm.release.trajectory_release import release_records
from dphmm.space.trajectory import SlottedTrajectory
from tests.sizes import mark_slow

GRID = Grid.over((45.0, 7.0, 45.02, 7.03), 0.5)
SETTINGS = {
    "plain": ReleaseSettings("utility:1km", 1.0),
    "delta-location set": ReleaseSettings("utility:1km", 1.0, delta=0.05, mechanism="planar-laplace"),
    "scheduled": ReleaseSettings("utility:1km", 1.0, schedule=Schedule(target_error=0.6)),
    "outside dropped": ReleaseSettings("utility:1km", 0.5, outside="drop"),
}


def build_grid_model(reach: float) -> MarkovModel:
    apart = np.linalg.norm(GRID.points[:, None] - GRID.points, axis=-1)
    moves = np.where(apart <= reach, np.exp(-apart), 0.0)
    return MarkovModel(moves / moves.sum(axis=1, keepdims=True), np.full(GRID.size, 1 / GRID.size), GRID, 60.0)


def walk(seed: int, num_steps: int = 40) -> SlottedTrajectory:
    """Return a walk with gaps of up to a day that leaves the region once."""
    rng = np.random.default_rng(seed)
    slots = 1000 + np.cumsum(rng.choice([1, 1, 1, 2, 9, 40, 1500], num_steps))
    latitude, longitude = GRID.latlon(rng.integers(0, GRID.size, num_steps)).T
    latitude[7] += 1.0
    return SlottedTrajectory("ann", 60.0, slots, latitude, longitude)


def record_and_replay(model: MarkovModel, settings: ReleaseSettings, seed: int, dropped: int = 0):
    """Return the recorded and the replayed result.

    The replay omits the last ``dropped`` releases.
    """
    engine, track = settings.engine(model, seed), walk(seed)
    recorder, records = SmoothingRecorder(model), []
    for _, record in release_records(engine, GRID, track):
        records.append(record)
        recorder.record(engine)
    steps = np.array([record.steps for record in records])
    first = int(track.slots[0])
    released = np.array([record.released or (0.0, 0.0) for record in records])
    epsilons = np.array([record.epsilon for record in records])
    end = len(records) - dropped
    sequence = ReleasedSequence("ann", released[:end], epsilons[:end], steps[:end], first_slot=first)
    return recorder.compute_smoothed_inference(engine.measurements.points), compute_smoothed_inference(
        engine.spawn(), sequence
    )


@pytest.mark.slow
@pytest.mark.parametrize("reach", [0.8, mark_slow(10.0)])
@pytest.mark.parametrize("name", SETTINGS)
def test_recorded_posterior_matches_replay(name, reach):
    for seed in range(3):
        recorded, wanted = record_and_replay(build_grid_model(reach), SETTINGS[name], seed)
        np.testing.assert_allclose(recorded, wanted, rtol=1e-9, err_msg=f"seed {seed}")


def test_recorded_posterior_differs_if_replay_drops_releases():
    """The replay stops before the last five releases."""
    recorded, wanted = record_and_replay(build_grid_model(0.8), SETTINGS["plain"], 1, dropped=5)
    apart = np.abs(np.array(recorded)[:, : len(wanted[0])] - wanted)
    assert apart[:, -1].max() > 1e-6


@pytest.mark.parametrize("begins", [(), (0, 9, 20)], ids=["no restarts", "three restarts"])
def test_replayed_posterior_matches_filtering_from_scratch(begins):
    """This includes restarts, which an adversary who uses all releases ignores."""
    model, rng = build_grid_model(0.8), np.random.default_rng(3)
    steps = np.array([0, *rng.choice([1, 1, 2, 9], 29)])
    released = GRID.points[rng.integers(0, GRID.size, 30)] + 0.25
    forgets = np.isin(np.arange(30), begins) if begins else np.zeros(0, dtype=np.bool_)
    sequence = ReleasedSequence("ann", released, np.full(30, 0.3), steps, restarts=forgets)
    engine = ReleaseSettings("utility:1km", 0.3, mechanism="planar-laplace").engine(model, 1)
    result = np.array(compute_smoothed_inference(engine, sequence))
    rows = np.array([replay.log_likelihood for replay in replay_sequence(engine.spawn(), sequence)])
    observed = Observations(rows, steps)
    smoothed = smooth_releases(model, observed, filter_releases(model, observed))
    wanted = [Inference(belief.probabilities, engine.measurements.points) for belief in smoothed]
    np.testing.assert_allclose(
        result,
        np.array([(inference.error_lower_bound, inference.max_probability) for inference in wanted]).T,
        rtol=1e-9,
    )


STOPS = Places(["a", "b", "c"], [45.0, 45.006, 45.0], [7.0, 7.006, 7.012])
MOVES = np.array([[0.9, 0.08, 0.02], [0.1, 0.8, 0.1], [0.01, 0.09, 0.9]])
FIRST = np.array([0.5, 0.3, 0.2])
SESSIONS = [1000, 1001, 1003], [1043, 1044], [1747, 1748, 1750]
PATH = [0, 0, 1, 2, 2, 0, 1, 1]
SMALL_SETTINGS = {
    "constant": ReleaseSettings("complete", 0.7),
    "target": ReleaseSettings("complete", 0.7, schedule=Schedule(target_error=0.47)),
    "budget": ReleaseSettings("complete", 1.0, schedule=Schedule(window_epsilon=1.0, window_seconds=7200.0)),
}


def smooth_by_enumeration(slots: list[int], likelihoods: np.ndarray) -> np.ndarray:
    """Return ``Pr(s_t | z_1..T)``, ``(T, 3)``, by enumeration of all paths."""
    moves = [np.linalg.matrix_power(MOVES, count) for count in np.diff(slots)]
    beliefs = np.zeros((len(slots), 3))
    for path in product(range(3), repeat=len(slots)):
        weight = FIRST[path[0]] * np.prod([likelihoods[t, state] for t, state in enumerate(path)])
        weight *= np.prod([move[pair] for move, pair in zip(moves, pairwise(path), strict=True)])
        beliefs[np.arange(len(slots)), path] += weight
    return beliefs / beliefs.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("forgets", [False, True], ids=["one session", "three sessions"])
@pytest.mark.parametrize("name", SMALL_SETTINGS)
def test_posterior_over_gaps_and_restarts_matches_enumeration(name, forgets, monkeypatch):
    """The adversary keeps the releases before a restart. Blocks have two releases."""
    monkeypatch.setattr(forward_backward, "_BLOCK_ENTRIES", 6)
    model = MarkovModel(MOVES, FIRST, states=STOPS, step_seconds=3600.0)
    engine = SMALL_SETTINGS[name].engine(model, 5)
    recorder = SmoothingRecorder(model)
    records = []
    begins = []
    sessions = SESSIONS if forgets else [[slot for slots in SESSIONS for slot in slots]]
    states, account = iter(PATH), Account()
    for slots in sessions:
        path = [next(states) for _ in slots]
        track = SlottedTrajectory("ann", 3600.0, slots, STOPS.latitude[path], STOPS.longitude[path])
        begins.append(len(records))
        for _, record in release_records(engine, STOPS, track, before=account):
            recorder.record(engine)
            records.append(record)
        account = engine.filter_state.account
    slots = [slot for slots in SESSIONS for slot in slots]
    withheld = np.array([record.withheld for record in records])
    assert withheld.any() == (name != "constant")
    assert not withheld.all()
    sequence = ReleasedSequence(
        "ann",
        np.array([record.released or (0.0, 0.0) for record in records]),
        np.array([record.epsilon for record in records]),
        np.diff(slots, prepend=slots[0]),
        restarts=np.isin(np.arange(len(slots)), begins),
        first_slot=slots[0],
    )
    replays = list(replay_sequence(SMALL_SETTINGS[name].engine(model), sequence))
    exact = smooth_by_enumeration(slots, np.exp([replay.log_likelihood for replay in replays]))
    passes, run_forward_pass = [], forward_backward.run_forward_pass
    monkeypatch.setattr(
        forward_backward, "run_forward_pass", lambda *which: passes.append(len(which[1])) or run_forward_pass(*which)
    )
    error, certainty = recorder.compute_smoothed_inference(engine.measurements.points)
    assert sum(passes) == (5 if forgets else 0), "the engine's beliefs are used up to the first restart"
    np.testing.assert_allclose(certainty, exact.max(axis=1), rtol=1e-9)
    wanted = [Inference(belief, engine.measurements.points).error_lower_bound for belief in exact]
    np.testing.assert_allclose(error, wanted, rtol=1e-9)
    if forgets:  # an adversary who ignores earlier sessions has another posterior
        alone = smooth_by_enumeration(SESSIONS[1], np.exp([replay.log_likelihood for replay in replays[3:5]]))
        assert np.abs(alone - exact[3:5]).max() > 1e-3


def test_recording_engine_without_release_raises():
    model = build_grid_model(0.8)
    with pytest.raises(InvalidInputError, match="no release"):
        SmoothingRecorder(model).record(SETTINGS["plain"].engine(model, 0))
