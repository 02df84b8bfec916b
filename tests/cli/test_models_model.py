"""``dphmm model show``: what a model says, a map, and how well it fits, with a warning where it knew the people."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dphmm import MarkovModel


@pytest.mark.usefixtures("blank")
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
    model = MarkovModel.load(world / "own.npz")
    assert told["stays_expected"] == pytest.approx(float(model.initial @ model.transition.diagonal()))
    fitted = run("model", "show", "own.npz", "--true", "walk.csv", "--json")
    told = json.loads(fitted.stdout)
    assert told["impossible_moves"] == 0
    assert told["log_likelihood_per_move"] < 0
    assert 0 <= told["90%_regions_1_steps_ahead_hold"] <= 1
    assert "learned from 1 of them" in fitted.stderr
    assert "keep it to yourself" in fitted.stderr
    other = run("model", "show", "own.npz", "--true", "walk.csv", "--users", "b", "--json")
    assert "learned from" not in other.stderr


def test_a_file_s_own_words_can_neither_overrule_what_the_model_is_nor_make_lines_of_their_own(world, run):
    model = MarkovModel.load(world / "m.npz")
    forged = {"hash": "0" * 64, "states": 3, "promise": "none", "note\n  epsilon": "0.001\n  x", "\x1b[2J": 1}
    model.saying(forged).save(world / "forged.npz")
    told = json.loads(run("model", "show", "forged.npz", "--json").stdout)
    assert (told["hash"], told["states"]) == (model.content_hash, model.size)
    shown = run("model", "show", "forged.npz").stdout
    assert len(shown.splitlines()) == 1 + len(told)
    assert all(one.isprintable() or one == "\n" for one in shown)


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e400"])
def test_numbers_that_are_none_in_how_a_model_was_learned_are_refused(world, run, number):
    MarkovModel.load(world / "m.npz").saying({"deep": [{"epsilon": 0.123}]}).save(world / "odd.npz")
    arrays = dict(np.load(world / "odd.npz"))
    arrays["about"] = np.array(arrays["about"].item().replace("0.123", number))
    np.savez(world / "odd.npz", **arrays)
    done = run("model", "show", "odd.npz", "--json")
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert "'learned' holds a number" in line
