"""The command `dphmm`, also available as ``python -m dphmm``.

A keyboard interrupt ends it with exit code 130 and without a traceback. Before the command is parsed and after it has
finished, it ends immediately; in between, after the command has cleaned up. ``python -m dphmm`` ends by the signal,
which a shell reports as 130 too, after an interrupt of code that `exec` or `eval` compiled from a string.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

_INTERRUPTED_EXIT_CODE = 130
# Enough for most destructors to end; the interrupt of one that has not is repeated again.
_REPEAT_SECONDS = 0.01


def main() -> None:
    """Run the command in the arguments of the process."""
    signal.signal(signal.SIGINT, _end)
    from dphmm.cli import main as command

    is_interrupted = False

    def interrupt(*_: object) -> None:
        nonlocal is_interrupted
        is_interrupted = True
        raise KeyboardInterrupt

    report = sys.unraisablehook

    def repeat_interrupt(ignored: Any) -> None:
        # Python ignores exceptions in destructors and in callbacks of weak references and of compiled code. Imports and
        # the compiler run many of these, and the command would continue after an interrupt there.
        if ignored.exc_type is not KeyboardInterrupt:
            report(ignored)
            return
        # An alarm, as starting a thread takes so long that the interrupt could be repeated, and ignored, right here.
        signal.setitimer(signal.ITIMER_REAL, _REPEAT_SECONDS)

    sys.unraisablehook = repeat_interrupt
    try:
        signal.signal(signal.SIGALRM, interrupt)
        signal.signal(signal.SIGINT, interrupt)
        command(prog_name="dphmm")
    except BaseException:  # whatever ends the command
        signal.signal(signal.SIGINT, _end)
        signal.signal(signal.SIGALRM, _end)
        if is_interrupted:  # also if a library that was being imported raised another error instead
            sys.exit(_INTERRUPTED_EXIT_CODE)
        raise


def _end(*_: object) -> None:
    os._exit(_INTERRUPTED_EXIT_CODE)


if __name__ == "__main__":
    main()
