"""The Viterbi algorithm for the most probable path of a model, in logarithms.

A step is a product in max-plus algebra: ``later[j] = max_i scores[i] + log P[i, j]``. Gaps are computed step by step.
Once a step, or a period of steps, increases all scores by the same amount, so do all equal steps that follow, with the
same predecessors. They are skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, IntArray, read_only
from dphmm.compilation import compile_if_hot
from dphmm.errors import StochasticError
from dphmm.model.forward_backward import Observations, compute_initial_logs, expand_log_likelihoods
from dphmm.model.model import MarkovModel
from dphmm.model.transition_operator import Operator, SparseRows, TransitionOperator
from dphmm.stochastic_matrix import MatrixLike
from dphmm.validation import check_arguments

# Growths with a smaller relative difference are equal up to rounding.
_GROWTH_TOLERANCE = 1e-15
# States with scores this close to the best are tried first. They exclude most others as predecessors.
_LIKELY_PREDECESSOR_NATS = 3.0


@dataclass(frozen=True, eq=False)
class MostProbablePath:
    """The most probable sequence of states given all releases.

    Parameters
    ----------
    states
        ``(T,)``: the states of the path at the releases. The states between releases that are several steps apart are
        part of the maximisation, but not listed.
    log_probability
        ``log p(path, z_1..T)``, up to the constants of the rows.
    """

    states: IntArray = field(repr=False)
    log_probability: float


@check_arguments
def most_probable_path(transition: MatrixLike, initial: npt.ArrayLike, log_likelihoods: npt.ArrayLike) -> IntArray:
    """Compute the most probable path from plain arrays.

    Ties are broken by the lower state, from the last observation backward.

    Parameters
    ----------
    transition
        ``(N, N)`` row-stochastic, dense or sparse.
    initial
        ``(N,)``: the distribution of the first state.
    log_likelihoods
        ``(T, N)``: ``log p(z_t | s)``, minus infinity if the observation is impossible in s.

    Returns
    -------
    IntArray
        ``(T,)``: the states of the path.

    Raises
    ------
    StochasticError, InvalidInputError
        See `dphmm.model.filter`.

    Examples
    --------
    >>> most_probable_path([[.9, .1], [.2, .8]], [.5, .5], np.log([[.5, .5], [.9, .1]])).tolist()
    [0, 0]
    """
    model = MarkovModel(transition, initial)
    return find_release_path(model, Observations(np.asarray(log_likelihoods))).states


@check_arguments
def find_release_path(
    model: MarkovModel, observations: Observations, initial: npt.ArrayLike | None = None
) -> MostProbablePath:
    """Compute the most probable path given all releases.

    Ties are broken by the lower state, from the last release backward. If the model has outside states, the path
    maximises the probability over contexts and is returned as the states of these contexts.

    Parameters
    ----------
    model, observations, initial
        See `dphmm.model.filter_releases`.

    Returns
    -------
    MostProbablePath
        The states of the path at the releases, and its log probability.

    Raises
    ------
    StochasticError
        If a release is impossible on every possible path.
    """
    rows = expand_log_likelihoods(model, observations)
    first = compute_initial_logs(model, observations, initial)
    path = run_viterbi(model.operators(observations.gaps, observations.slots), rows, first)
    return replace(path, states=model.state_of_context[path.states])


def run_viterbi(operators: Sequence[Operator], log_likelihoods: FloatArray, start: FloatArray) -> MostProbablePath:
    """Compute the most probable path over operators that consist of single steps.

    Parameters
    ----------
    operators, log_likelihoods, start
        See `dphmm.model.forward_backward.run_forward_pass`.

    Returns
    -------
    MostProbablePath
        The path.

    Raises
    ------
    StochasticError
        If an observation is impossible on every possible path.
    """
    rows = read_only(log_likelihoods)
    scores = np.empty(log_likelihoods.shape)
    matrices = dict[int, _Maxima]()

    def get_maxima(operator: TransitionOperator) -> _Maxima:
        return matrices.setdefault(id(operator), _Maxima(operator))

    stretches = _find_stretches(operators)
    origins = list[IntArray]()
    for begin, stop, operator in stretches:
        before = start if begin == 0 else scores[begin - 1]
        came = np.arange(rows.shape[1])
        for runs, times in operators[begin].periods:
            before, came = _repeat_period([(get_maxima(step), count) for step, count in runs], times, before, came)
        origins.append(came)
        np.add(before, rows[begin], out=scores[begin])
        if operator is not None:
            get_maxima(operator).run(rows[begin:stop], scores[begin:stop])
    impossible = scores.max(axis=1) == -np.inf
    if impossible.any():
        raise StochasticError(
            f"release {impossible.argmax()} is impossible on every possible path: model and releases do not match"
        )
    states = np.empty(len(rows), dtype=np.int64)
    states[-1] = int(scores[-1].argmax())
    for (begin, stop, operator), came in zip(reversed(stretches), reversed(origins), strict=True):
        if operator is not None:
            get_maxima(operator).trace(scores[begin:stop], states[begin:stop])
        if begin:
            states[begin - 1] = came[states[begin]]
    return MostProbablePath(states, float(scores[-1].max()))


def _find_stretches(operators: Sequence[Operator]) -> list[tuple[int, int, TransitionOperator | None]]:
    """Return ranges of observations that are one step of the same operator apart.

    Ranges are maximal: first, end and operator, which is None for a range of a single observation.
    """
    stretches = list[tuple[int, int, TransitionOperator | None]]()
    for t, operator in enumerate(operators):
        single = operator if t and isinstance(operator, TransitionOperator) else None
        if single is not None and stretches[-1][2] in (None, single):
            stretches[-1] = stretches[-1][0], t + 1, single
        else:
            stretches.append((t, t + 1, None))
    return stretches


def _repeat_period(
    runs: Sequence[tuple[_Maxima, int]], times: int, scores: FloatArray, origins: IntArray
) -> tuple[FloatArray, IntArray]:
    """Return the scores ``(N,)`` and the origins of the best paths after a repeated period.

    ``origins`` contains the origins of the best paths before the period.
    """
    for done in range(1, times + 1):
        later = scores
        came = np.arange(len(scores))
        for maxima, count in runs:
            later, came = maxima.take_steps(count, later, came)
        # Max-plus matrices become periodic: once a period adds the same number to all scores, so do all further ones,
        # with the same predecessors.
        growth = _compute_common_growth(scores, later) if done < times else None
        scores = later
        origins = origins[came]
        if growth is not None:
            left = times - done
            return scores + growth * left, origins[_compose_steps(came, left)]
    return scores, origins


def _compute_common_growth(before: FloatArray, after: FloatArray) -> float | None:
    """Return the common growth of all finite scores. None if there is none."""
    finite = before > -np.inf
    if not np.array_equal(finite, after > -np.inf) or not finite.any():
        return None
    growth = after[finite] - before[finite]
    low = float(growth.min())
    high = float(growth.max())
    return (low + high) / 2 if high - low <= _GROWTH_TOLERANCE * float(np.abs(after[finite]).max()) else None


def _compose_steps(sources: IntArray, times: int) -> IntArray:
    """Return the origin of each state after several steps with the same predecessors."""
    # Repeated squaring of the map from state to predecessor: O(N log times) instead of O(N times).
    first = np.arange(len(sources))
    while times:
        if times % 2:
            first = sources[first]
        sources = sources[sources]
        times = times // 2
    return first


class _Maxima:
    """The log probabilities of a matrix's moves, grouped by target.

    Parameters
    ----------
    operator
        The operator of one step with the matrix.
    """

    def __init__(self, operator: TransitionOperator) -> None:
        product = operator.forward_product
        self._lists = *product.rows[:2], product.log_shares
        self._dense = None
        if product.dense is not None and product.dense.size:
            with np.errstate(divide="ignore"):
                logs = np.log(product.dense)
            self._dense = logs, logs.max(axis=1)

    def run(self, rows: FloatArray, scores: FloatArray) -> None:
        """Fill the scores ``(T, N)`` after the first row, given log densities ``rows``."""
        if self._dense is None:
            _compute_sparse_scores(self._lists, rows, scores)
        else:
            _compute_dense_scores(*self._dense, rows, scores)

    def trace(self, scores: FloatArray, path: IntArray) -> None:
        """Fill the states ``(T,)`` of the best path to the last one."""
        _trace_path(self._lists, scores, path)

    def take_steps(self, count: int, scores: FloatArray, origins: IntArray) -> tuple[FloatArray, IntArray]:
        """Return the scores ``(N,)`` and origins after steps without observations."""
        later = scores.copy()
        came = origins.copy()
        sources = np.empty(len(scores), dtype=np.int64)
        done, growth = _take_gap_steps(self._lists, count, later, came, sources)
        if done < count:
            later += growth * (count - done)
            came = came[_compose_steps(sources, count - done)]
        return later, came


def _compute_dense_scores_loop(logs: FloatArray, maximum: FloatArray, rows: FloatArray, scores: FloatArray) -> None:
    """Form of `_compute_dense_scores` that numba can compile."""
    size = rows.shape[1]
    chosen = np.empty(size, dtype=np.int64)
    for t in range(1, rows.shape[0]):
        before, out = scores[t - 1], scores[t]
        out[:] = -np.inf
        # Branch and bound in two rounds: likely predecessors first, then only those others that may still be best.
        near = before.max() - _LIKELY_PREDECESSOR_NATS
        for first in (True, False):
            count = 0
            minimum = out.min()
            for i in range(size):
                if (before[i] >= near) == first and (first or before[i] + maximum[i] > minimum):
                    chosen[count] = i
                    count += 1
            last = count - count % 4
            for k in range(0, last, 4):  # four independent maxima: instructions overlap
                a = chosen[k]
                b = chosen[k + 1]
                c = chosen[k + 2]
                d = chosen[k + 3]
                for j in range(size):
                    left = max(before[a] + logs[a, j], before[b] + logs[b, j])
                    right = max(before[c] + logs[c, j], before[d] + logs[d, j])
                    out[j] = max(out[j], max(left, right))
            for k in range(last, count):
                a = chosen[k]
                for j in range(size):
                    out[j] = max(out[j], before[a] + logs[a, j])
        for j in range(size):
            out[j] += rows[t, j]


@compile_if_hot(_compute_dense_scores_loop, lambda logs, _, rows, __: logs.size * len(rows))
def _compute_dense_scores(logs: FloatArray, maximum: FloatArray, rows: FloatArray, scores: FloatArray) -> None:
    """Compute the best scores of each time.

    They are ``scores[t, j] = max_i scores[t - 1, i] + logs[i, j] + rows[t, j]``. The first row of ``scores`` is an
    input, that of ``rows`` is not used. ``most`` contains the largest entry of each row of ``logs``. A state is skipped
    as a predecessor if even this entry leads to less than the smallest score so far.
    """
    for t in range(1, len(rows)):
        before, out = scores[t - 1], scores[t]
        near = before >= before.max() - _LIKELY_PREDECESSOR_NATS
        (before[near, np.newaxis] + logs[near]).max(axis=0, out=out)
        others = ~near & (before + maximum > out.min())
        if others.any():
            np.maximum(out, (before[others, np.newaxis] + logs[others]).max(axis=0), out=out)
        out += rows[t]


def _compute_sparse_scores_loop(lists: SparseRows, rows: FloatArray, scores: FloatArray) -> None:
    """Form of `_compute_sparse_scores` that numba can compile."""
    starts, states, logs = lists
    for t in range(1, rows.shape[0]):
        before = scores[t - 1]
        for j in range(rows.shape[1]):
            begin, end = starts[j], starts[j + 1]
            last = begin + (end - begin) // 4 * 4
            a = b = c = d = -np.inf  # four independent maxima: instructions overlap
            for at in range(begin, last, 4):
                a = max(a, before[states[at]] + logs[at])
                b = max(b, before[states[at + 1]] + logs[at + 1])
                c = max(c, before[states[at + 2]] + logs[at + 2])
                d = max(d, before[states[at + 3]] + logs[at + 3])
            for at in range(last, end):
                a = max(a, before[states[at]] + logs[at])
            scores[t, j] = max(max(a, b), max(c, d)) + rows[t, j]


@compile_if_hot(_compute_sparse_scores_loop, lambda lists, rows, _: len(lists[2]) * len(rows))
def _compute_sparse_scores(lists: SparseRows, rows: FloatArray, scores: FloatArray) -> None:
    """Compute the scores of `_compute_dense_scores` from sparse rows."""
    starts, states, logs = lists
    entered = np.flatnonzero(np.diff(starts))
    scores[1:] = -np.inf
    for t in range(1, len(rows)):
        scores[t, entered] = np.maximum.reduceat(scores[t - 1][states] + logs, starts[entered])
        scores[t] += rows[t]


def _trace_path_loop(lists: SparseRows, scores: FloatArray, path: IntArray) -> None:
    """Form of `_trace_path` that numba can compile."""
    starts, states, logs = lists
    for t in range(path.size - 1, 0, -1):
        best = -np.inf
        source = np.int64(0)
        before = scores[t - 1]
        for at in range(starts[path[t]], starts[path[t] + 1]):
            score = before[states[at]] + logs[at]
            if score > best:
                best = score
                source = np.int64(states[at])
        path[t - 1] = source


@compile_if_hot(_trace_path_loop, lambda _, scores, __: scores.size)
def _trace_path(lists: SparseRows, scores: FloatArray, path: IntArray) -> None:
    """Fill the states of the best path to the last one of ``path``.

    Ties are broken by the lower state. Entries of each row must be in the order of their states.
    """
    starts, states, logs = lists
    state = int(path[-1])
    for t in range(len(path) - 1, 0, -1):
        part = slice(int(starts[state]), int(starts[state + 1]))
        near = states[part]
        path[t - 1] = state = int(near[(scores[t - 1].take(near) + logs[part]).argmax()])


def _take_gap_steps_loop(
    lists: SparseRows, steps: int, scores: FloatArray, origins: IntArray, sources: IntArray
) -> tuple[int, float]:
    """Form of `_take_gap_steps` that numba can compile."""
    starts, states, logs = lists
    size = scores.size
    later = np.empty(size)
    came = np.empty(size, dtype=np.int64)
    for done in range(1, steps + 1):
        low = np.inf
        high = -np.inf
        maximum = 0.0
        same = True
        for j in range(size):
            best = -np.inf
            source = np.int64(0)
            for at in range(starts[j], starts[j + 1]):
                score = scores[states[at]] + logs[at]
                if score > best:
                    best = score
                    source = np.int64(states[at])
            later[j] = best
            sources[j] = source
            came[j] = origins[source]
            if (best > -np.inf) != (scores[j] > -np.inf):
                same = False
            elif best > -np.inf:
                growth = best - scores[j]
                low = min(low, growth)
                high = max(high, growth)
                maximum = max(maximum, abs(best))
        scores[:] = later
        origins[:] = came
        if same and low <= high <= low + _GROWTH_TOLERANCE * maximum:
            return done, (low + high) / 2
    return steps, 0.0


@compile_if_hot(_take_gap_steps_loop, lambda lists, steps, *_: len(lists[2]) * steps)
def _take_gap_steps(
    lists: SparseRows, steps: int, scores: FloatArray, origins: IntArray, sources: IntArray
) -> tuple[int, float]:
    """Propagate scores and origins ``(N,)`` in place, through steps without observations.

    Ends early after a step that increases all scores by the same amount.

    Returns
    -------
    done
        The number of steps taken.
    growth
        The amount by which each further step increases all scores, with the ``sources`` ``(N,)`` of the last one.
    """
    starts, states, logs = lists
    entered = np.flatnonzero(np.diff(starts))
    counts = np.diff(starts)[entered]
    for done in range(1, steps + 1):
        terms = scores[states] + logs
        later = np.full(len(scores), -np.inf)
        later[entered] = np.maximum.reduceat(terms, starts[entered])
        firsts = np.where(terms == np.repeat(later[entered], counts), states, np.iinfo(np.uint32).max)
        sources[:] = 0
        sources[entered] = np.minimum.reduceat(firsts, starts[entered])
        growth = _compute_common_growth(scores, later)
        scores[:] = later
        origins[:] = origins[sources]
        if growth is not None:
            return done, growth
    return steps, 0.0
