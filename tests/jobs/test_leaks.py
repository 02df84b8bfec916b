"""The leakage of a released trajectory bounds what all its releases together tell about any moment."""

from __future__ import annotations

import itertools
import json
import time

import numpy as np
import pytest
from click.testing import CliRunner

from dphmm import Grid, MarkovModel, PolicyGraph, Releaser, release_trajectory
from dphmm.cli import main
from dphmm.errors import InvalidInputError
from dphmm.jobs import leak_of_releases
from dphmm.model.belief import Belief
from dphmm.space.trajectory import SlottedTrajectory
from dphmm.writers import write_releases
from dphmm.writers.table import ReleaseTable
from tests.sizes import slow

GRID = Grid.over((45.0, 7.0, 45.004, 7.018), 0.5)
WALK = np.array([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.1, 0.4, 0.5]])
START = np.array([0.5, 0.3, 0.2])


def model() -> MarkovModel:
    assert GRID.size == 3
    return MarkovModel(WALK, START, states=GRID, step_seconds=300)


def walk(slots, states) -> SlottedTrajectory:
    latitude, longitude = GRID.latlon(np.array(states)).T
    return SlottedTrajectory("anna", 300, np.array(slots), latitude, longitude)


def released(seed: int, slots=(10, 11, 13), states=(0, 1, 1)):
    engine = Releaser(model(), GRID.points, PolicyGraph.from_edges(3, [(0, 1), (1, 2)]), 0.5, "k-norm", rng=seed)
    return list(release_trajectory(engine, GRID, walk(slots, states)))


def log_likelihoods(found) -> dict[int, np.ndarray]:
    """Slot → the log density of each release under every state, replayed from public records."""
    engine = Releaser(model(), GRID.points, PolicyGraph.from_edges(3, [(0, 1), (1, 2)]), 0.5, "k-norm")
    belief, slots, values = None, np.cumsum([r.record.steps for r in found]), {}
    for slot, entry in zip(slots.tolist(), found, strict=True):
        prior = Belief.of(START) if belief is None else belief.predict(engine.model, entry.record.steps)
        (drawn,) = engine.noise(engine.plan(prior), entry.record.epsilon).parts
        values[slot] = drawn.log_density(entry.record.released, GRID.points)
        belief = prior.update(values[slot])
    return values


@pytest.mark.parametrize("seed", range(12))
def test_no_two_states_of_a_moment_differ_by_more_than_its_temporal_leakage(seed):
    found = released(seed)
    leakage = leak_of_releases(model(), ReleaseTable.from_releases(found), "anna").leakage.by_user["anna"]
    assert leakage.epsilons[2] == 0.0
    assert leakage.temporal.shape == (4,)
    densities = log_likelihoods(found)
    for moment, bound in enumerate(leakage.temporal):
        joint, marginal = np.zeros(3), np.zeros(3)
        for path in itertools.product(range(3), repeat=4):
            chance = START[path[0]] * np.prod([WALK[a, b] for a, b in itertools.pairwise(path)])
            joint[path[moment]] += chance * np.exp(sum(values[path[t]] for t, values in densities.items()))
            marginal[path[moment]] += chance
        told = np.log(joint / marginal)
        assert np.ptp(told) <= bound * (1 + 1e-12)


def test_budgets_are_the_constrained_costs_not_the_policys_epsilon():
    found = released(0)
    budgets = leak_of_releases(model(), ReleaseTable.from_releases(found)).leakage.by_user["anna"].epsilons
    np.testing.assert_allclose(budgets[[0, 1, 3]], [r.record.constrained_epsilon for r in found])
    assert budgets.max() > 0.5


def test_the_command_accounts_for_a_file_of_releases(tmp_path):
    model().save(tmp_path / "model.npz")
    write_releases(tmp_path / "releases.csv", ReleaseTable.from_releases(released(1)))
    options = ["--model", str(tmp_path / "model.npz"), "--releases", str(tmp_path / "releases.csv"), "--json"]
    done = CliRunner().invoke(main, ["leak", *options])
    assert done.exit_code == 0, done.output
    leakage = leak_of_releases(model(), ReleaseTable.from_releases(released(1)), "anna").leakage
    np.testing.assert_allclose(json.loads(done.output)["users"]["anna"]["temporal"], leakage.temporal, rtol=1e-9)


def test_the_commands_take_a_learned_model(tmp_path):
    model().save(tmp_path / "model.npz")
    options = ["--model", str(tmp_path / "model.npz"), "--json"]
    leak = CliRunner().invoke(main, ["leak", *options, "--epsilon", "0.1", "--steps", "5"])
    budget = CliRunner().invoke(main, ["budget", *options, "--alpha", "0.5"])
    assert (leak.exit_code, budget.exit_code) == (0, 0), leak.output + budget.output
    assert json.loads(leak.output)["worst"] > 0.1
    assert 0 < json.loads(budget.output)["budgets"][0] < 0.5


def test_a_person_without_releases_is_refused():
    with pytest.raises(InvalidInputError, match="'bob' has no releases"):
        leak_of_releases(model(), ReleaseTable.from_releases(released(0)), "bob")


@pytest.mark.parametrize("steps", [300_000, slow(2_000_000)])
def test_years_between_two_releases_are_accounted_for_in_seconds(steps):
    """A recursion that evaluates each of two million steps takes minutes."""
    table = ReleaseTable.from_releases(released(0, slots=(10, 11, steps + 13)))
    start = time.process_time()
    found = leak_of_releases(model(), table).leakage.by_user["anna"]
    assert time.process_time() - start < 20 * steps / 2_000_000
    assert len(found.epsilons) == steps + 4
    assert found.backward[steps // 2] < 1e-9 < found.backward[-1]


def test_of_a_model_with_very_many_moves_the_sum_is_told_which_bounds_the_leakage(monkeypatch):
    table = ReleaseTable.from_releases(released(0, slots=(10, 11, 40)))
    exact = leak_of_releases(model(), table)
    assert exact.forgets
    monkeypatch.setattr("dphmm.jobs.leaks.MOST_MOVES", 1)
    bound = leak_of_releases(model(), table)
    assert not bound.forgets
    one, other = exact.leakage.by_user["anna"], bound.leakage.by_user["anna"]
    assert (other.temporal >= one.temporal - 1e-12).all()
    assert other.temporal == pytest.approx(np.full(31, one.epsilons.sum()))
    assert other.temporal.max() > 1.01 * one.temporal.max(), "the model does forget"
