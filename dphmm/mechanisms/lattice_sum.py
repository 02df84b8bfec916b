"""The normaliser of a discrete K-norm distribution, to double or to any wanted precision, and its second moments."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Context, Decimal, localcontext
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray
from dphmm.mechanisms.decimals import decimal_context, decimal_power, whole_digits
from dphmm.mechanisms.sails import SailEdge

_TAYLOR = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000)
"""Bernoulli numbers ``B_2k / (2k)!``; below 0.3 the next term is less than ``1e-17`` of the first."""


class LatticeSum:
    """``sum of exp(-decay ‖z‖)`` over the lattice ``Z^r``, for the norm of a symmetric lattice polytope, ``r <= 2``.

    Parameters
    ----------
    rank
        The dimension ``r``: 0 for the origin alone, 1 for ``‖z‖ = |z|`` on the integers, 2 for a polygon.
    edges
        `dphmm.mechanisms.sails.half_sails` of the polygon where ``r = 2``, otherwise none.
    """

    def __init__(self, rank: int, edges: Sequence[SailEdge]) -> None:
        self.rank = rank
        self.edges = tuple(edges)
        norms = [(edge.first / edge.unit, edge.slope / edge.unit, edge.last / edge.unit) for edge in self.edges]
        self._first, self._slope, self._last = np.array(norms).reshape(-1, 3).T
        self._count = np.array([edge.count for edge in self.edges], dtype=np.float64)

    def log_masses(self, decay: float) -> FloatArray:
        """The logarithms of the sums over one of each pair ``z, -z`` of the half-open cones of the edges."""
        if self.rank == 1:
            return -decay - _log1mexp(np.array([decay]))
        t, u = decay * self._first, decay * self._last
        return -t + _log_geometric_sum(decay * self._slope, self._count) - _log1mexp(t) - _log1mexp(u)

    def log_total(self, decay: float) -> float:
        """The logarithm of the sum, with an error of a few units in the last place of the sum's largest terms."""
        return float(np.logaddexp.reduce([0.0, *(np.log(2.0) + self.log_masses(decay))]))

    def masses(self, decay: Fraction, digits: int) -> list[Decimal]:
        """The sums of which `log_masses` are the logarithms, with relative errors below ``10**-digits``."""
        with localcontext(self._context(decay, digits)):
            if self.rank == 1:
                q = decimal_power(-decay)
                return [q / (1 - q)]
            return [edge.mass(decay) for edge in self.edges]

    def total(self, decay: Fraction, digits: int) -> Decimal:
        """The sum with a relative error below ``10**-digits``."""
        with localcontext(self._context(decay, digits)):
            return 1 + 2 * sum(self.masses(decay, digits + 2), Decimal(0))

    def _context(self, decay: Fraction, digits: int) -> Context:
        """Enough working digits for ``1 - exp(-x)`` at the least ``x``, ``exp(x)`` at the largest, and the sum."""
        exponents = [decay]
        for edge in self.edges:
            norms = (edge.first, edge.last, edge.slope, edge.count * edge.slope)
            exponents += [decay * abs(x) / edge.unit for x in norms if x]
        guard = whole_digits(max(exponents)) + 2 * whole_digits(1 / min(exponents)) + len(str(len(exponents)))
        return decimal_context(digits + 10 + guard)

    def second_moments(self, decay: float, basis: npt.NDArray[np.object_]) -> FloatArray:
        """``E[y yᵀ]``, ``(d, d)``, of ``y = z basis`` under probabilities of ``z`` proportional to ``exp(-decay ‖z‖)``.

        Counts along an edge are independent. The basis is applied to its points in integers: it may be so skew that
        moments of ``z`` in doubles would cancel.

        Parameters
        ----------
        decay
            Positive.
        basis
            ``(r, d)`` integers.
        """
        if self.rank == 1:
            line = basis[0].astype(np.float64)
            return 2 * float(_geometric_moments(np.array(decay))[1]) * np.outer(line, line)
        points = np.array([(edge.start, edge.step, edge.end) for edge in self.edges], dtype=object)
        if not self.edges:
            return np.zeros((basis.shape[1], basis.shape[1]))
        corners = (points.reshape(-1, 2) @ basis).astype(np.float64).reshape(-1, 3, basis.shape[1])
        mean_a, var_a = _geometric_moments(decay * self._first)
        mean_b, var_b = _geometric_moments(decay * self._last)
        mean_k, var_k = _truncated_moments(decay * self._slope, self._count)
        mean = np.einsum("ec,ecd->ed", np.stack([1 + mean_a, mean_k, mean_b], axis=1), corners)
        shares = 2 * np.exp(self.log_masses(decay) - self.log_total(decay))
        spread = np.stack([var_a, var_k, var_b], axis=1) * shares[:, np.newaxis]
        return np.asarray(
            np.einsum("e,ed,ef->df", shares, mean, mean) + np.einsum("ec,ecd,ecf->df", spread, corners, corners)
        )


def _log1mexp(t: FloatArray) -> FloatArray:
    """``log(1 - exp(-t))`` for positive ``t``, without cancellation."""
    return np.where(t < 1, np.log(-np.expm1(-np.minimum(t, 1.0))), np.log1p(-np.exp(-np.maximum(t, 1.0))))


def _log_geometric_sum(t: FloatArray, count: FloatArray) -> FloatArray:
    """The logarithms of the sums of ``exp(-t k)`` over ``0 <= k < count``, for ``t`` of either sign."""
    size = np.where(t == 0, 1.0, np.abs(t))
    falling = np.where(t == 0, np.log(count), np.log(np.expm1(-size * count) / np.expm1(-size)))
    return falling + np.where(t < 0, size * (count - 1), 0.0)


def _geometric_moments(t: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean and variance of counts with weights ``exp(-t k)``, ``k >= 0``, for positive ``t``."""
    q = -np.expm1(-t)
    return np.exp(-t) / q, np.exp(-t) / q / q


def _truncated_moments(t: FloatArray, count: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean and variance of counts with weights ``exp(-t k)``, ``0 <= k < count``; the poles at ``t = 0`` cancel."""
    mean = (count - 1) / 2 + _pole_free_mean(t) - count * _pole_free_mean(count * t)
    return mean, _pole_free_variance(t) - count**2 * _pole_free_variance(count * t)


def _pole_free_mean(t: FloatArray) -> FloatArray:
    """``1 / (exp(t) - 1) - 1 / t + 1 / 2``, an odd function; its Taylor series near zero."""
    small = np.clip(t, -0.3, 0.3)
    near = small * sum(c * small ** (2 * k) for k, c in enumerate(_TAYLOR))
    size = np.maximum(np.abs(t), 0.3)
    return np.where(np.abs(t) < 0.3, near, np.copysign(_geometric_moments(size)[0] - 1 / size + 0.5, t))


def _pole_free_variance(t: FloatArray) -> FloatArray:
    """``exp(t) / (exp(t) - 1)**2 - 1 / t**2``, an even function: minus the derivative of `_pole_free_mean`."""
    small = np.clip(t, -0.3, 0.3)
    near = -sum((2 * k + 1) * c * small ** (2 * k) for k, c in enumerate(_TAYLOR))
    size = np.maximum(np.abs(t), 0.3)
    return np.where(np.abs(t) < 0.3, near, _geometric_moments(size)[1] - 1 / size**2)
