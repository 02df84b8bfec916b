"""The noise of a step that is not the same for all possible states: each part of them has a mechanism of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.mechanisms.base import Mechanism
from dphmm.mechanisms.table import TableMechanism

_ROUNDING = 4 * float(np.finfo(np.float64).eps)
"""How wide a flat is on which real-valued noise stays, relative to the largest coordinate: as far as rounding goes."""


@dataclass(frozen=True, eq=False)
class ComponentNoise:
    """One mechanism for each part of the possible states: connected components, those alike together, and open states.

    Both ends of every edge are in one part, so that an edge's two states are told apart by at most the part's epsilon.
    Between parts nothing is promised: which one a state is in, a release may tell.

    Parameters
    ----------
    part_of
        ``(N,)``: the part of each possible state, -1 for others.
    mechanisms
        The mechanism of each part; that of open states adds nothing.
    components
        ``(N,)``: the component of each possible state, counted from 0, -1 for others.
    mean_errors
        With tables of least error: the squared error that the posterior mean of K-norm noise would have in each part,
        with the same budget, where the part is known; see `dphmm.release.gain`. None with other noise.
    """

    part_of: IntArray
    mechanisms: tuple[Mechanism, ...]
    components: IntArray
    mean_errors: tuple[float, ...] | None = None

    def of(self, state: int) -> Mechanism:
        """The mechanism that a possible state is released by."""
        return self.mechanisms[int(self.part_of[state])]

    @cached_property
    def members(self) -> tuple[IntArray, ...]:
        """The states of each part."""
        return tuple(np.flatnonzero(self.part_of == part) for part in range(len(self.mechanisms)))

    def mean_squared_error(self, weights: FloatArray) -> float:
        """The mean squared error of a release, the possible states in proportion to probabilities ``(N,)``."""
        return float(self._shares(weights) @ np.array([mechanism.squared_error for mechanism in self.mechanisms]))

    def compared(self, weights: FloatArray) -> Compared:
        """What tables of least error are beside others, where the possible states are as probable as ``(N,)``."""
        if self.mean_errors is None:
            return Compared()
        shares, bounds = self._shares(weights), [getattr(noise, "optimum", 0.0) for noise in self.mechanisms]
        least = None if None in bounds else sqrt(float(shares @ np.array(bounds)))
        mean, table = sqrt(float(shares @ np.array(self.mean_errors))), sqrt(self.mean_squared_error(weights))
        return Compared(least, mean, 1.0 - table / mean if mean > 0 else 0.0)

    def _shares(self, weights: FloatArray) -> FloatArray:
        """How probable each part is among the possible states; all of these alike where doubles hold none of it."""
        shares = np.bincount(self.part_of + 1, weights, len(self.mechanisms) + 1)[1:]
        if not shares.sum() > 0:
            shares = np.bincount(self.part_of + 1, minlength=len(self.mechanisms) + 1)[1:]
        return np.asarray(shares / shares.sum())

    def log_density(self, released: npt.NDArray[Any], values: npt.NDArray[Any], exact: bool) -> FloatArray:
        """``log p(z | s)`` of a release for every possible state, ``(N,)``, by its own normaliser; -inf for others.

        Parameters
        ----------
        released, values
            ``z``, ``(d,)``, and the true values, ``(N, d)``.
        exact
            Whether the densities are probabilities, as on a lattice. Otherwise those of parts whose noise stays on a
            point or a line count as spread over as little beside it as rounding does, so that they can be compared
            with the densities of the others: they are larger by that much, and nothing is ever ruled out by rounding.
        """
        ranks = [_rank(mechanism) for mechanism in self.mechanisms]
        sizes = [len(states) for states in self.members]
        most = int(np.argmax(sizes))
        if 2 * sizes[most] > len(values) and not isinstance(self.mechanisms[most], TableMechanism):
            found = self.mechanisms[most].log_density(released, values)  # quicker than for nearly all of them
            if sum(sizes) < len(values):
                found[self.part_of < 0] = -np.inf
        else:
            found, most = np.full(len(values), -np.inf), -1
        for part, (states, mechanism) in enumerate(zip(self.members, self.mechanisms, strict=True)):
            if part != most and len(states):
                found[states] = mechanism.log_density(released, values[states])
            if not exact and ranks[part] < max(ranks):
                width = _ROUNDING * max(float(np.abs(released).max()), float(np.abs(values).max()), 1e-300)
                found[states] -= (max(ranks) - ranks[part]) * np.log(width)
        return found

    def by_component(self, probabilities: FloatArray) -> FloatArray:
        """The sum over each component of probabilities ``(N,)`` of possible states."""
        return np.asarray(np.bincount(self.components + 1, probabilities)[1:], dtype=np.float64)


def parts_of(noise: Mechanism | ComponentNoise, constraint: BoolArray) -> Iterator[tuple[Mechanism, BoolArray]]:
    """Each mechanism of a step's noise, and which possible states ``(N,)`` are released by it."""
    if not isinstance(noise, ComponentNoise):
        yield noise, constraint
        return
    for part, mechanism in enumerate(noise.mechanisms):
        yield mechanism, noise.part_of == part


@dataclass(frozen=True)
class Compared:
    """What the tables of least error of a step are beside others; all None with other noise.

    Parameters
    ----------
    least_error
        What no table's expected error is below, as far as the program proves; None where some component has another.
    mean_error
        The expected error of the posterior mean of K-norm noise with the same budget, each component known.
    gain
        By what share the tables' expected error is less than that.
    """

    least_error: float | None = None
    mean_error: float | None = None
    gain: float | None = None


@dataclass(frozen=True)
class Hidden:
    """What a release lets everybody see of the component that it came from: of the likeliest one, given everything.

    Parameters
    ----------
    components
        How many components with noise of their own the possible states fall into.
    size
        How many possible states the likeliest has.
    certainty
        How probable it is, given all releases so far.
    error
        The root mean square distance of its releases from what they were drawn around.
    open
        Whether it is an open state.
    """

    components: int
    size: int
    certainty: float
    error: float
    open: bool


def _rank(mechanism: Mechanism) -> int:
    """The dimension of what noise is spread over."""
    hull = getattr(mechanism, "hull", None)
    return mechanism.dimension if hull is None else int(hull.dimension)
