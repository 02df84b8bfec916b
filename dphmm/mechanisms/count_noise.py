"""Exact noise on counts to which one person adds a bounded amount, out of a budget that is written down."""

from __future__ import annotations

from fractions import Fraction
from math import exp, log

import numpy as np
import numpy.typing as npt

from dphmm.arrays import IntArray, RandomSource
from dphmm.errors import BudgetError
from dphmm.mechanisms.lattice_noise import laplace_steps

LARGEST_SCALE = 2**42
"""Noise of a larger scale may pass 64 bits."""


class CountNoise:
    """Discrete Laplace noise, and what it has taken of a budget, by what it was spent on.

    Parameters
    ----------
    epsilon
        The budget.
    source
        Where the noise comes from.
    """

    def __init__(self, epsilon: Fraction, source: RandomSource) -> None:
        self.left, self.source = epsilon, source
        self.spent: dict[str, Fraction] = {}

    def add(self, name: str, counts: npt.ArrayLike, sensitivity: int, epsilon: Fraction) -> IntArray:
        """Counts with noise, once its price is taken off the budget.

        Parameters
        ----------
        name
            What the price is written down as.
        counts
            Whole numbers; those that are zero get noise as well.
        sensitivity
            By how much, in all, one person more or less changes them at most.
        epsilon
            The price.

        Returns
        -------
        IntArray
            Of the counts' shape.

        Raises
        ------
        BudgetError
            When less is left, or the noise would not fit into 64 bits.
        """
        if not 0 < epsilon <= self.left:
            raise BudgetError(f"{name} would take {epsilon} of epsilon, and {self.left} is left")
        if sensitivity / epsilon > LARGEST_SCALE:
            raise BudgetError(f"{name} has {epsilon} of epsilon; its noise may pass 64 bits, so give a larger one")
        self.left -= epsilon
        self.spent[name] = self.spent.get(name, Fraction(0)) + epsilon
        true = np.asarray(counts, dtype=np.int64)
        return true + laplace_steps(epsilon / sensitivity, true.size, self.source).reshape(true.shape)


def laplace_variance(decay: float) -> float:
    """The variance of a whole number with probabilities proportional to ``exp(-decay |x|)``."""
    q = exp(-decay)
    return 2.0 * q / (1.0 - q) ** 2


def laplace_within(decay: float, confidence: float) -> int:
    """The least k such that such a number lies within k of zero with at least that probability.

    Beyond k lie ``2 q^(k+1) / (1 + q)``, where ``q = exp(-decay)``.

    Examples
    --------
    >>> laplace_within(0.1, 0.95), laplace_within(10.0, 0.95)
    (30, 0)
    """
    q = exp(-decay)
    found = max(0, int(log((1.0 - confidence) * (1.0 + q) / 2.0) / -decay) - 2)
    while 2.0 * q ** (found + 1) / (1.0 + q) > 1.0 - confidence:
        found += 1
    return found
