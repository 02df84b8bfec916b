"""Constructors and functions copy their input arrays and return read-only arrays."""

from __future__ import annotations

import networkx
import numpy as np
import pytest
from scipy.sparse import csr_array

from dphmm import Measurements, PolicyGraph, SensitivityHull, degree_of_protection, exposed_states, protect
from dphmm.geometry.incremental_hull import build_origin

POINTS = [[1.0, 0.0], [2.0, 1.0], [3.0, 0.0], [0.0, 1.0], [4.0, 2.0], [1.0, 2.0]]
GRAPH = PolicyGraph.categorical([0, 1, 1, 2, 2, 2])
SCATTER = (np.array(POINTS) * np.pi + 0.1).tolist()


def get_measurement_arrays(value):
    return [value.points, value.coordinates, value.spacing, value.steps_per_coordinate]


def get_hull_arrays(value):
    return [value.differences, value.vertices, value.cones, value.cone_volumes, value.second_moments]


def get_graph_arrays(value):
    return [value.content_hash, value.edge_array(), value.node_mask]


def get_protection_arrays(value):
    return [value.degrees, value.hull.vertices, value.coordinate_hull.vertices, *get_graph_arrays(value.graph)]


TRANSITION = (np.eye(6) + np.eye(6, k=1)).tolist()
MAKERS = {
    "Measurements": (Measurements, POINTS, get_measurement_arrays),
    "Measurements, scattered": (Measurements, SCATTER, get_measurement_arrays),
    "Measurements.on_lattice": (lambda a: Measurements.on_lattice(a.astype(int), 0.5), POINTS, get_measurement_arrays),
    "Measurements.on_lattice, origin": (
        lambda a: Measurements.on_lattice([[0, 1], [2, 3]], 0.5, a),
        [1.0, 2.0],
        get_measurement_arrays,
    ),
    "SensitivityHull": (SensitivityHull, POINTS, get_hull_arrays),
    "SensitivityHull, scattered": (SensitivityHull, SCATTER, get_hull_arrays),
    "SensitivityHull, scaled": (lambda a: SensitivityHull(POINTS).scale_axes(a), [2.0, 0.3], get_hull_arrays),
    "categorical": (PolicyGraph.categorical, [0, 1, 1, 2, 2, 2], get_graph_arrays),
    "utility": (lambda a: PolicyGraph.utility(a, 1.5), POINTS, get_graph_arrays),
    "utility, scattered": (lambda a: PolicyGraph.utility(a, 5.0), SCATTER, get_graph_arrays),
    "transition": (PolicyGraph.transition, TRANSITION, get_graph_arrays),
    "from_groups": (lambda a: PolicyGraph.from_groups(6, [a, a]), [0, 2, 5], get_graph_arrays),
    "from_edges": (lambda a: PolicyGraph.from_edges(6, a), [[1, 2], [3, 0]], get_graph_arrays),
    "restrict": (GRAPH.restrict, [False, True, True, True, True, True], get_graph_arrays),
    "differences": (GRAPH.differences, POINTS, lambda value: [value]),
    "degree_of_protection": (lambda a: degree_of_protection(GRAPH, a), POINTS, lambda value: [value]),
    "degree_of_protection, constraint": (
        lambda a: degree_of_protection(GRAPH, POINTS, a),
        [True, False, True, True, True, True],
        lambda value: [value],
    ),
    "exposed_states": (lambda a: exposed_states(GRAPH, a), POINTS, lambda value: [value]),
    "protect": (lambda a: protect(GRAPH, a), POINTS, get_protection_arrays),
    "protect, scattered": (lambda a: protect(GRAPH, a), SCATTER, get_protection_arrays),
    "protect, constraint": (
        lambda a: protect(GRAPH, POINTS, a),
        [False, False, True, True, True, True],
        get_protection_arrays,
    ),
    "growing body": (lambda a: build_origin(a).grow(a), POINTS, lambda value: [value.vertices]),
}


CASES = [(name, kind) for name in MAKERS for kind in ("as given", "integer", "view", "read-only")]
CASES = [case for case in CASES if case[1] != "integer" or MAKERS[case[0]][1] == POINTS]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_constructor_copies_input_array(name, kind):
    make, values, seen = MAKERS[name]
    array = np.array(values, dtype=np.int64 if kind == "integer" else None)
    if kind == "view":
        array = np.repeat(array, 2, axis=0)[::2]
    array.setflags(write=kind != "read-only")
    before = array.copy()
    value = make(array)
    assert array.flags.writeable == (kind != "read-only")
    np.testing.assert_array_equal(array, before)
    copies = [np.copy(part) for part in seen(value)]
    array.setflags(write=True)
    array[...] = np.roll(array, 1, axis=0) if array.dtype == bool else array[::-1] + 1
    for part, copy in zip(seen(value), copies, strict=True):
        np.testing.assert_array_equal(part, copy)


def test_sparse_transition_matrix_is_copied():
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


def test_networkx_graph_and_policy_are_independent():
    original = networkx.path_graph(4)
    graph = PolicyGraph.from_networkx(original)
    original.add_edge(0, 3)
    graph.to_networkx().remove_edge(0, 1)
    assert graph.edge_array().tolist() == [[0, 1], [1, 2], [2, 3]]


@pytest.mark.parametrize(
    "array",
    [
        GRAPH.node_mask,
        PolicyGraph.complete(3).node_mask,
        GRAPH.restrict([True] * 6).node_mask,
        *(
            f(Measurements(p))[i]
            for f, n in ((get_measurement_arrays, 4),)
            for p in (POINTS, SCATTER)
            for i in range(n)
        ),
        *get_hull_arrays(SensitivityHull(POINTS)),
        *get_hull_arrays(SensitivityHull(SCATTER)),
        *get_hull_arrays(SensitivityHull(POINTS).scale_axes([2.0, 0.3])),
        protect(GRAPH, POINTS).degrees,
    ],
    ids=lambda array: str(array.shape),
)
def test_returned_arrays_are_read_only(array):
    assert not array.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        array[...] = 0


@pytest.mark.parametrize(
    "graph",
    [GRAPH, PolicyGraph.utility(POINTS, 1.5), PolicyGraph.from_edges(6, [[1, 2]]), GRAPH | PolicyGraph.complete(6)],
    ids=repr,
)
def test_writing_to_edge_arrays_does_not_change_graph(graph):
    before = graph.content_hash, graph.edge_array()
    for edges in (graph.edge_array(), *graph.edge_blocks()):
        if edges.flags.writeable:
            edges[...] = 0
    graph.find_connected_states()[...] = False
    assert graph.content_hash == before[0]
    np.testing.assert_array_equal(graph.edge_array(), before[1])
