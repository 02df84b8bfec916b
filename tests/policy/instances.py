"""Small repair problems, and all of their repairs."""

from __future__ import annotations

import itertools

import networkx as nx
import numpy as np

from dphmm import PolicyGraph, SensitivityHull
from dphmm.geometry.hull import Disc


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


def compute_hull_value(f, policy, mask, edges, objective):
    """Compute the objective of one hull over the restricted policy and additional edges."""
    hull = build_hull_after(f, policy, mask, edges)
    return hull.volume if objective == "volume" else hull.squared_error


def build_hull_after(f, policy, mask, edges):
    joined = np.concatenate([policy.restrict(mask).edge_array(), np.array(sorted(edges), dtype=int).reshape(-1, 2)])
    return SensitivityHull(f[joined[:, 0]] - f[joined[:, 1]])


def compute_component_value(f, policy, mask, edges, objective, prior, body="hull"):
    """Compute the mean objective of the components' noise, weighted by the prior."""
    weights = np.where(mask, prior, 0) / prior[mask].sum()
    repaired = policy.restrict(mask).to_networkx()
    repaired.add_edges_from(edges)
    total = 0.0
    for part in nx.connected_components(repaired):
        differences = [f[a] - f[b] for a, b in repaired.subgraph(part).edges()]
        noise = SensitivityHull(np.array(differences).reshape(-1, 2))
        if noise.dimension == 0:
            continue
        if body == "disc":
            noise = Disc(noise.circumradius, 2)
        elif body == "cross-polytope":
            noise = SensitivityHull(np.abs(noise.vertices).sum(axis=1).max() * np.eye(2))
        total += weights[list(part)].sum() * (noise.volume if objective == "volume" else noise.squared_error)
    return total


def find_best_value(f, policy, mask, exposed, objective):
    """Return the smallest objective over all choices of one partner per exposed state."""
    return min(compute_hull_value(f, policy, mask, edges, objective) for edges in enumerate_repairs(exposed, mask))


def find_isolated_states(policy, mask):
    """Return the possible states that have no edge and are not unprotected."""
    start = policy.restrict(mask).to_networkx()
    return [state for state in start if start.degree(state) == 0 and not policy.open[state]]
