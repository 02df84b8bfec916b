from __future__ import annotations

import numpy as np
import pytest

from dphmm.errors import ConfigurationError
from dphmm.evaluation.config import EvaluationConfig
from dphmm.evaluation.split import Split, space_of, split_people
from dphmm.markov.model import MarkovModel
from dphmm.space.trajectory import Trajectory


def test_nobody_is_both_evaluated_and_learned_from(config, people):
    split, model = split_people(people, config)
    assert len(split.users) == 4
    assert set(split.users).isdisjoint(split.learned_from)
    assert set(split.users) | set(split.learned_from) == {person.user for person in people}
    alone = {person.user: person for person in people}
    grid = space_of(config)
    others = [grid.locate(alone[u].latitude, alone[u].longitude) for u in split.learned_from]
    again = MarkovModel.fit(others, grid.size, config.smoothing)
    np.testing.assert_array_equal(model.transition.toarray(), again.transition.toarray())


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
    from tests.walkers import walker

    whole = [walker(f"p{i}", 40, i) for i in range(4)]
    kept = np.arange(40) % 10 != 9  # a hole every ten steps; a sequence of thirteen needs more
    holes = Trajectory("h", whole[0].times[kept], whole[0].latitude[kept], whole[0].longitude[kept])
    split, _ = split_people([*whole, holes], config)
    assert "h" in split.learned_from
    assert sum(split.dropped.values()) == 1


def test_data_without_a_usable_sequence_are_refused_with_the_counts(config, people):
    from tests.walkers import walker

    far = Trajectory("far", people[1].times, people[1].latitude - 20, people[1].longitude)
    with pytest.raises(ConfigurationError, match=r"1 were never within the region; 2 have no unbroken") as caught:
        split_people([far, walker("a", 5, 1), walker("b", 5, 2)], config)
    assert "\n" not in str(caught.value)


def test_split_survives_its_file(config, people, tmp_path):
    split, _ = split_people(people, config)
    split.save(tmp_path)
    again = Split.load(tmp_path)
    assert (again.users, again.learned_from, again.dropped) == (split.users, split.learned_from, split.dropped)
    np.testing.assert_array_equal(again.states, split.states)


def test_each_fix_is_a_step_where_there_is_no_clock(config, people):
    keys = config.model_dump() | {"step_seconds": None, "data": config.data}
    split, model = split_people(people, EvaluationConfig.model_validate(keys))
    assert model.step_seconds is None
    assert len(split.users) == 4
