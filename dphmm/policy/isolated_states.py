"""States that a policy joins to no other: refused where that is everybody, told where it is some.

Such a state is exposed whenever it is possible. The repair gives it a partner, however far, and the longest edge sets
the noise of everybody. With a radius below the cells of a grid that is so for all.
"""

from __future__ import annotations

from math import ceil, floor, log10

import numpy as np

from dphmm.arrays import RELATIVE_TOLERANCE, BoolArray
from dphmm.errors import PolicyError
from dphmm.policy.graph import PolicyGraph
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


def said_of_alone(graph: PolicyGraph, space: StateSpace) -> str | None:
    """How many states the policy joins to no other, and how far from another they are; None where there are none.

    Examples
    --------
    >>> from dphmm.space import Places
    >>> stops = Places(["a", "b", "c"], [45.0, 45.0, 45.0], [7.0, 7.01, 7.1])
    >>> said_of_alone(PolicyGraph.utility(stops.measurements(), 1.0), stops)
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


def length(kilometres: float) -> str:
    """A length of three digits, not below the given one but for the tolerance, as policies write it.

    Examples
    --------
    >>> length(0.5), length(0.34000000000001), length(13.2345), length(0.0000123), length(2.0)
    ('500m', '340m', '13.3km', '0.0123m', '2km')
    """
    value, unit = (kilometres, "km") if kilometres >= 1 else (kilometres * 1000, "m")
    if value == 0:
        return "0m"
    step = 10.0 ** (floor(log10(value)) - 2)
    return f"{ceil(value / step * (1 - RELATIVE_TOLERANCE)) * step:.6g}{unit}"


def said_of_coarse(graph: PolicyGraph, space: StateSpace) -> str | None:
    """How much shorter a graph's sensitivity hull is in one direction than in another; None where that is little.

    On cells that are coarse beside its radius a policy ``utility`` has few offsets to be the hull of: with cells of
    half the radius it is a diamond. People expect a disc, which planar Laplace noise is drawn from.

    Examples
    --------
    >>> from dphmm.space import Grid
    >>> cells = Grid.over((45.0, -30.0, 45.03, -29.97), cell_km=0.5)
    >>> said_of_coarse(PolicyGraph.utility(cells.measurements(), 1.0), cells)
    'reaches 1km one way and 708m another'
    >>> fine = Grid.over((45.0, -30.0, 45.03, -29.97), cell_km=0.2)
    >>> said_of_coarse(PolicyGraph.utility(fine.measurements(), 1.0), fine)
    """
    from dphmm.geometry.hull import SensitivityHull

    hull = SensitivityHull(graph.differences(space.measurements()))
    if hull.dimension < 2:
        return None
    normals = hull.norm_form.normals
    inner, outer = (
        float((1 / np.linalg.norm(normals, axis=1)).min()),
        float(np.linalg.norm(hull.vertices, axis=1).max()),
    )
    return None if inner >= _COARSE * outer else f"reaches {length(outer)} one way and {length(inner)} another"


_COARSE = 0.85
