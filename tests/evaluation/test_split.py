from __future__ import annotations

import numpy as np
import pytest

from dphmm.errors import ConfigurationError
from dphmm.evaluation.config import EvaluationConfig, parse_config
from dphmm.evaluation.split import Split, check_policies, space_of, split_people
from dphmm.jobs.models import private_list, write_list
from dphmm.model.fitting import fit_shrunk
from dphmm.model.model import MarkovModel
from dphmm.model.moves import state_sequence
from dphmm.space.trajectory import Trajectory
from tests.walkers import walker


@pytest.mark.parametrize(
    ("keys", "columns", "rows", "cell"),
    [
        ({"preset": "geolife"}, 43, 33, 0.34),
        ({"preset": "gowalla"}, 83, 80, 0.89),
        ({"grid": "gowalla"}, 83, 80, 0.89),
        ({"preset": "gowalla", "cell_km": 2.0}, 37, 36, 2.0),
        ({"preset": "geolife", "bbox": [39.9, 116.3, 39.95, 116.4]}, 26, 17, 0.34),
    ],
)
def test_published_grid_has_its_published_cells_unless_the_file_changes_them(keys, columns, rows, cell):
    space = space_of(parse_config({"data": ["x"], **keys}))
    assert (space.columns, space.rows, space.cell_km) == (columns, rows, cell)


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        (
            {"radius_km": 0.4},
            r"key 'radius_km': policy 'centres:0.4km' joins no two of the \d+ states; .* give centres:",
        ),
        ({"radii_km": [1.0, 0.3]}, r"key 'radii_km': policy 'centres:0.3km' .* or a smaller cell_km$"),
        ({"policies": ["utility", "centres:0.2km | complete"]}, r"key 'policies': policy 'centres:0.2km'"),
    ],
)
def test_policy_without_edges_is_refused_by_key_and_remedy(config, keys, named):
    changed = parse_config({**config.keys, **keys})
    with pytest.raises(ConfigurationError, match=named) as caught:
        check_policies(changed, space_of(changed))
    assert "\n" not in str(caught.value)


def test_transition_policy_of_a_model_without_shared_predecessors_is_refused(config):
    """A model in which every state stays connects no two states: no move shares its origin with another."""
    changed = parse_config({**config.keys, "policies": ["transition"]})
    space = space_of(changed)
    check_policies(changed, space)
    stays = MarkovModel(np.eye(space.size), np.full(space.size, 1 / space.size), space, 60.0)
    with pytest.raises(ConfigurationError, match="key 'policies': policy 'transition' joins no two"):
        check_policies(changed, space, [stays])


@pytest.mark.parametrize("smoothing", [None, 0.5])
def test_nobody_is_evaluated_under_a_model_that_was_learned_from_them(config, people, smoothing):
    config = config.model_copy(update={"smoothing": smoothing})
    split, models = split_people(people, config)
    everyone = {person.user for person in people}
    alone = {person.user: person for person in people}
    grid = space_of(config)
    assert len(split.users) == len(set(split.users)) == 4
    assert len(models) == len(split.learned_from) == config.folds
    for user, fold in zip(split.users, split.folds.tolist(), strict=True):
        assert user not in split.learned_from[fold]
    held_out = [everyone.difference(users) for users in split.learned_from]
    assert sorted(user for fold in held_out for user in fold) == sorted(everyone), "everybody is in one fold"
    for users, model in zip(split.learned_from, models, strict=True):
        if smoothing is None:
            again = fit_shrunk([state_sequence(alone[u], grid, 60) for u in users], grid, 60).model
        else:
            walks = [grid.locate(alone[u].latitude, alone[u].longitude) for u in users]
            again = MarkovModel.fit(walks, grid.size, smoothing)
        np.testing.assert_array_equal(model.transition.toarray(), again.transition.toarray())


@pytest.mark.parametrize(("sequences", "count", "folds", "fewest"), [(12, 15, 5, 12), (15, 15, 5, 12), (2, 3, 5, 2)])
def test_models_are_learned_from_most_people_however_many_are_evaluated(config, sequences, count, folds, fewest):
    """Without folds, twelve evaluated of fifteen left three to learn from."""
    crowd = [walker(f"p{i}", 40, i) for i in range(count)]
    keys = config.model_dump() | {"sequences": sequences, "folds": folds}
    split, _ = split_people(crowd, EvaluationConfig.model_validate(keys))
    assert len(split.users) == sequences
    assert min(map(len, split.learned_from)) == fewest
    per_fold = np.bincount(split.folds, minlength=len(split.learned_from))
    assert per_fold.max() - per_fold.min() <= 1, "the evaluated are spread over the folds"


def test_a_model_of_one_person_is_refused(config):
    with pytest.raises(ConfigurationError, match=r"2 users were within the region.*learned from 1") as caught:
        split_people([walker("a", 40, 1), walker("b", 40, 2)], config)
    assert "\n" not in str(caught.value)


def test_a_given_model_is_everybodys(config, people, tmp_path):
    """Its states and its clock are the evaluation's, and nobody needs to be left to learn from."""
    _, (learned, *_) = split_people(people, config)
    learned.save(tmp_path / "m.npz")
    keys = {"data": list(config.data), "model": str(tmp_path / "m.npz"), "sequences": 8, "length": 12}
    split, models = split_people(people, parse_config(keys))
    assert [model.content_hash for model in models] == [learned.content_hash]
    assert (len(split.users), split.learned_from, set(split.folds.tolist())) == (8, (), {0})
    write_list(private_list(tmp_path / "m.npz"), learned, ["w1", "w2", "w0"])
    split, _ = split_people(people, parse_config(keys))
    assert sorted(split.users) == [f"w{i}" for i in range(3, 9)]
    assert split.dropped["are among those that the model was learned from"] == 2


def test_sequences_are_true_unbroken_stretches(config, people):
    split, _ = split_people(people, config)
    grid = space_of(config)
    assert split.states.shape == (4, 13)
    for user, states in zip(split.users, split.states, strict=True):
        person = next(p for p in people if p.user == user)
        everything = grid.locate(person.latitude, person.longitude)
        windows = np.lib.stride_tricks.sliding_window_view(everything, 13)
        assert (windows == states).all(axis=1).any()


def test_who_is_dropped_is_counted_with_the_reason(config, people):
    split, _ = split_people(people, config)
    assert dict(split.dropped) == {"have no unbroken sequence long enough within the region": 1}


def test_a_gap_breaks_a_sequence(config):
    whole = [walker(f"p{i}", 40, i) for i in range(4)]
    kept = np.arange(40) % 10 != 9  # a hole every ten steps; a sequence of thirteen needs more
    holes = Trajectory("h", whole[0].times[kept], whole[0].latitude[kept], whole[0].longitude[kept])
    split, _ = split_people([*whole, holes], config)
    assert sum("h" in users for users in split.learned_from) == 1
    assert sum(split.dropped.values()) == 1


def test_data_without_a_usable_sequence_are_refused_with_the_counts(config, people):
    far = Trajectory("far", people[1].times, people[1].latitude - 20, people[1].longitude)
    with pytest.raises(ConfigurationError, match=r"1 were never within the region; 2 have no unbroken") as caught:
        split_people([far, walker("a", 5, 1), walker("b", 5, 2)], config)
    assert "\n" not in str(caught.value)


def test_split_survives_its_file(config, people, tmp_path):
    split, models = split_people(people, config)
    assert not Split.is_saved(tmp_path)
    split.save(tmp_path, models)
    assert Split.is_saved(tmp_path)
    again = Split.load(tmp_path)
    assert (again.users, again.learned_from, again.dropped) == (split.users, split.learned_from, split.dropped)
    np.testing.assert_array_equal(again.states, split.states)
    np.testing.assert_array_equal(again.folds, split.folds)


def test_each_fix_is_a_step_where_there_is_no_clock(config, people):
    keys = config.model_dump() | {"step_seconds": None, "data": config.data}
    split, models = split_people(people, EvaluationConfig.model_validate(keys))
    assert {model.step_seconds for model in models} == {None}
    assert len(split.users) == 4
