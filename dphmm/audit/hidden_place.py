"""What ways into and out of a hidden zone tell of a place in it: exact posteriors of two readers.

A recording is exact outside a zone, and nothing of it is told inside. The zone is a square of `dphmm.space.grid`
(the core, in which the place lies) and a ring around it. What it shows is the same for every place in the core, given
the recording outside. So for every reader the posterior odds of two places are the prior odds times how much more often
a person who lives at the one goes in and out like this than one who lives at the other: what the ways tell is up to
what the reader knows of how people move. Two readers are worked out. For both, the place is as probable in each cell of
the core before; a recording that begins or ends in the zone does so at the place, after or before a time that nobody
knows; one that passes through stops there if it takes its time (see `HiddenZone.is_stop`), and tells nothing otherwise.

- *One who knows how people move in general* takes a Markov model for it, a blank one. With Q the moves within the zone
  and R those out of it, a person who starts at h leaves by cell b with probability ``((I - Q)^-1 R)_hb``: the
  distribution of exits (harmonic measure; Legramanti, arXiv 1806.08998, does so with Brownian motion). One who came in
  from b and stays for an unknown time is at h in proportion to the visits there, ``(P_b (I - Q)^-1)_h``. One who was
  inside for n steps between b and b' was there ``sum over k of (P_b Q^k)_h (Q^(n-2-k) R_b')_h`` times.
- *One who assumes that people go straight on* weighs the angle between the direction at the border and that to the
  place by a normal curve, `TURN` wide.

What neither knows is streets and houses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.errors import InvalidInputError
from dphmm.model.published_laws import blank, kind_of
from dphmm.space.grid import Grid, Square
from dphmm.space.states import LocalProjection

CELLS = 10
"""How many cells span a core."""

TURN = np.radians(30.0)
"""By how much people who go straight deviate from it: the standard deviation."""

LONGEST = 2000
"""How many steps in the zone are counted at most; of more the time says nothing."""

READERS = ("knows how people move", "assumes that people go straight on")

_MARGIN = 6
_FAINTEST = 1e-300


class Gate(NamedTuple):
    """Where a recording leaves a zone, or enters it.

    Parameters
    ----------
    point
        ``(2,)``: the first exact place outside, or the last; kilometres.
    outwards
        ``(2,)``: towards where it goes from there, or whence it came: a place farther along outside, kilometres; NaN
        where there is none.
    """

    point: FloatArray
    outwards: FloatArray


@dataclass(frozen=True)
class Stretch:
    """A stretch of a recording in a zone, of which nothing is told.

    Parameters
    ----------
    entered, left
        The gates; None where the recording begins or ends within, but not both.
    seconds
        How long it took from the one to the other; None where that is not known.
    """

    entered: Gate | None
    left: Gate | None
    seconds: float | None = None


class HiddenZone:
    """A core and a ring around it, in the plane of the core's middle.

    Parameters
    ----------
    square
        The core.
    within_km
        How wide the ring is at least, kilometres.
    kind
        How people move, one of `dphmm.model.published_laws.KINDS` with a usual speed.

    Raises
    ------
    InvalidInputError
        When the ring is not positive, or more than four times as wide as the core.
    ConfigurationError
        For another kind.
    """

    @checked
    def __init__(self, square: Square, within_km: float, kind: str = "cycling") -> None:
        cell = square.side_km / CELLS
        if not 0 < within_km <= 4 * square.side_km:
            raise InvalidInputError(f"within_km is {within_km}; give more than 0 and at most {4 * square.side_km:g}")
        about = kind_of(kind)
        if not about.speed_kmh:
            raise InvalidInputError(f"kind is {kind!r}, which has no usual speed; give walking, cycling or driving")
        self.square, self.within_km, self.kind = square, float(within_km), kind
        self.projection = LocalProjection(*square.centre)
        ring = int(np.ceil(within_km / cell + 0.1))  # sides of a square in degrees are half a percent off
        self.half_km = cell * (CELLS / 2 + ring)
        """Half of the zone's side; the zone is this far to each side of the core's middle."""
        across = CELLS + 2 * (ring + _MARGIN)
        first = -round(1000 * cell * (across - 1) / 2)
        self.grid = Grid(self.projection, (first, first), cell, across, across)
        self.step_seconds = 3600 * cell / about.speed_kmh

    def holds(self, latitude: npt.ArrayLike, longitude: npt.ArrayLike) -> BoolArray:
        """Which places lie in the zone.

        Parameters
        ----------
        latitude, longitude
            ``(n,)``: degrees.

        Returns
        -------
        BoolArray
            ``(n,)``.
        """
        return np.asarray(np.abs(self.projection.to_plane(latitude, longitude)).max(axis=1) <= self.half_km)

    @property
    def corners(self) -> FloatArray:
        """``(5, 2)``: the zone's outline in its plane, kilometres, closed."""
        return self.half_km * np.array([[-1, -1], [1, -1], [1, 1], [-1, 1], [-1, -1]], float)

    @cached_property
    def core(self) -> IntArray:
        """``(100,)``: the cells of the core."""
        half = self.square.side_km / 2
        return np.flatnonzero(np.abs(self.grid.points).max(axis=1) < half)

    @cached_property
    def inside(self) -> BoolArray:
        """``(N,)``: which cells of the grid lie in the zone."""
        return np.asarray(np.abs(self.grid.points).max(axis=1) < self.half_km)

    @cached_property
    def _moves(self) -> FloatArray:
        return np.asarray(blank(self.grid, self.step_seconds, self.kind).transition.toarray())

    def is_stop(self, stretch: Stretch) -> bool:
        """Whether a reader takes somebody to have been at the place.

        Parameters
        ----------
        stretch
            The stretch.

        Returns
        -------
        bool
            True where the recording begins or ends in the zone; of one that passes through, if it takes twice as long
            as the way to the core's middle and on would at the usual speed, or if its time is not known.
        """
        if stretch.entered is None or stretch.left is None or stretch.seconds is None:
            return True
        way = np.hypot(*stretch.entered.point) + np.hypot(*stretch.left.point)
        return bool(stretch.seconds >= 2 * way / self.grid.cell_km * self.step_seconds)

    def log_likelihoods(self, stretch: Stretch) -> dict[str, FloatArray]:
        """How probable a stretch is by the cell of the core that the place is in.

        Parameters
        ----------
        stretch
            The stretch.

        Returns
        -------
        dict
            Each of `READERS` → ``(100,)``: logarithms, up to a number that is the same for all cells.
        """
        if not self.is_stop(stretch):
            return {reader: np.zeros(len(self.core)) for reader in READERS}
        gates = [None if one is None else self._cell(one.point) for one in (stretch.entered, stretch.left)]
        steps = None if stretch.seconds is None else max(2, round(stretch.seconds / self.step_seconds))
        weight = visits(self._moves, self.inside, gates[0], gates[1], steps)[self.core]
        if not weight.any():  # it took less time than the model holds possible: then its time says nothing
            weight = visits(self._moves, self.inside, gates[0], gates[1])[self.core]
        straight = sum(self._straight(one) for one in (stretch.entered, stretch.left) if one is not None)
        found = np.log(np.maximum(weight / weight.max(), _FAINTEST)), np.asarray(straight)
        return dict(zip(READERS, found, strict=True))

    def _cell(self, point: FloatArray) -> int:
        """The cell of a gate, outside the zone; of one from which no step leads into it, the nearest such cell."""
        apart = np.hypot(*(self.grid.points - point).T)
        reached = (self._moves[:, self.inside] > 0).any(axis=1) & (self._moves[self.inside] > 0).any(axis=0)
        return int(np.where(self.inside | ~reached, np.inf, apart).argmin())

    def _straight(self, gate: Gate) -> FloatArray:
        """``(100,)``: the logarithm of the normal curve of the angle, by cell of the core."""
        ahead, there = gate.outwards - gate.point, gate.point - self.grid.points[self.core]
        if not np.isfinite(ahead).all() or not ahead.any():
            return np.zeros(len(self.core))
        turn = np.angle(np.exp(1j * (np.arctan2(there[:, 1], there[:, 0]) - np.arctan2(ahead[1], ahead[0]))))
        return np.asarray(-0.5 * (turn / TURN) ** 2)


def visits(
    moves: FloatArray, inside: BoolArray, entered: int | None, left: int | None, steps: int | None = None
) -> FloatArray:
    """How often somebody is expected in each state between entering some states and leaving them, times its chance.

    Parameters
    ----------
    moves
        ``(N, N)``: the transition matrix.
    inside
        ``(N,)``: the states that hide.
    entered, left
        The state outside that was left for them, and the first one after them; None where somebody begins in a state
        inside, each alike, or ends there.
    steps
        How many steps lie between the two, at least 2; None where that is not known.

    Returns
    -------
    FloatArray
        ``(N,)``: 0 outside. Where somebody begins or ends inside it is, up to a factor, how probable the state is.

    Raises
    ------
    InvalidInputError
        When there is neither an entrance nor an exit.
    """
    if entered is None and left is None:
        raise InvalidInputError("neither an entrance nor an exit is given; give one of them")
    within = moves[np.ix_(inside, inside)]
    ins = None if entered is None else moves[entered, inside]
    outs = None if left is None else moves[inside, left]
    found = np.zeros(len(moves))
    if ins is not None and outs is not None and steps is not None and steps <= LONGEST:
        before = [ins]
        for _ in range(steps - 2):
            before.append(before[-1] @ within)
        total, after = np.zeros(int(inside.sum())), outs
        for one in reversed(before):
            total += one * after
            after = within @ after
        found[inside] = total
        return found
    stays = np.eye(len(within)) - within
    found[inside] = 1.0
    if ins is not None:
        found[inside] *= np.linalg.solve(stays.T, ins)
    if outs is not None:
        found[inside] *= np.linalg.solve(stays, outs)
    return found


@dataclass(frozen=True)
class Known:
    """What one reader knows of a place.

    Parameters
    ----------
    reader
        One of `READERS`.
    certainty
        The probability of the likeliest cell.
    before
        That of each cell before.
    error_km
        How far the place is expected from the best guess, the mean place, kilometres: the root of the mean square.
    before_km
        The same before.
    posterior
        ``(100,)``: of each cell of the core.
    """

    reader: str
    certainty: float
    before: float
    error_km: float
    before_km: float
    posterior: FloatArray


def known_of(zone: HiddenZone, told: Sequence[Mapping[str, FloatArray]]) -> tuple[Known, ...]:
    """What each reader knows of a place after some stretches, which tell of it independently of each other.

    Parameters
    ----------
    zone
        The zone.
    told
        What `HiddenZone.log_likelihoods` said of each stretch.

    Returns
    -------
    tuple of Known
        One for each of `READERS`.
    """
    points, spread = zone.grid.points[zone.core], zone.grid.cell_km**2 / 6  # of a place that is even in its cell
    even, found = np.full(len(points), 1 / len(points)), []
    for reader in READERS:
        log = np.sum([one[reader] for one in told], axis=0) if told else np.zeros(len(points))
        mass = np.exp(log - log.max())
        mass /= mass.sum()
        errors = [np.sqrt((p @ ((points - p @ points) ** 2).sum(axis=1)) + spread) for p in (mass, even)]
        found.append(Known(reader, float(mass.max()), 1 / len(points), float(errors[0]), float(errors[1]), mass))
    return tuple(found)
