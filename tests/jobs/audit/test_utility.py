"""Tests of utility audits against geodesics and a crowd with exact estimates."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from pyproj import Geod

from dphmm import MarkovModel, ReleaseSettings
from dphmm.audit.empirical_epsilon import clopper_pearson_interval
from dphmm.errors import ConfigurationError
from dphmm.jobs import UsesSettings, audit_utility, release
from dphmm.model.radius_factors import CalibratedRadii
from dphmm.space import Grid
from tests import command_line

GRID = Grid.over((45.0, 7.0, 45.02, 7.026), 0.5)
STEP = 600.0
SETTINGS = ReleaseSettings("utility:500m", 1.0)


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


def _read_rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_errors_and_radii_match_geodesics(town):
    folder, model, true = town
    audit_result, fixes = audit_utility(folder / "r.csv", model, str(true)), {}
    for row in _read_rows(true):
        fixes[row["user"], row["time"]] = float(row["longitude"]), float(row["latitude"])
    assert [user_result.user for user_result in audit_result.users] == ["u0", "u1", "u2", "u3"]
    shares = []
    for user_result in audit_result.users:
        rows = [row for row in _read_rows(folder / "r.csv") if row["user"] == user_result.user]
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
    fixes = {(row["user"], row["time"]): row for row in _read_rows(true)}
    released = _read_rows(folder / "r.csv")
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


@pytest.mark.slow
def test_order_and_repetition_of_rows_do_not_matter(town, tmp_path):
    """The last row of a timestep counts, so a row before it with another estimate does not."""
    folder, model, true = town
    rows = _read_rows(folder / "r.csv")
    # A rewound session has its first timesteps after later ones.
    orders = {"newest_first": rows[::-1], "repeated": rows + rows, "rewound": rows[30:] + rows[:30]}
    orders["corrected"] = [{**rows[0], "estimate_latitude": rows[0]["latitude"]}, *rows]
    reference = audit_utility(folder / "r.csv", model, str(true), uses=UsesSettings())
    for name, ordered in orders.items():
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            table = csv.DictWriter(file, rows[0])
            table.writeheader()
            table.writerows(ordered)
        audit = audit_utility(tmp_path / f"{name}.csv", model, str(true), uses=UsesSettings())
        by_user = {user["user"]: user for user in audit.to_dict()["users"]}
        assert by_user == {user["user"]: user for user in reference.to_dict()["users"]}, name
        assert audit.measures == reference.measures, name
        assert audit.uses.audit.monitoring_error.value == reference.uses.audit.monitoring_error.value, name
        assert audit.uses.audit.num_contacts == reference.uses.audit.num_contacts, name


def test_releases_without_true_data_raise(town, monkeypatch):
    folder, model, true = town
    incomplete = folder / "some.csv"
    incomplete.write_text("\n".join(true.read_text().splitlines()[:100]) + "\n")
    with pytest.raises(ConfigurationError, match="user u1"):
        audit_utility(folder / "r.csv", model, str(incomplete))
    monkeypatch.chdir(folder)
    done = command_line.run("audit", "utility", "r.csv", "--model", "m.npz")
    assert done.exit_code == 2
    assert "--true must be given" in done.output


def test_utility_command_warns_that_result_is_private(town, monkeypatch):
    folder, _, _ = town
    monkeypatch.chdir(folder)
    done = command_line.run("audit", "utility", "r.csv", "--model", "m.npz", "--true", "true.csv", "--json")
    assert done.exit_code == 0, done.output
    assert "Do not publish" in done.stderr
    output = json.loads(done.stdout)
    assert output["private"] is True
    assert {user["user"] for user in output["users"]} == {"u0", "u1", "u2", "u3"}


def _locate(rows, latitude, longitude):
    """Map (user, time) to the nearest cell of each row, by geodesic distance."""
    centres = GRID.latlon()
    states = {}
    for row in rows:
        point = float(row[longitude]), float(row[latitude])
        metres = [Geod(ellps="WGS84").inv(*point, c[1], c[0])[2] for c in centres]
        states[row["user"], row["time"]] = int(np.argmin(metres))
    return states


def test_uses_match_plain_loops_over_the_files(town, tmp_path):
    """User u3 lacks the first three hours, at which the user neither counts nor meets another."""
    folder, model, true = town
    is_late = lambda row: row["user"] != "u3" or row["time"] >= "2024-03-04T03"  # noqa: E731
    for source in (true, folder / "r.csv"):
        rows = [row for row in _read_rows(source) if is_late(row)]
        with (tmp_path / source.name).open("w", newline="") as file:
            table = csv.DictWriter(file, rows[0])
            table.writeheader()
            table.writerows(rows)
    settings = UsesSettings(area_cells=2, transmission=0.5, infectious_hours=2)
    uses = audit_utility(tmp_path / "r.csv", model, str(tmp_path / true.name), uses=settings).uses
    actual = _locate(_read_rows(tmp_path / true.name), "latitude", "longitude")
    sent = _locate(_read_rows(tmp_path / "r.csv"), "estimate_latitude", "estimate_longitude")
    assert actual.keys() == sent.keys()
    # Monitoring: user-timesteps of each area of 2 × 2 cells and hour.
    counts = {}
    for states, sign in ((actual, -1), (sent, 1)):
        for (_, time), state in states.items():
            key = time[:13], *(GRID.lattice[state] // 2)
            counts[key] = counts.get(key, 0) + sign
    assert uses.audit.monitoring_error.value == pytest.approx(sum(map(abs, counts.values())) / len(actual))
    # Contact tracing: pairs of users in one cell at one time.
    contacts = []
    for states in (actual, sent):
        keys = sorted(states)
        contacts.append({(a, b) for a in keys for b in keys if a < b and a[1] == b[1] and states[a] == states[b]})
    both = len(contacts[0] & contacts[1])
    assert uses.audit.num_contacts == len(contacts[0]) > 0
    assert uses.audit.tracing_recall.value == pytest.approx(both / len(contacts[0]))
    assert uses.audit.tracing_precision.value == pytest.approx(both / len(contacts[1]))
    # Epidemic analysis: windows of 12 timesteps, in which 6 contacts infect with the probability of an hour.
    times = sorted({time for _, time in actual})
    numbers = []
    for pairs in contacts:
        number = 0.0
        for window in (times[start : start + 12] for start in range(len(times) - 11)):
            for first, second in ((f"u{i}", f"u{j}") for i in range(4) for j in range(i)):
                met = sum({a[0], b[0]} == {first, second} and a[1] in window for a, b in pairs)
                number += 2 * (1 - 0.5 ** (met / 6))
        numbers.append(number / 4 / (len(times) - 11))
    measured = uses.audit.reproduction_number, uses.audit.released_reproduction_number
    assert measured == pytest.approx(numbers)
    assert uses.audit.reproduction_error.value == pytest.approx(numbers[1] / numbers[0] - 1)


def test_uses_of_one_user_raise(town, monkeypatch):
    folder, model, true = town
    rows = _read_rows(folder / "r.csv")
    with (folder / "one.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(row for row in rows if row["user"] == "u0")
    with pytest.raises(ConfigurationError, match="uses must have at least two released users, got 1"):
        audit_utility(folder / "one.csv", model, str(true), uses=UsesSettings())
    monkeypatch.chdir(folder)
    (folder / "s.toml").write_text("transmission = 1.5\n")
    arguments = ["audit", "utility", "r.csv", "--model", "m.npz", "--true", "true.csv", "--uses"]
    done = command_line.run(*arguments, "--settings", "s.toml")
    assert done.exit_code == 2
    assert "key 'transmission' must be in [0, 1], got 1.5" in done.output


def test_uses_command_prints_and_exports_the_table(town, monkeypatch):
    folder, model, true = town
    monkeypatch.chdir(folder)
    arguments = ["audit", "utility", "r.csv", "--model", "m.npz", "--true", "true.csv", "--uses"]
    output = json.loads(command_line.run(*arguments, "--json").stdout)["uses"]
    audit = audit_utility(folder / "r.csv", model, str(true), uses=UsesSettings()).uses.audit
    assert output["monitoring_error"] == audit.monitoring_error.to_dict()
    # The releases cover ten hours, so users are infectious for ten of the default 24.
    assert (output["infectious_hours"], output["transmission_per_hour"]) == (10, 0.05)
    printed = command_line.run(*arguments).stdout
    low, high = (f"{100 * end:.0f}" for end in (audit.tracing_recall.low, audit.tracing_recall.high))
    assert f"{100 * audit.tracing_recall.value:.0f} % ({low} to {high})" in printed
