"""The forward–backward algorithm over any transition operators, and what it says of sequences of releases.

`forward_pass` is the filter, `backward_pass` the other half of the smoother. Both take one operator for each time, as
log masses, so that no possible state is ever lost to an underflow and no impossible one gains mass. `filter_releases`
and `smooth_releases` are the same for a `MarkovModel` and beliefs, `filter` and `smooth` on plain arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, IntArray, as_distribution, as_integers, as_numbers, locked
from dphmm.compilation import often
from dphmm.errors import InvalidInputError, StochasticError
from dphmm.model.away import Away, Beyond
from dphmm.model.belief import Belief
from dphmm.model.model import MarkovModel
from dphmm.model.transition_operator import (
    IDENTITY,
    NARROW,
    Operator,
    as_floats_within,
    log_normalised,
    plain_masses,
)
from dphmm.stochastic import MatrixLike
from dphmm.threads import one_thread

_CHUNK = 1 << 16
"""Densities whose exponentials are taken at a time, about."""
_FAINT = float(np.exp(-NARROW))
"""A run of plain sums ends before a positive mass falls below this part of all."""

Run = tuple[FloatArray, FloatArray, FloatArray]
"""What a run of steps fills: masses before each observation and after it, ``(T, N)``, and their sums, ``(T,)``."""


class ForwardPass(NamedTuple):
    """What the forward pass finds.

    Parameters
    ----------
    logs
        ``(T, N)``: ``log p(s_t | z_1..t)``, minus infinity where impossible.
    log_sums
        ``(T,)``: ``log p(z_t | z_1..t-1)``; they add up to the log evidence.
    """

    logs: FloatArray
    log_sums: FloatArray


def forward_pass(operators: Sequence[Operator], log_likelihoods: FloatArray, start: FloatArray) -> ForwardPass:
    """The filter.

    Parameters
    ----------
    operators
        ``T`` of them: each leads to its time from the one before, the first one from ``start``.
    log_likelihoods
        ``(T, N)``: ``log p(z_t | s)``, minus infinity where a state could not give the observation.
    start
        ``(N,)``: log masses before the first operator.

    Returns
    -------
    ForwardPass
        Log masses after each observation, and the sums that were scaled away.

    Raises
    ------
    StochasticError
        When no possible state could have given an observation.
    """
    after, sums = np.empty(log_likelihoods.shape), np.empty(len(log_likelihoods))
    _pass(operators, False, log_likelihoods, start, None, after, sums)
    return ForwardPass(after, sums)


def backward_pass(operators: Sequence[Operator], log_likelihoods: FloatArray) -> FloatArray:
    """What later observations say: ``log p(z_t+1..T | s_t)``, ``(T, N)``, up to a constant a row.

    Parameters and errors are those of `forward_pass`; the first operator is not used.

    Parameters
    ----------
    operators
        As `forward_pass` takes them; the first one is not used.
    log_likelihoods
        As `forward_pass` takes them.

    Returns
    -------
    FloatArray
        ``(T, N)``.
    """
    rows, before = log_likelihoods[::-1], np.empty(log_likelihoods.shape)
    nothing = np.full(rows.shape[1], -np.log(rows.shape[1]))
    after, sums = np.empty(rows.shape), np.empty(len(rows))
    leading = [IDENTITY, *operators[:0:-1]]
    _pass(leading, True, rows, nothing, before, after, sums)
    return before[::-1]


def smoothed(filtered: FloatArray, later: FloatArray) -> FloatArray:
    """The smoother: ``log p(s_t | z_1..T)``, ``(T, N)``, of what the two passes found."""
    logs = filtered + later
    tops = logs.max(axis=1, keepdims=True)
    logs -= np.where(tops > -np.inf, tops, 0.0)
    with np.errstate(divide="ignore"):
        totals = np.log(plain_masses(logs).sum(axis=1, keepdims=True))
    logs -= np.where(totals > -np.inf, totals, 0.0)
    return logs


def _pass(
    operators: Sequence[Operator],
    back: bool,
    log_rows: FloatArray,
    start: FloatArray,
    before: FloatArray | None,
    after: FloatArray,
    sums: FloatArray,
) -> None:
    """A pass through observations, in the order of the rows: fills in log masses before and after each, and sums.

    Stretches of one operator go in plain floats, chunk by chunk, until a mass becomes faint; that step goes in logs.
    """
    length, size = log_rows.shape
    now, t, width = start, 0, 1
    while t < length:
        operator, stop = operators[t], min(length, t + width)
        ahead = next((k for k in range(t, stop) if operators[k] is not operator), stop) - t
        values = None if operator.floats is None else as_floats_within(now)
        if operator.floats is not None and values is not None:
            product = operator.floats[back]
            run = partial(_run, product.plain) if product.dense is None else partial(_dense_run, product.dense)
            part = slice(t, t + ahead)
            done = _in_floats(run, values / values.sum(), log_rows[part], before, after, sums, part)
            t, width = t + done, min(2 * width, max(1, _CHUNK // size)) if done == ahead else 1
            if done:
                now = after[t - 1]
                continue
        moved = operator.backward(now) if back else operator.forward(now)
        seen, sums[t] = log_normalised(moved + log_rows[t])
        if sums[t] == -np.inf:
            raise StochasticError(
                f"release {length - 1 - t if back else t}: no possible state could have given it; model and release "
                "do not match"
            )
        if before is not None:
            before[t] = moved
        now = after[t] = seen
        t += 1


def _in_floats(
    run: Callable[..., int],
    start: FloatArray,
    rows: FloatArray,
    before: FloatArray | None,
    after: FloatArray,
    sums: FloatArray,
    part: slice,
) -> int:
    """How many observations of a part were gone through without anything becoming faint."""
    tops = rows.max(axis=1, keepdims=True)
    below = rows - np.where(tops > -np.inf, tops, 0.0)
    count = len(below)
    if below.min() < -NARROW:
        steep = ((below < -NARROW) & (below > -np.inf)).any(axis=1)
        count = int(steep.argmax()) if steep.any() else count
        if not count:
            return 0
    weights = np.exp(below[:count], out=below[:count])
    moved = np.empty((1, rows.shape[1])) if before is None else before[part]
    done = run(start, weights, _FAINT, (moved, after[part], sums[part]))
    some = slice(part.start, part.start + done)
    with np.errstate(divide="ignore"):
        np.log(after[some], out=after[some])
        np.log(sums[some], out=sums[some])
        if before is not None:
            np.log(before[some], out=before[some])
    sums[some] += tops[:done, 0]
    return done


def _dense_loop(matrix: FloatArray, start: FloatArray, weights: FloatArray, faint: float, out: Run) -> int:
    """`_dense_run`, written so that numba can compile it."""
    before, after, sums = out
    size, own = start.size, before.shape[0] > 1
    for t in range(weights.shape[0]):
        moved = before[t if own else 0]
        moved[:] = 0.0
        last = size - size % 4
        for i in range(0, last, 4):
            a, b, c, d = start[i], start[i + 1], start[i + 2], start[i + 3]
            for j in range(size):
                moved[j] += (a * matrix[i, j] + b * matrix[i + 1, j]) + (c * matrix[i + 2, j] + d * matrix[i + 3, j])
        for i in range(last, size):
            a = start[i]
            for j in range(size):
                moved[j] += a * matrix[i, j]
        row, weight, total = after[t], weights[t], 0.0
        for j in range(size):
            row[j] = moved[j] * weight[j]
            total += row[j]
        for j in range(size):
            if row[j] < faint * total and moved[j] > 0.0 and weight[j] > 0.0:
                return t
        if not total > 0.0:
            return t
        for j in range(size):
            row[j] /= total
        sums[t] = total
        start = row
    return int(weights.shape[0])


@often(_dense_loop, lambda _, start, weights, *__: weights.size * len(start))
def _dense_run(matrix: FloatArray, start: FloatArray, weights: FloatArray, faint: float, out: Run) -> int:
    """Steps in plain sums while nothing is faint; how many there were.

    Each takes ``start`` through the transposed ``matrix`` into a row of ``before``, multiplies by a row of ``weights``
    into a row of ``after``, notes the sum, scales to one, and starts there. ``before`` may be one row, which is then
    used for all. A step is not done where a positive product is below ``faint`` of the sum.
    """
    return _run(lambda values: values @ matrix, start, weights, faint, out)


def _run(
    product: Callable[[FloatArray], FloatArray], start: FloatArray, weights: FloatArray, faint: float, out: Run
) -> int:
    """`_dense_run` of any product."""
    before, after, sums = out
    with one_thread():
        for t, weight in enumerate(weights):
            moved, row = product(start), after[t]
            np.multiply(moved, weight, out=row)
            total = float(row.sum())
            if not total > 0.0 or (row.min() < faint * total and _loses(row, moved, weight, faint * total)):
                return t
            row /= total
            before[t if len(before) > 1 else 0] = moved
            sums[t], start = total, row
    return len(weights)


def _loses(products: FloatArray, ones: FloatArray, others: FloatArray, least: float) -> bool:
    """Whether some product of positive numbers is below the least."""
    return bool(((products < least) & (ones > 0) & (others > 0)).any())


@checked
@dataclass(frozen=True, eq=False)
class Observations:
    """A sequence of releases as its log densities.

    Parameters
    ----------
    log_likelihood
        ``(T, N)``: ``log p(z_t | s)`` of each release in every state, minus infinity where state s could not give it.
        A constant per row changes the evidence and nothing else.
    steps
        ``(T,)``: the time steps of the model between each release and the one before, 0 for another release about the
        same moment; the first entry is not used. Left out, 1 throughout.
    first
        The slot of the first release, for models that vary with time; left out, unknown.

    Raises
    ------
    InvalidInputError
        When a shape does not fit, there is no release, a density is NaN or plus infinity, or a step is negative.
    """

    log_likelihood: FloatArray
    steps: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    first: int | None = None

    def __post_init__(self) -> None:
        rows = np.ascontiguousarray(as_numbers(self.log_likelihood, "log_likelihood", StochasticError))
        if rows.ndim != 2 or not rows.size:
            raise InvalidInputError(
                f"log_likelihood has shape {rows.shape}; give one row per release, a column per state"
            )
        if np.isnan(rows).any() or (rows == np.inf).any():
            row = int(np.flatnonzero((np.isnan(rows) | (rows == np.inf)).any(axis=1))[0])
            raise InvalidInputError(f"log_likelihood: row {row} holds NaN or plus infinity; give log densities")
        steps = as_integers(self.steps, "steps").copy()
        steps = steps if steps.size else np.ones(len(rows), dtype=np.int64)
        if steps.shape != (len(rows),) or (steps[1:] < 0).any():
            raise InvalidInputError(
                f"steps have shape {steps.shape}; give one per release ({len(rows)}), none negative"
            )
        vars(self).update(log_likelihood=locked(rows), steps=locked(steps))

    def __len__(self) -> int:
        return len(self.log_likelihood)

    @property
    def size(self) -> int:
        """The number of states ``N``."""
        return int(self.log_likelihood.shape[1])

    @property
    def slots(self) -> IntArray | None:
        """``(T,)``: the slots of the releases; None where unknown."""
        return None if self.first is None else self.first + np.cumsum(self.gaps)

    @property
    def gaps(self) -> IntArray:
        """``(T,)``: the steps before each release, none before the first."""
        steps = self.steps.copy()
        steps[0] = 0
        return steps


class Beliefs(Sequence[Belief]):
    """Beliefs at one time after another, of which each is made when it is asked for.

    Parameters
    ----------
    logs
        ``(T, P)``: log masses of the chain, rows that sum to one.
    away
        The contexts that they are of, where they are not of states.
    which
        ``(T,)``: the row of each time; left out, there is one for each.
    """

    def __init__(self, logs: FloatArray, away: Away | None = None, which: npt.ArrayLike | None = None) -> None:
        self.which: IntArray = np.asarray(np.arange(len(logs)) if which is None else which, dtype=np.int64)
        self._logs, self._away = logs, away

    def __len__(self) -> int:
        return len(self.which)

    @overload
    def __getitem__(self, t: int) -> Belief: ...
    @overload
    def __getitem__(self, t: slice) -> Beliefs: ...
    def __getitem__(self, t: int | slice) -> Belief | Beliefs:
        if isinstance(t, slice):
            return Beliefs(self._logs, self._away, self.which[t])
        return Belief.owning(self._logs[self.which[t]], self._away)

    def probabilities(self, rows: IntArray) -> FloatArray:
        """The probabilities of states in some rows of the log masses, ``(k, N)``."""
        if self._away is None:
            return np.asarray(np.exp(self._logs[rows]))
        return np.array([np.exp(self._away.summed(self._logs[row])) for row in rows.tolist()])

    def beyond(self, rows: IntArray) -> list[Beyond | None]:
        """What is known in some rows of a person outside, see `Belief.beyond`."""
        return [Belief.owning(self._logs[row], self._away).beyond for row in rows.tolist()]


@checked
class Filtering:
    """What is known at each release from the releases up to it.

    Parameters
    ----------
    model, observations, initial
        As `filter_releases` takes them.

    Attributes
    ----------
    logs
        ``(T, P)``: the log masses of `filtered`.
    log_evidence
        ``log p(z_1..T)``: up to the constants of the rows.
    """

    def __init__(self, model: MarkovModel, observations: Observations, initial: npt.ArrayLike | None = None) -> None:
        self._model, self._observations = model, observations
        self._first = first_logs(model, observations, initial)
        operators = model.operators(observations.gaps, observations.slots)
        self.logs, sums = forward_pass(operators, chain_rows(model, observations), self._first)
        self.log_evidence = float(sums.sum())

    @classmethod
    def of(
        cls, model: MarkovModel, observations: Observations, predicted: Sequence[Belief], filtered: Sequence[Belief]
    ) -> Filtering:
        """The same from beliefs before and after each release that have been updated already.

        Parameters
        ----------
        model
            The model.
        observations
            The releases.
        predicted
            The belief before each release.
        filtered
            The belief after each.

        Returns
        -------
        Filtering
            The same as `filter_releases` finds.
        """
        made = object.__new__(cls)
        made._model, made._observations = model, observations
        made.logs = np.array([belief.chain_logs for belief in filtered])
        rows = zip(predicted, filtered, observations.log_likelihood, strict=True)
        made.log_evidence = sum(_log_evidence(*one) for one in rows)
        vars(made).update(filtered=tuple(filtered), predicted=tuple(predicted))
        return made

    @cached_property
    def filtered(self) -> Sequence[Belief]:
        """``p(s_t | z_1..t)``, one per release."""
        return self.at()

    def at(self, times: Sequence[int] | None = None) -> Beliefs:
        """The same, made of the rows when they are asked for; or of the releases of some numbers alone.

        Parameters
        ----------
        times
            The numbers of the releases; left out, all.

        Returns
        -------
        Beliefs
            One for each.
        """
        return Beliefs(self.logs, self._model.away, times)

    @cached_property
    def predicted(self) -> tuple[Belief, ...]:
        """``p(s_t | z_1..t-1)``, one per release, worked out when it is asked for."""
        model, slots = self._model, self._observations.slots
        first = Belief.owning(self._first, model.away)
        steps = self._observations.steps[1:].tolist()
        since = [None] * len(steps) if slots is None else slots[:-1].tolist()
        later = [one.predict(model, *how) for one, *how in zip(self.filtered, steps, since, strict=False)]
        return (first, *later)


def _log_evidence(prior: Belief, posterior: Belief, log_likelihood: FloatArray) -> float:
    """``log p(z)``, by Bayes' rule in one of the states that are most probable afterwards."""
    state = int(posterior.log_mass.argmax())
    return float(prior.log_mass[state] - posterior.log_mass[state] + log_likelihood[state])


@checked
def filter_releases(model: MarkovModel, observations: Observations, initial: npt.ArrayLike | None = None) -> Filtering:
    """The filter: what is known at each release.

    Parameters
    ----------
    model
        A Markov model over ``N`` states.
    observations
        The releases.
    initial
        ``(N,)``: the distribution of the state at the first release; left out, the model's.

    Returns
    -------
    Filtering
        The beliefs at each release, and how probable the releases are.

    Raises
    ------
    StochasticError
        When ``initial`` is no distribution over the states, or no possible state could have given a release.
    InvalidInputError
        When observations and model differ in the number of states, or there are more than 2 ** 28 numbers to keep.
    ConfigurationError
        When the model varies with time, and the observations do not say when the first one is.
    """
    return Filtering(model, observations, initial)


@checked
def smooth_releases(
    model: MarkovModel, observations: Observations, filtering: Filtering, times: Sequence[int] | None = None
) -> Beliefs:
    """The smoother: ``p(s_t | z_1..T)``, what is known of each time once all releases are there.

    Parameters
    ----------
    model, observations
        As in `filter_releases`.
    filtering
        What that found.
    times
        The numbers of the releases that are asked about; left out, all.

    Returns
    -------
    sequence of Belief
        One per release.
    """
    return Beliefs(smoothed_logs(model, observations, filtering.logs), model.away, times)


def smoothed_logs(model: MarkovModel, observations: Observations, filtered: FloatArray) -> FloatArray:
    """The log masses of `smooth_releases`, ``(T, P)``, given those that a filter found."""
    operators = model.operators(observations.gaps, observations.slots)
    return smoothed(filtered, backward_pass(operators, chain_rows(model, observations)))


def first_logs(model: MarkovModel, observations: Observations, initial: npt.ArrayLike | None) -> FloatArray:
    """The log masses before the first release. Parameters and errors as in `filter_releases`."""
    if observations.size != model.size:
        raise InvalidInputError(f"the releases speak of {observations.size} states and the model of {model.size}")
    given = None if initial is None else as_distribution(initial, model.size)
    return model.first_logs(observations.first, given)


def chain_rows(model: MarkovModel, observations: Observations) -> FloatArray:
    """The log densities of the releases in every state of the model's chain."""
    rows, away = observations.log_likelihood, model.away
    return rows if away is None else np.ascontiguousarray(away.spread(rows))


@checked
def filter(transition: MatrixLike, initial: npt.ArrayLike, log_likelihoods: npt.ArrayLike) -> FloatArray:
    """The filter on plain arrays: rows are ``p(s_t | z_1..t)``.

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
    FloatArray
        ``(T, N)``; each row sums to one. Possible states below about ``1e-308`` show as zero: `filter_releases` keeps
        them apart from impossible ones.

    Raises
    ------
    StochasticError
        When the matrix or the distribution is none, or no possible state could have given an observation.
    InvalidInputError
        When shapes do not fit, there is no row, or one holds NaN or plus infinity.

    Examples
    --------
    >>> filter([[.9, .1], [.2, .8]], [.5, .5], np.log([[.5, .5], [.9, .1]])).round(3)
    array([[0.5  , 0.5  ],
           [0.917, 0.083]])
    """
    found = filter_releases(MarkovModel(transition, initial), Observations(np.asarray(log_likelihoods)))
    return np.asarray(np.exp(found.logs))


@checked
def smooth(transition: MatrixLike, initial: npt.ArrayLike, log_likelihoods: npt.ArrayLike) -> FloatArray:
    """The smoother on plain arrays: rows are ``p(s_t | z_1..T)``. Parameters, shape and errors as `filter`.

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
    FloatArray
        ``(T, N)``; each row sums to one.

    Examples
    --------
    >>> smooth([[.9, .1], [.2, .8]], [.5, .5], np.log([[.5, .5], [.9, .1]])).round(3)
    array([[0.759, 0.241],
           [0.917, 0.083]])
    """
    model, observations = MarkovModel(transition, initial), Observations(np.asarray(log_likelihoods))
    return np.asarray(np.exp(smoothed_logs(model, observations, filter_releases(model, observations).logs)))
