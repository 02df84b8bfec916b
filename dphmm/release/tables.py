"""The noise of a step that is drawn from tables: one for each connected component of the repaired graph."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dphmm.arrays import FloatArray, IntArray, content_hash, frozen
from dphmm.errors import ConfigurationError, PolicyError
from dphmm.geometry.hull import SensitivityHull
from dphmm.geometry.measurements import Measurements
from dphmm.markov.belief import Belief
from dphmm.mechanisms.base import Mechanism
from dphmm.mechanisms.joined import hops_between, is_clique
from dphmm.mechanisms.knorm import KNormMechanism
from dphmm.mechanisms.table import LARGEST_PROGRAM, LARGEST_TABLE, TableMechanism
from dphmm.policy.protection import Protection
from dphmm.release.gain import error_of_posterior_mean
from dphmm.release.noise import ComponentNoise
from dphmm.release.settings import ReleaseSettings

_REMEMBERED = 16
CLIQUES = 4
"""How many times as many states a component may have all of which are joined: its program is no slower."""


class Tables:
    """Makes the tables of steps, and keeps the last ones: a component that stays as probable as it was keeps its table.

    Parameters
    ----------
    settings
        Which table, how large a program may be, and what serves where it is larger.
    measurements
        What is released.
    """

    def __init__(self, settings: ReleaseSettings, measurements: Measurements) -> None:
        self._settings, self._measurements = settings, measurements
        self._made: dict[str, TableMechanism] = {}
        self._means: dict[str, float] = {}

    def __call__(self, protection: Protection, epsilon: float, prior: Belief | None) -> ComponentNoise:
        """A table for each component, under a belief cut to it (all alike, where there is none).

        Raises
        ------
        ConfigurationError
            When a component is above the limit of the program and no fallback is set.
        PolicyError
            When it is above what any table may have.
        """
        assert protection.components is not None, "tables are planned by component"
        components, points = protection.components, self._measurements.points
        as_is: Mechanism = KNormMechanism(SensitivityHull(np.zeros((0, points.shape[1]))), epsilon)
        made, part_of = [as_is], np.where(components >= 0, 0, -1)
        means: list[float] | None = [0.0] if self._settings.mechanism == "optimal" else None
        for states, edges in component_edges(protection):
            part_of[states] = len(made)
            made.append(self._table(states, edges, epsilon, prior))
            if means is not None:
                means.append(self._mean_error(states, protection, epsilon, prior))
        return ComponentNoise(part_of, tuple(made), components, None if means is None else tuple(means))

    def _table(self, states: IntArray, edges: IntArray, epsilon: float, prior: Belief | None) -> TableMechanism:
        weights = _weights(states, prior)
        make = TableMechanism.graph_exponential
        if self._settings.mechanism == "optimal":
            if len(states) <= (most := self._most(len(states), edges)):
                make = TableMechanism.optimal
            elif self._settings.fallback == "none":
                raise ConfigurationError(
                    f"fallback is 'none' and a component has {len(states):,} states, above the {most:,} of the "
                    "program; raise optimal_limit, or set fallback to 'graph-exponential'"
                )
        key = content_hash(states, edges, epsilon, weights, make.__name__)
        if key not in self._made:
            if len(self._made) >= _REMEMBERED:
                del self._made[next(iter(self._made))]
            self._made[key] = make(self._measurements.points[states], edges, epsilon, weights)
        return self._made[key]

    def _mean_error(self, states: IntArray, protection: Protection, epsilon: float, prior: Belief | None) -> float:
        """What the posterior mean of K-norm noise has for a squared error, with the budget and hull of a component."""
        assert protection.part_of is not None, "tables are planned by component"
        hull = protection.parts[int(protection.part_of[states[0]])].hull
        weights = _weights(states, prior)
        key = content_hash(states, hull.vertices, epsilon, weights)
        if key not in self._means:
            if len(self._means) >= _REMEMBERED:
                del self._means[next(iter(self._means))]
            noise = KNormMechanism(hull, epsilon)
            self._means[key] = error_of_posterior_mean(noise, self._measurements.points[states], weights)
        return self._means[key]

    def _most(self, size: int, edges: IntArray) -> int:
        """How many states a component may have for its program to be solved."""
        if is_clique(size, edges):
            return min(CLIQUES * self._settings.optimal_limit, LARGEST_TABLE)
        return min(self._settings.optimal_limit, LARGEST_PROGRAM)


def with_hops(protection: Protection) -> Protection:
    """The protection that tables give: degrees count neighbours, and between two states the loss is a hop's for each.

    A state is indistinguishable from its neighbours in the graph, and from others as far as it is from them in hops:
    that they lie within a hull means nothing here.
    """
    degrees = np.zeros(len(protection.degrees), dtype=np.int64)
    degrees[protection.graph.nodes] = 1
    diameter = protection.diameter
    for states, edges in component_edges(protection):
        np.add.at(degrees, states[edges.ravel()], 1)
        if np.isfinite(diameter):
            diameter = float(hops_between(len(states), edges).max())
    return replace(protection, degrees=frozen(degrees), diameter=diameter)


def component_edges(protection: Protection) -> list[tuple[IntArray, IntArray]]:
    """The states of each component of more than one, and its edges by places among them.

    Raises
    ------
    PolicyError
        When a component has more states than a table may.
    """
    labels = protection.components
    assert labels is not None, "tables are planned by component"
    sizes = np.bincount(labels[labels >= 0])
    if sizes.max() > LARGEST_TABLE:
        raise PolicyError(
            f"a component has {int(sizes.max()):,} states and a table at most {LARGEST_TABLE:,}; choose noise of a "
            "hull, or a policy that joins fewer"
        )
    edges, place = protection.graph.edges(), np.zeros(len(labels), dtype=np.int64)
    found = []
    for component in np.flatnonzero(sizes > 1).tolist():
        states = np.flatnonzero(labels == component)
        place[states] = np.arange(len(states))
        found.append((states, place[edges[labels[edges[:, 0]] == component]]))
    return found


def _weights(states: IntArray, prior: Belief | None) -> FloatArray:
    if prior is None:
        return np.ones(len(states))
    logs = prior.log_mass[states]
    top = float(logs.max())
    return np.exp(logs - top) if np.isfinite(top) else np.ones(len(states))
