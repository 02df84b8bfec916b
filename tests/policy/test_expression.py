from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.sparse import csr_array

from dphmm.errors import DataFileError, PolicyError
from dphmm.geometry.measurements import Measurements
from dphmm.policy.expression import canonicalize_policy, describe_policy, edit_edges, parse_policy
from dphmm.policy.graph import PolicyGraph
from dphmm.policy.missing_edges import describe_isolated_states
from dphmm.space import Grid, Places

SPACE = Grid.over((39.90, 116.30, 39.92, 116.33), cell_km=0.5)
TRANSITION = csr_array(np.eye(SPACE.size) * 0.5 + np.roll(np.eye(SPACE.size), 1, axis=1) * 0.5)


def _list_edges(text, space=SPACE, transition=TRANSITION):
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
def test_policy_text_gives_expected_graph(text, graph):
    edges = _list_edges(text)
    assert edges == graph.edge_array().tolist()
    assert edges


@pytest.mark.parametrize(
    "text",
    ["", "utility", "utility:", "complete:3", "star", "complete|", "complete&&transition", "a\nb", "utility:1km;"],
)
def test_invalid_policy_text_raises_with_grammar(text):
    with pytest.raises(PolicyError, match=r"utility:1km|must have a unit"):
        parse_policy(text, SPACE, TRANSITION)


@pytest.mark.parametrize(("separator", "radius"), [("|", 1.0), ("&", 0.5)])
def test_policy_of_many_terms_works_or_raises_policy_error(separator, radius):
    """The union of radii is the largest one, and their intersection the smallest."""
    radii = [f"centres:{distance:.3f}km" for distance in np.linspace(1.0, 0.5, 100)]
    graph = parse_policy(separator.join(radii), SPACE)
    possible = np.arange(SPACE.size) % 5 > 0
    restricted, expected = (each.restrict(possible) for each in (graph, PolicyGraph.utility(SPACE.points, radius)))
    assert restricted.edge_array().tolist() == expected.edge_array().tolist()
    assert restricted.components().tolist() == expected.components().tolist()
    measurements = Measurements.from_values(SPACE.points)
    assert restricted.hull(measurements).volume == pytest.approx(expected.hull(measurements).volume)
    for num_terms in (101, 5_000):
        with pytest.raises(PolicyError, match=rf"^policy must have at most 100 terms, got {num_terms}$"):
            parse_policy(separator.join(["complete"] * num_terms), SPACE)


@pytest.mark.parametrize("radius", ["1", "km", "-1km", "1e400km", "nan km", "1 mile"])
def test_radius_without_length_unit_raises(radius):
    with pytest.raises(PolicyError, match="1km or 500m"):
        parse_policy(f"utility:{radius}", SPACE)


def test_transition_without_model_raises():
    with pytest.raises(PolicyError, match="needs a model"):
        parse_policy("transition", SPACE)


def test_graph_file_accepts_states_or_names(tmp_path):
    path = tmp_path / "policy.json"
    PolicyGraph.from_edges(SPACE.size, [(0, 1), (2, 5)]).to_json(path)
    assert _list_edges(f"graph:{path}") == [[0, 1], [2, 5]]
    stops = Places(["home", "work", "gym"], [45.0, 45.01, 45.02], [7.0, 7.0, 7.0])
    graph = {"nodes": [{"id": "home"}, {"id": "gym"}], "edges": [{"source": "home", "target": "gym"}]}
    path.write_text(json.dumps(graph))
    assert _list_edges(f"graph:{path}", stops) == [[0, 2]]
    with pytest.raises(PolicyError, match=r"'home'.*rename it"):
        parse_policy(f"graph:{path}", SPACE)
    path.write_text("[1, 2]")
    with pytest.raises(DataFileError, match=r"must be an object with nodes and edges, got \[1, 2\]"):
        parse_policy(f"graph:{path}", SPACE)


def test_layer_text_can_select_property(tmp_path):
    square = {"type": "Polygon", "coordinates": [[[116, 39], [117, 39], [117, 40], [116, 40], [116, 39]]]}
    feature = {"type": "Feature", "properties": {"zone": "all"}, "geometry": square}
    path = tmp_path / "zones.geojson"
    path.write_text(json.dumps({"type": "FeatureCollection", "features": [feature]}))
    assert _list_edges(f"categorical:{path}@zone") == PolicyGraph.complete(SPACE.size).edge_array().tolist()
    with pytest.raises(DataFileError, match=r"feature 1 .*'kind'"):
        parse_policy(f"categorical:{path}@kind", SPACE)
    with pytest.raises(DataFileError, match="no such file"):
        parse_policy("categorical:absent.geojson", SPACE)


@pytest.mark.parametrize(
    ("text", "minimum"),
    [
        ("centres:100m", "500m"),
        ("centres: 499 m", "500m"),
        ("complete | centres:0.4km", "500m"),
        ("centres:0km", "500m"),
    ],
)
def test_radius_below_cell_size_raises_with_smallest_useful_radius(text, minimum):
    with pytest.raises(PolicyError, match=f"none of the 30 states.*centres:{minimum} "):
        parse_policy(text, SPACE, TRANSITION)
    assert parse_policy(f"centres:{minimum}", SPACE).edge_array().tolist()


def test_policy_without_edges_raises(tmp_path):
    path = tmp_path / "policy.json"
    PolicyGraph.from_edges(SPACE.size, [(0, SPACE.size - 1)]).to_json(path)
    still = csr_array(np.eye(SPACE.size))
    for text in (f"graph:{path} & utility:500m", "transition", "transition & complete"):
        with pytest.raises(PolicyError, match="none of the 30 states"):
            parse_policy(text, SPACE, still)
    assert _list_edges(f"graph:{path} | transition", transition=still) == [[0, SPACE.size - 1]]


def test_single_state_space_accepts_every_policy():
    home = Places(["home"], [45.0], [7.0])
    assert parse_policy("utility:1m", home).edge_array().tolist() == []
    assert describe_isolated_states(parse_policy("complete", home), home) is None


def test_isolated_states_are_described_with_count_and_distance():
    stops = Places(["a", "b", "c", "d"], [45.0, 45.0, 45.0, 45.0], [7.0, 7.001, 7.1, 7.2])
    assert (
        describe_isolated_states(parse_policy("utility:100m", stops), stops)
        == "2 of 4, up to 7.89km from the nearest state"
    )
    assert describe_isolated_states(parse_policy("utility:7.89km", stops), stops) is None
    assert describe_isolated_states(parse_policy("utility:7.88km", stops), stops) is not None


def test_removed_edges_are_those_of_set_difference(tmp_path):
    """Oracle: sets of pairs, for graphs of each type and random constraint sets."""
    rng = np.random.default_rng(11)
    path = tmp_path / "removed.json"
    for text in ("complete", "utility:1km", "transition | centres:1km", "complete & utility:1km"):
        edges = {tuple(edge) for edge in _list_edges(text)}
        removed = [tuple(edge) for edge in rng.permutation(sorted(edges))[: 1 + len(edges) // 3].tolist()]
        added = [(0, SPACE.size - 1), removed[0]]
        expected = edges - set(removed)
        PolicyGraph.from_edges(SPACE.size, removed).to_json(path)
        edited = edit_edges(text, [], removed)
        from_file = " | ".join(f"{union} & without:{path}" for union in text.split("|"))
        for policy in (edited, from_file):
            graph = parse_policy(policy, SPACE, TRANSITION)
            assert {tuple(edge) for edge in graph.edge_array().tolist()} == expected
            first, second = np.triu_indices(SPACE.size, 1)
            is_edge = graph.connects(first, second)
            assert set(zip(first[is_edge].tolist(), second[is_edge].tolist(), strict=True)) == expected
            possible = rng.random(SPACE.size) < 0.6
            restricted = graph.restrict(possible)
            within = [edge for edge in sorted(expected) if possible[list(edge)].all()]
            reference = PolicyGraph.from_edges(SPACE.size, within)
            assert restricted.components().tolist() == reference.components(possible).tolist()
            hulls = [each.hull(Measurements.from_values(SPACE.points)) for each in (restricted, reference)]
            assert hulls[0].volume == pytest.approx(hulls[1].volume)
        both = {tuple(edge) for edge in _list_edges(edit_edges(text, added, removed))}
        assert both == expected | set(added)
        assert edit_edges(text, [], []) == text
        hashes = {canonicalize_policy(policy) for policy in (text, edited, edit_edges(text, added, []))}
        assert len(hashes) == 3
    assert describe_policy(edit_edges("utility:1km", [], [(0, 1)])) == (
        "locations that are within 1 km and are not the ends of 1 removed edge"
    )


def test_dense_graph_without_edges_is_not_listed():
    """A complete graph of 3,000 states has more edges than a certificate may list."""
    graph = PolicyGraph.complete(3_000).without_edges([[0, 1], [0, 2], [7, 2_999]])
    assert sum(len(term.get("pairs", ())) for term in graph.terms()) == 2 * 2_999 - 1 - 3
    assert graph.connects([0, 0, 0, 7, 7, 1], [1, 2, 3, 2_999, 0, 2]).tolist() == [
        False,
        False,
        True,
        False,
        True,
        True,
    ]


def test_removal_alone_raises():
    with pytest.raises(PolicyError, match="without must be combined by & with another term"):
        parse_policy('without:{"nodes":[],"edges":[{"source":0,"target":1}]} | complete', SPACE)
    with pytest.raises(PolicyError, match="states 0 to"):
        parse_policy('complete & without:{"nodes":[],"edges":[{"source":0,"target":999}]}', SPACE)
