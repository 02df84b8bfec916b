"""Tests of first steps: no model, a box with commas, a relay without an address."""

from __future__ import annotations

import pytest

from dphmm import MarkovModel
from dphmm.cli import console
from tests import command_line

BOX = ("44.99", "-30.02", "45.01", "-29.98")
GPX = (
    '<gpx version="1.1" xmlns="http://www.topografix.com/GPX/1/1"><trk><trkseg>'
    '<trkpt lat="45.0" lon="-30.0"><time>2024-03-07T09:00:00Z</time></trkpt></trkseg></trk></gpx>'
)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.gpx").write_text(GPX)
    return tmp_path


@pytest.mark.parametrize(
    "command", [("release", "my.gpx", "-o", "o.csv"), ("batch", "my.gpx", "-o", "all"), ("release",)]
)
def test_missing_model_raises_with_the_command_that_creates_one(home, command):
    result = command_line.run(*command, "--user", "ann")
    assert result.exit_code == 2
    assert "dphmm model blank --town TOWN -o model.npz" in result.stderr
    assert "do not choose its region by the extent of" in result.stderr
    creation = command_line.run("model", "blank", "--bbox", *BOX, "--cell", "1", "-o", "model.npz")
    assert creation.exit_code == 0, creation.stderr
    done = command_line.run("release", "my.gpx", "--user", "ann", "--model", "model.npz", "-o", "o.csv")
    assert done.exit_code == 0, done.stderr


def test_extent_of_a_recording_raises_with_the_reason(home):
    result = command_line.run("model", "blank", {"extent": "my.gpx"}, "-o", "m.npz")
    assert result.exit_code == 2
    assert "its bounding box would reveal its outermost locations: use --town NAME or --bbox" in result.stderr


@pytest.mark.parametrize(
    "box",
    [
        ("--bbox", ",".join(BOX)),
        (f"--bbox={','.join(BOX)}",),
        ("--bbox", ", ".join(BOX)),
        ("--bbox", *(f"{c}," for c in BOX)),
    ],
)
def test_box_with_commas_is_that_with_spaces(home, box):
    spaces = command_line.run("model", "blank", "--bbox", *BOX, "--cell", "1", "-o", "a.npz")
    commas = command_line.run("model", "blank", *box, "--cell", "1", "-o", "b.npz")
    assert (spaces.exit_code, commas.exit_code) == (0, 0), commas.stderr
    assert MarkovModel.load("a.npz").content_hash == MarkovModel.load("b.npz").content_hash


@pytest.mark.parametrize("box", [("--bbox", "44.99", "-30.02"), ("--bbox", "1,2,3"), ("--bbox",)])
def test_box_of_other_length_raises_with_its_form(home, box):
    result = command_line.run("model", "blank", "-o", "a.npz", "--cell", "1", *box)
    assert result.exit_code == 2
    assert "--bbox must be SOUTH WEST NORTH EAST in degrees, such as --bbox 44.97 -30.04 45.03 -29.96" in result.stderr


def test_other_words_with_commas_are_unchanged():
    words = ["--users", "1,2", "--bbox", "1", "2", "3", "4", "5,6"]
    assert console._split_box(words) == words


@pytest.mark.slow
@pytest.mark.parametrize(
    ("url", "words", "has_code"),
    [
        (None, "Phones cannot reach http://127.0.0.1:8787", False),
        ("http://192.168.1.5:8787", "Phones can reach http://192.168.1.5:8787 only within its network", True),
        ("https://relay.example", None, True),
    ],
)
def test_new_relay_states_which_phones_reach_it_before_their_settings(home, url, words, has_code):
    address = [] if url is None else ["--url", url]
    options = ("--init", "--bbox", *BOX, "--user", "ann", "--policy", "utility:2km", *address)
    result = command_line.run("serve", "r.toml", *options)
    assert result.exit_code == 0, result.stderr
    text = " ".join(result.stdout.split())
    assert ("QR code" in text.split("To start")[0]) == (has_code or "a QR code" in text)
    if words is None:
        assert "can reach" not in text
        assert "cannot reach" not in text
    else:
        assert text.index(words) < text.index("OwnTracks mode HTTP")
    assert "The relay has no recipient yet" in text
    options = (*options, "--overwrite", "--recipient", "family:owntracks:https://recorder.example/pub")
    assert "no recipient yet" not in command_line.run("serve", "r.toml", *options).stdout


@pytest.mark.parametrize(
    ("options", "answers", "target_error_km", "hours"),
    [
        ((), ["day"], None, None),
        ((), ["500m", "8h"], 0.5, 8),
        (("--horizon", "6h"), ["500m"], 0.5, 6),
        (("--target-error", "1km"), [], 1, None),
    ],
)
def test_new_relay_asks_for_error_unless_an_option_states_it(
    home, monkeypatch, options, answers, target_error_km, hours
):
    passed = {}
    monkeypatch.setattr("dphmm.cli.serve.is_terminal", lambda: True)
    monkeypatch.setattr("dphmm.serve.setup.write_relay", lambda *_, **options: passed.update(options) or [])
    more = ("--init", "--user", "ann", "--recipient", "a:webhook:https://a.example", "--url", "https://relay.example")
    result = command_line.run("serve", "r.toml", *more, *options, stdin="\n".join([*answers, ""]))
    assert result.exit_code == 0, result.output
    assert (passed["target_error_km"], passed["hours"]) == (target_error_km, hours)
    assert result.output.count("Mean error") == (0 if target_error_km == 1 else 1)


@pytest.mark.slow
def test_new_relay_asks_for_address_and_recipient_on_a_terminal(home, monkeypatch):
    monkeypatch.setattr("dphmm.cli.serve.is_terminal", lambda: True)
    answers = "\n".join(["day", "https://relay.example", "family", "owntracks", "https://recorder.example/pub", "", ""])
    options = ("--init", "--bbox", *BOX, "--user", "ann", "--policy", "utility:2km")
    result = command_line.run("serve", "r.toml", *options, stdin=answers)
    assert result.exit_code == 0, result.output
    text = (home / "r.toml").read_text()
    assert 'url = "https://relay.example"' in text
    assert 'url = "https://recorder.example/pub"' in text
