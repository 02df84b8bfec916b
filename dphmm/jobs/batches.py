"""Every user of a data set released, each into a file of their own."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote

import numpy as np

from dphmm.errors import AlreadyKnownError, ConfigurationError
from dphmm.jobs.checkpoint import Checkpoint
from dphmm.jobs.models import load_model
from dphmm.jobs.people import Data, DataLike
from dphmm.jobs.watch import Watch, unwatched
from dphmm.jobs.workers import Processes
from dphmm.release.engine import Releaser
from dphmm.release.settings import ReleaseSettings
from dphmm.release.trajectory import release_trajectory
from dphmm.space.trajectory import Trajectory
from dphmm.writers.formats import write_releases
from dphmm.writers.table import ReleaseTable

FILE_KINDS = ("parquet", "csv", "geojson", "gpkg")


@dataclass(frozen=True)
class BatchJob:
    """What a worker is told.

    Parameters
    ----------
    folder
        Where the files go: ``user=<name>/releases.<kind>``, the name percent-encoded.
    model, model_hash
        The path of a model with its states and its time step, and its content hash, so that no worker goes on with
        another.
    settings
        How everybody is released.
    seed, kind, session_gap
        As in `batch`.

    Raises
    ------
    ConfigurationError
        For another kind, or a gap of less than one step.
    """

    folder: str
    model: str
    model_hash: str
    settings: ReleaseSettings
    seed: int | None = None
    kind: str = "parquet"
    session_gap: int = 500

    def __post_init__(self) -> None:
        if self.kind not in FILE_KINDS:
            raise ConfigurationError(f"files of kind {self.kind!r} are not written; choose {', '.join(FILE_KINDS)}")
        if self.session_gap < 1:
            raise ConfigurationError(f"session_gap is {self.session_gap} steps; give at least 1")

    def file(self, user: str) -> Path:
        """Where a user's releases are, or will be."""
        return Path(self.folder) / f"user={quote(user, safe='')}" / f"releases.{self.kind}"


@dataclass(frozen=True)
class UserDone:
    """A user who was released.

    Parameters
    ----------
    user
        Who.
    releases
        How many places were released; 0 for one who was never within the region, for whom no file is written.
    """

    user: str
    releases: int


@dataclass(frozen=True)
class Batch:
    """What a batch did in one run.

    Attributes
    ----------
    done
        The users of this run, in the order in which they were finished.
    before
        How many users had been released in the folder before.
    """

    done: tuple[UserDone, ...]
    before: int


def batch(
    data: DataLike,
    folder: str | Path,
    model: str | Path,
    settings: ReleaseSettings,
    *,
    kind: str = "parquet",
    session_gap: int = 500,
    workers: int | None = None,
    seed: int | None = None,
    resume: bool = False,
    watch: Watch = unwatched,
) -> Batch:
    """Release every user in some data, each into a file of their own, as ``dphmm batch`` does.

    Paths are read one after another, and the places of only one of them are in memory at a time: for a data set beyond
    memory, give a file or folder per user or per group of users.

    Parameters
    ----------
    data
        Whose places; a user must not be in two paths.
    folder
        A new or empty folder, unless `resume` is true.
    model
        The file of a public model.
    settings
        How everybody is released.
    kind
        What files: one of `FILE_KINDS`.
    session_gap
        After a gap of more time steps than this a new session begins, with the model's initial distribution as its
        prior. The records then speak of an adversary who forgot the sessions before. One who remembers them rules out
        what cannot be reached from there in the time of the gap, which is nothing more only where every state that the
        initial distribution holds can be; where the model falls into parts without a way between them, states of
        another part then hide nobody from such a one. A gap as long as the data keeps one session per user.
    workers
        Processes on this machine; left out, one per processor. With one, everything happens in this process.
    seed
        Left out, the operating system's randomness. A seed makes every user's releases repeatable, hence not private.
    resume
        Whether the folder may hold a batch of the same terms; users who are released stay.
    watch
        Who is shown the progress.

    Raises
    ------
    ConfigurationError
        When terms are none, a user is in two paths, or nobody was within the model's region.
    OutputError, EngineError
        When the folder is in use or cannot be written, or a worker dies.
    DphmmError
        As the data, the model's file and the policy say.

    Examples
    --------
    >>> import tempfile
    >>> from dphmm import ReleaseSettings
    >>> from dphmm.jobs import batch, learn, region
    >>> space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell=0.5)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = learn("data/sample/geolife", space, 300, smoothing=0.5, output=f"{folder}/m.npz")
    ...     settings = ReleaseSettings(policy="utility:1km", epsilon=1)
    ...     done = batch("data/sample/geolife", f"{folder}/out", f"{folder}/m.npz", settings, kind="csv", workers=1)
    >>> sorted(one.user for one in done.done)
    ['000', '001', '002']
    """
    processes = Processes(workers)
    folder, path = Path(folder).absolute(), Path(model).absolute()
    job = BatchJob(str(folder), str(path), load_model(model).content_hash, settings, seed, kind, session_gap)
    _engine(job)  # refuses now what would fail at the first user
    terms = {"settings": settings.to_dict(), "settings_sha256": settings.content_hash, "model_sha256": job.model_hash}
    Checkpoint.open(folder, {**terms, "seed": seed, "kind": kind, "session_gap": session_gap}, resume)
    before = sum(1 for _ in folder.glob("user=*/releases.*"))
    people = Data.of(data).one_after_another()
    done = tuple(watch(release_everyone(job, people, processes), "Releasing users"))
    if not before and not any(one.releases for one in done):
        raise ConfigurationError(f"none of {len(done)} users was within the model's region; learn a model of theirs")
    return Batch(done, before)


def release_everyone(job: BatchJob, people: Iterable[Trajectory], processes: Processes) -> Iterator[UserDone]:
    """Release one user after another, each from a belief of their own, and write their file.

    Whoever's file is there already is passed over, for a second release of the same places would cost its budget again.
    No more than a few users' releases are in memory at a time; of
    the places, what `people` holds.

    Returns
    -------
    Iterator of UserDone
        As users are finished, in any order.

    Raises
    ------
    AlreadyKnownError
        When one state only is possible at some time and that is not allowed.
    OutputError, EngineError
        When a file cannot be written, or a worker dies.
    """
    waiting = ((job, person) for person in people if not job.file(person.user).exists())
    return processes.stream(_release_user, waiting)


def _release_user(work: tuple[BatchJob, Trajectory]) -> UserDone:
    job, person = work
    first = _engine(job)
    releaser, model = first.another(_randomness(job.seed, person.user)), first.model
    sessions = person.resample(model.step).split(job.session_gap * model.step)
    try:
        table = ReleaseTable.of(
            release for track in sessions for release in release_trajectory(releaser, model.space, track)
        )
    except AlreadyKnownError as problem:
        raise AlreadyKnownError(f"user {person.user}: {problem}, with --allow-known") from None
    if len(table):
        path = job.file(person.user)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_releases(path, table)
    return UserDone(person.user, len(table))


def _randomness(seed: int | None, user: str) -> np.random.Generator | None:
    """The operating system's randomness; under a seed, a stream for each user that depends on nothing else."""
    if seed is None:
        return None
    words = np.frombuffer(hashlib.sha256(user.encode()).digest()[:16], dtype="<u4").tolist()
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(2, *words)))


@lru_cache(maxsize=1)
def _engine(job: BatchJob) -> Releaser:
    """What a worker keeps from one user to the next: all of it public."""
    model = load_model(job.model)
    if model.content_hash != job.model_hash:
        raise ConfigurationError(f"{job.model} has changed since the batch began; begin another batch")
    return job.settings.engine(model)
