"""Bounds on likelihood ratios over all outputs of a noise, by branch and bound.

The problem: given coefficients ``c(s)`` over the states, is ``sum over s of c(s) k(z | s)`` positive for some output
``z`` of the noise ``k``? The bound ``Pr(E | z) <= q`` for all outputs has ``c(s) = (1 - q) Pr(s, E) - q Pr(s, not E)``.
The answer 'no' is always correct; 'yes' may be a failure to decide.

Take a centre among the locations ``x`` and the sector of outputs ``z`` over one facet of the body. With the ends ``v,
w`` of the facet, ``z`` is the centre plus ``a v + b w`` for ``a, b >= 0``. The difference of distances

    ``‖z - x‖ - ‖z - centre‖ = max over facets k of (- a (1 - n_k v) - b (1 - n_k w) - n_k x)``

decreases in ``a`` and in ``b``, is bounded, and has a limit if either goes to infinity. So between two corners
``(a, b)`` and ``(a', b')`` of a cell, which may be infinite, every difference lies between its values at the corners.
Two evaluations bound the densities of a whole cell of outputs, and the sectors cover the plane.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import atan2, ceil
from string import ascii_lowercase, digits

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.mechanisms.base import Mechanism

# The relative margin by which a sum must be smaller than another one to exclude rounding error.
ROUNDING = 1e-9

# The number of cells after which a bound counts as undecided.
MAX_CELLS = 500

# The number of cached values of distances at corners.
_CACHE_VALUES = 1 << 23

# The largest number of new corners if a cell is split along both sides: of nine corners, two exist.
_CORNERS_PER_SPLIT = 7

# A side is not split if distances change along it by less than this share of the change along the other side.
_MIN_CHANGE = 0.25

# Cells are not split beyond this multiple of the largest distance of a location from the centre.
_MAX_DISTANCE = 4096.0

# Locations are in different spans if they are farther apart across the span than this share of their coordinates.
_SPAN_TOLERANCE = 4e-15

# A bound on the quotient of two sums is written as one digit to base 36, in units of 1/35.
_DIGITS = digits + ascii_lowercase
_PARTS = len(_DIGITS) - 1

# The number of written cells after which no cell is split any more.
_MAX_WRITTEN_CELLS = 4 * MAX_CELLS

# The corners of the initial cells, in multiples of the largest distance of a location from the centre.
_FIRST_CORNERS = (0.0, 0.25, 1.0, np.inf)


class Sectors:
    """All outputs about given locations, in cells that are split when a bound requires it.

    Splits are kept for the next bound.

    Parameters
    ----------
    places
        ``(n, d)``.
    normals
        ``(m, d)``: the body is ``|normals v| <= 1`` within its span, of up to two dimensions.
    equations
        ``(e, d)``: orthonormal rows across the span. Locations in different spans have no common output, so each such
        group has its own sectors.
    """

    def __init__(self, places: FloatArray, normals: FloatArray, equations: FloatArray) -> None:
        self._fans: list[_Fan] = []
        self._corners: dict[tuple[int, int, float, float], int] = {}
        self._cells: list[_Cell] = []
        # The largest distance of a location from its centre, in the body's norm.
        self.reach = 0.0
        for members in _group_by_span(places, equations):
            fan = _Fan.from_places(places, members, normals)
            self.reach = max(self.reach, fan.reach)
            self._fans.append(fan)
        first = sum(1 + len(fan.normals) * (len(_FIRST_CORNERS) - 1) * len(_FIRST_CORNERS) for fan in self._fans)
        self._max_corners = max(_CACHE_VALUES // len(places), first)
        self._distances = np.empty((self._max_corners, len(places)))  # memory is allocated only for rows that are used
        for fan_index, fan in enumerate(self._fans):
            ends = [end * fan.reach if end else 0.0 for end in _FIRST_CORNERS] if fan.reach > 0 else [0.0, np.inf]
            across = ends if fan.is_planar else [0.0, 0.0]
            for sector in range(len(fan.normals) if fan.reach > 0 else 1):
                for a, a_end in pairwise(ends):
                    for b, b_end in pairwise(across):
                        self._add_cell(fan_index, sector, a, a_end, b, b_end)
        self._start = np.arange(len(self._cells))
        self._ends: IntArray = np.array([(cell.near, cell.far) for cell in self._cells], dtype=np.int64)
        self._first_corners = dict(self._corners)

    def check(self, parts: FloatArray, epsilon: float) -> tuple[bool, FloatArray]:
        """Check that one sum of coefficients is below another one at every output.

        Parameters
        ----------
        parts
            ``(n, 3 j)``, non-negative: ``j`` columns of the first sum, of the second, and of a third that is also
            summed.
        epsilon
            Budget: each location has the weight ``exp(-epsilon distance)``. Its product with `reach` must be at most a
            few hundred.

        Returns
        -------
        is_certain
            Whether it is certain; False also if it remains undecided.
        sums
            ``(c, 3 j)``: the sums at all corners that were checked.
        """
        self._make_room(MAX_CELLS)
        count = parts.shape[1] // 3
        sums = np.empty((self._max_corners, parts.shape[1]))
        is_asked = np.zeros(self._max_corners, dtype=np.bool_)
        is_certain = True
        frontier = self._start
        num_checked = 0
        while len(frontier):
            near, far = self._ends[frontier].T
            # Cells share corners, so each corner is summed once for a bound.
            wanted = ~is_asked
            is_asked[near] = is_asked[far] = True
            new = np.flatnonzero(wanted & is_asked)
            sums[new] = np.exp(-epsilon * self._distances[new]) @ parts
            num_checked += len(frontier)
            undecided = frontier[~is_below(sums[far, :count], sums[near, count : 2 * count]).all(axis=1)]
            # Weights do not decrease from the near to the far corner. In a cell the first sum is therefore at most that
            # at the far corner, and the second at least that at the near corner. A corner is an output itself, so a
            # corner that fails decides the result.
            is_exceeded = len(undecided) and not is_below(sums[new, :count], sums[new, count : 2 * count]).all()
            splits = (
                [] if is_exceeded or num_checked > MAX_CELLS else [self._split(cell) for cell in undecided.tolist()]
            )
            if len(splits) < len(undecided) or not all(splits):
                is_certain = False
                break
            frontier = np.array([cell for cells in splits for cell in cells], dtype=np.int64)
        return is_certain, sums[is_asked]

    def prove_bounds(self, plus: FloatArray, minus: FloatArray, epsilon: float) -> tuple[bool, str]:
        """Return cells of all outputs, in each of which one sum is below another one.

        The corners of the body must be integers. Cells are written sector by sector, counter-clockwise, from the corner
        on the positive half of the first axis or the next one after it. Locations in different spans are written from
        the right of their direction to the left.

        Parameters
        ----------
        plus, minus
            ``(n,)``, non-negative.
        epsilon
            Budget.

        Returns
        -------
        is_certain
            Whether it is certain; False if it remains undecided.
        signs
            For each cell A, B or C if it is split along the first side, the second, or both. Otherwise the bound on the
            quotient of the sums, as a digit to base 36, in units of 1/35.
        """
        results: dict[tuple[int, bool], float] = {}

        def sum_corner(corner: int, is_far: bool) -> float:
            if (corner, is_far) not in results:
                weights = np.exp(-epsilon * self._distances[corner])
                results[corner, is_far] = float(weights @ (plus if is_far else minus))
            return results[corner, is_far]

        self._make_room(_MAX_WRITTEN_CELLS)
        signs = list[str]()
        is_certain = True
        num_checked = 0
        pending = [cell for cell in self._sort_start_cells() if self._fans[self._cells[cell].fan].reach > 0][::-1]
        while pending:
            index = pending.pop()
            num_checked += 1
            cell = self._cells[index]
            above = sum_corner(cell.far, True)
            below = sum_corner(cell.near, False)
            if is_below(above, below):
                share = above / below if above > 0 else 0.0
                # Round up, to at least 1: a bound may be too large, but never too small. Masses may underflow to 0.
                signs.append(_DIGITS[max(1, ceil(_PARTS * share * (1 + ROUNDING)))])
                continue
            parts = self._split(index) if num_checked < _MAX_WRITTEN_CELLS else []
            if not parts:
                is_certain = False
                signs.append(_DIGITS[_PARTS])
                continue
            first, second = (self._cells[part] for part in parts[:2])
            signs.append("C" if len(parts) > 2 else "A" if first.a != second.a else "B")
            pending += parts[::-1]
        return is_certain, "".join(signs)

    def _sort_start_cells(self) -> list[int]:
        """Return the initial cells, sector by sector in the order of `prove_bounds`."""

        def get_sort_key(index: int) -> tuple[float, int, float]:
            cell = self._cells[index]
            fan = self._fans[cell.fan]
            x, y = np.rint([*fan.corners[cell.sector], 0.0][:2]).tolist()
            is_lower = y < 0 or (y == 0 and x < 0)
            (first, second) = [*fan.first.tolist(), 0.0][:2]
            if is_lower:
                x = -x
                y = -y
            return (0.0 if fan.is_planar else x * second - y * first), int(is_lower), atan2(y, x)

        return sorted(self._start.tolist(), key=get_sort_key)

    # ---- cells ---------------------------------------------------------------------------------------------------

    def _make_room(self, num_splits: int) -> None:
        """Remove the cells of earlier checks unless a number of cells can be split.

        Otherwise the earlier checks, and thus those of other releases, would determine the result.
        """
        if len(self._corners) + _CORNERS_PER_SPLIT * num_splits > self._max_corners:
            del self._cells[len(self._start) :]
            for cell in self._cells:
                cell.parts.clear()
            self._ends = self._ends[: len(self._start)]
            self._corners = dict(self._first_corners)

    def _split(self, index: int) -> list[int]:
        """Return the parts of a cell. Empty if the cache is full or a split changes nothing."""
        cell = self._cells[index]
        if not cell.parts:
            if len(self._corners) + _CORNERS_PER_SPLIT > self._max_corners:
                return []
            fan = self._fans[cell.fan]
            begin = len(self._cells)
            by_a, by_b = self._measure_change(cell)
            along = [(cell.a, cell.a_end)]
            across = [(cell.b, cell.b_end)]
            if by_a > by_b * _MIN_CHANGE:
                along = _halve(cell.a, cell.a_end, fan.reach)
            if by_b > by_a * _MIN_CHANGE:
                across = _halve(cell.b, cell.b_end, fan.reach)
            if len(along) * len(across) == 1:
                return []
            for a, a_end in along:
                for b, b_end in across:
                    self._add_cell(cell.fan, cell.sector, a, a_end, b, b_end)
            cell.parts.extend(range(begin, len(self._cells)))
            added = [(part.near, part.far) for part in self._cells[begin:]]
            self._ends = np.concatenate([self._ends, np.array(added, dtype=np.int64)])
        return cell.parts

    def _measure_change(self, cell: _Cell) -> tuple[float, float]:
        """Return the total change of distances along each side of a cell."""
        fan = self._fans[cell.fan]
        far = fan.compute_distances(cell.sector, cell.a_end, cell.b_end)
        by_a = fan.compute_distances(cell.sector, cell.a, cell.b_end) - far
        return float(by_a.sum()), float((fan.compute_distances(cell.sector, cell.a_end, cell.b) - far).sum())

    def _add_cell(self, fan: int, sector: int, a: float, a_end: float, b: float, b_end: float) -> None:
        near = self._get_corner(fan, sector, a, b)
        far = self._get_corner(fan, sector, a_end, b_end)
        self._cells.append(_Cell(fan, sector, a, a_end, b, b_end, near, far))

    def _get_corner(self, fan: int, sector: int, a: float, b: float) -> int:
        facets = len(self._fans[fan].normals)
        # Two sectors share a ray, and all of them share the centre. Each shared corner has one key, with a negative
        # number in place of the sector.
        if b == 0 or a == 0:
            ray = -1 if a == b == 0 else sector if b == 0 else (sector - 1) % facets
            key = (fan, -2 - ray, a + b, 0.0)
        else:
            key = (fan, sector, a, b)
        if key not in self._corners:
            corner = len(self._corners)
            self._distances[corner] = np.inf  # for locations that are not members
            self._distances[corner, self._fans[fan].members] = self._fans[fan].compute_distances(sector, a, b)
            self._corners[key] = corner
        return self._corners[key]


@dataclass
class _Cell:
    """Outputs of a sector between two corners, and the cells into which they are split."""

    fan: int
    sector: int
    a: float
    a_end: float
    b: float
    b_end: float
    near: int
    far: int
    parts: list[int] = field(default_factory=list)


def is_below(plus: FloatArray | float, minus: FloatArray | float) -> BoolArray:
    """Return whether sums are smaller than others beyond rounding, or zero."""
    return np.asarray((np.asarray(plus) == 0) | (np.asarray(plus) * (1 + ROUNDING) < minus))


class _Fan:
    """The sectors about the centre of given locations, each over a facet.

    Parameters
    ----------
    members
        Indices of the locations.
    points
        ``(m, r)``: their coordinates relative to the centre.
    normals
        ``(f, r)``: one for each facet, in the order of their angles, including opposite ones.
    first
        ``(d,)``: location of the first member.
    axis
        ``(d,)``: direction of a body that is a segment.
    """

    def __init__(
        self,
        members: IntArray,
        points: FloatArray,
        normals: FloatArray,
        first: FloatArray,
        axis: FloatArray | None = None,
    ) -> None:
        self.members = members
        self.normals = normals
        self.first = first
        self._heights = np.ascontiguousarray((points @ normals.T).T)
        # The largest distance of a member from the centre, in the body's norm.
        self.reach = float(self._heights.max(initial=0.0))
        self.is_planar = normals.shape[1] == 2
        facets = len(normals)
        if self.is_planar:
            ends = np.stack([np.linalg.solve(normals[[k, (k + 1) % facets]], np.ones(2)) for k in range(facets)])
        else:
            ends = normals / (normals * normals).sum(axis=1, keepdims=True)
        # (f, d): the corner of the body at which each sector begins.
        self.corners = np.roll(ends, 1, axis=0) if self.is_planar else ends if axis is None else ends * axis
        # The rate by which the norm of each facet grows more slowly than the body's norm along each ray. It must be
        # exactly 0 for the facets that meet there, because an infinite end times a rounding error would be infinite.
        self._decreases = np.maximum(1 - normals @ ends.T, 0.0)
        for ray in range(facets):
            self._decreases[[ray, (ray + 1) % facets] if self.is_planar else [ray], ray] = 0.0

    @classmethod
    def from_places(cls, places: FloatArray, members: IntArray, normals: FloatArray) -> _Fan:
        """Create the sectors about given locations, for the body ``|normals v| <= 1``."""
        distinct = places[members]
        points = distinct - (distinct.max(axis=0) + distinct.min(axis=0)) / 2
        axis = None
        if np.linalg.matrix_rank(normals) == 1:
            axis = normals[0] / np.linalg.norm(normals[0])
            points = (points @ axis)[:, np.newaxis]
            normals = np.abs(normals @ axis).max().reshape(1, 1)
        both = np.concatenate([normals, -normals])
        if both.shape[1] == 2:
            both = both[np.argsort(np.arctan2(both[:, 1], both[:, 0]))]
        return cls(members, points, both, distinct[0], axis)

    def compute_distances(self, sector: int, a: float, b: float) -> FloatArray:
        """Return ``‖z - x‖ - ‖z - centre‖`` of every member, ``(m,)``.

        Parameters
        ----------
        sector
            Index of the facet over which ``z`` lies.
        a, b
            Coordinates along the rays at the facet's end and at its beginning. Infinity is a limit.
        """
        fall = np.zeros(len(self.normals))
        for far, ray in ((a, sector), (b, sector - 1)):
            if far:
                along = self._decreases[:, ray]
                fall[along > 0] += far * along[along > 0]
        active = np.flatnonzero(fall < np.inf)
        return np.asarray((-fall[active, np.newaxis] - self._heights[active]).max(axis=0))


def _group_by_span(places: FloatArray, equations: FloatArray) -> list[IntArray]:
    """Group locations by span. A location near a span, but not on it, has its own group.

    This is conservative: a bound that holds for the outputs of every group separately holds for all of them together.
    """
    if not len(equations):
        return [np.arange(len(places))]
    offsets = places @ equations.T
    step = _SPAN_TOLERANCE * max(float(np.abs(places).max()), 1e-300)
    group_of = np.unique(np.rint(offsets / step), axis=0, return_inverse=True)[1].ravel()
    return [np.flatnonzero(group_of == group) for group in range(int(group_of.max()) + 1)]


def _halve(start: float, end: float, reach: float) -> list[tuple[float, float]]:
    """Return the two halves of a side, or the side if it is too short or too far out."""
    middle = (start + end) / 2 if end < np.inf else max(2 * start, reach)
    if middle > _MAX_DISTANCE * reach or not start < middle < end:
        return [(start, end)]
    return [(start, middle), (middle, end)]


# If the noise decreases by more than the exponential of this between two states, a bound counts as undecided.
_MAX_EXPONENT = 300.0

# The number of locations from which privacy losses are taken if only the losses of a noise are known.
_NUM_CENTRES = 32

# Positive coefficients below this share of the largest are raised to it, and negative ones are dropped.
_MIN_COEFFICIENT = 1e-300


@dataclass(frozen=True, eq=False)
class OddsBounds:
    """Upper bounds on the odds of one mass against another one, for all outputs.

    Parameters
    ----------
    log_odds
        ``(j,)``: logarithms of the bounds.
    plus, minus
        ``(n, j)``: positive and negative parts of ``with - exp(log_odds) without`` at each location, up to a factor.
    against
        ``(n, j)``: ``exp(log_odds) without``, up to the same factor.
    """

    log_odds: FloatArray
    plus: FloatArray
    minus: FloatArray
    against: FloatArray

    @cached_property
    def parts(self) -> FloatArray:
        """The three arrays side by side, ``(n, 3 j)``."""
        return np.concatenate([self.plus, self.minus, self.against], axis=1)

    @classmethod
    def from_masses(cls, log_with: FloatArray, log_without: FloatArray, log_odds: FloatArray) -> OddsBounds:
        """Create bounds from the logarithms of masses, ``(n, j)``, -inf for zero."""
        against = log_without + log_odds
        top = np.maximum(np.maximum(log_with.max(axis=0), against.max(axis=0)), -np.finfo(np.float64).max)
        first = np.exp(log_with - top)
        second = np.exp(against - top)
        with np.errstate(invalid="ignore"):
            share = -np.expm1(-np.abs(log_with - against))  # NaN if both masses are zero
        plus = np.where(log_with > against, np.maximum(first * share, _MIN_COEFFICIENT), 0.0)
        minus = np.where(against > log_with, second * share, 0.0)
        return cls(log_odds, plus, np.where(minus < _MIN_COEFFICIENT, 0.0, minus), second)

    def select(self, index: int) -> OddsBounds:
        """Return a single bound."""
        column = slice(index, index + 1)
        return OddsBounds(self.log_odds[column], self.plus[:, column], self.minus[:, column], self.against[:, column])

    def log_odds_at(self, plus: FloatArray, minus: FloatArray, against: FloatArray) -> FloatArray:
        """Return the log odds ``(c, j)`` at some outputs, from the sums of the three parts there."""
        with np.errstate(divide="ignore", invalid="ignore"):
            odds = self.log_odds + np.log1p(np.maximum((plus - minus) / against, -1.0))
        return np.where(against > 0, odds, np.where(plus > 0, np.inf, -np.inf))


@dataclass(frozen=True, eq=False)
class BoundCheck:
    """The result of checking bounds.

    Parameters
    ----------
    is_certain
        Whether no output exceeds any bound. It is never wrongly true.
    max_log_odds
        ``(j,)``: the largest log odds among the outputs that were checked.
    """

    is_certain: bool
    max_log_odds: FloatArray


class Outputs(ABC):
    """All outputs of a noise of one shape about ``N`` locations, for any budget.

    Parameters
    ----------
    values
        ``(N, d)``: the location to which the noise of each state is added.
    """

    def __init__(self, values: npt.ArrayLike) -> None:
        places, which = np.unique(np.asarray(values), axis=0, return_inverse=True)
        # (n, d): the distinct locations.
        self.places: FloatArray = places.astype(np.float64)
        self.place_index: IntArray = np.asarray(which, dtype=np.int64).ravel()

    def sum_by_place(self, log_masses: FloatArray) -> FloatArray:
        """Return the log masses ``(n, j)`` of the locations, from those ``(N, j)`` of the states."""
        if len(self.places) == len(log_masses):
            sums = np.empty_like(log_masses)
            sums[self.place_index] = log_masses
            return sums
        sums = np.full((len(self.places), log_masses.shape[1]), -np.inf)
        np.logaddexp.at(sums, self.place_index, log_masses)
        return sums

    @abstractmethod
    def check(self, bounds: OddsBounds, epsilon: float) -> BoundCheck:
        """Check that no output exceeds a bound, for a budget."""

    def prove_bounds(self, bounds: OddsBounds, epsilon: float) -> tuple[bool, tuple[str, ...]]:
        """Check a single bound, and return cells that prove it. See `Sectors.prove_bounds`.

        Parameters
        ----------
        bounds
            A single bound.
        epsilon
            Budget.

        Returns
        -------
        tuple
            Whether it is certain, and the signs of each part. The signs are empty if there are finitely many outputs or
            no cells.
        """
        return self.check(bounds, epsilon).is_certain, ("",)


class PolytopeOutputs(Outputs):
    """Outputs of noise ``exp(-epsilon ‖z - x‖_K)`` for a polytope of up to two dimensions.

    Parameters
    ----------
    values
        ``(N, d)``.
    normals
        ``(m, d)``: the symmetric body is ``|normals v| <= 1`` within its span.
    equations
        ``(e, d)``: orthonormal rows across the span.
    """

    def __init__(self, values: npt.ArrayLike, normals: FloatArray, equations: FloatArray) -> None:
        super().__init__(values)
        self._sectors = Sectors(self.places, normals, equations) if len(normals) else None

    def check(self, bounds: OddsBounds, epsilon: float) -> BoundCheck:
        """Check bounds by branch and bound over all outputs. See `dphmm.events.output_bounds`."""
        if self._sectors is None:  # every location is its own only output
            parts = bounds.plus, bounds.minus, bounds.against
            return BoundCheck(bool(is_below(*parts[:2]).all()), bounds.log_odds_at(*parts).max(axis=0))
        if epsilon * self._sectors.reach > _MAX_EXPONENT:  # undecided, and no output was checked
            return BoundCheck(False, np.full(len(bounds.log_odds), -np.inf))
        is_certain, sums = self._sectors.check(bounds.parts, epsilon)
        return BoundCheck(is_certain, bounds.log_odds_at(*np.split(sums, 3, axis=1)).max(axis=0))

    def prove_bounds(self, bounds: OddsBounds, epsilon: float) -> tuple[bool, tuple[str, ...]]:
        """Check a single bound, and return cells that prove it. See `Outputs.prove_bounds`."""
        if self._sectors is None or epsilon * self._sectors.reach > _MAX_EXPONENT:
            return super().prove_bounds(bounds, epsilon)
        is_certain, signs = self._sectors.prove_bounds(bounds.plus[:, 0], bounds.minus[:, 0], epsilon)
        return is_certain, (signs,)


class BoundedOutputs(Outputs):
    """Outputs of a noise of which only privacy losses are known. Sound, but not tight.

    The density of an output under one location is within a factor of exp(loss) of its density under another one. This
    is applied from several locations in turn.

    Parameters
    ----------
    values
        ``(N, d)``.
    mechanism
        The noise for any budget. Losses are proportional to it.
    """

    def __init__(self, values: npt.ArrayLike, mechanism: Mechanism) -> None:
        super().__init__(values)
        centres = self.places[
            np.linspace(0, len(self.places) - 1, min(_NUM_CENTRES, len(self.places))).astype(np.int64)
        ]
        is_integer = np.asarray(values).dtype.kind in "iu"
        dtype = np.int64 if is_integer else np.float64
        self._losses = np.stack(
            [mechanism.privacy_loss(output.astype(dtype), self.places.astype(dtype)) for output in centres]
        )
        self._losses /= float(mechanism.epsilon)

    def check(self, bounds: OddsBounds, epsilon: float) -> BoundCheck:
        """Check bounds from each of a few locations to all others."""
        reach = epsilon * self._losses
        ratios = np.exp(reach[reach.max(axis=1) <= _MAX_EXPONENT])
        is_certain = is_below(ratios @ bounds.plus, (1 / ratios) @ bounds.minus).any(axis=0).all()
        sums = (part.sum(axis=0, keepdims=True) for part in (bounds.plus, bounds.minus, bounds.against))
        # No output is evaluated. Without a release the odds are those of all masses, and some output attains at least
        # these.
        return BoundCheck(bool(is_certain), bounds.log_odds_at(*sums)[0])


class PartedOutputs(Outputs):
    """Outputs of a noise with different parts for different states. Sound, but not tight.

    No output exceeds a bound over all states if it exceeds it over none of the parts. Far out, or if the supports
    differ, an output identifies the part, and little is lost.

    Parameters
    ----------
    parts
        The outputs of each part's noise about the locations of its states, and the indices of those states.
    at
        Function from a budget to ``(c, N)``: log densities of some outputs to check, in every state.
    """

    def __init__(self, parts: Sequence[tuple[Outputs, IntArray]], at: Callable[[float], FloatArray]) -> None:
        # Each state is its own location: states of different parts at one location have different outputs.
        super().__init__(np.arange(sum(len(states) for _, states in parts))[:, np.newaxis])
        self._parts = parts
        self._at = at

    def check(self, bounds: OddsBounds, epsilon: float) -> BoundCheck:
        """Check bounds part by part. The largest odds are those over all parts together."""
        is_certain = all(
            part.check(_restrict(part, bounds, states), epsilon).is_certain for part, states in self._parts
        )
        log_table = self._at(epsilon)
        top = log_table.max(axis=1, keepdims=True)
        weights = np.exp(log_table - np.where(np.isfinite(top), top, 0.0))
        sums = (weights @ part for part in (bounds.plus, bounds.minus, bounds.against))
        return BoundCheck(is_certain, bounds.log_odds_at(*sums).max(axis=0))

    def prove_bounds(self, bounds: OddsBounds, epsilon: float) -> tuple[bool, tuple[str, ...]]:
        """Check a single bound part by part."""
        results = [part.prove_bounds(_restrict(part, bounds, states), epsilon) for part, states in self._parts]
        return all(is_certain for is_certain, _ in results), tuple(signs for _, (signs,) in results)


def _restrict(part: Outputs, bounds: OddsBounds, states: IntArray) -> OddsBounds:
    """Return the bounds over the states of one part, by its locations."""

    def sum_part(values: FloatArray) -> FloatArray:
        sums = np.zeros((len(part.places), values.shape[1]))
        np.add.at(sums, part.place_index, values[states])
        return sums

    return OddsBounds(bounds.log_odds, sum_part(bounds.plus), sum_part(bounds.minus), sum_part(bounds.against))


class TableOutputs(Outputs):
    """Outputs of finite tables ``k(z | s)``, one for each budget. All outputs are checked.

    Parameters
    ----------
    size
        Number of states ``N``.
    at
        Function from a budget to ``(N, Z)``: the log probability of each output in each state.
    """

    def __init__(self, size: int, at: Callable[[float], FloatArray]) -> None:
        super().__init__(np.arange(size)[:, np.newaxis])
        self._at = at
        self._tables: dict[float, FloatArray] = {}

    def check(self, bounds: OddsBounds, epsilon: float) -> BoundCheck:
        """Check bounds at every output."""
        if epsilon not in self._tables:  # a table for each of the few budgets that are tried
            logs = self._at(epsilon)
            top = logs.max(axis=0, keepdims=True)
            self._tables[epsilon] = np.exp(logs - np.where(np.isfinite(top), top, 0.0)).T
        sums = [self._tables[epsilon] @ part for part in (bounds.plus, bounds.minus, bounds.against)]
        return BoundCheck(bool(is_below(*sums[:2]).all()), bounds.log_odds_at(*sums).max(axis=0))


def make_outputs(mechanism: Mechanism, values: npt.ArrayLike) -> Outputs:
    """Create the outputs of a mechanism, for any budget.

    Parameters
    ----------
    mechanism
        The mechanism that determines the shape of the noise.
    values
        ``(N, d)``: the true value that is released for each state.
    """
    halfspaces = mechanism.halfspaces
    return BoundedOutputs(values, mechanism) if halfspaces is None else PolytopeOutputs(values, *halfspaces)
