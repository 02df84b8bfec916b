"""Tests of ``dphmm calibrate``: releases meet the printed figures."""

from __future__ import annotations

import json
import re
from math import log

import numpy as np
import pytest

from dphmm import MarkovModel, ReleaseSettings
from dphmm.jobs import UsesSettings, compare_uses, sample_users
from dphmm.space import Grid

GRID = Grid.over((45.0, -30.0, 45.02, -29.97), 0.5)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    near = np.linalg.norm(GRID.points[:, np.newaxis] - GRID.points, axis=2) < 0.6
    moves = 0.2 * near / near.sum(axis=1, keepdims=True) + 0.8 * np.eye(len(near))
    MarkovModel(moves, np.full(len(near), 1 / len(near)), states=GRID, step_seconds=3600.0).save(tmp_path / "m.npz")
    monkeypatch.chdir(tmp_path)
    return tmp_path


BASIC = ("calibrate", "--model", "m.npz", "--policy", "utility:1km")


def test_error_in_metres_and_printed_command_agree(folder, run):
    done = run(*BASIC, "--error", "1.5km", "--num-users", "0")
    assert done.exit_code == 0, done.output
    assert re.search(r"^ *policy +utility:1km \(locations within 1 km\)$", done.stdout, re.MULTILINE)
    line = done.stdout.splitlines()[-1]
    assert line.startswith("Run: dphmm release DATA --model m.npz --policy utility:1km --epsilon ")
    (folder / "walk.csv").write_text("user,time,lat,lon\na,2024-03-07T09:00:00Z,45.001,-29.99\n")
    words = line.removeprefix("Run: dphmm ").replace("DATA", "walk.csv").replace("releases.gpkg", "out.csv").split()
    released = run(*words, "--json")
    assert 1500 <= json.loads(released.stdout)["median_release_rmse_m"] <= 1500 * 1.001


def test_printed_command_names_settings_file_if_needed(folder, run):
    done = run(*BASIC, "--error", "1.5km", "--num-users", "0", {"outside": "drop", "spacing": "1/500"})
    assert done.exit_code == 0, done.output
    line = done.stdout.splitlines()[-1]
    assert " --settings settings.toml -o releases.gpkg  # settings.toml: " in line
    (folder / "settings.toml").write_text(line.partition("# settings.toml: ")[2].replace(", ", "\n"))
    (folder / "walk.csv").write_text("user,time,lat,lon\na,2024-03-07T09:00:00Z,45.001,-29.99\n")
    words = line.partition("  #")[0].removeprefix("Run: dphmm ").replace("DATA", "walk.csv")
    released = run(*words.replace("releases.gpkg", "out.csv").split(), "--json")
    assert json.loads(released.stdout)["outside"] == "drop"


def test_help_does_not_offer_the_epsilon_that_is_refused(run):
    words = run("calibrate", "--help").stdout.split()
    assert "--window-epsilon" in words
    assert "--epsilon" not in words


@pytest.mark.slow
def test_json_contains_figures_intervals_and_row(folder, run):
    options = (
        "--adversary-error",
        "500m",
        "--horizon",
        "5h",
        "--num-users",
        "6",
        "--report-epsilons",
        "0.05,1",
        "--json",
    )
    output = json.loads(run(*BASIC, *options).stdout)
    achieved = output["achieved"]
    assert achieved["smoothed_adversary_error_m"] - achieved["smoothed_adversary_error_m_margin"] >= 500
    assert (output["num_releases"], output["num_users"], output["confidence"]) == (5, 6, 0.99)
    assert [row["epsilon"] for row in output["report"]] == [0.05, 1.0]
    assert achieved["epsilon_24h"] == pytest.approx(24 * output["epsilon"])
    again = json.loads(run(*BASIC, *options).stdout)
    assert again == output, "simulated users are reproducible"


def test_odds_limit_states_its_horizon(folder, run):
    done = run(*BASIC, "--max-odds-ratio", "3", "--horizon", "4h", "--num-users", "0")
    assert "all 4 releases jointly, every output" in done.stdout
    single = run(*BASIC, "--max-odds-ratio", "3", "--num-users", "0", "--json")
    assert 0 < json.loads(single.stdout)["epsilon"] < log(3)


EVENT = ("--event", "at:3,4 between 2 and 5")


@pytest.mark.slow
def test_event_limit_is_printed_with_simulation_and_cap(folder, run):
    output = json.loads(run(*BASIC, *EVENT, "--max-posterior", "0.8", "--num-users", "5", "--json").stdout)
    assert output["epsilon"] == output["max_epsilon_one_release"] == output["epsilon_by_target"]["max_posterior"]
    assert (output["num_releases"], output["targets"]["event"]) == (6, "at:3,4 between 2 and 5")
    assert 0 < output["prior_probability"] < 0.8
    assert output["failure_rate"] <= output["max_failure_rate"] <= 1
    assert output["capped_max_event_probability"] <= 0.8
    (folder / "walk.csv").write_text(
        "user,time,lat,lon\n" + "".join(f"a,2024-03-07T{h:02d}:00:00Z,45.001,-29.99\n" for h in range(9, 16))
    )
    line = output["capped_command"].removeprefix("dphmm ").replace("'", "").replace("DATA", "walk.csv")
    words = line.replace("releases.gpkg", "out.csv").split(" --event ")
    done = run(*words[0].split(), "--event", "at:3,4 between 2 and 5", "-o", "out.csv", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["epsilon"] == output["max_epsilon_one_release"]
    printed = run(*BASIC, *EVENT, "--max-posterior", "0.8", "--num-users", "5").stdout
    assert "a single release, every output" in printed
    assert "with --max-event-probability instead" in printed


@pytest.mark.slow
def test_longer_horizon_and_failure_rate_reduce_epsilon(run, folder):
    single = json.loads(run(*BASIC, *EVENT, "--max-posterior", "0.8", "--num-users", "0", "--json").stdout)
    all_of_them = json.loads(
        run(*BASIC, *EVENT, "--max-posterior", "0.8", "--num-users", "0", "--horizon", "6h", "--json").stdout
    )
    allowed_failures = json.loads(
        run(*BASIC, *EVENT, "--max-posterior", "0.8", "--num-users", "10", "--failure-rate", "0.4", "--json").stdout
    )
    assert all_of_them["epsilon"] < allowed_failures["epsilon"] < single["epsilon"]
    assert all_of_them["num_guaranteed_releases"] == 6
    assert allowed_failures["max_failure_rate"] <= 0.4
    odds = json.loads(run(*BASIC, *EVENT, "--max-odds-ratio", "3", "--num-users", "0", "--json").stdout)
    prior = odds["prior_probability"]
    assert odds["limit"] / (1 - odds["limit"]) == pytest.approx(3 * prior / (1 - prior))


@pytest.mark.slow
def test_event_dates_count_from_first_release(folder, run):
    dated = ("--event", "at:3,4 on 2024-03-04 any day 2-5", "--max-posterior", "0.8", "--num-users", "0", "--json")
    dated_result = json.loads(run(*BASIC, *dated, {"first": "2024-03-04T00:00Z"}).stdout)
    steps = json.loads(run(*BASIC, "--event", "at:3,4 between 2 and 4", *dated[2:]).stdout)
    assert dated_result["epsilon"] == steps["epsilon"]
    done = run(*BASIC, *dated)
    assert done.exit_code == 2
    assert "key 'first' of a settings file must be set for an event with dates" in done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("blank")
def test_trade_off_is_plotted(folder, run):
    pytest.importorskip("matplotlib")
    options = (
        "--window-epsilon",
        "5",
        "--horizon",
        "3h",
        "--num-users",
        "3",
        "--report-epsilons",
        "0.05,1",
        "--picture",
        "trade.png",
    )
    done = run(*BASIC, *options)
    assert done.exit_code == 0, done.output
    assert (folder / "trade.png").read_bytes().startswith(b"\x89PNG")
    words = done.stdout.split()  # headings are split into lines
    assert {"adversary", "error,", "past", "(m)"} <= set(words)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "at least one target must be given: --error"),
        (("--error", "300"), "--error must be a length with its unit, such as 500m or 1.2km, got '300'"),
        (("--error", "-5m"), "must be a length with its unit"),
        (("--error", "1km", "--epsilon", "1"), "--epsilon cannot be combined with a calibration"),
        (("--error", "1km", {"epsilon": 1}), "key 'epsilon' cannot be combined with a calibration"),
        (({"error": "300"},), "key 'error' must be a length with its unit"),
        (("--error", "1km", {"horizon": "5"}), "key 'horizon' must be a duration"),
        (("--error", "1km", {"report_epsilons": "a,b"}), "key 'report_epsilons' must be numbers with commas"),
        (("--error", "1km", "--report-epsilons", "a,b"), "--report-epsilons must be numbers with commas"),
        (("--error", "1km", "--report-epsilons", "0.5,-1"), "--report-epsilons must be in [1e-30, 1e+30]"),
        (("--error", "1km", "--picture", "t.png"), "--picture needs at least two budgets in --report-epsilons"),
        (("--adversary-error", "90km"), "the target error must be below"),
        (("--max-posterior", "0.001"), "--max-posterior must be above 0."),
        (("--error", "1km", "--horizon", "5"), "must be a duration such as"),
        ((*EVENT, "--error", "1km"), "event must have a limit, such as --max-posterior 0.7"),
        (
            (*EVENT, "--max-posterior", "0.01"),
            "above the prior probability of event 'at:3,4 between 2 and 5', got 0.01",
        ),
        ((*EVENT, "--max-posterior", "1"), "--max-posterior must be in (0, 1)"),
        ((*EVENT, "--max-odds-ratio", "1"), "--max-odds-ratio must be in (1, inf)"),
        (
            ("--event", "at:bar at 3", "--max-posterior", "0.5"),
            "location must be one of the cells 0 to 24, or a .geojson file, got 'bar'",
        ),
        (("--event", "home", "--max-posterior", "0.5"), "event 'home' must have a location such as"),
        ((*EVENT, "--max-posterior", "0.8", "--failure-rate", "2"), "--failure-rate must be in (0, 1)"),
        (("--error", "1km", "--failure-rate", "0.5"), "--failure-rate needs an event"),
        ((*EVENT, "--max-posterior", "0.8", "--failure-rate", "0.1"), "are too few for a failure rate of 0.1"),
        (
            (*EVENT, "--max-posterior", "0.8", "--failure-rate", "0.5", "--horizon", "5h"),
            "--horizon must be more than 18000 s with --failure-rate, to include the end of the event, got 18000 s",
        ),
        ((*EVENT, "--max-posterior", "0.8", "--failure-rate", "0.5", "--horizon", "6h"), "are too few for a failure"),
        ((*EVENT, "--max-posterior", "0.8", {"first": "noon"}), "key 'first' must be a time such as"),
        (("--error", "1km", "--user", "zz"), "--user needs --auxiliary-data: remove --user"),
        (("--error", "1km", "--input-format", "gpx"), "--input-format needs --auxiliary-data: remove --input-format"),
        (("--error", "1km", {"time_zone": "UTC"}), "key 'time_zone' needs --auxiliary-data: remove key 'time_zone'"),
        (("--error", "1km", "--horizon", "1m"), "--horizon must be at least the model's step"),
    ],
)
def test_invalid_input_prints_one_line_and_exits_with_2(folder, run, options, words):
    done = run(*BASIC, "--num-users", "0", *options)
    assert done.exit_code == 2
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert run("calibrate", "--error", "1km").exit_code == 2


@pytest.mark.slow
def test_uses_of_policies_and_budgets_are_those_of_compared_settings(run, folder):
    options = ("--error", "1.5km", "--num-users", "12", "--horizon", "4h", "--report-epsilons", "0.2", "--uses")
    done = run(*BASIC, *options, "--json", {"report_policies": ["complete"], "area_cells": 2})
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    model = MarkovModel.load(folder / "m.npz")
    epsilons = [0.2, result["epsilon"]]
    settings = [ReleaseSettings(policy, epsilon) for policy in ("utility:1km", "complete") for epsilon in epsilons]
    expected = compare_uses(model, settings, sample_users(model, 12, 4), num_patients=1, uses=UsesSettings(2))
    assert result["uses"] == [comparison.to_dict() for comparison in expected]
    printed = run(*BASIC, *options).stdout
    assert "Uses of the estimates, with 95 % intervals over users" in printed


def test_uses_without_simulated_users_are_refused(run, folder):
    for options, settings, message in (
        (("--num-users", "0", "--uses"), {}, "--num-users must be at least 2 for uses, got 0"),
        ((), {"report_policies": ["complete"]}, "key 'report_policies' needs uses"),
        (("--uses",), {"report_policies": ["utility:1xm"]}, "key 'report_policies' must be valid policies: "),
        (("--uses", "--map", "coast"), {}, "uses cannot be combined with auxiliary data or a map"),
    ):
        done = run(*BASIC, "--error", "1.5km", *options, settings)
        assert done.exit_code == 2
        assert message in done.output
