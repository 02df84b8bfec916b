"""Tests of region models: they need no data and exclude no user."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dphmm import MarkovModel, ReleaseSettings
from dphmm.errors import ConfigurationError, OutputError
from dphmm.jobs import Data, build_blank_model, learn, region, release
from dphmm.jobs.model.region import MAX_STATES
from dphmm.jobs.model.training_users import find_training_users, get_private_list_path
from tests.documents import ROOT

BOX = (44.97, -30.04, 45.03, -29.96)
ANN = Data((ROOT / "data/sample/geolife",), users=("002",))


@pytest.mark.slow
def test_every_user_is_released_under_region_model(tmp_path):
    assert build_blank_model(bbox=BOX).model.size <= MAX_STATES
    build_blank_model(region(bbox=BOX, cell_km=0.5), output=tmp_path / "m.npz")
    assert find_training_users(tmp_path / "m.npz", MarkovModel.load(tmp_path / "m.npz")) == frozenset()
    done = release(ANN, tmp_path / "m.npz", ReleaseSettings("utility:1km", 0.1))
    assert done.own_model == "no"
    assert done.to_dict()["isolated_states"] is None


def test_learned_model_without_list_is_not_treated_as_region_model(tmp_path):
    learn(ANN, output=tmp_path / "m.npz")
    get_private_list_path(tmp_path / "m.npz").unlink()
    assert find_training_users(tmp_path / "m.npz", MarkovModel.load(tmp_path / "m.npz")) is None


@pytest.mark.parametrize(("west", "east"), [(-30.0, -29.9), (179.95, 180.05)], ids=["inland", "date line"])
def test_extent_is_bounding_box_of_layer(tmp_path, west, east):
    ring = [[west, 45.0], [east, 45.0], [east, 45.1], [west, 45.0]]
    shape = {"type": "Polygon", "coordinates": [ring]}
    layer = {"type": "FeatureCollection", "features": [{"type": "Feature", "properties": {}, "geometry": shape}]}
    (tmp_path / "layer.geojson").write_text(json.dumps(layer), encoding="utf-8")
    region_model = build_blank_model(extent=tmp_path / "layer.geojson", kind="walking").model
    same = build_blank_model(bbox=(45.0, west, 45.1, east if east < 180 else east - 360), kind="walking").model
    np.testing.assert_array_equal(region_model.space.points, same.space.points)
    assert region_model.step_seconds == 60


@pytest.mark.parametrize("regions", [{}, {"bbox": BOX, "town": "Lyon"}], ids=["none", "two"])
def test_no_region_or_two_regions_raise(regions):
    with pytest.raises(ConfigurationError, match="exactly one region"):
        build_blank_model(**regions)


def test_invalid_output_raises_before_computing(tmp_path):
    with pytest.raises(ConfigurationError, match=r"\.npz"):
        build_blank_model(bbox=BOX, output=tmp_path / "m.csv")
    with pytest.raises(OutputError, match=r"folder .* does not exist"):
        build_blank_model(bbox=BOX, output=tmp_path / "nowhere" / "m.npz")
