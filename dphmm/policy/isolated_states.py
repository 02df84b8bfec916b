"""States that a policy joins to no other.

Such a state is exposed whenever it is possible. The repair gives it a partner, however far, and the longest edge sets
the noise of everybody. With a radius below the cells of a grid that is so for all.
"""

from __future__ import annotations

import numpy as np

from dphmm.arrays import BoolArray
from dphmm.errors import PolicyError
from dphmm.policy.graph import PolicyGraph
from dphmm.policy.lengths import length
from dphmm.space.states import StateSpace


def refuse_if_empty(graph: PolicyGraph, text: str, space: StateSpace, is_radius: bool) -> PolicyGraph:
    """The graph itself; where it joins no two of several states, an error that says what to give instead.

    Parameters
    ----------
    graph, text
        The policy, and how it is written.
    space
        Its states.
    is_radius
        Whether the text is one radius, so that the least useful one is named.

    Raises
    ------
    PolicyError
        When there are several states and no edge.
    """
    if space.size < 2 or not graph.is_empty:
        return graph
    said = "states that must stay indistinguishable need an edge"
    if is_radius:
        near = length(_nearest(space, np.ones(space.size, bool)).min())
        said = f"no two are that near, give {text.partition(':')[0].strip()}:{near} or more"
    raise PolicyError(f"policy {text!r} joins no two of the {space.size:,} states; {said}")


def said_of_isolated(graph: PolicyGraph, space: StateSpace) -> str | None:
    """How many states the policy joins to no other, and how far from another they are; None where there are none.

    Examples
    --------
    >>> from dphmm.space import Places
    >>> stops = Places(["a", "b", "c"], [45.0, 45.0, 45.0], [7.0, 7.01, 7.1])
    >>> said_of_isolated(PolicyGraph.utility(stops.measurements(), 1.0), stops)
    '1 of 3, up to 7.1km from the nearest state'
    """
    alone = ~graph.connected()
    if space.size < 2 or not alone.any():
        return None
    return (
        f"{int(alone.sum()):,} of {space.size:,}, up to {length(_nearest(space, alone).max())} from the nearest state"
    )


def _nearest(space: StateSpace, of: BoolArray) -> np.ndarray:
    """The distance of some states ``(N,)`` from the nearest other one, kilometres."""
    from scipy.spatial import cKDTree

    points = space.measurements().points
    return np.asarray(cKDTree(points).query(points[of], k=2)[0])[:, 1]
