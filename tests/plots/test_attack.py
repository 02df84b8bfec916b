"""Tests of the plot and the page of an attack: complete and nonempty at all widths."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import nan

import numpy as np
import pytest

from dphmm.attack import AttackOutcome, ChannelResult
from dphmm.attack.recommendation import ADVERSARY_PHRASES
from dphmm.html_report import html_page
from dphmm.jobs import AttackResult
from dphmm.plots import build_attack_sections, draw_attack_figure, summarize_attack
from dphmm.plots.attack import draw_frontier
from dphmm.plots.canvas import create_panels
from dphmm.release import ReleaseSettings
from tests.plots.test_widths import find_flaws

OUTCOME = AttackOutcome(
    user="a",
    num_fixes=10,
    filtered_error_m=120.0,
    smoothed_error_m=80.0,
    max_posterior=0.7,
    top_1_accuracy=0.6,
    home_error_m=150.0,
    released_error_m=300.0,
    length_ratio=7.5,
    withheld_share=0.0,
    informed_error_m=70.0,
)


def make_result(channels: int = 3, num_users: int = 2) -> AttackResult:
    outcomes = tuple(replace(OUTCOME, user=str(k), smoothed_error_m=80.0 + k) for k in range(num_users))
    results = [
        ChannelResult(
            f"{'dphmm' if k % 4 else 'channel'} number {k}",
            "nowhere",
            tuple(replace(outcome, filtered_error_m=30.0 * 1.2**k) for outcome in outcomes),
            200.0,
            f"{'dphmm' if k % 4 else 'family'} {k // 5}",
            None if k else ReleaseSettings.for_a_day(),
        )
        for k in range(channels - 1)
    ]
    silent = replace(OUTCOME, released_error_m=nan, length_ratio=nan, home_error_m=nan, withheld_share=1.0)
    results.append(ChannelResult("nothing", "the model", (silent,), 200.0))
    return AttackResult("users", num_users, 20, 0, num_users, 0.25, 0.05, 600.0, 0.2, "no", 0, tuple(results), True)


@pytest.mark.slow
@pytest.mark.parametrize("channels", [1, 3, 40])
def test_plot_elements_lie_within_figure(channels):
    figure = draw_attack_figure(make_result(channels))
    figure.canvas.draw()
    assert find_flaws(figure) == []
    left, right, *frontier = figure.axes
    assert len(frontier) == 2
    assert [tick.get_text() for tick in left.get_yticklabels()][-1] == "nothing"
    assert len(right.patches) == channels
    whole = figure.bbox
    for text in [*left.get_yticklabels(), *left.get_xticklabels(), *right.texts, left.xaxis.label, right.xaxis.label]:
        box = text.get_window_extent()
        if left.get_xlim()[0] <= text.get_position()[0] <= left.get_xlim()[1] or text in right.texts:
            assert whole.x0 - 1 <= box.x0
            assert box.x1 <= whole.x1 + 1
            assert whole.y0 - 1 <= box.y0
            assert box.y1 <= whole.y1 + 1
    for ax in frontier:
        box = ax.get_tightbbox()
        assert whole.x0 - 1 <= box.x0 <= box.x1 <= whole.x1 + 1
        assert whole.y0 - 1 <= box.y0 <= box.y1 <= whole.y1 + 1
        points = [point for line in ax.lines if len(line.get_xdata()) for point in line.get_xydata().tolist()]
        assert (
            len(points) == channels + (channels > 1) + 2
        )  # the default's star, and the ends of the line of equal errors
        ends = ax.get_xlim()
        assert all(ends[0] <= value <= ends[1] for point in points for value in point)
    marks = [value for line in left.lines for value in line.get_xdata() if value == value]
    assert marks
    assert all(left.get_xlim()[0] < value < left.get_xlim()[1] for value in marks)


def test_without_habits_frontier_has_one_panel_and_a_complete_legend():
    several = make_result(12)
    results = [
        replace(channel, outcomes=tuple(replace(outcome, informed_error_m=nan) for outcome in channel.outcomes))
        for channel in several.results
    ]
    figure = draw_attack_figure(replace(several, num_users_with_habits=0, results=tuple(results)))
    assert len(figure.axes) == 3
    labels = [text.get_text() for text in figure.subfigs[1].legends[0].texts]
    assert set(labels) == {channel.family or channel.name for channel in results} | {
        "the default of dphmm release",
        "equal errors",
    }


@pytest.mark.slow
def test_markers_of_families_differ_and_labels_are_within_their_axis():
    to_hex = pytest.importorskip("matplotlib.colors").to_hex
    lines = {f"family {k}": np.array([[10.0 + k, 20.0 + k]] * (1 + k % 3)) for k in range(20)}
    figure, (ax, _) = create_panels(7.2, 4.9, columns=2)
    draw_frontier(ax, lines, ADVERSARY_PHRASES["informed_error_m"])
    figure.canvas.draw()
    plotted = [line for line in ax.lines if line.get_label() in lines]
    assert len({(line.get_marker(), to_hex(line.get_markerfacecolor()) == "#ffffff") for line in plotted}) == 20
    for label in (ax.xaxis.label, ax.yaxis.label):
        box = label.get_window_extent()
        assert ax.bbox.x0 <= box.x0 <= box.x1 <= ax.bbox.x1 or ax.bbox.y0 <= box.y0 <= box.y1 <= ax.bbox.y1


@pytest.mark.slow
def test_channel_names_do_not_overlap():
    figure = draw_attack_figure(make_result(30))
    figure.canvas.draw()
    boxes = sorted((tick.get_window_extent() for tick in figure.axes[0].get_yticklabels()), key=lambda box: box.y0)
    assert all(low.y1 <= high.y0 for low, high in pairwise(boxes))


@pytest.mark.slow
@pytest.mark.usefixtures("blank")
def test_page_states_results_and_their_margins():
    several = make_result()
    page = html_page("Attack", *summarize_attack(several), build_attack_sections(several))
    assert "2 of 3 channels reveal at least half of the homes within 200 m" in page
    assert "2 of 2" in page
    assert "0 of 0" in page
    assert "± " in page
    assert "nan" not in page
    alone = make_result(num_users=1)
    assert "±" not in html_page("Attack", *summarize_attack(alone), build_attack_sections(alone))
    assert summarize_attack(make_result(1)) == (
        "0 of 1 channels reveal at least half of the homes within 200 m (2 users).",
        False,
    )
