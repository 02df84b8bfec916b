"""Options that several commands share, many of them made of the fields of settings, and what they say.

What to read and whose, how to release, which region, which workers; and the headings under which help lists them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from dphmm.errors import ConfigurationError, InvalidInputError
from dphmm.facts import Option, option_of
from dphmm.jobs.input_data import Data
from dphmm.release.settings import Schedule, Settings

if TYPE_CHECKING:
    from dphmm.jobs.adversaries import Adversaries
    from dphmm.jobs.workers import Engine
    from dphmm.release.engine import ReleaseSettings
    from dphmm.space.states import StateSpace

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

_TYPES = {"float": float, "int": int}

POSITIVE, COUNT = click.FloatRange(0, min_open=True), click.IntRange(1)
"""The types of numbers that are refused before anything is read."""


def options(*several: Callable[[Any], Any], heading: str = "") -> Callable[[Decorated], Decorated]:
    """One decorator out of several options, in the order in which help lists them.

    Parameters
    ----------
    *several
        What `click.option` makes, or this function.
    heading
        Where help lists them, whatever they say themselves; nothing to leave that to them.
    """

    def add(command: Decorated) -> Decorated:
        there = len(getattr(command, "__click_params__", ()))
        for option in reversed(several):
            command = option(command)
        for parameter in getattr(command, "__click_params__", ())[there:] if heading else ():
            vars(parameter)["heading"] = heading
        return command

    return add


def option(*names: str, heading: str, **about: Any) -> Callable[[Decorated], Decorated]:
    """One option as `click.option` makes it, under a heading of help."""
    return options(click.option(*names, **about), heading=heading)


def options_of(
    kind: type, names: Collection[str] = (), without: Collection[str] = (), **texts: str
) -> Callable[[Decorated], Decorated]:
    """The options that the fields of a dataclass make.

    An option that is not given is None, so that what is left out takes the field's default, in one place.

    Parameters
    ----------
    kind
        A dataclass whose fields are made by `dphmm.facts.setting`; others are passed over.
    names, without
        These fields alone, all but these.
    **texts
        Field → what help says of it in this command instead.
    """
    chosen = [one for one in fields(kind) if one.name not in without and (not names or one.name in names)]
    made = [(one, about) for one in chosen if (about := option_of(one)) is not None]
    return options(*(_made(one, about, texts.get(one.name, about.help)) for one, about in made))


def option_name(one: Field[Any]) -> str:
    """What a field's option is called, with underscores."""
    about = option_of(one)
    return one.name if about is None else about.name or one.name


def _made(one: Field[Any], about: Option, text: str) -> Callable[[Any], Any]:
    name = option_name(one)
    kind = str(one.type).removesuffix(" | None")
    is_sequence = kind.startswith("Mapping")
    default = f" [default: {one.default}]" if about.shows_default and one.default is not MISSING else ""
    choices = f": {', '.join(about.choices)}." if about.choices and about.choices[0] not in text else ""
    return option(
        f"--{name.replace('_', '-').removesuffix('s') if is_sequence else name.replace('_', '-')}",
        f"{name}_" if name == "format" else name,
        heading=about.heading,
        help=f"{text}{choices}{default}",
        metavar=about.metavar,
        default=None,
        multiple=is_sequence,
        **({"is_flag": True} if kind == "bool" else {"type": None if about.is_text else _TYPES.get(kind)}),
    )


_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])", re.ASCII)

EVENT_HELP = "An event over time, such as 'at:clinic.geojson between 2024-03-04 and 2024-03-10'."


def store_of(context: click.Context, parameter: click.Parameter, value: str) -> str | Path:  # noqa: ARG001 - as click calls it
    """A file of releases or sessions, or the address of a PostgreSQL server that keeps sessions."""
    from dphmm.release.session_database import is_server

    return value if is_server(value) else Path(value)


input_options = options_of(Data)
"""The options of `data_of`."""
READING = tuple(f"{one.name}_" if one.name == "format" else one.name for one in fields(Data) if option_of(one))
"""Their names."""


def _format_options(name: str, heading: str) -> Callable[[Decorated], Decorated]:
    """How the trajectories that an option names are read."""
    return options(
        options_of(
            Data,
            without=("users", "exclude_users", "skip_bad"),
            format=f"The format of --{name}. Left out, recognised.",
            columns=f"Columns of --{name}, in tables.",
            user=f"Whose places all of --{name} are, where it does not say or says otherwise.",
            user_per_file=f"Files of --{name} that do not say whose they are: one each.",
        ),
        heading=heading,
    )


def _options_of_data(name: str, words: str, heading: str) -> Callable[[Decorated], Decorated]:
    """An option that names trajectories, with those of how they are read."""
    given = click.option(f"--{name}", name, multiple=True, type=click.Path(), help=words)
    return options(given, _format_options(name, heading), heading=heading)


true_options = _options_of_data("true", "True trajectories: the result is private.", "True places")
"""The options of `true_data`."""
known_options = _options_of_data("known", "Earlier data of the candidates, each by name.", "Candidates")
"""Those of earlier data."""
known_format_options = _format_options("known", "Other adversaries")
"""How they are read, for commands with `adversary_options`."""

adversary_options = options(
    click.option("--known", multiple=True, type=click.Path(), help="Earlier data of the people, which somebody has."),
    click.option("--adversary-model", type=click.Path(), metavar="FILE", help="Another model that somebody believes."),
    click.option(
        "--knows",
        multiple=True,
        metavar="PLACE",
        help="Where somebody knows the person to be often: home or work (found in --known), or a place of an event.",
    ),
    heading="Other adversaries",
)
"""The options of `adversaries_of`."""

earlier_option = option(
    "--known",
    heading="Other adversaries",
    multiple=True,
    type=click.Path(),
    help="Earlier data of the people: what releases tell somebody who has them is worked out, for yourself.",
)

buffer_option = option(
    "--buffer",
    heading="Promise",
    metavar="LENGTH",
    help="Widen the policy's zones by the places they are entered from, up to LENGTH.",
)

noise_options = options(
    options_of(Settings, names=("policy", "epsilon")),
    buffer_option,
    options_of(Settings, without=("policy", "epsilon", "priors")),
)
"""The options of a `ReleaseSettings`, one for each of its fields but caps on events and its schedule."""

AIMS = tuple(option_name(one) for one in fields(Schedule))
"""The options of a schedule."""

cap_options = options(
    click.option("--event", "events", multiple=True, metavar="TEXT", help=f"{EVENT_HELP} May be repeated."),
    click.option(
        "--never-surer",
        type=float,
        multiple=True,
        metavar="P",
        help="Nobody with the model alone becomes surer of --event than P.",
    ),
    click.option("--never-less", type=float, multiple=True, metavar="P", help="Nor finds it less probable than P."),
    options_of(Settings, names=("priors",)),
    heading="Schedule and caps",
)
"""Those of caps on events: see `caps_of`."""

release_options = options(noise_options, options_of(Schedule), cap_options)
"""How places are, or were, released: see `settings_of`, `caps_of` and `stated_settings_of`."""

region_options = options(
    click.option("--preset", help="A region: geolife, gowalla or cabspotting; --cell for other cells."),
    click.option("--bbox", nargs=4, type=float, metavar="S W N E", help="The region: south, west, north, east."),
    click.option(
        "--polygon",
        type=click.Path(),
        metavar="FILE",
        help="The region: the polygons of a layer (GeoJSON, KML, GeoPackage).",
    ),
    click.option("--town", metavar="NAME", help="The region: 20 km by 20 km around a town, found on the map on board."),
    click.option(
        "--extent", type=click.Path(), metavar="FILE", help="The region: the box of a layer that is not private."
    ),
    click.option("--places", type=click.Path(), metavar="FILE", help="Named places in a CSV: name, latitude, …"),
    click.option("--within", type=float, metavar="KM", help="With --places: how far from a place a fix may lie."),
    click.option("--cell", type=float, metavar="KM", help="The side of a cell of the region's grid, kilometres."),
    heading="Region",
)
"""The options of `space_of`."""

own_model_option = option(
    "--allow-own-model",
    heading="Promise",
    is_flag=True,
    default=None,
    help="Go on with people whose own data the model was learned from.",
)

seed_option = option(
    "--seed",
    heading="Experiments",
    type=click.IntRange(0),
    help="Repeatable noise, for experiments: the output is not private.",
)

REGION = ("preset", "bbox", "town", "polygon", "extent", "places", "within", "cell")


def refuse(names: Collection[str], why: str) -> None:
    """Refuse options of the running command that were given and would say nothing.

    Raises
    ------
    ConfigurationError
        Naming the first of them, and ``why`` it does not go with the others.
    """
    context = click.get_current_context()
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in names and source is ParameterSource.COMMANDLINE:
            raise ConfigurationError(f"{max(parameter.opts, key=len)} {why}; leave it out")


def data_of(paths: Sequence[str | Path], given: Mapping[str, Any]) -> Data:
    """What the paths and the `input_options` (as far as a command has them) say is to be read."""
    texts = {"format": given.get("format_"), "columns": columns_of(given.get("columns") or ())}
    names = {name: names_of(given.get(name)) for name in ("users", "exclude_users")}
    return Data.from_options(paths, {**given, **texts, **names})


def true_data(given: Mapping[str, Any], name: str = "true") -> Data | None:
    """What the `true_options` say, or the `known_options`, of everyone; None where they are not given."""
    return data_of(given[name], {**given, "users": None}) if given[name] else None


def adversaries_of(given: Mapping[str, Any]) -> Adversaries:
    """Who reads releases besides the public adversary, by the `adversary_options`."""
    from dphmm.jobs.adversaries import Adversaries

    return Adversaries(true_data(given, "known"), given["adversary_model"], given["knows"])


def space_of(given: Mapping[str, Any]) -> StateSpace:
    """The state space that the `region_options` describe; see `dphmm.jobs.region`."""
    from dphmm.jobs.models import region

    return region(**{name: given[name] for name in REGION})


def long_option(key: str) -> str:
    """The long option of a key."""
    return f"--{key.replace('_', '-')}"


def settings_of(
    given: Mapping[str, Any], named: Callable[[str], str] = long_option, elsewhere: str = "", for_a_day: bool = False
) -> ReleaseSettings:
    """How to release, out of the `release_options`.

    Parameters
    ----------
    given
        Name → value; None where the option was not given.
    named
        What messages call a setting by.
    elsewhere
        Where a setting that is missing may be said but in its option, with braces for its name.
    for_a_day
        Whether a policy and a budget that are missing are those of `ReleaseSettings.for_a_day`.

    Raises
    ------
    ConfigurationError, BudgetError
        Naming the option that is missing or of a wrong value.
    """
    from dphmm.policy.expression import with_buffer
    from dphmm.release.engine import ReleaseSettings
    from dphmm.release.settings import A_DAY, A_DRAW, NAMES

    values = {name: given[name] for name in NAMES if given.get(name) is not None}
    if for_a_day:
        budgets = [name for name in ("epsilon", "schedule", *AIMS) if given.get(name) is not None]
        given = given if budgets else {**given, "day_epsilon": A_DAY}
        values = values if "epsilon" in budgets else {"policy": ReleaseSettings().policy, "epsilon": A_DRAW, **values}
    values |= _aimed(given, named)
    if given.get("buffer") is not None and "policy" in values:
        values["policy"] = with_buffer(values["policy"], given["buffer"])
    for name in ("policy", "epsilon"):
        if name not in values:
            raise ConfigurationError(f"{name} is missing; give --{name}{elsewhere.format(name)}")
    try:
        return ReleaseSettings.from_dict(values)
    except InvalidInputError as problem:
        name, _, said = str(problem).partition(" ")
        raise type(problem)(f"{named(name)} {said}") from None


def stated_settings_of(given: dict[str, Any]) -> ReleaseSettings | str | None:
    """What is said of the settings that releases were made with: nothing, the policy's text, or everything."""
    from dphmm.release.settings import NAMES

    given["caps"] = caps_of(given) if given["never_surer"] or given["never_less"] else None
    said = [name for name in (*NAMES, *AIMS) if given.get(name) is not None]
    return None if not said else policy_text(given) if said == ["policy"] else settings_of(given)


def policy_text(given: Mapping[str, Any]) -> str:
    """The policy's text, with its zones as wide as ``--buffer`` says."""
    from dphmm.policy.expression import with_buffer

    text = str(given["policy"])
    return text if given["buffer"] is None else with_buffer(text, given["buffer"])


def _aimed(given: Mapping[str, Any], named: Callable[[str], str]) -> dict[str, Any]:
    """The schedule that the options of `AIMS` say, and the greatest budget of a release where that follows."""
    target, day, window = (given.get(name) for name in AIMS)
    if window is not None and day is None:
        raise ConfigurationError(f"{named('epsilon_window')} is for a budget; give --day-epsilon, what it may hold")
    if target is None and day is None:
        return {}
    if given.get("schedule") is not None:
        raise ConfigurationError(f"{named('schedule')} is given twice; say it by the options, or by the key")
    from dphmm.release.ledger import DAY_SECONDS
    from dphmm.release.settings import Schedule
    from dphmm.tables.values import shown

    for name, value in (("target_error", target), ("epsilon_window", window)):
        if value is not None and not isinstance(value, str):
            raise ConfigurationError(f"{named(name)} is {shown(value)}; give a text with its unit, such as '500m'")
    try:
        schedule = Schedule(
            None if target is None else kilometres_of(target, named("target_error")),
            day,
            DAY_SECONDS if window is None else seconds_of(window, named("epsilon_window")),
        )
    except ConfigurationError as problem:
        said = str(problem).replace("window_epsilon", named("day_epsilon"))
        raise ConfigurationError(said.replace("target_error", named("target_error"), 1)) from None
    most = {} if given.get("epsilon") is not None or day is None else {"epsilon": day}
    return {"schedule": schedule, **most}


def caps_of(given: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """The caps that the `cap_options` say; None for none.

    One probability goes for all events, otherwise there is one for each, in their order.

    Raises
    ------
    ConfigurationError
        When there are events and no cap, or caps and no event, or another number of them.
    EventError
        When an event cannot be read, or a probability is none.
    """
    events, most, least = given["events"], given["never_surer"], given["never_less"]
    if not (events or most or least):
        return None
    if not events or not most:
        missing = "--event" if not events else "--never-surer"
        raise ConfigurationError(f"{missing} is missing; a cap is --never-surer 0.7 --event 'at:home on 2024-03-04'")
    from dphmm.events.cap import Cap

    for name, numbers in (("--never-surer", most), ("--never-less", least)):
        if len(numbers) not in (0, 1, len(events)):
            raise ConfigurationError(f"{name} is given {len(numbers)} times for {len(events)} events; give it once")
    caps = []
    for number, event in enumerate(events):
        cap, floor = (numbers[number if len(numbers) > 1 else 0] if numbers else 0.0 for numbers in (most, least))
        caps.append(Cap(event, cap, floor))
    return tuple(caps)


def seconds_of(text: str, what: str) -> float:
    """A duration such as ``30s``, ``5m``, ``1.5h`` or ``1d``, in seconds.

    Raises
    ------
    ConfigurationError
        Naming ``what`` was no such text.

    Examples
    --------
    >>> seconds_of("5m", "--clock-skew")
    300.0
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ConfigurationError(f"{what} is {text!r}; give a time such as 30s, 5m, 1h or 1d")
    return float(found[1]) * _SECONDS[found[2]]


def kilometres_of(text: str, what: str) -> float:
    """A length such as ``500m`` or ``1.2km``, in kilometres.

    Raises
    ------
    ConfigurationError
        When it is none, or not positive.

    Examples
    --------
    >>> kilometres_of("500m", "--least-error")
    0.5
    """
    from dphmm.errors import PolicyError
    from dphmm.policy.lengths import kilometres

    try:
        length = kilometres(text)
    except PolicyError:
        length = 0.0
    if not length > 0:
        raise ConfigurationError(f"{what} is {text!r}; give a length with its unit, such as 500m or 1.2km")
    return length


def names_of(text: str | None) -> tuple[str, ...]:
    """The names in a comma-separated text."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def columns_of(pairs: Sequence[str]) -> dict[str, str]:
    """What each column holds → its name, out of ``WHAT=NAME`` texts.

    Raises
    ------
    ConfigurationError
        For a text without an equals sign.
    """
    columns = {}
    for pair in pairs:
        what, equals, name = pair.partition("=")
        if not (what and equals and name):
            raise ConfigurationError(f"--column {pair!r} names no column; give it as time=timestamp")
        columns[what.strip()] = name.strip()
    return columns


engine_options = options(
    click.option("--engine", default="processes", show_default=True, type=click.Choice(["processes", "dask"])),
    click.option("--workers", type=COUNT, help="Processes on this machine. [default: one per processor]"),
    click.option("--scheduler", metavar="ADDRESS", help="Of a Dask cluster, such as tcp://10.0.0.5:8786."),
    heading="Workers",
)


def engine_of(given: Mapping[str, Any]) -> Engine:
    """Who works, by the options.

    Raises
    ------
    ConfigurationError
        When they contradict each other.
    MissingDependencyError
        For Dask without distributed.
    """
    from dphmm.jobs.workers import DaskCluster, Processes

    workers, scheduler = given["workers"], given["scheduler"]
    if given["engine"] == "dask":
        if scheduler is None:
            raise ConfigurationError("--engine dask needs a cluster; give its --scheduler, such as tcp://10.0.0.5:8786")
        if workers is not None:
            raise ConfigurationError("--workers is for processes; a Dask cluster has its own")
        return DaskCluster(scheduler)
    if scheduler is not None:
        raise ConfigurationError("--scheduler is for Dask; give --engine dask too")
    return Processes(workers)
