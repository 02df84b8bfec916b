"""Nearest neighbours of states, for the soundness check before sampling."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.geometry.gauge import Gauge

# Brute force at this size takes less time than importing SciPy's k-d tree.
_MAX_BRUTE_FORCE_STATES = 4096
_ROWS_PER_BLOCK = 256

# In a grid the nine nearest points of a cell are itself and the eight around it.
_NUM_NEIGHBOURS = 9

# Up to this number of states the neighbours are cached: 16 bytes for each of the nine, 2.4 MB in total.
_MAX_CACHED_STATES = 1 << 14


class StateNeighbours:
    """Nearest neighbours of states, by Euclidean distance and by a gauge.

    Parameters
    ----------
    points
        ``(N, d)``.
    """

    def __init__(self, points: FloatArray) -> None:
        self._points = points
        self._neighbours: tuple[IntArray, FloatArray] | None = None

    @cached_property
    def nearest(self) -> tuple[IntArray, FloatArray]:
        """The nearest other state of each state, and its distance. Infinite for a single state.

        Both arrays have the shape ``(N,)``.
        """
        size = len(self._points)
        if size == 1:
            return np.zeros(1, dtype=np.int64), np.full(1, np.inf)
        if size <= _MAX_BRUTE_FORCE_STATES:
            return self._find_nearest_by_brute_force()
        distances, indices = map(np.asarray, self._tree.query(self._points, k=2))
        # If two states share a location, the tree may return them in either order. Drop the state itself.
        is_itself = indices[:, 0] == np.arange(size)
        partner = np.where(is_itself, indices[:, 1], indices[:, 0])
        return partner, np.where(is_itself, distances[:, 1], distances[:, 0])

    def find_neighbours(self, states: IntArray) -> tuple[IntArray, FloatArray]:
        """Return up to nine nearest states of each of `states`, and their distances.

        Both arrays have the shape ``(m, k)`` for ``k`` states, with ``m`` at most nine.
        """
        size = len(self._points)
        if size > _MAX_CACHED_STATES:
            return self._query_neighbours(states)
        if self._neighbours is None:
            shape = min(_NUM_NEIGHBOURS, size), size
            self._neighbours = np.full(shape, -1, dtype=np.int64), np.empty(shape)
        indices, distances = self._neighbours
        missing = states[indices[0].take(states) < 0]
        if len(missing):
            indices[:, missing], distances[:, missing] = self._query_neighbours(missing)
        return indices.take(states, axis=1), distances.take(states, axis=1)

    def compute_nearest_norms(self, gauge: Gauge, members: BoolArray, states: IntArray) -> FloatArray:
        """Return the gauge of the difference of each state and its nearest other member.

        It is infinite if there is no other. `states` are members, ``(k,)``.
        """
        from scipy.spatial import cKDTree

        candidates = np.flatnonzero(members)
        places, order = gauge.embed_points(self._points[candidates])
        rows = np.searchsorted(candidates, states)
        queried = places[rows]
        distances, indices = map(np.asarray, cKDTree(places).query(queried, k=2, p=order))
        # Of the two nearest members, drop the state itself. A state that is the only member has no other: the tree
        # returns an infinite distance, and the state counts as exposed.
        is_itself = indices == rows[:, None]
        return np.asarray(distances[np.arange(len(states)), is_itself.argmin(axis=1)])

    @cached_property
    def _tree(self) -> Any:
        from scipy.spatial import cKDTree

        return cKDTree(self._points)

    def _query_neighbours(self, states: IntArray) -> tuple[IntArray, FloatArray]:
        count = min(_NUM_NEIGHBOURS, len(self._points))
        distances, indices = self._tree.query(self._points[states], k=count)
        shape = len(states), -1
        return np.asarray(indices).reshape(shape).T, np.asarray(distances).reshape(shape).T

    def _find_nearest_by_brute_force(self) -> tuple[IntArray, FloatArray]:
        size = len(self._points)
        partner = np.empty(size, dtype=np.int64)
        distance = np.empty(size)
        for start in range(0, size, _ROWS_PER_BLOCK):
            rows = np.arange(start, min(start + _ROWS_PER_BLOCK, size))
            squares = sum((column[rows, None] - column) ** 2 for column in self._points.T)
            squares[rows - start, rows] = np.inf
            partner[rows] = squares.argmin(axis=1)
            distance[rows] = np.sqrt(squares[rows - start, partner[rows]])
        return partner, distance
