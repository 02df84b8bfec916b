"""Content hashes depend on exactly the content that defines an object."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm import MarkovModel, PolicyGraph
from dphmm.arrays import hash_content
from tests.running_example import LABELS, F

MAKERS = {
    "complete": lambda: PolicyGraph.complete(6),
    "categorical": lambda: PolicyGraph.categorical(LABELS),
    "other labels": lambda: PolicyGraph.categorical([0, 1, 1, 1, 2, 2]),
    "utility": lambda: PolicyGraph.utility(F, 1.5),
    "wider": lambda: PolicyGraph.utility(F, 2.0),
    "moved": lambda: PolicyGraph.utility(F + 1, 1.5),
    "transition": lambda: PolicyGraph.transition(np.eye(6)[[1, 0, 2, 3, 4, 5]] / 2 + np.eye(6) / 2),
    "edges": lambda: PolicyGraph.from_edges(6, [[0, 1], [4, 2]]),
    "other edges": lambda: PolicyGraph.from_edges(6, [[0, 1], [4, 3]]),
    "union": lambda: PolicyGraph.categorical(LABELS) | PolicyGraph.utility(F, 1.5),
    "intersection": lambda: PolicyGraph.categorical(LABELS) & PolicyGraph.utility(F, 1.5),
    "restricted": lambda: PolicyGraph.categorical(LABELS).restrict([True, True, True, True, True, False]),
    "larger": lambda: PolicyGraph.from_edges(7, [[0, 1], [4, 2]]),
}


def test_policy_hashes_differ_if_and_only_if_definitions_differ():
    hashes = {name: make().content_hash for name, make in MAKERS.items()}
    assert hashes == {name: make().content_hash for name, make in MAKERS.items()}
    assert len(set(hashes.values())) == len(MAKERS)


def test_hash_does_not_depend_on_earlier_queries():
    graph = PolicyGraph.utility(F, 1.5) | PolicyGraph.categorical(LABELS)
    before = graph.content_hash
    graph.differences(F)
    graph.find_connected_states()
    assert graph.content_hash == before


def test_hash_does_not_depend_on_edge_order():
    assert PolicyGraph.from_edges(6, [[2, 4], [1, 0], [0, 1]]).content_hash == MAKERS["edges"]().content_hash


def test_model_hash_depends_on_probabilities_start_and_step():
    matrix, start = np.full((2, 2), 0.5), np.array([0.5, 0.5])
    models = [
        MarkovModel(matrix, start),
        MarkovModel(np.array([[0.5, 0.5], [0.4, 0.6]]), start),
        MarkovModel(matrix, [0.4, 0.6]),
        MarkovModel(matrix, start, step_seconds=60),
    ]
    assert len({model.content_hash for model in models}) == 4
    assert MarkovModel(matrix.copy(), start).content_hash == models[0].content_hash


def test_saved_model_keeps_hash(tmp_path):
    rng = np.random.default_rng(1)
    matrix = rng.random((50, 50)) * (rng.random((50, 50)) < 0.3) + np.eye(50)
    model = MarkovModel(matrix / matrix.sum(axis=1, keepdims=True), np.full(50, 0.02), step_seconds=300)
    model.save(tmp_path / "model.npz")
    assert MarkovModel.load(tmp_path / "model.npz").content_hash == model.content_hash


@pytest.mark.parametrize(
    ("parts", "other_parts"),
    [
        (([1, 2], [3]), ([1], [2, 3])),
        (("ab", "c"), ("a", "bc")),
        (([[1, 2]],), ([[1], [2]],)),
        ((1,), (1.0,)),
        ((None,), ("",)),
        (([True],), ([1],)),
    ],
)
def test_hash_separates_adjacent_parts(parts, other_parts):
    assert hash_content(*parts) != hash_content(*other_parts)


def test_hash_does_not_depend_on_integer_width_or_zero_sign():
    assert hash_content(np.array([1, 2], dtype=np.int32)) == hash_content(np.array([1, 2], dtype=np.int64))
    assert hash_content(np.array([0.0])) == hash_content(np.array([-0.0]))
