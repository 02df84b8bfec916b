"""Progress of jobs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

Item = TypeVar("Item")


class ProgressCallback(Protocol):
    """A function that returns the items of a job and may display its progress.

    Parameters
    ----------
    *args, **kwargs
        A protocol is not instantiated: any function with this signature implements it.
    """

    def __call__(self, items: Iterable[Item], what: str, total: int | None = None) -> Iterable[Item]:
        """Return the items.

        Parameters
        ----------
        items
            The items.
        what
            A description of the work.
        total
            The number of items, if they do not have a length.
        """


def suppress_progress(items: Iterable[Item], what: str, total: int | None = None) -> Iterable[Item]:  # noqa: ARG001 - a ProgressCallback
    """Return the items without displaying progress."""
    return items
