"""Landmark pictures: what is drawn are the numbers, and every function draws on a bare ``ax``."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm.landmarks import leakage, skip, uniform

matplotlib_figure = pytest.importorskip("matplotlib.figure")
plots = pytest.importorskip("dphmm.plots.landmarks")


@pytest.fixture
def ax():
    figure = matplotlib_figure.Figure()
    yield figure.add_subplot()
    figure.draw_without_rendering()


def test_bars_are_the_budgets_and_the_line_is_the_loss(ax):
    budget = uniform(range(5), [1, 2], 0.9)
    losses = leakage(range(5), [1, 2], budget.epsilons)
    plots.budget_and_loss(ax, budget, losses)
    bars = {bar.get_x() + bar.get_width() / 2: bar.get_height() for group in ax.containers for bar in group}
    assert bars == dict(zip(range(5), budget.epsilons, strict=True))
    assert [len(group) for group in ax.containers] == [3, 2]
    (right,) = [other for other in ax.figure.axes if other is not ax]
    curve, level = right.get_lines()
    np.testing.assert_array_equal(curve.get_ydata(), losses)
    assert set(level.get_ydata()) == {0.9}
    assert right.get_ylim()[1] > max(losses.max(), 0.9)


def test_stretches_of_landmarks_are_shaded_once(ax):
    plots.budget_and_loss(ax, skip(range(8), [0, 3, 4, 7], 1.0))
    spans = [patch for patch in ax.patches if patch.get_alpha() == 0.15]
    assert [(span.get_x(), span.get_x() + span.get_width()) for span in spans] == [(-0.5, 0.5), (2.5, 4.5), (6.5, 7.5)]


@pytest.mark.parametrize("size", [1, 3])
def test_instants_are_drawn_and_unbounded_losses_left_out(ax, size):
    times = np.datetime64("2024-03-07T09:00", "us") + np.arange(size) * np.timedelta64(5, "m")
    plots.budget_and_loss(ax, uniform(times, [], 1.0), np.full(size, np.inf))
    (right,) = [other for other in ax.figure.axes if other is not ax]
    assert np.isnan(right.get_lines()[0].get_ydata()).all()


def test_errors_are_drawn_by_percent(ax):
    plots.error_by_share(ax, [0, 0.5, 1], {"skip": [1, 2, np.nan], "other": [3, 3, 3]}, "MAE")
    first, second = ax.get_lines()
    assert first.get_xdata().tolist() == [0, 50, 100]
    assert second.get_ydata().tolist() == [3, 3, 3]
    assert ax.get_ylabel() == "MAE"
