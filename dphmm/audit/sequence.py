"""Audit of released sequences: replay, inference, comparison with bounds, and thresholds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import compress, pairwise, repeat
from math import isclose, isnan
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray, as_distribution, as_points, check_epsilon
from dphmm.audit import inference_metrics
from dphmm.audit.inference_metrics import (
    DEFAULT_TOP_K,
    Accuracy,
    AdversaryAudit,
    InferenceMetrics,
    compute_inference_metrics,
)
from dphmm.errors import ConfigurationError, InvalidInputError, SingletonConstraintError, StochasticError
from dphmm.formatting import Result, exported, format_kilometres, format_odds, name_states
from dphmm.model import (
    Belief,
    Filtering,
    MarkovModel,
    MostProbablePath,
    Observations,
    filter_releases,
    find_release_path,
    smooth_releases,
)
from dphmm.model.forward_backward import Beliefs, smooth_in_blocks
from dphmm.model.multi_step import Gap
from dphmm.model.row_file import RowFile
from dphmm.policy.protection_degrees import exposed_states
from dphmm.release.engine import Releaser
from dphmm.release.ledger import constrained_cost, sum_budgets
from dphmm.release.step_plan import StepPlan
from dphmm.threads import run_in_background
from dphmm.validation import (
    NonNegativeInt,
    OpenProbability,
    PositiveInt,
    PositiveNumber,
    check_arguments,
    check_arguments_as,
)


@check_arguments
@dataclass(frozen=True, eq=False)
class ReleasedSequence:
    """The published releases of one user, in the order of time.

    Parameters
    ----------
    user
        The user.
    released
        ``(T, d)``: the released measurements.
    epsilons
        ``(T,)``: their budgets. 0 marks a withheld timestep. Its row of `released` is ignored.
    steps
        ``(T,)``: the timesteps since the previous release, 0 for another release at the same timestep. The first entry
        is ignored.
    num_possible_states
        ``(T,)``: the number of possible states that each record states. Empty if the records do not contain it.
    constrained_dp_factors
        ``(T,)``: the constrained-DP factors that the records state, NaN if one is missing. May be empty.
    restarts
        ``(T,)``: whether the releaser was restarted before this release, as a batch does after a long gap. Empty if it
        never was. The adversary keeps all releases in any case.
    first_slot
        Time slot of the first release, counted from 1970. None if unknown. Time-dependent models need it.
    engines
        Index of a release, from 1 → the engine of this and the following releases, for each change of settings. All
        engines share one model.

    Raises
    ------
    InvalidInputError
        If shapes do not match, or a step is negative.
    CoordinateError, BudgetError
        If a release is not finite, or a budget is invalid.
    """

    user: str
    released: FloatArray
    epsilons: FloatArray
    steps: IntArray
    num_possible_states: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    constrained_dp_factors: FloatArray = field(default_factory=lambda: np.zeros(0))
    restarts: BoolArray = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    first_slot: int | None = None
    engines: Mapping[int, Releaser] = field(default_factory=dict)

    def __post_init__(self) -> None:
        points = as_points(self.released, f"the releases of {self.user}")
        if not len(points):
            raise InvalidInputError(f"user {self.user} has no releases to audit")
        for name in ("epsilons", "steps", "num_possible_states", "constrained_dp_factors", "restarts"):
            values = np.asarray(getattr(self, name))
            if values.ndim != 1 or values.dtype.kind not in "biuf":
                raise InvalidInputError(f"user {self.user}: {name} must be a list of numbers, one for each release")
            if len(values) != len(points) and (len(values) or name in ("epsilons", "steps")):
                raise InvalidInputError(
                    f"user {self.user}: {name} must have one entry for each of {len(points)} releases, got "
                    f"{len(values)}"
                )
        for epsilon in np.asarray(self.epsilons)[np.asarray(self.epsilons) != 0]:
            check_epsilon(float(epsilon))
        for number in self.engines:
            if not 0 < number < len(points):
                raise InvalidInputError(
                    f"user {self.user}: keys of engines must be from 1 to {len(points) - 1}, got {number}"
                )
        if (np.asarray(self.steps)[1:] < 0).any():
            raise InvalidInputError(f"user {self.user}: steps must be non-negative; sort the releases by time")

    def __len__(self) -> int:
        return len(self.released)

    @property
    def slots(self) -> list[int | None]:
        """The time slot of each release, or None for each if the first slot is unknown."""
        passed = np.concatenate([[0], np.cumsum(np.asarray(self.steps)[1:])]).tolist()
        return [None if self.first_slot is None else self.first_slot + int(offset) for offset in passed]


@dataclass(frozen=True, eq=False)
class Replay:
    """A release as observed by an adversary who knows the settings and all earlier releases.

    Parameters
    ----------
    prior
        ``p(s_t | z_1..t-1)``.
    step
        The plan of the release: constraint set, repaired graph, mechanism and budget.
    log_likelihood
        ``(N,)``: ``log p(z_t | s_t)`` of every state. States outside the constraint set have their surrogate's density.
    posterior
        ``p(s_t | z_1..t)``.
    engine
        The engine of this release.
    """

    prior: Belief = field(repr=False)
    step: StepPlan
    log_likelihood: FloatArray = field(repr=False)
    posterior: Belief = field(repr=False)
    engine: Releaser = field(repr=False)


@dataclass(frozen=True)
class StepAudit(Result):
    """Guarantee of one release, computed from public information only.

    Parameters
    ----------
    num_possible_states
        The size of the constraint set.
    min_degree_of_protection
        The smallest degree of protection in the constraint set after the repair.
    added_edges
        The edges that the repair added.
    num_exposed_before_repair
        Number of states that the policy left exposed before the repair.
    hull_volume
        The volume of the noise body.
    constrained_dp_factor
        The constrained-DP factor (Theorem 6.3).
    adversary
        The guarantee for an adversary with another belief. None without one, or if a single state was possible.
    num_components
        Number of components of possible states, each with its own noise.
    is_unprotected
        Whether the component of the most probable state is unprotected.
    all_unprotected
        Whether all possible states are unprotected and need no protection.
    """

    num_possible_states: int = field(metadata=exported())
    min_degree_of_protection: int = field(metadata=exported())
    added_edges: tuple[tuple[int, int], ...] = field(metadata=exported(as_state_names=True))
    num_exposed_before_repair: int = field(metadata=exported())
    hull_volume: float = field(metadata=exported())
    constrained_dp_factor: float = field(metadata=exported())
    adversary: AdversaryAudit | None = field(metadata=exported())
    num_components: int = field(default=1, metadata=exported())
    is_unprotected: bool = field(default=False, metadata=exported())
    all_unprotected: bool = field(default=False, metadata=exported())

    @property
    def is_exposed(self) -> bool:
        """Whether any state was exposed, to the public adversary or to the other adversary."""
        other = self.adversary
        exposed = self.min_degree_of_protection < 2 and not self.all_unprotected
        return exposed or (other is not None and bool(other.is_singleton or other.exposed_with_surrogates))

    def _derive_fields(self, *_: Any) -> dict[str, Any]:
        return {"singleton": self.num_possible_states == 1}


@dataclass(frozen=True, eq=False)
class Adversary:
    """An adversary who observes releases, with its own belief about the user's movement.

    Parameters
    ----------
    auxiliary_knowledge
        What the adversary knows about the user's movement, in words, such as ``"user habits"``.
    model
        The adversary's movement model, over the same states. None means the model of the releases.
    prior
        ``(N,)``: the adversary's distribution of the first state. None means that of its model.
    """

    auxiliary_knowledge: str
    model: MarkovModel | None = field(default=None, repr=False)
    prior: npt.ArrayLike | None = field(default=None, repr=False)


# The public adversary: knows the public model and has no auxiliary data.
PUBLIC = Adversary("the model")


@dataclass(frozen=True, eq=False)
class SequenceAudit(Result):
    """Result of `audit_sequence`: inference of one adversary from the releases of one user.

    Parameters
    ----------
    user
        The user.
    epsilon
        The sum of the budgets (Theorem 7.1).
    constrained_epsilon
        The sum of factor times budget (Theorem 7.2).
    steps
        One element per timestep.
    is_withheld
        ``(T,)``: whether nothing was released at the timestep.
    log_evidence
        ``log p(z_1..T)`` under the adversary's model, up to the normalising constants of the densities.
    filtering, smoothed, most_probable_path
        The adversary's filtered and smoothed beliefs and most probable path. The path is None for an adversary with
        another model, because it takes most of the time. The beliefs need a number for each release and state. They
        are None and empty if they were not kept.
    expected_counts
        ``(N,)``: the expected number of timesteps in each state, given all releases.
    prior_metrics, filtered_metrics, smoothed_metrics
        Metrics of the beliefs without releases, given past releases, and given all releases.
    accuracies
        Errors of the same three beliefs, then of the beliefs given every exact measurement. None without the truth.
    path_accuracy
        The share of releases at which the most probable path is correct. NaN without the truth or the path.
    auxiliary_knowledge
        What the adversary knows about the user's movement, in words.
    """

    user: str = field(metadata=exported())
    epsilon: float = field(metadata=exported())
    constrained_epsilon: float = field(metadata=exported())
    log_evidence: float = field(metadata=exported())
    steps: tuple[StepAudit, ...] = field(repr=False, metadata=exported())
    is_withheld: BoolArray = field(repr=False)
    filtering: Filtering | None = field(repr=False)
    smoothed: Sequence[Belief] = field(repr=False)
    expected_counts: FloatArray = field(repr=False)
    most_probable_path: MostProbablePath | None = field(repr=False)
    prior_metrics: InferenceMetrics = field(repr=False)
    filtered_metrics: InferenceMetrics = field(repr=False)
    smoothed_metrics: InferenceMetrics = field(repr=False)
    accuracies: tuple[Accuracy, Accuracy, Accuracy, Accuracy] | None = field(repr=False)
    path_accuracy: float
    auxiliary_knowledge: str = field(default=PUBLIC.auxiliary_knowledge, metadata=exported())

    @property
    def exposed_steps(self) -> tuple[int, ...]:
        """The releases at which any state was exposed, to the public or to the other adversary."""
        return tuple(t for t, step in enumerate(self.steps) if step.is_exposed)

    @property
    def entries(self) -> tuple[int, ...]:
        """The protected releases that directly follow an unprotected one: the user entered a zone."""
        released = np.flatnonzero(~self.is_withheld).tolist()
        is_entry = (self.steps[u].is_unprotected and not self.steps[t].is_unprotected for u, t in pairwise(released))
        return tuple(compress(released[1:], is_entry))

    def describe(self) -> str:
        """Describe the inference from all releases. Per-release guarantees do not limit it.

        Returns
        -------
        str
            One or two sentences.
        """
        before = self.prior_metrics
        after = self.smoothed_metrics
        return (
            f"Given all releases of {self.user}, {describe_adversary(self.auxiliary_knowledge)} has a mean entropy of "
            f"{after.entropy.mean():.2f} bits ({before.entropy.mean():.2f} bits without releases). The mean posterior "
            f"probability of the most probable location is {after.top_1_probability.mean():.2f}, the maximum "
            f"{after.top_1_probability.max():.2f} (mean {before.top_1_probability.mean():.2f} without releases)."
        )

    def _derive_fields(self, names: Sequence[str]) -> dict[str, Any]:
        metrics = {
            "without_releases": self.prior_metrics,
            "filtered": self.filtered_metrics,
            "smoothed": self.smoothed_metrics,
        }
        path = None if self.most_probable_path is None else name_states(self.most_probable_path.states.tolist(), names)
        derived: dict[str, Any] = {
            "num_timesteps": len(self.steps),
            "num_releases": int(np.count_nonzero(~self.is_withheld)),
            "exposed_releases": [t + 1 for t in self.exposed_steps],
            "unprotected_releases": [t + 1 for t, step in enumerate(self.steps) if step.is_unprotected],
            "entries": [
                {"release": t + 1, "top_1_probability": self.filtered_metrics.top_1_probability[t]}
                for t in self.entries
            ],
            "max_num_exposed_before_repair": max(step.num_exposed_before_repair for step in self.steps),
            "num_added_edges": sum(len(step.added_edges) for step in self.steps),
            "inference": {name: inference_metrics.to_dict() for name, inference_metrics in metrics.items()},
            "most_probable_path": path,
        }
        if self.accuracies is not None:
            labels = (*metrics, "exact_measurements")
            accuracy = {
                name: accuracy_metrics.to_dict() for name, accuracy_metrics in zip(labels, self.accuracies, strict=True)
            }
            path_accuracy = None if self.most_probable_path is None else self.path_accuracy
            derived["accuracy"] = {**accuracy, "most_probable_path_accuracy": path_accuracy}
        return derived


@check_arguments
def replay_sequence(
    releaser: Releaser, sequence: ReleasedSequence, belief: Belief | None = None, num_earlier: NonNegativeInt = 0
) -> Iterator[Replay]:
    """Replay a released sequence as an adversary who knows the engine's settings.

    The engine is restarted, or continues after earlier releases.

    Parameters
    ----------
    releaser
        An engine with the settings of the first release.
    sequence
        The releases.
    belief
        The public belief after the last of the earlier releases, the posterior of their replay. The first entry of
        `steps` then counts from that release. Defaults to None: there are no earlier releases.
    num_earlier
        Number of the earlier releases.

    Yields
    ------
    Replay
        One element for each release, in order.

    Raises
    ------
    InvalidInputError
        If a release does not match the settings: the number of possible states or the constrained-DP factor differs
        from the record, or no possible state can produce the release.
    SingletonConstraintError
        If a single state is possible and the engine does not allow that.
    """
    slots = sequence.slots
    if belief is None:
        releaser.restart(slots[0])
    else:
        before = None if slots[0] is None else slots[0] - int(sequence.steps[0])
        releaser.resume(belief, num_earlier, slot=before)
    hint = "check that the model, policy, mechanism and delta are those of the releases"
    engines: dict[int, Releaser] = {}
    for t in range(len(sequence)):
        where = f"user {sequence.user}, release {num_earlier + t + 1}"
        steps = 1 if t == 0 and belief is None else int(sequence.steps[t])
        if t in sequence.engines:
            last_belief = releaser.belief
            engine = sequence.engines[t]
            releaser = engines.setdefault(id(engine), engine.spawn())
            releaser.resume(last_belief, num_earlier + t, slot=slots[t - 1])
        if len(sequence.restarts) and sequence.restarts[t]:
            releaser.restart(slots[t])
        try:
            prior = releaser.predict(steps)
            epsilon = float(sequence.epsilons[t])
            step = releaser.build_plan(prior, epsilon, steps, "" if epsilon else "target")
            likelihood = releaser.log_likelihood(step, sequence.released[t])
            replay = Replay(prior, step, likelihood, prior.update(likelihood), releaser)
        except StochasticError:
            raise InvalidInputError(f"{where}: no possible state can produce this release; {hint}") from None
        except SingletonConstraintError as problem:
            raise SingletonConstraintError(f"{where}: {problem}") from None
        releaser.resume(replay.posterior, num_earlier + t + 1, slot=slots[t])
        _check_record(sequence, t, step, where, hint)
        yield replay


def _check_record(sequence: ReleasedSequence, t: int, step: StepPlan, where: str, hint: str) -> None:
    possible = int(step.constraint.sum())
    if len(sequence.num_possible_states) and possible != int(sequence.num_possible_states[t]):
        raise InvalidInputError(
            f"{where}: the record states {int(sequence.num_possible_states[t])} possible states, the replay has "
            f"{possible}; {hint}"
        )
    factors = sequence.constrained_dp_factors
    stated = float(factors[t]) if len(factors) else float("nan")
    if not isnan(stated) and not isclose(stated, step.constrained_dp_factor, rel_tol=1e-6):
        raise InvalidInputError(
            f"{where}: the record states a constrained-DP factor of {stated:.6g}, the replay has "
            f"{step.constrained_dp_factor:.6g}; {hint}"
        )


@check_arguments
def audit_sequence(
    releaser: Releaser,
    sequence: ReleasedSequence,
    prior: npt.ArrayLike | None = None,
    truth: npt.ArrayLike | None = None,
    k: PositiveInt = DEFAULT_TOP_K,
) -> SequenceAudit:
    """Audit a released sequence for the public adversary or for one with its own prior.

    Parameters
    ----------
    releaser
        An engine with the settings of the first release. It gives the emission density of every step, which depends on
        the constraint set and therefore on past releases.
    sequence
        The releases.
    prior
        ``(N,)``: the distribution of the first state of another adversary, who shares the model's transitions. The
        inference is then that of this adversary. Defaults to the model's initial distribution.
    truth
        ``(T,)``: the true states, if available. The result is then private.
    k
        Number of states for the top-k metrics.

    Returns
    -------
    SequenceAudit
        The inference without releases, given past releases, and given all releases.

    Raises
    ------
    StochasticError
        If the prior is not a distribution over the states, or excludes the releases.
    StateError
        If a true state does not exist, or the number of true states differs from the number of releases.
    InvalidInputError, SingletonConstraintError
        See `replay_sequence`.
    """
    return audit_adversaries(releaser, sequence, (Adversary(PUBLIC.auxiliary_knowledge, prior=prior),), truth, k)[0]


@check_arguments
def audit_adversaries(
    releaser: Releaser,
    sequence: ReleasedSequence,
    adversaries: Sequence[Adversary],
    truth: npt.ArrayLike | None = None,
    k: PositiveInt = DEFAULT_TOP_K,
) -> tuple[SequenceAudit, ...]:
    """Audit a released sequence for several adversaries with different auxiliary knowledge.

    Parameters
    ----------
    releaser, sequence, truth, k
        See `audit_sequence`.
    adversaries
        The adversaries, at least one.

    Returns
    -------
    tuple of SequenceAudit
        One result for each adversary.

    Raises
    ------
    DphmmError
        See `audit_sequence`.
    """
    replays = list(replay_sequence(releaser, sequence))
    rows = np.array([replay.log_likelihood for replay in replays])
    observed = Observations(rows, np.asarray(sequence.steps), sequence.first_slot)
    return tuple(
        _audit_adversary(releaser, sequence, replays, observed, adversary, truth, k) for adversary in adversaries
    )


def _audit_adversary(
    releaser: Releaser,
    sequence: ReleasedSequence,
    replays: Sequence[Replay],
    observed: Observations,
    adversary: Adversary,
    truth: npt.ArrayLike | None,
    k: int,
) -> SequenceAudit:
    is_public = adversary.model is None and adversary.prior is None
    model = adversary.model or releaser.model
    points = releaser.measurements.points
    cell = releaser.cell
    prior = adversary.prior
    start = None if prior is None else as_distribution(prior, model.size, "the adversary's prior")
    if is_public and not np.any(sequence.restarts[1:]):  # the replay has already filtered the releases
        before = [replay.prior for replay in replays]
        after = [replay.posterior for replay in replays]
        filtering = Filtering.from_beliefs(model, observed, before, after)
    else:
        filtering = filter_releases(model, observed, start)
    filtered = filtering.select()

    def compute_path_and_filtered_metrics() -> tuple[MostProbablePath | None, InferenceMetrics]:
        path = find_release_path(model, observed, start) if adversary.model is None else None
        return path, compute_inference_metrics(filtered, points, k, cell)

    # In a second thread: the path and the smoother are independent and take most of the time.
    wait_for_path = run_in_background(compute_path_and_filtered_metrics)
    smoothed = smooth_releases(model, observed, filtering)
    smoothed_metrics = compute_inference_metrics(smoothed, points, k, cell)
    uninformed = inference_metrics.predict_without_releases(model, sequence.steps, start, sequence.first_slot)
    predictions: Iterable[Belief | None] = repeat(None) if is_public else filtering.predicted
    steps = tuple(_audit_step(replay, belief) for replay, belief in zip(replays, predictions, strict=False))
    path, filtered_metrics = wait_for_path()
    accuracies = None
    if truth is not None:
        exact = inference_metrics.condition_on_measurements(points, truth, uninformed)
        compared = (uninformed, filtered, smoothed, exact)
        accuracies = tuple(inference_metrics.compute_accuracy(beliefs, points, truth, k) for beliefs in compared)
    factors = [step.constrained_dp_factor for step in steps]
    costs = map(constrained_cost, sequence.epsilons.tolist(), factors)
    return SequenceAudit(
        user=sequence.user,
        epsilon=sum_budgets(sequence.epsilons.tolist()),
        constrained_epsilon=float(sum(costs, Fraction(0))),
        log_evidence=filtering.log_evidence,
        steps=steps,
        is_withheld=np.asarray(sequence.epsilons) == 0,
        filtering=filtering,
        smoothed=smoothed,
        expected_counts=np.sum([belief.probabilities for belief in smoothed], axis=0),
        most_probable_path=path,
        prior_metrics=compute_inference_metrics(uninformed, points, k, cell),
        filtered_metrics=filtered_metrics,
        smoothed_metrics=smoothed_metrics,
        accuracies=accuracies,  # type: ignore[arg-type]  # one for each of the four
        path_accuracy=float("nan")
        if truth is None or path is None
        else float((path.states == np.asarray(truth)).mean()),
        auxiliary_knowledge=adversary.auxiliary_knowledge,
    )


def _audit_step(replay: Replay, belief: Belief | None) -> StepAudit:
    releaser = replay.engine
    plan = replay.step
    protection = plan.protection
    if plan.withheld or plan.is_singleton:
        possible = int(plan.constraint.sum())
        return StepAudit(possible, possible, (), int(possible == 1), 0.0, 0.0, None)
    measurements = releaser.measurements
    to_protect = 0
    if protection.added:
        body = inference_metrics.get_body_type(protection)
        noise_scope = releaser.settings.noise_scope
        exposed = exposed_states(releaser.policy, measurements, plan.constraint, body, noise_scope=noise_scope)
        to_protect = len(exposed)
    likeliest_component = releaser.planner.summarize_likeliest_component(plan, replay.posterior)
    return StepAudit(
        num_possible_states=int(plan.constraint.sum()),
        min_degree_of_protection=plan.min_degree_of_protection,
        added_edges=protection.added,
        num_exposed_before_repair=to_protect,
        hull_volume=protection.body.volume,
        constrained_dp_factor=protection.diameter,
        adversary=None if belief is None else inference_metrics.audit_support(protection, measurements, belief.support),
        num_components=likeliest_component.num_components,
        is_unprotected=likeliest_component.is_unprotected,
        all_unprotected=not (plan.constraint & ~protection.open).any(),
    )


class SmoothingRecorder:
    """Recorder of a user's releases for smoothed inference without a replay.

    Memory does not depend on the number of releases: see `dphmm.model.row_file.RowFile`. Everything in the file is
    public.

    Parameters
    ----------
    model
        The model of the releases.
    """

    def __init__(self, model: MarkovModel) -> None:
        self._model = model
        self._log_likelihoods = RowFile(model.size)
        self._filtered = RowFile(model.chain_size)
        self._slots: list[int] = []

    def record(self, engine: Releaser) -> None:
        """Record the last release of an engine that knows its time slot.

        Raises
        ------
        InvalidInputError
            If the engine has no release, or does not know its time slot.
        OutputError
            If the temporary file cannot be written.
        """
        state = engine.filter_state
        if state.belief is None or state.last_log_likelihood is None or state.slot is None:
            raise InvalidInputError("the engine has no release with a time slot: call release() first")
        self._log_likelihoods.append(state.last_log_likelihood)
        self._slots.append(state.slot)
        # The engine has filtered these releases. After a restart, its belief ignores those before it.
        if len(self._filtered) + 1 == state.count == len(self._slots):
            self._filtered.append(state.belief.chain_logs)

    def compute_smoothed_inference(
        self, points: FloatArray, cell: float = 0.0, model: MarkovModel | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Compute `compute_smoothed_inference` for the recorded releases, at least one.

        Parameters
        ----------
        points
            ``(N, d)`` measurements.
        cell
            Side of the cell centred on each point, 0 for points.
        model
            The adversary's model. Defaults to the model of the releases.
        """
        slots = np.array(self._slots)
        arguments = self._log_likelihoods, np.diff(slots, prepend=slots[0]), int(slots[0]), points, cell
        if model is None or model is self._model:
            return _summarize_smoothed(self._model, *arguments, self._filtered)
        with closing(RowFile(model.chain_size)) as filtered:
            return _summarize_smoothed(model, *arguments, filtered)

    def estimate_gap_seconds(self, model: MarkovModel | None = None) -> float:
        """Estimate the seconds for propagating a distribution through all gaps once.

        The estimate follows from the model and the times alone, and counts every step. Gaps often end sooner, in a
        steady state.

        Parameters
        ----------
        model
            The adversary's model. Defaults to the model of the releases.
        """
        slots = np.array(self._slots)
        operators = (model or self._model).operators(np.diff(slots, prepend=slots[0]), slots)
        return sum(operator.max_seconds for operator in operators if isinstance(operator, Gap))

    def close(self) -> None:
        """Delete the recorded releases."""
        self._log_likelihoods.close()
        self._filtered.close()


def compute_smoothed_inference(releaser: Releaser, sequence: ReleasedSequence) -> tuple[FloatArray, FloatArray]:
    """Compute the public adversary's error and posterior at each release, given all releases.

    Parameters and errors are those of `dphmm.audit.sequence.audit_sequence`, which computes more. Memory does not
    depend on the number of releases.

    Returns
    -------
    error, max_posterior
        ``(T,)`` each: the expected error of the point estimate, in the unit of the measurements, and the probability of
        the most probable state; see `dphmm.model.point_estimate.Inference`.
    """
    model = releaser.model
    gaps = np.array(sequence.steps, dtype=np.int64)
    gaps[0] = 0
    points = releaser.measurements.points
    with closing(RowFile(model.size)) as log_likelihoods, closing(RowFile(model.chain_size)) as filtered:
        for replay in replay_sequence(releaser, sequence):
            log_likelihoods.append(replay.log_likelihood)
        return _summarize_smoothed(model, log_likelihoods, gaps, sequence.first_slot, points, releaser.cell, filtered)


def _summarize_smoothed(
    model: MarkovModel,
    log_likelihoods: RowFile,
    gaps: IntArray,
    first: int | None,
    points: FloatArray,
    cell: float,
    filtered: RowFile,
) -> tuple[FloatArray, FloatArray]:
    error, max_posterior = np.empty((2, len(log_likelihoods)))
    for start, logs in smooth_in_blocks(model, gaps, first, log_likelihoods.read, filtered):
        for t, belief in enumerate(Beliefs(logs, model.outside), start):
            guess = belief.infer(points, cell)
            error[t] = guess.error_lower_bound
            max_posterior[t] = guess.max_probability
    return error, max_posterior


@check_arguments_as(ConfigurationError)
@dataclass(frozen=True)
class Thresholds:
    """Limits on an adversary's inference, for filtered and smoothed beliefs.

    Parameters
    ----------
    min_adversary_error
        Lower limit on the expected error of the point estimate, in the unit of the measurements (kilometres for
        locations). None means no limit.
    max_posterior
        Upper limit on the probability of any single state. None means no limit.

    Raises
    ------
    ConfigurationError
        If the error is not positive, or the probability is not in (0, 1).
    """

    min_adversary_error: PositiveNumber | None = None
    max_posterior: OpenProbability | None = None

    def violations(self, audit: SequenceAudit) -> tuple[str, ...]:
        """Describe the limits that a user's releases violate.

        Parameters
        ----------
        audit
            The audit of the user's releases.

        Returns
        -------
        tuple of str
            One sentence for each violated limit, empty without violations.
        """
        violations = []
        for label, metrics in (
            ("given past releases", audit.filtered_metrics),
            ("given all releases", audit.smoothed_metrics),
        ):
            if self.min_adversary_error is not None and metrics.error.min() < self.min_adversary_error:
                violations.append(
                    f"{label}, the expected error is {format_kilometres(metrics.error.min())} at timestep "
                    f"{int(metrics.error.argmin()) + 1}, below {format_kilometres(self.min_adversary_error)}, and "
                    "below it at "
                    f"{(metrics.error < self.min_adversary_error).mean():.0%} of the timesteps"
                )
            if self.max_posterior is not None and metrics.top_1_probability.max() > self.max_posterior:
                violations.append(
                    f"{label}, a location has probability {metrics.top_1_probability.max():.2f} at timestep "
                    f"{int(metrics.top_1_probability.argmax()) + 1}, above {self.max_posterior:g}, and above it at "
                    f"{(metrics.top_1_probability > self.max_posterior).mean():.0%} of the timesteps"
                )
        return tuple(violations)


def summarize_inference(audit: SequenceAudit) -> str:
    """Summarize an adversary's expected error and odds, without the last full stop."""
    metrics_by_time = {
        "without releases": audit.prior_metrics,
        "given past releases": audit.filtered_metrics,
        "given all releases": audit.smoothed_metrics,
    }
    errors = ", ".join(
        f"{format_kilometres(float(np.median(metrics.error)))} {label}" for label, metrics in metrics_by_time.items()
    )
    minimum = ", ".join(format_kilometres(metrics.error.min()) for metrics in metrics_by_time.values())
    odds = ", ".join(
        f"{format_odds(float(metrics.top_1_probability.max()))} {label}" for label, metrics in metrics_by_time.items()
    )
    return (
        f"If the model is correct, the median expected error of {describe_adversary(audit.auxiliary_knowledge)} about "
        f"{audit.user} is {errors}. The minima are {minimum}. The odds of the most probable location are at most {odds}"
    )


def describe_adversary(auxiliary_knowledge: str) -> str:
    """Return a noun phrase for the adversary with some auxiliary knowledge."""
    if auxiliary_knowledge == PUBLIC.auxiliary_knowledge:
        return "the public adversary"
    return f"an informed adversary (knowing {auxiliary_knowledge})"
