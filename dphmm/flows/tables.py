"""The tables of flows: which cells they have, all of them public, and what each person adds to them.

A person adds to a table the cells of some events: visits, trips, or once where they live and work. At most a number of
each person's visits and trips count, evenly spaced among them; so one person more or less, with all their days, changes
a table by no more than that in all, and so each of its levels, which are sums of its cells.
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
from dphmm.flows.areas import Areas, Visits
from dphmm.flows.forest import Forest
from dphmm.landmarks.stays import hours_within
from dphmm.model.time_classes import TimeClasses, offsets

DAY = 86_400_000_000
"""Microseconds."""

STAY_EDGES = (0, 15, 30, 60, 120, 240, 480, 720)
"""Minutes at which the classes of stay times begin."""

LENGTH_EDGES = (0, 1, 2, 5, 10, 20, 50)
"""Kilometres at which the classes of trip lengths begin."""

MOST_CELLS = 4_000_000
"""Tables of more cells than this are not made: each of them needs noise."""

_MINUTE = 60_000_000
_HOURS = re.compile(r"\d{1,2}(,\d{1,2})*")


@dataclass(frozen=True)
class Layout:
    """What cells there are: areas, classes of time, days. All of it is public, so choose it without the data.

    Parameters
    ----------
    areas
        Between which people move.
    visit_classes, flow_classes
        The classes of time by which visits begin, and trips. See `time_classes`.
    days
        How many days have tables of their own; None for one table of all days.
    first_day
        The first day, since 1970, in the zone of the classes; None where any day counts.
    last_day
        The last day, likewise.
    levels
        Whether there are tables of districts, and of everything, beside those of areas.
    """

    areas: Areas
    visit_classes: TimeClasses
    flow_classes: TimeClasses
    days: int | None = None
    first_day: int | None = None
    last_day: int | None = None
    levels: bool = True

    def busy_cells(self, unit: str) -> int:
        """Among how many cells most events are, at a guess: some of an area's classes of time, and two of its flows."""
        classes, each = (self.visit_classes, 1) if unit == "visits" else (self.flow_classes, 2)
        return each * len(self.areas) * ceil(sqrt(classes.count))

    @property
    def zone(self) -> str:
        """The time zone of days and hours."""
        return self.visit_classes.zone

    def day_of(self, instants: IntArray) -> IntArray:
        """The local day since 1970 of each instant, microseconds."""
        return (instants + offsets(instants, self.zone)) // DAY


@dataclass(frozen=True)
class Kind:
    """A kind of table.

    Parameters
    ----------
    unit
        What is counted: visits, trips or people.
    cells
        Visits of some people → the person and the cell of each event, and its instant.
    ends
        The names of the columns of areas.
    classes
        A layout → the classes of time, the column after them; None where there are none.
    labels
        Those of the only column, where there are no areas.
    """

    unit: str
    cells: Callable[[Visits, Layout], tuple[IntArray, IntArray, IntArray]]
    ends: tuple[str, ...] = ()
    classes: Callable[[Layout], TimeClasses] | None = None
    labels: tuple[str, ...] = ()

    def axes(self, layout: Layout) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """The names of the columns, and the labels of each."""
        if self.labels:
            return (("class", self.labels),)
        times = () if self.classes is None else (("time", labels(self.classes(layout))),)
        return (*((end, layout.areas.names) for end in self.ends), *times)

    def parts(self, layout: Layout) -> tuple[tuple[str, tuple[IntArray, ...]], ...]:
        """Of each level above the cells, its name and for each axis the part of each label; classes stay apart."""
        if self.labels or not layout.levels:
            return ()
        areas = layout.areas
        times = () if self.classes is None else (np.arange(self.classes(layout).count),)
        levels = {"everything": np.zeros(len(areas), dtype=np.int64)}
        if 1 < len(areas.districts) < len(areas):
            levels = {"district": areas.district_of, **levels}
        return tuple((name, (*(part,) * len(self.ends), *times)) for name, part in levels.items())


def time_classes(text: str, zone: str) -> TimeClasses:
    """Classes of time by a text: ``all``, ``hours``, ``weekday-hours``, or hours at which they begin.

    Raises
    ------
    ConfigurationError
        When the text is another, or the zone unknown.

    Examples
    --------
    >>> classes = time_classes("6,10,16,20", "UTC")
    >>> classes.count, labels(classes)
    (4, ('0-6h and 20-24h', '6-10h', '10-16h', '16-20h'))
    """
    if text in ("hours", "weekday-hours"):
        return TimeClasses.of(text, 1.0, zone)  # type: ignore[arg-type]
    hours = np.arange(168) % 24
    if text == "all":
        return TimeClasses((0,) * len(hours), 1.0, zone)
    edges = [int(one) for one in text.split(",")] if _HOURS.fullmatch(text) else []
    if not edges or edges != sorted(set(edges)) or edges[-1] > 23:
        raise ConfigurationError(
            f"classes of time are {text!r}; give all, hours, weekday-hours, or hours as 6,10,16,20"
        )
    at = np.searchsorted(edges, hours, side="right") % len(edges)
    return TimeClasses(tuple(at.tolist()), 1.0, zone)


def labels(classes: TimeClasses) -> tuple[str, ...]:
    """What classes of time are called."""
    named = []
    for number in range(classes.count):
        hours = np.flatnonzero(np.array(classes.classes) == number)
        days = "" if len(set((hours // 24).tolist())) == 7 else "Mo-Fr " if hours[0] < 120 else "Sa-Su "
        of_day = sorted(set((hours % 24).tolist()))
        breaks = np.flatnonzero(np.diff(of_day) > 1) + 1
        runs = [f"{part[0]}-{part[-1] + 1}h" for part in np.split(np.array(of_day), breaks)]
        named.append("all" if len(hours) == 168 else days + " and ".join(runs))
    return tuple(named)


def _edges(edges: tuple[int, ...], unit: str) -> tuple[str, ...]:
    return (*(f"{low}-{high} {unit}" for low, high in pairwise(edges)), f"{edges[-1]} {unit} and more")


def _classes_of(classes: TimeClasses, instants: IntArray) -> IntArray:
    return classes.classes_of(instants // 1_000_000 + 1)


def _visit_cells(visits: Visits, layout: Layout) -> tuple[IntArray, IntArray, IntArray]:
    classes = layout.visit_classes
    return visits.person, visits.area * classes.count + _classes_of(classes, visits.start), visits.start


def _trip_cells(visits: Visits, layout: Layout) -> tuple[IntArray, IntArray, IntArray]:
    at, classes = visits.trips, layout.flow_classes
    pairs = visits.area[at] * len(layout.areas) + visits.area[at + 1]
    return visits.person[at], pairs * classes.count + _classes_of(classes, visits.end[at]), visits.end[at]


def _stay_cells(visits: Visits, _: Layout) -> tuple[IntArray, IntArray, IntArray]:
    minutes = (visits.end - visits.start) / _MINUTE
    return visits.person, np.searchsorted(STAY_EDGES, minutes, side="right") - 1, visits.start


def _length_cells(visits: Visits, _: Layout) -> tuple[IntArray, IntArray, IntArray]:
    at = visits.trips
    return visits.person[at], np.searchsorted(LENGTH_EDGES, visits.lengths, side="right") - 1, visits.end[at]


def _home_work_cells(visits: Visits, layout: Layout) -> tuple[IntArray, IntArray, IntArray]:
    """Where most time is spent from 22 to 6 o'clock, and elsewhere from Monday to Friday from 9 to 17 o'clock.

    A visit counts for a minute at least, so that check-ins tell of it too.
    """
    n = len(layout.areas)
    if not len(visits):
        return visits.person, visits.person, visits.person
    start = visits.start + offsets(visits.start, layout.zone)
    end = start + np.maximum(visits.end - visits.start, _MINUTE)
    key, at = np.unique(visits.person * n + visits.area, return_inverse=True)
    who, where = key // n, key % n
    local = start.astype("datetime64[us]"), end.astype("datetime64[us]")
    night = np.bincount(at, hours_within(*local, 22, 30, weekdays=False), len(key))
    day = np.bincount(at, hours_within(*local, 9, 17, weekdays=True), len(key))
    people, first = np.unique(who, return_index=True)
    home = _most(who, night, first)
    day[home[home >= 0]] = 0.0
    work = _most(who, day, first)
    both = (home >= 0) & (work >= 0)
    cells = where[home[both]] * n + where[work[both]]
    return people[both], cells, visits.start[np.searchsorted(visits.person, people[both])]


def _most(who: IntArray, amounts: Any, first: IntArray) -> IntArray:
    """For each person the entry with the most, -1 where all have nothing."""
    order = np.lexsort((-amounts, who))
    best = order[first]
    return np.where(amounts[best] > 0, best, -1)


KINDS: Mapping[str, Kind] = {
    "visits": Kind("visits", _visit_cells, ("area",), attrgetter("visit_classes")),
    "flows": Kind("trips", _trip_cells, ("area", "to"), attrgetter("flow_classes")),
    "stay-times": Kind("visits", _stay_cells, labels=_edges(STAY_EDGES, "min")),
    "trip-lengths": Kind("trips", _length_cells, labels=_edges(LENGTH_EDGES, "km")),
    "home-work": Kind("people", _home_work_cells, ("area", "to")),
}
"""The tables by name."""


@dataclass(frozen=True, eq=False)
class Table:
    """A table in a layout: its axes, and its levels as a forest.

    Parameters
    ----------
    name
        One of `KINDS`.
    layout
        The public things.
    """

    name: str
    layout: Layout

    @property
    def unit(self) -> str:
        """What is counted."""
        return KINDS[self.name].unit

    @cached_property
    def axes(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Columns and their labels; a day's cells come one after another."""
        days = () if self.layout.days is None else (("day", self._days()),)
        return (*days, *KINDS[self.name].axes(self.layout))

    def _days(self) -> tuple[str, ...]:
        first, count = self.layout.first_day or 0, self.layout.days or 0
        return tuple(np.datetime_as_string((first + np.arange(count)).astype("datetime64[D]")).tolist())

    @property
    def shape(self) -> tuple[int, ...]:
        """How many labels each axis has."""
        return tuple(len(one) for _, one in self.axes)

    @cached_property
    def levels(self) -> tuple[tuple[str, tuple[IntArray, ...]], ...]:
        """Above the cells: a level's name, and for each axis the part of each label."""
        whole = tuple(np.arange(size) for size in self.shape)
        if self.layout.days is None:
            return KINDS[self.name].parts(self.layout)
        return tuple((name, (whole[0], *parts)) for name, parts in KINDS[self.name].parts(self.layout))

    @cached_property
    def forest(self) -> Forest:
        """The cells, and the sums of them at each level.

        Raises
        ------
        ConfigurationError
            For a table of too many cells.
        """
        cells = int(np.prod(self.shape))
        if cells > MOST_CELLS:
            raise ConfigurationError(
                f"table {self.name} has {cells:,} cells, and {MOST_CELLS:,} are the most; take fewer or larger areas, "
                "fewer classes of time or fewer days"
            )
        parents, below = list[IntArray](), tuple(np.arange(size) for size in self.shape)
        for _, parts in self.levels:
            # The part of a node of the level before: of any label in it.
            steps = []
            for now, before in zip(parts, below, strict=True):
                step = np.zeros(int(before.max()) + 1, dtype=np.int64)
                step[before] = now
                steps.append(step)
            sizes = [int(one.max()) + 1 for one in parts]
            parents.append(np.ravel_multi_index(np.ix_(*steps), sizes).ravel().astype(np.int64))
            below = parts
        return Forest(cells, parents)


@dataclass(frozen=True)
class Events:
    """What people add to the tables of one unit; private.

    Parameters
    ----------
    person
        ``(e,)``: whose, numbers that do not fall.
    day
        ``(e,)``: from the layout's first day on.
    cells
        Table → ``(e,)``: the cell of each event, within its day.
    """

    person: IntArray
    day: IntArray
    cells: Mapping[str, IntArray] = field(default_factory=dict)

    @property
    def numbers(self) -> IntArray:
        """How many events each person has who has any."""
        return np.unique(self.person, return_counts=True)[1]


def events_of(visits: Visits, layout: Layout, tables: Iterable[str]) -> dict[str, Events]:
    """What people add to tables, by unit: events on the days of the layout."""
    wanted, found = list(tables), dict[str, Events]()
    if layout.first_day is not None and len(visits):
        # Of whole visits: where somebody lives and works is told by these days alone too.
        day = layout.day_of(visits.start)
        inside = (day >= layout.first_day) & (day <= (layout.last_day or 0))
        inside_next = np.append(inside[1:], False)
        visits = replace(visits, leads_on=visits.leads_on & inside_next).some(inside)
    for name in wanted:
        kind = KINDS[name]
        person, cells, instants = kind.cells(visits, layout)
        day = np.zeros(len(person), dtype=np.int32)
        if layout.days is not None:
            day = (layout.day_of(instants) - (layout.first_day or 0)).astype(np.int32)
            inside = (day >= 0) & (day < layout.days)  # a trip may begin on the day after the visit before it
            person, cells, day = person[inside], cells[inside], day[inside]
        known = found.get(kind.unit, Events(person.astype(np.int32), day))
        found[kind.unit] = Events(known.person, known.day, {**known.cells, name: cells.astype(np.int32)})
    return found


def joined(parts: Iterable[tuple[int, dict[str, Events]]]) -> dict[str, Events]:
    """Events of several groups of people, each with how many people it has."""
    found, people = dict[str, list[Events]](), 0
    for count, events in parts:
        for unit, some in events.items():
            found.setdefault(unit, []).append(Events(some.person + np.int32(people), some.day, some.cells))
        people += count
    return {
        unit: Events(
            np.concatenate([one.person for one in several]),
            np.concatenate([one.day for one in several]),
            {name: np.concatenate([one.cells[name] for one in several]) for name in several[0].cells},
        )
        for unit, several in found.items()
    }


def bounded(events: Events, most: int, window: int | None = None) -> BoolArray:
    """Which events count: of each person at most a number, evenly spaced.

    Parameters
    ----------
    events
        Of everyone.
    most
        How many of a person count.
    window
        In how many days, of any that follow each other; left out, in all.

    Returns
    -------
    BoolArray
        ``(e,)``.
    """
    if not len(events.person):
        return np.zeros(0, dtype=np.bool_)
    if window is None:
        return _even(events.person.astype(np.int64), most)
    people, who = np.unique(events.person, return_inverse=True)
    days = int(events.day.max()) + 1
    group = who.astype(np.int64) * days + events.day
    number = np.bincount(group, minlength=len(people) * days).reshape(len(people), days)
    allowed = np.zeros_like(number)
    for day in range(days):  # whatever comes later: what counts on a day depends on the days before it alone
        used = allowed[:, max(0, day - window + 1) : day].sum(axis=1)
        allowed[:, day] = np.minimum(number[:, day], most - used)
    return _even(group, allowed.ravel()[group])


def _even(group: IntArray, most: int | IntArray) -> BoolArray:
    """At most some of each group, evenly spaced among them in their order."""
    order = np.argsort(group, kind="stable")
    ordered = group[order]
    start = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    size = np.diff(np.append(start, len(group)))
    rank = np.arange(len(group)) - np.repeat(start, size)
    count = np.repeat(size, size)
    allowed = np.minimum(most if isinstance(most, int) else most[order], count)
    kept = np.zeros(len(group), dtype=np.bool_)
    kept[order] = (rank + 1) * allowed // count > rank * allowed // count
    return kept


def counted(events: Events, chosen: BoolArray, table: Table) -> IntArray:
    """The true cells of a table, ``(cells,)``: events that count. Private."""
    size = int(np.prod(table.shape))
    of_day = size // (table.layout.days or 1)
    cells = events.cells[table.name][chosen].astype(np.int64)
    if table.layout.days is not None:
        cells += events.day[chosen].astype(np.int64) * of_day
    return np.bincount(cells, minlength=size).astype(np.int64)
