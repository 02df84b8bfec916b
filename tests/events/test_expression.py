"""Events out of text: what is read, that it reads back, and what is refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from dphmm.errors import DataFileError, EventError
from dphmm.events import AtLeast, Clock, Pattern, Presence, Times, parse_event
from dphmm.space import Grid, Places

PLACES = Places(["home", "work", "St. Mary"], [45.0, 45.01, 45.02], [7.0, 7.01, 7.02])
HOURS = Clock(3600, 474_840)  # 2024-03-03T00:00Z, a Sunday

TEXTS = [
    "at:home on 2024-03-04",
    "at:home,work between 2024-03-04 and 2024-03-10 any weekday 9-12 in Europe/Berlin",
    'at:"St. Mary" between 2024-03-04T08:30Z and 2024-03-04T12:00+02:00',
    "at:data/clinic.geojson#oncology at least 2 days between 2024-03-04 and 2024-03-10",
    'at:"my files/a (b).geojson"#"ward 1" on 2024-03-04 any day 22:30-6',
    "at:home then at:work then at:home from 2024-03-04T09:00 in Asia/Kolkata",
    "state:3,4 between 1 and 2 | !state:0 at 3 & state:1 at 2",
    "(state:3 at 2 | at:home at 4) & !(state:4 at 3 & state:5 at 3)",
    "2 of (state:1 at 1; state:2 at 2 | state:3 at 3; state:4 at least 3 visits between 0 and 9)",
    "state:none at 1",
    "at:home on 2024-03-04 any day 9-12 in Europe/Berlin from the first release | at:work at 3",
]


@pytest.mark.parametrize("text", TEXTS)
def test_the_text_reads_back(text):
    event = parse_event(text)
    assert str(event) == text
    assert parse_event(str(event)) == event


def test_case_and_dashes_do_not_matter():
    loose = parse_event("AT:home Between 2024-03-04 AND 2024-03-10 ANY Weekday 9–12:30")
    assert loose == parse_event("at:home between 2024-03-04 and 2024-03-10 any weekday 9-12:30")


def test_places_go_by_name_number_and_polygon(tmp_path):
    grid = Grid.over((45.0, 7.0, 45.03, 7.04), 1.0)
    assert parse_event("at:work,home at 3").resolve(PLACES) == Presence([0, 1], 3, 3)
    assert parse_event('at:"St. Mary" at 3').resolve(PLACES) == Presence([2], 3, 3)
    assert parse_event("at:5,7 at 3").resolve(grid) == Presence([5, 7], 3, 3)
    assert parse_event("state:5,7 at 3").resolve() == Presence([5, 7], 3, 3)
    squares = {"ward 1": (0, 0.5), "ward 2": (1.5, 0.6)}
    features = []
    for name, (east, half) in squares.items():
        corners = [(east - half, -half), (east + half, -half), (east + half, half), (east - half, half)]
        ring = [list(reversed(place)) for place in grid.projection.to_latlon(np.array([*corners, corners[0]])).tolist()]
        features.append(
            {"type": "Feature", "properties": {"name": name}, "geometry": {"type": "Polygon", "coordinates": [ring]}}
        )
    path = tmp_path / "clinic.geojson"
    path.write_text(json.dumps({"type": "FeatureCollection", "features": features}))

    def inside(*names: str) -> list[int]:
        about = [(np.abs(grid.points - [squares[name][0], 0]).max(axis=1), squares[name][1]) for name in names]
        within = [distance < half + 0.5 for distance, half in about]  # cells of 1 km that share area
        return np.flatnonzero(np.any(within, axis=0)).tolist()

    assert parse_event(f'at:"{path}" at 1').resolve(grid) == Presence(inside("ward 1", "ward 2"), 1, 1)
    assert parse_event(f'at:"{path}"#"ward 2" at 1').resolve(grid) == Presence(inside("ward 2"), 1, 1)
    with pytest.raises(EventError, match="no polygon named 'ward 3'; it has 'ward 1', 'ward 2'"):
        parse_event(f'at:"{path}"#"ward 3" at 1').resolve(grid)


def test_a_canonical_text_knows_files_by_their_content(tmp_path):
    one, other = tmp_path / "one.geojson", tmp_path / "other.geojson"
    one.write_text("{}")
    other.write_text("{}")
    texts = [parse_event(f"at:{path} at 1").canonical for path in (one, other)]
    assert texts[0] == texts[1]
    other.write_text("{ }")
    assert parse_event(f"at:{other} at 1").canonical != texts[0]
    with pytest.raises(DataFileError, match="cannot be read"):
        _ = parse_event("at:nowhere.geojson at 1").canonical


def steps_within(text: str, clock: Clock = HOURS) -> list[int]:
    event = parse_event(text).resolve(PLACES, clock)
    parts = event.events if isinstance(event, AtLeast) else (event,)
    return [step for part in parts for step in range(part.first, part.last + 1)]


def hours(zone: str = "UTC") -> list[tuple[int, datetime]]:
    """Every step of the two weeks after the first release with its local time."""
    start = datetime(2024, 3, 3, tzinfo=UTC)
    return [(step, (start + timedelta(hours=step)).astimezone(ZoneInfo(zone))) for step in range(24 * 40)]


def test_days_are_included_and_instants_end():
    assert steps_within("at:home between 2024-03-04 and 2024-03-05") == list(range(24, 72))
    assert steps_within("at:home on 2024-03-04") == list(range(24, 48))
    assert steps_within("at:home between 2024-03-04T08:30Z and 2024-03-04T11:00Z") == [33, 34]
    assert steps_within("at:home between 2024-03-04 and 2024-03-04T11:00Z") == list(range(24, 35))


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata"])
def test_hours_of_days_are_those_of_the_zone_across_its_changes(zone):
    """The clocks change on 10 March in New York and on 31 March in Berlin."""
    found = steps_within(f"at:home between 2024-03-04 and 2024-04-05 any weekday 9-12 in {zone}")
    expected = [
        step
        for step, local in hours(zone)
        if datetime(2024, 3, 4) <= local.replace(tzinfo=None) < datetime(2024, 4, 6)
        and local.weekday() < 5
        and 9 <= local.hour + local.minute / 60 < 12
    ]
    assert found == expected


def shown_within(start: str, end: str, zone: str, noon: str) -> list[int]:
    """Minutes since 1970, within a day of a noon, from the first that a zone's clock shows at ``start`` or later to the
    last that it shows before ``end``: by what the clock shows at each minute of UTC."""
    begin, until = (datetime.fromisoformat(one) for one in (start, end))
    middle = int(datetime.fromisoformat(noon).timestamp()) // 60
    minutes = np.arange(middle - 1440, middle + 1440).tolist()
    shown = [datetime.fromtimestamp(60 * m, UTC).astimezone(ZoneInfo(zone)).replace(tzinfo=None) for m in minutes]
    first = next(m for m, local in zip(minutes, shown, strict=True) if local >= begin)
    last = max(m for m, local in zip(minutes, shown, strict=True) if local < until)
    return list(range(first, last + 1))


CHANGES = [
    ("Europe/Berlin", "2024-03-31", ["1-2:30", "2:30-6", "2:30-3:30", "1:30-2", "2-3:15", "1-12"]),
    ("Europe/Berlin", "2024-10-27", ["1-2:30", "2:30-6", "2:15-2:45", "1-2", "2-3", "3-4", "1:30-12"]),
    ("America/New_York", "2024-03-10", ["1-2:30", "2:30-6"]),
    ("America/New_York", "2024-11-03", ["0:30-1:30", "1:30-6", "0-1"]),
    ("America/Havana", "2024-11-03", ["0:30-6", "0-1", "0-24"]),
    ("America/Havana", "2024-03-10", ["0:30-6", "0-24"]),
]


@pytest.mark.parametrize(("zone", "day", "hours"), [(zone, day, one) for zone, day, many in CHANGES for one in many])
def test_windows_that_begin_or_end_within_a_change_of_the_clock_lose_no_time(zone, day, hours):
    """Both changes of a year, minute by minute against what the clock shows."""
    noon = f"{day}T12:00+00:00"
    clock = Clock(60, int(datetime.fromisoformat(noon).timestamp()) // 60 - 1440)
    start, end = [f"{one}:00" if ":" not in one else one for one in hours.split("-")]
    start, end = (f"{day}T{one:0>5}" for one in (start, end))
    if hours.endswith("-24"):
        end = (datetime.fromisoformat(day) + timedelta(days=1)).isoformat(timespec="minutes")
    expected = [minute - clock.first for minute in shown_within(start, end, zone, noon)]
    assert steps_within(f"at:home on {day} any day {hours} in {zone}", clock) == expected
    assert steps_within(f"at:home between {start} and {end} in {zone}", clock) == expected


def test_a_night_ends_when_the_clock_last_shows_its_hours():
    zone, noon = "Europe/Berlin", "2024-10-26T23:00+00:00"
    clock = Clock(60, int(datetime.fromisoformat(noon).timestamp()) // 60 - 1440)
    expected = shown_within("2024-10-26T22:00", "2024-10-27T02:30", zone, noon)
    found = steps_within(f"at:home on 2024-10-26 any day 22-2:30 in {zone}", clock)
    assert [step + clock.first for step in found] == expected
    assert len(found) == 5.5 * 60


def test_a_window_that_the_clock_skips_is_refused():
    with pytest.raises(EventError, match="put forward"):
        parse_event("at:home between 2024-03-31T02:10 and 2024-03-31T02:50 in Europe/Berlin")


def test_a_night_belongs_to_the_day_on_which_it_begins():
    expected = [step for day in (1, 2) for step in range(24 * day + 22, 24 * day + 30)]
    assert steps_within("at:home between 2024-03-04 and 2024-03-05 any day 22-6") == expected
    assert steps_within("at:home between 2024-03-04T23:00Z and 2024-03-05T02:00Z any day 22-6") == [47, 48, 49]


def test_what_lies_before_the_first_release_is_left_out_where_the_text_says_so_and_refused_elsewhere():
    assert steps_within("at:home between 2024-03-01 and 2024-03-03 from the first release") == list(range(24))
    assert steps_within("at:home between 2024-03-01T00:00Z and 2024-03-03T01:00Z from the first release") == [0]
    with pytest.raises(EventError, match="write 'from the first release' behind the window"):
        steps_within("at:home between 2024-03-01 and 2024-03-03")
    with pytest.raises(EventError, match="holds no step from the first release on, at 2024-03-03T00:00:00Z"):
        steps_within("at:home on 2024-03-02")
    with pytest.raises(EventError, match="begins before the first release"):
        parse_event("at:home then at:work from 2024-03-02T23:00Z").resolve(PLACES, HOURS)


def test_an_event_begins_at_its_first_step_that_a_window_holds_be_it_the_only_one():
    assert parse_event("at:home between 2024-03-02T22:00Z and 2024-03-02T23:00Z").begins(HOURS) == -2
    assert parse_event("at:home between 2024-03-02T22:10Z and 2024-03-02T22:50Z").begins(HOURS) == 0  # holds none
    assert parse_event("at:home on 2024-03-02 from the first release | at:work at 3").begins(HOURS) == 0


def test_counts_are_of_steps_of_visits_and_of_days():
    assert parse_event("at:home at least 3 times between 2 and 9").resolve(PLACES) == Times([0], 2, 9, 3)
    assert parse_event("at:home at least 3 visits between 2 and 9").resolve(PLACES) == Times([0], 2, 9, 3, visits=True)
    days = parse_event("at:home at least 2 days between 2024-03-04 and 2024-03-06 any day 9-12").resolve(PLACES, HOURS)
    assert days == AtLeast(2, [Presence([0], 24 * day + 9, 24 * day + 11) for day in (1, 2, 3)])
    moments = parse_event("at:home at least 4 times between 2024-03-04 and 2024-03-05 any day 9-12").resolve(
        PLACES, HOURS
    )
    assert moments == AtLeast(4, [Presence([0], step, step) for step in (33, 34, 35, 57, 58, 59)])


def test_a_pattern_begins_at_a_step_or_an_instant():
    assert parse_event("at:home then at:work from 4").resolve(PLACES) == Pattern([[0], [1]], 4)
    assert parse_event("at:home then at:work from 2024-03-04T09:00Z").resolve(PLACES, HOURS) == Pattern([[0], [1]], 33)
    assert parse_event("at:home from 2024-03-04").resolve(PLACES, HOURS) == Pattern([[0]], 24)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "ends where a place is missing"),
        ("at:home", "ends where between, on or at is missing"),
        ("home at 3", "has 'home' where a place is named"),
        ("at:home at 3 )", r"goes on with '\)'"),
        ("(at:home at 3", r"misses '\)' at its end"),
        ("at:home at 3 |", "ends where a place is missing"),
        ("at:home between 3 and 2024-01-01", "goes from a step to a time"),
        ("at:home between 9 and 3", "ends before it begins"),
        ("at:home between 2024-03-05 and 2024-03-04", "ends before it begins"),
        ("at:home between 2024-03-05 or 2024-03-06", "misses 'and' before 'or'"),
        ("at:home on 2024-13-01", "'2024-13-01' is no time"),
        ("at:home on 3", "says 'on 3'"),
        ("at:home at 2024-03-04", "says 'at 2024-03-04'"),
        ("at:home at 3 any weekday", "counts steps, which have no days"),
        ("at:home on 2024-03-04 in Mars/Base", "time zone 'Mars/Base' is unknown"),
        ("at:home on 2024-03-04 any holiday", "days 'holiday' are unknown"),
        ("at:home on 2024-03-04 any day 9-25", "hours '9-25' are none"),
        ("at:home on 2024-03-04 any day 9", "hours '9' are none"),
        ("at:home then at:work at 3", "has 'then' and no 'from'"),
        ("3 of (at:home at 3)", "asks for 3 of 1 events"),
        ("at:home at least 0 times at 3", "counts '0 times'"),
        ("at:home at least 2 hours at 3", "counts '2 hours'"),
        ("at:a,,b at 3", "names an empty place"),
        ("at:nowhere at 3", "place 'nowhere' is unknown; give one of the 3 places, such as 'home'"),
        ("state:x at 3", "state 'x' is no number"),
        ('at:"x at 3', "where a place is named"),
        ("at:missing.geojson at 3", "missing.geojson"),
        ("at:home at least 3 days on 2024-03-04", "asks for 3 days, and the window has 1"),
        ("at:home at least 3 days between 1 and 2", "counts steps, which have no days"),
        ("at:home at least 2 visits between 2024-03-04 and 2024-03-06 any day 9-12", "counts visits within hours"),
        ("at:home between 1800-01-01 and 2300-01-01", "longer than a hundred years"),
        ("(" * 65 + "at:home at 3" + ")" * 65, "is nested more than 64 deep"),
        ("!" * 20_000 + "at:home at 3", "is nested more than 64 deep"),
        ("(" * 20_000, "is nested more than 64 deep"),
        ("9" * 5000 + " of (at:home at 3)", "has a number of 5000 digits, more than 18"),
        ("at:home at least " + "9" * 19 + " times at 3", "has a number of 19 digits"),
        ("1 of (" * 20_000, "is nested more than 64 deep"),
    ],
)
def test_what_cannot_be_read_is_refused_in_a_line(text, message):
    with pytest.raises((EventError, DataFileError), match=message) as caught:
        parse_event(text).resolve(PLACES, HOURS)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


def test_dates_need_a_clock_and_places_a_space():
    with pytest.raises(EventError, match="no step_seconds; give steps"):
        parse_event("at:home on 2024-03-04").resolve(PLACES)
    with pytest.raises(EventError, match="does not say where its states are; give state:3"):
        parse_event("at:home at 3").resolve()


def test_as_many_brackets_as_are_taken_are_those_of_one():
    flat = parse_event("at:home at 3")
    assert parse_event("(" * 60 + "at:home at 3" + ")" * 60).canonical == flat.canonical
    assert parse_event("!" * 60 + "at:home at 3").resolve(PLACES).last == flat.resolve(PLACES).last
