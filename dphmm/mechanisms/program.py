"""The linear program of the table with the least expected squared error under a prior.

On a connected graph over ``n`` states with prior ``p``: minimise ``sum_s p(s) sum_z k(z|s) |f_z - f_s|^2`` over tables
whose rows sum to one and that keep ``k(z|j) <= r k(z|l)`` on every edge (Bordenabe, Chatzikokolakis, Palamidessi, CCS
2014, with edges in place of a metric). It has ``n^2`` unknowns and ``2 n`` conditions an edge. A clique asks that its
greatest and its least entry for an output differ by at most ``r``: with the least one as an unknown of its own, its
``m (m - 1) n`` conditions become ``2 m n``, and say the same.

Outputs meet in the sums of rows alone, so an interior point method (Mehrotra, SIAM J. Optim. 1992) has to solve, at
each step, one system of ``n`` unknowns for each output and one of ``n`` for all of them: `dphmm.mechanisms.blocks`.

What it has reached is proven as it goes. For any multipliers ``l >= 0`` of the conditions ``A x >= 0``, no table is
better than ``sum_s min_z (c - A' l)_{s, z}``; it stops where its own error is as near to that as wanted.
"""

from __future__ import annotations

import numpy as np

from dphmm.arrays import FloatArray, IntArray
from dphmm.errors import PromiseError
from dphmm.mechanisms.blocks import Blocks, Clique, Conditions, Graph
from dphmm.mechanisms.integer_table import LEAST_ROOM

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


def least_error_table(points: FloatArray, edges: IntArray, ratio: float, prior: FloatArray) -> tuple[FloatArray, float]:
    """The table of least expected squared error, in floating point, and what no table's error is below.

    It is a function of its arguments alone: nothing is carried over from earlier solutions, so that whoever knows what
    is public can work it out again. Where several tables are best it is one in their midst, not a corner that rounding
    would choose.

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
    conditions = Conditions.of(size, edges, ratio)
    with np.errstate(all="ignore"):  # a step that leaves what doubles hold is the last
        table, error, bound, multipliers = _solved(costs / unit, conditions)
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


class _Newton:
    """Changes of entries and prices for which conditions of both hold, refined once against rounding."""

    def __init__(self, conditions: Conditions, blocks: Blocks, weights: FloatArray) -> None:
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
