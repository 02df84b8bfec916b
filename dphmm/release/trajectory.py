"""Whole trajectories through the engine: from places and times to timed releases."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import nan
from typing import Protocol

import numpy as np

from dphmm.arguments import checked
from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.errors import (
    BudgetExceededError,
    ConfigurationError,
    CoordinateError,
    EventError,
    InvalidInputError,
    OmittedError,
    TimeOrderError,
)
from dphmm.release.account import Account
from dphmm.release.clock import check_order
from dphmm.release.engine import Releaser
from dphmm.release.record import PrivateDiagnostics, ReleaseRecord
from dphmm.release.settings import Outside
from dphmm.space.states import OUTSIDE, StateSpace
from dphmm.space.trajectory import SlottedTrajectory
from dphmm.tables import iso_time

Moment = tuple[np.datetime64, ReleaseRecord]
"""A record and the instant that it is of."""

_BLOCK = 512
"""Moments whose places are worked out at a time."""


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
        The released place, WGS 84 degrees; NaN where nothing was drawn, or the draw lies beyond the plane's image of
        the Earth.
    estimate_latitude, estimate_longitude
        The posterior mean, WGS 84 degrees; where it lies outside the region the place of the nearest state, which
        releases alone decide.
    forgotten
        How many earlier releases about the user the belief behind this one does not know of: what the record says
        holds for an adversary who has forgotten them, too.
    """

    user: str
    time: np.datetime64
    record: ReleaseRecord
    latitude: float
    longitude: float
    estimate_latitude: float
    estimate_longitude: float
    forgotten: int = 0
    moved: float = 0.0
    """How far the estimate was moved into the region, kilometres."""

    @property
    def estimate_radius(self) -> float:
        """The expected distance of the estimate from the person, kilometres; at most that where it was moved."""
        return self.record.estimate_radius + self.moved


@dataclass(frozen=True)
class TimedDiagnostics:
    """Private diagnostics with user and time, and whether the place lay outside the region. Never publish them."""

    user: str
    time: np.datetime64
    diagnostics: PrivateDiagnostics
    outside: bool = False


@checked
def release_trajectory(
    releaser: Releaser,
    space: StateSpace,
    trajectory: SlottedTrajectory,
    epsilons: FloatArray | None = None,
    private: Callable[[TimedDiagnostics], None] | None = None,
    before: Account | None = None,
) -> Iterator[TimedRelease]:
    """Release every place of a trajectory that lies in the state space, one after another.

    The releaser starts anew. Between two releases the belief advances by as many steps as the clock does, however long
    the gap: an adversary's would too. For a place outside the space the nearest state stands, or nothing is released,
    as the releaser's settings say; then the times of the releases tell when the person was within the region. That the
    person was recorded, they tell always.

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
    before
        What releases about the person cost that were made before, and that this belief does not know of; these are
        entered too. Left out, there were none.

    Yields
    ------
    TimedRelease
        One for every place, or for every one within the space.

    Raises
    ------
    ConfigurationError
        When the trajectory's step is not the model's.
    InvalidInputError
        When there is not one budget per place.
    """
    forgotten = 0 if before is None else before.count
    for time, record in moments_of(releaser, space, trajectory, epsilons, private, before):
        yield place_on_earth(trajectory.user, time, record, space, forgotten)


def moments_of(
    releaser: Releaser,
    space: StateSpace,
    trajectory: SlottedTrajectory,
    epsilons: FloatArray | None = None,
    private: Callable[[TimedDiagnostics], None] | None = None,
    before: Account | None = None,
) -> Iterator[Moment]:
    """What `release_trajectory` yields before it is `placed`: after each moment the releaser is at it.

    Parameters and errors are those of `release_trajectory`.
    """
    releaser.restart()
    releaser.person.account = Account() if before is None else before
    outside, step = releaser.settings.outside, releaser.model.step_seconds
    for state, away, moment in walk(Remembered(releaser), space, trajectory, outside, step, epsilons):
        if private is not None:
            diagnostics = releaser.private_diagnostics(state)
            private(TimedDiagnostics(trajectory.user, moment[0], diagnostics, away))
        yield moment


class Person(Protocol):
    """Whoever has releases, each of a time step: `Remembered`, or a durable `dphmm.release.Session`."""

    def release(self, state: int, slot: int, epsilon: float | None = None) -> ReleaseRecord:
        """Release the true state of a time step, or say again what was released of it.

        Raises
        ------
        TimeOrderError
            When it has no release and lies before the last one of which something was said; an `OmittedError` when it
            was omitted itself.
        """

    def omit(self, slot: int) -> ReleaseRecord | None:
        """Agree that a time step has no release, or say again what was released of it.

        Raises
        ------
        TimeOrderError
            As `release`.
        """


class Remembered:
    """A person of whose time steps the last one is remembered, and that no longer than the process lives.

    Parameters
    ----------
    releaser
        Their engine, which has released nothing yet.
    """

    def __init__(self, releaser: Releaser) -> None:
        self._releaser = releaser
        self._slot: int | None = None
        self._record: ReleaseRecord | None = None
        self._omitted: int | None = None

    def release(self, state: int, slot: int, epsilon: float | None = None) -> ReleaseRecord:
        """As `Person.release`."""
        known = self._find(slot)
        if known is None:
            if slot == self._omitted:
                raise OmittedError(f"slot {slot} was omitted: that it has no release was said")
            if self._slot is None:
                self._releaser.person.first = slot
            known = self._releaser.release(state, epsilon, 1 if self._slot is None else slot - self._slot)
            self._slot, self._record = slot, known
        return known

    def omit(self, slot: int) -> ReleaseRecord | None:
        """As `Person.omit`."""
        known = self._find(slot)
        if known is None:
            self._omitted = slot
        return known

    def _find(self, slot: int) -> ReleaseRecord | None:
        if slot == self._slot:
            return self._record
        for last in (self._slot, self._omitted):
            check_order(slot, last)
        return None


def located(
    space: StateSpace, latitude: FloatArray, longitude: FloatArray, outside: Outside
) -> tuple[IntArray, BoolArray]:
    """The state that stands for each place, and which places lie outside the region.

    Parameters
    ----------
    space
        The states.
    latitude, longitude
        ``(n,)`` each, WGS 84 degrees.
    outside
        Whether the nearest state stands for a place outside (``"border"``), or none (``"omit"``).

    Returns
    -------
    states, is_outside
        ``(n,)`` each; a state of -1 is none.

    Raises
    ------
    CoordinateError
        For an impossible place.
    """
    states = space.locate(latitude, longitude)
    away = states == OUTSIDE
    if outside == "border" and away.any():
        states[away] = space.nearest(latitude[away], longitude[away])
    return states, away


def walk(
    person: Person,
    space: StateSpace,
    trajectory: SlottedTrajectory,
    outside: Outside,
    step_seconds: float | None,
    epsilons: FloatArray | None = None,
) -> Iterator[tuple[int, bool, Moment]]:
    """Every place of a person's trajectory that has a release: its state, whether it lies outside, the moment.

    A place for which no state stands leaves a time step without a row, which says that it has no release: it is agreed
    with the person that it never will, unless it has one, which is then said again.

    Parameters and errors are those of `release_trajectory`; the step is the model's, where it says one.
    """
    if step_seconds is not None and step_seconds != trajectory.step_seconds:
        raise ConfigurationError(
            f"the trajectory has a step of {trajectory.step_seconds:g} s, the model one of {step_seconds:g} s; "
            "resample it"
        )
    if epsilons is not None and np.shape(epsilons) != (len(trajectory),):
        raise InvalidInputError(
            f"budgets have shape {np.shape(epsilons)}; there are {len(trajectory)} places, so give one per place"
        )
    states, away = located(space, trajectory.latitude, trajectory.longitude, outside)
    times = trajectory.times
    for row, state in enumerate(states.tolist()):
        slot, epsilon = int(trajectory.slots[row]), None if epsilons is None else float(epsilons[row])
        try:
            record = answer(person, trajectory.user, times[row], slot, state, epsilon)
        except TimeOrderError:
            if state != OUTSIDE:
                raise
            record = None  # before the last one of which something was said: it has none, and gets none
        if record is not None:
            yield state, bool(away[row]), (times[row], record)


def answer(
    person: Person, user: str, time: np.datetime64, slot: int, state: int, epsilon: float | None
) -> ReleaseRecord | None:
    """What is said of a person's time step, which ends at ``time``: a release, or None, and the same ever after.

    Raises
    ------
    TimeOrderError, BudgetExceededError, EventError
        With the person's name.
    """
    try:
        return person.omit(slot) if state == OUTSIDE else person.release(state, slot, epsilon)
    except OmittedError:
        return None
    except (BudgetExceededError, EventError) as problem:
        raise type(problem)(f"user {user}: {problem}") from None
    except TimeOrderError as problem:
        raise TimeOrderError(
            f"user {user}: time {iso_time(time)} goes back ({problem}); sort the fixes by time"
        ) from None


def placed(user: str, moments: Sequence[Moment], space: StateSpace, forgotten: int = 0) -> list[TimedRelease]:
    """The moments of a person, each as `place_on_earth` has it, whole blocks at a time."""
    found: list[TimedRelease] = []
    for start in range(0, len(moments), _BLOCK):
        block = moments[start : start + _BLOCK]
        try:
            drawn = np.array([record.estimate if record.released is None else record.released for _, record in block])
            released = space.projection.to_latlon(drawn).tolist()
            estimates = space.projection.to_latlon(np.array([record.estimate for _, record in block]))
        except CoordinateError:  # one of them shows no place of the Earth
            found += [place_on_earth(user, *moment, space, forgotten) for moment in block]
            continue
        within = (space.locate(*estimates.T) != OUTSIDE).tolist()
        for (time, record), (y, x), (north, east), inside in zip(
            block, released, estimates.tolist(), within, strict=True
        ):
            if not inside:
                found.append(place_on_earth(user, time, record, space, forgotten))
                continue
            latitude, longitude = (nan, nan) if record.released is None else (y, x)
            found.append(TimedRelease(user, time, record, latitude, longitude, north, east, forgotten))
    return found


def place_on_earth(
    user: str, time: np.datetime64, record: ReleaseRecord, space: StateSpace, forgotten: int = 0
) -> TimedRelease:
    """A record whose measurements are points of a space's plane, with its places in degrees.

    The noise has no bound, so that a draw may lie where the plane shows no place of the Earth: its degrees are NaN.
    Whether they are is seen from the draw alone. An estimate outside the region, as the mean over a bent one may be,
    is brought to the nearest state's place.
    """
    latitude, longitude = (nan, nan) if record.released is None else degrees_of(record.released, space)
    estimate = np.array([degrees_of(record.estimate, space)])
    if not np.isfinite(estimate).all() or space.locate(*estimate.T)[0] != OUTSIDE:
        north, east = estimate[0].tolist()
        return TimedRelease(user, time, record, latitude, longitude, north, east, forgotten)
    nearest = space.points[int(space.nearest(*estimate.T)[0])]
    moved = float(np.linalg.norm(nearest - np.array(record.estimate)))
    north, east = degrees_of((float(nearest[0]), float(nearest[1])), space)
    return TimedRelease(user, time, record, latitude, longitude, north, east, forgotten, moved)


def degrees_of(point: tuple[float, ...], space: StateSpace) -> tuple[float, float]:
    """A point of a space's plane in degrees; NaN where the plane shows no place of the Earth."""
    try:
        latitude, longitude = space.projection.to_latlon(np.array([point]))[0].tolist()
    except CoordinateError:
        return nan, nan
    return latitude, longitude
