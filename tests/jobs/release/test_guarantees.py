"""Tests of smoothed summaries against all paths of three states, and of warnings."""

from __future__ import annotations

import csv
import json
import statistics
from itertools import pairwise, product

import numpy as np
import pytest
from scipy.optimize import minimize

from dphmm import MarkovModel, PolicyGraph, Releaser, ReleaseSettings
from dphmm.audit.realized_leakage import compute_realized_leakage
from dphmm.audit.sequence import ReleasedSequence
from dphmm.errors import ConfigurationError
from dphmm.jobs import Data, learn, realized_leakage, release
from dphmm.jobs.release.exposure import select_exposure_rows, summarize_exposure
from dphmm.jobs.release.guarantees import _build_disclosure_rows, collect_warnings
from dphmm.jobs.release.stored import compute_hindsight
from dphmm.release.trajectory_release import release_trajectory
from dphmm.space import Grid, Places, Trajectory
from dphmm.writers.formats import write_releases
from dphmm.writers.release_table import ReleaseTable
from dphmm.writers.summary import summarise, write_summary
from tests import command_line

STOPS = Places(["a", "b", "c"], [45.0, 45.006, 45.0], [7.0, 7.006, 7.012])
MOVES = np.array([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.1, 0.4, 0.5]])
FIRST = np.array([0.5, 0.3, 0.2])
SETTINGS = ReleaseSettings("complete", 0.7)
PATH = [0, 0, 1, 2, 2]


def release_walk(seed: int, hours: float = 1.0, engine: Releaser | None = None):
    """Return an engine and the table of five releases."""
    model = MarkovModel(MOVES, FIRST, states=STOPS, step_seconds=3600.0 * hours)
    engine = engine or SETTINGS.engine(model, seed)
    start = np.datetime64("2024-03-07T22:00:00", "us")
    times = start + np.arange(5) * np.timedelta64(int(3600 * hours), "s")
    track = Trajectory("ann", times, STOPS.latitude[PATH], STOPS.longitude[PATH]).resample(3600.0 * hours)
    return engine, ReleaseTable.from_releases(release_trajectory(engine, STOPS, track))


def smooth_by_enumeration(engine, table) -> np.ndarray:
    """Return ``Pr(s_t | z_1..5)``, shape ``(5, 3)``, by enumeration of all 243 paths.

    The densities are those at full support.
    """
    fresh = engine.spawn()
    step = fresh.prepare()  # every state is always possible, so one mechanism suffices
    rows = [np.exp(fresh.log_likelihood(step, [x, y])) for x, y in zip(table["x_km"], table["y_km"], strict=True)]
    beliefs = np.zeros((5, 3))
    for path in product(range(3), repeat=5):
        weight = FIRST[path[0]] * np.prod([MOVES[a, b] for a, b in pairwise(path)])
        weight *= np.prod([row[s] for row, s in zip(rows, path, strict=True)])
        beliefs[np.arange(5), path] += weight
    return beliefs / beliefs.sum(axis=1, keepdims=True)


def minimize_distance(p: np.ndarray, points: np.ndarray) -> float:
    optimum = minimize(lambda q: p @ np.linalg.norm(points - q, axis=1), p @ points, method="Nelder-Mead")
    return min(optimum.fun, *(float(p @ np.linalg.norm(points - q, axis=1)) for q in points))


@pytest.mark.parametrize("seed", range(5))
def test_smoothed_figures_match_path_enumeration(seed):
    engine, table = release_walk(seed)
    hindsight, exact = compute_hindsight(table, engine), smooth_by_enumeration(engine, table)
    np.testing.assert_allclose(hindsight.max_posterior, exact.max(axis=1), rtol=1e-9)
    minimum = [1000 * minimize_distance(p, engine.measurements.points) for p in exact]
    assert (hindsight.error_m <= np.array(minimum) * (1 + 1e-6)).all()
    assert (hindsight.error_m >= 0.98 * np.array(minimum) - 1e-6).all()
    (row,) = summarise(table, hindsight=hindsight)
    assert row["smoothed_max_posterior"] == hindsight.max_posterior.max()
    assert row["smoothed_median_adversary_error_m"] == np.median(hindsight.error_m)
    assert not np.allclose(hindsight.max_posterior, table["adversary_max_posterior"]), "filtered values differ"


def test_open_timesteps_are_summarised_separately():
    """State c is open and known exactly. This is independent of the protection of a and b."""
    model = MarkovModel(MOVES, FIRST, states=STOPS, step_seconds=3600.0)
    policy = PolicyGraph.from_edges(3, [(0, 1)]).with_open([False, False, True])
    engine = Releaser(model, STOPS.points, policy, 0.7, rng=2, noise_scope="component")
    _, table = release_walk(0, engine=engine)
    hindsight = compute_hindsight(table, engine.spawn())
    (row,) = summarise(table, hindsight=hindsight)
    assert row["num_unprotected"] == table["unprotected"].sum() == 2
    hidden = ~table["unprotected"]
    assert row["max_posterior"] == table["adversary_max_posterior"][hidden].max() < 0.9
    assert row["min_adversary_error_m"] == table["adversary_error_m"][hidden].min() > 50
    assert row["smoothed_max_posterior"] == hindsight.max_posterior[hidden].max() < 0.9
    assert row["median_estimate_error_m"] == np.median(table["estimate_error_m"][hidden])
    assert table["adversary_max_posterior"].max() == 1.0, "including open timesteps, the maximum would be 1"
    (opened,) = summarise(table.select(~hidden))
    assert summarize_exposure([opened])["max_posterior"] is None
    assert not [warning for warning in collect_warnings([opened], "complete") if "probability" in warning]
    released = np.stack([table["x_km"], table["y_km"]], axis=1)
    leakage = compute_realized_leakage(
        engine.spawn(), ReleasedSequence("ann", released, table["epsilon"], [0, 1, 1, 1, 1])
    )
    assert leakage.is_unprotected.tolist() == (~hidden).tolist()
    assert leakage.to_dict()["max_posterior"] == leakage.max_posterior[hidden].max()


def test_daily_summary_rows_use_only_that_day(tmp_path):
    engine, table = release_walk(1)
    days = summarise(table, daily=True, hindsight=compute_hindsight(table, engine))
    assert [(row["day"], row["num_releases"]) for row in days] == [("2024-03-07", 2), ("2024-03-08", 3)]
    assert [row["epsilon_total"] for row in days] == pytest.approx([1.4, 2.1])
    assert [row["max_epsilon_24h"] for row in days] == [1.4, 3.5], "24 hours may reach into the day before"
    write_summary(tmp_path / "days.csv", table, daily=True)
    assert (tmp_path / "days.csv").read_text().startswith("user,day,num_releases,")


def test_daily_epsilon_excludes_releases_older_than_a_day():
    _, table = release_walk(1, hours=12.0)
    assert table["epsilon_24h"].tolist() == [0.7, 1.4, 1.4, 1.4, 1.4]
    assert table["epsilon_total"].tolist() == [0.7, 1.4, 2.1, 2.8, 3.5]


def make_row(**changes):
    calm = {"user": "ann", "max_epsilon_24h": 10.0, "max_posterior": 0.5}
    return {**calm, "median_estimate_error_m": 1000.0, **changes}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"max_epsilon_24h": 10.1},
            ["24 hours of releases spend a total epsilon of 10.1 on ann, a factor of up to e^10.1: use"],
        ),
        ({"max_posterior": 0.51}, ["assigns up to 51 % to one location of ann: reduce epsilon"]),
        (
            {"smoothed_max_posterior": 0.7},
            ["all releases assigns up to 70 % to one location of ann"],
        ),
        (
            {"median_estimate_error_m": 999.0},
            ["expected error of 999 m, below the policy's radius of 1,000 m"],
        ),
        ({"max_epsilon_24h": float("nan")}, []),
        ({}, []),
    ],
    ids=["epsilon", "confidence", "smoothed confidence", "estimate error", "unknown epsilon", "none"],
)
def test_warnings_start_above_limits_and_name_remedy(changes, words):
    warnings = collect_warnings([make_row(**changes)], "utility:1km")
    assert len(warnings) == len(words)
    for text, word in zip(warnings, words, strict=True):
        assert word in text
        assert max(len(part.split()) for part in text.split(": ")) <= 30
        assert "dphmm calibrate" in text


def test_exposure_uses_most_exposed_user():
    _, table = release_walk(2)
    (summary,) = summarise(table)
    other = {**summary, "user": "bob", "median_adversary_error_m": 1.0, "max_posterior": 0.999}
    facts = summarize_exposure([summary, other])
    assert (facts["min_user_median_adversary_error_m"], facts["max_posterior"]) == (1.0, 0.999)
    assert facts["max_user_median_max_posterior"] == summary["median_max_posterior"]
    assert facts["max_epsilon_24h"] == 3.5
    assert "median_adversary_error_m" not in facts, "the extreme over users has its own name"


@pytest.mark.slow
def test_medians_over_timesteps_and_over_users_have_own_names(tmp_path):
    """The medians are recomputed from the file, with users of different length."""
    space = Grid.over((44.97, -30.04, 45.03, -29.96), 0.5)
    town = Data(("data/sample/geolife",), users=("000", "001"))
    others = Data(("data/sample/geolife",), exclude_users=("000", "001"))
    model = learn(others, space, step_seconds=900).model
    released = release(town, model, ReleaseSettings("utility:1km", 0.5), tmp_path / "r.csv", rng=1)
    result = released.to_dict()
    with (tmp_path / "r.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    for column, end, select in (
        ("estimate_error_m", "median_estimate_error_m", min),
        ("adversary_error_m", "median_adversary_error_m", min),
        ("adversary_max_posterior", "median_max_posterior", max),
    ):
        users = [[float(row[column]) for row in rows if row["user"] == user] for user in ("000", "001")]
        assert result[end] == statistics.median(users[0] + users[1])
        assert result[f"{select.__name__}_user_{end}"] == select(map(statistics.median, users)) != result[end]
    smoothed = released.hindsight.error_m
    assert result["smoothed_median_adversary_error_m"] == statistics.median(smoothed.tolist())
    assert result["smoothed_min_user_median_adversary_error_m"] < result["smoothed_median_adversary_error_m"]


def test_stated_noise_is_that_of_the_user_with_the_least():
    table = release_walk(3)[1]
    users = np.array(["ann", "bob"] * len(table), dtype=object)[: len(table)]
    errors = np.where(users == "ann", 900.0, 100.0)
    table = ReleaseTable({**table.columns, "user": users, "component_error_m": errors})
    rows = _build_disclosure_rows(table, summarise(table))
    assert rows[0] == ("RMS noise of a released point (median)", "100 m", "")


def test_realized_leakage_is_computed_from_file(tmp_path):
    engine, table = release_walk(3)
    write_releases(tmp_path / "r.csv", table)
    leakage = realized_leakage(engine.model, tmp_path / "r.csv", "complete", "ann")
    np.testing.assert_allclose(
        leakage.max_posterior, table["adversary_max_posterior"], rtol=1e-6
    )  # the file has 7 digits
    assert leakage.release_log_odds.max() <= 0.7 * (1 + 1e-9)
    assert leakage.to_dict()["worst_timestep"] in range(1, 6)
    with pytest.raises(ConfigurationError, match="'bob'"):
        realized_leakage(engine.model, tmp_path / "r.csv", "complete", "bob")


def test_leak_command_prints_realized_leakage_and_bound(tmp_path, monkeypatch):
    engine, table = release_walk(3)
    monkeypatch.chdir(tmp_path)
    write_releases("r.csv", table)
    engine.model.save("m.npz")
    arguments = ["leak", "--releases", "r.csv", "--model", "m.npz"]
    done = command_line.run(*arguments, "--policy", "complete")
    assert done.exit_code == 0, done.output
    assert "Realized leakage of these outputs" in done.stdout
    assert "max log odds, 24 hours" in done.stdout
    assert done.stdout.index("Realized leakage") < done.stdout.index("Not covered")
    realized = json.loads(command_line.run(*arguments, "--policy", "complete", "--json").stdout)["realized"]
    assert realized["max_release_log_odds"] <= 0.7 * (1 + 1e-9)
    assert "realized" not in json.loads(command_line.run(*arguments, "--json").stdout)
    refused = command_line.run("leak", "--policy", "complete", "--epsilon", "1", "--steps", "2")
    assert refused.exit_code == 2
    assert "--policy needs --releases" in refused.output


@pytest.mark.parametrize("hindsight", [False, True])
def test_best_known_users_yield_same_summary_as_all_users(hindsight):
    """Rows are added one by one, as a batch does. The first row with each maximum is kept."""
    rng = np.random.default_rng(20240307)
    keys = ["max_epsilon_24h", "median_estimate_error_m", "median_adversary_error_m", "min_adversary_error_m"]
    keys += ["median_max_posterior", "max_posterior"]
    if hindsight:
        keys += [f"smoothed_{name}" for name in ("median_adversary_error_m", "min_adversary_error_m")]
        keys += [f"smoothed_{name}" for name in ("median_max_posterior", "max_posterior")]
    figures = rng.integers(1, 30, (200, len(keys))).astype(float).tolist()
    rows = [{"user": f"u{number}", **dict(zip(keys, values, strict=True))} for number, values in enumerate(figures)]
    for row in rows[::3]:
        row["max_epsilon_24h"] = float("nan")  # unknown
    few = []
    for row in rows:
        few = select_exposure_rows([*few, row])
    assert len(few) <= 9
    assert summarize_exposure(few) == summarize_exposure(rows)
    assert summarize_exposure(rows)["max_posterior"] == max(row["max_posterior"] for row in rows)
    assert collect_warnings(few, "utility:1km") == collect_warnings(rows, "utility:1km")
    assert len(collect_warnings(rows, "utility:1km")) == 3
