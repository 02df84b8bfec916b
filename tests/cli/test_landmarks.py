"""Tests of ``dphmm landmarks`` from the command line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from dphmm.landmarks import leakage, repeated_places, skip_scheme, stay_points, uniform_scheme
from dphmm.model import reverse_by_step
from dphmm.model.model import MarkovModel
from dphmm.readers import read
from dphmm.space.projection import LocalProjection
from dphmm.tables import TimedTable
from tests import command_line

SAMPLE = Path(__file__).parents[2] / "data" / "sample" / "geolife"
BOX = (44.97, -30.04, 45.03, -29.96)
STAY = np.array([[0.9, 0.1], [0.2, 0.8]])
PLANAR = ("--users", "000", "--unit", 0.2, "--centre", 45, -30, "--step", 1800)


def invoke(*arguments):
    return command_line.run(*arguments)


def run(*arguments):
    return invoke("landmarks", *arguments)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.npz"
    options = ("--bbox", *BOX, "--cell", 1, "--step", 1800, "--gap", 7200, "--exclude-users", "000")
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


@pytest.mark.parametrize(("name", "scheme"), [("skip", skip_scheme), ("uniform", uniform_scheme)])
def test_series_has_budgets_and_losses_of_scheme(folder, name, scheme):
    correlations = ("--backward", "stay.csv", "--forward", "stay.csv")
    done = run(*SERIES, "--scheme", name, "--landmarks", "marks.csv", *correlations, "-o", "out.csv", "--json")
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
    assert facts["max_leakage"] == out["loss"].max()
    assert facts["num_landmarks"] == 3
    assert facts["is_exact"]
    assert out["is_exact"].all()
    steps = np.column_stack([out["a"], out["b"]]) / 0.001  # the default spacing for sensitivity 1
    np.testing.assert_allclose(steps, np.rint(steps), rtol=0, atol=1e-5)


def test_summary_prints_epsilon_once(folder):
    printed = run(*SERIES, "--landmarks", "marks.csv", "-o", "out.csv").stdout
    (line,) = (line for line in printed.splitlines() if "epsilon" in line)
    assert line.split() == ["epsilon", "landmarks", "and", "one", "timestamp", "2"]


def test_real_valued_noise_is_optional_and_marked_inexact(folder):
    done = run(*SERIES, "--mechanism", "laplace", "-o", "out.csv", "--json")
    out = TimedTable.read("out.csv").columns
    assert not json.loads(done.stdout)["is_exact"]
    assert not out["is_exact"].any()
    assert (out["a"] % 0.001 > 1e-9).any()
    planar = run(SAMPLE, *PLANAR, "--epsilon", 4, "--mechanism", "planar-laplace", "-o", "places.csv", "--json")
    assert not json.loads(planar.stdout)["is_exact"]


def test_spacing_is_lattice_of_released_values(folder):
    assert run(*SERIES, {"spacing": "1/4"}, "-o", "out.csv").exit_code == 0
    released = TimedTable.read("out.csv").columns["a"]
    assert (released % 0.25 == 0).all()
    done = run(SAMPLE, *PLANAR, "--epsilon", 4, {"spacing": "0.5"}, "-o", "places.csv", "--json")
    assert json.loads(done.stdout)["is_exact"]
    places = TimedTable.read("places.csv").columns
    steps = LocalProjection(45, -30).to_plane(places["latitude"], places["longitude"]) / 0.5
    np.testing.assert_allclose(steps, np.rint(steps), rtol=0, atol=1e-5)


def test_backward_matrices_follow_from_initial_distribution(folder):
    (folder / "first.csv").write_text("0.05,0.95\n")
    correlations = ("--forward", "stay.csv", "--initial", "first.csv")
    done = run(*SERIES, "--scheme", "uniform", "--at", 9, *correlations, "-o", "out.csv")
    assert done.exit_code == 0, done.output
    past = list(reverse_by_step(STAY, [0.05, 0.95], 20))
    budgets = uniform_scheme(range(20), [9], 2.0).epsilons
    losses = TimedTable.read("out.csv").columns["loss"]
    np.testing.assert_array_equal(losses, leakage(range(20), [9], budgets, past, STAY))
    assert (losses != leakage(range(20), [9], budgets, past[-1], STAY)).any()


@pytest.mark.slow
def test_existing_picture_is_replaced_only_with_overwrite(folder):
    pytest.importorskip("matplotlib")
    words = (*SERIES, "--at", 3, "-o", "out.csv", "--picture", "out.png")
    assert [run(*words).exit_code, run(*words).exit_code, run(*words, "--overwrite").exit_code] == [0, 2, 0]


def test_adaptive_keeps_budget_and_marks_repeated_values(folder):
    pytest.importorskip("pyarrow")
    options = ({"rate": 0.5}, "--at", 3, "--at", 9, "--seed", 1)
    done = run(*SERIES, *options, "-o", "out.parquet", "--json")
    out, facts = TimedTable.read("out.parquet").columns, json.loads(done.stdout)
    assert "not private" in done.stderr
    promised = ("likelihood_ratio_landmarks_and_one_timestamp", "likelihood_ratio_all_releases")
    assert facts["randomness"] == "seeded"
    assert {facts[key] for key in promised} == {"none: the noise is seeded and can be reproduced"}
    marked = out["landmark"] > 0
    assert out["epsilon"][marked].sum() + out["epsilon"][~marked].max() <= 2.0
    again = np.flatnonzero(out["published"] == 0)
    assert again.size > 2
    np.testing.assert_array_equal(out["a"][again], out["a"][again - 1])
    assert (out["epsilon"][again] == 0).all()


def test_home_and_work_of_trajectory_are_landmarks(folder):
    options = ("--find", "home-and-work", {"utc_offset": -2}, {"radius": 0.3}, {"minutes": 60}, "--epsilon", 4)
    done = run(SAMPLE, *PLANAR, *options, "--scheme", "uniform", "-o", "out.csv", "--json")
    assert done.exit_code == 0, done.output
    track = next(trajectory for trajectory in read(SAMPLE).trajectories if trajectory.user == "000").resample(1800)
    points = LocalProjection(45, -30).to_plane(track.latitude, track.longitude)
    stays = stay_points(track.times, points, 0.3, 60)
    places = repeated_places(stays, 0.3, -2)
    assert min(places.home, places.work) >= 0
    expected = stays.mask(np.isin(places.place, [places.home, places.work]))
    out = TimedTable.read("out.csv")
    np.testing.assert_array_equal(out.columns["landmark"] > 0, expected)
    np.testing.assert_array_equal(out.times, track.times)
    assert out.columns["loss"].max() <= 4.0 * (1 + 1e-12)


@pytest.mark.slow
def test_trajectory_is_released_by_engine(folder, model):
    options = ("--users", "000", "--model", model, "--policy", "complete", "--epsilon", 4)
    at = read(SAMPLE, user=None).trajectories[0].resample(1800).times[[5, 9]]
    marks = [word for time in at for word in ("--at", str(time))]
    done = run(SAMPLE, *options, *marks, "--scheme", "skip", "-o", "out.csv", "--json")
    assert done.exit_code == 0, done.output
    table = TimedTable.read("out.csv")
    out = table.columns
    assert out["epsilon"].max() == 4.0
    assert np.flatnonzero(out["landmark"]).tolist() == [5, 9]
    for column in ("latitude", "longitude"):
        assert out[column][5] == out[column][4]
    learned = MarkovModel.load(model)
    slots = table.times.astype(np.int64) // 1_800_000_000 - table.times[0].astype(np.int64) // 1_800_000_000
    spent = np.zeros(slots[-1] + 1)
    spent[slots] = out["epsilon"]  # for a complete policy the constrained factor is one
    past = reverse_by_step(learned.transition, learned.initial, len(spent))
    expected = leakage(range(len(spent)), slots[[5, 9]], spent, past, learned.transition)[slots]
    np.testing.assert_allclose(out["loss"], expected, rtol=1e-9)
    assert out["is_exact"].all()
    assert json.loads(done.stdout)["is_exact"]


@pytest.mark.slow
def test_training_user_raises_unless_allowed(folder, model):
    options = ("--users", "001", "--model", model, "--policy", "complete", "--epsilon", 4, "--scheme", "uniform")
    done = run(SAMPLE, *options, "-o", "out.csv")
    assert done.exit_code == 2
    assert "must not be trained on the users to protect, got training user 001:" in done.stderr
    assert "Learn it from other users (--exclude-users), or set allow_training_users" in done.stderr
    assert run(SAMPLE, *options, {"allow_training_users": True}, "-o", "out.csv").exit_code == 0


@pytest.mark.slow
def test_place_outside_region_has_row_unless_omitted(folder):
    track = next(trajectory for trajectory in read(SAMPLE).trajectories if trajectory.user == "000").resample(1800)
    small = folder / "small.npz"
    box = (44.97, -30.04, 45.01, -29.99)
    done = invoke(
        "learn",
        SAMPLE,
        "--bbox",
        *box,
        "--cell",
        1,
        "--step",
        1800,
        "-o",
        small,
        "--exclude-users",
        "000",
        {"outside_states": False},
    )
    assert done.exit_code == 0, done.output
    options = ("--users", "000", "--model", small, "--policy", "complete", "--epsilon", 4, "--scheme", "uniform")
    assert run(SAMPLE, *options, "-o", "border.csv").exit_code == 0
    assert run(SAMPLE, *options, {"outside": "drop"}, "-o", "omit.csv").exit_code == 0
    inside = MarkovModel.load(small).states.locate(track.latitude, track.longitude) >= 0
    assert 0 < inside.sum() < len(track)
    assert len(TimedTable.read("border.csv")) == len(track)
    assert len(TimedTable.read("omit.csv")) == inside.sum()


@pytest.mark.usefixtures("blank")
def test_picture_is_written_next_to_table(folder):
    pytest.importorskip("matplotlib")
    assert run(*SERIES, "--at", 3, "-o", "out.csv", "--picture", "out.png").exit_code == 0
    assert (folder / "out.png").read_bytes().startswith(b"\x89PNG")
    assert run(*SERIES, "--at", 3, "-o", "two.csv", "--picture", "out.png").exit_code == 2
    assert not (folder / "two.csv").exists()


ENGINE = ("--users", "000", "--policy", "complete", "--epsilon", 1, "-o", "o.csv")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*SERIES, "--at", 99, "-o", "o.csv"), "landmarks must be among the 20 timestamps, got 99"),
        (
            (*SERIES, "--landmarks", "back.csv", "-o", "o.csv"),
            "landmarks must be strictly increasing, got 4 at entry 1 after 9",
        ),
        (
            (*SERIES, "--at", 3, "--at", 3, "-o", "o.csv"),
            "landmarks must be strictly increasing, got 3 at entry 1 after 3",
        ),
        (
            (*SERIES, "--at", "2024-03-07", "-o", "o.csv"),
            "landmarks must have the type of the timestamps, such as 0, got 2024-03-07",
        ),
        ((*SERIES, "--at", "noon", "-o", "o.csv"), "noon"),
        ((*SERIES, "--at", 3, "--landmarks", "marks.csv", "-o", "o.csv"), "cannot be combined: use one of them"),
        ((*SERIES, "--landmarks", "none.csv", "-o", "o.csv"), "none.csv: there is no such file"),
        (
            ("repeated.csv", "--sensitivity", 1, "--epsilon", 2, "-o", "o.csv"),
            "times must be strictly increasing, got time 1 = 1 after 1; sort them",
        ),
        (
            ("clash.csv", "--sensitivity", 1, "--epsilon", 2, "-o", "o.csv"),
            "columns must not have names of the output, got 'loss'",
        ),
        (
            ("dated.csv", "--sensitivity", 1, "--epsilon", 2, "--at", 3, "-o", "o.csv"),
            "landmarks must have the type of the timestamps",
        ),
        (
            ("series.csv", "--sensitivity", 0, "--epsilon", 2, "-o", "o.csv"),
            "--sensitivity must be in [1e-30, 1e+30]",
        ),
        (
            (*SERIES, "--mechanism", "gaussian", "-o", "o.csv"),
            "mechanism must be one of lattice, laplace",
        ),
        (
            (*SERIES, "--mechanism", "laplace", {"spacing": "1"}, "-o", "o.csv"),
            "key 'spacing' cannot be combined with mechanism 'laplace': it needs 'lattice'",
        ),
        ((*SERIES, {"spacing": "0"}, "-o", "o.csv"), "key 'spacing' must be in [1e-30, 1e+30]"),
        (
            (SAMPLE, *PLANAR, "--epsilon", 1, "--mechanism", "planar-laplace", {"spacing": "1"}, "-o", "o.csv"),
            "key 'spacing' cannot be combined with mechanism 'planar-laplace'",
        ),
        ((SAMPLE, *PLANAR, "--epsilon", 1, "--utc-offset", 1, "-o", "o.csv"), "--utc-offset needs --find"),
        (
            (SAMPLE, *PLANAR, "--epsilon", 1, "--find", "stays", "--utc-offset", 1, "-o", "o.csv"),
            "--utc-offset needs --find home, work or home-and-work: remove --utc-offset",
        ),
        ((*SERIES, "--initial", "stay.csv", "-o", "o.csv"), "initial derives the backward matrices from forward"),
        ((*SERIES, "--initial", "marks.csv", "--forward", "stay.csv", "-o", "o.csv"), "marks.csv"),
        (
            (SAMPLE, *PLANAR, "--epsilon", 1, "--mechanism", "laplace", "-o", "o.csv"),
            "mechanism must be one of",
        ),
        (("series.csv", "--sensitivity", 1, "--epsilon", -2, "-o", "o.csv"), "epsilon must be"),
        (
            ("series.csv", "--epsilon", 2, "-o", "o.csv"),
            "exactly one of --sensitivity, --unit and --policy is required",
        ),
        (
            (*SERIES, "--find", "home", "-o", "o.csv"),
            "cannot be combined with --find: finding landmarks needs locations",
        ),
        ((*SERIES, {"rate": 2}, "-o", "o.csv"), "key 'rate' must be in (0, 1]"),
        ((*SERIES, "--step", 60, "-o", "o.csv"), "--step cannot be combined with --sensitivity"),
        ((*SERIES, "-o", "o.txt"), "the extension of a table must be .csv or .parquet"),
        ((*SERIES, "--backward", "marks.csv", "-o", "o.csv"), "value 1 must be a decimal number, got 'time'"),
        (
            (SAMPLE, "--unit", 0.2, "--centre", 45, -30, "--epsilon", 1, "-o", "o.csv"),
            "landmarks must be of one user, got 3 users",
        ),
        ((SAMPLE, "--users", "000", "--unit", 0.2, "--epsilon", 1, "-o", "o.csv"), "--centre"),
        (
            (SAMPLE, *PLANAR, "--epsilon", 1, "--backward", "stay.csv", "-o", "o.csv"),
            "--backward cannot be combined with --unit",
        ),
        (
            (SAMPLE, *PLANAR, "--epsilon", 1, "--find", "work", {"minutes": 9999}, "-o", "o.csv"),
            "--find work: no stay within",
        ),
        ((SAMPLE, *ENGINE), "--policy needs --model"),
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "box", [(44.99, -30.02, 45.01, -29.98), (44.99, 179.98, 45.01, -179.98)], ids=["ordinary", "across date line"]
)
def test_values_are_clamped_to_region(tmp_path, box):
    """Values inside are unchanged. Others move to the nearest border.

    Latitude and longitude are clamped separately.
    """
    south, west, north, east = box
    middle = west + (east - west) % 360 / 2
    centre = (middle + 180) % 360 - 180
    lines = [f"a,2024-03-07T{k // 60:02d}:{k % 60:02d}:00Z,45.0,{centre}" for k in range(0, 600, 5)]
    (tmp_path / "walk.csv").write_text("\n".join(["uid,time,lat,lng", *lines]))
    words = ("landmarks", tmp_path / "walk.csv", "--unit", 1, "--centre", 45, centre, "--epsilon", 1)
    more = ("--scheme", "uniform", "--seed", 3)
    free = invoke(*words, *more, "-o", tmp_path / "free.csv")
    kept = invoke(*words, *more, "--bbox", *box, "-o", tmp_path / "kept.csv")
    assert free.exit_code == kept.exit_code == 0, kept.stderr
    columns = []
    for name in ("free.csv", "kept.csv"):
        rows = csv.DictReader((tmp_path / name).read_text().splitlines())
        columns.append([(float(row["latitude"]), float(row["longitude"])) for row in rows])
    width, moved = (east - west) % 360, 0
    for (before, at), (after, there) in zip(*columns, strict=True):
        assert south <= after <= north
        assert (there - west) % 360 <= width + 1e-12
        if south <= before <= north and (at - west) % 360 <= width:
            assert (before, at) == (after, there)
        else:
            moved += 1
            assert after in (south, north) or there in (west, east)
    assert 0 < moved < len(lines)
    wrong = invoke(*words, "--bbox", north, west, south, east, "-o", tmp_path / "no.csv")
    assert wrong.exit_code == 2
    assert "south < north in [-90, 90]" in wrong.stderr


@pytest.mark.slow
def test_values_of_engine_are_clamped_to_region(tmp_path):
    learned = ("learn", SAMPLE, "--exclude-users", "000", "--bbox", *BOX, "--cell", 2, "--step", 1800)
    assert invoke(*learned, "-o", tmp_path / "m.npz").exit_code == 0
    words = (
        "landmarks",
        SAMPLE,
        "--users",
        "000",
        "--policy",
        "complete",
        "--model",
        tmp_path / "m.npz",
        "--epsilon",
        1,
    )
    result = invoke(*words, "--scheme", "uniform", "--bbox", *BOX, "-o", tmp_path / "kept.csv", "--seed", 1)
    assert result.exit_code == 0, result.stderr
    rows = list(csv.DictReader((tmp_path / "kept.csv").read_text().splitlines()))
    south, west, north, east = BOX
    places = [(float(row["latitude"]), float(row["longitude"])) for row in rows]
    assert all(south <= latitude <= north and west <= longitude <= east for latitude, longitude in places)
    assert any(latitude in (south, north) or longitude in (west, east) for latitude, longitude in places)
