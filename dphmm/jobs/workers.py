"""Who does the work: processes on this machine, or the workers of a Dask cluster."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import chain, islice
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any, Protocol, TypeVar

from dphmm.errors import ConfigurationError, EngineError, need
from dphmm.tables.source import set_max_unpacked, unpacked_at_most
from dphmm.threads import one_thread, waiting_threads

Work = TypeVar("Work")
Done = TypeVar("Done")

MOST_WORKERS = 1024
"""More processes than this are likelier a slip than a machine."""

MOST_LOSSES = 3
"""How many times workers may die before the run gives up."""

_IN_FLIGHT_PER_WORKER = 4

_DIE_WITH_PARENT = 1
"""Linux's PR_SET_PDEATHSIG: which signal a process gets when the thread that began it ends."""


class Engine(Protocol):
    """What runs tasks and says which are finished, in any order.

    Each piece of work runs with linear algebra on one thread (`dphmm.threads.one_thread`), so that its numbers do not
    depend on who runs it, nor beside how many others. No more than a few pieces are taken ahead of what is finished, so
    that work which is made as it is asked for needs little memory.
    """

    def begun(self) -> AbstractContextManager[None]:
        """A block in which the workers are there from its beginning on, not only from the first piece of work on.

        So they start while the caller still prepares what there is to do.
        """

    def groups(self, function: Callable[[Work], Done], work: Iterable[Work]) -> Iterator[list[Done]]:
        """Run a function on each piece of work, and yield all that is finished by the time that more is asked for."""

    def run(self, function: Callable[[Work], Done], work: Iterable[Work]) -> Iterator[Done]:
        """The same, one result after another."""
        return chain.from_iterable(self.groups(function, work))


class Processes(Engine):
    """Processes on this machine.

    Parameters
    ----------
    workers
        How many; left out, one per processor. With one, everything happens in this process.

    Raises
    ------
    ConfigurationError
        For fewer than one.
    """

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers if workers is not None else os.cpu_count() or 1
        if not 1 <= self.workers <= MOST_WORKERS:
            raise ConfigurationError(f"workers is {self.workers}; give 1 to {MOST_WORKERS}")
        self._pool: ProcessPoolExecutor | None = None

    @contextmanager
    def begun(self) -> Iterator[None]:
        """As `Engine.begun`; a block within another begins no worker."""
        if self.workers == 1 or self._pool is not None:
            yield
            return
        self._pool = worker_pool(self.workers)
        try:
            yield
        finally:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def groups(self, function: Callable[[Work], Done], work: Iterable[Work]) -> Iterator[list[Done]]:
        """Run a function on each piece of work; what a worker that dies had not finished, another does.

        Raises
        ------
        EngineError
            When workers keep dying.
        """
        function, pieces, losses = partial(_on_one_thread, function), iter(work), 0
        if self.workers == 1:
            yield from ([function(piece)] for piece in pieces)
            return
        waiting: dict[Future[Done], Work] = {}
        with self.begun():
            while True:
                for piece in islice(pieces, self.workers * _IN_FLIGHT_PER_WORKER - len(waiting)):
                    waiting[self._submitted(function, piece)] = piece
                if not waiting:
                    return
                finished = wait(waiting, return_when=FIRST_COMPLETED).done
                if any(map(_is_lost, finished)):
                    finished, losses = wait(waiting).done, losses + 1
                    if losses > MOST_LOSSES:
                        raise EngineError(
                            f"worker processes died {losses} times; see that they have enough memory, then resume"
                        )
                    pieces = chain([waiting[future] for future in finished if _is_lost(future)], pieces)
                    self._begin_anew()
                if done := [future.result() for future in finished if future.exception() is None]:
                    yield done
                for future in finished:
                    del waiting[future]
                    if not _is_lost(future):
                        future.result()

    def _submitted(self, function: Callable[[Work], Done], piece: Work) -> Future[Done]:
        assert self._pool is not None
        try:
            return self._pool.submit(function, piece)
        except BrokenProcessPool as problem:  # of which the pieces before this one tell
            lost: Future[Done] = Future()
            lost.set_exception(problem)
            return lost

    def _begin_anew(self) -> None:
        assert self._pool is not None
        self._pool.shutdown(wait=True)
        self._pool = worker_pool(self.workers)


def _is_lost(future: Future[Any]) -> bool:
    return isinstance(future.exception(), BrokenProcessPool)


class DaskCluster(Engine):
    """The workers of a Dask scheduler, which must see the run's folder under the same path.

    Parameters
    ----------
    address
        The scheduler's, such as ``tcp://10.0.0.5:8786``.
    timeout_seconds
        How long to wait for it.

    Raises
    ------
    MissingDependencyError
        Without distributed.
    """

    def __init__(self, address: str, timeout_seconds: float = 10.0) -> None:
        need("distributed", "dask")
        self.address = address
        self.timeout_seconds = timeout_seconds
        self._client: Any = None

    @contextmanager
    def begun(self) -> Iterator[None]:
        """As `Engine.begun`: the scheduler is asked whether it is there.

        Raises
        ------
        EngineError
            When it cannot be reached.
        """
        if self._client is not None:
            yield
            return
        distributed = need("distributed", "dask")
        try:
            self._client = distributed.Client(self.address, timeout=self.timeout_seconds, set_as_default=False)
        except (OSError, ValueError) as problem:  # TimeoutError is an OSError
            reason = " ".join(str(problem).split()) or type(problem).__name__
            raise EngineError(f"scheduler {self.address} cannot be reached ({reason}); check its address") from None
        try:
            yield
        finally:
            self._client.close()
            self._client = None

    def groups(self, function: Callable[[Work], Done], work: Iterable[Work]) -> Iterator[list[Done]]:
        """Run a function on each piece of work; Dask gives those of a lost worker to another.

        Raises
        ------
        EngineError
            When the scheduler cannot be reached, or workers keep dying.
        """
        distributed = need("distributed", "dask")
        function, pieces = partial(_on_one_thread, function), iter(work)
        with self.begun():
            client, waiting = self._client, distributed.as_completed(loop=self._client.loop)
            while True:
                threads = sum(client.ncores().values())  # of the workers that are there now
                for piece in islice(pieces, max(max(threads, 1) * _IN_FLIGHT_PER_WORKER - waiting.count(), 0)):
                    waiting.add(client.submit(function, piece, pure=False))
                if waiting.is_empty():
                    return
                finished = waiting.next_batch()
                done, problems = [], list[Exception]()
                for future in finished:  # one may be pending again by now: its worker died after it was finished
                    try:
                        done.append(future.result())
                    except Exception as problem:
                        problems.append(problem)
                if done:
                    yield done
                if problems and isinstance(problems[0], distributed.KilledWorker):
                    raise EngineError(
                        f"workers of {self.address} keep dying; see that they have enough memory, then resume"
                    ) from None
                if problems:
                    raise problems[0]


def _on_one_thread(function: Callable[[Work], Done], piece: Work) -> Done:
    """The function of a piece of work, on whichever machine, process or thread this is."""
    import scipy.linalg  # noqa: F401 - with numpy's, all the linear algebra that a piece of work may call

    with one_thread():
        return function(piece)


def worker_pool(workers: int) -> ProcessPoolExecutor:
    """Processes that leave an interrupt from the keyboard to their parent, and end when it does, however that is.

    They begin now. Where that is sound they are copies of this process, with all that it has loaded and prepared, and
    there at once; otherwise each is a new one, which loads everything itself.
    """
    # Linux counts the end of the thread that began a process as its parent's; only the main one lasts for certain.
    lasting = threading.current_thread() is threading.main_thread()
    copied = lasting and _may_be_copied()
    pool = ProcessPoolExecutor(
        workers,
        mp_context=get_context("fork" if copied else "spawn"),
        initializer=_prepare_worker,
        initargs=(os.getpid(), lasting, unpacked_at_most()),
    )
    with warnings.catch_warnings():
        if copied:  # from Python 3.12 on any thread at all is warned of
            warnings.simplefilter("ignore", DeprecationWarning)
        for _ in range(workers):
            pool.submit(int)
    return pool


def _may_be_copied() -> bool:
    """Whether no thread but this one can be in the middle of something, which a copy of the process would never end.

    Those of linear algebra end themselves before a copy is made, and the one of Arrow's memory waits.
    """
    if sys.platform != "linux" or threading.active_count() > 1:
        return False
    try:
        names = [name.read_bytes().strip() for name in Path("/proc/self/task").glob("*/comm")]
    except OSError:
        return False
    return 0 < len(names) <= 1 + names.count(b"jemalloc_bg_thd") + waiting_threads()


def _prepare_worker(parent: int, lasting: bool, unpacked: int | None) -> None:
    gc.freeze()  # what it has of its parent's stays shared memory for longer
    set_max_unpacked(unpacked)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if lasting and sys.platform == "linux":
        _ask_to_die_with_parent()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if os.getppid() != parent and sys.platform != "win32":  # it ended before anybody watched
        os._exit(1)


def _ask_to_die_with_parent() -> None:
    """Have the system end this process at once; where it cannot, `_end_with_parent` does, a moment later."""
    import ctypes

    try:
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    except (OSError, AttributeError):
        return


def _end_with_parent() -> None:
    """Wait for the parent's end, which closes its side of a pipe, and end with it: no one is left to take results."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
