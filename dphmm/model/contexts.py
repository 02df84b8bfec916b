"""What a model's chain tells apart beyond states, and how it folds to states."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property

import numpy as np
from scipy.sparse import csr_array

from dphmm.arrays import FloatArray, IntArray


class Contexts(ABC):
    """The states of a model's chain, each in one state of the model: measurements and policies know that state alone.

    Attributes
    ----------
    size
        The number of states ``N``; the first ``N`` contexts are in states 0 to ``N - 1``.
    last
        The state that the person is in, for each context ``(P,)``.
    """

    size: int
    last: IntArray

    def __len__(self) -> int:
        return len(self.last)

    @property
    @abstractmethod
    def content_hash(self) -> str:
        """A hash of what tells the contexts apart."""

    @property
    def present(self) -> IntArray:
        """The state whose places the person is in, ``(P,)``; ``N`` for none of them."""
        return self.last

    @abstractmethod
    def begun(self, values: FloatArray) -> FloatArray:
        """A distribution of first states ``(N,)``, over contexts ``(P,)``.

        Parameters
        ----------
        values
            ``(N,)``: a distribution of states.

        Returns
        -------
        FloatArray
            ``(P,)``: a distribution of contexts.
        """

    @abstractmethod
    def check(self, matrix: csr_array) -> None:
        """Refuse a transition matrix ``(P, P)`` that leads from a context to one which does not follow it.

        Parameters
        ----------
        matrix
            ``(P, P)``: the transition matrix.

        Raises
        ------
        StochasticError
            Naming the row.
        """

    def spread(self, values: FloatArray) -> FloatArray:
        """What is known of states ``(…, N)``, for each context ``(…, P)``.

        Parameters
        ----------
        values
            ``(…, N)``: a number for each state.

        Returns
        -------
        FloatArray
            ``(…, P)``: a number for each context.
        """
        return values[..., self.last]

    def summed(self, logs: FloatArray) -> FloatArray:
        """Log masses of contexts ``(P,)``, summed over those of each state ``(N,)``.

        Parameters
        ----------
        logs
            ``(P,)``: log masses of contexts.

        Returns
        -------
        FloatArray
            ``(N,)``: log masses of states.
        """
        order, starts = self._order
        terms = logs[order]
        tops = np.maximum.reduceat(terms, starts)
        terms = terms - np.repeat(np.where(tops > -np.inf, tops, 0.0), np.diff(starts, append=len(order)))
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(np.add.reduceat(np.exp(terms), starts)) + np.where(tops > -np.inf, tops, 0.0))

    def moves(self, structure: csr_array) -> csr_array:
        """Which moves between states some moves between contexts make, as a boolean matrix ``(N, N)``.

        Parameters
        ----------
        structure
            ``(P, P)``: the moves between contexts.

        Returns
        -------
        csr_array
            ``(N, N)``, boolean.
        """
        rows = np.repeat(np.arange(len(self)), np.diff(structure.indptr))
        from_, to = self.last[rows], self.last[structure.indices]
        found = csr_array((np.ones(len(from_), dtype=np.int64), (from_, to)), shape=(self.size, self.size))
        return found.astype(np.bool_)

    @cached_property
    def _order(self) -> tuple[IntArray, IntArray]:
        """The contexts by their states, and where each state's begin."""
        order = np.argsort(self.last, kind="stable")
        return order, np.searchsorted(self.last[order], np.arange(self.size))
