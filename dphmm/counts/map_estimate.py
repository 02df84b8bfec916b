"""Most probable counts at each time separately: real-valued and exact integer optima.

The objective of one time is ``sum_l |y_l - r_l| / scale - log Multinomial(r; n, p)`` (Cao et al., DBSec 2023, Eq. 6 and
8, before Stirling's formula, which would make it non-convex near zero). No term couples two times, so each time is a
separable convex problem under one sum: its real-valued optimum is one equation in a multiplier, its integer optimum
takes the cheapest ``n`` units (marginal allocation). Neither needs a general solver. The likelihood of discrete Laplace
noise has the same form, so the integer optimum is that of integer noise as well.

The distribution of one user's place at each time follows from the transitions: the marginals ``P^t = P^{t-1} M``.
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
from dphmm.errors import ConfigurationError, ConvergenceError, CountError, import_library

# Maximum number of places for which powers of the matrix are computed.
_DOUBLING_MAX_PLACES = 256

# Prior at the first time: the frequencies of the noisy counts, or the uniform distribution.
Prior = Literal["frequency", "uniform"]


# Solver of the real-valued optimum: `solve_real_map`, or CVXOPT as an independent check.
Solver = Literal["newton", "cvxopt"]


@dataclass(frozen=True)
class Occupancy:
    """The distribution of one user over ``m`` places at each of ``T`` times.

    The support is stored in addition to the probabilities and follows from the structure of the matrix. A probability
    that underflows does not make a place impossible.

    Parameters
    ----------
    probabilities
        ``(T, m)``. Each row sums to one.
    possible
        ``(T, m)`` mask, false where the probability is structurally zero.
    """

    probabilities: FloatArray
    possible: BoolArray

    @property
    def log_probabilities(self) -> FloatArray:
        """Log probabilities ``(T, m)``. Minus infinity for impossible places, finite elsewhere."""
        floor = np.finfo(np.float64).tiny
        with np.errstate(divide="ignore"):
            return np.where(self.possible, np.log(np.maximum(self.probabilities, floor)), -np.inf)


def build_first_distribution(noisy: FloatArray, prior: Prior | npt.ArrayLike) -> FloatArray:
    """Return the distribution used as ``P^1``.

    Parameters
    ----------
    noisy
        Noisy counts ``(T, m)``.
    prior
        ``"frequency"``: the normalised first row with negative counts as zero (uniform if no count is positive);
        ``"uniform"``; or a known distribution ``(m,)``.

    Raises
    ------
    ConfigurationError
        When the name is unknown.
    StochasticError
        When the array is not a distribution.
    """
    size = noisy.shape[1]
    if not isinstance(prior, str):
        return as_distribution(prior, size)
    if prior == "uniform":
        return np.full(size, 1.0 / size)
    if prior != "frequency":
        raise ConfigurationError(f"prior must be 'frequency', 'uniform' or a distribution, got {prior!r}")
    positive = np.maximum(noisy[0], 0.0)
    total = positive.sum()
    return positive / total if total > 0 else np.full(size, 1.0 / size)


def compute_occupancy(first: npt.ArrayLike, transition: sparse.csr_array, steps: int) -> Occupancy:
    """Compute the marginals of ``steps`` >= 1 times from the distribution at the first one."""
    start = np.asarray(first, dtype=np.float64)
    links = np.ones_like(transition.data), transition.indices, transition.indptr
    structure = sparse.csr_array(links, shape=transition.shape)
    possible = _compute_orbit((start > 0).astype(np.float64), structure, steps, cap=1.0) > 0
    return Occupancy(_compute_orbit(start, transition, steps), possible)


def _compute_orbit(first: FloatArray, matrix: sparse.csr_array, steps: int, cap: float = np.inf) -> FloatArray:
    """Return ``first @ matrix**t`` for t below `steps`, capped. Small matrices use doubling."""
    size = matrix.shape[0]
    rows = np.empty((steps, size))
    rows[0] = first
    if size > _DOUBLING_MAX_PLACES:
        backward = sparse.csr_array(matrix.T)
        for t in range(1, steps):
            rows[t] = np.minimum(backward @ rows[t - 1], cap)
        return rows
    have = 1
    power = matrix.toarray()
    while have < steps:
        more = min(have, steps - have)
        rows[have : have + more] = np.minimum(rows[:more] @ power, cap)
        have = have + more
        power = np.minimum(power @ power, cap)
    return rows


# ``psi(1)``, the value at count zero. Below it, the inverse would be a negative count.
MIN_DIGAMMA = float(digamma(1.0))

_DEGREE = 18
# The largest ``exp(-value)`` with a non-negative count.
_MAX_INVERSE_EXP = float(np.exp(-MIN_DIGAMMA))


def _compute_coefficients() -> FloatArray:
    """Return Chebyshev coefficients of ``(inverse(log u) - (u - 1/2)) / v`` in ``v = 1 / u``.

    The function is smooth down to ``v = 0``, where its asymptotic series starts with ``-v / 24``.
    """
    node = np.cos(np.pi * (np.arange(4 * _DEGREE) + 0.5) / (4 * _DEGREE))
    v = 0.5 * _MAX_INVERSE_EXP * (node + 1.0)
    # Below 1/60 the difference of two large numbers loses precision; three terms of the series are exact there.
    series = -1 / 24 + v**2 * (3 / 640 - v**2 * (1525 / 580608))
    counts = np.maximum(1.0 / v - 0.5, 0.0)
    for _ in range(60):  # Newton's iteration
        counts = counts - (digamma(counts + 1.0) + np.log(v)) / polygamma(1, counts + 1.0)
    exact = (counts - (1.0 / v - 0.5)) / v
    return np.asarray(chebfit(node, np.where(v < 1 / 60, series, exact), _DEGREE), dtype=np.float64)


_COEFFICIENTS = _compute_coefficients()


def invert_digamma(values: FloatArray) -> FloatArray:
    """Return the count ``r >= 0`` with ``psi(r + 1)`` equal to each value.

    Parameters
    ----------
    values
        Any shape. Values below ``psi(1)``, including minus infinity, give zero. Values above 700 overflow.

    Returns
    -------
    FloatArray
        Counts of the same shape, with an error of about 1e-12 relative to ``r + 1``.
    """
    u = np.exp(np.maximum(values, MIN_DIGAMMA))
    v = 1.0 / u
    return np.maximum(u - 0.5 + v * chebval(v * (2.0 / _MAX_INVERSE_EXP) - 1.0, _COEFFICIENTS), 0.0)


# Values processed together, so that the work arrays stay in the processor's cache.
_BLOCK_SIZE = 16_384

# Above the cost of any count. Places that stay at their noisy count can exceed it if the noise is tiny.
_MAX_COST = 700.0

# More iterations than bisection needs. The iteration is bracketed, so it cannot diverge.
_MAX_ITERATIONS = 200


def solve_real_map(
    noisy: FloatArray, log_p: FloatArray, users: int, scales: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Compute the real-valued optimum of each time.

    With multiplier ``theta`` the optimal count is ``y`` clipped to the interval between the counts at which
    ``psi(r + 1)`` equals ``theta + log p - 1/scale`` and ``theta + log p + 1/scale``, and zero where that is negative.
    The sum grows with ``theta``; Newton's iteration, kept inside a bracket, finds where it is ``users``.

    Parameters
    ----------
    noisy, log_p
        ``(T, m)``; every row of ``log_p`` has a finite entry.
    users
        Sum of each row.
    scales
        ``(T,)``, positive.

    Returns
    -------
    counts : FloatArray
        ``(T, m)``, non-negative, zero where impossible.
    multipliers : FloatArray
        ``(T,)`` marginal costs of one more user.
    """
    impossible = ~np.isfinite(log_p).any(axis=1)
    if impossible.any():
        raise CountError(f"time {int(np.flatnonzero(impossible)[0])} must have a possible place, got none")
    counts = np.empty_like(noisy)
    multipliers = np.empty(len(noisy))
    for rows in _split_into_blocks(*noisy.shape):
        counts[rows], multipliers[rows] = _solve(noisy[rows], log_p[rows], users, 1.0 / scales[rows])
    return counts, multipliers


def _split_into_blocks(steps: int, places: int) -> Iterator[slice]:
    size = max(1, _BLOCK_SIZE // places)
    return (slice(start, start + size) for start in range(0, steps, size))


def _solve(noisy: FloatArray, log_p: FloatArray, users: int, slope: FloatArray) -> tuple[FloatArray, FloatArray]:
    theta = np.log(users) * np.ones(len(noisy))
    low = theta - slope - 1.0
    high = np.log(users + noisy.shape[1]) + slope + 1.0
    # An impossible place, or one with a negative noisy count, is never at its noisy count.
    costed = (noisy >= 0) & np.isfinite(log_p)
    cost_at_noisy = np.where(costed, digamma(np.maximum(noisy, 0.0) + 1.0) - np.where(costed, log_p, 0.0), -np.inf)
    active = np.arange(len(noisy))
    for _ in range(_MAX_ITERATIONS):
        now = theta[active]
        counts, free = _compute_counts(now, noisy[active], log_p[active], cost_at_noisy[active], slope[active])
        excess = counts.sum(axis=1) - users
        low[active] = np.where(excess <= 0, now, low[active])
        high[active] = np.where(excess >= 0, now, high[active])
        # 1 / psi'(r + 1) to within a few per cent suffices as the slope of Newton's iteration
        weight = np.where(free, counts + 0.5 + 0.11 / (counts + 1.0), 0.0).sum(axis=1)
        newton = now - excess / np.maximum(weight, 1e-300)
        inside = (newton > low[active]) & (newton < high[active])
        theta[active] = np.where(inside, newton, 0.5 * (low[active] + high[active]))
        done = (np.abs(excess) <= 1e-13 * users) | (high[active] - low[active] <= 4e-16 * np.abs(now))
        theta[active[done]] = now[done]
        active = active[~done]
        if active.size == 0:
            break
    return _compute_counts(theta, noisy, log_p, cost_at_noisy, slope)[0], theta


def _compute_counts(
    theta: FloatArray, noisy: FloatArray, log_p: FloatArray, cost_at_noisy: FloatArray, slope: FloatArray
) -> tuple[FloatArray, BoolArray]:
    """Return the optimal counts at the multipliers, and a mask of those that vary with them."""
    gap = theta[:, None] - cost_at_noisy
    above = gap > slope[:, None]
    value = theta[:, None] + log_p + np.where(above, -slope[:, None], slope[:, None])
    at_noisy = np.abs(gap) <= slope[:, None]
    counts = np.where(at_noisy, noisy, invert_digamma(np.minimum(value, _MAX_COST)))
    return counts, ~at_noisy & (value > MIN_DIGAMMA)


# Tolerance of the scaled problem, absolute, relative and of feasibility; tighter ones fail by rounding.
_CVXOPT_TOLERANCE = 1e-10

# Relative gap at which an iterate that stopped short of `_CVXOPT_TOLERANCE` by rounding is accepted.
_CVXOPT_MAX_GAP = 1e-8


def solve_real_map_by_cvxopt(noisy: FloatArray, log_p: FloatArray, users: int, scales: FloatArray) -> FloatArray:
    """Return the real-valued optimum of each time, found by CVXOPT's interior-point method.

    A second solver of the problem of `solve_real_map` that shares no code with it: `cvxopt.solvers.cp` minimises the
    objective with ``log Gamma(r + 1)``, an epigraph variable for each ``|y - r|``, and the constraints of sum and sign.
    It takes some ten milliseconds per time, about a thousand times as long as `solve_real_map`.

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
    cvxopt = import_library("cvxopt", None)

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
        value = cvxopt.matrix(cost / size_of_costs)
        gradient = cvxopt.matrix(slope[None] / size_of_costs)
        if z is None:
            return value, gradient
        curvature = np.concatenate([users**2 * polygamma(1, counts + 1.0), np.zeros(size)]) / size_of_costs
        return value, gradient, z[0] * cvxopt.spdiag(cvxopt.matrix(curvature))

    unit = np.eye(size)
    zero = np.zeros((size, size))
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
        solution = cvxopt.solvers.cp(
            evaluate, G=matrices[0], h=matrices[1], A=matrices[2], b=cvxopt.matrix(1.0), options=options
        )
    except (ArithmeticError, ValueError) as error:
        raise ConvergenceError(f"CVXOPT must converge at time {time}, got: {error}") from None
    accuracy = max(solution[name] for name in ("gap", "primal infeasibility", "dual infeasibility"))
    if solution["status"] != "optimal" and not accuracy <= _CVXOPT_MAX_GAP:
        raise ConvergenceError(f"CVXOPT must converge at time {time}, got an accuracy of {accuracy:.1e}")
    shares = np.maximum(np.array(solution["x"][:size]).ravel(), 0.0)
    return np.asarray(users * shares / shares.sum())


def solve_integer_map(noisy: FloatArray, log_p: FloatArray, users: int, scales: FloatArray) -> IntArray:
    """Compute the integer optimum of each time, exactly, by marginal allocation.

    The cost of a place's ``k``-th user is non-decreasing in ``k``. Therefore a row is optimal if and only if no
    included user costs more than an excluded one: ``max_l cost(r_l) <= min_l cost(r_l + 1)``. The start contains every
    user with a cost of at most the real-valued optimum's multiplier. It is repaired in cost order until the condition
    holds, which is checked on every returned row. Costs are compared in double precision: rows with objectives that
    differ only by rounding count as equal.

    Parameters
    ----------
    noisy, log_p
        ``(T, m)``; every row of ``log_p`` has a finite entry.
    users
        Sum of each row.
    scales
        ``(T,)``, positive.

    Returns
    -------
    IntArray
        ``(T, m)``.
    """
    start, multipliers = solve_real_map(noisy, log_p, users, scales)
    counts = np.empty(noisy.shape, dtype=np.int64)
    for rows in _split_into_blocks(*noisy.shape):
        cost = _UnitCost(noisy[rows], log_p[rows], 1.0 / scales[rows])
        below = np.floor(start[rows])
        worth = below + (cost(below + 1.0) <= multipliers[rows][:, None])
        counts[rows] = _exchange(_fill(worth, users, cost), cost)
    return counts


class _UnitCost:
    """The marginal cost of the ``k``-th user of a place, for the rows of one block."""

    def __init__(self, noisy: FloatArray, log_p: FloatArray, slope: FloatArray) -> None:
        self.noisy = noisy
        self.log_p = log_p
        self.slope = slope[:, None]

    def __call__(self, k: FloatArray, rows: IntArray | slice = slice(None)) -> FloatArray:
        """Return ``cost(k) - cost(k - 1)``. Minus infinity for ``k = 0``, infinity if impossible."""
        noise = np.clip(2.0 * (k - self.noisy[rows]) - 1.0, -1.0, 1.0) * self.slope[rows]
        marginal_cost = np.where(k > 0, np.log(np.maximum(k, 1.0)) - self.log_p[rows] + noise, -np.inf)
        return np.asarray(marginal_cost)


def _fill(counts: FloatArray, users: int, cost: _UnitCost) -> FloatArray:
    """Correct row sums by adding or removing one user per place and round."""
    allowed = np.isfinite(cost.log_p)
    while True:
        missing = users - counts.sum(axis=1)
        short = np.flatnonzero(missing > 0)
        long = np.flatnonzero(missing < 0)
        if short.size == 0 and long.size == 0:
            return counts
        cheapest = _rank_values(cost(counts[short] + 1.0, short)) < missing[short][:, None]
        counts[short] += cheapest & allowed[short]
        most_expensive = _rank_values(-cost(counts[long], long)) < -missing[long][:, None]
        counts[long] -= most_expensive & (counts[long] > 0)


def _rank_values(values: FloatArray) -> IntArray:
    """Return the rank of each value in its row."""
    ranks = np.empty(values.shape, dtype=np.int64)
    np.put_along_axis(ranks, np.argsort(values, axis=1), np.arange(values.shape[1])[None, :], axis=1)
    return ranks


def _exchange(counts: FloatArray, cost: _UnitCost) -> FloatArray:
    """Move users from the most expensive to the cheapest place until no move lowers the cost."""
    rows = np.arange(len(counts))
    while rows.size:
        kept = counts[rows]
        last = cost(kept, rows)
        following = cost(kept + 1.0, rows)
        most_expensive = last.argmax(axis=1)
        cheapest = following.argmin(axis=1)
        each = np.arange(len(rows))
        pays = last[each, most_expensive] > following[each, cheapest]
        rows = rows[pays]
        each = each[pays]
        counts[rows, most_expensive[each]] -= 1.0
        counts[rows, cheapest[each]] += 1.0
    return counts
