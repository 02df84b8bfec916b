"""The picture and the page of an attack: nothing cut off, nothing empty, at the width of a phone and of a desk."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import nan

import pytest

from dphmm.attack import ChannelResult, Outcome
from dphmm.jobs import Attacked
from dphmm.plots import attack_figure, attack_sections, attack_verdict
from dphmm.release import ReleaseSettings
from dphmm.reports import html_page
from tests.plots.test_widths import flaws

ONE = Outcome("a", 10, 120.0, 80.0, 0.7, 0.6, 150.0, 300.0, 7.5, 0.0, 70.0)


def found(channels: int = 3, people: int = 2) -> Attacked:
    outcomes = tuple(replace(ONE, user=str(k), hindsight_m=80.0 + k) for k in range(people))
    results = [
        ChannelResult(
            f"{'dphmm' if k % 4 else 'channel'} number {k}",
            "nowhere",
            tuple(replace(one, at_once_m=30.0 * 1.2**k) for one in outcomes),
            200.0,
            f"{'dphmm' if k % 4 else 'family'} {k // 5}",
            None if k else ReleaseSettings.for_a_day(),
        )
        for k in range(channels - 1)
    ]
    silent = replace(ONE, released_error_m=nan, length_ratio=nan, home_error_m=nan, withheld=1.0)
    results.append(ChannelResult("nothing", "the model", (silent,), 200.0))
    return Attacked("people", people, 20, 0, people, 0.25, 0.05, 600.0, 0.2, "no", 0, tuple(results), True)


@pytest.mark.parametrize("channels", [1, 3, 40])
def test_every_mark_bar_and_name_lies_within_the_picture(channels):
    figure = attack_figure(found(channels))
    figure.canvas.draw()
    assert flaws(figure) == []
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
        drawn = [point for line in ax.lines if len(line.get_xdata()) for point in line.get_xydata().tolist()]
        assert len(drawn) == channels + (channels > 1) + 2  # the default's star, and the ends of the line of equals
        ends = ax.get_xlim()
        assert all(ends[0] <= value <= ends[1] for point in drawn for value in point)
    marks = [value for line in left.lines for value in line.get_xdata() if value == value]
    assert marks
    assert all(left.get_xlim()[0] < value < left.get_xlim()[1] for value in marks)


def test_without_habits_there_is_one_panel_of_the_frontier_and_below_it_a_legend_of_every_family():
    several = found(12)
    results = [
        replace(one, outcomes=tuple(replace(who, habits_m=nan) for who in one.outcomes)) for one in several.results
    ]
    figure = attack_figure(replace(several, habits_known=0, results=tuple(results)))
    assert len(figure.axes) == 3
    said = [text.get_text() for text in figure.subfigs[1].legends[0].texts]
    assert set(said) == {one.family or one.name for one in results} | {
        "the default of dphmm release",
        "as far off as at once",
    }


def test_names_of_channels_do_not_touch_each_other():
    figure = attack_figure(found(30))
    figure.canvas.draw()
    boxes = sorted((tick.get_window_extent() for tick in figure.axes[0].get_yticklabels()), key=lambda box: box.y0)
    assert all(low.y1 <= high.y0 for low, high in pairwise(boxes))


@pytest.mark.usefixtures("blank")
def test_the_page_says_what_was_found_and_how_sure_that_is():
    several = found()
    page = html_page("Attack", *attack_verdict(several), attack_sections(several))
    assert "2 of 3 channels let the adversary find at least half of the homes within 200 m" in page
    assert "2 of 2" in page
    assert "0 of 0" in page
    assert "± " in page
    assert "nan" not in page
    alone = found(people=1)
    assert "±" not in html_page("Attack", *attack_verdict(alone), attack_sections(alone))
    assert attack_verdict(found(1)) == (
        "Of 2 people, 0 of 1 channels let the adversary find at least half of the homes within 200 m.",
        False,
    )
