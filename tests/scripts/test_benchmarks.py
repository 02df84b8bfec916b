"""Tests that every benchmark runs and prints measured values."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from dphmm import MarkovModel
from dphmm.model import Observations, filter, learn_from_releases, most_probable_path, smooth
from scripts.benchmarks import peers
from scripts.benchmarks.__main__ import STAGES, main
from scripts.benchmarks.frontier import compute_interval, interpolate_error

pytestmark = pytest.mark.slow  # a tool of the project, not a feature


@pytest.mark.parametrize("stage", STAGES)
def test_small_run_prints_ratios_and_writes_its_output(stage, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main([stage, "--small", "--json", "found.json"])
    results = json.loads((tmp_path / "found.json").read_text())
    measured = [row for row in results["rows"] if "skipped" not in row]
    ratios = [other["ratio"] for row in measured for other in row["comparisons"].values()]
    assert results["stage"] == stage
    assert results["small"]
    assert results["machine"]["processors"] >= 1
    assert measured
    assert ratios
    assert all(math.isfinite(row["value"]) for row in measured)
    assert all(ratio > 0 for ratio in ratios)
    printed = capsys.readouterr().out
    assert all(row["what"] in printed for row in results["rows"])


@pytest.mark.parametrize(
    ("stage", "module", "names"),
    [("audit", "audit", ["hmmlearn"]), ("limits", "peers", ["hmmlearn at 40 states", "dynamax at 40 states"])],
)
def test_missing_peer_is_named(stage, module, names, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(f"scripts.benchmarks.{module}.find_spec", lambda _: None)
    for other in (
        "time_spread_masses",
        "time_changing_sets",
        "time_delta_location_set",
        "time_draws",
        "time_gap",
        "time_sparse_filter",
        "measure_users",
        "time_yearly_gap",
        "time_nights",
    ):
        monkeypatch.setattr(f"scripts.benchmarks.limits.{other}", lambda *_: None)
    main([stage, "--small"])
    printed = capsys.readouterr().out
    assert all(f"{name}: skipped, not installed" in printed for name in names)


@pytest.mark.parametrize("name", peers.NAMES)
def test_peer_results_match_package(name):
    pytest.importorskip(name)
    rng = np.random.default_rng(0)
    matrix = rng.dirichlet(np.ones(6), 6)
    start = np.full(6, 1 / 6)
    rows = rng.normal(0, 2, (30, 6))
    work = peers.build_works(name, start, matrix, rows)
    learned = learn_from_releases(MarkovModel(matrix, start), [Observations(rows)], 1).model
    np.testing.assert_allclose(np.asarray(work["filter"]()[1]), filter(matrix, start, rows), atol=1e-12)
    np.testing.assert_allclose(np.asarray(work["smoother"]()), smooth(matrix, start, rows), atol=1e-12)
    path = work["path"]()
    np.testing.assert_array_equal(path[1] if name == "hmmlearn" else path, most_probable_path(matrix, start, rows))
    first, moves = work["learning"]()
    np.testing.assert_allclose(np.asarray(first), learned.initial, atol=1e-12)
    np.testing.assert_allclose(np.asarray(moves), learned.transition.toarray(), atol=1e-12)


def test_at_level_interpolates_logarithmically_and_is_nan_outside():
    settings = np.array(
        [[400.0, 100.0], [1600.0, 900.0], [200.0, 50.0]]
    )  # errors of the filtered adversary and of an adversary with habit models
    assert interpolate_error(settings, 300.0) == pytest.approx(800.0)
    assert interpolate_error(settings, 100.0) == pytest.approx(400.0)
    assert np.isnan(interpolate_error(settings, 49.0))
    assert np.isnan(interpolate_error(settings, 901.0))


def test_interval_contains_middle_of_resamples_and_is_nan_if_many_are_nan():
    values = np.arange(1000.0)
    assert compute_interval(values) == pytest.approx((25, 974), abs=1)
    assert compute_interval(np.append(values, np.full(40, np.nan))) == compute_interval(values)
    assert np.isnan(compute_interval(np.append(values, np.full(60, np.nan)))).all()
