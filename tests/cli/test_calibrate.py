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
        ((), "no target is given; give --error"),
        (("--error", "300"), "--error is '300'; give a length with its unit"),
        (("--error", "-5m"), "give a length with its unit"),
        (("--error", "1km", "--epsilon", "1"), "--epsilon is what a calibration finds"),
        (("--error", "1km", "--row", "a,b"), "--row is 'a,b'; give budgets with commas"),
        (("--error", "1km", "--plot", "t.png"), "--plot draws a row of budgets"),
        (("--adversary-error", "90km"), "out of reach: without any release the error is"),
        (("--certainty", "0.001"), "out of reach: the model alone gives a place"),
        (("--error", "1km", "--over", "5"), "give a time such as"),
        (("--error", "1km", "--over", "1m"), "less than the model's step"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(folder, run, options, words):
    done = run(*BASIC, "--people", "0", *options)
    assert done.exit_code == 2
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert run("calibrate", "--error", "1km").exit_code == 2
