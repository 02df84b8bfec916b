"""Tests of landmark schemes with the engine: scheme budgets, and no sampling for repeats."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dphmm import MarkovModel, PolicyGraph, Releaser, ReleaseSettings
from dphmm.errors import ConfigurationError, CoordinateError, InvalidInputError, StateError, TimeOrderError
from dphmm.jobs.landmarks import (
    Scheme,
    bound_losses_on_clock,
    compute_noise_scale,
    release_landmark_series,
    release_places,
    release_track_with_engine,
)
from dphmm.jobs.model.mobility import Mobility
from dphmm.landmarks import Adaptive, leakage, skip_scheme, timeline, uniform_scheme
from dphmm.model import reverse_by_step
from dphmm.model.time_classes import TimeClasses
from dphmm.space import Grid
from dphmm.tables import TimedTable
from tests.running_example import F

SIZE = 6
MODEL = MarkovModel(np.full((SIZE, SIZE), 1 / SIZE), np.full(SIZE, 1 / SIZE))
STATES = np.random.default_rng(0).integers(SIZE, size=40)
SLOTS = np.cumsum(np.random.default_rng(1).integers(1, 4, size=40))
MARKS = SLOTS[[0, 3, 4, 5, 17, 39]]
MECHANISMS = ["lattice", "k-norm", "laplace", "planar-isotropic", "planar-laplace"]


class RecordingReleaser(Releaser):
    """An engine that records its calls and its releases."""

    def release(self, state, epsilon=None, steps=1):
        self.calls = [*getattr(self, "calls", []), (state, epsilon, steps)]
        self.records = [*getattr(self, "records", []), super().release(state, epsilon, steps)]
        return self.records[-1]


def make_engine(mechanism="k-norm", seed=0):
    return RecordingReleaser(MODEL, F, PolicyGraph.categorical([0, 1, 1, 2, 2, 2]), 1.0, mechanism, rng=seed)


def make_adaptive():
    return Adaptive(SLOTS, MARKS, 3.0, sensitivity=1.0, rate=0.5, rng=5)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(
    "scheme",
    [skip_scheme(SLOTS, MARKS, 3.0), uniform_scheme(SLOTS, MARKS, 3.0), "adaptive"],
    ids=["skip", "uniform", "adaptive"],
)
def test_engine_is_called_only_for_new_releases_with_scheme_budgets(mechanism, scheme):
    releaser = make_engine(mechanism)
    out, _ = release_places(releaser, STATES, SLOTS, make_adaptive() if scheme == "adaptive" else scheme)
    fresh = np.flatnonzero(out.published)
    assert [state for state, _, _ in releaser.calls] == STATES[fresh].tolist()
    np.testing.assert_array_equal([e for _, e, _ in releaser.calls], out.budget.epsilons[fresh])
    assert [steps for _, _, steps in releaser.calls[1:]] == np.diff(SLOTS[fresh]).tolist()
    assert (out.budget.epsilons[~out.published] == 0).all()
    np.testing.assert_array_equal([record.released for record in releaser.records], out.values[fresh])
    assert out.exact == (mechanism == "lattice")


def test_hourly_model_with_unsupported_losses_raises_before_reading():
    grid, classes = Grid.over((45, 7.5, 45.026, 7.52), 1.0), TimeClasses.from_name("hour", 60)
    hourly = MarkovModel([MODEL.transition] * 24, [MODEL.initial] * 24, grid, 60, classes)
    with pytest.raises(ConfigurationError, match=r"must have one transition matrix .* without --time-classes"):
        release_track_with_engine("nowhere", hourly, ReleaseSettings(policy="complete", epsilon=1))


@pytest.mark.parametrize(
    "directions",
    [(), ("forward",), ("backward",), ("forward", "backward")],
    ids=["none", "forward", "backward", "both"],
)
def test_total_leakage_is_stated_only_if_both_correlations_are_known(directions):
    series = TimedTable(np.arange(5), {"beats": np.arange(5.0)})
    done = release_landmark_series(
        series, 1, 3, [2], Scheme("uniform"), **{name: np.full((2, 2), 0.5) for name in directions}
    )
    is_known = len(directions) == 2
    assert done.to_dict()["likelihood_ratio_all_releases"].startswith("≤ 20.1" if is_known else "unknown")
    assert done.to_dict()["max_leakage"] == (3.0 if is_known else None)
    assert done.to_dict()["is_leakage_bounded"] is (True if is_known else None)


def test_unpublished_place_repeats_last_release():
    out, _ = release_places(make_engine(), STATES, SLOTS, make_adaptive())
    assert (~out.published).sum() > 3
    for at in np.flatnonzero(~out.published):
        np.testing.assert_array_equal(out.values[at], out.values[at - 1])


def test_true_places_at_skipped_landmarks_do_not_change_output():
    scheme = skip_scheme(SLOTS, MARKS, 3.0)
    other = STATES.copy()
    marked = np.isin(SLOTS, MARKS)
    other[marked] = (other[marked] + 1) % SIZE
    first, second = (release_places(make_engine(seed=9), states, SLOTS, scheme)[0] for states in (STATES, other))
    np.testing.assert_array_equal(first.values, second.values)
    other[~marked] = (other[~marked] + 1) % SIZE  # regular places do change the output
    three, _ = release_places(make_engine(seed=9), other, SLOTS, scheme)
    assert (first.values != three.values).any()


def test_costs_are_those_of_any_two_possible_states():
    releaser = make_engine()
    out, costs = release_places(releaser, STATES, SLOTS, skip_scheme(SLOTS, MARKS, 3.0))
    assert (costs[np.isin(SLOTS, MARKS)] == 0).all()
    for record, cost in zip(releaser.records, costs[out.published], strict=True):
        assert cost == record.constrained_dp_factor * record.epsilon


def test_engine_restarts():
    releaser = make_engine()
    releaser.release(2)
    release_places(releaser, STATES[:1], SLOTS[:1], uniform_scheme(SLOTS[:1], [], 1.0))
    assert [record.index for record in releaser.records] == [0, 0]


def test_noise_scale_matches_body_and_leaves_noise_unchanged():
    releaser = make_engine()
    hull = releaser.planner.build_plan(releaser.predict()).protection.hull
    angles = np.linspace(0, 2 * np.pi, 200_001)[:-1]
    directions = np.column_stack([np.cos(angles), np.sin(angles)])
    radius = 1 / hull.norm(directions)
    expected = np.sqrt((radius**4).mean() / 2 / (radius**2).mean())
    assert compute_noise_scale(releaser) == pytest.approx(expected, rel=1e-6)
    point_mass_model = MarkovModel(np.eye(SIZE), np.eye(SIZE)[0])
    with pytest.raises(InvalidInputError, match="no noise"):
        compute_noise_scale(Releaser(point_mass_model, F, PolicyGraph.complete(SIZE), 1.0, allow_singleton=True))


def test_losses_count_steps_between_timestamps():
    stay = np.array([[0.9, 0.1], [0.2, 0.8]])
    line = timeline(range(4), [1])
    slots, costs = np.array([5, 6, 9, 10]), np.array([0.3, 0.5, 0.2, 0.1])
    whole = np.array([0.3, 0.5, 0, 0, 0.2, 0.1])
    start = np.array([0.1, 0.9])
    expected = leakage(range(6), [1], whole, reverse_by_step(stay, start, 6), stay)[[0, 1, 4, 5]]
    mobility = Mobility(stay, start)
    np.testing.assert_array_equal(bound_losses_on_clock(line, slots, costs, mobility), expected)
    close = leakage(range(4), [1], costs, reverse_by_step(stay, start, 4), stay)
    assert (bound_losses_on_clock(line, slots, costs, mobility) < close).any()


def test_initial_distribution_applies_at_first_release():
    """As in the engine, timesteps before the first release have no influence."""
    stay, start = np.array([[0.9, 0.1], [0.2, 0.8]]), np.array([0.001, 0.999])
    line, costs = timeline(range(4), [3]), np.array([0.0, 0.5, 0.5, 0.5])
    mobility = Mobility(stay, start)
    losses = bound_losses_on_clock(line, np.arange(4), costs, mobility)
    expected = leakage(range(3), [2], costs[1:], reverse_by_step(stay, start, 3), stay)
    np.testing.assert_allclose(losses[1:], expected, rtol=1e-12)
    stationary = bound_losses_on_clock(line, np.arange(4), costs, Mobility(stay))
    assert abs(losses - stationary).max() > 0.01


def test_release_that_excludes_states_has_infinite_loss():
    line = timeline(range(2), [])
    assert np.isinf(bound_losses_on_clock(line, np.arange(2), np.array([1.0, np.inf]))).all()


@pytest.mark.parametrize("following", [False, True])
def test_losses_are_certified_if_they_are_sums_of_budgets(tmp_path, following):
    moves = [[0.8, 0.2], [0.0, 1.0]] if following else None
    table = TimedTable(np.arange(1, 6), {"beats": np.arange(5.0)})
    done = release_landmark_series(table, 20, 1.5, [2, 5], Scheme("uniform"), rng=1, forward=moves)
    done.certify(tmp_path / "proof.jsonl")
    lines = map(json.loads, (tmp_path / "proof.jsonl").read_text().splitlines())
    (budgets_line,) = [line for line in lines if "budgets" in line]
    if following:
        assert budgets_line["losses"] is None
    else:
        np.testing.assert_allclose(np.array(budgets_line["losses"], float), [1.5, 1.0, 1.5, 1.5, 1.0], rtol=1e-12)


def test_invalid_arguments_raise():
    scheme = uniform_scheme(SLOTS, MARKS, 1.0)
    with pytest.raises(TimeOrderError, match="slots"):
        release_places(make_engine(), STATES, SLOTS[::-1], scheme)
    with pytest.raises(TimeOrderError, match="slots"):
        release_places(make_engine(), STATES, SLOTS.astype(float), scheme)
    with pytest.raises(CoordinateError, match=r"2 values .*40"):
        release_places(make_engine(), STATES[:2], SLOTS[:2], scheme)
    with pytest.raises(StateError, match="state must be an integer from 0 to 5, got 6"):
        release_places(make_engine(), np.full(40, 6), SLOTS, scheme)
