"""``dphmm release``: private locations for files, or for a stream on standard input."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dphmm.cli.inputs import (
    cap_options,
    caps_of,
    columns_of,
    event_option,
    input_options,
    names_of,
    option_of,
    options,
    own_model_option,
    seconds_of,
    settings_options,
)
from dphmm.cli.once import Once
from dphmm.cli.progress import progress
from dphmm.cli.summary import dropped_facts, say, say_dropped, warn, warn_of_seed
from dphmm.errors import ConfigurationError

if TYPE_CHECKING:
    from dphmm.cli.job import ReleaseJob

_session_options = options(
    click.option("--session", metavar="FILE", help="Keep a durable session for every user here; or postgresql://…"),
    click.option("--limit-epsilon", type=float, help="With --session: what a user may spend in all."),
    click.option("--limit-constrained", type=float, help="With --session: the constrained-DP level a user may reach."),
    click.option("--limit-window-epsilon", type=float, help="With --session: what a user may spend in a window of …"),
    click.option("--limit-window-steps", type=int, help="… so many consecutive time steps."),
)

_stream_options = options(
    click.option(
        "--accept-epsilon", type=float, metavar="MAX", help="Without DATA: a fix may ask for an epsilon up to this."
    ),
    click.option(
        "--clock-skew",
        metavar="TIME",
        help="Without DATA: how far ahead of the clock here a fix may be: 30s, 5m, 1h. [default: 5m]",
    ),
)


@click.command(cls=Once)
@click.argument("data", nargs=-1, type=click.Path())
@click.option("-o", "--output", type=click.Path(), help="The releases: .gpkg, .geojson, .csv, .gpx or .parquet.")
@click.option("--model", type=click.Path(), help="A model that 'dphmm learn' wrote.")
@settings_options
@event_option
@cap_options
@own_model_option
@click.option(
    "--geometry", help="Where rows are in files with one place for each: estimate or released. [default: estimate]"
)
@click.option("--summary", type=click.Path(), metavar="FILE", help="A .csv with one row per user.")
@click.option("--daily", type=click.Path(), metavar="FILE", help="A .csv with one row per user and day (UTC).")
@click.option(
    "--private-diagnostics", type=click.Path(), metavar="FILE", help="Errors and true states, for yourself alone."
)
@_session_options
@_stream_options
@click.option("--seed", type=int, help="Repeatable noise, for experiments: the output is not private.")
@click.option("--job", type=click.Path(path_type=Path), metavar="FILE", help="A TOML file with these options as keys.")
@input_options
@click.option("--overwrite", is_flag=True, default=None, help="Replace outputs that exist.")
@click.option("--json", "as_json", is_flag=True, help="Say what was released as JSON.")
def command(job: Path | None, as_json: bool, **given: Any) -> None:
    """Release private locations for the trajectories in DATA.

    Without DATA, fixes are read from standard input as JSON lines such as {"user": "a", "time":
    "2024-03-07T09:00:00Z", "latitude": 45.01, "longitude": -30.01}, and each is answered by one line on standard
    output at once. A line that is wrong is answered by {"released": false, "reason": ...}, and the next is read.
    """
    from dphmm.cli.job import load_job

    given["format"] = given.pop("format_")
    given["columns"] = columns_of(given["columns"])
    given["caps"] = caps_of(given)
    for key in ("events", "never_surer", "never_less"):
        del given[key]
    for key in ("users", "exclude_users"):
        given[key] = names_of(given[key])
    what = load_job(job, given)
    warn_of_seed(what.seed)
    if what.data:
        _release_files(what, as_json)
    else:
        _release_stream(what)


def _release_files(job: ReleaseJob, as_json: bool) -> None:
    from dphmm.jobs.releases import release

    for key in ("accept_epsilon", "clock_skew"):
        if getattr(job, key) is not None:
            raise ConfigurationError(f"{option_of(key)} is for fixes from standard input; leave it out with DATA")
    if job.output is None:
        raise ConfigurationError("no output is given; name one with -o, such as -o releases.gpkg")
    done = release(
        job.people,
        job.model,
        job.settings,
        job.output,
        summary=job.summary,
        daily=job.daily,
        private_diagnostics=job.private_diagnostics or False,
        session=job.session,
        limits=job.limits,
        allow_own_model=job.allow_own_model,
        rng=job.seed,
        overwrite=job.overwrite,
        geometry=job.geometry,
        watch=progress,
    )
    asked = {"policy": job.settings.policy, "epsilon_of_each": job.settings.epsilon}
    files = {"output": job.output, "private_diagnostics": job.private_diagnostics}
    written = {name: None if path is None else str(path) for name, path in files.items()}
    told = {**asked, "outside_the_region": job.settings.outside, **done.facts(), **done.private_facts()}
    warnings = done.warnings()
    listed = {"private_left_out": dropped_facts(done.dropped), "warnings": warnings} if as_json else {}
    say("Released", {**told, "settings": job.settings.content_hash, **written, **listed}, as_json)
    if not as_json:
        say_dropped(done.dropped)
    warn(warnings)


def _release_stream(job: ReleaseJob) -> None:
    from dphmm.cli.stream import answer_lines
    from dphmm.jobs.releases import CLOCK_SKEW_SECONDS, live

    for key in ("output", "summary", "daily", "private_diagnostics"):
        if getattr(job, key) is not None:
            raise ConfigurationError(f"{option_of(key)} needs DATA; without it, lines go to standard output")
    skew = CLOCK_SKEW_SECONDS if job.clock_skew is None else seconds_of(job.clock_skew, "--clock-skew")
    with live(
        job.model,
        job.settings,
        session=job.session,
        limits=job.limits,
        allow_own_model=job.allow_own_model,
        rng=job.seed,
        accept_epsilon=job.accept_epsilon,
        clock_skew_seconds=skew,
    ) as people:
        answer_lines(people, job.columns, job.time_unit, job.time_zone)
