"""Counts at several levels of areas that must agree: the best estimates from noisy ones, and how far off they are.

Leaves are the cells of a table; each is part of one node of the next level, and so on. What was measured at every level
with independent noise is put together by weighted least squares, which for a forest takes one walk up and one walk
down (Hay, Rastogi, Miklau and Suciu, VLDB 2010, here with noise and branching of any size). With the constraint that no
leaf is negative it is a convex program whose value, as a function of a node's total, is piecewise quadratic: its
inverse slopes add up along the branches, so that it is solved exactly by walks too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from dphmm.arrays import FloatArray, IntArray
from dphmm.errors import CountError

_NEWTON = 100
_BALANCED_WITHIN = 1e-6


class Forest:
    """Levels of nodes, each the sum of some of the level before.

    Parameters
    ----------
    leaves
        How many leaves there are.
    parents
        Of each level but the topmost ``(n_l,)``: the node of the next level that each belongs to, numbered from 0
        without gaps.
    """

    def __init__(self, leaves: int, parents: Sequence[IntArray] = ()) -> None:
        self.parents = tuple(parents)
        self.sizes = (leaves, *(int(one.max()) + 1 for one in parents))

    def totals(self, leaves: FloatArray | IntArray) -> list[FloatArray]:
        """The sums at every level, the leaves first."""
        found = [np.asarray(leaves, dtype=np.float64)]
        for parent, size in zip(self.parents, self.sizes[1:], strict=True):
            found.append(_sums(parent, found[-1], size))
        return found

    def estimate(self, measured: Sequence[FloatArray], variances: Sequence[float]) -> list[FloatArray]:
        """The weighted least squares of what was measured; of all linear estimates without bias the best.

        Parameters
        ----------
        measured
            Of every level ``(n_l,)``.
        variances
            Of the noise at every level; infinity where nothing was measured.

        Returns
        -------
        list of FloatArray
            Of every level; each node is the sum of its own.
        """
        own, _, parts = self._up(variances)
        up, summed = [np.asarray(measured[0], dtype=np.float64)], [np.zeros(0)]
        for level, parent in enumerate(self.parents, start=1):
            summed.append(_sums(parent, up[-1], self.sizes[level]))
            weight = own[level] / variances[level]
            known = np.where(weight > 0, measured[level], 0.0)
            up.append((1.0 - weight) * summed[level] + weight * known)
        found = [up[-1]]
        for level in reversed(range(len(self.parents))):
            missing = (found[0] - summed[level + 1])[self.parents[level]]
            found.insert(0, up[level] + parts[level] * missing)
        return found

    def variances(self, variances: Sequence[float]) -> list[FloatArray]:
        """The variances of what `estimate` gives, of every level ``(n_l,)``."""
        own, _, parts = self._up(variances)
        found = [own[-1]]
        for level in reversed(range(len(self.parents))):
            above = found[0][self.parents[level]]
            found.insert(0, own[level] * (1.0 - parts[level]) + parts[level] ** 2 * above)
        return found

    def variance_of(self, weights: csr_array, variances: Sequence[float]) -> FloatArray:
        """The variances of weighted sums of the leaves that `estimate` gives.

        A leaf is its part of its parent plus what the parent says nothing of, which is independent of all others'.

        Parameters
        ----------
        weights
            ``(k, n)``: a sum a row.
        variances
            As `estimate` takes them.

        Returns
        -------
        FloatArray
            ``(k,)``.
        """
        own, sums, _ = self._up(variances)
        found, rows = np.zeros(weights.shape[0]), csr_array(weights)
        for level, parent in enumerate(self.parents):
            size = self.sizes[level], self.sizes[level + 1]
            climb = csr_array((own[level], (np.arange(size[0]), parent)), shape=size)
            above = rows @ climb
            share = 1.0 / sums[level + 1]
            found += rows.multiply(rows) @ own[level] - above.multiply(above) @ share
            rows = csr_array(above.multiply(share[None, :]))
        return np.asarray(found + rows.multiply(rows) @ own[-1])

    def _up(self, variances: Sequence[float]) -> tuple[list[FloatArray], list[FloatArray], list[FloatArray]]:
        """Variances of estimates from below, of sums of these at each level, and each node's part of its parent's."""
        own, sums, parts = [np.full(self.sizes[0], float(variances[0]))], [np.zeros(0)], list[FloatArray]()
        for level, parent in enumerate(self.parents, start=1):
            sums.append(_sums(parent, own[-1], self.sizes[level]))
            parts.append(own[-1] / sums[level][parent])
            own.append(1.0 / (1.0 / sums[level] + 1.0 / variances[level]))
        return own, sums, parts

    def nonnegative(self, measured: Sequence[FloatArray], variances: Sequence[float | FloatArray]) -> FloatArray:
        """The weighted least squares in which no leaf is negative, exactly.

        Clipping at zero has a bias: small counts come out too large on average, so keep what `estimate` gives too.

        Parameters
        ----------
        measured, variances
            As `estimate` takes them; something was measured of every leaf, and each leaf may have a variance of its
            own, ``(n,)``.

        Returns
        -------
        FloatArray
            ``(n,)``: the leaves.
        """
        return _NonNegative(self, measured, variances).solve()

    def balanced(
        self, measured: Sequence[FloatArray], variances: Sequence[float | FloatArray], out: IntArray, into: IntArray
    ) -> FloatArray:
        """The same in which as much leaves each place as gets there.

        A multiplier for each place makes of it a program without that constraint; the best multipliers are where a
        concave function has its greatest value.

        Parameters
        ----------
        measured, variances
            As `nonnegative` takes them.
        out, into
            ``(n,)``: the place that what a leaf counts leaves, and the one that it gets to.

        Returns
        -------
        FloatArray
            ``(n,)``: the leaves.

        Raises
        ------
        CountError
            When no multipliers are found.
        """
        from scipy.optimize import minimize

        places = int(max(out.max(), into.max())) + 1
        scale = max(float(np.sqrt(np.max(variances[0]))), 1e-9)

        def dual(prices: Any) -> Any:
            tolls = (prices[out] - prices[into]) / scale
            leaves = _NonNegative(self, measured, variances, tolls).solve()
            off = np.bincount(out, leaves, places) - np.bincount(into, leaves, places)
            cost = sum(
                float(((made - known) ** 2 / (2 * variance)).sum())
                for made, known, variance in zip(self.totals(leaves), measured, variances, strict=True)
                if np.all(np.isfinite(variance))
            )
            return -(cost + float(tolls @ leaves)), -off / scale

        options: Any = {"maxiter": 5000, "maxfun": 10000, "ftol": 0.0, "gtol": _BALANCED_WITHIN, "maxcor": 30}
        found = minimize(dual, np.zeros(places), jac=True, method="L-BFGS-B", options=options)
        tolls = (found.x[out] - found.x[into]) / scale
        leaves = _NonNegative(self, measured, variances, tolls).solve()
        off = np.abs(np.bincount(out, leaves, places) - np.bincount(into, leaves, places)).max()
        if off > 1e-3 * max(1.0, float(leaves.sum()) / places):
            raise CountError(f"in and out differ by {off:.3g} at a place after {found.nit} steps; leave --balanced out")
        return leaves

    def rounded(self, leaves: FloatArray) -> IntArray:
        """Whole numbers, each leaf and each node of every level rounded up or down, from the top: remainders go to
        those that are rounded off the most.
        """
        totals = self.totals(leaves)
        found = np.rint(totals[-1])
        for level in reversed(range(len(self.parents))):
            parent, size = self.parents[level], self.sizes[level + 1]
            low = np.floor(totals[level] + 1e-9)
            missing = np.rint(found - np.bincount(parent, low, size)).astype(np.int64)
            order = np.lexsort((low - totals[level], parent))
            rank = np.empty(len(parent), dtype=np.int64)
            starts = np.cumsum(np.bincount(parent, minlength=size)) - np.bincount(parent, minlength=size)
            rank[order] = np.arange(len(parent)) - starts[parent[order]]
            found = low + (rank < missing[parent])
        return np.maximum(found, 0).astype(np.int64)


def _sums(parent: IntArray, values: FloatArray, size: int) -> FloatArray:
    return np.asarray(np.bincount(parent, values, size), dtype=np.float64)


def rounded_balanced(leaves: FloatArray, out: IntArray, into: IntArray) -> IntArray:
    """Whole numbers, each leaf rounded up or down, of which as many leave each place as get there.

    What is rounded up is a flow in a network; the corners of such a program are whole numbers.

    Raises
    ------
    CountError
        When the solver finds none.
    """
    from scipy.optimize import linprog

    low = np.floor(leaves + 1e-6)
    open_ones = np.flatnonzero(leaves - low > 1e-6)
    places = int(max(out.max(), into.max())) + 1
    due = np.bincount(into, low, places) - np.bincount(out, low, places)
    if not len(open_ones):
        return low.astype(np.int64)
    columns = np.arange(len(open_ones))
    ends = np.concatenate([out[open_ones], into[open_ones]])
    signs = np.repeat([1.0, -1.0], len(open_ones))
    matrix: Any = csr_array((signs, (ends, np.tile(columns, 2))), shape=(places, len(open_ones)))
    cost = 1.0 - 2.0 * (leaves - low)[open_ones]
    found = linprog(cost, A_eq=matrix, b_eq=due, bounds=(0, 1), method="highs-ds")
    if found.status != 0:
        raise CountError("no whole numbers with as many in as out were found; leave --balanced out")
    made = low.copy()
    made[open_ones] += np.rint(np.asarray(found.x))
    return made.astype(np.int64)


class _NonNegative:
    """The program of `Forest.nonnegative`, with tolls ``(n,)`` on what leaves count."""

    def __init__(
        self,
        forest: Forest,
        measured: Sequence[FloatArray],
        variances: Sequence[float | FloatArray],
        tolls: FloatArray | None = None,
    ) -> None:
        self.forest, self.gives = forest, np.broadcast_to(variances[0], forest.sizes[:1])
        self.weights = [0.0, *(1.0 / float(one) for one in variances[1:])]
        self.measured = [np.where(np.isfinite(v), one, 0.0) for one, v in zip(measured, variances, strict=True)]
        if tolls is not None:
            self.measured[0] = self.measured[0] - tolls * self.gives

    def solve(self) -> FloatArray:
        levels = len(self.forest.parents)
        price = np.zeros(self.forest.sizes[-1])
        for level in reversed(range(1, levels + 1)):
            price = self._inner(level, price)[0][self.forest.parents[level - 1]]
        return np.asarray(np.maximum(0.0, self.measured[0] + price * self.gives))

    def _inner(self, level: int, price: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """For nodes of which one more is worth a price: what one more of their own is worth, their total, its slope."""
        return self._lowest(price) if level == 1 else self._newton(level, price)

    def _newton(self, level: int, price: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        # The equation is convex and rises by one at least: from any start the steps come down to its root.
        parent, size = self.forest.parents[level - 1], self.forest.sizes[level]
        weight, goal, inner = self.weights[level], self.measured[level], price.copy()
        for _ in range(_NEWTON):
            _, totals, slopes = self._inner(level - 1, inner[parent])
            total, slope = _sums(parent, totals, size), _sums(parent, slopes, size)
            step = (weight * (total - goal) + inner - price) / (weight * slope + 1.0)
            inner = inner - step
            if np.all(np.abs(step) <= 1e-12 * (1.0 + np.abs(inner))):
                break
        return inner, total, slope / (1.0 + weight * slope)

    @cached_property
    def _sorted(self) -> tuple[IntArray, IntArray, FloatArray, FloatArray, FloatArray]:
        """Where each node's leaves begin and how many there are, in the order in which a rising price reaches them.

        Then, over all leaves in that order, sums of what was measured and of the variances of the leaves before each;
        and what one more of a node is worth when the price reaches a leaf.
        """
        parent, size, leaves = self.forest.parents[0], self.forest.sizes[1], self.measured[0]
        begins = -leaves / self.gives
        order = np.lexsort((begins, parent))
        count = np.bincount(parent, minlength=size)
        start = np.cumsum(count) - count
        known, given = (np.concatenate([[0.0], np.cumsum(one[order])]) for one in (leaves, self.gives))
        node = parent[order]
        before, slope = known[:-1] - known[start][node], given[:-1] - given[start][node]
        worth = self.weights[1] * (before + slope * begins[order] - self.measured[1][node]) + begins[order]
        return start, count, known, given, worth

    def _lowest(self, price: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        start, count, known, given, worth = self._sorted
        low, high = start.copy(), start + count
        while True:  # a search by halves in every node at once
            open_ones = low < high
            if not open_ones.any():
                break
            middle = np.where(open_ones, (low + high) // 2, 0)
            less = worth[middle] < price
            low, high = np.where(open_ones & less, middle + 1, low), np.where(open_ones & ~less, middle, high)
        total, slope = known[low] - known[start], given[low] - given[start]
        above = self.weights[1]
        inner = (price + above * (self.measured[1] - total)) / (1.0 + above * slope)
        return inner, total + slope * inner, slope / (1.0 + above * slope)
