"""Masses that cannot underflow: a mantissa and a power of two for each state."""

from __future__ import annotations

from math import inf, log

import numpy as np

from dphmm.arrays import BoolArray, FloatArray, locked
from dphmm.compilation import often
from dphmm.markov import mass_loops

_BLOCK = 1 << 14
"""States that are worked on at a time, so that what lies between stays in the cache."""

_LARGE = 1e12
"""Logarithms beyond this have no digits left to say where between two powers of two they lie."""


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
        _normal_masses(values, exponents)
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
        if isinstance(exponents, float):
            _plain_masses(self.mantissa, self.exponent, exponents, -inf, values)
            return values
        for part in _parts(len(values)):
            _power(self.mantissa[part], self.exponent[part] - exponents[part], values[part])
        return values

    def plain_within(self, powers: float) -> FloatArray | None:
        """The weights, ``(N,)``, unless a positive one is below ``2**-powers``."""
        values = np.empty(len(self.mantissa))
        return values if _plain_masses(self.mantissa, self.exponent, 0.0, -powers, values) else None

    def by_limbs(self) -> tuple[mass_loops.Limbs, FloatArray]:
        """The weights as ``near * 2**(LIMB * limb + MIDDLE)``, of `dphmm.markov.mass_loops`: limbs, what is near."""
        limb, near = np.empty(len(self.mantissa), dtype=np.int32), np.empty(len(self.mantissa))
        _limbs_of(self.mantissa, self.exponent, limb, near)
        return limb, near

    def of_states(self, states: BoolArray) -> Masses:
        """The weights of some states, as they are."""
        return Masses(self.mantissa[states], self.exponent[states])

    def lies_within(self, powers: float) -> bool:
        """Whether no positive weight is below ``2**-powers``."""
        return not bool(((self.exponent < -powers) & (self.mantissa > 0)).any())

    def times_exp(self, logs: FloatArray) -> tuple[Masses, float]:
        """The weights times the exponentials of ``logs``, ``(N,)``, scaled to sum to one; the logarithm of that sum.

        Where nothing is left the sum is minus infinity.
        """
        values, exponents = np.empty((2, len(logs)))  # one piece of memory is got and given back for less than two
        for part in _parts(len(logs)):
            _exponentials(logs[part], self.mantissa[part], self.exponent[part], values[part], exponents[part])
        return _scaled(values, exponents)

    def times(self, other: Masses) -> tuple[Masses, float]:
        """The weights times others, scaled to sum to one; the logarithm of that sum."""
        values, exponents = np.stack([self.mantissa, self.exponent])
        values *= other.mantissa
        exponents += other.exponent
        return _scaled(values, exponents)

    def scaled(self) -> Masses:
        """The weights, of which at least one is positive, divided by their sum."""
        values, exponents = np.stack([self.mantissa, self.exponent])
        return _scaled(values, exponents)[0]


def masses_of_logs(logs: FloatArray) -> Masses:
    """The masses, ``(N,)``, of natural logarithms, scaled to sum to one."""
    one = Masses(np.full(len(logs), 0.5), np.ones(len(logs)))
    return one.times_exp(logs)[0]


def _scaled(values: FloatArray, exponents: FloatArray) -> tuple[Masses, float]:
    """``values * 2**exponents`` divided by their sum, and its logarithm; values are from 1/4 to 4, or 0.

    The arrays, ``(N,)``, are taken over. Values count as 0 where exponents are minus infinity.
    """
    top, total = _scaled_masses(values, exponents)
    return Masses(values, exponents), (log(total) if total > 0.0 else -inf) + top * log(2.0)


@often(mass_loops.normal_masses)
def _normal_masses(values: FloatArray, exponents: FloatArray) -> None:
    for part in _parts(len(values)):
        value, exponent = values[part], exponents[part]
        _, shift = np.frexp(value, out=(value, None))  # type: ignore[arg-type]
        exponent += shift
        exponent[value == 0] = -inf


@often(mass_loops.plain_masses)
def _plain_masses(mantissa: FloatArray, exponent: FloatArray, below: float, least: float, out: FloatArray) -> bool:
    if least > -inf and ((exponent < least + below) & (mantissa > 0)).any():
        return False
    for part in _parts(len(out)):
        _power(mantissa[part], exponent[part] - below, out[part])
    return True


@often(mass_loops.limbs_of)
def _limbs_of(mantissa: FloatArray, exponent: FloatArray, limb: mass_loops.Limbs, near: FloatArray) -> None:
    floor = np.floor(exponent / mass_loops.LIMB)
    for part in _parts(len(near)):
        below = np.maximum(mass_loops.LIMB * floor[part] + mass_loops.MIDDLE, mass_loops.LEAST)
        _power(mantissa[part], exponent[part] - below, near[part])
    floor[(floor >= -mass_loops.FAR_AWAY) | ((floor < mass_loops.FAR_AWAY) & (floor > -inf))] = mass_loops.FAR_AWAY
    limb[:] = np.maximum(floor, mass_loops.NOWHERE)


@often(mass_loops.exponentials)
def _exponentials(
    logs: FloatArray, mantissa: FloatArray, exponent: FloatArray, values: FloatArray, exponents: FloatArray
) -> None:
    least, gone = logs.min(), None
    if least < mass_loops.LEAST:
        gone = logs == -inf
        logs = np.maximum(logs, mass_loops.LEAST)
    np.rint(logs * mass_loops.PER_LN2, out=exponents)
    x = logs - exponents * mass_loops.LN2_HIGH
    x -= exponents * mass_loops.LN2_LOW
    if least < -_LARGE or logs.max() > _LARGE:
        np.minimum(np.maximum(x, -0.4, out=x), 0.4, out=x)  # np.clip takes three times as long
    n, m, k, j, i, h, g, f, e, d, c, b = mass_loops.TERMS
    xx = x * x
    near, middle, far = (
        (one + two * x) + (three + four * x) * xx
        for one, two, three, four in ((b, c, d, e), (f, g, h, i), (j, k, m, n))
    )
    fourth = xx * xx
    far *= fourth
    far += middle
    far *= fourth
    far += near
    far *= xx
    far += x
    far += 1.0
    np.multiply(far, mantissa, out=values)
    exponents += exponent
    if gone is not None:
        exponents[gone] = -inf


@often(mass_loops.scaled_masses)
def _scaled_masses(values: FloatArray, exponents: FloatArray) -> tuple[float, float]:
    top, parts = float(exponents.max()), _parts(len(values))
    if top == -inf:
        values[:] = 0.0
        return top, 0.0
    lanes, floats = np.zeros(mass_loops.LANES), np.empty(_BLOCK)
    for part in parts:
        value, exponent = values[part], exponents[part]
        exponent -= top
        least = exponent.min()
        if least == -inf:
            value[exponent == -inf] = 0.0
        if least < mass_loops.DEEPEST:
            exponent[(exponent < mass_loops.DEEPEST) & (value > 0)] = mass_loops.DEEPEST
        np.ldexp(value, np.maximum(exponent, -1000.0).astype(np.int32), out=floats[: len(value)])
        floats[len(value) :] = 0.0
        floats[: len(lanes)] += lanes
        lanes = floats.reshape(-1, len(lanes)).sum(axis=0)
    total = float(np.add.accumulate(lanes)[-1])
    for part in parts:
        value, exponent = values[part], exponents[part]
        value /= total
        _, shift = np.frexp(value, out=(value, None))  # type: ignore[arg-type]
        exponent += shift
    return top, total


def _power(values: FloatArray, exponents: FloatArray, out: FloatArray) -> None:
    np.ldexp(values, np.maximum(exponents, mass_loops.FAR).astype(np.int32), out=out)


def _parts(size: int) -> list[slice]:
    return [slice(start, start + _BLOCK) for start in range(0, size, _BLOCK)]
