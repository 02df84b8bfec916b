"""Operators of gaps: many steps of a model in one operation, forward or backward.

One of five methods is used. The model and the length of the gap alone determine it, so the result never depends on
earlier calls:

- *Powers* of one matrix, computed by squaring and cached. Once all rows of a power are equal, so are the rows of all
  higher powers.
- *Strides* of 4 and 16 steps of a larger dense matrix: its first two powers. A gap ends once it is steady.
- *Steady state.* A gap is stepped through in equal periods (days or weeks if there are classes of time). Let D be the
  matrix of a period. If ``|v D - v| <= e v`` in every state, m further periods change no mass by more than about
  ``m e`` of itself, because D is non-negative. This holds for the given masses, also for chains with several closed
  classes, and needs no bound on the mixing time. It also holds if masses decay by constant factors, as those of
  transient states do.
- *Limit distribution.* If there are classes of time and the matrix of `_LIMIT_PERIODS` periods has equal rows, the
  distribution after them does not depend on the start. It is computed once for each time of day and cached.
- Otherwise *stepping*, in floats while no possible state underflows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import log2
from typing import Any

import numpy as np

from dphmm.arrays import BoolArray, FloatArray, IntArray, make_read_only
from dphmm.model.transition_operator import (
    LogProduct,
    Operator,
    Runs,
    TransitionOperator,
    as_linear_masses,
    log_sum,
    normalize_logs,
)
from dphmm.threads import limit_to_one_thread

# Powers of any number of steps, which are dense, are used for models with at most this number of states.
POWERS_MAX_STATES = 2048
# Larger dense matrices up to this size, of 128 MiB, have two powers.
_STRIDES_MAX_STATES = 4096
# From this number of short strides on, masses must have converged by this number of digits for each stride: they are
# steady after about 140 strides, which takes less time than the second power. Otherwise long strides follow.
_SHORT_STRIDES = 32
_MIN_DIGITS_PER_STRIDE = 0.1
# Smallest share of positive entries of such a matrix.
_STRIDE_MIN_FILL = 0.25
# Number of strides between two checks for a steady state.
_STRIDES_PER_CHECK = 8
# One power is cached for each digit of a number of steps to this base.
_BASE = 4
# Seconds for one multiplication and addition of a product of dense matrices.
_POWER_COST = 1e-10
# Seconds for a single step, and for each entry of its matrix in addition.
_STEP_COST = 5e-6
_ENTRY_COST = 1.5e-9
# Powers are used if stepping would take more than this share of the time for computing them.
_MIN_STEPPING_SHARE = 0.05
# As above, for strides: a few gaps must pay for the power, which takes up to half a minute.
_MIN_STEPPING_SHARE_OF_STRIDES = 0.25
# Steps of one matrix between two checks for a steady state, in gaps up to 512 periods and in longer ones. They are
# multiples of small numbers, so that short cycles are complete.
_PERIOD_STEPS = 60
_LONG_PERIOD_STEPS = 720
# Sums in plain floats are accurate down to this value.
_MIN_PLAIN_MASS = 2.0**-900
# Largest relative change of a mass in a period that counts as steady.
_STEADY_TOLERANCE = 2e-14
_ROUNDING = 8 * float(np.finfo(np.float64).eps)
# Number of periods after which a chain is tested for a limit distribution, a power of two. Chains that mix within days
# or a few weeks have one.
_LIMIT_PERIODS = 64
# Largest relative difference of rows that count as equal: the steady-state tolerance of a period, and rounding.
_EQUAL_ROWS_TOLERANCE = 1e-13
# Number of cached limit distributions: one for each time of day at which gaps end.
_CACHE_SIZE = 512


class Gap(Operator):
    """The operator of many steps.

    Parameters
    ----------
    periods
        The steps, in their order.
    powers
        The powers of the matrix if all steps have the same one.
    limit
        ``(N,)``: the log masses after the gap if they do not depend on the start.
    """

    def __init__(
        self, periods: Sequence[tuple[Runs, int]], powers: Powers | None = None, limit: FloatArray | None = None
    ) -> None:
        self.periods = periods
        self._powers = powers
        self._limit = limit

    def propagate_forward(self, logs: FloatArray) -> FloatArray:
        """Propagate a distribution forward through all steps."""
        return self._step_through(logs, False) if self._limit is None else self._limit + log_sum(logs)

    def propagate_backward(self, logs: FloatArray) -> FloatArray:
        """Propagate likelihoods backward through all steps."""
        if self._limit is None:
            return self._step_through(logs, True)
        return np.full(len(logs), log_sum(self._limit + logs))

    @property
    def max_seconds(self) -> float:
        """An upper estimate of the seconds that `propagate_forward` takes."""
        if self._limit is not None:
            return 0.0
        if self._powers is not None:
            return self._powers.estimate_seconds(self._num_steps)
        return sum(
            times * count * _estimate_step_seconds(operator) for runs, times in self.periods for operator, count in runs
        )

    @property
    def _num_steps(self) -> int:
        return sum(count * times for runs, times in self.periods for _, count in runs)

    def _step_through(self, logs: FloatArray, back: bool) -> FloatArray:
        if self._powers is not None:
            later = self._powers.apply(logs, self._num_steps, back)
            if later is not None:
                return later
        for runs, times in reversed(self.periods) if back else self.periods:
            sides = [
                (operator.backward_product if back else operator.forward_product, count)
                for operator, count in (reversed(runs) if back else runs)
            ]
            logs = _repeat_period(logs, sides, times)
        return logs


def _estimate_step_seconds(operator: TransitionOperator) -> float:
    return _STEP_COST + _ENTRY_COST * float(operator.matrix.nnz)


def build_homogeneous_gap(operator: TransitionOperator, steps: int, powers: Powers | None = None) -> Gap:
    """Return the gap of several steps of one matrix, by its powers if they are faster."""
    period = _LONG_PERIOD_STEPS if steps > 512 * _PERIOD_STEPS else _PERIOD_STEPS
    whole, left = divmod(steps, period)
    periods = [([(operator, count)], times) for count, times in ((period, whole), (left, 1)) if count * times]
    return Gap(periods, powers if powers is not None and powers.is_worthwhile(steps) else None)


class Powers:
    """Cached powers of a transition matrix.

    Parameters
    ----------
    operator
        The operator of a row-stochastic matrix, ``(N, N)``.
    """

    def __init__(self, operator: TransitionOperator) -> None:
        self._operator, self._size = operator, int(operator.matrix.shape[0])
        self._matrices: list[FloatArray] = []

    def is_worthwhile(self, steps: int) -> bool:
        """Return whether powers are faster than stepping for a gap of this length."""
        stepping_cost = steps * _estimate_step_seconds(self._operator)
        product_cost = self._size**3 * _POWER_COST
        if self._size <= POWERS_MAX_STATES:
            return stepping_cost > _MIN_STEPPING_SHARE * log2(steps) * product_cost + 20 * _STEP_COST
        is_dense = self._operator.matrix.nnz >= _STRIDE_MIN_FILL * self._size**2
        if self._size > _STRIDES_MAX_STATES or not is_dense:
            return False
        return stepping_cost > _MIN_STEPPING_SHARE_OF_STRIDES * log2(_BASE**2) * product_cost

    def estimate_seconds(self, steps: int) -> float:
        """Return the seconds for applying powers, without computing them."""
        if self._size > POWERS_MAX_STATES:
            return (_SHORT_STRIDES + steps / _BASE**2) * self._size**2 * _ENTRY_COST
        return (_BASE - 1) * log2(steps) / log2(_BASE) * self._size**2 * _ENTRY_COST

    def apply(self, logs: FloatArray, steps: int, back: bool) -> FloatArray | None:
        """Return log masses ``(N,)`` after the steps, or log likelihoods before them.

        Returns None if a possible state would underflow. Every resulting mass of at least ``2**-900`` of the largest
        initial one is accurate: the underflow on the way is smaller than rounding. If a possible state has a smaller
        mass, powers cannot be used.
        """
        top = float(logs.max(initial=-np.inf))
        if top == -np.inf:
            return logs
        values = np.exp(logs - top)
        with limit_to_one_thread():
            if self._size > POWERS_MAX_STATES:
                values, left = self._apply_strides(values, steps, back)
            else:
                values, left = self._apply_digits(values, steps, back), 0
        # A product of powers sums 0 where every term underflows, although the state is possible by structure.
        low = values < _MIN_PLAIN_MASS
        if low.any():
            if (low & self._propagate_support(logs > -np.inf, steps - left, back)).any():
                return None
            values = np.where(low, 0.0, values)
        with np.errstate(divide="ignore"):
            return walk(np.asarray(np.log(values) + top), [(self._get_side(back), left)])

    def _apply_digits(self, values: FloatArray, steps: int, back: bool) -> FloatArray:
        """Return values after the steps: one product for each unit of their digits."""
        left = steps
        k = 0
        while left:
            left, times = divmod(left, _BASE)
            for _ in range(times):
                values = self._multiply(values, k, back)
            k += 1
        return values

    def _apply_strides(self, values: FloatArray, steps: int, back: bool) -> tuple[FloatArray, int]:
        """Return values after strides, and the number of steps that are left."""
        left = steps
        for k in (1, 2, 1):  # short strides, long ones, and short ones for the rest
            if k == 2 and left < _SHORT_STRIDES * _BASE:
                continue
            number, before = 0, values
            while left >= _BASE**k:
                values = self._multiply(values, k, back)
                left -= _BASE**k
                number += 1
                if number % _STRIDES_PER_CHECK == 0:
                    change, before = np.abs(values - before), values
                    is_slow = change > 10.0 ** (-_MIN_DIGITS_PER_STRIDE * number) * values
                    if (change <= _STEADY_TOLERANCE * values).all():
                        # Steps can be omitted in units of a check only: within them, masses may move in cycles.
                        left %= _STRIDES_PER_CHECK * _BASE**k
                    elif k == 1 and number >= _SHORT_STRIDES and is_slow.any():
                        break
        return values, left

    def _multiply(self, values: FloatArray, k: int, back: bool) -> FloatArray:
        return self._get_power(k) @ values if back else values @ self._get_power(k)

    def _get_side(self, back: bool) -> LogProduct:
        return self._operator.backward_product if back else self._operator.forward_product

    def _get_power(self, k: int) -> FloatArray:
        """Return the matrix of ``_BASE**k`` steps."""
        while len(self._matrices) <= k:
            power = self._matrices[-1] if self._matrices else self._operator.matrix.toarray()
            if self._matrices and not _has_equal_rows(power):
                with limit_to_one_thread():
                    for _ in range(int(log2(_BASE))):
                        power = power @ power
                        power /= power.sum(axis=1, keepdims=True)  # otherwise rounding grows with every square
            self._matrices.append(make_read_only(power))
        return self._matrices[k]

    def _propagate_support(self, possible: BoolArray, steps: int, back: bool) -> BoolArray:
        """Return the possible states after the steps. Supports that cycle are reused."""
        side = self._get_side(back)
        first_index = dict[bytes, int]()
        supports = [possible]
        while len(supports) <= steps:
            key = supports[-1].tobytes()
            if key in first_index:
                first = first_index[key]
                return supports[first + (steps - first) % (len(supports) - 1 - first)]
            first_index[key] = len(supports) - 1
            supports.append(side.propagate_support(supports[-1]))
        return supports[steps]


def _has_equal_rows(power: FloatArray, tolerance: float = _ROUNDING) -> bool:
    """Return whether all rows are equal: the result does not depend on the first state."""
    first = power[0]
    return bool((np.abs(power - first) <= tolerance * first).all())


class LimitDistributions:
    """Cached limit distributions of a model with classes of time.

    The model and the steps of a gap alone determine whether a limit distribution is used, and every bit of the result.

    Parameters
    ----------
    operators
        The operator of one step, by class.
    """

    def __init__(self, operators: Sequence[TransitionOperator]) -> None:
        self._operators = operators
        self._size = int(operators[0].matrix.shape[0])
        self._cycles: dict[bytes, FloatArray | None] = {}
        self._by_ending: dict[Any, FloatArray | None] = {}

    def find(self, periods: Sequence[tuple[Sequence[tuple[int, int]], int]]) -> FloatArray | None:
        """Return log masses ``(N,)`` after periods. None if they depend on the start."""
        long_periods = [i for i, (_, times) in enumerate(periods) if times > _LIMIT_PERIODS]
        if not long_periods or self._size > POWERS_MAX_STATES:
            return None
        runs = periods[long_periods[-1]][0]
        rest = periods[long_periods[-1] + 1 :]
        key = tuple(runs), tuple((tuple(later), times) for later, times in rest)
        if key in self._by_ending:
            return self._by_ending[key]
        logs = self._find_limit(runs)
        if logs is not None and rest:
            logs = Gap([(self._build_operators(later), times) for later, times in rest]).propagate_forward(logs)
        logs = None if logs is None else make_read_only(normalize_logs(logs)[0])
        if len(self._by_ending) >= _CACHE_SIZE:
            self._by_ending.pop(next(iter(self._by_ending)), None)
        self._by_ending[key] = logs
        return logs

    def _build_operators(self, runs: Sequence[tuple[int, int]]) -> Runs:
        return [(self._operators[number], count) for number, count in runs]

    def _find_limit(self, runs: Sequence[tuple[int, int]]) -> FloatArray | None:
        """Return the limit of the log masses for repeated periods. None if there is no limit.

        All times of day share one computation, which starts with class 0. The remaining steps of the runs follow.
        """
        classes = np.repeat(*np.array(runs).T)
        starts = np.flatnonzero((classes == 0) & (np.roll(classes, 1) != 0))
        start = min(starts.tolist(), key=lambda k: np.roll(classes, -k).tobytes(), default=0)
        cycle = np.roll(classes, -start)
        key = cycle.tobytes()
        if key not in self._cycles:
            self._cycles[key] = self._compute_limit_row(_list_runs(cycle))
        logs = self._cycles[key]
        if logs is None or not start:
            return logs
        return walk(
            logs, [(self._operators[number].forward_product, count) for number, count in _list_runs(classes[start:])]
        )

    def _compute_limit_row(self, runs: Sequence[tuple[int, int]]) -> FloatArray | None:
        """Return a row of the matrix of `_LIMIT_PERIODS` periods. None if rows differ."""
        squarings = _LIMIT_PERIODS.bit_length() - 1
        products = squarings + sum(count.bit_length() + count.bit_count() - 1 for _, count in runs)
        steps = sum(count * (_STEP_COST + _ENTRY_COST * self._operators[k].matrix.nnz) for k, count in runs)
        if products * self._size**3 * _POWER_COST > _LIMIT_PERIODS * steps:
            return None
        with limit_to_one_thread():
            matrices = (np.linalg.matrix_power(self._operators[k].matrix.toarray(), count) for k, count in runs)
            power = reduce(np.matmul, matrices)
            for _ in range(squarings):
                power /= power.sum(axis=1, keepdims=True)  # otherwise rounding grows with every square
                power = power @ power
        # Stepping in logs keeps masses that underflow here, or nearly do.
        if power.min() < _MIN_PLAIN_MASS or not _has_equal_rows(power, _EQUAL_ROWS_TOLERANCE):
            return None
        return np.asarray(np.log(power[0]))


def _list_runs(classes: IntArray) -> list[tuple[int, int]]:
    """Return the runs of equal classes: class and length."""
    starts = np.flatnonzero(np.diff(classes, prepend=-1))
    return list(zip(classes[starts].tolist(), np.diff(starts, append=len(classes)).tolist(), strict=True))


# Products and the number of steps of each, in their order.
Sides = Sequence[tuple[LogProduct, int]]


def _repeat_period(logs: FloatArray, sides: Sides, times: int) -> FloatArray:
    """Return the log masses after a repeated period. Extrapolate once growth is steady."""
    before: FloatArray | None = None
    for done in range(1, times + 1):
        later = walk(logs, sides)
        if done < times:
            # The matrix of a period is non-negative. If it changes all masses by nearly the same factor, every further
            # period does, and the rest of the gap needs no steps.
            growth = _compute_period_change(logs, later)
            if growth is not None and _is_steady(growth, before, later, sides):
                steady_growth = np.where(np.abs(growth) <= _compute_tolerance(later), 0.0, growth)
                return np.asarray(later + (times - done) * steady_growth)
            before = growth
        logs = later
    return logs


def _compute_tolerance(logs: FloatArray) -> FloatArray:
    """Return the largest change of log masses in a period that rounding may cause."""
    return np.asarray(_STEADY_TOLERANCE + _ROUNDING * np.abs(np.where(logs > -np.inf, logs, 0.0)))


def _compute_period_change(logs: FloatArray, later: FloatArray) -> FloatArray | None:
    """Return the change of log masses in a period. None if the support changes."""
    possible = logs > -np.inf
    if not np.array_equal(possible, later > -np.inf):
        return None
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(possible, later - logs, 0.0))


def _is_steady(growth: FloatArray, before: FloatArray | None, logs: FloatArray, sides: Sides) -> bool:
    """Return whether all further periods change log masses as this one did.

    They do if all masses change by one factor. If factors differ, they must equal those of the previous period, and no
    state may receive mass from a state that decays more slowly.
    """
    tolerance = _compute_tolerance(logs)
    possible = logs > -np.inf
    if not possible.any():
        return True
    rates = growth[possible]
    if rates.max() - rates.min() <= float(tolerance[possible].min()):
        return True
    if before is None or (np.abs(growth - before) > tolerance).any():
        return False
    # A state that receives mass from one that decays more slowly eventually decays as slowly: its rate is not final.
    for side in {id(side): side for side, _ in sides}.values():
        to = np.repeat(np.arange(len(growth)), np.diff(side.matrix.indptr))
        source = side.matrix.indices
        feeds = possible[source] & possible[to]
        if (growth[source] > growth[to] + tolerance[source] + tolerance[to])[feeds].any():
            return False
    return True


def walk(logs: FloatArray, sides: Sides) -> FloatArray:
    """Return the log masses after single steps, in floats unless a state would underflow."""
    left = [(side, count) for side, count in sides if count]
    width = sum(count for _, count in left)
    while left:
        values = as_linear_masses(logs) if all(side.is_linear_safe for side, _ in left) else None
        if values is not None and _is_closed(logs > -np.inf, left):
            # Take several steps in plain floats, and check afterwards that no mass came near underflow. The number of
            # steps doubles after each success and is halved after a failure. Failures at most double the cost.
            taken, rest = _split_steps(left, width)
            later = values
            for side, count in taken:
                for _ in range(count):
                    later = side.multiply(later)
            positive = later[values > 0]
            if positive.min() >= _MIN_PLAIN_MASS * positive.max() > 0:
                with np.errstate(divide="ignore"):
                    logs = np.log(later) + float(logs.max())
                    left = rest
                width *= 2
                continue
            width = max(1, sum(count for _, count in taken) // 2)
            if width > 1:
                continue
        # The support still changes, or masses are too far apart: take one step in logs, which cannot underflow.
        ((side, _),), left = _split_steps(left, 1)
        logs = side(logs)
    return logs


def _is_closed(possible: BoolArray, sides: Sides) -> bool:
    """Return whether none of the steps changes the set of possible states."""
    return all(
        np.array_equal(side.propagate_support(possible), possible)
        for side in {id(product): product for product, _ in sides}.values()
    )


def _split_steps(sides: Sides, steps: int) -> tuple[list[tuple[LogProduct, int]], list[tuple[LogProduct, int]]]:
    """Split off the first steps of a walk. Return them and the remaining ones."""
    taken = []
    left = list(sides)
    while steps and left:
        side, count = left[0]
        part = min(steps, count)
        taken.append((side, part))
        left[:1] = [(side, count - part)] if part < count else []
        steps -= part
    return taken, left
