"""Linear algebra on one thread, where sums must not depend on how many there are; and work beside other work."""

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
def one_thread() -> Iterator[None]:
    """Linear algebra of the whole process on one thread, for as long as any block like this one runs.

    A product that is shared out over threads adds its terms in another order, so that its last bits depend on the
    number of threads: on that of processors, of workers, and of whatever else set it. And thousands of small products
    in a row lose more to waking threads than they gain: on two busy cores fortyfold was measured.

    Most libraries have one limit for the process. Blocks may overlap, in one thread or several: each sets it, the last
    to end takes it back. Libraries that are loaded within a block keep the number of threads that they come with, so
    load them before. What is no library to threadpoolctl (Apple's Accelerate) stays as it is.
    """
    global _inside
    libraries = _libraries(len(sys.modules))
    with _guard:
        own = {library.filepath: library.num_threads for library in libraries}
        if not _inside:
            _before.clear()
        _inside += 1
        for library in libraries:
            _before.setdefault(library.filepath, own[library.filepath])
            if own[library.filepath] != 1:
                _set(library, 1)
    try:
        yield
    finally:
        with _guard:
            _inside -= 1
            for library in libraries:
                if getattr(library, "threading_layer", None) == "openmp" and own[library.filepath] != 1:
                    _set(library, own[library.filepath])  # which has a limit for each thread
            if not _inside:
                for library in _libraries(len(sys.modules)):
                    if _before.get(library.filepath, 1) != 1:
                        _set(library, _before[library.filepath])


def waiting_threads() -> int:
    """At most how many threads wait to share in linear algebra, outside of blocks of `one_thread`.

    Those of OpenBLAS alone are counted, which ends them before the process is copied (by ``fork``) and makes them anew.
    """
    openblas = (one for one in _libraries(len(sys.modules)) if one.internal_api == "openblas")
    return sum(one.num_threads - 1 for one in openblas if one.threading_layer == "pthreads")


def beside(work: Callable[[], T]) -> Callable[[], T]:
    """Begin some work on a thread of its own; what is returned waits for it, and returns or raises what it did.

    It gains time as far as it runs in loops without the interpreter's lock. An interrupt need not wait for
    it: the thread ends with the process.
    """
    found: Future[T] = Future()

    def run() -> None:
        try:
            found.set_result(work())
        except BaseException as problem:  # is raised where it is waited for
            found.set_exception(problem)

    threading.Thread(target=run, daemon=True).start()
    return found.result


def _set(library: Any, threads: int) -> None:
    """Set the threads of a library, whichever thread set them before: threadpoolctl 3.8 would leave it to that one."""
    library.set_num_threads(threads)
    if hasattr(library, "clear_controlling_thread"):
        library.clear_controlling_thread(force=True)
        library.set_num_threads(threads)
        library.clear_controlling_thread(force=True)


@lru_cache(maxsize=1)
def _libraries(loaded: int) -> list[Any]:  # noqa: ARG001 - what there is to find depends on what was loaded since
    """Those of linear algebra. Finding them takes a millisecond, more than a short block, so it is done once."""
    from threadpoolctl import ThreadpoolController

    return [found for found in ThreadpoolController().lib_controllers if found.user_api == "blas"]
