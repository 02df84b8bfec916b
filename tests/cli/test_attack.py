"""Tests of ``dphmm attack``: output, files and errors, and the page on attacks."""

from __future__ import annotations

import json
import re
from functools import cache

import pytest

from dphmm.attack import DEFAULT_CHANNELS, parse_channel
from dphmm.jobs.attack import tracks
from dphmm.readers.synthetic_city import build_city, sample_synthetic_trajectories
from tests import command_line
from tests.documents import ROOT, read_page

PAGE = read_page("attack.md")
make_trajectories = cache(lambda *numbers: sample_synthetic_trajectories(*numbers, city=build_city()))


@pytest.fixture(autouse=True)
def one_city(monkeypatch):
    """Create the synthetic city's users only once. They are equal in every run."""
    monkeypatch.setattr(tracks, "sample_synthetic_trajectories", lambda *numbers, city: make_trajectories(*numbers))


def run(*words: str):
    return command_line.run("attack", *words)


@pytest.mark.slow
def test_table_and_json_agree(monkeypatch):
    monkeypatch.chdir(ROOT)
    words = ("--channel", "round:2", "--channel", "nothing", {"max_steps": 6})
    table, stated = run(*words), run(*words, "--json")
    assert table.exit_code == stated.exit_code == 0, table.output
    facts = json.loads(stated.stdout)
    row = next(line for line in table.stdout.splitlines() if line.startswith("rounded to 2 digits"))
    assert f"{facts['channels'][0]['smoothed_error_m']:,.0f}" in row
    assert "8 users of the synthetic city, 48 times, 8 with known habits" in table.stdout
    assert f"{facts['channels'][0]['informed_error_m']:,.0f}" in row
    assert not table.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("blank")
@pytest.mark.parametrize(
    ("name", "channel"), [("attack.html", "trim:500m"), ("attack.csv", "nothing"), ("attack.png", "nothing")]
)
def test_page_table_or_picture_is_written(tmp_path, name, channel):
    words = ("--channel", "round:2", "--channel", channel, {"max_steps": 6}, "-o", str(tmp_path / name))
    done = run(*words)
    assert done.exit_code == 0, done.output
    content = (tmp_path / name).read_bytes()
    assert content[:4] == {".html": b"<!DO", ".csv": b"chan", ".png": b"\x89PNG"}[(tmp_path / name).suffix]
    again = run(*words)
    assert again.exit_code == 2
    assert "exists" in again.stderr
    assert (tmp_path / name).read_bytes() == content


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--channel", "round:9"), "an integer from 0 to 7"),
        (
            ({"home_within": "200"},),
            "key 'home_within' must be a length with its unit, such as 500m or 1.2km, got '200'",
        ),
        (("-o", "out.txt"), "--output must be an .html, .csv, .png, .svg or .pdf file"),
        (("data/sample/geolife",), "data and model must be given together"),
        (("data/sample/geolife", "--model", "model.npz", "-o", "attack.csv"), "must contain 'private'; use"),
        (({"max_steps": 0},), "max_steps"),
        (("--users", "000"), "--users needs DATA: remove --users"),
        (("--column", "user=x"), "--column needs DATA: remove --column"),
        (("--skip-bad",), "--skip-bad needs DATA: remove --skip-bad"),
        (("--time-zone", "UTC"), "--time-zone needs DATA: remove --time-zone"),
        (({"allow_training_users": True},), "key 'allow_training_users' needs DATA: remove key 'allow_training_users'"),
    ],
)
def test_invalid_input_prints_one_line_and_exits_with_2(words, message):
    done = run(*words)
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not done.stdout


def test_page_names_all_default_channels_and_types():
    for text in DEFAULT_CHANNELS:
        assert f"| {parse_channel(text).name} |" in PAGE
    kinds = set(re.findall(r"`([a-z-]+)(?::[^`]*)?`", PAGE.partition("## The channels")[2].partition("## Your")[0]))
    assert {text.partition(":")[0] for text in DEFAULT_CHANNELS} <= kinds


@pytest.mark.slow
def test_table_of_page_matches_command():
    """One quick channel is compared. The results of a channel do not depend on the others."""
    done = run("--json", "--channel=round:2")
    for channel in json.loads(done.stdout)["channels"]:
        row = next(line for line in PAGE.splitlines() if line.startswith(f"| {channel['channel']} |"))
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        names = ("released_error_m", "filtered_error_m", "smoothed_error_m", "informed_error_m")
        assert cells[1:5] == ["–" if channel[name] is None else f"{channel[name]:,.0f}" for name in names]
        assert cells[5] == str(channel["num_homes_found"])
        assert f"| homes located, of {channel['num_homes']} |" in PAGE
        for cell, name in zip(
            cells[6:], ("max_posterior", "top_1_accuracy", "length_ratio", "withheld_share"), strict=True
        ):
            assert cell == ("–" if channel[name] is None else f"{channel[name]:.2f}")


def test_advice_on_page_matches_table():
    row = next(line for line in PAGE.splitlines() if line.startswith("| dphmm utility:1km, ε 3 a day |")).split(" | ")
    assert f"The filtered error is {row[2]} m and the informed error is {row[4]} m." in " ".join(PAGE.split())
