"""``dphmm attack``: what it prints and writes, what it refuses, and that the page about it names every channel."""

from __future__ import annotations

import json
import re
from functools import cache

import pytest
from click.testing import CliRunner

from dphmm.attack import DEFAULT_CHANNELS, parse_channel
from dphmm.cli import main
from dphmm.jobs import attacks
from dphmm.readers.synthetic_city import build_city, synthetic_trajectories
from tests.documents import ROOT, page

PAGE = page("attack.md")
PEOPLE = cache(lambda *numbers: synthetic_trajectories(*numbers, city=build_city()))


@pytest.fixture(autouse=True)
def one_city(monkeypatch):
    """The synthetic city's people, who are the same at every run, are made once."""
    monkeypatch.setattr(attacks, "synthetic_trajectories", lambda *numbers, city: PEOPLE(*numbers))


def run(*words: str):
    return CliRunner().invoke(main, ["attack", *words])


def test_it_prints_a_table_and_json_of_the_same(monkeypatch):
    monkeypatch.chdir(ROOT)
    words = ("--channel", "round:2", "--channel", "nothing", "--most-steps", "6")
    table, stated = run(*words), run(*words, "--json")
    assert table.exit_code == stated.exit_code == 0, table.output
    facts = json.loads(stated.stdout)
    row = next(line for line in table.stdout.splitlines() if line.startswith("rounded to 2 digits"))
    assert f"{facts['channels'][0]['hindsight_m']:,.0f}" in row
    assert "8 people of the synthetic city, who do not exist, 48 times, habits of 8 known" in table.stdout
    assert f"{facts['channels'][0]['habits_m']:,.0f}" in row
    assert not table.stderr


@pytest.mark.usefixtures("blank")
@pytest.mark.parametrize(
    ("name", "channel"), [("attack.html", "trim:500m"), ("attack.csv", "nothing"), ("attack.png", "nothing")]
)
def test_it_writes_a_page_a_table_or_a_picture(tmp_path, name, channel):
    words = ("--channel", "round:2", "--channel", channel, "--most-steps", "6", "-o", str(tmp_path / name))
    done = run(*words)
    assert done.exit_code == 0, done.output
    content = (tmp_path / name).read_bytes()
    assert content[:4] == {".html": b"<!DO", ".csv": b"chan", ".png": b"\x89PNG"}[(tmp_path / name).suffix]
    again = run(*words)
    assert again.exit_code == 2
    assert "exists" in again.stderr
    assert (tmp_path / name).read_bytes() == content


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--channel", "round:9"), "a whole number from 0 to 7"),
        (("--home-within", "200"), "--home-within is '200'"),
        (("-o", "out.txt"), "name an .html, .csv, .png, .svg or .pdf file"),
        (("data/sample/geolife",), "data and a model go together"),
        (("data/sample/geolife", "--model", "model.npz", "-o", "attack.csv"), "the file tells true places"),
        (("--most-steps", "0"), "most_steps 0"),
    ],
)
def test_what_cannot_be_is_one_line_and_exit_code_2(words, said):
    done = run(*words)
    assert done.exit_code == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert not done.stdout


def test_the_page_names_every_channel_that_is_tried_and_every_kind_that_there_is():
    for text in DEFAULT_CHANNELS:
        assert f"| {parse_channel(text).name} |" in PAGE
    kinds = set(re.findall(r"`([a-z-]+)(?::[^`]*)?`", PAGE.partition("## The channels")[2].partition("## Your")[0]))
    assert {text.partition(":")[0] for text in DEFAULT_CHANNELS} <= kinds


@pytest.mark.slow
def test_the_table_of_the_page_is_what_the_command_finds():
    """Of three channels that are quick; what is found of one does not depend on the others."""
    done = run("--json", *(f"--channel={text}" for text in ("round:2", "hourly:4", "nothing")))
    for one in json.loads(done.stdout)["channels"]:
        row = next(line for line in PAGE.splitlines() if line.startswith(f"| {one['channel']} |"))
        said = [cell.strip() for cell in row.strip("|").split("|")]
        names = ("released_error_m", "at_once_m", "hindsight_m", "habits_m")
        assert said[1:5] == ["–" if one[name] is None else f"{one[name]:,.0f}" for name in names]
        assert said[5] == f"{one['homes_found']} of {one['homes']}"
        for cell, name in zip(said[6:], ("certainty", "right", "length_ratio", "withheld"), strict=True):
            assert cell == ("–" if one[name] is None else f"{one[name]:.2f}")


def test_the_sentence_of_what_to_take_follows_the_table():
    """The numbers of the page are in the sentence that it quotes: of what the command made of its own table."""
    quoted = next(line for line in PAGE.splitlines() if line.startswith("> Keep the default, "))
    row = next(line for line in PAGE.splitlines() if line.startswith("| dphmm utility:1km, ε 3 a day |")).split(" | ")
    assert f"{row[2]} m off at once and an adversary who knows their habits {row[4]} m" in quoted
