"""A population from trajectories: everybody somewhere, held where unseen, days laid over each other."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm.errors import ConfigurationError, CountError
from dphmm.jobs.counting import Days, daily_population, population
from dphmm.space.grid import PRESETS, Grid
from dphmm.space.states import Places
from dphmm.space.trajectory import Trajectory

SPACE = Places(["a", "b", "c"], [45.0, 45.02, 45.04], [7.0, 7.0, 7.0], within_km=0.5)
ELSEWHERE = 46.0


def track(user, times, places):
    latitude = [ELSEWHERE if place < 0 else 45.0 + 0.02 * place for place in places]
    return Trajectory(user, np.array(times, dtype="datetime64[us]"), np.array(latitude), np.full(len(times), 7.0))


ANN = track("ann", ["2024-03-07T08:00", "2024-03-07T10:00", "2024-03-07T11:00"], [0, 1, -1])
BOB = track("bob", ["2024-03-07T09:00", "2024-03-08T09:30"], [2, 0])


def test_states_are_held_forwards_and_before_the_first_fix_backwards():
    found = population([ANN, BOB], SPACE, 3600, end="2024-03-07T12:00")
    assert found.states.tolist() == [[0, 0, 1, 1, 1], [2, 2, 2, 2, 2]]
    assert found.seen.tolist() == [[True, False, True, False, False], [False, True, False, False, False]]
    assert [str(time) for time in found.times[:2]] == ["2024-03-07T08:00:00.000000", "2024-03-07T09:00:00.000000"]


def test_counts_sum_to_the_number_of_people_at_every_time():
    found = population([ANN, BOB], SPACE, 3600)
    assert found.counts.shape == (27, 3)
    assert (found.counts.sum(axis=1) == 2).all()
    assert found.counts[0].tolist() == [1, 0, 1]


def test_who_is_not_seen_in_the_span_is_no_member():
    for start in ("2024-03-08T00:00", "2024-03-08T00:00Z", "2024-03-08T01:00+01:00", np.datetime64("2024-03-08")):
        assert population([ANN, BOB], SPACE, 3600, start=start).members == ("bob",)


def test_days_are_members_of_their_own():
    found = daily_population([ANN, BOB], SPACE, 3600, Days((8, 12)))
    assert found.members == ("ann 2024-03-07", "bob 2024-03-07", "bob 2024-03-08")
    assert found.times.tolist() == [480, 540, 600, 660]
    assert found.states.tolist() == [[0, 0, 1, 1], [2, 2, 2, 2], [0, 0, 0, 0]]


def test_local_time_moves_the_day():
    found = daily_population([track("eve", ["2024-03-07T23:00"], [1])], SPACE, 3600, Days(utc_offset=2))
    assert found.members == ("eve 2024-03-08",)
    assert found.seen[0].nonzero()[0].tolist() == [1]


def test_days_that_are_hardly_seen_are_left_out():
    assert daily_population([ANN, BOB], SPACE, 3600, Days((8, 12), least_seen=0.5)).members == ("ann 2024-03-07",)


def test_a_part_has_the_chosen_members():
    whole = population([ANN, BOB], SPACE, 3600)
    assert whole.part([1]).members == ("bob",)
    assert whole.part(np.array([True, False])).states.tolist() == whole.states[:1].tolist()
    with pytest.raises(CountError, match="no one"):
        whole.part(np.array([False, False]))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: population([], SPACE, 60), CountError, "no one"),
        (lambda: population([track("x", ["2024-03-07T08:00"], [-1])], SPACE, 60), CountError, "no one"),
        (lambda: population([ANN], SPACE, 0), ConfigurationError, "step is 0"),
        (lambda: population([ANN], SPACE, 60, start="noon"), ConfigurationError, "start is 'noon'"),
        (lambda: population([ANN], SPACE, 60, start="2030-01-01", end="2029-01-01"), ConfigurationError, "end after"),
        (lambda: daily_population([ANN], SPACE, 7000), ConfigurationError, "does not divide a day"),
        (lambda: Days((12, 8)), ConfigurationError, r"\(12, 8\)"),
        (lambda: Days(least_seen=1.5), ConfigurationError, r"least_seen is 1\.5"),
        (lambda: daily_population([ANN], SPACE, 3600, Days((20, 24))), CountError, "no one"),
    ],
)
def test_what_makes_no_population_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.slow
def test_days_of_geolife_keep_everybody_at_every_time(real_trajectories):
    people = real_trajectories("geolife/geolife_beijing.tar.gz")
    grid = Grid.over(PRESETS["geolife"][0], 2.0)
    days = daily_population(people, grid, 600, Days((8, 20), 8, 1 / 6))
    assert len({name.split()[0] for name in days.members}) > 20
    assert (days.counts.sum(axis=1) == len(days.members)).all()
    assert (days.seen.sum(axis=1) >= 12).all()
    name = days.members[5]
    user, date = name.split()
    one = next(person for person in people if person.user == user)
    local = one.times + np.timedelta64(8, "h")
    start = np.datetime64(date, "us") + np.timedelta64(8, "h")
    for slot in np.flatnonzero(days.seen[5]):
        end = start + slot * np.timedelta64(600, "s")
        last = np.flatnonzero((local > end - np.timedelta64(600, "s")) & (local <= end))[-1]
        assert grid.locate(one.latitude[last], one.longitude[last])[0] == days.states[5, slot]
