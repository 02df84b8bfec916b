from __future__ import annotations

import numpy as np
import pytest

from dphmm.errors import ConfigurationError
from dphmm.evaluation.config import EvaluationConfig, parse_config
from dphmm.evaluation.split import Split, check_policies, make_space, split_users
from dphmm.jobs.model.training_users import get_private_list_path, write_user_list
from dphmm.model.learning import fit_shrunk
from dphmm.model.model import MarkovModel
from dphmm.model.observed_moves import state_sequence
from dphmm.space.trajectory import Trajectory
from tests.walkers import make_walker


@pytest.mark.parametrize(
    ("keys", "columns", "rows", "cell"),
    [
        ({"preset": "geolife"}, 43, 33, 0.34),
        ({"preset": "gowalla"}, 83, 80, 0.89),
        ({"grid": "gowalla"}, 83, 80, 0.89),
        ({"preset": "gowalla", "cell_km": 2.0}, 37, 36, 2.0),
        ({"preset": "geolife", "bbox": [39.9, 116.3, 39.95, 116.4]}, 26, 17, 0.34),
    ],
    ids=["geolife", "gowalla", "gowalla grid", "gowalla, 2 km", "geolife, bbox"],
)
def test_published_grid_has_published_cells_unless_changed(keys, columns, rows, cell):
    space = make_space(parse_config({"data": ["x"], **keys}))
    assert (space.columns, space.rows, space.cell_km) == (columns, rows, cell)


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        (
            {"radius_km": 0.4},
            r"key 'radius_km': policy 'centres:0.4km' connects none of the \d+ states: use centres:",
        ),
        ({"radii_km": [1.0, 0.3]}, r"key 'radii_km': policy 'centres:0.3km' .* or a smaller cell_km$"),
        ({"policies": ["utility", "centres:0.2km | complete"]}, r"key 'policies': policy 'centres:0.2km'"),
    ],
)
def test_policy_without_edges_raises_with_key_and_remedy(config, keys, named):
    changed = parse_config({**config.keys, **keys})
    with pytest.raises(ConfigurationError, match=named) as caught:
        check_policies(changed, make_space(changed))
    assert "\n" not in str(caught.value)


def test_transition_policy_without_shared_predecessors_raises(config):
    """If every state stays, no two moves share an origin and no two states are connected."""
    changed = parse_config({**config.keys, "policies": ["transition"]})
    space = make_space(changed)
    check_policies(changed, space)
    stays = MarkovModel(np.eye(space.size), np.full(space.size, 1 / space.size), space, 60.0)
    with pytest.raises(ConfigurationError, match=r"'policies': .*'transition'"):
        check_policies(changed, space, [stays])


@pytest.mark.parametrize("smoothing", [None, 0.5])
def test_users_are_never_evaluated_with_model_trained_on_them(config, trajectories, smoothing):
    config = config.model_copy(update={"smoothing": smoothing})
    split, models = split_users(trajectories, config)
    all_users = {trajectory.user for trajectory in trajectories}
    alone = {trajectory.user: trajectory for trajectory in trajectories}
    grid = make_space(config)
    assert len(split.users) == len(set(split.users)) == 4
    assert len(models) == len(split.learned_from) == config.folds
    for user, fold in zip(split.users, split.folds.tolist(), strict=True):
        assert user not in split.learned_from[fold]
    held_out = [all_users.difference(users) for users in split.learned_from]
    assert sorted(user for fold in held_out for user in fold) == sorted(all_users), "each user is in one fold"
    for users, model in zip(split.learned_from, models, strict=True):
        if smoothing is None:
            again = fit_shrunk([state_sequence(alone[u], grid, 60) for u in users], grid, 60).model
        else:
            walks = [grid.locate(alone[u].latitude, alone[u].longitude) for u in users]
            again = MarkovModel.fit(walks, grid.size, smoothing)
        np.testing.assert_array_equal(model.transition.toarray(), again.transition.toarray())


@pytest.mark.parametrize(("sequences", "count", "folds", "fewest"), [(12, 15, 5, 12), (15, 15, 5, 12), (2, 3, 5, 2)])
def test_models_are_trained_on_most_users(config, sequences, count, folds, fewest):
    """Without folds, twelve evaluated users of fifteen would leave three for training."""
    crowd = [make_walker(f"p{i}", 40, i) for i in range(count)]
    keys = config.model_dump() | {"sequences": sequences, "folds": folds}
    split, _ = split_users(crowd, EvaluationConfig.model_validate(keys))
    assert len(split.users) == sequences
    assert min(map(len, split.learned_from)) == fewest
    per_fold = np.bincount(split.folds, minlength=len(split.learned_from))
    assert per_fold.max() - per_fold.min() <= 1, "evaluated users are spread over the folds"


def test_model_of_single_user_raises(config):
    with pytest.raises(ConfigurationError, match=r"2 users .*region.* 1\b") as caught:
        split_users([make_walker("a", 40, 1), make_walker("b", 40, 2)], config)
    assert "\n" not in str(caught.value)


def test_given_model_is_used_for_all_users(config, trajectories, tmp_path):
    """Its states and clock are used, and no users are reserved for training."""
    _, (learned, *_) = split_users(trajectories, config)
    learned.save(tmp_path / "m.npz")
    keys = {"data": list(config.data), "model": str(tmp_path / "m.npz"), "sequences": 8, "length": 12}
    split, models = split_users(trajectories, parse_config(keys))
    assert [model.content_hash for model in models] == [learned.content_hash]
    assert (len(split.users), split.learned_from, set(split.folds.tolist())) == (8, (), {0})
    write_user_list(get_private_list_path(tmp_path / "m.npz"), learned, ["w1", "w2", "w0"])
    split, _ = split_users(trajectories, parse_config(keys))
    assert sorted(split.users) == [f"w{i}" for i in range(3, 9)]
    assert split.dropped["are training users of the model"] == 2


def test_sequences_are_unbroken_parts_of_trajectories(config, trajectories):
    split, _ = split_users(trajectories, config)
    grid = make_space(config)
    assert split.states.shape == (4, 13)
    for user, states in zip(split.users, split.states, strict=True):
        trajectory = next(p for p in trajectories if p.user == user)
        everything = grid.locate(trajectory.latitude, trajectory.longitude)
        windows = np.lib.stride_tricks.sliding_window_view(everything, 13)
        assert (windows == states).all(axis=1).any()


def test_dropped_users_are_counted_by_reason(config, trajectories):
    split, _ = split_users(trajectories, config)
    assert dict(split.dropped) == {"have no unbroken sequence long enough within the region": 1}


def test_gap_ends_sequence(config):
    whole = [make_walker(f"p{i}", 40, i) for i in range(4)]
    kept = np.arange(40) % 10 != 9  # a missing fix every ten steps; a sequence of thirteen needs more
    holes = Trajectory("h", whole[0].times[kept], whole[0].latitude[kept], whole[0].longitude[kept])
    split, _ = split_users([*whole, holes], config)
    assert sum("h" in users for users in split.learned_from) == 1
    assert sum(split.dropped.values()) == 1


def test_data_without_usable_sequence_raise_with_counts(config, trajectories):
    far = Trajectory("far", trajectories[1].times, trajectories[1].latitude - 20, trajectories[1].longitude)
    with pytest.raises(ConfigurationError, match=r"1 .*within the region; 2 ") as caught:
        split_users([far, make_walker("a", 5, 1), make_walker("b", 5, 2)], config)
    assert "\n" not in str(caught.value)


def test_split_is_restored_from_file(config, trajectories, tmp_path):
    split, models = split_users(trajectories, config)
    assert not Split.is_saved(tmp_path)
    split.save(tmp_path, models)
    assert Split.is_saved(tmp_path)
    again = Split.load(tmp_path)
    assert (again.users, again.learned_from, again.dropped) == (split.users, split.learned_from, split.dropped)
    np.testing.assert_array_equal(again.states, split.states)
    np.testing.assert_array_equal(again.folds, split.folds)


def test_each_fix_is_one_step_without_clock(config, trajectories):
    keys = config.model_dump() | {"step_seconds": None, "data": config.data}
    split, models = split_users(trajectories, EvaluationConfig.model_validate(keys))
    assert {model.step_seconds for model in models} == {None}
    assert len(split.users) == 4
