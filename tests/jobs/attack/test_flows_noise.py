"""Tests of attacks on count tables with and without noise for whole users."""

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
from dphmm.readers.synthetic_city import sample_synthetic_trajectories

TOWN = "data/districts.geojson"
NAMES = ["exact counts", "weekly mean", "counts below 5 suppressed", "counts below 10 suppressed"]
NAMES += ["epsilon 1", "no table"]


@pytest.mark.slow
def test_raw_tables_leak_more_than_tables_with_noise():
    tracks = sample_synthetic_trajectories(30, 5, 30.0, rng=2)
    columns = {
        name: np.concatenate([getattr(trajectory, name) for trajectory in tracks])
        for name in ("times", "latitude", "longitude")
    }
    columns["time"] = columns.pop("times")
    frame = pd.DataFrame(
        {
            "user": np.repeat([trajectory.user for trajectory in tracks], [len(trajectory) for trajectory in tracks]),
            **columns,
        }
    )
    attacks = attack_tables(frame, Areas.from_polygons(TOWN), rounds=20)
    raw, _, five, ten, noisy, nothing = attacks
    assert [attack_result.protection for attack_result in attacks] == NAMES
    assert raw.recovered_share > nothing.recovered_share + 0.2
    assert raw.recovered_share > noisy.recovered_share
    assert raw.membership_auc >= five.membership_auc >= ten.membership_auc - 0.1
    assert noisy.max_membership_auc == pytest.approx(np.e / (1 + np.e))
    assert raw.membership_auc > 0.8 > noisy.membership_auc
    assert noisy.membership_auc_interval[0] <= noisy.max_membership_auc


def test_attack_command_lists_same_protections():
    done = CliRunner().invoke(
        main, ["attack", "data/sample/geolife", "--areas", TOWN, "--user-epsilon", "0.5", "--json"]
    )
    assert done.exit_code == 0, done.output
    assert [row["protection"] for row in json.loads(done.stdout)] == [*NAMES[:4], "epsilon 0.5", "no table"]
    refused = CliRunner().invoke(main, ["attack", "data/sample/geolife", "--zone", "UTC"])
    assert refused.exit_code == 2
    assert "--zone needs --areas" in refused.stderr


def test_too_few_hours_per_user_raises():
    with pytest.raises(ConfigurationError, match="must be"):
        attack_tables("data/sample/geolife", Areas.from_polygons(TOWN), hours_per_user=0)
