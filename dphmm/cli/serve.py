"""``dphmm serve``: the relay."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from dphmm.cli.console import PATH, OnceGroup, echo, escape_cell, print_json, show_progress
from dphmm.cli.shared_options import parse_kilometres, parse_seconds, print_town, refuse
from dphmm.errors import ConfigurationError

# Options of 'run' that have an effect on one of its three uses only.
_FOR_INIT = (
    *("init", "model", "bbox", "town", "users", "policy", "epsilon", "target_error", "horizon", "recipients", "url"),
    "overwrite",
)
_FOR_RELAY = ("workers", "accept_changes")

_MAX_ERROR_KM = 1000  # of `dphmm.serve.setup`, which help does not import
_RECIPIENT_KINDS = ("owntracks", "overland", "traccar", "home-assistant", "webhook", "mqtt")


class _ServeGroup(OnceGroup):
    """The commands of a relay, with 'run' as the default command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert 'run' unless another command or help is requested."""
        if not args or args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_ServeGroup)
def serve_command() -> None:
    """Relay locations from phones to recipients as configured in FILE.

    'dphmm serve FILE' runs the relay. Phones post true locations. Each recipient is sent what the policy allows,
    unless FILE declares it a recipient of true locations. True locations are not stored, logged or displayed. FILE is
    a TOML file; see 'docs/how-to/serve.md'.
    """


@serve_command.command("run")
@click.argument("file", type=PATH, required=False)
@click.option("--demo", is_flag=True, help="Run a demonstration with synthetic users. Takes no FILE.")
@click.option("--init", is_flag=True, help="Write FILE with new tokens and print the settings of apps.")
@click.option("--model", type=PATH, help="With --init: file of the model.")
@click.option("--bbox", nargs=4, type=float, metavar="S W N E", help="With --init: region, instead of a model.")
@click.option("--town", metavar="NAME", help="With --init: 20 km by 20 km around a town, instead of a model.")
@click.option("--user", "users", multiple=True, help="With --init: user with a phone that posts. Repeatable.")
@click.option("--policy", default="utility:1km", show_default=True, help="With --init: see 'dphmm release'.")
@click.option(
    "--epsilon",
    type=float,
    help="With --init: epsilon per day [default: 3], with --target-error per release.",
)
@click.option(
    "--target-error",
    metavar="LENGTH",
    help="With --init: target mean error of estimates, such as 500m. [default: from --epsilon]",
)
@click.option("--horizon", metavar="TIME", help="With --target-error: time per day with this error. [default: 24h]")
@click.option(
    "--recipient",
    "recipients",
    multiple=True,
    metavar="NAME:KIND:URL",
    help="With --init: recipient. Repeatable.",
)
@click.option("--url", help="With --init: address at which phones reach the relay, written to FILE.")
@click.option(
    "--port",
    default=8787,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="With --demo: port on this machine; 0 for a free one.",
)
@click.option(
    "--workers",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="Processes. More than one need PostgreSQL.",
)
@click.option("--accept-changes", is_flag=True, help="Continue sessions under the changed settings of FILE.")
@click.option("--overwrite", is_flag=True, help="With --init: replace FILE.")
def run(file: Path | None, model: Path | None, target_error: str | None, horizon: str | None, **options: Any) -> None:
    """Run the relay of FILE, or write FILE with --init. 'run' may be omitted."""
    if options["demo"] == (file is not None):
        raise ConfigurationError("exactly one of FILE and --demo is required")
    if file is None:
        refuse((*_FOR_INIT, *_FOR_RELAY), "cannot be combined with --demo")
    else:
        refuse(("port",), "requires --demo")
        if options["init"]:
            refuse(_FOR_RELAY, "cannot be combined with --init")
        else:
            refuse(_FOR_INIT, "requires --init")
    if file is None:
        from tempfile import TemporaryDirectory

        from dphmm.serve.demo import serve_demo

        with TemporaryDirectory(prefix="dphmm-demo-") as folder:
            _echo_lines(serve_demo(Path(folder), port=options["port"]))
        return
    if options["init"]:
        _parse_target(target_error, horizon, is_complete=not is_terminal())
        from dphmm.jobs.model.blank import build_blank_model
        from dphmm.serve.setup import write_relay

        region = {name: options[name] for name in ("bbox", "town") if options[name] is not None}
        if model is not None and region:
            raise ConfigurationError("--model cannot be combined with --bbox or --town: the model has a region")
        region_model = build_blank_model(**region).model if region else None
        print_town(options["town"])
        recipients = options["recipients"]
        if is_terminal():
            if target_error is None:
                echo("Mean error of the estimates that recipients see?")
                answer = click.prompt("Length such as 500m, or 'day' for what the budget of a day allows", "day")
                if answer != "day":
                    target_error = answer
                    horizon = horizon or click.prompt("Time per day with this error?", "24h")
            if options["url"] is None:
                echo("Address at which phones will reach the relay, such as https://relay.example?")
                options["url"] = click.prompt("Address (empty if it has none yet)", "", show_default=False) or None
            recipients = recipients or tuple(_prompt_recipients())
        settings = {name: options[name] for name in ("users", "policy", "epsilon", "url", "overwrite")}
        aim = _parse_target(target_error, horizon)
        _echo_lines(
            write_relay(file, model or region_model, **settings, **aim, recipients=recipients, watch=show_progress)
        )
        return
    from dphmm.serve.server import serve

    serve(file, options["workers"], options["accept_changes"])


@serve_command.command("add-device")
@click.argument("file", type=PATH)
@click.argument("user")
@click.option("--url", help="Address at which phones reach the relay. [default: url of FILE, else listen]")
def add_device(file: Path, user: str, url: str | None) -> None:
    """Add a device of a new or existing USER, and print the settings of its apps.

    It is added to FILE, or to the database if the store of FILE is PostgreSQL.
    """
    from dphmm.serve.setup import add_device

    _echo_lines(add_device(file, user, url))


@serve_command.command()
@click.argument("file", type=PATH)
@click.argument("user")
@click.option("--number", type=click.IntRange(1), help="Index among those of USER in FILE, then the database.")
@click.option("--page", is_flag=True, help="Replace the token of the page of USER instead, or add one.")
@click.option("--url", help="Address at which phones reach the relay. [default: url of FILE, else listen]")
def rotate(file: Path, user: str, number: int | None, page: bool, url: str | None) -> None:
    """Replace the token of a device of USER, and print the settings of its apps.

    It is in FILE, or in the database if the store of FILE is PostgreSQL. A token in the database needs no reload.
    """
    from dphmm.serve.setup import rotate_token

    _echo_lines(rotate_token(file, user, number, url, page))


@serve_command.command("prefer-device")
@click.argument("file", type=PATH)
@click.argument("user")
@click.argument("mqtt_device", required=False)
@click.option("--number", type=click.IntRange(0), help="Index of the device among those of USER; 0 for none.")
def prefer_device(file: Path, user: str, mqtt_device: str | None, number: int | None) -> None:
    """Use other devices of USER in the database of FILE only while this one is silent.

    MQTT_DEVICE is the third level of the topics at which the device posts at a broker.
    """
    from dphmm.serve.setup import prefer_device

    _echo_lines(prefer_device(file, user, number, mqtt_device))


@serve_command.command("add-recipient")
@click.argument("file", type=PATH)
@click.argument("name")
@click.argument("kind", type=click.Choice(_RECIPIENT_KINDS))
@click.argument("url")
@click.argument("keys", metavar="[KEY=VALUE]...", nargs=-1)
def add_recipient(file: Path, keys: tuple[str, ...], **values: str) -> None:
    """Add recipient NAME of messages of format KIND at address URL.

    It is added to FILE, or to the database if the store of FILE is PostgreSQL. It is sent nothing from before. KEY is
    users (separated by commas), precision, content, when_withheld or headers.NAME (with VALUE
    env:DPHMM_RECIPIENT_VARIABLE).
    """
    from dphmm.serve.setup import add_recipient

    _echo_lines(add_recipient(file, **values, keys=_parse_recipient_keys(keys)))


def _parse_target(target_error: str | None, horizon: str | None, is_complete: bool = True) -> dict[str, Any]:
    """Return the error target of a new relay.

    An incomplete one is asked for on the terminal later.
    """
    error_km = None if target_error is None else parse_kilometres(target_error, "--target-error")
    if error_km is not None and error_km >= _MAX_ERROR_KM:
        raise ConfigurationError(f"--target-error must be less than {_MAX_ERROR_KM}km, got {target_error}")
    hours = None if horizon is None else parse_seconds(horizon, "--horizon") / 3600
    if hours is not None and not 0 < hours <= 24:
        raise ConfigurationError(f"--horizon must be more than 0 and at most 24h, got {horizon}")
    if is_complete and hours is not None and error_km is None:
        raise ConfigurationError(f"--horizon requires --target-error, got --horizon {horizon} without it")
    return {"target_error_km": error_km, "hours": hours}


def _parse_recipient_keys(texts: Iterable[str]) -> dict[str, Any]:
    """Return the keys of a recipient from ``KEY=VALUE``, each of which occurs once."""
    keys: dict[str, Any] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        table, _, name = key.partition(".")
        target, name = (keys.setdefault("headers", {}), name) if table == "headers" else (keys, key)
        if not separator or (key not in ("users", "precision", "content", "when_withheld") and target is keys):
            raise ConfigurationError(
                "KEY=VALUE must have a KEY of users, precision, content, when_withheld or headers.NAME, "
                f"got {key if separator else text!r}"
            )
        if name in target:
            raise ConfigurationError(f"KEY=VALUE must contain each KEY once, got {key} twice")
        target[name] = value.split(",") if key == "users" else value
    return keys


@serve_command.command("pause-recipient")
@click.argument("file", type=PATH)
@click.argument("name")
def pause_recipient(file: Path, name: str) -> None:
    """Pause recipient NAME in the database of FILE until further notice.

    From then on, it is sent no timestep that touches the pause. 'dphmm serve resume-recipient' ends the pause.
    """
    from dphmm.serve.setup import pause_recipient

    _echo_lines(pause_recipient(file, name))


@serve_command.command("resume-recipient")
@click.argument("file", type=PATH)
@click.argument("name")
def resume_recipient(file: Path, name: str) -> None:
    """End the pause of recipient NAME in the database of FILE."""
    from dphmm.serve.setup import pause_recipient

    _echo_lines(pause_recipient(file, name, paused=False))


@serve_command.command("remove-recipient")
@click.argument("file", type=PATH)
@click.argument("name")
def remove_recipient(file: Path, name: str) -> None:
    """Remove recipient NAME from the database of FILE."""
    from dphmm.serve.setup import remove_recipient

    _echo_lines(remove_recipient(file, name))


@serve_command.command("recipients")
@click.argument("file", type=PATH)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def recipients(file: Path, as_json: bool) -> None:
    """List the recipients of FILE and of its database, without secrets."""
    from dphmm.serve.setup import list_recipients

    for recipient in list_recipients(file):
        if as_json:
            print_json(recipient)
            continue
        users = "all users" if recipient["users"] is None else ", ".join(recipient["users"])
        state = "paused" if recipient["paused"] else "active"
        columns = recipient["name"], recipient["kind"], recipient["host"], users, state, recipient["defined_in"]
        echo("\t".join(map(escape_cell, columns)))


@serve_command.command()
@click.argument("file", type=PATH)
@click.option("--accept-changes", is_flag=True, help="Required if the relay was started with it.")
def reload(file: Path, accept_changes: bool) -> None:
    """Make the running relay of FILE read it again. An invalid file changes nothing.

    FILE must be the one with which the relay was started, not a copy.
    If FILE contains env:NAME and the relay lacks this variable, the log of the relay states it, and nothing changes.
    """
    from dphmm.serve.server import reload_relay

    echo(f"process {reload_relay(file, accept_changes)} reads {file} again")


@serve_command.command("confirm-clock")
@click.argument("file", type=PATH)
def confirm_clock(file: Path) -> None:
    """Confirm this machine's clock after the relay of FILE was off for more than 30 days."""
    from dphmm.serve.setup import confirm_clock

    _echo_lines(confirm_clock(file))


@serve_command.command()
@click.argument("file", type=PATH)
@click.option("--older", required=True, metavar="TIME", help="Minimum age of removed records: 90d, 12h.")
def prune(file: Path, older: str) -> None:
    """Remove old release records of the relay of FILE. Settings and epsilon spent are kept.

    Records of a day, of a longer window of a limit and of 28 windows of a schedule are kept, too. Waiting messages of
    removed records are not sent. Released timesteps are not released again. An audit cannot replay removed records;
    make a copy with 'dphmm session export' first.
    """
    from dphmm.serve.setup import prune_relay

    _echo_lines(prune_relay(file, parse_seconds(older, "--older")))


def is_terminal() -> bool:
    """Return whether a person answers questions on standard input."""
    return sys.stdin.isatty()


def _prompt_recipients() -> Iterator[str]:
    while name := click.prompt("Name of a recipient of estimates (empty to continue)", "", show_default=False):
        kind = click.prompt("  kind", "owntracks", type=click.Choice(_RECIPIENT_KINDS))
        yield f"{name}:{kind}:{click.prompt('  address')}"


def _echo_lines(lines: Iterable[str]) -> None:
    for line in lines:
        echo(line)
