"""States joined by edges, as the mechanisms that draw from tables see them: hops, components, cliques."""

from __future__ import annotations

import numpy as np

from dphmm.arrays import BoolArray, IntArray

_CLIQUE = 4
"""Cliques of fewer states save no conditions."""


def hops_between(size: int, edges: IntArray) -> IntArray:
    """How many edges lie between any two of some states, ``(n, n)``, which must all be connected."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import shortest_path

    graph = csr_array((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(size, size))
    return np.asarray(shortest_path(graph, unweighted=True, directed=False)).astype(np.int64)


def is_clique(size: int, edges: IntArray) -> bool:
    """Whether different edges ``(m, 2)`` join every two of some states."""
    return len(edges) == size * (size - 1) // 2


def cliques_of(size: int, edges: IntArray) -> tuple[list[IntArray], IntArray]:
    """Some cliques, found greedily, and the edges ``(m, 2)`` that lie in none of them."""
    if size >= _CLIQUE and is_clique(size, edges):
        return [np.arange(size)], np.zeros((0, 2), dtype=np.int64)
    joined: BoolArray = np.zeros((size, size), dtype=np.bool_)
    joined[edges[:, 0], edges[:, 1]] = joined[edges[:, 1], edges[:, 0]] = True
    left, found = joined.copy(), []
    for state in np.argsort(-joined.sum(axis=1), kind="stable").tolist():
        members, others = [state], left[state].copy()
        while others.any():
            inside = np.flatnonzero(others)
            best = int(inside[np.argmax((joined[inside] & others).sum(axis=1))])
            members.append(best)
            others &= joined[best]
        if len(members) >= _CLIQUE:
            found.append(np.array(members))
            left[np.ix_(members, members)] = False
    return found, np.argwhere(np.triu(left))
