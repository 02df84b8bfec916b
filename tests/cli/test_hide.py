"""Tests of ``dphmm hide`` and ``dphmm model blank``."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from dphmm import MarkovModel
from tests.documents import ROOT

RIDE = ROOT / "data/sample/ride.gpx"
HOME = ("--near", "45.01,-30.01")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_hide_command_prints_three_sentences(run, folder):
    done = run("hide", RIDE, *HOME, "--within", "500m", "-o", "public.gpx", "--picture", "public.png")
    assert done.exit_code == 0, done.stderr
    paragraphs, _, files = done.stdout.partition("\n\n")
    assert max(map(len, paragraphs.splitlines())) <= 80
    starts = [line.partition(":")[0] for line in paragraphs.splitlines() if not line.startswith(" ")]
    assert starts == ["Revealed", "Protected", "Repeated"]
    assert paragraphs.startswith("Revealed:  You were in the 1.92 km × 1.92 km zone")
    assert "Protected: Where in the 800 m × 800 m core your location lies" in paragraphs
    assert files.splitlines()[0].startswith("Wrote public.gpx: kept 1,738 of 2,352 points; removed heart rate, ")
    assert files.splitlines()[1] == "Wrote public.png: the adversary's view."
    assert (folder / "public.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in folder.iterdir()} == {"public.gpx", "public.png"}


@pytest.mark.slow
def test_json_contains_both_adversaries(run):
    done = run("hide", RIDE, "--hide-endpoints", "-o", "public.csv", "--json")
    output = json.loads(done.stdout)
    (place,) = output["places"]
    markov = place["adversaries"]["markov"]
    assert 0.01 < markov["max_posterior"] < markov["max_posterior_from_ten"] < 1
    assert len(output["sentences"]) == 3


@pytest.mark.slow
def test_coordinates_are_taken_as_copied_and_files_written_in_each_format(run, folder):
    first = run("hide", RIDE, *HOME, "-o", "first.tcx", "--json")
    assert first.exit_code == 0, first.stderr
    link = "https://www.openstreetmap.org/?mlat=45.01&mlon=-30.01#map=17/45.2/-30.2"
    again = run("hide", RIDE, "--near", link, "-o", "again.xml", "--format", "tcx", "--json")
    assert again.exit_code == 0, again.stderr
    assert json.loads(first.stdout) == json.loads(again.stdout)
    assert (folder / "first.tcx").read_bytes() == (folder / "again.xml").read_bytes()


def test_distance_of_nearest_point_is_stated(run, folder):
    done = run("hide", RIDE, "--near", "45.06,-30.06", "-o", "public.gpx")
    assert done.exit_code == 2
    assert "no point lies within 500 m of the location: the nearest is 5.99 km away" in done.stderr
    point = '<trkpt lat="0" lon="0"/>'
    (folder / "none.gpx").write_text(f"<gpx><trk><trkseg>{point}{point}</trkseg></trk></gpx>", encoding="utf-8")
    done = run("hide", "none.gpx", "--hide-endpoints", "-o", "public.gpx")
    assert done.exit_code == 2
    assert "every point is at latitude 0 and longitude 0" in done.stderr


def test_file_without_track_and_route_is_refused_without_a_demand_for_times(run, folder):
    (folder / "places.gpx").write_text('<gpx><wpt lat="45" lon="-30"/></gpx>', encoding="utf-8")
    done = run("hide", "places.gpx", *HOME, "-o", "public.gpx")
    assert done.exit_code == 2
    assert "only 1 waypoints and 0 routes; a recording needs a track or a route" in done.stderr


@pytest.mark.slow
def test_removed_cadence_is_named_in_plain_words(run):
    done = run("hide", RIDE, *HOME, "-o", "public.kml")
    assert "removed activity, cadence, heart rate, track name and file time." in done.stdout


@pytest.mark.slow
def test_points_without_times_are_counted(run, folder):
    points = RIDE.read_text(encoding="utf-8").split("<trkpt ")
    for at in range(1000, 1003):
        start, _, rest = points[at].partition("<time>")
        points[at] = start + rest.partition("</time>")[2]
    (folder / "ride.gpx").write_text("<trkpt ".join(points), encoding="utf-8")
    done = run("hide", "ride.gpx", *HOME, "-o", "public.gpx")
    assert done.exit_code == 0, done.stderr
    assert "3 of the kept points have no time." in done.stdout
    assert "have no time" not in run("hide", "ride.gpx", *HOME, "-o", "none.gpx", "--no-times").stdout
    done = run("hide", "ride.gpx", *HOME, "-o", "public.tcx", "--session", "home.json")
    assert done.exit_code == 2
    assert "TCX requires the time of every point, and 3 of the 1,738 kept points have no time" in done.stderr
    assert "keep times" not in done.stderr
    assert not (folder / "home.json").exists()


@pytest.mark.slow
def test_receiver_errors_are_named(run, folder):
    """The first point has no fix, and a later one is 1,000 km away."""
    text = RIDE.read_text(encoding="utf-8")
    points = text.split("<trkpt ")
    points[1] = 'lat="0.0" lon="0.0"' + points[1][points[1].index(">") :]
    points[1200] = 'lat="54.0" lon="-30.0"' + points[1200][points[1200].index(">") :]
    (folder / "ride.gpx").write_text("<trkpt ".join(points), encoding="utf-8")
    done = run("hide", "ride.gpx", "--hide-endpoints", "-o", "public.gpx")
    assert done.exit_code == 0, done.stderr
    words = " ".join(done.stdout.split())
    assert "Dropped 2 points (receiver errors: no fix, or a jump above the speed limit): 0, 0 at 20" in words
    assert "; 54, -30 at 20" in words
    assert "centred on 45.0108, -30.0122" in words
    text = (folder / "public.gpx").read_text(encoding="utf-8")
    assert 'lat="0.0"' not in text
    assert 'lat="54.0"' not in text


@pytest.mark.slow
def test_session_recognizes_home_typed_across_a_border(run):
    """The two locations are 16 m apart. The core ends at longitude -30.007117."""
    for number, longitude in enumerate((-30.00722, -30.00702), start=1):
        done = run(
            "hide", RIDE, "--near", f"45.01,{longitude}", "--session", "home.json", "-o", f"{number}.gpx", "--json"
        )
        output = json.loads(done.stdout)
        (place,) = output["places"]
        assert place["core_box"][3] == -30.007117
    sentences = " ".join(output["sentences"])
    assert "or up to 52 m outside it, your location lies" in sentences
    assert "was recognized as the same location" in sentences
    assert "only as far as this zone reaches, unless you use --near for it again" in sentences
    assert "Files that were hidden without this session, or before it knew this zone, are not counted." in sentences


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "no location to hide: use --near"),
        (("--near", "home"), "home"),
        ((*HOME, "--near", "other.geojson"), "--near must be LATITUDE,LONGITUDE"),
        (("--near", ""), "--near must be LATITUDE,LONGITUDE"),
        ((*HOME, "--within", "500"), "--within must be a length with its unit"),
        ((*HOME, "--picture", "x.jpg"), "picture"),
        ((*HOME, "--picture", "nowhere/x.png"), "does not exist; create it"),
        ((*HOME, "--session", "nowhere/s.json"), "does not exist; create it"),
        (("--near", "nowhere.geojson"), "nowhere.geojson"),
        (("--near", RIDE), "ride.gpx: must be GeoJSON, got GPX"),
        ((*HOME, "--map", RIDE), "ride.gpx: must be GeoJSON, or a vector file with the extension of its format"),
    ],
)
def test_invalid_arguments_print_one_line_and_write_nothing(run, folder, words, message):
    done = run("hide", RIDE, "-o", "public.gpx", *words)
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert message in line
    assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_model_blank_creates_model_without_data(run, folder):
    done = run("model", "blank", "--bbox", 44.97, -30.04, 45.03, -29.96, "--kind", "cycling", "-o", "m.npz", "--json")
    output = json.loads(done.stdout)
    assert output["learned_from"] == "no users"
    assert output["step_seconds"] == 60
    assert MarkovModel.load(folder / "m.npz").size == output["states"]
    again = run("model", "blank", "--town", "Lyon", "--cell", 1, "--step", 300, "-o", "lyon.npz", "--json")
    assert json.loads(again.stdout)["states"] in (400, 420, 441)
    assert run("model", "blank", "-o", "none.npz").exit_code == 2
    assert run("model", "blank", "--town", "Lyon", "-o", "m.npz").exit_code == 2


def test_town_is_printed_with_country_and_coordinates(run, folder):
    done = run("model", "blank", "--town", "Wien", "--cell", 4, "-o", "m.npz", "--json")
    assert done.stderr == "Region: 20 km by 20 km around Vienna, Austria (about 1,700,000 people; 48.208,16.372).\n"
    assert json.loads(done.stdout)["states"] in (25, 30, 36)
    done = run("model", "blank", "--town", "Roma", "--cell", 4, "-o", "n.npz")
    assert done.exit_code == 2
    assert "'Roma, IT' is Rome, Italy" in done.stderr
    assert not (folder / "n.npz").exists()


REAL_MAP = Path(os.environ.get("DPHMM_REAL_DATA", "")) / "streets/north-bayreuth.osm.gz"


@pytest.mark.slow
@pytest.mark.skipif(not REAL_MAP.is_file(), reason="needs DPHMM_REAL_DATA")
def test_real_map_prints_odds_of_buildings(run, tmp_path):
    start, end = (49.992409, 11.546994), (50.03, 11.55)
    rows = [
        f"{start[0] + share * (end[0] - start[0])},{start[1] + share * (end[1] - start[1])},"
        f"2024-03-09T10:{int(15 * share):02d}:{int(900 * share) % 60:02d}Z"
        for share in np.linspace(0, 0.99, 300)
    ]
    path = tmp_path / "ride.csv"
    path.write_text("\n".join(["latitude,longitude,time", *rows]) + "\n")
    done = run("hide", path, f"--near={start[0]},{start[1]}", "--map", REAL_MAP, "-o", tmp_path / "public.csv")
    assert done.exit_code == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert re.search(r"Your home is one of \d+ (buildings|addresses) in the core", text)
    assert "who knows the streets, gives none of them a probability above" in text


def test_basemap_of_another_region_is_refused_before_files_are_written(run, folder):
    outline = {"type": "Polygon", "coordinates": [[[10, 10], [11, 10], [11, 11], [10, 10]]]}
    water = {"type": "Feature", "properties": {"kind": "water"}, "geometry": outline}
    Path("far.geojson").write_text(json.dumps({"type": "FeatureCollection", "features": [water]}), encoding="utf-8")
    files = ("-o", "out.gpx", "--session", "s.json", "--picture", "out.png")
    done = run("hide", RIDE, *HOME, *files, "--basemap", "far.geojson")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "far.geojson: contains no map of the region" in done.stderr
    assert {path.name for path in folder.iterdir()} == {"far.geojson"}
