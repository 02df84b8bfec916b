"""Leakage realized by releases: log odds between states and odds of events.

The realized log odds between two adjacent states can be compared with the policy's upper bound. For an event, the audit
gives the odds after every release and the releases with the largest effect.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from dphmm.arrays import BoolArray, FloatArray, IntArray, as_distribution
from dphmm.audit.sequence import PUBLIC, Adversary, ReleasedSequence, replay_sequence
from dphmm.errors import EventError, InvalidInputError
from dphmm.events import Clock, Event, EventOdds, EventText, compute_smoothed_event_probabilities
from dphmm.events.chain_start import make_chain, make_earlier_start, resolve_from_start
from dphmm.events.product_chain import Chain
from dphmm.formatting import Result, exported
from dphmm.model.belief import Belief
from dphmm.model.model import MarkovModel
from dphmm.policy.graph import PolicyGraph
from dphmm.release.engine import Releaser
from dphmm.release.ledger import steps_per_day
from dphmm.validation import check_arguments

# With more edges, components are compared instead: each edge needs several numbers, 200 MB in total.
_MAX_EDGES = 5_000_000
# Maximum number of likelihoods kept for a 24 h window, 400 MB. Above it, no window is summed.
_MAX_BELIEF_CELLS = 50_000_000


@dataclass(frozen=True, eq=False)
class RealizedLeakage(Result):
    """Leakage of a user's releases, computed from public information only.

    By Bayes' rule, a release ``z`` changes the log odds of two states ``i`` and ``j`` by
    ``log p(z | i) - log p(z | j)``, whatever the prior. The change is at most epsilon if the policy connects the states
    and both were possible. The changes of several releases add up. A release *compares* two states if both were
    possible before it and it excludes neither. Sums include only the releases that compare the two states and are
    therefore finite.

    A release *excludes* a possible state if it has density 0 there, for example because it lies off the line of
    one-dimensional noise or in another component of the policy. A release that excludes both states of a pair contains
    no information about one versus the other and is *vacuous* for the pair. Several releases are vacuous for a pair if
    each state was excluded by at least one of them, because the user was not in either state throughout. The pair is
    *distinguished* if exactly one of the states was excluded. No finite sum expresses this.

    Parameters
    ----------
    release_log_odds
        ``(T,)``: the largest absolute change of log odds between two adjacent states by each release.
    total_log_odds
        ``(T,)``: the largest absolute sum of these changes over all releases up to each one.
    log_odds_24h
        ``(T,)``: the same sum over the releases of the 24 hours that end with each one. NaN if the model has no step,
        or if the likelihoods of a day exceed the memory limit.
    num_distinguished, num_vacuous
        ``(T, 3)``: number of policy edges that are distinguished (one state was excluded), or for which the releases
        are vacuous (both were). The columns refer to each release, to all releases up to it, and to those of the 24
        hours that end with it. The last is -1 if `log_odds_24h` is NaN. If `is_by_edge` is false, the number of states
        that were excluded while another state of their component was not, and the number of other excluded states.
    worst_pair
        The two states and the timestep of the largest sum. Ties keep the first.
    worst_pair_counts
        Number of releases up to that timestep that compare the two states, that exclude the first, the second, and
        both. Empty if `is_by_edge` is false.
    bits
        ``(T,)``: the Kullback-Leibler divergence of the posterior from the prior at each release's own time, in bits.
        It complements the worst pair, which may be far from the user: a release at one side of the region changes the
        log odds of all edges in that direction by epsilon, but hardly changes the belief.
    error, max_posterior
        ``(T,)``: the expected error of the point estimate after each release, in the unit of the measurements (stated
        at most 2 % too small), and the probability of the most probable state.
    is_withheld
        ``(T,)``: whether there is no release at a timestep. Medians of single releases omit these.
    is_unprotected
        ``(T,)``: whether the most probable state after each release is unprotected. Error statistics omit these.
    is_by_edge
        Whether edges were compared individually. If there are too many, the values refer to pairs of states in the same
        component and may be larger.
    """

    release_log_odds: FloatArray = field(repr=False)
    total_log_odds: FloatArray = field(repr=False)
    log_odds_24h: FloatArray = field(repr=False)
    num_distinguished: IntArray = field(repr=False)
    num_vacuous: IntArray = field(repr=False)
    worst_pair: tuple[int, int, int]
    worst_pair_counts: tuple[int, ...]
    bits: FloatArray = field(repr=False)
    error: FloatArray = field(repr=False)
    max_posterior: FloatArray = field(repr=False)
    is_withheld: BoolArray = field(repr=False)
    is_unprotected: BoolArray = field(repr=False)
    is_by_edge: bool = field(metadata=exported())

    @property
    def num_excluding_releases(self) -> int:
        """Number of releases that excluded a possible state with an edge."""
        return int(((self.num_distinguished[:, 0] > 0) | (self.num_vacuous[:, 0] > 0)).sum())

    def _derive_fields(self) -> dict[str, Any]:
        finite = self.log_odds_24h[~np.isnan(self.log_odds_24h)]
        names = ("compared", "excluded_first", "excluded_second", "excluded_both")
        worst = dict(zip(names, self.worst_pair_counts, strict=bool(self.worst_pair_counts)))
        errors = self.error[~self.is_unprotected]
        probabilities = self.max_posterior[~self.is_unprotected]
        released = ~self.is_withheld
        return {
            "median_release_log_odds": np.median(self.release_log_odds[released]) if released.any() else None,
            "max_release_log_odds": self.release_log_odds.max(),
            "max_total_log_odds": self.total_log_odds.max(),
            "max_log_odds_24h": finite.max() if len(finite) else None,
            "is_24h_known": bool(len(finite)),
            "num_excluding_releases": self.num_excluding_releases,
            "num_distinguished": self.num_distinguished[-1, 1],
            "num_vacuous": self.num_vacuous[-1, 1],
            "max_num_distinguished_24h": self.num_distinguished[:, 2].max() if len(finite) else None,
            "max_num_vacuous_24h": self.num_vacuous[:, 2].max() if len(finite) else None,
            "worst_pair": self.worst_pair[:2],
            "worst_timestep": self.worst_pair[2] + 1,
            "worst_pair_counts": worst or None,
            "median_bits": np.median(self.bits[released]) if released.any() else None,
            "max_bits": self.bits.max(),
            "num_unprotected": self.is_unprotected.sum(),
            "median_adversary_error_m": 1000.0 * np.median(errors) if len(errors) else None,
            "min_adversary_error_m": 1000.0 * errors.min() if len(errors) else None,
            "max_posterior": probabilities.max() if len(errors) else None,
        }


def compute_realized_leakage(releaser: Releaser, sequence: ReleasedSequence) -> RealizedLeakage:
    """Replay a released sequence and measure its leakage.

    Parameters
    ----------
    releaser
        An engine with the settings and the model of the releases. It is restarted.
    sequence
        The releases.

    Raises
    ------
    InvalidInputError, SingletonConstraintError
        See `replay_sequence`. Also if the policy changed within the sequence, so that no fixed set of pairs exists.
    """
    _check_one_policy(releaser, sequence)
    count = len(sequence)
    size = releaser.model.size
    day = steps_per_day(releaser.model.step_seconds)
    slots = np.cumsum(np.where(np.arange(count) == 0, 0, sequence.steps))
    if day is not None and _count_max_releases(slots, day) * size > _MAX_BELIEF_CELLS:
        day = None
    pairs = _build_pairs(releaser.policy)
    is_by_edge = isinstance(pairs, _Edges)
    total, window = (_Comparison(np.zeros(pairs.count), np.zeros((4, pairs.count), dtype=np.int32)) for _ in range(2))
    recent: deque[tuple[int, FloatArray, BoolArray]] = deque()
    rows = np.full((count, 6), np.nan)
    excluded = np.full((count, 3, 2), -1, dtype=np.int64)
    worst_pair = (0, 0, 0)
    max_total = -1.0
    is_unprotected = np.zeros(count, dtype=np.bool_)
    worst_counts: tuple[int, ...] = ()
    for t, replay in enumerate(replay_sequence(releaser, sequence)):
        possible = replay.step.constraint
        comparison = pairs.compare(replay.log_likelihood, possible)
        total.add(comparison)
        rows[t, 0] = pairs.find_widest(comparison)[0]
        rows[t, 1], i, j, at = pairs.find_widest(total)
        excluded[t, 0] = pairs.count_ruled_out(comparison)
        excluded[t, 1] = pairs.count_ruled_out(total)
        if rows[t, 1] > max_total:
            max_total = rows[t, 1]
            worst_pair = (i, j, t)
            worst_counts = tuple(total.counts[:, at].tolist()) if is_by_edge and pairs.count else ()
        if day is not None:
            # Sliding window: add this release and subtract those that are a day old.
            recent.append((int(slots[t]), replay.log_likelihood, possible))
            window.add(comparison)
            while recent[0][0] <= slots[t] - day:
                window.remove(pairs.compare(*recent.popleft()[1:]))
            rows[t, 2] = pairs.find_widest(window)[0]
            excluded[t, 2] = pairs.count_ruled_out(window)
        guess = replay.posterior.infer(releaser.measurements.points, releaser.cell)
        rows[t, 3:] = (
            _compute_divergence_bits(replay.prior, replay.posterior),
            guess.error_lower_bound,
            guess.max_probability,
        )
        is_unprotected[t] = replay.engine.planner.summarize_likeliest_component(
            replay.step, replay.posterior
        ).is_unprotected
    release_log_odds, total_log_odds, log_odds_24h, bits, error, max_posterior = rows.T
    num_distinguished, num_vacuous = np.moveaxis(excluded, 2, 0)
    return RealizedLeakage(
        release_log_odds=release_log_odds,
        total_log_odds=total_log_odds,
        log_odds_24h=log_odds_24h,
        num_distinguished=num_distinguished,
        num_vacuous=num_vacuous,
        worst_pair=worst_pair,
        worst_pair_counts=worst_counts,
        bits=bits,
        error=error,
        max_posterior=max_posterior,
        is_withheld=np.asarray(sequence.epsilons) == 0,
        is_unprotected=is_unprotected,
        is_by_edge=is_by_edge,
    )


def _check_one_policy(releaser: Releaser, sequence: ReleasedSequence) -> None:
    others = [
        number
        for number, engine in sequence.engines.items()
        if engine.policy.content_hash != releaser.policy.content_hash
    ]
    if others:
        raise InvalidInputError(
            f"user {sequence.user}: all releases must have one policy, got another from release {min(others) + 1}; use "
            "'dphmm audit session' instead"
        )


@dataclass(frozen=True, eq=False)
class _Comparison:
    """Log odds and counts of one or more releases for each pair."""

    # sum of log odds per pair, 0 if no release compares it
    values: FloatArray
    # numbers of releases per pair, with rows as in `_Edges` or `_Groups`
    counts: npt.NDArray[Any]

    def add(self, other: _Comparison) -> None:
        """Add a release."""
        self.values[:] += other.values
        self.counts[: len(other.counts)] += other.counts

    def remove(self, other: _Comparison) -> None:
        """Subtract a release that was added."""
        self.values[:] -= other.values
        self.counts[: len(other.counts)] -= other.counts
        self.values[self.counts[0] == 0] = 0.0  # discard the rounding error of the sums


class _Edges:
    """Edges of a policy, compared individually.

    Rows of `_Comparison.counts`: releases that compare both endpoints, that exclude the first, the second, and both.
    """

    def __init__(self, edges: IntArray) -> None:
        self._first, self._second = np.ascontiguousarray(edges.T)
        self.count = len(edges)

    def compare(self, row: FloatArray, possible: BoolArray) -> _Comparison:
        """Compare the endpoints of every edge under one release.

        ``row`` contains the log densities, ``possible`` the mask of the possible states before the release.
        """
        gone = possible & np.isneginf(row)
        held = possible & ~gone
        level = np.where(held, row, 0.0)
        values = level[self._first] - level[self._second]
        if held.all():
            return _Comparison(values, np.broadcast_to(np.True_, (1, self.count)))
        used = held[self._first] & held[self._second]
        values[~used] = 0.0
        if not gone.any():
            return _Comparison(values, used[np.newaxis])
        both_possible = possible[self._first] & possible[self._second]
        first = gone[self._first] & both_possible
        second = gone[self._second] & both_possible
        return _Comparison(values, np.array([used, first, second, first & second]))

    def find_widest(self, comparison: _Comparison) -> tuple[float, int, int, int]:
        """Return the largest absolute sum, its two states and its index. Zeros without pairs."""
        if not self.count:
            return 0.0, 0, 0, 0
        sums = comparison.values
        high = int(sums.argmax())
        low = int(sums.argmin())
        at = high if sums[high] >= -sums[low] else low
        return abs(float(sums[at])), int(self._first[at]), int(self._second[at]), at

    @staticmethod
    def count_ruled_out(comparison: _Comparison) -> tuple[int, int]:
        """Count the edges that are distinguished, and those for which the releases are vacuous."""
        if not comparison.counts[1:3].any():  # also if these rows are missing, because nothing was excluded
            return 0, 0
        first, second = comparison.counts[1:3] > 0
        return int((first != second).sum()), int((first & second).sum())


class _Groups:
    """Components of a policy with too many edges to compare them individually.

    The values are upper bounds for all pairs of states that the policy connects. A release assigns to a state the
    difference between its log density and the smallest compared log density in its component. Two states of a
    component that all its releases compare differ by the difference of their sums. For other pairs, the difference is
    at most the larger sum, because no value is negative. Rows of `_Comparison.counts`: releases that compare the state,
    that compare any state of its component, that exclude the state but compare others of its component, and that
    exclude it.
    """

    def __init__(self, labels: IntArray) -> None:
        self.count = len(labels)
        self._places = np.flatnonzero(labels >= 0)
        self._places = self._places[np.argsort(labels[self._places], kind="stable")]
        self._starts = np.flatnonzero(np.diff(labels[self._places], prepend=-1))
        self._sizes = np.diff(self._starts, append=len(self._places))

    def compare(self, row: FloatArray, possible: BoolArray) -> _Comparison:
        """Compare the states of each component. See `_Edges.compare`."""
        gone = possible & np.isneginf(row)
        held = possible & ~gone
        lowest = np.minimum.reduceat(np.where(held, row, np.inf)[self._places], self._starts)
        level = np.zeros(self.count)
        compares = np.zeros(self.count, dtype=np.bool_)
        level[self._places] = np.repeat(lowest, self._sizes)
        compares[self._places] = np.repeat(np.isfinite(lowest), self._sizes)
        values = np.zeros(self.count)
        values[held] = row[held] - level[held]
        return _Comparison(values, np.array([held, compares, gone & compares, gone]))

    def find_widest(self, comparison: _Comparison) -> tuple[float, int, int, int]:
        """Return the largest difference in a component and its two states. The index is always 0."""
        sums = comparison.values
        counts = comparison.counts
        compared = counts[0] > 0
        high = np.where(compared, sums, -np.inf)[self._places]
        low = np.where(compared, np.where(counts[0] == counts[1], sums, 0.0), np.inf)[self._places]
        alone = np.add.reduceat(compared[self._places].astype(np.int64), self._starts) < 2
        apart = np.maximum.reduceat(high, self._starts) - np.minimum.reduceat(low, self._starts)
        apart[alone] = 0.0
        group = int(apart.argmax())
        part = slice(int(self._starts[group]), int(self._starts[group] + self._sizes[group]))
        top = int(high[part].argmax())
        bottom = int(low[part].argmin())
        return float(apart[group]), int(self._places[part][top]), int(self._places[part][bottom]), 0

    @staticmethod
    def count_ruled_out(comparison: _Comparison) -> tuple[int, int]:
        """Count the excluded states with and without a compared state in their component."""
        apart, gone = comparison.counts[2:] > 0
        return int(apart.sum()), int((gone & ~apart).sum())


def _build_pairs(policy: PolicyGraph) -> _Edges | _Groups:
    """Collect the unique edges of a policy, or its components if there are too many edges."""
    blocks: list[IntArray] = []
    for block in policy.edge_blocks():
        blocks.append(block)
        if sum(map(len, blocks)) > _MAX_EDGES:
            return _Groups(policy.components())
    edges = np.concatenate(blocks) if blocks else np.zeros((0, 2), dtype=np.int64)
    return _Edges(np.array(np.divmod(np.unique(edges[:, 0] * policy.size + edges[:, 1]), policy.size)).T)


def _compute_divergence_bits(before: Belief, after: Belief) -> float:
    """Return the Kullback-Leibler divergence of the belief ``after`` from ``before``, in bits."""
    held = after.probabilities > 0
    gained = after.log_mass[held] - before.log_mass[held]
    return max(0.0, float(after.probabilities[held] @ gained)) / float(np.log(2.0))


def _count_max_releases(slots: IntArray, day: int) -> int:
    """Return the largest number of releases within `day` steps."""
    return int((np.arange(1, len(slots) + 1) - np.searchsorted(slots, slots - day, side="right")).max())


# Number of releases listed with the largest change of log odds.
NUM_LISTED_CHANGES = 5


@dataclass(frozen=True, eq=False)
class EventAudit(Result):
    """Posterior odds of an event after each release of a user.

    Parameters
    ----------
    user
        The user.
    event
        The event, in steps from `lead_steps` before the first release.
    wording
        The event as the caller stated it.
    prior
        ``logit Pr(E)`` before the first release.
    times
        ``(T,)``: the step of each release, from 0.
    log_odds_change
        ``(T,)``: ``logit Pr(E | z_1..t) - logit Pr(E)``. Infinite once the event is certain or impossible.
    smoothed_occurred
        ``(T,)``: the probability, given all releases, that the event had occurred by each release.
    lead_steps
        Number of steps between the event's time 0 and the first release.
    auxiliary_knowledge
        What the adversary knows about the user's movement, in words.
    """

    user: str = field(metadata=exported())
    event: Event
    wording: str = field(metadata=exported("event"))
    prior: float = field(metadata=exported("prior_log_odds"))
    times: IntArray = field(repr=False, metadata=exported("steps"))
    log_odds_change: FloatArray = field(repr=False, metadata=exported())
    smoothed_occurred: FloatArray = field(repr=False, metadata=exported())
    lead_steps: int = field(default=0, metadata=exported())
    auxiliary_knowledge: str = field(default=PUBLIC.auxiliary_knowledge, metadata=exported())

    @property
    def prior_probability(self) -> float:
        """The prior probability ``Pr(E)``."""
        return float(expit(self.prior))

    @property
    def probability(self) -> FloatArray:
        """The posterior probability ``Pr(E | z_1..t)`` after every release, ``(T,)``."""
        return np.asarray(expit(self.prior + self.log_odds_change))

    @property
    def release_log_odds(self) -> FloatArray:
        """The change of the log odds by each release, ``(T,)``."""
        with np.errstate(invalid="ignore"):
            changes = np.diff(self.log_odds_change, prepend=0.0)
        return np.where(np.isnan(changes), 0.0, changes)  # inf - inf: certain before and after

    def largest_changes(self, count: int = NUM_LISTED_CHANGES) -> IntArray:
        """Return the releases with the largest absolute change of log odds, in decreasing order.

        Parameters
        ----------
        count
            Maximum number of releases.

        Returns
        -------
        IntArray
            Indices of the releases, from 0.
        """
        return np.argsort(-np.abs(self.release_log_odds), kind="stable")[:count]

    def _derive_fields(self) -> dict[str, Any]:
        probability = self.probability
        changes = self.release_log_odds
        highest = int(probability.argmax())
        lowest = int(probability.argmin())
        return {
            "event_in_steps": str(self.event),
            "num_timesteps": len(self.log_odds_change),
            "prior_probability": self.prior_probability,
            "max_probability": {"probability": probability[highest], "release": highest + 1},
            "min_probability": {"probability": probability[lowest], "release": lowest + 1},
            "final_probability": probability[-1],
            "max_log_odds_change": np.abs(self.log_odds_change).max(),
            "largest_changes": [
                {"release": t + 1, "step": self.times[t], "log_odds": changes[t]}
                for t in self.largest_changes().tolist()
            ],
            "probability": probability,
        }


def _resolve(
    specification: Event | EventText, model: MarkovModel, first_slot: int | None
) -> tuple[Event, int, tuple[Chain, FloatArray] | None]:
    """Return what `resolve_from_start` returns, for an event in words or a value."""
    if isinstance(specification, Event):
        return specification, 0, None
    clock = Clock(model.step_seconds, first_slot)
    return resolve_from_start(specification, model.states, clock, make_earlier_start(model, first_slot))


def get_first_step(specification: Event | EventText, model: MarkovModel, first_slot: int | None) -> int:
    """Return the step at which an event begins, counted from the first release.

    Raises
    ------
    EventError
        If the event cannot be resolved.
    """
    event, lead, _ = _resolve(specification, model, first_slot)
    return event.first - lead


@check_arguments
def audit_events(
    releaser: Releaser,
    sequence: ReleasedSequence,
    events: Sequence[tuple[str, Event | EventText]],
    prior: npt.ArrayLike | None = None,
    adversary: Adversary = PUBLIC,
) -> tuple[EventAudit, ...]:
    """Audit what a released sequence reveals about events, for one adversary.

    Parameters
    ----------
    releaser
        An engine with the settings of the releases. It is restarted.
    sequence
        The releases. The first is at time 0.
    events
        Pairs of a wording and an event. An event in words that begins before the first release is evaluated from its
        beginning if the model begins in its stationary distribution, and refused otherwise.
    prior
        ``(N,)``: the adversary's distribution of the first state. Defaults to that of the adversary's model.
    adversary
        The adversary. Its prior, if it has one, takes precedence over `prior`.

    Returns
    -------
    tuple of EventAudit
        One result for each event.

    Raises
    ------
    EventError
        If an event is certain or impossible before the first release. Also if it begins before it and the model does
        not begin in its stationary distribution, or `prior` is given.
    StochasticError
        If the prior is not a distribution over the states, or excludes the releases.
    InvalidInputError, SingletonConstraintError
        See `dphmm.audit.replay_sequence`.
    """
    model = adversary.model or releaser.model
    prior = prior if adversary.prior is None else adversary.prior
    chain, chain_start = make_chain(model, sequence.first_slot)
    start = chain_start if prior is None else as_distribution(prior, model.size, "the adversary's prior")
    times = np.concatenate([[0], np.cumsum(sequence.steps[1:])]).astype(np.int64)
    queries: list[tuple[EventOdds, int, tuple[Chain, FloatArray]]] = []
    for wording, specification in events:
        try:
            event, lead, extended = _resolve(specification, model, sequence.first_slot)
            if lead and prior is not None:
                raise EventError(
                    f"'{wording}' begins before the first release, which the adversary's prior does not cover; remove "
                    "the prior, or add 'from the first release' to the window"
                )
            start_of_event = extended or (chain, start)
            queries.append((EventOdds(*start_of_event, event, wording, lead), lead, start_of_event))
        except EventError as problem:
            raise EventError(f"user {sequence.user}: {problem}") from None
    rows = np.array([replay.log_likelihood for replay in replay_sequence(releaser, sequence)])
    audits = []
    for (wording, _), (odds, lead, start_of_event) in zip(events, queries, strict=True):
        changes = [odds.update(row, int(step)) for row, step in zip(rows, np.diff(times, prepend=0), strict=True)]
        audits.append(
            EventAudit(
                user=sequence.user,
                event=odds.event,
                wording=wording,
                prior=odds.prior,
                times=times,
                log_odds_change=np.array(changes),
                smoothed_occurred=compute_smoothed_event_probabilities(*start_of_event, rows, odds.event, times + lead),
                lead_steps=lead,
                auxiliary_knowledge=adversary.auxiliary_knowledge,
            )
        )
    return tuple(audits)
