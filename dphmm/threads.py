"""Linear algebra on one thread, for reproducible sums, and background threads."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeVar

T = TypeVar("T")

_guard = threading.Lock()
_inside = 0
_before: dict[str, int] = {}


@contextmanager
def limit_to_one_thread() -> Iterator[None]:
    """Run the linear algebra of the whole process on one thread within the block.

    A product that is distributed over threads adds its terms in another order, so its last bits depend on the number of
    threads, and thereby on the number of processors, of workers, and on other settings. In addition, thousands of small
    products lose more to waking threads than they gain: on two busy cores a factor of forty was measured.

    Most libraries have one limit for the process. Blocks may overlap, in one thread or several: each sets the limit,
    and the last one to end restores it. A library that is loaded within a block keeps its own number of threads, so
    load libraries before. A library that threadpoolctl does not know (Apple's Accelerate) is not limited.
    """
    global _inside
    libraries = _list_libraries(len(sys.modules))
    with _guard:
        num_threads = {library.filepath: library.num_threads for library in libraries}
        if not _inside:
            _before.clear()
        _inside += 1
        for library in libraries:
            _before.setdefault(library.filepath, num_threads[library.filepath])
            if num_threads[library.filepath] != 1:
                _set_threads(library, 1)
    try:
        yield
    finally:
        with _guard:
            _inside -= 1
            for library in libraries:
                if getattr(library, "threading_layer", None) == "openmp" and num_threads[library.filepath] != 1:
                    _set_threads(library, num_threads[library.filepath])  # OpenMP has a separate limit for each thread
            if not _inside:
                for library in _list_libraries(len(sys.modules)):
                    if _before.get(library.filepath, 1) != 1:
                        _set_threads(library, _before[library.filepath])


def count_idle_threads() -> int:
    """Return an upper bound on the number of idle threads of linear algebra.

    It holds outside of blocks of `limit_to_one_thread`. Only threads of OpenBLAS count, which ends them before the
    process is forked and creates them again.
    """
    openblas = (library for library in _list_libraries(len(sys.modules)) if library.internal_api == "openblas")
    return sum(library.num_threads - 1 for library in openblas if library.threading_layer == "pthreads")


def run_in_background(work: Callable[[], T]) -> Callable[[], T]:
    """Start work on a separate thread. The returned function waits for its result.

    The result is returned, or the exception raised. Time is gained while the work runs in loops without the
    interpreter's lock. An interrupt need not wait for the work: the thread ends with the process.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as problem:  # re-raised in the thread that waits for the result
            future.set_exception(problem)

    threading.Thread(target=run, daemon=True).start()
    return future.result


def _set_threads(library: Any, threads: int) -> None:
    """Set the threads of a library, no matter which thread set them before.

    threadpoolctl 3.8 would only let that thread change them.
    """
    library.set_num_threads(threads)
    if hasattr(library, "clear_controlling_thread"):
        library.clear_controlling_thread(force=True)
        library.set_num_threads(threads)
        library.clear_controlling_thread(force=True)


@lru_cache(maxsize=1)
def _list_libraries(loaded: int) -> list[Any]:  # noqa: ARG001 - the cache key: modules loaded since may add libraries
    """Return the libraries of linear algebra.

    Finding them takes a millisecond, which is longer than a short block, so the result is cached.
    """
    from threadpoolctl import ThreadpoolController

    return [library for library in ThreadpoolController().lib_controllers if library.user_api == "blas"]
