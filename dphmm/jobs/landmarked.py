"""A series or a trajectory released so that the moments that matter are protected together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray
from dphmm.errors import ConfigurationError, CoordinateError
from dphmm.jobs.landmark_release import losses_on_clock, noise_scale, release_places
from dphmm.jobs.mobility import Matrix, Mobility, as_matrix
from dphmm.jobs.models import Model, load_model
from dphmm.jobs.moments import Moments, moments_of
from dphmm.jobs.people import Data, DataLike
from dphmm.landmarks import Adaptive, LandmarkBudget, leakage, skip, uniform
from dphmm.landmarks.series import ReleasedSeries, laplace, planar_laplace, release_series
from dphmm.leakage.accumulate import as_loss_functions
from dphmm.release.settings import ReleaseSettings
from dphmm.space.projection import LocalProjection
from dphmm.space.states import OUTSIDE
from dphmm.space.trajectory import Trajectory
from dphmm.tables import TimedTable

SchemeName = Literal["skip", "uniform", "adaptive"]
_OWN_COLUMNS = ("landmark", "published", "epsilon", "loss")


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
        For another name.
    """

    name: SchemeName = "adaptive"
    rate: float = 1.0
    change: float = 0.2
    least_rate: float = 0.1

    def __post_init__(self) -> None:
        if self.name not in get_args(SchemeName):
            raise ConfigurationError(f"scheme is {self.name!r}; choose one of {', '.join(get_args(SchemeName))}")

    def over(
        self, times: npt.ArrayLike, landmarks: npt.ArrayLike, epsilon: float, scale: float, seed: int | None
    ) -> LandmarkBudget | Adaptive:
        """The scheme over these timestamps; `scale` is the length that the adaptive one compares changes with."""
        if self.name != "adaptive":
            return {"skip": skip, "uniform": uniform}[self.name](times, landmarks, epsilon)
        coins = None if seed is None else np.random.default_rng([seed, 1])  # not the noise's own stream
        return Adaptive(times, landmarks, epsilon, scale, self.rate, self.change, self.least_rate, rng=coins)


@dataclass(frozen=True)
class Landmarked:
    """What a release under a scheme came to, all of it public; the list of landmarks counts as public too.

    Attributes
    ----------
    scheme
        Which.
    series
        What was released, where it is fresh, and the budget: timestamps, landmarks, and what each timestamp spent,
        proved sound.
    values
        Name → ``(T,)`` what was released; places in degrees.
    losses
        ``(T,)`` what the releases tell of all landmarks together with each timestamp.
    """

    scheme: Scheme
    series: ReleasedSeries
    values: dict[str, FloatArray]
    losses: FloatArray

    @property
    def table(self) -> TimedTable:
        """A row per timestamp, with all of this."""
        budget = self.series.budget
        line, own = budget.timeline, (budget.timeline.landmark, self.series.published, budget.epsilons, self.losses)
        return TimedTable(line.timestamps, {**dict(zip(_OWN_COLUMNS, own, strict=True)), **self.values})

    def facts(self) -> dict[str, Any]:
        """What it amounts to."""
        budget, worst = self.series.budget, float(self.losses.max())
        return {
            "scheme": self.scheme.name,
            "timestamps": len(budget.timeline),
            "landmarks": int(budget.timeline.landmark.sum()),
            "published": int(self.series.published.sum()),
            "epsilon": budget.epsilon,
            "spent_by_landmarks_and_one_more": float(budget.spent),
            "loss_greatest": worst if np.isfinite(worst) else None,
            "loss_is_bounded": bool(np.isfinite(worst)),
        }


def landmark_series(
    source: TimedTable | str | Path,
    sensitivity: float,
    epsilon: float,
    landmarks: Moments = (),
    scheme: Scheme = Scheme(),
    *,
    backward: Matrix | None = None,
    forward: Matrix | None = None,
    seed: int | None = None,
) -> Landmarked:
    """Release a series of values with Laplace noise, as ``dphmm landmarks --sensitivity`` does.

    All landmarks together with any one regular time are epsilon-private.

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
    backward, forward
        For losses: matrices of Pr(time before | time) and Pr(time after | time).
    seed
        Left out, the operating system's randomness. A seed makes releases repeatable, hence not private.

    Raises
    ------
    ConfigurationError
        When a column has a name of the output's own, or landmarks are to be found where there are no places.
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
    table = source if isinstance(source, TimedTable) else TimedTable.read(source)
    clash = [name for name in table.columns if name in _OWN_COLUMNS]
    if clash:
        name = "the table" if isinstance(source, TimedTable) else str(source)
        raise ConfigurationError(f"{name}: column {clash[0]!r} is one of the output's own; call it otherwise")
    noise = laplace(sensitivity, seed)
    marks = moments_of(landmarks, table.times)
    budget = scheme.over(table.times, marks, epsilon, sensitivity, seed)
    known = as_loss_functions(as_matrix(backward), as_matrix(forward))
    out = release_series(table.matrix(list(table.columns)), budget, noise)
    values = dict(zip(table.columns, out.values.T, strict=True))
    losses = leakage(table.times, marks, out.budget.epsilons, *known)
    return Landmarked(scheme, out, values, losses)


def landmark_planar(
    data: DataLike,
    unit: float,
    centre: tuple[float, float],
    epsilon: float,
    landmarks: Moments = (),
    scheme: Scheme = Scheme(),
    *,
    step_seconds: float | None = None,
    seed: int | None = None,
) -> Landmarked:
    """Release one person's trajectory with planar Laplace noise, as ``dphmm landmarks --unit`` does.

    Parameters
    ----------
    data
        One person's places.
    unit
        Budgets are about places so many kilometres apart, and in proportion about others.
    centre
        Latitude and longitude of a place near, the same whoever the person is.
    epsilon, landmarks, scheme, seed
        As in `landmark_series`; landmarks may also be found.
    step_seconds
        Put the trajectory on this clock first.

    Raises
    ------
    ConfigurationError
        When there are several people.
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
    noise, plane = planar_laplace(unit, seed), LocalProjection(*centre)
    person = _one_person(data)
    track = person if step_seconds is None else person.resample(step_seconds)
    points = plane.to_plane(track.latitude, track.longitude)
    marks = moments_of(landmarks, track.times, points)
    out = release_series(points, scheme.over(track.times, marks, epsilon, unit, seed), noise)
    losses = leakage(track.times, marks, out.budget.epsilons)
    return Landmarked(scheme, out, _degrees(out.values, plane), losses)


def landmark_engine(
    data: DataLike,
    model: Model,
    settings: ReleaseSettings,
    landmarks: Moments = (),
    scheme: Scheme = Scheme(),
    *,
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

    Raises
    ------
    ConfigurationError
        When there are several people, or no place lies in the model's region.
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
    learned = load_model(model)
    space, releaser = learned.space, settings.engine(learned, seed)
    track = _one_person(data).resample(learned.step)
    states = space.locate(track.latitude, track.longitude)
    inside = states != OUTSIDE
    if not inside.any():
        raise ConfigurationError("no place of the data lies in the model's region; learn a model of that region")
    times, slots = track.times[inside], track.slots[inside]
    points = space.projection.to_plane(track.latitude[inside], track.longitude[inside])
    marks = moments_of(landmarks, times, points)
    scale = noise_scale(releaser) if scheme.name == "adaptive" else 1.0
    budget = scheme.over(times, marks, settings.epsilon, scale, seed)
    out, costs = release_places(releaser, states[inside], slots, budget)
    known = Mobility.of(learned)
    losses = losses_on_clock(out.budget.timeline, slots, costs, known.backward, known.transition)
    return Landmarked(scheme, out, _degrees(out.values, space.projection), losses)


def _one_person(data: DataLike) -> Trajectory:
    people = Data.of(data).read().trajectories
    if len(people) > 1:
        raise ConfigurationError(f"there are {len(people)} people; say whose landmarks with --users, one name")
    return people[0]


def _degrees(points: FloatArray, plane: LocalProjection) -> dict[str, FloatArray]:
    """Degrees of points of the plane; NaN where a draw lies beyond the plane's image of the Earth."""
    found = np.full(points.shape, np.nan)
    for row, point in enumerate(points):
        try:
            found[row] = plane.to_latlon(point)[0]
        except CoordinateError:
            continue
    return {"latitude": found[:, 0], "longitude": found[:, 1]}
