"""The best score of each state at the next step: maxima over its predecessors, in logarithms over a sparse matrix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from dphmm.arguments import checked
from dphmm.arrays import BoolArray, FloatArray, IntArray, locked
from dphmm.compilation import often
from dphmm.errors import StochasticError
from dphmm.model.forward_backward import Observations, chain_rows, first_logs
from dphmm.model.model import MarkovModel
from dphmm.model.transition_operator import Lists, LogProduct, Operator, Runs, TransitionOperator
from dphmm.stochastic import MatrixLike

_SAME = 1e-13
"""Scores that differ by less, as a part of them, differ by rounding."""
_BLOCK = 64
"""So many steps are walked between two looks at how scores have grown."""


class Walk(NamedTuple):
    """Some steps in a row.

    Parameters
    ----------
    scores
        The scores after no step, one step, …
    left
        How many steps follow that make all scores grow by the same amount, with the same predecessors.
    growth
        By how much each does.
    """

    scores: FloatArray
    left: int = 0
    growth: float = 0.0

    @property
    def end(self) -> FloatArray:
        """The scores after all steps."""
        return np.asarray(self.scores[-1] + self.growth * self.left)


class Maxima:
    """Log transition probabilities by the state that is entered, for the best scores of next states.

    Parameters
    ----------
    product
        What takes masses one step forward.
    """

    def __init__(self, product: LogProduct) -> None:
        matrix = product.matrix
        self._lists = *product.lists[:2], product.log_shares
        self._dense = None
        if matrix.shape[0] and product.dense is not None:
            with np.errstate(divide="ignore"):
                self._dense = np.log(product.dense)

    def run(self, rows: FloatArray, scores: FloatArray) -> None:
        """Fills in the scores ``(T, N)`` after the first row, for releases with log densities ``rows``."""
        if self._dense is None:
            _gathered_scores(self._lists, rows, scores)
        else:
            _dense_scores(self._dense, rows, scores)

    def trace(self, scores: FloatArray, path: IntArray) -> None:
        """Fills in the states ``(T,)`` by which the last one was reached."""
        _gathered_sources(self._lists, scores, path)

    def after(self, scores: FloatArray, steps: int) -> FloatArray:
        """The scores ``steps`` later: for each step ``max_i scores[i] + log M_ij`` for every state j."""
        for walk in self.walks(scores, steps):
            scores = walk.end
        return scores

    def back(self, walks: Sequence[Walk], state: int) -> int:
        """The best state before some walks in a row, of that after them."""
        for _ in range(walks[-1].left):
            earlier = self._source(walks[-1].scores[-1:], state)
            if earlier == state:
                break
            state = earlier
        for walk in reversed(walks):
            state = self._source(walk.scores[:-1], state)
        return state

    def _source(self, scores: FloatArray, state: int) -> int:
        """The state by which another was reached through steps from these scores; of equal ones the lowest."""
        path = np.full(len(scores) + 1, state)
        self.trace(scores, path)
        return int(path[0])

    def walks(self, scores: FloatArray, steps: int) -> Iterator[Walk]:
        """Some steps in parts, of which the last may leave steps that need not be walked.

        Maxima over ever longer paths come to grow by the same amount everywhere in each step, soon where states can be
        stayed in. From then on the predecessors stay the same.
        """
        if not steps:
            yield Walk(scores[np.newaxis])
        count = 1
        while steps:
            count = min(count, steps)
            walked = np.empty((count + 1, len(scores)))
            walked[0] = scores
            self.run(np.zeros_like(walked), walked)
            steps -= count
            growth = common_growth(walked[-2], walked[-1]) if steps else None
            if growth is not None:
                yield Walk(walked, steps, growth)
                return
            yield Walk(walked)
            scores, count = walked[-1], min(2 * count, _BLOCK)


def _dense_scores_loop(logs: FloatArray, rows: FloatArray, scores: FloatArray) -> None:
    """`_dense_scores`, written so that numba can compile it."""
    size = rows.shape[1]
    last = size - size % 4
    for t in range(1, rows.shape[0]):
        before, out = scores[t - 1], scores[t]
        out[:] = -np.inf
        for i in range(0, last, 4):
            a, b, c, d = before[i], before[i + 1], before[i + 2], before[i + 3]
            for j in range(size):
                one = max(a + logs[i, j], b + logs[i + 1, j])
                other = max(c + logs[i + 2, j], d + logs[i + 3, j])
                out[j] = max(out[j], max(one, other))
        for i in range(last, size):
            for j in range(size):
                out[j] = max(out[j], before[i] + logs[i, j])
        for j in range(size):
            out[j] += rows[t, j]


def _gathered_scores_loop(lists: Lists, rows: FloatArray, scores: FloatArray) -> None:
    """`_gathered_scores`, written so that numba can compile it."""
    starts, states, logs = lists
    for t in range(1, rows.shape[0]):
        before = scores[t - 1]
        for j in range(rows.shape[1]):
            begin, end = starts[j], starts[j + 1]
            last = begin + (end - begin) // 4 * 4
            a = b = c = d = -np.inf  # one maximum does not wait for another
            for at in range(begin, last, 4):
                a = max(a, before[states[at]] + logs[at])
                b = max(b, before[states[at + 1]] + logs[at + 1])
                c = max(c, before[states[at + 2]] + logs[at + 2])
                d = max(d, before[states[at + 3]] + logs[at + 3])
            for at in range(last, end):
                a = max(a, before[states[at]] + logs[at])
            scores[t, j] = max(max(a, b), max(c, d)) + rows[t, j]


def _gathered_sources_loop(lists: Lists, scores: FloatArray, path: IntArray) -> None:
    """`_gathered_sources`, written so that numba can compile it."""
    starts, states, logs = lists
    for t in range(path.size - 1, 0, -1):
        best, source, before = -np.inf, np.int64(0), scores[t - 1]
        for at in range(starts[path[t]], starts[path[t] + 1]):
            i = np.int64(states[at])
            score = before[i] + logs[at]
            if score > best or (score == best and i < source):
                best, source = score, i
        path[t - 1] = source


@often(_dense_scores_loop, lambda logs, rows, _: logs.size * len(rows))
def _dense_scores(logs: FloatArray, rows: FloatArray, scores: FloatArray) -> None:
    """Best scores at each time: ``scores[t, j] = max_i scores[t - 1, i] + logs[i, j] + rows[t, j]``.

    The first row of ``scores`` is given, that of ``rows`` not used.
    """
    sums = np.empty_like(logs)
    for t in range(1, len(rows)):
        np.add(scores[t - 1][:, np.newaxis], logs, out=sums)
        np.maximum.reduce(sums, axis=0, out=scores[t])
        scores[t] += rows[t]


@often(_gathered_scores_loop, lambda lists, rows, _: len(lists[2]) * len(rows))
def _gathered_scores(lists: Lists, rows: FloatArray, scores: FloatArray) -> None:
    """`_dense_scores` over each state's list; minus infinity over an empty one."""
    starts, states, logs = lists
    entered = np.flatnonzero(np.diff(starts))
    scores[1:] = -np.inf
    for t in range(1, len(rows)):
        scores[t, entered] = np.maximum.reduceat(scores[t - 1][states] + logs, starts[entered])
        scores[t] += rows[t]


@often(_gathered_sources_loop, lambda _, scores, path: scores.size)  # noqa: ARG005
def _gathered_sources(lists: Lists, scores: FloatArray, path: IntArray) -> None:
    """The states by which the last one of ``path`` was reached with the best scores; of equal ones the lowest.

    Lists are in the order of their states.
    """
    starts, states, logs = lists
    state = int(path[-1])
    for t in range(len(path) - 1, 0, -1):
        part = slice(int(starts[state]), int(starts[state + 1]))
        some = states[part]
        terms = scores[t - 1].take(some)
        terms += logs[part]
        path[t - 1] = state = int(some[terms.argmax()])


def common_growth(before: FloatArray, after: FloatArray) -> float | None:
    """By how much all finite scores have grown alike, or None where they have not or others are finite."""
    finite = before > -np.inf
    if not np.array_equal(finite, after > -np.inf) or not finite.any():
        return None
    growth = after[finite] - before[finite]
    low, high = float(growth.min()), float(growth.max())
    return (low + high) / 2 if high - low <= 1e-15 * float(np.abs(after[finite]).max()) else None


_CELLS = 1 << 22
"""So many logarithms are kept of the ways to places where people wait, and so many of those from there."""
_WORTH = 4
"""It pays to prepare for gaps that have so many times as many steps as there are places to wait, all together."""
_ROUNDS = 64, 2_000_000_000
"""Ways of more steps than the first number are looked for until so many logarithms have been summed.

Ways that go on through more steps than there are states go in circles.
"""
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
    product
        What takes masses one step forward.
    """

    def __init__(self, product: LogProduct) -> None:
        self._entering = product.matrix  # and not the product, with which it goes
        self._most = max(1, min(self._entering.shape[0], _CELLS // self._entering.shape[0]))

    def pays(self, gaps: FloatArray) -> bool:
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
        return int(np.argmax(found >= best - _SAME * abs(best)))

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


_MADE: WeakKeyDictionary[LogProduct, Waits] = WeakKeyDictionary()


def waits_of(product: LogProduct) -> Waits:
    """The best ways through gaps of one matrix, kept as long as it is."""
    if product not in _MADE:
        _MADE[product] = Waits(product)
    return _MADE[product]


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
    few, sums = _ROUNDS
    for steps in range(min(size, max(few, sums // max(1, (size + matrix.nnz) * most))) + 1):
        now = np.zeros(size, dtype=np.bool_)
        _longer_ways(lists, allowed, rates, fresh, ways, further, now)
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
        self._entering = csr_array(entering[self._states][:, self._states].tocsr())
        self._maxima = Maxima(LogProduct(self._entering))

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
            states = states | (self._entering @ states > 0)
        return states

    @cached_property
    def _most(self) -> float:
        """The best logarithm of any way of `_SHORT` steps."""
        return float(self._maxima.after(np.zeros(len(self._states)), _SHORT).max())


def _longer_ways_loop(
    lists: Lists,
    allowed: IntArray,
    rates: FloatArray,
    fresh: BoolArray,
    ways: FloatArray,
    longer: FloatArray,
    now: BoolArray,
) -> None:
    """`_longer_ways`, written so that numba can compile it."""
    starts, states, logs = lists
    for i in range(allowed.size):
        out, old, count, looked = longer[i], ways[i], allowed[i], False
        for at in range(starts[i], starts[i + 1]):
            j = states[at]
            if fresh[j]:
                if not looked:
                    out[:] = -np.inf
                    looked = True
                row, log = ways[j], logs[at]
                for p in range(count):
                    way = row[p] + log
                    out[p] = way if way > out[p] else out[p]
        if looked:
            for p in range(count):
                way = out[p] - rates[p]
                if way > old[p] + _SAME * (1.0 + abs(way)):
                    out[p] = way
                    now[i] = True
                else:
                    out[p] = old[p]
        else:
            out[:] = old


@often(_longer_ways_loop, lambda lists, allowed, rates, *_: len(lists[2]) * len(rates))  # noqa: ARG005
def _longer_ways(
    lists: Lists,
    allowed: IntArray,
    rates: FloatArray,
    fresh: BoolArray,
    ways: FloatArray,
    longer: FloatArray,
    now: BoolArray,
) -> None:
    """Best ways to places with one step more: the best of ``logs[i, j] + ways[j, p] - rates[p]`` and ``ways[i, p]``.

    Parameters
    ----------
    lists
        For each state, those that a step leads to, and logarithms.
    allowed
        ``(N,)``: ways of each state to the first so many places count.
    rates
        What each step costs, by place.
    fresh
        ``(N,)``: which states' ways have changed in the round before; those of others were looked at.
    ways, longer
        ``(N, P)``: those there are, and those with a step more.
    now
        ``(N,)``, False: set for those whose ways change, by more than rounding.
    """
    starts, states, logs = lists
    longer[:] = ways
    for i in range(len(allowed)):
        part = slice(int(starts[i]), int(starts[i + 1]))
        used = fresh[states[part]]
        if used.any():
            count = int(allowed[i])
            found = (ways[states[part][used], :count] + logs[part][used, np.newaxis]).max(axis=0) - rates[:count]
            with np.errstate(invalid="ignore"):
                better = found > ways[i, :count] + _SAME * (1.0 + np.abs(found))
            longer[i, :count][better] = found[better]
            now[i] = better.any()


_KEPT = 1 << 24
"""So many scores in gaps are kept for the way back; others are worked out twice."""


@dataclass(frozen=True, eq=False)
class MostProbablePath:
    """The most probable sequence of states given all releases.

    Parameters
    ----------
    states
        ``(T,)``: its states at the releases. Between releases further apart than a step the path goes through other
        states, which are maximised over along with these and not listed.
    log_probability
        ``log p(path, z_1..T)``, up to the constants of the rows.
    """

    states: IntArray = field(repr=False)
    log_probability: float


def path_of_releases(
    model: MarkovModel, observations: Observations, initial: npt.ArrayLike | None = None
) -> MostProbablePath:
    """The most probable path. Parameters as in `dphmm.model.filter_releases`.

    Of equally probable paths the one of lower states is taken, from the last release backwards. With a model of second
    order it is the most probable path of its contexts, told as the states that they are in.

    Raises
    ------
    StochasticError
        When no possible path could have given the releases.
    """
    rows, first = chain_rows(model, observations), first_logs(model, observations, initial)
    found = viterbi(model.operators(observations.gaps, observations.slots), rows, first)
    return found if model.state_pairs is None else replace(found, states=model.state_pairs.last[found.states])


def viterbi(operators: Sequence[Operator], log_likelihoods: FloatArray, start: FloatArray) -> MostProbablePath:
    """The most probable path over any operators that are made of steps by one matrix each.

    Parameters and errors are those of `dphmm.model.forward_backward.forward_pass`. Between observations further apart
    than a step the path goes through other states, which are maximised over and not listed.
    """
    rows, ways = log_likelihoods, _Ways(operators)
    scores = np.empty(rows.shape)
    np.add(ways.over(start, 0), rows[0], out=scores[0])
    stretches = ways.stretches()
    for begin, stop in stretches:
        if begin:
            np.add(ways.over(scores[begin - 1], begin), rows[begin], out=scores[begin])
        if stop > begin + 1:
            ways.moves(operators[begin + 1]).run(rows[begin:stop], scores[begin:stop])
    impossible = scores.max(axis=1) == -np.inf
    if impossible.any():
        raise StochasticError(
            f"release {impossible.argmax()}: no possible path could have given it; model and releases do not match"
        )
    states = np.empty(len(rows), dtype=np.int64)
    states[-1] = int(scores[-1].argmax())
    for begin, stop in reversed(stretches):
        if stop > begin + 1:
            ways.moves(operators[begin + 1]).trace(scores[begin:stop], states[begin:stop])
        if begin:
            states[begin - 1] = ways.back(scores[begin - 1], int(states[begin]), begin)
    return MostProbablePath(states, float(scores[-1].max()))


class _Ways:
    """The moves of each matrix, and the way to each observation.

    Parameters
    ----------
    operators
        Those that lead to each observation.
    """

    def __init__(self, operators: Sequence[Operator]) -> None:
        self._operators = operators
        self._parts_of = [_merged(one.periods) for one in operators]
        self._steps = [sum(times * n for runs, times in parts for _, n in runs) for parts in self._parts_of]
        self._made: dict[int, Maxima] = {}
        self._waited: dict[int, BoolArray] = {}
        self._walks: dict[int, list[Walk]] = {}
        self._room = _KEPT

    @cached_property
    def waits(self) -> Waits | None:
        """The ways through gaps of one matrix, where they pay."""
        used = {id(one): one for parts in self._parts_of for runs, _ in parts for one, _ in runs}
        if len(used) != 1:
            return None
        found = waits_of(next(iter(used.values())).ahead)
        gaps = np.array([steps for steps in self._steps if steps > 1], dtype=np.float64)
        return found if found.pays(gaps) else None

    def moves(self, operator: Operator) -> Maxima:
        """Those of an operator of one step."""
        ((one, _),) = operator.periods[0][0]
        if id(one) not in self._made:
            self._made[id(one)] = Maxima(one.ahead)
        return self._made[id(one)]

    def stretches(self) -> list[tuple[int, int]]:
        """Observations one step of one matrix apart: the first one, and the one after the last."""
        found, begin, length = list[tuple[int, int]](), 0, len(self._operators)
        for t in range(1, length + 1):
            is_same = t < length and self._steps[t] == 1 and (t == begin + 1 or self._is_same(t, t - 1))
            if not is_same:
                found.append((begin, t))
                begin = t
        return found

    def _is_same(self, t: int, u: int) -> bool:
        return self._operators[t] is self._operators[u]

    def over(self, scores: FloatArray, t: int) -> FloatArray:
        """The scores before an observation, of those after the one before."""
        parts = self._parts_of[t]
        if len(parts) == 1 and len(parts[0][0]) == 1:
            through = None if self.waits is None else self.waits.over(scores, self._steps[t])
            if through is not None:
                scores, self._waited[t] = through
                return scores
            return self._walked_over(scores, t, parts[0][0][0][0], self._steps[t])
        for part in self._through(scores, parts):
            scores = part.after
        return scores

    def _walked_over(self, scores: FloatArray, t: int, one: TransitionOperator, count: int) -> FloatArray:
        """The scores some steps of one matrix later; those between are kept while there is room."""
        moves = self.moves(one)
        if count * len(scores) > self._room:
            return moves.after(scores, count)
        self._walks[t] = list(moves.walks(scores, count))
        self._room -= sum(walk.scores.size for walk in self._walks[t])
        return self._walks[t][-1].end

    def back(self, scores: FloatArray, state: int, t: int) -> int:
        """The best state at the observation before, of that at an observation."""
        if t in self._waited and self._waited[t][state]:
            assert self.waits is not None, "it was waited"
            return self.waits.back(scores, state, self._steps[t])
        parts = self._parts_of[t]
        if len(parts) == 1 and len(parts[0][0]) == 1:
            moves, walks = self.moves(parts[0][0][0][0]), self._walks.pop(t, None)
            return moves.back(walks or list(moves.walks(scores, self._steps[t])), state)
        for part in reversed(list(self._through(scores, parts))):
            for _ in range(part.times):
                earlier = state
                for (one, count), before in zip(reversed(part.runs), reversed(part.before), strict=True):
                    moves = self.moves(one)
                    earlier = moves.back(list(moves.walks(before, count)), earlier)
                if earlier == state:
                    break
                state = earlier
        return state

    def _through(self, scores: FloatArray, parts: Sequence[tuple[Runs, int]]) -> Iterator[_Part]:
        """A gap period by period.

        Once a period makes all scores grow by the same amount, so do those like it that follow, with the same
        predecessors; they are not walked.
        """
        for runs, times in parts:
            done = 0
            while done < times:
                before, start = list[FloatArray](), scores
                for one, count in runs:
                    before.append(scores)
                    scores = self.moves(one).after(scores, count)
                growth, done = common_growth(start, scores), done + 1
                alike = 1 if growth is None else 1 + times - done
                scores = scores if growth is None else scores + growth * (times - done)
                done += alike - 1
                yield _Part(runs, before, alike, scores)


def _merged(periods: Sequence[tuple[Runs, int]]) -> list[tuple[Runs, int]]:
    """Periods, of which those of one matrix alone are one run."""
    found = list[tuple[Runs, int]]()
    for runs, times in periods:
        if len(runs) == 1:
            (one, count), times_before = runs[0], 0
            if found and len(found[-1][0]) == 1 and found[-1][0][0][0] is one:
                times_before = found.pop()[0][0][1]
            found.append(([(one, count * times + times_before)], 1))
        else:
            found.append((runs, times))
    return found


@dataclass(frozen=True, eq=False)
class _Part:
    """Some runs of steps in a gap.

    Parameters
    ----------
    runs
        Their matrices, and how many steps each has.
    before
        The scores before each, but for a constant.
    times
        How often they follow each other.
    after
        The scores after all.
    """

    runs: Runs
    before: list[FloatArray]
    times: int
    after: FloatArray


@checked
def most_probable_path(transition: MatrixLike, initial: npt.ArrayLike, log_likelihoods: npt.ArrayLike) -> IntArray:
    """The states of the most probable path, ``(T,)``, on plain arrays. Parameters and errors as `dphmm.model.filter`.

    Of equally probable paths the one of lower states is taken, from the last observation backwards.

    Examples
    --------
    >>> most_probable_path([[.9, .1], [.2, .8]], [.5, .5], np.log([[.5, .5], [.9, .1]])).tolist()
    [0, 0]
    """
    model = MarkovModel(transition, initial)
    return path_of_releases(model, Observations(np.asarray(log_likelihoods))).states
