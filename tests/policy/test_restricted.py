"""Restricted policies protect all possible states, also those outside the restriction.

The oracle lists the same edges one by one over all states.
"""

from __future__ import annotations

import numpy as np
import pytest

from dphmm import MarkovModel, PolicyGraph, Releaser, degree_of_protection, exposed_states, protect
from dphmm.audit import audit_constraint

SIZE = 36
GRID = np.stack(np.meshgrid(np.arange(6.0), np.arange(6.0)), axis=-1).reshape(-1, 2)
ANYWHERE = MarkovModel(np.full((SIZE, SIZE), 1 / SIZE), np.full(SIZE, 1 / SIZE))
IS_KEPT = np.arange(SIZE) % 6 < 2
OTHERS = np.arange(SIZE) % 6 > 3
POSSIBLE = np.arange(SIZE) % 5 != 2
KINDS = {
    "complete": PolicyGraph.complete(SIZE),
    "categorical": PolicyGraph.categorical(np.arange(SIZE) // 12),
    "utility": PolicyGraph.utility(GRID, 1.5),
    "transition": PolicyGraph.transition(ANYWHERE.transition),
    "groups": PolicyGraph.from_groups(SIZE, [[0, 1, 2], [6, 13]]),
    "edges": PolicyGraph.from_edges(SIZE, [(0, 1), (6, 13), (4, 11)]),
}
WAYS = {
    "restricted": lambda kind: kind.restrict(IS_KEPT),
    "restricted and another": lambda kind: kind.restrict(IS_KEPT) & PolicyGraph.utility(GRID, 2.0),
    "restricted or restricted": lambda kind: kind.restrict(IS_KEPT) | kind.restrict(OTHERS),
    "nothing left": lambda kind: kind.restrict(IS_KEPT) & kind.restrict(OTHERS),
}
POLICIES = {f"{kind} {way}": make(KINDS[kind]) for kind in KINDS for way, make in WAYS.items()}


def list_edges(policy: PolicyGraph) -> PolicyGraph:
    return PolicyGraph.from_edges(SIZE, policy.edge_array())


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("body", ["hull", "disc"])
def test_degrees_of_restricted_policy_match_listed_edges(name, body):
    policy, oracle = POLICIES[name], list_edges(POLICIES[name])
    degrees = degree_of_protection(policy, GRID, POSSIBLE, body)
    np.testing.assert_array_equal(degrees, degree_of_protection(oracle, GRID, POSSIBLE, body))
    np.testing.assert_array_equal(degrees > 0, POSSIBLE)
    np.testing.assert_array_equal(exposed_states(policy, GRID, POSSIBLE, body), np.flatnonzero(degrees == 1))


@pytest.mark.parametrize("name", POLICIES)
def test_restriction_to_possible_states_keeps_all_of_them_and_their_edges(name):
    cut, oracle = POLICIES[name].restrict(POSSIBLE), list_edges(POLICIES[name]).restrict(POSSIBLE)
    np.testing.assert_array_equal(cut.node_mask, POSSIBLE)
    np.testing.assert_array_equal(cut.edge_array(), oracle.edge_array())
    np.testing.assert_array_equal(cut.find_connected_states(), oracle.find_connected_states())


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("method", ["greedy", "sequential"])
def test_states_outside_restriction_are_repaired(name, method):
    repaired = protect(POLICIES[name], GRID, POSSIBLE, method)
    oracle = protect(list_edges(POLICIES[name]), GRID, POSSIBLE, method)
    assert (repaired.added, repaired.objective_value, repaired.diameter) == (
        oracle.added,
        oracle.objective_value,
        oracle.diameter,
    )
    np.testing.assert_array_equal(repaired.degrees, oracle.degrees)
    assert repaired.degrees[POSSIBLE].min() >= 2
    np.testing.assert_array_equal(repaired.graph.node_mask, POSSIBLE)


@pytest.mark.parametrize("name", ["complete restricted", "complete restricted and another"])
def test_engine_record_counts_states_outside_restriction(name):
    line = np.arange(101.0)[:, None] * [1.0, 0.0]
    model = MarkovModel(np.full((101, 101), 1 / 101), np.full(101, 1 / 101))
    policy = PolicyGraph.complete(101).restrict(np.arange(101) < 2)
    if "another" in name:
        policy = policy & PolicyGraph.utility(line, 1.0)
    record = Releaser(model, line, policy, 1.0, repair="greedy", rng=0).release(50)
    # Neighbours are one kilometre apart, and the ends of the line a hundred.
    assert (record.num_possible_states, record.min_degree_of_protection, record.constrained_dp_factor) == (
        101,
        2,
        100.0,
    )


def test_audit_includes_states_outside_restriction():
    cut, oracle = (
        audit_constraint(policy, GRID, POSSIBLE, objective="error")
        for policy in (POLICIES["edges restricted"], list_edges(POLICIES["edges restricted"]))
    )
    assert cut.num_possible_states == POSSIBLE.sum()
    assert (cut.isolated, cut.num_components) == (oracle.isolated, oracle.num_components)
    assert [body.exposed for body in cut.bodies] == [body.exposed for body in oracle.bodies]
    assert [r.protection.added for r in cut.repairs] == [r.protection.added for r in oracle.repairs]
