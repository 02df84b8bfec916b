from __future__ import annotations

import json
from dataclasses import replace
from math import isnan

import numpy as np
import pytest

from dphmm import ReleaseSettings
from dphmm.jobs import region
from dphmm.model.model import MarkovModel
from dphmm.policy.graph import PolicyGraph
from dphmm.release.engine import Releaser
from dphmm.release.trajectory import place_on_earth, placed
from dphmm.space import Places
from dphmm.space.states import OUTSIDE

SPACE = Places(["a", "b", "c"], [45.0, 45.001, 45.02], [7.0, 7.01, 7.05])


def test_a_draw_beyond_the_earths_plane_has_no_degrees_but_its_estimate_has():
    model = MarkovModel(np.full((3, 3), 1 / 3), np.full(3, 1 / 3), SPACE, 60.0)
    record = Releaser(model, SPACE.points, PolicyGraph.complete(3), epsilon=1.0, rng=1).release(0)
    near = place_on_earth("u", np.datetime64(0, "us"), record, SPACE)
    far = place_on_earth("u", np.datetime64(0, "us"), replace(record, released=(1e6, 0.0)), SPACE)
    assert isnan(far.latitude)
    assert isnan(far.longitude)
    assert far.estimate_latitude == near.estimate_latitude
    back = SPACE.projection.to_plane(near.latitude, near.longitude)[0]
    assert back == pytest.approx(record.released, abs=1e-5)


def test_a_tiny_budget_never_stops_a_run():
    model = MarkovModel(np.full((3, 3), 1 / 3), np.full(3, 1 / 3), SPACE, 60.0)
    releaser = Releaser(model, SPACE.points, PolicyGraph.complete(3), epsilon=1e-9, rng=1)
    assert isnan(place_on_earth("u", np.datetime64(0, "us"), releaser.release(0), SPACE).latitude)


def horseshoe(tmp_path):
    """An engine over a region that is bent around a hole."""
    ring = [[0, 0], [0.06, 0], [0.06, 0.06], [0.04, 0.06], [0.04, 0.02], [0.02, 0.02], [0.02, 0.06], [0, 0.06], [0, 0]]
    shape = {"type": "Polygon", "coordinates": [[[7 + x, 45 + y] for x, y in ring]]}
    (tmp_path / "bent.geojson").write_text(
        json.dumps(
            {"type": "FeatureCollection", "features": [{"type": "Feature", "properties": {}, "geometry": shape}]}
        )
    )
    space = region(polygon=tmp_path / "bent.geojson", cell=0.5)
    size = space.size
    model = MarkovModel(0.9 * np.eye(size) + 0.1 / size, np.full(size, 1 / size), space, 60.0)
    return ReleaseSettings("utility:1km", 0.2).engine(model, 3)


def test_estimates_stay_inside_a_bent_region(tmp_path):
    """A horseshoe whose mean lies in its hole: what is published is a place of the region, its radius the larger."""
    engine = horseshoe(tmp_path)
    space, moved = engine.model.space, []
    for _ in range(40):
        release = place_on_earth("u", np.datetime64(0, "us"), engine.release(0), space)
        inside = [np.array([value]) for value in (release.estimate_latitude, release.estimate_longitude)]
        assert space.locate(*inside)[0] != OUTSIDE
        mean = space.projection.to_latlon(np.array([release.record.estimate]))[0]
        was_outside = bool(space.locate(*mean[:, np.newaxis])[0] == OUTSIDE)
        assert (release.moved > 0) is was_outside
        assert release.estimate_radius == release.record.estimate_radius + release.moved
        moved.append(release.moved)
    assert max(moved) > 0, "the mean itself does leave the region"


def test_moments_are_placed_as_one_by_one(tmp_path):
    """Some draws lie beyond the Earth's plane, some moments have none, some estimates lie outside the region."""
    engine = horseshoe(tmp_path)
    space, moments = engine.model.space, []
    for number in range(45):
        record = engine.release(0)
        if number % 11 == 3:
            record = replace(record, released=(1e6, 0.0))
        if number % 5 == 1:
            record = replace(record, released=None, reason="target")
        moments.append((np.datetime64(number, "s"), record))
    wanted = [place_on_earth("u", *moment, space, 2) for moment in moments]
    found = placed("u", moments, space, 2)
    assert [repr(one) for one in found] == [repr(one) for one in wanted]  # to the last bit, and NaN is NaN
    assert any(one.moved for one in found)
    assert any(isnan(one.latitude) and one.record.released is not None for one in found)
    assert placed("u", [], space) == []
