"""``dphmm session``: what durable sessions hold and have spent."""

from __future__ import annotations

import json
from pathlib import Path

import click

from dphmm.cli.inputs import store_of
from dphmm.cli.once import OnceGroup
from dphmm.cli.summary import say
from dphmm.cli.terminal import cell, echo


@click.group(cls=OnceGroup)
def command() -> None:
    """List, show and export the durable sessions in a file that 'dphmm release --session' or a relay keeps.

    FILE may be the address of a PostgreSQL server, postgresql://user@host/database.
    """


@command.command("list")
@click.argument("file", callback=store_of)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def list_(file: str | Path, as_json: bool) -> None:
    """Every session of FILE: its name, its releases and what they cost."""
    from dphmm.jobs.sessions import read_sessions

    for content in read_sessions(file):
        name, cost = content.session.name, content.cost()
        if as_json:
            echo(json.dumps({"name": name, **cost}, ensure_ascii=False))
        else:
            echo(f"{cell(name)}\t{cost['releases']} releases\tepsilon {cost['epsilon']:g}")


@command.command()
@click.argument("file", callback=store_of)
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def show(file: str | Path, name: str, as_json: bool) -> None:
    """What the session NAME of FILE promised, may spend and has spent. Every record is checked on the way."""
    from dphmm.jobs.sessions import read_sessions

    (content,) = read_sessions(file, (name,))
    say(f"Session {name}", content.facts(), as_json)


@command.command()
@click.argument("file", callback=store_of)
@click.argument("names", nargs=-1)
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="A .jsonl of all records; with --model, "
    "a .gpkg, .geojson, .csv, .gpx or .parquet of places.",
)  # fmt: skip
@click.option("--model", type=click.Path(path_type=Path), help="The model of the sessions, to tell places and times.")
@click.option("--overwrite", is_flag=True, help="Replace an output that exists.")
def export(file: str | Path, names: tuple[str, ...], output: Path, model: Path | None, overwrite: bool) -> None:
    """Write the releases of the sessions NAMES of FILE, or of all.

    A line of the .jsonl is {"session": …, "slot": …, "query": …, "record": {…}}; slots are counted in steps of the
    model from 1970, UTC, where times were given.
    """
    from dphmm.jobs.sessions import export_sessions

    sessions = export_sessions(file, output, names, model, overwrite)
    count = sum(len(content.releases) for content in sessions)
    say("Exported", {"sessions": len(sessions), "releases": count, "output": str(output)}, False)
