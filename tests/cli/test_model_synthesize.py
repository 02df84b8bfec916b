"""Tests of ``dphmm synthesize``."""

from __future__ import annotations

import json

import pytest

from dphmm.jobs.model import synthesis

pytest.importorskip("matplotlib")


@pytest.mark.slow
@pytest.mark.usefixtures("blank")
def test_synthetic_users_are_written_and_compared(world, run):
    result = run(
        "synthesize", "--model", "m.npz", "-o", "p.csv", "--num-users", 4, "--horizon", "6h", "--seed", 1, "--json"
    )
    output = json.loads(result.stdout)
    assert (output["users"], output["locations_per_user"], output["first_time"]) == (4, 360, "2024-01-01T00:00:00Z")
    assert output["privacy"] == "the guarantee of the model's file"
    assert output["model_guarantee"] == "unknown: the model does not state how it was learned"
    assert len((world / "p.csv").read_text().splitlines()) == 1 + 4 * 360
    result = run("synthesize", "--model", "m.npz", "--compare", "walk.csv", "--seed", 1, "--picture", "PRIVATE-c.png")
    assert result.exit_code == 0
    assert "Compared with 2 real users (2 paths, 12 locations)" in result.stdout
    assert "radius of gyration" in result.stdout
    assert "Do not publish it" in result.stderr
    trained = "unknown: no user list next to the model"
    assert f"Warning: the comparison is too good if the model was trained on these users, which is {trained}" in (
        result.stderr
    )
    assert (world / "PRIVATE-c.png").read_bytes()[:4] == b"\x89PNG"
    assert (world / "PRIVATE-c.png").stat().st_mode & 0o077 == 0
    output = json.loads(run("synthesize", "--model", "m.npz", "--compare", "walk.csv", "--json").stdout)
    assert output["compared_with"] == {"users": 2, "paths": 2, "locations": 12, "num_excluded_users": 0}
    assert output["model_trained_on_these_users"] == trained
    assert set(output["measures"]["visits"]) == {"synthetic", "other_real_users", "locations_only"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "an output is required"),
        (("-o", "p.xyz"), "got '.xyz'"),
        (("-o", "p.csv", "--num-users", "-3"), "-3 is not in the range x>=1"),
        (("-o", "p.csv", "--start", "soon"), "start must be a day such as 2024-01-01, got 'soon'"),
        (("-o", "walk.csv"), "exists"),
        (("-o", "p.csv", "--picture", "PRIVATE-c.png"), "--picture requires --compare"),
        (("--compare", "walk.csv", "--picture", "c.png"), "PRIVATE in its name"),
        (("--compare", "nowhere.csv"), "nowhere.csv"),
    ],
)
def test_invalid_input_prints_one_line_and_exits_with_2(world, run, words, message):
    before = sorted(path.name for path in world.iterdir())
    result = run("synthesize", "--model", "m.npz", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert sorted(path.name for path in world.iterdir()) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-o", "new.csv", "--horizon", "xx"), "--horizon must be a duration such as 30s, 5m, 1h or 1d, got 'xx'"),
        (("-o", "new.csv", "--horizon", "1" * 400 + "d"), "--horizon must be"),
        (("-o", "new.csv", "--horizon", "1s"), "--horizon must be"),
        (("-o", "new.csv", "--start", "soon"), "start must be a day"),
        (("-o", "new.csv", "--start", "9999-12-31"), "in the years 1 to 9999"),
        (("-o", "walk.csv"), "walk.csv exists"),
        (("-o", "nowhere/new.csv"), "nowhere"),
        (("--picture", "PRIVATE-old.png"), "PRIVATE-old.png exists"),
        (("--num-users", "5"), "--num-users requires -o: remove --num-users"),
        (("--horizon", "1d"), "--horizon requires -o: remove --horizon"),
        (("--start", "2024-01-02"), "--start requires -o: remove --start"),
        (("-o", "new.csv", "--seed", "-1"), "'--seed': -1 is not in the range x>=0"),
    ],
)
def test_invalid_options_raise_before_the_comparison(world, run, monkeypatch, words, message):
    def fail(*_arguments, **_options):
        raise AssertionError

    (world / "PRIVATE-old.png").write_bytes(b"old")
    monkeypatch.setattr(synthesis, "compare_users", fail)
    result = run("synthesize", "--model", "m.npz", "--compare", "walk.csv", *words)
    assert (result.exit_code, result.stdout) == (2, ""), result.exception
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_learn_by_hours_states_time_classes(world, run):
    box = ("--bbox", "44.995", "-30.015", "45.005", "-29.985", "--cell", "0.5")
    result = run(
        "learn", "walk.csv", *box, "-o", "h.npz", "--time-classes", "weekday-hour", "--zone", "+02:00", "--json"
    )
    output = json.loads(result.stdout)
    assert (output["zone"], output["num_time_classes"]) == ("+02:00", 48)
    for words, message in (
        (("--time-classes", "hour"), "--time-classes requires the time zone"),
        (("--zone", "UTC"), "requires --time-classes hour"),
        (
            ("--time-classes", "hour", "--zone", "Nowhere/Land"),
            "time zone must be a name such as Europe/Berlin, or an offset such as +08:00, got 'Nowhere/Land'",
        ),
        (("--time-classes", "minutes"), "'minutes'"),
        (("--order", "2"), "--order"),
    ):
        result = run("learn", "walk.csv", *box, "-o", "x.npz", *words)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert message in result.stderr
        assert not (world / "x.npz").exists()


@pytest.mark.slow
def test_guarantee_of_model_is_stated_and_absent_for_time_classes(world, run):
    box = ("--bbox", "44.995", "-30.015", "45.005", "-29.985", "--cell", "0.5")
    guarantees = {}
    for name, words in (("p", ("--user-epsilon", 1)), ("n", ()), ("h", ("--time-classes", "hour", "--zone", "UTC"))):
        assert run("learn", "walk.csv", *box, *words, "-o", f"{name}.npz").exit_code == 0
        done_synthesis = run(
            "synthesize", "--model", f"{name}.npz", "-o", f"{name}.csv", "--num-users", 2, "--horizon", "0.1d", "--json"
        )
        guarantees[name] = json.loads(done_synthesis.stdout)["model_guarantee"]
    assert guarantees["p"].startswith("user-level differential privacy")
    assert guarantees["p"].endswith("by the factor e^epsilon (epsilon = 1)")
    assert guarantees["n"] == guarantees["h"] == "none: moves were counted without noise"


@pytest.mark.usefixtures("blank", "world")
@pytest.mark.parametrize("horizon", ["0d", "10s", "200000d"])
def test_refused_horizon_is_named(run, horizon):
    result = run("synthesize", "--model", "m.npz", "-o", "p.csv", "--horizon", horizon)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith("Error: --horizon must be ")
