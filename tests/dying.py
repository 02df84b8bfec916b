"""Work that ends the process that does it. A file of its own: a worker imports it, and no test with it."""

from __future__ import annotations

import os
import signal


def die_once(work: tuple[str, int]) -> int:
    """Kill this worker process the first time that it meets the third piece of work."""
    marker, index = work
    if index == 2 and not os.path.exists(marker):
        open(marker, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return index


def die_always(work: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
