"""What released sequences really told: between places that a policy joins, and of events over time.

The first stands beside what the policy allows at most; of events there are the odds at every release, and which
releases moved them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from dphmm.arguments import checked
from dphmm.arrays import BoolArray, FloatArray, IntArray, as_distribution
from dphmm.audit.sequence import ReleasedSequence, replay_sequence
from dphmm.audit.tables import Facts
from dphmm.errors import EventError, InvalidInputError
from dphmm.events import Event, EventOdds, happened_by
from dphmm.facts import fact, facts_of
from dphmm.model.belief import Belief
from dphmm.model.point_estimate import point_estimate
from dphmm.policy.graph import PolicyGraph
from dphmm.release.engine import Releaser
from dphmm.release.event_caps import chain_of
from dphmm.release.ledger import day_steps

_MOST_EDGES = 5_000_000
_MOST_CELLS = 50_000_000


@dataclass(frozen=True, eq=False)
class Realised:
    """What the releases of a person told, one after another; a function of public things only.

    By Bayes' rule a release ``z`` moves the log odds of two places ``i`` and ``j`` by ``log p(z | i) - log p(z | j)``,
    whatever was believed before; at most by epsilon where the policy joins them and both were possible. Of several
    releases these add up for a person who is in ``i`` throughout, or in ``j``: places are compared that were possible
    at all of them.

    Parameters
    ----------
    moved
        ``(T,)``: the largest such move, up or down, between two places that the policy joins, by each release.
    so_far
        ``(T,)``: the largest sum of the moves of all releases up to each one, between two such places.
    last_day
        ``(T,)``: that of the releases in the 24 hours that end with each one; NaN where the model has no step, and
        where the releases of a day times the states would not fit into memory.
    worst
        The two places and the release of the largest sum of all; the same two where several are as far.
    bits
        ``(T,)``: by how much each release changed what is believed of its own moment, the Kullback-Leibler divergence
        of the belief after it from that before it. The worst two places may be far from where the person is: a release
        that lies on one side of the region moves all edges that point there by epsilon, and this hardly.
    error, certainty
        ``(T,)``: the expected distance of the best guess after each release, in the unit of the measurements (told at
        most 2 % too small), and the probability of the most probable state.
    is_by_edge
        Whether edges were looked at one by one. Otherwise there are too many, and figures are of places that the policy
        joins by any path, and may be larger.
    """

    moved: FloatArray = field(repr=False)
    so_far: FloatArray = field(repr=False)
    last_day: FloatArray = field(repr=False)
    worst: tuple[int, int, int]
    bits: FloatArray = field(repr=False)
    error: FloatArray = field(repr=False)
    certainty: FloatArray = field(repr=False)
    is_by_edge: bool = field(metadata=fact())

    def facts(self) -> Facts:
        """As plain values for JSON."""
        known = self.last_day[~np.isnan(self.last_day)]
        return facts_of(
            self,
            moved_median=np.median(self.moved),
            moved_most=self.moved.max(),
            so_far_most=self.so_far.max(),
            last_day_most=known.max() if len(known) else None,
            last_day_is_known=bool(len(known)),
            worst_places=self.worst[:2],
            worst_release=self.worst[2] + 1,
            bits_median=np.median(self.bits),
            bits_most=self.bits.max(),
            adversary_error_m_median=1000.0 * np.median(self.error),
            adversary_error_m_least=1000.0 * self.error.min(),
            adversary_certainty_most=self.certainty.max(),
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
    if sequence.engines:
        raise InvalidInputError(
            f"user {sequence.user}: release {min(sequence.engines) + 1} was made under another policy than the first, "
            "so that no two places are joined throughout; 'dphmm audit session' says what releases tell of places"
        )
    day = day_steps(releaser.model.step_seconds)
    slots = np.cumsum(np.where(np.arange(len(sequence)) == 0, 0, sequence.steps))
    if day is not None and _most_within(slots, day) * releaser.model.size > _MOST_CELLS:
        day = None
    by_release, by_all, by_day = (_Pairs(releaser.policy) for _ in range(3))
    total = np.zeros(releaser.model.size)
    throughout = np.ones(releaser.model.size, dtype=np.bool_)
    before: deque[tuple[int, FloatArray, BoolArray]] = deque()
    rows, worst, most = np.full((len(sequence), 6), np.nan), (0, 0, 0), -1.0
    for t, replay in enumerate(replay_sequence(releaser, sequence)):
        possible = replay.step.plan.constraint
        if (throughout & ~possible).any():
            throughout = throughout & possible
        rows[t, 0] = by_release.widest(replay.log_likelihood, possible)[0]
        if day is not None:
            before.append((int(slots[t]), total, possible))
            while before[0][0] <= slots[t] - day:
                before.popleft()
        total = _sum(total, replay.log_likelihood)
        rows[t, 1], i, j = by_all.widest(total, throughout)
        if rows[t, 1] > most:
            most, worst = rows[t, 1], (i, j, t)
        if day is not None:
            sets = {id(one): one for _, _, one in before}
            rows[t, 2] = by_day.widest(_difference(total, before[0][1]), np.logical_and.reduce([*sets.values()]))[0]
        guess = point_estimate(replay.posterior.probabilities, releaser.measurements.points)
        rows[t, 3:] = _bits(replay.step.prior, replay.posterior), guess.least_error, guess.certainty
    moved, so_far, last_day, bits, error, certainty = rows.T
    return Realised(moved, so_far, last_day, worst, bits, error, certainty, by_all.is_by_edge)


class _Pairs:
    """Which two of the places that a policy joins differ most in some numbers."""

    def __init__(self, policy: PolicyGraph) -> None:
        self._policy = policy
        self._among: BoolArray | None = None
        self._groups: list[IntArray] | None = None
        self.is_by_edge = True

    def widest(self, values: FloatArray, among: BoolArray) -> tuple[float, int, int]:
        """The largest difference among some places, and the two; 0 where the policy joins none of them.

        Minus infinity, of places that are ruled out, is infinitely far from every number, and not from itself.
        """
        if self._among is None or not np.array_equal(among, self._among):
            self._among = among
            self._list(self._policy.restrict(among))
        if self._groups is not None:
            return max((self._of_group(values, group) for group in self._groups), default=(0.0, 0, 0))
        if not len(self._first):
            return 0.0, 0, 0
        ones, others = values[self._first], values[self._second]
        if np.isneginf(values.min()):
            both: BoolArray = np.isneginf(ones) & np.isneginf(others)
            ones[both], others[both] = 0.0, 0.0
        ones -= others
        at = int(np.abs(ones, out=ones).argmax())
        return float(ones[at]), int(self._first[at]), int(self._second[at])

    def _list(self, policy: PolicyGraph) -> None:
        blocks: list[IntArray] = []
        self._groups = None
        for block in policy.edge_blocks():
            blocks.append(block)
            if sum(map(len, blocks)) > _MOST_EDGES:
                self.is_by_edge = False
                labels = policy.components()
                self._groups = [np.flatnonzero(labels == one) for one in np.unique(labels[labels >= 0])]
                return
        edges = np.concatenate(blocks) if blocks else np.zeros((0, 2), dtype=np.int64)
        self._first, self._second = np.ascontiguousarray(edges.T)

    @staticmethod
    def _of_group(values: FloatArray, group: IntArray) -> tuple[float, int, int]:
        some = values[group]
        low, high = int(some.argmin()), int(some.argmax())
        apart = 0.0 if some[low] == some[high] else float(some[high] - some[low])
        return apart, int(group[low]), int(group[high])


def _bits(before: Belief, after: Belief) -> float:
    """The Kullback-Leibler divergence of a belief from the one before, in bits."""
    held = after.probabilities > 0
    gained = after.log_mass[held] - before.log_mass[held]
    return max(0.0, float(after.probabilities[held] @ gained)) / float(np.log(2.0))


def _sum(total: FloatArray, row: FloatArray) -> FloatArray:
    """The sum of log densities, less their largest, which moves no odds and would take digits from the rest."""
    found = total + row
    top = found.max()
    return found - top if np.isfinite(top) else found


def _difference(total: FloatArray, before: FloatArray) -> FloatArray:
    """What was added since; a place that had been ruled out before is as it was."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isneginf(before), 0.0, total - before)


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
        The event, in steps from the first release.
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
    """

    user: str = field(metadata=fact())
    event: Event
    wording: str = field(metadata=fact("event"))
    prior: float = field(metadata=fact("prior_log_odds"))
    times: IntArray = field(repr=False, metadata=fact("steps"))
    told: FloatArray = field(repr=False, metadata=fact("log_odds_told"))
    happened: FloatArray = field(repr=False, metadata=fact("had_happened_in_hindsight"))

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
    events: Sequence[tuple[str, Event]],
    prior: npt.ArrayLike | None = None,
) -> tuple[EventAudit, ...]:
    """What a released sequence tells of events, to the public adversary or to one with a prior of their own.

    Parameters
    ----------
    releaser
        An engine with the settings that the releases were made with. It starts anew.
    sequence
        The releases; the first is at time 0.
    events
        Each with how it is worded.
    prior
        ``(N,)``: the distribution of the first state that another adversary holds, who shares the model's transitions.
        Left out, the model's.

    Returns
    -------
    tuple of EventAudit
        One for each event.

    Raises
    ------
    EventError
        When an event begins after the last release, or is certain or impossible before the first.
    StochasticError
        When the prior is no distribution over the states, or rules out what was released.
    InvalidInputError, AlreadyKnownError
        As `dphmm.audit.replay_sequence`.
    """
    model = releaser.model
    moves, begins = chain_of(model, sequence.first)
    start = begins if prior is None else as_distribution(prior, model.size, "the adversary's prior")
    times = np.concatenate([[0], np.cumsum(sequence.steps[1:])]).astype(np.int64)
    odds = []
    for wording, event in events:
        if event.first > times[-1]:
            raise EventError(
                f"user {sequence.user}: '{wording}' begins at step {event.first}, after the last release at step "
                f"{times[-1]}; ask about a time that the releases reach"
            )
        try:
            odds.append(EventOdds(moves, start, event, wording))
        except EventError as problem:
            raise EventError(f"user {sequence.user}: {problem}") from None
    rows = np.array([replay.log_likelihood for replay in replay_sequence(releaser, sequence)])
    found = []
    for (wording, event), one in zip(events, odds, strict=True):
        told = [one.update(row, int(step)) for row, step in zip(rows, np.diff(times, prepend=0), strict=True)]
        happened = happened_by(moves, start, rows, event, times)
        found.append(EventAudit(sequence.user, event, wording, one.prior, times, np.array(told), happened))
    return tuple(found)
