"""Releases read back out of a file with the engine that made them, and what they tell an adversary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dphmm.arguments import checked
from dphmm.arrays import IntArray, content_hash
from dphmm.audit.metrics import TOP
from dphmm.audit.sequence import ReleasedSequence, SequenceAudit, audit_sequence, in_hindsight
from dphmm.audit.verdict import Thresholds, verdict
from dphmm.errors import ConfigurationError, DataFileError, SessionMismatchError
from dphmm.jobs.models import Model, load_model
from dphmm.jobs.people import Data, DataLike
from dphmm.jobs.subjects import Prior, checked_prior, state_names
from dphmm.jobs.watch import Watch, unwatched
from dphmm.markov.model import MarkovModel
from dphmm.release.engine import Releaser
from dphmm.release.settings import GIVEN, ReleaseSettings
from dphmm.release.store import SessionStore
from dphmm.release.terms import MAIN_QUERY, Terms
from dphmm.release.trajectory import located
from dphmm.space.states import OUTSIDE, StateSpace
from dphmm.space.trajectory import microseconds
from dphmm.writers.formats import read_releases
from dphmm.writers.summary import Hindsight
from dphmm.writers.table import ReleaseTable

_SQLITE = b"SQLite format 3\x00"
_MOST_CELLS = 10_000_000
"""Releases times states that are smoothed without being asked."""


@dataclass(frozen=True, eq=False)
class Replayed:
    """A person's releases with an engine that makes such ones, and when each was.

    Attributes
    ----------
    sequence
        What was published.
    engine
        An engine of the settings and the model that it was published with.
    slots
        The time step of each release, counted from the epoch.
    private
        Whether noise came from the operating system; None where the file does not say.
    """

    sequence: ReleasedSequence
    engine: Releaser
    slots: tuple[int, ...]
    private: bool | None


@checked
def replay(
    path: str | Path, model: Model, settings: ReleaseSettings | str | None = None, users: Sequence[str] = ()
) -> Iterator[Replayed]:
    """The releases in a file, one person after another, as `dphmm.jobs.audit_session` takes them.

    Parameters
    ----------
    path
        A file of durable sessions, or one of releases that `dphmm.jobs.release` wrote.
    model
        The model that they were made with.
    settings
        How they were made. Durable sessions say so themselves, and refuse other settings; a policy alone, as text, is
        needed where the session began with a graph. For a file of releases settings are needed, or the policy where
        everything but the epsilon and the mechanism, which the file tells, was left at its default.
    users
        These alone; left out, everyone.

    Raises
    ------
    ConfigurationError
        When settings are missing, a user has no release, or a file of releases was made with others or another model.
    SessionMismatchError
        When a session began with another model or other settings.
    DataFileError
        When the file is neither.

    Examples
    --------
    >>> import tempfile
    >>> from dphmm.jobs import learn, region, release
    >>> space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell=0.5)
    >>> others, town = (Data(("data/sample/geolife",), users=users) for users in (("000", "001"), ("002",)))
    >>> model = learn(others, space, step_seconds=300).model
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     made = release(town, model, ReleaseSettings(), session=f"{folder}/s.session")
    ...     (one,) = replay(f"{folder}/s.session", model)
    >>> one.sequence.user, len(one.sequence) == len(made.table), one.engine.settings == ReleaseSettings()
    ('002', True, True)
    """
    path = Path(path)
    learned = load_model(model)
    if _is_store(path):
        yield from _from_store(path, learned, settings, users)
    elif settings is None:
        raise ConfigurationError("no policy is given; give the --policy that the releases were made with")
    else:
        yield from _from_table(path, learned, settings, users)


def _is_store(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return path.suffix.lower() != ".gpkg" and file.read(len(_SQLITE)) == _SQLITE
    except OSError as problem:
        raise DataFileError(path, f"cannot be read ({problem.strerror}); check the path") from None


def _from_store(
    path: Path, model: MarkovModel, given: ReleaseSettings | str | None, users: Sequence[str]
) -> Iterator[Replayed]:
    engine_of = cache(lambda settings: settings.engine(model))
    with SessionStore(path, readonly=True) as store:
        for name in _chosen(users, store.names(), path):
            session = store.session(name)
            assert session is not None, "the store has just named it"
            if set(session.terms) != {MAIN_QUERY}:
                raise ConfigurationError(f"session {name!r} answers several queries, which an audit cannot join yet")
            if len(session.agreed) > 1:
                raise ConfigurationError(
                    f"session {name!r} was agreed on anew at release {session.agreed[1].first}, and an audit reads all "
                    "releases as made under one policy; audit other sessions"
                )
            terms = session.terms[MAIN_QUERY]
            settings = replace(terms.settings, policy=given) if isinstance(given, str) else given or terms.settings
            engine: Releaser = engine_of(settings).another()
            for part, was, now in replace(terms, randomness="system").differences(Terms.of(engine)):
                raise SessionMismatchError(
                    f"session {name!r} began with {part} {was}, not {now}; give the one it began with"
                )
            stored = list(store.releases(session.number))
            if stored:
                slots = np.array([release.slot for release in stored])
                records = [release.record for release in stored]
                sequence = ReleasedSequence(
                    name,
                    np.array([record.released or (0.0,) * len(record.estimate) for record in records]),
                    np.array([record.epsilon for record in records]),
                    np.diff(slots, prepend=slots[0]),
                    np.array([record.possible for record in records]),
                    np.array([record.constrained_factor for record in records]),
                    first=int(slots[0]),
                )
                yield Replayed(sequence, engine, tuple(slots.tolist()), terms.randomness == "system")


def _from_table(
    path: Path, model: MarkovModel, given: ReleaseSettings | str, users: Sequence[str]
) -> Iterator[Replayed]:
    table = read_releases(path)
    engine_of = cache(lambda settings: settings.engine(model))
    for user in _chosen(users, list(dict.fromkeys(table["user"].tolist())), path):
        rows = table.select(table["user"] == user)
        settings = given if isinstance(given, ReleaseSettings) else _stated(path, user, rows, given)
        engine: Releaser = engine_of(settings).another()
        _check_made_with(path, user, rows, engine)
        slots = _slots(path, user, rows, model)
        yield Replayed(sequence_of(user, rows, slots), engine, tuple(slots.tolist()), None)


def sequence_of(user: str, rows: ReleaseTable, slots: IntArray) -> ReleasedSequence:
    """The releases of a user's rows, whose time steps are ``slots``, ``(T,)``."""
    return ReleasedSequence(
        user,
        np.where(rows["withheld"][:, None], 0.0, np.stack([rows["x_km"], rows["y_km"]], axis=1)),
        rows["epsilon"],
        np.diff(slots, prepend=slots[0]),
        rows["possible_states"],
        rows["constrained_factor"],
        np.diff(rows["forgotten_releases"], prepend=-1) != 0,
        int(slots[0]),
    )


def hindsight_of(table: ReleaseTable, engine: Releaser) -> Hindsight | None:
    """What is known of each release's time in hindsight, by whoever has all of its user's releases.

    Parameters
    ----------
    table
        The releases, each user's in order of time.
    engine
        An engine of the model and the settings that they were made with.

    Returns
    -------
    Hindsight or None
        None where somebody has so many releases over so many states that it would take long: `audit_session` does it.
    """
    users, model = table["user"].astype(str), engine.model
    names, counts = np.unique(users, return_counts=True)
    if not len(names) or int(counts.max()) * model.size > _MOST_CELLS:
        return None
    found = Hindsight(np.empty(len(table)), np.empty(len(table)))
    step = microseconds(model.step, "step")
    for user in names.tolist():
        mine = users == user
        rows = table.select(mine)
        slots = rows["time"].astype("datetime64[us]").astype(np.int64) // step
        known = in_hindsight(engine.another(), sequence_of(user, rows, slots))
        found.error_m[mine], found.certainty[mine] = 1000.0 * known.error, known.best
    return found


def _stated(path: Path, user: str, rows: ReleaseTable, policy: str) -> ReleaseSettings:
    """The settings of somebody's releases of which only the policy was given."""
    for name in ("mechanism", "epsilon"):
        values = sorted(set(rows[name].tolist()))
        if len(values) != 1:
            several = ", ".join(str(value) for value in values[:8])
            raise DataFileError(path, f"user {user} has releases of several {name}s ({several}); give all settings")
    return ReleaseSettings(policy, float(rows["epsilon"][0]), rows["mechanism"][0])


def _check_made_with(path: Path, user: str, rows: ReleaseTable, engine: Releaser) -> None:
    """Refuse a model or settings whose hashes are not those that the rows tell."""
    graph = GIVEN + content_hash(engine.policy.content_hash, engine.model.space.points)
    by_graph = replace(engine.settings, policy=graph)
    for name, own in (("model", (engine.model,)), ("settings", (engine.settings, by_graph))):
        hashes = [one.content_hash[:16] for one in own]
        other = next((stated for stated in rows[name].tolist() if stated not in hashes), None)
        if other is not None:
            raise ConfigurationError(
                f"{path}: user {user} was released with {name} {other}, not {hashes[0]}; give what it was made with"
            )


def _slots(path: Path, user: str, rows: ReleaseTable, model: MarkovModel) -> IntArray:
    step = microseconds(model.step, "step")
    times = rows["time"].astype("datetime64[us]").astype(np.int64)
    if (times % step).any():
        raise DataFileError(path, f"user {user}: a time is not on the model's clock of {model.step:g} s")
    return np.asarray(times // step)


def _chosen(users: Sequence[str], known: Sequence[str], path: Path) -> Sequence[str]:
    for user in users:
        if user not in known:
            raise ConfigurationError(f"{path} has no releases of {user!r}; there are {', '.join(known[:8])}")
    if not known:
        raise ConfigurationError(f"{path} holds no release; there is nothing to audit")
    return users or known


def _true_states(data: DataLike, everyone: Sequence[Replayed]) -> list[IntArray]:
    """The true states of each person at each of their releases, ``(T,)`` each. Private.

    Parameters
    ----------
    data
        The trajectories that were released.
    everyone
        The releases.

    Raises
    ------
    ConfigurationError
        When a person is not in the data, or no place is known at the time of a release.
    DataFileError
        As `dphmm.read` does.
    """
    users = tuple(one.sequence.user for one in everyone)
    tracks = {one.user: one for one in replace(Data.of(data), users=users).read().trajectories}
    found = []
    for one, user in zip(everyone, users, strict=True):
        track, space = tracks[user].resample(one.engine.model.step), one.engine.model.space
        states, _ = located(space, track.latitude, track.longitude, one.engine.settings.outside)
        at = dict(zip(track.slots.tolist(), states.tolist(), strict=True))
        truth = np.array([at.get(slot, OUTSIDE) for slot in one.slots])
        if (truth < 0).any():
            raise ConfigurationError(
                f"user {user}: the true trajectory has no place within the region at release "
                f"{int((truth < 0).argmax()) + 1}; give the data that was released"
            )
        found.append(truth)
    return found


@dataclass(frozen=True, eq=False)
class SessionAudit:
    """What somebody's releases tell, for each of some people.

    Attributes
    ----------
    space
        The states.
    people, audits
        Their releases, and what was found about each.
    private
        Whether the truth went in; what was found is private then.
    thresholds
        What was to be learned at most.
    """

    space: StateSpace
    people: tuple[Replayed, ...]
    audits: tuple[SequenceAudit, ...] = field(repr=False)
    private: bool
    thresholds: Thresholds = field(default_factory=Thresholds)

    @property
    def is_exposed(self) -> bool:
        """Whether at some release some state was, or more was learned than the thresholds allow."""
        return bool(self.beyond) or self.has_exposed_state

    @property
    def has_exposed_state(self) -> bool:
        """Whether at some release some state was exposed."""
        return any(audit.exposed_steps for audit in self.audits)

    @cached_property
    def beyond(self) -> dict[str, tuple[str, ...]]:
        """User → what was learned of them beyond the thresholds, in words; those alone of whom something was."""
        found = {audit.user: self.thresholds.beyond(audit) for audit in self.audits}
        return {user: said for user, said in found.items() if said}

    def in_words(self) -> str:
        """What each release kept to itself, what all of them told of the person known best, and whether it is much."""
        kept = (
            "At some release a state is exposed."
            if self.has_exposed_state
            else "At no release is a state exposed: each possible one has another that this release tells it from by a "
            "factor of at most e^epsilon."
        )
        known_best = max(self.audits, key=lambda audit: float(audit.hindsight.best.mean()))
        return f"{kept} {known_best.in_words()} {verdict(known_best)}.{self._against_thresholds()}"

    def _against_thresholds(self) -> str:
        if self.thresholds == Thresholds():
            return ""
        if not self.beyond:
            return " Nobody is known beyond the thresholds."
        user, said = next(iter(self.beyond.items()))
        return (
            f" Beyond the thresholds are {len(self.beyond)} of {len(self.audits)} users; {user}: {'; '.join(said)}. "
            "Release less often or with a smaller epsilon: dphmm calibrate finds it."
        )

    def facts(self) -> dict[str, Any]:
        """What was found as plain JSON values."""
        names = state_names(self.space)
        return {
            "exposed": self.is_exposed,
            "in_words": self.in_words(),
            "private": self.private,
            "thresholds": vars(self.thresholds),
            "beyond": {user: list(said) for user, said in self.beyond.items()},
            "users": [
                {**audit.facts(names), "randomness_was_private": one.private}
                for audit, one in zip(self.audits, self.people, strict=True)
            ],
        }


@checked
def audit_session(
    path: str | Path,
    model: Model,
    settings: ReleaseSettings | str | None = None,
    *,
    users: Sequence[str] = (),
    prior: Prior | None = None,
    true: DataLike | None = None,
    top: int = TOP,
    thresholds: Thresholds | None = None,
    watch: Watch = unwatched,
) -> SessionAudit:
    """What releases tell the best-informed adversary, as ``dphmm audit session`` does.

    Parameters
    ----------
    path, model, settings, users
        As in `replay`.
    prior
        The distribution of the first state that another adversary holds; left out, the model's.
    true
        The trajectories that were released, for whoever may know them; the result is private then.
    top
        How many places count as the top.
    thresholds
        What is to be learned at most; whoever is known better counts as exposed.
    watch
        Who is shown the progress.

    Raises
    ------
    DphmmError
        As `replay`, `dphmm.audit.sequence.audit_sequence` and the data.

    Examples
    --------
    >>> import tempfile
    >>> from dphmm import ReleaseSettings
    >>> from dphmm.jobs import Data, audit_session, learn, region, release
    >>> space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell=0.5)
    >>> others, town = (Data(("data/sample/geolife",), users=users) for users in (("000", "001"), ("002",)))
    >>> model = learn(others, space, step_seconds=300).model
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = f"{folder}/releases.csv"
    ...     made = release(town, model, ReleaseSettings(policy="utility:1km", epsilon=0.5), file, rng=1)
    ...     found = audit_session(file, model, "utility:1km", true=town)
    >>> found.is_exposed, found.audits[0].epsilon == 0.5 * len(made.table)
    (False, True)
    >>> bool(found.audits[0].hindsight.entropy.mean() < found.audits[0].uninformed.entropy.mean())
    True
    """
    learned = load_model(model)
    believed = None if prior is None else checked_prior(prior, state_names(learned.space))
    people = tuple(replay(path, learned, settings, users))
    if not people:
        raise ConfigurationError(f"{path} holds no release; there is nothing to audit")
    truths = [None] * len(people) if true is None else _true_states(true, people)
    audits = tuple(
        audit_sequence(one.engine, one.sequence, believed, truth, top)
        for one, truth in watch(zip(people, truths, strict=True), "Replaying", len(people))
    )
    return SessionAudit(learned.space, people, audits, true is not None, thresholds or Thresholds())
