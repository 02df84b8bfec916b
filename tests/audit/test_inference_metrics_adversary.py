"""Tests of other adversaries: remaining guarantee and exposed states, by brute force."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm import PolicyGraph, protect
from dphmm.audit.inference_metrics import audit_support
from dphmm.errors import ConstraintError, SingletonConstraintError
from tests.running_example import F, build_graph, mask_states
from tests.sizes import mark_rest_slow


def test_case_i_narrower_support_keeps_guarantee():
    repaired = protect(build_graph(), F, mask_states(3, 4, 5, 6))
    audit = audit_support(repaired, F, mask_states(4, 5, 6))
    assert (audit.relation, audit.num_shared, audit.is_singleton) == ("narrower", 3, False)
    assert audit.factor <= repaired.diameter
    assert audit.exposed == ()


def test_case_ii_wider_support_exposes_state():
    repaired = protect(build_graph(), F, mask_states(2, 3))
    audit = audit_support(repaired, F, mask_states(2, 3, 5))
    assert audit.relation == "wider"
    assert audit.exposed == (4,)
    assert audit.exposed_with_surrogates == ()
    assert audit.factor == 1.0


@pytest.mark.parametrize("body", ["hull", "cross-polytope", "disc"])
@pytest.mark.parametrize("seed", mark_rest_slow(range(25), 10))
def test_support_audit_matches_brute_force(seed, body):
    rng = np.random.default_rng(seed)
    f = rng.integers(0, 7, (8, 2)) * (0.5 if seed % 2 else 1.0)
    constraint = rng.random(8) < 0.6
    constraint[:2] = True
    try:
        repaired = protect(PolicyGraph.categorical(rng.integers(0, 3, 8)), f, constraint, body=body)
    except SingletonConstraintError:
        pytest.skip("one state is possible")
    support = rng.random(8) < 0.6
    support[int(rng.integers(8))] = True
    audit = audit_support(repaired, f, support)

    def compute_norm(v):
        return float(repaired.body.norm(np.asarray(v, dtype=float)))

    inside = np.flatnonzero(support & constraint)
    factors = [compute_norm(f[i] - f[j]) for i in inside for j in inside]
    assert audit.factor == pytest.approx(max(factors, default=0.0), rel=1e-9)
    support_states = np.flatnonzero(support)
    alone = [i for i in support_states if sum(compute_norm(f[j] - f[i]) <= 1 + 1e-9 for j in support_states) == 1]
    assert list(audit.exposed) == alone
    assert audit.is_singleton == (len(support_states) == 1)
    possible = np.flatnonzero(constraint)
    gaps = np.linalg.norm(f[:, None] - f[possible][None], axis=2)
    if all(constraint[i] or (gaps[i] == gaps[i].min()).sum() == 1 for i in support_states):
        seen = {i: f[i] if constraint[i] else f[possible[gaps[i].argmin()]] for i in support_states}
        alone = [
            i for i in support_states if sum(compute_norm(seen[j] - seen[i]) <= 1 + 1e-9 for j in support_states) == 1
        ]
        assert list(audit.exposed_with_surrogates) == alone


def test_relations_and_supports():
    repaired = protect(build_graph(), F, mask_states(4, 5, 6))
    assert audit_support(repaired, F, mask_states(4, 5, 6)).relation == "equal"
    assert audit_support(repaired, F, mask_states(1, 4)).relation == "overlapping"
    apart = audit_support(repaired, F, mask_states(1))
    assert (apart.relation, apart.is_singleton, apart.factor) == ("disjoint", True, 0.0)
    with pytest.raises(ConstraintError, match="constraint must contain at least one possible state"):
        audit_support(repaired, F, mask_states())
