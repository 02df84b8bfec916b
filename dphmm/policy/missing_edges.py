"""Checks for isolated states, which a policy connects to no other state.

An isolated state is exposed whenever it is possible. The repair connects it to a partner at any distance, and the
longest edge determines the noise of all states. With a radius smaller than the cells of a grid every state is isolated.
"""

from __future__ import annotations

import numpy as np

from dphmm.arrays import BoolArray
from dphmm.errors import PolicyError
from dphmm.policy.graph import PolicyGraph
from dphmm.policy.lengths import format_policy_length
from dphmm.space.states import StateSpace


def refuse_if_empty(graph: PolicyGraph, text: str, space: StateSpace, is_radius: bool) -> PolicyGraph:
    """Return the graph unchanged. Raise an error if it has several states and no edge.

    Parameters
    ----------
    graph, text
        The policy, and its text.
    space
        The states.
    is_radius
        Whether the text is a single radius. The message then contains the smallest radius with an edge.

    Raises
    ------
    PolicyError
        If there are several states and no edge.
    """
    if space.size < 2 or not graph.is_empty:
        return graph
    remedy = "states that must stay indistinguishable need an edge"
    if is_radius:
        near = format_policy_length(_compute_nearest_distances(space, np.ones(space.size, bool)).min())
        remedy = f"use {text.partition(':')[0].strip()}:{near} or more"
    raise PolicyError(f"policy {text!r} connects none of the {space.size:,} states: {remedy}")


def describe_isolated_states(graph: PolicyGraph, space: StateSpace) -> str | None:
    """Return the number of isolated states and their largest distance to another state.

    Returns None if no state is isolated.

    Examples
    --------
    >>> from dphmm.space import Places
    >>> stops = Places(["a", "b", "c"], [45.0, 45.0, 45.0], [7.0, 7.01, 7.1])
    >>> describe_isolated_states(PolicyGraph.utility(stops.measurements(), 1.0), stops)
    '1 of 3, up to 7.1km from the nearest state'
    """
    isolated = ~graph.find_connected_states()
    if space.size < 2 or not isolated.any():
        return None
    farthest = format_policy_length(_compute_nearest_distances(space, isolated).max())
    return f"{int(isolated.sum()):,} of {space.size:,}, up to {farthest} from the nearest state"


def _compute_nearest_distances(space: StateSpace, mask: BoolArray) -> np.ndarray:
    """Return the distance of each selected state to the nearest other one, in kilometres."""
    from scipy.spatial import cKDTree

    points = space.measurements().points
    # The nearest point to a state is its own, at distance zero. The second belongs to another state.
    return np.asarray(cKDTree(points).query(points[mask], k=2)[0])[:, 1]
