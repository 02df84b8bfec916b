"""The exact hull repair, against exhaustive search over partners."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dphmm import PolicyGraph, exposed_states, protect
from tests.policy.instances import build_hulls, build_small_instance, find_best_value, get_objective
from tests.running_example import F, build_graph, mask_states
from tests.sizes import choose_count

OBJECTIVES = ["volume", "error"]


def check_exact(f, policy, mask, objective):
    exposed = exposed_states(policy, f, mask)
    if not 1 <= len(exposed) <= 3:
        return
    repaired = protect(policy, f, mask, objective=objective)
    assert repaired.is_optimal
    assert repaired.objective_value == pytest.approx(
        find_best_value(f, policy, mask, exposed, objective), rel=1e-9, abs=1e-9
    )
    reached = repaired.hull.volume if objective == "volume" else repaired.hull.squared_error
    assert repaired.objective_value == pytest.approx(reached, rel=1e-9, abs=1e-12)
    assert len(repaired.added) <= len(exposed)
    assert not len(exposed_states(repaired.graph, f, mask))


@pytest.mark.parametrize("objective", OBJECTIVES)
@settings(max_examples=choose_count(40, 20))
@given(seed=st.integers(0, 10**6))
def test_exact_repair_matches_exhaustive_search(objective, seed):
    f, policy, mask = build_small_instance(seed)
    assume(mask.sum() >= 2)
    check_exact(f, policy, mask, objective)


@pytest.mark.slow
@pytest.mark.parametrize("objective", OBJECTIVES)
@settings(max_examples=choose_count(30, 15))
@given(st.integers(0, 10**6), st.sampled_from([(1.0, 1.0), (1.0, 4.2), (0.5, 0.1)]), st.booleans())
def test_exact_repair_of_scattered_and_stretched_measurements(objective, seed, spacing, scattered):
    rng = np.random.default_rng(seed)
    f = (rng.normal(size=(7, 2)) if scattered else rng.integers(0, 20, (7, 2))) * np.array(spacing)
    check_exact(f, PolicyGraph.from_edges(7, [(0, 1), (1, 2), (2, 3)]), np.ones(7, bool), objective)


@pytest.mark.parametrize(
    ("objective", "steps"),
    [
        ("volume", [[13, 15], [15, 11], [9, 8], [10, 10], [15, 1], [11, 16], [1, 1]]),
        ("volume", [[6, 16], [1, 15], [6, 14], [1, 13], [13, 4], [10, 16], [19, 16]]),
        ("error", [[17, 5], [5, 9], [17, 2], [4, 10], [4, 8], [6, 1], [0, 1]]),
        ("error", [[14, 13], [14, 9], [17, 8], [2, 8], [9, 1], [5, 11], [4, 18]]),
    ],
)
def test_repairs_are_compared_in_the_unit_of_measurements(objective, steps):
    """The search improves on the heuristic repairs. Coordinates are steps of 0.5 and 0.1."""
    policy = PolicyGraph.from_edges(7, [(0, 1), (1, 2), (2, 3)])
    check_exact(np.array(steps) * [0.5, 0.1], policy, np.ones(7, bool), objective)


@pytest.mark.parametrize(
    ("f", "num_connected"),
    [
        ([[4, 4, 3], [8, 3, 5], [3, 4, 8], [1, 5, 3], [6, 6, 2], [6, 6, 4]], 3),
        ([[8, 5, 1], [2, 4, 0], [3, 8, 1], [7, 0, 0], [8, 1, 0], [4, 6, 2], [0, 0, 2]], 5),
        ([[5, 8, 2], [6, 0, 1], [4, 4, 1], [2, 1, 2], [7, 1, 1]], 3),
    ],
)
def test_further_edges_lower_the_error_in_space(f, num_connected):
    """A repair without edges that only lower the error is worse."""
    policy = PolicyGraph.from_groups(len(f), [list(range(num_connected))])
    check_exact(np.array(f), policy, np.ones(len(f), bool), "error")


@pytest.mark.parametrize("objective", OBJECTIVES)
@settings(max_examples=choose_count(30, 15))
@given(seed=st.integers(0, 10**6), d=st.sampled_from([1, 3]))
def test_repair_in_other_dimensions_matches_exhaustive_search(objective, seed, d):
    f = np.random.default_rng(seed).integers(0, 5, (6, d))
    check_exact(f, PolicyGraph.from_edges(6, [(0, 1), (1, 2), (0, 3)]), np.ones(6, bool), objective)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_sequential_repair_takes_partner_of_least_volume_in_turn(objective):
    """The objective does not change it. States that the grown hull protects get no partner."""
    num_spared = 0
    for seed in range(choose_count(40, 20)):
        f, policy, mask = build_small_instance(seed)
        if mask.sum() < 2:
            continue
        exposed = exposed_states(policy, f, mask).tolist()
        added = frozenset()
        for state in exposed:
            partners = [partner for partner in np.flatnonzero(mask).tolist() if partner != state]
            (hull,) = build_hulls(f, policy, mask, [added]).values()
            if hull.contains(f[partners] - f[state]).any():
                num_spared += 1
                continue
            repairs = [added | {(min(state, partner), max(state, partner))} for partner in partners]
            volumes = np.array([hull.volume for hull in build_hulls(f, policy, mask, repairs).values()])
            lengths = np.linalg.norm(f[partners] - f[state], axis=1)
            added = repairs[int(np.where(volumes <= volumes.min() * (1 + 1e-9), lengths, np.inf).argmin())]
        (hull,) = build_hulls(f, policy, mask, [added]).values()
        repaired = protect(policy, f, mask, "sequential", objective)
        assert set(repaired.added) == added
        assert repaired.objective_value == pytest.approx(get_objective(hull, objective), rel=1e-9, abs=1e-12)
    assert num_spared > 2


@pytest.mark.parametrize(
    ("f", "joined", "without_limit"),
    [
        ([[12, 1], [12, 0], [0, 2], [4, 1], [8, 3], [5, 1], [9, 4]], [0, 1, 2, 3], 406.75728155339806),
        ([[0, 1], [2, 2], [11, 3], [3, 1], [7, 4], [13, 2], [6, 3]], [0, 1, 2, 3], None),
        ([[0, 8], [2, 2], [0, 12], [6, 6], [4, 5], [10, 0]], [0, 1, 2], 285.42857142857144),
    ],
)
def test_number_of_added_edges_is_at_most_number_of_exposed_states(f, joined, without_limit):
    # In the first and the last case a hull with more edges would have less error than every repair.
    policy = PolicyGraph.from_groups(len(f), [joined])
    check_exact(np.array(f), policy, np.ones(len(f), bool), "error")
    if without_limit:
        assert without_limit < protect(policy, f, objective="error").objective_value


@pytest.mark.parametrize(("partner", "area", "error"), [(4, 14, 54), (5, 16, 47), (6, 20, 50)])
def test_smallest_area_differs_from_smallest_error_in_running_example(partner, area, error):
    hull = protect(build_graph().with_edges([(2, partner - 1)]), F, mask_states(3, 4, 5, 6)).hull
    assert (hull.volume, hull.squared_error) == pytest.approx((area, error))


def test_error_repair_takes_s5_and_volume_repair_takes_s4():
    minimum = {
        objective: protect(build_graph(), F, mask_states(3, 4, 5, 6), objective=objective) for objective in OBJECTIVES
    }
    assert [minimum[objective].added for objective in OBJECTIVES] == [((2, 3),), ((2, 4),)]
    assert [minimum[objective].objective_value for objective in OBJECTIVES] == pytest.approx([14, 47])


def build_isolated_grid(count: int, seed: int, side: int = 20):
    cells = np.random.default_rng(seed).permutation(side * side)[:count]
    return PolicyGraph.from_edges(count, []), np.stack(np.divmod(cells, side), axis=1)


@pytest.mark.parametrize("seed", range(3))
def test_redundant_edges_are_used_if_they_lower_error(seed):
    none, f = build_isolated_grid(14, seed)
    error, volume = (protect(none, f, objective=objective) for objective in ("error", "volume"))
    greedy = protect(none, f, method="greedy")
    assert error.is_optimal
    assert error.objective_value <= min(volume.hull.squared_error, greedy.hull.squared_error) * (1 + 1e-12)
    assert error.hull.volume >= volume.hull.volume * (1 - 1e-12)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("d", [2, 3])
def test_interrupted_search_returns_best_repair_and_proven_gap(objective, d):
    rng = np.random.default_rng(7)
    f, none = rng.integers(0, 60, (9 if d == 3 else 14, d)), PolicyGraph.from_edges(9 if d == 3 else 14, [])
    f[:, 2:] //= 20
    stopped = protect(none, f, objective=objective, repair_max_work=0)
    more = protect(none, f, objective=objective, repair_max_work=2_000)
    assert not stopped.is_optimal
    assert stopped.lower_bound <= more.lower_bound <= more.objective_value <= stopped.objective_value
    assert 0 < stopped.optimality_gap <= 1
    assert more.is_optimal or d == 3
    again = protect(none, f, objective=objective, repair_max_work=0)
    assert (again.added, again.objective_value, again.lower_bound) == (
        stopped.added,
        stopped.objective_value,
        stopped.lower_bound,
    )


def test_bound_covers_partners_outside_candidate_list(monkeypatch):
    none, f = build_isolated_grid(14, 1)
    whole = protect(none, f, objective="error")
    monkeypatch.setattr("dphmm.policy.repair._MAX_CANDIDATES", 30)
    monkeypatch.setattr("dphmm.policy.repair._MIN_PARTNERS", 3)
    truncated = protect(none, f, objective="error")
    assert truncated.lower_bound <= whole.objective_value <= truncated.objective_value
    assert not truncated.is_optimal
    monkeypatch.setattr("dphmm.policy.repair._MIN_PARTNERS", 13)
    assert protect(none, f, objective="error").is_optimal
