"""Best ways through long gaps: most of such a gap is spent in one state, whatever is passed through before and after.

Take any way of ``k`` steps from i to j, and of the states on it the one, c, that is most probably stayed in. Each step
but those that lead from i to c, and from c to j, may as well be a stay in c. So where ``before[c, i]`` is the best
logarithm of all ways from i to c that meet no state more probably stayed in, less the logarithm of a stay in c for each
step, and ``after[c, j]`` the same from c to j, the best way has ``max_c before[c, i] + k * stay[c] + after[c, j]``.
Both are longest paths (Bellman and Ford) of so many steps at most; a gap of as many steps or more attains the maximum.

That needs each circuit to be no more probable than as many stays in one of its states. Where it is not, where some
states are never stayed in, or where there are too many, only those that are most probably stayed in are taken for c.
Ways that meet none of them are walked, until even the best of them can no longer become better than what there is.

The longer a gap, the fewer states need be looked at: c is left out from as many steps on as make up for the way from
c to one that is more probably stayed in, and back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np
from scipy.sparse import csr_array

from dphmm.arrays import BoolArray, FloatArray, IntArray, locked
from dphmm.compilation import compiled
from dphmm.markov import kernels
from dphmm.markov.flow import Flow
from dphmm.markov.maxima import Maxima

_CELLS = 1 << 22
"""So many logarithms are kept of the ways to places where people wait, and so many of those from there."""
_WORTH = 4
"""It pays to prepare for gaps that have so many times as many steps as there are places to wait, all together."""
_ROUNDS = 64, 2_000_000_000
"""Ways of more steps than the first number are looked for until so many logarithms have been summed.

Ways that go on through more steps than there are states go in circles.
"""
_COMPILE_FROM = 1_000_000
"""With fewer logarithms to sum in a round than this, numpy is done before the compiled loop is loaded."""
_SHORT = 64
"""Shorter gaps are no reason to prepare. Ways that meet no place to wait are bounded by the best of so many steps."""


@dataclass(frozen=True, eq=False)
class _Places:
    """The places where people wait, those that count in the longest gaps first.

    Parameters
    ----------
    before, after
        ``(P, N)``: the best ways from each state to each place and back, less a stay there for each step.
    stays
        ``(P,)``: the logarithm of a stay.
    until
        ``(P,)``: in gaps of so many steps more than the least another place is as good.
    least
        How long a gap must be.
    elsewhere
        Ways that meet none of the places.
    """

    before: FloatArray = field(repr=False)
    after: FloatArray = field(repr=False)
    stays: FloatArray = field(repr=False)
    until: FloatArray = field(repr=False)
    least: int
    elsewhere: _Elsewhere


class Waits:
    """The best ways through gaps in which one matrix moves people.

    Parameters
    ----------
    flow
        What takes masses one step forwards.
    """

    def __init__(self, flow: Flow) -> None:
        self._entering = flow.matrix  # and not the flow, with which it goes
        self._most = max(1, min(flow.size, _CELLS // flow.size))

    def pays(self, gaps: IntArray) -> bool:
        """Whether to prepare for gaps of so many steps."""
        return float(gaps[gaps >= _SHORT].sum(dtype=np.float64)) >= _WORTH * self._most

    def prepare(self) -> None:
        """Find the places where people wait and the ways to them, which the first gap would otherwise wait for."""
        assert self._places is not None

    def over(self, scores: FloatArray, steps: int) -> tuple[FloatArray, BoolArray] | None:
        """The best scores ``(N,)`` so many steps later, and which of them `back` knows; None for shorter gaps.

        Parameters
        ----------
        scores
            ``(N,)``: logarithms, minus infinity for impossible states.
        steps
            How many.
        """
        places, count = self._places, self._count(steps)
        if not count:
            return None
        there = (scores + places.before[:count]).max(axis=1) + steps * places.stays[:count]
        found = np.asarray((there[:, np.newaxis] + places.after[:count]).max(axis=0))
        others = places.elsewhere.after(scores, steps, found)
        return np.maximum(found, others), found >= others

    def back(self, scores: FloatArray, state: int, steps: int) -> int:
        """The state from which ``state`` is reached so; of equally good ones, but for rounding, the lowest."""
        places, count = self._places, self._count(steps)
        ends = steps * places.stays[:count] + places.after[:count, state]
        found = scores + (ends[:, np.newaxis] + places.before[:count]).max(axis=0)
        best = float(found.max())
        return int(np.argmax(found >= best - kernels.SAME * abs(best)))

    def _count(self, steps: int) -> int:
        """How many of the places count in a gap."""
        beyond = steps - self._places.least
        return 0 if beyond < 0 else int(np.searchsorted(-self._places.until, -beyond))

    @cached_property
    def _places(self) -> _Places:
        entering, leaving = self._entering, csr_array(self._entering.T)
        with np.errstate(divide="ignore"):
            stays = np.log(entering.diagonal())
        places = np.argsort(-stays, kind="stable")[: min(self._most, int((stays > -np.inf).sum()))]
        before, first = _longest(leaving, stays, places)
        after, second = _longest(entering, stays, places[: len(before)])
        places = places[: len(after)]
        until = _until(before[: len(places), places] + after[:, places], stays[places])
        order = np.argsort(-until, kind="stable")
        ways = locked(before[order]), locked(after[order])
        rates = locked(stays[places][order]), locked(until[order])
        return _Places(*ways, *rates, max(1, first + second), _Elsewhere(entering, places))


_MADE: WeakKeyDictionary[Flow, Waits] = WeakKeyDictionary()


def waits_of(flow: Flow) -> Waits:
    """The best ways through gaps of a flow, kept as long as it is."""
    if flow not in _MADE:
        _MADE[flow] = Waits(flow)
    return _MADE[flow]


def _longest(matrix: csr_array, stays: FloatArray, places: IntArray) -> tuple[FloatArray, int]:
    """The best ways along rows of a matrix to each place, ``(P, N)``, and the number of steps of the longest.

    For places from the first one whose ways do not end, there is none.
    """
    size, most = len(stays), len(places)
    lists = matrix.indptr.astype(np.uint32), matrix.indices.astype(np.uint32), np.log(matrix.data)
    rates = stays[places]
    allowed = np.searchsorted(-rates, -stays, side="right")
    ways = np.full((size, most), -np.inf)
    ways[places, np.arange(most)] = 0.0
    further, fresh = ways.copy(), np.ones(size, dtype=np.bool_)
    worth = matrix.nnz * most >= _COMPILE_FROM
    loop: Callable[..., None] = (compiled(kernels.longer_ways) if worth else None) or _longer_ways
    few, sums = _ROUNDS
    for steps in range(min(size, max(few, sums // max(1, (size + matrix.nnz) * most))) + 1):
        now = np.zeros(size, dtype=np.bool_)
        loop(lists, allowed, rates, fresh, ways, further, now)
        ways, further, fresh = further, ways, now
        if not fresh.any():
            return np.ascontiguousarray(ways.T), steps
    ended = int(np.argmax((ways != further).any(axis=0)))
    return np.ascontiguousarray(ways[:, :ended].T), steps


def _until(trips: FloatArray, stays: FloatArray) -> FloatArray:
    """From how many steps on another place is as good as each, given the ways ``[p, q]`` from q to p and back."""
    gained = stays[:, np.newaxis] - stays
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(gained > 0.0, -trips / gained, np.inf).min(axis=0, initial=np.inf))


class _Elsewhere:
    """Ways that meet none of the places where people wait.

    Parameters
    ----------
    entering
        ``(N, N)`` CSR: the transposed transition matrix.
    places
        ``(P,)``.
    """

    def __init__(self, entering: csr_array, places: IntArray) -> None:
        self._states = np.delete(np.arange(entering.shape[0]), places)
        self._flow = Flow(entering[self._states][:, self._states].tocsr())
        self._maxima = Maxima(self._flow, _SHORT * _SHORT)

    def after(self, scores: FloatArray, steps: int, others: FloatArray) -> FloatArray:
        """The best scores ``(N,)`` so many steps later, or minus infinity once none can be above any of the others."""
        found = np.full(len(scores), -np.inf)
        now, length = scores[self._states], _SHORT
        while (top := float(now.max(initial=-np.inf))) > -np.inf:
            ends = self._states[self._reached(now > -np.inf)]
            bound = top + steps // _SHORT * self._most if steps >= _SHORT else top
            if bound <= others[ends].min():
                break
            if not steps:
                found[self._states] = now
                break
            now = self._maxima.after(now, min(length, steps))
            steps, length = steps - min(length, steps), 2 * length
        return found

    def _reached(self, states: BoolArray) -> BoolArray:
        """Those that can be reached from some, in any number of steps."""
        count = 0
        while count < (count := int(states.sum())):
            states = states | (self._flow.matrix @ states > 0)
        return states

    @cached_property
    def _most(self) -> float:
        """The best logarithm of any way of `_SHORT` steps."""
        return float(self._maxima.after(np.zeros(len(self._states)), _SHORT).max())


def _longer_ways(
    lists: kernels.Lists,
    allowed: IntArray,
    rates: FloatArray,
    fresh: BoolArray,
    ways: FloatArray,
    longer: FloatArray,
    now: BoolArray,
) -> None:
    """`dphmm.markov.kernels.longer_ways` in plain numpy."""
    starts, states, logs = lists
    longer[:] = ways
    for i in range(len(allowed)):
        part = slice(int(starts[i]), int(starts[i + 1]))
        used = fresh[states[part]]
        if used.any():
            count = int(allowed[i])
            found = (ways[states[part][used], :count] + logs[part][used, np.newaxis]).max(axis=0) - rates[:count]
            with np.errstate(invalid="ignore"):
                better = found > ways[i, :count] + kernels.SAME * (1.0 + np.abs(found))
            longer[i, :count][better] = found[better]
            now[i] = better.any()
