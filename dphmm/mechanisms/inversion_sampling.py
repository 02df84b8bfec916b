"""Exact vectorized sampling: uniform words are compared with lazily refined thresholds.

A value is sampled by inversion: it is the number of thresholds that a uniform real number ``U`` in [0, 1) has reached.
``U`` is an infinite sequence of random words, the first of which decides nearly every draw. With ``t`` the integer part
of ``2**32 c``, a first word below ``t`` implies ``U < c``, and one above it ``U >= c``, for all further words. Only a
word equal to ``t``, with probability ``2**-32``, does not decide; then further words are compared with further digits
of ``c``. Therefore a value has exactly the probability between its thresholds: nothing is rounded. Every entry of a
table is the integer part of a number that is enclosed from both sides, and therefore certain.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache
from itertools import accumulate
from math import ceil

import numpy as np
import numpy.typing as npt

from dphmm.arrays import IntArray
from dphmm.mechanisms.exact_sampling import compute_exp, count_integer_digits, make_decimal_context
from dphmm.random import RandomSource

Words = npt.NDArray[np.uint32]

# Binary digits of a word. With 32, a draw is undecided with probability 2**-32 for each threshold.
_WORD_BITS = 32
# Binary digits that are added if a word does not decide.
_EXTRA_BITS = 64
# Number of leading digits of a word that index the lookup table: 4,096 entries stay in the cache.
_CELL_BITS = 12
# Counts that need more thresholds are sampled digit by digit in this base.
_MAX_TABLE_SIZE = 1024
# Binary digits of the powers from which tables are computed: enough that the first 32 of an entry are nearly always
# certain.
_POWER_BITS = 256
# A count exceeds ``_MAX_EXPONENT / rate`` with probability below ``2**-32``, because exp(23) is above 2**33.
_MAX_EXPONENT = Fraction(23)


class Thresholds:
    """Samples of the number of thresholds that a uniform number has reached.

    Parameters
    ----------
    digits
        ``(place, bits)`` → the integer part of ``2**bits`` times the threshold at that index, counted from 0.
        Thresholds are non-decreasing, from 0 to 1.
    table
        ``digits(place, 32)`` for the first indices.
    size
        Number of thresholds. None for infinitely many; those beyond the table are ``2**32 - 1``.
    """

    def __init__(self, digits: Callable[[int, int], int], table: Words, size: int | None) -> None:
        self._digits = digits
        self._table = table
        self._size = size
        starts = np.arange(1 << _CELL_BITS, dtype=np.uint32) << np.uint32(_WORD_BITS - _CELL_BITS)
        ends = starts + np.uint32((1 << _WORD_BITS - _CELL_BITS) - 1)
        self._reached = np.searchsorted(table, starts, side="left")
        self._is_open = self._reached < np.searchsorted(table, ends, side="right")

    def draw(self, count: int, source: RandomSource) -> IntArray:
        """Sample independently, ``(count,)``."""
        words = np.frombuffer(source.bytes(_WORD_BITS // 8 * count), dtype=np.uint32)
        cells = words >> np.uint32(_WORD_BITS - _CELL_BITS)  # most cells contain no threshold
        result = self._reached[cells]
        among = np.flatnonzero(self._is_open[cells])
        open_words = words[among]
        places = np.searchsorted(self._table, open_words, side="right")
        equal = self._table[np.maximum(places, 1) - 1] == open_words if len(open_words) else np.zeros(0, dtype=np.bool_)
        for at in np.flatnonzero(equal).tolist():
            first = int(np.searchsorted(self._table, open_words[at]))
            places[at] = self.resolve_sample(int(open_words[at]), _WORD_BITS, source, first)
        result[among] = places
        return np.asarray(result)

    def resolve_sample(self, number: int, bits: int, source: RandomSource, place: int = 0) -> int:
        """Return the sample for a number with known first binary digits and random further digits.

        Parameters
        ----------
        number, bits
            Its first digits as an integer, and their number.
        source
            The source of the further digits.
        place
            A number of thresholds that it has certainly reached.
        """
        while self._size is None or place < self._size:
            threshold = self._digits(place, bits)
            if number < threshold:
                break
            if number > threshold:
                place += 1
            else:
                number = number << _EXTRA_BITS | int.from_bytes(source.bytes(_EXTRA_BITS // 8), "little")
                bits += _EXTRA_BITS
        return place


class Geometric:
    """Samples ``k >= 0`` with probability exactly ``(1 - q) q**k``, where ``q = exp(-rate)``.

    The digits of such a count are independent in any base. The highest digit has the same type of distribution, and the
    others are truncated at the base.

    Parameters
    ----------
    rate
        The decay per step, positive.
    """

    def __init__(self, rate: Fraction) -> None:
        self._digits: list[Thresholds] = []
        while rate * _MAX_TABLE_SIZE < _MAX_EXPONENT:
            self._digits.append(_build_truncated_thresholds(rate, _MAX_TABLE_SIZE))
            rate *= _MAX_TABLE_SIZE
        self._digits.append(_build_geometric_thresholds(rate))

    def draw(self, count: int, source: RandomSource, modulus: int | None = None) -> IntArray:
        """Sample independently, ``(count,)``, modulo a number below ``2**50`` if it is set."""
        drawn = np.zeros(count, dtype=np.int64)
        for digit in reversed(self._digits):
            drawn = drawn * _MAX_TABLE_SIZE + digit.draw(count, source)
            if modulus is not None:
                drawn %= modulus
        return drawn


class CutOff:
    """Samples ``0 <= k < size`` with probability exactly proportional to ``exp(-rate k)``.

    The remainder of a `Geometric` count after division by the size has this distribution. Up to the size of a table a
    single table is used instead.

    Parameters
    ----------
    rate
        The decay per step, of either sign, or zero.
    size
        At least 1 and below ``2**50``.
    """

    def __init__(self, rate: Fraction, size: int) -> None:
        self._size = size
        self._falls = rate >= 0
        self._table = _build_truncated_thresholds(abs(rate), size) if 1 < size <= _MAX_TABLE_SIZE else None
        self._geometric = Geometric(abs(rate)) if size > _MAX_TABLE_SIZE and rate else None

    def draw(self, count: int, source: RandomSource) -> IntArray:
        """Sample independently, ``(count,)``."""
        if self._size == 1:
            return np.zeros(count, dtype=np.int64)
        if self._table is not None:
            drawn = self._table.draw(count, source)
        elif self._geometric is not None:
            drawn = self._geometric.draw(count, source, self._size)
        else:
            drawn = _sample_uniform(self._size, count, source)
        return drawn if self._falls else self._size - 1 - drawn


def build_choice_thresholds(weights: Callable[[int], list[Decimal]], count: int) -> Thresholds:
    """Return a sampler of indices with probability exactly proportional to their weights.

    Parameters
    ----------
    weights
        Digits → the weights, positive, each with a relative error below ``10**-digits``. Put the largest one last:
        thresholds very close to one need many digits.
    count
        Number of weights.
    """

    @cache
    def sum_weights(digits: int) -> list[Decimal]:
        return list(accumulate(weights(digits + 2)))

    def compute_threshold(place: int, digits: int) -> Decimal:
        with localcontext(make_decimal_context(digits + 10)):
            return sum_weights(digits)[place] / sum_weights(digits)[-1]

    def compute_digits(place: int, bits: int) -> int:
        return compute_leading_bits(lambda wanted: compute_threshold(place, wanted), bits)

    table = np.array([compute_digits(place, _WORD_BITS) for place in range(count - 1)], dtype=np.uint32)
    return Thresholds(compute_digits, table, count - 1)


def compute_leading_bits(value: Callable[[int], Decimal], bits: int) -> int:
    """Return the integer part of ``2**bits`` times a number in [0, 1].

    The number is computed with more digits until the result is certain.

    Parameters
    ----------
    value
        Digits → the number with a relative error below ``10**-digits``.
    bits
        Number of binary digits.
    """
    digits = bits // 3 + 8
    while True:
        with localcontext(make_decimal_context(2 * digits)):
            near = value(digits) * 2**bits
            error = near * Decimal(10) ** -digits
            low = int(near - error)
            high = int(near + error)
        if low == high:
            return low
        digits *= 2


def _build_geometric_thresholds(rate: Fraction) -> Thresholds:
    def compute_digits(place: int, bits: int) -> int:
        exponent = rate * (place + 1)
        if exponent > bits:  # it is closer to one than a unit of the last digit: all digits are ones
            return (1 << bits) - 1
        return compute_leading_bits(lambda wanted: _compute_exp_complement(exponent, wanted), bits)

    powers, error = _compute_powers(rate, ceil(_MAX_EXPONENT / rate) + 1)
    unit = 1 << _POWER_BITS
    return Thresholds(compute_digits, _build_table([unit - power for power in powers[1:]], error, compute_digits), None)


def _build_truncated_thresholds(rate: Fraction, size: int) -> Thresholds:
    if not rate:

        def compute_even_digits(place: int, bits: int) -> int:
            return (place + 1 << bits) // size

        return Thresholds(
            compute_even_digits,
            np.array([compute_even_digits(k, _WORD_BITS) for k in range(size - 1)], dtype=np.uint32),
            size - 1,
        )

    def compute_digits(place: int, bits: int) -> int:
        if rate * (place + 1) > bits:  # as for an infinite count, which is further from one
            return (1 << bits) - 1

        def compute_threshold(wanted: int) -> Decimal:
            part, whole = (_compute_exp_complement(rate * k, wanted + 2) for k in (place + 1, size))
            with localcontext(make_decimal_context(wanted + 10)):
                return part / whole

        return compute_leading_bits(compute_threshold, bits)

    powers, error = _compute_powers(rate, size)
    unit = 1 << _POWER_BITS
    whole = unit - powers[size]
    near = [(unit - power << _POWER_BITS) // whole for power in powers[1:size]]
    return Thresholds(
        compute_digits, _build_table(near, (3 * error << _POWER_BITS) // whole + 1, compute_digits), size - 1
    )


def _compute_exp_complement(exponent: Fraction, digits: int) -> Decimal:
    """Return ``1 - exp(-exponent)`` for an exponent > 0, to a relative ``10**-digits``."""
    with localcontext(make_decimal_context(digits + 5 + count_integer_digits(1 / exponent))):
        return 1 - compute_exp(-exponent)


def _compute_powers(rate: Fraction, count: int) -> tuple[list[int], int]:
    """Return ``exp(-rate k)``, ``0 <= k <= count``, in units of ``2**-256``, with a bound.

    Each is a product of two earlier ones. If these have errors of ``a`` and ``b`` units, the product, truncated to
    units, has an error of at most ``a + b + 2``. Therefore the power of ``k`` has an error of at most ``4 k`` units.
    """
    with localcontext(make_decimal_context(_POWER_BITS // 3 + 10)):
        first = int(compute_exp(-rate) * (1 << _POWER_BITS))
    powers = [1 << _POWER_BITS, first]
    # Doubling: the number of roundings of a power grows only with the logarithm of its exponent.
    while len(powers) <= count:
        top = powers[-1]
        powers += [top * power >> _POWER_BITS for power in powers[1:]]
    return powers[: count + 1], 4 * (count + 1)


def _build_table(near: list[int], error: int, digits: Callable[[int, int], int]) -> Words:
    """Return integer parts of ``2**32 x``. ``x`` is in units of ``2**-256``, with an error."""
    shift = _POWER_BITS - _WORD_BITS
    table = np.empty(len(near), dtype=np.uint32)
    for place, number in enumerate(near):
        low = (number - error) >> shift
        high = (number + error) >> shift
        table[place] = low if low == high else digits(place, _WORD_BITS)
    return table


def _sample_uniform(size: int, count: int, source: RandomSource) -> IntArray:
    """Sample numbers uniform in ``0 .. size - 1``, ``(count,)``, by rejection."""
    shift = np.uint64(64 - (size - 1).bit_length())
    result = np.zeros(0, dtype=np.int64)
    while len(result) < count:
        words = np.frombuffer(source.bytes(8 * (count - len(result))), dtype=np.uint64)
        numbers = (words >> shift).astype(np.int64)
        result = np.concatenate([result, numbers[numbers < size]])
    return result
