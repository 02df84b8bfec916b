"""What released sequences really told: between places that a policy joins, and of events over time.

The first stands beside what the policy allows at most; of events there are the odds at every release, and which
releases moved them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from dphmm.arguments import checked
from dphmm.arrays import BoolArray, FloatArray, IntArray, as_distribution
from dphmm.audit.sequence import PUBLIC, Adversary, ReleasedSequence, replay_sequence
from dphmm.errors import EventError, InvalidInputError
from dphmm.events import Clock, Event, EventOdds, EventText, happened_by
from dphmm.events.cap import placed
from dphmm.events.product_chain import Chain
from dphmm.facts import Facts, fact, facts_of
from dphmm.model.belief import Belief
from dphmm.model.point_estimate import point_estimate
from dphmm.policy.graph import PolicyGraph
from dphmm.release.engine import Releaser
from dphmm.release.event_caps import chain_of, earlier
from dphmm.release.ledger import day_steps

_MOST_EDGES = 5_000_000
_MOST_CELLS = 50_000_000


@dataclass(frozen=True, eq=False)
class Realised:
    """What the releases of a person told, one after another; a function of public things only.

    By Bayes' rule a release ``z`` moves the log odds of two places ``i`` and ``j`` by ``log p(z | i) - log p(z | j)``,
    whatever was believed before; at most by epsilon where the policy joins them and both were possible. Of several
    releases these add up. A release compares two places where both were possible before it and it rules out neither;
    the sums here are of the releases that compare the two, and so finite.

    A release rules a possible place out where it has no density there, as off the line of flat noise, or in another
    component of the policy. Where it rules out both of two places, it says nothing of one against the other: it is
    *vacuous* for them. Of several releases the two are vacuous once each was ruled out by some of them, as nobody was
    in either throughout; and they are *told apart*, which no finite sum can say, where one alone was.

    Parameters
    ----------
    moved
        ``(T,)``: the largest such move, up or down, between two places that the policy joins, by each release.
    so_far
        ``(T,)``: the largest sum of the moves of all releases up to each one, between two such places.
    last_day
        ``(T,)``: that of the releases in the 24 hours that end with each one; NaN where the model has no step, and
        where the releases of a day times the states would not fit into memory.
    apart, vacuous
        ``(T, 3)``: how many of the policy's edges were told apart, and for how many it is vacuous: by each release, by
        all up to it, and by those of the 24 hours that end with it; -1 where `last_day` is NaN. Where edges were not
        looked at one by one, how many places were ruled out while another of their component was not, and how many
        others were ruled out.
    worst
        The two places and the release of the largest sum of all; the same two where several are as far.
    worst_releases
        How many of the releases up to that one compare the two, how many ruled out the first, the second, and both;
        empty where edges were not looked at one by one.
    bits
        ``(T,)``: by how much each release changed what is believed of its own moment, the Kullback-Leibler divergence
        of the belief after it from that before it. The worst two places may be far from where the person is: a release
        that lies on one side of the region moves all edges that point there by epsilon, and this hardly.
    error, certainty
        ``(T,)``: the expected distance of the best guess after each release, in the unit of the measurements (told at
        most 2 % too small), and the probability of the most probable state.
    open
        ``(T,)``: whether the likeliest place after each release is open. Facts count errors of the others.
    is_by_edge
        Whether edges were looked at one by one. Otherwise there are too many, and figures are of places that the policy
        joins by any path, and may be larger.
    """

    moved: FloatArray = field(repr=False)
    so_far: FloatArray = field(repr=False)
    last_day: FloatArray = field(repr=False)
    apart: IntArray = field(repr=False)
    vacuous: IntArray = field(repr=False)
    worst: tuple[int, int, int]
    worst_releases: tuple[int, ...]
    bits: FloatArray = field(repr=False)
    error: FloatArray = field(repr=False)
    certainty: FloatArray = field(repr=False)
    open: BoolArray = field(repr=False)
    is_by_edge: bool = field(metadata=fact())

    @property
    def releases_that_ruled_out(self) -> int:
        """How many releases ruled out a place that was possible and joined to another one."""
        return int(((self.apart[:, 0] > 0) | (self.vacuous[:, 0] > 0)).sum())

    def facts(self) -> Facts:
        """As plain values for JSON."""
        known = self.last_day[~np.isnan(self.last_day)]
        names = ("compared", "ruled_out_first", "ruled_out_second", "ruled_out_both")
        worst = dict(zip(names, self.worst_releases, strict=bool(self.worst_releases)))
        errors, certainties = self.error[~self.open], self.certainty[~self.open]
        return facts_of(
            self,
            moved_median=np.median(self.moved),
            moved_most=self.moved.max(),
            so_far_most=self.so_far.max(),
            last_day_most=known.max() if len(known) else None,
            last_day_is_known=bool(len(known)),
            releases_that_ruled_out=self.releases_that_ruled_out,
            told_apart=self.apart[-1, 1],
            vacuous=self.vacuous[-1, 1],
            last_day_told_apart_most=self.apart[:, 2].max() if len(known) else None,
            last_day_vacuous_most=self.vacuous[:, 2].max() if len(known) else None,
            worst_places=self.worst[:2],
            worst_release=self.worst[2] + 1,
            worst_releases=worst or None,
            bits_median=np.median(self.bits),
            bits_most=self.bits.max(),
            moments_open=self.open.sum(),
            adversary_error_m_median=1000.0 * np.median(errors) if len(errors) else None,
            adversary_error_m_least=1000.0 * errors.min() if len(errors) else None,
            adversary_certainty_most=certainties.max() if len(errors) else None,
        )


def realise(releaser: Releaser, sequence: ReleasedSequence) -> Realised:
    """What the releases of a sequence really told; they are replayed one after another.

    Parameters
    ----------
    releaser
        An engine of the settings and the model that they were made with; it starts anew.
    sequence
        The releases.

    Raises
    ------
    InvalidInputError, AlreadyKnownError
        As `replay_sequence`; and when the policy changed on the way, so that it is not said between which places.
    """
    others = [
        number for number, one in sequence.engines.items() if one.policy.content_hash != releaser.policy.content_hash
    ]
    if others:
        raise InvalidInputError(
            f"user {sequence.user}: release {min(others) + 1} was made under another policy than the first, "
            "so that no two places are joined throughout; 'dphmm audit session' says what releases tell of places"
        )
    count, size = len(sequence), releaser.model.size
    day = day_steps(releaser.model.step_seconds)
    slots = np.cumsum(np.where(np.arange(count) == 0, 0, sequence.steps))
    if day is not None and _most_within(slots, day) * size > _MOST_CELLS:
        day = None
    pairs = _pairs(releaser.policy)
    is_by_edge = isinstance(pairs, _Edges)
    by_all, by_day = (_Told(np.zeros(pairs.count), np.zeros((4, pairs.count), dtype=np.int32)) for _ in range(2))
    within: deque[tuple[int, FloatArray, BoolArray]] = deque()
    rows, ruled_out = np.full((count, 6), np.nan), np.full((count, 3, 2), -1, dtype=np.int64)
    worst, most, opened = (0, 0, 0), -1.0, np.zeros(count, dtype=np.bool_)
    releases: tuple[int, ...] = ()
    for t, replay in enumerate(replay_sequence(releaser, sequence)):
        possible = replay.step.plan.constraint
        told = pairs.compared(replay.log_likelihood, possible)
        by_all.add(told)
        (rows[t, 0], *_), (rows[t, 1], i, j, at) = pairs.widest(told), pairs.widest(by_all)
        ruled_out[t, 0], ruled_out[t, 1] = pairs.ruled_out(told), pairs.ruled_out(by_all)
        if rows[t, 1] > most:
            most, worst = rows[t, 1], (i, j, t)
            releases = tuple(by_all.counts[:, at].tolist()) if is_by_edge and pairs.count else ()
        if day is not None:
            within.append((int(slots[t]), replay.log_likelihood, possible))
            by_day.add(told)
            while within[0][0] <= slots[t] - day:
                by_day.remove(pairs.compared(*within.popleft()[1:]))
            rows[t, 2], ruled_out[t, 2] = pairs.widest(by_day)[0], pairs.ruled_out(by_day)
        points, after = releaser.measurements.points, replay.posterior
        guess = point_estimate(after.probabilities, points, releaser.cell, after.beyond)
        rows[t, 3:] = _bits(replay.prior, replay.posterior), guess.least_error, guess.certainty
        opened[t] = replay.engine.likeliest_component(replay.step, replay.posterior).open
    moved, so_far, last_day, bits, error, certainty = rows.T
    apart, vacuous = np.moveaxis(ruled_out, 2, 0)
    return Realised(
        moved, so_far, last_day, apart, vacuous, worst, releases, bits, error, certainty, opened, is_by_edge
    )


@dataclass(frozen=True, eq=False)
class _Told:
    """What releases told: a number by pair of places, 0 where none compares them, and how many of them did what."""

    values: FloatArray
    counts: npt.NDArray[Any]

    def add(self, told: _Told) -> None:
        """Take a release in."""
        self.values[:] += told.values
        self.counts[: len(told.counts)] += told.counts

    def remove(self, told: _Told) -> None:
        """Leave a release out that was taken in."""
        self.values[:] -= told.values
        self.counts[: len(told.counts)] -= told.counts
        self.values[self.counts[0] == 0] = 0.0  # not what rounding leaves


class _Edges:
    """The edges of a policy, one by one; of releases is counted which compare both ends, and rule out which."""

    def __init__(self, edges: IntArray) -> None:
        self._first, self._second = np.ascontiguousarray(edges.T)
        self.count = len(edges)

    def compared(self, row: FloatArray, possible: BoolArray) -> _Told:
        """What a release told, by its log densities and which places were possible before it."""
        gone = possible & np.isneginf(row)
        held = possible & ~gone
        level = np.where(held, row, 0.0)
        values = level[self._first] - level[self._second]
        if held.all():
            return _Told(values, np.broadcast_to(np.True_, (1, self.count)))
        used = held[self._first] & held[self._second]
        values[~used] = 0.0
        if not gone.any():
            return _Told(values, used[np.newaxis])
        both_possible = possible[self._first] & possible[self._second]
        first, second = gone[self._first] & both_possible, gone[self._second] & both_possible
        return _Told(values, np.array([used, first, second, first & second]))

    def widest(self, told: _Told) -> tuple[float, int, int, int]:
        """The largest sum, up or down, its two places, and where it stands; 0 where no two are compared."""
        if not self.count:
            return 0.0, 0, 0, 0
        sums = told.values
        high, low = int(sums.argmax()), int(sums.argmin())
        at = high if sums[high] >= -sums[low] else low
        return abs(float(sums[at])), int(self._first[at]), int(self._second[at]), at

    @staticmethod
    def ruled_out(told: _Told) -> tuple[int, int]:
        """How many were told apart, and for how many it is vacuous."""
        if not told.counts[1:3].any():  # or there is no such row, where none was ruled out
            return 0, 0
        first, second = told.counts[1:3] > 0
        return int((first != second).sum()), int((first & second).sum())


class _Groups:
    """The components of a policy with too many edges: no two places that it joins are farther apart than told here.

    A release's number of a place is how far it is above the lowest that the release compares in its component. Two
    places of a component that all its releases compare differ by the difference of their sums; of any others, the
    difference is at most the larger sum, as no number is below 0. Of releases is counted which compare the place,
    which any of its component, which rule the place out while they compare others of it, and which rule it out.
    """

    def __init__(self, labels: IntArray) -> None:
        self.count = len(labels)
        self._places = np.flatnonzero(labels >= 0)
        self._places = self._places[np.argsort(labels[self._places], kind="stable")]
        self._starts = np.flatnonzero(np.diff(labels[self._places], prepend=-1))
        self._sizes = np.diff(self._starts, append=len(self._places))

    def compared(self, row: FloatArray, possible: BoolArray) -> _Told:
        """As `_Edges.compared`."""
        gone = possible & np.isneginf(row)
        held = possible & ~gone
        lowest = np.minimum.reduceat(np.where(held, row, np.inf)[self._places], self._starts)
        level, compares = np.zeros(self.count), np.zeros(self.count, dtype=np.bool_)
        level[self._places] = np.repeat(lowest, self._sizes)
        compares[self._places] = np.repeat(np.isfinite(lowest), self._sizes)
        values = np.zeros(self.count)
        values[held] = row[held] - level[held]
        return _Told(values, np.array([held, compares, gone & compares, gone]))

    def widest(self, told: _Told) -> tuple[float, int, int, int]:
        """As `_Edges.widest`; where it stands is not told."""
        sums, counts = told.values, told.counts
        compared = counts[0] > 0
        high = np.where(compared, sums, -np.inf)[self._places]
        low = np.where(compared, np.where(counts[0] == counts[1], sums, 0.0), np.inf)[self._places]
        alone = np.add.reduceat(compared[self._places].astype(np.int64), self._starts) < 2
        apart = np.maximum.reduceat(high, self._starts) - np.minimum.reduceat(low, self._starts)
        apart[alone] = 0.0
        group = int(apart.argmax())
        part = slice(int(self._starts[group]), int(self._starts[group] + self._sizes[group]))
        top, bottom = int(high[part].argmax()), int(low[part].argmin())
        return float(apart[group]), int(self._places[part][top]), int(self._places[part][bottom]), 0

    @staticmethod
    def ruled_out(told: _Told) -> tuple[int, int]:
        """As `_Edges.ruled_out`."""
        apart, gone = told.counts[2:] > 0
        return int(apart.sum()), int((gone & ~apart).sum())


def _pairs(policy: PolicyGraph) -> _Edges | _Groups:
    """The edges of a policy, each once, or its components where there are too many."""
    blocks: list[IntArray] = []
    for block in policy.edge_blocks():
        blocks.append(block)
        if sum(map(len, blocks)) > _MOST_EDGES:
            return _Groups(policy.components())
    edges = np.concatenate(blocks) if blocks else np.zeros((0, 2), dtype=np.int64)
    return _Edges(np.array(np.divmod(np.unique(edges[:, 0] * policy.size + edges[:, 1]), policy.size)).T)


def _bits(before: Belief, after: Belief) -> float:
    """The Kullback-Leibler divergence of a belief from the one before, in bits."""
    held = after.probabilities > 0
    gained = after.log_mass[held] - before.log_mass[held]
    return max(0.0, float(after.probabilities[held] @ gained)) / float(np.log(2.0))


def _most_within(slots: IntArray, day: int) -> int:
    """The largest number of releases within `day` steps."""
    return int((np.arange(1, len(slots) + 1) - np.searchsorted(slots, slots - day, side="right")).max())


MOVERS = 5
"""How many of the releases that moved the odds most are told."""


@dataclass(frozen=True, eq=False)
class EventAudit:
    """What releases told of an event.

    Parameters
    ----------
    user
        Whose releases they are.
    event
        The event, in steps from the first release, or from `lead` steps before it.
    wording
        The event as it was asked about.
    prior
        ``logit Pr(E)`` before anything was released.
    times
        ``(T,)``: the step of each release, from 0.
    told
        ``(T,)``: ``logit Pr(E | z_1..t) - logit Pr(E)``; infinite once it is certain.
    happened
        ``(T,)``: in hindsight, the probability that it had happened by each release.
    lead
        By how many steps the event's time 0 lies before the first release.
    knows
        What the adversary knows of how the person moves, in words.
    """

    user: str = field(metadata=fact())
    event: Event
    wording: str = field(metadata=fact("event"))
    prior: float = field(metadata=fact("prior_log_odds"))
    times: IntArray = field(repr=False, metadata=fact("steps"))
    told: FloatArray = field(repr=False, metadata=fact("log_odds_told"))
    happened: FloatArray = field(repr=False, metadata=fact("had_happened_in_hindsight"))
    lead: int = field(default=0, metadata=fact("steps_before_the_first_release"))
    knows: str = field(default=PUBLIC.knows, metadata=fact("adversary_knows"))

    @property
    def prior_probability(self) -> float:
        """``Pr(E)``."""
        return float(expit(self.prior))

    @property
    def probability(self) -> FloatArray:
        """``Pr(E | z_1..t)`` at every release, ``(T,)``."""
        return np.asarray(expit(self.prior + self.told))

    @property
    def moved(self) -> FloatArray:
        """By how much each release moved the log odds, ``(T,)``."""
        with np.errstate(invalid="ignore"):
            moved = np.diff(self.told, prepend=0.0)
        return np.where(np.isnan(moved), 0.0, moved)  # certain before and after

    def movers(self, count: int = MOVERS) -> IntArray:
        """The releases that moved the log odds most, the first of them first.

        Parameters
        ----------
        count
            How many at most.

        Returns
        -------
        IntArray
            Their numbers, from 0.
        """
        return np.argsort(-np.abs(self.moved), kind="stable")[:count]

    def facts(self) -> Facts:
        """As plain values for JSON; what is infinite is None.

        Returns
        -------
        dict
            Texts, numbers, None and lists of them.
        """
        probability, moved = self.probability, self.moved
        most, least = int(probability.argmax()), int(probability.argmin())
        return facts_of(
            self,
            in_steps=str(self.event),
            releases=len(self.told),
            prior_probability=self.prior_probability,
            most_probable={"probability": probability[most], "release": most + 1},
            least_probable={"probability": probability[least], "release": least + 1},
            probability_at_the_end=probability[-1],
            most_log_odds_moved=np.abs(self.told).max(),
            moved_most=[
                {"release": t + 1, "step": self.times[t], "log_odds": moved[t]} for t in self.movers().tolist()
            ],
            probability=probability,
        )


@checked
def audit_events(
    releaser: Releaser,
    sequence: ReleasedSequence,
    events: Sequence[tuple[str, Event | EventText]],
    prior: npt.ArrayLike | None = None,
    adversary: Adversary = PUBLIC,
) -> tuple[EventAudit, ...]:
    """What a released sequence tells of events, to the public adversary or to another one.

    Parameters
    ----------
    releaser
        An engine with the settings that the releases were made with. It starts anew.
    sequence
        The releases; the first is at time 0.
    events
        Each with how it is worded. One in words that begins before the first release is asked about from its beginning
        on, by a model that begins at rest, and otherwise refused.
    prior
        ``(N,)``: the distribution of the first state that the adversary holds. Left out, their model's.
    adversary
        Who reads the releases; a prior of their own goes before `prior`.

    Returns
    -------
    tuple of EventAudit
        One for each event.

    Raises
    ------
    EventError
        When an event begins after the last release, or before the first one and the model does not begin at rest (or
        another prior is given, which says nothing of that time); or is certain or impossible before the first.
    StochasticError
        When the prior is no distribution over the states, or rules out what was released.
    InvalidInputError, AlreadyKnownError
        As `dphmm.audit.replay_sequence`.
    """
    model = adversary.model or releaser.model
    prior = prior if adversary.prior is None else adversary.prior
    moves, begins = chain_of(model, sequence.first)
    start = begins if prior is None else as_distribution(prior, model.size, "the adversary's prior")
    times = np.concatenate([[0], np.cumsum(sequence.steps[1:])]).astype(np.int64)
    clock, sooner = Clock(model.step_seconds, sequence.first), earlier(model, sequence.first)
    asked: list[tuple[EventOdds, int, tuple[Chain, FloatArray]]] = []
    for wording, given in events:
        try:
            event, lead, begun = (
                (given, 0, None) if isinstance(given, Event) else placed(given, model.states, clock, sooner)
            )
            if lead and prior is not None:
                raise EventError(
                    f"'{wording}' begins before the first release, of which the adversary's prior says nothing; leave "
                    "that out, or write 'from the first release' behind the window"
                )
            if event.first - lead > times[-1]:
                raise EventError(
                    f"'{wording}' begins at step {event.first - lead}, after the last release at step {times[-1]}; ask "
                    "about a time that the releases reach"
                )
            begun = begun or (moves, start)
            asked.append((EventOdds(*begun, event, wording, lead), lead, begun))
        except EventError as problem:
            raise EventError(f"user {sequence.user}: {problem}") from None
    rows = np.array([replay.log_likelihood for replay in replay_sequence(releaser, sequence)])
    found = []
    for (wording, _), (odds, lead, begun) in zip(events, asked, strict=True):
        told = [odds.update(row, int(step)) for row, step in zip(rows, np.diff(times, prepend=0), strict=True)]
        happened = happened_by(*begun, rows, odds.event, times + lead)
        about = sequence.user, odds.event, wording, odds.prior, times, np.array(told), happened, lead
        found.append(EventAudit(*about, adversary.knows))
    return tuple(found)
