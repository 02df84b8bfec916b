"""Zones and open places as text: what is connected, what is open, what is refused, and how far buffers reach."""

from __future__ import annotations

import json

import numpy as np
import pytest
import shapely
from scipy.sparse import csr_array

from dphmm.errors import DataFileError, PolicyError
from dphmm.policy.expression import canonical_policy, parse_policy, policy_in_words, with_buffer
from dphmm.policy.zones import buffered, open_places, zones
from dphmm.space import Grid, Places

SPACE = Grid.over((39.90, 116.30, 39.93, 116.34), cell_km=0.5)
LAT, LON = SPACE.latlon().T


def layer(path, *polygons, names=None):
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


def box_of(*states: int, margin: float = 1e-4):
    """A box around some states' points."""
    lon, lat = LON[list(states)], LAT[list(states)]
    return shapely.box(lon.min() - margin, lat.min() - margin, lon.max() + margin, lat.max() + margin)


def inside(polygon) -> set[int]:
    """The states in a polygon, asked of shapely one by one."""
    return {state for state in range(SPACE.size) if polygon.intersects(shapely.Point(LON[state], LAT[state]))}


COLUMNS = round(np.ptp(SPACE.points[:, 0]) / 0.5) + 1
HOME, WORK = box_of(0, 1, COLUMNS), box_of(SPACE.size - 1, SPACE.size - 2)
PARK = box_of(SPACE.size - 1, SPACE.size - 2, margin=0.0035)
"""All of two cells and a little of those about them."""


@pytest.fixture
def files(tmp_path):
    layer(tmp_path / "home.geojson", HOME, names=["home"])
    layer(tmp_path / "both.geojson", HOME, WORK, names=["home", "work"])
    layer(tmp_path / "park.geojson", PARK)
    return tmp_path


def test_each_polygon_is_a_clique_and_what_nothing_connects_is_open(files):
    graph = parse_policy(f"zone:{files}/both.geojson", SPACE)
    labels = graph.components()
    home, work = inside(HOME), inside(WORK)
    assert len(home) == 4
    for zone in (home, work):
        assert len({int(labels[state]) for state in zone}) == 1
        assert (
            graph.restrict(np.isin(np.arange(SPACE.size), list(zone))).edge_array().shape[0]
            == len(zone) * (len(zone) - 1) // 2
        )
    assert set(np.flatnonzero(graph.open)) == set(range(SPACE.size)) - home - work
    assert graph.edge_array().shape[0] == 6 + 1


def test_what_another_term_connects_is_not_open(files):
    graph = parse_policy(f"zone:{files}/home.geojson | centres:500m", SPACE)
    assert not graph.open.any()
    near = parse_policy(f"zone:{files}/home.geojson & centres:500m", SPACE)
    assert near.edge_array().shape[0] == 4  # the sides of a square without its diagonals
    assert set(np.flatnonzero(near.open)) == set(range(SPACE.size)) - inside(HOME)


def test_open_places_are_open_and_others_are_not(files):
    parks = {SPACE.size - 1, SPACE.size - 2}
    graph = parse_policy(f"categorical:{files}/home.geojson | open:{files}/park.geojson", SPACE)
    assert set(np.flatnonzero(graph.open)) == parks


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("zone:{0}/park.geojson | open:{0}/park.geojson", r"state \d+ is open and in a zone"),
        ("utility:1km | open:{0}/park.geojson", r"state \d+ is open and connected by the policy"),
        ("utility:1km & open:{0}/park.geojson", "join them by |"),
        ("open:{0}/park.geojson", "joins no two of the"),
        ("zone:", "is none; give utility:1km"),
        ("open:", "is none; give utility:1km"),
        ("zone:{0}/home.geojson+3", None),
    ],
)
def test_policies_without_a_meaning_are_refused_in_one_line(files, text, message):
    with pytest.raises((PolicyError, DataFileError), match=message) as found:
        parse_policy(text.format(files), SPACE)
    assert "\n" not in str(found.value)


def test_a_zone_without_a_state_is_refused(files):
    nowhere = shapely.box(LON[-1] + 0.1, LAT[-1], LON[-1] + 0.2, LAT[-1] + 0.1)
    with pytest.raises(DataFileError, match="zone 'shed' holds no state of the model; draw it larger"):
        parse_policy(f"zone:{layer(files / 'shed.geojson', HOME, nowhere, names=['home', 'shed'])}", SPACE)


@pytest.mark.parametrize("seed", range(12))
def test_no_place_in_a_zone_lies_in_an_open_cell_and_none_beside_an_open_polygon_in_one(files, seed):
    """Random polygons and 4,000 places about each, asked of shapely; by the cells' centres, places are left out."""
    rng = np.random.default_rng(seed)
    corners = rng.uniform([LON.min(), LAT.min()], [LON.max(), LAT.max()], (5, 2))
    polygon = shapely.MultiPoint(corners).convex_hull.buffer(1e-4)
    path = layer(files / "any.geojson", polygon, names=["any"])
    ((_, own),) = zones(path, SPACE).items()
    places = rng.uniform(*np.reshape(polygon.buffer(0.005).bounds, (2, 2)), (4000, 2))
    within, cell = shapely.contains_xy(polygon, *places.T), SPACE.locate(places[:, 1], places[:, 0])
    assert np.isin(cell[within & (cell >= 0)], own).all()
    assert not np.isin(cell[within & (cell >= 0)], list(inside(polygon))).all()
    try:
        whole = open_places(path, SPACE)
    except DataFileError:
        return
    assert not np.isin(cell[~within], whole).any()


def test_a_cell_that_two_zones_share_belongs_to_the_one_with_more_of_it(files):
    west, north = LON[0] + 0.001, LAT[0] + 0.05
    parts = shapely.box(LON[0] - 0.01, LAT[0], west, north), shapely.box(west, LAT[0], LON[0] + 0.02, north)
    one, two = zones(layer(files / "two.geojson", *parts, names=["one", "two"]), SPACE).values()
    assert not np.isin(one, two).any()
    assert 0 in one
    assert SPACE.share_within(parts[1])[0] > 0
    dot = shapely.box(LON[0] + 0.0012, LAT[0], LON[0] + 0.0013, LAT[0] + 1e-4)
    beside = shapely.difference(parts[1], dot)
    with pytest.raises(DataFileError, match="that is not another zone's; give both one name"):
        zones(layer(files / "in.geojson", dot, beside, names=["in", "two"]), SPACE)


def test_zones_of_different_names_may_not_overlap_and_those_of_one_name_are_one(files):
    other = box_of(1, 2)
    with pytest.raises(DataFileError, match="zones 'home' and 'work' overlap; cut them apart"):
        parse_policy(f"zone:{layer(files / 'two.geojson', HOME, other, names=['home', 'work'])}", SPACE)
    same = layer(files / "same.geojson", HOME, other, WORK, names=["mine", "mine", "mine"])
    found = zones(same, SPACE)
    assert {name: set(states.tolist()) for name, states in found.items()} == {
        "mine": inside(HOME) | inside(other),
        "mine (2)": inside(WORK),
    }


def test_a_buffer_holds_the_near_places_that_lead_into_the_zone(files):
    rows = SPACE.size // COLUMNS
    home = inside(HOME)
    wide = parse_policy(f"zone:{files}/home.geojson+600m", SPACE)
    half = SPACE.cell_km / 2
    cells = shapely.box(*(SPACE.points - half).T, *(SPACE.points + half).T)
    near = set(np.flatnonzero(shapely.distance(cells, shapely.union_all(cells[list(home)])) <= 0.6).tolist())
    assert set(np.flatnonzero(~wide.open)) == near
    assert rows > 3
    # Only those in the first row lead into it, one after another from the east.
    moves = np.eye(SPACE.size)
    for column in range(1, COLUMNS):
        moves[column, column - 1] = 1
    strict = parse_policy(f"zone:{files}/home.geojson+1100m", SPACE, csr_array(moves))
    assert set(np.flatnonzero(~strict.open)) == home | {2, 3, 4}


def test_buffers_of_two_zones_stay_apart(files):
    wide = parse_policy(f"zone:{files}/both.geojson+5km", SPACE)
    labels = wide.components()
    assert not wide.open.any()
    assert len(set(labels.tolist())) == 2
    assert labels[0] != labels[-1]


def test_no_state_comes_into_two_zones_even_where_two_lie_at_one_place():
    space = Places(["a", "b", "c"], [45.0, 45.0, 45.001], [7.0, 7.0, 7.0])
    found = buffered({"first": np.array([0]), "second": np.array([1])}, space, 1.0, None)
    assert {name: states.tolist() for name, states in found.items()} == {"first": [0, 2], "second": [1]}


def test_buffers_as_text():
    assert (
        with_buffer("utility:1km|zone:a.geojson@kind & complete", "250 m")
        == "utility:1km | zone:a.geojson@kind+250 m & complete"
    )
    for text in ("utility:1km", "zone:a.geojson+100m"):
        with pytest.raises(PolicyError, match="so leave the buffer out"):
            with_buffer(text, "300m")
    with pytest.raises(PolicyError, match="give a length with its unit"):
        with_buffer("zone:a.geojson", "300")


def test_the_same_zones_have_the_same_canonical_text_wherever_they_lie(files, tmp_path):
    (tmp_path / "b").mkdir()
    copy = tmp_path / "b" / "z.geojson"
    copy.write_text((files / "home.geojson").read_text())
    one, other = f"zone:{files}/home.geojson+300m", f" zone: {copy} + 0.3km"
    assert canonical_policy(one) == canonical_policy(other)
    assert canonical_policy(one) != canonical_policy(f"zone:{copy}")
    assert canonical_policy(f"open:{copy}") != canonical_policy(f"zone:{copy}")
    assert policy_in_words(one) == "places that lie in one zone of home.geojson, or at most 0.3 km around it"


@pytest.mark.parametrize(
    ("name", "count"),
    [("san_francisco_neighbourhoods", 37), ("beijing_districts", 16), ("beijing_districts_as_published", 16)],
)
def test_published_areas_are_zones_though_their_borders_cross(real_data, name, count):
    """After small overlaps are given to one of two, rounding leaves some of 1e-20 square degrees."""
    box = (37.70, -122.52, 37.83, -122.35) if "san" in name else (39.4, 115.4, 41.1, 117.5)
    assert len(zones(real_data / "areas" / f"{name}.geojson", Grid.over(box, 0.5 if "san" in name else 2))) == count


def test_borders_that_cross_by_rounding_are_no_overlap(tmp_path):
    rng = np.random.default_rng(2)
    south, north = LAT[0] - 0.01, LAT[-1] + 0.01
    line = np.column_stack([LON.mean() + rng.normal(0, 1e-5, 40), np.linspace(south, north, 40)])
    moved = line + rng.normal(0, 2e-6, line.shape)
    west = shapely.Polygon([*line, (LON[0] - 0.01, north), (LON[0] - 0.01, south)])
    east = shapely.Polygon([*moved, (LON[-1] + 0.01, north), (LON[-1] + 0.01, south)])
    found = zones(layer(tmp_path / "two.geojson", west, east, names=["west", "east"]), SPACE)
    assert {name: len(states) for name, states in found.items()}.keys() == {"west", "east"}
