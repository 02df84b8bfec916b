"""Squares that cut up the Earth, the same for everybody: which one a place lies in, and nothing else, is told by it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dphmm.arguments import checked
from dphmm.errors import CoordinateError

KM_PER_DEGREE = 111.2
LARGEST_KM = 12.8
_HIGHEST = 84.0
_LEVELS, _MOST = range(10), 1 << 20


@checked
@dataclass(frozen=True)
class Square:
    """A square of one of ten sizes, 12.8 km halved up to nine times; each lies within one of the next larger size.

    Rows of the largest are counted from the equator, columns from the meridian of Greenwich, both may be negative; a
    smaller one by halves of these. So two people with the same place and the same size have the same square, and where
    in it they are does not show.

    Parameters
    ----------
    level
        How often 12.8 km are halved, 0 to 9.
    row, column
        Which.

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
        south, west, north, east = self.box if self.level in _LEVELS and abs(self.row) < _MOST else (99.0,) * 4
        if not (max(abs(south), abs(north)) < 85 and -181 < west < east < 181):
            raise CoordinateError(f"there is no square {self.level}, {self.row}, {self.column}; give one on the Earth")

    @classmethod
    @checked
    def around(cls, latitude: float, longitude: float, least_km: float) -> Square:
        """The square of the smallest size from a length on in which a place lies.

        Parameters
        ----------
        latitude, longitude
            Degrees.
        least_km
            The least side, kilometres, up to 12.8.

        Raises
        ------
        CoordinateError
            When the place is not on the Earth, or within 6 degrees of a pole, or no square is as large.
        """
        if not (abs(latitude) <= _HIGHEST and abs(longitude) <= 180):
            raise CoordinateError(
                f"the place is {latitude}, {longitude}; give latitude and longitude in degrees, at most {_HIGHEST:g} "
                "degrees from the equator"
            )
        if not 0 < least_km <= LARGEST_KM:
            raise CoordinateError(f"least_km is {least_km}; give a length of more than 0 and at most {LARGEST_KM} km")
        level = max(one for one in _LEVELS if one == 0 or LARGEST_KM / 2**one >= least_km)
        high = LARGEST_KM / KM_PER_DEGREE
        wide = _width(math.floor(latitude / high))
        return cls(level, math.floor(latitude / high * 2**level), math.floor(longitude / wide * 2**level))

    @property
    def side_km(self) -> float:
        """About how long each side is."""
        return LARGEST_KM / float(2**self.level)

    @property
    def box(self) -> tuple[float, float, float, float]:
        """South, west, north, east in degrees; the last square before the date line reaches beyond it."""
        high, wide = self.side_km / KM_PER_DEGREE, _width(self.row >> self.level) / 2**self.level
        return self.row * high, self.column * wide, (self.row + 1) * high, (self.column + 1) * wide

    @property
    def centre(self) -> tuple[float, float]:
        """Latitude and longitude of its middle, degrees."""
        south, west, north, east = self.box
        return (south + north) / 2, ((west + east) / 2 + 180) % 360 - 180


def _width(row: int) -> float:
    """How many degrees of longitude the largest squares of a row span: those of 12.8 km at the row's middle."""
    middle = (row + 0.5) * LARGEST_KM / KM_PER_DEGREE
    return LARGEST_KM / (KM_PER_DEGREE * math.cos(math.radians(middle)))
