"""Tasks that end their worker process, in their own module: a worker imports no tests."""

from __future__ import annotations

import os
import signal


def die_once(work: tuple[str, int]) -> int:
    """Kill this worker process at the first call for the third task."""
    marker, index = work
    if index == 2 and not os.path.exists(marker):
        open(marker, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return index


def die_always(work: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
