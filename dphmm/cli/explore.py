"""``dphmm explore``: a page on this machine that shows a policy at work."""

from __future__ import annotations

from pathlib import Path

import click

from dphmm.cli.console import PATH, Once, echo
from dphmm.cli.shared_options import print_town

# As in `dphmm.jobs.explore.explored_user` and `dphmm.serve.explore_page`, which help does not import.
_NUM_STEPS = 48
_MAX_STEPS = 2_000
_PORT = 8788


@click.command(cls=Once)
@click.argument("model", required=False, type=click.Path())
@click.option("--town", metavar="NAME", help="Region instead of MODEL: 20 km by 20 km around a town.")
@click.option("--bbox", nargs=4, type=float, metavar="S W N E", help="Region instead of MODEL, in degrees.")
@click.option("--data", multiple=True, type=click.Path(), help="Your recording, which stays here. Repeatable.")
@click.option("--user", help="User of --data, or a name for it if it has none. [default: the first one]")
@click.option(
    "--steps",
    default=_NUM_STEPS,
    show_default=True,
    type=click.IntRange(1, _MAX_STEPS),
    help="Number of timesteps, the last ones of --data.",
)
@click.option("--basemap", type=PATH, help="Background map of 'dphmm basemap'.")
@click.option("--seed", type=click.IntRange(0), help="Seed of the sampled user. [default: 1]")
@click.option("--port", default=_PORT, show_default=True, type=click.IntRange(0, 65535), help="Port on this machine.")
@click.option("--no-browser", is_flag=True, help="Print the address only.")
def explore_command(
    model: str | None,
    town: str | None,
    bbox: tuple[float, float, float, float] | None,
    data: tuple[str, ...],
    user: str | None,
    steps: int,
    basemap: Path | None,
    seed: int | None,
    port: int,
    no_browser: bool,
) -> None:
    """Show a policy at work, on a page on this machine.

    Choose a policy and find exposed states before anything is released.

    MODEL is a file of 'dphmm learn' or 'dphmm model blank'. Without MODEL and region, the page shows an invented city.
    The page is served on 127.0.0.1 only and loads nothing from other hosts. Without --data, a user is sampled from the
    model.
    """
    from dphmm.serve.explore_page import explore

    server = explore(
        model,
        town=town,
        bbox=bbox,
        data=data or None,
        user=user,
        num_steps=steps,
        rng=seed,
        basemap=None if basemap is None else str(basemap),
        port=port,
        open_browser=not no_browser,
    )
    print_town(town)
    echo(f"Open {server.url}")
    if data:
        echo("The page shows a private recording. It is served to this machine only.")
    echo("Press Ctrl-C to stop.")
    try:
        server.wait()
    finally:
        server.close()
