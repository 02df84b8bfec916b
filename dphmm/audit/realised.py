"""What a stream of releases really told between places that the policy joins, beside what it may have told at most."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.audit.facts import Facts, finite
from dphmm.audit.sequence import ReleasedSequence, replay_sequence
from dphmm.errors import InvalidInputError
from dphmm.markov.guess import best_guess
from dphmm.policy.graph import PolicyGraph
from dphmm.release.account import day_steps
from dphmm.release.engine import Releaser

_MOST_EDGES = 5_000_000
_MOST_CELLS = 50_000_000


@dataclass(frozen=True, eq=False)
class Realised:
    """What the releases of somebody told, one after another; a function of public things only.

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
        where there are so many releases a day over so many states that it would not fit into memory.
    worst
        The two places and the release of the largest sum of all; the same two where several are as far.
    bits
        ``(T,)``: by how much each release changed what is believed of its own moment, the Kullback-Leibler divergence
        of the belief after it from that before it. The worst two places may be far from where anybody is: a release
        that lies on one side of the region moves all edges that point there by epsilon, and this hardly.
    error, certainty
        ``(T,)``: the expected distance of the best guess after each release, in the unit of the measurements (told at
        most 2 % too small), and the probability of the most probable state.
    is_by_edge
        Whether edges were looked at one by one. Otherwise there are so many that figures are of places that the policy
        joins by any path, and may be larger.
    """

    moved: FloatArray = field(repr=False)
    so_far: FloatArray = field(repr=False)
    last_day: FloatArray = field(repr=False)
    worst: tuple[int, int, int]
    bits: FloatArray = field(repr=False)
    error: FloatArray = field(repr=False)
    certainty: FloatArray = field(repr=False)
    is_by_edge: bool

    def facts(self) -> Facts:
        """As plain values for JSON."""
        known = self.last_day[~np.isnan(self.last_day)]
        return {
            "moved_median": finite(float(np.median(self.moved))),
            "moved_most": finite(float(self.moved.max())),
            "so_far_most": finite(float(self.so_far.max())),
            "last_day_most": finite(float(known.max())) if len(known) else None,
            "last_day_is_known": bool(len(known)),
            "worst_places": list(self.worst[:2]),
            "worst_release": self.worst[2] + 1,
            "bits_median": float(np.median(self.bits)),
            "bits_most": float(self.bits.max()),
            "adversary_error_m_median": 1000.0 * float(np.median(self.error)),
            "adversary_error_m_least": 1000.0 * float(self.error.min()),
            "adversary_certainty_most": float(self.certainty.max()),
            "is_by_edge": self.is_by_edge,
        }


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
        after = replay.posterior.probabilities
        guess = best_guess(after, releaser.measurements.points)
        told = _bits(replay.step.prior.probabilities, replay.log_likelihood, after)
        rows[t, 3:] = told, guess.least_error, guess.certainty
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


def _bits(before: FloatArray, log_likelihood: FloatArray, after: FloatArray) -> float:
    """The Kullback-Leibler divergence of a belief from the one before, in bits."""
    below = log_likelihood - log_likelihood.max()
    evidence = float(np.log(before @ np.exp(below)))
    held = after > 0
    return max(0.0, float(after[held] @ below[held]) - evidence) / float(np.log(2.0))


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
    """How many releases lie within so many steps at most."""
    return int((np.arange(1, len(slots) + 1) - np.searchsorted(slots, slots - day, side="right")).max())
