"""The leakage of a released trajectory bounds what all its releases together tell about any moment."""

from __future__ import annotations

import itertools
import json
import time
from dataclasses import replace
from fractions import Fraction

import click
import numpy as np
import pytest
from click.testing import CliRunner

from dphmm import Grid, MarkovModel, PolicyGraph, Releaser, ReleaseSettings, release_trajectory
from dphmm.cli import main
from dphmm.cli.leakage import _print_ruled_out
from dphmm.errors import ConfigurationError, InvalidInputError
from dphmm.jobs import leak_of_releases
from dphmm.model.belief import Belief
from dphmm.space.trajectory import SlottedTrajectory
from dphmm.writers import write_releases
from dphmm.writers.table import ReleaseTable
from tests.certificate.streams import refusal
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


def test_of_two_people_one_is_named():
    two = [*released(0), *(replace(one, user="bob") for one in released(1))]
    with pytest.raises(ConfigurationError, match="holds 2 users; say which"):
        leak_of_releases(model(), ReleaseTable.from_releases(two))


@pytest.mark.parametrize("steps", [300_000, slow(2_000_000)])
def test_years_between_two_releases_are_accounted_for_in_seconds(steps):
    """A recursion that evaluates each of two million steps takes minutes."""
    table = ReleaseTable.from_releases(released(0, slots=(10, 11, steps + 13)))
    start = time.process_time()
    found = leak_of_releases(model(), table).leakage.by_user["anna"]
    assert time.process_time() - start < 20 * steps / 2_000_000
    assert len(found.epsilons) == steps + 4
    assert found.backward[steps // 2] < 1e-9 < found.backward[-1]


def test_what_releases_leak_is_certified(tmp_path, monkeypatch):
    """The budget of a time is the row's factor times its epsilon; a time of the clock without a release has none."""
    monkeypatch.chdir(tmp_path)
    table = ReleaseTable.from_releases(released(0))
    write_releases("r.csv", table)
    model().save("model.npz")
    command = ["leak", "--model", "model.npz", "--releases", "r.csv", "--json", "--certificate"]
    done = CliRunner().invoke(main, [*command, "proof.jsonl"])
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in (tmp_path / "proof.jsonl").read_text().splitlines()]
    assert refusal(lines, None) is None
    (said,) = [line for line in lines if "budgets" in line]
    spent = table["constrained_factor"] * table["epsilon"]
    assert [float(Fraction(one)) for one in said["budgets"]] == [spent[0], spent[1], 0.0, spent[2]]
    found = leak_of_releases(model(), table).leakage.by_user["anna"]
    assert [float(one) for one in said["temporal"]] == pytest.approx(found.temporal.tolist(), rel=1e-9)
    said["budgets"][0] = "1/10"
    assert "leakage" in (refusal(lines, None) or "")
    flat = ReleaseTable({**table.columns, "constrained_factor": np.array([1, np.inf, 1])})
    with pytest.raises(ConfigurationError, match="rule no possible state out"):
        leak_of_releases(model(), flat, certificate=tmp_path / "none.jsonl")
    assert not (tmp_path / "none.jsonl").exists()


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


def test_leakage_is_infinite_from_the_first_release_without_a_bound_back_to_the_last_and_else_as_it_was():
    table = ReleaseTable.from_releases(released(0, slots=(10, 11, 13, 14, 16), states=(0, 1, 1, 2, 1)))
    plain = leak_of_releases(model(), table).leakage.by_user["anna"]
    factors = np.where(np.isin(np.arange(5), [2, 3]), np.inf, table["constrained_factor"])
    found = leak_of_releases(model(), ReleaseTable({**table.columns, "constrained_factor": factors}))
    one = found.leakage.by_user["anna"]
    assert found.unbounded == (3, 4)
    assert np.isinf(one.temporal).all(), "each moment has such a release before or after it"
    np.testing.assert_allclose(one.backward, [*plain.backward[:3], *[np.inf] * 4])
    np.testing.assert_allclose(one.forward, [*[np.inf] * 5, *plain.forward[5:]])
    assert (one.user_level, one.worst, found.epsilon) == (np.inf, np.inf, np.inf)
    assert one.largest_window(2) == (np.inf, 0)


def test_of_home_zones_the_bound_is_infinite_and_what_was_told_is_printed(tmp_path, monkeypatch):
    """Two places share noise and one is open: a release may tell for certain which of the two it came from."""
    monkeypatch.chdir(tmp_path)
    home = [[6.999, 44.999], [7.012, 44.999], [7.012, 45.006], [6.999, 45.006], [6.999, 44.999]]
    zone = {"type": "Feature", "properties": {"name": "home"}, "geometry": {"type": "Polygon", "coordinates": [home]}}
    (tmp_path / "home.geojson").write_text(json.dumps({"type": "FeatureCollection", "features": [zone]}))
    settings = ReleaseSettings("zone:home.geojson", 0.5, calibration="component")
    found = release_trajectory(settings.engine(model(), 3), GRID, walk(range(10, 15), (0, 1, 2, 1, 0)))
    model().save("model.npz")
    write_releases("releases.csv", ReleaseTable.from_releases(list(found)))
    options = ["leak", "--model", "model.npz", "--releases", "releases.csv"]
    made_with = ["--policy", "zone:home.geojson", "--calibration", "component", "--epsilon", "0.5"]
    done = CliRunner().invoke(main, [*options, *made_with])
    assert done.exit_code == 0, done.output
    assert "leakage is infinite" in done.stdout
    assert "really told, of two places that the policy joins: a release moved their log odds by" in done.stdout
    told = json.loads(CliRunner().invoke(main, [*options, *made_with, "--json"]).stdout)
    assert (told["worst"], told["unbounded"]) == (None, [1, 2, 3, 4, 5])
    assert 0 < told["realised"]["so_far_most"] <= 5 * 0.5 * (1 + 1e-9)
    refused = CliRunner().invoke(main, [*options, "--plot", "leak.png"])
    assert refused.exit_code == 2
    assert "leakage is infinite; leave --plot out" in refused.output


def test_the_command_says_how_many_releases_ruled_places_out():
    at_once = {"is_by_edge": True, "releases_that_ruled_out": 4, "vacuous": 3, "told_apart": 1, "worst_places": [2, 5]}
    counted = {"compared": 7, "ruled_out_first": 1, "ruled_out_second": 2, "ruled_out_both": 1}
    runner = CliRunner()
    command = click.Command("say", callback=lambda: _print_ruled_out({**at_once, "worst_releases": counted}))
    said = " ".join(runner.invoke(command).stdout.split())
    assert "4 releases ruled places out" in said
    assert "both of 3 joined pairs are ruled out by now" in said
    assert "one alone of 1, which tells the two apart for certain" in said
    assert "states 2 and 5, 7 releases compare them; 1 ruled out the first, 2 the second, 1 both" in said
