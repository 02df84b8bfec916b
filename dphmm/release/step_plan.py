"""Plans of release steps: all that determines a release except the random sample.

A plan is a function of public information only, and therefore public itself. `Planner` follows Algorithm 2: constraint
set, restricted and repaired policy graph, noise.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from secrets import randbits
from typing import Any, Literal

import numpy as np

from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.caching import BoundedCache
from dphmm.errors import InvalidInputError, StateError
from dphmm.events.output_bounds import Outputs, PartedOutputs, TableOutputs, make_outputs
from dphmm.mechanisms.registry import TABLE_MECHANISMS, get_noise_body
from dphmm.model.belief import Belief
from dphmm.policy.graph import PolicyGraph
from dphmm.policy.protection_degrees import Protection
from dphmm.policy.repair import Protector
from dphmm.policy.repair_effect import RepairLog
from dphmm.release.query import Query
from dphmm.release.settings import Settings
from dphmm.release.step_noise import LikeliestComponent, StepNoise
from dphmm.release.step_noise_builder import NoiseBuilder, with_hop_distances
from dphmm.tables.values import shorten

# Why a timestep is withheld: the estimate is within the target error, the budget of a window would not last, or event
# caps leave no budget.
Reason = Literal["", "target", "budget", "caps"]

Edges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class StepPlan:
    """The constraint set, the repaired graph and the noise of one step.

    A plan is a function of public information only.

    Parameters
    ----------
    prior
        Belief before the release.
    constraint
        Constraint set ``C``, ``(N,)``.
    protection
        Repaired graph and its bodies. The body is a point if the only possible state is released exactly.
    noise
        Distribution of the release. It has no parts if the timestep is withheld.
    extra_edges
        Edges that were added before the repair. They count as added edges.
    repair_prior
        Belief from which the repair or the tables were chosen; None if only its support was used.
    repair_id
        Identifier of the constraint set and the repair. Plans with equal identifiers differ only in belief, budget and
        time.
    num_possible
        Size of ``C``.
    min_degree_of_protection
        Smallest degree of protection over the protected states of ``C``; 1 if there are none.
    hull_volume
        Volume of the sensitivity hull.
    epsilon
        Budget; 0 if the timestep is withheld.
    steps
        Number of timesteps since the previous release.
    version
        Version of the `FilterState` for which the plan was made. The plan is stale after the next release.
    max_event_probabilities
        For each event cap, the largest probability of its event after any of the outputs that were checked.
    reason
        Why the timestep is withheld; empty if it is not.
    """

    prior: Belief = field(repr=False)
    constraint: BoolArray
    protection: Protection
    noise: StepNoise = field(repr=False)
    extra_edges: Edges = ()
    repair_prior: Belief | None = field(default=None, repr=False)
    repair_id: int = field(default_factory=lambda: randbits(62))
    num_possible: int = 0
    min_degree_of_protection: int = 1
    hull_volume: float = 0.0
    epsilon: float = 0.0
    steps: int = 0
    version: int = -1
    max_event_probabilities: tuple[float, ...] = ()
    reason: Reason = ""

    @property
    def withheld(self) -> bool:
        """Whether the timestep is withheld."""
        return self.reason != ""

    @property
    def constrained_dp_factor(self) -> float:
        """The factor of Theorem 6.3: ``max ‖f_j - f_k‖_K`` over possible states.

        It is infinite if the possible states belong to several components.
        """
        return self.protection.diameter

    @cached_property
    def is_singleton(self) -> bool:
        """Whether only one state is possible, and it is not open.

        Unless the timestep is withheld, the state is released exactly.
        """
        return self.num_possible == 1 and not self.protection.open[self.constraint].any()

    def is_valid_for(self, prior: Belief, constraint: BoolArray, extra_edges: Edges) -> bool:
        """Return whether the repair and the noise of this plan are those of another belief.

        Parameters
        ----------
        prior
            The belief.
        constraint
            Its constraint set, ``(N,)``.
        extra_edges
            Edges to add before the repair.

        Returns
        -------
        bool
            Whether the plan can be reused.
        """
        if self.repair_prior is not None and not np.array_equal(self.repair_prior.log_mass, prior.log_mass):
            return False
        return self.extra_edges == extra_edges and np.array_equal(self.constraint, constraint)

    def repair_is_valid_for(self, constraint: BoolArray, extra_edges: Edges) -> bool:
        """Return whether the repair is that of every belief with a constraint set.

        This is the case if the repair added no edges.

        Parameters
        ----------
        constraint
            The constraint set, ``(N,)``.
        extra_edges
            Edges to add before the repair.

        Returns
        -------
        bool
            Whether the repair can be reused.
        """
        is_unrepaired = len(self.protection.added) == len(extra_edges)
        return is_unrepaired and self.extra_edges == extra_edges and np.array_equal(self.constraint, constraint)


def _copy_plan(plan: StepPlan, **changes: Any) -> StepPlan:
    """Return a copy of a plan with another belief, budget or timestep."""
    # Every step makes two copies, and `dataclasses.replace` takes longer. The cached `is_singleton` is that of the
    # constraint set and the repair, which a copy keeps.
    changed = copy(plan)
    vars(changed).update(changes)
    return changed


def as_state(state: object, size: int) -> int:
    """Return a state as an int.

    Raises
    ------
    StateError
        If it is not an integer from 0 to ``size - 1``.
    """
    number = state.item() if isinstance(state, np.generic | np.ndarray) and state.size == 1 else state
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < size:
        raise StateError(f"state must be an integer from 0 to {size - 1}, got {_format_value(state)}")
    return number


def check_steps(steps: object) -> None:
    """Check that a number of timesteps is a positive integer.

    Raises
    ------
    InvalidInputError
        If it is not.
    """
    if isinstance(steps, bool | np.timedelta64) or not isinstance(steps, int | np.integer) or steps < 1:
        raise InvalidInputError(f"steps must be a positive integer, got {_format_value(steps)}")


def _format_value(value: object) -> str:
    quoted = shorten(value)
    return quoted if isinstance(value, str) else quoted.strip("'")


# A schedule tries eleven budgets at every step and tries them again at the next one.
_NOISE_CACHE_SIZE = 16

# With several parts no closed form bounds the likelihood ratio over all outputs. In addition to the bound of each part,
# outputs at sixteen states that are evenly spread over the constraint set are checked.
_NUM_CHECKED_STATES = 16


class Planner:
    """A planner of releases, which computes the plan of each belief.

    It reuses the last repair if that is still valid. Its `repairs` contain the repair that raised the error most,
    except with tables, of which the error does not follow from a hull.

    Parameters
    ----------
    settings, policy
        Arguments of `dphmm.Releaser`.
    query
        Values that are released.
    """

    def __init__(self, settings: Settings, policy: PolicyGraph, query: Query) -> None:
        self._settings = settings
        self._policy = policy
        self.query = query
        # The surrogate of an impossible state is the nearest possible state by these measurements. Queries about the
        # same user share them.
        self.surrogate_measurements = query.measurements
        self._uses_tables = settings.mechanism in TABLE_MECHANISMS
        self._protect = Protector(
            query.measurements,
            settings.repair,
            settings.repair_objective,
            get_noise_body(settings.mechanism),
            settings.membership,
            settings.repair_max_work,
            settings.noise_scope,
        )
        self._builder = NoiseBuilder(settings, query)
        # Shared by all copies: the largest effect among the plans of all users.
        self.repairs = RepairLog()
        self._last: StepPlan | None = None
        self._last_withheld: StepPlan | None = None
        # Repair identifiers are random. A counter would repeat in a forked process or in one that receives a pickled
        # plan, and a plan would then get the noise of another repair.
        self._noises: BoundedCache[tuple[int, float], StepNoise] = BoundedCache(_NOISE_CACHE_SIZE)
        self._outputs: BoundedCache[int, Outputs] = BoundedCache(1)

    def __copy__(self) -> Planner:
        planner = Planner.__new__(Planner)
        planner.__dict__.update(self.__dict__)
        # A shared cache would let the planners of many users evict each other's noise.
        planner._noises = copy(self._noises)
        planner._outputs = copy(self._outputs)
        return planner

    def clear(self) -> None:
        """Forget the last plans and all noise. The next step is planned from scratch."""
        self._last = None
        self._last_withheld = None
        self._noises.clear()
        self._outputs.clear()
        self._builder.clear()

    def build_plan(self, prior: Belief, extra_edges: Edges = ()) -> StepPlan:
        """Return the plan of a belief, without a budget and therefore without noise.

        Parameters
        ----------
        prior
            The belief.
        extra_edges
            Edges ``(i, j)``, ``i < j``, that are added before the repair.

        Raises
        ------
        SingletonConstraintError
            If only one state is possible and ``allow_singleton`` is False.
        """
        delta = self._settings.delta
        constraint = prior.support if delta is None else prior.delta_location_set(delta)
        last = self._last
        if last is not None and last.is_valid_for(prior, constraint, extra_edges):
            return _copy_plan(last, prior=prior)
        if self._uses_tables and last is not None and last.repair_is_valid_for(constraint, extra_edges):
            # Tables depend on the prior, so the noise cached under the old identifier is not that of this belief.
            self._last = plan = _copy_plan(last, prior=prior, repair_prior=prior, repair_id=randbits(62))
            return plan
        protection = self._repair(prior, constraint, extra_edges)
        # The best partners depend on component probabilities, so such a plan is valid for this prior only.
        depends_on_prior = bool(protection.added) and self._settings.noise_scope == "component"
        if extra_edges:
            protection = replace(protection, added=(*extra_edges, *protection.added))
        repair_prior = prior if depends_on_prior or self._uses_tables else None
        self._last = plan = self._create_plan(prior, constraint, protection, extra_edges, repair_prior)
        return plan

    def with_epsilon(self, plan: StepPlan, epsilon: float, steps: int = 0, version: int = -1) -> StepPlan:
        """Return a plan with the noise of a budget, for a given step and filter version."""
        noise = self.build_noise(plan, epsilon)
        return _copy_plan(plan, noise=noise, epsilon=epsilon, steps=steps, version=version)

    def withhold(
        self, prior: Belief, reason: Reason, steps: int, version: int, max_event_probabilities: tuple[float, ...] = ()
    ) -> StepPlan:
        """Return the plan of a withheld timestep. Its constraint set is the whole support."""
        # Without noise, everything but the belief follows from the support, which is usually that of the timestep
        # before: a schedule withholds most timesteps.
        plan = self._last_withheld
        if plan is None or not np.array_equal(plan.constraint, prior.support):
            protection = self._protect.build_noiseless_protection(self._policy.restrict(prior.support))
            plan = self._last_withheld = self._create_plan(prior, prior.support, protection)
        return _copy_plan(
            plan,
            prior=prior,
            steps=steps,
            version=version,
            max_event_probabilities=max_event_probabilities,
            reason=reason,
        )

    def build_noise(self, plan: StepPlan, epsilon: float) -> StepNoise:
        """Return the noise of a plan.

        It is in lattice units for ``"lattice"``, otherwise in the unit of the measurements.
        """
        key = plan.repair_id, epsilon
        return self._noises.get_or_make(key, lambda: self._builder.build(plan.protection, epsilon, plan.repair_prior))

    def build_outputs(self, plan: StepPlan, epsilon: float) -> Outputs:
        """Return all outputs of a plan's noise, for any budget.

        Impossible states are released as their surrogates.

        Parameters
        ----------
        plan
            The plan.
        epsilon
            Any budget. The shape of the noise does not depend on it.
        """
        return self._outputs.get_or_make(plan.repair_id, lambda: self._create_outputs(plan, epsilon))

    def map_to_surrogates(self, states: IntArray, constraint: BoolArray) -> IntArray:
        """Return the possible state released for each of `states`: itself, or its surrogate."""
        released = states.copy()
        is_outside = ~constraint[states]
        if is_outside.any():
            released[is_outside] = self.surrogate_measurements.surrogates(states[is_outside], constraint)
        return released

    def summarize_likeliest_component(self, plan: StepPlan, posterior: Belief) -> LikeliestComponent:
        """Return public fields of a record about the component that a release came from.

        Parameters
        ----------
        plan
            Plan of the release.
        posterior
            Belief after it.
        """
        probabilities = posterior.probabilities
        if plan.noise.num_components > 1:
            outside = np.flatnonzero(posterior.support & ~plan.constraint)
            if len(outside):  # assign the mass of impossible states to their surrogates
                probabilities = probabilities.copy()
                np.add.at(probabilities, self.map_to_surrogates(outside, plan.constraint), probabilities[outside])
        return plan.noise.summarize_likeliest_component(probabilities, plan.protection.graph.open)

    def _create_plan(
        self,
        prior: Belief,
        constraint: BoolArray,
        protection: Protection,
        extra_edges: Edges = (),
        repair_prior: Belief | None = None,
    ) -> StepPlan:
        graph = protection.graph
        degrees = protection.degrees[constraint & ~graph.open if graph.has_open else constraint]
        return StepPlan(
            prior,
            constraint,
            protection,
            StepNoise.empty(self.query, protection),
            extra_edges,
            repair_prior,
            num_possible=int(np.count_nonzero(constraint)),
            min_degree_of_protection=int(degrees.min()) if len(degrees) else 1,
            hull_volume=self.query.compute_volume(protection),
        )

    def _repair(self, prior: Belief, constraint: BoolArray, extra_edges: Edges) -> Protection:
        settings = self._settings
        if settings.allow_singleton and np.count_nonzero(constraint) == 1 and not self._policy.open[constraint].any():
            return self._protect.build_noiseless_protection(self._policy.restrict(constraint))
        weights = prior.probabilities if settings.noise_scope == "component" else None
        if weights is not None and not weights[constraint].any():
            weights = None  # all masses underflow: weight the possible states equally
        protection = self._protect(self._policy.with_edges(extra_edges), constraint, weights)
        if self._uses_tables:
            return with_hop_distances(protection)
        self.repairs.add(protection.effect)
        return protection

    def _create_outputs(self, plan: StepPlan, epsilon: float) -> Outputs:
        values = self.query.values
        noise = self.build_noise(plan, epsilon)
        released_as = self.map_to_surrogates(np.arange(len(values)), plan.constraint)
        if noise.is_tabular:
            return TableOutputs(
                len(values), lambda budget: _build_log_table(self.build_noise(plan, budget))[released_as]
            )
        part_of = noise.part_of[released_as]
        parts = []
        for index, mechanism in enumerate(noise.parts):
            states = np.flatnonzero(part_of == index)
            if len(states):
                parts.append((make_outputs(mechanism, values[released_as[states]]), states))
        if len(parts) == 1:
            return parts[0][0]
        # Outputs of several parts have no closed form: check a fixed sample of them in addition.
        possible = np.flatnonzero(plan.constraint)
        sample = np.linspace(0, len(possible) - 1, _NUM_CHECKED_STATES).astype(np.int64)
        checked = np.unique(possible[sample])
        position = np.full(len(values), -1)
        position[possible] = np.arange(len(possible))

        def compute_log_densities(budget: float) -> FloatArray:
            return self.build_noise(plan, budget).log_densities(values[checked], possible)[:, position[released_as]]

        return PartedOutputs(parts, compute_log_densities)


def _build_log_table(noise: StepNoise) -> FloatArray:
    """Return the log probability of every output of a step's tables, ``(N, Z)``.

    It is minus infinity for impossible states.
    """
    values = noise.query.values
    is_possible = noise.part_of >= 0
    points, indices = np.unique(values[is_possible], axis=0, return_inverse=True)
    logs = np.full((len(values), len(points)), -np.inf)
    column = np.zeros(len(values), dtype=np.int64)
    column[is_possible] = np.asarray(indices).ravel()
    for mechanism, states in zip(noise.parts, noise.members, strict=True):
        if mechanism.table is not None:
            columns = np.unique(column[states])  # the outputs of a table are the locations of its states
            densities = mechanism.log_density(points[columns][np.newaxis], values[states][:, np.newaxis])
            logs[np.ix_(states, columns)] = densities
        else:
            logs[states, column[states]] = 0.0  # released exactly
    return logs
