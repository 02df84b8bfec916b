"""Tests that plots fit a phone and a desktop: labels, axes and edges."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from dphmm import MarkovModel, ReleaseSettings, leakage
from dphmm.audit import EventAudit
from dphmm.evaluation.noise_comparison import NOISES, NoiseRow
from dphmm.events import Presence
from dphmm.jobs import CalibrationTargets, Data, calibrate, compare_users, learn, region
from dphmm.plots import (
    draw_calibration_figure,
    draw_event_probability,
    draw_leakage,
    draw_loss_function,
    draw_model_figure,
    draw_supremum,
    draw_trade_off,
)
from dphmm.plots.canvas import create_figure, set_power_ticks
from dphmm.plots.evaluation import draw_noise_figure, draw_noises
from dphmm.plots.model import draw_crowds_figure
from tests.sizes import mark_rest_slow

pytest.importorskip("matplotlib")

WIDTHS = (4.2, 12.8)
MATRIX = np.array([[0.8, 0.2, 0.0], [0.1, 0.6, 0.3], [0.1, 0.1, 0.8]])


def find_flaws(figure: Any) -> list[str]:
    """Return the visible flaws of a figure, as far as bounding boxes show them."""
    figure.canvas.draw()
    renderer, messages = figure.canvas.get_renderer(), []
    for ax in figure.axes:
        if not (ax.lines or ax.collections or ax.patches or ax.images):
            messages.append("axes are empty")
        legend = ax.get_legend()
        texts = [*ax.texts, ax.title, ax.xaxis.label, ax.yaxis.label, *(legend.get_texts() if legend else [])]
        for axis, side in ((ax.xaxis, 0), (ax.yaxis, 1)):
            labels = [label for label in axis.get_ticklabels() if label.get_visible() and label.get_text()]
            boxes = [label.get_window_extent(renderer) for label in labels]
            shown = [box for box in boxes if ax.bbox.padded(2).overlaps(box) or side == 0]
            ends = sorted((box.intervalx if side == 0 else box.intervaly).tolist() for box in shown)
            messages += [
                f"axis labels cross, axis {side}" for (_, end), (start, _) in pairwise(ends) if start < end - 1
            ]
        for text in texts:
            if text.get_visible() and text.get_text().strip():
                box = text.get_window_extent(renderer)
                page = figure.bbox.padded(1)
                if not (page.x0 <= box.x0 and box.x1 <= page.x1 and page.y0 <= box.y0 and box.y1 <= page.y1):
                    messages.append(f"{text.get_text()!r} runs off the picture")
    return messages


@pytest.fixture(scope="module")
def calibration():
    """Return a noise_scope with a row of budgets."""
    space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=1.0)
    model = learn(Data(("data/sample/geolife",), exclude_users=("000",)), space, step_seconds=600).model
    targets = CalibrationTargets(error=1.0)
    return calibrate(
        model,
        ReleaseSettings("utility:1km", 1.0),
        targets,
        horizon_seconds=1800,
        num_users=3,
        report_epsilons=(0.1, 0.5, 2),
        compare=["snap:1km", "snap:2km", "hourly:1"],
    )


def make_event_audit(length: int) -> EventAudit:
    log_odds = np.sin(np.arange(length))
    return EventAudit(
        "a", Presence([1], 3, 6), "at:1 at 3", -1.0, np.arange(length), log_odds, np.linspace(0, 0.4, length)
    )


PLOTS = {
    "event, few": lambda ax, _: draw_event_probability(ax, make_event_audit(6), 0.9, 0.1),
    "event, many": lambda ax, _: draw_event_probability(ax, make_event_audit(4000), 0.9),
    "event, dates": lambda ax, _: draw_event_probability(
        ax, make_event_audit(300), times=np.datetime64("2024-03-07", "us") + np.arange(300) * np.timedelta64(5, "m")
    ),
    "leakage, few": lambda ax, _: draw_leakage(ax, leakage.compute_leakage(MATRIX, MATRIX, [0.1] * 3)),
    "leakage, many": lambda ax, _: draw_leakage(ax, leakage.compute_leakage(MATRIX, MATRIX, [0.1] * 3000)),
    "loss": lambda ax, _: draw_loss_function(ax, MATRIX),
    "supremum, few": lambda ax, _: draw_supremum(ax, MATRIX, 0.1, 5),
    "supremum, many": lambda ax, _: draw_supremum(ax, MATRIX, 0.1, 2000),
    "noise_scope": lambda ax, calibration: draw_trade_off(ax, calibration),
}


@pytest.mark.parametrize("width", mark_rest_slow(WIDTHS, 1))
@pytest.mark.parametrize("name", PLOTS)
def test_plot_fits(name, width, calibration):
    figure, ax = create_figure(width, max(3.2, 0.5 * width))
    PLOTS[name](ax, calibration)
    assert find_flaws(figure) == []


def test_trade_off_shows_error_without_releases(calibration):
    """It exceeds all other errors if the adversary knows little."""
    _, ax = create_figure(6.0, 4.0)
    draw_trade_off(ax, replace(calibration, error_without_releases=50.0))
    low, high = ax.get_ylim()
    assert all(low < value < high for line in ax.lines[:-1] for value in np.asarray(line.get_ydata(), dtype=float))
    assert high > 50_000
    assert ax.get_title() == "bands: 99% intervals of means"


@pytest.mark.parametrize("ends", [(23.2, 45.8), (1.1, 1.15), (95.0, 105.0), (10.0, 1000.0), (0.0123, 0.0125)])
def test_logarithmic_axis_has_several_round_labels(ends):
    _, ax = create_figure(6.0, 4.0)
    ax.set(xscale="log", xlim=ends)
    set_power_ticks(ax.xaxis, ends, (1, 2, 5), "{:g}".format)
    values = ax.get_xticks()
    assert 2 <= len(values) <= 7
    assert all(ends[0] <= value <= ends[1] and len(f"{value:g}".strip("0.")) <= 4 for value in values)


def test_logarithmic_axis_labels_all_powers():
    _, ax = create_figure(6.0, 4.0)
    ax.set(yscale="log", ylim=(3e-12, 4e11))
    set_power_ticks(ax.yaxis, ax.get_ylim(), (1,), "{:g}".format)
    assert ax.get_yticks().tolist() == [float(f"1e{power}") for power in range(-11, 12)]


@pytest.mark.slow
def test_calibration_with_frontier_fits(calibration):
    figure = draw_calibration_figure(calibration)
    assert len(figure.axes) == 2
    assert find_flaws(figure) == []


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(3, 4), (30, 8)], ids=["small", "large"])
def test_model_figure_fits(shape):
    height, width = shape
    space = region(bbox=(45, -30, 45 + height / 111.2, -30 + width / 78.6), cell_km=1.0)
    rng = np.random.default_rng(2)
    model = MarkovModel(rng.dirichlet(np.ones(space.size), space.size), np.full(space.size, 1 / space.size), space, 300)
    assert find_flaws(draw_model_figure(model)) == []


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
def test_noise_types_fit(width):
    rows = [
        NoiseRow(kind, equal, 0.5, 2.0, 1.0 + k, 0.5 + k / 3, 0.4 + k / 4, 100)
        for equal in ("edge", "any two")
        for k, (kind, *_) in enumerate(NOISES)
    ]
    figure, ax = create_figure(width, 4.5)
    draw_noises(ax, rows[: len(NOISES)])
    assert find_flaws(figure) == []
    assert ax.get_legend() is None, "it would hide bars"
    assert find_flaws(draw_noise_figure(rows, "utility:1km")) == []


@pytest.mark.slow
@pytest.mark.parametrize("cell", [0.5, 2.0])
def test_synthetic_users_next_to_real_ones_fit(cell):
    space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=cell)
    town = "data/sample/geolife"
    model = learn(Data((town,), exclude_users=("000",)), space, step_seconds=600).model
    assert find_flaws(draw_crowds_figure(compare_users(model, Data((town,), users=("000",)), rng=1))) == []


def test_classes_of_time_without_steps_are_gaps():
    space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=2.0)
    town = Data(("data/sample/geolife",), users=("000",))
    model = learn(town, space, step_seconds=600).model
    comparison = compare_users(model, town, rng=1)
    hours = np.array([3.0, 1.0, 0.0, 0.0, 1.0, 1.0])
    crowds = {name: replace(getattr(comparison, name), hours=hours) for name in ("real", "drawn")}
    ax = draw_crowds_figure(replace(comparison, **crowds)).axes[-1]
    for stairs in ax.patches:
        heights = stairs.get_path().vertices[:, 1]
        assert set(heights[np.isfinite(heights)].tolist()) == {0.75, 0.5}


def test_flaws_are_detected():
    figure, ax = create_figure(4.2, 3.2)
    assert find_flaws(figure) == ["axes are empty"]
    ax.plot([0, 1], [0, 1])
    ax.text(3, 0.5, "far away").set_in_layout(False)
    ax.set_xticks([0, 0.05, 0.1], ["one long label", "another long label", "a third"])
    messages = find_flaws(figure)
    assert any("far away" in message for message in messages)
    assert any("cross" in message for message in messages)
