"""``dphmm session``: durable sessions of releases and of relays."""

from __future__ import annotations

from pathlib import Path

import click

from dphmm.cli.console import FILE, PATH, OnceGroup, echo, escape_cell, print_json, print_result
from dphmm.cli.shared_options import parse_store
from dphmm.errors import ConfigurationError
from dphmm.formatting import format_upper_bound


@click.group(cls=OnceGroup)
def session_command() -> None:
    """List, show and export durable sessions of 'dphmm release --session' or of a relay.

    FILE may be the address of a PostgreSQL server, postgresql://user@host/database.
    """


@session_command.command("list")
@click.argument("file", callback=parse_store)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def list_(file: str | Path, as_json: bool) -> None:
    """List the sessions of FILE with their timesteps, releases and epsilon spent."""
    from dphmm.jobs.release.stored import read_sessions

    for content in read_sessions(file):
        name = content.session.name
        cost = content.summarize_budget()
        if as_json:
            print_json({"name": name, **cost})
        else:
            sampled = cost["num_releases"]
            releases = "" if sampled is None else f"\t{sampled} releases"
            echo(
                f"{escape_cell(name)}\t{cost['num_timesteps']} timesteps{releases}\tepsilon "
                f"{format_upper_bound(cost['epsilon'])}"
            )


@session_command.command()
@click.argument("file", callback=parse_store)
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(file: str | Path, name: str, as_json: bool) -> None:
    """Show settings, limits and spending of session NAME of FILE, and verify its records."""
    from dphmm.jobs.release.stored import read_sessions

    (content,) = read_sessions(file, (name,))
    print_result(f"Session {name}", content.to_dict(), as_json)


@session_command.command()
@click.argument("file", callback=parse_store)
@click.argument("names", nargs=-1)
@click.option(
    "-o", "--output", required=True, type=FILE,
    help="A .jsonl; with --model also a table or .gpx; with --everything any name."
)  # fmt: skip
@click.option("--model", type=PATH, help="Model of the sessions, needed for locations and times.")
@click.option("--everything", is_flag=True, help="Write the whole store for 'dphmm session import', and close FILE.")
@click.option("--backup", is_flag=True, help="With --everything: FILE continues, and an import withholds.")
@click.option("--overwrite", is_flag=True, help="Replace an existing output.")
def export(file: str | Path, names: tuple[str, ...], output: Path, model: Path | None, **options: bool) -> None:
    """Write the releases of the sessions NAMES of FILE, or of all sessions.

    A line of the .jsonl is {"session": …, "slot": …, "query": …, "record": {…}}. With timestamps, slots are counted in
    steps of the model since 1970, UTC. See 'docs/how-to/serve_running.md' for --everything.
    """
    overwrite = options["overwrite"]
    if options["everything"]:
        from dphmm.release.session_transfer import export_store

        if names or model is not None or overwrite:
            raise ConfigurationError("--everything cannot be combined with NAMES, --model or --overwrite")
        result = export_store(file, output, options["backup"])
        counts = {"num_sessions": result.num_sessions, "num_timesteps": result.num_timesteps}
        print_result("Exported everything", {**counts, "output": output}, False)
        if result.is_move:
            echo("The store is closed and releases nothing more. Import the file, also to undo this.")
        return
    if options["backup"]:
        raise ConfigurationError("--backup requires --everything")
    from dphmm.jobs.release.stored import export_sessions

    sessions = export_sessions(file, output, names, model, overwrite)
    counts = {
        "num_sessions": len(sessions),
        "num_timesteps": sum(content.num_kept_timesteps for content in sessions),
        "num_releases": sum(content.num_kept_releases for content in sessions),
    }
    print_result("Exported", {**counts, "output": str(output)}, False)


@session_command.command("import")
@click.argument("file", type=PATH)
@click.argument("store", callback=parse_store)
@click.option("--withhold", is_flag=True, help="Accept a copy that may lack releases, and withhold a window.")
def import_(file: Path, store: str | Path, withhold: bool) -> None:
    """Continue FILE of 'dphmm session export --everything' as the new store STORE.

    STORE may be the one that was exported: this undoes the export. A backup, or another copy that may lack releases, is
    accepted with --withhold: no timestep is released from before the import, nor one that shares a window of a limit
    or schedule with those. End every other relay of these users first.
    """
    from dphmm.release.session_transfer import format_second, import_store

    result = import_store(file, store, withhold)
    counts = {"num_sessions": result.num_sessions, "num_timesteps": result.num_timesteps}
    print_result("Imported", {**counts, "store": _describe_store(store)}, False)
    if result.was_undone:
        echo("The export is undone, and the store continues.")
    if result.withheld_until is not None:
        until = format_second(result.withheld_until)
        echo(f"Nothing is released until a day, or one longer window of a limit or schedule, after {until}.")
        echo("Epsilon spent and estimates lack the releases that are not in FILE.")


@session_command.command()
@click.argument("store", callback=parse_store)
@click.option("--apply", "is_applied", is_flag=True, help="Copy and convert STORE. Otherwise only list the steps.")
def migrate(store: str | Path, is_applied: bool) -> None:
    """Convert STORE of an earlier version to the format of this one.

    'dphmm serve' does it at its start. A copy is made before.
    """
    from dphmm.release.session_transfer import migrate_store, plan_migration

    plan = migrate_store(store) if is_applied else plan_migration(store)
    if plan.store_format == plan.target:
        echo(f"{_describe_store(store)} has format {plan.store_format}, that of this version.")
        return
    echo(f"Format {plan.store_format} {'became' if is_applied else 'becomes'} {plan.target}:")
    for summary in plan.summaries:
        echo(f"  {summary}")
    for copy in plan.copies:
        echo(f"A copy of the earlier format is in {copy}.")
    if not is_applied:
        echo("Nothing was changed. Use --apply.")


@session_command.command()
@click.argument("store", callback=parse_store)
@click.argument("name")
@click.option("--model", type=PATH, required=True, help="Model of the session, which defines times.")
def rewind(store: str | Path, name: str, model: Path) -> None:
    """Let session NAME of STORE continue now after releases of a wrong future.

    These keep their values. No other timestep from before now is released, nor one that shares a window of a limit or
    schedule with those. Set this machine's clock first. A running relay continues with the corrected session.
    """
    from dphmm.jobs.release.stored import rewind_session
    from dphmm.release.session_transfer import format_second

    first = rewind_session(store, name, model)
    echo(f"{escape_cell(name)} continues with the timestep that ends at {format_second(first)}.")


def _describe_store(store: str | Path) -> str:
    return "the database" if isinstance(store, str) else str(store)
