"""Transition operators, which propagate distributions and likelihoods by one step.

Distributions are natural logarithms of masses, minus infinity exactly for states that are impossible by structure.
Therefore underflow never makes a possible state impossible. Sums are computed in plain floats if no term can underflow.
Otherwise each sum is computed relative to its largest terms.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from math import exp, log
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from dphmm.arrays import BoolArray, FloatArray, make_read_only
from dphmm.compilation import compile_if_hot
from dphmm.stochastic_matrix import MatrixLike, as_csr
from dphmm.threads import limit_to_one_thread

# Masses within ``e**LOG_RANGE`` of the largest can be propagated by one step of plain sums without underflow.
LOG_RANGE = 600.0
_NEXT_LEVEL = exp(-LOG_RANGE)
# Terms of the next level below this share of it are skipped. Their products are subnormal numbers, which slow
# processors down. They are below e**-710, whereas the sum is at least _MIN_SHARE * e**-LOG_RANGE: each is below 2e-18
# of it.
_NEXT_LEVEL_MIN = 1e-48
# The level of sums without a term.
_NO_LEVEL = -1e300
_MIN_LOG = -700.0
# If no entry is smaller, plain sums of masses within `LOG_RANGE` do not underflow, and are zero by structure only.
_MIN_SHARE = 2.0**-100
# Products with a dense array are faster up to this number of states, and from this share of positive entries on. With
# more states a dense array would take over 128 MiB for each direction.
_DENSE_MAX_STATES = 4096
_DENSE_MIN_FILL = 0.25

# Number of masses of which the range is checked together.
_RANGE_BLOCK = 1 << 14

# Below this number of entries a sparse product is faster than restricting a dense one to one thread.
_DENSE_MIN_ENTRIES = 100_000


# Single-step operators and the number of consecutive steps of each, in order of time.
Runs: TypeAlias = "Sequence[tuple[TransitionOperator, int]]"


class Operator(ABC):
    """Base class of operators that propagate log masses forward and log likelihoods backward."""

    # The forward and the backward product if plain floats suffice for masses within `LOG_RANGE`, otherwise `None`.
    linear_products: tuple[LogProduct, LogProduct] | None = None

    # The single steps of the operator, for the search of most probable paths: lists of runs of equal steps, and the
    # number of consecutive repetitions of each list.
    periods: Sequence[tuple[Runs, int]] = ()

    @abstractmethod
    def propagate_forward(self, logs: FloatArray) -> FloatArray:
        """Propagate a distribution one step forward.

        Parameters
        ----------
        logs
            ``(n,)``: log masses of the states before the step.

        Returns
        -------
        FloatArray
            ``(m,)``: ``log sum_i exp(logs[i]) P[i, j]`` for each state j after the step.
        """

    @abstractmethod
    def propagate_backward(self, logs: FloatArray) -> FloatArray:
        """Propagate likelihoods one step backward.

        Parameters
        ----------
        logs
            ``(m,)``: log likelihoods given each state after the step.

        Returns
        -------
        FloatArray
            ``(n,)``: ``log sum_j P[i, j] exp(logs[j])`` for each state i before the step.
        """


class _Identity(Operator):
    """The operator of zero steps."""

    def propagate_forward(self, logs: FloatArray) -> FloatArray:
        return logs

    def propagate_backward(self, logs: FloatArray) -> FloatArray:
        return logs


# The operator of zero steps.
IDENTITY: Operator = _Identity()


# The rows of a sparse matrix: starts ``(m + 1,)``, columns, and values.
#
# Columns are unsigned, so compiled loops need not check for negative indices.
SparseRows = tuple[npt.NDArray[Any], npt.NDArray[Any], FloatArray]


class LogProduct:
    """The product ``log(A @ exp(x))`` for a non-negative sparse matrix A.

    Parameters
    ----------
    matrix
        ``(m, n)`` CSR without stored zeros.
    """

    def __init__(self, matrix: csr_array) -> None:
        indices, starts = (part.astype(np.int32, copy=False) for part in (matrix.indices, matrix.indptr))
        narrow = csr_array((matrix.data, indices, starts), shape=matrix.shape)
        self.matrix: csr_array = make_read_only(narrow if narrow.has_sorted_indices else narrow.sorted_indices())
        # Whether plain sums of masses within `LOG_RANGE` do not underflow, and are zero by structure only.
        self.is_linear_safe = bool(matrix.nnz) and float(matrix.data.min()) >= _MIN_SHARE
        rows, columns = matrix.shape
        self._is_full = max(rows, columns) <= _DENSE_MAX_STATES and matrix.nnz >= _DENSE_MIN_FILL * rows * columns

    def __call__(self, logs: FloatArray) -> FloatArray:
        """Return the logarithms ``(m,)`` of the sums. Minus infinity exactly for empty ones."""
        # The largest mass is scaled to 1: sums of masses above e**-LOG_RANGE then neither overflow nor underflow.
        top = float(logs.max(initial=-np.inf))
        if top == -np.inf:
            return np.full(self.matrix.shape[0], -np.inf)
        below = logs - top
        if not self.is_linear_safe:
            return self._sum_in_logs(below) + top
        if _exceeds_float_range(below):
            return self._sum_by_levels(below, top)
        sums = _take_logs(self.multiply(exponentiate_logs(below)))
        sums += top
        return sums

    def _sum_by_levels(self, logs: FloatArray, top: float) -> FloatArray:
        """Return the sums of masses that exceed the range of floats.

        Each mass is a float times a power of ``e**LOG_RANGE``. ``logs`` are relative to ``top``, and overwritten.
        """
        # Allocating memory for a million states takes as long as a pass over it, so arrays are reused.
        levels = np.empty_like(logs)
        _split_levels(logs, levels)
        totals = np.empty(self.matrix.shape[0])
        top_logs = np.empty_like(totals)
        _sum_terms_by_levels(self.rows, np.exp(logs, out=logs), levels, totals, top_logs)
        sums = _take_logs(totals)
        sums += top_logs
        sums += top
        return sums

    def _sum_in_logs(self, logs: FloatArray) -> FloatArray:
        """Return the sums for arbitrary entries, each relative to its largest term."""
        # An entry below 2**-100 times a mass of e**-LOG_RANGE may underflow, so each sum is computed in logs here. This
        # costs an exponential for each entry of the matrix instead of one for each state.
        starts, states, _ = self.rows
        sums = np.full(len(starts) - 1, -np.inf)
        filled = np.flatnonzero(np.diff(starts))
        if len(filled):
            sums[filled] = log_sums(logs[states] + self.log_shares, starts[filled])
        return sums

    def multiply(self, values: FloatArray) -> FloatArray:
        """Multiply one column ``(n,)`` or several ``(n, k)`` of plain masses."""
        # One thread: the order of additions, and therefore the last bits of releases, must not depend on their number.
        if self.dense is None or (values.ndim == 1 and self.matrix.nnz < _DENSE_MIN_ENTRIES):
            return np.asarray(self.matrix @ values)
        with limit_to_one_thread():
            return np.asarray(self.dense.T @ values)

    @cached_property
    def dense(self) -> FloatArray | None:
        """The transposed dense matrix ``(n, m)``. `None` if it is too large or too sparse."""
        return make_read_only(np.ascontiguousarray(self.matrix.toarray().T)) if self._is_full else None

    def propagate_support(self, possible: BoolArray) -> BoolArray:
        """Return which sums ``(m,)`` have a positive term, for a mask ``(n,)`` of positive masses."""
        # Counts in single precision may saturate at 2**24, but never become 0.
        return np.asarray(self._pattern @ possible.astype(np.float32) > 0)

    @cached_property
    def _pattern(self) -> csr_array:
        matrix = self.matrix
        ones = np.ones(matrix.nnz, dtype=np.float32)
        return csr_array((ones, matrix.indices, matrix.indptr), shape=matrix.shape)

    @cached_property
    def log_shares(self) -> FloatArray:
        """The logarithms of the matrix's entries, in storage order."""
        return make_read_only(np.log(self.matrix.data))

    @cached_property
    def rows(self) -> SparseRows:
        """The rows of the matrix."""
        return self.matrix.indptr.view(np.uint32), self.matrix.indices.view(np.uint32), self.matrix.data


def _split_levels_loop(logs: FloatArray, levels: FloatArray) -> None:
    """Form of `_split_levels` that numba can compile."""
    for i in range(logs.size):
        level = np.ceil(logs[i] / LOG_RANGE)
        value = level * -LOG_RANGE + logs[i]
        levels[i] = level
        # Above 1e15 the difference is rounding error only. For impossible states it is NaN.
        value = value if value > -LOG_RANGE else -LOG_RANGE
        logs[i] = value if value < 0.0 else 0.0


@compile_if_hot(_split_levels_loop)
def _split_levels(logs: FloatArray, levels: FloatArray) -> None:
    """Write the levels of log masses, and replace these by their differences from their level.

    The level of an impossible state is minus infinity, and its difference is without meaning.
    """
    np.divide(logs, LOG_RANGE, out=levels)
    np.ceil(levels, out=levels)
    with np.errstate(invalid="ignore"):
        logs += levels * -LOG_RANGE
    np.fmax(logs, -LOG_RANGE, out=logs)
    np.fmin(logs, 0.0, out=logs)


def _sum_terms_by_levels_loop(
    lists: SparseRows, values: FloatArray, levels: FloatArray, totals: FloatArray, top_logs: FloatArray
) -> None:
    """Form of `_sum_terms_by_levels` that numba can compile."""
    starts, states, shares = lists
    for row in range(totals.size):
        level = _NO_LEVEL
        lowest = np.inf
        total = 0.0
        for at in range(starts[row], starts[row + 1]):
            i = states[at]
            level = max(level, levels[i])
            lowest = min(lowest, levels[i])
            total += values[i] * shares[at]
        # Nearly all rows have terms of one level, for which a single pass suffices.
        if lowest < level:
            total = 0.0
            for at in range(starts[row], starts[row + 1]):
                i = states[at]
                if levels[i] == level:
                    total += values[i] * shares[at]
                elif levels[i] == level - 1.0 and values[i] >= _NEXT_LEVEL_MIN:
                    total += values[i] * shares[at] * _NEXT_LEVEL
        totals[row] = total
        top_logs[row] = level * LOG_RANGE


@compile_if_hot(_sum_terms_by_levels_loop, lambda lists, *_: 8 * len(lists[1]))
def _sum_terms_by_levels(
    lists: SparseRows, values: FloatArray, levels: FloatArray, totals: FloatArray, top_logs: FloatArray
) -> None:
    """Compute sums of entries times masses, relative to the highest level of each sum.

    Masses are ``values * e**(LOG_RANGE * levels)``. Those of the highest and of the next level are summed, except for
    the smallest of the latter; see `_NEXT_LEVEL_MIN`. Lower ones are smaller than rounding. Both forms add the same
    terms in the same order, so releases are equal to the last bit whether or not the loop is compiled.
    """
    starts, states, shares = lists
    # An empty sum keeps the lowest level and the total 0, of which the logarithm is -inf: impossible.
    tops = np.full(len(totals), _NO_LEVEL)
    filled = np.flatnonzero(np.diff(starts))
    each = levels[states]
    if len(filled):
        tops[filled] = np.maximum(np.maximum.reduceat(each, starts[filled]), _NO_LEVEL)
    each -= np.repeat(tops, np.diff(starts))
    is_next = (each == -1.0) & (values[states] >= _NEXT_LEVEL_MIN)
    counted = (each == 0.0) | is_next
    terms = np.zeros(len(each))
    terms[counted] = values[states[counted]] * shares[counted]
    terms[is_next] *= _NEXT_LEVEL
    placed = csr_array((terms, np.arange(len(terms)), starts.astype(np.int64)), shape=(len(tops), len(terms)))
    totals[:] = np.asarray(placed @ np.ones(len(terms)))  # adds in storage order, as the loop does
    np.multiply(tops, LOG_RANGE, out=top_logs)


def _take_logs(sums: FloatArray) -> FloatArray:
    """Return the logarithms of sums, which are overwritten. Minus infinity for 0."""
    # NumPy's logarithm takes four times as long for 0 as for other numbers.
    is_positive = sums > 0.0
    out = sums if is_positive.all() else np.full(sums.shape, -np.inf)
    return np.log(sums, out=out, where=is_positive)


def _exceeds_float_range(below: FloatArray) -> bool:
    """Return whether a non-zero mass is below ``e**-LOG_RANGE``. The largest is one."""
    # In blocks, because the first one usually shows it if there is any.
    for start in range(0, len(below), _RANGE_BLOCK):
        block = below[start : start + _RANGE_BLOCK]
        if block.min() < -LOG_RANGE and ((block < -LOG_RANGE) & (block > -np.inf)).any():
            return True
    return False


class TransitionOperator(Operator):
    """The operator of one step with a matrix.

    Parameters
    ----------
    matrix
        ``(n, m)``, non-negative, dense or sparse. Row ``i`` contains the moves from state ``i``. Rows need not sum to
        one.
    """

    def __init__(self, matrix: MatrixLike) -> None:
        self.matrix: csr_array = as_csr(matrix) if not isinstance(matrix, csr_array) else matrix
        self.matrix.eliminate_zeros() if self.matrix.data.flags.writeable else None

    @cached_property
    def forward_product(self) -> LogProduct:
        """The product that propagates masses forward."""
        return LogProduct(csr_array(self.matrix.T.tocsr()))

    @cached_property
    def backward_product(self) -> LogProduct:
        """The product that propagates likelihoods backward."""
        return LogProduct(self.matrix)

    @property
    def periods(self) -> Sequence[tuple[Runs, int]]:  # type: ignore[override]  # computed from the matrix
        """The single step."""
        return [([(self, 1)], 1)]

    @cached_property
    def linear_products(self) -> tuple[LogProduct, LogProduct] | None:  # type: ignore[override]  # computed from the matrix
        """The forward and the backward product if plain floats suffice, otherwise `None`."""
        return (self.forward_product, self.backward_product) if self.backward_product.is_linear_safe else None

    def propagate_forward(self, logs: FloatArray) -> FloatArray:
        """Propagate a distribution one step forward."""
        return self.forward_product(logs)

    def propagate_backward(self, logs: FloatArray) -> FloatArray:
        """Propagate likelihoods one step backward."""
        return self.backward_product(logs)


def normalize_logs(logs: FloatArray) -> tuple[FloatArray, float]:
    """Normalise log masses ``(N,)``. Return them and the logarithm of their sum.

    If all masses are zero they are returned unchanged, and the sum is minus infinity.
    """
    total = log_sum(logs)
    return (logs - total if total > -np.inf else logs), total


def log_sum(logs: FloatArray) -> float:
    """Compute ``log sum exp(logs)`` of ``(N,)``. Minus infinity if all are."""
    top = float(logs.max(initial=-np.inf))
    return top if top == -np.inf else top + log(float(exponentiate_logs(logs - top).sum()))


def log_sums(terms: FloatArray, starts: npt.NDArray[Any]) -> FloatArray:
    """Compute `log_sum` of each segment of terms, none of which may be empty."""
    tops = np.maximum.reduceat(terms, starts)
    tops[tops == -np.inf] = 0.0
    with np.errstate(divide="ignore"):
        sums = np.add.reduceat(np.exp(terms - np.repeat(tops, np.diff(starts, append=len(terms)))), starts)
        return np.asarray(np.log(sums) + tops)


def exponentiate_logs(logs: FloatArray) -> FloatArray:
    """Compute ``exp(logs)``, zero below ``e**-700``: NumPy takes much longer for these."""
    # A mask takes as long as the exponentials, so it is used only if needed.
    if logs.min(initial=0.0) >= _MIN_LOG:
        return np.asarray(np.exp(logs))
    return np.exp(logs, out=np.zeros(logs.shape), where=logs >= _MIN_LOG)


def as_linear_masses(logs: FloatArray) -> FloatArray | None:
    """Return the masses relative to the largest. None if they span over `LOG_RANGE`."""
    top = float(logs.max(initial=-np.inf))
    if top == -np.inf:
        return None
    below = logs - top
    return None if _exceeds_float_range(below) else exponentiate_logs(below)
