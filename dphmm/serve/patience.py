"""Uvicorn's protocol, which also closes connections that say nothing, or say it too slowly."""

from __future__ import annotations

from asyncio import BaseTransport, TimerHandle, Transport
from typing import cast

from uvicorn.protocols.http.h11_impl import H11Protocol

PATIENCE_S = 15.0
"""A connection that has not asked for anything within this time, or since its last answer, is closed."""


class Patient(H11Protocol):
    """A connection that is closed unless it asks for something in time, whatever it dribbles meanwhile."""

    _waiting: TimerHandle | None = None
    _answered: object = None

    def connection_made(self, transport: BaseTransport) -> None:
        """Begin to wait."""
        super().connection_made(cast(Transport, transport))
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Stop waiting once all headers of a request are there; its handler waits for the body."""
        super().data_received(data)
        if getattr(self, "cycle", None) is not self._answered:
            self._stop()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._answered = self.cycle
        super().on_response_complete()  # which begins the next, where it is there already
        if self.cycle is self._answered:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._stop()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._stop()
        self._waiting = self.loop.call_later(PATIENCE_S, self.transport.close)

    def _stop(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
