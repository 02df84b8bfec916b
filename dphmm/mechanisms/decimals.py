"""Decimal numbers with as many digits as are asked for."""

from __future__ import annotations

from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from fractions import Fraction


def decimal_context(digits: int) -> Context:
    """A context of some digits in which nothing underflows."""
    return Context(prec=digits, Emin=MIN_EMIN, Emax=MAX_EMAX)


def decimal_power(x: Fraction) -> Decimal:
    """``exp(x)`` in the current decimal context."""
    return (Decimal(x.numerator) / Decimal(x.denominator)).exp()


def decimal_exp(exponent: Fraction, digits: int) -> Decimal:
    """``exp(-exponent)`` for ``exponent >= 0``, with a relative error below ``10**-digits``."""
    with localcontext(decimal_context(digits + 5 + whole_digits(exponent))):
        return decimal_power(-exponent)


def whole_digits(x: Fraction) -> int:
    """The number of decimal digits of the integer part."""
    return len(str(int(x)))
