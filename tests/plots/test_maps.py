"""Tests of maps: they show the input at the scale of the axes."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import shapely
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.patches import Circle, PathPatch, Polygon

from dphmm.geometry.sensitivity_hull import SensitivityHull
from dphmm.plots import canvas, maps
from dphmm.plots.basemap import Basemap, PlaceName
from dphmm.plots.model import draw_values
from dphmm.policy.graph import PolicyGraph
from dphmm.space import Grid, Places, Streets
from dphmm.space.projection import LocalProjection
from dphmm.tables.street_map import read_street_map

GRID = Grid.over((44.995, -30.015, 45.005, -29.985), cell_km=0.5)


@pytest.fixture
def ax():
    return canvas.create_figure()[1]


def _get_artists(ax):
    handles, labels = ax.get_legend_handles_labels()
    return dict(zip(labels, handles, strict=True))


def test_every_cell_is_a_square_around_its_state(ax):
    maps.draw_space(ax, GRID)
    (cells,) = (collection for collection in ax.collections if isinstance(collection, PolyCollection))
    corners = np.array([path.vertices[:4] for path in cells.get_paths()])
    np.testing.assert_allclose(corners.mean(axis=1), GRID.points, rtol=0, atol=1e-12)
    np.testing.assert_allclose(np.ptp(corners, axis=1), 0.5, rtol=1e-12)
    np.testing.assert_allclose(maps.extent(GRID), [corners.min(axis=(0, 1)), corners.max(axis=(0, 1))], rtol=1e-12)


def test_places_are_dots(ax):
    places = Places(["a", "b"], [45.0, 45.1], [7.0, 7.1])
    maps.draw_space(ax, places)
    np.testing.assert_allclose(np.column_stack(_get_artists(ax)["places"].get_data()), places.points)


def test_streets_are_lines_with_their_values(ax):
    streets = Streets.from_map(read_street_map("data/streets.geojson"), 0.5)
    maps.draw_space(ax, streets)
    draw_values(ax, streets, streets.lengths_km, "viridis", states=np.array([3, 1]))
    everything, selected = (collection for collection in ax.collections if isinstance(collection, LineCollection))
    assert sum(map(len, everything.get_segments())) == sum(map(len, streets.lines()))
    for state, line in zip([3, 1], selected.get_segments(), strict=True):
        np.testing.assert_allclose(line, streets.lines()[state])
    np.testing.assert_allclose(selected.get_array(), streets.lengths_km[[3, 1]])
    low, high = maps.extent(streets)
    corners = np.concatenate(everything.get_segments())
    np.testing.assert_allclose([low, high], [corners.min(axis=0), corners.max(axis=0)])


def test_policy_edges_are_plotted_up_to_a_limit(ax, monkeypatch):
    graph = PolicyGraph.utility(GRID.points, 0.5)
    count = len(graph.edge_array())
    monkeypatch.setattr(maps, "MAX_EDGES", count - 1)
    maps.draw_edges(ax, GRID.points, graph.edge_array(), canvas.EDGE_COLOUR, 0.6, "policy edges")
    assert not ax.collections
    monkeypatch.setattr(maps, "MAX_EDGES", count)
    maps.draw_edges(ax, GRID.points, graph.edge_array(), canvas.EDGE_COLOUR, 0.6, "policy edges")
    (lines,) = (collection for collection in ax.collections if isinstance(collection, LineCollection))
    segments = np.array(lines.get_segments())
    np.testing.assert_allclose(segments, GRID.points[graph.edge_array()])


@pytest.mark.parametrize(
    "differences", [[[1, 0], [0, 1]], [[1, 1]], np.zeros((0, 2))], ids=["polygon", "segment", "point"]
)
def test_hull_is_plotted_at_centre_for_any_dimension(ax, differences):
    hull = SensitivityHull(differences)
    maps.draw_hull(ax, hull)
    artist = _get_artists(ax)["sensitivity hull, at the centre"]
    corners = artist.get_xy() if hull.dimension == 2 else np.column_stack(artist.get_data())
    expected = {tuple(row) for row in hull.vertices.tolist()}
    assert {tuple(row) for row in np.asarray(corners).tolist()} == expected


def test_view_contains_frame_and_omits_distant_points(ax):
    frame = [[0.0, 0.0], [10.0, 5.0]]
    outside = maps.fit_view(ax, frame, [[19.0, 1.0], [1000.0, 0.0], [np.nan, 0.0], [5.0, -9.0]])
    assert outside == 1
    (west, east), (south, north) = ax.get_xlim(), ax.get_ylim()
    assert west <= 0 < 19 <= east < 30
    assert -20 < south <= -9
    assert north >= 5


def test_map_axes_have_equal_scale(ax):
    canvas.label_map(ax)
    assert ax.get_aspect() == 1.0
    assert "km" in ax.get_xlabel()
    assert "km" in ax.get_ylabel()


def test_legend_is_outside_axes():
    figure, ax = canvas.create_figure()
    maps.draw_releases(ax, [[0.0, 0.0]])
    maps.draw_track(ax, [[0.0, 0.0]])
    maps.draw_track(ax, [[1.0, 1.0]])
    canvas.place_legend_below(ax)
    figure.canvas.draw()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["released", "true locations (private)"]
    assert legend.get_window_extent().y1 <= ax.get_window_extent().y0


def test_outline_names_are_in_view_or_omitted(ax):
    canvas.set_limits(ax, np.array([[0.0, 0.0], [10.0, 10.0]]), 0.0)
    square = np.array([[0.0, 0], [1, 0], [1, 1], [0, 1], [0, 0]])
    maps.draw_outlines(ax, {"in": [4 + square], "half": [20 * square - [15, 5]], "out": [20 + square]})
    ax.figure.canvas.draw()
    inside = ax.get_window_extent()
    boxes = {text.get_text(): text.get_window_extent() for text in ax.texts}
    assert set(boxes) == {"in", "half"}
    for box in boxes.values():
        assert inside.x0 <= box.x0 < box.x1 <= inside.x1


@pytest.mark.parametrize(("error", "part"), [(1.0, 1), (3.0, 2), (10.0, 10)])
def test_noise_is_plotted_once_at_a_stated_scale(ax, error, part):
    canvas.set_limits(ax, np.array([[0.0, 0.0], [10.0, 8.0]]), 0.0)
    hull = SensitivityHull([[0.5, 0], [0, 0.5]])
    maps.draw_noise(ax, hull, error)
    (circle,) = (patch for patch in ax.patches if isinstance(patch, Circle))
    assert circle.radius == pytest.approx(error / part)
    assert circle.center[0] - circle.radius > 10.0
    (corners,) = (patch.get_xy() for patch in ax.patches if isinstance(patch, Polygon) and patch.get_label()[0] != "_")
    expected = circle.center + hull.vertices / part
    assert {tuple(row) for row in corners.round(9).tolist()} == {tuple(row) for row in expected.round(9).tolist()}
    assert ax.get_xlim()[1] >= circle.center[0] + circle.radius
    (text,) = ax.texts
    assert text.get_text().replace("\n", " ") == (
        "noise, to scale" if part == 1 else f"noise, at 1/{part} of the scale"
    )


def test_unknown_noise_is_not_plotted(ax):
    maps.draw_noise(ax, None, float("nan"))
    assert not ax.patches
    assert not ax.texts


def test_basemap_is_plotted_with_credit_and_names_that_do_not_overlap(ax):
    projection = LocalProjection(45.0, 7.0)
    canvas.set_limits(ax, np.array([[-20.0, -20.0], [20.0, 20.0]]), 0.0)
    lake = shapely.Polygon(
        shapely.box(6.9, 44.9, 7.1, 45.1).exterior.coords, [shapely.box(6.98, 44.98, 7.02, 45.02).exterior.coords]
    )
    names = [PlaceName(f"Town {i}", 45.0 + 0.001 * i, 7.0, 60.0 - i) for i in range(30)]
    names.append(PlaceName("Far", 45.1, 7.1, 1.0))
    basemap = Basemap([lake], {"road": [np.array([[6.9, 45.0], [7.1, 45.0]])]}, names, "Example map.")
    maps.draw_basemap(ax, basemap, projection)
    ax.figure.canvas.draw()
    (water,) = (patch for patch in ax.patches if isinstance(patch, PathPatch))
    corners = water.get_path().vertices
    np.testing.assert_allclose(corners[0], projection.to_plane(44.9, 7.1)[0], atol=1e-9)
    assert len(corners) == 10
    (roads,) = ax.collections
    np.testing.assert_allclose(roads.get_segments()[0][0], projection.to_plane(45.0, 6.9)[0], atol=1e-9)
    boxes = {text.get_text(): text.get_window_extent() for text in ax.texts}
    assert {"Town 0", "Far", "Example map."} <= set(boxes)
    assert not any(a.overlaps(b) for (_, a), (_, b) in combinations(boxes.items(), 2))
    assert boxes["Example map."].x0 >= ax.get_window_extent().x0
