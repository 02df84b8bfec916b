"""Workers: processes on this machine, or a Dask cluster."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import lru_cache, partial
from itertools import chain, islice
from multiprocessing import get_context, parent_process
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, TypeVar
from uuid import uuid4

from dphmm.errors import ConfigurationError, EngineError, import_library
from dphmm.processes import ScriptlessContext
from dphmm.tables.source import get_max_unpacked, set_max_unpacked
from dphmm.threads import count_idle_threads, limit_to_one_thread

Work = TypeVar("Work")
Done = TypeVar("Done")

# The largest number of processes; more are probably a mistake.
MAX_WORKERS = 1024

# The number of times that workers may die before the run is aborted.
MAX_WORKER_LOSSES = 3

_IN_FLIGHT_PER_WORKER = 4

# A supervisor restarts a lost scheduler within seconds.
_RESTART_SECONDS = 60.0

# Linux's PR_SET_PDEATHSIG: the signal that a process receives when the thread that started it ends.
_SET_PARENT_DEATH_SIGNAL = 1


class Engine(Protocol):
    """Runs tasks and yields their results in any order.

    Each task runs with linear algebra on one thread (`dphmm.threads.limit_to_one_thread`). Its numbers therefore depend
    neither on the worker nor on the number of workers. At most a few tasks are taken ahead of the finished ones, so
    tasks that are created on demand need little memory. The function is sent to each worker once. It contains
    everything that the tasks share, such as a model, but no locations.
    """

    def start_workers(self) -> AbstractContextManager[None]:
        """Return a context in which the workers run from its beginning.

        The workers start while the caller still prepares the tasks.
        """

    def run_in_groups(self, function: Callable[[Work], Done], work: Iterable[Work]) -> Iterator[list[Done]]:
        """Run a function on each task, and yield the results that are finished at each request."""

    def run(self, function: Callable[[Work], Done], work: Iterable[Work]) -> Iterator[Done]:
        """Run a function on each task, and yield one result after another, in any order."""
        return chain.from_iterable(self.run_in_groups(function, work))

    def run_in_order(self, function: Callable[[Work], Done], work: Iterable[Work]) -> Iterator[Done]:
        """Run a function on each task, and yield the results in the order of the tasks.

        A result is kept until those of all earlier tasks are available.
        """
        early = dict[int, Done]()
        next_number = 0
        for number, result in self.run(partial(_keep_number, function), enumerate(work)):
            early[number] = result
            while next_number in early:
                yield early.pop(next_number)
                next_number += 1


class Processes(Engine):
    """Processes on this machine.

    Parameters
    ----------
    workers
        The number of processes. Defaults to one per processor. With one, everything happens in this process.

    Raises
    ------
    ConfigurationError
        If it is less than one or larger than `MAX_WORKERS`.
    """

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers if workers is not None else os.cpu_count() or 1
        if not 1 <= self.workers <= MAX_WORKERS:
            raise ConfigurationError(f"workers must be in [1, {MAX_WORKERS}], got {self.workers}")
        self._pool: ProcessPoolExecutor | None = None

    @contextmanager
    def start_workers(self) -> Iterator[None]:
        """As `Engine.start_workers`. A nested context starts no workers."""
        if self.workers == 1 or self._pool is not None:
            yield
            return
        self._pool = start_worker_pool(self.workers)
        try:
            yield
        finally:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def run_in_groups(self, function: Callable[[Work], Done], work: Iterable[Work]) -> Iterator[list[Done]]:
        """Run a function on each task.

        Unfinished tasks of a worker that dies are repeated by another.

        Raises
        ------
        EngineError
            If workers keep dying, or a function or class of the tasks is defined in the caller's script, which new
            processes do not run.
        """
        function = partial(_run_single_threaded, function)
        tasks = iter(work)
        num_losses = 0
        if self.workers == 1:
            yield from ([function(task)] for task in tasks)
            return
        waiting: dict[Future[Done], Work] = {}
        with self.start_workers(), TemporaryDirectory(prefix="dphmm-") as folder:
            path = Path(folder, "function")
            path.write_bytes(pickle.dumps(function))
            while True:
                for task in islice(tasks, self.workers * _IN_FLIGHT_PER_WORKER - len(waiting)):
                    waiting[self._submit(path, task)] = task
                if not waiting:
                    return
                finished = wait(waiting, return_when=FIRST_COMPLETED).done
                if any(map(_is_lost, finished)):
                    finished = wait(waiting).done
                    num_losses += 1
                    if num_losses > MAX_WORKER_LOSSES:
                        raise EngineError(f"worker processes died {num_losses} times: provide more memory, then resume")
                    tasks = chain([waiting[future] for future in finished if _is_lost(future)], tasks)
                    self._restart()
                if done := [future.result() for future in finished if future.exception() is None]:
                    yield done
                for future in finished:
                    del waiting[future]
                    if not _is_lost(future):
                        future.result()

    def _submit(self, function: Path, task: Work) -> Future[Any]:
        assert self._pool is not None
        try:
            # The worker itself restores the task. If it cannot, it raises an error, and is not lost.
            return self._pool.submit(_run_pickled, function, pickle.dumps(task))
        except BrokenProcessPool as problem:  # the earlier tasks report it
            lost: Future[Any] = Future()
            lost.set_exception(problem)
            return lost

    def _restart(self) -> None:
        assert self._pool is not None
        self._pool.shutdown(wait=True)
        self._pool = start_worker_pool(self.workers)


def _is_lost(future: Future[Any]) -> bool:
    return isinstance(future.exception(), BrokenProcessPool)


class DaskCluster(Engine):
    """The workers of a Dask scheduler.

    The run's folder must have the same path on all of them.

    Parameters
    ----------
    address
        The address of the scheduler, such as ``tcp://10.0.0.5:8786``.
    timeout_seconds
        The timeout of the connection.

    Raises
    ------
    MissingDependencyError
        If distributed is not installed.
    """

    def __init__(self, address: str, timeout_seconds: float = 10.0) -> None:
        import_library("distributed", "dask")
        self.address = address
        self.timeout_seconds = timeout_seconds
        self._client: Any = None

    @contextmanager
    def start_workers(self) -> Iterator[None]:
        """As `Engine.start_workers`. Connects to the scheduler.

        Raises
        ------
        EngineError
            If the scheduler cannot be reached.
        """
        if self._client is not None:
            yield
            return
        self._connect(self.timeout_seconds)
        try:
            yield
        finally:
            self._close()

    def _connect(self, timeout_seconds: float) -> None:
        distributed = import_library("distributed", "dask")
        try:
            self._client = distributed.Client(self.address, timeout=timeout_seconds, set_as_default=False)
        except (OSError, ValueError) as problem:  # TimeoutError is an OSError
            reason = " ".join(str(problem).split()) or type(problem).__name__
            raise EngineError(f"scheduler {self.address} cannot be reached ({reason}): check its address") from None

    def _close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def run_in_groups(self, function: Callable[[Work], Done], work: Iterable[Work]) -> Iterator[list[Done]]:
        """Run a function on each task.

        Dask repeats the tasks of a lost worker on another. If the scheduler is lost and restarted within a minute, the
        unfinished tasks are submitted again.

        Raises
        ------
        EngineError
            If the scheduler cannot be reached, or workers keep dying.
        """
        tasks = iter(work)
        num_losses = 0
        with self.start_workers():
            while (unfinished := (yield from self._run_until_lost(function, tasks))) is not None:
                num_losses += 1
                if num_losses > MAX_WORKER_LOSSES:
                    raise EngineError(f"scheduler {self.address} was lost {num_losses} times: check its log")
                tasks = chain(unfinished, tasks)
                self._close()
                self._connect(max(self.timeout_seconds, _RESTART_SECONDS))

    def _run_until_lost(
        self, function: Callable[[Work], Done], tasks: Iterator[Work]
    ) -> Generator[list[Done], None, list[Work] | None]:
        """Run tasks as `run_in_groups`. Return the unfinished ones if the scheduler is lost."""
        distributed = import_library("distributed", "dask")
        client = self._client
        # The scheduler sends a plugin to each of its workers once, also to those that join or restart later.
        name = f"dphmm-{uuid4().hex}"
        plugin = distributed.WorkerPlugin()
        plugin.function = partial(_run_single_threaded, function)
        client.register_plugin(plugin, name=name)
        waiting = distributed.as_completed(loop=client.loop)
        unfinished: dict[str, Work] = {}
        is_lost = False
        try:
            while not is_lost:
                try:
                    threads = sum(client.ncores().values())  # of the current workers
                except OSError:
                    is_lost = True
                    break
                for task in islice(tasks, max(max(threads, 1) * _IN_FLIGHT_PER_WORKER - len(unfinished), 0)):
                    with warnings.catch_warnings():
                        # Dask advises to let workers load large input. They do not see the data.
                        warnings.filterwarnings("ignore", "Sending large graph", UserWarning)
                        future = client.submit(_run_shared, name, task, pure=False)
                    unfinished[future.key] = task
                    waiting.add(future)
                if not unfinished:
                    return None
                done = []
                problems = list[Exception]()
                for future in waiting.next_batch():  # a future is pending again if its worker died after finishing it
                    try:
                        done.append(future.result())
                    except distributed.CancelledError:
                        is_lost = True
                        continue
                    except Exception as problem:  # a task can raise any error
                        problems.append(problem)
                    del unfinished[future.key]
                if done:
                    yield done
                if problems and isinstance(problems[0], distributed.KilledWorker):
                    raise EngineError(
                        f"workers of {self.address} keep dying: provide more memory, then resume"
                    ) from None
                if problems:
                    raise problems[0]
            return list(unfinished.values())
        finally:
            if not is_lost:
                with suppress(OSError):
                    client.unregister_worker_plugin(name)


@lru_cache(maxsize=1)
def _load_function(path: Path) -> Callable[[Any], Any]:
    """Load a run's function, once in each worker process."""
    function: Callable[[Any], Any] = pickle.loads(path.read_bytes())
    return function


def _run_shared(name: str, task: Any) -> Any:
    """Run the function that `DaskCluster` sent to this worker under a name."""
    return import_library("distributed", "dask").get_worker().plugins[name].function(task)


def _run_pickled(path: Path, pickled_task: bytes) -> Any:
    try:
        function = _load_function(path)
        task = pickle.loads(pickled_task)
    except AttributeError as problem:
        raise EngineError(
            f"tasks must be defined in a module, not in the script: worker processes do not run it ({problem})"
        ) from None
    return function(task)


def _keep_number(function: Callable[[Work], Done], numbered: tuple[int, Work]) -> tuple[int, Done]:
    number, task = numbered
    return number, function(task)


def _run_single_threaded(function: Callable[[Work], Done], task: Work) -> Done:
    """Run a task on any machine, process or thread, with linear algebra on one thread."""
    import scipy.linalg  # noqa: F401 - loads, with NumPy's, all the linear algebra of tasks

    with limit_to_one_thread():
        return function(task)


def start_worker_pool(workers: int) -> ProcessPoolExecutor:
    """Start processes that ignore keyboard interrupts and end with their parent.

    If it is safe, they are forks of this process with everything loaded and prepared, and start immediately. Otherwise
    they are new processes, which load the modules of their tasks again. Neither runs the script of the caller.
    """
    # For Linux, a process loses its parent when the thread that started it ends. Only the main thread lasts for
    # certain.
    is_main_thread = threading.current_thread() is threading.main_thread()
    forks = is_main_thread and _can_fork()
    pool = ProcessPoolExecutor(
        workers,
        mp_context=get_context("fork") if forks else ScriptlessContext(),
        initializer=_prepare_worker,
        initargs=(os.getpid(), is_main_thread, get_max_unpacked()),
    )
    with warnings.catch_warnings():
        if forks:  # Python 3.12 and later warn of any other thread
            warnings.simplefilter("ignore", DeprecationWarning)
        for _ in range(workers):
            pool.submit(int)
    return pool


def _can_fork() -> bool:
    """Return whether no other thread can hold a lock, which would never be released in a fork.

    The threads of linear algebra end before a fork, and the thread of Arrow's memory waits.
    """
    if sys.platform != "linux" or threading.active_count() > 1:
        return False
    try:
        names = [name.read_bytes().strip() for name in Path("/proc/self/task").glob("*/comm")]
    except OSError:
        return False
    return 0 < len(names) <= 1 + names.count(b"jemalloc_bg_thd") + count_idle_threads()


def _prepare_worker(parent: int, is_main_thread: bool, unpacked: int | None) -> None:
    gc.freeze()  # keeps the memory of the parent shared for longer
    set_max_unpacked(unpacked)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if is_main_thread and sys.platform == "linux":
        _request_death_signal()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if os.getppid() != parent and sys.platform != "win32":  # the parent ended before it was watched
        os._exit(1)


def _request_death_signal() -> None:
    """Let the system end this process with its parent.

    If it cannot, `_end_with_parent` does it slightly later.
    """
    import ctypes

    try:
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    except (OSError, AttributeError):
        return


def _end_with_parent() -> None:
    """Wait until the parent ends, which closes its side of a pipe, and end.

    The results are not needed any more.
    """
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
