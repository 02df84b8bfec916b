"""Tests of contributions to each table, labels and levels on cases computed by hand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from dphmm.flows import Areas, FlowSettings
from dphmm.flows.areas import Visits
from dphmm.flows.noisy_tables import Family, Precision, _get_labels
from dphmm.flows.tables import Events, Table, derive_events, select_bounded
from dphmm.mechanisms.discrete_laplace import bound_laplace_noise
from dphmm.space import Grid

AREAS = Areas.from_space(Grid.over((45.0, -30.0, 45.03, -29.96), 1.0), block=2)


def build_visits(*rows):
    """Build visits from rows ``(user, area, start, end)`` with ISO 8601 times."""
    user, area, start, end = zip(*rows, strict=True)
    instants = [np.array(column, dtype="datetime64[us]").astype(np.int64) for column in (start, end)]
    nowhere = np.zeros(len(rows))
    numbers = [np.array(column, dtype=np.int64) for column in (user, area)]
    return Visits(*numbers, *instants, nowhere, nowhere, np.zeros(len(rows), dtype=bool))


NIGHTS_AND_DAYS = build_visits(
    (0, 3, "2024-03-04T00:00", "2024-03-04T06:00"),  # a Monday
    (0, 5, "2024-03-04T08:00", "2024-03-04T18:00"),
    (0, 3, "2024-03-04T19:00", "2024-03-05T07:00"),
    (0, 7, "2024-03-09T08:00", "2024-03-09T20:00"),  # on a Saturday, which is not a working day
    (1, 4, "2024-03-04T20:00", "2024-03-05T12:00"),  # works at home, so there is no separate work place
    (2, 6, "2024-03-04T23:00", "2024-03-04T23:00"),  # check-ins
    (2, 0, "2024-03-05T10:00", "2024-03-05T10:00"),
    (3, 2, "2024-03-05T10:00", "2024-03-05T16:00"),  # has no home
)


def test_home_is_at_nights_and_work_on_weekdays():
    layout = FlowSettings("home-work", stay=0).layout(AREAS)
    (events,) = derive_events(NIGHTS_AND_DAYS, layout, ["home-work"]).values()
    assert events.user.tolist() == [0, 2]
    assert events.cells["home-work"].tolist() == [3 * len(AREAS) + 5, 6 * len(AREAS) + 0]


def test_nights_use_time_zone():
    layout = FlowSettings("home-work", stay=0, zone="Asia/Tokyo").layout(AREAS)  # nine hours later
    (events,) = derive_events(NIGHTS_AND_DAYS, layout, ["home-work"]).values()
    # User 0: nights in Tokyo are 13 to 21 o'clock: 5 h at 5 on Monday, 2 h at 3, 7 h at 7; days are 0 to 8: 13 h at
    # 3.
    assert events.user.tolist()[0] == 0
    assert events.cells["home-work"].tolist()[0] == 7 * len(AREAS) + 3


def test_area_visited_first_is_home_or_work_if_times_are_equal():
    """Check-ins count for a minute each, whatever the rounding of their times."""
    layout = FlowSettings("home-work", stay=0).layout(AREAS)
    rows = []
    for user, second in enumerate(range(0, 3600, 60)):
        times = [f"2010-10-{day}:{second // 60:02}:{second % 7:02}" for day in ("04T10", "05T23", "06T23", "07T16")]
        rows += [(user, area, time, time) for area, time in zip((4, 7, 2, 0), times, strict=True)]
    (events,) = derive_events(build_visits(*rows), layout, ["home-work"]).values()
    assert events.cells["home-work"].tolist() == [7 * len(AREAS) + 4] * 60


def test_trip_counts_for_area_left_and_next_area():
    times = [f"2024-03-04T{hour:02}:00" for hour in range(4)]
    days = build_visits(*((0, area, time, time) for area, time in zip((3, 5, 7, 2), times, strict=True)))
    layout = FlowSettings("flows", stay=0).layout(AREAS)
    (events,) = derive_events(replace(days, leads_on=np.array([True, True, False, False])), layout, ["flows"]).values()
    assert events.cells["flows"].tolist() == [3 * len(AREAS) + 5, 5 * len(AREAS) + 7]


def test_first_and_last_day_are_included():
    layout = FlowSettings("visits", first_day="2024-03-04", last_day="2024-03-05", stay=0).layout(AREAS)
    late = build_visits(*((0, 1, f"2024-03-0{day}T12:00", f"2024-03-0{day}T13:00") for day in (3, 4, 5, 6)))
    (events,) = derive_events(late, layout, ["visits"]).values()
    assert events.user.tolist() == [0, 0]


@pytest.mark.parametrize(("window", "kept"), [(1, range(10)), (3, [0, 1, 3, 4, 6, 7, 9]), (10, [0, 1])])
def test_window_bounds_contributions_over_preceding_days(window, kept):
    events = Events(np.zeros(10, dtype=np.int32), np.arange(10, dtype=np.int32))
    assert np.flatnonzero(select_bounded(events, 2, window)).tolist() == list(kept)


def test_levels_are_labelled_by_district_and_everywhere():
    table = Table("flows", FlowSettings("flows").layout(AREAS))
    labels_of_level = {name: _get_labels(AREAS, AREAS.names, parts[0]) for name, parts in table.levels}
    assert labels_of_level == {"district": AREAS.districts, "everything": ("everywhere",)}


def test_interval_of_cells_matches_noise_and_of_sums_is_wider():
    table = Table("flows", FlowSettings("flows", cells_alone=True).layout(AREAS))
    alone = Precision(table, 2, Fraction(1), (Fraction(1),), 0.95, Family.from_tables([table]))
    assert alone.compute_half_widths(np.array(alone.variances), 0.05).tolist() == [bound_laplace_noise(0.5, 0.95)]
    several = Precision(table, 2, Fraction(1), (Fraction(1, 2), Fraction(1, 2)), 0.95, Family.from_tables([table]))
    of_one = several.compute_half_widths(np.array(several.variances[:1]), 0.05)
    assert of_one > bound_laplace_noise(0.25, 0.95) - 1
    assert of_one == pytest.approx(np.log(20) / np.sqrt(2) * np.sqrt(several.variances[0]))
