"""Storage of sessions: their terms, every public record, and the public belief.

A true state is never stored.

A session survives a crash because each timestep is one transaction. `SessionStore.append` locks the session and checks
whether another process continued it meanwhile. It then samples the release, and writes the record, the beliefs after it
and the progress of the session. Nothing is disclosed before the transaction is committed. If the process ends, either
everything is stored or nothing is. In the first case a retry returns the stored sample; in the second, the sample was
never disclosed. Every row has a digest, which for a record covers the previous one, so that damage is detected.
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
from typing import Any, TypeVar

from dphmm.errors import ConfigurationError, DataFileError, MissingExtensionError, OutputError, SessionBusyError
from dphmm.model.belief import Belief
from dphmm.release.database_backends import MARK_NAME, Database, PostgresDatabase, is_server
from dphmm.release.ledger import Account, constrained_cost, to_fraction
from dphmm.release.record import ReleaseRecord
from dphmm.release.session_limits import Limits
from dphmm.release.session_terms import Agreement, StoredSession, Terms
from dphmm.tables.json_toml import parse_json
from dphmm.validation import check_arguments

Value = TypeVar("Value")


@dataclass(frozen=True)
class Progress:
    """The progress of a session.

    Parameters
    ----------
    count
        Number of releases.
    slot
        Slot of the last one; None before the first.
    belief
        Public belief after it; None before the first.
    head
        Digest of the last record, which covers all previous ones.
    omitted_slot
        Last slot that was agreed to have no release; None if there is none.
    num_amendments
        Number of amendments of the terms.
    """

    count: int
    slot: int | None
    belief: Belief | None
    head: bytes
    omitted_slot: int | None
    num_amendments: int = 0

    @property
    def latest_slot(self) -> int | None:
        """The last slot that has a release or was omitted."""
        return max((slot for slot in (self.slot, self.omitted_slot) if slot is not None), default=None)


@dataclass(frozen=True)
class StoredRelease:
    """A release with its slot.

    Parameters
    ----------
    slot
        Slot of the release.
    query
        Query that it answers.
    record
        Public record.
    """

    slot: int
    query: str
    record: ReleaseRecord


@dataclass(frozen=True)
class Pruned:
    """The cost of the first timesteps of a session, the records of which were removed.

    Parameters
    ----------
    count
        Number of these releases.
    costs
        For each query: the number of answers, and the sums of budgets and of constrained-DP levels.
    last_slot
        The last slot of the removed records; None if all are kept.
    """

    count: int = 0
    costs: Mapping[str, tuple[int, Fraction, Fraction | float]] = field(default_factory=dict)
    last_slot: int | None = None

    @property
    def num_timesteps(self) -> int:
        """The number of timesteps of these releases, if all queries were answered at each.

        Otherwise it is that of the query with most answers.
        """
        return max((count for count, *_ in self.costs.values()), default=0)

    def build_account(self, max_window_steps: int | None = None) -> Account:
        """Create an account that begins with these releases.

        Parameters
        ----------
        max_window_steps
            Argument of `Account`.

        Returns
        -------
        Account
            A new account.
        """
        account = Account(max_window_steps)
        for count, epsilon, constrained in self.costs.values():
            account.count += count
            account.epsilon += epsilon
            account.constrained_epsilon += constrained
        return account


@dataclass(frozen=True)
class SampledRelease:
    """The release of one query at one timestep.

    Parameters
    ----------
    query
        Query that the record answers.
    record
        Public record.
    width
        Length to which the record's text is padded. It does not depend on the sample.
    belief
        Public belief after the release, of a recipient who was sent every release.
    partial_beliefs
        Belief after the release of each recipient who was not sent every release, by name.
    partial_messages
        Message to each of these recipients about the release, as JSON text, by name.
    """

    query: str
    record: ReleaseRecord
    width: int
    belief: Belief
    partial_beliefs: Mapping[str, Belief] = field(default_factory=dict)
    partial_messages: Mapping[str, str] = field(default_factory=dict)


@check_arguments
class SessionStore:
    """A file of sessions that survives crashes and can be used by several processes.

    Parameters
    ----------
    path
        The file. If it does not exist it is created, readable by its owner only, unless `readonly`. Or a PostgreSQL
        database as ``postgresql://user@host/database``, in which missing tables are created.
    wait_seconds
        How long to wait for another process that is writing.
    readonly
        Whether the store is only read.
    accept_closed
        Whether a store that continues elsewhere is opened for writing; see `set_mark`.

    Raises
    ------
    DataFileError
        If the file is not a store of this format, or is damaged. It stays unchanged.
    OutputError
        If the file cannot be written, or the store continues elsewhere.
    """

    def __init__(
        self, path: str | Path, wait_seconds: float = 30.0, readonly: bool = False, accept_closed: bool = False
    ) -> None:
        # The database. It has further tables for a server that sends releases to recipients.
        self.database: Database | PostgresDatabase
        self._arguments = path if is_server(path) else Path(path).absolute(), wait_seconds, readonly
        # The last written row and its progress, which need not be parsed again.
        self._written: tuple[tuple[Any, ...], Progress] | None = None
        if is_server(path):
            self.path = Path("the database")
            self.database = PostgresDatabase(str(path), wait_seconds, readonly)
        else:
            self.path = Path(path)
            if not readonly and not self.path.exists():
                Database.create(self.path)
            self.database = Database(path, wait_seconds, readonly)
        if not (readonly or accept_closed):
            try:
                self.check_open()
            except BaseException:  # an interrupt must close the store, too
                self.close()
                raise

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, self._arguments

    def __enter__(self) -> SessionStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self.database.close()

    # ---- copies --------------------------------------------------------------------------------------------------

    def get_mark(self) -> Mapping[str, str] | None:
        """Return why the store is closed, as set by `set_mark`. None if it is open.

        Returns
        -------
        mapping or None
            Its ``state`` and further strings.
        """
        return self._read_identity(MARK_NAME, lambda text: dict(parse_json(text)))

    def set_mark(self, mark: Mapping[str, str] | None) -> None:
        """Close the store with a reason, or open it again, within a transaction.

        A closed store releases nothing, in any process: each release checks it in its transaction. It can be read.

        Parameters
        ----------
        mark
            The reason; None to open the store.
        """
        self.database.execute("DELETE FROM identity WHERE name = ?", (MARK_NAME,))
        if mark is not None:
            self._insert("identity", MARK_NAME, json.dumps(mark))

    def check_open(self) -> None:
        """Check that the store is not closed.

        Raises
        ------
        OutputError
            If it is.
        """
        mark = self.get_mark()
        if mark is not None:
            state, file = str(mark.get("state")), Path(str(mark.get("file")))
            if state == "moved" and not file.exists() and file.with_name(f"{file.name}.part").exists():
                state = "interrupted"
            reason = _MARK_REASONS.get(state, "is closed; import it with dphmm session import")
            raise OutputError(f"{self.path} {reason.format(file=mark.get('file'), at=mark.get('at'))}")

    def get_restored_at(self) -> int | None:
        """Return the second until which another store may have released timesteps.

        Returns
        -------
        int or None
            The second, for a store that was restored from a copy that may lack releases. None for any other.
        """
        return self._read_identity(_RESTORED_NAME, int)

    def set_restored_at(self, second: int) -> None:
        """Store within a transaction until when another store may have released timesteps.

        Parameters
        ----------
        second
            Seconds since 1970.
        """
        latest = max(second, self.get_restored_at() or 0)
        self.database.execute("DELETE FROM identity WHERE name = ?", (_RESTORED_NAME,))
        self._insert("identity", _RESTORED_NAME, str(latest))

    def get_kept_clock(self) -> int | None:
        """Return the last second at which a relay trusted its clock.

        Returns
        -------
        int or None
            The second; None before the first.
        """
        return self._read_identity(_CLOCK_NAME, int)

    def _read_identity(self, name: str, parse: Callable[[str], Value]) -> Value | None:
        rows = self.database.execute("SELECT value FROM identity WHERE name = ?", (name,))
        try:
            return parse(rows[0][0]) if rows else None
        except (TypeError, ValueError):
            raise self._build_damage_error(f"the row {name!r} of its identity") from None

    def keep_clock(self, second: int) -> None:
        """Store the last second at which a relay trusted its clock.

        Parameters
        ----------
        second
            Seconds since 1970.
        """
        with self.database.run_transaction(durable=False):
            anew = "(name) DO UPDATE SET value = excluded.value"
            self._insert("identity", _CLOCK_NAME, str(second), conflict=anew)

    # ---- reading -------------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Return the names of all sessions, sorted.

        Returns
        -------
        list of str
            The names.
        """
        names = [name for (name,) in self.database.execute("SELECT name FROM session ORDER BY name")]
        if not all(isinstance(name, str) for name in names):
            raise self._build_damage_error("the name of a session")
        return names

    def session(self, name: str) -> StoredSession | None:
        """Return the session with a name, or None.

        Parameters
        ----------
        name
            The name.

        Returns
        -------
        StoredSession or None
            The session; None if there is none.

        Raises
        ------
        DataFileError
            If the stored data are damaged.
        """
        rows = self.database.execute(_SESSIONS, (name,))
        if not rows:
            return None
        number, terms, limits, digest, has_all_amendments = rows[0]
        with self._check_digest(f"session {name!r}", digest, number, name, terms, limits):
            agreed = (Agreement(0, _parse_terms(terms)), *self._iterate_amendments(number))
            if not has_all_amendments:  # settings would be reported that are not those of the next release
                raise ValueError
            return StoredSession(number, name, agreed, Limits(**parse_json(limits)))

    def _iterate_amendments(self, session: int) -> Iterator[Agreement]:
        query = "SELECT number, first, terms, note, digest FROM amendment WHERE session = ? ORDER BY number"
        for expected, (number, first, terms, note, digest) in enumerate(self.database.execute(query, (session,))):
            what = f"amendment {number} of session number {session}"
            with self._check_digest(what, digest, session, expected, first, terms, note):
                yield Agreement(first, _parse_terms(terms), note)

    def progress(self, session: int) -> Progress:
        """Return the present progress of a session.

        Parameters
        ----------
        session
            Number of the session.

        Returns
        -------
        Progress
            The progress.

        Raises
        ------
        DataFileError
            If the stored data are damaged.
        """
        return self._read_progress(session, "")

    def lock_progress(self, session: int) -> Progress:
        """Return the progress of a session and lock it until the transaction ends.

        Parameters
        ----------
        session
            Number of the session.

        Returns
        -------
        Progress
            The progress.

        Raises
        ------
        SessionBusyError
            If another process locks it for longer than the waiting time.
        DataFileError
            If the stored data are damaged.
        """
        return self._read_progress(session, self.database.row_lock)

    def _read_progress(self, session: int, held: str) -> Progress:
        query = f"SELECT count, slot, head, belief, omitted, amended, digest FROM progress WHERE session = ?{held}"
        rows = self.database.execute(query, (session,))
        what = f"the progress of session number {session}"
        if len(rows) != 1:
            raise self._build_damage_error(what)
        if self._written is not None and self._written[0] == (session, *rows[0]):
            return self._written[1]
        *values, digest = rows[0]
        with self._check_digest(what, digest, session, *values):
            count, slot, head, belief, omitted, amended = values
            optional = (slot, int | None), (belief, bytes | None), (omitted, int | None)
            _check_types(((count, int), (head, bytes), (amended, int), *optional))
            parsed_belief = None if belief is None else Belief.from_bytes(belief)
            return Progress(count, slot, parsed_belief, head, omitted, amended)

    def get_pruned_costs(self, session: int) -> Pruned:
        """Return the cost of the releases of which the records were removed. See `prune`.

        Parameters
        ----------
        session
            Number of the session.

        Returns
        -------
        Pruned
            Their cost.
        """
        rows = self.database.execute("SELECT count, head, costs, digest FROM pruned WHERE session = ?", (session,))
        if not rows:
            return Pruned()
        count, head, costs, digest = rows[0]
        with self._check_digest(f"what was pruned of session number {session}", digest, session, count, head, costs):
            last_slot, *queries = parse_json(costs)
            return Pruned(count, {query: (each, *map(_parse_sum, sums)) for query, each, *sums in queries}, last_slot)
        raise AssertionError("the block returns or raises")

    def find(self, session: int, slot: int, query: str) -> ReleaseRecord | None:
        """Return the record of a slot and a query, or None.

        Parameters
        ----------
        session
            Number of the session.
        slot
            The slot.
        query
            The query.

        Returns
        -------
        ReleaseRecord or None
            The record; None if there is none.
        """
        rows = self.database.execute(f"{_RECORDS} session = ? AND slot = ? AND query = ?", (session, slot, query))
        return self._parse_release(session, rows[0]).record if rows else None

    def releases(self, session: int, first: int = 0, last: int | None = None) -> Iterator[StoredRelease]:
        """Iterate over the releases of a session in order, except those without a record.

        Parameters
        ----------
        session
            Number of the session.
        first, last
            Range of indices: from ``first`` to before ``last``. Defaults to all.

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
        for row in self._iterate_rows(session, max(first, self.first_record(session)), end):
            yield self._parse_release(session, row)

    def first_record(self, session: int) -> int:
        """Return the number of the first release of which the record is kept.

        Parameters
        ----------
        session
            Number of the session.

        Returns
        -------
        int
            Its number; 0 without a release.
        """
        statement = "SELECT MIN(number) FROM record WHERE session = ?"
        kept = self.database.execute(statement, (session,))[0][0]
        return int(self.get_pruned_costs(session).count if kept is None else kept)

    def costs(self, session: int, first: int, last: int) -> Iterator[tuple[int, str, float, float]]:
        """Iterate over slot, query, budget and constrained-DP factor of releases.

        The other fields of the records are only compared with their digests and not parsed, so that a year of releases
        is read quickly.

        Parameters
        ----------
        session
            Number of the session.
        first, last
            Range of indices: from ``first`` to before ``last``.

        Yields
        ------
        tuple
            Slot, query, budget and constrained-DP factor of a release.
        """
        for row in self._iterate_rows(session, first, last):
            _, slot, query, body, *_ = row
            with self._check_record(session, row):
                epsilon, factor = ReleaseRecord.cost_from_json(body)
                yield slot, query, epsilon, factor

    def find_last_draw_slot(self, session: int, query: str, first: int, end: int) -> int | None:
        """Return the slot of the last release of a query that was not withheld, or None.

        Parameters
        ----------
        session
            Number of the session.
        query
            The query.
        first, end
            Range of indices: from ``first`` to before ``end``.

        Returns
        -------
        int or None
            The slot; None if there is none, or its record is not kept.
        """
        first = max(first, self.first_record(session))
        size = _FIRST_BATCH_SIZE
        while end > first:
            begin = max(first, end - size)
            for slot, name, epsilon, _ in reversed(list(self.costs(session, begin, end))):
                if name == query and epsilon > 0:
                    return slot
            end = begin
            size = min(2 * size, _ROWS_PER_QUERY)
        return None

    def _iterate_rows(self, session: int, first: int, end: int) -> Iterator[tuple[Any, ...]]:
        """Iterate over the rows of releases in batches. Years of them need not fit into memory."""
        for begin in range(first, end, _ROWS_PER_QUERY):
            stop = min(begin + _ROWS_PER_QUERY, end)
            query = f"{_RECORDS} session = ? AND number >= ? AND number < ? ORDER BY number"
            rows = self.database.execute(query, (session, begin, stop))
            if len(rows) != stop - begin:
                raise self._build_damage_error(f"the releases of session number {session}")
            for expected, row in enumerate(rows, start=begin):
                if row[0] != expected:
                    raise self._build_damage_error(f"release {expected} of session number {session}")
                yield row

    def _parse_release(self, session: int, row: tuple[Any, ...]) -> StoredRelease:
        _, slot, query, body, *_ = row
        with self._check_record(session, row):
            _check_types(((slot, int), (query, str)))
            return StoredRelease(slot, query, ReleaseRecord.from_json(body))

    def _check_record(self, session: int, row: tuple[Any, ...]) -> AbstractContextManager[None]:
        number, slot, query, body, digest, previous = row
        what = f"release {number} of session number {session}"
        return self._check_digest(what, digest, previous or b"", session, number, slot, query, body)

    @contextmanager
    def _check_digest(self, what: str, digest: bytes, *parts: Any) -> Iterator[None]:
        """Raise an error if the digest of the parts differs, or the block cannot parse them."""
        try:
            if digest != _compute_digest(*parts):
                raise ValueError
            yield
        except MissingExtensionError as problem:
            raise MissingExtensionError(f"{self.path}: {what}: {problem}") from None
        except (TypeError, AttributeError, ValueError):
            raise self._build_damage_error(what) from None

    def _build_damage_error(self, what: str) -> DataFileError:
        return DataFileError(self.path, f"is damaged at {what}; restore a copy")

    # ---- writing -------------------------------------------------------------------------------------------------

    def add(self, name: str, terms: Mapping[str, Terms], limits: Limits) -> StoredSession:
        """Return the session with a name, created with these terms and limits if necessary.

        Parameters
        ----------
        name
            Name of the session.
        terms
            Mapping from query to terms.
        limits
            Limits on the privacy cost.

        Returns
        -------
        StoredSession
            The session.

        Raises
        ------
        SessionBusyError
            If another process repeatedly prevents it.
        DataFileError
            If the stored data are damaged.
        OutputError
            If the store is closed or cannot be written.
        """
        texts = _format_terms(terms), json.dumps(asdict(limits))
        for _ in range(_MAX_ATTEMPTS):
            with self.database.run_transaction():
                if self.session(name) is not None:
                    break
                ((number,),) = self.database.execute("SELECT 1 + COALESCE(MAX(number), 0) FROM session")
                self.check_open()
                row = number, name, *texts
                if self._insert("session", *row, _compute_digest(*row), conflict="DO NOTHING RETURNING number"):
                    self._set_progress(number, Progress(0, None, None, b"", None))
        stored = self.session(name)
        if stored is None:
            raise SessionBusyError(f"{self.path}: session {name!r} could not be created; try again")
        return stored

    def append(
        self, session: int, progress: Progress, slot: int, draw: Callable[[], SampledRelease]
    ) -> SampledRelease | None:
        """Sample and write a release in one transaction.

        Parameters
        ----------
        session, progress
            Number of the session, and its progress when the release was prepared.
        slot
            Slot of the release.
        draw
            Function that samples the release. It is called with the file locked.

        Returns
        -------
        SampledRelease or None
            The release, once it is on disk. The record reads the same from the file from now on. None if another
            process continued the session meanwhile; nothing is sampled then.

        Raises
        ------
        OutputError
            If there is no space or no permission: before sampling, or at the commit. Also if the store is closed.
        """
        with self.database.run_transaction():
            if not self._is_current(session, progress):
                return None
            self.check_open()  # a later statement, which sees what was committed while the first one waited
            drawn = draw()
            number = progress.count
            body = drawn.record.to_json().ljust(drawn.width)
            head = _compute_digest(progress.head, session, number, slot, drawn.query, body)
            self._insert("record", session, number, slot, drawn.query, body, head)
            for name, belief in drawn.partial_beliefs.items():
                self.set_partial_belief(session, name, number + 1, belief)
            for name, message in drawn.partial_messages.items():
                row = session, number, name, message.ljust(_MESSAGE_WIDTH)
                self._insert("recipient_record", *row, _compute_digest(*row))
            updated = replace(progress, count=number + 1, slot=slot, belief=drawn.belief, head=head)
            self._set_progress(session, updated)
        return drawn

    def agree(self, stored: StoredSession, terms: Mapping[str, Terms], note: str) -> StoredSession:
        """Amend the terms of a session, from its next release on.

        The belief continues: it is that of an adversary who knows all releases, each interpreted under the terms of its
        time. Every release stays unchanged and under its terms, and its record has the hash of those settings. Sums of
        budgets and limits continue. A pair of locations that was adjacent all the time is distinguished by at most the
        sum of all budgets. A pair that is adjacent from now on is distinguished by the sum from now on, and by all
        releases before.

        The amendment and its time are public. They must not depend on the user's location.

        Parameters
        ----------
        stored
            The session.
        terms
            Mapping from query to new terms.
        note
            Note stored with the terms. Public.

        Returns
        -------
        StoredSession
            The session with the new terms.

        Raises
        ------
        SessionMismatchError
            If the model or the source of randomness would change, or there are or were event caps, which concern all
            releases together.
        SessionBusyError, OutputError
            If `append` raises them.
        """
        if set(terms) != set(stored.terms):
            stored.check_same(terms, None)
        for query in terms:
            stored.terms[query].check_amendment(terms[query], f"session {stored.name!r}")
        while True:
            last = stored.agreements[-1]
            if last.note == note and all(terms[query].has_same_content(last.terms[query]) for query in terms):
                return stored
            with self.database.run_transaction():
                progress = self.lock_progress(stored.number)
                self.check_open()
                if progress.num_amendments == len(stored.agreements) - 1:
                    row = stored.number, progress.num_amendments, progress.count, _format_terms(terms), note
                    self._insert("amendment", *row, _compute_digest(*row))
                    self._set_progress(stored.number, replace(progress, num_amendments=progress.num_amendments + 1))
            amended = self.session(stored.name)
            assert amended is not None, "sessions are never removed"
            stored = amended

    def omit(self, session: int, progress: Progress, slot: int) -> bool:
        """Write that a slot has no release. Return False if another process continued the session.

        Parameters
        ----------
        session
            Number of the session.
        progress
            Progress of the session when the decision was made.
        slot
            The slot.

        Returns
        -------
        bool
            Whether it was written.
        """
        with self.database.run_transaction():
            if not self._is_current(session, progress):
                return False
            self.check_open()
            self._set_progress(session, replace(progress, omitted_slot=slot))
        return True

    def _is_current(self, session: int, progress: Progress) -> bool:
        query = f"SELECT count, omitted, amended FROM progress WHERE session = ?{self.database.row_lock}"
        rows = self.database.execute(query, (session,))
        return rows == [(progress.count, progress.omitted_slot, progress.num_amendments)]

    # ---- recipients who were not sent all releases -----------------------------------------------------------------

    def partial_belief(self, session: int, name: str) -> tuple[int, Belief | None] | None:
        """Return the belief of a recipient who was not sent all releases, and its index.

        Parameters
        ----------
        session
            Number of the session.
        name
            Name passed to `set_partial_belief`.

        Returns
        -------
        tuple or None
            The number of releases at the time of the belief, and the belief; None for a recipient who was sent nothing
            yet. None if there is no such recipient.
        """
        statement = "SELECT number, belief FROM recipient_belief WHERE session = ? AND recipient = ?"
        rows = self.database.execute(statement, (session, name))
        return (rows[0][0], Belief.from_bytes(rows[0][1]) if rows[0][1] else None) if rows else None

    def set_partial_belief(self, session: int, name: str, number: int, belief: Belief | None) -> None:
        """Store the belief of a recipient who was not sent all releases, within a transaction.

        Parameters
        ----------
        session
            Number of the session.
        name
            Name of the recipient.
        number
            Number of releases of the session.
        belief
            The belief; None for a recipient who was sent nothing yet.
        """
        encoded = b"" if belief is None else belief.to_bytes()
        anew = "(session, recipient) DO UPDATE SET number = excluded.number, belief = excluded.belief"
        self._insert("recipient_belief", session, name, number, encoded, conflict=anew)

    def partial_message(self, session: int, number: int, name: str) -> str | None:
        """Return the message about a release to a recipient who was not sent all. None if none.

        Parameters
        ----------
        session
            Number of the session.
        number
            Index of the release.
        name
            Name of the recipient.

        Returns
        -------
        str or None
            The message as JSON text.
        """
        statement = "SELECT body, digest FROM recipient_record WHERE session = ? AND number = ? AND recipient = ?"
        rows = self.database.execute(statement, (session, number, name))
        if not rows:
            return None
        message, digest = rows[0]
        with self._check_digest(
            f"release {number} of session number {session}", digest, session, number, name, message
        ):
            return str(message)

    def prune(self, stored: StoredSession, slot: int, step_seconds: float | None = None) -> int:
        """Remove the records before a slot, except those that the relay looks back to.

        Limits and schedules look back at a window. Predictions state the time of the last release. The last one of
        every query therefore stays, with all later records.

        The session's terms, progress and belief stay, and so does the cost of the removed releases. The timesteps still
        count as released and get no other release. Recipients who were sent a removed release still have it. It cannot
        be sent again, and no audit can replay it.

        Parameters
        ----------
        stored
            The session.
        slot
            First slot of which the record is kept in any case.
        step_seconds
            Length of a timestep, for windows of time.

        Returns
        -------
        int
            Index of the first remaining release.

        Raises
        ------
        ConfigurationError
            If there are event caps, which look back at all releases.
        SessionBusyError, OutputError
            If `append` raises them.
        """
        if any(terms.settings.caps for agreed in stored.agreements for terms in agreed.terms.values()):
            raise ConfigurationError(
                f"session {stored.name!r} cannot be pruned: its event caps look back at all releases"
            )
        session = stored.number
        with self.database.run_transaction():
            progress = self.lock_progress(session)
            count, latest = progress.count, progress.slot
            before = self.get_pruned_costs(session)
            first = slot if latest is None else min(slot, latest - stored.max_window_steps(step_seconds) + 1)
            queries = self.database.execute("SELECT DISTINCT query FROM record WHERE session = ?", (session,))
            draws = [self.find_last_draw_slot(session, query, before.count, count) for (query,) in queries]
            first = min([first, *(slot for slot in draws if slot is not None)])
            # Records after a wrong time that `rewind` corrected stay until that time has passed.
            query = "SELECT MIN(number) FROM record WHERE session = ? AND slot >= ?"
            ((end,),) = self.database.execute(query, (session, first))
            if end is None or end <= before.count:
                return before.count
            where = "session = ? AND number"
            ((head,),) = self.database.execute(f"SELECT digest FROM record WHERE {where} = ?", (session, end - 1))
            ((last_slot,),) = self.database.execute(f"SELECT MAX(slot) FROM record WHERE {where} < ?", (session, end))
            self._set_pruned(session, replace(before, last_slot=last_slot), end, head)
            for table in ("record", "recipient_record", "set_aside"):
                self.database.execute(f"DELETE FROM {table} WHERE {where} < ?", (session, end))
            # The first remaining message was not tried yet.
            unsent = "number = ?, waiting_since = 0, failures = 0, errors = 0"
            self.database.execute(f"UPDATE delivery SET {unsent} WHERE {where} < ?", (end, session, end))
            behind = f"UPDATE recipient_belief SET number = 0, belief = ? WHERE {where} <= ?"
            # The releases before these beliefs are gone, so the beliefs restart from the initial distribution.
            self.database.execute(behind, (b"", session, end))
        return int(end)

    def _set_pruned(self, session: int, before: Pruned, end: int, head: bytes) -> None:
        """Move the cost of the releases before an index into one row."""
        costs = dict(before.costs)
        for _, name, epsilon, factor in self.costs(session, before.count, end):
            count, spent, level = costs.get(name, (0, Fraction(0), Fraction(0)))
            costs[name] = count + 1, spent + to_fraction(epsilon), level + constrained_cost(epsilon, factor)
        queries = [(name, count, str(spent), str(level)) for name, (count, spent, level) in costs.items()]
        text = json.dumps([before.last_slot, *queries])
        row = session, end, head, text
        self._insert(
            "pruned", *row, _compute_digest(*row), conflict=_build_update_clause("count", "head", "costs", "digest")
        )

    def rewind(self, stored: StoredSession, slot: int, step_seconds: float | None = None) -> int:
        """Let a session continue at a slot after releases or omitted slots of a wrong future.

        Each of these keeps its record, and is answered with it. Every other slot before the returned one gets no
        release, nor does any that shares a window of a limit or schedule with a kept record. All
        sums continue, and the belief continues as that at the slot. The session is amended with the same settings, so
        that no process continues at the wrong time. It cannot be replayed by an audit.

        Parameters
        ----------
        stored
            The session.
        slot
            Slot of the present time.
        step_seconds
            Length of a timestep, for windows of time.

        Returns
        -------
        int
            First slot that can be released.

        Raises
        ------
        ConfigurationError
            If the session has nothing after the slot, or has event caps, which concern all releases together.
        SessionBusyError, OutputError
            If `append` raises them.
        """
        name = f"session {stored.name!r}"
        if any(terms.settings.caps for agreed in stored.agreements for terms in agreed.terms.values()):
            raise ConfigurationError(f"{name} cannot be rewound: its event caps look back at all releases")
        with self.database.run_transaction():
            progress = self.lock_progress(stored.number)
            self.check_open()
            if progress.latest_slot is None or progress.latest_slot <= slot:
                raise ConfigurationError(f"{name} has no release after the present time, so it needs no correction")
            if progress.num_amendments != len(stored.agreements) - 1:
                raise SessionBusyError(f"{name} was amended meanwhile; try again")
            pruned = self.get_pruned_costs(stored.number)
            if pruned.count < progress.count:
                self._set_pruned(stored.number, pruned, progress.count, progress.head)
            first = slot + stored.max_budget_window_steps(step_seconds)
            latest = stored.agreements[-1]
            row = stored.number, progress.num_amendments, progress.count, _format_terms(latest.terms), latest.note
            self._insert("amendment", *row, _compute_digest(*row))
            changed = replace(progress, slot=slot, omitted_slot=first - 1, num_amendments=progress.num_amendments + 1)
            if not progress.count:
                changed = replace(changed, slot=None)
            self._set_progress(stored.number, changed)
        return first

    def last_uncounted_slot(self, session: int) -> int | None:
        """Return the last slot up to the present of a record that the account does not contain.

        `prune` removed it, or `rewind` left it.

        Parameters
        ----------
        session
            Number of the session.

        Returns
        -------
        int or None
            The slot; None if there is none.
        """
        statement = (
            "SELECT MAX(record.slot) FROM record JOIN progress ON progress.session = record.session "
            "JOIN pruned ON pruned.session = record.session "
            "WHERE record.session = ? AND record.number < pruned.count AND record.slot <= progress.slot"
        )
        ((last,),) = self.database.execute(statement, (session,))
        slots = [slot for slot in (last, self.get_pruned_costs(session).last_slot) if slot is not None]
        return max(slots, default=None)

    def find_future_slot_range(self, session: int) -> tuple[int, int] | None:
        """Return the first and last slot of records that `rewind` left after the present.

        Parameters
        ----------
        session
            Number of the session.

        Returns
        -------
        tuple of int, or None
            The slots; None if there is none.
        """
        statement = (
            "SELECT MIN(record.slot), MAX(record.slot) FROM record JOIN progress ON progress.session = record.session "
            "WHERE record.session = ? AND record.slot > progress.slot"
        )
        ((first, last),) = self.database.execute(statement, (session,))
        return None if first is None else (int(first), int(last))

    def _set_progress(self, session: int, progress: Progress) -> None:
        belief = None if progress.belief is None else progress.belief.to_bytes()
        values = (
            session,
            progress.count,
            progress.slot,
            progress.head,
            belief,
            progress.omitted_slot,
            progress.num_amendments,
        )
        row = *values, _compute_digest(*values)
        anew = _build_update_clause("count", "slot", "head", "belief", "omitted", "amended", "digest")
        self._insert("progress", *row, conflict=anew)
        self._written = row, progress

    def _insert(self, table: str, *row: Any, conflict: str = "") -> list[Any]:
        """Insert a row. `conflict` is the SQL clause for an existing row, and for returned values."""
        places = ", ".join("?" * len(row))
        after = f" ON CONFLICT {conflict}" if conflict else ""
        return self.database.execute(f"INSERT INTO {table} VALUES ({places}){after}", row)


def _reopen(path: str | Path, wait_seconds: float, readonly: bool) -> SessionStore:
    """Open a pickled store in this process.

    A missing file is not created: the releases that it contained would not be counted.
    """
    if isinstance(path, Path) and not path.exists():
        raise DataFileError(path, "must exist, because a pickled session continues it; restore the file")
    return SessionStore(path, wait_seconds, readonly)


def _build_update_clause(*columns: str) -> str:
    """Return the SQL clause that replaces a session's existing row."""
    return f"(session) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in columns)}"


def _format_terms(terms: Mapping[str, Terms]) -> str:
    return json.dumps({query: query_terms.to_json() for query, query_terms in terms.items()}, sort_keys=True)


def _parse_terms(text: str) -> dict[str, Terms]:
    return {query: Terms.from_json(query_text) for query, query_text in parse_json(text).items()}


# The largest number of JSON characters of a message to a recipient: planar coordinates, four figures and a slot.
_MESSAGE_WIDTH = 320

# The number of other processes that may create a session concurrently.
_MAX_ATTEMPTS = 100
_ROWS_PER_QUERY = 2000
# Most searches for a draw end within a few hours of timesteps.
_FIRST_BATCH_SIZE = 64
_RESTORED_NAME = "restored"
_CLOCK_NAME = "clock"
_MARK_REASONS = {
    "moved": "was exported to {file} on {at} and continues there; import that file into a new store, or back into this "
    "one to undo the export",
    "interrupted": "was exported on {at}, but the export was interrupted; repeat it to the same file, {file}",
    "importing": "is not completely imported; repeat dphmm session import",
}


def _check_types(values: Iterable[tuple[Any, Any]]) -> None:
    """Check types of values, because SQLite stores any type in any column."""
    if not all(isinstance(value, kind) for value, kind in values):
        raise TypeError


def _parse_sum(text: str) -> Fraction | float:
    return inf if text == "inf" else Fraction(text)


# One statement, so that another process cannot amend the session between the two counts.
_SESSIONS = (
    "SELECT number, terms, limits, digest, (SELECT COUNT(*) FROM amendment WHERE amendment.session = session.number) "
    "= (SELECT amended FROM progress WHERE progress.session = session.number) FROM session WHERE name = ?"
)

# Releases, each with the digest of the previous one. A condition must be appended.
_RECORDS = (
    "SELECT number, slot, query, body, digest, "
    "COALESCE((SELECT digest FROM record AS before WHERE before.session = record.session "
    "AND before.number = record.number - 1), "
    "(SELECT head FROM pruned WHERE pruned.session = record.session AND pruned.count = record.number)) "
    "FROM record WHERE"
)


def _compute_digest(*parts: Any) -> bytes:
    """Return a digest that detects damage, but not forgery: anyone can compute one."""
    digest = blake2b(digest_size=16)
    for part in parts:
        data = part if isinstance(part, bytes) else repr(part).encode("utf-8")
        digest.update(f"{type(part).__name__}{len(data)}:".encode())
        digest.update(data)
    return digest.digest()
