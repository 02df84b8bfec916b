"""Tests of the policy audit against the paper's examples and brute-force definitions."""

from __future__ import annotations

from math import inf

import networkx
import numpy as np
import pytest

from dphmm import KNormMechanism, LaplaceMechanism, MarkovModel, PolicyGraph
from dphmm.audit.policy import audit_constraint, audit_constraints, support_sequence
from dphmm.errors import ConfigurationError, ConstraintError, InvalidInputError, PolicyError
from dphmm.model.time_classes import TimeClasses
from tests.running_example import F, build_graph, mask_states


def test_example_5_1_whole_graph():
    audit = audit_constraint(build_graph(), F)
    knorm, laplace = audit.bodies
    corners = {tuple(row) for row in np.rint(audit.hull.vertices).astype(int).tolist()}
    assert corners == {(-4, -1), (1, -1), (3, 0), (4, 1), (-1, 1), (-3, 0)}
    assert knorm.body.volume == 11.0
    assert knorm.degrees.tolist() == [4, 6, 3, 5, 4, 4]
    assert laplace.sensitivity == 5.0
    assert audit.isolated == (0,)
    assert not audit.is_exposed
    assert audit.repairs == ()


def test_example_5_2_laplace_and_k_norm_expose_state_5():
    audit = audit_constraint(build_graph(), F, mask_states(2, 3, 5))
    knorm, laplace = audit.bodies
    assert knorm.exposed == laplace.exposed == (4,)
    assert laplace.sensitivity == 2.0
    (witness,) = laplace.witnesses
    assert witness.output == (4.0, 2.0)
    assert sorted(witness.others) == [1, 2]
    assert witness.factors == (1.5, 1.5)
    assert not witness.is_certain
    (certain,) = knorm.witnesses
    assert certain.factors == (inf, inf)
    assert certain.is_certain


def test_figure_9a_protects_state_2_and_figure_9b_exposes_state_3():
    kept = audit_constraint(build_graph(), F, mask_states(2, 4, 5, 6), ["k-norm"])
    assert kept.isolated == (1,)
    assert kept.bodies[0].body.volume == 9.0
    assert kept.bodies[0].degrees[[1, 3, 4, 5]].tolist() == [3, 4, 4, 3]
    assert not kept.is_exposed
    lost = audit_constraint(build_graph(), F, mask_states(3, 4, 5, 6), ["k-norm"])
    assert lost.bodies[0].exposed == (2,)
    assert lost.bodies[0].degrees[[2, 3, 4, 5]].tolist() == [1, 3, 3, 3]


def test_example_6_1_repair_of_each_method():
    audit = audit_constraint(build_graph(), F, mask_states(3, 4, 5, 6), ["k-norm"], "volume")
    protections = {repair.method: repair.protection for repair in audit.repairs}
    assert (protections["greedy"].added, protections["greedy"].body.volume) == (((2, 4),), 16.0)
    assert (protections["sequential"].added, protections["sequential"].body.volume) == (((2, 3),), 14.0)
    assert (protections["exact"].added, protections["exact"].body.volume, protections["exact"].is_optimal) == (
        ((2, 3),),
        14.0,
        True,
    )
    assert protections["exact"].diameter == pytest.approx(2.0, rel=1e-12)
    assert protections["exact"].degrees[mask_states(3, 4, 5, 6)].min() >= 2
    least_error = audit_constraint(build_graph(), F, mask_states(3, 4, 5, 6), ["k-norm"]).repairs[-1].protection
    assert (least_error.added, least_error.body.squared_error) == (((2, 4),), pytest.approx(47))


@pytest.mark.parametrize("mechanism", ["k-norm", "laplace", "planar-laplace"])
def test_methods_that_differ_are_all_listed(mechanism):
    """If noise differs between components, the methods differ for every type of body."""
    f = np.random.default_rng(3).integers(0, 12, (8, 2))
    policy = PolicyGraph.from_edges(8, [(0, 1), (2, 3)])
    shared, by_component = (
        {
            repair.method: repair.protection
            for repair in audit_constraint(policy, f, None, [mechanism], noise_scope=scope).repairs
        }
        for scope in ("graph", "component")
    )
    assert mechanism == "k-norm" or set(shared) <= {"exact"}
    costs = {method: protection.objective_value for method, protection in by_component.items()}
    assert costs["exact"] <= costs["sequential"] < costs["greedy"]


@pytest.mark.parametrize("seed", range(40))
def test_witness_outputs_attain_the_largest_likelihood_ratio(seed):
    rng = np.random.default_rng(seed)
    f = rng.integers(-4, 5, (7, 2))
    policy = PolicyGraph.categorical(rng.integers(0, 4, 7))
    epsilon = 0.7
    audit = audit_constraint(policy, f, rng.random(7) < 0.8) if seed else audit_constraint(policy, f)
    for body in audit.bodies:
        if audit.hull.dimension == 0:
            continue
        mechanism = (
            KNormMechanism(audit.hull, epsilon)
            if body.mechanism == "k-norm"
            else LaplaceMechanism(body.sensitivity, epsilon, 2)
        )
        outputs = rng.integers(-8, 9, (400, 2)).astype(float)
        for witness in body.witnesses:
            at = mechanism.log_density(np.array(witness.output), f[witness.state])
            for other, factor in zip(witness.others, witness.factors, strict=True):
                assert factor > 1
                ratio = at - mechanism.log_density(np.array(witness.output), f[other])
                assert ratio == pytest.approx(epsilon * factor, rel=1e-9)
                log_density, other_log_density = (
                    mechanism.log_density(outputs, f[state]) for state in (witness.state, other)
                )
                both = np.isfinite(log_density) & np.isfinite(other_log_density)
                assert (log_density[both] - other_log_density[both] <= epsilon * factor * (1 + 1e-9)).all()


def test_single_possible_state_is_exposed_and_has_no_repair():
    audit = audit_constraint(build_graph(), F, mask_states(4))
    assert [body.exposed for body in audit.bodies] == [(3,), (3,)]
    assert audit.bodies[0].witnesses[0].is_certain
    assert audit.bodies[0].witnesses[0].others == ()
    assert audit.repairs == ()


@pytest.mark.parametrize("seed", range(30))
def test_components_match_networkx(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 40))
    kinds = [
        PolicyGraph.categorical(rng.integers(-1, 8, size)),
        PolicyGraph.from_edges(size, [(a, b) for a, b in rng.integers(0, size, (size, 2)) if a != b]),
        PolicyGraph.utility(rng.random((size, 2)), 0.15),
        PolicyGraph.categorical(rng.integers(0, 9, size)) | PolicyGraph.utility(rng.random((size, 2)), 0.1),
    ]
    mask = rng.random(size) < 0.7
    mask[0] = True
    for policy in kinds:
        cut = policy.restrict(mask)
        assert int(cut.components().max()) + 1 == networkx.number_connected_components(cut.to_networkx())


def test_support_sequence_is_reachable_set_of_model():
    ring = np.roll(np.eye(5), 1, axis=1)
    model = MarkovModel(0.5 * np.eye(5) + 0.5 * ring, [1, 0, 0, 0, 0])
    supports = [np.flatnonzero(support).tolist() for support in support_sequence(model, 6)]
    assert supports == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]
    started = next(support_sequence(model, 1, np.array([False, True, False, False, False])))
    assert np.flatnonzero(started).tolist() == [1]


def _alternate_hours(transitions, initial):
    return MarkovModel(transitions, initial, None, 3600.0, TimeClasses(tuple(h % 2 for h in range(168)), 3600.0))


def test_support_sequence_refuses_classes_of_different_support():
    """Every other hour only states 0 and 2 are possible, unlike in the union of classes."""
    ends, everywhere = np.tile([0.5, 0, 0.5], (3, 1)), np.full((3, 3), 1 / 3)
    words = "classes of time must have equal supports, got a model that has a matrix for each of 2 classes of time"
    for transitions, initial in (((ends, everywhere), everywhere[:2]), ((everywhere,) * 2, (ends[0], everywhere[0]))):
        with pytest.raises(ConfigurationError, match=words):
            next(support_sequence(_alternate_hours(transitions, initial), 4))
    unequal = np.tile([0.2, 0.3, 0.5], (3, 1))
    moving = _alternate_hours((unequal, everywhere), (unequal[0], everywhere[0]))
    assert np.all(list(support_sequence(moving, 4)))
    starting = _alternate_hours((everywhere,) * 2, (ends[0], everywhere[0]))
    supports = support_sequence(starting, 2, np.array([False, True, False]))
    assert [np.flatnonzero(support).tolist() for support in supports] == [[1], [0, 1, 2]]


def test_repeated_constraint_is_computed_once():
    sets = [mask_states(2, 3, 5), mask_states(3, 4, 5, 6), mask_states(2, 3, 5)]
    first, second, third = audit_constraints(build_graph(), F, sets)
    assert first is third
    assert second is not first


def test_repair_uses_units_of_measurements():
    audit = audit_constraint(build_graph(), F * 0.34, mask_states(3, 4, 5, 6), ["k-norm"])
    protection = audit.repairs[-1].protection
    assert protection.body.volume == pytest.approx(16 * 0.34**2, rel=1e-12)
    assert (
        protection.objective_value
        == pytest.approx(protection.body.squared_error)
        == pytest.approx(47 * 0.34**2, rel=1e-12)
    )


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"mechanisms": ["cauchy"]}, InvalidInputError, "mechanisms must be chosen among"),
        ({"mechanisms": []}, InvalidInputError, "mechanisms must be chosen among"),
        ({"constraint": [True] * 5}, ConstraintError, r"constraint must have shape \(6,\), .*got \(5,\)"),
        ({"constraint": [False] * 6}, ConstraintError, "constraint must contain at least one possible state"),
    ],
)
def test_invalid_arguments_raise(arguments, error, words):
    with pytest.raises(error, match=words):
        audit_constraint(build_graph(), F, **arguments)


def test_wrong_number_of_measurements_or_steps_raises():
    with pytest.raises(PolicyError, match=r"f must have one row for each of 6 states .*got 5"):
        audit_constraint(build_graph(), F[:5])
    with pytest.raises(InvalidInputError, match="steps must be a positive integer"):
        next(support_sequence(MarkovModel(np.eye(2), [1, 0]), 0))
