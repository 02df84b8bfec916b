"""The inverse of the digamma function, fast: where ``psi(r + 1)`` takes a value."""

from __future__ import annotations

import numpy as np
from scipy.special import digamma, polygamma

from dphmm.arrays import FloatArray

LOWEST = float(digamma(1.0))
"""``psi(1)``: the value at count zero. Below it the inverse would be a negative count."""

_DEGREE = 18
_EDGE = float(np.exp(-LOWEST))
"""The largest ``exp(-value)`` at which a count is not negative."""


def _newton(values: FloatArray) -> FloatArray:
    """The inverse by Newton's iteration; slow, used once for the table."""
    counts = np.maximum(np.exp(values) - 0.5, 0.0)
    for _ in range(60):
        counts = counts - (digamma(counts + 1.0) - values) / polygamma(1, counts + 1.0)
    return np.asarray(counts)


def _table() -> FloatArray:
    """Chebyshev coefficients of ``inverse(log u) - (u - 1/2)`` as a function of ``v = 1 / u``, divided by ``v``.

    The function is smooth down to ``v = 0``, where its asymptotic series starts with ``-v / 24``.
    """
    node = np.cos(np.pi * (np.arange(4 * _DEGREE) + 0.5) / (4 * _DEGREE))
    v = 0.5 * _EDGE * (node + 1.0)
    # Below 1/60 the difference of two large numbers loses digits; three terms of the series are exact there.
    series = -1 / 24 + v**2 * (3 / 640 - v**2 * (1525 / 580608))
    exact = (_newton(-np.log(v)) - (1.0 / v - 0.5)) / v
    fitted = np.polynomial.chebyshev.chebfit(node, np.where(v < 1 / 60, series, exact), _DEGREE)
    return np.asarray(fitted, dtype=np.float64)


_COEFFICIENTS = _table()


def count_at(values: FloatArray) -> FloatArray:
    """The count ``r >= 0`` at which ``psi(r + 1)`` takes each value; zero for values below ``psi(1)``.

    Parameters
    ----------
    values
        Any shape; minus infinity gives zero. Values above 700 overflow and are not expected.

    Returns
    -------
    FloatArray
        The same shape, exact to about 1e-12 relative to ``r + 1``.
    """
    u = np.exp(np.maximum(values, LOWEST))
    v = 1.0 / u
    x = v * (2.0 / _EDGE) - 1.0
    return np.maximum(u - 0.5 + v * _clenshaw(x), 0.0)


def _clenshaw(x: FloatArray) -> FloatArray:
    """The Chebyshev series at ``x``, with three work arrays in place of one per term."""
    twice = 2.0 * x
    ahead, current, work = np.zeros_like(x), np.full_like(x, _COEFFICIENTS[-1]), np.empty_like(x)
    for coefficient in _COEFFICIENTS[-2:0:-1]:
        np.multiply(twice, current, out=work)
        work -= ahead
        work += coefficient
        ahead, current, work = current, work, ahead
    return np.asarray(_COEFFICIENTS[0] + x * current - ahead)
