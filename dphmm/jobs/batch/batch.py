"""Batches: every user of a data set released into a separate file."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import numpy as np

from dphmm.audit.sequence import PUBLIC, SmoothingRecorder
from dphmm.certificate.canonical_forms import check_certifiable
from dphmm.errors import ConfigurationError, DphmmError, SingletonConstraintError, StochasticError, import_library
from dphmm.formatting import Result, export_likelihood_ratios
from dphmm.jobs.audit.adversaries import (
    HABITS,
    build_habit_model,
    extract_history,
    format_single_day_warning,
    has_single_day,
    read_tracks_by_user,
)
from dphmm.jobs.audit.target import get_state_names
from dphmm.jobs.batch.run_folder import (
    KEY,
    LAYOUT,
    Checkpoint,
    Entry,
    Published,
    build_keyed_stream,
    hash_contents,
    load_or_create_key,
    read_journal,
)
from dphmm.jobs.batch.workers import Engine, Processes
from dphmm.jobs.certificate import certify
from dphmm.jobs.input_data import OUTSIDE_REGION, SAME_TIMESTEP, Data, DataLike, Dropped
from dphmm.jobs.model.loading import load_model
from dphmm.jobs.model.training_users import find_training_users, refuse_training_users
from dphmm.jobs.progress import ProgressCallback, suppress_progress
from dphmm.jobs.release.costly_repair import CostlyRepair, find_costly_repair
from dphmm.jobs.release.exposure import RESTARTS, select_exposure_rows, summarize_exposure
from dphmm.jobs.release.guarantees import collect_warnings, summarize_guarantee
from dphmm.jobs.release.movement_check import LargerErrors, MovementCheck, UserErrors
from dphmm.jobs.release.prediction_check import PredictionCheck, PredictionSummary
from dphmm.jobs.release.stored import UserFile, get_publishable_settings
from dphmm.jobs.release.window_budget_accuracy import SamplingSummary, average_users, summarize_sampling
from dphmm.model import MarkovModel
from dphmm.policy.expression import describe_policy
from dphmm.policy.missing_edges import describe_isolated_states
from dphmm.random import Rng, derive_seed
from dphmm.release.engine import Releaser, ReleaseSettings
from dphmm.release.ledger import Account
from dphmm.release.trajectory_release import TimedRecord, TimedRelease, locate_releases, release_records
from dphmm.space import OUTSIDE, Trajectory
from dphmm.tables import check_output
from dphmm.validation import Integers, SeedOrGenerator, check_arguments
from dphmm.writers import Hindsight, ReleaseTable, summarise, write_releases
from dphmm.writers.release_table import WITHHELD_MESSAGES


@dataclass(frozen=True)
class UserResult:
    """The result of one user.

    Parameters
    ----------
    entry
        The user, the number of timesteps, and the file's digest. The number is 0, and there is no file, for a user who
        was never inside the region if locations outside it are dropped.
    counts
        The number of locations, one per timestep, ``outside`` the region, and of fixes replaced by a later one of the
        same timestep (``shared``). For released users also the numbers of timesteps (``timesteps``), of ``withheld``
        and ``unprotected`` ones, of releases (``released``), of releases in a session after the first, with a belief
        that ignores earlier releases (``after_gap``), and of capped events that had ended before (``ended_events``).
        Private.
    summary
        The row of `dphmm.writers.summarise`; empty if there are no releases.
    constrained_epsilon
        The largest constrained-DP level of a release.
    smoothed
        For an adversary with the model, and an adversary with this user's habits: the median expected error, metres,
        and the largest posterior probability, using all releases. Private; empty if not computed.
    sampling
        The accuracy under a window budget, and of alternatives; None without one.
    costly_repair
        The repair that raised the expected error most among all plans of the worker, if by more than a tenth.
    prediction
        The distances of the releases from their predictions.
    errors
        The true and the expected errors of the user's estimates. Private.
    """

    entry: Entry
    counts: Mapping[str, int]
    summary: Mapping[str, Any] = field(default_factory=dict, repr=False)
    constrained_epsilon: float = 0.0
    smoothed: tuple[tuple[float, float], ...] = field(default=(), repr=False)
    sampling: SamplingSummary | None = None
    costly_repair: CostlyRepair | None = None
    prediction: PredictionCheck = field(default_factory=PredictionCheck)
    errors: UserErrors | None = field(default=None, repr=False)

    @property
    def user(self) -> str:
        """The user's name."""
        return self.entry.user


@dataclass
class Tally:
    """Totals over the users of a batch, without names except those of the most exposed users.

    It needs the same memory for any number of users.
    """

    # The sums of the counts of `UserResult`.
    sums: Counter[str] = field(default_factory=Counter)
    # The number of users with a positive count; ``timesteps`` counts the released users.
    users: Counter[str] = field(default_factory=Counter)
    never_inside: int = 0
    epsilon: float = 0.0
    constrained_epsilon: float = 0.0
    num_unprotected: int = 0
    without_history: int = 0
    smoothed: tuple[tuple[float, float], ...] = ()
    # The rows of users that determine metrics and warnings, selected by `select_exposure_rows`.
    most_exposed_users: list[Mapping[str, Any]] = field(default_factory=list, repr=False)
    # The means of the users' `SamplingSummary`.
    sampling: SamplingSummary | None = None
    # The repair that raised the expected error most, if by more than a tenth.
    costly_repair: CostlyRepair | None = None
    predictions: PredictionSummary = field(default_factory=PredictionSummary)
    larger_errors: LargerErrors = field(default_factory=LargerErrors)

    def add(self, user: UserResult) -> None:
        """Add one user."""
        self.sums.update(user.counts)
        self.users.update(name for name, count in user.counts.items() if count)
        if not user.summary:
            self.never_inside += 1
            return
        self.add_exposure(user.summary, user.constrained_epsilon, user.sampling)
        self.without_history += not user.smoothed
        if user.smoothed:
            previous = self.smoothed or user.smoothed
            pairs = zip(previous, user.smoothed, strict=True)
            self.smoothed = tuple((min(a[0], b[0]), max(a[1], b[1])) for a, b in pairs)
        repair = user.costly_repair
        if repair is not None and (self.costly_repair is None or repair.ratio > self.costly_repair.ratio):
            self.costly_repair = repair
        self.predictions.add(user.prediction)
        if user.errors is not None:
            self.larger_errors.add(user.errors)

    def add_exposure(
        self, summary: Mapping[str, Any], constrained_epsilon: float, sampling: SamplingSummary | None
    ) -> None:
        """Add the budgets, the inference and the sampling of one user, also of an earlier run."""
        if sampling is not None:
            self.sampling = sampling if self.sampling is None else average_users(self.sampling, sampling)
        self.epsilon = max(self.epsilon, summary["epsilon_total"])
        self.constrained_epsilon = max(self.constrained_epsilon, constrained_epsilon)
        self.num_unprotected += summary["num_unprotected"]
        self.most_exposed_users = select_exposure_rows([*self.most_exposed_users, summary])


@dataclass(frozen=True)
class Batch(Result):
    """The result of one run of a batch.

    Parameters
    ----------
    done
        The users of this run, in the order in which they were finished.
    before
        The number of users in the folder who had been released before this run.
    settings
        The settings of all releases.
    is_private
        Whether the noise came from the operating system. Seeded noise provides no privacy.
    isolated_states
        The number of states without an edge in the policy and their distances from the nearest state, in words.
        None if there are none.
    unchosen
        Input that was not read or not selected. Private.
    tally
        Totals over the users of this run, and the budgets and the inference of all users in the folder. Private.
    """

    done: tuple[Entry, ...]
    before: int
    settings: ReleaseSettings
    is_private: bool
    isolated_states: str | None
    unchosen: tuple[Dropped, ...] = ()
    tally: Tally = field(default_factory=Tally)

    @property
    def dropped(self) -> tuple[Dropped, ...]:
        """Input of this run that was dropped or moved, and why. Private."""
        is_moved = self.settings.outside == "clamp"
        where = "moved to its nearest location" if is_moved else "not released"
        tally = self.tally
        shared = Dropped(SAME_TIMESTEP, tally.sums["shared"], tally.users["shared"])
        outside = Dropped(f"{OUTSIDE_REGION}, {where}", tally.sums["outside"], tally.users["outside"])
        return tuple(dropped for dropped in (*self.unchosen, shared, outside) if dropped.fixes)

    @property
    def sampling(self) -> SamplingSummary | None:
        """The accuracy under a window budget, and of alternatives: means over users.

        None without a window budget, and if no timestep was withheld.
        """
        sampling = self.tally.sampling
        return None if sampling is None or sampling.num_released == sampling.num_timesteps else sampling

    @property
    def ratio_levels(self) -> dict[str, float]:
        """The logarithms of the bounds on likelihood ratios. See `export_likelihood_ratios`."""
        tally = self.tally
        return {
            "release": self.settings.epsilon,
            "any_states": tally.constrained_epsilon,
            "total": tally.epsilon,
        }

    def summary_sentences(self) -> tuple[str, ...]:
        """Return a paragraph about the guarantee and one about the adversary's inference.

        Both are public.

        Returns
        -------
        tuple of str
            The two paragraphs; empty if no user was released.
        """
        tally = self.tally
        rows = tally.most_exposed_users
        if not rows:
            return ()
        return summarize_guarantee(rows, self.settings, self.is_private, "folder", tally.epsilon, tally.num_unprotected)

    def list_warnings(self) -> list[str]:
        """Return warnings about disclosure, each with a remedy. Public.

        Returns
        -------
        list of str
            One warning per element.
        """
        tally = self.tally
        warnings = collect_warnings(tally.most_exposed_users, self.settings.policy, tally.costly_repair)
        return warnings + tally.predictions.list_warnings()

    def _derive_fields(self) -> dict[str, Any]:
        tally = self.tally
        settings = self.settings
        exposure = summarize_exposure(tally.most_exposed_users) if tally.most_exposed_users else {}
        return {
            "num_released": tally.sums["released"],
            "num_withheld": tally.sums["withheld"],
            "withheld_by_reason": {reason: tally.sums[f"withheld_{reason}"] for reason in WITHHELD_MESSAGES},
            "num_unprotected": tally.sums["unprotected"],
            "num_users": tally.users["timesteps"],
            "num_users_outside_region": tally.never_inside,
            "num_users_released_before": self.before,
            RESTARTS: tally.sums["after_gap"],
            "num_users_with_gap": tally.users["after_gap"],
            **({"num_users_after_capped_event": tally.users["ended_events"]} if settings.caps else {}),
            "sampling": self.sampling,
            "policy": settings.policy,
            "policy_description": describe_policy(settings.policy),
            "isolated_states": self.isolated_states,
            "costly_repair": tally.costly_repair,
            "mechanism": settings.mechanism,
            "is_exact": settings.is_exact,
            "outside": settings.outside,
            "epsilon": settings.epsilon,
            "max_epsilon_24h": exposure.pop("max_epsilon_24h", None),
            "max_epsilon_total": tally.epsilon,
            **export_likelihood_ratios(self.ratio_levels, self.is_private and bool(exposure)),
            "randomness": "system" if self.is_private else "seeded",
            "prediction_distance_ratio": tally.predictions.ratio,
            **exposure,
            "settings_hash": settings.content_hash,
        }

    def to_private_dict(self) -> dict[str, Any]:
        """Return metrics that depend on true locations. Do not publish them.

        Returns
        -------
        dict
            Names → plain JSON values.
        """
        metrics: dict[str, Any] = {"num_locations_outside_region": self.tally.sums["outside"]}
        if self.tally.smoothed:
            metrics["num_users_without_earlier_days"] = self.tally.without_history
            adversaries = zip((PUBLIC.auxiliary_knowledge, HABITS), self.tally.smoothed, strict=True)
            for knowledge, (error, posterior) in adversaries:
                suffix = f"knowing_{knowledge.replace(' ', '_')}"
                metrics[f"smoothed_min_user_median_adversary_error_m_{suffix}"] = error
                metrics[f"smoothed_max_posterior_{suffix}"] = posterior
        metrics["warnings"] = self.tally.larger_errors.list_warnings()
        if count := self.tally.sums["single_day"]:
            metrics["warnings"].append(format_single_day_warning(count, self.tally.users["timesteps"]))
        metrics["dropped"] = [dropped._asdict() for dropped in self.dropped]
        return metrics


# The formats of users' files → the libraries that write them.
FILE_KINDS = {"parquet": ("pyarrow.parquet",), "csv": (), "geojson": (), "gpkg": ("pyogrio", "geopandas")}

_MAX_GAP = 10**12
# 500 steps of five minutes are 42 hours.
_DEFAULT_GAP = 500
# A user's metrics are not smoothed if the gaps need more seconds than this. The bound is an estimate from the model and
# the times alone, so it does not depend on the machine.
_MAX_GAP_SECONDS = 600.0
# Longer than the years 1 to 9999, so that no trajectory is split.
_MAX_SECONDS = 3e11


@dataclass(frozen=True)
class BatchJob:
    """The specification of a batch for its workers.

    Parameters
    ----------
    folder
        The folder of the files, see `dphmm.jobs.batch.run_folder.Published`.
    model, model_hash
        The path of a model with states and a time step, and its content hash. A worker refuses any other model.
    settings
        The settings of all releases.
    seed, kind, session_gap
        As in `batch`.
    key
        The key from which the noise is derived if there is no seed, see `build_keyed_stream`. None samples new noise
        for every release, and lost files cannot be restored.

    Raises
    ------
    ConfigurationError
        For an unknown format, or a session gap together with event caps.
    """

    folder: str
    model: str
    model_hash: str
    settings: ReleaseSettings
    seed: int | None = None
    kind: str = "parquet"
    session_gap: int | None = None
    key: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.kind not in FILE_KINDS:
            raise ConfigurationError(f"format must be one of {', '.join(FILE_KINDS)}, got {self.kind!r}")
        if self.session_gap is not None and self.settings.caps:
            raise ConfigurationError(
                f"session_gap cannot be combined with event caps, got {self.session_gap}: a cap counts all releases of "
                "a user"
            )

    @property
    def gap(self) -> int:
        """The number of steps of the longest gap within a session."""
        if self.session_gap is None:
            return _MAX_GAP if self.settings.caps else _DEFAULT_GAP
        return self.session_gap

    def derive_randomness(self, trajectory: Trajectory) -> Rng:
        """Return the source of a user's noise, a stream that does not depend on the worker."""
        if self.seed is not None:
            words = np.frombuffer(hashlib.sha256(trajectory.user.encode()).digest()[:16], dtype="<u4").tolist()
            return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(2, *words)))
        if self.key is None:
            return None
        columns: list[tuple[np.ndarray, str]] = [
            (trajectory.times, "<M8[us]"),
            (trajectory.latitude, "<f8"),
            (trajectory.longitude, "<f8"),
        ]
        # The accuracies determine which fixes are released. Noise for other locations must not repeat.
        if trajectory.accuracy_m is not None:
            columns.append((trajectory.accuracy_m, "<f8"))
        terms = f"{self.model_hash} {self.settings.content_hash} {self.gap}"
        contents = (values.astype(dtype).tobytes() for values, dtype in columns)
        label = (trajectory.user.encode(), terms.encode(), *contents)
        return build_keyed_stream(self.key, *label)


@check_arguments
def batch(
    data: DataLike,
    folder: str | Path,
    model: str | Path,
    settings: ReleaseSettings,
    *,
    kind: str = "parquet",
    session_gap: Annotated[int, Integers(1, _MAX_GAP, ConfigurationError)] | None = None,
    workers: Annotated[int, Integers(1, error=ConfigurationError)] | None = None,
    engine: Engine | None = None,
    rng: SeedOrGenerator | None = None,
    resume: bool = False,
    allow_training_users: bool = False,
    auxiliary_data: DataLike | None = None,
    certificate: str | Path | None = None,
    watch: ProgressCallback = suppress_progress,
) -> Batch:
    """Release every user in some data into a separate file, as ``dphmm batch`` does.

    Paths are read one after another, and the locations of only one of them are in memory at a time. Users before the
    first one inside the model's region are also kept in memory, because nothing is released if all are outside. For a
    data set larger than memory, provide one Parquet of all users (see `Data.stream_by_path`), or one file or folder
    per user or group of users. Several paths are read twice, the first time for the names of users. Conflicts are
    therefore found before a file is written.

    Parameters
    ----------
    data
        The input trajectories; a user must not be in two paths.
    folder
        A new or empty folder, unless `resume` is true.
    model
        The file of a public model.
    settings
        The settings of all releases.
    kind
        The format of the files: one of `FILE_KINDS`.
    session_gap
        The longest gap within a session, in time steps. Defaults to 500. After a longer gap a new session starts with
        the model's initial distribution as its prior. The records then describe an adversary who ignores earlier
        sessions. An adversary who remembers them can exclude locations that were out of reach in the time of the gap.
        This excludes nothing only if every state of the initial distribution can be reached. If the model has parts
        without transitions between them, the states of another part do not protect a user from such an adversary. The
        column ``num_ignored_releases`` contains the number of earlier releases that a session ignores. A gap as long
        as the data keeps one session per user. Event caps require this. An event that had ended before a user's first
        release is ignored for this user, unless the model starts at rest. Smoothed metrics use the releases of all
        sessions. The batch states them unless the steps of a user's gaps are estimated to need more than ten minutes,
        or the model excludes a user's sessions together.
    workers
        The number of processes on this machine. Defaults to one per processor. With one, everything happens in this
        process.
    engine
        Other workers, such as `dphmm.jobs.batch.workers.DaskCluster`. True locations and the key of the noise are sent
        to them.
    rng
        Defaults to the operating system's randomness. With a seed or generator every user's releases can be reproduced
        and are not private. To resume such a batch, use the same seed.
    resume
        Whether the folder may contain a batch with the same settings. Users already released are kept. While the
        batch is unfinished, damaged or missing files are restored unchanged. Afterwards its key is deleted, and such
        files raise an error.
    allow_training_users
        Whether to release users on whose data the model was trained; see `dphmm.jobs.model.training_users`.
    auxiliary_data
        Earlier data of the users, all in memory. The disclosure to an adversary who has learned habits from them is
        computed next to the disclosure to an adversary who knows the model. Both describe the most exposed user and
        are private.
    certificate
        A new file for the certificate of the guarantee of all users in the folder, for `scripts/dphmm-verify`; see
        `dphmm.jobs.certify`. Releases are read once more for it, and no noise is sampled.
    watch
        Displays progress; see `dphmm.jobs.ProgressCallback`.

    Returns
    -------
    Batch
        The result of this run.

    Raises
    ------
    ConfigurationError
        Before any file of releases is written: if options are invalid, a user is in two paths or in none, the model
        was trained on a user, or no user was inside the model's region and none was released before. Also if both
        workers and an engine are given.
    OutputError, EngineError
        If the folder is in use by another run or cannot be written, or workers keep dying.
    DataFileError
        If a file in the folder does not belong to the batch, or is damaged and cannot be restored.
    DphmmError
        For invalid data, model files or policies.

    Examples
    --------
    >>> import tempfile
    >>> from dphmm import ReleaseSettings
    >>> from dphmm.jobs import Data, batch, learn, region
    >>> space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=0.5)
    >>> town, users = "data/sample/geolife", ("000", "001")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = learn(Data((town,), exclude_users=users), space, 300, output=f"{folder}/m.npz")
    ...     data, settings = Data((town,), users=users), ReleaseSettings(policy="utility:1km", epsilon=1)
    ...     result = batch(data, f"{folder}/out", f"{folder}/m.npz", settings, kind="csv", workers=1)
    >>> sorted(entry.user for entry in result.done)
    ['000', '001']
    """
    seed = None if rng is None else derive_seed(rng)
    if workers is not None and engine is not None:
        raise ConfigurationError("workers cannot be combined with engine: an engine has its own workers")
    worker_engine = Processes(workers) if engine is None else engine
    folder = Path(folder).absolute()
    path = Path(model).absolute()
    loaded_model = load_model(model)
    training_users = None if allow_training_users else find_training_users(path, loaded_model)
    job = BatchJob(str(folder), str(path), loaded_model.content_hash, settings, seed, kind, session_gap)
    first = _load_engine(job.model, job.model_hash, settings)  # raises now for errors that the first user would meet
    if certificate is not None:
        check_output(certificate)
        check_certifiable(first)
    for library in FILE_KINDS[kind]:
        import_library(library, "files")
    hashes = {"settings_sha256": settings.content_hash, "model_sha256": job.model_hash}
    options = {"settings": settings.to_dict(), "seed": seed, "kind": kind, "session_gap": job.gap, "layout": LAYOUT}
    terms = {**hashes, **options}
    Checkpoint.check(folder, terms, resume)
    unchosen: list[Dropped] = []
    tally = Tally()
    done = list[Entry]()
    earlier = read_tracks_by_user(auxiliary_data)
    # Workers start before any location is read: a copy of this process without locations cannot leak them. The folder
    # is locked until they have ended, also after an error, because they write to it.
    with ExitStack() as lock, worker_engine.start_workers():
        # Names are checked before the first release.
        chosen = Data.from_any(data).with_region(loaded_model.space)
        checked_users = chosen.stream_by_path(partial(refuse_training_users, training_users), unchosen)
        tracks = _without_training_users(checked_users, training_users)
        if not read_journal(folder):
            tracks = _require_location_inside(tracks, loaded_model)
        lock.enter_context(closing(Checkpoint.open(folder, terms, resume)))
        published = Published(folder, kind)
        num_before = len(published)
        if seed is None:
            if published.lost and not (folder / KEY).exists():
                raise published.build_restore_error(min(published.lost))
            job = replace(job, key=load_or_create_key(folder))
        for user in watch(release_everyone(job, tracks, worker_engine, published, earlier), "Releasing users"):
            tally.add(user)
            done.append(user.entry)
        if published.lost:
            raise ConfigurationError(
                f"{published.get_file_path(min(published.lost))} is damaged or missing: resume with this user's data "
                "too"
            )
        published.finish()
        (folder / KEY).unlink(missing_ok=True)
        if num_before:  # the guarantee and the inference concern the whole folder
            users = {entry.user for entry in done}
            entries = (entry for entry in read_journal(folder) if entry.user not in users)
            files = (UserFile(published.get_file_path(entry.user), entry.sha256) for entry in entries)
            for summary, constrained_epsilon, sampling in worker_engine.run(partial(_summarize_file, settings), files):
                tally.add_exposure(summary, constrained_epsilon, sampling)
                # These numbers state which releases the metrics of the folder ignore.
                tally.sums["after_gap"] += summary[RESTARTS]
                tally.users["after_gap"] += summary[RESTARTS] > 0
    isolated_states = describe_isolated_states(first.policy, loaded_model.space)
    if certificate is not None:
        certify(folder, loaded_model, certificate, watch=watch)
    return Batch(tuple(done), num_before, settings, seed is None, isolated_states, tuple(unchosen), tally)


def _summarize_file(
    settings: ReleaseSettings, file: UserFile
) -> tuple[Mapping[str, Any], float, SamplingSummary | None]:
    """Return the summary of a user's file, the largest constrained-DP level, and the sampling."""
    table = file.read()
    (summary,) = summarise(table)
    return summary, table.max_constrained_epsilon, summarize_sampling(table, settings)


def _without_training_users(
    tracks: Iterable[Trajectory], training_users: Collection[str] | None
) -> Iterator[Trajectory]:
    for trajectory in tracks:
        refuse_training_users(training_users, [trajectory.user])
        yield trajectory


def _require_location_inside(tracks: Iterable[Trajectory], model: MarkovModel) -> Iterator[Trajectory]:
    """Return all trajectories, or raise an error if none has a location inside the region."""
    remaining = iter(tracks)
    waiting = list[Trajectory]()
    for trajectory in remaining:
        waiting.append(trajectory)
        released = trajectory.resample(model.step)
        if (model.space.locate(released.latitude, released.longitude) != OUTSIDE).any():
            return chain(waiting, remaining)
    raise ConfigurationError(
        f"no input location of {len(waiting)} users lies inside the model's region; train a model that covers it"
    )


def release_everyone(
    job: BatchJob,
    tracks: Iterable[Trajectory],
    engine: Engine,
    published: Published | None = None,
    earlier: Mapping[str, Trajectory] = MappingProxyType({}),
) -> Iterator[UserResult]:
    """Release users one after another, each with a separate belief, and write their files.

    Users already released are skipped: a second release of the same locations would spend its budget again. The
    releases of at most a few users are in memory at a time, in addition to the locations that `tracks` contains.

    Parameters
    ----------
    job
        The specification of the batch.
    tracks
        The input trajectories.
    engine
        The workers.
    published
        The contents of the folder. Defaults to reading them.
    earlier
        Earlier data of users, by name.

    Returns
    -------
    Iterator of UserResult
        Users in the order in which they are finished.

    Raises
    ------
    SingletonConstraintError
        If only one state is possible at some timestep and this is not allowed.
    DataFileError
        If a file in the folder does not belong to the batch, or is damaged and cannot be restored.
    OutputError, EngineError
        If a file cannot be written, or workers keep dying.
    """
    folder = Published(Path(job.folder), job.kind) if published is None else published
    waiting = (
        UserTask(job, folder.get_part_path(trajectory.user), trajectory, earlier.get(trajectory.user))
        for trajectory in tracks
        if not folder.has(trajectory.user)
    )
    for results in engine.run_in_groups(_release_user, waiting):
        folder.add([result.entry for result in results])
        yield from results


@dataclass(frozen=True)
class UserTask:
    """One user's part of a batch.

    Its representation, as in a worker's log, contains no location.
    """

    job: BatchJob
    part: Path
    trajectory: Trajectory = field(repr=False)
    earlier: Trajectory | None = field(default=None, repr=False)


def _release_user(work: UserTask) -> UserResult:
    job = work.job
    user = work.trajectory.user
    with _engine_lock:  # a worker with several threads loads the model once
        first = _load_engine(job.model, job.model_hash, job.settings)
    releaser = first.spawn(job.derive_randomness(work.trajectory))
    model = first.model
    whole = work.trajectory.resample(model.step)
    releases: list[TimedRelease] = []
    account = Account()
    history = None if work.earlier is None else extract_history(work.earlier, model, int(whole.slots[0]))
    sessions = list(whole.split(min(job.gap * model.step, _MAX_SECONDS)))
    recorder = SmoothingRecorder(model)
    check = PredictionCheck()
    try:
        for track in sessions:
            num_ignored = account.count
            records = list[TimedRecord]()
            for record in release_records(releaser, model.space, track, before=account):
                records.append(record)
                check.add(releaser)
                recorder.record(releaser)
            releases += locate_releases(user, records, model.space, num_ignored)
    except SingletonConstraintError as problem:
        raise SingletonConstraintError(f"user {user}: {problem}") from None
    outside = int((model.space.locate(whole.latitude, whole.longitude) == OUTSIDE).sum())
    counts = {"outside": outside, "shared": len(work.trajectory) - len(whole)}
    if not releases:
        return UserResult(Entry(user, 0, ""), counts)
    work.part.parent.mkdir(parents=True, exist_ok=True)
    table = ReleaseTable.from_releases(releases)
    settings = get_publishable_settings(job.settings)
    write_releases(work.part, table, overwrite=True, is_private=job.seed is None, settings=settings)
    hindsight = _infer_smoothed(recorder, releaser, model)
    (summary,) = summarise(table, hindsight=hindsight)
    counts |= {
        "timesteps": len(releases),
        "released": summary["num_releases"],
        "withheld": summary["num_withheld"],
        **{f"withheld_{reason}": int((table["withheld_reason"] == reason).sum()) for reason in WITHHELD_MESSAGES},
        "unprotected": summary["num_unprotected"],
        "after_gap": summary[RESTARTS],
    }
    if job.settings.caps:
        counts["ended_events"] = len(releaser.event_caps.find_past_caps(int(whole.slots[0])))
    entry = Entry(user, len(releases), hash_contents(work.part))
    smoothed: tuple[tuple[float, float], ...] = ()
    if history is not None:
        counts["single_day"] = int(has_single_day(history, model))
        informed = _infer_smoothed(recorder, releaser, build_habit_model(model, history))
        smoothed = _compare_adversaries(table, hindsight, informed)
    sampling = summarize_sampling(table, job.settings)
    recorder.close()
    repair = find_costly_repair(first, get_state_names(model.space))
    return UserResult(
        entry,
        counts,
        summary,
        table.max_constrained_epsilon,
        smoothed,
        sampling,
        repair,
        check,
        MovementCheck(model).compare(releases, whole),
    )


def _infer_smoothed(recorder: SmoothingRecorder, engine: Releaser, model: MarkovModel) -> Hindsight | None:
    """Return the metrics of an adversary with a model who has all releases.

    This includes those of earlier sessions. None if the gaps need too much time. None also if the model excludes the
    releases together. This can happen after a gap, where a session ignores that states are out of reach.
    """
    if recorder.estimate_gap_seconds(model) > _MAX_GAP_SECONDS:
        return None
    try:
        error, posterior = recorder.compute_smoothed_inference(engine.measurements.points, engine.cell, model)
    except StochasticError:
        return None
    return Hindsight(1000.0 * error, posterior)


def _compare_adversaries(table: ReleaseTable, *adversaries: Hindsight | None) -> tuple[tuple[float, float], ...]:
    """Return the smoothed metrics of each adversary. See `UserResult`.

    Empty unless there are metrics of all.
    """
    protected = ~table["unprotected"]
    metrics = [adversary for adversary in adversaries if adversary is not None]
    if len(metrics) < len(adversaries) or not protected.any():
        return ()
    return tuple(
        (float(np.median(adversary.error_m[protected])), float(adversary.max_posterior[protected].max()))
        for adversary in metrics
    )


_engine_lock = threading.Lock()


@lru_cache(maxsize=1)
def _load_engine(path: str, model_hash: str, settings: ReleaseSettings) -> Releaser:
    """Return the engine that a worker keeps for all users, with the first step prepared.

    It is public.
    """
    model = load_model(path)
    if model.content_hash != model_hash:
        raise ConfigurationError(f"{path} has changed since the batch started: start another batch")
    engine = settings.engine(model)
    engine.event_caps.ignores_past_caps = True
    model.space.locate(*model.space.latlon([0]).T)
    try:
        engine.soundness(engine.prepare())
    except ConfigurationError:
        if engine.first_step_is_user_independent:  # no user can be released
            raise
    except DphmmError:  # reported for the first user
        pass
    return engine
