"""A Gaussian belief about one count, multiplied by the likelihood of its noisy value, on counts >= 0.

Two moments of that product are what expectation propagation (Minka 2001) needs at every count. With Laplace noise the
product is a mixture of two truncated Gaussians, one below the noisy value and one above it, so both moments have closed
forms. With discrete Laplace noise, whose likelihood has the same form, they are sums over the integers: at small scales
that noise is less than the other's.
"""

from __future__ import annotations

import numpy as np
from scipy.special import erfcx

from dphmm.arrays import FloatArray

_FAR = 500.0
"""Standard deviations from the mean beyond which an interval's density counts as exponential."""

_ALL = 37.0
"""Standard deviations within which all of the mass lies, to the last digit."""

_NARROW = 1e-3
"""Width in standard deviations below which it does."""

_FADED = 40.0
"""How far below its greatest value the logarithm of a summand is when it no longer counts."""

_WIDEST = 200
"""Integers to either side that are summed; where more count, the integral is as good, to 2 % of a deviation."""

_AT_ONCE = 1 << 21
"""Summands held at a time."""


def tilted_moments(
    mean: FloatArray, variance: FloatArray, noisy: FloatArray, scale: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Mean and variance of the density in proportion to ``N(r; mean, variance) exp(-|noisy - r| / scale)`` on r >= 0.

    Parameters
    ----------
    mean, variance, noisy, scale
        Arrays that broadcast together; ``variance`` and ``scale`` positive.

    Returns
    -------
    mean, variance : FloatArray
        Of the product; the variance is never above that of the Gaussian.
    """
    sigma = np.sqrt(variance)
    shift = sigma / scale
    start, split = -mean / sigma, (np.maximum(noisy, 0.0) - mean) / sigma
    # The likelihood's logarithm has slope +1/scale below the noisy value and -1/scale above it; multiplied into the
    # Gaussian, a slope moves its mean by that many standard deviations. Weights are relative to the value at `split`.
    below_log, below_mean, below_var = _interval(start - shift, split - shift)
    above_log, above_mean, above_var = _interval(split + shift, np.full_like(split, np.inf))
    below_log = below_log + 0.5 * (split - shift) ** 2
    above_log = above_log + 0.5 * (split + shift) ** 2
    weight = np.exp(below_log - np.logaddexp(below_log, above_log))
    below_mean, above_mean = below_mean + shift, above_mean - shift
    centre = weight * below_mean + (1.0 - weight) * above_mean
    spread = weight * below_var + (1.0 - weight) * above_var + weight * (1.0 - weight) * (above_mean - below_mean) ** 2
    return mean + sigma * centre, variance * np.minimum(spread, 1.0)


def lattice_moments(
    mean: FloatArray, variance: FloatArray, noisy: FloatArray, scale: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """The same over the integers r >= 0: for discrete Laplace noise, and a noisy value that is an integer.

    Parameters
    ----------
    mean, variance, noisy, scale
        ``(k,)``; ``variance`` and ``scale`` positive.

    Returns
    -------
    mean, variance : FloatArray
        ``(k,)``; the variance is never above that of the Gaussian, and may be zero.
    """
    centre, spread = tilted_moments(mean, variance, noisy, scale)
    shift = variance / scale
    peak = np.maximum(np.clip(noisy, mean - shift, mean + shift), 0.0)
    # The slopes of the log density away from its peak, which are not positive, say how far it counts to either side.
    slope = np.abs(peak - mean) / variance
    steepness = np.maximum(1.0 / scale - slope, 0.0) * np.sqrt(variance)
    reach = 2.0 * _FADED * np.sqrt(variance) / (np.sqrt(steepness**2 + 2.0 * _FADED) + steepness)
    short = np.flatnonzero(reach < _WIDEST)
    size = max(1, _AT_ONCE // (2 * _WIDEST + 3))
    for start in range(0, short.size, size):
        at = short[start : start + size]
        width = int(reach[at].max()) + 2
        counts = np.rint(peak[at])[:, None] + np.arange(-width, width + 1)
        log = -((counts - mean[at, None]) ** 2) / (2.0 * variance[at, None])
        log -= np.abs(counts - noisy[at, None]) / scale[at, None]
        log[counts < 0] = -np.inf
        weight = np.exp(log - log.max(axis=1, keepdims=True))
        weight /= weight.sum(axis=1, keepdims=True)
        centre[at] = (weight * counts).sum(axis=1)
        spread[at] = (weight * (counts - centre[at, None]) ** 2).sum(axis=1)
    return centre, np.minimum(spread, variance)


def _interval(low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Log mass (up to the constant ``log sqrt(2 pi)``), mean and variance of the standard Gaussian on ``[low, high]``.

    ``high`` may be infinite. An interval in the right tail is mirrored into the left one, where no digits are lost.
    """
    mirrored = low + np.minimum(high, 1e300) > 0
    left, right = np.where(mirrored, -high, low), np.where(mirrored, -low, high)
    width = right - left
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        # Mass and the densities at both ends, all relative to the density at the right end.
        falling = np.exp(-0.5 * width * (-2.0 * right + width))
        mass = _mills(-right) - np.where(np.isinf(width), 0.0, falling * _mills(-left))
        offset = (falling - 1.0) / mass
        edge = np.where(np.isinf(width), 0.0, left * falling)
        variance = 1.0 + (edge - right) / mass - offset**2
        tail = (width < _NARROW) | (-right > _FAR)
        slope, back, tail_variance = _exponential(right, width)
        log_mass = -0.5 * right**2 + np.log(np.where(tail, _exponential_mass(slope, width), mass))
        log_mass = np.where(right > _ALL, 0.5 * np.log(2.0 * np.pi), log_mass)
    mean = np.where(tail, right - back, offset)
    variance = np.where(tail, tail_variance, np.maximum(variance, 0.0))
    return log_mass, np.where(mirrored, -mean, mean), variance


def _mills(x: FloatArray) -> FloatArray:
    """Mills' ratio: the standard Gaussian's mass beyond ``x``, relative to its density at ``x``."""
    return np.asarray(np.sqrt(np.pi / 2.0) * erfcx(np.maximum(x, -_ALL) / np.sqrt(2.0)))


def _exponential(right: FloatArray, width: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The Gaussian as an exponential density: its slope, the mean distance from ``right``, and the variance."""
    slope = np.maximum(-(right - 0.5 * np.minimum(width, _NARROW)), 1e-12)
    reach = slope * width
    growth = np.expm1(np.minimum(reach, 700.0))
    small = reach < 1e-3
    back = np.where(small, width * (0.5 - reach / 12.0), 1.0 / slope - np.where(reach < 700, width / growth, 0.0))
    squared = 1.0 / slope**2 - np.where(reach < 700, width**2 * (growth + 1.0) / growth**2, 0.0)
    return slope, back, np.where(small, width**2 / 12.0, squared)


def _exponential_mass(slope: FloatArray, width: FloatArray) -> FloatArray:
    """The integral of ``exp(-slope * x)`` over ``[0, width]``; tiny, not zero, for an empty interval."""
    return np.asarray(np.maximum(-np.expm1(-slope * width) / slope, 1e-300))
