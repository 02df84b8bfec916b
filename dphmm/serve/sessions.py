"""People's sessions on one thread, on which every fix is released and every answer is read.

Beside them are kept the engines of people's zones, how far each recipient was told and who paused them, and logins to
the page.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from typing import TypeVar

from dphmm.errors import (
    AlreadyKnownError,
    BudgetExceededError,
    ConfigurationError,
    DataFileError,
    InvalidInputError,
    SessionBusyError,
    SessionMismatchError,
    TimeOrderError,
)
from dphmm.jobs.models import load_model, people_seen, refuse_own
from dphmm.model.belief import Belief
from dphmm.model.model import MarkovModel
from dphmm.release.database import is_server
from dphmm.release.drawn_zones import Zones, first_zones
from dphmm.release.engine import Releaser, ReleaseSettings
from dphmm.release.reader import query_of, tier_settings
from dphmm.release.store import MAIN_QUERY, SessionStore, StoredSession
from dphmm.release.trajectory import Accepted, RecordedPeople, degrees_of, place_on_earth
from dphmm.serve.apps import Fix, Message, Received
from dphmm.serve.config import Recipient, RelayConfig, hash_token
from dphmm.tables.json_toml import parse_json

_ENGINES_KEPT = 256
"""At most this many engines, each of which remembers its last plan, are kept."""
_LOGIN_S = 7 * 86400
"""How long a login holds."""
_FIXES_AT_ONCE = 4
"""At most this many fixes of one message are released before another message has its turn."""

Value = TypeVar("Value")


class Engines:
    """Engines of one model, by the note that was kept when a session was agreed on.

    Parameters
    ----------
    base
        The relay's settings.
    model
        The model.
    """

    def __init__(self, base: ReleaseSettings, model: MarkovModel) -> None:
        self._base, self.model = base, model
        self.engine: Callable[[str], Releaser] = lru_cache(_ENGINES_KEPT)(self._made)
        """The engine of a note; of an empty one, that of the relay's settings. Ask it for `another`."""

    def settings(self, note: str) -> ReleaseSettings:
        """How places are released where a note says so.

        Raises
        ------
        ConfigurationError
            As `dphmm.release.drawn_zones.Zones.settings`.
        """
        zones = Zones.from_note(note)
        return self._base if zones is None else zones.settings(self._base)

    def continues(self, session: StoredSession, coarser: Sequence[float]) -> bool:
        """Whether a session continues under the settings of now, as hashes tell, without an engine being made."""
        now = tier_settings(self.settings(session.agreed[-1].note), coarser)
        same = {query: terms.settings_hash for query, terms in session.terms.items()}
        of_model = all(
            terms.model == self.model.content_hash and terms.randomness == "system" for terms in session.terms.values()
        )
        return of_model and same == {query: settings.content_hash for query, settings in now.items()}

    def next_engine(self, session: StoredSession) -> Releaser:
        """The engine of a session's next release."""
        return self.engine(session.agreed[-1].note)

    def _made(self, note: str) -> Releaser:
        engine = self.settings(note).engine(self.model)
        if not note:
            with suppress(AlreadyKnownError):  # the first plan of every new person is the same, and made once
                engine.prepare()
        return engine


@dataclass(frozen=True)
class Login:
    """A login to the page by a token.

    Parameters
    ----------
    token
        The token's digest: whose it is, and whether it is still valid, the relay's file says.
    csrf
        What requests that change something show, besides the cookie.
    """

    token: str
    csrf: str


def reader_name(recipient: str) -> str:
    """What a recipient who was not told everything is called among a session's readers."""
    return f"recipient {recipient}"


class RelayTables:
    """The tables beside those of sessions: how far each recipient was told, pauses and logins.

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

    def sent(self, recipient: str, session: int) -> tuple[int, bool]:
        """How many of a session's releases a recipient was told, and whether they are paused.

        Recipients who are asked for the first time count as told of all that there are: they learn nothing of the time
        before, and what they are told of later releases follows from these alone. Both are read at once, so that what
        was released in a pause is not told after it.

        Parameters
        ----------
        recipient
            Their name.
        session
            The number of a session in the store.

        Returns
        -------
        number : int
            How many of the session's releases, the first ones.
        paused : bool
            Whether the person paused the recipient.
        """
        with self._database.transaction():
            new = self._database.execute(
                "INSERT INTO told SELECT ?, session, count, 0 FROM progress WHERE session = ? ON CONFLICT DO NOTHING "
                "RETURNING number",
                (recipient, session),
            )
            if new and new[0][0]:
                self._store.set_reader(session, reader_name(recipient), 0, None)
        query = "SELECT number, paused FROM told WHERE recipient = ? AND session = ?"
        ((number, paused),) = self._database.execute(query, (recipient, session))
        return number, bool(paused)

    def set_sent(self, recipient: str, session: int, number: int) -> None:
        """Write how many releases a recipient was told."""
        with self._database.transaction():
            self._database.execute(
                "UPDATE told SET number = ? WHERE recipient = ? AND session = ? AND number < ?",
                (number, recipient, session, number),
            )

    def pause(self, recipient: str, session: int, paused: bool, query: str) -> None:
        """Pause a recipient or go on; they are never told what is released meanwhile, nor what follows from it.

        Parameters
        ----------
        recipient
            Their name.
        session
            The number of a session in the store.
        paused
            Whether to pause them.
        query
            The query whose releases they are told.
        """
        self.sent(recipient, session)
        key = recipient, session
        with self._database.transaction():
            statement = f"SELECT count FROM progress WHERE session = ?{self._database.held}"
            ((count,),) = self._database.execute(statement, (session,))  # nothing is released until this is written
            where = "WHERE recipient = ? AND session = ?"
            if paused:
                self._leave(recipient, session, query)
            self._database.execute(f"UPDATE told SET number = ? {where} AND paused = 1", (count, *key))
            self._database.execute(f"UPDATE told SET paused = ? {where}", (int(paused), *key))

    def leave(self, recipient: str, session: int, query: str) -> None:
        """Keep what a recipient knows who will not be told what comes now."""
        self.sent(recipient, session)
        with self._database.transaction():
            self._leave(recipient, session, query)

    def _leave(self, recipient: str, session: int, query: str) -> None:
        name, progress = reader_name(recipient), self._store.progress(session)
        if not progress.count or self._store.reader(session, name) is not None:
            return
        statement = "SELECT number FROM told WHERE recipient = ? AND session = ?"
        ((number,),) = self._database.execute(statement, (recipient, session))
        known: tuple[int, Belief | None] | None = (0, None)
        if self.count_from(session, number, query) == 0:  # else they begin anew, as if told nothing
            known = self._store.reader(session, query) if query != MAIN_QUERY else (progress.count, progress.belief)
        self._store.set_reader(session, name, *(known or (0, None)))

    def listening(self, session: int) -> set[str]:
        """The recipients who were not told everything of a session, and are not paused."""
        statement = "SELECT recipient FROM told WHERE session = ? AND paused = 0"
        names = [name for (name,) in self._database.execute(statement, (session,))]
        return {name for name in names if self._store.reader(session, reader_name(name)) is not None}

    def count_before(self, session: int, slot: int) -> int:
        """How many releases of a session are of earlier time steps."""
        query = "SELECT COUNT(*) FROM record WHERE session = ? AND slot < ?"
        return int(self._database.execute(query, (session, slot))[0][0])

    def count_from(self, session: int, number: int, query: str) -> int:
        """How many releases of a session answer a query, from a number on."""
        statement = "SELECT COUNT(*) FROM record WHERE session = ? AND number >= ? AND query = ?"
        return int(self._database.execute(statement, (session, number, query))[0][0])

    def log_in(self, token: str) -> tuple[str, Login]:
        """The cookie of a login by a token, and the login that it stands for.

        Parameters
        ----------
        token
            A token that the relay's file knows.
        """
        cookie, login, now = secrets.token_urlsafe(32), Login(hash_token(token), secrets.token_urlsafe(32)), time.time()
        with self._database.transaction():
            self._database.execute("DELETE FROM login WHERE until < ?", (int(now),))
            row = hash_token(cookie), login.token, login.csrf, int(now) + _LOGIN_S
            self._database.execute("INSERT INTO login VALUES (?, ?, ?, ?)", row)
        return cookie, login

    def login(self, cookie: str) -> Login | None:
        """The login of a cookie, unless there is none or it is over."""
        query = "SELECT token, csrf FROM login WHERE cookie = ? AND until >= ?"
        rows = self._database.execute(query, (hash_token(cookie), int(time.time())))
        return Login(*rows[0]) if rows else None

    def log_out(self, cookie: str) -> None:
        """End a login."""
        with self._database.transaction():
            self._database.execute("DELETE FROM login WHERE cookie = ?", (hash_token(cookie),))


@dataclass
class Outcome:
    """What became of the fixes of a message: counts of what is public, or seen without looking at the place.

    Why a time step has no release may tell where the person was: outside the region, late because of a step that was
    said to have none, or inside and beyond what they may spend. So it is not counted apart.

    Attributes
    ----------
    released
        Of time steps that have a release, a new one or one from before.
    unreleased
        Of time steps that have none: outside the region where such places are omitted, from before the last release,
        or beyond what the person may spend. They are dropped.
    ahead
        Too far in the future. They are dropped.
    refused
        Not to be released at all: the model was learned from this person.
    malformed
        No places.
    """

    released: int = 0
    unreleased: int = 0
    ahead: int = 0
    refused: int = 0
    malformed: int = 0

    def add(self, other: Outcome) -> None:
        """Count another message's in."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


class Sessions:
    """Releases fixes and reads releases, one after another on a thread of its own.

    Parameters
    ----------
    config
        The relay's file.
    accept_changes
        Whether sessions continue under what the file says now of how places are released, where they began otherwise.

    Attributes
    ----------
    is_shared
        Whether other processes may release to the same store.
    people, tables, engines
        The sessions themselves, the tables beside them, and engines: for work that is given to `run`, except for the
        engines' settings and model.

    Raises
    ------
    DphmmError
        As the model, the policy and the store say; before anything is served.
    """

    def __init__(self, config: RelayConfig, accept_changes: bool = False) -> None:
        self._config, self._accept_changes = config, accept_changes
        self._thread = ThreadPoolExecutor(1, "dphmm-sessions")
        self.is_shared = is_server(config.store)
        self._to_close: list[Callable[[], None]] = []
        try:
            self._thread.submit(self._open).result()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Finish what was begun, and let go of the store."""
        while self._to_close:
            self._thread.submit(self._to_close.pop()).result()
        self._thread.shutdown()

    async def run(self, work: Callable[..., Value], *arguments: object) -> Value:
        """Have something done on the sessions' thread.

        Parameters
        ----------
        work
            The function.
        *arguments
            Its arguments.

        Returns
        -------
        object
            What it returns.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(work, *arguments))

    async def take(self, user: str, received: Received) -> Outcome:
        """Release the places of a person's message, in order of time.

        When this returns, everything that was released is on the disk.

        Parameters
        ----------
        user
            The person.
        received
            What the message held.

        Returns
        -------
        Outcome
            What became of the places.

        Raises
        ------
        SessionBusyError, SessionMismatchError, DataFileError
            When the store does not take them now.
        """
        outcome = Outcome(malformed=received.malformed)
        fixes = sorted(received.fixes, key=lambda fix: fix.time)
        for start in range(0, len(fixes), _FIXES_AT_ONCE):
            outcome.add(await self.run(self._take, user, fixes[start : start + _FIXES_AT_ONCE]))
        return outcome

    async def is_paused(self, recipient: str, user: str) -> bool:
        """Whether a person has paused a recipient."""
        return await self.run(lambda: self.tables.sent(recipient, self._number(user))[1])

    async def first_unsent(self, recipient: str, user: str) -> tuple[int, Message, bool] | None:
        """The first release of a person that a recipient was not sent.

        Returns
        -------
        tuple of int, Message and bool, or None
            How many releases there were up to it, the message, and whether the recipient is paused; None where there
            is none, or another process sends.
        """
        return await self.run(self._first_unsent, recipient, user)

    async def set_sent(self, recipient: str, user: str, count: int) -> None:
        """Write how many of a person's releases a recipient was sent."""
        await self.run(lambda: self.tables.set_sent(recipient, self._number(user), count))

    # ---- on the thread -------------------------------------------------------------------------------------------

    def _open(self) -> None:
        config = self._config
        model = load_model(config.model)
        self.engines = Engines(config.release, model)
        seen = None if config.allow_own_model else people_seen(config.model, model)
        budgets = {user: config.coarser_of(user) for user in config.users}
        for coarser in set(budgets.values()):
            tier_settings(config.release, coarser)  # refuses what cannot be served
        self._accepted = Accepted(None, config.clock_skew_seconds, lambda user: refuse_own(seen, [user]))
        self.people = RecordedPeople(
            config.store,
            self.engines.engine(""),
            config.limits,
            self._accepted,
            coarser=budgets,
            engine_of=self.engines.next_engine,
            predicting=config.predicting,
            listeners=self._listeners,
        )
        self._to_close.append(self.people.close)
        self._store = self.people.store
        self.tables = RelayTables(self._store)
        self._recipients = {one.name: one for one in config.recipients}
        self._numbers: dict[str, int] = {}
        for user in config.users:
            self._continue(user)
            for one in config.recipients:
                if one.is_about(user):
                    self.tables.sent(one.name, self._number(user))
                    if one.paused:
                        self.tables.leave(one.name, self._number(user), query_of(config.coarser(one)))

    def _continue(self, user: str) -> None:
        """See that a person's session can continue, where there is one."""
        stored = self._store.session(user)
        if stored is None:
            return
        self._numbers[user] = stored.number
        if self.engines.continues(stored, self._config.coarser_of(user)) and self._config.limits in (
            None,
            stored.limits,
        ):
            return
        try:
            if self._accept_changes:
                self.people.agree(user, self.engines.next_engine(stored), stored.agreed[-1].note)
            self.people.session(user)
        except SessionMismatchError as problem:
            more = "" if self._accept_changes else "; or let all go on under the file's settings by --accept-changes"
            raise ConfigurationError(f"{problem}{more}") from None

    def _listeners(self, user: str, session: int) -> dict[str, str]:
        """The readers of a person's releases who were not told everything → the query of theirs."""
        told = [one for one in self._config.told_releases if one.is_about(user) and not one.paused]
        names = self.tables.listening(session)
        return {reader_name(one.name): query_of(self._config.coarser(one)) for one in told if one.name in names}

    def _take(self, user: str, fixes: Sequence[Fix]) -> Outcome:
        outcome = Outcome()
        for fix in fixes:
            try:
                self._accepted.check(user, fix.time, None)  # before the place is looked at
            except TimeOrderError:
                outcome.ahead += 1
                continue
            except InvalidInputError:
                outcome.refused += 1
                continue
            try:
                release = self.people.take(user, fix.time, fix.latitude, fix.longitude)
            except (SessionBusyError, SessionMismatchError, DataFileError):
                raise
            except (BudgetExceededError, InvalidInputError):
                release = None
            outcome.released += release is not None
            outcome.unreleased += release is None
        return outcome

    def _first_unsent(self, recipient: str, user: str) -> tuple[int, Message, bool] | None:
        if not self.tables.leads():
            return None
        one, session = self._recipients[recipient], self._number(user)
        while True:
            number, paused = self.tables.sent(recipient, session)
            if self._store.progress(session).count <= number:
                return None
            message = self._message(one, user, session, number)
            if message is not None:
                return number + 1, message, paused or one.paused
            self.tables.set_sent(recipient, session, number + 1)

    def _message(self, recipient: Recipient, user: str, session: int, number: int) -> Message | None:
        """What a recipient is told of a release; None where nothing."""
        (stored,) = self._store.releases(session, number, number + 1)
        if stored.query != query_of(self._config.coarser(recipient)):
            return None
        if stored.record.withheld and recipient.when_withheld == "nothing":
            return None
        release = place_on_earth(user, self.people.end_of(stored.slot), stored.record, self.engines.model.space)
        message, name = Message.of_release(release), reader_name(recipient.name)
        if self._store.reader(session, name) is not None:
            said = self._store.said(session, number, name)
            if said is None:  # told to others, in a pause
                return None
            guess = parse_json(said)
            estimate = degrees_of(guess["estimate"], self.engines.model.space)
            message = message.of_part(stored.record.epsilon, estimate, guess["estimate_radius"])
        if recipient.tells == "place":
            return message
        note = self.people.session(user).agreed_at(number).note
        zones = Zones.from_note(note) or first_zones(self._config.release)  # those in force then
        return replace(message, zone=zones.at(message.latitude, message.longitude))

    def _number(self, user: str) -> int:
        """The number of a person's session in the store."""
        if user not in self._numbers:
            self._numbers[user] = self.people.session(user).number
        return self._numbers[user]
