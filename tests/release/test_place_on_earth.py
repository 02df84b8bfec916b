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
from dphmm.release.trajectory_release import locate_release, locate_releases
from dphmm.space import Places
from dphmm.space.states import OUTSIDE

SPACE = Places(["a", "b", "c"], [45.0, 45.001, 45.02], [7.0, 7.01, 7.05])


def test_release_beyond_plane_has_nan_coordinates_but_finite_estimate():
    model = MarkovModel(np.full((3, 3), 1 / 3), np.full(3, 1 / 3), SPACE, 60.0)
    record = Releaser(model, SPACE.points, PolicyGraph.complete(3), epsilon=1.0, rng=1).release(0)
    near = locate_release("u", np.datetime64(0, "us"), record, SPACE)
    far = locate_release("u", np.datetime64(0, "us"), replace(record, released=(1e6, 0.0)), SPACE)
    assert isnan(far.latitude)
    assert isnan(far.longitude)
    assert far.estimate_latitude == near.estimate_latitude
    back = SPACE.projection.to_plane(near.latitude, near.longitude)[0]
    assert back == pytest.approx(record.released, abs=1e-5)


def test_tiny_epsilon_gives_nan_coordinates_without_error():
    model = MarkovModel(np.full((3, 3), 1 / 3), np.full(3, 1 / 3), SPACE, 60.0)
    releaser = Releaser(model, SPACE.points, PolicyGraph.complete(3), epsilon=1e-9, rng=1)
    assert isnan(locate_release("u", np.datetime64(0, "us"), releaser.release(0), SPACE).latitude)


def build_horseshoe(tmp_path):
    """Build an engine over a region that is bent around a hole."""
    ring = [[0, 0], [0.06, 0], [0.06, 0.06], [0.04, 0.06], [0.04, 0.02], [0.02, 0.02], [0.02, 0.06], [0, 0.06], [0, 0]]
    shape = {"type": "Polygon", "coordinates": [[[7 + x, 45 + y] for x, y in ring]]}
    (tmp_path / "bent.geojson").write_text(
        json.dumps(
            {"type": "FeatureCollection", "features": [{"type": "Feature", "properties": {}, "geometry": shape}]}
        )
    )
    space = region(polygon=tmp_path / "bent.geojson", cell_km=0.5)
    size = space.size
    model = MarkovModel(0.9 * np.eye(size) + 0.1 / size, np.full(size, 1 / size), space, 60.0)
    return ReleaseSettings("utility:1km", 0.2).engine(model, 3)


def test_estimates_are_moved_into_bent_region(tmp_path):
    """The mean of a horseshoe lies in its hole. The published estimate lies in the region.

    Its error increases by the distance of the move.
    """
    engine = build_horseshoe(tmp_path)
    space, moved = engine.model.space, []
    for _ in range(40):
        release = locate_release("u", np.datetime64(0, "us"), engine.release(0), space)
        inside = [np.array([value]) for value in (release.estimate_latitude, release.estimate_longitude)]
        assert space.locate(*inside)[0] != OUTSIDE
        mean = space.projection.to_latlon(np.array([release.record.estimate]))[0]
        was_outside = bool(space.locate(*mean[:, np.newaxis])[0] == OUTSIDE)
        assert (release.moved_km > 0) is was_outside
        assert release.expected_estimate_error == release.record.expected_estimate_error + release.moved_km
        moved.append(release.moved_km)
    assert max(moved) > 0, "some means lie outside the region"


def test_batch_placement_matches_single_placement(tmp_path):
    """Include draws beyond the plane, withheld timesteps and estimates outside the region."""
    engine = build_horseshoe(tmp_path)
    space, records = engine.model.space, []
    for number in range(45):
        record = engine.release(0)
        if number % 11 == 3:
            record = replace(record, released=(1e6, 0.0))
        if number % 5 == 1:
            record = replace(record, released=None, withheld_reason="target")
        records.append((np.datetime64(number, "s"), record))
    wanted = [locate_release("u", *timed_record, space, 2) for timed_record in records]
    places = locate_releases("u", records, space, 2)
    assert [repr(release) for release in places] == [repr(release) for release in wanted]
    assert any(release.moved_km for release in places)
    assert any(isnan(release.latitude) and release.record.released is not None for release in places)
    assert locate_releases("u", [], space) == []
