"""Releases wherever they are stored (a file, a batch's folder, sessions): listed, exported, replayed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import groupby
from math import isfinite
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from dphmm.arguments import checked
from dphmm.arrays import IntArray, content_hash
from dphmm.audit.sequence import ReleasedSequence, in_hindsight
from dphmm.errors import ConfigurationError, DataFileError, SessionMismatchError
from dphmm.facts import guarantees_in_words
from dphmm.jobs.models import Model, load_model
from dphmm.jobs.run_folder import JOURNAL, Checkpoint, file_hash, read_journal, user_file
from dphmm.model.model import MarkovModel
from dphmm.policy.graph import PolicyLike
from dphmm.policy.graph_text import policy_text
from dphmm.release import Ledger, Releaser, ReleaseSettings, SessionStore, StoredRelease, StoredSession, Terms
from dphmm.release.ledger import exactly
from dphmm.release.session_database import is_server, is_store
from dphmm.release.session_store import Pruned
from dphmm.release.session_terms import MAIN_QUERY, Agreed
from dphmm.release.settings import GIVEN
from dphmm.release.trajectory import place_on_earth
from dphmm.space.trajectory import microseconds
from dphmm.tables import check_output, write_text
from dphmm.writers import COLUMNS, Hindsight, ReleaseTable, read_releases, write_releases

SettingsLike: TypeAlias = "ReleaseSettings | str | PolicyLike"
"""The settings of releases, or their policy alone, as text or as a graph."""


@dataclass(frozen=True)
class SessionContent:
    """A session as its file tells it, every record checked.

    Parameters
    ----------
    session
        What it was agreed on.
    releases
        Its releases, in their order.
    possible_states
        How many states are possible after the last one; None before the first.
    pruned
        The releases before, whose records were removed.
    """

    session: StoredSession
    releases: tuple[StoredRelease, ...]
    possible_states: int | None
    pruned: Pruned = field(default_factory=Pruned)

    @cached_property
    def _ledger(self) -> Ledger:
        return Ledger.from_records([release.record for release in self.releases])

    @cached_property
    def _dearest(self) -> tuple[float, float]:
        """The greatest budget of a moment, over all its queries, and the greatest constrained-DP level."""
        by_moment = groupby(self.releases, lambda release: release.slot)
        moments = [Ledger.from_records([one.record for one in found]) for _, found in by_moment]
        levels = [one.constrained_epsilon for one in moments]
        return max((one.epsilon for one in moments), default=0.0), max(levels, default=0.0)

    @property
    def is_private(self) -> bool:
        """Whether all noise came from the operating system, and none from a seed."""
        agreed = (terms for one in self.session.agreed for terms in one.terms.values())
        return all(terms.randomness == "system" for terms in agreed)

    def cost(self) -> dict[str, Any]:
        """What the releases cost: Theorem 7.1, Theorem 7.2, and the greatest single step by Theorem 6.3."""
        slots, before = [release.slot for release in self.releases], self.pruned.account()
        return {
            "releases": self.pruned.count + len(slots),
            "first_slot": slots[0] if slots else None,
            "last_slot": slots[-1] if slots else None,
            "epsilon": float(before.epsilon + exactly(self._ledger.epsilon)),
            "constrained_epsilon": _finite(float(before.constrained_epsilon) + self._ledger.constrained_epsilon),
            "constrained_epsilon_of_the_dearest_release": _finite(self._dearest[1]),
        }

    def facts(self) -> dict[str, Any]:
        """What it promised, may spend and has spent, from public things alone."""
        facts = {"name": self.session.name, **self.cost(), "possible_states": self.possible_states}
        ledger, limits = self._ledger, self.session.limits
        if not self.is_private:
            facts["promise"] = "nothing: the noise follows from a seed"
        elif ledger.records:
            facts |= guarantees_in_words(*self._dearest, ledger.epsilon)
        facts |= {f"limit_{name}": value for name, value in vars(limits).items()}
        window = limits.window_steps
        facts["epsilon_of_the_dearest_window"] = None if window is None else ledger.window(window)
        if self.pruned.count:
            facts["releases_without_a_record"] = self.pruned.count
        facts["settings_agreed_on_at_releases"] = [one.first for one in self.session.agreed]
        for query, terms in self.session.terms.items():
            prefix = "" if len(self.session.terms) == 1 else f"{query}_"
            named = {**terms.settings.to_dict(), "settings": terms.settings_hash, "model": terms.model}
            named |= {"randomness": terms.randomness, "epsilon_of_each": named.pop("epsilon")}
            facts |= {prefix + part: value for part, value in named.items()}
        return facts


def _finite(value: float) -> float | str:
    return value if isfinite(value) else "unbounded"


@checked
def read_sessions(file: str | Path, names: Sequence[str] = ()) -> Iterator[SessionContent]:
    """The sessions of a file, of these names or all, by name.

    Parameters
    ----------
    file
        The file, or the address of a server.
    names
        Which sessions; left out, all.

    Yields
    ------
    SessionContent
        One session after another.

    Raises
    ------
    DataFileError
        When the file is no store of sessions, or damaged.
    ConfigurationError
        When it holds no session of a name.
    """
    with SessionStore(file, readonly=True) as store:
        for name in _chosen(names, store.names(), store.path):
            session = store.session(name)
            assert session is not None, "the store has just named it"
            belief = store.progress(session.number).belief
            possible = None if belief is None else int(belief.support.sum())
            pruned = store.pruned(session.number)
            yield SessionContent(session, tuple(store.releases(session.number)), possible, pruned)


@checked
def export_sessions(
    file: str | Path, output: str | Path, names: Sequence[str] = (), model: Model | None = None, overwrite: bool = False
) -> tuple[SessionContent, ...]:
    """Write the releases of the sessions of a file, of these names or all.

    Parameters
    ----------
    file
        The file of sessions.
    output
        Without a model a ``.jsonl`` with a line for every record: ``{"session": …, "slot": …, "query": …, "record":
        {…}}``, where a factor without bound is null. With one, places: .gpkg, .geojson, .csv, .gpx or .parquet.
    names
        Which sessions; left out, all.
    model
        The model that the sessions began with, to tell places and times.
    overwrite
        Whether an output that exists may be replaced.

    Returns
    -------
    tuple of SessionContent
        What was written.

    Raises
    ------
    ConfigurationError
        When the output has another ending, or the model is not the sessions'.
    DataFileError, OutputError
        When the file is no store of sessions, or the output cannot be written.
    """
    path = check_output(output, overwrite)
    sessions = tuple(read_sessions(file, names))
    if model is not None:
        is_private = all(one.is_private for one in sessions)
        write_releases(path, session_table(sessions, model), overwrite, is_private=is_private)
    elif path.suffix.lower() == ".jsonl":
        lines = [_line(one.session.name, release) for one in sessions for release in one.releases]
        write_text(path, "".join(f"{line}\n" for line in lines), overwrite)
    else:
        raise ConfigurationError(f"{path} would hold places, which need the map: give --model, or name a .jsonl")
    return sessions


def _line(name: str, release: StoredRelease) -> str:
    record = dict(vars(release.record))
    if not isfinite(release.record.constrained_factor):
        record["constrained_factor"] = None
    about = {"session": name, "slot": release.slot, "query": release.query, "record": record}
    return json.dumps(about, ensure_ascii=False, allow_nan=False)


def session_table(sessions: Sequence[SessionContent], model: Model) -> ReleaseTable:
    """The releases of sessions as a table, each session's name as the user.

    Raises
    ------
    ConfigurationError
        When the model is not the one that a session began with.
    """
    learned = load_model(model)
    step, placed = microseconds(learned.step, "step"), []
    for one in sessions:
        if {terms.model for terms in one.session.terms.values()} != {learned.content_hash}:
            name = "the model given" if not isinstance(model, str | Path) else str(model)
            raise ConfigurationError(
                f"{name} is not the model of session {one.session.name!r}; give the one it began with"
            )
        for release in one.releases:
            time = np.datetime64(release.slot * step, "us")
            placed.append(place_on_earth(one.session.name, time, release.record, learned.space))
    return ReleaseTable.from_releases(placed)


@dataclass(frozen=True, eq=False)
class StoredReleases:
    """Releases, and what the place where they were says of them.

    Parameters
    ----------
    table
        The releases, of all users.
    settings
        How all of them were released, where that is said: by a batch, and by sessions that agree on it. A file of
        releases names it by its hash alone.
    """

    table: ReleaseTable
    settings: ReleaseSettings | None = None


@checked
def read_released(source: str | Path, model: Model | None = None, users: Sequence[str] = ()) -> StoredReleases:
    """The releases in a file, a batch's folder or a store of sessions.

    Parameters
    ----------
    source
        A file that `dphmm.jobs.release` wrote, the folder that `dphmm.jobs.batch` wrote (of an unfinished batch what
        is there), the SQLite file of sessions, or the address of a PostgreSQL server that keeps them.
    model
        The model that sessions began with: their store knows states and no places. Otherwise it is not looked at.
    users
        With a folder or a store, these users (or sessions) alone are read.

    Returns
    -------
    StoredReleases
        The releases, and their settings where they are known.

    Raises
    ------
    ConfigurationError
        When a store is given without its model, or a user is not in a folder or store.
    DataFileError
        When it is none of these, or a file of a batch is not what was released.
    """
    if _holds_sessions(source):
        if model is None:
            raise ConfigurationError(f"{name_of(source)} holds sessions, whose places need the map: give --model too")
        sessions = tuple(read_sessions(source, users))
        agreed = [terms.settings for one in sessions for each in one.session.agreed for terms in each.terms.values()]
        same = bool(agreed) and all(one == agreed[0] for one in agreed)
        return StoredReleases(session_table(sessions, model), agreed[0] if same else None)
    path = Path(source)
    return _of_batch(path, users) if path.is_dir() else StoredReleases(read_releases(path))


def _of_batch(folder: Path, users: Sequence[str]) -> StoredReleases:
    if not (folder / JOURNAL).exists():
        raise DataFileError(folder, f"is no folder of a batch (there is no {JOURNAL}); name one, or a file of releases")
    facts: dict[str, Any] = Checkpoint(folder).facts
    entries = {entry.user: entry for entry in read_journal(folder) if entry.releases}
    tables = []
    for user in _chosen(users, list(entries), folder):
        path = user_file(folder, user, str(facts.get("kind")))
        if not path.exists() or file_hash(path) != entries[user].sha256:
            raise DataFileError(path, "is not what was released; restore it from a copy, or resume the batch")
        tables.append(read_releases(path))
    whole = ReleaseTable.from_releases(())
    if tables:
        whole = ReleaseTable({column.name: np.concatenate([one[column.name] for one in tables]) for column in COLUMNS})
    settings = facts.get("settings")
    return StoredReleases(whole, ReleaseSettings.from_dict(settings) if isinstance(settings, dict) else None)


MOST_CELLS = 10_000_000
"""Releases times states that are smoothed without being asked."""


@dataclass(frozen=True, eq=False)
class Replayed:
    """A person's releases with an engine that makes such ones, and when each was.

    Parameters
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
    path: str | Path, model: Model, settings: SettingsLike | None = None, users: Sequence[str] = ()
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
        How they were made. Durable sessions say so themselves, and refuse other settings; a policy alone, as text or as
        a graph, is needed where the session began with a graph. For a file of releases settings are needed, or the
        policy where everything but the epsilon and the mechanism, which the file tells, was left at its default.
    users
        These alone; left out, everyone.

    Yields
    ------
    Replayed
        One person after another.

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
    if _holds_sessions(path):
        yield from _from_store(path, learned, settings, users)
    elif settings is None:
        raise ConfigurationError("no policy is given; give the --policy that the releases were made with")
    else:
        table = read_releases(path)
        for _, rows, slots, engine in rows_by_user(Path(path), table, learned, settings, users):
            yield Replayed(_sequence(rows, slots), engine, tuple(slots.tolist()), None)


def replay_all(
    path: str | Path, model: Model, settings: SettingsLike | None, users: Sequence[str]
) -> tuple[Replayed, ...]:
    """The same at once, of at least one person.

    Raises
    ------
    ConfigurationError
        When nothing was released, and as `replay`.
    """
    people = tuple(replay(path, model, settings, users))
    if not people:
        raise ConfigurationError(f"{name_of(path)} holds no release; there is nothing to audit")
    return people


def name_of(path: str | Path) -> str:
    """What errors call a file, or a server, whose address may hold a password."""
    return "the database" if is_server(path) else str(path)


def _holds_sessions(path: str | Path) -> bool:
    return is_server(path) or is_store(Path(path))


def _from_store(
    path: str | Path, model: MarkovModel, given: SettingsLike | None, users: Sequence[str]
) -> Iterator[Replayed]:
    engine_of = cache(lambda settings: settings.engine(model))
    for content in read_sessions(path, users):
        session, stored, name = content.session, content.releases, content.session.name
        if set(session.terms) != {MAIN_QUERY}:
            raise ConfigurationError(f"session {name!r} answers several queries, which an audit cannot join yet")
        if content.pruned.count:
            raise ConfigurationError(
                f"the first {content.pruned.count} releases of session {name!r} were pruned, and an audit replays all; "
                "audit a copy from before"
            )
        if stored:
            engines = _engines(session, len(stored), given, engine_of)
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
    count: int,
    given: SettingsLike | None,
    engine_of: Callable[[ReleaseSettings], Releaser],
) -> dict[int, Releaser]:
    """The number of a release → the engine of what was agreed on for it and for those that follow.

    Zones that were drawn are in the note of what was agreed on; settings that are given are for what has none.
    """
    # Of several agreements before the same release only the last one held for any release.
    agreed = {one.first: one for one in session.agreed if one.first < count}
    return {first: engine_agreed(session, one, given, engine_of) for first, one in agreed.items()}


def engine_agreed(
    session: StoredSession,
    agreed: Agreed,
    given: SettingsLike | None,
    engine_of: Callable[[ReleaseSettings], Releaser],
) -> Releaser:
    """The engine of what a session was agreed on; one that differs is refused."""
    terms = agreed.terms[MAIN_QUERY]
    settings = terms.settings
    if not agreed.note and given is not None:
        settings = given if isinstance(given, ReleaseSettings) else replace(terms.settings, policy=policy_text(given))
    engine = engine_of(settings).another()
    for part, was, now in replace(terms, randomness="system").differences(Terms.from_engine(engine)):
        since = f"went on from release {agreed.first + 1}" if agreed.first else "began"
        raise SessionMismatchError(
            f"session {session.name!r} {since} with {part} {was}, not {now}; give the one it was agreed on with"
        )
    return engine


def rows_by_user(
    path: Path, table: ReleaseTable, model: MarkovModel, given: SettingsLike, users: Sequence[str]
) -> Iterator[tuple[str, ReleaseTable, IntArray, Releaser]]:
    """Each user's rows of a file of releases, with their time steps and an engine that makes such ones."""
    engine_of = cache(lambda settings: settings.engine(model))
    for user in _chosen(users, list(dict.fromkeys(table["user"].tolist())), path):
        rows = table.select(table["user"] == user)
        settings = given if isinstance(given, ReleaseSettings) else stated_settings(path, user, rows, given)
        engine: Releaser = engine_of(settings).another()
        check_made_with(path, user, rows, engine)
        slots = slots_of(rows, model)
        if (slots * microseconds(model.step, "step") != rows["time"].astype("datetime64[us]").astype(np.int64)).any():
            raise DataFileError(path, f"user {user}: a time is not on the model's clock of {model.step:g} s")
        yield user, rows, slots, engine


def slots_of(rows: ReleaseTable, model: MarkovModel) -> IntArray:
    """The time step of a model's clock that each release lies in, ``(T,)``."""
    return rows["time"].astype("datetime64[us]").astype(np.int64) // microseconds(model.step, "step")


def _sequence(rows: ReleaseTable, slots: IntArray) -> ReleasedSequence:
    """The releases of a user's rows, whose time steps are ``slots``, ``(T,)``."""
    return ReleasedSequence(
        str(rows["user"][0]),
        np.where(rows["withheld"][:, None], 0.0, np.stack([rows["x_km"], rows["y_km"]], axis=1)),
        rows["epsilon"],
        np.diff(slots, prepend=slots[0]),
        rows["possible_states"],
        rows["constrained_factor"],
        np.diff(rows["forgotten_releases"], prepend=-1) != 0,
        int(slots[0]),
    )


def hindsight_of(table: ReleaseTable, engine: Releaser) -> Hindsight | None:
    """What is known of each release's time in hindsight, by an adversary who has all of its user's releases.

    Parameters
    ----------
    table
        The releases, each user's in order of time.
    engine
        An engine of the model and the settings that they were made with.

    Returns
    -------
    Hindsight or None
        None where a user's releases times states would take too long: `audit_session` does it.
    """
    users = table["user"].astype(str)
    names, counts = np.unique(users, return_counts=True)
    if not len(names) or int(counts.max()) * engine.model.size > MOST_CELLS:
        return None
    found = Hindsight(np.empty(len(table)), np.empty(len(table)))
    for user in names.tolist():
        mine = users == user
        rows = table.select(mine)
        error, certainty = in_hindsight(engine.another(), _sequence(rows, slots_of(rows, engine.model)))
        found.error_m[mine], found.certainty[mine] = 1000.0 * error, certainty
    return found


def stated_settings(path: Path, user: str, rows: ReleaseTable, policy: str | PolicyLike) -> ReleaseSettings:
    """The settings of a user's releases of which only the policy was given."""
    for name in ("mechanism", "epsilon"):
        values = sorted(set(rows[name].tolist()))
        if len(values) != 1:
            several = ", ".join(str(value) for value in values[:8])
            raise DataFileError(path, f"user {user} has releases of several {name}s ({several}); give all settings")
    return ReleaseSettings(policy_text(policy), float(rows["epsilon"][0]), rows["mechanism"][0])


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


def _chosen(users: Sequence[str], known: Sequence[str], path: Path) -> Sequence[str]:
    """The users, or sessions, that are asked for, or all of them."""
    for user in users:
        if user not in known:
            some = ", ".join(map(repr, known[:8])) or "none"
            raise ConfigurationError(f"{path} has no releases of {user!r}; there are {some}")
    return users or known
