"""Consistent estimates of counts at several levels of areas, and their variances.

Leaves are the cells of a table. Each belongs to one node of the next level, and so on. Measurements at every level with
independent noise are combined by weighted least squares, which takes one upward and one downward pass over the forest
(Hay, Rastogi, Miklau and Suciu, VLDB 2010, here with any noise and branching). With non-negative leaves it is a convex
program. Its value is piecewise quadratic in a node's total, and inverse slopes add up along the branches. Therefore
passes over the forest solve it exactly, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from dphmm.arrays import FloatArray, IntArray
from dphmm.errors import CountError

_MAX_NEWTON_STEPS = 100
_BALANCE_TOLERANCE = 1e-6


class Forest:
    """Levels of nodes, each the sum of its children on the previous level.

    Parameters
    ----------
    leaves
        Number of leaves.
    parents
        For each level below the top ``(n_l,)``: the parent of each node on the next level, numbered from 0 without
        gaps.
    """

    def __init__(self, leaves: int, parents: Sequence[IntArray] = ()) -> None:
        self.parents = tuple(parents)
        self.sizes = (leaves, *(int(parent.max()) + 1 for parent in parents))

    def sum_levels(self, leaves: FloatArray | IntArray) -> list[FloatArray]:
        """Return the sums at every level, leaves first."""
        totals = [np.asarray(leaves, dtype=np.float64)]
        for parent, size in zip(self.parents, self.sizes[1:], strict=True):
            totals.append(_sum_children(parent, totals[-1], size))
        return totals

    def estimate(self, measured: Sequence[FloatArray], variances: Sequence[float]) -> list[FloatArray]:
        """Return the weighted least-squares estimates, the best linear unbiased ones.

        Parameters
        ----------
        measured
            Measurements of every level ``(n_l,)``.
        variances
            Variances of the noise at every level; infinity without measurements.

        Returns
        -------
        list of FloatArray
            Estimates of every level. Each node is the sum of its children.
        """
        level_variances, _, parts = self._pass_up(variances)
        up = [np.asarray(measured[0], dtype=np.float64)]
        summed = [np.zeros(0)]
        for level, parent in enumerate(self.parents, start=1):
            summed.append(_sum_children(parent, up[-1], self.sizes[level]))
            weight = level_variances[level] / variances[level]
            measured_level = np.where(weight > 0, measured[level], 0.0)
            up.append((1.0 - weight) * summed[level] + weight * measured_level)
        estimates = [up[-1]]
        for level in reversed(range(len(self.parents))):
            missing = (estimates[0] - summed[level + 1])[self.parents[level]]
            estimates.insert(0, up[level] + parts[level] * missing)
        return estimates

    def compute_level_variances(self, variances: Sequence[float]) -> list[FloatArray]:
        """Return the variances of the estimates of every level ``(n_l,)``."""
        level_variances, _, parts = self._pass_up(variances)
        results = [level_variances[-1]]
        for level in reversed(range(len(self.parents))):
            above = results[0][self.parents[level]]
            results.insert(0, level_variances[level] * (1.0 - parts[level]) + parts[level] ** 2 * above)
        return results

    def compute_sum_variances(self, weights: csr_array, variances: Sequence[float]) -> FloatArray:
        """Return the variances of weighted sums of the estimated leaves.

        A leaf is its share of its parent plus a remainder that is independent of all other remainders.

        Parameters
        ----------
        weights
            ``(k, n)``, one sum per row.
        variances
            As for `estimate`.

        Returns
        -------
        FloatArray
            ``(k,)``.
        """
        level_variances, sums, _ = self._pass_up(variances)
        results = np.zeros(weights.shape[0])
        rows = csr_array(weights)
        for level, parent in enumerate(self.parents):
            size = self.sizes[level], self.sizes[level + 1]
            climb = csr_array((level_variances[level], (np.arange(size[0]), parent)), shape=size)
            above = rows @ climb
            share = 1.0 / sums[level + 1]
            results += rows.multiply(rows) @ level_variances[level] - above.multiply(above) @ share
            rows = csr_array(above.multiply(share[None, :]))
        return np.asarray(results + rows.multiply(rows) @ level_variances[-1])

    def _pass_up(self, variances: Sequence[float]) -> tuple[list[FloatArray], list[FloatArray], list[FloatArray]]:
        """Return variances of bottom-up estimates, of their sums, and each node's share."""
        level_variances = [np.full(self.sizes[0], float(variances[0]))]
        sums = [np.zeros(0)]
        parts = list[FloatArray]()
        for level, parent in enumerate(self.parents, start=1):
            sums.append(_sum_children(parent, level_variances[-1], self.sizes[level]))
            parts.append(level_variances[-1] / sums[level][parent])
            level_variances.append(1.0 / (1.0 / sums[level] + 1.0 / variances[level]))
        return level_variances, sums, parts

    def estimate_nonnegative(
        self, measured: Sequence[FloatArray], variances: Sequence[float | FloatArray]
    ) -> FloatArray:
        """Return the exact weighted least-squares estimate with non-negative leaves.

        Clipping at zero is biased: small counts are too large on average. Keep the result of `estimate` as well.

        Parameters
        ----------
        measured, variances
            As for `estimate`. Every leaf must be measured, and each leaf can have a separate variance, ``(n,)``.

        Returns
        -------
        FloatArray
            ``(n,)``: the leaves.
        """
        return _NonNegative(self, measured, variances).solve()

    def estimate_balanced(
        self, measured: Sequence[FloatArray], variances: Sequence[float | FloatArray], out: IntArray, into: IntArray
    ) -> FloatArray:
        """Return the non-negative estimate with equal departures and arrivals at each place.

        A multiplier for each place removes the constraint. The best multipliers maximise a concave dual function.

        Parameters
        ----------
        measured, variances
            As for `estimate_nonnegative`.
        out, into
            ``(n,)`` origin and destination of each leaf.

        Returns
        -------
        FloatArray
            ``(n,)``: the leaves.

        Raises
        ------
        CountError
            When the optimisation does not converge.
        """
        from scipy.optimize import minimize

        places = int(max(out.max(), into.max())) + 1
        scale = max(float(np.sqrt(np.max(variances[0]))), 1e-9)

        def evaluate_dual(prices: Any) -> Any:
            linear_costs = (prices[out] - prices[into]) / scale
            leaves = _NonNegative(self, measured, variances, linear_costs).solve()
            off = np.bincount(out, leaves, places) - np.bincount(into, leaves, places)
            cost = sum(
                float(((fitted - observed) ** 2 / (2 * variance)).sum())
                for fitted, observed, variance in zip(self.sum_levels(leaves), measured, variances, strict=True)
                if np.all(np.isfinite(variance))
            )
            return -(cost + float(linear_costs @ leaves)), -off / scale

        options: Any = {"maxiter": 5000, "maxfun": 10000, "ftol": 0.0, "gtol": _BALANCE_TOLERANCE, "maxcor": 30}
        solution = minimize(evaluate_dual, np.zeros(places), jac=True, method="L-BFGS-B", options=options)
        linear_costs = (solution.x[out] - solution.x[into]) / scale
        leaves = _NonNegative(self, measured, variances, linear_costs).solve()
        off = np.abs(np.bincount(out, leaves, places) - np.bincount(into, leaves, places)).max()
        if off > 1e-3 * max(1.0, float(leaves.sum()) / places):
            raise CountError(f"balancing did not converge ({off:.3g} after {solution.nit} steps): remove balanced")
        return leaves

    def round(self, leaves: FloatArray) -> IntArray:
        """Round every node up or down to consistent integers, from the top down.

        Remainders go to the nodes with the largest rounding errors.
        """
        totals = self.sum_levels(leaves)
        counts = np.rint(totals[-1])
        for level in reversed(range(len(self.parents))):
            parent = self.parents[level]
            size = self.sizes[level + 1]
            low = np.floor(totals[level] + 1e-9)
            missing = np.rint(counts - np.bincount(parent, low, size)).astype(np.int64)
            order = np.lexsort((low - totals[level], parent))
            rank = np.empty(len(parent), dtype=np.int64)
            starts = np.cumsum(np.bincount(parent, minlength=size)) - np.bincount(parent, minlength=size)
            rank[order] = np.arange(len(parent)) - starts[parent[order]]
            counts = low + (rank < missing[parent])
        return np.maximum(counts, 0).astype(np.int64)


def _sum_children(parent: IntArray, values: FloatArray, size: int) -> FloatArray:
    return np.asarray(np.bincount(parent, values, size), dtype=np.float64)


def round_balanced(leaves: FloatArray, out: IntArray, into: IntArray) -> IntArray:
    """Round leaves up or down to integers with equal departures and arrivals at each place.

    The rounded-up leaves are a network flow. The vertices of such a program are integers.

    Raises
    ------
    CountError
        When the solver finds no solution.
    """
    from scipy.optimize import linprog

    low = np.floor(leaves + 1e-6)
    active = np.flatnonzero(leaves - low > 1e-6)
    places = int(max(out.max(), into.max())) + 1
    due = np.bincount(into, low, places) - np.bincount(out, low, places)
    if not len(active):
        return low.astype(np.int64)
    columns = np.arange(len(active))
    ends = np.concatenate([out[active], into[active]])
    signs = np.repeat([1.0, -1.0], len(active))
    matrix: Any = csr_array((signs, (ends, np.tile(columns, 2))), shape=(places, len(active)))
    cost = 1.0 - 2.0 * (leaves - low)[active]
    solution = linprog(cost, A_eq=matrix, b_eq=due, bounds=(0, 1), method="highs-ds")
    if solution.status != 0:
        raise CountError("no balanced integers found: remove balanced")
    counts = low.copy()
    counts[active] += np.rint(np.asarray(solution.x))
    return counts.astype(np.int64)


class _NonNegative:
    """The program of `Forest.estimate_nonnegative`, with linear costs ``(n,)`` or none."""

    def __init__(
        self,
        forest: Forest,
        measured: Sequence[FloatArray],
        variances: Sequence[float | FloatArray],
        linear_costs: FloatArray | None = None,
    ) -> None:
        self.forest, self.gives = forest, np.broadcast_to(variances[0], forest.sizes[:1])
        self.weights = [0.0, *(1.0 / float(variance) for variance in variances[1:])]
        self.measured = [np.where(np.isfinite(v), values, 0.0) for values, v in zip(measured, variances, strict=True)]
        if linear_costs is not None:
            self.measured[0] = self.measured[0] - linear_costs * self.gives

    def solve(self) -> FloatArray:
        levels = len(self.forest.parents)
        price = np.zeros(self.forest.sizes[-1])
        for level in reversed(range(1, levels + 1)):
            price = self._compute_inner_prices(level, price)[0][self.forest.parents[level - 1]]
        return np.asarray(np.maximum(0.0, self.measured[0] + price * self.gives))

    def _compute_inner_prices(self, level: int, price: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return inner prices, totals and slopes of nodes at a price for one more count."""
        return self._solve_lowest_level(price) if level == 1 else self._solve_by_newton(level, price)

    def _solve_by_newton(self, level: int, price: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        # The equation is convex with a slope of at least one, so Newton's steps converge to its root from any start.
        # The first step ends at or above the root, and later ones descend to it. A later step upwards is therefore a
        # rounding error. With large weights, rounding errors never get below the tolerance.
        parent = self.forest.parents[level - 1]
        size = self.forest.sizes[level]
        weight = self.weights[level]
        goal = self.measured[level]
        inner = price.copy()
        is_root = np.zeros(size, dtype=np.bool_)
        for iteration in range(_MAX_NEWTON_STEPS):
            _, totals, slopes = self._compute_inner_prices(level - 1, inner[parent])
            total = _sum_children(parent, totals, size)
            slope = _sum_children(parent, slopes, size)
            step = (weight * (total - goal) + inner - price) / (weight * slope + 1.0)
            inner = inner - step
            is_root |= np.abs(step) <= 1e-12 * (1.0 + np.abs(inner))
            if iteration:
                is_root |= step < 0
            if is_root.all():
                break
        return inner, total, slope / (1.0 + weight * slope)

    @cached_property
    def _sorted(self) -> tuple[IntArray, IntArray, FloatArray, FloatArray, FloatArray]:
        """Return start and number of each node's leaves, ordered by price.

        Also returns, in that order, cumulative sums of measurements and of variances, and the node's price at which
        each leaf becomes positive.
        """
        parent = self.forest.parents[0]
        size = self.forest.sizes[1]
        leaves = self.measured[0]
        begins = -leaves / self.gives
        order = np.lexsort((begins, parent))
        count = np.bincount(parent, minlength=size)
        start = np.cumsum(count) - count
        leaf_sums, variance_sums = (
            np.concatenate([[0.0], np.cumsum(values[order])]) for values in (leaves, self.gives)
        )
        node = parent[order]
        before = leaf_sums[:-1] - leaf_sums[start][node]
        slope = variance_sums[:-1] - variance_sums[start][node]
        worth = self.weights[1] * (before + slope * begins[order] - self.measured[1][node]) + begins[order]
        return start, count, leaf_sums, variance_sums, worth

    def _solve_lowest_level(self, price: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        start, count, leaf_sums, variance_sums, worth = self._sorted
        low = start.copy()
        high = start + count
        while True:  # binary search in all nodes simultaneously
            active = low < high
            if not active.any():
                break
            middle = np.where(active, (low + high) // 2, 0)
            less = worth[middle] < price
            low = np.where(active & less, middle + 1, low)
            high = np.where(active & ~less, middle, high)
        total = leaf_sums[low] - leaf_sums[start]
        slope = variance_sums[low] - variance_sums[start]
        above = self.weights[1]
        inner = (price + above * (self.measured[1] - total)) / (1.0 + above * slope)
        return inner, total + slope * inner, slope / (1.0 + above * slope)
