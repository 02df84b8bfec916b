"""The picture of an event over time holds what was found: every release, the window, the prior, what moved it."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm.audit import EventAudit
from dphmm.events import Presence
from dphmm.plots import event_over_time
from dphmm.plots.figures import new_figure

pytest.importorskip("matplotlib")


def audit(length: int) -> EventAudit:
    times = np.arange(length) * 2
    told = np.concatenate([np.linspace(0, 2, min(length, 6)), np.full(max(length - 6, 0), 1.5)])
    return EventAudit("a", Presence([1], 3, 6), "at:1 at 3", -1.0, times, told, np.linspace(0, 0.4, length))


def lines(ax) -> dict:
    return {line.get_label(): np.asarray(line.get_xydata()) for line in ax.lines}


def test_few_releases_are_dots_and_the_window_is_where_it_is():
    found = audit(6)
    _, ax = new_figure()
    event_over_time(ax, found, 0.9, 0.1)
    drawn = lines(ax)
    np.testing.assert_allclose(drawn["known"], np.stack([found.times, found.probability], axis=1))
    assert next(line for line in ax.lines if line.get_label() == "known").get_marker() == "o"
    assert {y for line in ax.lines for y in set(line.get_ydata())} >= {0.9, 0.1, found.prior_probability}
    (window,) = ax.patches
    assert (window.get_x(), window.get_x() + window.get_width()) == pytest.approx((2.5, 6.5))
    assert drawn["moved it most, up"][:, 0].tolist() == (found.times[found.movers()]).tolist()


def test_many_releases_are_a_line_and_quiet_times_are_left_out():
    found = audit(400)
    when = (np.arange(400) * 60_000_000).astype("datetime64[us]")
    _, ax = new_figure()
    event_over_time(ax, found, times=when)
    assert next(line for line in ax.lines if line.get_label() == "known").get_marker() == "None"
    left, right = ax.get_xlim()
    minutes = (right - left) * 24 * 60
    assert 5 < minutes < 10
