"""Zones around protected locations, and the stretches of a recording in them.

A zone is a square of `dphmm.hide.fixed_squares` (the core, which contains the protected location) and a ring around
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.errors import InvalidInputError
from dphmm.hide.fixed_squares import Square, distance_outside, is_near
from dphmm.model.blank_model import get_kind
from dphmm.space.grid import Grid
from dphmm.space.projection import LocalProjection, wrap_longitude
from dphmm.validation import check_arguments

# The number of cells along a side of the core.
CELLS = 10

# The time by which a crossing with a stop takes longer than the straight way at the typical speed.
MIN_STOP_SECONDS = 120.0

# The ring is wider than the distance by this share of it. A location outside the core by less is also protected.
_TOLERANCE_SHARE = 0.1
# The sides of a square in degrees differ from its nominal side by up to 1 %, a tenth of a cell.
_SIDE_ERROR_CELLS = 0.1
# Points per cell and axis at which the parts of the core that belong to other zones are sampled.
_SUBCELLS = 20
# Cells of the grid around the zone.
_MARGIN_CELLS = 6


class Gate(NamedTuple):
    """The point at which a recording leaves or enters a zone.

    Parameters
    ----------
    point
        ``(2,)``: the first exact location outside, or the last; kilometres.
    outwards
        ``(2,)``: a location further along the recording outside, kilometres, which defines the direction. NaN
        without such a location.
    ahead
        ``(2,)``: a location much further along, kilometres, at which an adversary with a street map assumes that the
        user aimed. None for the point itself.
    time
        The time at the point; NaT if unknown. It does not depend on whether times are published.
    """

    point: FloatArray
    outwards: FloatArray
    ahead: FloatArray | None = None
    time: np.datetime64 = np.datetime64("NaT", "us")

    @property
    def towards(self) -> FloatArray:
        """``(2,)``: `ahead`, or the point itself."""
        return self.point if self.ahead is None else self.ahead


@dataclass(frozen=True)
class Stretch:
    """A removed stretch of a recording in a zone.

    Parameters
    ----------
    entered, left
        The gates. One of them is None if the recording starts or ends in the zone, and both if it does not leave it.
    seconds
        The time between the gates; None if unknown.
    has_stop
        Whether the user may have stopped in the zone, for a recording that crosses it. By default the time decides; see
        `HiddenZone.is_stop`.
    """

    entered: Gate | None
    left: Gate | None
    seconds: float | None = None
    has_stop: bool | None = None


def find_gates(stretches: Sequence[Stretch]) -> list[Gate]:
    """Return the gates of stretches in order."""
    return [gate for stretch in stretches for gate in (stretch.entered, stretch.left) if gate is not None]


class HiddenZone:
    """A core and a ring around it, in a plane centred on the core.

    Parameters
    ----------
    square
        The core.
    within_km
        The minimum width of the ring, kilometres.
    kind
        The type of movement, one of `dphmm.model.blank_model.KINDS` with a typical speed.
    others
        Squares that take precedence, each with a distance in kilometres: a location of the core that
        is not farther outside one of them belongs to that square's zone.

    Raises
    ------
    InvalidInputError
        If `within_km` is not positive, or larger than four times the side of the core.
    ConfigurationError
        For an unknown kind.
    """

    @check_arguments
    def __init__(
        self, square: Square, within_km: float, kind: str = "cycling", others: Sequence[tuple[Square, float]] = ()
    ) -> None:
        cell = square.side_km / CELLS
        if not 0 < within_km <= 4 * square.side_km:
            raise InvalidInputError(f"within_km must be in (0, {4 * square.side_km:g}], got {within_km}")
        movement = get_kind(kind)
        if not movement.speed_kmh:
            raise InvalidInputError(f"kind must be walking, cycling or driving, got {kind!r}")
        self.square = square
        self.within_km = float(within_km)
        self.kind = kind
        self.others = tuple(others)
        self.projection = LocalProjection(*square.centre)
        ring = _count_ring_cells(square, within_km)
        # Half of the zone's side, kilometres.
        self.half_km = cell * (CELLS / 2 + ring)
        across = CELLS + 2 * (ring + _MARGIN_CELLS)
        first = -round(1000 * cell * (across - 1) / 2)
        self.grid = Grid(self.projection, (first, first), cell, across, across)
        self.step_seconds = 3600 * cell / movement.speed_kmh

    def contains(self, latitude: npt.ArrayLike, longitude: npt.ArrayLike) -> BoolArray:
        """Return which locations lie in the zone.

        Parameters
        ----------
        latitude, longitude
            ``(n,)``: degrees.

        Returns
        -------
        BoolArray
            ``(n,)``.
        """
        inside = self.may_be_near(latitude, longitude, 0.0)
        plane = self.projection.to_plane(np.asarray(latitude)[inside], np.asarray(longitude)[inside])
        inside[inside] = np.abs(plane).max(axis=1) <= self.half_km
        return inside

    def may_be_near(self, latitude: npt.ArrayLike, longitude: npt.ArrayLike, margin_km: npt.ArrayLike) -> BoolArray:
        """Return which locations are not certainly farther from the zone than a margin.

        Parameters
        ----------
        latitude, longitude
            ``(n,)``: degrees.
        margin_km
            The margin, kilometres; a number or ``(n,)``.

        Returns
        -------
        BoolArray
            ``(n,)``: from differences in degrees, without a projection.
        """
        north, east = self.square.centre
        turn = np.abs(wrap_longitude(np.asarray(longitude, float) - east))
        reach = 2 * self.half_km + np.asarray(margin_km, float)
        # Degrees are at least 110 km long, and within 50 km the length of one of longitude varies by less than 10 %.
        is_near = np.abs(np.asarray(latitude, float) - north) <= reach / 110
        return np.asarray(is_near & ((turn * np.cos(np.radians(north)) <= reach / 99) | (reach > 50)))

    @cached_property
    def prior(self) -> FloatArray:
        """``(100,)``: the prior probabilities of the cells, in proportion to their areas.

        Areas that belong to other squares are not counted.
        """
        steps = self.grid.cell_km * ((np.arange(_SUBCELLS) + 0.5) / _SUBCELLS - 0.5)
        offsets = np.stack(np.meshgrid(steps, steps), axis=-1).reshape(-1, 2)
        weights = np.ones((len(self.core), len(offsets)))
        if self._near_others:
            points = self.projection.to_latlon((self.grid.points[self.core, None] + offsets).reshape(-1, 2))
            weights[self.belongs_to_others(*points.T).reshape(weights.shape)] = 0.0
        areas = weights.sum(axis=1)
        # A remainder of the core between the sampled points: its cell is unknown.
        return np.asarray(areas / areas.sum() if areas.any() else np.full(len(areas), 1 / len(areas)))

    @cached_property
    def _near_others(self) -> list[tuple[Square, float]]:
        return [(square, reach) for square, reach in self.others if is_near(square, self.square, reach)]

    def belongs_to_others(self, latitude: npt.ArrayLike, longitude: npt.ArrayLike) -> BoolArray:
        """Return which locations of the core belong to the zones of other squares.

        Parameters
        ----------
        latitude, longitude
            ``(n,)``: degrees.

        Returns
        -------
        BoolArray
            ``(n,)``.
        """
        belongs = np.zeros(np.shape(latitude), dtype=np.bool_)
        for square, reach in self._near_others:
            belongs |= distance_outside(square, latitude, longitude) <= reach
        return belongs

    @property
    def corners(self) -> FloatArray:
        """``(5, 2)``: the zone's outline in its plane, kilometres, closed."""
        return self.half_km * np.array([[-1, -1], [1, -1], [1, 1], [-1, 1], [-1, -1]], float)

    @cached_property
    def core(self) -> IntArray:
        """``(100,)``: the indices of the cells of the core."""
        half = self.square.side_km / 2
        return np.flatnonzero(np.abs(self.grid.points).max(axis=1) < half)

    @cached_property
    def inside(self) -> BoolArray:
        """``(N,)``: mask of the grid's cells in the zone."""
        return np.asarray(np.abs(self.grid.points).max(axis=1) < self.half_km)

    def is_stop(self, stretch: Stretch) -> bool:
        """Return whether the adversaries assume that the user was at the location.

        Parameters
        ----------
        stretch
            The stretch.

        Returns
        -------
        bool
            True if the recording starts or ends in the zone. For a crossing, `Stretch.has_stop`; by default whether
            its time is unknown, or exceeds the time of the straight way between the gates at the typical speed by
            `MIN_STOP_SECONDS`.
        """
        if stretch.entered is None or stretch.left is None:
            return True
        if stretch.has_stop is not None or stretch.seconds is None:
            return stretch.has_stop is not False
        straight_km = np.hypot(*(stretch.entered.point - stretch.left.point))
        return bool(stretch.seconds >= straight_km / self.grid.cell_km * self.step_seconds + MIN_STOP_SECONDS)


def _count_ring_cells(square: Square, within_km: float) -> int:
    """Return the width of the ring in cells."""
    return int(np.ceil((1 + _TOLERANCE_SHARE) * within_km * CELLS / square.side_km + _SIDE_ERROR_CELLS))


def tolerance_km(square: Square, within_km: float) -> float:
    """Return the distance outside a core up to which its zone protects a location.

    Parameters
    ----------
    square
        The core.
    within_km
        The distance, kilometres.

    Returns
    -------
    float
        Kilometres: at least a tenth of the distance.
    """
    return (_count_ring_cells(square, within_km) - _SIDE_ERROR_CELLS) * square.side_km / CELLS - within_km
