"""Segments of streets: splitting, distances by networkx, nearest segments, limits."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
import shapely
from hypothesis import given, settings
from hypothesis import strategies as st

from dphmm.errors import ConfigurationError, StateError
from dphmm.space import StateSpace, Streets
from dphmm.space.streets import MAX_SEGMENTS
from dphmm.tables.street_map import STREET_CLASSES, StreetMap

SOUTH = 45.0
WEST = 7.0
STEP = 0.004  # degrees between the corners of the test towns: 445 m by 315 m
STREET = STREET_CLASSES.index("street")
PATH = STREET_CLASSES.index("path")


def build_map(corners, edges, classes=None):
    """Build a map of straight streets between corners, in steps of `STEP`."""
    nodes = np.round(np.array([SOUTH, WEST]) + STEP * np.array(corners, dtype=float), 7)
    edges = np.array(edges, dtype=np.int64).reshape(-1, 2)
    classes = np.full(len(edges), STREET) if classes is None else np.array(classes)
    lengths = np.hypot(*((nodes[edges[:, 1]] - nodes[edges[:, 0]]) * [111.2, 78.8]).T)
    return StreetMap(nodes, edges, lengths, classes, np.zeros((0, 2)), np.zeros((0, 2)))


def build_graph(space):
    """Build the graph of the ends of segments, with their middles as nodes, from their lines."""
    graph = nx.Graph()
    for state, line in enumerate(space.lines()):
        half = sum(math.dist(*pair) for pair in pairwise(line.tolist())) / 2
        for end in (line[0], line[-1]):
            graph.add_edge(state, tuple(end.round(6).tolist()), weight=half)
    return graph


@st.composite
def towns(draw):
    """Draw a connected town: corners on a raster, and streets between neighbours."""
    raster = nx.grid_2d_graph(draw(st.integers(2, 4)), draw(st.integers(2, 4)))
    edges = sorted(raster.edges)
    kept = draw(st.lists(st.sampled_from(edges), min_size=1, max_size=len(edges), unique=True))
    corners = sorted(raster.nodes)
    return build_map(corners, [[corners.index(a), corners.index(b)] for a, b in kept])


@pytest.mark.slow
@settings(max_examples=40)
@given(towns(), st.sampled_from([0.05, 0.12, 0.3, 5.0]), st.floats(0, 1.2))
def test_pairs_within_equal_distances_of_networkx(town, segment, distance):
    space = Streets.from_map(town, segment)
    lengths = dict(nx.all_pairs_dijkstra_path_length(build_graph(space)))
    half = space.lengths_km / 2
    gaps = np.array([[lengths[a].get(b, np.inf) for b in range(space.size)] for a in range(space.size)])
    gaps = gaps - half[:, None] - half
    near = set(map(tuple, space.pairs_within(distance).tolist()))
    for a in range(space.size):
        for b in range(a + 1, space.size):
            # Coordinates are rounded to a centimetre, and sums of lengths to less.
            if abs(gaps[a, b] - distance) > 1e-6:
                assert ((a, b) in near) == (gaps[a, b] < distance)


@pytest.mark.slow
@settings(max_examples=20)
@given(towns(), st.sampled_from([0.05, 0.12, 5.0]))
def test_near_yields_distances_of_middles_in_order(town, segment):
    space = Streets.from_map(town, segment)
    expected = dict(nx.all_pairs_dijkstra_path_length(build_graph(space)))
    first, second, lengths = (np.concatenate(parts) for parts in zip(*space.iterate_pairs_within(0.4), strict=True))
    assert np.all(np.diff(first * space.size + second) > 0)
    assert set(zip(range(space.size), range(space.size), strict=True)) <= set(zip(first, second, strict=True))
    for a, b, length in zip(first.tolist(), second.tolist(), lengths.tolist(), strict=True):
        assert length == pytest.approx(expected[a][b], abs=1e-6)


@pytest.mark.slow
@settings(max_examples=40)
@given(towns(), st.sampled_from([0.05, 0.12, 0.3, 5.0]))
def test_from_map_keeps_the_largest_part_in_equal_segments(town, segment):
    space = Streets.from_map(town, segment)
    graph = nx.Graph()
    for (a, b), length in zip(town.edges.tolist(), town.lengths_km, strict=True):
        graph.add_edge(a, b, weight=float(length))
    largest = max(graph.subgraph(part).size("weight") for part in nx.connected_components(graph))
    # The test map measures lengths on a sphere, and the ties of parts are equal up to the latitude.
    assert space.lengths_km.sum() == pytest.approx(largest, rel=0.01)
    assert space.lengths_km.max() <= segment * (1 + 1e-4) + 2e-5
    assert nx.is_connected(build_graph(space))


def test_split_street_has_literal_segments():
    # 0.004 degrees of latitude at 45 degrees north are 444.5 m on WGS 84: four segments of 111.1 m.
    space = Streets.from_map(build_map([(0, 0), (0.5, 0), (1, 0)], [[0, 1], [1, 2]]), 0.12)
    assert space.size == 4
    assert space.lengths_km == pytest.approx([0.11113] * 4, abs=2e-5)
    assert space.adjacency().tolist() == [[0, 1], [1, 2], [2, 3]]
    assert space.pairs_within(0.0).tolist() == [[0, 1], [1, 2], [2, 3]]
    assert space.pairs_within(0.112).tolist() == [[0, 1], [0, 2], [1, 2], [1, 3], [2, 3]]


def test_bridge_does_not_connect_crossing_streets():
    # The streets cross without a common node, and meet at the far end only.
    town = build_map([(0, 1), (2, 1), (1, 0), (1, 2), (2, 3)], [[0, 1], [2, 3], [1, 4], [3, 4]])
    space = Streets.from_map(town, 5.0)
    assert space.size == 1  # one street with bends: no junction
    assert len(space.lines()[0]) == 5


def test_closed_street_without_junction_is_split():
    space = Streets.from_map(build_map([(0, 0), (0, 1), (1, 1), (1, 0)], [[0, 1], [1, 2], [2, 3], [3, 0]]), 0.2)
    degrees = np.bincount(space.adjacency().ravel())
    assert (degrees == 2).all()


def test_paths_and_streets_outside_bounds_are_omitted():
    town = build_map([(0, 0), (1, 0), (2, 0), (3, 0)], [[0, 1], [1, 2], [2, 3]], [STREET, STREET, PATH])
    assert Streets.from_map(town, 5.0).lengths_km.sum() == pytest.approx(2 * 0.4445, abs=1e-4)
    bounds = (SOUTH - STEP, WEST - STEP, SOUTH + STEP, WEST + STEP)
    assert Streets.from_map(town, 5.0, bounds=bounds).lengths_km.sum() == pytest.approx(0.4445, abs=1e-4)


@pytest.mark.slow
@given(
    towns(),
    st.lists(st.tuples(st.floats(-0.01, 0.03), st.floats(-0.01, 0.03)), min_size=1, max_size=10),
    st.one_of(st.just(math.inf), st.floats(0.01, 2)),
)
@settings(max_examples=40)
def test_locate_finds_nearest_segment_within_distance(town, fixes, within):
    space = Streets.from_map(town, 0.2, within)
    lat, lon = np.array(fixes).T + np.array([[SOUTH], [WEST]])
    lines = [shapely.LineString(line) for line in space.lines()]
    plane = space.projection.to_plane(lat, lon)
    distances = np.array([[line.distance(shapely.Point(point)) for line in lines] for point in plane])
    for state, row in zip(space.locate(lat, lon).tolist(), distances, strict=True):
        if abs(row.min() - within) > 1e-9:
            assert state == (-1 if row.min() > within else state)
            assert (state >= 0) == (row.min() < within)
        if state >= 0:
            assert row[state] == pytest.approx(row.min(), abs=1e-9)


def test_length_of_separate_streets_is_logged(caplog):
    corners = [(0, 0), (2, 0), (0, 1), (1, 1), (0, 2), (0.5, 2)]
    Streets.from_map(build_map(corners, [[0, 1], [2, 3], [4, 5]]))
    (record,) = caplog.records
    assert record.args == pytest.approx((1.5 * STEP * 111.2, 2 * STEP * 111.2))
    caplog.clear()
    Streets.from_map(build_map(corners, [[0, 1], [1, 3], [3, 2]]))
    assert not caplog.records


def test_ends_on_both_sides_of_the_date_line_are_equal():
    east = [1_799_990_000, 1_800_000_000, -1_800_000_000, -1_799_990_000]
    assert Streets([[450_000_000, longitude] for longitude in east], [2, 2]).adjacency().tolist() == [[0, 1]]


def test_points_are_middles_along_segments():
    space = Streets.from_map(build_map([(0, 0), (1, 0), (1, 1)], [[0, 1], [1, 2]]), 0.3)
    for point, line in zip(space.points, space.lines(), strict=True):
        shape = shapely.LineString(line)
        assert shape.distance(shapely.Point(point)) < 1e-9
        assert shape.project(shapely.Point(point)) == pytest.approx(shape.length / 2)
    assert space.locate(*space.latlon().T).tolist() == list(range(space.size))
    assert space.find_nearest_states(*space.latlon().T).tolist() == list(range(space.size))


@settings(max_examples=20)
@given(towns(), st.one_of(st.just(math.inf), st.floats(0.01, 30)))
def test_json_round_trips_streets_exactly(town, within):
    space = Streets.from_map(town, 0.2, within)
    copy = StateSpace.from_json(json.loads(json.dumps(space.to_json(), allow_nan=False)))
    assert isinstance(copy, Streets)
    assert copy == space
    assert copy.points.tolist() == space.points.tolist()
    assert copy.within_km == within


def test_share_within_is_the_share_of_the_length():
    space = Streets.from_map(build_map([(0, 0), (1, 0)], [[0, 1]]), 5.0)
    quarter = shapely.box(WEST - 0.001, SOUTH - 0.001, WEST + 0.001, SOUTH + STEP / 4)
    assert space.share_within(quarter) == pytest.approx([0.25])


def test_too_many_segments_are_refused_in_one_line():
    town = build_map([(0, 0), (20, 0)], [[0, 1]])
    with pytest.raises(ConfigurationError, match=r"at most 20,000 segments, got 88,\d\d\d of at most 0.001"):
        Streets.from_map(build_map([(0, 0), (20_000 * 0.01, 0)], [[0, 1]]), 0.001)
    assert Streets.from_map(town, 1.0).size == 9
    row = np.arange(MAX_SEGMENTS + 2)
    vertices = np.stack([450000000 + 100 * row, np.full(len(row), 70000000)], axis=1)
    with pytest.raises(ConfigurationError, match="at most 20,000 segments, got 20,001"):
        Streets(np.repeat(vertices, 2, axis=0)[1:-1], np.full(MAX_SEGMENTS + 1, 2))


@pytest.mark.parametrize(
    ("vertices", "counts", "message"),
    [
        ([[1, 2, 3]], [1], "two columns"),
        ([[1, 2], [3, 4]], [3], "sum to the 2 vertices"),
        ([[1, 2], [3, 4]], [1, 1], "at least 2"),
        ([[1, 2], [1, 2]], [2], "two different vertices"),
    ],
)
def test_invalid_segments_are_refused(vertices, counts, message):
    with pytest.raises(StateError, match=message):
        Streets(vertices, counts)


def test_map_without_streets_is_refused():
    with pytest.raises(StateError, match="must contain a street"):
        Streets.from_map(build_map([(0, 0), (1, 0)], [[0, 1]], [PATH]))
