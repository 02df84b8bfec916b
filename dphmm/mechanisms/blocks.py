"""What is to be solved for every output of a best table by itself: conditions, and the normal equations of a step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from dphmm.arrays import FloatArray, IntArray
from dphmm.mechanisms.joined import cliques_of

_RIDGE = 1e-15
"""What is added to a matrix whose diagonal is one."""
_AT_ONCE = 1 << 22
"""Entries of matrices that are laid out at once."""


@dataclass(frozen=True)
class Conditions:
    """``entry[greater] <= factor * entry[smaller]``, for the unknowns of every output alike.

    Parameters
    ----------
    size, unknowns
        The number of states ``n`` and of unknowns ``u``. Unknown ``s < n`` is the entry for state ``s``; the least
        entries of cliques follow.
    greater, smaller, factors
        ``(c,)``. Of a clique of ``m`` states those from above come first, then those from below.
    ratio
        The factor of an edge; above 1.
    is_clique
        Whether the graph is one clique.
    """

    size: int
    unknowns: int
    greater: IntArray
    smaller: IntArray
    factors: FloatArray
    ratio: float
    is_clique: bool

    @classmethod
    def of(cls, size: int, edges: IntArray, ratio: float) -> Conditions:
        """Those of a graph's edges ``(m, 2)``."""
        cliques, rest = cliques_of(size, edges)
        greater, smaller, factors = [rest[:, 0], rest[:, 1]], [rest[:, 1], rest[:, 0]], [np.full(2 * len(rest), ratio)]
        for number, members in enumerate(cliques):
            members, least = np.sort(members), np.full(len(members), size + number)
            greater += [members, least]
            smaller += [least, members]
            factors += [np.full(len(members), ratio), np.ones(len(members))]
        parts = np.concatenate(greater), np.concatenate(smaller), np.concatenate(factors)
        return cls(size, size + len(cliques), *parts, ratio, bool(cliques) and len(cliques[0]) == size)

    def even(self, outputs: int) -> FloatArray:
        """``(u, outputs)``: the even table, which leaves every condition room."""
        found = np.full((self.unknowns, outputs), 1.0 / outputs)
        found[self.size :] /= np.sqrt(self.ratio)
        return found

    def room(self, entries: FloatArray) -> FloatArray:
        """``(c, outputs)``: what entries ``(u, outputs)`` leave of each condition."""
        return self.factors[:, None] * entries[self.smaller] - entries[self.greater]

    def pulled(self, multipliers: FloatArray) -> FloatArray:
        """The transpose of `room`: ``(u, outputs)`` of multipliers ``(c, outputs)``."""
        return np.asarray(self._transposed @ multipliers)

    def bound(self, costs: FloatArray, multipliers: FloatArray) -> float:
        """What no table's costs ``(n, outputs)`` sum to less than, as any multipliers ``(c, outputs)`` >= 0 prove.

        With these, ``sum c k >= sum (c - A' l) k >= sum_s min_z (c - A' l)``, as least entries cost nothing and, once
        the multipliers from below outweigh those from above, only add to it.
        """
        held = multipliers
        if self.unknowns > self.size:
            held = held.copy()
            for least in range(self.size, self.unknowns):
                above, below = self.smaller == least, self.greater == least
                held[above] *= np.minimum(1.0, held[below].sum(axis=0) / (self.ratio * held[above].sum(axis=0)))
        return float((costs - self.pulled(held)[: self.size]).min(axis=1).sum())

    @cached_property
    def _transposed(self) -> Any:
        from scipy.sparse import csr_array

        numbers = np.arange(len(self.greater))
        entries = np.concatenate([self.factors, np.full(len(numbers), -1.0)])
        where = np.concatenate([self.smaller, self.greater]), np.tile(numbers, 2)
        return csr_array((entries, where), shape=(self.unknowns, len(numbers)))

    @cached_property
    def products(self) -> Any:
        """``(u u, c)``: the product of each condition's row with itself, laid out in one column."""
        from scipy.sparse import csr_array

        numbers, above, below = np.arange(len(self.greater)), self.smaller, self.greater
        cells = [one * self.unknowns + other for one in (above, below) for other in (above, below)]
        entries = [self.factors**2, -self.factors, -self.factors, np.ones(len(numbers))]
        where = np.concatenate(cells), np.tile(numbers, 4)
        return csr_array((np.concatenate(entries), where), shape=(self.unknowns**2, len(numbers)))


class Blocks(Protocol):
    """``A' D A`` of every output, with its weights ``D > 0`` of conditions ``A``, ready to be solved."""

    def solve(self, wanted: FloatArray) -> FloatArray:
        """The solutions ``(u, outputs)`` for right sides of the same shape."""

    def coupling(self) -> FloatArray:
        """``(n, n)``: the sum of the inverses, of which the states' part."""


class Graph:
    """Blocks of any graph, by their inverses: ``u^3`` operations and ``u^2`` doubles for each output.

    Parameters
    ----------
    conditions, weights
        ``A``, and ``D`` as ``(c, outputs)``.
    """

    def __init__(self, conditions: Conditions, weights: FloatArray) -> None:
        from scipy.linalg.lapack import dpotrf, dpotri

        size, self._states = conditions.unknowns, conditions.size
        self._conditions, self._weights = conditions, weights
        self._inverses = np.empty((weights.shape[1], size, size))
        several = max(1, _AT_ONCE // size**2)
        for start in range(0, weights.shape[1], several):
            laid_out = conditions.products @ weights[:, start : start + several]
            for number, block in enumerate(np.ascontiguousarray(laid_out.T).reshape(-1, size, size), start):
                scale = 1.0 / np.sqrt(block.diagonal())
                block *= scale[:, None]
                block *= scale
                block[np.diag_indices(size)] += _RIDGE
                inverse = dpotri(dpotrf(block.T, lower=1, overwrite_a=1)[0], lower=1, overwrite_c=1)[0].T
                inverse *= scale[:, None]
                inverse *= scale
                self._inverses[number] = np.triu(inverse) + np.triu(inverse, 1).T

    def solve(self, wanted: FloatArray) -> FloatArray:
        """As `Blocks`."""
        return np.asarray((self._inverses @ wanted.T[:, :, None])[:, :, 0].T)

    def coupling(self) -> FloatArray:
        """As `Blocks`."""
        return np.asarray(self._inverses[:, : self._states, : self._states].sum(axis=0))


class Clique:
    """Blocks of one clique: a diagonal, bordered by the least entry; ``n`` operations for each output.

    Parameters
    ----------
    conditions, weights
        As for `Graph`.
    """

    def __init__(self, conditions: Conditions, weights: FloatArray) -> None:
        above, below = np.split(weights, 2)
        ratio = conditions.ratio
        self._diagonal = above + below
        self._border = (ratio * above + below) / self._diagonal
        self._corner = ((ratio - 1.0) ** 2 * above * (below / self._diagonal)).sum(axis=0)

    def solve(self, wanted: FloatArray) -> FloatArray:
        """As `Blocks`."""
        least = (wanted[-1] + (self._border * wanted[:-1]).sum(axis=0)) / self._corner
        return np.concatenate([wanted[:-1] / self._diagonal + self._border * least, least[None]])

    def coupling(self) -> FloatArray:
        """As `Blocks`."""
        found = (self._border / self._corner) @ self._border.T
        found[np.diag_indices(len(found))] += (1.0 / self._diagonal).sum(axis=1)
        return np.asarray(found)
