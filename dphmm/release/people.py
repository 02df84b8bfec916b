"""Any number of people, whose places are released in order of time: remembered, or durable in one file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dphmm.arguments import checked
from dphmm.arrays import check_epsilon
from dphmm.errors import BudgetError, SessionMismatchError, TimeOrderError
from dphmm.release.clock import step_number
from dphmm.release.engine import Releaser
from dphmm.release.ledger import Limits
from dphmm.release.session import Session
from dphmm.release.store import SessionStore
from dphmm.release.stored import StoredSession
from dphmm.release.trajectory import Moment, Person, Remembered, TimedRelease, answer, located, place_on_earth, walk
from dphmm.space.trajectory import SlottedTrajectory, microseconds


@checked
@dataclass(frozen=True)
class Accepted:
    """Which fixes a stream answers; the others are refused, each by itself.

    Parameters
    ----------
    epsilon
        The greatest budget that a fix may ask for itself; left out, none may.
    clock_skew_seconds
        By how much the time of a fix may lie ahead of this machine's clock: a fix from the far future would make all
        that follow go back. Left out, any time is taken.
    check_user
        Is called with the user of each fix, and raises an `InvalidInputError` for one who is refused.

    Raises
    ------
    BudgetError, ConfigurationError
        When a number is not positive and finite.
    """

    epsilon: float | None = None
    clock_skew_seconds: float | None = None
    check_user: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        if self.epsilon is not None:
            check_epsilon(self.epsilon, "the epsilon accepted")
        if self.clock_skew_seconds is not None:
            microseconds(self.clock_skew_seconds, "clock skew")

    def check(self, user: str, time: np.datetime64, epsilon: float | None) -> None:
        """Refuse a fix that is not accepted.

        Raises
        ------
        BudgetError, TimeOrderError, InvalidInputError
            For its budget, its time, its user.
        """
        if self.check_user is not None:
            self.check_user(user)
        if epsilon is not None:
            if self.epsilon is None:
                raise BudgetError("the fix asks for an epsilon of its own, which is not accepted; leave it out")
            if check_epsilon(epsilon) > self.epsilon:
                raise BudgetError(f"epsilon is {epsilon:g}; at most {self.epsilon:g} is accepted")
        if self.clock_skew_seconds is not None:
            skew = np.timedelta64(microseconds(self.clock_skew_seconds, "clock skew"), "us")
            if time > np.datetime64("now", "us") + skew:
                raise TimeOrderError(
                    f"the time lies more than {self.clock_skew_seconds:g} s ahead of the clock here; "
                    "set the sender's clock"
                )


class ReleaseStream:
    """Releases for any number of people whose fixes arrive one by one, each person's in order of time.

    The clock is that of `dphmm.space.Trajectory.resample`: a fix belongs to the slot at the end of its step. The first
    fix of a slot decides what is said of it: its release, or (outside the region, where the settings omit such places)
    that there is none. A later fix in the same slot is answered with that once more, which costs no budget and says
    nothing new. (A whole trajectory that is resampled releases the last fix of a slot: it need not answer at once.)

    Parameters
    ----------
    engine
        An engine of a model that knows its states and its step, which measures them; everybody gets another like it.
    accepted
        Which fixes are answered; left out, all.

    Raises
    ------
    ConfigurationError
        When the model has no states or no step.
    """

    def __init__(self, engine: Releaser, accepted: Accepted | None = None) -> None:
        self._engine = engine
        self._accepted = accepted or Accepted()
        self._space = engine.model.space
        self._step_seconds = engine.model.step
        self._step = microseconds(self._step_seconds, "step")
        self._people: dict[str, Person] = {}

    @property
    def silence(self) -> str:
        """Why a slot may have no release, in words that are the same for all of them."""
        return "outside the region"

    def moment(self, time: np.datetime64) -> np.datetime64:
        """The end of the time step that an instant belongs to, in UTC: the time of its answer."""
        return self.end_of(step_number(time, self._step_seconds))

    def end_of(self, slot: int) -> np.datetime64:
        """The end of a time step, in UTC."""
        return np.datetime64(slot * self._step, "us")

    @checked
    def take(
        self, user: str, time: np.datetime64, latitude: float, longitude: float, epsilon: float | None = None
    ) -> TimedRelease | None:
        """The answer to one fix. An error concerns this fix alone, and changes nothing.

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
            None for a slot that has no release: its first fix lay outside the region, and such places are omitted.

        Raises
        ------
        TimeOrderError
            When the fix belongs to a slot that has no release (that is remembered) and lies before the person's last,
            or when its time lies too far in the future.
        BudgetError
            When the fix asks for a budget that is not accepted.
        BudgetExceededError
            When a limit would be passed.
        CoordinateError
            For an impossible place.
        InvalidInputError
            For a user who is refused.
        """
        self._accepted.check(user, time, epsilon)
        outside = self._engine.settings.outside
        states, _ = located(self._space, np.array([latitude]), np.array([longitude]), outside)
        slot = step_number(time, self._step_seconds)
        moment = self.moment(time)
        record = answer(self._person(user), user, moment, slot, int(states[0]), epsilon)
        return None if record is None else place_on_earth(user, moment, record, self._space)

    def _person(self, user: str) -> Person:
        if user not in self._people:
            self._people[user] = Remembered(self._engine.another())
        return self._people[user]


class RecordedPeople(ReleaseStream):
    """Releases for people whose sessions are named after them: whole trajectories, or fixes as they come.

    Both run on the clock of `dphmm.space.Trajectory.resample`. A moment that was released, in this run or before, is
    answered with that release.

    Parameters
    ----------
    path
        The file of sessions; made where there is none.
    engine, accepted
        As for `ReleaseStream`.
    limits
        What each person's session may spend; left out, as agreed when it began.
    wait_seconds
        How long to wait for another process that is writing.
    coarser
        User → the budgets of coarser releases: see `Session.open`.
    engine_of
        The engine of a session that may have been agreed on anew; left out, everybody's is the one given.
    predicting
        The users whose moments beyond a limit have the prediction: see `Session.open`.

    Raises
    ------
    ConfigurationError
        As `ReleaseStream`.
    DataFileError, OutputError
        As `Session.open`.
    """

    def __init__(
        self,
        path: str | Path,
        engine: Releaser,
        limits: Limits | None = None,
        accepted: Accepted | None = None,
        wait_seconds: float = 30.0,
        coarser: Mapping[str, Sequence[float]] | None = None,
        engine_of: Callable[[StoredSession], Releaser] | None = None,
        predicting: Collection[str] = (),
    ) -> None:
        super().__init__(engine, accepted)
        self._predicting = predicting
        self._engine_of = engine_of
        self._coarser = coarser or {}
        self._limits = limits
        self._sessions: dict[str, Session] = {}
        self.store = SessionStore(path, wait_seconds)
        """Where the sessions are."""

    def __enter__(self) -> RecordedPeople:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self.store.close()

    @checked
    def take(
        self, user: str, time: np.datetime64, latitude: float, longitude: float, epsilon: float | None = None
    ) -> TimedRelease | None:
        """As `ReleaseStream.take`, under what the person's session is agreed on now, whoever agreed on it."""
        try:
            return super().take(user, time, latitude, longitude, epsilon)
        except SessionMismatchError:
            if self._sessions.pop(user, None) is None or self._engine_of is None:
                raise
            return super().take(user, time, latitude, longitude, epsilon)

    def trajectory(self, track: SlottedTrajectory) -> Iterator[TimedRelease]:
        """Release every place of a trajectory, as `release_trajectory` does. Errors are those of `moments`."""
        for time, record in self.moments(track):
            yield place_on_earth(track.user, time, record, self._space)

    def moments(self, track: SlottedTrajectory) -> Iterator[Moment]:
        """What `trajectory` yields before it is `placed`.

        Raises
        ------
        ConfigurationError
            When the trajectory's step is not the model's.
        TimeOrderError
            When a place belongs to a moment that has no release and lies before the person's last one.
        BudgetExceededError
            When a limit would be passed. What was released before stays in the file.
        """
        outside = self._engine.settings.outside
        for _, _, moment in walk(self._person(track.user), self._space, track, outside, self._step_seconds):
            yield moment

    def session(self, user: str) -> Session:
        """A person's session; begun where there is none.

        Raises
        ------
        SessionMismatchError
            When it began with other settings, another model or other limits.
        """
        if user not in self._sessions:
            engine = self._engine
            known = self.store.session(user) if self._engine_of is not None else None
            if known is not None and self._engine_of is not None:
                engine = self._engine_of(known)
            self._sessions[user] = self._opened(user, engine)
        return self._sessions[user]

    def agree(self, user: str, engine: Releaser, note: str) -> Session:
        """A person's session, agreed on anew: see `SessionStore.agree`, whose errors are these."""
        self._sessions[user] = self._opened(user, engine, note)
        return self._sessions[user]

    def _opened(self, user: str, engine: Releaser, anew: str | None = None) -> Session:
        return Session.open(
            self.store,
            user,
            engine.another(),
            self._limits,
            coarser=self._coarser.get(user, ()),
            anew=anew,
            predicting=user in self._predicting,
        )

    def _person(self, user: str) -> Person:
        return self.session(user)
