"""A cache of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class BoundedCache(Generic[Key, Value]):
    """A mapping with a maximum number of entries. The oldest entry is evicted first.

    Parameters
    ----------
    max_size
        Maximum number of entries.
    """

    # No lock is needed: threads that share a cache at worst compute an entry twice or evict one too many. Copies are
    # shallow and independent, because copied engines continue with different keys. A pickled cache is empty: another
    # process computes its own entries.

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._entries: dict[Key, Value] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __copy__(self) -> BoundedCache[Key, Value]:
        copied: BoundedCache[Key, Value] = BoundedCache(self._max_size)
        copied._entries = dict(self._entries)
        return copied

    def __reduce__(self) -> tuple[type[BoundedCache[Key, Value]], tuple[int]]:
        return BoundedCache, (self._max_size,)

    def get(self, key: Key) -> Value | None:
        """Return the value of a key. None if there is none."""
        return self._entries.get(key)

    def put(self, key: Key, value: Value) -> Value:
        """Set the value of a key and return it."""
        if key not in self._entries and len(self._entries) >= self._max_size:
            keys = list(self._entries)  # other threads cannot change the copy during the iteration
            for oldest in keys[: len(keys) + 1 - self._max_size]:
                self._entries.pop(oldest, None)
        self._entries[key] = value
        return value

    def get_or_make(self, key: Key, make: Callable[[], Value]) -> Value:
        """Return the value of a key, computed if there is none."""
        value = self._entries.get(key)
        return self.put(key, make()) if value is None else value

    def clear(self) -> None:
        """Remove all entries."""
        self._entries.clear()
