"""Masses that cannot underflow: a mantissa and a power of two for each state."""

from __future__ import annotations

from math import log

import numpy as np

from dphmm.arrays import BoolArray, FloatArray, locked

_BLOCK = 1 << 14
"""States that are worked on at a time, so that what lies between stays in the cache."""

_LN2_HIGH = float.fromhex("0x1.62e42feep-1")
_LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
"""The logarithm of two in two parts: whole multiples of the first are exact up to ``2**21``."""

_LEAST = -1e300
"""Logarithms below this count as this, so that nothing overflows; minus infinity stays what it is."""

_LARGE = 1e12
"""Logarithms beyond this have no digits left to say where between two powers of two they lie."""

_DEEPEST = -(2.0**50)
"""A positive mass counts as no further below the others than this, where exponents are whole numbers still."""

_FAR = -1100.0
"""A mass that is this many powers of two below another one adds nothing to it."""


class Masses:
    """Weights of states, ``mantissa * 2**exponent``, of any ratio to each other.

    A weight is 0 exactly where all that it was made of is: sums are taken relative to their largest term.

    Parameters
    ----------
    mantissa
        ``(N,)``: from a half to below 1, or 0. The arrays are taken over, read-only from now on.
    exponent
        ``(N,)``: whole numbers; minus infinity where the mantissa is 0.
    """

    __slots__ = ("exponent", "mantissa")

    def __init__(self, mantissa: FloatArray, exponent: FloatArray) -> None:
        self.mantissa, self.exponent = locked(mantissa), locked(exponent)

    @classmethod
    def of(cls, values: FloatArray, exponents: FloatArray | float = 0.0) -> Masses:
        """``values * 2**exponents``, both ``(N,)``; values are not negative."""
        both = np.empty((2, len(values)))
        both[0], both[1] = values, exponents
        return cls.owning(*both)

    @classmethod
    def owning(cls, values: FloatArray, exponents: FloatArray) -> Masses:
        """``values * 2**exponents`` as `of`, of arrays that are taken over."""
        for part in _parts(len(values)):
            value, exponent = values[part], exponents[part]
            _, shift = np.frexp(value, out=(value, None))  # type: ignore[arg-type]
            exponent += shift
            exponent[value == 0] = -np.inf
        return cls(values, exponents)

    @property
    def support(self) -> BoolArray:
        """Which weights are positive, ``(N,)``."""
        return self.mantissa > 0

    @property
    def logs(self) -> FloatArray:
        """Natural logarithms of the weights, ``(N,)``."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.mantissa) + self.exponent * log(2.0))

    def plain(self, exponents: FloatArray | float = 0.0) -> FloatArray:
        """The weights divided by ``2**exponents``, ``(N,)``; what a float cannot hold is 0."""
        values = np.empty(len(self.mantissa))
        for part in _parts(len(values)):
            below = exponents if isinstance(exponents, float) else exponents[part]
            _power(self.mantissa[part], self.exponent[part] - below, values[part])
        return values

    def of_states(self, states: BoolArray) -> Masses:
        """The weights of some states, as they are."""
        return Masses(self.mantissa[states], self.exponent[states])

    def lies_within(self, powers: float, exponents: FloatArray | float = 0.0) -> bool:
        """Whether no positive weight is below ``2**-powers`` once divided by ``2**exponents``."""
        return not bool(((self.exponent < exponents - powers) & (self.mantissa > 0)).any())

    def times_exp(self, logs: FloatArray) -> tuple[Masses, float]:
        """The weights times the exponentials of ``logs``, ``(N,)``, scaled to sum to one; the logarithm of that sum.

        Where nothing is left the sum is minus infinity.
        """
        values, exponents = np.empty((2, len(logs)))  # one piece of memory is got and given back for less than two
        for part in _parts(len(logs)):
            some, value, exponent = logs[part], values[part], exponents[part]
            least, gone = some.min(), None
            if least < _LEAST:
                gone = some == -np.inf
                some = np.maximum(some, _LEAST)
            np.rint(some / log(2.0), out=exponent)
            rest = some - exponent * _LN2_HIGH
            rest -= exponent * _LN2_LOW
            if least < -_LARGE or some.max() > _LARGE:
                np.minimum(np.maximum(rest, -0.4, out=rest), 0.4, out=rest)  # np.clip takes three times as long
            np.multiply(np.exp(rest, out=rest), self.mantissa[part], out=value)
            exponent += self.exponent[part]
            if gone is not None:
                value[gone], exponent[gone] = 0.0, -np.inf
        return _scaled(values, exponents)

    def times(self, other: Masses) -> tuple[Masses, float]:
        """The weights times others, scaled to sum to one; the logarithm of that sum."""
        values, exponents = np.stack([self.mantissa, self.exponent])
        values *= other.mantissa
        exponents += other.exponent
        return _scaled(values, exponents)

    def scaled(self) -> Masses:
        """The weights, of which at least one is positive, divided by their sum."""
        return _scaled(*np.stack([self.mantissa, self.exponent]))[0]


def masses_of_logs(logs: FloatArray) -> Masses:
    """The masses, ``(N,)``, of natural logarithms, scaled to sum to one."""
    one = Masses(np.full(len(logs), 0.5), np.ones(len(logs)))
    return one.times_exp(logs)[0]


def _scaled(values: FloatArray, exponents: FloatArray) -> tuple[Masses, float]:
    """``values * 2**exponents`` divided by their sum, and its logarithm; values are from 1/4 to 4, or 0.

    The arrays, ``(N,)``, are taken over.
    """
    top = float(exponents.max())
    if top == -np.inf:
        return Masses(values, exponents), top
    total = 0.0
    for part in _parts(len(values)):
        exponent = exponents[part]
        exponent -= top
        if exponent.min() < _DEEPEST:
            exponent[(exponent < _DEEPEST) & (values[part] > 0)] = _DEEPEST
        total += float(_power(values[part], exponents[part]).sum())
    for part in _parts(len(values)):
        value, exponent = values[part], exponents[part]
        value /= total
        _, shift = np.frexp(value, out=(value, None))  # type: ignore[arg-type]
        exponent += shift
    return Masses(values, exponents), log(total) + top * log(2.0)


def _power(values: FloatArray, exponents: FloatArray, out: FloatArray | None = None) -> FloatArray:
    return np.ldexp(values, np.maximum(exponents, _FAR).astype(np.int32), out=out)


def _parts(size: int) -> list[slice]:
    return [slice(start, start + _BLOCK) for start in range(0, size, _BLOCK)]
