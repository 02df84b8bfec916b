"""Tests of evaluations with time-dependent models."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm.errors import ConfigurationError
from dphmm.evaluation import evaluate, parse_config
from dphmm.evaluation.split import Split, get_model_path
from dphmm.jobs.batch.workers import Processes
from dphmm.model import MarkovModel

KEYS = {
    "data": ["data/sample/geolife"],
    "bbox": [44.97, -30.04, 45.03, -29.96],
    "cell_km": 1.0,
    "step_seconds": 300.0,
    "sequences": 2,
    "length": 5,
    "policies": ["utility"],
}
CLOCK = {"by": "hour", "zone": "Europe/Lisbon"}


@pytest.mark.slow
@pytest.mark.parametrize("start", ["known", "anywhere"])
def test_sequences_keep_their_own_time_slots(tmp_path, start):
    result = evaluate(parse_config({**KEYS, **CLOCK, "start": start}), tmp_path / "run", Processes(1))
    table = result.evaluation.table()
    assert len(table) == 10
    assert isinstance(MarkovModel.load(get_model_path(tmp_path / "run", 0)), MarkovModel)
    split = Split.load(tmp_path / "run")
    assert split.firsts.shape == (2,)
    assert (split.firsts > 5_000_000).all(), "slots of five minutes since 1970"
    assert np.isfinite(table["adversary_error_km"]).all()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"by": "hour"}, "'by' .*'zone'"),
        ({"zone": "UTC"}, "'by' .*'zone'"),
        ({"by": "hour", "zone": "UTC", "step_seconds": None}, "'step_seconds'"),
        ({"by": "years", "zone": "UTC"}, "by"),
    ],
)
def test_incompatible_keys_raise(keys, message):
    with pytest.raises(ConfigurationError, match=message):
        parse_config({**KEYS, **keys})
