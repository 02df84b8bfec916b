"""The private comparison of users' errors and movement with those that a model states."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from scipy.special import gammaincc
from scipy.stats import binom

from dphmm import MarkovModel, ReleaseSettings
from dphmm.jobs import build_blank_model, release
from dphmm.jobs.release.movement_check import ERROR_RATE, LargerErrors, MovementCheck, UserErrors
from dphmm.model.outside_states import OutsideStates, find_border_states
from dphmm.model.path_sampling import PathSampler, sample_paths
from dphmm.space import Grid, SlottedTrajectory, Trajectory
from dphmm.space.states import OUTSIDE
from tests import command_line
from tests.sizes import choose_count

GRID = Grid.over((45.0, 7.0, 45.1, 7.2), 1.0)
SMALL_GRID = Grid.over((45.0, 7.0, 45.05, 7.1), 1.0)
SETTINGS = ReleaseSettings("utility:1km", 1.0)


def build_model(kind: str = "everyday") -> MarkovModel:
    return build_blank_model(GRID, kind=kind, region_map=None).model


def follow(model: MarkovModel, states: np.ndarray, user: str = "ann") -> Trajectory:
    times = np.datetime64("2024-03-04", "us") + np.arange(len(states)) * np.timedelta64(int(model.step), "s")
    return Trajectory(user, times, *model.space.latlon(states).T)


def make_drive(model: MarkovModel) -> Trajectory:
    """Return a trip through the region and back, one way in about an hour: no step is a stay."""
    longitude = np.interp(np.arange(30) % 16, [0, 15], [7.01, 7.19])
    return follow(model, model.space.locate(np.full(30, 45.07), longitude))


def sample_tracks(model: MarkovModel, length: int) -> list[SlottedTrajectory]:
    """Return 80 users of a model (seed 5)."""
    return [follow(model, states).resample(model.step) for states in sample_paths(model, 80, length, rng=5)]


def count_small_p_values(model: MarkovModel, tracks: list[SlottedTrajectory]) -> int:
    check = MovementCheck(model)
    return sum(check.compute_p_value(track) <= 0.05 for track in tracks)


# Type I error 1e-6: exceeded by a binomial variable of 80 trials with probability 0.05.
MAX_SMALL_P_VALUES = int(binom.ppf(1 - 1e-6, 80, 0.05))


@pytest.mark.parametrize(("kind", "length"), [("everyday", 24), ("driving", 40)])
def test_p_values_of_users_of_the_model_are_at_least_uniform(kind, length):
    model = build_model(kind)
    assert count_small_p_values(model, sample_tracks(model, length)) <= MAX_SMALL_P_VALUES


def test_p_values_fail_if_simulated_users_stay_too_often(monkeypatch):
    """A broken twin: nine of ten simulated users do not move."""
    model = build_model("driving")
    tracks = sample_tracks(model, 40)
    step = PathSampler.step

    def step_lazily(self, now, classes):
        return np.where(np.arange(len(now)) % 10 != 0, now, step(self, now, classes))

    monkeypatch.setattr(PathSampler, "step", step_lazily)
    assert count_small_p_values(model, tracks) > MAX_SMALL_P_VALUES


def build_model_with_outside_states() -> MarkovModel:
    """Build a model of users who mostly stay while inside, and drive while outside."""
    border = find_border_states(SMALL_GRID)
    points = SMALL_GRID.points[np.concatenate([np.arange(SMALL_GRID.size), border])]
    distances = np.linalg.norm(points[:, None] - points, axis=2)
    is_outside = np.arange(len(points)) >= SMALL_GRID.size
    moves = np.exp(-distances / np.where(is_outside, 5.0, 0.3)[:, None])
    moves *= np.where(is_outside[:, None] == is_outside, 0.9, 0.1)
    ones = np.ones(len(border))
    outside = OutsideStates(SMALL_GRID.size, border, 2 * ones, 5 * ones, 0.5 * ones)
    initial = np.full(SMALL_GRID.size, 1 / SMALL_GRID.size)
    moves /= moves.sum(axis=1, keepdims=True)
    return MarkovModel(moves, initial, states=SMALL_GRID, step_seconds=300.0, outside=outside)


def sample_tracks_with_outside_states(model: MarkovModel, count: int, length: int) -> list[SlottedTrajectory]:
    """Return users of a model (seed 6). Outside, they are 2 km from a border cell."""
    rng = np.random.default_rng(6)
    ends = np.cumsum(model.transitions[0].toarray(), axis=1)
    contexts = np.empty((count, length), dtype=np.int64)
    contexts[:, 0] = rng.integers(len(ends), size=count)
    for k in range(1, length):
        contexts[:, k] = (ends[contexts[:, k - 1]] < rng.random((count, 1)) * (1 - 1e-9)).sum(axis=1)
    points = SMALL_GRID.points[model.state_of_context]
    centre = (points.min(axis=0) + points.max(axis=0)) / 2
    is_edge = np.isclose(abs(points - centre), abs(points - centre).max(axis=0))
    points[SMALL_GRID.size :] += (2 * np.sign(points - centre) * is_edge)[SMALL_GRID.size :]
    latitude, longitude = SMALL_GRID.projection.to_latlon(points).T
    assert (SMALL_GRID.find_nearest_states(latitude, longitude) == model.state_of_context).all()
    assert ((SMALL_GRID.locate(latitude, longitude) == OUTSIDE) == (np.arange(len(points)) >= SMALL_GRID.size)).all()
    return [SlottedTrajectory("ann", model.step, np.arange(length), latitude[row], longitude[row]) for row in contexts]


NUM_RUNS = choose_count(1000, 100)
# Type I error 1e-6: exceeded by a binomial variable of that many trials with the probability of a warning.
MAX_FALSE_WARNINGS = int(binom.ppf(1 - 1e-6, NUM_RUNS, ERROR_RATE))


def count_false_warnings() -> int:
    """Count the runs with one user, of 24 timesteps, that warn if errors are larger."""
    model = build_model_with_outside_states()
    check = MovementCheck(model)
    tracks = sample_tracks_with_outside_states(model, NUM_RUNS, 24)
    return sum(check.compute_p_value(track) <= ERROR_RATE for track in tracks)


@pytest.mark.slow
def test_users_of_model_with_outside_states_cause_warning_in_one_percent_of_runs():
    assert count_false_warnings() <= MAX_FALSE_WARNINGS


@pytest.mark.slow
def test_rate_of_warnings_fails_if_users_outside_count_as_in_border_state(monkeypatch):
    """A broken twin."""
    monkeypatch.setattr(
        OutsideStates, "locate_contexts", lambda self, space, *degrees: space.find_nearest_states(*degrees)
    )
    assert count_false_warnings() > MAX_FALSE_WARNINGS


def test_long_moves_inside_region_are_detected_by_model_with_outside_states():
    model = build_model_with_outside_states()
    track = follow(model, np.tile([0, model.size - 1], 12)).resample(model.step)
    assert MovementCheck(model).compute_p_value(track) < ERROR_RATE


@pytest.mark.parametrize("lag", [1, 4])
def test_p_value_of_a_lag_matches_exact_shares(lag):
    """Compare 20 users (seed 2) with the matrix power, within five standard errors."""
    model = build_model("driving")
    power = np.linalg.matrix_power(model.transition.toarray(), lag)
    points = model.space.points
    check = MovementCheck(model)
    slots = np.delete(np.arange(30), [7, 8, 15])
    for states in sample_paths(model, 20, len(slots), rng=2).astype(np.int64):
        blocks = [k for k in range(len(slots)) if slots[k] % lag == 0 and slots[k] + lag in slots]
        shares = []
        for begin in blocks:
            end = int(np.flatnonzero(slots == slots[begin] + lag)[0])
            distances = np.linalg.norm(points - points[states[begin]], axis=1)
            shares.append(power[states[begin]][distances >= distances[states[end]] - 1e-9].sum())
        total, count = -np.log(shares).sum(), 4096 // len(blocks)
        error = 5 * np.sqrt(sum((1 - share) / (count * share) for share in np.clip(shares, 1e-3, 1))) + 0.1
        low, high = (gammaincc(len(blocks), max(total + change, 0.0)) for change in (error, -error))
        assert low <= check._compute_lag_p_value(slots, states, lag) <= high


def test_trip_unlike_the_model_warns_in_every_seed_and_users_of_the_model_do_not():
    model = build_model()
    trip = make_drive(model)
    assert MovementCheck(model).compute_p_value(trip.resample(model.step)) < ERROR_RATE
    for seed, states in enumerate(sample_paths(model, 5, 30, rng=3)):
        private = release(trip, model, SETTINGS, rng=seed).to_private_dict()
        assert "moved farther than the model assumes" in private["warnings"][0]
        assert release(follow(model, states), model, SETTINGS, rng=seed).to_private_dict()["warnings"] == []


def test_true_error_is_that_of_diagnostics():
    model = build_model()
    result = release(make_drive(model), model, SETTINGS, rng=1, private_diagnostics=True)
    errors = [1000 * step.diagnostics.estimate_error for step in result.diagnostics]
    assert result.to_private_dict()["median_true_estimate_error_m"] == pytest.approx(np.median(errors), rel=1e-6)


def test_errors_of_true_locations_are_private(tmp_path, monkeypatch):
    """The warning is in private output and on standard error only, of every command."""
    monkeypatch.chdir(tmp_path)
    model = build_model()
    model.save("m.npz")
    trip = make_drive(model)
    rows = [f"ann,{t}Z,{x},{y}" for t, x, y in zip(trip.times, trip.latitude, trip.longitude, strict=True)]
    (tmp_path / "ann.csv").write_text("\n".join(["user,time,latitude,longitude", *rows]) + "\n")
    words = ("ann.csv", "--model", "m.npz", "--policy", "utility:1km", "--epsilon", "1", "--seed", "1", "--json")
    outputs = {"summary": "users.csv", "daily_summary": "days.csv"}
    for command in (
        ("release", *words, "-o", "r.csv", outputs),
        ("release", *words, "-o", "s.csv", "--session", "sessions.db"),
        ("batch", *words, "-o", "run"),
    ):
        result = command_line.run(*command)
        output = json.loads(result.stdout)
        (warning,) = output.pop("private")["warnings"]
        assert f"Warning: {warning}" in result.stderr
        assert "true" not in output["warnings"]
        assert "moved farther" not in json.dumps(output)
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"moved farther" not in path.read_bytes()


def test_warning_accounts_for_the_number_of_users():
    larger_errors = LargerErrors()
    larger_errors.add(UserErrors("ann", np.array([2.0]), 2.0, 1.0, 0.004))
    assert "1 of 1 user moved" in larger_errors.list_warnings()[0]
    larger_errors.add(UserErrors("bob", np.array([0.5]), 0.5, 1.0, 1.0))
    assert larger_errors.list_warnings() == []
    larger_errors.add(UserErrors("eve", np.array([3.0]), 3.0, 1.0, 0.0))
    assert "1 of 3 users" in larger_errors.list_warnings()[0]
    assert "of eve is 3 m, the expected one 1 m" in larger_errors.list_warnings()[0]


def test_models_that_cannot_be_simulated_warn_of_nothing(monkeypatch):
    model = build_model()
    monkeypatch.setattr(sys.modules[MovementCheck.__module__], "_MAX_POSSIBLE_MOVES", 10)
    assert MovementCheck(model).compute_p_value(make_drive(model).resample(model.step)) == 1.0
    single = SlottedTrajectory("ann", model.step, np.array([3]), np.array([45.07]), np.array([7.1]))
    assert MovementCheck(build_model()).compute_p_value(single) == 1.0
