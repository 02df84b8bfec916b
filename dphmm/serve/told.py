"""What a recipient is told of a moment: never anything but a release, and what it says of where the person is."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from math import isnan
from typing import Any

import numpy as np

from dphmm.release.trajectory import TimedRelease
from dphmm.tables import iso_time
from dphmm.tables.json_text import parse_json
from dphmm.writers.table import said_of

LatLon = tuple[float, float]


@dataclass(frozen=True)
class Told:
    """One message to a recipient, whatever its format.

    Parameters
    ----------
    user
        About whom.
    second
        The end of the time step, in seconds since 1970.
    time
        The same as ISO 8601.
    latitude, longitude
        The best estimate given all releases: closer than the released place, at no further cost.
    radius_m
        How far the estimate is from the person, in expectation.
    row
        The release as the stream answers it.
    zone
        The zone that the estimate lies in, ``"away"`` for none; for recipients who are told that instead. None for
        others.
    """

    user: str
    second: int
    time: str
    latitude: float
    longitude: float
    radius_m: float
    row: dict[str, Any]
    zone: str | None = None

    @property
    def is_prediction(self) -> bool:
        """Whether nothing was drawn at this moment, so that the estimate follows from releases before."""
        return not self.row["released"]

    def to_json(self) -> str:
        """As it is kept."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Told:
        """What `to_json` wrote."""
        return cls(**parse_json(text))

    @classmethod
    def coarser(
        cls, user: str, time: np.datetime64, epsilon: float, place: LatLon | None, estimate: LatLon, radius_km: float
    ) -> Told:
        """What is told of a coarser release: nothing that follows from the finer ones.

        Parameters
        ----------
        user, time
            About whom, and the end of the time step.
        epsilon
            The budget of coarser releases.
        place, estimate
            The release, None where nothing was drawn, and the best estimate from coarser ones alone, degrees.
        radius_km
            How far the estimate is from the person, in expectation, to whoever has coarser releases alone.
        """
        second, text, radius = int(time.astype("datetime64[s]").astype(np.int64)), iso_time(time), 1000 * radius_km
        latitude, longitude = (None, None) if place is None or isnan(place[0]) or isnan(place[1]) else place
        row = {
            "released": place is not None,
            "user": user,
            "time": text,
            "latitude": latitude,
            "longitude": longitude,
            "estimate_latitude": estimate[0],
            "estimate_longitude": estimate[1],
            "estimate_radius_m": radius,
            "epsilon": epsilon,
        }
        return cls(user, second, text, *estimate, round(radius, 1), row)

    @classmethod
    def of(cls, release: TimedRelease) -> Told:
        """What is told of a release."""
        row = said_of(release)
        second = int(release.time.astype("datetime64[s]").astype(np.int64))
        radius = round(1000 * release.estimate_radius, 1)
        return cls(
            release.user, second, row["time"], release.estimate_latitude, release.estimate_longitude, radius, row
        )
