"""Branch and bound over the outputs of polytope noise, with cells that reach to infinity.

Take a centre among the places ``x`` and the sector of outputs ``z`` over one facet of the body: with the ends ``v, w``
of the facet, ``z`` is the centre plus ``a v + b w`` for ``a, b >= 0``. Less what it is at the centre, the distance

    ``‖z - x‖ - ‖z - centre‖ = max over facets k of (- a (1 - n_k v) - b (1 - n_k w) - n_k x)``

falls in both ``a`` and ``b``, is bounded, and has a limit where either goes to infinity. So between two corners
``(a, b)`` and ``(a', b')`` of a cell, infinite ones too, every place's distance lies between its values there: two
evaluations bound the densities of a whole cell of outputs, and the sectors cover all of the plane.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from dphmm.arrays import BoolArray, FloatArray, IntArray

ROUNDING = 1e-9
"""By how much of itself a sum must be less than another, so that rounding cannot have made it so."""

MOST_CELLS = 500
"""So many cells are looked at before a question is given up."""

_HELD = 1 << 23
"""Distances at corners are kept up to so many numbers."""

_LITTLE = 0.25
"""A side along which distances change by less than this share of what they do along the other is not split."""

_FEW = 64
"""Along which side a cell is split is told by about so many places."""

_FARTHEST = 4096.0
"""Cells are not split farther out than this many times as far as places are from their centre."""

_OFF_SPAN = 4e-15
"""Places that are off each other's span by more than this share of their coordinates are not on it."""

_BEGIN = (0.0, 0.25, 1.0, np.inf)
"""The corners that cells begin with, in multiples of how far places are from the centre."""


class Sectors:
    """All outputs about some places, in cells that are split where a question needs it, and stay so for the next.

    Parameters
    ----------
    places
        ``(n, d)``.
    normals
        ``(m, d)``: the body is ``|normals v| <= 1`` within its span, of up to two dimensions.
    equations
        ``(e, d)``: orthonormal rows across the span. Places off each other's span have no output in common, so that
        each such group has sectors of its own.
    """

    def __init__(self, places: FloatArray, normals: FloatArray, equations: FloatArray) -> None:
        self._fans: list[_Fan] = []
        self._corners: dict[tuple[int, int, float, float], int] = {}
        self._cells: list[_Cell] = []
        self.reach = 0.0
        """How far a place is from its centre at most, in the body's norm."""
        for members in _groups(places, equations):
            fan = _Fan.about(places, members, normals)
            self.reach = max(self.reach, fan.reach)
            self._fans.append(fan)
        first = sum(1 + len(fan.normals) * (len(_BEGIN) - 1) * len(_BEGIN) for fan in self._fans)
        self._most = max(_HELD // len(places), first)
        self._distances = np.empty((self._most, len(places)))  # memory is taken for what is written alone
        for number, fan in enumerate(self._fans):
            ends = [end * fan.reach if end else 0.0 for end in _BEGIN] if fan.reach > 0 else [0.0, np.inf]
            across = ends if fan.is_planar else [0.0, 0.0]
            for sector in range(len(fan.normals) if fan.reach > 0 else 1):
                for a, a_end in pairwise(ends):
                    for b, b_end in pairwise(across):
                        self._add(number, sector, a, a_end, b, b_end)
        self._start = np.arange(len(self._cells))
        self._falls: dict[float, _Falls] = {}
        self._ends: IntArray = np.array([(cell.near, cell.far) for cell in self._cells], dtype=np.int64)

    def ask(self, parts: FloatArray, epsilon: float) -> tuple[bool, FloatArray]:
        """Whether at every output the sums of some coefficients are less than those of others.

        Parameters
        ----------
        parts
            ``(n, 3 j)``, not negative: ``j`` columns of the one kind, of the other, and of a third to be summed too.
        epsilon
            The budget: each place counts with ``exp(-epsilon distance)``. Times `reach` a few hundred at most.

        Returns
        -------
        certain
            False also where cells do not suffice to tell.
        sums
            ``(c, 3 j)``: at all corners that were looked at.
        """
        count = parts.shape[1] // 3
        falls = self._falls.get(epsilon) or _Falls(epsilon, self._distances)
        self._remember(falls)
        sums, known = np.empty((self._most, parts.shape[1])), np.zeros(self._most, dtype=np.bool_)
        certain, frontier, looked = True, self._start, 0
        while len(frontier):
            near, far = self._ends[frontier].T
            wanted = ~known
            known[near] = known[far] = True
            new = _run(np.flatnonzero(wanted & known))
            sums[new] = falls.at(new) @ parts
            looked += len(frontier)
            open_ = frontier[~is_below(sums[far, :count], sums[near, count : 2 * count]).all(axis=1)]
            passed = len(open_) and not is_below(sums[new, :count], sums[new, count : 2 * count]).all()
            splits = [] if passed or looked > MOST_CELLS else [self._split(cell) for cell in open_.tolist()]
            if len(splits) < len(open_) or not all(splits):
                certain = False
                break
            frontier = np.array([cell for cells in splits for cell in cells], dtype=np.int64)
        return certain, sums[known]

    def _remember(self, falls: _Falls) -> None:
        """Keep what was worked out for a budget, as the last of those that are kept."""
        self._falls.pop(falls.epsilon, None)
        self._falls[falls.epsilon] = falls
        while sum(one.held for one in self._falls.values()) > _HELD and len(self._falls) > 1:
            del self._falls[next(iter(self._falls))]

    # ---- cells ---------------------------------------------------------------------------------------------------

    def _split(self, number: int) -> list[int]:
        """The cells that a cell is split into; none where no more can be kept, or none would differ."""
        cell = self._cells[number]
        if not cell.parts:
            if len(self._corners) + 7 > self._most:
                return []
            fan, begin = self._fans[cell.fan], len(self._cells)
            by_a, by_b = self._change(cell)
            along, across = [(cell.a, cell.a_end)], [(cell.b, cell.b_end)]
            if by_a > by_b * _LITTLE:
                along = _halves(cell.a, cell.a_end, fan.reach)
            if by_b > by_a * _LITTLE:
                across = _halves(cell.b, cell.b_end, fan.reach)
            if len(along) * len(across) == 1:
                return []
            for a, a_end in along:
                for b, b_end in across:
                    self._add(cell.fan, cell.sector, a, a_end, b, b_end)
            cell.parts.extend(range(begin, len(self._cells)))
            added = [(part.near, part.far) for part in self._cells[begin:]]
            self._ends = np.concatenate([self._ends, np.array(added, dtype=np.int64)])
        return cell.parts

    def _change(self, cell: _Cell) -> tuple[float, float]:
        """By how much distances change along each side of a cell, in all, over some of the places."""
        fan = self._fans[cell.fan]
        far = fan.some_distances(cell.sector, cell.a_end, cell.b_end)
        by_a = fan.some_distances(cell.sector, cell.a, cell.b_end) - far
        return float(by_a.sum()), float((fan.some_distances(cell.sector, cell.a_end, cell.b) - far).sum())

    def _add(self, fan: int, sector: int, a: float, a_end: float, b: float, b_end: float) -> None:
        near, far = self._corner(fan, sector, a, b), self._corner(fan, sector, a_end, b_end)
        self._cells.append(_Cell(fan, sector, a, a_end, b, b_end, near, far))

    def _corner(self, fan: int, sector: int, a: float, b: float) -> int:
        facets = len(self._fans[fan].normals)
        if b == 0 or a == 0:  # on a ray, where two sectors meet, or at the centre
            ray = -1 if a == b == 0 else sector if b == 0 else (sector - 1) % facets
            key = (fan, -2 - ray, a + b, 0.0)
        else:
            key = (fan, sector, a, b)
        if key not in self._corners:
            number = len(self._corners)
            self._distances[number] = self._fans[fan].distances(sector, a, b)
            self._corners[key] = number
        return self._corners[key]


@dataclass
class _Cell:
    """Outputs of a sector from one corner to another, and the cells that it is split into."""

    fan: int
    sector: int
    a: float
    a_end: float
    b: float
    b_end: float
    near: int
    far: int
    parts: list[int] = field(default_factory=list)


class _Falls:
    """``exp(-epsilon distance)`` of every place at corners, worked out once for a budget.

    Parameters
    ----------
    epsilon
        The budget.
    distances
        ``(c, n)``: the distances at all corners, those to come too.
    """

    def __init__(self, epsilon: float, distances: FloatArray) -> None:
        self.epsilon, self.held = epsilon, 0
        self._distances, self._values = distances, np.empty_like(distances)
        self._known = np.zeros(len(distances), dtype=np.bool_)

    def at(self, corners: slice | IntArray) -> FloatArray:
        """At some corners, ``(k, n)``."""
        numbers = np.arange(len(self._known))[corners]
        for row in numbers[~self._known[corners]].tolist():  # one by one: what lies between stays in the cache
            np.exp(np.multiply(self._distances[row], -self.epsilon, out=self._values[row]), out=self._values[row])
            self.held += self._values.shape[1]
        self._known[corners] = True
        return self._values[corners]


def _run(numbers: IntArray) -> slice | IntArray:
    """Ascending numbers as a slice, if they are one: what it takes of an array is no copy."""
    if not len(numbers) or numbers[-1] - numbers[0] + 1 > len(numbers):
        return numbers
    return slice(int(numbers[0]), int(numbers[-1]) + 1)


def is_below(plus: FloatArray, minus: FloatArray) -> BoolArray:
    """Whether sums are less than others by more than rounding can have made of it, or nothing at all."""
    return np.asarray((plus == 0) | (plus * (1 + ROUNDING) < minus))


class _Fan:
    """The sectors about the centre of some places, each over a facet.

    Parameters
    ----------
    size
        The number of all places.
    members
        Those that the sectors are about.
    points
        ``(m, r)``: where they are from the centre.
    normals
        ``(f, r)``: one for each facet, in the order of their angles, opposite ones too.
    """

    def __init__(self, size: int, members: IntArray, points: FloatArray, normals: FloatArray) -> None:
        self.size, self.members, self.normals = size, members, normals
        self._heights = np.ascontiguousarray((points @ normals.T).T)
        self._few = np.ascontiguousarray(self._heights[:, :: max(1, len(points) // _FEW)])
        self.reach = float(self._heights.max(initial=0.0))
        """How far a member is from the centre at most, in the body's norm."""
        self.is_planar = normals.shape[1] == 2
        facets = len(normals)
        if self.is_planar:
            ends = np.stack([np.linalg.solve(normals[[k, (k + 1) % facets]], np.ones(2)) for k in range(facets)])
        else:
            ends = normals / (normals * normals).sum(axis=1, keepdims=True)
        self._falls = np.maximum(1 - normals @ ends.T, 0.0)  # of each facet along each ray
        for ray in range(facets):
            self._falls[[ray, (ray + 1) % facets] if self.is_planar else [ray], ray] = 0.0

    @classmethod
    def about(cls, places: FloatArray, members: IntArray, normals: FloatArray) -> _Fan:
        """The sectors about some of the places, for the walls ``|normals v| <= 1`` of a body."""
        some = places[members]
        points = some - (some.max(axis=0) + some.min(axis=0)) / 2
        if np.linalg.matrix_rank(normals) == 1:
            axis = normals[0] / np.linalg.norm(normals[0])
            points, normals = (points @ axis)[:, np.newaxis], np.abs(normals @ axis).max().reshape(1, 1)
        both = np.concatenate([normals, -normals])
        if both.shape[1] == 2:
            both = both[np.argsort(np.arctan2(both[:, 1], both[:, 0]))]
        return cls(len(places), members, points, both)

    def distances(self, sector: int, a: float, b: float) -> FloatArray:
        """``‖z - x‖ - ‖z - centre‖`` of every place, ``(n,)``, infinite for those that are no members.

        Parameters
        ----------
        sector
            Over which facet ``z`` lies.
        a, b
            How far along the ray at the facet's end, and along that at its beginning; infinity is a limit.
        """
        found = np.full(self.size, np.inf)
        found[self.members] = self._over(self._heights, sector, a, b)
        return found

    def some_distances(self, sector: int, a: float, b: float) -> FloatArray:
        """The same for a few members."""
        return self._over(self._few, sector, a, b)

    def _over(self, heights: FloatArray, sector: int, a: float, b: float) -> FloatArray:
        fall = np.zeros(len(self.normals))
        for far, ray in ((a, sector), (b, sector - 1)):
            if far:
                along = self._falls[:, ray]
                fall[along > 0] += far * along[along > 0]
        active = np.flatnonzero(fall < np.inf)
        return np.asarray((-fall[active, np.newaxis] - heights[active]).max(axis=0))


def _groups(places: FloatArray, equations: FloatArray) -> list[IntArray]:
    """Places on each other's span, group by group. Whoever is near the span, but not on it, is in a group of its own.

    That is the safe side: what holds for the outputs of every group by itself holds for all of them together.
    """
    if not len(equations):
        return [np.arange(len(places))]
    offsets = places @ equations.T
    step = _OFF_SPAN * max(float(np.abs(places).max()), 1e-300)
    which = np.unique(np.rint(offsets / step), axis=0, return_inverse=True)[1].ravel()
    return [np.flatnonzero(which == group) for group in range(int(which.max()) + 1)]


def _halves(start: float, end: float, reach: float) -> list[tuple[float, float]]:
    """A side in two parts; in one where it is too short or too far out for doubles to tell more."""
    middle = (start + end) / 2 if end < np.inf else max(2 * start, reach)
    if middle > _FARTHEST * reach or not start < middle < end:
        return [(start, end)]
    return [(start, middle), (middle, end)]
