"""The picture and the page of an attack: nothing cut off, nothing empty, at the width of a phone and of a desk."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import nan

import pytest

from dphmm.attack import ChannelResult, Outcome
from dphmm.jobs import Attacked
from dphmm.plots import attack_figure, attack_sections, attack_verdict
from dphmm.reports import html_page

ONE = Outcome("a", 10, 120.0, 80.0, 0.7, 0.6, 150.0, 300.0, 7.5, 0.0)


def found(channels: int = 3, people: int = 2) -> Attacked:
    outcomes = tuple(replace(ONE, user=str(k), hindsight_m=80.0 + k) for k in range(people))
    results = [ChannelResult(f"channel number {k}", "nowhere", outcomes, 200.0) for k in range(channels - 1)]
    silent = replace(ONE, released_error_m=nan, length_ratio=nan, home_error_m=nan, withheld=1.0)
    results.append(ChannelResult("nothing", "the model", (silent,), 200.0))
    return Attacked("people", people, 20, 0, 0.25, 0.05, 600.0, 0.2, "no", 0, tuple(results), True)


@pytest.mark.parametrize("channels", [1, 3, 40])
def test_every_mark_bar_and_name_lies_within_the_picture(channels):
    figure = attack_figure(found(channels))
    figure.canvas.draw()
    left, right = figure.axes
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
    marks = [value for line in left.lines for value in line.get_xdata() if value == value]
    assert marks
    assert all(left.get_xlim()[0] < value < left.get_xlim()[1] for value in marks)


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
