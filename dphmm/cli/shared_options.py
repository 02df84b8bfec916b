"""Options shared by several commands, many of them derived from the fields of settings.

They specify the input data, the settings of releases, the region and the workers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from dphmm.cli.console import echo
from dphmm.cli.keys import (
    NAME_LIST,
    NUMBER,
    STRINGS,
    TABLE,
    TABLES,
    as_keys,
    declare_key,
    get_parameter_name,
    name_parameters_in_errors,
)
from dphmm.errors import ConfigurationError
from dphmm.jobs.input_data import Data
from dphmm.readers.fixes import DETAIL_QUANTITIES, FIX_QUANTITIES
from dphmm.release.settings import Schedule, Settings
from dphmm.validation import FLAG, MAPPING, Choice, Integers, Interval, Option, get_field_requirements, get_option

if TYPE_CHECKING:
    from dphmm.jobs.audit.adversaries import Adversaries
    from dphmm.jobs.audit.uses import UsesSettings
    from dphmm.jobs.batch.workers import Engine
    from dphmm.release.engine import ReleaseSettings
    from dphmm.space.states import StateSpace

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

# The fields of a `ReleaseSettings` that are options. The others are keys of a settings file.
EVERYDAY = ("policy", "epsilon", "mechanism", "delta", "noise_scope")

# Annotation → the type of values with different forms on the command line and in files.
_TYPES = {"Rational": NUMBER, "tuple[str, ...]": NAME_LIST}

# The type of a positive number, which is checked before anything is read.
POSITIVE = click.FloatRange(0, min_open=True)
# The type of a positive integer, which is checked before anything is read.
COUNT = click.IntRange(1)


def compose(*decorators: Callable[[Any], Any], heading: str = "") -> Callable[[Decorated], Decorated]:
    """Compose decorators of options into one, in the order of help.

    Parameters
    ----------
    *decorators
        Results of `click.option`, or of this function.
    heading
        The heading of all of them in help. Defaults to their own headings.
    """

    def add(command: Decorated) -> Decorated:
        num_existing = len(getattr(command, "__click_params__", ()))
        for decorator in reversed(decorators):
            command = decorator(command)
        for parameter in getattr(command, "__click_params__", ())[num_existing:] if heading else ():
            vars(parameter)["heading"] = heading
        return command

    return add


def declare_option(*names: str, heading: str, **attributes: Any) -> Callable[[Decorated], Decorated]:
    """Return the decorator `click.option` with a heading in help."""
    return compose(click.option(*names, **attributes), heading=heading)


def build_options(
    kind: type, names: Collection[str] = (), without: Collection[str] = (), **texts: str
) -> Callable[[Decorated], Decorated]:
    """Return a decorator with the options of a dataclass's fields.

    An option that is not used is None. The default of a field is therefore defined by the dataclass only.

    Parameters
    ----------
    kind
        A dataclass with fields of `dphmm.validation.declare_setting`; other fields are ignored.
    names, without
        Only these fields; all but these.
    **texts
        Field → its help in this command.
    """
    selected = [member for member in fields(kind) if member.name not in without and (not names or member.name in names)]
    options = [(member, option) for member in selected if (option := get_option(member)) is not None]
    return compose(*(_declare(kind, member, option, texts.get(member.name, option.help)) for member, option in options))


def get_option_name(member: Field[Any]) -> str:
    """Return the name of a field's option, with underscores."""
    about = get_option(member)
    return member.name if about is None else about.name or member.name


def _declare(kind: type, member: Field[Any], about: Option, text: str) -> Callable[[Any], Any]:
    name = get_option_name(member)
    required = next(iter(get_field_requirements(kind, member.name)), None)
    is_sequence = required is MAPPING
    default = f" [default: {member.default}]" if about.shows_default and member.default is not MISSING else ""
    words = required.words if isinstance(required, Choice) else ()
    choices = f": {', '.join(words)}." if words and words[0] not in text else ""
    number = float if isinstance(required, Interval) else int if isinstance(required, Integers) else None
    # The message of a wrong word on the command line comes from the settings; a key is checked with its file.
    choice = click.Choice(words) if words and member.name not in EVERYDAY else None
    declare = declare_option(
        f"--{name.replace('_', '-').removesuffix('s') if is_sequence else name.replace('_', '-')}",
        name,
        heading=about.heading,
        help=f"{text}{choices}{default}",
        metavar=about.metavar,
        default=None,
        multiple=is_sequence,
        **(
            {"is_flag": True}
            if required is FLAG
            else {"type": None if about.is_text else _TYPES.get(str(member.type), number or choice)}
        ),
    )

    def add(command: Any) -> Any:
        command = declare(command)
        vars(command.__click_params__[-1])["declared"] = None if about.is_text else required
        return command

    return add


_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])", re.ASCII)

EVENT_HELP = "Event over time, such as 'at:clinic.geojson on 2024-03-04'."


def parse_store(context: click.Context, parameter: click.Parameter, value: str) -> str | Path:  # noqa: ARG001 - click's signature
    """Convert an argument to a path. The address of a server remains a string."""
    from dphmm.release.database_backends import is_server

    return value if is_server(value) else Path(value)


def build_reading_options(
    names: Sequence[str], keys: Collection[str] | None = None, **texts: str
) -> Callable[[Decorated], Decorated]:
    """Return a decorator with the options and keys that specify the reading of trajectories.

    Parameters
    ----------
    names
        The fields of `Data` that are options.
    keys
        The fields that are keys. Defaults to all others.
    **texts
        Option → its help in this command.
    """
    others = [member.name for member in fields(Data) if member.name not in names]
    key_names = [name for name in others if (keys is None or name in keys) and name != "columns"]
    # A mapping is a table in a file.
    columns = click.option("--columns", type=STRINGS, help="Columns by their content: user, time, latitude, …")
    declared = as_keys(columns, build_options(Data, names=key_names))
    shown = [name for name in names if name != "columns"]
    column = (_column_option,) if "columns" in names else ()
    return compose(build_options(Data, names=shown, **texts), *column, declared)


_column_option = declare_option(
    "--column",
    "column",
    heading="Data",
    multiple=True,
    metavar="WHAT=NAME",
    help="Column of user, time, latitude, …, by name or number. Repeatable.",
)

# The fields of `Data` that specify the reading of tables, as options.
TABLE_OPTIONS = ("columns", "time_format", "time_zone", "skip_bad")

# The options of `build_data`.
input_options = build_reading_options(("input_format", "user", "users", "exclude_users", *TABLE_OPTIONS))
# The options of `build_data` for commands that release.
release_input_options = build_reading_options(("user", "users", *TABLE_OPTIONS))
# The names of the options and keys of `build_data`.
READING = ("column", *(member.name for member in fields(Data) if get_option(member)))


# A recording has further details, and a line of a stream can request a budget.
_QUANTITIES = (*FIX_QUANTITIES, *DETAIL_QUANTITIES, "epsilon")


def get_columns(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the columns of the key ``columns`` and of ``--column``, which overrides it.

    ``NAME=WHAT`` is accepted too, unless the name is also one of the quantities.

    Raises
    ------
    ConfigurationError
        If an option is not of the form ``WHAT=NAME``, or names a quantity twice.
    """
    named_columns: dict[str, str] = {}
    for text in values.get("column") or ():
        what, equals, name = text.partition("=")
        what, name = what.strip(), name.strip()
        if what not in _QUANTITIES and name in _QUANTITIES:
            what, name = name, what
        if not equals or not name or what not in _QUANTITIES:
            quantities = ", ".join(_QUANTITIES)
            raise ConfigurationError(f"--column must be WHAT=NAME with WHAT one of {quantities}, got {text!r}")
        if what in named_columns:
            raise ConfigurationError(f"--column must name {what} once, got {named_columns[what]!r} and {name!r}")
        named_columns[what] = name
    return {**(values.get("columns") or {}), **named_columns}


users_option = click.option("--users", type=NAME_LIST, metavar="A,B,…", help="Only these users.")


def _format_options(name: str, heading: str) -> Callable[[Decorated], Decorated]:
    """Return the options that specify the reading of another option's trajectories."""
    return compose(
        build_reading_options(
            ("input_format", "user"),
            ("columns", "time_format", "time_zone", "user_per_file"),
            input_format=f"Format of --{name}. [default: detected]",
            user=f"User of all of --{name}. [default: the users in the files]",
        ),
        heading=heading,
    )


def _build_data_options(name: str, words: str, heading: str) -> Callable[[Decorated], Decorated]:
    """Return an option for trajectories, with the options that specify their reading."""
    trajectories = click.option(f"--{name}", multiple=True, type=click.Path(), help=words)
    return compose(trajectories, _format_options(name, heading), heading=heading)


# The options of `build_true_data`.
true_options = _build_data_options("true", "True trajectories: the result is private.", "True locations")
# The options of `build_true_data` for earlier data.
known_options = _build_data_options("auxiliary-data", "Earlier data of the candidates, by user name.", "Candidates")
# The options that specify the reading of earlier data, for commands with `adversary_options`.
known_format_options = _format_options("auxiliary-data", "Other adversaries")
# The options that specify the reading of the data of an audit of membership.
membership_format_options = _format_options("members, --others and --synthetic", "Data")

map_adversary_option = declare_option(
    "--map",
    "adversary_map",
    heading="Other adversaries",
    metavar="FILE",
    help="Map of an adversary: 'coast' (bundled) or a file with water.",
)

# The options of `build_uses`.
uses_options = compose(
    click.option("--uses", is_flag=True, help="Measure monitoring, epidemic analysis, contact tracing."),
    declare_key("--area-cells", type=int, default=4, help="With --uses: side of an area of monitoring in cells."),
    declare_key("--transmission", type=float, default=0.05, help="With --uses: infection per hour of contact."),
    declare_key("--infectious-hours", type=float, default=24.0, help="With --uses: hours for which a user infects."),
)

# The options of `build_adversaries`.
adversary_options = compose(
    declare_key("--adversary-prior", type=click.Path(), help="Another prior: a .csv with columns state, probability."),
    click.option(
        "--auxiliary-data", multiple=True, type=click.Path(), help="Earlier data of the users, known to an adversary."
    ),
    click.option(
        "--adversary-model", type=click.Path(), metavar="FILE", help="Another model, assumed by an adversary."
    ),
    click.option(
        "--auxiliary-location",
        multiple=True,
        metavar="PLACE",
        help="Location known to an adversary: home, work or a place of an event.",
    ),
    map_adversary_option,
    heading="Other adversaries",
)

earlier_option = declare_key(
    "--auxiliary-data",
    multiple=True,
    type=click.Path(),
    help="Earlier data of the users: report what an adversary with it infers.",
)

# The options and keys of the noise: the fields of a `ReleaseSettings` without event caps and schedule.
noise_options = compose(
    build_options(Settings, names=EVERYDAY), as_keys(build_options(Settings, without=(*EVERYDAY, "event_cap_priors")))
)

# The names of the options and keys of a schedule.
AIMS = tuple(get_option_name(member) for member in fields(Schedule))

# The fields of a schedule that are options.
_AIM_OPTIONS = ("target_error", "window_epsilon")

# The options of `build_caps`.
cap_options = compose(
    click.option("--event", "events", multiple=True, metavar="TEXT", help=f"{EVENT_HELP} Repeatable."),
    click.option(
        "--max-event-probability",
        type=float,
        multiple=True,
        metavar="P",
        help="Bound on the posterior probability of --event, given the model.",
    ),
    declare_key(
        "--min-event-probability",
        type=float,
        multiple=True,
        help="Lower bound on the posterior probability of the event.",
    ),
    as_keys(build_options(Settings, names=("event_cap_priors",))),
    declare_key("--caps", type=TABLES, help="Event caps as tables of event, probability and min_probability."),
    heading="Schedule and caps",
)

# The options of `build_settings`, `build_caps` and `build_stated_settings`.
release_options = compose(
    noise_options,
    build_options(Schedule, names=_AIM_OPTIONS),
    as_keys(build_options(Schedule, without=_AIM_OPTIONS)),
    declare_key("--schedule", type=TABLE, help="Schedule as a table: target_error, window_epsilon, …"),
    declare_key("--layers", type=TABLES, help="Polygons of the policy, as tables of name and geojson."),
    cap_options,
)

# The options of `build_space`.
region_options = compose(
    click.option("--preset", help="Region: geolife, gowalla or cabspotting; --cell for other cells."),
    click.option("--bbox", nargs=4, type=float, metavar="S W N E", help="Region: south, west, north, east, degrees."),
    click.option(
        "--polygon",
        type=click.Path(),
        metavar="FILE",
        help="Region: the polygons of a layer (GeoJSON, KML, GeoPackage).",
    ),
    click.option("--town", metavar="NAME", help="Region: 20 km by 20 km around a town, such as Wien or 'Paris, TX'."),
    click.option("--places", type=click.Path(), metavar="FILE", help="CSV of named places: name, latitude, longitude."),
    click.option(
        "--streets",
        type=click.Path(),
        metavar="FILE",
        help="Region: segments of streets of a public map, within --bbox or --town.",
    ),
    click.option("--cell", type=float, metavar="KM", help="Side of a grid cell, or longest segment, kilometres."),
    declare_key("--extent", type=click.Path(), help="Region: the bounding box of a layer, which must be public."),
    declare_key("--within", type=float, help="With --places or --streets: maximum distance of a fix, kilometres."),
    heading="Region",
)

# The options of `dphmm.jobs.region_map`.
map_options = compose(
    click.option(
        "--map",
        "region_map",
        metavar="FILE",
        help="Public map for the attraction of cells: FILE of streets, coast or none.",
    ),
    click.option(
        "--only-on", type=click.Path(), metavar="LAYER", help="Keep only cells that share area with a public layer."
    ),
    heading="Region",
)

own_model_option = declare_key(
    "--allow-training-users", is_flag=True, default=None, help="Release users on whose data the model was trained."
)

seed_option = declare_option(
    "--seed",
    heading="Experiments",
    type=click.IntRange(0),
    help="Seed of the noise, for experiments: the output is not private.",
)

REGION = ("preset", "bbox", "town", "polygon", "extent", "places", "streets", "within", "cell")


def refuse(names: Collection[str], reason: str) -> None:
    """Refuse options of the running command that would have no effect.

    Raises
    ------
    ConfigurationError
        For the first of them that was used, with the reason.
    """
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        is_used = context.get_parameter_source(name) in (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)
        if name in names and is_used:
            shown_name = get_parameter_name(name)
            raise ConfigurationError(f"{shown_name} {reason}: remove {shown_name.rpartition(': ')[2]}")


def build_data(paths: Sequence[str | Path], values: Mapping[str, Any]) -> Data:
    """Return the data of paths and of the `input_options` that the command has."""
    return Data.from_options(paths, {**values, "columns": get_columns(values)})


def require_model(model: str | Path | None, data: Sequence[str | Path]) -> None:
    """Raise an error with the command that creates a model, unless there is one.

    Parameters
    ----------
    model
        The option ``--model``.
    data
        The data to release.

    Raises
    ------
    ConfigurationError
        If there is no model.
    """
    if model is not None:
        return
    raise ConfigurationError(
        "--model is missing: 'dphmm model blank --town TOWN -o model.npz' creates one without data (or, instead of the "
        "town, --bbox SOUTH WEST NORTH EAST); then add --model model.npz. A model is public: do not choose its region "
        f"by the extent of {data[0] if data else 'your locations'}"
    )


def build_true_data(values: Mapping[str, Any], name: str = "true") -> Data | None:
    """Return the data of the `true_options` or `known_options`. None if they are not used."""
    return build_data(values[name], {**values, "users": None}) if values[name] else None


def build_uses(values: Mapping[str, Any]) -> UsesSettings | None:
    """Return the assumptions of the `uses_options`. None if uses are not requested."""
    from dphmm.jobs.audit.uses import UsesSettings

    if not values["uses"]:
        return None
    return UsesSettings(values["area_cells"], values["transmission"], values["infectious_hours"])


def build_adversaries(values: Mapping[str, Any]) -> Adversaries:
    """Return the adversaries of the `adversary_options`, in addition to the public adversary."""
    from dphmm.jobs.audit.adversaries import Adversaries

    return Adversaries(
        build_true_data(values, "auxiliary_data"),
        values["adversary_model"],
        values["auxiliary_location"],
        values["adversary_map"],
    )


def build_space(values: Mapping[str, Any]) -> StateSpace:
    """Return the state space of the `region_options`. See `dphmm.jobs.region`."""
    from dphmm.jobs.model.region import region

    lengths = {"cell_km": values["cell"], "within_km": values["within"]}
    with name_parameters_in_errors(cell_km="cell", within_km="within"):
        space = region(**lengths, **{name: values[name] for name in REGION if name not in ("cell", "within")})
    print_town(values["town"])
    return space


def print_town(name: str | None) -> None:
    """Print the town that a name chooses, with country and coordinates, to standard error."""
    if name is None:
        return
    from dphmm.space.towns import find_town

    town = find_town(name)
    others = (
        f"; the name of {town.num_others:,} smaller town{'s' if town.num_others > 1 else ''} too"
        if town.num_others
        else ""
    )
    echo(f"Region: 20 km by 20 km around {town}{others}.", err=True)


def build_settings(values: Mapping[str, Any], for_a_day: bool = False) -> ReleaseSettings:
    """Return the settings of the `release_options`.

    Parameters
    ----------
    values
        Name → value; None if the option was not used.
    for_a_day
        Whether a missing policy and budget default to those of `ReleaseSettings.for_a_day`.

    Raises
    ------
    ConfigurationError, BudgetError
        For a missing option or an invalid value; names the option.
    """
    from dphmm.release.engine import ReleaseSettings
    from dphmm.release.settings import DEFAULT_DAILY_EPSILON, DEFAULT_DRAW_EPSILON, SETTING_NAMES

    settings = {name: values[name] for name in SETTING_NAMES if values.get(name) is not None}
    if for_a_day:
        budgets = [name for name in ("epsilon", "schedule", *AIMS) if values.get(name) is not None]
        if not budgets:
            values = {**values, "window_epsilon": DEFAULT_DAILY_EPSILON}
        if "epsilon" not in budgets:
            settings = {"policy": ReleaseSettings().policy, "epsilon": DEFAULT_DRAW_EPSILON, **settings}
    settings |= _schedule_settings(values)
    for name in ("policy", "epsilon"):
        if name not in settings:
            raise ConfigurationError(f"{name} is missing: use --{name}")
    return ReleaseSettings.from_dict(settings)


def build_stated_settings(values: dict[str, Any], needs_caps: bool = True) -> ReleaseSettings | str | None:
    """Return the stated settings of existing releases: none, a policy, or all settings.

    Events without a cap are refused, unless the command has another use for them.
    """
    from dphmm.release.settings import SETTING_NAMES

    if values["max_event_probability"] or values["min_event_probability"] or (needs_caps and values["events"]):
        values["caps"] = build_caps(values)
    used = [name for name in (*SETTING_NAMES, *AIMS) if values.get(name) is not None]
    return None if not used else str(values["policy"]) if used == ["policy"] else build_settings(values, for_a_day=True)


def _schedule_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schedule of the options `AIMS`, and the budget of a release if it follows."""
    target, budget, window = (values.get(name) for name in AIMS)
    if window is not None and budget is None:
        raise ConfigurationError(f"{get_parameter_name(AIMS[2])} needs a budget: use --window-epsilon")
    if target is None and budget is None:
        return {}
    if values.get("schedule") is not None:
        raise ConfigurationError(
            f"{get_parameter_name('schedule')} cannot be combined with the options of a schedule: use one of them"
        )
    from dphmm.release.ledger import DAY_SECONDS
    from dphmm.release.settings import Schedule

    try:
        schedule = Schedule(
            None if target is None else parse_kilometres(target, get_parameter_name("target_error")),
            budget,
            DAY_SECONDS if window is None else parse_seconds(window, get_parameter_name(AIMS[2])),
        )
    except ConfigurationError as problem:
        message = str(problem).replace("window_epsilon", get_parameter_name("window_epsilon"))
        raise ConfigurationError(message.replace("target_error", get_parameter_name("target_error"), 1)) from None
    epsilon = {} if values.get("epsilon") is not None or budget is None else {"epsilon": budget}
    return {"schedule": schedule, **epsilon}


def build_caps(values: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Return the event caps of the `cap_options`. None for none.

    A single probability applies to all events. Otherwise there is one per event, in their order.

    Raises
    ------
    ConfigurationError
        If there are events without caps or caps without events, or their numbers differ.
    EventError
        If an event or a probability is invalid.
    """
    events = values["events"]
    max_probabilities = values["max_event_probability"]
    min_probabilities = values["min_event_probability"]
    if not (events or max_probabilities or min_probabilities):
        return values.get("caps")
    if values.get("caps"):
        raise ConfigurationError(f"{get_parameter_name('caps')} cannot be combined with --event: use one of them")
    if not events or not max_probabilities:
        missing = "--event" if not events else "--max-event-probability"
        raise ConfigurationError(
            f"{missing} is missing: use --max-event-probability 0.7 --event 'at:home on 2024-03-04', for example"
        )
    from dphmm.events.cap_budget import Cap

    bounds = ("max_event_probability", max_probabilities), ("min_event_probability", min_probabilities)
    for name, probabilities in bounds:
        if len(probabilities) not in (0, 1, len(events)):
            raise ConfigurationError(
                f"{get_parameter_name(name)} must occur once or once per event, got {len(probabilities)} for "
                f"{len(events)} events"
            )

    def get_bound(probabilities: Sequence[float], index: int) -> float:
        return probabilities[index if len(probabilities) > 1 else 0] if probabilities else 0.0

    return tuple(
        Cap(event, get_bound(max_probabilities, index), get_bound(min_probabilities, index))
        for index, event in enumerate(events)
    )


def parse_seconds(text: str, what: str) -> float:
    """Convert a duration such as ``30s``, ``5m``, ``1.5h`` or ``1d`` to seconds.

    Raises
    ------
    ConfigurationError
        If the duration is invalid; the message starts with ``what``.

    Examples
    --------
    >>> parse_seconds("5m", "--clock-skew")
    300.0
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ConfigurationError(f"{what} must be a duration such as 30s, 5m, 1h or 1d, got {text!r}")
    return float(match[1]) * _SECONDS[match[2]]


def parse_kilometres(text: str, what: str) -> float:
    """Convert a length such as ``500m`` or ``1.2km`` to kilometres.

    Raises
    ------
    ConfigurationError
        If the length is invalid or not positive; the message starts with ``what``.

    Examples
    --------
    >>> parse_kilometres("500m", "--adversary-error")
    0.5
    """
    from dphmm.errors import PolicyError
    from dphmm.policy.lengths import parse_length

    try:
        length = parse_length(text)
    except PolicyError:
        length = 0.0
    if not length > 0:
        raise ConfigurationError(f"{what} must be a length with its unit, such as 500m or 1.2km, got {text!r}")
    return length


engine_options = compose(
    click.option("--workers", type=COUNT, help="Processes on this machine. [default: one per processor]"),
    declare_key(
        "--engine",
        default="processes",
        type=click.Choice(["processes", "dask"]),
        help="Workers: processes on this machine, or a Dask cluster.",
    ),
    declare_key("--scheduler", help="Address of a Dask cluster, such as tcp://10.0.0.5:8786."),
    heading="Workers",
)


def build_engine(values: Mapping[str, Any]) -> Engine:
    """Return the workers of the `engine_options`.

    Raises
    ------
    ConfigurationError
        If the options conflict.
    MissingDependencyError
        For Dask if distributed is not installed.
    """
    from dphmm.jobs.batch.workers import DaskCluster, Processes

    workers, scheduler = values["workers"], values["scheduler"]
    if values["engine"] == "dask":
        if scheduler is None:
            raise ConfigurationError("engine 'dask' needs a cluster: set scheduler, such as 'tcp://10.0.0.5:8786'")
        if workers is not None:
            raise ConfigurationError("--workers cannot be combined with a Dask cluster, which has its own workers")
        return DaskCluster(scheduler)
    if scheduler is not None:
        raise ConfigurationError(f"{get_parameter_name('scheduler')} needs Dask: set engine = 'dask' too")
    return Processes(workers)
