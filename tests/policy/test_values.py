"""Values stay values: no constructor or function locks, changes, or keeps hold of its caller's arrays."""

from __future__ import annotations

import networkx
import numpy as np
import pytest
from scipy.sparse import csr_array

from dphmm import Measurements, PolicyGraph, SensitivityHull, degree_of_protection, exposed_states, protect
from dphmm.geometry.incremental_hull import origin

POINTS = [[1.0, 0.0], [2.0, 1.0], [3.0, 0.0], [0.0, 1.0], [4.0, 2.0], [1.0, 2.0]]
GRAPH = PolicyGraph.categorical([0, 1, 1, 2, 2, 2])
SCATTER = (np.array(POINTS) * np.pi + 0.1).tolist()


def of_measurements(made):
    return [made.points, made.coordinates, made.spacing, made.steps_per_coordinate]


def of_hull(made):
    return [made.differences, made.vertices, made.cones, made.cone_volumes, made.second_moments]


def of_graph(made):
    return [made.content_hash, made.edge_array(), made.node_mask]


def of_protection(made):
    return [made.degrees, made.hull.vertices, made.coordinate_hull.vertices, *of_graph(made.graph)]


TRANSITION = (np.eye(6) + np.eye(6, k=1)).tolist()
MAKERS = {
    "Measurements": (Measurements, POINTS, of_measurements),
    "Measurements, scattered": (Measurements, SCATTER, of_measurements),
    "Measurements.on_lattice": (lambda a: Measurements.on_lattice(a.astype(int), 0.5), POINTS, of_measurements),
    "Measurements.on_lattice, origin": (
        lambda a: Measurements.on_lattice([[0, 1], [2, 3]], 0.5, a),
        [1.0, 2.0],
        of_measurements,
    ),
    "SensitivityHull": (SensitivityHull, POINTS, of_hull),
    "SensitivityHull, scattered": (SensitivityHull, SCATTER, of_hull),
    "SensitivityHull, scaled": (lambda a: SensitivityHull(POINTS).scaled(a), [2.0, 0.3], of_hull),
    "categorical": (PolicyGraph.categorical, [0, 1, 1, 2, 2, 2], of_graph),
    "utility": (lambda a: PolicyGraph.utility(a, 1.5), POINTS, of_graph),
    "utility, scattered": (lambda a: PolicyGraph.utility(a, 5.0), SCATTER, of_graph),
    "transition": (PolicyGraph.transition, TRANSITION, of_graph),
    "from_groups": (lambda a: PolicyGraph.from_groups(6, [a, a]), [0, 2, 5], of_graph),
    "from_edges": (lambda a: PolicyGraph.from_edges(6, a), [[1, 2], [3, 0]], of_graph),
    "restrict": (GRAPH.restrict, [False, True, True, True, True, True], of_graph),
    "differences": (GRAPH.differences, POINTS, lambda made: [made]),
    "degree_of_protection": (lambda a: degree_of_protection(GRAPH, a), POINTS, lambda made: [made]),
    "degree_of_protection, constraint": (
        lambda a: degree_of_protection(GRAPH, POINTS, a),
        [True, False, True, True, True, True],
        lambda made: [made],
    ),
    "exposed_states": (lambda a: exposed_states(GRAPH, a), POINTS, lambda made: [made]),
    "protect": (lambda a: protect(GRAPH, a), POINTS, of_protection),
    "protect, scattered": (lambda a: protect(GRAPH, a), SCATTER, of_protection),
    "protect, constraint": (lambda a: protect(GRAPH, POINTS, a), [False, False, True, True, True, True], of_protection),
    "growing body": (lambda a: origin(a).grow(a), POINTS, lambda made: [made.vertices]),
}


CASES = [(name, kind) for name in MAKERS for kind in ("as given", "integer", "view", "read-only")]
CASES = [case for case in CASES if case[1] != "integer" or MAKERS[case[0]][1] == POINTS]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_caller_keeps_its_array_and_the_value_its_own(name, kind):
    make, given, seen = MAKERS[name]
    array = np.array(given, dtype=np.int64 if kind == "integer" else None)
    if kind == "view":
        array = np.repeat(array, 2, axis=0)[::2]
    array.setflags(write=kind != "read-only")
    before = array.copy()
    made = make(array)
    assert array.flags.writeable == (kind != "read-only")
    np.testing.assert_array_equal(array, before)
    held = [np.copy(part) for part in seen(made)]
    array.setflags(write=True)
    array[...] = np.roll(array, 1, axis=0) if array.dtype == bool else array[::-1] + 1
    for part, copy in zip(seen(made), held, strict=True):
        np.testing.assert_array_equal(part, copy)


def test_sparse_transition_matrix_stays_as_it_is():
    matrix = csr_array(([0.5, 0.25, 0.25, 1.0], [1, 0, 0, 1], [0, 3, 4]), shape=(2, 2))
    data = matrix.data.copy()
    graph = PolicyGraph.transition(matrix)
    assert matrix.nnz == 4
    assert matrix.data.flags.writeable
    np.testing.assert_array_equal(matrix.data, data)
    before = graph.content_hash
    matrix.data[:] = 0
    matrix.indices[:] = 0
    assert graph.content_hash == before


def test_networkx_graph_and_policy_change_apart():
    given = networkx.path_graph(4)
    graph = PolicyGraph.from_networkx(given)
    given.add_edge(0, 3)
    graph.to_networkx().remove_edge(0, 1)
    assert graph.edge_array().tolist() == [[0, 1], [1, 2], [2, 3]]


@pytest.mark.parametrize(
    "array",
    [
        GRAPH.node_mask,
        PolicyGraph.complete(3).node_mask,
        GRAPH.restrict([True] * 6).node_mask,
        *(f(Measurements(p))[i] for f, n in ((of_measurements, 4),) for p in (POINTS, SCATTER) for i in range(n)),
        *of_hull(SensitivityHull(POINTS)),
        *of_hull(SensitivityHull(SCATTER)),
        *of_hull(SensitivityHull(POINTS).scaled([2.0, 0.3])),
        protect(GRAPH, POINTS).degrees,
    ],
    ids=lambda array: str(array.shape),
)
def test_what_a_value_hands_out_is_read_only(array):
    assert not array.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        array[...] = 0


@pytest.mark.parametrize(
    "graph",
    [GRAPH, PolicyGraph.utility(POINTS, 1.5), PolicyGraph.from_edges(6, [[1, 2]]), GRAPH | PolicyGraph.complete(6)],
    ids=repr,
)
def test_changing_a_list_of_edges_leaves_the_graph_as_it_was(graph):
    before = graph.content_hash, graph.edge_array()
    for edges in (graph.edge_array(), *graph.edge_blocks()):
        if edges.flags.writeable:
            edges[...] = 0
    graph.connected()[...] = False
    assert graph.content_hash == before[0]
    np.testing.assert_array_equal(graph.edge_array(), before[1])
