"""Time-dependent models and outside states, against enumeration of all paths."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from dphmm.errors import ConfigurationError, DataFileError, InvalidInputError
from dphmm.model import (
    Belief,
    MarkovModel,
    Observations,
    TimeClasses,
    filter_releases,
    find_release_path,
    smooth_releases,
)
from dphmm.model.outside_states import OutsideStates
from dphmm.space import Grid

HOUR = 3600.0
FIRST = 470_000  # a slot of one-hour steps
BORDER = [0, 2]
SHARE = np.array([0.3, 0.6])


def _sample_rows(rng, *shape, zeros=0.25):
    """Sample random distributions along the last axis, with some zero entries."""
    raw = rng.random(shape) * (rng.random(shape) > zeros) + np.eye(shape[-1])[rng.integers(shape[-1], size=shape[:-1])]
    return raw / raw.sum(axis=-1, keepdims=True)


def _make_outside_states(share=SHARE):
    return OutsideStates(3, BORDER, [1.0, 2.0], [1.5, 5.0], share)


def _build_model(rng, outside, varies, step=HOUR):
    """Build a random model over three states, and its tables: starts and moves by class."""
    time_classes = TimeClasses(tuple(h % 24 // 2 % 5 for h in range(168)), step, "Europe/Berlin") if varies else None
    count, size = time_classes.count if time_classes else 1, 5 if outside else 3
    starts, moves = _sample_rows(rng, count, 3), _sample_rows(rng, count, size, size)
    begun = starts
    if outside:
        begun = np.concatenate([starts, starts[:, BORDER] * SHARE], axis=1)
        begun[:, BORDER] *= 1 - SHARE
    model = MarkovModel(list(moves), starts, None, step, time_classes, _make_outside_states() if outside else None)
    return model, (begun, moves)


def _get_class(model, slot):
    return 0 if model.time_classes is None else model.time_classes.get_class(slot)


def _enumerate_paths(model, tables, slots):
    """Enumerate the probability of every path of the chain through consecutive slots."""
    begun, moves = tables
    masses = {}
    for path in itertools.product(range(begun.shape[1]), repeat=len(slots)):
        mass = begun[_get_class(model, slots[0])][path[0]]
        for t in range(1, len(slots)):
            mass *= moves[_get_class(model, slots[t])][path[t - 1], path[t]]
        masses[path] = mass
    return masses


@pytest.mark.parametrize(("outside", "varies"), [(False, True), (True, False), (True, True)])
@pytest.mark.parametrize("seed", range(8))
def test_filter_smoother_and_path_match_enumeration(outside, varies, seed):
    rng = np.random.default_rng([seed, outside, varies])
    model, tables = _build_model(rng, outside, varies)
    steps = np.array([[1, 1, 1, 1], [2, 1, 1], [1, 3], [4], [1, 0, 2, 1]][seed % 5])
    at = np.concatenate([[0], np.cumsum(steps)])
    law = _enumerate_paths(model, tables, FIRST + np.arange(at[-1] + 1))
    logs = np.log(rng.random((len(at), 3)))
    if (
        seed % 2 and model.initial_by_class[_get_class(model, FIRST), 1:].any()
    ):  # the first release rules this start out
        logs[0, 0] = -np.inf
    paths = model.state_of_context[np.array(list(law))]  # the states of the contexts
    joint = np.array(list(law.values())) * np.exp(sum(logs[t, paths[:, k]] for t, k in enumerate(at)))
    observed = Observations(logs, np.concatenate([[1], steps]), FIRST)
    filtering = filter_releases(model, observed)
    smoothed = smooth_releases(model, observed, filtering)
    assert filtering.log_evidence == pytest.approx(np.log(joint.sum()), abs=1e-12)
    for t, k in enumerate(at):
        until = np.array(list(law.values())) * np.exp(sum(logs[r, paths[:, at[r]]] for r in range(t + 1)))
        before = np.array(list(law.values())) * np.exp(
            sum((logs[r, paths[:, at[r]]] for r in range(t)), np.zeros(len(paths)))
        )
        for weights, belief in ((until, filtering.filtered[t]), (before, filtering.predicted[t]), (joint, smoothed[t])):
            expected = np.bincount(paths[:, k], weights, minlength=3) / weights.sum()
            assert belief.probabilities == pytest.approx(expected, abs=1e-12)
            np.testing.assert_array_equal(belief.support, expected > 0)
    best = find_release_path(model, observed)
    assert best.log_probability == pytest.approx(np.log(joint.max()), abs=1e-12)
    assert best.states.tolist() == paths[joint.argmax()][at].tolist()


def test_filter_depends_on_first_slot():
    """A shift of one hour changes the filter."""
    model, _ = _build_model(np.random.default_rng(3), True, True)
    logs = np.log(np.random.default_rng(4).random((5, 3)))
    right = filter_releases(model, Observations(logs, first=FIRST)).logs
    wrong = filter_releases(model, Observations(logs, first=FIRST + 1)).logs
    assert np.abs(np.exp(right) - np.exp(wrong)).max() > 1e-3


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Asia/Kolkata", "+05:45"])
def test_classes_are_local_hours_of_step_starts(zone):
    from datetime import UTC, datetime, timedelta, timezone
    from zoneinfo import ZoneInfo

    zone_info = timezone(timedelta(hours=5, minutes=45)) if zone[0] == "+" else ZoneInfo(zone)
    time_classes = TimeClasses.from_name("weekday-hour", 300, zone)
    slots = np.concatenate([np.arange(5_600_000, 5_606_000), np.random.default_rng(1).integers(0, 10**7, 500)])
    classes = time_classes.get_classes(slots)
    for slot, number in zip(slots.tolist(), classes.tolist(), strict=True):
        local = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=300 * (slot - 1))).astimezone(zone_info)
        assert number == local.hour + 24 * (local.weekday() > 4)
        assert time_classes.get_class(slot) == number
    listed = [number for number, count in time_classes.runs(int(slots[0]) - 1, 6000) for _ in range(count)]
    assert listed == classes[:6000].tolist()


@pytest.mark.parametrize("far", [10**14, -(10**14)])
def test_class_of_slot_beyond_calendar_matches_array_result(far):
    time_classes = TimeClasses.from_name("weekday-hour", 3600, "Asia/Kolkata")
    slots = np.array([5, far, 7, 8])
    assert time_classes.get_classes(slots).tolist() == [time_classes.get_class(slot) for slot in slots.tolist()]
    assert time_classes.get_classes(slots)[[0, 2, 3]].tolist() == time_classes.get_classes(slots[[0, 2, 3]]).tolist()


@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("steps", [1, 5, 100, 24 * 7 * 9 + 5])
def test_gap_matches_single_steps(outside, steps):
    model, _ = _build_model(np.random.default_rng(steps), outside, True)
    masses = Belief.initial(model, FIRST)
    stepped = masses
    for k in range(steps):
        stepped = stepped.predict(model, 1, FIRST + k)
    once = masses.predict(model, steps, FIRST)
    assert np.exp(once.chain_logs) == pytest.approx(np.exp(stepped.chain_logs), rel=1e-9)
    np.testing.assert_array_equal(once.support, stepped.support)


def test_gap_of_20_years_works_and_101_years_raises():
    model, _ = _build_model(np.random.default_rng(1), True, True)
    belief = Belief.initial(model, FIRST).predict(model, 24 * 365 * 20, FIRST)
    assert belief.probabilities.sum() == pytest.approx(1.0)
    with pytest.raises(InvalidInputError, match="hundred years"):
        belief.predict(model, 24 * 366 * 101, FIRST)


@pytest.mark.parametrize(("outside", "varies"), [(False, True), (True, False), (True, True)])
def test_file_and_hash_cover_all_parts(tmp_path, outside, varies):
    grid = Grid.over((45.0, 0.0, 45.008, 0.038), 1.0)
    rng = np.random.default_rng(7)
    small, _ = _build_model(rng, outside, varies)
    model = MarkovModel(small.transitions, small.initial_by_class, grid, HOUR, small.time_classes, small.outside)
    assert grid.size == 3
    path = tmp_path / "m.npz"
    model.save(path)
    again = MarkovModel.load(path)
    assert isinstance(again, MarkovModel)
    assert again.content_hash == model.content_hash
    assert repr(again) == repr(model)
    others = [
        MarkovModel(small.transitions, small.initial_by_class[:, ::-1], grid, HOUR, small.time_classes, small.outside),
        MarkovModel(small.transitions, small.initial_by_class, None, HOUR, small.time_classes, small.outside),
    ]
    if outside:
        shares = _make_outside_states(np.array([0.3, 0.7]))
        others.append(MarkovModel(small.transitions, small.initial_by_class, grid, HOUR, small.time_classes, shares))
    if varies:
        zone = TimeClasses(small.time_classes.classes, HOUR, "UTC")
        turned = TimeClasses((*small.time_classes.classes[1:], small.time_classes.classes[0]), HOUR, "Europe/Berlin")
        others += [
            MarkovModel(small.transitions, small.initial_by_class, grid, HOUR, time_classes, small.outside)
            for time_classes in (zone, turned)
        ]
        last = (*small.transitions[1:], small.transitions[0])
        others.append(MarkovModel(last, small.initial_by_class, grid, HOUR, small.time_classes, small.outside))
    assert len({variant.content_hash for variant in (model, *others)}) == len(others) + 1


def test_invalid_time_dependent_model_raises(tmp_path):
    model, _ = _build_model(np.random.default_rng(1), True, True)
    with pytest.raises(ConfigurationError, match=r"5 classes .*outside"):
        _ = model.transition
    with pytest.raises(ConfigurationError, match=r"restart\(first=slot\)"):
        Belief.initial(model)
    with pytest.raises(ConfigurationError, match="slot"):
        filter_releases(model, Observations(np.zeros((2, 3))))
    with pytest.raises(ConfigurationError, match="one matrix for each of"):
        MarkovModel(model.transitions[:1], model.initial_by_class, None, HOUR, model.time_classes, model.outside)
    with pytest.raises(ConfigurationError, match="time_classes must have the step_seconds"):
        MarkovModel(model.transitions, model.initial_by_class, None, 60.0, model.time_classes, model.outside)
    with pytest.raises(ConfigurationError, match="168 integers, one for each hour"):
        TimeClasses((0,) * 24, HOUR)
    with pytest.raises(ConfigurationError, match="must be one of hour, weekday-hour"):
        TimeClasses.from_name("minutes", HOUR)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="'Mars/Base'"):
        TimeClasses.from_name("hour", HOUR, "Mars/Base")
    path = tmp_path / "m.npz"
    model.save(path)
    arrays = dict(np.load(path))
    for name, change in (
        ("data_3", None),
        ("initial_by_class", None),
        ("outside_shares", None),
        ("border", None),
        ("about", {"time_classes": {"classes": 3}}),
    ):
        broken = dict(arrays)
        if change is None:
            del broken[name]
        else:
            broken["about"] = np.array(json.dumps({**json.loads(arrays["about"].item()), **change}))
        np.savez(path, **broken)
        with pytest.raises(DataFileError, match="Markov model"):
            MarkovModel.load(path)
