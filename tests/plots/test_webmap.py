"""Tests of web maps: content, escaping and network access."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import shapely

from dphmm.errors import ConfigurationError, InvalidInputError
from dphmm.plots.basemap import Basemap, PlaceName
from dphmm.plots.webmap import MapLayer, MapPolicy, build_web_map
from tests.plots.test_webmap_coding import decode_integers, decode_numbers

POINTS = np.array([[45.0, 7.0], [45.5, 7.25]])
TIMES = np.array(["2024-03-07T09:00:00", "2024-03-07T09:05:00"], dtype="datetime64[s]")


def read_page_data(page):
    return json.loads(page.partition('<script type="application/json" id="data">')[2].partition("</script>")[0])


def test_page_contains_layers():
    facts = {"epsilon": [1.0, 0.25], "mechanism": ["lattice", "lattice"]}
    layer = MapLayer("released", "dots", "#d55e00", POINTS, facts, ["a", "b"], TIMES)
    ring = MapLayer("areas", "outlines", "#888888", [[[0, 0], [1, 0], [1, 1]]], {"name": ["x"]}, visible=False)
    areas, released = read_page_data(build_web_map([ring, layer], "Title"))["layers"]
    assert [areas["name"], released["name"]] == ["areas", "released"]
    np.testing.assert_allclose(decode_numbers(released["latitude"], 2), POINTS[:, 0])
    np.testing.assert_allclose(decode_numbers(released["longitude"], 2), POINTS[:, 1])
    assert decode_numbers(released["times"], 2) == TIMES.astype(np.int64).tolist()
    assert released["users"]["words"] == ["a", "b"]
    epsilon, mechanism = released["facts"]
    np.testing.assert_allclose(decode_numbers(epsilon, 2), [1.0, 0.25])
    assert mechanism["words"] == ["lattice"]
    assert areas["labels"] == ["x"]
    assert areas["visible"] is False


def test_rows_are_sorted_by_user_and_time_and_trips_start_at_their_first_rows():
    times = np.array([3, 1, 2, 0], dtype="datetime64[s]")
    layer = MapLayer(
        "a", "line", "#000000", np.arange(8.0).reshape(4, 2), {}, ["b", "a", "b", "a"], times, trips=[1, 0, 1, 0]
    )
    layer_json = layer.to_json()
    assert decode_numbers(layer_json["times"], 4) == [0, 1, 2, 3]
    assert decode_numbers(layer_json["latitude"], 4) == pytest.approx([6, 2, 4, 0])
    assert decode_integers(layer_json["trips"]) == [2]


def test_shared_columns_are_stored_once():
    users = np.repeat(["a"], 3000)
    points = np.random.default_rng(0).uniform(44, 45, (3000, 2))
    times = np.cumsum(np.random.default_rng(1).integers(1, 9, 3000)).astype("datetime64[s]")
    dots = MapLayer("one", "dots", "#000000", points, {}, users, times)
    other = MapLayer("other", "line", "#000000", points + 1e-3, {}, users, times)
    page_data = read_page_data(build_web_map([dots, other], "T"))
    assert page_data["layers"][0]["times"] == page_data["layers"][1]["times"]
    assert len(page_data["codes"]) == 5
    assert len(set(page_data["codes"])) == 5


def test_policy_contains_hull_in_kilometres():
    policy = MapPolicy(POINTS, [[1, 0], [0, 1]], [[0.5, 0.0], [0.0, 0.25]], 1234.5678, "utility:1km")
    policy_json = read_page_data(build_web_map([], "T", policy=policy))["policy"]
    assert (policy_json["hull"], policy_json["error"], policy_json["edges"]) == ([[0.5, 0.0], [0.0, 0.25]], 1234.568, 2)
    assert (decode_numbers(policy_json["from"], 2), decode_numbers(policy_json["to"], 2)) == ([0, 1], [1, 0])


def test_basemap_is_stored_as_steps_between_points():
    lake = shapely.box(7.0, 45.0, 7.5, 45.5).difference(shapely.box(7.2, 45.2, 7.3, 45.3))
    road = np.array([[7.0, 45.0], [7.00001, 45.00002]])
    basemap = Basemap([lake], {"road": [road]}, [PlaceName("Ivrea", 45.46, 7.87, 40.0)], "Theirs.")
    basemap_json = read_page_data(build_web_map([], "T", basemap=basemap))["basemap"]
    assert basemap_json["lines"] == {"road": [[4_500_000, 700_000, 2, 1]]}
    assert [len(ring) for rings in basemap_json["water"] for ring in rings] == [10, 10]
    assert (basemap_json["names"], basemap_json["credit"]) == ([["Ivrea", 45.46, 7.87, 40.0]], "Theirs.")
    with pytest.raises(InvalidInputError, match=r"basemap .*finite"):
        build_web_map([], "T", basemap=Basemap(lines={"road": [[[7.0, np.nan]]]}))


@pytest.mark.parametrize("text", ["</script><script>alert(1)</script>", "{{data}}", "{{note}} & \\1 $&", "<b>é</b>"])
def test_text_is_escaped(text):
    layer = MapLayer(text, "dots", "#000000", [[0, 0]], {text: [text]}, [text], TIMES[:1])
    plain, page = build_web_map([], "T"), build_web_map([layer], text, text)
    for tag in ("<script", "</script>"):
        assert page.count(tag) == plain.count(tag)
    (layer_json,) = read_page_data(page)["layers"]
    assert layer_json["name"] == text
    assert layer_json["facts"][0]["name"] == text
    assert layer_json["facts"][0]["words"] == [text]


def test_page_may_access_network_only_for_tiles():
    policies = [
        re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)[1]
        for page in (build_web_map([], "T"), build_web_map([], "T", tiles="https://tiles.example/{z}/{x}/{y}.png"))
    ]
    assert policies[0] == ("default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:")
    assert policies[1] == f"{policies[0]} https://tiles.example"


@pytest.mark.parametrize(
    "address",
    [
        "tiles",
        "file:///{z}/{x}/{y}",
        "https://a/{z}/{x}.png",
        "https://a b/{z}/{x}/{y}",
        "https://a;img-src */{z}/{x}/{y}",
    ],
)
def test_invalid_tile_address_raises(address):
    with pytest.raises(ConfigurationError, match="tiles "):
        build_web_map([], "T", tiles=address)


def test_invalid_points_and_columns_raise():
    with pytest.raises(InvalidInputError, match="finite"):
        build_web_map([MapLayer("a", "dots", "#000000", [[np.inf, 0]])], "T")
    with pytest.raises(InvalidInputError, match=r"'a' .*users.*1 points, 2 users"):
        build_web_map([MapLayer("a", "dots", "#000000", [[0, 0]], users=["x", "y"])], "T")
    with pytest.raises(InvalidInputError, match="times without users"):
        build_web_map([MapLayer("a", "dots", "#000000", [[0, 0]], times=TIMES[:1])], "T")
