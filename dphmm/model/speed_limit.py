"""Which moves are possible at all: those that a person at a highest speed can make within one time step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from dphmm.arguments import checked
from dphmm.arrays import RELATIVE_TOLERANCE, BoolArray, FloatArray, IntArray, as_integers, locked
from dphmm.errors import ConfigurationError, StateError
from dphmm.space.grid import Grid
from dphmm.space.states import StateSpace
from dphmm.space.trajectory import microseconds

MAX_SPEED_KMH = 150.0
"""Faster than people travel in and around a city, trains included; a step of 5 minutes spans 12.5 km."""

MOST_MOVES = 40_000_000
"""The most possible moves of a model: with them it takes half a gigabyte, and four times that at work."""

_RING_ENDS = (1.2, 1.6, 2.1, 2.9, 3.7)
_RING_GROWTH = 1.3
_MOST_RINGS = 200
_BLOCK = 1 << 22


class SpeedLimit:
    """The possible moves between the states of a space, and the ring of distances that each lies in.

    A move is possible when some place of the one state and some place of the other are no further apart than a person
    comes within a step. This is public: it depends on the movement of no person.

    Parameters
    ----------
    space
        The states. Of a grid's cells the nearest corners count, of named places their points less twice the distance
        up to which fixes belong to them.
    step_seconds
        The time step.
    max_speed_kmh
        The highest speed, kilometres an hour; positive.

    Raises
    ------
    ConfigurationError
        When the speed is not positive and finite, or there are more than `MOST_MOVES` possible moves.

    Examples
    --------
    >>> limit = SpeedLimit(Grid.over((45.0, 7.0, 45.1, 7.1), 0.5), step_seconds=60, max_speed_kmh=60)
    >>> limit
    SpeedLimit(11648 moves among 368 states within 1 km)
    """

    @checked
    def __init__(self, space: StateSpace, step_seconds: float, max_speed_kmh: float = MAX_SPEED_KMH) -> None:
        microseconds(step_seconds, "step_seconds")
        speed = float(max_speed_kmh)
        if not (np.isfinite(speed) and speed > 0):
            raise ConfigurationError(f"max_speed_kmh is {max_speed_kmh}; give a positive speed, such as 150")
        self.space, self.size = space, space.size
        self.step_seconds, self.max_speed_kmh = float(step_seconds), speed
        self.distance_km = speed * float(step_seconds) / 3600.0
        """How far one comes within a step, kilometres."""
        look, rows, ends, unit = (_on_grid if isinstance(space, Grid) else _among_places)(space, self.distance_km)
        self.ring_count = len(ends) + 2
        """How many rings there are; a public number, whether or not a move lies in each."""
        self.ring_ends_km: FloatArray = locked(ends * unit)
        """``(ring_count - 2,)``: where each ring but staying and the last ends, kilometres."""
        blocks, total = [], 0
        for first in range(0, self.size, rows):
            blocks.append(look(slice(first, first + rows)))
            total += len(blocks[-1][1])
            _check_count(total, min(first + rows, self.size), self.size)
        counts, targets, rings = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
        self._indptr, self._indices = locked(np.cumsum([0, *counts]).astype(np.int32)), locked(targets)
        self.rings: npt.NDArray[np.uint8] = locked(rings)
        """``(nnz,)``: the ring of each possible move, in the order of `moves`; 0 is staying."""

    @cached_property
    def moves(self) -> csr_array:
        """``(N, N)``: the possible moves, all ones."""
        ones = np.ones(len(self._indices), dtype=np.bool_)
        return self.with_data(ones)

    def with_data(self, data: npt.NDArray[Any]) -> csr_array:
        """A matrix with these entries, ``(nnz,)``, at the possible moves.

        Parameters
        ----------
        data
            ``(nnz,)``: a number for each possible move.

        Returns
        -------
        csr_array
            ``(N, N)``.
        """
        return csr_array((data, self._indices, self._indptr), shape=(self.size, self.size))

    @property
    def entries(self) -> int:
        """The number of possible moves."""
        return len(self._indices)

    @property
    def targets(self) -> npt.NDArray[np.int32]:
        """``(nnz,)``: where each possible move leads, ascending for each source."""
        return self._indices

    def blocks(self) -> Iterator[tuple[slice, slice, IntArray]]:
        """Pieces of the moves that are worked on at once.

        Yields
        ------
        tuple of slice, slice and IntArray
            The possible moves of some states in a row, these states, and of each move its ring, and how often
            ``ring_count`` as the number of its source among them.
        """
        lengths = np.diff(self._indptr)
        first = 0
        while first < self.size:
            last = int(np.searchsorted(self._indptr, self._indptr[first] + _BLOCK, side="right")) - 1
            last = min(max(last, first + 1), self.size)
            part, sources = slice(int(self._indptr[first]), int(self._indptr[last])), slice(first, last)
            cells = np.repeat(np.arange(last - first) * self.ring_count, lengths[sources])
            cells += self.rings[part]
            yield part, sources, cells
            first = last

    @checked
    def find(self, sources: npt.ArrayLike, targets: npt.ArrayLike) -> IntArray:
        """The number of each move among the possible ones, -1 where it is not possible; ``(n,)``.

        Parameters
        ----------
        sources
            ``(n,)``: the states that are left.
        targets
            ``(n,)``: the states that are entered.

        Returns
        -------
        IntArray
            ``(n,)``: the numbers of the moves, -1 where one is not possible.

        Raises
        ------
        StateError
            When a state does not exist.
        """
        ends = [as_integers(states, "states of moves", StateError) for states in (sources, targets)]
        if ends[0].ndim != 1 or ends[0].shape != ends[1].shape:
            raise StateError(f"sources have shape {ends[0].shape} and targets {ends[1].shape}; give two equal lists")
        pairs = np.stack(ends)
        if pairs.size and not (pairs.min() >= 0 and pairs.max() < self.size):
            raise StateError(f"a move leads from or to a state outside of 0 to {self.size - 1}")
        out = np.empty(pairs.shape[1], dtype=np.int64)
        if not pairs.size:
            return out
        order = np.argsort(pairs[0], kind="stable")
        ordered = pairs[:, order]
        starts = np.flatnonzero(np.diff(ordered[0], prepend=-1))
        for begin, end in zip(starts.tolist(), [*starts[1:].tolist(), len(order)], strict=True):
            row = slice(*self._indptr[ordered[0, begin] : ordered[0, begin] + 2].tolist())
            wanted, there = ordered[1, begin:end], self._indices[row]
            at = np.minimum(np.searchsorted(there, wanted), len(there) - 1)
            out[order[begin:end]] = np.where(there[at] == wanted, row.start + at, -1)
        return out

    def __repr__(self) -> str:
        return f"SpeedLimit({self.entries} moves among {self.size} states within {self.distance_km:g} km)"


_Look = Callable[[slice], tuple[npt.NDArray[Any], npt.NDArray[np.int32], npt.NDArray[np.uint8]]]
"""Of some states in a row: how many moves each has, where they lead, and their rings."""


def _on_grid(space: Any, distance: float) -> tuple[_Look, int, FloatArray, float]:
    """Offsets of cells whose nearest corners are within the distance, and the states that they lead to.

    What looks at states, at how many at once, where rings end, and in which unit.
    """
    cells = distance / space.cell_km * (1 + RELATIVE_TOLERANCE)
    widest = np.minimum(int(min(cells, 1e9)) + 1, [space.columns - 1, space.rows - 1])
    dx, dy = (axis.ravel() for axis in np.meshgrid(*(np.arange(-w, w + 1) for w in widest)))
    within = np.maximum(np.abs(dx) - 1, 0) ** 2 + np.maximum(np.abs(dy) - 1, 0) ** 2 <= cells * cells
    dx, dy = dx[within], dy[within]
    ends = _ring_ends(min(cells, float(np.hypot(*widest))))
    ring = _rings(np.hypot(dx, dy), (dx == 0) & (dy == 0), ends)
    state_of = np.full((space.rows + 2 * widest[1], space.columns + 2 * widest[0]), -1, dtype=np.int32)
    column, row = space.lattice.T
    state_of[row + widest[1], column + widest[0]] = np.arange(space.size)
    flat, wide = state_of.ravel(), state_of.shape[1]
    centre, shifts = (row + widest[1]) * wide + column + widest[0], dy * wide + dx

    def look(states: slice) -> tuple[npt.NDArray[Any], npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
        found = flat[centre[states, None] + shifts]
        known = found >= 0
        return known.sum(axis=1), found[known], np.broadcast_to(ring, found.shape)[known]

    return look, max(1, _BLOCK // len(shifts)), ends, space.cell_km


def _among_places(space: StateSpace, distance: float) -> tuple[_Look, int, FloatArray, float]:
    """The same of pairs of points within the distance and the widths of their places."""
    width = float(getattr(space, "within_km", 0.0))
    far = (distance + 2 * width) * (1 + RELATIVE_TOLERANCE)
    points, unit = space.points, spacing(space.points)
    ends = _ring_ends(min(far, float(np.hypot(*np.ptp(points, axis=0)))) / unit)

    def look(states: slice) -> tuple[npt.NDArray[Any], npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
        apart = points[states, None] - points
        lengths = np.hypot(apart[..., 0], apart[..., 1])
        sources, found = np.nonzero(lengths <= far)
        ring = _rings(lengths[sources, found] / unit, sources + states.start == found, ends)
        return np.bincount(sources, minlength=len(apart)), found.astype(np.int32), ring

    return look, max(1, _BLOCK // space.size), ends, unit


def spacing(points: FloatArray) -> float:
    """The median distance to the nearest other place; 1 where there is none."""
    from scipy.spatial import cKDTree

    if len(points) < 2:
        return 1.0
    nearest = float(np.median(np.asarray(cKDTree(points).query(points, k=2)[0])[:, 1]))
    return nearest if nearest > 0 else 1.0


def _ring_ends(furthest: float) -> FloatArray:
    """Where the rings end but the last, which has no end, in units of the smallest distance."""
    ends = list(_RING_ENDS)
    while ends[-1] < furthest and len(ends) < _MOST_RINGS:
        ends.append(ends[-1] * _RING_GROWTH)
    return np.array([end for end in ends if end < furthest])


def _rings(lengths: FloatArray, own: BoolArray, ends: FloatArray) -> npt.NDArray[np.uint8]:
    rings = (1 + np.searchsorted(ends, lengths)).astype(np.uint8)
    rings[own] = 0
    return rings


def _check_count(so_far: int, rows: int, size: int) -> None:
    expected = so_far / rows * size
    if so_far > MOST_MOVES or (rows * 8 >= size and expected > 1.5 * MOST_MOVES):
        raise ConfigurationError(
            f"about {max(expected, so_far):.2g} moves between {size} states are possible within a step, more than "
            f"{MOST_MOVES:.2g}; take larger cells, a smaller region, a shorter step or a lower --max-speed"
        )
