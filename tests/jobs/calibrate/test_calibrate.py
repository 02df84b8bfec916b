"""Tests of calibration: targets are met by the releases, and unreachable ones are refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from itertools import islice
from math import exp, inf, log

import numpy as np
import pandas as pd
import pytest

from dphmm import MarkovModel, PolicyGraph, Releaser, ReleaseSettings
from dphmm.calibrate.simulation import MeanEstimate, iterate_beliefs, simulate
from dphmm.cli.calibrate import _describe_scope
from dphmm.errors import BudgetError, ConfigurationError, InvalidInputError
from dphmm.events import parse_event
from dphmm.jobs import CalibrationTargets, calibrate, learn
from dphmm.jobs.audit.adversaries import build_habit_model, extract_history, read_tracks_by_user
from dphmm.jobs.calibrate.search import BudgetSearch, _collect_plans_by_support
from dphmm.model import sample_paths
from dphmm.model.time_classes import TimeClasses
from dphmm.space import Grid

GRID = Grid.over((45.0, -30.0, 45.02, -29.97), 0.5)
SETTINGS = ReleaseSettings("utility:1km", 7.0)


def build_model(step_seconds: float = 3600.0, start: int | None = None) -> MarkovModel:
    """Return a lazy walk over neighbouring cells, from everywhere or from one cell."""
    near = np.linalg.norm(GRID.points[:, np.newaxis] - GRID.points, axis=2) < 0.6
    moves = 0.2 * near / near.sum(axis=1, keepdims=True) + 0.8 * np.eye(len(near))
    first = np.full(len(near), 1 / len(near)) if start is None else np.eye(len(near))[start]
    return MarkovModel(moves, first, states=GRID, step_seconds=step_seconds)


@pytest.mark.slow
def test_error_target_is_met_by_every_release():
    for start in (None, 0):  # from one cell the constraint sets and the noise grow
        settings = ReleaseSettings("utility:1km", 7.0, allow_singleton=start is not None)
        moves = build_model(start=start)
        calibration = calibrate(moves, settings, CalibrationTargets(error=1.5), num_users=0, horizon_seconds=6 * 3600)
        engine = calibration.settings.engine(moves, 1)
        errors = [engine.release(2).expected_error for _ in range(6)]
        assert min(error for error in errors if error > 0) >= 1.5
        assert min(error for error in errors if error > 0) <= 1.5 * 1.001, "epsilon has four digits"
        assert calibration.achieved.released_error == pytest.approx(errors[-1])


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["optimal", "graph-exponential"])
def test_table_mechanisms_are_calibrated(mechanism):
    """The error is found by bisection and the odds by hops. Users are simulated with tables."""
    settings = ReleaseSettings("utility:600m", 7.0, mechanism=mechanism)
    moves = build_model()
    calibration = calibrate(moves, settings, CalibrationTargets(error=0.6), num_users=2, horizon_seconds=3 * 3600)
    engine = calibration.settings.engine(moves, 1)
    assert 0.6 <= engine.release(2).expected_error <= 0.6 * 1.01
    assert calibration.achieved.released_error >= 0.6
    assert (
        replace(calibration.settings, epsilon=1.02 * calibration.settings.epsilon)
        .engine(moves, 1)
        .release(2)
        .expected_error
        < 0.6
    )
    assert calibration.achieved.simulation.num_users == 2
    odds = calibrate(moves, settings, CalibrationTargets(max_odds_ratio=3.0), num_users=0)
    hops = engine.planner.build_plan(engine.predict()).protection.diameter
    assert odds.epsilon_by_target["max_odds_ratio"] == pytest.approx(log(3.0) / hops)
    with pytest.raises(BudgetError, match=r"error of 100 km: at epsilon 0\.001 it is \S+ km; use a shorter"):
        calibrate(moves, settings, CalibrationTargets(error=100.0), num_users=0)


@pytest.mark.slow
def test_compared_channels_are_ordered_and_attacks_agree_with_simulation():
    """The belief's expected error over cells agrees with distances from true locations.

    32 users of the model for 12 hours, 16 of them attacked, two budgets. Both intervals have confidence 99 %, so a
    figure fails by chance at most once in a hundred. Different budgets do not agree.
    """
    calibration = calibrate(
        build_model(), SETTINGS, CalibrationTargets(error=1.5), num_users=32, horizon_seconds=12 * 3600,
        report_epsilons=[0.3], compare=["exact", "snap:1km", "nothing"],
    )  # fmt: skip
    few, many, exact, snapped, nothing = calibration.channel_results
    assert [result.settings.epsilon for result in (few, many)] == [0.3, calibration.settings.epsilon]
    for measure in ("filtered_error_m", "smoothed_error_m"):
        errors = [result.estimate_mean(measure).mean for result in (exact, snapped, few, nothing)]
        assert errors == sorted(errors), measure
    within = exact.estimate_mean("filtered_error_m")
    assert abs(within.mean - 250 * (2**0.5 + np.arcsinh(1)) / 6) <= within.margin, "of a square of 250 m"

    def agree(simulated, attacked):
        simulated_error, other = (
            simulated.simulation.estimate_mean("estimate_error"),
            attacked.estimate_mean("filtered_error_m"),
        )
        return abs(1000 * simulated_error.mean - other.mean) <= 1000 * simulated_error.margin + other.margin

    assert agree(calibration.report[0], few)
    assert agree(calibration.achieved, many)
    assert not agree(calibration.report[0], many)
    assert not any(np.isfinite(result.estimate_mean("informed_error_m").mean) for result in calibration.channel_results)
    assert (
        calibrate(
            build_model(), SETTINGS, CalibrationTargets(error=1.5), num_users=0, compare=["exact"]
        ).channel_results
        == ()
    )


def test_users_with_earlier_data_are_attacked_in_their_later_half():
    """One user stays at one place with six reports a day. A second user has too few days."""
    times = [f"2024-03-0{day}T{hour:02d}:00:00" for day in (1, 2, 3, 4) for hour in range(8, 14)]
    latitude, longitude = GRID.projection.to_latlon(GRID.points[[3]])[0]
    frame = pd.DataFrame({"user": "a", "time": times, "latitude": latitude, "longitude": longitude})
    both, targets = pd.concat([frame, frame.iloc[:6].assign(user="b")]), CalibrationTargets(window_epsilon=24.0)
    calibration = calibrate(
        build_model(),
        SETTINGS,
        targets,
        num_users=3,
        horizon_seconds=10 * 3600,
        auxiliary_data=both,
        compare=["nothing"],
    )
    released, nothing = calibration.channel_results
    assert [outcome.num_fixes for outcome in nothing.outcomes] == [10], "of the third and the fourth day"
    assert calibration.channel_population == "1 user in the later half of their earlier data"
    assert nothing.estimate_mean("informed_error_m").mean < 0.7 * nothing.estimate_mean("filtered_error_m").mean
    assert (
        released.estimate_mean("informed_error_m").mean
        < released.estimate_mean("filtered_error_m").mean
        < nothing.estimate_mean("filtered_error_m").mean
    )


@pytest.mark.slow
def test_attack_samples_users_if_many_have_earlier_data(monkeypatch):
    """Each user's habits are a model. Thousands do not fit into memory."""
    times = [f"2024-03-0{day}T{hour:02d}:00:00" for day in (1, 2, 3, 4) for hour in (8, 9)]
    latitude, longitude = GRID.projection.to_latlon(GRID.points[[3]])[0]
    frame = pd.DataFrame({"time": times, "latitude": latitude, "longitude": longitude})
    many, learned = pd.concat([frame.assign(user=f"{number:03}") for number in range(90)]), []
    outside = frame.assign(user="a", latitude=latitude + 1)
    away = learn(pd.concat([many, outside]), GRID, step_seconds=3600).model
    assert (
        calibrate(
            away,
            SETTINGS,
            CalibrationTargets(window_epsilon=24.0),
            num_users=0,
            auxiliary_data=outside,
            compare=["nothing"],
        ).channel_results
        == ()
    )
    for name in ("calibrate.calibrate", "audit.adversaries"):
        module = import_module(f"dphmm.jobs.{name}")
        usual = module.build_habit_model
        monkeypatch.setattr(
            module, "build_habit_model", lambda *arguments, usual=usual: learned.append(arguments) or usual(*arguments)
        )
    calibration = calibrate(
        build_model(),
        SETTINGS,
        CalibrationTargets(window_epsilon=24.0),
        num_users=2,
        auxiliary_data=many,
        compare=["nothing"],
    )
    assert len(calibration.channel_results[0].outcomes) == 16
    assert len(learned) == 64 + 16


def test_model_unsupported_by_attacks_is_calibrated_without_attack():
    clock = TimeClasses(tuple(int(hour % 24 >= 20) for hour in range(168)), 3600.0)
    plain = build_model()
    mixed = MarkovModel([plain.transition] * 2, [plain.initial] * 2, GRID, 3600.0, time_classes=clock)
    calibration = calibrate(
        mixed, SETTINGS, CalibrationTargets(error=1.5), num_users=2, horizon_seconds=7200, compare=["exact"]
    )
    assert calibration.channel_results == ()


@pytest.mark.slow
def test_odds_and_certainty_hold_for_releases_and_accumulate_over_time():
    moves = build_model()
    single = calibrate(moves, SETTINGS, CalibrationTargets(max_odds_ratio=3.0), num_users=0)
    eight = calibrate(moves, SETTINGS, CalibrationTargets(max_odds_ratio=3.0), num_users=0, horizon_seconds=8 * 3600)
    assert (single.num_guaranteed_releases, eight.num_guaranteed_releases) == (1, 8)
    assert eight.epsilon_by_target["max_odds_ratio"] == pytest.approx(single.epsilon_by_target["max_odds_ratio"] / 8)
    engine = single.settings.engine(moves, 1)
    for plan, _ in _collect_plans_by_support(engine, [0]):
        assert plan.protection.diameter * single.settings.epsilon <= log(3.0)
    confident = calibrate(moves, SETTINGS, CalibrationTargets(max_posterior=0.4), num_users=0)
    before = max(belief.probabilities.max() for belief in islice(iterate_beliefs(moves), 2000))
    assert before > 1 / len(GRID.points), "the maximum is after the first timestep"
    odds = (
        before
        / (1 - before)
        * exp(
            engine.planner.build_plan(engine.predict()).protection.diameter
            * confident.epsilon_by_target["max_posterior"]
        )
    )
    assert 0.396 <= odds / (1 + odds) <= 0.4, "the bound of the prior is at most a hundredth too large"
    for _ in range(50):
        engine = confident.settings.engine(moves)
        assert engine.release(3).max_posterior_probability <= 0.4


@pytest.mark.parametrize(("step", "maximum"), [(3000.0, 2), (1800.0, 2), (1500.0, 3), (0.3, 3)])
def test_limits_of_a_horizon_cover_all_releases_that_fit_in_it(step, maximum):
    """A window with its start and without its end moves along the releases."""
    horizon = 0.9 if step < 1 else 3600.0
    assert maximum == max(
        sum(offset <= 10 * count < offset + round(10 * horizon / step) for count in range(9)) for offset in range(20)
    )
    moves = build_model(step)
    single, joint = (
        calibrate(moves, SETTINGS, CalibrationTargets(max_odds_ratio=3.0), num_users=0, horizon_seconds=seconds)
        for seconds in (None, horizon)
    )
    assert joint.num_guaranteed_releases == maximum
    target = "max_odds_ratio"
    assert joint.epsilon_by_target[target] == pytest.approx(single.epsilon_by_target[target] / maximum)
    if horizon == 3600.0:
        assert joint.achieved.epsilon_per_hour == maximum * joint.settings.epsilon


def build_commuters(home_hours: Sequence[int]) -> pd.DataFrame:
    """Return users who spend the first hours of six days in one cell, the others in the next."""
    frames = []
    for cell, hours_at_home in enumerate(home_hours):
        places = GRID.projection.to_latlon(GRID.points[[cell, cell + 1]])
        latitude, longitude = places[(np.arange(72) % 12 >= hours_at_home).astype(int)].T
        times = [f"2024-03-{day:02}T{hour:02}:00:00" for day in range(1, 7) for hour in range(8, 20)]
        frames.append(pd.DataFrame({"user": f"u{cell}", "time": times, "latitude": latitude, "longitude": longitude}))
    return pd.concat(frames)


@pytest.mark.parametrize("num_users", [0, 2])
def test_max_posterior_holds_for_every_user_with_known_habits(num_users):
    """The third user has the strongest habits. No number of simulated users may omit them."""
    moves = build_model()
    users = build_commuters([10, 10, 6, 7])
    calibration = calibrate(
        moves,
        SETTINGS,
        CalibrationTargets(max_posterior=0.99),
        num_users=num_users,
        auxiliary_data=users,
    )
    priors = []
    for track in read_tracks_by_user(users).values():
        history = extract_history(track, moves, None)
        assert history is not None
        habits = build_habit_model(moves, history)
        matrix = habits.transitions[0].toarray()
        start = habits.initial_by_class[0]
        priors.append(max((start @ np.linalg.matrix_power(matrix, t)).max() for t in range(400)))
    assert np.argmax(priors) == 2
    assert priors[2] > 1.02 * max(priors[:2])
    diameter = max(plan.protection.diameter for plan, _ in _collect_plans_by_support(SETTINGS.engine(moves), [0]))
    minimum, maximum = ((log(0.99 / 0.01) - log(p / (1 - p))) / diameter for p in (1.01 * priors[2], priors[2]))
    assert minimum <= calibration.epsilon_by_target["max_posterior"] <= maximum * (1 + 1e-9)
    assert calibration.num_users_with_habits == 4
    assert _describe_scope(calibration) == "each release of 4 users with known habits, every output"


def build_weekend_model() -> MarkovModel:
    """Return a model of users who gather in cell 7 at weekends."""
    lazy = build_model().transitions[0].toarray()
    gather = 0.7 * lazy
    gather[:, 7] += 0.3
    size = len(GRID.points)
    initial = np.full((2, size), 1 / size)
    initial[1] *= 0.5
    initial[1, 7] += 0.5
    weekends = TimeClasses(tuple(int(hour >= 120) for hour in range(168)), 3600.0)
    return MarkovModel([lazy, gather], initial, states=GRID, step_seconds=3600.0, time_classes=weekends)


def compute_max_prior_by_brute_force(moves: MarkovModel, first: int, steps: int = 504) -> float:
    """Return the largest probability in the weeks from a slot, by dense products."""
    matrices = [matrix.toarray() for matrix in moves.transitions]
    masses = moves.initial_by_class[moves.time_classes.get_class(first)]
    largest = masses.max()
    for slot in range(first + 1, first + steps):
        masses = masses @ matrices[moves.time_classes.get_class(slot)]
        largest = max(largest, masses.max())
    return largest


@pytest.mark.slow
def test_max_posterior_of_time_dependent_model_holds_for_every_first_slot():
    """1970 began on a Thursday. That day has less than half of the largest prior."""
    moves = build_weekend_model()
    target = CalibrationTargets(max_posterior=0.99)
    diameter = max(plan.protection.diameter for plan, _ in _collect_plans_by_support(SETTINGS.engine(moves), [0]))

    def compute_limit(prior):
        return (log(0.99 / 0.01) - log(prior / (1 - prior))) / diameter

    priors = [compute_max_prior_by_brute_force(moves, first) for first in range(168)]
    assert max(priors) > 2 * compute_max_prior_by_brute_force(moves, 0, 24)
    calibration = calibrate(moves, SETTINGS, target, num_users=0)
    epsilon = calibration.epsilon_by_target["max_posterior"]
    assert compute_limit(1.001 * max(priors)) - 1e-9 <= epsilon <= compute_limit(max(priors)) + 1e-9
    assert _describe_scope(calibration) == "each release, every output"
    for first in (0, 100):
        dated = calibrate(moves, SETTINGS, target, num_users=0, first=first)
        assert dated.epsilon_by_target["max_posterior"] == pytest.approx(compute_limit(priors[first]), rel=1e-6)
    assert _describe_scope(dated) == "each release if the first is at 1970-01-05T04:00:00Z, every output"


def test_max_posterior_states_first_release_if_all_first_slots_take_too_long(monkeypatch):
    moves = build_weekend_model()
    target = CalibrationTargets(max_posterior=0.99)
    stated = calibrate(moves, SETTINGS, target, num_users=0, first=0)
    with monkeypatch.context() as patch:
        patch.setattr(import_module("dphmm.jobs.calibrate.search"), "MAX_WORK", 1e5)
        limited = calibrate(moves, SETTINGS, target, num_users=0)
    assert limited.first_release == stated.first_release == "1970-01-01T00:00:00Z"
    assert limited.settings.epsilon == stated.settings.epsilon
    error = calibrate(moves, SETTINGS, CalibrationTargets(error=1.0), num_users=0)
    assert (error.first_release, error.has_clock_changes) == (None, False)
    classes = replace(moves.time_classes, zone="Europe/Berlin")
    local = MarkovModel(
        moves.transitions, moves.initial_by_class, states=GRID, step_seconds=3600.0, time_classes=classes
    )
    scope = _describe_scope(calibrate(local, SETTINGS, target, num_users=0))
    assert scope == "each release, without a change of the clocks, every output"


def test_limits_of_time_dependent_model_cover_constraint_sets_of_every_first_slot():
    """A user stays in one of two adjacent cells, or of all cells if they begin at a weekend."""
    cells = np.eye(len(GRID.points))
    initial = np.array([cells[:2].mean(axis=0), cells.mean(axis=0)])
    weekends = TimeClasses(tuple(int(hour >= 120) for hour in range(168)), 3600.0)
    moves = MarkovModel([cells] * 2, initial, states=GRID, step_seconds=3600.0, time_classes=weekends)
    thursday, saturday, anytime = (
        calibrate(moves, SETTINGS, CalibrationTargets(max_odds_ratio=3.0), num_users=0, first=first)
        for first in (0, 60, None)
    )
    assert thursday.settings.epsilon == 1.098, "ln 3"
    assert anytime.settings.epsilon == saturday.settings.epsilon < 0.6 * thursday.settings.epsilon


@pytest.mark.parametrize("is_reversed", [False, True])
def test_limits_for_any_first_slot_hold_in_winter_and_in_summer(is_reversed):
    """Steps of two hours begin at odd hours in winter and at even hours in summer."""
    line = Grid(GRID.projection, (0, 0), 0.5, 3, 1)
    stays, likely = np.eye(3), np.array([0.0, 0.9, 0.1])
    initial = [likely, np.full(3, 1 / 3)]
    hours = TimeClasses(tuple((hour + is_reversed) % 2 for hour in range(168)), 7200.0, "Europe/Berlin")
    moves = MarkovModel([stays] * 2, initial, states=line, step_seconds=7200.0, time_classes=hours)
    settings = ReleaseSettings("complete", 1.0)
    posterior, odds = (
        calibrate(moves, settings, CalibrationTargets(**target), num_users=0)
        for target in ({"max_posterior": 0.95}, {"max_odds_ratio": 3.0})
    )
    # All pairs are edges: a release changes the odds by at most e^epsilon.
    assert posterior.settings.epsilon == pytest.approx(log(0.95 / 0.05) - log(0.9 / 0.1), rel=2e-3)
    assert odds.settings.epsilon == 1.098, "ln 3"
    supports = {plan.constraint.tobytes() for plan, _ in _collect_plans_by_support(settings.engine(moves), [0])}
    assert len(supports) == 1, "the slots of 1970 are those of winter"


@pytest.mark.parametrize(
    ("step", "zone", "reaching"),
    [
        (1800.0, "UTC", 3),
        (2400.0, "UTC", 3),
        (3600.0, "UTC", 3),
        (7200.0, "Europe/Berlin", 2),
        (7200.0, "Europe/Berlin", 3),
    ],
)
def test_limits_cover_constraint_sets_of_every_class_for_any_step(step, zone, reaching):
    """Only moves of one hour, local time, reach the other two cells.

    Steps of two hours meet it in one season only.
    """
    line = Grid(GRID.projection, (0, 0), 0.5, 4, 1)
    pair = np.array([[0.5, 0.5, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    outward = np.array([[0.5, 0.5, 0, 0], [0.3, 0.4, 0.3, 0], [0, 0.3, 0.4, 0.3], [0, 0, 0.3, 0.7]])
    hours = TimeClasses(tuple(int(hour % 24 == reaching) for hour in range(168)), step, zone)
    moves = MarkovModel([pair, outward], [[0.5, 0.5, 0, 0]] * 2, states=line, step_seconds=step, time_classes=hours)
    settings = ReleaseSettings("centres:500m", 1.0)
    calibration = calibrate(moves, settings, CalibrationTargets(max_odds_ratio=3.0), num_users=0)
    assert calibration.epsilon_by_target["max_odds_ratio"] == pytest.approx(log(3.0) / 3), "3 cells apart"


@pytest.mark.slow
def test_time_dependent_model_with_a_period_of_many_steps_raises():
    clock = TimeClasses((0,) * 84 + (1,) * 84, 7.3)
    moves = MarkovModel([np.eye(25)] * 2, [[1 / 25] * 25] * 2, states=GRID, step_seconds=7.3, time_classes=clock)
    with pytest.raises(ConfigurationError, match="settle too late for --max-posterior"):
        calibrate(moves, SETTINGS, CalibrationTargets(max_posterior=0.5), num_users=0)


def test_limits_cover_all_reachable_constraint_sets():
    """The user moves one cell farther a day.

    Distant cells come after more steps than are simulated.
    """
    line = Grid.over((45.0, -30.0, 45.001, -29.9), 0.5)
    line = Grid(line.projection, (0, 0), 0.5, 40, 1)
    moves = 0.98 * np.eye(40) + 0.02 * np.eye(40, k=1)
    moves[39, 39] = 1.0
    chain = MarkovModel(moves, np.eye(40)[0], states=line, step_seconds=3600.0)
    settings = ReleaseSettings("centres:500m", 1.0, allow_singleton=True)
    calibration = calibrate(chain, settings, CalibrationTargets(max_odds_ratio=3.0), num_users=0)
    assert calibration.epsilon_by_target["max_odds_ratio"] == pytest.approx(log(3.0) / 39), (
        "39 cells apart, in the norm of one"
    )
    early = max(
        settings.engine(chain).planner.build_plan(belief).protection.diameter
        for belief in islice(iterate_beliefs(chain), 24)
    )
    assert log(3.0) / early > 1.6 * calibration.epsilon_by_target["max_odds_ratio"], (
        "the first day alone gives another limit"
    )


def test_periodic_constraint_sets_are_enumerated_until_they_repeat():
    turns = MarkovModel(np.roll(np.eye(6), 1, axis=1), np.eye(6)[[0, 1]].mean(axis=0))
    engine = Releaser(turns, [[0, 0], [1, 0], [2, 0], [3, 0], [5, 0], [9, 0]], PolicyGraph.complete(6), 1.0)
    supports = {tuple(np.flatnonzero(plan.constraint).tolist()) for plan, _ in _collect_plans_by_support(engine, [0])}
    assert supports == {tuple(sorted([k, (k + 1) % 6])) for k in range(6)}
    night = np.eye(3)
    day = np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]])
    clock = TimeClasses(tuple(int(hour % 24 >= 20) for hour in range(168)), 3600.0)
    mixed = MarkovModel([day, night], [[1.0, 0.0, 0.0]] * 2, time_classes=clock, step_seconds=3600.0)
    engine = Releaser(mixed, [[0, 0], [1, 0], [2, 0]], PolicyGraph.complete(3), 1.0, allow_singleton=True)
    for first in (0, 10, 15, 16):  # from Thursday 0:00; from 16 on the first eight moves are in the night class
        supports = {
            tuple(np.flatnonzero(plan.constraint).tolist()) for plan, _ in _collect_plans_by_support(engine, [first])
        }
        assert supports == {(0,), (0, 1), (0, 1, 2)}


@pytest.mark.slow
def test_limits_with_delta_raise_and_errors_are_simulated():
    """Plans depend on the releases, so a bound from the first plan is exceeded later."""
    moves = build_model()
    settings = ReleaseSettings("utility:1km", 1.0, delta=0.3, allow_singleton=True)
    for targets in (
        CalibrationTargets(max_odds_ratio=3.0),
        CalibrationTargets(max_posterior=0.5),
        CalibrationTargets(event="at:0 between 2 and 5", max_posterior=0.5),
    ):
        with pytest.raises(ConfigurationError, match="delta"):
            calibrate(moves, settings, targets, num_users=0, horizon_seconds=6 * 3600)
    there = MarkovModel(
        moves.transition, np.isin(np.arange(moves.size), [0, 1]) / 2.0, states=GRID, step_seconds=3600.0
    )
    engine = replace(settings, policy="centres:500m", allow_singleton=True).engine(there, 4)
    factors = [engine.release(1).constrained_dp_factor for _ in range(20)]
    assert max(factors) > 1.5 * factors[0], "the first plan alone gives another limit"
    calibration = calibrate(moves, settings, CalibrationTargets(error=1.0), num_users=12, horizon_seconds=12 * 3600)
    error = calibration.achieved.simulation.estimate_mean("released_error")
    assert error.lower_bound >= 1.0
    assert calibration.achieved.released_error == pytest.approx(error.mean)
    # 60 other users, seed 5, the recorded error of each of 12 releases; 4 standard errors (alpha 6e-5)
    engine = calibration.settings.engine(moves, 5)
    rng = np.random.default_rng(5)
    squares = []
    for path in sample_paths(moves, 60, 12, 0, rng).tolist():
        engine.restart(0)
        squares.append(np.mean([engine.release(state).expected_error ** 2 for state in path]))
    assert np.mean(squares) + 4 * np.std(squares) / np.sqrt(60) >= 1.0
    formula = calibrate(
        moves, replace(settings, delta=None), CalibrationTargets(error=1.0), num_users=0
    ).settings.epsilon
    assert simulate(settings.engine(moves), formula, 24, 12).estimate_mean("released_error").mean < 0.97, (
        "the formula misses the target"
    )
    with pytest.raises(ConfigurationError, match="--num-users"):
        calibrate(moves, settings, CalibrationTargets(error=1.0), num_users=0)
    assert (
        calibrate(moves, settings, CalibrationTargets(window_epsilon=5.0), num_users=0).to_dict()["achieved"][
            "released_error_m"
        ]
        is None
    )


@pytest.mark.slow
def test_error_of_separate_components_is_the_rms_that_the_search_used():
    """A user stays in one of two rows, and the first release shows which: closed form."""
    size = len(GRID.points)
    possible = np.isin(np.arange(size), [*range(5), *range(20, 25)])
    moves = MarkovModel(np.eye(size), possible / 10.0, states=GRID, step_seconds=3600.0)
    edges = [(0, 1), (1, 2), (2, 3), (3, 4), *((i, j) for i in range(20, 25) for j in range(20, i))]
    settings = ReleaseSettings(PolicyGraph.from_edges(size, edges), 1.0, noise_scope="component")
    calibration = calibrate(moves, settings, CalibrationTargets(error=0.5), num_users=4, horizon_seconds=2 * 3600)
    engine, errors = calibration.settings.engine(moves, 1), []
    for state in (0, 22):
        engine.restart(0)
        errors.append([engine.release(state).expected_error for _ in range(2)])
    squares = np.mean(np.square(errors), axis=1)
    expected = np.sqrt([np.average(squares, weights=[count, 4 - count]) for count in range(5)])
    assert errors[0][0] == errors[1][0]
    assert np.abs(calibration.achieved.released_error - expected).min() < 1e-9
    assert expected[2] == pytest.approx(errors[0][0]), "two users in each row: the prior of the first release"
    assert np.abs(errors[0][0] - np.delete(expected, 2)).min() > 0.01
    assert "the error of 4 simulated users" in calibration.list_warnings()[0]
    without_users = calibrate(moves, settings, CalibrationTargets(window_epsilon=5.0), num_users=0)
    assert without_users.achieved.released_error is None


def test_daily_epsilon_is_met_and_multiple_targets_hold():
    both = calibrate(build_model(1800.0), SETTINGS, CalibrationTargets(window_epsilon=5.0, error=0.1), num_users=0)
    assert both.binding_target == "window_epsilon"
    assert both.settings.epsilon == 0.1041  # 5 / 48, rounded down
    assert both.achieved.epsilon_24h <= 5.0
    assert both.achieved.epsilon_per_hour == pytest.approx(0.2082)


@pytest.mark.slow
def test_adversary_error_target_is_met_and_reported():
    calibration = calibrate(
        build_model(),
        SETTINGS,
        CalibrationTargets(adversary_error=0.6),
        num_users=12,
        horizon_seconds=6 * 3600,
        report_epsilons=(0.05, 2.0),
    )
    error = calibration.achieved.simulation.estimate_mean("smoothed_error")
    assert error.lower_bound >= 0.6
    assert error.mean < calibration.error_without_releases
    facts = calibration.to_dict()
    assert facts["achieved"]["smoothed_adversary_error_m"] == pytest.approx(1000 * error.mean)
    errors = [row["smoothed_adversary_error_m"] for row in facts["report"]]
    assert errors[0] > errors[1], "a larger budget reveals more"
    estimate = calibrate(
        build_model(), SETTINGS, CalibrationTargets(estimate_error=0.6), num_users=12, horizon_seconds=6 * 3600
    )
    assert estimate.settings.epsilon > calibration.settings.epsilon, (
        "the smoothed adversary knows more than the filtered one"
    )


@pytest.mark.slow
@pytest.mark.parametrize(("name", "target"), [("adversary_error", 0.6), ("estimate_error", 0.75)])
def test_calibrated_errors_are_within_ten_percent_of_targets(name, target):
    """Compare with 600 other simulated users, for whom the mean has an error of about 2 %."""
    calibration = calibrate(build_model(), SETTINGS, CalibrationTargets(**{name: target}), horizon_seconds=6 * 3600)
    engine = replace(SETTINGS, epsilon=1.0).engine(build_model())
    others = simulate(engine, calibration.settings.epsilon, 600, 6, rng=99)
    figure = others.estimate_mean({"adversary_error": "smoothed_error", "estimate_error": "estimate_error"}[name])
    assert target - figure.margin <= figure.mean <= 1.1 * target
    assert calibration.num_users > 16
    assert not calibration.list_warnings()


def test_few_simulated_users_cause_warning():
    few = calibrate(
        build_model(), SETTINGS, CalibrationTargets(adversary_error=0.6), num_users=4, horizon_seconds=6 * 3600
    )
    assert "the error of 4 simulated users" in few.list_warnings()[0]


def test_command_contains_only_nondefault_options():
    settings = ReleaseSettings("utility:1km | complete", 1.0, "k-norm", delta=0.01)
    calibration = calibrate(build_model(), settings, CalibrationTargets(window_epsilon=24.0), num_users=0)
    assert calibration.command == (
        "dphmm release DATA --model model.npz --policy 'utility:1km | complete' --epsilon 1.0 --mechanism k-norm "
        "--delta 0.01 -o releases.gpkg"
    )


@pytest.mark.parametrize(
    ("targets", "more", "words"),
    [
        ({"adversary_error": 50.0}, {}, "the target error must be below .* got 50 km"),
        ({"estimate_error": 50.0}, {}, "the target error must be below .* got 50 km"),
        ({"estimate_error": 0.3}, {"num_users": 0}, "use --num-users 2 or more"),
        ({"max_posterior": 0.01}, {}, r"--max-posterior must be above 0\.0.*, got 0\.01"),
        ({"max_posterior": 1.0}, {}, r"max_posterior must be in \(0, 1\)"),
        ({"max_odds_ratio": 1.0}, {}, "max_odds_ratio must be in"),
        ({"adversary_error": 0.5}, {"num_users": 1}, "num_users must be 0 or at least 2, got 1"),
        ({"error": 1.0}, {"horizon_seconds": 60.0}, "--horizon must be at least the model's step"),
        ({"error": 1.0}, {"horizon_seconds": 1e12}, "memory.*--horizon"),
        ({}, {}, "at least one target must be given"),
        ({"error": -1.0}, {}, "positive"),
        ({"error": 1.0}, {"report_epsilons": (0.0,)}, "report_epsilons must be in"),
    ],
)
def test_unreachable_targets_raise_with_range(targets, more, words):
    with pytest.raises((ConfigurationError, InvalidInputError), match=words):
        calibrate(build_model(), SETTINGS, CalibrationTargets(**targets), **{"num_users": 0, **more})


@pytest.mark.parametrize(
    ("target", "option"), [({"max_odds_ratio": 3.0}, "--max-odds-ratio"), ({"max_posterior": 0.9}, "--max-posterior")]
)
def test_limit_that_no_budget_meets_names_its_option_before_any_simulation(target, option, monkeypatch):
    """Two components have separate noise: an output excludes all states of one of them."""
    moves = build_model()
    policy = PolicyGraph.categorical(np.arange(moves.size) % 2)
    settings = ReleaseSettings(policy, 1.0, noise_scope="component")
    monkeypatch.setattr(BudgetSearch, "_find_for_error", None)
    with pytest.raises(ConfigurationError, match=f"^{option} has no solution: a release can exclude a state"):
        calibrate(moves, settings, CalibrationTargets(error=0.5, **target), num_users=2)


def test_unreachable_error_of_releases_is_refused_without_an_infinite_bound(monkeypatch):
    monkeypatch.setattr(MeanEstimate, "lower_bound", property(lambda _: -inf))
    moves = build_model()
    policy = PolicyGraph.from_edges(moves.size, [(0, 1)]).with_open(np.arange(moves.size) > 1)
    settings = ReleaseSettings(policy, 1.0, noise_scope="component")
    with pytest.raises(BudgetError, match=r"^target 1 km: no budget keeps the value above 1: .* more users$"):
        calibrate(moves, settings, CalibrationTargets(error=1.0), num_users=2, horizon_seconds=2 * 3600)


def test_event_cap_of_command_is_not_above_limit():
    """Six digits of the limit are above it."""
    targets = CalibrationTargets(event="at:3 between 0 and 1", max_odds_ratio=1.6)
    calibration = calibrate(build_model(), SETTINGS, targets, num_users=0)
    assert calibration.event is not None
    assert calibration.capped_command is not None
    limit = calibration.event.cap.probability
    assert float(f"{limit:.6g}") > limit
    words = calibration.capped_command.split()
    assert float(words[words.index("--max-event-probability") + 1]) == limit


@pytest.mark.slow
@pytest.mark.parametrize(("max_posterior", "odds"), [(0.5, 30.0), (0.9, 3.0)])
def test_both_event_limits_hold_for_one_release(max_posterior, odds):
    """Either limit may be the stricter one: the smaller epsilon is used."""
    event = "at:3 between 0 and 1"
    alone = [
        calibrate(build_model(), SETTINGS, CalibrationTargets(event=event, **limit), num_users=0).settings.epsilon
        for limit in ({"max_posterior": max_posterior}, {"max_odds_ratio": odds})
    ]
    both = calibrate(
        build_model(),
        SETTINGS,
        CalibrationTargets(event=event, max_posterior=max_posterior, max_odds_ratio=odds),
        num_users=0,
    )
    assert alone[0] != alone[1]
    assert both.settings.epsilon == min(alone)
    assert set(both.epsilon_by_target) == {"max_posterior", "max_odds_ratio"}


@pytest.mark.slow
@pytest.mark.parametrize(("hours", "num_releases"), [(None, 4), (6, 6)])
def test_failure_rate_holds_for_the_releases_that_the_output_states(hours, num_releases):
    """Compare with 200 other users and a margin of four standard errors (alpha 4e-5)."""
    targets = CalibrationTargets(event="at:3,4 between 1 and 3", max_posterior=0.8, failure_rate=0.4)
    horizon = None if hours is None else hours * 3600
    calibration = calibrate(build_model(), SETTINGS, targets, num_users=10, horizon_seconds=horizon)
    assert calibration.num_guaranteed_releases == calibration.num_releases == num_releases
    scope = f"the first {num_releases} releases of all but 0.4 of the users with the event, by simulation"
    assert _describe_scope(calibration) == scope
    event = parse_event(str(targets.event)).resolve(GRID)
    others = simulate(
        SETTINGS.engine(build_model()), calibration.settings.epsilon, 200, num_releases, rng=7, event=event
    )
    assert others.estimate_share_above(0.8)[0] <= 0.4 + 4 * (0.24 / 200) ** 0.5
