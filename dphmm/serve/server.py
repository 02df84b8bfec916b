"""Running the relay: sockets, workers, slow connections closed, logs that hold no place."""

from __future__ import annotations

import json
import logging
import os
from asyncio import BaseTransport, TimerHandle, Transport
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from dphmm.arguments import checked
from dphmm.errors import ConfigurationError, MissingDependencyError
from dphmm.release.database import is_server
from dphmm.serve.config import RelayConfig

try:
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError:
    raise MissingDependencyError("uvicorn", "serve") from None

IDLE_TIMEOUT_S = 15.0
"""A connection that has not asked for anything within this time, or since its last answer, is closed."""


class TimedProtocol(H11Protocol):
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
        self._waiting = self.loop.call_later(IDLE_TIMEOUT_S, self.transport.close)

    def _stop(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


CONFIG_VARIABLE = "DPHMM_RELAY"
"""The environment variable in which workers find the relay's file."""
ACCEPT_VARIABLE = "DPHMM_RELAY_ACCEPT_CHANGES"
"""The one that tells them to accept changes of settings, unless it is empty."""

_MOST_CONNECTIONS = 2000


@checked
def serve(path: str | Path, workers: int = 1, accept_changes: bool = False) -> None:
    """Run a relay until it is interrupted.

    Parameters
    ----------
    path
        The relay's file.
    workers
        Processes that answer; more than one need a database server as the store.
    accept_changes
        Whether sessions that began under other settings go on under those of the file, from their next release on.

    Raises
    ------
    DphmmError
        When the file, the model, the policy or the store cannot be used; before a socket is opened.
    """
    config = RelayConfig.read(Path(path))
    if workers < 1 or (workers > 1 and not is_server(config.store)):
        raise ConfigurationError(
            f"workers is {workers}; a file of sessions has one, several need store = 'postgresql://…'"
        )
    host, port = config.address
    options: dict[str, Any] = {
        "host": host,
        "port": port,
        "log_config": None,
        "access_log": False,  # its lines would hold what is in queries: places and tokens
        "server_header": False,
        "limit_concurrency": _MOST_CONNECTIONS,
        "timeout_graceful_shutdown": 10,
        "http": TimedProtocol,
    }
    log_lines()
    if workers == 1:
        from dphmm.serve.app import make_app

        uvicorn.run(make_app(config, accept_changes), **options)
        return
    os.environ[CONFIG_VARIABLE] = str(path)
    os.environ[ACCEPT_VARIABLE] = "yes" if accept_changes else ""
    uvicorn.run("dphmm.serve.server:worker", factory=True, workers=workers, **options)


def worker() -> Any:
    """The relay of the file that the environment names: what each worker runs."""
    from dphmm.serve.app import make_app

    log_lines()
    return make_app(RelayConfig.read(Path(os.environ[CONFIG_VARIABLE])), bool(os.environ.get(ACCEPT_VARIABLE)))


# ---- logs ------------------------------------------------------------------------------------------------------------


class _Lines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        said = {
            "time": f"{datetime.fromtimestamp(record.created, UTC):%Y-%m-%dT%H:%M:%SZ}",
            "level": record.levelname.lower(),
            "from": record.name,
            "message": _without_trace(" ".join(record.getMessage().split())),
        }
        if record.exc_info and record.exc_info[0] is not None:
            said["error"] = record.exc_info[0].__name__  # not what it says: that may hold a place
        return json.dumps(said, ensure_ascii=False)


def _without_trace(message: str) -> str:
    """A message that is the text of an error with the way to it, as that error's kind alone."""
    return "an unexpected error" if message.startswith("Traceback") else message


def log_lines() -> None:
    """Log to standard error, one JSON object a line, without the texts of unexpected errors."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.INFO)
    for name in ("httpx", "httpcore"):  # they log addresses with their queries
        logging.getLogger(name).setLevel(logging.WARNING)
