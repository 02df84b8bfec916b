"""A model is not used on those it was learned from, as far as its private list can tell."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import numpy as np
import pytest

from dphmm import MarkovModel, ReleaseSettings
from dphmm.errors import ConfigurationError, DataFileError, InvalidInputError, OutputError
from dphmm.jobs import Budgets, Counts, Data, Mobility, batch, count_people, learn, live, region, release
from dphmm.jobs.models import people_seen, private_list

SETTINGS = ReleaseSettings(policy="utility:1km", epsilon=1)
SPACE = region(bbox=(44.97, -30.04, 45.03, -29.96), cell=1)
EVERYONE = ANN, *OTHERS = ["ann", "bob", "eve"]


@pytest.fixture(scope="module")
def town(tmp_path_factory) -> Path:
    """Three people who walk to and fro for an hour."""
    lines = [
        f"{user},2024-03-07T{9 + at // 6:02d}:{at % 6}0:00Z,{45 + 0.01 * (at % 2)},{-30.01 + 0.01 * number}\n"
        for number, user in enumerate(EVERYONE)
        for at in range(8)
    ]
    path = tmp_path_factory.mktemp("town") / "town.csv"
    path.write_text("user,time,lat,lon\n" + "".join(lines))
    return path


@pytest.fixture
def model(town, tmp_path) -> Path:
    learn(Data((town,), exclude_users=(ANN,)), SPACE, 600, output=tmp_path / "city.npz")
    return tmp_path / "city.npz"


def test_the_list_is_private_and_names_everyone_and_the_model_names_nobody(model):
    path = model.with_name("city.PRIVATE-people.json")
    assert path == private_list(model)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    told = json.loads(path.read_text())
    assert (told["people"], told["model"]) == (OTHERS, MarkovModel.load(model).content_hash)
    with np.load(model) as archive:
        texts = [str(archive[name]) for name in archive.files if archive[name].dtype.kind in "US"]
    assert not any(f'"{name}"' in text for name in EVERYONE for text in texts)


def test_who_was_learned_from_is_refused_before_anything_is_drawn_or_written(town, model, tmp_path):
    for users in (OTHERS, EVERYONE):
        with pytest.raises(ConfigurationError, match=rf"user {OTHERS[0]}.* among those .* or say --allow-own-model"):
            release(Data((town,), users=tuple(users)), model, SETTINGS, tmp_path / "out.csv", session=tmp_path / "s.db")
    with pytest.raises(ConfigurationError, match="among those that the model was learned from"):
        batch(Data((town,), users=tuple(OTHERS)), tmp_path / "all", model, SETTINGS, kind="csv", workers=1)
    assert {file.name for file in tmp_path.iterdir() if file.is_file()} == {"city.npz", "city.PRIVATE-people.json"}
    assert not (tmp_path / "all").exists()
    with live(model, SETTINGS) as people:
        with pytest.raises(InvalidInputError, match="among those that the model was learned from"):
            people.take(OTHERS[0], np.datetime64("2024-03-07T09:00"), 45.01, -30.01)
        assert people.take(ANN, np.datetime64("2024-03-07T09:00"), 45.01, -30.01).record.index == 0


def test_others_are_released_and_who_allows_it_too(town, model, tmp_path):
    done = release(Data((town,), users=(ANN,)), model, SETTINGS)
    assert done.own_model == "no"
    done = release(Data((town,), users=(OTHERS[0],)), model, SETTINGS, allow_own_model=True)
    assert done.own_model == "not checked (--allow-own-model)"
    made = batch(town, tmp_path / "all", model, SETTINGS, kind="csv", workers=1, allow_own_model=True)
    assert sorted(one.user for one in made.done) == EVERYONE
    with live(model, SETTINGS, allow_own_model=True) as people:
        assert people.take(OTHERS[0], np.datetime64("2024-03-07T09:00"), 45.01, -30.01) is not None


def test_a_list_goes_by_its_models_content_and_says_nothing_of_others(town, model, tmp_path):
    loaded = MarkovModel.load(model)
    model.rename(tmp_path / "renamed.npz")
    (tmp_path / "link.npz").symlink_to(tmp_path / "renamed.npz")
    assert people_seen(tmp_path / "renamed.npz", loaded) == people_seen(tmp_path / "link.npz", loaded) == set(OTHERS)
    learn(Data((town,), users=(ANN,)), SPACE, 600, output=tmp_path / "ann.npz")
    assert people_seen(tmp_path / "ann.npz", MarkovModel.load(tmp_path / "ann.npz")) == {ANN}
    assert people_seen(tmp_path / "renamed.npz", loaded) == set(OTHERS)


def test_without_a_list_nothing_is_known_and_that_is_said(town, model):
    private_list(model).unlink()
    done = release(Data((town,), users=(OTHERS[0],)), model, SETTINGS)
    assert done.own_model == "not known: no list beside the model"
    assert people_seen(MarkovModel.load(model), MarkovModel.load(model)) is None


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, '{"format": "dphmm-learned-from-1", "people": [1]}'])
def test_a_list_that_cannot_be_read_is_named_with_the_remedy(town, model, text):
    private_list(model).write_text(text)
    with pytest.raises(DataFileError, match=r"city\.PRIVATE-people\.json: cannot be read .* say --allow-own-model"):
        release(Data((town,), users=(ANN,)), model, SETTINGS)
    release(Data((town,), users=(ANN,)), model, SETTINGS, allow_own_model=True)


def test_neither_file_is_replaced_or_written_alone(town, model, tmp_path, monkeypatch):
    model.unlink()
    with pytest.raises(OutputError, match=r"city\.PRIVATE-people\.json exists"):
        learn(Data((town,), users=(ANN,)), SPACE, 600, output=model)
    private_list(model).unlink()

    def fail(self, path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(MarkovModel, "save", fail)
    with pytest.raises(OutputError, match="No space left"):
        learn(Data((town,), users=(ANN,)), SPACE, 600, output=model)
    assert list(tmp_path.iterdir()) == []


def test_counts_of_people_whom_the_model_saw_are_refused(town, model):
    """Budgets that keep a level of leakage, the places and the clock come from the model; so they may not know them."""
    moves, budget = Mobility.from_source(model), Budgets(epsilon=1)
    with pytest.raises(ConfigurationError, match=r"users? bob, eve are among those .* or say --allow-own-model"):
        count_people(town, budget, mobility=moves)
    done = count_people(Data((town,), users=(ANN,)), budget, mobility=moves)
    assert done.private_facts()["private_model_learned_from_these_people"] == "no"
    allowed = count_people(town, budget, mobility=moves, allow_own_model=True)
    assert allowed.own_model == "not checked (--allow-own-model)"
    assert count_people(town, budget, SPACE, 600.0).own_model is None
    assert "a table does not say" in str(count_people(Counts(done.true.table), budget, mobility=moves).own_model)
    unlisted = count_people(town, budget, mobility=Mobility.from_source(MarkovModel.load(model)))
    assert unlisted.own_model == "not known: no list beside the model"


def test_smoothed_mobility_is_still_the_models(town, model):
    with pytest.raises(ConfigurationError, match="among those that the model was learned from"):
        count_people(town, Budgets(epsilon=1), mobility=Mobility.from_source(model, smoothing=0.01))


@pytest.mark.parametrize("several", [False, True])
def test_a_batch_refuses_the_last_person_before_the_first_is_written(town, model, tmp_path, several):
    """Ann comes first and may be released, Bob comes after her and may not: nobody is, and no folder is begun."""
    everyone = town.read_text().splitlines(keepends=True)
    paths = [town]
    if several:
        paths = [tmp_path / f"{user}.csv" for user in EVERYONE]
        for user, path in zip(EVERYONE, paths, strict=True):
            path.write_text(everyone[0] + "".join(line for line in everyone if line.startswith(user)))
    with pytest.raises(ConfigurationError, match=r"user bob, eve are among those that the model was learned from"):
        batch(paths, tmp_path / "all", model, SETTINGS, kind="csv", workers=1)
    assert not (tmp_path / "all").exists()
    done = batch(Data(tuple(paths), users=(ANN,)), tmp_path / "all", model, SETTINGS, kind="csv", workers=1)
    assert [one.user for one in done.done] == [ANN]
