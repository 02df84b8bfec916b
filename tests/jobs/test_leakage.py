"""Tests of leakage: it bounds the information of all releases about any timestep."""

from __future__ import annotations

import itertools
import json
import re
import time
from dataclasses import replace
from fractions import Fraction

import click
import numpy as np
import pytest
from click.testing import CliRunner

from dphmm import Grid, MarkovModel, PolicyGraph, Releaser, ReleaseSettings, release_trajectory
from dphmm.cli.leakage import _describe_exclusions, _print_values
from dphmm.errors import ConfigurationError, InvalidInputError, TimeOrderError
from dphmm.jobs import Mobility, budget, compute_release_leakage, compute_stream_leakage, realized_leakage
from dphmm.model.belief import Belief
from dphmm.space.trajectory import SlottedTrajectory
from dphmm.writers import write_releases
from dphmm.writers.release_table import ReleaseTable
from tests import command_line
from tests.certificate.streams import find_refusal
from tests.sizes import mark_slow

GRID = Grid.over((45.0, 7.0, 45.004, 7.018), 0.5)
WALK = np.array([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.1, 0.4, 0.5]])
START = np.array([0.5, 0.3, 0.2])


def build_model() -> MarkovModel:
    assert GRID.size == 3
    return MarkovModel(WALK, START, states=GRID, step_seconds=300)


def walk(slots, states) -> SlottedTrajectory:
    latitude, longitude = GRID.latlon(np.array(states)).T
    return SlottedTrajectory("anna", 300, np.array(slots), latitude, longitude)


def release_states(seed: int, slots=(10, 11, 13), states=(0, 1, 1)):
    engine = Releaser(build_model(), GRID.points, PolicyGraph.from_edges(3, [(0, 1), (1, 2)]), 0.5, "k-norm", rng=seed)
    return list(release_trajectory(engine, GRID, walk(slots, states)))


def compute_log_likelihoods(releases) -> dict[int, np.ndarray]:
    """Return the log density of each release under every state, by slot, from public records."""
    engine = Releaser(build_model(), GRID.points, PolicyGraph.from_edges(3, [(0, 1), (1, 2)]), 0.5, "k-norm")
    belief = None
    slots = np.cumsum([r.record.steps for r in releases])
    values = {}
    for slot, entry in zip(slots.tolist(), releases, strict=True):
        prior = Belief.from_probabilities(START) if belief is None else belief.predict(engine.model, entry.record.steps)
        (mechanism,) = engine.build_plan(prior, entry.record.epsilon).noise.parts
        values[slot] = mechanism.log_density(entry.record.released, GRID.points)
        belief = prior.update(values[slot])
    return values


@pytest.mark.parametrize("seed", range(12))
def test_temporal_leakage_bounds_log_ratio_of_states_at_each_timestep(seed):
    releases = release_states(seed)
    leakage = compute_release_leakage(build_model(), ReleaseTable.from_releases(releases), "anna").leakage.by_user[
        "anna"
    ]
    assert leakage.epsilons[2] == 0.0
    assert leakage.temporal.shape == (4,)
    densities = compute_log_likelihoods(releases)
    for step, bound in enumerate(leakage.temporal):
        joint, marginal = np.zeros(3), np.zeros(3)
        for path in itertools.product(range(3), repeat=4):
            chance = START[path[0]] * np.prod([WALK[a, b] for a, b in itertools.pairwise(path)])
            joint[path[step]] += chance * np.exp(sum(values[path[t]] for t, values in densities.items()))
            marginal[path[step]] += chance
        log_ratio = np.log(joint / marginal)
        assert np.ptp(log_ratio) <= bound * (1 + 1e-12)


def test_budgets_are_constrained_costs():
    releases = release_states(0)
    budgets = (
        compute_release_leakage(build_model(), ReleaseTable.from_releases(releases)).leakage.by_user["anna"].epsilons
    )
    np.testing.assert_allclose(budgets[[0, 1, 3]], [r.record.constrained_epsilon for r in releases])
    assert budgets.max() > 0.5


def test_leak_command_accepts_releases(tmp_path):
    build_model().save(tmp_path / "model.npz")
    write_releases(tmp_path / "releases.csv", ReleaseTable.from_releases(release_states(1)))
    options = ["--model", str(tmp_path / "model.npz"), "--releases", str(tmp_path / "releases.csv"), "--json"]
    done = command_line.run("leak", *options)
    assert done.exit_code == 0, done.output
    leakage = compute_release_leakage(build_model(), ReleaseTable.from_releases(release_states(1)), "anna").leakage
    np.testing.assert_allclose(json.loads(done.output)["users"]["anna"]["temporal"], leakage.temporal, rtol=1e-9)


def test_leak_and_budget_commands_accept_learned_model(tmp_path):
    build_model().save(tmp_path / "model.npz")
    options = ["--model", str(tmp_path / "model.npz"), "--json"]
    leak = command_line.run("leak", *options, "--epsilon", "0.1", "--steps", "5")
    budget = command_line.run("budget", *options, "--alpha", "0.5")
    assert (leak.exit_code, budget.exit_code) == (0, 0), leak.output + budget.output
    assert json.loads(leak.output)["worst"] > 0.1
    assert 0 < json.loads(budget.output)["budgets"][0] < 0.5


def test_user_without_releases_raises():
    with pytest.raises(InvalidInputError, match="'bob'"):
        compute_release_leakage(build_model(), ReleaseTable.from_releases(release_states(0)), "bob")


def test_releases_of_another_model_raise(tmp_path):
    """Another model has other possible states, so the rows' factors bound nothing under it."""
    write_releases(tmp_path / "r.csv", ReleaseTable.from_releases(release_states(0)))
    other = MarkovModel(WALK, START[::-1], states=GRID, step_seconds=300)
    words = f"user anna was released with model {build_model().content_hash[:16]}, got {other.content_hash[:16]}"
    with pytest.raises(ConfigurationError, match=rf"r\.csv: {words}"):
        compute_release_leakage(other, tmp_path / "r.csv")
    with pytest.raises(ConfigurationError, match=words):
        realized_leakage(other, tmp_path / "r.csv", "complete")


def test_releases_without_a_row_raise(tmp_path):
    empty = ReleaseTable.from_releases(())
    with pytest.raises(ConfigurationError, match="the table contains no release"):
        compute_release_leakage(build_model(), empty)
    write_releases(tmp_path / "r.csv", empty)
    with pytest.raises(ConfigurationError, match=r"r\.csv contains no release"):
        realized_leakage(build_model(), tmp_path / "r.csv", ReleaseSettings())


def test_two_releases_in_one_step_raise():
    """One of the two budgets would not be counted."""
    releases = [*release_states(0), release_states(1)[-1]]
    with pytest.raises(TimeOrderError, match="user 'anna' must be in different steps of 300 s, got two in one step"):
        compute_release_leakage(build_model(), ReleaseTable.from_releases(releases))


def test_two_users_without_choice_raise():
    releases = [*release_states(0), *(replace(entry, user="bob") for entry in release_states(1))]
    with pytest.raises(ConfigurationError, match="2 users"):
        compute_release_leakage(build_model(), ReleaseTable.from_releases(releases))


def test_pair_of_matrices_may_be_a_list_and_other_values_raise():
    matrix = [[0.8, 0.2], [0, 1]]
    leakage = [compute_stream_leakage(pair, [0.1] * 5).leakage for pair in ([matrix, None], (matrix, None))]
    assert (leakage[0].temporal == leakage[1].temporal).all()
    for adversaries in ("x", {"ann": 1}, (matrix,), [matrix, None, None]):
        for call, value in ((compute_stream_leakage, [0.1]), (budget, 0.1)):
            with pytest.raises(InvalidInputError, match=r"adversaries must be .* pair of matrices"):
                call(adversaries, value)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [300_000, mark_slow(2_000_000)])
def test_leakage_over_years_is_computed_in_seconds(steps):
    """Evaluating each of two million timesteps separately would take minutes."""
    table = ReleaseTable.from_releases(release_states(0, slots=(10, 11, steps + 13)))
    start = time.process_time()
    leakage = compute_release_leakage(build_model(), table).leakage.by_user["anna"]
    assert time.process_time() - start < 20 * steps / 2_000_000
    assert len(leakage.epsilons) == steps + 4
    assert leakage.backward[steps // 2] < 1e-9 < leakage.backward[-1]


def test_budget_divided_by_factor_of_policy_bounds_leakage_of_releases():
    """The ends of the policy graph are two edges apart, so the undivided budget leaks more."""
    stationary = np.linalg.matrix_power(WALK, 99)[0]
    mobility = MarkovModel(WALK, stationary, states=GRID, step_seconds=300)
    (constant,) = budget(Mobility.from_source(mobility), 1.0).budgets
    table = ReleaseTable.from_releases(release_states(0, range(30), [1] * 30))
    columns = {**table.columns, "model_hash": np.full(30, mobility.content_hash[:16], object)}

    def compute_largest_leakage(epsilon):
        spent = ReleaseTable({**columns, "epsilon": np.full(30, epsilon)})
        return compute_release_leakage(mobility, spent).leakage.by_user["anna"].temporal.max()

    assert table["constrained_dp_factor"] == pytest.approx(2)
    assert 0.99 < compute_largest_leakage(constant / 2.0) <= 1.0 + 1e-9
    assert compute_largest_leakage(constant) > 1.5


def test_leakage_is_certified(tmp_path, monkeypatch):
    """The budget is the row's factor times its epsilon, or zero without a release."""
    monkeypatch.chdir(tmp_path)
    table = ReleaseTable.from_releases(release_states(0))
    write_releases("r.csv", table)
    build_model().save("model.npz")
    command = ["leak", "--model", "model.npz", "--releases", "r.csv", "--json", "--certificate"]
    done = command_line.run(*command, "proof.jsonl")
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in (tmp_path / "proof.jsonl").read_text().splitlines()]
    assert find_refusal(lines, None) is None
    (budgets_line,) = [line for line in lines if "budgets" in line]
    spent = table["constrained_dp_factor"] * table["epsilon"]
    assert [float(Fraction(budget)) for budget in budgets_line["budgets"]] == [spent[0], spent[1], 0.0, spent[2]]
    leakage = compute_release_leakage(build_model(), table).leakage.by_user["anna"]
    assert [float(value) for value in budgets_line["temporal"]] == pytest.approx(leakage.temporal.tolist(), rel=1e-9)
    budgets_line["budgets"][0] = "1/10"
    assert "leakage" in (find_refusal(lines, None) or "")
    flat = ReleaseTable({**table.columns, "constrained_dp_factor": np.array([1, np.inf, 1])})
    with pytest.raises(ConfigurationError, match="possible state"):
        compute_release_leakage(build_model(), flat, certificate=tmp_path / "none.jsonl")
    assert not (tmp_path / "none.jsonl").exists()


def test_model_with_too_many_moves_uses_sum_as_bound(monkeypatch):
    table = ReleaseTable.from_releases(release_states(0, slots=(10, 11, 40)))
    exact = compute_release_leakage(build_model(), table)
    assert exact.uses_transitions
    monkeypatch.setattr("dphmm.jobs.leakage.MAX_TRANSITIONS", 1)
    bound = compute_release_leakage(build_model(), table)
    assert not bound.uses_transitions
    leakage, other = exact.leakage.by_user["anna"], bound.leakage.by_user["anna"]
    assert (other.temporal >= leakage.temporal - 1e-12).all()
    assert other.temporal == pytest.approx(np.full(31, leakage.epsilons.sum()))
    assert other.temporal.max() > 1.01 * leakage.temporal.max(), "the exact leakage is smaller"


def test_leakage_is_infinite_between_unbounded_releases():
    table = ReleaseTable.from_releases(release_states(0, slots=(10, 11, 13, 14, 16), states=(0, 1, 1, 2, 1)))
    plain = compute_release_leakage(build_model(), table).leakage.by_user["anna"]
    factors = np.where(np.isin(np.arange(5), [2, 3]), np.inf, table["constrained_dp_factor"])
    result = compute_release_leakage(build_model(), ReleaseTable({**table.columns, "constrained_dp_factor": factors}))
    leakage = result.leakage.by_user["anna"]
    assert result.unbounded_times == (3, 4)
    assert np.isinf(leakage.temporal).all(), "each timestep has such a release before or after it"
    np.testing.assert_allclose(leakage.backward, [*plain.backward[:3], *[np.inf] * 4])
    np.testing.assert_allclose(leakage.forward, [*[np.inf] * 5, *plain.forward[5:]])
    assert (leakage.user_level, leakage.worst, result.epsilon) == (np.inf, np.inf, np.inf)
    assert leakage.largest_window(2) == (np.inf, 0)


def test_home_zones_have_infinite_bound_and_realized_leakage_is_printed(tmp_path, monkeypatch):
    """Two places share noise and one is open. A release may distinguish them with certainty."""
    monkeypatch.chdir(tmp_path)
    home = [[6.999, 44.999], [7.012, 44.999], [7.012, 45.006], [6.999, 45.006], [6.999, 44.999]]
    zone = {"type": "Feature", "properties": {"name": "home"}, "geometry": {"type": "Polygon", "coordinates": [home]}}
    (tmp_path / "home.geojson").write_text(json.dumps({"type": "FeatureCollection", "features": [zone]}))
    settings = ReleaseSettings("zone:home.geojson", 0.5, noise_scope="component")
    releases = release_trajectory(settings.engine(build_model(), 3), GRID, walk(range(10, 15), (0, 1, 2, 1, 0)))
    build_model().save("model.npz")
    write_releases("releases.csv", ReleaseTable.from_releases(list(releases)))
    options = ["leak", "--model", "model.npz", "--releases", "releases.csv"]
    made_with = ["--policy", "zone:home.geojson", "--noise-scope", "component", "--epsilon", "0.5"]
    done = command_line.run(*options, *made_with)
    assert done.exit_code == 0, done.output
    assert re.search(r"max TPL +unbounded", done.stdout)
    assert "Realized leakage of these outputs" in done.stdout
    output = json.loads(command_line.run(*options, *made_with, "--json").stdout)
    assert (output["worst"], output["unbounded_times"]) == (None, [1, 2, 3, 4, 5])
    assert 0 < output["realized"]["max_total_log_odds"] <= 5 * 0.5 * (1 + 1e-9)
    refused = command_line.run(*options, "--picture", "leak.png")
    assert refused.exit_code == 2
    assert "--picture cannot be combined with unbounded leakage" in refused.output


def test_leak_command_counts_excluded_states():
    at_once = {
        "is_by_edge": True,
        "num_excluding_releases": 4,
        "num_vacuous": 3,
        "num_distinguished": 1,
        "worst_pair": [2, 5],
    }
    counted = {"compared": 7, "excluded_first": 1, "excluded_second": 2, "excluded_both": 1}
    runner = CliRunner()
    lines = _describe_exclusions({**at_once, "worst_pair_counts": counted})
    command = click.Command("print", callback=lambda: _print_values("Realized leakage", lines))
    output = " ".join(runner.invoke(command).stdout.split())
    assert "releases that ruled out states (not in the sums) 4" in output
    assert "connected pairs with both states ruled out 3" in output
    assert "connected pairs with one state ruled out 1" in output
    assert "releases for states 2 and 5 7 compared; ruled out first 1, second 2, both 1" in output
