"""The normaliser of a discrete K-norm distribution, to double or to any wanted precision, and its second moments."""

from __future__ import annotations

from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from fractions import Fraction
from functools import cached_property
from math import exp, log, log1p
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray
from dphmm.mechanisms.cones import Fan
from dphmm.mechanisms.sails import SailEdge, decimal_power, geometric_moments, log1mexp, sail


class LatticeSum:
    """``sum of exp(-decay ‖z‖)`` over the lattice ``Z^r``, for the norm of a symmetric lattice polytope, ``r <= 2``.

    Parameters
    ----------
    rank
        The dimension ``r``: 0 for the origin alone, 1 for ``‖z‖ = |z|`` on the integers, 2 for a fan's polygon.
    fan
        The cones of the polygon where ``r = 2``.
    """

    def __init__(self, rank: int, fan: Fan | None) -> None:
        self.rank = rank
        self._fan = fan

    @cached_property
    def _edges(self) -> tuple[SailEdge, ...]:
        """Half-open cones that hold one of each pair ``z, -z`` of lattice points but the origin."""
        cones = self._fan.cones if self._fan is not None else ()
        return tuple(edge for cone in cones[: len(cones) // 2] for edge in sail(cone))

    def log_total(self, decay: float) -> float:
        """The logarithm of the sum, with an error of a few units in the last place of the sum's largest terms."""
        if self.rank == 1:
            return log1p(exp(-decay)) - log1mexp(decay)
        return float(np.logaddexp.reduce([0.0, *(log(2) + edge.log_mass(decay) for edge in self._edges)]))

    def total(self, decay: Fraction, digits: int) -> Decimal:
        """The sum with a relative error below ``10**-digits``."""
        with localcontext(self._context(decay, digits)):
            if self.rank == 1:
                q = decimal_power(-decay)
                return (1 + q) / (1 - q)
            return 1 + 2 * sum((edge.mass(decay) for edge in self._edges), Decimal(0))

    def _context(self, decay: Fraction, digits: int) -> Context:
        """Enough working digits for ``1 - exp(-x)`` at the least ``x``, ``exp(x)`` at the largest, and the sum."""
        exponents = [decay]
        for edge in self._edges:
            exponents += [decay * abs(x) for x in (edge.first, edge.last, edge.slope, edge.count * edge.slope) if x]
        guard = _digits(max(exponents)) + 2 * _digits(1 / min(exponents)) + _digits(Fraction(len(exponents)))
        return decimal_context(digits + 10 + guard)

    def second_moments(self, decay: float, basis: npt.NDArray[Any]) -> FloatArray:
        """``E[y yᵀ]``, ``(d, d)``, of ``y = z basis`` under probabilities of ``z`` proportional to ``exp(-decay ‖z‖)``.

        Parameters
        ----------
        decay
            Positive.
        basis
            ``(r, d)`` integers.
        """
        if self.rank == 1:
            line = basis[0].astype(np.float64)
            return 2 * geometric_moments(decay)[1] * np.outer(line, line)
        total = self.log_total(decay)
        moments = np.zeros((basis.shape[1], basis.shape[1]))
        for edge in self._edges:
            moments += 2 * exp(edge.log_mass(decay) - total) * edge.second_moments(decay, basis)
        return moments


def decimal_context(digits: int) -> Context:
    """A context of some digits in which nothing underflows."""
    return Context(prec=digits, Emin=MIN_EMIN, Emax=MAX_EMAX)


def decimal_exp(exponent: Fraction, digits: int) -> Decimal:
    """``exp(-exponent)`` for ``exponent >= 0``, with a relative error below ``10**-digits``."""
    with localcontext(decimal_context(digits + 5 + _digits(exponent))):
        return decimal_power(-exponent)


def _digits(x: Fraction) -> int:
    """The number of decimal digits of the integer part."""
    return len(str(int(x)))
