"""Means over sequences, and how sure they are."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray
from dphmm.errors import InvalidInputError
from dphmm.evaluation.config import Setting
from dphmm.evaluation.steps import StepTable

ROOTS = {"rms_error_km": "squared_error_km2"}
"""A root mean square → the column that the mean is taken of: Error as Equation 3 of the paper has it."""

RESAMPLES = 2000
_SEED = 20170710  # fixed, so that a report of the same table says the same


@dataclass(frozen=True)
class Interval:
    """A mean over sequences with its bootstrap percentile interval.

    Parameters
    ----------
    mean, low, high
        The mean and the ends of its interval of nominal level 95 %.
    """

    mean: float
    low: float
    high: float


def bootstrap(values: npt.ArrayLike, level: float = 0.95) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Mean over the first axis and the percentile bootstrap interval for it, whole rows being drawn again.

    Parameters
    ----------
    values
        ``(n, ...)``: one row per sequence. The sequences are taken as independent; the steps within one are not.
    level
        Between 0 and 1.

    Returns
    -------
    mean, low, high
        Shape ``(...)`` each. With one sequence the interval is the mean: it says nothing then. With few sequences it is
        too narrow, as percentile intervals are.

    Raises
    ------
    InvalidInputError
        Without any row, or for a level outside ``(0, 1)``.
    """
    rows = np.asarray(values, dtype=np.float64)
    if not len(rows):
        raise InvalidInputError("there is no sequence to take a mean of; give at least one")
    if not 0 < level < 1:
        raise InvalidInputError(f"level is {level}; give a number between 0 and 1")
    drawn = np.random.default_rng(_SEED).multinomial(len(rows), np.full(len(rows), 1 / len(rows)), RESAMPLES)
    means = np.tensordot(drawn / len(rows), rows, axes=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return rows.mean(axis=0), np.asarray(low), np.asarray(high)


def total(table: StepTable, setting: Setting, metric: str) -> Interval:
    """The mean of a metric over everything under a setting; an infinite value stays infinite in it.

    Of one of `ROOTS` the root of the mean.
    """
    found = _interval(table.where(setting).matrix(ROOTS.get(metric, metric)).mean(axis=1))
    return Interval(sqrt(found.mean), sqrt(found.low), sqrt(found.high)) if metric in ROOTS else found


def over_time(table: StepTable, setting: Setting, metric: str) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The mean of a metric over sequences at each time step under a setting, with its interval; ``(length,)`` each."""
    mean, low, high = bootstrap(table.where(setting).matrix(ROOTS.get(metric, metric)))
    return (np.sqrt(mean), np.sqrt(low), np.sqrt(high)) if metric in ROOTS else (mean, low, high)


def difference(table: StepTable, first: Setting, second: Setting, metric: str) -> Interval:
    """Mean of a metric under one setting minus that under another, sequence by sequence; of `ROOTS`, of the squares."""
    means = [table.where(one).matrix(ROOTS.get(metric, metric)).mean(axis=1) for one in (first, second)]
    return _interval(means[0] - means[1])


def _interval(values: FloatArray) -> Interval:
    return Interval(*(float(part) for part in bootstrap(values)))
