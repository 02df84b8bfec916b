"""Options that say what to read and whose, and the reading."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dphmm.errors import ConfigurationError

if TYPE_CHECKING:
    from dphmm.space.trajectory import Trajectory

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

FORMAT_NAMES = ("geolife", "checkins", "table", "gpx", "owntracks")


@dataclass(frozen=True)
class People:
    """Trajectories, one per user, and what reading them passed over."""

    trajectories: tuple[Trajectory, ...]
    skipped: int
    merged: int

    @property
    def fixes(self) -> int:
        """The number of fixes of everyone."""
        return sum(len(trajectory) for trajectory in self.trajectories)


def input_options(command: Decorated) -> Decorated:
    """Give a command the options of `read_people`."""
    for option in (
        click.option("--skip-bad", is_flag=True, default=None, help="Pass over malformed records and count them."),
        click.option("--exclude-users", metavar="A,B,…", help="Everyone but these users."),
        click.option("--users", metavar="A,B,…", help="These users alone."),
        click.option(
            "--column", "columns", multiple=True, metavar="WHAT=NAME", help="In tables: user, time, latitude, …"
        ),
        click.option("--format", "format_", type=click.Choice(FORMAT_NAMES), help="Left out, recognised."),
    ):
        command = option(command)
    return command


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


def read_people(
    paths: Sequence[str | Path],
    format_: str | None = None,
    columns: dict[str, str] | None = None,
    users: Sequence[str] = (),
    exclude_users: Sequence[str] = (),
    skip_bad: bool = False,
) -> People:
    """Every user's trajectory out of some files and folders; who is in several of them is one person.

    Raises
    ------
    DataFileError
        As `dphmm.readers.read` does.
    ConfigurationError
        When a user that was asked for is not there, or nobody is left.
    """
    from dphmm.readers import read

    results = [read(path, format_, skip_bad=skip_bad, columns=columns or None) for path in paths]
    everyone = [trajectory for result in results for trajectory in result.trajectories]
    merged = sum(result.merged for result in results)
    if len(results) > 1:
        everyone, more = _joined(everyone)
        merged += more
    known = {trajectory.user for trajectory in everyone}
    for user in [*users, *exclude_users]:
        if user not in known:
            some = ", ".join(sorted(known)[:8]) + (", …" if len(known) > 8 else "")
            raise ConfigurationError(f"user {user!r} is not in the data; there are {len(known)}: {some}")
    kept = [one for one in everyone if (not users or one.user in users) and one.user not in exclude_users]
    if not kept:
        raise ConfigurationError("no user is left to work on; exclude fewer")
    return People(tuple(kept), sum(sum(result.skipped.values()) for result in results), merged)


def _joined(everyone: Sequence[Trajectory]) -> tuple[list[Trajectory], int]:
    """One trajectory per user, and how many fixes gave way to another of the same time."""
    import numpy as np

    from dphmm.readers.fixes import Fixes, trajectories

    result = trajectories(
        Fixes(one.user, (one.user,), np.zeros(len(one), np.int64), one.times, one.latitude, one.longitude)
        for one in everyone
    )
    return list(result.trajectories), result.merged
