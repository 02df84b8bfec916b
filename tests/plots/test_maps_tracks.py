"""Tests of tracks: dots and lines or hexagons, colours for time, and no lines over gaps."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.collections import EllipseCollection, LineCollection, PolyCollection

from dphmm.plots import canvas, maps


@pytest.fixture
def ax():
    axes = canvas.create_figure()[1]
    canvas.set_limits(axes, np.array([[0.0, 0.0], [10.0, 10.0]]), 0.0)
    return axes


def _get_artists(ax):
    handles, labels = ax.get_legend_handles_labels()
    return dict(zip(labels, handles, strict=True))


@pytest.mark.parametrize("draw", [maps.draw_track, maps.draw_releases, maps.draw_estimates])
def test_points_are_plotted_at_their_positions(ax, draw):
    points = np.array([[0.0, 1.0], [2.0, 3.0]])
    draw(ax, points, label="them")
    np.testing.assert_array_equal(np.column_stack(_get_artists(ax)["them"].get_data()), points)


@pytest.mark.parametrize("draw", [maps.draw_releases, maps.draw_estimates])
def test_many_points_are_hexagons_with_counts(ax, draw):
    points = np.random.default_rng(0).uniform(-5, 15, (maps.MAX_DOTS + 1, 2))
    draw(ax, points, label="them")
    (hexagons,) = (collection for collection in ax.collections if isinstance(collection, PolyCollection))
    inside = ((points >= 0) & (points <= 10)).all(axis=1).sum()
    counts = np.asarray(hexagons.get_array())
    assert counts.sum() == inside
    assert not any(len(line.get_xdata()) for line in ax.lines)
    assert f"them: up to {int(counts.max()):,} in a hexagon" in _get_artists(ax)
    assert (ax.get_xlim(), ax.get_ylim()) == ((0.0, 10.0), (0.0, 10.0))


def test_fullest_hexagon_is_darkest_and_background_is_pale(ax):
    points = np.concatenate([np.full((900, 2), 2.0), np.full((30, 2), 8.0)])
    darkness = {}
    for strength in (1.0, 0.4):
        axes = canvas.create_figure()[1]
        canvas.set_limits(axes, np.array([[0.0, 0.0], [10.0, 10.0]]), 0.0)
        maps.draw_density(axes, points, canvas.BLUE, "them", strength=strength)
        axes.figure.canvas.draw()
        (hexagons,) = axes.collections
        order = np.argsort(np.asarray(hexagons.get_array()))
        shade = 3 - hexagons.get_facecolors()[order, :3].sum(axis=1)
        assert shade[0] < shade[1]
        assert (hexagons.get_facecolors()[:, 3] == 1.0).all()
        darkness[strength] = shade[1]
    assert darkness[0.4] < 0.5 * darkness[1.0]


def test_estimates_are_coloured_by_time_and_trips_are_separate(ax):
    points = np.array([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [8.0, 8.0], [9.0, 8.0]])
    times = np.datetime64("2024-03-07T09:00", "us") + np.array([0, 5, 10, 600, 605]) * np.timedelta64(1, "m")
    maps.draw_estimates(ax, points, times=times, trips=np.array([0, 0, 0, 1, 1]), radii=np.array([0.5, 1, 1, 1, 2.0]))
    lines = next(collection for collection in ax.collections if isinstance(collection, LineCollection))
    segments = {(tuple(a), tuple(b)) for a, b in np.array(lines.get_segments()).tolist()}
    assert segments == {((0.0, 0.0), (1.0, 0.0)), ((1.0, 0.0), (2.0, 0.0)), ((8.0, 8.0), (9.0, 8.0))}
    when = np.asarray(lines.get_array())
    assert (np.diff(when) > 0).all()
    circles = [collection for collection in ax.collections if isinstance(collection, EllipseCollection)]
    assert sorted(len(circle.get_offsets()) for circle in circles) == [1, 5]
    last = min(circles, key=lambda circle: len(circle.get_offsets()))
    assert np.asarray(last.get_offsets()).tolist() == [[9.0, 8.0]]
    assert last.get_widths().tolist() == [4.0]
    (bar,) = (other for other in ax.figure.axes if other is not ax)
    assert bar.get_ylabel() == "time (UTC)"
    narrow = canvas.create_figure(4.2, 4.2)[1]
    maps.draw_estimates(narrow, points, times=times, trips=np.array([0, 0, 0, 1, 1]))
    narrow.figure.canvas.draw()
    (bar,) = (other for other in narrow.figure.axes if other is not narrow)
    assert bar.get_xlabel() == "time (UTC)"
    assert bar.get_window_extent().y0 > narrow.get_window_extent().y1


def test_many_outside_positions_are_subsampled_and_counted(ax):
    maps.draw_outside(ax, np.random.default_rng(1).uniform(0, 10, (4000, 2)), "outside")
    (marks,) = ax.lines
    assert marks.get_label() == "outside: 4,000"
    assert len(marks.get_xdata()) == maps.MAX_MARKERS
