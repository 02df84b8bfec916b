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

_TERMS: FloatArray = np.array([_TAYLOR, [(2 * k + 1) * c for k, c in enumerate(_TAYLOR)]])[..., np.newaxis, np.newaxis]

_POWERS: FloatArray = np.array([[[4.0]], [[6.0]], [[8.0]], [[10.0]]])

_LOG_2 = np.log(2.0)


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
        norms = [
            (first / unit, (first + count * slope) / unit, slope / unit, count)
            for _, _, count, first, slope, unit in self.edges
        ]
        columns: FloatArray = np.array(norms, dtype=np.float64).reshape(-1, 4).T
        self._ends, self._slope, self._count = columns[:2], columns[2], columns[3]
        """The norms of both ends of each edge, ``(2, e)``, what a step adds, and how many there are, ``(e,)`` each."""
        self._known: tuple[float, FloatArray] | None = None
        self._total: tuple[float, float] | None = None

    def log_masses(self, decay: float) -> FloatArray:
        """The logarithms of the sums over one of each pair ``z, -z`` of the half-open cones of the edges.

        Those of the last decay are kept: the draw, the density and the moments of one release all need them.
        """
        known = self._known
        if known is None or known[0] != decay:
            if self.rank == 1:
                found = -decay - _log1mexp(np.array([decay]))
            else:
                ends = decay * self._ends
                rest = _log1mexp(ends)
                found = -ends[0] + _log_geometric_sum(decay * self._slope, self._count) - rest[0] - rest[1]
            found.setflags(write=False)
            known = self._known = (decay, found)
        return known[1]

    def log_total(self, decay: float) -> float:
        """The logarithm of the sum, with an error of a few units in the last place of the sum's largest terms."""
        known = self._total
        if known is None or known[0] != decay:
            terms = np.zeros(1 + max(len(self.edges), self.rank % 2))
            np.add(_LOG_2, self.log_masses(decay), out=terms[1:])
            known = self._total = (decay, float(np.logaddexp.reduce(terms)))
        return known[1]

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
        if not self.edges:
            return np.zeros((basis.shape[1], basis.shape[1]))
        corners = self._corners(basis)
        means, spread = np.empty((2, len(self.edges), 3))
        mean_ab, var_ab = _geometric_moments(decay * self._ends)
        means[:, 1], spread[:, 1] = _truncated_moments(decay * self._slope, self._count)
        means[:, 0], means[:, 2] = 1 + mean_ab[0], mean_ab[1]
        spread[:, 0], spread[:, 2] = var_ab
        mean = np.einsum("ec,ecd->ed", means, corners)
        shares = 2 * np.exp(self.log_masses(decay) - self.log_total(decay))
        spread *= shares[:, np.newaxis]
        return np.asarray(
            np.einsum("e,ed,ef->df", shares, mean, mean) + np.einsum("ec,ecd,ecf->df", spread, corners, corners)
        )

    def _corners(self, basis: npt.NDArray[np.object_]) -> FloatArray:
        """Start, step and end of each edge in the basis, ``(e, 3, d)``."""
        points = [(x, y, dx, dy, x + count * dx, y + count * dy) for (x, y), (dx, dy), count, _, _, _ in self.edges]
        if basis.tolist() == [[1, 0], [0, 1]]:
            return np.array(points, dtype=np.float64).reshape(-1, 3, 2)
        whole = np.array(points, dtype=object).reshape(-1, 2) @ basis
        return np.asarray(whole.astype(np.float64).reshape(-1, 3, basis.shape[1]))


def _log1mexp(t: FloatArray) -> FloatArray:
    """``log(1 - exp(-t))`` for positive ``t``, without cancellation."""
    if t.max(initial=0.0) < 1:
        return np.log(-np.expm1(-t))
    return np.where(t < 1, np.log(-np.expm1(-np.minimum(t, 1.0))), np.log1p(-np.exp(-np.maximum(t, 1.0))))


def _log_geometric_sum(t: FloatArray, count: FloatArray) -> FloatArray:
    """The logarithms of the sums of ``exp(-t k)`` over ``0 <= k < count``, for ``t`` of either sign."""
    found, several = np.zeros(len(t)), (count > 1).nonzero()[0]
    if len(several):
        t, count = t[several], count[several]
        level, size = t == 0, np.abs(t)
        size[level] = 1.0
        falling = np.log(np.expm1(-size * count) / np.expm1(-size))
        falling[level] = np.log(count[level])
        found[several] = falling + np.where(t < 0, size * (count - 1), 0.0)
    return found


def _geometric_moments(t: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean and variance of counts with weights ``exp(-t k)``, ``k >= 0``, for positive ``t``."""
    q = -np.expm1(-t)
    mean = np.exp(-t) / q
    return mean, mean / q


def _truncated_moments(t: FloatArray, count: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean and variance of counts with weights ``exp(-t k)``, ``0 <= k < count``; the poles at ``t = 0`` cancel."""
    found, several = np.zeros((2, len(t))), (count > 1).nonzero()[0]
    if len(several):
        t, count = t[several], count[several]
        both = np.empty((2, len(t)))
        both[0] = t
        np.multiply(count, t, out=both[1])
        means, variances = _pole_free(both)
        found[0, several] = (count - 1) / 2 + means[0] - count * means[1]
        found[1, several] = variances[0] - count**2 * variances[1]
    return found[0], found[1]


def _pole_free(t: FloatArray) -> tuple[FloatArray, FloatArray]:
    """``1 / (exp(t) - 1) - 1 / t + 1 / 2``, an odd function, and ``exp(t) / (exp(t) - 1)**2 - 1 / t**2``, an even one.

    Of numbers ``(2, n)``. The second is minus the derivative of the first; their Taylor series near zero.
    """
    length = np.abs(t)
    is_near = length < 0.3
    any_near, all_near = bool(is_near.any()), bool(is_near.all())
    if any_near:
        small = t if all_near else np.minimum(np.maximum(t, -0.3), 0.3)
        powers = np.ones((len(_TAYLOR), *t.shape))
        np.multiply(small, small, out=powers[1])
        np.power(small, _POWERS, out=powers[2:])
        near, slope = np.add.reduce(_TERMS * powers, axis=1)
        near, slope = small * near, -slope
        if all_near:
            return near, slope
    size = np.maximum(length, 0.3)
    mean, variance = _geometric_moments(size)
    far, far_slope = np.copysign(mean - 1 / size + 0.5, t), variance - 1 / size**2
    if not any_near:
        return far, far_slope
    return np.where(is_near, near, far), np.where(is_near, slope, far_slope)
