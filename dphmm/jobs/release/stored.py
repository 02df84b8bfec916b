"""Stored releases in a file, a batch's folder or sessions: list, export and replay them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import groupby, islice
from math import inf, isfinite
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from dphmm.arrays import IntArray, hash_content
from dphmm.audit.sequence import ReleasedSequence, compute_smoothed_inference
from dphmm.errors import ConfigurationError, DataFileError, DphmmError, SessionMismatchError
from dphmm.formatting import Result, export_likelihood_ratios
from dphmm.jobs.batch.run_folder import JOURNAL, Checkpoint, get_user_file_path, hash_contents, read_journal
from dphmm.jobs.model.loading import Model, load_model
from dphmm.mechanisms.registry import BODY_BY_MECHANISM
from dphmm.model.model import MarkovModel
from dphmm.policy.expression import restore_policy
from dphmm.policy.graph import PolicyLike
from dphmm.policy.graph_text import format_policy_text
from dphmm.release import Ledger, Releaser, ReleaseSettings, SessionStore, StoredRelease, StoredSession, Terms
from dphmm.release.database_backends import is_server, is_store
from dphmm.release.ledger import Account
from dphmm.release.session import get_slot
from dphmm.release.session_store import Pruned
from dphmm.release.session_terms import MAIN_QUERY, Agreement
from dphmm.release.settings import GRAPH_POLICY_PREFIX
from dphmm.release.trajectory_release import locate_release
from dphmm.space.trajectory import round_to_microseconds
from dphmm.tables import check_output, write_text
from dphmm.tables.json_toml import parse_json
from dphmm.validation import check_arguments
from dphmm.writers import COLUMNS, Hindsight, ReleaseTable, read_releases, write_releases
from dphmm.writers.geopackage import read_metadata

clock = time.time  # replaceable in tests

# The largest number of releases of a session for which a release job computes smoothed metrics: 17 days of five-minute
# steps. The replay takes as long as the releases did.
MAX_REPLAYED_RELEASES = 5_000

# The settings of releases, or their policy only, as a string or a graph.
SettingsLike: TypeAlias = "ReleaseSettings | str | PolicyLike"


@dataclass(frozen=True)
class SessionContent(Result):
    """The content of a stored session, with every record checked.

    Parameters
    ----------
    session
        The stored session with its settings.
    releases
        Its releases, in their order.
    possible_states
        The number of possible states after the last release; None before the first.
    pruned
        The account of earlier releases, the records of which were removed.
    """

    session: StoredSession
    releases: tuple[StoredRelease, ...]
    possible_states: int | None
    pruned: Pruned = field(default_factory=Pruned)

    @cached_property
    def _account(self) -> Account:
        """The account of all releases, including those with a removed record."""
        account = self.pruned.build_account()
        for release in self.releases:
            account.add(release.slot, release.record.epsilon, release.record.constrained_dp_factor)
        return account

    @cached_property
    def _max_levels(self) -> tuple[float, float]:
        """The largest budget of a timestep and the largest constrained-DP level."""
        by_slot = groupby(self.releases, lambda release: release.slot)
        ledgers = [Ledger.from_records([release.record for release in releases]) for _, releases in by_slot]
        levels = [ledger.constrained_epsilon for ledger in ledgers]
        return max((ledger.epsilon for ledger in ledgers), default=0.0), max(levels, default=0.0)

    @property
    def num_kept_timesteps(self) -> int:
        """The number of timesteps with a record, including withheld ones."""
        return len({release.slot for release in self.releases})

    @property
    def num_kept_releases(self) -> int:
        """The number of records that are not withheld: one for each query of a timestep."""
        return sum(not release.record.withheld for release in self.releases)

    @property
    def is_private(self) -> bool:
        """Whether all noise came from the operating system, and none of it was seeded."""
        all_terms = (terms for agreed in self.session.agreements for terms in agreed.terms.values())
        return all(terms.randomness == "system" for terms in all_terms)

    def summarize_budget(self) -> dict[str, Any]:
        """Return the spent budget (Theorems 7.1 and 7.2) and the largest level (Theorem 6.3).

        Timesteps include withheld ones, releases do not. The number of releases, the first slot and the largest level
        are None if earlier records were removed, because they depend on these.
        """
        slots = [release.slot for release in self.releases]
        return {
            "num_timesteps": self.pruned.num_timesteps + self.num_kept_timesteps,
            "num_releases": None if self.pruned.count else self.num_kept_releases,
            "first_slot": slots[0] if slots and not self.pruned.count else None,
            "last_slot": slots[-1] if slots else None,
            "epsilon": float(self._account.epsilon),
            "constrained_epsilon": _replace_infinite(float(self._account.constrained_epsilon)),
            "max_constrained_epsilon": None if self.pruned.count else _replace_infinite(self._max_levels[1]),
        }

    def _derive_fields(self) -> dict[str, Any]:
        values = {"name": self.session.name, **self.summarize_budget(), "possible_states": self.possible_states}
        limits = self.session.limits
        epsilon, constrained_epsilon = self._max_levels
        levels = {"release": epsilon, "any_states": constrained_epsilon, "total": values["epsilon"]}
        if self.releases or not self.is_private:
            values |= export_likelihood_ratios(levels, self.is_private)
            if self.pruned.count:  # the removed records can exceed the maxima of those that remain
                values |= {"likelihood_ratio_release": None, "likelihood_ratio_any_states": None}
        values |= {f"limit_{name}": value for name, value in vars(limits).items()}
        window = limits.window_steps
        ledger = Ledger.from_records([release.record for release in self.releases])
        values["max_window_epsilon"] = (
            None if window is None or self.pruned.count else ledger.compute_max_window_epsilon(window)
        )
        if self.pruned.count:
            values["num_pruned_timesteps"] = self.pruned.num_timesteps
        values["settings_changed_at_timesteps"] = [agreed.first for agreed in self.session.agreements[1:]]
        for query, terms in self.session.terms.items():
            prefix = "" if len(self.session.terms) == 1 else f"{query}_"
            settings = {**terms.settings.to_dict(), "settings_hash": terms.settings_hash, "model_hash": terms.model}
            settings |= {"randomness": terms.randomness, "epsilon_per_release": settings.pop("epsilon")}
            if terms.settings.mechanism != "optimal":  # these settings do not apply
                settings |= {"optimal_max_states": None, "optimal_fallback": None}
            if terms.settings.schedule is not None or terms.settings.caps:  # the setting is an upper bound only
                budgets = [release.record.epsilon for release in self.releases if release.query == query]
                del settings["epsilon_per_release"]
                settings["max_epsilon_per_release"] = None if self.pruned.count else max(budgets, default=0.0)
            values |= {prefix + name: value for name, value in settings.items()}
        return values


def _replace_infinite(value: float) -> float | str:
    return value if isfinite(value) else "unbounded"


@check_arguments
def read_sessions(file: str | Path, names: Sequence[str] = ()) -> Iterator[SessionContent]:
    """Read the sessions of a file in the order of their names.

    Parameters
    ----------
    file
        The file, or the address of a server.
    names
        The names of sessions. Defaults to all.

    Yields
    ------
    SessionContent
        One session after another.

    Raises
    ------
    DataFileError
        If the file is not a store of sessions, or is damaged.
    ConfigurationError
        If it does not contain a session of a name.
    """
    with SessionStore(file, readonly=True) as store:
        for name in _select_users(names, store.names(), store.path):
            session = store.session(name)
            assert session is not None, "the store has just listed its name"
            belief = store.progress(session.number).belief
            possible = None if belief is None else int(belief.support.sum())
            pruned = store.get_pruned_costs(session.number)
            if not store.first_record(session.number):  # nothing was removed
                pruned = Pruned()
            releases = tuple(store.releases(session.number, pruned.count))
            yield SessionContent(session, releases, possible, pruned)


@check_arguments
def rewind_session(store: str | Path, name: str, model: Model) -> float:
    """Let a session continue now after releases or omissions of a wrong future.

    Those releases keep their values. See `SessionStore.rewind` for what is withheld.

    Parameters
    ----------
    store
        The file of sessions, or the address of a server.
    name
        The name of the session.
    model
        The model of the session, which defines times.

    Returns
    -------
    float
        End of the first timestep that can be released, in seconds since 1970.

    Raises
    ------
    ConfigurationError
        If there is no such session, the model is not the session's, or the session needs no correction or has event
        caps.
    DphmmError
        If the store cannot be used.
    """
    loaded_model = load_model(model)
    with SessionStore(store) as opened:
        _select_users((name,), opened.names(), opened.path)
        session = opened.session(name)
        assert session is not None, "the store has just listed its name"
        _check_model(session, loaded_model, model)
        step = loaded_model.step
        present = clock()
        # Corrected first: a process that is killed in between can be repeated, but not after the session is rewound.
        if (opened.get_kept_clock() or 0) > present:
            opened.keep_clock(int(present))
        first = opened.rewind(session, get_slot(np.datetime64(int(present), "s"), step), step)
    return first * step


@check_arguments
def export_sessions(
    file: str | Path, output: str | Path, names: Sequence[str] = (), model: Model | None = None, overwrite: bool = False
) -> tuple[SessionContent, ...]:
    """Write the releases of sessions to a file.

    Parameters
    ----------
    file
        The file of sessions.
    output
        Without a model a ``.jsonl`` with one line per record: ``{"session": …, "slot": …, "query": …, "record":
        {…}}``, in which numbers that are not finite are null. With a model a table: .gpkg, .geojson, .csv,
        .gpx or .parquet.
    names
        The names of sessions. Defaults to all.
    model
        The model of the sessions, which defines locations and times.
    overwrite
        Whether an existing output may be replaced.

    Returns
    -------
    tuple of SessionContent
        The exported sessions.

    Raises
    ------
    ConfigurationError
        If the output has an unsupported extension, the model is not the sessions' model, or a session is unsuitable for
        a table.
    DataFileError, OutputError
        If the file is not a store of sessions, or the output cannot be written.
    """
    path = check_output(output, overwrite)
    sessions = tuple(read_sessions(file, names))
    if model is not None:
        is_private = all(content.is_private for content in sessions)
        write_releases(path, build_session_table(sessions, model), overwrite, is_private=is_private)
    elif path.suffix.lower() == ".jsonl":
        lines = [_format_release(content.session.name, release) for content in sessions for release in content.releases]
        write_text(path, "".join(f"{line}\n" for line in lines), overwrite)
    else:
        raise ConfigurationError(f"{path} needs the locations of a model: use --model, or a .jsonl file")
    return sessions


def _format_release(name: str, release: StoredRelease) -> str:
    values = vars(release.record).items()
    # JSON has no other numbers: a factor may be infinite, and some figures of a withheld timestep are undefined.
    record = {name: None if isinstance(value, float) and not isfinite(value) else value for name, value in values}
    line = {"session": name, "slot": release.slot, "query": release.query, "record": record}
    return json.dumps(line, ensure_ascii=False, allow_nan=False)


def build_session_table(sessions: Sequence[SessionContent], model: Model) -> ReleaseTable:
    """Return the releases of sessions as a table, with the name of a session as its user.

    Raises
    ------
    ConfigurationError
        If the model is not the model of a session, or a session has several queries or one of something else than
        locations.
    """
    loaded_model = load_model(model)
    step = round_to_microseconds(loaded_model.step, "step")
    releases = []
    for content in sessions:
        name = content.session.name
        _check_model(content.session, loaded_model, model)
        # without this check, measurements of other queries would be rows of locations
        if len(content.session.terms) > 1 or any(len(release.record.estimate) != 2 for release in content.releases):
            raise ConfigurationError(
                f"session {name!r} must have one query, of locations, to be a table: export a .jsonl without a model"
            )
        for release in content.releases:
            time = np.datetime64(release.slot * step, "us")
            releases.append(locate_release(name, time, release.record, loaded_model.space))
    return ReleaseTable.from_releases(releases)


def _check_model(session: StoredSession, loaded_model: MarkovModel, model: Model) -> None:
    if {terms.model for terms in session.terms.values()} != {loaded_model.content_hash}:
        given_model = str(model) if isinstance(model, str | Path) else "the model"
        raise ConfigurationError(f"{given_model} is not the model of session {session.name!r}: use the original one")


@dataclass(frozen=True, eq=False)
class StoredReleases:
    """Releases and their settings.

    Parameters
    ----------
    table
        The releases of all users.
    settings
        The settings of all releases, as stored by a batch, or by sessions with equal settings. Of a file, the settings
        with the hash in its rows, if they are found: see `find_settings`. None otherwise.
    is_private
        Whether the noise came from the operating system. None for a file that does not state it: only a GeoPackage
        does.
    """

    table: ReleaseTable
    settings: ReleaseSettings | None = None
    is_private: bool | None = None


@check_arguments
def read_released(source: str | Path, model: Model | None = None, users: Sequence[str] = ()) -> StoredReleases:
    """Read the releases in a file, a batch's folder or a store of sessions.

    Parameters
    ----------
    source
        A file of `dphmm.jobs.release`, the folder of `dphmm.jobs.batch` (finished or not), the SQLite file of sessions,
        or the address of their PostgreSQL server.
    model
        The model of the sessions: their store contains states and no locations. Ignored for other sources.
    users
        For a folder or a store: the users (or sessions) to read. Defaults to all.

    Returns
    -------
    StoredReleases
        The releases, and their settings if they are known.

    Raises
    ------
    ConfigurationError
        If a store is given without its model, or a user is not in a folder or store.
    DataFileError
        If the source is of another type, or a file of a batch was changed after its release.
    """
    if _is_session_store(source):
        if model is None:
            raise ConfigurationError(f"{get_user_name(source)} contains sessions, which need a model: use --model too")
        sessions = tuple(read_sessions(source, users))
        all_settings = [
            terms.settings
            for content in sessions
            for agreed in content.session.agreements
            for terms in agreed.terms.values()
        ]
        are_equal = bool(all_settings) and all(settings == all_settings[0] for settings in all_settings)
        is_private = all(content.is_private for content in sessions)
        return StoredReleases(build_session_table(sessions, model), all_settings[0] if are_equal else None, is_private)
    path = Path(source)
    if path.is_dir():
        return _read_batch(path, users)
    table = read_releases(path)
    is_file_private = {"system": True, "seeded": False}.get(_read_metadata(path).get("randomness", ""))
    return StoredReleases(table, find_settings(path, table), is_file_private)


@dataclass(frozen=True)
class UserFile:
    """The file of a user in a batch's folder, and its digest in the journal.

    Any process that sees the folder can read it.
    """

    path: Path
    sha256: str

    def read(self) -> ReleaseTable:
        """Read the releases.

        Raises
        ------
        DataFileError
            If the file is missing or was changed.
        """
        if not self.path.exists() or hash_contents(self.path) != self.sha256:
            raise DataFileError(self.path, "was changed after its release: restore it from a copy, or resume the batch")
        return read_releases(self.path)


@dataclass(frozen=True)
class UserRows:
    """A user's releases in memory, with the method of `UserFile`."""

    table: ReleaseTable = field(repr=False)

    def read(self) -> ReleaseTable:
        """Return the releases."""
        return self.table


def read_batch_folder(folder: Path, users: Sequence[str] = ()) -> tuple[dict[str, UserFile], ReleaseSettings | None]:
    """Return the files of the users of a batch, by default of all, and its settings.

    Raises
    ------
    DataFileError
        If it is not the folder of a batch.
    ConfigurationError
        If a user has no releases.
    """
    if not (folder / JOURNAL).exists():
        raise DataFileError(
            folder, f"is not a folder of a batch (it has no {JOURNAL}): use such a folder, or a file of releases"
        )
    record: dict[str, Any] = Checkpoint(folder).record
    entries = {entry.user: entry for entry in read_journal(folder) if entry.releases}
    files = {
        user: UserFile(get_user_file_path(folder, user, str(record.get("kind"))), entries[user].sha256)
        for user in _select_users(users, list(entries), folder)
    }
    settings = record.get("settings")
    return files, ReleaseSettings.from_dict(settings) if isinstance(settings, dict) else None


def _read_batch(folder: Path, users: Sequence[str]) -> StoredReleases:
    files, settings = read_batch_folder(folder, users)
    tables = [file.read() for file in files.values()]
    merged = ReleaseTable.from_releases(())
    if tables:
        names = [column.name for column in COLUMNS]
        merged = ReleaseTable({name: np.concatenate([table[name] for table in tables]) for name in names})
    return StoredReleases(merged, settings, _is_batch_private(folder))


def _is_batch_private(path: Path) -> bool | None:
    """Return whether a batch has no seed. None for a file."""
    return Checkpoint(path).record.get("seed") is None if path.is_dir() else None


def locate_user_releases(
    source: str | Path, model: MarkovModel, users: Sequence[str] = ()
) -> Mapping[str, UserFile | UserRows]:
    """Return the releases of each user. See `read_released`.

    Those in a batch's folder are not read yet.
    """
    if not _is_session_store(source) and Path(source).is_dir():
        return read_batch_folder(Path(source), users)[0]
    table = read_released(source, model, users).table
    return {user: UserRows(rows) for user, rows in _split_by_user(table).items()}


def _split_by_user(table: ReleaseTable) -> dict[str, ReleaseTable]:
    """Return the rows of each user, in the order of first occurrence."""
    numbers: dict[str, list[int]] = {}
    for number, user in enumerate(table["user"].tolist()):
        numbers.setdefault(str(user), []).append(number)
    return {
        user: ReleaseTable({name: column[selected] for name, column in table.columns.items()})
        for user, selected in numbers.items()
    }


@dataclass(frozen=True, eq=False)
class ReplayResult:
    """A user's releases with an engine of their settings and model.

    Parameters
    ----------
    sequence
        The published releases.
    engine
        An engine of their settings and model.
    slots
        The time step of each release, counted from the epoch.
    private
        Whether the noise came from the operating system; None if the file does not state it.
    """

    sequence: ReleasedSequence
    engine: Releaser
    slots: tuple[int, ...]
    private: bool | None


@check_arguments
def replay(
    path: str | Path, model: Model, settings: SettingsLike | None = None, users: Sequence[str] = ()
) -> Iterator[ReplayResult]:
    """Replay the releases in a file, one user after another.

    Parameters
    ----------
    path
        A file of durable sessions or the address of their server, as for `dphmm.Session`; a file of releases of
        `dphmm.jobs.release`; or the folder of a batch.
    model
        The model of the releases.
    settings
        The settings of the releases. Durable sessions contain their settings and refuse others. The policy, as a
        string or a graph, is required if a session started with a graph. A batch contains its settings. A file of
        releases needs none if `find_settings` finds them, or the policy only if it finds the others.
    users
        The users. Defaults to all.

    Yields
    ------
    ReplayResult
        One user after another.

    Raises
    ------
    ConfigurationError
        If settings are missing, a user has no release, or a file of releases was made with other settings or another
        model.
    SessionMismatchError
        If a session started with another model or other settings.
    DataFileError
        If the file is of another type.

    Examples
    --------
    >>> import tempfile
    >>> from dphmm.jobs import Data, learn, region, release
    >>> space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=0.5)
    >>> others, town = (Data(("data/sample/geolife",), users=users) for users in (("000", "001"), ("002",)))
    >>> model = learn(others, space, step_seconds=300).model
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = release(town, model, ReleaseSettings(), session=f"{folder}/s.session")
    ...     (replayed,) = replay(f"{folder}/s.session", model)
    >>> sequence, engine = replayed.sequence, replayed.engine
    >>> sequence.user, len(sequence) == len(result.table), engine.settings == ReleaseSettings()
    ('002', True, True)
    """
    loaded_model = load_model(model)
    if _is_session_store(path):
        yield from _from_store(path, loaded_model, settings, users)
        return
    is_private = _is_batch_private(Path(path))
    for _, rows, slots, engine in iterate_user_rows(Path(path), loaded_model, settings, users):
        yield ReplayResult(_build_sequence_from_rows(rows, slots), engine, tuple(slots.tolist()), is_private)


def replay_all(
    path: str | Path, model: Model, settings: SettingsLike | None, users: Sequence[str]
) -> tuple[ReplayResult, ...]:
    """Replay the releases of all users, at least one.

    Raises
    ------
    ConfigurationError
        If there is no release, and as `replay`.
    """
    results = tuple(replay(path, model, settings, users))
    if not results:
        raise ConfigurationError(f"{get_user_name(path)} contains no release to audit")
    return results


def get_user_name(path: str | Path) -> str:
    """Return the name of a file or server in errors.

    The address of a server may contain a password.
    """
    return "the database" if is_server(path) else str(path)


def _is_session_store(path: str | Path) -> bool:
    return is_server(path) or is_store(Path(path))


def _from_store(
    path: str | Path,
    model: MarkovModel,
    requested: SettingsLike | None,
    users: Sequence[str],
    max_releases: float = inf,
) -> Iterator[ReplayResult]:
    get_engine = cache(lambda settings: settings.engine(model))
    for content in read_sessions(path, users):
        session = content.session
        stored = content.releases
        name = content.session.name
        if set(session.terms) != {MAIN_QUERY}:
            raise ConfigurationError(f"session {name!r} has several queries, which audits do not support")
        if len(stored) > max_releases:
            raise ConfigurationError(f"session {name!r} must have at most {max_releases} releases, got {len(stored)}")
        if content.pruned.count:
            raise build_pruned_error(name, content.pruned.count)
        if stored:
            engines = _get_engines(session, len(stored), requested, get_engine)
            sequence = build_sequence(name, stored, {number: engine for number, engine in engines.items() if number})
            slots = tuple(release.slot for release in stored)
            yield ReplayResult(sequence, engines[0], slots, content.is_private)


def build_pruned_error(name: str, count: int) -> ConfigurationError:
    """Build the error for a session without the records of its first timesteps."""
    subject = f"the first {count} timesteps" if count > 1 else "the first timestep"
    verb = "were" if count > 1 else "was"
    return ConfigurationError(
        f"{subject} of session {name!r} {verb} pruned, and a replay needs all: use a copy from before"
    )


def build_sequence(
    name: str,
    releases: Sequence[StoredRelease],
    engines: Mapping[int, Releaser] | None = None,
    last_slot: int | None = None,
) -> ReleasedSequence:
    """Build the sequence of stored releases for a replay.

    Parameters
    ----------
    name
        The name of the session.
    releases
        Releases in their order, at least one.
    engines
        See `ReleasedSequence`. Defaults to one engine for all.
    last_slot
        Slot of the release before them. Defaults to None: there is none.

    Raises
    ------
    ConfigurationError
        If the session was rewound: its releases are not in the order of time.
    """
    slots = np.array([release.slot for release in releases])
    steps = np.diff(slots, prepend=slots[0] if last_slot is None else last_slot)
    if (steps < 0).any():
        raise ConfigurationError(f"session {name!r} was rewound after a wrong time and cannot be replayed")
    records = [release.record for release in releases]
    return ReleasedSequence(
        name,
        np.array([record.released or (0.0,) * len(record.estimate) for record in records]),
        np.array([record.epsilon for record in records]),
        steps,
        np.array([record.num_possible_states for record in records]),
        np.array([record.constrained_dp_factor for record in records]),
        first_slot=int(slots[0]),
        engines=engines or {},
    )


def _get_engines(
    session: StoredSession,
    count: int,
    requested: SettingsLike | None,
    get_engine: Callable[[ReleaseSettings], Releaser],
) -> dict[int, Releaser]:
    """Return the engines of agreed settings, by the index of their first release.

    An agreement's note contains the zones drawn by its user. Requested settings apply to agreements without a note.
    """
    # Of several agreements before the same release only the last one applied to any release.
    agreements = {agreed.first: agreed for agreed in session.agreements if agreed.first < count}
    return {first: get_agreed_engine(session, agreed, requested, get_engine) for first, agreed in agreements.items()}


def get_agreed_engine(
    session: StoredSession,
    agreed: Agreement,
    requested: SettingsLike | None,
    get_engine: Callable[[ReleaseSettings], Releaser],
) -> Releaser:
    """Return the engine of a session's agreed settings.

    Raises an error if the requested settings differ.
    """
    terms = agreed.terms[MAIN_QUERY]
    settings = terms.settings
    if not agreed.note and requested is not None:
        if isinstance(requested, ReleaseSettings):
            settings = requested
        else:
            settings = replace(terms.settings, policy=format_policy_text(requested))
    engine = get_engine(settings).spawn()
    for part, was, now in replace(terms, randomness="system").differences(Terms.from_engine(engine)):
        since = f"continued from release {agreed.first + 1}" if agreed.first else "started"
        raise SessionMismatchError(
            f"session {session.name!r} {since} with {part} {was}, got {now}: use the original one"
        )
    return engine


def iterate_user_rows(
    path: Path, model: MarkovModel, requested: SettingsLike | None, users: Sequence[str]
) -> Iterator[tuple[str, ReleaseTable, IntArray, Releaser]]:
    """Yield each user's rows of a file or a batch.

    They come with their time steps and an engine of their settings. Of a batch, one user's rows are in memory at a
    time.
    """
    get_engine = cache(lambda settings: settings.engine(model))
    if path.is_dir():
        files, stored = read_batch_folder(path, users)
        parts: Iterator[StoredReleases] = (StoredReleases(file.read(), stored) for file in files.values())
        users = ()
    else:
        parts = iter([read_released(path, model, users)])
    for released in parts:
        tables = _split_by_user(released.table)
        for user in _select_users(users, list(tables), path):
            rows = tables[user]
            engine: Releaser = get_engine(choose_settings(path, user, rows, requested, released.settings)).spawn()
            check_made_with(path, user, rows, engine)
            slots = compute_slots(rows, model)
            times = rows["time"].astype("datetime64[us]").astype(np.int64)
            if (slots * round_to_microseconds(model.step, "step") != times).any():
                raise DataFileError(path, f"user {user}: times must be multiples of the model's step, {model.step:g} s")
            yield user, rows, slots, engine


def compute_slots(rows: ReleaseTable, model: MarkovModel) -> IntArray:
    """Return the time step of each release, ``(T,)``."""
    return rows["time"].astype("datetime64[us]").astype(np.int64) // round_to_microseconds(model.step, "step")


def _build_sequence_from_rows(rows: ReleaseTable, slots: IntArray) -> ReleasedSequence:
    """Return the releases of a user's rows with their time steps ``(T,)``."""
    return ReleasedSequence(
        str(rows["user"][0]),
        np.where(rows["withheld"][:, None], 0.0, np.stack([rows["x_km"], rows["y_km"]], axis=1)),
        rows["epsilon"],
        np.diff(slots, prepend=slots[0]),
        rows["possible_states"],
        rows["constrained_dp_factor"],
        np.diff(rows["num_ignored_releases"], prepend=-1) != 0,
        int(slots[0]),
    )


def compute_hindsight(table: ReleaseTable, engine: Releaser) -> Hindsight:
    """Compute the metrics of each row for an adversary who has all releases of its user.

    Parameters
    ----------
    table
        The releases, each user's in order of time.
    engine
        An engine of their model and settings.

    Returns
    -------
    Hindsight
        Its arrays have an entry for each row.
    """
    users = table["user"].astype(str)
    hindsight = Hindsight(np.empty(len(table)), np.empty(len(table)))
    for user in np.unique(users).tolist():
        is_user = users == user
        rows = table.select(is_user)
        error, max_posterior = compute_smoothed_inference(
            engine.spawn(), _build_sequence_from_rows(rows, compute_slots(rows, engine.model))
        )
        hindsight.error_m[is_user] = 1000.0 * error
        hindsight.max_posterior[is_user] = max_posterior
    return hindsight


def compute_session_hindsight(
    path: str | Path, table: ReleaseTable, engine: Releaser, max_releases: int = MAX_REPLAYED_RELEASES
) -> Hindsight | None:
    """Compute the metrics of each row for an adversary who has the user's whole session.

    The session may contain earlier releases, and is replayed from the first. None if a session cannot be replayed: it
    has more than `max_releases` releases, or it was pruned, rewound or amended.

    Parameters
    ----------
    path
        The file of the sessions, or the address of their server.
    table
        Releases of the sessions.
    engine
        An engine of their model and settings.
    max_releases
        The largest number of releases of a session.

    Returns
    -------
    Hindsight or None
        Its arrays have an entry for each row.
    """
    users = table["user"].astype(str)
    names = list(dict.fromkeys(users.tolist()))
    hindsight = Hindsight(np.empty(len(table)), np.empty(len(table)))
    # The releases are stored already. A session that an audit refuses must not prevent their output.
    with suppress(DphmmError):
        for result in _from_store(path, engine.model, engine.settings, names, max_releases):
            is_user = users == result.sequence.user
            error, max_posterior = compute_smoothed_inference(result.engine.spawn(), result.sequence)
            at = np.searchsorted(result.slots, compute_slots(table.select(is_user), engine.model))
            hindsight.error_m[is_user] = 1000.0 * error[at]
            hindsight.max_posterior[is_user] = max_posterior[at]
        return hindsight
    return None


def choose_settings(
    path: Path, user: str, rows: ReleaseTable, requested: SettingsLike | None, stored: ReleaseSettings | None
) -> ReleaseSettings:
    """Return the requested, stored or found settings of a user's rows.

    A requested policy for which none are found is completed by the epsilon and the mechanism of the rows.

    Raises
    ------
    ConfigurationError
        If no settings are requested or stored, and none are found.
    DataFileError
        If rows are withheld or have several epsilons or mechanisms, and no settings of the requested policy are found.
    """
    if isinstance(requested, ReleaseSettings):
        return requested
    if requested is None and stored is not None:
        return stored
    policy = None if requested is None else format_policy_text(requested)
    settings = find_settings(path, rows, policy, stored)
    if settings is not None:
        return settings
    if policy is None:
        raise ConfigurationError(
            f"{path} must contain the settings of its releases, or they must be the defaults: use --policy, and the "
            "other options of the release"
        )
    if stored is not None:
        return replace(stored, policy=policy)
    sampled = rows.select(~rows["withheld"])
    for name in ("mechanism", "epsilon"):
        values = sorted(set(sampled[name].tolist()))
        if len(values) != 1:
            listed = ", ".join(str(value) for value in values[:8]) or "no sampled location"
            raise _build_incomplete_error(path, f"user {user} has releases with several {name}s ({listed})")
    if len(sampled) < len(rows):
        raise _build_incomplete_error(path, f"user {user} has withheld timesteps, of a schedule or an event cap")
    return ReleaseSettings(policy, float(sampled["epsilon"][0]), sampled["mechanism"][0])


def _build_incomplete_error(path: Path, reason: str) -> DataFileError:
    """Build the error for a policy that does not suffice."""
    return DataFileError(
        path,
        f"{reason}: provide all settings of the release, such as its --window-epsilon (by default 3) or --target-error",
    )


def find_settings(
    path: Path, rows: ReleaseTable, policy: str | None = None, stored: ReleaseSettings | None = None
) -> ReleaseSettings | None:
    """Find the settings that have the hash in all rows of a file.

    Candidates are the stored settings, the defaults of ``dphmm release`` with the mechanism of the rows, a constant
    budget equal to the epsilon of the sampled rows, the settings in the metadata of the file, and those in the
    certificates (``.jsonl``) in its folder.

    Parameters
    ----------
    path
        The file.
    rows
        Some of its releases.
    policy
        The policy of all candidates. Defaults to that of each candidate.
    stored
        Settings that are stored with the releases.

    Returns
    -------
    ReleaseSettings or None
        The first candidate with the hash of the rows; None if there is none.
    """
    hashes = set(rows["settings_hash"].tolist())
    for candidate in _iterate_candidate_settings(path, rows, {} if policy is None else {"policy": policy}, stored):
        if hashes == {candidate.content_hash[:16]}:
            return candidate
    return None


def get_publishable_settings(settings: ReleaseSettings) -> str | None:
    """Return the canonical settings for the metadata of released files, or None.

    Event caps and drawn zones name sensitive locations, and graphs may be large: such settings are not written.
    """
    is_plain = not (settings.caps or settings.layers or settings.policy.startswith(GRAPH_POLICY_PREFIX))
    return settings.canonical if is_plain else None


def _iterate_candidate_settings(
    path: Path, rows: ReleaseTable, policy: dict[str, Any], stored: ReleaseSettings | None
) -> Iterator[ReleaseSettings]:
    if stored is not None:
        yield replace(stored, **policy)
    mechanisms = {name for name in rows["mechanism"].tolist() if name in BODY_BY_MECHANISM or "@" in name}
    epsilons = set(rows["epsilon"][~rows["withheld"]].tolist())
    if len(mechanisms) == 1:
        mechanism = mechanisms.pop()
        yield ReleaseSettings.for_a_day(mechanism=mechanism, **policy)
        if len(epsilons) == 1 and min(epsilons) > 0:
            yield ReleaseSettings(epsilon=epsilons.pop(), mechanism=mechanism, **policy)
    for text in _iterate_published_settings(path):
        # The canonical text contains the digest of a file, not its path: such settings need a requested policy.
        with suppress(ValueError, TypeError, KeyError, DphmmError):
            values = parse_json(text)
            settings = ReleaseSettings.from_dict({**values, "policy": restore_policy(values["policy"]), **policy})
            settings.content_hash  # noqa: B018 - raises if a file named by the settings cannot be read
            yield settings


def _read_metadata(path: Path) -> Mapping[str, str]:
    with suppress(ValueError, RuntimeError, OSError):  # metadata that cannot be read are absent
        return read_metadata(path)
    return {}


def _iterate_published_settings(path: Path) -> Iterator[str]:
    """Yield the canonical settings in a file's metadata and its folder's certificates."""
    contained = _read_metadata(path).get("settings")
    if contained is not None:
        yield contained
    for certificate in sorted(path.absolute().parent.glob("*.jsonl")):
        if not certificate.is_file():
            continue
        with suppress(OSError, ValueError, KeyError, TypeError), certificate.open("rb") as stream:
            if not stream.readline(_HEADER_BYTES).startswith(b'{"certificate"'):
                continue
            begin = next((line for line in islice(stream, _MAX_PARTS) if line.startswith(b'{"begin"')), None)
            if begin is not None:
                yield from (str(query["settings"]) for query in parse_json(begin)["queries"])


# A certificate begins the first user after one part each for the model, the policy and the places.
_MAX_PARTS = 10
_HEADER_BYTES = 100


def check_made_with(path: Path, user: str, rows: ReleaseTable, engine: Releaser) -> None:
    """Refuse a model or settings with other hashes than those of the rows."""
    graph = GRAPH_POLICY_PREFIX + hash_content(engine.policy.content_hash, engine.model.space.points)
    by_graph = replace(engine.settings, policy=graph)
    check_hash(path, user, rows, "model", engine.model)
    check_hash(path, user, rows, "settings", engine.settings, by_graph)


def check_hash(
    source: str | Path, user: str, rows: ReleaseTable, name: str, *candidates: MarkovModel | ReleaseSettings
) -> None:
    """Refuse rows if their hash of the model or of the settings is not that of a candidate."""
    hashes = [candidate.content_hash[:16] for candidate in candidates]
    different = next((stored for stored in rows[f"{name}_hash"].tolist() if stored not in hashes), None)
    if different is not None:
        raise ConfigurationError(
            f"{source}: user {user} was released with {name} {different}, got {hashes[0]}: use the original one"
        )


def _select_users(users: Sequence[str], names: Sequence[str], path: Path) -> Sequence[str]:
    """Return the requested users or sessions, by default all."""
    for user in users:
        if user not in names:
            listed = ", ".join(map(repr, names[:8])) or "none"
            raise ConfigurationError(f"{path} has no releases of {user!r}; it contains {listed}")
    return users or names
