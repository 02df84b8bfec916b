"""What is known after a release: by noise of a hull, beside which a table gains something or nothing, or by tables."""

from __future__ import annotations

import numpy as np

from dphmm.arrays import FloatArray
from dphmm.mechanisms.base import NormMechanism
from dphmm.mechanisms.table import TableMechanism
from dphmm.release.noise import ComponentNoise

NODES = 1024
"""At how many releases the posterior is looked at."""

_SEED = 7
"""Of these releases: the same for everybody, and none that is ever drawn for anybody."""

_AT_ONCE = 1 << 18

NONE = 0.05
"""A gain below this counts as none."""


def error_of_posterior_mean(mechanism: NormMechanism, points: FloatArray, prior: FloatArray) -> float:
    """The expected squared distance of the mean given one release from the truth.

    It is the mean of the posterior's variance over releases of states in proportion to the prior, with a generator of
    its own: a function of its arguments, off by 2 % or so.

    Parameters
    ----------
    mechanism
        The noise.
    points
        ``(n, d)``: what is measured in the states.
    prior
        ``(n,)``, not negative and not all zero.
    """
    weights = prior / prior.sum()
    order = np.lexsort(points.T)  # so that evenly spread levels are evenly spread places
    levels = (np.arange(NODES) + 0.5) / NODES
    true = order[np.searchsorted(np.cumsum(weights[order]), levels).clip(max=len(points) - 1)]
    released = mechanism.sample(points[true], np.random.default_rng(_SEED))
    centred = points - weights @ points
    squares, several, total = np.square(centred).sum(axis=1), max(1, _AT_ONCE // len(points)), 0.0
    with np.errstate(divide="ignore"):
        logs_before = np.log(weights)
    for start in range(0, NODES, several):
        outputs = released[start : start + several]
        pairs = np.repeat(outputs, len(points), axis=0), np.tile(points, (len(outputs), 1))
        logs = mechanism.log_density(*pairs).reshape(len(outputs), len(points)) + logs_before
        posterior = np.exp(logs - logs.max(axis=1, keepdims=True))
        posterior /= posterior.sum(axis=1, keepdims=True)
        means = posterior @ centred
        total += float((posterior @ squares - np.square(means).sum(axis=1)).sum())
    return max(0.0, total / NODES)


def distance_after_tables(noise: ComponentNoise, points: FloatArray, probabilities: FloatArray) -> float:
    """The expected distance of the posterior mean from the truth after a release by tables: over all outputs, exactly.

    Where states of two components are at one place, what is released there counts as if it were known from which.

    Parameters
    ----------
    noise
        A table for each component; what is released as it is, is known afterwards.
    points
        ``(N, d)``: what is measured in the states.
    probabilities
        ``(N,)``: of the states, before the release; those of possible ones count in proportion.
    """
    total = expected = 0.0
    for states, table in zip(noise.members, noise.mechanisms, strict=True):
        total += float(probabilities[states].sum())
        if not isinstance(table, TableMechanism):
            continue
        places = points[states]
        joint = probabilities[states][:, None] * np.exp(table.log_density(table.points[None], places[:, None]))
        masses = joint.sum(axis=0)
        means = joint.T @ places / np.where(masses > 0, masses, 1.0)[:, None]
        away = np.sqrt(np.square(places[:, None] - means[None]).sum(axis=2))
        expected += float((joint * away).sum())
    return expected / total if total > 0 else expected
