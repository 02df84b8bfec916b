"""Tests of leakage plots: they show the package's values and need only an ``ax``."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm.leakage import LossFunction, compute_leakage, exact_budgets, smooth, supremum, temporal_leakage

matplotlib_figure = pytest.importorskip("matplotlib.figure")
plots = pytest.importorskip("dphmm.plots.leakage")

ABSORBING = [[0.8, 0.2], [0.0, 1.0]]
FIGURE_4 = [[0.1, 0.2, 0.7], [0.3, 0.3, 0.4], [0.5, 0.3, 0.2]]


@pytest.fixture
def ax():
    figure = matplotlib_figure.Figure()
    yield figure.add_subplot()
    figure.draw_without_rendering()


def get_lines(ax):
    return {line.get_label(): line for line in ax.get_lines()}


@pytest.mark.slow
def test_leakage_over_time_plots_three_leakages(ax):
    leakage = compute_leakage(ABSORBING, ABSORBING, [0.1] * 10)
    plots.draw_leakage(ax, leakage)
    plotted = get_lines(ax)
    np.testing.assert_array_equal(plotted["TPL"].get_ydata(), leakage.temporal)
    np.testing.assert_array_equal(plotted["BPL"].get_ydata(), leakage.backward)
    np.testing.assert_array_equal(plotted["FPL"].get_ydata(), leakage.forward)
    np.testing.assert_array_equal(plotted["BPL"].get_xdata(), np.arange(1, 11))


@pytest.mark.parametrize("size", [100, 840])
def test_leakage_over_time_plots_largest_leakage_and_sparse_budgets(ax, size):
    budgets = np.zeros(size)
    budgets[[20, 50, size - 10]] = 1.0, 2.0, 3.0
    leakage = compute_leakage(ABSORBING, ABSORBING, budgets)
    plots.draw_leakage(ax, leakage)
    plotted = get_lines(ax)
    for label, values in (("TPL", leakage.temporal), ("BPL", leakage.backward), ("FPL", leakage.forward)):
        assert plotted[label].get_ydata().max() == values.max()
    np.testing.assert_array_equal(plotted["ε"].get_xydata(), [[21, 1.0], [51, 2.0], [size - 9, 3.0]])
    assert plotted["ε"].get_marker() == "o"


@pytest.mark.parametrize("size", [1, 3])
def test_few_times_have_integer_ticks_and_single_budget_has_marker(ax, size):
    budgets = [0.1] * size
    plots.draw_leakage_budgets(ax, ABSORBING, ABSORBING, budgets, 1.0)
    other = ax.figure.add_subplot()
    plots.draw_leakage(other, compute_leakage(ABSORBING, ABSORBING, budgets))
    for axes in (ax, other):
        assert all(tick == round(tick) for tick in axes.get_xticks())
    assert (get_lines(other)["ε"].get_marker() == "None") == (size > 1)


def test_many_budgets_and_their_leakage_are_plotted_by_maxima(ax):
    budgets = np.tile([0.001, 0.1], 500)
    budgets[500] = 1.0
    plots.draw_leakage_budgets(ax, ABSORBING, ABSORBING, budgets, 5.0)
    plotted = get_lines(ax)
    assert plotted["ε"].get_ydata().max() == 1.0
    assert plotted["TPL"].get_ydata().max() == temporal_leakage(ABSORBING, ABSORBING, budgets).max()


def test_loss_pieces_plot_envelope_of_all_pairs(ax):
    plots.draw_loss_function(ax, FIGURE_4, limit=4.0)
    plotted = ax.get_lines()
    envelope = get_lines(ax)["L(α)"].get_ydata()
    pairs = np.array([line.get_ydata() for line in plotted if line.get_label().startswith("_")])
    assert len(pairs) == 6
    np.testing.assert_allclose(pairs.max(axis=0), envelope, rtol=1e-12)
    np.testing.assert_array_equal(get_lines(ax)["start of a piece"].get_xdata(), LossFunction(FIGURE_4).starts[1:])


def test_loss_pieces_of_many_states_plot_only_the_function(ax):
    plots.draw_loss_function(ax, smooth(np.eye(40), 0.1))
    assert len(ax.get_lines()) == 1


@pytest.mark.parametrize(("epsilon", "bounded"), [(0.15, True), (0.23, False)])
def test_approach_plots_supremum_if_it_exists(ax, epsilon, bounded):
    plots.draw_supremum(ax, ABSORBING, epsilon, 50)
    labels = list(get_lines(ax))
    assert any("no supremum" in label for label in labels) != bounded
    if bounded:
        line = next(line for label, line in get_lines(ax).items() if label.startswith("supremum"))
        assert line.get_ydata()[0] == supremum(ABSORBING, epsilon)


def test_budgets_over_time_plot_bars_and_leakage(ax):
    pair = [[0.8, 0.2], [0.2, 0.8]], [[0.8, 0.2], [0.1, 0.9]]
    budgets = exact_budgets(*pair, 1.0, 8)
    plots.draw_leakage_budgets(ax, *pair, budgets, 1.0)
    np.testing.assert_allclose([bar.get_height() for bar in ax.patches], budgets)
    np.testing.assert_array_equal(get_lines(ax)["TPL"].get_ydata(), temporal_leakage(*pair, budgets))
