"""The linear program of optimal tables: bounds, equations, cliques and uniqueness."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from dphmm.errors import PolicyError
from dphmm.mechanisms import TableMechanism
from dphmm.mechanisms.noise_tables import Clique, Conditions, Graph, compute_min_error_table, list_cliques
from tests.mechanisms.test_noise_tables_values import _solve_with_cvxopt, build_grid
from tests.sizes import mark_rest_slow

CASES = {
    "a grid": build_grid(3, 0),
    "a zone": build_grid(3, 3),
    "a zone in a grid": build_grid(3, 2),
    "two states": build_grid(2, 1),
}


def compute_costs(points, prior):
    return prior[:, None] / prior.sum() * np.square(points[:, None] - points[None]).sum(axis=2)


@pytest.mark.parametrize("case", CASES)
def test_multipliers_give_valid_lower_bounds(case):
    """Seed 1. Unprojected clique multipliers give bounds above the optimum."""
    points, edges = CASES[case]
    rng = np.random.default_rng(1)
    prior = rng.dirichlet(np.ones(len(points)))
    costs, conditions = compute_costs(points, prior), Conditions.from_edges(len(points), edges, np.e)
    best, above = _solve_with_cvxopt(points, edges, 1.0, prior), 0
    for _ in range(200):
        held = rng.exponential(size=(len(conditions.greater), len(points))) * 10.0 ** rng.uniform(-6, 2)
        assert conditions.bound_cost(costs, held) <= best + 1e-9
        held[conditions.greater >= conditions.size] = 0.0
        above += (costs - conditions.apply_transpose(held)[: len(points)]).min(axis=1).sum() > best
    assert (above > 0) == (conditions.unknowns > conditions.size) or not above
    table, bound = compute_min_error_table(points, edges, np.e, prior)
    assert bound <= best * (1 + 1e-6)
    assert (costs * table).sum() <= best * (1 + 1.02e-4)


def test_clique_solver_matches_general_graph_solver():
    size, rng = 7, np.random.default_rng(2)
    conditions = Conditions.from_edges(size, np.array(list(combinations(range(size), 2))), 2.5)
    assert conditions.is_clique
    weights = rng.exponential(size=(2 * size, 5)) * 10.0 ** rng.uniform(-4, 4, (2 * size, 5))
    wanted = rng.normal(size=(size + 1, 5))
    clique, general = Clique(conditions, weights), Graph(conditions, weights)
    np.testing.assert_allclose(clique.solve(wanted), general.solve(wanted), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(clique.sum_inverses(), general.sum_inverses(), rtol=1e-6)
    np.testing.assert_allclose(
        conditions.apply_transpose(weights * conditions.compute_slack(clique.solve(wanted))), wanted, atol=1e-6
    )


def test_clique_conditions_match_edge_conditions(monkeypatch):
    points, edges = build_grid(5, 3)
    prior = np.random.default_rng(1).dirichlet(np.ones(25))
    cliques, rest = list_cliques(25, edges)
    assert max(map(len, cliques)) == 9
    assert len(rest) + sum(len(clique) * (len(clique) - 1) // 2 for clique in cliques) >= len(edges)
    bound = compute_min_error_table(points, edges, np.e, prior)[1]
    monkeypatch.setattr("dphmm.mechanisms.noise_tables._MIN_CLIQUE_SIZE", 99)
    assert compute_min_error_table(points, edges, np.e, prior)[1] == pytest.approx(bound, rel=1.01e-4)


@pytest.mark.parametrize("epsilon", [1e-5, 0.01, 0.3, 1.0, 3.0, 10.0, 30.0])
def test_proven_gap_is_at_most_1e_4_for_every_epsilon(epsilon):
    points, edges = build_grid(4, 2)
    for prior in (np.ones(16), np.exp(-10.0 * np.linalg.norm(points - points[5], axis=1)), np.eye(16)[3]):
        table = TableMechanism.optimal(points, edges, epsilon, prior)
        assert table.squared_error * (1 - 1.1e-4) <= table.optimum + 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("seed", mark_rest_slow(range(6), 2))
def test_concentrated_priors_have_optimal_tables(seed):
    """Guard against priors rounded to six digits, which gave up to twice the error."""
    rng = np.random.default_rng(seed)
    points, edges = build_grid(5, 2)
    for prior in (rng.dirichlet(np.full(25, 0.05)), np.exp(-rng.exponential(5.0, 25))):
        for epsilon in (0.3, 3.0, 10.0):
            table = TableMechanism.optimal(points, edges, epsilon, prior)
            assert table.squared_error * (1 - 1e-3) <= table.optimum + 1e-8
        assert table.mixed < 1e-6


def test_large_zone_has_table_and_equally_large_grid_raises():
    points, edges = build_grid(14, 14)
    table = TableMechanism.optimal(points, edges, 1.0, np.exp(-np.linalg.norm(points, axis=1)))
    assert table.loss < 1.01e-4
    points, edges = build_grid(21, 1)
    with pytest.raises(PolicyError, match=r"at most 400 locations .*\b441\b"):
        TableMechanism.optimal(points, edges, 1.0)


def test_optimal_table_is_equivariant():
    """A reflection that preserves the problem preserves the table, for any order of states."""
    points, edges = build_grid(4, 0)
    table = compute_min_error_table(points, edges, np.e, np.ones(16))[0]
    order = np.random.default_rng(0).permutation(16)
    place = np.argsort(order)
    again = compute_min_error_table(points[order], place[edges], np.e, np.ones(16))[0]
    np.testing.assert_allclose(again, table[np.ix_(order, order)], atol=1e-7)
    mirrored = (3 - np.arange(16) // 4) * 4 + np.arange(16) % 4
    np.testing.assert_allclose(table[np.ix_(mirrored, mirrored)], table, atol=1e-7)
