"""Noisy counts: discrete Laplace noise, exactly, or the Laplace mechanism in real numbers."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from dphmm.arrays import LARGEST, SMALLEST, FloatArray, IntArray, Rng, random_source
from dphmm.counts.stream import as_counts
from dphmm.errors import BudgetError, ConfigurationError
from dphmm.mechanisms.base import laplace_noise
from dphmm.mechanisms.exact import Rational, rational
from dphmm.mechanisms.lattice_noise import laplace_steps

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
