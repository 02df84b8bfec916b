"""The release engine: Algorithm 2, one time step after another, for one query or several at a moment (Theorem 7.1)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from fractions import Fraction
from math import nan, nextafter
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import BoolArray, FloatArray, Rng, as_floats, check_budget, content_hash, random_source
from dphmm.errors import BudgetError, InvalidInputError, StateError
from dphmm.events.cap import CapKeeper
from dphmm.geometry.measurements import Measurements
from dphmm.mechanisms.base import MechanismName
from dphmm.mechanisms.exact import rational
from dphmm.model.belief import Belief
from dphmm.model.model import MarkovModel
from dphmm.model.point_estimate import PointEstimate, point_estimate
from dphmm.policy.graph import PolicyGraph, PolicyLike, as_policy, names_of
from dphmm.release.event_caps import Capping
from dphmm.release.ledger import Account, Ledger
from dphmm.release.noise import LikeliestComponent, Query, StepNoise
from dphmm.release.record import PrivateDiagnostics, ReleaseRecord
from dphmm.release.schedule import Scheduling
from dphmm.release.settings import A_DAY, GIVEN, NAMES, Schedule, Settings
from dphmm.release.soundness import SoundnessCheck
from dphmm.release.step import NextRelease, Planner, PreparedStep, PublicState, Reason, StepPlan, as_state, check_steps
from dphmm.space.states import StateSpace

Edge = tuple[int, int]


def prepare_together(
    engines: Sequence[Releaser], epsilon: float | Sequence[float] | None = None, steps: int = 1
) -> list[PreparedStep]:
    """Everything about one release of each query but the draws, all of it public. Nothing changes by it.

    All queries are answered under one constraint set and one repaired graph: that of the first query, in which every
    possible state has a partner that no query tells it from. So what all answers say together is bounded on its edges
    by the sum of the budgets, and no one is hidden among others in each answer and alone in all of them.

    Parameters and errors are those of `Releaser.release_together`.
    """
    first = engines[0]
    for engine in engines:
        same = engine.settings.delta == first.settings.delta, engine.settings.allow_known == first.settings.allow_known
        if engine.person is not first.person or not all(same):
            raise InvalidInputError(
                "queries answered together share a person, delta and allow_known; make the others with 'beside'"
            )
    if len(engines) > 1 and any(engine.settings.schedule for engine in engines):
        raise InvalidInputError("schedules are kept for one query after another; release them one by one")
    if any(
        (engine.settings.caps, engine.settings.priors) != (first.settings.caps, first.settings.priors)
        for engine in engines
    ):
        raise InvalidInputError("queries answered together keep the same caps on events; give all of them or none")
    if len({id(engine) for engine in engines}) < len(engines):
        raise InvalidInputError("a query is answered once at a time; name each engine once")
    budgets = shares(epsilon, [engine.settings.epsilon for engine in engines])
    prior = first.prior(steps)
    plan = first.plan(prior)
    shared = shared_edges(first.soundness, plan, first.noise(plan, budgets[0]), budgets[0])
    plans = [engine.plan(prior, shared) for engine in engines]
    found = [first.prepare(budgets[0], steps, prior, plans[0])]
    return found + [
        engine.prepare_on(prior, plan, budget)
        for engine, plan, budget in zip(engines[1:], plans[1:], budgets[1:], strict=True)
    ]


def draw_together(engines: Sequence[Releaser], prepared: Sequence[PreparedStep], state: int) -> Ledger:
    """Draw what `prepare_together` prepared: every step is looked at before the first is drawn.

    What caps on events leave of the budget of a later query follows from the draws before it, all of them public; such
    a step is looked at again.
    """
    used = [engine.ready(step, state) for engine, step in zip(engines, prepared, strict=True)]
    records: list[ReleaseRecord] = []
    for engine, step, stand_in in zip(engines, prepared, used, strict=True):
        prior = step.prior if not records else engine.belief
        assert prior is not None, "a draw leaves a belief"
        if records and engine.capping:
            step = engine.prepare(step.epsilon, 0, prior, step.plan)
            stand_in = engine.ready(step, state)
        records.append(engine.drawn(replace(step, prior=prior), stand_in))
    return Ledger.from_records(records)


def shares(epsilon: float | Sequence[float] | None, own: Sequence[float]) -> list[float]:
    """The budget of each query: its own, an equal part of one that is split, or the one given for it.

    Equal parts are doubles whose exact sum, as they are written, is not above what was split.

    Raises
    ------
    BudgetError
        When a budget is none, or there is not one for each query.
    """
    if epsilon is None:
        return list(own)
    if not isinstance(epsilon, float | int | Fraction | np.floating | np.integer):
        listed = as_floats(epsilon, "budgets", BudgetError)
        if listed.ndim != 1:
            raise BudgetError(f"budgets have shape {listed.shape}; give one for each query")
        given = [check_budget(one) for one in listed.tolist()]
        if len(given) != len(own):
            raise BudgetError(f"there are {len(given)} budgets for {len(own)} queries; give one for each")
        return given
    whole: Fraction = rational(check_budget(epsilon))
    part = float(whole / len(own))
    while rational(part) * len(own) > whole:
        part = nextafter(part, 0.0)
    return [check_budget(part)] * len(own)


def shared_edges(soundness: SoundnessCheck, plan: StepPlan, noise: StepNoise, epsilon: float) -> tuple[Edge, ...]:
    """What has to be added to the policy's edges so that every possible state has one, at no cost to a query.

    That is the query's repair, and for a state that its noise hides without any edge the nearest that it hides
    it among.
    """
    graph = plan.protection.graph
    alone: BoolArray = plan.constraint & ~graph.connected() & ~graph.open
    if not alone.any() or np.count_nonzero(plan.constraint) == 1:
        return plan.protection.added
    states = np.flatnonzero(alone)
    nearest = soundness.nearest_in(noise, epsilon, states)
    pairs = np.sort(np.stack([states, nearest], axis=1), axis=1)
    return tuple(sorted({*plan.protection.added, *map(tuple, pairs.tolist())}))


@checked
class Releaser:
    """Releases a person's measurements step by step under a policy graph (Algorithm 2).

    At each step: the belief is moved by the model; its support (or δ-location set) is the constraint set ``C``; the
    policy graph is cut to ``C`` and repaired; noise is drawn in the shape of its body; the belief is updated by Bayes'
    rule (Equation 2), so that it is ``p(s_t | z_1..t)`` of an adversary who knows model, policy and mechanism.

    This form takes a policy graph and measurements of any kind. For places of a model that knows its states, say how in
    a `ReleaseSettings` and let its ``engine(model)`` make the releaser.

    Parameters
    ----------
    model
        The public Markov model over ``N`` states.
    f
        The measurement of every state, ``(N, d)``: kilometres in a plane for locations.
    policy
        The policy graph over the same states.
    epsilon
        The budget of a step, unless `release` is given another.
    mechanism
        As in `ReleaseSettings`. Laplace and planar Laplace draw from the least cross-polytope or disc around the
        sensitivity hull. All but ``"lattice"`` draw real numbers and keep the promise as far as floating point does;
        see `dphmm.mechanisms.base.NormMechanism`.
    rng
        Left out, the operating system's randomness. A seed or generator makes releases repeatable, hence not private.
    **settings
        Any other setting of a `ReleaseSettings`, such as ``calibration`` or ``caps``. With ``"lattice"``, ``spacing``
        is the step of the published lattice in the unit of ``f``; 0.001 is one metre for kilometres. Measurements are
        rounded to the nearest lattice point, and noise is shaped for the rounded ones.

    Raises
    ------
    StateError, PolicyError
        When model, policy and measurements differ in the number of states.
    CoordinateError
        When measurements are not finite, or rounding to the lattice would make different ones equal.
    ConfigurationError, BudgetError
        As `ReleaseSettings`.

    Notes
    -----
    A true state outside ``C`` cannot be released as such: the nearest state of ``C``, its surrogate, stands in. That
    this happened depends on the truth, so no record tells; the belief's update counts it in, as the adversary would.

    The first release has the model's initial distribution as its prior.

    Examples
    --------
    >>> f = [[1, 0], [2, 1], [3, 0], [0, 1], [4, 2], [1, 2]]
    >>> model = MarkovModel(np.full((6, 6), 1 / 6), np.full(6, 1 / 6))
    >>> releaser = Releaser(model, f, PolicyGraph.categorical([0, 1, 1, 2, 2, 2]), epsilon=1.0, rng=0)
    >>> record = releaser.release(4)
    >>> record.possible, record.least_protection, record.area
    (6, 3, 11.0)
    """

    def __init__(
        self,
        model: MarkovModel,
        f: npt.ArrayLike | Measurements,
        policy: PolicyLike,
        epsilon: float,
        mechanism: MechanismName = "lattice",
        *,
        rng: Rng = None,
        **settings: Any,
    ) -> None:
        chosen = {"policy": GIVEN, "epsilon": epsilon, "mechanism": mechanism, **settings}
        graph = as_policy(policy, model.size, names_of(model.states))
        self._begin(ReleaseSettings.from_dict(chosen), model, graph.check_measurements(f), graph, rng)

    @classmethod
    def made(
        cls, settings: ReleaseSettings, model: MarkovModel, space: StateSpace, policy: PolicyLike, rng: Rng = None
    ) -> Releaser:
        """The engine for a space's places that `ReleaseSettings.engine` hands out, with the policy made already.

        With exact noise, places that are nearer than the lattice's step may be rounded to one point. No release then
        tells them apart.

        Parameters
        ----------
        settings, model
            As of `ReleaseSettings.engine`.
        space
            The states' places.
        policy
            The policy graph.
        rng
            As of `Releaser`.

        Returns
        -------
        Releaser
            The engine.
        """
        engine = cls.__new__(cls)
        graph = as_policy(policy, space.size, names_of(space))
        engine._begin(settings, model, graph.check_measurements(space.measurements()), graph, rng, space.cell_km)
        return engine

    def _begin(
        self,
        settings: ReleaseSettings,
        model: MarkovModel,
        measurements: Measurements,
        policy: PolicyGraph,
        rng: Rng,
        cell: float = 0.0,
    ) -> None:
        if model.size != policy.size:
            raise StateError(f"the model has {model.size} states and the policy {policy.size}; they must agree")
        self.query = Query(settings, measurements)
        if settings.policy == GIVEN:
            settings = replace(settings, policy=GIVEN + content_hash(policy.content_hash, measurements.points))
            self.query.check_told_apart()
        self.settings, self.model, self.policy, self.cell = settings, model, policy, cell
        self.measurements = self.query.measurements
        """What is measured, on the published lattice for exact noise."""
        self.values: npt.NDArray[Any] = self.query.values
        """``(N, d)``: what the mechanism takes as true values: points, or whole steps of the published lattice."""
        self.soundness = SoundnessCheck(policy, self.values)
        self.capping = Capping(settings, model)
        self.scheduling = Scheduling(settings.schedule, model, self.measurements.points, cell)
        self.source = random_source(rng)
        self.planner = Planner(settings, policy, self.query)
        self.person = PublicState()
        self.restart()

    @checked
    def another(self, rng: Rng = None) -> Releaser:
        """An engine of the same settings and model that has released nothing; it begins with this one's last plan.

        Parameters
        ----------
        rng
            Its source of randomness; left out, this one's.

        Returns
        -------
        Releaser
            The other engine.
        """
        engine = copy(self)
        if rng is not None:
            engine.source = random_source(rng)
        engine.planner = copy(self.planner)
        engine.person = PublicState()
        engine.restart()
        return engine

    @checked
    def beside(self, f: npt.ArrayLike | Measurements, **changes: Any) -> Releaser:
        """An engine for another query about the same person, to be answered with this one by `release_together`.

        Both share the model, the policy, the randomness and the belief, which a release of either moves on. Where the
        true state is not possible, the state that is nearest by this engine's measurements stands in for it in both.

        Parameters
        ----------
        f
            What the other query measures in every state, ``(N, d)``.
        **changes
            Settings that differ from this engine's: ``epsilon``, ``mechanism``, ``spacing``, ``repair``, ….

        Returns
        -------
        Releaser
            The other engine.

        Raises
        ------
        PolicyError, CoordinateError, ConfigurationError, BudgetError
            As making a `Releaser`.
        """
        same = {name: getattr(self.settings, name) for name in NAMES}
        settings = ReleaseSettings.from_dict({**same, **changes, "policy": GIVEN, "layers": ()})
        other = Releaser.__new__(Releaser)
        other._begin(settings, self.model, self.policy.check_measurements(f), self.policy, self.source)
        return other.join(self)

    def join(self, other: Releaser) -> Releaser:
        """Make this engine's query one about the person of another engine; returns itself.

        Parameters
        ----------
        other
            The engine of the person's other query.

        Returns
        -------
        Releaser
            This engine.

        Raises
        ------
        InvalidInputError
            When the engines differ in model or policy.
        """
        mine, theirs = ((one.model.content_hash, one.policy.content_hash) for one in (self, other))
        if mine != theirs:
            raise InvalidInputError("queries about one person share the model and the policy; these differ")
        self.person, self.planner.places = other.person, other.planner.places
        return self

    def restart(self, first: int | None = None) -> None:
        """Forget all releases: the next is the first of a new person or session, in a public time step ``first``.

        Parameters
        ----------
        first
            The slot of the next release; left out, that of the last first one.
        """
        self.person.first = self.person.first if first is None else first
        self.resume(None, 0)

    def resume(
        self,
        belief: Belief | None,
        count: int,
        keeper: CapKeeper | None = None,
        account: Account | None = None,
        slot: int | None = None,
    ) -> None:
        """Go on from the public belief after ``count`` releases, None at 0, with caps from their keeper, and spending.

        Without the account of what all releases about the person cost, if there are any, records do not tell it. Where
        the model varies with time, ``slot`` is that of the last release.

        Parameters
        ----------
        belief
            The public belief after the last release.
        count
            How many releases there were.
        keeper
            What they told of capped events.
        account
            What they cost.
        slot
            The slot of the last one.
        """
        self.person.advance(belief, count, keeper, slot)
        self.person.account = account if count or account is not None else Account()
        self._last: tuple[ReleaseRecord, PreparedStep, int] | None = None

    @property
    def belief(self) -> Belief | None:
        """The public belief after the last release; ``None`` before the first. Of all queries about the person."""
        return self.person.belief

    @property
    def last(self) -> tuple[ReleaseRecord, PreparedStep] | None:
        """The last release and the step that it was drawn from, all of it public; None before the first."""
        return None if self._last is None else self._last[:2]

    @property
    def begins_alike(self) -> bool:
        """Whether everybody's first release is prepared in the same way, whenever it is."""
        return self.model.time_classes is None and not self.capping.names_dates

    @property
    def is_private(self) -> bool:
        """Whether noise comes from the operating system; where it follows from a seed, nothing is private."""
        return self.source.bytes is os.urandom

    def prior(self, steps: int = 1) -> Belief:
        """The belief before the next release, ``steps`` time steps after the last one: ``p(s_t | z_1..t-1)``.

        Parameters
        ----------
        steps
            The time steps since the last release.

        Returns
        -------
        Belief
            The belief; before the first release, that of the model.
        """
        return self.person.prior(self.model, steps)

    def plan(self, prior: Belief, also: tuple[tuple[int, int], ...] = ()) -> StepPlan:
        """The constraint set that a prior leads to, and its repaired graph. Public: no true state is involved.

        Edges ``(i, j)``, ``i < j``, in ``also`` are added before the repair.

        Parameters
        ----------
        prior
            The belief before the release.
        also
            Edges ``(i, j)``, ``i < j``, that are added before the repair.

        Returns
        -------
        StepPlan
            The constraint set and its repaired graph.

        Raises
        ------
        AlreadyKnownError
            When one state only is possible, unless that is allowed.
        """
        return self.planner.plan(prior, also)

    def noise(self, plan: StepPlan, epsilon: float) -> StepNoise:
        """The noise of a step: in lattice steps for ``"lattice"``, otherwise in the unit of the measurements.

        Parameters
        ----------
        plan
            The plan of the step.
        epsilon
            The budget, positive.

        Returns
        -------
        StepNoise
            The noise, in one or several parts.
        """
        return self.planner.noise(plan, epsilon)

    def release(self, state: int, epsilon: float | None = None, steps: int = 1) -> ReleaseRecord:
        """Release the measurement of the person's true state.

        Parameters
        ----------
        state
            The true state.
        epsilon
            The budget of this step; left out, the releaser's own.
        steps
            How many time steps have passed since the last release, drawn or not (the first ignores it). At least 1.

        Returns
        -------
        ReleaseRecord
            What may be published.

        Raises
        ------
        StateError
            When the state does not exist.
        BudgetError
            When epsilon is not positive and finite.
        AlreadyKnownError
            When one state only is possible, unless that is allowed.
        """
        check_steps(steps)
        return self.draw(self.prepare(epsilon, steps), state)

    def prepare(
        self, epsilon: float | None = None, steps: int = 1, prior: Belief | None = None, plan: StepPlan | None = None
    ) -> PreparedStep:
        """Everything about the next release but the draw, and without the truth. Nothing changes by it.

        Parameters are those of `release`, except that ``steps`` may be 0, for another release about the same moment;
        so are the errors. A schedule and caps on events lower the budget; where they leave none nothing is drawn.

        Parameters
        ----------
        epsilon
            The greatest budget that the release may have; left out, the engine's own.
        steps
            The time steps since the last release; 0 for another release about the same moment.
        prior, plan
            The belief before the release and its plan, where more is known of the moment than this engine released.

        Returns
        -------
        PreparedStep
            What `draw` takes.
        """
        budget = self.settings.epsilon if epsilon is None else check_budget(epsilon)
        before = self.person.prior(self.model, steps) if prior is None else prior
        release = NextRelease(before, budget, steps, self.person, self.planner, plan)
        return self._prepared(self.capping.limit(self.scheduling.limit(release)))

    def prepare_on(self, prior: Belief, plan: StepPlan, epsilon: float, steps: int = 0) -> PreparedStep:
        """The same for a prior and a plan of one's own, whatever a schedule and caps say.

        Parameters
        ----------
        prior
            The belief before the release.
        plan
            The constraint set and its repaired graph.
        epsilon
            The budget, positive.
        steps
            The time steps since the last release.

        Returns
        -------
        PreparedStep
            What `draw` takes.
        """
        return PreparedStep(prior, plan, self.noise(plan, epsilon), epsilon, steps, self.person.moment)

    def prepare_nothing(self, prior: Belief, steps: int, reason: Reason) -> PreparedStep:
        """A step at which nothing is drawn: the belief goes on by prediction.

        Parameters
        ----------
        prior
            The prediction.
        steps
            The time steps since the last release.
        reason
            Why nothing is drawn.

        Returns
        -------
        PreparedStep
            What `draw` takes.
        """
        return self._prepared(NextRelease(prior, 0.0, steps, self.person, self.planner, reason=reason))

    def _prepared(self, release: NextRelease) -> PreparedStep:
        """A release with its noise, after all that can lower its budget."""
        plan, epsilon = release.plan, 0.0 if release.reason else release.epsilon
        noise = self.query.no_noise(plan.protection) if release.reason else self.noise(plan, epsilon)
        moment = self.person.moment
        return PreparedStep(release.prior, plan, noise, epsilon, release.steps, moment, release.reach, release.reason)

    def draw(self, step: PreparedStep, state: int) -> ReleaseRecord:
        """Draw a prepared release of the true state and update the belief.

        Parameters
        ----------
        step
            What `prepare` gave.
        state
            The true state.

        Returns
        -------
        ReleaseRecord
            What may be published.

        Raises
        ------
        StateError
            When the state does not exist.
        InvalidInputError
            When the step was drawn already, or the engine has gone on since it was prepared. Nothing is drawn.
        PromiseError
            When the noise would not keep what the record says: see `dphmm.release.soundness`. Nothing is drawn.
        """
        return self.drawn(step, self.ready(step, state))

    @checked
    def release_together(
        self, state: int, *others: Releaser, epsilon: float | Sequence[float] | None = None, steps: int = 1
    ) -> Ledger:
        """Answer this query and others about the same person at one moment (Theorem 7.1).

        All are answered under one constraint set and one repaired graph, on whose edges all answers together cost the
        sum of the budgets; the belief is updated by each. All is prepared and looked at before the first draw. Caps on
        events, which all queries share, choose each budget after the draws before it.

        Parameters
        ----------
        state
            The true state.
        *others
            Engines made with `beside`.
        epsilon
            A budget to split evenly, or one for each, this query's first; left out, each has its own engine's.
        steps
            As for `release`.

        Returns
        -------
        Ledger
            The records, this query's first, with what they cost together. All but the first have ``steps`` 0.

        Raises
        ------
        InvalidInputError
            For engines not about one person, or that differ in ``delta``, ``allow_known`` or caps; else as `release`.

        Examples
        --------
        >>> f, kinds = [[1, 0], [2, 1], [3, 0], [0, 1], [4, 2], [1, 2]], [[1], [0], [0], [2], [2], [2]]
        >>> model = MarkovModel(np.full((6, 6), 1 / 6), np.full(6, 1 / 6))
        >>> place = Releaser(model, f, PolicyGraph.complete(6), epsilon=1.0, rng=0)
        >>> together = place.release_together(4, place.beside(kinds), epsilon=1.0)
        >>> [record.epsilon for record in together.records], together.epsilon
        ([0.5, 0.5], 1.0)
        """
        self.check_state(state)
        check_steps(steps)
        engines = (self, *others)
        return draw_together(engines, prepare_together(engines, epsilon, steps), state)

    # ---- the parts of a draw, for several queries at once --------------------------------------------------------

    def ready(self, step: PreparedStep, state: int) -> int:
        """The state whose measurement a prepared step will release, after all that can be refused; nothing is drawn.

        Errors are those of `draw`.

        Parameters
        ----------
        step
            What `prepare` gave.
        state
            The true state.

        Returns
        -------
        int
            The state itself, or the possible one that stands in for it.
        """
        if step.moment is not self.person.moment:
            raise InvalidInputError("the prepared step was drawn, or the engine has gone on since; prepare another")
        used, constraint = self.check_state(state), step.plan.constraint
        self.soundness(step, self.settings.delta, self.settings.allow_known)
        return used if constraint[used] else int(self.planner.released_as(np.array([used]), constraint)[0])

    def drawn(self, step: PreparedStep, used: int) -> ReleaseRecord:
        """Draw the release of a state that `ready` gave, and update the belief.

        Parameters
        ----------
        step
            What `prepare` gave.
        used
            The state that `ready` gave.

        Returns
        -------
        ReleaseRecord
            What may be published.
        """
        place, posterior = None, step.prior
        likelihood = np.zeros(self.model.size)
        if not step.reason:
            released = step.noise.draw(used, self.source)
            place = self.query.place(released)
            wanted = np.ones(self.model.size, dtype=np.bool_) if self.settings.caps else step.prior.support
            likelihood = self._log_likelihood(step, released, wanted)
            posterior = step.prior.update(likelihood)
        person = self.person
        keeper = self.capping.updated(person, likelihood, step.steps)
        spent = person.spend(step, self.model.step_seconds)
        guess = point_estimate(posterior.probabilities, self.measurements.by_columns, self.cell, posterior.beyond)
        record = self._record(step, place, guess, spent, self.likeliest_component(step, posterior))
        person.advance(posterior, person.count + 1, keeper, person.slot_after(step.steps), likelihood)
        self._last = (record, step, used)
        return record

    def _record(
        self,
        step: PreparedStep,
        released: tuple[float, ...] | None,
        guess: PointEstimate,
        spent: tuple[float | None, float | None, float | None],
        component: LikeliestComponent,
    ) -> ReleaseRecord:
        """The record of a prepared step and of what was drawn."""
        index, (so_far, last_day, hours) = self.person.count, spent
        plan, noise, protection = step.plan, step.noise, step.plan.protection
        radii, held = self.model.held_radii, None
        if radii is not None and hours is not None:
            held = radii.factor(hours, self.settings.schedule is not None) * guess.mean_error
        return ReleaseRecord(
            index=index,
            steps=step.steps if index else 0,
            released=released,
            estimate=guess.mean,
            epsilon=step.epsilon,
            possible=plan.possible,
            least_protection=plan.least_protection,
            added=protection.added,
            # In space the facets of a hull that no noise is drawn from may be too many to be enumerated.
            area=(protection.hull if protection.hull.ambient_dimension <= 2 else protection.body).volume,
            dimension=protection.hull.dimension,
            constrained_factor=protection.diameter,
            certified=protection.certified,
            gap=protection.gap,
            mechanism=self.settings.mechanism,
            exact=noise.query.is_exact,
            expected_error=noise.expected_error(step.prior),
            already_known=plan.is_known or (step.reason != "" and plan.possible == 1),
            settings=self.settings.content_hash,
            model=self.model.content_hash,
            estimate_radius=guess.mean_error,
            adversary_error=guess.least_error,
            adversary_certainty=guess.certainty,
            epsilon_so_far=so_far,
            epsilon_last_day=last_day,
            reach=step.reach,
            reason=step.reason,
            held_radius=held,
            **vars(component),
            **noise.comparison(step.prior),
        )

    def likeliest_component(self, step: PreparedStep, posterior: Belief) -> LikeliestComponent:
        """What every reader sees, after a release, of the component that it came from.

        Parameters
        ----------
        step
            The release.
        posterior
            The belief after it.

        Returns
        -------
        LikeliestComponent
            Of the component that is most probable now.
        """
        probabilities, constraint = posterior.probabilities, step.plan.constraint
        if step.noise.component_count > 1:
            outside = np.flatnonzero(posterior.support & ~constraint)
            if len(outside):  # counted to the possible states that are released for them
                probabilities = probabilities.copy()
                np.add.at(probabilities, self.planner.released_as(outside, constraint), probabilities[outside])
        return step.noise.likeliest_component(probabilities, step.plan.protection.graph.open)

    def log_likelihood(self, step: PreparedStep, released: npt.ArrayLike | None) -> FloatArray:
        """``log p(z | s)`` of a release ``z``, ``(d,)``, for every state ``(N,)``, as an adversary knows it.

        Each component has its own normaliser and support; see `dphmm.release.noise.StepNoise.log_density`.

        States outside the constraint set have the density of the nearest possible state, which stands in for them.

        Parameters
        ----------
        step
            The release as it was prepared.
        released
            ``z``, ``(d,)``, in the unit of the measurements; None where nothing was drawn.

        Returns
        -------
        ndarray, shape (N,)
            The log densities; zeros where nothing was drawn.

        Raises
        ------
        CoordinateError
            When the release has another dimension, is not finite, or (with ``"lattice"``) lies off the lattice.
        """
        if step.withheld or released is None:
            return np.zeros(self.model.size)
        return self._log_likelihood(step, self.query.value(released), np.ones(self.model.size, dtype=np.bool_))

    def _log_likelihood(self, step: PreparedStep, released: npt.NDArray[Any], wanted: BoolArray) -> FloatArray:
        """The same of a release as noise gives it, for wanted states at least."""
        likelihood, constraint = step.noise.log_density(released), step.plan.constraint
        if wanted is not constraint:
            outside = np.flatnonzero(wanted & ~constraint)
            if len(outside):
                likelihood[outside] = likelihood[self.planner.released_as(outside, constraint)]
        return likelihood

    def private_diagnostics(self, state: int, place: FloatArray | None = None) -> PrivateDiagnostics:
        """What the last release looks like to someone who knows the true state, which was ``state``. Keep it private.

        Parameters
        ----------
        state
            The true state at the last release.
        place
            Where the person was, as coordinates of the measurements: a place in a cell is not its centre, and one
            outside the region may be far from the state that stands for it. Left out, the state's measurement.

        Returns
        -------
        PrivateDiagnostics
            What only the person may know.

        Raises
        ------
        InvalidInputError
            Before the first release, or when the place has not as many coordinates as a measurement.
        """
        if self._last is None:
            raise InvalidInputError("nothing was released yet; call release first")
        true = self.check_state(state)
        place = self.measurements.points[true] if place is None else as_floats(place, "place")
        if place.shape != self.measurements.points[true].shape:
            raise InvalidInputError(f"place has shape {place.shape}; give {self.measurements.dimension} coordinates")
        record, step, used = self._last
        away = nan if record.released is None else float(np.linalg.norm(np.array(record.released) - place))
        return PrivateDiagnostics(
            index=record.index,
            true_state=true,
            used_state=used,
            stood_in=used != true,
            error=away,
            estimate_error=float(np.linalg.norm(np.array(record.estimate) - place)),
            degree_of_protection=int(step.plan.protection.degrees[used]),
            expected_error=step.noise.error_at(used),
        )

    def check_state(self, state: int) -> int:
        """The state as an int, refused with a StateError where it does not exist.

        Parameters
        ----------
        state
            The state.

        Returns
        -------
        int
            The same.
        """
        return as_state(state, self.model.size)


@dataclass(frozen=True)
class ReleaseSettings(Settings):  # noqa: D101 (its parameters are those of its fields)
    __doc__ = Settings.__doc__

    @classmethod
    def for_a_day(cls, epsilon: float = A_DAY, **settings: Any) -> ReleaseSettings:
        """Settings under which no 24 hours cost more than a budget, spent where it tells most: see `Schedule`.

        Parameters
        ----------
        epsilon
            What the releases of any 24 hours may cost together. One may cost all of it.
        **settings
            Any other of a `ReleaseSettings`.

        Returns
        -------
        ReleaseSettings
            What ``dphmm release`` takes where no budget is given.

        Raises
        ------
        ConfigurationError, BudgetError
            As `ReleaseSettings`.

        Examples
        --------
        >>> ReleaseSettings.for_a_day().schedule.to_dict()
        {'window_epsilon': 3.0, 'window_seconds': 86400.0}
        """
        return cls(epsilon=epsilon, schedule=Schedule(window_epsilon=epsilon), **settings)

    def engine(self, model: MarkovModel, rng: Rng = None) -> Releaser:
        """An engine that releases the places of a model's states.

        Parameters
        ----------
        model
            A model that knows its states (`dphmm learn` writes such ones).
        rng
            Left out, the operating system's randomness. A seed or generator makes releases repeatable, not private.

        Returns
        -------
        Releaser
            The engine, which has released nothing.

        Raises
        ------
        ConfigurationError, PolicyError, DataFileError
            As `graph`.
        """
        return Releaser.made(self, model, model.space, self.graph(model), rng)
