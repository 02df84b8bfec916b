"""The Markov chain that an event is about: one transition matrix, or one for each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from dphmm.arrays import FloatArray, IntArray, as_distribution
from dphmm.errors import EventError, StochasticError
from dphmm.events.automaton import Automaton
from dphmm.events.wide import Product, Wide, width_for
from dphmm.stochastic import SMALLEST_PROBABILITY, MatrixLike, as_stochastic

_DENSE = 0.3
"""Matrices with a larger share of positive entries are multiplied as dense ones."""

_MANY = 8
"""So many rows and more are multiplied with a dense matrix at once."""


@dataclass(frozen=True, eq=False)
class Varying:
    """Transition matrices of which a public function of the time says which one holds, over states or over more.

    Parameters
    ----------
    matrices
        The matrices, ``(P, P)`` each.
    which
        A time, from 0 → the number of the matrix that leads from it to the next.
    states
        ``(P,)``: the state that each of the chain's own states is in, where it tells more apart than the ``N`` states
        that events and releases are about; the first ``N`` of them are what a first distribution is about. Left out,
        they are the states.
    """

    matrices: tuple[Any, ...] = field(repr=False)
    which: Callable[[int], int]
    states: IntArray | None = field(default=None, repr=False)


Transition = MatrixLike | Sequence[MatrixLike] | Varying
"""A transition matrix ``(N, N)``, dense or sparse; one for each step, the first from time 0 to time 1; or `Varying`."""


class Chain:
    """Where a path begins and how it goes on.

    Parameters
    ----------
    transition
        One matrix or one for each step.
    initial
        ``(N,)``: the distribution of the state at time 0.

    Raises
    ------
    StochasticError
        When a matrix or the distribution is none, sizes differ, or a positive probability of a transition is below
        1e-200.
    """

    def __init__(self, transition: Transition, initial: npt.ArrayLike) -> None:
        varying = transition if isinstance(transition, Varying) else None
        matrices = list(varying.matrices) if varying is not None else _several(transition)
        self.is_homogeneous = matrices is None or (varying is not None and len(matrices) == 1)
        """Whether one matrix serves all steps."""
        given = [transition] if matrices is None else matrices
        self._which = None if varying is None else varying.which
        self._states = None if varying is None else varying.states
        self._steps = [_Step(one, i if matrices is not None else None) for i, one in enumerate(given)]
        self.size = self._steps[0].size if self._steps else len(np.asarray(initial))
        """The number of states of the chain, ``P``."""
        self.state_count = self.size if self._states is None else int(self._states.max()) + 1
        """The number of states ``N`` that events and releases are about."""
        self.width = width_for(min((step.smallest for step in self._steps), default=1.0))
        """The width of the layers that masses are held in."""
        self.initial = self.begin(initial)
        """The distribution at time 0, ``(1, P)``."""
        for step in self._steps:
            if step.size != self.size:
                raise EventError(f"transition matrices of {self.size} and {step.size} states are given; give one size")

    def begin(self, initial: npt.ArrayLike, name: str = "initial distribution") -> Wide:
        """A distribution of the state at time 0, ``(N,)``, as ``(1, P)``."""
        first = as_distribution(initial, self.state_count, name)
        return Wide.of(np.pad(first, (0, self.size - self.state_count))[np.newaxis], self.width)

    def lifted(self, automaton: Automaton) -> Automaton:
        """An event compiled over states as one over the chain's own."""
        return automaton if self._states is None else automaton.over(self._states)

    def spread(self, rows: FloatArray) -> FloatArray:
        """What is known of states, ``(…, N)``, for each state of the chain, ``(…, P)``."""
        return rows if self._states is None else rows[..., self._states]

    def gathered(self, logs: FloatArray) -> FloatArray:
        """Logarithms of masses of the chain's states, ``(P,)``, summed up for each state, ``(N,)``."""
        if self._states is None:
            return logs
        found = np.full(self.state_count, -np.inf)
        np.logaddexp.at(found, self._states, logs)
        return found

    def ahead(self, masses: Wide, time: int) -> Wide:
        """Masses ``(k, P)`` of a time, moved to the next."""
        step = self._step(time)
        return masses.through(step.forward, step.smallest)

    def behind(self, values: Wide, time: int) -> Wide:
        """Expectations at a time of values ``(k, P)`` of the next."""
        step = self._step(time)
        return values.through(step.backward, step.smallest)

    def _step(self, time: int) -> _Step:
        if self.is_homogeneous:
            return self._steps[0]
        if self._which is not None:
            return self._steps[self._which(time)]
        if time >= len(self._steps):
            raise EventError(
                f"there are {len(self._steps)} transition matrices, and the event or a release is after step "
                f"{time + 1}; give one for each step, or one for all"
            )
        return self._steps[time]


class _Step:
    """A transition matrix with its products from both sides."""

    def __init__(self, matrix: Any, number: int | None) -> None:
        name = "transition matrix" if number is None else f"transition matrix {number}"
        checked = as_stochastic(matrix, name, compressed=True, smallest=SMALLEST_PROBABILITY)
        self.size = int(checked.shape[0])
        self.smallest = float(checked.data.min())
        if checked.nnz > _DENSE * self.size**2:
            dense = checked.toarray()
            columns = np.ascontiguousarray(dense.T)
            self.forward: Product = partial(_dense_product, columns)
            self.backward: Product = partial(_dense_product, dense)
        else:
            self.forward, self.backward = _SparseProduct(checked.T.tocsr()), _SparseProduct(checked)


def _dense_product(matrix: FloatArray, rows: FloatArray) -> FloatArray:
    if len(rows) >= _MANY:
        return np.asarray(rows @ matrix.T)
    found = np.empty_like(rows)
    for row, into in zip(rows, found, strict=True):
        np.matmul(matrix, row, out=into)
    return found


class _SparseProduct:
    """The product of a sparse matrix with every row of an array.

    Two rows at a time go through a matrix with the blocks ``M, M``: for a few hundred states what a call costs is more
    than the product itself.
    """

    def __init__(self, matrix: Any) -> None:
        self._one = matrix

    @cached_property
    def _two(self) -> Any:
        one, size = self._one, self._one.shape[0]
        data, indices = np.tile(one.data, 2), np.concatenate([one.indices, one.indices + size])
        return sparse.csr_array((data, indices, np.append(one.indptr, one.indptr[1:] + one.nnz)), shape=(2 * size,) * 2)

    def __call__(self, rows: FloatArray) -> FloatArray:
        found = np.empty_like(rows)
        for at in range(0, len(rows) - 1, 2):
            found[at : at + 2] = (self._two @ rows[at : at + 2].ravel()).reshape(2, -1)
        if len(rows) % 2:
            found[-1] = self._one @ rows[-1]
        return found


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
