"""Counts of users per place and time: release with noise, repair and comparison."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray, as_floats, check_budget
from dphmm.certificate.streams import open_stream_certificate
from dphmm.counts import ESTIMATORS, compare, count_states, estimate
from dphmm.counts import release as add_noise
from dphmm.counts.map_estimate import build_first_distribution, compute_occupancy
from dphmm.counts.noisy_stream import SENSITIVITY, CountMechanism, NumUsers, as_counts, as_scales, as_transition
from dphmm.counts.post_processing import RAW
from dphmm.errors import ConfigurationError, CountError, DataFileError
from dphmm.formatting import Result, describe_ratio_bound, void_guarantees_if_seeded
from dphmm.jobs.input_data import DataLike, Dropped
from dphmm.jobs.model.mobility import UNKNOWN, Budgets, Mobility
from dphmm.jobs.model.region import region
from dphmm.jobs.model.training_users import read_unseen_users
from dphmm.jobs.progress import ProgressCallback, suppress_progress
from dphmm.leakage import compute_leakage
from dphmm.mechanisms import EXACT_COLUMN as EXACT_MECHANISMS
from dphmm.mechanisms.discrete_laplace import laplace_variance
from dphmm.random import Rng, as_random_source
from dphmm.release.ledger import sum_budgets
from dphmm.space.states import OUTSIDE, StateSpace
from dphmm.space.trajectory import Trajectory, round_to_microseconds
from dphmm.tables import TimedTable
from dphmm.tables.values import parse_time, shorten
from dphmm.validation import Integers, Interval, Probability, Seconds, check_arguments, check_arguments_as

_DAY = 86_400_000_000
_MINUTE = 60_000_000
# Maximum number of times over which users are counted.
MAX_TIMES = 10_000_000


@dataclass(frozen=True)
class Population:
    """The state of each member of a population at each time.

    Parameters
    ----------
    members
        ``n`` names: users, or for days ``user date``.
    times
        ``(T,)`` ``datetime64[us]`` in UTC. For days, minutes after local midnight as integers.
    states
        ``(n, T)`` integers, one state for every member at every time.
    seen
        ``(n, T)`` mask: false where the state has no fix at this time and repeats the last state (before the first fix,
        the first state).
    size
        The number of places.
    """

    members: tuple[str, ...]
    times: npt.NDArray[Any]
    states: IntArray
    seen: BoolArray
    size: int

    @property
    def counts(self) -> IntArray:
        """Number of members in each place at each time, ``(T, m)``."""
        return count_states(self.states, self.size)

    def select_members(self, chosen: Sequence[int] | BoolArray) -> Population:
        """Select members by index.

        Raises
        ------
        CountError
            When no member is selected.
        """
        names = np.array(self.members, dtype=object)[np.asarray(chosen)]
        if not len(names):
            raise CountError("a population must have at least one member")
        return Population(tuple(names.tolist()), self.times, self.states[chosen], self.seen[chosen], self.size)


def build_population(
    trajectories: Iterable[Trajectory],
    space: StateSpace,
    step_seconds: Seconds,
    start: str | np.datetime64 | None = None,
    end: str | np.datetime64 | None = None,
) -> Population:
    """Compute the states of all users over one period of the clock.

    A user without a fix within the space at a time is counted at their last state, and before their first fix at their
    first state. Therefore the number of users is the same at all times, as the guarantee of `dphmm.counts.release`
    requires.

    Parameters
    ----------
    trajectories
        One per user.
    space
        The places.
    step_seconds
        The step of the clock in seconds; see `Trajectory.resample`.
    start, end
        The first and the last time, UTC. Default to those of the data. Users without a fix within the space between
        them are not members.

    Raises
    ------
    CountError
        When no user has a fix within the space and the period.
    ConfigurationError
        When the step is not positive and finite, or the end is before the start.
    """
    step = round_to_microseconds(step_seconds, "step")
    tracks = [(trajectory.user, *_locate_on_clock(trajectory, space, step_seconds)) for trajectory in trajectories]
    ends = [(slots[0], slots[-1]) for _, slots, _ in tracks if len(slots)]
    if not ends:
        raise CountError("no user has a fix within the region: check the region and the data")
    first = int(np.min(ends)) if start is None else -(-_parse_microseconds(start, "start") // step)
    last = int(np.max(ends)) if end is None else _parse_microseconds(end, "end") // step
    if last < first:
        raise ConfigurationError(f"end must be after start with a clock time in between, got {start} to {end}")
    if last - first >= MAX_TIMES:
        raise ConfigurationError(
            f"the data must span at most {MAX_TIMES:,} steps of {step_seconds:g} s, got {last - first + 1:,}: "
            "use start and end, or a longer step"
        )
    each = [(user, slots, states, (slots >= first) & (slots <= last)) for user, slots, states in tracks]
    rows = [(user, slots[inside] - first, states[inside]) for user, slots, states, inside in each if inside.any()]
    times = (np.arange(first, last + 1) * step).astype("datetime64[us]")
    return _assemble(rows, times, space.size)


@check_arguments_as(ConfigurationError)
@dataclass(frozen=True)
class DayAlignment:
    """Settings for the alignment of days. See `build_daily_population`.

    Parameters
    ----------
    hours
        First and last local hour.
    utc_offset
        Hours by which local time is ahead of UTC.
    min_coverage
        Fraction of the times, 0 to 1, at which the user must have a fix within the space for the day to count. Days
        without any fix within the space never count.

    Raises
    ------
    ConfigurationError
        When hours, offset or coverage are out of range.
    """

    hours: tuple[float, float] = (0.0, 24.0)
    utc_offset: Annotated[float, Interval(-24, 24, unit="hours")] = 0.0
    min_coverage: Probability = 0.0

    def __post_init__(self) -> None:
        hours = as_floats(self.hours, "hours", ConfigurationError)
        if hours.shape != (2,) or not 0 <= hours[0] < hours[1] <= 24:
            raise ConfigurationError(f"hours must be two increasing numbers from 0 to 24, got {shorten(self.hours)}")

    def _to_local(self, trajectory: Trajectory) -> Trajectory:
        """Return a trajectory in local time, which `Trajectory.resample` rounds up."""
        ahead = np.timedelta64(round(self.utc_offset * _DAY / 24), "us")
        return replace(trajectory, times=trajectory.times + ahead)

    def _compute_day_slots(self, step: int) -> IntArray:
        """Return the steps of a local day, counted from midnight, that start within the hours.

        Raises
        ------
        ConfigurationError
            When the step, in microseconds, does not divide a day into whole minutes, or none starts within the hours.
        """
        if _DAY % step or step % _MINUTE:  # times of a day are written in minutes
            raise ConfigurationError(f"the step must divide a day into whole minutes, got {step / 1e6:g} s")
        low, high = (round(hour * _DAY / 24) for hour in self.hours)
        slots = np.arange(-(-low // step), -(-high // step))
        if not len(slots):
            first, last = self.hours
            raise ConfigurationError(
                f"hours must contain the start of a step, got {first:g} to {last:g} with steps of {step / 1e6:g} s"
            )
        return slots


def build_daily_population(
    trajectories: Iterable[Trajectory],
    space: StateSpace,
    step_seconds: Seconds,
    days: DayAlignment = DayAlignment(),
) -> Population:
    """Align the days of all users: a member is one day of one user.

    Parameters
    ----------
    trajectories, space, step_seconds
        As in `build_population`. The step must divide a day.
    days
        The hours of a day, and which days count.

    Notes
    -----
    A guarantee for one member is a guarantee for one *day* of a user. A user with several days in the data contributes
    to the counts several times.

    Raises
    ------
    CountError
        When no day counts.
    ConfigurationError
        When the step does not divide a day into whole minutes, or none starts within the hours.
    """
    step = round_to_microseconds(step_seconds, "step")
    grid = days._compute_day_slots(step)
    rows = []
    for trajectory in trajectories:
        slots, states = _locate_on_clock(days._to_local(trajectory), space, step_seconds)
        day, slot = np.divmod(slots, _DAY // step)
        dates = np.unique(day)
        for date, shown in zip(dates.tolist(), np.datetime_as_string(dates.astype("datetime64[D]")), strict=True):
            of_day = (day == date) & (slot >= grid[0]) & (slot <= grid[-1])
            if of_day.any() and of_day.sum() >= days.min_coverage * grid.size:
                name = f"{trajectory.user} {shown}"
                rows.append((name, slot[of_day] - grid[0], states[of_day]))
    return _assemble(rows, grid * step // _MINUTE, space.size)


def _locate_on_clock(trajectory: Trajectory, space: StateSpace, step_seconds: float) -> tuple[IntArray, IntArray]:
    track = trajectory.resample(step_seconds)
    states = space.locate(track.latitude, track.longitude)
    inside = states != OUTSIDE
    return track.slots[inside], states[inside]


def _parse_microseconds(time: str | np.datetime64, name: str) -> int:
    try:
        if isinstance(time, str):
            return parse_time(time)
        return int(np.array(time, dtype="datetime64[us]").astype(np.int64))
    except ValueError:
        raise ConfigurationError(f"{name} must be a UTC time such as 2009-10-11T14:00, got {time!r}") from None


def _assemble(rows: list[tuple[str, IntArray, IntArray]], times: npt.NDArray[Any], size: int) -> Population:
    if not rows:
        raise CountError("no user has a fix within the region at these times: use other times or a larger region")
    seen = np.zeros((len(rows), len(times)), dtype=np.bool_)
    states = np.zeros((len(rows), len(times)), dtype=np.int64)
    for at, (_, slots, visited) in enumerate(rows):
        seen[at, slots] = True
        held = np.maximum(np.searchsorted(slots, np.arange(len(times)), side="right") - 1, 0)
        states[at] = visited[held]
    return Population(tuple(name for name, _, _ in rows), times, states, seen, size)


# States that a table of counts cannot be checked against the training users of a model.
UNCHECKED_USERS = "unknown: a table does not list the counted users"

# Estimators that ignore the scale of the noise.
_WITHOUT_SCALE = ("least-squares", "maximum-likelihood")

EPSILON_COLUMN = "epsilon"
# Columns of a table of counts with each time's budget and whether its noise is exact. Other columns are places.
EXACT_COLUMN = "is_exact"

# The users' distribution at the first time: from the noisy counts, uniform, or the model's.
Prior = Literal["frequency", "uniform", "model"]


@dataclass(frozen=True)
class Counts:
    """Counts of users by time and place, in a table.

    Parameters
    ----------
    table
        One row per time, with one column per place. Noisy counts also have the columns `EPSILON_COLUMN` and
        `EXACT_COLUMN`.
    name
        Name of the counts in messages.
    """

    table: TimedTable
    name: str = "true counts"

    @classmethod
    def read(cls, path: str | Path) -> Counts:
        """Read counts from a .csv or .parquet file. See `dphmm.tables.TimedTable.read`.

        Parameters
        ----------
        path
            The file.

        Returns
        -------
        Counts
            The counts, named after the file.
        """
        return cls(TimedTable.read(path), str(path))

    @classmethod
    def from_values(cls, times: npt.NDArray[Any], values: npt.NDArray[Any], **more: npt.NDArray[Any]) -> Counts:
        """Build counts from values ``(T, m)`` and times, with optional further columns.

        Parameters
        ----------
        times
            ``(T,)``.
        values
            ``(T, m)`` counts.
        **more
            ``(T,)`` each: columns before the places.

        Returns
        -------
        Counts
            A table with columns ``place_0`` to ``place_{m-1}``.
        """
        return cls(TimedTable(times, {**more, **{f"place_{at}": values[:, at] for at in range(values.shape[1])}}))

    @property
    def places(self) -> TimedTable:
        """The table without the columns about the noise.

        Places named ``place_0`` to ``place_{m-1}`` are in this order.
        """
        columns = {
            name: column for name, column in self.table.columns.items() if name not in (EPSILON_COLUMN, EXACT_COLUMN)
        }
        numbered = [f"place_{at}" for at in range(len(columns))]
        if columns.keys() == set(numbered):
            columns = {name: columns[name] for name in numbered}
        return TimedTable(self.table.times, columns)

    @property
    def values(self) -> FloatArray:
        """Noisy or true counts, ``(T, m)``."""
        places = self.places
        return places.matrix(list(places.columns))

    @property
    def exact(self) -> bool:
        """Whether the table states that all of its noise was sampled with integers only."""
        return EXACT_COLUMN in self.table.columns and bool(np.all(self.table.columns[EXACT_COLUMN]))

    @property
    def size(self) -> dict[str, int]:
        """Number of users at the first time, of times and of places."""
        times, places = self.values.shape
        return {"num_users": int(self.values[0].sum()), "num_times": times, "num_places": places}

    @property
    def true(self) -> IntArray:
        """True counts, ``(T, m)``.

        Raises
        ------
        CountError
            When they are negative, not integers, or have different sums.
        """
        return as_counts(self.values, self.name)

    @property
    def scales(self) -> FloatArray:
        """Scales of the noise, ``(T,)``, from the budgets.

        Raises
        ------
        DataFileError, BudgetError
            When there is no column of budgets, or a budget is not positive.
        """
        if EPSILON_COLUMN not in self.table.columns:
            raise DataFileError(self.name, "has no column 'epsilon': set scale, the scale of its noise")
        for at, value in enumerate(self.table.columns[EPSILON_COLUMN]):
            check_budget(value, f"{self.name}: epsilon at time {at}")
        return SENSITIVITY / self.table.columns[EPSILON_COLUMN]


@dataclass(frozen=True)
class CountResult(Result):
    """The result of a release of counts.

    Parameters
    ----------
    noisy
        The release, with its budgets. Public.
    true
        The true counts. Private.
    temporal_leakage
        The largest temporal leakage of these budgets, with a separate backward matrix for each step. None unless the
        budgets are derived from a level of leakage. If the model's initial distribution is not stationary, it differs
        from that level.
    skipped
        Number of skipped malformed records.
    own_model
        Whether the mobility's model was trained on these users, as far as known; None without a model. Private.
    is_private
        Whether noise came from the operating system. Seeded noise provides no privacy.
    dropped
        Dropped fixes by reason; see `dphmm.jobs.UserTracks.count_dropped_fixes`. Private.
    is_daily
        Whether each counted member is one day of one user.
    """

    noisy: Counts
    true: Counts
    temporal_leakage: float | None
    skipped: int
    own_model: str | None = None
    is_private: bool = True
    dropped: tuple[Dropped, ...] = ()
    is_daily: bool = False

    def _derive_fields(self) -> dict[str, Any]:
        spent = self.noisy.table.columns[EPSILON_COLUMN]
        minimum = float(spent.min())
        maximum = float(spent.max())
        total = sum_budgets(spent.tolist())
        promise = {
            "likelihood_ratio_one_row_if_one_member_moves": describe_ratio_bound(maximum),
            "likelihood_ratio_all_rows_if_one_member_moves": describe_ratio_bound(total),
        }
        size = self.true.size
        num_members = size.pop("num_users")
        return {
            "num_user_days" if self.is_daily else "num_users": num_members,
            **size,
            **{"min_epsilon": minimum, "max_epsilon": maximum, "epsilon_total": total},
            "temporal_leakage": self.temporal_leakage,
            "is_exact": self.noisy.exact,
            "max_rms_error": _compute_rms_noise(minimum, self.noisy.exact),
            **void_guarantees_if_seeded(promise, self.is_private),
        }

    def to_private_dict(self) -> dict[str, Any]:
        """Return the values that depend on the true data. Private: do not publish.

        Returns
        -------
        dict
            Names → plain JSON values.
        """
        return {"private_num_skipped_fixes": self.skipped, "private_model_trained_on_these_users": self.own_model}


def _compute_rms_noise(epsilon: float, is_exact: bool) -> float:
    """Return the standard deviation of the noise of a count, whose scale is ``2 / epsilon``."""
    if not is_exact:
        return 2.0 * sqrt(2.0) / epsilon
    return sqrt(laplace_variance(epsilon / 2.0))


@check_arguments
def count_users(
    source: DataLike | Counts,
    budgets: Budgets,
    space: StateSpace | None = None,
    step_seconds: Seconds | None = None,
    *,
    mobility: Mobility = UNKNOWN,
    start: str | np.datetime64 | None = None,
    end: str | np.datetime64 | None = None,
    days: DayAlignment | None = None,
    mechanism: CountMechanism = "lattice",
    allow_training_users: bool = False,
    rng: Rng = None,
    watch: ProgressCallback = suppress_progress,
) -> CountResult:
    """Release noisy counts of users per place and time, as ``dphmm counts release`` does.

    A user without a fix within the region at a time is counted at their last place, and before their first fix at their
    first place. Therefore every user is counted at every time. Each time's row is epsilon-differentially private for
    one user's place at that time.

    Parameters
    ----------
    source
        Trajectories, or true counts. True counts ignore the parameters about trajectories.
    budgets
        Budget of each time.
    space, step_seconds
        The places (see `dphmm.jobs.region`) and the step of the clock. Default to those of the mobility's model.
    mobility
        Transitions, for budgets that bound temporal leakage.
    start, end
        The first and last time, UTC. Default to those of the data.
    days
        Align days: a member is then one day of one user, and the guarantee is for one day.
    mechanism
        ``"lattice"`` for exact integer noise, ``"laplace"`` for the paper's in double precision; see
        `dphmm.counts.release`.
    allow_training_users
        Whether users of the model's training data can be counted; see `dphmm.jobs.model.training_users`. A table of
        counts does not list its users and is not checked.
    rng
        Defaults to the operating system's randomness. A seed or generator makes releases repeatable, hence not private.
    watch
        Shows the progress; see `dphmm.jobs.ProgressCallback`.

    Returns
    -------
    CountResult
        The noisy counts, and the true ones.

    Raises
    ------
    ConfigurationError
        When arguments cannot be combined, or the model was trained on a counted user.
    CountError, BudgetError
        When there are no users, or counts or budgets are invalid.
    DphmmError
        When the data or the mobility are invalid.

    Examples
    --------
    >>> from dphmm.jobs import Budgets, DayAlignment, count_users, region
    >>> space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=2)
    >>> done = count_users("data/sample/geolife", Budgets(epsilon=1), space, 600, days=DayAlignment(hours=(8, 20)))
    >>> done.true.values.shape, done.noisy.scales[0].item(), done.noisy.exact
    ((72, 16), 2.0, True)
    """
    budgets.check(mobility)  # before the data are read
    skipped = 0
    own_model = None if mobility.model is None else UNCHECKED_USERS
    dropped: tuple[Dropped, ...] = ()
    is_daily = days is not None and not isinstance(source, Counts)
    if isinstance(source, Counts):
        true = Counts(source.places, source.name)
    else:
        places, step = _get_clock(mobility, space, step_seconds)
        if days is not None and (start or end):
            raise ConfigurationError(
                "--daily cannot be combined with start or end: it aligns all days; leave start and end out"
            )
        if days is not None:
            days._compute_day_slots(
                round_to_microseconds(step, "step")
            )  # raises for an invalid step before the data are read
        for name, time in (("start", start), ("end", end)):
            if time is not None:
                _parse_microseconds(time, name)
        user_tracks, checked_own = read_unseen_users(source, mobility.file, mobility.model, allow_training_users)
        own_model = None if mobility.model is None else checked_own
        watched_tracks = watch(user_tracks.trajectories, "Counting", len(user_tracks.trajectories))
        if days is None:
            members = build_population(watched_tracks, places, step, start, end)
        else:
            members = build_daily_population(watched_tracks, places, step, days)
        true = Counts.from_values(members.times, members.counts)
        skipped = user_tracks.skipped
        if days is not None:  # fixes that share a timestep do so on the local clock
            user_tracks = replace(user_tracks, trajectories=tuple(map(days._to_local, user_tracks.trajectories)))
        dropped = user_tracks.count_dropped_fixes(places, step)
    times = true.table.times
    each = budgets.resolve(len(times), mobility)
    randomness = as_random_source(rng)
    spent = np.array([float(budget) for budget in each])
    rows = watch(zip(true.true, each, strict=True), "Releasing", len(each))
    drawn = np.array([add_noise(row[None], budget, randomness, mechanism)[0] for row, budget in rows])
    noisy = Counts.from_values(times, drawn, epsilon=spent, is_exact=np.full(len(times), mechanism in EXACT_MECHANISMS))
    leakage = None
    if budgets.alpha is not None:
        leakage = compute_leakage(mobility.iterate_backward_matrices(len(times)), mobility.transition, spent).worst
    return CountResult(noisy, true, leakage, skipped, own_model, rng is None, dropped, is_daily)


def _get_clock(mobility: Mobility, space: StateSpace | None, step: float | None) -> tuple[StateSpace, float]:
    """Return the places and the time step, of the model or of the arguments."""
    model = mobility.model
    if model is not None:
        if space is not None:
            raise ConfigurationError("--model cannot be combined with a region: the model has its own places")
        if model.states is None:
            raise ConfigurationError(f"{mobility.name} has no state locations: train one with 'dphmm learn'")
        space = model.states
        model_step = model.step_seconds
        step = step or model_step
        if model_step is not None and step != model_step:
            raise ConfigurationError(f"--step must be the model's step {model_step:g} s, got {step:g} s: remove --step")
    space = space or region()  # raises with a list of the options
    if step is None:
        raise ConfigurationError("no time step: use --step SECONDS")
    return space, float(step)


@check_arguments
def repair_counts(
    noisy: Counts,
    users: NumUsers,
    mobility: Mobility = UNKNOWN,
    *,
    estimator: str = "coupled",
    prior: Prior = "frequency",
    scale: npt.ArrayLike | None = None,
    integer: bool = False,
    certificate: str | Path | None = None,
    overwrite: bool = False,
) -> Counts:
    """Repair noisy counts with public knowledge, as ``counts postprocess`` does.

    The result depends only on public data. It is therefore as private as the noisy counts, and its column
    `EXACT_COLUMN` is that of their noise. Mobility that was trained without noise on the counted users is not public. A
    table does not list its users, so this is not checked.

    Parameters
    ----------
    noisy
        Released counts.
    users
        The number of users.
    mobility
        Transitions, which some estimators need.
    estimator
        A name in `dphmm.counts.ESTIMATORS`.
    prior
        The users' distribution at the first time.
    scale
        Scale of the noise, one number or one per time. Defaults to ``2 / epsilon`` from the table's column.
    integer
        Whether to return integers.
    certificate
        A file for ``scripts/dphmm-verify`` with a proof that counts of the estimator ``"single"`` are the most probable
        ones, up to a stated gap.
    overwrite
        Whether an existing certificate can be replaced.

    Returns
    -------
    Counts
        Non-negative counts that sum to the number of users.

    Raises
    ------
    ConfigurationError
        When the estimator is unknown, required mobility is missing, or a certificate is requested for an estimator
        other than ``"single"``.
    DphmmError
        As `dphmm.counts.estimate` and `Counts.scales`.

    Examples
    --------
    >>> from dphmm.jobs import Budgets, DayAlignment, Mobility, count_users, learn, region, repair_counts
    >>> town, space = "data/sample/geolife", region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=2)
    >>> moves = Mobility.from_source(learn(town, space, 600, smoothing=0.5).model, smoothing=0.001)
    >>> done = count_users(town, Budgets(epsilon=1), mobility=moves, days=DayAlignment())
    >>> users = int(done.true.values[0].sum())
    >>> set(repair_counts(done.noisy, users, moves, integer=True).values.sum(axis=1)) == {users}
    True
    """
    scales = _get_scales(noisy, estimator) if scale is None else scale
    start = _get_prior(prior, mobility)
    if certificate is not None and estimator != "single":
        raise ConfigurationError(
            f"certificate cannot be combined with estimator {estimator!r}: it proves the optimum of 'single'"
        )
    estimates = estimate(estimator, noisy.values, mobility.transition, users, scales, start, integer)
    if certificate is not None:
        values = noisy.values
        matrix = as_transition(mobility.transition, noisy.values.shape[1])
        where = compute_occupancy(build_first_distribution(values, start), matrix, len(values))
        prior_name = cast(Literal["frequency", "uniform", "given"], prior if isinstance(start, str) else "given")
        values_of_estimate = np.asarray(estimates, dtype=np.float64)
        each = as_scales(scales, len(values))
        with open_stream_certificate(certificate, "counts", overwrite) as file:
            file.certify_counts(values, values_of_estimate, where, matrix, users, each, prior_name, integer)
    return Counts.from_values(noisy.table.times, estimates, is_exact=np.full(len(estimates), noisy.exact))


@check_arguments
def compare_counts(
    true: Counts,
    released: Budgets | Counts,
    mobility: Mobility = UNKNOWN,
    *,
    estimators: Sequence[str] = (),
    prior: Prior = "frequency",
    runs: Annotated[int, Integers(1, error=ConfigurationError)] = 5,
    mechanism: CountMechanism = "lattice",
    rng: Rng = None,
    watch: ProgressCallback = suppress_progress,
) -> dict[str, FloatArray]:
    """Compute mean squared errors of estimators on true counts, as ``counts evaluate`` does.

    Errors depend on the true counts. Use data that can be disclosed.

    Parameters
    ----------
    true
        True counts.
    released
        Budgets of new releases, or an existing release.
    mobility
        Transitions of the users.
    estimators
        Names in `dphmm.counts.ESTIMATORS`. Defaults to all that the mobility allows.
    prior
        The users' distribution at the first time.
    runs, mechanism, rng
        Number of new releases, their noise mechanism and their randomness.
    watch
        Shows the progress; see `dphmm.jobs.ProgressCallback`.

    Returns
    -------
    dict
        ``"noisy"`` and each estimator's name → ``(runs,)`` mean squared errors.

    Raises
    ------
    ConfigurationError
        As `repair_counts`, and when there is less than one run.
    CountError
        When true counts are invalid, or a release is not a release of them.
    DphmmError
        As for the budgets and `dphmm.counts.compare`.

    Examples
    --------
    >>> from dphmm.jobs import Budgets, DayAlignment, Mobility, compare_counts, count_users, learn, region
    >>> town, space = "data/sample/geolife", region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=2)
    >>> moves = Mobility.from_source(learn(town, space, 600, smoothing=0.5).model, smoothing=0.001)
    >>> true = count_users(town, Budgets(epsilon=1), mobility=moves, days=DayAlignment()).true
    >>> errors = compare_counts(true, Budgets(epsilon="1/2"), moves, runs=2, rng=1)
    >>> bool(errors["coupled"].mean() < errors["noisy"].mean())
    True
    """
    counts = true.true
    start = _get_prior(prior, mobility)
    transition = mobility.transition
    if isinstance(estimators, str) or not isinstance(estimators, Sequence):
        raise ConfigurationError(f"estimators must be a list of names, got {shorten(estimators)}")
    wanted = tuple(estimators) or tuple(ESTIMATORS)[0 if transition is not None else -2 :]
    if isinstance(released, Budgets):
        budgets = released.resolve(len(counts), mobility)
        bar = partial(watch, what="Comparing", total=runs)
        return compare(counts, budgets, transition, start, runs, rng, wanted, bar, mechanism)
    values = released.values
    users = int(counts[0].sum())
    if values.shape != counts.shape or (released.table.times != true.table.times).any():
        raise CountError(f"{released.name}: times and places must be those of the true counts")
    estimates = dict[str, Any]({RAW: values})
    for name in watch(wanted, "Comparing"):
        estimates[name] = estimate(name, values, transition, users, _get_scales(released, name), start)
    return {name: np.array([np.mean((estimated - counts) ** 2)]) for name, estimated in estimates.items()}


def _get_scales(noisy: Counts, estimator: str) -> npt.ArrayLike:
    """Return the scales of the noise, or 1 for an estimator that ignores them."""
    return 1.0 if estimator in _WITHOUT_SCALE else noisy.scales


def _get_prior(prior: Prior, mobility: Mobility) -> Any:
    if not isinstance(prior, str) or prior != "model":
        return prior
    if mobility.initial is None:
        raise ConfigurationError("prior = 'model' needs --model: a matrix has no initial distribution")
    return mobility.initial
