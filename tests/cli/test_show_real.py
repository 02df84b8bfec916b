"""Tests of maps of real users, skipped if the traces are absent."""

from __future__ import annotations

import json

import pytest


@pytest.mark.slow
def test_geolife_days_become_page_and_picture(few_of_geolife, tmp_path, run, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    data = few_of_geolife
    box = ("--bbox", 39.87, 116.29, 39.97, 116.46, "--cell", 1)
    assert run("learn", data, "--users", "001,005,007", *box, "--step", 300, "-o", "m.npz").exit_code == 0
    terms = ("--model", "m.npz", "--policy", "utility:2km", "--epsilon", 1)
    assert run("release", data, "--users", "006", *terms, "-o", "r.gpkg").exit_code == 0
    options = ("--model", "m.npz", "--policy", "utility:2km")
    done = run("show", "r.gpkg", *options, "--true", data, "--users", "006", "-o", "PRIVATE-map.html")
    assert done.exit_code == 0, done.stderr
    page = (tmp_path / "PRIVATE-map.html").read_text()
    assert len(page.encode()) < 3_000_000
    page_data = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    names = [name for name, *_ in page_data["basemap"]["names"]]
    assert "Beijing" in names
    assert {"sampled location", "estimate at a sample", "true locations (private)"} <= {
        layer["name"] for layer in page_data["layers"]
    }
    assert "The policy connects locations within 2 km." in page
    assert run("show", "r.gpkg", *options, "-o", "map.png").exit_code == 0
    assert (tmp_path / "map.png").stat().st_size > 20_000
