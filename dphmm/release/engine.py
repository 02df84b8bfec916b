"""The release engine: Algorithm 2, one time step after another."""

from __future__ import annotations

import os
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, Rng, check_budget, content_hash, random_source
from dphmm.errors import InvalidInputError, StateError
from dphmm.events.caps import Cap, CapKeeper
from dphmm.geometry.hull import Membership
from dphmm.geometry.measurements import Measurements
from dphmm.markov.belief import Belief
from dphmm.markov.guess import best_guess
from dphmm.markov.model import MarkovModel
from dphmm.mechanisms.base import Mechanism
from dphmm.mechanisms.catalogue import MechanismName
from dphmm.mechanisms.exact import Rational
from dphmm.policy.by_component import Calibration
from dphmm.policy.graph import PolicyGraph
from dphmm.policy.protection import REPAIR_LIMIT, Method
from dphmm.policy.repair import Objective
from dphmm.release.account import Account
from dphmm.release.capped import Capping
from dphmm.release.ledger import Ledger
from dphmm.release.noise import ComponentNoise
from dphmm.release.planning import Planner
from dphmm.release.query import Query
from dphmm.release.record import PrivateDiagnostics, ReleaseRecord
from dphmm.release.schedule import Schedule, Scheduling
from dphmm.release.settings import GIVEN, OPTIMAL_LIMIT, Fallback, Outside, ReleaseSettings
from dphmm.release.soundness import SoundnessCheck
from dphmm.release.step import PreparedStep, PublicState, StepPlan, as_state, check_steps
from dphmm.release.together import draw_together, prepare_together
from dphmm.space.states import StateSpace


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
    repair, delta, objective, membership, allow_known, outside, repair_limit, caps, priors, calibration, schedule,
    optimal_limit, fallback
        As in `ReleaseSettings`.
    spacing
        For ``"lattice"``: the step of the published lattice in the unit of ``f``, a rational (a float is read as its
        shortest decimal); 0.001 is one metre for kilometres. Measurements are rounded to the nearest lattice point, and
        noise is shaped for the rounded ones.

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
        policy: PolicyGraph,
        epsilon: float,
        mechanism: MechanismName = "lattice",
        repair: Method = "exact",
        delta: float | None = None,
        rng: Rng = None,
        *,
        objective: Objective = "error",
        membership: Membership = "halfspace",
        allow_known: bool = False,
        spacing: Rational = Fraction(1, 1000),
        outside: Outside = "border",
        repair_limit: int = REPAIR_LIMIT,
        caps: Sequence[Cap] = (),
        priors: str | None = None,
        calibration: Calibration = "graph",
        schedule: Schedule | None = None,
        optimal_limit: int = OPTIMAL_LIMIT,
        fallback: Fallback = "none",
    ) -> None:
        given = GIVEN, epsilon, mechanism, repair, objective, membership, delta, allow_known, spacing, outside
        more = repair_limit, tuple(caps), priors, calibration, schedule, optimal_limit, fallback
        settings = ReleaseSettings(*given, *more)
        self._begin(settings, model, policy.check_measurements(f), policy, rng)

    @classmethod
    def made(
        cls, settings: ReleaseSettings, model: MarkovModel, space: StateSpace, policy: PolicyGraph, rng: Rng = None
    ) -> Releaser:
        """The engine for a space's places that `ReleaseSettings.engine` hands out, with the policy made already.

        With exact noise, places that are nearer than the lattice's step may be rounded to one point. No release then
        tells them apart.
        """
        engine = cls.__new__(cls)
        engine._begin(settings, model, policy.check_measurements(space.measurements()), policy, rng)
        return engine

    def _begin(
        self, settings: ReleaseSettings, model: MarkovModel, measurements: Measurements, policy: PolicyGraph, rng: Rng
    ) -> None:
        if model.size != policy.size:
            raise StateError(f"the model has {model.size} states and the policy {policy.size}; they must agree")
        self.query = Query(settings, measurements)
        if settings.policy == GIVEN:
            settings = replace(settings, policy=GIVEN + content_hash(policy.content_hash, measurements.points))
            self.query.check_told_apart()
        self.settings, self.model, self.policy = settings, model, policy
        self.measurements = self.query.measurements
        """What is measured, on the published lattice for exact noise."""
        self.values: npt.NDArray[Any] = self.query.values
        """``(N, d)``: what the mechanism takes as true values: points, or whole steps of the published lattice."""
        self.soundness = SoundnessCheck(policy, self.values)
        self.capping = Capping(settings, model)
        self.scheduling = Scheduling(settings.schedule, model, self.measurements.points)
        self.source = random_source(rng)
        self._planner = Planner(settings, policy, self.measurements)
        self._made: tuple[tuple[StepPlan, float, Mechanism | ComponentNoise], ...] = ()
        self.person = PublicState()
        self.places = self.measurements  # the nearest possible state by these stands in for one that is not
        self.restart()

    @checked
    def another(self, rng: Rng = None) -> Releaser:
        """An engine of the same settings and model that has released nothing; it begins with this one's last plan.

        Parameters
        ----------
        rng
            Its source of randomness; left out, this one's.
        """
        engine = copy(self)
        if rng is not None:
            engine.source = random_source(rng)
        engine._planner = copy(self._planner)
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
        changes
            Settings that differ from this engine's: ``epsilon``, ``mechanism``, ``spacing``, ``repair``, ….

        Raises
        ------
        PolicyError, CoordinateError, ConfigurationError, BudgetError
            As making a `Releaser`.
        """
        same = {**self.settings.to_dict(), "caps": self.settings.caps} | changes
        settings = ReleaseSettings.from_dict({**same, "policy": GIVEN})
        other = Releaser.__new__(Releaser)
        other._begin(settings, self.model, self.policy.check_measurements(f), self.policy, self.source)
        return other.join(self)

    def join(self, other: Releaser) -> Releaser:
        """Make this engine's query one about the person of another engine; returns itself.

        Raises
        ------
        InvalidInputError
            When the engines differ in model or policy.
        """
        mine, theirs = ((one.model.content_hash, one.policy.content_hash) for one in (self, other))
        if mine != theirs:
            raise InvalidInputError("queries about one person share the model and the policy; these differ")
        self.person, self.places = other.person, other.places
        return self

    def restart(self, first: int | None = None) -> None:
        """Forget all releases: the next is the first of a new person or session, in a public time step ``first``."""
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
        """
        self.person.advance(belief, count, keeper, slot)
        self.person.account = account if count or account is not None else Account()
        self._last: tuple[ReleaseRecord, StepPlan, int, float] | None = None

    @property
    def belief(self) -> Belief | None:
        """The public belief after the last release; ``None`` before the first. Of all queries about the person."""
        return self.person.belief

    @property
    def is_private(self) -> bool:
        """Whether noise comes from the operating system; where it follows from a seed, nothing is private."""
        return self.source.bytes is os.urandom

    def prior(self, steps: int = 1) -> Belief:
        """The belief before the next release, ``steps`` time steps after the last one: ``p(s_t | z_1..t-1)``."""
        return self.person.prior(self.model, steps)

    def plan(self, prior: Belief, also: tuple[tuple[int, int], ...] = ()) -> StepPlan:
        """The constraint set that a prior leads to, and its repaired graph. Public: no true state is involved.

        Edges ``(i, j)``, ``i < j``, in ``also`` are added before the repair.

        Raises
        ------
        AlreadyKnownError
            When one state only is possible, unless that is allowed.
        """
        return self._planner(prior, also)

    def mechanism(self, plan: StepPlan, epsilon: float) -> Mechanism | ComponentNoise:
        """The noise of a step: in lattice steps for ``"lattice"``, otherwise in the unit of the measurements."""
        for known, budget, noise in self._made:
            if known is plan and budget == epsilon:
                return noise
        self._made = ((plan, epsilon, self.query.noise(plan.protection, epsilon, plan.prior)), *self._made[:3])
        return self._made[0][2]

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
        self.check_state(state)
        check_steps(steps)
        return self.draw(self.prepare(epsilon, steps), state)

    def prepare(self, epsilon: float | None = None, steps: int = 1) -> PreparedStep:
        """Everything about the next release but the draw, and without the truth. Nothing changes by it.

        Parameters are those of `release`, except that ``steps`` may be 0, for another release about the same moment;
        so are the errors. A schedule and caps on events lower the budget; where they leave none nothing is drawn.
        """
        budget = self.settings.epsilon if epsilon is None else check_budget(epsilon)
        return self.scheduling.prepare(self, self.prior(steps), budget, steps)

    def prepare_on(self, prior: Belief, plan: StepPlan, epsilon: float, steps: int = 0) -> PreparedStep:
        """The same for a prior and a plan of one's own."""
        return PreparedStep(prior, plan, self.mechanism(plan, epsilon), epsilon, steps, self.person.moment)

    def draw(self, step: PreparedStep, state: int) -> ReleaseRecord:
        """Draw a prepared release of the true state and update the belief.

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
        others
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
        """
        if step.moment is not self.person.moment:
            raise InvalidInputError("the prepared step was drawn, or the engine has gone on since; prepare another")
        used, constraint = self.check_state(state), step.plan.constraint
        self.soundness(step, self.settings.delta, self.settings.allow_known)
        return used if constraint[used] else int(self.places.surrogates(np.array([used]), constraint)[0])

    def drawn(self, step: PreparedStep, used: int) -> ReleaseRecord:
        """Draw the release of a state that `ready` gave, and update the belief."""
        wanted = self.capping.wanted(step.prior.support)
        place, likelihood = self.query.drawn(step, used, wanted, self.places, self.source)
        posterior = step.prior if step.withheld else step.prior.update(likelihood)
        keeper = self.capping.after(self.person, likelihood, step.steps)
        record = ReleaseRecord.of(
            step,
            self.person.count,
            released=place,
            guess=best_guess(posterior.probabilities, self.measurements.by_columns),
            spent=self.person.spend(step, self.model.step_seconds),
            expected_error=self.query.expected_error(step.mechanism, step.prior),
            compared=self.query.compared(step.mechanism, step.prior),
            hidden=self.query.hidden(step.mechanism, posterior, step.plan, self.places),
            settings=self.settings,
            model=self.model.content_hash,
        )
        self.person.advance(posterior, self.person.count + 1, keeper, self.person.slot_after(step.steps), likelihood)
        self._last = (record, step.plan, used, self.query.error_at(step.mechanism, used))
        return record

    def log_likelihood(self, step: PreparedStep, released: npt.ArrayLike | None) -> FloatArray:
        """``log p(z | s)`` of a release ``z``, ``(d,)``, for every state ``(N,)``, as an adversary knows it.

        Each component has its own normaliser and support; see `dphmm.release.noise.ComponentNoise.log_density`.

        States outside the constraint set have the density of the nearest possible state, which stands in for them.

        Raises
        ------
        CoordinateError
            When the release has another dimension, is not finite, or (with ``"lattice"``) lies off the lattice.
        """
        return self.query.likelihood_at(step, released, np.ones(self.model.size, dtype=np.bool_), self.places)

    def private_diagnostics(self, state: int) -> PrivateDiagnostics:
        """What the last release looks like to someone who knows the true state, which was ``state``. Keep it private.

        Raises
        ------
        InvalidInputError
            Before the first release.
        """
        if self._last is None:
            raise InvalidInputError("nothing was released yet; call release first")
        return PrivateDiagnostics.of(*self._last, self.check_state(state), self.measurements)

    def check_state(self, state: int) -> int:
        """The state as an int, refused with a StateError where it does not exist."""
        return as_state(state, self.model.size)
