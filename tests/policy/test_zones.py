"""Zones and unprotected places as text: edges, unprotected states, refusals and buffers."""

from __future__ import annotations

import json

import numpy as np
import pytest
import shapely
from scipy.sparse import csr_array

from dphmm.errors import DataFileError, PolicyError
from dphmm.policy.expression import canonicalize_policy, describe_policy, parse_policy
from dphmm.policy.zones import extend_zones, find_open_states, find_zones
from dphmm.space import Grid, Places

SPACE = Grid.over((39.90, 116.30, 39.93, 116.34), cell_km=0.5)
LAT, LON = SPACE.latlon().T


def write_layer(path, *polygons, names=None):
    features = [
        {
            "type": "Feature",
            "properties": {"name": names[number]} if names else {},
            "geometry": shapely.geometry.mapping(polygon),
        }
        for number, polygon in enumerate(polygons)
    ]
    path.write_text(json.dumps({"type": "FeatureCollection", "features": features}))
    return path


def build_box(*states: int, margin: float = 1e-4):
    """Build a box around the points of some states."""
    lon, lat = LON[list(states)], LAT[list(states)]
    return shapely.box(lon.min() - margin, lat.min() - margin, lon.max() + margin, lat.max() + margin)


def find_states_inside(polygon) -> set[int]:
    """Return the states in a polygon, tested by shapely one at a time."""
    return {state for state in range(SPACE.size) if polygon.intersects(shapely.Point(LON[state], LAT[state]))}


COLUMNS = round(np.ptp(SPACE.points[:, 0]) / 0.5) + 1
HOME = build_box(0, 1, COLUMNS)
WORK = build_box(SPACE.size - 1, SPACE.size - 2)
# All of two cells and a small part of the cells around them.
PARK = build_box(SPACE.size - 1, SPACE.size - 2, margin=0.0035)


@pytest.fixture
def files(tmp_path):
    write_layer(tmp_path / "home.geojson", HOME, names=["home"])
    write_layer(tmp_path / "both.geojson", HOME, WORK, names=["home", "work"])
    write_layer(tmp_path / "park.geojson", PARK)
    return tmp_path


def test_zone_polygons_are_cliques_and_isolated_states_are_unprotected(files):
    graph = parse_policy(f"zone:{files}/both.geojson", SPACE)
    labels = graph.components()
    home, work = find_states_inside(HOME), find_states_inside(WORK)
    assert len(home) == 4
    for zone in (home, work):
        assert len({int(labels[state]) for state in zone}) == 1
        assert (
            graph.restrict(np.isin(np.arange(SPACE.size), list(zone))).edge_array().shape[0]
            == len(zone) * (len(zone) - 1) // 2
        )
    assert set(np.flatnonzero(graph.open)) == set(range(SPACE.size)) - home - work
    assert graph.edge_array().shape[0] == 6 + 1


def test_states_connected_by_another_term_are_protected(files):
    graph = parse_policy(f"zone:{files}/home.geojson | centres:500m", SPACE)
    assert not graph.open.any()
    near = parse_policy(f"zone:{files}/home.geojson & centres:500m", SPACE)
    assert near.edge_array().shape[0] == 4  # the sides of a square, without its diagonals
    assert set(np.flatnonzero(near.open)) == set(range(SPACE.size)) - find_states_inside(HOME)


def test_open_term_selects_unprotected_states(files):
    parks = {SPACE.size - 1, SPACE.size - 2}
    graph = parse_policy(f"categorical:{files}/home.geojson | open:{files}/park.geojson", SPACE)
    assert set(np.flatnonzero(graph.open)) == parks


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("zone:{0}/park.geojson | open:{0}/park.geojson", r"open and in a zone, got state \d+"),
        ("utility:1km | open:{0}/park.geojson", r"open state must not have an edge, got state \d+"),
        ("utility:1km & open:{0}/park.geojson", r"open cannot be combined by &.*use \|"),
        ("open:{0}/park.geojson", "connects none of the"),
        ("zone:", "policy must be one of utility:1km"),
        ("open:", "policy must be one of utility:1km"),
        ("zone:{0}/home.geojson+3", None),
    ],
)
def test_invalid_zone_policy_raises_in_one_line(files, text, message):
    with pytest.raises((PolicyError, DataFileError), match=message) as raised:
        parse_policy(text.format(files), SPACE)
    assert "\n" not in str(raised.value)


def test_zone_without_state_raises(files):
    nowhere = shapely.box(LON[-1] + 0.1, LAT[-1], LON[-1] + 0.2, LAT[-1] + 0.1)
    with pytest.raises(DataFileError, match=r"'shed'.*larger"):
        parse_policy(f"zone:{write_layer(files / 'shed.geojson', HOME, nowhere, names=['home', 'shed'])}", SPACE)


@pytest.mark.parametrize("seed", range(12))
def test_zone_places_are_never_in_unprotected_cells(files, seed):
    """Test random polygons and 4,000 places around each with shapely.

    Cell centres alone would miss places. Places outside an open polygon are never in its cells.
    """
    rng = np.random.default_rng(seed)
    corners = rng.uniform([LON.min(), LAT.min()], [LON.max(), LAT.max()], (5, 2))
    polygon = shapely.MultiPoint(corners).convex_hull.buffer(1e-4)
    path = write_layer(files / "any.geojson", polygon, names=["any"])
    ((_, states_of_zone),) = find_zones(path, SPACE).items()
    places = rng.uniform(*np.reshape(polygon.buffer(0.005).bounds, (2, 2)), (4000, 2))
    within, cell = shapely.contains_xy(polygon, *places.T), SPACE.locate(places[:, 1], places[:, 0])
    assert np.isin(cell[within & (cell >= 0)], states_of_zone).all()
    assert not np.isin(cell[within & (cell >= 0)], list(find_states_inside(polygon))).all()
    try:
        whole = find_open_states(path, SPACE)
    except DataFileError:
        return
    assert not np.isin(cell[~within], whole).any()


def test_shared_cell_belongs_to_zone_with_larger_share(files):
    west, north = LON[0] + 0.001, LAT[0] + 0.05
    parts = shapely.box(LON[0] - 0.01, LAT[0], west, north), shapely.box(west, LAT[0], LON[0] + 0.02, north)
    first, second = find_zones(write_layer(files / "two.geojson", *parts, names=["one", "two"]), SPACE).values()
    assert not np.isin(first, second).any()
    assert 0 in first
    assert SPACE.share_within(parts[1])[0] > 0
    dot = shapely.box(LON[0] + 0.0012, LAT[0], LON[0] + 0.0013, LAT[0] + 1e-4)
    remainder = shapely.difference(parts[1], dot)
    with pytest.raises(DataFileError, match="another zone"):
        find_zones(write_layer(files / "in.geojson", dot, remainder, names=["in", "two"]), SPACE)


def test_overlapping_zones_raise_unless_names_are_equal(files):
    other = build_box(1, 2)
    with pytest.raises(DataFileError, match=r"'home' and 'work' must not overlap"):
        parse_policy(f"zone:{write_layer(files / 'two.geojson', HOME, other, names=['home', 'work'])}", SPACE)
    same = write_layer(files / "same.geojson", HOME, other, WORK, names=["mine", "mine", "mine"])
    states_by_zone = find_zones(same, SPACE)
    assert {name: set(states.tolist()) for name, states in states_by_zone.items()} == {
        "mine": find_states_inside(HOME) | find_states_inside(other),
        "mine (2)": find_states_inside(WORK),
    }


def test_buffer_contains_near_states_that_lead_into_zone(files):
    rows = SPACE.size // COLUMNS
    home = find_states_inside(HOME)
    wide = parse_policy(f"zone:{files}/home.geojson+600m", SPACE)
    half = SPACE.cell_km / 2
    cells = shapely.box(*(SPACE.points - half).T, *(SPACE.points + half).T)
    near = set(np.flatnonzero(shapely.distance(cells, shapely.union_all(cells[list(home)])) <= 0.6).tolist())
    assert set(np.flatnonzero(~wide.open)) == near
    assert rows > 3
    # Only the states of the first row lead into the zone, one after another from the east.
    moves = np.eye(SPACE.size)
    for column in range(1, COLUMNS):
        moves[column, column - 1] = 1
    strict = parse_policy(f"zone:{files}/home.geojson+1100m", SPACE, csr_array(moves))
    assert set(np.flatnonzero(~strict.open)) == home | {2, 3, 4}


def test_buffers_of_two_zones_are_disjoint(files):
    wide = parse_policy(f"zone:{files}/both.geojson+5km", SPACE)
    labels = wide.components()
    assert not wide.open.any()
    assert len(set(labels.tolist())) == 2
    assert labels[0] != labels[-1]


def test_zones_stay_disjoint_for_states_at_equal_places():
    space = Places(["a", "b", "c"], [45.0, 45.0, 45.001], [7.0, 7.0, 7.0])
    states_by_zone = extend_zones({"first": np.array([0]), "second": np.array([1])}, space, 1.0, None)
    assert {name: states.tolist() for name, states in states_by_zone.items()} == {"first": [0, 2], "second": [1]}


def test_canonical_text_does_not_depend_on_file_path(files, tmp_path):
    (tmp_path / "b").mkdir()
    copy = tmp_path / "b" / "z.geojson"
    copy.write_text((files / "home.geojson").read_text())
    text, other = f"zone:{files}/home.geojson+300m", f" zone: {copy} + 0.3km"
    assert canonicalize_policy(text) == canonicalize_policy(other)
    assert canonicalize_policy(text) != canonicalize_policy(f"zone:{copy}")
    assert canonicalize_policy(f"open:{copy}") != canonicalize_policy(f"zone:{copy}")
    assert describe_policy(text) == "locations that are in the same zone of home.geojson, or within 0.3 km of it"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count"),
    [("san_francisco_neighbourhoods", 37), ("beijing_districts", 16), ("beijing_districts_as_published", 16)],
)
def test_published_areas_with_crossing_borders_are_zones(real_data, name, count):
    """Rounding leaves overlaps of 1e-20 square degrees after small overlaps are resolved."""
    box = (37.70, -122.52, 37.83, -122.35) if "san" in name else (39.4, 115.4, 41.1, 117.5)
    assert (
        len(find_zones(real_data / "areas" / f"{name}.geojson", Grid.over(box, 0.5 if "san" in name else 2))) == count
    )


def test_borders_that_cross_by_rounding_do_not_overlap(tmp_path):
    rng = np.random.default_rng(2)
    south, north = LAT[0] - 0.01, LAT[-1] + 0.01
    line = np.column_stack([LON.mean() + rng.normal(0, 1e-5, 40), np.linspace(south, north, 40)])
    moved = line + rng.normal(0, 2e-6, line.shape)
    west = shapely.Polygon([*line, (LON[0] - 0.01, north), (LON[0] - 0.01, south)])
    east = shapely.Polygon([*moved, (LON[-1] + 0.01, north), (LON[-1] + 0.01, south)])
    states_by_zone = find_zones(write_layer(tmp_path / "two.geojson", west, east, names=["west", "east"]), SPACE)
    assert {name: len(states) for name, states in states_by_zone.items()}.keys() == {"west", "east"}
