"""``dphmm model show``: what a model says, a map, and how well it fits, with a warning where it knew the people."""

from __future__ import annotations

import json

import pytest


@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_a_map_is_what_its_extension_says(world, run, suffix, magic):
    done = run("model", "show", "m.npz", "-o", f"map{suffix}")
    assert done.exit_code == 0, done.stderr
    assert (world / f"map{suffix}").read_bytes().startswith(magic)
    assert run("model", "show", "m.npz", "-o", f"map{suffix}").exit_code == 2
    assert run("model", "show", "m.npz", "-o", "map.txt").exit_code == 2


def test_facts_and_fit(world, run):
    assert run("learn", "walk.csv", "--users", "a", "--bbox", 44.995, -30.015, 45.005, -29.985, "--cell", 0.5,
               "-o", "own.npz").exit_code == 0  # fmt: skip
    done = run("model", "show", "own.npz", "--json")
    told = json.loads(done.stdout)
    assert (told["step_seconds"], done.stderr) == (60.0, "")
    assert told["promise"].startswith("none")
    fitted = run("model", "show", "own.npz", "--true", "walk.csv", "--json")
    told = json.loads(fitted.stdout)
    assert told["impossible_moves"] == 0
    assert told["log_likelihood_per_move"] < 0
    assert 0 <= told["90%_regions_1_steps_ahead_hold"] <= 1
    assert "learned from 1 of them" in fitted.stderr
    assert "keep it to yourself" in fitted.stderr
    other = run("model", "show", "own.npz", "--true", "walk.csv", "--users", "b", "--json")
    assert "learned from" not in other.stderr
