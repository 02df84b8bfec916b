"""``dphmm serve``: the live relay between phones and recipients."""

from __future__ import annotations

from pathlib import Path

import click

from dphmm.cli.once import Once
from dphmm.cli.terminal import echo
from dphmm.errors import ConfigurationError


@click.command(cls=Once)
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option(
    "--demo", is_flag=True, help="Run a relay for people of a synthetic city, who post to it. No FILE is needed."
)
@click.option("--init", is_flag=True, help="Write FILE with new tokens, and print how to set up the apps.")
@click.option("--model", type=click.Path(path_type=Path), help="With --init: the model's file.")
@click.option("--user", "users", multiple=True, help="With --init: somebody whose phone posts; may be repeated.")
@click.option("--policy", default="utility:1km", show_default=True, help="With --init: as in 'dphmm release'.")
@click.option("--epsilon", default=0.5, show_default=True, help="With --init: the privacy budget of each release.")
@click.option("--url", help="With --init: the address at which phones reach the relay, such as https://relay.example.")
@click.option("--port", default=8787, show_default=True, help="With --demo: where it listens on this machine.")
@click.option("--workers", default=1, show_default=True, help="Processes; several need a PostgreSQL store.")
@click.option(
    "--accept-changes", is_flag=True, help="Let people's sessions go on under what FILE says now of releases."
)
@click.option("--overwrite", is_flag=True, help="With --init: replace FILE.")
def command(
    file: Path | None,
    demo: bool,
    init: bool,
    model: Path | None,
    users: tuple[str, ...],
    policy: str,
    epsilon: float,
    url: str | None,
    port: int,
    workers: int,
    accept_changes: bool,
    overwrite: bool,
) -> None:
    """Relay places from phones to recipients as FILE says, a TOML file; 'docs/how-to/serve.md' explains it.

    Phones post true places; each recipient gets what the policy allows. Nothing true is stored, logged or shown.
    """
    if demo == (file is not None):
        raise ConfigurationError("give a FILE, the relay's; or --demo without one")
    if file is None:
        from tempfile import TemporaryDirectory

        from dphmm.serve.demo import serve_demo

        with TemporaryDirectory(prefix="dphmm-demo-") as folder:
            for line in serve_demo(Path(folder), port=port):
                echo(line)
        return
    if init:
        from dphmm.serve.setup import write_relay

        for line in write_relay(file, model, users, policy, epsilon, url, overwrite):
            echo(line)
        return
    from dphmm.serve.server import serve

    serve(file, workers, accept_changes)
