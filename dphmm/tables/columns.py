"""What columns are called, in tables of fixes, live lines, tables of places and tables by time alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

ALIASES: Mapping[str, tuple[str, ...]] = {
    "user": ("user_id", "uid", "user", "traj_id"),
    "time": ("tracked_at", "datetime", "timestamp", "time", "t"),
    "latitude": ("latitude", "lat"),
    "longitude": ("longitude", "lon", "lng", "long"),
    "geometry": ("geometry", "geom"),
    "name": ("name", "place", "label"),
}
"""What a column holds → the names that it is recognised by, in any case; the first that occurs wins."""

TRIPS = ALIASES["user"][-1]
"""The name of a column of trajectories, as movingpandas has it: it tells people apart only where each has one."""


def find_column(names: Iterable[str], what: str) -> str | None:
    """The first of the names that goes by an alias of ``what``; None where none does.

    Examples
    --------
    >>> find_column(["Lat", "LNG "], "longitude")
    'LNG '
    """
    lower = {name.strip().lower(): name for name in reversed(list(names))}
    return next((lower[name] for name in ALIASES[what] if name in lower), None)


def listed(names: Sequence[str]) -> str:
    """Names for a message, the first dozen of them, none of them long."""
    short = [name if len(name) <= 40 else f"{name[:37]}..." for name in names[:12]]
    return ", ".join(short) + (", ..." if len(names) > 12 else "") if names else "no columns"
