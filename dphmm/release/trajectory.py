"""Trajectories through the engine: whole ones, and those of any number of people in order of time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import nan
from pathlib import Path

import numpy as np

from dphmm import errors
from dphmm.arguments import checked
from dphmm.arrays import BoolArray, FloatArray, IntArray, check_epsilon
from dphmm.release.engine import Releaser
from dphmm.release.ledger import Account, Limits
from dphmm.release.record import PrivateDiagnostics, ReleaseRecord
from dphmm.release.session import Session, check_order, step_number
from dphmm.release.session_store import SessionStore
from dphmm.release.session_terms import StoredSession
from dphmm.release.settings import Outside
from dphmm.space.states import OUTSIDE, StateSpace
from dphmm.space.trajectory import SlottedTrajectory, microseconds
from dphmm.tables import iso_time

Moment = tuple[np.datetime64, ReleaseRecord]
"""A record and the instant that it is of."""


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
    moved
        How far the estimate was moved into the region, kilometres.
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

    @property
    def estimate_radius(self) -> float:
        """The expected distance of the estimate from the person, kilometres; at most that where it was moved."""
        return self.record.estimate_radius + self.moved

    @property
    def held_radius(self) -> float:
        """The radius of a circle about the estimate that holds 90 % of people's moments, kilometres; NaN if unknown."""
        return nan if self.record.held_radius is None else self.record.held_radius + self.moved


@dataclass(frozen=True)
class TimedDiagnostics:
    """Private diagnostics with user and time, and whether the place lay outside the region. Never publish them.

    Errors are measured from the true coordinates, in the region or not, never from the state that stands for them:
    kilometres in the plane of the state space, whose lengths are too short far from its centre (0.3 % at 1000 km).

    Parameters
    ----------
    user
        Whose release it was.
    time
        The instant, ``datetime64[us]`` in UTC.
    diagnostics
        What needs the truth to compute.
    outside
        Whether the place lay outside the region.
    estimate_radius, held_radius
        The expected distance of the estimate from the person that was published beside it, kilometres, and the radius
        of the circle that is to hold 90 % of moments; NaN where none was published.
    """

    user: str
    time: np.datetime64
    diagnostics: PrivateDiagnostics
    outside: bool = False
    estimate_radius: float = nan
    held_radius: float = nan

    @property
    def is_held(self) -> bool:
        """Whether the person was within the circle that is to hold 90 % of moments."""
        return self.diagnostics.estimate_error <= self.held_radius

    @property
    def within_radius(self) -> bool:
        """Whether the person was within the published radius of the published estimate."""
        return self.diagnostics.estimate_error <= self.estimate_radius


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
    places = space.projection.to_plane(trajectory.latitude, trajectory.longitude)
    for row, state, away, moment in walk(Remembered(releaser), space, trajectory, outside, step, epsilons):
        if private is not None:
            told = place_on_earth(trajectory.user, *moment, space)
            diagnostics = releaser.private_diagnostics(state, places[row])
            if told.moved:
                published = space.projection.to_plane(told.estimate_latitude, told.estimate_longitude)[0]
                diagnostics = replace(diagnostics, estimate_error=float(np.linalg.norm(published - places[row])))
            private(
                TimedDiagnostics(trajectory.user, moment[0], diagnostics, away, told.estimate_radius, told.held_radius)
            )
        yield moment


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
        """Release the true state of a time step, or say again what was released of it.

        Raises
        ------
        TimeOrderError
            When it has no release and lies before the last one of which something was said; an `OmittedError` when it
            was omitted itself.
        """
        known = self._find(slot)
        if known is None:
            if slot == self._omitted:
                raise errors.OmittedError(f"slot {slot} was omitted: that it has no release was said")
            if self._slot is None:
                self._releaser.person.first = slot
            known = self._releaser.release(state, epsilon, 1 if self._slot is None else slot - self._slot)
            self._slot, self._record = slot, known
        return known

    def omit(self, slot: int) -> ReleaseRecord | None:
        """Agree that a time step has no release, or say again what was released of it.

        Raises
        ------
        TimeOrderError
            As `release`.
        """
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


Person = Remembered | Session
"""A holder of releases, each of a time step."""


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
) -> Iterator[tuple[int, int, bool, Moment]]:
    """Every place of a person's trajectory that has a release: its row, state, whether it lies outside, the moment.

    A place for which no state stands leaves a time step without a row, which says that it has no release: it is agreed
    with the person that it never will, unless it has one, which is then said again.

    Parameters and errors are those of `release_trajectory`; the step is the model's, where it says one.
    """
    if step_seconds is not None and step_seconds != trajectory.step_seconds:
        raise errors.ConfigurationError(
            f"the trajectory has a step of {trajectory.step_seconds:g} s, the model one of {step_seconds:g} s; "
            "resample it"
        )
    if epsilons is not None and np.shape(epsilons) != (len(trajectory),):
        raise errors.InvalidInputError(
            f"budgets have shape {np.shape(epsilons)}; there are {len(trajectory)} places, so give one per place"
        )
    states, away = located(space, trajectory.latitude, trajectory.longitude, outside)
    times = trajectory.times
    for row, state in enumerate(states.tolist()):
        slot, epsilon = int(trajectory.slots[row]), None if epsilons is None else float(epsilons[row])
        try:
            record = answer(person, trajectory.user, times[row], slot, state, epsilon)
        except errors.TimeOrderError:
            if state != OUTSIDE:
                raise
            record = None  # before the last one of which something was said: it has none, and gets none
        if record is not None:
            yield row, state, bool(away[row]), (times[row], record)


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
    except errors.OmittedError:
        return None
    except (errors.BudgetExceededError, errors.EventError) as problem:
        raise type(problem)(f"user {user}: {problem}") from None
    except errors.TimeOrderError as problem:
        raise errors.TimeOrderError(
            f"user {user}: time {iso_time(time)} goes back ({problem}); sort the fixes by time"
        ) from None


def placed(user: str, moments: Sequence[Moment], space: StateSpace, forgotten: int = 0) -> list[TimedRelease]:
    """Records of a person whose measurements are points of a space's plane, with their places in degrees.

    The noise has no bound, so that a draw may lie where the plane shows no place of the Earth: its degrees are NaN.
    Whether they are is seen from the draw alone. An estimate outside the region, as the mean over a bent one may be,
    is brought to the nearest state's place.
    """
    if not moments:
        return []
    means = np.array([record.estimate for _, record in moments])
    drawn = degrees_of(np.array([record.released or record.estimate for _, record in moments]), space)
    drawn[[record.released is None for _, record in moments]] = nan
    estimates, moved = degrees_of(means, space), np.zeros(len(moments))
    outside: BoolArray = np.asarray(np.isfinite(estimates).all(axis=1))
    outside[outside] = space.locate(*estimates[outside].T) == OUTSIDE
    if outside.any():
        nearest = space.points[space.nearest(*estimates[outside].T)]
        moved[outside] = np.linalg.norm(nearest - means[outside], axis=1)
        estimates[outside] = degrees_of(nearest, space)
    rows = zip(moments, drawn.tolist(), estimates.tolist(), moved.tolist(), strict=True)
    return [
        TimedRelease(user, time, record, latitude, longitude, north, east, forgotten, away)
        for (time, record), (latitude, longitude), (north, east), away in rows
    ]


def place_on_earth(
    user: str, time: np.datetime64, record: ReleaseRecord, space: StateSpace, forgotten: int = 0
) -> TimedRelease:
    """One record as `placed` has it."""
    return placed(user, [(time, record)], space, forgotten)[0]


def degrees_of(points: FloatArray, space: StateSpace) -> FloatArray:
    """Points ``(n, 2)`` of a space's plane in degrees; NaN where the plane shows no place of the Earth."""
    try:
        return space.projection.to_latlon(points)
    except errors.CoordinateError:
        if len(points) == 1:
            return np.full((1, 2), nan)
        return np.concatenate([degrees_of(half, space) for half in np.array_split(points, 2)])


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

        Parameters
        ----------
        user
            Whose fix it is.
        time
            Its time.
        epsilon
            The budget.

        Raises
        ------
        BudgetError, TimeOrderError, InvalidInputError
            For its budget, its time, its user.
        """
        if self.check_user is not None:
            self.check_user(user)
        if epsilon is not None:
            if self.epsilon is None:
                raise errors.BudgetError("the fix asks for an epsilon of its own, which is not accepted; leave it out")
            if check_epsilon(epsilon) > self.epsilon:
                raise errors.BudgetError(f"epsilon is {epsilon:g}; at most {self.epsilon:g} is accepted")
        if self.clock_skew_seconds is not None:
            skew = np.timedelta64(microseconds(self.clock_skew_seconds, "clock skew"), "us")
            if time > np.datetime64("now", "us") + skew:
                raise errors.TimeOrderError(
                    f"the time lies more than {self.clock_skew_seconds:g} s ahead of the clock here; "
                    "set the sender's clock"
                )


@checked
class ReleaseStream:
    """Releases for any number of people whose fixes arrive one by one, each person's in order of time.

    The clock is that of `dphmm.space.Trajectory.resample`: a fix belongs to the slot at the end of its step. The first
    fix of a slot decides what is said of it: its release, or (outside the region, where the settings omit such places)
    that there is none. A later fix in the same slot is answered with that once more, which costs no budget and says
    nothing new. (A whole trajectory that is resampled releases the last fix of a slot: it need not answer at once.)

    Parameters
    ----------
    engine
        An engine of a model that knows its states and its step, which measures them; every person gets another like it.
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
        """The end of the time step that an instant belongs to, in UTC: the time of its answer.

        Parameters
        ----------
        time
            An instant.

        Returns
        -------
        numpy.datetime64
            The end of the time step.
        """
        return self.end_of(step_number(time, self._step_seconds))

    def end_of(self, slot: int) -> np.datetime64:
        """The end of a time step, in UTC.

        Parameters
        ----------
        slot
            The number of the time step.

        Returns
        -------
        numpy.datetime64
            Its end.
        """
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


@checked
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
    engine_of
        The engine of a session that may have been agreed on anew; left out, the one given serves every person.
    predicting
        The users whose moments beyond a limit have the prediction: see `Session.open`.
    listeners
        User, the number of their session and a time step → readers who were not told everything: see `Session.open`.

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
        engine_of: Callable[[StoredSession], Releaser] | None = None,
        predicting: Collection[str] = (),
        listeners: Callable[[str, int, int], Mapping[str, str]] | None = None,
    ) -> None:
        super().__init__(engine, accepted)
        self._predicting, self._listeners = predicting, listeners
        self._engine_of = engine_of
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
        """As `ReleaseStream.take`, under what the person's session is agreed on now."""
        try:
            return super().take(user, time, latitude, longitude, epsilon)
        except errors.SessionMismatchError:
            if self._sessions.pop(user, None) is None or self._engine_of is None:
                raise
            return super().take(user, time, latitude, longitude, epsilon)

    def trajectory(self, track: SlottedTrajectory) -> Iterator[TimedRelease]:
        """Release every place of a trajectory, as `release_trajectory` does. Errors are those of `moments`.

        Parameters
        ----------
        track
            A person's places.

        Yields
        ------
        TimedRelease
            A release.
        """
        for time, record in self.moments(track):
            yield place_on_earth(track.user, time, record, self._space)

    def moments(self, track: SlottedTrajectory) -> Iterator[Moment]:
        """What `trajectory` yields before it is `placed`.

        Parameters
        ----------
        track
            A person's places.

        Yields
        ------
        Moment
            A time and the record of it.

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
        for *_, moment in walk(self._person(track.user), self._space, track, outside, self._step_seconds):
            yield moment

    def session(self, user: str) -> Session:
        """A person's session; begun where there is none.

        Parameters
        ----------
        user
            The person.

        Returns
        -------
        Session
            The person's session.

        Raises
        ------
        SessionMismatchError
            When it began with other settings, another model or other limits.
        """
        if user not in self._sessions:
            known = None if self._engine_of is None else self.store.session(user)
            engine = self._engine if known is None or self._engine_of is None else self._engine_of(known)
            self._sessions[user] = self._opened(user, engine)
        return self._sessions[user]

    def agree(self, user: str, engine: Releaser, note: str) -> Session:
        """A person's session, agreed on anew: see `SessionStore.agree`, whose errors are these.

        Parameters
        ----------
        user
            The person.
        engine
            The engine of the new terms.
        note
            What is kept beside them. Public.

        Returns
        -------
        Session
            The person's session.
        """
        self._sessions[user] = self._opened(user, engine, note)
        return self._sessions[user]

    def _opened(self, user: str, engine: Releaser, anew: str | None = None) -> Session:
        return Session.open(
            self.store,
            user,
            engine.another(),
            self._limits,
            anew=anew,
            predicting=user in self._predicting,
            listeners=None if self._listeners is None else partial(self._listeners, user),
        )

    def _person(self, user: str) -> Person:
        return self.session(user)
