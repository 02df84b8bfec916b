"""What is kept of sessions: their terms, every public record, and the public belief. Never a true state."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
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
from dphmm.release.stored import Agreed, Progress, StoredRelease, StoredSession
from dphmm.release.terms import Terms
from dphmm.tables.json_text import parse_json

Coarser = Mapping[float, tuple[float, ...]]
"""Budget → a release with the noise of that budget on top."""


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
        self.database: Database | PostgresDatabase
        """What holds it, with further tables for whoever tells of releases."""
        self._written: tuple[tuple[Any, ...], Progress] | None = None  # what need not be made of the same row again
        if is_server(path):
            self.path = Path("the database")
            self.database = PostgresDatabase(str(path), wait_seconds, readonly)
            return
        self.path = Path(path)
        if not readonly and not self.path.exists():
            Database.create(self.path)
        self.database = Database(path, wait_seconds, readonly)

    def __enter__(self) -> SessionStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self.database.close()

    # ---- reading -------------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """The names of all sessions, sorted."""
        names = [name for (name,) in self.database.execute("SELECT name FROM session ORDER BY name")]
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
        rows = self.database.execute(query, (name,))
        if not rows:
            return None
        number, terms, limits, digest = rows[0]
        with self._intact(f"session {name!r}", digest, number, name, terms, limits):
            agreed = (Agreed(0, _terms(terms)), *self._amendments(number))
            return StoredSession(number, name, agreed, Limits(**parse_json(limits)))

    def _amendments(self, session: int) -> Iterator[Agreed]:
        found = "SELECT number, first, terms, note, digest FROM amendment WHERE session = ? ORDER BY number"
        for expected, (number, first, terms, note, digest) in enumerate(self.database.execute(found, (session,))):
            what = f"amendment {number} of session number {session}"
            with self._intact(what, digest, session, expected, first, terms, note):
                yield Agreed(first, _terms(terms), note)

    def progress(self, session: int) -> Progress:
        """How far a session has come, as of now.

        Raises
        ------
        DataFileError
            When what is stored is damaged.
        """
        query = "SELECT count, slot, head, belief, omitted, amended, digest FROM progress WHERE session = ?"
        rows = self.database.execute(query, (session,))
        what = f"the progress of session number {session}"
        if not rows:
            raise self._damaged(what)
        if self._written is not None and self._written[0] == (session, *rows[0]):
            return self._written[1]
        *values, digest = rows[0]
        with self._intact(what, digest, session, *values):
            count, slot, head, belief, omitted, amended = values
            optional = (slot, int | None), (belief, bytes | None), (omitted, int | None)
            _check_types(((count, int), (head, bytes), (amended, int), *optional))
            known = None if belief is None else Belief.from_bytes(belief)
            return Progress(count, slot, known, head, omitted, amended)

    def find(self, session: int, slot: int, query: str) -> ReleaseRecord | None:
        """What was released at a time for a query, or None."""
        where = "session = ? AND slot = ? AND query = ?"
        rows = self.database.execute(
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
        for number, row in self._rows(session, first, end):
            yield self._checked(session, (number, *row))

    def costs(self, session: int, first: int, last: int) -> Iterator[tuple[int, float, float]]:
        """The time step, the budget and the constrained factor of the releases of some numbers, as `releases`.

        What else the records say is held against their digests alone, and not read: a year of them is there at once.
        """
        for number, (slot, query, body, digest, previous) in self._rows(session, first, last):
            what = f"release {number} of session number {session}"
            with self._intact(what, digest, previous or b"", session, number, slot, query, body):
                epsilon, factor = ReleaseRecord.cost_from_json(body)
                yield slot, epsilon, factor

    def _rows(self, session: int, first: int, end: int) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """The number and the rest of each release, some at a time: years of them need not fit into memory."""
        for begin in range(first, end, _AT_A_TIME):
            stop = min(begin + _AT_A_TIME, end)
            rows = self.database.execute(
                f"SELECT number, slot, query, body, digest, {_PREVIOUS} FROM record "
                "WHERE session = ? AND number >= ? AND number < ? ORDER BY number",
                (session, begin, stop),
            )
            if len(rows) != stop - begin:
                raise self._damaged(f"the releases of session number {session}")
            for expected, (number, *row) in enumerate(rows, start=begin):
                if number != expected:
                    raise self._damaged(f"release {expected} of session number {session}")
                yield number, tuple(row)

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
        texts = _terms_text(terms), json.dumps(asdict(limits))
        for _ in range(_ATTEMPTS):
            with self.database.transaction():
                if self.session(name) is not None:
                    break
                ((number,),) = self.database.execute("SELECT 1 + COALESCE(MAX(number), 0) FROM session")
                if self.database.execute(
                    "INSERT INTO session VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING number",
                    (number, name, *texts, _digest(number, name, *texts)),
                ):
                    values = number, 0, None, b"", None, None, 0, b""
                    self.database.execute("INSERT INTO progress VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
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
            The record, which reads the same from the file from now on, once it is on the disk. None where another
            process went on with the session meanwhile: nothing is drawn then.

        Raises
        ------
        OutputError
            When there is no room or no permission: before the draw, or when it is committed.
        """
        with self.database.transaction():
            if not self._is_still(session, progress):
                return None
            record, belief, coarser = draw()
            body = record.to_json().ljust(width)
            head = _digest(progress.head, session, progress.count, slot, query, body)
            self.database.execute(
                "INSERT INTO record VALUES (?, ?, ?, ?, ?, ?)", (session, progress.count, slot, query, body, head)
            )
            for epsilon, place in coarser.items():
                row = session, progress.count, repr(epsilon), json.dumps(place).ljust(_PLACE_WIDTH * len(place)), None
                self.database.execute("INSERT INTO coarser VALUES (?, ?, ?, ?, ?, ?)", (*row, _digest(*row)))
            made = replace(progress, count=progress.count + 1, slot=slot, belief=belief, head=head)
            self._set_progress(session, made)
        return record

    def agree(self, stored: StoredSession, terms: Mapping[str, Terms], note: str) -> StoredSession:
        """Agree anew on how a session's places are released, from its next release on.

        The belief goes on: it is what whoever has all releases knows, each of them read as it was made. Every release
        stays as it was and under what was agreed on then, and its record has the hash of those settings. Sums of
        budgets and limits go on: a pair of places that was joined all the time is told apart by the sum of all; one
        that is joined from now on by the sum from now on, and by whatever was released while it was not.

        The change is public, and so is its time. What it is, and when, must not follow from where the person is then.

        Parameters
        ----------
        stored
            The session.
        terms
            Query → what its promise is made of now.
        note
            What is kept beside them. Public.

        Raises
        ------
        SessionMismatchError
            When the model or the kind of randomness would be others, and when there are or were caps on events, which
            are kept over all releases together.
        SessionBusyError, OutputError
            As `append`.
        """
        for query in set(terms) & set(stored.terms):
            stored.terms[query].check_amendment(terms[query], f"session {stored.name!r}")
        while True:
            last = stored.agreed[-1]
            if last.note == note and all(
                terms[query].same_as(one) for query, one in last.terms.items() if query in terms
            ):
                return stored
            with self.database.transaction():
                self.database.execute(
                    f"SELECT amended FROM progress WHERE session = ?{self.database.held}", (stored.number,)
                )
                progress = self.progress(stored.number)
                if progress.amended == len(stored.agreed) - 1:
                    row = stored.number, progress.amended, progress.count, _terms_text(terms), note
                    self.database.execute("INSERT INTO amendment VALUES (?, ?, ?, ?, ?, ?)", (*row, _digest(*row)))
                    self._set_progress(stored.number, replace(progress, amended=progress.amended + 1))
            found = self.session(stored.name)
            assert found is not None, "sessions are never removed"
            stored = found

    def omit(self, session: int, progress: Progress, slot: int) -> bool:
        """Write that a time step has no release; False where another process went on with the session meanwhile."""
        with self.database.transaction():
            if not self._is_still(session, progress):
                return False
            self._set_progress(session, replace(progress, omitted=slot))
        return True

    def _is_still(self, session: int, progress: Progress) -> bool:
        query = f"SELECT count, omitted, amended FROM progress WHERE session = ?{self.database.held}"
        found = self.database.execute(query, (session,))
        return found == [(progress.count, progress.omitted, progress.amended)]

    # ---- coarser releases ----------------------------------------------------------------------------------------

    def coarser(self, session: int, number: int, epsilon: float) -> tuple[tuple[float, ...], str | None] | None:
        """A coarser release and what was said of it, once something was; None where there is none."""
        query = "SELECT place, said, digest FROM coarser WHERE session = ? AND number = ? AND epsilon = ?"
        rows = self.database.execute(query, (session, number, repr(epsilon)))
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
        rows = self.database.execute(query, (session, repr(epsilon)))
        return (rows[0][0], Belief.from_bytes(rows[0][1])) if rows else (0, None)

    def say(self, session: int, number: int, epsilon: float, said: str, belief: Belief) -> None:
        """Write what is said of a coarser release, and the belief after it, unless something was said of it."""
        with self.database.transaction():
            where = "session = ? AND number = ? AND epsilon = ? AND said IS NULL"
            key = session, number, repr(epsilon)
            for (place,) in self.database.execute(f"SELECT place FROM coarser WHERE {where}", key):
                self.database.execute(
                    f"UPDATE coarser SET said = ?, digest = ? WHERE {where}", (said, _digest(*key, place, said), *key)
                )
            self.database.execute(
                "INSERT INTO coarse_belief VALUES (?, ?, ?, ?) ON CONFLICT (session, epsilon) DO UPDATE SET "
                "number = excluded.number, belief = excluded.belief WHERE coarse_belief.number < excluded.number",
                (session, repr(epsilon), number + 1, belief.to_bytes()),
            )

    def _set_progress(self, session: int, progress: Progress) -> None:
        belief = None if progress.belief is None else progress.belief.to_bytes()
        values = progress.count, progress.slot, progress.head, belief, progress.omitted, progress.amended
        row = (*values, _digest(session, *values))
        self.database.execute(
            "UPDATE progress SET count = ?, slot = ?, head = ?, belief = ?, omitted = ?, amended = ?, digest = ? "
            "WHERE session = ?",
            (*row, session),
        )
        if progress.belief is None or progress.belief.is_written_whole:
            self._written = (session, *row), progress


def _terms_text(terms: Mapping[str, Terms]) -> str:
    return json.dumps({query: one.to_json() for query, one in terms.items()}, sort_keys=True)


def _terms(text: str) -> dict[str, Terms]:
    return {query: Terms.from_json(one) for query, one in parse_json(text).items()}


_PLACE_WIDTH = 28
"""Characters that a coordinate takes in JSON at most."""

_ATTEMPTS = 100
"""So many others may make a session at the same moment."""
_AT_A_TIME = 2000
"""So many releases are fetched at a time."""


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
