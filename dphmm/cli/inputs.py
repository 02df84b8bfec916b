"""Options that several commands share: what to read and whose, how to release, which region."""

from __future__ import annotations

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

POLICY_HELP = "What must stay indistinguishable: utility:1km, complete, transition, categorical:LAYER.geojson, …"


def options(*several: Callable[[Any], Any]) -> Callable[[Decorated], Decorated]:
    """One decorator out of several options, in the order in which help lists them."""

    def add(command: Decorated) -> Decorated:
        for option in reversed(several):
            command = option(command)
        return command

    return add


input_options = options(
    click.option("--format", "format_", help="geolife, checkins, table, gpx or owntracks. Left out, recognised."),
    click.option("--column", "columns", multiple=True, metavar="WHAT=NAME", help="In tables: user, time, latitude, …"),
    click.option("--users", metavar="A,B,…", help="These users alone."),
    click.option("--exclude-users", metavar="A,B,…", help="Everyone but these users."),
    click.option("--skip-bad", is_flag=True, default=None, help="Pass over malformed records and count them."),
)
"""The options of `data_of`."""

settings_options = options(
    click.option("--policy", help=POLICY_HELP),
    click.option("--epsilon", type=float, help="The privacy budget of each release."),
    click.option(
        "--mechanism",
        help="lattice (exact on a computer), k-norm, laplace, planar-isotropic, planar-laplace. [default: lattice]",
    ),
    click.option("--repair", help="How exposed states get partners: greedy, sequential or exact. [default: exact]"),
    click.option("--objective", help="What the repair minimises: volume or error. [default: volume]"),
    click.option("--membership", help="How membership in a hull is decided: halfspace or qp. [default: halfspace]"),
    click.option("--delta", type=float, help="Hide among the most probable states of mass 1 - delta alone."),
    click.option("--allow-known", is_flag=True, default=None, help="Go on where one state only is possible."),
    click.option("--spacing", metavar="KM", help="For lattice: the step of the published lattice. [default: 1/1000]"),
)
"""The options of a `ReleaseSettings`, one for each of its fields."""

region_options = options(
    click.option("--preset", help="A region and cell size of the papers: geolife or gowalla."),
    click.option("--bbox", nargs=4, type=float, metavar="S W N E", help="The region: south, west, north, east."),
    click.option("--polygon", type=click.Path(), metavar="FILE", help="The region: the polygons of a GeoJSON file."),
    click.option("--places", type=click.Path(), metavar="FILE", help="Named places in a CSV: name, latitude, …"),
    click.option("--within", type=float, metavar="KM", help="With --places: how far from a place a fix may lie."),
    click.option("--cell", type=float, metavar="KM", help="The side of a cell of the region's grid, kilometres."),
)
"""The options of `space_of`."""

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
    )


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
    from dphmm.release.settings import NAMES, ReleaseSettings

    values = {name: given[name] for name in NAMES if given.get(name) is not None}
    for name in ("policy", "epsilon"):
        if name not in values:
            raise ConfigurationError(f"{name} is missing; give --{name}{elsewhere.format(name)}")
    try:
        return ReleaseSettings.from_dict(values)
    except InvalidInputError as problem:
        name, _, said = str(problem).partition(" ")
        raise type(problem)(f"{named(name)} {said}") from None


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
