"""A whole series released under a landmark scheme, by any mechanism."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, Rng, as_points, check_epsilon, random_source
from dphmm.errors import BudgetError, CoordinateError
from dphmm.landmarks.adaptive import Adaptive
from dphmm.landmarks.budget import LandmarkBudget
from dphmm.mechanisms.base import laplace_noise
from dphmm.mechanisms.planar_laplace import PlanarLaplaceMechanism

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
    """

    values: FloatArray
    published: BoolArray
    budget: LandmarkBudget


def laplace(sensitivity: float, rng: Rng = None) -> Mechanism:
    """Independent Laplace noise of scale ``sensitivity / epsilon`` on every coordinate.

    Parameters
    ----------
    sensitivity
        The greatest change of the value in the sum of absolute differences, positive.
    rng
        Where randomness comes from.
    """
    width, source = check_epsilon(sensitivity, "sensitivity"), random_source(rng)
    return lambda value, epsilon: value + width / epsilon * laplace_noise(value.shape, source)


def planar_laplace(unit: float = 1.0, rng: Rng = None) -> Mechanism:
    """Planar Laplace noise: two places at a distance are ``epsilon * distance / unit`` indistinguishable.

    A landmark scheme then holds for places one unit apart, and in proportion for others (Andrés et al., CCS 2013).

    Parameters
    ----------
    unit
        A length in the unit of the values, positive.
    rng
        Where randomness comes from.
    """
    length, source = check_epsilon(unit, "unit"), random_source(rng)
    return lambda value, epsilon: PlanarLaplaceMechanism(epsilon, length).sample(value, source)


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
        Such as `laplace` or `planar_laplace`.

    Raises
    ------
    CoordinateError
        When the number of values is not that of the timestamps.
    BudgetError
        When no timestamp has a budget, so that nothing can be released.
    """
    array = np.asarray(values, dtype=np.float64)
    truth = as_points(array[:, None] if array.ndim == 1 else array, "values")
    ahead = len(scheme if isinstance(scheme, Adaptive) else scheme.timeline)
    if len(truth) != ahead:
        raise CoordinateError(f"there are {len(truth)} values and {ahead} timestamps ahead; give one for each")
    if isinstance(scheme, Adaptive):
        steps = [scheme.step(partial(mechanism, value)) for value in truth]
        values, published = np.array([step.value for step in steps]), np.array([step.published for step in steps])
        return ReleasedSeries(values, published, scheme.budget)
    published = scheme.epsilons > 0
    if not published.any():
        raise BudgetError("no timestamp has a budget, so nothing can be released; leave one regular timestamp")
    fresh = np.flatnonzero(published)
    drawn = np.array([mechanism(truth[t], float(scheme.epsilons[t])) for t in fresh])
    latest = np.maximum(np.cumsum(published) - 1, 0)
    return ReleasedSeries(drawn[latest], published, scheme)
