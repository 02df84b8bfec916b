"""What a release prepares for follows from the times of what it publishes; of several people, from none of theirs."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm import MarkovModel, ReleaseSettings
from dphmm.jobs.releases import _long_gaps, release
from dphmm.space import Grid
from dphmm.space.trajectory import SlottedTrajectory

HOUR = 3600.0
SLOTS = np.array([470_000, 470_001, 470_024, 470_048, 470_049, 470_100])


@pytest.fixture
def town() -> MarkovModel:
    grid = Grid.over((45.0, -30.0, 45.02, -29.97), 1.0)
    return MarkovModel(np.full((grid.size, grid.size), 1 / grid.size), np.full(grid.size, 1 / grid.size), grid, HOUR)


def person(town: MarkovModel, outside: int | None = None) -> SlottedTrajectory:
    places = np.tile(town.states.latlon([0]), (len(SLOTS), 1))
    if outside is not None:
        places[outside] = 60.0, 10.0
    return SlottedTrajectory("ann", HOUR, SLOTS, places[:, 0], places[:, 1])


def test_gaps_of_a_day_or_more_between_releases_are_counted(town):
    assert _long_gaps([person(town)], town, omits=False) == 2  # of 24 and 51 hours
    assert _long_gaps([person(town, outside=2)], town, omits=False) == 2
    assert _long_gaps([person(town, outside=2)], town, omits=True) == 2  # 47 hours in place of 23 and 24
    assert _long_gaps([person(town, outside=1)], town, omits=True) == 3  # 24 hours in place of 1 and 23


@pytest.mark.parametrize("people", ["ann", "ann bob eve"])
def test_a_release_counts_on_them(town, people, tmp_path, monkeypatch):
    counted = []
    plain = MarkovModel.expecting
    monkeypatch.setattr(MarkovModel, "expecting", lambda self, gaps: counted.append(gaps) or plain(self, gaps))
    file = tmp_path / "people.csv"
    latitude, longitude = town.states.latlon([0])[0]
    times = (SLOTS * np.timedelta64(3600, "s")).astype("datetime64[s]")
    rows = [f"{name},{time}Z,{latitude},{longitude}" for name in people.split() for time in times]
    file.write_text("\n".join(["user,time,latitude,longitude", *rows, ""]))
    release(file, town, ReleaseSettings("complete", 1.0))
    assert counted == [2 if people == "ann" else 3]


def test_of_several_people_nobodys_gaps_are_counted(town):
    assert _long_gaps([person(town)] * 7, town, omits=True) == _long_gaps([person(town, 1)] * 7, town, omits=True) == 7
