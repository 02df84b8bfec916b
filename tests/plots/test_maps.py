"""What is drawn is what was given, on the scale that the axes name."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.collections import LineCollection, PolyCollection

from dphmm.geometry.hull import SensitivityHull
from dphmm.plots import maps
from dphmm.policy.graph import PolicyGraph
from dphmm.space import Grid, Places

GRID = Grid.over((44.995, -30.015, 45.005, -29.985), cell_km=0.5)


@pytest.fixture
def ax():
    return maps.new_figure()[1]


def _labelled(ax):
    handles, labels = ax.get_legend_handles_labels()
    return dict(zip(labels, handles, strict=True))


def test_every_cell_is_a_square_around_its_state(ax):
    maps.draw_space(ax, GRID)
    (cells,) = (found for found in ax.collections if isinstance(found, PolyCollection))
    corners = np.array([path.vertices[:4] for path in cells.get_paths()])
    np.testing.assert_allclose(corners.mean(axis=1), GRID.points, rtol=0, atol=1e-12)
    np.testing.assert_allclose(np.ptp(corners, axis=1), 0.5, rtol=1e-12)
    np.testing.assert_allclose(maps.extent(GRID), [corners.min(axis=(0, 1)), corners.max(axis=(0, 1))], rtol=1e-12)


def test_places_are_dots(ax):
    places = Places(["a", "b"], [45.0, 45.1], [7.0, 7.1])
    maps.draw_space(ax, places)
    np.testing.assert_allclose(np.column_stack(_labelled(ax)["places"].get_data()), places.points)


def test_a_policy_is_drawn_edge_by_edge_or_not_at_all(ax, monkeypatch):
    graph = PolicyGraph.utility(GRID.points, 0.5)
    count = len(graph.edges())
    monkeypatch.setattr(maps, "MOST_EDGES", count - 1)
    maps.draw_edges(ax, GRID.points, graph.edges(), maps.EDGE, 0.6, "policy edges")
    assert not ax.collections
    monkeypatch.setattr(maps, "MOST_EDGES", count)
    maps.draw_edges(ax, GRID.points, graph.edges(), maps.EDGE, 0.6, "policy edges")
    (lines,) = (found for found in ax.collections if isinstance(found, LineCollection))
    drawn = np.array(lines.get_segments())
    np.testing.assert_allclose(drawn, GRID.points[graph.edges()])


@pytest.mark.parametrize("draw", [maps.draw_track, maps.draw_releases, maps.draw_estimates])
def test_points_are_drawn_where_they_are(ax, draw):
    points = np.array([[0.0, 1.0], [2.0, 3.0]])
    draw(ax, points, label="them")
    np.testing.assert_array_equal(np.column_stack(_labelled(ax)["them"].get_data()), points)


@pytest.mark.parametrize("differences", [[[1, 0], [0, 1]], [[1, 1]], np.zeros((0, 2))])
def test_a_hull_is_drawn_around_the_centre_whatever_its_dimension(ax, differences):
    hull = SensitivityHull(differences)
    maps.draw_hull(ax, hull)
    artist = _labelled(ax)["sensitivity hull, at the centre"]
    drawn = artist.get_xy() if hull.dimension == 2 else np.column_stack(artist.get_data())
    expected = {tuple(row) for row in hull.vertices.tolist()}
    assert {tuple(row) for row in np.asarray(drawn).tolist()} == expected


def test_the_view_holds_the_frame_and_leaves_out_only_what_is_lost(ax):
    frame = [[0.0, 0.0], [10.0, 5.0]]
    outside = maps.fit_view(ax, frame, [[19.0, 1.0], [1000.0, 0.0], [np.nan, 0.0], [5.0, -9.0]])
    assert outside == 1
    (west, east), (south, north) = ax.get_xlim(), ax.get_ylim()
    assert west <= 0 < 19 <= east < 30
    assert -20 < south <= -9
    assert north >= 5


def test_both_axes_have_one_scale_on_the_ground(ax):
    maps.label_axes(ax)
    assert ax.get_aspect() == 1.0
    assert "km" in ax.get_xlabel()
    assert "km" in ax.get_ylabel()


def test_the_legend_stands_outside_the_axes():
    figure, ax = maps.new_figure()
    maps.draw_releases(ax, [[0.0, 0.0]])
    maps.draw_track(ax, [[0.0, 0.0]])
    maps.draw_track(ax, [[1.0, 1.0]])
    maps.place_legend(ax)
    figure.canvas.draw()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["released", "true places (private)"]
    assert legend.get_window_extent().y1 <= ax.get_window_extent().y0
