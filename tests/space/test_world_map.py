"""Towns by name on the included map."""

from __future__ import annotations

import pytest

from dphmm.errors import ConfigurationError
from dphmm.space.grid import Grid
from dphmm.space.world_map import town_box


@pytest.mark.parametrize(("name", "latitude", "longitude"), [("Lyon", 45.75, 4.85), ("taipei", 25.05, 121.53)])
def test_town_box_is_twenty_kilometres_wide(name, latitude, longitude):
    south, west, north, east = town_box(name)
    assert south < latitude < north
    assert west < longitude < east
    grid = Grid.over((south, west, north, east), 1.0)
    assert {grid.columns, grid.rows} <= {20, 21}


def test_town_box_takes_largest_of_several_towns():
    south, west, north, east = town_box("Paris")
    assert south < 48.86 < north
    assert west < 2.35 < east


def test_unknown_town_raises_with_similar_names():
    with pytest.raises(ConfigurationError, match="Lyon"):
        town_box("Lyom")
