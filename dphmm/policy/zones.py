"""Private zones and open places drawn on a map, and the places from which zones are entered."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import shapely

from dphmm.arrays import BoolArray, IntArray
from dphmm.errors import DataFileError
from dphmm.policy.layer import read_polygons
from dphmm.policy.mending import ROUNDING
from dphmm.space.states import StateSpace

if TYPE_CHECKING:
    from scipy.sparse import csr_array


def zones(path: str | Path, space: StateSpace, label: str | None = None) -> dict[str, IntArray]:
    """The states of each zone of a layer: those whose points lie in a polygon, the border included.

    Polygons of one name that share a state are one zone; others are zones of their own.

    Parameters
    ----------
    path, label
        As in `dphmm.policy.layer.read_polygons`.
    space
        The states.

    Returns
    -------
    dict
        Zone → its states, in the order of the layer; a second zone of a name is called ``name (2)``.

    Raises
    ------
    DataFileError
        As `read_polygons`; when a zone holds no state, and when zones of different names overlap.
    """
    polygons = read_polygons(path, label)
    for (one, first), (two, second) in combinations(polygons, 2):
        if one != two and shapely.area(shapely.intersection(first, second)) > ROUNDING * min(first.area, second.area):
            raise DataFileError(path, f"zones {one!r} and {two!r} overlap; cut them apart, or give them one name")
    places = space.latlon()
    found: dict[str, list[IntArray]] = {}
    for name, polygon in polygons:
        inside = np.flatnonzero(shapely.intersects_xy(polygon, places[:, 1], places[:, 0]))
        if not len(inside):
            raise DataFileError(
                path, f"zone {name!r} holds no state of the model; draw it larger, or take smaller cells"
            )
        apart, together = [], inside
        for known in found.get(name, []):
            if np.isin(known, together).any():
                together = np.union1d(together, known)
            else:
                apart.append(known)
        found[name] = [*apart, together]
    made: dict[str, IntArray] = {}
    for name, parts in found.items():
        for number, states in enumerate(parts, start=1):
            made[name if number == 1 else f"{name} ({number})"] = states
    taken = np.concatenate(list(made.values()))
    if len(np.unique(taken)) < len(taken):  # on a border that zones share
        one, two = next((a, b) for a, b in combinations(made, 2) if np.isin(made[a], made[b]).any())
        raise DataFileError(path, f"zones {one!r} and {two!r} share a state on their border; move the border a little")
    return made


def open_places(path: str | Path, space: StateSpace, label: str | None = None) -> IntArray:
    """The states in any polygon of a layer.

    Raises
    ------
    DataFileError
        As `read_polygons`, and when there is none.
    """
    places, inside = space.latlon(), np.zeros(space.size, dtype=np.bool_)
    for _, polygon in read_polygons(path, label):
        inside |= shapely.intersects_xy(polygon, places[:, 1], places[:, 0])
    if not inside.any():
        raise DataFileError(path, "covers no state of the model; check that it is WGS 84 and of the same region")
    return np.flatnonzero(inside)


def buffered(
    groups: dict[str, IntArray], space: StateSpace, length: float, structure: csr_array | None
) -> dict[str, IntArray]:
    """Zones with the places about them from which they can be entered.

    Parameters
    ----------
    groups
        Zone → its states; no state is in two.
    space
        The states.
    length
        Kilometres: a place further than this from every state of a zone is not added to it.
    structure
        ``(N, N)``: which state can follow which. A place is added only if it leads into the zone by places that are
        added; left out, all places within the length are.

    Returns
    -------
    dict
        The same zones, larger. A place near several zones goes to the nearest, and none to a zone's own states.
    """
    points = space.measurements().points
    distance, nearest = _nearest_zone(list(groups.values()), points)
    taken = np.zeros(len(points), dtype=np.bool_)
    taken[np.concatenate(list(groups.values()))] = True
    near = (distance <= length * (1 + 1e-9)) & ~taken
    found = {}
    for number, (name, states) in enumerate(groups.items()):
        around = near & (nearest == number)
        inside = np.zeros(len(points), dtype=np.bool_)
        inside[states] = True
        found[name] = np.flatnonzero(inside | (around if structure is None else _leading(inside, around, structure)))
    return found


def _nearest_zone(groups: list[IntArray], points: np.ndarray) -> tuple[np.ndarray, IntArray]:
    """How far each point is from the nearest zone, and which that is; of equally near ones the first."""
    from scipy.spatial import cKDTree

    found = np.stack([cKDTree(points[states]).query(points)[0] for states in groups])
    return found.min(axis=0), np.asarray(found.argmin(axis=0), dtype=np.int64)


def _leading(inside: BoolArray, around: BoolArray, structure: csr_array) -> BoolArray:
    """The states around that lead into a zone by such states."""
    reached = inside.copy()
    while True:
        before = np.asarray(structure @ reached.astype(np.float64)) > 0
        new = before & around & ~reached
        if not new.any():
            return reached & ~inside
        reached |= new
