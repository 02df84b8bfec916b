"""Streams of counts of users per place and time: validation, and noise.

Discrete Laplace noise is sampled exactly. The Laplace mechanism in real numbers is for comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from scipy import sparse

from dphmm.arrays import BoolArray, FloatArray, IntArray, as_numbers
from dphmm.errors import BudgetError, CountError, StateError, StochasticError
from dphmm.mechanisms.discrete_laplace import MAX_NOISE_SCALE, sample_discrete_laplace
from dphmm.mechanisms.exact_sampling import parse_rational
from dphmm.mechanisms.norm_noise import sample_laplace
from dphmm.random import Rng, as_random_source
from dphmm.stochastic_matrix import MatrixLike, as_stochastic
from dphmm.tables.values import shorten_repr
from dphmm.tolerances import MAX_SCALE, MIN_SCALE
from dphmm.validation import Integers, check_arguments


def count_states(sequences: npt.ArrayLike, size: int) -> IntArray:
    """Count users per time and place from their state sequences.

    Parameters
    ----------
    sequences
        Integers ``(users, T)``: the state of each user at each time.
    size
        The number of places ``m``. States are ``0 .. m - 1``.

    Returns
    -------
    IntArray
        ``(T, m)``; each row sums to the number of users.

    Raises
    ------
    CountError
        When the sequences do not form a rectangular array of integers with at least one user and one time.
    StateError
        When a state is outside ``0 .. m - 1``.

    Examples
    --------
    >>> count_states([[0, 1], [0, 0], [2, 1]], size=3)
    array([[2, 0, 1],
           [1, 2, 0]])
    """
    try:
        states = np.asarray(sequences)
    except ValueError as error:
        raise CountError("sequences must have equal lengths: one state per user and time") from error
    if states.ndim != 2 or states.size == 0 or not np.issubdtype(states.dtype, np.integer):
        raise CountError(
            f"sequences must be integers, one row per user, got shape {states.shape} and type {states.dtype}"
        )
    size = as_whole(size, "the number of places")
    if states.min() < 0 or states.max() >= size:
        user, time = (int(i) for i in np.argwhere((states < 0) | (states >= size))[0])
        raise StateError(f"states must be 0 to {size - 1}, got {states[user, time]} for user {user} at time {time}")
    steps = states.shape[1]
    flat = states.astype(np.int64) + size * np.arange(steps)
    return np.bincount(flat.ravel(), minlength=steps * size).reshape(steps, size)


# Largest count that a double distinguishes from its neighbours.
_MAX_COUNT = 1 << 53

# A number of users.
NumUsers = Annotated[int, Integers(1, _MAX_COUNT, CountError)]


def as_counts(values: npt.ArrayLike, name: str = "true counts") -> IntArray:
    """Convert counts to non-negative integers ``(T, m)`` with the same sum at all times.

    Raises
    ------
    CountError
        When they are not such counts.
    """
    counts = as_noisy(values, name)
    _refuse(counts, counts != np.floor(counts), name, "integers")
    _refuse(counts, counts < 0, name, "non-negative")
    _refuse(counts, counts > _MAX_COUNT, name, f"at most {_MAX_COUNT}")
    totals = counts.sum(axis=1)
    if (totals != totals[0]).any():
        time = int(np.flatnonzero(totals != totals[0])[0])
        raise CountError(
            f"{name} must have one sum at all times, got {totals[time]:g} at time {time} and {totals[0]:g} at time 0"
        )
    return counts.astype(np.int64)


def as_noisy(values: npt.ArrayLike, name: str = "noisy counts") -> FloatArray:
    """Copy noisy counts as finite floats ``(T, m)``.

    Raises
    ------
    CountError
        When the shape is wrong or a value is not finite.
    """
    stream = as_numbers(values, name, CountError)
    if stream.ndim != 2 or stream.size == 0:
        raise CountError(f"{name} must have one row per time and one column per place, got shape {stream.shape}")
    _refuse(stream, ~np.isfinite(stream), name, "finite")
    _refuse(stream, np.abs(stream) > MAX_SCALE, name, f"at most {MAX_SCALE:g}")
    return stream


def _refuse(counts: FloatArray, wrong: BoolArray, name: str, what: str) -> None:
    for time, place in np.argwhere(wrong)[:1]:
        raise CountError(f"{name} must be {what}, got {counts[time, place]} at time {time}, place {place}")


def as_whole(value: int, name: str = "the number of users") -> int:
    """Return a number of users or places as a positive integer.

    Raises
    ------
    CountError
        When it is not a positive integer, or above ``2**53``.
    """
    try:
        if not isinstance(value, bool) and int(value) == value and 1 <= value <= _MAX_COUNT:
            return int(value)
    except (TypeError, ValueError, OverflowError):
        pass
    limit = f" of at most {_MAX_COUNT}" if isinstance(value, int) and value > _MAX_COUNT else ""
    raise CountError(f"{name} must be a positive integer{limit}, got {shorten_repr(value)}")


def as_transition(matrix: MatrixLike, size: int) -> sparse.csr_array:
    """Convert a row-stochastic matrix ``(m, m)`` to CSR, renormalised within the tolerance.

    Raises
    ------
    StochasticError
        When it is not square, not of this size, or a row is not a distribution.
    """
    transition: sparse.csr_array = as_stochastic(matrix, "the transition matrix", compressed=True)
    if transition.shape[0] != size:
        raise StochasticError(
            f"the transition matrix must have shape ({size}, {size}), one row per place, got {transition.shape}"
        )
    return transition


def as_scales(scale: npt.ArrayLike, steps: int) -> FloatArray:
    """Return the scale of the noise at each of ``steps`` times.

    Raises
    ------
    BudgetError
        When it is neither one number nor one per time, not positive or not finite, or its square is outside the range
        of a double.
    """
    scales = as_numbers(scale, "scales of noise", BudgetError)
    if scales.ndim > 1 or (scales.ndim == 1 and scales.size != steps):
        raise BudgetError(
            f"the noise scale must be one number, or one for each of {steps} times, got shape {scales.shape}"
        )
    for wrong in scales[~((scales >= MIN_SCALE) & (scales <= MAX_SCALE))].flat:
        raise BudgetError(f"the noise scale must be in [{MIN_SCALE:g}, {MAX_SCALE:g}], got {wrong}")
    return np.broadcast_to(scales, (steps,)).copy()


# Sensitivity of a row of counts: moving one user changes two counts by one each.
SENSITIVITY = 2

Budget = float | int | str | Fraction

# Noise on counts: exact integers or real numbers. Names as in `dphmm.mechanisms`.
CountMechanism = Literal["lattice", "laplace"]


@check_arguments
def release(
    true: npt.ArrayLike,
    epsilons: Budget | Sequence[Budget] | FloatArray,
    rng: Rng = None,
    mechanism: CountMechanism = "lattice",
) -> IntArray | FloatArray:
    """Release noisy counts. Each time's row is epsilon-differentially private.

    Two data sets are neighbours if one user's place at one time differs, which changes two counts by one. Noise of
    scale ``2 / epsilon`` on every count makes the row ``epsilon``-differentially private. The budgets of several times
    add up for a user who differs at all of them.

    Parameters
    ----------
    true
        Counts ``(T, m)``, integers with the same sum at all times.
    epsilons
        One budget for all times or one per time, positive. A float denotes its shortest decimal representation. A
        `fractions.Fraction` or a string is exact.
    rng
        Source of randomness. None means the operating system.
    mechanism
        ``"lattice"``: discrete Laplace noise, sampled with integers only (Canonne, Kamath and Steinke 2020). The
        guarantee is then exact in finite precision. ``"laplace"``, as in the paper: Laplace noise in double precision.
        The guarantee then holds for real numbers only, and the known attack on the low bits (Mironov, CCS 2012)
        applies.

    Returns
    -------
    IntArray or FloatArray
        ``(T, m)``; integers with ``"lattice"``.

    Raises
    ------
    CountError
        When counts are negative, not integers, or have different sums.
    BudgetError
        When a budget is not positive and finite, the number of budgets is not ``T``, or integer noise can exceed 64
        bits.
    ConfigurationError
        When the mechanism is unknown.

    Examples
    --------
    >>> release([[7, 0, 3], [5, 2, 3]], "1/2", rng=1)
    array([[1, 3, 4],
           [5, 1, 5]])
    """
    counts = as_counts(true)
    budgets = as_budgets(epsilons, len(counts))
    source = as_random_source(rng)
    if mechanism == "laplace":
        scales = SENSITIVITY / np.array([float(budget) for budget in budgets])
        return np.asarray(counts + scales[:, None] * sample_laplace(counts.shape, source))
    decays = [budget / SENSITIVITY for budget in budgets]
    if min(decays) * MAX_NOISE_SCALE < 1:
        raise BudgetError(f"noise for epsilon {float(min(budgets)):g} can exceed 64 bits: use a larger epsilon")
    noise = np.empty_like(counts)
    for decay in dict.fromkeys(decays):
        rows = [time for time, row_decay in enumerate(decays) if row_decay == decay]
        noise[rows] = sample_discrete_laplace(decay, len(rows) * counts.shape[1], source).reshape(len(rows), -1)
    return counts + noise


def as_budgets(epsilons: Budget | Sequence[Budget] | FloatArray, steps: int) -> list[Fraction]:
    """Return one rational budget per time, the shortest decimal of a float.

    Raises
    ------
    BudgetError
        When a budget is not positive and finite, its noise is outside the range of a double, or their number is neither
        one nor ``steps``.
    """
    if isinstance(epsilons, (str, Fraction, int, float, np.number)):
        return [parse_rational(epsilons)] * steps
    try:
        listed = list(epsilons)
    except TypeError:
        raise BudgetError(f"epsilon must be one budget, or one for each of {steps} times, got {epsilons}") from None
    if len(listed) != steps:
        raise BudgetError(f"epsilon must be one budget, or one for each of {steps} times, got {len(listed)} budgets")
    return [parse_rational(budget, f"epsilon at time {time}") for time, budget in enumerate(listed)]
