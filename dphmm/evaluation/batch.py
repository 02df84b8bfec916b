"""Every user of a data set released, each into a file of their own."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote

import numpy as np

from dphmm.arrays import RandomSource
from dphmm.errors import AlreadyKnownError, ConfigurationError
from dphmm.evaluation.engines import in_flight, worker_pool
from dphmm.geometry.measurements import Measurements
from dphmm.markov.model import MarkovModel
from dphmm.policy.expression import parse_policy
from dphmm.policy.protection import Method
from dphmm.release.engine import MechanismName, Releaser
from dphmm.release.trajectory import release_trajectory
from dphmm.space.states import StateSpace
from dphmm.space.trajectory import Trajectory
from dphmm.writers.formats import write_releases
from dphmm.writers.table import ReleaseTable

FILE_KINDS = ("parquet", "csv", "geojson", "gpkg")

_IN_FLIGHT_PER_WORKER = 4


@dataclass(frozen=True)
class BatchJob:
    """How everybody is released.

    Parameters
    ----------
    folder
        Where the files go: ``user=<name>/releases.<kind>``, the name percent-encoded.
    model
        The path of a model with its states and its time step.
    model_sha256
        The model's content, so that no worker goes on with another.
    policy
        As in `dphmm.policy.expression.parse_policy`.
    epsilon, mechanism, repair, delta, allow_known
        As in `dphmm.release.engine.Releaser`.
    seed
        Left out, the operating system's randomness. A seed makes every user's releases repeatable, hence not private.
    kind
        One of `FILE_KINDS`.
    session_gap
        After a gap of more time steps than this a new session begins, with the model's initial distribution as its
        prior: carrying the belief over a gap takes time in proportion. The records then speak of an adversary who
        forgot the sessions before. One who remembers them rules out what cannot be reached from there in the time of
        the gap, which is nothing more only where every state that the initial distribution holds can be; where the
        model falls into parts without a way between them, states of another part then hide nobody from such a one.
        A gap as long as the data (or a larger number) keeps one session per user.

    Raises
    ------
    ConfigurationError
        For another kind, or a gap of less than one step.
    """

    folder: str
    model: str
    model_sha256: str
    policy: str
    epsilon: float
    mechanism: MechanismName = "lattice"
    repair: Method = "exact"
    delta: float | None = None
    allow_known: bool = False
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


def release_everyone(job: BatchJob, people: Iterable[Trajectory], workers: int = 1) -> Iterator[UserDone]:
    """Release one user after another, each from a belief of their own, and write their file.

    Whoever's file is there already is passed over, for a second release of the same places would cost its budget again.
    With one worker everything happens in this process. No more than a few users' releases are in memory at a time; of
    the places, what `people` holds.

    Yields
    ------
    UserDone
        As users are finished, in any order.

    Raises
    ------
    AlreadyKnownError
        When one state only is possible at some time and that is not allowed.
    OutputError, EngineError
        When a file cannot be written, or a worker dies.
    """
    waiting = ((job, person) for person in people if not job.file(person.user).exists())
    if workers == 1:
        yield from map(_release_user, waiting)
        return
    pool: ProcessPoolExecutor = worker_pool(workers)
    try:
        yield from in_flight(pool, _release_user, waiting, workers * _IN_FLIGHT_PER_WORKER)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def check_job(job: BatchJob) -> None:
    """Refuse before anything is read what would fail at the first user.

    Raises
    ------
    DphmmError
        As the model's file, the policy and the engine say.
    """
    _engine(job)


def _release_user(work: tuple[BatchJob, Trajectory]) -> UserDone:
    job, person = work
    releaser, space, stream = _engine(job)
    stream.begin(job.seed, person.user)
    step_seconds = float(releaser.model.step_seconds or 0)
    sessions = person.resample(step_seconds).split(job.session_gap * step_seconds)
    try:
        table = ReleaseTable.of(release for track in sessions for release in release_trajectory(releaser, space, track))
    except AlreadyKnownError as problem:
        raise AlreadyKnownError(f"user {person.user}: {problem}, with --allow-known") from None
    if len(table):
        path = job.file(person.user)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_releases(path, table)
    return UserDone(person.user, len(table))


class _UserStream:
    """The operating system's randomness; under a seed, a stream for each user that depends on nothing else."""

    def __init__(self) -> None:
        self._generator: np.random.Generator | None = None

    def begin(self, seed: int | None, user: str) -> None:
        if seed is not None:
            words = np.frombuffer(hashlib.sha256(user.encode()).digest()[:16], dtype="<u4").tolist()
            self._generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(2, *words)))

    def read(self, count: int) -> bytes:
        return os.urandom(count) if self._generator is None else self._generator.bytes(count)


@lru_cache(maxsize=1)
def _engine(job: BatchJob) -> tuple[Releaser, StateSpace, _UserStream]:
    """What a worker keeps from one user to the next: all of it public."""
    model = MarkovModel.load(job.model)
    space = model.states
    if space is None or model.step_seconds is None:
        raise ConfigurationError(f"{job.model}: the model has no map or no time step; make one with 'dphmm learn'")
    stream = _UserStream()
    releaser = Releaser(
        model,
        Measurements(space.points),
        parse_policy(job.policy, space, model.transition),
        job.epsilon,
        job.mechanism,
        job.repair,
        job.delta,
        RandomSource(stream.read),
        allow_known=job.allow_known,
    )
    return releaser, space, stream
