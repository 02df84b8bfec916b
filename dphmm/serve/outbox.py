"""Telling recipients: every release once each, in order, however often they or we were away."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from dphmm.errors import DphmmError
from dphmm.serve.config import Recipient
from dphmm.serve.keeper import Keeper
from dphmm.serve.told import Told

_FIRST_WAIT_S, _LONGEST_WAIT_S, _LOOK_AGAIN_S = 1.0, 300.0, 1.0
_LOG = logging.getLogger(__name__)


class Unreachable(Exception):
    """A recipient who did not take a message, and may take it later."""


class Refused(Exception):
    """A message that a recipient will never take."""


class Sender(Protocol):
    """The way to a recipient."""

    async def send(self, told: Told) -> None:
        """Tell them.

        Raises
        ------
        Unreachable, Refused
            When they did not take it.
        """


@dataclass(frozen=True)
class _Line:
    """One person's releases on their way to one recipient."""

    recipient: Recipient
    sender: Sender
    user: str
    event: asyncio.Event


@dataclass
class Deliveries:
    """Counts of messages to one recipient."""

    delivered: int = 0
    failed: int = 0
    refused: int = 0


class Outbox:
    """Tells recipients of people's releases.

    A person's releases go to a recipient one after another. How far they came is written after each; whatever was
    released and not told before a restart is told after it. A message may be sent twice, where the answer to it or
    the note of it is lost; it is the same both times, for it is read from the record.

    Parameters
    ----------
    keeper
        Who has the releases.
    senders
        Recipient and the way to them.
    users
        Everybody.
    """

    def __init__(self, keeper: Keeper, senders: Mapping[str, tuple[Recipient, Sender]], users: tuple[str, ...]) -> None:
        self._keeper = keeper
        self._lines = [
            _Line(recipient, sender, user, asyncio.Event())
            for recipient, sender in senders.values()
            for user in users
            if recipient.is_about(user)
        ]
        self.counts = {name: Deliveries() for name in senders}
        """Recipient → counts."""
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to tell."""
        self._tasks = [asyncio.create_task(self._keep_telling(line)) for line in self._lines]

    def wake(self, user: str) -> None:
        """Say that a person has something new."""
        for line in self._lines:
            if line.user == user:
                line.event.set()

    async def stop(self) -> None:
        """Tell no more."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task

    async def _keep_telling(self, line: _Line) -> None:
        """Tell one recipient of one person, for ever."""
        wait = _FIRST_WAIT_S
        while True:
            line.event.clear()
            try:
                told = await self._tell_next(line)
            except asyncio.CancelledError:
                raise
            except Exception as problem:  # whatever it is, it ends no line: the others, and this one, go on
                counts = self.counts[line.recipient.name]
                counts.failed += 1
                if wait == _FIRST_WAIT_S:
                    said = str(problem) if isinstance(problem, Unreachable | DphmmError) else type(problem).__name__
                    _LOG.warning("recipient %s was not told: %s", line.recipient.name, said)
                await asyncio.sleep(wait * random.uniform(0.5, 1.0))  # not all at once
                wait = min(2 * wait, _LONGEST_WAIT_S)
                continue
            wait = _FIRST_WAIT_S
            if not told:
                await self._something_new(line)

    async def _tell_next(self, line: _Line) -> bool:
        """Tell the next release; False where there is none."""
        name = line.recipient.name
        found = await self._keeper.first_untold(name, line.user)
        if found is None:
            return False
        count, told, paused = found
        if not paused:
            try:
                await line.sender.send(told)
                self.counts[name].delivered += 1
            except Refused as problem:
                self.counts[name].refused += 1
                _LOG.warning("recipient %s refuses a message for good: %s", name, problem)
        await self._keeper.set_told(name, line.user, count)
        return True

    async def _something_new(self, line: _Line) -> None:
        """Wait until there may be something: others may release too where several processes share a store."""
        try:
            async with asyncio.timeout(_LOOK_AGAIN_S if self._keeper.is_shared else None):
                await line.event.wait()
        except TimeoutError:
            return
