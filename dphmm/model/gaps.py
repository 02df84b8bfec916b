"""Gaps: many steps of a model at once, forward or back.

Three ways, chosen by the model and the length of the gap alone, so that no gap depends on what was asked before:

- *Powers* of one matrix, squared once and kept. Once all rows of a power are equal, higher ones are too.
- *The distribution at rest.* A gap is walked in equal periods (days or weeks where classes of time vary). Let D be the
  matrix of a period. Where ``|v D - v| <= e v`` in every state, further m periods change none by more than about
  ``m e`` of it, since all entries of D are positive or zero: this is proved of the masses at hand, for chains with
  several closed classes too, and needs no bound on how fast the chain mixes. The same holds where masses fade by
  constant factors, as those of states that are left for good do.
- Else *a plain walk*, in floats while these lose nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log2

import numpy as np

from dphmm.arrays import BoolArray, FloatArray, locked
from dphmm.model.transition_operator import LogProduct, Operator, Runs, TransitionOperator, as_floats_within
from dphmm.threads import one_thread

POWERS_UP_TO = 2048
"""Powers, which are dense, are kept for up to this many states."""
_BASE = 4
"""One power is kept for each digit of a number of steps to this base."""
_POWER_COST = 1e-10
"""Seconds for one multiplication and addition of a product of dense matrices."""
_STEP_COST = 5e-6, 1.5e-9
"""Seconds for a step of a walk, and for each entry of its matrix."""
_WORTH = 0.05
"""Powers are made where a walk would take more than this part of the time for them."""
_PERIOD = 60, 720
"""Steps of one matrix between two looks at whether anything changes any more, in shorter and longer gaps: multiples of
small numbers, so that short cycles come around."""
_TINY = 2.0**-900
"""Plain sums from here up have lost nothing that counts."""
_STEADY = 2e-14
"""What a period at rest may change a mass by, relatively."""
_ROUNDING = 8 * float(np.finfo(np.float64).eps)


class Gap(Operator):
    """Many steps.

    Parameters
    ----------
    periods
        The steps as they follow each other.
    powers
        Where all steps are of one matrix: its powers.
    """

    def __init__(self, periods: Sequence[tuple[Runs, int]], powers: Powers | None = None) -> None:
        self.periods, self._powers = periods, powers

    def forward(self, logs: FloatArray) -> FloatArray:
        """Take a distribution through all steps."""
        return self._through(logs, False)

    def backward(self, logs: FloatArray) -> FloatArray:
        """Take likelihoods back through all steps."""
        return self._through(logs, True)

    def _through(self, logs: FloatArray, back: bool) -> FloatArray:
        if self._powers is not None:
            found = self._powers.through(logs, sum(count * n for runs, n in self.periods for _, count in runs), back)
            if found is not None:
                return found
        for runs, times in reversed(self.periods) if back else self.periods:
            sides = [(one.back if back else one.ahead, count) for one, count in (reversed(runs) if back else runs)]
            logs = _repeated(logs, sides, times)
        return logs


def one_matrix(operator: TransitionOperator, steps: int, powers: Powers | None = None) -> Gap:
    """Steps of one matrix; by its powers where these are given and pay."""
    period = _PERIOD[steps > 512 * _PERIOD[0]]
    whole, left = divmod(steps, period)
    periods = [([(operator, count)], times) for count, times in ((period, whole), (left, 1)) if count * times]
    return Gap(periods, powers if powers is not None and powers.pay(steps) else None)


class Powers:
    """Powers of a transition matrix, squared from one to the next and kept.

    Parameters
    ----------
    operator
        The operator of the matrix, ``(N, N)``, whose rows sum to one.
    """

    def __init__(self, operator: TransitionOperator) -> None:
        self._operator, self._size = operator, int(operator.matrix.shape[0])
        self._made: list[FloatArray] = []

    def pay(self, steps: int) -> bool:
        """Whether a gap of that many steps goes by powers."""
        if self._size > POWERS_UP_TO:
            return False
        walk = steps * (_STEP_COST[0] + _STEP_COST[1] * self._operator.matrix.nnz)
        return walk > _WORTH * log2(steps) * self._size**3 * _POWER_COST + 20 * _STEP_COST[0]

    def through(self, logs: FloatArray, steps: int, back: bool) -> FloatArray | None:
        """Log masses ``(N,)`` after the steps, or log likelihoods before them; None where floats lose possible states.

        Every mass that comes out at ``2**-900`` of the largest that went in, or above, is right: what floats lose on
        the way is less than rounding. Where a smaller one is possible by structure, this way does not do.
        """
        top = float(logs.max(initial=-np.inf))
        if top == -np.inf:
            return logs
        values, left, k = np.exp(logs - top), steps, 0
        with one_thread():
            while left:
                left, times = divmod(left, _BASE)
                for _ in range(times):
                    values = self._power(k) @ values if back else values @ self._power(k)
                k += 1
        low = values < _TINY
        if low.any():
            if (low & self._support(logs > -np.inf, steps, back)).any():
                return None
            values = np.where(low, 0.0, values)
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(values) + top)

    def _power(self, k: int) -> FloatArray:
        """The matrix of ``_BASE**k`` steps."""
        while len(self._made) <= k:
            power = self._made[-1] if self._made else self._operator.matrix.toarray()
            if self._made and not _has_equal_rows(power):
                with one_thread():
                    for _ in range(int(log2(_BASE))):
                        power = power @ power
                        power /= power.sum(axis=1, keepdims=True)  # or rounding would grow with every square
            self._made.append(locked(power))
        return self._made[k]

    def _support(self, possible: BoolArray, steps: int, back: bool) -> BoolArray:
        """The possible states after the steps; supports that come around again are not walked again."""
        side, seen = self._operator.back if back else self._operator.ahead, dict[bytes, int]()
        walked = [possible]
        while len(walked) <= steps:
            key = walked[-1].tobytes()
            if key in seen:
                first = seen[key]
                return walked[first + (steps - first) % (len(walked) - 1 - first)]
            seen[key] = len(walked) - 1
            walked.append(side.support(walked[-1]))
        return walked[steps]


def _has_equal_rows(power: FloatArray) -> bool:
    """Whether the distribution after these steps does not depend on the first state."""
    first = power[0]
    return bool((np.abs(power - first) <= _ROUNDING * first).all())


Sides = Sequence[tuple[LogProduct, int]]
"""Products and how many steps of each, in the order in which they are taken."""


def _repeated(logs: FloatArray, sides: Sides, times: int) -> FloatArray:
    """Log masses after a period that comes so often: once it is steady, what follows is known."""
    before: FloatArray | None = None
    for done in range(1, times + 1):
        later = walked(logs, sides)
        if done < times:
            growth = _growth(logs, later)
            if growth is not None and _is_steady(growth, before, later, sides):
                goes_on = np.where(np.abs(growth) <= _tolerance(later), 0.0, growth)
                return np.asarray(later + (times - done) * goes_on)
            before = growth
        logs = later
    return logs


def _tolerance(logs: FloatArray) -> FloatArray:
    """What rounding may change log masses by in a period."""
    return np.asarray(_STEADY + _ROUNDING * np.abs(np.where(logs > -np.inf, logs, 0.0)))


def _growth(logs: FloatArray, later: FloatArray) -> FloatArray | None:
    """How log masses change in a period, 0 for impossible states; None where the support does."""
    possible = logs > -np.inf
    if not np.array_equal(possible, later > -np.inf):
        return None
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(possible, later - logs, 0.0))


def _is_steady(growth: FloatArray, before: FloatArray | None, logs: FloatArray, sides: Sides) -> bool:
    """Whether all further periods change log masses as this one did.

    They do where all masses change by one factor. Where factors differ, they have to be those of the period before,
    and no state may be fed by one that fades more slowly, which would take over in the end.
    """
    tolerance, possible = _tolerance(logs), logs > -np.inf
    if not possible.any():
        return True
    some = growth[possible]
    if some.max() - some.min() <= float(tolerance[possible].min()):
        return True
    if before is None or (np.abs(growth - before) > tolerance).any():
        return False
    for side in {id(side): side for side, _ in sides}.values():
        to = np.repeat(np.arange(len(growth)), np.diff(side.matrix.indptr))
        source = side.matrix.indices
        feeds = possible[source] & possible[to]
        if (growth[source] > growth[to] + tolerance[source] + tolerance[to])[feeds].any():
            return False
    return True


def walked(logs: FloatArray, sides: Sides) -> FloatArray:
    """Log masses after some steps one after another: in floats while these lose nothing, else one by one in logs."""
    left = [(side, count) for side, count in sides if count]
    width = sum(count for _, count in left)
    while left:
        values = as_floats_within(logs) if all(side.is_likely for side, _ in left) else None
        if values is not None and _is_closed(logs > -np.inf, left):
            taken, rest = _split(left, width)
            later = values
            for side, count in taken:
                for _ in range(count):
                    later = side.plain(later)
            some = later[values > 0]
            if some.min() >= _TINY * some.max() > 0:
                with np.errstate(divide="ignore"):
                    logs, left = np.log(later) + float(logs.max()), rest
                width *= 2
                continue
            width = max(1, sum(count for _, count in taken) // 2)
            if width > 1:
                continue
        ((side, _),), left = _split(left, 1)
        logs = side(logs)
    return logs


def _is_closed(possible: BoolArray, sides: Sides) -> bool:
    """Whether each of some steps leaves the set of possible states as it is."""
    return all(np.array_equal(side.support(possible), possible) for side in {id(one): one for one, _ in sides}.values())


def _split(sides: Sides, steps: int) -> tuple[list[tuple[LogProduct, int]], list[tuple[LogProduct, int]]]:
    """The first few steps of a walk, and those that are left."""
    taken, left = [], list(sides)
    while steps and left:
        side, count = left[0]
        some = min(steps, count)
        taken.append((side, some))
        left[:1] = [(side, count - some)] if some < count else []
        steps -= some
    return taken, left
