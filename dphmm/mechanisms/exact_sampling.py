"""Exact discrete sampling with integers and random bits, without floating-point numbers.

Floating-point noise leaks: the set of numbers that a rounded sampler can reach depends on the protected value
(Mironov, CCS 2012). The samplers here follow Canonne, Kamath and Steinke, *The Discrete Gaussian for Differential
Privacy* (2020), Algorithms 1 and 2. Their outputs have exactly the stated distribution, provided the random bits are
uniform. They do not run in constant time: the duration of a draw depends on its result.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np

from dphmm.errors import BudgetError
from dphmm.random import RandomSource
from dphmm.tables.values import parse_fraction, shorten_repr
from dphmm.tolerances import MAX_SCALE, MIN_SCALE


def make_decimal_context(digits: int) -> Context:
    """Return a decimal context of some digits without underflow."""
    return Context(prec=digits, Emin=MIN_EMIN, Emax=MAX_EMAX)


def compute_exp(x: Fraction) -> Decimal:
    """Return ``exp(x)`` in the current decimal context."""
    return (Decimal(x.numerator) / Decimal(x.denominator)).exp()


def compute_exp_of_negative(exponent: Fraction, digits: int) -> Decimal:
    """Return ``exp(-exponent)``, ``exponent >= 0``, to a relative error below ``10**-digits``."""
    with localcontext(make_decimal_context(digits + 5 + count_integer_digits(exponent))):
        return compute_exp(-exponent)


def count_integer_digits(x: Fraction) -> int:
    """Return the number of decimal digits of the integer part."""
    return len(str(int(x)))


# Words of 62 bits are Python integers of one or two digits, which are fast to compare.
_WORD_BITS = 62

# Words fetched from the source at a time: few at first, for a single draw, then twice as many up to a limit.
_MIN_BLOCK_WORDS = 32
_MAX_BLOCK_WORDS = 2048

# The types of a rational number; a float is read as its shortest decimal.
Rational = float | int | Fraction | Decimal | str | np.floating[Any]


class RandomBits:
    """Uniform words of random bits, fetched from a source in blocks.

    Parameters
    ----------
    source
        The source of bytes; see `dphmm.random.as_random_source`.
    """

    def __init__(self, source: RandomSource) -> None:
        self.source = source
        self._words = chain.from_iterable(_iterate_blocks(source))

    def sample_word(self) -> int:
        """Return the next word: an integer uniform in ``0 .. 2**62 - 1``."""
        return next(self._words)

    def sample_below(self, bound: int) -> int:
        """Return an integer uniform in ``0 .. bound - 1``, by rejection.

        Raises
        ------
        BudgetError
            If ``bound`` is not positive.
        """
        if bound < 1:
            raise BudgetError(f"bound must be positive, got {bound}")
        size = bound.bit_length()
        while True:
            value = next(self._words)
            have = _WORD_BITS
            while have < size:
                value = value << _WORD_BITS | next(self._words)
                have += _WORD_BITS
            value >>= have - size
            if value < bound:
                return value

    def sample_num_successes(self, num: int, den: int, step: int = 0, maximum: int | None = 1) -> int:
        """Return the number of successes before the first failure, at most ``most``.

        Flip ``k`` succeeds with probability exactly ``num / (den + k step)``, for ``0 <= num <= den``, ``den >= 1`` and
        ``step >= 0``. A uniform number is compared with the fraction one word of binary digits at a time. A single word
        decides except with probability ``2**-62``.
        """
        count = 0
        while count != maximum:
            left = num
            while True:
                digits, left = divmod(left << _WORD_BITS, den)
                word = next(self._words)
                if word != digits or left == 0:
                    break
            if word >= digits:
                return count
            count = count + 1
            den = den + step
        return count


def _iterate_blocks(source: RandomSource) -> Iterator[list[int]]:
    size = _MIN_BLOCK_WORDS
    while True:
        words = np.frombuffer(source.bytes(8 * size), dtype=np.uint64)
        yield (words >> np.uint64(64 - _WORD_BITS)).tolist()
        size = min(2 * size, _MAX_BLOCK_WORDS)


def parse_rational(value: Rational, name: str = "epsilon", low: float = MIN_SCALE, high: float = MAX_SCALE) -> Fraction:
    """Return the positive rational number that a budget was written as.

    ``0.1`` means one tenth, not the nearest binary number.

    Raises
    ------
    BudgetError
        If it is not a number from `low`, which is positive, to `high`.

    Examples
    --------
    >>> parse_rational(0.1)
    Fraction(1, 10)
    """
    again = isinstance(value, float | int)  # cached: the same few budgets are read at every step
    return (_parse_uncached if again else _parse_uncached.__wrapped__)(value, name, low, high)


@lru_cache(maxsize=256, typed=True)
def _parse_uncached(value: Rational, name: str, low: float, high: float) -> Fraction:
    try:
        # Others are converted exactly, or refused; the text of a boolean is no number, unlike its value.
        written = isinstance(value, bool | str | float | np.floating | Decimal)
        number: Any = value
        if isinstance(number, np.integer):  # a fraction of 64-bit integers overflows
            number = int(number)
        fraction = parse_fraction(str(value), name) if written else Fraction(number)
    except (TypeError, ValueError, OverflowError, AttributeError):
        fraction = Fraction(0)
    # As a double, the bound can be above the decimal number that the message contains.
    if not Fraction(str(low)) <= fraction <= high:
        text = value if isinstance(value, float) else shorten_repr(value)
        raise BudgetError(f"{name} must be in [{low:g}, {high:g}], got {text}")
    return fraction


def sample_geometric(num: int, den: int, bits: RandomBits) -> int:
    """Sample ``k >= 0`` with probability exactly ``(1 - q) q**k``, ``q = exp(-num / den)``.
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
        If ``num`` or ``den`` is below one.
    """
    if num < 1 or den < 1:
        raise BudgetError(f"the decay must be a positive fraction, got {num}/{den}")
    # A count of decay 1 / den has a uniform digit below den, kept with probability exp(-low / den), and a count of
    # decay 1 above it; its quotient by num has decay num / den.
    low = bits.sample_below(den)
    while bits.sample_num_successes(low, den, den, None) & 1:  # kept with probability exp(-low / den)
        low = bits.sample_below(den)
    high = 0
    while bits.sample_num_successes(1, 1, 1, None) & 1 == 0:  # each with probability exp(-1)
        high += 1
    return (low + den * high) // num


def sample_truncated_geometric(num: int, den: int, size: int, bits: RandomBits) -> int:
    """Sample ``0 <= k < size``, with probability exactly proportional to ``exp(-num/den k)``.

    The remainder of a count of `sample_geometric` after division by the size has this distribution: the remainders have
    the same probability ratios for every quotient.

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
        return bits.sample_below(size)
    left = sample_geometric(abs(num), den, bits) % size
    return left if num > 0 else size - 1 - left
