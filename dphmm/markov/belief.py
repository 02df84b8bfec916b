"""The public belief about where the person is: which states are possible, and how probable each is."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from dphmm.arguments import checked
from dphmm.arrays import BoolArray, FloatArray, as_floats, locked
from dphmm.errors import CoordinateError, InvalidInputError, StochasticError
from dphmm.markov.contexts import Contexts
from dphmm.markov.masses import Masses, masses_of_logs
from dphmm.markov.model import MarkovModel
from dphmm.tables.values import shorten

_LIMB = 1000.0
"""A probability is written as a float and how often it was multiplied by two to this power."""
_MOST_LIMBS = 2.0**31 - 1.0
_SUM = 1e-6
"""How far the probabilities of a belief that is read back may sum to more or less than one."""


class Belief:
    """A distribution over states that never forgets a possible one. Its arrays are its own, read-only.

    Parameters
    ----------
    support
        ``(N,)``: the states of positive probability, decided by structure, not by what a float can hold.
    log_mass
        ``(N,)``: natural logarithms of the probabilities, minus infinity exactly off the support. They are scaled so
        that the probabilities sum to one.

    Raises
    ------
    StochasticError
        When no state is possible, or support and masses do not fit.
    """

    def __init__(self, support: BoolArray, log_mass: FloatArray) -> None:
        logs, possible = (
            as_floats(log_mass, "log masses", StochasticError),
            as_floats(support, "a support", StochasticError),
        )
        if logs.ndim != 1 or logs.shape != possible.shape or not possible.any():
            raise StochasticError("a belief needs a support of at least one state, and a mass for every state")
        if not np.array_equal(possible, logs > -np.inf) or not (logs < np.inf).all():
            raise StochasticError("a belief's masses must be positive exactly on its support, and finite")
        self.masses = masses_of_logs(logs)
        """Mantissas and exponents of the probabilities."""

    contexts: Contexts | None = None
    """What the masses are of, where a model of second order tells more apart than states."""

    @classmethod
    def owning(cls, masses: Masses, contexts: Contexts | None = None) -> Belief:
        """The belief of masses that sum to one: of states, or of contexts."""
        belief = cls.__new__(cls)
        belief.masses = masses
        belief.contexts = contexts
        return belief

    @classmethod
    def first(cls, model: MarkovModel, slot: int | None = None, initial: FloatArray | None = None) -> Belief:
        """The belief before the first release, in the step that ends at ``slot``: a model's, or a distribution.

        Raises
        ------
        ConfigurationError
            When the model varies with time and no slot is given.
        """
        return cls.owning(model.first_masses(slot, initial), model.contexts)

    @classmethod
    def of(cls, probabilities: FloatArray) -> Belief:
        """The belief with given probabilities, ``(N,)``; zero means impossible.

        Raises
        ------
        StochasticError
            When all are zero, or one is negative or not finite.
        """
        given = as_floats(probabilities, "probabilities", StochasticError)
        if given.ndim != 1 or not given.any() or not ((given >= 0) & (given < np.inf)).all():
            raise StochasticError("a belief needs a support of at least one state, and a mass for every state")
        return cls.owning(Masses.of(given))

    @cached_property
    def of_states(self) -> Masses:
        """The masses of the states, summed over their contexts."""
        return self.masses if self.contexts is None else self.contexts.gathered(self.masses)

    @cached_property
    def support(self) -> BoolArray:
        """The possible states, ``(N,)``."""
        return locked(self.of_states.support)

    @property
    def log_mass(self) -> FloatArray:
        """Natural logarithms of the probabilities, ``(N,)``; minus infinity exactly off the support."""
        return locked(self.of_states.logs)

    @property
    def probabilities(self) -> FloatArray:
        """The probabilities ``(N,)``; possible states below about ``1e-308`` show as zero."""
        return self.of_states.plain()

    def to_bytes(self) -> bytes:
        """The belief in 12 bytes a state (or context), whatever it holds: a float and how many limbs it is smaller by.

        What the contexts are it does not say: `predict` by the model does.
        """
        if self.masses.lies_within(_LIMB - 2.0):  # as most do, with no limb anywhere
            limbs, values = np.zeros(len(self.masses.mantissa)), self.masses.plain()
        else:
            limbs = np.where(self.masses.support, -np.ceil((self.masses.exponent - 1.0) / _LIMB), 0.0)
            limbs = np.minimum(limbs, _MOST_LIMBS)
            values = self.masses.plain(-_LIMB * limbs)
        return len(limbs).to_bytes(8, "little") + values.astype("<f8").tobytes() + limbs.astype("<i4").tobytes()

    @property
    def is_written_whole(self) -> bool:
        """Whether `from_bytes` makes the same masses again of what `to_bytes` writes, to the last bit."""
        return self.masses.lies_within(_LIMB * _MOST_LIMBS)

    @classmethod
    @checked
    def from_bytes(cls, data: bytes) -> Belief:
        """The belief that `to_bytes` wrote, to the last bit (of probabilities from ``exp(-10**12)`` up).

        Raises
        ------
        StochasticError
            When the bytes are no belief.
        """
        size = int.from_bytes(data[:8], "little")
        if size == 0 or len(data) != 8 + 12 * size:
            raise StochasticError(f"{len(data)} bytes are no belief over {size} states")
        values = np.frombuffer(data, dtype="<f8", count=size, offset=8)
        limbs = np.frombuffer(data, dtype="<i4", offset=8 + 8 * size)
        if ((values >= 0) & (values < 2)).all() and (limbs >= 0).all():
            masses = Masses.of(values, -_LIMB * limbs)
            if abs(float(masses.plain().sum()) - 1.0) <= _SUM:
                return cls.owning(masses)
        raise StochasticError(f"{len(data)} bytes hold no probabilities of {size} states")

    def predict(self, model: MarkovModel, steps: int = 1, since: int | None = None) -> Belief:
        """The belief ``steps`` time steps later: ``p M``, as often.

        Parameters
        ----------
        model
            The model.
        steps
            How many steps; not negative.
        since
            The slot that this belief is about; it matters where the model varies with time.

        Raises
        ------
        InvalidInputError
            When ``steps`` is negative.
        ConfigurationError
            When the model varies with time and no slot is given.
        StochasticError
            When the belief is not about the model's states or contexts.
        """
        if not isinstance(steps, int | np.integer) or not 0 <= steps < 2**63:
            raise InvalidInputError(f"steps is {shorten(steps)}; give a whole number: time does not go back")
        if len(self.masses.mantissa) != model.chain_size:
            raise StochasticError(
                f"the belief is about {len(self.masses.mantissa)} states and the model has {model.chain_size}; give "
                "the model that it was made with"
            )
        masses = model.carry(self.masses, steps, since)
        return Belief.owning(masses if steps < 2 else masses.scaled(), model.contexts)

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
        logs = as_floats(log_likelihood, "log likelihoods", StochasticError)
        size = len(self.masses.mantissa) if self.contexts is None else self.contexts.size
        if logs.shape != (size,) or not logs.max(initial=-np.inf) < np.inf:
            raise StochasticError(
                f"log likelihoods have shape {logs.shape}; give one below infinity for each of {size} states"
            )
        masses, log_sum = self.masses.times_exp(logs if self.contexts is None else self.contexts.spread(logs))
        if log_sum == -np.inf:
            raise StochasticError("no possible state could have given this observation; model and release do not match")
        return Belief.owning(masses, self.contexts)

    def location_set(self, delta: float) -> BoolArray:
        """The δ-location set: the fewest most probable states whose mass is at least ``1 - delta`` (Theorem 4.1).

        Parameters
        ----------
        delta
            From 0 (the whole support) to below 1. Of equally probable states the lower number comes first.
        """
        if not isinstance(delta, float | int | np.floating) or not 0 <= delta < 1:
            raise InvalidInputError(f"delta is {delta}; give a number from 0 to below 1")
        if delta == 0:
            return self.support
        probabilities = self.probabilities
        # Those below this have less than half of delta together, so that what is wanted lies among the others.
        candidates = np.flatnonzero(probabilities >= delta / (2 * len(probabilities)))
        order = candidates[np.argsort(-probabilities[candidates], kind="stable")]
        needed = int(np.searchsorted(np.cumsum(probabilities[order]), (1 - delta) * (1 - 1e-12))) + 1
        chosen = np.zeros(len(probabilities), dtype=np.bool_)
        chosen[order[:needed]] = True
        return chosen

    def mean(self, points: FloatArray) -> FloatArray:
        """The expectation of points ``(N, d)`` under the belief, ``(d,)``."""
        places = as_floats(points, "points", CoordinateError)
        if places.ndim != 2 or len(places) != len(self.support):
            raise CoordinateError(
                f"points have shape {places.shape}; give a row for each of {len(self.support)} states"
            )
        return np.asarray(self.probabilities @ places)
