"""A whole series released under a landmark scheme, by any mechanism."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, as_numbers, as_points
from dphmm.errors import BudgetError, CoordinateError
from dphmm.landmarks.adaptive import Adaptive
from dphmm.landmarks.budget import LandmarkBudget

Mechanism = Callable[[FloatArray, float], npt.ArrayLike]
"""From a true value ``(d,)`` and a budget to a released value ``(d,)``."""


@dataclass(frozen=True)
class ReleasedSeries:
    """What came out, all of it public.

    Attributes
    ----------
    values
        ``(T, d)``.
    published
        ``(T,)`` booleans: false where the last release was given again.
    budget
        What was spent, proved sound.
    exact
        Whether all noise was drawn by integers alone, so that the promise holds on a computer.
    """

    values: FloatArray
    published: BoolArray
    budget: LandmarkBudget
    exact: bool


def release_series(values: npt.ArrayLike, scheme: LandmarkBudget | Adaptive, mechanism: Mechanism) -> ReleasedSeries:
    """Release a series under a scheme.

    A timestamp whose budget is zero gets the last release; the first one then gets the first fresh release that
    follows, which is a function of releases as well.

    Parameters
    ----------
    values
        True values ``(T, d)``, or ``(T,)`` for scalars.
    scheme
        Fixed budgets (`skip`, `uniform`) or an `Adaptive` that has not begun.
    mechanism
        Such as `dphmm.landmarks.lattice` or `dphmm.landmarks.planar_lattice`. Its noise counts as exact where it has an
        attribute ``exact`` that is true.

    Raises
    ------
    CoordinateError
        When values are no finite numbers, or their number is not that of the timestamps.
    BudgetError
        When no timestamp has a budget, so that nothing can be released.
    """
    array = as_numbers(values, "values", CoordinateError)
    truth = as_points(array[:, None] if array.ndim == 1 else array, "values")
    exact = getattr(mechanism, "exact", False) is True
    ahead = len(scheme if isinstance(scheme, Adaptive) else scheme.timeline)
    if len(truth) != ahead:
        raise CoordinateError(f"there are {len(truth)} values and {ahead} timestamps ahead; give one for each")
    if isinstance(scheme, Adaptive):
        steps = [scheme.step(partial(mechanism, value), exact) for value in truth]
        values, published = np.array([step.value for step in steps]), np.array([step.published for step in steps])
        return ReleasedSeries(values, published, scheme.budget, exact)
    published = scheme.epsilons > 0
    if not published.any():
        raise BudgetError("no timestamp has a budget, so nothing can be released; leave one regular timestamp")
    fresh = np.flatnonzero(published)
    drawn = np.array([mechanism(truth[t], float(scheme.epsilons[t])) for t in fresh])
    latest = np.maximum(np.cumsum(published) - 1, 0)
    return ReleasedSeries(drawn[latest], published, scheme, exact)
