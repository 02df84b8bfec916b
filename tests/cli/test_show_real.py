"""Real people through the real commands, onto maps; skips where the traces are absent."""

from __future__ import annotations

import json

import pytest


@pytest.mark.slow
def test_a_real_persons_days_become_a_page_and_a_picture(few_of_geolife, tmp_path, run, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    people = few_of_geolife
    box = ("--bbox", 39.87, 116.29, 39.97, 116.46, "--cell", 1)
    assert run("learn", people, "--users", "001,005,007", *box, "--step", 300, "-o", "m.npz").exit_code == 0
    terms = ("--model", "m.npz", "--policy", "utility:2km", "--epsilon", 1)
    assert run("release", people, "--users", "006", *terms, "-o", "r.gpkg").exit_code == 0
    drawn = ("--model", "m.npz", "--policy", "utility:2km")
    done = run("show", "r.gpkg", *drawn, "--true", people, "--users", "006", "-o", "PRIVATE-map.html")
    assert done.exit_code == 0, done.stderr
    page = (tmp_path / "PRIVATE-map.html").read_text()
    assert len(page.encode()) < 3_000_000
    told = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    names = [name for name, *_ in told["basemap"]["names"]]
    assert "Beijing" in names
    assert {"released", "estimate (posterior mean)", "true places (private)"} <= {one["name"] for one in told["layers"]}
    assert "A release hides between places at most 2 km apart." in page
    assert run("show", "r.gpkg", *drawn, "-o", "map.png").exit_code == 0
    assert (tmp_path / "map.png").stat().st_size > 20_000
