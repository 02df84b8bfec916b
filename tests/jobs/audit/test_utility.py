"""Tests of utility audits against geodesics and a crowd with exact estimates."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from pyproj import Geod

from dphmm import MarkovModel, ReleaseSettings
from dphmm.audit.empirical import clopper_pearson_interval
from dphmm.cli import main
from dphmm.errors import ConfigurationError
from dphmm.jobs import audit_utility, release
from dphmm.model.point_estimate import CalibratedRadii
from dphmm.space import Grid

GRID = Grid.over((45.0, 7.0, 45.02, 7.026), 0.5)
STEP, SETTINGS = 600.0, ReleaseSettings("utility:500m", 1.0)


@pytest.fixture(scope="module")
def town(tmp_path_factory):
    """Return four users who mostly stay, anywhere in their cells, and their releases.

    The model contains calibrated radii. The seeds are 1 for the users and 2 for the releases.
    """
    folder = tmp_path_factory.mktemp("town")
    moves = 0.8 * np.eye(GRID.size) + 0.2 / GRID.size
    model = MarkovModel(moves, np.full(GRID.size, 1 / GRID.size), states=GRID, step_seconds=STEP)
    model = model.with_calibrated_radii(CalibratedRadii((1.5, 1.5, 1.5, 1.5, 1.5), 20))
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


def test_errors_and_radii_match_geodesics(town):
    folder, model, true = town
    audit_result, fixes = audit_utility(folder / "r.csv", model, str(true)), {}
    for row in _rows(true):
        fixes[row["user"], row["time"]] = float(row["longitude"]), float(row["latitude"])
    assert [user_result.user for user_result in audit_result.users] == ["u0", "u1", "u2", "u3"]
    shares = []
    for user_result in audit_result.users:
        rows = [row for row in _rows(folder / "r.csv") if row["user"] == user_result.user]
        off = [
            Geod(ellps="WGS84").inv(
                float(row["estimate_longitude"]), float(row["estimate_latitude"]), *fixes[user_result.user, row["time"]]
            )[2]
            for row in rows
        ]
        np.testing.assert_allclose(1000 * user_result.errors_km, off, rtol=2e-3)
        shares.append(np.mean(np.array(off) <= [float(row["calibrated_radius_90_m"]) for row in rows]))
        assert user_result.coverage == pytest.approx(shares[-1])
        stated = np.mean([float(row["estimate_error_m"]) for row in rows])
        values = user_result.to_dict()
        assert (values["mean_stated_error_m"], values["mean_error_m"]) == pytest.approx(
            (stated, np.mean(off)), rel=2e-3
        )
    means = [(user.to_dict()["mean_stated_error_m"], user.to_dict()["mean_error_m"]) for user in audit_result.users]
    assert audit_result.error_correlation == pytest.approx(np.corrcoef(np.array(means).T)[0, 1])
    coverage, share = audit_result.mean_coverage, audit_result.mostly_covered
    assert coverage is not None
    assert coverage[1] <= coverage[0] <= coverage[2]
    assert coverage[0] == pytest.approx(np.mean(shares))
    num_covered = int(np.sum(np.array(shares) >= 0.8))
    assert share == (num_covered / 4, *clopper_pearson_interval(num_covered, 4))


def test_exact_estimates_have_zero_error_and_reversed_ones_do_not(town):
    """The second variant reverses each user's locations in time."""
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
                estimate = {"estimate_latitude": fix["latitude"], "estimate_longitude": fix["longitude"]}
                table.writerow({**row, **estimate})
    same, turned_round = (audit_utility(folder / f"{name}.csv", model, str(true)) for name in ("same", "turned"))
    assert same.mean_error_km == pytest.approx(0, abs=1e-9)
    best = {name: float(name in ("top_places", "rank_correlation")) for name in same.measures}
    assert dict(same.measures) == pytest.approx(best)
    assert turned_round.mean_error_km > 0.3
    assert turned_round.measures["visits"] == pytest.approx(0)  # same visit counts at other times
    assert turned_round.measures["moves"] > 0.1


def test_releases_without_true_data_raise(town, monkeypatch):
    folder, model, true = town
    incomplete = folder / "some.csv"
    incomplete.write_text("\n".join(true.read_text().splitlines()[:100]) + "\n")
    with pytest.raises(ConfigurationError, match="user u1"):
        audit_utility(folder / "r.csv", model, str(incomplete))
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(main, ["audit", "utility", "r.csv", "--model", "m.npz"])
    assert done.exit_code == 2
    assert "--true must be given" in done.output


def test_utility_command_warns_that_result_is_private(town, monkeypatch):
    folder, _, _ = town
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(main, ["audit", "utility", "r.csv", "--model", "m.npz", "--true", "true.csv", "--json"])
    assert done.exit_code == 0, done.output
    assert "Do not publish" in done.stderr
    output = json.loads(done.stdout)
    assert output["private"] is True
    assert {user["user"] for user in output["users"]} == {"u0", "u1", "u2", "u3"}
