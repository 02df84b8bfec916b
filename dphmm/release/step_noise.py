"""The noise of a step: one mechanism for all possible states, or one for each part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import cached_property
from math import inf, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray, make_read_only
from dphmm.mechanisms.base import Mechanism
from dphmm.model.belief import Belief
from dphmm.policy.protection_degrees import Protection
from dphmm.random import RandomSource, Rng
from dphmm.release.query import Query

# The width that counts for a point or a line on which real-valued noise stays, relative to the largest coordinate. The
# sum of two doubles has an error of half an epsilon of the larger one. Four cover the additions of a sample and of its
# density.
_RELATIVE_FLAT_WIDTH = 4 * float(np.finfo(np.float64).eps)

# The probabilities of the components if there is only one.
_SINGLE_SHARE: FloatArray = make_read_only(np.ones(1))

# The seed of reference samples, which do not depend on the user and are never released.
_REFERENCE_SEED = 7


@dataclass(frozen=True)
class LikeliestComponent:
    """The component that a release most probably came from, given all releases so far.

    Parameters
    ----------
    num_components
        Number of components with their own noise among the possible states.
    component_num_states
        Number of possible states of the most probable one.
    component_posterior
        Its posterior probability.
    component_error
        Root mean square distance of its releases from the true value.
    is_unprotected
        Whether it is an unprotected state. False if the step is withheld: nothing is released exactly.
    """

    num_components: int
    component_num_states: int
    component_posterior: float
    component_error: float
    is_unprotected: bool


@dataclass(frozen=True, eq=False)
class StepNoise:
    """The noise of a step, in parts that each apply to some of the possible states.

    Invariant: the endpoints of every edge share a part, so their likelihood ratio is at most exp(epsilon) of the part.
    There is no guarantee across parts: a release may reveal which part the state belongs to. A withheld step has no
    parts.

    Parameters
    ----------
    query
        Values to which noise is added.
    parts
        Mechanism of each part.
    part_of
        ``(N,)``: index of the part of each possible state, -1 for other states.
    components
        ``(N,)``: index of the component of each possible state, -1 for other states.
    knorm_squared_errors
        With optimal tables: the squared error that the posterior mean of K-norm noise with the same budget would have
        in each part, if the part is known. Empty with other noise.
    """

    query: Query
    parts: tuple[Mechanism, ...]
    part_of: IntArray
    components: IntArray
    knorm_squared_errors: tuple[float, ...] = ()
    _references: dict[int, npt.NDArray[Any]] = field(default_factory=dict, init=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self) if each.init} | {"_references": {}}

    @classmethod
    def empty(cls, query: Query, protection: Protection) -> StepNoise:
        """Return the noise of a withheld step, which has no parts."""
        return cls(query, (), protection.part_of, protection.components)

    @property
    def is_tabular(self) -> bool:
        """Whether at least one part is a table."""
        return any(part.table is not None for part in self.parts)

    def get_mechanism(self, state: int) -> Mechanism:
        """Return the mechanism that releases a possible state."""
        return self.parts[int(self.part_of[state])]

    @cached_property
    def members(self) -> tuple[IntArray, ...]:
        """The states of each part."""
        return tuple(np.flatnonzero(self.part_of == part) for part in range(len(self.parts)))

    def iterate_parts(self) -> Iterator[tuple[Mechanism, BoolArray]]:
        """Iterate over the mechanisms of the parts and the masks ``(N,)`` of their states."""
        for index, part in enumerate(self.parts):
            yield part, self.part_of == index

    # ---- sampling ------------------------------------------------------------------------------------------------

    def draw(self, state: int, source: RandomSource) -> npt.NDArray[Any]:
        """Sample a release of the value of a possible state."""
        return self.get_mechanism(state).draw(self.query.values[state], source)

    def sample(self, states: IntArray, rng: Rng) -> npt.NDArray[Any]:
        """Sample a release of each of the possible states ``(k,)``, in mechanism units."""
        values = self.query.values[states]
        released = np.empty_like(values)
        for index in np.unique(self.part_of[states]).tolist():
            in_part = self.part_of[states] == index
            released[in_part] = self.parts[index].sample(values[in_part], rng)
        return released

    def get_reference_samples(self, count: int) -> npt.NDArray[Any]:
        """Return samples of each part's noise about the origin, ``(parts, count, d)``.

        They come from a generator with a fixed seed and are the same in every process. They serve expectations over
        outputs. No release depends on them.
        """
        if count not in self._references:
            origin = np.zeros_like(self.query.values[0])
            samples = [part.sample(origin, np.random.default_rng(_REFERENCE_SEED), count) for part in self.parts]
            self._references[count] = np.stack(samples)
        return self._references[count]

    # ---- densities -----------------------------------------------------------------------------------------------

    def log_density(self, released: npt.NDArray[Any]) -> FloatArray:
        """Return ``log p(z | s)`` of a release for every state, ``(N,)``. -inf if impossible.

        Densities are normalised within each part. Densities of exact noise are probabilities. Real-valued noise of a
        part on a point or a line counts as spread over the width of rounding, so that it can be compared with the other
        parts. This multiplies the densities by a constant, and rounding never excludes a state.

        Parameters
        ----------
        released
            ``z``, ``(d,)``, in mechanism units.
        """
        values = self.query.values
        farthest = float(np.abs(released).max())
        max_distance = self.query.max_abs_coordinate + farthest
        # The usual case of one part for all states needs no copies, which would cost more than the sums at a million
        # states.
        if len(self.parts) == 1 and len(self.members[0]) == len(values):
            law = self.parts[0].planar_law(max_distance)
            if law is not None:
                return law.log_densities(released, self.query.columns)
        logs = np.full(len(self.part_of), -inf)
        for index, (part, states) in enumerate(zip(self.parts, self.members, strict=True)):
            if len(states) == 0:
                continue
            # In the plane the norm is a maximum of a few linear forms, each of which takes one pass over the states.
            law = part.planar_law(max_distance)
            if law is not None:
                logs[states] = law.log_densities(released, self.query.columns.take(states, axis=1))
            else:
                logs[states] = part.unchecked_log_density(released, values[states])
            if self._missing_dimensions[index]:
                logs[states] -= self._missing_dimensions[index] * self._compute_log_flat_width(farthest)
        return logs

    def log_densities(self, outputs: npt.NDArray[Any], states: IntArray) -> FloatArray:
        """Return ``log p(z | s)`` of outputs ``(c, d)`` for states ``(k,)``, as ``(c, k)``.

        The densities are those of `log_density`.
        """
        logs = np.full((len(outputs), len(states)), -inf)
        part_of = self.part_of[states]
        max_distance = self.query.max_abs_coordinate + float(np.abs(outputs).max(initial=0.0))
        for index in np.unique(part_of[part_of >= 0]).tolist():
            in_part = np.flatnonzero(part_of == index)
            law = self.parts[index].planar_law(max_distance)
            if law is not None:
                logs[:, in_part] = law.log_densities(outputs, self.query.columns.take(states[in_part], axis=1))
            else:
                values = np.tile(self.query.values[states[in_part]], (len(outputs), 1))
                densities = self.parts[index].log_density(np.repeat(outputs, len(in_part), axis=0), values)
                logs[:, in_part] = densities.reshape(len(outputs), -1)
            if self._missing_dimensions[index]:
                widths = self._compute_log_flat_width(np.abs(outputs).max(axis=1, keepdims=True))
                logs[:, in_part] -= self._missing_dimensions[index] * widths
        return logs

    @cached_property
    def _missing_dimensions(self) -> list[int]:
        """For each part of real-valued noise, the number of dimensions missing to the widest part."""
        ranks = [0 if self.query.is_exact else part.rank for part in self.parts]
        return [max(ranks) - rank for rank in ranks]

    def _compute_log_flat_width(self, farthest: Any) -> Any:
        """Return the log of the width of rounding at a release with a given largest coordinate."""
        return np.log(_RELATIVE_FLAT_WIDTH * np.maximum(np.maximum(farthest, self.query.max_abs_coordinate), 1e-300))

    # ---- errors --------------------------------------------------------------------------------------------------

    def error_at(self, state: int) -> float:
        """Return the root mean square error of a release of a possible state. Private."""
        if not self.parts:
            return inf
        return sqrt(self.get_mechanism(state).squared_error_from(self.query.values[state])) * self.query.unit

    def mean_squared_error(self, weights: FloatArray) -> float:
        """Return the mean squared error of a release for state probabilities ``(N,)``.

        Only possible states count, in proportion to their probabilities.
        """
        return float(self._compute_part_probabilities(weights) @ np.array([part.squared_error for part in self.parts]))

    def expected_error(self, prior: Belief) -> float:
        """Return the root mean square error of a release, in the unit of the measurements.

        If the error differs between parts, it is averaged over the belief, restricted to the possible states. It is
        infinite if the step is withheld.
        """
        if not self.parts:
            return inf
        is_mixed = len(self.parts) > 1
        squared = self.mean_squared_error(prior.probabilities) if is_mixed else self.parts[0].squared_error
        return sqrt(squared) * self.query.unit

    def compare_with_knorm(self, prior: Belief) -> dict[str, Any]:
        """Return the record fields that compare optimal tables with K-norm noise, under a belief.

        Returns
        -------
        dict
            ``table_error_bound``: a proven lower bound on the expected error of any table, or None if a component has a
            fallback. ``knorm_estimate_error``: the expected error of the posterior mean of K-norm noise with the same
            budget, if each component is known. ``table_gain``: the relative reduction of that error by the tables.
            Empty with other noise.
        """
        if not self.knorm_squared_errors:
            return {}
        shares = self._compute_part_probabilities(prior.probabilities)
        bounds = [part.min_squared_error for part in self.parts]
        bound = None if None in bounds else sqrt(float(shares @ np.array(bounds)))
        knorm_error = sqrt(float(shares @ np.array(self.knorm_squared_errors)))
        table_error = self.expected_error(prior)
        return {
            "table_error_bound": bound,
            "knorm_estimate_error": knorm_error,
            "table_gain": 1.0 - table_error / knorm_error if knorm_error > 0 else 0.0,
        }

    def _compute_part_probabilities(self, weights: FloatArray) -> FloatArray:
        """Return the probability of each part. Equal weights if all masses underflow."""
        # Index 0 collects the impossible states, which have part -1.
        shares = np.bincount(self.part_of + 1, weights, len(self.parts) + 1)[1:]
        if not shares.sum() > 0:
            shares = np.bincount(self.part_of + 1, minlength=len(self.parts) + 1)[1:]
        return np.asarray(shares / shares.sum())

    # ---- components ----------------------------------------------------------------------------------------------

    @cached_property
    def component_sizes(self) -> IntArray:
        """The number of possible states of each component."""
        # A single component is the usual case, and counting it takes a quarter of the time.
        if self.components.max() == 0:
            return np.array([np.count_nonzero(self.components == 0)])
        return np.asarray(np.bincount(self.components + 1)[1:])

    @property
    def num_components(self) -> int:
        """The number of components of the possible states."""
        return len(self.component_sizes)

    def summarize_likeliest_component(self, probabilities: FloatArray, open_states: BoolArray) -> LikeliestComponent:
        """Return public fields about the component that a release most probably came from.

        Parameters
        ----------
        probabilities
            ``(N,)``: probabilities of the possible states after the release, each with the mass of the states for which
            it is the surrogate.
        open_states
            ``(N,)``: the states that are released exactly.
        """
        shares: FloatArray = _SINGLE_SHARE
        likeliest = 0
        if self.num_components > 1:
            shares = np.bincount(self.components + 1, probabilities)[1:].astype(np.float64)
            likeliest = int(np.argmax(shares))
        size = int(self.component_sizes[likeliest])
        # All states of a component have one part, so any of them has the component's noise. `members` is cached, and
        # saves a pass over the states in the usual case of one component.
        is_single = len(shares) == 1 and len(self.parts) == 1
        first = int(self.members[0][0] if is_single else np.argmax(self.components == likeliest))
        error = sqrt(self.get_mechanism(first).squared_error) * self.query.unit if self.parts else inf
        probability = min(1.0, float(shares[likeliest]))
        return LikeliestComponent(len(shares), size, probability, error, bool(self.parts and open_states[first]))


def spread_over_quantiles(masses: FloatArray, count: int) -> IntArray:
    """Return the positions of ``count`` evenly spaced quantiles of a distribution."""
    levels = (np.arange(count) + 0.5) / count
    return np.asarray(np.searchsorted(np.cumsum(masses), levels * masses.sum()).clip(max=len(masses) - 1))


def compute_table_posterior_error(noise: StepNoise, probabilities: FloatArray) -> float:
    """Compute the expected error of the posterior mean after a release by tables.

    The sum runs over all outputs, so the result is exact up to rounding.

    Parameters
    ----------
    noise
        A table for each component. A state that is released exactly is known afterwards.
    probabilities
        ``(N,)``: probabilities of the states before the release. Only possible states count, in proportion.
    """
    # If states of two components share a location, the component of a release there counts as known.
    total = expected = 0.0
    for states, part in zip(noise.members, noise.parts, strict=True):
        total += float(probabilities[states].sum())
        if part.table is None:
            continue
        places = noise.query.values[states]
        joint = probabilities[states][:, None] * np.exp(part.log_density(part.table.points[None], places[:, None]))
        masses = joint.sum(axis=0)
        means = joint.T @ places / np.where(masses > 0, masses, 1.0)[:, None]
        distances = np.sqrt(np.square(places[:, None] - means[None]).sum(axis=2))
        expected += float((joint * distances).sum())
    return expected / total if total > 0 else expected
