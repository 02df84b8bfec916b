"""Many exact draws at once: uniform words compared with thresholds that are worked out as far as it takes.

A value is drawn by inversion: it is the number of thresholds that a uniform real number ``U`` of [0, 1) has reached.
``U`` is an endless row of random words, of which one settles nearly every draw: with ``t`` the whole part of
``2**32 c`` a first word below ``t`` says that ``U < c``, and one above it that ``U >= c``, whatever words follow. Only
a word that equals ``t``, which has a chance of ``2**-32``, leaves it open; then further words are compared with further
digits of ``c``. So a value has exactly the probability that lies between its thresholds: nothing is rounded, and what
is kept in a table is certain, each entry the whole part of a number that is enclosed from both sides.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import accumulate
from math import ceil

import numpy as np
import numpy.typing as npt

from dphmm.arrays import IntArray, RandomSource
from dphmm.mechanisms.exact import decimal_context, decimal_power, whole_digits

Words = npt.NDArray[np.uint32]

_WORD, _MORE = 32, 64
"""Binary digits of a word, and how many are added where a word leaves a draw open."""
_CELLS = 12
"""Words are looked up by this number of their digits first."""
_TABLE = 1024
"""The most entries of a table: a count that needs more is drawn in digits of this base."""
_BITS = 256
"""Binary digits of the powers that tables are made of."""
_SURE = Fraction(23)
"""A count passes ``_SURE / rate`` with a chance below ``2**-32``."""


class Thresholds:
    """Draws of how many of some thresholds a uniform number has reached.

    Parameters
    ----------
    digits
        ``(place, bits)`` → the whole part of ``2**bits`` times the threshold of that place, counted from 0. Thresholds
        do not fall, and lie from 0 to 1.
    table
        ``digits(place, 32)`` for the first places.
    size
        How many thresholds there are; None for endlessly many, of which those beyond the table are ``2**32 - 1``.
    """

    def __init__(self, digits: Callable[[int, int], int], table: Words, size: int | None) -> None:
        self._digits, self._table, self._size = digits, table, size
        starts = np.arange(1 << _CELLS, dtype=np.uint32) << np.uint32(_WORD - _CELLS)
        ends = starts + np.uint32((1 << _WORD - _CELLS) - 1)
        self._reached = np.searchsorted(table, starts, side="left")
        self._is_open = self._reached < np.searchsorted(table, ends, side="right")

    def draw(self, count: int, source: RandomSource) -> IntArray:
        """Independent draws, ``(count,)``."""
        words = np.frombuffer(source.bytes(_WORD // 8 * count), dtype=np.uint32)
        cells = words >> np.uint32(_WORD - _CELLS)  # of most of them no threshold is in the cell
        found = self._reached[cells]
        among = np.flatnonzero(self._is_open[cells])
        some = words[among]
        places = np.searchsorted(self._table, some, side="right")
        equal = self._table[np.maximum(places, 1) - 1] == some if len(some) else np.zeros(0, dtype=np.bool_)
        for at in np.flatnonzero(equal).tolist():
            first = int(np.searchsorted(self._table, some[at]))
            places[at] = self.settled(int(some[at]), _WORD, source, first)
        found[among] = places
        return np.asarray(found)

    def settled(self, number: int, bits: int, source: RandomSource, place: int = 0) -> int:
        """The draw of the number that begins with some binary digits and goes on at random.

        Parameters
        ----------
        number, bits
            Its first digits, as a whole number, and how many they are.
        source
            Where the others come from.
        place
            A number of thresholds that it has reached for certain.
        """
        while self._size is None or place < self._size:
            threshold = self._digits(place, bits)
            if number < threshold:
                break
            if number > threshold:
                place += 1
            else:
                number = number << _MORE | int.from_bytes(source.bytes(_MORE // 8), "little")
                bits += _MORE
        return place


class Geometric:
    """Counts ``k >= 0`` with probability exactly ``(1 - q) q**k``, where ``q = exp(-rate)``.

    The digits of such a count are independent, in any base: those below the highest are counts of the same kind, cut
    off at the base, and the highest is one that is not cut off.

    Parameters
    ----------
    rate
        The decay per step, positive.
    """

    def __init__(self, rate: Fraction) -> None:
        self._digits: list[Thresholds] = []
        while rate * _TABLE < _SURE:
            self._digits.append(_cut_off(rate, _TABLE))
            rate *= _TABLE
        self._digits.append(_endless(rate))

    def draw(self, count: int, source: RandomSource, modulus: int | None = None) -> IntArray:
        """Independent counts, ``(count,)``, or what is left of them after division by a modulus below ``2**50``."""
        drawn = np.zeros(count, dtype=np.int64)
        for digit in reversed(self._digits):
            drawn = drawn * _TABLE + digit.draw(count, source)
            if modulus is not None:
                drawn %= modulus
        return drawn


class CutOff:
    """Counts ``0 <= k < size`` with probability exactly proportional to ``exp(-rate k)``.

    What is left of a `Geometric` count after division by the size is such a count; up to the size of a table it is
    drawn at once.

    Parameters
    ----------
    rate
        The decay per step, of either sign, or zero.
    size
        At least 1 and below ``2**50``.
    """

    def __init__(self, rate: Fraction, size: int) -> None:
        self._size, self._falls = size, rate >= 0
        self._table = _cut_off(abs(rate), size) if 1 < size <= _TABLE else None
        self._geometric = Geometric(abs(rate)) if size > _TABLE and rate else None

    def draw(self, count: int, source: RandomSource) -> IntArray:
        """Independent counts, ``(count,)``."""
        if self._size == 1:
            return np.zeros(count, dtype=np.int64)
        if self._table is not None:
            drawn = self._table.draw(count, source)
        elif self._geometric is not None:
            drawn = self._geometric.draw(count, source, self._size)
        else:
            drawn = _uniform(self._size, count, source)
        return drawn if self._falls else self._size - 1 - drawn


def choice(weights: Callable[[int], list[Decimal]], count: int) -> Thresholds:
    """Draws of a place with probability exactly proportional to its weight.

    Parameters
    ----------
    weights
        Digits → the weights, positive, each with a relative error below ``10**-digits``. Put the largest last: no
        threshold is then so near to one that it takes many digits to tell.
    count
        How many there are.
    """
    known: dict[int, list[Decimal]] = {}

    def threshold(place: int, digits: int) -> Decimal:
        with localcontext(decimal_context(digits + 10)):
            if digits not in known:
                known[digits] = list(accumulate(weights(digits + 2)))
            return known[digits][place] / known[digits][-1]

    def digits(place: int, bits: int) -> int:
        return whole_part(lambda wanted: threshold(place, wanted), bits)

    table = np.array([digits(place, _WORD) for place in range(count - 1)], dtype=np.uint32)
    return Thresholds(digits, table, count - 1)


def whole_part(value: Callable[[int], Decimal], bits: int) -> int:
    """The whole part of ``2**bits`` times a number of [0, 1], of which more digits are asked for until it is certain.

    Parameters
    ----------
    value
        Digits → the number with a relative error below ``10**-digits``.
    bits
        How many binary digits are wanted.
    """
    digits = bits // 3 + 8
    while True:
        with localcontext(decimal_context(2 * digits)):
            near = value(digits) * 2**bits
            error = near * Decimal(10) ** -digits
            low, high = int(near - error), int(near + error)
        if low == high:
            return low
        digits *= 2


def _endless(rate: Fraction) -> Thresholds:
    def digits(place: int, bits: int) -> int:
        exponent = rate * (place + 1)
        if exponent > bits:  # it lacks less than one unit of the last digit, and so all digits are ones
            return (1 << bits) - 1
        return whole_part(lambda wanted: _one_less_power(exponent, wanted), bits)

    powers, error = _powers(rate, ceil(_SURE / rate) + 1)
    one = 1 << _BITS
    return Thresholds(digits, _table([one - power for power in powers[1:]], error, digits), None)


def _cut_off(rate: Fraction, size: int) -> Thresholds:
    if not rate:

        def even(place: int, bits: int) -> int:
            return (place + 1 << bits) // size

        return Thresholds(even, np.array([even(k, _WORD) for k in range(size - 1)], dtype=np.uint32), size - 1)

    def digits(place: int, bits: int) -> int:
        if rate * (place + 1) > bits:  # as for a count that is not cut off, which lacks more
            return (1 << bits) - 1

        def value(wanted: int) -> Decimal:
            part, whole = (_one_less_power(rate * k, wanted + 2) for k in (place + 1, size))
            with localcontext(decimal_context(wanted + 10)):
                return part / whole

        return whole_part(value, bits)

    powers, error = _powers(rate, size)
    one = 1 << _BITS
    whole = one - powers[size]
    near = [(one - power << _BITS) // whole for power in powers[1:size]]
    return Thresholds(digits, _table(near, (3 * error << _BITS) // whole + 1, digits), size - 1)


def _one_less_power(exponent: Fraction, digits: int) -> Decimal:
    """``1 - exp(-exponent)`` for a positive exponent, with a relative error below ``10**-digits``."""
    with localcontext(decimal_context(digits + 5 + whole_digits(1 / exponent))):
        return 1 - decimal_power(-exponent)


def _powers(rate: Fraction, count: int) -> tuple[list[int], int]:
    """``exp(-rate k)`` for ``0 <= k <= count`` in units of ``2**-256``, and what bounds their errors.

    Each is a product of two earlier ones. Where these are off by ``a`` and ``b`` units, the product, cut to whole
    units, is off by at most ``a + b + 2``; so the one of ``k`` is off by at most ``4 k`` units.
    """
    with localcontext(decimal_context(_BITS // 3 + 10)):
        first = int(decimal_power(-rate) * (1 << _BITS))
    powers = [1 << _BITS, first]
    while len(powers) <= count:
        top = powers[-1]
        powers += [top * power >> _BITS for power in powers[1:]]
    return powers[: count + 1], 4 * (count + 1)


def _table(near: list[int], error: int, digits: Callable[[int, int], int]) -> Words:
    """The whole parts of ``2**32`` times numbers in units of ``2**-256`` that are off by at most ``error`` units."""
    shift, table = _BITS - _WORD, np.empty(len(near), dtype=np.uint32)
    for place, number in enumerate(near):
        low, high = (number - error) >> shift, (number + error) >> shift
        table[place] = low if low == high else digits(place, _WORD)
    return table


def _uniform(size: int, count: int, source: RandomSource) -> IntArray:
    """Independent numbers uniform in ``0 .. size - 1``, ``(count,)``: of numbers of as many digits those below it."""
    shift, found = np.uint64(64 - (size - 1).bit_length()), np.zeros(0, dtype=np.int64)
    while len(found) < count:
        words = np.frombuffer(source.bytes(8 * (count - len(found))), dtype=np.uint64)
        numbers = (words >> shift).astype(np.int64)
        found = np.concatenate([found, numbers[numbers < size]])
    return found
