"""Can any output of a noise take a likelihood ratio too far? Answered for all outputs at once, and never wrongly yes.

A question is a list of coefficients ``c(s)`` over the states: may ``sum over s of c(s) k(z | s)`` be positive for some
output ``z`` of the noise ``k``? 'No output takes ``Pr(E | z)`` above q' is the one with ``c(s) = (1 - q) Pr(s, E) - q
Pr(s, not E)``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, IntArray
from dphmm.events.sectors import Sectors, is_below
from dphmm.mechanisms.base import Mechanism
from dphmm.mechanisms.laplace import LaplaceMechanism
from dphmm.mechanisms.planar_laplace import PlanarLaplaceMechanism

_STEEP = 300.0
"""Where noise falls by more than the exponential of this between two states, a question is answered 'it may be'."""

_CENTRES = 32
"""How many places privacy losses are taken from where nothing more is known of a noise."""

_FAINT = 1e-300
"""Positive coefficients below this share of the greatest count as this share, and negative ones as nothing."""


@dataclass(frozen=True, eq=False)
class Questions:
    """Whether the odds of some masses against others pass a bound at some output: several questions at once.

    Parameters
    ----------
    log_odds
        ``(j,)``: the logarithms of the bounds.
    plus, minus
        ``(n, j)``: the parts above and below zero of ``with - exp(log_odds) without`` at each place, up to a factor.
    against
        ``(n, j)``: ``exp(log_odds) without``, up to the same factor.
    """

    log_odds: FloatArray
    plus: FloatArray
    minus: FloatArray
    against: FloatArray

    @cached_property
    def parts(self) -> FloatArray:
        """All three beside each other, ``(n, 3 j)``."""
        return np.concatenate([self.plus, self.minus, self.against], axis=1)

    @classmethod
    def of(cls, log_with: FloatArray, log_without: FloatArray, log_odds: FloatArray) -> Questions:
        """The questions about masses ``(n, j)`` that are given by their logarithms, minus infinity for none."""
        against = log_without + log_odds
        top = np.maximum(np.maximum(log_with.max(axis=0), against.max(axis=0)), -np.finfo(np.float64).max)
        first, second = np.exp(log_with - top), np.exp(against - top)
        with np.errstate(invalid="ignore"):
            share = -np.expm1(-np.abs(log_with - against))  # NaN where both are none
        plus = np.where(log_with > against, np.maximum(first * share, _FAINT), 0.0)
        minus = np.where(against > log_with, second * share, 0.0)
        return cls(log_odds, plus, np.where(minus < _FAINT, 0.0, minus), second)

    def reached(self, plus: FloatArray, minus: FloatArray, against: FloatArray) -> FloatArray:
        """The log odds ``(c, j)`` at some outputs, from the sums of the three parts there."""
        with np.errstate(divide="ignore", invalid="ignore"):
            odds = self.log_odds + np.log1p(np.maximum((plus - minus) / against, -1.0))
        return np.where(against > 0, odds, np.where(plus > 0, np.inf, -np.inf))


@dataclass(frozen=True, eq=False)
class Finding:
    """What was found of some questions.

    Parameters
    ----------
    certain
        Whether no output passes any bound. Never wrongly true.
    highest
        ``(j,)``: the highest log odds among the outputs that were looked at.
    """

    certain: bool
    highest: FloatArray


class Outputs(ABC):
    """All outputs of a noise of one shape about ``N`` places, at any budget.

    Parameters
    ----------
    values
        ``(N, d)``: the place that the noise of each state is about.
    """

    def __init__(self, values: npt.ArrayLike) -> None:
        places, which = np.unique(np.asarray(values), axis=0, return_inverse=True)
        self.places: FloatArray = places.astype(np.float64)
        """``(n, d)``: the different places."""
        self.which: IntArray = np.asarray(which, dtype=np.int64).ravel()

    def gathered(self, log_masses: FloatArray) -> FloatArray:
        """The logarithms ``(n, j)`` of the mass at each place, from those ``(N, j)`` of each state."""
        if len(self.places) == len(log_masses):
            found = np.empty_like(log_masses)
            found[self.which] = log_masses
            return found
        found = np.full((len(self.places), log_masses.shape[1]), -np.inf)
        np.logaddexp.at(found, self.which, log_masses)
        return found

    @abstractmethod
    def ask(self, questions: Questions, epsilon: float) -> Finding:
        """Whether some output at a budget passes some bound."""


class PolytopeOutputs(Outputs):
    """The outputs of noise ``exp(-epsilon ‖z - x‖_K)`` for a symmetric polytope of up to two dimensions.

    Parameters
    ----------
    values
        ``(N, d)``.
    normals
        ``(m, d)``: the body is ``|normals v| <= 1`` within its span.
    equations
        ``(e, d)``: orthonormal rows across the span.
    """

    def __init__(self, values: npt.ArrayLike, normals: FloatArray, equations: FloatArray) -> None:
        super().__init__(values)
        self._sectors = Sectors(self.places, normals, equations) if len(normals) else None

    def ask(self, questions: Questions, epsilon: float) -> Finding:
        """By branch and bound over all outputs: see `dphmm.events.sectors`."""
        if self._sectors is None:  # every place is its own output
            parts = questions.plus, questions.minus, questions.against
            return Finding(bool(is_below(*parts[:2]).all()), questions.reached(*parts).max(axis=0))
        if epsilon * self._sectors.reach > _STEEP:
            return Finding(False, np.full(len(questions.log_odds), -np.inf))
        certain, sums = self._sectors.ask(questions.parts, epsilon)
        return Finding(certain, questions.reached(*np.split(sums, 3, axis=1)).max(axis=0))


class BoundedOutputs(Outputs):
    """The outputs of any noise of which only privacy losses between places are known: sound, and wasteful.

    The density of an output is, at every place, that at another within a factor of the exponential of the loss between
    the two. This is used of one place after another.

    Parameters
    ----------
    values
        ``(N, d)``.
    mechanism
        The noise at any budget: losses scale with it.
    """

    def __init__(self, values: npt.ArrayLike, mechanism: Mechanism) -> None:
        super().__init__(values)
        place = self.places[np.linspace(0, len(self.places) - 1, min(_CENTRES, len(self.places))).astype(np.int64)]
        whole = np.asarray(values).dtype.kind in "iu"
        kind = np.int64 if whole else np.float64
        self._losses = np.stack([mechanism.privacy_loss(one.astype(kind), self.places.astype(kind)) for one in place])
        self._losses /= float(mechanism.epsilon)

    def ask(self, questions: Questions, epsilon: float) -> Finding:
        """From one of a few places to all others."""
        reach = epsilon * self._losses
        grown = np.exp(reach[reach.max(axis=1) <= _STEEP])
        certain = is_below(grown @ questions.plus, (1 / grown) @ questions.minus).any(axis=0).all()
        sums = (part.sum(axis=0, keepdims=True) for part in (questions.plus, questions.minus, questions.against))
        return Finding(bool(certain), questions.reached(*sums)[0])


class PartedOutputs(Outputs):
    """The outputs of a noise that is another one for each part of the states: sound, and wasteful.

    No output passes a bound by all states together if it passes it by none of the parts. (Far out, and where the noises
    have different supports, an output tells the part, so that little is wasted.)

    Parameters
    ----------
    parts
        The outputs of each part's noise about the places of its states, and the numbers of those states.
    at
        A function from a budget to ``(c, N)``: the log density, in every state, of some outputs to look at.
    """

    def __init__(self, parts: Sequence[tuple[Outputs, IntArray]], at: Callable[[float], FloatArray]) -> None:
        super().__init__(np.arange(sum(len(states) for _, states in parts))[:, np.newaxis])
        self._parts, self._at = parts, at

    def ask(self, questions: Questions, epsilon: float) -> Finding:
        """Part by part; the highest odds are those of all parts together at the outputs to look at."""
        certain = all(part.ask(_gathered(part, questions, states), epsilon).certain for part, states in self._parts)
        log_table = self._at(epsilon)
        top = log_table.max(axis=1, keepdims=True)
        weights = np.exp(log_table - np.where(np.isfinite(top), top, 0.0))
        sums = (weights @ part for part in (questions.plus, questions.minus, questions.against))
        return Finding(certain, questions.reached(*sums).max(axis=0))


def _gathered(part: Outputs, questions: Questions, states: IntArray) -> Questions:
    """The questions about the states of one part, by its places."""

    def summed(values: FloatArray) -> FloatArray:
        found = np.zeros((len(part.places), values.shape[1]))
        np.add.at(found, part.which, values[states])
        return found

    return Questions(questions.log_odds, summed(questions.plus), summed(questions.minus), summed(questions.against))


class TableOutputs(Outputs):
    """The outputs of finite tables ``k(z | s)``, one for each budget: all are looked at, so that nothing is wasted.

    Parameters
    ----------
    size
        The number of states ``N``.
    at
        A budget → ``(N, Z)``: the logarithm of the probability of each output in each state.
    """

    def __init__(self, size: int, at: Callable[[float], FloatArray]) -> None:
        super().__init__(np.arange(size)[:, np.newaxis])
        self._at = at
        self._made: dict[float, FloatArray] = {}

    def ask(self, questions: Questions, epsilon: float) -> Finding:
        """Output by output."""
        if epsilon not in self._made:
            logs = self._at(epsilon)
            top = logs.max(axis=0, keepdims=True)
            self._made[epsilon] = np.exp(logs - np.where(np.isfinite(top), top, 0.0)).T
        sums = [self._made[epsilon] @ part for part in (questions.plus, questions.minus, questions.against)]
        return Finding(bool(is_below(*sums[:2]).all()), questions.reached(*sums).max(axis=0))


def outputs_of(mechanism: Mechanism, values: npt.ArrayLike) -> Outputs:
    """The outputs of a mechanism of the package, at any budget.

    Parameters
    ----------
    mechanism
        The mechanism, of whose shape the noise is.
    values
        ``(N, d)``: the true value that each state is released as.
    """
    if isinstance(mechanism, LaplaceMechanism) and mechanism.dimension == 2:
        normals = np.array([[1.0, 1.0], [1.0, -1.0]]) / mechanism.sensitivity
        return PolytopeOutputs(values, normals, np.zeros((0, 2)))
    if isinstance(mechanism, LaplaceMechanism) and mechanism.dimension == 1:
        return PolytopeOutputs(values, np.array([[1 / mechanism.sensitivity]]), np.zeros((0, 1)))
    hull = getattr(mechanism, "hull", None)
    if hull is None or hull.dimension > 2 or isinstance(mechanism, PlanarLaplaceMechanism):
        return BoundedOutputs(values, mechanism)
    return PolytopeOutputs(values, hull.norm_form.normals, hull.norm_form.equations)
