"""Tests of the private list of training users: releases of these users are refused."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import numpy as np
import pytest

from dphmm import MarkovModel, ReleaseSettings
from dphmm.errors import ConfigurationError, DataFileError, InvalidInputError, OutputError
from dphmm.jobs import Budgets, Counts, Data, Mobility, batch, count_users, learn, region, release, release_live
from dphmm.jobs.model.training_users import find_training_users, get_private_list_path

SETTINGS = ReleaseSettings(policy="utility:1km", epsilon=1)
SPACE = region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=1)
EVERYONE = ANN, *OTHERS = ["ann", "bob", "eve"]


@pytest.fixture(scope="module")
def town(tmp_path_factory) -> Path:
    """Write three users who walk to and fro for an hour."""
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


def test_list_is_private_and_names_users_and_model_names_none(model):
    path = model.with_name("city.PRIVATE-users.json")
    assert path == get_private_list_path(model)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    listed = json.loads(path.read_text())
    assert (listed["users"], listed["model"]) == (OTHERS, MarkovModel.load(model).content_hash)
    with np.load(model) as archive:
        texts = [str(archive[name]) for name in archive.files if archive[name].dtype.kind in "US"]
    assert not any(f'"{name}"' in text for name in EVERYONE for text in texts)


def test_training_users_raise_before_sampling_or_writing(town, model, tmp_path):
    for users in (OTHERS, EVERYONE):
        with pytest.raises(ConfigurationError, match=rf"training users {OTHERS[0]}.* or set allow_training_users"):
            release(Data((town,), users=tuple(users)), model, SETTINGS, tmp_path / "out.csv", session=tmp_path / "s.db")
    with pytest.raises(ConfigurationError, match="must not be trained on"):
        batch(Data((town,), users=tuple(OTHERS)), tmp_path / "all", model, SETTINGS, kind="csv", workers=1)
    assert {file.name for file in tmp_path.iterdir() if file.is_file()} == {"city.npz", "city.PRIVATE-users.json"}
    assert not (tmp_path / "all").exists()
    with release_live(model, SETTINGS) as stream:
        with pytest.raises(InvalidInputError, match="must not be trained on"):
            stream.take(OTHERS[0], np.datetime64("2024-03-07T09:00"), 45.01, -30.01)
        assert stream.take(ANN, np.datetime64("2024-03-07T09:00"), 45.01, -30.01).record.index == 0


def test_other_users_are_released_and_training_users_if_allowed(town, model, tmp_path):
    done = release(Data((town,), users=(ANN,)), model, SETTINGS)
    assert done.own_model == "no"
    done = release(Data((town,), users=(OTHERS[0],)), model, SETTINGS, allow_training_users=True)
    assert done.own_model == "not checked (allow_training_users)"
    result = batch(town, tmp_path / "all", model, SETTINGS, kind="csv", workers=1, allow_training_users=True)
    assert sorted(user_result.user for user_result in result.done) == EVERYONE
    with release_live(model, SETTINGS, allow_training_users=True) as stream:
        assert stream.take(OTHERS[0], np.datetime64("2024-03-07T09:00"), 45.01, -30.01) is not None


def test_list_is_matched_by_model_hash(town, model, tmp_path):
    loaded = MarkovModel.load(model)
    model.rename(tmp_path / "renamed.npz")
    (tmp_path / "link.npz").symlink_to(tmp_path / "renamed.npz")
    assert (
        find_training_users(tmp_path / "renamed.npz", loaded)
        == find_training_users(tmp_path / "link.npz", loaded)
        == set(OTHERS)
    )
    learn(Data((town,), users=(ANN,)), SPACE, 600, output=tmp_path / "ann.npz")
    assert find_training_users(tmp_path / "ann.npz", MarkovModel.load(tmp_path / "ann.npz")) == {ANN}
    assert find_training_users(tmp_path / "renamed.npz", loaded) == set(OTHERS)


def test_membership_is_unknown_without_list(town, model):
    get_private_list_path(model).unlink()
    done = release(Data((town,), users=(OTHERS[0],)), model, SETTINGS)
    assert done.own_model == "unknown: no user list next to the model"
    assert find_training_users(MarkovModel.load(model), MarkovModel.load(model)) is None


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", "[" * 100_000, '{"format": "dphmm-learned-from-1", "users": [1]}'],
    ids=["empty", "list", "truncated", "deeply nested", "wrong type"],
)
def test_unreadable_list_raises_with_remedy(town, model, text):
    get_private_list_path(model).write_text(text)
    with pytest.raises(
        DataFileError,
        match=r"city\.PRIVATE-users\.json: is not a valid list of training users.* set allow_training_users",
    ):
        release(Data((town,), users=(ANN,)), model, SETTINGS)
    release(Data((town,), users=(ANN,)), model, SETTINGS, allow_training_users=True)


def test_model_and_list_are_written_together_or_not_at_all(town, model, tmp_path, monkeypatch):
    model.unlink()
    with pytest.raises(OutputError, match=r"city\.PRIVATE-users\.json"):
        learn(Data((town,), users=(ANN,)), SPACE, 600, output=model)
    get_private_list_path(model).unlink()

    def fail(self, path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(MarkovModel, "save", fail)
    with pytest.raises(OutputError, match="No space left"):
        learn(Data((town,), users=(ANN,)), SPACE, 600, output=model)
    assert list(tmp_path.iterdir()) == []


def test_counts_of_training_users_raise(town, model):
    """The model determines the budgets of a leakage level, the places and the clock.

    Therefore it must not be trained on the counted users.
    """
    moves, budget = Mobility.from_source(model), Budgets(epsilon=1)
    with pytest.raises(ConfigurationError, match=r"got training users bob, eve: .* or set allow_training_users"):
        count_users(town, budget, mobility=moves)
    done = count_users(Data((town,), users=(ANN,)), budget, mobility=moves)
    assert done.to_private_dict()["private_model_trained_on_these_users"] == "no"
    allowed = count_users(town, budget, mobility=moves, allow_training_users=True)
    assert allowed.own_model == "not checked (allow_training_users)"
    assert count_users(town, budget, SPACE, 600.0).own_model is None
    from_table = count_users(Counts(done.true.table), budget, mobility=moves)
    assert from_table.own_model == "unknown: a table does not list the counted users"
    unlisted = count_users(town, budget, mobility=Mobility.from_source(MarkovModel.load(model)))
    assert unlisted.own_model == "unknown: no user list next to the model"


def test_smoothed_mobility_still_belongs_to_its_model(town, model):
    with pytest.raises(ConfigurationError, match="must not be trained on"):
        count_users(town, Budgets(epsilon=1), mobility=Mobility.from_source(model, smoothing=0.01))


@pytest.mark.parametrize("several", [False, True])
def test_batch_with_a_training_user_raises_before_writing(town, model, tmp_path, several):
    """Ann may be released, Bob may not. No user is released, and no folder is created."""
    all_lines = town.read_text().splitlines(keepends=True)
    paths = [town]
    if several:
        paths = [tmp_path / f"{user}.csv" for user in EVERYONE]
        for user, path in zip(EVERYONE, paths, strict=True):
            path.write_text(all_lines[0] + "".join(line for line in all_lines if line.startswith(user)))
    with pytest.raises(ConfigurationError, match="users bob, eve"):
        batch(paths, tmp_path / "all", model, SETTINGS, kind="csv", workers=1)
    assert not (tmp_path / "all").exists()
    done = batch(Data(tuple(paths), users=(ANN,)), tmp_path / "all", model, SETTINGS, kind="csv", workers=1)
    assert [user_result.user for user_result in done.done] == [ANN]
