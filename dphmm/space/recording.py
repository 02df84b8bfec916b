"""A recording as a device made it: its points in their segments, with what else is known of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray

SENSORS = ("cad", "power", "speed", "course", "hr", "atemp")
"""What is kept of a point besides its place: cadence, power, speed, course, heart rate, temperature of the air."""


@dataclass(frozen=True, eq=False)
class Segment:
    """Points without an interruption.

    Parameters
    ----------
    latitude, longitude
        ``(n,)``: degrees.
    times
        ``(n,)``: datetime64 in UTC, NaT where it is not known.
    elevation
        ``(n,)``: metres, NaN where it is not known.
    sensors
        Some of `SENSORS` → ``(n,)`` numbers, NaN where there is none.
    """

    latitude: FloatArray
    longitude: FloatArray
    times: npt.NDArray[np.datetime64]
    elevation: FloatArray
    sensors: dict[str, FloatArray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.latitude)

    def part(self, which: slice) -> Segment:
        """Some points in a row.

        Parameters
        ----------
        which
            Which of them.

        Returns
        -------
        Segment
            These alone.
        """
        sensors = {name: values[which] for name, values in self.sensors.items()}
        return Segment(self.latitude[which], self.longitude[which], self.times[which], self.elevation[which], sensors)

    @classmethod
    def joined(cls, several: Sequence[Segment]) -> Segment:
        """All points of some segments as one, with the sensors that any of them has.

        Parameters
        ----------
        several
            At least one.

        Returns
        -------
        Segment
            Their points in a row.
        """

        def row(what: Callable[[Segment], npt.NDArray[Any]]) -> npt.NDArray[Any]:
            return np.concatenate([what(one) for one in several])

        def sensor(name: str) -> FloatArray:
            return row(lambda one: one.sensors.get(name, np.full(len(one), np.nan)))

        names = dict.fromkeys(name for one in several for name in one.sensors)
        return cls(
            row(lambda one: one.latitude),
            row(lambda one: one.longitude),
            row(lambda one: one.times),
            row(lambda one: one.elevation),
            {name: sensor(name) for name in names},
        )

    def runs(self, chosen: BoolArray) -> list[Segment]:
        """The stretches of chosen points.

        Parameters
        ----------
        chosen
            ``(n,)``: which.

        Returns
        -------
        list of Segment
            One for each stretch, in order.
        """
        ends = np.flatnonzero(np.diff(np.concatenate([[False], chosen, [False]]).astype(np.int8)))
        return [self.part(slice(first, last)) for first, last in ends.reshape(-1, 2).tolist()]


@dataclass(frozen=True)
class Recording:
    """What one file recorded.

    Parameters
    ----------
    segments
        In the order of the file.
    activity
        What the file calls the kind of activity, such as ``"cycling"``; None where it does not.
    left_out
        What else stands in the file, by name, and is not held here.
    """

    segments: tuple[Segment, ...]
    activity: str | None = None
    left_out: tuple[str, ...] = ()

    def __len__(self) -> int:
        return sum(map(len, self.segments))
