"""Inner loops compiled by numba where it is installed; callers have a plain form of each for where it is not."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock, Timer
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_PATIENCE_S = 1.0
"""Loops that were compiled before are loaded in less than this."""

_WORTH = 4_000_000
"""A loop is compiled once its plain form has worked on this many numbers."""
_CALL = 2_000
"""A call of the plain form, whatever its size, takes as long as this many numbers."""

# How many blocks of `compiled_at_first_call` are in progress.
_blocks, _guard = 0, Lock()


class Often(Generic[P, R]):
    """A function with two forms, which is compiled once it has been called often.

    Parameters
    ----------
    plain
        What is called at first, and always where numba is not installed.
    loop
        The same with the same arguments, written so that numba can compile it.
    work
        The arguments → how many numbers there are to do; left out, the length of the first.
    reorder
        As in `compiled`.
    """

    def __init__(
        self,
        plain: Callable[P, R],
        loop: Callable[..., Any],
        work: Callable[..., int] | None = None,
        reorder: bool = False,
    ) -> None:
        self.plain, self.loop, self.work, self.reorder = plain, loop, work or _length_of_first, reorder
        self._done = 0
        self._chosen: Callable[..., Any] | None = None

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> R:
        """What both forms give."""
        if self._chosen is None:
            self._done += _CALL + self.work(*arguments)
            if self._done <= _WORTH and not _blocks:
                return self.plain(*arguments, **named)
            self._chosen = compiled(self.loop, reorder=self.reorder) or self.plain
        found: R = self._chosen(*arguments, **named)
        return found


@contextmanager
def compiled_at_first_call() -> Iterator[None]:
    """Compile every loop at its first call within the block, for work of which the time is measured.

    Otherwise a loop runs in its plain form until it has been called often, so that the runtime of a call depends on the
    calls before it. Blocks may overlap, in one thread or several.
    """
    global _blocks
    with _guard:
        _blocks += 1
    try:
        yield
    finally:
        with _guard:
            _blocks -= 1


def often(
    loop: Callable[..., Any], work: Callable[..., int] | None = None, reorder: bool = False
) -> Callable[[Callable[P, R]], Often[P, R]]:
    """A decorator of a plain form, which becomes `Often` with a loop that can be compiled."""
    return lambda plain: Often(plain, loop, work, reorder)


def _length_of_first(*arguments: Any) -> int:
    return len(arguments[0])


@cache
def compiled(function: Callable[..., Any], reorder: bool = False) -> Callable[..., Any] | None:
    """The function compiled for this machine, without the interpreter's lock; None where numba is not installed.

    What was compiled is kept on disk, where ``NUMBA_CACHE_DIR`` says, beside the code, or in the user's cache, so that
    later processes need not wait: the first one does, for a second or so of a processor each. Where none of these can
    be written nothing is kept, and every process waits. The wait is announced by this module's
    logger, at the level INFO; the command shows it on a terminal.

    Parameters
    ----------
    function
        Written so that numba can compile it.
    reorder
        Whether sums may be reordered, so that they run in vectors. Their last digits then depend on the processor.
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
        made = numba.njit(function, cache=True, **options)
    except RuntimeError:  # nowhere to keep it
        kept = False
        made = numba.njit(function, **options)

    known = False

    def call(*arguments: Any) -> Any:
        nonlocal known
        if known:
            return made(*arguments)
        notice = Timer(_PATIENCE_S, _say_so, [function.__name__, kept])
        notice.daemon = True
        notice.start()
        try:
            return made(*arguments)
        finally:
            known = True
            notice.cancel()

    return call


def _say_so(name: str, kept: bool) -> None:
    if kept:
        logging.getLogger(__name__).info("compiling once for this machine, some seconds: %s; it is kept", name)
    else:
        logging.getLogger(__name__).info(
            "compiling, some seconds at every start: %s; to keep it, set NUMBA_CACHE_DIR to a writable folder",
            name,
        )
