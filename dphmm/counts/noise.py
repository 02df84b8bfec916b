"""Noisy counts: the Laplace mechanism on a count stream, as real numbers or exactly as integers."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, Rng, random_source
from dphmm.counts.stream import as_counts
from dphmm.errors import BudgetError
from dphmm.mechanisms.base import laplace_noise
from dphmm.mechanisms.exact import RandomBits, discrete_laplace, rational

SENSITIVITY = 2
"""One user's move changes two counts by one each."""

Budget = float | int | str | Fraction


def release(
    true: npt.ArrayLike, epsilons: Budget | Sequence[Budget] | FloatArray, rng: Rng = None, integer: bool = False
) -> FloatArray:
    """Noisy counts of which each time's row is epsilon-differentially private.

    Two data sets are neighbours when one user's place at one time differs, which changes two counts by one. Noise of
    scale ``2 / epsilon`` on every count of the row makes it ``epsilon``-differentially private; the budgets of
    several times add up for a user who may differ at all of them.

    Parameters
    ----------
    true
        Counts ``(T, m)``, integers with one sum at all times.
    epsilons
        One budget for all times or one per time, positive. With ``integer`` a float stands for the decimal number
        that it prints as; a `fractions.Fraction` or a string is taken as it is.
    rng
        Where randomness comes from; ``None`` for the operating system.
    integer
        Add discrete Laplace noise, drawn with integers alone (Canonne, Kamath and Steinke 2020). Otherwise the noise
        is a double-precision Laplace number, and the guarantee holds up to floating-point rounding: the known attack
        on the low bits (Mironov, CCS 2012) applies to it. Publish integers where that matters.

    Returns
    -------
    FloatArray
        ``(T, m)``; whole numbers with ``integer``.

    Raises
    ------
    CountError
        For counts that are negative, not whole, or of changing sum.
    BudgetError
        For a budget that is not positive and finite, or budgets whose number is not ``T``.
    """
    counts = as_counts(true)
    budgets = as_budgets(epsilons, len(counts))
    source = random_source(rng)
    if integer:
        bits, decays = RandomBits(source), [budget / SENSITIVITY for budget in budgets]
        draws = [[discrete_laplace(d.numerator, d.denominator, bits) for _ in counts[0]] for d in decays]
        noise: FloatArray = np.array(draws, dtype=np.float64)
        return counts + noise
    scales = SENSITIVITY / np.array([float(budget) for budget in budgets])
    return counts + scales[:, None] * laplace_noise(counts.shape, source)


def as_budgets(epsilons: Budget | Sequence[Budget] | FloatArray, steps: int) -> list[Fraction]:
    """One budget per time, as the rationals that they print as.

    Raises
    ------
    BudgetError
        When one is not positive and finite, or there are neither one nor ``steps`` of them.
    """
    if isinstance(epsilons, (str, Fraction, int, float)):
        return [rational(epsilons)] * steps
    listed = list(epsilons)
    if len(listed) != steps:
        raise BudgetError(f"there are {len(listed)} budgets; give one, or one for each of {steps} times")
    return [rational(budget, f"epsilon at time {time}") for time, budget in enumerate(listed)]
