"""Flow tables: their public cells, and the contribution of each user.

A user contributes the cells of events to a table: visits, trips, or once their home and workplace. A bounded number of
each user's visits and trips count, evenly spaced. Therefore one additional user, with all of their days, changes the
cells of a table by at most this number in total, and the same holds for each level, which contains sums of cells.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from math import ceil, sqrt
from operator import attrgetter
from typing import Any

import numpy as np

from dphmm.arrays import BoolArray, IntArray
from dphmm.errors import ConfigurationError
from dphmm.flows.area_hierarchy import Forest
from dphmm.flows.areas import Areas, Visits
from dphmm.landmarks.stays import compute_daily_overlap
from dphmm.model.time_classes import TimeClasses, get_utc_offsets

# Microseconds of a day.
DAY = 86_400_000_000

# Lower bounds of the classes of stay times, minutes.
STAY_EDGES = (0, 15, 30, 60, 120, 240, 480, 720)

# Lower bounds of the classes of trip lengths, kilometres.
LENGTH_EDGES = (0, 1, 2, 5, 10, 20, 50)

# Maximum number of cells of a table. Every cell needs noise.
MAX_CELLS = 4_000_000

_MINUTE = 60_000_000
_HOURS = re.compile(r"\d{1,2}(,\d{1,2})*")


@dataclass(frozen=True)
class Layout:
    """The public cells of tables. Choose them independently of the data.

    Parameters
    ----------
    areas
        The areas.
    visit_classes, flow_classes
        Time classes of the start of visits and of trips. See `parse_time_classes`.
    days
        Number of daily tables. None for one table of all days.
    first_day
        The first day, since 1970, in the zone of the classes. None if every day counts.
    last_day
        The last day, in the same form.
    levels
        Whether districts and totals are counted in addition to areas.
    """

    areas: Areas
    visit_classes: TimeClasses
    flow_classes: TimeClasses
    days: int | None = None
    first_day: int | None = None
    last_day: int | None = None
    levels: bool = True

    def estimate_busy_cells(self, unit: str) -> int:
        """Return a guess of the number of cells that contain most events."""
        classes, each = (self.visit_classes, 1) if unit == "visits" else (self.flow_classes, 2)
        return each * len(self.areas) * ceil(sqrt(classes.count))

    @property
    def zone(self) -> str:
        """The time zone of days and hours."""
        return self.visit_classes.zone

    def get_days(self, instants: IntArray) -> IntArray:
        """Return the local day since 1970 of each instant in microseconds."""
        return (instants + get_utc_offsets(instants, self.zone)) // DAY


@dataclass(frozen=True)
class TableType:
    """A type of table.

    Parameters
    ----------
    unit
        The unit of counts: visits, trips or users.
    cells
        Visits → the user, the cell and the instant of each event.
    ends
        Names of the columns of areas.
    classes
        Layout → time classes, the column after the areas. None without time classes.
    labels
        Labels of the only column of tables without areas.
    """

    unit: str
    cells: Callable[[Visits, Layout], tuple[IntArray, IntArray, IntArray]]
    ends: tuple[str, ...] = ()
    classes: Callable[[Layout], TimeClasses] | None = None
    labels: tuple[str, ...] = ()

    def build_axes(self, layout: Layout) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Return the columns and their labels."""
        if self.labels:
            return (("class", self.labels),)
        times = () if self.classes is None else (("time", label_time_classes(self.classes(layout))),)
        return (*((end, layout.areas.names) for end in self.ends), *times)

    def build_levels(self, layout: Layout) -> tuple[tuple[str, tuple[IntArray, ...]], ...]:
        """Return each level above the cells: its name and the group of each label per axis."""
        if self.labels or not layout.levels:
            return ()
        areas = layout.areas
        times = () if self.classes is None else (np.arange(self.classes(layout).count),)
        levels = {"everything": np.zeros(len(areas), dtype=np.int64)}
        if 1 < len(areas.districts) < len(areas):
            levels = {"district": areas.district_of, **levels}
        return tuple((name, (*(part,) * len(self.ends), *times)) for name, part in levels.items())


def parse_time_classes(text: str, zone: str) -> TimeClasses:
    """Parse time classes: ``all``, ``hour``, ``weekday-hour``, or their starting hours.

    Raises
    ------
    ConfigurationError
        When the text is invalid, or the zone unknown.

    Examples
    --------
    >>> classes = parse_time_classes("6,10,16,20", "UTC")
    >>> classes.count, label_time_classes(classes)
    (4, ('0-6h and 20-24h', '6-10h', '10-16h', '16-20h'))
    """
    if text in ("hour", "weekday-hour"):
        return TimeClasses.from_name(text, 1.0, zone)  # type: ignore[arg-type]  # compared with both names
    hours = np.arange(168) % 24
    if text == "all":
        return TimeClasses((0,) * len(hours), 1.0, zone)
    edges = [int(hour) for hour in text.split(",")] if _HOURS.fullmatch(text) else []
    if not edges or edges != sorted(set(edges)) or edges[-1] > 23:
        raise ConfigurationError(f"time classes must be all, hour, weekday-hour or hours as 6,10,16,20, got {text!r}")
    at = np.searchsorted(edges, hours, side="right") % len(edges)
    return TimeClasses(tuple(at.tolist()), 1.0, zone)


def label_time_classes(classes: TimeClasses) -> tuple[str, ...]:
    """Return the labels of time classes."""
    named = []
    for number in range(classes.count):
        hours = np.flatnonzero(np.array(classes.classes) == number)
        days = "" if len(set((hours // 24).tolist())) == 7 else "Mo-Fr " if hours[0] < 120 else "Sa-Su "
        of_day = sorted(set((hours % 24).tolist()))
        breaks = np.flatnonzero(np.diff(of_day) > 1) + 1
        runs = [f"{part[0]}-{part[-1] + 1}h" for part in np.split(np.array(of_day), breaks)]
        named.append("all" if len(hours) == 168 else days + " and ".join(runs))
    return tuple(named)


def _label_classes(edges: tuple[int, ...], unit: str) -> tuple[str, ...]:
    return (*(f"{low}-{high} {unit}" for low, high in pairwise(edges)), f"{edges[-1]} {unit} and more")


def _get_classes(classes: TimeClasses, instants: IntArray) -> IntArray:
    return classes.get_classes(instants // 1_000_000 + 1)


def _find_visit_cells(visits: Visits, layout: Layout) -> tuple[IntArray, IntArray, IntArray]:
    classes = layout.visit_classes
    return visits.user, visits.area * classes.count + _get_classes(classes, visits.start), visits.start


def _find_trip_cells(visits: Visits, layout: Layout) -> tuple[IntArray, IntArray, IntArray]:
    at = visits.trips
    classes = layout.flow_classes
    pairs = visits.area[at] * len(layout.areas) + visits.area[at + 1]
    return visits.user[at], pairs * classes.count + _get_classes(classes, visits.end[at]), visits.end[at]


def _find_stay_cells(visits: Visits, _: Layout) -> tuple[IntArray, IntArray, IntArray]:
    minutes = (visits.end - visits.start) / _MINUTE
    return visits.user, np.searchsorted(STAY_EDGES, minutes, side="right") - 1, visits.start


def _find_length_cells(visits: Visits, _: Layout) -> tuple[IntArray, IntArray, IntArray]:
    at = visits.trips
    return visits.user[at], np.searchsorted(LENGTH_EDGES, visits.lengths, side="right") - 1, visits.end[at]


def _find_home_work_cells(visits: Visits, layout: Layout) -> tuple[IntArray, IntArray, IntArray]:
    """Return home and work: the areas with most time at night and in working hours.

    Home is the area with most time between 22:00 and 6:00. Work is the area other than home with most time from Monday
    to Friday between 9:00 and 17:00. Of several such areas, it is the one visited first.

    A visit counts for at least a minute, so that check-ins contribute as well.
    """
    n = len(layout.areas)
    if not len(visits):
        return visits.user, visits.user, visits.user
    start = visits.start + get_utc_offsets(visits.start, layout.zone)
    end = start + np.maximum(visits.end - visits.start, _MINUTE)
    key, earliest, at = np.unique(visits.user * n + visits.area, return_index=True, return_inverse=True)
    user_of_key = key // n
    where = key % n
    local = start.astype("datetime64[us]"), end.astype("datetime64[us]")
    night = np.bincount(at, compute_daily_overlap(*local, 22, 30, weekdays=False), len(key))
    day = np.bincount(at, compute_daily_overlap(*local, 9, 17, weekdays=True), len(key))
    users, first = np.unique(user_of_key, return_index=True)
    home = _find_largest(user_of_key, night, earliest, first)
    day[home[home >= 0]] = 0.0
    work = _find_largest(user_of_key, day, earliest, first)
    both = (home >= 0) & (work >= 0)
    cells = where[home[both]] * n + where[work[both]]
    return users[both], cells, visits.start[np.searchsorted(visits.user, users[both])]


def _find_largest(user_of_key: IntArray, amounts: Any, earliest: IntArray, first: IntArray) -> IntArray:
    """Return the index of each user's largest amount, the earliest if tied, -1 if zero."""
    order = np.lexsort((earliest, -amounts, user_of_key))
    best = order[first]
    return np.where(amounts[best] > 0, best, -1)


# Name → type of table.
TABLE_TYPES: Mapping[str, TableType] = {
    "visits": TableType("visits", _find_visit_cells, ("area",), attrgetter("visit_classes")),
    "flows": TableType("trips", _find_trip_cells, ("area", "to"), attrgetter("flow_classes")),
    "stay-times": TableType("visits", _find_stay_cells, labels=_label_classes(STAY_EDGES, "min")),
    "trip-lengths": TableType("trips", _find_length_cells, labels=_label_classes(LENGTH_EDGES, "km")),
    "home-work": TableType("users", _find_home_work_cells, ("area", "to")),
}


@dataclass(frozen=True, eq=False)
class Table:
    """A table in a layout: its axes, and its levels as a forest.

    Parameters
    ----------
    name
        One of `TABLE_TYPES`.
    layout
        The public layout.
    """

    name: str
    layout: Layout

    @property
    def unit(self) -> str:
        """The unit of counts."""
        return TABLE_TYPES[self.name].unit

    @cached_property
    def axes(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Columns and their labels. The day is the first axis."""
        days = () if self.layout.days is None else (("day", self._find_days()),)
        return (*days, *TABLE_TYPES[self.name].build_axes(self.layout))

    def _find_days(self) -> tuple[str, ...]:
        first = self.layout.first_day or 0
        count = self.layout.days or 0
        return tuple(np.datetime_as_string((first + np.arange(count)).astype("datetime64[D]")).tolist())

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of labels of each axis."""
        return tuple(len(labels_of_axis) for _, labels_of_axis in self.axes)

    @cached_property
    def levels(self) -> tuple[tuple[str, tuple[IntArray, ...]], ...]:
        """Levels above the cells: the name, and the group of each label per axis."""
        whole = tuple(np.arange(size) for size in self.shape)
        if self.layout.days is None:
            return TABLE_TYPES[self.name].build_levels(self.layout)
        return tuple((name, (whole[0], *parts)) for name, parts in TABLE_TYPES[self.name].build_levels(self.layout))

    @cached_property
    def forest(self) -> Forest:
        """The cells and their sums at each level.

        Raises
        ------
        ConfigurationError
            When the table has too many cells.
        """
        cells = int(np.prod(self.shape))
        if cells > MAX_CELLS:
            raise ConfigurationError(
                f"table {self.name} must have at most {MAX_CELLS:,} cells, got {cells:,}: use fewer or larger areas, "
                "fewer time classes or fewer days"
            )
        parents = list[IntArray]()
        below = tuple(np.arange(size) for size in self.shape)
        for _, parts in self.levels:
            # The group of a node of the previous level is that of any label in it.
            steps = []
            for now, before in zip(parts, below, strict=True):
                step = np.zeros(int(before.max()) + 1, dtype=np.int64)
                step[before] = now
                steps.append(step)
            sizes = [int(part.max()) + 1 for part in parts]
            parents.append(np.ravel_multi_index(np.ix_(*steps), sizes).ravel().astype(np.int64))
            below = parts
        return Forest(cells, parents)


@dataclass(frozen=True)
class Events:
    """Contributions of users to the tables of one unit. Private.

    Parameters
    ----------
    user
        ``(e,)`` user index of each event, non-decreasing.
    day
        ``(e,)`` day from the layout's first day on.
    cells
        Table → ``(e,)`` cell of each event within its day.
    """

    user: IntArray
    day: IntArray
    cells: Mapping[str, IntArray] = field(default_factory=dict)

    @property
    def numbers(self) -> IntArray:
        """Number of events of each user with events."""
        return np.unique(self.user, return_counts=True)[1]


def derive_events(visits: Visits, layout: Layout, tables: Iterable[str]) -> dict[str, Events]:
    """Derive events on the days of the layout from visits, by unit."""
    wanted = list(tables)
    events_by_unit = dict[str, Events]()
    if layout.first_day is not None and len(visits):
        # Filter complete visits, so that home and work also depend on these days only.
        day = layout.get_days(visits.start)
        inside = (day >= layout.first_day) & (day <= (layout.last_day or 0))
        inside_next = np.append(inside[1:], False)
        visits = replace(visits, leads_on=visits.leads_on & inside_next).select(inside)
    for name in wanted:
        kind = TABLE_TYPES[name]
        user, cells, instants = kind.cells(visits, layout)
        day = np.zeros(len(user), dtype=np.int32)
        if layout.days is not None:
            day = (layout.get_days(instants) - (layout.first_day or 0)).astype(np.int32)
            inside = (day >= 0) & (day < layout.days)  # a trip can start on the day after its first visit
            user = user[inside]
            cells = cells[inside]
            day = day[inside]
        previous = events_by_unit.get(kind.unit, Events(user.astype(np.int32), day))
        events_by_unit[kind.unit] = Events(
            previous.user, previous.day, {**previous.cells, name: cells.astype(np.int32)}
        )
    return events_by_unit


def concatenate_events(parts: Iterable[tuple[int, dict[str, Events]]]) -> dict[str, Events]:
    """Concatenate the events of several groups of users."""
    groups = dict[str, list[Events]]()
    num_users = 0
    for count, events in parts:
        for unit, unit_events in events.items():
            groups.setdefault(unit, []).append(
                Events(unit_events.user + np.int32(num_users), unit_events.day, unit_events.cells)
            )
        num_users += count
    return {
        unit: Events(
            np.concatenate([group.user for group in several]),
            np.concatenate([group.day for group in several]),
            {name: np.concatenate([group.cells[name] for group in several]) for name in several[0].cells},
        )
        for unit, several in groups.items()
    }


def select_bounded(events: Events, max_events: int, window: int | None = None) -> BoolArray:
    """Select at most a number of events per user, evenly spaced.

    Parameters
    ----------
    events
        Events of all users.
    max_events
        Maximum number of events per user.
    window
        Number of consecutive days to which the maximum applies. Defaults to all days.

    Returns
    -------
    BoolArray
        ``(e,)`` mask of the events that count.
    """
    if not len(events.user):
        return np.zeros(0, dtype=np.bool_)
    if window is None:
        return _select_evenly(events.user.astype(np.int64), max_events)
    users, user_index = np.unique(events.user, return_inverse=True)
    days = int(events.day.max()) + 1
    group = user_index.astype(np.int64) * days + events.day
    number = np.bincount(group, minlength=len(users) * days).reshape(len(users), days)
    allowed = np.zeros_like(number)
    for day in range(days):  # causal: a day's events depend only on previous days
        used = allowed[:, max(0, day - window + 1) : day].sum(axis=1)
        allowed[:, day] = np.minimum(number[:, day], max_events - used)
    return _select_evenly(group, allowed.ravel()[group])


def _select_evenly(group: IntArray, max_events: int | IntArray) -> BoolArray:
    """Select at most a number of each group, evenly spaced in order."""
    order = np.argsort(group, kind="stable")
    ordered = group[order]
    start = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    size = np.diff(np.append(start, len(group)))
    rank = np.arange(len(group)) - np.repeat(start, size)
    count = np.repeat(size, size)
    allowed = np.minimum(max_events if isinstance(max_events, int) else max_events[order], count)
    kept = np.zeros(len(group), dtype=np.bool_)
    kept[order] = (rank + 1) * allowed // count > rank * allowed // count
    return kept


def count_cells(events: Events, chosen: BoolArray, table: Table) -> IntArray:
    """Return the true cells of a table, ``(cells,)``, from selected events. Private."""
    size = int(np.prod(table.shape))
    of_day = size // (table.layout.days or 1)
    cells = events.cells[table.name][chosen].astype(np.int64)
    if table.layout.days is not None:
        cells += events.day[chosen].astype(np.int64) * of_day
    return np.bincount(cells, minlength=size).astype(np.int64)
