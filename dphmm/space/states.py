"""What every state space offers, the local plane in which states have points, and the space of named places."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import shapely

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, IntArray
from dphmm.errors import ConfigurationError, CoordinateError, DphmmError, StateError
from dphmm.geometry.measurements import Measurements
from dphmm.space.trajectory import check_places
from dphmm.tables.values import is_text, shorten

REACH_KM = 2000.0
"""How far from the centre a state may lie.

Lengths are off by about ``(distance / 18 000 km)**2``: 0.005 % at 100 km, 0.3 % at 1000 km, 1.3 % here.
"""


@lru_cache(maxsize=64)
def _transformer(crs: str) -> Any:
    from pyproj import Transformer

    return Transformer.from_crs("EPSG:4326", crs, always_xy=True)


@checked
@dataclass(frozen=True)
class LocalProjection:
    """The Lambert azimuthal equal-area projection around a centre, on the WGS 84 ellipsoid, in kilometres.

    Areas are kept everywhere, lengths at the centre. PROJ turns a point back to within two millimetres, no better.

    Parameters
    ----------
    latitude, longitude
        The centre in degrees; it becomes the plane's origin.

    Raises
    ------
    CoordinateError
        When the centre is not on the Earth.

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
        """The coordinate reference system as a PROJ string, in metres (arrays here hold kilometres)."""
        return f"+proj=laea +lat_0={self.latitude!r} +lon_0={self.longitude!r} +datum=WGS84 +units=m +no_defs +type=crs"

    @checked
    def to_plane(self, latitude: npt.ArrayLike, longitude: npt.ArrayLike) -> FloatArray:
        """Points of the plane, shape ``(n, 2)``: kilometres east and north of the centre.

        Parameters
        ----------
        latitude, longitude
            Degrees, numbers or arrays of shape ``(n,)``. The centre's antipode has no image: there the row is infinite.

        Returns
        -------
        FloatArray
            ``(n, 2)``: kilometres east and north of the centre.

        Raises
        ------
        CoordinateError
            When a coordinate is NaN, infinite or not on the Earth.
        """
        lat = np.atleast_1d(np.asarray(latitude, dtype=np.float64))
        lon = np.atleast_1d(np.asarray(longitude, dtype=np.float64))
        check_places(lat, lon, "places to project")
        east, north = _transformer(self.crs).transform(lon, lat)
        return np.column_stack([east, north]) / 1000.0

    @checked
    def to_latlon(self, points: npt.ArrayLike) -> FloatArray:
        """Latitude and longitude in degrees, shape ``(n, 2)``, of points of the plane.

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
            When a point is NaN or infinite, or lies outside the image of the Earth.
        """
        plane = np.atleast_2d(np.asarray(points, dtype=np.float64))
        if plane.ndim != 2 or plane.shape[1] != 2:
            raise CoordinateError(
                f"points of the plane have shape {plane.shape}; give two columns, east and north in km"
            )
        longitude, latitude = _transformer(self.crs).transform(
            plane[:, 0] * 1000.0, plane[:, 1] * 1000.0, direction="INVERSE"
        )
        places = np.column_stack([latitude, longitude])
        if not np.isfinite(places).all():
            row = int(np.flatnonzero(~np.isfinite(places).all(axis=1))[0])
            raise CoordinateError(f"point {row} is {plane[row].tolist()} km; it lies on no place of the Earth")
        return places


OUTSIDE = -1
"""What `StateSpace.locate` says of a place that belongs to no state."""


class StateSpace(ABC):
    """The finite set of places among which a person moves.

    States are the integers ``0`` to ``size - 1``. Each has a point in a local plane, in kilometres.

    Attributes
    ----------
    projection
        The plane that the points lie in.
    points
        Shape ``(size, 2)``: kilometres east and north of the projection's centre; not writable.
    cell_km
        The side of the square cell that each state is the centre of, in kilometres; 0 where states are points.
    """

    kind: ClassVar[str]
    projection: LocalProjection
    points: FloatArray
    cell_km: float = 0.0
    _sealed = False
    """Set at the end of every constructor: no attribute can be set from then on."""

    def __setattr__(self, name: str, value: object) -> None:
        if self._sealed:
            raise AttributeError(f"a state space does not change; make a new one instead of setting {name}")
        super().__setattr__(name, value)

    @property
    def size(self) -> int:
        """The number of states."""
        return int(self.points.shape[0])

    def __len__(self) -> int:
        return self.size

    @checked
    def latlon(self, states: npt.ArrayLike | None = None) -> FloatArray:
        """Latitude and longitude in degrees of the given states, or of all; shape ``(n, 2)``.

        Parameters
        ----------
        states
            Integers from 0 to ``size - 1``, ``(n,)`` or one; left out, all states.

        Returns
        -------
        FloatArray
            ``(n, 2)``: latitude and longitude in degrees.

        Raises
        ------
        StateError
            When a state is not an integer from 0 to ``size - 1``.
        """
        return self.projection.to_latlon(self.points if states is None else self.points[self.check(states)])

    def measurements(self) -> Measurements:
        """The points as what is measured in each state, on their exact lattice where they have one.

        Returns
        -------
        Measurements
            The points ``(size, 2)`` in kilometres.
        """
        return Measurements(self.points)

    @checked
    def check(self, states: npt.ArrayLike) -> IntArray:
        """The states as an integer array of at least one dimension.

        Parameters
        ----------
        states
            Integers from 0 to ``size - 1``, of any shape.

        Returns
        -------
        IntArray
            The same states, with at least one dimension.

        Raises
        ------
        StateError
            When one is not an integer from 0 to ``size - 1``.
        """
        array = np.atleast_1d(states)
        if array.size and not np.issubdtype(array.dtype, np.integer):
            raise StateError(f"states are {array.dtype} values; give integers from 0 to {self.size - 1}")
        wrong = (array < 0) | (array >= self.size)
        if wrong.any():
            raise StateError(f"state {array[wrong][0]} is not in the space; states run from 0 to {self.size - 1}")
        return array.astype(np.int64)

    @checked
    def locate(self, latitude: npt.ArrayLike, longitude: npt.ArrayLike) -> IntArray:
        """The state of each place, -1 for a place that belongs to none.

        Parameters
        ----------
        latitude, longitude
            Degrees, numbers or arrays of shape ``(n,)``; anywhere on the Earth.

        Returns
        -------
        IntArray
            Shape ``(n,)``.

        Raises
        ------
        CoordinateError
            When a coordinate is NaN, infinite or impossible.
        """
        plane = self.projection.to_plane(latitude, longitude)
        states = np.full(plane.shape[0], OUTSIDE, dtype=np.int64)
        near = np.abs(plane).max(axis=1) <= 2 * REACH_KM
        states[near] = self._locate_plane(plane[near])
        return states

    def share_within(self, polygon: shapely.Geometry) -> FloatArray:
        """Which share of each state's area lies within a polygon; of states that are points, 1 or 0.

        Parameters
        ----------
        polygon
            A polygon or several, in degrees, longitude first; its edges are straight in degrees.

        Returns
        -------
        ndarray, shape (size,)
            From 0 to 1; a point on the border is within.
        """
        places = self.latlon()
        return np.asarray(shapely.intersects_xy(polygon, places[:, 1], places[:, 0]), dtype=np.float64)

    @checked
    def nearest(self, latitude: npt.ArrayLike, longitude: npt.ArrayLike) -> IntArray:
        """The state whose point is nearest in the plane to each place, however far; shape ``(n,)``.

        Between equally near states any of them may be returned, but always the same one.

        Parameters
        ----------
        latitude, longitude
            Degrees, numbers or arrays of shape ``(n,)``.

        Returns
        -------
        IntArray
            ``(n,)``: the nearest state of each place.

        Raises
        ------
        CoordinateError
            When a coordinate is NaN, infinite or impossible, or is the antipode of the projection's centre.
        """
        plane = self.projection.to_plane(latitude, longitude)
        if not np.isfinite(plane).all():
            raise CoordinateError("a place lies opposite the centre of the state space; no state is nearest to it")
        return self._nearest_plane(plane)

    def _nearest_plane(self, plane: FloatArray) -> IntArray:
        return np.asarray(self._tree.query(plane)[1], dtype=np.int64)

    @cached_property
    def _tree(self) -> Any:
        from scipy.spatial import cKDTree

        return cKDTree(self.points)

    @abstractmethod
    def _locate_plane(self, plane: FloatArray) -> IntArray:
        """The states of points of the plane, -1 for none."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """A dictionary of plain JSON values from which `from_json` makes an equal space, point for point."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any], size: int | None = None) -> StateSpace:
        """The space that `to_json` wrote.

        Parameters
        ----------
        data
            What it wrote.
        size
            How many states it must have: a few words may describe millions, for which memory is taken only then.

        Raises
        ------
        ConfigurationError
            When the dictionary is none of this package's, or one of its values is missing or of the wrong type.
        StateError
            When it has another number of states.
        """
        kind = data.get("kind") if isinstance(data, Mapping) else None
        kinds = {space.kind: space for space in StateSpace.__subclasses__()}
        if not isinstance(kind, str) or kind not in kinds:
            raise ConfigurationError(f"state space is of kind {shorten(repr(kind))}; it must be one of {sorted(kinds)}")
        try:
            return kinds[kind]._from_json(data, size)
        except DphmmError:
            raise
        except (KeyError, TypeError, IndexError, OverflowError, ValueError) as problem:
            raise ConfigurationError(
                f"state space of kind {kind!r} does not read: {shorten(repr(problem))}; write it anew"
            ) from None

    @classmethod
    @abstractmethod
    def _from_json(cls, data: Mapping[str, Any], size: int | None) -> StateSpace:
        """As `from_json`, for this kind."""

    @cached_property
    def content_hash(self) -> str:
        """The SHA-256 of the canonical JSON text, in hexadecimal: equal spaces have equal hashes."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode("utf-8")).hexdigest()

    def __eq__(self, other: object) -> bool:
        return self.content_hash == other.content_hash if isinstance(other, StateSpace) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.content_hash)


def _centre(latitude: FloatArray, longitude: FloatArray) -> LocalProjection:
    """The projection around the middle of the places, on the sphere, so that the date line is no edge."""
    phi, lam = np.radians(latitude), np.radians(longitude)
    middle = np.array([np.cos(phi) * np.cos(lam), np.cos(phi) * np.sin(lam), np.sin(phi)]).mean(axis=1)
    if np.linalg.norm(middle) < 1e-6:
        raise CoordinateError("the places lie all around the Earth; give places of one region")
    lat = float(np.degrees(np.arctan2(middle[2], np.hypot(middle[0], middle[1]))))
    return LocalProjection(round(lat, 6), round(float(np.degrees(np.arctan2(middle[1], middle[0]))), 6))


@checked
class Places(StateSpace):
    """A table of named places; a fix belongs to the nearest of them within a distance.

    Parameters
    ----------
    names
        The places' names, each different.
    latitude, longitude
        Shape ``(n,)`` each, degrees.
    within_km
        How far from its place a fix may lie, in kilometres; positive, or infinite for no limit.
    projection
        The plane; left out, the one around the middle of the places.

    Raises
    ------
    StateError
        When there is no place, or a name is empty or occurs twice.
    CoordinateError
        When a coordinate is impossible, or a place lies more than 2000 km from the centre.
    ConfigurationError
        When the distance is not positive.

    Examples
    --------
    >>> places = Places(["home", "work"], [45.0, 45.02], [7.0, 7.05], within_km=0.5)
    >>> places.locate([45.001, 45.5], [7.001, 7.0]).tolist()
    [0, -1]
    """

    kind = "places"

    def __init__(
        self,
        names: Sequence[str],
        latitude: npt.ArrayLike,
        longitude: npt.ArrayLike,
        within_km: float = float("inf"),
        projection: LocalProjection | None = None,
    ) -> None:
        self.names = tuple(names)
        self.latitude = np.array(latitude, dtype=np.float64)
        self.longitude = np.array(longitude, dtype=np.float64)
        self.within_km = float(within_km)
        _check_names(self.names)
        check_places(self.latitude, self.longitude, "table of places")
        count, places = len(self.names), len(self.latitude)
        if count != places:
            raise CoordinateError(f"{count} names but {places} places; give one name per place")
        if not self.within_km > 0:
            raise ConfigurationError(f"within_km is {self.within_km}; give a positive number of kilometres")
        self.projection = projection or _centre(self.latitude, self.longitude)
        self.points = self.projection.to_plane(self.latitude, self.longitude)
        far = np.hypot(self.points[:, 0], self.points[:, 1])
        if far.max() > REACH_KM:
            raise CoordinateError(
                f"place {self.names[int(far.argmax())]!r} is {far.max():.0f} km from the centre of the table; "
                f"a local plane reaches {REACH_KM:.0f} km, so split the table by region"
            )
        for array in (self.latitude, self.longitude, self.points):
            array.setflags(write=False)
        self._sealed = True

    def __repr__(self) -> str:
        return f"Places({self.size} places, within {self.within_km} km)"

    @checked
    def latlon(self, states: npt.ArrayLike | None = None) -> FloatArray:
        """Latitude and longitude of the given places, or of all, exactly as they were given; shape ``(n, 2)``.

        Raises
        ------
        StateError
            When a state is not an integer from 0 to ``size - 1``.
        """
        places = np.column_stack([self.latitude, self.longitude])
        return places if states is None else places[self.check(states)]

    def _locate_plane(self, plane: FloatArray) -> IntArray:
        distance, state = self._tree.query(plane)
        return np.where(distance <= self.within_km, state, OUTSIDE).astype(np.int64)

    def to_json(self) -> dict[str, Any]:
        """A dictionary of plain JSON values; see `StateSpace.to_json`."""
        return {
            "kind": self.kind,
            "projection": asdict(self.projection),
            "within_km": self.within_km if np.isfinite(self.within_km) else None,
            "names": list(self.names),
            "latitude": self.latitude.tolist(),
            "longitude": self.longitude.tolist(),
        }

    @classmethod
    def _from_json(cls, data: Mapping[str, Any], size: int | None) -> Places:
        check_size(len(data["names"]), size)
        within = float("inf") if data["within_km"] is None else data["within_km"]
        projection = LocalProjection(**data["projection"])
        return cls(data["names"], data["latitude"], data["longitude"], within, projection)


def check_size(found: int, wanted: int | None) -> None:
    """Refuse a description of another number of states than is wanted; None wants any."""
    if wanted not in (None, found):
        raise StateError(f"the space has {found} states and {wanted} are wanted; they must agree")


def _check_names(names: Sequence[str]) -> None:
    if not names:
        raise StateError("the table of places is empty; give one place or more")
    if not all(isinstance(name, str) and name for name in names):
        raise StateError("a place has no name; give every place a non-empty text")
    if broken := next((name for name in names if not is_text(name)), None):
        raise StateError(f"place {broken!r} cannot be written, since it holds half a character; correct the name")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise StateError(f"place {twice!r} occurs twice; give every place its own name")
