"""What is kept of those who are told, beside the sessions: how far each was told, pauses, links that end, and logins.

A recipient is a reader of a person's releases by name and address: under another address it is another reader, who is
told nothing of the time before. One that is not in the relay's file, or paused in it, is absent; absent and paused
recipients are told nothing of any time step that touches the time of it, then or later, nor anything that follows from
such a step, and what waited for them is not sent. A link is a reader without an address, whose token opens a page
until a date.

A reader who was not told everything has a belief of their own in the store: see `dphmm.release.session.Session.open`.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dphmm.errors import InvalidInputError
from dphmm.model.belief import Belief
from dphmm.release.session_store import SessionStore
from dphmm.release.session_terms import MAIN_QUERY
from dphmm.serve.config import hash_token, new_token
from dphmm.tables.json_toml import parse_json

FOREVER = 253_402_300_799
"""The last second of the year 9999: until when those are paused who are paused until further notice."""
_LOGIN_S = 7 * 86400
"""How long a login holds."""
_MOST_TOKENS = 20
"""A page is open for at most this many people."""
_MOST_LINKS = 20
"""At most this many links about a person, each with a belief of its own, and as many that have ended."""
_LINK = "link "


clock = time.time
"""What the time is read from."""


def now() -> int:
    """The second since 1970."""
    return int(clock())


@dataclass(frozen=True)
class Login:
    """A login to the page by a token, or by those of several people of a household.

    Parameters
    ----------
    tokens
        The tokens' digests: whose they are, and whether they are still valid, the relay's file says.
    csrf
        What requests that change something show, besides the cookie.
    """

    tokens: tuple[str, ...]
    csrf: str


@dataclass(frozen=True)
class Reader:
    """A recipient or a link, as a reader of one person's releases.

    Parameters
    ----------
    key
        What it is called among the session's readers: of a recipient `Recipient.key`, of a link the digest of its
        token.
    session
        The number of the person's session.
    name
        What people call it.
    query
        The query whose releases it is told.
    precision_m
        The side of the cells to which its messages are rounded, metres; 0 without a precision.
    number
        How many of the session's releases it was told, the first ones.
    paused_until
        In seconds since 1970: it is told of no time step that began before; `FOREVER` until further notice.
    absent
        Whether it is not in the relay's file, or paused there.
    ends
        In seconds since 1970: it is told nothing from then on; `FOREVER` but for links.
    in_part
        Whether it was not told everything, so that it has a belief of its own.
    count
        How many releases the session has.
    """

    key: str
    session: int
    name: str
    query: str
    precision_m: int
    number: int
    paused_until: int
    absent: bool
    ends: int
    in_part: bool = False
    count: int = 0

    @property
    def is_paused(self) -> bool:
        """Whether the person has paused it."""
        return self.paused_until > now()


class RecipientTables:
    """The tables beside those of sessions.

    Parameters
    ----------
    store
        The sessions' store.
    """

    def __init__(self, store: SessionStore) -> None:
        self._store, self._database = store, store.database

    def leads(self) -> bool:
        """Whether this process is the one that sends to recipients, of all that share the store."""
        return self._database.leads()

    # ---- recipients ----------------------------------------------------------------------------------------------

    def reader(self, key: str, session: int) -> Reader | None:
        """A reader of a session; None where there is none of that key.

        Parameters
        ----------
        key
            The reader's key.
        session
            The number of the session in the store.
        """
        return next(iter(self._readers("session = ? AND recipient = ?", session, key)), None)

    def set_present(self, session: int, present: Mapping[str, tuple[str, str, int]]) -> None:
        """Say which recipients are told of a session from now on; all others that were are absent.

        Those who are new count as told of all that there is: they learn nothing of the time before, and what they are
        told of later releases follows from these alone. Those who were absent learn nothing of that time.

        Parameters
        ----------
        session
            The number of the session in the store.
        present
            Key → name, query and precision in metres.
        """
        known = {one.key: one for one in self._readers("session = ?", session) if not one.key.startswith(_LINK)}
        if set(present) == {key for key, one in known.items() if not one.absent}:
            return
        with self._database.transaction():
            count = self._store.hold(session).count
            for key, one in known.items():
                if key not in present and not one.absent:
                    self._leave(one)
                    self._set(one, absent=1)
                elif key in present and one.absent:
                    self._set(one, absent=0, number=count, paused_until=max(one.paused_until, now()))
            for key, (name, query, precision_m) in present.items():
                if key not in known:
                    self._add(Reader(key, session, name, query, precision_m, count, 0, False, FOREVER), anew=count > 0)

    def set_sent(self, key: str, session: int, number: int, said: str = "") -> None:
        """Write how many releases a recipient was told; what is lost of it is told again, and is the same then.

        Parameters
        ----------
        key
            The recipient's key.
        session
            The number of the session in the store.
        number
            How many releases.
        said
            Why the last of them was set aside; empty where it was not.
        """
        with self._database.transaction(lasting=False):
            if said:
                row = key, session, number - 1, now(), said
                self._database.execute("INSERT INTO set_aside VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", row)
            self._database.execute(
                "UPDATE told SET number = ? WHERE recipient = ? AND session = ? AND number < ?",
                (number, key, session, number),
            )

    def unsent(self) -> list[tuple[str, str]]:
        """The people of whom there are releases that recipients were not told, and these recipients' keys."""
        return self._database.execute(
            "SELECT session.name, told.recipient FROM told JOIN session ON session.number = told.session "
            "JOIN progress ON progress.session = told.session WHERE told.absent = 0 AND told.number < progress.count"
        )

    def set_aside(self, key: str, session: int) -> list[tuple[int, int, str]]:
        """What a recipient did not take: the number of each release, when it was set aside, and why; the last first."""
        statement = (
            "SELECT number, second, said FROM set_aside WHERE recipient = ? AND session = ? ORDER BY number DESC"
        )
        return self._database.execute(statement, (key, session))

    def pause(self, key: str, session: int, until: int) -> None:
        """Pause a reader until a time, or go on now; what waited for it is not sent.

        Parameters
        ----------
        key
            The reader's key.
        session
            The number of the session in the store.
        until
            In seconds since 1970: `FOREVER` until further notice; a time that is over goes on now.
        """
        with self._database.transaction():
            count = self._store.hold(session).count  # nothing is released until this is written
            one = self.reader(key, session)
            if one is not None and max(until, one.paused_until) > now():
                self._leave(one)
                self._set(one, number=count, paused_until=max(until, now()))

    def listening(self, session: int, begin: int) -> dict[str, str]:
        """The readers who were not told everything of a session, and are told of a time step → their query.

        Parameters
        ----------
        session
            The number of the session.
        begin
            The second at which the time step begins.
        """
        statement = (
            "SELECT told.recipient, told.query FROM told JOIN reader_belief ON reader_belief.session = told.session "
            "AND reader_belief.reader = told.recipient WHERE told.session = ? AND told.absent = 0 "
            "AND told.paused_until <= ? AND told.ends > ?"
        )
        return dict(self._database.execute(statement, (session, min(begin, now()), now())))

    # ---- links ---------------------------------------------------------------------------------------------------

    def add_link(self, session: int, name: str, precision_m: int, ends: int) -> str:
        """Make a link, and give its token, of which a digest is kept.

        Anyone who has the token is told what is released from now until the end, and nothing that follows from anything
        before.

        Parameters
        ----------
        session
            The number of the session in the store.
        name
            What the person calls it.
        precision_m
            The side of the cells to which its messages are rounded, metres; 0 without a precision.
        ends
            When it ends, in seconds since 1970.

        Returns
        -------
        str
            The token.

        Raises
        ------
        InvalidInputError
            When it would have ended already, or there are too many.
        """
        if ends <= now():
            raise InvalidInputError("the link would have ended already; choose a later end")
        found, open_ones = self.links(session, after=0), self.links(session)
        for one in found[: len(found) - len(open_ones)][:-_MOST_LINKS]:
            self.end_link(one.key, session)
        if len(open_ones) >= _MOST_LINKS:
            raise InvalidInputError(f"there are {_MOST_LINKS} links already; end one first")
        token = new_token()
        with self._database.transaction():
            count = self._store.hold(session).count
            key = _LINK + hash_token(token)
            self._add(Reader(key, session, name, MAIN_QUERY, precision_m, count, now(), False, ends), anew=True)
        return token

    def links(self, session: int, after: int | None = None) -> list[Reader]:
        """The links about a person that have not ended, or end after a second; the one that ends first first."""
        found = self._readers("session = ? AND ends > ?", session, now() if after is None else after)
        return sorted((one for one in found if one.key.startswith(_LINK)), key=lambda one: one.ends)

    def link(self, token: str) -> tuple[str, Reader] | None:
        """The person whom a link is about, and the link; None where there is none, or it has ended."""
        for one in self._readers("recipient = ? AND ends > ?", _LINK + hash_token(token), now()):
            ((user,),) = self._database.execute("SELECT name FROM session WHERE number = ?", (one.session,))
            return user, one
        return None

    def last_told(self, link: Reader) -> int:
        """How many releases there were up to the last one that a link told; 0 where there is none."""
        statement = "SELECT MAX(number) + 1 FROM reader_said WHERE session = ? AND reader = ?"
        return int(self._database.execute(statement, (link.session, link.key))[0][0] or 0)

    def end_link(self, key: str, session: int) -> None:
        """End a link now; one that has ended is forgotten."""
        one = self.reader(key, session) if key.startswith(_LINK) else None
        if one is not None and one.ends > now():
            self._set(one, ends=now())
        elif one is not None:
            with self._database.transaction():
                for table, column in (("reader_said", "reader"), ("reader_belief", "reader"), ("told", "recipient")):
                    statement = f"DELETE FROM {table} WHERE session = ? AND {column} = ?"
                    self._database.execute(statement, (session, key))

    # ---- rows ----------------------------------------------------------------------------------------------------

    def _readers(self, where: str, *values: object) -> Iterable[Reader]:
        columns = "recipient, session, name, query, precision_m, number, paused_until, absent, ends"
        own = "SELECT 1 FROM reader_belief WHERE reader_belief.session = told.session AND reader = recipient"
        there = "SELECT count FROM progress WHERE progress.session = told.session"
        statement = f"SELECT {columns}, EXISTS({own}), ({there}) FROM told WHERE {where}"
        for row in self._database.execute(statement, values):
            key, number, name, query, precision_m, told, paused_until, absent, ends, in_part, count = row
            about = key, number, name, query, precision_m
            yield Reader(*about, told, paused_until, bool(absent), ends, bool(in_part), count)

    def _add(self, one: Reader, anew: bool) -> None:
        about = one.key, one.session, one.name, one.query, one.precision_m
        row = *about, one.number, one.paused_until, int(one.absent), one.ends
        new = self._database.execute(
            "INSERT INTO told VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING number", row
        )
        if new and anew:
            self._store.set_reader(one.session, one.key, 0, None)

    def _set(self, one: Reader, **values: int) -> None:
        columns = ", ".join(f"{name} = ?" for name in values)
        row = *values.values(), one.key, one.session
        self._database.execute(f"UPDATE told SET {columns} WHERE recipient = ? AND session = ?", row)

    def _leave(self, one: Reader) -> None:
        """Keep what a reader knows who will not be told what comes now."""
        if one.in_part:
            return
        progress = self._store.progress(one.session)
        known: tuple[int, Belief | None] = (0, None)
        if progress.count and self.count_from(one.session, one.number, one.query) == 0:  # else as if told nothing
            known = (progress.count, progress.belief)
        self._store.set_reader(one.session, one.key, *known)

    def number_from(self, session: int, slot: int) -> int:
        """The number of the first release of a session that is of a time step or later; 0 where there is none."""
        query = "SELECT MIN(number) FROM record WHERE session = ? AND slot >= ?"
        return int(self._database.execute(query, (session, slot))[0][0] or 0)

    def count_from(self, session: int, number: int, query: str) -> int:
        """How many releases of a session answer a query, from a number on."""
        statement = "SELECT COUNT(*) FROM record WHERE session = ? AND number >= ? AND query = ?"
        return int(self._database.execute(statement, (session, number, query))[0][0])

    # ---- phones --------------------------------------------------------------------------------------------------

    def set_heard(self, user: str, became: Mapping[str, int]) -> None:
        """Write that a person's phone was heard now, and how many of what it posted became what."""
        with self._database.transaction(lasting=False):
            self._database.execute(
                "INSERT INTO heard VALUES (?, ?, ?) ON CONFLICT (person) DO UPDATE SET second = excluded.second, "
                "became = excluded.became",
                (user, now(), json.dumps(became)),
            )

    def heard(self, user: str) -> tuple[int, dict[str, int]] | None:
        """When a person's phone was last heard, to half a minute, and what became of what it posted; None for never.

        Parameters
        ----------
        user
            The person.

        Returns
        -------
        tuple of int and dict, or None
            The second, and `taken`, `inaccurate`, `malformed`, `no_zone`, `encrypted`, `ahead` (of the clock) or
            `refused` (as the model was learned from the person) → how many. Why a place has no release is not in it.
        """
        rows = self._database.execute("SELECT second, became FROM heard WHERE person = ?", (user,))
        return (rows[0][0], parse_json(rows[0][1])) if rows else None

    # ---- logins --------------------------------------------------------------------------------------------------

    def log_in(self, token: str, earlier: tuple[str, ...] = ()) -> tuple[str, Login]:
        """The cookie of a login by a token, and the login that it stands for.

        Parameters
        ----------
        token
            A token that the relay's file knows.
        earlier
            The digests of the other tokens that the page is open for.
        """
        tokens = tuple(dict.fromkeys((*earlier, hash_token(token))))[-_MOST_TOKENS:]
        cookie, login = secrets.token_urlsafe(32), Login(tokens, secrets.token_urlsafe(32))
        with self._database.transaction():
            self._database.execute("DELETE FROM login WHERE until < ?", (now(),))
            row = hash_token(cookie), " ".join(login.tokens), login.csrf, now() + _LOGIN_S
            self._database.execute("INSERT INTO login VALUES (?, ?, ?, ?)", row)
        return cookie, login

    def login(self, cookie: str) -> Login | None:
        """The login of a cookie, unless there is none or it is over."""
        query = "SELECT token, csrf FROM login WHERE cookie = ? AND until >= ?"
        rows = self._database.execute(query, (hash_token(cookie), now()))
        return Login(tuple(rows[0][0].split()), rows[0][1]) if rows else None

    def log_out(self, cookie: str) -> None:
        """End a login."""
        with self._database.transaction():
            self._database.execute("DELETE FROM login WHERE cookie = ?", (hash_token(cookie),))
