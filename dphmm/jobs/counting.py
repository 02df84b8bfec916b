"""Counts of people per place and time, out of trajectories: released with noise, repaired, compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import BoolArray, FloatArray, IntArray, Rng, as_floats, check_budget, random_source
from dphmm.certificate.streams import stream_certificate
from dphmm.counts import ESTIMATORS, compare, count_states, estimate
from dphmm.counts import release as add_noise
from dphmm.counts.map_estimate import first_distribution, occupancy
from dphmm.counts.repair import RAW
from dphmm.counts.stream import SENSITIVITY, CountMechanism, as_counts, as_scales, as_transition
from dphmm.errors import ConfigurationError, CountError, DataFileError
from dphmm.facts import factor_in_words, unless_seeded
from dphmm.jobs.input_data import DataLike, Dropped
from dphmm.jobs.mobility import UNKNOWN, Budgets, Mobility
from dphmm.jobs.models import read_others, region
from dphmm.jobs.progress import Watch, unwatched
from dphmm.leakage import account
from dphmm.mechanisms import EXACT as EXACT_MECHANISMS
from dphmm.space.states import OUTSIDE, StateSpace
from dphmm.space.trajectory import Trajectory, microseconds
from dphmm.tables import TimedTable
from dphmm.tables.values import parse_time, shorten

_DAY = 86_400_000_000
MOST_TIMES = 10_000_000
"""The most times over which people are counted."""


@dataclass(frozen=True)
class Population:
    """Where each member of a population is at each time.

    Parameters
    ----------
    members
        ``n`` names: users, or ``user date`` for days.
    times
        ``(T,)`` ``datetime64[us]`` in UTC; for days, minutes after local midnight as integers.
    states
        ``(n, T)`` integers, every member somewhere at every time.
    seen
        ``(n, T)`` booleans: false where no fix of this time stands behind the state and the last one is held (before
        the first fix, the first one).
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
        """``(T, m)``: how many members are in each place at each time."""
        return count_states(self.states, self.size)

    def part(self, chosen: Sequence[int] | BoolArray) -> Population:
        """Some of the members, by position.

        Raises
        ------
        CountError
            When no one is chosen.
        """
        names = np.array(self.members, dtype=object)[np.asarray(chosen)]
        if not len(names):
            raise CountError("no one is chosen; a population has one member or more")
        return Population(tuple(names.tolist()), self.times, self.states[chosen], self.seen[chosen], self.size)


def population(
    trajectories: Iterable[Trajectory],
    space: StateSpace,
    step_seconds: float,
    start: str | np.datetime64 | None = None,
    end: str | np.datetime64 | None = None,
) -> Population:
    """Everyone's states over one span of the clock.

    A person who is not seen within the space at a time is counted where they were last seen, and before their first
    fix where they are first seen; so the number of people is the same at all times, as the guarantee of
    `dphmm.counts.release` supposes.

    Parameters
    ----------
    trajectories
        One per person.
    space
        The places.
    step_seconds
        The step of the clock; see `Trajectory.resample`.
    start, end
        The first and the last time, UTC; left out, those of the data. People who are not seen within the space
        between them are no members.

    Raises
    ------
    CountError
        When no one is seen within the space and the span.
    ConfigurationError
        For a step that is not positive and finite, or an end before the start.
    """
    step = microseconds(step_seconds, "step")
    tracks = [(one.user, *_seen(one, space, step_seconds)) for one in trajectories]
    ends = [(slots[0], slots[-1]) for _, slots, _ in tracks if len(slots)]
    if not ends:
        raise CountError("no one is seen within the region; check the region and the data")
    first = int(np.min(ends)) if start is None else -(-_micro(start, "start") // step)
    last = int(np.max(ends)) if end is None else _micro(end, "end") // step
    if last < first:
        raise ConfigurationError(f"no time of the clock lies from {start} to {end}; give an end after the start")
    if last - first >= MOST_TIMES:
        raise ConfigurationError(
            f"the data reach over {last - first + 1:,} steps of {step_seconds:g} s, and {MOST_TIMES:,} are the most; "
            "say a shorter span with start and end, or take a longer step"
        )
    each = [(user, slots, states, (slots >= first) & (slots <= last)) for user, slots, states in tracks]
    rows = [(user, slots[one] - first, states[one]) for user, slots, states, one in each if one.any()]
    times = (np.arange(first, last + 1) * step).astype("datetime64[us]")
    return _assembled(rows, times, space.size)


@checked
@dataclass(frozen=True)
class Days:
    """That days are laid over each other, and which part of them; see `daily_population`.

    Parameters
    ----------
    hours
        From which to which local hour.
    utc_offset
        Hours by which local time is ahead of UTC.
    least_seen
        The share of the times, 0 to 1, at which a day's person must be seen within the space for the day to count.
        Days without any fix within the space never count.

    Raises
    ------
    ConfigurationError
        For hours, an offset or a share out of range.
    """

    hours: tuple[float, float] = (0.0, 24.0)
    utc_offset: float = 0.0
    least_seen: float = 0.0

    def __post_init__(self) -> None:
        hours = as_floats(self.hours, "hours", ConfigurationError)
        if hours.shape != (2,) or not 0 <= hours[0] < hours[1] <= 24:
            raise ConfigurationError(f"hours are {shorten(self.hours)}; give two from 0 to 24, the earlier one first")
        if not -24 <= self.utc_offset <= 24:
            raise ConfigurationError(f"utc_offset is {self.utc_offset:g}; give hours from -24 to 24")
        if not 0 <= self.least_seen <= 1:
            raise ConfigurationError(f"least_seen is {self.least_seen:g}; give a share from 0 to 1")

    def _slots(self, step: int) -> IntArray:
        """The steps of a local day, counted from midnight, that begin within the hours.

        Raises
        ------
        ConfigurationError
            For a step, in microseconds, that does not divide a day.
        """
        if _DAY % step:
            raise ConfigurationError(f"the step is {step / 1e6:g} s, which does not divide a day; give one that does")
        low, high = (round(hour * _DAY / 24) for hour in self.hours)
        return np.arange(-(-low // step), -(-high // step))


def daily_population(
    trajectories: Iterable[Trajectory],
    space: StateSpace,
    step_seconds: float,
    days: Days = Days(),
) -> Population:
    """Every person's days laid over each other: a member is one day of one person.

    Parameters
    ----------
    trajectories, space, step_seconds
        As in `population`; the step must divide a day.
    days
        Which part of them, and which of them count.

    Notes
    -----
    A guarantee about one member is about one *day* of a person; one who has several days in the data takes part in the
    counts several times.

    Raises
    ------
    CountError
        When no day is left.
    ConfigurationError
        For a step that does not divide a day.
    """
    step = microseconds(step_seconds, "step")
    grid = days._slots(step)
    rows = []
    for one in trajectories:
        slots, states = _seen(one, space, step_seconds)
        local = slots * step + round(days.utc_offset * _DAY / 24)
        day, slot = local // _DAY, (local % _DAY) // step
        dates = np.unique(day)
        for date, shown in zip(dates.tolist(), np.datetime_as_string(dates.astype("datetime64[D]")), strict=True):
            of_day = (day == date) & (slot >= grid[0]) & (slot <= grid[-1])
            if of_day.any() and of_day.sum() >= days.least_seen * grid.size:
                name = f"{one.user} {shown}"
                rows.append((name, slot[of_day] - grid[0], states[of_day]))
    return _assembled(rows, grid * step // 60_000_000, space.size)


def _seen(one: Trajectory, space: StateSpace, step_seconds: float) -> tuple[IntArray, IntArray]:
    track = one.resample(step_seconds)
    states = space.locate(track.latitude, track.longitude)
    inside = states != OUTSIDE
    return track.slots[inside], states[inside]


def _micro(moment: str | np.datetime64, name: str) -> int:
    try:
        if isinstance(moment, str):
            return parse_time(moment)
        return int(np.array(moment, dtype="datetime64[us]").astype(np.int64))
    except ValueError:
        raise ConfigurationError(f"{name} is {moment!r}; give a UTC time such as 2009-10-11T14:00") from None


def _assembled(rows: list[tuple[str, IntArray, IntArray]], times: npt.NDArray[Any], size: int) -> Population:
    if not rows:
        raise CountError("no one is seen within the region at these times; ask for other times or a larger region")
    seen = np.zeros((len(rows), len(times)), dtype=np.bool_)
    states = np.zeros((len(rows), len(times)), dtype=np.int64)
    for at, (_, slots, found) in enumerate(rows):
        seen[at, slots] = True
        held = np.maximum(np.searchsorted(slots, np.arange(len(times)), side="right") - 1, 0)
        states[at] = found[held]
    return Population(tuple(name for name, _, _ in rows), times, states, seen, size)


UNCHECKED = "not known: a table does not say who was counted"
"""What is said of whether a model was learned from the people in a table of counts."""

EPSILON, EXACT = "epsilon", "exact"
"""The columns of a table of counts that hold each time's budget, and whether its noise is exact; others are places."""

Prior = Literal["frequency", "uniform", "model"]
"""The people's distribution at the first time: what the noisy counts tell, anywhere alike, or the model's."""


@dataclass(frozen=True)
class Counts:
    """Counts of people by time and place, in a table.

    Parameters
    ----------
    table
        A row per time: a column per place, and `EPSILON` and `EXACT` where there is noise.
    name
        What messages call it.
    """

    table: TimedTable
    name: str = "true counts"

    @classmethod
    def read(cls, path: str | Path) -> Counts:
        """The counts of a .csv or .parquet file; see `dphmm.tables.TimedTable.read`.

        Parameters
        ----------
        path
            The file.

        Returns
        -------
        Counts
            Its counts, named after the file.
        """
        return cls(TimedTable.read(path), str(path))

    @classmethod
    def from_values(cls, times: npt.NDArray[Any], values: npt.NDArray[Any], **more: npt.NDArray[Any]) -> Counts:
        """Values ``(T, m)`` over times, with more columns before them.

        Parameters
        ----------
        times
            ``(T,)``.
        values
            ``(T, m)`` counts.
        **more
            ``(T,)`` each: columns that stand before the places.

        Returns
        -------
        Counts
            A table with columns ``place_0`` to ``place_{m-1}``.
        """
        return cls(TimedTable(times, {**more, **{f"place_{at}": values[:, at] for at in range(values.shape[1])}}))

    @property
    def places(self) -> TimedTable:
        """The table without what it says of the noise."""
        columns = {name: column for name, column in self.table.columns.items() if name not in (EPSILON, EXACT)}
        return TimedTable(self.table.times, columns)

    @property
    def values(self) -> FloatArray:
        """``(T, m)`` counts, noisy or true."""
        places = self.places
        return places.matrix(list(places.columns))

    @property
    def exact(self) -> bool:
        """Whether the table says that all of its noise was drawn by integers alone."""
        return EXACT in self.table.columns and bool(np.all(self.table.columns[EXACT]))

    @property
    def size(self) -> dict[str, int]:
        """The numbers of users at the first time, times and places."""
        return {"users": int(self.values[0].sum()), "times": self.values.shape[0], "places": self.values.shape[1]}

    @property
    def true(self) -> IntArray:
        """``(T, m)`` true counts.

        Raises
        ------
        CountError
            When they are negative, not whole, or of a sum that changes.
        """
        return as_counts(self.values, self.name)

    @property
    def scales(self) -> FloatArray:
        """``(T,)`` scales of the noise, as the budgets say.

        Raises
        ------
        DataFileError, BudgetError
            When there is no column of budgets, or one is not positive.
        """
        if EPSILON not in self.table.columns:
            raise DataFileError(self.name, "has no column 'epsilon'; say the scale of its noise with --scale")
        for at, value in enumerate(self.table.columns[EPSILON]):
            check_budget(value, f"{self.name}: epsilon at time {at}")
        return SENSITIVITY / self.table.columns[EPSILON]


@dataclass(frozen=True)
class Counted:
    """People who were counted.

    Parameters
    ----------
    noisy
        The release, with its budgets. Public.
    true
        The counts themselves. Private.
    temporal_leakage
        The greatest temporal leakage of these budgets, each step with its own backward matrix; None unless they are for
        a level. Where the model's initial distribution is not stationary this is another figure than that level.
    skipped
        How many malformed records were passed over.
    own_model
        Whether the mobility's model was learned from these people's data, as far as that is known; None without a
        model. Private.
    is_private
        Whether noise came from the operating system; where it follows from a seed nothing is private.
    dropped
        Which fixes were not looked at, by reason: see `dphmm.jobs.People.dropped`. Private.
    """

    noisy: Counts
    true: Counts
    temporal_leakage: float | None
    skipped: int
    own_model: str | None = None
    is_private: bool = True
    dropped: tuple[Dropped, ...] = ()

    def facts(self) -> dict[str, Any]:
        """What the release amounts to and promises, from public things alone.

        Returns
        -------
        dict
            Names of facts → plain JSON values.
        """
        spent = self.noisy.table.columns[EPSILON]
        least, most, total = float(spent.min()), float(spent.max()), float(spent.sum())
        promise = {
            "one_row_from_one_member_elsewhere_at_that_time": factor_in_words(most),
            "all_rows_from_one_member_elsewhere_throughout": factor_in_words(total),
        }
        return {
            **self.true.size,
            **{"epsilon_least": least, "epsilon_greatest": most, "epsilon_of_all_times": total},
            "temporal_leakage": self.temporal_leakage,
            "exact": self.noisy.exact,
            **unless_seeded(promise, self.is_private),
        }

    def private_facts(self) -> dict[str, Any]:
        """What only the truth tells. Never publish it.

        Returns
        -------
        dict
            Names of facts → plain JSON values.
        """
        return {"private_fixes_skipped": self.skipped, "private_model_learned_from_these_people": self.own_model}


def count_people(
    source: DataLike | Counts,
    budgets: Budgets,
    space: StateSpace | None = None,
    step_seconds: float | None = None,
    *,
    mobility: Mobility = UNKNOWN,
    start: str | np.datetime64 | None = None,
    end: str | np.datetime64 | None = None,
    days: Days | None = None,
    mechanism: CountMechanism = "lattice",
    allow_own_model: bool = False,
    rng: Rng = None,
    watch: Watch = unwatched,
) -> Counted:
    """Release noisy counts of people per place and time, as ``dphmm counts release`` does.

    A person who is not seen within the region at a time is counted where they were last seen, and before that where
    they are first seen, so that everyone is somewhere at every time. Each time's row is epsilon-differentially
    private for one person's place at that time.

    Parameters
    ----------
    source
        Whose places; or true counts, for which the next parameters say nothing.
    budgets
        What each time may spend.
    space, step_seconds
        The places (see `dphmm.jobs.region`) and the step of the clock; left out, those of the mobility's model.
    mobility
        How people move, for budgets that keep a level of temporal leakage.
    start, end
        The first and last time, UTC; left out, those of the data.
    days
        Lay days over each other: a member is then one day of one person, and so the promise is about one day.
    mechanism
        ``"lattice"`` for exact integer noise, ``"laplace"`` for the paper's in double precision; see
        `dphmm.counts.release`.
    allow_own_model
        Whether to count people whose own data the mobility's model has seen; see `dphmm.jobs.models`. A table of
        counts does not say whom it counts, and is not checked.
    rng
        Left out, the operating system's randomness. A seed or generator makes releases repeatable, hence not private.
    watch
        Shows how far the job has come; see `dphmm.jobs.Watch`.

    Returns
    -------
    Counted
        The noisy counts, and the true ones.

    Raises
    ------
    ConfigurationError
        When arguments do not go together, or the model was learned from a person who is counted.
    CountError, BudgetError
        When no one is there to be counted, counts are none, or budgets do not fit.
    DphmmError
        As the data and the mobility say.

    Examples
    --------
    >>> from dphmm.jobs import Budgets, Days, count_people, region
    >>> space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell=2)
    >>> done = count_people("data/sample/geolife", Budgets(epsilon=1), space, 600, days=Days(hours=(8, 20)))
    >>> done.true.values.shape, done.noisy.scales[0].item(), done.noisy.exact
    ((72, 16), 2.0, True)
    """
    skipped, own = 0, None if mobility.model is None else UNCHECKED
    dropped: tuple[Dropped, ...] = ()
    if isinstance(source, Counts):
        true = Counts(source.places, source.name)
    else:
        places, step = _clock(mobility, space, step_seconds)
        if days is not None and (start or end):
            raise ConfigurationError("--daily lays all days over each other; leave --start and --end out")
        if days is not None:
            days._slots(microseconds(step, "step"))  # refuses another step, as these refuse what is no time
        for name, moment in (("start", start), ("end", end)):
            if moment is not None:
                _micro(moment, name)
        people, checked_own = read_others(source, mobility.file, mobility.model, allow_own_model)
        own = None if mobility.model is None else checked_own
        everyone = watch(people.trajectories, "Counting", len(people.trajectories))
        if days is None:
            found = population(everyone, places, step, start, end)
        else:
            found = daily_population(everyone, places, step, days)
        true, skipped = Counts.from_values(found.times, found.counts), people.skipped
        dropped = people.dropped(places, step)
    times = true.table.times
    each = budgets.resolve(len(times), mobility)
    randomness, spent = random_source(rng), np.array([float(budget) for budget in each])
    rows = watch(zip(true.true, each, strict=True), "Releasing", len(each))
    drawn = np.array([add_noise(row[None], budget, randomness, mechanism)[0] for row, budget in rows])
    noisy = Counts.from_values(times, drawn, epsilon=spent, exact=np.full(len(times), mechanism in EXACT_MECHANISMS))
    leakage = None
    if budgets.alpha is not None:
        leakage = account(mobility.backwards(len(times)), mobility.transition, spent).worst
    return Counted(noisy, true, leakage, skipped, own, rng is None, dropped)


def _clock(mobility: Mobility, space: StateSpace | None, step: float | None) -> tuple[StateSpace, float]:
    """The places and the time step, of the model or as they are given."""
    model = mobility.model
    if model is not None:
        if space is not None:
            raise ConfigurationError("--model and a region are both given; the model has places of its own")
        if model.states is None:
            raise ConfigurationError(f"{mobility.name} has no map; make one with 'dphmm learn'")
        space, own = model.states, model.step_seconds
        step = step or own
        if own is not None and step != own:
            raise ConfigurationError(f"--step is {step:g} s and the model's step {own:g} s; leave it out")
    space = space or region()  # which says what to give
    if step is None:
        raise ConfigurationError("no time step is given; give --step in seconds")
    return space, float(step)


@checked
def repair_counts(
    noisy: Counts,
    users: int,
    mobility: Mobility = UNKNOWN,
    *,
    estimator: str = "coupled",
    prior: Prior = "frequency",
    scale: npt.ArrayLike | None = None,
    integer: bool = False,
    certificate: str | Path | None = None,
    overwrite: bool = False,
) -> Counts:
    """Make noisy counts not negative and sum to the number of people, as ``dphmm counts postprocess`` does.

    Nothing but public things enters, so the result is as private as the noisy counts are, and its table says `EXACT` of
    their noise. Mobility that was learned, without noise, from the people who were counted is not public; a table does
    not say who they were, so that this is not checked.

    Parameters
    ----------
    noisy
        Released counts.
    users
        The number of people.
    mobility
        How people move; some of the estimators need it.
    estimator
        A name in `dphmm.counts.ESTIMATORS`.
    prior
        The people's distribution at the first time.
    scale
        Of the noise, one number or one per time; left out, ``2 / epsilon`` from the table's column.
    integer
        Whole numbers.
    certificate
        A file of what shows that counts of the estimator ``"single"`` are the most probable ones, and by how much they
        might not be, for ``scripts/dphmm-verify``.
    overwrite
        Whether a certificate that exists may be replaced.

    Returns
    -------
    Counts
        Counts that are not negative and sum to the number of people.

    Raises
    ------
    ConfigurationError
        When the estimator is unknown, or the mobility that it or the prior needs is missing; for a certificate of
        another estimator than ``"single"``.
    DphmmError
        As `dphmm.counts.estimate` and `Counts.scales` say.

    Examples
    --------
    >>> from dphmm.jobs import Budgets, Days, Mobility, count_people, learn, region, repair_counts
    >>> town, space = "data/sample/geolife", region(bbox=(44.97, -30.04, 45.03, -29.96), cell=2)
    >>> moves = Mobility.from_source(learn(town, space, 600, smoothing=0.5).model, smoothing=0.001)
    >>> done = count_people(town, Budgets(epsilon=1), mobility=moves, days=Days())
    >>> users = int(done.true.values[0].sum())
    >>> set(repair_counts(done.noisy, users, moves, integer=True).values.sum(axis=1)) == {users}
    True
    """
    scales, start = noisy.scales if scale is None else scale, _start(prior, mobility)
    if certificate is not None and estimator != "single":
        raise ConfigurationError(
            f"estimator {estimator!r} looks for no most probable counts, of which a certificate is; use 'single'"
        )
    found = estimate(estimator, noisy.values, mobility.transition, users, scales, start, integer)
    if certificate is not None:
        values, matrix = noisy.values, as_transition(mobility.transition, noisy.values.shape[1])
        where = occupancy(first_distribution(values, start), matrix, len(values))
        known = cast(Literal["frequency", "uniform", "given"], prior if isinstance(start, str) else "given")
        made, each = np.asarray(found, dtype=np.float64), as_scales(scales, len(values))
        with stream_certificate(certificate, "counts", overwrite) as file:
            file.counts(values, made, where, matrix, users, each, known, integer)
    return Counts.from_values(noisy.table.times, found, exact=np.full(len(found), noisy.exact))


@checked
def compare_counts(
    true: Counts,
    released: Budgets | Counts,
    mobility: Mobility = UNKNOWN,
    *,
    estimators: Sequence[str] = (),
    prior: Prior = "frequency",
    runs: int = 5,
    mechanism: CountMechanism = "lattice",
    rng: Rng = None,
    watch: Watch = unwatched,
) -> dict[str, FloatArray]:
    """Mean squared errors of estimators on true counts, as ``dphmm counts evaluate`` finds them.

    Errors tell about the truth: use data that may be looked at.

    Parameters
    ----------
    true
        True counts.
    released
        Budgets of fresh releases, or one release that exists.
    mobility
        How people move.
    estimators
        Names in `dphmm.counts.ESTIMATORS`; left out, all that the mobility allows.
    prior
        The people's distribution at the first time.
    runs, mechanism, rng
        Of fresh releases: how many, how their noise is drawn, and where it comes from.
    watch
        Shows how far the job has come; see `dphmm.jobs.Watch`.

    Returns
    -------
    dict
        ``"noisy"`` and each estimator's name → ``(runs,)`` mean squared errors.

    Raises
    ------
    ConfigurationError
        As `repair_counts`, and for less than one run.
    CountError
        When true counts are none, or a release is not one of them.
    DphmmError
        As the budgets and `dphmm.counts.compare` say.

    Examples
    --------
    >>> from dphmm.jobs import Budgets, Days, Mobility, compare_counts, count_people, learn, region
    >>> town, space = "data/sample/geolife", region(bbox=(44.97, -30.04, 45.03, -29.96), cell=2)
    >>> moves = Mobility.from_source(learn(town, space, 600, smoothing=0.5).model, smoothing=0.001)
    >>> true = count_people(town, Budgets(epsilon=1), mobility=moves, days=Days()).true
    >>> errors = compare_counts(true, Budgets(epsilon="1/2"), moves, runs=2, rng=1)
    >>> bool(errors["coupled"].mean() < errors["noisy"].mean())
    True
    """
    counts, start, transition = true.true, _start(prior, mobility), mobility.transition
    if isinstance(estimators, str) or not isinstance(estimators, Sequence):
        raise ConfigurationError(f"estimators are {shorten(estimators)}; give a list of their names")
    wanted = tuple(estimators) or tuple(ESTIMATORS)[0 if transition is not None else -2 :]
    if isinstance(released, Budgets):
        budgets, bar = released.resolve(len(counts), mobility), partial(watch, what="Comparing", total=runs)
        return compare(counts, budgets, transition, start, runs, rng, wanted, bar, mechanism)
    values, users = released.values, int(counts[0].sum())
    if values.shape != counts.shape or (released.table.times != true.table.times).any():
        raise CountError(f"{released.name}: times or places are not those of the true counts; give a release of them")
    found, scales = dict[str, Any]({RAW: values}), released.scales
    for name in watch(wanted, "Comparing"):
        found[name] = estimate(name, values, transition, users, scales, start)
    return {name: np.array([np.mean((made - counts) ** 2)]) for name, made in found.items()}


def _start(prior: Prior, mobility: Mobility) -> Any:
    if not isinstance(prior, str) or prior != "model":
        return prior
    if mobility.initial is None:
        raise ConfigurationError("--prior model needs --model; the file of a matrix says nothing of the start")
    return mobility.initial
