"""networkx graphs as policies: in the engine, in settings and with all policy features."""

from __future__ import annotations

import json
import random
import tomllib
from itertools import combinations

import networkx as nx
import numpy as np
import pytest

from dphmm import (
    Limits,
    MarkovModel,
    PolicyGraph,
    Releaser,
    ReleaseSettings,
    Schedule,
    Session,
    degree_of_protection,
    exposed_states,
    protect,
)
from dphmm.audit import audit_constraint, audit_constraints, audit_entries, select_hardest_edges
from dphmm.errors import DphmmError, PolicyError, SessionMismatchError
from dphmm.evaluation import compare_noise
from dphmm.jobs.release.stored import read_sessions
from dphmm.policy import graph_text, parse_policy
from dphmm.policy.expression import canonicalize_policy, describe_policy, format_policy_label
from dphmm.policy.graph_text import format_policy_text
from dphmm.space import Places
from tests.certificate.certificates import build_town

TOWN = build_town()
SPACE = TOWN.space
POINTS = SPACE.points
PATH = [0, 1, 7, 8, 8, 12]


def connect_near(radius: float = 0.51, order: int = 0, opened=()) -> nx.Graph:
    """Connect the cells of the town with centres at most a radius apart.

    The graph is built in a shuffled order, which must not matter.
    """
    rng = random.Random(order)
    pairs = [
        pair
        for pair in combinations(range(SPACE.size), 2)
        if np.linalg.norm(np.diff(POINTS[list(pair)], axis=0)) <= radius
    ]
    pairs = [pair for pair in pairs if not set(pair) & set(opened)]
    graph = nx.Graph()
    states = list(range(SPACE.size))
    if order:
        rng.shuffle(pairs)
        rng.shuffle(states)
        pairs = [pair if rng.random() < 0.5 else pair[::-1] for pair in pairs]
        graph.add_edges_from(pairs)
    graph.add_nodes_from(states)
    graph.add_nodes_from(opened, open=True)
    graph.add_edges_from(pairs)
    return graph


def list_policy(graph: nx.Graph) -> PolicyGraph:
    """Return the same policy, edge by edge, without `from_networkx`."""
    policy = PolicyGraph.from_edges(SPACE.size, sorted(tuple(sorted(edge)) for edge in graph.edges))
    opened = sorted(node for node, is_open in graph.nodes(data="open") if is_open)
    return policy.with_open(opened) if opened else policy


def release_records(engine: Releaser, path=PATH) -> list[str]:
    engine.restart()
    return [engine.release(state).to_json() for state in path]


def without_hash(texts: list[str]) -> list[dict]:
    """Return the records without the settings hash, which depends on the notation of a policy."""
    return [{name: value for name, value in json.loads(text).items() if name != "settings_hash"} for text in texts]


# ---- functions of a graph and measurements ----------------------------------------------------------------------

MASK = np.isin(np.arange(SPACE.size), [0, 1, 5, 6, 11, 18, 24])


def are_same(first, second) -> bool:
    """Return whether two results agree in all public values."""
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(are_same, first, second))
    if isinstance(first, np.ndarray):
        return np.array_equal(first, second)
    return repr(first) == repr(second)


@pytest.mark.slow
@pytest.mark.parametrize(
    "call",
    [
        lambda policy: degree_of_protection(policy, POINTS),
        lambda policy: degree_of_protection(policy, POINTS, MASK, noise_scope="component"),
        lambda policy: exposed_states(policy, POINTS, MASK, "cross-polytope"),
        lambda policy: [protect(policy, POINTS, MASK).added, protect(policy, POINTS, MASK).degrees],
        lambda policy: protect(policy, POINTS, MASK, noise_scope="component").graph.edge_array(),
        lambda policy: [audit_constraint(policy, POINTS, MASK).bodies, audit_constraint(policy, POINTS, MASK).labels],
        lambda policy: [audit.bodies for audit in audit_constraints(policy, POINTS, [MASK, ~MASK])],
        lambda policy: select_hardest_edges(policy, POINTS, 3),
        lambda policy: compare_noise(TOWN, ReleaseSettings("complete", 1.0), [[0, 1, 7]], policy=policy),
        lambda policy: release_records(Releaser(TOWN, POINTS, policy, 1.0, rng=5)),
        lambda policy: release_records(Releaser(TOWN, POINTS, policy, 1.0, "laplace", rng=5, delta=0.1)),
        lambda policy: release_records(ReleaseSettings("complete", 1.0).engine(TOWN, 5, policy)),
        lambda policy: release_records(ReleaseSettings(policy, 1.0).engine(TOWN, 5)),
        lambda policy: release_records(ReleaseSettings(policy, 1.0, noise_scope="component").engine(TOWN, 5)),
        lambda policy: release_records(ReleaseSettings(policy, 1.0, "graph-exponential").engine(TOWN, 5)),
        lambda policy: release_records(ReleaseSettings(policy, 1.0, schedule=Schedule(0.8)).engine(TOWN, 5)),
        lambda policy: ReleaseSettings(policy, 1.0).content_hash,
        lambda policy: parse_policy(policy, SPACE).content_hash,
    ],
)
def test_networkx_graph_gives_the_result_of_the_policy_graph(call):
    assert are_same(call(connect_near()), call(list_policy(connect_near())))
    assert are_same(call(connect_near(order=3)), call(list_policy(connect_near())))
    assert not are_same(
        call(connect_near(radius=1.6)), call(list_policy(connect_near()))
    )  # a different graph gives a different result


@pytest.mark.slow
@pytest.mark.parametrize("noise_scope", ["graph", "component"])
def test_open_nodes_are_unprotected_states(noise_scope):
    opened = [20, 21, 22]
    graph = connect_near(0.72, opened=opened)
    for policy in (graph, list_policy(graph)):
        engine = ReleaseSettings(policy, 1.0, noise_scope=noise_scope).engine(TOWN, 5)
        assert engine.policy.open.nonzero()[0].tolist() == opened
    assert release_records(
        ReleaseSettings(graph, 1.0, noise_scope=noise_scope).engine(TOWN, 5), [0, 6, 12, 16, 21]
    ) == release_records(
        ReleaseSettings(list_policy(graph), 1.0, noise_scope=noise_scope).engine(TOWN, 5), [0, 6, 12, 16, 21]
    )
    entries = [audit_entries(policy, POINTS, TOWN) for policy in (graph, list_policy(graph))]
    assert entries[0].entries == entries[1].entries
    assert entries[0].entries


def test_listed_edges_release_as_the_radius_text():
    """The edges of the centre rule, listed by definition, release what the string releases."""
    record_lists = [
        release_records(ReleaseSettings(policy, 1.0).engine(TOWN, 5))
        for policy in (connect_near(1.01), "centres:1.01km")
    ]
    assert without_hash(record_lists[0]) == without_hash(record_lists[1])


# ---- settings ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_settings_with_graph_round_trip():
    settings = ReleaseSettings(connect_near(opened=[24]), 0.7, delta=0.05)
    for again in (
        ReleaseSettings.from_json(settings.to_json()),
        ReleaseSettings.from_toml(settings.to_toml()),
        ReleaseSettings.from_dict(json.loads(json.dumps(settings.to_dict()))),
        ReleaseSettings(connect_near(order=8, opened=[24]), 0.7, delta=0.05),
    ):
        assert again == settings
        assert hash(again) == hash(settings)
        assert again.content_hash == settings.content_hash
        assert release_records(again.engine(TOWN, 3)) == release_records(settings.engine(TOWN, 3))
    assert tomllib.loads(settings.to_toml())["policy"] == settings.policy


@pytest.mark.parametrize("order", range(1, 6))
def test_settings_hash_does_not_depend_on_insertion_order(order):
    settings = ReleaseSettings(connect_near(), 1.0)
    other = ReleaseSettings(connect_near(order=order), 1.0)
    assert list(connect_near(order=order).nodes) != list(connect_near().nodes)
    assert (other, other.content_hash) == (settings, settings.content_hash)
    assert ReleaseSettings(list_policy(connect_near()), 1.0).content_hash == settings.content_hash


def test_settings_hash_differs_if_an_edge_or_open_state_differs():
    base = connect_near(opened=[24])
    hashes = {ReleaseSettings(base, 1.0).content_hash}
    more = base.copy()
    fewer = base.copy()
    closed = base.copy()
    more.add_edge(0, 23)
    fewer.remove_edge(0, 1)
    closed.nodes[24]["open"] = False
    for graph in (more, fewer, closed):
        hashes.add(ReleaseSettings(graph, 1.0).content_hash)
    assert len(hashes) == 4


def test_isolated_nodes_and_self_loops_do_not_change_the_hash():
    base, other = nx.Graph([(0, 1), (1, 2)]), nx.Graph([(2, 1), (1, 0), (0, 0)])
    other.add_nodes_from([7, 8])
    assert ReleaseSettings(base).content_hash == ReleaseSettings(other).content_hash
    assert ReleaseSettings(other).build_graph(TOWN).edge_array().tolist() == [[0, 1], [1, 2]]


def test_text_is_node_link_json_of_networkx_and_of_policy_files(tmp_path):
    text = format_policy_text(connect_near(opened=[24]))
    (tmp_path / "policy.json").write_text(text.removeprefix("graph:"))
    read = nx.node_link_graph(json.loads(text.removeprefix("graph:")), edges="edges")
    assert {tuple(sorted(edge)) for edge in read.edges} == {
        tuple(sorted(edge)) for edge in connect_near(opened=[24]).edges
    }
    from_file, from_text = (parse_policy(policy_spec, SPACE) for policy_spec in (f"graph:{tmp_path}/policy.json", text))
    assert from_file.content_hash == from_text.content_hash


def test_graph_text_combines_with_other_terms():
    text = f"{format_policy_text(nx.Graph([(0, 24), (0, 1)]))} & complete | centres:0.51km | open:nowhere"
    text = text.removesuffix(" | open:nowhere")
    policy = parse_policy(text, SPACE)
    assert set(policy.edges) == {tuple(sorted(edge)) for edge in connect_near().edges} | {(0, 24), (0, 1)}
    assert format_policy_label(text) == "graph of 2 edges & complete | centres:0.51km"
    assert describe_policy(text) == (
        "locations that the graph connects and are arbitrary, or that belong to states with points within 0.51 km"
    )
    spaced = text.replace('","', '" , "').replace(":[", " : [")
    assert canonicalize_policy(spaced) == canonicalize_policy(text)


def test_state_names_may_contain_policy_operators():
    names = ["Marks & Spencer", "a|b", "zone:home", '"quoted"', "é", "0"]
    places = Places(names, 45 + np.arange(6) / 100, np.full(6, 7.0))
    model = MarkovModel(np.full((6, 6), 1 / 6), np.full(6, 1 / 6), places, 300)
    graph = nx.Graph([(names[0], names[1]), (names[2], names[3]), (names[4], names[5])])
    settings = ReleaseSettings.from_json(ReleaseSettings(graph, 1.0).to_json())
    assert settings.build_graph(model).edge_array().tolist() == [[0, 1], [2, 3], [4, 5]]
    by_number = nx.Graph([(0, 1), (2, 3), (4, 5)])
    for policy in (graph, by_number, nx.Graph([(0, names[1]), (names[2], 3), (4, 5)])):
        engines = [settings.engine(model, 2), ReleaseSettings(policy, 1.0).engine(model, 2)]
        assert without_hash(release_records(engines[0], [0, 1, 2])) == without_hash(
            release_records(engines[1], [0, 1, 2])
        )
        assert Releaser(model, places.points, policy, 1.0).policy.content_hash == engines[0].policy.content_hash
    with pytest.raises(PolicyError, match=r"'Marks & Spencer'.*'home'"):
        ReleaseSettings(nx.Graph([("home", "é")])).engine(model)


def test_states_missing_from_the_graph_have_no_edges():
    engine = ReleaseSettings(nx.Graph([(0, 1), (1, 5)]), 1.0).engine(TOWN, 5)
    assert engine.policy.size == SPACE.size
    assert engine.policy.find_connected_states().nonzero()[0].tolist() == [0, 1, 5]
    assert release_records(engine) == release_records(engine.settings.engine(TOWN, 5, nx.Graph([(0, 1), (1, 5)])))


@pytest.mark.slow
def test_settings_with_more_edges_than_the_limit_raise(monkeypatch, tmp_path):
    monkeypatch.setattr(graph_text, "MAX_TEXT_EDGES", connect_near().number_of_edges())
    assert ReleaseSettings(connect_near()).build_graph(TOWN).number_of_edges() == connect_near().number_of_edges()
    larger = connect_near(0.72)
    for policy in (larger, list_policy(larger), PolicyGraph.complete(SPACE.size)):
        with pytest.raises(PolicyError, match=r"settings, got \d+.*PolicyGraph\.to_json"):
            ReleaseSettings(policy)
    PolicyGraph.from_networkx(larger).to_json(tmp_path / "larger.json")
    engine = ReleaseSettings(f"graph:{tmp_path}/larger.json", 1.0).engine(TOWN, 5)
    assert release_records(engine) == release_records(engine.settings.engine(TOWN, 5, larger))


def test_edge_limit_is_documented():
    assert f"{graph_text.MAX_TEXT_EDGES:,}" in ReleaseSettings.__doc__


# ---- refusals ---------------------------------------------------------------------------------------------------

DIRECTED = r"must be an undirected networkx.Graph without parallel edges, got a {}: convert it by networkx.Graph\("
REFUSED = {
    "directed": (nx.DiGraph([(0, 1)]), DIRECTED.format("DiGraph")),
    "parallel edges": (nx.MultiGraph([(0, 1), (0, 1)]), DIRECTED.format("MultiGraph")),
    "both": (nx.MultiDiGraph([(0, 1)]), DIRECTED.format("MultiDiGraph")),
    "unknown state": (
        nx.Graph([(0, 30)]),
        "30 states 0 to 29, got node 30: remove it, or rename it by networkx.relabel",
    ),
    "unknown isolated state": (nx.Graph([(0, 1), (99, 99)]), "30 states 0 to 29, got node 99: remove it"),
    "name": (nx.Graph([("a", "b")]), "30 states 0 to 29, got node 'a': remove it, or rename it"),
    "open with an edge": (connect_near(opened=[]), "open state must not have an edge, got state 3"),
}
REFUSED["open with an edge"][0].nodes[3]["open"] = True


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize(
    ("called", "call"),
    [
        ("graph", lambda policy: protect(policy, POINTS)),
        ("graph", lambda policy: degree_of_protection(policy, POINTS)),
        ("graph", lambda policy: exposed_states(policy, POINTS)),
        ("graph", lambda policy: audit_constraint(policy, POINTS)),
        ("graph", lambda policy: list(audit_constraints(policy, POINTS, [MASK]))),
        ("graph", lambda policy: audit_entries(policy, POINTS, TOWN)),
        ("graph", lambda policy: select_hardest_edges(policy, POINTS)),
        ("graph", lambda policy: PolicyGraph.from_networkx(policy, SPACE.size)),
        ("policy", lambda policy: Releaser(TOWN, POINTS, policy, 1.0)),
        ("policy", lambda policy: ReleaseSettings("complete").engine(TOWN, policy=policy)),
        ("policy", lambda policy: compare_noise(TOWN, ReleaseSettings("complete"), [[0]], policy=policy)),
        ("policy", lambda policy: parse_policy(policy, SPACE)),
        ("policy", lambda policy: ReleaseSettings(policy).engine(TOWN)),
    ],
)
def test_invalid_graph_raises_in_one_line(called, call, case):
    graph, message = REFUSED[case]
    with pytest.raises(PolicyError, match=message) as refused:
        call(graph)
    assert "\n" not in str(refused.value)
    assert case == "open with an edge" or str(refused.value).startswith(f"{called} must ")


def test_settings_with_invalid_graph_raise_without_model():
    for graph, message in (
        (nx.Graph(), "policy must have an edge between two states, got a graph without edges"),
        (nx.Graph([(4, 4)]), "policy must have an edge between two states"),
        (nx.Graph([((0, 1), (0, 2))]), r"policy must have nodes that are states or names of states, got node \(0, "),
        (nx.Graph([("\ud800", "a")]), "policy must have nodes that are states or names of states, got node '"),
        (nx.DiGraph([(0, 1)]), DIRECTED.format("DiGraph")),
        (object(), "policy must be a string such as utility:1km, a PolicyGraph or a networkx.Graph, got <object"),
    ):
        with pytest.raises(PolicyError, match=message):
            ReleaseSettings(graph)
    with pytest.raises(PolicyError, match=r"size .*empty graph"):
        PolicyGraph.from_networkx(nx.Graph())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("graph:{", "must contain node-link JSON, got"),
        ('graph:{"nodes":[]}', "is not a node-link graph"),
        ('graph:{"nodes":[],"edges":[{"source":0}]}', "is not a node-link graph"),
        ('graph:{"nodes":[],"edges":[{"source":"a & b","target":1}]}', "is none; give|must contain node-link JSON"),
        (
            'graph:{"num_states":6,"nodes":[],"edges":[{"source":0,"target":1}]}',
            "a graph over the 30 states it is used for, got one over 6",
        ),
        ('graph:{"nodes":[],"edges":[{"source":0,"target":[1]}]}', r"30 states 0 to 29, got node \(1,\)"),
        ('graph:{"nodes":[],"edges":[]}', "connects none of the 30 states"),
    ],
)
def test_invalid_graph_text_raises(text, message):
    with pytest.raises(DphmmError, match=message) as refused:
        ReleaseSettings(text).engine(TOWN)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


def test_policy_graph_over_other_number_of_states_raises():
    with pytest.raises(PolicyError, match=r"30 states .*\b6\b"):
        ReleaseSettings(PolicyGraph.complete(6)).engine(TOWN)


# ---- sessions ---------------------------------------------------------------------------------------------------


def test_session_continues_under_equal_graph_only(tmp_path):
    path, settings = tmp_path / "s.db", ReleaseSettings(connect_near(), 1.0)
    with Session.open(path, "ann", settings.engine(TOWN), Limits(epsilon=9)) as session:
        session.release(0, 5_700_000)
    again = ReleaseSettings(connect_near(order=4), 1.0)
    with Session.open(path, "ann", again.engine(TOWN)) as session:
        session.release(1, 5_700_001)
    (content,) = read_sessions(path)
    assert content.session.terms["main"].settings == settings
    assert [stored.record.index for stored in content.releases] == [0, 1]
    more = connect_near()
    more.add_edge(0, 24)
    with pytest.raises(SessionMismatchError, match="policy"):
        Session.open(path, "ann", ReleaseSettings(more, 1.0).engine(TOWN))


def test_constraints_and_further_queries_take_networkx_graphs():
    graph = connect_near(0.72)
    for policy in (graph, list_policy(graph)):
        engine = Releaser(TOWN, POINTS, policy, 1.0, rng=5)
        second_query = engine.for_query(POINTS[:, :1], epsilon=0.5)
        assert second_query.policy is engine.policy
    restricted = [
        PolicyGraph.from_networkx(graph, SPACE.size).restrict(MASK),
        graph.subgraph(np.flatnonzero(MASK).tolist()),
    ]
    protections = [protect(policy, POINTS, MASK) for policy in restricted]
    assert protections[0].added == protections[1].added
    assert np.array_equal(protections[0].degrees, protections[1].degrees)
    assert protections[0].graph.edge_array().tolist() == protections[1].graph.edge_array().tolist()
