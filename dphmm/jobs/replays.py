"""Releases read back out of a file with the engines that made them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from dphmm.arguments import checked
from dphmm.arrays import IntArray, content_hash
from dphmm.audit.hindsight import in_hindsight
from dphmm.audit.sequence import ReleasedSequence
from dphmm.errors import ConfigurationError, DataFileError, SessionMismatchError
from dphmm.jobs.models import Model, load_model
from dphmm.markov.model import MarkovModel
from dphmm.release.drawn_zones import redrawn
from dphmm.release.engine import Releaser
from dphmm.release.postgres import is_server
from dphmm.release.settings import GIVEN, ReleaseSettings
from dphmm.release.store import SessionStore
from dphmm.release.stored import StoredSession
from dphmm.release.terms import MAIN_QUERY, Terms
from dphmm.space.trajectory import microseconds
from dphmm.writers.formats import read_releases
from dphmm.writers.summary import Hindsight
from dphmm.writers.table import ReleaseTable

_SQLITE = b"SQLite format 3\x00"
MOST_CELLS = 10_000_000
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
        A file of durable sessions, or the address of a server that keeps them, as `dphmm.Session` takes it; or a file
        of releases that `dphmm.jobs.release` wrote.
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
    >>> from dphmm.jobs import Data, learn, region, release
    >>> space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell=0.5)
    >>> others, town = (Data(("data/sample/geolife",), users=users) for users in (("000", "001"), ("002",)))
    >>> model = learn(others, space, step_seconds=300).model
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     made = release(town, model, ReleaseSettings(), session=f"{folder}/s.session")
    ...     (one,) = replay(f"{folder}/s.session", model)
    >>> one.sequence.user, len(one.sequence) == len(made.table), one.engine.settings == ReleaseSettings()
    ('002', True, True)
    """
    learned = load_model(model)
    if is_server(path):
        yield from _from_store(path, learned, settings, users)
        return
    path = Path(path)
    if _is_store(path):
        yield from _from_store(path, learned, settings, users)
    elif settings is None:
        raise ConfigurationError("no policy is given; give the --policy that the releases were made with")
    else:
        yield from _from_table(path, learned, settings, users)


def name_of(path: str | Path) -> str:
    """What errors call a file, or a server, whose address may hold a password."""
    return "the database" if is_server(path) else str(path)


def _is_store(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return path.suffix.lower() != ".gpkg" and file.read(len(_SQLITE)) == _SQLITE
    except OSError as problem:
        raise DataFileError(path, f"cannot be read ({problem.strerror}); check the path") from None


def _from_store(
    path: str | Path, model: MarkovModel, given: ReleaseSettings | str | None, users: Sequence[str]
) -> Iterator[Replayed]:
    engine_of = cache(lambda settings: settings.engine(model))
    with SessionStore(path, readonly=True) as store, TemporaryDirectory(prefix="dphmm-zones-") as folder:
        for name in _chosen(users, store.names(), store.path):
            session = store.session(name)
            assert session is not None, "the store has just named it"
            if set(session.terms) != {MAIN_QUERY}:
                raise ConfigurationError(f"session {name!r} answers several queries, which an audit cannot join yet")
            stored = list(store.releases(session.number))
            engines = _engines(session, len(stored), given, engine_of, Path(folder))
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
                    engines={number: engine for number, engine in engines.items() if number},
                )
                private = all(one.terms[MAIN_QUERY].randomness == "system" for one in session.agreed)
                yield Replayed(sequence, engines[0], tuple(slots.tolist()), private)


def _engines(
    session: StoredSession,
    releases: int,
    given: ReleaseSettings | str | None,
    engine_of: Callable[[ReleaseSettings], Releaser],
    folder: Path,
) -> dict[int, Releaser]:
    """The number of a release → the engine of what was agreed on for it and those that follow.

    Zones that somebody drew are in the note of what was agreed on; settings that are given are for what has none.
    """
    found = {}
    for agreed in session.agreed:
        if agreed.first and agreed.first >= releases:
            continue
        terms = agreed.terms[MAIN_QUERY]
        settings = redrawn(terms.settings, agreed.note, folder)
        if not agreed.note and given is not None:
            settings = replace(terms.settings, policy=given) if isinstance(given, str) else given
        engine = engine_of(settings).another()
        for part, was, now in replace(terms, randomness="system").differences(Terms.of(engine)):
            since = f"went on from release {agreed.first + 1}" if agreed.first else "began"
            raise SessionMismatchError(
                f"session {session.name!r} {since} with {part} {was}, not {now}; give the one it was agreed on with"
            )
        found[agreed.first] = engine
    return found


def _from_table(
    path: Path, model: MarkovModel, given: ReleaseSettings | str, users: Sequence[str]
) -> Iterator[Replayed]:
    table = read_releases(path)
    engine_of = cache(lambda settings: settings.engine(model))
    for user in _chosen(users, list(dict.fromkeys(table["user"].tolist())), path):
        rows = table.select(table["user"] == user)
        settings = given if isinstance(given, ReleaseSettings) else stated_settings(path, user, rows, given)
        engine: Releaser = engine_of(settings).another()
        check_made_with(path, user, rows, engine)
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
    if not len(names) or int(counts.max()) * model.size > MOST_CELLS:
        return None
    found = Hindsight(np.empty(len(table)), np.empty(len(table)))
    step = microseconds(model.step, "step")
    for user in names.tolist():
        mine = users == user
        rows = table.select(mine)
        slots = rows["time"].astype("datetime64[us]").astype(np.int64) // step
        error, certainty = in_hindsight(engine.another(), sequence_of(user, rows, slots))
        found.error_m[mine], found.certainty[mine] = 1000.0 * error, certainty
    return found


def stated_settings(path: Path, user: str, rows: ReleaseTable, policy: str) -> ReleaseSettings:
    """The settings of somebody's releases of which only the policy was given."""
    for name in ("mechanism", "epsilon"):
        values = sorted(set(rows[name].tolist()))
        if len(values) != 1:
            several = ", ".join(str(value) for value in values[:8])
            raise DataFileError(path, f"user {user} has releases of several {name}s ({several}); give all settings")
    return ReleaseSettings(policy, float(rows["epsilon"][0]), rows["mechanism"][0])


def check_made_with(path: Path, user: str, rows: ReleaseTable, engine: Releaser) -> None:
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
