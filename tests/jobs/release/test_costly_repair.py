"""Tests of announcements of costly repairs by release, batch, stream and audit."""

from __future__ import annotations

import csv
import json
import re

import numpy as np
import pytest

from dphmm import Grid, MarkovModel
from dphmm.space import LocalProjection
from tests import command_line

ISLAND = ("--model", "island.npz", "--policy", "centres:800m", "--epsilon", "1")


@pytest.fixture
def island(tmp_path, monkeypatch):
    """Return a folder with a model of a street of eight cells and one 4.5 km east of it."""
    monkeypatch.chdir(tmp_path)
    grid = _save_street("island.npz", [*range(8), 16])
    north, east = grid.latlon([2])[0]
    fixes = "".join(f"{u},2024-03-07T09:{k:02d}:00Z,{north},{east}\n" for u in "ab" for k in range(5))
    (tmp_path / "walk.csv").write_text("user,time,lat,lon\n" + fixes)
    return tmp_path


def _save_street(file, columns):
    """Save a uniform model of some cells of one row, and return its grid."""
    mask = np.isin(np.arange(17), columns)[None]
    grid = Grid(LocalProjection(45.0, -30.0), (0, 0), 0.5, 17, 1, mask)
    size = grid.size
    MarkovModel(np.full((size, size), 1 / size), np.full(size, 1 / size), grid, 60.0).save(file)
    return grid


def _check_sentence(text):
    match = re.search(
        r"the policy leaves state 8 \(.*?\) exposed, and the repair connects it with state 7 \(.*?\) at a distance of "
        r"([\d.]+) km: this raises the expected error of a release at every possible state from (\S+ k?m) to "
        r"(\S+ km) \(ε = 1\); connect the exposed state .* --delta",
        text,
    )
    assert match, text
    assert match[1] == "4.5"


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("release", "walk.csv", "-o", "o.csv"), ("batch", "walk.csv", "-o", "folder")])
def test_release_and_batch_announce_repair_with_edge_state_errors_and_remedy(island, arguments):
    result = command_line.run(*arguments, *ISLAND)
    assert result.exit_code == 0, result.stderr
    _check_sentence(result.stderr)


def test_announced_errors_are_those_of_the_released_file(island):
    result = command_line.run("release", "walk.csv", "-o", "o.csv", *ISLAND, "--mechanism", "k-norm", "--json")
    costly = json.loads(result.stdout)["costly_repair"]
    with open("o.csv") as file:
        (published,) = {float(row["expected_error_m"]) for row in csv.DictReader(file)}
    assert published == pytest.approx(1000 * costly["error"], rel=1e-6)
    # Without the island, the error is the one that is announced.
    (island / "island.npz").unlink()
    _save_street("island.npz", range(8))
    result = command_line.run("release", "walk.csv", "-o", "p.csv", *ISLAND, "--mechanism", "k-norm", "--json")
    assert json.loads(result.stdout)["costly_repair"] is None
    with open("p.csv") as file:
        (published,) = {float(row["expected_error_m"]) for row in csv.DictReader(file)}
    assert published == pytest.approx(1000 * costly["error_without"], rel=1e-6)


def test_stream_announces_repair_before_first_fix(island):
    result = command_line.run("release", *ISLAND, stdin="")
    assert result.exit_code == 0
    _check_sentence(result.stderr)


def test_announcement_does_not_depend_on_true_locations(island):
    texts = set()
    for state in (0, 3, 8):
        north, east = MarkovModel.load("island.npz").space.latlon([state])[0]
        (island / "one.csv").write_text(f"user,time,lat,lon\na,2024-03-07T09:00:00Z,{north},{east}\n")
        texts.add(command_line.run("release", "one.csv", "-o", "o.csv", "--overwrite", *ISLAND).stderr)
    assert len(texts) == 1


def test_audit_announces_repair_and_names_state_and_adversary(island):
    rows = "".join(f"{state},{1 / 3}\n" for state in (0, 4, 5))
    (island / "prior.csv").write_text("state,probability\n" + rows)
    result = command_line.run("audit", "policy", *ISLAND, {"adversary_prior": "prior.csv"})
    assert result.exit_code == 1
    _check_sentence(result.stderr)
    output = " ".join(result.stdout.split())
    assert "the policy without a repair leaves state '8' exposed." in output
    # State 8 and its partner 7 span 4.5 km, so the repaired noise protects state 0 among 4 and 5.
    assert "To the adversary with the provided prior, no state is exposed by a single release." in output


def test_audit_names_state_exposed_to_provided_prior_only(island):
    _save_street("street.npz", range(8))
    (island / "prior.csv").write_text("state,probability\n" + "".join(f"{state},{1 / 3}\n" for state in (0, 4, 5)))
    arguments = ("audit", "policy", "--model", "street.npz", "--policy", "centres:800m")
    result = command_line.run(*arguments, {"adversary_prior": "prior.csv"})
    assert result.exit_code == 1
    output = " ".join(result.stdout.split())
    assert "To the adversary with the provided prior, state '0' is exposed after the repair." in output
    assert "To an adversary who knows the policy and the constraint set, no state is exposed" in output
    assert output.split().count("provided") == 2  # in the sentence and in a heading
