"""Inner loops compiled by numba where it is installed; callers have a plain form of each for where it is not."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from threading import Timer
from typing import Any

_PATIENCE_S = 1.0
"""Loops that were compiled before are loaded in less than this."""


@cache
def compiled(function: Callable[..., Any], reorder: bool = False) -> Callable[..., Any] | None:
    """The function compiled for this machine, without the interpreter's lock; None where numba is not installed.

    What was compiled is kept on disk, beside the code or where ``NUMBA_CACHE_DIR`` says, so that later processes need
    not wait: the first one does, for a second or so of a processor each. Whoever waits is told by this module's
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
    try:
        made = numba.njit(function, cache=True, **options)
    except RuntimeError:  # nowhere to keep it
        made = numba.njit(function, **options)

    known = False

    def call(*arguments: Any) -> Any:
        nonlocal known
        if known:
            return made(*arguments)
        notice = Timer(_PATIENCE_S, _say_so, [function.__name__])
        notice.daemon = True
        notice.start()
        try:
            return made(*arguments)
        finally:
            known = True
            notice.cancel()

    return call


def _say_so(name: str) -> None:
    logging.getLogger(__name__).info("compiling once for this machine, some seconds: %s; it is kept", name)
