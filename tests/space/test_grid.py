"""The grid: an exact lattice over its box, compared with brute force, and its round trip."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
import shapely
import shapely.affinity
from hypothesis import given, settings
from hypothesis import strategies as st

from dphmm.errors import ConfigurationError, CoordinateError, StateError
from dphmm.space import Grid, LocalProjection, StateSpace
from tests.sizes import choose_count

boxes = st.tuples(st.floats(-70, 70), st.floats(-179, 178), st.floats(0.01, 0.5), st.floats(0.01, 0.5)).map(
    lambda b: (b[0], b[1], b[0] + b[2], b[1] + b[3])
)
fractions = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=20)
triangle = shapely.Polygon([(7.5, 45.0), (7.7, 45.02), (7.6, 45.15)])


@pytest.mark.slow
@settings(max_examples=choose_count(60, 20))
@given(boxes, fractions, st.floats(0.5, 20))
def test_place_in_box_belongs_to_surrounding_cell(box, inside, cell):
    grid = Grid.over(box, cell)
    lat = np.minimum(box[0] + np.array([f[0] for f in inside]) * (box[2] - box[0]), box[2])
    lon = np.minimum(box[1] + np.array([f[1] for f in inside]) * (box[3] - box[1]), box[3])
    states = grid.locate(lat, lon)
    assert (states >= 0).all()
    offset = grid.projection.to_plane(lat, lon) - grid.points[states]
    assert np.abs(offset).max() <= cell / 2 * (1 + 1e-9)
    assert states.tolist() == grid.find_nearest_states(lat, lon).tolist()


@pytest.mark.slow
@settings(max_examples=choose_count(60, 20))
@given(boxes, st.floats(0.5, 20))
def test_points_follow_lattice_and_states_round_trip(box, cell):
    grid = Grid.over(box, cell)
    assert (grid.points == grid.origin + grid.cell_km * grid.lattice).all()
    assert grid.lattice.dtype == np.int64
    assert grid.state_at(grid.lattice).tolist() == list(range(grid.size))
    latlon = grid.latlon()
    assert grid.locate(latlon[:, 0], latlon[:, 1]).tolist() == list(range(grid.size))


@given(st.integers(1, 5000), st.integers(-(10**6), 10**6), st.integers(1, 30))
def test_measurements_of_grid_equal_lattice_and_points(metres, east, columns):
    grid = Grid(LocalProjection(45, 7), (east, -east), metres / 1000, columns, 3)
    measured = grid.measurements()
    assert measured.is_lattice
    assert measured.points.tolist() == grid.points.tolist()
    steps = np.rint(grid.points * 1000 - [east, -east])
    assert steps.tolist() == (metres * grid.lattice).tolist()
    assert measured.coordinates.tolist() == (grid.lattice - grid.lattice.min(axis=0)).tolist()


def test_fractional_metre_cells_have_exact_coordinates():
    grid = Grid(LocalProjection(45, 7), (12345, -9), 0.3333, 7, 5)
    assert grid.measurements().coordinates.tolist() == grid.lattice.tolist()


def test_polygon_keeps_cells_with_centre_within():
    grid = Grid.over(triangle, 0.7)
    everywhere = Grid(grid.projection, grid.origin_m, grid.cell_km, grid.columns, grid.rows)
    latlon = everywhere.latlon()
    wanted = [cell for cell, (lat, lon) in enumerate(latlon) if triangle.contains(shapely.Point(lon, lat))]
    assert grid.lattice.tolist() == everywhere.lattice[wanted].tolist()
    assert 0 < grid.size < everywhere.size


def test_hole_of_multipolygon_has_no_cells():
    ring = shapely.Point(7.6, 45.1).buffer(0.1).difference(shapely.Point(7.6, 45.1).buffer(0.05))
    grid = Grid.over(shapely.MultiPolygon([ring, shapely.box(7.9, 45.0, 8.0, 45.1)]), 0.5)
    assert grid.locate([45.1, 45.1, 45.05], [7.6, 7.675, 7.95]).tolist()[0] == -1
    assert (grid.locate([45.1, 45.05], [7.675, 7.95]) >= 0).all()


@pytest.mark.parametrize("meridian", [10.02, 9.93, 10.08])
def test_polygon_across_date_line_has_states_of_equal_polygon_inland(meridian):
    ring = shapely.Polygon([(9.9, -17.0), (10.1, -17.05), (10.14, -16.8), (9.95, -16.75)])
    ring = ring.difference(shapely.Point(10.0, -16.9).buffer(0.03))
    west, east = (
        ring.intersection(shapely.box(*sides)) for sides in ((9, -18, meridian, -16), (meridian, -18, 11, -16))
    )
    turned = [shapely.affinity.translate(west, 180 - meridian), shapely.affinity.translate(east, -180 - meridian)]
    inland, across = Grid.over(ring, 0.7), Grid.over(shapely.MultiPolygon(turned), 0.7)
    assert across.lattice.tolist() == inland.lattice.tolist()
    assert across.points == pytest.approx(inland.points, abs=0.002)
    turn = (across.latlon() - inland.latlon() - [0, 180 - meridian] + 180) % 360 - 180
    assert turn == pytest.approx(0.0, abs=2e-5)


@pytest.mark.parametrize("box", [(-170, 85, 170, 89), (-180, 88, 180, 90), (-100, 86, 100, 88)])
def test_wide_polygon_at_pole_is_not_its_complement(box):
    grid = Grid.over(shapely.box(*box), 50.0)
    west, south, east, north = box
    latlon = grid.latlon()
    assert len(latlon)
    assert (latlon >= [south, west]).all()
    assert (latlon <= [north, east]).all()


def test_nearest_in_polygon_equals_brute_force():
    grid = Grid.over(triangle, 0.7)
    random = np.random.default_rng(5)
    lat, lon = random.uniform(44.9, 45.3, 200), random.uniform(7.3, 7.9, 200)
    plane = grid.projection.to_plane(lat, lon)
    distance = np.linalg.norm(plane[:, None] - grid.points[None], axis=2)
    nearest = grid.find_nearest_states(lat, lon)
    assert np.allclose(distance[np.arange(200), nearest], distance.min(axis=1), rtol=1e-12, atol=0)


def test_nearest_outside_rectangle_equals_brute_force():
    grid = Grid.over((45.0, 7.5, 45.1, 7.6), 0.9)
    random = np.random.default_rng(6)
    lat, lon = random.uniform(44.8, 45.3, 200), random.uniform(7.3, 7.9, 200)
    plane = grid.projection.to_plane(lat, lon)
    distance = np.linalg.norm(plane[:, None] - grid.points[None], axis=2)
    nearest = grid.find_nearest_states(lat, lon)
    assert np.allclose(distance[np.arange(200), nearest], distance.min(axis=1), rtol=1e-12, atol=0)


def test_border_point_belongs_to_east_or_north_cell():
    grid = Grid(LocalProjection(45, 7), (0, 0), 1.0, 2, 2)
    assert grid.locate_plane(np.array([[0.5, 0.0], [0.0, 0.5], [-0.5, -0.5], [1.5, 0.0]])).tolist() == [1, 2, 0, -1]


@pytest.mark.parametrize("region", [(45.0, 7.5, 45.1, 7.6), triangle], ids=["box", "polygon"])
def test_json_and_pickle_round_trip_grid_exactly(region):
    grid = Grid.over(region, 0.7)
    for copy in (StateSpace.from_json(json.loads(json.dumps(grid.to_json()))), pickle.loads(pickle.dumps(grid))):
        assert isinstance(copy, Grid)
        assert copy == grid
        assert copy.points.tolist() == grid.points.tolist()
        assert copy.lattice.tolist() == grid.lattice.tolist()


def test_full_mask_equals_no_mask():
    args = (LocalProjection(45, 7), (0, 0), 1.0, 2, 3)
    assert Grid(*args) == Grid(*args, np.ones((3, 2), dtype=np.bool_))


def test_box_over_date_line_equals_other_box():
    across, along = Grid.over((0, 179.9, 0.2, -179.9), 1.0), Grid.over((0, 9.9, 0.2, 10.1), 1.0)
    assert (across.columns, across.rows) == (along.columns, along.rows)
    assert (across.locate([0.1, 0.1], [179.95, -179.95]) >= 0).all()


def test_presets_have_paper_cell_sizes_and_cover_boxes():
    geolife, gowalla = Grid.preset("geolife"), Grid.preset("gowalla")
    assert (geolife.cell_km, gowalla.cell_km) == (0.34, 0.89)
    corners = ([39.87, 39.87, 39.97, 39.97], [116.29, 116.46, 116.29, 116.46])
    assert (geolife.locate(*corners) >= 0).all()
    assert (gowalla.locate([33.7037, 34.3373], [-118.6682, -118.1553]) >= 0).all()
    assert geolife.size == 43 * 33
    with pytest.raises(ConfigurationError, match="geolife"):
        Grid.preset("brightkite")


ARGS = (LocalProjection(45, 7), (0, 0))


@pytest.mark.parametrize(
    ("error", "make"),
    [
        (ConfigurationError, lambda: Grid(*ARGS, 0.0, 2, 2)),
        (ConfigurationError, lambda: Grid(*ARGS, float("nan"), 2, 2)),
        (ConfigurationError, lambda: Grid(*ARGS, 1.0, 0, 2)),
        (ConfigurationError, lambda: Grid(*ARGS, 1.0, 10**6, 10**6)),
        (CoordinateError, lambda: Grid(*ARGS, 100.0, 100, 100)),
        (CoordinateError, lambda: Grid(*ARGS, 1.7e308, 1, 1)),
        (StateError, lambda: Grid(*ARGS, 1.0, 2, 2, np.zeros((2, 2), dtype=np.bool_))),
        (StateError, lambda: Grid(*ARGS, 1.0, 2, 2, np.ones((2, 3), dtype=np.bool_))),
        (StateError, lambda: Grid(*ARGS, 1.0, 2, 2, np.ones((2, 2)))),
        (CoordinateError, lambda: Grid.over((45.1, 7.5, 45.0, 7.6), 1.0)),
        (CoordinateError, lambda: Grid.over((45.0, 7.5, 45.1, 7.5), 1.0)),
        (CoordinateError, lambda: Grid.over((45.0, 7.5, 400.17, 7.6), 1.0)),
        (CoordinateError, lambda: Grid.over((45.0, 7.5, 45.1), 1.0)),
        (CoordinateError, lambda: Grid.over((0, -100, 60, 100), 100.0)),
        (CoordinateError, lambda: Grid.over(shapely.Polygon(), 1.0)),
        (CoordinateError, lambda: Grid.over(shapely.Polygon([(0, 0), (1, 1), (1, 0), (0, 1)]), 1.0)),
        (CoordinateError, lambda: Grid.over("Beijing", 1.0)),
        (ConfigurationError, lambda: Grid.over((45.0, 7.5, 46.0, 8.5), 0.001)),
        (ConfigurationError, lambda: Grid.over((45.0, 7.5, 46.0, 8.5), -1.0)),
        (
            StateError,
            lambda: Grid.over(shapely.box(7.5, 45, 7.501, 45.2).difference(shapely.box(7, 45.09, 8, 45.11)), 30),
        ),
        (StateError, lambda: Grid(*ARGS, 1.0, 2, 2).state_at([[0.0, 1.0]])),
        (StateError, lambda: StateSpace.from_json(Grid(*ARGS, 1.0, 2, 2).to_json() | {"runs": [[0, 5]]})),
        (StateError, lambda: StateSpace.from_json(Grid(*ARGS, 1.0, 2, 2).to_json() | {"runs": []})),
    ],
)
def test_invalid_grid_raises(error, make):
    with pytest.raises(error) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_geolife_preset_covers_traces_within_third_ring(real_data):
    import tarfile

    grid = Grid.preset("geolife")
    with tarfile.open(real_data / "geolife" / "geolife_beijing.tar.gz") as archive:
        member = archive.extractfile("Data/003/Trajectory/20081121033709.plt") or pytest.fail("member is gone")
        rows = np.loadtxt(member, delimiter=",", skiprows=6, usecols=(0, 1))
    in_ring = (rows[:, 0] >= 39.87) & (rows[:, 0] <= 39.97) & (rows[:, 1] >= 116.29) & (rows[:, 1] <= 116.46)
    states = grid.locate(rows[:, 0], rows[:, 1])
    assert in_ring.any()
    assert (states[in_ring] >= 0).all()


def test_gowalla_preset_covers_los_angeles_check_ins(real_data):
    rows = np.loadtxt(real_data / "gowalla" / "loc-gowalla_LA.txt.gz", delimiter="\t", usecols=(2, 3))
    assert (Grid.preset("gowalla").locate(rows[:, 0], rows[:, 1]) >= 0).all()


@pytest.mark.parametrize("cell", [1e-308, 1e-10])
def test_too_small_cell_raises(cell):
    with pytest.raises(ConfigurationError, match="cell_km must be in"):
        Grid(LocalProjection(45.0, 7.0), (0, 0), cell, 2, 2)
