"""True places on their way to a server of the person's own, where the relay's file says so.

They are held in memory alone, for as long as it takes to send them: the outbox of releases is on the disk, and nothing
true may be there. So what cannot be sent before the relay ends, or is more than some hundreds, is lost, oldest first;
the phone is not asked again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import numpy as np

from dphmm.serve.config import Recipient
from dphmm.serve.fix import Fix
from dphmm.serve.outbox import Deliveries, Refused, Sender, Unreachable
from dphmm.serve.told import Told
from dphmm.tables import iso_time

_MOST, _FIRST_WAIT_S, _LONGEST_WAIT_S = 500, 1.0, 60.0
_LOG = logging.getLogger(__name__)


class Passing:
    """Passes places on to one recipient who is to have them as they are.

    Parameters
    ----------
    recipient, sender
        To whom, and the way to them.
    is_paused
        Whether a person has paused them.
    """

    def __init__(self, recipient: Recipient, sender: Sender, is_paused: Callable[[str], Awaitable[bool]]) -> None:
        self.recipient, self.counts = recipient, Deliveries()
        self._sender, self._is_paused = sender, is_paused
        self._waiting: deque[tuple[str, Fix]] = deque(maxlen=_MOST)
        self._event = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to send."""
        self._task = asyncio.create_task(self._send())

    async def stop(self) -> None:
        """Send no more, and forget what was not sent."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def take(self, user: str, fixes: Sequence[Fix]) -> None:
        """Pass a person's places on, unless the recipient is paused."""
        if self.recipient.is_about(user) and not self.recipient.paused and not await self._is_paused(user):
            self._waiting.extend((user, fix) for fix in fixes)
            self._event.set()

    async def _send(self) -> None:
        wait = _FIRST_WAIT_S
        while True:
            self._event.clear()
            if not self._waiting:
                await self._event.wait()
                continue
            user, fix = self._waiting.popleft()
            try:
                await self._sender.send(_told(user, fix))
                self.counts.delivered += 1
                wait = _FIRST_WAIT_S
            except Refused:
                self.counts.refused += 1
            except Exception as problem:  # whatever it is, the next one goes on; nothing of it is logged but its kind
                self.counts.failed += 1
                if wait == _FIRST_WAIT_S:
                    said = str(problem) if isinstance(problem, Unreachable) else type(problem).__name__
                    _LOG.warning("recipient %s was not sent a place: %s", self.recipient.name, said)
                if len(self._waiting) < _MOST:
                    self._waiting.appendleft((user, fix))
                await asyncio.sleep(wait)
                wait = min(2 * wait, _LONGEST_WAIT_S)


def _told(user: str, fix: Fix) -> Told:
    """A true place in the form of what recipients are told."""
    second, text = int(fix.time.astype("datetime64[s]").astype(np.int64)), iso_time(fix.time)
    row = {"released": True, "true_place": True, "user": user, "time": text}
    row |= {"latitude": fix.latitude, "longitude": fix.longitude}
    return Told(user, second, text, fix.latitude, fix.longitude, 0.0, row)
