"""Process management of a relay: lock, sockets, workers, timeouts and logs."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import logging
import os
import signal
import socket
import stat
import sys
import tempfile
import threading
from asyncio import BaseTransport, TimerHandle, Transport
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Annotated, Any, NamedTuple, cast

from dphmm.errors import ConfigurationError, DphmmError, MissingDependencyError, OutputError, PolicyError
from dphmm.processes import ScriptlessContext
from dphmm.release.database_backends import is_server
from dphmm.release.session_store import SessionStore
from dphmm.release.session_transfer import migrate_store
from dphmm.serve.config import RelayConfig
from dphmm.serve.systemd import feed_watchdog, get_watchdog_interval, notify, notify_reloading
from dphmm.validation import Integers, check_arguments

try:
    import fcntl
except ImportError:  # without fcntl nothing is locked
    fcntl = None  # type: ignore[assignment]  # a module by its stubs
try:
    import resource
except ImportError:  # without resource there are no core dumps
    resource = None  # type: ignore[assignment]  # a module by its stubs
try:
    import uvicorn
    import uvicorn._subprocess
    from uvicorn.config import STARTUP_FAILURE
    from uvicorn.protocols.http.h11_impl import H11Protocol
    from uvicorn.supervisors.multiprocess import Multiprocess, Process
except ImportError:
    raise MissingDependencyError("uvicorn", "serve") from None

# A connection without a complete request for this time, or since its last answer, is closed.
IDLE_TIMEOUT_S = 15.0
# A connection is closed if the client reads less than `_MIN_READ_BYTES` of an answer in this time.
WRITE_TIMEOUT_S = 30.0
_MIN_READ_BYTES = 1 << 14
# The kernel's buffer of a connection. By default it grows to megabytes: each client that does not read would occupy
# them, and slow reading would not be visible here for minutes, because the buffer empties in large parts.
_SEND_BUFFER_BYTES = 1 << 16


class TimedProtocol(H11Protocol):
    """A connection that is closed unless the client sends requests and reads answers in time."""

    _timer: TimerHandle | None = None
    _write_timer: TimerHandle | None = None
    _answered_cycle: object = None

    def connection_made(self, transport: BaseTransport) -> None:
        """Start the timer."""
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        super().connection_made(cast(Transport, transport))
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        """Stop the timer once all headers have arrived. The handler limits the body."""
        super().data_received(data)
        if getattr(self, "cycle", None) is not self._answered_cycle:
            self._stop_timer()

    def on_response_complete(self) -> None:
        """Restart the timer for the next request."""
        self._answered_cycle = self.cycle
        super().on_response_complete()  # starts the next request if it has already arrived
        if self.cycle is self._answered_cycle:
            self._start_timer()

    def pause_writing(self) -> None:
        """Watch whether the client reads, because the buffer of answers is full."""
        super().pause_writing()
        self._watch_reading()

    def resume_writing(self) -> None:
        """Stop watching: the client has read enough for the next part of an answer."""
        super().resume_writing()
        if not self.transport.is_closing():
            self._stop_watching()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        self._stop_timer()
        self._stop_watching()
        super().connection_lost(exc)

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(IDLE_TIMEOUT_S, self._close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close(self) -> None:
        # It closes once the client has read all answers, which some never do.
        self.transport.close()
        self._watch_reading()

    def _watch_reading(self) -> None:
        self._stop_watching()
        size = self.transport.get_write_buffer_size()
        self._write_timer = self.loop.call_later(WRITE_TIMEOUT_S, self._check_reading, size)

    def _check_reading(self, earlier_size: int) -> None:
        size = self.transport.get_write_buffer_size()
        if size and size > earlier_size - _MIN_READ_BYTES:
            self.transport.abort()
        elif size:
            self._watch_reading()

    def _stop_watching(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


# Environment variable with the relay's file, for workers.
CONFIG_VARIABLE = "DPHMM_RELAY"
# Environment variable that makes workers accept changed settings, unless it is empty.
ACCEPT_VARIABLE = "DPHMM_RELAY_ACCEPT_CHANGES"
# Environment variable with the socket of a relay that restarts itself. Connections queue there meanwhile.
SOCKET_VARIABLE = "DPHMM_RELAY_SOCKET"

_MAX_CONNECTIONS = 2000
# A relay ends within both times: open requests have the first, senders and the store the second.
_GRACE_S = 4
_SHUTDOWN_TIMEOUT_S = 5.0
# An unresponsive worker is ended. Starting on a busy processor may take a minute.
_WORKER_TIMEOUT_S = 120
_MAX_LOCK_BYTES = 4200  # with the longest path
_MAX_FAILED_STARTS = 3  # consecutive workers that end before they have served
_LOG = logging.getLogger(__name__)


@check_arguments
def serve(
    path: str | Path, workers: Annotated[int, Integers(1, error=ConfigurationError)] = 1, accept_changes: bool = False
) -> None:
    """Run a relay until it is interrupted.

    Parameters
    ----------
    path : str or Path
        TOML file of the relay.
    workers : int
        Number of processes. More than one require a database server as the store.
    accept_changes : bool
        Whether sessions that began under other settings continue under those of the file from their next release on.

    Raises
    ------
    DphmmError
        If the file, the model, the policy, the store or the address cannot be used, or another relay serves the store.
        Raised before a socket is opened. Also raised if workers repeatedly end before they have served anything.
    """
    config = RelayConfig.read(Path(path))
    if workers > 1 and not is_server(config.store):
        raise ConfigurationError(
            f"workers must be 1 unless the store is a database server ('postgresql://…'), got {workers}"
        )
    config.check_environment()  # once, and not by every worker
    configure_logging()
    disable_core_dumps()
    again = False
    reload_requested = threading.Event()
    _handle_hangup(reload_requested.set)
    with lock_relay(config, accept_changes, Path(path)):
        _migrate(config)
        if workers > 1:
            _serve_with_workers(Path(path), config, workers, accept_changes)
        else:
            again = _serve_in_process(Path(path), config, accept_changes, reload_requested)
    if again:
        _execute_again(path, accept_changes)


def _migrate(config: RelayConfig) -> None:
    """Convert a store of an earlier format, after a copy."""
    if not is_server(config.store) and not Path(config.store).exists():
        return
    plan = migrate_store(config.store)
    if plan.copies:
        _LOG.info(
            "the store of format %d was converted to format %d (%s); the earlier one is in %s",
            plan.store_format,
            plan.target,
            "; ".join(plan.summaries),
            ", ".join(plan.copies),
        )


def _execute_again(path: str | Path, accept_changes: bool) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # defer it until the new process can handle it
    # Not the arguments of this process, which may be a script that calls `serve`.
    options = ["--accept-changes"] if accept_changes else []
    os.execv(sys.executable, [sys.executable, "-m", "dphmm", "serve", str(Path(path).absolute()), *options])


def _end_within(seconds: float, end: Callable[[], object]) -> None:
    """End this process after a time, unless it has ended.

    A thread that waits for a server or a disk cannot be cancelled. The process may end at any point: whatever it has
    answered or sent is in the store.
    """

    def end_now() -> None:
        _LOG.error("the relay did not end in time, and ends now")
        end()

    timer = threading.Timer(seconds, end_now)
    timer.daemon = True
    timer.start()


def disable_core_dumps() -> None:
    """Disable core dumps of this process and its workers.

    Memory contains true locations.
    """
    if resource is not None and resource.getrlimit(resource.RLIMIT_CORE) != (0, 0):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _handle_hangup(call: Callable[[], object]) -> None:
    """Call a function at SIGHUP, which would otherwise end the process, even during startup."""
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, lambda *_: call())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})


def _build_options(config: RelayConfig) -> dict[str, Any]:
    host, port = config.address
    return {
        "host": host,
        "port": port,
        "log_config": None,
        "access_log": False,  # it would contain queries with locations and tokens
        "server_header": False,
        "limit_concurrency": _MAX_CONNECTIONS,
        "timeout_graceful_shutdown": _GRACE_S,
        "http": TimedProtocol,
    }


def _bind(config: uvicorn.Config) -> socket.socket:
    """Return the socket of a relay.

    If it cannot be opened, uvicorn logs the reason and would end the process.
    """
    try:
        return config.bind_socket()
    except SystemExit:
        raise ConfigurationError(
            f"listen must be an address and a free port of this machine, got {config.host}:{config.port}; see the log "
            "above"
        ) from None


def _serve_in_process(path: Path, config: RelayConfig, accept_changes: bool, reload_requested: threading.Event) -> bool:
    """Serve in this process, and return whether to restart it."""
    from dphmm.serve.endpoints import make_app

    again = False

    def end() -> None:
        if again and not server.is_terminated:
            pass_socket()
            _execute_again(path, accept_changes)
        os._exit(0)

    def begin_end() -> None:
        if again:
            notify_reloading()
        else:
            notify("STOPPING=1")
        _end_within(_SHUTDOWN_TIMEOUT_S, end)

    with _name_file(path):
        app = make_app(config, accept_changes, begin_end)
    server = SupervisedServer(uvicorn.Config(app, **_build_options(config)), app.state.sessions.is_store_available)
    socket_number = os.environ.pop(SOCKET_VARIABLE, "")
    listening = socket.socket(fileno=int(socket_number)) if socket_number else _bind(server.config)

    def pass_socket() -> None:
        os.set_inheritable(listening.fileno(), True)
        os.environ[SOCKET_VARIABLE] = str(listening.fileno())

    def reload() -> None:
        nonlocal again
        # The check takes seconds, in which the relay can receive a signal to end.
        if _is_servable(path, config, accept_changes) and not server.should_exit:
            if asyncio.run(app.state.sessions.is_store_available()):
                again, server.should_exit = True, True
            else:  # with a full disk it would not start again, and without its file it would begin an empty store
                _LOG.error("the relay continues with its previous configuration: the store accepts no release")

    def start_reload() -> None:
        threading.Thread(target=reload, daemon=True).start()

    _handle_hangup(start_reload)
    if reload_requested.is_set():
        start_reload()
    server.run(sockets=[listening.dup()])
    if again:
        pass_socket()
        listening.detach()
    elif not server.started:
        raise OutputError("the relay could not start; see the log above")
    return again


class SupervisedServer(uvicorn.Server):
    """A server that reports to systemd that it listens, and then that its store answers.

    Parameters
    ----------
    config : uvicorn.Config
        Configuration of the server.
    answers : callable
        See `feed_watchdog`.
    """

    def __init__(self, config: uvicorn.Config, answers: Callable[[], Awaitable[bool]]) -> None:
        super().__init__(config)
        # Whether a signal ends the process. Another reason to stop is a reload.
        self.is_terminated = False
        self._answers = answers
        self._watchdog: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop at a signal."""
        self.is_terminated = True
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen."""
        await super().startup(sockets)
        notify("READY=1")
        interval = get_watchdog_interval()
        if interval is not None:
            self._watchdog = asyncio.create_task(feed_watchdog(interval, self._answers))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop to listen."""
        if self._watchdog is not None:
            self._watchdog.cancel()
        await super().shutdown(sockets)


def _is_servable(path: Path, config: RelayConfig, accept_changes: bool) -> bool:
    """Return whether the relay can continue with its present file. Logs the reason if not."""
    from dphmm.serve.sessions import check_sessions

    try:
        changed = RelayConfig.read(path)
        if (changed.address, changed.store) != (config.address, config.store):
            raise _build_restart_error()
        changed.check_environment()
        with _name_file(path):
            check_sessions(changed, accept_changes)
    except DphmmError as problem:
        _LOG.error("the relay continues with its previous configuration: %s", problem)
        return False
    return True


@contextmanager
def _name_file(path: str | Path) -> Iterator[None]:
    """Name the relay's file in errors of its policy, which is only parsed with the model."""
    try:
        yield
    except PolicyError as problem:
        raise PolicyError(f"{path}: {problem}") from None


def _build_restart_error() -> ConfigurationError:
    return ConfigurationError("listen and store must not change while the relay runs; restart it")


def _serve_with_workers(path: Path, config: RelayConfig, workers: int, accept_changes: bool) -> None:
    """Serve with several processes. They are replaced one by one at SIGHUP."""
    SessionStore(config.store).close()  # an invalid store is refused once, not by every worker
    os.environ[CONFIG_VARIABLE] = str(path)
    os.environ[ACCEPT_VARIABLE] = "yes" if accept_changes else ""
    uvicorn_config = uvicorn.Config(
        "dphmm.serve.server:make_worker_app",
        factory=True,
        workers=workers,
        timeout_worker_healthcheck=_WORKER_TIMEOUT_S,
        **_build_options(config),
    )
    supervisor = WorkerSupervisor(
        uvicorn_config, [_bind(uvicorn_config)], lambda: _is_servable(path, config, accept_changes)
    )
    supervisor.run()
    if supervisor.failed:
        raise OutputError("workers end before they have served anything; see the log above")


class WorkerSupervisor(Multiprocess):
    """Restarts worker processes that end.

    It gives up if they repeatedly end before they have served anything.

    At SIGHUP all workers are replaced one by one, each once its successor serves, if the new file can be served. The
    supervisor does not wait meanwhile: it ends at a signal, replaces dead workers, and sends signs of life.

    systemd is sent that the relay is ready once a worker serves, and then signs of life while a worker does.
    """

    def __init__(
        self, config: uvicorn.Config, sockets: list[socket.socket], is_servable: Callable[[], bool] = lambda: True
    ) -> None:
        super().__init__(config, sockets)
        # uvicorn has no option for it: its workers would import the script that called `serve`.
        uvicorn._subprocess.spawn = ScriptlessContext()
        self._is_servable = is_servable
        # Whether the supervisor gave up.
        self.failed = False
        self._num_failed_starts = 0
        self._is_ready = False
        self._served: set[int | None] = set()
        self._pinged_at: dict[int | None, float] = {}
        self._reload_requested = threading.Event()
        self._is_reloading = False
        self._outdated: list[Process] = []
        self._successor: Process | None = None  # takes the place of an outdated worker once it serves
        self._replaced: Process | None = None  # ends its work
        self._step_began_at = 0.0

    def handle_hup(self) -> None:
        """Check the relay's file in a thread. If it can be served, all workers are then replaced."""

        def check() -> None:
            if self._is_servable():
                self._reload_requested.set()

        threading.Thread(target=check, daemon=True).start()

    def terminate_all(self) -> None:
        """End all workers. Those that do not serve yet would first load the model, and are killed."""
        notify("STOPPING=1")
        if self._successor is not None:
            self.processes.append(self._successor)
        for process in self.processes:
            if process.pid in self._served:
                process.terminate()
            else:
                process.kill()
        if self._replaced is not None:  # it was terminated before; `join_all` waits for it, too
            self.processes.append(self._replaced)

    def keep_subprocess_alive(self) -> None:
        """Check each worker and continue a reload without waiting. Called twice a second."""
        self._check_workers()
        if not self.should_exit.is_set():
            self._continue_reload()
        if any(process.pid in self._served for process in self.processes):
            notify("WATCHDOG=1" if self._is_ready else "READY=1")
            self._is_ready = True

    def _continue_reload(self) -> None:
        """Begin the next step of a reload, if there is one and the last step has ended."""
        is_late = monotonic() - self._step_began_at > self.config.timeout_worker_healthcheck
        if self._reload_requested.is_set():
            self._reload_requested.clear()
            notify_reloading()
            self._is_reloading = True
            self._outdated = [*self.processes, *([] if self._successor is None else [self._successor])]
        if self._replaced is not None and self._replaced.process.is_alive():
            if is_late:
                self._replaced.kill()
            return
        self._replaced = None
        # Workers that died meanwhile are replaced, and their successors have read the file.
        outdated = [process for process in self.processes if process in self._outdated]
        successor = self._successor
        if successor is None:
            if outdated:
                self._successor = Process(self.config, self.sockets)
                self._successor.start()
                self._step_began_at = monotonic()
            elif self._is_reloading:
                self._is_reloading = False
                notify("READY=1")
        elif is_late or not self._is_alive(successor):
            _LOG.error("worker %s did not start to serve; the reload ends, and other workers continue", successor.pid)
            successor.kill()
            successor.join()
            self._forget(successor)
            self._successor, self._outdated = None, []
        elif successor.pid in self._served:
            self._replaced = outdated[0] if outdated else successor
            if outdated:
                self.processes[self.processes.index(outdated[0])] = successor
            self._replaced.terminate()
            self._forget(self._replaced)
            self._successor = None
            self._step_began_at = monotonic()

    def _forget(self, process: Process) -> None:
        self._served.discard(process.pid)
        self._pinged_at.pop(process.pid, None)

    def _check_workers(self) -> None:
        for index, process in enumerate(self.processes):
            if self.should_exit.is_set():
                return
            if self._is_alive(process):
                continue
            process.kill()
            process.join()
            self._num_failed_starts = 0 if process.pid in self._served else self._num_failed_starts + 1
            self._forget(process)
            if process.exitcode == STARTUP_FAILURE or self._num_failed_starts >= _MAX_FAILED_STARTS:
                _LOG.error("worker %s ended before it had served anything; no other is started", process.pid)
                self.failed = True
                self.should_exit.set()
                return
            _LOG.error("worker %s ended; another is started", process.pid)
            self.processes[index] = Process(self.config, self.sockets)
            self.processes[index].start()

    def _is_alive(self, process: Process) -> bool:
        """Return whether a worker runs and answered the last ping in time."""
        if not process.process.is_alive():
            return False
        try:
            if process.pid not in self._pinged_at:
                process.parent_conn.send(b"ping")
                self._pinged_at[process.pid] = monotonic()
            elif process.parent_conn.poll(0):
                del self._pinged_at[process.pid]
                if process.parent_conn.recv():  # it has started to serve
                    self._served.add(process.pid)
                    self._num_failed_starts = 0
        except (OSError, EOFError):
            return False
        return monotonic() - self._pinged_at.get(process.pid, monotonic()) < self.config.timeout_worker_healthcheck


def make_worker_app() -> Any:
    """Create the application of a worker from the file named in the environment."""
    from dphmm.serve.endpoints import make_app

    configure_logging()
    disable_core_dumps()
    path = Path(os.environ[CONFIG_VARIABLE])
    config = RelayConfig.read(path)
    end = partial(_end_within, _SHUTDOWN_TIMEOUT_S, partial(os._exit, 0))
    with _name_file(path):
        return make_app(config, bool(os.environ.get(ACCEPT_VARIABLE)), end)


@check_arguments
def reload_relay(path: str | Path, accept_changes: bool = False) -> int:
    """Make the running relay of a file read it again, after checking that it can be served.

    Values ``env:NAME`` are not checked here, as the relay has its own environment. If it lacks a variable, it logs this
    and continues with its previous configuration.

    Parameters
    ----------
    path : str or Path
        TOML file of the relay.
    accept_changes : bool
        Whether the relay was started with this option.

    Returns
    -------
    int
        Number of the process.

    Raises
    ------
    DphmmError
        If the file cannot be served, or not without a restart, or no relay of it runs on this machine, or this relay
        was started with another file, such as a copy.
    """
    from dphmm.serve.sessions import check_sessions

    config = RelayConfig.read(Path(path))
    lock = find_relay(config)
    if lock.file and not _is_same_file(lock.file, path):
        raise ConfigurationError(
            f"the relay was started with another file, {lock.file}, which it would read again; restart the relay to "
            f"use {path}"
        )
    if lock.settings and lock.settings not in (_describe_fixed_settings(config, accepts) for accepts in (False, True)):
        raise _build_restart_error()
    if accept_changes and lock.settings == _describe_fixed_settings(config, False):
        raise ConfigurationError("--accept-changes requires a relay that was started with it; restart the relay")
    with _name_file(path):
        check_sessions(config, accept_changes)
    os.kill(lock.process, signal.SIGHUP)
    return lock.process


def _is_same_file(first: str | Path, second: str | Path) -> bool:
    try:
        return os.path.samefile(first, second)
    except OSError:  # one is missing
        return False


# ---- lock ------------------------------------------------------------------------------------------------------------


def get_lock_path(config: RelayConfig) -> Path:
    """Return the lock file of a relay.

    It is next to the store, however the path of the store is written. If the store is a server, it is in the runtime
    folder of the service or the user, and named by the port.

    Raises
    ------
    OutputError
        If there is no runtime folder that only this user can write.
    """
    if not is_server(config.store):
        return Path(f"{Path(config.store).resolve()}.lock")
    return _get_runtime_folder() / f"dphmm-relay-{config.address[1]}.lock"


def _get_runtime_folder() -> Path:
    """Return the runtime folder of systemd's service or session, or a private folder."""
    for variable in ("RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR"):
        folder = os.environ.get(variable, "").partition(":")[0]
        if folder:
            return Path(folder)
    if not hasattr(os, "getuid"):  # temporary folders are private there
        return Path(tempfile.gettempdir())
    private = Path(tempfile.gettempdir()) / f"dphmm-{os.getuid()}"
    try:
        private.mkdir(0o700, exist_ok=True)
        status = private.lstat()
    except OSError as problem:
        raise OutputError(f"{private} cannot be created ({problem.strerror}); set XDG_RUNTIME_DIR") from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise OutputError(
            f"{private} must be a folder that only this user can write; set XDG_RUNTIME_DIR to another one"
        )
    return private


def _open_lock(path: Path, flags: int) -> int:
    """Open a lock file that is neither a symbolic link nor another name of a file.

    Raises
    ------
    OSError
        If it cannot be opened, or is a link.
    """
    file = os.open(path, flags | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0), 0o600)
    status = os.fstat(file)
    if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
        return file
    os.close(file)
    raise OSError(errno.ELOOP, "it is a link")


def _describe_fixed_settings(config: RelayConfig, accept_changes: bool) -> str:
    """Return a digest of the settings that a relay keeps until it ends.

    It is a digest because the address of a store can be secret.
    """
    store = config.store if is_server(config.store) else str(Path(config.store).resolve())
    return hashlib.sha256(json.dumps([config.address, store, accept_changes]).encode()).hexdigest()


@contextmanager
def lock_relay(config: RelayConfig, accept_changes: bool = False, path: Path | None = None) -> Iterator[None]:
    """Hold the lock of a relay.

    The lock file contains the number of this process, a digest of the settings, and the path of the relay's file.

    Raises
    ------
    ConfigurationError
        If another relay holds it.
    OutputError
        If the file cannot be written, or is a link.
    """
    lock_path = get_lock_path(config)
    with _explain_refusal(lock_path):
        file = _open_lock(lock_path, os.O_RDWR | os.O_CREAT)
    try:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                other, _, _ = _read_lock(file)
                raise ConfigurationError(
                    f"{config.store if not is_server(config.store) else config.listen} is served by another relay, "
                    f"process {other}; end that process, or use another store or port"
                ) from None
        settings = _describe_fixed_settings(config, accept_changes)
        content = f"{os.getpid()}\n{settings}\n{path.absolute() if path else ''}"
        with _explain_refusal(lock_path):
            os.truncate(file, 0)
            os.pwrite(file, os.fsencode(content), 0)
        yield
    finally:
        os.close(file)


@contextmanager
def _explain_refusal(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise OutputError(f"{path} cannot be written ({problem.strerror}); check the file and its folder") from None


def _read_lock(file: int) -> tuple[str, str, str]:
    """Return the process, the digest of settings and the relay's file in a lock file."""
    process, _, rest = os.fsdecode(os.read(file, _MAX_LOCK_BYTES)).partition("\n")
    settings, _, path = rest.partition("\n")
    return process.strip(), settings.strip(), path


class RelayLock(NamedTuple):
    """Content of a lock that a relay holds. Locks of earlier versions lack the last fields."""

    process: int
    settings: str
    file: str


def find_relay(config: RelayConfig) -> RelayLock:
    """Return the content of the lock that a relay holds.

    Raises
    ------
    ConfigurationError
        If no process holds it, or the process belongs to another user than the lock file.
    """
    path = get_lock_path(config)
    with_none = ConfigurationError(
        f"no running relay holds {path}; start it with dphmm serve, or pass the file with which it was started"
    )
    try:
        file = _open_lock(path, os.O_RDONLY)
    except OSError:
        raise with_none from None
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        process, settings, started_with = _read_lock(file)
        # The owner of the file wrote the number. It must not make another user, such as root, signal other processes.
        if process.isdecimal() and _get_process_owner(int(process)) in (None, os.fstat(file).st_uid):
            return RelayLock(int(process), settings, started_with)
        raise ConfigurationError(f"{path} must contain a process of its owner, got {process!r}") from None
    finally:
        os.close(file)
    raise with_none


def _get_process_owner(process: int) -> int | None:
    """Return the user of a process, or None if the system does not show it."""
    try:
        return Path(f"/proc/{process}").stat().st_uid
    except OSError:
        return None


# ---- logs ------------------------------------------------------------------------------------------------------------


class _JsonFormatter(logging.Formatter):
    """Formats a log record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": f"{datetime.fromtimestamp(record.created, UTC):%Y-%m-%dT%H:%M:%SZ}",
            "level": record.levelname.lower(),
            "from": record.name,
            "message": _remove_traceback(" ".join(record.getMessage().split())),
        }
        if record.exc_info and record.exc_info[0] is not None:
            entry["error"] = record.exc_info[0].__name__  # without its message, which may contain a location
        return json.dumps(entry, ensure_ascii=False)


def _remove_traceback(message: str) -> str:
    """Replace a message that contains a traceback, which may contain a location."""
    return "an unexpected error" if message.startswith("Traceback") else message


def configure_logging() -> None:
    """Log JSON lines to standard error, without the messages of unexpected errors."""
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.INFO)
    logging.getLogger("dphmm").handlers = []  # of the command, which would print each warning a second time
    for name in ("httpx", "httpcore"):  # they log URLs with their queries
        logging.getLogger(name).setLevel(logging.WARNING)
