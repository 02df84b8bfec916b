from __future__ import annotations

from dataclasses import replace
from math import isnan

import numpy as np
import pytest

from dphmm.markov.model import MarkovModel
from dphmm.policy.graph import PolicyGraph
from dphmm.release.engine import Releaser
from dphmm.release.trajectory import place_on_earth
from dphmm.space import Places

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
