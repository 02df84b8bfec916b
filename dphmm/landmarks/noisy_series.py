"""Release of a series under a landmark scheme, with exact lattice noise or Laplace noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cache, partial
from math import ceil, cos, floor, inf, pi, sin
from typing import Annotated

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, as_numbers, as_points
from dphmm.errors import BudgetError, CoordinateError, InvalidInputError
from dphmm.geometry import SensitivityHull
from dphmm.landmarks.budget_schemes import Adaptive, LandmarkBudget
from dphmm.mechanisms import LatticeKNormMechanism, PlanarLaplaceMechanism
from dphmm.mechanisms.discrete_laplace import MAX_NOISE_SCALE, sample_discrete_laplace
from dphmm.mechanisms.exact_sampling import Rational, parse_rational
from dphmm.mechanisms.lattice import STEP_LIMIT, Spacing
from dphmm.mechanisms.norm_noise import sample_laplace
from dphmm.mechanisms.registry import MechanismLike, is_exact_mechanism
from dphmm.random import Rng, as_random_source
from dphmm.validation import Interval, NoiseEpsilon, check_arguments

# Default spacing of the lattice of locations, in kilometres.
DEFAULT_SPACING_KM = Fraction(1, 1000)

# Vertices of the polygon around the disc, which exceeds the disc by at most 0.5 % and a step or two.
_NUM_CORNERS = 32

# Upper bound on the square root of two.
_SQRT_2_BOUND = Fraction(14143, 10000)

_Length = Annotated[float, Interval(0, inf, "neither", error=BudgetError)]


@dataclass(frozen=True)
class Noise:
    """A mechanism for `release_series`: maps a true value and a budget to a release.

    Parameters
    ----------
    name
        As in `dphmm.mechanisms.MECHANISMS`.
    draw
        A function from a true value ``(d,)`` and a budget to a release ``(d,)``. A budget denotes its shortest decimal.
    """

    name: MechanismLike
    draw: Callable[[FloatArray, float], FloatArray]

    @property
    def exact(self) -> bool:
        """Whether noise is sampled with integers only: the guarantee is exact in finite precision."""
        return is_exact_mechanism(self.name)

    @check_arguments
    def __call__(self, value: npt.ArrayLike, epsilon: NoiseEpsilon) -> FloatArray:
        """Release a true value.

        Raises
        ------
        CoordinateError
            When the value is not a row of numbers.
        BudgetError
            When the budget is not positive and finite.
        """
        values = np.atleast_1d(as_numbers(value, "values", CoordinateError))
        if values.ndim != 1:
            raise CoordinateError(f"values must be those of one timestamp, got shape {values.shape}")
        return self.draw(values, float(epsilon))


def lattice_noise(sensitivity: Rational, spacing: Rational | None = None, rng: Rng = None) -> Noise:
    """Return exact noise for values: discrete Laplace on a lattice.

    Noise is sampled with integers only. Values are rounded to integer multiples of the spacing. Two rows of ``d``
    values with absolute differences that sum to S then differ by at most ``k = ceil(S / spacing) + d - 1`` steps. Noise
    of decay ``epsilon / k`` per step keeps them epsilon-indistinguishable, exactly and for all values.

    Parameters
    ----------
    sensitivity
        The largest change of a row in the sum of absolute differences, positive. A float denotes its shortest decimal.
    spacing
        The step of the lattice, in the unit of the values, public. Defaults to a thousandth of the sensitivity's power
        of ten.
    rng
        Source of randomness.

    Returns
    -------
    Noise
        Named ``lattice``; exact.

    Raises
    ------
    BudgetError
        When the sensitivity is not positive and finite; when sampling, if the noise might exceed 64 bits.
    InvalidInputError
        When the spacing is not positive and finite.
    CoordinateError
        When sampling, if a value is not finite or beyond ``2**52`` steps.

    Examples
    --------
    >>> noise = lattice_noise(20, spacing=1, rng=1)
    >>> noise.exact, noise([71.4], 1.0) % 1
    (True, array([0.]))
    """
    width = parse_rational(sensitivity, "sensitivity")
    power = Decimal(width.numerator) / Decimal(width.denominator)
    grid = Spacing(Fraction(10) ** (power.adjusted() - 3) if spacing is None else spacing)
    source = as_random_source(rng)

    def draw(value: FloatArray, epsilon: float) -> FloatArray:
        steps = ceil(width / grid.step) + value.size - 1
        decay = parse_rational(epsilon) / steps
        if decay * MAX_NOISE_SCALE < 1:
            raise BudgetError(f"noise for epsilon {epsilon} can exceed 64 bits: use a larger spacing")
        return _locate_published(grid, round_to_steps(value, grid), sample_discrete_laplace(decay, value.size, source))

    return Noise("lattice", draw)


def planar_lattice(unit: Rational = 1, spacing: Rational = DEFAULT_SPACING_KM, rng: Rng = None) -> Noise:
    """Return exact noise for locations: the K-norm mechanism of a polygon around a disc.

    Noise is sampled on a lattice with integers only. Locations are rounded to the lattice, which increases their
    distance by up to ``1.4143`` steps. The polygon contains a disc with a radius of the unit plus these steps.
    Locations at most one unit apart are epsilon-indistinguishable, and locations r > 1 units apart are
    ``r * epsilon`` indistinguishable, exactly. (For r < 1 the bound is ``epsilon (r + c) / (1 + c)``, where c is 1.4143
    steps over the unit.) Keep the step well below the unit, because the polygon exceeds the disc by a step or two.

    Parameters
    ----------
    unit
        A length in the unit of the values, positive.
    spacing
        The step of the lattice, in the unit of the values. Defaults to a metre if that is kilometres.
    rng
        Where randomness comes from.

    Returns
    -------
    Noise
        Named ``lattice``; exact.

    Raises
    ------
    BudgetError
        When the unit is not positive and finite; when sampling, if the noise might exceed 64 bits.
    InvalidInputError
        When the spacing is not positive and finite, or the unit exceeds a hundred million steps.
    CoordinateError
        When sampling, if the location is not a pair of finite numbers within ``2**52`` steps.

    Examples
    --------
    >>> planar_lattice(0.2, rng=1)([1.0, 2.0], 2.0)
    array([1.02, 1.78])
    """
    grid = Spacing(spacing)
    source = as_random_source(rng)
    radius = parse_rational(unit, "unit") / grid.step + _SQRT_2_BOUND
    if radius > 10**8:
        raise InvalidInputError(f"unit must be at most 10**8 steps of {grid.step}, got {unit}: use a larger spacing")
    hull = SensitivityHull(_build_polygon(radius))

    @cache
    def build_mechanism(epsilon: Fraction) -> LatticeKNormMechanism:
        return LatticeKNormMechanism(hull, epsilon)

    def draw(value: FloatArray, epsilon: float) -> FloatArray:
        if value.shape != (2,):
            raise CoordinateError(f"planar noise needs two coordinates, got shape {value.shape}")
        at = round_to_steps(value, grid)
        return _locate_published(
            grid, at, build_mechanism(parse_rational(epsilon)).sample(np.zeros(2, dtype=np.int64), source)
        )

    return Noise("lattice", draw)


@check_arguments
def laplace_noise(sensitivity: _Length, rng: Rng = None) -> Noise:
    """Return independent Laplace noise of scale ``sensitivity / epsilon`` per coordinate.

    Sampled in double precision. The guarantee holds for real numbers; the low bits of a double can distinguish true
    values (Mironov, CCS 2012). `lattice_noise` is exact.

    Parameters
    ----------
    sensitivity
        The largest change of the value in the sum of absolute differences, positive.
    rng
        Where randomness comes from.

    Returns
    -------
    Noise
        Named ``laplace``.
    """
    width = float(sensitivity)
    source = as_random_source(rng)
    return Noise("laplace", lambda value, epsilon: value + width / epsilon * sample_laplace(value.shape, source))


@check_arguments
def planar_laplace(unit: _Length = 1.0, rng: Rng = None) -> Noise:
    """Return planar Laplace noise for locations ``(k, 2)``, in double precision.

    Under a landmark scheme, the guarantee applies to locations one unit apart, and proportionally to others (Andrés et
    al., CCS 2013). It holds for real numbers, not for double precision; `planar_lattice` is exact.

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
    length = float(unit)
    source = as_random_source(rng)
    return Noise("planar-laplace", lambda value, epsilon: PlanarLaplaceMechanism(epsilon, length).sample(value, source))


def round_to_steps(value: FloatArray, grid: Spacing) -> npt.NDArray[np.int64]:
    """Return the nearest lattice point in steps, rounded half up in rationals.

    ``|a - b| < |x - y| / step + 1`` holds for the steps a, b of any two numbers x, y.

    Raises
    ------
    CoordinateError
        When a value is not finite, or beyond ``2**52`` steps.
    """
    if not np.isfinite(value).all():
        raise CoordinateError(f"values must be finite, got {value.tolist()}")
    steps = [floor(Fraction(x) / grid.step + Fraction(1, 2)) for x in value.tolist()]
    if any(abs(step) > STEP_LIMIT for step in steps):
        raise CoordinateError(
            f"values must be within 2**52 steps of {grid.step}, got {value.tolist()}: use a larger spacing"
        )
    return np.array(steps, dtype=np.int64)


def _locate_published(grid: Spacing, steps: npt.NDArray[np.int64], noise: npt.NDArray[np.int64]) -> FloatArray:
    return np.asarray(grid.to_points(steps + noise), dtype=np.float64)


def _build_polygon(radius: Fraction) -> npt.NDArray[np.int64]:
    """Return integer points ``(k, 2)`` that with their opposites span a polygon around a disc.

    Rounding moves each vertex of a regular polygon by at most 0.7072, and therefore each side by at most that.
    """
    reach = (float(radius) + 0.7072) / cos(pi / _NUM_CORNERS)
    angles = [2 * pi * k / _NUM_CORNERS for k in range(_NUM_CORNERS // 2)]
    return np.array([(round(reach * cos(angle)), round(reach * sin(angle))) for angle in angles], dtype=np.int64)


# A function from a true value ``(d,)`` and a budget to a released value ``(d,)``.
Mechanism = Callable[[FloatArray, float], npt.ArrayLike]


@dataclass(frozen=True)
class ReleasedSeries:
    """A released series, all of it public.

    Parameters
    ----------
    values
        ``(T, d)``.
    published
        ``(T,)`` booleans: false where the last release is repeated.
    budget
        Budgets spent, verified at construction.
    exact
        Whether all noise was sampled with integers only. The guarantee is then exact in finite precision.
    """

    values: FloatArray
    published: BoolArray
    budget: LandmarkBudget
    exact: bool


def release_series(values: npt.ArrayLike, scheme: LandmarkBudget | Adaptive, mechanism: Mechanism) -> ReleasedSeries:
    """Release a series under a scheme.

    A timestamp with a zero budget repeats the last release. Before the first release it takes the next new release,
    which is post-processing.

    Parameters
    ----------
    values
        True values ``(T, d)``, or ``(T,)`` for scalars.
    scheme
        Fixed budgets (`skip_scheme`, `uniform_scheme`) or an unused `Adaptive`.
    mechanism
        For example `lattice_noise` or `planar_lattice`. Its noise counts as exact if its attribute ``exact`` is True.

    Returns
    -------
    ReleasedSeries
        The releases and their budget.

    Raises
    ------
    CoordinateError
        When values are not finite numbers, or their number differs from that of the timestamps.
    BudgetError
        When no timestamp has a positive budget.
    """
    array = as_numbers(values, "values", CoordinateError)
    truth = as_points(array[:, None] if array.ndim == 1 else array, "values")
    exact = getattr(mechanism, "exact", False) is True
    ahead = len(scheme if isinstance(scheme, Adaptive) else scheme.timeline)
    if len(truth) != ahead:
        raise CoordinateError(f"values must be one for each remaining timestamp, got {len(truth)} values for {ahead}")
    if isinstance(scheme, Adaptive):
        steps = [scheme.step(partial(mechanism, value), exact) for value in truth]
        values = np.array([step.value for step in steps])
        published = np.array([step.published for step in steps])
        return ReleasedSeries(values, published, scheme.budget, exact)
    published = scheme.epsilons > 0
    if not published.any():
        raise BudgetError("at least one timestamp must have a positive budget: keep one regular timestamp")
    fresh = np.flatnonzero(published)
    drawn = np.array([mechanism(truth[t], float(scheme.epsilons[t])) for t in fresh])
    latest = np.maximum(np.cumsum(published) - 1, 0)
    return ReleasedSeries(drawn[latest], published, scheme, exact)
