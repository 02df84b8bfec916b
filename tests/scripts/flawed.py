"""Readers with every flaw that the fuzzer detects, in a module that its processes import."""

from __future__ import annotations

import ctypes
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from dphmm.errors import DphmmError
from scripts.fuzzing.attempt import ACCEPTED, REFUSED, Target


def _raise_two_lines() -> None:
    class BrokenError(DphmmError):
        def __str__(self) -> str:
            return "two\nlines"

    raise BrokenError("two lines")


FLAWS = {
    "taken": lambda: None,
    "refused": lambda: (_ for _ in ()).throw(DphmmError("one line")),
    "a traceback": lambda: {}["no such key"],
    "a warning": lambda: warnings.warn("unexpected", stacklevel=1),
    "two lines": _raise_two_lines,
    "memory": lambda: bytearray(8 << 30),
}
KINDS = {
    "taken": ACCEPTED,
    "refused": REFUSED,
    "a traceback": "KeyError in the fuzzer",
    "a warning": "UserWarning in the fuzzer",
    "two lines": "a refusal of 9 characters in 2 lines",
    "memory": "MemoryError in the fuzzer",
}


def make_targets() -> dict[str, Target]:
    """Return a reader with every flaw except two, and one reader for each of those."""

    def raise_flaw(path: Path) -> None:
        FLAWS[path.read_text()]()

    def make_target(use: Callable[[Path], object]) -> Target:
        return Target(lambda: [("flaw", b"")], lambda data, rng: rng.choice(list(FLAWS)).encode(), use)

    return {
        "flawed": make_target(raise_flaw),
        "crashing": make_target(lambda path: ctypes.string_at(0)),
        "hanging": make_target(lambda path: time.sleep(60)),
    }
