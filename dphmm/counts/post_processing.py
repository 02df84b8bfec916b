"""Post-processing of noisy counts by estimators with public knowledge, and their errors.

It spends no epsilon. Baselines use the total only; the other estimators also use the transition matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray, as_numbers
from dphmm.counts.chain_estimate import Start, filter_counts, smooth_counts
from dphmm.counts.map_estimate import (
    Prior,
    Solver,
    build_first_distribution,
    compute_occupancy,
    solve_integer_map,
    solve_real_map,
    solve_real_map_by_cvxopt,
)
from dphmm.counts.noisy_stream import (
    SENSITIVITY,
    Budget,
    CountMechanism,
    NumUsers,
    as_budgets,
    as_counts,
    as_noisy,
    as_scales,
    as_transition,
    as_whole,
    release,
)
from dphmm.errors import ConfigurationError, CountError
from dphmm.random import Rng, as_random_source
from dphmm.tables.values import shorten_repr
from dphmm.validation import Choice, Integers, check_arguments


def least_squares(noisy: npt.ArrayLike, users: int, possible: BoolArray | None = None) -> FloatArray:
    """Project counts on non-negative counts that sum to the number of users.

    The Euclidean projection of each row on a scaled simplex (Hay et al., VLDB 2010, with the constraints of a fixed
    sum and of non-negativity): ``max(y - shift, 0)``, the shift found from the sorted row.

    Parameters
    ----------
    noisy
        ``(T, m)``.
    users
        Required sum of each row.
    possible
        ``(T, m)`` mask; other places get zero. None means that every place is possible.

    Returns
    -------
    FloatArray
        ``(T, m)``.

    Raises
    ------
    CountError
        When counts or the number of users are invalid, or no place is possible at a time.
    """
    total = as_whole(users)
    stream = as_noisy(noisy)
    if possible is not None:
        chosen = as_numbers(possible, "possible", CountError) != 0
        if chosen.shape != stream.shape or not chosen.any(axis=1).all():
            raise CountError(f"possible must be a mask of shape {stream.shape}, true once per time, got {chosen.shape}")
        stream = np.where(chosen, stream, -np.inf)
    ordered = -np.sort(-stream, axis=1)
    ranks = np.arange(1, stream.shape[1] + 1)
    finite = np.isfinite(ordered)
    shifts = (np.cumsum(np.where(finite, ordered, 0.0), axis=1) - total) / ranks
    kept = (finite & (ordered > shifts)).sum(axis=1)
    shift = np.take_along_axis(shifts, kept[:, None] - 1, axis=1)
    return np.maximum(stream - shift, 0.0)


def maximum_likelihood(noisy: npt.ArrayLike, users: int) -> FloatArray:
    """Return non-negative counts with the required sum and the largest Laplace likelihood.

    The problem of Lee, Wang and Kifer (KDD 2015) for one fixed sum: minimise ``sum |y - r|``. Its optimum is a set:
    with ``y+ = max(y, 0)``, every ``r`` that sums to ``n`` and lies on one side of ``y+`` in all places (including the
    least-squares repair). The result is the member proportional to ``y+``, or the uniform one if no noisy count is
    positive.

    Parameters
    ----------
    noisy
        ``(T, m)``.
    users
        Required sum of each row.

    Returns
    -------
    FloatArray
        ``(T, m)``.
    """
    total = as_whole(users)
    positive = np.maximum(as_noisy(noisy), 0.0)
    sums = positive.sum(axis=1, keepdims=True)
    positive = np.where(sums > 0, positive, 1.0)
    return np.asarray(positive * (total / positive.sum(axis=1, keepdims=True)))


def round_to_integers(counts: FloatArray, users: int, possible: BoolArray | None = None) -> IntArray:
    """Round non-negative counts with the required sum to the nearest integers with that sum.

    Largest remainders: round down, then assign the missing units to the largest fractional parts. This is the
    least-squares choice among all integer rows of that sum. Of equal fractional parts, the first come first.

    Parameters
    ----------
    counts
        ``(T, m)``, rows that sum to ``users`` up to rounding.
    users
        The sum.
    possible
        ``(T, m)`` mask; other places stay zero. None means that every place is possible.
    """
    whole = np.floor(counts + 1e-9)
    remainder = counts - whole
    if possible is not None:
        remainder = np.where(possible, remainder, -np.inf)
    rank = np.argsort(np.argsort(-remainder, axis=1, kind="stable"), axis=1, kind="stable")
    missing = users - whole.sum(axis=1, keepdims=True)
    return np.asarray(whole + (rank < missing), dtype=np.int64)


@check_arguments
def post_process(
    noisy: npt.ArrayLike,
    transition: Any,
    users: NumUsers,
    scale: npt.ArrayLike,
    prior: Prior | npt.ArrayLike = "frequency",
    integer: bool = False,
    coupled: bool | Literal["online"] = False,
    solver: Solver = "newton",
) -> FloatArray | IntArray:
    """Estimate non-negative counts that sum to the number of users from noisy counts.

    The result depends only on the noisy counts and public knowledge. It is therefore as private as the noisy counts.

    Parameters
    ----------
    noisy
        Noisy counts ``(T, m)``, in temporal order. A row of integers is treated as having discrete Laplace noise, as
        from `dphmm.counts.release`; any other row as having Laplace noise in real numbers.
    transition
        Transition matrix of each user: ``(m, m)``, dense or sparse, row-stochastic.
    users
        The public number of users ``n``.
    scale
        The scale of the noise, one number or one per time: ``2 / epsilon`` for both types of noise.
    prior
        The users' distribution at the first time: a distribution ``(m,)``, or

        ``"frequency"``
            estimated from the noisy counts. Uncoupled: the normalised first row, with zero for places without a
            positive noisy count. Coupled: a uniform prior over count vectors, so that the first row is used only once.
        ``"uniform"``
            every place has the same probability for every user.
    integer
        Return integers. Uncoupled: the exact integer optimum. Coupled: the integers nearest to the real estimate.
    coupled
        False: the most probable counts of each time separately (Cao et al., DBSec 2023, with the exact multinomial
        instead of Stirling's formula). True: the smoother over the complete chain, which uses that successive counts
        come from the same moving users. ``"online"``: the filter, which uses the past only. The coupled estimates are
        approximate posterior means, projected on the possible counts.
    solver
        Solver of the most probable real-valued counts of each time. ``"newton"``: this package's iteration.
        ``"cvxopt"``: CVXOPT's interior-point method, an independent and much slower check of it. It solves the same
        problem to a relative tolerance of ``1e-6`` of the objective and supports neither `integer` nor `coupled`.

    Returns
    -------
    FloatArray or IntArray
        ``(T, m)``; zero in places that are impossible at that time under the prior and the transition matrix.

    Raises
    ------
    CountError, StochasticError, BudgetError, ConfigurationError
        When counts, matrix, scales or options are invalid.
    ConvergenceError
        If CVXOPT does not reach its tolerance.

    Examples
    --------
    >>> post_process([[7.2, -0.8], [1.1, 4.9]], [[0.0, 1.0], [1.0, 0.0]], users=6, scale=2.0, integer=True)
    array([[6, 0],
           [0, 6]])
    """
    stream = as_noisy(noisy)
    total = as_whole(users)
    steps, size = stream.shape
    scales = as_scales(scale, steps)
    matrix = as_transition(transition, size)
    first = build_first_distribution(stream, prior)
    if solver == "cvxopt" and (integer or coupled):
        raise ConfigurationError("solver must be 'newton' for integer or coupled estimates, got 'cvxopt'")
    if not coupled:
        log_p = compute_occupancy(first, matrix, steps).log_probabilities
        if solver == "cvxopt":
            return solve_real_map_by_cvxopt(stream, log_p, total, scales)
        return (
            solve_integer_map(stream, log_p, total, scales)
            if integer
            else solve_real_map(stream, log_p, total, scales)[0]
        )
    if isinstance(prior, str) and prior == "frequency":  # use the first row once, as an observation
        first = np.full(size, 1.0 / size)
        start = Start.flat(size, total)
    else:
        start = Start.multinomial(first, total)
    if coupled == "online":
        means = filter_counts(stream, matrix, start, scales)
    else:
        means, _ = smooth_counts(stream, matrix, start, scales)
    possible = compute_occupancy(first, matrix, steps).possible
    estimate = least_squares(means, total, possible)
    return round_to_integers(estimate, total, possible) if integer else estimate


# Name → description of each estimator.
ESTIMATORS: Mapping[str, str] = {
    "coupled": "smoother over the whole stream",
    "online": "filter: the past only",
    "single": "most probable counts of each time separately",
    "least-squares": "nearest counts with the total, without mobility",
    "maximum-likelihood": "most likely counts with the total, without mobility",
}

# Name of the released counts in `compare`.
RAW = "noisy"


@check_arguments
def estimate(
    name: Annotated[str, Choice(*ESTIMATORS)],
    noisy: npt.ArrayLike,
    transition: Any,
    users: NumUsers,
    scale: npt.ArrayLike,
    prior: Prior | npt.ArrayLike = "frequency",
    integer: bool = False,
    solver: Solver = "newton",
) -> FloatArray | IntArray:
    """Estimate counts with a named estimator.

    Parameters
    ----------
    name
        One of `ESTIMATORS`.
    noisy, transition, users, scale, prior
        As in `post_process`. Estimators without mobility ignore ``transition``, ``scale`` and ``prior``. Their
        ``transition`` can be None.
    integer
        As in `post_process`; estimators without mobility return the integers nearest to the real estimate. A tie
        favours the first places. A time without a positive noisy count ties under ``"maximum-likelihood"``.
    solver
        As in `post_process`; estimators other than ``"single"`` support ``"newton"`` only.

    Returns
    -------
    FloatArray or IntArray
        ``(T, m)``, rows that sum to ``users``.

    Raises
    ------
    ConfigurationError
        When the name is unknown, or a required matrix is missing.
    CountError, StochasticError, BudgetError, ConvergenceError
        As `post_process`.
    """
    if name in ("least-squares", "maximum-likelihood"):
        if solver != "newton":
            raise ConfigurationError(f"solver must be 'newton' for estimator {name!r}, got {shorten_repr(solver)}")
        plain = (least_squares if name == "least-squares" else maximum_likelihood)(noisy, users)
        return round_to_integers(plain, users) if integer else plain
    if transition is None:
        raise ConfigurationError(f"estimator {name!r} needs transitions: use a model or a matrix")
    coupled: Any = {"coupled": True, "online": "online", "single": False}[name]
    return post_process(noisy, transition, users, scale, prior, integer, coupled, solver)


_MAX_RUNS = 10_000_000


@check_arguments
def compare(
    true: npt.ArrayLike,
    epsilons: Budget | Sequence[Budget] | FloatArray,
    transition: Any,
    prior: Prior | npt.ArrayLike = "frequency",
    runs: Annotated[int, Integers(1, _MAX_RUNS, ConfigurationError)] = 1,
    rng: Rng = None,
    names: Iterable[str] = tuple(ESTIMATORS),
    watch: Callable[[Iterable[int]], Iterable[int]] = iter,
    mechanism: CountMechanism = "lattice",
) -> dict[str, FloatArray]:
    """Compute mean squared errors of the estimators over independent releases.

    Errors depend on the true counts. Use data that can be disclosed.

    Parameters
    ----------
    true
        Counts ``(T, m)``.
    epsilons
        As in `release`.
    transition, prior
        As in `post_process`.
    runs
        Number of releases, at least one. All estimators use the same releases.
    rng
        Source of randomness.
    names
        Names of the estimators.
    watch
        Wraps the iteration over runs, for example with a progress bar.
    mechanism
        As in `release`.

    Returns
    -------
    dict
        `RAW` and each name → ``(runs,)``: the mean over times and places of the squared error.

    Raises
    ------
    ConfigurationError
        When there is less than one run.
    DphmmError
        As `release` and `estimate`.
    """
    counts = as_counts(true)
    source = as_random_source(rng)
    users = int(counts[0].sum())
    budgets = as_budgets(epsilons, len(counts))
    scale = SENSITIVITY / np.array([float(budget) for budget in budgets])
    wanted = tuple(names)
    errors = dict[str, FloatArray]()
    for run in watch(range(runs)):
        noisy = release(counts, budgets, source, mechanism)
        results = {RAW: noisy} | {name: estimate(name, noisy, transition, users, scale, prior) for name in wanted}
        for name, values in results.items():
            errors.setdefault(name, np.empty(runs))[run] = float(np.mean((values - counts) ** 2))
    return errors
