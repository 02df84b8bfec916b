"""Budgets and shared edges of queries answered together at one timestep (Theorem 7.1)."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import nextafter

import numpy as np

from dphmm.arrays import BoolArray, IntArray, as_floats, check_budget
from dphmm.errors import BudgetError
from dphmm.mechanisms.base import Mechanism
from dphmm.mechanisms.exact_sampling import parse_rational
from dphmm.release.query import Query
from dphmm.release.step_plan import Edges, Planner, StepPlan


def split_epsilon(epsilon: float | Sequence[float] | None, defaults: Sequence[float]) -> list[float]:
    """Return the budget of each query: its default, an equal share, or its entry.

    Equal parts are doubles of which the exact decimal sum is at most the total.

    Raises
    ------
    BudgetError
        If a budget is invalid, or the number of budgets is not the number of queries.
    """
    if epsilon is None:
        return list(defaults)
    if not isinstance(epsilon, float | int | Fraction | np.floating | np.integer):
        listed = as_floats(epsilon, "budgets", BudgetError)
        if listed.ndim != 1:
            raise BudgetError(f"epsilon must have one entry for each query, got shape {listed.shape}")
        budgets = [check_budget(budget) for budget in listed.tolist()]
        if len(budgets) != len(defaults):
            raise BudgetError(f"epsilon must have one entry for each query ({len(defaults)}), got {len(budgets)}")
        return budgets
    whole: Fraction = parse_rational(check_budget(epsilon))
    part = float(whole / len(defaults))
    while parse_rational(part) * len(defaults) > whole:
        part = nextafter(part, 0.0)
    return [check_budget(part)] * len(defaults)


def compute_shared_edges(planner: Planner, plan: StepPlan, epsilon: float) -> Edges:
    """Return edges that give every possible state a partner, at no cost to a query.

    They are the edges of the query's repair. In addition, a state that its noise protects without any edge gets an
    edge to the nearest state with which it is protected.
    """
    graph = plan.protection.graph
    # States that the noise body covers without an edge to them. Another query with a different body would leave
    # them exposed, so they get an edge.
    is_isolated: BoolArray = plan.constraint & ~graph.find_connected_states() & ~graph.open
    if not is_isolated.any() or plan.num_possible == 1:
        return plan.protection.added
    states = np.flatnonzero(is_isolated)
    noise = planner.build_noise(plan, epsilon)
    nearest = np.empty(len(states), dtype=np.int64)
    for mechanism, members in noise.iterate_parts():
        in_part = members[states]
        if in_part.any():
            others = np.flatnonzero(members)
            nearest[in_part] = _find_nearest_in_part(mechanism, planner.query, epsilon, others, states[in_part])
    pairs = np.sort(np.stack([states, nearest], axis=1), axis=1)
    return tuple(sorted({*plan.protection.added, *map(tuple, pairs.tolist())}))


def _find_nearest_in_part(
    mechanism: Mechanism, query: Query, epsilon: float, others: IntArray, states: IntArray
) -> IntArray:
    """Return the other state that the mechanism distinguishes least from each of `states`."""
    if mechanism.table is not None:
        losses = mechanism.privacy_loss(query.values[states][:, None], query.values[others][None])
        return np.asarray(others[np.where(others == states[:, None], np.inf, losses).argmin(axis=1)])
    from scipy.spatial import cKDTree

    # The loss is a norm of differences. In a space with one dimension for each pair of facets of the body it is the
    # maximum norm. The two nearest neighbours of a state are the state itself, or another one at its location, and the
    # one that is searched for.
    places, order = mechanism.gauge(epsilon).embed_points((query.values - query.values[:1]).astype(np.float64))
    _, indices = cKDTree(places[others]).query(places[states], k=2, p=order)
    nearest = others[np.minimum(np.asarray(indices), len(others) - 1)]
    return np.asarray(nearest[np.arange(len(states)), (nearest == states[:, None]).argmin(axis=1)])
