"""Any number of people, each with a durable session of their own in one file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from dphmm.errors import BudgetExceededError, ConfigurationError
from dphmm.release.engine import Releaser
from dphmm.release.ledger import Limits
from dphmm.release.record import ReleaseRecord
from dphmm.release.session import Session
from dphmm.release.store import SessionStore
from dphmm.release.trajectory import TimedRelease, place_on_earth
from dphmm.space.states import OUTSIDE, StateSpace
from dphmm.space.trajectory import SlottedTrajectory, microseconds


class RecordedPeople:
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
        self._start = start
        self._space = space
        self._limits = limits
        self._first = start()
        if self._first.model.step_seconds is None:
            raise ConfigurationError("the model has no step_seconds, so times mean no step; make one that says it")
        self._step_seconds = self._first.model.step_seconds
        self._step = microseconds(self._step_seconds, "step")
        self._store = SessionStore(path, wait_seconds)
        self._sessions: dict[str, Session] = {}

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
        if track.step_seconds != self._step_seconds:
            raise ConfigurationError(
                f"the trajectory has a step of {track.step_seconds:g} s, the model one of {self._step_seconds:g} s; "
                "resample it"
            )
        states = self._space.locate(track.latitude, track.longitude)
        session = self.session(track.user)
        for row in np.flatnonzero(states != OUTSIDE).tolist():
            slot = int(track.slots[row])
            yield self._place(track.user, slot, _named(session, int(states[row]), slot, None))

    def take(
        self, user: str, time: np.datetime64, latitude: float, longitude: float, epsilon: float | None = None
    ) -> TimedRelease | None:
        """The answer to one fix, as `ReleaseStream.take` gives it; None outside the space.

        Raises
        ------
        TimeOrderError
            When the fix belongs to a moment that has no release and lies before the person's last one.
        BudgetExceededError
            When a limit would be passed.
        CoordinateError
            For an impossible place.
        """
        state = int(self._space.locate(latitude, longitude)[0])
        session = self.session(user)
        slot = session.slot_of(time)
        if state == OUTSIDE:
            known = session.find_in_order(slot)
            return None if known is None else self._place(user, slot, known)
        return self._place(user, slot, _named(session, state, slot, epsilon))

    def session(self, user: str) -> Session:
        """A person's session."""
        if user not in self._sessions:
            self._sessions[user] = Session.open(self._store, user, self._start(), self._limits)
        return self._sessions[user]

    def _place(self, user: str, slot: int, record: ReleaseRecord) -> TimedRelease:
        return place_on_earth(user, np.datetime64(slot * self._step, "us"), record, self._space)


def _named(session: Session, state: int, slot: int, epsilon: float | None) -> ReleaseRecord:
    try:
        return session.release(state, slot, epsilon)
    except BudgetExceededError as problem:
        raise BudgetExceededError(f"user {session.name}: {problem}") from None
