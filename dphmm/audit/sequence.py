"""A released sequence audited end to end: replayed, inferred from, and held against the bounds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from math import isclose, isnan

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import BoolArray, FloatArray, IntArray, as_distribution, as_points, check_epsilon
from dphmm.audit.adversary import AdversaryAudit, audit_support, body_kind
from dphmm.audit.facts import Facts, finite, named
from dphmm.audit.metrics import TOP, Accuracy, Knowledge, accuracy, knowledge, no_information, no_noise
from dphmm.errors import AlreadyKnownError, InvalidInputError, StochasticError
from dphmm.markov import (
    Belief,
    Filtering,
    MostProbablePath,
    Observations,
    filter_releases,
    path_of_releases,
    smooth_releases,
)
from dphmm.markov.beliefs import Beliefs
from dphmm.markov.path import prepare_path
from dphmm.policy.protection import exposed_states
from dphmm.release.engine import Releaser
from dphmm.release.step import PreparedStep
from dphmm.threads import beside


@checked
@dataclass(frozen=True, eq=False)
class ReleasedSequence:
    """What was published about one person, in the order of time.

    Parameters
    ----------
    user
        Whose releases they are.
    released
        ``(T, d)``: the released measurements.
    epsilons
        ``(T,)``: their budgets; 0 where nothing was drawn, and the row of `released` is not looked at.
    steps
        ``(T,)``: the time steps between each release and the one before, 0 for another release about the same moment;
        the first entry is not used.
    possible
        ``(T,)``: how many states were possible according to the record, where it says so; otherwise empty.
    factors
        ``(T,)``: the constrained-DP factors according to the record, NaN for one it does not tell; or empty.
    begins
        ``(T,)``: whether the releaser had forgotten all releases before this one, as a batch does after a long gap; or
        empty, where it never had. The adversary forgets nothing.
    first
        The time step of the first release, counted from 1970, for models that vary with time; None where nobody knows.
    engines
        The number of a release, from 1 → the engine that made it and those that follow, where its settings are others
        than those before. The model is the same.

    Raises
    ------
    InvalidInputError
        When shapes do not fit, or a step is negative.
    CoordinateError, BudgetError
        For releases that are not finite, or budgets that are none.
    """

    user: str
    released: FloatArray
    epsilons: FloatArray
    steps: IntArray
    possible: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    factors: FloatArray = field(default_factory=lambda: np.zeros(0))
    begins: BoolArray = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    first: int | None = None
    engines: Mapping[int, Releaser] = field(default_factory=dict)

    def __post_init__(self) -> None:
        points = as_points(self.released, f"the releases of {self.user}")
        if not len(points):
            raise InvalidInputError(f"user {self.user} has no release; there is nothing to audit")
        for name in ("epsilons", "steps", "possible", "factors", "begins"):
            values = np.asarray(getattr(self, name))
            if values.ndim != 1 or values.dtype.kind not in "biuf":
                raise InvalidInputError(f"user {self.user}: {name} are no list of numbers; give one for each release")
            if len(values) != len(points) and (len(values) or name in ("epsilons", "steps")):
                raise InvalidInputError(f"user {self.user}: there are {len(values)} {name} for {len(points)} releases")
        for epsilon in np.asarray(self.epsilons)[np.asarray(self.epsilons) != 0]:
            check_epsilon(float(epsilon))
        for number in self.engines:
            if not 0 < number < len(points):
                raise InvalidInputError(f"user {self.user}: an engine is of release {number}, which follows no other")
        if (np.asarray(self.steps)[1:] < 0).any():
            raise InvalidInputError(f"user {self.user}: a release lies before the one before it; sort them by time")

    def __len__(self) -> int:
        return len(self.released)

    @property
    def slots(self) -> list[int | None]:
        """The time step of each release, as far as that of the first is known."""
        passed = np.concatenate([[0], np.cumsum(np.asarray(self.steps)[1:])]).tolist()
        return [None if self.first is None else self.first + int(one) for one in passed]


@dataclass(frozen=True, eq=False)
class Replay:
    """A public release as an adversary takes it in who knows model, policy and mechanism.

    Parameters
    ----------
    step
        The belief before it, the constraint set with its repaired graph, the mechanism and the budget.
    log_likelihood
        ``(N,)``: ``log p(z_t | s_t)`` of every state, with the stand-in's density outside the constraint set.
    posterior
        ``p(s_t | z_1..t)``.
    engine
        The engine that makes such releases.
    """

    step: PreparedStep
    log_likelihood: FloatArray = field(repr=False)
    posterior: Belief = field(repr=False)
    engine: Releaser = field(repr=False)


@dataclass(frozen=True)
class StepAudit:
    """What held at one release, a function of public things only.

    Parameters
    ----------
    possible
        The size of the constraint set.
    least_protection
        The least degree of protection over it, after the repair.
    added
        The edges that the repair added.
    exposed_before_repair
        How many states the policy left exposed before the repair.
    area
        The volume of the noise body.
    constrained_factor
        The constrained-DP factor (Theorem 6.3).
    adversary
        What the release means for the other adversary, where there is one and more than one state was possible.
    components
        How many components with noise of their own the possible states fell into.
    open
        Whether everybody takes the release for one of an open state.
    all_open
        Whether nothing but open states was possible, which need no protection.
    """

    possible: int
    least_protection: int
    added: tuple[tuple[int, int], ...]
    exposed_before_repair: int
    area: float
    constrained_factor: float
    adversary: AdversaryAudit | None
    components: int = 1
    open: bool = False
    all_open: bool = False

    @property
    def is_exposed(self) -> bool:
        """Whether some state was exposed: to everyone, or to the other adversary."""
        other = self.adversary
        exposed = self.least_protection < 2 and not self.all_open
        return exposed or (other is not None and bool(other.known or other.exposed_with_stand_ins))

    def facts(self, names: Sequence[str]) -> Facts:
        """As plain values for JSON: states by name."""
        stated = {
            "added": [named(edge, names) for edge in self.added],
            "constrained_factor": finite(self.constrained_factor),
            "already_known": self.possible == 1,
            "adversary": None if self.adversary is None else self.adversary.facts(names),
        }
        return {**vars(self), **stated}


@dataclass(frozen=True, eq=False)
class SequenceAudit:
    """What a released sequence says, and to whom.

    Parameters
    ----------
    user
        Whose it is.
    epsilon
        The sum of the budgets (Theorem 7.1).
    constrained_epsilon
        The sum of factor times budget (Theorem 7.2).
    steps
        One per release.
    filtering, smoothed, path
        What the adversary infers: at each release, of each release in hindsight, and as a whole.
    uninformed, online, hindsight
        What is known without releases, at each release, and in hindsight.
    accuracies
        Where the truth was given: the same three, then the bound of being told every true measurement.
    path_hits
        Where the truth was given: the share of releases at which the most probable path is right; otherwise NaN.
    """

    user: str
    epsilon: float
    constrained_epsilon: float
    steps: tuple[StepAudit, ...] = field(repr=False)
    filtering: Filtering = field(repr=False)
    smoothed: Sequence[Belief] = field(repr=False)
    path: MostProbablePath = field(repr=False)
    uninformed: Knowledge = field(repr=False)
    online: Knowledge = field(repr=False)
    hindsight: Knowledge = field(repr=False)
    accuracies: tuple[Accuracy, Accuracy, Accuracy, Accuracy] | None = field(repr=False)
    path_hits: float

    @property
    def exposed_steps(self) -> tuple[int, ...]:
        """The releases at which some state was exposed: to everyone, or to the other adversary."""
        return tuple(t for t, step in enumerate(self.steps) if step.is_exposed)

    @property
    def entries(self) -> tuple[int, ...]:
        """The releases right after an open one that are not open themselves: somebody entered a zone."""
        pairs = zip(self.steps, self.steps[1:], strict=False)
        return tuple(t + 1 for t, (before, after) in enumerate(pairs) if before.open and not after.open)

    def in_words(self) -> str:
        """What all releases together told, which the promise of each one does not limit."""
        before, after = self.uninformed, self.hindsight
        return (
            f"All releases of {self.user} leave {after.entropy.mean():.2f} of {before.entropy.mean():.2f} bits "
            f"of uncertainty about a place; the likeliest is the true one with probability {after.best.mean():.2f} "
            f"on average, {after.best.max():.2f} at the surest release ({before.best.mean():.2f} without releases)."
        )

    def facts(self, names: Sequence[str]) -> Facts:
        """As plain values for JSON: states by name."""
        known = {"no_releases": self.uninformed, "at_each_release": self.online, "in_hindsight": self.hindsight}
        facts: Facts = {
            "user": self.user,
            "releases": len(self.steps),
            "epsilon": self.epsilon,
            "constrained_epsilon": finite(self.constrained_epsilon),
            "log_evidence": self.filtering.log_evidence,
            "exposed_releases": [t + 1 for t in self.exposed_steps],
            "open_releases": [t + 1 for t, step in enumerate(self.steps) if step.open],
            "entries": [{"release": t + 1, "best_guess": float(self.online.best[t])} for t in self.entries],
            "states_exposed_before_repair_most": max(step.exposed_before_repair for step in self.steps),
            "edges_added": sum(len(step.added) for step in self.steps),
            "knowledge": {name: one.facts() for name, one in known.items()},
            "most_probable_path": named(self.path.states.tolist(), names),
            "steps": [step.facts(names) for step in self.steps],
        }
        if self.accuracies is not None:
            labels = (*known, "told_every_measurement")
            facts["accuracy"] = {name: one.facts() for name, one in zip(labels, self.accuracies, strict=True)}
            facts["accuracy"]["most_probable_path_right"] = self.path_hits
        return facts


def replay_sequence(releaser: Releaser, sequence: ReleasedSequence) -> Iterator[Replay]:
    """Every release of a sequence as an adversary takes it in who knows the engine's settings. The engine starts anew.

    Raises
    ------
    InvalidInputError
        When a release was made with other settings: the number of possible states or the constrained-DP factor differs
        from the record's, or no possible state could have given it.
    AlreadyKnownError
        When one state only is possible and the engine does not allow that.
    """
    slots = sequence.slots
    releaser.restart(slots[0])
    made_with = "was it made with this model, policy, mechanism and delta?"
    for t in range(len(sequence)):
        where = f"user {sequence.user}, release {t + 1}"
        steps = 1 if t == 0 else int(sequence.steps[t])
        if t in sequence.engines:
            belief, releaser = releaser.belief, sequence.engines[t].another()
            releaser.resume(belief, t, slot=slots[t - 1])
        if len(sequence.begins) and sequence.begins[t]:
            releaser.restart(slots[t])
        try:
            prior = releaser.prior(steps)
            if sequence.epsilons[t]:
                step = releaser.prepare_on(prior, releaser.plan(prior), float(sequence.epsilons[t]), steps)
            else:
                step = PreparedStep.withholding(prior, steps, releaser.person.moment, "target")
            likelihood = releaser.log_likelihood(step, sequence.released[t])
            replay = Replay(step, likelihood, step.prior.update(likelihood), releaser)
        except StochasticError:
            raise InvalidInputError(f"{where}: no possible state could have given it; {made_with}") from None
        except AlreadyKnownError as problem:
            raise AlreadyKnownError(f"{where}: {problem}") from None
        releaser.resume(replay.posterior, t + 1, slot=slots[t])
        _check_record(sequence, t, step, f"{where}: the record says that", made_with)
        yield replay


def _check_record(sequence: ReleasedSequence, t: int, step: PreparedStep, where: str, made_with: str) -> None:
    possible = int(step.plan.constraint.sum())
    if len(sequence.possible) and possible != int(sequence.possible[t]):
        raise InvalidInputError(
            f"{where} {int(sequence.possible[t])} states were possible, and there are {possible}; {made_with}"
        )
    stated = float(sequence.factors[t]) if len(sequence.factors) else float("nan")
    if not isnan(stated) and not isclose(stated, step.constrained_factor, rel_tol=1e-6):
        raise InvalidInputError(
            f"{where} the constrained-DP factor was {stated:.6g}, and it is {step.constrained_factor:.6g}; {made_with}"
        )


@checked
def audit_sequence(
    releaser: Releaser,
    sequence: ReleasedSequence,
    prior: npt.ArrayLike | None = None,
    truth: npt.ArrayLike | None = None,
    k: int = TOP,
) -> SequenceAudit:
    """What a released sequence gives away, to the public adversary or to one with a prior of their own.

    Parameters
    ----------
    releaser
        An engine with the settings that the releases, or the first of them, were made with: it knows the emission
        density of every step, which depends on the constraint set and so on past releases.
    sequence
        The releases.
    prior
        ``(N,)``: the distribution of the first state that another adversary holds, who shares the model's transitions;
        inference is theirs then. Left out, the model's.
    truth
        ``(T,)``: the true states, for whoever may know them; the result is private then.
    k
        How many states count as the top.

    Raises
    ------
    StochasticError
        When the prior is no distribution over the states, or rules out what was released.
    StateError
        When there is not one true state per release, or one does not exist.
    InvalidInputError, AlreadyKnownError
        As `replay_sequence` does.
    """
    model, points = releaser.model, releaser.measurements.points
    start = None if prior is None else as_distribution(prior, model.size, "the adversary's prior")
    gaps, slots = np.asarray(sequence.steps).copy(), None if sequence.first is None else np.array(sequence.slots)
    gaps[0] = 0

    def alone() -> tuple[Beliefs, Knowledge]:
        beliefs = no_information(model, gaps, start, sequence.first)
        return beliefs, knowledge(beliefs, points, k)

    # What the model alone says needs no release; through gaps it is one thread's at a time.
    ready, known_alone = beside(partial(prepare_path, model.moving(gaps, slots))), alone
    if gaps.max() <= 1:
        known_alone = beside(alone)
    replays = list(replay_sequence(releaser, sequence))
    rows = np.array([replay.log_likelihood for replay in replays])
    observed = Observations(rows, np.asarray(sequence.steps), sequence.first)
    if start is None and not np.any(sequence.begins[1:]):  # whoever replays it has filtered it
        before, after = ([one.step.prior for one in replays], [one.posterior for one in replays])
        filtering = Filtering.of(model, observed, before, after)
    else:
        filtering = filter_releases(model, observed, start)
    filtered = filtering.at()

    def found_beside() -> tuple[MostProbablePath, Knowledge]:
        ready()
        return path_of_releases(model, observed, start), knowledge(filtered, points, k)

    path_found = beside(found_beside)
    smoothed = smooth_releases(model, observed, filtering)
    hindsight = knowledge(smoothed, points, k)
    uninformed, before_all = known_alone()
    theirs: Iterable[Belief | None] = repeat(None) if start is None else filtering.predicted
    steps = tuple(_step(replay, belief) for replay, belief in zip(replays, theirs, strict=False))
    path, online = path_found()
    accuracies = None
    if truth is not None:
        stated = no_noise(points, truth, uninformed)
        held = (uninformed, filtered, smoothed, stated)
        accuracies = tuple(accuracy(beliefs, points, truth, k) for beliefs in held)
    factors = np.array([step.constrained_factor for step in steps])
    charged = np.where(factors > 0, factors, 0.0) * np.asarray(sequence.epsilons)
    return SequenceAudit(
        user=sequence.user,
        epsilon=float(np.sum(sequence.epsilons)),
        constrained_epsilon=float(charged.sum()),
        steps=steps,
        filtering=filtering,
        smoothed=smoothed,
        path=path,
        uninformed=before_all,
        online=online,
        hindsight=hindsight,
        accuracies=accuracies,  # type: ignore[arg-type]
        path_hits=float("nan") if truth is None else float((path.states == np.asarray(truth)).mean()),
    )


def _step(replay: Replay, belief: Belief | None) -> StepAudit:
    releaser, plan = replay.engine, replay.step.plan
    protection = plan.protection
    if protection is None:  # one state only was possible, or nothing was drawn
        possible = int(plan.constraint.sum())
        return StepAudit(possible, possible, (), int(possible == 1), 0.0, 0.0, None)
    measurements, to_protect = releaser.measurements, 0
    if protection.added:
        body, calibration = body_kind(protection), releaser.settings.calibration
        found = exposed_states(releaser.policy, measurements, plan.constraint, body, calibration=calibration)
        to_protect = len(found)
    hidden = releaser.query.hidden(replay.step.mechanism, replay.posterior, plan, releaser.places)
    return StepAudit(
        possible=int(plan.constraint.sum()),
        least_protection=plan.least_protection,
        added=protection.added,
        exposed_before_repair=to_protect,
        area=protection.body.volume,
        constrained_factor=protection.diameter,
        adversary=None if belief is None else audit_support(protection, measurements, belief.support),
        components=hidden.components,
        open=hidden.open,
        all_open=not (plan.constraint & ~protection.open).any(),
    )
