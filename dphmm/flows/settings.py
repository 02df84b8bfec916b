"""What tables of flows are made of: a person's part in them, areas' levels, time, and how the budget is dealt."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from dphmm.arguments import checked
from dphmm.errors import ConfigurationError
from dphmm.facts import setting
from dphmm.flows.areas import Areas
from dphmm.flows.tables import KINDS, Layout, time_classes
from dphmm.mechanisms.exact import rational

MOST_DAYS = 366
_BOUND, _TIME, _WHERE = "Promise", "Time", "Levels"
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_PART = re.compile(r"([a-z-]+)=([0-9./]+)")


@checked
@dataclass(frozen=True)
class FlowSettings:
    """How tables of flows are made. Choose all of it without looking at the data.

    Parameters
    ----------
    tables
        Which ones: ``visits``, ``flows``, ``stay-times``, ``trip-lengths``, ``home-work``, separated by commas.
    split
        Weights by which the budget is dealt among them, such as ``flows=3,visits=1``; 1 where none is said.
    visits_per_person, trips_per_person
        How many visits and trips of a person count at most; left out, a tenth of the budget chooses what is.
    by, flows_by
        Classes of time of visits and of flows: ``all``, ``hours``, ``weekday-hours``, or hours at which they begin,
        such as ``6,10,16,20``.
    zone
        The time zone of hours and days.
    stay
        How many minutes a visit lasts at least; 0 for check-ins.
    gap
        For how many hours a person is followed who is not seen.
    cells_alone
        Whether districts and everything are not counted besides; sums are then less certain.
    balanced
        Whether counts are such that as many trips leave an area as get there: what is known of a whole day of people
        who go home. It is an assumption, and not exactly true of trips that were left out.
    confidence
        How often an interval holds the true number.
    first_day, last_day
        Days such as 2024-03-01, in the zone; visits on other days do not count.
    window
        A table of every day, and a budget for any stretch of this many days; left out, one table of all days.
    """

    tables: str = setting(
        "visits,flows,stay-times,trip-lengths,home-work", "Which tables.", metavar="A,B,…", shows_default=True
    )
    split: str = setting("", "Weights of tables in the budget, such as flows=3,visits=1.", heading=_BOUND)
    visits_per_person: int | None = setting(
        None, "The most visits of a person that count. [default: chosen by a tenth of epsilon]", heading=_BOUND
    )
    trips_per_person: int | None = setting(
        None, "The most trips of a person that count. [default: chosen by a tenth of epsilon]", heading=_BOUND
    )
    by: str = setting("hours", "Visits by: all, hours, weekday-hours, or hours as 6,10,16,20.", heading=_TIME)
    flows_by: str = setting("all", "Flows by the same.", heading=_TIME, shows_default=True)
    zone: str = setting("UTC", "Time zone of hours and days.", metavar="ZONE", heading=_TIME, shows_default=True)
    stay: float = setting(
        10.0, "A visit lasts so long at least; 0 for check-ins.", metavar="MINUTES", heading=_TIME, shows_default=True
    )
    gap: float = setting(
        12.0, "A person who is not seen for longer is not followed.", metavar="HOURS", heading=_TIME, shows_default=True
    )
    first_day: str | None = setting(None, "Visits from this day on, as 2024-03-01.", metavar="DAY", heading=_TIME)
    last_day: str | None = setting(None, "Visits until the end of this day.", metavar="DAY", heading=_TIME)
    window: int | None = setting(
        None, "A table of every day; epsilon is for any stretch of this many days.", metavar="DAYS", heading=_TIME
    )
    cells_alone: bool = setting(False, "Count neither districts nor everything besides.", heading=_WHERE)
    balanced: bool = setting(False, "As many trips leave an area as get there: an assumption.", heading=_WHERE)
    confidence: float = setting(0.95, "How often an interval holds the true number.", metavar="P", heading=_WHERE)

    def __post_init__(self) -> None:
        names = self.names
        unknown = [name for name in names if name not in KINDS]
        if not names or unknown or len(set(names)) != len(names):
            raise ConfigurationError(f"tables are {self.tables!r}; give some of {', '.join(KINDS)}, each once")
        if set(self.weights) - set(names):
            raise ConfigurationError(f"split is {self.split!r}; give weights of the tables {', '.join(names)} alone")
        for name in ("visits_per_person", "trips_per_person"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= 100_000:
                raise ConfigurationError(f"{name} is {value}; give 1 to 100000")
        if not 0.5 <= self.confidence <= 0.999:
            raise ConfigurationError(f"confidence is {self.confidence}; give 0.5 to 0.999")
        if not (0 <= self.stay <= 1e6 and 0 < self.gap <= 1e5):
            raise ConfigurationError(
                f"stay is {self.stay} and gap {self.gap}; give minutes, 0 or more, and hours above 0"
            )
        self._check_days()
        for text in (self.by, self.flows_by):
            time_classes(text, self.zone)

    def _check_days(self) -> None:
        first, last = self.days
        if (first is None) != (last is None) or (first is not None and last is not None and last < first):
            raise ConfigurationError(f"days are from {self.first_day} to {self.last_day}; give both, in order")
        if self.window is None:
            return
        if first is None or last is None:
            raise ConfigurationError("tables of days need --first-day and --last-day: what the data have is not public")
        count = last - first + 1
        if not 1 <= self.window <= MOST_DAYS or count > MOST_DAYS:
            raise ConfigurationError(f"window is {self.window} of {count} days; at most {MOST_DAYS} are made")
        missing = [
            f"--{unit}-per-person"
            for unit in ("visits", "trips")
            if getattr(self, f"{unit}_per_person") is None and any(KINDS[name].unit == unit for name in self.names)
        ]
        if missing:
            raise ConfigurationError(f"tables of days need {' and '.join(missing)}")
        if "home-work" in self.names:
            raise ConfigurationError("home-work is no table of days; leave it out")

    @property
    def names(self) -> list[str]:
        """The tables."""
        return [one for one in self.tables.split(",") if one]

    @property
    def weights(self) -> dict[str, Fraction]:
        """Table → its weight in the budget, where one is said.

        Raises
        ------
        ConfigurationError
            When the split is no list of weights.
        """
        found = [_PART.fullmatch(one) for one in self.split.split(",") if one]
        if not all(found):
            raise ConfigurationError(f"split is {self.split!r}; give weights such as flows=3,visits=1")
        return {one[1]: rational(one[2], f"weight of {one[1]}") for one in found if one is not None}

    @property
    def days(self) -> tuple[int | None, int | None]:
        """The first and the last day since 1970."""
        found: list[Any] = []
        for day in (self.first_day, self.last_day):
            try:
                if day is not None and not _DAY.fullmatch(day):
                    raise ValueError
                found.append(None if day is None else int(np.datetime64(day, "D").astype(np.int64)))
            except ValueError:
                raise ConfigurationError(f"day is {day!r}; give one such as 2024-03-01") from None
        return found[0], found[1]

    def bound_of(self, unit: str) -> int | None:
        """How many events of a person count, where that is said; once a person, of people.

        Parameters
        ----------
        unit
            Visits, trips or people.

        Returns
        -------
        int or None
            The number; None where the budget is to choose it.
        """
        return 1 if unit == "people" else getattr(self, f"{unit}_per_person")

    def layout(self, areas: Areas) -> Layout:
        """The cells of tables between some areas.

        Parameters
        ----------
        areas
            The areas.

        Returns
        -------
        Layout
            Areas, classes of time and days.
        """
        first, last = self.days
        count = None if self.window is None or first is None or last is None else last - first + 1
        of_visits, of_flows = time_classes(self.by, self.zone), time_classes(self.flows_by, self.zone)
        return Layout(areas, of_visits, of_flows, count, first, last, not self.cells_alone)
