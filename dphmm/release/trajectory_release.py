"""Release of trajectories, of one user or of a stream of any number of users."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import nan
from operator import contains
from pathlib import Path
from typing import Any

import numpy as np

from dphmm import errors
from dphmm.arrays import BoolArray, FloatArray, IntArray, check_epsilon
from dphmm.release.engine import Releaser
from dphmm.release.ledger import Account
from dphmm.release.record import PrivateDiagnostics, ReleaseRecord
from dphmm.release.session import Session, check_time_order, get_slot
from dphmm.release.session_limits import Limits
from dphmm.release.session_store import SessionStore
from dphmm.release.session_terms import StoredSession
from dphmm.release.settings import Outside
from dphmm.space.fix_quality import REASONS, find_refused
from dphmm.space.states import OUTSIDE, StateSpace
from dphmm.space.trajectory import SlottedTrajectory, round_to_microseconds
from dphmm.tables import iso_time
from dphmm.validation import Epsilon, Seconds, check_arguments

# The end of a timestep, and its record.
TimedRecord = tuple[np.datetime64, ReleaseRecord]


@dataclass(frozen=True)
class TimedRelease:
    """A release record with user, time, and locations in degrees.

    Parameters
    ----------
    user
        The user.
    time
        End of the timestep, ``datetime64[us]`` in UTC.
    record
        Public record. Its measurements are kilometres in the plane of the state space.
    latitude, longitude
        Released location in WGS 84 degrees; NaN if the timestep was withheld, or the release is outside the plane's
        image of the Earth.
    estimate_latitude, estimate_longitude
        Posterior mean in WGS 84 degrees. If it is outside the region, the location of the nearest state, which depends
        on releases only.
    num_ignored_releases
        Number of earlier releases about the user of which the belief does not know. The record's statements hold for an
        adversary who ignores them, too.
    moved_km
        Distance in kilometres by which the estimate was moved into the region.
    """

    user: str
    time: np.datetime64
    record: ReleaseRecord
    latitude: float
    longitude: float
    estimate_latitude: float
    estimate_longitude: float
    num_ignored_releases: int = 0
    moved_km: float = 0.0

    @property
    def expected_estimate_error(self) -> float:
        """The expected error of the estimate in kilometres. An upper bound if it was moved."""
        return self.record.expected_estimate_error + self.moved_km

    @property
    def calibrated_radius_90(self) -> float:
        """The calibrated radius of the estimate in kilometres. NaN if unknown.

        A circle with this radius contains the user at 90 % of timesteps, on average.
        """
        return nan if self.record.calibrated_radius_90 is None else self.record.calibrated_radius_90 + self.moved_km


@dataclass(frozen=True)
class TimedDiagnostics:
    """Private diagnostics with user and time. Do not publish.

    Errors are distances to the true coordinates, whether in the region or not, and never to the state that represents
    them. They are kilometres in the plane of the state space, in which lengths are too short far from its centre (0.3 %
    at 1000 km).

    Parameters
    ----------
    user
        The user.
    time
        End of the timestep, ``datetime64[us]`` in UTC.
    diagnostics
        Diagnostics that require the true state.
    outside
        Whether the location was outside the region.
    expected_estimate_error, calibrated_radius_90
        The published expected error and calibrated radius of the estimate in kilometres; NaN if none was published.
    """

    user: str
    time: np.datetime64
    diagnostics: PrivateDiagnostics
    outside: bool = False
    expected_estimate_error: float = nan
    calibrated_radius_90: float = nan

    @property
    def is_within_calibrated_radius(self) -> bool:
        """Whether the user was within the calibrated radius of the estimate."""
        return self.diagnostics.estimate_error <= self.calibrated_radius_90

    @property
    def is_within_expected_error(self) -> bool:
        """Whether the user was within the expected error of the estimate."""
        return self.diagnostics.estimate_error <= self.expected_estimate_error


@check_arguments
def release_trajectory(
    releaser: Releaser,
    space: StateSpace,
    trajectory: SlottedTrajectory,
    epsilons: FloatArray | None = None,
    private: Callable[[TimedDiagnostics], None] | None = None,
    before: Account | None = None,
) -> Iterator[TimedRelease]:
    """Release every location of a trajectory, one after another.

    The releaser is reset. Between two releases the belief advances by the elapsed timesteps, however long the gap is,
    as an adversary's belief would. A location outside the state space is replaced by the nearest state or has no
    release, depending on the releaser's settings. In the latter case the times of the releases reveal when the user was
    in the region. In both cases they reveal when the user was recorded.

    Parameters
    ----------
    releaser
        Engine with the points of the space as measurements.
    space
        The states.
    trajectory
        Trajectory on the time grid of the model.
    epsilons
        ``(n,)``: budget of every location. Defaults to the releaser's.
    private
        Callback for the private diagnostics of every release. With None, no diagnostics are computed.
    before
        Cost of earlier releases about the user of which the belief does not know. The cost of these releases is added.
        None means that there were none.

    Yields
    ------
    TimedRelease
        One for every location, or for every one in the space.

    Raises
    ------
    ConfigurationError
        If the timestep of the trajectory is not that of the model.
    InvalidInputError
        If the number of budgets is not the number of locations.
    """
    num_ignored = 0 if before is None else before.count
    for time, record in release_records(releaser, space, trajectory, epsilons, private, before):
        yield locate_release(trajectory.user, time, record, space, num_ignored)


def release_records(
    releaser: Releaser,
    space: StateSpace,
    trajectory: SlottedTrajectory,
    epsilons: FloatArray | None = None,
    private: Callable[[TimedDiagnostics], None] | None = None,
    before: Account | None = None,
) -> Iterator[TimedRecord]:
    """Yield the records of `release_trajectory` before they are converted to degrees.

    When a record is yielded, the releaser is in the state after its release. Parameters and errors are those of
    `release_trajectory`.
    """
    with releaser.lock_engines():
        releaser.restart()
        releaser.filter_state.account = Account() if before is None else before
        session = InMemorySession(releaser)
    outside = releaser.settings.outside
    step = releaser.model.step_seconds
    places = space.projection.to_plane(trajectory.latitude, trajectory.longitude)
    for row, state, is_outside, timed_record in answer_trajectory(session, space, trajectory, outside, step, epsilons):
        if private is not None:
            release = locate_release(trajectory.user, *timed_record, space)
            diagnostics = releaser.private_diagnostics(state, places[row])
            if release.moved_km:
                published = space.projection.to_plane(release.estimate_latitude, release.estimate_longitude)[0]
                diagnostics = replace(diagnostics, estimate_error=float(np.linalg.norm(published - places[row])))
            private(
                TimedDiagnostics(
                    trajectory.user,
                    timed_record[0],
                    diagnostics,
                    is_outside,
                    release.expected_estimate_error,
                    release.calibrated_radius_90,
                )
            )
        yield timed_record


class InMemorySession:
    """A user's releases without storage. Only the last timestep can be answered again.

    Parameters
    ----------
    releaser
        The user's engine, without releases.
    """

    def __init__(self, releaser: Releaser) -> None:
        self._releaser = releaser
        self._slot: int | None = None
        self._record: ReleaseRecord | None = None
        self._omitted: int | None = None
        # The filter as this session left it: a release by another caller would be about another trajectory.
        self._version = releaser.filter_state.version

    def release(self, state: int, slot: int, epsilon: float | None = None) -> ReleaseRecord:
        """Release the true state at a slot, or return its record if it was released last.

        Raises
        ------
        TimeOrderError
            If the slot has no release and precedes the last answered one; `WithheldTimestepError` if it was omitted.
        InvalidInputError
            If another caller has used the engine since. Nothing is sampled.
        """
        with self._releaser.lock_engines():
            record = self._find(slot)
            if record is not None:
                return record
            if slot == self._omitted:
                raise errors.WithheldTimestepError(f"slot {slot} was omitted, so it has no release")
            filter_state = self._releaser.filter_state
            if filter_state.version != self._version:
                raise errors.InvalidInputError(
                    "the engine was used by another caller between two releases of a trajectory: use a separate engine "
                    "for each trajectory, see Releaser.spawn"
                )
            if self._slot is None:
                filter_state.first = slot
            self._record = self._releaser.release(state, epsilon, 1 if self._slot is None else slot - self._slot)
            self._version = filter_state.version
            self._slot = slot
            return self._record

    def omit(self, slot: int) -> ReleaseRecord | None:
        """Agree that a slot has no release, or return its record if it was released last.

        Raises
        ------
        TimeOrderError
            If the slot has no release and precedes the last answered one.
        """
        with self._releaser.lock_engines():
            record = self._find(slot)
            if record is None:
                self._omitted = slot
            return record

    def _find(self, slot: int) -> ReleaseRecord | None:
        if slot == self._slot:
            return self._record
        for last in (self._slot, self._omitted):
            check_time_order(slot, last)
        return None


# The releases about one user.
UserSession = InMemorySession | Session


def locate_states(
    space: StateSpace, latitude: FloatArray, longitude: FloatArray, outside: Outside
) -> tuple[IntArray, BoolArray]:
    """Return the state of each location, and whether it is outside the region.

    Parameters
    ----------
    space
        The states.
    latitude, longitude
        ``(n,)`` each, WGS 84 degrees.
    outside
        Whether a location outside is assigned to the nearest state (``"clamp"``) or to none (``"drop"``).

    Returns
    -------
    states, is_outside
        ``(n,)`` each. State -1 means none.

    Raises
    ------
    CoordinateError
        If a coordinate is invalid.
    """
    states = space.locate(latitude, longitude)
    is_outside = states == OUTSIDE
    if outside == "clamp" and is_outside.any():
        states[is_outside] = space.find_nearest_states(latitude[is_outside], longitude[is_outside])
    return states, is_outside


def answer_trajectory(
    session: UserSession,
    space: StateSpace,
    trajectory: SlottedTrajectory,
    outside: Outside,
    step_seconds: float | None,
    epsilons: FloatArray | None = None,
) -> Iterator[tuple[int, int, bool, TimedRecord]]:
    """Answer every location of a user's trajectory that has a release.

    Yields the row, the state, whether the location is outside, and the record with its time. A location without a state
    makes its timestep one without a release, which has no row. This is agreed permanently, unless the timestep has a
    release already, which is then returned again.

    Parameters and errors are those of `release_trajectory`. `step_seconds` is that of the model, if known.
    """
    if step_seconds is not None and step_seconds != trajectory.step_seconds:
        raise errors.ConfigurationError(
            f"step_seconds of the trajectory must be that of the model, {step_seconds:g}, got "
            f"{trajectory.step_seconds:g}; resample the trajectory"
        )
    if epsilons is not None and np.shape(epsilons) != (len(trajectory),):
        raise errors.InvalidInputError(
            f"epsilons must have one entry for each of {len(trajectory)} locations, got shape {np.shape(epsilons)}"
        )
    states, is_outside = locate_states(space, trajectory.latitude, trajectory.longitude, outside)
    times = trajectory.times
    for row, state in enumerate(states.tolist()):
        slot = int(trajectory.slots[row])
        epsilon = None if epsilons is None else float(epsilons[row])
        try:
            record = answer_slot(session, trajectory.user, times[row], slot, state, epsilon)
        except errors.TimeOrderError:
            if state != OUTSIDE:
                raise
            record = None  # it precedes the last answered timestep, so it has no release and gets none
        if record is not None:
            yield row, state, bool(is_outside[row]), (times[row], record)


def answer_slot(
    session: UserSession, user: str, time: np.datetime64, slot: int, state: int, epsilon: float | None
) -> ReleaseRecord | None:
    """Return the record of a user's slot, which ends at ``time``. None if it has no release.

    Later calls return the same.

    Raises
    ------
    TimeOrderError, BudgetExceededError, EventError
        With the user's name.
    """
    try:
        return session.omit(slot) if state == OUTSIDE else session.release(state, slot, epsilon)
    except errors.WithheldTimestepError:
        return None
    except (errors.BudgetExceededError, errors.EventError) as problem:
        raise type(problem)(f"user {user}: {problem}") from None
    except errors.TimeOrderError as problem:
        raise errors.TimeOrderError(
            f"user {user}: time {iso_time(time)} is out of order ({problem}); sort the fixes by time"
        ) from None


def locate_releases(
    user: str, timed_records: Sequence[TimedRecord], space: StateSpace, num_ignored_releases: int = 0
) -> list[TimedRelease]:
    """Convert the locations of a user's records to degrees.

    The noise is unbounded, so a release may be outside the plane's image of the Earth. Its degrees are then NaN, which
    depends on the release only. An estimate outside the region, such as the mean over a non-convex region, is moved to
    the nearest state.
    """
    if not timed_records:
        return []
    means = np.array([record.estimate for _, record in timed_records])
    released = to_degrees(np.array([record.released or record.estimate for _, record in timed_records]), space)
    released[[record.released is None for _, record in timed_records]] = nan
    estimates = to_degrees(means, space)
    moved_distances = np.zeros(len(timed_records))
    outside: BoolArray = np.asarray(np.isfinite(estimates).all(axis=1))
    outside[outside] = space.locate(*estimates[outside].T) == OUTSIDE
    if outside.any():
        nearest = space.points[space.find_nearest_states(*estimates[outside].T)]
        moved_distances[outside] = np.linalg.norm(nearest - means[outside], axis=1)
        estimates[outside] = to_degrees(nearest, space)
    rows = zip(timed_records, released.tolist(), estimates.tolist(), moved_distances.tolist(), strict=True)
    return [
        TimedRelease(user, time, record, latitude, longitude, north, east, num_ignored_releases, moved_km)
        for (time, record), (latitude, longitude), (north, east), moved_km in rows
    ]


def locate_release(
    user: str, time: np.datetime64, record: ReleaseRecord, space: StateSpace, num_ignored_releases: int = 0
) -> TimedRelease:
    """Convert the locations of one record to degrees. See `locate_releases`."""
    return locate_releases(user, [(time, record)], space, num_ignored_releases)[0]


def to_degrees(points: FloatArray, space: StateSpace) -> FloatArray:
    """Convert points ``(n, 2)`` of a plane to degrees. NaN outside its image of the Earth."""
    try:
        return space.projection.to_latlon(points)
    except errors.CoordinateError:
        if len(points) == 1:
            return np.full((1, 2), nan)
        return np.concatenate([to_degrees(half, space) for half in np.array_split(points, 2)])


@check_arguments
@dataclass(frozen=True)
class FixFilter:
    """A filter of the fixes that a stream answers. Each refused fix raises an error.

    Parameters
    ----------
    epsilon
        Largest budget that a fix may request. With None, a fix must not request one.
    clock_skew_seconds
        Largest amount by which the time of a fix may be ahead of this machine's clock. A fix from the far future would
        make all later ones out of order. None means no bound.
    check_user
        Callback with the user of each fix, which raises an `InvalidInputError` for a refused one.

    Raises
    ------
    BudgetError, ConfigurationError
        If a number is not positive and finite.
    """

    epsilon: Epsilon | None = None
    clock_skew_seconds: Seconds | None = None
    check_user: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        if self.clock_skew_seconds is not None:
            round_to_microseconds(
                self.clock_skew_seconds, "clock_skew_seconds"
            )  # raises an error if it is out of range

    def check(self, user: str, time: np.datetime64, epsilon: float | None) -> None:
        """Check that a fix is accepted.

        Parameters
        ----------
        user
            User of the fix.
        time
            Time of the fix.
        epsilon
            Requested budget.

        Raises
        ------
        BudgetError, TimeOrderError, InvalidInputError
            If the budget, the time or the user is not accepted.
        """
        if self.check_user is not None:
            self.check_user(user)
        if epsilon is not None:
            if self.epsilon is None:
                raise errors.BudgetError(f"epsilon of a fix must be omitted, got {epsilon:g}")
            if check_epsilon(epsilon) > self.epsilon:
                raise errors.BudgetError(f"epsilon must be at most {self.epsilon:g}, got {epsilon:g}")
        if self.clock_skew_seconds is not None:
            skew = np.timedelta64(round_to_microseconds(self.clock_skew_seconds, "clock skew"), "us")
            if time > np.datetime64("now", "us") + skew:
                raise errors.TimeOrderError(
                    f"the time must be at most {self.clock_skew_seconds:g} s ahead of this machine's clock; set the "
                    "sender's clock"
                )


@check_arguments
class ReleaseStream:
    """A stream of releases for any number of users, with one fix at a time.

    The fixes of each user must be in order of time. The time grid is that of `dphmm.space.Trajectory.resample`: a fix
    belongs to the slot at the end of its timestep. The first fix of a slot determines the answer: its release or, for a
    location outside the region with ``outside="drop"``, that there is none. A later fix in the same slot gets the same
    answer, costs no budget and reveals nothing new. Threads can share a stream: the fixes of one user wait for each
    other. (The resampling of a whole trajectory releases the last fix of a
    slot instead, because it need not answer immediately.)

    Parameters
    ----------
    engine
        Engine of a model with state locations and step_seconds. Every user gets a copy.
    accepted
        Filter of the fixes. None accepts all.

    Raises
    ------
    ConfigurationError
        If the model has no state locations or no step_seconds.
    """

    def __init__(self, engine: Releaser, accepted: FixFilter | None = None) -> None:
        self._engine = engine
        self._accepted = accepted or FixFilter()
        self._space = engine.model.space
        self._step_seconds = engine.model.step
        self._step = round_to_microseconds(self._step_seconds, "step")
        self._users: dict[str, UserSession] = {}

    @property
    def no_release_reason(self) -> str:
        """The reason why a slot may have no release. It does not depend on the user."""
        return "outside the region"

    def get_slot_end(self, time: np.datetime64) -> np.datetime64:
        """Return the end of the timestep of an instant, in UTC: the time of its answer.

        Parameters
        ----------
        time
            An instant.

        Returns
        -------
        numpy.datetime64
            End of the timestep.
        """
        return self.slot_end(get_slot(time, self._step_seconds))

    def slot_end(self, slot: int) -> np.datetime64:
        """Return the end of a slot, in UTC.

        Parameters
        ----------
        slot
            The slot.

        Returns
        -------
        numpy.datetime64
            Its end.
        """
        return np.datetime64(slot * self._step, "us")

    @check_arguments
    def take(
        self,
        user: str,
        time: np.datetime64,
        latitude: float,
        longitude: float,
        epsilon: float | None = None,
        *,
        accuracy_m: float | None = None,
        is_valid: bool = True,
    ) -> TimedRelease | None:
        """Answer one fix. An error concerns this fix only, and changes nothing.

        An invalid fix is refused; see `dphmm.space.fix_quality`. The first valid fix of a timestep is
        released, because the answer is immediate. A more accurate one that follows is too late.

        Parameters
        ----------
        user
            User of the fix.
        time
            Time of the fix, in UTC.
        latitude, longitude
            Location, WGS 84 degrees.
        epsilon
            Budget of this release. Defaults to the engine's.
        accuracy_m
            Accuracy radius in metres; None if unstated.
        is_valid
            Whether the device considers the fix valid.

        Returns
        -------
        TimedRelease or None
            The release; None for a slot without one, because its first fix was outside the region and such fixes are
            dropped.

        Raises
        ------
        TimeOrderError
            If the fix belongs to a slot without a stored release and precedes the user's last one, or its time is too
            far in the future.
        BudgetError
            If the fix requests a budget that is not accepted.
        BudgetExceededError
            If a limit would be exceeded.
        CoordinateError
            If a coordinate is invalid.
        InvalidInputError
            If the user or the fix is refused.
        """
        self._accepted.check(user, time, epsilon)
        self._check_quality(latitude, longitude, accuracy_m, is_valid)
        outside = self._engine.settings.outside
        states, _ = locate_states(self._space, np.array([latitude]), np.array([longitude]), outside)
        slot = get_slot(time, self._step_seconds)
        end = self.get_slot_end(time)
        record = answer_slot(self._get_session(user), user, end, slot, int(states[0]), epsilon)
        return None if record is None else locate_release(user, end, record, self._space)

    def _check_quality(self, latitude: float, longitude: float, accuracy_m: float | None, is_valid: bool) -> None:
        accuracy = np.array([nan if accuracy_m is None else accuracy_m])
        north, east = np.array([[latitude], [longitude]], dtype=np.float64)
        (reason,) = find_refused(north, east, accuracy, np.array([is_valid]), self._space).tolist()
        if reason >= 0:
            raise errors.InvalidInputError(f"the fix is refused: {REASONS[reason]}")

    def _get_session(self, user: str) -> UserSession:
        if user not in self._users:
            # If two threads begin with one user, both use the session of the first.
            self._users.setdefault(user, InMemorySession(self._engine.spawn()))
        return self._users[user]


@check_arguments
class RecordedReleaseStream(ReleaseStream):
    """A stream of releases with stored sessions, one for each user.

    It releases whole trajectories, or fixes as they arrive. Both use the time grid of
    `dphmm.space.Trajectory.resample`. A timestep that was released, in this run or earlier, is answered with that
    release.

    Parameters
    ----------
    path
        File of sessions; created if it does not exist.
    engine, accepted
        Arguments of `ReleaseStream`.
    limits
        Limits on the cost of each user's session. Defaults to those agreed when it began.
    wait_seconds
        How long to wait for another process that is writing.
    find_engine
        Function that returns the engine of a session that may have been amended. Defaults to `engine` for every user.
    predict_beyond_limits
        Users for whom a timestep beyond a limit gets the prediction; see `Session.open`. They may change.
    find_partial_recipients
        Function from user, number of the session and slot to the recipients who were not sent all releases; see
        `Session.open`.

    Raises
    ------
    ConfigurationError
        If `ReleaseStream` raises it.
    DataFileError, OutputError
        If `Session.open` raises them.
    """

    def __init__(
        self,
        path: str | Path,
        engine: Releaser,
        limits: Limits | None = None,
        accepted: FixFilter | None = None,
        wait_seconds: float = 30.0,
        find_engine: Callable[[StoredSession], Releaser] | None = None,
        predict_beyond_limits: Container[str] = (),
        find_partial_recipients: Callable[[str, int, int], Mapping[str, str]] | None = None,
    ) -> None:
        super().__init__(engine, accepted)
        self._predict_beyond_limits = predict_beyond_limits
        self._find_partial_recipients = find_partial_recipients
        self._find_engine = find_engine
        self._limits = limits
        self._sessions: dict[str, Session] = {}
        self.store = SessionStore(path, wait_seconds)

    def __enter__(self) -> RecordedReleaseStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self.store.close()

    @check_arguments
    def take(
        self,
        user: str,
        time: np.datetime64,
        latitude: float,
        longitude: float,
        epsilon: float | None = None,
        **quality: Any,
    ) -> TimedRelease | None:
        """Answer one fix under the present terms of the user's session. See `ReleaseStream.take`."""
        try:
            return super().take(user, time, latitude, longitude, epsilon, **quality)
        except errors.SessionMismatchError:
            if self._sessions.pop(user, None) is None or self._find_engine is None:
                raise
            return super().take(user, time, latitude, longitude, epsilon, **quality)

    def release_track(self, track: SlottedTrajectory) -> Iterator[TimedRelease]:
        """Release every location of a trajectory. Raises the errors of `release_records`.

        Parameters
        ----------
        track
            Trajectory of a user.

        Yields
        ------
        TimedRelease
            A release.
        """
        for time, record in self.release_records(track):
            yield locate_release(track.user, time, record, self._space)

    def release_records(self, track: SlottedTrajectory) -> Iterator[TimedRecord]:
        """Yield the records of `release_track` before they are converted to degrees.

        Parameters
        ----------
        track
            Trajectory of a user.

        Yields
        ------
        TimedRecord
            A time and its record.

        Raises
        ------
        ConfigurationError
            If the timestep of the trajectory is not that of the model.
        TimeOrderError
            If a location belongs to a timestep without a release that precedes the user's last one.
        BudgetExceededError
            If a limit would be exceeded. Earlier releases stay in the file.
        """
        outside = self._engine.settings.outside
        for *_, timed_record in answer_trajectory(
            self._get_session(track.user), self._space, track, outside, self._step_seconds
        ):
            yield timed_record

    def session(self, user: str) -> Session:
        """Return a user's session, started if necessary.

        Parameters
        ----------
        user
            The user.

        Returns
        -------
        Session
            The user's session.

        Raises
        ------
        SessionMismatchError
            If it began with other settings, another model or other limits.
        """
        if user not in self._sessions:
            stored = None if self._find_engine is None else self.store.session(user)
            engine = self._engine if stored is None or self._find_engine is None else self._find_engine(stored)
            self._sessions[user] = self._open_session(user, engine)
        return self._sessions[user]

    def agree(self, user: str, engine: Releaser, note: str) -> Session:
        """Amend the terms of a user's session. See `SessionStore.agree` for the errors.

        Parameters
        ----------
        user
            The user.
        engine
            Engine of the new terms.
        note
            Note stored with the terms. Public.

        Returns
        -------
        Session
            The user's session.
        """
        self._sessions[user] = self._open_session(user, engine, note)
        return self._sessions[user]

    def _open_session(self, user: str, engine: Releaser, anew: str | None = None) -> Session:
        return Session.open(
            self.store,
            user,
            engine.spawn(),
            self._limits,
            amendment_note=anew,
            predict_beyond_limits=partial(contains, self._predict_beyond_limits, user),
            find_partial_recipients=None
            if self._find_partial_recipients is None
            else partial(self._find_partial_recipients, user),
        )

    def _get_session(self, user: str) -> UserSession:
        return self.session(user)
