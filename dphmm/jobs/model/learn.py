"""Learning mobility models from trajectories."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, partial
from hashlib import blake2b
from heapq import heappush, heappushpop
from itertools import chain, islice
from math import isinf
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from dphmm.arrays import BoolArray, FloatArray
from dphmm.errors import ConfigurationError
from dphmm.formatting import as_plain, export_fields
from dphmm.jobs.batch.workers import Engine, Processes
from dphmm.jobs.input_data import MALFORMED, SAME_TIME, Data, DataLike, Dropped, iterate_blocks
from dphmm.jobs.model.loading import check_model_output, credit_streets, summarize_size
from dphmm.jobs.model.private import MOVES_PER_USER, PrivateModel, fit_private_moves
from dphmm.jobs.model.region import Choice, prepare_region, select_region
from dphmm.jobs.model.training_data import CountingRules, TrainingData, count_block
from dphmm.jobs.model.training_users import get_private_list_path, write_user_list
from dphmm.jobs.progress import ProgressCallback, suppress_progress
from dphmm.mechanisms.exact_sampling import Rational, parse_rational
from dphmm.model.conformal_radii import MAX_USERS, MIN_USERS, compute_calibrated_radii
from dphmm.model.learning import Extension, ShrunkModel, extend, fit_shrunk_counts
from dphmm.model.model import MarkovModel
from dphmm.model.outside_states import create_outside_states
from dphmm.model.speed_limit import MAX_SPEED_KMH
from dphmm.model.time_classes import ClassScheme, TimeClasses
from dphmm.space import StateSpace, Trajectory
from dphmm.tables import check_output, create_file
from dphmm.tolerances import MAX_SCALE
from dphmm.validation import Interval, PositiveInt, PositiveNumber, Seconds, check_arguments

_CLASSES_WITHOUT_GAIN = (
    "class_weight_moves is infinite (null in JSON): the moves within a class of time do not predict other users better "
    "than those of the whole day, so classes differ at most in the odds of leaving a location and in first locations"
)


@dataclass(frozen=True)
class LearnResult:
    """A learned model, with statistics of its training data.

    Parameters
    ----------
    model
        The model.
    training
        Statistics of the training users. Private.
    dropped
        The data that were not counted, and the reasons. Private.
    extension
        The extension by classes of time; None without classes.
    shrunk
        The shrinkage of the counts; None for a smoothed or private model.
    private
        The parameters of the differential privacy of a private model; None for any other.
    choice
        The automatically selected region, cells and step; None if a space was provided.
    warnings
        Warnings about the region and the classes of time.
    """

    model: MarkovModel
    training: TrainingData = field(repr=False)
    dropped: tuple[Dropped, ...] = field(repr=False)
    extension: Extension | None = None
    shrunk: ShrunkModel | None = None
    private: PrivateModel | None = None
    choice: Choice | None = None
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return a summary of the model and its training data.

        Returns
        -------
        dict
            Plain JSON values by name.
        """
        model = self.model
        training = self.training
        extension = self.extension
        not_read = {dropped.reason: dropped.fixes for dropped in self.dropped}
        read = {
            "users": len(training.users),
            "fixes": training.num_fixes,
            "num_skipped_fixes": not_read.get(MALFORMED, 0),
            "num_merged_fixes": not_read.get(SAME_TIME, 0),
            "num_locations": training.num_timesteps,
            "num_locations_outside": training.num_outside,
            "num_states_visited": int(training.is_visited.sum()),
            "num_moves": training.num_moves,
        }
        if self.private is not None:  # exact numbers, which the guarantee does not cover
            read = {f"private_{name}": value for name, value in read.items()}
        summary = {**summarize_size(model), **read}
        if model.outside is not None:
            outside = model.outside
            mean_square = float(outside.outside_shares @ outside.mean_squares / outside.outside_shares.sum())
            summary |= {
                "num_outside_states": len(outside.border),
                "rms_distance_outside_m": 1000 * mean_square**0.5,
            }
        if model.calibrated_radii is not None:
            radii = model.calibrated_radii
            for name, factors in (("radius", radii.factors), ("error", radii.error_factors)):
                summary[f"calibrated_{name}_factors"] = ", ".join(f"{factor:.2f}" for factor in factors)
        if extension is not None:
            assert model.time_classes is not None, "an extension has classes of time"
            summary |= {"num_time_classes": model.time_classes.count, "zone": model.time_classes.zone}
            summary["class_weight_moves"] = as_plain(extension.class_weight)
        if "map_credit" in (model.provenance or {}):
            summary["map_credit"] = (model.provenance or {})["map_credit"]
        if self.private is not None:
            return summary | self.private.to_dict()
        return summary if self.shrunk is None else summary | export_fields(self.shrunk)


@check_arguments
def learn(
    data: DataLike,
    space: StateSpace | None = None,
    step_seconds: Seconds | None = None,
    gap_seconds: Seconds | None = None,
    smoothing: Annotated[float, Interval(0, MAX_SCALE)] | None = None,
    output: str | Path | None = None,
    overwrite: bool = False,
    time_classes: ClassScheme | None = None,
    zone: str | None = None,
    max_speed_kmh: PositiveNumber | None = None,
    user_epsilon: Rational | None = None,
    moves_per_user: PositiveInt | None = None,
    min_users: PositiveInt | None = None,
    outside_states: bool | None = None,
    calibrate_radii: bool | None = None,
    region_map: str | Path | None = None,
    only_on: str | Path | None = None,
    *,
    engine: Engine | None = None,
    watch: ProgressCallback = suppress_progress,
) -> LearnResult:
    """Learn a mobility model from trajectories, as ``dphmm learn`` does.

    With a space, the users of one large Parquet file are counted in blocks as they are read (see `Data.stream`).
    Without one, all trajectories are in memory. The model is equal for any number and type of workers.

    The model is public. Learn it from other users than those to protect. The training users are written to a private
    list next to the model (see `dphmm.jobs.model.training_users`), with which releases of their data are refused.

    Parameters
    ----------
    data
        The trajectories of the training users.
    space
        The states; see `region`. Defaults to the city with most of the users, selected from the data, or with a tenth
        of `user_epsilon`.
    step_seconds
        The timestep, in seconds. Defaults to 60 if a space is provided, otherwise it is selected with the region.
    gap_seconds
        Gaps up to this length are filled with the state before the gap. Longer gaps split a trajectory. Defaults to one
        step.
    smoothing
        By default every move below the speed limit is possible, and counts are shrunk towards a kernel of the region;
        see `dphmm.model.fit_shrunk`. With smoothing, this number is added to the count of each observed move, of its
        reverse and of staying, and no other move is possible. Other users are then often in states that are impossible
        in the model.
    output, overwrite
        A ``.npz`` file for the model, and whether an existing file may be replaced. It is written atomically, after its
        user list.
    time_classes
        Classes of time with separate matrices: ``"hour"`` or ``"weekday-hour"``. Defaults to one matrix for all times.
    zone
        With `time_classes`: the time zone of the hours, such as ``"Asia/Shanghai"`` or ``"+08:00"``.
    max_speed_kmh
        The speed limit, which determines the possible moves. Defaults to 150. Cannot be combined with smoothing.
    user_epsilon
        The budget of user-level differential privacy of the model; see `fit_private`. Select the space, the step and
        the speed limit without looking at the data. Cannot be combined with `time_classes`.
    moves_per_user
        With `user_epsilon`: the maximum number of moves of each user that are counted. Defaults to 20.
    min_users
        Moves of fewer users are omitted. This is not a privacy guarantee.
    outside_states
        Whether users outside a grid have separate states (`dphmm.model.outside_states`), from which estimates account
        for their distance. Defaults to true if a user is outside, except with smoothing, `min_users` or
        `user_epsilon`. Smoothing and `min_users` treat all users as inside. With a budget the decision must not depend
        on the data, so outside states must be requested, and all border states have the same parameters.
    calibrate_radii
        Whether to calibrate the published errors and radii by cross-validation over users, so that radii contain at
        least 90 % of the timesteps of exchangeable users, with each of three scales of noise
        (`dphmm.model.conformal_radii`).
        Provide whole days of the training users, inside and outside the region, if whole days are released. It takes
        some seconds, up to minutes for `dphmm.model.conformal_radii.MAX_USERS`. Of more users, those with the
        smallest hashes of their names are simulated. Defaults to true with 20 users or more, if counts are shrunk
        without `min_users` and there is no budget.
    region_map
        A public map that determines the attraction of cells without data
        (`dphmm.jobs.region_map.build_region_map`). It does not change which moves are possible. Defaults to equal
        attraction. Cannot be combined with smoothing.
    only_on
        A public layer of polygons: cells that share no area with it are removed, except those with streets of the map
        (`dphmm.jobs.region_map.restrict_region`).
    engine
        Workers, such as `dphmm.jobs.batch.workers.Processes` or a Dask cluster, to which true locations are sent.
        Defaults to this process.
    watch
        Shows the progress; see `dphmm.jobs.ProgressCallback`.

    Returns
    -------
    LearnResult
        The model, with statistics of its training data.

    Raises
    ------
    ConfigurationError, OutputError
        If options cannot be combined, `time_classes` or `zone` is missing, or the output is not a ``.npz`` file or
        exists; these are checked before data are read. Also if too many moves are possible.
    BudgetError
        If the budget is not positive.
    DataFileError
        If data are missing or malformed.
    StochasticError, InvalidInputError
        If the data contain no state; see `MarkovModel.fit`.
    EngineError
        If workers keep dying.
    """
    if output is not None:
        check_model_output(output, overwrite)
        check_output(get_private_list_path(output), overwrite)
    exclusive = [option for option in (user_epsilon, smoothing, min_users) if option is not None]
    _check_options(
        exclusive,
        time_classes,
        zone,
        smoothing,
        max_speed_kmh,
        user_epsilon,
        moves_per_user,
        outside_states,
        calibrate_radii,
        region_map,
    )
    budget = None if user_epsilon is None else parse_rational(user_epsilon, "user_epsilon")
    crew = Processes(1) if engine is None else engine
    with ExitStack() as stack:
        selected = Data.from_any(data).with_region(space)
        not_read = list[Dropped]()
        choice = None
        if space is None:
            user_tracks = selected.read(may_be_empty=budget is not None)
            not_read += user_tracks.not_read
            choice, budget = select_region(user_tracks.trajectories, budget, step_seconds)
            space = choice.space
            step_seconds = choice.step_seconds
            tracks = iter(user_tracks.trajectories)
        else:
            tracks = selected.stream(not_read, may_be_empty=budget is not None)
        step = 60.0 if step_seconds is None else float(step_seconds)
        space, mapped_region, warnings = prepare_region(space, region_map, only_on)
        attraction = None if mapped_region is None else mapped_region.attraction
        classes = None if time_classes is None or zone is None else TimeClasses.from_name(time_classes, step, zone)
        outside = None
        if outside_states if user_epsilon is not None else not exclusive and outside_states is not False:
            outside = create_outside_states(space)
        max_moves = None
        if budget is not None:
            max_moves = MOVES_PER_USER if moves_per_user is None else moves_per_user
        rules = CountingRules(space, step, gap_seconds, outside, max_moves, classes is not None)
        sample = _UserSample(0 if calibrate_radii is False or exclusive else MAX_USERS)
        training = _count_users(sample.watch(tracks), rules, crew, stack, watch)
        speed = MAX_SPEED_KMH if max_speed_kmh is None else max_speed_kmh
        fitting = _Fitting(training, rules, speed, attraction, classes, 1 if min_users is None else min_users)
        private = shrunk = extension = None
        if budget is not None:
            private = fitting.fit_privately(budget)
            private = private.with_spending("region", None if choice is None else choice.epsilon)
            model = private.model
        elif smoothing is not None:
            model = fitting.smooth(smoothing)
        else:
            shrunk = fitting.shrink()
            model = shrunk.model
        if outside_states and model.outside is None:
            raise ConfigurationError(
                "outside_states requires a grid and a user outside of it: remove it, or use a smaller region"
            )
        if mapped_region is not None:
            model = model.with_provenance({**(model.provenance or {}), "map_credit": mapped_region.credit})
        model = credit_streets(model)
        if classes is not None:  # never with a budget; see `_check_options`
            extension = extend(model, training.sequences, classes)
            model = extension.model
            if isinf(extension.class_weight):
                warnings += (_CLASSES_WITHOUT_GAIN,)
        if sample.size:
            radii = compute_calibrated_radii(
                partial(fitting.fit_without, sample.tracks), sample.tracks, run=crew.run_in_order
            )
            model = model.with_calibrated_radii(radii)
            if calibrate_radii and radii is None:
                raise ConfigurationError(f"calibrate_radii requires at least {MIN_USERS} users in the region")
    if output is not None:
        with create_file(output, overwrite) as part:
            model.save(part)
            write_user_list(get_private_list_path(output), model, training.users, overwrite)
    dropped = (*not_read, *training.loss.describe(model.outside is not None))
    return LearnResult(model, training, dropped, extension, shrunk, private, choice, warnings)


def _count_users(
    tracks: Iterable[Trajectory],
    rules: CountingRules,
    crew: Engine,
    stack: ExitStack,
    watch: ProgressCallback,
) -> TrainingData:
    """Count the statistics of users, on workers that run until the end of the stack."""
    blocks = iterate_blocks(tracks)
    first_blocks = list(islice(blocks, 2))
    # Workers that start before most locations are read are copies of this process without these locations. A single
    # block is counted sooner than workers start.
    if len(first_blocks) > 1:
        stack.enter_context(crew.start_workers())
    counter = crew if len(first_blocks) > 1 else Processes(1)
    counted = counter.run_in_order(partial(count_block, rules=rules), chain(first_blocks, blocks))
    return TrainingData.concatenate(list(watch(counted, "Counting"))).sort_users()


@dataclass(frozen=True, eq=False)
class _Fitting:
    """Fits models to the statistics of all training users, or of all but some.

    Parameters
    ----------
    training, rules
        The statistics, and what was counted.
    speed
        The speed limit, in km/h.
    attraction
        ``(N,)``: the attraction of states without data; None if it is equal.
    classes
        Classes of time.
    min_users
        Moves of fewer users are omitted.
    """

    training: TrainingData
    rules: CountingRules
    speed: float
    attraction: FloatArray | None
    classes: TimeClasses | None
    min_users: int

    def fit_privately(self, budget: Fraction) -> PrivateModel:
        """Fit a model with differential privacy of the users."""
        rules = self.rules
        assert rules.max_moves is not None, "set with a budget"
        return fit_private_moves(
            list(self.training.thinned),
            rules.space,
            rules.step_seconds,
            budget,
            rules.max_moves,
            self.speed,
            outside=None if rules.outside is None else self.training.distances,
            attraction=self.attraction,
        )

    def smooth(self, smoothing: float) -> MarkovModel:
        """Fit a model in which only observed moves, their reverses and staying are possible."""
        space, step = self.rules.space, self.rules.step_seconds
        model = MarkovModel.fit_counts(self.training.counts, space.size, smoothing, states=space, step_seconds=step)
        return model.with_provenance({"guarantee": _NO_GUARANTEE, "smoothing": smoothing})

    def shrink(self, users: BoolArray | None = None) -> ShrunkModel:
        """Fit a model with shrunk counts of some users, by default of all."""
        counts = self.training.counts if users is None else self.training.counts.select_users(users)
        shrunk = fit_shrunk_counts(
            counts,
            self.rules.space,
            self.rules.step_seconds,
            self.speed,
            min_users=self.min_users,
            outside=self.training.fit_outside(
                self.rules.outside, None if users is None else np.flatnonzero(users).tolist()
            ),
            attraction=self.attraction,
        )
        provenance = {"guarantee": _NO_GUARANTEE, "max_speed_kmh": self.speed, "weight": shrunk.weight}
        if self.min_users > 1:
            provenance |= {"guarantee": _NO_GUARANTEE_MIN_USERS, "min_users": self.min_users}
        return replace(shrunk, model=shrunk.model.with_provenance(provenance))

    def fit_without(self, tracks: Sequence[Trajectory], held_out: Sequence[int]) -> MarkovModel:
        """Fit a model with shrunk counts to all users except those at some indices of `tracks`."""
        excluded = {tracks[index].user for index in held_out}
        is_kept = np.array([user not in excluded for user in self.training.users])
        model = self.shrink(is_kept).model
        if self.classes is None:
            return model
        sequences = [self.training.sequences[user] for user in np.flatnonzero(is_kept)]
        return extend(model, sequences, self.classes).model


class _UserSample:
    """The `size` users with the smallest hashes of their names, or all.

    The selection depends neither on the order of the users nor on their locations. A hash is not related to movement,
    so the users are as exchangeable as all.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._heap: list[tuple[int, str, Trajectory]] = []  # the largest hash first

    def watch(self, tracks: Iterable[Trajectory]) -> Iterator[Trajectory]:
        """Yield the trajectories of all users, and keep those of the sample."""
        for track in tracks:
            digest = blake2b(track.user.encode("utf-8", "surrogatepass"), digest_size=8).digest()
            entry = (-int.from_bytes(digest), track.user, track)
            if len(self._heap) < self.size:
                heappush(self._heap, entry)
            elif self.size:
                heappushpop(self._heap, entry)
            yield track

    @cached_property
    def tracks(self) -> list[Trajectory]:
        """The trajectories of the users, in the order of their names."""
        return [track for _, _, track in sorted(self._heap, key=itemgetter(1))]


_NO_GUARANTEE = "none: moves were counted without noise"
_NO_GUARANTEE_MIN_USERS = (
    "none: moves were counted without noise; moves of fewer than min_users users were omitted, which is not a privacy "
    "guarantee"
)


def _check_options(
    exclusive: Collection[Any],
    time_classes: ClassScheme | None,
    zone: str | None,
    smoothing: float | None,
    max_speed_kmh: PositiveNumber | None,
    user_epsilon: Rational | None,
    moves_per_user: PositiveInt | None,
    outside_states: bool | None,
    calibrate_radii: bool | None,
    region_map: str | Path | None,
) -> None:
    """Check the combination of options. At most one of the `exclusive` ones may be set."""
    if user_epsilon is not None and time_classes is not None:
        raise ConfigurationError(
            "--user-epsilon cannot be combined with --time-classes: a private model has one matrix for all times"
        )
    if smoothing is not None and max_speed_kmh is not None:
        raise ConfigurationError(
            "--max-speed cannot be combined with --smoothing: smoothing makes only observed moves possible"
        )
    if smoothing is not None and region_map is not None:
        raise ConfigurationError(
            "--map cannot be combined with --smoothing: smoothing makes only observed moves possible"
        )
    if moves_per_user is not None and user_epsilon is None:
        raise ConfigurationError("moves_per_user requires --user-epsilon")
    if len(exclusive) > 1:
        raise ConfigurationError("--user-epsilon, --smoothing and min_users cannot be combined: use one of them")
    if outside_states and exclusive and user_epsilon is None:
        raise ConfigurationError(
            "outside_states cannot be combined with --smoothing and min_users: these treat all users as inside"
        )
    if calibrate_radii and exclusive:
        raise ConfigurationError(
            "calibrate_radii cannot be combined with --user-epsilon, --smoothing and min_users: it simulates users "
            "with shrunk counts, without noise"
        )
    if time_classes is None and zone is not None:
        raise ConfigurationError("--zone requires --time-classes hour or --time-classes weekday-hour")
    if time_classes is not None:
        if zone is None:
            raise ConfigurationError(
                "--time-classes requires the time zone of its hours: use --zone, such as Asia/Shanghai"
            )
        TimeClasses.from_name(time_classes, 60.0, zone)  # raises an error if the zone is unknown
