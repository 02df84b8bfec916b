"""Progress on standard error, where that is a terminal."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import TypeVar

from dphmm.cli.terminal import echo

Item = TypeVar("Item")


def progress(items: Iterable[Item], what: str, total: int | None = None) -> Iterator[Item]:
    """The items, with a bar on standard error while they are gone through; silent where nobody watches.

    Parameters
    ----------
    items
        What is gone through.
    what
        The bar's caption.
    total
        How many items there are; left out, their own length.
    """
    if not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import track

    count = total if total is not None else (len(items) if isinstance(items, Sized) else None)
    yield from track(items, what, total=count, console=Console(stderr=True), transient=True)


class _Shown(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        echo(f"dphmm: {record.getMessage()}", err=True)


_WAITS = "dphmm.compilation", "dphmm.markov.days"
"""The loggers of what is done once and makes people wait."""


@contextmanager
def waits_shown() -> Iterator[None]:
    """Whoever waits for a loop to be compiled or days to be prepared is told so on standard error, on a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    shown, loggers = _Shown(), [logging.getLogger(name) for name in _WAITS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(shown)
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.removeHandler(shown)
            logger.setLevel(level)
