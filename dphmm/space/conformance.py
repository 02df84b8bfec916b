"""Checks of a state space, shipped or registered, for use in models and files."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from dphmm.errors import DphmmError, StateError
from dphmm.space.states import OUTSIDE, StateSpace
from dphmm.validation import check_arguments

# The inverse of the projection is accurate to two millimetres.
_TOLERANCE_DEGREES = 1e-7


@check_arguments
def check_space(space: StateSpace) -> None:
    """Check that a state space locates its own states and survives being saved.

    The length must be the number of points, and the next state must be refused. The points of states must differ.
    Each must lie in its state and be nearest to it, and the antipode of the first state in no state. The measurements
    must be the points. The dictionary for files must be JSON, must build an equal space with equal points, and must
    be refused for another number of states. A pickled copy must be equal.

    A pass is evidence and not a proof: locations between the points of states are not tried.

    Parameters
    ----------
    space
        The space, with its class registered or of this package.

    Raises
    ------
    StateError
        If a check fails.
    ConfigurationError
        If the class is neither registered nor one of this package.

    Examples
    --------
    >>> from dphmm.space import Grid
    >>> check_space(Grid.over((45.0, -30.0, 45.03, -29.97), cell_km=0.5))
    """
    for problem in _find_problems(space):
        raise StateError(f"{type(space).__name__} {problem}")


def _find_problems(space: StateSpace) -> Iterator[str]:
    """Yield what a state space does not fulfil."""
    size = space.size
    points = space.points
    if not isinstance(points, np.ndarray) or points.shape != (size, 2) or size == 0 or not np.isfinite(points).all():
        shown = f"{type(points).__name__} of shape {np.shape(points)}"
        yield f"must have an array of finite points of shape (size, 2) and at least one state, got {shown}"
    if len(space) != size:
        yield f"must have the length {size}, the number of its points, got {len(space)}"
    with suppress(StateError):
        space.check([size])
        yield f"must refuse state {size} in check"
    places = space.latlon()
    for method in (space.locate, space.find_nearest_states):
        states = np.asarray(method(places[:, 0], places[:, 1]))
        wrong = np.flatnonzero(states != np.arange(size)) if states.shape == (size,) else np.array([0])
        if wrong.size:
            first = int(wrong[0])
            yield f"must {method.__name__} the point of state {first} in state {first}, got {states.flat[first]}"
    latitude, longitude = -places[0, 0], places[0, 1] + (180.0 if places[0, 1] <= 0.0 else -180.0)
    if (state := space.locate(latitude, longitude).tolist()) != [OUTSIDE]:
        yield f"must locate the antipode of state 0 in no state (-1), got {state}"
    if not np.allclose(np.asarray(space.measurements().points, dtype=np.float64), space.points):
        yield "must have its points as measurements"
    document = json.loads(json.dumps(space.to_document(), allow_nan=False))
    try:
        yield from _find_differences(space, StateSpace.from_json(document, size), "built from its dictionary")
    except DphmmError as problem:
        yield f"must be built from its own dictionary: {problem}"
    try:
        yield from _find_differences(space, pickle.loads(pickle.dumps(space)), "unpickled")
    except (AttributeError, TypeError, pickle.PicklingError) as problem:
        yield f"must be picklable: {problem}"
    with suppress(DphmmError):
        StateSpace.from_json(document, size + 1)
        yield f"must refuse its dictionary for {size + 1} states instead of {size}"


def _find_differences(space: StateSpace, copy: StateSpace, what: str) -> Iterator[str]:
    """Yield how a copy differs."""
    places = space.latlon()
    if copy != space or copy.content_hash != space.content_hash or not np.array_equal(copy.points, space.points):
        yield f"must be equal to the space {what}"
    if not np.allclose(copy.latlon(), places, rtol=0.0, atol=_TOLERANCE_DEGREES):
        yield f"must have the same locations {what}"
    if not np.array_equal(copy.locate(places[:, 0], places[:, 1]), np.arange(space.size)):
        yield f"must locate its states in the same way {what}"
