"""A whole series released under a landmark scheme, and noise for it: exact on a lattice, or Laplace in real numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cache, partial
from math import ceil, cos, floor, pi, sin

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, Rng, as_numbers, as_points, check_epsilon, random_source
from dphmm.errors import BudgetError, CoordinateError, InvalidInputError
from dphmm.geometry import SensitivityHull
from dphmm.landmarks.schemes import Adaptive, LandmarkBudget
from dphmm.mechanisms import EXACT, LatticeKNormMechanism, MechanismName, PlanarLaplaceMechanism
from dphmm.mechanisms.exact import RandomBits, Rational, discrete_laplace, rational
from dphmm.mechanisms.lattice import STEP_LIMIT, Spacing
from dphmm.mechanisms.norm_noise import laplace_noise

METRE = Fraction(1, 1000)
"""The step of the lattice of places, in kilometres, unless another is asked for."""

_WIDEST = 2**42
"""Largest scale of noise in steps: noise then passes 64 bits with a chance below ``exp(-10**6)``."""

_CORNERS = 32
"""Of the polygon around the disc: it is wider than the disc by 0.5 % at most, and a step or two."""

_DIAGONAL = Fraction(14143, 10000)
"""A little more than the square root of two."""


@dataclass(frozen=True)
class Noise:
    """A mechanism for `dphmm.landmarks.release_series`: from a true value ``(d,)`` and a budget to a release ``(d,)``.

    Parameters
    ----------
    name
        As in `dphmm.mechanisms.MECHANISMS`.
    draw
        The function. A budget stands for the decimal number that it prints as.
    """

    name: MechanismName
    draw: Callable[[FloatArray, float], FloatArray]

    @property
    def exact(self) -> bool:
        """Whether it is drawn by integers alone, so that the promise holds on a computer."""
        return self.name in EXACT

    def __call__(self, value: npt.ArrayLike, epsilon: float) -> FloatArray:
        """A release of a true value.

        Raises
        ------
        CoordinateError
            When it is no row of numbers.
        BudgetError
            When the budget is not positive and finite.
        """
        values = np.atleast_1d(as_numbers(value, "values", CoordinateError))
        if values.ndim != 1:
            raise CoordinateError(f"values have shape {values.shape}; give those of one timestamp")
        return self.draw(values, check_epsilon(epsilon))


def lattice(sensitivity: Rational, spacing: Rational | None = None, rng: Rng = None) -> Noise:
    """Exact noise for values: discrete Laplace on a lattice, drawn with integers alone.

    Values are rounded to whole multiples of the spacing. Two rows of ``d`` values whose absolute differences sum to S
    then differ by at most ``k = ceil(S / spacing) + d - 1`` steps, and noise of decay ``epsilon / k`` a step keeps them
    epsilon-indistinguishable: exactly, whatever the values are.

    Parameters
    ----------
    sensitivity
        The greatest change of a row in the sum of absolute differences, positive; a float is read as its shortest
        decimal.
    spacing
        The step of the lattice, in the unit of the values; part of what is public. Left out, the power of ten that is
        a thousandth of the sensitivity's.
    rng
        Where randomness comes from.

    Returns
    -------
    Noise
        Named ``lattice``; exact.

    Raises
    ------
    BudgetError
        When the sensitivity is not positive and finite; in a draw, when the noise might not fit 64 bits.
    InvalidInputError
        When the spacing is not positive and finite.
    CoordinateError
        In a draw, when a value is not finite or beyond ``2**52`` steps.

    Examples
    --------
    >>> noise = lattice(20, spacing=1, rng=1)
    >>> noise.exact, noise([71.4], 1.0) % 1
    (True, array([0.]))
    """
    width = rational(sensitivity, "sensitivity")
    power = Decimal(width.numerator) / Decimal(width.denominator)
    grid = Spacing(Fraction(10) ** (power.adjusted() - 3) if spacing is None else spacing)
    bits = RandomBits(random_source(rng))

    def draw(value: FloatArray, epsilon: float) -> FloatArray:
        steps = ceil(width / grid.step) + value.size - 1
        decay = rational(epsilon) / steps
        if decay * _WIDEST < 1:
            raise BudgetError(f"epsilon is {epsilon}; noise of that scale may pass 64 bits, so give a wider spacing")
        noise = [discrete_laplace(decay.numerator, decay.denominator, bits) for _ in range(value.size)]
        return _published(grid, nearest_steps(value, grid), np.array(noise, dtype=np.int64))

    return Noise("lattice", draw)


def planar_lattice(unit: Rational = 1, spacing: Rational = METRE, rng: Rng = None) -> Noise:
    """Exact noise for places: the K-norm mechanism of a polygon around a disc, on a lattice, drawn with integers alone.

    Places are rounded to the lattice, which moves two of them apart by up to ``1.4143`` steps. The polygon holds a disc
    of the unit and that: places a unit apart, or nearer, are epsilon-indistinguishable, and places r > 1 units apart
    are ``r * epsilon`` indistinguishable, exactly. (Nearer places are so with ``epsilon (r + c) / (1 + c)`` at most,
    where c is 1.4143 steps over the unit.) Keep the step well below the unit: the polygon is wider by a step or two.

    Parameters
    ----------
    unit
        A length in the unit of the values, positive.
    spacing
        The step of the lattice, in the same unit; a metre where that is kilometres.
    rng
        Where randomness comes from.

    Returns
    -------
    Noise
        Named ``lattice``; exact.

    Raises
    ------
    BudgetError
        When the unit is not positive and finite; in a draw, when the noise might not fit 64 bits.
    InvalidInputError
        When the spacing is not positive and finite, or the unit more than a hundred million steps.
    CoordinateError
        In a draw, when the place is no pair of finite numbers within ``2**52`` steps.

    Examples
    --------
    >>> planar_lattice(0.2, rng=1)([1.0, 2.0], 2.0)
    array([1.02, 1.78])
    """
    grid, source = Spacing(spacing), random_source(rng)
    radius = rational(unit, "unit") / grid.step + _DIAGONAL
    if radius > 10**8:
        raise InvalidInputError(f"unit is {unit}, more than 10**8 steps of {grid.step}; give a wider spacing")
    hull = SensitivityHull(_polygon(radius))

    @cache
    def mechanism(epsilon: Fraction) -> LatticeKNormMechanism:
        return LatticeKNormMechanism(hull, epsilon)

    def draw(value: FloatArray, epsilon: float) -> FloatArray:
        if value.shape != (2,):
            raise CoordinateError(f"a place has shape {value.shape}; planar noise is for two coordinates")
        at = nearest_steps(value, grid)
        return _published(grid, at, mechanism(rational(epsilon)).sample(np.zeros(2, dtype=np.int64), source))

    return Noise("lattice", draw)


def laplace(sensitivity: float, rng: Rng = None) -> Noise:
    """Independent Laplace noise of scale ``sensitivity / epsilon`` on every coordinate, in double precision.

    The promise holds for real numbers; the low bits of a double can tell true values apart that it does not (Mironov,
    CCS 2012). `lattice` is exact.

    Parameters
    ----------
    sensitivity
        The greatest change of the value in the sum of absolute differences, positive.
    rng
        Where randomness comes from.

    Returns
    -------
    Noise
        Named ``laplace``.
    """
    width, source = check_epsilon(sensitivity, "sensitivity"), random_source(rng)
    return Noise("laplace", lambda value, epsilon: value + width / epsilon * laplace_noise(value.shape, source))


def planar_laplace(unit: float = 1.0, rng: Rng = None) -> Noise:
    """Planar Laplace noise in double precision: two places are ``epsilon * distance / unit`` indistinguishable.

    A landmark scheme then holds for places one unit apart, and in proportion for others (Andrés et al., CCS 2013), as
    far as floating point does; `planar_lattice` is exact.

    Parameters
    ----------
    unit
        A length in the unit of the values, positive.
    rng
        Where randomness comes from.

    Returns
    -------
    Noise
        Named ``planar-laplace``.
    """
    length, source = check_epsilon(unit, "unit"), random_source(rng)
    return Noise("planar-laplace", lambda value, epsilon: PlanarLaplaceMechanism(epsilon, length).sample(value, source))


def nearest_steps(value: FloatArray, grid: Spacing) -> npt.NDArray[np.int64]:
    """The nearest lattice point, in whole steps, rounded in rationals: half a step goes up.

    So ``|a - b| < |x - y| / step + 1`` for the steps a, b of two numbers x, y, without exception.

    Raises
    ------
    CoordinateError
        When a value is not finite, or beyond ``2**52`` steps.
    """
    if not np.isfinite(value).all():
        raise CoordinateError(f"the value {value.tolist()} is not finite; give finite numbers")
    steps = [floor(Fraction(x) / grid.step + Fraction(1, 2)) for x in value.tolist()]
    if any(abs(step) > STEP_LIMIT for step in steps):
        raise CoordinateError(f"the value {value.tolist()} is beyond 2**52 steps of {grid.step}; give a wider spacing")
    return np.array(steps, dtype=np.int64)


def _published(grid: Spacing, steps: npt.NDArray[np.int64], noise: npt.NDArray[np.int64]) -> FloatArray:
    return np.asarray(grid.points(steps + noise), dtype=np.float64)


def _polygon(radius: Fraction) -> npt.NDArray[np.int64]:
    """Points ``(k, 2)``, integers, that with their opposites span a polygon around a disc.

    Rounding the corners of a regular polygon moves each by 0.7072 at most, and so draws no side nearer by more.
    """
    reach = (float(radius) + 0.7072) / cos(pi / _CORNERS)
    angles = [2 * pi * k / _CORNERS for k in range(_CORNERS // 2)]
    return np.array([(round(reach * cos(angle)), round(reach * sin(angle))) for angle in angles], dtype=np.int64)


Mechanism = Callable[[FloatArray, float], npt.ArrayLike]
"""From a true value ``(d,)`` and a budget to a released value ``(d,)``."""


@dataclass(frozen=True)
class ReleasedSeries:
    """What came out, all of it public.

    Parameters
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

    Returns
    -------
    ReleasedSeries
        The releases and their budget.

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
