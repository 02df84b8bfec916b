"""People's sessions on one thread, on which every fix is released and every answer is read.

Beside them are kept the engines of people's zones.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

import numpy as np

from dphmm import errors
from dphmm.jobs.models import load_model, people_seen, refuse_own
from dphmm.model.model import MarkovModel
from dphmm.release.drawn_zones import Zones, first_zones
from dphmm.release.engine import Releaser, ReleaseSettings
from dphmm.release.session import step_number
from dphmm.release.session_database import is_server
from dphmm.release.session_store import SessionStore, StoredRelease
from dphmm.release.session_terms import MAIN_QUERY, StoredSession
from dphmm.release.trajectory import Accepted, RecordedPeople, degrees_of, place_on_earth
from dphmm.serve.config import Recipient, RelayConfig
from dphmm.serve.message_formats import Fix, Message, Received, seconds_of
from dphmm.serve.precision import PrecisionGrid
from dphmm.serve.recipients import FOREVER, Reader, RecipientTables, now
from dphmm.tables import iso_time
from dphmm.tables.json_toml import parse_json

_ENGINES_KEPT = 256
"""At most this many engines, each of which remembers its last plan, are kept."""
_MESSAGES_KEPT = 64
"""The messages about this many releases are kept, for the next recipient."""
_FIXES_AT_ONCE = 4
"""At most this many fixes of one message are released before other people's messages have their turn."""
_HEARD_AGAIN_S = 30.0
_LOOKED_BACK = 1000
"""So many releases are looked at for the last draw."""
_OR_ACCEPT = "; or let all go on under the file's settings by --accept-changes"
_LONGEST_TURN_S, _TURN_AGAIN_S = 60.0, 0.01
_COUNTED = {
    **dict.fromkeys(("released", "again", "withheld"), "released"),
    **dict.fromkeys(("limit", "late", "outside"), "unreleased"),
    "ahead": "ahead",
    "refused": "refused",
}
"""What became of a place → as what it is counted."""

Value = TypeVar("Value")


def _accuracy(fix: Fix) -> float:
    """The radius that a fix is good to in metres; where its app does not say, as good as any."""
    return fix.accuracy_m or 0.0


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

    @classmethod
    def of(cls, config: RelayConfig) -> Engines:
        """Those of a relay's file.

        Raises
        ------
        DphmmError
            When it names what cannot be served.
        """
        config.check_environment()
        made = cls(config.release, load_model(config.model))
        made.engine("")
        return made

    def settings(self, note: str) -> ReleaseSettings:
        """How places are released where a note says so.

        Raises
        ------
        ConfigurationError
            As `dphmm.release.drawn_zones.Zones.settings`.
        """
        zones = Zones.from_note(note)
        return self._base if zones is None else zones.settings(self._base)

    def continues(self, session: StoredSession, config: RelayConfig) -> bool:
        """Whether a session continues under a file of now, as hashes tell, without an engine being made."""
        now = self.settings(session.agreed[-1].note).content_hash
        same = {query: terms.settings_hash for query, terms in session.terms.items()}
        of_model = all(
            terms.model == self.model.content_hash and terms.randomness == "system" for terms in session.terms.values()
        )
        return of_model and same == {MAIN_QUERY: now} and config.limits in (None, session.limits)

    def next_engine(self, session: StoredSession) -> Releaser:
        """The engine of a session's next release."""
        return self.engine(session.agreed[-1].note)

    def _made(self, note: str) -> Releaser:
        engine = self.settings(note).engine(self.model)
        if not note and engine.begins_alike:
            with suppress(errors.AlreadyKnownError):  # the first plan of every new person is the same, and made once
                engine.prepare()
        return engine


def check_sessions(config: RelayConfig, accept_changes: bool = False) -> None:
    """Refuse what a relay could not serve, while another serves the same store; nothing is written.

    Parameters
    ----------
    config, accept_changes
        As for `Sessions`.

    Raises
    ------
    DphmmError
        As of `Sessions`.
    """
    engines = Engines.of(config)
    if not is_server(config.store) and not Path(config.store).exists():
        return
    with SessionStore(config.store, readonly=True) as store:
        for user in config.users:
            stored = store.session(user)
            if stored is not None and not (accept_changes or engines.continues(stored, config)):
                raise errors.ConfigurationError(f"session {user!r} began under other settings or limits{_OR_ACCEPT}")


OUTCOMES = ("released", "unreleased", "ahead", "refused", "malformed", "no_zone", "encrypted")
"""What may become of the fixes of a message, as it is counted: what is public, or seen without looking at the place.

Those that are ``released`` are of time steps that have a release, a new one or one from before. ``unreleased`` are
dropped: of time steps that have none, outside the region where such places are omitted, from before the last release,
or beyond what the person may spend; and those that are too inaccurate, or less accurate than another fix of their step
and message. Why a time step has no release may tell where the person was: outside the region, late because of a step
that was said to have none, or inside and beyond what they may spend. So it is not counted apart. Fixes that are too far
``ahead`` in the future are dropped, and ``refused`` where the model was learned from this person. The others are no
places: see `dphmm.serve.message_formats.NotTaken`.
"""


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
    heard, since
        What was last heard from each person's phone (``at`` which second, the ``time`` of the place and what it
        ``became``) for their own page, and since which second this process has run.
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
        self._turns: dict[str, asyncio.Lock] = {}
        self._noted: dict[str, tuple[float, set[str]]] = {}
        self._known: dict[tuple[str, int], tuple[int, int | None]] = {}
        self.heard: dict[str, dict[str, Any]] = {}
        self.since = now()
        self._newest: dict[str, int] = {}
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

    async def take(self, user: str, received: Received) -> Counter[str]:
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
        Counter
            How many places became what, by `OUTCOMES`.

        Raises
        ------
        errors.SessionBusyError, errors.SessionMismatchError, DataFileError
            When the store does not take them now.
        """
        others: Counter[str] = Counter(received.not_taken)
        fixes, inaccurate = self._best_of_steps(received.fixes)
        outcome = others + Counter(unreleased=len(received.fixes) - len(fixes))
        async with self._turn(user):
            for start in range(0, len(fixes), _FIXES_AT_ONCE):
                outcome += await self.run(self._take, user, fixes[start : start + _FIXES_AT_ONCE])
        if received.fixes or others:
            apart = {"inaccurate": inaccurate, "ahead": outcome["ahead"], "refused": outcome["refused"]}
            became = {"taken": len(received.fixes) - sum(apart.values()), **apart, **others}
            await self._note(user, {why: count for why, count in became.items() if count})
        return outcome

    async def _note(self, user: str, became: Mapping[str, int]) -> None:
        """Write that a phone was heard, but no more than twice a minute where the same became of what it posted."""
        when, what = self._noted.get(user, (-_HEARD_AGAIN_S, set()))
        if monotonic() - when >= _HEARD_AGAIN_S or what != set(became):
            self._noted[user] = monotonic(), set(became)
            await self.run(self.tables.set_heard, user, became)

    def _best_of_steps(self, fixes: Sequence[Fix]) -> tuple[list[Fix], int]:
        """The fixes of the best accuracy of each time step, in order of time; and how many are not good enough."""
        good = [fix for fix in fixes if _accuracy(fix) < self._config.worst_accuracy_m]
        best: dict[int, Fix] = {}
        for fix in sorted(good, key=lambda one: one.time):
            step = step_number(fix.time, self.engines.model.step)
            if step not in best or _accuracy(fix) < _accuracy(best[step]):
                best[step] = fix
        return list(best.values()), len(fixes) - len(good)

    @asynccontextmanager
    async def _turn(self, user: str) -> AsyncIterator[None]:
        """Let no other message of a person in, here or in another process: it would make what is older come late."""
        async with self._turns.setdefault(user, asyncio.Lock()):
            if not self.is_shared:
                yield
                return
            until = monotonic() + _LONGEST_TURN_S
            while not await self.run(self._database.take_turn, user):
                if monotonic() > until:
                    raise errors.SessionBusyError("another message of the person takes too long; send it again")
                await asyncio.sleep(_TURN_AGAIN_S)
            try:
                yield
            finally:
                with suppress(errors.OutputError):  # with the connection it has ended
                    await self.run(self._database.end_turn, user)

    async def is_there(self) -> bool:
        """Whether the store answers."""
        try:
            return await self.run(lambda: self._database.execute("SELECT 1") == [(1,)])
        except errors.DphmmError:
            return False

    # ---- for work that is given to `run` -------------------------------------------------------------------------

    def told_from(self, recipient: Recipient, user: str) -> int:
        """From which second on a recipient is told of a person; `FOREVER` for one who is paused or absent."""
        one = self._reader(recipient, user)
        return FOREVER if one is None or one.absent else one.paused_until

    def waiting(self) -> set[tuple[str, str]]:
        """The people of whom recipients were not sent releases, and their names; none where another process sends."""
        names = {self._config.key(one): one.name for one in self._config.recipients}
        rows = self.tables.unsent() if self.tables.leads() else ()
        return {(user, names[key]) for user, key in rows if key in names}

    def first_unsent(self, recipient: Recipient, user: str) -> tuple[int, Message, bool] | None:
        """The first release of a person that a recipient is told and was not sent.

        Returns
        -------
        tuple of int, Message and bool, or None
            How many releases there were up to it, the message, and whether there are releases after it; None where
            there is none, or another process sends.
        """
        one = self._reader(recipient, user) if self.tables.leads() else None
        if one is None:
            return None
        for number in range(one.number, one.count):
            message = self.message_of(one, user, number, recipient)
            if message is not None:
                return number + 1, message, number + 1 < one.count
        if one.number < one.count:
            self.tables.set_sent(one.key, one.session, one.count)
        return None

    def last_unsent(self, recipient: Recipient, user: str) -> tuple[int, Message] | None:
        """The last release of a person that a recipient is told, and how many there were up to it."""
        one = self._reader(recipient, user)
        if one is None:
            return None
        for number in range(one.count - 1, one.number - 1, -1):
            message = self.message_of(one, user, number, recipient)
            if message is not None:
                return number + 1, message
        return None

    def set_sent(self, recipient: Recipient, user: str, count: int, said: str = "") -> None:
        """Write how many of a person's releases a recipient was sent, and why the last was set aside if it was."""
        self.tables.set_sent(self._config.key(recipient), self._number(user), count, said)

    def message_of(self, reader: Reader, user: str, number: int, recipient: Recipient | None = None) -> Message | None:
        """What a reader is told of a release, a recipient of the file as it says; None where nothing."""
        stored, message = self._told(user, reader.session, number)
        if stored.query != reader.query:
            return None
        if stored.record.withheld and recipient is not None and recipient.when_withheld == "nothing":
            return None
        if reader.in_part:
            said = self._store.said(reader.session, number, reader.key)
            if said is None:  # told to others: before it began, or in a pause
                return None
            guess = parse_json(said)
            estimate = degrees_of(np.array([guess["estimate"]]), self.engines.model.space)[0].tolist()
            held = guess.get("held_radius")
            message = message.of_part(stored.record.epsilon, estimate, guess["estimate_radius"], held)
        if stored.record.withheld:
            message = message.known_at(self._last_known(reader, number))
        if reader.precision_m:
            # The one place at which messages are rounded, whatever page or channel they go to.
            message = PrecisionGrid(self.engines.model.space.projection, reader.precision_m).rounded(message)
        if recipient is None or recipient.tells == "place":
            return message
        note = self.people.session(user).agreed_at(number).note
        zones = Zones.from_note(note) or first_zones(self._config.release)  # those in force then
        return replace(message, zone=zones.at(message.latitude, message.longitude))

    def told_by_link(self, user: str, link: Reader, first: int, most: int) -> list[tuple[int, Message]]:
        """What a link tells: the numbers of releases and the messages.

        Parameters
        ----------
        user
            The person whom it is about.
        link
            The link.
        first
            The number of the first release that is asked for.
        most
            How many releases are looked at, the last ones.
        """
        numbers = range(max(first, link.number, link.count - most), link.count)
        found = ((number, self.message_of(link, user, number)) for number in numbers)
        return [(number, message) for number, message in found if message is not None]

    # ---- on the thread -------------------------------------------------------------------------------------------

    def _open(self) -> None:
        config = self._config
        self.engines = Engines.of(config)
        seen = None if config.allow_own_model else people_seen(config.model, self.engines.model)
        self._accepted = Accepted(None, config.clock_skew_seconds, lambda user: refuse_own(seen, [user]))
        self.people = RecordedPeople(
            config.store,
            self.engines.engine(""),
            config.limits,
            self._accepted,
            engine_of=self.engines.next_engine,
            predicting=config.predicting,
            listeners=self._listeners,
        )
        self._to_close.append(self.people.close)
        self._store, self._database = self.people.store, self.people.store.database
        self.tables = RecipientTables(self._store)
        self._told = lru_cache(_MESSAGES_KEPT)(self._read)
        self._numbers: dict[str, int] = {}
        for user in config.users:
            self._continue(user)
            present = config.readers(user)
            if present or user in self._numbers:
                self.tables.set_present(self._number(user), present)

    def _continue(self, user: str) -> None:
        """See that a person's session can continue, where there is one."""
        stored = self._store.session(user)
        if stored is None:
            return
        self._numbers[user] = stored.number
        if self.engines.continues(stored, self._config):
            return
        try:
            if self._accept_changes:
                self.people.agree(user, self.engines.next_engine(stored), stored.agreed[-1].note)
            self.people.session(user)
        except errors.SessionMismatchError as problem:
            raise errors.ConfigurationError(f"{problem}{'' if self._accept_changes else _OR_ACCEPT}") from None

    def _listeners(self, _: str, session: int, slot: int) -> dict[str, str]:
        """The readers who are told of a person's time step and were not told everything → the query of theirs."""
        return self.tables.listening(session, seconds_of(self.people.end_of(slot - 1)))

    def _take(self, user: str, fixes: Sequence[Fix]) -> Counter[str]:
        outcome: Counter[str] = Counter()
        for fix in fixes:
            became = self._became(user, fix)
            self.heard[user] = {"at": now(), "time": iso_time(fix.time), "became": became}
            outcome[_COUNTED[became]] += 1
        return outcome

    def _became(self, user: str, fix: Fix) -> str:
        """Release a place, and say what became of it, for the person's own page.

        Why a place has no release may tell where the person is, so it is kept in memory alone, as long as the process
        lives, and is neither counted, logged nor stored. A place was ``released``, or its time step had a release
        (``again``); nothing was drawn, and readers are told a prediction (``withheld``) or nothing (``limit``); it was
        ``late``, before the last release, ``outside`` the region, ``ahead`` of the clock, or ``refused``, as the model
        was learned from the person. What is seen without looking at a place, the store knows too: see
        `RecipientTables.heard`.
        """
        try:
            self._accepted.check(user, fix.time, None)  # before the place is looked at
        except errors.TimeOrderError:
            return "ahead"
        except errors.InvalidInputError:
            return "refused"
        try:
            release = self.people.take(user, fix.time, fix.latitude, fix.longitude)
        except (errors.SessionBusyError, errors.SessionMismatchError, errors.DataFileError):
            raise
        except errors.BudgetExceededError:
            return "limit"
        except errors.OmittedError:
            return "outside"
        except errors.TimeOrderError:
            return "late"
        except errors.InvalidInputError:
            return "outside"
        if release is None:
            return "outside"
        known = self._newest.get(user, -1)
        self._newest[user] = max(known, release.record.index)
        if release.record.index <= known:
            return "again"
        return "withheld" if release.record.withheld else "released"

    def _read(self, user: str, session: int, number: int) -> tuple[StoredRelease, Message]:
        """A release, and what a reader of all of its query is told of it."""
        (stored,) = self._store.releases(session, number, number + 1)
        release = place_on_earth(user, self.people.end_of(stored.slot), stored.record, self.engines.model.space)
        return stored, Message.of_release(release)

    def _last_known(self, reader: Reader, number: int) -> int | None:
        """The second of the last release up to one that had a draw and that a reader was told."""
        at, second = self._known.get((reader.key, reader.session), (number - _LOOKED_BACK, None))
        if at > number:
            at, second = number - _LOOKED_BACK, None
        first = max(at, self._store.pruned(reader.session).count)
        for each, stored in enumerate(self._store.releases(reader.session, first, number + 1), first):
            told = not reader.in_part or self._store.said(reader.session, each, reader.key) is not None
            if stored.query == reader.query and not stored.record.withheld and told:
                second = seconds_of(self.people.end_of(stored.slot))
        self._known[reader.key, reader.session] = number, second
        return second

    def _reader(self, recipient: Recipient, user: str) -> Reader | None:
        return self.tables.reader(self._config.key(recipient), self._number(user))

    def _number(self, user: str) -> int:
        """The number of a person's session in the store."""
        if user not in self._numbers:
            self._numbers[user] = self.people.session(user).number
        return self._numbers[user]
