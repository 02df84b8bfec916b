"""``dphmm synthesize``."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("matplotlib")


@pytest.mark.usefixtures("blank")
def test_people_are_written_and_compared(world, run):
    result = run("synthesize", "--model", "m.npz", "-o", "p.csv", "--people", 4, "--days", 0.25, "--seed", 1, "--json")
    told = json.loads(result.stdout)
    assert (told["people"], told["places_each"], told["first_time"]) == (4, 360, "2024-01-01T00:00:00Z")
    assert told["private"] == "as private as the model's file, no more and no less"
    assert told["promise_of_the_model"] == "not known: the model does not say how it was learned"
    assert len((world / "p.csv").read_text().splitlines()) == 1 + 4 * 360
    result = run("synthesize", "--model", "m.npz", "--compare", "walk.csv", "--seed", 1, "--plot", "PRIVATE-c.png")
    assert result.exit_code == 0
    assert "Compared with 2 real people (2 stretches, 12 places)" in result.stdout
    assert "radius of gyration" in result.stdout
    assert "keep it to yourself" in result.stderr
    assert (world / "PRIVATE-c.png").read_bytes()[:4] == b"\x89PNG"
    assert (world / "PRIVATE-c.png").stat().st_mode & 0o077 == 0
    told = json.loads(run("synthesize", "--model", "m.npz", "--compare", "walk.csv", "--json").stdout)
    assert told["compared_with"] == {"people": 2, "stretches": 2, "places": 12, "people_left_out": 0}
    assert set(told["measures"]["visits"]) == {"synthetic", "other_real_people", "places_alone"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "nothing is asked for"),
        (("-o", "p.xyz"), "no format goes by '.xyz'"),
        (("-o", "p.csv", "--people", "-3"), "-3 is not in the range x>=1"),
        (("-o", "p.csv", "--start", "soon"), "'soon' is no day"),
        (("-o", "walk.csv"), "exists"),
        (("-o", "p.csv", "--plot", "PRIVATE-c.png"), "--plot goes with --compare"),
        (("--compare", "walk.csv", "--plot", "c.png"), "PRIVATE in its name"),
        (("--compare", "nowhere.csv"), "nowhere.csv"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(world, run, words, said):
    before = sorted(path.name for path in world.iterdir())
    result = run("synthesize", "--model", "m.npz", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert sorted(path.name for path in world.iterdir()) == before


def test_learn_by_hours_says_what_it_did(world, run):
    box = ("--bbox", "44.995", "-30.015", "45.005", "-29.985", "--cell", "0.5")
    result = run("learn", "walk.csv", *box, "-o", "h.npz", "--by", "weekday-hours", "--zone", "+02:00", "--json")
    told = json.loads(result.stdout)
    assert (told["zone"], told["it"]) == ("+02:00", "has a matrix for each of 48 classes of time")
    for words, said in (
        (("--by", "hours"), "--by needs the time zone"),
        (("--zone", "UTC"), "give --by hours"),
        (("--by", "hours", "--zone", "Nowhere/Land"), "is unknown"),
        (("--by", "minutes"), "'minutes'"),
        (("--order", "2"), "--order"),
    ):
        result = run("learn", "walk.csv", *box, "-o", "x.npz", *words)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert said in result.stderr
        assert not (world / "x.npz").exists()


def test_the_model_s_own_promise_is_told_and_an_extended_one_takes_none_over(world, run):
    box = ("--bbox", "44.995", "-30.015", "45.005", "-29.985", "--cell", "0.5")
    told = {}
    for name, words in (("p", ("--user-epsilon", 1)), ("n", ()), ("h", ("--by", "hours", "--zone", "UTC"))):
        assert run("learn", "walk.csv", *box, *words, "-o", f"{name}.npz").exit_code == 0
        made = run("synthesize", "--model", f"{name}.npz", "-o", f"{name}.csv", "--people", 2, "--days", 0.1, "--json")
        told[name] = json.loads(made.stdout)["promise_of_the_model"]
    assert told["p"].startswith("differential privacy of whole people")
    assert told["n"] == told["h"] == "none: moves were counted without noise"
