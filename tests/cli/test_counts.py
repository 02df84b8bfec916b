"""Tests of ``dphmm counts`` from the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from dphmm.counts import post_process
from dphmm.leakage import exact_budgets
from dphmm.model import reverse
from dphmm.readers import read
from dphmm.space.grid import Grid
from dphmm.tables import TimedTable
from tests import command_line

SAMPLE = Path(__file__).parents[2] / "data" / "sample" / "geolife"
BOX = (44.97, -30.04, 45.03, -29.96)
REGION = ("--bbox", *BOX, "--cell", 2, "--step", 600)
MATRIX = np.array([[0.2, 0.7, 0.1], [0.1, 0.1, 0.8], [0.7, 0.2, 0.1]])
TRUE = np.array([[8, 1, 1], [3, 6, 1], [2, 3, 5], [4, 3, 3]])
PROJECTION = ("--num-users", 5, "--estimator", "least-squares")


def run(*arguments):
    return command_line.run("counts", *arguments)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    np.savetxt(tmp_path / "move.csv", MATRIX, delimiter=",")
    np.savetxt(tmp_path / "two.csv", np.eye(2), delimiter=",")
    (tmp_path / "budgets.csv").write_text("1\n0.5\n1\n2\n")
    (tmp_path / "short.csv").write_text("1\n0.5\n")
    for name, counts in (("true", TRUE), ("negative", TRUE - 2), ("uneven", TRUE + np.eye(4, 3, dtype=int))):
        columns = {f"p{at}": counts[:, at] for at in range(3)}
        TimedTable(np.arange(4), columns).write(tmp_path / f"{name}.csv")
    TimedTable(np.arange(3), {"epsilon": np.ones(3), "p0": np.arange(3)}).write(tmp_path / "other.csv")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_counts_of_trajectories_match_their_states(folder):
    done = run("release", SAMPLE, *REGION, "--epsilon", 1, "-o", "noisy.csv", "--private-diagnostics", "PRIVATE.csv")
    assert done.exit_code == 0, done.output
    true = TimedTable.read("PRIVATE.csv")
    counts = true.matrix(list(true.columns))
    tracks = read(SAMPLE).trajectories
    assert (counts.sum(axis=1) == len(tracks)).all()
    grid, last = Grid.over(BOX, 2.0), true.times[-1]
    states = [grid.locate(track.latitude, track.longitude)[track.times <= last][-1] for track in tracks]
    np.testing.assert_array_equal(counts[-1], np.bincount(states, minlength=grid.size))


def test_daily_option_aligns_days(folder):
    options = ("--daily", {"hours": [8, 20]}, {"utc_offset": -2}, "--epsilon", 1, "--json")
    facts = json.loads(run("release", SAMPLE, *REGION, *options, "-o", "noisy.parquet").stdout)
    assert facts["num_times"] == 72
    assert facts["num_user_days"] > len(read(SAMPLE).trajectories)
    assert "num_users" not in facts
    assert (facts["randomness"], facts["epsilon_total"]) == ("system", 72)
    assert len(TimedTable.read("noisy.parquet")) == 72


def test_noise_is_exact_by_default_and_listed_budgets_are_used(folder):
    (folder / "budgets.csv").write_text("0.1\n0.1\n0.1\n0.3\n")
    done = run("release", "--counts", "true.csv", "--epsilons", "budgets.csv", "-o", "noisy.csv", "--json")
    facts = json.loads(done.stdout)
    assert (facts["is_exact"], facts["epsilon_total"]) == (True, 0.6)
    noisy = TimedTable.read("noisy.csv")
    assert noisy.columns["epsilon"].tolist() == [0.1, 0.1, 0.1, 0.3]
    assert noisy.columns["is_exact"].all()
    assert (noisy.matrix(["place_0"]) % 1 == 0).all()
    assert "." not in (folder / "noisy.csv").read_text().splitlines()[1].split(",", 2)[2]


def test_files_and_summaries_state_whether_noise_is_exact(folder):
    for mechanism, exact in (("lattice", True), ("laplace", False)):
        noisy, repaired = f"{mechanism}.csv", f"{mechanism}-repaired.csv"
        options = ("--epsilon", 1, "--mechanism", mechanism, "--json")
        done = run("release", "--counts", "true.csv", *options, "-o", noisy)
        assert json.loads(done.stdout)["is_exact"] == exact
        values = TimedTable.read(noisy)
        assert values.columns["is_exact"].all() == exact
        assert (values.matrix(["place_0", "place_1", "place_2"]) % 1 == 0).all() == exact
        done = run("postprocess", noisy, "--num-users", 10, "--transition", "move.csv", "-o", repaired, "--json")
        assert json.loads(done.stdout)["is_exact"] == exact
        assert TimedTable.read(repaired).columns["is_exact"].all() == exact
        assert json.loads(run("evaluate", "true.csv", *options, "--runs", 1).stdout)["is_exact"] == exact
        assert json.loads(run("evaluate", "true.csv", "--noisy", noisy, "--json").stdout)["is_exact"] == exact


def test_release_without_statement_is_not_called_exact(folder):
    released = TimedTable.read("true.csv")
    TimedTable(released.times, {"epsilon": np.ones(4), **released.columns}).write("old.csv")
    done = run("postprocess", "old.csv", "--num-users", 10, "--transition", "move.csv", "-o", "o.csv", "--json")
    assert json.loads(done.stdout)["is_exact"] is False


def test_budgets_for_temporal_leakage_match_package(folder):
    done = run("release", "--counts", "true.csv", "--transition", "move.csv", "--alpha", 1, "-o", "noisy.csv", "--json")
    assert json.loads(done.stdout)["temporal_leakage"] == pytest.approx(1.0, rel=1e-6)
    values, vectors = np.linalg.eig(MATRIX.T)
    stationary = np.real(vectors[:, np.argmax(values.real)])
    expected = exact_budgets(reverse(MATRIX, stationary / stationary.sum()), MATRIX, 1.0, 4)
    np.testing.assert_allclose(TimedTable.read("noisy.csv").columns["epsilon"], expected, rtol=1e-9)
    assert "smoothing_of_transitions" not in json.loads(done.stdout)
    smooth = ("--transition", "move.csv", "--smoothing", 0.1, "--alpha", 1, "-o", "smooth.csv", "--json")
    assert json.loads(run("release", "--counts", "true.csv", *smooth).stdout)["smoothing_of_transitions"] == 0.1


@pytest.mark.parametrize(("name", "coupled"), [("coupled", True), ("online", "online"), ("single", False)])
def test_postprocess_matches_package(folder, name, coupled):
    run("release", "--counts", "true.csv", "--epsilons", "budgets.csv", "--seed", 1, "-o", "noisy.csv")
    done = run(
        "postprocess", "noisy.csv", "--num-users", 10, "--transition", "move.csv", "--estimator", name, "-o", "o.csv"
    )
    assert done.exit_code == 0, done.output
    noisy = TimedTable.read("noisy.csv").matrix([f"place_{at}" for at in range(3)])
    expected = post_process(noisy, MATRIX, 10, [2, 4, 2, 1], coupled=coupled)
    repaired = TimedTable.read("o.csv")
    assert list(repaired.columns) == ["is_exact", "place_0", "place_1", "place_2"]
    np.testing.assert_array_equal(repaired.matrix(list(repaired.columns)[1:]), expected)


@pytest.mark.slow
def test_evaluate_compares_all_estimators_and_is_reproducible(folder):
    options = ("evaluate", "true.csv", "--transition", "move.csv", "--epsilon", "1/2", "--seed", 4, "--json")
    facts = json.loads(run(*options).stdout)
    assert facts == json.loads(run(*options).stdout)
    assert set(facts) >= {"noisy", "coupled", "online", "single", "least_squares", "maximum_likelihood"}
    assert facts["coupled"] < facts["noisy"]


def test_evaluate_prints_errors_of_all_estimators_under_one_heading(folder):
    printed = run("evaluate", "true.csv", "--transition", "move.csv", "--epsilon", 1, "--seed", 3).output
    assert "maximum likelihood" in printed
    assert "Privacy" not in printed


def test_evaluate_accepts_existing_release(folder):
    run("release", "--counts", "true.csv", "--epsilon", 1, "-o", "noisy.csv")
    facts = json.loads(run("evaluate", "true.csv", "--noisy", "noisy.csv", "--json").stdout)
    noisy = TimedTable.read("noisy.csv").matrix([f"place_{at}" for at in range(3)])
    assert facts["noisy"] == np.mean((noisy - TRUE) ** 2)
    assert "coupled" not in facts


RELEASE = ("release", "--counts", "true.csv", "-o", "out.csv")
REPAIR = ("postprocess", "true.csv", "-o", "out.csv", "--transition", "move.csv")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("release", "--counts", "negative.csv", "--epsilon", 1, "-o", "out.csv"),
            "must be non-negative, got -1.0 at time",
        ),
        (
            ("release", "--counts", "uneven.csv", "--epsilon", 1, "-o", "out.csv"),
            "must have one sum at all times, got 10 at time 3 and 11 at time 0",
        ),
        ((*RELEASE, "--epsilon", 0), "--epsilon must be in [1e-30, 1e+30]"),
        ((*RELEASE, "--epsilon", "much"), "--epsilon must be in [1e-30, 1e+30]"),
        ((*RELEASE, "--epsilons", "short.csv"), "got 2 budgets"),
        ((*RELEASE, "--alpha", 1), "--alpha requires a mobility model: use --model or --transition"),
        ((*RELEASE, "--alpha", 1, "--transition", "two.csv"), "disjoint supports"),
        (RELEASE, "exactly one budget is required: use one of --epsilon, --epsilons and --alpha"),
        ((*RELEASE, "--epsilon", 1, "--private-diagnostics", "t.csv"), "must contain 'private'; use PRIVATE-t.csv"),
        (
            ("release", "--counts", "true.csv", "--epsilon", 1, "-o", "out.txt"),
            "the extension of a table must be .csv or .parquet",
        ),
        (("release", "--counts", "no.csv", "--epsilon", 1, "-o", "out.csv"), "no such file"),
        (("release", SAMPLE, "--bbox", *BOX, "--cell", 2, "--epsilon", 1, "-o", "out.csv"), "no time step"),
        (
            ("release", SAMPLE, "--bbox", 0, 0, 1, 1, "--cell", 9, "--step", 60, "--epsilon", 1, "-o", "o.csv"),
            "no user has a fix",
        ),
        (("release", "--epsilon", 1, "-o", "out.csv"), "no data"),
        ((*REPAIR, "--num-users", 0, {"scale": 2}), "users must be an integer in [1, 9007199254740992], got 0"),
        ((*REPAIR, "--num-users", 10, {"scale": 0}), "noise scale must be in"),
        ((*REPAIR, "--num-users", 10, {"scale": -1}), "got -1"),
        ((*REPAIR, "--num-users", 10), "no column 'epsilon'"),
        (
            ("postprocess", "true.csv", "-o", "out.csv", "--transition", "two.csv", "--num-users", 10, {"scale": 2}),
            "(2, 2)",
        ),
        (
            ("postprocess", "true.csv", "-o", "out.csv", "--num-users", 10, {"scale": 2}),
            "needs transitions: use a model or a matrix",
        ),
        ((*REPAIR, "--num-users", 10, {"scale": 2}, {"prior": "model"}), "prior = 'model' needs --model"),
        (("evaluate", "true.csv", "--noisy", "true.csv", "--epsilon", 1), "--noisy cannot be combined with budgets"),
        (("evaluate", "true.csv", "--noisy", "true.csv", "--runs", 5), "--runs cannot be combined with --noisy"),
        (("release", "none", *REGION, "-o", "o.csv", "--alpha", 1), "--alpha requires a mobility model"),
        (("release", "none", *REGION, "-o", "o.csv", "--epsilons", "true.csv"), "true.csv"),
        (
            ("evaluate", "true.csv", "--noisy", "other.csv"),
            "other.csv: times and places must be those of the true counts",
        ),
        (("evaluate", "true.csv", "--epsilon", 1, "--runs", 0), "range 1<=x<=10000"),
    ],
)
def test_invalid_input_prints_one_line_and_writes_nothing(folder, arguments, message):
    before = sorted(folder.iterdir())
    done = run(*arguments)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert sorted(folder.iterdir()) == before


def test_summary_states_guarantee_and_no_private_field(folder):
    done = run("release", "--counts", "true.csv", "--epsilons", "budgets.csv", "-o", "noisy.csv")
    assert done.exit_code == 0, done.output
    assert not re.search(r"^ *private +(yes|no)", done.stdout, re.MULTILINE)
    output = " ".join(done.stdout.split())
    # The smallest budget is 0.5: discrete Laplace noise of scale 4, with mean zero.
    mass = {noise: np.exp(-abs(noise) / 4) for noise in range(-400, 401)}
    variance = sum(weight * noise**2 for noise, weight in mass.items()) / sum(mass.values())
    assert f"Utility max RMS noise of a count {variance**0.5:.3g}" in output
    assert "daily" not in output
    assert "likelihood ratio one row if one member moves ≤ 7.39" in output  # e^2
    assert "likelihood ratio all rows if one member moves ≤ 90.1" in output  # e^4.5, rounded up
    seeded = run("release", "--counts", "true.csv", "--epsilon", 1, "--seed", 1, "-o", "seeded.csv", "--json")
    facts = json.loads(seeded.stdout)
    assert facts["randomness"] == "seeded"
    assert facts["likelihood_ratio_one_row_if_one_member_moves"] == "none: the noise is seeded and can be reproduced"


@pytest.mark.slow
def test_training_users_raise_unless_allowed(folder):
    assert command_line.run("learn", str(SAMPLE), *map(str, REGION), "-o", "own.npz").exit_code == 0
    counted = ("release", SAMPLE, "--model", "own.npz", "--epsilon", 1, "-o", "own.csv")
    refused = run(*counted)
    assert refused.exit_code == 2
    assert "must not be trained on the users to protect, got training users 000, 001, 002" in refused.stderr
    assert "Learn it from other users (--exclude-users), or set allow_training_users" in refused.stderr
    assert not (folder / "own.csv").exists()
    allowed = json.loads(run(*counted, {"allow_training_users": True}, "--json").stdout)
    assert allowed["private_model_trained_on_these_users"] == "not checked (allow_training_users)"
    wrong = run("release", "--counts", "true.csv", {"allow_training_users": True}, "--epsilon", 1, "-o", "fresh.csv")
    assert (wrong.exit_code, "key 'allow_training_users' cannot be combined with --counts" in wrong.stderr) == (2, True)


def test_numbers_of_named_places_are_stated(folder):
    """The verifier of certificates accepts numbered places only."""
    (folder / "named.csv").write_text("airport,time,city centre\n3,1,2\n4,2,1\n")
    done = run("release", "--counts", "named.csv", "--epsilon", 1, "-o", "noisy.csv")
    assert "columns place_0, place_1, … in this order: airport, city centre." in done.stderr
    assert (folder / "noisy.csv").read_text().startswith("time,epsilon,is_exact,place_0,place_1\n")
    assert "Note" not in run("postprocess", "noisy.csv", *PROJECTION, "-o", "repaired.csv").stderr
    assert "airport, city centre." in run("postprocess", "named.csv", *PROJECTION, "-o", "again.csv").stderr


def test_numbered_places_keep_their_numbers_in_another_order_of_columns(folder):
    (folder / "sorted.csv").write_text("time,place_1,place_0\n1,1000,0\n2,1000,0\n")
    assert run("release", "--counts", "sorted.csv", "--epsilon", 1, "-o", "noisy.csv").exit_code == 0
    noisy = TimedTable.read("noisy.csv").columns
    assert (noisy["place_1"] > noisy["place_0"]).all()


@pytest.mark.parametrize("estimator", ["least-squares", "maximum-likelihood"])
def test_estimators_without_scale_need_no_budgets(folder, estimator):
    done = run("postprocess", "negative.csv", "--estimator", estimator, "--num-users", 7, "-o", "repaired.csv")
    assert done.exit_code == 0, done.output
    repaired = TimedTable.read("repaired.csv")
    np.testing.assert_allclose(repaired.matrix(list(repaired.columns)[1:]).sum(axis=1), 7)
    done = run("evaluate", "true.csv", "--noisy", "negative.csv", "--estimator", estimator)
    assert done.exit_code == 0, done.output


def test_output_that_is_an_input_is_refused(folder):
    assert run("release", "--counts", "true.csv", "--epsilon", 1, "-o", "noisy.csv").exit_code == 0
    before = (folder / "noisy.csv").read_bytes()
    (folder / "link.csv").symlink_to("noisy.csv")
    for output in ("noisy.csv", "link.csv"):
        done = run("postprocess", "noisy.csv", *PROJECTION, "-o", output, "--overwrite")
        assert done.exit_code == 2
        assert f"{output} is an input of this command" in done.stderr
    assert (folder / "noisy.csv").read_bytes() == before
