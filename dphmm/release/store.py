"""What is kept of sessions: their terms, every public record, and the public belief. Never a true state."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from dphmm.arguments import checked
from dphmm.errors import DataFileError, SessionBusyError
from dphmm.markov.belief import Belief
from dphmm.release.database import Database
from dphmm.release.ledger import Limits
from dphmm.release.postgres import PostgresDatabase, is_server
from dphmm.release.record import ReleaseRecord
from dphmm.release.terms import Terms
from dphmm.tables.json_text import parse_json

Coarser = Mapping[float, tuple[float, ...]]
"""Budget → a release with the noise of that budget on top."""


@dataclass(frozen=True)
class StoredSession:
    """What a session was agreed on.

    Parameters
    ----------
    number, name
        Which one it is.
    terms
        Query → what its promise is made of.
    limits
        What it may spend.
    """

    number: int
    name: str
    terms: dict[str, Terms]
    limits: Limits


@dataclass(frozen=True)
class Progress:
    """How far a session has come.

    Parameters
    ----------
    count
        The number of releases.
    slot
        The time step of the last one; None before the first.
    belief
        The public belief after it; None before the first.
    head
        The digest of the last record, which covers all before it.
    omitted
        The last time step of which was said that it has no release; None where there is none.
    """

    count: int
    slot: int | None
    belief: Belief | None
    head: bytes
    omitted: int | None

    @property
    def latest(self) -> int | None:
        """The last time step of which something was said."""
        return max((slot for slot in (self.slot, self.omitted) if slot is not None), default=None)


@dataclass(frozen=True)
class StoredRelease:
    """A release and its place in time.

    Parameters
    ----------
    slot
        The time step.
    query
        The query that it answers.
    record
        The public record.
    """

    slot: int
    query: str
    record: ReleaseRecord


@checked
class SessionStore:
    """A file of sessions, safe against crashes and open to several processes.

    Parameters
    ----------
    path
        The file. Where there is none it is made, readable by its owner alone, unless `readonly`. Or a PostgreSQL
        database as ``postgresql://user@host/database``, whose tables are made where there are none.
    wait_seconds
        How long to wait for another process that is writing.
    readonly
        Whether nothing will be written.

    Raises
    ------
    DataFileError
        When the file is no store of this version, or damaged; it is left as it is.
    OutputError
        When it is to be written and cannot be.
    """

    def __init__(self, path: str | Path, wait_seconds: float = 30.0, readonly: bool = False) -> None:
        self._database: Database | PostgresDatabase
        if is_server(path):
            self.path = Path("the database")
            self._database = PostgresDatabase(str(path), wait_seconds, readonly)
            return
        self.path = Path(path)
        if not readonly and not self.path.exists():
            Database.create(self.path)
        self._database = Database(path, wait_seconds, readonly)

    def __enter__(self) -> SessionStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._database.close()

    # ---- reading -------------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """The names of all sessions, sorted."""
        names = [name for (name,) in self._database.execute("SELECT name FROM session ORDER BY name")]
        if not all(isinstance(name, str) for name in names):
            raise self._damaged("the name of a session")
        return names

    def session(self, name: str) -> StoredSession | None:
        """The session of a name, or None.

        Raises
        ------
        DataFileError
            When what is stored is damaged.
        """
        query = "SELECT number, terms, limits, digest FROM session WHERE name = ?"
        rows = self._database.execute(query, (name,))
        if not rows:
            return None
        number, terms, limits, digest = rows[0]
        with self._intact(f"session {name!r}", digest, number, name, terms, limits):
            stored = parse_json(terms)
            agreed = {query: Terms.from_json(text) for query, text in stored.items()}
            return StoredSession(number, name, agreed, Limits(**parse_json(limits)))

    def progress(self, session: int) -> Progress:
        """How far a session has come, as of now.

        Raises
        ------
        DataFileError
            When what is stored is damaged.
        """
        query = "SELECT count, slot, head, belief, omitted, digest FROM progress WHERE session = ?"
        rows = self._database.execute(query, (session,))
        what = f"the progress of session number {session}"
        if not rows:
            raise self._damaged(what)
        *values, digest = rows[0]
        with self._intact(what, digest, session, *values):
            count, slot, head, belief, omitted = values
            _check_types(
                ((count, int), (slot, int | None), (head, bytes), (belief, bytes | None), (omitted, int | None))
            )
            return Progress(count, slot, None if belief is None else Belief.from_bytes(belief), head, omitted)

    def find(self, session: int, slot: int, query: str) -> ReleaseRecord | None:
        """What was released at a time for a query, or None."""
        where = "session = ? AND slot = ? AND query = ?"
        rows = self._database.execute(
            f"SELECT number, body, digest, {_PREVIOUS} FROM record WHERE {where}", (session, slot, query)
        )
        return self._checked(session, (rows[0][0], slot, query, *rows[0][1:])).record if rows else None

    def releases(self, session: int, first: int = 0, last: int | None = None) -> Iterator[StoredRelease]:
        """The releases of a session in their order, from number ``first`` to before ``last`` (left out: all).

        Raises
        ------
        DataFileError
            At the first one that is damaged or missing.
        """
        end = self.progress(session).count if last is None else last
        rows = self._database.execute(
            f"SELECT number, slot, query, body, digest, {_PREVIOUS} FROM record "
            "WHERE session = ? AND number >= ? AND number < ? ORDER BY number",
            (session, first, end),
        )
        if len(rows) != end - first:
            raise self._damaged(f"the releases of session number {session}")
        for expected, row in enumerate(rows, start=first):
            if row[0] != expected:
                raise self._damaged(f"release {expected} of session number {session}")
            yield self._checked(session, row)

    def _checked(self, session: int, row: tuple[Any, ...]) -> StoredRelease:
        number, slot, query, body, digest, previous = row
        what = f"release {number} of session number {session}"
        with self._intact(what, digest, previous or b"", session, number, slot, query, body):
            _check_types(((slot, int), (query, str)))
            return StoredRelease(slot, query, ReleaseRecord.from_json(body))

    @contextmanager
    def _intact(self, what: str, digest: bytes, *parts: Any) -> Iterator[None]:
        """Refuse parts that have another digest, or that the block cannot read."""
        try:
            if digest != _digest(*parts):
                raise ValueError
            yield
        except (TypeError, AttributeError, ValueError):
            raise self._damaged(what) from None

    def _damaged(self, what: str) -> DataFileError:
        return DataFileError(self.path, f"is damaged at {what}; restore a copy")

    # ---- writing -------------------------------------------------------------------------------------------------

    def add(self, name: str, terms: Mapping[str, Terms], limits: Limits) -> StoredSession:
        """The session of a name, made with these terms and limits where there is none."""
        agreed = {query: one.to_json() for query, one in terms.items()}
        texts = json.dumps(agreed, sort_keys=True), json.dumps(asdict(limits))
        for _ in range(_ATTEMPTS):
            with self._database.transaction():
                if self.session(name) is not None:
                    break
                ((number,),) = self._database.execute("SELECT 1 + COALESCE(MAX(number), 0) FROM session")
                if self._database.execute(
                    "INSERT INTO session VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING number",
                    (number, name, *texts, _digest(number, name, *texts)),
                ):
                    values = number, 0, None, b"", None, None, b""
                    self._database.execute("INSERT INTO progress VALUES (?, ?, ?, ?, ?, ?, ?)", values)
                    self._set_progress(number, Progress(0, None, None, b"", None))
        known = self.session(name)
        if known is None:
            raise SessionBusyError(f"{self.path}: session {name!r} vanished while it was made; ask again")
        return known

    def append(
        self,
        session: int,
        progress: Progress,
        slot: int,
        query: str,
        width: int,
        draw: Callable[[], tuple[ReleaseRecord, Belief, Coarser]],
    ) -> ReleaseRecord | None:
        """Draw and write one release in one transaction.

        Parameters
        ----------
        session, progress
            The session, and how far it had come when the release was prepared.
        slot, query
            What is released.
        width
            The length to which the record's text is filled up, the same whatever is drawn.
        draw
            Gives the record, the belief after it, and coarser releases by their budgets. It is called with the file
            locked.

        Returns
        -------
        ReleaseRecord or None
            The record as it reads from the file from now on, once it is on the disk. None where another process went
            on with the session meanwhile: nothing is drawn then.

        Raises
        ------
        OutputError
            When there is no room or no permission: before the draw, or when it is committed.
        """
        with self._database.transaction():
            if not self._is_still(session, progress):
                return None
            record, belief, coarser = draw()
            body = record.to_json().ljust(width)
            head = _digest(progress.head, session, progress.count, slot, query, body)
            self._database.execute(
                "INSERT INTO record VALUES (?, ?, ?, ?, ?, ?)", (session, progress.count, slot, query, body, head)
            )
            for epsilon, place in coarser.items():
                row = session, progress.count, repr(epsilon), json.dumps(place).ljust(_PLACE_WIDTH * len(place)), None
                self._database.execute("INSERT INTO coarser VALUES (?, ?, ?, ?, ?, ?)", (*row, _digest(*row)))
            self._set_progress(session, Progress(progress.count + 1, slot, belief, head, progress.omitted))
        return ReleaseRecord.from_json(body)

    def omit(self, session: int, progress: Progress, slot: int) -> bool:
        """Write that a time step has no release; False where another process went on with the session meanwhile."""
        with self._database.transaction():
            if not self._is_still(session, progress):
                return False
            self._set_progress(session, replace(progress, omitted=slot))
        return True

    def _is_still(self, session: int, progress: Progress) -> bool:
        query = f"SELECT count, omitted FROM progress WHERE session = ?{self._database.held}"
        found = self._database.execute(query, (session,))
        return found == [(progress.count, progress.omitted)]

    # ---- coarser releases ----------------------------------------------------------------------------------------

    def coarser(self, session: int, number: int, epsilon: float) -> tuple[tuple[float, ...], str | None] | None:
        """A coarser release and what was said of it, once something was; None where there is none."""
        query = "SELECT place, said, digest FROM coarser WHERE session = ? AND number = ? AND epsilon = ?"
        rows = self._database.execute(query, (session, number, repr(epsilon)))
        if not rows:
            return None
        place, said, digest = rows[0]
        with self._intact(
            f"coarser release {number} of session number {session}", digest, session, number, repr(epsilon), place, said
        ):
            return tuple(parse_json(place)), said

    def coarse_belief(self, session: int, epsilon: float) -> tuple[int, Belief | None]:
        """The belief of whoever sees coarser releases alone, and up to which release it knows them."""
        query = "SELECT number, belief FROM coarse_belief WHERE session = ? AND epsilon = ?"
        rows = self._database.execute(query, (session, repr(epsilon)))
        return (rows[0][0], Belief.from_bytes(rows[0][1])) if rows else (0, None)

    def say(self, session: int, number: int, epsilon: float, said: str, belief: Belief) -> None:
        """Write what is said of a coarser release, and the belief after it, unless something was said of it."""
        with self._database.transaction():
            where = "session = ? AND number = ? AND epsilon = ? AND said IS NULL"
            key = session, number, repr(epsilon)
            for (place,) in self._database.execute(f"SELECT place FROM coarser WHERE {where}", key):
                self._database.execute(
                    f"UPDATE coarser SET said = ?, digest = ? WHERE {where}", (said, _digest(*key, place, said), *key)
                )
            self._database.execute(
                "INSERT INTO coarse_belief VALUES (?, ?, ?, ?) ON CONFLICT (session, epsilon) DO UPDATE SET "
                "number = excluded.number, belief = excluded.belief WHERE coarse_belief.number < excluded.number",
                (session, repr(epsilon), number + 1, belief.to_bytes()),
            )

    # ---- who was told --------------------------------------------------------------------------------------------

    def leads(self) -> bool:
        """Whether this process is the one that tells recipients, of all that share the store."""
        return self._database.leads()

    def told(self, recipient: str, session: int) -> int:
        """Of how many of a session's releases a recipient was told: all that there are, when they are first asked for.

        A recipient who is new learns nothing of the time before.
        """
        with self._database.transaction():
            self._database.execute(
                "INSERT INTO told SELECT ?, session, count FROM progress WHERE session = ? ON CONFLICT DO NOTHING",
                (recipient, session),
            )
        query = "SELECT number FROM told WHERE recipient = ? AND session = ?"
        return int(self._database.execute(query, (recipient, session))[0][0])

    def set_told(self, recipient: str, session: int, number: int) -> None:
        """Write of how many releases a recipient was told."""
        with self._database.transaction():
            self._database.execute(
                "UPDATE told SET number = ? WHERE recipient = ? AND session = ? AND number < ?",
                (number, recipient, session, number),
            )

    def _set_progress(self, session: int, progress: Progress) -> None:
        belief = None if progress.belief is None else progress.belief.to_bytes()
        values = progress.count, progress.slot, progress.head, belief, progress.omitted
        self._database.execute(
            "UPDATE progress SET count = ?, slot = ?, head = ?, belief = ?, omitted = ?, digest = ? WHERE session = ?",
            (*values, _digest(session, *values), session),
        )


_PLACE_WIDTH = 28
"""Characters that a coordinate takes in JSON at most."""

_ATTEMPTS = 100
"""So many others may make a session at the same moment."""


def _check_types(values: Iterable[tuple[Any, Any]]) -> None:
    """SQLite keeps a value of any type in any column."""
    if not all(isinstance(value, kind) for value, kind in values):
        raise TypeError


_PREVIOUS = (
    "(SELECT digest FROM record AS before WHERE before.session = record.session AND before.number = record.number - 1)"
)


def _digest(*parts: Any) -> bytes:
    """A digest against damage (not against forgery: who can write the file can write a digest)."""
    digest = blake2b(digest_size=16)
    for part in parts:
        data = part if isinstance(part, bytes) else repr(part).encode("utf-8")
        digest.update(f"{type(part).__name__}{len(data)}:".encode())
        digest.update(data)
    return digest.digest()
