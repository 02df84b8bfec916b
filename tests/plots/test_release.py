"""Tests of release maps: their text, and figures with few and many timesteps."""

from __future__ import annotations

import json
from itertools import combinations

import numpy as np
import pytest
import shapely
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Circle

from dphmm import MarkovModel, ReleaseSettings
from dphmm.errors import DataFileError
from dphmm.plots import ReleaseMap, canvas
from dphmm.plots.basemap import build_basemap
from dphmm.plots.release import _build_grid_lines, collect_edges, draw_ground
from dphmm.policy import PolicyGraph
from dphmm.release.trajectory_release import release_trajectory
from dphmm.space.grid import Grid
from dphmm.space.streets import Streets
from dphmm.space.trajectory import Trajectory
from dphmm.writers import ReleaseTable
from tests.documents import ROOT, run_line
from tests.plots import walks
from tests.plots.test_webmap import read_page_data
from tests.plots.test_webmap_coding import decode_integers, decode_numbers
from tests.sizes import mark_slow


def make_policy() -> PolicyGraph:
    return PolicyGraph.utility(walks.GRID.measurements(), 2.0)


def test_title_states_policy_epsilon_and_errors_and_note_states_content():
    table = walks.release_walk(20)
    hides = "A release hides between locations within 2 km."
    release_map = ReleaseMap(table, walks.GRID, policy=make_policy(), policy_text="utility:2km", remarks=hides)
    released, estimated = np.median(table["expected_error_m"]), np.median(table["estimate_error_m"])
    errors = f"of releases {released:,.0f} m, of estimates {estimated:,.0f} m"
    assert release_map.title == f"utility:2km, ε = 1: median error {errors}"
    assert release_map.note.startswith("20 releases of 1 user. A release hides between locations within 2 km.")
    assert "do not publish it" not in release_map.note
    assert "do not publish it" in ReleaseMap(table, walks.GRID, [walks.walk(20)]).note
    assert ReleaseMap(table).title.startswith("lattice, ε = 1: median error of releases")
    unprotected = ReleaseTable({**table.columns, "unprotected": np.arange(20) < 15})
    protected = np.median(table["estimate_error_m"][15:])
    assert ReleaseMap(unprotected).title.endswith(f"of estimates {protected:,.0f} m")
    assert ReleaseMap(table.select(np.arange(20) < 1), walks.GRID).note.startswith("1 release of 1 user.")


@pytest.mark.parametrize(
    ("is_private", "beginning"),
    [
        (None, "20 releases of 1 user. Errors"),
        (True, "20 private releases of 1 user. Errors"),
        (False, "20 repeatable releases of 1 user. No privacy guarantee: the noise is seeded and can be reproduced."),
    ],
    ids=["unknown", "system", "seeded"],
)
def test_note_calls_releases_private_only_if_their_noise_is(is_private, beginning):
    assert ReleaseMap(walks.release_walk(20), walks.GRID, is_private=is_private).note.startswith(beginning)


@pytest.mark.parametrize("num_placed", [0, 3])
def test_releases_beyond_the_earth_are_omitted_from_figure(num_placed):
    """Noise of a small epsilon can exceed the size of the Earth: no latitude."""
    table = walks.release_walk(6)
    beyond = np.arange(6) >= num_placed
    moved = {name: np.where(beyond, np.nan, table[name]) for name in ("latitude", "longitude")}
    _, ax = canvas.create_figure(4, 4)
    ReleaseMap(ReleaseTable({**table.columns, **moved}), walks.GRID).draw(ax)
    (samples,) = [line for line in ax.lines if line.get_label() == "sampled location"]
    assert len(samples.get_xdata()) == num_placed


@pytest.mark.slow
@pytest.mark.parametrize("width", [4.2, 12.8])
@pytest.mark.parametrize("kind", ["one", "few", "private", mark_slow("many")])
def test_map_elements_do_not_overlap_and_lie_within_figure(kind, width):
    table = walks.sample_table(100_000, 20) if kind == "many" else walks.release_walk(1 if kind == "one" else 20)
    tracks = [walks.walk(60, reach=0.3)] if kind == "private" else []
    release_map = ReleaseMap(table, walks.GRID, tracks, policy=make_policy(), policy_text="utility:2km")
    figure, ax = canvas.create_figure(width, width)
    release_map.draw(ax)
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
    labels = [text.get_text() for text in legend.get_texts()]
    plotted = [
        collection for collection in ax.collections if len(collection.get_offsets()) or len(collection.get_paths())
    ]
    assert plotted
    assert "sensitivity hull" in labels
    assert any(isinstance(patch, Circle) for patch in ax.patches)
    hexagons = [
        collection
        for collection in ax.collections
        if isinstance(collection, PolyCollection) and collection.get_array() is not None
    ]
    if kind == "many":
        assert [int(np.asarray(hexagon.get_array()).sum()) > 50_000 for hexagon in hexagons] == [True, True]
    else:
        assert not hexagons
    if kind == "private":
        outside = int((walks.GRID.locate(tracks[0].latitude, tracks[0].longitude) < 0).sum())
        assert f"outside the region, moved to its border or dropped: {outside}" in labels


def test_view_contains_all_estimates_and_most_releases():
    table = walks.sample_table(5_000, 3)
    release_map = ReleaseMap(table, walks.GRID)
    _, ax = canvas.create_figure()
    outside = release_map.draw(ax)
    (west, east), (south, north) = ax.get_xlim(), ax.get_ylim()
    estimates = release_map.projection.to_plane(table["estimate_latitude"], table["estimate_longitude"])
    releases = release_map.projection.to_plane(table["latitude"], table["longitude"])
    assert ((estimates > [west, south]) & (estimates < [east, north])).all()
    inside = ((releases >= [west, south]) & (releases <= [east, north])).all(axis=1)
    assert abs(int((~inside).sum()) - outside) <= 0.05 * len(table)  # the noise next to the data widens the view
    assert outside < 0.2 * len(table)


@pytest.mark.parametrize("masked", [False, True])
def test_grid_lines_are_sides_of_cells(masked):
    full = Grid.over((44.99, 6.99, 45.01, 7.01), 0.5)
    mask = np.random.default_rng(0).random((full.rows, full.columns)) < 0.6 if masked else None
    grid = Grid(full.projection, full.origin_m, 0.5, full.columns, full.rows, mask)
    sides = set()
    for corners in grid.points[:, None] + 0.25 * np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]):
        for a, b in zip(corners, np.roll(corners, -1, axis=0), strict=True):
            sides.add(tuple(np.round((a + b) / 2, 6) + 0.0))
    covered = set()
    for line in _build_grid_lines(grid):
        length = np.abs(line[-1] - line[0]).sum()
        count = round(length / 0.5)
        steps = (np.arange(count) + 0.5) / count
        middles = line[0] + steps[:, None] * (line[-1] - line[0])
        assert not covered & {tuple(np.round(middle, 6) + 0.0) for middle in middles}
        covered |= {tuple(np.round(middle, 6) + 0.0) for middle in middles}
    assert covered == sides


def test_edges_are_listed_up_to_a_limit():
    graph = make_policy()
    edges = graph.edge_array()
    np.testing.assert_array_equal(collect_edges(graph, len(edges)), edges)
    assert collect_edges(graph, len(edges) - 1) is None
    assert collect_edges(PolicyGraph.complete(600), 100_000) is None


@pytest.mark.slow
def test_page_of_100000_timesteps_is_below_3_megabytes():
    release_map = ReleaseMap(
        walks.sample_table(100_000, 50), walks.GRID, policy=make_policy(), policy_text="utility:2km"
    )
    page = release_map.to_html()
    assert len(page.encode()) < 3_000_000
    page_data = read_page_data(page)
    assert [layer["n"] for layer in page_data["layers"][1:]] == [100_000, 100_000]
    assert page_data["policy"]["edges"] == len(make_policy().edge_array())
    assert page_data["basemap"]["names"]


def test_basemap_without_water_or_names_uses_those_of_the_world(tmp_path):
    road = {"type": "LineString", "coordinates": [[-118.5, 34.0], [-118.2, 34.0]]}
    town = {"type": "Point", "coordinates": [-118.3, 34.0]}
    features = [
        {"type": "Feature", "properties": {"highway": "primary"}, "geometry": road},
        {"type": "Feature", "properties": {"place": "town", "name": "Mine"}, "geometry": town},
    ]
    for count, names in ((1, "Los Angeles"), (2, "Mine")):
        (tmp_path / "b.geojson").write_text(json.dumps({"type": "FeatureCollection", "features": features[:count]}))
        basemap = build_basemap(tmp_path / "b.geojson", (33.7, -118.7, 34.2, -118.1))
        assert basemap.water
        assert basemap.names[0].name == names
        assert "b.geojson" in basemap.credit
        assert "GeoNames" in basemap.credit


def test_page_without_true_tracks_contains_no_true_locations():
    page = ReleaseMap(walks.release_walk(20), walks.GRID).to_html("Title")
    assert [layer["name"] for layer in read_page_data(page)["layers"]] == [
        "states",
        "sampled location",
        "estimate at a sample",
    ]
    private = ReleaseMap(walks.release_walk(20), walks.GRID, [walks.walk(60, reach=0.3)]).to_html("Title")
    names = [layer["name"] for layer in read_page_data(private)["layers"]]
    assert names[3:] == ["true locations (private)", "outside the region (private): moved to its border or dropped"]


def test_page_across_date_line_is_that_of_equal_region_inland():
    """Oracle: the page of a region of equal form at longitude 0, moved by 180°."""
    pages = []
    for west in (179.9, -0.1):
        east = (west + 0.2 + 180) % 360 - 180
        grid = Grid.over((-17.1, west, -16.9, east), cell_km=2.0)
        model = MarkovModel(
            np.full((grid.size, grid.size), 1 / grid.size), np.full(grid.size, 1 / grid.size), grid, 300.0
        )
        engine = ReleaseSettings("utility:3km", 1.0).engine(model, rng=1)
        longitude = (west + np.linspace(0.01, 0.19, 20) + 180) % 360 - 180
        track = Trajectory("ann", walks.START + np.arange(20) * walks.STEP, np.full(20, -17.0), longitude)
        table = ReleaseTable.from_releases(release_trajectory(engine, grid, track.resample(300.0)))
        middle = (west + 0.1 + 180) % 360 - 180
        ring = np.array([[-17.0, 0.01], [-17.0, 0.02], [-16.99, 0.02]]) + np.array([0.0, middle])
        polygon = shapely.Polygon(ring[:, ::-1])
        policy = PolicyGraph.utility(grid.measurements(), 3.0, grid.cell_km)
        pages.append(read_page_data(ReleaseMap(table, grid, [track], [("a", polygon)], policy).to_html("T")))
    longitudes = [
        {part.get("name"): decode_longitudes(part, page["codes"]) for part in (*page["layers"], page["policy"])}
        for page in pages
    ]
    assert len(longitudes[0]) == 6
    for name, inland in longitudes[1].items():
        turned = longitudes[0][name] - inland
        assert np.ptp(turned) < 1e-3, name
        assert abs(turned[0]) == pytest.approx(180, abs=1e-3)


@pytest.mark.parametrize("west", [179.9, -178.9], ids=["across", "east of it"])
def test_map_file_is_refused_only_across_date_line(tmp_path, west):
    road = {"type": "LineString", "coordinates": [[-179.0, -17.0], [-178.7, -17.0]]}
    feature = {"type": "Feature", "properties": {"highway": "primary"}, "geometry": road}
    (tmp_path / "road.geojson").write_text(json.dumps({"type": "FeatureCollection", "features": [feature]}))
    grid = Grid.over((-17.1, west, -16.9, (west + 0.2 + 180) % 360 - 180), cell_km=2.0)
    model = MarkovModel(np.full((grid.size, grid.size), 1 / grid.size), np.full(grid.size, 1 / grid.size), grid, 300.0)
    engine = ReleaseSettings("utility:3km", 1.0).engine(model, rng=1)
    (latitude, longitude), times = grid.latlon(0)[0], walks.START + np.arange(2) * walks.STEP
    track = Trajectory("ann", times, np.full(2, latitude), np.full(2, longitude)).resample(300.0)
    table = ReleaseTable.from_releases(release_trajectory(engine, grid, track))
    release_map = ReleaseMap(table, grid, basemap=tmp_path / "road.geojson")
    _, ax = canvas.create_figure()
    if west > 0:
        for draw in (release_map.to_html, lambda: release_map.draw(ax)):
            with pytest.raises(DataFileError, match=r"road\.geojson: .* date line"):
                draw()
        ax.set(xlim=(-9, 9), ylim=(-9, 9))
        draw_ground(ax, grid.projection, tmp_path / "road.geojson", is_optional=True)
        assert "date line" in ax.texts[-1].get_text()
    else:
        assert read_page_data(release_map.to_html())["basemap"]["lines"]["road"]


def decode_longitudes(part, codes):
    column = part["longitude"]
    code = column.get("code", "")
    column = column | {"code": codes[code] if isinstance(code, int) else code}
    return np.array(decode_numbers(column, part.get("points", part["n"])))


def test_page_contains_every_segment_of_streets():
    streets = Streets([[339500000, -1184000000], [341000000, -1184000000], [341000000, -1182000000]], [3])
    page = ReleaseMap(walks.release_walk(20), streets).to_html("Title")
    states = read_page_data(page)["layers"][0]
    (line,) = ReleaseMap(walks.release_walk(20), streets)._build_background_layers()[0].points
    assert (states["name"], states["kind"]) == ("states", "strokes")
    np.testing.assert_allclose(line, [[33.95, -118.4], [34.1, -118.4], [34.1, -118.2]], atol=1e-7)


@pytest.mark.slow
def test_legend_of_written_map_does_not_overlap_axis_label(tmp_path, monkeypatch):
    """With a single layout pass, the legend of this map overlaps the axis label."""
    (tmp_path / "data").symlink_to(ROOT / "data")
    options = "--model model.npz --policy utility:1km --user ann"
    run_line(
        "dphmm learn data/sample/table.csv --bbox 44.96 -30.04 45.04 -29.96 --cell 0.5 --step 300 -o model.npz",
        tmp_path,
    )
    run_line(f"dphmm release data/sample/track.gpx {options} --window-epsilon 10 --seed 1 -o private.csv", tmp_path)
    gaps = []

    def savefig(figure, file, **_):
        figure.draw_without_rendering()  # the written figure is the result of one layout pass
        label, legend = (artist.get_window_extent() for artist in (figure.axes[0].xaxis.label, figure.legends[0]))
        gaps.append(label.y0 - legend.y1)
        file.touch()

    monkeypatch.setattr(Figure, "savefig", savefig)
    run_line(f"dphmm show private.csv {options} --true data/sample/track.gpx -o PRIVATE-map.png", tmp_path)
    assert min(gaps) > 0


def withhold(table: ReleaseTable, withheld: np.ndarray, **columns: object) -> ReleaseTable:
    reasons = np.where(withheld, "budget", "").astype(object)
    hidden = {name: np.where(withheld, np.nan, table[name]) for name in ("x_km", "y_km", "latitude", "longitude")}
    return ReleaseTable({**table.columns, **hidden, "withheld": withheld, "withheld_reason": reasons, **columns})


def test_circles_are_calibrated_radii_with_their_legend_where_the_model_is_calibrated():
    """Without calibration they are expected errors."""
    table = walks.release_walk(20)
    plain = withhold(table, np.arange(20) % 4 > 0, calibrated_radius_90_m=np.full(20, np.nan))
    calibrated = withhold(table, np.arange(20) % 4 > 0, calibrated_radius_90_m=2 * table["estimate_error_m"])
    for shown, name, factor in ((plain, "expected error", 1), (calibrated, "calibrated radius: contains 90 %", 2)):
        _, ax = canvas.create_figure()
        ReleaseMap(shown, walks.GRID).draw(ax)
        (area,) = (patch for patch in ax.patches if patch.get_label() == "predicted between samples")
        reach = factor * float(table["estimate_error_m"].max()) / 1000
        assert reach < area.get_path().get_extents().width
        labels = ax.get_legend_handles_labels()[1]
        assert [label for label in labels if label.startswith(name)]
        lines = read_page_data(ReleaseMap(shown, walks.GRID).to_html("T"))["layers"]
        radii = {layer["radius_name"] for layer in lines if "radii" in layer}
        assert [radius.startswith(name) for radius in radii] == [True]


def test_map_contains_the_predicted_area_up_to_its_largest_extension():
    table, withheld = walks.release_walk(20), np.arange(20) % 4 > 0
    contained = []
    for radius_m in (6_000.0, 1_000_000.0):
        _, ax = canvas.create_figure()
        radii = np.where(np.arange(20) % 5 < 2, radius_m, 10.0)
        ReleaseMap(withhold(table, withheld, calibrated_radius_90_m=radii), walks.GRID).draw(ax)
        (area,) = (patch for patch in ax.patches if patch.get_label() == "predicted between samples")
        contained.append(bool(ax.get_xlim()[0] <= area.get_path().get_extents().x0))
    assert contained == [True, False]


def test_each_of_few_users_has_a_panel_with_one_view_and_no_line_through_predictions():
    table = walks.sample_table(60, 3)
    table = withhold(table, np.arange(60) % 5 > 0)
    figure, _ = canvas.create_panels(9.0, 9.0, rows=0)
    caption = ReleaseMap(table, walks.GRID).draw_panels(figure)
    assert caption.startswith("12 releases of 3 users, and predictions at 48 timesteps")
    users = sorted(set(table["user"].tolist()))
    assert [ax.get_title().partition(":")[0] for ax in figure.axes] == users
    assert len({(*ax.get_xlim(), *ax.get_ylim()) for ax in figure.axes}) == 1
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert {"sampled location", "estimate at a sample", "predicted between samples"} < set(labels)
    for ax, user in zip(figure.axes, users, strict=True):
        sampled = int((~table["withheld"][table["user"] == user]).sum())
        (dots,) = (line for line in ax.lines if line.get_label() == "sampled location")
        assert len(dots.get_xdata()) == sampled
        joined = [line for line in ax.lines if line.get_linestyle() == "-" and line.get_color() == canvas.BLUE]
        assert all(len(line.get_xdata()) == 1 for line in joined), "predictions lie between all samples"


def test_predictions_between_samples_are_an_area_and_break_the_line_of_estimates():
    table = withhold(walks.release_walk(20), np.isin(np.arange(20), [5, 6, 12]))
    layers = {layer["name"]: layer for layer in read_page_data(ReleaseMap(table).to_html("T"))["layers"]}
    assert list(layers) == ["predicted between samples", "sampled location", "estimate at a sample"]
    assert [layers[name]["kind"] for name in layers] == ["area", "dots", "line"]
    assert [layers[name]["n"] for name in layers] == [3, 17, 17]
    assert decode_integers(layers["estimate at a sample"]["trips"]) == [5, 10]


@pytest.mark.parametrize("tiles", [None, "https://tiles.example/{z}/{x}/{y}.png"])
def test_map_of_streets_is_credited(tiles):
    """As its licence may require, with and without another background."""
    vertices = [[339500000, -1184000000], [341000000, -1184000000]]
    shown = ReleaseMap(walks.release_walk(20), Streets(vertices, [2], credit="© Street mappers."))
    figure, ax = canvas.create_figure(4, 4)
    shown.draw(ax)
    assert any("© Street mappers." in text.get_text() for text in (*ax.texts, *figure.texts))
    assert "© Street mappers." in shown.to_html("Title", tiles, "Tiles." if tiles else "")
    assert "mappers" not in ReleaseMap(walks.release_walk(20), Streets(vertices, [2])).to_html("Title")
