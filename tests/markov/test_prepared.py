"""Days that lie in a model's file are those of its steps, and those of another model are refused."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dphmm.errors import DataFileError
from dphmm.markov import ExtendedModel, MarkovModel
from dphmm.markov import days as days_module
from dphmm.markov import model as model_module
from dphmm.markov import prepared as prepared_module
from dphmm.markov.masses import Masses
from tests.markov.clockwork import FIRST, HOUR, YEAR, stepped, varying


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


@pytest.mark.parametrize("by", ["hours", "weekday-hours"])
@pytest.mark.parametrize("stay", [0.5, 0.95])
def test_a_model_whose_file_holds_its_days_prepares_none(by, stay, tmp_path, unprepared):
    """From every day of the week on, forwards and back, with the clock changed in between."""
    varying(3, by=by, stay=stay).prepared().save(tmp_path / "m.npz")
    model = MarkovModel.load(tmp_path / "m.npz")
    unprepared()
    start = np.eye(7)[2]
    for since in range(FIRST, FIRST + 24 * 9, 24):
        for steps in (24 * 30, YEAR + 5):
            found = model.carry(Masses.of(start), steps, since)
            np.testing.assert_allclose(
                found.plain() / found.plain().sum(), stepped(model, start, steps, since), rtol=1e-9
            )
            back = model._through(Masses.of(start), steps, since, True)
            wanted = stepped(model, start, steps, since, True)
            np.testing.assert_allclose(back.plain() / back.plain().sum(), wanted, rtol=1e-9)


def test_a_model_of_many_states_and_one_matrix_holds_its_days_too(tmp_path, unprepared, monkeypatch):
    monkeypatch.setattr(model_module, "POWERS_UP_TO", 3)
    rng = np.random.default_rng(1)
    matrix = rng.random((9, 9))
    model = MarkovModel(matrix / matrix.sum(axis=1, keepdims=True), np.full(9, 1 / 9), None, HOUR)
    model.prepared().save(tmp_path / "m.npz")
    model = MarkovModel.load(tmp_path / "m.npz")
    unprepared()
    found = model.carry(Masses.of(np.eye(9)[0]), 100_000).plain()
    np.testing.assert_allclose(found, np.linalg.matrix_power(model.transition.toarray(), 100_000)[0], rtol=1e-9)


def test_where_powers_do_or_it_takes_too_long_a_model_is_left_as_it_is():
    matrix = MarkovModel(np.full((4, 4), 0.25), np.full(4, 0.25), None, HOUR)
    assert matrix.prepared() is matrix
    by_hours = varying(3)
    assert by_hours.prepared(limit_seconds=0.0) is by_hours
    assert by_hours.prepared() is not by_hours
    assert by_hours.prepared().content_hash == by_hours.content_hash


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
