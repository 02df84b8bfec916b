"""Synthetic users: trajectories sampled from a model, and their similarity to real ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from dphmm.arrays import BoolArray, IntArray
from dphmm.errors import ConfigurationError
from dphmm.formatting import Result, exported
from dphmm.jobs.input_data import Data, DataLike
from dphmm.jobs.model.loading import Model, load_model
from dphmm.jobs.model.training_users import UNLISTED_USERS, find_training_users
from dphmm.jobs.progress import ProgressCallback, suppress_progress
from dphmm.model import Crowd, MarkovModel, compare_crowds, move_probabilities, sample_paths_like, state_sequence
from dphmm.model.path_sampling import PathSampler
from dphmm.random import Rng, as_random_source
from dphmm.space.states import StateSpace
from dphmm.space.trajectory import EARLIEST, LATEST, parse_time_zone, round_to_microseconds
from dphmm.tables import check_output, create_file
from dphmm.validation import Integers, Interval, Seconds, check_arguments
from dphmm.writers.formats import check_format
from dphmm.writers.synthetic_paths import PATH_FORMATS, open_paths

# The default first day of synthetic users, a Monday.
START = "2024-01-01"

# Approximate number of locations that are in memory at a time.
_BLOCK_LOCATIONS = 1 << 20
# Beyond these limits a mistyped number would fill the disk.
_MAX_USERS = 100_000_000
_MAX_STEPS = 1 << 24
_MAX_DAYS = 100_000
_FIRST, _LAST = (int(instant.astype(np.int64)) for instant in (EARLIEST, LATEST))
# The simulated time of synthetic users.
Days = Annotated[float, Interval(0, _MAX_DAYS, "neither", "days", error=ConfigurationError)]

# A path of one timestep has no move to compare.
_MIN_PATH_LENGTH = 2


@dataclass(frozen=True)
class SynthesisResult:
    """A file of synthetic users.

    Parameters
    ----------
    output
        The file.
    num_users, steps
        The number of users, and the number of locations of each.
    first
        The time of the first location, UTC.
    model
        The content hash of the model.
    guarantee
        The guarantee of the model to its training users, as stated in the model. The file has the same guarantee.
    """

    output: Path
    num_users: int
    steps: int
    first: np.datetime64
    model: str
    guarantee: str


@dataclass(frozen=True, eq=False)
class Comparison(Result):
    """The similarity of synthetic users to real ones.

    The measures are those of `dphmm.model.mobility_statistics`: divergences from 0 (equal) to 1, except ``top_places``
    (a share) and ``rank_correlation``, for which 1 is best. They are computed from true locations, without noise.

    Parameters
    ----------
    synthetic
        The measures of synthetic users, each with the timesteps of a path of a real user.
    halves
        The measures of a random half of the real users compared with the other half: a baseline for the variation
        between users. It overestimates the variation, because halves are smaller than the whole. NaN for one real user.
    places_alone
        The measures of independent samples from the model's distribution of locations: a baseline without movement.
    num_users, stretches, places
        The number of real users, of their paths (consecutive timesteps within the region), and of locations in these.
    left_out
        The number of users excluded because the model was trained on them.
    trained_on_users
        Whether the model was trained on the real users: "no", or that it is unknown.
    log_likelihood
        The mean natural logarithm of the model's probability of the real users' steps, over possible steps.
    impossible
        The share of the steps that are impossible in the model.
    real, drawn
        The counts of real and of synthetic users. Private.
    space
        The states.
    """

    synthetic: Mapping[str, float]
    halves: Mapping[str, float]
    places_alone: Mapping[str, float]
    num_users: int
    stretches: int
    places: int
    left_out: int
    trained_on_users: str = field(metadata=exported("model_trained_on_these_users"))
    log_likelihood: float = field(metadata=exported("log_likelihood_per_step"))
    impossible: float = field(metadata=exported("impossible_steps"))
    real: Crowd = field(repr=False)
    drawn: Crowd = field(repr=False)
    space: StateSpace = field(repr=False)

    def _derive_fields(self) -> dict[str, Any]:
        columns = {"synthetic": self.synthetic, "other_real_users": self.halves, "locations_only": self.places_alone}
        measures = {name: {group: values[name] for group, values in columns.items()} for name in self.synthetic}
        counted = {"users": self.num_users, "paths": self.stretches, "locations": self.places}
        return {"compared_with": counted | {"num_excluded_users": self.left_out}, "measures": measures}


@check_arguments
def synthesize(
    model: Model,
    output: str | Path,
    num_users: Annotated[int, Integers(1, _MAX_USERS, error=ConfigurationError)] = 1000,
    days: Days = 7.0,
    start: str = START,
    *,
    rng: Rng = None,
    overwrite: bool = False,
    watch: ProgressCallback = suppress_progress,
) -> SynthesisResult:
    """Write trajectories of synthetic users, as ``dphmm synthesize`` does.

    The trajectories are sampled from the model. The file is computed from the model only, and has the same privacy
    guarantee: if the model was counted without noise, the file is not private.

    Parameters
    ----------
    model
        A model with state locations and a timestep, or its file.
    output
        A ``.csv``, ``.parquet`` or ``.gpkg`` file with user, time in UTC, latitude and longitude: one row for each user
        and timestep, at the centre of a cell. It is written atomically.
    num_users
        The number of users, at least 1.
    days
        The number of days.
    start
        The first day, such as ``"2024-01-01"``, in the time zone of the model's hours (UTC if it has none); or an
        instant, ISO 8601.
    rng
        Defaults to the operating system's randomness. A seed makes the file reproducible.
    overwrite
        Whether an existing file may be replaced.
    watch
        Progress callback; see `dphmm.jobs.ProgressCallback`.

    Returns
    -------
    SynthesisResult
        The file, and the number of users and timesteps.

    Raises
    ------
    ConfigurationError
        If the file has another extension, a number is out of range, or the days are invalid or not in the years 1 to
        9999. This is checked first.
    DataFileError
        If the file is not a model file.
    OutputError, MissingDependencyError
        If the output exists or cannot be written, or a library is missing.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from dphmm.jobs import learn, region, synthesize
    >>> space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=0.5)
    >>> model = learn("data/sample/geolife", space, step_seconds=300, time_classes="hour", zone="Europe/Lisbon").model
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = synthesize(model, f"{folder}/crowd.csv", num_users=3, days=1, rng=1)
    ...     rows = Path(folder, "crowd.csv").read_text().splitlines()
    >>> result.steps, len(rows), rows[1].split(",")[:2]
    (288, 865, ['synthetic-1', '2024-01-01T00:00:00Z'])
    """
    path = check_output(check_format(output, PATH_FORMATS), overwrite)
    learned = load_model(model)
    step = round_to_microseconds(learned.step, "step_seconds")
    first, length = find_slots(learned, days, start)
    slots = first + np.arange(length)
    sampler = PathSampler(learned, rng)
    width = len(str(num_users))
    block = max(1, _BLOCK_LOCATIONS // length)
    with create_file(path, overwrite) as part, open_paths(part, learned.space, step, slots) as add:
        for begin in watch(range(0, num_users, block), "Sampling users", -(-num_users // block)):
            count = min(block, num_users - begin)
            states = sampler.sample_state_paths(np.full(count, first), length)
            add([f"synthetic-{begin + k + 1:0{width}d}" for k in range(count)], states)
    return SynthesisResult(
        path, num_users, length, np.datetime64(first * step, "us"), learned.content_hash, _describe_guarantee(learned)
    )


@check_arguments
def find_slots(model: MarkovModel, days: Days, start: str) -> tuple[int, int]:
    """Return the first slot of synthetic users and the number of slots. See `synthesize`.

    Raises
    ------
    ConfigurationError
        If there are none or too many, or some are not in the years 1 to 9999.
    """
    step = round_to_microseconds(model.step, "step_seconds")
    length = int(days * 86_400_000_000 / step)
    if not 1 <= length <= _MAX_STEPS:
        raise ConfigurationError(f"days must be 1 to {_MAX_STEPS} steps of {model.step:g} s, got {days:g} days")
    first = -(-_parse_instant(start, model) // step)
    if not _FIRST <= first * step <= (first + length - 1) * step <= _LAST:
        raise ConfigurationError(
            f"start must leave all timesteps in the years 1 to 9999, got {start!r:.40} for {days:g} days"
        )
    return first, length


def _describe_guarantee(model: MarkovModel) -> str:
    provenance = model.provenance or {}
    guarantee = provenance.get("guarantee")
    if not isinstance(guarantee, str):
        return "unknown: the model does not state how it was learned"
    epsilon = provenance.get("epsilon")
    return f"{guarantee} (epsilon = {epsilon})" if isinstance(epsilon, str) else guarantee


def _parse_instant(start: str, model: MarkovModel) -> int:
    """Convert an instant, or a day in the model's zone, to microseconds since 1970."""
    zone = UTC if model.time_classes is None else parse_time_zone(model.time_classes.zone)
    try:
        instant = datetime.fromisoformat(start)
        instant = instant if instant.tzinfo else instant.replace(tzinfo=zone)
        since = (instant - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()
    except (ValueError, OverflowError):
        raise ConfigurationError(f"start must be a day such as {START}, got {start!r:.40}") from None
    return round(since) * 1_000_000


@check_arguments
def compare_users(
    model: Model,
    data: DataLike,
    gap_seconds: Seconds | None = None,
    *,
    rng: Rng = None,
    watch: ProgressCallback = suppress_progress,
) -> Comparison:
    """Compare synthetic users with real ones, as ``dphmm synthesize --compare`` does.

    Real users are observed for part of the time. Each of their paths without a gap in the region is therefore compared
    with a synthetic path that has the same timesteps. Training users of the model are excluded if its user list is
    next to its file. Otherwise the result states that they are unknown.

    Parameters
    ----------
    model
        A model with state locations and a timestep, or its file.
    data
        The real users.
    gap_seconds
        Gaps up to this length are filled, see `learn`. Defaults to one step.
    rng
        Defaults to the operating system's randomness.
    watch
        Progress callback; see `dphmm.jobs.ProgressCallback`.

    Returns
    -------
    Comparison
        Measures of similarity.

    Raises
    ------
    ConfigurationError
        If no user is left, or no user has two consecutive timesteps in the region.
    DataFileError, DphmmError
        If the model or the data are invalid.
    """
    learned = load_model(model)
    space = learned.space
    source = as_random_source(rng)
    seen = find_training_users(model, learned)
    all_users = Data.from_any(data).with_region(space).read().trajectories
    others = [trajectory for trajectory in all_users if seen is None or trajectory.user not in seen]
    if not others:
        raise ConfigurationError(
            f"data must contain users that the model was not trained on, got {len(all_users)} training users only"
        )
    paths: list[tuple[int, int, IntArray]] = []
    for index, trajectory in enumerate(watch(others, "Reading users", len(others))):
        paths += split_paths(index, *state_sequence(trajectory, space, learned.step, gap_seconds))
    if not paths:
        raise ConfigurationError(
            "data must contain two consecutive timesteps in the model's region: use more data, or a longer --gap"
        )
    owners, firsts = (np.array(column) for column in list(zip(*paths, strict=True))[:2])
    true = [states for _, _, states in paths]
    lengths = np.array([len(states) for states in true])
    classes = classify_hours(learned, firsts, lengths)
    crowd = Crowd.from_paths(true, space.points, classes)
    drawn = Crowd.from_paths(sample_paths_like(learned, firsts, lengths, source), space.points, classes)
    probabilities = move_probabilities(learned, true, firsts)
    uniforms = source.sample_uniform(int(lengths.sum()))
    independent = np.minimum(np.searchsorted(np.cumsum(learned.initial), uniforms), space.size - 1)
    memoryless = Crowd.from_paths(np.split(independent, np.cumsum(lengths)[:-1]), space.points, classes)
    return Comparison(
        compare_crowds(drawn, crowd),
        _compare_halves(owners, true, space, classes, source.sample_uniform(len(others))),
        compare_crowds(memoryless, crowd),
        len(np.unique(owners)),
        len(true),
        int(lengths.sum()),
        len(all_users) - len(others),
        UNLISTED_USERS if seen is None else "no",
        float(np.log(probabilities[probabilities > 0]).mean()) if probabilities.any() else float("nan"),
        float((probabilities == 0).mean()),
        crowd,
        drawn,
        space,
    )


def split_paths(index: int, slots: IntArray, states: IntArray) -> list[tuple[int, int, IntArray]]:
    """Split a sequence into paths without gaps in the region.

    Each has the user's index, the first slot and the states. Paths of a single timestep are omitted.
    """
    within = states >= 0
    cut = np.flatnonzero((np.diff(slots) != 1) | ~within[1:] | ~within[:-1]) + 1
    parts = zip(np.split(slots, cut), np.split(states, cut), strict=True)
    return [(index, int(at[0]), path) for at, path in parts if len(path) >= _MIN_PATH_LENGTH and path[0] >= 0]


def classify_hours(model: MarkovModel, firsts: IntArray, lengths: IntArray) -> list[IntArray]:
    """Return the class of each step: the model's time class, or else the hour in UTC."""
    slots = np.repeat(firsts, lengths) + np.concatenate([np.arange(length) for length in lengths.tolist()])
    if model.time_classes is not None:
        classes = model.time_classes.get_classes(slots)
    else:
        classes = (slots - 1) * round_to_microseconds(model.step, "step_seconds") // 3_600_000_000 % 24
    return np.split(classes, np.cumsum(lengths)[:-1])


def _compare_halves(
    owners: IntArray, paths: Sequence[IntArray], space: StateSpace, classes: Sequence[IntArray], uniforms: Any
) -> dict[str, float]:
    """Compare a random half of the users with the other half."""

    def build_crowd(chosen: BoolArray) -> Crowd:
        indices = np.flatnonzero(chosen).tolist()
        return Crowd.from_paths([paths[k] for k in indices], space.points, [classes[k] for k in indices])

    present = np.unique(owners)
    order = present[np.argsort(uniforms[present])]
    first = np.isin(owners, order[: len(order) // 2])
    if len(order) < 2:
        return dict.fromkeys(compare_crowds(build_crowd(~first), build_crowd(~first)), float("nan"))
    return compare_crowds(build_crowd(first), build_crowd(~first))
