"""Uvicorn's protocol, which also closes connections that say nothing, or say it too slowly."""

from __future__ import annotations

from asyncio import BaseTransport, TimerHandle, Transport
from typing import cast

from uvicorn.protocols.http.h11_impl import H11Protocol

PATIENCE_S = 15.0
"""A connection that has not asked for anything within this time is closed."""


class Patient(H11Protocol):
    """A connection that is closed unless it asks for something in time."""

    _waiting: TimerHandle | None = None

    def connection_made(self, transport: BaseTransport) -> None:
        """Begin to wait."""
        super().connection_made(cast(Transport, transport))
        self._waiting = self.loop.call_later(PATIENCE_S, self._give_up)

    def _give_up(self) -> None:
        asked = getattr(self, "cycle", None)
        if asked is None:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        if self._waiting is not None:
            self._waiting.cancel()
        super().connection_lost(exc)
