"""Distances of releases from predictions, for users of the model and for others."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from dphmm import MarkovModel, ReleaseSettings
from dphmm.jobs import batch, release
from dphmm.jobs.release.prediction_check import ERROR_RATE, MAX_DISTANCE_RATIO, PredictionCheck, PredictionSummary
from dphmm.release.step_noise import StepNoise
from dphmm.release.trajectory_release import release_records
from dphmm.space import Grid, Trajectory
from tests.sizes import choose_count

GRID = Grid.over((45.0, 7.0, 45.03, 7.04), 0.5)
SETTINGS = ReleaseSettings("utility:1km", 3.0)


def build_town() -> MarkovModel:
    """Build a model of users near the centre, most of whom stay."""
    centre = np.exp(-2 * ((GRID.points - GRID.points.mean(axis=0)) ** 2).sum(axis=1))
    centre /= centre.sum()
    return MarkovModel(0.7 * np.eye(GRID.size) + 0.3 * centre, centre, states=GRID, step_seconds=300.0)


def walk(states: np.ndarray) -> Trajectory:
    times = np.datetime64("2024-03-04", "us") + np.arange(len(states)) * np.timedelta64(300, "s")
    return Trajectory("ann", times, *GRID.latlon(states).T)


def compute_ratio(model: MarkovModel, states: np.ndarray, seed: int) -> float:
    engine, check = SETTINGS.engine(model, seed), PredictionCheck()
    for _ in release_records(engine, GRID, walk(states).resample(300.0)):
        check.add(engine)
    assert check.ratio is not None
    return check.ratio


@pytest.mark.slow
def test_ratio_is_one_for_users_of_the_model_and_larger_for_others():
    """Simulate eight users of the model for 60 timesteps.

    Seeds 0 to 7 and 3; 5 standard errors (Student, alpha 0.002).
    """
    model = build_town()
    rng = np.random.default_rng(3)
    ratios = []
    for seed in range(8):
        states = [int(rng.choice(GRID.size, p=model.initial))]
        while len(states) < 60:
            states.append(states[-1] if rng.random() < 0.7 else int(rng.choice(GRID.size, p=model.initial)))
        ratios.append(compute_ratio(model, np.array(states), seed))
    assert abs(np.mean(ratios) - 1) < 5 * np.std(ratios, ddof=1) / np.sqrt(8)
    corners = np.random.default_rng(4).choice([0, GRID.columns - 1, GRID.size - 1], 60)
    assert compute_ratio(model, corners, 0) > MAX_DISTANCE_RATIO


NUM_RUNS = choose_count(1000, 100)
# Type I error 1e-6: exceeded by a binomial variable of that many trials with the probability of a warning.
MAX_FALSE_WARNINGS = int(binom.ppf(1 - 1e-6, NUM_RUNS, ERROR_RATE))


def collect_evidence(settings: ReleaseSettings, num_releases: int) -> np.ndarray:
    """Return the evidence of users of the model (seeds 8 and 9)."""
    model = build_town()
    rng = np.random.default_rng(8)
    evidence = []
    engine = settings.engine(model, 9)
    for _ in range(NUM_RUNS):
        check = PredictionCheck()
        engine.restart()
        state = int(rng.choice(GRID.size, p=model.initial))
        for _ in range(num_releases):
            engine.release(state)
            check.add(engine)
            state = state if rng.random() < 0.7 else int(rng.choice(GRID.size, p=model.initial))
        evidence.append(check.evidence)
    return np.array(evidence)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "num_releases"),
    [({}, 12), ({"delta": 0.3, "noise_scope": "component"}, 4)],
    ids=["plain", "surrogates"],
)
def test_users_of_the_model_cause_warning_in_one_percent_of_runs(options, num_releases):
    """Five standard errors of the mean (normal, alpha 3e-7)."""
    evidence = collect_evidence(ReleaseSettings("utility:1km", 3.0, **options), num_releases)
    assert (evidence >= 1 / ERROR_RATE).sum() <= MAX_FALSE_WARNINGS
    assert evidence.mean() - 1 < 5 * evidence.std() / np.sqrt(len(evidence))


@pytest.mark.slow
def test_rate_of_warnings_fails_if_noise_is_not_expected(monkeypatch):
    """A broken twin: the expected distance is that of exact releases."""
    monkeypatch.setattr(StepNoise, "mean_squared_error", lambda *_: 0.0)
    assert (collect_evidence(ReleaseSettings("utility:1km", 3.0), 12) >= 1 / ERROR_RATE).sum() > MAX_FALSE_WARNINGS


def test_warning_needs_a_large_ratio_and_evidence():
    for ratio, evidence, is_warned in ((2.0, 200.0, True), (2.0, 198.0, False), (1.5, 200.0, False)):
        summary = PredictionSummary(2, 2 * ratio, evidence)
        assert bool(summary.list_warnings()) == is_warned


@pytest.mark.parametrize("is_far", [False, True])
def test_run_warns_of_users_who_move_differently(tmp_path, is_far):
    model = build_town()
    model.save(tmp_path / "m.npz")
    states = np.full(40, model.initial.argmax())
    if is_far:
        states = np.random.default_rng(5).choice([0, GRID.columns - 1, GRID.size - 1], 40)
    lines = [
        f"ann,{time}Z,{latitude},{longitude}"
        for time, (latitude, longitude) in zip(walk(states).times, GRID.latlon(states).tolist(), strict=True)
    ]
    (tmp_path / "ann.csv").write_text("\n".join(["user,time,latitude,longitude", *lines]) + "\n")
    results = (
        release(str(tmp_path / "ann.csv"), model, SETTINGS, rng=1),
        batch(str(tmp_path / "ann.csv"), tmp_path / "run", tmp_path / "m.npz", SETTINGS, rng=1, workers=1),
    )
    for result in results:
        warned = any("move differently from the model" in warning for warning in result.list_warnings())
        assert warned == is_far == (result.to_dict()["prediction_distance_ratio"] > MAX_DISTANCE_RATIO)
