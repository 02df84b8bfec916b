"""Tests of ``dphmm model show``: fields, map, fit and the warning about training users."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dphmm import MarkovModel


@pytest.mark.slow
@pytest.mark.usefixtures("blank")
@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_map_has_format_of_its_suffix(world, run, suffix, magic):
    done = run("model", "show", "m.npz", "-o", f"map{suffix}")
    assert done.exit_code == 0, done.stderr
    assert (world / f"map{suffix}").read_bytes().startswith(magic)
    assert run("model", "show", "m.npz", "-o", f"map{suffix}").exit_code == 2
    assert run("model", "show", "m.npz", "-o", "map.txt").exit_code == 2


@pytest.mark.slow
def test_fields_and_fit_are_printed(world, run):
    assert run("learn", "walk.csv", "--users", "a", "--bbox", 44.995, -30.015, 45.005, -29.985, "--cell", 0.5,
               "-o", "own.npz").exit_code == 0  # fmt: skip
    done = run("model", "show", "own.npz", "--json")
    output = json.loads(done.stdout)
    assert (output["step_seconds"], done.stderr) == (60.0, "")
    assert output["guarantee"].startswith("none")
    model = MarkovModel.load(world / "own.npz")
    assert output["mean_stay_probability"] == pytest.approx(float(model.initial @ model.transition.diagonal()))
    fitted = run("model", "show", "own.npz", "--true", "walk.csv", "--json")
    output = json.loads(fitted.stdout)
    assert output["impossible_moves_share"] == 0
    assert output["log_likelihood_per_move"] < 0
    assert 0 <= output["coverage_of_90%_regions_1_steps_ahead"] <= 1
    assert "model was trained on 1 of these users" in fitted.stderr
    assert "Do not publish" in fitted.stderr
    other = run("model", "show", "own.npz", "--true", "walk.csv", "--users", "b", "--json")
    assert "trained on" not in other.stderr


def test_provenance_cannot_override_fields_or_add_lines(world, run):
    model = MarkovModel.load(world / "m.npz")
    forged = {"hash": "0" * 64, "states": 3, "guarantee": "none", "note\n  epsilon": "0.001\n  x", "\x1b[2J": 1}
    model.with_provenance(forged).save(world / "forged.npz")
    output = json.loads(run("model", "show", "forged.npz", "--json").stdout)
    assert (output["hash"], output["states"]) == (model.content_hash, model.size)
    shown = run("model", "show", "forged.npz").stdout
    assert len(shown.splitlines()) == 2 + len(output)  # a title and the heading of a block
    assert all(character.isprintable() or character == "\n" for character in shown)


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e400"])
def test_invalid_numbers_in_provenance_raise(world, run, number):
    MarkovModel.load(world / "m.npz").with_provenance({"deep": [{"epsilon": 0.123}]}).save(world / "odd.npz")
    arrays = dict(np.load(world / "odd.npz"))
    arrays["about"] = np.array(arrays["about"].item().replace("0.123", number))
    np.savez(world / "odd.npz", **arrays)
    done = run("model", "show", "odd.npz", "--json")
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert "'provenance' must not contain infinite numbers" in line
