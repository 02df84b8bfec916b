"""The forward–backward algorithm over arbitrary transition operators.

`run_forward_pass` is the filter, `run_backward_pass` the second half of the smoother. Both take one operator for each
time and work on log masses. No possible state is therefore lost to underflow, and no impossible state gains mass.
`filter_releases` and `smooth_releases` work on a `MarkovModel` and beliefs, `filter` and `smooth` on plain arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, IntArray, as_distribution, as_integers, as_numbers, make_read_only
from dphmm.compilation import compile_if_hot
from dphmm.errors import InvalidInputError, StochasticError
from dphmm.model.belief import Belief
from dphmm.model.model import MarkovModel
from dphmm.model.outside_states import OutsideBelief, OutsideStates
from dphmm.model.row_file import RowFile
from dphmm.model.transition_operator import (
    IDENTITY,
    LOG_RANGE,
    Operator,
    as_linear_masses,
    exponentiate_logs,
    normalize_logs,
)
from dphmm.stochastic_matrix import MatrixLike
from dphmm.threads import limit_to_one_thread
from dphmm.validation import check_arguments

# Approximate number of densities that are exponentiated at a time.
_CHUNK_DENSITIES = 1 << 16
# A run in plain floats ends before a positive mass falls below this share of the total.
_MIN_RELATIVE_MASS = float(np.exp(-LOG_RANGE))
# Entries of an array of `smooth_in_blocks`, which has about ten of them: 80 MB.
_BLOCK_ENTRIES = 1 << 20

# Output arrays of a run: masses before and after each observation, and their sums.
Run = tuple[FloatArray, FloatArray, FloatArray]


class ForwardPass(NamedTuple):
    """The result of the forward pass.

    Parameters
    ----------
    logs
        ``(T, N)``: ``log p(s_t | z_1..t)``, minus infinity where impossible.
    log_sums
        ``(T,)``: ``log p(z_t | z_1..t-1)``. Their sum is the log evidence.
    """

    logs: FloatArray
    log_sums: FloatArray


def run_forward_pass(
    operators: Sequence[Operator], log_likelihoods: FloatArray, start: FloatArray, num_before: int = 0
) -> ForwardPass:
    """Run the forward pass: the filter.

    Parameters
    ----------
    operators
        ``T`` operators. Each leads from the previous time to its own, the first one from ``start``.
    log_likelihoods
        ``(T, N)``: ``log p(z_t | s)``, minus infinity if the observation is impossible in a state.
    start
        ``(N,)``: log masses before the first operator.
    num_before
        The number of earlier observations, for the message of an impossible one.

    Returns
    -------
    ForwardPass
        Log masses after each observation, and the normalising sums.

    Raises
    ------
    StochasticError
        If an observation is impossible in every possible state.
    """
    after = np.empty(log_likelihoods.shape)
    sums = np.empty(len(log_likelihoods))
    _run_pass(operators, False, log_likelihoods, start, None, after, sums, num_before)
    return ForwardPass(after, sums)


def run_backward_pass(operators: Sequence[Operator], log_likelihoods: FloatArray) -> FloatArray:
    """Run the backward pass: log likelihoods of all later observations.

    Parameters
    ----------
    operators
        See `run_forward_pass`. The first operator is not used.
    log_likelihoods
        See `run_forward_pass`.

    Returns
    -------
    FloatArray
        ``(T, N)``: ``log p(z_t+1..T | s_t)``, up to a constant for each row.

    Raises
    ------
    StochasticError
        If an observation is impossible in every state.
    """
    return _run_backward_part(
        [*operators[1:], IDENTITY], log_likelihoods, _build_uniform_logs(log_likelihoods.shape[1])
    )[0]


def _build_uniform_logs(size: int) -> FloatArray:
    """Return the likelihood of no observation, up to a constant."""
    return np.full(size, -np.log(size))


def _run_backward_part(
    operators: Sequence[Operator], log_likelihoods: FloatArray, start: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Run the backward pass over a part of the observations.

    Each operator leads from its own time to the next, the last one to `start`. Return the log likelihoods of all later
    observations ``(T, N)``, and those of these and the first observation of the part, ``(N,)``.
    """
    # The forward pass in reversed time.
    before, after = np.empty((2, *log_likelihoods.shape))
    _run_pass(operators[::-1], True, log_likelihoods[::-1], start, before, after, np.empty(len(after)))
    return before[::-1], after[-1].copy()


def combine_passes(filtered: FloatArray, later: FloatArray) -> FloatArray:
    """Return ``log p(s_t | z_1..T)``, ``(T, N)``, from the results of both passes."""
    # Rows are scaled by their largest mass first. A row without a possible state stays -inf instead of NaN.
    logs = filtered + later
    tops = logs.max(axis=1, keepdims=True)
    logs -= np.where(tops > -np.inf, tops, 0.0)
    with np.errstate(divide="ignore"):
        totals = np.log(exponentiate_logs(logs).sum(axis=1, keepdims=True))
    logs -= np.where(totals > -np.inf, totals, 0.0)
    return logs


def _run_pass(
    operators: Sequence[Operator],
    back: bool,
    log_rows: FloatArray,
    start: FloatArray,
    before: FloatArray | None,
    after: FloatArray,
    sums: FloatArray,
    num_before: int = 0,
) -> None:
    """Iterate over the observations, and fill log masses before and after each, and sums.

    Runs of one operator are computed in plain floats, chunk by chunk. A step in which a mass would become too small for
    floats is computed in logs.
    """
    length, size = log_rows.shape
    now = start
    t = 0
    width = 1
    while t < length:
        operator = operators[t]
        stop = min(length, t + width)
        ahead = next((k for k in range(t, stop) if operators[k] is not operator), stop) - t
        # Floats are used only if the matrix has no entry below 2**-100 and all masses are within e**LOG_RANGE of the
        # largest. Then no product underflows to 0, which would make a possible state impossible.
        values = None if operator.linear_products is None else as_linear_masses(now)
        if operator.linear_products is not None and values is not None:
            product = operator.linear_products[back]
            run = partial(_run, product.multiply) if product.dense is None else partial(_run_dense, product.dense)
            part = slice(t, t + ahead)
            done = _run_in_floats(run, values / values.sum(), log_rows[part], before, after, sums, part)
            # Exponentials of rows after a failure are wasted. Chunks therefore grow from 1, and restart after a
            # failure.
            t = t + done
            width = min(2 * width, max(1, _CHUNK_DENSITIES // size)) if done == ahead else 1
            if done:
                now = after[t - 1]
                continue
        moved = operator.propagate_backward(now) if back else operator.propagate_forward(now)
        updated, sums[t] = normalize_logs(moved + log_rows[t])
        if sums[t] == -np.inf:
            raise StochasticError(
                f"release {length - 1 - t if back else num_before + t} is impossible in every possible state: model "
                "and releases do not match"
            )
        if before is not None:
            before[t] = moved
        now = after[t] = updated
        t += 1


def _run_in_floats(
    run: Callable[..., int],
    start: FloatArray,
    rows: FloatArray,
    before: FloatArray | None,
    after: FloatArray,
    sums: FloatArray,
    part: slice,
) -> int:
    """Compute a chunk in floats. Return the number of steps before an underflow."""
    # Each row is scaled by its largest density, which is added to the log evidence at the end.
    tops = rows.max(axis=1, keepdims=True)
    below = rows - np.where(tops > -np.inf, tops, 0.0)
    count = len(below)
    if below.min() < -LOG_RANGE:
        out_of_range = ((below < -LOG_RANGE) & (below > -np.inf)).any(axis=1)
        count = int(out_of_range.argmax()) if out_of_range.any() else count
        if not count:
            return 0
    weights = np.exp(below[:count], out=below[:count])
    moved = np.empty((1, rows.shape[1])) if before is None else before[part]
    done = run(start, weights, _MIN_RELATIVE_MASS, (moved, after[part], sums[part]))
    filled = slice(part.start, part.start + done)
    with np.errstate(divide="ignore"):
        np.log(after[filled], out=after[filled])
        np.log(sums[filled], out=sums[filled])
        if before is not None:
            np.log(before[filled], out=before[filled])
    sums[filled] += tops[:done, 0]
    return done


def _run_dense_loop(matrix: FloatArray, start: FloatArray, weights: FloatArray, min_share: float, out: Run) -> int:
    """Form of `_run_dense` that numba can compile."""
    before, after, sums = out
    # Four rows of the matrix at a time: each entry of `moved` is loaded and stored once for four products.
    size = start.size
    keeps_rows = before.shape[0] > 1
    for t in range(weights.shape[0]):
        moved = before[t if keeps_rows else 0]
        moved[:] = 0.0
        last = size - size % 4
        for i in range(0, last, 4):
            a = start[i]
            b = start[i + 1]
            c = start[i + 2]
            d = start[i + 3]
            for j in range(size):
                moved[j] += (a * matrix[i, j] + b * matrix[i + 1, j]) + (c * matrix[i + 2, j] + d * matrix[i + 3, j])
        for i in range(last, size):
            a = start[i]
            for j in range(size):
                moved[j] += a * matrix[i, j]
        row = after[t]
        weight = weights[t]
        total = 0.0
        for j in range(size):
            row[j] = moved[j] * weight[j]
            total += row[j]
        for j in range(size):
            if row[j] < min_share * total and moved[j] > 0.0 and weight[j] > 0.0:
                return t
        if not total > 0.0:
            return t
        for j in range(size):
            row[j] /= total
        sums[t] = total
        start = row
    return int(weights.shape[0])


@compile_if_hot(_run_dense_loop, lambda _, start, weights, *__: weights.size * len(start))
def _run_dense(matrix: FloatArray, start: FloatArray, weights: FloatArray, min_share: float, out: Run) -> int:
    """Run steps in plain floats until a mass becomes too small. Return their number.

    A step multiplies ``start`` by the transposed ``matrix`` into a row of ``before``, and the result by a row of
    ``weights`` into a row of ``after``. That row is normalised, its sum stored, and it is the start of the next step.
    ``before`` may have a single row, which is then overwritten by each step. The run ends before a step in which a
    positive product is below ``min_share`` of the sum.
    """
    return _run(lambda values: values @ matrix, start, weights, min_share, out)


def _run(
    product: Callable[[FloatArray], FloatArray], start: FloatArray, weights: FloatArray, min_share: float, out: Run
) -> int:
    """Run steps as `_run_dense` does, with an arbitrary product."""
    before, after, sums = out
    with limit_to_one_thread():
        for t, weight in enumerate(weights):
            moved = product(start)
            row = after[t]
            np.multiply(moved, weight, out=row)
            total = float(row.sum())
            if not total > 0.0 or (
                row.min() < min_share * total and _underflows(row, moved, weight, min_share * total)
            ):
                return t
            row /= total
            before[t if len(before) > 1 else 0] = moved
            sums[t] = total
            start = row
    return len(weights)


def _underflows(products: FloatArray, first: FloatArray, second: FloatArray, minimum: float) -> bool:
    """Return whether a product of two positive numbers is below the minimum."""
    return bool(((products < minimum) & (first > 0) & (second > 0)).any())


@check_arguments
@dataclass(frozen=True, eq=False)
class Observations:
    """A sequence of releases, represented by their log densities.

    Parameters
    ----------
    log_likelihood
        ``(T, N)``: ``log p(z_t | s)`` of each release in every state, minus infinity if the release is impossible in s.
        A constant added to a row changes the evidence only.
    steps
        ``(T,)``: the number of timesteps between each release and the previous one, 0 for another release about the
        same timestep. The first entry is not used. Defaults to 1 throughout.
    first
        The slot of the first release, for models that vary with time. Defaults to None: unknown.

    Raises
    ------
    InvalidInputError
        If shapes do not match, there is no release, a density is NaN or plus infinity, or a step is negative.
    """

    log_likelihood: FloatArray
    steps: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    first: int | None = None

    def __post_init__(self) -> None:
        rows = np.ascontiguousarray(as_numbers(self.log_likelihood, "log_likelihood", StochasticError))
        if rows.ndim != 2 or not rows.size:
            raise InvalidInputError(
                f"log_likelihood must have a row for each release and a column for each state, got shape {rows.shape}"
            )
        if np.isnan(rows).any() or (rows == np.inf).any():
            row = int(np.flatnonzero((np.isnan(rows) | (rows == np.inf)).any(axis=1))[0])
            raise InvalidInputError(f"log_likelihood must not contain NaN or plus infinity, got one in row {row}")
        steps = as_integers(self.steps, "steps").copy()
        steps = steps if steps.size else np.ones(len(rows), dtype=np.int64)
        if steps.shape != (len(rows),) or (steps[1:] < 0).any():
            raise InvalidInputError(
                f"steps must be {len(rows)} non-negative integers, got shape {steps.shape} or a negative one"
            )
        vars(self).update(log_likelihood=make_read_only(rows), steps=make_read_only(steps))

    def __len__(self) -> int:
        return len(self.log_likelihood)

    @property
    def size(self) -> int:
        """The number of states ``N``."""
        return int(self.log_likelihood.shape[1])

    @property
    def slots(self) -> IntArray | None:
        """The slots of the releases, ``(T,)``. `None` if unknown."""
        return None if self.first is None else self.first + np.cumsum(self.gaps)

    @property
    def gaps(self) -> IntArray:
        """The number of steps before each release, ``(T,)``, 0 before the first."""
        steps = self.steps.copy()
        steps[0] = 0
        return steps


class Beliefs(Sequence[Belief]):
    """A sequence of beliefs, each created on access.

    Parameters
    ----------
    logs
        ``(T, P)``: log masses of the chain; every row sums to one.
    outside
        The contexts of the masses. Defaults to None: the masses belong to states.
    which
        ``(T,)``: the row of each time. Defaults to all rows in their order.
    """

    def __init__(
        self, logs: FloatArray, outside: OutsideStates | None = None, which: npt.ArrayLike | None = None
    ) -> None:
        self.indices: IntArray = np.asarray(np.arange(len(logs)) if which is None else which, dtype=np.int64)
        self._logs = logs
        self._outside = outside

    def __len__(self) -> int:
        return len(self.indices)

    @overload
    def __getitem__(self, t: int) -> Belief: ...
    @overload
    def __getitem__(self, t: slice) -> Beliefs: ...
    def __getitem__(self, t: int | slice) -> Belief | Beliefs:
        if isinstance(t, slice):
            return Beliefs(self._logs, self._outside, self.indices[t])
        return Belief.from_normalized_logs(self._logs[self.indices[t]], self._outside)

    def get_probabilities(self, rows: IntArray) -> FloatArray:
        """Return the probabilities of the states in selected rows of the log masses, ``(k, N)``."""
        if self._outside is None:
            return np.asarray(np.exp(self._logs[rows]))
        return np.array([np.exp(self._outside.sum_contexts(self._logs[row])) for row in rows.tolist()])

    def get_outside_beliefs(self, rows: IntArray) -> list[OutsideBelief | None]:
        """Return the beliefs about a user outside in selected rows. See `Belief.outside_belief`."""
        return [Belief.from_normalized_logs(self._logs[row], self._outside).outside_belief for row in rows.tolist()]


class Filtering:
    """The filtered beliefs at each release, as `filter_releases` computes them.

    Parameters
    ----------
    model, observations
        The model and the releases.
    first
        ``(P,)``: log masses before the first release.
    logs
        ``(T, P)``: log masses after each release.
    log_evidence
        ``log p(z_1..T)``, up to the constants of the rows.

    Attributes
    ----------
    logs
        ``(T, P)``: the log masses of `filtered`.
    log_evidence
        ``log p(z_1..T)``, up to the constants of the rows.
    """

    def __init__(
        self, model: MarkovModel, observations: Observations, first: FloatArray, logs: FloatArray, log_evidence: float
    ) -> None:
        self._model = model
        self._observations = observations
        self._first = first
        self.logs = logs
        self.log_evidence = log_evidence

    @classmethod
    def from_beliefs(
        cls, model: MarkovModel, observations: Observations, predicted: Sequence[Belief], filtered: Sequence[Belief]
    ) -> Filtering:
        """Return the filtering that consists of precomputed beliefs.

        Parameters
        ----------
        model
            The model.
        observations
            The releases.
        predicted
            The belief before each release.
        filtered
            The belief after each release.

        Returns
        -------
        Filtering
            The result that `filter_releases` would compute.
        """
        logs = np.array([belief.chain_logs for belief in filtered])
        rows = zip(predicted, filtered, observations.log_likelihood, strict=True)
        log_evidence = sum(_compute_log_evidence(*row) for row in rows)
        filtering = cls(model, observations, predicted[0].chain_logs, logs, log_evidence)
        # Fill the cached properties, which would compute the beliefs again.
        vars(filtering).update(filtered=tuple(filtered), predicted=tuple(predicted))
        return filtering

    @cached_property
    def filtered(self) -> Sequence[Belief]:
        """The beliefs ``p(s_t | z_1..t)``, one for each release."""
        return self.select()

    def select(self, times: Sequence[int] | None = None) -> Beliefs:
        """Return the filtered beliefs at selected releases.

        Parameters
        ----------
        times
            The indices of the releases. Defaults to all.

        Returns
        -------
        Beliefs
            One belief for each.
        """
        return Beliefs(self.logs, self._model.outside, times)

    @cached_property
    def predicted(self) -> tuple[Belief, ...]:
        """The beliefs ``p(s_t | z_1..t-1)``, one for each release, computed on first access."""
        model = self._model
        slots = self._observations.slots
        first = Belief.from_normalized_logs(self._first, model.outside)
        steps = self._observations.steps[1:].tolist()
        since = [None] * len(steps) if slots is None else slots[:-1].tolist()
        later = [belief.predict(model, *how) for belief, *how in zip(self.filtered, steps, since, strict=False)]
        return (first, *later)


def _compute_log_evidence(prior: Belief, posterior: Belief, log_likelihood: FloatArray) -> float:
    """Return ``log p(z)``, by Bayes' rule in the most probable state of the posterior."""
    state = int(posterior.log_mass.argmax())
    return float(prior.log_mass[state] - posterior.log_mass[state] + log_likelihood[state])


@check_arguments
def filter_releases(model: MarkovModel, observations: Observations, initial: npt.ArrayLike | None = None) -> Filtering:
    """Compute the filtered belief at each release.

    Parameters
    ----------
    model
        A Markov model over ``N`` states.
    observations
        The releases.
    initial
        ``(N,)``: the distribution of the state at the first release. Defaults to the model's.

    Returns
    -------
    Filtering
        The belief at each release, and the log evidence.

    Raises
    ------
    StochasticError
        If ``initial`` is not a distribution over the states, or a release is impossible in every possible state.
    InvalidInputError
        If observations and model differ in the number of states, or the result has more than 2 ** 28 numbers.
    ConfigurationError
        If the model varies with time, and the observations have no first slot.
    """
    first = compute_initial_logs(model, observations, initial)
    operators = model.operators(observations.gaps, observations.slots)
    logs, log_sums = run_forward_pass(operators, expand_log_likelihoods(model, observations), first)
    return Filtering(model, observations, first, logs, float(log_sums.sum()))


@check_arguments
def smooth_releases(
    model: MarkovModel, observations: Observations, filtering: Filtering, times: Sequence[int] | None = None
) -> Beliefs:
    """Compute the smoothed belief ``p(s_t | z_1..T)`` at each release, from all releases.

    Parameters
    ----------
    model, observations
        See `filter_releases`.
    filtering
        The result of `filter_releases`.
    times
        The indices of the releases. Defaults to all.

    Returns
    -------
    sequence of Belief
        One belief for each release.
    """
    return Beliefs(compute_smoothed_logs(model, observations, filtering.logs), model.outside, times)


def compute_smoothed_logs(model: MarkovModel, observations: Observations, filtered: FloatArray) -> FloatArray:
    """Return the log masses of `smooth_releases`, ``(T, P)``, from those of the filter."""
    operators = model.operators(observations.gaps, observations.slots)
    return combine_passes(filtered, run_backward_pass(operators, expand_log_likelihoods(model, observations)))


def smooth_in_blocks(
    model: MarkovModel, gaps: IntArray, first: int | None, read: Callable[[int, int], FloatArray], filtered: RowFile
) -> Iterator[tuple[int, FloatArray]]:
    """Compute `compute_smoothed_logs` in blocks of releases, from the last to the first.

    Memory does not depend on the number of releases, except for their gaps.

    Parameters
    ----------
    model
        The model.
    gaps
        ``(T,)``: the number of steps before each release, 0 before the first.
    first
        The slot of the first release, for models that vary with time.
    read
        Returns the log densities ``(k, N)`` from the first index to before the second.
    filtered
        The filtered log masses ``(P,)`` of the first releases, of any number. Those of the others are appended.

    Yields
    ------
    start, logs
        The index of the first release of a block, and the log masses ``(k, P)`` of its releases.
    """
    slots = None if first is None else first + np.cumsum(gaps)
    operators = [*model.operators(gaps, slots), IDENTITY]
    length = max(1, _BLOCK_ENTRIES // model.chain_size)

    def read_block(start: int) -> FloatArray:
        rows = read(start, min(start + length, len(gaps)))
        return rows if model.outside is None else np.ascontiguousarray(model.outside.expand(rows))

    while (start := len(filtered)) < len(gaps):
        state = filtered.read(start - 1, start)[0] if start else model.initial_logs(first)
        rows = read_block(start)
        for row in run_forward_pass(operators[start : start + len(rows)], rows, state, start).logs:
            filtered.append(row)
    later = _build_uniform_logs(model.chain_size)
    for start in reversed(range(0, len(gaps), length)):
        rows = read_block(start)
        stop = start + len(rows)
        likelihoods, later = _run_backward_part(operators[start + 1 : stop + 1], rows, later)
        yield start, combine_passes(filtered.read(start, stop), likelihoods)


def compute_initial_logs(model: MarkovModel, observations: Observations, initial: npt.ArrayLike | None) -> FloatArray:
    """Return the log masses before the first release. See `filter_releases`."""
    if observations.size != model.size:
        raise InvalidInputError(
            f"observations must have the {model.size} states of the model, got {observations.size} states"
        )
    distribution = None if initial is None else as_distribution(initial, model.size)
    return model.initial_logs(observations.first, distribution)


def expand_log_likelihoods(model: MarkovModel, observations: Observations) -> FloatArray:
    """Return the log densities of the releases in every state of the chain."""
    rows = observations.log_likelihood
    return rows if model.outside is None else np.ascontiguousarray(model.outside.expand(rows))


@check_arguments
def filter(transition: MatrixLike, initial: npt.ArrayLike, log_likelihoods: npt.ArrayLike) -> FloatArray:
    """Filter plain arrays: return the rows ``p(s_t | z_1..t)``.

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
    FloatArray
        ``(T, N)``; each row sums to one. Possible states below about ``1e-308`` appear as zero. `filter_releases`
        distinguishes them from impossible ones.

    Raises
    ------
    StochasticError
        If the matrix or the distribution is invalid, or an observation is impossible in every possible state.
    InvalidInputError
        If shapes do not match, there is no row, or a row contains NaN or plus infinity.

    Examples
    --------
    >>> filter([[.9, .1], [.2, .8]], [.5, .5], np.log([[.5, .5], [.9, .1]])).round(3)
    array([[0.5  , 0.5  ],
           [0.917, 0.083]])
    """
    filtering = filter_releases(MarkovModel(transition, initial), Observations(np.asarray(log_likelihoods)))
    return np.asarray(np.exp(filtering.logs))


@check_arguments
def smooth(transition: MatrixLike, initial: npt.ArrayLike, log_likelihoods: npt.ArrayLike) -> FloatArray:
    """Smooth plain arrays: return the rows ``p(s_t | z_1..T)``.

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
    FloatArray
        ``(T, N)``; each row sums to one.

    Raises
    ------
    StochasticError, InvalidInputError
        See `filter`.

    Examples
    --------
    >>> smooth([[.9, .1], [.2, .8]], [.5, .5], np.log([[.5, .5], [.9, .1]])).round(3)
    array([[0.759, 0.241],
           [0.917, 0.083]])
    """
    model = MarkovModel(transition, initial)
    observations = Observations(np.asarray(log_likelihoods))
    return np.asarray(np.exp(compute_smoothed_logs(model, observations, filter_releases(model, observations).logs)))
