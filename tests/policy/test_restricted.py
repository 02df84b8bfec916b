"""Policies that were restricted before: a state that the graph no longer holds is possible and hidden like any other.

The oracle is the same edges listed one by one over all states, which leaves out nobody.
"""

from __future__ import annotations

import numpy as np
import pytest

from dphmm import MarkovModel, PolicyGraph, Releaser, degree_of_protection, exposed_states, protect
from dphmm.audit import audit_constraint

SIZE = 36
GRID = np.stack(np.meshgrid(np.arange(6.0), np.arange(6.0)), axis=-1).reshape(-1, 2)
ANYWHERE = MarkovModel(np.full((SIZE, SIZE), 1 / SIZE), np.full(SIZE, 1 / SIZE))
KEPT, OTHERS = np.arange(SIZE) % 6 < 2, np.arange(SIZE) % 6 > 3
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
    "restricted": lambda kind: kind.restrict(KEPT),
    "restricted and another": lambda kind: kind.restrict(KEPT) & PolicyGraph.utility(GRID, 2.0),
    "restricted or restricted": lambda kind: kind.restrict(KEPT) | kind.restrict(OTHERS),
    "nothing left": lambda kind: kind.restrict(KEPT) & kind.restrict(OTHERS),
}
POLICIES = {f"{kind} {way}": make(KINDS[kind]) for kind in KINDS for way, make in WAYS.items()}


def listed(policy: PolicyGraph) -> PolicyGraph:
    return PolicyGraph.from_edges(SIZE, policy.edge_array())


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("body", ["hull", "disc"])
def test_who_is_exposed_does_not_depend_on_how_the_edges_were_left_out(name, body):
    policy, oracle = POLICIES[name], listed(POLICIES[name])
    found = degree_of_protection(policy, GRID, POSSIBLE, body)
    np.testing.assert_array_equal(found, degree_of_protection(oracle, GRID, POSSIBLE, body))
    np.testing.assert_array_equal(found > 0, POSSIBLE)
    np.testing.assert_array_equal(exposed_states(policy, GRID, POSSIBLE, body), np.flatnonzero(found == 1))


@pytest.mark.parametrize("name", POLICIES)
def test_cut_to_possible_states_a_policy_holds_all_of_them_and_its_own_edges_among_them(name):
    cut, oracle = POLICIES[name].restrict(POSSIBLE), listed(POLICIES[name]).restrict(POSSIBLE)
    np.testing.assert_array_equal(cut.node_mask, POSSIBLE)
    np.testing.assert_array_equal(cut.edge_array(), oracle.edge_array())
    np.testing.assert_array_equal(cut.connected(), oracle.connected())


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("method", ["greedy", "sequential"])
def test_states_that_a_policy_no_longer_holds_are_repaired(name, method):
    repaired = protect(POLICIES[name], GRID, POSSIBLE, method)
    oracle = protect(listed(POLICIES[name]), GRID, POSSIBLE, method)
    assert (repaired.added, repaired.value, repaired.diameter) == (oracle.added, oracle.value, oracle.diameter)
    np.testing.assert_array_equal(repaired.degrees, oracle.degrees)
    assert repaired.degrees[POSSIBLE].min() >= 2
    np.testing.assert_array_equal(repaired.graph.node_mask, POSSIBLE)


@pytest.mark.parametrize("name", ["complete restricted", "complete restricted and another"])
def test_the_engine_s_record_counts_states_that_a_policy_no_longer_holds(name):
    line = np.arange(101.0)[:, None] * [1.0, 0.0]
    model = MarkovModel(np.full((101, 101), 1 / 101), np.full(101, 1 / 101))
    policy = PolicyGraph.complete(101).restrict(np.arange(101) < 2)
    if "another" in name:
        policy = policy & PolicyGraph.utility(line, 1.0)
    record = Releaser(model, line, policy, 1.0, repair="greedy", rng=0).release(50)
    # Steps of one kilometre between neighbours: the ends of the line are a hundred of them apart.
    assert (record.possible, record.least_protection, record.constrained_factor) == (101, 2, 100.0)


def test_an_audit_names_states_that_a_policy_no_longer_holds():
    cut, oracle = (
        audit_constraint(policy, GRID, POSSIBLE, objective="error")
        for policy in (POLICIES["edges restricted"], listed(POLICIES["edges restricted"]))
    )
    assert cut.possible == POSSIBLE.sum()
    assert (cut.disconnected, cut.components) == (oracle.disconnected, oracle.components)
    assert [body.exposed for body in cut.bodies] == [body.exposed for body in oracle.bodies]
    assert [r.protection.added for r in cut.repairs] == [r.protection.added for r in oracle.repairs]
