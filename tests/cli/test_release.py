"""Releases end to end: files, jobs, private diagnostics."""

from __future__ import annotations

import csv
import json
import sqlite3
import stat
from datetime import datetime

import numpy as np
import pytest

from dphmm.model.model import MarkovModel
from dphmm.model.time_classes import TimeClasses
from dphmm.readers import read
from dphmm.release.engine import ReleaseSettings
from dphmm.release.settings import Schedule
from dphmm.release.trajectory import release_trajectory
from dphmm.writers import COLUMNS, FORMATS, ReleaseTable, read_releases, tracks

BASIC = ("release", "walk.csv", "--model", "m.npz", "--policy", "utility:600m", "--epsilon", "0.5")


@pytest.mark.parametrize("suffix", sorted(FORMATS))
def test_every_format_holds_every_release(world, run, suffix):
    result = run(*BASIC, "-o", f"out{suffix}", "--json")
    assert result.exit_code == 0, result.stderr
    table = read_releases(world / f"out{suffix}")
    assert len(table) == json.loads(result.stdout)["releases"] == 12
    assert set(table["epsilon"]) == {0.5}
    assert table["least_protection"].min() >= 2
    assert result.stderr == ""


def test_the_command_releases_what_the_engine_does(world, run):
    assert run(*BASIC, "-o", "out.csv", "--seed", "5", "--mechanism", "k-norm", "--users", "a").exit_code == 0
    model = MarkovModel.load(world / "m.npz")
    releaser = ReleaseSettings(policy="utility:600m", epsilon=0.5, mechanism="k-norm").engine(model, 5)
    track = read(world / "walk.csv").trajectories[0].resample(60)
    assert read_releases(world / "out.csv") == ReleaseTable.from_releases(
        release_trajectory(releaser, model.states, track)
    )


def test_a_seed_repeats_the_noise_and_warns_and_none_does_not(world, run):
    seeded = [run(*BASIC, "-o", f"{name}.csv", "--seed", "1") for name in "xy"]
    for name in "uv":
        assert run(*BASIC, "-o", f"{name}.csv").stderr == ""
    assert all("not private" in result.stderr for result in seeded)
    texts = {name: (world / f"{name}.csv").read_text() for name in "xyuv"}
    assert texts["x"] == texts["y"]
    assert texts["u"] != texts["v"]


@pytest.mark.parametrize("mechanism", ["lattice", "k-norm", "laplace", "planar-isotropic", "planar-laplace"])
@pytest.mark.parametrize("policy", ["complete", "transition", "utility:600m & transition", "utility:1km|complete"])
def test_every_mechanism_under_every_policy(world, run, mechanism, policy):
    words = ["release", "walk.csv", "--model", "m.npz", "--epsilon", "1", "--policy", policy, "--mechanism", mechanism]
    assert run(*words, "-o", "out.csv").exit_code == 0
    assert set(read_releases(world / "out.csv")["mechanism"]) == {mechanism}


def test_the_settings_by_name_are_in_the_output_and_the_summary(world, run):
    told = json.loads(run(*BASIC, "-o", "out.csv", "--spacing", "0.01", "--json").stdout)
    settings = ReleaseSettings(policy="utility:600m", epsilon=0.5, spacing="0.01")
    assert told["settings"] == settings.content_hash
    table = read_releases(world / "out.csv")
    assert set(table["settings"]) == {settings.content_hash[:16]}
    assert set(table["model"]) == {MarkovModel.load(world / "m.npz").content_hash[:16]}
    assert np.abs(table["x_km"] * 100 - np.rint(table["x_km"] * 100)).max() < 1e-9


def test_where_nothing_is_said_of_a_budget_a_day_has_one_and_the_first_line_says_so(world, run):
    words = ("release", "walk.csv", "--model", "m.npz", "-o", "out.csv", "--overwrite")
    told = json.loads(run(*words, "--json").stdout)
    assert told["settings"] == ReleaseSettings.for_a_day().content_hash
    assert ReleaseSettings.for_a_day().policy == "utility:1km"
    short, long = run(*words), run(*words, "--details")
    for result in (short, long):
        first, second, title, *_ = result.stdout.splitlines()
        assert "The releases of any 24 hours together are at most 20.1 times as likely" in first
        assert second.startswith("Somebody who knows the model alone and keeps all releases is expected to be ")
        assert title == "Released"
    assert len(short.stdout.splitlines()) < len(long.stdout.splitlines())
    assert read_releases(world / "out.csv")["epsilon_last_day"].max() <= 3
    for more, settings in (
        (("--target-error", "500m"), ReleaseSettings(epsilon=4, schedule=Schedule(0.5))),
        (("--epsilon", "2", "--policy", "complete"), ReleaseSettings("complete", 2)),
    ):
        assert json.loads(run(*words, *more, "--json").stdout)["settings"] == settings.content_hash
    every = run(*words, "--epsilon", "2", "--policy", "complete")
    assert "Those of a day add up without a limit" in every.stdout


def test_the_quadratic_program_and_the_half_spaces_agree(world, run):
    for membership in ("qp", "halfspace"):
        words = (*BASIC, "--users", "a", "--seed", "3", "--membership", membership, "-o", f"{membership}.csv")
        assert run(*words).exit_code == 0
    qp, halfspace = (read_releases(world / f"{name}.csv") for name in ("qp", "halfspace"))
    differ = [one for one in qp.columns if qp[one].astype(str).tolist() != halfspace[one].astype(str).tolist()]
    assert differ == ["settings"]


def test_private_diagnostics_say_so_in_name_header_and_permissions(world, run):
    assert run(*BASIC, "-o", "out.csv", "--private-diagnostics", "PRIVATE.csv", "--summary", "sums.csv").exit_code == 0
    path = world / "PRIVATE.csv"
    with path.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 12
    assert all(name.startswith("private_") for name in rows[0])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    states = MarkovModel.load(world / "m.npz").states
    walk = read(world / "walk.csv").trajectories[0]
    expected = states.locate(walk.latitude, walk.longitude).tolist()
    assert [int(row["private_true_state"]) for row in rows[:6]] == expected
    with (world / "sums.csv").open(newline="") as stream:
        assert [row["epsilon_total"] for row in csv.DictReader(stream)] == ["3.0", "3.0"]


def test_nothing_in_the_output_depends_on_the_truth_but_the_draw(world, run):
    """Two people in different places get, under the same seed, records that differ in places alone."""
    for name, longitude in (("west", -30.012), ("east", -29.99)):
        (world / "walk.csv").write_text(f"user,time,lat,lon\na,2024-03-07T09:00:00Z,45.001,{longitude}\n")
        assert run(*BASIC, "-o", f"{name}.csv", "--seed", "2").exit_code == 0
    west, east = read_releases(world / "west.csv"), read_releases(world / "east.csv")
    moved = {"latitude", "longitude", "x_km", "y_km", "estimate_latitude", "estimate_longitude"}
    moved |= {"estimate_radius_m", "adversary_error_m", "adversary_certainty"}  # of the belief after the draw
    differing = {c.name for c in COLUMNS if west[c.name].astype(str).tolist() != east[c.name].astype(str).tolist()}
    assert {"x_km", "longitude"} <= differing <= moved


def test_moments_outside_are_counted_apart_in_private_and_the_public_summary_does_not_tell(world, run):
    lines = [f"a,2024-03-07T09:0{at}:00Z,{46.0 if at in (2, 3, 8) else 45.001},-30.001\n" for at in range(9)]
    (world / "walk.csv").write_text("user,time,lat,lon\n" + "".join(lines))
    words = (*BASIC, "-o", "out.csv", "--summary", "sums.csv", "--private-diagnostics", "PRIVATE.csv", "--json")
    told = json.loads(run(*words).stdout)
    assert (told["private_moments_released_inside"], told["private_moments_released_outside"]) == (6, 3)
    assert told["private_share_within_radius_outside"] == 0.0
    assert told["private_estimate_error_m_median_inside"] < 3_000
    assert 100_000 < told["private_estimate_error_m_median_outside"] < 125_000
    with (world / "PRIVATE.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    away = [row for row in rows if row["private_outside"] == "true"]
    assert [float(row["private_error_m"]) > 90_000 for row in away] == [True] * 3
    assert [row["private_within_radius"] for row in away] == ["false"] * 3
    for line in (world / "sums.csv").read_text().splitlines()[:1] + (world / "out.csv").read_text().splitlines()[:1]:
        assert "private" not in line
        assert "outside" not in line


def test_sums_of_budgets_are_of_what_was_written_wherever_they_are_told(world, run):
    """Three times 0.1 is 0.3, in the rows, the summary, an audit and a GeoPackage; before, 0.30000000000000004."""
    (world / "three.csv").write_text("".join((world / "walk.csv").read_text().splitlines(keepends=True)[:4]))
    words = ("--model", "m.npz", "--policy", "utility:600m")
    assert run("release", "three.csv", *words, "--epsilon", "0.1", "-o", "r.csv", "--summary", "s.csv").exit_code == 0
    assert read_releases(world / "r.csv")["epsilon_so_far"][-1] == 0.3
    (told,) = csv.DictReader((world / "s.csv").read_text().splitlines())
    assert told["epsilon_total"] == "0.3"
    audit = run("audit", "session", "r.csv", *words, "--json")
    assert json.loads(audit.stdout)["users"][0]["epsilon"] == 0.3
    assert tracks(read_releases(world / "r.csv"))["epsilon"].tolist() == [0.3]


@pytest.mark.parametrize("seeded", [False, True])
@pytest.mark.parametrize("way", ["release", "batch", "session"])
def test_files_that_say_what_is_promised_say_where_noise_follows_from_a_seed(world, run, way, seeded):
    """Before, GeoPackage and GPX said the promise and 'private' of seeded noise too."""
    basic, seed = BASIC[1:], ("--seed", "3") if seeded else ()
    if way == "batch":
        assert run("batch", *basic, *seed, "-o", "out", "--files", "gpkg").exit_code == 0
        made = list(world.glob("out/??/a.gpkg"))
    elif way == "session":
        assert run("release", *basic, *seed, "--session", "s.db", "-o", "out.csv").exit_code == 0
        made = [world / "out.gpkg", world / "out.gpx"]
        for file in made:
            assert run("session", "export", "s.db", "-o", file, "--model", "m.npz").exit_code == 0
    else:
        made = [world / "out.gpkg", world / "out.gpx"]
        for file in made:
            assert run("release", *basic, *seed, "-o", file).exit_code == 0
    with sqlite3.connect(made[0]) as database:
        ((package,),) = set(database.execute("SELECT metadata FROM gpkg_metadata WHERE metadata LIKE '%content%'"))
    for said in (package, *(file.read_text() for file in made[1:])):
        assert ("the noise follows from a seed" in said) == seeded
        assert ("rivate releases" in said) != seeded
    assert ("times as likely" in package) != seeded


@pytest.mark.parametrize("depends_on", ["hours", "dates of an event"])
def test_limits_go_with_first_releases_that_depend_on_their_time(world, run, depends_on):
    """Before, both were refused where no file of sessions was there yet."""
    words = ["release", "walk.csv", "--model", "m.npz", "--policy", "utility:600m", "--epsilon", "1"]
    if depends_on == "hours":
        plain = MarkovModel.load("m.npz")
        classes = TimeClasses.of("hours", 60, "Europe/Berlin")
        MarkovModel([plain.transition] * 24, [plain.initial] * 24, plain.space, 60, classes).save("hours.npz")
        words[3] = "hours.npz"
    else:
        words += ["--event", "at:0 between 2024-03-07T09:02Z and 2024-03-07T09:05Z", "--never-surer", "0.99"]
    done = run(*words, "--session", "s.db", "--limit-epsilon", "6", "-o", "r.csv")
    assert (done.exit_code, len(read_releases(world / "r.csv"))) == (0, 12), done.output
    again = run(*words, "--session", "new.db", "--limit-epsilon", "0.5", "-o", "none.csv")
    assert (again.exit_code, "the epsilon limit of 0.5 would be passed" in again.stderr) == (2, True)


def test_a_limit_holds_for_a_person_over_all_files_of_their_folder(world, run):
    """Two files of three fixes each and a limit of 4 releases: file by file, none of them would pass it."""
    folder = world / "Data" / "041" / "Trajectory"
    folder.mkdir(parents=True)
    for day in (7, 8):
        lines = [f"45.001,-30.001,0,0,0,2024-03-0{day},09:0{minute}:00\r\n" for minute in range(3)]
        (folder / f"{day}.plt").write_text("header\r\n" * 6 + "".join(lines), newline="")
    for level in ("Data", "Data/041", "Data/041/Trajectory"):
        words = ("release", level, *BASIC[2:], "-o", "out.csv", "--overwrite")
        assert json.loads(run(*words, "--json").stdout)["epsilon_of_the_user_with_most"] == 3.0
        limited = run(*words, "--session", f"{len(level)}.db", "--limit-epsilon", "2")
        assert limited.exit_code == 2
        assert "user 041: the epsilon limit of 2 would be passed: 2 is spent" in limited.stderr


def test_places_outside_are_counted_and_so_are_gaps_and_the_promise_is_said(world, run):
    """Of nine ticks one has no fix and three lie outside: at the border the rows go on, omitted they do not."""
    lines = [f"a,2024-03-07T09:0{at}:00Z,{46.0 if at in (2, 3, 8) else 45.001},-30.001\n" for at in range(9) if at != 5]
    (world / "walk.csv").write_text("user,time,lat,lon\n" + "".join(lines))
    for outside, rows in (("border", 8), ("omit", 5)):
        told = json.loads(run(*BASIC, "-o", "out.csv", "--overwrite", "--outside", outside, "--json").stdout)
        assert told["private_places_outside_the_region"] == 3
        assert "private_moments_released_outside" not in told
        assert told["private_ticks_without_a_place"] == 1
        assert len(read_releases(world / "out.csv")) == told["releases"] == rows
        assert told["one_release_from_two_joined_places"] == "at most 1.65 times as likely"
        total = f"at most {np.exp(rows / 2):.3g} times as likely"
        assert (told["all_releases_from_two_paths_joined_throughout"], told["randomness"]) == (total, "system")
    seeded = json.loads(run(*BASIC, "-o", "out.csv", "--overwrite", "--seed", "1", "--json").stdout)
    assert seeded["randomness"] == "seeded"
    assert seeded["one_release_from_two_joined_places"].startswith("nothing")


def test_fixes_of_nobody_are_refused_until_the_person_is_named(world, run):
    (world / "nobody.csv").write_text("time,lat,lon\n2024-03-07T09:00:00Z,45.001,-30.001\n")
    words = ("release", "nobody.csv", *BASIC[2:], "-o", "out.csv")
    refused = run(*words)
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert "nobody.csv: does not say whose fixes it holds; name the person with --user NAME" in refused.stderr
    assert run(*words, "--user", "ann").exit_code == 0
    assert set(read_releases(world / "out.csv")["user"]) == {"ann"}


def test_a_job_file_says_the_same_as_options_and_options_win(world, run):
    (world / "job.toml").write_text(
        'data = ["walk.csv"]\nmodel = "m.npz"\npolicy = "utility:600m"\nepsilon = 0.5\noutput = "job.csv"\nseed = 4\n'
    )
    assert run("release", "--job", "job.toml").exit_code == 0
    assert run(*BASIC, "-o", "options.csv", "--seed", "4").exit_code == 0
    assert (world / "job.csv").read_text() == (world / "options.csv").read_text()
    assert run("release", "--job", "job.toml", "--epsilon", "2", "-o", "two.csv").exit_code == 0
    assert set(read_releases(world / "two.csv")["epsilon"]) == {2.0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epsilom = 1", "job.toml: key 'epsilom' is unknown; the keys are policy, epsilon, mechanism"),
        ('epsilon = "1"', "job.toml: key 'epsilon' is '1'; give a number"),
        ("epsilon = true", "job.toml: key 'epsilon' is True; give a number"),
        ("seed = -1", "job.toml: key 'seed' is -1; should be greater than or equal to 0"),
        ("epsilon = ", "job.toml: is no TOML"),
        ('model = "m.npz"\nepsilon = 1', "policy is missing; give --policy, or the key 'policy' in a job file"),
    ],
)
def test_a_wrong_job_names_the_key(world, run, text, message):
    (world / "job.toml").write_text(text if "model" in text else f'model = "m.npz"\npolicy = "complete"\n{text}\n')
    result = run("release", "walk.csv", "-o", "out.csv", "--job", "job.toml")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert message in result.stderr
    assert not (world / "out.csv").exists()


def test_a_job_that_is_not_there_is_named(world, run):
    assert "job.toml: there is no such file" in run("release", "--job", "job.toml").stderr


def test_a_table_of_epoch_times_and_local_times_is_released_as_the_same_moments(world, run):
    """Rows come out sorted by user and time, however they went in; what was dropped is listed with its reason."""
    lines = (world / "walk.csv").read_text().splitlines()[1:]
    rows = [line.split(",") for line in lines]
    epoch = [int(datetime.fromisoformat(row[1]).timestamp() * 1000) for row in rows]
    local = [row[1].replace("T09", "T17").rstrip("Z") for row in rows]
    outside = "a,{},10.0,-30.0"
    made = []
    for name, times, options in (("e", epoch, ("--time-unit", "ms")), ("l", local, ("--time-zone", "Asia/Shanghai"))):
        last = outside.format(1709802000000 + 3600000 if name == "e" else "2024-03-07T18:00:00")
        body = [f"{row[0]},{time},{row[2]},{row[3]}" for row, time in zip(rows, times, strict=True)]
        (world / f"{name}.csv").write_text("\n".join(["uid,t,lat,lng", last, *body[::-1]]))
        words = ("--model", "m.npz", "--policy", "utility:600m", "--epsilon", 1, "--users", "a", "--outside", "omit")
        result = run("release", f"{name}.csv", *words, *options, "-o", f"{name}.parquet", "--json")
        assert result.exit_code == 0, result.stderr
        table = read_releases(world / f"{name}.parquet")
        made.append(list(zip(table["user"].tolist(), table["time"].tolist(), strict=True)))
        assert json.loads(result.stdout)["private_left_out"] == [
            {"reason": "people who are not among those chosen", "fixes": 6, "users": 1},
            {"reason": "outside the region, 0 of these people never within it", "fixes": 1, "users": 1},
        ]
        shown = run("release", f"{name}.csv", *words, *options, "-o", f"{name}.gpkg").stdout
        assert "dropped or moved (private: keep it to yourself)" in shown
    assert made[0] == made[1] == sorted(made[0])
    refused = run("release", "e.csv", *words, "-o", "no.csv")
    assert refused.exit_code == 2
    assert "say --time-unit ms if it counts ms since 1970, for 2024-03-07T" in refused.stderr


@pytest.mark.usefixtures("world")
def test_a_budget_that_limits_nothing_is_said_of_any_mechanism(run):
    """A level out of a table is NumPy's number, which was written with its type."""
    words = ("release", "walk.csv", "--model", "m.npz", "--policy", "utility:600m", "--epsilon", "30")
    done = run(*words, "-o", "r.csv", "--json")
    assert (done.exit_code, done.exception) == (0, None)
    assert "which limits nothing" in json.loads(done.stdout)["one_release_from_any_two_possible_places"]
