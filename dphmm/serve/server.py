"""Running the relay, and no other beside it: sockets, workers, slow connections closed, logs that hold no place."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import tempfile
import threading
from asyncio import BaseTransport, TimerHandle, Transport
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any, cast

from dphmm.arguments import checked
from dphmm.errors import ConfigurationError, DphmmError, MissingDependencyError, OutputError
from dphmm.release.session_database import is_server
from dphmm.release.session_store import SessionStore
from dphmm.serve.config import RelayConfig

try:
    import fcntl
except ImportError:  # where there is none, nothing is locked
    fcntl = None  # type: ignore[assignment]
try:
    import uvicorn
    from uvicorn.config import STARTUP_FAILURE
    from uvicorn.protocols.http.h11_impl import H11Protocol
    from uvicorn.supervisors.multiprocess import Multiprocess, Process
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
SOCKET_VARIABLE = "DPHMM_RELAY_SOCKET"
"""The one in which a relay that starts itself anew leaves the number of its socket, where phones wait meanwhile."""

_MOST_CONNECTIONS = 2000
_WORKER_TIMEOUT_S = 120
"""A worker that says nothing for so long is ended: to start on a processor that has other work may take a minute."""
_MOST_STILLBORN = 3
"""So many workers may end in a row before they served anything."""
_LOG = logging.getLogger(__name__)


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
        When the file, the model, the policy or the store cannot be used, or another relay serves it; before a socket is
        opened. When workers end again and again before they have served anything.
    """
    config = RelayConfig.read(Path(path))
    if workers < 1 or (workers > 1 and not is_server(config.store)):
        raise ConfigurationError(
            f"workers is {workers}; a file of sessions has one, several need store = 'postgresql://…'"
        )
    log_lines()
    again, asked = False, threading.Event()
    _on_hangup(asked.set)
    with only_relay(config):
        if workers > 1:
            _serve_by_workers(Path(path), config, workers, accept_changes)
        else:
            again = _serve_alone(Path(path), config, accept_changes, asked)
    if again:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # one that comes until it is heard again waits
        os.execv(sys.executable, [sys.executable, "-m", "dphmm", *sys.argv[1:]])


def _on_hangup(call: Callable[[], object]) -> None:
    """Have something done at SIGHUP, which by itself would end the process, also while it starts."""
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, lambda *_: call())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})


def _options(config: RelayConfig) -> dict[str, Any]:
    host, port = config.address
    return {
        "host": host,
        "port": port,
        "log_config": None,
        "access_log": False,  # its lines would hold what is in queries: places and tokens
        "server_header": False,
        "limit_concurrency": _MOST_CONNECTIONS,
        "timeout_graceful_shutdown": 10,
        "http": TimedProtocol,
    }


def _serve_alone(path: Path, config: RelayConfig, accept_changes: bool, asked: threading.Event) -> bool:
    """Serve by this process; whether it is to be started anew, for which it may be asked already."""
    from dphmm.serve.endpoints import make_app

    server = uvicorn.Server(uvicorn.Config(make_app(config, accept_changes), **_options(config)))
    kept = os.environ.pop(SOCKET_VARIABLE, "")
    listening = socket.socket(fileno=int(kept)) if kept else server.config.bind_socket()
    again = False

    def reload() -> None:
        nonlocal again
        if _is_servable(path, config, accept_changes):
            again, server.should_exit = True, True

    def hung_up() -> None:
        threading.Thread(target=reload, daemon=True).start()

    _on_hangup(hung_up)
    if asked.is_set():
        hung_up()
    server.run(sockets=[listening.dup()])
    if again:
        os.set_inheritable(listening.fileno(), True)
        os.environ[SOCKET_VARIABLE] = str(listening.detach())
    elif not server.started:
        raise OutputError("the relay could not start; the log above says why")
    return again


def _is_servable(path: Path, config: RelayConfig, accept_changes: bool) -> bool:
    """Whether the relay can go on with what its file says now; where not, that is logged."""
    from dphmm.serve.sessions import check_sessions

    try:
        changed = RelayConfig.read(path)
        if (changed.address, changed.store) != (config.address, config.store):
            raise ConfigurationError("listen and store do not change while the relay runs; start it anew")
        check_sessions(changed, accept_changes)
    except DphmmError as problem:
        _LOG.error("the relay goes on as it was: %s", problem)
        return False
    return True


def _serve_by_workers(path: Path, config: RelayConfig, workers: int, accept_changes: bool) -> None:
    """Serve by several processes, each of which is started anew where it ends, and all one after another by SIGHUP."""
    SessionStore(config.store).close()  # one that cannot be used is refused here, and not by each of them
    os.environ[CONFIG_VARIABLE] = str(path)
    os.environ[ACCEPT_VARIABLE] = "yes" if accept_changes else ""
    made = uvicorn.Config(
        "dphmm.serve.server:worker",
        factory=True,
        workers=workers,
        timeout_worker_healthcheck=_WORKER_TIMEOUT_S,
        **_options(config),
    )
    supervisor = Workers(made, [made.bind_socket()], lambda: _is_servable(path, config, accept_changes))
    supervisor.run()
    if supervisor.failed:
        raise OutputError("workers end before they have served anything; the log above says why")


class Workers(Multiprocess):
    """Processes that are started anew where they end, unless they do so again and again before they served anything.

    By SIGHUP all are, one after another, each once its successor serves; unless what they would read cannot be served.
    """

    def __init__(
        self, config: uvicorn.Config, sockets: list[socket.socket], is_servable: Callable[[], bool] = lambda: True
    ) -> None:
        super().__init__(config, sockets)
        self._is_servable = is_servable
        self.failed = False
        """Whether they were given up."""
        self._stillborn = 0
        self._served: set[int | None] = set()
        self._asked: dict[int | None, float] = {}

    def handle_hup(self) -> None:
        """Have each read the relay's file again."""
        if self._is_servable():
            super().handle_hup()

    def keep_subprocess_alive(self) -> None:
        """Look after each of them, without waiting for any; called twice a second."""
        for index, one in enumerate(self.processes):
            if self.should_exit.is_set():
                return
            if self._is_alive(one):
                continue
            one.kill()
            one.join()
            self._stillborn = 0 if one.pid in self._served else self._stillborn + 1
            self._served.discard(one.pid)
            self._asked.pop(one.pid, None)
            if one.exitcode == STARTUP_FAILURE or self._stillborn >= _MOST_STILLBORN:
                _LOG.error("worker %s ended before it had served anything, and no other is started", one.pid)
                self.failed = True
                self.should_exit.set()
                return
            _LOG.error("worker %s ended, and another is started", one.pid)
            self.processes[index] = Process(self.config, self.sockets)
            self.processes[index].start()

    def _is_alive(self, one: Process) -> bool:
        """Whether a worker runs, and answered within the time that it has."""
        if not one.process.is_alive():
            return False
        try:
            if one.pid not in self._asked:
                one.parent_conn.send(b"ping")
                self._asked[one.pid] = monotonic()
            elif one.parent_conn.poll(0):
                del self._asked[one.pid]
                if one.parent_conn.recv():  # it has started to serve
                    self._served.add(one.pid)
                    self._stillborn = 0
        except (OSError, EOFError):
            return False
        return monotonic() - self._asked.get(one.pid, monotonic()) < self.config.timeout_worker_healthcheck


def worker() -> Any:
    """The relay of the file that the environment names: what each worker runs."""
    from dphmm.serve.endpoints import make_app

    log_lines()
    return make_app(RelayConfig.read(Path(os.environ[CONFIG_VARIABLE])), bool(os.environ.get(ACCEPT_VARIABLE)))


@checked
def reload_relay(path: str | Path, accept_changes: bool = False) -> int:
    """Have the relay of a file read it again, once it is seen that it can be served.

    Parameters
    ----------
    path
        The relay's file.
    accept_changes
        Whether the relay was started so that sessions go on under changed settings.

    Returns
    -------
    int
        The number of the process.

    Raises
    ------
    DphmmError
        When the file cannot be served, or no relay of it runs on this machine.
    """
    from dphmm.serve.sessions import check_sessions

    config = RelayConfig.read(Path(path))
    process = process_of(config)
    check_sessions(config, accept_changes)
    os.kill(process, signal.SIGHUP)
    return process


# ---- which process serves a relay -----------------------------------------------------------------------------------


def lock_file(config: RelayConfig) -> Path:
    """The file whose lock a relay holds: beside its file of sessions, or for its port where the store is a server."""
    if is_server(config.store):
        return Path(tempfile.gettempdir()) / f"dphmm-relay-{config.address[1]}.lock"
    return Path(f"{config.store}.lock")


@contextmanager
def only_relay(config: RelayConfig) -> Iterator[None]:
    """Hold the lock of a relay, with the number of this process in it.

    Raises
    ------
    ConfigurationError
        When another relay holds it.
    OutputError
        When the file cannot be written.
    """
    path = lock_file(config)
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as problem:
        raise OutputError(f"{path} cannot be written ({problem.strerror}); check the folder") from None
    try:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                other = os.read(file, 20).decode("ascii", "replace").strip()
                raise ConfigurationError(
                    f"{config.store if not is_server(config.store) else config.listen} is served by another relay, "
                    f"process {other}; end that one, or name another"
                ) from None
        os.truncate(file, 0)
        os.pwrite(file, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(file)


def process_of(config: RelayConfig) -> int:
    """The number of the process that serves a relay.

    Raises
    ------
    ConfigurationError
        When none does.
    """
    path = lock_file(config)
    with_none = ConfigurationError(f"no relay holds {path}; start it with dphmm serve, or reload it as it was started")
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        raise with_none from None
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return int(os.read(file, 20))
    finally:
        os.close(file)
    raise with_none


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
