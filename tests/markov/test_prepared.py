"""Days that lie in a model's file are those of its steps, and those of another model are refused."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from dphmm.errors import DataFileError
from dphmm.markov import ExtendedModel, MarkovModel
from dphmm.markov import days as days_module
from dphmm.markov import flow as flow_module
from dphmm.markov import model as model_module
from dphmm.markov import prepared as prepared_module
from dphmm.markov.masses import Masses
from dphmm.markov.powers import Powers
from tests.markov.clockwork import FIRST, HOUR, YEAR, stepped, varying
from tests.sizes import fewer, slow


@pytest.fixture
def unprepared(monkeypatch):
    """Whoever prepares a day or walks a week from now on fails."""

    def never(*_):
        raise AssertionError("a day was prepared")

    def forbid():
        monkeypatch.setattr(days_module.Days, "_made", never)
        monkeypatch.setattr(days_module.Days, "_through", never)
        monkeypatch.setattr(ExtendedModel, "_through_weeks", never)

    return forbid


@pytest.mark.parametrize(
    ("by", "stay"), [("hours", 0.5), ("weekday-hours", 0.95), slow("hours", 0.95), slow("weekday-hours", 0.5)]
)
def test_a_model_whose_file_holds_its_days_prepares_none(by, stay, tmp_path, unprepared):
    """From every day of the week on, in everyday tests every other, both ways, with the clock changed in between."""
    varying(3, by=by, stay=stay).prepared().save(tmp_path / "m.npz")
    model = MarkovModel.load(tmp_path / "m.npz")
    unprepared()
    start = np.eye(7)[2]
    for since in range(FIRST, FIRST + 24 * 9, fewer(24, 48)):
        for steps in (24 * 30, YEAR + 5):
            found = model.carry(Masses.of(start), steps, since)
            np.testing.assert_allclose(
                found.plain() / found.plain().sum(), stepped(model, start, steps, since), rtol=1e-9
            )
            back = model._through(Masses.of(start), steps, since, True)
            wanted = stepped(model, start, steps, since, True)
            np.testing.assert_allclose(back.plain() / back.plain().sum(), wanted, rtol=1e-9)


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("size", [3, 40])
def test_a_model_of_one_matrix_holds_its_days_too(few, size, tmp_path, unprepared, monkeypatch):
    """Of many states, whose days are made of single steps, and of fewer, whose days are made of powers."""
    if not few:
        monkeypatch.setattr(flow_module, "POWERS_UP_TO", 2)
        monkeypatch.setattr(model_module, "POWERS_UP_TO", 2)
    rng = np.random.default_rng(size)
    near = np.abs(np.subtract.outer(np.arange(size), np.arange(size))) <= 4
    matrix = rng.random((size, size)) * near + np.eye(size)
    model = MarkovModel(matrix / matrix.sum(axis=1, keepdims=True), np.full(size, 1 / size), None, HOUR)
    model.prepared().save(tmp_path / "m.npz")
    model = MarkovModel.load(tmp_path / "m.npz")
    assert model._prepared is not None
    unprepared()
    monkeypatch.setattr(Powers, "of", None)
    long = (model._prepared.unit + 3) * model._chunk + 5
    for steps in (long, 100_000):
        power = np.linalg.matrix_power(model.transition.toarray(), steps)
        found = model.carry(Masses.of(np.eye(size)[0]), steps).plain()
        np.testing.assert_allclose(found, power[0], rtol=1e-9)
        back = model._far(Masses.of(np.eye(size)[1]), steps, back=True).plain()
        np.testing.assert_allclose(back, power[:, 1], rtol=1e-9)


def _line(stay=0.99):
    """Moves between near places, of which each is seldom left."""
    moves = varying(2, size=60, stay=stay, near=10, least=0.5).transitions[3]
    return MarkovModel(moves, np.full(60, 1 / 60), None, HOUR)


def _hours():
    return varying(11, "UTC", "weekday-hours", size=60, stay=0.6, near=10, least=0.5)


@pytest.mark.parametrize("kind", ["powers", "steps", "hours"])
def test_gaps_between_go_by_fewer_days_that_were_prepared(kind, tmp_path, unprepared, monkeypatch):
    """What is left to walk is shorter than these; and nobody looks whether days are worth preparing."""
    if kind == "steps":
        monkeypatch.setattr(flow_module, "POWERS_UP_TO", 2)
        monkeypatch.setattr(model_module, "POWERS_UP_TO", 2)
    made = {"powers": _line, "steps": lambda: _line(0.9), "hours": _hours}[kind]()
    made.prepared().save(tmp_path / "m.npz")
    model = MarkovModel.load(tmp_path / "m.npz")
    unprepared()
    unit, alone = model._prepared.unit, model._prepared.alone
    assert alone is not None
    assert alone < unit - 1
    day = 24 if kind == "hours" else model._chunk
    walked, carry = [], flow_module.Flow.carry
    monkeypatch.setattr(flow_module.Flow, "carry", lambda *given: walked.append(given[2]) or carry(*given))
    since, size = 24 * 18_000, model.chain_size
    for days in (alone, alone + 1, min(2 * alone, unit - 1), unit - 1):
        for start in (np.eye(size)[0], np.exp(-3000 * np.random.default_rng(days).random(size))):
            steps = days * day
            wanted = stepped(made, start, steps, since) if kind == "hours" else _power(made, steps, start, False)
            found = model.carry(Masses.of(start), steps, since).plain()
            np.testing.assert_allclose(found / found.sum(), wanted, rtol=1e-9)
            assert sum(walked) == (days % alone) * day
            walked.clear()
            if kind == "hours":
                wanted = stepped(made, start, steps, since, True)
                back = model._through(Masses.of(start), steps, since, True)
            else:
                wanted = _power(made, steps, start, True)
                back = model._far(Masses.of(start), steps, True)
            found = back.plain(float(back.exponent.max()))
            np.testing.assert_allclose(found / found.sum(), wanted, rtol=1e-9)
            assert sum(walked) == (days % alone) * day
            walked.clear()
    assert "_survey" not in vars(model._days)


def _power(model, steps, start, back):
    power = np.linalg.matrix_power(model.transition.toarray(), steps)
    found = power @ start if back else start @ power
    return found / found.sum()


def test_fewer_days_are_walked_where_some_state_would_be_too_faint(monkeypatch):
    model, start = _line().prepared(), Masses.of(np.eye(60)[0])
    alone, runs = model._prepared.alone, [(((0, model._chunk),), model._prepared.alone + 2)]
    assert model._days.carry(start, runs)[1] == alone
    monkeypatch.setattr(days_module, "ALONE", replace(days_module.ALONE, near=2.0))
    assert model._days.carry(start, runs) == (start, 0)


def test_a_gap_that_is_shorter_than_all_that_is_prepared_goes_by_powers(monkeypatch):
    plain = _line()
    model = plain.prepared()
    steps = (model._prepared.alone - 1) * model._chunk
    assert steps > 512
    made, power = set(), Powers.of
    monkeypatch.setattr(Powers, "of", lambda powers, steps: made.add(steps) or power(powers, steps))
    for masses in (Masses.of(np.eye(60)[0]), Masses.of(np.arange(1.0, 61.0))):
        found = model.carry(masses, steps)
        assert made == {flow_module.LEAST_POWER}, "another would take longer than what is left"
        wanted = plain.carry(masses, steps)
        made.clear()
        np.testing.assert_allclose(found.plain(), wanted.plain(), rtol=1e-12)


def test_a_model_is_left_as_it_is_where_it_takes_too_long_or_people_do_not_mix():
    by_hours = varying(3)
    assert by_hours.prepared(limit_seconds=0.0) is by_hours
    assert by_hours.prepared() is not by_hours
    assert by_hours.prepared().content_hash == by_hours.content_hash
    apart = MarkovModel(np.kron(np.eye(50), np.full((2, 2), 0.5)), np.full(100, 0.01), None, HOUR)
    assert apart.prepared() is apart


def _saved(tmp_path, change):
    """A model's file, some of whose arrays were changed."""
    varying(3).prepared().save(tmp_path / "m.npz")
    with np.load(tmp_path / "m.npz") as file:
        arrays = {name: file[name] for name in file.files}
    change(arrays)
    np.savez(tmp_path / "changed.npz", **arrays)
    return tmp_path / "changed.npz"


def _told(arrays, **changes):
    about = json.loads(arrays["days"].item()) | changes
    return np.array(json.dumps(about))


def _sealed(arrays):
    """With the right hash."""
    model = varying(3)
    parts = {name: part for name, part in arrays.items() if name.startswith("days_")}
    unit = json.loads(arrays["days"].item())["unit"]
    arrays["days"] = _told(arrays, hash=prepared_module._hash(model.content_hash, unit, parts))


def _of_another(arrays):
    arrays["starts"] = arrays["starts"] * 0.5 + 0.5 * np.eye(7)[0]


def _not_sums(arrays):
    arrays["days_0_entry"] = arrays["days_0_entry"] * 1.01
    _sealed(arrays)


def _not_finite(arrays):
    arrays["days_0_exit"] = arrays["days_0_exit"] + np.nan
    _sealed(arrays)


def _whole(arrays):
    arrays["days_0_exit"] = np.rint(arrays["days_0_exit"]).astype(int)
    _sealed(arrays)


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays: arrays.pop("days_0_entry"),
        lambda arrays: arrays.update(days=np.array("[]")),
        lambda arrays: arrays.update(days=np.array(3)),
        lambda arrays: arrays.update(days=_told(arrays, unit="1")),
        lambda arrays: arrays.update(days=_told(arrays, kinds=[[[[1e999, 2]]]])),
        lambda arrays: arrays.update(days_0_entry=arrays["days_0_entry"] * 2),
        lambda arrays: (arrays.update(days=_told(arrays, unit=5)), _sealed(arrays)),
        _of_another,
        _not_sums,
        _not_finite,
        _whole,
    ],
)
def test_days_of_another_model_or_changed_ones_are_refused(change, tmp_path):
    with pytest.raises(DataFileError, match="prepared"):
        MarkovModel.load(_saved(tmp_path, change))


def test_days_that_were_not_changed_are_read(tmp_path):
    model = MarkovModel.load(_saved(tmp_path, lambda _: None))
    assert model._prepared is not None
