"""Tables of people attacked: what noise for whole people leaves of it."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from dphmm.cli import main
from dphmm.errors import ConfigurationError
from dphmm.flows import Areas
from dphmm.jobs import attack_tables
from dphmm.readers.synthetic_city import synthetic_trajectories

TOWN = "data/districts.geojson"
NAMES = ["as they are", "the mean of the week", "below 5 hidden", "below 10 hidden", "epsilon 1", "nothing"]


def test_tables_as_they_are_give_away_more_than_those_with_noise():
    people = synthetic_trajectories(30, 5, 30.0, rng=2)
    columns = {
        name: np.concatenate([getattr(one, name) for one in people]) for name in ("times", "latitude", "longitude")
    }
    columns["time"] = columns.pop("times")
    frame = pd.DataFrame({"user": np.repeat([one.user for one in people], [len(one) for one in people]), **columns})
    found = attack_tables(frame, Areas.from_polygons(TOWN), rounds=20)
    raw, _, five, ten, noisy, nothing = found
    assert [one.protection for one in found] == NAMES
    assert raw.recovered > nothing.recovered + 0.2
    assert raw.recovered > noisy.recovered
    assert raw.membership >= five.membership >= ten.membership - 0.1
    assert noisy.bound == pytest.approx(np.e / (1 + np.e))
    assert raw.membership > 0.8 > noisy.membership


def test_the_command_says_the_same():
    done = CliRunner().invoke(
        main, ["attack", "data/sample/geolife", "--areas", TOWN, "--user-epsilon", "0.5", "--json"]
    )
    assert done.exit_code == 0, done.output
    assert [one["protection"] for one in json.loads(done.stdout)] == [*NAMES[:4], "epsilon 0.5", "nothing"]
    refused = CliRunner().invoke(main, ["attack", "data/sample/geolife", "--zone", "UTC"])
    assert refused.exit_code == 2
    assert "--zone goes with --areas" in refused.stderr


def test_few_people_are_refused():
    with pytest.raises(ConfigurationError, match="give at least one hour"):
        attack_tables("data/sample/geolife", Areas.from_polygons(TOWN), hours_per_person=0)
