"""Tests of the QGIS plugin: it runs without a screen, reports errors and is packaged."""

from __future__ import annotations

import configparser
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from dphmm.cli import main
from scripts.qgis.__main__ import pack
from scripts.qgis.dphmm_processing.algorithms import ALGORITHMS

ROOT = Path(__file__).parents[2]
DATA = ROOT / "data"
QGIS = "/usr/bin/python3"  # from Debian's python3-qgis
LEARN = f"learn {DATA}/sample/geolife --exclude-users 000 --bbox 44.97 -30.04 45.03 -29.96 --cell 0.5 --step 300"


@pytest.mark.parametrize("key", ALGORITHMS)
def test_every_form_is_an_option_of_the_command(key):
    _, _, command, *rows = ALGORITHMS[key]
    help = CliRunner().invoke(main, [*command.split(), "--help"]).output
    for *_, form in rows:
        assert form.split()[0] in ("{}", "-o") or f"{form.split()[0]} " in help


def test_plugin_is_packed_with_licence_and_required_metadata(tmp_path):
    file = pack(tmp_path / "plugin.zip", "https://code.example/dphmm", "us@code.example")
    with zipfile.ZipFile(file) as inside:
        names = {name.removeprefix("dphmm_processing/") for name in inside.namelist()}
        metadata = configparser.ConfigParser()
        metadata.read_string(inside.read("dphmm_processing/metadata.txt").decode())
    assert names == {"LICENSE", "metadata.txt", "__init__.py", "algorithms.py", "provider.py"}
    required = [
        "name",
        "qgisMinimumVersion",
        "description",
        "about",
        "version",
        "author",
        "email",
        "repository",
        "tracker",
    ]
    assert all(metadata["general"].get(key) for key in required)
    assert metadata["general"]["hasProcessingProvider"] == "yes"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Return the results of each algorithm in QGIS."""
    environment = {"QT_QPA_PLATFORM": "offscreen", "HOME": str(tmp_path_factory.mktemp("home")), "LANG": "C.UTF-8"}
    if not Path(QGIS).exists() or subprocess.run([QGIS, "-c", "import qgis.core"], capture_output=True).returncode:
        pytest.skip("no QGIS: apt install python3-qgis qgis-providers")
    folder = tmp_path_factory.mktemp("qgis")
    model = CliRunner().invoke(main, [*LEARN.split(), "-o", f"{folder}/model.npz"])
    assert model.exit_code == 0, model.output
    command = folder / "bin" / "dphmm"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m dphmm "$@"\n')
    command.chmod(0o755)
    with zipfile.ZipFile(pack(folder / "plugin.zip")) as inside:
        inside.extractall(folder)
    points, model = str(DATA / "sample" / "points.geojson"), f"{folder}/model.npz"
    jobs = [
        ("release", {"DATA": points, "MODEL": model, "RELEASES": f"{folder}/releases.gpkg"}),
        ("hide", {"DATA": points, "PLACE": "-30.01,45.01 [EPSG:4326]", "METRES": 400, "HIDDEN": "TEMPORARY_OUTPUT"}),
        ("audit", {"MODEL": model, "ZONES": str(DATA / "home.geojson"), "REPORT": f"{folder}/audit.html"}),
        (
            "flows",
            {
                "DATA": points,
                "AREAS": str(DATA / "districts.geojson"),
                "LABEL": "name",
                "FLOWS": f"{folder}/flows.gpkg",
            },
        ),
        ("attack", {"DATA": points, "MODEL": model, "PRIVATE_PAGE": f"{folder}/PRIVATE.html"}),
        ("release", {"DATA": points, "MODEL": model, "POLICY": "hours", "RELEASES": f"{folder}/no.gpkg"}),
    ]
    words = [QGIS, Path(__file__).with_name("qgis_driver.py"), folder, json.dumps(jobs)]
    path = f"{command.parent}:/usr/bin:/bin"
    done = subprocess.run(words, capture_output=True, text=True, env=environment | {"PATH": path}, timeout=900)
    lines = [json.loads(line.removeprefix("FOUND ")) for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert len(lines) == len(jobs), done.stderr[-2000:]
    return [result for _, result in lines]


@pytest.mark.slow
def test_each_algorithm_returns_layers_or_page(results):
    release, hide, audit, flows, attack, _ = results
    assert [result.get("failed") for result in (release, hide, audit, flows, attack)] == [None] * 5
    assert release["layers"].keys() == {"estimates", "released", "tracks"}
    assert 0 < release["layers"]["released"] <= release["layers"]["estimates"]
    assert next(iter(hide["layers"].values())) > 0
    assert flows["layers"]["areas"] == 5
    for page, text in ((audit["outputs"]["REPORT"], "Policy audit"), (attack["outputs"]["PRIVATE_PAGE"], "round")):
        assert text in Path(page).read_text(encoding="utf-8")
    assert not os.path.exists(release["outputs"]["RELEASES"].replace("releases", "no"))


@pytest.mark.slow
def test_command_error_is_reported_in_one_line(results):
    assert "policy" in results[-1]["failed"]
    assert "\n" not in results[-1]["failed"].strip()
