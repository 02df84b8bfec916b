"""``dphmm serve``, the live relay, and ``dphmm session``, what durable sessions hold and have spent."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from dphmm.cli.console import FILE, PATH, OnceGroup, cell, echo, progress, say, say_json
from dphmm.cli.inputs import seconds_of, store_of
from dphmm.errors import ConfigurationError

_KINDS = ("owntracks", "overland", "traccar", "home-assistant", "webhook", "mqtt")


class _Serving(OnceGroup):
    """The commands of a relay, of which 'run' may be left out."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Click's, with 'run' where another command or help is not asked for."""
        if not args or args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Serving)
def serve_command() -> None:
    """Relay places from phones to recipients as FILE says, a TOML file; 'docs/how-to/serve.md' explains it.

    'dphmm serve FILE' runs the relay. Phones post true places; each recipient gets what the policy allows, but
    for those who are to get true places. Nothing true is stored, logged or shown.
    """


@serve_command.command("run")
@click.argument("file", type=PATH, required=False)
@click.option(
    "--demo", is_flag=True, help="Run a relay for people of a synthetic city, who post to it. No FILE is needed."
)
@click.option("--init", is_flag=True, help="Write FILE with new tokens, and print how to set up the apps.")
@click.option("--model", type=PATH, help="With --init: the model's file.")
@click.option("--bbox", nargs=4, type=float, metavar="S W N E", help="With --init: the region, in place of a model.")
@click.option("--town", metavar="NAME", help="With --init: 20 km by 20 km around a town, in place of a model.")
@click.option("--user", "users", multiple=True, help="With --init: a person whose phone posts; may be repeated.")
@click.option("--policy", default="utility:1km", show_default=True, help="With --init: as in 'dphmm release'.")
@click.option(
    "--epsilon",
    type=float,
    help="With --init: the privacy budget of a day (default: 3); with --metres, of a release (default: found).",
)
@click.option(
    "--metres",
    type=float,
    help="With --init: how near recipients are to know where people are, on average, at whatever cost a day. "
    "[default: as near as epsilon 3 in any 24 hours lets them]",
)
@click.option("--hours", type=float, help="With --metres: for how many hours of a day. [default: 24]")
@click.option(
    "--recipient",
    "recipients",
    multiple=True,
    metavar="NAME:KIND:URL",
    help="With --init: a recipient; may be repeated.",
)
@click.option("--url", help="With --init: the address at which phones reach the relay, such as https://relay.example.")
@click.option("--port", default=8787, show_default=True, help="With --demo: where it listens on this machine.")
@click.option("--workers", default=1, show_default=True, help="Processes; several need a PostgreSQL store.")
@click.option(
    "--accept-changes", is_flag=True, help="Let people's sessions go on under what FILE says now of releases."
)
@click.option("--overwrite", is_flag=True, help="With --init: replace FILE.")
def run(file: Path | None, model: Path | None, metres: float | None, hours: float | None, **given: Any) -> None:
    """Run the relay of FILE, or with --init write one; 'run' may be left out."""
    if given["demo"] == (file is not None):
        raise ConfigurationError("give a FILE, the relay's; or --demo without one")
    if file is None:
        from tempfile import TemporaryDirectory

        from dphmm.serve.demo import serve_demo

        with TemporaryDirectory(prefix="dphmm-demo-") as folder:
            _lines(serve_demo(Path(folder), port=given["port"]))
        return
    if given["init"]:
        from dphmm.jobs.models import blank_model
        from dphmm.serve.setup import write_relay

        region = {name: given[name] for name in ("bbox", "town") if given[name] is not None}
        if model is not None and region:
            raise ConfigurationError("--model has a region; leave out --bbox and --town")
        alone = blank_model(**region).model if region else None
        recipients = given["recipients"]
        if sys.stdin.isatty() and None in (metres, hours):
            echo("To how many metres may the people you tell know where you are?")
            asked = click.prompt("Metres, or 'day' for what a promise of a day allows", "day")
            if asked != "day":
                metres = click.FLOAT(asked)
                hours = click.prompt("For how many hours of a day?", 24.0)
            recipients = recipients or tuple(_asked_recipients())
        said = {name: given[name] for name in ("users", "policy", "epsilon", "url", "overwrite")}
        aim = {"metres": metres, "hours": hours, "recipients": recipients}
        _lines(write_relay(file, model or alone, **said, **aim, watch=progress))
        return
    from dphmm.serve.server import serve

    serve(file, given["workers"], given["accept_changes"])


@serve_command.command("add-device")
@click.argument("file", type=PATH)
@click.argument("user")
@click.option("--url", help="The address at which phones reach the relay, such as https://relay.example.")
def add_device(file: Path, user: str, url: str | None) -> None:
    """Add a device of USER, somebody new or not, to FILE, and print how to set up its apps."""
    from dphmm.serve.setup import add_device

    _lines(add_device(file, user, url))


@serve_command.command()
@click.argument("file", type=PATH)
@click.argument("user")
@click.option("--number", type=click.IntRange(1), help="Which of USER's devices, in FILE's order.")
@click.option("--url", help="The address at which phones reach the relay, such as https://relay.example.")
def rotate(file: Path, user: str, number: int | None, url: str | None) -> None:
    """Give a device of USER in FILE a new token, and print how to set up its apps; the old one opens nothing."""
    from dphmm.serve.setup import rotate_token

    _lines(rotate_token(file, user, number, url))


@serve_command.command()
@click.argument("file", type=PATH)
@click.option("--accept-changes", is_flag=True, help="For a relay that was started with --accept-changes.")
def reload(file: Path, accept_changes: bool) -> None:
    """Have the relay of FILE that runs on this machine read it again; a file that cannot be served changes nothing."""
    from dphmm.serve.server import reload_relay

    echo(f"process {reload_relay(file, accept_changes)} reads {file} again")


@serve_command.command()
@click.argument("file", type=PATH)
@click.option("--older", required=True, metavar="TIME", help="Remove what is older than this: 90d, 12h.")
def prune(file: Path, older: str) -> None:
    """Remove the records of what the relay of FILE released long ago; promises and what was spent stay.

    Moments that were released stay so. What is removed no audit can replay: 'dphmm session export' keeps a copy.
    """
    from dphmm.serve.setup import prune_relay

    _lines(prune_relay(file, seconds_of(older, "--older")))


def _asked_recipients() -> Iterator[str]:
    while name := click.prompt("Who may see the estimates? A name, or nothing to go on", "", show_default=False):
        kind = click.prompt("  by", "owntracks", type=click.Choice(_KINDS))
        yield f"{name}:{kind}:{click.prompt('  at the address')}"


def _lines(lines: Iterable[str]) -> None:
    for line in lines:
        echo(line)


@click.group(cls=OnceGroup)
def session_command() -> None:
    """List, show and export the durable sessions in a file that 'dphmm release --session' or a relay keeps.

    FILE may be the address of a PostgreSQL server, postgresql://user@host/database.
    """


@session_command.command("list")
@click.argument("file", callback=store_of)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def list_(file: str | Path, as_json: bool) -> None:
    """Every session of FILE: its name, its releases and what they cost."""
    from dphmm.jobs.stored_releases import read_sessions

    for content in read_sessions(file):
        name, cost = content.session.name, content.cost()
        if as_json:
            say_json({"name": name, **cost})
        else:
            echo(f"{cell(name)}\t{cost['releases']} releases\tepsilon {cost['epsilon']:g}")


@session_command.command()
@click.argument("file", callback=store_of)
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def show(file: str | Path, name: str, as_json: bool) -> None:
    """What the session NAME of FILE promised, may spend and has spent. Every record is checked on the way."""
    from dphmm.jobs.stored_releases import read_sessions

    (content,) = read_sessions(file, (name,))
    say(f"Session {name}", content.facts(), as_json)


@session_command.command()
@click.argument("file", callback=store_of)
@click.argument("names", nargs=-1)
@click.option(
    "-o", "--output", required=True, type=FILE, help="A .jsonl of all records; with --model, "
    "a .gpkg, .geojson, .csv, .gpx or .parquet of places."
)  # fmt: skip
@click.option("--model", type=PATH, help="The model of the sessions, to tell places and times.")
@click.option("--overwrite", is_flag=True, help="Replace an output that exists.")
def export(file: str | Path, names: tuple[str, ...], output: Path, model: Path | None, overwrite: bool) -> None:
    """Write the releases of the sessions NAMES of FILE, or of all.

    A line of the .jsonl is {"session": …, "slot": …, "query": …, "record": {…}}; slots are counted in steps of the
    model from 1970, UTC, where times were given.
    """
    from dphmm.jobs.stored_releases import export_sessions

    sessions = export_sessions(file, output, names, model, overwrite)
    count = sum(len(content.releases) for content in sessions)
    say("Exported", {"sessions": len(sessions), "releases": count, "output": str(output)}, False)
