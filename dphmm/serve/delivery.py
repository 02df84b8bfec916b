"""Delivery to recipients: every release once each, in order, however often either side was away.

A message that a recipient refuses, or answers with errors again and again while it takes the newest one, is set aside
and noted: it holds up none of those after it.

True places on their way to a server of the person's own, where the relay's file says so, are held in memory alone, for
as long as it takes to send them: the outbox of releases is on the disk, and nothing true may be there. So what cannot
be sent before the relay ends, or is more than some hundreds, is lost, oldest first; the phone is not asked again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic

from dphmm.errors import DphmmError
from dphmm.serve.config import Recipient
from dphmm.serve.message_formats import Fix, Message, seconds_of
from dphmm.serve.recipients import now
from dphmm.serve.senders import Refused, Sender, Unreachable
from dphmm.serve.sessions import Sessions

_FIRST_WAIT_S, _LONGEST_WAIT_S, LONGEST_CONNECTION_WAIT_S, LOOK_AGAIN_S = 1.0, 300.0, 60.0, 1.0
_TRIES = 6
"""So many errors in a row that a recipient answers one message with, and the newest one is tried."""
_AT_ONCE = 8
"""At most this many messages are on their way to one recipient, so that phones do not wait for those of a crowd."""
_MOST_WAITING = 500
"""At most this many true places wait in memory to be sent."""
_LOG = logging.getLogger(__name__)


@dataclass
class Deliveries:
    """Counts of messages to one recipient."""

    delivered: int = 0
    failed: int = 0
    set_aside: int = 0


class Backoff:
    """Waits after failures, each time twice as long up to a bound; the first failure of a run is logged."""

    def __init__(self, longest: float) -> None:
        self._longest, self._wait = longest, _FIRST_WAIT_S

    def reset(self) -> None:
        """Begin again with the shortest wait: something succeeded."""
        self._wait = _FIRST_WAIT_S

    async def failed(self, said: str) -> None:
        """Wait after a failure."""
        if self._wait == _FIRST_WAIT_S:
            _LOG.warning("%s", said)
        await asyncio.sleep(self._wait * random.uniform(0.5, 1.0))  # not all at once
        self._wait = min(2 * self._wait, self._longest)


def reason(problem: Exception, *safe: type[Exception]) -> str:
    """What is logged of an error: of all but these kinds their name alone, as the text might hold a place."""
    return str(problem) if isinstance(problem, safe) else type(problem).__name__


async def cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel tasks, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task


@dataclass
class _Line:
    """One person's releases on their way to one recipient; since when the first one waits, and how often it failed."""

    recipient: Recipient
    sender: Sender
    gate: asyncio.Semaphore
    user: str
    event: asyncio.Event = field(default_factory=asyncio.Event)
    since: float | None = None
    errors: int = 0


class Outbox:
    """Sends people's releases to recipients.

    A person's releases go to a recipient one after another. How far they came is written after each; what was
    released and not sent before a restart is sent after it. A message may be sent twice, where the answer to it or
    the note of it is lost; it is the same both times, for it is read from the record.

    Parameters
    ----------
    sessions
        Where the releases are.
    senders
        Recipient and the way to them, by name.
    users
        The people whose phones post.
    """

    def __init__(
        self, sessions: Sessions, senders: Mapping[str, tuple[Recipient, Sender]], users: tuple[str, ...]
    ) -> None:
        self._sessions = sessions
        self._lines = [
            _Line(recipient, sender, gate, user)
            for recipient, sender in senders.values()
            for gate in [asyncio.Semaphore(_AT_ONCE)]
            for user in users
            if recipient.is_about(user)
        ]
        self.counts = {name: Deliveries() for name in senders}
        """Recipient → counts."""
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to send."""
        self._tasks = [asyncio.create_task(self._send_all(line)) for line in self._lines]
        if self._sessions.is_shared:
            self._tasks.append(asyncio.create_task(self._look()))

    def wake(self, user: str) -> None:
        """Say that a person has a new release."""
        for line in self._lines:
            if line.user == user:
                line.event.set()

    async def stop(self) -> None:
        """Send no more."""
        await cancel(self._tasks)

    def ages(self) -> dict[str, float]:
        """Recipient → for how many seconds the message that has waited longest was tried; 0 where none waits."""
        found = dict.fromkeys(self.counts, 0.0)
        for line in self._lines:
            if line.since is not None:
                found[line.recipient.name] = max(found[line.recipient.name], monotonic() - line.since)
        return found

    async def _send_all(self, line: _Line) -> None:
        """Send one person's releases to one recipient, for ever."""
        name, backoff = line.recipient.name, Backoff(_LONGEST_WAIT_S)
        while True:
            line.event.clear()
            try:
                async with line.gate:
                    more = await self._send_next(line)
            except Exception as problem:  # whatever it is, it ends no line: the others, and this one, go on
                self.counts[name].failed += 1
                await backoff.failed(
                    f"recipient {name} was not sent a release: {reason(problem, Unreachable, DphmmError)}"
                )
                continue
            backoff.reset()
            if not more:
                await line.event.wait()

    async def _look(self) -> None:
        """Look for what other processes release to the store, and whether it is now for this one to send."""
        while True:
            await asyncio.sleep(LOOK_AGAIN_S)
            with suppress(DphmmError):  # a store that is away: the lines say so
                waiting = await self._sessions.waiting()
                for line in self._lines:
                    if (line.user, line.recipient.name) in waiting:
                        line.event.set()

    async def _send_next(self, line: _Line) -> bool:
        """Send the next release; whether there are more."""
        counts = self.counts[line.recipient.name]
        found = await self._sessions.first_unsent(line.recipient, line.user)
        if found is None:
            line.since = None
            return False
        count, message, more = found
        line.since = monotonic() if line.since is None else line.since
        said = ""
        try:
            await line.sender.send(message)
            counts.delivered += 1
        except Refused as problem:
            said = str(problem)
        except Unreachable as problem:
            line.errors = line.errors + 1 if problem.answered else 0
            if line.errors < _TRIES or not await self._newest_is_taken(line, count):
                raise
            said = str(problem)
        if said:
            counts.set_aside += 1
            _LOG.warning("recipient %s does not take a message, which is set aside: %s", line.recipient.name, said)
        await self._sessions.set_sent(line.recipient, line.user, count, said)
        line.since, line.errors = None, 0
        return more

    async def _newest_is_taken(self, line: _Line, count: int) -> bool:
        """Whether a recipient who answers one message with errors takes the newest: then it is that one's fault."""
        found = await self._sessions.last_unsent(line.recipient, line.user)
        if found is None or found[0] == count:
            return False
        try:
            await line.sender.send(found[1])
        except (Refused, Unreachable):
            return False
        return True


class TruePlaces:
    """Passes places on to one recipient who is to have them as they are; what becomes of them is not counted.

    Parameters
    ----------
    recipient, sender
        The recipient and the way to them.
    told_from
        From which second on the recipient is told of a person: places from before, and those that waited then, are
        not sent.
    """

    def __init__(self, recipient: Recipient, sender: Sender, told_from: Callable[[str], Awaitable[int]]) -> None:
        self.recipient = recipient
        self._sender, self._told_from = sender, told_from
        self._waiting: deque[tuple[str, Fix, int]] = deque(maxlen=_MOST_WAITING)
        self._event = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to send."""
        self._tasks = [asyncio.create_task(self._send_all())]

    async def stop(self) -> None:
        """Send no more, and forget what was not sent."""
        self._waiting.clear()
        await cancel(self._tasks)

    def take(self, user: str, fixes: Sequence[Fix]) -> None:
        """Pass a person's places on."""
        if self.recipient.is_about(user):
            self._waiting.extend((user, fix, now()) for fix in fixes)
            self._event.set()

    async def _send_all(self) -> None:
        backoff = Backoff(LONGEST_CONNECTION_WAIT_S)
        while True:
            self._event.clear()
            if not self._waiting:
                await self._event.wait()
                continue
            user, fix, since = self._waiting.popleft()
            try:
                if await self._told_from(user) <= min(since, seconds_of(fix.time)):
                    await self._sender.send(Message.of_true_place(user, fix))
                    backoff.reset()
            except Refused:
                pass
            except Exception as problem:  # whatever it is, the next one goes on; nothing of it is logged but its kind
                if len(self._waiting) < _MOST_WAITING:
                    self._waiting.appendleft((user, fix, since))
                await backoff.failed(
                    f"recipient {self.recipient.name} was not sent a place: {reason(problem, Unreachable)}"
                )
