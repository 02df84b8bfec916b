"""Tests of curves: many timesteps are bands with all extremes, few are lines."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm.errors import InvalidInputError
from dphmm.leakage import compute_leakage
from dphmm.plots import draw_leakage, draw_leakage_budgets, draw_steps
from dphmm.plots.canvas import BANDS, BANDS_BELOW_MAXIMA, BLUE, MAX_STEPS, create_figure, save
from tests.sizes import mark_slow


@pytest.fixture
def ax():
    return create_figure()[1]


def test_few_steps_are_a_line_without_infinite_values(ax):
    values = np.array([1.0, np.inf, 3.0, np.nan])
    draw_steps(ax, [1, 2, 3, 4], values, BLUE, "loss", marker="o")
    (line,) = ax.lines
    np.testing.assert_array_equal(line.get_ydata(), [1.0, np.nan, 3.0, np.nan])
    assert (line.get_label(), line.get_marker()) == ("loss", "o")
    assert not ax.collections


def test_many_steps_are_median_quartiles_and_extremes(ax):
    count = 160 * 40
    assert count > MAX_STEPS
    values = np.random.default_rng(0).exponential(size=count)
    draw_steps(ax, np.arange(count), values, BLUE, "loss")
    pieces = values.reshape(160, 40)
    (line,) = ax.lines
    np.testing.assert_allclose(line.get_ydata(), np.median(pieces, axis=1))
    assert line.get_label() == "loss"
    draw_steps(ax, np.arange(count), values + 1, BLUE, "other")
    assert sorted(ax.get_legend_handles_labels()[1]) == sorted(["loss", "other", BANDS])
    outer, inner = ax.collections[:2]
    for band, low, high in (
        (outer, pieces.min(axis=1), pieces.max(axis=1)),
        (inner, *np.quantile(pieces, (0.25, 0.75), axis=1)),
    ):
        plotted = band.get_paths()[0].vertices[:, 1]
        assert set(np.round(low, 12)) | set(np.round(high, 12)) <= set(np.round(plotted, 12))
    assert outer.get_alpha() < inner.get_alpha()


def test_line_of_many_bounds_is_their_maximum(ax):
    values = np.random.default_rng(0).exponential(size=160 * 40)
    draw_steps(ax, np.arange(len(values)), values, BLUE, "loss", is_bound=True)
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), values.reshape(160, 40).max(axis=1))
    assert sorted(ax.get_legend_handles_labels()[1]) == sorted(["loss", BANDS_BELOW_MAXIMA])


def test_band_accepts_times_and_gaps(ax):
    times = np.datetime64("2024-03-07", "us") + np.arange(5000) * np.timedelta64(1, "m")
    values = np.where(np.arange(5000) < 2500, np.nan, 2.0)
    draw_steps(ax, times, values, BLUE, "loss")
    (line,) = ax.lines
    assert line.get_xdata()[0] >= times[2500]
    assert set(line.get_ydata()) == {2.0}


def test_values_of_wrong_length_raise(ax):
    with pytest.raises(InvalidInputError, match="values must be one per step"):
        draw_steps(ax, [1, 2], [1.0], BLUE, "a")


@pytest.mark.slow
@pytest.mark.parametrize(("count", "width"), [(20, 4.2), (20, 12.8), (5000, 4.2), mark_slow(5000, 12.8)])
def test_leakage_plots_fit_their_figure(count, width):
    matrix = [[0.8, 0.2], [0.1, 0.9]]
    rng = np.random.default_rng(1)
    budgets = rng.uniform(0.01, 0.2, count)
    leakage = compute_leakage(matrix, matrix, budgets)
    for draw in (
        lambda ax: draw_leakage(ax, leakage),
        lambda ax: draw_leakage_budgets(ax, matrix, matrix, budgets, 1.0),
    ):
        figure, ax = create_figure(width, 0.75 * width)
        draw(ax)
        figure.canvas.draw()
        box = ax.get_legend().get_window_extent()
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
        low, high = ax.get_ylim()
        assert low <= budgets.min()
        assert leakage.temporal.max() <= high
        assert bool(ax.collections) == (count > MAX_STEPS)


@pytest.mark.slow
def test_dollar_signs_in_names_are_no_formulas_but_powers_are(ax, tmp_path):
    from matplotlib.text import Text

    ax.plot([0, 1], [1, 1e6], label="$\\foo{$ of $x_1$")
    ax.set(yscale="log", title="$a$")
    ax.set_xticks([0, 1], ["$\\mathdefault{$", "b"])
    ax.legend()
    save(ax.figure, tmp_path / "names.png")
    parsed = {text.get_text(): text.get_parse_math() for text in ax.figure.findobj(Text) if "$" in text.get_text()}
    powers = {text for text in parsed if "10^{" in text}
    assert powers
    assert {text for text, is_formula in parsed.items() if is_formula} == powers
    assert len(parsed) == len(powers) + 3
