"""Every user of a data set released, each into a file of their own, written down before anyone can see it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from dphmm.arguments import checked
from dphmm.arrays import Rng
from dphmm.audit.sequence import PUBLIC, HindsightRecorder
from dphmm.certificate.canonical_forms import check_certifiable
from dphmm.errors import AlreadyKnownError, ConfigurationError, DphmmError, need
from dphmm.facts import guarantees_in_words, unless_seeded
from dphmm.jobs.adversaries import HABITS, Moments, before, habits, tracks_of
from dphmm.jobs.certificates import certify
from dphmm.jobs.guarantees import best_known_users, exposure_facts, verdict_of, warnings_of
from dphmm.jobs.input_data import OUTSIDE_REGION, SAME_TICK, Data, DataLike, Dropped
from dphmm.jobs.models import load_model, people_seen, refuse_own
from dphmm.jobs.progress import Watch, unwatched
from dphmm.jobs.run_folder import KEY, LAYOUT, Checkpoint, Entry, Published, file_hash, folder_key, keyed_source
from dphmm.jobs.stored_releases import MOST_CELLS
from dphmm.jobs.workers import Engine, Processes
from dphmm.policy.expression import policy_in_words
from dphmm.policy.isolated_states import said_of_isolated
from dphmm.release.engine import Releaser, ReleaseSettings
from dphmm.release.ledger import Account
from dphmm.release.trajectory import Moment, TimedRelease, moments_of, placed
from dphmm.space import OUTSIDE, Trajectory
from dphmm.tables import check_output
from dphmm.writers import ReleaseTable, summarise, write_releases


@dataclass(frozen=True)
class UserDone:
    """A user who was released.

    Parameters
    ----------
    entry
        Who, how many places, and the file's digest. No places for one who was never within the region where places
        outside are omitted; no file is written then.
    counts
        How many places on the model's clock lie ``outside`` the region, and how many fixes gave way to a later one of
        the same tick (``shared``). Of those who were released also how many moments were answered, ``withheld`` and
        ``open``, how many releases there are, how many of them belong to a later session than the first, whose belief
        forgets the releases before (``forgetting``), and how many capped events were over before (``passed_over``).
        Private.
    summary
        What `dphmm.writers.summarise` says of the releases; empty where there are none.
    constrained_epsilon
        The greatest constrained-DP level of a release.
    in_hindsight
        Of somebody who knows the model, and of somebody who knows this person's habits: the median error of the best
        guess in hindsight, metres, and the greatest probability of a place. Private; empty where not worked out.
    """

    entry: Entry
    counts: Mapping[str, int]
    summary: Mapping[str, Any] = field(default_factory=dict, repr=False)
    constrained_epsilon: float = 0.0
    in_hindsight: tuple[tuple[float, float], ...] = field(default=(), repr=False)

    @property
    def user(self) -> str:
        """Who."""
        return self.entry.user


@dataclass
class Tally:
    """What a batch's users amount to, without names but those of users who stand out.

    It needs the same memory however many there are.
    """

    sums: Counter[str] = field(default_factory=Counter)
    """The sums of the counts of `UserDone`."""
    users: Counter[str] = field(default_factory=Counter)
    """Of how many users each count is more than nothing; ``moments`` of those who were released."""
    never_within: int = 0
    epsilon: float = 0.0
    constrained_epsilon: float = 0.0
    without_history: int = 0
    in_hindsight: tuple[tuple[float, float], ...] = ()
    best_known_users: list[Mapping[str, Any]] = field(default_factory=list, repr=False)
    """The summaries of users that facts and warnings are about, see `dphmm.jobs.guarantees.best_known_users`."""

    def add(self, one: UserDone) -> None:
        """Count one more user."""
        self.sums.update(one.counts)
        self.users.update(name for name, count in one.counts.items() if count)
        if not one.summary:
            self.never_within += 1
            return
        self.epsilon = max(self.epsilon, one.summary["epsilon_total"])
        self.constrained_epsilon = max(self.constrained_epsilon, one.constrained_epsilon)
        self.without_history += not one.in_hindsight
        if one.in_hindsight:
            before = self.in_hindsight or one.in_hindsight
            pairs = zip(before, one.in_hindsight, strict=True)
            self.in_hindsight = tuple((min(a[0], b[0]), max(a[1], b[1])) for a, b in pairs)
        self.best_known_users = best_known_users([*self.best_known_users, one.summary])


@dataclass(frozen=True)
class Batch:
    """What a batch did in one run.

    Parameters
    ----------
    done
        The users of this run, in the order in which they were finished.
    before
        How many users had been released in the folder before.
    settings
        The settings of all releases.
    is_private
        Whether noise came from the operating system; where it follows from a seed nothing is private.
    alone
        How many states the policy joins to no other, and how far from one they are, in words; None if there are none.
    unchosen
        What was passed over in reading, and who was not chosen. Private.
    tally
        What the users of this run amount to. Private.
    """

    done: tuple[Entry, ...]
    before: int
    settings: ReleaseSettings
    is_private: bool
    alone: str | None
    unchosen: tuple[Dropped, ...] = ()
    tally: Tally = field(default_factory=Tally)

    @property
    def dropped(self) -> tuple[Dropped, ...]:
        """What of this run's data was not released as it was, and why. Private."""
        moved = self.settings.outside == "border"
        where, tally = "taken for the nearest place of it" if moved else "not released", self.tally
        shared = Dropped(SAME_TICK, tally.sums["shared"], tally.users["shared"])
        outside = Dropped(f"{OUTSIDE_REGION}, {where}", tally.sums["outside"], tally.users["outside"])
        return tuple(one for one in (*self.unchosen, shared, outside) if one.fixes)

    def verdict(self) -> tuple[str, ...]:
        """What a day's releases tell at most, and what a reader is expected to have learned; public.

        Returns
        -------
        tuple of str
            Two sentences; none where nobody was released.
        """
        rows = self.tally.best_known_users
        return verdict_of(rows, self.settings, self.is_private) if rows else ()

    def warnings(self) -> list[str]:
        """What a reader of 'private' has to know besides, with what to do about it; public.

        Returns
        -------
        list of str
            Sentences; none where there is nothing to know.
        """
        return warnings_of(self.tally.best_known_users, self.settings.policy)

    def facts(self) -> dict[str, Any]:
        """What this run amounts to and promises, from public things alone.

        Returns
        -------
        dict
            Names of facts → plain JSON values.
        """
        tally, settings = self.tally, self.settings
        found = {
            "users_released": tally.users["moments"],
            "releases": tally.sums["releases"],
            "moments_withheld": tally.sums["withheld"],
            "moments_open": tally.sums["open"],
            "users_never_in_the_region": tally.never_within,
            "epsilon_of_the_user_with_most": tally.epsilon,
            "releases_that_forget_earlier_ones": tally.sums["forgetting"],
            "users_with_such_releases": tally.users["forgetting"],
            "users_released_before": self.before,
            "policy": settings.policy,
            "states_the_policy_joins_to_none": self.alone,
            "mechanism": settings.mechanism,
            "exact": settings.is_exact,
            "epsilon_of_each": settings.epsilon,
            "joined_places": policy_in_words(settings.policy),
            "settings": settings.content_hash,
        }
        promise = {}
        if tally.best_known_users:
            promise = guarantees_in_words(settings.epsilon, tally.constrained_epsilon, tally.epsilon)
            found |= exposure_facts(tally.best_known_users)
        found |= unless_seeded(promise, self.is_private)
        return found | ({"users_after_a_capped_event": tally.users["passed_over"]} if settings.caps else {})

    def private_facts(self) -> dict[str, Any]:
        """What only the truth tells. Never publish it.

        Returns
        -------
        dict
            Names of facts → plain JSON values.
        """
        found: dict[str, Any] = {"private_places_outside_the_region": self.tally.sums["outside"]}
        if self.tally.in_hindsight:
            found["private_users_without_earlier_days"] = self.tally.without_history
            for knows, (error, certainty) in zip((PUBLIC.knows, HABITS), self.tally.in_hindsight, strict=True):
                who = f"in_hindsight_knowing_{knows.replace(' ', '_')}"
                found[f"private_adversary_error_m_median_{who}"] = error
                found[f"private_adversary_certainty_most_{who}"] = certainty
        return found


FILE_KINDS = {"parquet": ("pyarrow.parquet",), "csv": (), "geojson": (), "gpkg": ("pyogrio", "geopandas")}
"""What users' files may be → the libraries that write them."""

_LONGEST_GAP = 10**12
_USUAL_GAP = 500
_LONGEST_SECONDS = 3e11
"""Beyond the years 1 to 9999: nothing is cut."""


@dataclass(frozen=True)
class BatchJob:
    """What a worker has to know.

    Parameters
    ----------
    folder
        Where the files go, see `dphmm.jobs.batches.user_file`.
    model, model_hash
        The path of a model with its states and its time step, and its content hash, so that no worker goes on with
        another.
    settings
        The settings of all releases.
    seed, kind, session_gap
        As in `batch`.
    key
        What the noise follows from where there is no seed, see `keyed_source`; left out, it is drawn anew at every
        release, and what was lost cannot be made again.

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
    session_gap: int | None = None
    key: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.kind not in FILE_KINDS:
            raise ConfigurationError(f"files of kind {self.kind!r} are not written; choose {', '.join(FILE_KINDS)}")
        if self.session_gap is None:
            return
        if self.settings.caps:
            raise ConfigurationError(
                f"session_gap is {self.session_gap} steps, and a cap on an event counts all releases about a person; "
                "leave it out"
            )
        if not 1 <= self.session_gap <= _LONGEST_GAP:
            raise ConfigurationError(f"session_gap is {self.session_gap} steps; give 1 to {_LONGEST_GAP}")

    @property
    def gap(self) -> int:
        """The steps of the longest gap within a session."""
        if self.session_gap is None:
            return _LONGEST_GAP if self.settings.caps else _USUAL_GAP
        return self.session_gap

    def randomness(self, person: Trajectory) -> Rng:
        """Where a person's noise comes from: a stream of their own, whichever worker draws it."""
        if self.seed is not None:
            words = np.frombuffer(hashlib.sha256(person.user.encode()).digest()[:16], dtype="<u4").tolist()
            return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(2, *words)))
        if self.key is None:
            return None
        places = (person.times.astype("<M8[us]"), person.latitude.astype("<f8"), person.longitude.astype("<f8"))
        terms = f"{self.model_hash} {self.settings.content_hash} {self.gap}"
        label = (person.user.encode(), terms.encode(), *(values.tobytes() for values in places))
        return keyed_source(self.key, *label)


@checked
def batch(
    data: DataLike,
    folder: str | Path,
    model: str | Path,
    settings: ReleaseSettings,
    *,
    kind: str = "parquet",
    session_gap: int | None = None,
    workers: int | None = None,
    engine: Engine | None = None,
    seed: int | None = None,
    resume: bool = False,
    allow_own_model: bool = False,
    known: DataLike | None = None,
    certificate: str | Path | None = None,
    watch: Watch = unwatched,
) -> Batch:
    """Release every user in some data, each into a file of their own, as ``dphmm batch`` does.

    Paths are read one after another, and the places of only one of them are in memory at a time: for a data set beyond
    memory, give one Parquet of everyone (see `Data.one_after_another`), or a file or folder per user or group of users.
    Several paths are read twice, the first time to see who is in them, so that what is to be refused is so before a
    file is written.

    Parameters
    ----------
    data
        Whose places; a user must not be in two paths.
    folder
        A new or empty folder, unless `resume` is true.
    model
        The file of a public model.
    settings
        The settings of all releases.
    kind
        What files: one of `FILE_KINDS`.
    session_gap
        After a gap of more time steps than this (500 where it is left out) a new session begins, with the model's
        initial distribution as its prior. The records then speak of an adversary who forgot the sessions before. One
        who remembers them rules out what cannot be reached from there in the time of the gap, which is nothing more
        only where every state that the initial distribution holds can be; where the model falls into parts without a
        way between them, states of another part then hide no person from such an adversary. The column
        ``forgotten_releases`` says of each release how many before it its session has forgotten. A gap as long
        as the data keeps one session per user, as caps on events do, which go with no other. An event that was over at
        a person's first release is passed over for them, unless the model begins at rest.
    workers
        Processes on this machine; left out, one per processor. With one, everything happens in this process.
    engine
        Who works instead, such as `dphmm.jobs.workers.DaskCluster`. True places and the key of the noise go to it.
    seed
        Left out, the operating system's randomness. A seed makes every user's releases repeatable, hence not private.
    resume
        Whether the folder may hold a batch of the same terms; users who are released stay. Files that are damaged or
        absent are made again as they were, while the batch is unfinished; afterwards its key is gone, and they are
        refused.
    allow_own_model
        Whether to release people whose own data the model has seen; see `dphmm.jobs.models`.
    known
        Earlier data of the people, all held in memory: what releases tell somebody who has learned habits from them is
        worked out beside what they tell who knows the model, of the person known best by each, for yourself alone.
    certificate
        A new file for the proof of what is promised to everyone in the folder, which `scripts/dphmm-verify` checks; see
        `dphmm.jobs.certify`. Releases are gone through once more for it, and nothing is drawn.
    watch
        Shows how far the job has come; see `dphmm.jobs.Watch`.

    Returns
    -------
    Batch
        What this run did.

    Raises
    ------
    ConfigurationError
        When terms are none, a user is in two paths or in none, or the model was learned from a user, before any file of
        releases is written; when both workers and an engine are given; or when no one was within the model's region.
    OutputError, EngineError
        When the folder is in use, is held by another run or cannot be written, or workers keep dying.
    DataFileError
        When a file in the folder is none of the batch's, or damaged and not to be made again.
    DphmmError
        As the data, the model's file and the policy say.

    Examples
    --------
    >>> import tempfile
    >>> from dphmm import ReleaseSettings
    >>> from dphmm.jobs import Data, batch, learn, region
    >>> space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell=0.5)
    >>> town, some = "data/sample/geolife", ("000", "001")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = learn(Data((town,), exclude_users=some), space, 300, output=f"{folder}/m.npz")
    ...     people, settings = Data((town,), users=some), ReleaseSettings(policy="utility:1km", epsilon=1)
    ...     done = batch(people, f"{folder}/out", f"{folder}/m.npz", settings, kind="csv", workers=1)
    >>> sorted(one.user for one in done.done)
    ['000', '001']
    """
    if workers is not None and engine is not None:
        raise ConfigurationError("workers are processes of this machine, and an engine has its own; give one of both")
    crew = Processes(workers) if engine is None else engine
    folder, path = Path(folder).absolute(), Path(model).absolute()
    learned = load_model(model)
    seen = None if allow_own_model else people_seen(path, learned)
    job = BatchJob(str(folder), str(path), learned.content_hash, settings, seed, kind, session_gap)
    first = _engine(job.model, job.model_hash, settings)  # refuses now what would fail at the first user
    if certificate is not None:
        check_output(certificate)
        check_certifiable(first)
    for library in FILE_KINDS[kind]:
        need(library, "files")
    hashes = {"settings_sha256": settings.content_hash, "model_sha256": job.model_hash}
    how = {"settings": settings.to_dict(), "seed": seed, "kind": kind, "session_gap": job.gap, "layout": LAYOUT}
    terms = {**hashes, **how}
    Checkpoint.look(folder, terms, resume)
    left_out: list[Dropped] = []
    tally, done = Tally(), list[Entry]()
    earlier = tracks_of(known)
    with crew.begun():  # before any place is read: what a copy of this process has not got it cannot lose
        named = Data.from_any(data).one_after_another(partial(refuse_own, seen), left_out)  # refuses before a release
        people = _not_seen(named, seen)
        with closing(Checkpoint.open(folder, terms, resume)):
            published = Published(folder, kind)
            before = len(published)
            if seed is None:
                if published.lost and not (folder / KEY).exists():
                    raise published.refusal(min(published.lost))
                job = replace(job, key=folder_key(folder))
            for one in watch(release_everyone(job, people, crew, published, earlier), "Releasing users"):
                tally.add(one)
                done.append(one.entry)
            if published.lost:
                raise ConfigurationError(
                    f"{published.file(min(published.lost))} is damaged or gone; give this user's data too, and resume"
                )
            published.finish()
            (folder / KEY).unlink(missing_ok=True)
    at_the_border = settings.outside == "border"
    if not before and tally.sums["moments"] == at_the_border * tally.sums["outside"]:
        raise ConfigurationError(f"none of {len(done)} users was within the model's region; learn a model of theirs")
    alone = said_of_isolated(first.policy, learned.space)
    if certificate is not None:
        certify(folder, learned, certificate, watch=watch)
    return Batch(tuple(done), before, settings, seed is None, alone, tuple(left_out), tally)


def _not_seen(people: Iterable[Trajectory], seen: Collection[str] | None) -> Iterator[Trajectory]:
    for person in people:
        refuse_own(seen, [person.user])
        yield person


def release_everyone(
    job: BatchJob,
    people: Iterable[Trajectory],
    engine: Engine,
    published: Published | None = None,
    earlier: Mapping[str, Trajectory] = MappingProxyType({}),
) -> Iterator[UserDone]:
    """Release one user after another, each from a belief of their own, and write their file.

    A user who was released already is passed over, for a second release of the same places would cost its budget again.
    No more than a few users' releases are in memory at a time; of the places, what `people` holds.

    Parameters
    ----------
    job
        How.
    people
        Whom.
    engine
        Who works.
    published
        What the folder holds; left out, it is looked at here.
    earlier
        Earlier data of people, by name.

    Returns
    -------
    Iterator of UserDone
        As users are finished, in any order.

    Raises
    ------
    AlreadyKnownError
        When one state only is possible at some time and that is not allowed.
    DataFileError
        When a file in the folder is none of the batch's, or damaged and not to be made again.
    OutputError, EngineError
        When a file cannot be written, or workers keep dying.
    """
    folder = Published(Path(job.folder), job.kind) if published is None else published
    waiting = (
        Person(job, folder.part(one.user), one, earlier.get(one.user)) for one in people if not folder.has(one.user)
    )
    for done in engine.groups(_release_user, waiting):
        folder.add([one.entry for one in done])
        yield from done


@dataclass(frozen=True)
class Person:
    """A piece of a batch's work. What is written of it anywhere, such as in a worker's log, has no place in it."""

    job: BatchJob
    part: Path
    trajectory: Trajectory = field(repr=False)
    earlier: Trajectory | None = field(default=None, repr=False)


def _release_user(work: Person) -> UserDone:
    job, part, person = work.job, work.part, work.trajectory
    first = _engine(job.model, job.model_hash, job.settings)
    releaser, model = first.another(job.randomness(person)), first.model
    whole = person.resample(model.step)
    made: list[TimedRelease] = []
    account = Account()
    history = None if work.earlier is None else before(work.earlier, model, int(whole.slots[0]))
    heard = HindsightRecorder(model, len(whole)) if history and len(whole) * model.size <= MOST_CELLS else None
    try:
        for track in whole.split(min(job.gap * model.step, _LONGEST_SECONDS)):
            forgotten, moments = account.count, list[Moment]()
            for moment in moments_of(releaser, model.space, track, before=account):
                moments.append(moment)
                if heard is not None:
                    heard.record(releaser)
            made += placed(person.user, moments, model.space, forgotten)
    except AlreadyKnownError as problem:
        raise AlreadyKnownError(f"user {person.user}: {problem}, with --allow-known") from None
    outside = int((model.space.locate(whole.latitude, whole.longitude) == OUTSIDE).sum())
    counts = {"outside": outside, "shared": len(person) - len(whole)}
    if not made:
        return UserDone(Entry(person.user, 0, ""), counts)
    part.parent.mkdir(parents=True, exist_ok=True)
    table = ReleaseTable.from_releases(made)
    write_releases(part, table, overwrite=True, is_private=job.seed is None)
    (summary,) = summarise(table)
    counts |= {"moments": len(made), "releases": summary["releases"], "withheld": summary["moments_withheld"]}
    counts |= {"open": summary["moments_open"], "forgetting": sum(one.forgotten > 0 for one in made)}
    if job.settings.caps:
        counts["passed_over"] = len(releaser.capping.over_before(int(whole.slots[0])))
    dearest, entry = max(one.record.constrained_epsilon for one in made), Entry(person.user, len(made), file_hash(part))
    return UserDone(entry, counts, summary, dearest, _in_hindsight(releaser, table, heard, history))


def _in_hindsight(
    engine: Releaser, table: ReleaseTable, heard: HindsightRecorder | None, history: Moments | None
) -> tuple[tuple[float, float], ...]:
    """What adversaries in hindsight know who know the model, or the person's habits; see `UserDone`."""
    hidden = ~table["open"]
    if heard is None or history is None or not hidden.any():
        return ()
    found = []
    for model in (engine.model, habits(engine.model, history)):  # after a gap neither has forgotten anything
        error, certainty = heard.in_hindsight(engine.measurements.points, engine.cell, model)
        found.append((1000.0 * float(np.median(error[hidden])), float(certainty[hidden].max())))
    return tuple(found)


@lru_cache(maxsize=1)
def _engine(path: str, model_hash: str, settings: ReleaseSettings) -> Releaser:
    """What a worker keeps from one user to the next, with the first step prepared, the same for all: it is public."""
    model = load_model(path)
    if model.content_hash != model_hash:
        raise ConfigurationError(f"{path} has changed since the batch began; begin another batch")
    engine = settings.engine(model)
    engine.capping.passes_over_the_past = True
    model.space.locate(*model.space.latlon([0]).T)
    with suppress(DphmmError):  # which is then said of a user
        engine.ready(engine.prepare(), 0)
    return engine
