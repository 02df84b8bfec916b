"""Degrees of protection, exposure and repairs: the paper's values, and exhaustive search."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dphmm import PolicyGraph, SensitivityHull, degree_of_protection, exposed_states, protect
from dphmm.errors import InvalidInputError, SingletonConstraintError
from dphmm.policy.repair_objective import find_minimum
from tests.policy.instances import build_small_instance
from tests.running_example import F, build_graph, mask_states
from tests.sizes import choose_count


@pytest.mark.parametrize("membership", ["halfspace", "qp"])
@pytest.mark.parametrize(
    ("constraint", "area", "degrees"),
    [
        (mask_states(1, 2, 3, 4, 5, 6), 11.0, [4, 6, 3, 5, 4, 4]),
        (mask_states(2, 4, 5, 6), 9.0, [0, 3, 0, 4, 4, 3]),
        (mask_states(3, 4, 5, 6), 9.0, [0, 0, 1, 3, 3, 3]),
        (mask_states(2, 3, 5), 0.0, [0, 2, 2, 0, 1, 0]),
    ],
    ids=["whole", "figure-9a", "figure-9b", "example-5.2"],
)
def test_running_example_areas_and_degrees(constraint, area, degrees, membership):
    assert SensitivityHull(build_graph().restrict(constraint).differences(F)).volume == area
    assert degree_of_protection(build_graph(), F, constraint, membership=membership).tolist() == degrees


def test_example_5_2_exposes_s5_and_figure_9b_exposes_s3():
    assert exposed_states(build_graph(), F, mask_states(2, 3, 5)).tolist() == [4]
    assert exposed_states(build_graph(), F, mask_states(3, 4, 5, 6)).tolist() == [2]
    assert exposed_states(build_graph(), F, mask_states(2, 4, 5, 6)).tolist() == []


@pytest.mark.parametrize(("partner", "area"), [(4, 14.0), (5, 16.0), (6, 20.0)])
def test_example_6_1_area_of_each_partner_of_s3(partner, area):
    repaired = build_graph().restrict(mask_states(3, 4, 5, 6)).with_edges([(2, partner - 1)])
    assert SensitivityHull(repaired.differences(F)).volume == area


@pytest.mark.parametrize(
    ("method", "added", "area"),
    [("greedy", ((2, 4),), 16.0), ("sequential", ((2, 3),), 14.0), ("exact", ((2, 3),), 14.0)],
)
def test_example_6_1_repairs_by_each_method(method, added, area):
    repaired = protect(build_graph(), F, mask_states(3, 4, 5, 6), method, "volume")
    assert (repaired.added, repaired.hull.volume) == (added, area)
    assert repaired.diameter == pytest.approx(2.0)
    assert repaired.is_optimal == (method == "exact")


def test_example_5_2_has_a_repair_of_area_6():
    repaired = protect(build_graph(), F, mask_states(2, 3, 5), objective="volume")
    assert (repaired.hull.volume, repaired.objective_value, repaired.lower_bound, repaired.optimality_gap) == (
        6.0,
        6.0,
        6.0,
        0.0,
    )


@pytest.mark.slow
def test_sequential_algorithm_3_is_not_optimal_for_two_exposed_states():
    beaten = []
    for f, policy, mask in map(build_small_instance, range(150)):
        if mask.sum() >= 2 and len(exposed_states(policy, f, mask)) >= 2:
            turned, best = (
                protect(policy, f, mask, method, "volume").objective_value for method in ("sequential", "exact")
            )
            beaten += [turned / best] if best > 0 else []
    assert max(beaten) > 1.2
    assert min(beaten) >= 1 - 1e-12


@pytest.mark.parametrize("body", ["hull", "cross-polytope", "disc"])
@pytest.mark.parametrize("method", ["greedy", "sequential", "exact"])
@settings(max_examples=choose_count(30, 15))
@given(seed=st.integers(0, 10**6), scale=st.sampled_from([1.0, 0.34]))
def test_no_state_is_exposed_after_any_repair(method, body, seed, scale):
    f, policy, mask = build_small_instance(seed)
    assume(mask.sum() >= 2)
    repaired = protect(policy, scale * f, mask, method, body=body)
    again = degree_of_protection(repaired.graph, scale * f, mask, body=body)
    assert (again[mask] >= 2).all()
    np.testing.assert_array_equal(again, repaired.degrees)
    kept = {tuple(edge) for edge in policy.restrict(mask).edge_array().tolist()}
    assert {tuple(edge) for edge in repaired.graph.edge_array().tolist()} == kept | set(repaired.added)
    assert repaired.lower_bound <= repaired.objective_value * (1 + 1e-12)


@settings(max_examples=choose_count(40, 20))
@given(seed=st.integers(0, 10**6), spacing=st.sampled_from([(1, 1), (0.5, 0.1), (1.0, 4.2)]))
def test_ball_repair_has_smallest_sufficient_radius(seed, spacing):
    f, labelled, mask = build_small_instance(seed)
    assume(mask.sum() >= 2)
    f = f * np.array(spacing)
    kinds = (("cross-polytope", 1), ("disc", 2))
    for policy, (body, order) in itertools.product((labelled, PolicyGraph.from_edges(8, [])), kinds):
        edges = policy.restrict(mask).edge_array()
        lengths = [np.linalg.norm(f[i] - f[j], ord=order) for i, j in edges]
        nearest = [min(np.linalg.norm(f[i] - f[j], ord=order) for j in np.flatnonzero(mask) if j != i)
                   for i in exposed_states(policy, f, mask, body=body)]  # fmt: skip
        repaired = protect(policy, f, mask, body=body)
        assert repaired.body.circumradius == pytest.approx(max([0.0, *lengths, *nearest]))
        assert repaired.is_optimal


def test_grid_decisions_are_exact_despite_rounding():
    # With a cell of 0.1 km, 0.1 * 3 - 0.1 * 1 is not 0.1 * 2 in floats. Every edge is on the boundary.
    f = 0.1 * np.array([[0, 0], [2, 0], [1, 0], [3, 0], [7, 0]])
    degrees = degree_of_protection(PolicyGraph.from_edges(5, [(0, 1)]), f)
    assert degrees.tolist() == [3, 4, 4, 3, 1]


def test_states_with_equal_measurements_protect_each_other():
    f = [[0, 0], [0, 0], [5, 5]]
    none = PolicyGraph.from_edges(3, [])
    assert degree_of_protection(none, f).tolist() == [2, 2, 1]


def test_exposure_depends_on_noise_body():
    f = [[0, 0], [2, 0], [1, 1], [9, 0], [7, 0]]
    policy = PolicyGraph.from_edges(5, [(0, 1), (3, 4)])
    assert degree_of_protection(policy, f).tolist() == [2, 2, 1, 2, 2]
    assert degree_of_protection(policy, f, body="cross-polytope").tolist() == [3, 3, 3, 2, 2]
    assert degree_of_protection(policy, f, body="disc").tolist() == [3, 3, 3, 2, 2]


@pytest.mark.parametrize("constraint", [mask_states(3), mask_states(1)])
def test_single_possible_state_raises(constraint):
    with pytest.raises(SingletonConstraintError, match="only state of the constraint set"):
        protect(build_graph(), F, constraint)


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"method": "magic"}, "method must be one of"),
        ({"objective": "beauty"}, "objective must be one of"),
        ({"body": "cube"}, "body must be one of"),
        ({"repair_max_work": -1}, "repair_max_work must be a non-negative integer"),
        ({"repair_max_work": 1.5}, "repair_max_work must be a non-negative integer"),
        ({"repair_max_work": True}, "repair_max_work must be a non-negative integer"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_invalid_options_raise(options, refused):
    with pytest.raises(InvalidInputError, match=refused):
        protect(build_graph(), F, **options)


def test_repair_on_a_line_has_zero_volume():
    """Points on a line up to rounding, not on a lattice: the repair has zero volume."""
    along = np.array([0.0, 1.0, np.sqrt(2), np.pi, np.e, 0.3])
    points = np.array([0.1, 0.7]) + along[:, None] * np.array([np.cos(0.7), np.sin(0.7)])
    policy = PolicyGraph.from_edges(6, [(0, 5)])
    repaired = protect(policy, points, np.ones(6, dtype=bool), objective="volume")
    assert exposed_states(policy, points, np.ones(6, dtype=bool)).tolist() == [1, 2, 3, 4]
    assert (repaired.hull.volume, repaired.added) == (pytest.approx(0.0, abs=1e-12), ((1, 2), (3, 4)))
    assert (repaired.is_optimal, repaired.objective_value, repaired.lower_bound) == (
        True,
        pytest.approx(0.0, abs=1e-12),
        0.0,
    )


def test_shortest_flat_repair_is_used_and_covered_states_get_no_edge():
    line = np.array([[0, 0], [1, 0], [100, 0], [40, 0], [-7, 0]])
    repaired = protect(PolicyGraph.from_edges(5, [(0, 1)]), line, np.ones(5, dtype=bool), objective="volume")
    assert (repaired.added, repaired.hull.volume, np.abs(repaired.hull.vertices).max()) == (((2, 3),), 0.0, 60.0)


def test_nearest_states_of_each_other_share_one_edge():
    repaired = protect(PolicyGraph.from_edges(4, []), [[0, 0], [1, 0], [9, 0], [9, 2]], method="greedy")
    assert repaired.added == ((0, 1), (2, 3))


def test_ties_of_the_objective_take_the_shortest_difference_and_then_the_first():
    assert find_minimum(np.array([2.0, 1.0, 1.0 + 1e-13, 1.0]), np.array([1.0, 3.0, 2.0, 2.0])) == 2


def find_shortest_reach(points):
    """Return the squared length of the shortest repair in one direction, or None."""
    reaches = []
    for direction in (points[:, None] - points[None]).reshape(-1, 2):
        reach = 0
        for state, point in enumerate(points):
            vectors = np.delete(points, state, axis=0) - point
            on_line = vectors[vectors[:, 0] * direction[1] == vectors[:, 1] * direction[0]]
            reach = max(reach, min((on_line**2).sum(axis=1), default=np.inf))
        reaches += [reach] if direction.any() and reach < np.inf else []
    return min(reaches, default=None)


def test_repair_in_one_direction_is_the_shortest_of_all_directions():
    """Every state is exposed. Parts of a grid often have several directions without volume."""
    # From the first state the nearest partner is to the right, the next one above; there other states need a reach of
    # 12 instead of 6.
    instances = [np.array([[0, 0], [1, 0], [0, 2], [6, 2], [6, 12], [1, 12]])]
    for seed in range(40):
        rng = np.random.default_rng(seed)
        columns, rows = np.cumsum(rng.integers(1, 9, (2, 3)), axis=1)
        grid = np.array([[x, y] for x in columns for y in rows])
        instances.append(rng.permutation(grid)[: rng.integers(4, 9)])
    reaches = []
    for points in instances:
        if (reach := find_shortest_reach(points)) is not None:
            repaired = protect(PolicyGraph.from_edges(len(points), []), points, objective="volume")
            assert (repaired.objective_value, repaired.is_optimal) == (0.0, True)
            assert (repaired.hull.vertices**2).sum(axis=1).max() == reach
            reaches.append(reach)
    assert reaches[0] == 36
    assert len(reaches) > 20


def test_repair_with_point_one_lattice_step_off_the_line_has_volume():
    """The cross product with the direction is 1, while the largest is 3e10: exact in integers."""
    far = 100_000
    points = np.array([[0, 0], [far, far - 1], [1, 1], [far, -far], [2 * far, -1]])
    policy = PolicyGraph.from_edges(5, [(0, 1), (3, 4)])
    repaired = protect(policy, points, np.ones(5, dtype=bool), objective="volume")
    grown = [SensitivityHull(policy.with_edges([(2, k)]).differences(points)).volume for k in (0, 1, 3, 4)]
    assert repaired.hull.volume == pytest.approx(min(grown), rel=1e-12)
    assert repaired.hull.volume > 1.0
