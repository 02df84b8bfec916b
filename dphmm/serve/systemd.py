"""Messages of a relay to systemd: that it is ready, alive and stopping.

They follow sd_notify(3). Without systemd nothing is sent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

_LOG = logging.getLogger(__name__)
_UNAVAILABLE = "STATUS=the store accepts no release"


def notify(*lines: str) -> None:
    """Send assignments such as ``READY=1`` to the service manager that started this process."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")) or not hasattr(socket, "AF_UNIX"):
        return
    if address.startswith("@"):  # an abstract address
        address = f"\0{address[1:]}"
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
        manager.setblocking(False)  # a manager that does not read must not stop the relay
        manager.sendto("\n".join(lines).encode(), address)


def notify_reloading() -> None:
    """Announce that the relay reads its file again. `notify` with ``READY=1`` ends it."""
    notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")


def get_watchdog_interval() -> float | None:
    """Return the seconds in which the manager expects a sign of life, or None."""
    process, microseconds = (os.environ.get(name, "") for name in ("WATCHDOG_PID", "WATCHDOG_USEC"))
    if not microseconds.isdecimal() or process not in ("", str(os.getpid())):
        return None
    return int(microseconds) / 1e6


async def feed_watchdog(interval: float, answers: Callable[[], Awaitable[bool]]) -> None:
    """Send signs of life while the store answers. Never returns.

    A store that answers with an error, such as a full disk or a database that restarts, is no reason to end the relay.
    One that does not answer is: it holds all phones.

    Parameters
    ----------
    interval : float
        Time in which the service manager expects a sign, seconds.
    answers : callable
        Function that asks the store and returns whether it accepts a release.
    """
    while True:
        try:
            async with asyncio.timeout(interval / 2):
                is_available = await answers()
            notify("WATCHDOG=1", "STATUS=" if is_available else _UNAVAILABLE)
        except TimeoutError:
            _LOG.error("the store does not answer")
        except Exception as problem:  # it answers, and no error may end this loop
            _LOG.error("the store answers with an unexpected error: %s", type(problem).__name__)
            notify("WATCHDOG=1", _UNAVAILABLE)
        await asyncio.sleep(interval / 4)
