"""Streams of counts: how many users are in each place at each time, validated, and noise added to them.

Discrete Laplace noise is drawn exactly; the Laplace mechanism in real numbers is there for comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
from scipy import sparse

from dphmm.arrays import LARGEST, SMALLEST, BoolArray, FloatArray, IntArray, Rng, as_numbers, random_source
from dphmm.errors import BudgetError, ConfigurationError, CountError, StateError, StochasticError
from dphmm.mechanisms.exact import Rational, rational
from dphmm.mechanisms.lattice_noise import laplace_steps
from dphmm.mechanisms.norm_noise import laplace_noise
from dphmm.stochastic import MatrixLike, as_stochastic
from dphmm.tables.values import shown


def count_states(sequences: npt.ArrayLike, size: int) -> IntArray:
    """True counts per time and place from the users' state sequences.

    Parameters
    ----------
    sequences
        Integers ``(users, T)``: where each user is at each time, every user at every time.
    size
        The number of places ``m``; states are ``0 .. m - 1``.

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
        raise CountError("sequences have different lengths; give every user's state at every time") from error
    if states.ndim != 2 or states.size == 0 or not np.issubdtype(states.dtype, np.integer):
        raise CountError(
            f"sequences have shape {states.shape} and type {states.dtype}; give integers, one row per user"
        )
    size = as_whole(size, "the number of places")
    if states.min() < 0 or states.max() >= size:
        user, time = (int(i) for i in np.argwhere((states < 0) | (states >= size))[0])
        raise StateError(f"user {user} at time {time} is in state {states[user, time]}; states are 0 to {size - 1}")
    steps = states.shape[1]
    flat = states.astype(np.int64) + size * np.arange(steps)
    return np.bincount(flat.ravel(), minlength=steps * size).reshape(steps, size)


_MOST = 1 << 53
"""The most that a count can be and still be told from its neighbours."""


def as_counts(values: npt.ArrayLike, name: str = "true counts") -> IntArray:
    """Counts as integers ``(T, m)`` that are not negative and have one sum at all times.

    Raises
    ------
    CountError
        When they are not.
    """
    counts = as_noisy(values, name)
    _refuse(counts, counts != np.floor(counts), name, "integers")
    _refuse(counts, counts < 0, name, "not negative")
    _refuse(counts, counts > _MOST, name, f"at most {_MOST}")
    totals = counts.sum(axis=1)
    if (totals != totals[0]).any():
        time = int(np.flatnonzero(totals != totals[0])[0])
        raise CountError(
            f"{name}: time {time} has {totals[time]:g} users and time 0 has {totals[0]:g}; every user is somewhere"
        )
    return counts.astype(np.int64)


def as_noisy(values: npt.ArrayLike, name: str = "noisy counts") -> FloatArray:
    """Noisy counts as finite floats ``(T, m)``, a copy.

    Raises
    ------
    CountError
        When the shape is another one or a value is not finite.
    """
    stream = as_numbers(values, name, CountError)
    if stream.ndim != 2 or stream.size == 0:
        raise CountError(f"{name} have shape {stream.shape}; give one row per time and one column per place")
    _refuse(stream, ~np.isfinite(stream), name, "finite")
    _refuse(stream, np.abs(stream) > LARGEST, name, f"at most {LARGEST:g}")
    return stream


def _refuse(counts: FloatArray, wrong: BoolArray, name: str, what: str) -> None:
    for time, place in np.argwhere(wrong)[:1]:
        raise CountError(f"{name}: time {time}, place {place} is {counts[time, place]}; counts are {what}")


def as_whole(value: int, name: str = "the number of users") -> int:
    """A number of users or places, at least one.

    Raises
    ------
    CountError
        When it is not a positive integer, or above ``2**53``.
    """
    try:
        if not isinstance(value, bool) and int(value) == value and 1 <= value <= _MOST:
            return int(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise CountError(f"{name} is {shown(value)}; give a positive integer")


def as_transition(matrix: MatrixLike, size: int) -> sparse.csr_array:
    """A row-stochastic matrix ``(m, m)``, dense or sparse, as CSR, renormalised within the tolerance.

    Raises
    ------
    StochasticError
        When it is not square, not of this size, or a row is no distribution.
    """
    transition: sparse.csr_array = as_stochastic(matrix, "the transition matrix", compressed=True)
    if transition.shape[0] != size:
        raise StochasticError(
            f"the transition matrix has shape {transition.shape}; there are {size} places, so give ({size}, {size})"
        )
    return transition


def as_scales(scale: npt.ArrayLike, steps: int) -> FloatArray:
    """The scale of the Laplace noise at each of ``steps`` times.

    Raises
    ------
    BudgetError
        When it is neither one number nor one per time, not positive or not finite, or so small or large that its square
        leaves a double.
    """
    scales = as_numbers(scale, "scales of noise", BudgetError)
    if scales.ndim > 1 or (scales.ndim == 1 and scales.size != steps):
        raise BudgetError(
            f"the noise scale has shape {scales.shape}; give one number, or one for each of {steps} times"
        )
    for wrong in scales[~((scales >= SMALLEST) & (scales <= LARGEST))].flat:
        raise BudgetError(f"the noise scale is {wrong}; give a number from {SMALLEST:g} to {LARGEST:g}")
    return np.broadcast_to(scales, (steps,)).copy()


SENSITIVITY = 2
"""One user's move changes two counts by one each."""

_WIDEST = 2**42
"""Largest scale of noise: it then passes 64 bits with a chance below ``exp(-10**6)``."""

Budget = float | int | str | Fraction

CountMechanism = Literal["lattice", "laplace"]
"""How noise on counts is drawn: exactly, as integers, or in real numbers; names as in `dphmm.mechanisms`."""


def release(
    true: npt.ArrayLike,
    epsilons: Budget | Sequence[Budget] | FloatArray,
    rng: Rng = None,
    mechanism: CountMechanism = "lattice",
) -> IntArray | FloatArray:
    """Noisy counts of which each time's row is epsilon-differentially private.

    Two data sets are neighbours when one user's place at one time differs, which changes two counts by one. Noise of
    scale ``2 / epsilon`` on every count of the row makes it ``epsilon``-differentially private; the budgets of
    several times add up for a user who may differ at all of them.

    Parameters
    ----------
    true
        Counts ``(T, m)``, integers with one sum at all times.
    epsilons
        One budget for all times or one per time, positive. A float stands for the decimal number that it prints as; a
        `fractions.Fraction` or a string is taken as it is.
    rng
        Where randomness comes from; ``None`` for the operating system.
    mechanism
        ``"lattice"``: discrete Laplace noise, drawn with integers alone (Canonne, Kamath and Steinke 2020), so that the
        promise holds exactly. ``"laplace"``, as in the paper: a double-precision Laplace number, with which it holds up
        to floating-point rounding, and the known attack on the low bits (Mironov, CCS 2012) applies.

    Returns
    -------
    IntArray or FloatArray
        ``(T, m)``; integers with ``"lattice"``.

    Raises
    ------
    CountError
        For counts that are negative, not whole, or of changing sum.
    BudgetError
        For a budget that is not positive and finite, or budgets whose number is not ``T``; for one so small that
        integer noise might not fit 64 bits.
    ConfigurationError
        For another mechanism.

    Examples
    --------
    >>> release([[7, 0, 3], [5, 2, 3]], "1/2", rng=1)
    array([[1, 3, 4],
           [5, 1, 5]])
    """
    counts = as_counts(true)
    budgets = as_budgets(epsilons, len(counts))
    if not isinstance(mechanism, str) or mechanism not in get_args(CountMechanism):
        raise ConfigurationError(f"mechanism is {mechanism!r}; choose one of {', '.join(get_args(CountMechanism))}")
    source = random_source(rng)
    if mechanism == "laplace":
        scales = SENSITIVITY / np.array([float(budget) for budget in budgets])
        return np.asarray(counts + scales[:, None] * laplace_noise(counts.shape, source))
    decays = [budget / SENSITIVITY for budget in budgets]
    if min(decays) * _WIDEST < 1:
        raise BudgetError(f"epsilon is {float(min(budgets)):g}; its noise may pass 64 bits, so give a larger one")
    noise = np.empty_like(counts)
    for decay in dict.fromkeys(decays):
        rows = [time for time, own in enumerate(decays) if own == decay]
        noise[rows] = laplace_steps(decay, len(rows) * counts.shape[1], source).reshape(len(rows), -1)
    return counts + noise


def as_budgets(epsilons: Budget | Sequence[Budget] | FloatArray, steps: int) -> list[Fraction]:
    """One budget per time, as the rationals that they print as.

    Raises
    ------
    BudgetError
        When one is not positive and finite, or so small or large that its noise leaves a double, or there are neither
        one nor ``steps`` of them.
    """
    if isinstance(epsilons, (str, Fraction, int, float, np.number)):
        return [_budget(epsilons, "epsilon")] * steps
    try:
        listed = list(epsilons)
    except TypeError:
        raise BudgetError(f"epsilon is {epsilons}; give one budget, or one for each of {steps} times") from None
    if len(listed) != steps:
        raise BudgetError(f"there are {len(listed)} budgets; give one, or one for each of {steps} times")
    return [_budget(budget, f"epsilon at time {time}") for time, budget in enumerate(listed)]


def _budget(written: Rational, name: str) -> Fraction:
    budget = rational(written, name)
    if not SMALLEST <= budget <= LARGEST:
        raise BudgetError(f"{name} is {float(budget):g}; give a number from {SMALLEST:g} to {LARGEST:g}")
    return budget
