"""Policy graphs: their edges, and correct queries that do not list the edges."""

from __future__ import annotations

import json
from contextlib import nullcontext
from itertools import combinations

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array, random_array

from dphmm import Measurements, PolicyGraph, SensitivityHull
from dphmm.compilation import compile_at_first_call
from dphmm.errors import ConstraintError, DataFileError, PolicyError
from dphmm.geometry.gauge import Gauge
from dphmm.policy import cliques
from dphmm.policy import edges as listed
from dphmm.policy.graph_text import format_policy_text
from tests.running_example import F, build_graph, mask_states


@st.composite
def policy_cases(draw):
    """Generate a policy, its networkx graph by definition, measurements and a constraint."""
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    size, d = int(rng.integers(2, 28)), int(rng.integers(1, 4))
    f = rng.integers(0, 7, (size, d)).astype(float)
    if rng.random() < 0.4:
        f += rng.random((size, d))
    kind = draw(st.sampled_from(["complete", "categorical", "utility", "transition", "edges", "groups", "mixed"]))
    policy, plain = _build_policy(kind, size, f, rng)
    mask = rng.random(size) < 0.7
    mask[0] = True
    return policy, plain, Measurements(f), mask


def _build_policy(kind, size, f, rng):
    plain = nx.Graph()
    plain.add_nodes_from(range(size))
    pairs = [(i, j) for i in range(size) for j in range(i)]
    if kind == "complete":
        plain.add_edges_from(pairs)
        return PolicyGraph.complete(size), plain
    if kind == "categorical":
        labels = rng.integers(-1, 4, size)
        plain.add_edges_from((i, j) for i, j in pairs if labels[i] == labels[j] >= 0)
        return PolicyGraph.categorical(labels), plain
    if kind == "utility":
        plain.add_edges_from((i, j) for i, j in pairs if np.linalg.norm(f[i] - f[j]) <= 2.5)
        return PolicyGraph.utility(f, 2.5), plain
    if kind == "transition":
        matrix = random_array((size, size), density=0.15, rng=rng)
        dense = matrix.toarray() > 0
        plain.add_edges_from((i, j) for i, j in pairs if (dense[:, i] & dense[:, j]).any())
        return PolicyGraph.transition(matrix), plain
    if kind == "edges":
        chosen = [pair for pair in pairs if rng.random() < 0.15]
        plain.add_edges_from(chosen)
        return PolicyGraph.from_edges(size, chosen), plain
    if kind == "groups":
        groups = [rng.choice(size, min(size, 4), replace=False) for _ in range(4)]
        plain.add_edges_from((int(i), int(j)) for g in groups for i in g for j in g if i != j)
        return PolicyGraph.from_groups(size, groups), plain
    first, second, third = (_build_policy(name, size, f, rng) for name in ("utility", "categorical", "edges"))
    union = nx.compose(nx.intersection(first[1], second[1]), third[1])
    return (first[0] & second[0]) | third[0], union


@given(policy_cases())
def test_edges_match_definition(case):
    policy, plain, _, mask = case
    within = plain.subgraph(np.flatnonzero(mask).tolist())
    expected = sorted(tuple(sorted(edge)) for edge in within.edges())
    restricted = policy.restrict(mask)
    assert [tuple(edge) for edge in restricted.edge_array().tolist()] == expected
    assert nx.utils.graphs_equal(nx.Graph(restricted.to_networkx()), nx.Graph(within))


@given(policy_cases())
def test_differences_span_hull_of_all_edges(case):
    policy, _, measurements, mask = case
    restricted = policy.restrict(mask)
    edges = restricted.edge_array()
    literal = SensitivityHull(measurements.points[edges[:, 0]] - measurements.points[edges[:, 1]])
    fast = SensitivityHull(restricted.differences(measurements))
    assert fast.vertices.shape == literal.vertices.shape
    np.testing.assert_allclose(fast.vertices, literal.vertices, atol=1e-9)


@given(policy_cases(), st.floats(0.2, 3.0), st.booleans())
def test_widest_edge_of_gauge_matches_maximum_over_edges(case, size, ball):
    policy, _, measurements, mask = case
    points = measurements.points
    edges = policy.restrict(mask).edge_array()
    if ball or not len(edges):
        gauge = Gauge.from_ball(2, size, points.shape[1], 0.0)
    else:
        hull = SensitivityHull(points[edges[:, 0]] - points[edges[:, 1]])
        gauge = Gauge.from_cones(hull.cones, size, 1e-12)
    literal = gauge(points[edges[:, 0]] - points[edges[:, 1]]).max(initial=0.0)
    widest = policy.compute_max_gauge(points, gauge, mask)
    assert (widest > 1) == (literal > 1)
    assert widest <= 1 or widest == pytest.approx(literal, rel=1e-9)


@pytest.mark.parametrize("share", [1.0, 0.9])
def test_widest_edge_without_list_inspects_only_edges_beyond_inner_ball(share, monkeypatch):
    monkeypatch.setattr(listed, "_MAX_CACHED_EDGES", 0)
    points = np.random.default_rng(0).random((600, 2))
    policy = PolicyGraph.utility(points, 0.3)
    edges = policy.edge_array()
    differences = points[edges[:, 0]] - points[edges[:, 1]]
    gauge = Gauge.from_cones(SensitivityHull(differences).cones, share, 1e-12)
    inspected = []
    call = Gauge.__call__
    monkeypatch.setattr(Gauge, "__call__", lambda self, vectors: inspected.append(len(vectors)) or call(self, vectors))
    widest = policy.compute_max_gauge(points, gauge)
    assert sum(inspected) == np.count_nonzero(np.linalg.norm(differences, axis=1) >= gauge.inner) < len(edges) / 2
    literal = call(gauge, differences).max()
    assert (widest > 1) == (literal > 1) == (share < 1)
    assert widest <= 1 or widest == pytest.approx(literal, rel=1e-9)


@pytest.mark.parametrize("name", ["complete", "categorical", "utility", "utility over scattered points"])
@pytest.mark.parametrize("share", [1.0, 0.9])
@pytest.mark.parametrize("seed", range(4))
def test_widest_edge_over_many_states_matches_maximum_over_edges(name, share, seed):
    rng = np.random.default_rng(seed)
    cells = np.stack(np.meshgrid(np.arange(20), np.arange(15)), axis=-1).reshape(-1, 2)
    f = 0.34 * cells + (rng.normal(size=cells.shape) if "scattered" in name else 0.0)
    policy = {
        "complete": lambda: PolicyGraph.complete(300),
        "categorical": lambda: PolicyGraph.categorical(rng.integers(0, 3, 300)),
    }.get(name, lambda: PolicyGraph.utility(f, 1.1))()
    mask = [np.ones(300, dtype=bool), rng.random(300) < 0.1, cells @ [1, 2] == 20, cells.max(axis=1) < 9][seed]
    edges = policy.restrict(mask).edge_array()
    differences = f[edges[:, 0]] - f[edges[:, 1]]
    steps = np.rint(f * 1000)
    for gauge, points in (
        (Gauge.from_cones(SensitivityHull(differences).cones, share, 1e-12), f),
        (Gauge.from_ball(2, share * np.linalg.norm(differences, axis=1).max(), 2, 0.0), f),
        (Gauge.from_cones(SensitivityHull(steps[edges[:, 0]] - steps[edges[:, 1]]).cones, share, 0.0), steps),
    ):
        literal = gauge(points[edges[:, 0]] - points[edges[:, 1]]).max()
        widest = policy.compute_max_gauge(points, gauge, mask)
        assert (widest > 1) == (literal > 1) == (share < 1)
        assert widest <= 1 or widest == pytest.approx(literal, rel=1e-9)


@pytest.mark.parametrize("name", ["complete", "categorical", "utility", "edges", "union"])
@pytest.mark.parametrize("limits", [[np.nan, np.nan], [1e6, np.nan], None])
@pytest.mark.parametrize("loops", [nullcontext, compile_at_first_call])
def test_widest_edge_of_gauge_that_is_nan_does_not_pass(name, limits, loops):
    points = np.stack(np.meshgrid(np.arange(8.0), np.arange(6.0)), axis=-1).reshape(-1, 2)
    policy = {
        "complete": lambda: PolicyGraph.complete(48),
        "categorical": lambda: PolicyGraph.categorical(np.arange(48) % 3),
        "utility": lambda: PolicyGraph.utility(points, 2.5),
        "edges": lambda: PolicyGraph.from_edges(48, [(0, 9), (1, 17)]),
        "union": lambda: PolicyGraph.from_edges(48, [(0, 9)]) | PolicyGraph.utility(points, 2.5),
    }[name]()
    gauge = Gauge(None, radius=np.nan) if limits is None else Gauge(np.eye(2), np.array(limits))
    with loops():
        assert not policy.compute_max_gauge(points, gauge) <= 1
        if limits is not None:
            assert (
                not policy.compute_max_gauge(points, Gauge(np.array([[1.0, 0.0], [0.0, np.nan]]), np.full(2, 1e6))) <= 1
            )
        if limits is not None and name == "complete":  # others raise in NumPy or SciPy
            nowhere = points.copy()
            nowhere[9, 1] = np.nan
            assert not policy.compute_max_gauge(nowhere, Gauge(np.eye(2), np.full(2, 1e6))) <= 1
    if limits is None and name in ("categorical", "edges"):  # others raise in NumPy or SciPy
        points = points.copy()
        points[9] = np.nan
        assert not policy.compute_max_gauge(points, Gauge.from_ball(2, 1e6, 2, 0.0)) <= 1


@given(policy_cases())
def test_connects_and_connected_match_edges(case):
    policy, _, _, mask = case
    restricted = policy.restrict(mask)
    adjacency = np.zeros((policy.size, policy.size), dtype=bool)
    for i, j in restricted.edge_array():
        adjacency[i, j] = adjacency[j, i] = True
    first, second = (index.ravel() for index in np.indices(adjacency.shape))
    np.testing.assert_array_equal(restricted.connects(first, second).reshape(adjacency.shape), adjacency)
    np.testing.assert_array_equal(restricted.find_connected_states(), adjacency.any(axis=0))


def test_figure_3_edges_connect_states_of_equal_category():
    assert build_graph().edge_array().tolist() == [[1, 2], [3, 4], [3, 5], [4, 5]]
    assert build_graph().restrict(mask_states(2, 3, 5)).edge_array().tolist() == [[1, 2]]


def test_labels_can_be_names_and_missing_labels_mean_no_category():
    named = PolicyGraph.categorical(["school", None, "school", float("nan"), "shop", "shop"])
    assert named.edge_array().tolist() == [[0, 2], [4, 5]]


@pytest.mark.parametrize(
    "labels",
    [
        ["a", float("nan"), float("nan"), "a"],
        ["a", -1, -1, "a"],
        [pd.NA, "a", pd.NA, "a"],
        pd.Series(["a", None, None, "a"], dtype="string"),
        ["1", 1, -1, "1"],
        [(0, 1), (1, 1), None, (0, 1)],
        np.array([2**63 + 1, 2**63, 5, 2**63 + 1], dtype=np.uint64),
        [2**63 + 1, 2**63, 5, 2**63 + 1],
    ],
)
def test_states_are_connected_if_and_only_if_their_labels_are_equal(labels):
    entries = list(labels)
    # Python's own comparison; missing and negative labels are equal to none.
    pairs = [
        [i, j]
        for i, j in combinations(range(4), 2)
        if not {entries[i], entries[j]} & {None, pd.NA, -1} and bool(entries[i] == entries[j])
    ]
    assert pairs in ([[0, 3]], [[1, 3]])
    assert PolicyGraph.categorical(labels).edge_array().tolist() == pairs


def test_open_nodes_may_be_marked_by_a_mask_of_numpy():
    plain = nx.Graph([(0, 1)])
    plain.add_node(2, open=np.array([True])[0])
    plain.add_node(3, open=np.array([False])[0])
    assert PolicyGraph.from_networkx(plain).open.tolist() == [False, False, True, False]
    assert '{"id":2,"open":true}' in format_policy_text(plain)


def test_utility_radius_includes_boundary():
    assert len(PolicyGraph.utility(0.34 * np.array([[0, 0], [2, 0]]), 0.68).edge_array()) == 1
    assert len(PolicyGraph.utility(0.34 * np.array([[0, 0], [2, 0]]), 0.6799).edge_array()) == 0


def test_large_dense_graph_answers_without_edge_list():
    x, y = np.meshgrid(np.arange(400), np.arange(250))
    f = Measurements(0.5 * np.stack([x.ravel(), y.ravel()], axis=1))
    complete, near = PolicyGraph.complete(f.size), PolicyGraph.utility(f, 40.0)
    assert SensitivityHull(complete.differences(f)).volume == pytest.approx(4 * 199.5 * 124.5)
    assert SensitivityHull(near.differences(f)).circumradius == pytest.approx(40.0)
    with pytest.raises(PolicyError, match=r"differences\(\)"):
        complete.edge_array()


def test_node_link_json_round_trips(tmp_path):
    build_graph().to_json(tmp_path / "policy.json")
    again = PolicyGraph.from_json(tmp_path / "policy.json")
    np.testing.assert_array_equal(again.edge_array(), build_graph().edge_array())
    data = json.loads((tmp_path / "policy.json").read_text())
    assert nx.node_link_graph(data, edges="edges").number_of_edges() == 4


def test_networkx_nodes_can_be_state_names():
    plain = nx.Graph([("home", "work"), ("work", "gym")])
    assert PolicyGraph.from_networkx(plain, names=["gym", "home", "work"]).edge_array().tolist() == [[0, 2], [1, 2]]
    with pytest.raises(PolicyError, match=r"'work'.*rename it"):
        PolicyGraph.from_networkx(plain, names=["gym", "home"])


def test_self_loops_are_ignored_in_a_networkx_graph():
    assert PolicyGraph.from_networkx(nx.Graph([(0, 0), (0, 1)])).edge_array().tolist() == [[0, 1]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PolicyGraph.complete(0), "size must be a positive integer"),
        (lambda: PolicyGraph.categorical([]), "labels must be one-dimensional and not empty"),
        (lambda: PolicyGraph.utility(F, -1.0), "radius must be zero or a number from 1e-30 to 1e"),
        (lambda: PolicyGraph.utility(F, 1e-308), "radius must be zero or a number from 1e-30 to 1e"),
        (lambda: PolicyGraph.utility(F, float("nan")), "radius must be zero or a number from 1e-30 to 1e"),
        (lambda: PolicyGraph.transition(np.ones((2, 3))), "square"),
        (lambda: PolicyGraph.transition([[np.nan, 1], [1, 1]]), "transition must have non-negative entries, got NaN"),
        (lambda: PolicyGraph.transition(csr_array([[0.0, -1], [1, 1]])), "transition must have non-negative entries"),
        (lambda: PolicyGraph.from_edges(-1, []), "size must be a positive integer, got -1"),
        (lambda: PolicyGraph.from_groups(-1, []), "size must be a positive integer, got -1"),
        (lambda: PolicyGraph.from_networkx(nx.Graph(), -1), "size must be a positive integer, got -1"),
        (lambda: PolicyGraph.from_networkx(nx.Graph(), None, ["a", "a"]), "names must be hashable and different"),
        (lambda: PolicyGraph.from_networkx(nx.Graph(), None, [["a"]]), "names must be hashable and different"),
        (
            lambda: PolicyGraph.from_networkx(nx.Graph(), 3, ["a", "b"]),
            "names must have one entry for each of 3 states",
        ),
        (lambda: PolicyGraph.from_edges(3, [(0, 3)]), "state 3"),
        (lambda: PolicyGraph.from_edges(3, [(1, 1)]), "self-loops are not allowed"),
        (lambda: PolicyGraph.from_groups(3, [[0, 7]]), "state 7"),
        (lambda: PolicyGraph.from_networkx(nx.DiGraph([(0, 1)])), "directed"),
        (lambda: PolicyGraph.from_networkx(nx.Graph([(0, 9)]), size=3), "the 3 states 0 to 2, got node 9"),
        (lambda: PolicyGraph.complete(3) | PolicyGraph.complete(4), "3 and 4 states"),
        (lambda: PolicyGraph.complete(3) & PolicyGraph.complete(4), "3 and 4 states"),
        (lambda: PolicyGraph.complete(3).differences(F), "one row for each of 3 states of the policy, got 6"),
    ],
)
def test_invalid_policy_raises(make, message):
    with pytest.raises(PolicyError, match=message):
        make()


@pytest.mark.parametrize("constraint", [[True], np.zeros(6, dtype=bool), [0, 1, 0, 1, 1, 1]])
def test_invalid_constraint_raises(constraint):
    with pytest.raises(ConstraintError, match="constraint"):
        build_graph().restrict(constraint)


@pytest.mark.parametrize("text", ["", "<?xml version='1.0'?><graphml/>", "{}", "[1, 2]", '{"nodes": 3, "edges": []}'])
def test_invalid_graph_file_raises(tmp_path, text):
    (tmp_path / "policy.json").write_text(text)
    with pytest.raises(
        DataFileError, match=r"not a node-link graph|is not node-link JSON, which PolicyGraph\.to_json writes .*cut off"
    ):
        PolicyGraph.from_json(tmp_path / "policy.json")


@pytest.mark.parametrize("at_a_time", [1, 3, 10**6])
def test_group_pairs_are_complete_for_every_block_size(at_a_time, monkeypatch):
    monkeypatch.setattr(cliques, "_CHUNK_PAIRS", at_a_time)
    groups = [[4, 1, 9], [], [2], [8, 0, 3, 7, 6]]
    starts, members = np.cumsum([0, *map(len, groups)]), np.array([state for group in groups for state in group])
    pairs = [tuple(pair) for block in cliques._iterate_pairs(starts, members) for pair in block.tolist()]
    assert sorted(pairs) == sorted(pair for group in groups for pair in combinations(sorted(group), 2))


@pytest.mark.parametrize("seed", range(8))
def test_listed_edges_span_hull_for_small_blocks(seed, monkeypatch):
    monkeypatch.setattr(listed, "_FIRST_BLOCK_EDGES", 1)
    rng = np.random.default_rng(seed)
    measurements = Measurements(rng.integers(0, 9, (30, 2)) * [1.0, rng.choice([1.0, 5.0])])
    policy = PolicyGraph.from_edges(30, [pair for pair in rng.integers(0, 30, (40, 2)).tolist() if pair[0] != pair[1]])
    all_states = np.ones(30, dtype=bool)
    spanning = policy._edge_set.find_spanning_differences(measurements, all_states)
    wanted = SensitivityHull(measurements.differences(np.asarray(policy.edge_array())))
    spanned_hull = SensitivityHull(np.concatenate([spanning, -spanning]))
    np.testing.assert_array_equal(np.unique(spanned_hull.vertices, axis=0), np.unique(wanted.vertices, axis=0))


@pytest.mark.parametrize("turn", range(4))
def test_components_find_single_connecting_edge_from_every_direction(turn):
    """A bent line of places and one place near its end, rotated by multiples of 90 degrees."""
    places = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 3), (2, 3), (3, 3), (4, 3), (5, 3), (5, 1), (9, 9)]
    for _ in range(turn):
        places = [(-y, x) for x, y in places]
    policy = PolicyGraph.utility(np.array(places, dtype=float), 2.0)
    labels = policy.components()
    assert len(set(labels[:10].tolist())) == 1
    assert labels[10] != labels[0]


@pytest.mark.parametrize("kind", ["transition", "categorical", "utility", "complete"])
def test_hulls_of_successive_constraints_match_their_edges(kind):
    """Cached results of earlier constraints must not matter.

    Some constraints lack corners of the full hull.
    """
    rng = np.random.default_rng(4)
    y, x = np.divmod(np.arange(15 * 15), 15)
    measurements, near = Measurements(np.stack([x, y], axis=1)), np.stack([x, y], axis=1)
    steps = (np.abs(near[:, None] - near[None]).max(axis=2) <= 1).astype(float)
    policy = {
        "transition": lambda: PolicyGraph.transition(steps),
        "categorical": lambda: PolicyGraph.categorical(x // 4 + 4 * (y // 5)),
        "utility": lambda: PolicyGraph.utility(measurements, 2.3),
        "complete": lambda: PolicyGraph.complete(225),
    }[kind]()
    differ, whole = 0, policy.hull(measurements).vertices
    for k in range(60):
        possible = rng.random(225) < rng.choice([0.02, 0.1, 0.9])
        possible &= np.hypot(*(near - near[rng.integers(225)]).T) < rng.uniform(1, 12)
        possible[rng.integers(225)] = True
        graph = policy.restrict(possible)
        wanted = SensitivityHull(measurements.differences(graph.edge_array())).vertices
        np.testing.assert_array_equal(graph.hull(measurements).vertices, wanted, err_msg=str(k))
        differ += not np.array_equal(wanted, whole)
    assert differ > 10
