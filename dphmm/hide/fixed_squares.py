"""Fixed nested squares on the Earth, and the distances of locations from them.

A `Square` depends on the location only through the square in which it lies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, IntArray
from dphmm.errors import CoordinateError
from dphmm.space.grid import KM_PER_DEGREE
from dphmm.space.projection import LocalProjection
from dphmm.validation import check_arguments

# The side of the largest squares, kilometres.
MAX_SIDE_KM = 12.8

_MAX_LATITUDE = 84.0
_LEVELS = range(10)
_ROW_LIMIT = 1 << 20
# So many of the largest columns before the date line share the rest of a row: at most half a column in 64, 0.8 %.
_NUM_FITTED_COLUMNS = 64


@check_arguments
@dataclass(frozen=True)
class Square:
    """A square of one of ten sizes: 12.8 km, halved up to nine times.

    Each square lies within a square of the next larger size. Rows of the largest size are counted from the equator,
    columns from the meridian of Greenwich; both may be negative. The last columns of a row are up to 0.8 % wider or
    narrower, so that the date line is a side of squares. Smaller squares are numbered by halving these. Therefore two
    users with the same location and size have the same square. It does not reveal the location within it.

    Parameters
    ----------
    level
        Number of times that 12.8 km are halved, 0 to 9.
    row, column
        The indices of the square.

    Examples
    --------
    >>> Square.around(45.01, -30.01, 0.8)
    Square(level=4, row=6256, column=-2947)
    >>> Square.around(45.01, -30.01, 0.8) == Square.around(45.0112, -30.0118, 0.8)
    True
    """

    level: int
    row: int
    column: int

    def __post_init__(self) -> None:
        south, west, north, east = self.box if self.level in _LEVELS and abs(self.row) < _ROW_LIMIT else (99.0,) * 4
        if not (max(abs(south), abs(north)) < 85 and -180 <= west < east <= 180):
            raise CoordinateError(f"a square must lie on the Earth, got {self.level}, {self.row}, {self.column}")

    @classmethod
    @check_arguments
    def around(cls, latitude: float, longitude: float, min_km: float) -> Square:
        """Return the smallest square around a location with at least a certain side.

        Parameters
        ----------
        latitude, longitude
            Degrees.
        min_km
            The minimum side, kilometres, up to 12.8.

        Raises
        ------
        CoordinateError
            If the location is out of range or within 6 degrees of a pole, or no square is as large.
        """
        if not (abs(latitude) <= _MAX_LATITUDE and abs(longitude) <= 180):
            raise CoordinateError(
                f"latitude and longitude must be in degrees, at most {_MAX_LATITUDE:g} from the equator, "
                f"got {latitude}, {longitude}"
            )
        if not 0 < min_km <= MAX_SIDE_KM:
            raise CoordinateError(f"min_km must be in (0, {MAX_SIDE_KM}] km, got {min_km}")
        level = max(level for level in _LEVELS if level == 0 or MAX_SIDE_KM / 2**level >= min_km)
        row = math.floor(latitude * KM_PER_DEGREE / MAX_SIDE_KM * 2**level)
        columns, degrees = _compute_columns(row >> level)
        # The two longitudes of the date line, and those that are rounded to it, belong to one square.
        column = math.floor(float(np.interp(longitude, degrees, columns)) * 2**level)
        last = (int(columns[-1]) << level) - 1
        return cls(level, row, -last - 1 if longitude == 180 else min(column, last))

    @property
    def side_km(self) -> float:
        """The approximate length of each side, in kilometres."""
        return MAX_SIDE_KM / float(2**self.level)

    @property
    def box(self) -> tuple[float, float, float, float]:
        """South, west, north, east in degrees."""
        high = self.side_km / KM_PER_DEGREE
        sides = np.array([self.column, self.column + 1]) / 2**self.level
        columns, degrees = _compute_columns(self.row >> self.level)
        west, east = np.interp(sides, columns, degrees, -np.inf, np.inf).tolist()
        return self.row * high, west, (self.row + 1) * high, east

    @cached_property
    def centre(self) -> tuple[float, float]:
        """Latitude and longitude of its centre, degrees."""
        south, west, north, east = self.box
        return (south + north) / 2, (west + east) / 2


def _compute_columns(row: int) -> tuple[IntArray, FloatArray]:
    """Return largest columns of a row and the longitudes of their western sides.

    The columns between two of them are equally wide.
    """
    # They measure 12.8 km at the row's middle.
    middle = (row + 0.5) * MAX_SIDE_KM / KM_PER_DEGREE
    wide = MAX_SIDE_KM / (KM_PER_DEGREE * math.cos(math.radians(middle)))
    count = round(180 / wide)
    inner = count - _NUM_FITTED_COLUMNS
    return np.array([-count, -inner, inner, count]), np.array([-180, -inner * wide, inner * wide, 180])


@lru_cache(maxsize=1024)
def _get_projection(square: Square) -> LocalProjection:
    return LocalProjection(*square.centre)


def distance_outside(square: Square, latitude: npt.ArrayLike, longitude: npt.ArrayLike) -> FloatArray:
    """Return the distances of locations from a square, in the direction of its sides.

    Parameters
    ----------
    square
        The square.
    latitude, longitude
        ``(n,)``: degrees.

    Returns
    -------
    FloatArray
        ``(n,)``: kilometres; negative inside.
    """
    plane = _get_projection(square).to_plane(latitude, longitude)
    return np.asarray(np.abs(plane).max(axis=1) - square.side_km / 2)


def is_certainly_far(square: Square, latitude: float, longitude: float) -> bool:
    """Return whether a location is certainly farther outside a square than twice its side.

    It needs no projection: hundreds of squares would need as many, each of which takes a millisecond.

    Parameters
    ----------
    square
        The square.
    latitude, longitude
        Degrees.

    Returns
    -------
    bool
        False for every location within four sides of the centre.
    """
    north, east = square.centre
    cosines = np.cos(np.radians(north)) * np.cos(np.radians(latitude))
    # The squared half chord of the unit sphere (haversine).
    half_chord = np.sin(np.radians(latitude - north) / 2) ** 2 + cosines * np.sin(np.radians(longitude - east) / 2) ** 2
    # In the equal-area plane a location is at its chord from the centre, and one of its coordinates is at least 0.7 of
    # that. The sphere is smaller than the ellipsoid by enough: 2.5 / 0.7 is less than 4.
    return bool(2 * 6300.0 * np.sqrt(half_chord) > 4 * square.side_km)


def is_near(square: Square, other: Square, reach_km: float) -> bool:
    """Return whether a square can be within a distance, at most a side, of another."""
    if square.level == other.level and is_certainly_far(square, *other.centre):
        return False
    # Half a side from the centre, and a tenth for sides that differ from their nominal length.
    return float(distance_outside(square, *other.centre)[0]) < reach_km + 0.6 * other.side_km
