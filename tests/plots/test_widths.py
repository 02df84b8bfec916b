"""Pictures fit a phone and a desk: nothing runs off, no labels cross, no axes are empty; with few and many points."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from dphmm import MarkovModel, ReleaseSettings, leakage
from dphmm.audit import EventAudit
from dphmm.evaluation.noise_comparison import NOISES, NoiseRow
from dphmm.events import Presence
from dphmm.jobs import Data, Targets, calibrate, compare_people, learn, region
from dphmm.plots import (
    approach_to_supremum,
    calibration_figure,
    event_over_time,
    leakage_over_time,
    loss_pieces,
    model_figure,
    trade_off,
)
from dphmm.plots.evaluation import draw_noises, noise_figure
from dphmm.plots.figures import new_figure
from dphmm.plots.models import crowds_figure
from tests.sizes import few_every_day

pytest.importorskip("matplotlib")

WIDTHS = (4.2, 12.8)
MATRIX = np.array([[0.8, 0.2, 0.0], [0.1, 0.6, 0.3], [0.1, 0.1, 0.8]])


def flaws(figure: Any) -> list[str]:
    """What is wrong with how a figure looks, as far as boxes tell."""
    figure.canvas.draw()
    renderer, found = figure.canvas.get_renderer(), []
    for ax in figure.axes:
        if not (ax.lines or ax.collections or ax.patches or ax.images):
            found.append("axes are empty")
        legend = ax.get_legend()
        texts = [*ax.texts, ax.title, ax.xaxis.label, ax.yaxis.label, *(legend.get_texts() if legend else [])]
        for axis, side in ((ax.xaxis, 0), (ax.yaxis, 1)):
            labels = [one for one in axis.get_ticklabels() if one.get_visible() and one.get_text()]
            boxes = [one.get_window_extent(renderer) for one in labels]
            shown = [box for box in boxes if ax.bbox.padded(2).overlaps(box) or side == 0]
            ends = sorted((box.intervalx if side == 0 else box.intervaly).tolist() for box in shown)
            found += [
                f"labels of ticks cross, axis {side}" for (_, end), (start, _) in pairwise(ends) if start < end - 1
            ]
        for text in texts:
            if text.get_visible() and text.get_text().strip():
                box = text.get_window_extent(renderer)
                page = figure.bbox.padded(1)
                if not (page.x0 <= box.x0 and box.x1 <= page.x1 and page.y0 <= box.y0 and box.y1 <= page.y1):
                    found.append(f"{text.get_text()!r} runs off the picture")
    return found


@pytest.fixture(scope="module")
def found():
    """A calibration with a row of budgets."""
    space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell=1.0)
    model = learn(Data(("data/sample/geolife",), exclude_users=("000",)), space, step_seconds=600).model
    targets = Targets(error=1.0)
    return calibrate(
        model,
        ReleaseSettings("utility:1km", 1.0),
        targets,
        over_seconds=1800,
        people=3,
        row=(0.1, 0.5, 2),
        beside=["snap:1km", "snap:2km", "hourly:1"],
    )


def event(length: int) -> EventAudit:
    told = np.sin(np.arange(length))
    return EventAudit("a", Presence([1], 3, 6), "at:1 at 3", -1.0, np.arange(length), told, np.linspace(0, 0.4, length))


DRAWN = {
    "event, few": lambda ax, _: event_over_time(ax, event(6), 0.9, 0.1),
    "event, many": lambda ax, _: event_over_time(ax, event(4000), 0.9),
    "event, dates": lambda ax, _: event_over_time(
        ax, event(300), times=np.datetime64("2024-03-07", "us") + np.arange(300) * np.timedelta64(5, "m")
    ),
    "leakage, few": lambda ax, _: leakage_over_time(ax, leakage.account(MATRIX, MATRIX, [0.1] * 3)),
    "leakage, many": lambda ax, _: leakage_over_time(ax, leakage.account(MATRIX, MATRIX, [0.1] * 3000)),
    "loss": lambda ax, _: loss_pieces(ax, MATRIX),
    "supremum, few": lambda ax, _: approach_to_supremum(ax, MATRIX, 0.1, 5),
    "supremum, many": lambda ax, _: approach_to_supremum(ax, MATRIX, 0.1, 2000),
    "calibration": lambda ax, found: trade_off(ax, found),
}


@pytest.mark.parametrize("width", few_every_day(WIDTHS, 1))
@pytest.mark.parametrize("name", DRAWN)
def test_it_fits(name, width, found):
    figure, ax = new_figure(width, max(3.2, 0.5 * width))
    DRAWN[name](ax, found)
    assert flaws(figure) == []


def test_a_calibration_with_its_frontier_fits(found):
    figure = calibration_figure(found)
    assert len(figure.axes) == 2
    assert flaws(figure) == []


@pytest.mark.parametrize("shape", [(3, 4), (30, 8)])
def test_the_picture_of_a_model_fits(shape):
    height, width = shape
    space = region(bbox=(45, -30, 45 + height / 111.2, -30 + width / 78.6), cell=1.0)
    rng = np.random.default_rng(2)
    model = MarkovModel(rng.dirichlet(np.ones(space.size), space.size), np.full(space.size, 1 / space.size), space, 300)
    assert flaws(model_figure(model)) == []


@pytest.mark.parametrize("width", WIDTHS)
def test_kinds_of_noise_fit(width):
    rows = [
        NoiseRow(kind, equal, 0.5, 2.0, 1.0 + k, 0.5 + k / 3, 0.4 + k / 4, 100)
        for equal in ("edge", "any two")
        for k, (kind, *_) in enumerate(NOISES)
    ]
    figure, ax = new_figure(width, 4.5)
    draw_noises(ax, rows[: len(NOISES)])
    assert flaws(figure) == []
    assert flaws(noise_figure(rows, "utility:1km")) == []


@pytest.mark.parametrize("cell", [0.5, 2.0])
def test_people_who_do_not_exist_beside_real_ones_fit(cell):
    space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell=cell)
    town = "data/sample/geolife"
    model = learn(Data((town,), exclude_users=("000",)), space, step_seconds=600).model
    assert flaws(crowds_figure(compare_people(model, Data((town,), users=("000",)), rng=1))) == []


def test_what_runs_off_crosses_or_is_empty_is_found():
    figure, ax = new_figure(4.2, 3.2)
    assert flaws(figure) == ["axes are empty"]
    ax.plot([0, 1], [0, 1])
    ax.text(3, 0.5, "far away").set_in_layout(False)
    ax.set_xticks([0, 0.05, 0.1], ["one long label", "another long label", "a third"])
    said = flaws(figure)
    assert any("far away" in one for one in said)
    assert any("cross" in one for one in said)
