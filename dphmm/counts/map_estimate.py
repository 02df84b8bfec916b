"""The most probable counts at each time by itself, given noisy ones: real-valued and exact integer optima.

The objective of one time is ``sum_l |y_l - r_l| / scale - log Multinomial(r; n, p)`` (Cao et al., DBSec 2023, Eq. 6
and 8, before Stirling's formula, which would make it non-convex near zero). No term couples two times, so each time is
a separable convex problem under one sum: its real-valued optimum is one equation in a multiplier, its integer optimum
takes the cheapest ``n`` units (marginal allocation). Neither needs a general solver. The likelihood of discrete Laplace
noise has the same form, so the integer optimum is that of integer noise as well.

What one user's place is likely to be at each time follows from how users move: the marginals ``P^t = P^{t-1} M``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from numpy.polynomial.chebyshev import chebfit, chebval
from scipy import sparse
from scipy.special import digamma, gammaln, polygamma

from dphmm.arrays import BoolArray, FloatArray, IntArray, as_distribution
from dphmm.errors import ConfigurationError, ConvergenceError, CountError, need

_DOUBLING = 256
"""Places up to which powers of the matrix are formed."""

Prior = Literal["frequency", "uniform"]
"""What stands for the unknown distribution at the first time: the noisy counts' frequencies, or every place alike."""


Solver = Literal["newton", "cvxopt"]
"""How the real-valued optimum is found: by `real_map`, or by CVXOPT as an independent check."""


@dataclass(frozen=True)
class Occupancy:
    """The distribution of one user over ``m`` places at each of ``T`` times.

    The support is carried beside the probabilities, by the structure of the matrix: a probability that underflows
    does not make a place impossible.

    Parameters
    ----------
    probabilities
        ``(T, m)``, each row sums to one.
    possible
        ``(T, m)`` booleans, false where the probability is zero by structure.
    """

    probabilities: FloatArray
    possible: BoolArray

    @property
    def log_probabilities(self) -> FloatArray:
        """``(T, m)``; minus infinity where impossible, finite elsewhere."""
        floor = np.finfo(np.float64).tiny
        with np.errstate(divide="ignore"):
            return np.where(self.possible, np.log(np.maximum(self.probabilities, floor)), -np.inf)


def first_distribution(noisy: FloatArray, prior: Prior | npt.ArrayLike) -> FloatArray:
    """The distribution that stands for ``P^1``.

    Parameters
    ----------
    noisy
        Noisy counts ``(T, m)``.
    prior
        ``"frequency"``: the first row, negative counts as zero, normalised (uniform when nothing positive is left);
        ``"uniform"``; or a distribution ``(m,)`` that is known.

    Raises
    ------
    ConfigurationError
        For another name.
    StochasticError
        For an array that is no distribution.
    """
    size = noisy.shape[1]
    if not isinstance(prior, str):
        return as_distribution(prior, size)
    if prior == "uniform":
        return np.full(size, 1.0 / size)
    if prior != "frequency":
        raise ConfigurationError(f"the prior is {prior!r}; give 'frequency', 'uniform' or a distribution")
    positive = np.maximum(noisy[0], 0.0)
    total = positive.sum()
    return positive / total if total > 0 else np.full(size, 1.0 / size)


def occupancy(first: npt.ArrayLike, transition: sparse.csr_array, steps: int) -> Occupancy:
    """The marginals of ``steps`` times, at least one, from the distribution at the first one."""
    start = np.asarray(first, dtype=np.float64)
    links = np.ones_like(transition.data), transition.indices, transition.indptr
    structure = sparse.csr_array(links, shape=transition.shape)
    possible = _orbit((start > 0).astype(np.float64), structure, steps, cap=1.0) > 0
    return Occupancy(_orbit(start, transition, steps), possible)


def _orbit(first: FloatArray, matrix: sparse.csr_array, steps: int, cap: float = np.inf) -> FloatArray:
    """The rows ``first @ matrix**t`` for t below `steps`, entries capped; a small matrix doubles them each round."""
    size = matrix.shape[0]
    rows = np.empty((steps, size))
    rows[0] = first
    if size > _DOUBLING:
        backward = sparse.csr_array(matrix.T)
        for t in range(1, steps):
            rows[t] = np.minimum(backward @ rows[t - 1], cap)
        return rows
    have, power = 1, matrix.toarray()
    while have < steps:
        more = min(have, steps - have)
        rows[have : have + more] = np.minimum(rows[:more] @ power, cap)
        have, power = have + more, np.minimum(power @ power, cap)
    return rows


LOWEST = float(digamma(1.0))
"""``psi(1)``: the value at count zero. Below it the inverse would be a negative count."""

_DEGREE = 18
_EDGE = float(np.exp(-LOWEST))
"""The largest ``exp(-value)`` at which a count is not negative."""


def _table() -> FloatArray:
    """Chebyshev coefficients of ``inverse(log u) - (u - 1/2)`` as a function of ``v = 1 / u``, divided by ``v``.

    The function is smooth down to ``v = 0``, where its asymptotic series starts with ``-v / 24``.
    """
    node = np.cos(np.pi * (np.arange(4 * _DEGREE) + 0.5) / (4 * _DEGREE))
    v = 0.5 * _EDGE * (node + 1.0)
    # Below 1/60 the difference of two large numbers loses digits; three terms of the series are exact there.
    series = -1 / 24 + v**2 * (3 / 640 - v**2 * (1525 / 580608))
    counts = np.maximum(1.0 / v - 0.5, 0.0)
    for _ in range(60):  # Newton's iteration
        counts = counts - (digamma(counts + 1.0) + np.log(v)) / polygamma(1, counts + 1.0)
    exact = (counts - (1.0 / v - 0.5)) / v
    return np.asarray(chebfit(node, np.where(v < 1 / 60, series, exact), _DEGREE), dtype=np.float64)


_COEFFICIENTS = _table()


def count_at(values: FloatArray) -> FloatArray:
    """The count ``r >= 0`` at which ``psi(r + 1)`` takes each value; zero for values below ``psi(1)``.

    Parameters
    ----------
    values
        Any shape; minus infinity gives zero. Values above 700 overflow and are not expected.

    Returns
    -------
    FloatArray
        The same shape, exact to about 1e-12 relative to ``r + 1``.
    """
    u = np.exp(np.maximum(values, LOWEST))
    v = 1.0 / u
    return np.maximum(u - 0.5 + v * chebval(v * (2.0 / _EDGE) - 1.0, _COEFFICIENTS), 0.0)


_BLOCK = 16_384
"""Values worked on at a time, so that the work arrays stay in the processor's cache."""

_OVERFLOW = 700.0
"""A cost that no count reaches; places that stay at their noisy count may ask for more when the noise is tiny."""

_ITERATIONS = 200
"""More than bisection alone would take; the iteration is bracketed, so it cannot run away."""


def real_map(noisy: FloatArray, log_p: FloatArray, users: int, scales: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The real-valued optimum of each time.

    With multiplier ``theta`` the optimal count is ``y`` clipped to the interval between the counts at which
    ``psi(r + 1)`` equals ``theta + log p - 1/scale`` and ``theta + log p + 1/scale``, and zero where that is negative.
    The sum grows with ``theta``; Newton's iteration, kept inside a bracket, finds where it is ``users``.

    Parameters
    ----------
    noisy, log_p
        ``(T, m)``; every row of ``log_p`` has a finite entry.
    users
        What each row sums to.
    scales
        ``(T,)``, positive.

    Returns
    -------
    counts : FloatArray
        ``(T, m)``, not negative, zero where impossible.
    multipliers : FloatArray
        ``(T,)``: what one more user would cost.
    """
    impossible = ~np.isfinite(log_p).any(axis=1)
    if impossible.any():
        raise CountError(f"time {int(np.flatnonzero(impossible)[0])} has no possible place; one must be possible")
    counts, multipliers = np.empty_like(noisy), np.empty(len(noisy))
    for rows in _blocks(*noisy.shape):
        counts[rows], multipliers[rows] = _solve(noisy[rows], log_p[rows], users, 1.0 / scales[rows])
    return counts, multipliers


def _blocks(steps: int, places: int) -> Iterator[slice]:
    size = max(1, _BLOCK // places)
    return (slice(start, start + size) for start in range(0, steps, size))


def _solve(noisy: FloatArray, log_p: FloatArray, users: int, slope: FloatArray) -> tuple[FloatArray, FloatArray]:
    theta = np.log(users) * np.ones(len(noisy))
    low = theta - slope - 1.0
    high = np.log(users + noisy.shape[1]) + slope + 1.0
    # A place where no user can be, or whose noisy count is negative, is never at its noisy count.
    costed = (noisy >= 0) & np.isfinite(log_p)
    cost_at_noisy = np.where(costed, digamma(np.maximum(noisy, 0.0) + 1.0) - np.where(costed, log_p, 0.0), -np.inf)
    active = np.arange(len(noisy))
    for _ in range(_ITERATIONS):
        now = theta[active]
        counts, free = _counts_at(now, noisy[active], log_p[active], cost_at_noisy[active], slope[active])
        excess = counts.sum(axis=1) - users
        low[active] = np.where(excess <= 0, now, low[active])
        high[active] = np.where(excess >= 0, now, high[active])
        # 1 / psi'(r + 1) to a few per cent, which is all that Newton's iteration asks of its slope
        weight = np.where(free, counts + 0.5 + 0.11 / (counts + 1.0), 0.0).sum(axis=1)
        newton = now - excess / np.maximum(weight, 1e-300)
        inside = (newton > low[active]) & (newton < high[active])
        theta[active] = np.where(inside, newton, 0.5 * (low[active] + high[active]))
        done = (np.abs(excess) <= 1e-13 * users) | (high[active] - low[active] <= 4e-16 * np.abs(now))
        theta[active[done]] = now[done]
        active = active[~done]
        if active.size == 0:
            break
    return _counts_at(theta, noisy, log_p, cost_at_noisy, slope)[0], theta


def _counts_at(
    theta: FloatArray, noisy: FloatArray, log_p: FloatArray, cost_at_noisy: FloatArray, slope: FloatArray
) -> tuple[FloatArray, BoolArray]:
    """The optimal counts at given multipliers, and where they move with the multiplier."""
    gap = theta[:, None] - cost_at_noisy
    above = gap > slope[:, None]
    value = theta[:, None] + log_p + np.where(above, -slope[:, None], slope[:, None])
    at_noisy = np.abs(gap) <= slope[:, None]
    counts = np.where(at_noisy, noisy, count_at(np.minimum(value, _OVERFLOW)))
    return counts, ~at_noisy & (value > LOWEST)


_CVXOPT_TOLERANCE = 1e-10
"""Tolerance of the scaled problem, absolute, relative and of feasibility; tighter ones fail by rounding."""

_CVXOPT_ACCEPTED = 1e-8
"""Relative gap at which an iterate that stopped short of `_CVXOPT_TOLERANCE` by rounding is accepted."""


def real_map_cvxopt(noisy: FloatArray, log_p: FloatArray, users: int, scales: FloatArray) -> FloatArray:
    """Return the real-valued optimum of each time, found by CVXOPT's interior-point method.

    A second solver of the problem of `real_map` that shares no code with it: `cvxopt.solvers.cp` minimises the
    objective with ``log Gamma(r + 1)``, an epigraph variable for each ``|y - r|``, and the constraints of sum and sign.
    It takes some ten milliseconds per time, about a thousand times as long as `real_map`.

    Parameters
    ----------
    noisy, log_p : ndarray, shape (T, m)
        Noisy counts, and log probabilities with a finite entry in every row.
    users : int
        Sum of each row.
    scales : ndarray, shape (T,)
        Scale of the noise at each time, positive.

    Returns
    -------
    ndarray, shape (T, m)
        Counts, not negative, zero where a place is impossible. The objective is within ``1e-6`` of its minimum,
        relative to one plus its absolute value.

    Raises
    ------
    CountError
        If a time has no possible place.
    ConvergenceError
        If the solver does not reach its tolerance.
    """
    counts = np.zeros_like(noisy)
    for time, (row, logs, scale) in enumerate(zip(noisy, log_p, scales, strict=True)):
        possible = np.isfinite(logs)
        if not possible.any():
            raise CountError(f"time {time} must have a possible place, got none")
        # Counts lie between 0 and n, so clipping the noisy count changes |y - r| by a constant.
        clipped = np.clip(row[possible], 0.0, users)
        counts[time, possible] = _solve_by_cvxopt(clipped, logs[possible], users, float(scale), time)
    return counts


def _solve_by_cvxopt(noisy: FloatArray, log_p: FloatArray, users: int, scale: float, time: int) -> FloatArray:
    """Return the optimum of one time over its possible places."""
    # Imported here: only this solver needs it.
    cvxopt = need("cvxopt", None)

    size = len(noisy)
    if size == 1:
        return np.array([float(users)])
    # Shares x = r / n and u >= |y - r| / n have about unit size, as has the objective after division.
    size_of_costs = users * max(1.0, 1.0 / scale, float(np.abs(log_p).max()))

    def evaluate(x: Any = None, z: Any = None) -> Any:
        if x is None:
            return 0, cvxopt.matrix(np.concatenate([np.full(size, 1.0 / size), np.ones(size)]))
        shares = np.array(x[:size]).ravel()
        counts = users * shares
        if counts.min() <= -1.0:  # outside of the domain of log Gamma(r + 1)
            return None
        apart = np.array(x[size:]).ravel()
        cost = (gammaln(counts + 1.0) - counts * log_p).sum() + users / scale * apart.sum()
        slope = np.concatenate([users * (digamma(counts + 1.0) - log_p), np.full(size, users / scale)])
        value, gradient = cvxopt.matrix(cost / size_of_costs), cvxopt.matrix(slope[None] / size_of_costs)
        if z is None:
            return value, gradient
        curvature = np.concatenate([users**2 * polygamma(1, counts + 1.0), np.zeros(size)]) / size_of_costs
        return value, gradient, z[0] * cvxopt.spdiag(cvxopt.matrix(curvature))

    unit, zero = np.eye(size), np.zeros((size, size))
    # x - u <= y, -x - u <= -y and -x <= 0
    bounds = np.block([[unit, -unit], [-unit, -unit], [-unit, zero]])
    limits = np.concatenate([noisy / users, -noisy / users, np.zeros(size)])
    total = np.concatenate([np.ones(size), np.zeros(size)])[None]
    options = {
        "show_progress": False,
        "abstol": _CVXOPT_TOLERANCE,
        "reltol": _CVXOPT_TOLERANCE,
        "feastol": _CVXOPT_TOLERANCE,
    }
    matrices = [cvxopt.matrix(each) for each in (bounds, limits, total)]
    try:
        # Options of this call only: `cvxopt.solvers.options` belongs to the caller.
        found = cvxopt.solvers.cp(
            evaluate, G=matrices[0], h=matrices[1], A=matrices[2], b=cvxopt.matrix(1.0), options=options
        )
    except (ArithmeticError, ValueError) as error:
        raise ConvergenceError(f"CVXOPT must converge at time {time}, got: {error}") from None
    accuracy = max(found[name] for name in ("gap", "primal infeasibility", "dual infeasibility"))
    if found["status"] != "optimal" and not accuracy <= _CVXOPT_ACCEPTED:
        raise ConvergenceError(f"CVXOPT must converge at time {time}, got an accuracy of {accuracy:.1e}")
    shares = np.maximum(np.array(found["x"][:size]).ravel(), 0.0)
    return np.asarray(users * shares / shares.sum())


def integer_map(noisy: FloatArray, log_p: FloatArray, users: int, scales: FloatArray) -> IntArray:
    """The integer optimum of each time, exact by marginal allocation.

    The cost of a place's ``k``-th user does not fall with ``k``, so a row is optimal if and only if no user in it
    costs more than a user that is not: ``max_l cost(r_l) <= min_l cost(r_l + 1)``. The start is every user that costs
    no more than the real-valued optimum's multiplier; it is repaired, in cost order, until the condition holds, which
    is checked on every row that is returned. Costs are compared as double-precision numbers: rows whose objectives
    differ by rounding alone count as equal.

    Parameters
    ----------
    noisy, log_p
        ``(T, m)``; every row of ``log_p`` has a finite entry.
    users
        What each row sums to.
    scales
        ``(T,)``, positive.

    Returns
    -------
    IntArray
        ``(T, m)``.
    """
    start, multipliers = real_map(noisy, log_p, users, scales)
    counts = np.empty(noisy.shape, dtype=np.int64)
    for rows in _blocks(*noisy.shape):
        cost = _UnitCost(noisy[rows], log_p[rows], 1.0 / scales[rows])
        below = np.floor(start[rows])
        worth = below + (cost(below + 1.0) <= multipliers[rows][:, None])
        counts[rows] = _exchange(_fill(worth, users, cost), cost)
    return counts


class _UnitCost:
    """What the ``k``-th user of a place costs, for the rows of one block."""

    def __init__(self, noisy: FloatArray, log_p: FloatArray, slope: FloatArray) -> None:
        self.noisy, self.log_p, self.slope = noisy, log_p, slope[:, None]

    def __call__(self, k: FloatArray, rows: IntArray | slice = slice(None)) -> FloatArray:
        """``cost(k) - cost(k - 1)``; minus infinity for ``k = 0``, infinity where impossible."""
        noise = np.clip(2.0 * (k - self.noisy[rows]) - 1.0, -1.0, 1.0) * self.slope[rows]
        price = np.where(k > 0, np.log(np.maximum(k, 1.0)) - self.log_p[rows] + noise, -np.inf)
        return np.asarray(price)


def _fill(counts: FloatArray, users: int, cost: _UnitCost) -> FloatArray:
    """Rows of the right sum: the dearest users taken out, or the cheapest put in, at most one per place and round."""
    allowed = np.isfinite(cost.log_p)
    while True:
        missing = users - counts.sum(axis=1)
        short, long = np.flatnonzero(missing > 0), np.flatnonzero(missing < 0)
        if short.size == 0 and long.size == 0:
            return counts
        cheapest = _rank(cost(counts[short] + 1.0, short)) < missing[short][:, None]
        counts[short] += cheapest & allowed[short]
        dearest = _rank(-cost(counts[long], long)) < -missing[long][:, None]
        counts[long] -= dearest & (counts[long] > 0)


def _rank(values: FloatArray) -> IntArray:
    """The place of each value in its row's increasing order."""
    ranks = np.empty(values.shape, dtype=np.int64)
    np.put_along_axis(ranks, np.argsort(values, axis=1), np.arange(values.shape[1])[None, :], axis=1)
    return ranks


def _exchange(counts: FloatArray, cost: _UnitCost) -> FloatArray:
    """Users moved from where the last one is dearest to where the next is cheapest, until no move pays."""
    rows = np.arange(len(counts))
    while rows.size:
        kept = counts[rows]
        last, following = cost(kept, rows), cost(kept + 1.0, rows)
        dearest, cheapest = last.argmax(axis=1), following.argmin(axis=1)
        each = np.arange(len(rows))
        pays = last[each, dearest] > following[each, cheapest]
        rows, each = rows[pays], each[pays]
        counts[rows, dearest[each]] -= 1.0
        counts[rows, cheapest[each]] += 1.0
    return counts
