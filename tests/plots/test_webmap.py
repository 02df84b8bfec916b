"""The page holds what it was given, nothing breaks out of its place, and it may ask nothing of a network."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import shapely

from dphmm.errors import ConfigurationError, InvalidInputError
from dphmm.plots.basemap import Basemap, PlaceName
from dphmm.plots.webmap import MapLayer, MapPolicy, web_map
from tests.plots.test_webmap_coding import numbers, whole

POINTS = np.array([[45.0, 7.0], [45.5, 7.25]])
TIMES = np.array(["2024-03-07T09:00:00", "2024-03-07T09:05:00"], dtype="datetime64[s]")


def data_of(page):
    return json.loads(page.partition('<script type="application/json" id="data">')[2].partition("</script>")[0])


def test_the_page_holds_the_layers_as_they_were_given():
    facts = {"epsilon": [1.0, 0.25], "mechanism": ["lattice", "lattice"]}
    layer = MapLayer("released", "dots", "#d55e00", POINTS, facts, ["a", "b"], TIMES)
    ring = MapLayer("areas", "outlines", "#888888", [[[0, 0], [1, 0], [1, 1]]], {"name": ["x"]}, visible=False)
    areas, released = data_of(web_map([ring, layer], "Title"))["layers"]
    assert [areas["name"], released["name"]] == ["areas", "released"]
    np.testing.assert_allclose(numbers(released["latitude"], 2), POINTS[:, 0])
    np.testing.assert_allclose(numbers(released["longitude"], 2), POINTS[:, 1])
    assert numbers(released["times"], 2) == TIMES.astype(np.int64).tolist()
    assert released["users"]["words"] == ["a", "b"]
    epsilon, mechanism = released["facts"]
    np.testing.assert_allclose(numbers(epsilon, 2), [1.0, 0.25])
    assert mechanism["words"] == ["lattice"]
    assert areas["labels"] == ["x"]
    assert areas["visible"] is False


def test_rows_stand_by_user_and_time_and_trips_by_their_first_rows():
    times = np.array([3, 1, 2, 0], dtype="datetime64[s]")
    layer = MapLayer(
        "a", "line", "#000000", np.arange(8.0).reshape(4, 2), {}, ["b", "a", "b", "a"], times, trips=[1, 0, 1, 0]
    )
    told = layer.to_json()
    assert numbers(told["times"], 4) == [0, 1, 2, 3]
    assert numbers(told["latitude"], 4) == pytest.approx([6, 2, 4, 0])
    assert whole(told["trips"]) == [2]


def test_what_two_layers_share_is_told_once():
    users = np.repeat(["a"], 3000)
    points = np.random.default_rng(0).uniform(44, 45, (3000, 2))
    times = np.cumsum(np.random.default_rng(1).integers(1, 9, 3000)).astype("datetime64[s]")
    one = MapLayer("one", "dots", "#000000", points, {}, users, times)
    other = MapLayer("other", "line", "#000000", points + 1e-3, {}, users, times)
    told = data_of(web_map([one, other], "T"))
    assert told["layers"][0]["times"] == told["layers"][1]["times"]
    assert len(told["codes"]) == 5
    assert len(set(told["codes"])) == 5


def test_a_policy_is_told_with_its_hull_in_kilometres():
    policy = MapPolicy(POINTS, [[1, 0], [0, 1]], [[0.5, 0.0], [0.0, 0.25]], 1234.5678, "utility:1km")
    told = data_of(web_map([], "T", policy=policy))["policy"]
    assert (told["hull"], told["error"], told["edges"]) == ([[0.5, 0.0], [0.0, 0.25]], 1234.568, 2)
    assert (numbers(told["from"], 2), numbers(told["to"], 2)) == ([0, 1], [1, 0])


def test_a_basemap_is_told_in_steps_from_place_to_place():
    lake = shapely.box(7.0, 45.0, 7.5, 45.5).difference(shapely.box(7.2, 45.2, 7.3, 45.3))
    road = np.array([[7.0, 45.0], [7.00001, 45.00002]])
    basemap = Basemap([lake], {"road": [road]}, [PlaceName("Ivrea", 45.46, 7.87, 40.0)], "Theirs.")
    told = data_of(web_map([], "T", basemap=basemap))["basemap"]
    assert told["lines"] == {"road": [[4_500_000, 700_000, 2, 1]]}
    assert [len(ring) for rings in told["water"] for ring in rings] == [10, 10]
    assert (told["names"], told["credit"]) == ([["Ivrea", 45.46, 7.87, 40.0]], "Theirs.")
    with pytest.raises(InvalidInputError, match="a point of the basemap is not finite"):
        web_map([], "T", basemap=Basemap(lines={"road": [[[7.0, np.nan]]]}))


@pytest.mark.parametrize("text", ["</script><script>alert(1)</script>", "{{data}}", "{{note}} & \\1 $&", "<b>é</b>"])
def test_no_text_breaks_out_of_its_place(text):
    layer = MapLayer(text, "dots", "#000000", [[0, 0]], {text: [text]}, [text], TIMES[:1])
    plain, page = web_map([], "T"), web_map([layer], text, text)
    for tag in ("<script", "</script>"):
        assert page.count(tag) == plain.count(tag)
    (told,) = data_of(page)["layers"]
    assert told["name"] == text
    assert told["facts"][0]["name"] == text
    assert told["facts"][0]["words"] == [text]


def test_the_page_may_ask_nothing_of_a_network_unless_tiles_are_named():
    policies = [
        re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)[1]
        for page in (web_map([], "T"), web_map([], "T", tiles="https://tiles.example/{z}/{x}/{y}.png"))
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
def test_an_address_of_no_tiles_is_refused(address):
    with pytest.raises(ConfigurationError, match="tiles is"):
        web_map([], "T", tiles=address)


def test_a_point_that_is_no_place_and_columns_that_do_not_fit_are_refused():
    with pytest.raises(InvalidInputError, match="finite"):
        web_map([MapLayer("a", "dots", "#000000", [[np.inf, 0]])], "T")
    with pytest.raises(InvalidInputError, match="layer 'a' has 1 points and 2 users"):
        web_map([MapLayer("a", "dots", "#000000", [[0, 0]], users=["x", "y"])], "T")
    with pytest.raises(InvalidInputError, match="has times without users"):
        web_map([MapLayer("a", "dots", "#000000", [[0, 0]], times=TIMES[:1])], "T")
