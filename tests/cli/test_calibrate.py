"""``dphmm calibrate``: what it prints is what releases then do; bad input is one line and exit code 2."""

from __future__ import annotations

import json
from math import log

import numpy as np
import pytest

from dphmm import MarkovModel
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


def test_metres_and_the_line_to_run(folder, run):
    done = run(*BASIC, "--error", "1.5km", "--people", "0")
    assert done.exit_code == 0, done.output
    line = done.stdout.splitlines()[-1]
    assert line.startswith("Run: dphmm release DATA --model m.npz --policy utility:1km --epsilon ")
    (folder / "walk.csv").write_text("user,time,lat,lon\na,2024-03-07T09:00:00Z,45.001,-29.99\n")
    words = line.removeprefix("Run: dphmm ").replace("DATA", "walk.csv").replace("releases.gpkg", "out.csv").split()
    released = run(*words, "--json")
    assert 1500 <= json.loads(released.stdout)["expected_error_m_median"] <= 1500 * 1.001


def test_json_has_every_figure_with_its_interval_and_the_row(folder, run):
    options = ("--adversary-error", "500m", "--over", "5h", "--people", "6", "--row", "0.05,1", "--json")
    told = json.loads(run(*BASIC, *options).stdout)
    achieved = told["achieved"]
    assert achieved["adversary_error_m_in_hindsight"] - achieved["adversary_error_m_in_hindsight_give_or_take"] >= 500
    assert (told["releases"], told["people"], told["confidence"]) == (5, 6, 0.99)
    assert [one["epsilon"] for one in told["row"]] == [0.05, 1.0]
    assert achieved["epsilon_a_day"] == pytest.approx(24 * told["epsilon"])
    again = json.loads(run(*BASIC, *options).stdout)
    assert again == told, "people follow from the seed"


def test_a_limit_on_odds_is_said_with_how_long_it_holds(folder, run):
    done = run(*BASIC, "--odds", "3", "--over", "4h", "--people", "0")
    assert "all of 4 releases together, whatever is drawn" in done.stdout
    one = run(*BASIC, "--odds", "3", "--people", "0", "--json")
    assert 0 < json.loads(one.stdout)["epsilon"] < log(3)


EVENT = ("--event", "at:3,4 between 2 and 5")


def test_a_limit_on_an_event_is_said_with_what_simulated_people_show_and_what_a_cap_does(folder, run):
    told = json.loads(run(*BASIC, *EVENT, "--certainty", "0.8", "--people", "5", "--json").stdout)
    assert told["epsilon"] == told["epsilon_for_one_release"] == told["epsilon_by_target"]["certainty"]
    assert (told["releases"], told["targets"]["event"]) == (6, "at:3,4 between 2 and 5")
    assert 0 < told["probability_before"] < 0.8
    assert told["share_of_those_above"] <= told["share_of_those_above_most"] <= 1
    assert told["never_surer_event_probability_most"] <= 0.8
    (folder / "walk.csv").write_text(
        "user,time,lat,lon\n" + "".join(f"a,2024-03-07T{h:02d}:00:00Z,45.001,-29.99\n" for h in range(9, 16))
    )
    line = told["command_with_a_cap"].removeprefix("dphmm ").replace("'", "").replace("DATA", "walk.csv")
    words = line.replace("releases.gpkg", "out.csv").split(" --event ")
    done = run(*words[0].split(), "--event", "at:3,4 between 2 and 5", "-o", "out.csv", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["epsilon_of_each"] == told["epsilon_for_one_release"]
    printed = run(*BASIC, *EVENT, "--certainty", "0.8", "--people", "5").stdout
    assert "one release, where no other is made, whatever is drawn" in printed
    assert "with --never-surer instead" in printed


def test_all_releases_together_and_shares_of_people_take_less(run, folder):
    one = json.loads(run(*BASIC, *EVENT, "--certainty", "0.8", "--people", "0", "--json").stdout)
    all_of_them = json.loads(
        run(*BASIC, *EVENT, "--certainty", "0.8", "--people", "0", "--over", "6h", "--json").stdout
    )
    some = json.loads(run(*BASIC, *EVENT, "--certainty", "0.8", "--people", "10", "--share", "0.4", "--json").stdout)
    assert all_of_them["epsilon"] < some["epsilon"] < one["epsilon"]
    assert all_of_them["guaranteed_releases"] == 6
    assert some["share_of_those_above_most"] <= 0.4
    odds = json.loads(run(*BASIC, *EVENT, "--odds", "3", "--people", "0", "--json").stdout)
    prior = odds["probability_before"]
    assert odds["limit"] / (1 - odds["limit"]) == pytest.approx(3 * prior / (1 - prior))


def test_dates_are_counted_from_the_first_release_that_is_said(folder, run):
    dated = ("--event", "at:3,4 on 2024-03-04 any day 2-5", "--certainty", "0.8", "--people", "0", "--json")
    found = json.loads(run(*BASIC, *dated, "--first", "2024-03-04T00:00Z").stdout)
    steps = json.loads(run(*BASIC, "--event", "at:3,4 between 2 and 4", *dated[2:]).stdout)
    assert found["epsilon"] == steps["epsilon"]
    done = run(*BASIC, *dated)
    assert done.exit_code == 2
    assert "it is not known when the first release is" in done.stderr


@pytest.mark.usefixtures("blank")
def test_the_trade_off_is_drawn(folder, run):
    pytest.importorskip("matplotlib")
    options = ("--day-epsilon", "5", "--over", "3h", "--people", "3", "--row", "0.05,1", "--plot", "trade.png")
    done = run(*BASIC, *options)
    assert done.exit_code == 0, done.output
    assert (folder / "trade.png").read_bytes().startswith(b"\x89PNG")
    assert "in hindsight (m)" in done.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "no target is given; give one of --error"),
        (("--error", "300"), "--error is '300'; give a length with its unit"),
        (("--error", "-5m"), "give a length with its unit"),
        (("--error", "1km", "--epsilon", "1"), "--epsilon is what a calibration finds"),
        (("--error", "1km", "--row", "a,b"), "--row is 'a,b'; give budgets with commas"),
        (("--error", "1km", "--plot", "t.png"), "--plot draws a row of budgets"),
        (("--adversary-error", "90km"), "out of reach: without any release the error is"),
        (("--certainty", "0.001"), "out of reach: the model alone gives a place"),
        (("--error", "1km", "--over", "5"), "give a time such as"),
        ((*EVENT, "--error", "1km"), "an event is without a limit; give --certainty 0.7"),
        ((*EVENT, "--certainty", "0.01"), "out of reach: event 'at:3,4 between 2 and 5' has probability 0."),
        ((*EVENT, "--certainty", "1"), "give a certainty above it and below 1"),
        ((*EVENT, "--odds", "1"), "give a finite number above 1"),
        (("--event", "at:bar at 3", "--certainty", "0.5"), "place 'bar' is unknown"),
        (("--event", "home", "--certainty", "0.5"), "has 'home' where a place is named"),
        ((*EVENT, "--certainty", "0.8", "--share", "2"), "--share is 2; give a share of people"),
        (("--error", "1km", "--share", "0.5"), "for a limit on an --event"),
        ((*EVENT, "--certainty", "0.8", "--share", "0.1"), "cannot show a share of 0.1"),
        ((*EVENT, "--certainty", "0.8", "--first", "noon"), "--first is 'noon'; give a time such as"),
        (("--error", "1km", "--over", "1m"), "less than the model's step"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(folder, run, options, words):
    done = run(*BASIC, "--people", "0", *options)
    assert done.exit_code == 2
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert run("calibrate", "--error", "1km").exit_code == 2
