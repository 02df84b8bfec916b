"""Can any output of a noise take a likelihood ratio too far? Answered for all outputs at once, and never wrongly yes.

A question is a list of coefficients ``c(s)`` over the states: may ``sum over s of c(s) k(z | s)`` be positive for some
output ``z`` of the noise ``k``? 'No output takes ``Pr(E | z)`` above q' is the one with ``c(s) = (1 - q) Pr(s, E) - q
Pr(s, not E)``.

Take a centre among the places ``x`` and the sector of outputs ``z`` over one facet of the body: with the ends ``v, w``
of the facet, ``z`` is the centre plus ``a v + b w`` for ``a, b >= 0``. Less what it is at the centre, the distance

    ``‖z - x‖ - ‖z - centre‖ = max over facets k of (- a (1 - n_k v) - b (1 - n_k w) - n_k x)``

falls in both ``a`` and ``b``, is bounded, and has a limit where either goes to infinity. So between two corners
``(a, b)`` and ``(a', b')`` of a cell, infinite ones too, every place's distance lies between its values there: two
evaluations bound the densities of a whole cell of outputs, and the sectors cover all of the plane.
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

ROUNDING = 1e-9
"""By how much of itself a sum must be less than another, so that rounding cannot have made it so."""

MOST_CELLS = 500
"""The number of cells looked at before a question is given up."""

_HELD = 1 << 23
"""Distances at corners are kept up to this number of values."""

_LITTLE = 0.25
"""A side along which distances change by less than this share of what they do along the other is not split."""

_FARTHEST = 4096.0
"""Cells are not split farther out than this many times as far as places are from their centre."""

_OFF_SPAN = 4e-15
"""Places that are off each other's span by more than this share of their coordinates are not on it."""

_DIGITS = digits + ascii_lowercase
_PARTS = len(_DIGITS) - 1
_MOST_WRITTEN = 4 * MOST_CELLS
"""After this many cells none is halved any more where they are written down."""

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
        sums, known = np.empty((self._most, parts.shape[1])), np.zeros(self._most, dtype=np.bool_)
        certain, frontier, looked = True, self._start, 0
        while len(frontier):
            near, far = self._ends[frontier].T
            wanted = ~known
            known[near] = known[far] = True
            new = np.flatnonzero(wanted & known)
            sums[new] = np.exp(-epsilon * self._distances[new]) @ parts
            looked += len(frontier)
            open_ = frontier[~is_below(sums[far, :count], sums[near, count : 2 * count]).all(axis=1)]
            passed = len(open_) and not is_below(sums[new, :count], sums[new, count : 2 * count]).all()
            splits = [] if passed or looked > MOST_CELLS else [self._split(cell) for cell in open_.tolist()]
            if len(splits) < len(open_) or not all(splits):
                certain = False
                break
            frontier = np.array([cell for cells in splits for cell in cells], dtype=np.int64)
        return certain, sums[known]

    def cells(self, plus: FloatArray, minus: FloatArray, epsilon: float) -> tuple[bool, str]:
        """Cells of all outputs, in each of which the sum of some coefficients is less than that of others.

        They are for bodies with whole corners, and are written sector by sector, from the corner on the positive half
        of the first axis or next to it on, counter-clockwise; places off each other's span from the right of its
        direction to the left.

        Parameters
        ----------
        plus, minus
            ``(n,)``, not negative.
        epsilon
            The budget.

        Returns
        -------
        certain
            False where cells do not suffice to tell.
        signs
            For each cell A, B or C where it is halved along the first side, the second, or both; else the bound on the
            quotient of both sums, as a digit to base 36, in parts of 35.
        """
        found: dict[tuple[int, bool], float] = {}

        def summed(corner: int, is_far: bool) -> float:
            if (corner, is_far) not in found:
                weights = np.exp(-epsilon * self._distances[corner])
                found[corner, is_far] = float(weights @ (plus if is_far else minus))
            return found[corner, is_far]

        signs, certain, looked = list[str](), True, 0
        waiting = [cell for cell in self._in_order() if self._fans[self._cells[cell].fan].reach > 0][::-1]
        while waiting:
            number, looked = waiting.pop(), looked + 1
            cell = self._cells[number]
            above, below = summed(cell.far, True), summed(cell.near, False)
            if is_below(above, below):
                share = above / below if above > 0 else 0.0
                signs.append(_DIGITS[max(1, ceil(_PARTS * share * (1 + ROUNDING)))])  # faint masses count as some
                continue
            parts = self._split(number) if looked < _MOST_WRITTEN else []
            if not parts:
                certain = False
                signs.append(_DIGITS[_PARTS])
                continue
            first, second = (self._cells[part] for part in parts[:2])
            signs.append("C" if len(parts) > 2 else "A" if first.a != second.a else "B")
            waiting += parts[::-1]
        return certain, "".join(signs)

    def _in_order(self) -> list[int]:
        """The cells that each sector begins with, sector by sector in the order of `cells`."""

        def place(number: int) -> tuple[float, int, float]:
            cell = self._cells[number]
            fan = self._fans[cell.fan]
            x, y = np.rint([*fan.corners[cell.sector], 0.0][:2]).tolist()
            is_lower, (first, second) = y < 0 or (y == 0 and x < 0), [*fan.first.tolist(), 0.0][:2]
            if is_lower:
                x, y = -x, -y
            return (0.0 if fan.is_planar else x * second - y * first), int(is_lower), atan2(y, x)

        return sorted(self._start.tolist(), key=place)

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
        """By how much distances change along each side of a cell, in all."""
        fan = self._fans[cell.fan]
        far = fan.distances(cell.sector, cell.a_end, cell.b_end)
        by_a = fan.distances(cell.sector, cell.a, cell.b_end) - far
        return float(by_a.sum()), float((fan.distances(cell.sector, cell.a_end, cell.b) - far).sum())

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
            self._distances[number] = np.inf  # for places that are no members
            self._distances[number, self._fans[fan].members] = self._fans[fan].distances(sector, a, b)
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


def is_below(plus: FloatArray | float, minus: FloatArray | float) -> BoolArray:
    """Whether sums are less than others by more than rounding can have made of it, or nothing at all."""
    return np.asarray((np.asarray(plus) == 0) | (np.asarray(plus) * (1 + ROUNDING) < minus))


class _Fan:
    """The sectors about the centre of some places, each over a facet.

    Parameters
    ----------
    members
        The numbers of the places that the sectors are about.
    points
        ``(m, r)``: where they are from the centre.
    normals
        ``(f, r)``: one for each facet, in the order of their angles, opposite ones too.
    first
        ``(d,)``: where the first member is.
    axis
        ``(d,)``: the direction of a body that is a segment.
    """

    def __init__(
        self,
        members: IntArray,
        points: FloatArray,
        normals: FloatArray,
        first: FloatArray,
        axis: FloatArray | None = None,
    ) -> None:
        self.members, self.normals, self.first = members, normals, first
        self._heights = np.ascontiguousarray((points @ normals.T).T)
        self.reach = float(self._heights.max(initial=0.0))
        """How far a member is from the centre at most, in the body's norm."""
        self.is_planar = normals.shape[1] == 2
        facets = len(normals)
        if self.is_planar:
            ends = np.stack([np.linalg.solve(normals[[k, (k + 1) % facets]], np.ones(2)) for k in range(facets)])
        else:
            ends = normals / (normals * normals).sum(axis=1, keepdims=True)
        self.corners = np.roll(ends, 1, axis=0) if self.is_planar else ends if axis is None else ends * axis
        """``(f, d)``: the corner of the body at which each sector begins."""
        self._falls = np.maximum(1 - normals @ ends.T, 0.0)  # of each facet along each ray
        for ray in range(facets):
            self._falls[[ray, (ray + 1) % facets] if self.is_planar else [ray], ray] = 0.0

    @classmethod
    def about(cls, places: FloatArray, members: IntArray, normals: FloatArray) -> _Fan:
        """The sectors about some of the places, for the walls ``|normals v| <= 1`` of a body."""
        some = places[members]
        points, axis = some - (some.max(axis=0) + some.min(axis=0)) / 2, None
        if np.linalg.matrix_rank(normals) == 1:
            axis = normals[0] / np.linalg.norm(normals[0])
            points, normals = (points @ axis)[:, np.newaxis], np.abs(normals @ axis).max().reshape(1, 1)
        both = np.concatenate([normals, -normals])
        if both.shape[1] == 2:
            both = both[np.argsort(np.arctan2(both[:, 1], both[:, 0]))]
        return cls(members, points, both, some[0], axis)

    def distances(self, sector: int, a: float, b: float) -> FloatArray:
        """``‖z - x‖ - ‖z - centre‖`` of every member, ``(m,)``.

        Parameters
        ----------
        sector
            Over which facet ``z`` lies.
        a, b
            How far along the ray at the facet's end, and along that at its beginning; infinity is a limit.
        """
        fall = np.zeros(len(self.normals))
        for far, ray in ((a, sector), (b, sector - 1)):
            if far:
                along = self._falls[:, ray]
                fall[along > 0] += far * along[along > 0]
        active = np.flatnonzero(fall < np.inf)
        return np.asarray((-fall[active, np.newaxis] - self._heights[active]).max(axis=0))


def _groups(places: FloatArray, equations: FloatArray) -> list[IntArray]:
    """Places on each other's span, group by group. A place near the span, but not on it, is in a group of its own.

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


_STEEP = 300.0
"""Where noise falls by more than the exponential of this between two states, a question is answered 'it may be'."""

_CENTRES = 32
"""How many places privacy losses are taken from where nothing more is known of a noise."""

_FAINT = 1e-300
"""Positive coefficients below this share of the greatest count as this share, and negative ones as nothing."""


@dataclass(frozen=True, eq=False)
class Questions:
    """Whether the odds of some masses against others pass a bound at some output: several questions at once.

    Parameters
    ----------
    log_odds
        ``(j,)``: the logarithms of the bounds.
    plus, minus
        ``(n, j)``: the parts above and below zero of ``with - exp(log_odds) without`` at each place, up to a factor.
    against
        ``(n, j)``: ``exp(log_odds) without``, up to the same factor.
    """

    log_odds: FloatArray
    plus: FloatArray
    minus: FloatArray
    against: FloatArray

    @cached_property
    def parts(self) -> FloatArray:
        """All three beside each other, ``(n, 3 j)``."""
        return np.concatenate([self.plus, self.minus, self.against], axis=1)

    @classmethod
    def from_masses(cls, log_with: FloatArray, log_without: FloatArray, log_odds: FloatArray) -> Questions:
        """The questions about masses ``(n, j)`` that are given by their logarithms, minus infinity for none."""
        against = log_without + log_odds
        top = np.maximum(np.maximum(log_with.max(axis=0), against.max(axis=0)), -np.finfo(np.float64).max)
        first, second = np.exp(log_with - top), np.exp(against - top)
        with np.errstate(invalid="ignore"):
            share = -np.expm1(-np.abs(log_with - against))  # NaN where both are none
        plus = np.where(log_with > against, np.maximum(first * share, _FAINT), 0.0)
        minus = np.where(against > log_with, second * share, 0.0)
        return cls(log_odds, plus, np.where(minus < _FAINT, 0.0, minus), second)

    def only(self, number: int) -> Questions:
        """One of them alone."""
        one = slice(number, number + 1)
        return Questions(self.log_odds[one], self.plus[:, one], self.minus[:, one], self.against[:, one])

    def reached(self, plus: FloatArray, minus: FloatArray, against: FloatArray) -> FloatArray:
        """The log odds ``(c, j)`` at some outputs, from the sums of the three parts there."""
        with np.errstate(divide="ignore", invalid="ignore"):
            odds = self.log_odds + np.log1p(np.maximum((plus - minus) / against, -1.0))
        return np.where(against > 0, odds, np.where(plus > 0, np.inf, -np.inf))


@dataclass(frozen=True, eq=False)
class Finding:
    """What was found of some questions.

    Parameters
    ----------
    certain
        Whether no output passes any bound. Never wrongly true.
    highest
        ``(j,)``: the highest log odds among the outputs that were looked at.
    """

    certain: bool
    highest: FloatArray


class Outputs(ABC):
    """All outputs of a noise of one shape about ``N`` places, at any budget.

    Parameters
    ----------
    values
        ``(N, d)``: the place that the noise of each state is about.
    """

    def __init__(self, values: npt.ArrayLike) -> None:
        places, which = np.unique(np.asarray(values), axis=0, return_inverse=True)
        self.places: FloatArray = places.astype(np.float64)
        """``(n, d)``: the different places."""
        self.which: IntArray = np.asarray(which, dtype=np.int64).ravel()

    def gathered(self, log_masses: FloatArray) -> FloatArray:
        """The logarithms ``(n, j)`` of the mass at each place, from those ``(N, j)`` of each state."""
        if len(self.places) == len(log_masses):
            found = np.empty_like(log_masses)
            found[self.which] = log_masses
            return found
        found = np.full((len(self.places), log_masses.shape[1]), -np.inf)
        np.logaddexp.at(found, self.which, log_masses)
        return found

    @abstractmethod
    def ask(self, questions: Questions, epsilon: float) -> Finding:
        """Whether some output at a budget passes some bound."""

    def cells(self, questions: Questions, epsilon: float) -> tuple[bool, tuple[str, ...]]:
        """Whether no output passes one question's bound, and cells that show it, of each part: see `Sectors.cells`.

        Parameters
        ----------
        questions
            A single one.
        epsilon
            The budget.

        Returns
        -------
        tuple
            Whether it is certain, and the signs; none where outputs are finitely many, or are in no cells.
        """
        return self.ask(questions, epsilon).certain, ("",)


class PolytopeOutputs(Outputs):
    """The outputs of noise ``exp(-epsilon ‖z - x‖_K)`` for a symmetric polytope of up to two dimensions.

    Parameters
    ----------
    values
        ``(N, d)``.
    normals
        ``(m, d)``: the body is ``|normals v| <= 1`` within its span.
    equations
        ``(e, d)``: orthonormal rows across the span.
    """

    def __init__(self, values: npt.ArrayLike, normals: FloatArray, equations: FloatArray) -> None:
        super().__init__(values)
        self._sectors = Sectors(self.places, normals, equations) if len(normals) else None

    def ask(self, questions: Questions, epsilon: float) -> Finding:
        """By branch and bound over all outputs: see `dphmm.events.outputs`."""
        if self._sectors is None:  # every place is its own output
            parts = questions.plus, questions.minus, questions.against
            return Finding(bool(is_below(*parts[:2]).all()), questions.reached(*parts).max(axis=0))
        if epsilon * self._sectors.reach > _STEEP:
            return Finding(False, np.full(len(questions.log_odds), -np.inf))
        certain, sums = self._sectors.ask(questions.parts, epsilon)
        return Finding(certain, questions.reached(*np.split(sums, 3, axis=1)).max(axis=0))

    def cells(self, questions: Questions, epsilon: float) -> tuple[bool, tuple[str, ...]]:
        """As `Outputs.cells`."""
        if self._sectors is None or epsilon * self._sectors.reach > _STEEP:
            return super().cells(questions, epsilon)
        certain, signs = self._sectors.cells(questions.plus[:, 0], questions.minus[:, 0], epsilon)
        return certain, (signs,)


class BoundedOutputs(Outputs):
    """The outputs of any noise of which only privacy losses between places are known: sound, and wasteful.

    The density of an output is, at every place, that at another within a factor of the exponential of the loss between
    the two. This is used of one place after another.

    Parameters
    ----------
    values
        ``(N, d)``.
    mechanism
        The noise at any budget: losses scale with it.
    """

    def __init__(self, values: npt.ArrayLike, mechanism: Mechanism) -> None:
        super().__init__(values)
        place = self.places[np.linspace(0, len(self.places) - 1, min(_CENTRES, len(self.places))).astype(np.int64)]
        whole = np.asarray(values).dtype.kind in "iu"
        kind = np.int64 if whole else np.float64
        self._losses = np.stack([mechanism.privacy_loss(one.astype(kind), self.places.astype(kind)) for one in place])
        self._losses /= float(mechanism.epsilon)

    def ask(self, questions: Questions, epsilon: float) -> Finding:
        """From one of a few places to all others."""
        reach = epsilon * self._losses
        grown = np.exp(reach[reach.max(axis=1) <= _STEEP])
        certain = is_below(grown @ questions.plus, (1 / grown) @ questions.minus).any(axis=0).all()
        sums = (part.sum(axis=0, keepdims=True) for part in (questions.plus, questions.minus, questions.against))
        return Finding(bool(certain), questions.reached(*sums)[0])


class PartedOutputs(Outputs):
    """The outputs of a noise that is another one for each part of the states: sound, and wasteful.

    No output passes a bound by all states together if it passes it by none of the parts. (Far out, and where the noises
    have different supports, an output tells the part, so that little is wasted.)

    Parameters
    ----------
    parts
        The outputs of each part's noise about the places of its states, and the numbers of those states.
    at
        A function from a budget to ``(c, N)``: the log density, in every state, of some outputs to look at.
    """

    def __init__(self, parts: Sequence[tuple[Outputs, IntArray]], at: Callable[[float], FloatArray]) -> None:
        super().__init__(np.arange(sum(len(states) for _, states in parts))[:, np.newaxis])
        self._parts, self._at = parts, at

    def ask(self, questions: Questions, epsilon: float) -> Finding:
        """Part by part; the highest odds are those of all parts together at the outputs to look at."""
        certain = all(part.ask(_gathered(part, questions, states), epsilon).certain for part, states in self._parts)
        log_table = self._at(epsilon)
        top = log_table.max(axis=1, keepdims=True)
        weights = np.exp(log_table - np.where(np.isfinite(top), top, 0.0))
        sums = (weights @ part for part in (questions.plus, questions.minus, questions.against))
        return Finding(certain, questions.reached(*sums).max(axis=0))

    def cells(self, questions: Questions, epsilon: float) -> tuple[bool, tuple[str, ...]]:
        """Part by part."""
        found = [part.cells(_gathered(part, questions, states), epsilon) for part, states in self._parts]
        return all(certain for certain, _ in found), tuple(signs for _, (signs,) in found)


def _gathered(part: Outputs, questions: Questions, states: IntArray) -> Questions:
    """The questions about the states of one part, by its places."""

    def summed(values: FloatArray) -> FloatArray:
        found = np.zeros((len(part.places), values.shape[1]))
        np.add.at(found, part.which, values[states])
        return found

    return Questions(questions.log_odds, summed(questions.plus), summed(questions.minus), summed(questions.against))


class TableOutputs(Outputs):
    """The outputs of finite tables ``k(z | s)``, one for each budget: all are looked at, so that nothing is wasted.

    Parameters
    ----------
    size
        The number of states ``N``.
    at
        A budget → ``(N, Z)``: the logarithm of the probability of each output in each state.
    """

    def __init__(self, size: int, at: Callable[[float], FloatArray]) -> None:
        super().__init__(np.arange(size)[:, np.newaxis])
        self._at = at
        self._made: dict[float, FloatArray] = {}

    def ask(self, questions: Questions, epsilon: float) -> Finding:
        """Output by output."""
        if epsilon not in self._made:
            logs = self._at(epsilon)
            top = logs.max(axis=0, keepdims=True)
            self._made[epsilon] = np.exp(logs - np.where(np.isfinite(top), top, 0.0)).T
        sums = [self._made[epsilon] @ part for part in (questions.plus, questions.minus, questions.against)]
        return Finding(bool(is_below(*sums[:2]).all()), questions.reached(*sums).max(axis=0))


def outputs_of(mechanism: Mechanism, values: npt.ArrayLike) -> Outputs:
    """The outputs of a mechanism of the package, at any budget.

    Parameters
    ----------
    mechanism
        The mechanism, of whose shape the noise is.
    values
        ``(N, d)``: the true value that each state is released as.
    """
    walls = mechanism.walls
    return BoundedOutputs(values, mechanism) if walls is None else PolytopeOutputs(values, *walls)
