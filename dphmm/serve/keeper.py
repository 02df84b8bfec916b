"""Who keeps people's sessions: one thread, on which every fix is released and every answer is read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TypeVar

import numpy as np

from dphmm.errors import (
    BudgetExceededError,
    ConfigurationError,
    DataFileError,
    InvalidInputError,
    SessionBusyError,
    SessionMismatchError,
    TimeOrderError,
)
from dphmm.jobs.learned_from import people_seen, refuse_own
from dphmm.jobs.models import load_model
from dphmm.release.drawn_zones import Zones, first_zones
from dphmm.release.engine import Releaser
from dphmm.release.people import Accepted, RecordedPeople
from dphmm.release.postgres import is_server
from dphmm.release.trajectory import place_on_earth
from dphmm.serve.audience import Audience
from dphmm.serve.coarse import CoarseReaders
from dphmm.serve.config import RelayConfig
from dphmm.serve.desk import Desk
from dphmm.serve.engines import Engines
from dphmm.serve.fix import Fix, Received
from dphmm.serve.told import Told

Value = TypeVar("Value")

_AT_ONCE = 4
"""So many fixes of one message are released before another message has its turn."""


@dataclass
class Outcome:
    """What became of the fixes of a message: counts, which say nothing of places.

    Attributes
    ----------
    released
        Answered by a release, a new one or the one that their time step had.
    silent
        Of time steps of which was said that they have no release.
    late
        From before the last release, of a time step that has none. They are dropped.
    ahead
        Too far in the future. They are dropped.
    spent
        Beyond what the person may spend.
    refused
        Not to be released at all: the model was learned from this person.
    malformed
        No places.
    """

    released: int = 0
    silent: int = 0
    late: int = 0
    ahead: int = 0
    spent: int = 0
    refused: int = 0
    malformed: int = 0

    def add(self, other: Outcome) -> None:
        """Count another message's in."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


class Keeper:
    """Releases fixes and reads releases, one after another on a thread of its own.

    Parameters
    ----------
    config
        The relay's file.
    accept_changes
        Whether sessions go on under what the file says now of how places are released, where they began otherwise.

    Raises
    ------
    DphmmError
        As the model, the policy and the store say; before anything is served.
    """

    def __init__(self, config: RelayConfig, accept_changes: bool = False) -> None:
        self._config, self._accept_changes = config, accept_changes
        self._thread = ThreadPoolExecutor(1, "dphmm-keeper")
        self.is_shared = is_server(config.store)
        """Whether other processes may release to the same store."""
        self._open_ones: list[Callable[[], None]] = []
        try:
            self._run(self._open)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Finish what was begun, and let go of the store."""
        while self._open_ones:
            self._run(self._open_ones.pop())
        self._thread.shutdown()

    async def take(self, user: str, received: Received) -> Outcome:
        """Release the places of a person's message, in order of time.

        When this returns, whatever was released is on the disk.
        """
        outcome = Outcome(malformed=received.malformed)
        fixes = sorted(received.fixes, key=lambda fix: fix.time)
        for start in range(0, len(fixes), _AT_ONCE):
            outcome.add(await self._on_thread(partial(self._take, user, fixes[start : start + _AT_ONCE])))
        return outcome

    async def ask(self, work: Callable[[Desk], Value]) -> Value:
        """Have something done for the page."""
        return await self._on_thread(partial(work, self._desk))

    async def is_paused(self, recipient: str, user: str) -> bool:
        """Whether a person has paused a recipient."""
        return await self._on_thread(lambda: self._audience.told(recipient, self._session(user))[1])

    async def first_untold(self, recipient: str, user: str) -> tuple[int, Told, bool] | None:
        """The first release of a person that a recipient was not told of, how many there were up to it, if to be told.

        True as the last: the recipient is paused.
        """
        return await self._on_thread(partial(self._first_untold, recipient, user))

    async def set_told(self, recipient: str, user: str, count: int) -> None:
        """Note that a recipient was told of so many releases of a person."""
        await self._on_thread(partial(self._set_told, recipient, user, count))

    # ---- on the thread -------------------------------------------------------------------------------------------

    def _open(self) -> None:
        config = self._config
        model = load_model(config.model)
        self.engines = Engines(config.release, model)
        self._open_ones.append(self.engines.close)
        seen = None if config.allow_own_model else people_seen(config.model, model)
        accepted = Accepted(None, config.clock_skew_seconds, lambda user: refuse_own(seen, [user]))
        coarser = {user: config.coarser_of(user) for user in config.users}
        base = self.engines.of_note("")
        self._people = RecordedPeople(
            config.store,
            base,
            config.limits,
            accepted,
            coarser=coarser,
            engine_of=self.engines.of,
            predicting=config.predicting,
        )
        self._open_ones.append(self._people.close)
        self._store, self._space = self._people.store, model.space
        self._audience = Audience(self._store)
        self._coarser = {one.name: config.coarser(one) for one in config.recipients}
        self._recipients = {one.name: one for one in config.recipients}
        self._readers = CoarseReaders(self._store, self._engine_at, self._people.end_of, coarser)
        self._desk = Desk(config, self._people, self._audience, self._readers, self.engines)
        self._numbers: dict[str, int] = {}
        for user in config.users:
            self._go_on(user)
            for one in config.recipients:
                if one.is_about(user):
                    self._audience.told(one.name, self._session(user))

    def _go_on(self, user: str) -> None:
        """See that a person's session can go on, where there is one."""
        stored = self._store.session(user)
        if stored is None:
            return
        self._numbers[user] = stored.number
        if self.engines.goes_on(stored) and self._config.limits in (None, stored.limits):
            return
        try:
            if self._accept_changes:
                self._people.agree(user, self.engines.of(stored), stored.agreed[-1].note)
            self._people.session(user)
        except SessionMismatchError as problem:
            more = "" if self._accept_changes else "; or let all go on under the file's settings by --accept-changes"
            raise ConfigurationError(f"{problem}{more}") from None

    def _engine_at(self, user: str, settings_hash: str) -> Releaser:
        stored = self._store.session(user)
        assert stored is not None, "it has releases"
        return self.engines.at(stored, settings_hash)

    def _take(self, user: str, fixes: Sequence[Fix]) -> Outcome:
        outcome = Outcome()
        for fix in fixes:
            try:
                release = self._people.take(user, fix.time, fix.latitude, fix.longitude)
            except TimeOrderError:
                ahead = bool(fix.time > np.datetime64("now", "us"))
                outcome.ahead += ahead
                outcome.late += not ahead
            except BudgetExceededError:
                outcome.spent += 1
            except (SessionBusyError, SessionMismatchError, DataFileError):
                raise
            except InvalidInputError:
                outcome.refused += 1
            else:
                outcome.released += release is not None
                outcome.silent += release is None
        return outcome

    def _first_untold(self, recipient: str, user: str) -> tuple[int, Told, bool] | None:
        if not self._audience.leads():
            return None
        one, session, coarser = self._recipients[recipient], self._session(user), self._coarser[recipient]
        while True:
            number, paused = self._audience.told(recipient, session)
            paused = paused or one.paused
            if self._store.progress(session).count <= number:
                return None
            (stored,) = self._store.releases(session, number, number + 1)
            time, told = self._people.end_of(stored.slot), None
            if stored.record.withheld and one.when_withheld == "nothing":
                pass
            elif coarser is None:
                told = Told.of(place_on_earth(user, time, stored.record, self._space))
            else:
                told = self._readers.told(user, session, number, coarser)  # None: from before there were coarser ones
            if told is not None:
                return number + 1, self._named(user, number, told) if one.tells == "zone" else told, paused
            self._audience.set_told(recipient, session, number + 1)

    def _named(self, user: str, number: int, told: Told) -> Told:
        """With the zone, of those in force then, that the estimate lies in."""
        note = self._people.session(user).agreed_at(number).note
        zones = Zones.from_note(note) or first_zones(self._config.release)
        return replace(told, zone=zones.at(told.latitude, told.longitude))

    def _set_told(self, recipient: str, user: str, count: int) -> None:
        self._audience.set_told(recipient, self._session(user), count)

    def _session(self, user: str) -> int:
        if user not in self._numbers:
            self._numbers[user] = self._people.session(user).number
        return self._numbers[user]

    # ---- the thread ----------------------------------------------------------------------------------------------

    def _run(self, work: Callable[[], Value]) -> Value:
        return self._thread.submit(work).result()

    async def _on_thread(self, work: Callable[[], Value]) -> Value:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
