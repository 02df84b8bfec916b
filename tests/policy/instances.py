"""Small instances of repairs, and all of their repairs."""

from __future__ import annotations

import itertools

import numpy as np

from dphmm import PolicyGraph, SensitivityHull


def small_instance(seed: int):
    rng = np.random.default_rng(seed)
    f = rng.integers(0, 9, (8, 2))
    labelled = PolicyGraph.categorical(rng.integers(0, 5, 8))
    mask = rng.random(8) < 0.9
    return f, labelled, mask


def exhaustive(f, made, mask, exposed, objective):
    """The least objective over one partner for every exposed state, by trying them all."""
    edges = made.restrict(mask).edge_array()
    base = f[edges[:, 0]] - f[edges[:, 1]]
    partners = [[j for j in np.flatnonzero(mask) if j != i] for i in exposed]
    hulls = (
        SensitivityHull(np.concatenate([base, [f[j] - f[i] for i, j in zip(exposed, chosen, strict=True)]]))
        for chosen in itertools.product(*partners)
    )
    return min(hull.volume if objective == "volume" else hull.squared_error for hull in hulls)
