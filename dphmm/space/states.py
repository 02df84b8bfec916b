"""Base class of state spaces, and the space of named places."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from math import inf
from typing import Annotated, Any, ClassVar, cast

import numpy as np
import numpy.typing as npt
import shapely

from dphmm.arrays import FloatArray, IntArray
from dphmm.errors import ConfigurationError, CoordinateError, DphmmError, StateError
from dphmm.extensions import Registry, build_missing_error
from dphmm.geometry.measurements import Measurements
from dphmm.space.projection import LocalProjection, build_centred_projection
from dphmm.space.trajectory import check_places
from dphmm.tables.values import is_text, shorten, shorten_message
from dphmm.validation import Interval, check_arguments

# Maximum distance of a state from the centre.
#
# The relative error of lengths is about ``(distance / 18 000 km)**2``: 0.005 % at 100 km, 0.3 % at 1000 km, 1.3 % here.
REACH_KM = 2000.0


# The result of `StateSpace.locate` for a location that belongs to no state.
OUTSIDE = -1


class StateSpace(ABC):
    """A finite set of locations among which a user moves.

    States are the integers ``0`` to ``size - 1``. Each has a point in a local plane, in kilometres.

    A space of another package inherits from this class, states `name` and `version`, sets `projection` and `points`,
    and implements `locate_plane`, `to_json` and `build`. It is registered by `register_space` or by an entry point of
    the group ``dphmm.spaces``; its saved models can then be opened where the package is installed.

    Attributes
    ----------
    projection
        The plane of the points.
    points
        Shape ``(size, 2)``: kilometres east and north of the projection's centre; read-only.
    cell_km
        The side of the square cell around each state, in kilometres; 0 if states are points.
    """

    kind: ClassVar[str] = ""
    # The name of a registered space; empty for those of this package.
    name: ClassVar[str] = ""
    # The version of a registered space. Files of models contain it.
    version: ClassVar[str] = ""
    # Other versions, the dictionaries of which `build` accepts.
    reads: ClassVar[tuple[str, ...]] = ()
    projection: LocalProjection
    points: FloatArray
    cell_km: float = 0.0
    # Set at the end of every constructor: attributes are immutable afterwards.
    _sealed = False

    def __setattr__(self, name: str, value: object) -> None:
        if self._sealed:
            raise AttributeError(f"a state space is immutable: create a new one instead of setting {name}")
        super().__setattr__(name, value)

    @property
    def size(self) -> int:
        """The number of states."""
        return len(self.points)

    @property
    def extent_km(self) -> float:
        """The side of a square around a point that contains its state, kilometres. 0 for points."""
        return self.cell_km

    def __len__(self) -> int:
        return self.size

    @check_arguments
    def latlon(self, states: npt.ArrayLike | None = None) -> FloatArray:
        """Return latitude and longitude in degrees of states.

        Parameters
        ----------
        states
            Integers from 0 to ``size - 1``, ``(n,)`` or a single one. Defaults to all states.

        Returns
        -------
        FloatArray
            ``(n, 2)``: latitude and longitude in degrees.

        Raises
        ------
        StateError
            If a state is not an integer from 0 to ``size - 1``.
        """
        return self.projection.to_latlon(self.points if states is None else self.points[self.check(states)])

    def measurements(self) -> Measurements:
        """Return the points as measurements, on their exact lattice if they have one.

        Returns
        -------
        Measurements
            The points ``(size, 2)`` in kilometres.
        """
        return Measurements(self.points)

    @check_arguments
    def check(self, states: npt.ArrayLike) -> IntArray:
        """Return states as an integer array of at least one dimension.

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
            If one is not an integer from 0 to ``size - 1``.
        """
        array = np.atleast_1d(states)
        if array.size and not np.issubdtype(array.dtype, np.integer):
            raise StateError(f"states must be integers from 0 to {self.size - 1}, got {array.dtype} values")
        wrong = (array < 0) | (array >= self.size)
        if wrong.any():
            raise StateError(f"states must be in 0..{self.size - 1}, got {array[wrong][0]}")
        return array.astype(np.int64)

    @check_arguments
    def locate(self, latitude: npt.ArrayLike, longitude: npt.ArrayLike) -> IntArray:
        """Return the state of each location, -1 for a location that belongs to no state.

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
            If a coordinate is NaN, infinite or out of range.
        StateError
            If `locate_plane` fails or returns something else than integers.
        """
        plane = self.projection.to_plane(latitude, longitude)
        states = np.full(plane.shape[0], OUTSIDE, dtype=np.int64)
        near = np.abs(plane).max(axis=1) <= 2 * REACH_KM
        states[near] = self._locate_checked(plane[near])
        return states

    def _locate_checked(self, plane: FloatArray) -> IntArray:
        """Return `locate_plane` of points, and name the class if it fails."""
        if not len(plane):  # an array of an empty list would have the type of floats
            return np.empty(0, dtype=np.int64)
        try:
            states = np.asarray(self.locate_plane(plane))
        except DphmmError:
            raise
        except Exception as problem:  # its text can contain a location, which is private
            kind = type(problem).__name__
            raise StateError(f"locate_plane of {type(self).__name__} failed: {kind}") from None
        if states.shape != plane.shape[:1] or states.dtype.kind not in "iu":
            raise StateError(
                f"locate_plane of {type(self).__name__} must return {len(plane)} integers, "
                f"got shape {states.shape} of {states.dtype}"
            )
        return states

    def share_within(self, polygon: shapely.Geometry) -> FloatArray:
        """Return the share of each state's area in a polygon. 1 or 0 for states that are points.

        Parameters
        ----------
        polygon
            A polygon or multipolygon, in degrees, longitude first; its edges are straight in degrees.

        Returns
        -------
        ndarray, shape (size,)
            From 0 to 1. A point on the border is inside.
        """
        places = self.latlon()
        return np.asarray(shapely.intersects_xy(polygon, places[:, 1], places[:, 0]), dtype=np.float64)

    @check_arguments
    def find_nearest_states(self, latitude: npt.ArrayLike, longitude: npt.ArrayLike) -> IntArray:
        """Return the state with the nearest point to each location in the plane.

        There is no limit on the distance. Ties are broken arbitrarily but consistently.

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
            If a coordinate is NaN, infinite or out of range, or is the antipode of the projection's centre.
        """
        plane = self.projection.to_plane(latitude, longitude)
        if not np.isfinite(plane).all():
            raise CoordinateError("a location is the antipode of the state space's centre; it has no nearest state")
        return self._find_nearest_in_plane(plane)

    def _find_nearest_in_plane(self, plane: FloatArray) -> IntArray:
        return np.asarray(self._tree.query(plane)[1], dtype=np.int64)

    @cached_property
    def _tree(self) -> Any:
        from scipy.spatial import cKDTree

        return cKDTree(self.points)

    @abstractmethod
    def locate_plane(self, plane: FloatArray) -> IntArray:
        """Return the states of points of the plane.

        Parameters
        ----------
        plane
            ``(n, 2)``: kilometres east and north of the projection's centre.

        Returns
        -------
        ndarray, shape (n,)
            The states, -1 for a point that belongs to none.
        """

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return a JSON-serializable dictionary, from which `build` creates an equal space."""

    def to_document(self) -> dict[str, Any]:
        """Return the dictionary that files contain, from which `from_json` builds an equal space.

        Returns
        -------
        dict
            `to_json` for spaces of this package. For a registered space also its name, its version, and the module
            that provides it.

        Raises
        ------
        ConfigurationError
            If the space is neither one of this package nor registered.
        StateError
            If `to_json` of a registered space fails, or returns no JSON, or something else at the next call.
        """
        if self.kind in _SHIPPED_KINDS and type(self).__module__.startswith("dphmm.space."):
            return self.to_json()
        kind = type(self)
        name = vars(kind).get("name", "")
        if SPACE_REGISTRY.find(name) is not kind:
            label = kind.__qualname__
            raise ConfigurationError(f"{label} must be registered under its own name to be saved, got {name!r}")
        try:
            contents = [dict(self.to_json()) for _ in range(2)]
            texts = [json.dumps(content, sort_keys=True, allow_nan=False) for content in contents]
        except Exception as problem:  # the class can raise any error
            reason = f"{type(problem).__name__}: {shorten_message(problem)}"
            raise StateError(
                f"{kind.__qualname__} must return a JSON-serializable dictionary from to_json: {reason}"
            ) from problem
        if texts[0] != texts[1]:  # files and sessions of the space could not be opened again
            raise StateError(f"{kind.__qualname__} must return the same dictionary from each call of to_json")
        provider = f"{kind.__module__}:{kind.__qualname__}"
        return {"kind": f"{name}@{kind.version}", "provider": provider, "space": contents[0]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], size: int | None = None) -> StateSpace:
        """Build the space that `to_json` wrote.

        Parameters
        ----------
        data
            The dictionary.
        size
            The required number of states. It is checked before memory is allocated, because a few words may describe
            millions of states.

        Returns
        -------
        StateSpace
            The state space.

        Raises
        ------
        ConfigurationError
            If the dictionary is not that of a space, or a value is missing or has the wrong type.
        MissingExtensionError
            If it is that of a space that is neither registered nor installed. A module that the dictionary names is
            never imported.
        StateError
            If it has another number of states.
        """
        kind = data.get("kind") if isinstance(data, Mapping) else None
        if isinstance(kind, str) and "@" in kind:
            space, content = _find_space(kind, data), data.get("space")
        else:
            kinds = {space.kind: space for space in StateSpace.__subclasses__() if space.kind in _SHIPPED_KINDS}
            if not isinstance(kind, str) or kind not in kinds:
                raise ConfigurationError(
                    f"kind of state space must be one of {sorted(kinds)} or a registered one, got {shorten(repr(kind))}"
                )
            space, content = kinds[kind], data
        try:
            built = space.build(cast(Mapping[str, Any], content), size)
            check_size(built.size, size)
            return built
        except DphmmError:
            raise
        except Exception as problem:  # a registered class can raise any error
            raise ConfigurationError(
                f"invalid state space of kind {kind!r}: {shorten(repr(problem))}; write it again"
            ) from None

    @classmethod
    @abstractmethod
    def build(cls, data: Mapping[str, Any], size: int | None) -> StateSpace:
        """Build a space of this type.

        Parameters
        ----------
        data
            The dictionary of `to_json`.
        size
            The required number of states, to be checked before memory is allocated; None if it is unknown.

        Returns
        -------
        StateSpace
            The space.
        """

    @cached_property
    def content_hash(self) -> str:
        """The SHA-256 of the canonical JSON text, in hexadecimal. Equal for equal spaces."""
        document = self.to_json() if self.kind in _SHIPPED_KINDS else self.to_document()
        text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode("utf-8")).hexdigest()

    def __eq__(self, other: object) -> bool:
        return self.content_hash == other.content_hash if isinstance(other, StateSpace) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.content_hash)


_SHIPPED_KINDS = ("grid", "places", "streets")

# The state spaces of other packages.
SPACE_REGISTRY: Registry[StateSpace] = Registry(StateSpace, "dphmm.spaces", _SHIPPED_KINDS)  # type: ignore[type-abstract]  # an abstract class is intended


def register_space(space: type[StateSpace]) -> type[StateSpace]:
    """Register a state space under its `name` and `version`. Usable as a decorator.

    Parameters
    ----------
    space
        The class.

    Returns
    -------
    type
        The class.

    Raises
    ------
    ConfigurationError
        If it is not a state space, its name or version is invalid, or the name belongs to another space.
    """
    return SPACE_REGISTRY.register(space)


def _find_space(kind: str, data: Mapping[str, Any]) -> type[StateSpace]:
    """Return the class of a registered space by the name and version in a file."""
    name, _, version = kind.partition("@")
    provider = data.get("provider")
    module = shorten(provider) if isinstance(provider, str) else None
    if name not in SPACE_REGISTRY.list_names():
        raise build_missing_error("dphmm.spaces", name, version, provider=module)
    space = SPACE_REGISTRY.find(name)
    if version not in (space.version, *space.reads):
        reason = f"version {space.version} is installed"
        raise build_missing_error("dphmm.spaces", name, version, reason, module)
    return space


@check_arguments
class Places(StateSpace):
    """A table of named places. A fix belongs to the nearest one within a distance.

    Parameters
    ----------
    names
        The places' names, all different.
    latitude, longitude
        Shape ``(n,)`` each, degrees.
    within_km
        Maximum distance of a fix from its place, in kilometres; positive, or infinite for no limit.
    projection
        The plane. Defaults to the projection around the middle of the places.

    Raises
    ------
    StateError
        If there is no place, or a name is empty or occurs twice.
    CoordinateError
        If a coordinate is out of range, or a place lies more than 2000 km from the centre.
    ConfigurationError
        If the distance is not positive.

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
        within_km: Annotated[float, Interval(0, inf, "right", "kilometres", ConfigurationError)] = inf,
        projection: LocalProjection | None = None,
    ) -> None:
        self.names = tuple(names)
        self.latitude = np.array(latitude, dtype=np.float64)
        self.longitude = np.array(longitude, dtype=np.float64)
        self.within_km = float(within_km)
        _check_names(self.names)
        check_places(self.latitude, self.longitude, "table of places")
        count = len(self.names)
        places = len(self.latitude)
        if count != places:
            raise CoordinateError(f"there must be one name per place, got {count} names and {places} places")
        self.projection = projection or build_centred_projection(self.latitude, self.longitude)
        self.points = self.projection.to_plane(self.latitude, self.longitude)
        far = np.hypot(self.points[:, 0], self.points[:, 1])
        if far.max() > REACH_KM:
            raise CoordinateError(
                f"place {self.names[int(far.argmax())]!r} must be within {REACH_KM:.0f} km of the centre of the table, "
                f"got {far.max():.0f} km; split the table by region"
            )
        for array in (self.latitude, self.longitude, self.points):
            array.setflags(write=False)
        self._sealed = True

    def __repr__(self) -> str:
        return f"Places({self.size} places, within {self.within_km} km)"

    @check_arguments
    def latlon(self, states: npt.ArrayLike | None = None) -> FloatArray:
        """Return the exact latitude and longitude of places in degrees. Shape ``(n, 2)``.

        Raises
        ------
        StateError
            If a state is not an integer from 0 to ``size - 1``.
        """
        places = np.column_stack([self.latitude, self.longitude])
        return places if states is None else places[self.check(states)]

    def locate_plane(self, plane: FloatArray) -> IntArray:
        """Return the nearest places of points within the distance. See `StateSpace.locate_plane`."""
        distance, state = self._tree.query(plane)
        return np.where(distance <= self.within_km, state, OUTSIDE).astype(np.int64)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-serializable dictionary. See `StateSpace.to_json`."""
        return {
            "kind": self.kind,
            "projection": asdict(self.projection),
            "within_km": self.within_km if np.isfinite(self.within_km) else None,
            "names": list(self.names),
            "latitude": self.latitude.tolist(),
            "longitude": self.longitude.tolist(),
        }

    @classmethod
    def build(cls, data: Mapping[str, Any], size: int | None) -> Places:
        """Build places from the dictionary of `to_json`. See `StateSpace.build`."""
        check_size(len(data["names"]), size)
        within = float("inf") if data["within_km"] is None else data["within_km"]
        projection = LocalProjection(**data["projection"])
        return cls(data["names"], data["latitude"], data["longitude"], within, projection)


def check_size(num_states: int, expected: int | None) -> None:
    """Raise an error if a description has another number of states than expected, if any."""
    if expected not in (None, num_states):
        raise StateError(f"the space must have {expected} states, got {num_states}")


def _check_names(names: Sequence[str]) -> None:
    if not names:
        raise StateError("the table of places must not be empty")
    if not all(isinstance(name, str) and name for name in names):
        raise StateError("the name of every place must be a non-empty string")
    if broken := next((name for name in names if not is_text(name)), None):
        raise StateError(f"the name of a place must not contain an unpaired surrogate, got {broken!r}")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise StateError(f"names of places must be unique, got {twice!r} twice")
