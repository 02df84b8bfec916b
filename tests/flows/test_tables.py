"""What people add to each table, and what labels and levels are called, against small cases worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from dphmm.flows import Areas, FlowSettings
from dphmm.flows.areas import Visits
from dphmm.flows.noisy_tables import Precision, _labels
from dphmm.flows.tables import Events, Table, bounded, events_of
from dphmm.mechanisms.count_noise import laplace_within
from dphmm.space import Grid

AREAS = Areas.from_space(Grid.over((45.0, -30.0, 45.03, -29.96), 1.0), block=2)


def visits(*rows):
    """Of each ``(person, area, start, end)``, in text of ISO 8601."""
    person, area, start, end = zip(*rows, strict=True)
    instants = [np.array(one, dtype="datetime64[us]").astype(np.int64) for one in (start, end)]
    nowhere = np.zeros(len(rows))
    numbers = [np.array(one, dtype=np.int64) for one in (person, area)]
    return Visits(*numbers, *instants, nowhere, nowhere, np.zeros(len(rows), dtype=bool))


NIGHTS_AND_DAYS = visits(
    (0, 3, "2024-03-04T00:00", "2024-03-04T06:00"),  # a Monday
    (0, 5, "2024-03-04T08:00", "2024-03-04T18:00"),
    (0, 3, "2024-03-04T19:00", "2024-03-05T07:00"),
    (0, 7, "2024-03-09T08:00", "2024-03-09T20:00"),  # on a Saturday nobody works
    (1, 4, "2024-03-04T20:00", "2024-03-05T12:00"),  # works where the home is: at no other place
    (2, 6, "2024-03-04T23:00", "2024-03-04T23:00"),  # check-ins
    (2, 0, "2024-03-05T10:00", "2024-03-05T10:00"),
    (3, 2, "2024-03-05T10:00", "2024-03-05T16:00"),  # has no home
)


def test_home_is_where_nights_are_and_work_where_days_of_the_week_are():
    layout = FlowSettings("home-work", stay=0).layout(AREAS)
    (found,) = events_of(NIGHTS_AND_DAYS, layout, ["home-work"]).values()
    assert found.person.tolist() == [0, 2]
    assert found.cells["home-work"].tolist() == [3 * len(AREAS) + 5, 6 * len(AREAS) + 0]


def test_nights_are_those_of_the_zone():
    layout = FlowSettings("home-work", stay=0, zone="Asia/Tokyo").layout(AREAS)  # nine hours later
    (found,) = events_of(NIGHTS_AND_DAYS, layout, ["home-work"]).values()
    # 0: nights in Tokyo are 13 to 21 o'clock: 5 h at 5 on Monday, 2 h at 3, 7 h at 7; days are 0 to 8: 13 h at 3.
    assert found.person.tolist()[0] == 0
    assert found.cells["home-work"].tolist()[0] == 7 * len(AREAS) + 3


def test_a_trip_counts_for_the_area_that_is_left_and_the_next_one():
    times = [f"2024-03-04T{hour:02}:00" for hour in range(4)]
    days = visits(*((0, area, time, time) for area, time in zip((3, 5, 7, 2), times, strict=True)))
    layout = FlowSettings("flows", stay=0).layout(AREAS)
    (found,) = events_of(replace(days, leads_on=np.array([True, True, False, False])), layout, ["flows"]).values()
    assert found.cells["flows"].tolist() == [3 * len(AREAS) + 5, 5 * len(AREAS) + 7]


def test_days_from_the_first_to_the_last_count_both_included():
    layout = FlowSettings("visits", first_day="2024-03-04", last_day="2024-03-05", stay=0).layout(AREAS)
    late = visits(*((0, 1, f"2024-03-0{day}T12:00", f"2024-03-0{day}T13:00") for day in (3, 4, 5, 6)))
    (found,) = events_of(late, layout, ["visits"]).values()
    assert found.person.tolist() == [0, 0]


@pytest.mark.parametrize(("window", "kept"), [(1, range(10)), (3, [0, 1, 3, 4, 6, 7, 9]), (10, [0, 1])])
def test_on_a_day_as_many_count_as_the_days_before_it_in_the_window_left(window, kept):
    events = Events(np.zeros(10, dtype=np.int32), np.arange(10, dtype=np.int32))
    assert np.flatnonzero(bounded(events, 2, window)).tolist() == list(kept)


def test_levels_are_called_by_districts_and_everywhere():
    table = Table("flows", FlowSettings("flows").layout(AREAS))
    said = {name: _labels(AREAS, AREAS.names, parts[0]) for name, parts in table.levels}
    assert said == {"district": AREAS.districts, "everything": ("everywhere",)}


def test_the_interval_of_cells_alone_is_that_of_their_noise_and_of_sums_a_wider_one():
    table = Table("flows", FlowSettings("flows", cells_alone=True).layout(AREAS))
    alone = Precision(table, 2, Fraction(1), (Fraction(1),), 0.95)
    assert alone.half_widths(np.array(alone.variances)).tolist() == [laplace_within(0.5, 0.95)]
    several = Precision(table, 2, Fraction(1), (Fraction(1, 2), Fraction(1, 2)), 0.95)
    of_one = several.half_widths(np.array(several.variances[:1]))
    assert of_one > laplace_within(0.25, 0.95) - 1
    assert of_one == pytest.approx(np.log(20) / np.sqrt(2) * np.sqrt(several.variances[0]))
