"""networkx algorithms give equal results for a policy graph and its networkx copy."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
import warnings
from itertools import combinations

import networkx as nx
import numpy as np
import pytest

from dphmm import PolicyGraph
from dphmm.errors import PolicyError
from dphmm.policy import read_only_graph

SIZE = 18
Y, X = np.divmod(np.arange(SIZE), 6)
F = np.stack([X, Y], axis=1).astype(float)
LABELS = np.array([0, 0, 0, 1, 1, -1, 2, 2, 1, 1, 1, 0, -1, -1, 2, 3, 3, 3])
GROUPS = [[0, 1, 7], [7, 8, 14], [14, 13], [16], [3, 4, 5, 9]]
MOVES = (np.abs(F[:, None] - F[None]).sum(axis=2) <= 1).astype(float) * (np.arange(SIZE) % 4 != 1)[:, None]
LISTED = [(0, 17), (3, 1), (1, 2), (2, 3), (9, 8), (9, 10), (10, 8), (5, 17)]
IS_KEPT = np.isin(np.arange(SIZE), [0, 1, 2, 3, 7, 8, 9, 10, 14, 17])
PAIRS = list(combinations(range(SIZE), 2))


def build_graph(edges, nodes=range(SIZE), opened=()) -> nx.Graph:
    graph = nx.Graph()
    graph.add_nodes_from(nodes)
    graph.add_nodes_from(opened, open=True)
    graph.add_edges_from(sorted(edges))
    return graph


COMPLETE = set(PAIRS)
CATEGORICAL = {(i, j) for i, j in PAIRS if LABELS[i] == LABELS[j] >= 0}
UTILITY = {(i, j) for i, j in PAIRS if (X[i] - X[j]) ** 2 + (Y[i] - Y[j]) ** 2 <= 2}
TRANSITION = {(i, j) for i, j in PAIRS if any(MOVES[k, i] and MOVES[k, j] for k in range(SIZE))}
IN_GROUPS = {(i, j) for i, j in PAIRS if any(i in group and j in group for group in GROUPS)}
OPEN = [5, 12]

CASES = {
    "complete": (lambda: PolicyGraph.complete(SIZE), build_graph(COMPLETE)),
    "categorical": (lambda: PolicyGraph.categorical(LABELS), build_graph(CATEGORICAL)),
    "utility": (lambda: PolicyGraph.utility(F, 1.5), build_graph(UTILITY)),
    "transition": (lambda: PolicyGraph.transition(MOVES), build_graph(TRANSITION)),
    "groups": (lambda: PolicyGraph.from_groups(SIZE, GROUPS), build_graph(IN_GROUPS)),
    "listed": (lambda: PolicyGraph.from_edges(SIZE, LISTED), build_graph({tuple(sorted(edge)) for edge in LISTED})),
    "none": (lambda: PolicyGraph.from_edges(SIZE, []), build_graph([])),
    "union": (
        lambda: PolicyGraph.categorical(LABELS) | PolicyGraph.from_edges(SIZE, LISTED),
        build_graph(CATEGORICAL | {tuple(sorted(edge)) for edge in LISTED}),
    ),
    "intersection": (
        lambda: PolicyGraph.utility(F, 1.5) & PolicyGraph.categorical(LABELS),
        build_graph(UTILITY & CATEGORICAL),
    ),
    "restricted": (
        lambda: PolicyGraph.utility(F, 1.5).restrict(IS_KEPT),
        build_graph([(i, j) for i, j in UTILITY if IS_KEPT[i] and IS_KEPT[j]], np.flatnonzero(IS_KEPT).tolist()),
    ),
    "open": (lambda: PolicyGraph.categorical(LABELS).with_open(OPEN), build_graph(CATEGORICAL, opened=OPEN)),
}

ALGORITHMS = {
    "nodes": lambda g: [list(g), list(g.nodes), list(g.nodes(data="open")), list(g.nodes.data()), len(g.nodes)],
    "edges": lambda g: [list(g.edges), list(g.edges()), list(g.edges(data=True)), len(g.edges), list(g.edges([0, 1]))],
    "edge views": lambda g: [(0, 1) in g.edges, (1, 0) in g.edges, [g.get_edge_data(u, v, "none") for u, v in PAIRS]],
    "adjacency": lambda g: [{n: list(g.adj[n]) for n in g.adj}, {n: list(g[n]) for n in g}, dict(g.adjacency())],
    "neighbors": lambda g: [list(g.neighbors(n)) for n in g],
    "nbunch": lambda g: [list(g.nbunch_iter()), list(g.nbunch_iter([0, 99, 1])), list(g.nbunch_iter(0))],
    "degree": lambda g: [dict(g.degree), dict(g.degree()), g.degree[0], g.degree(0), list(g.degree([0, 1]))],
    "counts": lambda g: [g.number_of_nodes(), g.order(), g.number_of_edges(), len(g), g.number_of_edges(0, 1)],
    "kind": lambda g: [g.is_directed(), g.is_multigraph(), g.graph, g.name, nx.is_weighted(g), nx.is_empty(g)],
    "contains": lambda g: [
        [n in g, g.has_node(n)] for n in (*range(-1, SIZE + 1), "a", None, 0.5, (1, 2), np.int64(1))
    ],
    "has_edge": lambda g: [[g.has_edge(u, v), g.has_edge(v, u)] for u, v in [*PAIRS, (0, 0), (0, 99), ("a", 1)]],
    "connected_components": lambda g: list(nx.connected_components(g)),
    "number_connected_components": nx.number_connected_components,
    "is_connected": nx.is_connected,
    "node_connected_component": lambda g: nx.node_connected_component(g, 0),
    "shortest_path": lambda g: dict(nx.shortest_path(g)),
    "distances": lambda g: dict(nx.all_pairs_shortest_path_length(g)),
    "has_path": lambda g: nx.has_path(g, 0, 17),
    "degree_histogram": nx.degree_histogram,
    "density": nx.density,
    "clustering": nx.clustering,
    "average_clustering": nx.average_clustering,
    "transitivity": nx.transitivity,
    "triangles": nx.triangles,
    "isolates": lambda g: list(nx.isolates(g)),
    "core_number": nx.core_number,
    "cliques": lambda g: sorted(map(sorted, nx.find_cliques(g))),
    "coloring": nx.greedy_color,
    "bipartite": nx.is_bipartite,
    "articulation_points": lambda g: sorted(nx.articulation_points(g)),
    "bridges": lambda g: sorted(nx.bridges(g)),
    "independent_set": lambda g: nx.maximal_independent_set(g, seed=1),
    "matching": lambda g: sorted(nx.max_weight_matching(g)),
    "pagerank": lambda g: nx.pagerank(g),
    "betweenness": nx.betweenness_centrality,
    "to_scipy_sparse_array": lambda g: nx.to_scipy_sparse_array(g).toarray().tolist(),
    "some of the array": lambda g: nx.to_scipy_sparse_array(g, nodelist=[3, 1, 0]).toarray().tolist(),
    "laplacian_matrix": lambda g: nx.laplacian_matrix(g).toarray().tolist(),
    "to_dict_of_lists": nx.to_dict_of_lists,
    "node_link_data": lambda g: json.dumps(nx.node_link_data(g, edges="edges")),
    "subgraph": lambda g: sorted(map(sorted, g.subgraph([0, 1, 2, 9, 17, 99]).edges)),
    "subgraph of one": lambda g: [list(g.subgraph(0)), list(g.subgraph(0).edges)],
    "subgraph of none": lambda g: [list(g.subgraph([])), list(g.subgraph([]).edges), len(g.subgraph([]))],
    "spanning tree edges": lambda g: list(nx.minimum_spanning_edges(g)),
    "copy": lambda g: [list(nx.Graph(g).edges), list(g.copy().edges(data=True)), list(g.copy().nodes(data=True))],
    "directed": lambda g: [sorted(nx.DiGraph(g).edges), sorted(g.to_directed().edges), g.to_directed().is_directed()],
    "equal": lambda g: nx.utils.graphs_equal(nx.Graph(g), g.to_undirected()),
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_networkx_algorithms_agree_with_graph_of_the_same_edges(algorithm):
    call = ALGORITHMS[algorithm]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # networkx warns for graphs without edges
        for case, (make, plain) in CASES.items():
            assert call(make()) == call(plain), case


@pytest.mark.parametrize("case", CASES)
def test_networkx_algorithms_differ_if_one_edge_differs(case):
    """Without one edge (or with one more) some algorithm differs in each case."""
    make, plain = CASES[case]
    other = plain.copy()
    if plain.number_of_edges():
        other.remove_edge(*next(iter(plain.edges)))
    else:
        other.add_edge(3, 4)
    differing = [
        name for name, call in ALGORITHMS.items() if name in ("edges", "density") and call(make()) != call(other)
    ]
    assert differing == ["edges", "density"]


def test_single_state_methods_do_not_build_the_graph():
    """A complete graph over 100,000 states has five billion edges."""
    policy = PolicyGraph.complete(100_000)
    assert (len(policy), policy.number_of_nodes(), 99_999 in policy, 100_000 in policy) == (
        100_000,
        100_000,
        True,
        False,
    )
    assert policy.has_edge(0, 99_999)
    assert not policy.has_edge(5, 5)
    assert next(iter(policy)) == 0
    assert not policy.is_directed()
    assert policy.nodes[7] == {}
    assert list(policy.subgraph([5, 99_999, 7]).edges) == [(5, 7), (5, 99_999), (7, 99_999)]
    assert "_graph" not in vars(policy)


def test_more_edges_than_the_limit_raises(monkeypatch):
    monkeypatch.setattr(read_only_graph, "MAX_GRAPH_EDGES", 152)
    policy = PolicyGraph.complete(SIZE)
    assert policy.number_of_edges() == 153
    for ask in (lambda: policy.edges, lambda: policy.adj, policy.to_networkx, lambda: nx.triangles(policy)):
        with pytest.raises(PolicyError, match=r"152 edges .*153"):
            ask()
    monkeypatch.setattr(read_only_graph, "MAX_GRAPH_EDGES", 153)
    assert len(policy.edges) == 153


def test_mutation_raises_and_changes_nothing():
    policy = PolicyGraph.categorical(LABELS).with_open(OPEN)
    before = policy.content_hash
    for change in (
        lambda: policy.add_edge(0, 17),
        lambda: policy.remove_edges_from([(0, 1)]),
        lambda: policy.clear(),
        lambda: policy.edges[0, 1].update(weight=2),
        lambda: policy.nodes[5].pop("open"),
        lambda: nx.set_node_attributes(policy, 1, "weight"),
        lambda: nx.set_edge_attributes(policy, 1, "weight"),
    ):
        with pytest.raises(nx.NetworkXError, match="is frozen and can't be modified"):
            change()
    assert nx.is_frozen(policy)
    assert policy.content_hash == before
    assert sorted(policy.edges) == sorted(CATEGORICAL)


@pytest.mark.parametrize("algorithm", [nx.minimum_spanning_tree, nx.complement, nx.create_empty_copy])
def test_algorithm_that_returns_the_same_class_raises(algorithm):
    policy = PolicyGraph.utility(F, 1.5)
    with pytest.raises(PolicyError, match=r"policy\.to_networkx\(\)"):
        algorithm(policy)
    assert nx.utils.graphs_equal(algorithm(policy.to_networkx()), algorithm(build_graph(UTILITY)))


def test_copies_and_pickles_omit_the_built_graph():
    policy = PolicyGraph.utility(F, 1.5)
    assert policy.degree[0] == 3
    for again in (pickle.loads(pickle.dumps(policy)), copy.deepcopy(policy), copy.copy(policy)):
        assert "_graph" not in vars(again)
        assert "_node" not in vars(again)
        assert again.content_hash == policy.content_hash
        assert list(again.edges) == list(policy.edges)
    attributes = pickle.loads(pickle.dumps(policy.edges[0, 1]))
    assert type(attributes) is dict


def test_subgraph_is_the_restricted_policy():
    policy = PolicyGraph.categorical(LABELS).with_open(OPEN)
    part = policy.subgraph([0, 1, 5, 17, 15])
    assert isinstance(part, PolicyGraph)
    assert part.open.nonzero()[0].tolist() == [5]
    assert part.node_mask.nonzero()[0].tolist() == [0, 1, 5, 15, 17]
    assert part.restrict(IS_KEPT).edge_array().tolist() == [[0, 1]]
    assert list(policy.restrict(IS_KEPT).subgraph([0, 1, 4]).nodes) == [0, 1]
    with pytest.raises(PolicyError, match=r"nodes .*99"):
        policy.subgraph(99)


def test_union_and_intersection_take_networkx_graphs():
    policy, other = PolicyGraph.categorical(LABELS), build_graph({(0, 17), (0, 1)})
    assert set((policy | other).edges) == set((other | policy).edges) == CATEGORICAL | {(0, 17)}
    assert set((policy & other).edges) == set((other & policy).edges) == {(0, 1)}
    for broken, message in (
        (
            nx.DiGraph([(0, 1)]),
            "the other graph must be an undirected networkx.Graph without parallel edges, got a DiGraph",
        ),
        (nx.Graph([(0, 99)]), "the other graph must have nodes that are among the 18 states 0 to 17, got node 99"),
        (3, "the other graph must be a PolicyGraph or a networkx.Graph, got 3"),
    ):
        with pytest.raises(PolicyError, match=message):
            policy | broken
        with pytest.raises(PolicyError, match=message):
            policy & broken


@pytest.mark.slow
def test_networkx_is_imported_lazily():
    code = "import sys, dphmm; p = dphmm.PolicyGraph.complete(5); p.has_edge(0, 1), 3 in p, len(p), p | p; "
    code += "print('networkx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
