"""Discrete Laplace noise: exact samples, variance, tail, and an account of its budget."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import exp, expm1, log

import numpy as np
import numpy.typing as npt

from dphmm.arrays import IntArray
from dphmm.errors import BudgetError
from dphmm.mechanisms.lattice_noise import LatticeNoise
from dphmm.mechanisms.lattice_normalizer import LatticeSum
from dphmm.random import RandomSource

# Largest scale of noise. Noise then exceeds 64 bits with probability below ``exp(-10**6)``.
MAX_NOISE_SCALE = 2**42


def sample_discrete_laplace(decay: Fraction, count: int, source: RandomSource) -> IntArray:
    """Sample ``count`` integers with probability exactly proportional to ``exp(-decay |x|)``.

    This is discrete Laplace noise: added to an integer query of sensitivity ``D`` it provides
    ``D * decay``-differential privacy. It is the lattice noise of the line, the only edge of
    which leads from 1 by steps of 1.
    """
    return _build_line_noise(decay).draw(count, source)[:, 0]


@lru_cache(maxsize=64)
def _build_line_noise(decay: Fraction) -> LatticeNoise:
    # A stream samples one number at a time, nearly always with the same few decays.
    return LatticeNoise(LatticeSum(1, ()), decay, np.ones((1, 1), dtype=object))


class CountNoise:
    """Discrete Laplace noise with an account of the budget spent, by purpose.

    Parameters
    ----------
    epsilon
        The budget.
    source
        The source of the noise.
    """

    def __init__(self, epsilon: Fraction, source: RandomSource) -> None:
        self.left = epsilon
        self.source = source
        self.spent: dict[str, Fraction] = {}

    def add(self, name: str, counts: npt.ArrayLike, sensitivity: int, epsilon: Fraction) -> IntArray:
        """Add noise to counts, after subtracting the cost from the budget.

        Parameters
        ----------
        name
            The purpose under which the cost is recorded.
        counts
            Integers; zeros get noise as well.
        sensitivity
            Upper bound on the total change of the counts by one user.
        epsilon
            The cost.

        Returns
        -------
        IntArray
            The noisy counts, in the shape of `counts`.

        Raises
        ------
        BudgetError
            If the remaining budget is smaller, or the noise might exceed 64 bits.
        """
        if not 0 < epsilon <= self.left:
            raise BudgetError(f"epsilon of {name} must be positive and at most {self.left} (left), got {epsilon}")
        if sensitivity / epsilon > MAX_NOISE_SCALE:
            raise BudgetError(f"epsilon of {name} is {epsilon}, and its noise may exceed 64 bits: use a larger epsilon")
        self.left -= epsilon
        self.spent[name] = self.spent.get(name, Fraction(0)) + epsilon
        true = np.asarray(counts, dtype=np.int64)
        return true + sample_discrete_laplace(epsilon / sensitivity, true.size, self.source).reshape(true.shape)


def laplace_variance(decay: float) -> float:
    """Return the variance of integers with probabilities proportional to ``exp(-decay |x|)``."""
    return 2.0 * exp(-decay) / expm1(-decay) ** 2  # 1 - exp(-decay) would cancel with a small decay


def bound_laplace_noise(decay: float, confidence: float) -> int:
    """Return the smallest k such that discrete Laplace noise is within k of zero.

    It is so with probability at least `confidence`. The probability beyond k is ``2 q^(k+1) / (1 + q)``, where
    ``q = exp(-decay)``.

    Examples
    --------
    >>> bound_laplace_noise(0.1, 0.95), bound_laplace_noise(10.0, 0.95)
    (30, 0)
    """
    q = exp(-decay)
    bound = max(0, int(log((1.0 - confidence) * (1.0 + q) / 2.0) / -decay) - 2)
    # A power of q would amplify its rounding error: with a small decay the loop would take billions of steps.
    while 2.0 * exp(-decay * (bound + 1)) / (1.0 + q) > 1.0 - confidence:
        bound += 1
    return bound
