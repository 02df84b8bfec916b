"""The choice of the public square that contains a protected location."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dphmm.hide.streets import RING_RATIO, choose_square
from dphmm.space.grid import MAX_CELL_KM, Square
from dphmm.space.projection import LocalProjection, unwrap_longitudes
from dphmm.tables.street_map import StreetMap
from dphmm.tables.vector_files import Box

DEFAULT_WITHIN_KM = 0.5
"""The distance without `within_km` and `among`."""

# The core is at least this multiple of the distance.
_MIN_CORE_RATIO = 1.5
MAX_WITHIN_KM = MAX_CELL_KM / _MIN_CORE_RATIO
"""The largest distance, for which the core is the largest square."""

# The smallest core that is chosen by its candidates alone.
_MIN_CORE_KM = 0.2

Place = tuple[float, float]
"""Latitude and longitude in degrees."""


@dataclass(frozen=True)
class SquareRule:
    """The choice of the square of a location from public values.

    Parameters
    ----------
    distance_km
        The distance; None for the default.
    among
        The minimum effective number of candidates, or None.
    street_map
        The map; required with `among`.
    """

    distance_km: float | None
    among: float | None
    street_map: StreetMap | None

    @property
    def sizes(self) -> tuple[float | None, float | None]:
        """The distance in km, which defaults to that of zones, and the number of candidates."""
        is_default = self.distance_km is None and self.among is None
        return DEFAULT_WITHIN_KM if is_default else self.distance_km, self.among

    def square(self, location: Place) -> Square:
        """Return the square around a location."""
        side_km = min_side_km(self.distance_km, self.among)
        if self.among is None or self.street_map is None:
            return Square.around(*location, side_km)
        return choose_square(self.street_map, *location, self.among, side_km)

    def within_km(self, square: Square) -> float:
        """Return the distance of the zone of a square, kilometres."""
        if self.among is None:
            return DEFAULT_WITHIN_KM if self.distance_km is None else self.distance_km
        return max(self.distance_km or 0.0, square.side_km / RING_RATIO)


def min_side_km(within_km: float | None, among: float | None) -> float:
    """Return the minimum side of the core, kilometres."""
    if within_km is None and among is not None:
        return _MIN_CORE_KM
    return _MIN_CORE_RATIO * (DEFAULT_WITHIN_KM if within_km is None else within_km)


def find_map_bounds(squares: Sequence[Square], reach_km: float) -> Box:
    """Return a box around squares with a margin, degrees.

    Its west exceeds its east across the date line.
    """
    first = squares[0].centre[1]
    corners = []
    for square in squares:
        offsets = (square.side_km + reach_km) * np.array([[-1, -1], [1, 1]])
        corners.append(unwrap_longitudes(LocalProjection(*square.centre).to_latlon(offsets), first))
    (south, west), (north, east) = np.min(corners, axis=(0, 1)).tolist(), np.max(corners, axis=(0, 1)).tolist()
    return south, (west + 180) % 360 - 180, north, (east + 180) % 360 - 180
