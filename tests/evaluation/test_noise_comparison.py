"""Tests of the comparison of noise types against engines run by hand."""

from __future__ import annotations

import csv
from dataclasses import replace

import numpy as np
import pytest

from dphmm import MarkovModel, PolicyGraph, ReleaseSettings
from dphmm.errors import ConfigurationError
from dphmm.evaluation.noise_comparison import NOISES, compare_noise, compare_noise_on_data
from dphmm.jobs.batch.workers import Processes
from dphmm.model import smooth
from dphmm.space import Grid

SPACE = Grid.over((44.99, -30.02, 45.01, -29.99), cell_km=0.5)
SIZE = SPACE.size
MODEL = MarkovModel(np.full((SIZE, SIZE), 1 / SIZE), np.full(SIZE, 1 / SIZE), SPACE, 60)
PATHS = np.random.default_rng(0).integers(0, SIZE, (2, 4))


@pytest.mark.slow
def test_rows_match_engine_by_hand():
    settings = ReleaseSettings(policy="utility:600m", epsilon=1.5)
    rows = compare_noise(MODEL, settings, PATHS, rng=3)
    row = next(row for row in rows if row.noise == "optimal" and row.equal == "edge")
    engine = replace(settings, mechanism="optimal").engine(MODEL, 3)
    points = engine.measurements.points
    released = []
    hindsight = []
    for path in PATHS:
        engine.restart()
        logs = []
        for state in path.tolist():
            step = engine.prepare()
            record = engine.draw(step, state)
            released.append(np.square(record.released - points[state]).sum())
            logs.append(engine.log_likelihood(step, record.released))
        means = smooth(MODEL.transition, MODEL.initial, np.array(logs)) @ points
        hindsight += np.square(means - points[path]).sum(axis=1).tolist()
    assert row.released == pytest.approx(np.mean(released) ** 0.5)
    assert row.smoothed == pytest.approx(np.mean(hindsight) ** 0.5)
    assert row.releases == 8


@pytest.mark.slow
def test_equal_guarantees_are_equal_for_most_distinguished_states():
    rows = compare_noise(MODEL, ReleaseSettings(policy="utility:600m"), PATHS[:1, :2])
    assert [row.noise for row in rows if row.equal == "edge"] == [name for name, _, _ in NOISES]
    reference = rows[0].epsilon * rows[0].factor
    at = [row for row in rows if row.equal == "any two"]
    assert {row.noise for row in at} >= {"planar Laplace, one disc", "graph-exponential", "optimal"}
    assert [row.epsilon * row.factor for row in at] == pytest.approx([reference] * len(at))


def test_components_have_no_guarantee_between_them_and_no_row():
    policy = PolicyGraph.from_groups(SIZE, [np.arange(SIZE // 2), np.arange(SIZE // 2, SIZE)])
    rows = compare_noise(MODEL, ReleaseSettings(), PATHS[:1, :2], policy=policy)
    factors = {row.noise: row.factor for row in rows if row.equal == "edge"}
    assert factors["optimal"] == factors["K-norm, by component"] == np.inf
    assert np.isfinite(factors["K-norm, one hull"])
    assert not {row.noise for row in rows if row.equal == "any two"} & {"optimal", "K-norm, by component"}


def test_oversized_component_is_noted_instead_of_figures():
    rows = compare_noise(MODEL, ReleaseSettings(policy="utility:600m", optimal_max_states=5), PATHS[:1, :2])
    row = next(row for row in rows if row.noise == "optimal")
    assert f"at most 5 states for mechanism 'optimal', got {SIZE}" in row.note
    assert row.releases == 0


@pytest.mark.slow
def test_data_set_is_compared_and_table_is_private(config, tmp_path):
    pytest.importorskip("pyarrow")
    small_config = config.model_copy(update={"policies": ("utility",), "sequences": 2, "length": 4, "cell_km": 1.0})
    comparison = compare_noise_on_data(small_config, tmp_path / "run")
    on_workers = compare_noise_on_data(small_config, tmp_path / "workers", engine=Processes(2))
    assert repr(on_workers) == repr(comparison)  # NaN is not equal to itself
    (path,) = (tmp_path / "run").glob("PRIVATE-noise*")
    assert path.stat().st_mode & 0o77 == 0
    with path.open(newline="") as stream:
        assert sum(1 for _ in csv.reader(stream)) == 1 + sum(map(len, comparison.values()))
    with pytest.raises(ConfigurationError, match="delta"):
        compare_noise_on_data(small_config.model_copy(update={"policies": ("utility", "complete")}), tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
def test_figure_has_one_panel_per_comparison():
    pytest.importorskip("matplotlib")
    from dphmm.plots.evaluation import draw_noise_figure

    rows = compare_noise(MODEL, ReleaseSettings(policy="utility:600m"), PATHS[:1, :2])
    figure = draw_noise_figure(rows, "utility:600m")
    assert [len(ax.get_yticks()) for ax in figure.axes] == [
        sum(row.equal == equal for row in rows) for equal in ("edge", "any two")
    ]
