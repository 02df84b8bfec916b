"""Tests of releases end to end: files, jobs and private diagnostics."""

from __future__ import annotations

import csv
import json
import re
import sqlite3
import stat
from contextlib import closing
from datetime import datetime

import numpy as np
import pytest

from dphmm.model.model import MarkovModel
from dphmm.model.time_classes import TimeClasses
from dphmm.readers import read
from dphmm.release.engine import ReleaseSettings
from dphmm.release.settings import Schedule
from dphmm.release.trajectory_release import release_trajectory
from dphmm.writers import COLUMNS, FORMATS, ReleaseTable, read_releases, tracks

BASIC = ("release", "walk.csv", "--model", "m.npz", "--policy", "utility:600m", "--epsilon", "0.5")


@pytest.mark.parametrize("suffix", sorted(FORMATS))
def test_every_format_contains_every_release(world, run, suffix):
    result = run(*BASIC, "-o", f"out{suffix}", "--json")
    assert result.exit_code == 0, result.stderr
    table = read_releases(world / f"out{suffix}")
    assert len(table) == json.loads(result.stdout)["num_released"] == 12
    assert set(table["epsilon"]) == {0.5}
    assert table["min_degree_of_protection"].min() >= 2
    assert result.stderr == ""


def test_command_releases_match_engine(world, run):
    assert run(*BASIC, "-o", "out.csv", "--seed", "5", "--mechanism", "k-norm", "--users", "a").exit_code == 0
    model = MarkovModel.load(world / "m.npz")
    releaser = ReleaseSettings(policy="utility:600m", epsilon=0.5, mechanism="k-norm").engine(model, 5)
    track = read(world / "walk.csv").trajectories[0].resample(60)
    assert read_releases(world / "out.csv") == ReleaseTable.from_releases(
        release_trajectory(releaser, model.states, track)
    )


def test_seed_is_reproducible_and_warns(world, run):
    seeded = [run(*BASIC, "-o", f"{name}.csv", "--seed", "1") for name in "xy"]
    for name in "uv":
        assert run(*BASIC, "-o", f"{name}.csv").stderr == ""
    assert all("not private" in result.stderr for result in seeded)
    texts = {name: (world / f"{name}.csv").read_text() for name in "xyuv"}
    assert texts["x"] == texts["y"]
    assert texts["u"] != texts["v"]


@pytest.mark.parametrize("mechanism", ["lattice", "k-norm", "laplace", "planar-isotropic", "planar-laplace"])
@pytest.mark.parametrize("policy", ["complete", "transition", "utility:600m & transition", "utility:1km|complete"])
def test_every_mechanism_works_with_every_policy(world, run, mechanism, policy):
    words = ["release", "walk.csv", "--model", "m.npz", "--epsilon", "1", "--policy", policy, "--mechanism", mechanism]
    assert run(*words, "-o", "out.csv").exit_code == 0
    assert set(read_releases(world / "out.csv")["mechanism"]) == {mechanism}


def test_settings_hash_is_in_output_and_summary(world, run):
    output = json.loads(run(*BASIC, "-o", "out.csv", {"spacing": "0.01"}, "--json").stdout)
    settings = ReleaseSettings(policy="utility:600m", epsilon=0.5, spacing="0.01")
    assert output["settings_hash"] == settings.content_hash
    table = read_releases(world / "out.csv")
    assert set(table["settings_hash"]) == {settings.content_hash[:16]}
    assert set(table["model_hash"]) == {MarkovModel.load(world / "m.npz").content_hash[:16]}
    assert np.abs(table["x_km"] * 100 - np.rint(table["x_km"] * 100)).max() < 1e-9


def test_default_budget_is_per_day_and_stated_first(world, run):
    words = ("release", "walk.csv", "--model", "m.npz", "-o", "out.csv", "--overwrite")
    output = json.loads(run(*words, "--json").stdout)
    assert output["settings_hash"] == ReleaseSettings.for_a_day().content_hash
    assert ReleaseSettings.for_a_day().policy == "utility:1km"
    result = run(*words)
    head, body = " ".join(result.stdout.partition("\n\n")[0].split()), result.stdout.partition("\n\n")[2]
    assert (
        "The releases in this file within any 24 hours are at most 20.1 times as likely under one as under the "
        "other (ε = 3)" in head
    )
    assert "Other files of the same user add to this, including those of the same command, unless a session" in head
    assert "Inference: For the most exposed user, an adversary who knows only the model and sees all releases" in head
    assert re.match(r"Released \d+ of 12 timesteps for 2 users to out\.csv\.\n\nResult\n", body)
    titles = [line for line in body.splitlines() if line and not line.startswith(" ")][1:]
    assert titles == [
        "Result",
        "Privacy",
        "Adversary with the model (most exposed user)",
        "Utility",
        "Private: do not publish",
    ]
    assert output["private"]["num_skipped_fixes"] == 0
    assert "skipped fixes" not in body, "what is zero is not printed"
    assert read_releases(world / "out.csv")["epsilon_24h"].max() <= 3
    for more, settings in (
        (("--target-error", "500m"), ReleaseSettings(epsilon=4, schedule=Schedule(0.5))),
        (("--epsilon", "2", "--policy", "complete"), ReleaseSettings("complete", 2)),
    ):
        assert json.loads(run(*words, *more, "--json").stdout)["settings_hash"] == settings.content_hash
    each_release = run(*words, "--epsilon", "2", "--policy", "complete")
    assert "Releases accumulate without a limit." in " ".join(each_release.stdout.split())


def test_ratio_of_separate_components_is_unbounded(world, run):
    layer = {"type": "FeatureCollection", "features": [
        {"type": "Feature", "properties": {"name": name}, "geometry": {"type": "Polygon", "coordinates": [[
            [west, 44.99], [west + 0.015, 44.99], [west + 0.015, 45.01], [west, 45.01], [west, 44.99]]]}}
        for name, west in (("west", -30.015), ("east", -30.0))
    ]}  # fmt: skip
    (world / "halves.geojson").write_text(json.dumps(layer))
    words = ("--policy", "categorical:halves.geojson", "--noise-scope", "component", "--epsilon", "1")
    done = run("release", "walk.csv", "--model", "m.npz", *words, "-o", "out.csv")
    assert done.exit_code == 0, done.output
    assert re.search(r"any possible locations +unbounded\n", done.stdout)


def test_quadratic_program_and_half_spaces_agree(world, run):
    for membership in ("qp", "halfspace"):
        words = (*BASIC, "--users", "a", "--seed", "3", {"membership": membership}, "-o", f"{membership}.csv")
        assert run(*words).exit_code == 0
    qp, halfspace = (read_releases(world / f"{name}.csv") for name in ("qp", "halfspace"))
    differ = [
        column for column in qp.columns if qp[column].astype(str).tolist() != halfspace[column].astype(str).tolist()
    ]
    assert differ == ["settings_hash"]


def test_private_diagnostics_are_marked_in_name_header_and_permissions(world, run):
    assert run(*BASIC, "-o", "out.csv", "--private-diagnostics", "PRIVATE.csv", {"summary": "sums.csv"}).exit_code == 0
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


def test_public_output_depends_on_truth_only_through_release(world, run):
    """With equal seeds, records of two users in different places differ only in places."""
    for name, longitude in (("west", -30.012), ("east", -29.99)):
        (world / "walk.csv").write_text(f"user,time,lat,lon\na,2024-03-07T09:00:00Z,45.001,{longitude}\n")
        assert run(*BASIC, "-o", f"{name}.csv", "--seed", "2").exit_code == 0
    west, east = read_releases(world / "west.csv"), read_releases(world / "east.csv")
    moved = {"latitude", "longitude", "x_km", "y_km", "estimate_latitude", "estimate_longitude"}
    moved |= {
        "estimate_error_m",
        "adversary_error_m",
        "adversary_max_posterior",
    }  # computed from the belief after the release
    differing = {c.name for c in COLUMNS if west[c.name].astype(str).tolist() != east[c.name].astype(str).tolist()}
    assert {"x_km", "longitude"} <= differing <= moved


def test_timesteps_outside_region_are_counted_only_in_private_output(world, run):
    lines = [f"a,2024-03-07T09:0{at}:00Z,{46.0 if at in (2, 3, 8) else 45.001},-30.001\n" for at in range(9)]
    (world / "walk.csv").write_text("user,time,lat,lon\n" + "".join(lines))
    words = (*BASIC, "-o", "out.csv", {"summary": "sums.csv"}, "--private-diagnostics", "PRIVATE.csv", "--json")
    output = json.loads(run(*words).stdout)
    assert (output["private"]["num_timesteps_inside"], output["private"]["num_timesteps_outside"]) == (6, 3)
    assert output["private"]["share_within_error_outside"] == 0.0
    # The model has no calibrated radii, so there is no share within one.
    assert output["private"]["share_within_calibrated_radius_90_inside"] is None
    assert output["private"]["median_estimate_error_m_inside"] < 3_000
    assert 100_000 < output["private"]["median_estimate_error_m_outside"] < 125_000
    with (world / "PRIVATE.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    away = [row for row in rows if row["private_outside"] == "true"]
    assert [float(row["private_error_m"]) > 90_000 for row in away] == [True] * 3
    assert [row["private_within_radius"] for row in away] == ["false"] * 3
    for line in (world / "sums.csv").read_text().splitlines()[:1] + (world / "out.csv").read_text().splitlines()[:1]:
        assert "private" not in line
        assert "outside" not in line


def test_sums_of_epsilon_are_decimal_in_every_output(world, run):
    """Three times 0.1 is 0.3 in the rows, the summary, an audit and a GeoPackage."""
    (world / "three.csv").write_text("".join((world / "walk.csv").read_text().splitlines(keepends=True)[:4]))
    words = ("--model", "m.npz", "--policy", "utility:600m")
    assert run("release", "three.csv", *words, "--epsilon", "0.1", "-o", "r.csv", {"summary": "s.csv"}).exit_code == 0
    assert read_releases(world / "r.csv")["epsilon_total"][-1] == 0.3
    (summary,) = csv.DictReader((world / "s.csv").read_text().splitlines())
    assert summary["epsilon_total"] == "0.3"
    audit = run("audit", "session", "r.csv", *words, "--json")
    assert json.loads(audit.stdout)["users"][0]["epsilon"] == 0.3
    assert tracks(read_releases(world / "r.csv"))["epsilon"].tolist() == [0.3]


@pytest.mark.slow
@pytest.mark.parametrize("seeded", [False, True])
@pytest.mark.parametrize("way", ["release", "batch", "session"])
def test_files_with_guarantee_state_seeded_noise(world, run, way, seeded):
    """This includes GeoPackage and GPX files."""
    basic, seed = BASIC[1:], ("--seed", "3") if seeded else ()
    if way == "batch":
        assert run("batch", *basic, *seed, "-o", "out", "--format", "gpkg", "--workers", "1").exit_code == 0
        files = list(world.glob("out/??/a.gpkg"))
    elif way == "session":
        assert run("release", *basic, *seed, "--session", "s.db", "-o", "out.csv").exit_code == 0
        files = [world / "out.gpkg", world / "out.gpx"]
        for file in files:
            assert run("session", "export", "s.db", "-o", file, "--model", "m.npz").exit_code == 0
    else:
        files = [world / "out.gpkg", world / "out.gpx"]
        for file in files:
            assert run("release", *basic, *seed, "-o", file).exit_code == 0
    with closing(sqlite3.connect(files[0])) as database, database:
        ((package,),) = set(database.execute("SELECT metadata FROM gpkg_metadata WHERE metadata LIKE '%content%'"))
    for text in (package, *(file.read_text() for file in files[1:])):
        assert ("the noise is seeded" in text) == seeded
        assert ("rivate releases" in text) != seeded
    assert ("at most" in package) != seeded


@pytest.mark.parametrize("depends_on", ["hours", "dates of an event"])
def test_limits_can_be_combined_with_time_dependent_first_release(world, run, depends_on):
    """The session file need not exist yet."""
    words = ["release", "walk.csv", "--model", "m.npz", "--policy", "utility:600m", "--epsilon", "1"]
    if depends_on == "hour":
        plain = MarkovModel.load("m.npz")
        classes = TimeClasses.from_name("hour", 60, "Europe/Berlin")
        MarkovModel([plain.transition] * 24, [plain.initial] * 24, plain.space, 60, classes).save("hours.npz")
        words[3] = "hours.npz"
    else:
        words += ["--event", "at:0 between 2024-03-07T09:02Z and 2024-03-07T09:05Z", "--max-event-probability", "0.99"]
    done = run(*words, "--session", "s.db", {"limit_epsilon": 6}, "-o", "r.csv")
    assert (done.exit_code, len(read_releases(world / "r.csv"))) == (0, 12), done.output
    again = run(*words, "--session", "new.db", {"limit_epsilon": 0.5}, "-o", "none.csv")
    assert (again.exit_code, "epsilon limit 0.5 exceeded" in again.stderr) == (2, True)


@pytest.mark.slow
def test_limit_holds_for_user_across_files_of_folder(world, run):
    """Each file alone stays below the limit, and all six fixes of the folder exceed it."""
    folder = world / "Data" / "041" / "Trajectory"
    folder.mkdir(parents=True)
    for day in (7, 8):
        lines = [f"45.001,-30.001,0,0,0,2024-03-0{day},09:0{minute}:00\r\n" for minute in range(3)]
        (folder / f"{day}.plt").write_text("header\r\n" * 6 + "".join(lines), newline="")
    for level in ("Data", "Data/041", "Data/041/Trajectory"):
        words = ("release", level, *BASIC[2:], "-o", "out.csv", "--overwrite")
        assert json.loads(run(*words, "--json").stdout)["max_epsilon_total"] == 3.0
        limited = run(*words, "--session", f"{len(level)}.db", {"limit_epsilon": 2})
        assert limited.exit_code == 2
        assert "user 041: epsilon limit 2 exceeded: 2 already spent" in limited.stderr


def test_outside_places_and_gaps_are_counted_and_guarantee_is_stated(world, run):
    """Of nine timesteps one has no fix and three are outside.

    They are clamped to the border or dropped, depending on the setting.
    """
    lines = [f"a,2024-03-07T09:0{at}:00Z,{46.0 if at in (2, 3, 8) else 45.001},-30.001\n" for at in range(9) if at != 5]
    (world / "walk.csv").write_text("user,time,lat,lon\n" + "".join(lines))
    for outside, rows in (("clamp", 8), ("drop", 5)):
        output = json.loads(run(*BASIC, "-o", "out.csv", "--overwrite", {"outside": outside}, "--json").stdout)
        assert output["private"]["num_locations_outside_region"] == 3
        assert "num_timesteps_outside" not in output["private"]
        assert output["private"]["num_timesteps_without_location"] == 1
        assert len(read_releases(world / "out.csv")) == output["num_released"] == rows
        assert output["likelihood_ratio_release"] == 1.65
        assert output["likelihood_ratio_total"] == pytest.approx(np.exp(rows / 2), rel=5e-3)
        assert output["likelihood_ratio_total"] >= np.exp(rows / 2)
        assert output["randomness"] == "system"
    seeded = json.loads(run(*BASIC, "-o", "out.csv", "--overwrite", "--seed", "1", "--json").stdout)
    assert seeded["randomness"] == "seeded"
    assert seeded["likelihood_ratio_release"] is None
    assert seeded["guarantee"].startswith("None.")


def test_fixes_without_user_raise_until_user_is_given(world, run):
    (world / "without_user.csv").write_text("time,lat,lon\n2024-03-07T09:00:00Z,45.001,-30.001\n")
    words = ("release", "without_user.csv", *BASIC[2:], "-o", "out.csv")
    refused = run(*words)
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert "without_user.csv: does not specify a user; name the user with --user NAME" in refused.stderr
    assert run(*words, "--user", "ann").exit_code == 0
    assert set(read_releases(world / "out.csv")["user"]) == {"ann"}


def test_settings_file_equals_options_and_options_override_it(world, run):
    (world / "job.toml").write_text(
        'data = ["walk.csv"]\nmodel = "m.npz"\npolicy = "utility:600m"\nepsilon = 0.5\noutput = "job.csv"\nseed = 4\n'
    )
    assert run("release", "--settings", "job.toml").exit_code == 0
    assert run(*BASIC, "-o", "options.csv", "--seed", "4").exit_code == 0
    assert (world / "job.csv").read_text() == (world / "options.csv").read_text()
    assert run("release", "--settings", "job.toml", "--epsilon", "2", "-o", "two.csv").exit_code == 0
    assert set(read_releases(world / "two.csv")["epsilon"]) == {2.0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epsilom = 1", "job.toml: key 'epsilom' is unknown; the keys are "),
        ('epsilon = "1"', "job.toml: key 'epsilon' must be "),
        ("epsilon = true", "job.toml: key 'epsilon' must be "),
        ("seed = -1", "job.toml: key 'seed' must be an integer, at least 0, got -1"),
        ("epsilon = ", "job.toml: is not TOML"),
        ('model = "m.npz"\nepsilon = 1', "policy is missing: use --policy"),
    ],
)
def test_invalid_settings_file_names_key(world, run, text, message):
    (world / "job.toml").write_text(text if "model" in text else f'model = "m.npz"\npolicy = "complete"\n{text}\n')
    result = run("release", "walk.csv", "-o", "out.csv", "--settings", "job.toml")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert message in result.stderr
    assert not (world / "out.csv").exists()


def test_missing_settings_file_is_named(world, run):
    assert "job.toml: there is no such file" in run("release", "--settings", "job.toml").stderr


@pytest.mark.slow
def test_epoch_and_local_times_give_equal_timestamps(world, run):
    """Rows are sorted by user and time. Dropped rows are listed with their reason."""
    lines = (world / "walk.csv").read_text().splitlines()[1:]
    rows = [line.split(",") for line in lines]
    epoch = [int(datetime.fromisoformat(row[1]).timestamp() * 1000) for row in rows]
    local = [row[1].replace("T09", "T17").rstrip("Z") for row in rows]
    outside = "a,{},10.0,-30.0"
    released_times = []
    for name, times, options in (
        ("e", epoch, ({"time_format": "ms"},)),
        ("l", local, ({"time_zone": "Asia/Shanghai"},)),
    ):
        last = outside.format(1709802000000 + 3600000 if name == "e" else "2024-03-07T18:00:00")
        body = [f"{row[0]},{time},{row[2]},{row[3]}" for row, time in zip(rows, times, strict=True)]
        (world / f"{name}.csv").write_text("\n".join(["uid,t,lat,lng", last, *body[::-1]]))
        words = ("--model", "m.npz", "--policy", "utility:600m", "--epsilon", 1, "--users", "a", {"outside": "drop"})
        result = run("release", f"{name}.csv", *words, *options, "-o", f"{name}.parquet", "--json")
        assert result.exit_code == 0, result.stderr
        table = read_releases(world / f"{name}.parquet")
        released_times.append(list(zip(table["user"].tolist(), table["time"].tolist(), strict=True)))
        assert json.loads(result.stdout)["private"]["dropped"] == [
            {"reason": "excluded by --users", "fixes": 6, "users": 1},
            {"reason": "outside the region, 0 users never inside", "fixes": 1, "users": 1},
        ]
        shown = run("release", f"{name}.csv", *words, *options, "-o", f"{name}.gpkg").stdout
        assert re.search(r"\nPrivate: do not publish\n(  .*\n)*  excluded by --users +6 fixes of 1 user\n", shown)
    assert released_times[0] == released_times[1] == sorted(released_times[0])
    refused = run("release", "e.csv", *words, "-o", "no.csv")
    assert refused.exit_code == 2
    assert "set time_format (--time-format) = 'ms' if it counts ms since 1970, for 2024-03-07T" in refused.stderr


@pytest.mark.usefixtures("world")
def test_negligible_guarantee_is_stated_for_any_mechanism(run):
    """The privacy loss of a table is a NumPy number and is written without its type."""
    words = ("release", "walk.csv", "--model", "m.npz", "--policy", "utility:600m", "--epsilon", "30")
    done = run(*words, "-o", "r.csv", "--json")
    assert (done.exit_code, done.exception) == (0, None)
    assert "not a meaningful limit" in json.loads(done.stdout)["guarantee"]
    assert json.loads(done.stdout)["likelihood_ratio_release"] == np.ceil(np.exp(30))
