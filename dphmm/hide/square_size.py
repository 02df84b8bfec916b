"""The size of the public square around a location, by a distance or by its candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dphmm.errors import ConfigurationError
from dphmm.hide.fixed_squares import MAX_SIDE_KM, Square
from dphmm.hide.street_inference import find_candidates
from dphmm.hide.zone import HiddenZone
from dphmm.space.projection import LocalProjection, unwrap_longitudes, wrap_longitude
from dphmm.tables.street_map import StreetMap
from dphmm.tables.vector_files import Box
from dphmm.validation import check_arguments

# The side of a core that is chosen by its candidates is this multiple of the distance to its locations.
RING_RATIO = 1.6

# The largest core that is chosen by its candidates alone, kilometres.
MAX_CORE_KM = 6.4

# The distance without `within_km` and `among`.
DEFAULT_WITHIN_KM = 0.5

# The core is at least this multiple of the distance.
_MIN_CORE_RATIO = 1.5
# The largest distance, for which the core is the largest square.
MAX_WITHIN_KM = MAX_SIDE_KM / _MIN_CORE_RATIO

# The smallest core that is chosen by its candidates alone.
_MIN_CORE_KM = 0.2

# Latitude and longitude in degrees.
Place = tuple[float, float]


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

    def find_square(self, location: Place) -> Square:
        """Return the square around a location."""
        side_km = get_min_side_km(self.distance_km, self.among)
        if self.among is None or self.street_map is None:
            return Square.around(*location, side_km)
        return choose_square(self.street_map, *location, self.among, side_km)

    def get_within_km(self, square: Square) -> float:
        """Return the distance of the zone of a square, kilometres."""
        if self.among is None:
            return DEFAULT_WITHIN_KM if self.distance_km is None else self.distance_km
        return max(self.distance_km or 0.0, square.side_km / RING_RATIO)


def get_min_side_km(within_km: float | None, among: float | None) -> float:
    """Return the minimum side of the core, kilometres."""
    if within_km is None and among is not None:
        return _MIN_CORE_KM
    return _MIN_CORE_RATIO * (DEFAULT_WITHIN_KM if within_km is None else within_km)


@check_arguments
def choose_square(
    street_map: StreetMap, latitude: float, longitude: float, min_candidates: float, min_side_km: float
) -> Square:
    """Return the smallest square around a location that has enough candidates.

    A square of `MAX_CORE_KM`, or of the minimum side if that is larger, is halved while each quarter has no candidate
    or at least `min_candidates`. A quarter of fewer would single out the locations in it, and a location in another
    quarter would reveal that it is not there. Therefore every location in the square yields this square.

    Parameters
    ----------
    street_map
        The map.
    latitude, longitude
        The location, degrees.
    min_candidates
        The minimum of `Candidates.effective_number`.
    min_side_km
        The minimum side, kilometres.

    Returns
    -------
    Square
        The square.

    Raises
    ------
    ConfigurationError
        If the largest square has fewer candidates, or the square has none.
    """
    square = Square.around(latitude, longitude, max(MAX_CORE_KM, min_side_km))
    number = _count_candidates(street_map, square)
    if number < min_candidates:
        raise ConfigurationError(
            f"--among {min_candidates:g} needs as many addresses, buildings or places on streets in the square of "
            f"{square.side_km:g} km around the location, the map has {number:.0f}: use a smaller number or another map"
        )
    level = Square.around(latitude, longitude, min_side_km).level
    while square.level < level:
        quarters = [Square(square.level + 1, 2 * square.row + i, 2 * square.column + j) for i in (0, 1) for j in (0, 1)]
        if any(0 < _count_candidates(street_map, quarter) < min_candidates for quarter in quarters):
            break
        square = Square.around(latitude, longitude, square.side_km / 2)
        number = _count_candidates(street_map, square)
    if not number:
        raise ConfigurationError("--among needs a location near streets of the map: use another map, or no --among")
    return square


def _count_candidates(street_map: StreetMap, square: Square) -> float:
    """Return the effective number of candidates in a square. 0 without streets and homes."""
    candidates = find_candidates(street_map, HiddenZone(square, square.side_km / RING_RATIO))
    return 0.0 if candidates.kind == "cells" else candidates.effective_number


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
    return south, wrap_longitude(west), north, wrap_longitude(east)
