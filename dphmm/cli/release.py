"""Releases: ``dphmm release``, for files or lines on standard input, and its job files; ``dphmm batch``, ``certify``.

And to look at them: ``dphmm show``, a picture or a map, ``dphmm report``, a page, and ``dphmm basemap`` below.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dphmm.cli import inputs
from dphmm.cli.console import FILE, FOLDER, PATH, STORE, Once, cell, echo, progress, say, warn, warn_of_seed
from dphmm.errors import (
    AlreadyKnownError,
    BudgetExceededError,
    ConfigurationError,
    DataFileError,
    InvalidInputError,
    SessionBusyError,
)
from dphmm.jobs.input_data import Data
from dphmm.readers.instants import Instants
from dphmm.release import Limits, ReleaseSettings
from dphmm.release.settings import NAMES
from dphmm.tables import ALIASES, iso_time
from dphmm.tables.json_toml import first_flaw, read_keys
from dphmm.writers.table import release_object

if TYPE_CHECKING:
    from dphmm.jobs.batches import Batch
    from dphmm.jobs.releases import Released
    from dphmm.release.trajectory import ReleaseStream


class ReleaseJob(BaseModel):
    """A release, as options or a job file describe it: what is read and written, and how places are released.

    A TOML file has the same keys as the long options, with underscores. Paths are relative to the folder in which the
    command is run.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True)

    settings: ReleaseSettings
    data: tuple[str, ...] = Field(default=(), strict=False)
    output: Path | None = Field(default=None, strict=False)
    model: Path = Field(strict=False)
    summary: Path | None = Field(default=None, strict=False)
    daily: Path | None = Field(default=None, strict=False)
    private_diagnostics: Path | None = Field(default=None, strict=False)
    certificate: Path | None = Field(default=None, strict=False)
    session: str | None = None
    limit_epsilon: float | None = None
    limit_constrained: float | None = None
    limit_window_epsilon: float | None = None
    limit_window_steps: int | None = None
    accept_epsilon: float | None = None
    clock_skew: str | None = None
    allow_own_model: bool = False
    seed: int | None = Field(default=None, ge=0)
    format: str | None = None
    columns: dict[str, str] = Field(default_factory=dict)
    time_unit: str | None = None
    time_zone: str | None = None
    users: tuple[str, ...] = Field(default=(), strict=False)
    exclude_users: tuple[str, ...] = Field(default=(), strict=False)
    skip_bad: bool = False
    user: str | None = None
    user_per_file: bool = False
    overwrite: bool = False
    known: tuple[str, ...] = Field(default=(), strict=False)
    geometry: Literal["estimate", "released"] = "estimate"

    @property
    def people(self) -> Data:
        """Whose places."""
        return Data.from_options(self.data, dict(self))

    @property
    def earlier(self) -> Data | None:
        """Earlier data of the same people, read as their places are."""
        return Data.from_options(self.known, dict(self)) if self.known else None

    @property
    def limits(self) -> Limits | None:
        """What each person's session may spend; None where nothing is said of it."""
        given = {one.name: getattr(self, inputs.option_name(one)) for one in fields(Limits)}
        return Limits(**given) if any(limit is not None for limit in given.values()) else None


def load_job(path: Path | None, options: Mapping[str, Any]) -> ReleaseJob:
    """The job that a file and the options given beside it describe; an option wins over the file.

    Parameters
    ----------
    path
        A TOML file, or None.
    options
        A key of `ReleaseJob` or `ReleaseSettings` → its value; None, and an empty sequence, mean that the option was
        not given.

    Raises
    ------
    DataFileError
        When the file cannot be read or is no TOML.
    ConfigurationError, BudgetError
        Naming the first key that is unknown, missing, or of a wrong value.
    """
    given = {key: value for key, value in options.items() if value is not None and value != () and value != {}}
    keys = {} if path is None else read_keys(path, "docs/reference/command.md for a job")
    unknown = [key for key in keys if key not in _KEYS]
    if unknown:
        raise ConfigurationError(f"{path}: key '{unknown[0]}' is unknown; the keys are {', '.join(_KEYS)}")
    both = keys | given

    def named(key: str) -> str:
        return inputs.long_option(key) if path is None or key in given else f"{path}: key '{key}'"

    rest = {key: value for key, value in both.items() if key not in (*NAMES, *inputs.AIMS, "buffer")}
    try:
        job = ReleaseJob.model_validate({**rest, "settings": ReleaseSettings()})
    except ValidationError as problem:
        key, flaw, said = first_flaw(problem)
        if flaw == "missing":
            raise ConfigurationError(f"{key} is missing; give {inputs.long_option(key)}{_OR_KEY.format(key)}") from None
        raise ConfigurationError(f"{named(key)} {said}") from None
    return job.model_copy(update={"settings": inputs.settings_of(both, named, _OR_KEY, for_a_day=True)})


_KEYS = (*NAMES, *inputs.AIMS, "buffer", *(name for name in ReleaseJob.model_fields if name != "settings"))
"""What a job file may say: how places are released, then everything else."""

_OR_KEY = ", or the key '{}' in a job file"


_REFUSALS = (InvalidInputError, BudgetExceededError, SessionBusyError)
"""What concerns one line, or the person that it is about. A store that is damaged or cannot be written ends the run."""


HELD = ("user", "time", "latitude", "longitude", "epsilon")
"""What a key of a line may hold."""


class Keys:
    """What the lines' keys are called, and how their times are to be understood.

    Parameters
    ----------
    columns
        What a key holds, one of `HELD`, → its name, which is then the only one that it goes by.
    time_unit, time_zone
        As for `dphmm.readers.instants.Instants`; without a zone, a time that does not say its own is refused.

    Raises
    ------
    ConfigurationError
        For a key that holds something else, an unknown unit or an unknown zone.
    """

    def __init__(self, columns: Mapping[str, str], time_unit: str | None = None, time_zone: str | None = None) -> None:
        unknown = sorted(set(columns) - set(HELD))
        if unknown:
            raise ConfigurationError(f"--column names {unknown[0]!r}; a line's keys hold {', '.join(HELD)}")
        self._names = {**ALIASES, "epsilon": ("epsilon",), **{what: (name,) for what, name in columns.items()}}
        self._instants = Instants(time_unit, time_zone)

    def value(self, fix: Mapping[str, Any], what: str) -> Any:
        """What a line says of something, None where it says nothing."""
        return next((fix[name] for name in self._names[what] if fix.get(name) not in (None, "")), None)

    def needed(self, fix: Mapping[str, Any], what: str) -> Any:
        """The same of what every line has to say."""
        value = self.value(fix, what)
        if value is None:
            name = self._names[what][0] if len(self._names[what]) == 1 else what
            raise InvalidInputError(f"has no {what}; give it as {name!r}")
        return value

    def time(self, fix: Mapping[str, Any]) -> int:
        """Microseconds since 1970 of a time that says its zone, or counts in a unit that is known."""
        value = self.needed(fix, "time")
        what = "" if isinstance(value, str) or self._instants.unit else ", or say what numbers count with --time-unit"
        try:
            if self._instants.zone is None and self._instants.lacks_zone(value):
                raise InvalidInputError("the time has no zone; add Z for UTC, or an offset such as +02:00")
            return self._instants.microseconds(value)
        except InvalidInputError:
            raise
        except ValueError:
            wrong = "the time is none; give an ISO 8601 time such as 2009-10-11T14:04:30Z"
            raise InvalidInputError(wrong + what) from None


def answer_lines(
    stream: ReleaseStream,
    columns: Mapping[str, str] | None = None,
    time_unit: str | None = None,
    time_zone: str | None = None,
) -> None:
    """Answer every line of standard input by one line of standard output, flushed before the next is read.

    The answer is the release as an object with the columns of a table of releases. A line that has none, whatever is in
    it, is answered by ``{"released": false, "reason": …}``, with the user and the time of the slot as far as the line
    tells them, and the next is read: no line of one person ends the stream for the others. No answer repeats a place or
    the time of a fix. Where a schedule or caps on events leave nothing to draw with, the answer says so and has the
    columns too, with the prediction in them.

    Parameters
    ----------
    stream
        Who answers.
    columns, time_unit, time_zone
        As for `Keys`.

    Raises
    ------
    DataFileError, OutputError
        When the file of sessions is damaged, or cannot be written.
    ConfigurationError
        As `Keys`, before the first line is read.
    """
    keys = Keys(columns or {}, time_unit, time_zone)
    for number, line in enumerate(sys.stdin.buffer, start=1):
        echo(json.dumps(_answer(stream, keys, line, number), allow_nan=False))
        sys.stdout.flush()


def _answer(stream: ReleaseStream, keys: Keys, line: bytes, number: int) -> dict[str, Any]:
    about: dict[str, Any] = {}
    try:
        fix = _parsed(line)
        about["user"] = user = _user(keys, fix)
        time = np.datetime64(keys.time(fix), "us")
        about["time"] = iso_time(stream.moment(time))
        latitude, longitude = _degrees(keys, fix, "latitude", 90), _degrees(keys, fix, "longitude", 180)
        release = stream.take(user, time, latitude, longitude, _epsilon(keys, fix))
    except AlreadyKnownError as problem:
        return about | _refusal(number, f"{problem}, with --allow-known")
    except DataFileError:
        raise
    except _REFUSALS as problem:
        return about | _refusal(number, str(problem))
    if release is None:
        return about | {"released": False, "reason": stream.silence}
    return release_object(release)


def _refusal(number: int, reason: str) -> dict[str, Any]:
    return {"released": False, "reason": f"line {number}: {' '.join(reason.split())}"}


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        fix = json.loads(line)
    except (ValueError, RecursionError):  # also no UTF-8, and numbers of thousands of digits
        fix = None
    if not isinstance(fix, dict):
        raise InvalidInputError("is no JSON object; give one object a line, with user, time, latitude and longitude")
    return fix


def _user(keys: Keys, fix: dict[str, Any]) -> str:
    user = keys.needed(fix, "user")
    if isinstance(user, bool) or not isinstance(user, int | str) or not str(user).isprintable():
        raise InvalidInputError("the user is no name; give a text of printable characters")
    return str(user)


def _degrees(keys: Keys, fix: dict[str, Any], what: str, most: int) -> float:
    degrees = _number(keys.needed(fix, what), what)
    if not abs(degrees) <= most:  # NaN compares false
        raise InvalidInputError(f"the {what} is not on the Earth; give degrees, -{most} to {most}")
    return degrees


def _epsilon(keys: Keys, fix: dict[str, Any]) -> float | None:
    epsilon = keys.value(fix, "epsilon")
    return None if epsilon is None else _number(epsilon, "epsilon")


def _number(value: Any, what: str) -> float:
    try:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError
        return float(value)
    except (TypeError, OverflowError):  # the latter of a whole number beyond all floats
        raise InvalidInputError(f"the {what} is no number that can be used; give a decimal number") from None


_session_options = inputs.options(
    click.option(
        "--session", type=STORE, metavar="FILE", help="Keep a durable session for every user here; or postgresql://…"
    ),
    inputs.options_of(Limits),
    heading="Session and limits",
)

_IN_SHORT = (
    "moments_withheld_for",
    "joined_places",
    "one_release_from_two",
    "all_releases_from",
    "epsilon_within_24_hours",
    "estimate_radius_m_median",
    "adversary_error_m_median",
    "adversary_certainty_most_in_hindsight",
    "expected_error_m_median",
    "private_",
)
"""How facts begin that are told without --details, besides `_COUNTS`."""
_COUNTS = ("releases", "users", "output", "folder")

_details_option = inputs.option(
    "--details",
    heading="Output",
    is_flag=True,
    help="Print every figure, not just the main ones.",
)


def _say_released(done: Released | Batch, facts: Mapping[str, Any], as_json: bool, details: bool) -> None:
    """Two sentences first, then figures: the main ones, or all; what was left out; warnings on standard error."""
    verdict, warnings = done.verdict(), done.warnings()
    if as_json:
        facts = {"verdict": list(verdict), **facts, "warnings": warnings}
    else:
        for sentence in verdict:
            echo(sentence)
        facts = {name: fact for name, fact in facts.items() if details or name in _COUNTS or name.startswith(_IN_SHORT)}
    say("Released", facts, as_json, done.dropped, "private_left_out")
    warn(warnings)


_stream_options = inputs.options(
    click.option(
        "--accept-epsilon", type=float, metavar="MAX", help="Without DATA: a fix may ask for an epsilon up to this."
    ),
    click.option(
        "--clock-skew",
        metavar="TIME",
        help="Without DATA: how far ahead of the clock here a fix may be: 30s, 5m, 1h. [default: 5m]",
    ),
    heading="Stream",
)

_output_options = inputs.options(
    click.option(
        "--geometry", help="Where rows are in files with one place for each: estimate or released. [default: estimate]"
    ),
    click.option("--summary", type=FILE, metavar="FILE", help="A .csv with one row per user."),
    click.option("--daily", type=FILE, metavar="FILE", help="A .csv with one row per user and day (UTC)."),
    click.option(
        "--private-diagnostics", type=FILE, metavar="FILE", help="Errors and true states, for yourself alone."
    ),
    click.option(
        "--certificate", type=FILE, metavar="FILE", help="The proof, for anyone: scripts/dphmm-verify checks it."
    ),
    heading="Output",
)


@click.command(cls=Once)
@click.argument("data", nargs=-1, type=click.Path())
@click.option("-o", "--output", type=FILE, help="The releases: .gpkg, .geojson, .csv, .gpx or .parquet.")
@click.option("--model", type=click.Path(), help="A model that 'dphmm learn' wrote.")
@inputs.release_options
@inputs.own_model_option
@_output_options
@_session_options
@_stream_options
@inputs.seed_option
@inputs.earlier_option
@click.option("--job", type=PATH, metavar="FILE", help="A TOML file with these options as keys.")
@inputs.input_options
@click.option("--overwrite", is_flag=True, default=None, help="Replace outputs that exist.")
@_details_option
@click.option("--json", "as_json", is_flag=True, help="Say what was released as JSON.")
def release_command(job: Path | None, as_json: bool, details: bool, **given: Any) -> None:
    """Release private locations for the trajectories in DATA.

    Without DATA, fixes are read from standard input as JSON lines such as {"user": "a", "time":
    "2024-03-07T09:00:00Z", "latitude": 45.01, "longitude": -30.01}, and each is answered by one line on standard
    output at once. A line that is wrong is answered by {"released": false, "reason": ...}, and the next is read.
    """

    said = {"format": given.pop("format_"), "columns": inputs.columns_of(given["columns"])}
    said |= {"caps": inputs.caps_of(given)} | {key: inputs.names_of(given[key]) for key in ("users", "exclude_users")}
    for key in ("events", "never_surer", "never_less"):
        del given[key]
    what = load_job(job, {**given, **said})
    warn_of_seed(what.seed)
    if what.data:
        _release_files(what, as_json, details)
    else:
        _release_stream(what)


_OF_BOTH = ("session", "limits", "allow_own_model")
"""What releases of files and of a stream take as a job has it."""


def _release_files(job: ReleaseJob, as_json: bool, details: bool) -> None:
    from dphmm.jobs.releases import release

    for key in ("accept_epsilon", "clock_skew"):
        if getattr(job, key) is not None:
            raise ConfigurationError(
                f"{inputs.long_option(key)} is for fixes from standard input; leave it out with DATA"
            )
    if job.output is None:
        raise ConfigurationError("no output is given; name one with -o, such as -o releases.gpkg")
    done = release(
        job.people,
        job.model,
        job.settings,
        private_diagnostics=job.private_diagnostics or False,
        known=job.earlier,
        rng=job.seed,
        watch=progress,
        **{name: getattr(job, name) for name in (*_OF_BOTH, "output", "summary", "daily", "certificate")},
        **{name: getattr(job, name) for name in ("overwrite", "geometry")},
    )
    asked = {"policy": job.settings.policy, "epsilon_of_each": job.settings.epsilon}
    files = {name: getattr(job, name) for name in ("output", "private_diagnostics", "certificate")}
    written = {name: None if path is None else str(path) for name, path in files.items()}
    told = {**asked, "outside_the_region": job.settings.outside, **done.facts(), **done.private_facts()}
    _say_released(done, {**told, "settings": job.settings.content_hash, **written}, as_json, details)


def _release_stream(job: ReleaseJob) -> None:
    from dphmm.jobs.releases import CLOCK_SKEW_SECONDS, live

    for key in ("output", "summary", "daily", "private_diagnostics", "certificate"):
        if getattr(job, key) is not None:
            raise ConfigurationError(f"{inputs.long_option(key)} needs DATA; without it, lines go to standard output")
    skew = CLOCK_SKEW_SECONDS if job.clock_skew is None else inputs.seconds_of(job.clock_skew, "--clock-skew")
    more = {name: getattr(job, name) for name in (*_OF_BOTH, "accept_epsilon")}
    with live(job.model, job.settings, rng=job.seed, clock_skew_seconds=skew, **more) as people:
        answer_lines(people, job.columns, job.time_unit, job.time_zone)


@click.command(cls=Once)
@click.argument("data", nargs=-1, required=True, type=PATH)
@click.option("-o", "--output", "folder", required=True, type=FOLDER, help="A new folder.")
@click.option("--model", required=True, type=PATH, help="A model that 'dphmm learn' wrote.")
@inputs.release_options
@inputs.own_model_option
@click.option(
    "--session-gap",
    type=int,
    metavar="STEPS",
    help="A longer gap begins a new session. [default: 500; with --never-surer none does]",
)
@click.option("--certificate", type=FILE, metavar="FILE", help="The proof: scripts/dphmm-verify checks it.")
@click.option("--files", "kind", default="parquet", show_default=True, help="The users' files: parquet, csv, …")
@inputs.engine_options
@inputs.seed_option
@inputs.earlier_option
@click.option("--resume", is_flag=True, help="Go on with the batch in the folder; users who are released stay.")
@inputs.input_options
@_details_option
@click.option("--json", "as_json", is_flag=True, help="Say what was released as JSON.")
def batch_command(
    data: tuple[Path, ...], folder: Path, model: Path, seed: int | None, as_json: bool, details: bool, **given: Any
) -> None:
    """Release every user in DATA, each in a file of their own, without a true place in any of them.

    DATA are read one after another, and the places of only one of them are in memory at a time: for a data set beyond
    memory, give one Parquet of everyone, of which a few people are taken at a time, or a file or folder per user or
    per group of users. A user must not occur in two of them.

    On a Dask cluster, whose workers must see the folder and the model under the same paths, the places and the key go
    over the network to the workers.

    Until the batch is finished, the folder holds its key in PRIVATE-key, with which the noise can be taken away. With
    it --resume makes a lost or damaged file again as it was, instead of drawing twice about the same places.
    """
    from dphmm.jobs.batches import batch

    settings = inputs.settings_of({**given, "caps": inputs.caps_of(given)}, for_a_day=True)
    warn_of_seed(seed)
    more = {name: given[name] for name in ("kind", "session_gap", "resume", "certificate")}
    more["allow_own_model"] = bool(given["allow_own_model"])
    more["known"] = inputs.true_data(given, "known")
    engine = inputs.engine_of(given)
    found = batch(
        inputs.data_of(data, given), folder, model, settings, engine=engine, seed=seed, watch=progress, **more
    )
    proof = {"certificate": None if given["certificate"] is None else str(given["certificate"])}
    facts = {**found.facts(), **found.private_facts(), "folder": str(folder), **proof}
    _say_released(found, facts, as_json, details)


@click.command(cls=Once)
@click.argument("releases", callback=inputs.store_of)
@click.option("-o", "--output", required=True, type=FILE, help="The certificate, JSON lines.")
@click.option("--model", required=True, type=click.Path(), help="The model that the releases were made with.")
@inputs.release_options
@click.option("--users", metavar="A,B,…", help="These users alone.")
@click.option("--overwrite", is_flag=True, help="Replace an output that exists.")
@click.option("--json", "as_json", is_flag=True, help="Say what was certified as JSON.")
def certify_command(
    releases: str | Path, output: Path, model: str, users: str | None, overwrite: bool, as_json: bool, **given: Any
) -> None:
    """Write what the promise of RELEASES follows from, for anyone to check with scripts/dphmm-verify.

    RELEASES is a file of releases, the folder of a batch, or a file or server of durable sessions; all but the first
    say how they were made. Nothing of the person's places but the releases goes in, and nothing is drawn.
    """
    from dphmm.jobs.certificates import certify

    chosen = inputs.stated_settings_of(given)
    found = certify(releases, model, output, chosen, users=inputs.names_of(users), overwrite=overwrite, watch=progress)
    say("Certified", {**found.facts(), "certificate": str(output)}, as_json)


# ---- what was released, to look at -----------------------------------------------------------------------------------


@click.command(cls=Once)
@click.argument("releases", callback=inputs.store_of)
@click.option(
    "-o",
    "--output",
    type=FILE,
    help="A .png, .svg, .pdf or .html file; with --true, PRIVATE in its name. [default: RELEASES.html]",
)
@click.option("--model", type=PATH, help="The model, to draw its states.")
@click.option(
    "--policy",
    help="A policy over the model's states, to draw its edges and hull. [default: the one of a batch or of sessions]",
)
@click.option("--layer", type=PATH, help="Polygons to draw below: GeoJSON, KML or GeoPackage.")
@click.option("--basemap", type=PATH, help="A finer map: .gpkg, .fgb, .geojson, .shp, .osm.pbf.")
@click.option("--tiles", metavar="URL", help="A server of map tiles, https://…/{z}/{x}/{y}.png: told where you look.")
@inputs.true_options
@click.option("--users", metavar="A,B,…", help="These users alone.")
@click.option("--from", "start", metavar="TIME", help="No release before this time, ISO 8601, UTC.")
@click.option("--to", "end", metavar="TIME", help="No release at or after this time.")
@click.option("--title", help="The title of the map.")
@click.option("--overwrite", is_flag=True, help="Replace an output that exists.")
def show_command(releases: str | Path, output: Path | None, **given: Any) -> None:
    """Draw RELEASES: a file of 'dphmm release', a folder of 'dphmm batch', or (with --model) a store of sessions.

    Of a file of 'dphmm flows' it draws areas, and flows between them by width.
    The HTML map needs no network: it can be moved, zoomed, narrowed down to a person's day and played through time.
    """
    from dphmm.plots.flow_maps import show_flows
    from dphmm.plots.releases import show
    from dphmm.writers.flow_files import is_flow_file

    if is_flow_file(releases):
        echo(cell(str(show_flows(releases, output, given["title"], given["overwrite"]))))
        return
    true = inputs.true_data(given)
    options = {name: given[name] for name in ("model", "policy", "layer", "basemap", "tiles")}
    options |= {name: given[name] for name in ("start", "end", "title", "overwrite")}
    written = show(releases, output, users=inputs.names_of(given["users"]), true=true, **options)
    if true is not None:
        echo(f"dphmm: {cell(str(written))} shows true places; keep it to yourself.", err=True)
    echo(cell(str(written)))


@click.command(cls=Once)
@click.argument("releases", type=PATH)
@click.option("-o", "--output", required=True, type=FILE, help="An .html file.")
@click.option("--model", required=True, type=click.Path(), help="The model that the releases were made with.")
@inputs.release_options
@inputs.true_options
@click.option("--basemap", type=PATH, help="A finer map: .gpkg, .fgb, .geojson, .shp, .osm.pbf.")
@click.option("--users", metavar="A,B,…", help="These users alone.")
@click.option("--title", help="The title of the page.")
@click.option("--seed", type=int, help="Repeatable: the invented person, and the noise about that person.")
@click.option("--overwrite", is_flag=True, help="Replace an output that exists.")
def report_command(releases: Path, output: Path, model: str, seed: int | None, **given: Any) -> None:
    """One page about RELEASES, to show and to print: before and after, what is promised, and what is not.

    RELEASES is a file that 'dphmm release -o' wrote, the folder of a batch, or a file of sessions. A file is made with
    settings that it does not say: give --policy alone where all but the epsilon and the mechanism were left at their
    defaults, otherwise all of them. The person on the page is invented, out of the model. With --true it is the one
    with most releases, and the page is private, as its name must say.
    """
    from dphmm.plots.reporting import report

    settings = inputs.stated_settings_of(given)
    true = inputs.true_data(given)
    more = {name: given[name] for name in ("title", "basemap", "overwrite")}
    written = report(
        releases, output, model, settings, true=true, users=inputs.names_of(given["users"]), rng=seed, **more
    )
    if true is not None:
        echo("dphmm: true places are on this page; keep it to yourself.", err=True)
    echo(cell(str(written)))


@click.command(cls=Once)
@click.argument("extract", type=PATH)
@click.option("--model", required=True, type=PATH, help="The model, whose region is kept.")
@click.option("-o", "--output", required=True, type=FILE, help="A .geojson or .geojson.gz file.")
@click.option("--overwrite", is_flag=True, help="Replace an output that exists.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def basemap_command(extract: Path, model: Path, output: Path, overwrite: bool, as_json: bool) -> None:
    """Make a small map of a model's region out of EXTRACT: water, roads, streets, rivers and names.

    EXTRACT is a file that you downloaded: an .osm.pbf of OpenStreetMap, or a .gpkg, .fgb, .geojson or .shp with the
    same words. The map is for --basemap of 'dphmm show', and for the key 'basemap' of a relay's file.
    """
    from dphmm.plots.basemap import extract_basemap

    say(f"Map in {cell(str(output))}", extract_basemap(extract, model, output, overwrite), as_json)
