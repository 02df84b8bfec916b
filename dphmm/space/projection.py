"""The local projection: planes in kilometres around a centre."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray
from dphmm.errors import CoordinateError
from dphmm.space.trajectory import check_places
from dphmm.validation import check_arguments


# Building a transformation takes a millisecond, and a recording with hundreds of zones uses each one repeatedly.
@lru_cache(maxsize=1024)
def _build_transformer(crs: str) -> Any:
    from pyproj import Transformer

    return Transformer.from_crs("EPSG:4326", crs, always_xy=True)


@check_arguments
@dataclass(frozen=True)
class LocalProjection:
    """Lambert azimuthal equal-area projection around a centre on WGS 84, in kilometres.

    Areas are exact everywhere, lengths at the centre. PROJ's inverse is accurate to two millimetres only.

    Parameters
    ----------
    latitude, longitude
        The centre in degrees; it becomes the plane's origin.

    Raises
    ------
    CoordinateError
        If the coordinates of the centre are out of range.

    Examples
    --------
    >>> beijing = LocalProjection(39.92, 116.375)
    >>> beijing.to_plane(39.92, 116.375).round(6).tolist()
    [[0.0, 0.0]]
    """

    latitude: float
    longitude: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "latitude", float(self.latitude))
        object.__setattr__(self, "longitude", float(self.longitude))
        check_places(np.array([self.latitude]), np.array([self.longitude]), "centre of the projection")

    @property
    def crs(self) -> str:
        """The coordinate reference system as a PROJ string, in metres (arrays contain kilometres)."""
        return f"+proj=laea +lat_0={self.latitude!r} +lon_0={self.longitude!r} +datum=WGS84 +units=m +no_defs +type=crs"

    @check_arguments
    def to_plane(self, latitude: npt.ArrayLike, longitude: npt.ArrayLike) -> FloatArray:
        """Project locations to the plane.

        Parameters
        ----------
        latitude, longitude
            Degrees, numbers or arrays of shape ``(n,)``. The centre's antipode has no image; its row is infinite.

        Returns
        -------
        FloatArray
            ``(n, 2)``: kilometres east and north of the centre.

        Raises
        ------
        CoordinateError
            If a coordinate is NaN, infinite or out of range.
        """
        lat = np.atleast_1d(np.asarray(latitude, dtype=np.float64))
        lon = np.atleast_1d(np.asarray(longitude, dtype=np.float64))
        check_places(lat, lon, "places to project")
        east, north = _build_transformer(self.crs).transform(lon, lat)
        return np.column_stack([east, north]) / 1000.0

    @check_arguments
    def to_latlon(self, points: npt.ArrayLike) -> FloatArray:
        """Return latitude and longitude of points of the plane.

        Parameters
        ----------
        points
            Shape ``(n, 2)`` or ``(2,)``, kilometres east and north of the centre.

        Returns
        -------
        FloatArray
            ``(n, 2)``: latitude and longitude in degrees.

        Raises
        ------
        CoordinateError
            If a point is NaN or infinite, or lies outside the image of the Earth.
        """
        plane = np.atleast_2d(np.asarray(points, dtype=np.float64))
        if plane.ndim != 2 or plane.shape[1] != 2:
            raise CoordinateError(f"points must have two columns, east and north in km, got shape {plane.shape}")
        longitude, latitude = _build_transformer(self.crs).transform(
            plane[:, 0] * 1000.0, plane[:, 1] * 1000.0, direction="INVERSE"
        )
        places = np.column_stack([latitude, longitude])
        if not np.isfinite(places).all():
            row = int(np.flatnonzero(~np.isfinite(places).all(axis=1))[0])
            raise CoordinateError(f"point {row} must lie in the image of the Earth, got {plane[row].tolist()} km")
        return places


def build_centred_projection(latitude: FloatArray, longitude: FloatArray) -> LocalProjection:
    """Return the projection around the middle of places ``(n,)``, in degrees."""
    # The mean is taken on the sphere, so that the date line is not a border.
    phi = np.radians(latitude)
    lam = np.radians(longitude)
    middle = np.array([np.cos(phi) * np.cos(lam), np.cos(phi) * np.sin(lam), np.sin(phi)]).mean(axis=1)
    if np.linalg.norm(middle) < 1e-6:
        raise CoordinateError("the places must lie in one region, but they lie all around the Earth")
    lat = float(np.degrees(np.arctan2(middle[2], np.hypot(middle[0], middle[1]))))
    return LocalProjection(round(lat, 6), round(float(np.degrees(np.arctan2(middle[1], middle[0]))), 6))


def wrap_longitude(longitude: Any) -> Any:
    """Return longitudes in [-180, 180], degrees: numbers or arrays."""
    return (longitude + 180.0) % 360.0 - 180.0


def unwrap_longitudes(places: FloatArray, centre: float | FloatArray) -> FloatArray:
    """Return places ``(n, 2)`` with longitudes at most 180° from a centre.

    They may be beyond 180°, so that a region across the date line is connected on a map.

    Parameters
    ----------
    places
        Latitude and longitude, degrees; may be NaN.
    centre
        The longitude of the centre, degrees; one, or ``(n,)``.
    """
    turns = np.round((places[:, 1] - centre) / 360.0)
    return np.asarray(places - 360.0 * np.column_stack([np.zeros_like(turns), turns]))
