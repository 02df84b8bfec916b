"""``dphmm hide`` and ``dphmm model blank``: one step each, from nothing."""

from __future__ import annotations

import json

import pytest

from dphmm import MarkovModel
from tests.documents import ROOT

RIDE = ROOT / "data/sample/ride.gpx"
HOME = ("--near", "45.01,-30.01")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_one_command_hides_a_home_and_says_three_sentences(run, folder):
    done = run("hide", RIDE, *HOME, "--within", "500m", "-o", "public.gpx", "--picture", "public.png")
    assert done.exit_code == 0, done.stderr
    can, cannot, adds, files, picture = done.stdout.splitlines()
    assert can.startswith("A reader can still tell that you were in the square of 1.92 km")
    assert cannot.startswith("They cannot tell from this file where in that middle, 800 m by 800 m")
    assert adds.startswith("Recordings of one place add up")
    assert files.startswith("public.gpx: ")
    assert picture.startswith("public.png")
    assert (folder / "public.png").read_bytes().startswith(b"\x89PNG")
    assert {one.name for one in folder.iterdir()} == {"public.gpx", "public.png"}


def test_json_has_both_readers(run):
    done = run("hide", RIDE, "--ends", "-o", "public.csv", "--json")
    told = json.loads(done.stdout)
    (place,) = told["places"]
    assert 0.01 < place["certainty_knows_how_people_move"] < place["certainty_from_ten_knows_how_people_move"] < 1
    assert len(told["sentences"]) == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "no place is given"),
        (("--near", "home"), "home"),
        ((*HOME, "--near", "other.geojson"), "no LATITUDE,LONGITUDE"),
        ((*HOME, "--within", "500"), "give a length with its unit"),
        ((*HOME, "--picture", "x.jpg"), "no picture goes by"),
        ((*HOME, "--picture", "nowhere/x.png"), "there is no folder"),
        ((*HOME, "--session", "nowhere/s.json"), "there is no folder"),
        (("--near", "nowhere.geojson"), "nowhere.geojson"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line_and_nothing_is_written(run, folder, words, said):
    done = run("hide", RIDE, "-o", "public.gpx", *words)
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert said in line
    assert list(folder.iterdir()) == []


def test_a_model_of_nobody_is_one_command(run, folder):
    done = run("model", "blank", "--bbox", 44.97, -30.04, 45.03, -29.96, "--kind", "cycling", "-o", "m.npz", "--json")
    told = json.loads(done.stdout)
    assert told["learned_from"] == "nobody"
    assert told["step_seconds"] == 60
    assert MarkovModel.load(folder / "m.npz").size == told["states"]
    again = run("model", "blank", "--town", "Lyon", "--cell", 1, "--step", 300, "-o", "lyon.npz", "--json")
    assert json.loads(again.stdout)["states"] in (400, 420, 441)
    assert run("model", "blank", "-o", "none.npz").exit_code == 2
    assert run("model", "blank", "--town", "Lyon", "-o", "m.npz").exit_code == 2
