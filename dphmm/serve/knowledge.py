"""What a reader of releases can tell of where a person is, for sentences without figures.

A reader is one who knows the public model and what they were told. That the person is on a side of a town's centre, or
within a distance of it, is said where it is at least twice as probable as not, by Markov's inequality: the expected
distance of the estimate from the person is known, and no more of how the distance is spread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import atan2, ceil, cos, degrees, hypot, radians
from typing import Any

from dphmm.plots.basemap import PlaceName

_SURE = 3.0
"""A distance of at least this many expected ones from the estimate is reached with a probability of 1/3 at most."""
_EIGHTH = cos(radians(22.5))
_SIDES = ("n", "ne", "e", "se", "s", "sw", "w", "nw")
_KM_A_DEGREE = 111.32
_NEAR_KM, _FAR_KM = 15.0, 60.0
"""The largest town within the former is what people go by, of several the nearest; or else the nearest within the
latter."""

SPOT_M, STREET_M, AREA_M, SURE = 50.0, 300.0, 5000.0, 0.5
"""Guesses off by less than the first two may tell a house and a street, by more than the third hardly a town; a reader
who is surer than the last of one place may tell it."""


@dataclass(frozen=True)
class Figures:
    """What a reader's belief says at a moment, in metres and degrees.

    Parameters
    ----------
    latitude, longitude
        The estimate.
    radius_m
        The expected distance of the estimate from the person.
    guess_off_m
        The expected distance of their best guess.
    certainty
        The probability of the place that they hold most probable.
    exact
        Whether the release was probably the place as it is.
    """

    latitude: float
    longitude: float
    radius_m: float
    guess_off_m: float
    certainty: float
    exact: bool = False


def knowledge_of(figures: Figures, names: Sequence[PlaceName]) -> dict[str, Any]:
    """What a reader can tell, in the keys of a page's sentences.

    Parameters
    ----------
    figures
        What the reader's belief says.
    names
        Towns, to say on which side of one the person is.

    Returns
    -------
    dict
        ``level``: ``exact``, ``spot``, ``street``, ``quarter`` or ``area``, from the most that can be told down;
        ``off_m``; ``certainty`` where the reader is sure of one place; ``town`` with either the ``side`` of its centre
        or ``within_m`` of it, None where no town is near.
    """
    said: dict[str, Any] = {"level": _level(figures), "off_m": figures.radius_m, "town": None}
    if figures.certainty >= SURE:
        said["certainty"] = figures.certainty
    town = _town(figures, names)
    if town is None:
        return said
    east, north = _offset(figures, town)
    away = 1000 * hypot(east, north)
    said["town"] = town.name
    if away * _EIGHTH > _SURE * figures.radius_m:
        return said | {"side": _SIDES[round(degrees(atan2(east, north)) / 45) % 8]}
    return said | {"within_m": 100 * ceil((away + _SURE * figures.radius_m) / 100)}


def _level(figures: Figures) -> str:
    if figures.exact:
        return "exact"
    if figures.guess_off_m < SPOT_M:
        return "spot"
    if figures.guess_off_m < STREET_M or figures.certainty >= SURE:
        return "street"
    return "quarter" if figures.guess_off_m < AREA_M else "area"


def _offset(figures: Figures, name: PlaceName) -> tuple[float, float]:
    """How far an estimate lies east and north of a place, in kilometres."""
    east = (figures.longitude - name.longitude + 180) % 360 - 180
    return _KM_A_DEGREE * east * cos(radians(name.latitude)), _KM_A_DEGREE * (figures.latitude - name.latitude)


def _town(figures: Figures, names: Sequence[PlaceName]) -> PlaceName | None:
    away = [(hypot(*_offset(figures, name)), name) for name in names]
    near = [(-name.rank, km, name) for km, name in away if km <= _NEAR_KM]
    if near:
        return min(near)[2]
    farther = [one for one in away if one[0] <= _FAR_KM]
    return min(farther)[1] if farther else None
