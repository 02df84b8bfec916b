"""What releases tell of an event: the odds of it, release after release and in hindsight.

The chain is lifted to pairs of a state and a progress of the event. Masses of the releases so far move forward over
the pairs; the probability that the event is still to happen moves backward; their product is the posterior of the
event (PriSTE, Cao et al., ICDE 2019).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field
from math import exp
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, IntArray, as_floats, as_integers
from dphmm.errors import EventError, InvalidInputError, StochasticError
from dphmm.events.automaton import Automaton
from dphmm.events.chain import Chain, Transition
from dphmm.events.event import Event
from dphmm.events.lifted import Lifted
from dphmm.events.wide import Wide

_SMALL = -200.0
"""Likelihoods that are this much below the greatest are held with exponents of their own."""

_AT_ONCE = 1 << 20
"""Rows of so many numbers in all are worked on at once."""


@dataclass(frozen=True, eq=False)
class Split:
    """A distribution over states, cut in two by an event.

    Parameters
    ----------
    log_with, log_without
        ``(N,)``: the logarithms of ``Pr(s, E)`` and ``Pr(s, not E)``, up to one constant for both; minus infinity for
        what cannot be.
    """

    log_with: FloatArray = field(repr=False)
    log_without: FloatArray = field(repr=False)

    @property
    def log_odds(self) -> float:
        """``logit Pr(E)``."""
        return log_sum(self.log_with) - log_sum(self.log_without)


class EventOdds:
    """The odds of an event as releases come in, one after another.

    Parameters
    ----------
    transition
        ``(N, N)`` row-stochastic, dense or sparse; or one for each step, the first from time 0 to time 1.
    initial
        ``(N,)``: the distribution of the state at time 0.
    event
        The event; its times are counted from 0.
    wording
        What messages call it; left out, its text.

    Raises
    ------
    EventError
        When the event names a state that does not exist, or is certain or impossible before anything is released.
    StochasticError
        When a matrix or the distribution is none, or a positive transition probability is below 1e-200.

    Examples
    --------
    >>> from dphmm.events import Presence
    >>> odds = EventOdds([[.6, .4, 0], [.3, .4, .3], [0, .5, .5]], [.5, .3, .2], Presence([2], 1, 2))
    >>> round(odds.prior, 6), round(odds.update(np.log([.6, .25, .1])), 6)
    (-0.772216, -0.590511)
    """

    def __init__(
        self, transition: Transition, initial: npt.ArrayLike, event: Event, wording: str | None = None
    ) -> None:
        chain = Chain(transition, initial)
        self._path = Lifted(chain, chain.lifted(Automaton.of(event, chain.state_count)))
        self.event = event
        """The event."""
        self.time: int | None = None
        """The time of the last release; None before the first."""
        self._masses: Wide | None = None
        self._ahead: tuple[int, Wide] | None = None
        self.is_model = True
        """Whether the first distribution is the chain's own: see `under`."""
        self._begin(chain.initial)
        if not np.isfinite(self.prior):
            raise EventError(
                f"the event '{_short(wording or event)}' has probability {int(self.prior > 0)} under the model "
                "before anything is released; ask about one that is neither certain nor impossible"
            )

    def _begin(self, initial: Wide) -> None:
        self._initial = initial
        yes, no = self._path.odds(self._path.begin(initial), 0)
        self.prior = yes - no
        """``logit Pr(E)`` before anything is released."""
        self.log_odds = self.prior
        """``logit Pr(E | all releases)``."""

    def under(self, initial: npt.ArrayLike) -> EventOdds:
        """The same for another first distribution ``(N,)``, before any release. The event may be certain under it.

        Raises
        ------
        StochasticError
            When it is no distribution over the states.
        """
        other = copy(self)
        other.time = other._masses = other._ahead = None
        other.is_model = False
        other._begin(self._path.chain.begin(initial, "the prior"))
        return other

    def copy(self) -> EventOdds:
        """Another one that knows the same releases, and goes on by itself."""
        return copy(self)

    @checked
    def update(self, log_likelihood: npt.ArrayLike, steps: int = 1) -> float:
        """Take in a release.

        Parameters
        ----------
        log_likelihood
            ``(N,)``: ``log p(z | s)``, minus infinity where state s could not give it; up to a constant. NaN throughout
            where nothing was released.
        steps
            The time steps since the last release, 0 for another one of the same moment; the first is at time 0.

        Returns
        -------
        float
            What the releases up to this one tell: ``logit Pr(E | z_1..t) - logit Pr(E)``.

        Raises
        ------
        StochasticError
            When no possible path could have given the release. Nothing changes then.
        InvalidInputError
            When the shape is another, something is plus infinity or NaN in part, or a step is negative.
        """
        chain = self._path.chain
        rows = chain.spread(_checked_rows(as_floats(log_likelihood, "log_likelihood")[np.newaxis], chain.state_count))
        return self._take(next(_likelihoods(rows, chain.width)), self._moved(steps))

    @checked
    def split(self, steps: int = 1) -> Split:
        """The belief before the next release, so many time steps after the last one, cut in two by the event.

        Raises
        ------
        InvalidInputError
            When ``steps`` is negative.
        """
        time, masses = self._moved(steps)
        happens, fails = self._path.outcomes(masses, time)
        return Split(self._path.chain.gathered(happens), self._path.chain.gathered(fails))

    def _moved(self, steps: int) -> tuple[int, Wide]:
        """The time so many steps after the last release, 0 before the first, and the masses then."""
        if steps < 0:
            raise InvalidInputError(f"steps is {steps}; time does not go back")
        return self._moved_to(0 if self.time is None else self.time + steps)

    def _moved_to(self, time: int) -> tuple[int, Wide]:
        if self._ahead is None or self._ahead[0] > time:
            masses = self._masses
            self._ahead = (0, self._path.begin(self._initial)) if masses is None else (self.time or 0, masses)
        if self._ahead[0] < time:  # a moment without a release is gone on from, not gone through again
            self._ahead = (time, self._path.ahead(self._ahead[1], self._ahead[0], time))
        return self._ahead

    def _take(self, likelihood: Wide | None, moved: tuple[int, Wide]) -> float:
        """Take in a release (None where there was none) at a time, with the masses before it."""
        time, masses = moved
        seen = masses if likelihood is None else masses.times(likelihood)
        yes, no = self._path.odds(seen, time)
        if yes == no == -np.inf:
            raise StochasticError("no possible path could have given this release; model and release do not match")
        self.time, self._masses, self._ahead = time, seen, None
        self.log_odds = yes - no
        return self.log_odds - self.prior


@checked
def log_odds(
    transition: Transition,
    initial: npt.ArrayLike,
    log_likelihoods: npt.ArrayLike,
    event: Event,
    times: npt.ArrayLike | None = None,
) -> FloatArray:
    """What releases tell of an event: ``logit Pr(E | z_1..t) - logit Pr(E)`` for every release.

    Parameters
    ----------
    transition, initial, event
        As in `EventOdds`.
    log_likelihoods
        ``(T, N)``: ``log p(z_t | s)``, minus infinity where state s could not give it; a constant may be added to a
        row. A row of NaN is a time without a release.
    times
        ``(T,)``: when each release was, from 0, not decreasing; equal times for several of one moment. Left out,
        0, 1, 2 and so on.

    Returns
    -------
    FloatArray
        ``(T,)``; infinite once the releases prove or disprove the event.

    Raises
    ------
    EventError, StochasticError
        As `EventOdds`, and where no possible path could have given a release.
    InvalidInputError
        When shapes do not fit, or times decrease.

    Notes
    -----
    Nothing underflows, however far the likelihoods are apart. Two sparse products of a vector for each progress state
    forward and backward make a step.

    Examples
    --------
    The example of three states, seen through noise at times 0 to 3:

    >>> from dphmm.events import Pattern, Presence
    >>> chain = [[.6, .4, 0], [.3, .4, .3], [0, .5, .5]], [.5, .3, .2]
    >>> noise = np.log([[.6, .3, .1], [.25, .5, .25], [.1, .3, .6]])
    >>> log_odds(*chain, noise[:, [0, 1, 2, 2]].T, Presence([2], 1, 2)).round(6)
    array([-0.590511, -0.468839,  0.690634,  1.145303])
    >>> log_odds(*chain, noise[:, [0, 1, 2, 2]].T, Pattern([[1], [2]], 1)).round(6)
    array([-0.041325,  0.27461 ,  1.415043,  1.809419])
    """
    odds = EventOdds(transition, initial, event)
    rows, when = _checked(log_likelihoods, times, odds._path.chain)
    told = np.zeros(len(rows))
    for t, likelihood in enumerate(_likelihoods(rows, odds._path.chain.width)):
        try:
            told[t] = odds._take(likelihood, odds._moved_to(int(when[t])))
        except StochasticError as problem:
            raise StochasticError(f"release {t}: {problem}") from None
    return told


@checked
def happened_by(
    transition: Transition,
    initial: npt.ArrayLike,
    log_likelihoods: npt.ArrayLike,
    event: Event,
    times: npt.ArrayLike | None = None,
) -> FloatArray:
    """In hindsight, by when the event had happened: ``Pr(E is certain from s_0..t | z_1..T)`` at every release.

    Parameters, errors
        As in `log_odds`.

    Returns
    -------
    FloatArray
        ``(T,)``, not decreasing. With the releases beyond the event's last time the last one is ``Pr(E | z_1..T)``.

    Examples
    --------
    >>> from dphmm.events import Presence
    >>> chain = [[.6, .4, 0], [.3, .4, .3], [0, .5, .5]], [.5, .3, .2]
    >>> noise = np.log([[.6, .3, .1], [.25, .5, .25], [.1, .3, .6]])
    >>> happened_by(*chain, noise[:, [0, 1, 2, 2]].T, Presence([2], 1, 2)).round(6)
    array([0.      , 0.124007, 0.592205, 0.592205])
    """
    odds = EventOdds(transition, initial, event)
    rows, when = _checked(log_likelihoods, times, odds._path.chain)
    path, likelihoods = odds._path, list(_likelihoods(rows, odds._path.chain.width))
    later = [Wide.of(np.ones((1, path.size)), path.chain.width)]
    for t in range(len(rows) - 1, 0, -1):
        likelihood = likelihoods[t]
        seen = later[-1] if likelihood is None else later[-1].times(likelihood)
        later.append(path.behind(seen, int(when[t - 1]), int(when[t])).compact())
    found = np.zeros(len(rows))
    for t, likelihood in enumerate(likelihoods):
        odds._take(likelihood, odds._moved_to(int(when[t])))
        assert odds._masses is not None, "a release was taken in"
        joint = odds._masses.times(later[-1 - t])
        everything = joint.log_sum()
        if everything == -np.inf:
            raise StochasticError("no possible path could have given these releases; model and releases do not match")
        found[t] = np.exp(joint.rows(path.automaton.cut(int(when[t])).yes).log_sum() - everything)
    return found


# ---- arrays in -------------------------------------------------------------------------------------------------------


def _checked(log_likelihoods: npt.ArrayLike, times: npt.ArrayLike | None, chain: Chain) -> tuple[FloatArray, IntArray]:
    rows = as_floats(log_likelihoods, "log_likelihoods")
    if rows.ndim != 2 or not len(rows):
        raise InvalidInputError(f"log_likelihoods have shape {rows.shape}; give one row per time, a column per state")
    when = np.arange(len(rows)) if times is None else as_integers(times, "times")
    if when.shape != (len(rows),) or when.dtype.kind not in "iu":
        raise InvalidInputError(f"times have shape {when.shape} and type {when.dtype}; give a whole number per row")
    if when[0] < 0 or (np.diff(when) < 0).any():
        raise InvalidInputError("times decrease, or begin before 0; sort the releases and count from the first step")
    return chain.spread(_checked_rows(rows, chain.state_count)), when.astype(np.int64)


def _checked_rows(rows: FloatArray, size: int) -> FloatArray:
    """The rows, of the right length and sound."""
    if rows.shape[1:] != (size,):
        raise InvalidInputError(f"log_likelihoods have shape {rows.shape}, and the chain {size} states; give as many")
    with np.errstate(invalid="ignore"):
        sums = rows.sum(axis=1)  # NaN where something is, or infinities of both signs meet
    for row in np.flatnonzero(np.isnan(sums) | (sums == np.inf)).tolist():
        if not np.isnan(rows[row]).all():
            raise InvalidInputError(
                f"log_likelihoods: row {row} holds plus infinity, or NaN in part; give log densities, or NaN "
                "throughout where nothing was released"
            )
    return rows


def _likelihoods(rows: FloatArray, width: int) -> Iterator[Wide | None]:
    """The likelihoods of each row up to a factor, ``(1, N)``; None where nothing was released."""
    some = max(1, _AT_ONCE // rows.shape[1])
    for start in range(0, len(rows), some):
        block = rows[start : start + some]
        block = block - np.maximum(block.max(axis=1, keepdims=True), -sys.float_info.max)  # -inf - -inf is NaN
        least = np.min(block, axis=1, where=block > -np.inf, initial=0.0)
        plain = np.exp(block)
        for row, one, low in zip(block, plain, least.tolist(), strict=True):
            if np.isnan(one[0]):
                yield None
            elif low > _SMALL:
                yield Wide(one[np.newaxis, np.newaxis], 0, exp(low), width)
            else:
                yield Wide.exp(row[np.newaxis], width)


def log_sum(logs: FloatArray) -> float:
    """The logarithm of the sum of what some numbers are the logarithms of."""
    top = float(logs.max())
    return top if top == -np.inf else top + float(np.log(np.exp(logs - top).sum()))


def _short(event: Any) -> str:
    text = str(event)
    return text if len(text) <= 60 else text[:57] + "…"
