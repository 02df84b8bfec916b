"""Tests that every figure of the documentation can be plotted with the sample data."""

from __future__ import annotations

import csv
import logging
import os
import shutil
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # a tool of the project, not a feature

SAMPLE = Path(__file__).parents[2] / "data" / "sample"
GEOLIFE = str(SAMPLE / "geolife")
CHECKINS = str(SAMPLE / "checkins.txt.gz")
DISTRICTS = str(SAMPLE.parent / "districts.geojson")
IN_THE_SAMPLE = ["--bbox", "44.97", "-30.04", "45.03", "-29.96", "--cell", "1"]
CASES = {
    "budgets": ([], [], {"budgets.csv", "budgets.png"}),
    "explore": ([], [], {"explore.png", "explore_example.png", "explore_adversary.png"}),
    "flow_rows": ([CHECKINS, GEOLIFE], ["--areas", DISTRICTS, DISTRICTS], {"flow_rows.csv"}),
    "flows": (
        [CHECKINS, GEOLIFE],
        ["--areas", DISTRICTS, DISTRICTS, "--model-bbox", *IN_THE_SAMPLE[1:5]],
        {"flows.csv", "flows.png"},
    ),
    "noises": ([], [], {"noises.csv", "noises.png"}),
    "policies": ([], [], {"policies.csv", "policies.png"}),
    "radii": ([GEOLIFE, CHECKINS], IN_THE_SAMPLE[:5], {"PRIVATE-radii.csv"}),
    "streets": ([str(SAMPLE.parent / "streets.geojson")], [], {"streets.csv", "one_release.csv"}),
    "uses": ([GEOLIFE, CHECKINS], IN_THE_SAMPLE[:5], {"PRIVATE-uses.csv"}),
}


def test_every_figure_has_a_case():
    pytest.importorskip("matplotlib")
    from scripts.drawings.__main__ import FIGURES

    assert FIGURES.keys() == CASES.keys()


@pytest.mark.parametrize("figure", CASES)
def test_small_figure_is_plotted_with_table(figure, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    # Some figures disable warnings in their process, which later tests of this process need.
    monkeypatch.setattr(logging.root.manager, "disable", logging.NOTSET)
    from scripts.drawings.__main__ import main

    if figure == "explore":
        pytest.importorskip("playwright")
        if not (os.environ.get("DPHMM_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")):
            pytest.skip("no Chromium: install one, or set DPHMM_CHROMIUM")
    data, options, files = CASES[figure]
    main([figure, *data, str(tmp_path / "out"), "--small", *options])
    outputs = {path.name: path for path in (tmp_path / "out").iterdir()}
    assert outputs.keys() == files
    for name, path in outputs.items():
        if name.endswith(".png"):
            assert path.read_bytes().startswith(b"\x89PNG")
            assert path.stat().st_size > 10_000
        else:
            header, *rows = csv.reader(path.read_text(encoding="utf-8").splitlines())
            assert rows
            assert all(len(row) == len(header) for row in rows)
