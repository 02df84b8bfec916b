"""Small repair problems, and all of their repairs."""

from __future__ import annotations

import itertools

import networkx as nx
import numpy as np

from dphmm import PolicyGraph, SensitivityHull
from dphmm.geometry.sensitivity_hull import Disc


def build_small_instance(seed: int):
    rng = np.random.default_rng(seed)
    f = rng.integers(0, 9, (8, 2))
    labelled = PolicyGraph.categorical(rng.integers(0, 5, 8))
    mask = rng.random(8) < 0.9
    return f, labelled, mask


def enumerate_repairs(exposed, mask):
    """Return every set of edges that gives each exposed state one partner."""
    partners = [[int(j) for j in np.flatnonzero(mask) if j != i] for i in exposed]
    chosen = itertools.product(*partners)
    return {frozenset(tuple(sorted((int(i), j))) for i, j in zip(exposed, choice, strict=True)) for choice in chosen}


def build_hulls(f, policy, mask, repairs):
    """Build the hull over the restricted policy and the additional edges of each repair."""
    start = policy.restrict(mask).edge_array()
    hulls = {}
    for edges in repairs:
        joined = np.concatenate([start, np.array(sorted(edges), dtype=int).reshape(-1, 2)])
        hulls[edges] = SensitivityHull(f[joined[:, 0]] - f[joined[:, 1]])
    return hulls


def get_objective(noise, objective):
    return noise.volume if objective == "volume" else noise.squared_error


def compute_component_values(f, policy, mask, repairs, objective, prior, body="hull"):
    """Compute the components' mean objective, weighted by the prior, after each repair."""
    weights = np.where(mask, prior, 0) / prior[mask].sum()
    start = policy.restrict(mask).to_networkx()
    objectives = {}  # many repairs have a component in common
    values = {}
    for edges in repairs:
        repaired = start.copy()
        repaired.add_edges_from(edges)
        values[edges] = 0.0
        for part in nx.connected_components(repaired):
            within = frozenset((min(edge), max(edge)) for edge in repaired.edges() if edge[0] in part)
            if within not in objectives:
                objectives[within] = compute_noise_objective(f, sorted(within), body, objective)
            values[edges] += weights[list(part)].sum() * objectives[within]
    return values


def compute_noise_objective(f, edges, body, objective):
    """Compute the objective of one component's noise. 0 for a single measurement."""
    noise = SensitivityHull(np.array([f[a] - f[b] for a, b in edges]).reshape(-1, 2))
    if noise.dimension == 0:
        return 0.0
    if body == "disc":
        noise = Disc(noise.circumradius, 2)
    elif body == "cross-polytope":
        noise = SensitivityHull(np.abs(noise.vertices).sum(axis=1).max() * np.eye(2))
    return get_objective(noise, objective)


def find_best_value(f, policy, mask, exposed, objective):
    """Return the smallest objective over all choices of one partner per exposed state."""
    hulls = build_hulls(f, policy, mask, enumerate_repairs(exposed, mask))
    return min(get_objective(hull, objective) for hull in hulls.values())


def find_isolated_states(policy, mask):
    """Return the possible states that have no edge and are not unprotected."""
    start = policy.restrict(mask).to_networkx()
    return [state for state in start if start.degree(state) == 0 and not policy.open[state]]
