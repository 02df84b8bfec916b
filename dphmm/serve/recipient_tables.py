"""Tables of the relay's store: delivery progress, pauses, links and its name.

A recipient is identified by its name, address, precision and content. With another of them it is a new recipient: it is
sent no earlier release, and its belief does not contain earlier messages. A recipient that is in neither the relay's
file nor its database, or is paused there, is absent. While a recipient is absent or paused it is sent nothing: no
timestep that overlaps this period is sent to it, then or later, and estimates and errors that it is sent later do not
follow from such a timestep. Releases that were waiting for it are not sent. A link is a recipient without an address.
Its token opens a page until the link expires.

A recipient that was not sent every release has its own belief in the store: see `dphmm.release.session.Session.open`.

All releases, including those that a recipient was not sent, can determine when the next one is made and with which
noise: under a schedule, limits, unprotected states, component noise with repairs, noise tables or event caps. What a
recipient is sent after a pause, or by a link, can therefore reveal something about locations of the time before. A test
computes how much in an example: two earlier locations are distinguished by the withheld timesteps alone with total
variation 0.75.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass
from time import monotonic

from dphmm.errors import InvalidInputError
from dphmm.model.belief import Belief
from dphmm.release.session_store import SessionStore
from dphmm.release.session_terms import MAIN_QUERY
from dphmm.serve.clock import compute_end_of_second, get_current_second
from dphmm.serve.config import Recipient, generate_token, hash_token

# The last second of the year 9999, used as the end of a pause until further notice.
FOREVER = 253_402_300_799
# Length of a lease; see `RecipientTables.claim`. A message must end earlier.
LEASE_S = 40.0
_LEASE_MS = int(1000 * LEASE_S)
_MAX_LEASE_MS = 600_000  # longer than the longest wait after a failure
# Links per user: at most this many are open, and this many expired ones are kept. Each open link has its own belief.
_MAX_LINKS = 20
_LINK_PREFIX = "link "
_IDENTITY_NAME = "relay"
_PROBE_NAME = "probe"
# Columns of a recipient to which no message is being sent.
_NOTHING_WAITS = {"waiting_since": 0, "failures": 0, "errors": 0}


@dataclass(frozen=True)
class RecipientState:
    """Delivery state of a recipient or a link for one user.

    Parameters
    ----------
    key : str
        Key in the session's tables: `Recipient.key` of a recipient, the digest of the token of a link.
    session : int
        Number of the user's session.
    name : str
        Name that users see.
    query : str
        Query of the releases that are sent.
    precision_m : int
        Side of the cells to which messages are rounded, metres; 0 without a precision.
    num_sent : int
        Number of the session's releases, counted from the first, that were sent or skipped.
    paused_until : int
        Seconds since 1970. No timestep that began before is sent. `FOREVER` until further notice.
    is_absent : bool
        Whether it is missing in the relay's file and database, or paused there. A link is absent once it has ended.
    ends : int
        Seconds since 1970. Nothing is sent from then on. `FOREVER` except for links.
    has_own_belief : bool
        Whether some releases were not sent to it, so that the store keeps a separate belief.
    num_releases : int
        Number of releases of the session.
    """

    key: str
    session: int
    name: str
    query: str
    precision_m: int
    num_sent: int
    paused_until: int
    is_absent: bool
    ends: int
    has_own_belief: bool = False
    num_releases: int = 0

    @property
    def is_paused(self) -> bool:
        """Whether the user has paused it."""
        return self.paused_until > compute_end_of_second()

    @property
    def has_ended(self) -> bool:
        """Whether it is a link that has ended."""
        return self.ends <= get_current_second() or (self.is_absent and self.ends < FOREVER)


@dataclass
class Lease:
    """The right of a process to send a user's releases to a recipient for a time.

    Parameters
    ----------
    key : str
        Key of the recipient.
    session : int
        Number of the user's session.
    user : str
        The user.
    failures : int
        Number of consecutive failures of the first unsent release.
    errors : int
        Number of consecutive answers with errors among them.
    until : float
        End, as `time.monotonic`.
    """

    key: str
    session: int
    user: str
    failures: int
    errors: int
    until: float


class RecipientTables:
    """Tables of recipients and links, and the name, of a store of sessions.

    Parameters
    ----------
    store : SessionStore
        Store of the sessions.
    """

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._database = store.database
        self._has_user = "1 = 1"  # SQL clause

    def set_users(self, users: Container[str]) -> None:
        """Set the users with a device.

        Messages of others are neither leased nor counted, and wait for the user's return.
        """
        rows = self._database.execute("SELECT number, name FROM session")
        removed = [0, *(number for number, name in rows if name not in users)]  # an empty list is invalid SQL
        self._has_user = f"delivery.session NOT IN ({', '.join(map(str, removed))})"

    def get_identity(self) -> str:
        """Return the random name of this store, which does not change with its path."""
        with self._database.run_transaction():
            self._database.execute(
                "INSERT INTO identity VALUES (?, ?) ON CONFLICT DO NOTHING", (_IDENTITY_NAME, secrets.token_hex(16))
            )
            ((identity,),) = self._database.execute("SELECT value FROM identity WHERE name = ?", (_IDENTITY_NAME,))
        return str(identity)

    def write_probe(self, size: int) -> None:
        """Write a number of bytes to the disk, as a release does, in place of the previous ones.

        Raises
        ------
        DphmmError
            If the store cannot be written, or is closed.
        """
        with self._database.run_transaction():
            self._store.check_open()
            self._database.execute(
                "INSERT INTO identity VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                (_PROBE_NAME, secrets.token_hex(size // 2)),
            )

    # ---- recipients ----------------------------------------------------------------------------------------------

    def get_state(self, key: str, session: int) -> RecipientState | None:
        """Return the delivery state of a recipient or link, or None for an unknown key.

        Parameters
        ----------
        key : str
            Key of the recipient or link.
        session : int
            Number of the session in the store.
        """
        return next(iter(self._query_states("session = ? AND recipient = ?", session, key)), None)

    def list_active_recipients(self) -> dict[str, set[str]]:
        """Return the keys of the recipients of all users that are not absent, by user."""
        rows = self._database.execute(
            "SELECT session.name, delivery.recipient, delivery.absent FROM delivery "
            f"JOIN session ON session.number = delivery.session WHERE delivery.ends = {FOREVER}"
        )
        active: dict[str, set[str]] = {user: set() for user, _, _ in rows}
        for user, key, is_absent in rows:
            if not is_absent:
                active[user].add(key)
        return active

    def set_active_recipients(
        self, session: int, active: Mapping[str, Recipient], is_current: Callable[[], bool] = lambda: True
    ) -> bool:
        """Set the recipients of a session's releases from now on.

        All others become absent. Earlier releases count as sent to new recipients. New recipients, and those that
        return, keep a pause of the name, and are not sent releases of the time before. Estimates in later messages
        follow from releases that they were sent. When and how these are made can follow from all releases; see the
        module.

        Parameters
        ----------
        session : int
            Number of the session in the store.
        active : mapping
            The recipients by key.
        is_current : callable
            Returns whether these still are the recipients. It is called while the session is locked, because another
            process may have set later ones.

        Returns
        -------
        bool
            Whether they are set; otherwise nothing was changed, because they are not current.
        """
        if set(active) == {key for key, state in self._get_recipient_states(session).items() if not state.is_absent}:
            return is_current()
        with self._database.run_transaction():
            count = self._store.lock_progress(session).count
            if not is_current():
                return False
            stored = self._get_recipient_states(session)  # another process may have set them in the meantime
            for key, state in stored.items():
                if key not in active and not state.is_absent:
                    self._store_belief(state)
                    self._update(state, absent=1)
                elif key in active and state.is_absent:
                    since = max(state.paused_until, compute_end_of_second())
                    self._update(state, absent=0, number=count, paused_until=since, **_NOTHING_WAITS)
            for key, recipient in active.items():
                if key not in stored:
                    about = recipient.name, recipient.query, recipient.precision_m
                    # Every state of the name has the user's present decision; see `pause`. Times that differ are past.
                    pauses = (state.paused_until for state in stored.values() if state.name == recipient.name)
                    paused_until = max(pauses, default=0)
                    state = RecipientState(key, session, *about, count, paused_until, False, FOREVER)
                    self._add(state, with_belief=count > 0 or paused_until > 0)
        return True

    def _get_recipient_states(self, session: int) -> dict[str, RecipientState]:
        """Return the delivery states of a session's recipients, without links, by key."""
        states = self._query_states("session = ?", session)
        return {state.key: state for state in states if not state.key.startswith(_LINK_PREFIX)}

    def has_other_settings(self, key: str, session: int, name: str) -> bool:
        """Return whether a recipient of this name also had another key and may keep messages.

        Parameters
        ----------
        key : str
            Present key of the recipient.
        session : int
            Number of the session in the store.
        name : str
            Name of the recipient.
        """
        states = self._get_recipient_states(session).values()
        return any(state.name == name and state.key != key for state in states)

    def claim(
        self, holder: str, max_per_recipient: int, sessions: Collection[int] = (), recipients: Collection[str] = ()
    ) -> list[Lease]:
        """Lease sessions with unsent releases, each of one recipient, to a process.

        Until a lease ends, no other process sends these releases to the recipient. A process that dies loses its leases
        after `LEASE_S`. Those that waited longest come first.

        Parameters
        ----------
        holder : str
            Name of the process.
        max_per_recipient : int
            Maximum number of leases of each recipient.
        sessions : collection of int
            Numbers of sessions; all if empty.
        recipients : collection of str
            Keys of recipients; all if empty.

        Returns
        -------
        list of Lease
            The leases.
        """
        now_ms = self._database.now_ms
        # A lease far in the future is one from before this machine's clock was set back.
        is_free = f"(leased_until <= {now_ms} OR leased_until > {now_ms} + {_MAX_LEASE_MS})"
        # Links end and are not sent anything; recipients of true locations have another query.
        where = f"absent = 0 AND ends = {FOREVER} AND query = ? AND number < progress.count AND {is_free}"
        where += f" AND {self._has_user}"
        for column, values in (("session", sessions), ("recipient", recipients)):
            if values:
                where += f" AND delivery.{column} IN ({', '.join('?' * len(values))})"
        due = (
            "SELECT recipient, delivery.session, ROW_NUMBER() OVER "
            "(PARTITION BY recipient ORDER BY leased_until, delivery.session) AS place "
            f"FROM delivery JOIN progress ON progress.session = delivery.session WHERE {where}"
        )
        free = (
            "SELECT recipient, session FROM delivery WHERE (recipient, session) IN "
            f"(SELECT recipient, session FROM due WHERE place <= ?) AND {is_free}{self._database.skip_locked}"
        )
        statement = (
            f"WITH due AS ({due}), free AS MATERIALIZED ({free}) UPDATE delivery SET holder = ?, "
            f"leased_until = {now_ms} + {_LEASE_MS}, "
            f"waiting_since = CASE waiting_since WHEN 0 THEN {now_ms} ELSE waiting_since END "
            "WHERE (recipient, session) IN (SELECT recipient, session FROM free) RETURNING recipient, session, "
            "(SELECT name FROM session WHERE session.number = delivery.session), failures, errors"
        )
        arguments = (MAIN_QUERY, *sessions, *recipients, max_per_recipient, holder)
        since = monotonic()
        with self._database.run_transaction(durable=False):
            rows = self._database.execute(statement, arguments)
        return [
            Lease(key, session, user, failures, errors, since + LEASE_S)
            for key, session, user, failures, errors in rows
        ]

    def set_num_sent(self, lease: Lease, holder: str, number: int, reason: str = "") -> bool | None:
        """Store the number of releases that a recipient was sent.

        The lease is extended if there are more, and ended otherwise.

        If an update is lost, an identical message is sent again.

        Parameters
        ----------
        lease : Lease
            Lease of the recipient and session.
        holder : str
            Name of the process.
        number : int
            Number of releases.
        reason : str
            Why the last of them was set aside; empty if it was not.

        Returns
        -------
        bool or None
            Whether there are more releases; None if another process has the lease.
        """
        now_ms = self._database.now_ms
        since = monotonic()
        more = "? < (SELECT count FROM progress WHERE progress.session = delivery.session)"
        with self._database.run_transaction(durable=False):
            rows = self._database.execute(
                f"UPDATE delivery SET number = CASE WHEN number < ? THEN ? ELSE number END, failures = 0, errors = 0, "
                f"leased_until = {now_ms} + CASE WHEN {more} THEN {_LEASE_MS} ELSE 0 END, "
                f"waiting_since = CASE WHEN {more} THEN {now_ms} ELSE 0 END "
                f"WHERE recipient = ? AND session = ? AND holder = ? RETURNING {more}",
                (number, number, number, number, lease.key, lease.session, holder, number),
            )
            if rows and reason:
                row = lease.key, lease.session, number - 1, get_current_second(), reason
                self._database.execute("INSERT INTO set_aside VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", row)
        if not rows:
            return None
        lease.until = since + LEASE_S
        lease.failures = lease.errors = 0
        return bool(rows[0][0])

    def defer(self, lease: Lease, holder: str, seconds: float) -> None:
        """Store the failures of a lease, and let it end after a time.

        Parameters
        ----------
        lease : Lease
            The lease, with its present numbers of failures.
        holder : str
            Name of the process.
        seconds : float
            The time.
        """
        with self._database.run_transaction(durable=False):
            self._database.execute(
                f"UPDATE delivery SET failures = ?, errors = ?, leased_until = {self._database.now_ms} + ? "
                "WHERE recipient = ? AND session = ? AND holder = ?",
                (lease.failures, lease.errors, int(1000 * seconds), lease.key, lease.session, holder),
            )

    def end_leases(self, holder: str | None = None) -> None:
        """End the leases of a process, or all leases and waits after failures.

        Parameters
        ----------
        holder : str, optional
            Name of the process.
        """
        values: tuple[str, ...] = ()
        if holder is None:
            change, where = "leased_until = 0, waiting_since = 0, failures = 0, errors = 0", ""
        else:
            change = "leased_until = 0"
            where = " WHERE holder = ? AND failures = 0"
            values = (holder,)
        with self._database.run_transaction(durable=False):
            self._database.execute(f"UPDATE delivery SET {change}{where}", values)

    def list_message_ages(self) -> dict[str, float]:
        """Return the time since the oldest waiting message of recipients was first tried.

        Returns
        -------
        dict
            Key of the recipient → seconds.
        """
        statement = (
            f"SELECT recipient, {self._database.now_ms} - MIN(waiting_since) FROM delivery "
            f"WHERE absent = 0 AND waiting_since > 0 AND {self._has_user} GROUP BY recipient"
        )
        return {key: age_ms / 1000 for key, age_ms in self._database.execute(statement)}

    def count_unsent_releases(self) -> dict[str, int]:
        """Return the number of releases that wait for each recipient, by key."""
        return dict(
            self._database.execute(
                "SELECT delivery.recipient, CAST(SUM(progress.count - delivery.number) AS BIGINT) FROM delivery "
                "JOIN progress ON progress.session = delivery.session WHERE delivery.absent = 0 "
                f"AND delivery.number < progress.count AND {self._has_user} GROUP BY delivery.recipient"
            )
        )

    def list_releases_set_aside(self, key: str, session: int) -> list[tuple[int, int, str]]:
        """Return number, second and reason of each release set aside, latest first."""
        statement = (
            "SELECT number, second, reason FROM set_aside WHERE recipient = ? AND session = ? ORDER BY number DESC"
        )
        return self._database.execute(statement, (key, session))

    def pause(self, key: str, session: int, until: int | None) -> None:
        """Pause a recipient, with all its settings, or a link until a time, or resume it.

        Releases that were waiting for it are not sent. Earlier settings of the recipient's name are paused or resumed
        with the present ones, because they can return.

        Parameters
        ----------
        key : str
            Key of the recipient or link.
        session : int
            Number of the session in the store.
        until : int, optional
            Seconds since 1970. `FOREVER` pauses until further notice, and None resumes now.

        Raises
        ------
        InvalidInputError
            If the time is not in the future. Such a pause would end an earlier one.
        """
        with self._database.run_transaction():
            count = self._store.lock_progress(session).count  # nothing is released or exported until this is written
            self._store.check_open()  # a store that continues elsewhere would not have the pause
            state = self.get_state(key, session)
            present = compute_end_of_second()
            if until is not None and until <= present:
                raise InvalidInputError(f"until must be in the future, got {until}")
            if state is not None and (until is not None or state.paused_until > get_current_second()):
                recipients = self._get_recipient_states(session)
                same_name = [other for other in recipients.values() if other.name == state.name]
                for paused in same_name if key in recipients else [state]:
                    self._store_belief(paused)
                    self._update(paused, number=count, paused_until=until or present, **_NOTHING_WAITS)

    def list_partial_recipients(self, session: int, begin: int) -> dict[str, str]:
        """Return recipients with their own belief that are sent a timestep → query.

        Parameters
        ----------
        session : int
            Number of the session.
        begin : int
            Second at which the timestep begins.
        """
        statement = (
            "SELECT delivery.recipient, delivery.query FROM delivery "
            "JOIN recipient_belief ON recipient_belief.session = delivery.session "
            "AND recipient_belief.recipient = delivery.recipient WHERE delivery.session = ? AND delivery.absent = 0 "
            "AND delivery.paused_until <= ? AND delivery.ends > ?"
        )
        present = get_current_second()
        # A clock that was set back does not extend a link: no timestep that begins after its end is sent.
        return dict(self._database.execute(statement, (session, min(begin, present), max(begin, present))))

    # ---- links ---------------------------------------------------------------------------------------------------

    def add_link(self, session: int, name: str, precision_m: int, ends: int) -> str:
        """Create a link and return its token. Only a digest of the token is stored.

        Anyone with the token is sent what is released from now until the link expires, with estimates from these
        releases alone. When and how they are made can follow from earlier releases; see the module.

        Parameters
        ----------
        session : int
            Number of the session in the store.
        name : str
            Name that the user gives to the link.
        precision_m : int
            Side of the cells to which messages are rounded, metres; 0 without a precision.
        ends : int
            Expiry, in seconds since 1970.

        Returns
        -------
        str
            The token.

        Raises
        ------
        InvalidInputError
            If the expiry is in the past, or there are too many links.
        """
        if ends <= get_current_second():
            raise InvalidInputError("the expiry of a link must be in the future; choose a later time")
        links = self.list_links(session)
        ended_links = [link for link in links if link.has_ended]
        for link in ended_links[:-_MAX_LINKS]:
            self.end_link(link.key, session)
        if len(links) - len(ended_links) >= _MAX_LINKS:
            raise InvalidInputError(f"there are {_MAX_LINKS} links already; end one first")
        token = generate_token()
        with self._database.run_transaction():
            count = self._store.lock_progress(session).count
            self._store.check_open()
            key = _LINK_PREFIX + hash_token(token)
            self._add(
                RecipientState(
                    key, session, name, MAIN_QUERY, precision_m, count, compute_end_of_second(), False, ends
                ),
                with_belief=True,
            )
        return token

    def list_links(self, session: int) -> list[RecipientState]:
        """Return a user's links, ordered by expiry, with those that have ended."""
        return sorted(self._query_links("session = ?", session), key=lambda link: link.ends)

    def find_link(self, token: str) -> tuple[str, RecipientState] | None:
        """Return the user of a link and the link, or None if it is unknown or has ended."""
        for link in self._query_links("recipient = ?", _LINK_PREFIX + hash_token(token)):
            if link.has_ended:
                break
            ((user,),) = self._database.execute("SELECT name FROM session WHERE number = ?", (link.session,))
            return user, link
        return None

    def count_until_last_sent(self, link: RecipientState) -> int:
        """Return the number of releases up to the last one that a link was sent, or 0."""
        statement = "SELECT MAX(number) + 1 FROM recipient_record WHERE session = ? AND recipient = ?"
        return int(self._database.execute(statement, (link.session, link.key))[0][0] or 0)

    def end_link(self, key: str, session: int) -> None:
        """End a link now. A link that has already ended is deleted."""
        with self._database.run_transaction():
            self._store.lock_progress(session)
            self._store.check_open()
            link = self.get_state(key, session) if key.startswith(_LINK_PREFIX) else None
            if link is not None and not link.has_ended:
                self._update(link, absent=1, ends=get_current_second())
            elif link is not None:
                for table in ("recipient_record", "recipient_belief", "delivery"):
                    self._database.execute(f"DELETE FROM {table} WHERE session = ? AND recipient = ?", (session, key))

    def end_expired_links(self) -> None:
        """Store that links have ended, so that a clock that is set back does not open them again."""
        with self._database.run_transaction(durable=False):
            self._database.execute(
                "UPDATE delivery SET absent = 1 WHERE ends <= ? AND absent = 0", (get_current_second(),)
            )

    def _query_links(self, where: str, *values: object) -> list[RecipientState]:
        """Return links, and store which have ended before this is shown. See `end_expired_links`."""
        links = [state for state in self._query_states(where, *values) if state.key.startswith(_LINK_PREFIX)]
        if any(link.has_ended and not link.is_absent for link in links):
            self.end_expired_links()
        return links

    # ---- rows ----------------------------------------------------------------------------------------------------

    def _query_states(self, where: str, *values: object) -> Iterable[RecipientState]:
        columns = "recipient, session, name, query, precision_m, number, paused_until, absent, ends"
        has_belief = (
            "SELECT 1 FROM recipient_belief WHERE recipient_belief.session = delivery.session "
            "AND recipient_belief.recipient = delivery.recipient"
        )
        num_releases = "SELECT count FROM progress WHERE progress.session = delivery.session"
        statement = f"SELECT {columns}, EXISTS({has_belief}), ({num_releases}) FROM delivery WHERE {where}"
        for row in self._database.execute(statement, values):
            key, number, name, query, precision_m, num_sent, paused_until, absent, ends, has_own_belief, count = row
            about = key, number, name, query, precision_m
            yield RecipientState(*about, num_sent, paused_until, bool(absent), ends, bool(has_own_belief), count)

    def _add(self, state: RecipientState, with_belief: bool) -> None:
        about = state.key, state.session, state.name, state.query, state.precision_m
        row = *about, state.num_sent, state.paused_until, int(state.is_absent), state.ends
        columns = "recipient, session, name, query, precision_m, number, paused_until, absent, ends"
        new = self._database.execute(
            f"INSERT INTO delivery ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING "
            "RETURNING number",
            row,
        )
        if new and with_belief:
            self._store.set_partial_belief(state.session, state.key, 0, None)

    def _update(self, state: RecipientState, **values: int) -> None:
        columns = ", ".join(f"{name} = ?" for name in values)
        row = *values.values(), state.key, state.session
        self._database.execute(f"UPDATE delivery SET {columns} WHERE recipient = ? AND session = ?", row)

    def _store_belief(self, state: RecipientState) -> None:
        """Store the present belief of a recipient that will not be sent the next releases.

        It restarts from the prior if releases wait, because it would follow from them. A link has been sent all.
        """
        progress = self._store.progress(state.session)
        belief: tuple[int, Belief | None] = (0, None)
        if state.has_own_belief:
            statement = "SELECT COUNT(*) FROM recipient_record WHERE session = ? AND recipient = ? AND number >= ?"
            ((num_waiting,),) = self._database.execute(statement, (state.session, state.key, state.num_sent))
            if num_waiting == 0 or state.key.startswith(_LINK_PREFIX):
                return
        # Without a release since then, the recipient's belief is the public one.
        elif progress.count and self.count_releases(state.session, state.num_sent, state.query) == 0:
            belief = (progress.count, progress.belief)
        self._store.set_partial_belief(state.session, state.key, *belief)

    def find_first_release(self, session: int, slot: int) -> int:
        """Return the number of a session's first release of a time slot or later, or 0."""
        query = "SELECT MIN(number) FROM record WHERE session = ? AND slot >= ?"
        return int(self._database.execute(query, (session, slot))[0][0] or 0)

    def count_releases(self, session: int, number: int, query: str) -> int:
        """Return the number of releases of a query in a session, from a release on."""
        statement = "SELECT COUNT(*) FROM record WHERE session = ? AND number >= ? AND query = ?"
        return int(self._database.execute(statement, (session, number, query))[0][0])
