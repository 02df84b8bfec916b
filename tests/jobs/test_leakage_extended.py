"""Tests of leakage under time-dependent models against all paths and outputs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dphmm import ReleaseSettings, leakage
from dphmm.jobs import Data, compute_release_leakage, learn, region, release
from dphmm.jobs.leakage import _build_loss_functions
from dphmm.model import MarkovModel, TimeClasses

FIRST = 470_000
HOUR = 3600.0
EPSILONS = [0.8, 0.5, 1.0, 0.6]


def _build_model(seed):
    rng = np.random.default_rng(seed)
    raw, starts = rng.random((4, 3, 3)) + 0.1, rng.random((4, 3)) + 0.1
    time_classes = TimeClasses(tuple(h % 4 for h in range(168)), HOUR, "Asia/Kolkata")
    rows = raw / raw.sum(axis=-1, keepdims=True)
    return MarkovModel(list(rows), starts / starts.sum(axis=1, keepdims=True), None, HOUR, time_classes)


def _compute_max_log_ratios(model):
    """Return the largest log ratio of two states at each timestep, over all outputs.

    Outputs are randomised responses, enumerated with all paths.
    """
    number = [model.time_classes.get_class(FIRST + k) for k in range(4)]
    noise = [np.where(np.eye(3) > 0, np.exp(epsilon), 1.0) / (np.exp(epsilon) + 2) for epsilon in EPSILONS]
    joint, mass = np.zeros((4, 3, 81)), np.zeros((4, 3))
    outputs = list(itertools.product(range(3), repeat=4))
    for path in itertools.product(range(3), repeat=4):
        weight = model.initial_by_class[number[0], path[0]]
        for t in (1, 2, 3):
            weight *= model.transitions[number[t]][path[t - 1], path[t]]
        seen = np.array([np.prod([noise[t][path[t], z[t]] for t in range(4)]) for z in outputs])
        for t in range(4):
            joint[t, path[t]] += weight * seen
            mass[t, path[t]] += weight
    logs = np.log(joint / mass[:, :, np.newaxis])
    return np.array([np.ptp(logs[t], axis=0).max() for t in range(4)])


@pytest.mark.parametrize("seed", range(8))
def test_leakage_bounds_log_ratios_of_all_outputs(seed):
    model = _build_model(seed)
    log_ratios = _compute_max_log_ratios(model)
    result = leakage.compute_leakage(*_build_loss_functions(model, FIRST, 4, 10.0), EPSILONS)
    assert (result.temporal >= log_ratios - 1e-9).all()
    assert result.worst < 1.35 * log_ratios.max(), "the bound is nearly attained"
    no_memory = leakage.compute_leakage(None, None, EPSILONS)
    assert (no_memory.temporal < log_ratios - 1e-3).any(), "without the model the leakage is underestimated"


def test_one_release_leaks_its_budget():
    result = leakage.compute_leakage(*_build_loss_functions(_build_model(3), FIRST, 1, 10.0), [0.7])
    assert (result.temporal.tolist(), result.worst) == ([0.7], 0.7)


def test_steps_have_a_loss_function_only_once_they_recur():
    """The belief converges to one that recurs each day."""
    model = _build_model(3)
    pasts = list(_build_loss_functions(model, FIRST, 1001, 10.0)[0])
    is_function = np.array([isinstance(past, leakage.LossFunction) for past in pasts])
    assert not is_function[0]
    assert is_function[-500:].all()
    assert len({id(past) for past in pasts[-500:]}) <= 168
    belief = model.initial_by_class[model.time_classes.get_class(FIRST)]
    for step, past in enumerate(pasts, start=1):
        forward = model.transitions[model.time_classes.get_class(FIRST + step)].toarray()
        joint = belief[:, np.newaxis] * forward
        backward = (joint / joint.sum(axis=0)).T
        # Two rows q and d have the loss log sum(q x) / sum(d x) for x of 1 and e^a.
        worst = max(
            np.log(backward[i] @ np.where(chosen, np.e, 1.0)) - np.log(backward[j] @ np.where(chosen, np.e, 1.0))
            for i, j in itertools.permutations(range(3), 2)
            for chosen in itertools.product((False, True), repeat=3)
        )
        loss = past(1.0) if isinstance(past, leakage.LossFunction) else leakage.loss(past, 1.0)
        assert loss == pytest.approx(worst, rel=1e-9)
        belief = belief @ forward


def test_leakage_depends_on_clock():
    model = _build_model(3)
    leakages = [
        leakage.compute_leakage(*_build_loss_functions(model, FIRST + k, 4, 10.0), EPSILONS).temporal for k in (0, 1)
    ]
    assert np.abs(leakages[0] - leakages[1]).max() > 1e-3


@pytest.mark.slow
def test_release_leakage_uses_clock():
    space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=2)
    town = "data/sample/geolife"
    others, ann = Data((town,), exclude_users=("002",)), Data((town,), users=("002",))
    model = learn(others, space, 600, 3600, time_classes="hour", zone="Europe/Lisbon").model
    done = release(ann, model, ReleaseSettings(policy="complete", epsilon=0.1))
    leaked = compute_release_leakage(model, done.table)
    result = leaked.leakage.by_user["002"]
    assert leaked.epsilon == result.epsilons.max()
    assert 0.1 < result.worst <= result.user_level * (1 + 1e-12)
