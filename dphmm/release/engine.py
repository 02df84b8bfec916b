"""The release engine: Algorithm 2, one time step after another."""

from __future__ import annotations

import os
from copy import copy
from fractions import Fraction
from math import inf, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import (
    RELATIVE_TOLERANCE,
    BoolArray,
    FloatArray,
    IntArray,
    Rng,
    check_epsilon,
    content_hash,
    random_source,
)
from dphmm.errors import CoordinateError, InvalidInputError, StateError
from dphmm.geometry.disc import Disc
from dphmm.geometry.hull import Membership, SensitivityHull
from dphmm.geometry.measurements import Measurements
from dphmm.markov.belief import Belief
from dphmm.markov.model import MarkovModel
from dphmm.mechanisms.base import Mechanism
from dphmm.mechanisms.catalogue import BODY_OF, PLANAR_ONLY, MechanismName
from dphmm.mechanisms.exact import Rational
from dphmm.mechanisms.isotropic import PlanarIsotropicMechanism
from dphmm.mechanisms.knorm import KNormMechanism
from dphmm.mechanisms.laplace import LaplaceMechanism
from dphmm.mechanisms.lattice import LatticeKNormMechanism
from dphmm.mechanisms.planar_laplace import PlanarLaplaceMechanism
from dphmm.mechanisms.spacing import Spacing
from dphmm.policy.graph import PolicyGraph
from dphmm.policy.protection import Method, protect
from dphmm.policy.repair import Objective
from dphmm.release.record import PrivateDiagnostics, ReleaseRecord
from dphmm.release.settings import GIVEN, ReleaseSettings
from dphmm.release.step import PreparedStep, StepPlan
from dphmm.space.states import StateSpace


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
    repair, delta, objective, membership, allow_known
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
        objective: Objective = "volume",
        membership: Membership = "halfspace",
        allow_known: bool = False,
        spacing: Rational = Fraction(1, 1000),
    ) -> None:
        measurements = policy.check_measurements(f)
        given = GIVEN + content_hash(policy.content_hash, measurements.points)
        settings = ReleaseSettings(
            given, epsilon, mechanism, repair, objective, membership, delta, allow_known, spacing
        )  # fmt: skip
        self._begin(settings, model, measurements, policy, rng)
        if self._lattice is not None:
            _check_told_apart(measurements.points, self.values, self._lattice)

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
        if settings.mechanism in PLANAR_ONLY and measurements.dimension != 2:
            raise InvalidInputError(
                f"mechanism {settings.mechanism!r} needs planar measurements, not {measurements.dimension}-dimensional "
                "ones"
            )
        self.settings = settings
        """How places are released."""
        self.model = model
        self.policy = policy
        self.measurements = measurements
        self.values: npt.NDArray[Any] = measurements.points
        """``(N, d)``: what the mechanism takes as true values: points, or whole steps of the published lattice."""
        self._lattice: Spacing | None = None
        if settings.mechanism == "lattice":
            self._lattice = Spacing(settings.spacing)
            self.values = self._lattice.nearest(measurements.points, "measurements")
            self.measurements = Measurements.on_lattice(self.values, float(self._lattice.step))
        self._source = random_source(rng)
        self._plan: StepPlan | None = None
        self._made: tuple[StepPlan, float, Mechanism] | None = None
        self.restart()

    def another(self, rng: Rng = None) -> Releaser:
        """An engine of the same settings and model that has released nothing.

        Parameters
        ----------
        rng
            Its source of randomness; left out, this one's.
        """
        engine = copy(self)
        if rng is not None:
            engine._source = random_source(rng)
        engine._plan = engine._made = None
        engine.restart()
        return engine

    def restart(self) -> None:
        """Forget all releases: the next one is the first of a new person or session."""
        self.resume(None, 0)

    def resume(self, belief: Belief | None, count: int) -> None:
        """Go on from the public belief after ``count`` releases (None where there were none)."""
        self.belief = belief
        """The public belief after the last release; ``None`` before the first."""
        self._count = count
        self._moment = object()
        self._last: tuple[ReleaseRecord, StepPlan, int] | None = None

    @property
    def is_private(self) -> bool:
        """Whether noise comes from the operating system; where it follows from a seed, nothing is private."""
        return self._source.bytes is os.urandom

    def prior(self, steps: int = 1) -> Belief:
        """The belief before the next release, ``steps`` time steps after the last one: ``p(s_t | z_1..t-1)``."""
        if self.belief is None:
            return Belief.of(self.model.initial)
        return self.belief.predict(self.model, steps)

    def plan(self, prior: Belief) -> StepPlan:
        """The constraint set that a prior leads to, and its repaired graph. Public: no true state is involved.

        Raises
        ------
        AlreadyKnownError
            When one state only is possible, unless that is allowed.
        """
        settings = self.settings
        constraint = prior.support if settings.delta is None else prior.location_set(settings.delta)
        if self._plan is None or not np.array_equal(self._plan.constraint, constraint):
            protection = None
            if not (settings.allow_known and int(constraint.sum()) == 1):
                protection = protect(
                    self.policy,
                    self.measurements,
                    constraint,
                    method=settings.repair,
                    objective=settings.objective,
                    body=BODY_OF[settings.mechanism],
                    membership=settings.membership,
                )
            self._plan = StepPlan(constraint, protection)
        return self._plan

    def mechanism(self, plan: StepPlan, epsilon: float) -> Mechanism:
        """The mechanism of a step: in lattice steps for ``"lattice"``, otherwise in the unit of the measurements."""
        if self._made is None or self._made[0] is not plan or self._made[1] != epsilon:
            self._made = (plan, epsilon, self._make_mechanism(plan, epsilon))
        return self._made[2]

    def _make_mechanism(self, plan: StepPlan, epsilon: float) -> Mechanism:
        dimension = self.measurements.dimension
        if self.settings.mechanism == "lattice":
            vertices = np.zeros((0, dimension)) if plan.protection is None else plan.protection.coordinate_hull.vertices
            steps = np.rint(vertices).astype(np.int64) * self.measurements.steps_per_coordinate
            return LatticeKNormMechanism(SensitivityHull(steps), epsilon)
        if plan.protection is None or plan.protection.hull.dimension == 0:
            return KNormMechanism(SensitivityHull(np.zeros((0, dimension))), epsilon)
        body, hull = plan.protection.body, plan.protection.hull
        if isinstance(body, Disc):
            return PlanarLaplaceMechanism(epsilon, body.radius)
        if self.settings.mechanism == "laplace":
            return LaplaceMechanism(float(np.abs(hull.vertices).sum(axis=1).max()), epsilon, dimension)
        if self.settings.mechanism == "planar-isotropic":
            return PlanarIsotropicMechanism(hull, epsilon)
        return KNormMechanism(hull, epsilon)

    def release(self, state: int, epsilon: float | None = None, steps: int = 1) -> ReleaseRecord:
        """Release the measurement of the person's true state.

        Parameters
        ----------
        state
            The true state.
        epsilon
            The budget of this step; left out, the releaser's own.
        steps
            How many time steps have passed since the last release (the first release ignores it). At least 1.

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
        if steps < 1:
            raise InvalidInputError(f"steps is {steps}; releases are at least one time step apart")
        return self.draw(self.prepare(epsilon, steps), state)

    def prepare(self, epsilon: float | None = None, steps: int = 1) -> PreparedStep:
        """Everything about the next release but the draw, and without the truth. Nothing changes by it.

        Parameters are those of `release`, except that ``steps`` may be 0, for another release about the same moment;
        so are the errors.
        """
        budget = self.settings.epsilon if epsilon is None else check_epsilon(epsilon)
        prior = self.prior(steps)
        plan = self.plan(prior)
        return PreparedStep(prior, plan, self.mechanism(plan, budget), budget, steps, self._moment)

    def draw(self, step: PreparedStep, state: int) -> ReleaseRecord:
        """Draw a prepared release of the true state and update the belief.

        Raises
        ------
        StateError
            When the state does not exist.
        InvalidInputError
            When the step was drawn already, or the engine has gone on since it was prepared. Nothing is drawn.
        """
        if step.moment is not self._moment:
            raise InvalidInputError("the prepared step was drawn, or the engine has gone on since; prepare another")
        used, constraint = self.check_state(state), step.plan.constraint
        if not constraint[used]:
            used = int(self.measurements.surrogates(np.array([used]), constraint)[0])
        released = step.mechanism.sample(self.values[used], self._source)
        posterior = step.prior.update(self._log_likelihood(released, step.mechanism, step.prior.support, constraint))
        record = self._record(step, released, posterior)
        self.belief = posterior
        self._count += 1
        self._moment = object()
        self._last = (record, step.plan, used)
        return record

    def log_likelihood(self, step: PreparedStep, released: npt.ArrayLike) -> FloatArray:
        """``log p(z | s)`` of a release ``z``, ``(d,)``, for every state ``(N,)``, as an adversary knows it.

        States outside the constraint set have the density of the nearest possible state, which stands in for them.

        Raises
        ------
        CoordinateError
            When the release has another dimension, is not finite, or (with ``"lattice"``) lies off the lattice.
        """
        point: npt.NDArray[Any] = np.asarray(released, dtype=np.float64)
        if self._lattice is not None:
            point = self._lattice.steps(point, "released")
        everyone = np.ones(self.model.size, dtype=np.bool_)
        return self._log_likelihood(point, step.mechanism, everyone, step.plan.constraint)

    def private_diagnostics(self, state: int) -> PrivateDiagnostics:
        """What the last release looks like to someone who knows the true state, which was ``state``. Keep it private.

        Raises
        ------
        InvalidInputError
            Before the first release.
        """
        if self._last is None:
            raise InvalidInputError("nothing was released yet; call release first")
        record, plan, used = self._last
        true = self.check_state(state)
        place = self.measurements.points[true]
        return PrivateDiagnostics(
            index=record.index,
            true_state=true,
            used_state=used,
            stood_in=used != true,
            error=float(np.linalg.norm(np.array(record.released) - place)),
            estimate_error=float(np.linalg.norm(np.array(record.estimate) - place)),
            degree_of_protection=1 if plan.protection is None else int(plan.protection.degrees[used]),
        )

    def check_state(self, state: int) -> int:
        """The state as an int, refused with a StateError where it does not exist."""
        index = int(state)
        if index != state or not 0 <= index < self.model.size:
            raise StateError(f"state {state} does not exist; states are 0 to {self.model.size - 1}")
        return index

    def _log_likelihood(
        self, released: npt.NDArray[Any], mechanism: Mechanism, wanted: BoolArray, constraint: BoolArray
    ) -> FloatArray:
        """``log p(z | s)`` for every wanted state, with the stand-in's density for those outside the constraint set."""
        if constraint.all():
            return mechanism.log_density(released, self.values)
        likelihood = np.full(self.model.size, -inf)
        likelihood[constraint] = mechanism.log_density(released, self.values[constraint])
        outside = np.flatnonzero(wanted & ~constraint)
        if len(outside):
            likelihood[outside] = likelihood[self.measurements.surrogates(outside, constraint)]
        return likelihood

    def _record(self, step: PreparedStep, released: npt.NDArray[Any], posterior: Belief) -> ReleaseRecord:
        plan = step.plan
        unit = 1.0 if self._lattice is None else float(self._lattice.step)
        place = released if self._lattice is None else self._lattice.points(released)
        hull = None if plan.protection is None else plan.protection.hull
        return ReleaseRecord(
            index=self._count,
            steps=step.steps if self._count else 0,
            released=tuple(place.tolist()),
            estimate=tuple(posterior.mean(self.measurements.points).tolist()),
            epsilon=step.epsilon,
            mechanism=self.settings.mechanism,
            expected_error=sqrt(step.mechanism.squared_error) * unit,
            possible=int(plan.constraint.sum()),
            least_protection=plan.least_protection,
            added=() if plan.protection is None else plan.protection.added,
            area=0.0 if hull is None else hull.volume,
            dimension=0 if hull is None else hull.dimension,
            constrained_factor=step.constrained_factor,
            certified=plan.protection is None or plan.protection.certified,
            already_known=plan.protection is None,
            settings=self.settings.content_hash,
            model=self.model.content_hash,
        )


def _check_told_apart(points: FloatArray, steps: IntArray, lattice: Spacing) -> None:
    """Refuse measurements of which rounding to the lattice makes different ones equal."""
    if np.abs(points - steps * float(lattice.step)).max() <= RELATIVE_TOLERANCE * float(lattice.step):
        return
    if len(np.unique(steps, axis=0)) < len(np.unique(points, axis=0)):
        raise CoordinateError(
            f"measurements that differ are equal on a lattice with spacing {lattice.step}; choose a smaller spacing"
        )
