"""What releases are good for: against geodesics from the fixes, and a crowd whose estimates are the truth."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from pyproj import Geod

from dphmm import MarkovModel, ReleaseSettings
from dphmm.cli import main
from dphmm.errors import ConfigurationError
from dphmm.jobs import audit_utility, release
from dphmm.jobs.identity import share_interval
from dphmm.model.point_estimate import HeldRadii
from dphmm.space import Grid

GRID = Grid.over((45.0, 7.0, 45.02, 7.026), 0.5)
STEP, SETTINGS = 600.0, ReleaseSettings("utility:500m", 1.0)


@pytest.fixture(scope="module")
def town(tmp_path_factory):
    """Four people who stay for the most part, anywhere in their cells (seed 1), released with circles (seed 2)."""
    folder = tmp_path_factory.mktemp("town")
    moves = 0.8 * np.eye(GRID.size) + 0.2 / GRID.size
    model = MarkovModel(moves, np.full(GRID.size, 1 / GRID.size), states=GRID, step_seconds=STEP)
    model = model.holding(HeldRadii((1.5, 1.5, 1.5, 1.5, 1.5), 20))
    rng, lines = np.random.default_rng(1), ["user,time,latitude,longitude"]
    for user in range(4):
        at = rng.integers(GRID.size)
        for step in range(60):
            at = rng.integers(GRID.size) if rng.random() < 0.2 else at
            latitude, longitude = GRID.latlon([at])[0] + rng.uniform(-0.002, 0.002, 2)
            time = np.datetime64("2024-03-04T00:00:00") + step * np.timedelta64(600, "s")
            lines.append(f"u{user},{time}Z,{latitude},{longitude}")
    true = folder / "true.csv"
    true.write_text("\n".join(lines) + "\n")
    release(str(true), model, SETTINGS, folder / "r.csv", rng=2)
    model.save(folder / "m.npz")
    return folder, model, true


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_errors_and_circles_are_those_of_geodesics_between_estimates_and_fixes(town):
    folder, model, true = town
    found, fixes = audit_utility(folder / "r.csv", model, str(true)), {}
    for row in _rows(true):
        fixes[row["user"], row["time"]] = float(row["longitude"]), float(row["latitude"])
    assert [one.user for one in found.people] == ["u0", "u1", "u2", "u3"]
    shares = []
    for one in found.people:
        rows = [row for row in _rows(folder / "r.csv") if row["user"] == one.user]
        off = [
            Geod(ellps="WGS84").inv(
                float(row["estimate_longitude"]), float(row["estimate_latitude"]), *fixes[one.user, row["time"]]
            )[2]
            for row in rows
        ]
        np.testing.assert_allclose(1000 * one.off, off, rtol=2e-3)
        shares.append(np.mean(np.array(off) <= [float(row["radius_90_m"]) for row in rows]))
        assert one.held == pytest.approx(shares[-1])
    coverage, mostly = found.coverage, found.mostly_held
    assert coverage is not None
    assert coverage[1] <= coverage[0] <= coverage[2]
    assert coverage[0] == pytest.approx(np.mean(shares))
    held = int(np.sum(np.array(shares) >= 0.8))
    assert mostly == (held / 4, *share_interval(held, 4))


def test_estimates_that_are_the_truth_leave_the_crowd_as_it_is_and_others_do_not(town):
    """The twin has each person's places turned round in time."""
    folder, model, true = town
    fixes = {(row["user"], row["time"]): row for row in _rows(true)}
    released = _rows(folder / "r.csv")
    turned = [row for user in ("u0", "u1", "u2", "u3") for row in reversed([o for o in released if o["user"] == user])]
    for name, sources in (("same", released), ("turned", turned)):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            table = csv.DictWriter(file, released[0])
            table.writeheader()
            for row, source in zip(released, sources, strict=True):
                fix = fixes[source["user"], source["time"]]
                told = {"estimate_latitude": fix["latitude"], "estimate_longitude": fix["longitude"]}
                table.writerow({**row, **told})
    same, turned_round = (audit_utility(folder / f"{name}.csv", model, str(true)) for name in ("same", "turned"))
    assert same.error == pytest.approx(0, abs=1e-9)
    best = {name: float(name in ("top_places", "rank_correlation")) for name in same.measures}
    assert dict(same.measures) == pytest.approx(best)
    assert turned_round.error > 0.3
    assert turned_round.measures["visits"] == pytest.approx(0)  # the same places as often, at other times
    assert turned_round.measures["moves"] > 0.1


def test_releases_without_their_truth_are_refused_in_one_line(town, monkeypatch):
    folder, model, true = town
    some = folder / "some.csv"
    some.write_text("\n".join(true.read_text().splitlines()[:100]) + "\n")
    with pytest.raises(ConfigurationError, match="user u1: there is no true place at some release"):
        audit_utility(folder / "r.csv", model, str(some))
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(main, ["audit", "utility", "r.csv", "--model", "m.npz"])
    assert done.exit_code == 2
    assert "give --true" in done.output


def test_the_command_says_that_its_result_is_private(town, monkeypatch):
    folder, _, _ = town
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(main, ["audit", "utility", "r.csv", "--model", "m.npz", "--true", "true.csv", "--json"])
    assert done.exit_code == 0, done.output
    assert "keep it to yourself" in done.stderr
    said = json.loads(done.stdout)
    assert said["private"] is True
    assert {one["user"] for one in said["users"]} == {"u0", "u1", "u2", "u3"}
