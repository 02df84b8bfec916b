"""``dphmm data``: the public data sets."""

from __future__ import annotations

from pathlib import Path

import click

from dphmm.cli.once import OnceGroup
from dphmm.cli.summary import say


@click.group(cls=OnceGroup)
def command() -> None:
    """Fetch the public data sets that the papers use."""


@command.command()
@click.argument("name", metavar="geolife|gowalla")
@click.option("--to", "folder", default="data", show_default=True, type=click.Path(path_type=Path), help="The folder.")
@click.option("--sha256", metavar="HEX", help="The digest that the file must have.")
@click.option("--base-url", metavar="URL", help="A mirror to take it from.")
@click.option("--json", "as_json", is_flag=True, help="Say what was fetched as JSON.")
def fetch(name: str, folder: Path, sha256: str | None, base_url: str | None, as_json: bool) -> None:
    """Download a public data set unless it is there already, and check it.

    The publishers state no digest. The first download's is written to SHA256SUMS beside it, and every later use is
    checked against that; --sha256 checks the first download too.
    """
    from dphmm.readers import fetch_data

    fetched = fetch_data(name, folder, base_url=base_url, sha256=sha256)
    checked = "against a known digest" if fetched.verified else "first download: digest recorded in SHA256SUMS"
    facts = {"file": str(fetched.path), "sha256": fetched.sha256, "checked": checked, "terms": fetched.terms}
    say("Fetched", facts, as_json)
