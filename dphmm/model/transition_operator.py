"""The transition operator: what takes a distribution over states one step forward, or likelihoods one step back.

Distributions are natural logarithms of masses, minus infinity exactly where a state is impossible by structure, so
that no underflow ever rules a possible state out. Sums are taken as plain floats wherever these lose nothing; where a
mass is too small beside others for that, each sum is taken relative to its largest terms.
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

from dphmm.arrays import BoolArray, FloatArray, locked
from dphmm.compilation import often
from dphmm.stochastic import MatrixLike, as_csr
from dphmm.threads import one_thread

NARROW = 600.0
"""Masses within ``e**NARROW`` of the largest go through one step of plain sums without loss."""
_LOWER = exp(-NARROW)
_NO_LEVEL = -1e300
"""The level of sums without a term."""
_LEAST = -700.0
_LIKELY = 2.0**-100
"""Plain sums of masses within `NARROW` are safe, and zero by structure alone, for no share below this."""
_DENSE = 4096, 0.25
"""Up to this many states, with at least this part of the matrix positive, products with a dense array are faster."""

_DENSE_FROM = 100_000
"""Below this many entries a sparse product takes less time than it takes to keep to one thread."""


Runs: TypeAlias = "Sequence[tuple[TransitionOperator, int]]"
"""Steps by one matrix and how many there are of each, in order of time."""


class Operator(ABC):
    """What takes log masses from one time to the next, and log likelihoods back: the base class of all of them."""

    floats: tuple[LogProduct, LogProduct] | None = None
    """The products forward and back where plain floats do for masses within `NARROW`; None where they do not."""

    periods: Sequence[tuple[Runs, int]] = ()
    """The steps by one matrix each that this is made of, where paths are told apart by them: runs of equal steps, and
    how often each list of runs comes in a row."""

    @abstractmethod
    def forward(self, logs: FloatArray) -> FloatArray:
        """Move a distribution one step on.

        Parameters
        ----------
        logs
            ``(n,)``: log masses of the states before.

        Returns
        -------
        FloatArray
            ``(m,)``: ``log sum_i exp(logs[i]) P[i, j]`` for each state j after.
        """

    @abstractmethod
    def backward(self, logs: FloatArray) -> FloatArray:
        """Move likelihoods of the states after back to those before.

        Parameters
        ----------
        logs
            ``(m,)``: log likelihoods given each state after.

        Returns
        -------
        FloatArray
            ``(n,)``: ``log sum_j P[i, j] exp(logs[j])`` for each state i before.
        """


class _Identity(Operator):
    """No step."""

    def forward(self, logs: FloatArray) -> FloatArray:
        return logs

    def backward(self, logs: FloatArray) -> FloatArray:
        return logs


IDENTITY: Operator = _Identity()
"""The operator of no step."""


Lists = tuple[npt.NDArray[Any], npt.NDArray[Any], FloatArray]
"""The rows of a sparse matrix: starts ``(m + 1,)``, then columns and numbers, all in one row.

Columns are unsigned: compiled loops need not ask whether they count from the end.
"""


class LogProduct:
    """``log(A @ exp(x))`` for a sparse matrix A of numbers that are not negative.

    Parameters
    ----------
    matrix
        ``(m, n)`` CSR without stored zeros.
    """

    def __init__(self, matrix: csr_array) -> None:
        indices, starts = (part.astype(np.int32, copy=False) for part in (matrix.indices, matrix.indptr))
        made = csr_array((matrix.data, indices, starts), shape=matrix.shape)
        self.matrix: csr_array = locked(made if made.has_sorted_indices else made.sorted_indices())
        self.is_likely = bool(matrix.nnz) and float(matrix.data.min()) >= _LIKELY
        """Whether plain sums of masses within `NARROW` lose nothing and vanish by structure alone."""
        rows, columns = matrix.shape
        self._is_full = max(rows, columns) <= _DENSE[0] and matrix.nnz >= _DENSE[1] * rows * columns

    def __call__(self, logs: FloatArray) -> FloatArray:
        """The logarithms ``(m,)`` of the sums, of ``logs`` ``(n,)``; minus infinity exactly where nothing is summed."""
        top = float(logs.max(initial=-np.inf))
        if top == -np.inf:
            return np.full(self.matrix.shape[0], -np.inf)
        below = logs - top
        if not self.is_likely:
            return self._of_logs(below) + top
        if _is_faint(below):
            return self._by_levels(below) + top
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.plain(np.exp(below))) + top)

    def _by_levels(self, logs: FloatArray) -> FloatArray:
        """The sums where masses are far apart: each mass is a float times a power of ``e**NARROW``."""
        levels = np.ceil(logs / NARROW)
        with np.errstate(invalid="ignore", divide="ignore"):
            values = levels * -NARROW
            values += logs  # not a number for impossible states, which have no level either
            np.clip(values, -NARROW, 0.0, out=values)  # beyond 1e15 the difference is nothing but rounding
            totals, tops = np.empty((2, self.matrix.shape[0]))
            _sums_by_levels(self.lists, np.exp(values, out=values), levels, totals, tops)
            np.log(totals, out=totals)
        tops *= NARROW
        totals += tops
        return totals

    def _of_logs(self, logs: FloatArray) -> FloatArray:
        """The sums whatever the shares: each relative to its largest term, however small that is."""
        starts, states, _ = self.lists
        found = np.full(len(starts) - 1, -np.inf)
        filled = np.flatnonzero(np.diff(starts))
        if len(filled):
            found[filled] = log_sums(logs[states] + self.log_shares, starts[filled])
        return found

    def plain(self, values: FloatArray) -> FloatArray:
        """Plain sums of one column ``(n,)`` or several ``(n, k)``, the same for any number of threads."""
        if self.dense is None or (values.ndim == 1 and self.matrix.nnz < _DENSE_FROM):
            return np.asarray(self.matrix @ values)
        with one_thread():
            return np.asarray(self.dense.T @ values)

    @cached_property
    def dense(self) -> FloatArray | None:
        """The matrix transposed as a dense array ``(n, m)``, where it is small and full enough; otherwise None."""
        return locked(np.ascontiguousarray(self.matrix.toarray().T)) if self._is_full else None

    def support(self, possible: BoolArray) -> BoolArray:
        """Which sums have a positive term, ``(m,)``, of masses that are positive at some places ``(n,)``."""
        return np.asarray(self._pattern @ possible.astype(np.float32) > 0)

    @cached_property
    def _pattern(self) -> csr_array:
        matrix = self.matrix
        ones = np.ones(matrix.nnz, dtype=np.float32)
        return csr_array((ones, matrix.indices, matrix.indptr), shape=matrix.shape)

    @cached_property
    def log_shares(self) -> FloatArray:
        """The logarithms of the matrix's entries, in the order in which they are stored."""
        return locked(np.log(self.matrix.data))

    @cached_property
    def lists(self) -> Lists:
        """The rows."""
        return self.matrix.indptr.view(np.uint32), self.matrix.indices.view(np.uint32), self.matrix.data


def _sums_by_levels_loop(
    lists: Lists, values: FloatArray, levels: FloatArray, totals: FloatArray, tops: FloatArray
) -> None:
    """`_sums_by_levels`, written so that numba can compile it."""
    starts, states, shares = lists
    for row in range(totals.size):
        level, total = _NO_LEVEL, 0.0
        for at in range(starts[row], starts[row + 1]):
            level = max(level, levels[states[at]])
        for at in range(starts[row], starts[row + 1]):
            i = states[at]
            if levels[i] == level:
                total += values[i] * shares[at]
            elif levels[i] == level - 1.0:
                total += values[i] * shares[at] * _LOWER
        totals[row], tops[row] = total, level


@often(_sums_by_levels_loop, lambda lists, *_: 8 * len(lists[1]))
def _sums_by_levels(lists: Lists, values: FloatArray, levels: FloatArray, totals: FloatArray, tops: FloatArray) -> None:
    """Sums of shares times masses, which are ``values * e**(NARROW * levels)``, relative to the highest level in each.

    Masses of that level count, and of the next: lower ones are less than rounding. Both forms add the same terms in the
    same order, so that releases are the same to the last bit whenever the loop comes to be compiled.
    """
    starts, states, shares = lists
    tops[:] = _NO_LEVEL
    filled = np.flatnonzero(np.diff(starts))
    each = levels[states]
    if len(filled):
        tops[filled] = np.maximum(np.maximum.reduceat(each, starts[filled]), _NO_LEVEL)
    each -= np.repeat(tops, np.diff(starts))
    counted = each >= -1.0
    terms = np.zeros(len(each))
    terms[counted] = values[states[counted]] * shares[counted]
    terms[each == -1.0] *= _LOWER
    placed = csr_array((terms, np.arange(len(terms)), starts.astype(np.int64)), shape=(len(tops), len(terms)))
    totals[:] = np.asarray(placed @ np.ones(len(terms)))  # in their order, as the loop does


def _is_faint(below: FloatArray) -> bool:
    """Whether some positive mass is not within `NARROW` of the largest, which is one."""
    return bool(below.min() < -NARROW) and bool(((below < -NARROW) & (below > -np.inf)).any())


class TransitionOperator(Operator):
    """One step by a matrix.

    Parameters
    ----------
    matrix
        ``(n, m)`` of numbers that are not negative, dense or sparse; row ``i`` holds those from state ``i``. Rows need
        not sum to one.
    """

    def __init__(self, matrix: MatrixLike) -> None:
        self.matrix: csr_array = as_csr(matrix) if not isinstance(matrix, csr_array) else matrix
        self.matrix.eliminate_zeros() if self.matrix.data.flags.writeable else None

    @cached_property
    def ahead(self) -> LogProduct:
        """The product that takes masses forward."""
        return LogProduct(csr_array(self.matrix.T.tocsr()))

    @cached_property
    def back(self) -> LogProduct:
        """The product that takes likelihoods back."""
        return LogProduct(self.matrix)

    @property
    def periods(self) -> Sequence[tuple[Runs, int]]:  # type: ignore[override]
        """This step alone."""
        return [([(self, 1)], 1)]

    @cached_property
    def floats(self) -> tuple[LogProduct, LogProduct] | None:  # type: ignore[override]
        """The products forward and back, where plain floats do."""
        return (self.ahead, self.back) if self.back.is_likely else None

    def forward(self, logs: FloatArray) -> FloatArray:
        """Move a distribution one step on."""
        return self.ahead(logs)

    def backward(self, logs: FloatArray) -> FloatArray:
        """Move likelihoods one step back."""
        return self.back(logs)


def log_normalised(logs: FloatArray) -> tuple[FloatArray, float]:
    """Log masses ``(N,)`` that sum to one, and the logarithm of what they summed to.

    Where all are impossible they stay so, and the sum is minus infinity.
    """
    total = log_sum(logs)
    return (logs - total if total > -np.inf else logs), total


def log_sum(logs: FloatArray) -> float:
    """``log sum exp(logs)`` of ``(N,)``, minus infinity where all are."""
    top = float(logs.max(initial=-np.inf))
    return top if top == -np.inf else top + log(float(plain_masses(logs - top).sum()))


def log_sums(terms: FloatArray, starts: npt.NDArray[Any]) -> FloatArray:
    """`log_sum` of each stretch of terms, from one start to the next ``(m,)``; none is empty."""
    tops = np.maximum.reduceat(terms, starts)
    tops[tops == -np.inf] = 0.0
    with np.errstate(divide="ignore"):
        sums = np.add.reduceat(np.exp(terms - np.repeat(tops, np.diff(starts, append=len(terms)))), starts)
        return np.asarray(np.log(sums) + tops)


def plain_masses(logs: FloatArray) -> FloatArray:
    """``exp(logs)``, zero below ``e**-700``: numpy takes several times as long over numbers that underflow."""
    return np.exp(logs, out=np.zeros_like(logs), where=logs >= _LEAST)


def as_floats_within(logs: FloatArray) -> FloatArray | None:
    """The masses relative to the largest, ``(N,)``, where all positive ones lie within `NARROW`; otherwise None."""
    top = float(logs.max(initial=-np.inf))
    if top == -np.inf:
        return None
    below = logs - top
    return None if _is_faint(below) else np.exp(below)
