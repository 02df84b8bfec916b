"""Whole trajectories through the engine: from places and times to timed releases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import nan

import numpy as np

from dphmm.arrays import FloatArray
from dphmm.errors import ConfigurationError, CoordinateError, InvalidInputError
from dphmm.release.engine import Releaser
from dphmm.release.record import PrivateDiagnostics, ReleaseRecord
from dphmm.space.states import OUTSIDE, StateSpace
from dphmm.space.trajectory import SlottedTrajectory


@dataclass(frozen=True)
class TimedRelease:
    """A release record with its user, its time, and its places in degrees.

    Parameters
    ----------
    user
        Whose release it is.
    time
        The instant, ``datetime64[us]`` in UTC.
    record
        The public record; its measurements are kilometres in the plane of the state space.
    latitude, longitude
        The released place, WGS 84 degrees; NaN where the draw lies beyond the plane's image of the Earth.
    estimate_latitude, estimate_longitude
        The posterior mean, WGS 84 degrees.
    """

    user: str
    time: np.datetime64
    record: ReleaseRecord
    latitude: float
    longitude: float
    estimate_latitude: float
    estimate_longitude: float


@dataclass(frozen=True)
class TimedDiagnostics:
    """Private diagnostics with their user and time. Never publish them."""

    user: str
    time: np.datetime64
    diagnostics: PrivateDiagnostics


def release_trajectory(
    releaser: Releaser,
    space: StateSpace,
    trajectory: SlottedTrajectory,
    epsilons: FloatArray | None = None,
    private: Callable[[TimedDiagnostics], None] | None = None,
) -> Iterator[TimedRelease]:
    """Release every place of a trajectory that lies in the state space, one after another.

    The releaser starts anew. Between two releases the belief advances by as many steps as the clock does, however long
    the gap: an adversary's would too. Places outside the space are passed over, so that the times of the releases tell
    when the person was within the region (and was recorded at all).

    Parameters
    ----------
    releaser
        An engine whose measurements are the space's points.
    space
        The states.
    trajectory
        A trajectory on the model's clock.
    epsilons
        ``(n,)``: a budget for every place of the trajectory; left out, the releaser's.
    private
        Is called with the private diagnostics of every release; left out, none are made.

    Yields
    ------
    TimedRelease
        One for every place within the space.

    Raises
    ------
    ConfigurationError
        When the trajectory's step is not the model's.
    InvalidInputError
        When there is not one budget per place.
    """
    step = releaser.model.step_seconds
    if step is not None and step != trajectory.step_seconds:
        raise ConfigurationError(
            f"the trajectory has a step of {trajectory.step_seconds:g} s, the model one of {step:g} s; resample it"
        )
    if epsilons is not None and len(epsilons) != len(trajectory):
        raise InvalidInputError(f"there are {len(epsilons)} budgets for {len(trajectory)} places; give one per place")
    states = space.locate(trajectory.latitude, trajectory.longitude)
    within = np.flatnonzero(states != OUTSIDE)
    times = trajectory.times
    releaser.restart()
    last: int | None = None
    for row in within.tolist():
        slot = int(trajectory.slots[row])
        steps = 1 if last is None else slot - last
        record = releaser.release(int(states[row]), None if epsilons is None else float(epsilons[row]), steps)
        last = slot
        if private is not None:
            diagnostics = releaser.private_diagnostics(int(states[row]))
            private(TimedDiagnostics(trajectory.user, times[row], diagnostics))
        yield place_on_earth(trajectory.user, times[row], record, space)


def place_on_earth(user: str, time: np.datetime64, record: ReleaseRecord, space: StateSpace) -> TimedRelease:
    """A record whose measurements are points of a space's plane, with its places in degrees.

    The noise has no bound, so that a draw may lie where the plane shows no place of the Earth: its degrees are NaN.
    Whether they are is seen from the draw alone.
    """
    latitude, longitude = _degrees(record.released, space)
    estimate_latitude, estimate_longitude = _degrees(record.estimate, space)
    return TimedRelease(user, time, record, latitude, longitude, estimate_latitude, estimate_longitude)


def _degrees(point: tuple[float, ...], space: StateSpace) -> tuple[float, float]:
    try:
        latitude, longitude = space.projection.to_latlon(np.array([point]))[0].tolist()
    except CoordinateError:
        return nan, nan
    return latitude, longitude
