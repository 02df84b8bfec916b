"""What a released sequence tells of events over time: their odds at every release, and which releases moved them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, IntArray, as_distribution
from dphmm.audit.facts import Facts, finite
from dphmm.audit.sequence import ReleasedSequence, replay_sequence
from dphmm.errors import EventError
from dphmm.events import Event, EventOdds, happened_by
from dphmm.release.capped import chain_of
from dphmm.release.engine import Releaser

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

    user: str
    event: Event
    wording: str
    prior: float
    times: IntArray = field(repr=False)
    told: FloatArray = field(repr=False)
    happened: FloatArray = field(repr=False)

    @property
    def prior_probability(self) -> float:
        """``Pr(E)``."""
        return float(_probability(np.array(self.prior)))

    @property
    def probability(self) -> FloatArray:
        """``Pr(E | z_1..t)`` at every release, ``(T,)``."""
        return _probability(self.prior + self.told)

    @property
    def moved(self) -> FloatArray:
        """By how much each release moved the log odds, ``(T,)``."""
        with np.errstate(invalid="ignore"):
            moved = np.diff(self.told, prepend=0.0)
        return np.where(np.isnan(moved), 0.0, moved)  # certain before and after

    def movers(self, count: int = MOVERS) -> IntArray:
        """The releases that moved the log odds most, the first of them first."""
        return np.argsort(-np.abs(self.moved), kind="stable")[:count]

    def facts(self) -> Facts:
        """As plain values for JSON; what is infinite is None."""
        probability, moved = self.probability, self.moved
        return {
            "user": self.user,
            "event": self.wording,
            "in_steps": str(self.event),
            "releases": len(self.told),
            "prior_probability": self.prior_probability,
            "prior_log_odds": self.prior,
            "most_probable": {"probability": float(probability.max()), "release": int(probability.argmax()) + 1},
            "least_probable": {"probability": float(probability.min()), "release": int(probability.argmin()) + 1},
            "probability_at_the_end": float(probability[-1]),
            "most_log_odds_moved": finite(float(np.abs(self.told).max())),
            "moved_most": [
                {"release": t + 1, "step": int(self.times[t]), "log_odds": finite(float(moved[t]))}
                for t in self.movers().tolist()
            ],
            "steps": self.times.tolist(),
            "log_odds_told": [finite(one) for one in self.told.tolist()],
            "probability": probability.tolist(),
            "had_happened_in_hindsight": self.happened.tolist(),
        }


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


def _probability(log_odds: FloatArray) -> FloatArray:
    from scipy.special import expit

    return np.asarray(expit(log_odds))
