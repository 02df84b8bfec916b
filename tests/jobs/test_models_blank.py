"""Models of a region alone: anybody may be released under them, and every description of a region makes one."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dphmm import MarkovModel, ReleaseSettings
from dphmm.errors import ConfigurationError, OutputError
from dphmm.jobs import Data, blank_model, learn, release
from dphmm.jobs.models import MOST_STATES, people_seen, private_list
from tests.documents import ROOT

BOX = (44.97, -30.04, 45.03, -29.96)
ANN = Data((ROOT / "data/sample/geolife",), users=("002",))


def test_anybody_is_released_under_a_model_of_nobody(tmp_path):
    made = blank_model(bbox=BOX, output=tmp_path / "m.npz")
    assert made.model.size <= MOST_STATES
    assert people_seen(tmp_path / "m.npz", MarkovModel.load(tmp_path / "m.npz")) == frozenset()
    done = release(ANN, tmp_path / "m.npz", ReleaseSettings("utility:1km", 0.1))
    assert done.own_model == "no"
    assert done.facts()["states_the_policy_joins_to_none"] is None


def test_a_learned_model_that_lost_its_list_is_not_taken_for_blank(tmp_path):
    learn(ANN, output=tmp_path / "m.npz")
    private_list(tmp_path / "m.npz").unlink()
    assert people_seen(tmp_path / "m.npz", MarkovModel.load(tmp_path / "m.npz")) is None


def test_an_extent_is_the_box_of_a_layer(tmp_path):
    ring = [[-30.0, 45.0], [-29.9, 45.0], [-29.9, 45.1], [-30.0, 45.0]]
    shape = {"type": "Polygon", "coordinates": [ring]}
    layer = {"type": "FeatureCollection", "features": [{"type": "Feature", "properties": {}, "geometry": shape}]}
    (tmp_path / "layer.geojson").write_text(json.dumps(layer), encoding="utf-8")
    made = blank_model(extent=tmp_path / "layer.geojson", kind="walking").model
    same = blank_model(bbox=(45.0, -30.0, 45.1, -29.9), kind="walking").model
    np.testing.assert_array_equal(made.space.points, same.space.points)
    assert made.step_seconds == 60


@pytest.mark.parametrize("regions", [{}, {"bbox": BOX, "town": "Lyon"}])
def test_no_region_and_two_are_refused(regions):
    with pytest.raises(ConfigurationError, match="no single region"):
        blank_model(**regions)


def test_nothing_is_made_where_the_output_cannot_be(tmp_path):
    with pytest.raises(ConfigurationError, match=r"is a \.npz file"):
        blank_model(bbox=BOX, output=tmp_path / "m.csv")
    with pytest.raises(OutputError, match="there is no folder"):
        blank_model(bbox=BOX, output=tmp_path / "nowhere" / "m.npz")
