"""The possible moves of a model: those within a speed limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from math import inf
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from dphmm.arrays import BoolArray, FloatArray, IntArray, as_integers, make_read_only
from dphmm.errors import ConfigurationError, StateError
from dphmm.space.grid import Grid
from dphmm.space.states import StateSpace
from dphmm.space.streets import Streets
from dphmm.space.trajectory import round_to_microseconds
from dphmm.tolerances import RELATIVE_TOLERANCE
from dphmm.validation import Interval, Seconds, check_arguments

# The default speed limit. It exceeds the speed of travel in and around a city, trains included.
MAX_SPEED_KMH = 150.0

# The maximum number of possible moves of a model. Such a model takes half a gigabyte, and learning it two.
MAX_MOVES = 40_000_000

# Ends of the first rings, in units of the smallest distance. They separate the neighbours of a grid cell: 1 (side),
# 1.41 (corner), 2, 2.24 to 2.83, 3 to 3.61. Later ones grow by a factor, so that a ring of far moves, of which few are
# counted, is wider. Other values change how well models are learned, but not which moves are possible.
_RING_ENDS = (1.2, 1.6, 2.1, 2.9, 3.7)
_RING_GROWTH = 1.3
# The rings of moves are stored as ``uint8``, with 0 for staying and one more for moves beyond all ends: at most 254.
_MAX_RINGS = 200
_BLOCK_MOVES = 1 << 22
# Segments of streets of which the moves are found together: few enough to refuse too many moves early.
_STREET_BLOCK = 2000

Speed = Annotated[float, Interval(0, inf, "neither", "kilometres an hour", ConfigurationError)]


class SpeedLimit:
    """The possible moves between the states of a space, and the ring of distances of each.

    A move is possible if the smallest distance between the two states can be covered within a step. Possible moves are
    public: they do not depend on the data of any user.

    Parameters
    ----------
    space
        The states. The distance of two grid cells is that of their nearest corners. The distance of two named places is
        that of their points, minus twice the radius within which fixes are assigned to them. The distance of two
        segments of streets is that of their nearest ends along streets.
    step_seconds
        The timestep, in seconds.
    max_speed_kmh
        The speed limit, in kilometres per hour; positive.

    Raises
    ------
    ConfigurationError
        If the speed is not positive and finite, or there are more than `MAX_MOVES` possible moves.

    Examples
    --------
    >>> limit = SpeedLimit(Grid.over((45.0, 7.0, 45.1, 7.1), 0.5), step_seconds=60, max_speed_kmh=60)
    >>> limit
    SpeedLimit(11648 moves among 368 states within 1 km)
    """

    @check_arguments
    def __init__(self, space: StateSpace, step_seconds: Seconds, max_speed_kmh: Speed = MAX_SPEED_KMH) -> None:
        round_to_microseconds(step_seconds, "step_seconds")
        speed = float(max_speed_kmh)
        self.space = space
        self.size = space.size
        self.step_seconds = float(step_seconds)
        self.max_speed_kmh = speed
        # The distance that can be covered within a step, in kilometres.
        self.distance_km = speed * float(step_seconds) / 3600.0
        prepare = next((value for kind, value in _FINDERS.items() if isinstance(space, kind)), _build_place_finder)
        find_moves, rows, ends, unit = prepare(space, self.distance_km)
        # The number of rings. It is public, and does not depend on whether every ring contains a move.
        self.ring_count = len(ends) + 2
        # ``(ring_count - 2,)``: the upper end of each ring except the first (staying) and the last, in kilometres.
        self.ring_ends_km: FloatArray = make_read_only(ends * unit)
        blocks = []
        total = 0
        for first in range(0, self.size, rows):
            blocks.append(find_moves(slice(first, first + rows)))
            total += len(blocks[-1][1])
            _check_count(total, min(first + rows, self.size), self.size)
        counts, targets, rings = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
        # `MAX_MOVES` is below 2**31.
        self._indptr, self._indices = make_read_only(np.cumsum([0, *counts]).astype(np.int32)), make_read_only(targets)
        # ``(nnz,)``: the ring of each possible move, in the order of `moves`; 0 is staying.
        self.rings: npt.NDArray[np.uint8] = make_read_only(rings)

    @cached_property
    def moves(self) -> csr_array:
        """The boolean ``(N, N)`` matrix of the possible moves."""
        ones = np.ones(len(self._indices), dtype=np.bool_)
        return self.with_data(ones)

    def with_data(self, data: npt.NDArray[Any]) -> csr_array:
        """Return a matrix with entries at the possible moves.

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
        """The target of each possible move, ``(nnz,)``, ascending for each source."""
        return self._indices

    def blocks(self) -> Iterator[tuple[slice, slice, IntArray]]:
        """Iterate over blocks of moves that are processed at a time.

        Yields
        ------
        tuple of slice, slice and IntArray
            The possible moves of several consecutive states, these states, and for each move ``source * ring_count +
            ring``, with sources counted from the first state of the block.
        """
        lengths = np.diff(self._indptr)
        first = 0
        while first < self.size:
            last = int(np.searchsorted(self._indptr, self._indptr[first] + _BLOCK_MOVES, side="right")) - 1
            last = min(max(last, first + 1), self.size)
            part = slice(int(self._indptr[first]), int(self._indptr[last]))
            sources = slice(first, last)
            cells = np.repeat(np.arange(last - first) * self.ring_count, lengths[sources])
            cells += self.rings[part]
            yield part, sources, cells
            first = last

    @check_arguments
    def find(self, sources: npt.ArrayLike, targets: npt.ArrayLike) -> IntArray:
        """Return the index of each move among the possible moves.

        Parameters
        ----------
        sources
            ``(n,)``: the source of each move.
        targets
            ``(n,)``: the target of each move.

        Returns
        -------
        IntArray
            ``(n,)``: the indices, -1 for impossible moves.

        Raises
        ------
        StateError
            If a state does not exist.
        """
        ends = [as_integers(states, "states of moves", StateError) for states in (sources, targets)]
        if ends[0].ndim != 1 or ends[0].shape != ends[1].shape:
            raise StateError(
                "sources and targets must be one-dimensional arrays of equal length, got shapes "
                f"{ends[0].shape} and {ends[1].shape}"
            )
        pairs = np.stack(ends)
        if pairs.size and not (pairs.min() >= 0 and pairs.max() < self.size):
            raise StateError(f"sources and targets must be states from 0 to {self.size - 1}, got another one")
        out = np.empty(pairs.shape[1], dtype=np.int64)
        if not pairs.size:
            return out
        order = np.argsort(pairs[0], kind="stable")
        ordered = pairs[:, order]
        starts = np.flatnonzero(np.diff(ordered[0], prepend=-1))
        for begin, end in zip(starts.tolist(), [*starts[1:].tolist(), len(order)], strict=True):
            row = slice(*self._indptr[ordered[0, begin] : ordered[0, begin] + 2].tolist())
            wanted = ordered[1, begin:end]
            possible = self._indices[row]
            # No row is empty, as staying is possible.
            at = np.minimum(np.searchsorted(possible, wanted), len(possible) - 1)
            out[order[begin:end]] = np.where(possible[at] == wanted, row.start + at, -1)
        return out

    def __repr__(self) -> str:
        return f"SpeedLimit({self.entries} moves among {self.size} states within {self.distance_km:g} km)"


# Returns, for consecutive states, the number of moves of each, and the targets and rings of all moves.
_MoveFinder = Callable[[slice], tuple[npt.NDArray[Any], npt.NDArray[np.int32], npt.NDArray[np.uint8]]]


def _build_grid_finder(space: Any, distance: float) -> tuple[_MoveFinder, int, FloatArray, float]:
    """Return a function that finds the moves between grid cells within the distance.

    Distances are between nearest corners. Also return the number of states to process at a time, the ends of the rings,
    and their unit.
    """
    # The quotient of a distance of N cells can be rounded to less than N.
    cells = distance / space.cell_km * (1 + RELATIVE_TOLERANCE)
    widest = np.minimum(int(min(cells, 1e9)) + 1, [space.columns - 1, space.rows - 1])
    dx, dy = (axis.ravel() for axis in np.meshgrid(*(np.arange(-w, w + 1) for w in widest)))
    within = np.maximum(np.abs(dx) - 1, 0) ** 2 + np.maximum(np.abs(dy) - 1, 0) ** 2 <= cells * cells
    dx = dx[within]
    dy = dy[within]
    ends = _compute_ring_ends(min(cells, float(np.hypot(*widest))))
    ring = _find_rings(np.hypot(dx, dy), (dx == 0) & (dy == 0), ends)
    state_of = np.full((space.rows + 2 * widest[1], space.columns + 2 * widest[0]), -1, dtype=np.int32)
    column, row = space.lattice.T
    state_of[row + widest[1], column + widest[0]] = np.arange(space.size)
    flat = state_of.ravel()
    wide = state_of.shape[1]
    centre = (row + widest[1]) * wide + column + widest[0]
    shifts = dy * wide + dx

    def find_moves(states: slice) -> tuple[npt.NDArray[Any], npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
        targets = flat[centre[states, None] + shifts]
        is_inside = targets >= 0
        return is_inside.sum(axis=1), targets[is_inside], np.broadcast_to(ring, targets.shape)[is_inside]

    return find_moves, max(1, _BLOCK_MOVES // len(shifts)), ends, space.cell_km


def _build_place_finder(space: StateSpace, distance: float) -> tuple[_MoveFinder, int, FloatArray, float]:
    """Return a function that finds the moves between named places. See `_build_grid_finder`."""
    width = float(getattr(space, "within_km", 0.0))
    far = (distance + 2 * width) * (1 + RELATIVE_TOLERANCE)
    points = space.points
    unit = compute_spacing(space.points)
    ends = _compute_ring_ends(min(far, float(np.hypot(*np.ptp(points, axis=0)))) / unit)

    def find_moves(states: slice) -> tuple[npt.NDArray[Any], npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
        differences = points[states, None] - points
        lengths = np.hypot(differences[..., 0], differences[..., 1])
        sources, targets = np.nonzero(lengths <= far)
        ring = _find_rings(lengths[sources, targets] / unit, sources + states.start == targets, ends)
        return np.bincount(sources, minlength=len(differences)), targets.astype(np.int32), ring

    return find_moves, max(1, _BLOCK_MOVES // space.size), ends, unit


def _build_street_finder(space: Any, distance: float) -> tuple[_MoveFinder, int, FloatArray, float]:
    """Return a function that finds moves between street segments. See `_build_grid_finder`.

    Distances are those of the nearest ends along streets; rings are of the distances of middles.
    """
    unit = compute_spacing(space.points)
    # The total length exceeds every distance, also if the speed limit allows all moves.
    far = min(distance, float(space.lengths_km.sum()))
    ends = _compute_ring_ends((far + space.extent_km) / unit)

    def find_moves(states: slice) -> tuple[npt.NDArray[Any], npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
        first, second, lengths = (
            np.concatenate(parts) for parts in zip(*space.iterate_pairs_within(far, states), strict=True)
        )
        sources = first - states.start
        counts = np.bincount(sources, minlength=min(states.stop, space.size) - states.start)
        return counts, second.astype(np.int32), _find_rings(lengths / unit, first == second, ends)

    return find_moves, _STREET_BLOCK, ends, unit


_FINDERS = {Grid: _build_grid_finder, Streets: _build_street_finder}


def compute_spacing(points: FloatArray) -> float:
    """Return the median distance to the nearest other point. 1 for a single point."""
    from scipy.spatial import cKDTree

    if len(points) < 2:
        return 1.0
    nearest = float(np.median(np.asarray(cKDTree(points).query(points, k=2)[0])[:, 1]))
    return nearest if nearest > 0 else 1.0


def _compute_ring_ends(furthest: float) -> FloatArray:
    """Return the ends of all bounded rings, in units of the smallest distance."""
    ends = list(_RING_ENDS)
    while ends[-1] < furthest and len(ends) < _MAX_RINGS:
        ends.append(ends[-1] * _RING_GROWTH)
    return np.array([end for end in ends if end < furthest])


def _find_rings(lengths: FloatArray, is_same: BoolArray, ends: FloatArray) -> npt.NDArray[np.uint8]:
    rings = (1 + np.searchsorted(ends, lengths)).astype(np.uint8)
    rings[is_same] = 0
    return rings


def _check_count(so_far: int, rows: int, size: int) -> None:
    expected = so_far / rows * size
    # After an eighth of the states, the extrapolation is trusted if it exceeds the limit by half.
    if so_far > MAX_MOVES or (rows * 8 >= size and expected > 1.5 * MAX_MOVES):
        raise ConfigurationError(
            f"a model must have at most {MAX_MOVES:.2g} possible moves, got about {max(expected, so_far):.2g} between "
            f"{size} states: use larger cells, a smaller region, a shorter step or a lower --max-speed"
        )
