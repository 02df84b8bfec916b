"""Who does the work: processes on this machine, or the workers of a Dask cluster."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Protocol, TypeVar

from dphmm.errors import ConfigurationError, EngineError, need

Work = TypeVar("Work")
Done = TypeVar("Done")

MOST_LOSSES = 3
"""How many times workers may die before the run gives up."""

_IN_FLIGHT_PER_WORKER = 4

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Engine(Protocol):
    """Whoever can run tasks and say which are finished, in any order."""

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
        if self.workers < 1:
            raise ConfigurationError(f"workers is {self.workers}; give at least 1")

    def run(self, function: Callable[[Work], int], work: Sequence[Work]) -> Iterator[int]:
        """Run a function on each piece of work; a worker that dies takes only its own unfinished pieces with it.

        Raises
        ------
        EngineError
            When workers keep dying.
        """
        if self.workers == 1:
            yield from map(function, work)
            return
        left = dict(enumerate(work))
        losses = 0
        while left:
            pool = worker_pool(min(self.workers, len(left)))
            futures = {pool.submit(function, piece): key for key, piece in left.items()}
            try:
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
            futures = client.map(function, list(work), pure=False, batch_size=64)
            for future in distributed.as_completed(futures, loop=client.loop):
                yield int(future.result())
        except distributed.KilledWorker:
            raise EngineError(
                f"workers of {self.address} keep dying; see that they have enough memory, then resume"
            ) from None
        finally:
            client.close()


def worker_pool(workers: int) -> ProcessPoolExecutor:
    """Processes that leave an interrupt from the keyboard to their parent, and use one thread each."""
    return ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_prepare_worker)


def _prepare_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in _THREADS:
        os.environ.setdefault(name, "1")
