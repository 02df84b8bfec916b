"""The most probable path (Viterbi): maxima over predecessors, in logarithms over the model's matrices.

A step is a product of max-plus algebra: ``later[j] = max_i scores[i] + log P[i, j]``. Gaps are walked step by
step; once a step, or a period of steps, makes all scores grow by the same amount, so do those like it that follow,
with the same predecessors, and they need not be walked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, IntArray
from dphmm.compilation import often
from dphmm.errors import StochasticError
from dphmm.model.forward_backward import Observations, chain_rows, first_logs
from dphmm.model.model import MarkovModel
from dphmm.model.transition_operator import Lists, Operator, TransitionOperator
from dphmm.stochastic import MatrixLike

_ALIKE = 1e-15
"""Growths of scores that differ by less, as a part of the scores, differ by rounding."""
_NEAR = 3.0
"""States with scores this near the best are looked at first; they rule most of the others out as predecessors."""


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


@checked
def most_probable_path(transition: MatrixLike, initial: npt.ArrayLike, log_likelihoods: npt.ArrayLike) -> IntArray:
    """The states of the most probable path on plain arrays. Parameters and errors as `dphmm.model.filter`.

    Of equally probable paths the one of lower states is taken, from the last observation backwards.

    Parameters
    ----------
    transition
        ``(N, N)`` row-stochastic, dense or sparse.
    initial
        ``(N,)``: the distribution of the first state.
    log_likelihoods
        ``(T, N)``: ``log p(z_t | s)``, minus infinity where state s could not give it.

    Returns
    -------
    IntArray
        ``(T,)``.

    Examples
    --------
    >>> most_probable_path([[.9, .1], [.2, .8]], [.5, .5], np.log([[.5, .5], [.9, .1]])).tolist()
    [0, 0]
    """
    model = MarkovModel(transition, initial)
    return path_of_releases(model, Observations(np.asarray(log_likelihoods))).states


@checked
def path_of_releases(
    model: MarkovModel, observations: Observations, initial: npt.ArrayLike | None = None
) -> MostProbablePath:
    """The most probable path.

    Of equally probable paths the one of lower states is taken, from the last release backwards. With a model of people
    outside it is the most probable path of contexts, given as the states that they are in.

    Parameters
    ----------
    model, observations, initial
        As in `dphmm.model.filter_releases`.

    Returns
    -------
    MostProbablePath
        Its states at the releases, and how probable it is.

    Raises
    ------
    StochasticError
        When no possible path could have given the releases.
    """
    rows, first = chain_rows(model, observations), first_logs(model, observations, initial)
    found = viterbi(model.operators(observations.gaps, observations.slots), rows, first)
    return replace(found, states=model.last[found.states])


def viterbi(operators: Sequence[Operator], log_likelihoods: FloatArray, start: FloatArray) -> MostProbablePath:
    """The most probable path over any operators that are made of steps by one matrix each.

    Parameters
    ----------
    operators, log_likelihoods, start
        As in `dphmm.model.forward_backward.forward_pass`.

    Returns
    -------
    MostProbablePath
        Between observations further apart than a step the path goes through other states, which are maximised over and
        not listed.

    Raises
    ------
    StochasticError
        When no possible path could have given an observation.
    """
    rows, scores, matrices = log_likelihoods, np.empty(log_likelihoods.shape), dict[int, _Maxima]()

    def maxima(operator: TransitionOperator) -> _Maxima:
        return matrices.setdefault(id(operator), _Maxima(operator))

    stretches = _stretches(operators)
    origins = list[IntArray]()
    for begin, stop, operator in stretches:
        before, came = start if begin == 0 else scores[begin - 1], np.arange(rows.shape[1])
        for runs, times in operators[begin].periods:
            before, came = _through([(maxima(one), count) for one, count in runs], times, before, came)
        origins.append(came)
        np.add(before, rows[begin], out=scores[begin])
        if operator is not None:
            maxima(operator).run(rows[begin:stop], scores[begin:stop])
    impossible = scores.max(axis=1) == -np.inf
    if impossible.any():
        raise StochasticError(
            f"release {impossible.argmax()}: no possible path could have given it; model and releases do not match"
        )
    states = np.empty(len(rows), dtype=np.int64)
    states[-1] = int(scores[-1].argmax())
    for (begin, stop, operator), came in zip(reversed(stretches), reversed(origins), strict=True):
        if operator is not None:
            maxima(operator).trace(scores[begin:stop], states[begin:stop])
        if begin:
            states[begin - 1] = came[states[begin]]
    return MostProbablePath(states, float(scores[-1].max()))


def _stretches(operators: Sequence[Operator]) -> list[tuple[int, int, TransitionOperator | None]]:
    """Observations one step of one matrix apart: the first, the one after the last, and the matrix if there are two."""
    found = list[tuple[int, int, TransitionOperator | None]]()
    for t, operator in enumerate(operators):
        single = operator if t and isinstance(operator, TransitionOperator) else None
        if single is not None and found[-1][2] in (None, single):
            found[-1] = found[-1][0], t + 1, single
        else:
            found.append((t, t + 1, None))
    return found


def _through(
    runs: Sequence[tuple[_Maxima, int]], times: int, scores: FloatArray, origins: IntArray
) -> tuple[FloatArray, IntArray]:
    """Scores ``(N,)`` after a period that is repeated, and where the best path to each state comes from.

    ``origins`` says the same of the states before.
    """
    for done in range(1, times + 1):
        later, came = scores, np.arange(len(scores))
        for maxima, count in runs:
            later, came = maxima.steps(count, later, came)
        growth = _common_growth(scores, later) if done < times else None
        scores, origins = later, origins[came]
        if growth is not None:
            left = times - done
            return scores + growth * left, origins[_repeated(came, left)]
    return scores, origins


def _common_growth(before: FloatArray, after: FloatArray) -> float | None:
    """By how much all finite scores have grown alike, or None where they have not or others are finite."""
    finite = before > -np.inf
    if not np.array_equal(finite, after > -np.inf) or not finite.any():
        return None
    growth = after[finite] - before[finite]
    low, high = float(growth.min()), float(growth.max())
    return (low + high) / 2 if high - low <= _ALIKE * float(np.abs(after[finite]).max()) else None


def _repeated(sources: IntArray, times: int) -> IntArray:
    """Where one comes from by going back through the same sources several times."""
    found = np.arange(len(sources))
    while times:
        if times % 2:
            found = sources[found]
        sources, times = sources[sources], times // 2
    return found


class _Maxima:
    """The log probabilities of a matrix's moves by the state that is entered.

    Parameters
    ----------
    operator
        One step by the matrix.
    """

    def __init__(self, operator: TransitionOperator) -> None:
        product = operator.ahead
        self._lists = *product.lists[:2], product.log_shares
        self._dense = None
        if product.dense is not None and product.dense.size:
            with np.errstate(divide="ignore"):
                logs = np.log(product.dense)
            self._dense = logs, logs.max(axis=1)

    def run(self, rows: FloatArray, scores: FloatArray) -> None:
        """Fill in the scores ``(T, N)`` after the first row, for observations with log densities ``rows``."""
        if self._dense is None:
            _gathered_scores(self._lists, rows, scores)
        else:
            _dense_scores(*self._dense, rows, scores)

    def trace(self, scores: FloatArray, path: IntArray) -> None:
        """Fill in the states ``(T,)`` by which the last one was reached."""
        _gathered_sources(self._lists, scores, path)

    def steps(self, count: int, scores: FloatArray, origins: IntArray) -> tuple[FloatArray, IntArray]:
        """The scores ``(N,)`` some steps without an observation later, and the origins of the paths to each state."""
        later, came, sources = scores.copy(), origins.copy(), np.empty(len(scores), dtype=np.int64)
        done, growth = _gap_steps(self._lists, count, later, came, sources)
        if done < count:
            later += growth * (count - done)
            came = came[_repeated(sources, count - done)]
        return later, came


def _dense_scores_loop(logs: FloatArray, most: FloatArray, rows: FloatArray, scores: FloatArray) -> None:
    """`_dense_scores`, written so that numba can compile it."""
    size = rows.shape[1]
    chosen = np.empty(size, dtype=np.int64)
    for t in range(1, rows.shape[0]):
        before, out = scores[t - 1], scores[t]
        out[:] = -np.inf
        near = before.max() - _NEAR
        for first in (True, False):
            count, least = 0, out.min()
            for i in range(size):
                if (before[i] >= near) == first and (first or before[i] + most[i] > least):
                    chosen[count] = i
                    count += 1
            last = count - count % 4
            for k in range(0, last, 4):  # one maximum does not wait for another
                a, b, c, d = chosen[k], chosen[k + 1], chosen[k + 2], chosen[k + 3]
                for j in range(size):
                    one = max(before[a] + logs[a, j], before[b] + logs[b, j])
                    other = max(before[c] + logs[c, j], before[d] + logs[d, j])
                    out[j] = max(out[j], max(one, other))
            for k in range(last, count):
                a = chosen[k]
                for j in range(size):
                    out[j] = max(out[j], before[a] + logs[a, j])
        for j in range(size):
            out[j] += rows[t, j]


@often(_dense_scores_loop, lambda logs, _, rows, __: logs.size * len(rows))
def _dense_scores(logs: FloatArray, most: FloatArray, rows: FloatArray, scores: FloatArray) -> None:
    """Best scores at each time: ``scores[t, j] = max_i scores[t - 1, i] + logs[i, j] + rows[t, j]``.

    The first row of ``scores`` is given, that of ``rows`` not used. ``most`` holds the largest of each row of ``logs``:
    a state from which even that leads to less than the least score found so far is no predecessor.
    """
    for t in range(1, len(rows)):
        before, out = scores[t - 1], scores[t]
        near = before >= before.max() - _NEAR
        (before[near, np.newaxis] + logs[near]).max(axis=0, out=out)
        others = ~near & (before + most > out.min())
        if others.any():
            np.maximum(out, (before[others, np.newaxis] + logs[others]).max(axis=0), out=out)
        out += rows[t]


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


@often(_gathered_scores_loop, lambda lists, rows, _: len(lists[2]) * len(rows))
def _gathered_scores(lists: Lists, rows: FloatArray, scores: FloatArray) -> None:
    """`_dense_scores` over each state's list; minus infinity over an empty one."""
    starts, states, logs = lists
    entered = np.flatnonzero(np.diff(starts))
    scores[1:] = -np.inf
    for t in range(1, len(rows)):
        scores[t, entered] = np.maximum.reduceat(scores[t - 1][states] + logs, starts[entered])
        scores[t] += rows[t]


def _gathered_sources_loop(lists: Lists, scores: FloatArray, path: IntArray) -> None:
    """`_gathered_sources`, written so that numba can compile it."""
    starts, states, logs = lists
    for t in range(path.size - 1, 0, -1):
        best, source, before = -np.inf, np.int64(0), scores[t - 1]
        for at in range(starts[path[t]], starts[path[t] + 1]):
            score = before[states[at]] + logs[at]
            if score > best:
                best, source = score, np.int64(states[at])
        path[t - 1] = source


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
        path[t - 1] = state = int(some[(scores[t - 1].take(some) + logs[part]).argmax()])


def _gap_steps_loop(
    lists: Lists, steps: int, scores: FloatArray, origins: IntArray, sources: IntArray
) -> tuple[int, float]:
    """`_gap_steps`, written so that numba can compile it."""
    starts, states, logs = lists
    size = scores.size
    later, came = np.empty(size), np.empty(size, dtype=np.int64)
    for done in range(1, steps + 1):
        low, high, most, same = np.inf, -np.inf, 0.0, True
        for j in range(size):
            best, source = -np.inf, np.int64(0)
            for at in range(starts[j], starts[j + 1]):
                score = scores[states[at]] + logs[at]
                if score > best:
                    best, source = score, np.int64(states[at])
            later[j], sources[j], came[j] = best, source, origins[source]
            if (best > -np.inf) != (scores[j] > -np.inf):
                same = False
            elif best > -np.inf:
                growth = best - scores[j]
                low, high, most = min(low, growth), max(high, growth), max(most, abs(best))
        scores[:], origins[:] = later, came
        if same and low <= high <= low + _ALIKE * most:
            return done, (low + high) / 2
    return steps, 0.0


@often(_gap_steps_loop, lambda lists, steps, *_: len(lists[2]) * steps)
def _gap_steps(lists: Lists, steps: int, scores: FloatArray, origins: IntArray, sources: IntArray) -> tuple[int, float]:
    """Take scores and origins ``(N,)``, both changed in place, through steps without an observation.

    It ends early after a step that makes all scores grow alike.

    Returns
    -------
    done
        How many steps were taken.
    growth
        By how much each further step makes all scores grow, with the ``sources`` ``(N,)`` of the last one.
    """
    starts, states, logs = lists
    entered = np.flatnonzero(np.diff(starts))
    counts = np.diff(starts)[entered]
    for done in range(1, steps + 1):
        terms, later = scores[states] + logs, np.full(len(scores), -np.inf)
        later[entered] = np.maximum.reduceat(terms, starts[entered])
        firsts = np.where(terms == np.repeat(later[entered], counts), states, np.iinfo(np.uint32).max)
        sources[:] = 0
        sources[entered] = np.minimum.reduceat(firsts, starts[entered])
        growth = _common_growth(scores, later)
        scores[:], origins[:] = later, origins[sources]
        if growth is not None:
            return done, growth
    return steps, 0.0
