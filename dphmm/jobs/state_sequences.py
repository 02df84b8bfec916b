"""Jobs on sequences of states without coordinates, such as web pages."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, IntArray
from dphmm.errors import InvalidInputError, StateError
from dphmm.geometry.measurements import Measurements
from dphmm.jobs.model.loading import Model
from dphmm.mechanisms.registry import MechanismLike
from dphmm.model.model import MarkovModel
from dphmm.policy.graph import PolicyLike, as_policy
from dphmm.random import Rng, as_random_source
from dphmm.release.engine import Releaser
from dphmm.release.record import ReleaseRecord
from dphmm.release.settings import NoiseKeywords
from dphmm.tables.values import shorten
from dphmm.validation import NoiseEpsilon, NonNegativeNumber, check_arguments

# A table of hops ignores coordinates, so one coordinate suffices. A hull of one-hot vectors has too many facets.
_HOP_MECHANISM = "graph-exponential"


@dataclass(frozen=True)
class StateRelease:
    """The release of one user at one timestep.

    Parameters
    ----------
    user
        The user.
    released
        The released state with a table, such as ``"graph-exponential"``; None for noise on measurements.
    most_probable, probability
        The most probable state given all releases so far, and its posterior probability.
    record
        The public record.
    """

    user: str
    released: str | None
    most_probable: str
    probability: float
    record: ReleaseRecord

    def to_dict(self) -> dict[str, Any]:
        """Return the release as plain JSON values.

        Returns
        -------
        dict
            Released and most probable state, budget and degree of protection.
        """
        return {
            **{name: getattr(self, name) for name in ("user", "released", "most_probable", "probability")},
            **{name: getattr(self.record, name) for name in ("index", "epsilon", "epsilon_total", "mechanism")},
            "min_degree_of_protection": self.record.min_degree_of_protection,
        }


@check_arguments
def learn_states(
    sequences: Mapping[str, Sequence[str]], names: Sequence[str], smoothing: NonNegativeNumber = 1.0
) -> MarkovModel:
    """Learn a Markov model from sequences of named states by counting.

    The model reveals moves of the training users. Do not publish it, and do not release these users with it.

    Parameters
    ----------
    sequences
        User → names of the states, one for each timestep.
    names
        The names of all states, whether they occur or not.
    smoothing
        The number that is added to the count of every move and visit. With 0, moves that do not occur in either
        direction are impossible.

    Returns
    -------
    MarkovModel
        The model, without state locations.

    Raises
    ------
    StateError
        If a name is unknown or repeated, or there is no sequence.

    Examples
    --------
    >>> learn_states({"ann": ["home", "news", "home"]}, ["home", "news"]).size
    2
    """
    numbers = _index_names(names)
    encoded = [_encode(user, states, numbers) for user, states in sequences.items()]
    if not encoded:
        raise StateError("sequences must contain a user, got none")
    every_pair = np.column_stack(np.triu_indices(len(names), 1)) if smoothing > 0 else None
    return MarkovModel.fit(encoded, len(names), smoothing, every_pair)


@check_arguments
def release_states(
    sequences: Mapping[str, Sequence[str]],
    names: Sequence[str],
    model: Model,
    policy: PolicyLike,
    epsilon: NoiseEpsilon,
    mechanism: MechanismLike = _HOP_MECHANISM,
    *,
    measurements: npt.ArrayLike | None = None,
    rng: Rng = None,
    **settings: Unpack[NoiseKeywords],
) -> Iterator[StateRelease]:
    """Release sequences of named states, each user with a separate engine.

    Parameters
    ----------
    sequences
        User → names of the states, one for each timestep.
    names
        The names of all states of the model, in its order.
    model
        The model or its file. It must not be learned from these users.
    policy
        The graph of states that must remain indistinguishable, by names or indices.
    epsilon
        The budget of a timestep. The budgets of a sequence add up.
    mechanism
        By default a table of the hops in the policy graph, which releases a state; other mechanisms add noise to
        `measurements`.
    measurements
        ``(N, d)``. Default to one-hot vectors, and to the number of each state with a table of hops, which does not
        depend on them.
    rng
        Defaults to the operating system's randomness. A seed makes releases repeatable, hence not private.
    **settings
        Other settings of `dphmm.Releaser`, such as ``delta``.

    Yields
    ------
    StateRelease
        The releases of each user in order.

    Raises
    ------
    StateError
        If a name is unknown or repeated, or model and names differ in number.
    InvalidInputError
        If the measurements have too many dimensions for the mechanism's hull, or two are equal and the mechanism
        releases states.
    PolicyError, ConfigurationError
        As for `dphmm.Releaser`.

    Examples
    --------
    >>> import networkx
    >>> pages = ["home", "news", "clinic"]
    >>> model = learn_states({"bob": ["home", "news", "clinic", "home"]}, pages)
    >>> (release,) = release_states({"ann": ["clinic"]}, pages, model, networkx.complete_graph(pages), 1.0, rng=0)
    >>> release.released in pages
    True
    """
    names = list(names)  # a pandas.Series is indexed by its labels
    numbers = _index_names(names)
    learned = model if isinstance(model, MarkovModel) else MarkovModel.load(model)
    if learned.size != len(names):
        raise StateError(f"names must have one entry for each of {learned.size} states, got {len(names)}")
    encoded = {user: _encode(user, states, numbers) for user, states in sequences.items()}
    points = build_measurements(len(names), mechanism) if measurements is None else Measurements(measurements)
    releases_states = mechanism in ("optimal", _HOP_MECHANISM)
    if releases_states and len(np.unique(points.points, axis=0)) < points.size:
        raise InvalidInputError("measurements must be distinct for a mechanism that releases states")
    graph = as_policy(policy, len(names), tuple(names))
    engine = Releaser(learned, points, graph, epsilon, mechanism, rng=as_random_source(rng), **settings)
    for user, states in encoded.items():
        releaser = engine.spawn()
        for state in states.tolist():
            record = releaser.release(state)
            belief = releaser.belief
            assert belief is not None, "a release sets the belief"
            probabilities = belief.probabilities
            top = int(np.argmax(probabilities))
            released = None
            if releases_states and record.released is not None:
                released = names[_find_released_state(points.points, record.released)]
            yield StateRelease(user, released, names[top], float(probabilities[top]), record)


def build_measurements(size: int, mechanism: str = _HOP_MECHANISM) -> Measurements:
    """Return default measurements of states without coordinates. See `release_states`."""
    return Measurements(np.arange(size)[:, np.newaxis] if mechanism == _HOP_MECHANISM else np.eye(size))


def _find_released_state(points: FloatArray, released: tuple[float, ...]) -> int:
    return int(np.flatnonzero((points == np.array(released)).all(axis=1))[0])


def _index_names(names: Sequence[str]) -> dict[str, int]:
    numbers = {name: number for number, name in enumerate(names)}
    if not numbers or len(numbers) < len(names):
        raise StateError(f"names must be different, got {len(names) - len(numbers)} repeated among {len(names)}")
    return numbers


def _encode(user: str, states: Sequence[str], numbers: Mapping[str, int]) -> IntArray:
    unknown = [state for state in states if not isinstance(state, Hashable) or state not in numbers]
    if isinstance(states, str) or unknown or not len(states):
        received = unknown[0] if unknown else states
        raise StateError(f"states of user {user!r} must be names of states, got {shorten(repr(received))}")
    return np.array([numbers[state] for state in states], dtype=np.int64)
