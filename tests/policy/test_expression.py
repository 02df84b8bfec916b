from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.sparse import csr_array

from dphmm.errors import DataFileError, PolicyError
from dphmm.policy.expression import parse_policy
from dphmm.policy.graph import PolicyGraph
from dphmm.policy.isolated_states import said_of_isolated
from dphmm.space import Grid, Places

SPACE = Grid.over((39.90, 116.30, 39.92, 116.33), cell_km=0.5)
TRANSITION = csr_array(np.eye(SPACE.size) * 0.5 + np.roll(np.eye(SPACE.size), 1, axis=1) * 0.5)


def _edges(text, space=SPACE, transition=TRANSITION):
    return parse_policy(text, space, transition).edge_array().tolist()


@pytest.mark.parametrize(
    ("text", "graph"),
    [
        ("complete", PolicyGraph.complete(SPACE.size)),
        ("utility:1km", PolicyGraph.utility(SPACE.points, 1.0, SPACE.cell_km)),
        (" utility: 700 m ", PolicyGraph.utility(SPACE.points, 0.7, SPACE.cell_km)),
        ("centres:1km", PolicyGraph.utility(SPACE.points, 1.0)),
        ("transition", PolicyGraph.transition(TRANSITION)),
        ("transition & centres:1km", PolicyGraph.transition(TRANSITION) & PolicyGraph.utility(SPACE.points, 1.0)),
        (
            "transition | centres:1km & centres:500m",
            PolicyGraph.transition(TRANSITION) | PolicyGraph.utility(SPACE.points, 0.5),
        ),
    ],
)
def test_text_means_the_graph(text, graph):
    found = _edges(text)
    assert found == graph.edge_array().tolist()
    assert found


@pytest.mark.parametrize(
    "text",
    ["", "utility", "utility:", "complete:3", "star", "complete|", "complete&&transition", "a\nb", "utility:1km;"],
)
def test_what_is_no_policy_is_refused_with_the_grammar(text):
    with pytest.raises(PolicyError, match=r"none; give utility:1km|give a length with its unit"):
        parse_policy(text, SPACE, TRANSITION)


@pytest.mark.parametrize("radius", ["1", "km", "-1km", "1e400km", "nan km", "1 mile"])
def test_a_radius_has_a_unit(radius):
    with pytest.raises(PolicyError, match="such as 1km or 500m"):
        parse_policy(f"utility:{radius}", SPACE)


def test_transition_needs_a_model():
    with pytest.raises(PolicyError, match="needs a model"):
        parse_policy("transition", SPACE)


def test_a_graph_file_speaks_of_states_or_of_names(tmp_path):
    path = tmp_path / "policy.json"
    PolicyGraph.from_edges(SPACE.size, [(0, 1), (2, 5)]).to_json(path)
    assert _edges(f"graph:{path}") == [[0, 1], [2, 5]]
    stops = Places(["home", "work", "gym"], [45.0, 45.01, 45.02], [7.0, 7.0, 7.0])
    graph = {"nodes": [{"id": "home"}, {"id": "gym"}], "edges": [{"source": "home", "target": "gym"}]}
    path.write_text(json.dumps(graph))
    assert _edges(f"graph:{path}", stops) == [[0, 2]]
    with pytest.raises(PolicyError, match="got node 'home': remove it, or rename it"):
        parse_policy(f"graph:{path}", SPACE)


def test_a_layer_may_name_its_property(tmp_path):
    square = {"type": "Polygon", "coordinates": [[[116, 39], [117, 39], [117, 40], [116, 40], [116, 39]]]}
    feature = {"type": "Feature", "properties": {"zone": "all"}, "geometry": square}
    path = tmp_path / "zones.geojson"
    path.write_text(json.dumps({"type": "FeatureCollection", "features": [feature]}))
    assert _edges(f"categorical:{path}@zone") == PolicyGraph.complete(SPACE.size).edge_array().tolist()
    with pytest.raises(DataFileError, match="feature 1 has no property 'kind'"):
        parse_policy(f"categorical:{path}@kind", SPACE)
    with pytest.raises(DataFileError, match="there is no such file"):
        parse_policy("categorical:absent.geojson", SPACE)


@pytest.mark.parametrize(
    ("text", "least"),
    [
        ("centres:100m", "500m"),
        ("centres: 499 m", "500m"),
        ("complete | centres:0.4km", "500m"),
        ("centres:0km", "500m"),
    ],
)
def test_a_radius_below_the_cell_is_refused_with_the_least_useful_one(text, least):
    with pytest.raises(
        PolicyError, match=f"joins no two of the 30 states; no two are that near, give centres:{least} or more"
    ):
        parse_policy(text, SPACE, TRANSITION)
    assert parse_policy(f"centres:{least}", SPACE).edge_array().tolist()


def test_a_policy_without_an_edge_is_refused(tmp_path):
    path = tmp_path / "policy.json"
    PolicyGraph.from_edges(SPACE.size, [(0, SPACE.size - 1)]).to_json(path)
    still = csr_array(np.eye(SPACE.size))
    for text in (f"graph:{path} & utility:500m", "transition", "transition & complete"):
        with pytest.raises(PolicyError, match="joins no two of the 30 states; states that must stay"):
            parse_policy(text, SPACE, still)
    assert _edges(f"graph:{path} | transition", transition=still) == [[0, SPACE.size - 1]]


def test_one_state_alone_has_every_policy():
    home = Places(["home"], [45.0], [7.0])
    assert parse_policy("utility:1m", home).edge_array().tolist() == []
    assert said_of_isolated(parse_policy("complete", home), home) is None


def test_states_that_a_policy_joins_to_none_are_counted_with_their_distance():
    stops = Places(["a", "b", "c", "d"], [45.0, 45.0, 45.0, 45.0], [7.0, 7.001, 7.1, 7.2])
    assert said_of_isolated(parse_policy("utility:100m", stops), stops) == "2 of 4, up to 7.89km from the nearest state"
    assert said_of_isolated(parse_policy("utility:7.89km", stops), stops) is None
    assert said_of_isolated(parse_policy("utility:7.88km", stops), stops) is not None
