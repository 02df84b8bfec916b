"""Exact discrete sampling: integers and random bits, no floating-point number anywhere.

Floating-point noise leaks: the set of numbers that a rounded sampler can reach depends on the value it hides
(Mironov, CCS 2012). The samplers here follow Canonne, Kamath and Steinke, *The Discrete Gaussian for Differential
Privacy* (2020), Algorithms 1 and 2: their outputs have exactly the stated distribution, provided the random bits are
uniform. They do not run in constant time: how long a draw takes depends on the draw.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np

from dphmm.arrays import LARGEST, SMALLEST, RandomSource
from dphmm.errors import BudgetError
from dphmm.tables.values import parse_fraction, shown


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


_WORD_BITS = 62
"""Words of 62 bits stay in the range where Python's integers are one or two digits and comparisons are cheap."""

_FIRST_BLOCK, _LARGEST_BLOCK = 32, 2048
"""Words fetched from the source at a time: few at first, for one draw, and twice as many each time up to a limit."""

Rational = float | int | Fraction | Decimal | str | np.floating[Any]
"""What a rational number may be written as; a float is read as its shortest decimal."""


class RandomBits:
    """Uniform words of random bits, fetched from a source in blocks.

    Parameters
    ----------
    source
        Where the bytes come from; see `dphmm.arrays.random_source`.
    """

    def __init__(self, source: RandomSource) -> None:
        self.source = source
        self._words = chain.from_iterable(_blocks(source))

    def word(self) -> int:
        """The next word: an integer uniform in ``0 .. 2**62 - 1``."""
        return next(self._words)

    def bit(self) -> int:
        """One fair bit."""
        return next(self._words) & 1

    def below(self, bound: int) -> int:
        """An integer uniform in ``0 .. bound - 1``, by rejection.

        Raises
        ------
        BudgetError
            When ``bound`` is not positive.
        """
        if bound < 1:
            raise BudgetError(f"the bound of a uniform integer is {bound}; give a positive one")
        size = bound.bit_length()
        while True:
            value, have = next(self._words), _WORD_BITS
            while have < size:
                value = value << _WORD_BITS | next(self._words)
                have += _WORD_BITS
            value >>= have - size
            if value < bound:
                return value

    def successes(self, num: int, den: int, step: int = 0, most: int | None = 1) -> int:
        """How many flips in a row succeed, of at most some: flip ``k`` with probability ``num / (den + k step)``.

        Exactly so, for ``0 <= num <= den``, ``den >= 1`` and ``step >= 0``. A uniform number is compared with the
        fraction one word of binary digits at a time; one word settles it but for a chance of ``2**-62``.
        """
        found = 0
        while found != most:
            left = num
            while True:
                digits, left = divmod(left << _WORD_BITS, den)
                word = next(self._words)
                if word != digits or left == 0:
                    break
            if word >= digits:
                return found
            found, den = found + 1, den + step
        return found


def _blocks(source: RandomSource) -> Iterator[list[int]]:
    size = _FIRST_BLOCK
    while True:
        words = np.frombuffer(source.bytes(8 * size), dtype=np.uint64)
        yield (words >> np.uint64(64 - _WORD_BITS)).tolist()
        size = min(2 * size, _LARGEST_BLOCK)


def rational(value: Rational, name: str = "epsilon") -> Fraction:
    """The positive rational that a budget was written as: ``0.1`` means one tenth, not the nearest binary number.

    Raises
    ------
    BudgetError
        When it is not a positive, finite number that doubles can calculate with.

    Examples
    --------
    >>> rational(0.1)
    Fraction(1, 10)
    """
    again = isinstance(value, float | int)  # the same few budgets are read at every step
    return _read(value, name) if again else _read.__wrapped__(value, name)


@lru_cache(maxsize=256, typed=True)
def _read(value: Rational, name: str) -> Fraction:
    try:
        written = isinstance(value, str | float | np.floating | Decimal)  # others are taken by value, or refused
        fraction = parse_fraction(str(value), name) if written else Fraction(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, AttributeError):
        fraction = Fraction(0)
    if not SMALLEST <= fraction <= LARGEST:
        said = value if isinstance(value, float) else shown(value)
        raise BudgetError(f"{name} is {said}; give a positive, finite number, {SMALLEST:g} to {LARGEST:g}")
    return fraction


def geometric_exp(num: int, den: int, bits: RandomBits) -> int:
    """An integer ``k >= 0`` with probability exactly ``(1 - q) q**k``, where ``q = exp(-num / den)``.

    Canonne, Kamath and Steinke (2020), the inner part of Algorithm 2.

    Parameters
    ----------
    num, den
        The decay per step as a fraction, both at least one.
    bits
        The random bits.

    Raises
    ------
    BudgetError
        When ``num`` or ``den`` is below one.
    """
    if num < 1 or den < 1:
        raise BudgetError(f"the decay is {num}/{den}; give a positive fraction")
    low = bits.below(den)
    while bits.successes(low, den, den, None) & 1:  # kept with probability exp(-low / den)
        low = bits.below(den)
    high = 0
    while bits.successes(1, 1, 1, None) & 1 == 0:  # each with probability exp(-1)
        high += 1
    return (low + den * high) // num


def cut_off_exp(num: int, den: int, size: int, bits: RandomBits) -> int:
    """An integer ``0 <= k < size`` with probability exactly proportional to ``exp(-num / den * k)``.

    What is left of a count of `geometric_exp` after division by the size is such a one: whichever multiple of the size
    was taken off, the probabilities of what is left have the same ratios.

    Parameters
    ----------
    num, den
        The decay per step as a fraction, of either sign or zero; ``den >= 1``.
    size
        At least 1.
    bits
        The random bits.
    """
    if size == 1:
        return 0
    if num == 0:
        return bits.below(size)
    left = geometric_exp(abs(num), den, bits) % size
    return left if num > 0 else size - 1 - left


def discrete_laplace(num: int, den: int, bits: RandomBits) -> int:
    """An integer ``x`` with probability exactly ``(1 - q) / (1 + q) * q**abs(x)``, where ``q = exp(-num / den)``.

    Canonne, Kamath and Steinke (2020), Algorithm 2. Added to an integer query of sensitivity ``D`` it gives
    ``D * num / den``-differential privacy.

    Parameters
    ----------
    num, den
        The decay per unit as a fraction (the inverse of the scale), both at least one.
    bits
        The random bits.

    Raises
    ------
    BudgetError
        When ``num`` or ``den`` is below one.
    """
    while True:
        size = geometric_exp(num, den, bits)
        if not bits.bit():
            return size
        if size:
            return -size
