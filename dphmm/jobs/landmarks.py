"""Series and trajectories released so that landmarks, the moments that matter, are protected together."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, repeat
from math import sqrt
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import BoolArray, FloatArray, IntArray, check_epsilon
from dphmm.certificate.streams import stream_certificate
from dphmm.errors import ConfigurationError, CoordinateError, InvalidInputError, LandmarkError, TimeOrderError
from dphmm.facts import factor_in_words, unless_seeded
from dphmm.jobs.input_data import SAME_TICK, Data, DataLike, Dropped, People
from dphmm.jobs.mobility import UNKNOWN, Matrix, Mobility, as_matrix
from dphmm.jobs.models import Model, load_model, read_others
from dphmm.landmarks import (
    Adaptive,
    LandmarkBudget,
    Noise,
    ReleasedSeries,
    Timeline,
    laplace,
    lattice,
    leakage,
    planar_laplace,
    planar_lattice,
    release_series,
    repeated_places,
    skip,
    stay_points,
    uniform,
)
from dphmm.landmarks.series import METRE
from dphmm.leakage.loss_function import read_numbers
from dphmm.leakage.stream import highest
from dphmm.mechanisms.exact import Rational
from dphmm.model import reverses
from dphmm.release.engine import Releaser, ReleaseSettings
from dphmm.release.trajectory import located
from dphmm.space import OUTSIDE, LocalProjection, Trajectory
from dphmm.space.grid import Box, check_box
from dphmm.tables import TimedTable, content_lines, parse_times
from dphmm.tables.values import Times, shorten

Rule = Literal["stays", "repeated", "home", "work", "home-and-work"]


def _check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ConfigurationError(f"{name} is {value!r}; choose one of {', '.join(choices)}")


@checked
@dataclass(frozen=True)
class Find:
    """A rule by which landmarks are found in a trajectory. This reads true places: it is a person's own act.

    Parameters
    ----------
    rule
        All ``"stays"``, those at places that were stayed at more than once (``"repeated"``), or those at ``"home"``, at
        ``"work"``, or at both (``"home-and-work"``).
    radius
        How far a stay or place reaches, kilometres.
    minutes
        How long a stay lasts at least.
    utc_offset
        Hours by which local time is ahead of UTC, for home and work.

    Raises
    ------
    ConfigurationError, BudgetError
        For another rule, or an offset, a radius or minutes out of range.
    """

    rule: Rule
    radius: float = 0.2
    minutes: float = 20.0
    utc_offset: float = 0.0

    def __post_init__(self) -> None:
        _check_choice("rule", self.rule, get_args(Rule))
        none = stay_points(np.zeros(0, dtype="datetime64[us]"), np.zeros((0, 2)), self.radius, self.minutes)
        repeated_places(none, self.radius, self.utc_offset)  # both refuse what is out of range

    def mask(self, times: npt.ArrayLike, points: FloatArray) -> BoolArray:
        """Which fixes of a trajectory are landmarks, ``(n,)``.

        Parameters
        ----------
        times
            ``(n,)`` UTC.
        points
            ``(n, 2)`` kilometres.

        Returns
        -------
        BoolArray
            ``(n,)``.

        Raises
        ------
        LandmarkError
            When there is none.
        DphmmError
            As `dphmm.landmarks.stay_points` and `dphmm.landmarks.repeated_places`.

        Examples
        --------
        >>> times = np.datetime64("2024-03-07T08:00") + np.arange(4) * np.timedelta64(15, "m")
        >>> Find("stays").mask(times, np.array([[0, 0], [0, 0.1], [0.1, 0], [3, 0]])).tolist()
        [True, True, True, False]
        """
        stays = stay_points(times, points, self.radius, self.minutes)
        chosen = None
        if self.rule != "stays":
            places = repeated_places(stays, self.radius, self.utc_offset)
            wanted = [getattr(places, name) for name in ("home", "work") if name in self.rule]  # -1 is no stay's place
            chosen = np.isin(places.place, wanted) if wanted else places.visits[places.place] > 1
        mask = stays.mask(chosen)
        if not mask.any():
            raise LandmarkError(
                f"--find {self.rule} finds nothing within {self.radius:g} km for {self.minutes:g} minutes; "
                "widen the one or shorten the other"
            )
        return mask


Moments = Find | Sequence[Any] | npt.NDArray[Any] | Path
"""Landmarks: a rule by which to find them, some of the timestamps (as times or texts), or a file with one a line."""


def moments_of(moments: Moments, timestamps: Times, points: FloatArray | None = None) -> Times:
    """Landmarks as times of the timestamps' kind; none is an empty list.

    Parameters
    ----------
    moments
        What they are.
    timestamps
        Of the series or trajectory.
    points
        ``(T, 2)`` places to find landmarks in, kilometres.

    Raises
    ------
    ConfigurationError
        When they are to be found and there are no places.
    DataFileError
        When the file cannot be read.
    LandmarkError
        When one is no time, or numbers are given among instants or the other way round, or none is found.
    """
    if isinstance(moments, Find):
        if points is None:
            raise ConfigurationError("landmarks are found in places; name those of a table of values")
        return np.asarray(timestamps[moments.mask(timestamps, points)])
    if isinstance(moments, Path):
        moments = [line for _, line in content_lines(moments) if line.lower() != "time"]
    if len(moments) == 0:
        return np.zeros(0, dtype=timestamps.dtype)
    found = np.asarray(moments)
    if found.dtype.kind in "US":
        try:
            found = parse_times(found.tolist())
        except ValueError as problem:
            raise LandmarkError(f"landmarks: {problem}") from None
    if (found.dtype.kind == "M") != (timestamps.dtype.kind == "M"):
        raise LandmarkError(f"landmark {moments[0]} is not of the timestamps' kind, such as {timestamps[0]}")
    return found


_UNKNOWN = "not known, as how the data of one time tell of others was not given"
SchemeName = Literal["skip", "uniform", "adaptive"]
_OWN_COLUMNS = ("landmark", "published", "exact", "epsilon", "loss")


@checked
@dataclass(frozen=True)
class Scheme:
    """How the budget is divided between landmarks and regular timestamps; see `dphmm.landmarks`.

    Parameters
    ----------
    name
        ``"skip"``, ``"uniform"`` or ``"adaptive"``.
    rate, change, least_rate
        Of the adaptive one: its probability of publishing at the start, how fast that changes, and what it never falls
        below.

    Raises
    ------
    ConfigurationError
        For another name, or rates that are none.
    """

    name: SchemeName = "adaptive"
    rate: float = 1.0
    change: float = 0.2
    least_rate: float = 0.1

    def __post_init__(self) -> None:
        _check_choice("scheme", self.name, get_args(SchemeName))
        self.allocate(np.arange(1), (), 1.0, 1.0, 0)  # refuses rates that are none

    def allocate(
        self, times: npt.ArrayLike, landmarks: npt.ArrayLike, epsilon: float, scale: float, seed: int | None
    ) -> LandmarkBudget | Adaptive:
        """The scheme over these timestamps; `scale` is the length that the adaptive one compares changes with.

        Parameters
        ----------
        times, landmarks, epsilon
            As in `dphmm.landmarks.timeline`, and what ``L ∪ {t}`` may spend for every t.
        scale
            The length that the adaptive scheme compares changes with.
        seed
            Of the adaptive scheme's coins; left out, the operating system's randomness.

        Returns
        -------
        LandmarkBudget or Adaptive
            Fixed budgets, or a scheme that has not begun.
        """
        if self.name != "adaptive":
            return {"skip": skip, "uniform": uniform}[self.name](times, landmarks, epsilon)
        coins = None if seed is None else np.random.default_rng([seed, 1])  # not the noise's own stream
        return Adaptive(times, landmarks, epsilon, scale, self.rate, self.change, self.least_rate, rng=coins)


@dataclass(frozen=True)
class Landmarked:
    """What a release under a scheme came to, all of it public; the list of landmarks counts as public too.

    Parameters
    ----------
    scheme
        Which.
    series
        What was released, where it is fresh, and the budget: timestamps, landmarks, and what each timestamp spent,
        proved sound.
    values
        Name → ``(T,)`` what was released; places in degrees.
    losses
        ``(T,)`` what the releases tell of all landmarks together with each timestamp, at most.
    is_private
        Whether noise came from the operating system; where it follows from a seed nothing is private.
    dropped
        Which fixes were not looked at, or moved to the border, by reason; see `dphmm.jobs.People.dropped`. Private,
        unlike the rest.
    moves_known
        Whether the losses count what the data of one time tell of those before and after; otherwise they are sums of
        budgets, and hold where the data of different times are independent.
    """

    scheme: Scheme
    series: ReleasedSeries
    values: dict[str, FloatArray]
    losses: FloatArray
    is_private: bool = True
    dropped: tuple[Dropped, ...] = ()
    moves_known: bool = True

    @property
    def table(self) -> TimedTable:
        """A row per timestamp, with all of this."""
        budget = self.series.budget
        line, exact = budget.timeline, np.full(len(budget.timeline), self.series.exact)
        own = (line.landmark, self.series.published, exact, budget.epsilons, self.losses)
        return TimedTable(line.timestamps, {**dict(zip(_OWN_COLUMNS, own, strict=True)), **self.values})

    def certify(self, path: str | Path, overwrite: bool = False) -> None:
        """Write what the promise follows from, for ``scripts/dphmm-verify``.

        Losses stand in it where they are the sums of the budgets, as of times that do not follow from each other.

        Parameters
        ----------
        path
            The certificate.
        overwrite
            Whether one that exists may be replaced.

        Raises
        ------
        OutputError
            When the file exists or cannot be written.
        """
        budget = self.series.budget
        marks = budget.timeline.landmark
        sums = budget.epsilons[marks].sum() + np.where(marks, 0.0, budget.epsilons)
        are_sums = np.allclose(self.losses, sums, rtol=len(sums) * np.finfo(np.float64).eps, atol=0)
        with stream_certificate(path, "landmarks", overwrite) as file:
            file.landmarks(budget.epsilon, budget.epsilons, marks, self.losses if are_sums else None)

    def facts(self) -> dict[str, Any]:
        """What it amounts to and promises.

        Returns
        -------
        dict
            Names of facts → plain JSON values.
        """
        budget, worst = self.series.budget, float(self.losses.max())
        bounded, spent = bool(np.isfinite(worst)), float(budget.spent)
        promise = {
            "releases_of_landmarks_and_one_more_from_neighbours": factor_in_words(spent),
            "what_all_releases_tell_of_them": factor_in_words(worst) if self.moves_known else _UNKNOWN,
        }
        return {
            "scheme": self.scheme.name,
            "timestamps": len(budget.timeline),
            "landmarks": int(budget.timeline.landmark.sum()),
            "published": int(self.series.published.sum()),
            "exact": self.series.exact,
            "epsilon": budget.epsilon,
            "spent_by_landmarks_and_one_more": spent,
            "loss_greatest": worst if bounded else None,
            "loss_is_bounded": bounded,
            **unless_seeded(promise, self.is_private),
        }


@checked
def landmark_series(
    source: TimedTable | str | Path,
    sensitivity: float,
    epsilon: float,
    landmarks: Moments = (),
    scheme: Scheme = Scheme(),
    *,
    mechanism: Literal["lattice", "laplace"] = "lattice",
    spacing: Rational | None = None,
    backward: Matrix | None = None,
    forward: Matrix | None = None,
    initial: npt.ArrayLike | Path | None = None,
    seed: int | None = None,
) -> Landmarked:
    """Release a series of values with noise for a sensitivity, as ``dphmm landmarks --sensitivity`` does.

    All landmarks together with any one regular time are epsilon-private where data of different times are independent;
    where they are not, `Landmarked.losses` bound what is disclosed of them.

    Parameters
    ----------
    source
        A table of values by time, or its file.
    sensitivity
        By how much the values of a time may change, in the sum of absolute differences.
    epsilon
        Spent by all landmarks and any one regular time together.
    landmarks
        Named: some of the times.
    scheme
        How the budget is divided.
    mechanism
        ``"lattice"``, exact noise on a lattice to which values are rounded (`dphmm.landmarks.lattice`); or
        ``"laplace"``, double-precision numbers, as in the paper.
    spacing
        The step of the lattice, in the unit of the values; left out, about a thousandth of the sensitivity.
    backward, forward
        For losses: matrices of Pr(time before | time) and Pr(time after | time).
    initial
        For losses, with `forward` and in place of `backward`: the distribution of the first time, or its file. The
        backward matrix of each step follows by Bayes' rule.
    seed
        Left out, the operating system's randomness. A seed makes releases repeatable, hence not private.

    Returns
    -------
    Landmarked
        The releases, and what they tell of the landmarks at most.

    Raises
    ------
    ConfigurationError
        When a column has a name of the output's own, arguments do not go together, or landmarks are to be found where
        there are no places.
    LandmarkError, TimeOrderError, BudgetError, StochasticError
        When landmarks are not among the times, or not in order; when budgets or matrices are none.
    DataFileError
        When a file cannot be read.

    Examples
    --------
    >>> import numpy as np
    >>> from dphmm.jobs import Scheme, landmark_series
    >>> from dphmm.tables import TimedTable
    >>> pulse = TimedTable(np.arange(1, 6), {"beats": np.array([71, 75, 92, 88, 70])})
    >>> done = landmark_series(pulse, 20, epsilon=3, landmarks=[3, 4], scheme=Scheme("uniform"))
    >>> done.losses.tolist()
    [3.0, 3.0, 2.0, 2.0, 3.0]
    """
    check_epsilon(epsilon)
    if mechanism != "lattice" and spacing is not None:
        raise ConfigurationError(f"spacing is {spacing}; it goes with mechanism 'lattice', not with {mechanism!r}")
    _check_choice("mechanism", mechanism, ("lattice", "laplace"))
    noise = lattice(sensitivity, spacing, seed) if mechanism == "lattice" else laplace(sensitivity, seed)
    table = source if isinstance(source, TimedTable) else TimedTable.read(source)
    clash = [name for name in table.columns if name in _OWN_COLUMNS]
    if clash:
        name = "the table" if isinstance(source, TimedTable) else str(source)
        raise ConfigurationError(f"{name}: column {clash[0]!r} is one of the output's own; call it otherwise")
    marks = moments_of(landmarks, table.times)
    budget = scheme.allocate(table.times, marks, epsilon, sensitivity, seed)
    past, future = as_matrix(backward), as_matrix(forward)
    if initial is not None:
        if past is not None or future is None:
            raise ConfigurationError("initial makes the backward matrices from forward; give that, and no backward")
        past = reverses(future, read_numbers(initial) if isinstance(initial, Path) else initial, len(table))
    leakage(table.times, marks, np.zeros(len(table)), past if initial is None else None, future)  # refuses what is none
    out = release_series(table.matrix(list(table.columns)), budget, noise)
    values = dict(zip(table.columns, out.values.T, strict=True))
    losses = leakage(table.times, marks, out.budget.epsilons, past, future)
    known = past is not None and future is not None
    return Landmarked(scheme, out, values, losses, seed is None, moves_known=known)


@checked
def landmark_planar(
    data: DataLike,
    unit: float,
    centre: tuple[float, float],
    epsilon: float,
    landmarks: Moments = (),
    scheme: Scheme = Scheme(),
    *,
    step_seconds: float | None = None,
    mechanism: Literal["lattice", "planar-laplace"] = "lattice",
    spacing: Rational = METRE,
    bbox: tuple[float, float, float, float] | None = None,
    seed: int | None = None,
) -> Landmarked:
    """Release one person's trajectory with noise for a distance, as ``dphmm landmarks --unit`` does.

    Parameters
    ----------
    data
        One person's places.
    unit
        Budgets are about places at most this many kilometres apart, and in proportion about those farther apart.
    centre
        Latitude and longitude of a place near, the same for every person.
    epsilon, landmarks, scheme, seed
        As in `landmark_series`; landmarks may also be found.
    step_seconds
        Put the trajectory on this clock first.
    mechanism
        ``"lattice"``, exact noise on a lattice to which places are rounded (`dphmm.landmarks.planar_lattice`); or
        ``"planar-laplace"``, double-precision numbers, as in the papers.
    spacing
        The step of the lattice, kilometres.
    bbox
        South, west, north and east, degrees, chosen without looking at the person: a value outside is moved to the
        border, which tells nothing more. Left out, values may lie anywhere on the Earth, and have no degrees beyond the
        plane's image of it.

    Returns
    -------
    Landmarked
        The releases, and what they tell of the landmarks at most.

    Raises
    ------
    CoordinateError
        When the box is none.
    ConfigurationError
        When there are several people, or the mechanism is another.
    LandmarkError
        When landmarks are not among the times, or none is found.
    DphmmError
        As the data and the scheme say.

    Examples
    --------
    >>> from dphmm.jobs import Data, Find, Scheme, landmark_planar
    >>> person, home = Data(("data/sample/geolife",), users=("000",)), Find("home", utc_offset=-2)
    >>> done = landmark_planar(person, 0.2, (45, -30), 5, home, Scheme("skip"), step_seconds=1800)
    >>> done.facts()["landmarks"] > 0, done.facts()["loss_greatest"]
    (True, 5.0)
    """
    _check_choice("mechanism", mechanism, ("lattice", "planar-laplace"))
    if not isinstance(centre, tuple | list) or len(centre) != 2:
        raise ConfigurationError(f"centre is {shorten(centre)}; give a latitude and a longitude")
    check_epsilon(epsilon)
    noise = planar_lattice(unit, spacing, seed) if mechanism == "lattice" else planar_laplace(unit, seed)
    plane, box = LocalProjection(*centre), None if bbox is None else check_box(bbox)
    people = Data.from_any(data).read()
    person = _one_person(people)
    track = person if step_seconds is None else person.resample(step_seconds)
    points = plane.to_plane(track.latitude, track.longitude)
    marks = moments_of(landmarks, track.times, points)
    out = release_series(points, scheme.allocate(track.times, marks, epsilon, unit, seed), noise)
    losses = leakage(track.times, marks, out.budget.epsilons)
    left = len(person) - len(track)
    dropped = (*people.left_out, *([Dropped(SAME_TICK, left, 1)] if left else []))
    return Landmarked(scheme, out, _degrees(out.values, plane, box), losses, seed is None, dropped, moves_known=False)


def landmark_engine(
    data: DataLike,
    model: Model,
    settings: ReleaseSettings,
    landmarks: Moments = (),
    scheme: Scheme = Scheme(),
    *,
    allow_own_model: bool = False,
    bbox: tuple[float, float, float, float] | None = None,
    seed: int | None = None,
) -> Landmarked:
    """Release one person's trajectory through the engine, as ``dphmm landmarks --policy`` does.

    Parameters
    ----------
    data
        One person's places.
    model
        The public model; losses are under it.
    settings
        How places are released. Its epsilon is spent by all landmarks and any one regular time together.
    landmarks, scheme, seed
        As in `landmark_planar`.
    allow_own_model
        Whether to release people whose own data the model has seen; see `dphmm.jobs.models`.
    bbox
        As in `landmark_planar`.

    Returns
    -------
    Landmarked
        The releases, and what they tell of the landmarks at most.

    Raises
    ------
    ConfigurationError
        When there are several people, no place lies in the model's region, or the model was learned from the person.
    LandmarkError
        When landmarks are not among the times, or none is found.
    DphmmError
        As the data, the model's file, the policy and the engine say.

    Examples
    --------
    >>> from dphmm import ReleaseSettings
    >>> from dphmm.jobs import Data, Scheme, landmark_engine, learn, region
    >>> space, town = region(bbox=(44.97, -30.04, 45.03, -29.96), cell=2), "data/sample/geolife"
    >>> model = learn(Data((town,), exclude_users=("002",)), space, 600, 3600, smoothing=0.5).model
    >>> settings = ReleaseSettings(policy="complete", epsilon=2)
    >>> done = landmark_engine(Data((town,), users=("002",)), model, settings, scheme=Scheme("uniform"))
    >>> done.facts()["spent_by_landmarks_and_one_more"]
    2.0
    """
    box = None if bbox is None else check_box(bbox)
    learned = load_model(model)
    mobility = Mobility.from_source(learned)  # refuses a model of several matrices
    space, releaser = learned.space, settings.engine(learned, seed)
    people, _ = read_others(data, model, learned, allow_own_model)
    track = _one_person(people).resample(learned.step)
    states, away = located(space, track.latitude, track.longitude, settings.outside)
    if away.all():
        raise ConfigurationError("no place of the data lies in the model's region; learn a model of that region")
    inside = states != OUTSIDE
    times, slots = track.times[inside], track.slots[inside]
    points = space.projection.to_plane(track.latitude[inside], track.longitude[inside])
    marks = moments_of(landmarks, times, points)
    scale = noise_scale(releaser) if scheme.name == "adaptive" else 1.0
    budget = scheme.allocate(times, marks, settings.epsilon, scale, seed)
    out, costs = release_places(releaser, states[inside], slots, budget)
    losses = losses_on_clock(out.budget.timeline, slots, costs, mobility)
    dropped = people.dropped(space, learned.step, settings.outside == "border")
    return Landmarked(scheme, out, _degrees(out.values, space.projection, box), losses, seed is None, dropped)


def _one_person(people: People) -> Trajectory:
    if len(people.trajectories) > 1:
        raise ConfigurationError(
            f"there are {len(people.trajectories)} people; say whose landmarks with --users, one name"
        )
    return people.trajectories[0]


def _degrees(points: FloatArray, plane: LocalProjection, box: Box | None = None) -> dict[str, FloatArray]:
    """Degrees of points of the plane, within a box; NaN where without one a draw lies beyond the image of the Earth."""
    if box is not None:
        south, west, north, east = box
        width = (east - west) % 360.0
        sides = np.meshgrid(np.linspace(west, west + width, 65), np.linspace(south, north, 65))
        image = plane.to_plane(sides[1].ravel(), (sides[0].ravel() + 180.0) % 360.0 - 180.0)
        points = np.clip(points, image.min(axis=0), image.max(axis=0))
    found = np.full(points.shape, np.nan)
    for row, point in enumerate(points):
        with suppress(CoordinateError):
            found[row] = plane.to_latlon(point)[0]
    if box is not None:
        east_of = (found[:, 1] - west) % 360.0  # of the box's western side
        beyond = east_of > width
        nearer_west = 360.0 - east_of < east_of - width
        found[:, 1] = np.where(beyond, np.where(nearer_west, west, east), found[:, 1])
        found[:, 0] = np.clip(found[:, 0], south, north)
    return {"latitude": found[:, 0], "longitude": found[:, 1]}


def release_places(
    releaser: Releaser, states: npt.ArrayLike, slots: npt.ArrayLike, scheme: LandmarkBudget | Adaptive
) -> tuple[ReleasedSeries, FloatArray]:
    """Release a person's states under a landmark scheme, with each step's budget from the scheme.

    Where the scheme gives the last release again the engine is not called: nothing is drawn, nothing is spent, and
    the true state is not looked at. Its belief moves on by the steps of the clock when it is called next.

    Parameters
    ----------
    releaser
        An engine; it starts anew.
    states
        ``(T,)`` true states.
    slots
        ``(T,)`` strictly increasing integers: the steps of the model's clock to which the states belong.
    scheme
        Over the same ``T`` timestamps: fixed budgets, or an `Adaptive` that has not begun.

    Returns
    -------
    series
        The released measurements ``(T, d)``, which of them are fresh, and the budget, proved sound. Public.
    costs
        ``(T,)``: what each release may tell about *any* two possible states; zero where nothing was drawn. A record's
        ``constrained_factor * epsilon`` (Theorem 6.3 of the DPHMM paper), infinite where a release can rule a possible
        state out. The scheme's own budgets are about the policy's edges.

    Raises
    ------
    TimeOrderError
        When the slots are not strictly increasing integers, or not as many as the states.
    CoordinateError, BudgetError
        As `dphmm.landmarks.release_series`.
    StateError, AlreadyKnownError
        As `Releaser.release`.
    """
    true, clock = np.asarray(states), np.asarray(slots)
    if clock.shape != true.shape or clock.ndim != 1 or clock.dtype.kind != "i" or (np.diff(clock) <= 0).any():
        raise TimeOrderError(
            f"slots have shape {clock.shape} and type {clock.dtype} for {true.size} states; give increasing integers"
        )
    costs = np.zeros(true.size)
    last: list[int] = []

    def draw(row: FloatArray, epsilon: float) -> FloatArray:
        at = int(row[0])
        steps = int(clock[at]) - last[-1] if last else 1
        record = releaser.release(int(true[at]), epsilon, steps)
        last.append(int(clock[at]))
        costs[at] = record.constrained_epsilon
        return np.array(record.released)

    releaser.restart()
    return release_series(np.arange(true.size), scheme, Noise(releaser.settings.mechanism, draw)), costs


def noise_scale(releaser: Releaser) -> float:
    """A length with which `Adaptive` compares the engine's releases: the noise body's root mean square radius.

    Of the body at the first step, which is public, in the unit of the measurements: the noise of budget ε is of the
    order of this over ε. Where components have bodies of their own, their root mean square by the belief.

    Raises
    ------
    InvalidInputError
        When the engine releases the first state as it is, without noise.
    AlreadyKnownError
        As `Releaser.plan`.
    """
    releaser.restart()
    prior = releaser.prior()
    protection = releaser.plan(prior).protection
    squares = np.array([part.hull.mean_squared_radius for part in protection.parts])
    possible = protection.part_of >= 0
    squared = float(np.average(squares[protection.part_of[possible]], weights=prior.probabilities[possible]))
    if squared == 0:
        raise InvalidInputError("the first release has no noise, so there is no scale to compare changes with")
    return sqrt(squared)


def losses_on_clock(line: Timeline, slots: IntArray, costs: FloatArray, known: Mobility = UNKNOWN) -> FloatArray:
    """What is disclosed of all landmarks and each timestamp, where timestamps lie several steps of the clock apart.

    The steps in between are regular timestamps at which nothing is spent: leakage decays through them. The backward
    matrix of each step follows from the distribution at that step; as for the engine, the first one with a release is
    where the initial distribution holds.

    Parameters
    ----------
    line
        Timestamps and landmarks, ``T``.
    slots
        ``(T,)`` strictly increasing steps of the clock of the matrices.
    costs
        ``(T,)`` what each timestamp's release tells about any two states; zero where nothing was drawn.
    known
        How the person moves, as far as the adversary knows.

    Returns
    -------
    FloatArray
        ``(T,)``; infinite everywhere when a cost is infinite, which is an upper bound.
    """
    if not np.isfinite(costs).all():
        return np.full(len(line), np.inf)
    at = np.asarray(slots, dtype=np.int64) - int(slots[0])
    whole: npt.NDArray[Any] = np.arange(int(at[-1]) + 1)
    spent = np.zeros(whole.size)
    spent[at] = costs
    if known.transition is None:
        return leakage(whole, at[line.landmark], spent)[at]
    first = int(np.argmax(spent > 0))
    backward = chain(repeat(None, first), known.pasts(whole.size - first, highest(spent)))
    return leakage(whole, at[line.landmark], spent, backward, known.transition)[at]
