"""Tests of compared settings against single releases of the engine and plain loops."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm import Grid, MarkovModel, Releaser, ReleaseSettings
from dphmm.audit import audit_uses, open_visited_states
from dphmm.errors import ConfigurationError, PolicyError
from dphmm.jobs import UsesSettings, compare_uses, sample_users
from dphmm.jobs.audit.uses import measure_uses
from dphmm.model.outside_states import OutsideStates
from dphmm.space.states import Places

GRID = Grid.over((45.0, 7.0, 45.02, 7.026), 0.5)
# Users often meet at the first cells.
VISITS = 0.6 ** np.arange(GRID.size) / (0.6 ** np.arange(GRID.size)).sum()
MODEL = MarkovModel(0.5 * np.eye(GRID.size) + 0.5 * VISITS, VISITS, states=GRID, step_seconds=1800)
SETTINGS = [ReleaseSettings(policy, epsilon) for policy in ("utility:600m", "complete") for epsilon in (0.5, 5.0)]


@pytest.fixture(scope="module")
def states():
    """The states of 10 users at 8 timesteps. One is outside in between, one always."""
    states = sample_users(MODEL, 10, 8, first=7, rng=3)
    states[4, 2:5] = states[9] = -1
    return states


@pytest.fixture(scope="module")
def comparisons(states):
    return compare_uses(MODEL, SETTINGS, states, first=7, num_patients=2, rng=5)


def release_all(graph, setting, states):
    """Release each user with an engine and find the cells of the estimates by plain distances."""
    released, errors = np.full(states.shape, -1), []
    for user, path in enumerate(states):
        rng = np.random.default_rng(np.random.SeedSequence(5, spawn_key=(user,)))
        releaser = Releaser(MODEL, GRID.points, graph, epsilon=setting.epsilon, rng=rng, allow_singleton=True)
        gap = 1
        for step, state in enumerate(path.tolist()):
            if state < 0:
                gap += 1
                continue
            if not (released[user] >= 0).any():
                releaser.restart(first=7 + step)
            estimate = np.array(releaser.release(state, steps=gap).estimate)
            gap = 1
            released[user, step] = np.argmin(np.linalg.norm(GRID.points - estimate, axis=1))
            # The mean squared distance of a uniform place in a cell of 0.5 km from the centre is 0.5² / 6.
            errors.append(np.sqrt(((GRID.points[state] - estimate) ** 2).sum() + 0.5**2 / 6))
    return released, float(np.mean(errors))


@pytest.mark.slow
@pytest.mark.parametrize("index", [0, 3])
def test_comparison_matches_releases_of_an_engine(states, comparisons, index):
    setting, comparison = SETTINGS[index], comparisons[index]
    graph = setting.build_graph(MODEL)
    released, error = release_all(graph, setting, states)
    columns, rows = (GRID.lattice // 4).T
    expected = audit_uses(
        states, released, areas=100 * rows + columns, patients=[0, 1], transmission=1 - 0.95**0.5,
        infectious_steps=8, period_steps=2, slots=np.arange(7, 15),
    )  # fmt: skip
    measured = comparison.uses.audit.to_dict()
    # Areas are numbered otherwise, so their errors are summed in another order.
    monitoring = measured.pop("monitoring_error")
    assert monitoring == pytest.approx(expected.monitoring_error.to_dict())
    assert {**expected.to_dict(), **measured} == expected.to_dict()
    assert comparison.mean_error.value == pytest.approx(error)
    assert comparison.mean_error.low < error < comparison.mean_error.high
    visited = np.unique(states[:2])
    updated, _ = release_all(open_visited_states(graph, visited), setting, states)
    traced = audit_uses(states, updated, patients=[0, 1], infectious_steps=8)
    assert comparison.updated_precision.to_dict() == traced.tracing_precision.to_dict()
    assert comparison.updated_recall.value == traced.tracing_recall.value == 1
    present = states[states >= 0]
    assert comparison.disclosed_share == np.isin(present, visited).mean()


def test_small_budgets_cost_accuracy_and_updates_restore_tracing(comparisons):
    low, high = comparisons[:2]
    assert low.mean_error.value > high.mean_error.value
    # Precision, not recall: without information, all estimates are the model's mean, where all users seem to meet.
    before = [comparison.uses.audit.tracing_precision.value for comparison in (low, high)]
    assert before[0] < before[1] < high.updated_precision.value
    assert low.to_dict()["policy"] == "utility:600m"
    assert len({comparison.uses.describe() for comparison in comparisons}) == 1, "one sentence describes all rows"
    assert low.to_dict()["mean_error_m"]["value"] == pytest.approx(1000 * low.mean_error.value)


def test_error_of_exact_cells_is_the_distance_from_their_centre(states):
    """The mean over the cell (Monte Carlo) is a lower bound, the RMS an upper one."""
    (comparison,) = compare_uses(MODEL, [ReleaseSettings("utility:600m", 1000.0)], states, first=7)
    lengths = np.linalg.norm(np.random.default_rng(1).uniform(-0.25, 0.25, (100_000, 2)), axis=1)
    low, high = 0.99 * lengths.mean(), 1.01 * np.sqrt((lengths**2).mean())
    assert low < comparison.mean_error.low <= comparison.mean_error.value <= comparison.mean_error.high < high


def test_sampled_users_follow_the_model():
    """The share of stays of 40,000 moves is within 4 standard errors (seed 2)."""
    states = sample_users(MODEL, 2000, 21, rng=2)
    # The initial distribution is stationary.
    probability = 0.5 + 0.5 * (VISITS**2).sum()
    share = (states[:, 1:] == states[:, :-1]).mean()
    assert share == pytest.approx(probability, abs=4 * np.sqrt(probability * (1 - probability) / 40_000))
    assert (sample_users(MODEL, 5, 4, rng=1) == sample_users(MODEL, 5, 4, rng=1)).all()


def test_sampled_users_have_no_state_outside_the_region():
    """Shares of 4,000 users at each step are within 4 standard errors of the chain (seed 3)."""
    chain = np.array([[0.7, 0.2, 0.1], [0.2, 0.5, 0.3], [0.0, 0.4, 0.6]])  # the last context is outside
    model = MarkovModel(chain, [0.5, 0.5], outside=OutsideStates(2, [1], [2.0], [5.0], [0.6]))
    states = sample_users(model, 4000, 4, rng=3)
    masses = np.array([0.5, 0.2, 0.3])
    for column in states.T:
        shares = np.bincount(column % 3, minlength=3) / 4000
        assert np.abs(shares - masses).max() <= 4 * np.sqrt(0.25 / 4000)
        masses = masses @ chain


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"settings": []}, "settings must have at least one element"),
        ({"states": [[0, 1]]}, "states must have two users or more"),
        ({"states": [[0], [10_000]]}, "states must have two users or more with states below"),
        ({"states": [[-1], [-1]]}, "states must have two users or more"),
        ({"num_patients": 3}, "num_patients must be at most the number of users, 2, got 3"),
    ],
)
def test_refusals_name_the_parameter(changes, message):
    arguments = {"settings": SETTINGS[:1], "states": [[0, 1], [1, 2]]} | changes
    with pytest.raises(ConfigurationError, match=message):
        compare_uses(MODEL, **arguments)


def test_invalid_policies_and_assumptions_raise():
    with pytest.raises(PolicyError):
        compare_uses(MODEL, [ReleaseSettings("utility:600x")], [[0], [1]])
    with pytest.raises(ConfigurationError, match="area_cells must be"):
        UsesSettings(area_cells=0)


def test_areas_are_described_as_measured():
    """Named places are one area each, whatever the side of the areas of a grid."""
    places = Places(["a", "b", "c"], [45.0, 45.01, 45.02], [7.0, 7.0, 7.0])
    model = MarkovModel(np.full((3, 3), 1 / 3), np.full(3, 1 / 3), places, 1800)
    states = np.array([[0, 1, 1, 2], [1, 1, 0, 2]])
    at_places = measure_uses(model, UsesSettings(), np.arange(4), states, states)
    assert "areas of one state" in at_places.describe()
    assert at_places.to_dict()["area_cells"] == 1
    on_grid = measure_uses(MODEL, UsesSettings(), np.arange(4), states, states)
    assert "areas of 4 × 4 cells" in on_grid.describe()
