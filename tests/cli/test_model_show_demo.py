"""Tests of the commands learn, show, data and demo."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from fractions import Fraction
from functools import partial
from gzip import compress
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from dphmm.cli import demo
from dphmm.model.model import MarkovModel
from dphmm.writers import read_releases
from tests.certificate.certificates import VERIFIER
from tests.plots.test_webmap_coding import decode_numbers

BOX = ("--bbox", "44.995", "-30.015", "45.005", "-29.985", "--cell", "0.5")


def test_learn_counts_contents_of_table(world, run):
    result = run("learn", "walk.csv", "--users", "a", *BOX, "-o", "out.npz", "--json")
    output = json.loads(result.stdout)
    assert (output["users"], output["fixes"], output["num_moves"], output["step_seconds"]) == (1, 6, 5, 60.0)
    model = MarkovModel.load(world / "out.npz")
    assert output["states"] == model.size == model.states.size
    assert output["transitions"] == model.transition.nnz
    assert output["num_moves_too_rare"] == 0
    printed = run("learn", "walk.csv", *BOX, "-o", "again.npz").stdout
    assert "observed moves" in printed
    assert not re.search(r"  0$", printed, re.MULTILINE), "counts of zero are omitted"


def test_learn_allows_moves_within_maximum_speed(world, run):
    for name, more in (("default", ()), ("usual", ("--max-speed", 150)), ("walk", ("--max-speed", 5))):
        assert run("learn", "walk.csv", *BOX, *more, "-o", f"{name}.npz").exit_code == 0
    default, usual, walk = (MarkovModel.load(world / f"{name}.npz") for name in ("default", "usual", "walk"))
    assert default.content_hash == usual.content_hash != walk.content_hash
    assert walk.transition.nnz < default.transition.nnz
    assert (default.initial > 0).all()
    assert (default.transition.diagonal() > 0).all()


def test_learn_with_smoothing_allows_observed_moves_in_both_directions(world, run):
    output = json.loads(run("learn", "walk.csv", *BOX, "--smoothing", 0.5, "-o", "half.npz", "--json").stdout)
    assert output["smoothing"] == 0.5
    half = MarkovModel.load(world / "half.npz")
    assert (half.transition.T != 0).nnz == ((half.transition != 0) + (half.transition.T != 0)).nnz
    assert (half.initial == 0).any()
    both = run("learn", "walk.csv", *BOX, "--smoothing", 0.5, "--max-speed", 90, "-o", "both.npz")
    assert (both.exit_code, both.stdout) == (2, "")
    assert "--max-speed cannot be combined with --smoothing" in both.stderr


def test_learn_stores_guarantee_of_model(world, run):
    provenances = {}
    for name, more in (
        ("plain", ()),
        ("few", ({"min_users": 2},)),
        ("private", ("--user-epsilon", "1/2")),
    ):
        done = run("learn", "walk.csv", *BOX, *more, "-o", f"{name}.npz")
        assert done.exit_code == 0, done.stderr
        provenances[name] = MarkovModel.load(world / f"{name}.npz").provenance
        assert ("Do not publish" in done.stderr) == (name == "private")
    assert provenances["plain"]["guarantee"].startswith("none: moves were counted without noise")
    assert "not a privacy guarantee" in provenances["few"]["guarantee"]
    assert provenances["private"]["epsilon"] == "0.5"
    assert provenances["private"]["guarantee"].startswith("user-level differential privacy")
    assert sum(Fraction(part) for part in provenances["private"]["spent_on"].values()) == Fraction(1, 2)
    about = json.loads((world / "private.PRIVATE-users.json").read_text())
    assert about["users"] == ["a", "b"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (({"moves_per_user": 3},), "key 'moves_per_user' requires --user-epsilon"),
        (("--user-epsilon", 1, "--smoothing", 1), "cannot be combined"),
        (("--user-epsilon", 1, {"min_users": 2}), "cannot be combined"),
        (("--user-epsilon", "none"), "--user-epsilon must be in [1e-30, 1e+30]"),
        (("--user-epsilon", "1e-17"), "--user-epsilon must be larger, got 1e-17: its noise may exceed 64 bits"),
        (({"min_users": 0},), "key 'min_users' must be an integer, at least 1, got 0"),
        (
            ("--user-epsilon", 1, "--time-classes", "hour", "--zone", "UTC"),
            "--user-epsilon cannot be combined with --time-classes",
        ),
    ],
)
def test_learn_rejects_conflicting_guarantees(world, run, more, message):
    done = run("learn", "walk.csv", *BOX, *more, "-o", "bad.npz")
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr
    assert not (world / "bad.npz").exists()


def test_user_in_two_files_is_one_user(world, run):
    text = (world / "walk.csv").read_text().splitlines(keepends=True)
    (world / "one.csv").write_text("".join(text[:4]))
    (world / "two.csv").write_text("".join([text[0], *text[3:7]]))
    output = json.loads(run("learn", "one.csv", "two.csv", *BOX, "-o", "out.npz", "--json").stdout)
    assert (output["users"], output["fixes"], output["num_merged_fixes"]) == (1, 6, 1)


def test_learn_accepts_polygon_and_named_columns(world, run):
    ring = [[-30.02, 44.99], [-29.98, 44.99], [-29.98, 45.01], [-30.02, 45.01], [-30.02, 44.99]]
    layer = {"features": [{"geometry": {"type": "Polygon", "coordinates": [ring]}}]}
    (world / "area.geojson").write_text(json.dumps(layer))
    (world / "odd.csv").write_text((world / "walk.csv").read_text().replace("tracked_at", "when"))
    words = ("learn", "odd.csv", "--polygon", "area.geojson", "--cell", "0.3", "-o", "out.npz", "--gap", "600")
    assert run(*words).exit_code == 2
    assert run(*words, {"columns": {"time": "when"}}).exit_code == 0


@pytest.fixture
def release_folder(world, run):
    words = ("release", "walk.csv", "--model", "m.npz", "--policy", "utility:600m", "--epsilon", "1", "-o", "r.csv")
    assert run(*words).exit_code == 0
    return world


@pytest.mark.slow
@pytest.mark.usefixtures("blank")
@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".html", b"<!DOCTYPE html>")])
def test_show_writes_format_of_suffix(release_folder, run, suffix, magic):
    words = ["show", "r.csv", "-o", f"PRIVATE-map{suffix}", "--users", "a"]
    words += ["--model", "m.npz", "--policy", "utility:600m"]
    result = run(*words, "--true", "walk.csv")
    assert result.exit_code == 0, result.stderr
    assert (release_folder / f"PRIVATE-map{suffix}").read_bytes().startswith(magic)
    assert "shows true locations. Do not publish it." in result.stderr
    assert run(*words).exit_code == 2
    assert run(*words, "--overwrite").stderr == ""


def _read_layers(page):
    return json.loads(page.partition('id="data">')[2].partition("</script>")[0])["layers"]


def test_map_without_true_tracks_contains_no_true_locations(release_folder, run):
    assert run("show", "r.csv").exit_code == 0
    released_layer, estimates = _read_layers((release_folder / "r.html").read_text())
    assert [released_layer["name"], estimates["name"]] == ["sampled location", "estimate at a sample"]
    table = read_releases(release_folder / "r.csv")
    assert released_layer["n"] == estimates["n"] == len(table)
    longitudes = decode_numbers(released_layer["longitude"], len(table))
    np.testing.assert_allclose(sorted(longitudes), sorted(table["longitude"]), rtol=0, atol=0.6e-5)


def test_map_omits_unknown_radii(release_folder, run):
    lines = (release_folder / "r.csv").read_text().splitlines()
    column = lines[0].split(",").index("estimate_error_m")
    cells = lines[2].split(",")
    lines[2] = ",".join([*cells[:column], "", *cells[column + 1 :]])
    (release_folder / "r.csv").write_text("\n".join(lines) + "\n")
    done = run("show", "r.csv")
    assert (done.exit_code, done.stderr) == (0, "")
    radii = decode_numbers(_read_layers((release_folder / "r.html").read_text())[1]["radii"], len(lines) - 1)
    assert np.isnan(radii).sum() == 1


def test_show_restricts_times(release_folder, run):
    assert run("show", "r.csv", "--start", "2024-03-07T09:02:00Z", "--end", "2024-03-07T09:04:00Z").exit_code == 0
    layer = _read_layers((release_folder / "r.html").read_text())[1]
    times = np.array(decode_numbers(layer["times"], layer["n"])).astype("datetime64[s]")
    assert set(times.tolist()) == set(
        np.array(["2024-03-07T09:02", "2024-03-07T09:03"], dtype="datetime64[s]").tolist()
    )
    for words, stated in (
        (("--start", "2025-01-01"), "--start 2025-01-01T00:00:00Z"),
        (
            ("--start", "2023-01-01", "--end", "2024-01-01"),
            "--start 2023-01-01T00:00:00Z and --end 2024-01-01T00:00:00Z",
        ),
    ):
        message = f"{stated} must leave a release, got releases from 2024-03-07T09:00:00Z to 2024-03-07T09:05:00Z"
        assert message in run("show", "r.csv", *words, "--overwrite").stderr
    assert "--end: time must be ISO 8601" in run("show", "r.csv", "--end", "soon", "--overwrite").stderr


@pytest.mark.parametrize("end", ["2024-03-01", "2024-03-08"])
def test_show_with_end_not_after_start_raises(release_folder, run, end):
    done = run("show", "r.csv", "--start", "2024-03-08", "--end", end)
    assert done.exit_code == 2
    assert f"--start must be before --end, got --start 2024-03-08 and --end {end}" in done.stderr
    assert not (release_folder / "r.html").exists()


@pytest.mark.parametrize(
    ("suffix", "more", "kind"),
    [
        ("gpkg", ("--seed", 1), "repeatable releases"),
        ("csv", ("--seed", 1), "releases"),
        ("gpkg", (), "private releases"),
        ("csv", (), "releases"),
    ],
)
def test_map_calls_releases_private_only_if_file_states_it(world, run, suffix, more, kind):
    words = ("--model", "m.npz", "--policy", "utility:600m", "--epsilon", "1")
    assert run("release", "walk.csv", *words, *more, "-o", f"r.{suffix}").exit_code == 0
    assert run("show", f"r.{suffix}").exit_code == 0
    note = _read_note((world / "r.html").read_text())
    assert f">12 {kind} of 2 users." in note
    assert ("No privacy guarantee" in note) == (kind == "repeatable releases")


def test_show_accepts_batch_and_sessions_and_names_policy(world, run):
    terms = ("--model", "m.npz", "--policy", "utility:600m", "--epsilon", "1")
    assert run("batch", "walk.csv", *terms, "--workers", 1, "-o", "everyone").exit_code == 0
    assert run("release", "walk.csv", *terms, "--session", "users.db", "-o", "r.csv").exit_code == 0
    for source, page in (("everyone", "everyone.html"), ("users.db", "users.html")):
        done = run("show", source, "--model", "m.npz")
        assert (done.exit_code, done.stdout) == (0, f"{page}\n"), done.stderr
        text = (world / page).read_text()
        assert "<title>utility:600m, ε = 1: median error of releases" in text
        assert json.loads(text.partition('id="data">')[2].partition("</script>")[0])["policy"]["edges"] > 0
    assert run("show", "users.db", "--overwrite").exit_code == 2


def _read_note(page):
    return page.partition("<header>")[2].partition("</header>")[0]


def test_map_states_whether_policy_and_model_match_releases(release_folder, run):
    cases = {
        ("--model", "m.npz", "--policy", "utility:600m"): "The policy connects locations within 0.6 km.",
        ("--model", "m.npz", "--policy", "utility:1km"): "the releases do not confirm that it is theirs",
        ("--model", "other.npz", "--policy", "utility:600m"): "those of another model than the releases",
    }
    assert run("learn", "walk.csv", *BOX, "-o", "other.npz").exit_code == 0
    for words, message in cases.items():
        assert run("show", "r.csv", *words, "--overwrite").exit_code == 0
        note = _read_note((release_folder / "r.html").read_text())
        assert message in note
        assert ("The policy connects" in note) == ("utility:600m" in words)
        assert ("(as given)" in note) == ("utility:1km" in words)


def test_batch_with_changed_policy_file_is_plotted_without_policy(world, run):
    ring = [[-30.02, 44.99], [-30.0, 44.99], [-30.0, 45.01], [-30.02, 45.01], [-30.02, 44.99]]
    layer = {"type": "FeatureCollection", "features": []}
    for name, part in (("west", ring), ("east", [[x + 0.02, y] for x, y in ring])):
        area = {"type": "Polygon", "coordinates": [part]}
        layer["features"].append({"type": "Feature", "properties": {"name": name}, "geometry": area})
    (world / "z.geojson").write_text(json.dumps(layer))
    terms = ("--model", "m.npz", "--policy", "categorical:z.geojson", "--epsilon", "1", "--workers", 1)
    assert run("batch", "walk.csv", *terms, "-o", "all").exit_code == 0
    pages = {}
    for state in ("whole", "changed", "gone"):
        if state == "changed":
            (world / "z.geojson").write_text(json.dumps(layer | {"name": "x"}))
        if state == "gone":
            (world / "z.geojson").unlink()
        done = run("show", "all", "--model", "m.npz", "--overwrite")
        assert done.exit_code == 0, done.stderr
        pages[state] = (world / "all.html").read_text()
    assert "The policy connects locations that are in the same area of z.geojson" in _read_note(pages["whole"])
    assert "The policy is not shown: a file of it has changed." in _read_note(pages["changed"])
    assert "The policy is not shown: a file of it is missing." in _read_note(pages["gone"])
    edges = {
        state: json.loads(page.partition('id="data">')[2].partition("</script>")[0])["policy"]["edges"]
        for state, page in pages.items()
    }
    assert edges["whole"] > 0
    assert edges["changed"] == edges["gone"] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--tiles", "tiles"), "tiles must be an address such as"),
        (("--tiles", "https://a/{z}/{x}/{y}", "--basemap", "b.geojson"), "--tiles cannot be combined with --basemap"),
        (("--tiles", "https://a/{z}/{x}/{y}", "-o", "m.png"), "--tiles cannot be combined with --basemap or a picture"),
        (("--basemap", "missing.geojson"), "there is no such file"),
        (("--policy", "utility:1km"), "use --model too"),
    ],
)
def test_show_rejects_invalid_maps(release_folder, run, words, message):
    done = run("show", "r.csv", *words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr
    assert not (release_folder / "r.html").exists()


@pytest.mark.slow
def test_data_fetch_accepts_mirror_and_checks_digest(world, run):
    pytest.importorskip("pooch")
    (world / "mirror").mkdir()
    (world / "mirror" / "loc-gowalla_totalCheckins.txt.gz").write_bytes(compress(b"0\t2010-10-19T23:55:27Z\t1\t2\t3\n"))
    handler = partial(_Quiet, directory=str(world / "mirror"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        words = (
            "data",
            "fetch",
            "gowalla",
            "--output",
            "here",
            "--url",
            f"http://127.0.0.1:{server.server_port}/",
        )
        first = json.loads(run(*words, "--json").stdout)
        assert "first download" in first["verified"]
        wrong = run(*words, "--sha256", "0" * 64)
        server.shutdown()
    assert wrong.exit_code == 2
    assert wrong.stderr.count("\n") == 1
    assert "it is damaged or has changed, and was deleted" in wrong.stderr


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *words):
        pass


@pytest.mark.slow
@pytest.mark.usefixtures("blank")
def test_demo_writes_every_named_file(tmp_path, run, monkeypatch):
    """There are fewer users, days and timesteps than in the documentation."""
    for name, value in (("NUM_USERS", 6), ("NUM_DAYS", 2), ("STEP_SECONDS", 900)):
        monkeypatch.setattr(demo, name, value)
    folder = tmp_path / "demo"
    result = run("demo", "-o", folder, "--json")
    assert result.exit_code == 0, result.stderr
    # The settings shown are reasonable defaults; occasionally the posterior of a user reaches one half.
    warned = [line for line in result.stderr.splitlines() if "Warning" in line]
    expected = ("to a single location", "shows true locations. Do not publish it.", "districts.geojson: small overlaps")
    assert all(any(text in line for text in expected) for line in warned), warned
    assert all(line.count("Warning") == 1 for line in warned), warned
    output = json.loads(result.stdout)
    named = {name.rsplit("/", 1)[1] for name in output["files"].values()}
    assert named == {path.name for path in folder.iterdir()}
    assert {"releases.gpkg", "PRIVATE-map.png", "PRIVATE-map.html"} <= named
    table = read_releases(folder / "releases.gpkg")
    assert set(table["user"]) == {"p01", "p02"}
    assert table["epsilon_24h"].max() <= 3, "a budget for the day"
    assert table["min_degree_of_protection"][~table["withheld"]].min() >= 2
    assert np.isfinite(list(output["errors_m"].values())).all()
    # the last step of scripts/demo
    proof, rows = ((folder / name).as_posix() for name in ("proof.jsonl", "releases.gpkg"))
    checked = [sys.executable, "-I", VERIFIER, proof, rows, "--model", (folder / "model.npz").as_posix(), "--fast"]
    assert (
        "hash are those of the model file" in subprocess.run(checked, check=True, capture_output=True, text=True).stdout
    )
    again = run("demo", "-o", folder)
    assert again.exit_code == 2
    assert "exists; name another file or pass --overwrite" in again.stderr
