"""Settings of flow tables: contribution bounds, levels, time classes and budget."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any

import numpy as np

from dphmm.errors import ConfigurationError
from dphmm.flows.areas import Areas
from dphmm.flows.tables import TABLE_TYPES, Layout, parse_time_classes
from dphmm.mechanisms.exact_sampling import parse_rational
from dphmm.validation import Integers, Interval, check_arguments_as, declare_setting

MAX_DAYS = 366
_BOUND = "Guarantee"
_TIME = "Time"
_WHERE = "Levels"
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_MaxPerUser = Annotated[int, Integers(1, 100_000)]
_PART = re.compile(r"([a-z-]+)=([0-9./]+)")


@check_arguments_as(ConfigurationError)
@dataclass(frozen=True)
class FlowSettings:
    """Settings of flow tables. Choose them independently of the data.

    Parameters
    ----------
    tables
        Names separated by commas: ``visits``, ``flows``, ``stay-times``, ``trip-lengths``, ``home-work``.
    split
        Weights of the tables in the budget, such as ``flows=3,visits=1``. Default to 1.
    visits_per_user, trips_per_user
        Maximum number of visits and trips per user that count. By default a tenth of the budget is spent to choose it.
    time_classes, flows_by
        Time classes of visits and of flows: ``all``, ``hour``, ``weekday-hour``, or starting hours such as
        ``6,10,16,20``.
    zone
        The time zone of hours and days.
    stay
        Minimum duration of a visit in minutes; 0 for check-ins.
    gap
        Maximum time without fixes, in hours, over which a user is followed.
    cells_alone
        Whether districts and totals are not counted. Sums then have larger errors.
    balanced
        Whether counts are constrained so that departures and arrivals of an area are equal. This is an assumption about
        complete days. It is not exact if trips were dropped.
    confidence
        Probability with which all intervals of the file hold simultaneously.
    first_day, last_day
        Days such as 2024-03-01, in the zone. Visits on other days do not count.
    window
        Release a table for every day, with a budget for the tables of this many consecutive days. Defaults to one table
        of all days.

    Raises
    ------
    ConfigurationError
        If a value is invalid, or values cannot be combined.
    """

    tables: str = declare_setting(
        "visits,flows,stay-times,trip-lengths,home-work",
        "Tables to release.",
        metavar="A,B,…",
        shows_default=True,
        name="only",
    )
    split: str = declare_setting("", "Weights of tables in the budget, such as flows=3,visits=1.", heading=_BOUND)
    visits_per_user: _MaxPerUser | None = declare_setting(
        None, "Maximum visits per user. [default: chosen with a tenth of epsilon]", heading=_BOUND
    )
    trips_per_user: _MaxPerUser | None = declare_setting(
        None, "Maximum trips per user. [default: chosen with a tenth of epsilon]", heading=_BOUND
    )
    time_classes: str = declare_setting(
        "hour", "Visits by all, hour, weekday-hour, or hours as 6,10,16,20.", heading=_TIME
    )
    flows_by: str = declare_setting(
        "all", "Flows by all, hour, weekday-hour, or hours as 6,10,16,20.", heading=_TIME, shows_default=True
    )
    zone: str = declare_setting(
        "UTC", "Time zone of hours and days.", metavar="ZONE", heading=_TIME, shows_default=True
    )
    stay: Annotated[float, Interval(0, 1e6, unit="minutes")] = declare_setting(
        10.0,
        "Minimum duration of a visit in minutes; 0 for check-ins.",
        metavar="MINUTES",
        heading=_TIME,
        shows_default=True,
    )
    gap: Annotated[float, Interval(0, 1e5, "right", "hours")] = declare_setting(
        12.0,
        "Maximum time without fixes over which a user is followed.",
        metavar="HOURS",
        name="gap_hours",
        heading=_TIME,
        shows_default=True,
    )
    first_day: str | None = declare_setting(
        None, "First day of visits, such as 2024-03-01.", metavar="DAY", heading=_TIME, name="start"
    )
    last_day: str | None = declare_setting(None, "Last day of visits.", metavar="DAY", heading=_TIME, name="end")
    window: Annotated[int, Integers(1, MAX_DAYS)] | None = declare_setting(
        None, "Daily tables; epsilon is for those of any DAYS consecutive days.", metavar="DAYS", heading=_TIME
    )
    cells_alone: bool = declare_setting(False, "Count cells only, without districts and totals.", heading=_WHERE)
    balanced: bool = declare_setting(False, "Assume equal departures and arrivals of every area.", heading=_WHERE)
    confidence: Annotated[float, Interval(0.5, 0.999)] = declare_setting(
        0.95, "Probability with which all intervals hold simultaneously.", metavar="P", heading=_WHERE
    )

    def __post_init__(self) -> None:
        names = self.names
        unknown = [name for name in names if name not in TABLE_TYPES]
        if not names or unknown or len(set(names)) != len(names):
            raise ConfigurationError(f"tables must be distinct names of {', '.join(TABLE_TYPES)}, got {self.tables!r}")
        if self.balanced and "flows" not in names:
            raise ConfigurationError(f"balanced needs the table flows, got {self.tables!r}: add flows or remove it")
        if set(self.weights) - set(names):
            raise ConfigurationError(f"split must have weights of the tables {', '.join(names)}, got {self.split!r}")
        self._check_days()
        for text in (self.time_classes, self.flows_by):
            parse_time_classes(text, self.zone)

    def _check_days(self) -> None:
        first, last = self.days
        if (first is None) != (last is None) or (first is not None and last is not None and last < first):
            raise ConfigurationError(
                "both first_day and last_day (--start and --end) must be set and in order, got "
                f"{self.first_day} and {self.last_day}"
            )
        if self.window is None:
            return
        if first is None or last is None:
            raise ConfigurationError(
                "daily tables need first_day and last_day (--start and --end): the days of the data are not public"
            )
        count = last - first + 1
        if count > MAX_DAYS:
            raise ConfigurationError(f"the days must be at most {MAX_DAYS}, got {count}")
        missing = [
            f"--{unit}-per-user"
            for unit in ("visits", "trips")
            if getattr(self, f"{unit}_per_user") is None and any(TABLE_TYPES[name].unit == unit for name in self.names)
        ]
        if missing:
            raise ConfigurationError(f"daily tables need {' and '.join(missing)}")
        if "home-work" in self.names:
            others = ",".join(name for name in self.names if name != "home-work") or "visits"
            raise ConfigurationError(f"tables must not contain home-work with window: use --only {others}")

    @property
    def names(self) -> list[str]:
        """The names of the tables."""
        return [name for name in self.tables.split(",") if name]

    @property
    def weights(self) -> dict[str, Fraction]:
        """Table → its weight in the budget, if specified.

        Raises
        ------
        ConfigurationError
            When the split is not a list of weights, or has several of a table.
        """
        matches = [_PART.fullmatch(part) for part in self.split.split(",") if part]
        if not all(matches):
            raise ConfigurationError(f"split must be weights such as flows=3,visits=1, got {self.split!r}")
        weights = {
            match[1]: parse_rational(match[2], f"weight of {match[1]}") for match in matches if match is not None
        }
        if len(weights) < len(matches):
            raise ConfigurationError(f"split must have one weight per table, got {self.split!r}")
        return weights

    @property
    def days(self) -> tuple[int | None, int | None]:
        """The first and the last day since 1970."""
        days: list[Any] = []
        for day in (self.first_day, self.last_day):
            try:
                if day is not None and not _DAY.fullmatch(day):
                    raise ValueError
                days.append(None if day is None else int(np.datetime64(day, "D").astype(np.int64)))
            except ValueError:
                raise ConfigurationError(f"day must be a date such as 2024-03-01, got {day!r}") from None
        return days[0], days[1]

    def get_bound(self, unit: str) -> int | None:
        """Return the specified maximum number of events per user. 1 if the unit is users.

        Parameters
        ----------
        unit
            Visits, trips or users.

        Returns
        -------
        int or None
            The number. None if the budget chooses it.
        """
        return 1 if unit == "users" else getattr(self, f"{unit}_per_user")

    def layout(self, areas: Areas) -> Layout:
        """Return the layout of tables for areas.

        Parameters
        ----------
        areas
            The areas.

        Returns
        -------
        Layout
            Areas, time classes and days.
        """
        first, last = self.days
        count = None if self.window is None or first is None or last is None else last - first + 1
        of_visits = parse_time_classes(self.time_classes, self.zone)
        of_flows = parse_time_classes(self.flows_by, self.zone)
        return Layout(areas, of_visits, of_flows, count, first, last, not self.cells_alone)
