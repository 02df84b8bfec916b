"""Tests of series and claims of the papers' figures."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dphmm.evaluation.figures import Panel, PaperFigure, Series
from dphmm.evaluation.figures.base import judge


def test_series_from_runs_has_students_interval():
    runs = np.random.default_rng(1).normal(5, 2, (7, 3))
    series = Series.from_runs("mean", [1, 2, 3], runs)
    expected = stats.t.interval(0.95, 6, loc=runs.mean(axis=0), scale=stats.sem(runs, axis=0))
    np.testing.assert_allclose([series.low, series.high], expected, rtol=1e-12)
    np.testing.assert_allclose(series.y, runs.mean(axis=0))


def test_series_from_one_run_has_no_interval():
    series = Series.from_runs("mean", [1, 2], [[3.0, 4.0]])
    assert series.y.tolist() == [3, 4]
    assert series.low is None
    assert series.high is None


@pytest.mark.parametrize(("holds", "verdict"), [(True, "holds"), (False, "does not hold"), (None, "not decided")])
def test_judge_returns_three_verdicts(holds, verdict):
    assert judge(holds) == verdict


def test_bold_and_point_series_are_plotted():
    pytest.importorskip("matplotlib")
    from dphmm.plots.evaluation import draw_figure

    x = np.arange(3.0)
    series = [Series("curve", x, x), Series("top", x, x, bold=True), Series("at", x, x, points=True)]
    drawing = draw_figure(PaperFigure("figure", "", [Panel("", "x", "y", series)]))
    curve, top, at = drawing.axes[0].get_lines()
    assert top.get_linewidth() > curve.get_linewidth()
    assert at.get_linestyle() == "None"
    assert at.get_marker() != "None"
