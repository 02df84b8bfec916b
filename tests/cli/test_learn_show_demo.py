"""The other commands: learn, show, data, demo."""

from __future__ import annotations

import json
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
from tests.plots.test_webmap_coding import numbers
from tests.sizes import slow

BOX = ("--bbox", "44.995", "-30.015", "45.005", "-29.985", "--cell", "0.5")


def test_learn_counts_what_the_table_holds(world, run):
    result = run("learn", "walk.csv", "--users", "a", *BOX, "-o", "out.npz", "--json")
    told = json.loads(result.stdout)
    assert (told["users"], told["fixes"], told["moves_counted"], told["step_seconds"]) == (1, 6, 5, 60.0)
    model = MarkovModel.load(world / "out.npz")
    assert told["states"] == model.size == model.states.size
    assert told["transitions"] == model.transition.nnz
    assert "moves counted" in run("learn", "walk.csv", *BOX, "-o", "again.npz").stdout


def test_learn_holds_possible_what_a_person_can_do_within_a_step(world, run):
    for name, more in (("default", ()), ("usual", ("--max-speed", 150)), ("walk", ("--max-speed", 5))):
        assert run("learn", "walk.csv", *BOX, *more, "-o", f"{name}.npz").exit_code == 0
    default, usual, walk = (MarkovModel.load(world / f"{name}.npz") for name in ("default", "usual", "walk"))
    assert default.content_hash == usual.content_hash != walk.content_hash
    assert walk.transition.nnz < default.transition.nnz
    assert (default.initial > 0).all()
    assert (default.transition.diagonal() > 0).all()


def test_learn_with_smoothing_holds_possible_what_was_seen_both_ways(world, run):
    told = json.loads(run("learn", "walk.csv", *BOX, "--smoothing", 0.5, "-o", "half.npz", "--json").stdout)
    assert told["smoothing"] == 0.5
    half = MarkovModel.load(world / "half.npz")
    assert (half.transition.T != 0).nnz == ((half.transition != 0) + (half.transition.T != 0)).nnz
    assert (half.initial == 0).any()
    both = run("learn", "walk.csv", *BOX, "--smoothing", 0.5, "--max-speed", 90, "-o", "both.npz")
    assert (both.exit_code, both.stdout) == (2, "")
    assert "--max-speed and --smoothing" in both.stderr


def test_learn_writes_what_its_model_promises(world, run):
    told = {}
    for name, more in (
        ("plain", ()),
        ("few", ("--least-people", 2)),
        ("private", ("--user-epsilon", "1/2")),
    ):
        done = run("learn", "walk.csv", *BOX, *more, "-o", f"{name}.npz")
        assert done.exit_code == 0, done.stderr
        told[name] = MarkovModel.load(world / f"{name}.npz").learned
        assert ("keep it to yourself" in done.stderr) == (name == "private")
    assert told["plain"]["promise"].startswith("none: moves were counted without noise")
    assert "guarantees nothing" in told["few"]["promise"]
    assert told["private"]["epsilon"] == "1/2"
    assert told["private"]["promise"].startswith("differential privacy of whole people")
    assert sum(Fraction(part) for part in told["private"]["spent_on"].values()) == Fraction(1, 2)
    about = json.loads((world / "private.PRIVATE-people.json").read_text())
    assert about["people"] == ["a", "b"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--moves-per-person", 3), "give that too"),
        (("--user-epsilon", 1, "--smoothing", 1), "exclude each other"),
        (("--user-epsilon", 1, "--least-people", 2), "exclude each other"),
        (("--user-epsilon", "none"), "epsilon is 'none'"),
        (("--least-people", 0), "'--least-people': 0 is not in the range"),
        (("--user-epsilon", 1, "--by", "hours", "--zone", "UTC"), "leave out --by"),
    ],
)
def test_learn_refuses_promises_that_do_not_go_together(world, run, more, said):
    done = run("learn", "walk.csv", *BOX, *more, "-o", "bad.npz")
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr
    assert not (world / "bad.npz").exists()


def test_the_same_person_in_two_files_is_one(world, run):
    text = (world / "walk.csv").read_text().splitlines(keepends=True)
    (world / "one.csv").write_text("".join(text[:4]))
    (world / "two.csv").write_text("".join([text[0], *text[3:7]]))
    told = json.loads(run("learn", "one.csv", "two.csv", *BOX, "-o", "out.npz", "--json").stdout)
    assert (told["users"], told["fixes"], told["fixes_at_the_same_time"]) == (1, 6, 1)


def test_learn_takes_a_polygon_and_named_columns(world, run):
    ring = [[-30.02, 44.99], [-29.98, 44.99], [-29.98, 45.01], [-30.02, 45.01], [-30.02, 44.99]]
    layer = {"features": [{"geometry": {"type": "Polygon", "coordinates": [ring]}}]}
    (world / "area.geojson").write_text(json.dumps(layer))
    (world / "odd.csv").write_text((world / "walk.csv").read_text().replace("tracked_at", "when"))
    words = ("learn", "odd.csv", "--polygon", "area.geojson", "--cell", "0.3", "-o", "out.npz", "--gap", "600")
    assert run(*words).exit_code == 2
    assert run(*words, "--column", "time=when").exit_code == 0


@pytest.fixture
def released(world, run):
    words = ("release", "walk.csv", "--model", "m.npz", "--policy", "utility:600m", "--epsilon", "1", "-o", "r.csv")
    assert run(*words).exit_code == 0
    return world


@pytest.mark.usefixtures("blank")
@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".html", b"<!DOCTYPE html>")])
def test_show_writes_what_the_extension_says(released, run, suffix, magic):
    words = ["show", "r.csv", "-o", f"PRIVATE-map{suffix}", "--users", "a"]
    words += ["--model", "m.npz", "--policy", "utility:600m"]
    result = run(*words, "--true", "walk.csv")
    assert result.exit_code == 0, result.stderr
    assert (released / f"PRIVATE-map{suffix}").read_bytes().startswith(magic)
    assert "keep it to yourself" in result.stderr
    assert run(*words).exit_code == 2
    assert run(*words, "--overwrite").stderr == ""


def _layers(page):
    return json.loads(page.partition('id="data">')[2].partition("</script>")[0])["layers"]


def test_a_map_without_the_truth_holds_no_true_place(released, run):
    assert run("show", "r.csv").exit_code == 0
    released_layer, estimates = _layers((released / "r.html").read_text())
    assert [released_layer["name"], estimates["name"]] == ["released", "estimate (posterior mean)"]
    table = read_releases(released / "r.csv")
    assert released_layer["n"] == estimates["n"] == len(table)
    drawn = numbers(released_layer["longitude"], len(table))
    np.testing.assert_allclose(sorted(drawn), sorted(table["longitude"]), rtol=0, atol=0.6e-5)


def test_a_map_draws_no_circle_of_a_radius_that_nobody_knows(released, run):
    lines = (released / "r.csv").read_text().splitlines()
    column = lines[0].split(",").index("estimate_radius_m")
    cells = lines[2].split(",")
    lines[2] = ",".join([*cells[:column], "", *cells[column + 1 :]])
    (released / "r.csv").write_text("\n".join(lines) + "\n")
    done = run("show", "r.csv")
    assert (done.exit_code, done.stderr) == (0, "")
    radii = numbers(_layers((released / "r.html").read_text())[1]["radii"], len(lines) - 1)
    assert np.isnan(radii).sum() == 1


def test_show_narrows_down_to_times(released, run):
    assert run("show", "r.csv", "--from", "2024-03-07T09:02:00Z", "--to", "2024-03-07T09:04:00Z").exit_code == 0
    told = _layers((released / "r.html").read_text())[1]
    moments = np.array(numbers(told["times"], told["n"])).astype("datetime64[s]")
    assert set(moments.tolist()) == set(
        np.array(["2024-03-07T09:02", "2024-03-07T09:03"], dtype="datetime64[s]").tolist()
    )
    assert "no release is left" in run("show", "r.csv", "--from", "2025-01-01", "--overwrite").stderr
    assert "--to: time is 'soon'" in run("show", "r.csv", "--to", "soon", "--overwrite").stderr


def test_show_takes_the_folder_of_a_batch_and_a_file_of_sessions_and_names_their_policy(world, run):
    terms = ("--model", "m.npz", "--policy", "utility:600m", "--epsilon", "1")
    assert run("batch", "walk.csv", *terms, "--workers", 1, "-o", "everyone").exit_code == 0
    assert run("release", "walk.csv", *terms, "--session", "people.db", "-o", "r.csv").exit_code == 0
    for source, page in (("everyone", "everyone.html"), ("people.db", "people.html")):
        done = run("show", source, "--model", "m.npz")
        assert (done.exit_code, done.stdout) == (0, f"{page}\n"), done.stderr
        text = (world / page).read_text()
        assert "<title>utility:600m, ε = 1: releases" in text
        assert json.loads(text.partition('id="data">')[2].partition("</script>")[0])["policy"]["edges"] > 0
    assert run("show", "people.db", "--overwrite").exit_code == 2


def _note(page):
    return page.partition("<header>")[2].partition("</header>")[0]


def test_a_map_says_whether_the_releases_are_of_the_policy_and_the_model_that_are_drawn(released, run):
    cases = {
        ("--model", "m.npz", "--policy", "utility:600m"): "A release hides between places at most 0.6 km apart.",
        ("--model", "m.npz", "--policy", "utility:1km"): "do not say that the policy drawn is theirs",
        ("--model", "other.npz", "--policy", "utility:600m"): "those of another model than the releases",
    }
    assert run("learn", "walk.csv", *BOX, "-o", "other.npz").exit_code == 0
    for words, said in cases.items():
        assert run("show", "r.csv", *words, "--overwrite").exit_code == 0
        note = _note((released / "r.html").read_text())
        assert said in note
        assert ("hides between" in note) == ("utility:600m" in words)
        assert ("(as given)" in note) == ("utility:1km" in words)


def test_a_batch_whose_policys_file_changed_is_drawn_without_it(world, run):
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
    assert "hides between places that lie in one area of z.geojson" in _note(pages["whole"])
    assert "names has changed since: it is not drawn" in _note(pages["changed"])
    assert "names is gone: it is not drawn" in _note(pages["gone"])
    edges = {
        state: json.loads(page.partition('id="data">')[2].partition("</script>")[0])["policy"]["edges"]
        for state, page in pages.items()
    }
    assert edges["whole"] > 0
    assert edges["changed"] == edges["gone"] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--tiles", "tiles"), "tiles is 'tiles'; give an address such as"),
        (("--tiles", "https://a/{z}/{x}/{y}", "--basemap", "b.geojson"), "leave one of them out"),
        (("--tiles", "https://a/{z}/{x}/{y}", "-o", "m.png"), "leave one of them out"),
        (("--basemap", "missing.geojson"), "there is no such file"),
        (("--policy", "utility:1km"), "give --model too"),
    ],
)
def test_show_refuses_maps_that_are_none(released, run, words, said):
    done = run("show", "r.csv", *words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr
    assert not (released / "r.html").exists()


def test_data_fetch_takes_a_mirror_and_checks_the_digest(world, run):
    pytest.importorskip("pooch")
    (world / "mirror").mkdir()
    (world / "mirror" / "loc-gowalla_totalCheckins.txt.gz").write_bytes(compress(b"0\t2010-10-19T23:55:27Z\t1\t2\t3\n"))
    handler = partial(_Quiet, directory=str(world / "mirror"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        words = ("data", "fetch", "gowalla", "--to", "here", "--base-url", f"http://127.0.0.1:{server.server_port}/")
        first = json.loads(run(*words, "--json").stdout)
        assert "first download" in first["checked"]
        wrong = run(*words, "--sha256", "0" * 64)
        server.shutdown()
    assert wrong.exit_code == 2
    assert wrong.stderr.count("\n") == 1
    assert "was thrown away" in wrong.stderr


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *words):
        pass


@pytest.mark.usefixtures("blank")
@pytest.mark.parametrize(("people", "days"), [(6, 2), slow(demo.PEOPLE, demo.DAYS)])
def test_demo_makes_every_file_that_it_names(tmp_path, run, monkeypatch, people, days):
    monkeypatch.setattr(demo, "PEOPLE", people)
    monkeypatch.setattr(demo, "DAYS", days)
    folder = tmp_path / "demo"
    result = run("demo", "-o", folder, "--json")
    assert result.exit_code == 0, result.stderr
    # The settings that it shows are what one would sign; now and then a draw leaves somebody half sure of one place.
    warned = [line for line in result.stderr.splitlines() if "warning" in line]
    assert all("sure of one place" in line for line in warned), warned
    told = json.loads(result.stdout)
    named = {name.rsplit("/", 1)[1] for name in told["files"].values()}
    assert named == {path.name for path in folder.iterdir()}
    assert {"releases.gpkg", "summary.csv", "PRIVATE-map.png", "PRIVATE-map.html"} <= named
    table = read_releases(folder / "releases.gpkg")
    assert set(table["user"]) == {"p01", "p02"}
    assert table["epsilon_last_day"].max() <= 3, "a budget for the day"
    assert table["least_protection"][~table["withheld"]].min() >= 2
    assert np.isfinite(list(told["errors_m"].values())).all()
    # What scripts/demo ends with.
    proof, rows = ((folder / name).as_posix() for name in ("proof.jsonl", "releases.gpkg"))
    checked = [sys.executable, "-I", VERIFIER, proof, rows, "--model", (folder / "model.npz").as_posix()]
    assert "those of the model's file" in subprocess.run(checked, check=True, capture_output=True, text=True).stdout
    again = run("demo", "-o", folder)
    assert again.exit_code == 2
    assert "exists; name another file or pass --overwrite" in again.stderr
