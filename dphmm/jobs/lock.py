"""One run at a time in a folder."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import weakref
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from dphmm.errors import OutputError

LOCK = "run.lock"
"""The file that a run holds locked in its folder. It stays when the run has ended; the lock does not."""

_HELD = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)

_FAR = 1 << 30  # on Windows a locked byte cannot be read, so one beyond the text is locked


class FolderLock:
    """A folder held by this run alone, until it is released or the process ends, however that is.

    The lock is the operating system's, on the file `LOCK`, so that a killed run leaves none behind. It works over
    network file systems where their locks do.

    Parameters
    ----------
    folder
        A folder that exists.

    Raises
    ------
    OutputError
        When another run holds the folder, naming it, or the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / LOCK
        try:
            held = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as problem:
            raise OutputError(f"{path} cannot be written ({problem.strerror}); check the folder") from None
        # Closed with this object at the latest, without a warning: who forgets to release only holds on for longer.
        self.release = weakref.finalize(self, os.close, held)
        try:
            _lock(held)
        except OSError as problem:
            holder = _holder(path)
            self.release()
            if problem.errno not in _HELD:
                raise OutputError(
                    f"{path} cannot be locked ({problem.strerror}); use a folder on a local disk"
                ) from None
            raise OutputError(f"{folder} is held by {holder}; wait until it ends, or end it and resume") from None
        about = {"process": os.getpid(), "host": socket.gethostname(), "since": f"{datetime.now(UTC):%Y-%m-%dT%H:%MZ}"}
        os.truncate(held, 0)
        os.write(held, json.dumps(about).encode())


def _holder(path: Path) -> str:
    with suppress(OSError, ValueError, KeyError, TypeError):
        about = json.loads(path.read_text(encoding="utf-8"))
        return f"process {about['process']:d} on {about['host']!s} since {about['since']!s}"
    return "another run"


if sys.platform == "win32":
    import msvcrt

    def _lock(held: int) -> None:
        os.lseek(held, _FAR, os.SEEK_SET)
        msvcrt.locking(held, msvcrt.LK_NBLCK, 1)
        os.lseek(held, 0, os.SEEK_SET)
else:
    import fcntl

    def _lock(held: int) -> None:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
