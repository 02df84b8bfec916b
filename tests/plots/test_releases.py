"""What a map of releases says, and that a picture of it fits, with few moments and with many."""

from __future__ import annotations

import json
from itertools import combinations

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Circle

from dphmm.plots import ReleaseMap, figures
from dphmm.plots.basemap import basemap_of
from dphmm.plots.releases import _grid_lines, some_edges
from dphmm.policy import PolicyGraph
from dphmm.space.grid import Grid
from tests.documents import ROOT, run_line
from tests.plots import walks
from tests.plots.test_webmap import data_of
from tests.sizes import slow


def policy() -> PolicyGraph:
    return PolicyGraph.utility(walks.GRID.measurements(), 2.0)


def test_the_title_says_policy_budget_and_errors_and_the_note_what_is_on_it():
    table = walks.released(20)
    hides = "A release hides between places at most 2 km apart."
    found = ReleaseMap(table, walks.GRID, policy=policy(), policy_text="utility:2km", remarks=hides)
    off, estimated = np.median(table["expected_error_m"]), np.median(table["estimate_radius_m"])
    assert found.title == f"utility:2km, ε = 1: releases {off:,.0f} m off, estimates {estimated:,.0f} m off"
    assert found.note.startswith("20 private releases of 1 user. A release hides between places at most 2 km apart.")
    assert "not for publication" not in found.note
    assert "not for publication" in ReleaseMap(table, walks.GRID, [walks.walk(20)]).note
    assert ReleaseMap(table).title.startswith("lattice, ε = 1: releases")


@pytest.mark.parametrize("width", [4.2, 12.8])
@pytest.mark.parametrize("kind", ["one", "few", "private", slow("many")])
def test_a_picture_holds_what_it_names_and_nothing_meets_or_is_cut_off(kind, width):
    table = walks.many(100_000, 20) if kind == "many" else walks.released(1 if kind == "one" else 20)
    tracks = [walks.walk(60, reach=0.3)] if kind == "private" else []
    found = ReleaseMap(table, walks.GRID, tracks, policy=policy(), policy_text="utility:2km")
    figure, ax = figures.new_figure(width, width)
    found.draw(ax)
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    whole = figure.bbox
    (legend,) = figure.legends
    texts = [text for text in (*ax.texts, *legend.get_texts(), ax.xaxis.label, ax.yaxis.label) if text.get_text()]
    boxes = [text.get_window_extent(renderer) for text in texts if text.get_window_extent(renderer).width]
    for text, box in zip(texts, boxes, strict=True):
        assert box.x0 >= whole.x0 - 1, text.get_text()
        assert box.x1 <= whole.x1 + 1, text.get_text()
    names = [text.get_window_extent(renderer) for text in ax.texts[2:-1]]
    assert not any(a.overlaps(b) for a, b in combinations(names, 2))
    said = [text.get_text() for text in legend.get_texts()]
    drawn = [one for one in ax.collections if len(one.get_offsets()) or len(one.get_paths())]
    assert drawn
    assert "sensitivity hull" in said
    assert any(isinstance(patch, Circle) for patch in ax.patches)
    hexagons = [one for one in ax.collections if isinstance(one, PolyCollection) and one.get_array() is not None]
    if kind == "many":
        assert [int(np.asarray(one.get_array()).sum()) > 50_000 for one in hexagons] == [True, True]
    else:
        assert not hexagons
    if kind == "private":
        outside = int((walks.GRID.locate(tracks[0].latitude, tracks[0].longitude) < 0).sum())
        assert f"outside the region, moved to its border or dropped: {outside}" in said


def test_the_view_holds_every_estimate_and_most_releases():
    table = walks.many(5_000, 3)
    found = ReleaseMap(table, walks.GRID)
    _, ax = figures.new_figure()
    outside = found.draw(ax)
    (west, east), (south, north) = ax.get_xlim(), ax.get_ylim()
    estimates = found.projection.to_plane(table["estimate_latitude"], table["estimate_longitude"])
    releases = found.projection.to_plane(table["latitude"], table["longitude"])
    assert ((estimates > [west, south]) & (estimates < [east, north])).all()
    inside = ((releases >= [west, south]) & (releases <= [east, north])).all(axis=1)
    assert abs(int((~inside).sum()) - outside) <= 0.05 * len(table)  # the noise beside the data widens the view
    assert outside < 0.2 * len(table)


@pytest.mark.parametrize("masked", [False, True])
def test_the_lines_of_a_grid_are_the_sides_of_its_cells(masked):
    full = Grid.over((44.99, 6.99, 45.01, 7.01), 0.5)
    mask = np.random.default_rng(0).random((full.rows, full.columns)) < 0.6 if masked else None
    grid = Grid(full.projection, full.origin_m, 0.5, full.columns, full.rows, mask)
    sides = set()
    for corners in grid.points[:, None] + 0.25 * np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]):
        for a, b in zip(corners, np.roll(corners, -1, axis=0), strict=True):
            sides.add(tuple(np.round((a + b) / 2, 6) + 0.0))
    found = set()
    for line in _grid_lines(grid):
        length = np.abs(line[-1] - line[0]).sum()
        count = round(length / 0.5)
        steps = (np.arange(count) + 0.5) / count
        middles = line[0] + steps[:, None] * (line[-1] - line[0])
        assert not found & {tuple(np.round(one, 6) + 0.0) for one in middles}
        found |= {tuple(np.round(one, 6) + 0.0) for one in middles}
    assert found == sides


def test_edges_are_listed_up_to_a_number():
    graph = policy()
    edges = graph.edge_array()
    np.testing.assert_array_equal(some_edges(graph, len(edges)), edges)
    assert some_edges(graph, len(edges) - 1) is None
    assert some_edges(PolicyGraph.complete(600), 100_000) is None


def test_a_page_of_a_hundred_thousand_moments_is_below_three_megabytes():
    found = ReleaseMap(walks.many(100_000, 50), walks.GRID, policy=policy(), policy_text="utility:2km")
    page = found.to_html()
    assert len(page.encode()) < 3_000_000
    told = data_of(page)
    assert [layer["n"] for layer in told["layers"][1:]] == [100_000, 100_000]
    assert told["policy"]["edges"] == len(policy().edge_array())
    assert told["basemap"]["names"]


def test_a_basemap_without_water_or_names_has_those_of_the_world(tmp_path):
    road = {"type": "LineString", "coordinates": [[-118.5, 34.0], [-118.2, 34.0]]}
    town = {"type": "Point", "coordinates": [-118.3, 34.0]}
    features = [
        {"type": "Feature", "properties": {"highway": "primary"}, "geometry": road},
        {"type": "Feature", "properties": {"place": "town", "name": "Mine"}, "geometry": town},
    ]
    for count, names in ((1, "Los Angeles"), (2, "Mine")):
        (tmp_path / "b.geojson").write_text(json.dumps({"type": "FeatureCollection", "features": features[:count]}))
        found = basemap_of(tmp_path / "b.geojson", (33.7, -118.7, 34.2, -118.1))
        assert found.water
        assert found.names[0].name == names
        assert "b.geojson" in found.credit
        assert "GeoNames" in found.credit


def test_a_page_without_the_truth_holds_no_true_place():
    page = ReleaseMap(walks.released(20), walks.GRID).to_html("Title")
    assert [layer["name"] for layer in data_of(page)["layers"]] == ["states", "released", "estimate (posterior mean)"]
    private = ReleaseMap(walks.released(20), walks.GRID, [walks.walk(60, reach=0.3)]).to_html("Title")
    names = [layer["name"] for layer in data_of(private)["layers"]]
    assert names[3:] == ["true places (private)", "outside the region (private): moved to its border or dropped"]


def test_the_legend_of_a_map_that_is_written_does_not_meet_the_axis(tmp_path, monkeypatch):
    """One pass of the layout leaves it over the axis's label on this map, which the tutorial shows."""
    (tmp_path / "data").symlink_to(ROOT / "data")
    ours = "--model model.npz --policy utility:1km --user ann"
    run_line(
        "dphmm learn data/sample/table.csv --bbox 44.96 -30.04 45.04 -29.96 --cell 0.5 --step 300 -o model.npz",
        tmp_path,
    )
    run_line(f"dphmm release data/sample/track.gpx {ours} --day-epsilon 10 --seed 1 -o private.csv", tmp_path)
    gaps = []

    def savefig(figure, file, **_):
        figure.draw_without_rendering()  # what is written is what one pass makes of it
        label, legend = (one.get_window_extent() for one in (figure.axes[0].xaxis.label, figure.legends[0]))
        gaps.append(label.y0 - legend.y1)
        file.touch()

    monkeypatch.setattr(Figure, "savefig", savefig)
    run_line(f"dphmm show private.csv {ours} --true data/sample/track.gpx -o PRIVATE-map.png", tmp_path)
    assert min(gaps) > 0
