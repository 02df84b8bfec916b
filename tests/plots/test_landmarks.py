"""Tests of landmark plots: they show the values and need only an ``ax``."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm.landmarks import leakage, skip_scheme, uniform_scheme
from tests.sizes import mark_slow

collections = pytest.importorskip("matplotlib.collections")
LineCollection, PolyCollection = collections.LineCollection, collections.PolyCollection
FigureCanvasAgg = pytest.importorskip("matplotlib.backends.backend_agg").FigureCanvasAgg
matplotlib_figure = pytest.importorskip("matplotlib.figure")
plots = pytest.importorskip("dphmm.plots.landmarks")


@pytest.fixture
def ax():
    figure = matplotlib_figure.Figure()
    yield figure.add_subplot()
    figure.draw_without_rendering()


def test_bars_are_budgets_and_line_is_loss(ax):
    budget = uniform_scheme(range(5), [1, 2], 0.9)
    losses = leakage(range(5), [1, 2], budget.epsilons)
    plots.draw_landmark_budget(ax, budget, losses)
    bars = {bar.get_x() + bar.get_width() / 2: bar.get_height() for group in ax.containers for bar in group}
    assert bars == dict(zip(range(5), budget.epsilons, strict=True))
    assert [len(group) for group in ax.containers] == [3, 2]
    (right,) = [other for other in ax.figure.axes if other is not ax]
    curve, level = right.get_lines()
    np.testing.assert_array_equal(curve.get_ydata(), losses)
    assert set(level.get_ydata()) == {0.9}
    assert right.get_ylim()[1] > max(losses.max(), 0.9)


def test_plot_without_losses_has_one_scale(ax):
    plots.draw_landmark_budget(ax, uniform_scheme(range(5), [1, 2], 0.9))
    assert ax.figure.axes == [ax]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["ε, regular", "ε, landmark"]


def test_consecutive_landmarks_are_shaded_once(ax):
    plots.draw_landmark_budget(ax, skip_scheme(range(8), [0, 3, 4, 7], 1.0))
    spans = [patch for patch in ax.patches if patch.get_alpha() == 0.15]
    assert [(span.get_x(), span.get_x() + span.get_width()) for span in spans] == [(-0.5, 0.5), (2.5, 4.5), (6.5, 7.5)]


@pytest.mark.parametrize("size", [1, 3])
def test_instants_are_plotted_and_unbounded_losses_omitted(ax, size):
    times = np.datetime64("2024-03-07T09:00", "us") + np.arange(size) * np.timedelta64(5, "m")
    plots.draw_landmark_budget(ax, uniform_scheme(times, [], 1.0), np.full(size, np.inf))
    (right,) = [other for other in ax.figure.axes if other is not ax]
    assert np.isnan(right.get_lines()[0].get_ydata()).all()


def test_dates_contain_year_and_time_zone(ax):
    times = np.datetime64("2024-03-06T20:00", "us") + np.arange(100) * np.timedelta64(5, "m")
    plots.draw_landmark_budget(ax, uniform_scheme(times, [times[3]], 1.0))
    ax.figure.draw_without_rendering()
    assert ax.get_xlabel() == "time (UTC)"
    assert ax.xaxis.get_offset_text().get_text().startswith("2024-Mar")


@pytest.mark.parametrize("count", [60, 400])
def test_many_landmarks_are_needles_and_losses_a_band(ax, count):
    times = np.datetime64("2024-03-07T00:00", "us") + np.arange(8 * count) * np.timedelta64(5, "m")
    marked = times[::8]
    budget = uniform_scheme(times, marked, 5.0)
    losses = leakage(times, marked, budget.epsilons) + np.linspace(0, 1, len(times))
    plots.draw_landmark_budget(ax, budget, losses)
    (heads,) = ax.get_lines()
    assert heads.get_xdata().tolist() == marked.tolist()
    assert heads.get_ydata().tolist() == budget.epsilons[::8].tolist()
    needles, area = (
        next(c for c in ax.collections if isinstance(c, kind)) for kind in (LineCollection, PolyCollection)
    )
    assert len(needles.get_segments()) == count
    assert area.get_paths()[0].vertices[:, 1].max() == budget.epsilons.max()
    assert not ax.patches
    (right,) = [other for other in ax.figure.axes if other is not ax]
    band = right.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == (losses.min(), losses.max())
    curve = right.get_lines()[0].get_ydata()
    assert ((curve >= losses.min()) & (curve <= losses.max())).all()


def test_gap_in_times_splits_area(ax):
    times = np.append(np.arange(100), np.arange(400, 500))
    plots.draw_landmark_budget(ax, uniform_scheme(times, [], 1.0))
    (area,) = [collection for collection in ax.collections if isinstance(collection, PolyCollection)]
    parts = [path.vertices[:, 0] for path in area.get_paths()]
    assert [(part.min(), part.max()) for part in parts] == [(0, 100), (400, 500)]


@pytest.mark.parametrize("size", [4, 60])
def test_line_of_losses_does_not_cross_gap_in_times(ax, size):
    times = np.append(np.arange(size), 1000 + np.arange(size))
    budget = uniform_scheme(times, [size - 1, 1000], 1.0)
    losses = leakage(times, [size - 1, 1000], budget.epsilons)
    plots.draw_landmark_budget(ax, budget, losses)
    (right,) = [other for other in ax.figure.axes if other is not ax]
    curve = right.get_lines()[0]
    drawn = curve.get_ydata()
    np.testing.assert_array_equal(drawn[np.isfinite(drawn)], losses)
    assert np.flatnonzero(np.isnan(drawn)).tolist() == [size]


def test_bands_of_losses_do_not_cross_gap_in_times(ax):
    times = np.concatenate([np.arange(400), 5000 + np.arange(7), [8000], 10_000 + np.arange(400)])
    plots.draw_landmark_budget(ax, uniform_scheme(times, [3], 1.0), np.linspace(1, 2, len(times)))
    (right,) = [other for other in ax.figure.axes if other is not ax]
    curve = right.get_lines()[0]
    at, drawn = curve.get_xdata(), curve.get_ydata()
    lines = [part[np.isfinite(drawn[part])] for part in np.split(np.arange(len(at)), np.flatnonzero(np.isnan(drawn)))]
    assert [(at[line].min(), at[line].max()) for line in lines] == [
        (0, 399),
        (5000, 5006),
        (8000, 8000),
        (10_000, 10_399),
    ]
    for band in right.collections:
        paths = [path.vertices[:, 0] for path in band.get_paths()]
        assert [(path.min(), path.max()) for path in paths] == [(0, 399), (5000, 5006), (8000, 8000), (10_000, 10_399)]
    assert [at[index] for index in curve.get_markevery()] == [8000]


def test_shade_of_landmarks_does_not_cross_gap_in_times(ax):
    plots.draw_landmark_budget(ax, skip_scheme([0, 1, 2, 100, 101, 102], [2, 100], 1.0))
    spans = [patch for patch in ax.patches if patch.get_alpha() == 0.15]
    assert [(span.get_x(), span.get_x() + span.get_width()) for span in spans] == [(1.5, 2.5), (99.5, 100.5)]


@pytest.mark.parametrize("size", [20, 200])
def test_budgets_of_timestamps_in_a_long_gap_are_visible(ax, size):
    times = np.append(np.arange(size), 10_000_000)
    plots.draw_landmark_budget(ax, uniform_scheme(times, [], 1.0))
    if size == 20:
        shapes = list(ax.containers[0])
        assert all(bar.get_linewidth() > 0 and bar.get_edgecolor()[3] > 0 for bar in shapes)
    else:
        shapes = [collection for collection in ax.collections if isinstance(collection, PolyCollection)]
        assert all(area.get_linewidth()[0] > 0 for area in shapes)
    assert shapes


@pytest.mark.parametrize(("width", "height"), [(4.2, 3.4), mark_slow(7.0, 4.2), (12.0, 5.0)])
@pytest.mark.parametrize("count", [3, 60])
def test_plot_elements_lie_within_figure(width, height, count):
    times = np.datetime64("2024-03-07T00:00", "us") + np.arange(8 * count) * np.timedelta64(5, "m")
    budget = uniform_scheme(times, times[::8], 5.0)
    figure = matplotlib_figure.Figure(figsize=(width, height), layout="constrained")
    ax = figure.add_subplot()
    plots.draw_landmark_budget(ax, budget, leakage(times, times[::8], budget.epsilons))
    FigureCanvasAgg(figure).draw()
    assert all(ax_of_figure.has_data() for ax_of_figure in figure.axes)
    legend = ax.get_legend().get_window_extent()
    labels = [
        label.get_window_extent()
        for ax_of_figure in figure.axes
        for label in (ax_of_figure.xaxis.label, ax_of_figure.yaxis.label)
    ]
    for box in (legend, *labels):
        assert box.x0 >= -1
        assert box.x1 <= figure.bbox.x1 + 1
        assert box.y0 >= -1
        assert box.y1 <= figure.bbox.y1 + 1
