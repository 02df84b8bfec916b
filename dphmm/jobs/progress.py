"""Who is shown how far a job has come."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

Item = TypeVar("Item")


class Watch(Protocol):
    """Hands on the items that a job goes through, and may show how far it has come.

    Parameters
    ----------
    *args, **kwargs
        A protocol is not instantiated: any function with this signature is one.
    """

    def __call__(self, items: Iterable[Item], what: str, total: int | None = None) -> Iterable[Item]:
        """The items.

        Parameters
        ----------
        items
            What is gone through.
        what
            What is being done.
        total
            How many items there are, where they do not say so themselves.
        """


def unwatched(items: Iterable[Item], what: str, total: int | None = None) -> Iterable[Item]:  # noqa: ARG001 - a Watch
    """The items, without any show of progress."""
    return items
