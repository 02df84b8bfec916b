"""Maps of streets, buildings, addresses and water, read from extracts and vector files."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from xml.sax.saxutils import quoteattr

import geopandas as gpd
import numpy as np
import pytest
import shapely
from pyproj import Geod
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from dphmm.errors import DataFileError
from dphmm.tables.street_map import STREET_CLASSES, read_street_map
from tests.openstreetmap import write_extract

pytest.importorskip("pyogrio")

BOX = (44.9, -30.1, 45.1, -29.9)
# A street from west to east, a bridge across it without a junction, a motorway, a closed way and a footway.
NODES = [
    (45.0, -30.02, {}), (45.0, -30.0, {}), (45.0, -29.98, {}), (45.01, -30.01, {}), (44.99, -30.01, {}),
    (45.02, -30.02, {}), (45.02, -29.98, {}), (45.01, -30.0, {}),
    (45.003, -30.003, {"addr:housenumber": "3", "addr:street": "High \"old\" Street"}),
    (45.0031, -30.003, {"addr:housenumber": "3", "addr:street": "High \"old\" Street", "shop": "bakery"}),
    (45.0032, -30.004, {"addr:housenumber": "5", "addr:street": "High \"old\" Street"}),
    *[(45.004 + north, -30.006 + east, {}) for north, east in ((0, 0), (0, 1e-4), (1e-4, 1e-4), (1e-4, 0))],
    *[(45.006 + north, -30.006 + east, {}) for north, east in ((0, 0), (0, 1e-4), (1e-4, 1e-4), (1e-4, 0))],
    *[(45.008 + north, -30.006 + east, {}) for north, east in ((0, 0), (0, 1e-3), (1e-3, 1e-3), (1e-3, 0))],
    (44.95, -30.05, {}), (44.95, -29.95, {}),
]  # fmt: skip
WAYS = [
    ([0, 1, 2], {"highway": "residential"}), ([3, 4], {"highway": "secondary", "bridge": "yes"}),
    ([5, 6], {"highway": "motorway"}), ([5, 0], {"highway": "construction"}), ([1, 7], {"highway": "footway"}),
    ([1, 2], {"highway": "footway"}), ([11, 12, 13, 14, 11], {"building": "house"}),
    ([15, 16, 17, 18, 15], {"building": "garage"}), ([19, 20, 21, 22, 19], {"natural": "water"}),
    ([23, 24], {"natural": "coastline"}),
]  # fmt: skip


def write_xml(path):
    lines = ["<?xml version='1.0' encoding='UTF-8'?>", '<osm version="0.6">']
    for kind, elements in (("node", NODES), ("way", WAYS)):
        for number, element in enumerate(elements, 1):
            where = f' lat="{element[0]}" lon="{element[1]}"' if kind == "node" else ""
            lines.append(f'<{kind} id="{number}" version="1"{where}>')
            lines += [f'<nd ref="{node + 1}"/>' for node in element[0]] if kind == "way" else []
            lines += [f"<tag k={quoteattr(key)} v={quoteattr(value)}/>" for key, value in element[-1].items()]
            lines.append(f"</{kind}>")
    text = "\n".join([*lines, "</osm>\n"]).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


@pytest.fixture(params=["town.osm.pbf", "town.osm", "town.osm.gz"])
def street_map(tmp_path, request):
    path = tmp_path / request.param
    write_extract(path, NODES, WAYS) if path.suffix == ".pbf" else write_xml(path)
    return read_street_map(path, BOX)


@pytest.mark.slow
def test_extract_has_streets_by_class_with_geodesic_lengths(street_map):
    lengths = {name: street_map.lengths_km[street_map.classes == at].sum() for at, name in enumerate(STREET_CLASSES)}
    geod = Geod(ellps="WGS84")
    expected = {
        name: sum(geod.inv(NODES[a][1], NODES[a][0], NODES[b][1], NODES[b][0])[2] / 1000 for a, b in pairs)
        for name, pairs in {
            "motorway": [(5, 6)],
            "road": [(3, 4)],
            "street": [(0, 1), (1, 2)],
            "path": [(1, 7)],
        }.items()
    }
    assert lengths == pytest.approx(expected, rel=1e-9)
    assert street_map.lengths_km[street_map.is_motorway].sum() == pytest.approx(expected["motorway"])


@pytest.mark.slow
def test_ways_of_openstreetmap_meet_at_shared_nodes_only(street_map):
    size = len(street_map.nodes)
    graph = coo_array((np.ones(len(street_map.edges)), street_map.edges.T), shape=(size, size))
    count, component = connected_components(graph, directed=False)
    assert count == 3  # the bridge and the motorway are separate
    by_place = {tuple(np.round(node, 3)): part for node, part in zip(street_map.nodes, component, strict=True)}
    assert by_place[45.0, -30.02] == by_place[45.0, -29.98] == by_place[45.01, -30.0] != by_place[45.01, -30.01]


@pytest.mark.slow
def test_extract_has_homes_addresses_water_and_coast(street_map):
    assert street_map.buildings == pytest.approx(np.array([[45.00405, -30.00595]]), abs=1e-5)
    ordered = street_map.addresses[np.argsort(street_map.addresses[:, 1])]
    assert ordered == pytest.approx(np.array([[45.0032, -30.004], [45.003, -30.003]]), abs=1.1e-4)
    assert shapely.intersects_xy(street_map.water, -30.0055, 45.0085).tolist() == [True]
    assert [line.round(6).tolist() for line in street_map.coast] == [[[-30.05, 44.95], [-29.95, 44.95]]]


def write_layers(path):
    lines = gpd.GeoDataFrame(
        {"highway": ["residential", "motorway", None]},
        geometry=[shapely.LineString(points) for points in (
            [(-30.01, 45), (-29.99, 45)], [(-30, 44.99), (-30, 45.01)], [(-30.2, 45), (-30.3, 45)],
        )],
        crs=4326,
    )  # fmt: skip
    houses = gpd.GeoDataFrame({"n": [1]}, geometry=[shapely.box(-30.002, 45.002, -30.001, 45.003)], crs=4326)
    numbers = gpd.GeoDataFrame({"number": ["1"]}, geometry=[shapely.Point(-30.005, 45.004)], crs=4326)
    for name, frame in (("roads", lines), ("buildings", houses), ("addresses", numbers)):
        frame.to_crs(32625).to_file(path, layer=name)
    return path


def test_layers_in_metres_are_recognised_by_name_and_crossings_are_connected(tmp_path):
    street_map = read_street_map(write_layers(tmp_path / "a.gpkg"), BOX)
    assert len(street_map.edges) == 4  # the far street is omitted
    (junction,) = np.flatnonzero(np.bincount(street_map.edges.ravel()) == 4)
    assert street_map.nodes[junction] == pytest.approx([45.0, -30.0], abs=1e-5)
    assert sorted(street_map.classes.tolist()) == [0, 0, 2, 2]
    assert street_map.buildings == pytest.approx(np.array([[45.0025, -30.0015]]), abs=1e-5)
    assert street_map.addresses == pytest.approx(np.array([[45.004, -30.005]]), abs=1e-5)


def test_geojson_lines_without_type_are_streets_and_other_lines_are_not(tmp_path):
    def make_line(properties, *points):
        return {"type": "Feature", "properties": properties, "geometry": {"type": "LineString", "coordinates": points}}

    features = [
        make_line({}, (0, 0), (0.01, 0)),
        make_line({"kind": "boundary"}, (0, 1), (1, 1)),
        make_line({"type": "rail"}, (0, 2), (1, 2)),
    ]
    path = tmp_path / "a.geojson"
    path.write_text(json.dumps({"type": "FeatureCollection", "features": features}))
    street_map = read_street_map(path)
    assert street_map.nodes.tolist() == [[0, 0], [0, 0.01]]


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("a.osm", b'<?xml version="1.0"?><!DOCTYPE osm [<!ENTITY a "b">]><osm/>', "document type"),
        ("a.osm", b"<gpx/>", "its root is not osm"),
        ("a.osm.gz", gzip.compress(b'<osm version="0.6">', mtime=0)[:20], r"truncated|damaged"),
        ("a.osm", b'<osm version="0.6"></osm>', "no street"),
        ("a.geojson", b'{"type": "FeatureCollection", "features": []}', "no street"),
    ],
)
def test_invalid_or_empty_map_raises_in_one_line(tmp_path, name, content, match):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataFileError, match=match) as raised:
        read_street_map(tmp_path / name)
    assert "\n" not in str(raised.value)


@pytest.mark.slow
def test_region_outside_map_raises(tmp_path):
    with pytest.raises(DataFileError, match="no street"):
        read_street_map(write_extract(tmp_path / "a.osm.pbf", NODES, WAYS), (10, 10, 11, 11))


REAL = Path(os.environ.get("DPHMM_REAL_DATA", "")) / "streets"


@pytest.mark.slow
@pytest.mark.skipif(not (REAL / "monaco.osm.gz").is_file(), reason="needs DPHMM_REAL_DATA")
@pytest.mark.parametrize(
    ("name", "min_km", "min_buildings"), [("monaco.osm.gz", 70, 800), ("helsinki_small.osm.pbf", 60, 2000)]
)
def test_streets_of_real_extract_are_connected(name, min_km, min_buildings):
    street_map = read_street_map(REAL / name)
    assert street_map.lengths_km.sum() > min_km
    assert len(street_map.buildings) > min_buildings
    size = len(street_map.nodes)
    graph = coo_array((np.ones(len(street_map.edges)), street_map.edges.T), shape=(size, size))
    _, component = connected_components(graph, directed=False)
    assert np.bincount(component).max() > 0.95 * size
