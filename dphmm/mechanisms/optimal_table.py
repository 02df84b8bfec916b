"""Noise by a table: which of some places is released from each of them, in whole numbers, and the best such table.

A row is the law of a release from one state: whole numbers that sum to ``2**62``, so that a random word of 62 digits
draws from it exactly. The promise on an edge ``jl`` is ``k(z|j) <= exp(epsilon) k(z|l)`` for every output, and the
other way round. It is kept with a rational number at most ``exp(epsilon)``, so that comparing whole numbers decides it.

The best table of a connected graph over ``n`` states with prior ``p`` minimises
``sum_s p(s) sum_z k(z|s) |f_z - f_s|^2`` over tables whose rows sum to one and that keep ``k(z|j) <= r k(z|l)`` on
every edge (Bordenabe, Chatzikokolakis, Palamidessi, CCS 2014, with edges in place of a metric). It has ``n^2`` unknowns
and ``2 n`` conditions an edge. A clique asks that its greatest and its least entry for an output differ by at most
``r``: with the least one as an unknown of its own, its ``m (m - 1) n`` conditions become ``2 m n``, and say the same.

Outputs meet in the sums of rows alone, so an interior point method (Mehrotra, SIAM J. Optim. 1992) has to solve, at
each step, one system of ``n`` unknowns for each output (`Blocks`) and one of ``n`` for all of them. What it has reached
is proven as it goes. For any multipliers ``l >= 0`` of the conditions ``A x >= 0``, no table is better than
``sum_s min_z (c - A' l)_{s, z}``; it stops where its own error is as near to that as wanted.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cached_property
from math import log
from typing import Any, Literal, NoReturn, get_args

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import (
    BoolArray,
    FloatArray,
    IntArray,
    RandomSource,
    Rng,
    as_floats,
    as_integers,
    as_points,
    check_budget,
    random_source,
)
from dphmm.errors import CoordinateError, InvalidInputError, PolicyError, PromiseError, need
from dphmm.mechanisms.base import Mechanism, Table, check_size
from dphmm.mechanisms.exact import decimal_context
from dphmm.tables.values import shorten

_CLIQUE = 4
"""Cliques of fewer states save no conditions."""


def hops_between(size: int, edges: IntArray) -> IntArray:
    """How many edges lie between any two of some states, ``(n, n)``, which must all be connected."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import shortest_path

    graph = csr_array((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(size, size))
    return np.asarray(shortest_path(graph, unweighted=True, directed=False)).astype(np.int64)


def is_clique(size: int, edges: IntArray) -> bool:
    """Whether different edges ``(m, 2)`` join every two of some states."""
    return len(edges) == size * (size - 1) // 2


def cliques_of(size: int, edges: IntArray) -> tuple[list[IntArray], IntArray]:
    """Some cliques, found greedily, and the edges ``(m, 2)`` that lie in none of them."""
    if size >= _CLIQUE and is_clique(size, edges):
        return [np.arange(size)], np.zeros((0, 2), dtype=np.int64)
    joined: BoolArray = np.zeros((size, size), dtype=np.bool_)
    joined[edges[:, 0], edges[:, 1]] = joined[edges[:, 1], edges[:, 0]] = True
    left, found = joined.copy(), []
    for state in np.argsort(-joined.sum(axis=1), kind="stable").tolist():
        members, others = [state], left[state].copy()
        while others.any():
            inside = np.flatnonzero(others)
            best = int(inside[np.argmax((joined[inside] & others).sum(axis=1))])
            members.append(best)
            others &= joined[best]
        if len(members) >= _CLIQUE:
            found.append(np.array(members))
            left[np.ix_(members, members)] = False
    return found, np.argwhere(np.triu(left))


BITS = 62
TOTAL = 1 << BITS
"""What the weights of a row sum to."""
_LIMB = 31
_MOST = (1 << _LIMB) - 1
_BLOCK = 1 << 20
_MOST_MIXED = 0.01
LEAST_ROOM = 1e-6
"""Where the ratio is nearer to one, budgets below a millionth, an output tells nothing at all: all rows are alike."""


def ratio_below(epsilon: float) -> tuple[int, int]:
    """A fraction at most ``exp(epsilon)``, below it by a share of about ``2**-31``; both parts are below ``2**31``.

    For budgets above 21 it is ``2**31 - 1``: a stronger promise than asked for, with next to no noise.

    Examples
    --------
    >>> from fractions import Fraction
    >>> Fraction(*ratio_below(1.0)) < Fraction("2.718281828459045")
    True
    >>> ratio_below(50.0), ratio_below(1e-12)
    ((2147483647, 1), (1, 1))
    """
    exact = Decimal(check_budget(epsilon))  # a double as it is, not as it is written
    if exact > 22:
        return _MOST, 1
    with localcontext(decimal_context(60)):
        power = exact.exp()
        under = int(Decimal(_MOST) / power)
        over = int(power * under * (1 - Decimal(10) ** -50))
    return (over, under) if over > under else (1, 1)


def broken(weights: IntArray, edges: IntArray, ratio: tuple[int, int]) -> BoolArray:
    """Which edges some output tells apart by more than a ratio, ``(m,)``, decided in integers.

    Parameters
    ----------
    weights
        ``(n, outputs)``, from 0 to ``2**62``.
    edges
        ``(m, 2)`` pairs of rows.
    ratio
        Two whole numbers from 1 to below ``2**31``; the ratio is their quotient.
    """
    over, under = ratio
    found = np.zeros(len(edges), dtype=np.bool_)
    step = max(1, _BLOCK // max(1, weights.shape[1]))
    high, low = weights >> _LIMB, weights & _MOST
    tops = _times(high, low, under)
    limits = _times(high, low, over)
    for start in range(0, len(edges), step):
        first, second = edges[start : start + step].T
        for one, other in ((first, second), (second, first)):
            found[start : start + step] |= _above(tops, one, limits, other).any(axis=1)
    return found


def _times(high: IntArray, low: IntArray, factor: int) -> tuple[IntArray, IntArray]:
    """Products as a part in units of ``2**31``, and what is left: neither leaves 64 bits."""
    product = low * factor
    return high * factor + (product >> _LIMB), product & _MOST


def _above(
    tops: tuple[IntArray, IntArray], one: IntArray, limits: tuple[IntArray, IntArray], other: IntArray
) -> BoolArray:
    high, limit = tops[0][one], limits[0][other]
    return np.asarray((high > limit) | ((high == limit) & (tops[1][one] > limits[1][other])))


def integer_rows(probabilities: FloatArray, edges: IntArray, ratio: tuple[int, int]) -> tuple[IntArray, float]:
    """Probabilities near the edges' promise as whole numbers that keep it.

    Rounding breaks an edge that was tight. So as little as needed of the even table, in which no output tells anything
    and which leaves every edge room, is mixed in before rounding, until all edges hold.

    Parameters
    ----------
    probabilities
        ``(n, outputs)``, not negative; rows sum to about one.
    edges, ratio
        As for `broken`.

    Returns
    -------
    weights, mixed
        ``(n, outputs)`` whole numbers that sum to ``2**62`` in every row, and the share of the even table in them.

    Raises
    ------
    PromiseError
        When the probabilities are nowhere near the promise.
    """
    rows = np.maximum(probabilities, 0.0)
    rows = rows / rows.sum(axis=1, keepdims=True)
    outputs = rows.shape[1]
    room = ratio[0] / ratio[1] - 1
    if room < LEAST_ROOM:  # equal rows keep every promise
        rows = np.broadcast_to(rows.mean(axis=0), rows.shape)
    mixed = outputs * 2.0**-50 / max(room, LEAST_ROOM)
    while mixed < _MOST_MIXED:
        weights = _in_whole_numbers((1 - mixed) * rows + mixed / outputs)
        if not broken(weights, edges, ratio).any():
            return weights, mixed
        mixed *= 4
    raise PromiseError("no table near the one that was worked out keeps the promise on every edge; nothing was drawn")


def _in_whole_numbers(rows: FloatArray) -> IntArray:
    """Whole numbers in proportion to rows of probabilities; what rounding leaves goes to the largest of each row."""
    weights = np.floor(rows * (TOTAL >> 1)).astype(np.int64)  # half, so that no double reaches beyond 64 bits
    weights *= 2
    largest = rows.argmax(axis=1)
    weights[np.arange(len(rows)), largest] += TOTAL - weights.sum(axis=1)
    return weights


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
    def from_edges(cls, size: int, edges: IntArray, ratio: float) -> Conditions:
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


class Graph:
    """``A' D A`` of every output of any graph, ready to be solved by inverses.

    They take ``u^3`` operations and ``u^2`` doubles for each output.

    Parameters
    ----------
    conditions, weights
        ``A``, and ``D > 0`` as ``(c, outputs)``.
    """

    def __init__(self, conditions: Conditions, weights: FloatArray) -> None:
        from scipy.linalg.lapack import dpotrf, dpotri

        size, self._states = conditions.unknowns, conditions.size
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
        """The solutions ``(u, outputs)`` for right sides of the same shape."""
        return np.asarray((self._inverses @ wanted.T[:, :, None])[:, :, 0].T)

    def coupling(self) -> FloatArray:
        """``(n, n)``: the sum of the inverses, of which the states' part."""
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
        """As `Graph`."""
        least = (wanted[-1] + (self._border * wanted[:-1]).sum(axis=0)) / self._corner
        return np.concatenate([wanted[:-1] / self._diagonal + self._border * least, least[None]])

    def coupling(self) -> FloatArray:
        """As `Graph`."""
        found = (self._border / self._corner) @ self._border.T
        found[np.diag_indices(len(found))] += (1.0 / self._diagonal).sum(axis=1)
        return np.asarray(found)


_DIGITS = 30
"""Binary digits of the prior. With 20 of them, beliefs over many powers of ten had tables whose error was up to twice
as large."""
_NEAR = 1e-4
"""How near to the bound the error is wanted, as a share of it."""
_MUST = 0.01
"""How near it has to be, or there is no table."""
_NOTHING = 1e-12
"""An error that counts as none, as a share of the even table's."""
_MOST_STEPS, _PATIENCE = 80, 5
_ROUNDING = 1e-9
"""How far sums of rows may be from one."""
_KEPT = 0.995
"""How far a step goes towards where a condition would be broken."""


TableSolver = Literal["interior-point", "cvxopt"]
"""Solvers of the program: this module's, which knows its structure, and ``cvxopt.solvers.lp``, an independent one."""


def least_error_table(
    points: FloatArray,
    edges: IntArray,
    ratio: float,
    prior: FloatArray,
    solver: TableSolver = "interior-point",
) -> tuple[FloatArray, float]:
    """The table of least expected squared error, in floating point, and what no table's error is below.

    It is a function of its arguments alone: nothing is carried over from earlier solutions, so that a reader who
    knows what is public can work it out again. Where several tables are best it is one in their midst,
    not a corner that rounding would choose.

    Parameters
    ----------
    points
        ``(n, d)`` measurements of the states, which are the outputs as well.
    edges
        ``(m, 2)`` pairs of states.
    ratio
        At least 1. Nearer to it than a millionth all rows are alike.
    prior
        ``(n,)``, not negative and not all zero. The table is that of the prior to nine digits, so that the last
        bits of a belief do not choose it; the bound is that of the prior as it is.
    solver
        ``"interior-point"``, or ``"cvxopt"`` to check the former by an independent solver of the same program: as quick
        with up to 40 states, and 4 to 50 times slower with 100.

    Returns
    -------
    probabilities, bound
        ``(n, n)``, row by true state; rows sum to one, and edges hold with room to spare, both up to rounding. The
        bound is proven, up to rounding, and within about a ten-thousandth of the table's error, but for programs that
        rounding makes an end of: those are within a hundredth. Where the error is a billionth of what the places are
        apart, squared, a prior to nine digits is too few for that, and the bound, which knows more, says so.

    Raises
    ------
    PromiseError
        When no table was found whose error is within a hundredth of a bound.
    """
    size = len(points)
    apart = np.square(points[:, None, :] - points[None, :, :]).sum(axis=2)
    weights = np.rint(prior / prior.max() * 2.0**_DIGITS)
    costs, true_costs = (one[:, None] / one.sum() * apart for one in (weights, prior / prior.max()))
    if ratio - 1.0 < LEAST_ROOM:
        best = int(np.argmin(costs.sum(axis=0)))
        return np.tile(np.eye(size)[best], (size, 1)), float(true_costs.sum(axis=0).min()) / ratio ** (size - 1)
    unit = float(costs.sum()) / size or 1.0
    conditions = Conditions.from_edges(size, edges, ratio)
    solve = _solve_with_cvxopt if solver == "cvxopt" else _solved
    with np.errstate(all="ignore"):  # a step that leaves what doubles hold is the last
        table, error, bound, multipliers = solve(costs / unit, conditions)
        proven = conditions.bound(true_costs / unit, multipliers)
    if not error - bound <= max(_MUST * error, _NOTHING):
        raise PromiseError(
            f"the program of the best table of {size} states was not solved (its error is between {bound * unit:.6g} "
            f"and {error * unit:.6g}); nothing was drawn"
        )
    return table, max(0.0, proven * unit)


def _solved(costs: FloatArray, conditions: Conditions) -> tuple[FloatArray, float, float, FloatArray]:
    """The best table that was found, its error, the best bound, and the multipliers that prove it.

    Columns are outputs. ``entries`` are the unknowns of each, ``room`` is what their conditions leave, ``held`` the
    multipliers of these, ``prices`` those of the sums of rows.
    """
    size, outputs = costs.shape
    entries = conditions.even(outputs)
    prices, room = np.zeros(size), conditions.room(entries)
    held = float(np.mean(costs)) * size / len(room) / room
    all_costs = np.concatenate([costs, np.zeros((len(entries) - size, outputs))])
    table, error, bound, proof, waited = entries[:size], np.inf, 0.0, np.zeros_like(held), 0
    for _ in range(_MOST_STEPS):
        sums = entries[:size].sum(axis=1)
        reached = entries[:size] / sums[:, None]
        value, proven = float((costs * reached).sum()), conditions.bound(costs, held)
        better = np.abs(sums - 1.0).max() <= _ROUNDING and value < error
        waited = 0 if (better and value < (1 - _NEAR) * error) or proven > bound + _NEAR * value else waited + 1
        table, error = (reached, value) if better else (table, error)
        bound, proof = (proven, held) if proven > bound else (bound, proof)
        if error - bound <= max(_NEAR * error, _NOTHING) or waited > _PATIENCE or not np.isfinite(value + proven):
            break
        newton = _Newton(conditions, (Clique if conditions.is_clique else Graph)(conditions, held / room), held / room)
        reduced = all_costs.copy()
        reduced[:size] -= prices[:, None]
        mean, aim = float((held * room).mean()), np.zeros_like(room)
        for corrected in (False, True):
            moved, change = newton(conditions.pulled(aim / room) - reduced, 1.0 - sums)
            opened = conditions.room(moved)
            grown = aim / room - held * (1.0 + opened / room)
            far, further = _reach(room, opened), _reach(held, grown)
            if not corrected:
                later = float(((held + further * grown) * (room + far * opened)).mean())
                aim = (later / mean) ** 3 * mean - grown * opened
        entries = entries + _KEPT * far * moved
        held, prices = held + _KEPT * further * grown, prices + _KEPT * further * change
        room = conditions.room(entries)
    return table, error, bound, proof


def _solve_with_cvxopt(costs: FloatArray, conditions: Conditions) -> tuple[FloatArray, float, float, FloatArray]:
    """Solve the program as one linear program with ``cvxopt.solvers.lp``; returns what `_solved` does.

    The bound is computed from CVXOPT's multipliers and not taken from it, so that it holds whatever the accuracy.
    """
    cvxopt = need("cvxopt", None)
    matrix, solvers, spmatrix = cvxopt.matrix, cvxopt.solvers, cvxopt.spmatrix

    size, outputs = costs.shape
    unknowns, count = conditions.unknowns, len(conditions.greater)
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
        even = conditions.even(outputs)[:size]
        return even, float((costs * even).sum()), 0.0, np.zeros((count, outputs))  # nothing is proven of it
    table = np.maximum(np.array(solution["x"]).reshape(unknowns, outputs)[:size], 0.0)
    table /= table.sum(axis=1, keepdims=True)
    multipliers = np.maximum(np.array(solution["z"]).reshape(count, outputs), 0.0)
    return table, float((costs * table).sum()), conditions.bound(costs, multipliers), multipliers


class _Newton:
    """Changes of entries and prices for which conditions of both hold, refined once against rounding."""

    def __init__(self, conditions: Conditions, blocks: Graph | Clique, weights: FloatArray) -> None:
        self._conditions, self._blocks, self._weights, self._coupling = conditions, blocks, weights, blocks.coupling()

    def __call__(self, wanted: FloatArray, lacking: FloatArray) -> tuple[FloatArray, FloatArray]:
        """``H x - E' y = wanted`` for each output and ``sum E x = lacking``, of which ``x`` and ``y``."""
        moved, change = self._once(wanted, lacking)
        left = wanted - self._conditions.pulled(self._weights * self._conditions.room(moved))
        left[: len(lacking)] += change[:, None]
        more, again = self._once(left, lacking - moved[: len(lacking)].sum(axis=1))
        return moved + more, change + again

    def _once(self, wanted: FloatArray, lacking: FloatArray) -> tuple[FloatArray, FloatArray]:
        size, right = len(lacking), wanted.copy()
        change = np.linalg.solve(self._coupling, lacking - self._blocks.solve(wanted)[:size].sum(axis=1))
        right[:size] += change[:, None]
        return self._blocks.solve(right), np.asarray(change)


def _reach(positive: FloatArray, change: FloatArray) -> float:
    """How much of a change can be added, all of it at most, before something is no longer positive."""
    fastest = float((-change / positive).max())
    return min(1.0 / _KEPT, 1.0 / fastest) if fastest > 0 else 1.0 / _KEPT


LARGEST_TABLE = 2048
"""How many places a table may have: it takes 32 MiB."""
LARGEST_PROGRAM = 400
"""For how many the program of the best one is solved, unless all of them are joined: it takes half a gigabyte."""


class TableMechanism(Mechanism):
    """Releases a place ``z`` from a place ``s`` with the probability ``k(z|s)`` of a table.

    The probabilities are whole numbers over ``2**62`` and a draw is one comparison of whole numbers, so that the law is
    the stated one as long as random bits are uniform. On every edge the ratio of the probabilities of every output is
    at most a fraction that is at most ``exp(epsilon)``; that is decided in whole numbers when the table is made.

    Made by `optimal` and `graph_exponential`.

    Parameters
    ----------
    points
        ``(n, d)`` different places; true values and outputs are among them, given by the same doubles.
    edges
        ``(m, 2)`` pairs of places.
    epsilon
        The budget of an edge.
    probabilities
        ``(n, n)``: row by true place. They are rounded to whole numbers that keep the promise; see `integer_rows`.
    prior
        ``(n,)``: how probable each place is, for `squared_error`.
    optimum
        What no table's squared error under the prior is below, where that is known.

    Raises
    ------
    PromiseError
        When no table near these probabilities keeps the promise.
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
        self.points, self.edges = points, edges
        self.dimension = points.shape[1]
        self.ratio = ratio_below(self.epsilon)
        """Two whole numbers whose quotient bounds every ratio on an edge; at most ``exp(epsilon)``."""
        self.weights, self.mixed = integer_rows(probabilities, edges, self.ratio)
        self.weights.setflags(write=False)
        apart = np.square(points[:, None, :] - points[None, :, :]).sum(axis=2)
        self._squared_error = float(prior / prior.sum() @ (self.weights / TOTAL * apart).sum(axis=1))
        self.optimum = optimum
        self._sums = np.cumsum(self.weights, axis=1)
        self._rows = {_key(point): row for row, point in enumerate(points)}

    @classmethod
    @checked
    def optimal(
        cls,
        f: npt.ArrayLike,
        edges: npt.ArrayLike,
        epsilon: float,
        prior: npt.ArrayLike | None = None,
        solver: TableSolver = "interior-point",
    ) -> TableMechanism:
        """The table with the least expected squared error under a prior: see `dphmm.mechanisms.optimal_table`.

        Parameters
        ----------
        f
            ``(n, d)`` measurements of states. States of equal measurements are one place.
        edges
            ``(m, 2)`` pairs of states. They connect all of them.
        epsilon
            The budget of an edge; a double.
        prior
            ``(n,)``, not negative and not all zero; left out, all alike.
        solver
            ``"interior-point"``, or ``"cvxopt"`` to check it by an independent solver; see `least_error_table`.

        Raises
        ------
        PolicyError
            When the edges do not connect all states, or there are more than `LARGEST_TABLE`, or than `LARGEST_PROGRAM`
            that are not all joined with each other.
        InvalidInputError
            For measurements, a budget, a prior or a solver that are none.
        PromiseError
            When the program could not be solved.

        Examples
        --------
        >>> table = TableMechanism.optimal([[0.0], [1.0], [2.0]], [[0, 1], [1, 2]], 1.0)
        >>> bool((table.privacy_loss([[0.0], [1.0]], [[1.0], [2.0]]) <= 1.0).all())
        True
        """
        if not isinstance(solver, str) or solver not in get_args(TableSolver):
            raise InvalidInputError(f"solver must be one of {', '.join(get_args(TableSolver))}, got {shorten(solver)}")
        points, pairs, weights = _places(f, edges, prior)
        over, under = ratio_below(check_budget(epsilon))
        if len(points) == 1:
            return cls(points, pairs, epsilon, np.ones((1, 1)), weights, 0.0)
        if len(points) > LARGEST_PROGRAM and not is_clique(len(points), pairs):
            raise PolicyError(
                f"the program of {len(points):,} places would not fit; {LARGEST_PROGRAM} is the most, unless all are "
                "joined"
            )
        table, optimum = least_error_table(points, pairs, over / under, weights, solver)
        return cls(points, pairs, epsilon, table, weights, optimum)

    @classmethod
    @checked
    def graph_exponential(
        cls, f: npt.ArrayLike, edges: npt.ArrayLike, epsilon: float, prior: npt.ArrayLike | None = None
    ) -> TableMechanism:
        """The table ``k(z|s)`` in proportion to ``exp(-epsilon hops(s, z) / 2)``; parameters and errors of `optimal`.

        On an edge the hops differ by one at most, and so do numerators and normalisers by ``exp(epsilon / 2)`` each.

        Parameters
        ----------
        f, edges, epsilon, prior
            As of `optimal`.

        Returns
        -------
        TableMechanism
            The table.
        """
        points, pairs, weights = _places(f, edges, prior)
        rows = np.exp(-check_budget(epsilon) / 2 * hops_between(len(points), pairs))
        return cls(points, pairs, epsilon, rows / rows.sum(axis=1, keepdims=True), weights)

    @property
    def squared_error(self) -> float:
        """The expected squared distance of a release from the true place, under the prior."""
        return self._squared_error

    @property
    def least_squared_error(self) -> float | None:
        """What no table's squared error under the prior is below, where that is known."""
        return self.optimum

    @property
    def table(self) -> Table:
        """The places, and the weights of outputs."""
        return Table(self.points, self.weights)

    @property
    def loss(self) -> float | None:
        """By what share of its squared error the table may miss the best one's; None where that is not known."""
        if self.optimum is None:
            return None
        return max(0.0, 1.0 - self.optimum / self.squared_error) if self.squared_error > 0 else 0.0

    def probability(self, z: npt.ArrayLike, x: npt.ArrayLike) -> Fraction:
        """The exact probability of a release ``z``, ``(d,)``, for a true place ``x``, ``(d,)``.

        Parameters
        ----------
        z, x
            The release and the true place.

        Returns
        -------
        Fraction
            The probability; 0 where the release is no place of the table.
        """
        row, column = self._row(x), self._rows.get(_key(np.asarray(z, dtype=np.float64)))
        return Fraction(0) if column is None else Fraction(int(self.weights[row, column]), TOTAL)

    def squared_error_at(self, epsilon: float) -> NoReturn:
        """Refused: the error of a table follows from no formula in its budget."""
        raise InvalidInputError(
            f"the error of a table follows from no formula in its budget {epsilon:g}; choose noise of a hull"
        )

    def squared_error_from(self, x: npt.ArrayLike) -> float:
        """The expected squared distance of a release of one true place ``(d,)`` from it."""
        row = self._row(x)
        apart = np.square(self.points - self.points[row]).sum(axis=1)
        return float(self.weights[row] / TOTAL @ apart)

    def sample(self, x: npt.ArrayLike, rng: Rng = None, size: int | None = None) -> FloatArray:
        """Releases of true places: see `Mechanism.sample`."""
        true, source = as_floats(x, "values", CoordinateError), random_source(rng)
        check_size(size)
        rows = self._found(true)
        count = 1 if size is None else size
        words = np.frombuffer(source.bytes(8 * count * rows.size), dtype=np.uint64) >> np.uint64(64 - BITS)
        numbers = words.astype(np.int64).reshape(count, rows.size)
        drawn = np.empty(numbers.shape, dtype=np.int64)
        for row in np.unique(rows):
            here = np.flatnonzero(rows.ravel() == row)
            drawn[:, here] = np.searchsorted(self._sums[row], numbers[:, here], side="right")
        found = self.points[drawn].reshape(count, *true.shape)
        return found[0] if size is None else found

    def draw(self, value: FloatArray, source: RandomSource) -> FloatArray:
        """One release of one true place ``(d,)``."""
        return self.sample(value, source)

    def log_density(self, z: npt.ArrayLike, x: npt.ArrayLike) -> FloatArray:
        """The log-probability of releases ``z`` for true places ``x``, broadcast; minus infinity off the places."""
        released, true = as_floats(z, "values", CoordinateError), as_floats(x, "values", CoordinateError)
        rows, columns = np.broadcast_arrays(self._found(true), self._found(released, must=False))
        with np.errstate(divide="ignore"):
            logs = np.log(self.weights[rows, columns]) - log(TOTAL)
        return np.asarray(np.where(columns < 0, -np.inf, logs))

    def privacy_loss(self, x: npt.ArrayLike, y: npt.ArrayLike) -> FloatArray:
        """The greatest log ratio of the probabilities of an output for true places ``x`` and ``y``, either way."""
        first, second = np.broadcast_arrays(
            *(self._found(as_floats(values, "values", CoordinateError)) for values in (x, y))
        )
        with np.errstate(divide="ignore"):
            logs = np.log(self.weights)
        return np.asarray(np.abs(logs[first] - logs[second]).max(axis=-1))

    def gauge(self, loss: float, rounding: float = 0.0) -> NoReturn:
        """A table has no gauge: how far it tells two places apart is no function of their difference."""
        raise InvalidInputError(f"a table has no gauge (loss {loss}, rounding {rounding}); ask for its privacy_loss")

    def _row(self, x: npt.ArrayLike) -> int:
        return int(self._found(np.asarray(x, dtype=np.float64)))

    def _found(self, values: FloatArray, must: bool = True) -> IntArray:
        """The numbers of places ``(..., d)``; -1, or refused, where there is none."""
        if values.ndim == 0 or values.shape[-1] != self.dimension:
            raise CoordinateError(f"values have shape {values.shape}; the last axis must be {self.dimension}")
        flat = values.reshape(-1, self.dimension)
        found = np.array([self._rows.get(_key(value), -1) for value in flat], dtype=np.int64)
        if must and (found < 0).any():
            missing = flat[int(np.argmin(found))].tolist()
            raise CoordinateError(f"place {missing} is not in the table; give one of its {len(self.points)} places")
        return found.reshape(values.shape[:-1])


def _key(point: FloatArray) -> bytes:
    return (point + 0.0).tobytes()  # minus zero is zero


def _places(
    f: npt.ArrayLike, edges: npt.ArrayLike, prior: npt.ArrayLike | None
) -> tuple[FloatArray, IntArray, FloatArray]:
    """Different places, the edges between them, and the prior mass of each."""
    measured = as_points(f, "measurements") + 0.0
    pairs = as_integers(edges, "edges", PolicyError).reshape(-1, 2)
    if len(pairs) and not 0 <= pairs.min() <= pairs.max() < len(measured):
        raise PolicyError(f"an edge joins a state beyond the {len(measured)}; states are 0 to {len(measured) - 1}")
    weights = np.ones(len(measured)) if prior is None else as_floats(prior, "prior")
    if weights.shape != (len(measured),) or not np.isfinite(weights).all() or (weights < 0).any() or not weights.any():
        raise InvalidInputError(f"prior is no distribution over {len(measured)} states; give numbers from 0, not all 0")
    points, place = np.unique(measured, axis=0, return_inverse=True)
    place = place.ravel()
    if len(points) > LARGEST_TABLE:
        raise PolicyError(f"a table of {len(points):,} places would not fit; {LARGEST_TABLE:,} is the most")
    joined = np.unique(np.sort(place[pairs], axis=1), axis=0)
    joined = joined[joined[:, 0] != joined[:, 1]]
    if len(points) > 1:
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import connected_components

        graph = csr_array((np.ones(len(joined)), (joined[:, 0], joined[:, 1])), shape=(len(points),) * 2)
        parts = int(connected_components(graph, directed=False)[0])
        if parts > 1:
            raise PolicyError(f"the edges leave {parts} parts; make one table for each connected component")
    masses = np.bincount(place, weights / weights.max(), len(points))
    return points, joined, np.asarray(masses, dtype=np.float64)
