"""Whole trajectories through the engine: from places and times to timed releases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import nan
from typing import Protocol

import numpy as np

from dphmm.arrays import FloatArray
from dphmm.errors import BudgetExceededError, ConfigurationError, CoordinateError, InvalidInputError, TimeOrderError
from dphmm.release.engine import Releaser
from dphmm.release.record import PrivateDiagnostics, ReleaseRecord
from dphmm.release.session import check_order
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
    releaser.restart()
    for state, release in walk(Remembered(releaser), space, trajectory, releaser.model.step_seconds, epsilons):
        if private is not None:
            diagnostics = releaser.private_diagnostics(state)
            private(TimedDiagnostics(release.user, release.time, diagnostics))
        yield release


class Person(Protocol):
    """Whoever has releases, each of a time step: `Remembered`, or a durable `dphmm.release.Session`."""

    def release(self, state: int, slot: int, epsilon: float | None = None) -> ReleaseRecord:
        """Release the true state of a time step, or say again what was released of it."""

    def find_in_order(self, slot: int) -> ReleaseRecord | None:
        """What was released of a time step; None for one that could be released now.

        Raises
        ------
        TimeOrderError
            When it has no release and lies before the last one released.
        """


class Remembered:
    """A person of whose releases the last one is remembered, and that no longer than the process lives.

    Parameters
    ----------
    releaser
        Their engine, which has released nothing yet.
    """

    def __init__(self, releaser: Releaser) -> None:
        self._releaser = releaser
        self._slot: int | None = None
        self._record: ReleaseRecord | None = None

    def release(self, state: int, slot: int, epsilon: float | None = None) -> ReleaseRecord:
        """As `Person.release`."""
        known = self.find_in_order(slot)
        if known is None:
            known = self._releaser.release(state, epsilon, 1 if self._slot is None else slot - self._slot)
            self._slot, self._record = slot, known
        return known

    def find_in_order(self, slot: int) -> ReleaseRecord | None:
        """As `Person.find_in_order`."""
        check_order(slot, self._slot)
        return self._record if slot == self._slot else None


def walk(
    person: Person,
    space: StateSpace,
    trajectory: SlottedTrajectory,
    step_seconds: float | None,
    epsilons: FloatArray | None = None,
) -> Iterator[tuple[int, TimedRelease]]:
    """Every state of a person's trajectory that lies in the space, with what is released of it.

    Parameters and errors are those of `release_trajectory`; the step is the model's, where it says one.
    """
    if step_seconds is not None and step_seconds != trajectory.step_seconds:
        raise ConfigurationError(
            f"the trajectory has a step of {trajectory.step_seconds:g} s, the model one of {step_seconds:g} s; "
            "resample it"
        )
    if epsilons is not None and len(epsilons) != len(trajectory):
        raise InvalidInputError(f"there are {len(epsilons)} budgets for {len(trajectory)} places; give one per place")
    states, times = space.locate(trajectory.latitude, trajectory.longitude), trajectory.times
    for row in np.flatnonzero(states != OUTSIDE).tolist():
        state, slot = int(states[row]), int(trajectory.slots[row])
        epsilon = None if epsilons is None else float(epsilons[row])
        release = answer(person, space, trajectory.user, times[row], slot, state, epsilon)
        if release is not None:
            yield state, release


def answer(
    person: Person, space: StateSpace, user: str, time: np.datetime64, slot: int, state: int, epsilon: float | None
) -> TimedRelease | None:
    """What is said of a person's time step, which ends at ``time``; None outside the space where nothing was released.

    Raises
    ------
    TimeOrderError, BudgetExceededError
        With the person's name.
    """
    try:
        record = person.find_in_order(slot) if state == OUTSIDE else person.release(state, slot, epsilon)
    except BudgetExceededError as problem:
        raise BudgetExceededError(f"user {user}: {problem}") from None
    except TimeOrderError as problem:
        raise TimeOrderError(f"user {user}: time {time} goes back ({problem}); sort the fixes by time") from None
    return None if record is None else place_on_earth(user, time, record, space)


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
