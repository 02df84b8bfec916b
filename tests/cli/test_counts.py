"""``dphmm counts`` as a person runs it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dphmm.cli import main
from dphmm.counts import post_process
from dphmm.leakage import exact_budgets
from dphmm.model import reverse
from dphmm.readers import read
from dphmm.space.grid import Grid
from dphmm.tables import TimedTable

SAMPLE = Path(__file__).parents[2] / "data" / "sample" / "geolife"
BOX = (44.97, -30.04, 45.03, -29.96)
REGION = ("--bbox", *BOX, "--cell", 2, "--step", 600)
MATRIX = np.array([[0.2, 0.7, 0.1], [0.1, 0.1, 0.8], [0.7, 0.2, 0.1]])
TRUE = np.array([[8, 1, 1], [3, 6, 1], [2, 3, 5], [4, 3, 3]])


def run(*arguments):
    return CliRunner().invoke(main, ["counts", *(str(argument) for argument in arguments)])


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


def test_counts_of_trajectories_are_those_of_their_states(folder):
    done = run("release", SAMPLE, *REGION, "--epsilon", 1, "-o", "noisy.csv", "--private-counts", "PRIVATE.csv")
    assert done.exit_code == 0, done.output
    true = TimedTable.read("PRIVATE.csv")
    counts = true.matrix(list(true.columns))
    people = read(SAMPLE).trajectories
    assert (counts.sum(axis=1) == len(people)).all()
    grid, last = Grid.over(BOX, 2.0), true.times[-1]
    states = [grid.locate(one.latitude, one.longitude)[one.times <= last][-1] for one in people]
    np.testing.assert_array_equal(counts[-1], np.bincount(states, minlength=grid.size))


def test_days_are_laid_over_each_other(folder):
    options = ("--daily", "--hours", 8, 20, "--utc-offset", -2, "--epsilon", 1, "--json")
    facts = json.loads(run("release", SAMPLE, *REGION, *options, "-o", "noisy.parquet").stdout)
    assert facts["times"] == 72
    assert facts["users"] > 3
    assert (facts["randomness"], facts["epsilon_of_all_times"]) == ("system", 72)
    assert len(TimedTable.read("noisy.parquet")) == 72


def test_noise_is_exact_unless_another_is_asked_for_and_listed_budgets_are_kept(folder):
    done = run("release", "--counts", "true.csv", "--epsilons", "budgets.csv", "-o", "noisy.csv", "--json")
    assert json.loads(done.stdout)["exact"]
    noisy = TimedTable.read("noisy.csv")
    assert noisy.columns["epsilon"].tolist() == [1, 0.5, 1, 2]
    assert noisy.columns["exact"].all()
    assert (noisy.matrix(["place_0"]) % 1 == 0).all()
    assert "." not in (folder / "noisy.csv").read_text().splitlines()[1].split(",", 2)[2]


def test_every_file_and_summary_says_whether_noise_was_exact(folder):
    for mechanism, exact in (("lattice", True), ("laplace", False)):
        noisy, repaired = f"{mechanism}.csv", f"{mechanism}-repaired.csv"
        options = ("--epsilon", 1, "--mechanism", mechanism, "--json")
        done = run("release", "--counts", "true.csv", *options, "-o", noisy)
        assert json.loads(done.stdout)["exact"] == exact
        values = TimedTable.read(noisy)
        assert values.columns["exact"].all() == exact
        assert (values.matrix(["place_0", "place_1", "place_2"]) % 1 == 0).all() == exact
        done = run("postprocess", noisy, "--users", 10, "--transition", "move.csv", "-o", repaired, "--json")
        assert json.loads(done.stdout)["exact"] == exact
        assert TimedTable.read(repaired).columns["exact"].all() == exact
        assert json.loads(run("evaluate", "true.csv", *options, "--runs", 1).stdout)["exact"] == exact
        assert json.loads(run("evaluate", "true.csv", "--noisy", noisy, "--json").stdout)["exact"] == exact


def test_a_release_that_does_not_say_is_not_called_exact(folder):
    released = TimedTable.read("true.csv")
    TimedTable(released.times, {"epsilon": np.ones(4), **released.columns}).write("old.csv")
    done = run("postprocess", "old.csv", "--users", 10, "--transition", "move.csv", "-o", "o.csv", "--json")
    assert json.loads(done.stdout)["exact"] is False


def test_budgets_for_temporal_leakage_are_those_of_the_package(folder):
    done = run("release", "--counts", "true.csv", "--transition", "move.csv", "--alpha", 1, "-o", "noisy.csv", "--json")
    assert json.loads(done.stdout)["temporal_leakage"] == pytest.approx(1.0, rel=1e-6)
    values, vectors = np.linalg.eig(MATRIX.T)
    stationary = np.real(vectors[:, np.argmax(values.real)])
    expected = exact_budgets(reverse(MATRIX, stationary / stationary.sum()), MATRIX, 1.0, 4)
    np.testing.assert_allclose(TimedTable.read("noisy.csv").columns["epsilon"], expected, rtol=1e-9)


@pytest.mark.parametrize(("name", "coupled"), [("coupled", True), ("online", "online"), ("single", False)])
def test_postprocess_is_the_function_of_the_package(folder, name, coupled):
    run("release", "--counts", "true.csv", "--epsilons", "budgets.csv", "--seed", 1, "-o", "noisy.csv")
    done = run(
        "postprocess", "noisy.csv", "--users", 10, "--transition", "move.csv", "--estimator", name, "-o", "o.csv"
    )
    assert done.exit_code == 0, done.output
    noisy = TimedTable.read("noisy.csv").matrix([f"place_{at}" for at in range(3)])
    expected = post_process(noisy, MATRIX, 10, [2, 4, 2, 1], coupled=coupled)
    found = TimedTable.read("o.csv")
    assert list(found.columns) == ["exact", "place_0", "place_1", "place_2"]
    np.testing.assert_array_equal(found.matrix(list(found.columns)[1:]), expected)


def test_evaluate_compares_all_estimators_and_repeats_with_a_seed(folder):
    options = ("evaluate", "true.csv", "--transition", "move.csv", "--epsilon", "1/2", "--seed", 4, "--json")
    facts = json.loads(run(*options).stdout)
    assert facts == json.loads(run(*options).stdout)
    assert set(facts) >= {"noisy", "coupled", "online", "single", "least_squares", "maximum_likelihood"}
    assert facts["coupled"] < facts["noisy"]


def test_evaluate_judges_a_release_that_exists(folder):
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
        (("release", "--counts", "negative.csv", "--epsilon", 1, "-o", "out.csv"), "place 1 is -1"),
        (
            ("release", "--counts", "uneven.csv", "--epsilon", 1, "-o", "out.csv"),
            "time 3 has 10 users and time 0 has 11",
        ),
        ((*RELEASE, "--epsilon", 0), "epsilon is '0'"),
        ((*RELEASE, "--epsilon", "much"), "epsilon is 'much'"),
        ((*RELEASE, "--epsilons", "short.csv"), "there are 2 budgets"),
        ((*RELEASE, "--alpha", 1), "--alpha depends on how people move"),
        ((*RELEASE, "--alpha", 1, "--transition", "two.csv"), "disjoint supports"),
        (RELEASE, "no single budget"),
        ((*RELEASE, "--epsilon", 1, "--private-counts", "t.csv"), "call it"),
        (("release", "--counts", "true.csv", "--epsilon", 1, "-o", "out.txt"), "name it so"),
        (("release", "--counts", "no.csv", "--epsilon", 1, "-o", "out.csv"), "no such file"),
        (("release", SAMPLE, "--bbox", *BOX, "--cell", 2, "--epsilon", 1, "-o", "out.csv"), "no time step"),
        (("release", SAMPLE, "--bbox", 0, 0, 1, 1, "--cell", 9, "--step", 60, "--epsilon", 1, "-o", "o.csv"), "no one"),
        (("release", "--epsilon", 1, "-o", "out.csv"), "no data"),
        ((*REPAIR, "--users", 0, "--scale", 2), "number of users is 0"),
        ((*REPAIR, "--users", 10, "--scale", 0), "noise scale is 0"),
        ((*REPAIR, "--users", 10, "--scale", -1), r"noise scale is -1"),
        ((*REPAIR, "--users", 10), "no column 'epsilon'"),
        (
            ("postprocess", "true.csv", "-o", "out.csv", "--transition", "two.csv", "--users", 10, "--scale", 2),
            "(2, 2)",
        ),
        (("postprocess", "true.csv", "-o", "out.csv", "--users", 10, "--scale", 2), "how people move"),
        ((*REPAIR, "--users", 10, "--scale", 2, "--prior", "model"), "--prior model needs --model"),
        (("evaluate", "true.csv", "--noisy", "true.csv", "--epsilon", 1), "both given"),
        (("evaluate", "true.csv", "--noisy", "other.csv"), "other.csv: times or places are not those"),
        (("evaluate", "true.csv", "--epsilon", 1, "--runs", 0), "range 1<=x<=10000"),
    ],
)
def test_bad_input_ends_in_one_line_and_writes_nothing(folder, arguments, message):
    before = sorted(folder.iterdir())
    done = run(*arguments)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert sorted(folder.iterdir()) == before


def test_the_summary_says_what_is_promised_and_never_that_it_is_private(folder):
    done = run("release", "--counts", "true.csv", "--epsilons", "budgets.csv", "-o", "noisy.csv")
    assert done.exit_code == 0, done.output
    assert not re.search(r"^ *private +(yes|no)", done.stdout, re.MULTILINE)
    told = " ".join(done.stdout.split())
    assert "one row from one member elsewhere at that time at most 7.39 times as likely" in told  # e^2
    assert "all rows from one member elsewhere throughout at most 90.1 times as likely" in told  # e^4.5, rounded up
    seeded = run("release", "--counts", "true.csv", "--epsilon", 1, "--seed", 1, "-o", "seeded.csv", "--json")
    facts = json.loads(seeded.stdout)
    assert facts["randomness"] == "seeded"
    assert facts["one_row_from_one_member_elsewhere_at_that_time"] == "nothing: the noise follows from a seed"


def test_people_whom_the_model_saw_are_refused_unless_told_otherwise(folder):
    assert CliRunner().invoke(main, ["learn", str(SAMPLE), *map(str, REGION), "-o", "own.npz"]).exit_code == 0
    counted = ("release", SAMPLE, "--model", "own.npz", "--epsilon", 1, "-o", "own.csv")
    refused = run(*counted)
    assert refused.exit_code == 2
    assert "among those that the model was learned from" in refused.stderr
    assert not (folder / "own.csv").exists()
    allowed = json.loads(run(*counted, "--allow-own-model", "--json").stdout)
    assert allowed["private_model_learned_from_these_people"] == "not checked (--allow-own-model)"
    wrong = run("release", "--counts", "true.csv", "--allow-own-model", "--epsilon", 1, "-o", "fresh.csv")
    assert (wrong.exit_code, "--allow-own-model is for DATA" in wrong.stderr) == (2, True)
