"""Options that several commands share: what to read and whose, how to release, which region."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dphmm.errors import ConfigurationError, InvalidInputError

if TYPE_CHECKING:
    from dphmm.jobs.people import Data
    from dphmm.release.settings import ReleaseSettings
    from dphmm.space.states import StateSpace

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])", re.ASCII)

POLICY_HELP = "What must stay indistinguishable: utility:1km, complete, transition, categorical:LAYER.geojson, zone:…"

EVENT_HELP = "An event over time, such as 'at:clinic.geojson between 2024-03-04 and 2024-03-10'."


def store_of(context: click.Context, parameter: click.Parameter, value: str) -> str | Path:  # noqa: ARG001 - as click calls it
    """A file of releases or sessions, or the address of a PostgreSQL server that keeps sessions."""
    from dphmm.release.postgres import is_server

    return value if is_server(value) else Path(value)


def options(*several: Callable[[Any], Any]) -> Callable[[Decorated], Decorated]:
    """One decorator out of several options, in the order in which help lists them."""

    def add(command: Decorated) -> Decorated:
        for option in reversed(several):
            command = option(command)
        return command

    return add


_time_options = options(
    click.option("--time-unit", metavar="UNIT", help="In tables: what numbers count since 1970: s, ms, us or ns."),
    click.option(
        "--time-zone", metavar="ZONE", help="In tables: the zone of times that do not say theirs. [default: UTC]"
    ),
)

input_options = options(
    click.option("--format", "format_", help="geolife, checkins, table, gpx or owntracks. Left out, recognised."),
    click.option("--column", "columns", multiple=True, metavar="WHAT=NAME", help="In tables and lines: user, time, …"),
    _time_options,
    click.option("--user", help="Whose places all of DATA are, where it does not say or says otherwise."),
    click.option("--user-per-file", is_flag=True, default=None, help="Files that do not say whose they are: one each."),
    click.option("--users", metavar="A,B,…", help="These users alone."),
    click.option("--exclude-users", metavar="A,B,…", help="Everyone but these users."),
    click.option("--skip-bad", is_flag=True, default=None, help="Pass over malformed records and count them."),
)
"""The options of `data_of`."""

true_options = options(
    click.option("--true", "true", multiple=True, type=click.Path(), help="True trajectories: the result is private."),
    click.option("--format", "format_", help="The format of --true. Left out, recognised."),
    click.option("--column", "columns", multiple=True, metavar="WHAT=NAME", help="Columns of --true, in tables."),
    _time_options,
    click.option("--user", help="Whose places all of --true are, where it does not say or says otherwise."),
    click.option("--user-per-file", is_flag=True, help="Files of --true that do not say whose they are: one each."),
)
"""The options of `true_data`."""

buffer_option = click.option(
    "--buffer", metavar="LENGTH", help="Widen the policy's zones by the places they are entered from, up to LENGTH."
)

noise_options = options(
    click.option("--policy", help=POLICY_HELP),
    buffer_option,
    click.option("--epsilon", type=float, help="The privacy budget of each release."),
    click.option(
        "--mechanism",
        help="lattice (exact on a computer), k-norm, laplace, planar-isotropic, planar-laplace; by table: "
        "optimal, graph-exponential. [default: lattice]",
    ),
    click.option("--repair", help="How exposed states get partners: greedy, sequential or exact. [default: exact]"),
    click.option("--objective", help="What the exact repair minimises: error or volume. [default: error]"),
    click.option("--membership", help="How membership in a hull is decided: halfspace or qp. [default: halfspace]"),
    click.option("--delta", type=float, help="Hide among the most probable states of mass 1 - delta alone."),
    click.option("--allow-known", is_flag=True, default=None, help="Go on where one state only is possible."),
    click.option("--spacing", metavar="KM", help="For lattice: the step of the published lattice. [default: 1/1000]"),
    click.option("--outside", help="A place outside the region: border (the nearest state) or omit. [default: border]"),
    click.option(
        "--repair-limit", type=int, help="Work of an exact repair, about a second per thousand. [default: 5000]"
    ),
    click.option(
        "--calibration", help="Noise measured for the whole graph, or for each component alone. [default: graph]"
    ),
    click.option(
        "--optimal-limit",
        type=int,
        help="For optimal: the most states of a component, and a quarter of a zone's. [default: 64]",
    ),
    click.option("--fallback", help="For optimal, above that: graph-exponential, or none to refuse. [default: none]"),
)
"""The options of a `ReleaseSettings`, one for each of its fields but caps on events and its schedule."""

settings_options = options(
    noise_options,
    click.option(
        "--target-error", metavar="500m", help="Draw only where the estimate's expected error would be above this."
    ),
    click.option(
        "--day-epsilon", type=float, help="Draw so that no 24 hours cost more, and the budget lasts for all of them."
    ),
    click.option("--epsilon-window", metavar="TIME", help="With --day-epsilon: a window such as 8h instead of a day."),
)
"""The same with the options of a schedule: see `AIMS`."""

AIMS = ("target_error", "day_epsilon", "epsilon_window")
"""The options of a schedule."""

event_option = click.option("--event", "events", multiple=True, metavar="TEXT", help=f"{EVENT_HELP} May be repeated.")

cap_options = options(
    click.option(
        "--never-surer", type=float, multiple=True, metavar="P", help="No output makes --event more probable than P."
    ),
    click.option("--never-less", type=float, multiple=True, metavar="P", help="Nor less probable than P."),
    click.option("--priors", type=click.Path(), metavar="FILE.csv", help="For these priors too: a column for each."),
)
"""With `event_option` those of caps on events: see `caps_of`."""

region_options = options(
    click.option("--preset", help="A region: geolife, gowalla or cabspotting; --cell for other cells."),
    click.option("--bbox", nargs=4, type=float, metavar="S W N E", help="The region: south, west, north, east."),
    click.option(
        "--polygon",
        type=click.Path(),
        metavar="FILE",
        help="The region: the polygons of a layer (GeoJSON, KML, GeoPackage).",
    ),
    click.option("--places", type=click.Path(), metavar="FILE", help="Named places in a CSV: name, latitude, …"),
    click.option("--within", type=float, metavar="KM", help="With --places: how far from a place a fix may lie."),
    click.option("--cell", type=float, metavar="KM", help="The side of a cell of the region's grid, kilometres."),
)
"""The options of `space_of`."""

own_model_option = click.option(
    "--allow-own-model", is_flag=True, default=None, help="Go on with people whose own data the model was learned from."
)

REGION = ("preset", "bbox", "polygon", "places", "within", "cell")


def data_of(paths: Sequence[str | Path], given: Mapping[str, Any]) -> Data:
    """What the paths and the `input_options` (as far as a command has them) say is to be read."""
    from dphmm.jobs.people import Data

    return Data(
        tuple(paths),
        given.get("format_"),
        columns_of(given.get("columns") or ()),
        names_of(given.get("users")),
        names_of(given.get("exclude_users")),
        bool(given.get("skip_bad")),
        given.get("user"),
        bool(given.get("user_per_file")),
        given.get("time_unit"),
        given.get("time_zone"),
    )


def true_data(given: Mapping[str, Any]) -> Data | None:
    """What the `true_options` say, of everyone; None where they are not given."""
    return data_of(given["true"], {**given, "users": None}) if given["true"] else None


def space_of(given: Mapping[str, Any]) -> StateSpace:
    """The state space that the `region_options` describe; see `dphmm.jobs.region`."""
    from dphmm.jobs.models import region

    return region(**{name: given[name] for name in REGION})


def option_of(key: str) -> str:
    """The long option of a key."""
    return f"--{key.replace('_', '-')}"


def settings_of(
    given: Mapping[str, Any], named: Callable[[str], str] = option_of, elsewhere: str = ""
) -> ReleaseSettings:
    """How to release, out of the `settings_options`.

    Parameters
    ----------
    given
        Name → value; None where the option was not given.
    named
        What messages call a setting by.
    elsewhere
        Where a setting that is missing may be said but in its option, with braces for its name.

    Raises
    ------
    ConfigurationError, BudgetError
        Naming the option that is missing or of a wrong value.
    """
    from dphmm.policy.expression import with_buffer
    from dphmm.release.settings import NAMES, ReleaseSettings

    values = {name: given[name] for name in NAMES if given.get(name) is not None}
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
    from dphmm.release.account import DAY_SECONDS
    from dphmm.release.schedule import Schedule
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
    """The caps that the `event_option` and the `cap_options` say; None for none.

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
    from dphmm.events.caps import Cap

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
    from dphmm.policy.expression import kilometres

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
