"""Any number of people, whose places are released in order of time: remembered, or durable in one file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from dphmm.release.engine import Releaser
from dphmm.release.ledger import Limits
from dphmm.release.session import Session, step_number
from dphmm.release.store import SessionStore
from dphmm.release.trajectory import Person, Remembered, TimedRelease, answer, walk
from dphmm.space.states import StateSpace
from dphmm.space.trajectory import SlottedTrajectory, microseconds


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
        self._step_seconds = step_seconds
        self._step = microseconds(step_seconds, "step")
        self._people: dict[str, Person] = {}

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
            When the fix belongs to a slot that has no release (that is remembered) and lies before the person's last.
        BudgetExceededError
            When a limit would be passed.
        CoordinateError
            For an impossible place.
        """
        state = int(self._space.locate(latitude, longitude)[0])
        slot = step_number(time, self._step_seconds)
        instant = np.datetime64(slot * self._step, "us")
        return answer(self._person(user), self._space, user, instant, slot, state, epsilon)

    def _person(self, user: str) -> Person:
        if user not in self._people:
            self._people[user] = Remembered(self._start())
        return self._people[user]


class RecordedPeople(ReleaseStream):
    """Releases for people whose sessions are named after them: whole trajectories, or fixes as they come.

    Both run on the clock of `dphmm.space.Trajectory.resample`. A moment that was released, in this run or before, is
    answered with that release.

    Parameters
    ----------
    path
        The file of sessions; made where there is none.
    start
        Makes a person's engine. All must have the same terms; the measurements are the points of `space`.
    space
        The states.
    limits
        What each person's session may spend; left out, as agreed when it began.
    wait_seconds
        How long to wait for another process that is writing.

    Raises
    ------
    ConfigurationError
        When the model does not say how long its steps are.
    DataFileError, OutputError
        As `Session.open`.
    """

    def __init__(
        self,
        path: str | Path,
        start: Callable[[], Releaser],
        space: StateSpace,
        limits: Limits | None = None,
        wait_seconds: float = 30.0,
    ) -> None:
        super().__init__(start, space, start().model.step)
        self._limits = limits
        self._store = SessionStore(path, wait_seconds)

    def __enter__(self) -> RecordedPeople:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._store.close()

    def trajectory(self, track: SlottedTrajectory) -> Iterator[TimedRelease]:
        """Release every place of a trajectory that lies in the state space, as `release_trajectory` does.

        Raises
        ------
        ConfigurationError
            When the trajectory's step is not the model's.
        TimeOrderError
            When a place belongs to a moment that has no release and lies before the person's last one.
        BudgetExceededError
            When a limit would be passed. What was released before stays in the file.
        """
        for _, release in walk(self._person(track.user), self._space, track, self._step_seconds):
            yield release

    def _person(self, user: str) -> Person:
        if user not in self._people:
            self._people[user] = Session.open(self._store, user, self._start(), self._limits)
        return self._people[user]
