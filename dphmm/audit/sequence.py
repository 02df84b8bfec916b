"""A released sequence audited end to end: replayed, inferred from, held against its bounds, and judged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from math import inf, isclose, isnan

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import BoolArray, FloatArray, IntArray, as_distribution, as_points, check_epsilon
from dphmm.audit import inference
from dphmm.audit.inference import TOP, Accuracy, AdversaryAudit, Knowledge, knowledge
from dphmm.errors import AlreadyKnownError, ConfigurationError, InvalidInputError, StochasticError
from dphmm.facts import Facts, fact, facts_of, metres, named, odds_in_words
from dphmm.model import (
    Belief,
    Filtering,
    MarkovModel,
    MostProbablePath,
    Observations,
    filter_releases,
    path_of_releases,
    smooth_releases,
)
from dphmm.model.forward_backward import Beliefs, smoothed_logs
from dphmm.model.point_estimate import point_estimate
from dphmm.policy.protection import exposed_states
from dphmm.release.engine import Releaser
from dphmm.release.ledger import total
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
        The time step of the first release, counted from 1970, for models that vary with time; None where it is unknown.
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
    """A public release as an adversary takes it in who knows model, policy and mechanism, and is told all releases.

    Parameters
    ----------
    prior
        ``p(s_t | z_1..t-1)``.
    step
        The belief that it was prepared for, the constraint set with its repaired graph, the mechanism and the budget.
    log_likelihood
        ``(N,)``: ``log p(z_t | s_t)`` of every state, with the stand-in's density outside the constraint set.
    posterior
        ``p(s_t | z_1..t)``.
    engine
        The engine that makes such releases.
    """

    prior: Belief = field(repr=False)
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

    possible: int = field(metadata=fact())
    least_protection: int = field(metadata=fact())
    added: tuple[tuple[int, int], ...] = field(metadata=fact(states=True))
    exposed_before_repair: int = field(metadata=fact())
    area: float = field(metadata=fact())
    constrained_factor: float = field(metadata=fact())
    adversary: AdversaryAudit | None = field(metadata=fact())
    components: int = field(default=1, metadata=fact())
    open: bool = field(default=False, metadata=fact())
    all_open: bool = field(default=False, metadata=fact())

    @property
    def is_exposed(self) -> bool:
        """Whether some state was exposed: to everyone, or to the other adversary."""
        other = self.adversary
        exposed = self.least_protection < 2 and not self.all_open
        return exposed or (other is not None and bool(other.known or other.exposed_with_stand_ins))

    def facts(self, names: Sequence[str]) -> Facts:
        """As plain values for JSON: states by name."""
        return facts_of(self, names, already_known=self.possible == 1)


@dataclass(frozen=True, eq=False)
class Adversary:
    """Somebody who reads releases, and what they think of how the person moves.

    Parameters
    ----------
    knows
        What they know of that, in words, such as ``"their habits"``.
    model
        What they think of how the person moves, over the same states; None for the model of the releases.
    prior
        ``(N,)``: the distribution of the first state that they hold; None for their model's.
    """

    knows: str
    model: MarkovModel | None = field(default=None, repr=False)
    prior: npt.ArrayLike | None = field(default=None, repr=False)


PUBLIC = Adversary("the model")
"""The adversary who knows the public model and nothing of the person."""


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
    log_evidence
        ``log p(z_1..T)`` under what the adversary thinks of the person, up to the constants of the densities.
    filtering, smoothed, path
        What the adversary infers: at each release, of each release in hindsight, and as a whole; the path is None for
        one who thinks of another model of the person, as it takes most of the time. The first two, a number for each
        release and state, are None and empty where they were not kept.
    expected
        ``(N,)``: how many of the releases are expected to be from each state, in hindsight.
    uninformed, online, hindsight
        What is known without releases, at each release, and in hindsight.
    accuracies
        Where the truth was given: the same three, then the bound of being told every true measurement.
    path_hits
        Where there are truth and path: the share of releases at which the most probable path is right; otherwise NaN.
    knows
        What the adversary knows of how the person moves, in words.
    """

    user: str = field(metadata=fact())
    epsilon: float = field(metadata=fact())
    constrained_epsilon: float = field(metadata=fact())
    log_evidence: float = field(metadata=fact())
    steps: tuple[StepAudit, ...] = field(repr=False, metadata=fact())
    filtering: Filtering | None = field(repr=False)
    smoothed: Sequence[Belief] = field(repr=False)
    expected: FloatArray = field(repr=False)
    path: MostProbablePath | None = field(repr=False)
    uninformed: Knowledge = field(repr=False)
    online: Knowledge = field(repr=False)
    hindsight: Knowledge = field(repr=False)
    accuracies: tuple[Accuracy, Accuracy, Accuracy, Accuracy] | None = field(repr=False)
    path_hits: float
    knows: str = field(default=PUBLIC.knows, metadata=fact("adversary_knows"))

    @property
    def exposed_steps(self) -> tuple[int, ...]:
        """The releases at which some state was exposed: to everyone, or to the other adversary."""
        return tuple(t for t, step in enumerate(self.steps) if step.is_exposed)

    @property
    def entries(self) -> tuple[int, ...]:
        """The releases right after an open one that are not open themselves: the person entered a zone."""
        pairs = zip(self.steps, self.steps[1:], strict=False)
        return tuple(t + 1 for t, (before, after) in enumerate(pairs) if before.open and not after.open)

    def in_words(self) -> str:
        """What all releases together told, which the promise of each one does not limit.

        Returns
        -------
        str
            For people.
        """
        before, after = self.uninformed, self.hindsight
        who = "" if self.knows == PUBLIC.knows else f" somebody who knows {self.knows}"
        return (
            f"All releases of {self.user} leave{who} {after.entropy.mean():.2f} of {before.entropy.mean():.2f} bits "
            f"of uncertainty about a place; the likeliest is the true one with probability {after.best.mean():.2f} "
            f"on average, {after.best.max():.2f} at the surest release ({before.best.mean():.2f} without releases)."
        )

    def facts(self, names: Sequence[str]) -> Facts:
        """As plain values for JSON: states by name.

        Parameters
        ----------
        names
            ``N`` texts: what the states are called.

        Returns
        -------
        dict
            Texts, numbers, None and lists of them.
        """
        known = {"no_releases": self.uninformed, "at_each_release": self.online, "in_hindsight": self.hindsight}
        facts = facts_of(
            self,
            names,
            releases=len(self.steps),
            exposed_releases=[t + 1 for t in self.exposed_steps],
            open_releases=[t + 1 for t, step in enumerate(self.steps) if step.open],
            entries=[{"release": t + 1, "best_guess": self.online.best[t]} for t in self.entries],
            states_exposed_before_repair_most=max(step.exposed_before_repair for step in self.steps),
            edges_added=sum(len(step.added) for step in self.steps),
            knowledge={name: one.facts() for name, one in known.items()},
            most_probable_path=None if self.path is None else named(self.path.states.tolist(), names),
        )
        if self.accuracies is not None:
            labels = (*known, "told_every_measurement")
            facts["accuracy"] = {name: one.facts() for name, one in zip(labels, self.accuracies, strict=True)}
            facts["accuracy"]["most_probable_path_right"] = None if self.path is None else self.path_hits
        return facts


@checked
def replay_sequence(releaser: Releaser, sequence: ReleasedSequence) -> Iterator[Replay]:
    """Every release of a sequence as an adversary takes it in who knows the engine's settings. The engine starts anew.

    Parameters
    ----------
    releaser
        An engine with the settings of the first release.
    sequence
        The releases.

    Yields
    ------
    Replay
        One for each release, in order.

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
    engines: dict[int, Releaser] = {}
    for t in range(len(sequence)):
        where = f"user {sequence.user}, release {t + 1}"
        steps = 1 if t == 0 else int(sequence.steps[t])
        if t in sequence.engines:
            belief, engine = releaser.belief, sequence.engines[t]
            releaser = engines.setdefault(id(engine), engine.another())
            releaser.resume(belief, t, slot=slots[t - 1])
        if len(sequence.begins) and sequence.begins[t]:
            releaser.restart(slots[t])
        try:
            prior = releaser.prior(steps)
            epsilon = float(sequence.epsilons[t])
            if epsilon:
                step = releaser.prepare_on(prior, releaser.plan(prior), epsilon, steps)
            else:
                step = releaser.prepare_nothing(prior, steps, "target")
            likelihood = releaser.log_likelihood(step, sequence.released[t])
            replay = Replay(prior, step, likelihood, prior.update(likelihood), releaser)
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
        ``(T,)``: the true states, where they may be known; the result is private then.
    k
        How many states count as the top.

    Returns
    -------
    SequenceAudit
        What was inferred at each release, in hindsight and without releases.

    Raises
    ------
    StochasticError
        When the prior is no distribution over the states, or rules out what was released.
    StateError
        When there is not one true state per release, or one does not exist.
    InvalidInputError, AlreadyKnownError
        As `replay_sequence` does.
    """
    return audit_adversaries(releaser, sequence, (Adversary(PUBLIC.knows, prior=prior),), truth, k)[0]


@checked
def audit_adversaries(
    releaser: Releaser,
    sequence: ReleasedSequence,
    adversaries: Sequence[Adversary],
    truth: npt.ArrayLike | None = None,
    k: int = TOP,
) -> tuple[SequenceAudit, ...]:
    """What a released sequence gives away to each of several adversaries, who know different things of the person.

    Parameters
    ----------
    releaser, sequence, truth, k
        As for `audit_sequence`.
    adversaries
        Who reads the releases, at least one.

    Returns
    -------
    tuple of SequenceAudit
        One for each adversary.

    Raises
    ------
    DphmmError
        As `audit_sequence`.
    """
    replays = list(replay_sequence(releaser, sequence))
    rows = np.array([replay.log_likelihood for replay in replays])
    observed = Observations(rows, np.asarray(sequence.steps), sequence.first)
    return tuple(_audited(releaser, sequence, replays, observed, one, truth, k) for one in adversaries)


def _audited(
    releaser: Releaser,
    sequence: ReleasedSequence,
    replays: Sequence[Replay],
    observed: Observations,
    adversary: Adversary,
    truth: npt.ArrayLike | None,
    k: int,
) -> SequenceAudit:
    is_public, model = adversary.model is None and adversary.prior is None, adversary.model or releaser.model
    points, cell = releaser.measurements.points, releaser.cell
    own = adversary.prior
    start = None if own is None else as_distribution(own, model.size, "the adversary's prior")
    if is_public and not np.any(sequence.begins[1:]):  # replaying it filtered it
        before, after = ([one.prior for one in replays], [one.posterior for one in replays])
        filtering = Filtering.of(model, observed, before, after)
    else:
        filtering = filter_releases(model, observed, start)
    filtered = filtering.at()

    def path_and_online() -> tuple[MostProbablePath | None, Knowledge]:
        path = path_of_releases(model, observed, start) if adversary.model is None else None
        return path, knowledge(filtered, points, k, cell)

    path_found = beside(path_and_online)
    smoothed = smooth_releases(model, observed, filtering)
    hindsight = knowledge(smoothed, points, k, cell)
    uninformed = inference.no_information(model, sequence.steps, start, sequence.first)
    theirs: Iterable[Belief | None] = repeat(None) if is_public else filtering.predicted
    steps = tuple(_step(replay, belief) for replay, belief in zip(replays, theirs, strict=False))
    path, online = path_found()
    accuracies = None
    if truth is not None:
        stated = inference.no_noise(points, truth, uninformed)
        held = (uninformed, filtered, smoothed, stated)
        accuracies = tuple(inference.accuracy(beliefs, points, truth, k) for beliefs in held)
    factors = np.array([step.constrained_factor for step in steps])
    charged = np.where(factors > 0, factors, 0.0) * np.asarray(sequence.epsilons)
    return SequenceAudit(
        user=sequence.user,
        epsilon=total(sequence.epsilons.tolist()),
        constrained_epsilon=float(charged.sum()),
        log_evidence=filtering.log_evidence,
        steps=steps,
        filtering=filtering,
        smoothed=smoothed,
        expected=np.sum([belief.probabilities for belief in smoothed], axis=0),
        path=path,
        uninformed=knowledge(uninformed, points, k, cell),
        online=online,
        hindsight=hindsight,
        accuracies=accuracies,  # type: ignore[arg-type]
        path_hits=float("nan") if truth is None or path is None else float((path.states == np.asarray(truth)).mean()),
        knows=adversary.knows,
    )


def _step(replay: Replay, belief: Belief | None) -> StepAudit:
    releaser, plan = replay.engine, replay.step.plan
    protection = plan.protection
    if replay.step.withheld or plan.is_known:
        possible = int(plan.constraint.sum())
        return StepAudit(possible, possible, (), int(possible == 1), 0.0, 0.0, None)
    measurements, to_protect = releaser.measurements, 0
    if protection.added:
        body, calibration = inference.body_kind(protection), releaser.settings.calibration
        found = exposed_states(releaser.policy, measurements, plan.constraint, body, calibration=calibration)
        to_protect = len(found)
    hidden = releaser.likeliest_component(replay.step, replay.posterior)
    return StepAudit(
        possible=int(plan.constraint.sum()),
        least_protection=plan.least_protection,
        added=protection.added,
        exposed_before_repair=to_protect,
        area=protection.body.volume,
        constrained_factor=protection.diameter,
        adversary=None if belief is None else inference.audit_support(protection, measurements, belief.support),
        components=hidden.components,
        open=hidden.open,
        all_open=not (plan.constraint & ~protection.open).any(),
    )


class HindsightRecorder:
    """What the releases of one person say, recorded while they are made, so that they need no replay.

    Parameters
    ----------
    model
        The model that they are made with.
    most
        How many there are at most: memory is taken for all of them.
    """

    def __init__(self, model: MarkovModel, most: int) -> None:
        self._model = model
        self._told = np.empty((most, model.size))
        self._after = np.empty((most, model.chain_size))
        self._slots: list[int] = []

    def record(self, engine: Releaser) -> None:
        """Record the last release of an engine, which knows the time step that it is of.

        Raises
        ------
        InvalidInputError
            When it has made none, or does not know.
        """
        person, t = engine.person, len(self._slots)
        if person.told is None or person.belief is None or person.slot is None:
            raise InvalidInputError("the engine has made no release whose time step it knows")
        self._told[t], self._after[t] = person.told, person.belief.chain_logs
        self._slots.append(person.slot)

    def in_hindsight(
        self, points: FloatArray, cell: float = 0.0, model: MarkovModel | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """What `in_hindsight` finds of the same releases, of at least one, to somebody who thinks of a model."""
        slots = np.array(self._slots)
        observed = Observations(self._told[: len(slots)], np.diff(slots, prepend=slots[0]), int(slots[0]))
        after = self._after[: len(slots)] if model is None else filter_releases(model, observed).logs
        return _guessed(model or self._model, observed, after, points, cell)


def in_hindsight(releaser: Releaser, sequence: ReleasedSequence) -> tuple[FloatArray, FloatArray]:
    """What the public adversary knows of each release's time once all of a sequence are there; they are replayed.

    Parameters and errors are those of `dphmm.audit.sequence.audit_sequence`, which finds more.

    Returns
    -------
    error, certainty
        ``(T,)`` each: the expected distance of the best guess, in the unit of the measurements, and the probability of
        the most probable state; see `dphmm.model.point_estimate.PointEstimate`.
    """
    model, count = releaser.model, len(sequence)
    told, after = np.empty((count, model.size)), np.empty((count, model.chain_size))
    for t, replay in enumerate(replay_sequence(releaser, sequence)):
        told[t], after[t] = replay.log_likelihood, replay.posterior.chain_logs
    observed = Observations(told, np.asarray(sequence.steps), sequence.first)
    if np.any(sequence.begins[1:]):  # replaying it filtered it, but for what they forgot on the way
        after = filter_releases(model, observed).logs
    return _guessed(model, observed, after, releaser.measurements.points, releaser.cell)


def _guessed(
    model: MarkovModel, observed: Observations, filtered: FloatArray, points: FloatArray, cell: float
) -> tuple[FloatArray, FloatArray]:
    beliefs = Beliefs(smoothed_logs(model, observed, filtered), model.away)
    error, certainty = np.empty((2, len(observed)))
    for t, belief in enumerate(beliefs):
        guess = point_estimate(belief.probabilities, points, cell, belief.beyond)
        error[t], certainty[t] = guess.least_error, guess.certainty
    return error, certainty


@checked
@dataclass(frozen=True)
class Thresholds:
    """What releases may tell at most, at any of them and in hindsight.

    Parameters
    ----------
    least_error
        The expected distance of the best guess in the unit of the measurements, kilometres for places, that none may go
        below. Left out, it does not bind.
    most_certainty
        The probability of one state that none may go above.

    Raises
    ------
    ConfigurationError
        When the error is not positive, or the certainty not between 0 and 1.
    """

    least_error: float | None = None
    most_certainty: float | None = None

    def __post_init__(self) -> None:
        if self.least_error is not None and not 0 < self.least_error < inf:
            raise ConfigurationError(f"the least error is {self.least_error:g}; give a positive, finite length")
        if self.most_certainty is not None and not 0 < self.most_certainty < 1:
            raise ConfigurationError(
                f"the most certainty is {self.most_certainty:g}; give a probability between 0 and 1"
            )

    def violations(self, audit: SequenceAudit) -> tuple[str, ...]:
        """What is beyond the thresholds in a person's releases, in words; empty where nothing is.

        Parameters
        ----------
        audit
            The audit of a person's releases.

        Returns
        -------
        tuple of str
            One sentence for each threshold that is passed.
        """
        said = []
        for when, known in (("at the time", audit.online), ("in hindsight", audit.hindsight)):
            if self.least_error is not None and known.error.min() < self.least_error:
                said.append(
                    f"{when} the best guess is expected to be {metres(known.error.min())} off at release "
                    f"{int(known.error.argmin()) + 1}, nearer than {metres(self.least_error)}, and nearer at "
                    f"{(known.error < self.least_error).mean():.0%} of the releases"
                )
            if self.most_certainty is not None and known.best.max() > self.most_certainty:
                said.append(
                    f"{when} one place is {known.best.max():.2f} probable at release {int(known.best.argmax()) + 1}, "
                    f"more than {self.most_certainty:g}, and so at {(known.best > self.most_certainty).mean():.0%} of "
                    "the releases"
                )
        return tuple(said)


def verdict(audit: SequenceAudit) -> str:
    """What an adversary knows of a person, in metres and odds: without releases, at each one, and in hindsight."""
    known = {"without releases": audit.uninformed, "at each": audit.online, "in hindsight": audit.hindsight}
    errors = ", ".join(
        f"{when} {metres(float(np.median(one.error)))} ({metres(one.error.min())})" for when, one in known.items()
    )
    odds = ", ".join(f"{when} {odds_in_words(float(one.best.max()))}" for when, one in known.items())
    who = "" if audit.knows == PUBLIC.knows else f" by somebody who knows {audit.knows}"
    return (
        f"As far as the model is right, the best guess{who} of where {audit.user} was is expected to be off, in the "
        f"median (and at the least), by: {errors}; and the odds of the likeliest place are at most: {odds}"
    )
