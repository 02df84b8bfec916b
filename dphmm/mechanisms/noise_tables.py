"""Table mechanisms: integer output probabilities per state, and the optimal table.

A row is the output distribution of one state: integers that sum to ``2**62``, so that a random word of 62 bits samples
from it exactly. The guarantee on an edge ``jl`` is ``k(z|j) <= exp(epsilon) k(z|l)`` for every output, and vice versa.
It is enforced with a rational number of at most ``exp(epsilon)``, so that it is decided by comparing integers.

The optimal table of a connected graph over ``n`` states with prior ``p`` minimises
``sum_s p(s) sum_z k(z|s) |f_z - f_s|^2`` over tables with rows that sum to one and with ``k(z|j) <= r k(z|l)`` on every
edge (Bordenabe, Chatzikokolakis, Palamidessi, CCS 2014, with edges in place of a metric). It has ``n^2`` unknowns and
``2 n`` conditions per edge. In a clique, the largest and the smallest entry for an output may differ by at most ``r``.
With the smallest one as an additional unknown, its ``m (m - 1) n`` conditions become ``2 m n`` equivalent ones.

Outputs are coupled by the sums of rows only. Therefore an interior point method (Mehrotra, SIAM J. Optim. 1992) has to
solve, in each iteration, one system of ``n`` unknowns per output (`Graph`, `Clique`) and one of ``n`` for all of them.
The result is proven by a bound: for any multipliers ``l >= 0`` of the conditions ``A x >= 0``, the cost of every table
is at least ``sum_s min_z (c - A' l)_{s, z}``. The method stops when its own cost is close enough to this bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cached_property
from math import log
from typing import Any, Literal, NoReturn

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray, as_floats, as_integers, as_points, check_budget
from dphmm.errors import CoordinateError, GuaranteeError, InvalidInputError, PolicyError, import_library
from dphmm.mechanisms.base import Mechanism, SampleSize, Table
from dphmm.mechanisms.exact_sampling import make_decimal_context
from dphmm.random import RandomSource, Rng, as_random_source
from dphmm.validation import check_arguments

# Smaller cliques save no conditions: ``m (m - 1)`` is larger than ``2 m`` from four on.
_MIN_CLIQUE_SIZE = 4


def count_hops(size: int, edges: IntArray) -> IntArray:
    """Return the number of edges between any two states of a connected graph, ``(n, n)``."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import shortest_path

    graph = csr_array((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(size, size))
    return np.asarray(shortest_path(graph, unweighted=True, directed=False)).astype(np.int64)


def is_clique(size: int, edges: IntArray) -> bool:
    """Return whether distinct edges ``(m, 2)`` connect every pair of states."""
    return len(edges) == size * (size - 1) // 2


def list_cliques(size: int, edges: IntArray) -> tuple[list[IntArray], IntArray]:
    """Return greedily chosen cliques, and the edges ``(m, 2)`` that lie in none of them."""
    if size >= _MIN_CLIQUE_SIZE and is_clique(size, edges):
        return [np.arange(size)], np.zeros((0, 2), dtype=np.int64)
    joined: BoolArray = np.zeros((size, size), dtype=np.bool_)
    joined[edges[:, 0], edges[:, 1]] = joined[edges[:, 1], edges[:, 0]] = True
    left = joined.copy()
    cliques = []
    # Start from the states with most neighbours: large cliques save most conditions. Finding the largest is NP-hard.
    for state in np.argsort(-joined.sum(axis=1), kind="stable").tolist():
        members = [state]
        others = left[state].copy()
        while others.any():
            inside = np.flatnonzero(others)
            best = int(inside[np.argmax((joined[inside] & others).sum(axis=1))])
            members.append(best)
            others &= joined[best]
        if len(members) >= _MIN_CLIQUE_SIZE:
            cliques.append(np.array(members))
            left[np.ix_(members, members)] = False
    return cliques, np.argwhere(np.triu(left))


BITS = 62
# The sum of the weights of a row.
ROW_WEIGHT = 1 << BITS
# Weights of 62 bits are multiplied in two halves, so that products with a factor of 31 bits fit into 64 bits.
_LIMB_BITS = 31
_LIMB_MASK = (1 << _LIMB_BITS) - 1
# Number of comparisons of weights in a block, in arrays of at most 8 MB.
_MAX_COMPARISONS = 1 << 20
# A table that needs a larger share of the uniform one differs too much from the requested one.
_MAX_UNIFORM_SHARE = 0.01
# Minimum of ratio - 1. Below it (budgets below a millionth) all rows are equal, and outputs reveal nothing.
MIN_RATIO_EXCESS = 1e-6


def compute_exp_lower_bound(epsilon: float) -> tuple[int, int]:
    """Return a fraction of at most ``exp(epsilon)``.

    Its numerator and denominator are below ``2**31``.

    It is smaller by a share of at most ``2**-30``. For budgets from 21.5 on it is ``2**31 - 1``: a stronger guarantee
    than requested, with negligible noise.

    Examples
    --------
    >>> from fractions import Fraction
    >>> Fraction(*compute_exp_lower_bound(1.0)) < Fraction("2.718281828459045")
    True
    >>> compute_exp_lower_bound(50.0), compute_exp_lower_bound(1e-12)
    ((2147483647, 1), (1, 1))
    """
    exact = Decimal(check_budget(epsilon))  # the exact value of the double, not its shortest decimal
    with localcontext(make_decimal_context(60)):
        # The exponential of 22 exceeds the largest fraction, and a larger one could exceed the range of decimals.
        power = min(exact, Decimal(22)).exp()
        if power > _LIMB_MASK:
            return _LIMB_MASK, 1
        under = int(Decimal(_LIMB_MASK) / power)
        over = int(power * under * (1 - Decimal(10) ** -50))
    return (over, under) if over > under else (1, 1)


def find_violated_edges(weights: IntArray, edges: IntArray, ratio: tuple[int, int]) -> BoolArray:
    """Return which edges have an output with a ratio above the bound, ``(m,)``, exactly.

    Parameters
    ----------
    weights
        ``(n, outputs)``, from 0 to ``2**62``.
    edges
        ``(m, 2)`` pairs of rows.
    ratio
        Two integers from 1 to below ``2**31``; the bound is their quotient.
    """
    over, under = ratio
    result = np.zeros(len(edges), dtype=np.bool_)
    step = max(1, _MAX_COMPARISONS // max(1, weights.shape[1]))
    high = weights >> _LIMB_BITS
    low = weights & _LIMB_MASK
    tops = _multiply_limbs(high, low, under)
    limits = _multiply_limbs(high, low, over)
    for start in range(0, len(edges), step):
        first, second = edges[start : start + step].T
        for left, right in ((first, second), (second, first)):
            result[start : start + step] |= _exceeds_limits(tops, left, limits, right).any(axis=1)
    return result


def _multiply_limbs(high: IntArray, low: IntArray, factor: int) -> tuple[IntArray, IntArray]:
    """Return products as a part in units of ``2**31`` and a remainder, which fit into 64 bits."""
    product = low * factor
    return high * factor + (product >> _LIMB_BITS), product & _LIMB_MASK


def _exceeds_limits(
    tops: tuple[IntArray, IntArray], rows: IntArray, limits: tuple[IntArray, IntArray], others: IntArray
) -> BoolArray:
    high = tops[0][rows]
    limit = limits[0][others]
    return np.asarray((high > limit) | ((high == limit) & (tops[1][rows] > limits[1][others])))


def build_integer_rows(probabilities: FloatArray, edges: IntArray, ratio: tuple[int, int]) -> tuple[IntArray, float]:
    """Convert approximate probabilities to integers that satisfy the guarantee on every edge.

    Rounding violates the condition of a tight edge. Therefore the uniform table, in which outputs reveal nothing and
    which leaves every edge room, is mixed in before rounding. Its share is increased until all edges are satisfied.

    Parameters
    ----------
    probabilities
        ``(n, outputs)``, not negative; rows sum to about one.
    edges, ratio
        As for `find_violated_edges`.

    Returns
    -------
    weights, mixed
        ``(n, outputs)`` integers that sum to ``2**62`` in every row, and the share of the uniform table in them.

    Raises
    ------
    GuaranteeError
        If the probabilities are far from the guarantee.
    """
    rows = np.maximum(probabilities, 0.0)
    rows = rows / rows.sum(axis=1, keepdims=True)
    outputs = rows.shape[1]
    room = ratio[0] / ratio[1] - 1
    if room < MIN_RATIO_EXCESS:  # equal rows satisfy every condition
        rows = np.broadcast_to(rows.mean(axis=0), rows.shape)
    # With this share the uniform table leaves each edge a room of 2**-50, a few rounding errors of an entry.
    mixed = outputs * 2.0**-50 / max(room, MIN_RATIO_EXCESS)
    while mixed < _MAX_UNIFORM_SHARE:
        weights = _round_to_integers((1 - mixed) * rows + mixed / outputs)
        if not find_violated_edges(weights, edges, ratio).any():
            return weights, mixed
        mixed *= 4
    raise GuaranteeError(
        "no table near the computed one satisfies the guarantee on every edge; the release was aborted"
    )


def _round_to_integers(rows: FloatArray) -> IntArray:
    """Round rows of probabilities to integers, and add the remainder to each row's largest."""
    # Even weights are at most 2**-61 below the probabilities. Other ones would change every seeded release of a table.
    weights = np.floor(rows * (ROW_WEIGHT >> 1)).astype(np.int64)
    weights *= 2
    largest = rows.argmax(axis=1)
    weights[np.arange(len(rows)), largest] += ROW_WEIGHT - weights.sum(axis=1)
    return weights


# Added to a unit diagonal: a few rounding errors, so that Cholesky's pivots stay positive.
_RIDGE = 1e-15
# Number of matrix entries in a block, 32 MB of them.
_MAX_ENTRIES = 1 << 22


@dataclass(frozen=True)
class Conditions:
    """The conditions ``entry[greater] <= factor * entry[smaller]`` of every output.

    Parameters
    ----------
    size, unknowns
        The number of states ``n`` and of unknowns ``u``. Unknown ``s < n`` is the entry for state ``s``, followed by
        the smallest entries of cliques.
    greater, smaller, factors
        ``(c,)``. For a clique of ``m`` states the upper conditions precede the lower ones.
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
    def from_edges(cls, size: int, edges: IntArray, ratio: float) -> Conditions:
        """Build the conditions of a graph with edges ``(m, 2)``."""
        cliques, rest = list_cliques(size, edges)
        greater = [rest[:, 0], rest[:, 1]]
        smaller = [rest[:, 1], rest[:, 0]]
        factors = [np.full(2 * len(rest), ratio)]
        for number, members in enumerate(cliques):
            members, minimum = np.sort(members), np.full(len(members), size + number)
            greater += [members, minimum]
            smaller += [minimum, members]
            factors += [np.full(len(members), ratio), np.ones(len(members))]
        parts = np.concatenate(greater), np.concatenate(smaller), np.concatenate(factors)
        return cls(size, size + len(cliques), *parts, ratio, bool(cliques) and len(cliques[0]) == size)

    def build_uniform_table(self, outputs: int) -> FloatArray:
        """Return the uniform table ``(u, outputs)``, which leaves every condition room."""
        table = np.full((self.unknowns, outputs), 1.0 / outputs)
        table[self.size :] /= np.sqrt(self.ratio)
        return table

    def compute_slack(self, entries: FloatArray) -> FloatArray:
        """Return the slack ``(c, outputs)`` of each condition for entries ``(u, outputs)``."""
        return self.factors[:, None] * entries[self.smaller] - entries[self.greater]

    def apply_transpose(self, multipliers: FloatArray) -> FloatArray:
        """Apply the transpose of `compute_slack` to multipliers. Return ``(u, outputs)``."""
        return np.asarray(self._transposed @ multipliers)

    def bound_cost(self, costs: FloatArray, multipliers: FloatArray) -> float:
        """Return a lower bound on the cost of every table from multipliers ``(c, outputs)`` >= 0.

        ``sum c k >= sum (c - A' l) k >= sum_s min_z (c - A' l)`` holds, because smallest entries have no cost and,
        once the lower multipliers outweigh the upper ones, only increase it. The costs are ``(n, outputs)``.
        """
        held = multipliers
        if self.unknowns > self.size:
            held = held.copy()
            for minimum in range(self.size, self.unknowns):
                above = self.smaller == minimum
                below = self.greater == minimum
                held[above] *= np.minimum(1.0, held[below].sum(axis=0) / (self.ratio * held[above].sum(axis=0)))
        return float((costs - self.apply_transpose(held)[: self.size]).min(axis=1).sum())

    @cached_property
    def _transposed(self) -> Any:
        from scipy.sparse import csr_array

        numbers = np.arange(len(self.greater))
        entries = np.concatenate([self.factors, np.full(len(numbers), -1.0)])
        where = np.concatenate([self.smaller, self.greater]), np.tile(numbers, 2)
        return csr_array((entries, where), shape=(self.unknowns, len(numbers)))

    @cached_property
    def products(self) -> Any:
        """The outer products of the conditions' rows, one per column: ``(u u, c)``."""
        from scipy.sparse import csr_array

        numbers = np.arange(len(self.greater))
        above = self.smaller
        below = self.greater
        cells = [left * self.unknowns + right for left in (above, below) for right in (above, below)]
        entries = [self.factors**2, -self.factors, -self.factors, np.ones(len(numbers))]
        where = np.concatenate(cells), np.tile(numbers, 4)
        return csr_array((np.concatenate(entries), where), shape=(self.unknowns**2, len(numbers)))


class Graph:
    """Inverses of ``A' D A`` for every output of any graph.

    They take ``u^3`` operations and ``u^2`` doubles per output.

    Parameters
    ----------
    conditions, weights
        ``A``, and ``D > 0`` as ``(c, outputs)``.
    """

    def __init__(self, conditions: Conditions, weights: FloatArray) -> None:
        from scipy.linalg.lapack import dpotrf, dpotri

        size, self._states = conditions.unknowns, conditions.size
        self._inverses = np.empty((weights.shape[1], size, size))
        several = max(1, _MAX_ENTRIES // size**2)
        for start in range(0, weights.shape[1], several):
            laid_out = conditions.products @ weights[:, start : start + several]
            for number, block in enumerate(np.ascontiguousarray(laid_out.T).reshape(-1, size, size), start):
                # Near the solution D spans many orders of magnitude: Cholesky is accurate with a unit diagonal. A
                # failure only costs progress, because the bound decides whether a table is accepted.
                scale = 1.0 / np.sqrt(block.diagonal())
                block *= scale[:, None]
                block *= scale
                block[np.diag_indices(size)] += _RIDGE
                inverse = dpotri(dpotrf(block.T, lower=1, overwrite_a=1)[0], lower=1, overwrite_c=1)[0].T
                inverse *= scale[:, None]
                inverse *= scale
                self._inverses[number] = np.triu(inverse) + np.triu(inverse, 1).T

    def solve(self, wanted: FloatArray) -> FloatArray:
        """Return the solutions ``(u, outputs)`` for right sides of the same shape."""
        return np.asarray((self._inverses @ wanted.T[:, :, None])[:, :, 0].T)

    def sum_inverses(self) -> FloatArray:
        """Return the states' part of the sum of the inverses, ``(n, n)``."""
        return np.asarray(self._inverses[:, : self._states, : self._states].sum(axis=0))


class Clique:
    """Inverses for a single clique: a diagonal bordered by the smallest entry.

    They take ``n`` operations per output.

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
        """Return the solutions, see `Graph`."""
        # The Schur complement of the diagonal is one number per output, the corner.
        minimum = (wanted[-1] + (self._border * wanted[:-1]).sum(axis=0)) / self._corner
        return np.concatenate([wanted[:-1] / self._diagonal + self._border * minimum, minimum[None]])

    def sum_inverses(self) -> FloatArray:
        """Return the sum of the inverses, see `Graph`."""
        sums = (self._border / self._corner) @ self._border.T
        sums[np.diag_indices(len(sums))] += (1.0 / self._diagonal).sum(axis=1)
        return np.asarray(sums)


# Binary digits of the prior. With 20 digits, beliefs over many orders of magnitude had tables of up to twice the error.
_PRIOR_BITS = 30
# The target distance of the error from the bound, as a share of the error.
_TARGET_GAP = 1e-4
# With a larger distance no table is returned.
_MAX_GAP = 0.01
# An error that is treated as zero, as a share of the uniform table's.
_ZERO_ERROR = 1e-12
# Maximum number of steps, and of consecutive steps without progress, after which rounding prevents progress.
_MAX_STEPS = 80
_MAX_STALLED_STEPS = 5
# Sums of rows may differ from one by this.
_MAX_SUM_ERROR = 1e-9
# Share of the way to the first violated condition that a step takes: the usual value of interior point methods.
_STEP_SHARE = 0.995


# Solvers of the program: this module's, which uses its structure, and ``cvxopt.solvers.lp``, an independent one.
TableSolver = Literal["interior-point", "cvxopt"]


def compute_min_error_table(
    points: FloatArray,
    edges: IntArray,
    ratio: float,
    prior: FloatArray,
    solver: TableSolver = "interior-point",
) -> tuple[FloatArray, float]:
    """Return the table of minimum expected squared error in floats, and a lower bound.

    It is a function of its arguments only: no state is carried over from earlier solutions. Therefore an adversary or
    verifier with the public information can recompute it. If several tables are optimal, the result lies between them;
    it is not a vertex chosen by rounding.

    Parameters
    ----------
    points
        ``(n, d)`` measurements of the states, which are the outputs as well.
    edges
        ``(m, 2)`` pairs of states.
    ratio
        At least 1. Below 1 plus a millionth all rows are equal.
    prior
        ``(n,)``, not negative and not all zero. The table uses the prior rounded to nine digits, so that the last bits
        of a belief do not affect it; the bound uses the exact prior.
    solver
        ``"interior-point"``, or ``"cvxopt"`` to check the former by an independent solver of the same program. The
        latter is as fast for up to 40 states, and 4 to 50 times slower for 100.

    Returns
    -------
    probabilities, bound
        ``(n, n)``, row by true state. Rows sum to one, and conditions on edges are strict, both up to rounding. The
        bound is proven up to rounding, and within about a ten-thousandth of the table's error. If rounding ends the
        program early, it is within a hundredth. If the error is a billionth of the squared distances of the points,
        nine digits of the prior are too few for this, and the bound shows it.

    Raises
    ------
    GuaranteeError
        If no table was found with an error within a hundredth of a bound.
    """
    size = len(points)
    apart = np.square(points[:, None, :] - points[None, :, :]).sum(axis=2)
    weights = np.rint(prior / prior.max() * 2.0**_PRIOR_BITS)
    costs, true_costs = (masses[:, None] / masses.sum() * apart for masses in (weights, prior / prior.max()))
    if ratio - 1.0 < MIN_RATIO_EXCESS:
        # The best table with equal rows has one output. Entries of a column differ by a factor of at most ``ratio`` on
        # each of up to ``size - 1`` edges between two states. No table costs less than this one by a larger factor.
        best = int(np.argmin(costs.sum(axis=0)))
        return np.tile(np.eye(size)[best], (size, 1)), float(true_costs.sum(axis=0).min()) / ratio ** (size - 1)
    unit = float(costs.sum()) / size or 1.0
    conditions = Conditions.from_edges(size, edges, ratio)
    solve = _solve_with_cvxopt if solver == "cvxopt" else _solve_directly
    with np.errstate(all="ignore"):  # a step that exceeds the range of doubles is the last one
        table, error, bound, multipliers = solve(costs / unit, conditions)
        proven = conditions.bound_cost(true_costs / unit, multipliers)
    if not error - bound <= max(_MAX_GAP * error, _ZERO_ERROR):
        raise GuaranteeError(
            f"the program of the optimal table of {size} states was not solved (error in [{bound * unit:.6g}, "
            f"{error * unit:.6g}]); the release was aborted"
        )
    return table, max(0.0, proven * unit)


def _solve_directly(costs: FloatArray, conditions: Conditions) -> tuple[FloatArray, float, float, FloatArray]:
    """Return the best table found, its error, the best bound, and its multipliers.

    Columns are outputs. ``entries`` are the unknowns of each output, ``room`` is the slack of their conditions,
    ``held`` their multipliers, and ``prices`` the multipliers of the sums of rows. Their Newton steps are ``moved``,
    ``opened``, ``grown`` and ``change``. The steps keep ``room`` positive up to the share ``far``, ``held`` up to
    ``further``. ``aim`` is the target of the products of ``held`` and ``room``, which are zero at the optimum.
    """
    size, outputs = costs.shape
    entries = conditions.build_uniform_table(outputs)
    prices = np.zeros(size)
    room = conditions.compute_slack(entries)
    held = float(np.mean(costs)) * size / len(room) / room
    all_costs = np.concatenate([costs, np.zeros((len(entries) - size, outputs))])
    table = entries[:size]
    error = np.inf
    bound = 0.0
    proof = np.zeros_like(held)
    waited = 0
    for _ in range(_MAX_STEPS):
        sums = entries[:size].sum(axis=1)
        # Rows that nearly sum to one become a table after division by their sums; ratios on edges change as little.
        reached = entries[:size] / sums[:, None]
        value = float((costs * reached).sum())
        proven = conditions.bound_cost(costs, held)
        better = np.abs(sums - 1.0).max() <= _MAX_SUM_ERROR and value < error
        has_progress = (better and value < (1 - _TARGET_GAP) * error) or proven > bound + _TARGET_GAP * value
        waited = 0 if has_progress else waited + 1
        table, error = (reached, value) if better else (table, error)
        bound, proof = (proven, held) if proven > bound else (bound, proof)
        is_near = error - bound <= max(_TARGET_GAP * error, _ZERO_ERROR)
        if is_near or waited > _MAX_STALLED_STEPS or not np.isfinite(value + proven):
            break
        newton = _Newton(conditions, (Clique if conditions.is_clique else Graph)(conditions, held / room), held / room)
        reduced = all_costs.copy()
        reduced[:size] -= prices[:, None]
        mean = float((held * room).mean())
        aim = np.zeros_like(room)
        # Mehrotra's predictor, with the aim 0, shows the possible decrease of the mean product. The corrector aims
        # there, with the predictor's second-order term.
        for corrected in (False, True):
            moved, change = newton(conditions.apply_transpose(aim / room) - reduced, 1.0 - sums)
            opened = conditions.compute_slack(moved)
            grown = aim / room - held * (1.0 + opened / room)
            far = _compute_max_step(room, opened)
            further = _compute_max_step(held, grown)
            if not corrected:
                later = float(((held + further * grown) * (room + far * opened)).mean())
                aim = (later / mean) ** 3 * mean - grown * opened
        entries = entries + _STEP_SHARE * far * moved
        held = held + _STEP_SHARE * further * grown
        prices = prices + _STEP_SHARE * further * change
        room = conditions.compute_slack(entries)
    return table, error, bound, proof


def _solve_with_cvxopt(costs: FloatArray, conditions: Conditions) -> tuple[FloatArray, float, float, FloatArray]:
    """Solve the program as a single linear program with CVXOPT. See `_solve_directly`.

    The bound is computed from CVXOPT's multipliers. It therefore holds regardless of CVXOPT's accuracy.
    """
    cvxopt = import_library("cvxopt", None)
    matrix = cvxopt.matrix
    solvers = cvxopt.solvers
    spmatrix = cvxopt.spmatrix

    size, outputs = costs.shape
    unknowns = conditions.unknowns
    count = len(conditions.greater)
    # Unknown (s, z) is number s * outputs + z, and condition (c, z) is number c * outputs + z.
    each = np.arange(outputs)
    rows = (np.arange(count)[:, None] * outputs + each).ravel()
    above = (conditions.greater[:, None] * outputs + each).ravel()
    below = (conditions.smaller[:, None] * outputs + each).ravel()
    entries = np.concatenate([np.ones(len(rows)), -np.repeat(conditions.factors, outputs)])
    places = np.tile(rows, 2).tolist(), np.concatenate([above, below]).tolist()
    ordered = spmatrix(entries.tolist(), *places, (count * outputs, unknowns * outputs))
    states = np.repeat(np.arange(size), outputs).tolist()
    sums = spmatrix(1.0, states, range(size * outputs), (size, unknowns * outputs))
    all_costs = np.concatenate([costs.ravel(), np.zeros((unknowns - size) * outputs)])
    options = {"show_progress": False, "abstol": 1e-10, "reltol": 1e-9, "feastol": 1e-9}
    solution = solvers.lp(
        matrix(all_costs), ordered, matrix(0.0, (count * outputs, 1)), sums, matrix(1.0, (size, 1)), options=options
    )
    if solution["x"] is None:
        even = conditions.build_uniform_table(outputs)[:size]
        return even, float((costs * even).sum()), 0.0, np.zeros((count, outputs))  # without a proven bound
    table = np.maximum(np.array(solution["x"]).reshape(unknowns, outputs)[:size], 0.0)
    table /= table.sum(axis=1, keepdims=True)
    multipliers = np.maximum(np.array(solution["z"]).reshape(count, outputs), 0.0)
    return table, float((costs * table).sum()), conditions.bound_cost(costs, multipliers), multipliers


class _Newton:
    """Newton steps of entries and prices, refined once against rounding."""

    def __init__(self, conditions: Conditions, blocks: Graph | Clique, weights: FloatArray) -> None:
        self._conditions = conditions
        self._blocks = blocks
        self._weights = weights
        self._coupling = blocks.sum_inverses()

    def __call__(self, wanted: FloatArray, lacking: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Solve ``H x - E' y = wanted`` for each output and ``sum E x = lacking``."""
        moved, change = self._solve_once(wanted, lacking)
        left = wanted - self._conditions.apply_transpose(self._weights * self._conditions.compute_slack(moved))
        left[: len(lacking)] += change[:, None]
        more, again = self._solve_once(left, lacking - moved[: len(lacking)].sum(axis=1))
        return moved + more, change + again

    def _solve_once(self, wanted: FloatArray, lacking: FloatArray) -> tuple[FloatArray, FloatArray]:
        size = len(lacking)
        right = wanted.copy()
        change = np.linalg.solve(self._coupling, lacking - self._blocks.solve(wanted)[:size].sum(axis=1))
        right[:size] += change[:, None]
        return self._blocks.solve(right), np.asarray(change)


def _compute_max_step(positive: FloatArray, change: FloatArray) -> float:
    """Return the share of a change, at most all, that keeps all numbers positive."""
    fastest = float((-change / positive).max())
    return min(1.0 / _STEP_SHARE, 1.0 / fastest) if fastest > 0 else 1.0 / _STEP_SHARE


# Maximum number of locations in a table, which takes 32 MiB.
MAX_TABLE_LOCATIONS = 2048
# Maximum number of locations for the optimal table, unless the graph is complete; it takes half a gigabyte.
MAX_PROGRAM_LOCATIONS = 400


class TableMechanism(Mechanism):
    """Mechanism that releases ``z`` from ``s`` with the probability ``k(z|s)`` of a table.

    The probabilities are integers over ``2**62``, and a draw is one comparison of integers. Therefore the output
    distribution is exactly the stated one if the random bits are uniform. On every edge, the ratio of the probabilities
    of every output is at most a fraction of at most ``exp(epsilon)``. This is verified with integers when the table is
    built.

    Use `optimal` and `graph_exponential` to build one.

    Parameters
    ----------
    points
        ``(n, d)`` distinct locations; true values and outputs must be among them, as the same doubles.
    edges
        ``(m, 2)`` pairs of locations.
    epsilon
        The budget of an edge.
    probabilities
        ``(n, n)``: row by true location. They are rounded to integers that satisfy the guarantee; see
        `build_integer_rows`.
    prior
        ``(n,)``: the prior probability of each location, for `squared_error`.
    optimum
        A lower bound on every table's squared error under the prior, if known.

    Raises
    ------
    GuaranteeError
        If no table near these probabilities satisfies the guarantee.
    """

    def __init__(
        self,
        points: FloatArray,
        edges: IntArray,
        epsilon: float,
        probabilities: FloatArray,
        prior: FloatArray,
        optimum: float | None = None,
    ) -> None:
        self.epsilon = check_budget(epsilon)
        self.points = points
        self.edges = edges
        self.dimension = points.shape[1]
        # Two integers, the quotient of which bounds every ratio on an edge; at most ``exp(epsilon)``.
        self.ratio = compute_exp_lower_bound(self.epsilon)
        self.weights, self.mixed = build_integer_rows(probabilities, edges, self.ratio)
        self.weights.setflags(write=False)
        apart = np.square(points[:, None, :] - points[None, :, :]).sum(axis=2)
        self._squared_error = float(prior / prior.sum() @ (self.weights / ROW_WEIGHT * apart).sum(axis=1))
        self.optimum = optimum
        self._sums = np.cumsum(self.weights, axis=1)
        self._rows = {_make_key(point): row for row, point in enumerate(points)}

    @classmethod
    @check_arguments
    def optimal(
        cls,
        f: npt.ArrayLike,
        edges: npt.ArrayLike,
        epsilon: float,
        prior: npt.ArrayLike | None = None,
        solver: TableSolver = "interior-point",
    ) -> TableMechanism:
        """Build the table with the minimum expected squared error under a prior.

        Parameters
        ----------
        f
            ``(n, d)`` measurements of states. States with equal measurements are one location.
        edges
            ``(m, 2)`` pairs of states, which connect all of them.
        epsilon
            The budget of an edge; a double.
        prior
            ``(n,)``, not negative and not all zero. Defaults to uniform.
        solver
            ``"interior-point"``, or ``"cvxopt"`` for a check by an independent solver; see `compute_min_error_table`.

        Returns
        -------
        TableMechanism
            The table.

        Raises
        ------
        PolicyError
            If the edges do not connect all states, or there are more than `MAX_TABLE_LOCATIONS`, or more than
            `MAX_PROGRAM_LOCATIONS` in a graph that is not complete.
        InvalidInputError
            For invalid measurements, budget, prior or solver.
        GuaranteeError
            If the program could not be solved.

        Examples
        --------
        >>> table = TableMechanism.optimal([[0.0], [1.0], [2.0]], [[0, 1], [1, 2]], 1.0)
        >>> bool((table.privacy_loss([[0.0], [1.0]], [[1.0], [2.0]]) <= 1.0).all())
        True
        """
        points, pairs, weights = _merge_equal_states(f, edges, prior)
        over, under = compute_exp_lower_bound(check_budget(epsilon))
        if len(points) == 1:
            return cls(points, pairs, epsilon, np.ones((1, 1)), weights, 0.0)
        if len(points) > MAX_PROGRAM_LOCATIONS and not is_clique(len(points), pairs):
            raise PolicyError(
                f"an optimal table must have at most {MAX_PROGRAM_LOCATIONS} locations unless the graph is complete, "
                f"got {len(points):,}"
            )
        table, optimum = compute_min_error_table(points, pairs, over / under, weights, solver)
        return cls(points, pairs, epsilon, table, weights, optimum)

    @classmethod
    @check_arguments
    def graph_exponential(
        cls, f: npt.ArrayLike, edges: npt.ArrayLike, epsilon: float, prior: npt.ArrayLike | None = None
    ) -> TableMechanism:
        """Build the table ``k(z|s)`` proportional to ``exp(-epsilon hops(s, z) / 2)``.

        On an edge the hops differ by at most one; numerators and normalizers each change by at most the
        factor ``exp(epsilon / 2)``.

        Parameters
        ----------
        f, edges, epsilon, prior
            As for `optimal`, which also lists the errors.

        Returns
        -------
        TableMechanism
            The table.

        Raises
        ------
        PolicyError, InvalidInputError, CoordinateError, BudgetError
            See `optimal`.
        """
        points, pairs, weights = _merge_equal_states(f, edges, prior)
        rows = np.exp(-check_budget(epsilon) / 2 * count_hops(len(points), pairs))
        return cls(points, pairs, epsilon, rows / rows.sum(axis=1, keepdims=True), weights)

    @property
    def squared_error(self) -> float:
        """The expected squared distance of a release from the true location, under the prior."""
        return self._squared_error

    @property
    def min_squared_error(self) -> float | None:
        """A lower bound on every table's squared error under the prior, if known."""
        return self.optimum

    @property
    def table(self) -> Table:
        """The locations, and the weights of outputs."""
        return Table(self.points, self.weights)

    @property
    def loss(self) -> float | None:
        """Upper bound on the share of the squared error above the optimum. None if unknown."""
        if self.optimum is None:
            return None
        return max(0.0, 1.0 - self.optimum / self.squared_error) if self.squared_error > 0 else 0.0

    def probability(self, z: npt.ArrayLike, x: npt.ArrayLike) -> Fraction:
        """Return the exact probability of a release ``z`` for a true location ``x``.

        Parameters
        ----------
        z, x
            The release and the true location.

        Returns
        -------
        Fraction
            The probability; 0 if the release is not a location of the table.
        """
        row = self._find_row(x)
        column = self._rows.get(_make_key(np.asarray(z, dtype=np.float64)))
        return Fraction(0) if column is None else Fraction(int(self.weights[row, column]), ROW_WEIGHT)

    def squared_error_at(self, epsilon: float) -> NoReturn:
        """Raise an error: the squared error of a table has no formula in its budget."""
        raise InvalidInputError(
            f"the squared error of a table has no formula in its budget {epsilon:g}: use noise of a hull"
        )

    def squared_error_from(self, x: npt.ArrayLike) -> float:
        """Return the expected squared error for one true location ``(d,)``."""
        row = self._find_row(x)
        apart = np.square(self.points - self.points[row]).sum(axis=1)
        return float(self.weights[row] / ROW_WEIGHT @ apart)

    @check_arguments
    def sample(self, x: npt.ArrayLike, rng: Rng = None, size: SampleSize | None = None) -> FloatArray:
        """Sample releases of true locations: see `Mechanism.sample`."""
        true = as_floats(x, "values", CoordinateError)
        source = as_random_source(rng)
        rows = self._find_rows(true)
        count = 1 if size is None else size
        # A number below 2**62 is uniform, and the sum of every row's weights is 2**62: nothing is rejected.
        words = np.frombuffer(source.bytes(8 * count * rows.size), dtype=np.uint64) >> np.uint64(64 - BITS)
        numbers = words.astype(np.int64).reshape(count, rows.size)
        drawn = np.empty(numbers.shape, dtype=np.int64)
        for row in np.unique(rows):
            here = np.flatnonzero(rows.ravel() == row)
            drawn[:, here] = np.searchsorted(self._sums[row], numbers[:, here], side="right")
        released = self.points[drawn].reshape(count, *true.shape)
        return released[0] if size is None else released

    def draw(self, value: FloatArray, source: RandomSource) -> FloatArray:
        """Sample one release of one true location ``(d,)``."""
        return self.sample(value, source)

    def log_density(self, z: npt.ArrayLike, x: npt.ArrayLike) -> FloatArray:
        """Return the log-probability of releases ``z`` for true locations ``x``, broadcast."""
        released = as_floats(z, "values", CoordinateError)
        true = as_floats(x, "values", CoordinateError)
        rows, columns = np.broadcast_arrays(self._find_rows(true), self._find_rows(released, must=False))
        with np.errstate(divide="ignore"):
            logs = np.log(self.weights[rows, columns]) - log(ROW_WEIGHT)
        return np.asarray(np.where(columns < 0, -np.inf, logs))

    def privacy_loss(self, x: npt.ArrayLike, y: npt.ArrayLike) -> FloatArray:
        """Return the largest absolute log ratio of output probabilities for ``x`` and ``y``."""
        first, second = np.broadcast_arrays(
            *(self._find_rows(as_floats(values, "values", CoordinateError)) for values in (x, y))
        )
        with np.errstate(divide="ignore"):
            logs = np.log(self.weights)
        return np.asarray(np.abs(logs[first] - logs[second]).max(axis=-1))

    def gauge(self, loss: float, rounding: float = 0.0) -> NoReturn:
        """Raise an error: the loss of a table is not a function of the difference."""
        raise InvalidInputError(f"a table has no gauge (loss {loss}, rounding {rounding}): use its privacy_loss")

    def _find_row(self, x: npt.ArrayLike) -> int:
        return int(self._find_rows(np.asarray(x, dtype=np.float64)))

    def _find_rows(self, values: FloatArray, must: bool = True) -> IntArray:
        """Return the indices of locations ``(..., d)``. -1 or an error if there is none."""
        if values.ndim == 0 or values.shape[-1] != self.dimension:
            raise CoordinateError(f"values must have {self.dimension} as the last axis, got shape {values.shape}")
        flat = values.reshape(-1, self.dimension)
        rows = np.array([self._rows.get(_make_key(value), -1) for value in flat], dtype=np.int64)
        if must and (rows < 0).any():
            missing = flat[int(np.argmin(rows))].tolist()
            raise CoordinateError(f"values must be among the {len(self.points)} locations of the table, got {missing}")
        return rows.reshape(values.shape[:-1])


def _make_key(point: FloatArray) -> bytes:
    return (point + 0.0).tobytes()  # minus zero is zero


def _merge_equal_states(
    f: npt.ArrayLike, edges: npt.ArrayLike, prior: npt.ArrayLike | None
) -> tuple[FloatArray, IntArray, FloatArray]:
    """Return distinct locations, the edges between them, and the prior mass of each."""
    measured = as_points(f, "measurements") + 0.0
    pairs = as_integers(edges, "edges", PolicyError).reshape(-1, 2)
    if len(pairs) and not 0 <= pairs.min() <= pairs.max() < len(measured):
        raise PolicyError(f"edges must connect states in 0..{len(measured) - 1}, got {pairs.min()} to {pairs.max()}")
    weights = np.ones(len(measured)) if prior is None else as_floats(prior, "prior")
    if weights.shape != (len(measured),) or not np.isfinite(weights).all() or (weights < 0).any() or not weights.any():
        raise InvalidInputError(f"prior must be non-negative numbers over {len(measured)} states with a positive sum")
    points, place = np.unique(measured, axis=0, return_inverse=True)
    place = place.ravel()
    if len(points) > MAX_TABLE_LOCATIONS:
        raise PolicyError(f"a table must have at most {MAX_TABLE_LOCATIONS:,} locations, got {len(points):,}")
    joined = np.unique(np.sort(place[pairs], axis=1), axis=0)
    joined = joined[joined[:, 0] != joined[:, 1]]
    if len(points) > 1:
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import connected_components

        graph = csr_array((np.ones(len(joined)), (joined[:, 0], joined[:, 1])), shape=(len(points),) * 2)
        parts = int(connected_components(graph, directed=False)[0])
        if parts > 1:
            raise PolicyError(f"the edges must connect all states, got {parts} components: build one table for each")
    masses = np.bincount(place, weights / weights.max(), len(points))
    return points, joined, np.asarray(masses, dtype=np.float64)
