"""Release of series and trajectories with joint protection of landmarks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, repeat
from math import sqrt
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.certificate.streams import open_stream_certificate
from dphmm.errors import (
    ConfigurationError,
    CoordinateError,
    DataFileError,
    InvalidInputError,
    LandmarkError,
    TimeOrderError,
)
from dphmm.formatting import Result, describe_ratio_bound, void_guarantees_if_seeded
from dphmm.jobs.input_data import SAME_TIMESTEP, Data, DataLike, Dropped, UserTracks
from dphmm.jobs.model.loading import Model, load_model
from dphmm.jobs.model.mobility import UNKNOWN, Matrix, Mobility, as_matrix
from dphmm.jobs.model.training_users import read_unseen_users
from dphmm.jobs.progress import ProgressCallback, suppress_progress
from dphmm.landmarks import (
    Adaptive,
    LandmarkBudget,
    Noise,
    ReleasedSeries,
    Timeline,
    laplace_noise,
    lattice_noise,
    leakage,
    planar_laplace,
    planar_lattice,
    release_series,
    repeated_places,
    skip_scheme,
    stay_points,
    uniform_scheme,
)
from dphmm.landmarks.budget_schemes import Change, Rate
from dphmm.landmarks.noisy_series import DEFAULT_SPACING_KM
from dphmm.landmarks.stays import StayMinutes, StayRadius, UtcOffset
from dphmm.leakage.input_files import read_numbers
from dphmm.leakage.stream_leakage import sum_budgets_upwards
from dphmm.mechanisms.exact_sampling import Rational
from dphmm.model import reverse_by_step
from dphmm.random import derive_seed
from dphmm.release.engine import Releaser, ReleaseSettings
from dphmm.release.trajectory_release import locate_states
from dphmm.space import OUTSIDE, LocalProjection, Trajectory
from dphmm.space.grid import Box, check_box
from dphmm.space.projection import wrap_longitude
from dphmm.tables import TimedTable, content_lines, parse_times
from dphmm.tables.values import Times, shorten
from dphmm.validation import NoiseEpsilon, Seconds, SeedOrGenerator, check_arguments

Rule = Literal["stays", "repeated", "home", "work", "home-and-work"]


@check_arguments
@dataclass(frozen=True)
class LandmarkFinder:
    """A rule that finds landmarks in the user's own trajectory. It reads true locations.

    Parameters
    ----------
    rule
        All ``"stays"``, stays at places with several stays (``"repeated"``), or stays at ``"home"``, at ``"work"``, or
        at both (``"home-and-work"``).
    radius_km
        Radius of a stay or place, kilometres.
    minutes
        Minimum duration of a stay, minutes.
    utc_offset
        Hours by which local time is ahead of UTC, for home and work.

    Raises
    ------
    ConfigurationError, BudgetError
        When the rule is unknown, or the offset, radius or minutes are out of range.
    """

    rule: Rule
    radius_km: StayRadius = 0.2
    minutes: StayMinutes = 20.0
    utc_offset: UtcOffset = 0.0

    def find_landmarks(self, times: npt.ArrayLike, points: FloatArray) -> BoolArray:
        """Return a mask of the fixes of a trajectory that are landmarks.

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
            When there are no landmarks.
        DphmmError
            As `dphmm.landmarks.stay_points` and `dphmm.landmarks.repeated_places`.

        Examples
        --------
        >>> times = np.datetime64("2024-03-07T08:00") + np.arange(4) * np.timedelta64(15, "m")
        >>> LandmarkFinder("stays").find_landmarks(times, np.array([[0, 0], [0, 0.1], [0.1, 0], [3, 0]])).tolist()
        [True, True, True, False]
        """
        stays = stay_points(times, points, self.radius_km, self.minutes)
        chosen = None
        if self.rule != "stays":
            places = repeated_places(stays, self.radius_km, self.utc_offset)
            wanted = [getattr(places, name) for name in ("home", "work") if name in self.rule]  # -1: no place
            chosen = np.isin(places.place, wanted) if wanted else places.visits[places.place] > 1
        mask = stays.mask(chosen)
        if not mask.any():
            raise LandmarkError(
                f"--find {self.rule}: no stay within {self.radius_km:g} km for {self.minutes:g} minutes: use a larger "
                "--radius or fewer --minutes"
            )
        return mask


# Landmarks: a finder, a subset of the timestamps (times or strings), or a file with one time per line.
LandmarkSource = LandmarkFinder | Sequence[Any] | npt.NDArray[Any] | Path


def parse_landmarks(landmarks: LandmarkSource, timestamps: Times, points: FloatArray | None = None) -> Times:
    """Return landmarks as times of the timestamps' type. Can be empty.

    Parameters
    ----------
    landmarks
        The landmarks.
    timestamps
        Timestamps of the series or trajectory.
    points
        ``(T, 2)`` locations in which a finder searches, kilometres.

    Raises
    ------
    ConfigurationError
        When they are a finder and there are no locations.
    DataFileError
        When the file cannot be read, or is empty.
    LandmarkError
        When a landmark is not a time, numbers are mixed with instants, or no landmark is found.
    """
    if isinstance(landmarks, LandmarkFinder):
        if points is None:
            raise ConfigurationError("landmarks of a table of values must be named: finding them needs locations")
        return np.asarray(timestamps[landmarks.find_landmarks(timestamps, points)])
    if isinstance(landmarks, Path):
        file = landmarks
        landmarks = [line for _, line in content_lines(file) if line.lower() != "time"]
        if not landmarks:
            raise DataFileError(file, "contains no landmark; write one time per line")
    if len(landmarks) == 0:
        return np.zeros(0, dtype=timestamps.dtype)
    times = np.asarray(landmarks)
    if times.dtype.kind in "US":
        try:
            times = parse_times(times.tolist())
        except ValueError as problem:
            raise LandmarkError(f"landmarks: {problem}") from None
    if (times.dtype.kind == "M") != (timestamps.dtype.kind == "M"):
        raise LandmarkError(
            f"landmarks must have the type of the timestamps, such as {timestamps[0]}, got {landmarks[0]}"
        )
    return times


_UNKNOWN_RATIO = "unknown without transition matrices of both directions"
SchemeName = Literal["skip", "uniform", "adaptive"]
_OUTPUT_COLUMNS = ("landmark", "published", "is_exact", "epsilon", "loss")


@check_arguments
@dataclass(frozen=True)
class Scheme:
    """The allocation of the budget to landmarks and regular timestamps. See `dphmm.landmarks`.

    Parameters
    ----------
    name
        ``"skip"``, ``"uniform"`` or ``"adaptive"``.
    rate, change, min_rate
        For the adaptive scheme: initial probability of publishing, its relative change, and its lower bound.

    Raises
    ------
    ConfigurationError
        When the name is unknown, or a rate is invalid.
    """

    name: SchemeName = "adaptive"
    rate: Rate = 1.0
    change: Change = 0.2
    min_rate: Rate = 0.1

    def __post_init__(self) -> None:
        self.allocate(np.arange(1), (), 1.0, 1.0, 0)  # raises for invalid rates

    def allocate(
        self, times: npt.ArrayLike, landmarks: npt.ArrayLike, epsilon: float, scale: float, rng: SeedOrGenerator | None
    ) -> LandmarkBudget | Adaptive:
        """Return the budgets, or the adaptive scheme, for these timestamps.

        Parameters
        ----------
        times, landmarks, epsilon
            As in `dphmm.landmarks.timeline`, and the bound on the budget of ``L ∪ {t}`` for every t.
        scale
            The length with which the adaptive scheme compares changes.
        rng
            Seed or generator of the adaptive scheme's coins. Defaults to the operating system's randomness.

        Returns
        -------
        LandmarkBudget or Adaptive
            Fixed budgets, or an unused adaptive scheme.
        """
        if self.name != "adaptive":
            return {"skip": skip_scheme, "uniform": uniform_scheme}[self.name](times, landmarks, epsilon)
        # Independent of the noise's stream.
        coins = None if rng is None else np.random.default_rng([derive_seed(rng), 1])
        return Adaptive(times, landmarks, epsilon, scale, self.rate, self.change, self.min_rate, rng=coins)


@dataclass(frozen=True)
class LandmarkResult(Result):
    """The result of a release under a scheme, public with the list of landmarks.

    Parameters
    ----------
    scheme
        The scheme.
    series
        Releases, which of them are new, and the verified budget: timestamps, landmarks and epsilon of each timestamp.
    values
        Name → ``(T,)`` released values; locations in degrees.
    losses
        ``(T,)`` upper bounds on the joint leakage about all landmarks and each timestamp.
    is_private
        Whether noise came from the operating system. Seeded noise provides no privacy.
    dropped
        Fixes that were dropped or moved to the border, by reason; see `dphmm.jobs.UserTracks.count_dropped_fixes`.
        Private, unlike the other fields.
    uses_transitions
        Whether the losses include the correlation of successive data in both directions. Without transitions they are
        sums of budgets, which are bounds only if the data of different times are independent.
    """

    scheme: Scheme
    series: ReleasedSeries
    values: dict[str, FloatArray]
    losses: FloatArray
    is_private: bool = True
    dropped: tuple[Dropped, ...] = ()
    uses_transitions: bool = True

    @property
    def table(self) -> TimedTable:
        """The public result as a table with one row per timestamp."""
        budget = self.series.budget
        line = budget.timeline
        exact = np.full(len(budget.timeline), self.series.exact)
        columns = (line.landmark, self.series.published, exact, budget.epsilons, self.losses)
        return TimedTable(line.timestamps, {**dict(zip(_OUTPUT_COLUMNS, columns, strict=True)), **self.values})

    def certify(self, path: str | Path, overwrite: bool = False) -> None:
        """Write a certificate of the guarantee for ``scripts/dphmm-verify``.

        It contains the losses if they are the sums of the budgets, as for independent times.

        Parameters
        ----------
        path
            The certificate.
        overwrite
            Whether an existing file can be replaced.

        Raises
        ------
        OutputError
            When the file exists or cannot be written.
        """
        budget = self.series.budget
        marks = budget.timeline.landmark
        sums = budget.epsilons[marks].sum() + np.where(marks, 0.0, budget.epsilons)
        are_sums = np.allclose(self.losses, sums, rtol=len(sums) * np.finfo(np.float64).eps, atol=0)
        with open_stream_certificate(path, "landmarks", overwrite) as file:
            file.certify_landmarks(budget.epsilon, budget.epsilons, marks, self.losses if are_sums else None)

    def _derive_fields(self) -> dict[str, Any]:
        budget = self.series.budget
        worst = float(self.losses.max())
        bounded = bool(np.isfinite(worst))
        spent = float(budget.spent)
        promise = {
            "likelihood_ratio_landmarks_and_one_timestamp": describe_ratio_bound(spent),
            "likelihood_ratio_all_releases": describe_ratio_bound(worst) if self.uses_transitions else _UNKNOWN_RATIO,
        }
        return {
            "scheme": self.scheme.name,
            "num_timestamps": len(budget.timeline),
            "num_landmarks": int(budget.timeline.landmark.sum()),
            "num_published": int(self.series.published.sum()),
            "is_exact": self.series.exact,
            "epsilon_landmarks_and_one_timestamp": spent,
            "max_leakage": worst if bounded and self.uses_transitions else None,
            "is_leakage_bounded": bounded if self.uses_transitions else None,
            **void_guarantees_if_seeded(promise, self.is_private),
        }


@check_arguments
def release_landmark_series(
    source: TimedTable | str | Path,
    sensitivity: float,
    epsilon: NoiseEpsilon,
    landmarks: LandmarkSource = (),
    scheme: Scheme = Scheme(),
    *,
    mechanism: Literal["lattice", "laplace"] = "lattice",
    spacing: Rational | None = None,
    backward: Matrix | None = None,
    forward: Matrix | None = None,
    initial: npt.ArrayLike | Path | None = None,
    rng: SeedOrGenerator | None = None,
) -> LandmarkResult:
    """Release a series of values, as ``dphmm landmarks --sensitivity`` does.

    All landmarks together with any one regular time are epsilon-private if the data of different times are independent.
    If they are correlated, `LandmarkResult.losses` bound the joint leakage under `backward` and `forward`.

    Parameters
    ----------
    source
        A table of values by time, or its file.
    sensitivity
        The largest change of the values of one time, in the sum of absolute differences.
    epsilon
        Epsilon of all landmarks and any one regular time together.
    landmarks
        A subset of the times.
    scheme
        The allocation of the budget.
    mechanism
        ``"lattice"`` for exact noise on a lattice to which values are rounded (`dphmm.landmarks.lattice_noise`), or
        ``"laplace"`` for noise in double precision, as in the paper.
    spacing
        The step of the lattice, in the unit of the values. Defaults to about a thousandth of the sensitivity.
    backward, forward
        For losses: matrices of Pr(time before | time) and Pr(time after | time).
    initial
        For losses, with `forward` and instead of `backward`: the distribution of the first time, or its file. The
        backward matrix of each step follows by Bayes' rule.
    rng
        Defaults to the operating system's randomness. A seed or generator makes releases repeatable, hence not private.

    Returns
    -------
    LandmarkResult
        The releases, and bounds on the leakage about the landmarks.

    Raises
    ------
    ConfigurationError
        When a column has a name of the output, arguments cannot be combined, or landmarks are to be found without
        locations.
    LandmarkError, TimeOrderError, BudgetError, StochasticError
        When landmarks are not among the times or not in order, or budgets or matrices are invalid.
    DataFileError
        When a file cannot be read.

    Examples
    --------
    >>> import numpy as np
    >>> from dphmm.jobs import Scheme, release_landmark_series
    >>> from dphmm.tables import TimedTable
    >>> pulse = TimedTable(np.arange(1, 6), {"beats": np.array([71, 75, 92, 88, 70])})
    >>> done = release_landmark_series(pulse, 20, epsilon=3, landmarks=[3, 4], scheme=Scheme("uniform"))
    >>> done.losses.tolist()
    [3.0, 3.0, 2.0, 2.0, 3.0]
    """
    seed = None if rng is None else derive_seed(rng)
    _check_spacing(mechanism, spacing)
    noise = lattice_noise(sensitivity, spacing, seed) if mechanism == "lattice" else laplace_noise(sensitivity, seed)
    table = source if isinstance(source, TimedTable) else TimedTable.read(source)
    clash = [name for name in table.columns if name in _OUTPUT_COLUMNS]
    if clash:
        name = "the table" if isinstance(source, TimedTable) else str(source)
        raise ConfigurationError(f"{name}: columns must not have names of the output, got {clash[0]!r}: rename it")
    marks = parse_landmarks(landmarks, table.times)
    budget = scheme.allocate(table.times, marks, epsilon, sensitivity, seed)
    past = as_matrix(backward)
    future = as_matrix(forward)
    if initial is not None:
        if past is not None or future is None:
            raise ConfigurationError("initial derives the backward matrices from forward: use forward without backward")
        past = reverse_by_step(future, read_numbers(initial) if isinstance(initial, Path) else initial, len(table))
    leakage(
        table.times, marks, np.zeros(len(table)), past if initial is None else None, future
    )  # raises for invalid matrices
    out = release_series(table.matrix(list(table.columns)), budget, noise)
    values = dict(zip(table.columns, out.values.T, strict=True))
    losses = leakage(table.times, marks, out.budget.epsilons, past, future)
    has_matrices = past is not None and future is not None
    return LandmarkResult(scheme, out, values, losses, seed is None, uses_transitions=has_matrices)


def _check_spacing(mechanism: str, spacing: Rational | None) -> None:
    if mechanism != "lattice" and spacing is not None:
        raise ConfigurationError(f"spacing cannot be combined with mechanism {mechanism!r}: it needs 'lattice'")


@check_arguments
def release_track_with_planar_noise(
    data: DataLike,
    unit_km: float,
    centre: tuple[float, float],
    epsilon: NoiseEpsilon,
    landmarks: LandmarkSource = (),
    scheme: Scheme = Scheme(),
    *,
    step_seconds: Seconds | None = None,
    mechanism: Literal["lattice", "planar-laplace"] = "lattice",
    spacing: Rational | None = None,
    bbox: tuple[float, float, float, float] | None = None,
    rng: SeedOrGenerator | None = None,
) -> LandmarkResult:
    """Release one user's trajectory with planar noise, as ``dphmm landmarks --unit`` does.

    Parameters
    ----------
    data
        Locations of one user.
    unit_km
        Budgets are for locations at most this many kilometres apart, and proportional for larger distances.
    centre
        Latitude and longitude of a nearby point, identical for every user.
    epsilon, landmarks, scheme, rng
        As in `release_landmark_series`; landmarks can also be found.
    step_seconds
        Resample the trajectory to this clock first, seconds.
    mechanism
        ``"lattice"`` for exact noise on a lattice to which locations are rounded (`dphmm.landmarks.planar_lattice`), or
        ``"planar-laplace"`` for noise in double precision, as in the papers.
    spacing
        The step of the lattice, kilometres. Defaults to `dphmm.landmarks.noisy_series.DEFAULT_SPACING_KM`.
    bbox
        South, west, north and east, degrees, chosen independently of the user. A value outside is moved to the border,
        which is post-processing. Defaults to the Earth; values beyond the image of the plane then have no degrees.

    Returns
    -------
    LandmarkResult
        The releases, and bounds on the leakage about the landmarks.

    Raises
    ------
    CoordinateError
        When the box is invalid.
    ConfigurationError
        When there are several users, or the mechanism is unknown.
    LandmarkError
        When landmarks are not among the times, or none is found.
    DphmmError
        When the data or the scheme are invalid.

    Examples
    --------
    >>> from dphmm.jobs import Data, LandmarkFinder, Scheme, release_track_with_planar_noise
    >>> user, home = Data(("data/sample/geolife",), users=("000",)), LandmarkFinder("home", utc_offset=-2)
    >>> done = release_track_with_planar_noise(user, 0.2, (45, -30), 5, home, Scheme("skip"), step_seconds=1800)
    >>> done.to_dict()["num_landmarks"] > 0, done.to_dict()["epsilon_landmarks_and_one_timestamp"]
    (True, 5.0)
    """
    seed = None if rng is None else derive_seed(rng)
    if not isinstance(centre, tuple | list) or len(centre) != 2:
        raise ConfigurationError(f"centre must be a latitude and a longitude, got {shorten(centre)}")
    _check_spacing(mechanism, spacing)
    noise = (
        planar_lattice(unit_km, DEFAULT_SPACING_KM if spacing is None else spacing, seed)
        if mechanism == "lattice"
        else planar_laplace(unit_km, seed)
    )
    plane = LocalProjection(*centre)
    box = None if bbox is None else check_box(bbox)
    user_tracks = Data.from_any(data).read()
    trajectory = _get_single_user(user_tracks)
    track = trajectory if step_seconds is None else trajectory.resample(step_seconds)
    points = plane.to_plane(track.latitude, track.longitude)
    marks = parse_landmarks(landmarks, track.times, points)
    out = release_series(points, scheme.allocate(track.times, marks, epsilon, unit_km, seed), noise)
    losses = leakage(track.times, marks, out.budget.epsilons)
    left = len(trajectory) - len(track)
    dropped = (*user_tracks.not_read, *([Dropped(SAME_TIMESTEP, left, 1)] if left else []))
    return LandmarkResult(
        scheme, out, _convert_to_degrees(out.values, plane, box), losses, seed is None, dropped, uses_transitions=False
    )


def release_track_with_engine(
    data: DataLike,
    model: Model,
    settings: ReleaseSettings,
    landmarks: LandmarkSource = (),
    scheme: Scheme = Scheme(),
    *,
    allow_training_users: bool = False,
    bbox: tuple[float, float, float, float] | None = None,
    rng: SeedOrGenerator | None = None,
    progress: ProgressCallback = suppress_progress,
) -> LandmarkResult:
    """Release one user's trajectory with the engine, as ``dphmm landmarks --policy`` does.

    Parameters
    ----------
    data
        Locations of one user.
    model
        The public model, which also determines the losses.
    settings
        Settings of the engine. Its epsilon is that of all landmarks and any one regular time together.
    landmarks, scheme, rng
        As in `release_track_with_planar_noise`.
    allow_training_users
        Whether users of the training data can be released; see `dphmm.jobs.model.training_users`.
    bbox
        As in `release_track_with_planar_noise`.
    progress
        Shows the progress of the losses; see `dphmm.jobs.ProgressCallback`.

    Returns
    -------
    LandmarkResult
        The releases, and bounds on the leakage about the landmarks.

    Raises
    ------
    ConfigurationError
        When there are several users, no location lies in the model's region, or the model was trained on the user.
    LandmarkError
        When landmarks are not among the times, or none is found.
    DphmmError
        When the data, the model's file, the policy or the settings are invalid.

    Examples
    --------
    >>> from dphmm import ReleaseSettings
    >>> from dphmm.jobs import Data, Scheme, release_track_with_engine, learn, region
    >>> space, town = region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=2), "data/sample/geolife"
    >>> model = learn(Data((town,), exclude_users=("002",)), space, 600, 3600, smoothing=0.5).model
    >>> settings = ReleaseSettings(policy="complete", epsilon=2)
    >>> done = release_track_with_engine(Data((town,), users=("002",)), model, settings, scheme=Scheme("uniform"))
    >>> done.to_dict()["epsilon_landmarks_and_one_timestamp"]
    2.0
    """
    seed = None if rng is None else derive_seed(rng)
    box = None if bbox is None else check_box(bbox)
    learned = load_model(model)
    mobility = Mobility.from_source(learned)  # raises for a model with several matrices
    space = learned.space
    releaser = settings.engine(learned, seed)
    user_tracks, _ = read_unseen_users(data, model, learned, allow_training_users)
    track = _get_single_user(user_tracks).resample(learned.step)
    states, away = locate_states(space, track.latitude, track.longitude, settings.outside)
    if away.all():
        raise ConfigurationError("no input location lies inside the model's region: train a model that covers it")
    inside = states != OUTSIDE
    times = track.times[inside]
    slots = track.slots[inside]
    points = space.projection.to_plane(track.latitude[inside], track.longitude[inside])
    marks = parse_landmarks(landmarks, times, points)
    scale = compute_noise_scale(releaser) if scheme.name == "adaptive" else 1.0
    budget = scheme.allocate(times, marks, settings.epsilon, scale, seed)
    out, costs = release_places(releaser, states[inside], slots, budget)
    losses = bound_losses_on_clock(out.budget.timeline, slots, costs, mobility, progress)
    dropped = user_tracks.count_dropped_fixes(space, learned.step, settings.outside == "clamp")
    return LandmarkResult(
        scheme, out, _convert_to_degrees(out.values, space.projection, box), losses, seed is None, dropped
    )


def _get_single_user(user_tracks: UserTracks) -> Trajectory:
    if len(user_tracks.trajectories) > 1:
        raise ConfigurationError(
            f"landmarks must be of one user, got {len(user_tracks.trajectories)} users: choose one with --users"
        )
    return user_tracks.trajectories[0]


def _convert_to_degrees(points: FloatArray, plane: LocalProjection, box: Box | None = None) -> dict[str, FloatArray]:
    """Return degrees of points of the plane. NaN beyond the image of the Earth."""
    if box is not None:
        south, west, north, east = box
        width = (east - west) % 360.0
        sides = np.meshgrid(np.linspace(west, west + width, 65), np.linspace(south, north, 65))
        image = plane.to_plane(sides[1].ravel(), wrap_longitude(sides[0].ravel()))
        points = np.clip(points, image.min(axis=0), image.max(axis=0))
    degrees = np.full(points.shape, np.nan)
    for row, point in enumerate(points):
        with suppress(CoordinateError):
            degrees[row] = plane.to_latlon(point)[0]
    if box is not None:
        east_of = (degrees[:, 1] - west) % 360.0  # east of the box's western side
        beyond = east_of > width
        nearer_west = 360.0 - east_of < east_of - width
        degrees[:, 1] = np.where(beyond, np.where(nearer_west, west, east), degrees[:, 1])
        degrees[:, 0] = np.clip(degrees[:, 0], south, north)
    return {"latitude": degrees[:, 0], "longitude": degrees[:, 1]}


def release_places(
    releaser: Releaser, states: npt.ArrayLike, slots: npt.ArrayLike, scheme: LandmarkBudget | Adaptive
) -> tuple[ReleasedSeries, FloatArray]:
    """Release a user's states with the budgets of a landmark scheme.

    When the scheme repeats the last release, the engine is not called: no noise is sampled, no epsilon is spent, and
    the true state is not read. Its belief is propagated by the clock steps at the next call.

    Parameters
    ----------
    releaser
        An engine. It is reset.
    states
        ``(T,)`` true states.
    slots
        ``(T,)`` strictly increasing integers: the clock steps of the states.
    scheme
        Fixed budgets of these ``T`` timestamps, or an unused `Adaptive`.

    Returns
    -------
    series
        The released measurements ``(T, d)``, which of them are new, and the verified budget. Public.
    costs
        ``(T,)`` bounds on the log-likelihood ratio of each release between *any* two possible states; zero without a
        new release. This is a record's ``constrained_dp_factor * epsilon`` (Theorem 6.3 of the DPHMM paper), infinite
        if a release can rule out a possible state. The scheme's budgets are for the policy's edges.

    Raises
    ------
    TimeOrderError
        When the slots are not strictly increasing integers, or their number differs from that of the states.
    CoordinateError, BudgetError
        As `dphmm.landmarks.release_series`.
    StateError, SingletonConstraintError
        As `Releaser.release`.
    """
    true = np.asarray(states)
    clock = np.asarray(slots)
    if clock.shape != true.shape or clock.ndim != 1 or clock.dtype.kind != "i" or (np.diff(clock) <= 0).any():
        raise TimeOrderError(
            f"slots must be {true.size} increasing integers, got shape {clock.shape} and type {clock.dtype}"
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


def compute_noise_scale(releaser: Releaser) -> float:
    """Return the RMS radius of the noise body, the length scale of `Adaptive`.

    Uses the public body of the first step, in the unit of the measurements. Noise with budget ε is of the order of this
    length over ε. If components have separate bodies, the mean square is weighted by the belief.

    Raises
    ------
    InvalidInputError
        When the engine releases the first state without noise.
    SingletonConstraintError
        As `Releaser.build_plan`.
    """
    releaser.restart()
    prior = releaser.predict()
    protection = releaser.planner.build_plan(prior).protection
    squares = np.array([part.hull.mean_squared_radius for part in protection.parts])
    possible = protection.part_of >= 0
    squared = float(np.average(squares[protection.part_of[possible]], weights=prior.probabilities[possible]))
    if squared == 0:
        raise InvalidInputError("the first release has no noise: the adaptive scheme needs a noise scale")
    return sqrt(squared)


def bound_losses_on_clock(
    line: Timeline,
    slots: IntArray,
    costs: FloatArray,
    mobility: Mobility = UNKNOWN,
    progress: ProgressCallback = suppress_progress,
) -> FloatArray:
    """Bound the leakage about all landmarks and each timestamp on the model's clock.

    Clock steps between timestamps are regular timestamps with a zero budget. Leakage decays through them. The backward
    matrix of each step follows from the distribution at that step. As in the engine, the initial distribution applies
    to the first step with a release.

    Parameters
    ----------
    line
        Timestamps and landmarks, ``T``.
    slots
        ``(T,)`` strictly increasing clock steps.
    costs
        ``(T,)`` bounds on each release's log-likelihood ratio between any two states; zero without a release.
    mobility
        The mobility model that the adversary knows.
    progress
        Shows the progress; see `dphmm.jobs.ProgressCallback`.

    Returns
    -------
    FloatArray
        ``(T,)`` upper bounds; infinite everywhere if a cost is infinite.
    """
    if not np.isfinite(costs).all():
        return np.full(len(line), np.inf)
    at = np.asarray(slots, dtype=np.int64) - int(slots[0])
    whole: npt.NDArray[Any] = np.arange(int(at[-1]) + 1)
    spent = np.zeros(whole.size)
    spent[at] = costs
    if mobility.transition is None:
        return leakage(whole, at[line.landmark], spent)[at]
    first = int(np.argmax(spent > 0))
    pasts = mobility.iterate_backward_losses(whole.size - first, sum_budgets_upwards(spent))
    # Only the steps before the first landmark are computed.
    num_steps = int(at[line.landmark].min(initial=whole.size - 1)) - first
    backward = chain(repeat(None, first), progress(pasts, "Bounding losses", max(num_steps, 0)))
    return leakage(whole, at[line.landmark], spent, backward, mobility.transition)[at]
