"""The `dphmm` command, one module per subject.

A subcommand ``name`` is a click command called ``name_command`` in the module of its subject, and a line in `COMMANDS`.
The module is imported only when one of its subcommands is run, so that asking for help costs no numerics.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import click

import dphmm
from dphmm.cli.console import OnceGroup, echo
from dphmm.errors import DphmmError

COMMANDS: Mapping[str, str] = {
    "demo": "Learn, release and draw in a synthetic city: no data, no download.",
    "hide": "Hide a home in one recording: exact elsewhere, nothing around it.",
    "data": "Fetch the public data sets that the papers use.",
    "learn": "Learn a Markov model of movement from trajectories.",
    "model": "What a model says, a map of it, and how well it fits.",
    "calibrate": "Which epsilon: from metres, odds or a day's spending, and what it achieves.",
    "release": "Release private locations for trajectories, or for a stream.",
    "serve": "Relay places from phones to recipients, live.",
    "session": "List, show and export durable sessions.",
    "batch": "Release every user of a data set, in files by user.",
    "certify": "The proof of releases that were made, for anyone to check.",
    "evaluate": "Compare policies, mechanisms and budgets on a data set.",
    "figures": "Compute the figures and claims of the four papers.",
    "synthesize": "People who do not exist, out of a model; compared with real ones.",
    "show": "Draw a release: a picture, or a map to open in a browser.",
    "basemap": "Make a small map of a region out of a large one, such as OpenStreetMap's.",
    "report": "One page about releases, for colleagues: before and after, promise, odds.",
    "audit": "What a policy exposes, what releases tell, what the noise really gives.",
    "attack": "What deployed ways of blurring give away: rounding, grids, offsets, noise.",
    "leak": "Temporal privacy leakage of a stream of releases.",
    "flows": "Where people go: visits, flows between areas, with a promise for whole people.",
    "counts": "Counts of people per place and time: release, repair, compare.",
    "landmarks": "Protect significant moments of a series or a trajectory.",
    "budget": "Budgets that keep temporal privacy leakage at a level.",
}
"""Subcommand → what `dphmm --help` says of it, without importing its module."""

FILES: Mapping[str, str] = {
    "learn": "models",
    "model": "models",
    "synthesize": "models",
    "batch": "release",
    "certify": "release",
    "session": "serve",
    "leak": "leakage",
    "budget": "leakage",
    "show": "release",
    "basemap": "release",
    "report": "release",
    "data": "demo",
}
"""Subcommand → the file of its subject, where that is called otherwise."""

EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130


@contextmanager
def plain_ends() -> Iterator[None]:
    """Turn every expected failure into one line on standard error and an exit code, without a traceback.

    A `DphmmError`, a wrong option, too little memory and a system that refuses end with exit code 2, an interrupt from
    the keyboard silently with 130.
    """
    try:
        yield
    except DphmmError as problem:
        echo(f"dphmm: {problem}", err=True)
    except click.exceptions.NoArgsIsHelpError:
        raise
    except click.ClickException as problem:
        context = getattr(problem, "ctx", None)
        path = context.command_path if context is not None else "dphmm"
        said = " ".join(problem.format_message().split())
        echo(f"{DphmmError(f'{path}: {said}')} See '{path} --help'.", err=True)
    except MemoryError:
        echo("dphmm: this needs more memory than there is; take less data, fewer states or fewer steps", err=True)
    except BrokenPipeError:  # click ends it: the reader has gone
        raise
    except OSError as problem:
        echo(f"dphmm: {DphmmError(f'the system refuses ({problem}); check space and permissions')}", err=True)
    except KeyboardInterrupt:
        raise click.exceptions.Exit(EXIT_INTERRUPTED) from None
    else:
        return
    raise click.exceptions.Exit(EXIT_BAD_INPUT)


def _module(name: str) -> str:
    return f"{__name__}.{FILES.get(name, name)}"


class Program(OnceGroup):
    """A group that imports a subcommand's module when it is run, and reports errors in one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click calls it so
        """The subcommands whose modules are there."""
        return [name for name in COMMANDS if find_spec(_module(name)) is not None]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The subcommand of that name, imported now."""
        if cmd_name not in self.list_commands(ctx):
            return None
        command: click.Command = getattr(importlib.import_module(_module(cmd_name)), f"{cmd_name}_command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of subcommands, from `COMMANDS` alone."""
        listed = [(name, COMMANDS[name]) for name in self.list_commands(ctx)]
        if listed:
            with formatter.section("Commands"):
                formatter.write_dl(listed)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse the arguments that stand before the subcommand."""
        with plain_ends():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand."""
        with plain_ends():
            return super().invoke(ctx)


@click.command(cls=Program, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--max-unpacked",
    metavar="SIZE",
    envvar="DPHMM_MAX_UNPACKED",
    help="What a packed file may unpack to, such as 8GB. [default: 50 times its size, 64 MiB to 4 GiB]",
)
@click.version_option(dphmm.__version__, prog_name="dphmm", message="%(prog)s %(version)s")
@click.pass_context
def main(ctx: click.Context, max_unpacked: str | None) -> None:
    """Private locations for people who move.

    Learn how people move, choose what must stay indistinguishable, and release a coordinate for every timestamp.
    Start with 'dphmm demo'.
    """
    from dphmm.cli.console import waits_shown
    from dphmm.tables.source import max_unpacked as limit

    ctx.with_resource(waits_shown())
    ctx.with_resource(limit(max_unpacked))
