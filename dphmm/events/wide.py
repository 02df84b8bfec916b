"""Masses that cannot underflow: arrays of numbers from 0 up, in layers that doubles hold.

A number is the sum of its doubles in all layers, each layer counting a fixed power of two less than the one before.
Where the numbers of an array are within the range of doubles there is one layer, and what is done costs no more than
with doubles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import frexp, ldexp, log

import numpy as np

from dphmm.arrays import FloatArray, IntArray

LEAST = 2.0**-1000
"""Positive doubles from here up are whole: 22 more powers of two keep all their digits."""

WIDTH = 700
"""How many powers of two a layer counts less than the one before, at most; see `width_for`."""

_NEGLIGIBLE, _PLENTY = 2.0**-80, 2.0**200
"""A part of a number below the first share of it is dropped; the second is more than any part is."""

_LN2_HIGH = 0.693359375
_LN2_LOW = -2.121944400546905827679e-4
"""The logarithm of two, the first part of few enough digits that its products with whole numbers are exact."""

_REST = 1e-15
"""A vector that a step changes by no more than this, relatively, is at rest: a million steps would not show."""

Moves = tuple[tuple[int, int, FloatArray | None], ...]
"""``(source, target, where)``: which rows add to which; the last is an array of zeros and ones, or None for ones."""

Product = Callable[[FloatArray], FloatArray]
"""A product of every row with a matrix of probabilities: ``(k, N)`` to ``(k, N)``."""


def width_for(smallest: float) -> int:
    """The width of layers whose numbers, sorted, survive a product with positive numbers of `smallest` or more."""
    return min(WIDTH, 999 + frexp(smallest)[1])


@dataclass(frozen=True, eq=False)
class Wide:
    """Numbers, none negative: the sum over layers ``b`` of ``layers[b] * 2**(exponent - b * width)``.

    Parameters
    ----------
    layers
        ``(B, k, N)``, finite.
    exponent
        Of the first layer.
    low
        Nothing positive in `layers` is less; at least `LEAST`.
    width
        What `width_for` gave.
    """

    layers: FloatArray = field(repr=False)
    exponent: int = 0
    low: float = 1.0
    width: int = WIDTH

    @classmethod
    def of(cls, values: FloatArray, width: int = WIDTH) -> Wide:
        """Doubles ``(k, N)``."""
        return _sorted(values[np.newaxis], 0, width)

    @classmethod
    def exp(cls, logarithms: FloatArray, width: int = WIDTH) -> Wide:
        """The exponentials of numbers ``(k, N)`` up to 0, of which minus infinity is one."""
        finite = logarithms > -np.inf
        powers = np.where(finite, np.floor(logarithms / (_LN2_HIGH + _LN2_LOW)), 0.0)
        rest = np.where(finite, logarithms - powers * _LN2_HIGH - powers * _LN2_LOW, -np.inf)
        return _spread(np.exp(rest)[np.newaxis], powers.astype(np.int64)[np.newaxis], 0, width)

    def __len__(self) -> int:
        """The number of rows ``k``."""
        return int(self.layers.shape[1])

    def compact(self) -> Wide:
        """The same numbers in as few layers as they need; where that is one, its largest is about one."""
        if len(self.layers) == 1:
            top = float(self.layers.max(initial=0.0))
            if top == 0.0:
                return Wide(self.layers, 0, 1.0, self.width)
            low = float(np.min(self.layers, where=self.layers > 0, initial=np.inf))
            shift = -frexp(top)[1]
            if low >= 2.0**-self.width * top:
                return Wide(np.ldexp(self.layers, shift), self.exponent - shift, ldexp(low, shift), self.width)
        found = _sorted(self.layers, self.exponent, self.width)
        empty = 0
        while empty < len(found.layers) - 1 and not found.layers[empty].any():
            empty += 1
        return Wide(found.layers[empty:], found.exponent - empty * self.width, found.low, self.width)

    def times(self, likelihood: Wide) -> Wide:
        """The products with one row of numbers ``(1, N)``."""
        if len(likelihood.layers) == 1:
            found = self if self.low * likelihood.low >= LEAST else self.compact()
            low = found.low * likelihood.low
            if low >= LEAST:
                layers = found.layers * likelihood.layers
                return Wide(layers, found.exponent + likelihood.exponent, low, self.width)
        parts = []
        mantissas, powers = np.frexp(self.layers)
        powers = powers - self.width * np.arange(len(self.layers))[:, np.newaxis, np.newaxis]
        for b, layer in enumerate(likelihood.layers):
            theirs, more = np.frexp(layer)
            parts.append((mantissas * theirs, np.where(theirs > 0, powers + (more - b * self.width), 0)))
        both = [np.concatenate(part) for part in zip(*parts, strict=True)]
        return _spread(both[0], both[1], self.exponent + likelihood.exponent, self.width).compact()

    def rows(self, which: slice) -> Wide:
        """Some of the rows."""
        return Wide(self.layers[:, which], self.exponent, self.low, self.width)

    def through(self, product: Product, smallest: float) -> Wide:
        """Every row through a product with a matrix of numbers of which the least positive is `smallest`."""
        found = self if self.low * smallest >= LEAST else _sorted(self.layers, self.exponent, self.width)
        shape = found.layers.shape
        moved = product(found.layers.reshape(-1, shape[2])).reshape(shape)
        return Wide(moved, found.exponent, found.low * smallest, self.width)

    def joined(self, count: int, moves: Moves, certain: FloatArray | None = None) -> Wide:
        """Rows that are sums of these.

        Parameters
        ----------
        count
            How many.
        moves
            Which rows add to which.
        certain
            ``(count, N)`` zeros and ones to add; for numbers of exponent 0.
        """
        found = np.zeros((len(self.layers), count, self.layers.shape[2]))
        if certain is not None:
            found[0] = certain
        for source, target, where in moves:
            found[:, target] += self.layers[:, source] if where is None else self.layers[:, source] * where
        return Wide(found, self.exponent, self.low, self.width)

    def is_near(self, other: Wide) -> bool:
        """Whether these are numbers of the other array but for rounding."""
        if self.exponent != other.exponent or self.layers.shape != other.layers.shape:
            return False
        return bool((np.abs(self.layers - other.layers) <= _REST * other.layers).all())

    def is_plain_with(self, other: Wide | None) -> bool:
        """Whether the first layers' products, with numbers of exponent 0, are those of all: no double underflows."""
        if other is None:
            return len(self.layers) == 1
        return len(self.layers) == len(other.layers) == 1 and other.exponent == 0 and self.low * other.low >= LEAST

    def log_sum(self) -> float:
        """The logarithm of the sum of all numbers; minus infinity where all are zero."""
        if len(self.layers) == 1:
            return self._log(float(self.layers.sum()), 0)
        return float(np.logaddexp.reduce([self._log(float(one.sum()), b) for b, one in enumerate(self.layers)]))

    def plain_sums(self, ways: tuple[slice, slice], rows: slice, other: Wide | None) -> tuple[float, float] | None:
        """The logarithms of two sums of some rows and of the products of others with another array's two halves.

        None where one layer of doubles does not tell them.
        """
        if len(self.layers) > 1 or (other is not None and (len(other.layers) > 1 or other.exponent)):
            return None
        found, mine = [], self.layers[0]
        for number, way in enumerate(ways):
            total = float(mine[way].sum()) if way.start < way.stop else 0.0
            if other is not None:
                half = len(other) // 2
                total += float(np.vdot(mine[rows], other.layers[0][number * half : (number + 1) * half]))
            if not total > 2.0 ** (100 - self.width):  # what is below, in doubles or in deeper layers, does not show
                return None
            found.append(log(total) + self.exponent * _LN2_LOW + self.exponent * _LN2_HIGH)
        return found[0], found[1]

    def log_dot(self, other: Wide) -> float:
        """The logarithm of the sum of the products with the numbers of another array of this shape."""
        total = float(np.vdot(self.layers[0], other.layers[0]))
        if total > 2.0 ** (100 - self.width):  # what is below, in doubles or in deeper layers, does not show
            return self._log(total, 0) + other.exponent * _LN2_LOW + other.exponent * _LN2_HIGH
        logs = self.log() + other.log()
        top = float(logs.max(initial=-np.inf))
        return top if top == -np.inf else top + log(float(np.exp(logs - top).sum()))

    def log(self) -> FloatArray:
        """The logarithms ``(k, N)``, minus infinity for zero."""
        with np.errstate(divide="ignore"):
            logs = np.log(self.layers)
        for b in range(len(logs)):
            power = self.exponent - b * self.width
            logs[b] += power * _LN2_LOW + power * _LN2_HIGH
        return np.asarray(logs[0] if len(logs) == 1 else np.logaddexp.reduce(logs, axis=0))

    def _log(self, value: float, layer: int) -> float:
        power = self.exponent - layer * self.width
        return log(value) + power * _LN2_LOW + power * _LN2_HIGH if value > 0 else -np.inf


def _sorted(layers: FloatArray, exponent: int, width: int) -> Wide:
    """The same numbers, each in the layer that it belongs to: nothing is below ``2**-width`` there.

    What a number has in a layer is dropped where it is below its rounding, for what it has in those before. A number
    of states goes the same ways from then on, so that the dropped part never shows.
    """
    least, factor, found, at = 2.0**-width, 2.0**width, [], 0
    carried: FloatArray | None = None
    seen: FloatArray | None = None
    while at < len(layers) or carried is not None:
        layer = np.zeros_like(layers[0]) if at >= len(layers) else layers[at]
        layer = layer if carried is None else layer + carried
        if seen is not None:
            layer = np.where(layer < seen * _NEGLIGIBLE, 0.0, layer)
        small = (layer < least) & (layer > 0)
        carried = None
        if small.any():
            carried = np.where(small, layer, 0.0) * factor
            layer = np.where(small, 0.0, layer)
        found.append(layer)
        at += 1
        if at < len(layers) or carried is not None:
            seen = np.minimum(layer if seen is None else np.maximum(seen, layer), _PLENTY / factor) * factor
    while len(found) > 1 and not found[-1].any():
        found.pop()
    stacked = np.stack(found)
    return Wide(stacked, exponent, float(np.min(stacked, where=stacked > 0, initial=1.0)), width)


def _spread(mantissas: FloatArray, powers: IntArray, exponent: int, width: int) -> Wide:
    """The sum over the first axis of numbers ``mantissas * 2**powers``, the powers not above 0, in layers."""
    fresh, more = np.frexp(mantissas)
    depth = -(powers + more)
    there = fresh > 0
    exponent += 2  # a mantissa of one has the power 1
    depth = np.where(there, depth + 2, 0)
    layer = depth // width
    values = np.ldexp(fresh, layer * width - depth)
    found = [np.where(there & (layer == b), values, 0.0).sum(axis=0) for b in range(int(layer.max(initial=0)) + 1)]
    return _sorted(np.stack(found), exponent, width)
