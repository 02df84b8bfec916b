"""Events as text: the grammar, its round trip, and its refusals."""

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
def test_text_reads_back(text):
    event = parse_event(text)
    assert str(event) == text
    assert parse_event(str(event)) == event


@pytest.mark.parametrize(
    "time", ["09:30:00.5Z", "09:30:00.000001", "09:30+00:00:30", "09:30-05:29:59", "09:30+01:00:00.5"]
)
def test_instants_that_text_would_round_are_refused(time):
    """Otherwise two events, and the hashes of two caps, have the same text."""
    with pytest.raises(EventError, match="in whole seconds with an offset in whole minutes, got '2024-03-04T"):
        parse_event(f"at:home between 2024-03-04T{time} and 2024-03-05")


@pytest.mark.parametrize("time", ["09:30:01Z", "09:30:00.000Z", "09:30:15-05:30", "09:30:00+00:00:00", "09:30"])
def test_other_instants_read_back(time):
    event = parse_event(f"at:home between 2024-03-04T{time} and 2024-03-05")
    assert event.when.start == datetime.fromisoformat(f"2024-03-04T{time}")
    assert parse_event(str(event)) == event


def test_case_and_dashes_are_ignored():
    loose = parse_event("AT:home Between 2024-03-04 AND 2024-03-10 ANY Weekday 9–12:30")
    assert loose == parse_event("at:home between 2024-03-04 and 2024-03-10 any weekday 9-12:30")


def test_places_are_named_numbered_or_polygons(tmp_path):
    grid = Grid.over((45.0, 7.0, 45.03, 7.04), 1.0)
    assert parse_event("at:work,home at 3").resolve(PLACES) == Presence([0, 1], 3, 3)
    assert parse_event('at:"St. Mary" at 3').resolve(PLACES) == Presence([2], 3, 3)
    assert parse_event("at:5,7 at 3").resolve(grid) == Presence([5, 7], 3, 3)
    assert parse_event("state:5,7 at 3").resolve() == Presence([5, 7], 3, 3)
    squares = {"ward 1": (0, 0.5), "ward 2": (1.5, 0.6), "far": (40, 0.5)}
    features = []
    for name, (east, half) in squares.items():
        corners = [(east - half, -half), (east + half, -half), (east + half, half), (east - half, half)]
        ring = [list(reversed(place)) for place in grid.projection.to_latlon(np.array([*corners, corners[0]])).tolist()]
        features.append(
            {"type": "Feature", "properties": {"name": name}, "geometry": {"type": "Polygon", "coordinates": [ring]}}
        )
    path = tmp_path / "clinic.geojson"
    path.write_text(json.dumps({"type": "FeatureCollection", "features": features}))

    def find_cells_inside(*names: str) -> list[int]:
        windows = [(np.abs(grid.points - [squares[name][0], 0]).max(axis=1), squares[name][1]) for name in names]
        within = [distance < half + 0.5 for distance, half in windows]  # cells of 1 km that share area
        return np.flatnonzero(np.any(within, axis=0)).tolist()

    assert parse_event(f'at:"{path}" at 1').resolve(grid) == Presence(find_cells_inside("ward 1", "ward 2"), 1, 1)
    assert parse_event(f'at:"{path}"#"ward 2" at 1').resolve(grid) == Presence(find_cells_inside("ward 2"), 1, 1)
    with pytest.raises(EventError, match="must be one of 'ward 1', 'ward 2', 'far', got 'ward 3'"):
        parse_event(f'at:"{path}"#"ward 3" at 1').resolve(grid)
    with pytest.raises(EventError, match=r"'.*#far' must overlap at least one state of the model"):
        parse_event(f'at:"{path}"#far at 1').resolve(grid)


def test_canonical_text_identifies_files_by_content(tmp_path):
    first, second = tmp_path / "one.geojson", tmp_path / "other.geojson"
    first.write_text("{}")
    second.write_text("{}")
    texts = [parse_event(f"at:{path} at 1").canonical for path in (first, second)]
    assert texts[0] == texts[1]
    second.write_text("{ }")
    assert parse_event(f"at:{second} at 1").canonical != texts[0]
    with pytest.raises(DataFileError, match="cannot be read"):
        _ = parse_event("at:nowhere.geojson at 1").canonical


def find_steps_within(text: str, clock: Clock = HOURS) -> list[int]:
    event = parse_event(text).resolve(PLACES, clock)
    parts = event.events if isinstance(event, AtLeast) else (event,)
    return [step for part in parts for step in range(part.first, part.last + 1)]


def list_local_hours(zone: str = "UTC") -> list[tuple[int, datetime]]:
    """Every timestep of 40 days after the first release with its local time."""
    start = datetime(2024, 3, 3, tzinfo=UTC)
    return [(step, (start + timedelta(hours=step)).astimezone(ZoneInfo(zone))) for step in range(24 * 40)]


def test_days_are_inclusive_and_times_are_exclusive():
    assert find_steps_within("at:home between 2024-03-04 and 2024-03-05") == list(range(24, 72))
    assert find_steps_within("at:home on 2024-03-04") == list(range(24, 48))
    assert find_steps_within("at:home between 2024-03-04T08:30Z and 2024-03-04T11:00Z") == [33, 34]
    assert find_steps_within("at:home between 2024-03-04 and 2024-03-04T11:00Z") == list(range(24, 35))


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata"])
def test_hours_follow_zone_across_clock_changes(zone):
    """The clocks change on 10 March in New York and on 31 March in Berlin."""
    steps = find_steps_within(f"at:home between 2024-03-04 and 2024-04-05 any weekday 9-12 in {zone}")
    expected = [
        step
        for step, local in list_local_hours(zone)
        if datetime(2024, 3, 4) <= local.replace(tzinfo=None) < datetime(2024, 4, 6)
        and local.weekday() < 5
        and 9 <= local.hour + local.minute / 60 < 12
    ]
    assert steps == expected


def find_minutes_shown(start: str, end: str, zone: str, noon: str) -> list[int]:
    """Minutes since 1970, within a day of a noon, during a window of local time.

    The window begins when the clock of a zone first shows ``start`` or later, and ends after it last shows a time
    before ``end``. The clock is read at each minute of UTC.
    """
    begin, until = (datetime.fromisoformat(time) for time in (start, end))
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


@pytest.mark.parametrize(
    ("zone", "day", "hours"), [(zone, day, hours) for zone, day, many in CHANGES for hours in many]
)
def test_windows_at_clock_change_keep_all_minutes(zone, day, hours):
    """Both clock changes of a year, compared minute by minute with the clock of the zone."""
    noon = f"{day}T12:00+00:00"
    clock = Clock(60, int(datetime.fromisoformat(noon).timestamp()) // 60 - 1440)
    start, end = [f"{hour}:00" if ":" not in hour else hour for hour in hours.split("-")]
    start, end = (f"{day}T{hour:0>5}" for hour in (start, end))
    if hours.endswith("-24"):
        end = (datetime.fromisoformat(day) + timedelta(days=1)).isoformat(timespec="minutes")
    expected = [minute - clock.first for minute in find_minutes_shown(start, end, zone, noon)]
    assert find_steps_within(f"at:home on {day} any day {hours} in {zone}", clock) == expected
    assert find_steps_within(f"at:home between {start} and {end} in {zone}", clock) == expected


def test_night_ends_at_last_showing_of_its_end():
    zone, noon = "Europe/Berlin", "2024-10-26T23:00+00:00"
    clock = Clock(60, int(datetime.fromisoformat(noon).timestamp()) // 60 - 1440)
    expected = find_minutes_shown("2024-10-26T22:00", "2024-10-27T02:30", zone, noon)
    steps = find_steps_within(f"at:home on 2024-10-26 any day 22-2:30 in {zone}", clock)
    assert [step + clock.first for step in steps] == expected
    assert len(steps) == 5.5 * 60


def test_window_skipped_by_clock_raises():
    with pytest.raises(EventError, match="must not lie in the hour that is skipped"):
        parse_event("at:home between 2024-03-31T02:10 and 2024-03-31T02:50 in Europe/Berlin")


def test_window_without_the_day_of_its_hours_raises():
    for day in (datetime(2024, 3, 4) + timedelta(days=count) for count in range(7)):
        text = f"at:home on {day:%Y-%m-%d} any monday 9-12"
        if f"{day:%A}" == "Monday":
            assert len(find_steps_within(text)) == 3
        else:
            with pytest.raises(EventError, match="must contain a time of 'any monday 9-12'"):
                find_steps_within(text)
    past = "at:home on 2024-02-26 any monday 9-12 from the first release"
    with pytest.raises(EventError, match="must contain a step from the first release on"):
        find_steps_within(past)


def test_night_belongs_to_day_of_its_begin():
    expected = [step for day in (1, 2) for step in range(24 * day + 22, 24 * day + 30)]
    assert find_steps_within("at:home between 2024-03-04 and 2024-03-05 any day 22-6") == expected
    assert find_steps_within("at:home between 2024-03-04T23:00Z and 2024-03-05T02:00Z any day 22-6") == [47, 48, 49]


def test_steps_before_first_release_raise_unless_text_omits_them():
    assert find_steps_within("at:home between 2024-03-01 and 2024-03-03 from the first release") == list(range(24))
    assert find_steps_within("at:home between 2024-03-01T00:00Z and 2024-03-03T01:00Z from the first release") == [0]
    with pytest.raises(EventError, match="'from the first release'"):
        find_steps_within("at:home between 2024-03-01 and 2024-03-03")
    with pytest.raises(EventError, match="2024-03-03T00:00:00Z"):
        find_steps_within("at:home on 2024-03-02")
    with pytest.raises(EventError, match="before the first release"):
        parse_event("at:home then at:work from 2024-03-02T23:00Z").resolve(PLACES, HOURS)


def test_event_begins_at_first_step_within_window():
    assert parse_event("at:home between 2024-03-02T22:00Z and 2024-03-02T23:00Z").first_step(HOURS) == -2
    assert (
        parse_event("at:home between 2024-03-02T22:10Z and 2024-03-02T22:50Z").first_step(HOURS) == 0
    )  # holds no step
    assert parse_event("at:home on 2024-03-02 from the first release | at:work at 3").first_step(HOURS) == 0


def test_counts_are_of_steps_visits_or_days():
    assert parse_event("at:home at least 3 times between 2 and 9").resolve(PLACES) == Times([0], 2, 9, 3)
    assert parse_event("at:home at least 3 visits between 2 and 9").resolve(PLACES) == Times([0], 2, 9, 3, visits=True)
    days = parse_event("at:home at least 2 days between 2024-03-04 and 2024-03-06 any day 9-12").resolve(PLACES, HOURS)
    assert days == AtLeast(2, [Presence([0], 24 * day + 9, 24 * day + 11) for day in (1, 2, 3)])
    moments = parse_event("at:home at least 4 times between 2024-03-04 and 2024-03-05 any day 9-12").resolve(
        PLACES, HOURS
    )
    assert moments == AtLeast(4, [Presence([0], step, step) for step in (33, 34, 35, 57, 58, 59)])


def test_pattern_begins_at_step_or_time():
    assert parse_event("at:home then at:work from 4").resolve(PLACES) == Pattern([[0], [1]], 4)
    assert parse_event("at:home then at:work from 2024-03-04T09:00Z").resolve(PLACES, HOURS) == Pattern([[0], [1]], 33)
    assert parse_event("at:home from 2024-03-04").resolve(PLACES, HOURS) == Pattern([[0]], 24)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "ends where a place"),
        ("at:home", "ends where between, on or at"),
        ("home at 3", "must have a location such as .*got 'home'"),
        ("at:home at 3 )", r"continues with '\)'"),
        ("(at:home at 3", r"must have '\)' at its end"),
        ("at:home at 3 |", "ends where a place"),
        ("at:home between 3 and 2024-01-01", "must be between two steps or between two times"),
        ("at:home between 9 and 3", "must not end before it begins"),
        ("at:home between 2024-03-05 and 2024-03-04", "must not end before it begins"),
        ("at:home between 2024-03-05 or 2024-03-06", "'and' .*'or'"),
        ("at:home on 2024-13-01", "'2024-13-01'"),
        ("at:home on 3", "'on 3'"),
        ("at:home at 2024-03-04", "'at 2024-03-04'"),
        ("at:home at 3 any weekday", "days and zones cannot be combined with steps"),
        ("at:home on 2024-03-04 in Mars/Base", "time zone must be a name .*got 'Mars/Base'.*install tzdata"),
        ("at:home on 2024-03-04 any holiday", "days must be one of day, .*got 'holiday'"),
        ("at:home on 2024-03-04 any day 9-25", "hours must have the form .*got '9-25'"),
        ("at:home on 2024-03-04 any day 9", "hours must have the form .*got '9'"),
        ("at:home on 2024-03-04 any day 18-18", "must end at another time than they start.*got '18-18'"),
        ("at:home then at:work at 3", "'then' .*'from'"),
        ("3 of (at:home at 3)", "3 of 1 events"),
        ("at:home at least 0 times at 3", "'0 times'"),
        ("at:home at least 2 hours at 3", "'2 hours'"),
        ("at:a,,b at 3", "has an empty location in"),
        ("at:nowhere at 3", "location must be one of .*'home'.*got 'nowhere'"),
        ("state:x at 3", "state must be a non-negative integer.*got 'x'"),
        ('at:"x at 3', "must have a location such as at:home"),
        ("at:missing.geojson at 3", "missing.geojson"),
        ("at:home at least 3 days on 2024-03-04", r"3 days.*\b1\b"),
        ("at:home at least 3 days between 1 and 2", "must be given in dates to count days, got steps"),
        (
            "at:home at least 2 visits between 2024-03-04 and 2024-03-06 any day 9-12",
            "visits cannot be combined with hours",
        ),
        ("at:home between 1800-01-01 and 2300-01-01", "hundred years"),
        ("(" * 65 + "at:home at 3" + ")" * 65, "64 deep"),
        ("!" * 20_000 + "at:home at 3", "64 deep"),
        ("(" * 20_000, "64 deep"),
        ("9" * 5000 + " of (at:home at 3)", "integers of at most 18 digits, got 5000"),
        ("at:home at least " + "9" * 19 + " times at 3", "integers of at most 18 digits, got 19"),
        ("1 of (" * 20_000, "64 deep"),
    ],
)
def test_invalid_text_raises(text, message):
    with pytest.raises((EventError, DataFileError), match=message) as caught:
        parse_event(text).resolve(PLACES, HOURS)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


def test_date_without_clock_and_place_without_space_raise():
    with pytest.raises(EventError, match="step_seconds"):
        parse_event("at:home on 2024-03-04").resolve(PLACES)
    with pytest.raises(EventError, match="state:3"):
        parse_event("at:home at 3").resolve()


def test_redundant_brackets_do_not_change_event():
    flat = parse_event("at:home at 3")
    assert parse_event("(" * 60 + "at:home at 3" + ")" * 60).canonical == flat.canonical
    assert parse_event("!" * 60 + "at:home at 3").resolve(PLACES).last == flat.resolve(PLACES).last


@pytest.mark.parametrize(
    "when",
    [
        "on 2024-03-07 any day 22-6",
        "between 2024-03-06 and 2024-03-07 any day 22-6 in Europe/Berlin",
        "between 2024-03-04 and 2024-03-08 any monday 8-9",
        "between 2024-03-07T01:00 and 2024-03-07T05:00 any day 22-6",
        "on 2024-03-07",
    ],
)
def test_event_is_past_exactly_without_a_step_from_the_first_release_on(when):
    """Otherwise a batch would ignore a cap that it can keep."""
    event = parse_event(f"at:5 {when} from the first release")
    start = int(np.datetime64("2024-03-03", "s").astype(np.int64)) // 600
    answers = []
    for first in range(start, start + 7 * 144):
        clock = Clock(600.0, first)
        try:
            event.when.list_spans(clock)
            has_step = True
        except EventError:
            has_step = False
        answers.append(event.is_past(clock))
        assert answers[-1] == (not has_step)
    assert set(answers) == {True, False}
