"""The public belief about where the person is: which states are possible, and how probable each is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dphmm.arrays import BoolArray, FloatArray, IntArray, locked
from dphmm.errors import InvalidInputError, StochasticError
from dphmm.markov.model import MarkovModel

_LAYER = 600.0
"""States are moved in layers of probabilities that differ by at most ``exp(600)``, each scaled to one: no underflow."""
_LONG_GAP = 8
"""From this many steps on, what prepares a belief for many cheap steps pays."""
_FEW_TRANSITIONS = 500_000
"""Up to this many transitions, sums of exponentials over all of them cost less than a pass for each layer."""
_ROUNDING = 8 * np.finfo(np.float64).eps
"""What a long stride may change a probability by, relatively, that does not change any more."""
_SMALLEST = 1e-290
"""Sums below this within a layer have lost digits (transition probabilities near zero) and are done over in logs."""


@dataclass(frozen=True)
class Belief:
    """A distribution over states that never forgets a possible one. It holds copies of the arrays, read-only.

    Parameters
    ----------
    support
        ``(N,)``: the states of positive probability, decided by structure, not by what a float can hold.
    log_mass
        ``(N,)``: natural logarithms of the probabilities, minus infinity exactly off the support.
    """

    support: BoolArray
    log_mass: FloatArray

    def __post_init__(self) -> None:
        self._hold(np.array(self.support, dtype=np.bool_), np.array(self.log_mass, dtype=np.float64))

    def _hold(self, support: BoolArray, log_mass: FloatArray) -> None:
        if support.shape != log_mass.shape or not support.any():
            raise StochasticError("a belief needs a support of at least one state, and a mass for every state")
        if not np.array_equal(support, log_mass > -np.inf):
            raise StochasticError("a belief's masses must be positive exactly on its support")
        vars(self).update(support=locked(support), log_mass=locked(log_mass))

    @classmethod
    def owning(cls, support: BoolArray, log_mass: FloatArray) -> Belief:
        """A belief that takes the arrays over, read-only from now on, where `Belief` copies them."""
        belief = cls.__new__(cls)
        belief._hold(support, log_mass)
        return belief

    @classmethod
    def of(cls, probabilities: FloatArray) -> Belief:
        """The belief with given probabilities, ``(N,)``; zero means impossible."""
        with np.errstate(divide="ignore"):
            return cls.owning(probabilities > 0, np.log(probabilities))

    @property
    def probabilities(self) -> FloatArray:
        """The probabilities ``(N,)``; possible states below about ``1e-308`` show as zero."""
        return np.exp(self.log_mass)

    def to_bytes(self) -> bytes:
        """The support, eight states a byte, and the log masses: what `from_bytes` reads back exactly."""
        size = len(self.support).to_bytes(8, "little")
        return size + np.packbits(self.support).tobytes() + self.log_mass.astype("<f8").tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> Belief:
        """The belief that `to_bytes` wrote, to the last bit.

        Raises
        ------
        StochasticError
            When the bytes are no belief.
        """
        size = int.from_bytes(data[:8], "little")
        if size == 0 or len(data) != 8 + (size + 7) // 8 + 8 * size:
            raise StochasticError(f"{len(data)} bytes are no belief over {size} states")
        start = len(data) - 8 * size
        support = np.unpackbits(np.frombuffer(data[8:start], dtype=np.uint8), count=size).astype(np.bool_)
        return cls.owning(support, np.frombuffer(data[start:], dtype="<f8").astype(np.float64))

    def predict(self, model: MarkovModel, steps: int = 1) -> Belief:
        """The belief ``steps`` time steps later: ``p M``, as often.

        Raises
        ------
        InvalidInputError
            When ``steps`` is negative.
        """
        if steps < 0:
            raise InvalidInputError(f"steps is {steps}; time does not go back")
        belief = self
        while steps > 0:
            passed, belief = belief._glide(model, steps) if steps >= _LONG_GAP else (0, belief)
            if passed < steps:
                belief = belief._step(model)
                passed += 1
            steps -= passed
        return belief

    def _glide(self, model: MarkovModel, steps: int) -> tuple[int, Belief]:
        """As many of the steps as plain sums of probabilities can take, and the belief after them.

        No mass passes from one connected component of the model to another, so each is scaled to one on its own, and
        an island that releases have all but ruled out holds nothing up. Plain sums do while the support stays what it
        is and no possible state becomes faint within its component. What a stride leaves as it is stays so for all
        further strides: a gap of months costs no more than the way there.
        """
        if not np.array_equal(self._support_ahead(model), self.support):
            return 0, self
        islands, backward = model.components, model.columns.T
        weights = np.full(int(islands.max()) + 1, -np.inf)
        np.logaddexp.at(weights, islands[self.support], self.log_mass[self.support])
        now, passed = np.zeros(len(islands)), 0
        now[self.support] = np.exp(self.log_mass[self.support] - weights[islands[self.support]])
        while passed < steps:
            stride = max((k for k in model.strides if k <= steps - passed), default=1)
            ahead = np.asarray(backward @ now if stride == 1 else now @ model.dense_power(stride))
            if ahead[self.support].min() < _SMALLEST:
                break
            totals = np.bincount(islands, ahead)
            ahead[self.support] /= totals[islands[self.support]]
            passed += stride
            at_rest = np.array_equal(ahead, now) if stride == 1 else np.allclose(ahead, now, rtol=_ROUNDING, atol=0.0)
            if at_rest:
                passed = steps - (steps - passed) % stride
            now = ahead
        if not passed:
            return 0, self
        log_mass = np.full(len(islands), -np.inf)
        log_mass[self.support] = np.log(now[self.support]) + weights[islands[self.support]]
        return passed, Belief.owning(self.support, log_mass - _log_sum(log_mass))

    def _step(self, model: MarkovModel) -> Belief:
        support = self._support_ahead(model)
        highest = float(self.log_mass.max())
        lowest = float(self.log_mass[self.support].min())
        if lowest < highest - _LAYER and model.transition.nnz <= _FEW_TRANSITIONS:
            log_mass = self._mass_by_logs(model, np.flatnonzero(model.entered))
        else:
            log_mass = self._mass_by_layers(model, support, highest)
        log_mass[~support] = -np.inf
        return Belief.owning(support, log_mass - _log_sum(log_mass))

    def _mass_by_layers(self, model: MarkovModel, support: BoolArray, highest: float) -> FloatArray:
        """The log mass of all states by plain sums, one layer of probabilities that a float can hold at a time."""
        log_mass = np.full(len(self.log_mass), -np.inf)
        with np.errstate(invalid="ignore"):
            depth = np.floor((highest - self.log_mass) / _LAYER)
        blurred = np.zeros(len(self.log_mass), dtype=np.bool_)
        for layer in np.unique(depth[self.support]).tolist():
            rows = np.flatnonzero(depth == layer)
            top = highest - layer * _LAYER
            every = len(rows) == len(depth)
            ahead = np.exp(self.log_mass[rows] - top) @ (model.transition if every else model.transition[rows])
            touched = np.flatnonzero(ahead)
            blurred[touched[ahead[touched] < _SMALLEST]] = True
            log_mass[touched] = np.logaddexp(log_mass[touched], np.log(ahead[touched]) + top)
        lost = np.flatnonzero(support & (blurred | (log_mass == -np.inf)))
        if len(lost):
            log_mass[lost] = self._mass_by_logs(model, lost)[lost]
        return log_mass

    def _support_ahead(self, model: MarkovModel) -> BoolArray:
        if self.support.all():
            return model.entered
        return np.asarray(self.support @ model.structure) > 0

    def _mass_by_logs(self, model: MarkovModel, states: IntArray) -> FloatArray:
        """The log mass of some states that can be entered, by a sum of exponentials in each one's column of the matrix.

        ``(N,)``, minus infinity for the other states.
        """
        columns, logs = model.columns, model.log_columns
        lengths = np.diff(columns.indptr)[states]
        starts = np.cumsum(lengths) - lengths
        index = np.arange(lengths.sum()) + np.repeat(columns.indptr[states] - starts, lengths)
        terms = self.log_mass[columns.indices[index]] + logs[index]
        highest = np.maximum.reduceat(terms, starts)
        base = np.where(highest > -np.inf, highest, 0.0)
        with np.errstate(divide="ignore"):
            sums = np.log(np.add.reduceat(np.exp(terms - np.repeat(base, lengths)), starts))
        log_mass = np.full(len(self.log_mass), -np.inf)
        log_mass[states] = base + sums
        return log_mass

    def update(self, log_likelihood: FloatArray) -> Belief:
        """The belief after an observation (Equation 2).

        Parameters
        ----------
        log_likelihood
            ``(N,)``: the log density of what was observed in each state; minus infinity where it is impossible, which
            removes the state from the support.

        Raises
        ------
        StochasticError
            When no possible state could have given the observation.
        """
        log_mass = self.log_mass + log_likelihood
        support = self.support & (log_likelihood > -np.inf)
        if not support.any():
            raise StochasticError("no possible state could have given this observation; model and release do not match")
        log_mass[~support] = -np.inf
        return Belief.owning(support, log_mass - _log_sum(log_mass))

    def location_set(self, delta: float) -> BoolArray:
        """The δ-location set: the fewest most probable states whose mass is at least ``1 - delta`` (Theorem 4.1).

        Parameters
        ----------
        delta
            From 0 (the whole support) to below 1. Of equally probable states the lower number comes first.
        """
        if not 0 <= delta < 1:
            raise InvalidInputError(f"delta is {delta}; give a number from 0 to below 1")
        if delta == 0:
            return self.support
        order = np.argsort(-self.log_mass, kind="stable")
        covered = np.cumsum(np.exp(self.log_mass[order]))
        needed = int(np.searchsorted(covered, (1 - delta) * (1 - 1e-12))) + 1
        chosen = np.zeros(len(order), dtype=np.bool_)
        chosen[order[: min(needed, int(self.support.sum()))]] = True
        return chosen

    def mean(self, points: FloatArray) -> FloatArray:
        """The expectation of points ``(N, d)`` under the belief, ``(d,)``."""
        return np.asarray(self.probabilities @ points)


def _log_sum(log_values: FloatArray) -> float:
    highest = float(log_values.max())
    return highest + float(np.log(np.exp(log_values - highest).sum()))
