"""The release engine: Algorithm 2, for one query or several at a timestep (Theorem 7.1).

Three words for time are used throughout this package. A *step* is an index of the model's time grid, relative to the
first release; ``steps`` is the number of timesteps since the previous release. A *slot* is the public absolute index of
a timestep, counted from 1970. A *time* is a timestamp.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import cache, wraps
from math import nan
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack, cast

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, as_floats, check_budget, hash_content
from dphmm.errors import GuaranteeError, InvalidInputError, StateError
from dphmm.events.cap_budget import CapTracker
from dphmm.geometry.measurements import Measurements
from dphmm.mechanisms.registry import MECHANISMS, MechanismLike, translate_mechanism_errors
from dphmm.model.belief import Belief
from dphmm.model.model import MarkovModel
from dphmm.model.point_estimate import Inference
from dphmm.policy.graph import PolicyGraph, PolicyLike, as_policy, get_state_names
from dphmm.random import Rng, as_random_source
from dphmm.release.budget_schedule import Scheduler, max_window_steps
from dphmm.release.caps import EventCaps
from dphmm.release.checkpoint import EngineState
from dphmm.release.joint_queries import compute_shared_edges, split_epsilon
from dphmm.release.ledger import Account, Ledger
from dphmm.release.query import Query
from dphmm.release.record import PrivateDiagnostics, ReleaseRecord
from dphmm.release.settings import (
    DEFAULT_DAILY_EPSILON,
    GRAPH_POLICY_PREFIX,
    SETTING_NAMES,
    DayKeywords,
    NoiseKeywords,
    QueryKeywords,
    Schedule,
    Settings,
)
from dphmm.release.soundness import SoundnessCheck
from dphmm.release.state_between_steps import FilterState, Spending
from dphmm.release.step_plan import Planner, Reason, StepPlan, as_state, check_steps
from dphmm.tables.values import shorten, shorten_repr
from dphmm.validation import check_arguments

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def _make_atomic(
    method: Callable[Concatenate[Releaser, Parameters], Result],
) -> Callable[Concatenate[Releaser, Parameters], Result]:
    """Return a method of an engine that no method of another thread interrupts."""

    @wraps(method)
    def call(engine: Releaser, /, *arguments: Parameters.args, **keywords: Parameters.kwargs) -> Result:
        # `lock_engines` would do, but a generator takes four times as long, and a step enters three methods.
        lock = engine._acquire_lock()
        try:
            return method(engine, *arguments, **keywords)
        finally:
            lock.release()

    return call


def share_filter_state(engines: Sequence[Releaser]) -> None:
    """Let engines about one user share the belief and the surrogates of the first.

    Raises
    ------
    InvalidInputError
        If the engines differ in model or policy.
    """
    first = engines[0]
    for engine in engines[1:]:
        if (engine.model.content_hash, engine.policy.content_hash) != (
            first.model.content_hash,
            first.policy.content_hash,
        ):
            raise InvalidInputError("queries about the same user must share one model and one policy")
        engine.filter_state = first.filter_state
        engine.planner.surrogate_measurements = first.planner.surrogate_measurements


def prepare_together(
    engines: Sequence[Releaser], epsilon: float | Sequence[float] | None = None, steps: int = 1
) -> list[StepPlan]:
    """Plan one release of each query at one timestep from public information only.

    The engines do not change.

    All queries are answered under one constraint set and one repaired graph. They are those of the first query, with
    edges added until every possible state has a partner that no query distinguishes it from. The joint privacy loss
    of all answers on these edges is at most the sum of the budgets. Therefore no state is exposed in the joint answer
    while it is protected in each single one.

    Parameters and errors are those of `Releaser.release_together`.
    """
    with engines[0].lock_engines():
        first = engines[0]
        for engine in engines:
            is_alike = engine.settings.delta == first.settings.delta
            is_alike = is_alike and engine.settings.allow_singleton == first.settings.allow_singleton
            if engine.filter_state is not first.filter_state or not is_alike:
                raise InvalidInputError(
                    "queries answered together must share the user, delta and allow_singleton; create the other "
                    "engines with 'for_query'"
                )
        if len(engines) > 1 and any(engine.settings.schedule for engine in engines):
            raise InvalidInputError(
                "a schedule cannot be combined with queries answered together: it follows a single query; release the "
                "queries one after another"
            )
        if any(
            (engine.settings.caps, engine.settings.event_cap_priors)
            != (first.settings.caps, first.settings.event_cap_priors)
            for engine in engines
        ):
            raise InvalidInputError("queries answered together must have the same event caps; set them on every query")
        if len(set(engines)) < len(engines):
            raise InvalidInputError("queries answered together must be distinct; pass each engine once")
        budgets = split_epsilon(epsilon, [engine.settings.epsilon for engine in engines])
        prior = first.predict(steps)
        edges = compute_shared_edges(first.planner, first.planner.build_plan(prior), budgets[0])
        plans = [first.prepare(budgets[0], steps, prior, first.planner.build_plan(prior, edges))]
        for engine, budget in zip(engines[1:], budgets[1:], strict=True):
            plan = engine.planner.build_plan(prior, edges)
            plans.append(engine.planner.with_epsilon(plan, budget, 0, engine.filter_state.version))
        return plans


def draw_together(engines: Sequence[Releaser], plans: Sequence[StepPlan], state: int) -> Ledger:
    """Sample the plans of `prepare_together` after checking all of them.

    The budget that event caps allow for a later query depends on the samples before it, which are public. The plan of
    such a query is made and checked again.
    """
    with engines[0].lock_engines():
        released_states = [engine._validate_draw(plan, state) for engine, plan in zip(engines, plans, strict=True)]
        records: list[ReleaseRecord] = []
        for engine, plan, released_state in zip(engines, plans, released_states, strict=True):
            if records:
                prior = engine.belief
                assert prior is not None, "a draw leaves a belief"
                if engine.event_caps:
                    capped = engine.prepare(plan.epsilon, 0, prior, plan)
                    # The constraint set is that of the belief before the first sample, and it is verified against that
                    # belief. Under the belief between two samples, a set of mass 1 - delta may have a smaller mass.
                    released_state = engine._validate_draw(replace(capped, prior=plan.prior), state)
                    plan = capped
                else:
                    # Constraint set, graph and noise were verified above, before the first sample. Only the belief
                    # that the update starts from has changed.
                    plan = replace(plan, prior=prior)
            records.append(engine._draw_validated(plan, released_state))
        return Ledger.from_records(records)


@check_arguments
class Releaser:
    """An engine that releases a user's measurements under a policy graph (Algorithm 2).

    Each step predicts the belief with the model. Its support (or δ-location set) is the constraint set ``C``. The
    policy graph is restricted to ``C`` and repaired. Noise is sampled in the shape of its sensitivity hull. Bayes'
    rule updates the belief (Equation 2), which is therefore ``p(s_t | z_1..t)`` of an adversary who knows the model,
    the policy and the mechanism.

    This constructor takes a policy graph and measurements of any type. To release the locations of a model that
    contains its states, describe the release in a `ReleaseSettings` and call its ``engine(model)``.

    Parameters
    ----------
    model
        The public Markov model over ``N`` states.
    f
        The measurement of every state, ``(N, d)``. For locations, these are kilometres in a plane.
    policy
        The policy graph over the same states.
    epsilon
        Budget of a step, unless `release` is called with another.
    mechanism
        Name of the mechanism; see `ReleaseSettings`. Laplace and planar Laplace noise is shaped by the smallest
        cross-polytope or disc around the sensitivity hull. All mechanisms but ``"lattice"`` sample real-valued noise.
        Their guarantee is limited by floating-point arithmetic; see `dphmm.mechanisms.NormMechanism`.
    rng
        Source of randomness. Defaults to the operating system's. A seed or generator makes releases reproducible and
        provides no privacy.
    **settings
        Any other setting of a `ReleaseSettings`, such as ``noise_scope`` or ``caps``. With ``"lattice"``, ``spacing``
        is the distance of neighbouring points of the published lattice in the unit of ``f``: for kilometres, 0.001 is
        one metre. Measurements are rounded to the nearest lattice point, and noise is shaped for the rounded ones.

    Raises
    ------
    StateError, PolicyError
        If model, policy and measurements differ in the number of states.
    CoordinateError
        If measurements are not finite, or rounding to the lattice would make different measurements equal.
    ConfigurationError, BudgetError
        If a setting is invalid; see `ReleaseSettings`.

    Notes
    -----
    A true state outside ``C`` is replaced by its surrogate, the nearest state of ``C``. No record states whether this
    happened, because it depends on the true state. The update of the belief takes it into account, as an adversary
    would.

    The prior of the first release is the model's initial distribution.

    Several threads can use an engine: its methods wait for each other, and every release is accounted for. Use a
    separate engine for each user, see `spawn`.

    An engine can be pickled and copied with `copy.deepcopy`. The copy continues from the same belief and the same
    spending, without cached noise and without the last release, which `private_diagnostics` describes. If the engine
    and its copy both continue, each counts its own releases only; use a `Session` if that can happen.

    Examples
    --------
    >>> f = [[1, 0], [2, 1], [3, 0], [0, 1], [4, 2], [1, 2]]
    >>> model = MarkovModel(np.full((6, 6), 1 / 6), np.full(6, 1 / 6))
    >>> releaser = Releaser(model, f, PolicyGraph.categorical([0, 1, 1, 2, 2, 2]), epsilon=1.0, rng=0)
    >>> record = releaser.release(4)
    >>> record.num_possible_states, record.min_degree_of_protection, record.hull_volume
    (6, 3, 11.0)
    """

    def __init__(
        self,
        model: MarkovModel,
        f: npt.ArrayLike | Measurements,
        policy: PolicyLike,
        epsilon: float,
        mechanism: MechanismLike = "lattice",
        *,
        rng: Rng = None,
        **settings: Unpack[NoiseKeywords],
    ) -> None:
        chosen = {"policy": GRAPH_POLICY_PREFIX, "epsilon": epsilon, "mechanism": mechanism, **settings}
        graph = as_policy(policy, model.size, get_state_names(model.states))
        self._initialize(ReleaseSettings.from_dict(chosen), model, graph.check_measurements(f), graph, rng)

    def _initialize(
        self,
        settings: ReleaseSettings,
        model: MarkovModel,
        measurements: Measurements,
        policy: PolicyGraph,
        rng: Rng,
        cell: float = 0.0,
    ) -> None:
        if model.size != policy.size:
            raise StateError(
                f"model and policy must have the same number of states, got {model.size} and {policy.size}"
            )
        self.query = Query(settings, measurements)
        if settings.policy == GRAPH_POLICY_PREFIX:
            graph_hash = hash_content(policy.content_hash, measurements.points)
            settings = replace(settings, policy=GRAPH_POLICY_PREFIX + graph_hash)
            self.query.check_distinct()
        self.settings = settings
        self.model = model
        self.policy = policy
        self.cell = cell
        self.measurements = self.query.measurements
        # query.values are the measurements; with exact noise, they are rounded to the published lattice.
        self.soundness = SoundnessCheck(
            policy, self.query.values, settings.delta, settings.allow_singleton, settings.mechanism
        )
        self.event_caps = EventCaps(settings, model)
        self.planner = Planner(settings, policy, self.query)
        self.source = as_random_source(rng)
        self._scheduler = Scheduler(settings.schedule, model, self.measurements.points, cell)
        self.filter_state = FilterState()
        self.restart()

    def __getstate__(self) -> dict[str, Any]:
        # The last release includes the state that was released, which is private.
        return {**vars(self), "_last": None}

    @check_arguments
    def spawn(self, rng: Rng = None) -> Releaser:
        """Create an engine with the same settings and model, and without releases.

        It reuses this engine's last plan.

        Parameters
        ----------
        rng
            Source of randomness. Defaults to the one of this engine.

        Returns
        -------
        Releaser
            The new engine.
        """
        engine = copy(self)
        if rng is not None:
            engine.source = as_random_source(rng)
        engine.planner = copy(self.planner)
        engine.filter_state = FilterState()
        engine.restart()
        return engine

    @check_arguments
    def for_query(self, f: npt.ArrayLike | Measurements, **changes: Unpack[QueryKeywords]) -> Releaser:
        """Create an engine for another query about the same user, for use with `release_together`.

        Both engines share the model, the policy, the randomness and the belief. A release of either updates that
        belief. A true state that is not possible has the same surrogate in both: the nearest state by this engine's
        measurements.

        Parameters
        ----------
        f
            Measurement of the other query in every state, ``(N, d)``.
        **changes
            Settings that differ from this engine's, such as ``epsilon``, ``mechanism``, ``spacing`` or ``repair``.

        Returns
        -------
        Releaser
            The engine of the other query.

        Raises
        ------
        PolicyError, CoordinateError, ConfigurationError, BudgetError
            If `Releaser` would raise them for these arguments.
        """
        unchanged = {name: getattr(self.settings, name) for name in SETTING_NAMES}
        settings = ReleaseSettings.from_dict({**unchanged, **changes, "policy": GRAPH_POLICY_PREFIX, "layers": ()})
        other = type(self).__new__(type(self))
        other._initialize(settings, self.model, self.policy.check_measurements(f), self.policy, self.source)
        share_filter_state([self, other])
        return other

    @_make_atomic
    def restart(self, first: int | None = None) -> None:
        """Reset the engine. The next release is the first one of a new user or session.

        Parameters
        ----------
        first
            Slot of the next release, which is public. Defaults to the slot of the previous first release.
        """
        if first is not None:
            self.filter_state.first = first
        self.resume(None, 0)

    @_make_atomic
    def resume(
        self,
        belief: Belief | None,
        count: int,
        cap_tracker: CapTracker | None = None,
        account: Account | None = None,
        slot: int | None = None,
    ) -> None:
        """Continue from the public belief after ``count`` releases.

        Parameters
        ----------
        belief
            Public belief after the last release; None if ``count`` is 0.
        count
            Number of releases so far.
        cap_tracker
            State of the event caps after them.
        account
            Epsilon spent on the user. If it is None and ``count`` is positive, records do not state the totals.
        slot
            Slot of the last release. A time-dependent model needs it.
        """
        self.filter_state.advance(belief, count, cap_tracker, slot)
        self.filter_state.account = account if count or account is not None else Account()
        self._last: tuple[ReleaseRecord, StepPlan, int] | None = None

    @contextmanager
    def lock_engines(self) -> Iterator[None]:
        """Return a context in which no other thread uses the engines of this user.

        Every method that reads or changes the belief is exclusive by itself. Several calls that belong together, such
        as `prepare` and `draw`, need this context: otherwise a release of another thread makes the plan stale.

        Yields
        ------
        None
            Once, while the lock is held. The same thread can enter the context again.
        """
        lock = self._acquire_lock()
        try:
            yield
        finally:
            lock.release()

    def _acquire_lock(self) -> Any:
        """Acquire the lock of the filter state, and return it."""
        while True:
            lock = self.filter_state.lock
            lock.acquire()
            if self.filter_state.lock is lock:  # no thread joined the engine to another user's meanwhile
                return lock
            lock.release()

    @property
    def belief(self) -> Belief | None:
        """The public belief after the last release. None before the first.

        All queries about the user share it.
        """
        return self.filter_state.belief

    @_make_atomic
    def checkpoint(self) -> bytes:
        """Return the state between two releases as bytes, which `restore` reads in any process.

        They contain the public belief, the epsilon spent, the slots, the state of event caps, and hashes of the
        settings, the model, the policy and the measurements. They contain neither a true state nor the source of
        randomness. `dphmm.release.checkpoint` documents the format.

        Returns
        -------
        bytes
            The checkpoint. Its size is 8 bytes for each state of the model's chain, and 20 for each release in the
            windows of records and schedules; event caps add a distribution for each progress of their events.

        Notes
        -----
        If two engines continue from one checkpoint, the releases of neither are in the account of the other. A
        `Session` prevents this: its account is in a file that all processes share.
        """
        state = self.filter_state
        tracker = state.cap_tracker
        account = state.account
        steps = max_window_steps([self.settings.schedule], self.model.step_seconds)
        return EngineState(
            terms=self._get_terms(),
            belief=state.belief,
            count=state.count,
            first=state.first,
            slot=state.slot,
            account=None if account is None else account.to_dict(steps),
            caps=tracker.state if tracker is not None and state.count else None,
        ).to_bytes()

    @_make_atomic
    @check_arguments
    def restore(self, checkpoint: bytes) -> None:
        """Continue from a `checkpoint` of an engine with the same settings, model and policy.

        All queries about the user continue from it. The engine keeps its source of randomness.

        Parameters
        ----------
        checkpoint
            The bytes that `checkpoint` returned.

        Raises
        ------
        InvalidInputError
            If the bytes are not a checkpoint, are damaged, or belong to an engine with other settings, another model,
            another policy or another type of randomness. The engine stays unchanged.
        """
        state = EngineState.from_bytes(checkpoint)
        terms = self._get_terms()
        for name in sorted({*terms, *state.terms}):
            if terms.get(name) != state.terms.get(name):
                raise InvalidInputError(
                    f"checkpoint must be of an engine with the same {name}, {shorten(terms.get(name))}, got "
                    f"{shorten(state.terms.get(name))}"
                )
        belief = state.belief
        if belief is not None and len(belief.chain_logs) != self.model.chain_size:
            raise InvalidInputError(
                f"checkpoint must have a belief of {self.model.chain_size} states, got {len(belief.chain_logs)}"
            )
        account = None if state.account is None else Account.from_dict(state.account)
        window = max_window_steps([self.settings.schedule], self.model.step_seconds)
        if account is not None and account.max_window_steps is not None and account.max_window_steps < window:
            raise InvalidInputError(
                f"checkpoint must contain the releases of {window} steps, got {account.max_window_steps}"
            )
        tracker = self.event_caps.resume_tracker(state.first, state.count, state.caps)
        # The belief in bytes has no outside states. A prediction by 0 steps adds those of the model.
        restored = None if belief is None else belief.predict(self.model, 0, state.slot)
        self.filter_state.first = state.first
        self.resume(restored, state.count, tracker, account, state.slot)

    def _get_terms(self) -> dict[str, str]:
        """Return what determines the guarantee, as hashes."""
        return {
            "settings": self.settings.content_hash,
            "model": self.model.content_hash,
            "policy": self.policy.content_hash,
            "measurements": hash_content(self.query.values),
            "randomness": "system" if self.is_private else "seeded",
        }

    @property
    def last(self) -> tuple[ReleaseRecord, StepPlan] | None:
        """The last record and its plan, both public. None before the first release."""
        last = self._last
        return None if last is None else last[:2]

    @property
    def first_step_is_user_independent(self) -> bool:
        """Whether the plan of a first release is independent of the user and the slot."""
        return self.model.time_classes is None and not self.event_caps.depends_on_date

    @property
    def is_private(self) -> bool:
        """Whether noise is sampled from `os.urandom`. Seeded noise provides no privacy."""
        return self.source.bytes is os.urandom

    @property
    def has_copied_noise(self) -> bool:
        """Whether the engine was copied or unpickled with a seeded generator.

        The engine that it was copied from then samples the same noise. Noise of the operating system is never copied.
        """
        return self.source.is_copy

    @_make_atomic
    def predict(self, steps: int = 1) -> Belief:
        """Compute the prior of the next release, ``p(s_t | z_1..t-1)``.

        Parameters
        ----------
        steps
            Number of timesteps since the last release.

        Returns
        -------
        Belief
            The prior. Before the first release it is the model's initial distribution.
        """
        return self.filter_state.predict(self.model, steps)

    @check_arguments
    @_make_atomic
    def build_plan(self, prior: Belief, epsilon: float, steps: int = 0, reason: Reason = "") -> StepPlan:
        """Plan a timestep from a given prior and budget.

        Neither the schedule nor the event caps change the budget. The plan does not depend on the true state.

        Parameters
        ----------
        prior
            Belief before the release.
        epsilon
            Budget, positive. It has no effect on a withheld timestep.
        steps
            Number of timesteps since the last release.
        reason
            Why the timestep is withheld; empty if it is not. The belief advances by prediction only if it is.

        Returns
        -------
        StepPlan
            The constraint set, the repaired graph and the noise.

        Raises
        ------
        SingletonConstraintError
            If only one state is possible and ``allow_singleton`` is False.
        """
        version = self.filter_state.version
        if reason:
            return self.planner.withhold(prior, reason, steps, version)
        return self.planner.with_epsilon(self.planner.build_plan(prior), epsilon, steps, version)

    @_make_atomic
    def release(self, state: int, epsilon: float | None = None, steps: int = 1) -> ReleaseRecord:
        """Release the measurement of the user's true state.

        Parameters
        ----------
        state
            The true state.
        epsilon
            Budget of this step. Defaults to the engine's.
        steps
            Number of timesteps since the last release, withheld ones included, at least 1. The first release ignores
            it.

        Returns
        -------
        ReleaseRecord
            The public record.

        Raises
        ------
        StateError
            If the state does not exist.
        BudgetError
            If epsilon is not positive and finite.
        SingletonConstraintError
            If only one state is possible and ``allow_singleton`` is False.
        """
        check_steps(steps)
        return self.draw(self.prepare(epsilon, steps), state)

    @_make_atomic
    def prepare(
        self, epsilon: float | None = None, steps: int = 1, prior: Belief | None = None, plan: StepPlan | None = None
    ) -> StepPlan:
        """Prepare the next release without sampling it.

        Uses public information only and leaves the engine unchanged.

        A schedule and event caps lower the budget. If they leave none, the timestep is withheld. Errors are those of
        `release`.

        Parameters
        ----------
        epsilon
            Upper bound on the budget of the release. Defaults to the engine's.
        steps
            Number of timesteps since the last release; 0 for another release about the same timestep.
        prior, plan
            Belief before the release and its plan, if more about the timestep is known than this engine released.

        Returns
        -------
        StepPlan
            The plan, which `draw` samples.
        """
        budget = self.settings.epsilon if epsilon is None else check_budget(epsilon)
        state = self.filter_state
        before = state.predict(self.model, steps) if prior is None else prior
        # The schedule chooses a budget from the belief alone. Event caps can only lower it.
        scheduled = self._scheduler.plan_within_schedule(before, budget, steps, state, self.planner, plan)
        return self.event_caps.limit_plan(scheduled, state, self.planner)

    @_make_atomic
    def draw(self, plan: StepPlan, state: int) -> ReleaseRecord:
        """Sample the plan of a release for the true state and update the belief.

        Parameters
        ----------
        plan
            A plan of `prepare`.
        state
            The true state.

        Returns
        -------
        ReleaseRecord
            The public record.

        Raises
        ------
        StateError
            If the state does not exist.
        InvalidInputError
            If the plan is stale: it was sampled, or the engine has advanced since. Nothing is sampled.
        GuaranteeError
            If the noise would violate a bound that the record states; see `dphmm.release.soundness`. Nothing is
            sampled.
        """
        return self._draw_validated(plan, self._validate_draw(plan, state))

    @check_arguments
    @_make_atomic
    def release_together(
        self, state: int, *others: Releaser, epsilon: float | Sequence[float] | None = None, steps: int = 1
    ) -> Ledger:
        """Answer this query and others about the same user at one timestep (Theorem 7.1).

        All queries are answered under one constraint set and one repaired graph. On its edges, all answers together
        cost the sum of the budgets. Each answer updates the belief. All plans are prepared and checked before the
        first is sampled. Event caps are shared by all queries. They choose the budget of each query after the samples
        before it.

        Parameters
        ----------
        state
            The true state.
        *others
            Engines created with `for_query`.
        epsilon
            Total budget to split evenly, or one budget for each query, this one first. Defaults to the budget of each
            engine.
        steps
            Number of timesteps since the last release, at least 1.

        Returns
        -------
        Ledger
            The records, this query's first, with their total cost. All but the first have ``steps`` 0.

        Raises
        ------
        InvalidInputError
            If the engines are not about the same user, or differ in ``delta``, ``allow_singleton`` or event caps. Other
            errors are those of `release`.

        Examples
        --------
        >>> f, kinds = [[1, 0], [2, 1], [3, 0], [0, 1], [4, 2], [1, 2]], [[1], [0], [0], [2], [2], [2]]
        >>> model = MarkovModel(np.full((6, 6), 1 / 6), np.full(6, 1 / 6))
        >>> place = Releaser(model, f, PolicyGraph.complete(6), epsilon=1.0, rng=0)
        >>> together = place.release_together(4, place.for_query(kinds), epsilon=1.0)
        >>> [record.epsilon for record in together.records], together.epsilon
        ([0.5, 0.5], 1.0)
        """
        as_state(state, self.model.size)
        check_steps(steps)
        engines = (self, *others)
        return draw_together(engines, prepare_together(engines, epsilon, steps), state)

    # ---- the parts of `draw`, which `draw_together` calls for several queries --------------------------------------

    def _validate_draw(self, plan: StepPlan, state: int) -> int:
        """Check a plan and return the state to release: the true one, or its surrogate."""
        if not isinstance(plan, StepPlan):
            raise InvalidInputError(f"plan must be a StepPlan, got {shorten_repr(plan)}")
        if plan.version != self.filter_state.version:
            raise InvalidInputError(
                "this step is stale: it was already drawn, or the engine has advanced since it was prepared; call "
                "prepare() again"
            )
        true_state = as_state(state, self.model.size)
        self.soundness(plan)
        if plan.constraint[true_state]:
            return true_state
        return int(self.planner.map_to_surrogates(np.array([true_state]), plan.constraint)[0])

    def _draw_validated(self, plan: StepPlan, released_state: int) -> ReleaseRecord:
        """Sample a plan for the result of `_validate_draw` and update the belief."""
        place = None
        posterior = plan.prior
        if plan.withheld:
            likelihood = np.zeros(self.model.size)
        else:
            released = self._sample(plan, released_state)
            place = self.query.to_point(released)
            # Event caps track paths through states that have been ruled out since, so they need all likelihoods.
            wanted = np.ones(self.model.size, dtype=np.bool_) if self.settings.caps else plan.prior.support
            likelihood = self._compute_log_likelihood(plan, released, wanted)
            posterior = plan.prior.update(likelihood)
        state = self.filter_state
        cap_tracker = self.event_caps.update_tracker(state, likelihood, plan.steps)
        # If anything above fails, the engine is unchanged and the sample is discarded. From here on the release is in
        # the account. `advance` comes last: `_build_record` and `slot_after` need the count before this release.
        spending = state.spend(plan.steps, plan.epsilon, plan.constrained_dp_factor, self.model.step_seconds)
        estimate = posterior.infer(self.measurements.by_columns, self.cell)
        record = self._build_record(plan, place, estimate, spending, posterior)
        state.advance(posterior, state.count + 1, cap_tracker, state.slot_after(plan.steps), likelihood)
        self._last = (record, plan, released_state)
        return record

    def _sample(self, plan: StepPlan, state: int) -> npt.NDArray[Any]:
        """Sample a release, and check the form of one of a registered mechanism."""
        with translate_mechanism_errors(self.settings.mechanism, is_private=True):
            released = plan.noise.draw(state, self.source)
        if self.settings.mechanism not in MECHANISMS:
            required = f"{self.query.values.shape[1]} finite {'integers' if self.query.is_exact else 'numbers'}"
            is_valid = np.shape(released) == self.query.values.shape[1:] and np.isfinite(released).all()
            if not is_valid or (self.query.is_exact and (np.rint(released) != released).any()):
                raise GuaranteeError(
                    f"mechanism {self.settings.mechanism!r} must draw {required}; the release was aborted"
                )
        return released

    @property
    def published_mechanism(self) -> str:
        """The name of the mechanism in records.

        A subclass that replaces methods of this class may sample other noise. Its name is therefore added.
        """
        return self.settings.mechanism + _name_replacement(cast(Any, type(self)))

    @property
    def settings_hash(self) -> str:
        """The hash of the settings in records. Another one for a subclass that replaces methods."""
        replacement = _name_replacement(cast(Any, type(self)))
        own_hash = self.settings.content_hash
        return hash_content(own_hash, replacement) if replacement else own_hash

    def _build_record(
        self,
        plan: StepPlan,
        released: tuple[float, ...] | None,
        estimate: Inference,
        spending: Spending,
        posterior: Belief,
    ) -> ReleaseRecord:
        index = self.filter_state.count
        protection = plan.protection
        radii = self.model.calibrated_radii
        expected_error = estimate.mean_error
        calibrated_radius_90 = None
        if radii is not None and spending.hours_since_draw is not None:
            scheduled = self.settings.schedule is not None
            expected_error, calibrated_radius_90 = radii.apply(expected_error, spending.hours_since_draw, scheduled)
        return ReleaseRecord(
            index=index,
            steps=plan.steps if index else 0,
            released=released,
            estimate=estimate.mean,
            epsilon=plan.epsilon,
            num_possible_states=plan.num_possible,
            min_degree_of_protection=plan.min_degree_of_protection,
            added_edges=protection.added,
            hull_volume=plan.hull_volume,
            dimension=protection.hull.dimension,
            constrained_dp_factor=protection.diameter,
            repair_is_optimal=protection.is_optimal,
            repair_optimality_gap=protection.optimality_gap,
            mechanism=self.published_mechanism,
            is_exact=self.query.is_exact,
            expected_error=plan.noise.expected_error(plan.prior),
            # A withheld timestep has no protected and no open release: it counts with any single possible state.
            is_singleton=plan.is_singleton or (plan.withheld and plan.num_possible == 1),
            settings_hash=self.settings_hash,
            model_hash=self.model.content_hash,
            expected_estimate_error=expected_error,
            adversary_error=estimate.error_lower_bound,
            max_posterior_probability=estimate.max_probability,
            epsilon_total=spending.epsilon_total,
            epsilon_24h=spending.epsilon_24h,
            max_event_probabilities=plan.max_event_probabilities,
            withheld_reason=plan.reason,
            calibrated_radius_90=calibrated_radius_90,
            soundness="verified" if self.published_mechanism in MECHANISMS else "trusted",
            **vars(self.planner.summarize_likeliest_component(plan, posterior)),
            **plan.noise.compare_with_knorm(plan.prior),
        )

    @check_arguments
    def log_likelihood(self, plan: StepPlan, released: npt.ArrayLike | None) -> FloatArray:
        """Compute the adversary's ``log p(z | s)`` of a release ``z`` for every state.

        Each component has its own normaliser and support; see `dphmm.release.step_noise.StepNoise.log_density`. A state
        outside the constraint set has the density of its surrogate, the nearest possible state.

        Parameters
        ----------
        plan
            The plan of the release.
        released
            ``z``, ``(d,)``, in the unit of the measurements; None if the timestep was withheld.

        Returns
        -------
        ndarray, shape (N,)
            The log densities; zeros if the timestep was withheld.

        Raises
        ------
        CoordinateError
            If the release has another dimension, is not finite, or (with ``"lattice"``) is not a lattice point.
        """
        if plan.withheld or released is None:
            return np.zeros(self.model.size)
        return self._compute_log_likelihood(
            plan, self.query.to_value(released), np.ones(self.model.size, dtype=np.bool_)
        )

    def _compute_log_likelihood(self, plan: StepPlan, released: npt.NDArray[Any], wanted: BoolArray) -> FloatArray:
        """Compute the log likelihood of a release in mechanism units, for `wanted` at least."""
        with translate_mechanism_errors(self.settings.mechanism):
            likelihood = plan.noise.log_density(released)
        # A plan for a new constraint set shares the array of its prior.
        if wanted is not plan.constraint:
            outside = np.flatnonzero(wanted & ~plan.constraint)
            if len(outside):
                likelihood[outside] = likelihood[self.planner.map_to_surrogates(outside, plan.constraint)]
        return likelihood

    def private_diagnostics(self, state: int, place: FloatArray | None = None) -> PrivateDiagnostics:
        """Return diagnostics of the last release that need the true state. Do not publish.

        Parameters
        ----------
        state
            True state at the last release.
        place
            True location, in coordinates of the measurements. A location in a cell is not the cell's centre, and one
            outside the region may be far from its state. Defaults to the measurement of the state.

        Returns
        -------
        PrivateDiagnostics
            Errors and degrees of protection of the true state.

        Raises
        ------
        InvalidInputError
            If there is no release yet, or the place has the wrong number of coordinates.
        """
        last = self._last
        if last is None:
            raise InvalidInputError("no release yet: call release() first")
        true_state = as_state(state, self.model.size)
        place = self.measurements.points[true_state] if place is None else as_floats(place, "place")
        if place.shape != self.measurements.points[true_state].shape:
            raise InvalidInputError(
                f"place must have {self.measurements.dimension} coordinates, got shape {place.shape}"
            )
        record, plan, released_state = last
        error = nan if record.released is None else float(np.linalg.norm(np.array(record.released) - place))
        return PrivateDiagnostics(
            index=record.index,
            true_state=true_state,
            released_state=released_state,
            used_surrogate=released_state != true_state,
            error=error,
            estimate_error=float(np.linalg.norm(np.array(record.estimate) - place)),
            degree_of_protection=int(plan.protection.degrees[released_state]),
            expected_error=plan.noise.error_at(released_state),
        )


@cache
def _name_replacement(kind: Any) -> str:
    """Return ``+`` and the name of a subclass that replaces methods, or an empty string."""
    methods = {
        name
        for name, value in vars(Releaser).items()
        if not name.startswith("__") and (callable(value) or isinstance(value, property | classmethod))
    }
    replaced = {name for base in kind.__mro__[: kind.__mro__.index(Releaser)] for name in vars(base)}
    return "" if methods.isdisjoint(replaced) else f"+{kind.__module__}.{kind.__qualname__}"


class ReleaseSettings(Settings):  # noqa: D101 (its parameters are those of its fields)
    __doc__ = Settings.__doc__

    @classmethod
    def for_a_day(cls, epsilon: float = DEFAULT_DAILY_EPSILON, **settings: Unpack[DayKeywords]) -> ReleaseSettings:
        """Create settings that bound the total epsilon of any 24 hours.

        A `Schedule` spends it.

        Parameters
        ----------
        epsilon
            Total budget of the releases of any 24 hours. A single release may use all of it.
        **settings
            Any other setting of a `ReleaseSettings`.

        Returns
        -------
        ReleaseSettings
            The settings that ``dphmm release`` uses by default.

        Raises
        ------
        ConfigurationError, BudgetError
            If a setting is invalid; see `ReleaseSettings`.

        Examples
        --------
        >>> ReleaseSettings.for_a_day().schedule.to_dict()
        {'window_epsilon': 3.0, 'window_seconds': 86400.0}
        """
        values: dict[str, Any] = {**settings}
        return cls(epsilon=epsilon, schedule=Schedule(window_epsilon=epsilon), **values)

    @check_arguments
    def engine(self, model: MarkovModel, rng: Rng = None, policy: PolicyLike | None = None) -> Releaser:
        """Create an engine that releases the locations of a model's states.

        With exact noise, locations that are nearer to each other than the lattice spacing may be rounded to one point.
        No release distinguishes them then.

        Parameters
        ----------
        model
            A model that contains its state locations, as `dphmm learn` writes it.
        rng
            Source of randomness. Defaults to the operating system's. A seed or generator makes releases reproducible
            and provides no privacy.
        policy
            The policy graph that `graph` built for the model, if it exists already. Records state the hash of these
            settings: if you change the graph, set the setting ``policy`` to ``"graph:"``.

        Returns
        -------
        Releaser
            An engine without releases.

        Raises
        ------
        ConfigurationError, PolicyError, DataFileError
            If `graph` raises them, or the policy does not fit the model.
        """
        space = model.space
        graph = self.build_graph(model) if policy is None else as_policy(policy, space.size, get_state_names(space))
        engine = Releaser.__new__(Releaser)
        engine._initialize(self, model, graph.check_measurements(space.measurements()), graph, rng, space.cell_km)
        return engine
