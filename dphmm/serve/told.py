"""What a recipient is told of a moment: never anything but a release, and what it says of where the person is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dphmm.release.trajectory import TimedRelease
from dphmm.writers.table import said_of


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
    """

    user: str
    second: int
    time: str
    latitude: float
    longitude: float
    radius_m: float
    row: dict[str, Any]

    @classmethod
    def of(cls, release: TimedRelease) -> Told:
        """What is told of a release."""
        row = said_of(release)
        second = int(release.time.astype("datetime64[s]").astype(np.int64))
        radius = round(1000 * release.estimate_radius, 1)
        return cls(
            release.user, second, row["time"], release.estimate_latitude, release.estimate_longitude, radius, row
        )
