"""Sets of adversaries: the largest posterior of an event, over all whose idea of how people move is near a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy.sparse import csc_array, csr_array
from scipy.special import expit

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, as_floats
from dphmm.errors import ConfigurationError, StochasticError
from dphmm.events.automaton import Automaton
from dphmm.events.event import Event
from dphmm.events.product_chain import Chain, Transition, as_releases
from dphmm.facts import Facts, fact, facts_of
from dphmm.model.transition_operator import TransitionOperator, log_sum

VACUOUS = 0.999
"""A largest probability from which on a set of adversaries is said to be too large to tell anything."""

_CLOSE = 1e-12
"""The search ends where the log odds grow by no more than this part."""


@dataclass(frozen=True)
class WithinFactor:
    """How sure somebody may be of an event who thinks of moves within a factor of the model's.

    Parameters
    ----------
    factor
        The factor, at least 1.
    probability
        What the model itself says: the event's probability after all releases.
    largest
        The largest one that such an adversary may hold.
    place, release
        Where the event is that the person was at a place at a release: the state, and the number of the release from
        1; otherwise None.
    """

    factor: float = field(metadata=fact())
    probability: float = field(metadata=fact())
    largest: float = field(metadata=fact("largest_probability"))
    place: int | None = None
    release: int | None = field(default=None, metadata=fact())

    @property
    def is_vacuous(self) -> bool:
        """Whether nearly any probability is possible, so that the set says nothing."""
        return self.largest >= VACUOUS

    def in_words(self, of: str) -> str:
        """The bound on being sure of something, and whether it says anything.

        Parameters
        ----------
        of
            Of what, such as ``"that ann was at 27"``.

        Returns
        -------
        str
            A sentence without its full stop.
        """
        said = (
            f"Somebody whose probability of every move is within a factor of {self.factor:g} of the model's can be "
            f"up to {self.largest:.3g} sure {of}, and by the model itself {self.probability:.3g}"
        )
        return f"{said}: over this many steps the set allows nearly any belief" if self.is_vacuous else said

    def facts(self, names: Sequence[str] | None = None) -> Facts:
        """As plain values for JSON: the place by name.

        Parameters
        ----------
        names
            ``N`` texts: what the states are called; left out, the place is not told.

        Returns
        -------
        dict
            Texts, numbers and None.
        """
        place = {} if self.place is None or names is None else {"place": names[self.place]}
        return facts_of(self, **place, says_nothing=self.is_vacuous)


def check_factor(factor: float | None) -> None:
    """Refuse a factor below 1; None is none.

    Raises
    ------
    ConfigurationError
        When it is below 1, or not a number.
    """
    if factor is not None and not factor >= 1:
        raise ConfigurationError(f"the factor is {float(factor):g}; give one of at least 1, such as 2")


@checked
def largest_log_odds(
    transition: Transition,
    initial: npt.ArrayLike,
    log_likelihoods: npt.ArrayLike,
    event: Event,
    factor: float,
    times: npt.ArrayLike | None = None,
) -> float:
    """The largest log odds of an event, given releases, over all adversaries within a factor of a model.

    Parameters
    ----------
    transition, initial, log_likelihoods, event, times
        As in `dphmm.events.log_odds`.
    factor
        The factor ``r``, at least 1; infinity for everybody who agrees with the model on what is possible. An adversary
        is within it who thinks, at each time and whatever the path was until then, of next states with probabilities
        ``p`` where ``P[i, j] / r <= p[j] <= min(1, r P[i, j])``, and of a first state likewise.

    Returns
    -------
    float
        ``max logit Pr(E | z_1..T)``; minus infinity where no release left the event possible, infinity where some such
        adversary is certain.

    Raises
    ------
    ConfigurationError
        When the factor is below 1.
    EventError, StochasticError, InvalidInputError
        As `dphmm.events.log_odds`.

    Notes
    -----
    Robust dynamic programming (Iyengar, Mathematics of Operations Research 2005) over the product of chain and event:
    odds above ``o`` are possible where ``max E[(1_E - o 1_notE) prod L]`` is positive, and as rows are chosen apart
    from each other that maximum is a recursion from the end, whose rows give the states of the largest value as much
    mass as they may have. The search goes on from the odds of the adversary that was found, so that each value is one
    that somebody holds (Dinkelbach, Management Science 1967); some five rounds do. The maximum over adversaries
    who look at the present state alone is the same for an event that the last release's time decides, such as being
    at a place then; for others it may be lower. Each round takes every single step since time 0, also between releases.

    Examples
    --------
    >>> from dphmm.events import Presence
    >>> chain = [[.6, .4, 0], [.3, .4, .3], [0, .5, .5]], [.5, .3, .2]
    >>> noise = np.log([[.6, .25, .1], [.1, .25, .6]])
    >>> [round(largest_log_odds(*chain, noise, Presence([2], 1, 1), factor), 3) for factor in (1, 1.5, 2)]
    [-1.128, -0.037, 0.675]
    """
    check_factor(factor)
    chain = transition
    if not isinstance(chain, Chain):
        chain = Chain.of_matrices(chain, as_floats(initial, "initial distribution", StochasticError).size)
    first, automaton = np.exp(chain.begin(initial)), chain.compile(event)
    rows, when = as_releases(log_likelihoods, times, chain)
    told: dict[int, FloatArray] = {}
    for time, row in zip(when.tolist(), np.nan_to_num(rows, nan=0.0, neginf=-np.inf), strict=True):
        told[time] = told[time] + row if time in told else row
    end = max(int(when[-1]), event.last)
    sides = _Sides(chain, csc_array(csr_array(first)), automaton, told, float(factor))
    cut = automaton.cut(end)
    values = np.full((cut.open.stop, 2, chain.size), -np.inf)
    values[cut.yes, 0] = values[cut.no, 1] = 0.0
    decided = sides.earlier(values, end, event.last + 1, 0.0)  # where odds change no choice
    found = -np.inf
    while True:
        happens, fails = (log_sum(side) for side in sides.earlier(decided, event.last, 0, found)[0])
        if happens == fails == -np.inf:
            raise StochasticError("no possible path could have given the releases; model and releases do not match")
        odds = float(happens - fails)
        if factor == 1.0:  # nothing to choose
            return odds
        if odds <= found + _CLOSE * max(1.0, abs(found) if np.isfinite(found) else 0.0) or odds == np.inf:
            return max(odds, found)
        found = odds


class _Sides:
    """The log masses of releases with an event and without, to whom its odds look best against some.

    Parameters
    ----------
    chain, automaton
        How paths go on, and the event.
    begun
        ``(1, P)``: the distribution of the first state.
    told
        The log likelihoods ``(P,)`` of the releases of each time.
    factor
        Within what.
    """

    def __init__(
        self, chain: Chain, begun: csc_array, automaton: Automaton, told: dict[int, FloatArray], factor: float
    ) -> None:
        self._chain, self._begun, self._automaton = chain, begun, automaton
        self._told, self._factor = told, factor
        self._made: dict[int, tuple[TransitionOperator, csc_array]] = {}

    def earlier(self, values: FloatArray, time: int, until: int, log_odds: float) -> FloatArray:
        """Log masses ``(k, 2, P)`` of what comes from a time on, from those after an even later one.

        Parameters
        ----------
        values
            ``(j, 2, P)``: with the event and without, by its progress after `time`.
        time, until
            The times that are gone through, the later one first. Before time 0 there is one state.
        log_odds
            Against which odds.
        """
        for now in range(time, until - 1, -1):
            if now in self._told:
                values = values + self._told[now]
            layer = self._automaton.layer(now)
            if layer is not None:
                before = np.empty((len(layer.before), *values.shape[1:]))
                for source, target, where in layer.arcs:
                    before[source][:, where] = values[target][:, where]
                values = before
            matrix = self._matrix(now - 1) if now else self._begun
            values = np.array([_best_rows(matrix, one, log_odds, self._factor) for one in values])
        return values

    def _matrix(self, time: int) -> csc_array:
        """The matrix of the step from a time to the next, by columns."""
        operator = self._chain.operator(time, 1)
        assert isinstance(operator, TransitionOperator), "one step is by one matrix"
        if id(operator) not in self._made:
            self._made[id(operator)] = operator, csc_array(operator.matrix)
        return self._made[id(operator)][1]


def _best_rows(matrix: csc_array, values: FloatArray, log_odds: float, factor: float) -> FloatArray:
    """Log masses ``(2, n)`` one step earlier, by the rows that make the first minus odds times the second largest.

    Parameters
    ----------
    matrix
        ``(n, m)``: the model's rows.
    values
        ``(2, m)``: log masses by next state, with the event and without.
    log_odds, factor
        Of what, and within what.
    """
    order = _falling(values[0], values[1] + log_odds)
    ranked, values = csr_array(matrix[:, order]), values[:, order]
    starts, counts = ranked.indptr[:-1], np.diff(ranked.indptr)
    least = ranked.data / factor
    room = np.minimum(1.0, factor * ranked.data) - least
    taken = np.cumsum(room) - room
    taken -= np.repeat(taken[starts], counts)
    shares = least + np.clip(1.0 - 1.0 / factor - taken, 0.0, room)
    logs = values[:, ranked.indices]
    tops = np.maximum.reduceat(logs.max(axis=0), starts)
    tops = np.where(tops > -np.inf, tops, 0.0)
    with np.errstate(divide="ignore"):
        sums = np.log(np.add.reduceat(shares * np.exp(logs - np.repeat(tops, counts)), starts, axis=1))
    return np.asarray(sums + tops)


def _falling(more: FloatArray, less: FloatArray) -> npt.NDArray[np.int64]:
    """The order of ``exp(more) - exp(less)``, the largest first."""
    with np.errstate(invalid="ignore", divide="ignore"):
        apart = np.where(more == less, 0.0, more - less)
        sizes = np.maximum(more, less) + np.log1p(-np.exp(-np.abs(apart)))
    signs = np.sign(apart)
    return np.lexsort((np.where(signs > 0.0, -sizes, np.where(signs < 0.0, sizes, 0.0)), -signs))


@checked
def audit_within(
    transition: Transition,
    initial: npt.ArrayLike,
    log_likelihoods: npt.ArrayLike,
    event: Event,
    factor: float,
    times: npt.ArrayLike | None = None,
    place: int | None = None,
    release: int | None = None,
) -> WithinFactor:
    """What releases tell of an event by a model, and at most to somebody within a factor of it.

    Parameters
    ----------
    transition, initial, log_likelihoods, event, factor, times
        As for `largest_log_odds`.
    place, release
        What the event is about, where it is to be at a place at a release.

    Returns
    -------
    WithinFactor
        Both probabilities.

    Raises
    ------
    DphmmError
        As `largest_log_odds`.
    """
    about = transition, initial, log_likelihoods, event
    own, most = (float(expit(largest_log_odds(*about, one, times))) for one in (1.0, factor))
    return WithinFactor(float(factor), own, most, place, release)
