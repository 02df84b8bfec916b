"""Post-processing of noisy counts with public knowledge, at no privacy cost: estimators by name, and their errors.

Baselines know the total and nothing of how users move; the others use the transition matrix too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import BoolArray, FloatArray, IntArray, Rng, as_numbers, random_source
from dphmm.counts.chain_estimate import Start, filter_counts, smooth_counts
from dphmm.counts.map_estimate import (
    Prior,
    Solver,
    first_distribution,
    integer_map,
    occupancy,
    real_map,
    real_map_cvxopt,
)
from dphmm.counts.stream import (
    SENSITIVITY,
    Budget,
    CountMechanism,
    as_budgets,
    as_counts,
    as_noisy,
    as_scales,
    as_transition,
    as_whole,
    release,
)
from dphmm.errors import ConfigurationError, CountError
from dphmm.tables.values import shown


def least_squares(noisy: npt.ArrayLike, users: int, possible: BoolArray | None = None) -> FloatArray:
    """The nearest counts that are not negative and sum to the number of users.

    The Euclidean projection of each row on a scaled simplex (Hay et al., VLDB 2010, with the constraints of a fixed
    sum and of non-negativity): ``max(y - shift, 0)``, the shift found from the sorted row.

    Parameters
    ----------
    noisy
        ``(T, m)``.
    users
        What each row shall sum to.
    possible
        ``(T, m)`` booleans; the other places get zero. ``None``: every place is possible.

    Returns
    -------
    FloatArray
        ``(T, m)``.

    Raises
    ------
    CountError
        For counts or a number of users that make no sense, or a time at which no place is possible.
    """
    total = as_whole(users)
    stream = as_noisy(noisy)
    if possible is not None:
        chosen = as_numbers(possible, "possible", CountError) != 0
        if chosen.shape != stream.shape or not chosen.any(axis=1).all():
            raise CountError(f"possible has shape {chosen.shape}; give {stream.shape} booleans, one true for each time")
        stream = np.where(chosen, stream, -np.inf)
    ordered = -np.sort(-stream, axis=1)
    ranks = np.arange(1, stream.shape[1] + 1)
    finite = np.isfinite(ordered)
    shifts = (np.cumsum(np.where(finite, ordered, 0.0), axis=1) - total) / ranks
    kept = (finite & (ordered > shifts)).sum(axis=1)
    shift = np.take_along_axis(shifts, kept[:, None] - 1, axis=1)
    return np.maximum(stream - shift, 0.0)


def maximum_likelihood(noisy: npt.ArrayLike, users: int) -> FloatArray:
    """Counts of greatest Laplace likelihood among those that are not negative and sum to the number of users.

    The problem of Lee, Wang and Kifer (KDD 2015) for one fixed sum: minimise ``sum |y - r|``. Its optimum is a whole
    set: with ``y+ = max(y, 0)``, every ``r`` that sums to ``n`` and lies on one side of ``y+`` in all places (the
    least-squares repair is among them). Returned is the member in proportion to ``y+``, or the uniform one when
    no noisy count is positive.

    Parameters
    ----------
    noisy
        ``(T, m)``.
    users
        What each row shall sum to.

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


def nearest_integers(counts: FloatArray, users: int, possible: BoolArray | None = None) -> IntArray:
    """The integer counts nearest to real ones that are not negative and sum to the number of users already.

    Largest remainders: round down, then give the missing units to the greatest fractional parts, which is the
    least-squares choice among all integer rows of that sum.

    Parameters
    ----------
    counts
        ``(T, m)``, rows that sum to ``users`` up to rounding.
    users
        The sum.
    possible
        ``(T, m)`` booleans; the other places stay zero. ``None``: every place is possible.
    """
    whole = np.floor(counts + 1e-9)
    remainder = counts - whole
    if possible is not None:
        remainder = np.where(possible, remainder, -np.inf)
    rank = np.argsort(np.argsort(-remainder, axis=1, kind="stable"), axis=1, kind="stable")
    missing = users - whole.sum(axis=1, keepdims=True)
    return np.asarray(whole + (rank < missing), dtype=np.int64)


@checked
def post_process(
    noisy: npt.ArrayLike,
    transition: Any,
    users: int,
    scale: npt.ArrayLike,
    prior: Prior | npt.ArrayLike = "frequency",
    integer: bool = False,
    coupled: bool | Literal["online"] = False,
    solver: Solver = "newton",
) -> FloatArray | IntArray:
    """Counts that are not negative and sum to the number of users, estimated from noisy ones.

    Nothing but the noisy counts and public knowledge enters, so the result is as private as the noisy counts are.

    Parameters
    ----------
    noisy
        Noisy counts ``(T, m)``, in order of time. A row of whole numbers counts as one with discrete Laplace noise, as
        `dphmm.counts.release` draws it; any other as one with Laplace noise in real numbers.
    transition
        How each user moves from one time to the next: ``(m, m)``, dense or sparse, row-stochastic.
    users
        The number of users ``n``, which is public.
    scale
        The scale of the noise: one number, or one per time; ``2 / epsilon`` for either kind.
    prior
        What stands for the users' distribution at the first time. A distribution ``(m,)``, or

        ``"frequency"``
            learnt from the noisy counts. On its own: the normalised first row, in which places without a positive
            noisy count get zero. Coupled: all count vectors are alike at the start, so that the first row is used once.
        ``"uniform"``
            every user is in any place with the same probability.
    integer
        Return integers: on their own, the exact integer optimum; coupled, the integers nearest to the real estimate.
    coupled
        False: the most probable counts of each time on its own (Cao et al., DBSec 2023, with the exact multinomial in
        place of Stirling's formula). True: the smoother over the whole chain, which uses that the counts of successive
        times come from the same users moving. ``"online"``: the filter, which uses the past only. The coupled
        estimates are approximate posterior means, projected on the counts that are possible.
    solver
        How the most probable real-valued counts of each time are found. ``"newton"``: this package's iteration.
        ``"cvxopt"``: CVXOPT's interior-point method, an independent and much slower check of it. It solves the same
        problem to a relative tolerance of ``1e-6`` of the objective and supports neither `integer` nor `coupled`.

    Returns
    -------
    FloatArray or IntArray
        ``(T, m)``; zero in places that the prior and the transition matrix make impossible at that time.

    Raises
    ------
    CountError, StochasticError, BudgetError, ConfigurationError
        For counts, a matrix, scales or options that make no sense.
    ConvergenceError
        If CVXOPT does not reach its tolerance.

    Examples
    --------
    >>> post_process([[7.2, -0.8], [1.1, 4.9]], [[0.0, 1.0], [1.0, 0.0]], users=6, scale=2.0, integer=True)
    array([[6, 0],
           [0, 6]])
    """
    stream, total = as_noisy(noisy), as_whole(users)
    steps, size = stream.shape
    scales, matrix = as_scales(scale, steps), as_transition(transition, size)
    first = first_distribution(stream, prior)
    if not isinstance(coupled, (bool, str)) or coupled not in (False, True, "online"):
        raise ConfigurationError(f"coupled is {coupled!r}; give False, True or 'online'")
    if not isinstance(solver, str) or solver not in get_args(Solver):
        raise ConfigurationError(f"solver must be one of {', '.join(get_args(Solver))}, got {shown(solver)}")
    if solver == "cvxopt" and (integer or coupled):
        raise ConfigurationError("solver must be 'newton' for integer or coupled estimates, got 'cvxopt'")
    if not coupled:
        log_p = occupancy(first, matrix, steps).log_probabilities
        if solver == "cvxopt":
            return real_map_cvxopt(stream, log_p, total, scales)
        return integer_map(stream, log_p, total, scales) if integer else real_map(stream, log_p, total, scales)[0]
    if isinstance(prior, str) and prior == "frequency":  # the first row speaks once, as a row
        first, start = np.full(size, 1.0 / size), Start.flat(size, total)
    else:
        start = Start.multinomial(first, total)
    if coupled == "online":
        means = filter_counts(stream, matrix, start, scales)
    else:
        means, _ = smooth_counts(stream, matrix, start, scales)
    possible = occupancy(first, matrix, steps).possible
    estimate = least_squares(means, total, possible)
    return nearest_integers(estimate, total, possible) if integer else estimate


ESTIMATORS: Mapping[str, str] = {
    "coupled": "smoother over the whole stream",
    "online": "filter: the past only",
    "single": "most probable counts of each time on its own",
    "least-squares": "nearest counts with the total, without mobility",
    "maximum-likelihood": "likeliest counts with the total, without mobility",
}
"""Name → what it does."""

RAW = "noisy"
"""How `compare` calls the counts as they were released."""


@checked
def estimate(
    name: str,
    noisy: npt.ArrayLike,
    transition: Any,
    users: int,
    scale: npt.ArrayLike,
    prior: Prior | npt.ArrayLike = "frequency",
    integer: bool = False,
    solver: Solver = "newton",
) -> FloatArray | IntArray:
    """Estimate counts by the estimator of a name.

    Parameters
    ----------
    name
        One of `ESTIMATORS`.
    noisy, transition, users, scale, prior, integer
        As in `post_process`. Estimators without mobility ignore ``transition``, ``scale`` and ``prior``; ``transition``
        may be None for them.
    solver
        As in `post_process`; estimators other than ``"single"`` support ``"newton"`` only.

    Returns
    -------
    FloatArray or IntArray
        ``(T, m)``, rows that sum to ``users``.

    Raises
    ------
    ConfigurationError
        For another name, or a matrix that is missing where it is needed.
    CountError, StochasticError, BudgetError, ConvergenceError
        As `post_process`.
    """
    if not isinstance(name, str) or name not in ESTIMATORS:
        raise ConfigurationError(f"estimator is {name!r}; give one of {', '.join(ESTIMATORS)}")
    if name in ("least-squares", "maximum-likelihood"):
        if solver != "newton":
            raise ConfigurationError(f"solver must be 'newton' for estimator {name!r}, got {shown(solver)}")
        plain = (least_squares if name == "least-squares" else maximum_likelihood)(noisy, users)
        return nearest_integers(plain, users) if integer else plain
    if transition is None:
        raise ConfigurationError(f"estimator {name!r} needs to know how people move; give a model or a matrix")
    coupled: Any = {"coupled": True, "online": "online", "single": False}[name]
    return post_process(noisy, transition, users, scale, prior, integer, coupled, solver)


_MOST_RUNS = 10_000_000


@checked
def compare(
    true: npt.ArrayLike,
    epsilons: Budget | Sequence[Budget] | FloatArray,
    transition: Any,
    prior: Prior | npt.ArrayLike = "frequency",
    runs: int = 1,
    rng: Rng = None,
    names: Iterable[str] = tuple(ESTIMATORS),
    watch: Callable[[Iterable[int]], Iterable[int]] = iter,
    mechanism: CountMechanism = "lattice",
) -> dict[str, FloatArray]:
    """Mean squared errors of the estimators over independent releases of the same counts.

    Errors tell about the truth: they are for data that may be looked at.

    Parameters
    ----------
    true
        Counts ``(T, m)``.
    epsilons
        As in `release`.
    transition, prior
        As in `post_process`.
    runs
        How many releases, at least one; every estimator sees the same ones.
    rng
        Where the noise comes from.
    names
        Of the estimators.
    watch
        Goes through the numbers of the runs, such as with a bar of progress.
    mechanism
        As in `release`.

    Returns
    -------
    dict
        `RAW` and each name → ``(runs,)``: the mean over times and places of the squared error.

    Raises
    ------
    ConfigurationError
        For less than one run.
    DphmmError
        As `release` and `estimate`.
    """
    counts = as_counts(true)
    if not isinstance(runs, int) or not 1 <= runs <= _MOST_RUNS:
        raise ConfigurationError(f"runs is {runs}; give 1 to {_MOST_RUNS:,}")
    source, users = random_source(rng), int(counts[0].sum())
    budgets = as_budgets(epsilons, len(counts))
    scale = SENSITIVITY / np.array([float(budget) for budget in budgets])
    wanted, found = tuple(names), dict[str, FloatArray]()
    for run in watch(range(runs)):
        noisy = release(counts, budgets, source, mechanism)
        made = {RAW: noisy} | {name: estimate(name, noisy, transition, users, scale, prior) for name in wanted}
        for name, values in made.items():
            found.setdefault(name, np.empty(runs))[run] = float(np.mean((values - counts) ** 2))
    return found
