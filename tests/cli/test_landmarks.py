"""``dphmm landmarks`` as a person runs it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dphmm.cli import main
from dphmm.jobs.landmark_release import losses_on_clock
from dphmm.landmarks import leakage, repeated_places, skip, stay_points, timeline, uniform
from dphmm.markov import reverse
from dphmm.markov.model import MarkovModel
from dphmm.readers import read
from dphmm.space.projection import LocalProjection
from dphmm.tables import TimedTable

SAMPLE = Path(__file__).parents[2] / "data" / "sample" / "geolife"
BOX = (44.97, -30.04, 45.03, -29.96)
STAY = np.array([[0.9, 0.1], [0.2, 0.8]])
PLANAR = ("--users", "000", "--unit", 0.2, "--centre", 45, -30, "--step", 1800)


def invoke(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def run(*arguments):
    return invoke("landmarks", *arguments)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.npz"
    options = ("--bbox", *BOX, "--cell", 1, "--step", 1800, "--gap", 7200, "--smoothing", 0.5)
    assert invoke("learn", SAMPLE, *options, "-o", path).exit_code == 0
    return path


@pytest.fixture
def folder(tmp_path, monkeypatch):
    rows = [f"{t},{np.sin(t):.4f},{t / 10}" for t in range(20)]
    (tmp_path / "series.csv").write_text("\n".join(["time,a,b", *rows]) + "\n")
    (tmp_path / "marks.csv").write_text("time\n3\n4\n9\n")
    (tmp_path / "back.csv").write_text("9\n4\n")
    (tmp_path / "dated.csv").write_text("time,a\n2024-03-07T09:00Z,1\n2024-03-07T10:00Z,2\n")
    (tmp_path / "repeated.csv").write_text("time,a\n1,1\n1,2\n")
    (tmp_path / "clash.csv").write_text("time,loss\n1,1\n2,2\n")
    np.savetxt(tmp_path / "stay.csv", STAY, delimiter=",")
    monkeypatch.chdir(tmp_path)
    return tmp_path


SERIES = ("series.csv", "--sensitivity", 1, "--epsilon", 2)


@pytest.mark.parametrize(("name", "scheme"), [("skip", skip), ("uniform", uniform)])
def test_a_series_has_the_schemes_budgets_and_losses(folder, name, scheme):
    known = ("--backward", "stay.csv", "--forward", "stay.csv")
    done = run(*SERIES, "--scheme", name, "--landmarks", "marks.csv", *known, "-o", "out.csv", "--json")
    assert done.exit_code == 0, done.output
    out, budget = TimedTable.read("out.csv").columns, scheme(range(20), [3, 4, 9], 2.0)
    np.testing.assert_array_equal(out["epsilon"], budget.epsilons)
    np.testing.assert_array_equal(np.flatnonzero(out["landmark"]), [3, 4, 9])
    np.testing.assert_array_equal(out["loss"], leakage(range(20), [3, 4, 9], budget.epsilons, STAY, STAY))
    again = np.flatnonzero(out["published"] == 0)
    assert again.tolist() == ([3, 4, 9] if name == "skip" else [])
    for column in ("a", "b"):
        np.testing.assert_array_equal(out[column][again], out[column][again - 1])
    facts = json.loads(done.stdout)
    assert facts["loss_greatest"] == out["loss"].max()
    assert facts["landmarks"] == 3


def test_adaptive_keeps_its_budget_and_marks_what_is_given_again(folder):
    pytest.importorskip("pyarrow")
    options = ("--rate", 0.5, "--at", 3, "--at", 9, "--seed", 1)
    done = run(*SERIES, *options, "-o", "out.parquet", "--json")
    out, facts = TimedTable.read("out.parquet").columns, json.loads(done.stdout)
    assert "not private" in done.stderr
    assert not facts["private"]
    marked = out["landmark"] > 0
    assert out["epsilon"][marked].sum() + out["epsilon"][~marked].max() <= 2.0
    again = np.flatnonzero(out["published"] == 0)
    assert again.size > 2
    np.testing.assert_array_equal(out["a"][again], out["a"][again - 1])
    assert (out["epsilon"][again] == 0).all()


def test_home_and_work_of_a_trajectory_are_its_landmarks(folder):
    options = ("--find", "home-and-work", "--utc-offset", -2, "--radius", 0.3, "--minutes", 60, "--epsilon", 4)
    done = run(SAMPLE, *PLANAR, *options, "--scheme", "uniform", "-o", "out.csv", "--json")
    assert done.exit_code == 0, done.output
    track = next(one for one in read(SAMPLE).trajectories if one.user == "000").resample(1800)
    points = LocalProjection(45, -30).to_plane(track.latitude, track.longitude)
    stays = stay_points(track.times, points, 0.3, 60)
    places = repeated_places(stays, 0.3, -2)
    assert min(places.home, places.work) >= 0
    expected = stays.mask(np.isin(places.place, [places.home, places.work]))
    out = TimedTable.read("out.csv")
    np.testing.assert_array_equal(out.columns["landmark"] > 0, expected)
    np.testing.assert_array_equal(out.times, track.times)
    assert out.columns["loss"].max() <= 4.0 * (1 + 1e-12)


def test_a_trajectory_goes_through_the_engine(folder, model):
    options = ("--users", "000", "--model", model, "--policy", "complete", "--epsilon", 4)
    at = read(SAMPLE, user=None).trajectories[0].resample(1800).times[[5, 9]]
    marks = [word for moment in at for word in ("--at", str(moment))]
    done = run(SAMPLE, *options, *marks, "--scheme", "skip", "-o", "out.csv", "--json")
    assert done.exit_code == 0, done.output
    table = TimedTable.read("out.csv")
    out = table.columns
    assert out["epsilon"].max() == 4.0
    assert np.flatnonzero(out["landmark"]).tolist() == [5, 9]
    for column in ("latitude", "longitude"):
        assert out[column][5] == out[column][4]
    learned = MarkovModel.load(model)
    slots = table.times.astype(np.int64) // 1_800_000_000
    past = reverse(learned.transition, learned.initial)
    line = timeline(table.times, at)
    expected = losses_on_clock(line, slots, out["epsilon"], past, learned.transition)  # complete: the factor is one
    np.testing.assert_allclose(out["loss"], expected, rtol=1e-9)


def test_the_picture_is_drawn_beside_the_table(folder):
    pytest.importorskip("matplotlib")
    assert run(*SERIES, "--at", 3, "-o", "out.csv", "--plot", "out.png").exit_code == 0
    assert (folder / "out.png").read_bytes().startswith(b"\x89PNG")
    assert run(*SERIES, "--at", 3, "-o", "two.csv", "--plot", "out.png").exit_code == 2
    assert not (folder / "two.csv").exists()


ENGINE = ("--users", "000", "--policy", "complete", "--epsilon", 1, "-o", "o.csv")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*SERIES, "--at", 99, "-o", "o.csv"), "landmark 99 is not among the 20 timestamps"),
        ((*SERIES, "--landmarks", "back.csv", "-o", "o.csv"), "entry 1 is 4 after 9"),
        ((*SERIES, "--at", 3, "--at", 3, "-o", "o.csv"), "entry 1 is 3 after 3"),
        ((*SERIES, "--at", "2024-03-07", "-o", "o.csv"), "landmark 2024-03-07 is not of the timestamps' kind"),
        ((*SERIES, "--at", "noon", "-o", "o.csv"), "noon"),
        ((*SERIES, "--at", 3, "--landmarks", "marks.csv", "-o", "o.csv"), "exclude each other"),
        ((*SERIES, "--landmarks", "none.csv", "-o", "o.csv"), "none.csv: there is no such file"),
        (("repeated.csv", "--sensitivity", 1, "--epsilon", 2, "-o", "o.csv"), "time 1 is 1 after 1"),
        (("clash.csv", "--sensitivity", 1, "--epsilon", 2, "-o", "o.csv"), "column 'loss'"),
        (("dated.csv", "--sensitivity", 1, "--epsilon", 2, "--at", 3, "-o", "o.csv"), "landmark 3 is not of"),
        (("series.csv", "--sensitivity", 0, "--epsilon", 2, "-o", "o.csv"), "sensitivity is 0"),
        (("series.csv", "--sensitivity", 1, "--epsilon", -2, "-o", "o.csv"), "epsilon is -2"),
        (("series.csv", "--epsilon", 2, "-o", "o.csv"), "no single noise"),
        ((*SERIES, "--find", "home", "-o", "o.csv"), "--find needs places"),
        ((*SERIES, "--rate", 2, "-o", "o.csv"), "rate, least_rate and change are 2"),
        ((*SERIES, "--step", 60, "-o", "o.csv"), "--step is for trajectories"),
        ((*SERIES, "-o", "o.txt"), "name it so"),
        ((*SERIES, "--backward", "marks.csv", "-o", "o.csv"), "value 1 is 'time'; give a decimal number"),
        ((SAMPLE, "--unit", 0.2, "--centre", 45, -30, "--epsilon", 1, "-o", "o.csv"), "there are 3 people"),
        ((SAMPLE, "--users", "000", "--unit", 0.2, "--epsilon", 1, "-o", "o.csv"), "--centre"),
        ((SAMPLE, *PLANAR, "--epsilon", 1, "--backward", "stay.csv", "-o", "o.csv"), "--backward does not go"),
        ((SAMPLE, *PLANAR, "--epsilon", 1, "--find", "work", "--minutes", 9999, "-o", "o.csv"), "finds nothing"),
        ((SAMPLE, *ENGINE), "--policy needs --model"),
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
