"""Tests of the event plot: it shows releases, window, prior and largest changes."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm.audit import EventAudit
from dphmm.events import Presence
from dphmm.plots import draw_event_probability
from dphmm.plots.canvas import create_figure

pytest.importorskip("matplotlib")


def audit(length: int) -> EventAudit:
    times = np.arange(length) * 2
    log_odds = np.concatenate([np.linspace(0, 2, min(length, 6)), np.full(max(length - 6, 0), 1.5)])
    return EventAudit("a", Presence([1], 3, 6), "at:1 at 3", -1.0, times, log_odds, np.linspace(0, 0.4, length))


def get_lines(ax) -> dict:
    return {line.get_label(): np.asarray(line.get_xydata()) for line in ax.lines}


def test_few_releases_are_dots_and_window_is_marked():
    event_audit = audit(6)
    _, ax = create_figure()
    draw_event_probability(ax, event_audit, 0.9, 0.1)
    plotted = get_lines(ax)
    np.testing.assert_allclose(
        plotted["given past releases"], np.stack([event_audit.times, event_audit.probability], axis=1)
    )
    assert next(line for line in ax.lines if line.get_label() == "given past releases").get_marker() == "o"
    assert {y for line in ax.lines for y in set(line.get_ydata())} >= {0.9, 0.1, event_audit.prior_probability}
    (window,) = ax.patches
    assert (window.get_x(), window.get_x() + window.get_width()) == pytest.approx((2.5, 6.5))
    assert plotted["largest increase"][:, 0].tolist() == (event_audit.times[event_audit.largest_changes()]).tolist()


def test_many_releases_are_a_line_and_quiet_times_are_omitted():
    event_audit = audit(400)
    when = (np.arange(400) * 60_000_000).astype("datetime64[us]")
    _, ax = create_figure()
    draw_event_probability(ax, event_audit, times=when)
    assert next(line for line in ax.lines if line.get_label() == "given past releases").get_marker() == "None"
    left, right = ax.get_xlim()
    minutes = (right - left) * 24 * 60
    assert 5 < minutes < 10
