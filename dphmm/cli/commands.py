"""The `dphmm` command and its table of subcommands.

A subcommand ``name`` is a click command called ``name_command`` in the module of its subject, and a line in `COMMANDS`.
The module is imported only when one of its subcommands runs. The help of `dphmm` therefore imports no numerics.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import click

import dphmm
from dphmm.cli.console import OnceGroup
from dphmm.cli.exit_codes import exit_on_error

# Subcommand → its line in ``dphmm --help``, which does not import its module.
COMMANDS: Mapping[str, str] = {
    "demo": "Learn, release and plot in a synthetic city; no data or download.",
    "hide": "Hide a home in a recording and keep the rest of it exact.",
    "data": "Fetch the public data sets that the papers use.",
    "learn": "Learn a Markov model of movement from trajectories.",
    "model": "Describe, plot and evaluate models.",
    "calibrate": "Find the epsilon for an error, odds or a daily budget.",
    "release": "Release private locations for trajectories or a stream.",
    "serve": "Relay locations from phones to recipients, live.",
    "session": "List, show and export durable sessions.",
    "batch": "Release every user of a data set, one file per user.",
    "explore": "Show a policy at work, on a page on this machine.",
    "certify": "Write a certificate of existing releases for verification.",
    "evaluate": "Compare policies, mechanisms and budgets on a data set.",
    "figures": "Compute the figures and claims of the four papers.",
    "synthesize": "Generate synthetic users from a model; compare them with real ones.",
    "show": "Plot releases as a picture or an interactive map.",
    "basemap": "Extract a small map of a region, such as from OpenStreetMap.",
    "report": "Write a page about releases: map, guarantee and disclosure.",
    "audit": "Audit policies, releases and noise.",
    "attack": "Attack obfuscation methods in common use: rounding, grids, noise.",
    "leak": "Compute the temporal privacy leakage of a stream of releases.",
    "flows": "Release visits and flows between areas with user-level privacy.",
    "counts": "Release, repair and compare counts per location and time.",
    "landmarks": "Protect significant timestamps of a series or a trajectory.",
    "budget": "Compute budgets that bound the temporal privacy leakage.",
}

# Subcommand → the module of its subject, if its name differs.
FILES: Mapping[str, str] = {
    "learn": "model",
    "synthesize": "model",
    "certify": "certificate",
    "evaluate": "evaluation",
    "figures": "evaluation",
    "leak": "leakage",
    "budget": "leakage",
    "show": "release",
    "basemap": "release",
    "report": "release",
    "data": "demo",
}


def _get_module_name(name: str) -> str:
    return f"{__package__}.{FILES.get(name, name)}"


class Program(OnceGroup):
    """A group that imports a subcommand's module when it runs, and prints errors on one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the subcommands with an installed module."""
        return [name for name in COMMANDS if find_spec(_get_module_name(name)) is not None]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a subcommand."""
        if cmd_name not in self.list_commands(ctx):
            return None
        command: click.Command = getattr(importlib.import_module(_get_module_name(cmd_name)), f"{cmd_name}_command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of subcommands from `COMMANDS`, without importing them."""
        lines = [(name, COMMANDS[name]) for name in self.list_commands(ctx)]
        if lines:
            with formatter.section("Commands"):
                formatter.write_dl(lines)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse the arguments before the subcommand."""
        with exit_on_error():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand."""
        with exit_on_error():
            return super().invoke(ctx)


@click.command(cls=Program, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--max-unpacked",
    metavar="SIZE",
    envvar="DPHMM_MAX_UNPACKED",
    help="Largest unpacked size of a file. [default: 50 × its size, 64 MiB to 4 GiB]",
)
@click.version_option(dphmm.__version__, prog_name="dphmm", message="%(prog)s %(version)s")
@click.pass_context
def main(ctx: click.Context, max_unpacked: str | None) -> None:
    """Location privacy for trajectories, with formal guarantees.

    Learn a model of movement, choose which locations must stay indistinguishable, and release a location for every
    timestamp. Start with 'dphmm demo'.
    """
    from dphmm.cli.console import show_log_messages
    from dphmm.tables.source import max_unpacked as limit

    ctx.with_resource(show_log_messages())
    ctx.with_resource(limit(max_unpacked))
