"""The public belief about the user's location: possible states and their probabilities."""

from __future__ import annotations

from functools import cached_property
from math import log

import numpy as np

from dphmm.arrays import BoolArray, FloatArray, as_floats, make_read_only
from dphmm.errors import CoordinateError, InvalidInputError, StochasticError
from dphmm.model.model import MarkovModel
from dphmm.model.outside_states import OutsideBelief, OutsideStates
from dphmm.model.point_estimate import Inference
from dphmm.model.transition_operator import exponentiate_logs, normalize_logs
from dphmm.tables.values import shorten
from dphmm.tolerances import NORMALISATION_TOLERANCE
from dphmm.validation import Delta, check_arguments

# The first number of `Belief.to_bytes`; bytes that begin with another one are refused.
_FORMAT = 1
# The format and the number of masses, in 8 bytes each: the masses after them stay aligned.
_HEADER_BYTES = 16
# Largest deviation from one of the sum of the probabilities that are read back.
_SUM_TOLERANCE = 1e-6


class Belief:
    """A distribution over states, stored as log probabilities.

    Therefore no possible state underflows to zero. The arrays are read-only.

    Parameters
    ----------
    support
        ``(N,)``: the states of positive probability. Structure decides, not the range of floats.
    log_mass
        ``(N,)``: natural logarithms of the probabilities, minus infinity exactly off the support. They are scaled so
        that the probabilities sum to one.

    Raises
    ------
    StochasticError
        If no state is possible, or the support does not match the masses.
    """

    def __init__(self, support: BoolArray, log_mass: FloatArray) -> None:
        logs = as_floats(log_mass, "log masses", StochasticError)
        possible = as_floats(support, "a support", StochasticError)
        if logs.ndim != 1 or logs.shape != possible.shape or not possible.any():
            raise StochasticError("support must contain at least one state, and log_mass one entry for every state")
        if not np.array_equal(possible, logs > -np.inf) or not (logs < np.inf).all():
            raise StochasticError("log_mass must be finite on the support and minus infinity off it")
        self._logs: FloatArray = make_read_only(normalize_logs(logs)[0])

    # The contexts of the masses. `None` if the masses belong to states.
    outside: OutsideStates | None = None

    @classmethod
    def from_normalized_logs(cls, logs: FloatArray, outside: OutsideStates | None = None) -> Belief:
        """Return a belief from normalised log masses, without copying them.

        Parameters
        ----------
        logs
            ``(N,)`` over states, or ``(P,)`` over contexts: log masses that sum to one. The array becomes read-only.
        outside
            The contexts of the masses. Defaults to None: the masses belong to states.

        Returns
        -------
        Belief
            The belief.
        """
        # Skip the constructor: its checks would cost as much as a step, and the masses are normalised already.
        belief = cls.__new__(cls)
        belief._logs = make_read_only(logs)
        belief.outside = outside
        return belief

    @classmethod
    def initial(cls, model: MarkovModel, slot: int | None = None, initial: FloatArray | None = None) -> Belief:
        """Return the belief before the first release.

        Parameters
        ----------
        model
            The model.
        slot
            The slot of the first release. Required by models that vary with time.
        initial
            ``(N,)``: the initial distribution. Defaults to the model's.

        Returns
        -------
        Belief
            The belief.

        Raises
        ------
        ConfigurationError
            If the model varies with time and ``slot`` is None.
        """
        return cls.from_normalized_logs(model.initial_logs(slot, initial), model.outside)

    @classmethod
    def from_probabilities(cls, probabilities: FloatArray) -> Belief:
        """Return the belief with the specified probabilities.

        Parameters
        ----------
        probabilities
            ``(N,)``: non-negative, not all zero. Zero means impossible. Another sum than one is normalised.

        Returns
        -------
        Belief
            The belief.

        Raises
        ------
        StochasticError
            If all are zero, or one is negative or not finite.
        """
        values = as_floats(probabilities, "probabilities", StochasticError)
        if values.ndim != 1 or not values.any() or not ((values >= 0) & (values < np.inf)).all():
            raise StochasticError("probabilities must be finite, non-negative and not all zero, one for every state")
        with np.errstate(divide="ignore", over="ignore"):
            logs = np.log(values)
            is_normalized = abs(values.sum() - 1.0) <= NORMALISATION_TOLERANCE
        return cls.from_normalized_logs(logs if is_normalized else normalize_logs(logs)[0])

    @property
    def chain_logs(self) -> FloatArray:
        """The log masses of the chain's states, which are states or contexts."""
        return self._logs

    @property
    def outside_belief(self) -> OutsideBelief | None:
        """The belief about a user outside the region. `None` if the model has no outside states."""
        return None if self.outside is None else self.outside.build_outside_belief(self._logs)

    @cached_property
    def log_mass(self) -> FloatArray:
        """The log probabilities, ``(N,)``. Minus infinity exactly off the support."""
        return self._logs if self.outside is None else make_read_only(self.outside.sum_contexts(self._logs))

    @cached_property
    def support(self) -> BoolArray:
        """The mask of the possible states, ``(N,)``."""
        return make_read_only(self.log_mass > -np.inf)

    @cached_property
    def probabilities(self) -> FloatArray:
        """The probabilities, ``(N,)``. Possible states below about ``1e-304`` appear as zero."""
        return make_read_only(exponentiate_logs(self.log_mass))

    def to_bytes(self) -> bytes:
        """Return the exact log masses as bytes, 8 for each state of the chain.

        Returns
        -------
        bytes
            Little-endian: the format number and the number of masses in 8 bytes each, then a double for each mass.
        """
        header = _FORMAT.to_bytes(8, "little") + len(self._logs).to_bytes(8, "little")
        return header + self._logs.astype("<f8").tobytes()

    @classmethod
    @check_arguments
    def from_bytes(cls, data: bytes) -> Belief:
        """Return the belief encoded by `to_bytes`.

        Parameters
        ----------
        data
            The bytes that `to_bytes` returned.

        Returns
        -------
        Belief
            The belief.

        Raises
        ------
        StochasticError
            If the bytes have another format, or do not encode a belief.
        """
        version = int.from_bytes(data[:8], "little")
        size = int.from_bytes(data[8:_HEADER_BYTES], "little")
        if version != _FORMAT:
            raise StochasticError(
                f"belief must have format {_FORMAT}, got {version}: compute it again from its releases"
            )
        if size == 0 or len(data) != _HEADER_BYTES + 8 * size:
            expected = _HEADER_BYTES + 8 * size
            raise StochasticError(f"invalid belief: expected {expected} bytes for {size} states, got {len(data)}")
        logs = np.frombuffer(data, dtype="<f8", count=size, offset=_HEADER_BYTES).astype(np.float64)
        if not np.isnan(logs).any() and abs(float(np.exp(np.minimum(logs, 1.0)).sum()) - 1.0) <= _SUM_TOLERANCE:
            return cls.from_normalized_logs(logs)
        raise StochasticError(f"invalid belief: the masses of its {size} states do not sum to one")

    def predict(self, model: MarkovModel, steps: int = 1, since: int | None = None) -> Belief:
        """Propagate the belief ``steps`` time steps forward: ``p @ M**steps``.

        Parameters
        ----------
        model
            The model.
        steps
            The number of steps, non-negative.
        since
            The slot of this belief. Required by models that vary with time.

        Returns
        -------
        Belief
            The predicted belief.

        Raises
        ------
        InvalidInputError
            If ``steps`` is negative or not an integer.
        ConfigurationError
            If the model varies with time and ``since`` is None.
        StochasticError
            If the belief and the model's chain differ in the number of states.
        """
        if not isinstance(steps, int | np.integer) or not 0 <= steps < 2**63:
            raise InvalidInputError(f"steps must be a non-negative integer, got {shorten(steps)}")
        if len(self._logs) != model.chain_size:
            raise StochasticError(
                f"the belief has {len(self._logs)} states and the model has {model.chain_size}: use the model that "
                "the belief was created with"
            )
        logs = model.operator(int(steps), since).propagate_forward(self._logs)
        # Rows sum to one within rounding: normalise after several steps only, which would drift otherwise.
        return Belief.from_normalized_logs(logs if steps < 2 else normalize_logs(logs)[0], model.outside)

    def update(self, log_likelihood: FloatArray) -> Belief:
        """Condition the belief on an observation by Bayes' rule (Equation 2).

        Parameters
        ----------
        log_likelihood
            ``(N,)``: the log density of the observation in each state. Minus infinity removes a state from the support.

        Returns
        -------
        Belief
            The updated belief.

        Raises
        ------
        StochasticError
            If the observation is impossible in every possible state.
        """
        logs = as_floats(log_likelihood, "log likelihoods", StochasticError)
        size = len(self._logs) if self.outside is None else self.outside.size
        if logs.shape != (size,):
            raise StochasticError(f"log_likelihood must have shape ({size},), got {logs.shape}")
        # Bayes' rule (Equation 2) in logs: -inf stays -inf, so no update makes an impossible state possible.
        with np.errstate(invalid="ignore"):  # infinity times no mass is NaN
            joint = self._logs + (logs if self.outside is None else self.outside.expand(logs))
        top = float(joint.max())
        if not top < np.inf:
            raise StochasticError(f"log_likelihood must have entries below infinity, got {float(logs.max())}")
        if top == -np.inf:
            raise StochasticError(
                "the observation is impossible in every possible state: model and release do not match"
            )
        joint -= top
        masses = exponentiate_logs(joint)
        total = float(masses.sum())
        joint -= log(total)
        belief = Belief.from_normalized_logs(joint, self.outside)
        # Cache: the next step reads the probabilities.
        if self.outside is None:
            masses /= total  # in place: large arrays take long to allocate
            vars(belief)["probabilities"] = make_read_only(masses)
        return belief

    @check_arguments
    def delta_location_set(self, delta: Delta) -> BoolArray:
        """Return the smallest set of states with probability at least ``1 - delta`` (Theorem 4.1).

        Parameters
        ----------
        delta
            Excluded mass, in [0, 1). With 0 the whole support is returned.

        Returns
        -------
        BoolArray
            ``(N,)``: the mask of the selected states. Ties are broken by state index.
        """
        if delta == 0:
            return self.support
        probabilities = self.probabilities
        # States below this threshold have less than delta / 2 together. The set is therefore a subset of the others,
        # and only these are sorted.
        candidates = np.flatnonzero(probabilities >= delta / (2 * len(probabilities)))
        # Stable sort: ties are broken by state index, identically on every platform.
        order = candidates[np.argsort(-probabilities[candidates], kind="stable")]
        # A sum that is below 1 - delta by rounding only counts as reached. Otherwise the order of additions would
        # decide whether one more state is protected.
        needed = int(np.searchsorted(np.cumsum(probabilities[order]), (1 - delta) * (1 - 1e-12))) + 1
        chosen = np.zeros(len(probabilities), dtype=np.bool_)
        chosen[order[:needed]] = True
        return chosen

    def mean(self, points: FloatArray) -> FloatArray:
        """Compute the expectation of points under the belief.

        Parameters
        ----------
        points
            ``(N, d)``: the locations of the states.

        Returns
        -------
        FloatArray
            ``(d,)``: the expectation, in the unit of the points.

        Raises
        ------
        CoordinateError
            If the points are not numbers, one row for each state.
        """
        places = as_floats(points, "points", CoordinateError)
        if places.ndim != 2 or len(places) != len(self.support):
            raise CoordinateError(
                f"points must have one row for each of {len(self.support)} states, got shape {places.shape}"
            )
        return np.asarray(self.probabilities @ places)

    def infer(self, points: FloatArray, cell: float = 0.0) -> Inference:
        """Return the inference of an adversary with this belief.

        Parameters
        ----------
        points
            ``(N, d)``: the coordinates of the states.
        cell
            The side of the square cells centred at the points; 0 for points.

        Returns
        -------
        Inference
            Estimates and their errors.
        """
        return Inference(self.probabilities, points, cell, self.outside_belief)
