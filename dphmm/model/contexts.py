"""What a model's chain tells apart beyond states, and how it folds to states; pairs of states, of the second order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, IntArray, as_integers, content_hash, locked
from dphmm.errors import StateError, StochasticError
from dphmm.model.transition_operator import log_sums


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

    def check(self, matrix: csr_array) -> None:  # noqa: B027 - by itself, every context may follow every other
        """Refuse a transition matrix ``(P, P)`` that leads from a context to one which does not follow it, if any.

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
        return log_sums(logs[order], starts)

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


@checked
class StatePairs(Contexts):
    """The states of a second-order chain: pairs of states, and for every state one context for all other ways into it.

    Context ``i < N`` is 'in state i, come from anywhere that has no context of its own, or from an unknown state';
    context ``N + m`` is 'in state b, come from a' for the m-th pair ``(a, b)``. With every pair kept the chain of the
    contexts is the second-order chain itself; with some it is one of variable order, which is first-order where little
    is known.

    Parameters
    ----------
    size
        The number of states ``N``.
    pairs
        ``(m, 2)``: the pairs that have a context of their own, ascending, each once.

    Raises
    ------
    StateError
        When a pair names a state that does not exist, or the pairs are not ascending.
    """

    def __init__(self, size: int, pairs: npt.ArrayLike) -> None:
        given = as_integers(pairs, "the pairs of states", StateError)
        if size < 1 or (given.size and (given.ndim != 2 or given.shape[1] != 2)):
            raise StateError(f"pairs of states have shape {given.shape} for {size} states; give (m, 2) of them")
        found = given.reshape(-1, 2)
        if found.size and (found.min() < 0 or found.max() >= size):
            raise StateError(f"a pair names a state that does not exist; states are 0 to {size - 1}")
        self._keys: IntArray = found[:, 0] * size + found[:, 1]
        if (np.diff(self._keys) <= 0).any():
            raise StateError("pairs of states are not ascending, each once; sort them")
        self.size = int(size)
        """The number of states ``N``."""
        self.pairs: IntArray = locked(found.copy())
        self.last: IntArray = locked(np.concatenate([np.arange(size), found[:, 1]]))
        """The state that the person is in, for each context ``(P,)``."""

    @property
    def content_hash(self) -> str:
        """A hash of the pairs."""
        return content_hash(self.size, self.pairs)

    def entered(self, origins: IntArray, states: IntArray) -> IntArray:
        """The context of each of some states, ``(k,)``, entered from an origin; -1 where it is unknown.

        Parameters
        ----------
        origins
            ``(k,)``: the states before; -1 where unknown.
        states
            ``(k,)``: the states that are entered.

        Returns
        -------
        IntArray
            ``(k,)``: contexts.
        """
        keys = origins * self.size + states
        at = np.minimum(np.searchsorted(self._keys, keys), max(len(self._keys) - 1, 0))
        known = (self._keys[at] == keys) & (origins >= 0) if len(self._keys) else np.zeros(len(keys), dtype=np.bool_)
        return np.where(known, self.size + at, states)

    def followed(self, sequence: IntArray) -> IntArray:
        """The contexts of a sequence of states one step apart, whose first comes from an unknown one.

        Parameters
        ----------
        sequence
            ``(t,)``: states one step apart.

        Returns
        -------
        IntArray
            ``(t,)``: contexts.
        """
        return self.entered(np.concatenate([[-1], sequence[:-1]]), sequence)

    def chain(self, rows: csr_array) -> csr_array:
        """The transition matrix ``(P, P)`` over contexts, of the probabilities ``(P, N)`` of the next state in each.

        Parameters
        ----------
        rows
            ``(P, N)``: the probabilities of the next state in each context.

        Returns
        -------
        csr_array
            ``(P, P)``.
        """
        at = np.repeat(np.arange(len(self)), np.diff(rows.indptr))
        targets = self.entered(self.last[at], rows.indices.astype(np.int64))
        return csr_array((rows.data, targets, rows.indptr), shape=(len(self),) * 2)

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
        rows = np.repeat(np.arange(len(self)), np.diff(matrix.indptr))
        wrong = self.entered(self.last[rows], self.last[matrix.indices]) != matrix.indices
        if wrong.any():
            raise StochasticError(
                f"transition matrix: row {int(rows[wrong.argmax()])} leads to a context that does not follow it; make "
                "the model anew"
            )

    def begun(self, values: FloatArray) -> FloatArray:
        """A distribution of first states ``(N,)``, over contexts ``(P,)``, where the state before is unknown.

        Parameters
        ----------
        values
            ``(N,)``: a distribution of states.

        Returns
        -------
        FloatArray
            ``(P,)``: a distribution of contexts.
        """
        return np.concatenate([values, np.zeros(len(self) - self.size)])
