"""Leakage under models that vary with time: sound against all paths and outputs, and near what these tell."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dphmm import ReleaseSettings, leakage
from dphmm.jobs import Data, leak_of_releases, learn, region, release
from dphmm.jobs.leaks import _varying
from dphmm.model import MarkovModel, TimeClasses

FIRST, HOUR = 470_000, 3600.0
EPSILONS = [0.8, 0.5, 1.0, 0.6]


def _model(seed):
    rng = np.random.default_rng(seed)
    raw, starts = rng.random((4, 3, 3)) + 0.1, rng.random((4, 3)) + 0.1
    time_classes = TimeClasses(tuple(h % 4 for h in range(168)), HOUR, "Asia/Kolkata")
    rows = raw / raw.sum(axis=-1, keepdims=True)
    return MarkovModel(list(rows), starts / starts.sum(axis=1, keepdims=True), None, HOUR, time_classes)


def _told(model):
    """What all outputs of randomised responses tell at most of two states at each time, by enumeration."""
    number = [model.time_classes.class_of(FIRST + k) for k in range(4)]
    noise = [np.where(np.eye(3) > 0, np.exp(one), 1.0) / (np.exp(one) + 2) for one in EPSILONS]
    joint, mass = np.zeros((4, 3, 81)), np.zeros((4, 3))
    outputs = list(itertools.product(range(3), repeat=4))
    for path in itertools.product(range(3), repeat=4):
        weight = model.starts[number[0], path[0]]
        for t in (1, 2, 3):
            weight *= model.transitions[number[t]][path[t - 1], path[t]]
        seen = np.array([np.prod([noise[t][path[t], z[t]] for t in range(4)]) for z in outputs])
        for t in range(4):
            joint[t, path[t]] += weight * seen
            mass[t, path[t]] += weight
    logs = np.log(joint / mass[:, :, np.newaxis])
    return np.array([np.ptp(logs[t], axis=0).max() for t in range(4)])


@pytest.mark.parametrize("seed", range(8))
def test_leakage_bounds_what_all_outputs_tell(seed):
    model = _model(seed)
    told = _told(model)
    found = leakage.account(*_varying(model, FIRST, 4, 10.0), EPSILONS)
    assert (found.temporal >= told - 1e-9).all()
    assert found.worst < 1.35 * told.max(), "near what some output tells"
    no_memory = leakage.account(None, None, EPSILONS)
    assert (no_memory.temporal < told - 1e-3).any(), "the broken twin: an adversary without the model"


def test_another_clock_is_another_account():
    model = _model(3)
    found = [leakage.account(*_varying(model, FIRST + k, 4, 10.0), EPSILONS).temporal for k in (0, 1)]
    assert np.abs(found[0] - found[1]).max() > 1e-3


def test_releases_are_accounted_for_by_the_clock():
    space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell=2)
    town = "data/sample/geolife"
    others, ann = Data((town,), exclude_users=("002",)), Data((town,), users=("002",))
    model = learn(others, space, 600, 3600, by="hours", zone="Europe/Lisbon").model
    done = release(ann, model, ReleaseSettings(policy="complete", epsilon=0.1))
    found = leak_of_releases(model, done.table).leakage.by_user["002"]
    assert 0.1 < found.worst <= found.user_level * (1 + 1e-12)
