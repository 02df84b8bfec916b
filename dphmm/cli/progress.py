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


@contextmanager
def compilation_shown() -> Iterator[None]:
    """Whoever waits until a loop is compiled is told so on standard error, where that is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    logger, shown = logging.getLogger("dphmm.compilation"), _Shown()
    level = logger.level
    logger.addHandler(shown)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(shown)
        logger.setLevel(level)
