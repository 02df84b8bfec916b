"""``dphmm certify``: certificates of existing releases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dphmm.cli import shared_options as options
from dphmm.cli.console import FILE, Once, print_result, show_progress


@click.command(cls=Once)
@click.argument("releases", callback=options.parse_store)
@click.option("-o", "--output", required=True, type=FILE, help="File of the certificate, JSON lines.")
@click.option("--model", required=True, type=click.Path(), help="Model of the releases.")
@options.release_options
@options.users_option
@click.option("--overwrite", is_flag=True, help="Replace an existing output.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def certify_command(
    releases: str | Path,
    output: Path,
    model: str,
    users: tuple[str, ...] | None,
    overwrite: bool,
    as_json: bool,
    **values: Any,
) -> None:
    """Write a certificate of RELEASES for verification with scripts/dphmm-verify.

    RELEASES is a file of releases, the folder of a batch, or a file or server of durable sessions. Settings are needed
    only for a file, if they are not the defaults, in the file or in a certificate in its folder. The certificate
    contains no location except the releases, and no noise is sampled.
    """
    from dphmm.jobs.certificate import certify

    settings = options.build_stated_settings(values)
    summary = certify(releases, model, output, settings, users=users or (), overwrite=overwrite, watch=show_progress)
    print_result("Certified", {**summary.to_dict(), "certificate": str(output)}, as_json)
