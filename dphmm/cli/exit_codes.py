"""Exit codes of the commands, and errors as lines on standard error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from dphmm.cli.console import print_error
from dphmm.errors import DphmmError

EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Print every expected failure as one line on standard error, and exit.

    The exit code is 2 for a `DphmmError`, an invalid option, too little memory and an error of the operating system. An
    interrupt from the keyboard exits silently with 130.
    """
    try:
        yield
    except DphmmError as problem:
        print_error(str(problem))
    except click.exceptions.NoArgsIsHelpError:
        raise
    except click.ClickException as problem:
        context = getattr(problem, "ctx", None)
        path = context.command_path if context is not None else "dphmm"
        message = " ".join(problem.format_message().split()).rstrip(".")
        print_error(f"{DphmmError(f'{path}: {message}')}. See '{path} --help'.")
    except MemoryError:
        print_error("not enough memory: use less data, fewer states or fewer timesteps")
    except BrokenPipeError:  # click handles it: standard output was closed
        raise
    except OSError as problem:
        print_error(str(DphmmError(f"the operating system reports {problem}: check disk space and permissions")))
    except KeyboardInterrupt:
        raise click.exceptions.Exit(EXIT_INTERRUPTED) from None
    else:
        return
    raise click.exceptions.Exit(EXIT_BAD_INPUT)
