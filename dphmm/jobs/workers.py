"""Who does the work: processes on this machine, or the workers of a Dask cluster."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context, parent_process
from typing import Protocol, TypeVar

from dphmm.errors import ConfigurationError, EngineError, need
from dphmm.tables.unpacking import set_max_unpacked, unpacked_at_most
from dphmm.threads import one_thread

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
    """Whoever can run tasks and say which are finished, in any order.

    Each piece of work runs with linear algebra on one thread (`dphmm.threads.one_thread`), so that its numbers do not
    depend on who runs it, nor beside how many others.
    """

    def run(self, function: Callable[[Work], int], work: Sequence[Work]) -> Iterator[int]:
        """Run a function on each piece of work, and yield what it returns as pieces are finished."""


class Processes:
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

    def run(self, function: Callable[[Work], int], work: Sequence[Work]) -> Iterator[int]:
        """Run a function on each piece of work; a worker that dies takes only its own unfinished pieces with it.

        Raises
        ------
        EngineError
            When workers keep dying.
        """
        function = partial(_on_one_thread, function)
        if self.workers == 1:
            yield from map(function, work)
            return
        left = dict(enumerate(work))
        losses = 0
        while left:
            pool = worker_pool(min(self.workers, len(left)))
            try:
                futures = {pool.submit(function, piece): key for key, piece in left.items()}
                for future in as_completed(futures):
                    result = future.result()
                    del left[futures[future]]
                    yield result
            except BrokenProcessPool:
                losses += 1
                if losses > MOST_LOSSES:
                    raise EngineError(
                        f"worker processes died {losses} times; see that they have enough memory, then resume"
                    ) from None
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def stream(self, function: Callable[[Work], Done], work: Iterable[Work]) -> Iterator[Done]:
        """Results of work as they come, with a few pieces handed out at a time: memory stays flat.

        Raises
        ------
        EngineError
            When a worker dies.
        """
        function = partial(_on_one_thread, function)
        if self.workers == 1:
            yield from map(function, work)
            return
        pool = worker_pool(self.workers)
        waiting: set[Future[Done]] = set()
        try:
            for piece in work:
                waiting.add(pool.submit(function, piece))
                while len(waiting) >= self.workers * _IN_FLIGHT_PER_WORKER:
                    done = next(as_completed(waiting))
                    waiting.remove(done)
                    yield done.result()
            for done in as_completed(waiting):
                yield done.result()
        except BrokenProcessPool:
            raise EngineError("a worker process died; see that it has enough memory, then resume") from None
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


class DaskCluster:
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

    def run(self, function: Callable[[Work], int], work: Sequence[Work]) -> Iterator[int]:
        """Run a function on each piece of work; Dask gives those of a lost worker to another.

        Raises
        ------
        EngineError
            When the scheduler cannot be reached, or workers keep dying.
        """
        distributed = need("distributed", "dask")
        try:
            client = distributed.Client(self.address, timeout=self.timeout_seconds, set_as_default=False)
        except (OSError, ValueError) as problem:  # TimeoutError is an OSError
            reason = " ".join(str(problem).split()) or type(problem).__name__
            raise EngineError(f"scheduler {self.address} cannot be reached ({reason}); check its address") from None
        try:
            futures = client.map(partial(_on_one_thread, function), list(work), pure=False, batch_size=64)
            for future in distributed.as_completed(futures, loop=client.loop):
                yield int(future.result())
        except distributed.KilledWorker:
            raise EngineError(
                f"workers of {self.address} keep dying; see that they have enough memory, then resume"
            ) from None
        finally:
            client.close()


def _on_one_thread(function: Callable[[Work], Done], piece: Work) -> Done:
    """The function of a piece of work, on whichever machine, process or thread this is."""
    import scipy.linalg  # noqa: F401 - with numpy's, all the linear algebra that a piece of work may call

    with one_thread():
        return function(piece)


def worker_pool(workers: int) -> ProcessPoolExecutor:
    """Processes that leave an interrupt from the keyboard to their parent, and end when it does, however that is."""
    # Linux counts the end of the thread that began a process as its parent's; only the main one lasts for certain.
    lasting = threading.current_thread() is threading.main_thread()
    return ProcessPoolExecutor(
        workers,
        mp_context=get_context("spawn"),
        initializer=_prepare_worker,
        initargs=(os.getpid(), lasting, unpacked_at_most()),
    )


def _prepare_worker(parent: int, lasting: bool, unpacked: int | None) -> None:
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
    """Wait for the parent's end, which closes its side of a pipe, and end with it: nobody is left to tell results."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
