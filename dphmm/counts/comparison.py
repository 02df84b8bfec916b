"""The estimators side by side: by name, and their errors on counts that are known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, IntArray, Rng, random_source
from dphmm.counts.baselines import least_squares, maximum_likelihood, nearest_integers
from dphmm.counts.noise import SENSITIVITY, Budget, CountMechanism, as_budgets, release
from dphmm.counts.occupancy import Prior
from dphmm.counts.repair import post_process
from dphmm.counts.stream import as_counts
from dphmm.errors import ConfigurationError

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
) -> FloatArray | IntArray:
    """Counts by the estimator of a name in `ESTIMATORS`; other arguments as in `post_process`.

    The estimators without mobility take no notice of matrix, scale and prior; ``transition`` may be None for them.

    Raises
    ------
    ConfigurationError
        For another name, or a matrix that is missing where it is needed.
    CountError, StochasticError, BudgetError
        As `post_process`.
    """
    if not isinstance(name, str) or name not in ESTIMATORS:
        raise ConfigurationError(f"estimator is {name!r}; give one of {', '.join(ESTIMATORS)}")
    if name in ("least-squares", "maximum-likelihood"):
        plain = (least_squares if name == "least-squares" else maximum_likelihood)(noisy, users)
        return nearest_integers(plain, users) if integer else plain
    if transition is None:
        raise ConfigurationError(f"estimator {name!r} needs to know how people move; give a model or a matrix")
    coupled: Any = {"coupled": True, "online": "online", "single": False}[name]
    return post_process(noisy, transition, users, scale, prior, integer, coupled)


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
    epsilons, mechanism
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
