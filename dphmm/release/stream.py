"""Fixes as they come, each answered at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dphmm.errors import TimeOrderError
from dphmm.release.engine import Releaser
from dphmm.release.trajectory import TimedRelease, place_on_earth
from dphmm.space.states import OUTSIDE, StateSpace
from dphmm.space.trajectory import microseconds


@dataclass
class _Person:
    releaser: Releaser
    slot: int | None = None
    answer: TimedRelease | None = None


class ReleaseStream:
    """Releases for any number of people whose fixes arrive one by one, each person's in order of time.

    The clock is that of `dphmm.space.Trajectory.resample`: a fix belongs to the slot at the end of its step. The first
    fix of a slot that lies within the space is released; a later fix in the same slot is answered with that release
    once more, which costs no budget and says nothing new. (A whole trajectory that is resampled releases the last fix
    of a slot: it need not answer at once.)

    Parameters
    ----------
    start
        Makes the engine of a person who is seen for the first time.
    space
        The states; the engines' measurements are its points.
    step_seconds
        The step of the model.

    Raises
    ------
    ConfigurationError
        When the step is not a positive, finite number of seconds.
    """

    def __init__(self, start: Callable[[], Releaser], space: StateSpace, step_seconds: float) -> None:
        self._start = start
        self._space = space
        self._step = microseconds(step_seconds, "step")
        self._people: dict[str, _Person] = {}

    def take(
        self, user: str, time: np.datetime64, latitude: float, longitude: float, epsilon: float | None = None
    ) -> TimedRelease | None:
        """The answer to one fix.

        Parameters
        ----------
        user
            Whose fix it is.
        time
            When, in UTC.
        latitude, longitude
            Where, WGS 84 degrees.
        epsilon
            The budget of this release; left out, the engine's.

        Returns
        -------
        TimedRelease or None
            None for a fix outside the space in a slot that has no release yet.

        Raises
        ------
        TimeOrderError
            When the fix belongs to a slot before that of the person's last release.
        CoordinateError
            For an impossible place.
        """
        slot = -(-int(time.astype("datetime64[us]").astype(np.int64)) // self._step)
        state = int(self._space.locate(latitude, longitude)[0])
        known = self._people.get(user)
        if known is not None and known.slot is not None and slot <= known.slot:
            if slot < known.slot:
                raise TimeOrderError(
                    f"user {user}: time {time} goes back behind the last release; sort the fixes by time"
                )
            return known.answer
        if state == OUTSIDE:
            return None
        person = known or _Person(self._start())
        steps = 1 if person.slot is None else slot - person.slot
        record = person.releaser.release(state, epsilon, steps)
        self._people[user] = person
        person.slot = slot
        instant = np.datetime64(slot * self._step, "us")
        person.answer = place_on_earth(user, instant, record, self._space)
        return person.answer
