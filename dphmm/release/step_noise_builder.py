"""Construction of a step's noise: one mechanism per hull, or one table per component."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from dphmm.arrays import FloatArray, IntArray, copy_read_only, hash_content
from dphmm.caching import BoundedCache
from dphmm.errors import ConfigurationError, PolicyError
from dphmm.geometry.sensitivity_hull import SensitivityHull
from dphmm.mechanisms import norm_noise
from dphmm.mechanisms.base import Mechanism
from dphmm.mechanisms.lattice import LatticeKNormMechanism
from dphmm.mechanisms.noise_tables import (
    MAX_PROGRAM_LOCATIONS,
    MAX_TABLE_LOCATIONS,
    TableMechanism,
    count_hops,
    is_clique,
)
from dphmm.mechanisms.registry import MECHANISMS, TABLE_MECHANISMS, find_mechanism, translate_mechanism_errors
from dphmm.model.belief import Belief
from dphmm.policy.component_bodies import NoiseBody
from dphmm.policy.protection_degrees import Protection
from dphmm.release.query import Query
from dphmm.release.settings import Settings
from dphmm.release.step_noise import StepNoise, spread_over_quantiles

# Steps repeat a few bodies and budgets: those of the previous steps, and the budgets that a schedule tries.
_MECHANISM_CACHE_SIZE = 64
_TABLE_CACHE_SIZE = 16

# The program of a clique has one constraint for each output instead of one for each edge. It is solved in the same time
# with four times the number of states.
CLIQUE_SIZE_FACTOR = 4

# The standard error of a mean over this number of outputs is about 2 % if the noise is as wide as its states.
_NUM_OUTPUTS = 1024
# The outputs do not depend on the user and are never released. With a fixed seed every process has the same ones.
_SEED = 7
# Number of log densities of outputs under states in a block, 2 MB of them.
_MAX_MATRIX_ENTRIES = 1 << 18

# Constructors of real-valued noise for a body that is more than a point.
_REAL_VALUED: Mapping[str, Callable[[NoiseBody, float], Mechanism]] = {
    "k-norm": lambda body, epsilon: norm_noise.KNormMechanism(body.hull, epsilon),
    "laplace": lambda body, epsilon: norm_noise.LaplaceMechanism(
        float(np.abs(body.hull.spanning).sum(axis=1).max()), epsilon, body.hull.ambient_dimension
    ),
    "planar-isotropic": lambda body, epsilon: norm_noise.PlanarIsotropicMechanism(body.hull, epsilon),
    "planar-laplace": lambda body, epsilon: norm_noise.PlanarLaplaceMechanism(epsilon, body.body.circumradius),
}


class NoiseBuilder:
    """A builder of the noise of repaired graphs. It reuses mechanisms of earlier steps.

    Parameters
    ----------
    settings
        The mechanism; for tables also the size limit of the linear program and the fallback.
    query
        Values to which noise is added.
    """

    def __init__(self, settings: Settings, query: Query) -> None:
        self._mechanism_name = settings.mechanism
        self._query = query
        self._mechanisms: BoundedCache[tuple[bytes, float], Mechanism] = BoundedCache(_MECHANISM_CACHE_SIZE)
        self._tables = TableBuilder(settings, query) if settings.mechanism in TABLE_MECHANISMS else None

    def build(self, protection: Protection, epsilon: float, prior: Belief | None = None) -> StepNoise:
        """Return the noise for a repaired graph.

        It is in lattice units for ``"lattice"``, otherwise in the unit of the measurements. Tables are built for a
        prior.
        """
        if self._tables is not None:
            return self._tables.build(protection, epsilon, prior)
        parts = tuple(self._get_mechanism(body, epsilon) for body in protection.parts)
        return StepNoise(self._query, parts, protection.part_of, protection.components)

    def clear(self) -> None:
        """Forget the mechanisms and the tables of earlier steps."""
        self._mechanisms.clear()
        if self._tables is not None:
            self._tables.clear()

    def _get_mechanism(self, body: NoiseBody, epsilon: float) -> Mechanism:
        hull = body.coordinate_hull
        # Above two dimensions, hulls with equal vertices may have other cones, and seeded samples depend on the cones.
        # Therefore the key is made of the differences.
        key = (hull.vertices if hull.dimension <= 2 else hull.differences).tobytes(), epsilon
        return self._mechanisms.get_or_make(key, lambda: self._build_mechanism(body, epsilon))

    def _build_mechanism(self, body: NoiseBody, epsilon: float) -> Mechanism:
        hull = body.hull
        if self._query.lattice is not None:
            hull = body.coordinate_hull.convert_to_steps(self._query.measurements.steps_per_coordinate)
        # A point adds no noise under any mechanism, so registered ones need not accept it.
        if self._mechanism_name not in MECHANISMS and hull.dimension > 0:
            registered = find_mechanism(self._mechanism_name)
            with translate_mechanism_errors(self._mechanism_name):
                return registered.from_hull(hull, epsilon)
        if self._query.lattice is not None:
            return LatticeKNormMechanism(hull, epsilon)
        if hull.dimension == 0:
            return norm_noise.KNormMechanism(hull, epsilon)
        return _REAL_VALUED[self._mechanism_name](body, epsilon)


class TableBuilder:
    """A builder of one table for each component.

    It reuses the table of an unchanged component and prior.

    Parameters
    ----------
    settings
        The type of table, the size limit of the linear program, and the fallback for larger components.
    query
        Values that are released.
    """

    def __init__(self, settings: Settings, query: Query) -> None:
        self._settings = settings
        self._query = query
        self._tables: BoundedCache[str, TableMechanism] = BoundedCache(_TABLE_CACHE_SIZE)
        self._knorm_squared_errors: BoundedCache[str, float] = BoundedCache(_TABLE_CACHE_SIZE)

    def build(self, protection: Protection, epsilon: float, prior: Belief | None) -> StepNoise:
        """Return a table for each component, under the prior restricted to it.

        Without a prior all states have equal weight.

        Raises
        ------
        ConfigurationError
            If a component is larger than the limit of the linear program and there is no fallback.
        PolicyError
            If a component is larger than any table may be.
        """
        components = protection.components
        dimension = self._query.measurements.dimension
        # Part 0 releases components of a single state exactly. Its body is a point.
        parts: list[Mechanism] = [norm_noise.KNormMechanism(SensitivityHull(np.zeros((0, dimension))), epsilon)]
        part_of = np.where(components >= 0, 0, -1)
        is_optimal = self._settings.mechanism == "optimal"
        mean_errors = [0.0] if is_optimal else []
        for states, edges in list_component_edges(protection):
            part_of[states] = len(parts)
            parts.append(self._build_table(states, edges, epsilon, prior))
            if is_optimal:
                mean_errors.append(self._get_knorm_squared_error(states, protection, epsilon, prior))
        return StepNoise(self._query, tuple(parts), part_of, components, tuple(mean_errors))

    def clear(self) -> None:
        """Forget the tables and their errors."""
        self._tables.clear()
        self._knorm_squared_errors.clear()

    def _build_table(self, states: IntArray, edges: IntArray, epsilon: float, prior: Belief | None) -> TableMechanism:
        weights = _compute_relative_masses(states, prior)
        make = TableMechanism.graph_exponential
        if self._settings.mechanism == "optimal":
            max_states = self._get_max_states(len(states), edges)
            if len(states) <= max_states:
                make = TableMechanism.optimal
            elif self._settings.optimal_fallback == "none":
                raise ConfigurationError(
                    f"components must have at most {max_states:,} states for mechanism 'optimal', got {len(states):,}: "
                    "raise optimal_max_states, or set optimal_fallback to 'graph-exponential'"
                )
        key = hash_content(states, edges, epsilon, weights, make.__name__)
        values = self._query.values[states]
        return self._tables.get_or_make(key, lambda: make(values, edges, epsilon, weights))

    def _get_knorm_squared_error(
        self, states: IntArray, protection: Protection, epsilon: float, prior: Belief | None
    ) -> float:
        """Return the squared error of the posterior mean of K-norm noise on a component.

        The noise has the given budget and the hull of the component.
        """
        hull = protection.parts[int(protection.part_of[states[0]])].hull
        weights = _compute_relative_masses(states, prior)
        key = hash_content(states, hull.vertices, epsilon, weights)
        values = self._query.values[states]
        return self._knorm_squared_errors.get_or_make(
            key, lambda: compute_posterior_mean_error(norm_noise.KNormMechanism(hull, epsilon), values, weights)
        )

    def _get_max_states(self, size: int, edges: IntArray) -> int:
        """Return the largest number of states for which the linear program is solved."""
        if is_clique(size, edges):
            return min(CLIQUE_SIZE_FACTOR * self._settings.optimal_max_states, MAX_TABLE_LOCATIONS)
        return min(self._settings.optimal_max_states, MAX_PROGRAM_LOCATIONS)


def with_hop_distances(protection: Protection) -> Protection:
    """Return a protection with the degrees and the diameter of tables.

    A table protects a state only with its neighbours in the graph; lying within a hull does not count. The privacy loss
    between two states is epsilon for each hop.
    """
    degrees = np.zeros(len(protection.degrees), dtype=np.int64)
    degrees[protection.graph.node_mask] = 1
    diameter = protection.diameter
    for states, edges in list_component_edges(protection):
        np.add.at(degrees, states[edges.ravel()], 1)
        # An edge bounds the log ratio by epsilon, a path of h edges by h times epsilon. So the diameter is in hops.
        if np.isfinite(diameter):
            diameter = float(count_hops(len(states), edges).max())
    return replace(protection, degrees=copy_read_only(degrees), diameter=diameter, effect=None)


def list_component_edges(protection: Protection) -> list[tuple[IntArray, IntArray]]:
    """Return the states of each component of more than one state, and its edges.

    Edges are pairs of positions among these states.

    Raises
    ------
    PolicyError
        If a component has more states than a table may have.
    """
    labels = protection.components
    sizes = np.bincount(labels[labels >= 0])
    if sizes.max() > MAX_TABLE_LOCATIONS:
        raise PolicyError(
            f"components must have at most {MAX_TABLE_LOCATIONS:,} states for a table, got {int(sizes.max()):,}; use a "
            "mechanism with a hull, or a policy that connects fewer states"
        )
    edges = protection.graph.edge_array()
    position = np.zeros(len(labels), dtype=np.int64)
    components = []
    for component in np.flatnonzero(sizes > 1).tolist():
        states = np.flatnonzero(labels == component)
        position[states] = np.arange(len(states))
        components.append((states, position[edges[labels[edges[:, 0]] == component]]))
    return components


def _compute_relative_masses(states: IntArray, prior: Belief | None) -> FloatArray:
    if prior is None:
        return np.ones(len(states))
    # Relative to the largest mass: all masses of an improbable component may underflow.
    logs = prior.log_mass[states]
    top = float(logs.max())
    return np.exp(logs - top) if np.isfinite(top) else np.ones(len(states))


def compute_posterior_mean_error(mechanism: Mechanism, points: FloatArray, prior: FloatArray) -> float:
    """Compute the expected squared error of the posterior mean after one release.

    This is the mean posterior variance over releases of states in proportion to the prior. The releases come from a
    generator with a fixed seed. Therefore the result is a function of the arguments, with an error of about 2 %.

    Parameters
    ----------
    mechanism
        The noise.
    points
        ``(n, d)``: measurements of the states.
    prior
        ``(n,)``: non-negative weights with a positive sum.
    """
    weights = prior / prior.sum()
    order = np.lexsort(points.T)  # evenly spaced quantiles then spread over the locations
    true_states = order[spread_over_quantiles(weights[order], _NUM_OUTPUTS)]
    released = mechanism.sample(points[true_states], np.random.default_rng(_SEED))
    # Centre the points: the variance E|x|² − |E x|² loses digits for points far from the origin.
    centred = points - weights @ points
    squares = np.square(centred).sum(axis=1)
    block = max(1, _MAX_MATRIX_ENTRIES // len(points))
    total = 0.0
    with np.errstate(divide="ignore"):
        log_prior = np.log(weights)
    for start in range(0, _NUM_OUTPUTS, block):
        outputs = released[start : start + block]
        repeated = np.repeat(outputs, len(points), axis=0)
        tiled = np.tile(points, (len(outputs), 1))
        logs = mechanism.log_density(repeated, tiled).reshape(len(outputs), len(points)) + log_prior
        posterior = np.exp(logs - logs.max(axis=1, keepdims=True))
        posterior /= posterior.sum(axis=1, keepdims=True)
        means = posterior @ centred
        total += float((posterior @ squares - np.square(means).sum(axis=1)).sum())
    return max(0.0, total / _NUM_OUTPUTS)
