"""Inner loops compiled by numba if it is installed, with a NumPy form as the fallback."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock, Timer
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

# The delay before a compilation is announced. Loading a loop from the cache takes less time.
_NOTICE_SECONDS = 1.0

# A loop is compiled once its plain form has processed this many numbers.
_MIN_WORK = 4_000_000
# The overhead of a call of the plain form, in numbers.
_WORK_PER_CALL = 2_000

# The number of active blocks of `compile_at_first_call`.
_num_blocks = 0
_guard = Lock()


class HotFunction(Generic[P, R]):
    """A function with a plain and a compiled form, which is compiled once it is called often.

    Parameters
    ----------
    plain
        The form that is called at first, and always if numba is not installed.
    loop
        The same function, written so that numba can compile it.
    work
        Function of the arguments that returns the number of numbers to process. Defaults to the length of the first.
    reorder
        Argument of `compile_function`.
    """

    def __init__(
        self,
        plain: Callable[P, R],
        loop: Callable[..., Any],
        work: Callable[..., int] | None = None,
        reorder: bool = False,
    ) -> None:
        self.plain = plain
        self.loop = loop
        self.work = work or _get_first_length
        self.reorder = reorder
        self._done = 0
        self._chosen: Callable[..., Any] | None = None

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> R:
        """Call the current form of the function."""
        if self._chosen is None:
            self._done += _WORK_PER_CALL + self.work(*arguments)
            if self._done <= _MIN_WORK and not _num_blocks:
                return self.plain(*arguments, **named)
            self._chosen = compile_function(self.loop, reorder=self.reorder) or self.plain
        result: R = self._chosen(*arguments, **named)
        return result


@contextmanager
def compile_at_first_call() -> Iterator[None]:
    """Compile every loop at its first call within the block, for timing experiments.

    Otherwise a loop runs in its plain form until it has been called often, so the runtime of a call depends on the
    calls before it. Blocks may overlap, in one thread or several.
    """
    global _num_blocks
    with _guard:
        _num_blocks += 1
    try:
        yield
    finally:
        with _guard:
            _num_blocks -= 1


def compile_if_hot(
    loop: Callable[..., Any], work: Callable[..., int] | None = None, reorder: bool = False
) -> Callable[[Callable[P, R]], HotFunction[P, R]]:
    """Decorate a plain form, which becomes a `HotFunction` with a loop that can be compiled."""
    return lambda plain: HotFunction(plain, loop, work, reorder)


def _get_first_length(*arguments: Any) -> int:
    return len(arguments[0])


@cache
def compile_function(function: Callable[..., Any], reorder: bool = False) -> Callable[..., Any] | None:
    """Compile a function for this machine. None if numba is not installed.

    The compiled function runs without the interpreter's lock. It is cached on disk, in ``NUMBA_CACHE_DIR``, next to the
    code, or in the user's cache, so that only the first process waits for the compilation, which takes about a second.
    If none of these folders is writable, every process waits. This module's logger announces the wait at the level
    INFO, and the command shows it on a terminal.

    Parameters
    ----------
    function
        Function written so that numba can compile it.
    reorder
        Whether sums may be reordered, so that they can be vectorised. Their last digits then depend on the processor.
    """
    try:
        import numba
    except ImportError:
        return None
    options: dict[str, Any] = {
        "nogil": True,
        "error_model": "numpy",
        "fastmath": {"reassoc", "nsz"} if reorder else False,
    }
    kept = True
    try:
        compiled_function = numba.njit(function, cache=True, **options)
    except RuntimeError:  # no writable folder for the cache
        kept = False
        compiled_function = numba.njit(function, **options)

    is_compiled = False

    def call(*arguments: Any) -> Any:
        nonlocal is_compiled
        if is_compiled:
            return compiled_function(*arguments)
        notice = Timer(_NOTICE_SECONDS, _log_compilation, [function.__name__, kept])
        notice.daemon = True
        notice.start()
        try:
            return compiled_function(*arguments)
        finally:
            is_compiled = True
            notice.cancel()

    return call


def _log_compilation(name: str, kept: bool) -> None:
    if kept:
        logging.getLogger(__name__).info("compiling %s once for this machine, which takes some seconds", name)
    else:
        logging.getLogger(__name__).info(
            "compiling %s, which takes some seconds at every start; set NUMBA_CACHE_DIR to a writable folder",
            name,
        )
