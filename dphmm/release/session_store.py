"""What is kept of sessions: their terms, every public record, and the public belief. Never a true state.

A session survives a crash because a moment is one transaction. With the session locked, `SessionStore.append` looks
whether another process went on with it meanwhile, has the draw made, and writes the records, the beliefs after them and
how far the session has come. Nobody is told anything before that is committed. Whatever ends the process, all of it is
there or nothing is: in the one case whoever asks for the moment again gets what was drawn, in the other nobody has seen
a draw. Every row has a digest, which for a record covers the one before it, so that damage is noticed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from hashlib import blake2b
from math import inf
from pathlib import Path
from typing import Any

from dphmm.arguments import checked
from dphmm.errors import ConfigurationError, DataFileError, SessionBusyError
from dphmm.model.belief import Belief
from dphmm.release.ledger import Account, Limits, constrained_cost, exactly
from dphmm.release.record import ReleaseRecord
from dphmm.release.session_database import Database, PostgresDatabase, is_server
from dphmm.release.session_terms import Agreed, StoredSession, Terms
from dphmm.tables.json_toml import parse_json


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
    amended
        How often it was agreed on anew.
    """

    count: int
    slot: int | None
    belief: Belief | None
    head: bytes
    omitted: int | None
    amended: int = 0

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


@dataclass(frozen=True)
class Pruned:
    """The first releases of a session, whose records were removed: what they cost, exactly.

    Parameters
    ----------
    count
        How many they are.
    costs
        Query → how many answered it, and their sums of budgets and of constrained-DP levels.
    """

    count: int = 0
    costs: Mapping[str, tuple[int, Fraction, Fraction | float]] = field(default_factory=dict)

    def account(self, longest: int | None = None) -> Account:
        """An account that begins with them.

        Parameters
        ----------
        longest
            As of `Account`.

        Returns
        -------
        Account
            A new account.
        """
        made = Account(longest)
        for count, epsilon, constrained in self.costs.values():
            made.count += count
            made.epsilon += epsilon
            made.constrained_epsilon += constrained
        return made


@dataclass(frozen=True)
class Drawn:
    """The release of one query at one timestep.

    Parameters
    ----------
    query : str
        The query that the record answers.
    record : ReleaseRecord
        The public record.
    width : int
        Number of characters to which the record's text is padded, the same whatever is drawn.
    belief : Belief
        The public belief after the release, of a recipient who was sent every release.
    readers : mapping of str to Belief
        The belief after the release of each recipient who was not sent every release, by name.
    said : mapping of str to str
        What each of them may be sent of the release, as JSON text, by name.
    """

    query: str
    record: ReleaseRecord
    width: int
    belief: Belief
    readers: Mapping[str, Belief] = field(default_factory=dict)
    said: Mapping[str, str] = field(default_factory=dict)


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
        """What holds it, with further tables for a server that tells of releases."""
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
        """The names of all sessions, sorted.

        Returns
        -------
        list of str
            The names.
        """
        names = [name for (name,) in self.database.execute("SELECT name FROM session ORDER BY name")]
        if not all(isinstance(name, str) for name in names):
            raise self._damaged("the name of a session")
        return names

    def session(self, name: str) -> StoredSession | None:
        """The session of a name, or None.

        Parameters
        ----------
        name
            The name.

        Returns
        -------
        StoredSession or None
            The session; None where there is none.

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

        Parameters
        ----------
        session
            The number of the session.

        Returns
        -------
        Progress
            How far it has come.

        Raises
        ------
        DataFileError
            When what is stored is damaged.
        """
        return self._progress(session, "")

    def hold(self, session: int) -> Progress:
        """How far a session has come, and comes no further by other processes until the transaction ends.

        Parameters
        ----------
        session
            The number of the session.

        Returns
        -------
        Progress
            How far it has come.

        Raises
        ------
        SessionBusyError
            When another process holds it for longer than was to be waited.
        DataFileError
            When what is stored is damaged.
        """
        return self._progress(session, self.database.held)

    def _progress(self, session: int, held: str) -> Progress:
        query = f"SELECT count, slot, head, belief, omitted, amended, digest FROM progress WHERE session = ?{held}"
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

    def pruned(self, session: int) -> Pruned:
        """The releases whose records were removed; see `prune`.

        Parameters
        ----------
        session
            The number of the session.

        Returns
        -------
        Pruned
            What they cost.
        """
        rows = self.database.execute("SELECT count, head, costs, digest FROM pruned WHERE session = ?", (session,))
        if not rows:
            return Pruned()
        count, head, costs, digest = rows[0]
        with self._intact(f"what was pruned of session number {session}", digest, session, count, head, costs):
            return Pruned(count, {query: (each, *map(_sum, sums)) for query, each, *sums in parse_json(costs)})
        raise AssertionError("the block returns or raises")

    def find(self, session: int, slot: int, query: str) -> ReleaseRecord | None:
        """What was released at a time for a query, or None.

        Parameters
        ----------
        session
            The number of the session.
        slot
            The time step.
        query
            The query.

        Returns
        -------
        ReleaseRecord or None
            The record; None where there is none.
        """
        rows = self.database.execute(f"{_RECORDS} session = ? AND slot = ? AND query = ?", (session, slot, query))
        return self._release(session, rows[0]).record if rows else None

    def releases(self, session: int, first: int = 0, last: int | None = None) -> Iterator[StoredRelease]:
        """The releases of a session in their order, from number ``first`` to before ``last``, but for pruned ones.

        Parameters
        ----------
        session
            The number of the session.
        first, last
            The numbers: from ``first`` to before ``last``; left out, all.

        Yields
        ------
        StoredRelease
            A release.

        Raises
        ------
        DataFileError
            At the first one that is damaged or missing.
        """
        end = self.progress(session).count if last is None else last
        for row in self._rows(session, max(first, self.pruned(session).count), end):
            yield self._release(session, row)

    def costs(self, session: int, first: int, last: int) -> Iterator[tuple[int, str, float, float]]:
        """The time step, query, budget and constrained factor of the releases of some numbers, as `releases`.

        What else the records say is held against their digests alone, and not read: a year of them is there at once.

        Parameters
        ----------
        session
            The number of the session.
        first, last
            The numbers: from ``first`` to before ``last``.

        Yields
        ------
        tuple
            Slot, query, budget and constrained factor of a release.
        """
        for row in self._rows(session, first, last):
            _, slot, query, body, *_ = row
            with self._intact_record(session, row):
                epsilon, factor = ReleaseRecord.cost_from_json(body)
                yield slot, query, epsilon, factor

    def _rows(self, session: int, first: int, end: int) -> Iterator[tuple[Any, ...]]:
        """The row of each release, some at a time: years of them need not fit into memory."""
        for begin in range(first, end, _AT_A_TIME):
            stop = min(begin + _AT_A_TIME, end)
            some = f"{_RECORDS} session = ? AND number >= ? AND number < ? ORDER BY number"
            rows = self.database.execute(some, (session, begin, stop))
            if len(rows) != stop - begin:
                raise self._damaged(f"the releases of session number {session}")
            for expected, row in enumerate(rows, start=begin):
                if row[0] != expected:
                    raise self._damaged(f"release {expected} of session number {session}")
                yield row

    def _release(self, session: int, row: tuple[Any, ...]) -> StoredRelease:
        _, slot, query, body, *_ = row
        with self._intact_record(session, row):
            _check_types(((slot, int), (query, str)))
            return StoredRelease(slot, query, ReleaseRecord.from_json(body))

    def _intact_record(self, session: int, row: tuple[Any, ...]) -> AbstractContextManager[None]:
        number, slot, query, body, digest, previous = row
        what = f"release {number} of session number {session}"
        return self._intact(what, digest, previous or b"", session, number, slot, query, body)

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
        """The session of a name, made with these terms and limits where there is none.

        Parameters
        ----------
        name
            The name of the session.
        terms
            Query → its terms.
        limits
            What releases may cost.

        Returns
        -------
        StoredSession
            The session, made now or before.
        """
        texts = _terms_text(terms), json.dumps(asdict(limits))
        for _ in range(_ATTEMPTS):
            with self.database.transaction():
                if self.session(name) is not None:
                    break
                ((number,),) = self.database.execute("SELECT 1 + COALESCE(MAX(number), 0) FROM session")
                row = number, name, *texts
                if self._insert("session", *row, _digest(*row), conflict="DO NOTHING RETURNING number"):
                    self._set_progress(number, Progress(0, None, None, b"", None))
        known = self.session(name)
        if known is None:
            raise SessionBusyError(f"{self.path}: session {name!r} vanished while it was made; ask again")
        return known

    def append(self, session: int, progress: Progress, slot: int, draw: Callable[[], Drawn]) -> Drawn | None:
        """Draw and write a release in one transaction.

        Parameters
        ----------
        session, progress
            The session, and how far it had come when the release was prepared.
        slot
            The time step.
        draw
            Gives what is drawn. It is called with the file locked.

        Returns
        -------
        Drawn or None
            What was drawn, whose record reads the same from the file from now on, once it is on the disk. None where
            another process went on with the session meanwhile: nothing is drawn then.

        Raises
        ------
        OutputError
            When there is no room or no permission: before the draw, or when it is committed.
        """
        with self.database.transaction():
            if not self._is_still(session, progress):
                return None
            drawn, number = draw(), progress.count
            body = drawn.record.to_json().ljust(drawn.width)
            head = _digest(progress.head, session, number, slot, drawn.query, body)
            self._insert("record", session, number, slot, drawn.query, body, head)
            for name, belief in drawn.readers.items():
                self.set_reader(session, name, number + 1, belief)
            for name, said in drawn.said.items():
                row = session, number, name, said.ljust(_SAID_WIDTH)
                self._insert("reader_said", *row, _digest(*row))
            made = replace(progress, count=number + 1, slot=slot, belief=drawn.belief, head=head)
            self._set_progress(session, made)
        return drawn

    def agree(self, stored: StoredSession, terms: Mapping[str, Terms], note: str) -> StoredSession:
        """Agree anew on how a session's places are released, from its next release on.

        The belief goes on: it is what a reader of all releases knows, each of them read as it was made. Every release
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

        Returns
        -------
        StoredSession
            The session with what was agreed on last.

        Raises
        ------
        SessionMismatchError
            When the model or the kind of randomness would be others, and when there are or were caps on events, which
            are kept over all releases together.
        SessionBusyError, OutputError
            As `append`.
        """
        if set(terms) != set(stored.terms):
            stored.check_same(terms, None)
        for query in terms:
            stored.terms[query].check_amendment(terms[query], f"session {stored.name!r}")
        while True:
            last = stored.agreed[-1]
            if last.note == note and all(terms[query].same_as(last.terms[query]) for query in terms):
                return stored
            with self.database.transaction():
                progress = self.hold(stored.number)
                if progress.amended == len(stored.agreed) - 1:
                    row = stored.number, progress.amended, progress.count, _terms_text(terms), note
                    self._insert("amendment", *row, _digest(*row))
                    self._set_progress(stored.number, replace(progress, amended=progress.amended + 1))
            found = self.session(stored.name)
            assert found is not None, "sessions are never removed"
            stored = found

    def omit(self, session: int, progress: Progress, slot: int) -> bool:
        """Write that a time step has no release; False where another process went on with the session meanwhile.

        Parameters
        ----------
        session
            The number of the session.
        progress
            How far it had come when that was decided.
        slot
            The time step.

        Returns
        -------
        bool
            Whether it was written.
        """
        with self.database.transaction():
            if not self._is_still(session, progress):
                return False
            self._set_progress(session, replace(progress, omitted=slot))
        return True

    def _is_still(self, session: int, progress: Progress) -> bool:
        query = f"SELECT count, omitted, amended FROM progress WHERE session = ?{self.database.held}"
        found = self.database.execute(query, (session,))
        return found == [(progress.count, progress.omitted, progress.amended)]

    # ---- readers who were not told everything --------------------------------------------------------------------

    def reader(self, session: int, name: str) -> tuple[int, Belief | None] | None:
        """The belief of a reader who was not told everything, and how many releases there were when it was made.

        Parameters
        ----------
        session
            The number of the session.
        name
            What `set_reader` was given.

        Returns
        -------
        tuple or None
            The number and the belief, None for one who was told nothing yet; None where there is no such reader.
        """
        statement = "SELECT number, belief FROM reader_belief WHERE session = ? AND reader = ?"
        rows = self.database.execute(statement, (session, name))
        return (rows[0][0], Belief.from_bytes(rows[0][1]) if rows[0][1] else None) if rows else None

    def set_reader(self, session: int, name: str, number: int, belief: Belief | None) -> None:
        """Keep the belief of a reader who was not told everything; within a transaction.

        Parameters
        ----------
        session
            The number of the session.
        name
            The reader's name.
        number
            How many releases of the session there are.
        belief
            The belief; None for one who was told nothing yet.
        """
        known = b"" if belief is None else belief.to_bytes()
        anew = "(session, reader) DO UPDATE SET number = excluded.number, belief = excluded.belief"
        self._insert("reader_belief", session, name, number, known, conflict=anew)

    def said(self, session: int, number: int, name: str) -> str | None:
        """What a reader who was not told everything may be told of a release, as JSON text; None where nothing.

        Parameters
        ----------
        session
            The number of the session.
        number
            The number of the release.
        name
            The reader's name.

        Returns
        -------
        str or None
            The text.
        """
        statement = "SELECT said, digest FROM reader_said WHERE session = ? AND number = ? AND reader = ?"
        rows = self.database.execute(statement, (session, number, name))
        if not rows:
            return None
        said, digest = rows[0]
        with self._intact(f"release {number} of session number {session}", digest, session, number, name, said):
            return str(said)

    def prune(self, stored: StoredSession, slot: int, step_seconds: float | None = None) -> int:
        """Remove the records of time steps before one, but for those that limits and schedules look back to.

        The session's terms, progress and belief stay, and what the removed releases cost. The moments stay what they
        were: they have a release, and get no other. Readers who were told them know them; they cannot be told again,
        and no audit can replay them.

        Parameters
        ----------
        stored
            The session.
        slot
            The first time step whose record stays in any case.
        step_seconds
            How long a step is, for windows of time.

        Returns
        -------
        int
            The number of the first release that is left.

        Raises
        ------
        ConfigurationError
            With caps on events, which look back at all releases.
        SessionBusyError, OutputError
            As `append`.
        """
        if any(one.settings.caps for agreed in stored.agreed for one in agreed.terms.values()):
            raise ConfigurationError(
                f"session {stored.name!r} keeps caps on events, which look back at all its releases"
            )
        session = stored.number
        with self.database.transaction():
            latest, before = self.hold(session).slot, self.pruned(session)
            first = slot if latest is None else min(slot, latest - stored.longest_window(step_seconds) + 1)
            query = "SELECT MAX(number) FROM record WHERE session = ? AND slot < ?"
            ((last,),) = self.database.execute(query, (session, first))
            if last is None:
                return before.count
            costs, end = dict(before.costs), last + 1
            for _, name, epsilon, factor in self.costs(session, before.count, end):
                count, spent, level = costs.get(name, (0, Fraction(0), Fraction(0)))
                costs[name] = count + 1, spent + exactly(epsilon), level + constrained_cost(epsilon, factor)
            where = "session = ? AND number"
            ((head,),) = self.database.execute(f"SELECT digest FROM record WHERE {where} = ?", (session, last))
            text = json.dumps([(name, count, str(spent), str(level)) for name, (count, spent, level) in costs.items()])
            row = session, end, head, text
            self._insert("pruned", *row, _digest(*row), conflict=_anew("count", "head", "costs", "digest"))
            for table in ("record", "reader_said", "set_aside"):
                self.database.execute(f"DELETE FROM {table} WHERE {where} < ?", (session, end))
            self.database.execute(f"UPDATE told SET number = ? WHERE {where} < ?", (end, session, end))
            behind = f"UPDATE reader_belief SET number = 0, belief = ? WHERE {where} <= ?"
            self.database.execute(behind, (b"", session, end))  # of when it is known no more: they begin anew
        return int(end)

    def _set_progress(self, session: int, progress: Progress) -> None:
        belief = None if progress.belief is None else progress.belief.to_bytes()
        values = session, progress.count, progress.slot, progress.head, belief, progress.omitted, progress.amended
        row = *values, _digest(*values)
        anew = _anew("count", "slot", "head", "belief", "omitted", "amended", "digest")
        self._insert("progress", *row, conflict=anew)
        self._written = row, progress

    def _insert(self, table: str, *row: Any, conflict: str = "") -> list[Any]:
        """Write a row; what becomes of one that is there already may be said, and what is returned."""
        places = ", ".join("?" * len(row))
        after = f" ON CONFLICT {conflict}" if conflict else ""
        return self.database.execute(f"INSERT INTO {table} VALUES ({places}){after}", row)


def _anew(*columns: str) -> str:
    """What has a session's row replaced by one that is written."""
    return f"(session) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in columns)}"


def _terms_text(terms: Mapping[str, Terms]) -> str:
    return json.dumps({query: one.to_json() for query, one in terms.items()}, sort_keys=True)


def _terms(text: str) -> dict[str, Terms]:
    return {query: Terms.from_json(one) for query, one in parse_json(text).items()}


_SAID_WIDTH = 210
"""Characters that what is said to a reader takes in JSON at most: a plane's coordinates, and two radii."""

_ATTEMPTS = 100
"""How many other processes may make a session at the same moment."""
_AT_A_TIME = 2000
"""How many releases are fetched at a time."""


def _check_types(values: Iterable[tuple[Any, Any]]) -> None:
    """SQLite keeps a value of any type in any column."""
    if not all(isinstance(value, kind) for value, kind in values):
        raise TypeError


def _sum(text: str) -> Fraction | float:
    return inf if text == "inf" else Fraction(text)


_RECORDS = (
    "SELECT number, slot, query, body, digest, "
    "COALESCE((SELECT digest FROM record AS before WHERE before.session = record.session "
    "AND before.number = record.number - 1), "
    "(SELECT head FROM pruned WHERE pruned.session = record.session AND pruned.count = record.number)) "
    "FROM record WHERE"
)
"""Releases with the digest of the one before each; what follows says which."""


def _digest(*parts: Any) -> bytes:
    """A digest against damage (not against forgery: anyone who can write the file can write a digest)."""
    digest = blake2b(digest_size=16)
    for part in parts:
        data = part if isinstance(part, bytes) else repr(part).encode("utf-8")
        digest.update(f"{type(part).__name__}{len(data)}:".encode())
        digest.update(data)
    return digest.digest()
