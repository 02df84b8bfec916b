"""The command `dphmm`, also as ``python -m dphmm``.

An interrupt from the keyboard ends it with exit code 130 and without a traceback, whenever it comes: before the command
is read and after it is done at once, and in between through what the command has to clean up.
"""

from __future__ import annotations

import os
import signal
import sys

_INTERRUPTED = 130


def main() -> None:
    """Run the command that the arguments of the process say."""
    signal.signal(signal.SIGINT, _end)
    from dphmm.cli import main as command

    asked = False

    def interrupt(*_: object) -> None:
        nonlocal asked
        asked = True
        raise KeyboardInterrupt

    try:
        signal.signal(signal.SIGINT, interrupt)
        command(prog_name="dphmm")
    except BaseException:
        signal.signal(signal.SIGINT, _end)
        if asked:  # also where a library that was being imported made another error of it
            sys.exit(_INTERRUPTED)
        raise


def _end(*_: object) -> None:
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
