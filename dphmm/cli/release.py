"""``dphmm release``, for files or lines on standard input, its job files, and ``dphmm batch``, a file for each user."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dphmm.cli.console import (
    FILE,
    FOLDER,
    STORE,
    Once,
    dropped_facts,
    echo,
    progress,
    say,
    say_dropped,
    warn,
    warn_of_seed,
)
from dphmm.cli.from_fields import option_name, options, options_of
from dphmm.cli.inputs import (
    AIMS,
    cap_options,
    caps_of,
    columns_of,
    data_of,
    earlier_option,
    engine_of,
    engine_options,
    event_option,
    input_options,
    names_of,
    option_of,
    own_model_option,
    seconds_of,
    seed_option,
    settings_of,
    settings_options,
    stated_settings_of,
    store_of,
    true_data,
)
from dphmm.errors import (
    AlreadyKnownError,
    BudgetExceededError,
    ConfigurationError,
    DataFileError,
    InvalidInputError,
    SessionBusyError,
)
from dphmm.readers.instants import Instants
from dphmm.release.engine import ReleaseSettings
from dphmm.release.ledger import Limits
from dphmm.release.settings import NAMES
from dphmm.tables import iso_time
from dphmm.tables.json_toml import first_flaw, read_keys
from dphmm.tables.table import ALIASES
from dphmm.writers.table import release_object

if TYPE_CHECKING:
    from dphmm.jobs.people import Data
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
        from dphmm.jobs.people import Data

        return Data.from_options(self.data, dict(self))

    @property
    def earlier(self) -> Data | None:
        """Earlier data of the same people, read as their places are."""
        from dphmm.jobs.people import Data

        return Data.from_options(self.known, dict(self)) if self.known else None

    @property
    def limits(self) -> Limits | None:
        """What each person's session may spend; None where nothing is said of it."""
        from dphmm.release.ledger import Limits

        given = {one.name: getattr(self, option_name(one)) for one in fields(Limits)}
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
        return option_of(key) if path is None or key in given else f"{path}: key '{key}'"

    rest = {key: value for key, value in both.items() if key not in (*NAMES, *AIMS, "buffer")}
    try:
        job = ReleaseJob.model_validate({**rest, "settings": ReleaseSettings()})
    except ValidationError as problem:
        key, flaw, said = first_flaw(problem)
        if flaw == "missing":
            raise ConfigurationError(f"{key} is missing; give {option_of(key)}{_OR_KEY.format(key)}") from None
        raise ConfigurationError(f"{named(key)} {said}") from None
    return job.model_copy(update={"settings": settings_of(both, named, _OR_KEY, for_a_day=True)})


_KEYS = (*NAMES, *AIMS, "buffer", *(name for name in ReleaseJob.model_fields if name != "settings"))
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


_session_options = options(
    click.option(
        "--session",
        type=STORE,
        metavar="FILE",
        help="Keep a durable session for every user here; or postgresql://…",
    ),
    options_of(Limits),
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

_details_option = options(
    click.option("--details", is_flag=True, help="Say everything of how it was released, not the main figures alone."),
    heading="Output",
)


def _say_verdict(verdict: Sequence[str], facts: Mapping[str, Any], as_json: bool, details: bool) -> None:
    """Two sentences first, then figures: the main ones, or all."""
    if as_json:
        say("Released", {"verdict": list(verdict), **facts}, as_json)
        return
    for sentence in verdict:
        echo(sentence)
    chosen = {name: fact for name, fact in facts.items() if details or name in _COUNTS or name.startswith(_IN_SHORT)}
    say("Released", chosen, as_json)


_stream_options = options(
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

_output_options = options(
    click.option(
        "--geometry", help="Where rows are in files with one place for each: estimate or released. [default: estimate]"
    ),
    click.option("--summary", type=FILE, metavar="FILE", help="A .csv with one row per user."),
    click.option("--daily", type=FILE, metavar="FILE", help="A .csv with one row per user and day (UTC)."),
    click.option(
        "--private-diagnostics",
        type=FILE,
        metavar="FILE",
        help="Errors and true states, for yourself alone.",
    ),
    click.option(
        "--certificate",
        type=FILE,
        metavar="FILE",
        help="The proof, for anyone: scripts/dphmm-verify checks it.",
    ),
    heading="Output",
)


@click.command(cls=Once)
@click.argument("data", nargs=-1, type=click.Path())
@click.option("-o", "--output", type=FILE, help="The releases: .gpkg, .geojson, .csv, .gpx or .parquet.")
@click.option("--model", type=click.Path(), help="A model that 'dphmm learn' wrote.")
@settings_options
@event_option
@cap_options
@own_model_option
@_output_options
@_session_options
@_stream_options
@seed_option
@earlier_option
@click.option("--job", type=click.Path(path_type=Path), metavar="FILE", help="A TOML file with these options as keys.")
@input_options
@click.option("--overwrite", is_flag=True, default=None, help="Replace outputs that exist.")
@_details_option
@click.option("--json", "as_json", is_flag=True, help="Say what was released as JSON.")
def release_command(job: Path | None, as_json: bool, details: bool, **given: Any) -> None:
    """Release private locations for the trajectories in DATA.

    Without DATA, fixes are read from standard input as JSON lines such as {"user": "a", "time":
    "2024-03-07T09:00:00Z", "latitude": 45.01, "longitude": -30.01}, and each is answered by one line on standard
    output at once. A line that is wrong is answered by {"released": false, "reason": ...}, and the next is read.
    """

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
        _release_files(what, as_json, details)
    else:
        _release_stream(what)


def _release_files(job: ReleaseJob, as_json: bool, details: bool) -> None:
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
        known=job.earlier,
        certificate=job.certificate,
        watch=progress,
    )
    asked = {"policy": job.settings.policy, "epsilon_of_each": job.settings.epsilon}
    files = {"output": job.output, "private_diagnostics": job.private_diagnostics, "certificate": job.certificate}
    written = {name: None if path is None else str(path) for name, path in files.items()}
    told = {**asked, "outside_the_region": job.settings.outside, **done.facts(), **done.private_facts()}
    warnings = done.warnings()
    listed = {"private_left_out": dropped_facts(done.dropped), "warnings": warnings} if as_json else {}
    facts = {**told, "settings": job.settings.content_hash, **written, **listed}
    _say_verdict(done.verdict(), facts, as_json, details)
    if not as_json:
        say_dropped(done.dropped)
    warn(warnings)


def _release_stream(job: ReleaseJob) -> None:
    from dphmm.jobs.releases import CLOCK_SKEW_SECONDS, live

    for key in ("output", "summary", "daily", "private_diagnostics", "certificate"):
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


@click.command(cls=Once)
@click.argument("data", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-o", "--output", "folder", required=True, type=FOLDER, help="A new folder.")
@click.option("--model", required=True, type=click.Path(path_type=Path), help="A model that 'dphmm learn' wrote.")
@settings_options
@event_option
@cap_options
@own_model_option
@click.option(
    "--session-gap",
    type=int,
    metavar="STEPS",
    help="A longer gap begins a new session. [default: 500; with --never-surer none does]",
)
@click.option("--certificate", type=FILE, metavar="FILE", help="The proof: scripts/dphmm-verify checks it.")
@click.option("--files", "kind", default="parquet", show_default=True, help="The users' files: parquet, csv, …")
@engine_options
@seed_option
@earlier_option
@click.option("--resume", is_flag=True, help="Go on with the batch in the folder; users who are released stay.")
@input_options
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

    settings = settings_of({**given, "caps": caps_of(given)}, for_a_day=True)
    warn_of_seed(seed)
    more = {name: given[name] for name in ("kind", "session_gap", "resume", "certificate")}
    more["allow_own_model"] = bool(given["allow_own_model"])
    more["known"] = true_data(given, "known")
    engine = engine_of(given)
    found = batch(data_of(data, given), folder, model, settings, engine=engine, seed=seed, watch=progress, **more)
    warnings = found.warnings()
    listed = {"private_left_out": dropped_facts(found.dropped), "warnings": warnings} if as_json else {}
    proof = {"certificate": None if given["certificate"] is None else str(given["certificate"])}
    facts = {**found.facts(), **found.private_facts(), "folder": str(folder), **proof, **listed}
    _say_verdict(found.verdict(), facts, as_json, details)
    if not as_json:
        say_dropped(found.dropped)
    warn(warnings)


@click.command(cls=Once)
@click.argument("releases", callback=store_of)
@click.option("-o", "--output", required=True, type=FILE, help="The certificate, JSON lines.")
@click.option("--model", required=True, type=click.Path(), help="The model that the releases were made with.")
@settings_options
@event_option
@cap_options
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

    chosen = stated_settings_of(given)
    found = certify(releases, model, output, chosen, users=names_of(users), overwrite=overwrite, watch=progress)
    say("Certified", {**found.facts(), "certificate": str(output)}, as_json)
