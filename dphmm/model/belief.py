"""The public belief about where the person is: which states are possible, and how probable each is."""

from __future__ import annotations

from functools import cached_property
from math import log

import numpy as np

from dphmm.arguments import checked
from dphmm.arrays import BoolArray, FloatArray, as_floats, locked
from dphmm.errors import CoordinateError, InvalidInputError, StochasticError
from dphmm.model.away import Away, Beyond
from dphmm.model.model import MarkovModel
from dphmm.model.transition_operator import log_normalised, plain_masses
from dphmm.tables.values import shorten

_FORMAT = 1
"""The first number of `Belief.to_bytes`; bytes that begin with another one are refused."""
_HEADER_BYTES = 16
"""The format and the number of masses, in 8 bytes each: the masses after them stay aligned."""
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
        self._logs: FloatArray = locked(log_normalised(logs)[0])

    away: Away | None = None
    """The contexts that the masses are of, where the model knows of people outside; None where they are of states."""

    @classmethod
    def owning(cls, logs: FloatArray, away: Away | None = None) -> Belief:
        """The belief of log masses that sum to one, of states or of contexts; the array is taken over.

        Parameters
        ----------
        logs
            ``(N,)``, or ``(P,)`` over contexts: log masses that sum to one; they become read-only.
        away
            The contexts that they are of, where they are not of states.

        Returns
        -------
        Belief
            The belief.
        """
        belief = cls.__new__(cls)
        belief._logs, belief.away = locked(logs), away
        return belief

    @classmethod
    def first(cls, model: MarkovModel, slot: int | None = None, initial: FloatArray | None = None) -> Belief:
        """The belief before the first release, in the step that ends at ``slot``: a model's, or a distribution.

        Parameters
        ----------
        model
            The model.
        slot
            When the first release is; it matters where the model varies with time.
        initial
            ``(N,)``: a distribution in place of the model's.

        Returns
        -------
        Belief
            The belief.

        Raises
        ------
        ConfigurationError
            When the model varies with time and no slot is given.
        """
        return cls.owning(model.first_logs(slot, initial), model.away)

    @classmethod
    def of(cls, probabilities: FloatArray) -> Belief:
        """The belief with given probabilities, ``(N,)``; zero means impossible.

        Parameters
        ----------
        probabilities
            ``(N,)``: not negative, and not all zero.

        Returns
        -------
        Belief
            The belief.

        Raises
        ------
        StochasticError
            When all are zero, or one is negative or not finite.
        """
        given = as_floats(probabilities, "probabilities", StochasticError)
        if given.ndim != 1 or not given.any() or not ((given >= 0) & (given < np.inf)).all():
            raise StochasticError("a belief needs a support of at least one state, and a mass for every state")
        with np.errstate(divide="ignore"):
            return cls.owning(np.log(given))

    @property
    def chain_logs(self) -> FloatArray:
        """Log masses of the states of the model's chain: of states, or of contexts."""
        return self._logs

    @property
    def beyond(self) -> Beyond | None:
        """What is known of a person outside the region; None where the model knows of nobody there."""
        return None if self.away is None else self.away.beyond(self._logs)

    @cached_property
    def log_mass(self) -> FloatArray:
        """Natural logarithms of the probabilities, ``(N,)``; minus infinity exactly off the support."""
        return self._logs if self.away is None else locked(self.away.summed(self._logs))

    @cached_property
    def support(self) -> BoolArray:
        """The possible states, ``(N,)``."""
        return locked(self.log_mass > -np.inf)

    @cached_property
    def probabilities(self) -> FloatArray:
        """The probabilities ``(N,)``; possible states below about ``1e-304`` show as zero."""
        return locked(plain_masses(self.log_mass))

    def to_bytes(self) -> bytes:
        """Return the log masses, exact to the last bit, in 8 bytes for each state of the model's chain.

        Returns
        -------
        bytes
            Little-endian: the format number and the number of masses in 8 bytes each, then a double for each mass.
        """
        header = _FORMAT.to_bytes(8, "little") + len(self._logs).to_bytes(8, "little")
        return header + self._logs.astype("<f8").tobytes()

    @classmethod
    @checked
    def from_bytes(cls, data: bytes) -> Belief:
        """Return the belief that `to_bytes` wrote.

        Parameters
        ----------
        data
            What `to_bytes` wrote.

        Returns
        -------
        Belief
            The belief.

        Raises
        ------
        StochasticError
            When the bytes are of another format, or not a belief.
        """
        number, size = int.from_bytes(data[:8], "little"), int.from_bytes(data[8:_HEADER_BYTES], "little")
        if number != _FORMAT:
            raise StochasticError(f"belief must be of format {_FORMAT}, got {number}; make it again from its releases")
        if size == 0 or len(data) != _HEADER_BYTES + 8 * size:
            raise StochasticError(f"{len(data)} bytes are no belief over {size} states")
        logs = np.frombuffer(data, dtype="<f8", count=size, offset=_HEADER_BYTES).astype(np.float64)
        if not np.isnan(logs).any() and abs(float(np.exp(np.minimum(logs, 1.0)).sum()) - 1.0) <= _SUM:
            return cls.owning(logs)
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

        Returns
        -------
        Belief
            The belief then.

        Raises
        ------
        InvalidInputError
            When ``steps`` is negative.
        ConfigurationError
            When the model varies with time and no slot is given.
        StochasticError
            When the belief is not about the states of the model's chain.
        """
        if not isinstance(steps, int | np.integer) or not 0 <= steps < 2**63:
            raise InvalidInputError(f"steps is {shorten(steps)}; give a whole number: time does not go back")
        if len(self._logs) != model.chain_size:
            raise StochasticError(
                f"the belief is about {len(self._logs)} states and the model has {model.chain_size}; give "
                "the model that it was made with"
            )
        logs = model.operator(int(steps), since).forward(self._logs)
        return Belief.owning(logs if steps < 2 else log_normalised(logs)[0], model.away)

    def update(self, log_likelihood: FloatArray) -> Belief:
        """The belief after an observation (Equation 2).

        Parameters
        ----------
        log_likelihood
            ``(N,)``: the log density of what was observed in each state; minus infinity where it is impossible, which
            removes the state from the support.

        Returns
        -------
        Belief
            The belief after it.

        Raises
        ------
        StochasticError
            When no possible state could have given the observation.
        """
        logs = as_floats(log_likelihood, "log likelihoods", StochasticError)
        size = len(self._logs) if self.away is None else self.away.size
        if logs.shape != (size,) or not logs.max(initial=-np.inf) < np.inf:
            raise StochasticError(
                f"log likelihoods have shape {logs.shape}; give one below infinity for each of {size} states"
            )
        found = self._logs + (logs if self.away is None else self.away.spread(logs))
        top = float(found.max())
        if top == -np.inf:
            raise StochasticError("no possible state could have given this observation; model and release do not match")
        found -= top
        masses = plain_masses(found)
        total = float(masses.sum())
        found -= log(total)
        belief = Belief.owning(found, self.away)
        if self.away is None:  # they are at hand, and asked for next
            vars(belief)["probabilities"] = locked(masses / total)
        return belief

    def location_set(self, delta: float) -> BoolArray:
        """The δ-location set: the fewest most probable states whose mass is at least ``1 - delta`` (Theorem 4.1).

        Parameters
        ----------
        delta
            From 0 (the whole support) to below 1. Of equally probable states the lower number comes first.

        Returns
        -------
        BoolArray
            ``(N,)``: which states belong to it.
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
        """The expectation of points ``(N, d)`` under the belief, ``(d,)``.

        Parameters
        ----------
        points
            ``(N, d)``: where the states are.

        Returns
        -------
        FloatArray
            ``(d,)``.
        """
        places = as_floats(points, "points", CoordinateError)
        if places.ndim != 2 or len(places) != len(self.support):
            raise CoordinateError(
                f"points have shape {places.shape}; give a row for each of {len(self.support)} states"
            )
        return np.asarray(self.probabilities @ places)
