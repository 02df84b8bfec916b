"""What releases tell of an event: its odds, over the product of the Markov chain and the event's automaton.

The product has a row of the chain's states for each progress of the event. Masses of the releases so far move forward
over it; the probabilities that the event will happen, or not, move backward; their product is the posterior of the
event (PriSTE, Cao et al., ICDE 2019). All of them are logarithms, so that nothing underflows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import pairwise
from math import isqrt
from sys import float_info
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, IntArray, as_distribution, as_floats, as_integers
from dphmm.errors import EventError, InvalidInputError, StochasticError
from dphmm.events.automaton import Automaton
from dphmm.events.event import Event
from dphmm.model.away import Away
from dphmm.model.forward_backward import backward_pass
from dphmm.model.gaps import Gap, one_matrix
from dphmm.model.model import MarkovModel
from dphmm.model.transition_operator import IDENTITY, NARROW, Operator, TransitionOperator, log_sum
from dphmm.stochastic import SMALLEST_PROBABILITY, MatrixLike, as_stochastic

_HELD = 1 << 23
"""What is still to happen is kept for all times up to this number of values, and beyond that made anew by blocks."""


class Chain:
    """How a path goes on from one time to a later one.

    Parameters
    ----------
    size
        The number of states of the chain, ``P``.
    operator
        A function from a time and a number of steps, at least one, to the operator that leads from one to the other.
    away
        The chain's contexts, where its model knows of people outside; None where they are the ``N`` states that events
        and releases are about.
    """

    def __init__(self, size: int, operator: Callable[[int, int], Operator], away: Away | None = None) -> None:
        self.size, self.operator, self.away = size, operator, away
        self.states = None if away is None else away.last
        self.state_count = size if away is None else away.size
        """The number of states ``N`` that events and releases are about."""

    @classmethod
    def of_model(cls, model: MarkovModel, first: int | None) -> Chain:
        """The chain of a model.

        Parameters
        ----------
        model
            The model.
        first
            The slot of time 0; it matters where the model varies with time.
        """

        def operator(time: int, steps: int) -> Operator:
            return model.operator(steps, None if first is None else first + time)

        return cls(model.chain_size, operator, model.away)

    @classmethod
    def of_matrices(cls, transition: MatrixLike | Sequence[MatrixLike], size: int) -> Chain:
        """The chain of a matrix for all steps, or of one for each.

        Parameters
        ----------
        transition
            The matrix ``(N, N)``, dense or sparse, or a matrix for each step.
        size
            The number of states, where there is no matrix.

        Raises
        ------
        StochasticError
            When a matrix is none, or has a positive probability below 1e-200.
        EventError
            When sizes differ.
        """
        several = _several(transition)
        names = ["transition matrix"] if several is None else [f"transition matrix {i}" for i in range(len(several))]
        made = [
            TransitionOperator(as_stochastic(one, name, compressed=True, smallest=SMALLEST_PROBABILITY))
            for one, name in zip([transition] if several is None else several, names, strict=True)
        ]
        sizes = [int(step.matrix.shape[0]) for step in made] or [size]
        for other in sizes:
            if other != sizes[0]:
                raise EventError(f"transition matrices of {sizes[0]} and {other} states are given; give one size")

        def operator(time: int, steps: int) -> Operator:
            if several is None:
                return made[0] if steps == 1 else one_matrix(made[0], steps)
            if time + steps > len(made):
                raise EventError(
                    f"there are {len(made)} transition matrices, and the event or a release is after step "
                    f"{time + steps}; give one for each step, or one for all"
                )
            return Gap([([(step, 1)], 1) for step in made[time : time + steps]])

        return cls(sizes[0], operator)

    def begin(self, initial: npt.ArrayLike, name: str = "initial distribution") -> FloatArray:
        """The logarithms ``(1, P)`` of a distribution ``(N,)`` of the state at time 0."""
        first = as_distribution(initial, self.state_count, name)
        with np.errstate(divide="ignore"):
            return np.log((first if self.away is None else self.away.begun(first))[np.newaxis])

    def compile(self, event: Event) -> Automaton:
        """An event compiled over the chain's own states."""
        if self.away is None:
            return Automaton.compile(event, self.state_count)
        # People outside are in state N, one more than the model has: in none of the event's places.
        return Automaton.compile(event, self.state_count + 1).lift(self.away.present)

    def spread(self, rows: FloatArray) -> FloatArray:
        """What is known of states, ``(…, N)``, for each state of the chain, ``(…, P)``."""
        return rows if self.states is None else rows[..., self.states]

    def gathered(self, logs: FloatArray) -> FloatArray:
        """Logarithms of masses of the chain's states, ``(P,)``, summed up for each state, ``(N,)``."""
        if self.states is None:
            return logs
        found = np.full(self.state_count, -np.inf)
        np.logaddexp.at(found, self.states, logs)
        return found


Transition = MatrixLike | Sequence[MatrixLike] | Chain
"""A transition matrix ``(N, N)``, dense or sparse; one for each step, from time 0 to 1 first; or a `Chain`."""


def _several(transition: Any) -> list[Any] | None:
    """The matrices where there is one for each step; None where there is one alone."""
    if sparse.issparse(transition):
        return None
    if isinstance(transition, Sequence) and any(sparse.issparse(one) for one in transition):
        return list(transition)
    try:
        array = np.asarray(transition)
    except ValueError:
        raise StochasticError("the transition matrix has rows of different lengths; give n rows of n numbers") from None
    return list(array) if array.ndim == 3 else None


class ProductChain:
    """A chain with the progress of an event, of which there is a row of states each.

    Parameters
    ----------
    chain
        How a path goes on.
    event
        The event.
    """

    def __init__(self, chain: Chain, event: Event) -> None:
        self.chain, self.automaton, self.size, self._last = chain, chain.compile(event), chain.size, event.last
        most = max(len(layer.after) for layer in self.automaton.layers)
        # What is to come is kept for all times, or at the end of each block: those within are then worked out again.
        self._block = event.last + 1
        if 2 * most * self.size * event.last > _HELD:
            self._block = max(1, isqrt(event.last))
        to_come = np.empty((2, 0, self.size))
        self._marks, self._within = {event.last: to_come}, dict[int, FloatArray]()
        for time in range(event.last - 1, -1, -1):
            to_come = self._earlier(to_come, time)
            if time % self._block == 0:
                self._marks[time] = to_come
            if time < self._block:
                self._within[time] = to_come

    def begin(self, initial: FloatArray) -> FloatArray:
        """The masses at time 0, ``(k, P)``, by the progress after it, of a first distribution ``(1, P)``."""
        return self._joined(initial, 0)

    def ahead(self, masses: FloatArray, time: int, until: int) -> FloatArray:
        """Masses of a time, by progress, moved to a later one: step by step as long as the event goes on."""
        while time < until:
            pause = until if time >= self._last else min(until, self.automaton.event.first - 1)
            steps = max(1, pause - time)
            masses = _moved(self.chain.operator(time, steps), masses, back=False)
            time += steps
            masses = self._joined(masses, time)
        return masses

    def odds(self, masses: FloatArray, time: int) -> tuple[float, float]:
        """The logarithms of the mass with which the event happens, and with which it does not."""
        happens, fails = self._ways(masses, time)
        return log_sum(happens), log_sum(fails)

    def outcomes(self, masses: FloatArray, time: int) -> tuple[FloatArray, FloatArray]:
        """The logarithms ``(P,)`` of the mass of each state with which the event happens, and does not."""
        happens, fails = (np.logaddexp.reduce(way, axis=0, initial=-np.inf) for way in self._ways(masses, time))
        return happens, fails

    def _ways(self, masses: FloatArray, time: int) -> list[FloatArray]:
        """Masses ``(j, P)`` of which the event happens, and of which it does not."""
        cut = self.automaton.cut(time)
        ways = [masses[cut.yes], masses[cut.no]]
        if cut.open.start == cut.open.stop:
            return ways
        to_come = self._to_come(time)
        return [np.concatenate([way, masses[cut.open] + half]) for way, half in zip(ways, to_come, strict=True)]

    def _joined(self, masses: FloatArray, time: int) -> FloatArray:
        """The masses by the progress after a time, from those by the progress before it."""
        layer = self.automaton.layer(time)
        if layer is None:
            return masses
        found = np.full((len(layer.after), self.size), -np.inf)
        filled = set[int]()
        for source, target, where in layer.arcs:
            added = masses[source, where]
            found[target, where] = np.logaddexp(found[target, where], added) if target in filled else added
            filled.add(target)
        return found

    def _to_come(self, time: int) -> FloatArray:
        """The log probabilities that the event will happen, and that it will not, by undecided progress.

        Returns
        -------
        FloatArray
            ``(2, k, P)``.
        """
        if time not in self._within:
            begin = time - time % self._block
            end = min(begin + self._block, self._last)
            to_come, self._within = self._marks[end], {}
            for earlier in range(end - 1, begin - 1, -1):
                self._within[earlier] = to_come = self._earlier(to_come, earlier)
        return self._within[time]

    def _earlier(self, later: FloatArray, time: int) -> FloatArray:
        """What is to come after a time, from what is to come after the next: see `_to_come`."""
        layer = self.automaton.layer(time + 1)
        if layer is not None:
            after = np.full((2, len(layer.after), self.size), -np.inf)
            after[0, layer.cut_after.yes] = after[1, layer.cut_after.no] = 0.0
            after[:, layer.cut_after.open] = later
            later = np.empty((2, len(layer.before), self.size))
            for source, target, where in layer.arcs:
                later[:, source, where] = after[:, target, where]
            later = later[:, layer.cut_before.open]
        moved = _moved(self.chain.operator(time, 1), later.reshape(-1, self.size), back=True)
        return moved.reshape(later.shape)


def _moved(operator: Operator, logs: FloatArray, back: bool) -> FloatArray:
    """Rows of logarithms moved forward or back, together where plain floats do for all of them."""
    if operator.floats is not None and len(logs) > 1:
        tops = np.maximum(logs.max(axis=1, keepdims=True), -float_info.max)
        below = logs - tops
        if not (below[below < -NARROW] > -np.inf).any():
            with np.errstate(divide="ignore"):
                return np.asarray(np.log(operator.floats[back].plain(np.exp(below).T).T) + tops)
    return np.array([operator.backward(row) if back else operator.forward(row) for row in logs])


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
    lead
        The time of the first release: more than 0 for an event that begins before it.

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
        self,
        transition: Transition,
        initial: npt.ArrayLike,
        event: Event,
        wording: str | None = None,
        lead: int = 0,
    ) -> None:
        self.lead, chain = lead, transition
        if not isinstance(chain, Chain):
            chain = Chain.of_matrices(chain, as_floats(initial, "initial distribution", StochasticError).size)
        first = chain.begin(initial)
        self._path = ProductChain(chain, event)
        self.event = event
        """The event."""
        self.time: int | None = None
        """The time of the last release; None before the first."""
        self._masses: FloatArray | None = None
        self._ahead: tuple[int, FloatArray] | None = None
        self.is_model = True
        """Whether the first distribution is the chain's own: see `with_initial`."""
        self._begin(first)
        if not np.isfinite(self.prior):
            raise EventError(
                f"the event '{_short(wording or event)}' has probability {int(self.prior > 0)} under the model "
                "before anything is released; ask about one that is neither certain nor impossible"
            )

    def _begin(self, initial: FloatArray) -> None:
        self._initial = initial
        yes, no = self._path.odds(self._path.begin(initial), 0)
        self.prior = yes - no
        """``logit Pr(E)`` before anything is released."""
        self.log_odds = self.prior
        """``logit Pr(E | all releases)``."""

    def with_initial(self, initial: npt.ArrayLike) -> EventOdds:
        """The same for another first distribution ``(N,)``, before any release. The event may be certain under it.

        Parameters
        ----------
        initial
            ``(N,)``: the other distribution of the state at time 0.

        Returns
        -------
        EventOdds
            One to which no release has come yet.

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
        """Another one that knows the same releases, and goes on by itself.

        Returns
        -------
        EventOdds
            The copy.
        """
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
            The time steps since the last release, 0 for another one of the same moment; ignored before the first.

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
        return self._take(rows[0], self._moved(steps))

    @checked
    def split(self, steps: int = 1) -> Split:
        """The belief before the next release, `steps` time steps after the last one, cut in two by the event.

        Parameters
        ----------
        steps
            The time steps since the last release; ignored before the first.

        Returns
        -------
        Split
            Both parts of the belief.

        Raises
        ------
        InvalidInputError
            When ``steps`` is negative.
        """
        time, masses = self._moved(steps)
        happens, fails = self._path.outcomes(masses, time)
        return Split(self._path.chain.gathered(happens), self._path.chain.gathered(fails))

    def _moved(self, steps: int) -> tuple[int, FloatArray]:
        """The time `steps` steps after the last release, that of the first before it, and the masses then."""
        if steps < 0:
            raise InvalidInputError(f"steps is {steps}; time does not go back")
        return self._moved_to(self.lead if self.time is None else self.time + steps)

    def _moved_to(self, time: int) -> tuple[int, FloatArray]:
        if self._ahead is None or self._ahead[0] > time:
            masses = self._masses
            self._ahead = (0, self._path.begin(self._initial)) if masses is None else (self.time or 0, masses)
        if self._ahead[0] < time:  # a moment without a release is gone on from, not gone through again
            self._ahead = (time, self._path.ahead(self._ahead[1], self._ahead[0], time))
        return self._ahead

    def _take(self, row: FloatArray, moved: tuple[int, FloatArray]) -> float:
        """Take in a release's log likelihoods ``(P,)`` at a time, with the masses before it."""
        time, masses = moved
        seen = _weighed(masses, row)
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
    transition, initial
        As in `EventOdds`.
    log_likelihoods
        ``(T, N)``: ``log p(z_t | s)``, minus infinity where state s could not give it; a constant may be added to a
        row. A row of NaN is a time without a release.
    event
        The event; its times are counted from 0.
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
    Nothing underflows, however far the likelihoods are apart. A step takes a sparse product for each progress state
    forward, and two backward.

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
    rows, when = as_releases(log_likelihoods, times, odds._path.chain)
    told = np.zeros(len(rows))
    for t, row in enumerate(rows):
        try:
            told[t] = odds._take(row, odds._moved_to(int(when[t])))
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

    Parameters
    ----------
    transition, initial, log_likelihoods, event, times
        As in `log_odds`.

    Returns
    -------
    FloatArray
        ``(T,)``, not decreasing. With the releases beyond the event's last time the last one is ``Pr(E | z_1..T)``.

    Raises
    ------
    EventError, StochasticError, InvalidInputError
        As `log_odds`.

    Examples
    --------
    >>> from dphmm.events import Presence
    >>> chain = [[.6, .4, 0], [.3, .4, .3], [0, .5, .5]], [.5, .3, .2]
    >>> noise = np.log([[.6, .3, .1], [.25, .5, .25], [.1, .3, .6]])
    >>> happened_by(*chain, noise[:, [0, 1, 2, 2]].T, Presence([2], 1, 2)).round(6)
    array([0.      , 0.124007, 0.592205, 0.592205])
    """
    odds = EventOdds(transition, initial, event)
    path = odds._path
    rows, when = as_releases(log_likelihoods, times, path.chain)
    operators = [IDENTITY]
    operators += [path.chain.operator(a, b - a) if b > a else IDENTITY for a, b in pairwise(when.tolist())]
    later = backward_pass(operators, np.nan_to_num(rows, nan=0.0, neginf=-np.inf))
    found = np.zeros(len(rows))
    for t, row in enumerate(rows):
        odds._take(row, odds._moved_to(int(when[t])))
        assert odds._masses is not None, "a release was taken in"
        joint = odds._masses + later[t]
        found[t] = np.exp(log_sum(joint[path.automaton.cut(int(when[t])).yes]) - log_sum(joint))
    return found


# ---- arrays in -------------------------------------------------------------------------------------------------------


def as_releases(
    log_likelihoods: npt.ArrayLike, times: npt.ArrayLike | None, chain: Chain
) -> tuple[FloatArray, IntArray]:
    """Log likelihoods ``(T, N)`` over the chain's own states ``(T, P)``, and the time of each; refused if unsound."""
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


def _weighed(masses: FloatArray, row: FloatArray) -> FloatArray:
    """Masses times the likelihoods of a release, up to a factor; as they are where it is NaN throughout."""
    if np.isnan(row[0]):
        return masses
    found = masses + row
    return found - max(float(found.max()), -float_info.max)


def _short(event: Any) -> str:
    text = str(event)
    return text if len(text) <= 60 else text[:57] + "…"
